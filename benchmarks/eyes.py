"""What a picker that sees is worth: frame values by a committee, scorers and policies of several
eyes and teachers, and eight captioners that judge their picks beside those that nobody learned.

Each step leaves files in --work and is not repeated where they are there; a step that is killed
goes on with the condition it was at. eyes.md beside this file has the commands in their order.

    texts      captions and splits of both data sets as one JSON file (no GPU)
    features   one pass over the videos: a corpus for each backbone
    committee  sixteen captioners on halves, eight on all clips; the values of all frames
    crossed    features of training clips by the student that did not see them
    scorers    regression: eyes x teachers x variants x budgets, ten seeds
    policies   REINFORCE, the paper's policy: eyes x teachers x budgets, ten seeds
    adapted    the judges trained on with learned and with uniform frames
    bundle     the scorers that come with a model, chosen on validation clips
    models     what the bundled models say of the frames of these scorers
    model_scores  CIDEr of these sentences (no GPU)
    cost       multiplications, and seconds for a clip on this CPU (no GPU)
    tables     eyes.json and frame_values_committee.json from all that is there (no GPU)

Everything is chosen on validation clips; test clips are scored once for each row. `--toy` puts a
toy world in place of the data sets, and tries every step on a CPU in minutes.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from common import ROOT, interval, origin, uniform_frames

import torch
import torch.nn.functional as F
from torch import Tensor

from picknet_nb.core.files import slug, write_whole
from picknet_nb.core.settings import ClipSettings
from picknet_nb.data.corpus import SPLITS, Corpus, cut_captions
from picknet_nb.data.annotations import read_annotations
from picknet_nb.data.eyes import multiplications
from picknet_nb.data.splits import SPLIT_NAMES
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.policy import Policy, pair_logits, path_logits, path_scores, project
from picknet_nb.method.recurrence import roll_out_by_table
from picknet_nb.method.reinforce import policy_loss
from picknet_nb.method.frame_values import (
    FrameValues, best_of_parts, best_with_gap, centred, looks, part_bounds)
from picknet_nb.method.calibration import search
from picknet_nb.training.cards import BUNDLED
from picknet_nb.training.committee import (
    Committee, Draw, Judge, ValueTable, frame_values, unseen_mean)
from picknet_nb.training.runs import load_weights
from picknet_nb.training.scorers import (
    BUDGETS, StoredScorer, fit_scorers, save_scorer, worth_of)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULES = {"best of equal parts": best_of_parts, "best with a gap": best_with_gap}
VARIANTS = {"plain": {}, "noise": {"noise": 0.5}, "wide": {"hidden": 256}, "flat": {"layers": 0},
            "dropped": {"input_dropout": 0.5, "dropout": 0.3},
            "both": {"noise": 0.5, "input_dropout": 0.5, "dropout": 0.3}}
TEACHERS = ("committee", "one cross-fitted", "own")


# what all steps share
# ---------------------------------------------------------------------------------------------


class Study:
    "Corpora, committee and clips of the study, each read when it is first asked for."

    def __init__(self, given: argparse.Namespace):
        self.given, self.rows = given, given.work/"rows"

    @cached_property
    def texts(self) -> dict:
        return json.loads((self.given.work/"texts.json").read_text())

    def stored(self, backbone: str) -> dict[str, Tensor]:
        "Features, and for the captioner's backbone glances, of all clips of all data sets."
        return torch.load(self.given.work/f"{slug(backbone)}.pt", map_location=DEVICE,
                          weights_only=True, mmap=True)

    @cached_property
    def corpus(self) -> Corpus:
        "All data sets as one corpus, with the features of the captioner's backbone."
        here, splits = self.stored(self.given.captioner), {split: [] for split in SPLITS}
        of_all = lambda name: [each for part in self.texts.values() for each in part[name]]
        for number, split in enumerate(of_all("split")): splits[split].append(number)
        settings = ClipSettings(cnn=self.given.captioner, max_words=self.given.words,
                                min_word_count=self.given.rare)
        made = Corpus.build(
            " and ".join(self.texts), of_all("ids"), here["features"].cpu(),
            here["glances"].cpu(), of_all("captions"), splits, settings,
            sentences=of_all("sentences"))
        return made.to(DEVICE)

    @cached_property
    def group(self) -> Tensor:  # int64 (clips,): the number of each clip's data set
        sizes = [len(part["ids"]) for part in self.texts.values()]
        return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    def clips(self, split: str) -> dict[str, Tensor]:
        "The clips of a split, by data set."
        videos = self.corpus.splits[split]
        of = self.group.to(DEVICE)[videos]
        return {name: videos[of == number] for number, name in enumerate(self.texts)}

    def seen(self, eye: str) -> Tensor:
        "What an eye sees of all clips."
        return self.corpus.glances if eye == "grey" else (
            self.corpus.features if eye == self.given.captioner else self.stored(eye)["features"])

    def side(self, eye: str) -> int:
        return round(self.corpus.glances.shape[-1] ** 0.5) if eye == "grey" else 0

    @cached_property
    def table(self) -> ValueTable:
        "Values by the committee, trained where they are missing."
        given = self.given
        return frame_values(
            given.work/"committee", self.corpus, given.pairs, given.whole, given.steps,
            given.clips, seed=1, group=self.group, **json.loads(given.sizes),
            report=lambda step, loss: print(f"step {step}: loss {loss:.2f}", flush=True))

    @cached_property
    def members(self) -> Committee:
        net = Committee(len(self.table.values), self.corpus.features.shape[-1],
                        len(self.corpus.vocabulary), **json.loads(self.given.sizes)).to(DEVICE)
        load_weights(net, self.given.work/"committee"/"committee.safetensors")
        return net.eval().requires_grad_(False)

    @cached_property
    def whole(self) -> list[int]:
        "The members that trained on all training clips: they judge picks on test clips."
        return list(range(2 * self.table.pairs, len(self.table.values)))

    def judges(self, split: str, net: Committee | None = None) -> dict[str, Judge]:
        net = net or self.members.of(self.whole)
        return {name: Judge(net, self.corpus, videos)
                for name, videos in self.clips(split).items()}

    @cached_property
    def test(self) -> dict[str, Judge]: return self.judges("test")

    def values(self, teacher: str, videos: Tensor) -> Tensor:  # (clips, frames)
        "Frame values by a teacher; of validation and test clips by all that it has."
        table, pairs, on = self.table, self.table.pairs, videos.cpu()
        if teacher == "committee": found = table.unseen(on)
        elif teacher == "own": found = table.values[2 * pairs, on].float()
        else:  # the one of the first pair that did not train on the clip
            two = [0, pairs]
            found = unseen_mean(table.values[two][:, on].float(), table.learned_from[two][:, on])
        return found.to(DEVICE)

    def conditions(self, of: list[dict]) -> Iterator[tuple[dict, Path]]:
        "Those that are not done yet, this process's share of them, and where their rows go."
        part, parts = self.given.part
        for number, each in enumerate(of):
            path = self.rows/f"{slug('-'.join(str(value) for value in each.values()))}.json"
            if number % parts == part and not path.exists():
                yield each, path

    @cached_property
    def uniform(self) -> dict[tuple[str, int], Tensor]:
        "What the better of two uniform samplings earns from the judges, clip by clip."
        path = self.given.work/"uniform.pt"
        if not path.exists():
            controls(self.given, self)
        return torch.load(path, map_location=DEVICE, weights_only=True)

    def row(self, name: str, k: int, earned: Tensor, **more) -> dict:
        "A row of the table, from what seeds earned (sets, clips)."
        beyond = earned.mean(0) - self.uniform[f"{name} {k}"]
        return {"data": name, "frames": k, **more, "CIDEr": round(earned.mean().item(), 2),
                "over seeds": [round(each.mean().item(), 2) for each in earned],
                "minus the better uniform": interval(beyond),
                "clips": [round(each, 1) for each in earned.mean(0).tolist()]}


def correlation(one: Tensor, other: Tensor) -> float:
    "Of frame values within clips."
    one, other = centred(one), centred(other)
    return ((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-9)).item()


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1))
    print(f"[{time.strftime('%X')}] {path}", flush=True)


# texts, features
# ---------------------------------------------------------------------------------------------


def texts(given: argparse.Namespace, study: Study) -> None:
    "Captions, cut into words, and splits: the GPU's machine needs no NLTK then."
    found = {}
    for name, videos, *files in given.data:
        splits = next((path for path in files if path.endswith(".txt")), None)
        said = read_annotations(name, [path for path in files if path != splits], splits)
        there = {path.stem: path.name for path in sorted(Path(videos).glob("*.mp4"))}
        ids = [each for each in said.captions if each in there]
        captions = [said.captions[each] for each in ids]
        found[name] = {"ids": ids, "captions": captions, "sentences": cut_captions(captions),
                       "split": [SPLIT_NAMES[said.splits[each]] for each in ids]}
        print(name, {split: found[name]["split"].count(split) for split in SPLITS})
    write(given.work/"texts.json", found)


def features(given: argparse.Namespace, study: Study) -> None:
    "One pass over all videos: every backbone that is missing looks at every frame."
    from picknet_nb.core.processes import usable_cores
    from picknet_nb.data.backbones import load_backbone
    from picknet_nb.data.extraction import ClipShape, decode_files
    from picknet_nb.data.glance import glance

    todo = {}
    for each in given.backbone:
        name, _, weights = each.partition("=")
        label, _, name = name.rpartition(":")
        if not (given.work/f"{slug(label or name)}.pt").exists():
            todo[label or name] = load_backbone(name, weights or None, DEVICE)
    place, jobs = {}, []
    for name, folder in given.videos:
        for each in study.texts[name]["ids"]:
            place[f"{name} {each}"] = len(place)
            jobs.append((f"{name} {each}", Path(folder)/f"{each}.mp4"))
    if not todo: return
    seen = {label: torch.zeros(len(place), 30, cnn.dims, dtype=torch.float16)
            for label, cnn in todo.items()}
    looks = torch.zeros(len(place), 30, 56 * 56, dtype=torch.uint8)
    missing, started = set(place), time.perf_counter()
    waiting: list = []

    def look() -> None:  # many clips at a time: one keeps a GPU waiting for kernels to be launched
        frames = torch.cat([clip.frames for clip in waiting]).to(DEVICE)
        rows = [place[clip.name] for clip in waiting]
        for label, cnn in todo.items():
            seen[label][rows] = cnn(frames).half().cpu().unflatten(0, (-1, 30))
        looks[rows] = glance(frames, 56).cpu().unflatten(0, (-1, 30))
        waiting.clear()

    for clip in decode_files(jobs, ClipShape(30, 224), usable_cores() - 1):
        if clip.reason: raise SystemExit(f"{clip.path}: {clip.reason}")
        if waiting and (len(waiting) == 16 or clip.frames.shape != waiting[0].frames.shape):
            look()
        waiting.append(clip)
        missing.discard(clip.name)
        if len(missing) % 500 == 0:
            print(f"{len(missing)} left, {time.perf_counter() - started:.0f} s", flush=True)
    look()
    for label, cnn in todo.items():
        kept = {"features": seen[label]} | ({"glances": looks} if label == given.captioner else {})
        torch.save(kept, given.work/f"{slug(label)}.pt")
    print(f"{len(place)} clips, {time.perf_counter() - started:.0f} s, missing {len(missing)}")


def toy(given: argparse.Namespace) -> None:
    "A toy world in place of the data sets: two `data sets` of the same kind."
    from picknet_nb.world.shapes import example_corpus

    given.work.mkdir(parents=True, exist_ok=True)
    if (given.work/"texts.json").exists(): return
    found, corpora = {}, [example_corpus(48, seed) for seed in (0, 1)]
    for name, corpus in zip(("msvd", "msrvtt"), corpora):
        split = ["train"] * len(corpus.ids)
        for each in ("validation", "test"):
            for video in corpus.splits[each].tolist(): split[video] = each
        found[name] = {"ids": [f"{name}-{each}" for each in corpus.ids], "split": split,
                       "captions": corpus.captions, "sentences": corpus.sentences}
    whole = torch.cat([corpus.features for corpus in corpora])
    torch.save({"features": whole, "glances": torch.cat([each.glances for each in corpora])},
               given.work/"tiny.pt")
    for number, eye in enumerate(("lite0-clip", "glimpse", "glimpse-0", "glimpse-1")):
        noise = torch.Generator().manual_seed(number)
        mixed = whole[..., :64].float() + 0.2 * torch.randn(whole[..., :64].shape, generator=noise)
        torch.save({"features": mixed.half()}, given.work/f"{eye}.pt")
    write(given.work/"texts.json", found)


def crossed(given: argparse.Namespace, study: Study) -> None:
    """Features of training clips by the student that learned from the frames of the other half;
    of all other clips by a student that saw frames of no clip, or of all training clips."""
    out = given.work/"glimpse-crossed.pt"
    if out.exists(): return
    first, second, other = (study.stored(name)["features"].cpu()
                            for name in ("glimpse-0", "glimpse-1", "glimpse"))
    half = torch.arange(len(other)) % 2  # clips of half 0 taught glimpse-0, and so on
    train = torch.zeros(len(other), dtype=torch.bool)
    train[study.corpus.splits["train"].cpu()] = True
    learned = torch.where((half == 0)[:, None, None], second, first)
    torch.save({"features": torch.where(train[:, None, None], learned, other)}, out)
    print(out)


# committee
# ---------------------------------------------------------------------------------------------


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


def committee(given: argparse.Namespace, study: Study) -> None:
    "Train the members, value every frame, and note how well they agree."
    started, table = time.perf_counter(), study.table
    halves, trained = 2 * table.pairs, {}
    for name, clips in study.clips("train").items():
        some = table.values[:halves, clips.cpu()].float()
        saw = table.learned_from[:halves, clips.cpu()]
        own, other = unseen_mean(some, ~saw), unseen_mean(some, saw)
        trained[name] = {
            "mean value, members that trained on the clip": round(own.mean().item(), 1),
            "mean value, the others": round(other.mean().item(), 1),
            "correlation of the two": round(correlation(own, other), 3)}
    write(given.work/"agreement.json", {
        "features": given.captioner, "members": {"on halves": halves, "on all training clips":
                                                 len(table.values) - halves},
        "steps": given.steps, "seconds": round(time.perf_counter() - started),
        "test clips": {name: agreement(table.values[:, clips.cpu()].float(), halves)
                       for name, clips in study.clips("test").items()},
        "training clips": trained})


# pickers that nobody taught
# ---------------------------------------------------------------------------------------------


def untaught(study: Study, clips: Tensor, seen: Tensor, k: int) -> dict[str, Tensor]:
    "Frames (sets, clips, k) that nobody learned to choose."
    frames, count = study.corpus.features.shape[1], len(clips)
    uniform = {rule: torch.tensor(at, device=DEVICE).expand(1, count, -1)
               for rule, at in uniform_frames(frames, k).items()}
    near = F.normalize(seen[clips].float(), dim=-1)
    near = near @ near.transpose(1, 2)
    bounds = part_bounds(frames, k)
    medoids = torch.stack([near[:, a:b, a:b].sum(-1).argmax(1) + a
                           for a, b in zip(bounds, bounds[1:])], 1)
    torch.manual_seed(0)
    chosen = {**uniform, "part medoids": medoids[None],
              "random": torch.rand(10, count, frames, device=DEVICE).topk(k).indices.sort()[0]}
    if k > 1:
        picks = make_picker("kmeans", k)(Clips(seen[clips].float(), seen[clips].float()))
        chosen["k-means"] = picks.nonzero()[:, 1].view(1, count, k)
    return chosen


def controls(given: argparse.Namespace, study: Study) -> None:
    "Two uniform samplings, random frames, medoids, k-means, and the committee's own favourites."
    if (given.work/"uniform.pt").exists(): return
    best, rows, halves = {}, [], 2 * study.table.pairs
    for name, videos in study.clips("test").items():
        favourites = study.table.values[:halves, videos.cpu()].float().mean(0).to(DEVICE)
        for k in BUDGETS:
            sets = untaught(study, videos, study.seen(given.eye[0]), k)
            sets["oracle of the committee"] = best_of_parts(favourites, k)[None]
            earned = {label: study.test[name](each).mean(0) for label, each in sets.items()}
            best[f"{name} {k}"] = max(
                (earned["uniform, ends"].mean(0), earned["uniform, middles"].mean(0)),
                key=lambda each: each.mean().item()).cpu()
            rows.append((name, k, earned))
    torch.save(best, given.work/"uniform.pt")
    found = [study.row(name, k, each, picker=label)
             for name, k, earned in rows for label, each in earned.items()]
    write(study.rows/"untaught.json", found)


# scorers
# ---------------------------------------------------------------------------------------------


def of_scorers(given: argparse.Namespace) -> list[dict]:
    "Every condition: all eyes and teachers, and for the committee all variants of small eyes."
    found = [{"how": "regression", "eye": eye, "teacher": teacher, "variant": "plain"}
             for teacher in TEACHERS for eye in given.eye]
    return found + [{"how": "regression", "eye": eye, "teacher": "committee", "variant": variant}
                    for eye in given.vary for variant in VARIANTS if variant != "plain"]


def fitted(given: argparse.Namespace, study: Study, condition: dict, every: int = 1, **more):
    "Scorers of all seeds for a condition; their eye looks at the middle one of so many frames."
    eye, teacher = condition["eye"], condition["teacher"]
    clips, seen = torch.cat(list(study.clips("train").values())), study.seen(eye)
    looked = looks(seen.shape[1], every).to(DEVICE)
    held_out = [(videos, study.values(teacher, videos)[:, looked])
                for videos in study.clips("validation").values()]
    return fit_scorers(seen[:, looked], study.side(eye), clips,
                       study.values(teacher, clips)[:, looked], held_out, epochs=given.epochs,
                       **VARIANTS[condition["variant"]], **{"seeds": given.seeds, **more})


@torch.no_grad()
def looked(scorers: list, seen: Tensor) -> Tensor:  # (seeds, clips, frames)
    "The values of all frames by every scorer."
    return torch.stack([torch.cat([scorer(some) for some in seen.split(256)])
                        for scorer in scorers])


def scorers(given: argparse.Namespace, study: Study) -> None:
    "Fit every condition that is missing, pick frames of test clips, let the judges score them."
    controls(given, study)
    for condition, path in study.conditions(of_scorers(given)):
        started = time.perf_counter()
        fit, rows = fitted(given, study, condition), []
        judged = sum(worth_of(looked(fit.scorers, study.seen(condition["eye"])[videos]),
                              study.values("committee", videos))
                     for videos in study.clips("validation").values()) / len(study.texts)
        about = {**condition, "picker": "scorer", "seeds": given.seeds, "epoch kept": fit.epoch,
                 "validation": round(judged, 4)}
        for name, videos in study.clips("test").items():
            found = looked(fit.scorers, study.seen(condition["eye"])[videos])
            for how, rule in RULES.items():
                for k in BUDGETS:
                    sets = torch.stack([rule(each, k) for each in found])
                    together = rule(centred(found).mean(0), k)[None]
                    earned = study.test[name](torch.cat([sets, together])).mean(0)
                    rows.append(study.row(name, k, earned[:-1], rule=how, **about))
                    rows.append(study.row(name, k, earned[-1:], rule=how,
                                          **{**about, "seeds": "together"}))
        rows[0]["seconds"] = round(time.perf_counter() - started, 1)
        write(path, rows)


# policies
# ---------------------------------------------------------------------------------------------


def of_policies(given: argparse.Namespace) -> list[dict]:
    return [{"how": "REINFORCE", "eye": eye, "teacher": teacher}
            for teacher in TEACHERS for eye in given.eye]


class SetReward:
    "What a teacher's captions of picked frames earn on training clips, as a reward."

    def __init__(self, study: Study, teacher: str, split: str):
        self.study, self.teacher, self.pairs = study, teacher, study.table.pairs
        pairs = range(self.pairs) if teacher == "committee" else [0]
        members = [[2 * self.pairs]] if teacher == "own" else [[p, self.pairs + p] for p in pairs]
        self.judges = {name: [(each, Judge(study.members.of(each), study.corpus, videos))
                              for each in members]
                       for name, videos in study.clips(split).items()}

    def __call__(self, name: str, which: Tensor, picks: Tensor, number: int) -> Tensor:
        """CIDEr (sets, clips) of picks (sets, clips, frames) by one member that did not train on
        the clip, of the pair whose turn it is; with `own` by the captioner that did."""
        members, judge = self.judges[name][number % len(self.judges[name])]
        earned = judge(picks, which) / 100  # (members, sets, clips)
        if self.teacher == "own": return earned[0]
        learned = self.study.table.learned_from[members][:, judge.videos[which].cpu()].to(DEVICE)
        return unseen_mean(earned.transpose(1, 2), learned).transpose(0, 1)


def rolled(policies: list[Policy], seen: Tensor, noise: Tensor) -> tuple[Tensor, list[Tensor]]:
    "Picks (rollouts, policies, clips, frames) with this noise, and the projected frames."
    projected = [project(policy, seen) for policy in policies]
    pairs = torch.cat([pair_logits(policy, each.detach())
                       for policy, each in zip(policies, projected)])
    count = len(seen)
    picks = roll_out_by_table(pairs, noise.repeat(1, len(policies), 1))
    return picks.view(len(noise), len(policies), count, -1), projected


def trained_policies(given: argparse.Namespace, study: Study, condition: dict) -> list[Policy]:
    "The paper's policy, all seeds side by side, kept as validation clips like them best."
    seen, corpus = study.seen(condition["eye"]), study.corpus
    train, held_out = study.clips("train"), study.clips("validation")
    some, policies = seen[corpus.splits["train"][:256]], []
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        policies.append(Policy(seen.shape[-1], 64).to(DEVICE).calibrate(some, wanted=4.0))
    torch.manual_seed(given.seeds)
    weights = [each for policy in policies for each in policy.parameters()]
    adam = torch.optim.Adam(weights, given.policy_rate)
    teach, ask = SetReward(study, condition["teacher"], "train"), SetReward(
        study, condition["teacher"], "validation")
    best, kept = [-torch.inf] * len(policies), [policy.state_dict() for policy in policies]
    for epoch in range(given.policy_epochs):
        order = {name: torch.randperm(len(videos), device=DEVICE)
                 for name, videos in train.items()}
        parts = [(name, part) for name, each in order.items()
                 for part in each.split(given.clips)]
        for step in torch.randperm(len(parts)).tolist():
            name, which = parts[step]
            noise = torch.rand(2, len(which), seen.shape[1], device=DEVICE)
            noise[1] = 0.5  # the second rollout is greedy: the baseline
            picks, projected = rolled(policies, seen[train[name][which]], noise)
            earned = teach(name, which, picks.flatten(0, 1), epoch + step).view(
                2, len(policies), -1)
            count = picks.sum(-1)
            earned = torch.where((count >= 1) & (count <= 7), earned, -1.0)  # the penalty
            log_p = torch.stack([path_scores(path_logits(policy, each, picks[0, number]),
                                             picks[0, number])[0]
                                 for number, (policy, each) in enumerate(zip(policies, projected))])
            adam.zero_grad()
            (len(policies) * policy_loss(log_p, earned[0], earned[1])).backward()
            adam.step()
        scores = torch.zeros(len(policies), device=DEVICE)
        with torch.no_grad():
            for name, videos in held_out.items():
                half = torch.full((1, len(videos), seen.shape[1]), 0.5, device=DEVICE)
                picks, _ = rolled(policies, seen[videos], half)
                every = torch.arange(len(videos), device=DEVICE)
                found = sum(ask(name, every, picks[0], number)
                            for number in range(len(ask.judges[name]))) / len(ask.judges[name])
                scores += found.mean(1) / found.mean().clamp(min=1e-6)
        for number, score in enumerate(scores.tolist()):
            if score > best[number]:
                best[number] = score
                kept[number] = {each: value.clone()
                                for each, value in policies[number].state_dict().items()}
    for policy, state in zip(policies, kept): policy.load_state_dict(state)
    return policies


@torch.no_grad()
def policies(given: argparse.Namespace, study: Study) -> None:
    """Train the paper's policy for every condition that is missing. Its threshold gives it each
    budget, on average over validation clips; how many frames it takes of test clips is noted."""
    controls(given, study)
    for condition, path in study.conditions(of_policies(given)):
        started, rows = time.perf_counter(), []
        with torch.enable_grad(): found = trained_policies(given, study, condition)
        seen = study.seen(condition["eye"])
        for name, videos in study.clips("test").items():
            held_out = study.clips("validation")[name]
            for k in BUDGETS:
                picks = []
                for policy in found:
                    at = lambda mark, clips: policy.rollout(seen[clips], "greedy", mark)
                    # the larger the value, the more is picked
                    mark = 1 - search(lambda value: at(1 - value, held_out), k, 0.0, 1.0)
                    picks.append(at(mark, videos))
                earned = torch.cat([study.test[name](each[None]).mean(0) for each in picks])
                count = torch.stack(picks).sum(-1).float().mean().item()
                rows.append(study.row(name, k, earned, picker="policy", **condition,
                                      seeds=given.seeds, **{"frames taken": round(count, 2)}))
        rows[0]["seconds"] = round(time.perf_counter() - started, 1)
        write(path, rows)


# judges that are adapted to the picks
# ---------------------------------------------------------------------------------------------


class Fixed(Draw):
    "Clips and captions as in training, but the frames are those that a picker takes."
    table: Tensor  # int64 (clips, k)

    def frames_of(self, videos: Tensor, k: int) -> Tensor: return self.table[videos]


def adapted(given: argparse.Namespace, study: Study) -> None:
    "The judges trained on with frames of one picker alone, and then scored with the same picker."
    controls(given, study)
    conditions = [{"how": "adapted", "picker": picker, "frames": k}
                  for k in BUDGETS for picker in ("scorer", "uniform, ends", "uniform, middles")]
    every, scores = torch.arange(len(study.corpus.ids), device=DEVICE), None
    for condition, path in study.conditions(conditions):
        k = condition["frames"]
        if condition["picker"] == "scorer":
            if scores is None:
                # the scorer of the eye that validation clips chose, the mean of its seeds
                chosen = {"eye": chosen_eye(study, given.vary), "teacher": "committee",
                          "variant": "plain"}
                fit = fitted(given, study, chosen)
                scores = centred(looked(fit.scorers, study.seen(chosen["eye"]))).mean(0)
            table = best_of_parts(scores, k)
        else:
            table = untaught(study, every[:1], study.corpus.features, k)[condition["picker"]][0]
            table = table.expand(len(every), -1)
        net = study.members.of(study.whole)
        for each in net.parameters(): each.requires_grad_(True)
        torch.manual_seed(0)
        draw = Fixed(study.corpus, study.table.learned_from[study.whole], study.group, given.clips)
        draw.table = table
        adam = torch.optim.AdamW(net.train().parameters(), 1e-4, weight_decay=1e-3)
        for step in range(given.adapt_steps):
            frames, words = draw(k)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                losses = net.loss(frames, words)
            adam.zero_grad()
            losses.sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5 * len(study.whole) ** 0.5)
            adam.step()
        net.eval().requires_grad_(False)
        rows = []
        for name, judge in study.judges("test", net).items():
            earned = judge(table[judge.videos][None]).mean(0)
            rows.append(study.row(name, k, earned, **{key: value for key, value in
                                                      condition.items() if key != "frames"}))
        write(path, rows)


def chosen_eye(study: Study, among: list[str]) -> str:
    "The eye whose plain scorers are worth most on validation clips."
    found = {}
    for path in study.rows.glob("*.json"):
        for row in json.loads(path.read_text()):
            if row.get("variant") == "plain" and row.get("teacher") == "committee" and (
                    row["eye"] in among):
                found[row["eye"]] = row["validation"]
    return max(among, key=lambda eye: found.get(eye, -1.0))


# what is bundled, what it costs, the tables
# ---------------------------------------------------------------------------------------------


def bundle(given: argparse.Namespace, study: Study) -> None:
    """For every small eye the variant that validation clips like best, three seeds, as a file;
    once for each number of looks."""
    for eye in given.vary:
        found = {row["variant"]: row["validation"] for path in study.rows.glob("*.json")
                 for row in json.loads(path.read_text())
                 if row.get("eye") == eye and row.get("how") == "regression"
                 and row.get("teacher") == "committee"}
        variant = max(found, key=found.get) if found else "plain"
        name = eye.removesuffix("-crossed").removesuffix("-pictures")
        weights = json.loads((given.work/"weights.json").read_text()).get(name, "") if (
            given.work/"weights.json").exists() else ""
        for every in given.every:
            fit = fitted(given, study, {"eye": eye, "teacher": "committee", "variant": variant},
                         every, seeds=3)
            folder = given.out/f"scorer-{slug(eye)}-every-{every}"
            folder.mkdir(parents=True, exist_ok=True)
            path = save_scorer(folder, StoredScorer(
                FrameValues(fit.scorers, every=every), 3, name, weights,
                f"{2 * study.table.pairs} captioners, {' and '.join(study.texts)}"))
            write(folder/"chosen.json", {"eye": eye, "every": every, "variant": variant,
                                         "validation": found, "worth": fit.worth,
                                         "epoch": fit.epoch, "bytes": path.stat().st_size})


@torch.no_grad()
def models(given: argparse.Namespace, study: Study) -> None:
    """What the bundled models say of the frames that the scorers to bundle pick, and of uniform
    ones, on validation and test clips: sentences, to be scored where Java and NLTK are."""
    from picknet_nb.method.captioner import caption
    from picknet_nb.training.models import Decoding
    from picknet_nb.training.runs import load_run
    from picknet_nb.training.scorers import load_scorer

    scorers = {path.parent.name.removeprefix("scorer-"): load_scorer(path.parent, DEVICE)
               for path in sorted(given.out.glob("scorer-*/scorer.safetensors"))}
    for name in given.model:
        net, config, vocabulary, _ = load_run(BUNDLED/name, DEVICE)
        how = Decoding.read(BUNDLED/name)
        features = study.stored(config.clip.cnn)["features"]

        def said(videos: Tensor, chosen: Tensor) -> dict[str, str]:  # of frames (clips, k)
            picks = torch.zeros(len(videos), features.shape[1], dtype=torch.bool, device=DEVICE)
            picks.scatter_(1, chosen, True)
            words = torch.cat([
                caption(net.captioner, features[some], taken, config.clip.max_words, how.beam,
                        no_repeats=how.no_repeats)
                for some, taken in zip(videos.split(512), picks.split(512))])
            ids = [study.corpus.ids[video] for video in videos.tolist()]
            return dict(zip(ids, vocabulary.decode(words.cpu())))

        for eye, scorer in {"uniform": None, **scorers}.items():
            path, found = given.work/"models"/f"{name}-{eye}.json", []
            if path.exists(): continue
            for split in ("validation", "test"):
                for data, videos in study.clips(split).items():
                    values = None if scorer is None else torch.cat([
                        scorer.values(study.seen(scorer.eye)[some])
                        for some in videos.split(256)])
                    for k in (*BUDGETS, 5, 8):
                        sets = untaught(study, videos, study.seen(given.eye[0]), k) if (
                            values is None) else {rule: pick(values, k)[None]
                                                  for rule, pick in RULES.items()}
                        found += [{"model": name, "eye": eye, "rule": rule, "split": split,
                                   "data": data, "frames": k, "captions": said(videos, each[0])}
                                  for rule, each in sets.items()
                                  if scorer is not None or rule.startswith("uniform")]
            write(path, found)


def model_scores(given: argparse.Namespace, study: Study) -> None:
    """CIDEr of what `models` kept: for every number of frames the scorer's picks beside the better
    uniform sampling, with an interval over clips."""
    from picknet_nb.data.text import SPECIALS, Vocabulary, caption_ids
    from picknet_nb.method.fast_cider import Cider

    clips, found = {}, []
    kept = [row for path in sorted((given.work/"models").glob("*.json"))
            for row in json.loads(path.read_text())]
    for data, part in study.texts.items():
        for split in ("validation", "test"):
            ids = [name for name, its in zip(part["ids"], part["split"]) if its == split]
            words = dict(zip(part["ids"], part["sentences"]))
            references = [[sentence.split() for sentence in words[name]] for name in ids]
            some = [row for row in kept if (row["data"], row["split"]) == (data, split)]
            known = sorted({word for row in some for text in row["captions"].values()
                            for word in text.split()}
                           | {word for each in references for one in each for word in one})
            vocabulary = Vocabulary((*SPECIALS, *known))
            cider, place = Cider(references, vocabulary), torch.arange(len(ids))
            for row in some:
                said = torch.tensor([caption_ids(row["captions"][name].split(), vocabulary.ids, 24)
                                     for name in ids])
                key = row["model"], data, split, row["frames"], row["eye"], row["rule"]
                clips[key] = 100 * cider(said, place).double()
    for (model, data, split, k, eye, rule), scores in clips.items():
        row = {"model": model, "data": data, "split": split, "frames": k, "eye": eye,
               "rule": rule, "CIDEr": round(scores.mean().item(), 2)}
        if eye != "uniform":
            best = max((clips[model, data, split, k, "uniform", each]
                        for each in ("uniform, ends", "uniform, middles")),
                       key=lambda each: each.mean().item())
            row["minus the better uniform"] = interval((scores - best).float())
        found.append(row)
    write(given.out/"eyes_models.json", {
        "kind": "eyes, models", "what": "CIDEr-D x 100 (built-in) of the bundled models, decoded "
        "as they are used, from frames that the scorer of an eye picks (the mean of three seeds) "
        "and from uniform ones; intervals over clips", **origin(), "rows": found})


def cost(given: argparse.Namespace, study: Study) -> None:
    "What thirty looks and k frames cost: multiplications, and seconds for a clip on this CPU."
    from picknet_nb.data.backbones import load_backbone

    pictures, seconds = torch.randint(0, 256, (30, 3, 168, 224), dtype=torch.uint8), {}
    names = [each for each in given.eye if each not in ("grey", given.captioner)]
    counted = {each.split("-crossed")[0].split("-pictures")[0] for each in names} | {
        given.captioner}
    for name in counted:
        cnn, times = load_backbone(name, None if name == "tiny" else "random"), []
        for _ in range(4):
            started = time.perf_counter()
            cnn(pictures)
            times.append(time.perf_counter() - started)
        seconds[name] = min(times[1:])
    products = {name: multiplications(name) for name in counted} | {"grey": 0}
    one = seconds[given.captioner] / 30
    write(given.out/"eyes_cost.json", {
        "kind": "cost of eyes", **origin("cpu"), "captioner": given.captioner,
        "multiplications a frame": products,
        "seconds for thirty frames": {name: round(each, 4) for name, each in seconds.items()},
        "eye and k frames, in seconds": {
            eye: {k: round(seconds.get(eye, 0.0) + k * one, 3) for k in BUDGETS}
            for eye in ("none", *[each for each in counted if each != given.captioner])},
        "all thirty frames, in seconds": round(seconds[given.captioner], 3)})


def tables(given: argparse.Namespace, study: Study) -> None:
    "All rows that are there as result files; differences between rows are taken clip by clip."
    rows = [row for path in sorted(study.rows.glob("*.json"))
            for row in json.loads(path.read_text())]
    clips = lambda row: torch.tensor(row["clips"])
    for name in study.texts:
        at = {(row["picker"], row["frames"]): row for row in rows if row["data"] == name
              and row["picker"] not in ("scorer", "policy")}
        six = max((at[each, 6] for each in ("uniform, ends", "uniform, middles")),
                  key=lambda row: row["CIDEr"])
        for row in rows:
            if row["data"] != name or row["picker"] not in ("scorer", "policy"): continue
            medoids = at["part medoids", row["frames"]]
            row["minus part medoids"] = interval(clips(row) - clips(medoids))
            if row["frames"] < 4:  # do a few learned frames do the work of six uniform ones?
                row["minus six uniform"] = interval(clips(row) - clips(six))
    kept = [{key: value for key, value in row.items() if key != "clips"} for row in rows]
    write(given.out/"eyes.json", {
        "kind": "eyes", "what": "CIDEr-D x 100 (built-in) of captions from picked frames, mean of "
        "the captioners that judge; intervals over clips, seeds averaged; every test clip was "
        "scored once for each row", **origin(), "variants": VARIANTS, "rows": kept})
    found = json.loads((given.work/"agreement.json").read_text())
    write(given.out/"frame_values_committee.json", {
        "kind": "frame values", "what": "CIDEr-D x 100 (built-in) of captions made from one frame "
        "of a clip; correlations within clips", **origin(), **found})


STEPS: dict[str, Callable] = {each.__name__: each for each in (
    texts, features, crossed, committee, controls, scorers, policies, adapted, bundle, models,
    model_scores, cost, tables)}
TOY = dict(captioner="tiny", eye=["grey", "tiny", "lite0-clip", "glimpse", "glimpse-crossed"],
           vary=["lite0-clip", "glimpse", "glimpse-crossed"], pairs=2, whole=2, steps=60, clips=12,
           seeds=2, epochs=3, policy_epochs=2, adapt_steps=5, rare=2, words=16,
           sizes='{"hidden": 24, "word_embedding": 12, "attention": 8}')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("what", nargs="+", choices=tuple(STEPS))
    add("--data", nargs="+", action="append", default=[],
        metavar="NAME VIDEOS ANNOTATIONS",
        help="of `texts`: a data set, its videos, its files; a .txt file says how it is split")
    add("--videos", nargs=2, action="append", default=[], metavar=("NAME", "FOLDER"))
    add("--backbone", action="append", default=[],
        help="of `features`: NAME, NAME=WEIGHTS or LABEL:NAME=WEIGHTS; may be repeated")
    add("--captioner", default="clip-vit-b16", help="the backbone whose features members read")
    add("--eye", nargs="+", default=["grey", "clip-vit-b16", "lite0-clip", "glimpse"])
    add("--vary", nargs="+", default=["lite0-clip", "glimpse"], help="eyes with all variants")
    add("--pairs", type=int, default=8, help="of members on halves")
    add("--whole", type=int, default=8, help="members on all training clips")
    add("--steps", type=int, default=2800)
    add("--clips", type=int, default=192, help="in a batch")
    add("--sizes", default="{}", help="of the members, as JSON")
    add("--seeds", type=int, default=10)
    add("--epochs", type=int, default=40)
    add("--policy-epochs", type=int, default=40)
    add("--policy-rate", type=float, default=3e-4)
    add("--adapt-steps", type=int, default=300)
    add("--every", type=int, nargs="+", default=[1, 3, 5],
        help="of `bundle`: the eye looks at the middle one of so many frames")
    add("--model", nargs="+", default=["sharp"], help="of `models`")
    add("--words", type=int, default=18)
    add("--rare", type=int, default=8, help="words that are rarer become <unk>")
    add("--part", type=lambda text: tuple(map(int, text.split("/"))), default=(0, 1),
        metavar="I/N", help="this process's share of the conditions")
    add("--toy", action="store_true")
    add("--work", type=Path, default=ROOT/"data"/"eyes")
    add("--out", type=Path, default=ROOT/"data"/"results")
    given = parser.parse_args()
    if given.toy:
        given = argparse.Namespace(**{**vars(given), **TOY})
        toy(given)
    given.out.mkdir(parents=True, exist_ok=True)
    study = Study(given)
    for step in given.what:
        started = time.perf_counter()
        STEPS[step](given, study)
        print(f"{step}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
