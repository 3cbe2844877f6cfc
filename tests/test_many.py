"Lists of videos as rows, and as tables on disk, on this machine; on a cluster: test_cluster.py."
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Forked
from lists import (  # noqa: F401, fixtures
    SHAPES, captioner, good, read, rows, send, served, videos)
from reliability import wait_for
from toys import invoked

import picknet_nb as pn
from picknet_nb.core import processes
from picknet_nb.core.files import FileError, PickNetError, WriteError, scratch_folder
from picknet_nb.core.processes import connected
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.video_files import DRAWING, VIDEO_SUFFIXES, VideoError, find_videos
from picknet_nb.interface.watch import DRAWN, MOVING, ROWS, WRITTEN, listed_sources
from picknet_nb.training.models import find_model
from picknet_nb.use import cluster, many, sources, tables
from picknet_nb.use.captioning import Failure, VideoCaptioner
from picknet_nb.use.cluster import Share, block_sizes, share_of, specification_of
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.many import COLUMNS, Specification
from picknet_nb.use.sources import check_sources, path_of
from picknet_nb.use.tables import Table, caption_list


@pytest.fixture(autouse=True)
def loaded_once(captioner, monkeypatch):  # noqa: F811
    "The model of the toy world is loaded once, for all tests."
    real = Specification.load

    def load(self, *options, **named):
        usual = self == SHAPES and not any(options) and not any(named.values())
        return captioner if usual else real(self, *options, **named)

    monkeypatch.setattr(Specification, "load", load)


def quietly(*arguments, **options):
    return caption_list(*arguments, progress=False, **options)


# --- rows

def test_every_video_has_one_row_and_a_broken_one_says_why(videos, rows, captioner):
    assert [row["source"] for row in rows] == videos
    for row in rows:
        good = Path(row["source"]).stem.isdecimal()
        assert bool(row["caption"]) == bool(row["picked"]) == (row["error"] is None) == good
        about = os.stat(row["source"])
        assert row["size"] == about.st_size
        assert row["version"].replace(".", "") == str(about.st_mtime_ns)
        assert row["made_with"] == captioner.made_with and tuple(row) == COLUMNS
    assert len({row["error"] for row in rows if row["error"]}) == 4


def test_what_nobody_foresaw_costs_one_row(videos, rows, captioner, monkeypatch):
    real = captioner.captioner.caption_many

    def fails(paths, *others, **options):
        for path, found in zip(paths := list(paths), real(paths, *others, **options)):
            if path == Path(videos[3]): raise RuntimeError("out of luck")
            yield found

    monkeypatch.setattr(captioner.captioner, "caption_many", fails)
    found = {row["source"]: row for row in captioner.rows(videos)}
    assert found.pop(videos[3])["error"] == "RuntimeError: out of luck"
    assert found == {row["source"]: row for row in rows if row["source"] != videos[3]}


def test_a_caption_that_cannot_become_a_row_has_a_row_with_the_reason(
    videos, captioner, monkeypatch
):
    real = many.row_of

    def fails(source, identity, found, *others):
        if source == videos[0] and not isinstance(found, Failure): raise RuntimeError("no row")
        return real(source, identity, found, *others)

    monkeypatch.setattr(many, "row_of", fails)
    found = {row["source"]: row["error"] for row in captioner.rows(videos[:2])}
    assert set(found) == set(videos[:2]) and found[videos[0]] == "RuntimeError: no row"


@pytest.mark.parametrize("other", (
    {"beam": 3}, {"threshold": 0.4}, {"picker": "uniform-2"}, {"model": "copy"}))
def test_rows_say_what_they_were_made_with(captioner, other, tmp_path):
    if "model" in other:  # that differs from the other in one file
        shutil.copytree(find_model("shapes"), copy := tmp_path/"copy")
        about = (copy/"run.json").read_text()
        (copy/"run.json").write_text(about.replace("shapes, seed 0", "shapes, again"))
        other = {"model": str(copy)}
    made = Specification(**{"model": "shapes", **other}).load()
    assert made.made_with != captioner.made_with
    assert made.beam == other.get("beam", made.captioner.decoding.beam)
    own = load_captioner(find_model("shapes")).picker.threshold
    assert made.captioner.picker.threshold == other.get("threshold", own)


@pytest.mark.parametrize("changed", ("weights.safetensors", "vocabulary.json", "run.json"))
def test_a_model_is_known_by_its_content_and_not_by_its_folder(tmp_path, changed):
    shutil.copytree(find_model("shapes"), model := tmp_path/"model")
    before = many.model_digest(find_model("shapes"), "file 12ab")
    assert many.model_digest(model, "file 12ab") == before != many.model_digest(model, "x 12ac")
    content = (model/changed).read_bytes()
    (model/changed).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert many.model_digest(model, "file 12ab") != before


