"""Training steps of the three stages at MSVD's shapes: alone, with and without captions sorted by
length, and several runs side by side.

    python benchmarks/steps.py [--out data/results/benchmark_steps.json] [--side-by-side 3 6]

With a GPU at MSVD's shapes; without one at a small size, and nothing is run side by side.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import ROOT, origin, write_result
from training import noise_corpus

from picknet_nb.core.settings import preset
from picknet_nb.data.text import PAD
from picknet_nb.method.extras import ExtendedSupervision
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.recipes import recipes
from picknet_nb.method.rewards import reward_for
from picknet_nb.method.stages import Adaptation, Model, Reinforcement, frame_choice
from picknet_nb.training.batches import epoch_order, longest_of
from picknet_nb.training.loop import Step
from picknet_nb.measure.experiments import shared_gpu

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SIZE = (
    dict(videos=1300, captions=41, words=4100, dims=2048)
    if CUDA
    else dict(videos=52, captions=5, words=300, dims=64)
)
CONFIG = recipes()["PickNet (V+L)"].settings(
    preset("paper" if CUDA else "smoke", glance="feature", captions_together=1)
)


def step_of(stage: str, corpus) -> Step:
    "A step of one of the stages; where words are fed back, a quarter of them are the model's own."
    torch.manual_seed(0)
    model = Model.for_corpus(CONFIG, corpus).train()
    if stage.startswith("supervision"):
        made = ExtendedSupervision(model, corpus, CONFIG, frame_choice(make_picker("all"), corpus))
        parts = [model.captioner]
        made.feed_back(0.25 if stage == "supervision" else 0.0)
    else:
        model.policy.calibrate(corpus.glances[:256], wanted=6.5)
        kind, parts = (
            (Reinforcement, [model.policy])
            if stage == "reinforcement"
            else (Adaptation, [model.captioner, model.policy])
        )
        made = kind(model, corpus, CONFIG, reward_for(CONFIG.policy, corpus))
        made.start_epoch(50)
    return Step(made, parts, 3e-4, CONFIG)


def batches_for(stage: str, corpus, sort: bool) -> list[tuple[torch.Tensor, int]]:
    """The batches of an epoch, and the places for words of each: all of them where captions are
    not sorted."""
    if stage == "reinforcement":
        return [
            (batch, 0)
            for batch in epoch_order(corpus.splits["train"], CONFIG.training.batch_size, 0)
        ]
    lengths = (corpus.words != PAD).sum(1)
    order = epoch_order(
        corpus.pairs("train"), CONFIG.training.batch_size, 0, lengths=lengths if sort else None
    )
    return list(
        zip(
            order,
            longest_of(order, lengths, corpus.words.shape[1])
            if sort
            else [corpus.words.shape[1]] * len(order),
        )
    )


def milliseconds(step: Step, batches: list, count: int) -> float:
    "The mean time of a step over many batches, after each form has been recorded."
    chosen = [batches[number % len(batches)] for number in range(count)]
    for batch, places in {places: (batch, places) for batch, places in chosen}.values():
        step.stage.expect(places), step(batch), step(batch)
    wait()
    started = time.perf_counter()
    for batch, places in chosen: step.stage.expect(places), step(batch)
    wait()
    return 1000 * (time.perf_counter() - started) / count


def wait() -> None:
    "Until the device has finished."
    if CUDA: torch.cuda.synchronize()


def beside(stage: str, count: int) -> list[float]:
    "The same step in several processes at the same time, each with a model of its own."
    with tempfile.TemporaryDirectory() as folder, shared_gpu():
        command = [sys.executable, __file__, "--worker", stage, "--start", folder]
        workers = [
            subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
            for number in range(count)
        ]
        while len(list(Path(folder).iterdir())) < count and all(
            worker.poll() is None for worker in workers
        ):
            time.sleep(0.05)
        (Path(folder)/"go").touch()
        return [float(worker.communicate()[0].split()[-1]) for worker in workers]


def work(stage: str, folder: Path, number: str) -> None:
    "One of several processes: be ready, wait for the others, and say how long a step takes."
    corpus = noise_corpus(device=DEVICE, settings=CONFIG.clip, **SIZE)
    step, batches = step_of(stage, corpus), batches_for(stage, corpus, sort=True)
    milliseconds(step, batches, len(batches))
    (folder/number).touch()
    while not (folder/"go").exists(): time.sleep(0.01)
    print(milliseconds(step, batches, 2 * len(batches)))


def main() -> None:
    "Time every stage."
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_steps.json"
    )
    parser.add_argument("--side-by-side", type=int, nargs="*", default=[3, 6] if CUDA else [])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, Path(options.start[0]), options.start[1])
    corpus, steps = noise_corpus(device=DEVICE, settings=CONFIG.clip, **SIZE), {}
    for stage in ("supervision", "supervision without feedback", "reinforcement", "adaptation"):
        count = 378 if CUDA and stage != "reinforcement" else 20
        kinds = (
            {"sorted": True, "at random": False} if stage != "reinforcement" else {"videos": False}
        )
        steps[stage] = {
            kind: milliseconds(step_of(stage, corpus), batches_for(stage, corpus, sort), count)
            for kind, sort in kinds.items()
        }
    del corpus
    together = {
        str(count): (times := beside("supervision", count))
        and {"slowest": max(times), "per run": max(times) / count}
        for count in options.side_by_side
    }
    result = {
        "kind": "benchmark",
        "what": "training steps in milliseconds",
        **origin(),
        "shapes": SIZE,
        "batch_size": CONFIG.training.batch_size,
        "steps": steps,
        "supervision side by side": together,
    }
    write_result(options.out, result)
    print(json.dumps({"steps": steps, "side by side": together}, indent=1))


if __name__ == "__main__":
    main()
