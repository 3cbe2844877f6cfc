"""Videos that cannot be told as a story: broken, hostile, endless, in odd formats. Each test
draws its own file."""

import errno
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from fractions import Fraction
from itertools import count, islice
from multiprocessing.reduction import ForkingPickler
from time import monotonic

import numpy as np
import psutil
import pytest
import torch
from conftest import Forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability import MOST_MEMORY, peak_memory

from picknet_nb.core import figures
from picknet_nb.core.figures import show_frames
from picknet_nb.core.files import PickNetError
from picknet_nb.data import video, video_files
from picknet_nb.data.glance import glance, resize
from picknet_nb.data.video import read_clip, spaced, stream_frames
from picknet_nb.data.video_files import VideoError
from picknet_nb.training.models import find_model
from picknet_nb.use import drawing
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.drawing import original_frames, render

av = pytest.importorskip("av")
SIDE = 64


def draw(
    path,
    total=40,
    codec="libx264",
    pixels="yuv420p",
    stamps=None,
    side=SIDE,
    container=None,
    **options,
):
    "Frames that grow brighter, with a white block in the upper left corner."
    with av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream(
            codec, rate=25, options={key: str(value) for key, value in options.items()}
        )
        stream.width = stream.height = side
        stream.pix_fmt, stream.codec_context.time_base = pixels, Fraction(1, 100)
        for i in range(total):
            picture = np.full((side, side, 3), 20 + 200 * i // total, np.uint8)
            picture[: side // 4, : side // 4] = 255
            frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=pixels)
            frame.pts, frame.time_base = stamps[i] if stamps else 4 * i, Fraction(1, 100)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def add_sound(path, total=40):
    "A clip with a sound track."
    with av.open(str(path), "w", options={"movflags": "faststart"}) as output:
        picture, sound = output.add_stream("mpeg4", rate=25), output.add_stream("aac", rate=8000)
        picture.width = picture.height = SIDE
        picture.pix_fmt = "yuv420p"
        for i in range(total):
            noise = np.random.RandomState(i).randint(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)
            output.mux(picture.encode(av.VideoFrame.from_ndarray(noise, "rgb24")))
            tone = av.AudioFrame.from_ndarray(
                np.random.RandomState(i).rand(1, 320).astype(np.float32), "fltp", "mono"
            )
            tone.rate, tone.pts = 8000, 320 * i
            output.mux(sound.encode(tone))
        output.mux(picture.encode())
        output.mux(sound.encode())
    return path


def sound_only(path):
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=8000)
        tone = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
        tone.rate = 8000
        output.mux(stream.encode(tone))
        output.mux(stream.encode())
    return path


def brightness(clip):
    return clip.frames[:, 0, -1, -1].int().tolist()


def refusal(job):
    with pytest.raises(VideoError) as caught:
        job()
    return caught.value


# bad files
# --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(av.filter.Graph, "threads"), reason="this PyAV lets us not choose")
def test_a_scaler_starts_no_threads(tmp_path):
    "PyAV 19 would keep them until garbage is collected: thirty clips then fill a decoder's memory."
    draw(tmp_path/"clip.mp4", total=3)
    with av.open(str(tmp_path/"clip.mp4")) as container:
        container.streams.video[0].codec_context.thread_count = 1
        frame, before = next(container.decode(video=0)), psutil.Process().num_threads()
        scaler = video._scaler(frame, 32)
        scaler.push(frame)
        assert scaler.pull().width == 32 and psutil.Process().num_threads() == before


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("missing", "no such file"),
        ("folder", "folder"),
        ("empty", "empty"),
        ("text", "not a video"),
        ("sound", "no video"),
        ("header", ""),
        ("pipe", "not a regular file"),
        ("nul", "cannot be read"),
    ],
)
@pytest.mark.parametrize(
    "read", [read_clip, lambda path: list(stream_frames(path))], ids=["clip", "stream"]
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path, kind, reason, read):
    path = tmp_path/f"{kind}.mp4"
    if kind == "folder":
        path.mkdir()
    if kind == "empty":
        path.touch()
    if kind == "text":
        path.write_text("a diary, not a video\n" * 50)
    if kind == "sound":
        sound_only(path)
    if kind == "header":
        path.write_bytes(draw(tmp_path/"whole.mp4").read_bytes()[:1000])
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "nul":
        path = f"{path}\0.mp4"
    error = refusal(lambda: read(path))
    assert error.path == str(path) and reason in error.reason


