"""What the make commands do around the tests: setting up, choosing what a change touches, what is
long, what is said at the end, the front page."""
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import reliability
from conftest import load_script, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check():
    return load_script(ROOT/"tools"/"check.py")


def test_a_change_touches_itself_and_the_tests_that_import_it(check):
    tests = sorted((ROOT/"tests").glob("test_*.py"))
    changed = [
        Path("nbs/method/10_cider.ipynb"),
        Path("picknet_nb/method/cider.py"),
        Path("README.md"),
        Path("nbs/method/99_gone.ipynb"),
    ]
    names = check.touched_by(changed, tests)
    assert names[0] == "method/10_cider" and "test_cider" in names[1:4]
    assert "test_subtitles" not in names and not any("gone" in name for name in names)
    assert check.touched_by([Path("README.md")], tests) == []
    # a word of prose changes no module
    assert check.touched_by(changed[:1], tests) == ["method/10_cider"]


def test_only_what_fits_into_the_time_is_run_every_day(check, monkeypatch):
    monkeypatch.setattr(check.os, "cpu_count", lambda: 2)
    seconds = {"quick": 5.0, "endless": 10**6, "last": check.BUDGET * 2 - 5.0}
    assert check.affordable(["quick", "endless", "last", "more"], seconds) == ["quick", "last"]


@pytest.fixture
def opened_in_jupyter(tmp_path, monkeypatch) -> Path:
    "A checkout of one notebook and one module after an editor left its copies there."
    for name in ("nbs/method/.ipynb_checkpoints/10_cider-checkpoint.ipynb",
                 "nbs/.virtual_documents/method/10_cider.ipynb", "nbs/method/10_cider.ipynb",
                 "picknet_nb/.cache/cider.py", "picknet_nb/cider.py"):
        (tmp_path/name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path/name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_copies_that_an_editor_left_are_not_compared(check, opened_in_jupyter):
    copy = opened_in_jupyter/"copy"
    for name in ("nbs/method/10_cider.ipynb", "picknet_nb/cider.py"):
        (copy/name).parent.mkdir(parents=True)
        (copy/name).write_text("{}")
    assert not list(check.compare(copy, "nbs", "*.ipynb", "differs"))
    assert not list(check.compare(copy, "picknet_nb", "*.py", "differs"))
    (copy/"picknet_nb"/"cider.py").write_text("other")
    assert list(check.compare(copy, "picknet_nb", "*.py", "differs")) == [
        "picknet_nb/cider.py differs"]


def test_copies_that_an_editor_left_are_not_run(check, opened_in_jupyter, monkeypatch):
    names = [path.relative_to(opened_in_jupyter) for path in opened_in_jupyter.rglob("*.*")]
    listed = SimpleNamespace(stdout="\n".join(map(str, names)))
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: listed)
    changed = [str(path) for path in check.changed_files() if path.suffix]
    assert sorted(changed) == ["nbs/method/10_cider.ipynb", "picknet_nb/cider.py"]
    pool = load_script(ROOT/"tools"/"pool.py")
    monkeypatch.setattr(pool, "ROOT", opened_in_jupyter)
    assert [path.name for path in pool.chosen([])] == ["10_cider.ipynb"]


def test_a_lesson_that_was_opened_run_and_saved_is_as_clean_as_before(tmp_path, monkeypatch):
    "What `make lab` adds to JupyterLab: lessons with outputs, counts and live widgets are saved."
    manager = pytest.importorskip("jupyter_server.services.contents.largefilemanager")
    monkeypatch.syspath_prepend(str(ROOT/"tools"))
    assert "ContentsManager.pre_save_hook=clean.before_saving" in (ROOT/"Makefile").read_text()
    files = manager.LargeFileManager(
        root_dir=str(tmp_path), pre_save_hook="clean.before_saving")
    for lesson in ("10_cider", "12_reinforce"):
        path = tmp_path/f"{lesson}.ipynb"
        path.write_bytes(before := (ROOT/"nbs"/"method"/path.name).read_bytes())
        model = files.get(path.name)
        files.create_checkpoint(path.name)
        model["content"]["metadata"]["language_info"] = {"version": "3.12"}
        model["content"]["metadata"]["widgets"] = {"state": {}}
        for number, cell in enumerate(model["content"]["cells"]):
            cell["metadata"]["execution"] = {"iopub.status.busy": "now"}
            if cell["cell_type"] == "code": cell["execution_count"] = number
        files.save({**model, "type": "notebook", "format": "json"}, path.name)
        assert path.read_bytes() == before
    assert list(tmp_path.glob(".ipynb_checkpoints/*.ipynb"))


@pytest.mark.parametrize("steps, title", [
    (["sync", "changed"], "make check"), (["sync", "everything", "wheel"], "make test-all"),
    (["sync", "notebooks", "pytest", "wheel"], "make test"), (["pytest"], "make test")])
