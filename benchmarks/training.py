"""Epochs of supervision and of reinforcement with validation, on a corpus of noise in MSVD's shapes.

python benchmarks/training.py [--out data/results/benchmark_training.json] [--supervision 100] [--reinforcement 100]
"""
from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import torch
from common import ROOT, origin, write_result

from picknet_nb.config import ClipSettings, preset
from picknet_nb.corpus import Corpus
from picknet_nb.rewards import reward_for
from picknet_nb.runs import Trainer
from picknet_nb.text import Vocabulary
from picknet_nb.stages import Model, recipes
from picknet_nb.training import reinforce, supervise


def noise_corpus(videos: int, captions: int, words: int, dims: int, device: str, settings: ClipSettings) -> Corpus:
    "Random features and captions with MSVD's counts; the policy compares the features."
    draw = random.Random(0)
    vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{number}" for number in range(words - 4))))
    sentences = [[" ".join(f"w{min(int(draw.expovariate(1 / 300)), words - 5)}" for _ in range(draw.randint(4, 12)))
                  for _ in range(captions)] for _ in range(videos)]
    rows = [[vocabulary.ids[word] for word in sentence.split()] + [2] for video in sentences for sentence in video]
    encoded = torch.tensor([(row + [0] * settings.max_words)[: settings.max_words] for row in rows], device=device)
    features = torch.rand(videos, settings.frames, dims, device=device).half()
    owner = torch.arange(videos, device=device).repeat_interleave(captions)
    first, second = round(videos * 12 / 13), videos
    splits = {"train": torch.arange(first, device=device), "validation": torch.arange(first, second, device=device),
              "test": torch.arange(first, second, device=device)}
    return Corpus("noise", [str(video) for video in range(videos)], features, features, sentences, splits, vocabulary, encoded, owner,
                  settings, {}, sentences)


def timed(work) -> float:
    "Seconds until the device has finished."
    started = time.perf_counter()
    work()
    if torch.cuda.is_available(): torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    "Time both stages as `train` runs them."
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"benchmark_training.json")
    parser.add_argument("--supervision", type=int, default=0, help="epochs; default: 100 on CUDA, 1 on a CPU")
    parser.add_argument("--reinforcement", type=int, default=0, help="epochs; default: 100 on CUDA, 1 on a CPU")
    options, cuda = parser.parse_args(), torch.cuda.is_available()
    size = dict(videos=1300, captions=41, words=5500, dims=2048) if cuda else dict(videos=52, captions=5, words=300, dims=64)
    epochs = {"supervision": options.supervision or (100 if cuda else 1), "reinforcement": options.reinforcement or (100 if cuda else 1)}
    changes = dict(glance="feature", supervision_epochs=epochs["supervision"], reinforcement_epochs=epochs["reinforcement"])
    config = recipes()["PickNet (V+L)"].settings(preset("paper" if cuda else "smoke", **changes))
    corpus = noise_corpus(device="cuda" if cuda else "cpu", settings=config.clip, **size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder, Model.for_corpus(config, corpus), corpus, config, bars=False)
        seconds = {"supervision": timed(lambda: supervise(trainer)), "reinforcement": timed(lambda: reinforce(trainer, reward_for(config.policy, corpus)))}
        each = {stage: sorted(line["seconds"] for line in trainer.log if line["stage"] == stage) for stage in epochs}
    steps = {"supervision": len(corpus.pairs("train")) // config.training.batch_size, "reinforcement": len(corpus.splits["train"]) // config.training.batch_size}
    result = {"kind": "benchmark", "what": "training", **origin(), "shapes": size, "batch_size": config.training.batch_size,
              "pairs": len(corpus.pairs("train")), "videos": len(corpus.splits["train"]),
              "stages": {stage: {"epochs": epochs[stage], "seconds": seconds[stage], "median_epoch_seconds": each[stage][len(each[stage]) // 2],
                                 "steps_per_epoch": steps[stage], "median_step_ms": 1000 * each[stage][len(each[stage]) // 2] / max(1, steps[stage])}
                         for stage in epochs}}
    write_result(options.out, result)
    print(json.dumps(result["stages"], indent=1))


if __name__ == "__main__":
    main()
