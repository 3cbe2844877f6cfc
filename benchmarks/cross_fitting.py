"""Cross-fitting: every clip is rewarded by a captioner that never trained on it, and pickers that
see the whole clip.

PickNet is rewarded with the CIDEr of what a captioner generates from the frames that it picked,
and both are trained on the same clips. A captioner that has memorised a clip generates the right
sentence from any of its frames: it earns three times as much on its own training clips as on
clips it never saw (nbs/results/04_why.ipynb). The remedy in statistics is *cross-fitting*: split
the training clips into two halves, train one captioner on each, and let each captioner reward the
clips of the *other* half. A third captioner, trained on all clips, is the one that is used
afterwards. `train_cross_fitted` is `train` with two more captioners and their reward; experiment,
limits and penalty stay the same.

PickNet decides frame by frame, from one grey difference, and must take the first frame. What these
limits cost is measured with `FrameScorer`, a network that sees the frame x_t, the mean of all
frames m and the place of the frame in the clip, and with `top`, which picks the k frames of the
highest score:

    s_t = w' relu(W (x_t - m) + U m + p_t) + b_t,   W, U (hidden, dims), p_t and w (hidden,)

with x a grey glance or an image feature, brought to mean 0 and deviation 1. It needs no sampling
of the gradient: with one frame there are only thirty choices, so all of them are captioned once
and the expected reward is a sum. With more frames a *pool* of random sets represents all of them;
the probability of a set is proportional to the exponential of the sum of its scores, and the
expected reward over the pool is again a sum whose gradient is exact.

What came of it: nbs/results/04_why.ipynb; the runs: benchmarks/evidence.py. Values of frames from
a committee of captioners, which came after this, are in `picknet_nb.training.committee`.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import Config, PolicySettings
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.captioner import caption
from picknet_nb.method.pickers import Choice, Clips
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.rewards import REWARDS, Earned, Reward, paper_reward
from picknet_nb.method.stages import Environment, Model
from picknet_nb.training.runs import RunError, learned_from, load_run
from picknet_nb.training.train import train


class CrossFittingError(PickNetError):
    "A cross-fitted reward without the two captioners that it needs."


def halves_of(
    corpus: Corpus,
    seed: int,
) -> Tensor:  # int64 (videos,): 0 or 1
    "Cut the training clips into two random halves; all other clips have the number 0."
    train, draw = corpus.splits["train"], torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=draw).to(corpus.device)
    halves = torch.zeros(len(corpus.ids), dtype=torch.int64, device=corpus.device)
    halves[train[order[len(train) // 2:]]] = 1
    return halves


def half_corpus(corpus: Corpus, halves: Tensor, half: int) -> Corpus:
    "The corpus with only one half of its training clips."
    train = corpus.splits["train"]
    return replace(corpus, splits={**corpus.splits, "train": train[halves[train] == half]})


class CrossFittedReward(Reward):
    "Equation 17, its captions from the captioner that never trained on the clip."

    def __init__(
        self,
        paper: Reward,              # weights, limits, CIDEr and the unit of diversity
        captioners: list[nn.Module],  # one for each half
        halves: Tensor,             # int64 (videos,): which half each clip belongs to
        max_words: int,             # longest caption, <eos> included
    ):
        super().__init__(paper.settings, paper.cider, paper.diversity_scale)
        self.captioners, self.halves, self.max_words = captioners, halves, max_words
        self.speaks = self.needs_words
        self.needs_words = False  # it has its own captioners

    @torch.no_grad()
    def __call__(self, words: Tensor | None, videos: Tensor, features: Tensor, picks: Tensor,
                 max_picks: int | Tensor) -> Earned:
        "What the picks earn from the other half's captioner."
        words = self.describe(videos, features, picks) if self.speaks else None
        return super().__call__(words, videos, features, picks, max_picks)

    def describe(self, videos: Tensor, features: Tensor, picks: Tensor) -> Tensor:
        "Captions (batch, max_words) of picked frames, each by the other half's captioner."
        most = min(self.settings.first_max_picks, picks.shape[1])
        first, second = (caption(each, features, picks, self.max_words, most=most)
                         for each in self.captioners)
        # a clip of half 0 was seen by captioner 0, so captioner 1 describes it
        return torch.where(self.halves[videos][:, None] == 0, second, first)


def train_halves(
    folder,           # where the runs half-0 and half-1 go
    corpus: Corpus,
    config: Config,
    bars: bool = True,
) -> Path:
    "Train one captioner on each half of the training clips; finished ones stay as they are."
    halves = halves_of(corpus, config.training.seed)
    for half in (0, 1):
        train(Path(folder)/f"half-{half}", half_corpus(corpus, halves, half), config,
              Recipe("all", adapted=False), bars=bars)
    return Path(folder)


CROSS_FITTED = "cross_fitting:cross_fitted_reward"  # what the settings of such a run name


def cross_fitted_reward(settings: PolicySettings, corpus: Corpus) -> CrossFittedReward:
    "The paper's reward, each clip's caption by a captioner that never trained on it."
    folder = corpus.details.get("cross_fitted")
    if not folder:
        raise CrossFittingError("this reward needs two captioners, each trained on one half of the "
                          "clips: train with `train_cross_fitted`")
    captioners = []
    for half in (0, 1):
        model, config, _, about = load_run(Path(folder)/f"half-{half}", corpus.device)
        halves = halves_of(corpus, config.training.seed)
        wanted = learned_from(half_corpus(corpus, halves, half))["split train"]
        if about["learned_from"].get("split train") != wanted:
            raise RunError(Path(folder)/f"half-{half}", "was trained on other clips than this half")
        captioners.append(model.captioner)
    return CrossFittedReward(paper_reward(settings, corpus), captioners, halves,
                        corpus.settings.max_words)


def train_cross_fitted(
    folder,                # of the run: new, or one to continue
    corpus: Corpus,
    config: Config,
    recipe: Recipe,        # of a learned picker
    halves=None,           # folder of finished `train_halves`; None: train them in this folder
    bars: bool = True,
    **options,             # of `train`
) -> Model:
    "Train a learned picker whose every reward comes from a captioner that never saw the clip."
    REWARDS.adopt(CROSS_FITTED, cross_fitted_reward)  # not registered: no other call could make it
    halves = halves or train_halves(folder, corpus, config, bars)
    noted = replace(corpus, details={**corpus.details, "cross_fitted": str(halves)})
    return train(folder, noted, config.changed(reward=CROSS_FITTED), recipe, bars=bars, **options)


class FrameScorer(nn.Module):
    "Give every frame of a clip a score, having seen all of them."

    def __init__(self, dims: int, frames: int, hidden: int = 64, looks_at: str = "glances",
                 dropout: float = 0.5):
        super().__init__()
        self.looks_at, self.dropout = looks_at, nn.Dropout(dropout)
        self.frame = nn.Linear(dims, hidden)              # W
        self.clip = nn.Linear(dims, hidden, bias=False)   # U
        self.place = nn.Parameter(torch.zeros(frames, hidden))
        self.bias = nn.Parameter(torch.zeros(frames))
        self.score = nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.score.weight)  # all frames begin equal

    @classmethod
    def for_corpus(cls, corpus: Corpus, looks_at: str = "glances", **options) -> FrameScorer:
        "A fresh scorer for the glances or the features of a corpus, on its device."
        frames = getattr(corpus, looks_at)
        made = cls(frames.shape[-1], frames.shape[1], looks_at=looks_at, **options)
        return made.to(corpus.device)

    def forward(self, clips: Clips) -> Tensor:  # (batch, frames)
        "The score of each frame."
        frames = getattr(clips, self.looks_at)
        frames = F.layer_norm(frames.float(), frames.shape[-1:])
        mean = frames.mean(1, keepdim=True)
        seen = self.frame(frames - mean) + self.clip(mean) + self.place
        return self.score(self.dropout(seen.relu()))[..., 0] + self.bias


def top(
    scorer: Callable[[Clips], Tensor],  # scores every frame: (batch, frames)
    k: int,                             # frames to pick
) -> Choice:
    "Pick the k frames that a network scores highest; it sees the whole clip."
    def pick(clips: Clips) -> Tensor:
        scores = scorer(clips)
        chosen = scores.topk(min(k, scores.shape[1]), 1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
    return pick


class Pool(NamedTuple):
    "Sets of frames of some clips, and what each of them earns."
    videos: Tensor  # int64 (clips,)
    picks: Tensor   # bool (clips, sets, frames)
    values: Tensor  # float32 (clips, sets)


def draw_sets(
    clips: int,
    frames: int,
    k: int,      # frames in a set
    sets: int,   # sets of each clip; with k = 1 every frame is one, whatever this says
    seed: int,
) -> Tensor:     # bool (clips, sets, frames)
    "Random sets of k frames; the first frame has no privilege."
    if k == 1:
        return torch.eye(frames, dtype=torch.bool).expand(clips, -1, -1)
    noise = torch.rand(clips, sets, frames, generator=torch.Generator().manual_seed(seed))
    return torch.zeros(clips, sets, frames, dtype=torch.bool).scatter_(
        2, noise.topk(k, -1).indices, True)


@torch.no_grad()
def value_sets(
    environment: Environment,  # captioner and reward
    videos: Tensor,            # int64 (clips,)
    k: int,
    sets: int = 64,
    seed: int = 0,
    batch: int = 4096,         # captions at a time
) -> Pool:
    "What the caption of each set of frames earns from the language reward."
    frames, device = environment.corpus.features.shape[1], videos.device
    picks = draw_sets(len(videos), frames, k, sets, seed).to(device)
    rows, owner = picks.flatten(0, 1), videos.repeat_interleave(picks.shape[1])
    environment.most, count, earned = k, len(rows), []
    # a last batch that is full, too: one compiled form serves all of them
    again = torch.arange(-(-count // batch) * batch, device=device) % count
    with torch.autocast("cuda", torch.bfloat16, enabled=rows.is_cuda):
        for some in again.split(batch) if rows.is_cuda else torch.arange(count).split(batch):
            earned.append(environment.earned(rows[some], owner[some], frames).language.float())
    return Pool(videos, picks, torch.cat(earned)[:count].view(picks.shape[:2]))


def expected_value(scores: Tensor, pool: Pool) -> Tensor:  # scalar
    "Mean reward when a set is drawn with a probability that grows with the sum of its scores."
    logits = (pool.picks.to(scores) @ scores[..., None])[..., 0]  # (clips, sets)
    return (logits.softmax(1) * pool.values).sum(1).mean()


def fit_scorer(
    scorer: FrameScorer,
    corpus: Corpus,
    pool: Pool,               # of training clips
    held_out: Pool,           # of validation clips: the step that is best for them is kept
    steps: int = 200,
    rate: float = 1e-3,
    decay: float = 1e-2,
) -> list[tuple[float, float]]:  # expected value of both pools, every ten steps
    "Climb the expected reward of the pool; leave the scorer as it was best on held-out clips."
    network = [weight for weight in scorer.parameters() if weight is not scorer.bias]
    adam = torch.optim.AdamW([  # one number for each place must move as far as a whole network
        {"params": network}, {"params": [scorer.bias], "lr": 30 * rate}], rate, weight_decay=decay)
    at = lambda some: Clips(corpus.features[some.videos], corpus.glances[some.videos])
    clips, others = at(pool), at(held_out)
    best, kept, curve = -torch.inf, None, []
    for step in range(steps + 1):
        if step % 10 == 0:
            with torch.no_grad():
                scorer.eval()
                curve.append((expected_value(scorer(clips), pool).item(),
                              expected_value(scorer(others), held_out).item()))
            if curve[-1][1] > best:
                best = curve[-1][1]
                kept = {name: weight.clone() for name, weight in scorer.state_dict().items()}
        scorer.train()
        adam.zero_grad(set_to_none=True)
        (-expected_value(scorer(clips), pool)).backward()
        adam.step()
    scorer.load_state_dict(kept)
    scorer.eval()
    return curve