def replacing_while_read(captioner, video: str, others: list[str], monkeypatch) -> None:
    "Replace a video by one of the others each time that it is given to the reader."
    real, others = captioner.captioner.caption_many, iter(others)

    def caption_many(paths, *how, **options):
        def given():
            for path in paths:
                if path == Path(video) and (other := next(others, None)):
                    shutil.copy(other, f"{video}.new")
                    os.replace(f"{video}.new", video)
                yield path

        yield from real(given(), *how, **options)

    monkeypatch.setattr(captioner.captioner, "caption_many", caption_many)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path, good, rows, captioner, monkeypatch
):
    shutil.copy(good[0], video := str(tmp_path/"v.mp4"))
    replacing_while_read(captioner, video, good[1:2], monkeypatch)
    found = {row["source"]: row for row in captioner.rows([video, *good[2:]])}
    assert found[video]["size"] == os.path.getsize(good[1])
    assert found[video]["version"] == sources.identity_of(video).version
    assert found[video]["caption"] == next(
        row["caption"] for row in rows if row["source"] == good[1])
    assert [found[name] for name in good[2:]] == [row for row in rows if row["source"] in good[2:]]


def test_a_file_that_is_replaced_again_and_again_says_so_and_is_tried_by_the_next_call(
    tmp_path, good, captioner, monkeypatch
):
    shutil.copy(good[0], video := str(tmp_path/"v.mp4"))
    replacing_while_read(captioner, video, good[1:3], monkeypatch)
    quietly([video], out := tmp_path/"rows.jsonl", SHAPES)
    (row,) = read(out)
    assert row["caption"] is None and "was replaced while it was read" in row["error"]
    assert row["size"] == os.path.getsize(good[0]), "not the identity of what stands there now"
    monkeypatch.undo()
    assert quietly([video], out, SHAPES).done == 1 and read(out)[0]["caption"]


@pytest.mark.parametrize("moment", ("info", "ukey", "open"))
def test_an_object_that_is_replaced_while_it_is_opened_is_never_taken_for_the_new_one(
    tmp_path, good, monkeypatch, moment
):
    fsspec = pytest.importorskip("fsspec")
    kind, size = type(fsspec.filesystem("local")), max(map(os.path.getsize, good[:2]))
    for name, path in zip(("v.mp4", "new"), good):  # of one length, so that this tells nothing
        (tmp_path/name).write_bytes(Path(path).read_bytes().ljust(size, b"\0"))
    video, real = tmp_path/"v.mp4", getattr(kind, moment)

    def then_replaced(*arguments, **options):
        found = real(*arguments, **options)
        monkeypatch.undo()
        os.replace(tmp_path/"new", video)
        return found

    monkeypatch.setattr(kind, moment, then_replaced)
    address, copy = f"local://{video}", tmp_path/"copy.mp4"
    known = sources.copy_source(address, copy)
    assert sources.identity_of(address) != known or copy.read_bytes() == video.read_bytes()


# --- names

ODD = (b"bad\xff.mp4", b" blank .mp4 ", "\u2028.mp4".encode(), b"100%41.mp4", b"line\nbreak.mp4")


@pytest.mark.parametrize("ending", tables.FORMATS)
def test_odd_names_are_kept_whole(tmp_path, videos, ending):
    paths = [os.fsdecode(os.fsencode(tmp_path) + b"/" + name) for name in ODD]
    for path in paths:
        shutil.copy(videos[0], path)
    out = tmp_path/f"rows{ending}"
    assert quietly(paths, out, SHAPES).failed == 0
    found = [row["source"] for row in read(out)]
    assert [str(path_of(source)) for source in found] == paths
    assert all(source.encode() for source in found)
    # what a table calls a video is also what a list may call it
    assert quietly(found, out, SHAPES).done == 0


def test_an_error_with_an_odd_name_in_it_can_be_stored(tmp_path, videos, captioner, monkeypatch):
    pytest.importorskip("pyarrow")
    wrong = lambda *_, **__: (_ for _ in ()).throw(RuntimeError(os.fsdecode(b"no \xff")))
    monkeypatch.setattr(captioner.captioner, "caption_many", wrong)
    quietly(videos[:1], tmp_path/"rows.parquet", SHAPES)
    assert read(tmp_path/"rows.parquet")[0]["error"] == "RuntimeError: no \\udcff"


@pytest.mark.parametrize("content, names", (
    (b"\xef\xbb\xbfa.mp4\r\nb.mp4\r\n", ["a.mp4", "b.mp4"]),
    ("a\u2028b.mp4\n\x0c\n".encode(), ["a\u2028b.mp4"]),
    (b"  a.mp4 \n s3://b/c.mp4 \n\n", ["a.mp4", "s3://b/c.mp4"]),
    (b" blank.mp4 \n", [" blank.mp4 "]),
    (b"bad\xff.mp4", [os.fsdecode(b"bad\xff.mp4")]),
))
def test_a_list_is_read_line_by_line(tmp_path, monkeypatch, content, names):
    monkeypatch.chdir(tmp_path)
    Path(" blank.mp4 ").touch()
    Path("list.txt").write_bytes(content)
    assert listed_sources([], Path("list.txt")) == names


