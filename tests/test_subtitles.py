"Long videos: pieces, times, memory, and files that players can read."
import io
import itertools
import json
import re
from dataclasses import replace

import av
import numpy as np
import psutil
import pytest
import torch

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.data.video_files import VideoError
from picknet_nb.method.pickers import make_picker
from picknet_nb.training.models import find_model
from picknet_nb.use import subtitles
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.subtitles import (
    Limits, Line, as_srt, clock_time, cut_pieces, save_subtitles, subtitle_video)
from picknet_nb.interface import watch as watching


HOSTILE = [
    "a \x1b]0;owned\x07man",
    "a man\n\n2\n00:00:09,000 --> 00:00:10,000\nforged",
    "<script>alert(1)</script> {\\an8} <b>bold</b>",
    "a\u2028b\x85c\x9b31m\u202egpj",
]


def test_words_of_a_stranger_are_text_in_every_format():
    "No escape reaches a terminal, no word makes a cue or a tag."
    lines = [Line(0, 1, text) for text in HOSTILE]
    for ending, write in subtitles.SUBTITLES.items():
        text = write(lines)
        assert all(letter.isprintable() or letter == "\n" for letter in text), ending
        if ending in (".srt", ".vtt"):
            assert text.count("-->") == len(lines)
            assert not set("<>") & set(re.sub(r"^[0-9:.,]+ --> [0-9:.,]+$", "", text, flags=re.M))
    assert (
        "{" not in as_srt(lines) and json.loads(subtitles.as_json(lines))[1]["text"] == HOSTILE[1]
    )
    assert len(subtitles.as_text(lines).splitlines()) == len(lines)


@pytest.fixture(scope="module")
def captioner():
    return load_captioner(find_model("shapes"), device="cpu")


