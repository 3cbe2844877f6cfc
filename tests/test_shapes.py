"""The built-in world: stories without contradictions, files that survive a kill, the same seed
the same world."""
import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Forked, Ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import ClipSettings, preset
from picknet_nb.data.corpus import CorpusError
from picknet_nb.data.glance import glance
from picknet_nb.data.video import read_clip
from picknet_nb.world.shapes import (
    ACTIONS, BEATS, COLOURS, NOISES, SHAPES, SIDE, describe, draw, draw_clip, example_corpus,
    events_seen, example_story, make_story, oracle_picks, plain_caption, plain_stories,
    rule_of_thumb)
from picknet_nb.world.world import SCALES, make_shapes, prepare_shapes, write_clip

ROOT = Path(__file__).resolve().parents[1]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 10**6))
def test_a_story_holds_together(seed, number):
    story = make_story((seed, number))
    assert story == make_story((seed, number))
    assert [shot.start for shot in story.shots] == [0] + [
        shot.stop for shot in story.shots[:-1]
    ] and story.shots[-1].stop == BEATS
    assert all(shot.stop > shot.start for shot in story.shots) and story.shots[0].kind == "still"
    assert {shot.kind for shot in story.shots} <= {"still", "event", *NOISES}
    scenes = [shot.scene for shot in story.shots]
    assert scenes == sorted(scenes) and max(scenes) < len(story.scenes) <= 3
    events = [shot for shot in story.shots if shot.kind == "event"]
    assert [shot.event for shot in events] == list(range(len(story.events))) and 1 <= len(
        events
    ) <= 2
    assert all(
        event.other in story.scenes[shot.scene].things[1:]
        for event, shot in zip(story.events, events)
    )
    assert all(scene.things[0][:2] == story.hero[:2] for scene in story.scenes)
    assert 4 <= story.seconds <= 12 and story.key_frames and story.key_frames[0] > 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_captions_say_who_did_what_in_few_words(number):
    story = make_story((0, number))
    captions = describe(story)
    assert len(captions) == 10 and captions == describe(story)
    for caption in captions:
        assert len(caption.split()) < 16 and f"a {story.hero.colour} " in caption
        assert caption == " ".join(caption.split()) and "{" not in caption and "/" not in caption
        for event in story.events:
            forms = [
                form.split(" {")[0]
                for verb in ACTIONS[event.action].verbs
                for form in verb.split("/")
            ]
            assert any(form in caption for form in forms)


def test_the_whole_vocabulary_is_small_and_used():
    words = {
        word
        for number in range(400)
        for caption in describe(make_story((1, number)))
        for word in caption.split()
    }
    assert 80 <= len(words) <= 150 and set(COLOURS) <= words


@pytest.mark.parametrize("beat", [0, 7.49, 14.5, 29])
def test_frames_are_pictures(beat):
    for number in range(20):
        frame = draw(make_story((2, number)), beat)
        assert frame.shape == (SIDE, SIDE, 3) and frame.dtype == np.uint8


def test_every_action_of_every_shape_is_seen_in_grey():
    "An event changes the glance much more than a change of light in the same scene does."
    story = example_story()
    still, event = (glance(torch.from_numpy(draw_clip(story)))[beat].float() for beat in (11, 12))
    for action in ACTIONS:
        for shape in SHAPES:
            for colour in COLOURS:
                hero = story.hero._replace(shape=shape, colour=colour)
                changed = story._replace(
                    hero=hero, events=(story.events[0]._replace(action=action), story.events[1])
                )
                event = glance(
                    torch.from_numpy(draw(changed, 12).transpose(2, 0, 1).copy())
                ).float()
                assert (event - still).abs().mean() > 12, (action, shape, colour)


def test_key_frames_survive_the_file(tmp_path):
    for number in range(6):
        story = make_story((3, number))
        frames = read_clip(write_clip(story, tmp_path/"clip.mp4"), 30, SIDE).frames
        drawn = torch.from_numpy(draw_clip(story)).float()
        other = torch.from_numpy(draw_clip(story)).float().roll(1, 0)
        error = (frames - drawn).abs().mean((1, 2, 3))
        shifted = (frames - other).abs().mean((1, 2, 3))
        assert error[story.key_frames].max() < 16 and error.mean() < shifted.mean()


