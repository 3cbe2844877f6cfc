"A list of videos as rows on this machine; on a cluster: test_cluster.py."
import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import Forked
from lists import SHAPES, read, rows, videos  # noqa: F401, fixtures
from reliability import wait_for
from toys import invoked

from picknet_nb.core.files import FileError, PickNetError, WriteError
from picknet_nb.core.processes import connected
from picknet_nb.training.models import find_model
from picknet_nb.use import many
from picknet_nb.use.captioning import load_captioner
from picknet_nb.use.many import (
    Parts, Progress, Share, Speaker, block_sizes, caption_list, check_sources, estimate,
    estimate_text, rows_of, share_of)


def test_every_video_has_one_row_and_a_broken_one_says_why(videos, rows):
    assert [row["source"] for row in rows] == videos
    for row in rows:
        good = Path(row["source"]).stem.isdecimal()
        assert bool(row["caption"]) == bool(row["picked"]) == (row["error"] is None) == good
    assert len({row["error"] for row in rows if row["error"]}) == 4


@pytest.mark.parametrize("ending", (".jsonl", ".parquet"))
def test_a_list_becomes_a_file_and_is_continued(tmp_path, videos, rows, ending):
    out = tmp_path/f"captions{ending}"
    first = caption_list(videos[:5], out, SHAPES, progress=False)
    again = caption_list([*videos, videos[0]], out, SHAPES, progress=False)
    assert (first.done, again.done, again.videos) == (5, len(videos) - 5, len(videos))
    assert read(out) == rows and not list(tmp_path.glob("*.parts/part-*"))
    with pytest.raises(FileError, match="was begun with .*shapes.*choose another file"):
        caption_list(videos, out, Speaker("everyday"), progress=False)
    assert caption_list(videos, out, SHAPES, progress=False).done == 0


def slowly(videos: list[str], out: Path) -> None:
    "A list whose parts have two rows, from a captioner that waits before the last ones."
    many._PART_ROWS, many._CHUNK = 2, 2
    in_chunks = many.rows_here

    def waiting(*arguments, **options):
        for number, some in enumerate(in_chunks(*arguments, **options)):
            if number == 2: signal.pause()
            yield some

    many.rows_here = waiting
    caption_list(videos, out, SHAPES, progress=False)


def test_a_killed_list_keeps_its_parts_and_goes_on(tmp_path, videos, rows, monkeypatch):
    out = tmp_path/"captions.jsonl"
    process = Forked(slowly, videos, out)
    parts = lambda: list((tmp_path/"captions.jsonl.parts").glob("part-*"))
    wait_for(lambda: len(parts()) >= 2 or process.poll() is not None)
    process.kill()
    process.wait()
    kept = [row for path in sorted(parts()) for row in Parts(out, {}).read(path)]
    assert not out.exists() and kept and kept == rows[: len(kept)]
    asked = []
    real = many.rows_here
    monkeypatch.setattr(
        many, "rows_here", lambda sources, *how, **more: asked.extend(sources) or real(
            sources, *how, **more))
    caption_list(videos, out, SHAPES, progress=False)
    assert asked == videos[len(kept) :] and read(out) == rows


