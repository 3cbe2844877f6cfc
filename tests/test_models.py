"The bundled models: whole, small, safe, and worth their name."
import json
import re
import shutil
import stat
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import load_script, noise_corpus
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner
from toys import examples_corpus, invoked, store_run, undecided

from picknet_nb.core.files import PickNetError, file_digest
from picknet_nb.core.settings import preset
from picknet_nb.data.eyes import multiplications
from picknet_nb.data.text import SPECIALS, tokenize
from picknet_nb.world.shapes import make_story
from picknet_nb.world.world import write_clip, write_examples
from picknet_nb.method import generation
from picknet_nb.method.cider import Cider
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.scorer import FrameValues, Scorer
from picknet_nb.method.stages import Model, caption_videos, frame_choice
from picknet_nb.training import cards, models
from picknet_nb.training.models import (
    BUNDLED, Decoding, describe_model, example_run, export_model, find_model, find_run, read_card)
from picknet_nb.training.runs import (
    RunError, load_run, newest_weights, open_run, read_about, save_weights)
from picknet_nb.training.scorers import SCORER, StoredScorer, load_scorer, save_scorer
from picknet_nb.use.loading import load_captioner
from picknet_nb.interface.main import app
from picknet_nb.interface.python import evaluate

TOOLS = Path(__file__).parents[1]/"tools"
sys.path.insert(0, str(TOOLS))  # one of them imports another
card, bundle_scorer = load_script(TOOLS/"card.py"), load_script(TOOLS/"bundle_scorer.py")


@pytest.fixture
def run(tmp_path):
    "A finished run of noise, with everything that only training needs."
    config = preset("smoke", mention_weight=0.5)
    corpus = noise_corpus()
    corpus.details.update(
        opened={"data": "/home/somebody/secret", "scale": "smoke"},
        weights="tiny",
        stories=list(range(1000)),
    )
    torch.manual_seed(0)
    open_run(tmp_path/"run", corpus, config, Recipe())
    save_weights(
        Model.for_corpus(config, corpus).state_dict(), tmp_path/"run"/"weights.safetensors"
    )
    return tmp_path/"run"


@pytest.mark.parametrize("name", list(models.models()))
def test_each_bundled_model_is_whole_and_in_half_precision_or_eight_bits(name):
    model, config, vocabulary, about = load_run(find_model(name))
    with safe_open(newest_weights(find_model(name)), "pt") as file:
        kinds = {file.get_slice(key).get_dtype() for key in file.keys()}
    assert kinds == ({"F16"} if name == "shapes" else {"I8", "F16", "F32"})
    names = sorted(path.name for path in find_model(name).iterdir() if path.name != SCORER)
    assert names == [
        "card.json",
        "card.md",
        "config.json",
        "run.json",
        "vocabulary.json",
    ] + ["weights.safetensors"] * ("weights_of" not in about)
    sizes = {path.name: path.stat().st_size for path in find_model(name).iterdir()}
    assert sizes.get("weights.safetensors", 0) <= 11e6 and sizes.get(SCORER, 0) <= 4e6
    assert "opened" not in about["details"]
    assert all(weight.isfinite().all() for weight in model.parameters()) and len(vocabulary) > 90


def test_bundled_models_are_part_of_the_package():
    setup = (BUNDLED.parent.parent/"setup.py").read_text()
    assert "bundled/*/*" in setup and (BUNDLED.parent/"training"/"models.py").exists()


def test_the_model_that_is_used_where_none_is_named():
    assert (
        find_run() == find_model() == BUNDLED/"everyday"
        and next(iter(models.models())) == "everyday"
    )


@pytest.mark.parametrize("name", ["everyda", "", "../bundled/everyday", "/", "everyday/..", None])
def test_other_names_are_refused_with_those_that_exist(name):
    with pytest.raises(PickNetError, match="everyday, shapes"):
        find_model(name)


