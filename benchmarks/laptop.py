"""A captioner of real videos from nothing, on a CPU: `prepare` with EfficientNet-Lite0, `train --scale laptop`, `evaluate`, and a clock.

python benchmarks/laptop.py CLIPS captions.json --mapping youtube_mapping.txt [--work FOLDER] [--out data/results/laptop.json]

CLIPS is a folder of clips of MSVD, all or some of them. Nothing else should run meanwhile. With --work, the corpus and the run are kept there.
"""
from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from common import ROOT, origin, write_result
from forecasts import timed_command

from picknet_nb.corpus import Corpus
from picknet_nb.workers import usable_cores


def from_nothing(clips: Path, captions: Path, mapping: Path, folder: Path) -> dict:
    "The three commands, one after the other: seconds, forecasts, and what came of it."
    given = "--videos", str(clips.resolve()), "--captions", str(captions.resolve()), "--mapping", str(mapping.resolve())
    parts = {"prepare": timed_command("prepare", "msvd", *given, "--cnn", "efficientnet-lite0", "--out", "corpus", folder=folder),
             "train": timed_command("train", "run", "--data", "corpus", "--scale", "laptop", folder=folder),
             "evaluate": timed_command("evaluate", "run", "--out", "said.json", "--json", folder=folder)}
    found = json.loads(parts["evaluate"]["printed"])
    for part in parts.values(): part.pop("printed")
    corpus, said = Corpus.load(folder/"corpus"), json.loads((folder/"said.json").read_text())
    people = corpus.references("test")
    return {"clips": {split: len(videos) for split, videos in corpus.splits.items()}, "captions": len(corpus.words), "words": len(corpus.vocabulary),
            "seconds": round(sum(part["seconds"] for part in parts.values()), 1), "parts": parts, **found,
            "samples": [[name, said[name], people[name][0]] for name in list(said)[::12]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--mapping", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"laptop.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        if given.work: given.work.mkdir(parents=True)  # from nothing: one that is there already is refused
        found = from_nothing(given.clips, given.captions, given.mapping, given.work or Path(empty))
    about = origin("cpu") | {"machine": f"{usable_cores()} cores", "command": "python benchmarks/laptop.py"}  # whose clips they are is nobody's concern
    write_result(given.out, {"kind": "benchmark", **about, **found})
    print(f"{found['seconds'] / 60:.1f} minutes: CIDEr {100 * found['scores']['CIDEr']:.1f}, {found['signs']['distinct']} distinct captions "
          f"of {found['signs']['clips']}, {found['frames_used']:.1f} frames a clip")


if __name__ == "__main__":
    main()
