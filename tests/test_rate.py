"""tools/rate.py: blind sheets, a page that keeps every answer, and counts with intervals."""
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from conftest import load_script
from PIL import Image

from picknet_nb.world.world import write_examples

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def rate():
    return load_script(ROOT/"tools"/"rate.py")


@pytest.fixture(scope="module")
def desk(rate, tmp_path_factory) -> Path:
    "Six clips, captions of three models in both forms, and sheets of five clips."
    desk = tmp_path_factory.mktemp("desk")
    write_examples(desk/"clips", 6)
    clips = sorted(path.stem for path in (desk/"clips").glob("*.mp4"))
    (desk/"one.json").write_text(json.dumps({clip: f"one of {clip}" for clip in clips}))
    (desk/"same.json").write_text(json.dumps({clip: f"one of {clip}" for clip in clips}))
    two = {clip: f"two of {clip}, " + "a long sentence " * 9 for clip in clips[1:]}
    (desk/"two.json").write_text(json.dumps(
        {"sets": {"msvd": {"learned, as it speaks": {"captions": two, "frames": 6.0}}}}))
    rate.main(["sheet", str(desk/"out"), "--videos", str(desk/"clips"), "--captions",
               f"one={desk/'one.json'}", "--captions", f"same={desk/'same.json'}",
               "--captions", f"two={desk/'two.json'}", "--clips", "5", "--seed", "1"])
    return desk


def read(path: Path): return json.loads(path.read_text())


def test_sheets_hold_four_clips_each_and_no_names_of_models(desk, rate):
    sheets = sorted((desk/"out").glob("sheet-*.png"))
    assert [sheet.name for sheet in sheets] == ["sheet-01.png", "sheet-02.png"]
    assert Image.open(sheets[0]).width == 1400 and Image.open(sheets[0]).height > 800
    questions = read(desk/"out"/"questions.json")
    assert len(questions) == 5 and len({each["clip"] for each in questions.values()}) == 5
    assert all(set(each) == {"clip", "captions", "video"} for each in questions.values())


def test_the_key_leads_from_letters_to_models_and_equal_captions_are_one(desk):
    questions, key = (read(desk/"out"/f"{name}.json") for name in ("questions", "key"))
    orders = set()
    for number, letters in key["key"].items():
        said = questions[number]["captions"]
        assert set(letters) == {"a", "b"} and len(said) == 2
        for letter, models in letters.items():
            assert models in (["one", "same"], ["two"])
            assert said[letter].startswith(f"{models[0]} of {questions[number]['clip']}")
        orders.add(tuple(letters["a"]))
    assert len(orders) == 2  # the order is random


def test_a_seed_gives_the_same_questions_and_another_one_others(rate):
    models = {name: {f"clip{n}": f"{name} {n}" for n in range(30)} for name in ("a", "b")}
    clips = sorted(models["a"])
    assert rate.questions_for(models, clips, 9, 4) == rate.questions_for(models, clips[::-1], 9, 4)
    assert rate.questions_for(models, clips, 9, 4) != rate.questions_for(models, clips, 9, 5)
    with pytest.raises(rate.PickNetError, match="31 clips are wanted, and there are 30"):
        rate.questions_for(models, clips, 31, 0)


def test_sheets_are_not_overwritten(desk, rate):
    with pytest.raises(SystemExit, match="key.json: is there already"):
        rate.main(["sheet", str(desk/"out"), "--videos", str(desk/"clips"), "--captions",
                   f"one={desk/'one.json'}", "--clips", "2"])


def test_the_page_keeps_every_answer_and_goes_on(desk, rate):
    def ask(server, **answer):
        data = urllib.parse.urlencode(answer).encode() if answer else None
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", data) as reply:
            return reply.read().decode()

    def serve():
        server = rate.server_of(desk/"out", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    server = serve()
    first = ask(server)
    assert "0 of 10 captions rated" in first and "two of" in first
    assert "sharp" not in first and "same" not in first
    assert "1 of 10" in ask(server, clip="1", letter="a", **{"is": "half"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask(server, clip="1", letter="z", **{"is": "half"})
    assert read(desk/"out"/"ratings.json")["1"] == {"a": "half", "b": ""}
    server.shutdown()
    server.server_close()
    again = serve()
    assert "now: half" in ask(again)
    assert "2 of 10" in ask(again, clip="1", letter="b", **{"is": "wrong"})
    again.shutdown()
    again.server_close()


def test_counts_and_intervals(rate, tmp_path, capsys):
    key = {"seed": 1, "drawn from": 9, "key": {
        "1": {"a": ["one"], "b": ["two"]}, "2": {"a": ["one", "two"]}, "3": {"a": ["two"],
                                                                            "b": ["one"]}}}
    (tmp_path/"key.json").write_text(json.dumps(key))
    (tmp_path/"ratings.json").write_text(json.dumps(
        {"1": {"a": "right", "b": "w"}, "2": {"a": "h"}, "3": {"a": "Wrong", "b": ""}}))
    rate.main(["score", str(tmp_path/"ratings.json"), str(tmp_path/"key.json"),
               "--out", str(tmp_path/"out.json")])
    found = read(tmp_path/"out.json")["models"]
    count = lambda name: [found[name][each] for each in ("clips", "right", "half", "wrong",
                                                         "not rated")]
    assert count("one") == [2, 1, 1, 0, 1] and count("two") == [3, 0, 1, 2, 0]
    said = capsys.readouterr()
    assert "| one | 2 | 1 | 1 | 0 | 50 % (9 to 91) | 100 % (34 to 100) |" in said.out
    assert "one: 1 captions are not rated" in said.err
    # the textbook's example: 15 of 100
    assert rate.wilson(15, 100) == pytest.approx((0.0931, 0.2328), abs=1e-4)
    (tmp_path/"ratings.json").write_text('{"1": {"a": "rihgt"}}')
    with pytest.raises(SystemExit, match="1a is rated 'rihgt'"):
        rate.main(["score", str(tmp_path/"ratings.json"), str(tmp_path/"key.json")])
