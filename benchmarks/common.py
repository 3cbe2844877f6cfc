"""What the benchmarks share: the way to the package, the origin of a result, the clock, uniform
frames, an interval over clips, the file."""
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
from torch import Tensor

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


def uniform_frames(frames: int, k: int) -> dict[str, list[int]]:
    "Two ways to take k of a clip's frames uniformly: with both ends, or the middles of k parts."
    ends = [frames // 2] if k == 1 else [round(j * (frames - 1) / (k - 1)) for j in range(k)]
    return {"uniform, ends": ends,
            "uniform, middles": [round((j + 0.5) * frames / k - 0.5) for j in range(k)]}


def interval(difference: Tensor) -> list[float]:  # (clips,)
    "Mean and 95 % bootstrap interval over clips."
    draw = torch.Generator().manual_seed(5)
    some = torch.randint(len(difference), (4000, len(difference)), generator=draw)
    means = difference.cpu()[some].mean(1)
    return [round(number.item(), 2) for number in (
        difference.mean(), means.quantile(0.025), means.quantile(0.975))]


def write_result(path, result: dict) -> None:
    "A result file, whole or not at all."
    write_whole(path, json.dumps(result, indent=1) + "\n")
