"""Extraction that is killed, decoders that die or hang, files that are no videos."""
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import safetensors
import torch
from conftest import Forked, Ranks
from reliability import wait_for
from toys import film
from torch.testing import assert_close
from typer.testing import CliRunner

from picknet_nb.core.files import FileError
from picknet_nb.core.processes import rank_and_world, usable_cores
from picknet_nb.data import extraction
from picknet_nb.data.backbones import Backbone, load_backbone
from picknet_nb.data.extraction import (
    ClipShape, decode_files, extract_folder, known_by, list_videos, part_path, read_part,
    write_part)
from picknet_nb.data.glance import glance
from picknet_nb.data.video import read_clip
from picknet_nb.data.video_files import VIDEO_SUFFIXES
from picknet_nb.use.exploration import Library
from picknet_nb.interface.main import app

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT/"data"/"example.mp4"


@pytest.fixture
def videos(tmp_path) -> Path:
    folder = tmp_path/"videos"
    folder.mkdir()
    for number in range(8):
        (folder/f"clip{number}.mp4").symlink_to(EXAMPLE)
    return folder


def extract(videos: Path, out: Path) -> None:
    done = extract_folder(videos, out, load_backbone("tiny"), workers=1, progress=False)
    print(len(done.ids), done.made, len(done.failed))


def parts(out: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted((out/"parts").glob("*.safetensors"))
    }


def test_killed_and_resumed(videos, tmp_path):
    """SIGKILL at random moments: nothing finished is lost, nothing is done twice, the result is
    that of an undisturbed run."""
    whole, torn, chance = tmp_path/"whole", tmp_path/"torn", random.Random(0)
    extract_folder(videos, whole, load_backbone("tiny"), workers=1, progress=False)
    for _ in range(3):
        process = Forked(extract, videos, torn)
        before = parts(torn) if (torn/"parts").exists() else {}
        made = lambda: len(list((torn/"parts").glob("*.safetensors")))
        wait_for(lambda: process.poll() is not None or made() > len(before))
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.wait()
        after = parts(torn)
        assert all(after[name] == content for name, content in before.items())
    before = parts(torn)
    last = Forked(extract, videos, torn)
    assert last.wait(180) == 0
    after = parts(torn)
    assert last.output().split() == ["8", str(8 - len(before)), "0"]
    assert all(after[name] == content for name, content in before.items())
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in parts(whole).items()
    }


def test_decoders_end_with_their_parent(videos, tmp_path):
    "No process stays behind when the parent is killed."
    process = Forked(extract, videos, tmp_path/"out")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    found = wait_for(lambda: children.read_text().split())
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in found))


def test_shards_of_two_processes(videos, tmp_path):
    "Two processes share the files, and each knows at the end what failed anywhere."
    (videos/"empty.mp4").touch()

    def extract():
        done = extract_folder(
            videos, tmp_path/"out", load_backbone("tiny"), workers=1, progress=False
        )
        (tmp_path/f"out.{os.environ['RANK']}").write_text(
            f"{len(done.ids)} {done.made} {len(done.failed)}"
        )

    both = Ranks(extract)
    assert both.wait() == 0, both.output()
    said = [Path(f"{tmp_path}/out.{rank}").read_text().split() for rank in range(2)]
    assert [ids for ids, _, _ in said] == ["8", "8"] and [failed for _, _, failed in said] == [
        "1",
        "1",
    ]
    assert sum(int(made) for _, made, _ in said) == 8 and all(int(made) for _, made, _ in said)
    alone = extract_folder(
        videos, tmp_path/"alone", load_backbone("tiny"), workers=1, progress=False
    )
    for name in alone.ids:
        assert_close(read_part(tmp_path/"out", name), read_part(tmp_path/"alone", name))


def test_one_of_two_processes_alone(videos, tmp_path, monkeypatch):
    "Whoever is told to does all files and waits for nobody."
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world() == (1, 2)
    done = extract_folder(
        videos, tmp_path/"out", load_backbone("tiny"), workers=1, progress=False, alone=True
    )
    assert (len(done.ids), done.made, done.failed) == (8, 8, {})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot be kept to some cores")
def test_cores_that_may_be_used():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(before)])
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cores() == len(before)


