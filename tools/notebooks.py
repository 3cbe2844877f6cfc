"""Run every notebook, each in a process of its own, as many at a time as there are cores: `python tools/notebooks.py [NAME...]`.

What takes long and is the same for all is done once, before the first process is forked: importing PyTorch, drawing the example clips,
and starting METEOR, which reads its tables for ten seconds. Which notebooks take long is known from the last time; those come first.
"""
import json
import os
import sys
import time
from contextlib import contextmanager
from multiprocessing import Lock
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="agg")  # a fork does not survive PyTorch's threads

from nbdev.config import get_config
from nbdev.test import test_nb

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT/".venv"/"notebook_seconds.json"


class SharedMeteor:
    "What a METEOR that others use too looks like to one who asks: nobody comes between a question and its answers."

    def __init__(self, java, lock):
        self.java, self.lock, self.awaited = java, lock, 0

    def __enter__(self): return self
    def __exit__(self, *_): pass

    def answer(self, line: str | None = None) -> str:
        "Send a line, if there is one, and read a line."
        if line is not None:
            if not self.lock.acquire(timeout=600): raise TimeoutError("METEOR was left in the middle of an answer by a notebook that died")
            self.awaited = 1 + (line.count(" ||| ") if line.startswith("EVAL") else 0)
        self.awaited -= 1
        try:
            return self.java.answer(line)
        finally:
            if not self.awaited: self.lock.release()


@contextmanager
def one_meteor():
    "Every notebook that scores shares one METEOR; the notebook that explains how it is started, and the tests, start their own."
    from picknet_nb import metrics

    try:
        java = metrics.meteor_process()
    except metrics.ScoreError:  # not installed: whoever needs it will say so
        yield
        return
    with java:
        java.watch.cancel()  # there is no time limit on all notebooks together, and a fork should see no other thread
        java.watch.join()
        lock = Lock()
        metrics.meteor_process = lambda *_, **__: SharedMeteor(java, lock)
        yield


def prepare() -> None:
    "Import and draw what nearly every notebook needs."
    import matplotlib.pyplot  # noqa: F401

    from picknet_nb import api, compared, frontier, watching  # noqa: F401
    from picknet_nb.shapes import example_corpus
    example_corpus()


def started(path: Path) -> int:
    "The process that runs a notebook; it ends with status 0 if all went well."
    sys.stdout.flush()
    if process := os.fork():
        return process
    passed = False
    try:
        passed, _ = test_nb(path, skip_flags=get_config().tst_flags.split(), do_print=True, basepath=ROOT)
    finally:
        sys.stdout.flush()
        os._exit(not passed)


def run_all(paths: list[Path], most: int) -> tuple[dict[str, float], list[str]]:
    "How long each notebook took, in processor seconds, and the names of those that failed."
    waiting, running, seconds, failed = list(paths), {}, {}, []
    while waiting or running:
        while waiting and len(running) < most:
            path = waiting.pop(0)
            running[started(path)] = path
        process, status, used = os.wait3(0)
        if path := running.pop(process, None):
            seconds[path.name] = round(used.ru_utime + used.ru_stime, 1)
            if status: failed.append(path.name)
    return seconds, failed


def main(names: list[str]) -> None:
    os.chdir(ROOT/"nbs")
    paths = [path.absolute() for path in Path(".").glob("[!.]*.ipynb") if not names or path.stem in names]
    known = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    paths.sort(key=lambda path: (-known.get(path.name, 1e9), path.name))
    begun = time.monotonic()
    prepare()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with one_meteor():
        seconds, failed = run_all(paths, max(2, cores))
    if SECONDS.parent.is_dir(): SECONDS.write_text(json.dumps(known | seconds, indent=1))
    slowest = sorted(seconds, key=seconds.get, reverse=True)[:8]
    print(f"{len(seconds)} notebooks in {time.monotonic() - begun:.0f} s; processor seconds of the slowest:",
          ", ".join(f"{name.removesuffix('.ipynb')} {seconds[name]:.0f}" for name in slowest))
    if failed: sys.exit("\n".join(["these notebooks failed, see above:", *failed]))


if __name__ == "__main__":
    main(sys.argv[1:])
