"""What is refused at once, before any work is done: one line, of our own type, that says why and
what to do instead."""
from pathlib import Path

import pytest

from picknet_nb.core.files import FileError, PickNetError, read_json
from picknet_nb.core.settings import ClipSettings, preset
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import CorpusError
from picknet_nb.data.splits import checked_splits, draw_splits
from picknet_nb.data.extraction import extract_folder
from picknet_nb.data.video_files import VideoError
from picknet_nb.world import world
from picknet_nb.method.stages import Model
from picknet_nb.training import train as training
from picknet_nb.training.checkpoints import Trainer
from picknet_nb.training.runs import RunError
from picknet_nb.use import captioning
from picknet_nb.interface import python as api, watch as watching


def test_a_clip_that_stands_twice_in_a_file(tmp_path):
    (tmp_path/"captions.json").write_text('{"clip": ["one"], "clip": ["two"]}')
    with pytest.raises(FileError, match="captions.json: .*'clip' is twice"):
        read_json(tmp_path/"captions.json")


def test_a_world_that_was_begun_with_other_numbers(tmp_path):
    world._begin_world(tmp_path, {"train": 3, "validation": 1, "test": 2}, seed=0)
    with pytest.raises(CorpusError, match="world.json: begun as .*choose another folder"):
        world.make_shapes(tmp_path, 3, 1, 2, seed=1)
    assert not list(tmp_path.glob("**/*.mp4"))


@pytest.mark.parametrize(
    "scale, settings, reason",
    [
        ("smoke", ClipSettings(frames=12), "has 30 frames, not 12"),
        ("huge", None, "no preset 'huge': choose one of smoke, small, paper"),
    ],
)
def test_a_world_that_cannot_be(tmp_path, scale, settings, reason):
    with pytest.raises(PickNetError, match=reason):
        world.prepare_shapes(tmp_path/"world", scale, settings=settings)
    assert not (tmp_path/"world").exists()


def test_half_a_checkpoint(tmp_path, corpus):
    config = preset("smoke")
    (tmp_path/"checkpoint.pt").write_bytes(b"PK half a checkpoint")
    with pytest.raises(RunError, match="move checkpoint.pt away to start this run again"):
        Trainer(tmp_path, Model.for_corpus(config, corpus), corpus, config)


def test_an_address_in_place_of_a_file():
    with pytest.raises(VideoError, match="is an address, not a file: caption it alone"):
        captioning.reject_address("https://example.org/a.mp4")
    captioning.reject_address("C:/films/a.mp4")


@pytest.mark.parametrize(
    "texts, reason",
    [
        (
            {"a.mp4": ["a dog runs"]},
            "names no video in clips: an id is a file name without extension, such as 'a'",
        ),
        (
            {"a": ["a dog runs"], "b": ["a cat sits"]},
            "2 videos with captions cannot be split in three",
        ),
    ],
)
def test_captions_that_do_not_fit_the_videos(tmp_path, texts, reason):
    files = {name: Path(f"clips/{name}.mp4") for name in "abc"}
    with pytest.raises(PickNetError, match=reason):
        checked_splits(None, Path("captions.json"), Path("clips"), texts, files, tmp_path)
    assert not list(tmp_path.iterdir())


def test_new_videos_are_drawn_and_the_others_stay_where_they_are(tmp_path):
    "A clip that was trained on must not be tested on later, however many are added."
    old, path = [f"m{number}" for number in range(40)], tmp_path/"splits.json"
    first = read_json(draw_splits(old, path))
    assert {part: len(ids) for part, ids in first.items()} == {
        "train": 32,
        "validation": 2,
        "test": 6,
    }
    assert read_json(draw_splits(old, path)) == first
    grown = read_json(draw_splits([*old, *(f"a{number}" for number in range(20))], path))
    assert all(set(first[part]) <= set(grown[part]) for part in first) and {
        part: len(ids) for part, ids in grown.items()
    } == {"train": 48, "validation": 3, "test": 9}
    # fewer videos are no reason to forget the others
    assert read_json(draw_splits(old[:10], path)) == grown
    path.write_text('{"train": ["m1"], "validation": ["m2"], "test": ["m3"]}')  # by hand
    assert read_json(draw_splits(["m1", "m2", "m3"], path))["test"] == ["m3"]
    path.write_text('{"train": 3}')
    with pytest.raises(FileError, match="splits.json: must be"):
        draw_splits(old, path)


def test_a_folder_without_videos(tmp_path):
    (tmp_path/"notes.txt").write_text("no video")
    for refuse in (
        lambda: api.prepare(tmp_path, {"a": ["x"]}, tmp_path/"out", cnn="tiny"),
        lambda: extract_folder(tmp_path, tmp_path/"out", load_backbone("tiny")),
    ):
        with pytest.raises(FileError, match="no video in this folder"):
            refuse()
    assert not (tmp_path/"out").exists()


@pytest.mark.parametrize(
    "captions, settings, reason",
    [
        ({"a": "a dog"}, {}, "captions of a must be a list of texts"),
        ({"a": []}, {}, "videos without captions: a"),
        ({"a": [1, 2]}, {}, "captions of a must be a list of texts"),
        ({"a": ["x"]}, {"frames": 0}, "frames must be 1 or more, not 0"),
        ({"a": ["x"]}, {"weights": "a.pth"}, "the backbone tiny reads no weights"),
    ],
)
def test_what_python_gives_is_checked_before_anything_is_extracted(
    tmp_path, captions, settings, reason
):
    (tmp_path/"clips").mkdir()
    (tmp_path/"clips"/"a.mp4").write_bytes(b"")
    with pytest.raises(PickNetError, match=reason):
        api.prepare(tmp_path/"clips", captions, tmp_path/"out", cnn="tiny", **settings)
    assert not (tmp_path/"out").exists()


def test_one_picture_for_several_videos(tmp_path):
    with pytest.raises(PickNetError, match="all.gif: one file for 2 videos: write {} for the name"):
        watching.output_files(tmp_path/"all.gif", ["a", "b"], [Path("a.mp4"), Path("b.mp4")])


@pytest.mark.parametrize(
    "call, reason",
    [
        (
            lambda: training.recipe_of(Path("runs/mine"), "Baseline", 5, None),
            "--picks is for .*'Baseline' takes no such number",
        ),
        (
            lambda: training.picking_with("uniform", None, None),
            "uniform needs a whole number of frames, not None",
        ),
        (
            lambda: training.picking_with("all", "Baseline", None),
            "--picker says which frames are picked, and so do --experiment and --picks",
        ),
    ],
)
def test_options_that_do_not_go_together(call, reason):
    with pytest.raises(PickNetError, match=reason):
        call()