def test_outputs_are_never_taken_for_videos(tmp_path):
    endings = {*DRAWN, *MOVING, *WRITTEN, *ROWS}
    assert endings & VIDEO_SUFFIXES == set(MOVING)
    for ending in endings:
        (tmp_path/f"a{ending}").write_bytes(b"what was " + DRAWING)
        (tmp_path/f"b{ending.upper()}").write_bytes(b"what was " + DRAWING)
    (tmp_path/"rows.jsonl.parts").mkdir()
    (tmp_path/"rows.jsonl.parts"/"part-000000.jsonl").touch()
    (tmp_path/"film.mp4").touch()
    with pytest.warns(UserWarning, match="has drawn it"):
        assert find_videos([tmp_path]) == [tmp_path/"film.mp4"]


# --- addresses

def test_an_address_is_copied_and_captioned_like_its_file(videos, rows, captioner, monkeypatch):
    folder = Path(videos[0]).parent

    def answer(handler):
        file = folder/handler.path.lstrip("/")
        send(handler, file.read_bytes(), ETag='"1"') if file.exists() else handler.send_error(404)

    with served(answer) as base:
        asked = [f"{base}/00.mp4", f"{base}/none.mp4", videos[1], "nowhere://x.mp4"]
        found = {row["source"]: row for row in captioner.rows(asked)}
        assert found[asked[0]] == {**rows[0], "source": asked[0], "version": '"1"'}
        assert found[asked[1]]["error"] == "the server has no such file (404)"
        assert found[videos[1]] == rows[1]
        assert "nowhere" in found["nowhere://x.mp4"]["error"]
        monkeypatch.setenv("PICKNET_SOURCE_BYTES", "100")
        (large,) = captioner.rows(asked[:1])
        assert large["error"] == "has more than 100 bytes (PICKNET_SOURCE_BYTES)"