def test_a_full_disk_is_said_and_the_same_command_continues(tmp_path, videos, rows, monkeypatch):
    real, out = many.write_whole, tmp_path/"captions.jsonl"

    def full(path, content):
        if Path(path).name == "part-000001.jsonl":
            raise WriteError(path, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(many, "_PART_ROWS", 4)
    monkeypatch.setattr(many, "_CHUNK", 4)
    monkeypatch.setattr(many, "usable_cores", lambda: 1)
    monkeypatch.setattr(many, "write_whole", full)
    with pytest.raises(WriteError, match="No space left on device; what was written is kept"):
        caption_list(videos, out, SHAPES, progress=False)
    assert len(list((tmp_path/"captions.jsonl.parts").glob("part-*"))) == 1
    monkeypatch.setattr(many, "write_whole", real)
    assert caption_list(videos, out, SHAPES, progress=False).done == len(videos) - 4
    assert read(out) == rows


def test_what_nobody_foresaw_costs_one_row(videos, rows, monkeypatch):
    captioner = load_captioner(find_model("shapes"))
    real = captioner.caption_many

    def fails(paths, **options):
        for path, found in zip(paths := list(paths), real(paths, **options)):
            if path == Path(videos[3]): raise RuntimeError("out of luck")
            yield found

    monkeypatch.setattr(captioner, "caption_many", fails)
    found = rows_of(captioner, videos, **SHAPES.options)
    assert found[3]["error"] == "RuntimeError: out of luck"
    assert found[:3] + found[4:] == rows[:3] + rows[4:]


def test_an_address_is_copied_and_captioned_like_its_file(videos, rows, monkeypatch):
    folder = Path(videos[0]).parent
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,),
                 {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        sources = [f"{base}/00.mp4", f"{base}/none.mp4", f"file://{videos[1]}", "nowhere://x.mp4"]
        captioner = load_captioner(find_model("shapes"))
        found = rows_of(captioner, sources)
        good = next(row for row in rows if row["source"].endswith("/00.mp4"))
        assert found[0] == {**good, "source": sources[0]}
        assert found[1]["error"] == "no such file" and "nowhere" in found[3]["error"]
        assert found[2] == {**rows[1], "source": sources[2]}
        monkeypatch.setenv("PICKNET_SOURCE_BYTES", "100")
        (large,) = rows_of(captioner, sources[:1])
        assert large["error"] == "has more than 100 bytes (PICKNET_SOURCE_BYTES)"
    finally:
        server.shutdown()


def test_an_object_of_a_file_system_is_captioned_like_its_file(videos, rows, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    sources = ["memory://archive/00.mp4", "memory://archive/none.mp4"]
    fsspec.filesystem("memory").pipe("/archive/00.mp4", Path(videos[0]).read_bytes())
    caption_list(sources, tmp_path/"rows.jsonl", SHAPES, progress=False)
    found, missing = read(tmp_path/"rows.jsonl")
    assert found == {**rows[0], "source": sources[0]} and missing["error"] == "no such file"


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
        sources = ["s3://archive/00.mp4", "s3://archive/none.mp4", "s3://nowhere/00.mp4"]
        said = estimate(sources[:1], None, SHAPES)
        assert said["bytes_to_read"] == os.path.getsize(videos[0])
        caption_list(sources, tmp_path/"rows.jsonl", SHAPES, progress=False)
        found, *missing = read(tmp_path/"rows.jsonl")
        assert found == {**rows[0], "source": sources[0]}
        assert [row["error"] for row in missing] == ["no such file"] * 2
    finally:
        server.stop()


@pytest.mark.parametrize("module, address, said", (
    ("s3fs", "s3://archive/a.mp4", "s3:// needs: pip install s3fs"),
    ("gcsfs", "gs://archive/a.mp4", "gs:// needs: pip install gcsfs"),
    ("fsspec.implementations.http", "https://nowhere/a.mp4",
     'https:// needs: pip install "fsspec[http]"'),
    ("fsspec.registry", "s3://archive/a.mp4",
     'addresses need fsspec: pip install "picknet_nb[ray]"'),
))
def test_a_missing_package_is_named_before_a_list_begins(
    tmp_path, videos, monkeypatch, module, address, said
):
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.delitem(registry._registry, address.partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    out = tmp_path/"rows.jsonl"
    with pytest.raises(PickNetError) as error:
        caption_list([videos[0], address], out, SHAPES, progress=False)
    assert str(error.value) == said and not out.exists()
    check_sources([videos[0], f"file://{videos[0]}"])  # these need none


def test_blocks_are_few_and_the_first_and_the_last_ones_are_small():
    for videos, workers in ((1, 1), (10, 2), (1_600, 16), (10_000, 3), (100_000, 1_000)):
        sizes = block_sizes(videos, workers)
        assert sum(sizes) == videos and max(sizes) <= 256 and min(sizes) > 0
        assert sizes[workers:] == sorted(sizes[workers:], reverse=True)
        # the first and the last ones are a small part of what a worker does, or one video
        assert max(sizes[0], sizes[-1]) <= max(1, videos / workers / 30)
    assert len(block_sizes(1_600, 16)) < 16 * 16 / 1.5 and not block_sizes(0, 2)


def test_the_line_counts_from_the_first_rows_on():
    now = [0.0]
    line = Progress(100, lambda: now[0])
    now[0] = 60.0
    line.add([{"error": None}] * 10)
    assert str(line) == "10 of 100 videos, 0 without a caption"
    now[0] = 70.0
    line.add([{"error": "is empty"}] * 20)
    assert str(line) == (
        "30 of 100 videos, 20 without a caption, 2.0 a second, about 35 seconds left")
    line.add([{"error": None}] * 70)
    assert str(line) == "100 of 100 videos, 20 without a caption, 9.0 a second"


def test_a_dry_run_says_what_is_missing_and_writes_no_row(tmp_path, videos):
    out = tmp_path/"captions.jsonl"
    found = estimate(videos, out, SHAPES)
    assert (found["videos"], found["missing"]) == (len(videos), len(videos)) and not out.exists()
    assert found["bytes_to_read"] == sum(os.path.getsize(video) for video in videos)
    assert found["seconds"] > 0 and f"{len(videos)} videos" in estimate_text(found)
    caption_list(videos, out, SHAPES, progress=False)
    assert "nothing is left to do" in estimate_text(estimate(videos, out, SHAPES))


def test_workers_for_each_gpu_or_for_each_core():
    node = lambda alive=True, **resources: {"Alive": alive, "Resources": resources}
    assert share_of([node(CPU=8.0), node(CPU=4.0), node(False, CPU=64.0)]) == Share(12, 1, 0)
    assert share_of([node(CPU=8.0, GPU=2.0), node(CPU=64.0)]) == Share(2, 4, 1)
    assert share_of([node(CPU=8.0)], workers=3).workers == 3


def test_the_command_writes_rows_and_says_what_ray_needs(tmp_path, videos, rows, monkeypatch):
    listed, out = tmp_path/"videos.txt", tmp_path/"captions.jsonl"
    listed.write_text("\n".join(videos))
    words = "caption", "--list", listed, "--model", "shapes"
    dry = invoked(*words, "--out", out, "--dry-run", "--json")
    assert json.loads(dry.stdout)["missing"] == len(videos) and not out.exists()
    done = invoked(*words, "--out", out)
    assert done.exit_code == 3 and "4 of these without a caption" in done.stdout
    assert read(out) == rows
    assert "ends in .parquet or .jsonl" in str(invoked(*words, "--ray", "local").exception)
    monkeypatch.setitem(sys.modules, "ray", None)
    said = str(invoked(*words, "--out", tmp_path/"b.jsonl", "--ray", "local").exception)
    assert said == 'a cluster needs Ray: pip install "picknet_nb[ray]"'
    assert "name a video" in str(invoked("caption").exception)


def test_a_cluster_that_does_not_answer_is_one_sentence(monkeypatch):
    class Slow:
        is_initialized = staticmethod(lambda: False)

        @staticmethod
        def init(*arguments, **options): raise Exception("the node timed out\nsome advice")

    monkeypatch.setitem(sys.modules, "ray", Slow)
    with pytest.raises(PickNetError) as error: connected("local")
    assert str(error.value) == "no Ray cluster could be reached at local: the node timed out"


def test_without_ray_nothing_imports_it(tmp_path, videos):
    listed = tmp_path/"videos.txt"
    listed.write_text("\n".join(videos[:2]))
    code = f"""
import sys
for name in ("ray", "pyarrow", "pandas", "aiohttp"): sys.modules[name] = None
sys.argv = ["picknet", "caption", "--list", {str(listed)!r}, "--model", "shapes", "--out",
            {str(tmp_path/"captions.jsonl")!r}]
from picknet_nb.interface.main import main
main()
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert len(read(tmp_path/"captions.jsonl")) == 2
