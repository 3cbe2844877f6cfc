"""Videos that somebody made to do harm: small files that unpack without end, lists that lead
elsewhere, pipes, clips of 23 days, titles and words that no font knows."""
import io
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import warnings
import zlib
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")

from conftest import Forked, long_but
from toys import film

from picknet_nb.core.figures import show_frames
from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.data import video
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.extraction import ClipShape, decode_files, extract_folder
from picknet_nb.data.video import Clip, decode_clip, read_clip, stream_frames
from picknet_nb.data.video_files import CONTAINERS, VIDEO_SUFFIXES, VideoError, find_videos
from picknet_nb.training.models import example_run
from picknet_nb.use import captioning
from picknet_nb.use.sources import Failure
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.drawing import caption_strip, drawable, original_frames, render, save_strip
from picknet_nb.interface import main as cli

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT/"data"/"example.mp4"
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits the memory of a process"
)
READERS = {
    "clip": lambda path: read_clip(path, 3, 16),
    "stream": lambda path: list(stream_frames(path, 1, 16)),
    "pictures": lambda path: list(original_frames(path, 1, 64)),
}


@pytest.fixture(autouse=True)
def patience():
    "A test that never ends is a failure and not a wait."
    def give_up(*_): raise TimeoutError("this test takes longer than two minutes")
    if hasattr(signal, "SIGALRM"):
        before = signal.signal(signal.SIGALRM, give_up)
        signal.alarm(120)
    yield
    if hasattr(signal, "SIGALRM"):
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=2)
    return folder


@pytest.fixture(scope="module")
def captioner(toy):
    return load_captioner(toy/"run", device="cpu")


# small files that unpack without end
# --------------------------------------------------------------------------------


def box(name: bytes, *content: bytes) -> bytes:
    "An element of an MP4 file."
    return struct.pack(">I4s", 8 + sum(map(len, content)), name) + b"".join(content)


def table(name: bytes, *numbers: int, rest: bytes = b"") -> bytes:
    "An element with a version and numbers."
    return box(name, struct.pack(f">{len(numbers) + 1}I", 0, *numbers), rest)


def track(
    number: int, coded: bytes, side: tuple[int, int], samples: int, size: int, place: int
) -> bytes:
    "A video track: so many samples of `size` bytes, from `place` on."
    entry = box(
        coded,
        bytes(6),
        struct.pack(">H", 1),
        bytes(16),
        struct.pack(">HHIIIH", *side, 0x480000, 0x480000, 0, 1),
        bytes(32),
        struct.pack(">Hh", 32, -1),
    )
    tables = box(
        b"stbl",
        table(b"stsd", 1, rest=entry),
        table(b"stts", 1, samples, 1),
        table(b"stsc", 1, 1, samples, 1),
        table(b"stsz", size, samples),
        table(b"stco", 1, place),
    )
    media = box(
        b"minf",
        table(b"vmhd", 0, 0),
        box(b"dinf", table(b"dref", 1, rest=table(b"url ")[:-4] + b"\0\0\0\1")),
        tables,
    )
    return box(
        b"trak",
        table(
            b"tkhd",
            0,
            0,
            number,
            0,
            samples,
            rest=bytes(60) + struct.pack(">II", 64 << 16, 64 << 16),
        ),
        box(
            b"mdia",
            table(b"mdhd", 0, 0, 25, samples, 0),
            table(b"hdlr", 0, rest=b"vide" + bytes(13)),
            media,
        ),
    )


def index_bomb(tracks: int = 1, samples: int = 85_000_000) -> bytes:
    "An index of frames that are not there."
    return box(b"ftyp", b"isom\0\0\0\0isom") + box(
        b"moov",
        table(b"mvhd", 0, 0, 25, samples, rest=bytes(80)),
        *(track(n + 1, b"mp4v", (64, 64), samples, 1, 100) for n in range(tracks)),
    )


def black_png(width: int, height: int) -> bytes:
    "A picture whose rows are all made of the same few bytes."
    chunk = lambda name, data: (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    )
    packer, row = zlib.compressobj(9, zlib.DEFLATED, -15), bytes(1 + 4 * width)
    packed = (
        (packer.compress(row) + packer.flush(zlib.Z_FULL_FLUSH)) * height
        + b"\x03\x00"
        + struct.pack(">HH", len(row) * height % 65521, 1)
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
        + chunk(b"IDAT", b"\x78\x9c" + packed)
        + chunk(b"IEND", b"")
    )