@pytest.mark.parametrize(
    "name, how",
    [
        ("clip.mp4", {}),
        ("clip.mp4", {"container": {"movflags": "faststart"}}),
        ("clip.mp4", {"container": {"movflags": "frag_keyframe+empty_moov"}}),
        ("clip.mov", {}),
        ("clip.avi", {"codec": "mpeg4"}),
        ("clip.mkv", {}),
        ("clip.webm", {"codec": "libvpx-vp9"}),
    ],
    ids=["mp4", "faststart", "fragments", "mov", "avi", "mkv", "webm"],
)
def test_a_truncated_video_is_refused(tmp_path, name, how):
    path, cut = draw(tmp_path / name, **how), tmp_path/f"cut_{name}"
    whole = path.read_bytes()
    assert len(read_clip(path, 5, 32).frames) == 5
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999):
        cut.write_bytes(whole[: int(len(whole) * share)])
        assert refusal(lambda: read_clip(cut)).path == str(cut)


def test_a_truncated_file_with_sound_is_refused(tmp_path):
    whole = add_sound(tmp_path/"sound.mp4").read_bytes()
    assert len(read_clip(tmp_path/"sound.mp4", 7).frames) == 7
    for share in (0.3, 0.6, 0.9):
        (cut := tmp_path/"cut.mp4").write_bytes(whole[: int(len(whole) * share)])
        assert "truncated" in refusal(lambda: read_clip(cut)).reason


def test_bytes_behind_the_end_do_no_harm(tmp_path):
    whole = draw(tmp_path/"clip.mp4").read_bytes()
    (longer := tmp_path/"longer.mp4").write_bytes(whole + bytes(range(256)) * 4)
    assert torch.equal(
        read_clip(longer, 5, 32).frames, read_clip(tmp_path/"clip.mp4", 5, 32).frames
    )


def test_a_song_with_a_cover_is_not_a_video(tmp_path):
    song, cover = sound_only(tmp_path/"song.mp4"), tmp_path/"cover.mp4"
    with av.open(str(song)) as source, av.open(str(cover), "w") as output:
        sound = output.add_stream_from_template(source.streams.audio[0])
        picture = output.add_stream("mjpeg", rate=1)
        picture.width = picture.height = SIDE
        picture.pix_fmt = "yuvj420p"
        picture.disposition = type(picture.disposition).attached_pic.value
        output.mux(
            picture.encode(av.VideoFrame.from_ndarray(np.zeros((SIDE, SIDE, 3), np.uint8), "rgb24"))
        )
        output.mux(picture.encode())
        for packet in source.demux(audio=0):
            if packet.size:
                packet.stream = sound
                output.mux(packet)
    assert "no video" in refusal(lambda: read_clip(cover)).reason


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_a_file_we_may_not_read_is_refused(tmp_path):
    path = draw(tmp_path/"private.mp4")
    path.chmod(0)
    assert "cannot be read" in refusal(lambda: read_clip(path)).reason


def test_a_playlist_cannot_send_us_elsewhere(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        lines = [
            "#EXTM3U",
            "#EXT-X-TARGETDURATION:1",
            "#EXTINF:1,",
            f"http://127.0.0.1:{server.getsockname()[1]}/a.ts",
            "#EXT-X-ENDLIST",
            "",
        ]
        (trap := tmp_path/"trap.mp4").write_text("\n".join(lines))
        refusal(lambda: read_clip(trap))
        refusal(lambda: list(stream_frames(trap)))
        with pytest.raises(TimeoutError):
            server.accept()


def test_absurd_declared_sizes_are_refused_before_memory_is_taken(tmp_path):
    content = bytearray(draw(tmp_path/"small.gif", codec="gif", pixels="rgb8").read_bytes())
    content[6:10] = b"\xff\xff\xff\xff"  # 65,535 x 65,535 pixels
    (huge := tmp_path/"huge.gif").write_bytes(content)
    refusal(lambda: read_clip(huge))
    assert peak_memory() < MOST_MEMORY  # its pixels would take twelve gigabytes


def test_frames_larger_than_the_cap_are_refused(tmp_path, monkeypatch):
    path = draw(tmp_path/"clip.mp4")
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", str(SIDE * SIDE - 1))
    assert "pixels" in refusal(lambda: read_clip(path)).reason


def test_every_decode_has_a_time_limit(tmp_path):
    path = draw(tmp_path/"long.mp4", 1000)
    assert "time limit" in refusal(lambda: read_clip(path, time_limit=0.01)).reason


def test_a_server_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as server:
        refusal(
            lambda: next(
                stream_frames(f"tcp://127.0.0.1:{server.getsockname()[1]}", time_limit=0.5)
            )
        )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["clip.mp4", "clip.mkv", "clip.gif"]))