def test_a_run_becomes_a_model_without_its_history(run, tmp_path):
    out = export_model(run, tmp_path/"model", Decoding(3, True))
    about = json.loads((out/"run.json").read_text())
    assert "secret" not in (out/"run.json").read_text() and about["details"] == {"weights": "tiny"}
    assert Decoding.read(out) == Decoding(3, True) and Decoding.read(run) == Decoding()
    was, now = load_file(run/"weights.safetensors"), load_file(out/"weights.safetensors")
    assert was.keys() - now.keys() == {"captioner.mentions.weight", "captioner.mentions.bias"}
    assert all(torch.equal(now[name], was[name].half()) for name in now)
    model, config, *_ = load_run(out)
    assert config.captioner.mention_weight == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o755 and "Not measured" in read_card(out)


@pytest.fixture
def talker(tmp_path):
    "A model that speaks in a manner of its own, a corpus with other settings, and a clip of it."
    example_run(tmp_path/"toy", clips=4)
    videos = tmp_path/"toy"/"videos"
    run = undecided(store_run(tmp_path/"talking", videos, max_words=7, threshold=0.4))
    corpus = examples_corpus(videos, preset("smoke").clip)
    assert corpus.settings.max_words != 7
    return export_model(run, tmp_path/"talker", Decoding(3, True)), corpus, videos


@pytest.fixture
def searches(monkeypatch):
    "Size, longest caption and rule about repeats of every beam search."
    seen, search = [], generation.beam_search

    def noticed(speaker, memory, size, max_words, no_repeats=False):
        seen.append((size, max_words, no_repeats))
        return search(speaker, memory, size, max_words, no_repeats)

    monkeypatch.setattr(generation, "beam_search", noticed)
    return seen


def test_a_file_is_captioned_as_the_model_was_stored(talker, searches):
    model, _, videos = talker
    load_captioner(model).caption(videos/"example.mp4")
    assert set(searches) == {(3, 7, True)}


def test_a_split_is_captioned_as_the_model_was_stored(talker, searches, tmp_path):
    "By the command and by the function, unless an option says otherwise."
    model, corpus, _ = talker
    data = ("--data", corpus.save(tmp_path/"corpus"), "--split", "train", "--no-scores")
    assert invoked("evaluate", "--model", model, *data).exit_code == 0
    assert set(searches) == {(3, 7, True)}
    searches.clear()
    assert evaluate(model, corpus, "train", scores=False).decoding == "beam 3"
    assert set(searches) == {(3, 7, True)}
    searches.clear()
    assert invoked("evaluate", "--model", model, *data, "--beam", 2, "--repeats").exit_code == 0
    assert set(searches) == {(2, 7, False)}


def test_a_split_gets_the_picks_that_its_files_get(talker):
    "The threshold is the model's own, here and there."
    model, corpus, videos = talker
    speaker = load_captioner(model)
    picked = [len(speaker.caption(videos/f"{name}.mp4").picked) for name in corpus.ids]
    found = evaluate(model, corpus, "train", scores=False)
    assert found.frames_used == sum(picked) / len(picked)
    bold = evaluate(model, corpus, "train", threshold=0.01, scores=False)
    assert bold.frames_used > found.frames_used


def test_a_card_is_measured_as_evaluate_measures(talker):
    model, corpus, _ = talker
    everything = {"train": corpus.splits["train"], "validation": corpus.splits["validation"]}
    corpus = replace(corpus, splits={**everything, "test": corpus.splits["train"]})
    found = card.captions_of(model, corpus, "cpu")
    assert found["learned, as it speaks"]["captions"] == evaluate(
        model, corpus, scores=False
    ).captions
    assert found["one, greedy"]["frames"] == 1 and found["all, greedy"]["frames"] == 30
    own = found["learned, as it speaks"]["frames"]  # beside them as many uniform frames
    assert own <= found["uniform, as it speaks"]["frames"] < own + 1