def stream_bomb(width: int, height: int, declared=None, streams: int = 10) -> bytes:
    "Many streams that share one picture: each is decoded to find out what it is."
    head, picture = box(b"ftyp", b"qt  \0\0\0\0qt  "), black_png(width, height)
    tracks = [
        track(n + 1, b"png ", declared or (width, height), 1, len(picture), len(head) + 8)
        for n in range(streams)
    ]
    return (
        head
        + box(b"mdat", picture)
        + box(b"moov", table(b"mvhd", 0, 0, 25, 1, rest=bytes(80)), *tracks)
    )


BOMBS = {
    "85 million samples": lambda: index_bomb(),
    "twice 85 million samples": lambda: index_bomb(2),
    "ten 16k streams": lambda: stream_bomb(15360, 8640),
    "ten 16k streams that say they are small": lambda: stream_bomb(15360, 8640, (64, 64)),
    "ten streams just within the limit": lambda: stream_bomb(8192, 4864),
}


def try_readers(path: Path, count: int = 4) -> None:
    """Print what this many readers say of a file, and the most memory that this process and one
    that it started took together, beyond what both had inherited: tests fork from a process that
    has imported far more than a user's."""
    import resource

    def kilobytes(what: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what))

    heard, began = [], kilobytes("VmRSS")
    for read in (
        lambda: read_clip(path, 2, 16).frames,
        lambda: list(stream_frames(path, 1, 16)),
        lambda: list(original_frames(path, 1, 64)),
        lambda: next(decode_files([("bomb", path)], ClipShape(2, 16), 1)).reason,
    )[:count]:
        try:
            heard.append(found if isinstance(found := read(), str) else "")
        except FileError as error:
            heard.append(str(error))
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    taken = kilobytes("VmHWM") - began + max(0, child - began)
    print(json.dumps({"heard": heard, "MB": taken // 1024}))


@linux
@pytest.mark.parametrize("kind", long_but(
    BOMBS, "85 million samples", "ten 16k streams that say they are small"))
def test_a_bomb_of_its_real_size_takes_less_than_two_gigabytes(tmp_path, kind):
    "This process and the largest of its decoders, together."
    (path := tmp_path/"bomb.mov").write_bytes(BOMBS[kind]())
    assert path.stat().st_size < 1_000_000
    # that one is a video, and slow to decode
    done = Forked(try_readers, path, 1 if "within" in kind else 4)
    assert done.wait() == 0, done.output()
    found = json.loads(done.output().splitlines()[-1])
    assert found["MB"] < 1000, found  # two processes that hold PyTorch have another gigabyte
    refused = [f"{path}: "] * 3 + [""]  # the last reader gives the reason alone
    assert (
        found["heard"] == [""]
        if "within" in kind
        else all(each and each.startswith(start) for each, start in zip(found["heard"], refused))
    )


@linux
def test_a_folder_is_captioned_past_its_bombs(captioner, toy, tmp_path):
    (tmp_path/"a.mp4").write_bytes(index_bomb())
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"b.mp4")
    refused, said = captioner.caption_many(find_videos([tmp_path]))
    assert isinstance(refused, Failure) and said.text


@linux
def test_a_video_that_brings_its_decoder_down_costs_only_its_own_caption(
    captioner, toy, tmp_path, monkeypatch
):
    for name in ("a", "deadly", "z"):
        shutil.copy(toy/"videos"/"example.mp4", tmp_path/f"{name}.mp4")
    monkeypatch.setattr(
        captioning,
        "decode_clip",
        lambda path, *rest: (
            os.kill(os.getpid(), signal.SIGKILL)
            if "deadly" in str(path)
            else decode_clip(path, *rest)
        ),
    )
    one, none, two = captioner.caption_many(find_videos([tmp_path]))
    assert one.text == two.text and none == Failure(
        str(tmp_path/"deadly.mp4"), "its process died (exit status -9)"
    )


def test_limits_are_named_in_the_errors_and_can_be_set(tmp_path, monkeypatch):
    path = film(tmp_path/"film.mp4", total=3)
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "100")
    # FFmpeg's limit or ours, whichever is met first: it depends on the version
    says = "film.mp4: .*(100 pixels|pixels, more than 100) .*PICKNET_FRAME_PIXELS"
    with pytest.raises(VideoError, match=says):
        read_clip(path, 2, 16)
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "many")
    with pytest.raises(
        PickNetError, match="PICKNET_FRAME_PIXELS must be a whole number, not 'many'"
    ):
        read_clip(path, 2, 16)
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "100000")
    assert len(read_clip(path, 2, 16).frames) == 2