def test_a_damaged_file_gives_a_clip_or_a_video_error(tmp_path, seed, kind):
    path = tmp_path / kind
    if not path.exists():
        draw(path, 12, **(dict(codec="gif", pixels="rgb8") if kind.endswith("gif") else {}))
    random, content = np.random.RandomState(seed), bytearray(path.read_bytes())
    for place in random.randint(0, len(content), random.randint(1, 20)):
        content[place] = random.randint(256)
    (damaged := tmp_path/f"damaged_{kind}").write_bytes(content)
    try:
        clip = read_clip(damaged, 5, 16, time_limit=10)
        assert clip.frames.shape == (5, 3, 16, 16) and clip.times.shape == (5,)
    except VideoError as error:
        assert error.path == str(damaged)


@pytest.mark.parametrize(
    "module, job, extra",
    [
        ("av", lambda: read_clip(__file__), r"picknet_nb\[video\]"),
        ("matplotlib", lambda: show_frames(torch.zeros(1, 3, 4, 4)), r"picknet_nb\[video\]"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_brings_it(
    monkeypatch, module, job, extra
):
    for name in {module, *sys.modules}:
        if name.split(".")[0] == module:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PickNetError, match=extra):
        job()


# good files of every kind
# -------------------------------------------------------------------------------------------

KINDS = {
    "few keys": ("a.mp4", {}),
    "many keys": ("b.mp4", dict(total=200, g=12)),
    "no b-frames": ("c.mp4", dict(total=100, g=12, bf=0)),
    "open groups": ("d.mkv", dict(total=200, g=12, **{"x264-params": "open-gop=1"})),
    "transport stream": ("e.ts", dict(total=200, g=12)),
    "fragments": (
        "f.mp4",
        dict(total=100, g=12, container={"movflags": "frag_keyframe+empty_moov"}),
    ),
    "vp8": ("g.webm", dict(codec="libvpx", g=12)),
    "vp9": ("h.webm", dict(codec="libvpx-vp9", g=12)),
    "mpeg4": ("i.avi", dict(codec="mpeg4", g=12)),
    "mpeg4 with b-frames": ("q.avi", dict(total=100, codec="mpeg4", g=12, bf=2)),
    "mpeg2": ("r.mpg", dict(total=100, codec="mpeg2video", g=12, bf=2)),
    "mjpeg": ("j.avi", dict(codec="mjpeg", pixels="yuvj420p")),
    "gif": ("k.gif", dict(codec="gif", pixels="rgb8")),
    "one frame": ("l.mp4", dict(total=1)),
    "one frame in webm": ("m.webm", dict(total=1, codec="libvpx-vp9")),
    "two frames": ("n.mkv", dict(total=2)),
    "variable rate": ("o.mkv", dict(total=30, stamps=[i * i for i in range(30)])),
    "starts late": ("p.ts", dict(total=60, stamps=[500 + 4 * i for i in range(60)])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_walking_jumping_and_counting_agree(tmp_path, kind):
    name, how = KINDS[kind]
    path = draw(tmp_path / name, **how)
    total = how.get("total", 40)
    jumped, walked = read_clip(path, 9, 32), read_clip(path, 9, 32, jump=False)
    counted = video._read_straight(path, 1, 9, video._Painter(32), monotonic() + 60)
    assert torch.equal(jumped.frames, walked.frames) and torch.equal(jumped.frames, counted.frames)
    torch.testing.assert_close(jumped.times, counted.times)
    # AVI stores when a frame is decoded, which with B-frames is one frame before it is shown
    begins = 0.04 if kind == "mpeg4 with b-frames" else 0
    assert jumped.times[0].item() == pytest.approx(begins) and (jumped.times.diff() >= 0).all()
    expected = [20 + 200 * i // total for i in spaced(total, 9)]
    # GIF has 8 grey levels per colour at most
    assert max(abs(a - b) for a, b in zip(brightness(jumped), expected)) <= 6
    if "stamps" in how:
        torch.testing.assert_close(
            jumped.times,
            torch.tensor([(how["stamps"][i] - how["stamps"][0]) / 100 for i in spaced(total, 9)]),
        )


def test_a_plan_jumps_only_where_it_pays():
    index = video._Index(list(range(1000)), list(range(0, 1000, 50)), 1.0)
    walks, jumps = (video._plan(index, spaced(1000, n)) for n in (200, 10))
    assert len(walks) == 1 and len(jumps) == 10
    for run in jumps[1:]:
        assert run.start % 50 == 0 and 0 <= min(run.wanted) - run.start < 50


def test_an_index_that_lies_is_noticed(tmp_path, monkeypatch):
    path = draw(tmp_path/"clip.mp4", 60)
    honest, scan = read_clip(path, 7, 32), video._scan
    monkeypatch.setattr(video, "_scan", lambda *args: scan(*args)._replace(stamps=list(range(90))))
    assert torch.equal(read_clip(path, 7, 32).frames, honest.frames)


ODD_PIXELS = {
    "ten bits": ("a.mp4", "libx264", "yuv420p10le", {}),
    "twelve bits": ("a.mkv", "libx265", "yuv444p12le", {"x265-params": "log-level=none"}),
    "interlaced": ("a.mpg", "mpeg2video", "yuv420p", {"flags": "+ilme+ildct"}),
    "transparent": ("a.webm", "libvpx-vp9", "yuva420p", {}),
    "transparent, ten bits": ("a.mov", "prores_ks", "yuva444p10le", {}),
    "transparent, as stored by screens": ("b.mov", "qtrle", "argb", {}),
    "animated": ("a.gif", "gif", "rgb8", {}),
}


@pytest.fixture(scope="module")
def captioner():
    return load_captioner(find_model("shapes"), device="cpu")


@pytest.mark.parametrize("kind", ODD_PIXELS)
def test_odd_pixels_are_captioned_and_drawn(captioner, tmp_path, kind):
    name, codec, pixels, options = ODD_PIXELS[kind]
    path = tmp_path/name
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        for number in range(4):
            picture = np.zeros((64, 96, 4), np.uint8)
            picture[..., 0], picture[..., 3] = 200, np.linspace(0, 255, 96)  # red
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgba")))
        container.mux(stream.encode())
    found = captioner.caption(path)
    assert found.text and found.clip.frames.float().mean((0, 2, 3)).tolist() == pytest.approx(
        [200, 0, 0], abs=20)
    for ending in (".gif", ".mp4"):
        drawn = read_clip(render(found, tmp_path/f"drawn{ending}"), 1, 32).frames[0]
        # above the caption; what a GIF or an MP4 makes of red
        assert drawn[:, 4:16].float().mean((1, 2)).tolist() == pytest.approx([200, 0, 0], abs=40)


def test_side_data_are_asked_for_once(tmp_path, monkeypatch):
    "PyAV keeps every frame in memory whose side data were asked for."
    asked, path = [], draw(tmp_path/"film.mp4", 100)
    for module in (video, drawing):
        monkeypatch.setattr(module, "orientation", lambda frame: asked.append(1) or (False,) * 3)
    assert len(list(drawing._ticks(path, 25, 64, 100))) == 100 and asked == [1]
    assert len(video.decode_clip(path, 100, 16).frames) == 100 and asked == [1, 1]


def corners(picture) -> list[int]:
    "How bright an upright picture is, (height, width): above left, above right, below left."
    return [round(float(picture[place].mean()) / 80) for place in (
        np.s_[2:12, 2:12], np.s_[2:12, -12:-2], np.s_[-12:-2, 2:12])]


# dark above left, grey above right, bright below left, black below right, as the sensor saw it
SHOWN = {
    (1, 0, 0, 1): [1, 2, 3], (0, 1, -1, 0): [3, 1, 0], (-1, 0, 0, -1): [0, 3, 2],
    (0, -1, 1, 0): [2, 0, 1], (-1, 0, 0, 1): [2, 1, 0], (1, 0, 0, -1): [3, 0, 1],
    (0, 1, 1, 0): [1, 3, 2], (0, -1, -1, 0): [0, 2, 3],
}


@pytest.mark.parametrize("matrix", SHOWN, ids=str)
def test_a_turned_phone_and_a_mirror(tmp_path, matrix):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32], picture[:24, 32:], picture[24:, :32] = 80, 160, 240
    path = tmp_path/"turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    content, (a, b, c, d) = bytearray(path.read_bytes()), matrix
    start = content.index(b"tkhd") + 44
    content[start : start + 36] = (
        (np.array([a, b, 0, c, d, 0, 0, 0, 1 << 14]) << 16).astype(">i4").tobytes()
    )
    path.write_bytes(content)
    _, drawn = next(original_frames(path, 1, 64))
    assert drawn.height > drawn.width if b else drawn.width > drawn.height
    for found in (
        read_clip(path, 1, 48).frames[0].numpy().mean(0),
        next(stream_frames(path, size=48))[1].numpy().mean(0),
        np.asarray(drawn).mean(-1),
    ):
        assert corners(found) == SHOWN[matrix]


def test_fewer_frames_than_wanted_repeat(tmp_path):
    clip = read_clip(draw(tmp_path/"three.mp4", 3), 7, 32)
    assert [brightness(clip).index(value) for value in brightness(clip)] == [0, 0, 2, 2, 2, 5, 5]


@pytest.mark.parametrize(
    "name, so",
    [
        ("clip.mp4", True),
        ("CLIP.MOV", True),
        ("a.b.webm", True),
        ("folder.d/clip.TS", True),
        (".hidden/clip.mp4", True),
        ("._clip.mp4", False),
        (".mp4", False),
        ("clip", False),
        ("clip.mp4.part", False),
        ("captions.json", False),
        ("mp4", False),
        ("", False),
    ],
)
def test_what_is_called_like_a_video(name, so):
    assert video_files.is_video(name) is so
    assert all(
        ending == ending.lower() and ending.startswith(".") for ending in video_files.VIDEO_SUFFIXES
    )


def test_odd_names_are_only_names(tmp_path):
    whole = draw(tmp_path/"clip.mp4").read_bytes()
    for name in (
        "-clip.mp4",
        "a:b.mp4",
        "http:clip.mp4",
        "100%03d.mp4",
        "what?#.mp4",
        "ein Fluß.mp4",
        "clip",
    ):
        (tmp_path / name).write_bytes(whole)
        assert len(read_clip(tmp_path / name, 3, 16).frames) == 3


def test_nothing_is_kept_but_the_wanted_frames(tmp_path, monkeypatch):
    painted, call = [], video._Painter.__call__
    monkeypatch.setattr(
        video._Painter,
        "__call__",
        lambda self, frame: painted.append(frame.pts) or call(self, frame),
    )
    # here: what another process paints cannot be seen
    video.decode_clip(draw(tmp_path/"clip.mp4", 200), 5, 16)
    assert len(painted) == 5


def test_the_counts_of_a_clip_are_checked(tmp_path):
    path = draw(tmp_path/"clip.mp4", 5)
    for wrong in (dict(frames=0), dict(size=0)):
        with pytest.raises(PickNetError):
            read_clip(path, **wrong)


# glances
# --------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    size=st.integers(1, 70),
    seed=st.integers(0, 9999),
)
def test_glances_of_a_batch_are_glances_of_its_frames(height, width, size, seed):
    frames = torch.randint(
        0,
        256,
        (3, 3, height, width),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(seed),
    )
    batch = glance(frames, size)
    assert torch.equal(batch, torch.stack([glance(frame, size) for frame in frames]))
    assert torch.equal(batch, glance(frames[:, None, None], size)[:, 0, 0])
    luma = (frames.float() * torch.tensor([77, 150, 29])[:, None, None] / 256).sum(1, keepdim=True)
    smooth = torch.nn.functional.interpolate(
        luma, size=(size, size), mode="bilinear", antialias=True
    )
    # three roundings: of luma, of rows, of the result; and of the weights
    assert (batch - smooth.flatten(1)).abs().max() < 1.6


@settings(max_examples=25, deadline=None)
@given(
    value=st.integers(0, 255),
    height=st.integers(1, 80),
    width=st.integers(1, 80),
    size=st.integers(1, 80),
)
def test_an_even_picture_stays_even(value, height, width, size):
    assert (resize(torch.full((height, width), value, dtype=torch.uint8), size) == value).all()


def test_large_frames_shrink_as_well_as_small_ones():
    frame = torch.randint(
        0, 256, (3, 1080, 1920), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    luma = (frame.float() * torch.tensor([77, 150, 29])[:, None, None] / 256).sum(0)[None, None]
    smooth = torch.nn.functional.interpolate(luma, size=(56, 56), mode="bilinear", antialias=True)
    assert (glance(frame) - smooth.flatten()).abs().max() < 1.6


def test_a_glance_does_not_hear_of_autocast():
    frames = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        inside = glance(frames)
    assert torch.equal(inside, glance(frames))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_the_gpu_gives_the_same_bytes(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for shape in ((30, 3, 224, 224), (4, 3, 480, 640), (2, 3, 33, 57)):
            frames = torch.randint(0, 256, shape, dtype=torch.uint8)
            assert torch.equal(glance(frames.cuda()).cpu(), glance(frames))
    finally:
        torch.set_float32_matmul_precision(before)


# streams
# --------------------------------------------------------------------------------------------------


def test_a_file_streams_at_the_wanted_rate(tmp_path):
    path = draw(tmp_path/"clip.mp4", 100)  # four seconds
    assert [time for time, _ in stream_frames(path, 1)] == [0, 1, 2, 3]
    assert len(list(stream_frames(path, 1000))) == 100  # never more than there are
    assert len(list(stream_frames(path, 0.1))) == 1
    time, frame = next(stream_frames(str(path), 1, 48))
    assert frame.shape == (3, 48, 48) and torch.equal(frame, read_clip(path, 1, 48).frames[0])


def test_an_endless_source_is_asked_only_for_what_is_needed():
    asked = []

    def camera():
        for i in count():
            asked.append(i)
            yield i / 10, np.full((20, 30, 3), i, np.uint8)

    seen = [
        (time, frame[0, 0, 0].item()) for time, frame in islice(stream_frames(camera(), 1, 16), 3)
    ]
    assert seen == [(0, 0), (1, 10), (2, 20)] and asked[-1] == 20


def test_frames_without_times_come_at_the_rate():
    frames = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 8, 8)
    assert [(time, frame[0, 0, 0].item()) for time, frame in stream_frames(frames, 2, 8)] == [
        (0, 0),
        (0.5, 1),
        (1, 2),
        (1.5, 3),
        (2, 4),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        torch.zeros(3, 8, 8),
        torch.zeros(8, 8, dtype=torch.uint8),
        torch.zeros(4, 8, 8, dtype=torch.uint8),
    ],
)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(PickNetError, match="a frame must be"):
        next(stream_frames([frame]))


def test_a_stream_needs_a_rate(tmp_path):
    with pytest.raises(PickNetError, match="rate"):
        stream_frames(tmp_path/"clip.mp4", 0)


def test_a_stream_that_is_left_early_lets_go_of_its_file(tmp_path):
    path = draw(tmp_path/"clip.mp4", 50)
    for _ in range(20):
        frames = stream_frames(path, 25)
        next(frames)
        frames.close()
    assert (
        sum(
            "clip.mp4" in os.readlink(link.path)
            for link in os.scandir("/proc/self/fd")
            if os.path.islink(link.path) and os.path.exists(link.path)
        )
        == 0
        if os.path.exists("/proc/self/fd")
        else True
    )


@contextmanager
def standard_input(content: bytes):
    """Whoever reads standard input gets this by a pipe, from a program: a thread of ours would
    leave its end of the pipe to every process that is forked."""
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        writer = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
    os.dup2(writer.stdout.fileno(), 0)
    writer.stdout.close()
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        writer.wait()


@pytest.mark.parametrize("ending", ["mkv", "ts", "avi"])
def test_a_dash_is_standard_input(tmp_path, ending):
    path = draw(tmp_path/f"clip.{ending}", 60)
    with standard_input(path.read_bytes()):
        piped = list(stream_frames("-", 2, 32))
    for (time, frame), (when, same) in zip(piped, stream_frames(path, 2, 32), strict=True):
        assert time == when and torch.equal(frame, same)


def test_a_pipe_from_another_program_is_read_to_its_end(tmp_path):
    path = draw(tmp_path/"clip.mkv", 60)
    writer = subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE)

    def read() -> None:
        os.dup2(writer.stdout.fileno(), 0)
        print([time for time, _ in stream_frames("-", 2, 32)])

    with writer.stdout:
        reader = Forked(read)
    assert (
        reader.wait(100) == 0
        and reader.output() == "[0.0, 0.52, 1.0, 1.52, 2.0]\n"
        and writer.wait() == 0
    ), reader.output()


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "not a video"),
        (b"no film at all" * 1000, "not a video, or a damaged one"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n", "not a video"),
    ],
)
def test_what_comes_by_a_pipe_and_is_no_video_is_refused(content, said):
    with standard_input(content):
        error = refusal(lambda: list(stream_frames("-")))
    assert error.path == "standard input" and said in error.reason


