"""What the fuzzing and fault tests share: damage, children that may crash, and a tally. And the
longer runs by hand:

python tests/reliability.py --inputs 8000    # so many hostile inputs through the commands, into
    data/results/reliability_inputs.json
python tests/reliability.py --kills 80       # so many kills of every command that writes, and of
    training on one process and on two, into data/results/reliability_kills.json

`--workers 14` runs that many test files side by side. What is finished is noted in `--state`, one
line for each test: the same call goes on from there, on this machine or on another one. Tests that
a machine has to skip, for want of a library, are left for the next call.
"""
import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # a checkout needs no installation

from picknet_nb.core.files import PickNetError, write_whole

# so many times as many inputs, for a longer run by hand
SCALE = int(os.environ.get("PICKNET_FUZZ", "1"))
SEED = os.environ.get("PICKNET_SEED", "")         # other damage than that of the suite
CHILDREN = int(os.environ.get("PICKNET_CHILDREN", "2"))  # processes that try inputs at once
INPUTS = 1400  # that the commands are given in `make test-all`, or a few more
LONG = False  # whether all inputs are tried, by pytest's option --long; otherwise a tenth of them
READ, REFUSED = "read", "refused"
# bytes that a process may hold while it tries inputs; a bomb of a few kB would like more
MOST_MEMORY = 2 * 10**9
# bytes of address space that a child may take beyond its parent's, so that a bomb ends the child
# and not the machine
ROOM = 4 << 30


def a_tenth(inputs, kind: Callable = lambda each: None):
    """Of a list or a dictionary of inputs every tenth and the first of each kind, always the same
    ones; with --long all of them."""
    if LONG: return inputs
    names, seen = list(inputs), set()
    new = lambda name: not (kind(name) in seen or seen.add(kind(name)))
    chosen = [name for place, name in enumerate(names) if new(name) or place % 10 == 0]
    return {name: inputs[name] for name in chosen} if isinstance(inputs, dict) else chosen


def processor_time(processes=(), below: int | None = None) -> float:
    """Seconds that these processes and all below one of them, or below this test, have computed;
    the dead count no more."""
    import psutil
    worker = multiprocessing.parent_process()  # one that waits for another worker, or None
    found, root = 0.0, psutil.Process(below or (worker.pid if worker else None))
    for process in [*root.children(recursive=True), *processes]:
        with contextlib.suppress(psutil.Error):
            found += sum(process.cpu_times()[:2])
    return found


def wait_for(condition, processes=(), still: float = 60.0, explain: Callable = str):
    """The first true value of a condition. It is waited for in vain when nothing below this
    process, nor any of `processes`, computes for a minute: a busy machine makes the wait longer,
    and no test fail. `explain()` says what is known of what was waited for."""
    before, since = None, time.monotonic()
    while not (found := condition()):
        time.sleep(0.01)
        if time.monotonic() - since > still:
            now = processor_time(processes)
            assert now != before, f"waited in vain {explain()}"
            before, since = now, time.monotonic()
    return found


def run_process(words: Sequence[str], **options) -> subprocess.CompletedProcess:
    "Like `subprocess.run` with its output as text; given up only when nothing below it computes."
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(words, stdout=said, stderr=complaints, text=True, **options)
        try:
            wait_for(lambda: process.poll() is not None, still=120.0)
        finally:
            process.kill()
        texts = [file.read() for file in (said, complaints) if not file.seek(0)]
    return subprocess.CompletedProcess(words, process.returncode, *texts)


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
        else "lost"
        if "lost output" in outcome
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


def peak_memory() -> int:
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
        line.send((outcome_of(job, items[place]), peak_memory()))


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
        self.begun = self.used = self.computed()
        self.line.send(place)

    def computed(self) -> float:
        "Seconds that it and all below it have computed."
        import psutil
        with contextlib.suppress(psutil.Error):
            return processor_time([psutil.Process(self.process.pid)], self.process.pid)
        return 0.0

    def hangs(self, seconds: float) -> bool:
        """Whether it has computed for longer than an input may take, or stands still. On a busy
        machine it is neither, and looked at again a while later."""
        if time.monotonic() - self.since < seconds:
            return False
        before, self.used = self.used, self.computed()
        self.since += min(seconds, 20.0)
        return self.used - self.begun > seconds or self.used - before < 0.1

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
    workers: int = CHILDREN,
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
            elif child.hangs(seconds):
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


