"""What picking is worth, and why: cross-fitted rewards ("honest" in the files that it writes),
pickers that see the whole clip, and films of unequal scenes, on a prepared corpus of MSVD.
`python benchmarks/evidence.py all` runs every seed that fits the time, several processes side by
side; what is done is not done again. `collect` puts the files of all seeds together."""
from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from common import ROOT, origin
from cross_fitting import (
    CrossFittedReward, FrameScorer, fit_scorer, halves_of, top, train_cross_fitted, train_halves,
    value_sets)
from films import (
    Films, caption_scenes, clip_seconds, even_picks, grey_distances, learned_picks, make_films,
    make_streams, middle_picks, noticed, picks_at_cuts, picks_by_change, scenes_noticed,
    score_scenes, threshold_for)

import torch

from picknet_nb.core.files import write_whole
from picknet_nb.core.settings import Config, preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.captioner import caption
from picknet_nb.method.cider import Cider
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.rewards import Reward, paper_reward
from picknet_nb.method.stages import Environment, Model
from picknet_nb.training.runs import load_run
from picknet_nb.training.train import train

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PICKNET = Recipe(language=1.0, diversity=1.0, adapted=False)
STAGE_ONE = Recipe("all", adapted=False)
BUDGETS, FILM_BUDGETS = (1, 2, 3, 6), (4, 6, 8)
SIZES = {  # epochs, sets of a pool, steps of a scorer, films of each split
    "full": dict(whole=12, words=3, half=18, picking=120, sets=64, steps=200, film_picking=50,
                 films={"train": 1024, "validation": 200, "test": 400}),
    "tiny": dict(whole=1, words=0, half=1, picking=1, sets=4, steps=20, film_picking=1,
                 films={"train": 24, "validation": 10, "test": 20}),
}


def settings_of(seed: int, size: dict, tiny: bool) -> Config:
    "The improved preset, its captioner taught on a varying number of frames."
    config = preset("improved", varied_picks=True, supervision_picks=0, seed=seed,
                    supervision_epochs=size["whole"], word_epochs=size["words"],
                    reinforcement_epochs=size["picking"])
    small = dict(hidden=32, feature_embedding=16, word_embedding=16, batch_size=64,
                 policy_hidden=32)
    return config.changed(**small) if tiny else config


