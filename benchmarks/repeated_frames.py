"""What a policy learns from clips that repeat their frames, with a clock and without: six pictures
of every clip of the built-in world, five times each.

python benchmarks/repeated_frames.py data/runs/shapes-small/seed-0/supervision [--seeds 3] [--out
    data/results/repeated_frames.json]

The captioner is the one that `make reproduce` has taught on all frames; only the policy learns, for
language and diversity.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

import torch
from common import ROOT, origin, write_result

from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.recipes import recipes
from picknet_nb.training.train import LEADER, open_data, train


def repeated(corpus: Corpus, pictures: int = 6) -> Corpus:
    "The same clips, but of each only so many frames, every one as often as it takes."
    each = corpus.glances.shape[1] // pictures
    order = torch.arange(0, pictures * each, each).repeat_interleave(each)
    return dataclasses.replace(
        corpus,
        features=corpus.features[:, order].contiguous(),
        glances=corpus.glances[:, order].contiguous(),
    )


def learned(corpus: Corpus, captioner: Path, seed: int, clock: bool) -> dict:
    """The last epoch of stage two: frames, and the share of clips within the limits, by chance
    and by the greedy choice."""
    config = preset("small", seed=seed, clock=clock, adaptation_epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        train(
            Path(folder)/"run",
            corpus,
            config,
            recipes()[LEADER],
            start=captioner/"weights.safetensors",
        )
        lines = [
            json.loads(line)
            for line in (Path(folder)/"run"/"log.jsonl").read_text().splitlines()
        ]
    last = [line for line in lines if line["stage"] == "reinforcement"][-1]
    return {
        "seed": seed,
        "clock": clock,
        "epochs": last["epoch"] + 1,
        **{
            how: {"picks": round(line["picks"], 2), "inside": round(line["inside"], 3)}
            for how, line in (("by chance", last), ("greedy", last["validation"]))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captioner", type=Path, help="the folder of its run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"repeated_frames.json")
    options = parser.parse_args()
    corpus, rows = repeated(open_data("shapes", "small")), []
    for seed in range(options.seeds):
        rows += [learned(corpus, options.captioner, seed, clock) for clock in (False, True)]
        print(*rows[-2:], sep="\n")
    write_result(options.out, {"kind": "repeated frames", **origin("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
