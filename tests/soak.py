"""A list of short videos is captioned into a table, again and again, while everything around it
goes wrong at random; afterwards every row must be right, or say why it has no caption:

python tests/soak.py --minutes 60 --videos 5000    # into data/results/soak.json

Each call of `caption_list` is a process of its own, which is killed, interrupted or finds its disk
full, or whose videos are replaced, whose folders are renamed and whose server is dead while it
works. Half of the calls, at random, give their videos to a Ray cluster of two nodes on this machine
(`--local`: none does), of which one may die. A last call is left in peace. What is done is noted in
`--state` after each call: the same command goes on from there until its minutes are over. One that
is interrupted judges what it has, and says how long it was.
"""
import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

from reliability import ROOT, STATE, wait_for  # first: it finds the package of this checkout
from clusters import hold_two_nodes
from conftest import Forked, free_port
from lists import SHAPES, read, send, served

from picknet_nb.core.files import PickNetError, file_digest, write_whole
from picknet_nb.measure.experiments import circumstances
from picknet_nb.use.sources import path_of
from picknet_nb.use.tables import caption_list
from picknet_nb.world.shapes import make_story
from picknet_nb.world.world import write_clip

CONTENTS = 20  # different clips; the last two are broken files
IN_FOLDER = 100  # videos
ADDRESS = 20  # of so many videos one is named by its address
REPLACED = 50  # videos that have other contents before each call, which so has something to do
TROUBLE = ("kill", "interrupt", "full disk", "replaced", "renamed", "dead server", "none")
HERE, NODES = "here", "two nodes"  # where a call works
DEAD = ("silent", "error", "half", "gone")
HANGS = 900.0  # seconds that a call may go on after its trouble


class TwoNodes:
    "A cluster in a process of its own: a process that has used Ray had better not be forked."

    def __init__(self, folder: str):
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=hold_two_nodes, args=(theirs, Path(folder)))
        self.process.start()
        theirs.close()
        self.address = self.line.recv()

    def kill_one(self) -> None: self.line.send("the second one")

    def whole(self) -> None:
        "Wait until there are two again."
        self.address = self.line.recv()

    def close(self) -> None:
        self.line.close()
        self.process.join()


