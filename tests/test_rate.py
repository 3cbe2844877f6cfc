"""tools/rate.py: blind sheets, a page that keeps every answer, counts, and agreement."""
import json
import zipfile
from pathlib import Path

import pytest
from browser import find_chromium, launch
from conftest import load_script
from PIL import Image

from picknet_nb.world.world import write_examples

ROOT = Path(__file__).parents[1]


def read(path: Path): return json.loads(path.read_text())


@pytest.fixture(scope="module")
def rate():
    return load_script(ROOT/"tools"/"rate.py")


@pytest.fixture(scope="module")
def desk(rate, tmp_path_factory) -> Path:
    "Seven clips in a zip file, what three models say of them, and sheets of the six rated before."
    desk = tmp_path_factory.mktemp("desk")
    write_examples(desk/"clips", 7)
    clips = sorted(path.stem for path in (desk/"clips").glob("*.mp4"))
    with zipfile.ZipFile(desk/"clips.zip", "w") as packed:
        for path in (desk/"clips").glob("*.mp4"): packed.write(path, f"inside/{path.name}")
    results = desk/"results"
    results.mkdir()
    rated = clips[:0:-1]  # in another order than by name
    (results/"ratings.json").write_text(json.dumps({"clips": dict.fromkeys(rated, {})}))
    says = {"one": {clip: f"one </script> of {clip}" for clip in clips},
            "two": {clip: f"two of {clip}, " + "a long sentence " * 9 for clip in clips[1:]}}
    says["same"] = says["one"]
    for name, captions in says.items():
        (results/f"model_{name}.json").write_text(json.dumps(
            {"sets": {"toy": {"learned, as it speaks": {"captions": captions, "frames": 6.0}}}}))
    rate.RESULTS = results
    rate.main(["sheet", str(desk/"out"), "--videos", str(desk/"clips.zip"),
               "--models", "one,same,two", "--seed", "1"])
    return desk


def test_sheets_have_the_clips_that_were_rated_and_no_names_of_models(desk):
    out = desk/"out"
    sheets = sorted(out.glob("sheet_*.png"))
    assert [sheet.name for sheet in sheets] == ["sheet_01.png", "sheet_02.png"]
    assert Image.open(sheets[0]).width == 1540 and Image.open(sheets[0]).height > 900
    assert list(read(out/"key.json")["clips"].values()) == \
        list(read(desk/"results"/"ratings.json")["clips"])
    sheet = read(out/"sheet.json")
    assert sheet["rater"] == "" and len(sheet["ratings"]) == 6
    assert all(set(each) == {"caption", "rating"} and not each["rating"]
               for captions in sheet["ratings"].values() for each in captions.values())
    for word in ("same", "models"):
        assert word not in (out/"sheet.json").read_text()
    assert "stricter one" in (out/"RULE.md").read_text()


def test_the_key_leads_from_letters_to_models_and_equal_captions_are_one(desk):
    key, orders = read(desk/"out"/"key.json"), set()
    for number, letters in key["key"].items():
        assert set(letters) == {"A", "B"}
        for letter, models in letters.items():
            assert models in (["one", "same"], ["two"])
            assert key["captions"][number][letter].split()[0] == models[0]
        orders.add(tuple(letters["A"]))
    assert len(orders) == 2  # the order is random


def test_a_seed_gives_the_same_order_and_another_one_another(rate):
    models = {name: {f"clip{n}": f"{name} {n}" for n in range(30)} for name in ("a", "b")}
    clips = sorted(models["a"])
    assert rate.questions_for(models, clips, 4) == rate.questions_for(models, clips, 4)
    assert rate.questions_for(models, clips, 4) != rate.questions_for(models, clips, 5)


def test_what_cannot_be_shown_is_named_and_sheets_are_not_overwritten(desk, rate):
    sheet = lambda *how: rate.main(["sheet", *map(str, how)])
    with pytest.raises(SystemExit, match="key.json: is there already"):
        sheet(desk/"out", "--videos", desk/"clips", "--models", "one")
    with pytest.raises(SystemExit, match="7 clips are wanted, and there are 6"):
        sheet(desk/"new", "--videos", desk/"clips", "--models", "one,two", "--clips", "7")
    (desk/"empty").mkdir()
    with pytest.raises(SystemExit, match="6 of 6 clips have no video here or no caption"):
        sheet(desk/"new", "--videos", desk/"empty", "--models", "one")
    with pytest.raises(SystemExit, match="is neither a folder nor a zip file"):
        sheet(desk/"new", "--videos", desk/"nowhere", "--models", "one")