def test_what_a_model_says_is_what_its_run_says(run, tmp_path):
    corpus, said = noise_corpus(), []
    for folder in (run, export_model(run, tmp_path/"model")):
        model, *_ = load_run(folder)
        said.append(
            caption_videos(
                model,
                corpus,
                corpus.splits["train"],
                frame_choice(make_picker("learned", policy=model.policy), corpus),
            )[0]
        )
    assert (said[0] == said[1]).all(1).float().mean() > 0.9  # half precision may tip a word over


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (
            lambda run, out: out.mkdir() or (out/"mine.txt").write_text("keep"),
            "not an empty folder",
        ),
        (lambda run, out: out.write_text("a file"), "not an empty folder"),
        (lambda run, out: (run/"weights.safetensors").unlink(), "not finished"),
        (
            lambda run, out: save_file(
                {
                    name: weight * 1e6 if "policy" in name else weight
                    for name, weight in load_file(run/"weights.safetensors").items()
                },
                run/"weights.safetensors",
            ),
            "half precision cannot hold",
        ),
    ],
)
def test_what_cannot_become_a_model_leaves_nothing_behind(run, tmp_path, spoil, reason):
    spoil(run, tmp_path/"model")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=reason):
        export_model(run, tmp_path/"model")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_no_half_model(run, tmp_path, monkeypatch):
    def full(*_): raise OSError(28, "No space left on device")
    monkeypatch.setattr(models, "save_weights", full)
    with pytest.raises(OSError):
        export_model(run, tmp_path/"model")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "speech",
    [{"beam": 0}, {"beam": 10**6}, {"beam": "5"}, {"beam": True}, {"no_repeats": 1}, {"volume": 3}],
)
def test_garbled_speech_is_refused(tmp_path, speech):
    shutil.copytree(find_model("shapes"), tmp_path, dirs_exist_ok=True)
    about = json.loads((tmp_path/"run.json").read_text())
    assert load_captioner(tmp_path, device="cpu").decoding == Decoding()
    (tmp_path/"run.json").write_text(json.dumps(about | {"speech": speech}))
    with pytest.raises(RunError, match="decoding settings"):
        load_captioner(tmp_path, device="cpu")


def test_the_shapes_model_knows_its_world(tmp_path):
    """Clips that it has never seen, read from files: far better than the same sentences given to
    other clips."""
    from picknet_nb.world.shapes import describe

    stories = {f"new {number}": make_story((991, number)) for number in range(24)}
    for name, story in stories.items():
        write_clip(story, tmp_path/f"{name}.mp4")
    captioner = load_captioner(find_model("shapes"), device="cpu")
    found = list(
        captioner.caption_many([tmp_path/f"{name}.mp4" for name in stories], running=False)
    )
    cider = Cider(
        [[tokenize(line) for line in describe(story)] for story in stories.values()],
        captioner.vocabulary,
    )
    words = captioner.vocabulary.encode([each.text for each in found], 16)
    right, wrong = (
        cider(words.roll(shift, 0), torch.arange(len(words))).float().mean().item()
        for shift in (0, 1)
    )
    assert right > 0.6 and right > 3 * wrong
    assert sum(len(each.picked) for each in found) / len(found) < 8


def test_everyday_says_plain_english_about_anything(tmp_path):
    "Of a world it was not made for: still no special token, no repeated pair of words, no silence."
    example_run(tmp_path, clips=3)
    captioner = load_captioner(device="cpu")
    for found in captioner.caption_many(sorted((tmp_path/"videos").glob("*.mp4"))):
        words = found.text.split()
        assert (
            2 < len(words) <= 20
            and not set(words) & set(SPECIALS)
            and len(set(zip(words, words[1:]))) == len(words) - 1
        )


def test_without_its_backbone_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("picknet_nb.data.four_bits.BUNDLED_CLIP", tmp_path/"gone.safetensors")
    with pytest.raises(PickNetError, match="clip-4bit are missing .* install it again"):
        load_captioner()


RESULTS = BUNDLED.parent.parent/"data"/"results"