def test_an_mp4_by_a_pipe_is_refused_with_a_way_out(tmp_path):
    content = draw(tmp_path/"clip.mp4", 30).read_bytes()
    start = content.index(b"mdat") - 4
    # more than FFmpeg keeps
    with standard_input(
        content[:start]
        + (1 << 20).to_bytes(4, "big")
        + b"free"
        + bytes((1 << 20) - 8)
        + content[start:]
    ):
        error = refusal(lambda: list(stream_frames("-")))
    assert "-f matroska -" in error.reason


def test_limits_hold_for_a_pipe_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "100")
    with standard_input(draw(tmp_path/"clip.mkv", 5).read_bytes()):
        assert "PICKNET_FRAME_PIXELS" in refusal(lambda: list(stream_frames("-"))).reason


def test_a_terminal_is_no_source_and_neither_is_a_closed_one(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda number: number == 0)
    assert "is a terminal" in refusal(lambda: stream_frames("-")).reason
    monkeypatch.undo()
    before = os.dup(0)
    os.close(0)
    try:
        assert "cannot be read: Bad file descriptor" == refusal(lambda: stream_frames("-")).reason
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.mark.parametrize(
    "number, said",
    [
        (errno.ENOENT, "there is no such camera"),
        (errno.EBUSY, "another program is using"),
        (errno.EACCES, "cannot be opened: no permission"),
        (errno.EIO, "cannot be opened ("),
    ],
)
def test_a_camera_that_cannot_be_had_is_named_as_one(monkeypatch, number, said):
    def opened(*_, **__):
        raise av.error.FFmpegError(number, os.strerror(number))

    monkeypatch.setattr(av, "open", opened)
    error = refusal(lambda: list(stream_frames("/dev/video7", format="v4l2")))
    assert error.path == "/dev/video7" and said in error.reason


