"""Captions of files and streams that people really have: odd names, odd shapes, broken, endless. One toy run serves all tests."""
import gc
import itertools
import json
import os
import shutil
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")
psutil = pytest.importorskip("psutil")

from picknet_nb import captioning
from picknet_nb.captioning import (Caption, Failure, Watcher, caption_clip, caption_strip, example_run, find_run, find_videos,
                                   lasting_frames, load_captioner, original_frames, render, save_strip, timely)
from picknet_nb.config import FileError, PickNetError
from picknet_nb.training import RunError, recipes
from picknet_nb.video import VideoError


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=4, epochs=25)
    return folder


@pytest.fixture(scope="module")
def captioner(toy):
    return load_captioner(toy/"run", device="cpu")


@pytest.fixture(scope="module")
def frames():
    "Frames of a scene that changes now and then, as long as anyone likes."
    blocks = torch.randint(0, 256, (12, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pictures = blocks.repeat_interleave(24, 2).repeat_interleave(24, 3).expand(-1, 3, -1, -1)

    def endless():
        for number in itertools.count():
            yield pictures[number // 10 % 12]
    return endless


def film(path, width=96, height=96, total=20, rate=10):
    "A bright bar that wanders over a dark picture."
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(total):
            picture = np.full((height, width, 3), 30, np.uint8)
            picture[:, number * width // total:(number + 1) * width // total] = 220
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize("shape", [dict(width=96, height=240), dict(width=320, height=96), dict(width=3840, height=2160, total=3), dict(total=2), dict(total=1)],
                         ids=["vertical", "wide", "4K", "two frames", "one frame"])
def test_every_shape_of_video_gets_a_caption_a_strip_and_a_rendering(captioner, tmp_path, shape):
    caption = captioner.caption(film(tmp_path/"film.mp4", **shape), beam=2, best=2)
    assert caption.text and len(caption.n_best) == 2 and caption.picked[0] == 0 and len(caption.probabilities) == 30
    images = caption_strip(caption).axes[0].images
    left, right, bottom, top = images[0].get_extent()
    assert len(images) == 30 and abs((right - left) / (bottom - top) - shape.get("width", 96) / shape.get("height", 96)) < 0.02
    for kind in ("gif", "mp4"):
        made = render(caption, tmp_path/f"out.{kind}", rate=4)
        with av.open(str(made)) as container:
            width, height = container.streams.video[0].width, container.streams.video[0].height
        asked = shape.get("width", 96) / shape.get("height", 96)
        assert asked * 0.5 < width / height <= asked and width <= 720  # the caption stands beneath


@pytest.mark.parametrize("name", ["a film with spaces.mp4", "кино 映画 فيلم.mp4", "-dash.mp4", "100%.mp4", "a:b?.mp4", "'quoted\".mp4"])
def test_odd_names(captioner, toy, tmp_path, name):
    path = tmp_path/name
    shutil.copy(toy/"videos"/"example.mp4", path)
    caption = captioner.caption(path)
    assert caption.text == captioner.caption(toy/"videos"/"example.mp4").text
    assert json.loads(json.dumps(caption.to_dict()))["source"] == str(path)
    assert render(caption, tmp_path/f"{name}.gif", rate=2).exists()


def test_what_is_no_video_is_refused_in_one_line(captioner, tmp_path):
    (tmp_path/"text.mp4").write_text("some words")
    (tmp_path/"empty.mp4").touch()
    wrong = {"text.mp4": "not a video", "empty.mp4": "is empty", "": "is a folder", "missing.mp4": "no such file"}
    for name, reason in wrong.items():
        with pytest.raises(VideoError, match=reason) as refused:
            captioner.caption(tmp_path/name)
        assert "\n" not in str(refused.value)
    with pytest.raises(VideoError, match="picknet stream"):
        captioner.caption("https://example.org/film.mp4")
    with pytest.raises(PickNetError, match="between 0 and 1"):
        captioner.caption(film(tmp_path/"film.mp4"), threshold=1.5)
    with pytest.raises(PickNetError, match="1 or more"):
        captioner.caption(tmp_path/"film.mp4", beam=0)
    with pytest.raises(VideoError, match="no video in this folder"):
        find_videos([tmp_path.joinpath("nothing").mkdir() or tmp_path/"nothing"])


def test_run_folders_that_cannot_be_used(toy, tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        load_captioner(tmp_path/"missing")
    with pytest.raises(RunError, match="holds no trained run"):
        load_captioner(tmp_path)
    for name in ("weights.safetensors", "config.json", "vocabulary.json"):
        broken = shutil.copytree(toy/"run", tmp_path/name)
        (broken/name).unlink()
        with pytest.raises(FileError, match=name.split(".")[0]):
            load_captioner(broken)
    other = shutil.copytree(toy/"run", tmp_path/"other")
    details = json.loads((other/"run.json").read_text())
    (other/"run.json").write_text(json.dumps(details | {"details": details["details"] | {"cnn": "resnet18"}}))
    with pytest.raises(RunError, match="resnet18 makes 512"):
        load_captioner(other, weights="random")


def copy_run(run: Path, to: Path, age: int, row: str | None = None) -> Path:
    "A run of another age, and of another row of the table."
    shutil.copytree(run, to)
    os.utime(to/"weights.safetensors", (10**9 - age,) * 2)
    about = json.loads((to/"run.json").read_text())
    (to/"run.json").write_text(json.dumps(about | ({"recipe": asdict(recipes()[row])} if row else {})))
    return to


def test_the_paper_s_method_is_found_before_newer_runs(toy, tmp_path):
    for age, name in enumerate(("Uniform", "PickNet (V+L)", "Baseline")):
        copy_run(toy/"run", tmp_path/"runs"/name, age, name)
    assert find_run(tmp_path/"runs").name == "PickNet (V+L)"
    shutil.rmtree(tmp_path/"runs"/"PickNet (V+L)")
    assert find_run(tmp_path).name == "Uniform"


def test_runs_of_ones_own_are_found_beside_those_of_reproduce(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(captioning, "data_folder", lambda: tmp_path/"data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="data/runs: no such folder"):
        find_run()
    copy_run(toy/"run", tmp_path/"data"/"runs"/"a", 0)
    copy_run(toy/"run", tmp_path/"data"/"runs"/"picknet-v-l", 9, "PickNet (V+L)")
    mine = copy_run(toy/"run", tmp_path/"runs"/"mine", 5, "PickNet (V+L)")
    assert find_run().resolve() == mine
    (mine/"run.json").write_text("[]")  # whoever asks for it hears what is wrong
    assert find_run().name == "picknet-v-l"


def test_hidden_files_are_no_videos_and_links_to_nothing_are_left_out(captioner, toy, tmp_path):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    for hidden in ("._a.mp4", ".trash/b.mp4"):
        (tmp_path/hidden).parent.mkdir(exist_ok=True)
        (tmp_path/hidden).write_bytes(b"no film")
    (tmp_path/"gone.mp4").symlink_to(tmp_path/"nowhere.mp4")
    caption, failure = captioner.caption_many(find_videos([tmp_path]))
    assert caption.source == str(tmp_path/"a.mp4") and failure == Failure(str(tmp_path/"gone.mp4"), "no such file")


def test_a_folder_of_fifty_goes_on_past_a_broken_file(captioner, toy, tmp_path):
    for number in range(50):
        os.link(toy/"videos"/"example.mp4", tmp_path/f"{number:02d}.mp4") if number != 17 else (tmp_path/"17.mp4").write_bytes(b"broken")
    results = list(captioner.caption_many(find_videos([tmp_path]), running=False))
    assert [Path(result.source).stem for result in results] == [f"{number:02d}" for number in range(50)]
    failures = [result for result in results if isinstance(result, Failure)]
    assert [Path(failure.source).stem for failure in failures] == ["17"] and failures[0].to_dict()["error"] == failures[0].reason
    said = {result.text for result in results if isinstance(result, Caption)}
    assert said == {captioner.caption(toy/"videos"/"example.mp4").text}


def test_a_caption_from_the_file_is_the_one_from_the_corpus(captioner, toy):
    from picknet_nb.captioning import examples_corpus
    from picknet_nb.training import load_run
    from picknet_nb.training import caption_videos

    model, config, vocabulary, _ = load_run(toy/"run")
    corpus = examples_corpus(toy/"videos", json.loads((toy/"videos"/"captions.json").read_text()), config)
    words, picks = caption_videos(model, corpus, corpus.splits["train"], config)
    for name, text, chosen in zip(corpus.ids, vocabulary.decode(words), picks):
        caption = captioner.caption(toy/"videos"/f"{name}.mp4")
        assert caption.text == text and caption.picked == chosen.nonzero().flatten().tolist()


def test_other_pickers_and_feature_glances(captioner, toy):
    clip, _ = captioner.read(toy/"videos"/"example.mp4")
    for picker, count in {"uniform-6": 6, "kmeans-4": 4, "all": 30}.items():
        assert len(caption_clip(clip, replace(captioner.eye, picker=picker), captioner.voice).picked) == count
    from picknet_nb.policy import Policy
    torch.manual_seed(0)
    eye = replace(captioner.eye, policy=Policy(captioner.eye.cnn.dims, 16), glance_size=0)
    caption = caption_clip(clip, eye, captioner.voice)
    watcher = Watcher(eye, captioner.voice)
    remarks = [remark for number, frame in enumerate(clip.frames) if (remark := watcher.see(number, frame))]
    assert [remark.frame for remark in remarks] == caption.picked and [remark.text for remark in remarks] == caption.captions
    with pytest.raises(PickNetError, match="a stream has no end"):
        Watcher(replace(captioner.eye, picker="uniform-6"), captioner.voice)


def test_an_hour_in_flat_memory_with_the_captions_of_the_same_picks_offline(captioner, frames):
    process, weights, remarks = psutil.Process(), [], []

    def weighed():
        for number, frame in enumerate(itertools.islice(frames(), 3600)):
            if number % 300 == 0:
                gc.collect()
                weights.append(process.memory_info().rss)
            yield frame

    for remark in captioner.stream(weighed()):
        remarks.append(remark)
    assert 100 < len(remarks) < 1200 and remarks[-1].time <= 3599
    assert max(weights[2:]) < 1.05 * weights[2]
    picked = torch.stack([next(itertools.islice(frames(), remark.frame, None)) for remark in remarks[:40]])
    features = captioner.eye.features(picked)
    for k in (1, 2, 7, 40):
        words = captioner.voice.captioner.caption(features[None, :k], torch.ones(1, k, dtype=torch.bool), captioner.voice.max_words)
        assert captioner.voice.vocabulary.decode(words) == [remarks[k - 1].text]


def test_a_source_that_stalls_is_given_up(captioner, frames):
    released = threading.Event()

    def stalling():
        yield from itertools.islice(frames(), 3)
        released.wait(20)

    stream = captioner.stream(stalling(), time_limit=0.3)
    assert next(stream).time == 0
    started = time.monotonic()
    with pytest.raises(VideoError, match="no frame for 0.3 seconds"):
        list(stream)
    assert time.monotonic() - started < 10
    released.set()


def test_a_live_source_is_opened_again_and_time_goes_on(captioner, frames):
    opened = []

    def camera():
        opened.append(time.monotonic())
        yield from itertools.islice(frames(), 5)
        if len(opened) < 3:
            raise ConnectionError("the line dropped")

    times = [time for time, _ in lasting_frames(camera, size=96, pause=0.2)]
    assert len(opened) == 3 and len(times) == 15
    assert all(later > earlier for earlier, later in zip(times, times[1:]))
    assert times[5] >= times[4] + 0.2


def test_a_live_source_that_stays_away_is_given_up(frames):
    opened = []

    def camera():
        opened.append(1)
        if len(opened) > 1:
            raise ConnectionError("nobody there")
        yield from itertools.islice(frames(), 2)
        raise ConnectionError("the line dropped")

    with pytest.raises(ConnectionError, match="nobody there"):
        list(lasting_frames(camera, size=96, pause=0.01, retries=3))
    assert len(opened) == 4


def test_an_address_nobody_serves_fails_at_once(captioner):
    started = time.monotonic()
    with pytest.raises(VideoError):
        list(captioner.stream("http://127.0.0.1:9/film.mp4", time_limit=5.0))
    assert time.monotonic() - started < 10


def test_an_abandoned_stream_leaves_no_thread(captioner, frames):
    before = threading.active_count()
    stream = captioner.stream(frames())
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before


def test_errors_of_a_source_reach_the_one_who_listens():
    def broken():
        yield 1
        raise ZeroDivisionError("mine")

    items = timely(broken(), 5.0)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(items)


def test_a_rendering_that_fails_leaves_nothing_behind(captioner, toy, tmp_path):
    caption = captioner.caption(toy/"videos"/"example.mp4")
    gone = replace(caption, source=str(tmp_path/"gone.mp4"))
    with pytest.raises(FileError):
        render(gone, tmp_path/"out.mp4")
    (tmp_path/"file").touch()
    with pytest.raises(FileError, match="out.gif: cannot be written"):
        render(caption, tmp_path/"file"/"out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_are_made_for_what_is_drawn(captioner, toy, tmp_path):
    caption = captioner.caption(toy/"videos"/"example.mp4")
    assert render(caption, tmp_path/"one"/"two"/"out.gif", rate=1, largest=64).exists()
    assert save_strip(caption, tmp_path/"three"/"strip.PDF").read_bytes().startswith(b"%PDF")
    with pytest.raises(VideoError, match="strip.txt: the name of a strip must end in .png"):
        save_strip(caption, tmp_path/"strip.txt")
    (tmp_path/"file").touch()
    with pytest.raises(FileError, match="strip.png: cannot be written"):
        save_strip(caption, tmp_path/"file"/"strip.png")


def test_a_slow_video_keeps_its_length(tmp_path):
    path = film(tmp_path/"slow.mp4", total=6, rate=2)  # three seconds
    times = [time for time, _ in original_frames(path, rate=8, largest=96)]
    assert times == [tick / 8 for tick in range(21)]


def test_a_run_on_weights_of_ones_own_asks_for_them_instead_of_fetching_others(toy, tmp_path, monkeypatch):
    run = shutil.copytree(toy/"run", tmp_path/"run")
    about = json.loads((run/"run.json").read_text())
    about["details"] |= {"cnn": "resnet18", "weights": "my net.pth 0123456789ab"}
    (run/"run.json").write_text(json.dumps(about))
    monkeypatch.setattr("picknet_nb.features._download_weights", lambda name: pytest.fail("nothing should be fetched"))
    with pytest.raises(RunError, match=r"made with my net.pth \(0123456789ab\): give that file by --weights"):
        load_captioner(run, device="cpu")
