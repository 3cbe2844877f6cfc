"""Teach a scorer for a bundled model: what single frames are worth, by the model's own captioner.

python tools/teach_scorer.py sharp --corpus data/corpora/msvd-clip --corpus data/corpora/msrvtt-clip
python tools/teach_scorer.py everyday --taught data/scorer-small --every 5 --budgets 1 2 \\
    --corpus data/corpora/msvd-clip --corpus data/corpora/msrvtt-clip --splits validation \\
    --eye data/corpora/msvd --eye data/corpora/msrvtt

The corpora are those of `tools/card.py`, whose features are those of the model's backbone, which
is the eye. The model captions every frame of every training and validation clip by itself;
networks of three seeds learn the CIDEr of these captions from what the eye sees of every third
frame, and of every fifth (--every); validation clips choose the epoch. Then the model captions
validation and test clips from the picked frames, and from uniform ones. Chosen on validation
clips, for both corpora together, with at most three frames: number of frames and rule by CIDEr;
then the eye that looks at the fewest frames and loses at most one point by that.

A model may also pick with the scorers that another one taught (--taught, the --out of that call);
--eye names, for each --corpus, the one with what they see.

Values, scorers and captions are kept in --out and not made again; the result goes to
data/results/scorer_MODEL.json. Three quarters of an hour on two cores.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from picknet_nb.core.files import write_whole
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.eyes import same_eye, sight
from picknet_nb.data.text import SPECIALS, Vocabulary, caption_ids
from picknet_nb.measure.experiments import circumstances
from picknet_nb.method.captioner import caption
from picknet_nb.method.fast_cider import Cider
from picknet_nb.method.frame_values import RULES, FrameValues, looks
from picknet_nb.training.cards import find_model
from picknet_nb.training.committee import own_values
from picknet_nb.training.models import Decoding
from picknet_nb.training.runs import load_run
from picknet_nb.training.scorers import StoredScorer, fit_scorers, load_scorer, save_scorer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/"benchmarks"))
from common import interval, uniform_frames

MOST = 3     # frames of the bundled model
WORTH = 1.0  # points that fewer looks may cost on validation clips


def values_of(
    model, corpora: list[Corpus], looked: Tensor, kept: Path
) -> list[dict[str, Tensor]]:
    """Values (clips, frames) of the training and the validation clips of every corpus; only frames
    that a scorer looks at are captioned, others have none."""
    run, config, vocabulary, _ = model
    found = []
    for corpus in corpora:
        path, started = kept/f"values-{corpus.name}.safetensors", time.monotonic()
        if not path.exists():
            settings = replace(corpus.settings, max_words=config.clip.max_words)
            its = replace(corpus, vocabulary=vocabulary, settings=settings,
                          features=corpus.features[:, looked])
            values = {}
            for split in ("train", "validation"):
                clips = corpus.splits[split]
                values[split] = torch.full((len(clips), corpus.features.shape[1]), torch.nan)
                values[split][:, looked] = own_values(run.captioner, its, clips)
            write_whole(path, save(values))
            print(f"{corpus.name}: values in {time.monotonic() - started:.0f} s", flush=True)
        found.append({name: each.float() for name, each in load_file(path).items()})
    return found


def taught(corpora: list[Corpus], values: list[dict[str, Tensor]], every: int, seeds: int,
           epochs: int, kept: Path, taught_by: str) -> StoredScorer:
    "A scorer that looks at every so many frames; what validation clips say goes beside it."
    folder = kept/f"every-{every}"
    if there := load_scorer(folder): return there
    seen = torch.cat([sight(each, "feature").seen for each in corpora])
    looked = looks(seen.shape[1], every)
    starts = [0]
    for each in corpora: starts.append(starts[-1] + len(each.ids))
    clips = lambda split: [each.splits[split] + start for each, start in zip(corpora, starts)]
    started = time.monotonic()
    fitted = fit_scorers(
        seen[:, looked], 0, torch.cat(clips("train")),
        torch.cat([each["train"] for each in values])[:, looked],
        list(zip(clips("validation"), (each["validation"][:, looked] for each in values))),
        seeds=seeds, epochs=epochs)
    eye = sight(corpora[0], "feature")
    folder.mkdir(parents=True, exist_ok=True)
    save_scorer(folder, StoredScorer(FrameValues(fitted.scorers, every=every), MOST, eye.eye,
                                     eye.weights, taught_by))
    write_whole(folder/"fit.json", json.dumps({
        "epoch kept": fitted.epoch, "worth on validation clips (1: a mean frame)":
        round(fitted.worth, 4), "seconds": round(time.monotonic() - started)}))
    return load_scorer(folder)


def choices(
    scorers: dict[int, StoredScorer], seen: Tensor, budgets: list[int]
) -> Iterator[tuple[dict, Tensor]]:
    "Every kind of picks, and the picked frames (clips, k)."
    clips, frames, _ = seen.shape
    for k in budgets:
        for rule, at in uniform_frames(frames, k).items():
            yield {"frames": k, "rule": rule}, torch.tensor(at).expand(clips, -1)
    for every, scorer in scorers.items():
        values = torch.cat([scorer.values(some) for some in seen.split(256)])
        for k in budgets:
            for rule, pick in RULES.items():
                yield {"frames": k, "rule": rule, "every": every}, pick(values, k)


@torch.no_grad()
def captions_of(model, how: Decoding, features: Tensor, chosen: Tensor) -> list[str]:
    "What the model says of the chosen frames (clips, k), decoded as it is used."
    run, config, vocabulary, _ = model
    picks = torch.zeros(features.shape[:2], dtype=torch.bool).scatter_(1, chosen, True)
    words = torch.cat([
        caption(run.captioner, some, taken, config.clip.max_words, how.beam,
                no_repeats=how.no_repeats)
        for some, taken in zip(features.split(256), picks.split(256))])
    return vocabulary.decode(words)


def earned(texts: list[str], references: list[list[list[str]]]) -> Tensor:
    "CIDEr-D x 100 (built-in) of captions, clip by clip."
    words = [text.split() for text in texts]
    known = sorted({word for some in references for one in some for word in one}
                   | {word for one in words for word in one})
    vocabulary = Vocabulary((*SPECIALS, *known))
    ids = torch.tensor([caption_ids(one, vocabulary.ids, 24) for one in words])
    return 100 * Cider(references, vocabulary)(ids, torch.arange(len(ids))).double()


def measured(model, how: Decoding, corpora: list[Corpus], eyes: list[Corpus],
             scorers: dict[int, StoredScorer], budgets: list[int], splits: list[str], kept: Path,
             ) -> list[dict]:
    "CIDEr of every choice of frames on clips of these splits, beside the better uniform one."
    rows = []
    for corpus, eye in zip(corpora, eyes):
        if corpus.ids != eye.ids:
            raise SystemExit(f"{corpus.name}: other clips than those of --eye")
        for split in splits:
            path, clips = kept/f"captions-{corpus.name}-{split}.json", corpus.splits[split]
            if not path.exists():
                features, seen = (each.features[clips].float() for each in (corpus, eye))
                write_whole(path, json.dumps([
                    {**choice, "captions": captions_of(model, how, features, chosen)}
                    for choice, chosen in choices(scorers, seen, budgets)]))
                print(path, flush=True)
            references = [corpus.tokens[clip] for clip in clips.tolist()]
            scores = [(row, earned(row.pop("captions"), references))
                      for row in json.loads(path.read_text())]
            for row, each in scores:
                best = max((other for name, other in scores if "every" not in name
                            and name["frames"] == row["frames"]), key=lambda other: other.mean())
                found = {"data": corpus.name, "split": split, **row,
                         "CIDEr": round(each.mean().item(), 2)}
                if "every" in row: found["minus the better uniform"] = interval(each - best)
                rows.append(found)
    return rows


def chosen_from(rows: list[dict]) -> dict:
    "By validation clips, all data sets together: frames and rule, then how few looks do."
    found: dict[tuple, list[float]] = {}
    for row in rows:
        if row["split"] == "validation" and "every" in row and row["frames"] <= MOST:
            found.setdefault((row["every"], row["frames"], row["rule"]), []).append(row["CIDEr"])
    mean = {key: sum(each) / len(each) for key, each in found.items()}
    tried = sorted({key[0] for key in mean})
    best = {every: max((key for key in mean if key[0] == every), key=mean.get) for every in tried}
    least = max(mean[key] for key in best.values()) - WORTH
    every = max(each for each in tried if mean[best[each]] >= least)
    return {"every": every, "frames": best[every][1], "rule": best[every][2],
            "CIDEr on validation clips, mean of the data sets":
                {every: round(mean[key], 2) for every, key in best.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--corpus", type=Path, action="append", required=True)
    parser.add_argument("--eye", type=Path, action="append",
                        help="what scorers see, for each --corpus; default: the same")
    parser.add_argument("--taught", type=Path, help="scorers of another call, its --out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--every", type=int, nargs="+", default=[3, 5],
                        help="the eye looks at the middle one of so many frames; odd numbers")
    parser.add_argument("--budgets", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--splits", nargs="+", default=["validation", "test"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    out = given.out or ROOT/"data"/f"scorer-{given.model}"
    out.mkdir(parents=True, exist_ok=True)
    corpora, seen_by = ([Corpus.load(path) for path in paths]
                        for paths in (given.corpus, given.eye or given.corpus))
    first, *others = [sight(each, "feature") for each in seen_by]
    if not all(same_eye(each, first.eye, first.weights) for each in others):
        raise SystemExit("the corpora were prepared with different backbones")
    names, folder = " and ".join(each.name for each in corpora), find_model(given.model)
    model, how = load_run(folder, "cpu"), Decoding.read(folder)
    fits = given.taught or out
    if given.taught:
        scorers = {every: load_scorer(fits/f"every-{every}") for every in given.every}
    else:
        frames = corpora[0].features.shape[1]
        looked = torch.cat([looks(frames, every) for every in given.every]).unique()
        values = values_of(model, corpora, looked, out)
        scorers = {every: taught(corpora, values, every, given.seeds, given.epochs, out,
                                 f"the captioner of {given.model}, {names}")
                   for every in given.every}
    rows = measured(model, how, corpora, seen_by, scorers, given.budgets, given.splits, out)
    choice = chosen_from(rows)
    told = {"--corpus": [f"data/corpora/{path.name}" for path in given.corpus],
            "--eye": [f"data/corpora/{path.name}" for path in given.eye or []]}
    command = [f"python tools/teach_scorer.py {given.model}"]
    command += [f"{name} {value}" for name, values in told.items() for value in values]
    if given.taught: command.append(f"--taught data/{given.taught.name}")
    for name in ("every", "budgets", "splits"):
        if (value := getattr(given, name)) != parser.get_default(name):
            command.append(f"--{name} {' '.join(map(str, value))}")
    write_whole(ROOT/"data"/"results"/f"scorer_{given.model}.json", json.dumps({
        "kind": "scorer of a model", "what": "CIDEr-D x 100 (built-in) of the model, decoded as it "
        "is used, from frames that the scorer picks and from uniform ones; intervals over clips",
        "command": " ".join(command),
        **circumstances("cpu"), "eye": first.eye, "seeds": given.seeds,
        "taught by": scorers[given.every[0]].taught_by,
        "clips": {each.name: {split: len(each.splits[split]) for split in each.splits}
                  for each in corpora},
        "fits": {every: json.loads((fits/f"every-{every}"/"fit.json").read_text())
                 for every in given.every},
        "chosen": choice, "rows": rows}, indent=1))
    print(json.dumps(choice, indent=1))


if __name__ == "__main__":
    main()