def test_a_clip_travels_as_arrays(tmp_path):
    clip = read_clip(draw(tmp_path/"clip.mp4", 5), 3, 16)
    # which would otherwise share the memory of tensors, and need both to be alive
    again = pickle.loads(ForkingPickler.dumps(clip))
    assert (
        isinstance(again, video.Clip)
        and torch.equal(again.frames, clip.frames)
        and torch.equal(again.times, clip.times)
    )
    assert b"rebuild" not in bytes(ForkingPickler.dumps(clip))


# drawing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 7, 30])
def test_strips_are_drawn_with_boxes_where_frames_were_picked(total):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    frames, picks = torch.zeros(total, 3, 8, 12, dtype=torch.uint8), torch.arange(total) % 3 == 0
    figure = figures.show_frames(
        frames,
        picks,
        torch.rand(total),
        titles=range(total),
        captions=range(total),
        heading="a strip",
    )
    boxes = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert [to_hex(box.get_edgecolor()) == figures.PICK_GREEN for box in boxes] == picks.tolist()
    assert len(figure.axes[0].images) == total
    figures.show_frames(frames[:, 0])


def test_a_header_that_takes_too_long_is_not_called_damaged(tmp_path, monkeypatch):
    "FFmpeg's readers of headers may call an interruption a damaged file."
    av, path = video_files.import_av(), draw(tmp_path/"short.mp4", 5)

    def interrupted(*_, **__):
        deadline = monotonic() + 0.02
        while monotonic() < deadline: pass
        raise av.error.InvalidDataError(1094995529, "error reading header")
    monkeypatch.setattr(av, "open", interrupted)

    def opened(seconds):
        with video_files.open_source(path, f"file:{path}", seconds): pass
    assert "time limit" in refusal(lambda: opened(0.01)).reason
    assert "damaged" in refusal(lambda: opened(60.0)).reason