def audio_only(path: Path) -> None:
    import av
    import numpy as np

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 44100), np.float32), format="fltp", layout="mono"
        )
        frame.rate = 44100
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def test_bad_files_among_good_ones(videos, tmp_path, capfd):
    content = EXAMPLE.read_bytes()
    (videos/"empty.mp4").touch()
    (videos/"torn.mp4").write_bytes(content[: len(content) // 3])
    (videos/"garbled.mp4").write_bytes(random.Random(1).randbytes(20_000))
    audio_only(videos/"sound.mp4")
    (videos/"notes.txt").write_text("not looked at")
    done = extract_folder(videos, tmp_path/"out", load_backbone("tiny"), workers=2)
    assert len(done.ids) == 8 and set(done.failed) == {"empty", "torn", "garbled", "sound"}
    lines = [
        line
        for line in capfd.readouterr().err.replace("\r", "\n").splitlines()
        if line.startswith("skipped")
    ]
    assert (
        len(lines) == 4
        and any("empty" in line for line in lines)
        and any("no video" in line for line in lines)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="patches what forked decoders do")
def test_decoder_that_dies(videos, tmp_path, monkeypatch):
    """Killed once, the file is tried again; killed every time, it is reported; the others come
    through."""
    once = tmp_path/"once"

    def deadly(path, *rest):
        if "clip3" in path or ("clip5" in path and not once.exists()):
            once.touch() if "clip5" in path else None
            os.kill(os.getpid(), signal.SIGKILL)
        return read_clip(path, *rest)

    monkeypatch.setattr(extraction, "read_clip", deadly)
    done = extract_folder(videos, tmp_path/"out", load_backbone("tiny"), workers=2, progress=False)
    assert (
        set(done.failed) == {"clip3"}
        and "its process died (exit status -9)" in done.failed["clip3"]
    )
    assert len(done.ids) == 7 and once.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="patches what forked decoders do")
def test_decoder_that_hangs(videos, monkeypatch):
    "A decoder that does not come back is ended after its time."
    monkeypatch.setattr(
        extraction,
        "read_clip",
        lambda path, *rest: time.sleep(1000) if "clip0" in path else read_clip(path, *rest),
    )
    monkeypatch.setattr(extraction, "_GRACE", 0.5)
    jobs = [("clip0", videos/"clip0.mp4"), ("clip1", videos/"clip1.mp4")]
    results = {
        each.name: each for each in decode_files(jobs, ClipShape(4, 32, time_limit=0.5), workers=2)
    }
    assert "time limit" in results["clip0"].reason


def test_a_replaced_video_is_extracted_again(videos, tmp_path):
    """Other content under the same name, of another or the same size and age; one that was only
    copied or touched is not."""
    again = lambda: extract_folder(
        videos, tmp_path/"out", load_backbone("tiny"), frames=3, workers=1, progress=False
    )
    again()
    before = parts(tmp_path/"out")
    for number in (0, 1):
        (videos/f"clip{number}.mp4").unlink()
    film(videos/"clip0.mp4")
    (videos/"clip1.mp4").write_bytes(EXAMPLE.read_bytes())
    done, after = again(), parts(tmp_path/"out")
    assert done.made == 1 and {name for name in after if after[name] != before[name]} == {
        "clip0.safetensors"
    }
    assert_close(
        read_part(tmp_path/"out", "clip0")["features"],
        load_backbone("tiny")(read_clip(videos/"clip0.mp4", 3, 96).frames).half(),
    )
    assert again().made == 0
    about = (videos/"clip0.mp4").stat()
    # as long and as old as the film was, and none
    (videos/"clip0.mp4").write_bytes(bytes(about.st_size))
    os.utime(videos/"clip0.mp4", ns=(about.st_atime_ns, about.st_mtime_ns))
    done = again()
    # the old features are no stand-in
    assert (
        done.made == 0 and "clip0" in done.failed and "clip0" not in done.ids and len(done.ids) == 7
    )


def test_what_a_large_file_is_known_by(tmp_path, monkeypatch):
    "Pieces from its beginning to its end, so that no more is read of a film of many gigabytes."
    (path := tmp_path/"film.mp4").write_bytes(content := random.Random(0).randbytes(1000))
    whole = known_by(path)
    assert whole == f"1000 bytes, SHA-256 {hashlib.sha256(content).hexdigest()}"
    monkeypatch.setattr(extraction, "_PIECE", 10)
    monkeypatch.setattr(extraction, "_PIECES", 20)
    known = known_by(path)
    assert known != whole
    for place in (0, 505, 959):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        assert known_by(path) != known
    path.write_bytes(content + b"!")
    assert known_by(path) != known and known_by(tmp_path) == known_by(tmp_path/"none.mp4") == ""


def test_parts_that_do_not_say_of_what_they_are_made_and_videos_that_are_gone(videos, tmp_path):
    """The part of a video that somebody has put away is believed; one that does not say of what
    it is made, and one that is torn, are made again."""
    again = lambda: extract_folder(
        {f"clip{n}": videos/f"clip{n}.mp4" for n in range(3)},
        tmp_path/"out",
        load_backbone("tiny"),
        frames=3,
        workers=1,
        progress=False,
    )
    again()
    write_part(tmp_path/"out", "clip0", **read_part(tmp_path/"out", "clip0"))
    (videos/"clip1.mp4").unlink()
    torn = part_path(tmp_path/"out", "clip2")
    torn.write_bytes(torn.read_bytes()[:50])
    done = again()
    assert (
        done.made == 2
        and done.ids == ["clip0", "clip1", "clip2"]
        and read_part(tmp_path/"out", "clip2")["features"].shape == (3, 256)
    )


def test_one_video_always_makes_the_same_part(videos, tmp_path):
    "Down to the last bit, whatever its name and its age."
    (videos/"clip1.mp4").unlink()
    (videos/"clip1.mp4").write_bytes(EXAMPLE.read_bytes())
    extract_folder(
        videos, tmp_path/"out", load_backbone("tiny"), frames=2, workers=2, progress=False
    )
    assert (
        len(made := parts(tmp_path/"out")) == 8
        and len({content for content, _ in made.values()}) == 1
    )
    with safetensors.safe_open(part_path(tmp_path/"out", "clip0"), "pt") as part:
        # one entry: safetensors writes several in any order
        assert part.metadata() == {"video": known_by(EXAMPLE)}


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_nothing_is_written_through_a_link(videos, tmp_path):
    (elsewhere := tmp_path/"elsewhere").mkdir()
    (tmp_path/"out").mkdir()
    (tmp_path/"out"/"parts").symlink_to(elsewhere)
    with pytest.raises(FileError, match="parts: is a link, and nothing is written through it"):
        extract_folder(
            videos, tmp_path/"out", load_backbone("tiny"), frames=2, workers=1, progress=False
        )
    assert not list(elsewhere.iterdir())


def read_and_make_again(folder: Path) -> None:
    try:
        read_part(folder, "clip0")
    except FileError as error:
        print(error.reason)
    print(
        extract_folder(
            {"clip0": EXAMPLE}, folder, load_backbone("tiny"), frames=2, workers=1, progress=False
        ).made
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_a_part_is_not_waited_for(tmp_path):
    (tmp_path/"parts").mkdir()
    os.mkfifo(tmp_path/"parts"/"clip0.safetensors")
    done = Forked(read_and_make_again, tmp_path)
    assert (
        done.wait(60) == 0
        and done.output() == "cannot be read: a folder, a pipe or a device, not a regular file\n1\n"
    ), done.output()


def test_names_are_shown_and_not_obeyed(tmp_path, capfd):
    "A file called like a command to the terminal, or like two lines."
    (tmp_path/"videos").mkdir()
    for name in ("\x1b[31mred.mp4", "two\nlines.mp4", "x" * 210 + os.fsdecode(b"\xe9.mp4")):
        (tmp_path/"videos" / name).write_text("no film")
    extract_folder(tmp_path/"videos", tmp_path/"out", load_backbone("tiny"), workers=1)
    lines = [
        line
        for line in capfd.readouterr().err.replace("\r", "\n").splitlines()
        if "no film" in line or ".mp4" in line
    ]
    assert len(lines) == 3 and all("skipped" in line and "\x1b[31m" not in line for line in lines)
    assert sum("/\\x1b[31mred.mp4: " in line or "/two\\nlines.mp4: " in line for line in lines) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="patches what forked decoders do")
def test_a_decoder_that_swells_is_refused_memory(videos, tmp_path, monkeypatch):
    monkeypatch.setenv("PICKNET_DECODER_BYTES", str(200 << 20))
    monkeypatch.setattr(
        extraction,
        "read_clip",
        lambda path, *rest: bytearray(1 << 30) if "clip3" in path else read_clip(path, *rest),
    )
    done = extract_folder(
        videos, tmp_path/"out", load_backbone("tiny"), frames=2, workers=1, progress=False
    )
    assert (
        set(done.failed) == {"clip3"}
        and "MemoryError" in done.failed["clip3"]
        and len(done.ids) == 7
    )


def test_other_settings_are_refused(videos, tmp_path):
    extract_folder(
        {"clip0": videos/"clip0.mp4"},
        tmp_path/"out",
        load_backbone("tiny"),
        workers=1,
        progress=False,
    )
    with pytest.raises(FileError, match="begun with frames 30, not 10"):
        extract_folder(
            videos, tmp_path/"out", load_backbone("tiny"), frames=10, workers=1, progress=False
        )


@pytest.mark.parametrize("name, other", [
    ("name", "other"), ("weights", "other.safetensors 012345abcdef"), ("image_size", 64)])
def test_a_corpus_does_not_mix_backbones(videos, tmp_path, name, other):
    "A backbone of another name, with other weights or of another size does not go on."
    one, first = load_backbone("tiny"), {"clip0": videos/"clip0.mp4"}
    extract_folder(first, tmp_path/"out", one, workers=1, progress=False)
    before = parts(tmp_path/"out")
    another = load_backbone("tiny")
    setattr(another, name, other)
    said = f"begun with {'cnn' if name == 'name' else name} .*, not {other!r}"
    with pytest.raises(FileError, match=said):
        extract_folder(videos, tmp_path/"out", another, workers=1, progress=False)
    assert parts(tmp_path/"out") == before


def test_features_are_those_of_the_frames(videos, tmp_path):
    extract_folder(
        videos,
        tmp_path/"out",
        load_backbone("tiny"),
        frames=7,
        glance_size=20,
        workers=1,
        progress=False,
    )
    part, frames = read_part(tmp_path/"out", "clip0"), read_clip(EXAMPLE, 7, 96).frames
    assert torch.equal(part["glances"], glance(frames, 20))
    assert_close(part["features"], load_backbone("tiny")(frames).half())


def test_a_folder_is_searched_for_what_is_called_like_a_video(tmp_path):
    "Known endings, also in capital letters, unless the file hides."
    known = [f"clip{number}{ending}" for number, ending in enumerate(sorted(VIDEO_SUFFIXES))]
    others = "noend", "odd.xyz", "._LOUD.MKV", ".hidden.mp4", "captions.JSON", "thumb.jpg", "a.zip"
    for name in (*known, "LOUD.MKV", *others):
        (tmp_path / name).touch()
    (tmp_path/"folder.mp4").mkdir()
    assert {path.name for path in list_videos(tmp_path).values()} == {*known, "LOUD.MKV"}


def test_prepare_caption_and_explore_list_a_folder_alike(tmp_path):
    "An ending that few videos have, a link to a file, and one to a file that is gone."
    folder = tmp_path/"videos"
    (folder/"more").mkdir(parents=True)
    shutil.copy(EXAMPLE, folder/"old.divx")
    shutil.copy(EXAMPLE, folder/"more"/"new.mp4")
    (folder/"link.avi").symlink_to(EXAMPLE)
    (folder/"gone.avi").symlink_to(tmp_path/"nowhere.avi")
    (folder/"notes.txt").touch()
    (folder/".hidden.mp4").touch()
    prepared = list(list_videos(folder).values())
    assert [path.name for path in prepared] == ["gone.avi", "link.avi", "new.mp4", "old.divx"]
    said = CliRunner().invoke(app, ["caption", str(folder), "--json", "--model", "shapes"])
    captioned = [json.loads(line)["source"] for line in said.stdout.splitlines()]
    assert sorted(captioned) == sorted(map(str, prepared))
    assert Library(folder).names == ["link.avi", "more/new.mp4", "old.divx"]  # gone.avi is gone


@pytest.mark.parametrize(
    "videos, reason",
    [
        ("nowhere", "no such folder"),
        (str(EXAMPLE), "is a file, not a folder"),
        (["a/x.mp4", "b/x.avi"], "same id"),
    ],
)
def test_what_is_no_folder_of_videos_is_refused(videos, reason):
    with pytest.raises(FileError, match=reason):
        list_videos(videos)


def test_ids_that_are_no_file_names_have_parts_all_the_same(videos, tmp_path):
    ids = ["../../elsewhere", "x" * 1000, "a/b", "ein Fluß"]
    done = extract_folder(
        {name: videos/"clip0.mp4" for name in ids},
        tmp_path/"out",
        load_backbone("tiny"),
        frames=2,
        workers=1,
        progress=False,
    )
    assert done.ids == ids and not done.failed
    assert (
        len(list((tmp_path/"out"/"parts").glob("*.safetensors"))) == 4
        and not (tmp_path.parent/"elsewhere.safetensors").exists()
    )


def test_a_network_of_ones_own_extracts_too(videos, tmp_path):
    """Even one without a single number of its own: nothing says on which device it is but the
    network itself."""
    colours = Backbone(
        "colours", torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()), 3, 16
    )
    done = extract_folder(
        {"clip0": videos/"clip0.mp4"},
        tmp_path/"out",
        colours,
        frames=3,
        workers=1,
        progress=False,
    )
    assert done.ids == ["clip0"] and read_part(tmp_path/"out", "clip0")["features"].shape == (
        3,
        3,
    )


def test_no_process_is_left_when_nobody_wants_more(videos):
    "A generator that is dropped half way ends its decoders."
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    before = set(children.read_text().split())
    clips = decode_files(
        [(path.stem, path) for path in sorted(videos.iterdir())], ClipShape(4, 32), workers=2
    )
    next(clips)
    assert set(children.read_text().split()) - before
    clips.close()
    assert not set(children.read_text().split()) - before