def count_outputs(kind: str, folder: Path, counts: Counter) -> None:
    "Count the files that a command wrote against the inputs that it read; none may be lost."
    found = sum(path.is_file() for path in folder.rglob("*"))
    tally("outputs", kind, Counter(wanted=counts[READ], found=found))
    assert found == counts[READ], f"{counts[READ]} inputs were read, and {found} files written"


def leftovers(folder: Path) -> Iterator[Path]:
    "Temporary files that a finished or refused call should not leave."
    return (path for path in Path(folder).rglob(".*") if path.name not in (".lock", ".locked_by"))


# runs by hand
# --------------------------------------------------------------------------------------------------

STATE = ROOT/"data"/"reliability"  # not committed


def code_digest() -> str:
    "Letters that change with the package and its tests, on any machine."
    digest = hashlib.sha256()
    for path in sorted(path for name in ("picknet_nb", "tests") for path in
                       (ROOT/name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def pytest_call(words: Sequence[str], **environment) -> subprocess.CompletedProcess:
    "Call pytest with these words, and keep what it prints."
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--long", "--tb=short", "-p", "no:cacheprovider",
         *words],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def counted(test: str, about: dict, environment: dict) -> dict:
    "Run one test by its name: how it ended, and what it counted."
    with tempfile.TemporaryDirectory() as folder:
        (counts := Path(folder)/"counts.jsonl").touch()
        started = time.monotonic()
        done = pytest_call([test, f"--basetemp={folder}/made"], **environment,
                           PICKNET_RELIABILITY=str(counts))
        lines = [json.loads(line) for line in counts.read_text().splitlines()]
    if done.returncode:
        print(f"{test}\n{done.stdout[-4000:]}", flush=True)
    return {
        "test": test, "failed": done.returncode, "lines": lines,
        "skipped": not done.returncode and not lines,
        "seconds": round(time.monotonic() - started), **about,
    }


class Session:
    "The tests of a run by hand: which are finished, and what they have counted."

    def __init__(self, name: str, which: Sequence[str], environment: dict, options):
        from picknet_nb.measure.experiments import circumstances

        self.path = options.state/f"reliability_{name}.state.jsonl"
        self.environment = environment | {"PICKNET_CHILDREN": str(max(2, options.workers // 3))}
        self.workers = options.workers
        self.about = circumstances()
        self.key = {"code": code_digest(), "how": environment}
        found = pytest_call(["--collect-only", *which]).stdout.splitlines()
        self.tests = [line for line in found if "::" in line and not line.startswith("ERROR")]
        stored = self.path.read_text().splitlines() if self.path.exists() else ()
        entries = [entry for entry in map(json.loads, stored)
                   if entry["key"] == self.key and entry["test"] in self.tests]
        self.done = {entry["test"]: entry for entry in entries}

    def run(self) -> Iterator[list[dict]]:
        "What is known so far, after each test that ends; a test that failed is not noted."
        self.path.parent.mkdir(parents=True, exist_ok=True)
        todo = [test for test in self.tests if test not in self.done]
        with ThreadPoolExecutor(self.workers) as pool:
            under_way = [pool.submit(counted, test, self.about, self.environment) for test in todo]
            for each in as_completed(under_way):
                entry = each.result() | {"key": self.key}
                self.done[entry["test"]] = entry
                print(f"{len(self.done)} of {len(self.tests)}: {entry['test']}, "
                      f"{entry['seconds']} s{', SKIPPED' * entry['skipped']}"
                      f"{', FAILED' * bool(entry['failed'])}", flush=True)
                if not entry["failed"] and not entry["skipped"]:
                    with open(self.path, "a") as file: file.write(json.dumps(entry) + "\n")
                yield list(self.done.values())
        if not todo:
            yield list(self.done.values())

    def summary(self) -> dict:
        "How many tests have ended how, and where they ran."
        ended = list(self.done.values())
        return {
            "tests": len(self.tests),
            "tests_passed": sum(not each["failed"] and not each["skipped"] for each in ended),
            "tests_failed": [each["test"] for each in ended if each["failed"]],
            "tests_skipped": [each["test"] for each in ended if each["skipped"]],
            "seconds": sum(each["seconds"] for each in ended),
            "machines": dict(Counter(each["machine"] for each in ended if each["lines"])),
            "commits": sorted({each["commit"] for each in ended}),
        }


NOTHING = {"inputs": 0, READ: 0, REFUSED: 0, "tracebacks": 0, "hangs": 0, "crashes": 0, "lost": 0,
           "outputs_wanted": 0, "outputs_found": 0, "peak_bytes": 0}
PLURAL = {"hang": "hangs", "crash": "crashes", "lost": "lost"}


def add_up_inputs(entries: list[dict], least: int) -> dict:
    "What became of the inputs, for each entry point and for all of them."
    found = {}
    for line in (line for entry in entries for line in entry["lines"]):
        entry = found.setdefault(line["kind"].split(",")[0], dict(NOTHING))
        for outcome, count in line["outcomes"].items():
            if line["what"] == "peak":
                entry["peak_bytes"] = max(entry["peak_bytes"], count)
            elif line["what"] == "outputs":
                entry[f"outputs_{outcome}"] += count
            else:
                entry["inputs"] += count
                name = outcome if outcome in (READ, REFUSED) else PLURAL.get(outcome, "tracebacks")
                entry[name] += count
    total = {name: sum(entry[name] for entry in found.values()) for name in NOTHING}
    total["peak_bytes"] = max((entry["peak_bytes"] for entry in found.values()), default=0)
    wrong = sum(total[name] for name in ("tracebacks", "hangs", "crashes", "lost"))
    right = total["inputs"] >= least and not wrong and total["peak_bytes"] < MOST_MEMORY
    return {**total, "entry_points": dict(sorted(found.items())),
            "right": right and total["outputs_wanted"] == total["outputs_found"]}


STAGES = {"supervision", "reinforcement", "adaptation"}
WRITERS = {"prepare", "reproduce", "export", "subtitles", "strip", "gif", "mp4"}


def add_up_kills(entries: list[dict], least: int) -> dict:
    """The kills of training on one process and on two, and of each command; every run ended with
    the bits of one that was left alone, or its test would have failed."""
    found = {}
    for line in (line for entry in entries for line in entry["lines"]):
        name, _, kill = line["kind"].partition(", ")
        name = f"train, {name} process{'es' * (name != '1')}" if name.isdigit() else name
        entry = found.setdefault(
            name, {"kills": 0, "runs_with_the_same_bits": 0, "where": Counter()})
        if line["what"] == "runs":
            entry["runs_with_the_same_bits"] += line["outcomes"]["same_bits"]
        elif line["what"] == "kills":
            entry["kills"] += sum(line["outcomes"].values())
            entry["where"].update(line["outcomes"])
    struck = {stage for name, entry in found.items() if name.startswith("train")
              for stage in STAGES if any(stage in where for where in entry["where"])}
    kills = sum(entry["kills"] for entry in found.values())
    return {
        "kills": kills, "commands": dict(sorted(found.items())),
        "right": kills >= least and struck == STAGES and WRITERS <= found.keys()
        and all(entry["kills"] and entry["runs_with_the_same_bits"] for entry in found.values()),
    }


def by_hand(name: str, least: int, options) -> bool:
    "Run the tests, write the result as they end, and say whether all is as promised."
    if name == "inputs":
        times = -(-least // INPUTS)
        which = ["tests/test_fuzzing_commands.py", "tests/test_hostile_commands.py"]
        environment = {"PICKNET_FUZZ": str(times), "PICKNET_SEED": "by hand "}
        add_up, more = add_up_inputs, {"times_the_suite": times}
    else:
        each = -(-least // 8)
        which = ["tests/test_training.py", "tests/test_kills.py", "-k",
                 "same_bytes or same_bits and (random or together or middle)"]
        environment, add_up, more = {"PICKNET_KILLS": str(each)}, add_up_kills, {"each_test": each}
    session, result = Session(name, which, environment, options), {}
    for entries in session.run():
        summary = session.summary()
        result = {
            "command": f"python tests/reliability.py --{name} {least}",
            **add_up(entries, least), **more, **summary, **session.about,
        }
        result["passed"] = result.pop("right") and summary["tests_passed"] == summary["tests"]
        path = write_whole(
            options.out/f"reliability_{name}.json", json.dumps(result, indent=1) + "\n")
    print(f"{path}\n{json.dumps(result, indent=1)}")
    return result["passed"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, help="hostile inputs, at least")
    parser.add_argument("--kills", type=int, help="kills, at least")
    parser.add_argument("--workers", type=int, default=1, help="tests that run side by side")
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results")
    parser.add_argument("--state", type=Path, default=STATE, help="what is finished")
    options = parser.parse_args()
    passed = [by_hand(name, number, options) for name in ("kills", "inputs")
              if (number := getattr(options, name))]
    sys.exit(None if all(passed) else "not as promised, or not finished: see above")


if __name__ == "__main__":
    main()