@linux
def test_a_video_that_needs_more_memory_than_it_may_take_says_so(tmp_path, monkeypatch):
    (path := tmp_path/"large.mov").write_bytes(stream_bomb(8192, 4096, streams=1))
    assert len(read_clip(path, 1, 16).frames) == 1
    monkeypatch.setenv("PICKNET_DECODER_BYTES", str(100 << 20))
    with pytest.raises(VideoError, match="large.mov"):
        read_clip(path, 1, 16)


# a local file and nothing else
# --------------------------------------------------------------------------------------

LISTS = {
    "ffconcat": "ffconcat version 1.0\nfile secret.mp4\n",
    "ffconcat up": "ffconcat version 1.0\nfile ../secret.mp4\n",
    "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n",
    "m3u8 up": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n../secret.ts\n#EXT-X-ENDLIST\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP "
           "96\na=rtpmap:96 H264/90000\n",
    "lavfi": "testsrc=duration=1",
}


@pytest.mark.parametrize("name", long_but(("clip.mp4", "clip.m3u8", "clip.txt"), "clip.mp4"))
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_other_videos_is_no_video(tmp_path, kind, name):
    (inside := tmp_path/"in").mkdir()
    for folder in (tmp_path, inside):
        shutil.copy(EXAMPLE, folder/"secret.mp4")
        film(folder/"secret.ts")
    (inside/name).write_text(LISTS[kind])
    for read in READERS.values():
        for path in (inside/name, str(inside/name)):
            with pytest.raises(VideoError, match=name):
                read(path)
    with pytest.raises(VideoError):
        list(stream_frames(f"file://{inside/name}", 1, 16))


def test_extraction_reads_no_lists_either(tmp_path):
    (tmp_path/"in").mkdir()
    shutil.copy(EXAMPLE, tmp_path/"secret.mp4")
    (tmp_path/"in"/"list.mp4").write_text("ffconcat version 1.0\nfile ../secret.mp4\n")
    (tmp_path/"in"/"near.mp4").write_text("ffconcat version 1.0\nfile real.mp4\n")
    shutil.copy(EXAMPLE, tmp_path/"in"/"real.mp4")
    done = extract_folder(
        tmp_path/"in", tmp_path/"out", load_backbone("tiny"), frames=2, workers=1, progress=False
    )
    assert (
        done.ids == ["real"]
        and set(done.failed) == {"list", "near"}
        and "only these formats are read: mov" in done.failed["near"]
    )


CODECS = {
    ".webm": "libvpx",
    ".gif": "gif",
    ".ogv": "libvpx",
    ".wmv": "wmv2",
    ".flv": "flv1",
    ".mpg": "mpeg1video",
    ".mpeg": "mpeg2video",
    ".3gp": "mpeg4",
    ".ivf": "libvpx",
    ".mxf": "mpeg2video",
}


@pytest.mark.parametrize("ending", sorted(VIDEO_SUFFIXES))
def test_what_is_called_like_a_video_is_one_that_is_read(tmp_path, ending):
    "Every ending that a folder is searched for, and its format."
    path = tmp_path/f"clip{ending}"
    kind = {".ogv": "ogg", ".wmv": "asf", ".m4v": "mp4", ".divx": "avi", ".f4v": "mp4",
            ".qt": "mov"}.get(ending)
    with av.open(str(path), "w", format=kind) as output:
        stream = output.add_stream(CODECS.get(ending, "mpeg4"), rate=25)
        stream.width = 64
        stream.height = 48
        stream.pix_fmt = "rgb8" if ending == ".gif" else "yuv420p"
        for number in range(10):
            output.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.full((48, 64, 3), 25 * number, np.uint8), "rgb24")
                )
            )
        output.mux(stream.encode())
    with av.open(str(path)) as found:
        assert set(found.format.name.split(",")) & set(CONTAINERS)
    for read in READERS.values():
        assert len(read(path))


# pipes, sockets, devices
# --------------------------------------------------------------------------------------------


