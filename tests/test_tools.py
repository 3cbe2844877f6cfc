"""What the make commands do around the tests: setting up, choosing what a change touches, the
front page."""
from pathlib import Path

import nbformat
import pytest
from conftest import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check():
    return load_script(ROOT/"tools"/"check.py")


def test_a_change_touches_itself_and_the_tests_that_import_it(check):
    tests = sorted((ROOT/"tests").glob("test_*.py"))
    changed = [
        Path("nbs/method/09_cider.ipynb"),
        Path("README.md"),
        Path("nbs/method/99_gone.ipynb"),
    ]
    names = check.touched_by(changed, tests)
    assert names[0] == "method/09_cider" and "test_cider" in names[1:4]
    assert "test_subtitles" not in names and not any("gone" in name for name in names)
    assert check.touched_by([Path("README.md")], tests) == []


def test_only_what_fits_into_the_time_is_run_every_day(check, monkeypatch):
    monkeypatch.setattr(check.os, "cpu_count", lambda: 2)
    seconds = {"quick": 5.0, "endless": 10**6, "last": check.BUDGET * 2 - 5.0}
    assert check.affordable(["quick", "endless", "last", "more"], seconds) == ["quick", "last"]


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
