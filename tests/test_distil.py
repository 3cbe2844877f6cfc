"""tools/distil.py: a student learns from a teacher, and a run that was stopped ends with the
weights of one that was not. The tool is used once for each student: daily it trains once."""
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_script
from PIL import Image

from picknet_nb.data.backbones import load_backbone, read_weights
from picknet_nb.world.world import write_examples

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def distil():
    tool = load_script(ROOT/"tools"/"distil.py")
    tool.SIDE = 64  # of crops: quick, and the network takes any side
    return tool


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    "Twelve pictures of two colours, and one that is broken."
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for number in range(12):
        image = Image.new("RGB", (90 + 5 * number, 80), tuple(draw.integers(0, 256, 3).tolist()))
        image.paste(tuple(draw.integers(0, 256, 3).tolist()), (10, 10, 50 + number, 40))
        image.save(folder/f"{number}.{('jpg', 'png')[number % 2]}")
    (folder/"broken.jpg").write_bytes(b"not a picture")
    return folder


@pytest.fixture
def run(distil, pictures, tmp_path):
    "Run the command with a few steps and a teacher of random filters."
    def start(name: str, flags=(), **more):
        options = {"--pictures": pictures, "--teacher": "tiny", "--student-weights": "random",
                   "--steps": 16, "--batch": 6, "--warm": 2, "--rate": 3e-3, "--statistics": 24,
                   "--workers": 0, **{f"--{key.replace('_', '-')}": more[key] for key in more}}
        distil.main([str(tmp_path/name), *flags,
                     *(str(each) for pair in options.items() for each in pair)])
        return read_weights(tmp_path/name)
    return start


class Stopped(Exception): pass


def stop(*_): raise Stopped


@pytest.mark.long
@pytest.mark.parametrize("how", [[], ["--in-memory"]], ids=["as they come", "in memory"])
def test_a_stopped_run_ends_with_the_weights_of_one_that_was_not(run, distil, tmp_path, monkeypatch,
                                                                 capsys, how):
    run = partial(run, flags=how)
    whole, notes = run("whole.safetensors")
    assert not list(tmp_path.glob("*.checkpoint"))
    assert notes["teacher"] == "tiny, seed 0" and notes["pictures"] == "13"
    assert "skipped" in capsys.readouterr().err  # the broken one
    learn, steps = distil.Distillation.learn_from, []

    def learn_until_stopped(course, pixels):
        if course.step == 7:
            course.save()
            raise Stopped
        steps.append(course.step)
        return learn(course, pixels)

    monkeypatch.setattr(distil.Distillation, "learn_from", learn_until_stopped)
    with pytest.raises(Stopped):
        run("stopped.safetensors")
    assert steps == list(range(7)) and not (tmp_path/"stopped.safetensors").exists()
    monkeypatch.setattr(distil.Distillation, "learn_from", learn)
    resumed, _ = run("stopped.safetensors")
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_the_loss_falls_and_the_file_is_a_backbone(distil, run, tmp_path, monkeypatch):
    courses = []
    kept = distil.Distillation.run
    monkeypatch.setattr(distil.Distillation, "run",
                        lambda course: (courses.append(course), kept(course)))
    weights, _ = run("student.safetensors", steps=24)
    losses = courses[0].losses
    assert len(losses) == 24 and sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert weights["project.weight"].shape == (256, 1280)  # of the teacher


@pytest.mark.long
def test_a_student_goes_on_where_a_former_one_ended(distil, run, tmp_path, monkeypatch):
    courses, kept = [], distil.Distillation.run
    monkeypatch.setattr(distil.Distillation, "run",
                        lambda course: (courses.append(course), kept(course)))
    run("first.safetensors", steps=24)
    run("second.safetensors", steps=24, student_weights=tmp_path/"first.safetensors")
    first, second = (course.losses for course in courses)
    assert second[0] < 0.7 * first[0]  # before its first step


@pytest.mark.long
def test_the_student_of_clip_is_read_as_lite0_clip(distil, pictures, tmp_path, monkeypatch):
    "With a small tower of random weights as the teacher, 1,536 features."
    from picknet_nb.data import clip
    for name, value in zip(clip.SIZES, (768, 2, 1, 112)):  # width, heads, depth, patch
        monkeypatch.setitem(clip.SIZES, name, value)
    distil.main([str(tmp_path/"student.safetensors"), "--pictures", str(pictures), "--steps", "1",
                 "--teacher-weights", "random", "--student-weights", "random", "--batch", "4",
                 "--statistics", "4", "--workers", "0"])
    made = load_backbone("lite0-clip", tmp_path/"student.safetensors")
    assert made(torch.zeros(1, 3, 50, 60, dtype=torch.uint8)).shape == (1, 1536)


