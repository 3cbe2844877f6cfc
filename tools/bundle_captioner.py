"""Put a trained captioner into the bundled models that share one, in eight bits.

python tools/bundle_captioner.py sharp runs/mine
python tools/bundle_captioner.py everyday runs/mine --backbone clip-4bit:grid

A model that has weights gets the run's captioner and its words and keeps its own policy, which was
trained with the captioner before; a model that shares the weights of another gets its words and
settings, and the backbone that its frames are seen with. A scorer stays as it is. Several runs of
one architecture and with the same words are averaged, weight by weight. Measure the models then:
`python tools/card.py NAME --corpus …`.
"""
from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from picknet_nb.core.files import FileError, read_json, write_whole
from picknet_nb.core.settings import save_config
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.student import in_eight_bits
from picknet_nb.training.cards import find_model
from picknet_nb.training.runs import newest_weights, read_settings, save_weights, stored_weights

PART = "captioner."


def averaged(runs: list[Path]) -> dict[str, torch.Tensor]:
    "The captioner of a run, or the mean of several; other words or sizes are an error."
    first = stored_weights(newest_weights(runs[0]))
    weights = {name: each.float() for name, each in first.items() if name.startswith(PART)}
    for run in runs[1:]:
        if (run/"vocabulary.json").read_bytes() != (runs[0]/"vocabulary.json").read_bytes():
            raise FileError(run/"vocabulary.json", f"has other words than {runs[0]}")
        more = stored_weights(newest_weights(run))
        if wrong := [name for name, each in weights.items()
                     if name not in more or more[name].shape != each.shape]:
            raise FileError(run, f"has another captioner than {runs[0]}: {wrong[0]}")
        for name in weights: weights[name] += more[name].float()
    return {name: each / len(runs) for name, each in weights.items()}


def small(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    "Matrices in eight bits, everything else in half precision."
    kept = in_eight_bits({name: each.double() for name, each in weights.items()})
    return {name: each.half() if each.dtype == torch.float64 else each
            for name, each in kept.items()}


def bundle(name: str, runs: list[Path], backbone: str | None) -> Path:
    "Write the weights, words, settings and description of a bundled model."
    folder, run = find_model(name), runs[0]
    was, about = read_json(folder/"run.json"), read_json(run/"run.json")
    before, now = read_settings(folder), read_settings(run)
    config = now.changed(  # of the policy and of how it was trained: as before
        **asdict(before.policy), cnn=backbone or now.clip.cnn,
        **{key: value for key, value in asdict(before.training).items()
           if key.startswith("reinforcement")})
    if backbone: about["details"]["weights"] = load_backbone(backbone).weights
    settings = {key: value for group in asdict(config).values() for key, value in group.items()}
    about |= {"recipe": was["recipe"], "speech": was["speech"], "settings": settings}
    if len(runs) > 1: about["details"]["averaged"] = len(runs)
    if "weights_of" in was:
        about["weights_of"] = was["weights_of"]
    else:
        policy = {key: each for key, each in stored_weights(folder/"weights.safetensors").items()
                  if not key.startswith(PART)}
        save_weights(small(averaged(runs) | policy), folder/"weights.safetensors")
    write_whole(folder/"vocabulary.json", (run/"vocabulary.json").read_bytes())
    write_whole(folder/"run.json", json.dumps(about, indent=1) + "\n")
    return save_config(config, folder/"config.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of a bundled model")
    parser.add_argument("runs", nargs="+", type=Path, help="several are averaged")
    parser.add_argument("--backbone", help="that the model's frames are seen with")
    given = parser.parse_args()
    print(bundle(given.name, given.runs, given.backbone).parent)


if __name__ == "__main__":
    main()
