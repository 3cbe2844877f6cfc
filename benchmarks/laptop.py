"""A captioner of videos of one's own, on a CPU: `prepare` with EfficientNet-Lite0, `train --scale
laptop`, `evaluate`, and a clock.

python benchmarks/laptop.py CLIPS captions.json --mapping youtube_mapping.txt [--work FOLDER] [--out
    data/results/laptop.json]

CLIPS is a folder of clips of MSVD, all or some of them. Nothing else should run meanwhile. With
--work, the corpus and the run are kept there. Where there is no Java, --no-scores leaves the
captions in the result instead, and `python benchmarks/laptop.py --finish FILE` scores them
elsewhere. `laptop` begins with the model in the box. The result says so, and what that model scores
on the same clips without any training.
"""
from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from common import ROOT, origin, write_result
from forecasts import timed_command

from picknet_nb.core.processes import usable_cores
from picknet_nb.data.corpus import Corpus
from picknet_nb.measure.metrics import score


def trained_and_asked(clips: Path, captions: Path, mapping: Path, folder: Path) -> dict:
    """The three commands, one after the other: seconds, forecasts, what it began with, and what
    it says of the test clips."""
    given = (
        "--videos",
        str(clips.resolve()),
        "--captions",
        str(captions.resolve()),
        "--mapping",
        str(mapping.resolve()),
    )
    parts = {
        "prepare": timed_command(
            "prepare",
            "msvd",
            *given,
            "--cnn",
            "efficientnet-lite0",
            "--out",
            "corpus",
            folder=folder,
        ),
        "train": timed_command(
            "train", "run", "--data", "corpus", "--scale", "laptop", folder=folder
        ),
        "evaluate": timed_command(
            "evaluate", "run", "--out", "said.json", "--no-scores", "--json", folder=folder
        ),
    }
    found = json.loads(parts["evaluate"]["printed"])
    for part in parts.values():
        part.pop("printed")
    corpus = Corpus.load(folder/"corpus")
    began_from = json.loads((folder/"run"/"run.json").read_text())["began_from"]
    timed_command(
        "evaluate",
        began_from["model"],
        "--data",
        "corpus",
        "--beam",
        "1",
        "--out",
        "before.json",
        "--no-scores",
        folder=folder,
    )  # what it began with, on the same clips: not counted
    return {
        "clips": {split: len(videos) for split, videos in corpus.splits.items()},
        "captions": len(corpus.words),
        "words": len(corpus.vocabulary),
        "began_from": began_from,
        "seconds": round(sum(part["seconds"] for part in parts.values()), 1),
        "parts": parts,
        **found,
        **{name: json.loads((folder/f"{name}.json").read_text()) for name in ("said", "before")},
        "people": corpus.references("test"),
    }


def scored(result: dict) -> dict:
    """A result with scores, and a few samples in place of all that was said; scoring counts as
    one of its parts."""
    said, people, started = result["said"], result["people"], time.perf_counter()
    found = score(said, people, split="test", decoding="greedy")
    spent = round(time.perf_counter() - started, 1)
    before = score(result["before"], people, split="test", decoding="greedy")
    kept = {
        name: value for name, value in result.items() if name not in ("said", "before", "people")
    }
    return kept | {
        "seconds": round(result["seconds"] + spent, 1),
        "parts": result["parts"] | {"score": {"seconds": spent}},
        "scores": found.values,
        "signature": found.signature,
        "scores_of_its_start": before.values,
        "samples": [[name, said[name], people[name][0]] for name in list(said)[::12]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="?")
    parser.add_argument("captions", type=Path, nargs="?")
    parser.add_argument("--mapping", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--no-scores", action="store_true")
    parser.add_argument(
        "--finish", type=Path, metavar="FILE", help="a result without scores, which gets them"
    )
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"laptop.json")
    given = parser.parse_args()
    if given.finish:
        result = json.loads(given.finish.read_text())
    elif given.clips and given.captions and given.mapping:
        with tempfile.TemporaryDirectory() as empty:
            # from nothing: one that is there already is refused
            if given.work:
                given.work.mkdir(parents=True)
            found = trained_and_asked(
                given.clips, given.captions, given.mapping, given.work or Path(empty)
            )
        # whose clips they are is nobody's concern
        about = origin("cpu") | {
            "machine": f"{usable_cores()} cores",
            "command": "python benchmarks/laptop.py",
        }
        result = {"kind": "benchmark", **about, **found}
    else:
        parser.error("CLIPS, captions and --mapping are needed, or --finish")
    result = result if given.no_scores else scored(result)
    write_result(given.out, result)
    cider = (
        f"CIDEr {100 * result['scores']['CIDEr']:.1f}" if "scores" in result else "not scored yet"
    )
    print(
        f"{result['seconds'] / 60:.1f} minutes: {cider}, {result['signs']['distinct']} distinct "
        f"captions "
        f"of {result['signs']['clips']}, {result['frames_used']:.1f} frames a clip"
    )


if __name__ == "__main__":
    main()