@pytest.mark.long
def test_another_run_does_not_go_on_with_a_checkpoint(run, distil, tmp_path, monkeypatch, capsys):
    learn = distil.Distillation.learn_from
    monkeypatch.setattr(distil.Distillation, "learn_from", stop)
    monkeypatch.setattr(distil.Distillation, "__init__", saved(distil.Distillation.__init__))
    with pytest.raises(Stopped):
        run("one.safetensors")
    monkeypatch.setattr(distil.Distillation, "learn_from", learn)
    with pytest.raises(SystemExit, match="begun with another rate: 0.003, not 0.01"):
        run("one.safetensors", rate=0.01)
    (tmp_path/"one.safetensors.checkpoint").write_bytes(b"damaged")
    with pytest.raises(SystemExit, match="one.safetensors.checkpoint: cannot be read"):
        run("one.safetensors")


def saved(begin):
    "A beginning that writes a checkpoint at once."
    def begin_and_save(course, *how):
        begin(course, *how)
        course.save()
    return begin_and_save


def test_a_whole_picture_in_memory_is_the_picture_resized(distil, pictures, monkeypatch):
    paths = sorted(pictures.glob("[0-9]*"))
    whole = torch.tensor([[0.0, 0, 1, 1]])
    monkeypatch.setattr(distil, "random_boxes", lambda count, _: whole.repeat(count, 1))
    crops = distil.CropsInMemory(paths, 24, 0, 0, "cpu")
    [(found, _), (second, _)] = crops.batches(0, 12, 0)
    assert found.shape == (12, 3, 64, 64) and found.dtype == torch.uint8
    assert not torch.equal(found, second)  # another order, other flips
    small = crops.pixels.float().view(12, 3, 64, 4, 64, 4)[:, :, :, 1:3, :, 1:3].mean((3, 5))
    for place, crop in enumerate(found.float()):
        picture = small[crops.order(place)]
        assert min((crop - picture).abs().max(), (crop - picture.flip(2)).abs().max()) <= 1


def test_random_boxes_lie_inside_the_picture_and_have_the_wanted_areas(distil):
    across, down, wide, tall = distil.random_boxes(2000, torch.Generator().manual_seed(0)).unbind(1)
    assert (across.abs() + wide).max() <= 1 + 1e-6 and (down.abs() + tall).max() <= 1 + 1e-6
    area = wide * tall
    assert 0.39 < area.min() < 0.45 and 0.95 < area.max() <= 1 + 1e-6
    assert across.std() > 0.05 and down.std() > 0.05


@pytest.mark.long
def test_held_out_pictures_are_measured_on_and_not_learned_from(run, capsys):
    _, notes = run("apart.safetensors", flags=["--in-memory"], held_out=4)
    assert notes["pictures"] == "9"
    assert -1 <= float(notes["cosine on held-out pictures"]) <= 1
    assert "cosine on held-out pictures" in capsys.readouterr().out


def test_teacher_and_student_see_the_same_crops_whatever_the_process(distil, pictures):
    paths = sorted(pictures.glob("[0-9]*"))
    crops, again = (distil.Crops(paths, 30, seed=3) for _ in range(2))
    backwards = [again[place] for place in reversed(range(30))][::-1]
    torch.manual_seed(9)
    before = torch.get_rng_state()
    assert all(torch.equal(crops[place], backwards[place]) for place in range(30))
    assert torch.equal(torch.get_rng_state(), before)
    seen = [crops.picture_at(place) for place in range(24)]
    assert sorted(seen[:12]) == sorted(seen[12:]) == paths and seen[:12] != seen[12:]
    other = distil.Crops(paths, 30, seed=4)
    assert not all(torch.equal(crops[place], other[place]) for place in range(12))


def test_frames_of_clips_are_written_once(distil, tmp_path, monkeypatch):
    write_examples(tmp_path/"clips", 2)
    (tmp_path/"clips"/"broken.mp4").write_bytes(b"not a video")
    made = distil.frames_of([tmp_path/"clips"], tmp_path/"frames", 3, 1)
    assert len(made) == 6 and Image.open(made[0]).size == (256, 256)
    asked = []
    monkeypatch.setattr(distil, "decode_files", lambda todo, *_: asked.extend(todo) or iter(()))
    assert distil.frames_of([tmp_path/"clips"], tmp_path/"frames", 3, 1) == made
    assert [path.name for _, path in asked] == ["broken.mp4"]


def test_nothing_to_learn_from_is_one_sentence(distil, tmp_path):
    with pytest.raises(SystemExit, match="--pictures or --clips"):
        distil.main([str(tmp_path/"out.safetensors"), "--teacher", "tiny"])
    with pytest.raises(SystemExit, match="no such folder"):
        distil.main([str(tmp_path/"out.safetensors"), "--teacher", "tiny",
                     "--pictures", str(tmp_path/"none")])
