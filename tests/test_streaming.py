"""Streams that last, stall, break and end; and memory that does not grow while they are watched."""
import gc
import itertools
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("av")
psutil = pytest.importorskip("psutil")

from reliability import run_process, wait_for
from toys import Looker, endless_frames, invoked, store_run

from picknet_nb.core.files import PickNetError
from picknet_nb.data.video_files import VideoError
from picknet_nb.method.captioner import CAPTIONERS, caption
from picknet_nb.method.pickers import PICKERS, make_picker
from picknet_nb.training.models import example_run
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.scenes import Scene
from picknet_nb.use.streams import Memory, Watcher, lasting_frames, timely, watch


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=4)
    return folder


@pytest.fixture(scope="module")
def captioner(toy):
    return load_captioner(toy/"run", device="cpu")


@pytest.fixture
def frames():
    return endless_frames


def test_an_hour_in_flat_memory_with_the_captions_of_the_same_picks_offline(captioner, frames):
    process, weights, remarks = psutil.Process(), [], []

    def weighed():
        for number, frame in enumerate(itertools.islice(frames(), 3600)):
            if number % 300 == 0:
                gc.collect()
                weights.append(process.memory_info().rss)
            yield frame

    for remark in watch(captioner, weighed(), forget=False):
        remarks.append(remark)
    assert 100 < len(remarks) < 1200 and remarks[-1].time <= 3599
    assert max(weights[2:]) < 1.05 * weights[2]
    picked = torch.stack(
        [next(itertools.islice(frames(), remark.frame, None)) for remark in remarks[:40]]
    )
    features = captioner.features(picked)
    for k in (1, 2, 7, 40):
        words = caption(
            captioner.captioner,
            features[None, :k],
            torch.ones(1, k, dtype=torch.bool),
            captioner.max_words,
        )
        assert captioner.vocabulary.decode(words) == [remarks[k - 1].text]


def test_a_source_that_stalls_is_given_up(captioner, frames):
    released = threading.Event()

    def stalling():
        yield from itertools.islice(frames(), 3)
        released.wait()

    stream = watch(captioner, stalling(), time_limit=0.3)
    assert next(stream).time == 0
    with pytest.raises(VideoError, match="no frame for 0.3 seconds"):
        list(stream)
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


def test_failures_are_forgotten_once_frames_arrive_again(frames):
    "A camera that breaks now and then lasts for ever: only failures in a row are counted."
    opened = []

    def camera():
        opened.append(1)
        yield from itertools.islice(frames(), 2)
        if len(opened) < 5:
            raise ConnectionError("the line dropped")

    assert len(list(lasting_frames(camera, size=96, pause=0.0, retries=1))) == 10


def test_an_address_nobody_serves_fails_before_its_time_limit(captioner):
    with pytest.raises(VideoError) as error:
        list(watch(captioner, "http://127.0.0.1:9/film.mp4", time_limit=600.0))
    assert "seconds" not in str(error.value)


def test_an_abandoned_stream_leaves_no_thread(captioner, frames):
    before = threading.active_count()
    stream = watch(captioner, frames())
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    wait_for(lambda: threading.active_count() == before)


def test_errors_of_a_source_reach_the_one_who_listens():
    def broken():
        yield 1
        raise ZeroDivisionError("mine")

    items = timely(broken(), 5.0)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(items)


def test_a_stream_needs_a_policy(captioner):
    with pytest.raises(PickNetError, match="a stream has no end, so uniform-6 cannot choose"):
        Watcher(replace(captioner, picker=make_picker("uniform", 6)))
    for rate in (0, float("inf"), float("nan")):
        with pytest.raises(PickNetError, match="rate must be more than 0"):
            next(captioner.stream([], rate=rate))


def test_a_stream_forgets_where_the_scene_changes(captioner, toy):
    "After a cut the remarks are those of a stream that begins there."
    clip = captioner.read(toy/"videos"/"example.mp4").frames
    dark, bright = clip[:10] // 3, clip[10:20] // 3 + 160
    remarks = lambda frames, **how: [
        (each.frame, each.text) for each in captioner.stream(frames, **how)]
    assert Scene().begins(dark[0]) is False
    alone = [(frame + 10, text) for frame, text in remarks(bright)]
    joined = remarks([*dark, *bright])
    assert [each for each in joined if each[0] >= 10] == alone and alone[0][0] == 10
    kept = remarks([*dark, *bright], forget=False)
    assert [each for each in kept if each[0] >= 10] != alone


