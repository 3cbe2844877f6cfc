"""Films of unequal scenes, cut from clips: make them, caption their scenes, count which scenes a
picker covers.

A clip of MSVD is one shot: almost any frame shows what it is about, so it hardly matters which
frames are picked. Video outside of data sets is not like that. A camera looks at an empty street
for a minute and at an accident for two seconds; uniform sampling spends its frames on the street.

A film is a whole clip, thirty frames, with two to five short excerpts of other clips around it,
ten frames in all. It is made from features and glances of a prepared corpus, so nothing is decoded
again, and a seed determines it; films for training are made from training clips, films for testing
from test clips. `Films` is a corpus, so a policy trains on it without knowing what it is.

A scene is covered if one of its frames is picked. Its caption is generated from the frames picked
there; a scene without picks has no caption and scores 0. The boundaries of scenes are given, so
that no picker is helped or harmed by scene detection. Two simple rules pick by change: a *change
threshold* picks a frame whose glance differs from that of the last pick by more than a number of
grey levels, PickNet without learning; a *content detector* compares a frame with the one before it
(PySceneDetect's detector of that name does so with hue, saturation and brightness, this one with
the glances that PickNet sees). Thresholds are set on films of validation clips so that all pickers
get as many frames on average (`threshold_for`).

What came of it: nbs/results/06_unequal_films.ipynb; the runs: benchmarks/evidence.py.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import PolicySettings
from picknet_nb.data.corpus import SPLITS, Corpus
from picknet_nb.method.captioner import caption
from picknet_nb.method.cider import Cider
from picknet_nb.method.policy import Policy, project, roll_out_by_scan
from picknet_nb.method.rewards import REWARDS, Earned, Reward, cider_for, within_limits
from picknet_nb.method.calibration import search
from picknet_nb.training.runs import load_run


class Scene(NamedTuple):
    "Some frames of a clip, in a row."
    clip: int    # its number in the corpus
    first: int   # frame
    length: int  # frames


class FilmError(PickNetError):
    "Clips of which no film can be made."


def cut_film(
    draw: random.Random,
    clips: Sequence[int],  # to choose from
    long: int,             # frames of the long scene: all that a clip has
    short: int = 10,       # frames of all short scenes together
) -> list[Scene]:
    "Three to six scenes of different clips: one long, the others two frames or more each."
    count = draw.randint(2, min(5, short // 2))  # of short scenes
    if len(clips) <= count:
        raise FilmError(f"a film of {count + 1} scenes needs as many clips, not {len(clips)}")
    cuts = sorted(draw.sample(range(1, short - count), count - 1))
    lengths = [1 + after - before
               for before, after in zip([0, *cuts], [*cuts, short - count])]
    chosen = draw.sample(list(clips), count + 1)
    scenes = [Scene(clip, draw.randint(0, long - length), length)
              for clip, length in zip(chosen, lengths)]
    scenes.insert(draw.randint(0, count), Scene(chosen[-1], 0, long))
    return scenes


@dataclass(repr=False)
class Films(Corpus):
    "A corpus of films that are cut from the clips of another corpus."
    scenes: Tensor | None = None   # int64 (films, frames): the scene of each frame, from 0
    sources: Tensor | None = None  # int64 (films, scenes): the clip of each; -1: no such scene
    clips: Corpus | None = None    # the corpus that they were cut from
    cuts: list[list[Scene]] | None = None  # of each film


def gathered(texts: list[list[str]], films: list[list[Scene]], most: int) -> list[list[str]]:
    "The first texts of each of a film's clips, scene after scene."
    return [[text for scene in film for text in texts[scene.clip][:most]] for film in films]


def make_films(
    corpus: Corpus,
    counts: dict[str, int],  # films of each split
    seed: int = 0,
    short: int = 10,         # frames of all short scenes of a film
    most: int = 5,           # captions of each clip that a film takes along
) -> Films:
    "Films of the clips of each split; the seed says which."
    long, films, splits = corpus.features.shape[1], [], {}
    for split in SPLITS:
        # the films of a split depend on the names of its clips and on nothing else
        draw, first = random.Random(f"{seed}, {split}"), len(films)
        clips = sorted(corpus.splits[split].tolist(), key=corpus.ids.__getitem__)
        films += [cut_film(draw, clips, long, short) for _ in range(counts.get(split, 0))]
        splits[split] = torch.arange(first, len(films), device=corpus.device)
    number = lambda rows: torch.tensor(rows, device=corpus.device)
    clip = number([[scene.clip for scene in film for _ in range(scene.length)] for film in films])
    frame = number([[scene.first + t for scene in film for t in range(scene.length)]
                    for film in films])
    scenes = number([[n for n, scene in enumerate(film) for _ in range(scene.length)]
                     for film in films])
    longest = max(map(len, films))
    sources = number([[scene.clip for scene in film] + [-1] * (longest - len(film))
                      for film in films])
    own = [(corpus.caption_video == video).nonzero()[:, 0] for video in range(len(corpus.ids))]
    captions = [torch.cat([own[scene.clip][:most] for scene in film]) for film in films]
    features = corpus.features[clip, frame]
    grey = corpus.glances is not corpus.features
    return Films(
        f"films of {corpus.name}", [f"film-{n}" for n in range(len(films))], features,
        corpus.glances[clip, frame] if grey else features,
        gathered(corpus.captions, films, most), splits, corpus.vocabulary,
        corpus.words[torch.cat(captions)],
        torch.arange(len(films), device=corpus.device).repeat_interleave(
            number([len(each) for each in captions])),
        replace(corpus.settings, frames=long + short), {**corpus.details, "films": seed},
        gathered(corpus.sentences, films, most), scenes, sources, corpus, films)


def picks_by_scene(
    picks: Tensor,   # bool (films, frames)
    scenes: Tensor,  # int64 (films, frames)
    most: int,       # scenes of a film
) -> Tensor:         # bool (films, most, frames)
    "The picks of each scene apart."
    number = torch.arange(most, device=picks.device)[:, None]
    return picks[:, None] & (scenes[:, None] == number)


def scenes_noticed(picks: Tensor, films: Films, which: Tensor) -> Tensor:  # (films,)
    "The share of a film's scenes that have a pick."
    sources = films.sources[which]
    seen = picks_by_scene(picks, films.scenes[which], sources.shape[1]).any(-1)
    return seen.sum(1) / (sources >= 0).sum(1)


@torch.no_grad()
def caption_scenes(
    captioner: nn.Module,
    films: Films,
    which: Tensor,           # int64 (n,): films
    picks: Tensor,           # bool (n, frames)
    most: int | None = None,  # places for picked frames
) -> tuple[Tensor, Tensor]:  # words (n, scenes, max_words), bool (n, scenes): has a pick
    "What is said of each scene from the frames that were picked there."
    scenes = films.sources.shape[1]
    apart = picks_by_scene(picks, films.scenes[which], scenes).flatten(0, 1)
    seen = apart.any(-1)
    # a captioner needs a frame; what it says of this one counts for nothing
    apart = apart | (~seen[:, None] & (torch.arange(picks.shape[1], device=picks.device) == 0))
    features = films.features[which].repeat_interleave(scenes, 0)
    words = caption(captioner, features, apart, films.settings.max_words, most=most)
    return words.view(len(picks), scenes, -1), seen.view(len(picks), scenes)


def score_scenes(
    words: Tensor,    # int64 (n, scenes, time)
    seen: Tensor,     # bool (n, scenes)
    sources: Tensor,  # int64 (n, scenes): clips as the scorer numbers them; -1: no such scene
    cider: Cider,
) -> Tensor:          # float32 (n, scenes)
    "CIDEr-D of the caption of each scene; 0 for a scene without one, and for padding."
    earned = cider(words.flatten(0, 1), sources.clamp(min=0).flatten()).float()
    return earned.view_as(seen) * (seen & (sources >= 0))


class SceneReward(Reward):
    "Equation 17 for films: the language reward is the mean of what is said of each scene."

    def __init__(self, settings: PolicySettings, films: Films, captioner: nn.Module):
        super().__init__(settings, cider_for(films.clips))
        self.films, self.captioner = films, captioner
        self.needs_words = False  # it captions each scene itself

    @torch.no_grad()
    def __call__(self, words: Tensor | None, videos: Tensor, features: Tensor, picks: Tensor,
                 max_picks: int | Tensor) -> Earned:
        "Mean CIDEr-D of a film's scenes, or the penalty."
        settings, sources = self.settings, self.films.sources[videos]
        said = caption_scenes(self.captioner, self.films, videos, picks, settings.first_max_picks)
        scores = score_scenes(*said, sources, self.cider)
        language = scores.sum(1) / (sources >= 0).sum(1)
        inside = within_limits(picks, settings.min_picks, max_picks)
        total = (settings.language_weight * language).where(inside, settings.penalty)
        return Earned(total, language, torch.zeros_like(language), inside)


@REWARDS.add("scenes")
def scene_reward(settings: PolicySettings, corpus: Corpus) -> SceneReward:
    "The reward of films, with the captioner of the run that the films name."
    if not isinstance(corpus, Films) or "captioner" not in corpus.details:
        raise FilmError("the reward scenes is for films whose details name the run of a captioner")
    model = load_run(corpus.details["captioner"], corpus.device)[0]
    return SceneReward(settings, corpus, model.captioner)


def grey_distances(
    glances: Tensor,  # (films, frames, dims)
) -> Tensor:          # float32 (films, frames, frames)
    "Mean absolute difference of all pairs of frames, in the units of the glances."
    return torch.cdist(glances.float(), glances.float(), p=1) / glances.shape[-1]


def picks_by_change(
    distances: Tensor,  # (films, frames, frames)
    threshold: float,
) -> Tensor:            # bool (films, frames)
    "The first frame, and each that differs from the last pick by more than the threshold."
    films = torch.arange(len(distances), device=distances.device)
    last, picks = torch.zeros_like(films), [torch.ones_like(films, dtype=torch.bool)]
    for t in range(1, distances.shape[1]):
        picks.append(distances[films, t, last] > threshold)
        last = torch.where(picks[-1], t, last)
    return torch.stack(picks, 1)


def picks_at_cuts(
    distances: Tensor,  # (films, frames, frames)
    threshold: float,
    apart: int = 2,     # frames: a scene is not shorter
) -> Tensor:            # bool (films, frames)
    "The first frame, and each that differs from the one before it by more than the threshold."
    step = distances.diagonal(-1, 1, 2)  # (films, frames - 1)
    since = torch.zeros(len(distances), device=distances.device)
    picks = [torch.ones_like(since, dtype=torch.bool)]
    for change in step.unbind(1):
        since = since + 1
        picks.append((change > threshold) & (since >= apart))
        since = since.masked_fill(picks[-1], 0)
    return torch.stack(picks, 1)


def threshold_for(
    picks_at: Callable[[float], Tensor],  # threshold to picks; the higher, the fewer
    wanted: float,                        # picks a film
    high: float = 255.0,
    steps: int = 14,                      # of the bisection: to within a sixtieth
) -> float:
    "The threshold at which films get as many picks as wanted, on average."
    return -search(lambda value: picks_at(-value), wanted, -high, 0.0, steps)


def learned_picks(policy: Policy, glances: Tensor) -> Callable[[float], Tensor]:
    "Picks of PickNet as a function of a threshold on the logit difference, shifted by 100."
    projected = project(policy, glances)
    noise = torch.empty(1, *glances.shape[:2], device=glances.device)

    def picks_at(threshold: float) -> Tensor:
        # `roll_out_by_scan` compares with the logit of the noise
        return roll_out_by_scan(policy, projected,
                            noise.fill_(threshold - 100.0).double().sigmoid())[0]
    return picks_at


def even_picks(
    films: int,
    frames: int,
    k: int,
    device="cpu",
) -> Tensor:  # bool (films, frames)
    "The middle frames of k equal parts of a film."
    places = ((torch.arange(k, device=device) + 0.5) * frames / k).long()
    return torch.zeros(films, frames, dtype=torch.bool, device=device).index_fill_(1, places, True)


def middle_picks(films: Films, which: Tensor) -> Tensor:  # bool (films, frames)
    "The middle frame of every scene: what a picker would pick that knows all scenes."
    picks = torch.zeros_like(films.scenes[which], dtype=torch.bool)
    for film, scenes in enumerate(films.scenes[which].tolist()):
        for scene in set(scenes):
            places = [place for place, each in enumerate(scenes) if each == scene]
            picks[film, places[len(places) // 2]] = True
    return picks


class Streams(NamedTuple):
    "Films one after the other."
    glances: Tensor  # (streams, frames, dims)
    scenes: Tensor   # int64 (streams, frames): numbers that no two scenes share
    minutes: float   # of all streams together


def clip_seconds(name: str) -> float:
    "How long a clip of MSVD lasts: its name ends in where it begins and ends, in seconds."
    begin, end = name.split("_")[-2:]
    return float(end) - float(begin)


def make_streams(
    films: Films,
    which: Tensor,    # films
    together: int = 10,
    seconds: Callable[[str], float] = clip_seconds,  # of a clip, by its id
) -> Streams:
    "Streams of a number of films each; films that do not fill one are left out."
    which = which[: len(which) // together * together]
    most, frames = films.sources.shape[1], films.clips.features.shape[1]
    number = films.scenes[which] + torch.arange(len(which), device=which.device)[:, None] * most
    clips = films.sources[which].gather(1, films.scenes[which]).flatten().tolist()
    spent = sum(seconds(films.clips.ids[clip]) for clip in clips) / frames
    return Streams(films.glances[which].view(-1, together * films.scenes.shape[1],
                                             films.glances.shape[-1]),
                   number.view(len(which) // together, -1), spent / 60)


def noticed(picks: Tensor, streams: Streams) -> float:
    "The share of all scenes of the streams that have a pick."
    return len(streams.scenes[picks].unique()) / len(streams.scenes.unique())
