"""Print the way from a command to where its work is done: `python tools/calls.py [caption|train|
reproduce|compare ...]` runs each command on something small until it is there, and prints the
functions of the package that are being called then, the command first.

Functions of other packages between them do not count, nor do lambdas and generator expressions.
A worker process is a fork: its calls stand below those of the process that started it.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT/'picknet_nb'}{os.sep}"


class Way(NamedTuple):
    "A command, and the function that does its work."
    words: tuple[str, ...]  # typed after `picknet`; {} is an empty folder
    module: str             # where the function is called from
    function: str
    ahead: str              # calls it, too, before the work: to check a file, to estimate the time


_SMOKE = ("--data", "shapes", "--preset", "smoke")
_STEP = ("picknet_nb.method.stages", "caption_loss")
_TABLE = (*_SMOKE, "--workers", "1", "--folder", "{}/table")
WAYS = {
    "caption": Way(("caption", str(ROOT/"data"/"example.mp4"), "--model", "shapes"),
                   "av", "open", "files_or_errors"),
    "train": Way(("train", "{}/run", *_SMOKE), *_STEP, "announce"),
    "reproduce": Way(("reproduce", *_TABLE), *_STEP, "print_forecast"),
    "compare": Way(("compare", *_TABLE, "--captioner", "ta"), *_STEP, "print_forecast"),
}


def calls_above(frame: FrameType | None) -> list[str]:
    "The functions of the package that are being called, the command first."
    found = []
    while frame:
        code = frame.f_code
        # not generator expressions, lambdas and the like
        if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
            found.append(f"{module}.{getattr(code, 'co_qualname', code.co_name)}")
        frame = frame.f_back
    found.reverse()
    return found[found.index("interface/main.main") + 1:]


def run_until_there(way: Way, folder: str) -> None:
    "Run the command in this process; where its work begins, write down the way and end it all."
    from picknet_nb.interface.main import main

    module = import_module(way.module)
    work = getattr(module, way.function)

    def stop(*given, **options):
        calls = calls_above(sys._getframe(1))
        if any(call.endswith(f".{way.ahead}") for call in calls):
            return work(*given, **options)
        (Path(folder)/"calls").write_text("\n".join(calls))
        os.killpg(0, signal.SIGKILL)  # the processes of this session, this one among them

    setattr(module, way.function, stop)
    sys.argv = ["picknet", *(word.format(folder) for word in way.words)]
    main()


def measure(name: str) -> list[str]:
    "The functions of the package between a command and its work."
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, name, folder], cwd=ROOT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        if not (path := Path(folder)/"calls").exists():
            raise SystemExit(f"picknet {name} never came there: {done.stderr.strip()}")
        return path.read_text().splitlines()


def main() -> None:
    if len(sys.argv) == 3 and Path(sys.argv[2]).is_dir():
        return run_until_there(WAYS[sys.argv[1]], sys.argv[2])
    for name in sys.argv[1:] or WAYS:
        calls, way = measure(name), WAYS[name]
        print(f"picknet {name}, to {way.module}.{way.function}: {len(calls)} calls")
        print("".join(f"  {number:2} {call}\n" for number, call in enumerate(calls, 1)))


if __name__ == "__main__":
    main()