def test_an_object_of_a_file_system_is_captioned_like_its_file(videos, rows, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    asked = ["memory://archive/00.mp4", "memory://archive/none.mp4"]
    fsspec.filesystem("memory").pipe("/archive/00.mp4", Path(videos[0]).read_bytes())
    quietly(asked, tmp_path/"rows.jsonl", SHAPES)
    found, missing = read(tmp_path/"rows.jsonl")
    assert found == {**rows[0], "source": asked[0], "version": found["version"]}
    assert missing["error"] == "no such file"
    assert quietly(asked[:1], tmp_path/"rows.jsonl", SHAPES).done == 0
    fsspec.filesystem("memory").pipe("/archive/00.mp4", Path(videos[1]).read_bytes())
    assert quietly(asked[:1], tmp_path/"rows.jsonl", SHAPES).done == 1


def test_an_object_of_s3_is_captioned_like_its_file(videos, rows, tmp_path, monkeypatch):
    "Against a server on this machine that behaves like S3; it is set as a user would set it."
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "of-a-test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        store = fsspec.filesystem("s3")
        store.mkdir("archive")
        store.pipe("archive/00.mp4", Path(videos[0]).read_bytes())
        asked = ["s3://archive/00.mp4", "s3://archive/none.mp4", "s3://nowhere/00.mp4"]
        quietly(asked, tmp_path/"rows.jsonl", SHAPES)
        found, *missing = read(tmp_path/"rows.jsonl")
        assert found == {**rows[0], "source": asked[0], "version": found["version"]}
        assert [row["error"] for row in missing] == ["no such file"] * 2
    finally:
        server.stop()


@pytest.mark.parametrize("module, address, said", (
    ("s3fs", "s3://archive/a.mp4", "s3:// needs: pip install s3fs"),
    ("gcsfs", "gs://archive/a.mp4", "gs:// needs: pip install gcsfs"),
    ("fsspec.registry", "s3://archive/a.mp4",
     's3:// needs fsspec: pip install "picknet_nb[ray]"'),
))
def test_a_missing_package_is_named_before_a_list_begins(
    tmp_path, videos, monkeypatch, module, address, said
):
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.delitem(registry._registry, address.partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    out = tmp_path/"rows.jsonl"
    with pytest.raises(PickNetError) as error:
        quietly([videos[0], address], out, SHAPES)
    assert str(error.value) == said and not list(tmp_path.iterdir())
    check_sources([videos[0], f"file://{videos[0]}", "https://nowhere/a.mp4"])  # these need none


def silent(handler): released.wait()


def dripping(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not released.wait(0.05):
        handler.wfile.write(b"a")


def ending(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"a")


def moved(address: str):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
    return answer


released = threading.Event()


@pytest.fixture
def let_go():
    "Servers that wait give up when the test is over."
    released.clear()
    yield
    released.set()


@pytest.mark.parametrize("answer, limits, said", (
    (silent, {"SILENT": 1}, "next to nothing came for 1 seconds (PICKNET_SILENT_SECONDS)"),
    (dripping, {"SILENT": 1}, "next to nothing came for 1 seconds (PICKNET_SILENT_SECONDS)"),
    (dripping, {"SOURCE": 1}, "took longer than 1 seconds (PICKNET_SOURCE_SECONDS)"),
    (ending, {}, "ended after 1 of 1,000 bytes"),
    (lambda handler: handler.send_error(503), {},
     "cannot be read: HTTP Error 503: Service Unavailable"),
    (moved("/a.mp4"), {}, "cannot be read: HTTP Error 302: The HTTP server returned a redirect "
     "error that would lead to an infinite loop."),
    # a server names no file of this machine
    (moved(Path(__file__).as_uri()), {}, "cannot be read: HTTP Error 302: Found - Redirection to "
     f"url '{Path(__file__).as_uri()}' is not allowed"),
))
def test_a_bad_address_costs_its_own_row_and_leaves_no_copy(
    videos, rows, captioner, tmp_path, monkeypatch, let_go, answer, limits, said
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, seconds in limits.items():
        monkeypatch.setenv(f"PICKNET_{name}_SECONDS", str(seconds))
    with served(answer) as base:
        found = list(captioner.rows([f"{base}/a.mp4", *videos[:2]]))
        released.set()
    assert found[:2] == rows[:2], "files do not wait for addresses"
    assert found[2]["error"] == said and not list(tmp_path.iterdir())


def test_a_copy_that_fails_leaves_no_file(tmp_path, videos, monkeypatch):
    with served(ending) as base, pytest.raises(VideoError, match="ended after"):
        sources.copy_source(f"{base}/a.mp4", tmp_path/"copy.mp4")
    monkeypatch.setenv("PICKNET_SOURCE_BYTES", "100")
    with pytest.raises(VideoError, match="has more than"):
        sources.copy_source(f"local://{videos[0]}", tmp_path/"copy.mp4")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_list_that_waits_for_a_silent_server(
    tmp_path, videos, rows, monkeypatch, let_go
):
    asked = []

    def answer(handler):
        asked.append(handler)
        released.wait()

    with served(answer) as base:
        out = tmp_path/"rows.jsonl"
        process = Forked(quietly, [f"{base}/a.mp4", *videos[:2]], out, SHAPES)
        wait_for(lambda: asked or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        # nothing is computed meanwhile, and the limit of a silent server is 30 seconds
        assert process.wait(still=15) == 1 and "KeyboardInterrupt" in process.output()
        released.set()
    kept = [row for part in (tmp_path/"rows.jsonl.parts").glob("part-*") for row in read(part)]
    assert kept == rows[:2], "what was finished is kept"


def test_a_copy_that_does_not_fit_takes_no_other_along(
    videos, good, rows, captioner, tmp_path, monkeypatch
):
    "Room for one copy, but not for the large one; what does not fit beside others is tried alone."
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path/"copies"))
    (tmp_path/"copies").mkdir()
    (tmp_path/"large.mp4").write_bytes(Path(good[0]).read_bytes() + bytes(500_000))
    real = sources._write_blocks

    def on_a_small_disk(address, read, file):
        content = read(-1)
        file.write(content[: len(content) // 2])
        others = sum(path.stat().st_size for path in Path(file.name).parent.iterdir())
        if others + len(content) > 400_000 or len(os.listdir(Path(file.name).parent)) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content[: len(content) // 2]) + file.write(content[len(content) // 2 :])

    monkeypatch.setattr(sources, "_write_blocks", on_a_small_disk)
    asked = [f"local://{path}" for path in (tmp_path/"large.mp4", *good)]
    found = {row["source"]: row for row in captioner.rows(asked)}
    large = found.pop(asked[0])["error"]
    assert large == f"its copy does not fit into {tmp_path/'copies'} (No space left on device)"
    wanted = {row["source"]: row["caption"] for row in rows}
    assert [found[source]["caption"] for source in asked[1:]] == [wanted[path] for path in good]
    assert not list((tmp_path/"copies").iterdir())
    # a video whose size is known is not even begun
    monkeypatch.setattr(sources, "_write_blocks", real)
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    (row,) = captioner.rows(asked[1:2])
    assert "does not fit" in row["error"] and not list((tmp_path/"copies").iterdir())


def test_copies_of_killed_processes_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def busy():
        with scratch_folder("copies") as folder:
            (folder/"half").touch()
            signal.pause()

    first, second = started = Forked(busy), Forked(busy)
    try:
        wait_for(lambda: len(list(tmp_path.glob(".*/half"))) == 2)
        first.kill()
        first.wait()
        with scratch_folder("copies"):
            assert len(list(tmp_path.glob(".*/half"))) == 1, "the other one is in use"
    finally:
        for process in started: process.kill()
    second.wait()
    with scratch_folder("copies"): pass
    assert not list(tmp_path.iterdir())


# --- tables

@pytest.mark.parametrize("ending", tables.FORMATS)
def test_a_list_becomes_a_table_and_is_continued(tmp_path, videos, good, rows, ending):
    out = tmp_path/f"captions{ending}"
    first = quietly(videos[5:], out, SHAPES)
    again = quietly([*videos, videos[0]], out, SHAPES)
    failed = len(videos) - len(good)
    assert (first.done, again.done, again.videos) == (3, len(videos), len(videos))
    assert read(out) == rows, "in the order of the list"
    assert sorted(os.listdir(f"{out}.parts")) == [".lock", ".locked_by"]
    once_more = quietly(good[:1], out, SHAPES)
    assert (once_more.done, once_more.rows, once_more.failed) == (0, len(videos), failed)
    assert sorted(map(str, read(out))) == sorted(map(str, rows)), "rows of other lists are kept"


def slowly(videos: list[str], out: Path) -> None:
    "A list whose parts have two rows, from a captioner that waits before the last ones."
    tables._PART_ROWS = 2
    one_by_one = tables.rows_here

    def waiting(*arguments):
        for number, row in enumerate(one_by_one(*arguments)):
            if number == 5: signal.pause()
            yield row

    tables.rows_here = waiting
    quietly(videos, out, SHAPES)


@pytest.mark.parametrize("ending", tables.FORMATS)
def test_a_killed_list_keeps_its_parts_and_goes_on(tmp_path, videos, rows, monkeypatch, ending):
    out = tmp_path/f"captions{ending}"
    process = Forked(slowly, videos, out)
    parts = lambda: sorted(Path(f"{out}.parts").glob("part-*"))
    wait_for(lambda: len(parts()) >= 2 or process.poll() is not None)
    process.kill()
    process.wait()
    kept = [row for path in parts() for row in read(path)]
    assert not out.exists() and kept == rows[:4]
    asked = []
    real = tables.rows_here
    monkeypatch.setattr(
        tables, "rows_here", lambda sources, *how: asked.extend(sources) or real(sources, *how))
    quietly(videos, out, SHAPES)
    captioned = {row["source"] for row in kept if row["caption"]}
    assert asked == [video for video in videos if video not in captioned] and read(out) == rows


def test_a_full_disk_is_said_and_the_same_command_continues(tmp_path, good, rows, monkeypatch):
    real, out = tables.write_whole, tmp_path/"captions.jsonl"

    def full(path, content):
        if Path(path).name == "part-000001.jsonl":
            raise WriteError(path, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(tables, "_PART_ROWS", 2)
    monkeypatch.setattr(tables, "write_whole", full)
    with pytest.raises(WriteError, match="No space left on device; what was written is kept"):
        quietly(good, out, SHAPES)
    assert len(list((tmp_path/"captions.jsonl.parts").glob("part-*"))) == 1
    monkeypatch.setattr(tables, "write_whole", real)
    assert quietly(good, out, SHAPES).done == len(good) - 2
    assert read(out) == [row for row in rows if row["caption"]]


def stored(path: Path, rows: list[dict]) -> None:
    "Write rows as somebody else would."
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet
        parquet.write_table(pa.Table.from_pylist(rows), path)


FOREIGN = {
    "columns that are not ours, such as mine": lambda row: [{**row, "mine": 1}],
    "columns that are not ours, such as n:": lambda row: [{"n": 1}],
    "is not a table of captions": lambda row: [{"source": "q"}],
    "two rows of q": lambda row: [{**row, "source": "q"}, {**row, "source": "q"}],
    "made with another model or other options": lambda row: [{**row, "made_with": "x"}],
}


@pytest.mark.parametrize("ending", tables.FORMATS)
@pytest.mark.parametrize("said", FOREIGN)
def test_a_table_that_is_not_ours_is_one_sentence_and_not_touched(
    tmp_path, good, rows, ending, said
):
    out = tmp_path/f"mine{ending}"
    row = next(row for row in rows if row["caption"])
    stored(out, FOREIGN[said](row))
    before = out.read_bytes()
    with pytest.raises(FileError, match=said) as error:
        quietly(good[:1], out, SHAPES)
    assert "--again" in str(error.value) and "\n" not in str(error.value)
    assert out.read_bytes() == before and os.listdir(tmp_path) == [out.name]
    assert quietly(good[:1], out, SHAPES, again=True).done == 1
    assert read(out) == [rows[0]] and not list(tmp_path.rglob("former*"))


@pytest.mark.parametrize("ending", tables.FORMATS)
def test_a_file_that_is_no_table_is_one_sentence(tmp_path, good, ending):
    (tmp_path/f"a{ending}").write_bytes(b"\xff\x00 no table\n")
    with pytest.raises(FileError, match="not valid JSON|not a Parquet file"):
        quietly(good, tmp_path/f"a{ending}", SHAPES)
    (tmp_path/f"folder{ending}").mkdir()
    with pytest.raises(WriteError, match="is a folder"):
        quietly(good, tmp_path/f"folder{ending}", SHAPES)
    assert sorted(os.listdir(tmp_path)) == [f"a{ending}", f"folder{ending}"]


def test_parts_of_another_model_are_not_joined(tmp_path, good):
    out = tmp_path/"a.jsonl"
    with Table(out).open("one model") as table:
        table.add([dict.fromkeys(COLUMNS) | {"source": "q", "made_with": "one model"}])
        with pytest.raises(PickNetError, match="a worker has another model"):
            table.add([dict.fromkeys(COLUMNS) | {"source": "r", "made_with": "another"}])
    with pytest.raises(FileError, match="made with another model or other options"):
        quietly(good, out, SHAPES)


def test_one_name_in_two_folders_is_two_videos(tmp_path, good, monkeypatch):
    for folder, video in zip("AB", good):
        (tmp_path/folder).mkdir()
        shutil.copy(video, tmp_path/folder/"x.mp4")
        monkeypatch.chdir(tmp_path/folder)
        quietly(["x.mp4"], "../rows.jsonl", SHAPES)
    assert [row["source"] for row in read(tmp_path/"rows.jsonl")] == [
        str(tmp_path/folder/"x.mp4") for folder in "BA"]


def test_a_replaced_video_is_captioned_again_and_one_that_is_gone_keeps_its_row(
    tmp_path, good, rows
):
    video, out = tmp_path/"v.mp4", tmp_path/"rows.jsonl"
    shutil.copy(good[0], video)
    quietly([video], out, SHAPES)
    shutil.copy(good[1], video)
    assert quietly([video], out, SHAPES).done == 1
    (row,) = read(out)
    assert row["caption"] == next(row for row in rows if row["source"] == good[1])["caption"]
    video.unlink()
    assert quietly([video], out, SHAPES).done == 0 and read(out) == [row]
    video.write_bytes(b"no video any more")
    assert quietly([video], out, SHAPES).failed == 1 and read(out)[0]["caption"] is None


def test_what_is_at_an_address_may_be_replaced_too(tmp_path, good, monkeypatch):
    content = {"/a.mp4": good[0], "/b.mp4": good[1]}

    def answer(handler):
        video = content.get(handler.path)
        send(handler, Path(video).read_bytes()) if video else handler.send_error(404)

    monkeypatch.setattr(sources, "_ASKING", 1)  # one after the other
    out = tmp_path/"rows.jsonl"
    with served(answer) as base:
        listed = [f"{base}/a.mp4", f"{base}/b.mp4"]
        quietly(listed, out, SHAPES)
        assert quietly(listed, out, SHAPES).done == 0
        del content["/a.mp4"]
        content["/b.mp4"] = good[2]
        assert quietly(listed, out, SHAPES).done == 1, "what is gone keeps its row"
    before = read(out)
    assert [row["size"] for row in before] == [os.path.getsize(good[n]) for n in (0, 2)]
    asked, real = [], sources._known_by
    monkeypatch.setattr(sources, "can_fork", lambda: False)
    monkeypatch.setattr(sources, "_known_by", lambda job: asked.append(job) or real(job))
    assert quietly(listed, out, SHAPES).done == 0 and read(out) == before
    assert len(asked) == 1, "a server that is down is asked once"


def test_a_server_that_is_late_is_asked_again_and_what_was_not_seen_is_counted(
    tmp_path, good, monkeypatch, let_go
):
    content, late = dict.fromkeys(map("/{}.mp4".format, "abc"), good[0]), set()

    def answer(handler):
        if handler.path in late:
            late.discard(handler.path)
            released.wait()
        if video := content.get(handler.path): send(handler, Path(video).read_bytes())
        else: handler.send_error(404)

    monkeypatch.setattr(sources, "_ASKING", 2)
    monkeypatch.setenv("PICKNET_SILENT_SECONDS", "1")
    (tmp_path/"d.mp4").write_bytes(Path(good[0]).read_bytes())
    out = tmp_path/"rows.jsonl"
    with served(answer) as base:
        listed = [*map(base.__add__, content), tmp_path/"d.mp4"]
        assert quietly(listed, out, SHAPES)[2:] == (4, 4, 0, 0)
        late.add("/a.mp4")
        content |= {"/a.mp4": good[1], "/b.mp4": good[2]}
        assert quietly(listed, out, SHAPES)[2:] == (2, 4, 0, 0), "the others were asked, too"
        del content["/c.mp4"]
        (tmp_path/"d.mp4").unlink()
        assert quietly(listed, out, SHAPES)[2:] == (0, 4, 0, 2), "what is gone keeps its row"
        released.set()
    words = "caption", *listed, "--model", "shapes", "--out", out
    assert "kept as they were: 4 (their videos are gone, or" in invoked(*words).stdout


def test_a_passing_failure_is_tried_again_and_the_status_says_so(tmp_path, good):
    listed, late = tmp_path/"list.txt", tmp_path/"late.mp4"
    listed.write_text(f"{late}\n{good[0]}\n")
    words = "caption", "--list", listed, "--model", "shapes", "--out", tmp_path/"rows.jsonl"
    for _ in range(2):
        done = invoked(*words)
        assert done.exit_code == 3 and "without a caption: 1" in done.stdout
    other = invoked(*words[:1], good[1], *words[3:])
    assert other.exit_code == 3, "as long as the table has a row without a caption"
    shutil.copy(good[1], late)
    done = invoked(*words)
    assert done.exit_code == 0 and "rows: 3; made now: 1" in done.stdout
    assert all(row["caption"] for row in read(tmp_path/"rows.jsonl"))


def test_a_row_without_a_caption_is_tried_again_though_its_file_is_the_same(
    tmp_path, good, rows, monkeypatch
):
    out = tmp_path/"rows.jsonl"
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "10")
    assert quietly(good[:1], out, SHAPES).failed == 1
    monkeypatch.delenv("PICKNET_FRAME_PIXELS")
    again = quietly(good[:1], out, SHAPES)
    assert (again.done, again.failed) == (1, 0) and read(out) == rows[:1]


def test_again_begins_anew_and_keeps_the_former_table_until_it_is_done(
    tmp_path, good, rows, monkeypatch
):
    out = tmp_path/"rows.jsonl"
    stored(out, [{"mine": 1}])
    before, real = out.read_bytes(), tables.rows_here

    def interrupted(sources, captioner):
        yield next(real(sources, captioner))
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "rows_here", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quietly(good, out, SHAPES, again=True)
    assert (tmp_path/"rows.jsonl.parts"/"former.jsonl").read_bytes() == before
    monkeypatch.setattr(tables, "rows_here", real)
    assert quietly(good, out, SHAPES).done == len(good) - 1, "without `again`, it is continued"
    assert not (tmp_path/"rows.jsonl.parts"/"former.jsonl").exists()
    assert quietly(good[:2], out, SHAPES, again=True).done == 2
    assert read(out) == [row for row in rows if row["source"] in good[:2]]


# --- the command

def test_options_of_the_command_act_on_a_table(tmp_path, good, monkeypatch):
    given, real = [], VideoCaptioner.caption_many
    monkeypatch.setattr(VideoCaptioner, "caption_many", lambda self, paths, beam, **options: (
        given.append({"picker": self.picker.label, "threshold": self.picker.threshold,
                      "beam": beam}) or real(self, paths, beam, **options)))
    words = "caption", good[0], "--model", "shapes", "--out"
    for option, value, key in (("--beam", 3, "beam"), ("--threshold", 0.4, "threshold")):
        assert invoked(*words, tmp_path/f"{key}.jsonl", option, value).exit_code == 0
        assert given.pop()[key] == value
        assert f"{key}={value}" in read(tmp_path/f"{key}.jsonl")[0]["made_with"]
    assert invoked(*words, tmp_path/"p.jsonl", "--picker", "uniform-2").exit_code == 0
    assert given.pop()["picker"] == "uniform-2" and len(read(tmp_path/"p.jsonl")[0]["picked"]) == 2


def test_the_command_writes_rows_and_says_what_ray_needs(tmp_path, videos, rows, monkeypatch):
    listed, out = tmp_path/"videos.txt", tmp_path/"captions.jsonl"
    listed.write_text("\n".join(videos))
    words = "caption", "--list", listed, "--model", "shapes"
    done = invoked(*words, "--out", out, "--json")
    assert done.exit_code == 3 and json.loads(done.stdout) == {
        "out": str(out), "videos": 8, "done": 8, "rows": 8, "failed": 4, "unseen": 0}
    assert read(out) == rows
    assert invoked(*words, "--out", out, "--again", "--json").exit_code == 3
    for option in (("--ray", "local"), ("--again",)):
        said = str(invoked(*words, *option).exception)
        assert said == f"{option[0]} needs an --out that ends in .parquet or .jsonl"
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # taken back after the test
    monkeypatch.setitem(sys.modules, "ray", None)
    said = str(invoked(*words, "--out", tmp_path/"b.jsonl", "--ray", "local").exception)
    assert said == 'a cluster needs Ray: pip install "picknet_nb[ray]"'
    assert "name a video" in str(invoked("caption").exception)


def test_python_has_the_rows_of_the_command(videos, rows, monkeypatch):
    monkeypatch.chdir(Path(videos[0]).parent)
    asked = [Path(videos[0]).name, Path(videos[0]), videos[1]]
    assert list(pn.caption_many(asked, "shapes")) == rows[:2]


def test_without_ray_nothing_imports_it(tmp_path, videos):
    listed = tmp_path/"videos.txt"
    listed.write_text("\n".join(videos[:2]))
    code = f"""
import sys
for name in ("ray", "pyarrow", "pandas", "aiohttp", "fsspec"): sys.modules[name] = None
sys.argv = ["picknet", "caption", "--list", {str(listed)!r}, "--model", "shapes", "--out",
            {str(tmp_path/"captions.jsonl")!r}]
from picknet_nb.interface.main import main
main()
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert len(read(tmp_path/"captions.jsonl")) == 2


# --- Ray, without starting it

def test_blocks_are_few_and_the_first_and_the_last_ones_are_small():
    for count, workers in ((1, 1), (10, 2), (1_600, 16), (10_000, 3), (100_000, 1_000)):
        sizes = block_sizes(count, workers)
        assert sum(sizes) == count and max(sizes) <= 256 and min(sizes) > 0
        assert sizes[workers:] == sorted(sizes[workers:], reverse=True)
        # the first and the last ones are a small part of what a worker does, or one video
        assert max(sizes[0], sizes[-1]) <= max(1, count / workers / 30)
    assert len(block_sizes(1_600, 16)) < 16 * 16 / 1.5 and not block_sizes(0, 2)


def test_workers_for_each_gpu_or_for_each_core():
    node = lambda alive=True, **resources: {"Alive": alive, "Resources": resources}
    assert share_of([node(CPU=8.0), node(CPU=4.0), node(False, CPU=64.0)]) == Share(12, 1, 0)
    assert share_of([node(CPU=8.0, GPU=2.0), node(CPU=64.0)]) == Share(2, 4, 1)
    assert share_of([node(CPU=8.0)], workers=3).workers == 3


def test_what_a_worker_gets(tmp_path, videos, monkeypatch):
    "Limits, whole paths, and the names of backbones; used as a worker would."
    monkeypatch.setattr(cluster, "on_ray", lambda ray, actor, given, columns, workers=None: (
        actor, given(Share(1, 1, 0)), columns))
    monkeypatch.setattr(cluster, "connected", lambda ray: "ray")
    monkeypatch.setattr(cluster, "as_they_come", lambda ray, found: iter([found]))
    monkeypatch.setenv("PICKNET_SOURCE_BYTES", "100")
    shutil.copytree(find_model("shapes"), tmp_path/"mine")
    monkeypatch.chdir(tmp_path)
    actor, given, _ = cluster.rows_on_ray("ray", ["local:///a.mp4"], Specification("./mine"))
    monkeypatch.delenv("PICKNET_SOURCE_BYTES")
    monkeypatch.chdir("/")
    pytest.importorskip("pyarrow")
    import pyarrow as pa

    worker = actor(*given)
    (row,) = worker(pa.table({"source": [f"local://{videos[0]}"]})).to_pylist()
    assert row["error"] == "has more than 100 bytes (PICKNET_SOURCE_BYTES)"
    assert given[0].model == str(tmp_path/"mine")
    assert Specification("shapes", weights="w").absolute() == Specification("shapes", weights="/w")


def test_a_backbone_is_loaded_by_workers_and_not_sent(tmp_path):
    cnn = load_backbone("tiny")
    sent = specification_of(cnn)
    assert (sent.name, sent.weights) == ("tiny", None) and sent.load().weights == cnn.weights
    with pytest.raises(PickNetError, match="a worker has other weights of tiny"):
        sent._replace(fingerprint="other").load()
    assert specification_of(load_backbone("resnet18", "random")).loaded_from is None


def test_workers_import_from_the_current_folder_only_if_we_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    folders = processes._Importable()
    folders.extend(["/somewhere", str(tmp_path)])
    assert folders == ["/somewhere"]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # as --use does
    folders.extend([str(tmp_path)])
    assert folders == ["/somewhere", str(tmp_path)]


class Node:
    "A node of Ray, which starts processes and then waits for them in vain."
    left = 0

    def __init__(self, clock: list[float]):
        Node.left += 1
        clock[0] += 50.0
        raise Exception("the node timed out.\nsome advice")

    def kill_all_processes(self, check_alive, allow_graceful): Node.left -= 1


class Slow:
    "A Ray that does not start."
    is_initialized, shutdown = staticmethod(lambda: False), staticmethod(lambda: 0)

    def __init__(self): self.clock, self.attempts = [0.0], 0

    def init(self, *arguments, job_config, **options):
        job_config._py_driver_sys_path.extend([os.getcwd()])
        assert not job_config._py_driver_sys_path
        assert not Node.left, "processes of the attempt before are still there"
        self.attempts += 1
        Node(self.clock)


@pytest.mark.parametrize("address, attempts, said", (
    ("local", 3, "Ray did not start on this machine: the node timed out; close other programs "
     "and try again, or leave out --ray: one machine needs no Ray"),
    ("10.0.0.1:6379", 1, "no Ray cluster could be reached at 10.0.0.1:6379: the node timed out; "
     "`ray status` on one of its machines says whether it runs, and this machine needs the same "
     "versions of Ray and Python"),
))
def test_a_cluster_that_does_not_answer_is_one_sentence(
    tmp_path, monkeypatch, address, attempts, said
):
    "Here it is tried again as long as two minutes are not over, each time from a clean start."
    class Config:
        _py_driver_sys_path = []

    slow, module = Slow(), lambda **names: type("Module", (), names)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(processes, "monotonic", lambda: slow.clock[0])
    monkeypatch.setattr(Node, "left", 0)
    monkeypatch.setitem(sys.modules, "ray", slow)
    monkeypatch.setitem(sys.modules, "ray.job_config", module(JobConfig=Config))
    monkeypatch.setitem(sys.modules, "ray._private.node", module(Node=Node))
    with pytest.raises(PickNetError) as error: connected(address)
    assert str(error.value) == said and slow.attempts == attempts and not Node.left


@pytest.mark.parametrize("address, mode, everywhere", (
    ("local", "token", "0"), ("10.0.0.1:6379", None, None)))
def test_a_ray_of_our_own_listens_here_and_asks_for_a_token_that_nobody_else_has(
    monkeypatch, address, mode, everywhere
):
    found, names = [], ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_TOKEN")

    class Fast(Slow):
        def init(self, *_, **__): found.append(tuple(map(os.environ.get, names)))

    for _ in range(2):
        with monkeypatch.context() as patched:
            for name in names:
                patched.setenv(name, "")  # it is taken back
                patched.delenv(name)
            patched.setitem(sys.modules, "ray", Fast())
            patched.setitem(sys.modules, "ray.job_config", type("Module", (), {
                "JobConfig": type("Config", (), {"_py_driver_sys_path": []})}))
            connected(address)
    (*one, first), (*two, second) = found
    assert one == two == [mode, everywhere]
    assert first is second is None if mode is None else len(first) >= 32 and first != second
