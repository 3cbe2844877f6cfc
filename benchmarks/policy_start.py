"""How many clips end inside the limits: a threshold on change, and the policy after each of its
starts, on clips it has not seen.

python benchmarks/policy_start.py data/corpora/msvd [data/corpora/…] [--epochs 30] [--out
    data/results/policy_start.json]

Every fourth training clip is held out. The policy is rewarded for diversity alone, so no captioner
is needed.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import torch
from common import ROOT, origin, write_result
from tqdm import tqdm

from picknet_nb.core.settings import Config, preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.recipes import recipes
from picknet_nb.method.recurrence import roll_out_by_table
from picknet_nb.method.rewards import Reward, measure_diversity, within_limits
from picknet_nb.method.stages import Model, Reinforcement
from picknet_nb.training.batches import epoch_order
from picknet_nb.training.loop import Step


STARTS = {
    "change": {},
    "direction": {"policy_start": "direction"},
    "change and clock": {"clock": True},
}


def with_held_out(corpus: Corpus) -> Corpus:
    "The same corpus; every fourth training clip is for validation instead."
    clips = corpus.splits["train"]
    held = torch.arange(len(clips), device=clips.device) % 4 == 3
    return dataclasses.replace(
        corpus,
        splits={"train": clips[~held], "validation": clips[held], "test": corpus.splits["test"]},
    )


def share_inside(picks: torch.Tensor, config: Config) -> dict:
    "Of clips, and their mean number of picks."
    return {
        "inside": round(
            within_limits(picks, config.policy.min_picks, config.policy.final_max_picks)
            .float()
            .mean()
            .item(),
            4,
        ),
        "picks": round(picks.sum(1).float().mean().item(), 3),
    }


def best_threshold(corpus: Corpus, config: Config, tries: int = 60) -> dict:
    """Pick a frame that is further from the last pick than a threshold; the threshold is the
    best for the training clips."""
    pairs = {
        split: torch.cat(
            [
                torch.cdist(some, some)
                for clips in corpus.splits[split].split(64)
                for some in [corpus.glances[clips].float()]
            ]
        )
        for split in ("train", "validation")
    }
    cuts = torch.quantile(
        pairs["train"][::8].flatten()[: 2**23],
        torch.linspace(0.05, 0.95, tries, device=corpus.device),
    )

    def at(cut, split):  # a threshold is a policy whose margin is the distance minus it
        halves = torch.full((1, *pairs[split].shape[:2]), 0.5, device=corpus.device)
        return share_inside(roll_out_by_table(pairs[split] - cut, halves)[0], config)

    best = max(cuts, key=lambda cut: at(cut, "train")["inside"])
    return {split: at(best, split) for split in pairs}


def learn(corpus: Corpus, config: Config, epochs: int) -> list[dict]:
    "Every tenth epoch of reinforcement by diversity: clips inside the limits, by the argmax."
    torch.manual_seed(config.training.seed)
    model, training = Model.for_corpus(config, corpus), corpus.splits["train"]
    settings = config.policy
    model.policy.calibrate(
        corpus.glances[training[:256]],
        (settings.min_picks + settings.first_max_picks) / 2,
        start=settings.policy_start,
    )
    stage = Reinforcement(
        model,
        corpus,
        config,
        Reward(settings, None, measure_diversity(corpus.features[training], settings)),
    )
    step, lines = Step(stage, [model.policy], config.training.reinforcement_rate, config), []
    for epoch in tqdm(
        range(epochs + 1),
        f"{corpus.name}, {settings.policy_start}{', clock' * settings.clock}",
        unit="epoch",
    ):
        if epoch % 10 == 0:
            lines.append(
                {"epoch": epoch}
                | {
                    split: share_inside(
                        torch.cat(
                            [
                                model.policy.rollout(corpus.glances[clips])
                                for clips in corpus.splits[split].split(256)
                            ]
                        ),
                        config,
                    )
                    for split in ("train", "validation")
                }
            )
        stage.start_epoch(epoch)
        for videos in (
            epoch_order(training, config.training.batch_size, seed=epoch) if epoch < epochs else ()
        ):
            step(videos)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"policy_start.json")
    options, device = parser.parse_args(), "cuda" if torch.cuda.is_available() else "cpu"
    found = []
    for folder in options.corpora:
        corpus = with_held_out(Corpus.load(folder, device))
        config = dataclasses.replace(
            preset("paper", batch_size=64, shrink_epochs=10), clip=corpus.settings
        )
        config = recipes()["PickNet (V)"].settings(config)
        found.append(
            {
                "corpus": corpus.name,
                "glance": corpus.settings.glance,
                "clips": {split: len(corpus.splits[split]) for split in ("train", "validation")},
                "limits": [config.policy.min_picks, config.policy.final_max_picks],
                "threshold": best_threshold(corpus, config),
                "starts": {
                    name: learn(corpus, config.changed(**changes), options.epochs)
                    for name, changes in STARTS.items()
                },
            }
        )
    write_result(options.out, {"kind": "policy start", **origin(), "rows": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
