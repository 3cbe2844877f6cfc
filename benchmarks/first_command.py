"""How long the first commands take, from Enter to the prompt: `picknet --help`, `picknet models`,
and the first sentence of the default model.

python benchmarks/first_command.py [--before COMMIT] [--out data/results/first_command.json]

Each command is a new process, run several times in turns. With --before, another commit of this
repository is checked out beside this one and timed in the same turns. Run it on idle cores: the
load average before and after is part of the result.
"""
from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from common import ROOT, origin, write_result

VIDEO = ROOT/"data"/"example.mp4"  # a clip of the toy world
COMMANDS = {
    "picknet --help": ["--help"],
    "picknet models": ["models"],
    "picknet caption": ["caption", str(VIDEO)],
}


@contextmanager
def checkout(commit: str):
    "A working tree of another commit, removed at the end."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)/"before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", folder, commit], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def module_of(folder: Path) -> str:
    "The module whose `main` is the `picknet` command of a checkout."
    line = next(
        line
        for line in (folder/"settings.ini").read_text().splitlines()
        if line.startswith("console_scripts")
    )
    return line.partition("=")[2].strip().partition("=")[2].strip().partition(":")[0]


def timed(folder: Path, words: list[str]) -> tuple[float, float]:
    "Wall and processor seconds of a command, with the package of this checkout."
    code = f"from {module_of(folder)} import main; main()"
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=tempfile.gettempdir(),  # nothing of the current folder is imported
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folders: dict[str, Path], repeats: int) -> dict:
    "Medians and all times of each command in each checkout, taken in turns."
    found = {(name, line): [] for name in folders for line in COMMANDS}
    for turn in range(repeats + 1):
        for (name, line), times in found.items():
            each = timed(folders[name], COMMANDS[line])
            if turn:  # the first turn compiles modules and fills the disk cache
                times.append(each)
    return {
        name: {
            line: {
                "seconds": statistics.median(wall for wall, _ in found[name, line]),
                "processor_seconds": statistics.median(cpu for _, cpu in found[name, line]),
                "all_seconds": [round(wall, 3) for wall, _ in found[name, line]],
            }
            for line in COMMANDS
        }
        for name in folders
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="a commit to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"first_command.json")
    given = parser.parse_args()
    load = os.getloadavg()
    if given.before:
        with checkout(given.before) as folder:
            times = measure({"now": ROOT, given.before: folder}, given.repeats)
    else:
        times = measure({"now": ROOT}, given.repeats)
    result = {
        "kind": "first command",
        **origin("cpu"),
        "cores": os.cpu_count(),
        "load": {"before": [round(each, 2) for each in load],
                 "after": [round(each, 2) for each in os.getloadavg()]},
        "repeats": given.repeats,
        "times": times,
    }
    write_result(given.out, result)
    for name, commands in times.items():
        for line, each in commands.items():
            print(f"{name:10} {line:18} {each['seconds']:6.2f} s, processor "
                  f"{each['processor_seconds']:.2f} s")
    print(f"load {result['load']}, {result['machine']}\n{given.out}")


if __name__ == "__main__":
    main()