def test_the_picture_of_a_caption_is_described_as_it_is():
    shown = json.loads((RESULTS/"front_page.json").read_text())["caption"]
    page = (RESULTS.parent.parent/"nbs"/"use"/"15_loading.ipynb").read_text(encoding="utf-8")
    described = re.search(r"!\[([^]]*)\]\(../images/caption.jpg\)", page)[1]
    assert described.endswith(f"the model says: {shown['caption']}")


@pytest.mark.parametrize("picture", ["caption", "explorer"])
def test_the_pictures_of_the_front_page_were_made_with_these_models(picture):
    made = json.loads((RESULTS/"front_page.json").read_text())[picture]
    folder = find_model(made["model"])
    assert (made["weights"], made["sees with"]) == (
        file_digest(newest_weights(folder)), read_about(folder)["details"]["weights"]
    ), f"python tools/picture.py {picture}"


def test_the_picture_of_the_method_shows_a_right_caption_of_the_course_s_model():
    made = json.loads((RESULTS/"front_page.json").read_text())["method"]
    stored = json.loads((RESULTS/made["result"]).read_text())["runs"][0]["after"]["stage three"]
    for name in ("caption", "picks", "p"):
        assert made[name] == stored[name], "python tools/picture.py method"
    assert made["caption"] == "a yellow star jumps and chases a pink ring"


@pytest.mark.parametrize("name", list(models.models()))
def test_a_card_says_what_people_need_to_know(name):
    card = read_card(find_model(name))
    for part in ("## Trained on", "## What overlaps with common test sets", "## Scores",
                 "## What it cannot do", "## Terms", "CIDEr"):
        assert part in card, part
    assert not re.search(r"<[A-Z]+>|takes  s", card), "a number is missing"


def test_the_wheel_stays_small():
    "Seventy-two megabytes with the code, which takes less than one."
    files = [path.read_bytes() for path in BUNDLED.rglob("*") if path.is_file()]
    assert sum(len(zlib.compress(content)) for content in files) < 72e6


RESULT = {
    "machine": "a machine", "date": "2026-01-01", "command": "a command",
    "sets": {"msvd": {"learned, as it speaks": {"captions": {"a": "a dog runs"}, "frames": 6.0}}},
    "manners": {"msvd": {"clips": 1, "empty": 0, "special_token": 0, "repeated_bigram": 0.0}},
    "scores": {"msvd": {"clips": 1, **{f"{kind}, as it speaks": {
        "frames": frames, "CIDEr": score, "CIDEr_interval": [score - 0.1, score + 0.1],
        "BLEU@4": 0.4, "METEOR": 0.3, "ROUGE-L": 0.6}
        for kind, frames, score in (("learned", 5.5, 1.123), ("uniform", 6.0, 1.1),
                                    ("all", 30.0, 1.2))}}},
}
RATED = {"models": {"mine": {"clips": 100, "right": 61, "half": 20, "wrong": 19,
                             "right_or_half": 0.81, "right_or_half_interval": [0.72, 0.87]}}}


STRICT = {"raters": {f"rater {number}": {"who": f"person {number}", "models": {"mine": {
    "clips": 100, "right": right, "half": 30, "wrong": 70 - right, "right_interval": [0.1, 0.3]}}}
    for number, right in ((1, 20), (2, 25))},
    "agreement": {"raters 1 and 2": {"alike": 0.78, "kappa": 0.66}}}


