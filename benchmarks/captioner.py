"""The captioner, plain and fast in one run: equal results first, then times beside the counted
floor.

    python benchmarks/captioner.py --out data/results/benchmark_captioner.json

With a GPU at MSVD's shapes, without one at a small size.
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from contextlib import nullcontext
from pathlib import Path

import torch
from common import ROOT, origin, times_ms, write_result
from torch import Tensor, nn

from picknet_nb.core.gpu import Captured, make_adam
from picknet_nb.core.settings import preset
from picknet_nb.method.captioner import PaperCaptioner, caption, make_captioner, teach
from picknet_nb.method.decoder import caption_loss, plain_logits
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.fast_decoder import draw_randomness

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FULL = dict(
    batch=128,
    frames=30,
    dims=2048,
    time=20,
    words=5500,
    videos=1200,
    test=670,
    embedding=512,
    hidden=1024,
)
MSRVTT = dict(batch=256, words=10541)
SMALL = dict(
    batch=16, frames=30, dims=256, time=12, words=500, videos=64, test=64, embedding=64, hidden=128
)


def median_and_spread(function, repeats: int) -> tuple[float, float]:
    "Median and spread (interquartile) of a call, in milliseconds."
    times = times_ms(function, DEVICE, repeats)
    quarter = statistics.quantiles(times, n=4) if len(times) > 1 else times*3
    return statistics.median(times), quarter[2] - quarter[0]


def ceilings() -> dict:
    "What this machine reaches on a large product and on a large copy."
    size, kind = (8192, torch.bfloat16) if CUDA else (1024, torch.float32)
    left, right = (torch.randn(size, size, device=DEVICE).to(kind) for _ in range(2))
    product, _ = median_and_spread(lambda: left @ right, 10)
    source = torch.randn(2**29 if CUDA else 2**24, device=DEVICE)
    target = torch.empty_like(source)
    copy, _ = median_and_spread(lambda: target.copy_(source), 10)
    return {
        "flop_per_s": 2 * size**3 / product * 1e3,
        "bytes_per_s": 2 * source.numel() * 4 / copy * 1e3,
        "product_type": str(kind),
    }


def count_step(s: dict, parameters: int, feedback: bool) -> dict:
    """Operations a training step must do, and bytes it must move: every input read once, every
    result written once."""
    b, f, d, t, v, e, h = (
        s[k] for k in ("batch", "frames", "dims", "time", "words", "embedding", "hidden")
    )
    embed = 2 * b * f * d * e
    rest = (
        2 * b * f * 4 * h * (e + h)
        + 2 * b * t * 3 * h * (e + h)
        + 2 * b * 3 * h * h
        + 2 * b * t * h * v
    )
    again = 2 * b * (t - 1) * (3 * h * (e + h) + h * v) if feedback else 0
    # weights and two moments read and written, the gradient written and read
    state = 4 * parameters * (3 + 3 + 2)
    return {
        "flop": 2 * embed + 3 * rest + again,
        "bytes": state + 2 * b * f * d + 4 * 2 * b * t * v,
    }


def count_generation(s: dict, beams: int) -> dict:
    "The same for captions of the test clips."
    n, f, d, t, v, e, h = (
        s[k] for k in ("test", "frames", "dims", "time", "words", "embedding", "hidden")
    )
    flop = (
        2 * n * f * (d * e + 4 * h * (e + h))
        + beams * 2 * n * t * (3 * h * (e + h) + h * v)
        + 2 * n * 3 * h * h
    )
    return {
        "flop": flop,
        "bytes": 2 * n * f * d
        + 4 * (d * e + 4 * h * (e + h) + v * e + 3 * h * (e + 2 * h) + v * h),
    }


class Task:
    """Random clips and captions of the given shapes, all on the device, and a captioner to train
    on them."""

    def __init__(self, s: dict, seed: int = 0):
        torch.manual_seed(seed)
        self.shapes = s
        self.features = torch.rand(s["videos"], s["frames"], s["dims"]).half().to(DEVICE)
        length = torch.randint(5, 13, (20 * s["videos"], 1)).clamp(max=s["time"])
        words = torch.randint(4, s["words"], (len(length), s["time"]))
        place = torch.arange(s["time"])
        self.words = torch.where(
            place < length - 1, words, torch.where(place == length - 1, 2, 0)
        ).to(DEVICE)
        self.video = torch.arange(len(length), device=DEVICE) % s["videos"]
        config = preset(
            "paper",
            feature_embedding=s["embedding"],
            word_embedding=s["embedding"],
            hidden=s["hidden"],
        )
        self.captioner = make_captioner(config.captioner, s["dims"], s["words"]).to(DEVICE)
        self.picks = torch.ones(s["batch"], s["frames"], dtype=torch.bool, device=DEVICE)
        self.total = torch.zeros((), device=DEVICE)

    def indices(self) -> Tensor:
        return torch.randint(len(self.words), (self.shapes["batch"],), device=DEVICE)

    def step(
        self,
        plain: bool = False,
        feedback: bool = False,
        half: bool = True,
        most: int | None = None,
    ):
        """One supervised training step as a function of caption indices and the feedback
        probability."""
        captioner, optimiser = self.captioner, make_adam(self.captioner.parameters(), 3e-4)
        autocast = torch.autocast(DEVICE, torch.bfloat16) if half and CUDA else nullcontext()
        picks = self.picks
        if most:
            picks = torch.rand(picks.shape, device=DEVICE).argsort(1) < most

        def logits(features, words, probability):
            memory = captioner.encode(pick_frames(features, picks, most))
            probability = probability if feedback else 0.0
            if not plain:
                return teach(captioner, memory, words, probability)
            return plain_logits(
                captioner.decoder,
                memory.video,
                words,
                draw_randomness(captioner.decoder, *words.shape, probability),
            )

        def run(captions: Tensor, probability: Tensor) -> Tensor:
            words, features = self.words[captions], self.features[self.video[captions]]
            optimiser.zero_grad(set_to_none=True)
            with autocast:
                loss = caption_loss(logits(features, words, probability), words)
            loss.backward()
            nn.utils.clip_grad_norm_(captioner.parameters(), 5.0)
            optimiser.step()
            self.total.add_(loss.detach())
            return loss.detach()

        return run, optimiser


def relative(got: Tensor, want: Tensor) -> float:
    "‖got - want‖ / ‖want‖."
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def gradients(
    captioner: PaperCaptioner, clips, words, draws, plain: bool, half: bool = False
) -> dict[str, Tensor]:
    "Logits, loss and every gradient of one pass."
    captioner.zero_grad(set_to_none=True)
    device = words.device.type
    with torch.autocast(device, torch.bfloat16) if half else nullcontext():
        video = captioner.encode(pick_frames(*clips)).video
        logits = (
            plain_logits(captioner.decoder, video, words, draws)
            if plain
            else captioner.decoder(video, words, draws=draws)
        )
        loss = caption_loss(logits, words)
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach()} | {
        name: each.grad.clone() for name, each in captioner.named_parameters()
    }


def equality(s: dict) -> dict:
    """Largest relative difference of logits, loss and gradients: plain, fast, CPU, CUDA, single
    and half precision."""
    if CUDA:
        torch.backends.cudnn.allow_tf32 = False
    small = dict(s, batch=8, videos=8)
    task = Task(small, seed=1)
    captioner, features, words = task.captioner, task.features, task.words[:8].clone()
    captioner.encoder.dropout = 0.0  # the decoder's dropout is drawn once and shared
    picks = torch.rand(8, s["frames"], device=DEVICE) < 0.3
    picks[:, 0], picks[0, 1:], picks[1] = True, False, True  # one frame, all frames, some
    draws = draw_randomness(captioner.decoder, 8, s["time"], 0.25)
    on_cpu = lambda each: each.cpu() if each is not None else None
    report = {}
    for gate in ("sigmoid", "tanh"):
        captioner.encoder.output_gate = gate
        plain = gradients(captioner, (features, picks), words, draws, True)
        results = {"fast": gradients(captioner, (features, picks), words, draws, False)}
        results["half"] = gradients(captioner, (features, picks), words, draws, False, half=True)
        if CUDA:
            captioner.cpu()
            results["cpu"] = gradients(
                captioner,
                (features.cpu(), picks.cpu()),
                words.cpu(),
                type(draws)(*map(on_cpu, draws)),
                True,
            )
            captioner.to(DEVICE)
        for name, result in results.items():
            worst = {each: relative(result[each], plain[each]) for each in plain}
            limit = 2e-2 if name == "half" else 1e-5
            where = max(worst, key=worst.get)
            report[f"{gate} {name}"] = {
                "logits": worst["logits"],
                "worst": worst[where],
                "where": where,
                "limit": limit,
                "equal": worst[where] <= limit,
            }
    if CUDA:
        torch.backends.cudnn.allow_tf32 = True
        torch._dynamo.reset()  # so that the kernels below are compiled for their own shapes
    return report


def captured_equals_eager(s: dict) -> dict:
    """Five recorded steps against five plain calls of the same step, from the same weights and
    the same random numbers."""
    losses = []
    for record in (False, True):
        task = Task(s, seed=2)
        step, optimiser = task.step(feedback=True)
        batches, probability = [task.indices() for _ in range(5)], torch.tensor(0.25, device=DEVICE)
        if record:
            step = Captured(
                step, batches[0], probability, keep=(task.captioner, optimiser, task.total)
            )
        torch.manual_seed(3)
        losses.append(torch.stack([step(each, probability).clone() for each in batches]).tolist())
    return {
        "eager": losses[0],
        "captured": losses[1],
        "largest difference": max(abs(a - b) for a, b in zip(*losses)),
    }


def kernels(function, count: int = 25) -> list:
    "Where the time of one call goes."
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(3):
            function()
        torch.cuda.synchronize()
    rows = [
        (each.key, each.count / 3, each.self_device_time_total / 3)
        for each in trace.key_averages()
        if each.self_device_time_total > 0
    ]
    return [
        {"kernel": key[:110], "calls": calls, "us": round(us, 1)}
        for key, calls, us in sorted(rows, key=lambda row: -row[2])[:count]
    ]


def training_variants():
    "Name, whether recorded, whether cuDNN runs the LSTM, and the settings of each step."
    yield "fast captured, feedback 0.25", True, False, dict(feedback=True)
    yield "fast captured, no feedback", True, False, {}
    yield "fast captured, no feedback, cuDNN's LSTM", True, True, {}
    yield "plain eager, feedback 0.25", False, False, dict(plain=True, feedback=True)
    yield "plain eager, no feedback", False, False, dict(plain=True)
    yield "plain captured, no feedback", True, False, dict(plain=True)
    yield "plain captured, feedback 0.25", True, False, dict(plain=True, feedback=True)
    yield "fast eager, feedback 0.25", False, False, dict(feedback=True)
    yield "fast eager, no feedback", False, False, {}
    yield "fast captured, no feedback, 7 picks", True, False, dict(most=7)
    yield "fast captured, no feedback, single precision", True, False, dict(half=False)


def time_training(s: dict, record: bool, cudnn: bool, settings: dict) -> tuple[dict, object]:
    "Median time of one training step."
    task = Task(s)
    if cudnn:
        task.captioner.encoder.states = lambda embedded: task.captioner.encoder.lstm(embedded)[0]
    step, optimiser = task.step(**settings)
    probability = torch.tensor(0.25, device=DEVICE)
    begin = time.perf_counter()
    if record:
        step = Captured(
            step, task.indices(), probability, keep=(task.captioner, optimiser, task.total)
        )
    made = time.perf_counter() - begin
    batches = [task.indices() for _ in range(8)]
    turn = iter(range(10**9))
    run = lambda: step(batches[next(turn) % 8], probability)
    ms, spread = median_and_spread(run, (50 if record else 8) if CUDA else 10)
    return {"ms": ms, "spread_ms": spread, "record_s": made, "loss": float(run())}, run


def time_generation(s: dict, beams: int, record: bool) -> dict:
    "Median time of captions for all test clips, encoder included."
    task = Task(dict(s, videos=s["test"]))
    captioner = task.captioner.eval()
    picks = torch.ones(s["test"], s["frames"], dtype=torch.bool, device=DEVICE)

    def run(features):
        with torch.autocast(DEVICE, torch.bfloat16) if CUDA else nullcontext():
            return caption(captioner, features, picks, s["time"], beams)
    if record: run = Captured(run, task.features)
    ms, spread = median_and_spread(lambda: run(task.features), 10 if CUDA else 3)
    return {"ms": ms, "spread_ms": spread}


def attempt(table: dict, name: str, function):
    "Put the result, or the reason why there is none, under a name, and show it."
    begin = time.perf_counter()
    try:
        table[name] = function()
    except Exception as reason:
        traceback.print_exc()
        table[name] = {"failed": f"{type(reason).__name__}: {reason}"}
    print(
        f"{time.perf_counter() - begin:6.1f} s  {name}: {json.dumps(table[name])[:400]}", flush=True
    )
    if CUDA:
        try:
            torch.cuda.empty_cache()
        except Exception:
            pass


def with_floor(result: dict, counted: dict, limits: dict) -> dict:
    "A time beside the shortest that the counted operations and bytes allow."
    arithmetic = 1e3 * counted["flop"] / limits["flop_per_s"]
    memory = 1e3 * counted["bytes"] / limits["bytes_per_s"]
    floor = max(arithmetic, memory)
    return result | {
        "arithmetic_ms": arithmetic,
        "memory_ms": memory,
        "floor_ms": floor,
        "share_of_floor": floor / result["ms"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_captioner.json"
    )
    arguments.add_argument(
        "--seconds", type=float, default=140, help="start nothing new after this time"
    )
    arguments = arguments.parse_args()
    begin, s = time.perf_counter(), FULL if CUDA else SMALL
    late = lambda: time.perf_counter() - begin > arguments.seconds
    result = origin(DEVICE) | {
        "shapes": s,
        "ceilings": {},
        "equality": {},
        "training": {},
        "generation": {},
        "kernels": {},
    }
    attempt(result["ceilings"], "measured", ceilings)
    limits = result["ceilings"]["measured"]
    parameters = sum(each.numel() for each in Task(s).captioner.parameters())
    result["parameters"] = parameters
    attempt(result, "equality", lambda: equality(s))
    for name, record, cudnn, settings in training_variants():
        if late() or (record and not CUDA) or settings.get("half") is False and not CUDA:
            continue

        def measure():
            timed, run = time_training(s, record, cudnn, settings)
            if CUDA and name in ("fast captured, feedback 0.25", "fast captured, no feedback"):
                attempt(result["kernels"], name, lambda: kernels(run))
            return with_floor(
                timed, count_step(s, parameters, settings.get("feedback", False)), limits
            )

        attempt(result["training"], name, measure)
    if CUDA and not late():
        large = dict(s, **MSRVTT)
        attempt(
            result["training"],
            "fast captured, feedback 0.25, MSR-VTT's shapes",
            lambda: with_floor(
                time_training(large, True, False, dict(feedback=True))[0],
                count_step(
                    large, sum(each.numel() for each in Task(large).captioner.parameters()), True
                ),
                limits,
            ),
        )
    for beams in (1, 5):
        for record in (False, True) if CUDA else (False,):
            if late():
                continue
            name = (f"{'greedy' if beams == 1 else f'beam {beams}'} {s['test']} videos, "
                    f"{'captured' if record else 'eager'}")
            attempt(
                result["generation"],
                name,
                lambda: with_floor(
                    time_generation(s, beams, record), count_generation(s, beams), limits
                ),
            )
    if CUDA and not late():
        attempt(result, "captured equals eager", lambda: captured_equals_eager(s))
    result["seconds"] = time.perf_counter() - begin
    write_result(arguments.out, result)
    print(f"{'':44} {'ms':>9} {'floor':>8} {'share':>6}")
    for name, row in (result["training"] | result["generation"]).items():
        print(
            f"{name:44} "
            + (
                f"{row['ms']:9.3f} {row['floor_ms']:8.3f} {row['share_of_floor']:6.1%}"
                if "ms" in row
                else "failed"
            )
        )


if __name__ == "__main__":
    main()
