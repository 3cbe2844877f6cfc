"""What `use/tables` promises, on a real Ray cluster of two nodes on this machine; how it scales.

python benchmarks/many.py rows        # 2,000 videos on two nodes: the same rows as one process
python benchmarks/many.py node        # one of the two nodes is killed in the middle
python benchmarks/many.py driver      # the process that began the list is killed, and started again
python benchmarks/many.py disk        # the disk is full, then there is room again (needs root)
python benchmarks/many.py hostile     # 100 hostile videos among 1,000
python benchmarks/many.py scale --workers 1 2 4 8 16    # videos a second by the number of workers
python benchmarks/many.py feed --workers 1 4 16   # the same with workers that wait: what Ray costs
    [--videos 2000] [--model shapes] [--libraries FOLDER] [--out data/results/many.json]

Videos are clips of the built-in world, 64 x 48 pixels, one second. Each command writes its part of
the result file and leaves the others. `--libraries` names a folder with unpacked wheels of Ray and
pyarrow, for a machine that has neither. `scale` binds each worker to one core, so that one worker
is one core and not a share of all of them; `--model` and `--videos` say what is captioned.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ARGUMENTS = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ARGUMENTS.add_argument(
    "what", choices=("rows", "node", "driver", "disk", "hostile", "scale", "feed", "list"))
ARGUMENTS.add_argument("--videos", type=int, default=None)
ARGUMENTS.add_argument("--model", default="shapes")
ARGUMENTS.add_argument("--workers", type=int, nargs="+", default=[1, 2])
ARGUMENTS.add_argument("--seconds", type=float, default=0.016, help="of `feed`, for each video")
ARGUMENTS.add_argument(
    "--blocks", type=int, nargs="+", default=[0], help="equal ones for each worker; 0: our own")
ARGUMENTS.add_argument("--libraries", default=None)
ARGUMENTS.add_argument("--folder", default=None, help="where videos and rows go")
ARGUMENTS.add_argument("--out", default=None)
ARGUMENTS.add_argument("--address", help=argparse.SUPPRESS)  # of `list`, which others start
ASKED = ARGUMENTS.parse_args()
if ASKED.libraries:
    libraries = str(Path(ASKED.libraries).resolve())
    sys.path.append(libraries)
    there = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [there, libraries]))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# workers of Ray give way to every other process (15), and on a busy machine are never done
os.environ.setdefault("RAY_worker_niceness", "0")

import torch
from common import ROOT, origin, write_result

from picknet_nb.core.processes import usable_cores
from picknet_nb.use import cluster as on_cluster
from picknet_nb.use.sources import Failure
from picknet_nb.use.many import Specification
from picknet_nb.use.tables import FORMATS, Outcome, Table, caption_list
from picknet_nb.world.shapes import BEATS, draw, make_story

RESULT = Path(ASKED.out or ROOT/"data"/"results"/"many.json")
# workers of Ray import this checkout; a grammar that one of Jupyter's dependencies builds when it
# is imported, for seconds, is of no use to them
QUICK = Path(tempfile.mkdtemp(prefix="picknet-many-"))
(QUICK/"rfc3987_syntax.py").write_text('raise ImportError("left out: seconds to import")\n')
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(QUICK), str(ROOT), os.environ.get("PYTHONPATH", "")]))


def tiny_video(path: Path, number: int, width: int = 64, height: int = 48) -> None:
    "One second of a story of the built-in world, in ten small frames."
    import av

    story = make_story((7, number))
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"preset": "ultrafast", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for step in range(10):
            frame = av.VideoFrame.from_ndarray(draw(story, step * (BEATS - 1) / 9), format="rgb24")
            container.mux(stream.encode(frame.reformat(width, height)))
        container.mux(stream.encode())


def make_videos(folder: Path, count: int) -> list[str]:
    "So many tiny videos; those that are there are not drawn again."
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder/f"{number:06}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            tiny_video(path.with_suffix(".partial"), number)
            path.with_suffix(".partial").rename(path)
    return [str(path) for path in paths]


def hostile(path: Path, number: int) -> None:
    "A file that is no video, in one of ten ways."
    draw_from, whole = random.Random(number), path.with_suffix(".whole")
    tiny_video(whole, number)
    content = whole.read_bytes()
    whole.unlink()
    ways = (
        b"",
        b"only some words, not a video",
        content[: len(content) // 2],
        content[:64],
        draw_from.randbytes(4096),
        b"\x89PNG\r\n\x1a\n" + content[8:],
        bytes(len(content)),
        content.replace(b"mdat", b"free").replace(b"stsz", b"free"),
        swelling(content),
        content[:40] + draw_from.randbytes(len(content) - 40),
    )
    path.write_bytes(ways[number % len(ways)])


def swelling(content: bytes) -> bytes:
    "An MP4 whose table of samples claims far more frames than the file could hold."
    place = content.index(b"stsz")  # version, flags, sample size, count
    return content[: place + 8] + b"\0\0\0\x01" + b"\x7f\xff\xff\xff" + content[place + 16 :]


@contextmanager
def cluster(cores: list[int]):
    "A Ray cluster with one node for each number of cores; all of them are processes here."
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        yield made, [patiently(made, number) for number in cores]
    finally:
        ray.shutdown()
        made.shutdown()


def patiently(made, cores: int, attempts: int = 5):
    "A new node; Ray gives its helpers 15 seconds to start, which a busy machine may not have."
    for attempt in range(attempts):
        try:
            return made.add_node(
                num_cpus=cores, object_store_memory=128 << 20, include_dashboard=False)
        except Exception as reason:
            if attempt == attempts - 1 or "timed out" not in str(reason):
                raise


def start(folder: Path, paths: list[str], out: Path, address: str = "") -> subprocess.Popen:
    "Begin a list in a process of its own, which can be killed."
    (folder/"videos.txt").write_text("\n".join(paths))
    command = [sys.executable, __file__, "list", "--folder", str(folder), "--out", str(out)]
    command += ["--model", ASKED.model, *(["--address", address] if address else [])]
    command += ["--libraries", ASKED.libraries] if ASKED.libraries else []
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def rows_in(out: Path) -> list[dict]:
    "Rows of a file, or of the parts of one that is not finished."
    parts = [out] if out.exists() else sorted(Path(f"{out}.parts").glob("part-*"))
    return [row for path in parts for row in FORMATS[path.suffix][1](path)]


def timed_list(paths: list[str], out: Path, *how) -> tuple[Outcome, float]:
    "A list from the beginning, and its videos a second, counted from the first rows on."
    seen, real = [], Table.add

    def add(self, rows: list[dict]) -> None:
        seen.append((time.monotonic(), len(rows)))
        real(self, rows)

    Table.add = add
    try:
        found = caption_list(paths, out, *how, again=True, progress=False)
    finally:
        Table.add = real
    return found, sum(number for _, number in seen[1:]) / (seen[-1][0] - seen[0][0])


def wait_for(condition, process: subprocess.Popen) -> None:
    "Wait until something holds, or the process has ended, which is an error."
    while not condition():
        if process.poll() is not None:
            raise SystemExit(f"it ended before that:\n{process.stderr.read()}")
        time.sleep(0.05)


def expected(folder: Path, paths: list[str]) -> list[dict]:
    "The rows that one process makes without Ray; made once."
    out = folder/f"expected-{ASKED.model}-{len(paths)}.jsonl"
    caption_list(paths, out, Specification(ASKED.model), progress=False)
    by_source = {row["source"]: row for row in rows_in(out)}
    return [by_source[path] for path in paths]


def compared(rows: list[dict], wanted: list[dict]) -> dict:
    "How a file of rows compares with the rows that there should be."
    found = {row["source"]: row for row in rows}
    return {
        "videos": len(wanted),
        "rows": len(rows),
        "sources_twice": len(rows) - len(found),
        "sources_missing": sum(row["source"] not in found for row in wanted),
        "rows_that_differ": sum(found.get(row["source"]) != row for row in wanted),
    }


def measure_rows(folder: Path) -> dict:
    "A list on two nodes, compared with one process."
    paths = make_videos(folder/"videos", ASKED.videos or 2000)
    wanted, out = expected(folder, paths), folder/"rows.jsonl"
    with cluster([1, 1]) as (made, _):
        _, rate = timed_list(paths, out, Specification(ASKED.model), made.address)
    return compared(rows_in(out), wanted) | {"nodes": 2, "rate": round(rate, 2)}


def measure_node(folder: Path) -> dict:
    "One of two nodes is killed after a quarter of the rows."
    paths = make_videos(folder/"videos", ASKED.videos or 2000)
    wanted, out = expected(folder, paths), folder/"node.jsonl"
    killed, seen = None, 0
    with cluster([1, 1]) as (made, nodes):
        from picknet_nb.core.processes import connected

        ray, specification = connected(made.address), Specification(ASKED.model)
        with Table(out).open(specification.load().made_with, again=True) as table:
            found = on_cluster.rows_on_ray(ray, paths, specification)
            for rows in on_cluster.as_they_come(ray, found):
                table.add(rows)
                seen += len(rows)
                if killed is None and seen >= len(paths) // 4:
                    killed = seen
                    made.remove_node(nodes[1], allow_graceful=False)
            table.join(paths)
    return compared(rows_in(out), wanted) | {"nodes": 2, "rows_when_one_was_killed": killed}


def measure_driver(folder: Path) -> dict:
    "The process that began is killed when two parts are written, and the list is started again."
    paths = make_videos(folder/"videos", ASKED.videos or 2000)
    wanted, out = expected(folder, paths), folder/"driver.jsonl"
    out.unlink(missing_ok=True)
    shutil.rmtree(out.with_name(f"{out.name}.parts"), ignore_errors=True)
    with cluster([1, 1]) as (made, _):
        first = start(folder, paths, out, made.address)
        written = lambda: len(list(out.with_name(f"{out.name}.parts").glob("part-*"))) >= 2
        wait_for(written, first)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        kept = len(rows_in(out))
        second = start(folder, paths, out, made.address)
        _, said = second.communicate()
        if second.returncode:
            raise SystemExit(said)
    return compared(rows_in(out), wanted) | {"rows_when_it_was_killed": kept}


def measure_disk(folder: Path) -> dict:
    "The rows go to a file system of 160 kB that is full in the middle, then to a larger one."
    paths = make_videos(folder/"videos", ASKED.videos or 2000)
    wanted, place = expected(folder, paths), folder/"small"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", place], check=True)
    try:
        with cluster([1, 1]) as (made, _):
            first = start(folder, paths, place/"disk.jsonl", made.address)
            _, said = first.communicate()
            kept = len(rows_in(place/"disk.jsonl"))
            subprocess.run(["mount", "-o", "remount,size=16m", place], check=True)
            second = start(folder, paths, place/"disk.jsonl", made.address)
            if second.communicate() and second.returncode:
                raise SystemExit("the second attempt failed, too")
        rows = rows_in(place/"disk.jsonl")
    finally:
        subprocess.run(["umount", place], check=True)
    line = [line for line in said.splitlines() if "cannot be written" in line][-1]
    return compared(rows, wanted) | {
        "exit_status": first.returncode,
        "said": line[line.index("cannot be written") :],
        "rows_when_it_was_full": kept,
    }


def measure_hostile(folder: Path) -> dict:
    "A tenth of the videos are hostile; memory of the actors is watched on the way."
    count = ASKED.videos or 1000
    paths = make_videos(folder/"videos", count - count // 10)
    (folder/"hostile").mkdir(exist_ok=True)
    broken = [folder/"hostile"/f"{number:04}.mp4" for number in range(count // 10)]
    for number, path in enumerate(broken):
        hostile(path, number)
    mixed = [*paths, *map(str, broken)]
    random.Random(0).shuffle(mixed)
    out = folder/"hostile.jsonl"
    out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as journal, cluster([1, 1]) as (made, _):
        caption_list(mixed, out, Watched(ASKED.model, journal=journal), made.address)
        actors = journals(Path(journal))
    rows = {row["source"]: row for row in rows_in(out)}
    reasons = [rows[str(path)]["error"] for path in broken]
    peaks = lambda key: [round(actor[-1][key] / 1e6) for actor in actors]
    return {
        "videos": count,
        "hostile": len(broken),
        "rows": len(rows),
        "captions_of_good_ones": sum(rows[path]["caption"] is not None for path in paths),
        "reasons_of_hostile_ones": sum(reason is not None for reason in reasons),
        "different_reasons": sorted({(reason or "")[:60] for reason in reasons}),
        "workers": 2,
        "actors_started": len(actors),  # more than workers: one was lost and replaced
        "videos_of_each_actor": [sum(line["videos"] for line in actor) for actor in actors],
        "megabytes_of_each_actor_when_loaded": [round(actor[0]["bytes"] / 1e6) for actor in actors],
        "peak_megabytes_of_each_actor": peaks("bytes"),
        "peak_megabytes_of_a_decoder_of_each_actor": peaks("bytes_of_a_decoder"),
    }


DRIVER = "driver.notes"  # in a journal: of the process that began the list


@dataclass(frozen=True)
class Watched(Specification):
    "Loads the model in a process that notes when it works, and with how much memory."
    journal: str = ""  # a folder with a file for each process
    pinned: bool = False  # bind it to a core that no other worker has
    seconds: float | None = None  # wait so long for each video, instead of captioning it

    def load(self, readers: int | None = None, limits: dict[str, str] | None = None):
        if not readers:  # the process that begins a list tries whether there is such a model
            loaded = super().load(readers, limits)
            write_down(Path(self.journal)/DRIVER, time.monotonic(), 0)
            return loaded
        if self.pinned:
            take_a_core(Path(self.journal))
        loaded = super().load(readers, limits)
        captioner = loaded.captioner
        real, note = captioner.caption_many, Path(self.journal)/f"{os.getpid()}.jsonl"

        def watched(paths, **options):
            began, videos = time.monotonic(), 0
            found = real(paths, **options) if self.seconds is None else self.waited(paths)
            for each in found:
                videos += 1
                yield each
            write_down(note, began, videos)

        write_down(note, time.monotonic(), 0)
        captioner.caption_many = watched
        return loaded

    def waited(self, paths) -> list[Failure]:
        "What there is to say about videos that are not looked at, after a while."
        found = [Failure(str(path), "not looked at") for path in paths]
        time.sleep(self.seconds * len(found))
        return found


def take_a_core(folder: Path) -> None:
    "Bind this process to a core that has no file in the folder."
    for core in sorted(os.sched_getaffinity(0)):
        try:
            os.close(os.open(folder/f"{core}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return os.sched_setaffinity(0, {core})


def write_down(note: Path, began: float, videos: int) -> None:
    "Add a line on a block to the journal of this process: when, and what it has used until now."
    largest = lambda who: resource.getrusage(who).ru_maxrss * 1024
    line = {
        "began": began,
        "ended": time.monotonic(),
        "videos": videos,
        "processor_seconds": sum(os.times()[:4]),  # with those of the processes that decoded
        "bytes": largest(resource.RUSAGE_SELF),
        "bytes_of_a_decoder": largest(resource.RUSAGE_CHILDREN),
    }
    with note.open("a") as file:
        file.write(json.dumps(line) + "\n")


def journals(folder: Path) -> list[list[dict]]:
    "The lines that each worker has written; the first one says when it had loaded the model."
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]


def measure_scale(folder: Path) -> dict:
    "Videos a second by the number of workers, each bound to a core of its own."
    paths, runs = make_videos(folder/"videos", ASKED.videos or 2000), []
    for number in ASKED.workers:
        some = paths[: max(200, len(paths) * number // max(ASKED.workers))]
        for blocks in ASKED.blocks:
            runs.append(scaled(folder, some, number, blocks))
            print(json.dumps(runs[-1]), flush=True)
    for run in runs:
        alone = next((each for each in runs if each["workers"] == 1
                      and each["equal_blocks"] == run["equal_blocks"]), None)
        for key in ("rate", "rate_while_all_work"):
            run[f"efficiency_of_{key}"] = (
                round(run[key] / run["workers"] / alone[key], 4) if alone and run[key] else None)
    return {
        "model": ASKED.model,
        "cores": usable_cores(),
        "bytes_of_a_video": round(sum(os.path.getsize(path) for path in paths) / len(paths)),
        "driver_processor_ms_for_each_row": ms_to_write_a_row(folder),
        "runs": runs,
    }


def measure_feed(folder: Path) -> dict:
    """How many videos a second Ray and the driver hand out, if workers need no processor; they
    begin together, since sixteen of them start one after the other where there are two cores."""
    from ray.data import DataContext

    DataContext.get_current().wait_for_min_actors_s = 1800
    runs = []
    for number in ASKED.workers:
        for blocks in ASKED.blocks:
            paths = [f"/none/{each:06}.mp4" for each in range(number * (ASKED.videos or 1000))]
            run = scaled(folder, paths, number, blocks, ASKED.seconds)
            runs.append(run | {"possible_rate": number / ASKED.seconds})
            print(json.dumps(runs[-1]), flush=True)
    return {"seconds_for_each_video": ASKED.seconds, "runs": runs}


@contextmanager
def equal_blocks(number: int):
    "Inside, a list is cut into so many equal blocks for each worker; 0: as the package does it."
    real = on_cluster.block_sizes

    def equal(videos: int, workers: int) -> list[int]:
        size = max(1, min(on_cluster._LARGEST, videos // (number * workers)))
        return [min(size, videos - start) for start in range(0, videos, size)]

    on_cluster.block_sizes = equal if number else real
    try:
        yield
    finally:
        on_cluster.block_sizes = real


def ms_to_write_a_row(folder: Path, count: int = 50_000) -> float:
    "Processor time that the driver needs to take a row, write it to a part and join the parts."
    out = folder/"written.jsonl"
    row = expected(folder, make_videos(folder/"videos", 200))[0]
    blocks = [
        [{**row, "source": f"{start + number}.mp4"} for number in range(100)]
        for start in range(0, count, 100)
    ]
    started = time.process_time()
    with Table(out).open(row["made_with"], again=True) as table:
        for block in blocks:
            table.add(block)
        table.join([row["source"] for block in blocks for row in block])
    return round(1000 * (time.process_time() - started) / count, 4)


def scaled(
    folder: Path, paths: list[str], number: int, blocks: int, seconds: float | None = None
) -> dict:
    "One list on a node with so many cores."
    out = folder/f"scale-{number}.jsonl"
    with (
        tempfile.TemporaryDirectory() as journal,
        cluster([number]) as (made, _),
        equal_blocks(blocks),
    ):
        specification = Watched(
            ASKED.model, journal=journal, pinned=seconds is None, seconds=seconds)
        began, before = time.monotonic(), ray_seconds()
        found, rate = timed_list(paths, out, specification, made.address)
        ended, after = time.monotonic(), ray_seconds()
        write_down(Path(journal)/DRIVER, began, len(paths))
        first, last = (json.loads(line) for line in (Path(journal)/DRIVER).open())
        actors = journals(Path(journal))
    for_each = lambda seconds: round(1000 * seconds / len(paths), 3)
    return {
        "workers": number,
        "equal_blocks": blocks,
        "videos": len(paths),
        "failed": found.failed,
        "blocks": sum(len(actor) - 1 for actor in actors),
        "rate": round(rate, 3),
        "seconds_with_start": round(ended - began, 1),
        "driver_processor_ms_for_each_video": for_each(
            last["processor_seconds"] - first["processor_seconds"]),
        "ray_processor_ms_for_each_video": for_each(after - before),
        "load": round(os.getloadavg()[0], 1),  # of all processes; larger than `workers`: others
    } | account(actors)


def ray_seconds() -> float:
    "Processor seconds of Ray's own processes until now: those of the node and of the cluster."
    import psutil

    found = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name() in ("raylet", "gcs_server"):
                found += sum(process.cpu_times()[:2])
    return found


def account(actors: list[list[dict]]) -> dict:
    """What workers did from the moment when the first of them had loaded the model until the last
    row: shares of their time, and the rate while all of them were there."""
    ready = [actor[0]["ended"] for actor in actors]
    done = [actor[-1]["ended"] for actor in actors]
    blocks = [line for actor in actors for line in actor[1:]]
    videos = sum(line["videos"] for line in blocks)
    whole = len(actors) * (max(done) - min(ready))
    share = {
        "starting": sum(each - min(ready) for each in ready) / whole,
        "working": sum(line["ended"] - line["began"] for line in blocks) / whole,
        "ending": sum(max(done) - each for each in done) / whole,
    }
    share["waiting"] = 1 - sum(share.values())
    start, end = max(ready), min(done)
    inside = lambda line: max(0, min(line["ended"], end) - max(line["began"], start))
    steady = sum(
        line["videos"] * inside(line) / (line["ended"] - line["began"]) for line in blocks)
    used = sum(actor[-1]["processor_seconds"] - actor[0]["processor_seconds"] for actor in actors)
    return {
        "processor_seconds_to_start_a_worker": round(
            sum(actor[0]["processor_seconds"] for actor in actors) / len(actors), 1),
        "seconds_between_first_and_last_start": round(max(ready) - min(ready), 1),
        "rate_while_all_work": round(steady / (end - start), 3) if end > start else None,
        "shares": {name: round(each, 4) for name, each in share.items()},
        "worker_processor_ms_for_each_video": round(1000 * used / videos, 3),
        "megabytes_of_a_worker": round(max(actor[-1]["bytes"] for actor in actors) / 1e6),
    }


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(ASKED.folder or Path(tempfile.gettempdir())/"picknet-many")
    folder.mkdir(parents=True, exist_ok=True)
    if ASKED.what == "list":  # begun by `start`
        paths = (folder/"videos.txt").read_text().splitlines()
        caption_list(paths, ASKED.out, Specification(ASKED.model), ASKED.address or False)
        return
    found = globals()[f"measure_{ASKED.what}"](folder)
    print(json.dumps(found, indent=1))
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    key = ASKED.what
    if key == "scale":  # one entry for each machine and model
        key = f"scale {ASKED.model} {usable_cores()} cores"
    made = origin()
    made["command"] = re.sub(r" --(folder|libraries) \S+", "", made["command"])  # no matter where
    write_result(RESULT, {**result, key: {**made, **found}})


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(QUICK, ignore_errors=True)
