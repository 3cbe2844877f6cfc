"""A training step of every captioner, the paper's and the ten that it is compared with, one after
the other in one run.

    python benchmarks/systems.py [--out data/results/benchmark_systems.json] [--captioner ta s2vt
        ...]

With a GPU at MSVD's shapes, each with its own preset and its step captured; without one at a small
size.
"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from common import ROOT, origin, write_result
from steps import CUDA, DEVICE, SIZE, milliseconds
from training import noise_corpus

from picknet_nb.core.settings import Config, preset
from picknet_nb.data.text import PAD
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.extras import ExtendedSupervision
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.stages import Model, frame_choice
from picknet_nb.training.batches import epoch_order, longest_of
from picknet_nb.training.loop import Step
from picknet_nb.training.train import check_changes
from picknet_nb.measure.comparison import own_changes

SCALE = "improved" if CUDA else "smoke"
FRAMES = {"all": make_picker("all"), "seven": make_picker("random", 7)}


def settings_of(captioner: str) -> Config:
    """As it is trained for the table of all captioners; mentions are left out, which only some
    of them know."""
    changes = own_changes(SCALE, captioner) | {"mention_weight": 0.0, "consensus": 0.0}
    return check_changes(preset(SCALE, glance="feature"), changes)


def step_of(captioner: str, frames: str, corpus) -> Step:
    "A step of stage one."
    torch.manual_seed(0)
    config = settings_of(captioner)
    model = Model.for_corpus(config, corpus).train()
    stage = ExtendedSupervision(
        model, corpus, config, frame_choice(FRAMES[frames], corpus), FRAMES[frames].most
    )
    stage.feed_back(0.0)
    return Step(stage, [model.captioner], 3e-4, config)


def batches_of(captioner: str, corpus) -> list[tuple[torch.Tensor, int]]:
    "The batches of an epoch, captions of one length together, and the places for words of each."
    settings, lengths = settings_of(captioner).training, (corpus.words != PAD).sum(1)
    order = epoch_order(
        corpus.pairs("train"),
        settings.batch_size,
        0,
        owner=corpus.caption_video,
        together=settings.captions_together,
        lengths=lengths,
    )
    return list(zip(order, longest_of(order, lengths, corpus.words.shape[1])))


def measure(captioner: str, corpus, count: int) -> dict:
    """Milliseconds a step with all frames and with seven, whether the step is captured, and how
    many weights it trains."""
    found = {}
    for frames in FRAMES:
        step = step_of(captioner, frames, corpus)
        found[frames] = milliseconds(step, batches_of(captioner, corpus), count)
        found["captured"] = bool(step.graphs) and all(
            each.graph is not None for each in step.graphs.values()
        )
    return found | {"weights": sum(weight.numel() for weight in step.stage.captioner.parameters())}


def main() -> None:
    "Time every captioner against the paper's."
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_systems.json"
    )
    parser.add_argument(
        "--captioner",
        nargs="*",
        default=[name for name in CAPTIONERS if name != "paper"],
        choices=list(CAPTIONERS),
        metavar="NAME",
    )
    parser.add_argument("--steps", type=int, default=200 if CUDA else 6)
    options = parser.parse_args()
    corpus = noise_corpus(device=DEVICE, settings=settings_of("paper").clip, **SIZE)
    steps = {
        name: measure(name, corpus, options.steps)
        for name in dict.fromkeys(["paper", *options.captioner])
    }
    for each in steps.values():
        each["times the paper's"] = {
            frames: round(each[frames] / steps["paper"][frames], 2) for frames in FRAMES
        }
    result = {
        "kind": "benchmark",
        "what": "training steps of captioners in milliseconds",
        **origin(),
        "shapes": SIZE,
        "scale": SCALE,
        "batch_size": settings_of("paper").training.batch_size,
        "steps": steps,
    }
    write_result(options.out, result)
    print(json.dumps(steps, indent=1))


if __name__ == "__main__":
    main()