def test_the_example_in_the_repository_is_the_example_story():
    path = ROOT/"data"/"example.mp4"
    assert path.stat().st_size < 120_000
    error = (
        (read_clip(path, 30, SIDE).frames - torch.from_numpy(draw_clip(example_story())).float())
        .abs()
        .mean((1, 2, 3))
    )
    assert (
        error[[beat for beat in range(30) if example_story().shot_at(beat).kind != "static"]].max()
        < 5
    )


def test_same_seed_same_world_whatever_the_workers(tmp_path):
    one = make_shapes(tmp_path/"one", 4, 1, 2, seed=5, workers=1, progress=False)
    two = make_shapes(tmp_path/"two", 4, 1, 2, seed=5, workers=3, progress=False)
    for file in (
        "captions.json",
        "world.json",
        *(f"videos/shapes{number:05d}.mp4" for number in range(7)),
    ):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert (
        make_shapes(tmp_path/"other", 4, 1, 2, seed=6, progress=False)/"captions.json"
    ).read_bytes() != (one/"captions.json").read_bytes()
    with pytest.raises(CorpusError, match="another folder"):
        make_shapes(one, 4, 1, 2, seed=6, progress=False)


def test_a_dead_worker_is_an_error_and_the_rest_is_kept(tmp_path, monkeypatch):
    import picknet_nb.world.world as world

    real = world.write_clip
    monkeypatch.setattr(
        world,
        "write_clip",
        lambda story, path: os._exit(3) if path.stem == "shapes00002" else real(story, path),
    )
    with pytest.raises(PickNetError, match="shapes00002.*exit status 3"):
        make_shapes(tmp_path/"world", 4, 1, 1, workers=1, progress=False)
    monkeypatch.setattr(world, "write_clip", real)
    assert (
        len(
            list(
                (make_shapes(tmp_path/"world", 4, 1, 1, progress=False)/"videos").glob("*.mp4")
            )
        )
        == 6
    )


def test_killed_at_random_moments_it_ends_with_the_same_corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "smoke", (8, 2, 3))
    undisturbed = prepare_shapes(tmp_path/"calm", "smoke", progress=False)
    dice = random.Random(0)
    struck = []
    there = lambda: len(list((tmp_path/"killed").rglob("*.*")))
    for _ in range(4):
        before, process = there(), Forked(prepare_shapes, tmp_path/"killed", "smoke", 0, False)
        # until it has begun to work
        while process.poll() is None and there() <= before:
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.15))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        struck.append(process.wait())
    assert struck[0] == -signal.SIGKILL
    resumed = prepare_shapes(tmp_path/"killed", "smoke", progress=False)
    assert torch.equal(resumed.features, undisturbed.features) and torch.equal(
        resumed.glances, undisturbed.glances
    )
    assert (
        resumed.captions == undisturbed.captions
        and resumed.ids == undisturbed.ids
        and torch.equal(resumed.words, undisturbed.words)
    )
    assert not (tmp_path/"killed"/"parts").exists()


def test_two_processes_prepare_one_world(tmp_path, monkeypatch):
    "One of them makes it, alone; the other waits and loads it."
    monkeypatch.setitem(SCALES, "smoke", (8, 2, 3))

    def prepare():
        corpus = prepare_shapes(tmp_path/"corpus", "smoke", progress=False)
        (tmp_path/f"corpus.{os.environ['RANK']}").write_text(str(len(corpus.ids)))
    both = Ranks(prepare)
    assert both.wait(240) == 0, both.output()
    assert [(tmp_path/f"corpus.{rank}").read_text() for rank in range(2)] == ["13", "13"]


