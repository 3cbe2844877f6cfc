"The notebooks as a book: each one opens, closes and points as the others do."
import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from conftest import load_script
from PIL import Image

from picknet_nb.use.loading import load

FOLDER = Path(__file__).parents[1]/"nbs"
sys.path.insert(0, str(FOLDER.parent/"tools"))
import book
import moving_picture
import quotations
from picture import made_with

NOTEBOOKS = [FOLDER/f"{name}.ipynb" for name in book.notebooks()]


def cells_of(path: Path) -> list[tuple[str, str]]:
    "Kind and source of every cell."
    return [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


def opening(path: Path) -> list[str]:
    "The prose before the first code."
    cells = cells_of(path)
    return [
        source
        for _, source in cells[: [kind for kind, _ in [*cells, ("code", "")]].index("code")]
    ]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def notebook(request) -> Path:
    return request.param


def test_it_opens_with_a_title_and_what_will_be_known(notebook):
    title, *prose = opening(notebook)
    assert re.match(r"# .+\n> .+", title)
    promises = re.search(
        r"By the end of this notebook you will .+\n\n((?:- .+\n?)+)", "\n\n".join(prose)
    )
    assert promises and len(promises[1].strip().splitlines()) in (3, 4)


def test_its_links_lead_somewhere(notebook):
    "Links to other files, and pictures, seen from the folder of the notebook."
    prose = "\n".join(source for kind, source in cells_of(notebook) if kind == "markdown")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", prose, flags=re.S)
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", prose)
    assert not [link for link in links if not (notebook.parent/link).exists()]


def test_how_to_run_it_elsewhere_is_said_by_the_site_alone(notebook):
    assert not any("Run this elsewhere" in source for _, source in cells_of(notebook))


@pytest.mark.parametrize(
    "notebook",
    # tests/test_exercises.py says how those end
    [path for path in NOTEBOOKS if path.parent.name != "exercises"],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_it_closes_with_a_summary_exercises_and_solutions(notebook):
    prose = "\n".join(source for kind, source in cells_of(notebook) if kind == "markdown")
    summary = prose[prose.index("## Summary") :]
    exercises = summary[re.search(r"^(## |\*\*)Exercises", summary, re.M).start() :]
    assert (
        2
        <= len(
            re.findall(
                r"^\d\. ", re.sub(r"<details>.*?</details>", "", exercises, flags=re.S), re.M
            )
        )
        <= 4
    )
    assert "<details>" in exercises and exercises.count("<details>") == exercises.count(
        "</details>"
    )


def test_it_points_on(notebook):
    last = [source for kind, source in cells_of(notebook) if kind == "markdown"][-1]
    (*_, target) = re.findall(r"\]\(([^)#]+\.ipynb)", last.strip().splitlines()[-1])
    assert (notebook.parent/target).resolve() in [*NOTEBOOKS, FOLDER/"index.ipynb"]


def test_headings_are_unique(notebook):
    headings = re.findall(
        r"^#+ (.+)$",
        "\n".join(source for kind, source in cells_of(notebook) if kind == "markdown"),
        re.M,
    )
    assert len(set(headings)) == len(headings)


def test_it_is_small_enough_to_be_shown(notebook):
    assert notebook.stat().st_size < 500 * 1024


def test_outputs_do_not_say_where_they_were_made(notebook):
    text = notebook.read_text(encoding="utf-8")
    assert f"{FOLDER.parent}/" not in text and "ipykernel_" not in text


def test_no_line_of_code_is_longer_than_a_hundred_characters(notebook):
    code = "\n".join(source for kind, source in cells_of(notebook) if kind == "code")
    assert not [line for line in code.split("\n") if len(line) > 100]


@pytest.mark.parametrize("name", [*book.METHOD, "data/01_text"])
def test_a_reader_of_the_course_is_asked_three_questions(name):
    prose = "\n".join(
        source for kind, source in cells_of(FOLDER/f"{name}.ipynb") if kind == "markdown"
    )
    asked = re.search(r"^## Three questions$(.+?)^## ", prose, re.M | re.S)
    assert asked and re.findall(r"^\*\*(\d)\.\*\* .+\?$", asked[1], re.M) == ["1", "2", "3"]
    assert (
        len(re.findall(r"<details><summary>Answer</summary>\n\n.+?\n\n</details>", asked[1], re.S))
        == 3
    )


def test_words_before_an_equation_are_counted(tmp_path, monkeypatch):
    cells = [
        {"cell_type": "markdown", "source": "one two <details>three four</details>"},
        {"cell_type": "code", "source": "#| hide\nx = 1", "outputs": []},
        {"cell_type": "code", "source": "#| export\na = 1\n\nb = 2", "outputs": []},
        {"cell_type": "markdown", "source": "$$x \\tag{7}$$"},
    ]
    write = lambda cells: json.dumps(
        {
            "cells": [
                {
                    "metadata": {},
                    **({"execution_count": None} if each["cell_type"] == "code" else {}),
                    **each,
                }
                for each in cells
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 4,
        }
    )
    (tmp_path/"nbs"/"method").mkdir(parents=True)
    (tmp_path/"nbs"/"method"/"00_a.ipynb").write_text(write(cells))
    (
        monkeypatch.setattr(book, "ROOT", tmp_path),
        monkeypatch.setattr(book, "METHOD", ("method/00_a",)),
    )
    assert book.before_equation(7) == (2, 2) and book.exported_median(["method/00_a"]) == 2
    with pytest.raises(SystemExit, match="equation 8 is nowhere"):
        book.before_equation(8)


def test_the_size_of_the_package_is_counted(tmp_path, monkeypatch):
    import click
    import picknet_nb

    inner = click.Group(commands=[click.Command("a", params=[click.Option(["--x"])])])
    inner.name = "inner"
    outer = click.Group(commands=[inner, click.Command("b")])
    assert [command.name for command in book.commands_of(outer)] == ["a", "b"]
    (tmp_path/"data").mkdir()
    for file, text in (("__init__.py", ""), ("_modidx.py", "d = {}\n"), ("data/text.py", "a\n\nb")):
        (tmp_path/file).write_text(text)
    monkeypatch.setattr(picknet_nb, "__file__", str(tmp_path/"__init__.py"))
    found = book.package_counts()
    assert (found["modules"], found["lines"], found["lines that are not empty"]) == (1, 3, 2)
    assert found["settings"] == len(book.Config().flat())
    assert found["commands"] > 10 and found["options of all commands"] > found["commands"]


def test_what_is_hard_to_read_is_counted():
    code = lambda source, text="", kind="execute_result": nbformat.v4.new_code_cell(
        source,
        outputs=[]
        if not text
        else [
            nbformat.v4.new_output(kind, text=text)
            if kind == "stream"
            else nbformat.v4.new_output(kind, data={"text/plain": text})
        ],
    )
    helper = code(
        "def why(call):\n    try: call()\n    except FileError as error: return str(error)"
    )
    cells = [
        helper,
        code("why(read)", "'no such file'"),
        code("#| hide\nwhy(read)", "'no such file'"),
        code("assert why(read)"),
        code("try: read()\nexcept (OSError, KeyError) as error: said = str(error)\nsaid", "'gone'"),
        code("#| export\ntry: pass\nexcept OSError as error: raise"),
        code("print(rows)", "x" * 101 + "\n" + "x" * 100, "stream"),
        code("rows", "{'a': {'b': 1}}"),
        code("rows", "[{'a': 1}]"),
        code("row", "{'a': 1, 'b': [2]}"),
        code("x = 1  # " + "y" * 100),
        code("#| echo: false\nx = 1  # " + "y" * 100),
        nbformat.v4.new_markdown_cell("z" * 200),
    ]
    assert [count(cells) for count in book.READING.values()] == [2, 1, 1, 2]
    table = nbformat.v4.new_output(
        "execute_result", data={"text/plain": "{'a': {'b': 1}}", "text/markdown": "| a |"}
    )
    assert book.nested_in([nbformat.v4.new_code_cell("rows", outputs=[table])]) == 0


@pytest.mark.parametrize("name", [*book.METHOD, "data/01_text"])
def test_no_error_message_and_no_nested_dictionary_is_shown_in_the_course(name):
    cells = book.cells_of(name)
    assert not book.refusals_in(cells) and not book.nested_in(cells)


@pytest.mark.parametrize("name", book.METHOD)
def test_lines_fit_into_the_page(name):
    cells = book.cells_of(name)
    assert not book.wide_lines_in(cells) and not book.wide_code_in(cells)


def test_the_one_page_is_short_and_stands_alone():
    cells = cells_of(FOLDER/"method"/"00_one_page.ipynb")
    code = "\n".join(source for kind, source in cells if kind == "code")
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#|")]
    assert len(lines) <= 205 and book.lines_in(book.cells_of("method/00_one_page")) <= 190
    assert set(re.findall(r"picknet_nb\.([\w.]+)", code)) == {"world.shapes"}
    assert len(" ".join(source for kind, source in cells if kind == "markdown").split()) <= 1500


def test_the_front_page_is_short():
    page = (FOLDER.parent/"README.md").read_text(encoding="utf-8")
    prose = re.sub(
        r"<details>.*?</details>|```.*?```|!\[.*?\]\(.*?\)|^\|.*?$", "", page, flags=re.S | re.M
    )
    assert 300 < len(re.sub(r"\]\([^)]*\)", "]", prose).split()) <= 700


def test_the_front_page_shows_a_real_clip_being_watched():
    "With a bundled model, in few bytes, described for those who cannot see it."
    page = (FOLDER.parent/"README.md").read_text(encoding="utf-8")
    picture = FOLDER/"images"/"moving.webp"
    described = re.search(r"!\[(.+?)\]\(nbs/images/moving\.webp\)", page)
    made = json.loads(
        (FOLDER.parent/"data"/"results"/"front_page.json").read_text(encoding="utf-8")
    )["moving"]
    assert made_with(made["model"]).items() <= made.items(), (
        "python tools/moving_picture.py CLIP --front"
    )
    assert (
        described
        and made["caption"] in described[1]
        and page.index(described[0]) < page.index("\n## ")
    )
    assert picture.stat().st_size < 2_000_000 and Image.open(picture).n_frames > 20


@pytest.mark.parametrize("of_a_scorer", [False, True])
def test_a_moving_picture_of_any_clip(tmp_path, of_a_scorer):
    """Every frame of the clip, a few steps for each pick, a picture for each word; picks and
    words are there to stay."""
    found = load("shapes").caption(FOLDER.parent/"data"/"example.mp4", running=False)
    if of_a_scorer: found = replace(found, values=[place / 10 - 1 for place in range(30)])
    pictures = moving_picture.moving_picture(found, tmp_path/"clip.webp")
    made, steps = Image.open(tmp_path/"clip.webp"), moving_picture.SLIDE - 1
    assert pictures == 30 + steps * len(found.picked) + len(found.text.split())
    # pictures that are alike become one that stays longer
    assert 20 < made.n_frames <= pictures and made.width == moving_picture.WIDTH
    first = (made.seek(0), made.convert("L").copy())[1]
    last = (made.seek(made.n_frames - 1), made.convert("L").copy())[1]
    sentence = (0, made.height - 45, made.width, made.height)
    # black letters, at the end only
    assert first.crop(sentence).getextrema()[0] > 200 > 100 > last.crop(sentence).getextrema()[0]


def test_a_row_of_picks_fits_whatever_their_number():
    for count in (1, 7, 30):
        places = moving_picture.row_places(count, 0.75, 100)
        assert (
            all(a + wide < b for (a, _, wide, _), (b, *_) in zip(places, places[1:]))
            and places[-1][0] + places[-1][2] <= moving_picture.WIDTH
        )


def test_the_index_leads_into_every_folder():
    prose = (FOLDER/"index.ipynb").read_text(encoding="utf-8")
    folders = book.FOLDERS.keys() - {"archive"}  # linked once, from the results
    assert not [folder for folder in folders if f"]({folder}/" not in prose]


@pytest.fixture(scope="module")
def builder():
    "tools/site.py, which is no package."
    return load_script(FOLDER.parent/"tools"/"site.py")


def test_the_site_notices_links_that_lead_nowhere(builder, tmp_path):
    (tmp_path/"one.html").write_text(
        '<h2 id="here">Here</h2><a href="#here">x</a><a href="two.html#there">x</a><a '
        'href="https://example.org/gone">x</a>'
    )
    (tmp_path/"two.html").write_text(
        '<a href="one.html#here">x</a><a href="one.html#gone">x</a><img src="missing.png"><a '
        'href="three.html">x</a>'
    )
    assert builder.broken_links(tmp_path) == [
        "one.html: two.html#there",
        "two.html: missing.png",
        "two.html: one.html#gone",
        "two.html: three.html",
    ]


@pytest.mark.parametrize(
    "written, shown",
    [
        ("05_encoder.ipynb", "../method/05_encoder.html"),
        ("../world/01_shapes.ipynb#A-clip", "../world/01_shapes.html#a-clip"),
        ("#One,-two?", "#one-two"),
        ("19_extras.ipynb#Weights-(EMA)", "../method/19_extras.html#weights-ema"),
        ("../../picknet_nb/core/gpu.py#Captured", "../api/core.gpu.html#Captured"),
        ("../images/method.png", "../images/method.png"),
        ("https://arxiv.org", "https://arxiv.org"),
        (
            "../../tests/test_book.py",
            "https://github.com/picknet-nb/picknet_nb/blob/main/tests/test_book.py",
        ),
    ],
)
def test_links_of_notebooks_become_links_of_the_site(builder, written, shown):
    assert builder.for_site(f"[x]({written})", "method") == f"[x]({shown})"


def test_every_notebook_is_in_one_part_of_the_site(builder):
    flat = lambda pages: [
        page
        for each in pages
        for page in (flat(next(iter(each.values()))) if isinstance(each, dict) else [each])
    ]
    home, *parts, models, api = builder.navigation([])
    assert [*parts[0]] == ["The course"]
    assert parts[0]["The course"][0] == "method/00_one_page.ipynb"
    assert sorted(flat(parts)) == sorted(f"{name}.ipynb" for name in book.notebooks())
    assert home == {"Home": "index.md"}
    assert flat([models, api]) == ["models/index.md", "api/index.md"]


@pytest.fixture
def docs(builder, tmp_path, monkeypatch):
    "A folder for the pages of the site."
    monkeypatch.setattr(builder, "DOCS", tmp_path)
    return tmp_path


def test_the_reference_begins_with_five_calls_and_lists_every_public_name(builder, docs):
    modules = builder.write_api(NOTEBOOKS)
    builder.write_reference(modules)
    page = (docs/"api"/"index.md").read_text()
    calls, names = page.split("## Every public name")
    assert re.findall(r"^## (\w+)", calls, re.M) == list(builder.CALLS)
    listed = set(re.findall(r"\]\(([\w.]+)\.md#(\w+)\)", names))
    for module in modules:
        anchors = re.findall(r"^## \S+ \{#(\w+)\}", (docs/"api"/f"{module}.md").read_text(), re.M)
        assert {(module, name) for name in anchors} <= listed
    assert {module for module, _ in listed} <= set(modules) and len(listed) > 500


def test_models_have_a_page_each_and_one_that_compares_them(builder, docs):
    names = builder.write_models()
    page = (docs/"models"/"index.md").read_text()
    assert all(f"]({name}.md)" in page for name in names)
    assert all((docs/"models"/f"{name}.md").read_text().startswith(f"# {name}") for name in names)


def test_code_of_a_result_page_is_folded_above_what_it_prints(builder):
    output = nbformat.v4.new_output("stream", text="x")
    shown = nbformat.v4.new_code_cell("draw()", outputs=[output])
    quiet, prose = nbformat.v4.new_code_cell("import json"), nbformat.v4.new_markdown_cell("# A")
    for cell in (shown, quiet): cell.metadata["tags"] = []
    cells = builder.folded([prose, quiet, shown])
    assert [cell.cell_type for cell in cells] == ["markdown", "markdown", "code"]
    assert "<details" in cells[1].source and "import json\n\ndraw()" in cells[1].source
    assert cells[2].metadata["tags"] == ["no-input"] and cells[2].outputs


def test_a_parameter_is_described_by_the_comment_beside_or_above_it(builder, tmp_path):
    (tmp_path/"module.py").write_text(
        "# not about x\ndef call(\n    x,  # the first\n    # the second,\n    # in two lines\n"
        "    y: int\n    | None = None,\n    z=1,\n    w: int\n    | None = None,  # last\n):\n"
        '    "What it does."\n')
    (node,) = builder.ast.parse((tmp_path/"module.py").read_text()).body
    page = builder.describe(node, builder.comments_of(tmp_path/"module.py"), 2)
    assert re.findall(r"^\| `(\w)` \| (.+) \|$", page, re.M) == [
        ("x", "the first"), ("y", "the second, in two lines"), ("w", "last")]


def test_each_lesson_leads_to_the_next():
    assert book.METHOD[0] == "method/00_one_page"
    for name, after in zip(book.METHOD, book.METHOD[1:]):
        *_, last = [text for kind, text in cells_of(FOLDER/f"{name}.ipynb") if kind == "markdown"]
        *_, target = re.findall(r"\]\(([^)#]+)\.ipynb", last.strip().splitlines()[-1])
        assert f"method/{target}" == after


def test_lessons_without_code_of_their_own_come_before_the_first_equation():
    for name in ("02_toy_world", "03_frames", "04_captions"):
        cells = cells_of(FOLDER/"method"/f"{name}.ipynb")
        code = "\n".join(source for kind, source in cells if kind == "code")
        assert "#| export" not in code and "#| default_exp" not in code
    words, _ = book.before_equation(1)
    assert words < 5000  # of which lesson 1, which derives equations 19 to 24, has 1,400


CORE = (0, 1, 2, 6, 9, 10, 11, 14, 15, 16)  # the numbers of the core path


def test_the_index_leads_along_two_paths_that_are_the_course():
    "Each lesson is on one of them, in the order of its number."
    prose = "\n".join(source for _, source in cells_of(FOLDER/"index.ipynb"))
    plan = re.search(r"## Learn the method\n(.+?)Optional chapters", prose, re.S)[1]
    core, background = (
        re.findall(r"\]\(method/((\d\d)_\w+)\.ipynb\)", part)
        for part in plan[plan.index("**Core path**"):].split("**Background path**")
    )
    assert [int(number) for _, number in core] == list(CORE)
    numbers = [int(number) for _, number in background]
    assert numbers == sorted(set(range(18)) - set(CORE))
    assert sorted(f"method/{name}" for name, _ in [*core, *background]) == [*book.METHOD]


def guide() -> str:
    "The prose of the teacher's guide."
    path = FOLDER/"exercises"/"00_teachers_guide.ipynb"
    return "\n".join(source for _, source in cells_of(path))


def walk() -> dict[int, tuple[set[int], set[int], str]]:
    "What the teacher's guide says that each lesson needs, looks ahead to, and gives."
    rows = re.findall(
        r"^\| \*?\[(\d+) [^|]+\]\(\.\./method/(\d\d)_\w+\.ipynb\)\*? "
        r"\| ([\d, ]*?) *\| ([\d, ]*?) *\| (.+) \|$", guide(), re.M)
    assert all(int(shown) == int(number) for shown, number, *_ in rows)
    some = lambda text: {int(each) for each in re.findall(r"\d+", text)}
    return {int(number): (some(needs), some(ahead), gives)
            for _, number, needs, ahead, gives in rows}


def test_the_walk_lists_every_lesson_and_marks_its_path():
    assert [*walk()] == list(range(18)) and all(gives for *_, gives in walk().values())
    italic = {int(each) for each in re.findall(r"^\| \*\[(\d+) ", guide(), re.M)}
    assert italic == set(range(18)) - set(CORE)


@pytest.mark.parametrize("name", book.METHOD)
def test_a_lesson_needs_what_the_walk_says(name):
    "What it imports, from earlier and later lessons, is listed; what is listed is used or linked."
    needs, ahead, _ = walk()[number := int(name.partition("/")[2][:2])]
    imported, linked = book.uses(name)
    assert max(needs, default=-1) < number and min(ahead, default=99) > number
    assert {each for each in imported if each < number} <= needs
    assert {each for each in imported if each > number} == ahead
    assert needs <= imported | linked


def test_equations_become_mathml_or_an_error(builder):
    lines = builder.with_mathml(
        "$$\\begin{align} a &= b \\tag{1}\\\\ c &= d \\tag{2} \\end{align}$$"
    )
    assert lines.count("<mtr>") == 2 and "(2)" in html.unescape(re.sub("<[^>]+>", "", lines))
    assert builder.with_mathml("`$5` and `$6`") == "`$5` and `$6`"
    with pytest.raises(SystemExit, match="nonsense"):
        builder.with_mathml("$\\nonsense{x}$")


def test_every_quotation_was_compared_with_the_paper():
    "tools/quotations.py PAPER.tex compares them and stores their digests; the paper is not here."
    checked = json.loads(quotations.CHECKED.read_text())
    found = {quotations.digest(words): (notebook, words)
             for notebook, words, _ in quotations.all_quotations()}
    assert len(found) > 50
    assert not [found[key] for key in found.keys() - checked.keys()]
    assert not checked.keys() - found.keys()


@pytest.mark.parametrize("quotation, occurs", [
    ("we pick the first frame", True), ("We pick … of 30", True),
    ("we pick the [first] frame", True),
    ("a glance $g_t$ of 56×56", True), ("we choose the first frame", False),
    ("of 30 … we pick", False)])
def test_a_changed_quotation_is_noticed(quotation, occurs):
    paper = quotations.words_of(
        "We \\textit{pick} the first~\\cite{Someone2015} frame % a remark\n of $30$, a glance "
        "$\\mathbf{g}_{t}$ of $56 \\times 56$\\footnote{See \\url{x}.}")
    assert quotations.occurs(quotation, paper) is occurs


def test_a_misquotation_is_named_and_nothing_is_stored(tmp_path):
    (tmp_path/"paper.tex").write_text("Another paper.")
    with pytest.raises(SystemExit, match=r"method/05_encoder \(3.1\): The encoder is built"):
        quotations.main(tmp_path/"paper.tex", tmp_path/"checked.json")
    assert not (tmp_path/"checked.json").exists()