def caption_folder(folder: Path, run: Path, said: Path) -> None:
    "`picknet caption --json`, its standard output in a file."
    sys.argv = ["picknet", "caption", str(folder), "--model", str(run), "--json"]
    with open(said, "w") as output, redirect_stdout(output):
        cli.main()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_only_regular_files_are_opened(toy, tmp_path, tmp_path_factory, monkeypatch):
    """A pipe in a folder, named or in a list; a socket; a device: each is refused at once, the
    rest is captioned."""
    os.mkfifo(tmp_path/"a pipe.mp4")
    (tmp_path/"b list.mp4").write_text("ffconcat version 1.0\nfile 'a pipe.mp4'\n")
    (tmp_path/"c device.mp4").symlink_to("/dev/zero")
    shutil.copy(EXAMPLE, tmp_path/"d.mp4")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("e socket.mp4")  # the name of a socket must be short
        done = Forked(
            caption_folder,
            tmp_path,
            toy/"run",
            output := tmp_path_factory.mktemp("said")/"lines.json",
        )
        ended = done.wait(60)
    said = [json.loads(line) for line in output.read_text().splitlines()]
    assert ended == 3 and [Path(each["source"]).stem for each in said] == [
        "a pipe",
        "b list",
        "c device",
        "d",
        "e socket",
    ], done.output()
    assert [said[place]["error"] for place in (0, 2, 4)] == ["is not a regular file"] * 3
    assert "only these formats are read" in said[1]["error"] and said[3]["caption"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_every_reader_refuses_a_pipe(tmp_path):
    os.mkfifo(tmp_path/"pipe.mp4")
    done = Forked(try_readers, tmp_path/"pipe.mp4")
    assert done.wait(60) == 0, done.output()
    assert json.loads(done.output().splitlines()[-1])["heard"] == [
        f"{tmp_path}/pipe.mp4: is not a regular file"
    ] * 3 + ["is not a regular file"]


def wait_for_a_pipe(path: Path) -> None:
    "Read a file that has become a pipe just after it was looked at."
    video.check_file = lambda path: None
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try: read_clip(path)
    except KeyboardInterrupt: print("interrupted")


@linux
def test_whoever_waits_for_a_decoder_that_hangs_can_be_interrupted(tmp_path):
    os.mkfifo(tmp_path/"pipe.mp4")
    done = Forked(wait_for_a_pipe, tmp_path/"pipe.mp4")
    assert (done.wait(100), done.output().strip()) == (0, "interrupted"), done.output()


# disks that are full
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def little_room():
    "No file may grow beyond two kilobytes, which writers hear of as they hear of a full disk."
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["film.gif", "film.mp4", "strip.png", "strip.svg"])
def test_a_drawing_that_no_disk_has_room_for_is_a_sentence(
    captioner, toy, tmp_path, little_room, name
):
    "And nothing is left of it."
    caption = captioner.caption(toy/"videos"/"example.mp4")
    with pytest.raises(FileError, match=f"{name}: cannot be written: "):
        save_strip(caption, tmp_path / name) if "strip" in name else render(
            caption, tmp_path / name, rate=2
        )
    assert not list(tmp_path.iterdir())


# clips that last for ever
# -------------------------------------------------------------------------------------------


def long_clip(path: Path, seconds: int) -> Path:
    "Three frames; the last one comes late."
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 1000)
        for number, stamp in enumerate((0, 500, 1000 * seconds)):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 80 * number, np.uint8), "rgb24")
            frame.pts, frame.time_base = stamp, Fraction(1, 1000)
            for packet in stream.encode(frame): output.mux(packet)
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_clip_of_23_days_is_drawn_up_to_the_limit(captioner, tmp_path, monkeypatch, kind):
    caption = captioner.caption(path := long_clip(tmp_path/"long.mkv", 23 * 86_400))
    assert path.stat().st_size < 3000 and caption.clip.times[-1] > 1_900_000
    monkeypatch.setenv("PICKNET_RENDER_SECONDS", "3")
    with pytest.warns(
        UserWarning,
        match=r"long.mkv: only its first 3 seconds are drawn \(PICKNET_RENDER_SECONDS\)",
    ):
        made = render(caption, tmp_path/f"long.{kind}", rate=4)
    with av.open(str(made)) as container:
        assert sum(1 for _ in container.decode(video=0)) <= 12
    with pytest.warns(UserWarning, match="first 5 seconds"):
        render(caption, tmp_path/f"longer.{kind}", rate=4, seconds=5)
    assert save_strip(caption, tmp_path/"strip.png").exists()


