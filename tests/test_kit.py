"The kit for lecturers: handouts without solutions, slides that need no network, launch links."
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import load_script

from picknet_nb.core.files import file_digest
from picknet_nb.world.shapes import example_file

ROOT = Path(__file__).parents[1]
handout, slides = (load_script(ROOT/"tools"/f"{name}.py") for name in ("handout", "slides"))
site = slides.site()


@pytest.fixture(scope="module")
def handouts(tmp_path_factory) -> list[Path]:
    return handout.write_handouts(tmp_path_factory.mktemp("handouts"))


def test_handouts_have_no_solutions_answers_or_outputs(handouts):
    assert [path.stem[:2] for path in handouts] == ["01", "02", "03", "04", "05", "06"]
    for path in handouts:
        original = nbformat.read(handout.EXERCISES/path.name, as_version=4)
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<details>|>Solution|>Answer", text)
        assert not any(cell.get("outputs") for cell in notebook.cells)
        code = lambda book: [cell.source for cell in book.cells if cell.cell_type == "code"]
        assert code(notebook) == code(original)  # stubs and tests are all there


def test_a_handout_links_to_the_site_or_to_other_handouts(handouts):
    names = {path.name for path in handouts}
    for path in handouts:
        prose = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells
                          if cell.cell_type == "markdown")
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
        assert not [link for link in links if link.endswith(".ipynb") and link not in names]


def test_a_handout_runs_where_it_is_handed_out(handouts):
    "Its tests say what is to be done."
    path = next(each for each in handouts if each.stem == "06_evidence")
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells
                     if cell.cell_type == "code")
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, text=True, check=True,
                          capture_output=True)
    assert done.stdout.count("TO DO") == 13 and "passed" not in done.stdout


@pytest.fixture(scope="module")
def decks(tmp_path_factory) -> list[Path]:
    return slides.write_slides(tmp_path_factory.mktemp("slides"))


def test_there_are_six_decks_of_slides_with_pictures(decks):
    assert len(decks) == len(slides.LECTURES) == 6
    for path in decks:
        text = path.read_text(encoding="utf-8")
        assert text.count("<section>") >= 8 and text.count("<img") >= 3
        notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        nbformat.validate(notebook)
        assert len(notebook.cells) == text.count("<section>")
        assert all(cell.metadata["slideshow"]["slide_type"] == "slide" for cell in notebook.cells)


def test_a_deck_needs_no_network_and_gives_no_answers(decks):
    for path in decks:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/1998/Math/MathML", "")
        assert not re.search(r"https?://|<link|src='(?!data:)|<details>", text), path.name


def test_the_decks_are_those_of_the_lectures_in_the_guide():
    guide = "\n".join(cell.source for cell in nbformat.read(
        handout.EXERCISES/"00_teachers_guide.ipynb", as_version=4).cells)
    for number, (title, names) in enumerate(slides.LECTURES.items(), 1):
        row = re.search(rf"^\| {number}\. {title}.*$", guide, re.M)[0]
        assert all(f"(../{name}.ipynb)" in row for name in names)


def test_the_arrow_keys_turn_the_slides(decks):
    pytest.importorskip("playwright")
    from browser import find_chromium, launch
    find_chromium()
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(decks[0].as_uri())
        for key, expected in (("ArrowRight", "2 /"), ("End", "/"), ("Home", "1 /")):
            page.keyboard.press(key)
            assert page.locator("footer").inner_text().startswith(expected) or key == "End"
            assert page.locator("section:visible").count() == 1
        assert all(url.startswith(("file:", "data:")) for url in asked)
        browser.close()


def test_equations_below_each_other_are_aligned(tmp_path):
    "At their equals signs, although browsers read no `columnalign`."
    pytest.importorskip("playwright")
    from browser import find_chromium, launch
    find_chromium()
    from playwright.sync_api import sync_playwright
    equations = r"$$\begin{align} a &= b\\ a + b + c + d &= e + f + g\end{align}$$"
    path = tmp_path/"deck.html"
    path.write_text(slides.as_html("A", [slides.Slide(equations)], slides.site().with_mathml))
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.goto(path.as_uri())
        first, second = (page.locator("mo", has_text="=").nth(number).bounding_box()
                         for number in (0, 1))
        assert abs(first["x"] - second["x"]) < 1 and first["y"] < second["y"]
        browser.close()


def test_every_page_can_be_opened_elsewhere_and_installs_the_same():
    shown = site.launch_links("method", "14_three_stages.ipynb")
    for place in (site.COLAB, site.BINDER):
        assert f"({place}nbs/method/14_three_stages.ipynb)" in shown
    assert site.INSTALL in shown and "nbs/method`" in shown
    assert site.INSTALL in (ROOT/".binder"/"postBuild").read_text()


def test_the_shared_clip_and_the_model_of_the_course_come_with_the_package():
    assert file_digest(example_file()) == file_digest(ROOT/"data"/"example.mp4")
    weights = ROOT/"data"/"results"/"course_stages.safetensors"
    assert file_digest(example_file().parent/"weights.safetensors") == file_digest(weights)
    assert "course/*" in (ROOT/"setup.py").read_text()
