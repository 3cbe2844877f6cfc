"The notebooks as a book: each one opens, closes and points as the others do."
import html
import importlib.util
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]/"nbs"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
FOLLOWING = dict(zip(NOTEBOOKS, [path.name for path in NOTEBOOKS[1:]] + ["index.ipynb"]))
ELSEWHERE = '*Run this elsewhere:* in a hosted notebook (Colab, Kaggle), run `!git clone https://github.com/picknet-nb/picknet_nb && pip install -q -e "picknet_nb[video,metrics]"`, restart the kernel, and begin with `%cd picknet_nb/nbs`.'


def cells_of(path: Path) -> list[tuple[str, str]]:
    "Kind and source of every cell."
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


def opening(path: Path) -> list[str]:
    "The prose before the first code."
    cells = cells_of(path)
    return [source for _, source in cells[:next(i for i, (kind, _) in enumerate(cells) if kind == "code")]]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_it_opens_with_a_title_and_what_will_be_known(notebook):
    title, *prose = opening(notebook)
    assert re.match(r"# .+\n> .+", title)
    promises = re.search(r"By the end of this notebook you will .+\n\n((?:- .+\n?)+)", "\n\n".join(prose))
    assert promises and len(promises[1].strip().splitlines()) in (3, 4)


def test_it_says_what_it_builds_on(notebook):
    linked = re.findall(r"\]\((\w+)\.ipynb", "\n".join(opening(notebook)))
    assert any(name < notebook.stem or name == "index" for name in linked), "no link to an earlier notebook before the first code"


def test_it_says_how_to_run_it_elsewhere(notebook):
    assert ELSEWHERE in opening(notebook)


def test_it_closes_with_a_summary_exercises_and_solutions(notebook):
    prose = "\n".join(source for kind, source in cells_of(notebook) if kind == "markdown")
    summary = prose[prose.index("## Summary"):]
    exercises = summary[re.search(r"^(## |\*\*)Exercises", summary, re.M).start():]
    assert 2 <= len(re.findall(r"^\d\. ", re.sub(r"<details>.*?</details>", "", exercises, flags=re.S), re.M)) <= 4
    assert "<details>" in exercises and exercises.count("<details>") == exercises.count("</details>")


def test_it_points_to_the_next(notebook):
    last = [source for kind, source in cells_of(notebook) if kind == "markdown"][-1]
    assert f"]({FOLLOWING[notebook]})" in last.strip().splitlines()[-1]


def test_headings_are_unique(notebook):
    headings = re.findall(r"^#+ (.+)$", "\n".join(source for kind, source in cells_of(notebook) if kind == "markdown"), re.M)
    assert len(set(headings)) == len(headings)


def test_it_is_small_enough_to_be_shown(notebook):
    assert notebook.stat().st_size < 500 * 1024


def test_no_exported_cell_is_longer_than_forty_lines(notebook):
    exported = [source.splitlines() for kind, source in cells_of(notebook) if kind == "code" and re.search(r"^#\|\s*export", source, re.M)]
    assert all(sum(bool(line.strip()) and not line.startswith("#|") for line in lines) <= 40 for lines in exported)


def test_the_index_knows_every_notebook():
    prose = (FOLDER/"index.ipynb").read_text(encoding="utf-8")
    assert not [path.name for path in NOTEBOOKS if f"]({path.name})" not in prose]


@pytest.fixture(scope="module")
def builder():
    "tools/site.py, which is no package."
    source = importlib.util.spec_from_file_location("site_builder", FOLDER.parent/"tools"/"site.py")
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def test_the_site_notices_links_that_lead_nowhere(builder, tmp_path):
    (tmp_path/"one.html").write_text('<h2 id="here">Here</h2><a href="#here">x</a><a href="two.html#there">x</a><a href="https://example.org/gone">x</a>')
    (tmp_path/"two.html").write_text('<a href="one.html#here">x</a><a href="one.html#gone">x</a><img src="missing.png"><a href="three.html">x</a>')
    assert builder.broken_links(tmp_path) == ["one.html: two.html#there", "two.html: missing.png", "two.html: one.html#gone", "two.html: three.html"]


@pytest.mark.parametrize("written, shown", [
    ("10_encoder.ipynb", "10_encoder.html"), ("10_encoder.ipynb#Over-a-clip", "10_encoder.html#over-a-clip"), ("#One,-two?", "#one-two"),
    ("24_extras.ipynb#Weights-(EMA)", "24_extras.html#weights-ema"),
    ("../picknet_nb/fast.py#LSTMScan", "api/fast.html#LSTMScan"), ("images/method.png", "images/method.png"), ("https://arxiv.org", "https://arxiv.org"),
    ("../tests/test_book.py", "https://github.com/picknet-nb/picknet_nb/blob/main/tests/test_book.py")])
def test_links_of_notebooks_become_links_of_the_site(builder, written, shown):
    assert builder.for_site(f"[x]({written})") == f"[x]({shown})"


def test_every_notebook_stands_in_one_chapter_of_the_site(builder):
    chapters = [name for chapter in builder.navigation(NOTEBOOKS, [])[1:-1] for names in chapter.values() for name in names]
    assert sorted(chapters) == [path.name for path in NOTEBOOKS]


def test_the_index_leads_along_the_tracks_of_the_site(builder):
    tracks = next(source for _, source in cells_of(FOLDER/"index.ipynb") if source.startswith("There are two ways"))
    method, machine = (re.findall(r"\]\(((?:[0-8]\d)_\w+\.ipynb)\)", part) for part in re.split(r"\*\*The m\w+\*\*", tracks)[1:])
    chapters = {title: names for chapter in builder.navigation(NOTEBOOKS, []) for title, names in chapter.items()}
    assert method == chapters["The method"] and sorted(machine) == chapters["The machine"]


def test_equations_become_mathml_or_an_error(builder):
    lines = builder.with_mathml("$$\\begin{align} a &= b \\tag{1}\\\\ c &= d \\tag{2} \\end{align}$$")
    assert lines.count("<mtr>") == 2 and "(2)" in html.unescape(re.sub("<[^>]+>", "", lines))
    assert builder.with_mathml("`$5` and `$6`") == "`$5` and `$6`"
    with pytest.raises(SystemExit, match="nonsense"):
        builder.with_mathml("$\\nonsense{x}$")