def test_a_failure_names_the_command_that_was_typed(check, monkeypatch, steps, title):
    assert check.command(steps) == title and check.announcement(title).startswith(f"{title}: ")

    def fail():
        "Never passes."
        raise SystemExit("one line of the reason")

    monkeypatch.setitem(check.STEPS, "sync", fail)
    with pytest.raises(SystemExit, match=f"reason\n{title} failed at the step 'sync'"):
        check.in_order(["sync"], title)


def test_the_end_has_a_table_of_the_slowest_files_and_counts(tmp_path):
    pool = load_script(ROOT/"tools"/"pool.py")
    table = pool.slowest({f"test_{number}": (2.0 * number, float(number)) for number in range(20)})
    assert [re.findall(r"test_(\d+)", line) for line in table[1:-1]] == [
        [str(number)] for number in range(19, 9, -1)]
    assert "10 of 20 files" in table[0] and "190.0 s 100.0 %   380.0 s" in table[-1]
    cases = "".join(
        f'<testcase time="1" name="a">{each}</testcase>' for each in
        ("", "", "<failure/>", *['<skipped message="no GPU"/>'] * 3, '<skipped message="long"/>'))
    (tmp_path/"one.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert pool.counts(tmp_path) == [
        "2 tests passed, 4 skipped", "3 skipped: no GPU", "1 skipped: long"]


def test_notebooks_share_one_meteor(monkeypatch):
    "Also where tests/ is not on the path, as when the pool starts: each would take 12 seconds."
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    pool = load_script(ROOT/"tools"/"pool.py")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if Path(each) != ROOT/"tests"])
    monkeypatch.delitem(sys.modules, "reliability")
    with pool.one_meteor() as meteor:
        assert isinstance(meteor(), pool.SharedMeteor)


LESSON = """#| slow
from pathlib import Path
stored = Path("../../data/results/one.json")
assert stored.read_text() == "before" == Path("../../data/film.mp4").read_text()
stored.write_text("after")
Path({seen!r}).write_text("it ran")
"""


def test_slow_cells_run_where_asked_for_and_write_nothing_into_the_checkout(tmp_path, monkeypatch):
    pool = load_script(ROOT/"tools"/"pool.py")
    checkout, seen = tmp_path/"checkout", tmp_path/"seen"
    for name in ("nbs/method/a", "data/results/one.json", "data/film.mp4"):
        (checkout/name).parent.mkdir(parents=True, exist_ok=True)
        (checkout/name).write_text("before")
    (checkout/"settings.ini").write_bytes((ROOT/"settings.ini").read_bytes())
    slow = notebook_with(checkout/"nbs"/"method"/"01_lesson.ipynb",
                         (LESSON.format(seen=str(seen)), ""))
    quick = notebook_with(checkout/"nbs"/"method"/"02_other.ipynb", ("'#| slow'", ""))
    assert pool.slow_cells(slow) and not pool.slow_cells(quick)
    monkeypatch.setattr(pool, "ROOT", checkout)
    for long in (False, True):
        (reports := tmp_path/f"reports{long}").mkdir()
        assert pool.run_all([slow, quick], 1, reports, long=long)[1] == []
        assert seen.exists() == long
    assert (checkout/"data"/"results"/"one.json").read_text() == "before"


def test_long_tests_run_only_where_they_are_asked_for():
    def marked(long: bool, asked: bool) -> list:
        marks = []
        item = SimpleNamespace(get_closest_marker=lambda name: long and name == "long",
                               add_marker=marks.append)
        config = SimpleNamespace(getoption=lambda name: asked and name == "--long")
        pytest_collection_modifyitems(config, [item])
        return [mark.kwargs["reason"] for mark in marks]

    assert marked(long=True, asked=False) == ["long: `make test-all` runs it"]
    assert marked(True, True) == marked(False, False) == marked(False, True) == []


def test_a_tenth_of_the_inputs_has_one_of_each_kind_and_is_always_the_same(monkeypatch):
    inputs = {f"{number}_{'abc'[number // 40]}": number for number in range(100)}
    kind = lambda name: name[-1]
    monkeypatch.setattr(reliability, "LONG", False)
    some = reliability.a_tenth(inputs, kind)
    assert list(some.values()) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert list(reliability.a_tenth(list(inputs)[5:], kind))[:2] == ["5_a", "15_a"]
    assert {name[-1] for name in reliability.a_tenth(inputs, kind)} == set("abc")
    assert reliability.a_tenth(["x", "y", "z"], str) == ["x", "y", "z"]
    monkeypatch.setattr(reliability, "LONG", True)
    assert reliability.a_tenth(inputs, kind) is inputs


def test_building_the_site_says_every_ten_seconds_how_far_it_is(monkeypatch):
    hook, now = load_script(ROOT/"tools"/"progress.py"), [0.0]
    monkeypatch.setattr(hook.time, "monotonic", lambda: now[0])
    progress, said = hook.Progress(60), []
    for _ in range(60):
        now[0] += 3.0
        said.append(progress.page_done())
    lines = [line for line in said if line]
    assert lines[0] == "   4 of 60 pages, about 3 minutes left" and len(lines) == 15
    assert lines[-2] == "   56 of 60 pages, about 12 seconds left"


