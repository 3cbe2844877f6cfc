"""What a picker that sees is worth: frame values by a committee, scorers of several eyes and seeds,
and eight captioners that judge their picks beside uniform, random and clustered ones.

python benchmarks/eyes.py committee --corpus data/corpora/msvd-clip \\
    --corpus data/corpora/msrvtt-clip
python benchmarks/eyes.py scorers --corpus … --corpus … \\
    --eye lite0-clip data/corpora/msvd-student data/corpora/msrvtt-student

`committee` leaves values.pt and committee.pt in --work, and frame_values_committee.json; `scorers`
needs them. Everything is chosen on validation clips; test clips are scored once for each row.
"""
from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from common import ROOT, origin

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from picknet_nb.data.corpus import SPLITS, Corpus
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.scorer import Scorer, best_of_parts, best_with_gap, centred, part_bounds
from picknet_nb.training.committee import (
    Committee, Judge, random_halves, train_committee, unseen_mean)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUDGETS = (1, 2, 3, 4, 6)
RULES = {"best of equal parts": best_of_parts, "best with a gap": best_with_gap}
VARIANTS = {"plain": {}, "noise": {"noise": 0.5}, "wide": {"hidden": 256}, "flat": {"layers": 0},
            "dropped": {"input_dropout": 0.5, "dropout": 0.3},
            "both": {"noise": 0.5, "input_dropout": 0.5, "dropout": 0.3}}


def joined(folders: list[str]) -> tuple[Corpus, dict[str, Tensor]]:
    "Several corpora as one, and the clips of each by its name."
    corpora = [Corpus.load(folder) for folder in folders]
    first, begin, members = corpora[0], 0, {}
    splits = {split: [] for split in SPLITS}
    for corpus in corpora:
        members[corpus.name] = torch.arange(begin, begin + len(corpus.ids))
        for split in SPLITS: splits[split] += (corpus.splits[split] + begin).tolist()
        begin += len(corpus.ids)
    of_all = lambda name: [each for corpus in corpora for each in getattr(corpus, name)]
    made = Corpus.build(
        " and ".join(members), of_all("ids"), torch.cat([each.features for each in corpora]),
        torch.cat([each.glances for each in corpora]), of_all("captions"), splits,
        replace(first.settings, max_words=18, min_word_count=8), sentences=of_all("sentences"))
    return made.to(DEVICE), {name: clips.to(DEVICE) for name, clips in members.items()}


def in_split(corpus: Corpus, members: dict[str, Tensor], split: str) -> dict[str, Tensor]:
    "The clips of a split, by data set."
    return {name: clips[torch.isin(clips, corpus.splits[split])]
            for name, clips in members.items()}


def correlation(one: Tensor, other: Tensor) -> float:
    "Of frame values within clips."
    one, other = centred(one), centred(other)
    return ((one * other).sum() / (one.norm() * other.norm())).item()


def interval(difference: Tensor) -> list[float]:  # (clips,)
    "Mean and 95 % bootstrap interval over clips."
    draw = torch.Generator().manual_seed(5)
    some = torch.randint(len(difference), (4000, len(difference)), generator=draw)
    means = difference.cpu()[some].mean(1)
    return [round(each, 2) for each in (
        difference.mean().item(), means.quantile(0.025).item(), means.quantile(0.975).item())]


def agreement(values: Tensor, halves: int) -> dict:  # (members, clips, frames) of test clips
    "How well the members on halves agree with each other, and with those on all clips."
    some, others = values[:halves], values[halves:].mean(0)
    pairs = [correlation(some[a], some[b]) for a in range(halves) for b in range(a)]
    agree, worth, draw = {}, {}, torch.Generator().manual_seed(0)
    for k in (number for number in (1, 2, 4, 8, 16) if number <= halves):
        drawn = [some[torch.randperm(halves, generator=draw)[:k]].mean(0) for _ in range(20)]
        agree[k] = round(sum(correlation(each, others) for each in drawn) / len(drawn), 3)
        worth[k] = round(sum(others.gather(1, each.argmax(1, keepdim=True)).mean().item()
                             for each in drawn) / len(drawn), 1)
    return {"clips": values.shape[1], "two members": round(sum(pairs) / len(pairs), 3),
            "k members and eight others": agree,
            "worth of the favourite of k members to eight others": worth,
            "mean frame": round(others.mean().item(), 1),
            "best frame by the eight themselves": round(others.max(1).values.mean().item(), 1)}