class Soak:
    "A list, its videos, and what has been done with them so far."

    def __init__(self, state: Path, videos: int, seed: int, nodes: TwoNodes | None):
        self.nodes, self.over = nodes, False
        self.folder, self.notes = state, state/"notes.json"
        self.out, self.server, self.draw = state/"rows.jsonl", "well", random.Random(seed)
        if self.notes.exists():
            self.done = json.loads(self.notes.read_text())
            for away in state.glob("videos/*.away"): away.rename(away.with_suffix(""))
            self.draw.seed(f"{seed} {self.done['seconds']}")
        else:
            self.done = {"videos": videos, "seed": seed, "port": free_port(), "seconds": 0.0,
                         "replaced": 0, "calls": {}, "ended": {}}
            self.make(videos)
        if (self.done["videos"], self.done["seed"]) != (videos, seed):
            sys.exit(f"{state} was begun with other videos or another seed: remove it")
        self.contents = sorted((state/"contents").iterdir())
        self.videos = sorted((state/"videos").glob("*/*.mp4"))
        self.sources = [self.address(path) if number % ADDRESS == 0 else str(path)
                        for number, path in enumerate(self.videos)]

    def make(self, videos: int) -> None:
        "Write the clips, and copy one of them to each video."
        shutil.rmtree(self.folder, ignore_errors=True)
        contents = [self.folder/"contents"/f"{number:02}.mp4" for number in range(CONTENTS)]
        contents[0].parent.mkdir(parents=True)
        for number, path in enumerate(contents): write_clip(make_story((7, number)), path)
        contents[-1].write_bytes(b"no video")
        contents[-2].write_bytes(contents[0].read_bytes()[:2000])
        for number in range(videos):
            path = self.folder/"videos"/f"{number // IN_FOLDER:03}"/f"{number:06}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.draw.choice(contents), path)
        write_whole(self.notes, json.dumps(self.done))

    def address(self, path: Path) -> str:
        return f"http://127.0.0.1:{self.done['port']}/{path.parent.name}/{path.name}"

    def file(self, source: str) -> Path:
        "The file that a source of the list leads to."
        return path_of(source) or self.folder/"videos"/"/".join(source.split("/")[-2:])

    def answer(self, handler) -> None:
        "What the server says, in its present mood."
        path, mood = self.folder/"videos"/handler.path[1:], self.server
        if mood == "silent": time.sleep(5)
        elif mood == "error" or not path.exists(): handler.send_error(503)
        elif mood == "gone": handler.send_error(404)
        else:
            content = path.read_bytes()
            about = {"Content-Length": len(content), "ETag": sha256(content).hexdigest()}
            with suppress(OSError):  # the other end may have died
                send(handler, content[: len(content) // 2] if mood == "half" else content, **about)

    def call(self) -> None:
        "One call of `caption_list` somewhere, with some trouble."
        where = self.draw.choice((HERE, NODES) if self.nodes else (HERE,))
        trouble = self.draw.choice((*TROUBLE, *(["dead node"] if where == NODES else [])))
        since = time.monotonic()
        for _ in range(REPLACED): self.replace()
        folder, full = self.draw.choice(self.videos).parent, trouble == "full disk"
        away = folder.with_name(f"{folder.name}.away")
        if trouble == "dead server": self.server = self.draw.choice(DEAD)
        if trouble == "renamed": folder.rename(away)
        process = Forked(
            caption, self.sources, self.out, self.nodes.address if where == NODES else False,
            self.draw.randrange(2000) if full else None)
        # most calls are short; a cluster takes longer to begin
        until = time.monotonic() + (3 if where == NODES else 1) * 20 ** self.draw.uniform(-0.2, 1)
        try:
            while trouble != "none" and process.poll() is None and time.monotonic() < until:
                if trouble == "replaced": self.replace()
                time.sleep(0.05)
            if trouble == "kill": process.kill()
            if trouble == "interrupt": process.send_signal(signal.SIGINT)
            if trouble == "dead node": self.nodes.kill_one()
            over = lambda: process.poll() is not None or time.monotonic() > until + HANGS
            wait_for(over, still=120.0)
            hangs = process.poll() is None
        finally:
            process.kill()
            self.server = "well"
            if away.exists(): away.rename(folder)
        process.wait()
        if trouble == "dead node": self.nodes.whole()
        self.count("calls", where, trouble)
        self.count("ended", where, "hang" if hangs else str(process.returncode))
        if process.returncode not in (0, 1, -signal.SIGKILL) or "Traceback" in process.output():
            self.count("ended", where, "traceback")
            print(process.output()[-2000:], flush=True)
        self.done["seconds"] += (took := time.monotonic() - since)
        write_whole(self.notes, json.dumps(self.done))
        last = (process.output().splitlines() or [""])[-1]
        print(f"{self.done['seconds'] / 60:.1f} minutes: {trouble}, {where}: ended with "
              f"{process.returncode} after {took:.0f} s {last[:100]}", flush=True)

    def count(self, what: str, where: str, kind: str) -> None:
        counts = self.done[what].setdefault(where, {})
        counts[kind] = counts.get(kind, 0) + 1

    def replace(self) -> None:
        "Another content in the place of a video: at once, or byte by byte."
        self.done["replaced"] += 1
        path, other = self.draw.choice(self.videos), self.draw.choice(self.contents)
        if self.draw.random() < 0.5:
            shutil.copy(other, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)
        else:
            shutil.copy(other, path)

    def judge(self) -> dict:
        "After a call in peace: how many rows are right, and what is wrong with the others."
        Forked(caption, self.sources, self.out, False, None, 30).wait()
        Forked(caption, list(map(str, self.contents)), known := self.folder/"known.jsonl").wait()
        captions = {file_digest(row["source"]): row["caption"] for row in read(known)}
        rows = {row["source"]: row for row in read(self.out)}  # two of one are an error
        found = Counter(missing=len(set(self.sources) - rows.keys()),
                        foreign=len(rows.keys() - set(self.sources)))
        for source, row in rows.items():
            wanted = captions[file_digest(self.file(source))]
            kind = "right" if wanted else "says_why"
            found[kind if row["caption"] == wanted and bool(row["error"]) != bool(wanted)
                  else "wrong"] += 1
        return dict(found)


def caption(
    sources: list[str], out: Path, ray: str | bool = False, bytes_left: int | None = None,
    patience: int = 2,
) -> None:
    """What the processes do; the disk of some has few bytes left for a file, and a server may be
    silent for seconds."""
    os.environ["PICKNET_SILENT_SECONDS"] = str(patience)
    if bytes_left is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, resource.RLIM_INFINITY))
    try: caption_list(sources, out, SHAPES, ray, progress=False)
    except PickNetError as reason: sys.exit(str(reason))
    except KeyboardInterrupt: sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--videos", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="no cluster")
    parser.add_argument("--state", type=Path, default=STATE/"soak", help="videos, rows, notes")
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"soak.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as until_the_end:
        nodes = None if options.local else TwoNodes(folder)
        if nodes: until_the_end.callback(nodes.close)
        soak = Soak(options.state.resolve(), options.videos, options.seed, nodes)
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, lambda *_: setattr(soak, "over", True))
        with served(soak.answer, soak.done["port"]):
            while not soak.over and soak.done["seconds"] < 60 * options.minutes: soak.call()
            found = soak.judge()
    counts = {name: soak.done[name] for name in ("videos", "seed", "replaced", "calls", "ended")}
    passed = found.get("right", 0) + found.get("says_why", 0) == len(soak.sources) \
        and not any(found.get(name) for name in ("missing", "foreign", "wrong")) \
        and not any(wrong in each for each in soak.done["ended"].values()
                    for wrong in ("traceback", "hang"))
    result = {"command": f"python tests/soak.py --minutes {options.minutes:g} --videos "
                         f"{options.videos} --seed {options.seed}{' --local' * options.local}",
              "minutes": round(soak.done["seconds"] / 60, 1), **counts, **found, "passed": passed,
              **circumstances()}
    write_whole(options.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(None if passed else "not every row is right or says why not: see above")


if __name__ == "__main__":
    main()