def limited(config: Config, budget: int, **changes) -> Config:
    "The settings of a policy that may pick up to so many frames."
    return config.changed(min_picks=max(2, 3 * budget // 4), first_max_picks=budget,
                          final_max_picks=budget, shrink_epochs=0, **changes)


class Judge:
    "CIDEr-D x 100 of the test clips' captions, by the built-in scorer, for a captioner."

    def __init__(self, model: Model, corpus: Corpus):
        self.model, self.corpus, self.videos = model, corpus, corpus.splits["test"]
        tokens = corpus.tokens
        self.cider = Cider([tokens[video] for video in self.videos.tolist()], corpus.vocabulary,
                           device=corpus.device)
        self.clips = Clips(corpus.features[self.videos], corpus.glances[self.videos])
        self.found = {}

    @torch.no_grad()
    def say(self, picks: torch.Tensor) -> torch.Tensor:
        "The captions of these picks."
        most = self.corpus.settings.max_words
        return torch.cat([caption(self.model.captioner, self.corpus.features[some], chosen, most)
                          for some, chosen in zip(self.videos.split(512), picks.split(512))])

    def score(self, words: torch.Tensor) -> torch.Tensor:
        "The score of each caption."
        rows = torch.arange(len(self.videos), device=words.device)
        return 100 * self.cider(words, rows).float()

    def measure(self, name: str, picks: torch.Tensor, limits=None, words: bool = False) -> None:
        "Note what these picks give, under a name."
        said, count = self.say(picks), picks.sum(1)
        scores = self.score(said)
        self.found[name] = {
            "CIDEr": round(scores.mean().item(), 3), "frames": count.float().mean().item(),
            "clips": [round(each, 1) for each in scores.tolist()],
            "positions": [round(each, 4) for each in picks.float().mean(0).tolist()],
            "counts": torch.bincount(count, minlength=picks.shape[1] + 1).tolist(),
            **({"inside": ((count >= limits[0]) & (count <= limits[1])).float().mean().item()}
               if limits else {}),
            **({"captions": self.corpus.vocabulary.decode(said.cpu()),
                "picks": [row.nonzero()[:, 0].tolist() for row in picks.cpu()]} if words else {})}


def plain_pickers(judge: Judge, seed: int) -> None:
    "Uniform, random, k-means and all frames."
    size = judge.clips.features.shape[:2]
    for k in range(1, 9):
        judge.measure(f"uniform-{k}", make_picker("uniform", k)(judge.clips), words=k == 6)
        judge.measure(f"middles-{k}", even_picks(*size, k, judge.clips.features.device))
    for k in BUDGETS:
        torch.manual_seed(seed)
        order = torch.rand(5, *size, device=judge.clips.features.device).topk(k, -1).indices
        draws = [torch.zeros(size, dtype=torch.bool, device=each.device).scatter(1, each, True)
                 for each in order]
        scores = torch.stack([judge.score(judge.say(each)) for each in draws]).mean(0)
        judge.found[f"random-{k}"] = {
            "CIDEr": round(scores.mean().item(), 3), "frames": float(k), "draws": 5,
            "clips": [round(each, 1) for each in scores.tolist()]}
        judge.measure(f"kmeans-{k}", make_picker("kmeans", k)(judge.clips))
    judge.measure("all", make_picker("all")(judge.clips))


def whole_clip_pickers(judge: Judge, corpus: Corpus, config: Config, halves: Path, size: dict,
                       budgets=BUDGETS) -> dict:
    "Pickers that see all glances, or all features, with ordinary and with cross-fitted rewards."
    paper = paper_reward(config.policy, corpus)
    captioners = [load_run(halves/f"half-{half}", corpus.device)[0].captioner for half in (0, 1)]
    number = halves_of(corpus, config.training.seed)

    def rewards_of(k: int) -> dict:
        limits = replace(config.policy, min_picks=1, first_max_picks=k, final_max_picks=k)
        reward = Reward(limits, paper.cider, paper.diversity_scale)
        crossed = lambda pair: CrossFittedReward(reward, pair, number, corpus.settings.max_words)
        # "own half": the same two captioners, each on the clips that it knows
        return {"ordinary": reward, "honest": crossed(captioners),
                "own half": crossed(captioners[::-1])}
    training, validation = corpus.splits["train"], corpus.splits["validation"]
    seed, found = config.training.seed, {}
    for k in budgets:
        world = {name: Environment(judge.model.captioner, corpus, config, reward)
                 for name, reward in rewards_of(k).items()}
        held_out = value_sets(world["ordinary"], validation, k, size["sets"], seed)
        for name, environment in world.items():
            pool = value_sets(environment, training, k, size["sets"], seed)
            found[f"pool, {name}-{k}"] = {
                "mean": pool.values.mean().item(), "best": pool.values.amax(1).mean().item(),
                "deviation": pool.values.std(1).mean().item()}
            for looks_at, picker in (("glances", "top"), ("features", "top_features")):
                torch.manual_seed(seed)
                scorer = FrameScorer.for_corpus(corpus, looks_at)
                curve = fit_scorer(scorer, corpus, pool, held_out, size["steps"])
                with torch.no_grad():
                    picks = top(scorer, k)(judge.clips)
                judge.measure(f"{picker}, {name}-{k}", picks)
                found[f"{picker}, {name}-{k}"] = [[round(each, 4) for each in pair]
                                                  for pair in curve]
    return found


def picknets(judge: Judge, corpus: Corpus, config: Config, home: Path, budget: int) -> dict:
    "PickNet on a budget, as it starts, with ordinary and with cross-fitted rewards."
    config, found = limited(config, budget), {}
    limits = config.policy.min_picks, config.policy.final_max_picks
    start = dict(start=home/"whole"/"weights.safetensors", bars=False, save_seconds=1e9)
    ways = {
        "start": lambda: train(home/f"start-{budget}", corpus,
                               config.changed(reinforcement_epochs=0), PICKNET, **start),
        "ordinary": lambda: train(home/f"ordinary-{budget}", corpus, config, PICKNET, **start),
        "honest": lambda: train_cross_fitted(home/f"honest-{budget}", corpus, config, PICKNET,
                                             halves=home, **start)}
    if budget != 6: del ways["start"]  # one histogram of how it begins is enough
    for name, make in ways.items():
        begun = time.perf_counter()
        policy = make().policy
        picks = make_picker("learned", policy=policy)(judge.clips)
        judge.measure(f"picknet, {name}-{budget}", picks, limits, words=budget == 6)
        found[f"{name}-{budget}"] = round(time.perf_counter() - begun, 1)
    return found


def film_pickers(films: Films, policies: dict[int, Model], budget: int) -> dict:
    "Picks of the test films on a budget, and seconds; thresholds are set on validation films."
    validation, tests = films.splits["validation"], films.splits["test"]
    clips = Clips(films.features[tests], films.glances[tests])
    count, frames = clips.features.shape[:2]
    device, picks = films.device, {}

    def timed(name: str, make) -> None:
        if device.type == "cuda": torch.cuda.synchronize()
        begun = time.perf_counter()
        made = make()
        if device.type == "cuda": torch.cuda.synchronize()
        picks[name] = (made, (time.perf_counter() - begun) / count)

    before, now = (grey_distances(films.glances[some]) for some in (validation, tests))
    for name, rule in (("change threshold", picks_by_change), ("content detector", picks_at_cuts)):
        level = threshold_for(lambda each: rule(before, each), budget)
        timed(name, lambda: rule(grey_distances(clips.glances), level))
        picks[f"{name}, level"] = level
    policy = policies[budget].policy
    level = threshold_for(learned_picks(policy, films.glances[validation]), budget)
    timed("learned", lambda: learned_picks(policy, clips.glances)(level))
    timed("learned, p > 0.5", lambda: policy.rollout(clips.glances))
    timed("uniform", lambda: make_picker("uniform", budget)(clips))
    timed("middles", lambda: even_picks(count, frames, budget, device))
    timed("k-means", lambda: make_picker("kmeans", budget)(clips))
    for draw in range(3):
        torch.manual_seed(draw)
        timed(f"random {draw}", lambda: make_picker("random", budget)(clips))
    return picks


def named_cuts(films: Films) -> list[list[list]]:
    "The scenes of the test films, clips by their names."
    return [[[films.clips.ids[scene.clip], scene.first, scene.length] for scene in films.cuts[film]]
            for film in films.splits["test"].tolist()]


def given_picks(films: Films, path: Path | None) -> dict[str, torch.Tensor]:
    "Picks of the same test films that were made elsewhere, from the pictures themselves."
    if path is None: return {}
    given = json.loads(path.read_text())
    if given["cuts"] != named_cuts(films):
        print(f"{path} is about other films", flush=True)
        return {}
    size, made = (len(given["cuts"]), films.scenes.shape[1]), {}
    for name, rows in given["picks"].items():
        made[name] = torch.zeros(size, dtype=torch.bool)
        for film, frames in enumerate(rows): made[name][film, frames] = True
    return {name: picks.to(films.device) for name, picks in made.items()}


def measure_films(films: Films, model: Model, policies: dict[int, Model],
                  given: dict[str, torch.Tensor]) -> dict:
    "Scenes noticed and CIDEr of each scene, for every picker on every budget."
    tests, found = films.splits["test"], {}
    clips, tokens = films.clips, films.clips.tokens
    people = clips.splits["test"]
    cider = Cider([tokens[video] for video in people.tolist()], clips.vocabulary,
                  device=clips.device)
    place = torch.full((len(clips.ids),), -1, device=clips.device)
    place[people] = torch.arange(len(people), device=clips.device)
    sources = films.sources[tests]
    own = torch.where(sources >= 0, place[sources.clamp(min=0)], -1)
    lengths = torch.stack([(films.scenes[tests] == n).sum(1)
                           for n in range(sources.shape[1])], 1)
    short = (sources >= 0) & (lengths < clips.features.shape[1])

    def note(name: str, picks: torch.Tensor, seconds: float | None = None) -> None:
        said = [caption_scenes(model.captioner, films, some, chosen)
                for some, chosen in zip(tests.split(200), picks.split(200))]
        words, seen = (torch.cat(each) for each in zip(*said))
        scores = 100 * score_scenes(words, seen, own, cider)
        scenes = (sources >= 0).sum(1)
        found[name] = {
            "frames": picks.sum(1).float().mean().item(),
            "noticed": [round(each, 4) for each in scenes_noticed(picks, films, tests).tolist()],
            "short ones noticed": ((seen & short).sum() / short.sum()).item(),
            "CIDEr": [round(each, 2) for each in (scores.sum(1) / scenes).tolist()],
            "CIDEr of noticed scenes": (scores.sum() / (seen & (sources >= 0)).sum()).item(),
            "seconds": seconds}

    everything = torch.ones_like(films.scenes[tests], dtype=torch.bool)
    note("all", everything)
    note("oracle", middle_picks(films, tests))
    for name, picks in given.items():
        note(name, picks)
    levels = {}
    for budget in policies:
        made = film_pickers(films, policies, budget)
        for name, value in made.items():
            if name.endswith("level"): levels[f"{name}-{budget}"] = value
            else: note(f"{name}-{budget}", *value)
    return {"found": found, "levels": levels,
            "cuts": named_cuts(films), "scenes": (sources >= 0).sum(1).tolist(),
            "short": short.sum(1).tolist()}


def measure_streams(films: Films, policy, seconds) -> dict:
    "Frames looked at each minute against scenes noticed, for pickers that look back only."
    before, tests = (make_streams(films, films.splits[split], seconds=seconds)
                     for split in ("validation", "test"))
    frames, found = tests.scenes.shape[1], {}
    some = {"validation": before.glances, "test": tests.glances}
    distances = {split: grey_distances(glances) for split, glances in some.items()}
    ways = {
        "learned": {split: learned_picks(policy, glances) for split, glances in some.items()},
        "change threshold": {split: (lambda level, d=d: picks_by_change(d, level))
                             for split, d in distances.items()},
        "content detector": {split: (lambda level, d=d: picks_at_cuts(d, level))
                             for split, d in distances.items()}}

    def note(name: str, picks: torch.Tensor) -> None:
        found.setdefault(name, []).append({
            "frames a minute": picks.sum().item() / tests.minutes,
            "share of frames": picks.float().mean().item(), "noticed": noticed(picks, tests)})

    for share in (0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3):
        for name, way in ways.items():
            note(name, way["test"](threshold_for(way["validation"], share * frames)))
        even = (torch.arange(frames, device=films.device) * share % 1) < share - 1e-9
        note("uniform", even.expand_as(tests.scenes))
        torch.manual_seed(0)
        note("random", torch.rand(tests.scenes.shape, device=films.device) < share)
    note("learned, p > 0.5", ways["learned"]["test"](100.0))
    return {"minutes": tests.minutes, "frames": tests.scenes.numel(),
            "scenes": len(tests.scenes.unique()), "found": found}


def train_on_films(corpus: Corpus, config: Config, home: Path, size: dict, tiny: bool):
    "Films, and a policy for each budget that has learned from films of training clips."
    films = make_films(corpus, size["films"], seed=0)
    films = replace(films, details={**films.details, "captioner": str(home/"whole")})
    policies = {}
    for budget in FILM_BUDGETS:
        # no clock: scenes come when they come; two picks more than the budget cost nothing, and
        # the threshold is set to the budget afterwards
        changed = config.changed(
            clock=False, min_picks=2, first_max_picks=budget + 2, final_max_picks=budget + 2,
            shrink_epochs=0, reward="scenes", baseline="others", rollouts=4,
            policy_hidden=32 if tiny else 256, batch_size=16 if tiny else 256,
            captions_together=1, word_epochs=0, reinforcement_epochs=size["film_picking"],
            reinforcement_rate=1e-3)
        policies[budget] = train(home/f"films-{budget}", films, changed,
                                 Recipe(language=1.0, adapted=False), bars=False,
                                 start=home/"whole"/"weights.safetensors", save_seconds=1e9)
    return films, policies


def one_seed(data: str, seed: int, out: Path, tiny: bool, parts: list[str],
             given: Path | None = None) -> None:
    "Everything of one seed: a file for each part, and what is there is not made again."
    torch.set_num_threads(1)
    size, eye = SIZES["tiny" if tiny else "full"], Path(data).name
    wanted = [part for part in parts if not (out/f"{part}-{eye}-{seed}.json").exists()]
    if not wanted: return
    corpus, config = Corpus.load(data, DEVICE), settings_of(seed, size, tiny)
    home, begun = out/"runs"/f"{eye}-{seed}", time.perf_counter()
    model = train(home/"whole", corpus, config, STAGE_ONE, bars=False, save_seconds=1e9)
    spent = {"whole": round(time.perf_counter() - begun, 1)}
    judge = Judge(model, corpus)

    def write(part: str, content: dict) -> None:
        about = {"part": part, "data": corpus.name, "features": corpus.settings.cnn, "seed": seed,
                 **origin(), "settings": config.flat(), "sizes": size, "seconds": spent,
                 "ids": [corpus.ids[video] for video in judge.videos.tolist()]}
        write_whole(out/f"{part}-{eye}-{seed}.json", json.dumps(about | content))
        print("DONE", part, eye, seed, spent, flush=True)

    for part in wanted:
        judge.found, at = {}, time.perf_counter()
        if part != "films":
            halved = config.changed(supervision_epochs=size["half"], word_epochs=0)
            train_halves(home, corpus, halved, bars=False)
            spent["halves"] = round(time.perf_counter() - at, 1)
        if part == "top":
            plain_pickers(judge, seed)
            more = whole_clip_pickers(judge, corpus, config, home, size)
            spent["top"] = round(time.perf_counter() - at, 1)
            write(part, {"found": judge.found, "learning": more})
        elif part.startswith("picknet"):
            budget = int(part.removeprefix("picknet"))
            judge.measure(f"uniform-{budget}", make_picker("uniform", budget)(judge.clips),
                          words=budget == 6)
            spent |= picknets(judge, corpus, config, home, budget)
            write(part, {"found": judge.found})
        else:
            films, policies = train_on_films(corpus, config, home, size, tiny)
            spent["film policies"] = round(time.perf_counter() - at, 1)
            found = measure_films(films, model, policies, given_picks(films, given))
            seconds = (lambda name: 10.0) if tiny else clip_seconds
            found["streams"] = measure_streams(films, policies[6].policy, seconds)
            spent["films"] = round(time.perf_counter() - at, 1)
            write(part, found)


def run_all(options) -> None:
    "Seeds side by side, as long as there is time to begin another."
    begun, waiting, running = time.time(), list(range(options.seeds)), {}
    options.out.mkdir(parents=True, exist_ok=True)
    late = lambda: time.time() - begun > options.seconds
    while running or (waiting and not late()):
        for seed, process in list(running.items()):
            if process.poll() is not None:
                print(f"[{time.time() - begun:.0f}] seed {seed} ended: {process.returncode}",
                      flush=True)
                del running[seed]
        while waiting and len(running) < options.workers and not late():
            seed = waiting.pop(0)
            command = [sys.executable, __file__, "seed", str(seed), "--data", options.data,
                       "--out", str(options.out), *(["--tiny"] * options.tiny)]
            parts = [part for part in options.parts
                     if part != "films" or seed < options.film_seeds]
            command += [word for part in parts for word in ("--part", part)]
            if options.given: command += ["--given", str(options.given)]
            log = open(options.out/f"seed-{seed}.log", "ab")
            running[seed] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                             env={**os.environ, "OMP_NUM_THREADS": "1"})
        time.sleep(0.5)


