"""What makes `make reproduce` quick on a CPU: each quick form against the plain one, in one run, on
the built-in world.

python benchmarks/reproduction.py [--out data/results/benchmark_reproduction.json] [--scale small]
    [--epochs 12]
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import ROOT, median_ms, origin, write_result

from picknet_nb.core.processes import joined, rank_and_world
from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.fast_decoder import dropout_scale
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.policy import glance_differences
from picknet_nb.method.recipes import recipes
from picknet_nb.method.rewards import reward_for
from picknet_nb.method.stages import Model, Reinforcement, Supervision, frame_choice
from picknet_nb.training.batches import epoch_order
from picknet_nb.training.loop import Step
from picknet_nb.training.train import open_data
from picknet_nb.measure.metrics import meteor_process, score_many


def reinforced(corpus: Corpus, config, quick: bool, epochs: int) -> tuple[float, int, torch.Tensor]:
    """Stage two with a captioner that has learned a little: seconds, captions that were made,
    and the weights that come out."""
    torch.manual_seed(0)
    model = Model.for_corpus(config, corpus)
    teach = Step(
        Supervision(model, corpus, config, frame_choice(make_picker("all"), corpus)),
        [model.captioner],
        config.training.supervision_rate,
        config,
    )
    for batch in epoch_order(
        corpus.pairs("train"),
        config.training.batch_size,
        0,
        (0, 1),
        corpus.caption_video,
        config.training.captions_together,
    ):
        teach(batch)
    wanted = (config.policy.min_picks + config.policy.first_max_picks) / 2
    model.policy.calibrate(
        corpus.glances[corpus.splits["train"][:256]],
        wanted=wanted,
    )
    stage, made = Reinforcement(model, corpus, config, reward_for(config.policy, corpus)), []
    plain = stage.environment.earned
    stage.environment.earned = lambda picks, videos, limit: (
        made.append(len(picks)) or plain(picks, videos, limit)
    )
    if not quick:
        stage.environment.earned_from_memory = stage.environment.earned
    step = Step(stage, [model.policy], config.training.reinforcement_rate, config)
    started = time.perf_counter()
    for epoch in range(epochs):
        stage.start_epoch(epoch)
        for batch in epoch_order(corpus.splits["train"], config.training.batch_size, epoch):
            step(batch)
    return (
        time.perf_counter() - started,
        sum(made),
        torch.cat([weight.detach().flatten() for weight in model.policy.parameters()]),
    )


def rewards(corpus: Corpus, config, epochs: int) -> dict:
    "Stage two with every pick captioned, and with those that are new and within the limits."
    (slow, all_of_them, before), (fast, some, after) = (
        reinforced(corpus, config, quick, epochs) for quick in (False, True)
    )
    assert torch.equal(before, after)
    return {
        "epochs": epochs,
        "plain_seconds": slow,
        "quick_seconds": fast,
        "ratio": slow / fast,
        "captioned_share": some / all_of_them,
        "same_weights": True,
    }


def small_forms(corpus: Corpus, config) -> dict:
    "What a step draws and subtracts, in milliseconds."
    like = torch.empty(config.clip.max_words, config.training.batch_size, config.captioner.hidden)
    noise = torch.empty(config.clip.max_words, config.training.batch_size, len(corpus.vocabulary))
    drop = config.captioner.dropout
    glances = corpus.glances[corpus.splits["train"][: config.training.batch_size]]
    forms = {
        "dropout": (
            lambda: F.dropout(torch.ones_like(like), drop),
            lambda: dropout_scale(like, drop),
        ),
        "noise": (noise.exponential_, lambda: noise.uniform_().log_().neg_()),
        "glance differences": (
            lambda: (glances.short() - glances[:, :1].short()).float() / 255,
            lambda: glance_differences(glances, glances[:, :1]),
        ),
    }
    times = {name: [median_ms(form, "cpu", 15) for form in both] for name, both in forms.items()}
    return {
        name: {"plain_ms": plain, "quick_ms": quick, "ratio": plain / quick}
        for name, (plain, quick) in times.items()
    }


def scoring(corpus: Corpus, rows: int = 3) -> dict:
    "Rows scored one by one as they come, with a METEOR for each, and with one for all."
    references = corpus.references("test")
    said = {video: known[0] for video, known in references.items()}
    started = time.perf_counter()
    alone = [dict(score_many({0: said}, references))[0].values for _ in range(rows)]
    middle = time.perf_counter()
    with meteor_process() as meteor:
        kept = [
            dict(score_many({0: said}, references, meteor=meteor))[0].values for _ in range(rows)
        ]
    assert alone == kept
    plain, quick = middle - started, time.perf_counter() - middle
    return {"rows": rows, "plain_seconds": plain, "quick_seconds": quick, "ratio": plain / quick}


def step_of_stage_one(scale: str, threads: int, steps: int) -> None:
    """Milliseconds of a supervised step, alone or as one of several that joined; the first one
    prints them."""
    torch.set_num_threads(threads)
    with joined():
        corpus, config = open_data("shapes", scale, bars=False), preset(scale)
        torch.manual_seed(0)
        model = Model.for_corpus(config, corpus)
        stage = Supervision(model, corpus, config, frame_choice(make_picker("all"), corpus))
        stage.start_epoch(config.training.supervision_epochs)  # with as much feedback as it gets
        step = Step(stage, [model.captioner], config.training.supervision_rate, config)
        share, together = rank_and_world(), config.training.captions_together
        order = epoch_order(
            corpus.pairs("train"),
            config.training.batch_size,
            0,
            share,
            corpus.caption_video,
            together,
        )
        batches = iter(order.repeat(1 + (steps + 10) // len(order), 1))
        if share[0]:
            for _ in range(steps + 5):
                step(next(batches))
        else:
            print(median_ms(lambda: step(next(batches)), "cpu", steps))


def stage_one(scale: str, steps: int) -> dict:
    "The ways to use a second core in stage one."
    here = [str(Path(__file__).resolve()), "--scale", scale, "--steps", str(steps)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    calls = {
        "one process": [sys.executable, *here, "--threads", "1"],
        "two threads": [sys.executable, *here, "--threads", "2"],
        "two processes": [*torchrun, *here, "--threads", "1"],
    }
    return {
        name: float(
            subprocess.run(call, check=True, capture_output=True, text=True).stdout.split()[-1]
        )
        for name, call in calls.items()
    }


def main() -> None:
    "Measure everything, or, called by itself, the steps of one process."
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_reproduction.json"
    )
    parser.add_argument("--scale", default="small")
    parser.add_argument("--epochs", type=int, default=12, help="of stage two")
    parser.add_argument("--steps", type=int, default=40, help="of stage one")
    parser.add_argument("--threads", type=int, default=0, help="used by this script itself")
    options = parser.parse_args()
    if options.threads:
        return step_of_stage_one(options.scale, options.threads, options.steps)
    torch.set_num_threads(1)
    corpus = open_data("shapes", options.scale)
    config = recipes()["PickNet (V+L)"].settings(preset(options.scale))
    result = {
        "kind": "benchmark",
        "what": "reproduction on a CPU",
        **origin("cpu"),
        "scale": options.scale,
        "rewards": rewards(corpus, config, options.epochs),
        "forms": small_forms(corpus, config),
        "scoring": scoring(corpus),
        "stage_one_step_ms": stage_one(options.scale, options.steps),
    }
    write_result(options.out, result)
    print(
        json.dumps(
            {name: result[name] for name in ("rewards", "forms", "scoring", "stage_one_step_ms")},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