def test_a_picker_without_a_policy_has_no_threshold(captioner, monkeypatch):
    @PICKERS.add("every", causal=True, looks_at="glances", random=False)
    def every():
        return lambda clips: torch.ones(clips.glances.shape[:2], dtype=torch.bool)

    monkeypatch.setitem(PICKERS, "every", PICKERS.pop("every"))  # gone when the test has ended
    model = replace(captioner, picker=make_picker("every"))
    assert Watcher(model).see(0.0, next(endless_frames())).text
    with pytest.raises(PickNetError, match="every picks without a policy, so it has no threshold"):
        Watcher(model.picking(0.99))


def test_both_openers_give_the_same_remarks(captioner, toy):
    path = toy/"videos"/"example.mp4"
    plain = list(captioner.stream(path, rate=3.0))
    lasting = list(watch(captioner, path, rate=3.0))
    assert [(each.time, each.frame, each.text) for each in plain] == [
        (each.time, each.frame, each.text) for each in lasting
    ]


def test_a_captioner_that_cannot_grow_says_of_a_stream_what_it_says_of_the_file(
    toy, tmp_path, monkeypatch
):
    monkeypatch.setitem(CAPTIONERS, "looker", Looker)
    mine = load_captioner(
        store_run(tmp_path/"run", toy/"videos", architecture="looker"), device="cpu"
    )
    clip = mine.read(toy/"videos"/"example.mp4")
    offline = mine.caption(toy/"videos"/"example.mp4")
    remarks = list(mine.stream(clip.frames, forget=False))
    assert [remark.frame for remark in remarks] == offline.picked and [
        remark.text for remark in remarks
    ] == offline.captions
    *_, last = watch(mine, iter(clip.frames), window=2, forget=False)
    assert last.frame == offline.picked[-1]


def test_a_captioner_that_cannot_grow_remembers_so_much_and_no_more():
    seen = []

    class Counting(torch.nn.Module):
        def encode(self, picked):
            seen.append((picked.features.shape[1], picked.times[0, [0, -1]].tolist()))

    memory, short = Memory(Counting()), Memory(Counting(), window=2)
    for place in range(100):
        memory.add(torch.zeros(1, 4), place * 3)
    assert seen[9] == (10, [0, 27]) and seen[-1] == (64, [0, 63 * 3])
    for place in (5, 8, 20):
        short.add(torch.zeros(1, 4), place)
    assert seen[-1] == (2, [0, 12])


INTERRUPTED = """
import os, random, signal, sys, time
import torch
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.streams import watch
captioner, ends, chance = load_captioner(sys.argv[1], device="cpu"), [], random.Random(0)

def camera():
    while True:  # large frames, which take torch a while to make small
        yield torch.zeros(3, 1500, 1500, dtype=torch.uint8)

def file():
    while True: yield sys.argv[2]

for number in range(int(sys.argv[3])):
    told, tell = os.pipe()
    child = os.fork()
    if not child:  # a program that somebody interrupts: it ends as any program does
        try:
            for source in (file() if number % 2 else [camera]):
                seen = watch(captioner.picking(0.0), source, rate=100.0)
                for count, remark in enumerate(seen):
                    if count == 0: os.write(tell, b"x")
        except KeyboardInterrupt:
            sys.exit(130)
    os.read(told, 1)
    time.sleep(chance.random() * 0.2)
    os.kill(child, signal.SIGINT)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ends)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks a program that has begun to watch")
def test_ctrl_c_ends_a_stream_and_not_the_interpreter_under_it(toy):
    "Eight times, at any moment: exit status 130, never a signal."
    done = run_process(
        [sys.executable, "-c", INTERRUPTED, toy/"run", toy/"videos"/"example.mp4", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.strip() == str([130] * 8), done.stdout + done.stderr[-2000:]
    assert "terminate called" not in done.stderr


@pytest.mark.parametrize("source", ["²", "①", "1²"])
def test_what_is_a_digit_but_no_number_is_the_name_of_a_file(toy, source):
    outcome = invoked("stream", source, "--model", toy/"run")
    assert outcome.exit_code == 1 and isinstance(outcome.exception, (PickNetError, SystemExit))
    assert f"{source}: no such file" in f"{outcome.exception} {outcome.output}"