def collected(out: Path, eye: str, part: str) -> list[dict]:
    "The files of a part, by seed."
    found = [json.loads(path.read_text()) for path in out.glob(f"{part}-{eye}-*.json")]
    return sorted(found, key=lambda each: each["seed"])


def shared_facts(files: list[dict], what: str) -> dict:
    "What the files of a part have in common."
    first = files[0]
    keep = ("data", "features", "commit", "machine", "torch", "python", "date", "settings",
            "sizes")
    eye = "clip" if "clip" in first["features"] else "lite0"
    return {"kind": what, **{name: first[name] for name in keep},
            "command": f"python benchmarks/evidence.py all --data data/corpora/msvd-{eye}",
            "seeds": [each["seed"] for each in files], "ids": first["ids"]}


def mean_of(rows: list[dict], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def collect(options) -> None:
    "Two result files, of clips and of films, from the files of all seeds."
    eye, where = Path(options.data).name, options.results
    tops = collected(options.out, eye, "top")
    nets = {k: collected(options.out, eye, f"picknet{k}") for k in (2, 3, 6)}
    if tops:
        rows: dict[str, dict[int, dict]] = {}
        for each in tops + [each for files in nets.values() for each in files]:
            for name, row in each["found"].items():
                rows.setdefault(name, {})[each["seed"]] = row
        table = {name: {
            "CIDEr": {seed: row["CIDEr"] for seed, row in by_seed.items()},
            "frames": mean_of([*by_seed.values()], "frames"),
            **({"inside": mean_of([*by_seed.values()], "inside")}
               if all("inside" in row for row in by_seed.values()) else {}),
            **({key: [round(statistics.fmean(each), 4) for each in
                      zip(*(row[key] for row in by_seed.values()))]
                for key in ("positions", "counts")}
               if all("positions" in row for row in by_seed.values()) else {}),
        } for name, by_seed in rows.items()}
        name = f"honest_rewards_{eye.split('-')[-1]}"
        content = {**shared_facts(tops, "honest rewards"), "table": table,
                   "learning": {each["seed"]: {name: value for name, value
                                               in each["learning"].items() if "pool" in name}
                                for each in tops},
                   "seconds": {each["seed"]: each["seconds"] for each in tops}}
        write_whole(where/f"{name}.json", json.dumps(content, indent=1) + "\n")
        clips = {row: {seed: each["clips"] for seed, each in by_seed.items()}
                 for row, by_seed in rows.items() if "own half" not in row}
        write_whole(where/f"{name}.clips.json", json.dumps({
            "kind": "clips", "of": f"{name}.json", "ids": tops[0]["ids"], "rows": clips}) + "\n")
        first = {row: by_seed[min(by_seed)] for row, by_seed in rows.items()
                 if "captions" in by_seed[min(by_seed)]}
        write_whole(where/f"{name}.captions.json", json.dumps({
            "kind": "captions", "of": f"{name}.json", "ids": tops[0]["ids"],
            "rows": {row: {key: each[key] for key in ("captions", "picks", "clips")}
                     for row, each in first.items()}}) + "\n")
    if films := collected(options.out, eye, "films"):
        content = {**shared_facts(films, "films"),
                   **{key: films[0][key] for key in ("cuts", "scenes", "short")},
                   "levels": {each["seed"]: each["levels"] for each in films},
                   "rows": {name: {each["seed"]: each["found"][name] for each in films}
                            for name in films[0]["found"]},
                   "streams": {each["seed"]: each["streams"] for each in films},
                   "seconds": {each["seed"]: each["seconds"] for each in films}}
        content.pop("ids")
        write_whole(where/f"films_{eye.split('-')[-1]}.json", json.dumps(content) + "\n")
    print({"clips": len(tops), "films": len(films), **{k: len(v) for k, v in nets.items()}})


def main() -> None:
    "What to run, from the command line."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("all", "seed", "collect"))
    parser.add_argument("number", nargs="?", type=int, default=0, help="of the seed")
    parser.add_argument("--data", default="data/corpora/msvd-clip")
    parser.add_argument("--out", type=Path, default=Path("data/runs/evidence"))
    parser.add_argument("--results", type=Path, default=ROOT/"data"/"results")
    parser.add_argument("--part", dest="parts", action="append",
                        help="top, picknet2, picknet3, picknet6, films; may be repeated")
    parser.add_argument("--given", type=Path, help="JSON of picks made by benchmarks/cuts.py")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--film-seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="begin no further seed after this")
    parser.add_argument("--tiny", action="store_true", help="a try of the code, not a result")
    options = parser.parse_args()
    options.parts = options.parts or ["picknet6", "top", "films", "picknet3", "picknet2"]
    if options.what == "all": run_all(options)
    elif options.what == "collect": collect(options)
    else:
        one_seed(options.data, options.number, options.out, options.tiny, options.parts,
                 options.given)


if __name__ == "__main__":
    main()
