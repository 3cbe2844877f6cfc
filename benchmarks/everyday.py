"""How many clips a second a bundled model captions on a CPU, beside all thirty frames and, where
a scorer picks, beside its policy.

python benchmarks/everyday.py [--model everyday] [--weights FILE] [--videos FOLDER] [--clips 100]
    [--out data/results/benchmark_MODEL.json]     (needs PyAV; CPU)

Whole files, decoding included, after loading, each through `caption_many` as a folder is captioned.
Clips of MSVD say in their names how long they last: those nearest to ten seconds are taken. Without
such a folder, clips of the built-in world are drawn. Long rows use fewer clips.
"""
from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from common import ROOT, origin, write_result

from picknet_nb.core.processes import usable_cores
from picknet_nb.data.video_files import find_videos
from picknet_nb.world.world import write_examples
from picknet_nb.method.pickers import make_picker
from picknet_nb.training.models import find_model
from picknet_nb.use.captioning import VideoCaptioner
from picknet_nb.use.loading import load_captioner


def nearest_to_ten_seconds(folder: Path, count: int) -> list[Path]:
    """The clips of a folder whose names say that they last about ten seconds; all alike where no
    name does."""

    def off(path: Path) -> int:
        named = re.search(r"_(\d+)_(\d+)$", path.stem)
        return abs(int(named[2]) - int(named[1]) - 10) if named else 0

    return sorted(find_videos([folder]), key=lambda path: (off(path), path.name))[:count]


def rate(captioner: VideoCaptioner, paths: list[Path]) -> dict:
    "Clips a second and frames a clip of a folder."
    list(captioner.caption_many(paths[:2], running=False))  # warms up
    started = time.perf_counter()
    found = list(captioner.caption_many(paths, running=False))
    seconds = time.perf_counter() - started
    parts = {
        part: round(sum(each.timings[part] for each in found) / len(found), 4)
        for part in found[0].timings
    }
    return {
        "clips": len(found),
        "clips_per_second": round(len(found) / seconds, 3),
        "seconds_per_clip": round(seconds / len(found), 4),
        "frames": round(sum(len(each.picked) for each in found) / len(found), 2),
        "seconds_of_parts": parts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="everyday")
    parser.add_argument("--weights", help="of the model's backbone, where they are not installed")
    parser.add_argument("--videos", type=Path, default=ROOT/"data"/"msvd"/"clips300")
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(usable_cores())
    with tempfile.TemporaryDirectory() as folder:
        if not given.videos.is_dir():
            write_examples(Path(folder), given.clips)
        paths = nearest_to_ten_seconds(
            given.videos if given.videos.is_dir() else Path(folder), given.clips
        )
        model = load_captioner(find_model(given.model), device="cpu", weights=given.weights)
        everything = replace(model, picker=make_picker("all"))
        rows = {
            "picked frames": rate(model, paths),
            "all thirty": rate(everything, paths[::4]),
        }
        if model.picker.name == "scorer":
            rows["frames of its policy"] = rate(model.streaming(), paths)
    ratios = {
        name: round(rows["picked frames"]["clips_per_second"] / row["clips_per_second"], 2)
        for name, row in rows.items()
    }
    result = {
        "kind": "benchmark",
        **origin("cpu"),
        "source": "MSVD" if given.videos.is_dir() else "built-in world",
        "clips_per_second": rows["picked frames"]["clips_per_second"],
        "seconds_per_clip": rows["picked frames"]["seconds_per_clip"],
        "times_as_fast": ratios,
        "rows": rows,
    }
    result["command"] = "python benchmarks/everyday.py" + (
        f" --model {given.model}" if given.model != "everyday" else "") + (
        f" --clips {given.clips}" if given.clips != parser.get_default("clips") else "")
    write_result(given.out or ROOT/"data"/"results"/f"benchmark_{given.model}.json", result)
    print(f"{'':28}{'clips/s':>10}{'frames':>8}")
    for name, row in rows.items():
        print(f"{name:28}{row['clips_per_second']:10.2f}{row['frames']:8.1f}")


if __name__ == "__main__":
    main()
