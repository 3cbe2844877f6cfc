"""Videos whose time stamps lie, whose frames no scaler takes, or which have too many streams."""
import json
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from picknet_nb.data import video, video_files
from picknet_nb.data.video import read_clip, steady, stream_frames
from picknet_nb.data.video_files import VideoError
from picknet_nb.training.models import find_model
from picknet_nb.use import subtitles
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.drawing import original_frames
from picknet_nb.use.subtitles import as_json, as_srt, cut_pieces, subtitle_video
from test_subtitles import read_back
from toys import film, invoked


@pytest.fixture(scope="module")
def captioner():
    return load_captioner(find_model("shapes"), device="cpu")


def stamped_film(path, stamps, rate: int = 4, side: int = 16):
    "Grey frames, each with the time stamp that is given for it, in frames."
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=rate,
            options={"preset": "ultrafast", "tune": "zerolatency", "g": "100000", "bf": "0"},
        )
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for number, stamp in enumerate(stamps):
            picture = np.full((side, side, 3), number % 200, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts = number
            for packet in stream.encode(frame):
                packet.time_base, packet.dts, packet.pts = Fraction(1, rate), number, stamp
                container.mux_one(packet)
        for packet in stream.encode(None):
            container.mux_one(packet)
    return path


COUNT = 120
STAMPS = {  # of 30 seconds, four frames a second
    "first last": [30 * 3600 * 4, *range(1, COUNT)],
    "to and fro": [number + 300 * (number % 2) for number in range(COUNT)],
    "all at once": [200] * COUNT,
    "honest": list(range(COUNT)),
}


@pytest.mark.parametrize("kind", STAMPS)
@pytest.mark.parametrize("ending", ["mkv", "mp4"])
def test_lines_follow_each_other_whatever_the_stamps_say(captioner, tmp_path, kind, ending):
    path = stamped_film(tmp_path/f"film.{ending}", STAMPS[kind])
    lines = list(subtitle_video(captioner, path))
    found = read_back(as_srt(lines), ",")
    assert len(found) == len(lines) and found[0][0] == 0  # each as a player reads it
    assert all(begin < end for begin, end, _ in found)
    assert all(one[1] <= two[0] + 1e-3 for one, two in zip(found, found[1:]))


@pytest.mark.parametrize("kind", ["first last", "all at once", "honest"])
def test_a_film_is_cut_into_pieces_whatever_the_stamps_say(tmp_path, kind):
    path = stamped_film(tmp_path/"film.mkv", STAMPS[kind])
    pieces = list(cut_pieces(stream_frames(path, 4, 16)))
    assert sum(len(piece.frames) for piece, _ in pieces) == COUNT
    assert max(len(piece.frames) for piece, _ in pieces) <= 41  # ten seconds, and the frame after


def test_times_of_years_keep_their_fractions():
    seconds = [0.0, 520_042_960.25, 520_042_960.75, 520_042_975.5, 520_042_976.25]
    frames = ((time, torch.zeros(3, 8, 8, dtype=torch.uint8)) for time in seconds)
    pieces = list(cut_pieces(frames))
    assert [time for piece, _ in pieces for time in piece.times.tolist()] == seconds
    assert all(one[1] == two[0].times[0] for one, two in zip(pieces, pieces[1:]))


def test_time_goes_on_where_a_clock_was_set_back(tmp_path):
    once = stamped_film(tmp_path/"once.ts", range(60)).read_bytes()
    (tmp_path/"twice.ts").write_bytes(once + once)
    times = [time for time, _ in stream_frames(tmp_path/"twice.ts", 4, 16)]
    assert all(0 < two - one < 1 for one, two in zip(times, times[1:])) and times[-1] > 25


def test_a_piece_ends_even_if_time_does_not_pass(monkeypatch):
    monkeypatch.setattr(subtitles, "_MOST_FRAMES", 50, raising=False)
    frames = ((5.0 - number * 1e-9, torch.zeros(3, 8, 8, dtype=torch.uint8))
              for number in range(200))
    assert [len(piece.frames) for piece, _ in cut_pieces(frames)] == [50] * 4


@pytest.mark.parametrize("kind", STAMPS)
def test_a_stream_and_a_clip_have_times_that_grow(tmp_path, kind):
    path = stamped_film(tmp_path/"film.mkv", STAMPS[kind])
    for times in (
        [time for time, _ in stream_frames(path, 4, 16)],
        read_clip(path, 30, 16).times.tolist(),
        read_clip(path, 30, 16, jump=False).times.tolist(),
    ):
        assert times[0] == 0 and all(one < two for one, two in zip(times, times[1:]))


@pytest.mark.parametrize("kind", ["first last", "honest"])
def test_a_film_is_drawn_to_its_end_whatever_the_stamps_say(tmp_path, kind):
    path = stamped_film(tmp_path/"film.mkv", STAMPS[kind])
    shades = [np.asarray(picture).mean() for _, picture in original_frames(path, 4, 16)]
    assert len(shades) >= COUNT - 3 and shades[-1] > shades[0] + 80


@pytest.mark.parametrize("times", [
    [0, 1, float("nan"), 3], [float("nan"), 1, 2], [0, float("inf"), 2, 3],
    [float("-inf"), 0, 1], [3, 2, 1, 0], [0, -float("inf"), 1, 2],
], ids=str)
def test_times_of_any_kind_become_times_that_grow(times):
    found = [time for time, _ in steady(((time, None) for time in times), 0.5)]
    assert len(found) == len(times) and np.isfinite(found).all()
    assert all(one < two for one, two in zip(found, found[1:]))


RATE, CUT = 10, 4.0  # frames a second, and the second of the picture at which the scene changes
CONTAINERS = {
    "mkv": {}, "mp4": {}, "flv": {}, "ts": {},
    "fragmented.mp4": {"movflags": "frag_keyframe+delay_moov+default_base_moof"},
}


def sounding_film(path, sound_from: float, picture_from: float, options: dict):
    "Six seconds of picture with a cut, and sound that ends with it."
    with av.open(str(path), "w", options=options) as container:
        video = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast"})
        video.width = video.height = 16
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=16000)
        sound.layout = "mono"
        video.codec_context.time_base = tick = Fraction(1, 90000)
        for start in range(round(sound_from * 16000), round((picture_from + 6) * 16000), 1024):
            block = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            block.sample_rate, block.pts, block.time_base = 16000, start, Fraction(1, 16000)
            container.mux(sound.encode(block))
        for number in range(6 * RATE):
            shade = 20 if number < CUT * RATE else 240
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), shade, np.uint8), "rgb24")
            frame.pts, frame.time_base = round((picture_from + number / RATE) / tick), tick
            container.mux(video.encode(frame))
        container.mux(video.encode())
        container.mux(sound.encode())
    return path


