"""The widgets of the lessons: what they compute, then live in JupyterLab, as pages without a
kernel, and on the web site, in a real Chromium."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import load_script

pytest.importorskip("ipywidgets")

from browser import find_chromium, laboratory, launch, settled, slider

from picknet_nb.core.files import PickNetError
from picknet_nb.method.cider import document_frequencies, plain_cider
from picknet_nb.method.reinforce import all_picks
from picknet_nb.use import widgets
from picknet_nb.world.shapes import example_story, make_story, plain_caption, plain_stories

ROOT = Path(__file__).parents[1]


def learning() -> widgets.Widget:
    "The stored run of lesson 14, played."
    stored = json.loads((ROOT/"data"/"results"/"course_stages.json").read_text())
    return widgets.learning_widget([each["shared"] | {"stage": each["stage"]}
                                    for each in stored["runs"][0]["history"]])


WIDGETS = {
    "picking": widgets.picking_widget,
    "cider": widgets.cider_widget,
    "tree": widgets.tree_widget,
    "yours": widgets.your_picks_widget,
    "decoding": widgets.decoding_widget,
    "learning": learning,
}


BARE = "<!doctype html><meta charset=utf-8>"  # a page with nothing else in it


@pytest.fixture(scope="module")
def made() -> dict[str, widgets.Widget]:
    return {name: make() for name, make in WIDGETS.items()}


@pytest.mark.parametrize("name", WIDGETS)
def test_a_moved_control_changes_what_is_shown(made, name):
    box = made[name].live()
    _, *rest = box.children
    controls, places = rest[: len(made[name].controls)], rest[len(made[name].controls) :]
    assert len(places) == len(made[name].parts)
    for control, about in zip(controls, made[name].controls):
        before = [place.value for place in places]
        other = next((each for each in reversed(about.steps) if each != about.start), 1.0)
        control.value = other
        assert [place.value for place in places] != before, about.name


@pytest.mark.parametrize("name", WIDGETS)
def test_a_page_loads_nothing_and_fits_into_a_notebook(made, name):
    page = made[name].page()
    assert len(page) < 200_000 and "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<input type='range'") >= 1 and page == made[name].page()


ODD = (
    "", "   ", "!!! ...", "<script>alert(1)</script>", "</script><b>", "a" * 200, "a " * 99,
    "naïve 星 🌟", "\x00\x1b[31m", "cannot gonna", "a\nyellow\tstar", '"quoted" & \'so\'',
)


@pytest.mark.parametrize("text", ODD)
def test_odd_captions_are_scored_and_never_become_html(made, text):
    widget = made["cider"]
    shown = widget.drawn(widget.parts[0], caption=text)
    assert "CIDEr-D" in shown and "<script" not in shown and "<b>," not in shown
    field = widget.live().children[1]
    field.value = text  # as a browser sends it
    assert field.value == text


def test_a_caption_that_is_too_long_is_one_red_line(made):
    shown = made["cider"].drawn(made["cider"].parts[0], caption="a " * 200)
    assert "pn-error" in shown and "at most 200 letters" in shown


def test_the_score_is_that_of_the_lesson():
    references = widgets.toy_references(example_story(), clips=20)
    frequencies = document_frequencies(references)
    for text in ("a yellow star jumps", "a", "a a a a a", "zzz", ""):
        found = widgets.score_by_ngram(text.split(), references, frequencies)
        assert found.score == plain_cider(text.split(), references[0], frequencies, 21)
        assert found.score == pytest.approx(10 * sum(found.cosines) / 4)


def test_the_tree_agrees_with_an_estimate_from_samples():
    chances, rewards = (0.7, 0.2, 0.6), (0.2, 0.9, 0.5, 0.0)
    torch.manual_seed(0)
    first = torch.rand(40_000) < chances[0]
    second = torch.rand(40_000) < torch.where(first, chances[1], chances[2])
    place = (1 - first.long()) * 2 + 1 - second.long()
    for baseline in widgets.BASELINES:
        tree = widgets.sampling_tree(chances, rewards, baseline)
        assert tree.chances.sum().item() == pytest.approx(1)
        samples = tree.pushes[place]
        assert torch.allclose(samples.mean(0), tree.mean, atol=0.01)
        assert samples.var(0).sum().item() == pytest.approx(tree.variance, abs=0.02)
    best = widgets.sampling_tree((0.999, 0.001, 0.5), rewards, "greedy")
    assert best.baseline == pytest.approx(0.9) and best.expected == pytest.approx(0.9, abs=0.01)


def test_outside_of_the_limits_the_picks_earn_the_penalty():
    clip = widgets.toy_clip()
    alone = torch.zeros(30, dtype=torch.bool)
    alone[0] = True
    assert "penalty" in widgets.earned_html(clip, "one", alone)
    assert "penalty" not in widgets.earned_html(clip, "some", all_picks(30 - 26)[-1].repeat(8)[:30]
                                                & (torch.arange(30) < 5))


def test_without_ipywidgets_the_page_is_shown_and_the_extra_is_named(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(PickNetError, match=r"needs ipywidgets: pip install .picknet_nb\[notebook"):
        made["tree"].live()
    assert made["tree"]._repr_mimebundle_() == {}
    assert 'picknet_nb[notebook]' in made["tree"]._repr_html_()


def test_what_a_notebook_stores_is_the_page(made, tmp_path):
    clean = load_script(ROOT/"tools"/"clean.py")
    data = {clean.LIVE: {"model_id": "x"}, "text/html": "page", "text/plain": "y"}
    output = {"output_type": "execute_result", "data": data, "metadata": {}}
    cell = {"cell_type": "code", "source": "", "outputs": [output], "metadata": {}}
    notebook = {"cells": [cell], "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5}
    (path := tmp_path/"a.ipynb").write_text(json.dumps(notebook))
    clean.drop_live_widgets(path)
    stored = json.loads(path.read_text())
    assert stored["cells"][0]["outputs"][0]["data"] == {"text/html": "page", "text/plain": "y"}
    assert not stored["metadata"]
    for path in (ROOT/"nbs").rglob("[!.]*.ipynb"):
        if ".ipynb_checkpoints" not in path.parts:
            assert clean.LIVE not in path.read_text(encoding="utf-8"), path.name


@pytest.fixture(scope="module")
def browser():
    "A Chromium without a window."
    pytest.importorskip("playwright")
    find_chromium()
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def text_of(page, name: str) -> str:
    return page.locator(f".pn-{name}").first.inner_text()


@pytest.mark.parametrize("name", WIDGETS)
def test_sliders_of_a_page_change_it(made, browser, tmp_path, name):
    (tmp_path/"page.html").write_text(BARE + made[name].page())
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto((tmp_path/"page.html").as_uri())
    sliders = page.locator("input[type=range]")
    assert sliders.count() == sum(len(each.steps) > 1 for each in made[name].controls)
    for each in sliders.all():
        if not each.is_visible():  # moved by buttons
            continue
        before = page.locator(f".pn-{name}").inner_html()
        each.focus()
        page.keyboard.press("Home" if each.input_value() != "0" else "End")
        assert page.locator(f".pn-{name}").inner_html() != before
    for button in page.locator("button[data-bit]").all():
        before = page.locator(f".pn-{name}").inner_html()
        button.click()
        assert page.locator(f".pn-{name}").inner_html() != before
    assert not errors
    page.close()


def test_the_widgets_caption_the_shared_clip_right(made):
    "With the weights that lesson 14 stored; and with those frames that show its events."
    true = plain_caption(example_story())
    clip = widgets.toy_clip()
    assert clip.text(clip.captioned(widgets.decisions(clip, 0.5)[0])) == true
    yours = made["yours"]
    assert true in yours.drawn(yours.parts[0], picks=(1, 13, 26))
    assert yours.drawn(yours.parts[1]).count(true) == 2  # learned, oracle


def test_a_story_with_other_actions_is_rejected():
    story = make_story((2**20, 10))  # it meets, and vanishes
    with pytest.raises(PickNetError, match="does not know meet, vanish: take a story of `plain_"):
        widgets.toy_clip(story)


def test_every_set_of_eight_frames_is_on_the_page(made, browser, tmp_path):
    "A button for each frame but the first; what they show is what is computed for these picks."
    yours = made["yours"]
    (control,) = yours.controls
    assert len(set(control.steps)) == 128 and all(1 in each for each in control.steps)
    (tmp_path/"page.html").write_text(BARE + yours.page())
    page = browser.new_page()
    page.goto((tmp_path/"page.html").as_uri())
    buttons, picked = page.locator(".pn-toggle"), set(control.start)
    assert buttons.count() == 8 and buttons.first.is_disabled()
    for place in (1, 7, 3, 1, 5, 6, 2, 4):
        buttons.nth(place).click()
        picked ^= {control.frames[place]}
        pressed = page.locator(".pn-toggle[aria-pressed=true]").evaluate_all(
            "all => all.map(each => each.title)")
        assert pressed == [f"frame {each}" for each in sorted(picked)]
        reward = re.search(r"<b>(-?[\d.]+)</b>", yours.drawn(
            yours.parts[0], picks=tuple(sorted(picked))).split("reward")[1])[1]
        assert f"reward {reward}" in page.locator("[data-part='0']").inner_text()
    page.close()


def test_play_goes_from_epoch_to_epoch(made, browser, tmp_path):
    (tmp_path/"page.html").write_text(BARE + made["learning"].page())
    page = browser.new_page()
    page.goto((tmp_path/"page.html").as_uri())
    handle, button = page.locator("input[type=range]"), page.locator("button[data-play]")
    last = handle.input_value()
    button.click()  # at the end it begins anew
    page.wait_for_function("document.querySelector('input').value === '2'", timeout=30_000)
    button.click()
    now = handle.input_value()
    page.wait_for_timeout(1200)
    assert handle.input_value() == now != last
    page.close()


def test_the_pages_agree_with_what_is_computed(made, browser, tmp_path):
    "Every step of the slider of thresholds shows the picks of that threshold."
    (tmp_path/"page.html").write_text(BARE + made["picking"].page())
    page = browser.new_page()
    page.goto((tmp_path/"page.html").as_uri())
    page.locator("input[type=range]").first.focus()
    page.keyboard.press("Home")
    for threshold in made["picking"].controls[0].steps:
        picks, _ = widgets.decisions(widgets.toy_clip(), threshold)
        assert page.locator(".pn-strip .pn-picked").count() == int(picks.sum())
        page.keyboard.press("ArrowRight")
    page.close()


def test_two_clips_on_one_page_keep_their_pictures(browser, tmp_path):
    pages = [widgets.picking_widget(story).page() for story in (None, *plain_stories(20, 1))]
    (tmp_path/"page.html").write_text(BARE + "".join(pages))
    page = browser.new_page()
    page.goto((tmp_path/"page.html").as_uri())
    shown = page.locator(".pn-picking .pn-frames.pn-k1").evaluate_all(
        "all => all.map(each => getComputedStyle(each).backgroundImage)")
    assert len(shown) == 2 and shown[0] != shown[1] and "url(" in shown[0]
    page.close()


def move(page, name: str, key: str) -> None:
    "Press a key on the slider with this description."
    slider(page, name).focus()
    page.keyboard.press(key)


def test_jupyterlab_with_a_kernel_shows_them_live(browser, tmp_path):
    code = ("from IPython.display import display\nfrom picknet_nb.use.widgets import *\n"
            "for make in (picking_widget, cider_widget, tree_widget, your_picks_widget, "
            "decoding_widget):\n    display(make())")
    cell = {"cell_type": "code", "source": code, "outputs": [], "metadata": {},
            "execution_count": None, "id": "a"}
    kernel = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    notebook = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path/"lesson.ipynb").write_text(json.dumps(notebook))
    with laboratory(browser, tmp_path/"lesson.ipynb") as page:
        page.wait_for_selector(".pn-decoding ol", state="attached", timeout=180_000)
        assert page.locator(".pn-page").count() == 0  # the widgets, not their pages

        picked = lambda: page.locator(".pn-picking .pn-picked").count()
        before = picked()
        move(page, "threshold", "Home")
        settled(page, picked, lambda count: count > before)
        move(page, "frame", "Home")
        settled(page, lambda: text_of(page, "picking"), lambda text: "always picked" in text)

        field = page.locator(".pn-cider input[type=text]")
        field.fill("zebra <b>zebra</b>")
        settled(page, lambda: text_of(page, "cider"), lambda text: "CIDEr-D 0.00" in text)
        field.fill("")
        settled(page, lambda: text_of(page, "cider"), lambda text: "no word" in text)

        before = text_of(page, "tree")
        move(page, "baseline", "End")
        settled(page, lambda: text_of(page, "tree"), lambda text: text != before)

        settled(page, lambda: text_of(page, "yours"), lambda text: "yours · 3 picks" in text)
        page.locator(".pn-yours .pn-toggle").nth(3).click()
        settled(page, lambda: text_of(page, "yours"), lambda text: "yours · 4 picks" in text)

        before = text_of(page, "decoding")
        move(page, "temperature", "End")
        settled(page, lambda: text_of(page, "decoding"), lambda text: text != before)
        if place := os.environ.get("PICKNET_SCREENSHOTS"):
            for name in WIDGETS:
                page.locator(f".pn-{name}").first.screenshot(path=f"{place}/live_{name}.png")
        page.close()


def test_the_site_shows_pages_that_work(browser, tmp_path, monkeypatch):
    "The notebook of the widgets as mkdocs builds it, alone; its sliders move."
    pytest.importorskip("mkdocs_jupyter")
    site = load_script(ROOT/"tools"/"site.py")
    monkeypatch.setattr(site, "DOCS", tmp_path/"docs")
    monkeypatch.setattr(site, "notebooks", lambda: ["use/08_widgets"])
    (tmp_path/"docs").mkdir()
    site.copy_notebooks()
    (tmp_path/"docs"/"site.css").write_text(site.STYLE)
    settings = yaml.safe_load((ROOT/"mkdocs.yml").read_text()) | {
        "nav": [{"Widgets": "use/08_widgets.ipynb"}],
        "docs_dir": str(tmp_path/"docs"),
        "site_dir": str(tmp_path/"site"),
        "validation": {"links": {"not_found": "ignore", "anchors": "ignore"}},
    }
    (tmp_path/"mkdocs.yml").write_text(yaml.safe_dump(settings))
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file",
         str(tmp_path/"mkdocs.yml")],
        check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((tmp_path/"site"/"use"/"08_widgets.html").as_uri(), timeout=120_000)
    for name in WIDGETS:
        widget = page.locator(f".pn-{name}.pn-page")
        assert widget.count() == 1
        before = widget.inner_html()
        handle = widget.locator("input[type=range]").first
        if handle.is_visible():
            handle.focus()
            page.keyboard.press("Home" if handle.input_value() != "0" else "End")
        else:
            widget.locator("button[data-bit]").first.click()
        assert widget.inner_html() != before
        if place := os.environ.get("PICKNET_SCREENSHOTS"):
            widget.screenshot(path=f"{place}/site_{name}.png")
    page.close()
