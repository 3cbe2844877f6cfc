"""What `prepare`, `train` and `reproduce` say that they will take, beside what they took, on a CPU.

python benchmarks/forecasts.py [--videos FOLDER --captions captions.json] [--clips 40] [--no-scores]
    [--out data/results/forecasts.json]     (needs PyAV; CPU)

Each command is typed as a user would; the clock runs from the line with its forecast to its end.
Without a folder of videos, films of the built-in world are drawn. Few epochs, so that all of it
takes minutes; a factor of 2 means that it took half of what was said. Where there is no Java,
--no-scores leaves the scoring out of `reproduce`, whose forecast counts some seconds for it.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, origin, write_result

from picknet_nb.data.extraction import find_videos
from picknet_nb.world.world import write_examples

UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
EPOCHS = ("supervision_epochs=4", "word_epochs=2", "reinforcement_epochs=10", "shrink_epochs=5")


def seconds_said(line: str) -> float | None:
    "The seconds of a forecast; None where a line is none."
    found = re.search(r"on this machine: about ([\d.]+) (second|minute|hour)", line)
    return float(found[1]) * UNITS[found[2]] if found else None


def timed_command(*words: str, folder: Path) -> dict:
    """A command of picknet as it is typed: what it foretold, what it took from then on, what it
    took in all, and what it printed."""
    started, said, line_of_it, told = time.perf_counter(), None, "", []
    around = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "picknet_nb.interface.main", *words],
        cwd=folder,
        env=around,
        text=True,
        stdout=(written := tempfile.TemporaryFile("w+")),
        stderr=subprocess.PIPE,
    ) as process:
        for line in process.stderr:
            told.append(line)
            if said is None and (said := seconds_said(line)) is not None:
                line_of_it, begun = line.strip(), time.perf_counter()
    ended = time.perf_counter()
    if process.returncode:
        sys.exit(
            f"picknet {' '.join(words)} ended with {process.returncode}:\n{''.join(told[-20:])}"
        )
    written.seek(0)
    found = {"seconds": round(ended - started, 1), "printed": written.read()}
    if said is not None:
        took = ended - begun
        found |= {
            "forecast": line_of_it,
            "foretold": said,
            "took": round(took, 1),
            "factor": round(said / took, 2),
        }
    return found


def some_videos(
    videos: Path | None, captions: Path | None, clips: int, folder: Path
) -> tuple[Path, Path]:
    "A folder with so many clips, and a file with what people said of them."
    if videos is None:
        write_examples(folder/"clips", clips)
        return folder/"clips", folder/"clips"/"captions.json"
    known = json.loads(captions.read_text())
    chosen = [path for path in find_videos([videos]) if path.stem in known][:clips]
    (folder/"clips").mkdir()
    for path in chosen:
        (folder/"clips" / path.name).symlink_to(path.resolve())
    (folder/"captions.json").write_text(
        json.dumps({path.stem: known[path.stem] for path in chosen})
    )
    return folder/"clips", folder/"captions.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--videos", type=Path)
    parser.add_argument("--captions", type=Path)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--no-scores", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"forecasts.json")
    given = parser.parse_args()
    changes = [word for each in EPOCHS for word in ("--set", each)]
    with tempfile.TemporaryDirectory() as folder:
        videos, captions = some_videos(given.videos, given.captions, given.clips, Path(folder))
        commands = {
            "prepare": (
                "prepare",
                "videos",
                "--videos",
                str(videos),
                "--captions",
                str(captions),
                "--cnn",
                "efficientnet-lite0",
                "--out",
                "corpus",
            ),
            "train": ("train", "run", "--data", "corpus", "--scale", "laptop", *changes),
            "reproduce": (
                "reproduce",
                "--data",
                "corpus",
                "--scale",
                "laptop",
                "--row",
                "Baseline",
                "--row",
                "Uniform",
                "--row",
                "PickNet (V+L)",
                "--folder",
                "table",
                *changes,
                *["--no-scores"] * given.no_scores,
            ),
        }
        rows = {
            name: {
                "command": " ".join(("picknet", *words)).replace(folder, "…"),
                **timed_command(*words, folder=Path(folder)),
            }
            for name, words in commands.items()
        }
    for name, row in rows.items():
        row.pop("printed")
        if "factor" not in row:
            sys.exit(f"picknet {name} foretold nothing")
    write_result(
        given.out, {"kind": "benchmark", **origin("cpu"), "clips": given.clips, "rows": rows}
    )
    for name, row in rows.items():
        print(
            f"{name:10} said {row['foretold']:6.0f} s, took {row['took']:6.0f} s: a factor of "
            f"{row['factor']}"
        )


if __name__ == "__main__":
    main()