def on_a_players_clock(path) -> tuple[float, float]:
    "When a player shows the first frame and the cut: 0 is the first thing to be seen or heard."
    with av.open(str(path)) as container:
        sound = next(container.decode(audio=0)).time
    with av.open(str(path)) as container:
        frames = [(frame.time, frame.to_ndarray(format="gray").mean())
                  for frame in container.decode(video=0)]
    begin = min(sound, frames[0][0])
    return frames[0][0] - begin, next(time for time, shade in frames if shade > 128) - begin


# AAC puts a block before the first sound. MP4 says that a player drops it, and so does Matroska as
# today's FFmpeg writes it; MPEG-TS and FLV cannot, there it is played, and the picture is as much
# later
BLOCK = 1024 / 16000
PRIMING = {"ts": [BLOCK], "flv": [BLOCK], "mkv": [0, BLOCK]}


@pytest.mark.parametrize("sound_from, picture_from", [(0, 5), (2, 0)])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_times_are_those_of_a_player_where_sound_and_picture_begin_apart(
    captioner, tmp_path, kind, sound_from, picture_from
):
    path = sounding_film(tmp_path/f"film.{kind}", sound_from, picture_from, CONTAINERS[kind])
    begin, cut = on_a_players_clock(path)
    late = max(0, picture_from - sound_from)
    exact = dict(abs=0.002)  # Matroska and FLV count milliseconds
    assert any(begin == pytest.approx(late + more * (late > 0), **exact)
               for more in PRIMING.get(kind, [0]))
    assert cut == pytest.approx(begin + CUT, **exact)
    looks = list(stream_frames(path, RATE, 16))
    assert looks[0][0] == pytest.approx(begin, **exact)
    one, two = (piece for piece, _ in cut_pieces(iter(looks)))
    assert two.times[0].item() == pytest.approx(cut, **exact)
    for jump in (True, False):
        times = read_clip(path, 6 * RATE, 16, jump=jump).times
        assert times[0].item() == pytest.approx(begin, **exact)
        assert times[round(CUT * RATE)].item() == pytest.approx(cut, **exact)
    if (sound_from, picture_from) == (0, 5):  # from the file to what is written
        lines = json.loads(as_json(list(subtitle_video(captioner, path, rate=RATE))))
        assert lines[0]["start"] == pytest.approx(begin, **exact)
        assert captioner.caption(path).to_dict()["times"][0] == pytest.approx(begin, **exact)
        assert next(captioner.stream(path)).to_dict()["time"] == pytest.approx(begin, **exact)