@pytest.fixture
def carded(run, tmp_path, monkeypatch):
    "A model in a folder of bundled ones whose card was written from a result and from ratings."
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    export_model(run, tmp_path/"bundled"/"mine")
    (tmp_path/"tools"/"cards").mkdir(parents=True)
    (tmp_path/"tools"/"cards"/"mine.md").write_text(
        "# mine: a title\n\n<WORDS> words, <WEIGHTS> weights\n\n<PICKER>\n\n<RATED>\n\n<TABLE>\n\n"
        "<DISTINCT> of <CLIPS> distinct, <SHARE> in ten sentences\n")
    results = tmp_path/"data"/"results"
    results.mkdir(parents=True)
    (results/"ratings.json").write_text(json.dumps(RATED))
    (results/"ratings_strict.json").write_text(json.dumps(STRICT))
    (results/"benchmark_mine.json").write_text(json.dumps(
        {"seconds_per_clip": 3.14, "clips_per_second": 0.3, "machine": "two cores"}))
    monkeypatch.setattr(card, "ROOT", tmp_path)
    card.write_card("mine", RESULT)
    return tmp_path


def test_a_card_has_ratings_uniform_frames_and_what_models_compares(carded):
    text = read_card(find_model("mine"))
    assert "right for 61, half right for 20 and wrong for 19; right or half right 81 % (95 %: 72 " \
        "to 87)" in text
    assert "blind: person 1 found 20 right (95 %: 10 to 30), 30 half right and 50 wrong; person " \
        "2 found 25 right" in text
    assert "they gave 78 % of the captions the same rating (Cohen's kappa 0.66)" in text
    assert "| MSVD, 1 clips | the frames it picks, 5.5 | 112.3" in text
    assert "| MSVD, 1 clips | as many, uniform, 6.0 | 110.0" in text
    assert "1 of 1 distinct, 100 % in ten sentences" in text
    found = describe_model(find_model("mine")).measured
    assert found["cider"]["msvd"]["uniform"] == {
        "frames": 6.0, "CIDEr": 110.0, "interval": [100.0, 120.0]}
    first, row = models.models_table(models.models().values())
    shown = dict(zip(first, row))
    assert [shown[name] for name in ("right", "half", "wrong", "of")] == [
        "20, 25", "30, 30", "50, 45", "100"]
    assert shown["CIDEr MSVD"] == "112.3" and shown["MSR-VTT"] == "–" and shown["seconds"] == "3.1"
    said = CliRunner().invoke(app, ["models"]).output
    assert re.search(r"^mine +20, 25 +30, 30 +50, 45 +100 +112\.3 +– +3\.1 ", said, re.M)
    (listed,) = json.loads(CliRunner().invoke(app, ["models", "--json"]).output)
    assert listed["rated"]["right"] == 61 and listed["rated_strictly"]["person 2"]["right"] == 25


def trained_scorer(folder: Path, weights: str = "", frames: int = 30, seed: int = 0) -> Path:
    "A folder with a scorer as training leaves it: the best of equal parts, four frames."
    torch.manual_seed(seed)
    scorers = [Scorer(256, frames, hidden=8, layers=1).eval() for _ in range(3)]
    folder.mkdir()
    save_scorer(folder, StoredScorer(FrameValues(scorers), 4, "tiny", weights, "two captioners"))
    return folder


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    "The model of the toy world, alone in the package, and two of its clips."
    write_examples(tmp_path/"videos", 2)
    shutil.copytree(find_model("shapes"), tmp_path/"bundled"/"shapes")
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    for module in (bundle_scorer, card): monkeypatch.setattr(module, "ROOT", tmp_path)
    return sorted((tmp_path/"videos").glob("*.mp4"))


def test_a_bundled_scorer_picks_with_the_budget_and_the_rule_that_were_bundled(bundled, tmp_path):
    own = [load_captioner(find_model("shapes")).caption(file).picked for file in bundled]
    source, found = trained_scorer(tmp_path/"trained"), {}
    for rule in ("parts", "gap"):
        for frames in (2, 6):
            bundle_scorer.main(["shapes", "--scorer", str(source), "--frames", str(frames),
                                "--rule", rule])
            captioner = load_captioner(find_model("shapes"))
            assert captioner.picker.policy.rule == rule
            found[rule, frames] = [captioner.caption(file).picked for file in bundled]
            assert {len(picked) for picked in found[rule, frames]} == {frames}
    assert found["parts", 6] != found["gap", 6] and own not in found.values()
    bundle_scorer.main(["shapes", "--scorer", str(source), "--threshold", "0.5"])
    assert load_scorer(find_model("shapes")).values.threshold == 0.5
    bundle_scorer.main(["shapes", "--remove"])
    assert [load_captioner(find_model("shapes")).caption(file).picked for file in bundled] == own