def test_long_commands_say_at_once_what_they_do_and_how_long():
    "The first line of each comes from make itself, before anything is imported."
    rules = dict(re.findall(r"^(\w+): .*\n((?:\t.+\n)+)", (ROOT/"Makefile").read_text(), re.M))
    for name in ("docs", "reproduce", "lab"):
        first = rules[name].splitlines()[0]
        assert first.startswith(f'\t@echo "make {name}: '), first
    assert "minutes" in rules["docs"] and "minutes" in rules["reproduce"]
    assert 'echo "make setup: ' in (ROOT/"Makefile").read_text()


def test_setting_up_says_how_far_it_is():
    lines = [
        "Collecting torch==2.10.0 (from -c constraints.txt)\n",
        "  Downloading torch-2.10.0-cp311-cp311-manylinux_2_28_x86_64.whl (915.6 MB)\n",
        "  Downloading torch-2.10.0.metadata (31 kB)\n",
        "Requirement already satisfied: typer>=0.12 in ./lib\n",
        "Installing collected packages: typer, torch\n",
        "Successfully installed torch-2.10.0 typer-0.29\n",
    ]
    assert list(load_script(ROOT/"tools"/"install.py").progress(lines, 170)) == [
        "1 of about 170: torch (0 MB downloaded so far)",
        "2 of about 170: typer (916 MB downloaded so far)",
        "unpacking 2 packages, which takes minutes",
        "Successfully installed",
    ]


def test_a_failed_setup_shows_what_pip_said(monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    install = load_script(ROOT/"tools"/"install.py")
    assert install.main(["sh", "-c", "echo no such package; exit 3"]) == 3
    said = capfd.readouterr()
    assert "8 GB" in said.out and "no such package" in said.err


def test_the_front_page_ends_where_the_index_says(tmp_path):
    readme = load_script(ROOT/"tools"/"readme.py")
    cells = ["# one", "[a](b.png) and [c](../d.md)", f"{readme.END}\n## two", "three"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(each) for each in cells])
    nbformat.write(book, tmp_path/"index.ipynb")
    assert readme.readme(tmp_path/"index.ipynb") == "# one\n\n[a](nbs/b.png) and [c](d.md)\n"


def notebook_with(path: Path, *cells: tuple[str, str]) -> Path:
    "A notebook of cells that were run some time ago, each with what it gave then."
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    notebook = new_notebook(cells=[
        new_code_cell(source, outputs=[new_output("stream", name="stdout", text=text)])
        for source, text in cells])
    nbformat.write(notebook, path)
    return path


def test_a_stored_output_that_is_not_todays_is_found_and_written(tmp_path, capsys):
    outputs = load_script(ROOT/"tools"/"outputs.py")
    path = notebook_with(
        tmp_path/"lesson.ipynb",
        ("print('3 apples')", "4 apples\n"),  # another number, as a time would be
        ("#| data\nprint('from a file')", "kept\n"),  # a cell that is not run everywhere
        ("print(['pear', 'plum'])", "['pear']\n"),
    )
    before = path.read_text()
    assert outputs.main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "-['pear']\n+['pear', 'plum']" in said and "1 stale" in said
    assert path.read_text() == before  # it was only looked at
    assert outputs.main(["--write", str(path)]) == 0 == outputs.main([str(path)])
    cells = nbformat.read(path, 4).cells
    assert [cell.outputs[0].text for cell in cells] == [
        "3 apples\n", "kept\n", "['pear', 'plum']\n"]
    assert cells[1].source == "#| data\nprint('from a file')"


def test_a_notebook_that_does_not_run_is_named(tmp_path, capsys):
    outputs = load_script(ROOT/"tools"/"outputs.py")
    path = notebook_with(tmp_path/"lesson.ipynb", ("1 / 0", ""))
    assert outputs.main([str(path)]) == 1
    assert "lesson.ipynb: does not run: ZeroDivisionError" in capsys.readouterr().out


def test_what_changes_from_run_to_run_is_not_compared():
    outputs = load_script(ROOT/"tools"/"outputs.py")
    from nbformat.v4 import new_code_cell, new_output

    def text(said: str) -> str:
        return outputs.text_of(new_code_cell(
            "", outputs=[new_output("stream", name="stdout", text=said)]))

    assert text("12.5 s  in /tmp/tmpab12/run, 3f2a9c81d0e7") == text(
        "9.75 s in /tmp/tmpzz/run, 77aa00bb11cc")
    assert text("read 12 ms\n") != text("wrote 12 ms\n")


@pytest.mark.parametrize(("command", "most"), [("caption", 10), ("reproduce", None)])
def test_the_way_from_a_command_to_its_work_is_short_and_as_the_map_has_it(command, most):
    calls = load_script(ROOT/"tools"/"calls.py").measure(command)
    assert most is None or len(calls) <= most, calls
    text = (ROOT/"CONTRIBUTING.md").read_text()
    known = re.findall(r"\w+", re.search(r"^picknet train .*?^```", text, re.M | re.S)[0])
    assert {call.rpartition(".")[2] for call in calls} <= set(known), calls