def test_a_clip_within_the_limit_is_drawn_whole(captioner, tmp_path):
    caption = captioner.caption(long_clip(tmp_path/"short.mkv", 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made = render(caption, tmp_path/"short.mp4", rate=4)
    with av.open(str(made)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 17


# titles and words that no font knows
# --------------------------------------------------------------------------------


def with_title(path: Path, letters: bytes) -> Path:
    "A film whose title is not written in UTF-8."
    with av.open(str(path), "w") as output:
        output.metadata["title"] = "Z" * len(letters)
        stream = output.add_stream("mpeg4", rate=10)
        stream.metadata["handler_name"] = "Y" * len(letters)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(8):
            output.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.full((64, 64, 3), 30 * number, np.uint8), "rgb24")
                )
            )
        output.mux(stream.encode())
    content = path.read_bytes()
    assert b"Z" * len(letters) in content
    path.write_bytes(
        content.replace(b"Z" * len(letters), letters).replace(b"Y" * len(letters), letters)
    )
    return path


@pytest.mark.parametrize("name", long_but(("film.mp4", "film.mkv", "film.avi"), "film.mp4"))
def test_a_latin_1_title_is_captioned_drawn_and_rendered(captioner, tmp_path, name):
    caption = captioner.caption(with_title(tmp_path/name, "Ein schöner Fluß".encode("latin-1")))
    assert save_strip(caption, tmp_path/"strip.png").exists()
    for kind in ("gif", "mp4"):
        assert render(caption, tmp_path/f"film.{kind}", rate=2).exists()


WORDS = [
    r"$\frac{",
    r"$\frac{ $\frac{",
    "$",
    r"a $\undefined$ man",
    "half \ud83d a letter",
    "\udfff",
    "zero\0byte",
    "\x1b[31mred",
    "two\nlines\r\nand\ttabs",
    "\u202eright to left",
    "x" * 100_000,
    "word " * 20_000,
    "",
    " ",
    "𝔘𝔫𝔦 字幕 فيلم 🎬",
    "</text>--><script>",
    "%%EOF ) endobj",
    "\ufffe\uffff",
]


@pytest.fixture(scope="module")
def caption(captioner):
    return captioner.caption(EXAMPLE)


@pytest.mark.parametrize("word", long_but(
    WORDS, r"$\frac{", "half \ud83d a letter", "\x1b[31mred", "\u202eright to left"),
    ids=lambda word: repr(word[:12]))
def test_every_word_can_be_drawn(caption, tmp_path, word):
    "In strips and in a rendering."
    caption = replace(
        caption,
        n_best=[word],
        picked=[0, 1, 3],
        captions=[word, f"{word} 1", word],
        probabilities=caption.probabilities[:4],
        clip=Clip(*(each[:4] for each in caption.clip)),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph|.*only its first 2 seconds")
        for kind in ("svg", ("png", "pdf")[len(word) % 2]):
            content = save_strip(caption, tmp_path/f"strip.{kind}").read_bytes()
            assert 1000 < len(content) < 5_000_000 and not (
                kind == "svg" and (b"\0" in content or b"\x1b" in content)
            )
        assert render(caption, tmp_path/"out.gif", rate=1, largest=64, seconds=2).exists()


def test_a_dollar_in_a_title_is_a_dollar():
    texts = [r"$\frac{", "$", r"a $\undefined$ man"]
    figure = show_frames(
        torch.zeros(3, 3, 8, 8, dtype=torch.uint8), titles=texts, captions=texts, heading=r"$\frac{"
    )
    figure.savefig(io.BytesIO())
    assert [text.get_text() for text in figure.axes[0].texts].count("$") == 2


def test_what_is_drawn_is_one_line_without_control_characters():
    for word in WORDS:
        text = drawable(word)
        assert (
            len(text) <= 600
            and text.encode() is not None
            and not any(ord(letter) < 32 for letter in text)
        )
    assert (
        drawable("a man\n runs") == "a man runs"
        and drawable("\ud83d") == "\ufffd"
        and drawable("نمی\u200cشود") == "نمی\u200cشود"
    )


def test_a_stream_that_changes_its_shape_is_drawn(captioner, tmp_path):
    "Two films in one transport stream, one upright and one wide."
    parts = [
        film(tmp_path/f"{n}.ts", width, height, total=15).read_bytes()
        for n, (width, height) in enumerate(((64, 128), (256, 64)))
    ]
    (path := tmp_path/"both.ts").write_bytes(b"".join(parts))
    try:
        caption = captioner.caption(path)
        assert caption_strip(caption) and all(
            render(caption, tmp_path/f"both.{kind}", rate=4).exists() for kind in ("gif", "mp4")
        )
    except VideoError as refused:
        assert "both.ts" in str(refused)