@pytest.mark.parametrize(("how", "message"), [
    ({"weights": "tiny 0123456789ab"}, "was trained to see with other weights"),
    ({"frames": 12}, "another number of frames"),
])
def test_a_scorer_that_does_not_fit_is_not_bundled(how, message, bundled, tmp_path):
    source, _ = trained_scorer(tmp_path/"trained", **how), tmp_path
    with pytest.raises(PickNetError, match=message):
        bundle_scorer.main(["shapes", "--scorer", str(source)])
    with pytest.raises(PickNetError, match="scorer.safetensors: no such file"):
        bundle_scorer.main(["shapes", "--scorer", str(tmp_path)])
    assert not (find_model("shapes")/SCORER).exists()


def test_a_card_describes_the_scorer_and_its_numbers_are_those_of_its_frames(carded):
    save_scorer(find_model("mine"), load_scorer(trained_scorer(carded/"trained")))
    kinds = RESULT["scores"]["msvd"]
    scored = {**kinds["learned, as it speaks"], "CIDEr": 1.2, "frames": 4.0}
    result = {**RESULT, "scores": {"msvd": {**kinds, "scorer, as it speaks": scored}}}
    card.write_card("mine", result)
    text = read_card(find_model("mine"))
    assert "A scorer picks 4 frames; its eye, tiny, costs " in text and "two captioners" in text
    assert "| MSVD, 1 clips | the frames it picks, 4.0 | 120.0" in text
    assert "| MSVD, 1 clips | the frames its policy picks, 5.5 | 112.3" in text
    found = describe_model(find_model("mine")).measured
    assert found["cider"]["msvd"]["scorer"]["CIDEr"] == 120.0
    assert found["cider"]["msvd"]["PickNet"]["CIDEr"] == 112.3
    assert found["scorer"] == {
        "eye": "tiny", "multiplications": multiplications("tiny"), "frames": 4, "looks": 30,
        "clip_frames": 30, "rule": "parts", "threshold": None, "networks": 3,
        "taught_by": "two captioners"}
    first, row = models.models_table(models.models().values())
    shown = dict(zip(first, row))
    assert shown["CIDEr MSVD"] == "120.0" and shown["picks with"] == "tiny"


def test_a_card_is_measured_with_the_frames_of_the_scorer(talker, tmp_path):
    model, corpus, _ = talker
    corpus = replace(corpus, splits={**corpus.splits, "test": corpus.splits["train"]})
    shutil.copytree(model, tmp_path/"model")
    save_scorer(tmp_path/"model", load_scorer(trained_scorer(tmp_path/"trained")))
    found = card.captions_of(tmp_path/"model", corpus, "cpu")
    assert found["scorer, as it speaks"]["frames"] == 4 == found["uniform, greedy"]["frames"]
    policy = evaluate(model, corpus, scores=False)
    assert found["learned, as it speaks"]["captions"] == policy.captions
    assert found["scorer, as it speaks"]["captions"] != policy.captions


@pytest.mark.parametrize("content", [
    "[]", '{"cider": 3}', '{"rated": [1]}', '{"rated_strictly": [1]}', '{"scorer": 3}', "{"])
def test_a_garbled_card_is_an_error_that_names_it(carded, content):
    (find_model("mine")/"card.json").write_text(content)
    with pytest.raises(RunError, match="card.json: "):
        describe_model(find_model("mine"))


def test_a_model_that_nobody_measured_has_dashes(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    export_model(run, tmp_path/"bundled"/"mine")
    row = models.models_table(models.models().values())[1]
    assert row[1:8] == ["–"] * 7 and row[9] == "grey"
