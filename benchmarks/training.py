"""All three stages of PickNet (V+L) with validation, on a corpus of noise in MSVD's shapes: the
paper's schedule on a GPU.

python benchmarks/training.py [--out data/results/benchmark_training.json] [--supervision 100]
    [--reinforcement 100] [--adaptation 100]
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

from picknet_nb.core.settings import ClipSettings, preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.text import Vocabulary
from picknet_nb.method.recipes import recipes
from picknet_nb.method.rewards import reward_for
from picknet_nb.method.stages import Model
from picknet_nb.training.checkpoints import Trainer
from picknet_nb.training.train import stages_of, train_stage


def noise_corpus(
    videos: int, captions: int, words: int, dims: int, device: str, settings: ClipSettings
) -> Corpus:
    "Random features and captions with MSVD's counts; the policy compares the features."
    draw = random.Random(0)
    vocabulary = Vocabulary(
        ("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{number}" for number in range(words - 4)))
    )
    sentences = [
        [
            " ".join(
                f"w{min(int(draw.expovariate(1 / 300)), words - 5)}"
                for _ in range(draw.randint(4, 12))
            )
            for _ in range(captions)
        ]
        for _ in range(videos)
    ]
    rows = [
        [vocabulary.ids[word] for word in sentence.split()] + [2]
        for video in sentences
        for sentence in video
    ]
    encoded = torch.tensor(
        [(row + [0] * settings.max_words)[: settings.max_words] for row in rows], device=device
    )
    features = torch.rand(videos, settings.frames, dims, device=device).half()
    owner = torch.arange(videos, device=device).repeat_interleave(captions)
    first, second = round(videos * 12 / 13), videos
    splits = {
        "train": torch.arange(first, device=device),
        "validation": torch.arange(first, second, device=device),
        "test": torch.arange(first, second, device=device),
    }
    return Corpus(
        "noise",
        [str(video) for video in range(videos)],
        features,
        features,
        sentences,
        splits,
        vocabulary,
        encoded,
        owner,
        settings,
        {},
        sentences,
    )


def timed(work) -> float:
    "Seconds until the device has finished."
    started = time.perf_counter()
    work()
    if torch.cuda.is_available(): torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    "Time the three stages as `train` runs them, compiling and recording included."
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_training.json"
    )
    for stage in ("supervision", "reinforcement", "adaptation"):
        parser.add_argument(
            f"--{stage}", type=int, default=0, help="epochs; default: 100 on CUDA, 1 on a CPU"
        )
    options, cuda, started = parser.parse_args(), torch.cuda.is_available(), time.perf_counter()
    size = (
        dict(videos=1300, captions=41, words=4100, dims=2048)
        if cuda
        else dict(videos=52, captions=5, words=300, dims=64)
    )
    epochs = {
        stage: getattr(options, stage) or (100 if cuda else 1)
        for stage in ("supervision", "reinforcement", "adaptation")
    }
    recipe = recipes()["PickNet (V+L)"]
    config = recipe.settings(
        preset(
            "paper" if cuda else "smoke",
            glance="feature",
            **{f"{stage}_epochs": count for stage, count in epochs.items()},
        )
    )
    corpus = noise_corpus(device="cuda" if cuda else "cpu", settings=config.clip, **size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder, Model.for_corpus(config, corpus), corpus, config, bars=False)
        reward = reward_for(config.policy, corpus)
        seconds = {
            plan.name: timed(lambda: train_stage(trainer, plan, reward))
            for plan in stages_of(recipe, config)
        }
        each = {
            stage: sorted(line["seconds"] for line in trainer.log if line["stage"] == stage)
            for stage in epochs
        }
    in_all = time.perf_counter() - started
    captions = len(corpus.pairs("train")) // config.training.batch_size
    steps = {
        "supervision": captions,
        "reinforcement": len(corpus.splits["train"]) // config.training.batch_size,
        "adaptation": captions,
    }
    result = {
        "kind": "benchmark",
        "what": "training",
        **origin(),
        "shapes": size,
        "batch_size": config.training.batch_size,
        "pairs": len(corpus.pairs("train")),
        "videos": len(corpus.splits["train"]),
        "seconds_in_all": round(in_all, 1),
        "stages": {
            stage: {
                "epochs": epochs[stage],
                "seconds": seconds[stage],
                "median_epoch_seconds": each[stage][len(each[stage]) // 2],
                "steps_per_epoch": steps[stage],
                "median_step_ms": 1000 * each[stage][len(each[stage]) // 2] / max(1, steps[stage]),
            }
            for stage in epochs
        },
    }
    write_result(options.out, result)
    print(json.dumps(result["stages"] | {"seconds_in_all": result["seconds_in_all"]}, indent=1))


if __name__ == "__main__":
    main()
