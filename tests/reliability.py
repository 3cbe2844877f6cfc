"What the fuzzing and fault tests share: damage, children that may crash, and a tally that ends in a result file."
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from picknet_nb.files import PickNetError

SCALE = int(os.environ.get("PICKNET_FUZZ", "1"))  # so many times as many inputs, for a longer run by hand
READ, REFUSED = "read", "refused"


def tally(what: str, kind: str, outcomes: Counter | str) -> None:
    "Add to the counts of `benchmarks/reliability.py`, if it is the one who runs us."
    if path := os.environ.get("PICKNET_RELIABILITY"):
        outcomes = Counter([outcomes]) if isinstance(outcomes, str) else outcomes
        with open(path, "a") as file:
            file.write(json.dumps({"what": what, "kind": kind, "outcomes": outcomes}) + "\n")


def outcome_of(job: Callable, path) -> str:
    "`read`, `refused` by a typed error that names the file, or what else happened: that is a failure."
    try:
        job(path)
        return READ
    except PickNetError as error:
        return REFUSED if str(path) in str(error) else f"does not name the file: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def settle(kind: str, outcomes: dict) -> Counter:
    "Count what came out of each input, and fail on everything that was neither read nor refused."
    short = lambda outcome: outcome if outcome in (READ, REFUSED) else "failure"
    counts = Counter(map(short, outcomes.values()))
    tally("inputs", kind, counts)
    bad = [f"{getattr(name, 'name', name)}: {outcome.splitlines()[0][:300]}" for name, outcome in outcomes.items() if short(outcome) == "failure"]
    assert not bad, "\n".join([f"{len(bad)} of {len(outcomes)} inputs:", *bad[:12]])
    return counts


def damage(content: bytes, seed) -> bytes:
    "One of several ways in which a file goes wrong."
    draw, content = random.Random(str(seed)), bytearray(content)
    place = lambda: draw.randrange(max(1, len(content)))
    way = draw.randrange(7)
    if way == 0:  # single bits
        for _ in range(draw.choice((1, 3, 20))): content[place()] ^= 1 << draw.randrange(8)
    elif way == 1:  # near the front, where the headers are
        for _ in range(draw.choice((1, 4))): content[min(place(), draw.randrange(256))] = draw.randrange(256)
    elif way == 2:  # cut
        del content[place():]
    elif way == 3:  # a hole
        start = place(); del content[start:start + draw.choice((1, 7, 300))]
    elif way == 4:  # a part twice
        start = place(); content[start:start] = content[start:start + draw.choice((1, 64, 1000))]
    elif way == 5:  # a large number somewhere
        start = place(); content[start:start + 4] = draw.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0"))
    else:  # noise
        start = place(); content[start:start + 200] = draw.randbytes(200)
    return bytes(content)


def _serve(line, job: Callable, items: Sequence) -> None:
    import torch
    torch.set_num_threads(1)  # the parent's threads are not there after a fork
    for place in iter(line.recv, None):
        line.send((place, outcome_of(job, items[place])))


class _Child:
    "A forked process that tries one input after the other."

    def __init__(self, job: Callable, items: Sequence):
        context = multiprocessing.get_context("fork")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, job, items), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, place: int) -> None:
        self.place, self.since = place, time.monotonic()
        self.line.send(place)

    def end(self) -> str:
        self.process.kill()
        self.process.join()
        return signal.Signals(-self.process.exitcode).name if self.process.exitcode < 0 else str(self.process.exitcode)


def in_children(job: Callable, items: Sequence, seconds: float = 20.0, workers: int = 2) -> dict:
    "The outcome of each input, tried where a crash or a hang is a result and not the end."
    todo, found = iter(range(len(items))), {}
    busy = []
    for _ in range(min(workers, len(items))):
        busy.append(_Child(job, items))
        busy[-1].start(next(todo))
    while busy:
        ready = wait([child.line for child in busy], timeout=0.5)
        for child in list(busy):
            fresh = child
            if child.line in ready:
                try:
                    place, found[items[child.place]] = child.line.recv()
                except (EOFError, ConnectionError):
                    child.process.join()
                    found[items[child.place]] = f"crash: exit {child.end()}"
                    fresh = _Child(job, items)
            elif time.monotonic() - child.since > seconds:
                child.end()
                found[items[child.place]] = "hang"
                fresh = _Child(job, items)
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
