"""What the benchmarks share: the way to the package, the origin of a result, the clock, the
file."""
from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no installation

import torch

from picknet_nb.core.files import write_whole
from picknet_nb.measure.experiments import circumstances


def device_name(device: str) -> str:
    "The name of the GPU, or the kind of processor and how many threads work."
    return (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )


def origin(device: str | None = None) -> dict:
    """The command that was typed, commit, machine, versions and date; `device` if it need not be
    the GPU that is there."""
    # where the file goes does not matter
    typed = [each for before, each in zip(sys.argv, sys.argv[1:]) if "--out" not in (before, each)]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *typed])
    return {
        "command": command,
        **circumstances(),
        **({"machine": device_name(device)} if device else {}),
    }


def times_ms(work, device: str, repeats: int, warm_up: int = 3) -> list[float]:
    "Milliseconds of each of several calls, waiting for the device each time."
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            begin = time.perf_counter()
            work()
            times.append(1000 * (time.perf_counter() - begin))
    return times


def median_ms(work, device: str, repeats: int = 30, warm_up: int = 5) -> float:
    "Median milliseconds of one call."
    return statistics.median(times_ms(work, device, repeats, warm_up))


def write_result(path, result: dict) -> None:
    "A result file, whole or not at all."
    write_whole(path, json.dumps(result, indent=1) + "\n")
