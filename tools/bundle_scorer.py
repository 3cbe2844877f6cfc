"""Put a trained scorer into a bundled model, whose picks on files are then the scorer's.

python tools/bundle_scorer.py everyday --scorer runs/mine --frames 3 --rule gap
python tools/bundle_scorer.py everyday --remove

The folder has a scorer.safetensors, as `picknet train --picker scorer-3` and `benchmarks/eyes.py
bundle` write it. Budget, rule and threshold are stored with it; what is not named stays as it is.
An eye that the package does not have, or with other weights, is an error before anything is
written. The model's card is written again from data/results/model_NAME.json, where that is there;
`python tools/card.py NAME --corpus …` measures the model with its new picks.
"""
from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from card import ROOT, write_card
from picknet_nb.core.files import FileError, read_json
from picknet_nb.data.backbones import load_backbone
from picknet_nb.method.scorer import RULES, FrameValues
from picknet_nb.training.cards import find_model
from picknet_nb.training.runs import read_settings
from picknet_nb.training.scorers import SCORER, StoredScorer, load_scorer, save_scorer
from picknet_nb.use.loading import load_eye


def settled(
    scorer: StoredScorer, frames: int | None, rule: str | None, threshold: float | None
) -> StoredScorer:
    "The scorer with another budget, rule or threshold, where they are given."
    values = scorer.values
    values = FrameValues(list(values.scorers), rule or values.rule,
                         values.threshold if threshold is None else threshold, values.every)
    return replace(scorer, values=values, number=frames or scorer.number)


@torch.no_grad()
def share_of_equal_picks(one: StoredScorer, other: StoredScorer, clips: int = 500) -> float:
    "How many of some random clips have the same picks."
    dims = one.values.scorers[0].sizes["dims"]
    seen = torch.randn(clips, one.values.frames, dims,
                       generator=torch.Generator().manual_seed(0))
    picks = [each.values.picks(each.values(seen), each.number) for each in (one, other)]
    return (picks[0] == picks[1]).all(1).double().mean().item()


def bundle(
    name: str, source: Path, frames: int | None = None, rule: str | None = None,
    threshold: float | None = None,
) -> StoredScorer:
    "Store a scorer with a bundled model; the stored one, as every later use will find it."
    folder, given = find_model(name), load_scorer(source)
    if given is None: raise FileError(source/SCORER, "no such file")
    given = settled(given, frames, rule, threshold)
    config = read_settings(folder)
    if config.clip.frames != given.values.frames:
        raise FileError(source/SCORER, "was trained on clips of another number of frames than "
                        f"{name} has, {config.clip.frames}")
    # with the weights that the package has, or it could not pick there
    load_eye(source, given, load_backbone(given.eye) if given.eye != "grey" else None, "cpu")
    save_scorer(folder, given)
    return load_scorer(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", help="of the package")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--scorer", type=Path, help="folder with a scorer.safetensors")
    what.add_argument("--remove", action="store_true", help="the policy picks again")
    add("--frames", type=int, choices=range(1, 31), metavar="N", help="that it picks")
    add("--rule", choices=list(RULES))
    add("--threshold", type=float, help="least value of a pick, 1 is the usual spread of values")
    given = parser.parse_args(arguments)
    folder = find_model(given.model)
    if given.remove:
        (folder/SCORER).unlink(missing_ok=True)
    else:
        source = load_scorer(given.scorer)
        made = bundle(given.model, given.scorer, given.frames, given.rule, given.threshold)
        same = share_of_equal_picks(
            settled(source, given.frames, given.rule, given.threshold), made)
        print(f"{folder/SCORER}: {(folder/SCORER).stat().st_size / 1e6:.2f} MB, {made.eye}, "
              f"{made.number} frames, {made.values.rule}; in half precision the picks of "
              f"{100 * same:.1f} % of random clips are the same")
    result = ROOT/"data"/"results"/f"model_{given.model}.json"
    if result.exists(): print(write_card(given.model, read_json(result)))


if __name__ == "__main__":
    main()