def test_the_page_keeps_what_was_clicked_and_saves_a_sheet_that_can_be_counted(desk, rate):
    find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 400, "height": 800})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((desk/"out"/"index.html").as_uri())
        assert page.locator("#count").inner_text() == "0 of 12 captions rated"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.locator("input[name='2B'][value=half]").click()
        page.locator("#rater").fill("a person")
        page.reload()
        assert page.locator("#count").inner_text() == "1 of 12 captions rated"
        assert page.locator("input[name='2B'][value=half]").is_checked()
        with page.expect_download() as download:
            page.locator("#save").click()
        download.value.save_as(desk/"saved.json")
        browser.close()
    assert not wrong
    who, found = rate.judgements_in(desk/"saved.json", read(desk/"out"/"key.json"))
    assert who == "a person" and found["2"] == {"A": "", "B": "half"}


KEY = {"seed": 1, "clips": {"1": "x", "2": "y", "3": "z"},
       "key": {"1": {"A": ["one"], "B": ["two"]}, "2": {"A": ["one", "two"]},
               "3": {"A": ["two"], "B": ["one"]}},
       "captions": {"1": {"A": "a", "B": "b"}, "2": {"A": "c"}, "3": {"A": "d", "B": "e"}}}


def filled(path: Path, *judgements: str) -> str:
    "A sheet with these ratings in the order of its captions."
    given = iter(judgements)
    path.write_text(json.dumps({"rater": "", "ratings": {
        number: {letter: {"caption": text, "rating": next(given)}
                 for letter, text in captions.items()}
        for number, captions in KEY["captions"].items()}}))
    return str(path)


def test_counts_intervals_and_agreement(rate, tmp_path, capsys):
    (tmp_path/"key.json").write_text(json.dumps(KEY))
    one = filled(tmp_path/"one.json", "right", "w", "h", "Wrong", "")
    two = filled(tmp_path/"two.json", "right", "wrong", "half", "half", "right")
    rate.main(["count", str(tmp_path/"key.json"), one, two, "--out", str(tmp_path/"out.json")])
    found = read(tmp_path/"out.json")
    count = lambda rater, model: [found["raters"][rater]["models"][model][each] for each in (
        "clips", "right", "half", "wrong", "not rated")]
    assert count("rater 1", "one") == [2, 1, 1, 0, 1]
    assert count("rater 1", "two") == [3, 0, 1, 2, 0]
    assert count("rater 2", "one") == [3, 2, 1, 0, 0]
    both = found["agreement"]["raters 1 and 2"]
    # by hand: r r, w w, h h, w h; by chance 1/4 1/4 + 1/2 1/4 + 1/4 1/2 = 5/16
    assert both["captions"] == 4 and both["alike"] == 0.75
    assert both["kappa"] == pytest.approx((3/4 - 5/16) / (11/16))
    assert both["table"]["wrong, half"] == 1 and sum(both["table"].values()) == 4
    assert found["clips"]["z"]["A"] == {
        "models": ["two"], "caption": "d", "ratings": ["wrong", "half"]}
    said = capsys.readouterr()
    assert "| rater 1 | one | 2 | 1 | 1 | 0 | 50 % (9 to 91) | 0 % (0 to 66) |" in said.out
    assert "rate 75 % of 4 captions alike; Cohen's kappa 0.64" in said.out
    assert "rater 1, one: 1 captions are not rated" in said.err
    # the textbook's example: 15 of 100
    assert rate.wilson(15, 100) == pytest.approx((0.0931, 0.2328), abs=1e-4)


def test_a_sheet_that_is_not_of_the_key_is_named(rate, tmp_path):
    (tmp_path/"key.json").write_text(json.dumps(KEY))
    count = lambda sheet: rate.main(["count", str(tmp_path/"key.json"), str(sheet)])
    with pytest.raises(SystemExit, match="1 B is rated 'rihgt': right, half or wrong"):
        count(filled(tmp_path/"a.json", "right", "rihgt", "", "", ""))
    (tmp_path/"b.json").write_text((tmp_path/"a.json").read_text().replace('"e"', '"other"'))
    (tmp_path/"b.json").write_text((tmp_path/"b.json").read_text().replace("rihgt", "h"))
    with pytest.raises(SystemExit, match="3 B is another caption than the key's"):
        count(tmp_path/"b.json")
    (tmp_path/"c.json").write_text('{"ratings": {"1": {"A": 3}}}')
    with pytest.raises(SystemExit, match="has no caption and rating of 1 A"):
        count(tmp_path/"c.json")