def test_a_late_picture_is_looked_at_as_one_that_begins_at_once():
    "A cut whole seconds after the first frame is seen when it happens, also three times a second."
    times = [(5.064 + number / 25, number) for number in range(200)]
    seen = [number for _, number in video._at_rate(times, 3)]
    assert seen == [number for _, number in video._at_rate([(n / 25, n) for _, n in times], 3)]
    assert {0, 25, 100}.issubset(seen)


class Container:
    "What a container says about its times, in millionths of a second."

    def __init__(self, start_time, duration): self.start_time, self.duration = start_time, duration


@pytest.mark.parametrize("start, length, late", [
    (None, 10**7, 0), (0, 10**7, 3), (1_000_000, 10**7, 2), (10**7, 10**7, 0), (0, 10**6, 0),
    (-(10**18), 10**7, 0), (0, None, 3), (0, -1, 3),
])
def test_a_beginning_that_cannot_be_right_is_that_of_the_first_frame(start, length, late):
    assert video._delay(Container(start, length), 3.0) == late


def line_of_pixels(path, width: int, height: int):
    with av.open(str(path), "w") as container:
        codec, kind = ("rawvideo", "bgr24") if 1 in (width, height) else ("libx264", "yuv420p")
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, kind
        for _ in range(3):
            picture = np.zeros((height, width, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return path


SLIVERS = [("a.mkv", 16000, 2), ("a.mkv", 2, 16000), ("a.avi", 16000, 1)]


@pytest.mark.parametrize("name, width, height", SLIVERS)
def test_a_video_one_pixel_high_is_read_or_a_sentence(captioner, tmp_path, name, width, height):
    path = line_of_pixels(tmp_path/name, width, height)
    for read in (
        lambda: list(stream_frames(path, 3, 96)),
        lambda: read_clip(path, 8, 96),
        lambda: list(subtitle_video(captioner, path)),
        lambda: list(captioner.stream(path)),
    ):
        try:
            read()
        except VideoError as error:
            assert f"{width} x {height} pixels" in error.reason


@pytest.mark.parametrize("name, width, height", SLIVERS)
def test_the_video_after_one_that_cannot_be_scaled_is_captioned(tmp_path, name, width, height):
    (tmp_path/"films").mkdir()
    line_of_pixels(tmp_path/"films"/name, width, height)
    film(tmp_path/"films"/"b.mp4")
    done = invoked("caption", tmp_path/"films", "--model", "shapes",
                   "--out", tmp_path/"out"/"{}.srt")
    assert done.exit_code == 3 and name in done.output + done.stderr
    assert "b" in {path.name.split(".")[0] for path in (tmp_path/"out").rglob("*.srt")}
    alone = invoked("stream", tmp_path/"films"/name, "--model", "shapes")
    assert alone.exit_code == 1 and not isinstance(alone.exception, (TypeError, av.FFmpegError))


def many_streams(path, count: int):
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("mpeg4", rate=10) for _ in range(count)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for number in range(3):
            for stream in streams:
                picture = np.full((32, 32, 3), number * 40, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        for stream in streams:
            container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("ending", ["mkv", "ts", "mp4", "nut", "avi"])
def test_a_file_has_as_many_streams_as_the_limit_says_and_no_more(tmp_path, monkeypatch, ending):
    path = many_streams(tmp_path/f"many.{ending}", 5)
    monkeypatch.setattr(video_files, "_MOST_STREAMS", 5)
    assert len(read_clip(path, 3, 16).frames) == 3
    monkeypatch.setattr(video_files, "_MOST_STREAMS", 4)
    for read in (lambda: read_clip(path, 3, 16), lambda: list(stream_frames(path, 3, 16))):
        with pytest.raises(VideoError, match="more than 4 streams"):
            read()


@pytest.mark.parametrize(
    "name", ["PICKNET_FRAME_PIXELS", "PICKNET_DECODER_BYTES", "PICKNET_TEXT_BYTES"])
@pytest.mark.parametrize("digits", [19, 26, 5000])
def test_a_limit_may_have_any_number_of_digits(tmp_path, monkeypatch, name, digits):
    film(tmp_path/"film.mp4")
    monkeypatch.setenv(name, "9" * digits)
    done = invoked("caption", tmp_path/"film.mp4", "--model", "shapes")
    assert done.exit_code == 0, (done.output, done.exception)