def committee(given: argparse.Namespace) -> None:
    "Train the members, value every frame, and say how well they agree."
    corpus, members = joined(given.corpus)
    learns = random_halves(corpus, given.pairs, given.whole, seed=1)
    group = torch.zeros(len(corpus.ids), dtype=torch.int64)
    for number, clips in enumerate(members.values()): group[clips.cpu()] = number
    started = perf_counter()
    net = train_committee(corpus, learns, given.steps, given.clips, group=group,
                          report=lambda step, loss: print(f"step {step}: loss {loss:.2f}"),
                          **json.loads(given.sizes))
    values = torch.zeros(len(learns), len(corpus.ids), corpus.features.shape[1])
    for split in SPLITS:
        for clips in in_split(corpus, members, split).values():
            values[:, clips.cpu()] = Judge(net, corpus, clips).values().cpu()
    given.work.mkdir(parents=True, exist_ok=True)
    torch.save({"state": net.state_dict(), "sizes": json.loads(given.sizes)},
               given.work/"committee.pt")
    torch.save({"values": values.half(), "learns": learns}, given.work/"values.pt")
    halves, trained = 2 * given.pairs, {}
    for name, clips in in_split(corpus, members, "train").items():
        some, saw = values[:halves, clips.cpu()], learns[:halves, clips.cpu()]
        own, other = unseen_mean(some, ~saw), unseen_mean(some, saw)
        trained[name] = {
            "mean value, members that trained on the clip": round(own.mean().item(), 1),
            "mean value, the others": round(other.mean().item(), 1),
            "correlation of the two": round(correlation(own, other), 3)}
    write(given, "frame_values_committee.json", {
        "kind": "frame values", "what": "CIDEr-D x 100 (built-in) of captions made from one frame "
        "of a clip; correlations within clips", **origin(), "features": corpus.settings.cnn,
        "members": {"on halves": halves, "on all training clips": given.whole},
        "steps": given.steps, "seconds": round(perf_counter() - started),
        "test clips": {name: agreement(values[:, clips.cpu()], halves) for name, clips
                       in in_split(corpus, members, "test").items()}, "training clips": trained})


def write(given: argparse.Namespace, name: str, content: dict) -> None:
    (given.out/name).write_text(json.dumps(content, indent=1))
    print(f"{given.out/name} written")