def long_video(
    path, seconds: int, scene: int = 7, rate: int = 4, side: int = 64, kind: str = "mp4"
):
    "A video whose picture changes for good every few seconds, with something small that moves."
    memory, draw = io.BytesIO(), np.random.default_rng(0)
    with av.open(memory, "w", format=kind) as container:
        stream = container.add_stream(
            "libx264", rate=rate, options={"preset": "ultrafast", "crf": "30", "threads": "1"}
        )
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for number in range(seconds * rate):
            if number % (scene * rate) == 0:
                shade = (50, 140, 230)[number // (scene * rate) % 3]
                picture = (
                    np.clip(draw.normal(shade, 8, (8, 8, 3)), 0, 255)
                    .astype(np.uint8)
                    .repeat(side // 8, 0)
                    .repeat(side // 8, 1)
                )
            frame = picture.copy()
            frame[20:30, number % 40 : number % 40 + 10] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    path.write_bytes(memory.getvalue())
    return path


def read_back(text: str, mark: str) -> list[tuple[float, float, str]]:
    "The times and texts of an SRT or WebVTT file, as a player reads them."
    clock = rf"(\d\d+):(\d\d):(\d\d)\{mark}(\d\d\d)"
    seconds = lambda parts: (
        int(parts[0]) * 3600 + int(parts[1]) * 60 + int(parts[2]) + int(parts[3]) / 1000
    )
    found = re.findall(rf"^{clock} --> {clock}\n(.+)$", text, re.M)
    return [(seconds(each[:4]), seconds(each[4:8]), each[8]) for each in found]


def test_ten_minutes_in_flat_memory_become_subtitles_with_right_times(captioner, tmp_path):
    path, process, heights, lines = long_video(tmp_path/"film.mp4", 600), psutil.Process(), [], []
    for line in subtitle_video(captioner, path):
        lines.append(line)
        heights.append(process.memory_info().rss)
    assert max(heights[10:]) - min(heights[10:]) < 100e6, "memory grows with the video"
    for ending, mark in ((".srt", ","), (".vtt", ".")):
        found = read_back(save_subtitles(lines, tmp_path/f"film{ending}").read_text(), mark)
        assert len(found) == len(lines) and abs(found[0][0]) < 0.5 and abs(found[-1][1] - 600) < 1
        assert all(begin < end for begin, end, _ in found) and all(
            one[1] <= two[0] + 1e-6 for one, two in zip(found, found[1:])
        )
    starts = [line.start for line in lines]
    assert all(min(abs(start - 7 * scene) for scene in range(90)) < 0.5 for start in starts), (
        "pieces begin where scenes do"
    )
    assert all(line.start <= time < line.end for line in lines for time in line.times)


def test_pieces_keep_every_frame_once():
    frames = [
        (number / 3, torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8)) for number in range(200)
    ]
    pieces = list(cut_pieces(iter(frames)))
    assert torch.equal(
        torch.cat([clip.frames for clip, _ in pieces]), torch.stack([frame for _, frame in frames])
    )
    lasted = [end - clip.times[0].item() for clip, end in pieces]
    assert max(lasted) <= 10 + 1 / 3 and min(lasted[:-1]) >= 2


@pytest.mark.parametrize("shortest, longest", [(0, 5), (5, 2), (1, 1e9), (-1, 3)])
def test_limits_that_cannot_be(shortest, longest):
    with pytest.raises(PickNetError, match="seconds"):
        Limits(shortest, longest)


def test_the_same_sentence_twice_in_a_row_is_one_line(captioner, monkeypatch):
    from picknet_nb.use import subtitles
    said = iter(["a ball", "a ball", "a star", "a ball"])
    class Said: times = (0.0,)
    def speak(*_, **__):
        (answer := Said()).text = next(said)
        return answer
    monkeypatch.setattr(subtitles, "caption_clip", speak)
    still = [(number / 3, torch.full((3, 8, 8), 9, dtype=torch.uint8)) for number in range(120)]
    assert [(line.start, line.end, line.text) for line in subtitle_video(captioner, still)] == [
        (0.0, 20.0, "a ball"), (20.0, 30.0, "a star"), (30.0, 40.0, "a ball")]


def test_files_are_whole_and_of_a_kind_that_is_known(tmp_path):
    lines = [Line(0, 1.5, "a <b> & c", (0.5,)), Line(3599.9996, 3601, "two")]
    assert as_srt(lines).startswith(
        "1\n00:00:00,000 --> 00:00:01,500\na ‹b› & c\n\n2\n01:00:00,000 --> 01:00:01,000\ntwo\n"
    )
    assert "a &lt;b&gt; &amp; c" in save_subtitles(lines, tmp_path/"a.vtt").read_text()
    assert json.loads(save_subtitles(lines, tmp_path/"a.json").read_text())[0] == {
        "start": 0,
        "end": 1.5,
        "text": "a <b> & c",
        "times": [0.5],
    }
    assert (
        save_subtitles(lines[:1], tmp_path/"a.txt").read_text()
        == "00:00:00 - 00:00:01  a <b> & c\n"
    )
    with pytest.raises(FileError, match=".srt, .vtt"):
        save_subtitles(lines, tmp_path/"a.doc")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.txt", "a.vtt"]
    assert clock_time(100 * 3600) == "100:00:00.000"


def test_what_cannot_be_read_is_named(captioner, tmp_path):
    (tmp_path/"broken.mp4").write_bytes(b"no film")
    for source in (
        tmp_path/"broken.mp4",
        tmp_path/"gone.mp4",
        "https://example.org/film.mp4",
        iter(()),
    ):
        with pytest.raises(VideoError):
            list(subtitle_video(captioner, source))


def test_an_error_ends_what_reads_the_video(captioner, monkeypatch):
    ended = []

    def frames(*_):
        try:
            for number in itertools.count(): yield number / 3, torch.zeros(3, 96, 96).byte()
        finally:
            ended.append(True)

    def fails(*_, **__): raise PickNetError("no sentence")

    monkeypatch.setattr(subtitles, "stream_frames", frames)
    monkeypatch.setattr(subtitles, "caption_clip", fails)
    with pytest.raises(PickNetError, match="no sentence") as error:
        list(subtitle_video(captioner, "film.mp4"))
    assert ended and error  # although the error, and all that it refers to, is still there


def test_a_film_that_was_cut_off_gets_its_lines_and_a_word_about_it(captioner, tmp_path, capsys):
    whole = long_video(tmp_path/"whole.mkv", 40, kind="matroska").read_bytes()
    (cut := tmp_path/"cut.mkv").write_bytes(whole[: len(whole) * 6 // 10])
    lines = []
    with pytest.raises(VideoError, match="is truncated"):
        for line in subtitle_video(captioner, cut):
            lines.append(line)
    assert 2 <= len(lines) and lines[-1].end < 35
    assert not watching.caption_film(captioner, cut, [tmp_path/"cut.srt"], as_json=False)
    told = capsys.readouterr()
    assert (
        f"the sentences so far are in {tmp_path/'cut.srt'}" in told.err
        and "left out: " in told.err
        and "is truncated" in told.err
    )
    assert len(read_back((tmp_path/"cut.srt").read_text(), ",")) == len(lines)
    assert watching.caption_film(
        captioner, tmp_path/"whole.mkv", [tmp_path/"whole.srt"], as_json=False
    )


def test_an_interrupt_keeps_the_lines_that_were_told(captioner, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        yield Line(0.0, 2.0, "a ball rolls")
        raise KeyboardInterrupt

    monkeypatch.setattr(subtitles, "subtitle_video", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watching.caption_film(captioner, tmp_path/"film.mp4", [tmp_path/"film.srt"], as_json=False)
    assert (
        "a ball rolls" in (tmp_path/"film.srt").read_text()
        and "the sentences so far are in" in capsys.readouterr().err
    )
