"""What the fuzzing and fault tests share: damage, children that may crash, and a tally. And the
longer runs by hand:

python tests/reliability.py --inputs 5000    # so many hostile inputs through the commands, into
    data/results/reliability_inputs.json
python tests/reliability.py --kills 40       # so many kills of training on one process and on two,
    into data/results/reliability_kills.json
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # a checkout needs no installation

from picknet_nb.core.files import PickNetError, write_whole

# so many times as many inputs, for a longer run by hand
SCALE = int(os.environ.get("PICKNET_FUZZ", "1"))
SEED = os.environ.get("PICKNET_SEED", "")         # other damage than that of the suite
INPUTS = 1400  # that the commands are given in `make test`, or a few more
READ, REFUSED = "read", "refused"
# bytes that a process may hold while it tries inputs; a bomb of a few kB would like more
MOST_MEMORY = 2 * 10**9
# bytes of address space that a child may take beyond its parent's, so that a bomb ends the child
# and not the machine
ROOM = 4 << 30


def processor_time(processes=()) -> float:
    "Seconds that these processes and all below this test have computed; the dead count no more."
    import psutil
    worker = multiprocessing.parent_process()  # one that waits for another worker, or None
    found, root = 0.0, psutil.Process(worker.pid if worker else None)
    for process in [*root.children(recursive=True), *processes]:
        with contextlib.suppress(psutil.Error):
            found += sum(process.cpu_times()[:2])
    return found


def wait_for(condition, processes=(), still: float = 60.0):
    """The first true value of a condition. It is waited for in vain when nothing below this
    process, nor any of `processes`, computes for a minute: a busy machine makes the wait longer,
    and no test fail."""
    before, since = None, time.monotonic()
    while not (found := condition()):
        time.sleep(0.01)
        if time.monotonic() - since > still:
            now = processor_time(processes)
            assert now != before, "waited in vain"
            before, since = now, time.monotonic()
    return found


def tally(what: str, kind: str, outcomes: Counter | str) -> None:
    "Add to the counts of a run by hand, if it is the one who runs us."
    if path := os.environ.get("PICKNET_RELIABILITY"):
        outcomes = Counter([outcomes]) if isinstance(outcomes, str) else outcomes
        with open(path, "a") as file:
            file.write(json.dumps({"what": what, "kind": kind, "outcomes": outcomes}) + "\n")


def outcome_of(job: Callable, path) -> str:
    """`read`, `refused` by a typed error that names the file, or what else happened: that is a
    failure."""
    try:
        job(path)
        return READ
    except PickNetError as error:
        return (
            REFUSED
            if str(path) in str(error)
            else f"does not name the file: {type(error).__name__}: {error}"
        )
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-3:]
        return (f"{type(error).__name__}: {error} "
                f"({' > '.join(f'{Path(each.filename).name}:{each.lineno}' for each in last)})")


class Outcomes(dict):
    "The outcome of each input, and the most memory that any process held on the way, in bytes."
    peak = 0


def sort_of(outcome: str) -> str:
    "What an outcome is counted as: read and refused are right, the others are failures."
    first = outcome.split(":")[0]
    return (
        outcome
        if outcome in (READ, REFUSED)
        else first
        if first in ("hang", "crash")
        else "memory"
        if "emory" in outcome
        else "traceback"
    )


def settle(kind: str, outcomes: dict) -> Counter:
    "Count what came out of each input, and fail on everything that was neither read nor refused."
    counts = Counter(map(sort_of, outcomes.values()))
    tally("inputs", kind, counts)
    if peak := getattr(outcomes, "peak", 0):
        tally("peak", kind, Counter(bytes=peak))
    bad = [
        f"{getattr(name, 'name', name)!r}: {outcome[:400]}"
        for name, outcome in outcomes.items()
        if sort_of(outcome) not in (READ, REFUSED)
    ]
    assert not bad, "\n".join([f"{len(bad)} of {len(outcomes)} inputs:", *bad[:12]])
    assert peak < MOST_MEMORY, f"a process held {peak / 1e9:.1f} GB"
    return counts


def damage(content: bytes, seed) -> bytes:
    "One of several ways in which a file goes wrong."
    draw, content = random.Random(f"{SEED}{seed}"), bytearray(content or b"\n")
    place = lambda: draw.randrange(max(1, len(content)))
    way = draw.randrange(7)
    if way == 0:  # single bits
        for _ in range(draw.choice((1, 3, 20))):
            content[place()] ^= 1 << draw.randrange(8)
    elif way == 1:  # near the front, where the headers are
        for _ in range(draw.choice((1, 4))):
            content[min(place(), draw.randrange(256))] = draw.randrange(256)
    elif way == 2:  # cut
        del content[place() :]
    elif way == 3:  # a hole
        start = place()
        del content[start : start + draw.choice((1, 7, 300))]
    elif way == 4:  # a part twice
        start = place()
        content[start:start] = content[start : start + draw.choice((1, 64, 1000))]
    elif way == 5:  # a large number somewhere
        start = place()
        content[start : start + 4] = draw.choice(
            (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0")
        )
    else:  # noise
        start = place()
        content[start : start + 200] = draw.randbytes(200)
    return bytes(content)


def _peak() -> int:
    """The most memory that this process, or one that it started and that has ended, has held, in
    bytes."""
    return 1024 * max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def _serve(line, job: Callable, items: Sequence, room: int | None, parent: bool) -> None:
    import torch

    torch.set_num_threads(1)  # the parent's threads are not there after a fork
    multiprocessing.current_process()._config["daemon"] = not parent
    if room and os.path.exists("/proc/self/statm"):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(
            resource.RLIMIT_AS, (taken + room, resource.getrlimit(resource.RLIMIT_AS)[1])
        )
    for place in iter(line.recv, None):
        line.send((outcome_of(job, items[place]), _peak()))


class _Child:
    "A forked process that tries one input after the other."

    def __init__(self, *how):
        context = multiprocessing.get_context("fork")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *how), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, place: int) -> None:
        self.place, self.since = place, time.monotonic()
        self.line.send(place)

    def end(self) -> str:
        self.process.kill()
        self.process.join()
        return (
            signal.Signals(-self.process.exitcode).name
            if self.process.exitcode < 0
            else str(self.process.exitcode)
        )


def in_children(
    job: Callable,
    items: Sequence,
    seconds: float = 20.0,  # that an input may take
    workers: int = 2,
    room: int | None = ROOM,
    # whether a job may start processes of its own; without, a decoder works in the child itself, as
    # it does in a pool
    parent: bool = False,
) -> Outcomes:
    "The outcome of each input, tried where a crash, a hang or a bomb is a result and not the end."
    how, todo, found, busy = (job, items, room, parent), iter(range(len(items))), Outcomes(), []
    for _ in range(min(workers, len(items))):
        busy.append(_Child(*how))
        busy[-1].start(next(todo))
    while busy:
        ready = wait([child.line for child in busy], timeout=0.5)
        for child in list(busy):
            fresh = child
            if child.line in ready:
                try:
                    found[items[child.place]], peak = child.line.recv()
                    found.peak = max(found.peak, peak)
                except (EOFError, ConnectionError):
                    child.process.join()
                    found[items[child.place]] = f"crash: exit {child.end()}"
                    fresh = _Child(*how)
            elif time.monotonic() - child.since > seconds:
                child.end()
                found[items[child.place]] = f"hang: longer than {seconds:g} s"
                fresh = _Child(*how)
            else:
                continue
            busy[busy.index(child)] = fresh
            if (place := next(todo, None)) is None:
                fresh.end()
                busy.remove(fresh)
            else:
                fresh.start(place)
    return found


def leftovers(folder: Path) -> Iterator[Path]:
    "Temporary files that a finished or refused call should not leave."
    return (path for path in Path(folder).rglob(".*") if path.name not in (".lock", ".locked_by"))


# runs by hand
# --------------------------------------------------------------------------------------------------


def tallied(fuzz: int = 1, **environment) -> tuple[list[dict], float, int]:
    """What some tests have counted, how many seconds they took and how they ended; `tests` names
    them."""
    with tempfile.TemporaryDirectory() as folder:
        (counts := Path(folder)/"counts.jsonl").touch()
        tests, started = environment.pop("tests"), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PICKNET_RELIABILITY": str(counts),
                "PICKNET_FUZZ": str(fuzz),
                **environment,
            },
        )
        return (
            [json.loads(line) for line in counts.read_text().splitlines()],
            round(time.monotonic() - started),
            done.returncode,
        )


def try_inputs(least: int) -> dict:
    """Hostile inputs through every command, counted for each of them; there must be this many at
    least."""
    fuzz = -(-least // INPUTS)
    lines, seconds, status = tallied(
        fuzz, PICKNET_SEED="by hand ", tests=["tests/test_fuzzing_commands.py"]
    )
    found = {}
    for line in lines:
        entry = found.setdefault(
            line["kind"].split(",")[0],
            {
                "inputs": 0,
                READ: 0,
                REFUSED: 0,
                "tracebacks": 0,
                "hangs": 0,
                "crashes": 0,
                "peak_bytes": 0,
            },
        )
        for outcome, count in line["outcomes"].items():
            if line["what"] == "peak":
                entry["peak_bytes"] = max(entry["peak_bytes"], count)
            else:
                entry["inputs"] += count
                entry[
                    outcome
                    if outcome in (READ, REFUSED)
                    else {"hang": "hangs", "crash": "crashes"}.get(outcome, "tracebacks")
                ] += count
    add = lambda name: sum(entry[name] for entry in found.values())
    total = {
        name: add(name) for name in ("inputs", READ, REFUSED, "tracebacks", "hangs", "crashes")
    }
    total["peak_bytes"] = max(entry["peak_bytes"] for entry in found.values())
    return {
        **total,
        "seconds": seconds,
        "times_the_suite": fuzz,
        "entry_points": dict(sorted(found.items())),
        "passed": status == 0 and total["inputs"] >= least,
    }


def try_kills(least: int) -> dict:
    """Kills at random moments and in the middle of a write, on one process and on two; each run
    must end with the bits of one that was left alone."""
    lines, seconds, status = tallied(
        PICKNET_KILLS=str(-(-least // 2)),
        tests=["tests/test_training.py", "-k", "same_bits and (random or together or middle)"],
    )
    found = {}
    for line in lines:
        processes, _, kill = line["kind"].partition(", ")
        entry = found.setdefault(
            processes,
            {
                "kills": 0,
                "in_a_write": 0,
                "runs_with_the_same_bits": 0,
                "signals": Counter(),
                "stages": Counter(),
            },
        )
        if line["what"] == "runs":
            entry["runs_with_the_same_bits"] += line["outcomes"]["same_bits"]
        for struck, count in line["outcomes"].items() if line["what"] == "kills" else ():
            stage, _, writing = struck.partition(", ")
            entry["kills"] += count
            entry["in_a_write"] += count * bool(writing)
            entry["signals"][kill] += count
            entry["stages"][stage] += count
    stages = {"supervision", "reinforcement", "adaptation"}
    enough = all(
        entry["kills"] >= least and entry["in_a_write"] and stages <= entry["stages"].keys()
        for entry in found.values()
    )
    return {
        "seconds": seconds,
        "processes": found,
        "passed": status == 0 and enough and set(found) == {"1", "2"},
    }


def main() -> None:
    from picknet_nb.measure.experiments import circumstances

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--kills", type=int)
    options = parser.parse_args()
    for name, run in (("inputs", try_inputs), ("kills", try_kills)):
        if number := getattr(options, name):
            result = {
                "command": shlex.join(["python", "tests/reliability.py", *sys.argv[1:]]),
                **run(number),
                **circumstances(),
            }
            path = write_whole(
                ROOT/"data"/"results"/f"reliability_{name}.json",
                json.dumps(result, indent=1) + "\n",
            )
            print(f"{path}\n{json.dumps(result, indent=1)}")
            if not result["passed"]:
                sys.exit(f"{name}: not as promised")


if __name__ == "__main__":
    main()