def fit(seen: Tensor, clips: Tensor, wanted: Tensor, held_out: list, given, **options):
    """Scorers of several seeds as one network. The epoch that is kept is one for all seeds: the
    best running mean, on held-out clips, of the value of the best frames of equal parts."""
    nets = []
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        nets.append(Scorer(seen.shape[-1], seen.shape[1], **options).to(DEVICE))
    weights = {name: each.detach().requires_grad_()
               for name, each in stack_module_state(nets)[0].items()}
    loud, quiet = copy.deepcopy(nets[0]).train(), copy.deepcopy(nets[0]).eval()
    learn = vmap(lambda w, x: functional_call(loud, w, (x,)), randomness="different")
    look = vmap(lambda w, x: functional_call(quiet, w, (x,)), in_dims=(0, None))
    adam = torch.optim.AdamW(list(weights.values()), 5e-4, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.OneCycleLR(
        adam, 5e-4, total_steps=given.epochs * -(-len(clips) // 128) + 1)
    average = {name: each.detach().clone() for name, each in weights.items()}
    history, best, kept, epoch_kept = [], -torch.inf, average, 0
    for epoch in range(given.epochs):
        order = torch.stack([torch.randperm(len(clips), device=DEVICE) for _ in nets])
        for some in order.split(128, 1):
            found, want = learn(weights, seen[clips[some]]), wanted[some]
            square = (centred(found) - want).square().mean((1, 2))
            expected = ((2 * found).softmax(-1) * want).sum(-1).mean(1)
            adam.zero_grad()
            (square - 0.3 * expected).sum().backward()
            norms = torch.stack([each.grad.flatten(1).norm(dim=1) for each in weights.values()])
            shrink = 1 / norms.norm(dim=0).clamp(min=1)  # every seed its own
            for each in weights.values():
                each.grad.mul_(shrink.view(-1, *[1] * (each.dim() - 1)))
            adam.step()
            plan.step()
            for name, each in average.items(): each.lerp_(weights[name].detach(), 0.02)
        with torch.no_grad():
            history.append(sum(
                worth_of(look(average, seen[videos]), values) for videos, values in held_out
            ) / len(held_out))
        recent = sum(history[-3:]) / 3
        if len(history) >= 3 and recent > best:
            best, epoch_kept = recent, epoch
            kept = {name: each.clone() for name, each in average.items()}
    return lambda videos: look(kept, seen[videos]).detach(), best, epoch_kept


def worth_of(scores: Tensor, values: Tensor) -> float:  # (seeds, clips, frames), (clips, frames)
    "What the best frames of equal parts are worth beside a mean frame; all budgets and seeds."
    found = [values.gather(1, best_of_parts(each, k)).mean() for each in scores for k in BUDGETS]
    return (sum(found) / len(found) / values.mean()).item()


def controls(corpus: Corpus, clips: Tensor, seen: Tensor, k: int) -> dict[str, Tensor]:
    "Frames (sets, clips, k) that nobody learned to choose."
    frames, count = corpus.features.shape[1], len(clips)
    ends = ([frames // 2] if k == 1
            else [round(j * (frames - 1) / (k - 1)) for j in range(k)])
    middles = [round((j + 0.5) * frames / k - 0.5) for j in range(k)]
    at = lambda places: torch.tensor(places, device=DEVICE).expand(1, count, -1)
    near = F.normalize(seen[clips].float(), dim=-1)
    near = near @ near.transpose(1, 2)
    bounds = part_bounds(frames, k)
    medoids = torch.stack([near[:, a:b, a:b].sum(-1).argmax(1) + a
                           for a, b in zip(bounds, bounds[1:])], 1)
    chosen = {"uniform, ends": at(ends), "uniform, middles": at(middles),
              "part medoids": medoids[None],
              "random": torch.rand(10, count, frames, device=DEVICE).topk(k).indices.sort()[0]}
    if k > 1:
        picks = make_picker("kmeans", k)(Clips(seen[clips].float(), seen[clips].float()))
        chosen["k-means"] = picks.nonzero()[:, 1].view(1, count, k)
    return chosen


def scorers(given: argparse.Namespace) -> None:
    "Fit every eye and variant, pick frames of test clips, and let the judges score them."
    corpus, members = joined(given.corpus)
    stored, net = (torch.load(given.work/name, map_location=DEVICE, weights_only=True)
                   for name in ("values.pt", "committee.pt"))
    values, learns, halves = stored["values"].float(), stored["learns"], 2 * given.pairs
    judges = Committee(len(learns) - halves, corpus.features.shape[-1], len(corpus.vocabulary),
                       **net["sizes"]).to(DEVICE).eval()
    judges.load_state_dict({name: each[halves:] for name, each in net["state"].items()})
    train, test = (in_split(corpus, members, split) for split in ("train", "test"))
    clips = torch.cat(list(train.values()))
    wanted = centred(unseen_mean(values[:halves, clips], learns[:halves, clips]))
    held_out = [(videos, values[:, videos].mean(0))
                for videos in in_split(corpus, members, "validation").values()]
    ask = {name: Judge(judges, corpus, videos) for name, videos in test.items()}
    eyes = {name: joined(folders)[0].features for name, *folders in given.eye}
    rows, uniform = [], {}
    for name, videos in test.items():
        for k in BUDGETS:
            scores = {label: ask[name](chosen).mean((0, 1)) for label, chosen in
                      controls(corpus, videos, next(iter(eyes.values())), k).items()}
            scores["oracle of sixteen"] = ask[name](
                best_of_parts(values[:halves, videos].mean(0), k)[None]).mean((0, 1))
            uniform[name, k] = max((scores["uniform, ends"], scores["uniform, middles"]),
                                   key=lambda each: each.mean().item())
            rows += [{"data": name, "frames": k, "picker": label,
                      "CIDEr": round(each.mean().item(), 2),
                      "minus the better uniform": interval(each - uniform[name, k])}
                     for label, each in scores.items()]
    for eye, seen in eyes.items():
        pooled: dict = {}
        for variant in given.variants:
            score, best, epoch = fit(seen, clips, wanted / wanted.std(), held_out, given,
                                     **VARIANTS[variant])
            for name, videos in test.items():
                found = score(videos)
                for how, rule in RULES.items():
                    for k in BUDGETS:
                        earned = ask[name](torch.stack([rule(each, k) for each in found])).mean(0)
                        pooled.setdefault((name, how, k), []).append(earned.mean(0))
                        rows.append({
                            "data": name, "frames": k, "picker": "scorer", "eye": eye,
                            "variant": variant, "how": how, "seeds": given.seeds,
                            "epoch kept": epoch, "validation": round(best, 4),
                            "CIDEr": round(earned.mean().item(), 2),
                            "over seeds": [round(each.mean().item(), 2) for each in earned],
                            "minus the better uniform": interval(
                                earned.mean(0) - uniform[name, k])})
        for (name, how, k), each in pooled.items():
            rows.append({"data": name, "frames": k, "picker": "scorer", "eye": eye, "how": how,
                         "variant": f"all {len(each)}",
                         "CIDEr": round(torch.stack(each).mean().item(), 2),
                         "minus the better uniform": interval(
                             torch.stack(each).mean(0) - uniform[name, k])})
    write(given, "eyes.json", {
        "kind": "eyes", "what": "CIDEr-D x 100 (built-in) of captions from picked frames, mean of "
        "the captioners that judge; intervals over clips, seeds averaged", **origin(),
        "variants": VARIANTS, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("committee", "scorers"))
    parser.add_argument("--corpus", action="append", required=True, help="may be repeated")
    parser.add_argument("--eye", action="append", nargs="+", default=[],
                        metavar=("NAME", "CORPUS"), help="corpora of the same clips, as --corpus")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--pairs", type=int, default=8, help="of members on halves")
    parser.add_argument("--whole", type=int, default=8, help="members on all training clips")
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--clips", type=int, default=192, help="in a batch of each member")
    parser.add_argument("--sizes", default="{}", help="of the members, as JSON")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--work", type=Path, default=ROOT/"data"/"eyes")
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results")
    given = parser.parse_args()
    {"committee": committee, "scorers": scorers}[given.what](given)


if __name__ == "__main__":
    main()