def test_prepared_once_it_is_only_loaded(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "smoke", (3, 1, 1))
    first = prepare_shapes(tmp_path/"corpus", "smoke", progress=False)
    stamp = (tmp_path/"corpus"/"videos.safetensors").stat().st_mtime_ns
    again = prepare_shapes(tmp_path/"corpus", "smoke", progress=False)
    assert (
        torch.equal(first.features, again.features)
        and (tmp_path/"corpus"/"videos.safetensors").stat().st_mtime_ns == stamp
    )
    expected = [make_story((0, number)).key_frames for number in range(5)]
    assert again.details["key_frames"] == expected
    assert {split: len(videos) for split, videos in again.splits.items()} == {
        "train": 3,
        "validation": 1,
        "test": 1,
    }
    with pytest.raises(PickNetError, match="no preset 'huge'"):
        prepare_shapes(tmp_path/"corpus", "huge")


def test_the_settings_of_a_prepared_world(tmp_path, monkeypatch):
    for scale in ("smoke", "paper"):
        monkeypatch.setitem(SCALES, scale, (3, 1, 1))
    corpus = prepare_shapes(tmp_path/"corpus", "smoke", progress=False)
    assert corpus.settings == preset("smoke").clip and set(corpus.details) >= {
        "source",
        "seed",
        "key_frames",
    }
    feature = prepare_shapes(
        tmp_path/"corpus",
        "smoke",
        progress=False,
        settings=replace(corpus.settings, glance="feature", max_words=5),
    )
    assert feature.glances is feature.features and feature.words.shape[1] == 5
    with pytest.raises(CorpusError, match="was prepared with cnn 'tiny'"):
        prepare_shapes(
            tmp_path/"corpus",
            "smoke",
            progress=False,
            settings=replace(corpus.settings, cnn="resnet50"),
        )
    with pytest.raises(PickNetError, match="30 frames, not 8"):
        prepare_shapes(
            tmp_path/"corpus", "smoke", progress=False, settings=ClipSettings(frames=8)
        )
    large = prepare_shapes(tmp_path/"large", "paper", progress=False)
    assert large.settings == replace(preset("paper").clip, cnn="tiny")


def test_the_example_corpus_is_the_world_without_files():
    corpus = example_corpus(8)
    assert corpus.captions == [describe(make_story((0, number))) for number in range(8)]
    assert [len(corpus.splits[split]) for split in ("train", "validation", "test")] == [5, 1, 2]
    assert corpus.settings == preset("small").clip
    assert (
        torch.equal(corpus.features, example_corpus(8).features)
        and corpus.features.isfinite().all()
    )


def test_what_pickers_see():
    corpus = example_corpus(24)
    key_frames = corpus.details["key_frames"]
    oracle, rule = oracle_picks(key_frames), rule_of_thumb(corpus.glances)
    assert oracle[:, 0].all() and rule[:, 0].all() and oracle.sum(1).max() <= 7
    assert events_seen(key_frames, oracle) == 1 and events_seen(key_frames, rule) > 0.75
    uniform = torch.zeros_like(oracle)
    uniform[:, torch.linspace(0, 29, 6).round().long()] = True
    assert events_seen(key_frames, uniform) < 0.6
    assert json.loads(json.dumps(key_frames)) == key_frames


def test_the_notebook_of_the_method_knows_nothing_of_machinery():
    source = (ROOT/"picknet_nb"/"world"/"shapes.py").read_text()
    assert not [
        name
        for name in (
            "multiprocessing",
            "signal",
            "ctypes",
            "locked",
            "write_whole",
            "subprocess",
            "tempfile",
        )
        if name in source
    ]


def test_a_plain_story_has_one_sentence():
    "Five actions, in the order of events; the same stories whatever number is asked for."
    stories = plain_stories(3, 40)
    assert stories[:7] == plain_stories(3, 7)
    for story in stories:
        caption = plain_caption(story)
        assert caption.startswith(f"a {story.hero.colour} {story.hero.shape} ")
        verbs = [event.action for event in story.events]
        places = [caption.find(verb) for verb in verbs]
        assert places == sorted(places)
        assert all(verb in caption for verb in verbs) and len(caption.split()) <= 12
    assert len({event.action for story in stories for event in story.events}) == 5
