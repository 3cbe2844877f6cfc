"""The picker frame by frame beside the fast one: rollouts with gradient, streams, k-means. Equality
first, then time.

python benchmarks/picker.py [--out data/results/benchmark_picker.json] [--device cuda]
"""
from __future__ import annotations

import argparse
import copy
import json

import torch
from common import ROOT, device_name, median_ms, origin, write_result

from picknet_nb.method.fast_kmeans import (
    centre_distances, frame_distances, greedy_start, kmeans_shares)
from picknet_nb.method.pickers import Clips, kmeans
from picknet_nb.method.policy import (
    Policy, glance_differences, last_picks, pair_logits, path_logits, project, roll_out,
    roll_out_by_frame, roll_out_by_scan)
from picknet_nb.method.recurrence import roll_out_by_table


def captured(step):
    "The step as one CUDA graph; returns what replays it."
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def moving_glances(clips: int, frames: int, dims: int, device: str) -> torch.Tensor:
    "uint8 glances that drift: each frame is the last one with a few grey values changed."
    start = torch.randint(0, 256, (clips, 1, dims))
    drift = (20 * torch.randn(clips, frames, dims) * (torch.rand(clips, frames, 1) < 0.3)).cumsum(1)
    return (start + drift).clamp(0, 255).to(torch.uint8).to(device)


def frame_by_frame(policy: Policy, glances: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Log-probability of a sampled rollout, the way the equations are written: every frame
    through both layers."""
    last, total = glances[:, 0], 0.0
    for t in range(1, glances.shape[1]):
        log_p = policy(glance_differences(glances[:, t], last)).log_softmax(-1)
        picked = log_p[:, 1].exp() > noise[:, t]
        total = total + torch.where(picked, log_p[:, 1], log_p[:, 0])
        last = torch.where(picked[:, None], glances[:, t], last)
    return total


def plain_step(policy: Policy, glances: torch.Tensor, noise: torch.Tensor) -> None:
    "Sampled rollout with gradient, then the greedy one."
    policy.zero_grad(set_to_none=True)
    frame_by_frame(policy, glances, noise).sum().backward()
    roll_out_by_frame(policy, glances, torch.full_like(noise, 0.5))


def fast_step(policy: Policy, glances: torch.Tensor, rollouts: int = 1) -> None:
    "The same from one projection."
    policy.zero_grad(set_to_none=True)
    policy.explore(glances, rollouts).log_probability.sum().backward()


def widest_tie(
    policy: Policy, glances: torch.Tensor, noise: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> float:
    """Where two ways first disagree, how far p(pick) was from the random number it is compared
    with: 0 where they never do."""
    clips = (a != b).any(1).nonzero()[:, 0]
    if not len(clips):
        return 0.0
    first = (a != b)[clips].float().argmax(1)
    return (policy.probabilities(glances, a) - noise)[clips, first].abs().max().item()


def check_equal(policy: Policy, glances: torch.Tensor) -> dict:
    "Picks and gradients of the fast form against frame by frame, on the same random numbers."
    noise = torch.rand(glances.shape[:2], device=glances.device)
    fast = policy.explore(glances, noise=noise[None])
    projected = project(policy, glances).detach()
    half = torch.full_like(noise, 0.5)
    ways = {
        "sampled": (noise, fast.sampled[0], roll_out_by_frame(policy, glances, noise)),
        "greedy": (half, fast.greedy, roll_out_by_frame(policy, glances, half)),
        "scan": (noise, roll_out_by_scan(policy, projected, noise[None])[0], fast.sampled[0]),
        "table": (
            noise,
            roll_out_by_table(pair_logits(policy, projected), noise[None])[0],
            fast.sampled[0],
        ),
    }
    ties = {name: widest_tie(policy, glances, *way) for name, way in ways.items()}
    result = {
        f"{name} picks that agree": (a == b).float().mean().item()
        for name, (_, a, b) in ways.items()
    } | {"widest tie": max(ties.values())}
    assert result["widest tie"] < 1e-4, ties  # rounding may decide a tie, and nothing else
    return (
        result
        | check_gradient(policy, glances, fast.sampled[0])
        | check_half(policy, glances, noise, ways)
    )


def check_gradient(policy: Policy, glances: torch.Tensor, picks: torch.Tensor) -> dict:
    """Gradients of the fast form and of frame by frame against float64, where no hidden unit
    sits within rounding of zero."""
    double = copy.deepcopy(policy).double()
    ways = {
        "fast": lambda net: path_logits(net, project(net, glances), picks)[:, 1:],
        "frame by frame": lambda net: logits_by_frame(net, glances, picks),
    }
    # the gradient of a ReLU jumps at zero, so a unit that rounding moves across it tells of
    # rounding only
    with torch.no_grad():
        crossed = (hidden_on_path(policy, glances, picks) > 0) != (
            double.compare(differences_on_path(glances, picks).double()) > 0
        )
    steady = ~crossed.any(-1)
    exact = gradients(double, ways["frame by frame"], picks, steady)
    errors = {
        name: distance(gradients(policy, way, picks, steady), exact) for name, way in ways.items()
    }
    everywhere = distance(
        gradients(policy, ways["fast"], picks), gradients(double, ways["frame by frame"], picks)
    )
    assert errors["fast"] < 3e-5 and crossed.float().mean() < 1e-5, (errors, crossed.sum())
    return {
        "relative error of the gradient": errors,
        "of the fast one, hidden units near zero included": everywhere,
        "hidden units that rounding moves across zero": crossed.sum().item(),
        "hidden units": crossed.numel(),
    }


def check_half(policy: Policy, glances: torch.Tensor, noise: torch.Tensor, ways: dict) -> dict:
    """Picks in half precision, as training on a GPU runs, against full precision on the same
    random numbers."""
    if not glances.is_cuda:
        return {}
    with torch.autocast("cuda", torch.bfloat16):
        half = policy.explore(glances, noise=noise[None])
    tried = {"sampled": half.sampled[0], "greedy": half.greedy}
    tie = max(
        widest_tie(policy, glances, ways[name][0], ways[name][1], picks)
        for name, picks in tried.items()
    )
    assert tie < 0.02, tie  # half precision may decide what is nearly a tie
    return {
        f"{name} picks that agree, half precision": (tried[name] == ways[name][1])
        .float()
        .mean()
        .item()
        for name in tried
    } | {"widest tie, half precision": tie}


def differences_on_path(glances: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    "Every frame but the first minus the last pick before it."
    before = glances.gather(1, last_picks(picks)[:, 1:, None].expand(-1, -1, glances.shape[-1]))
    return glance_differences(glances[:, 1:], before)


def hidden_on_path(policy: Policy, glances: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    "The hidden layer before its ReLU, from projected glances."
    projected = project(policy, glances)
    before = projected.gather(1, last_picks(picks)[:, 1:, None].expand(-1, -1, projected.shape[-1]))
    return projected[:, 1:] - before + policy.compare.bias


def logits_by_frame(policy: Policy, glances: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    "Logits of every decision, every difference through both layers."
    return policy(differences_on_path(glances, picks))


def gradients(
    policy: Policy, logits_of, picks: torch.Tensor, counted: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Of the summed log-probabilities of the picks, by every parameter; `counted` (clips, frames
    - 1) leaves decisions out."""
    log_p = logits_of(policy).log_softmax(-1)
    taken = torch.where(picks[:, 1:], log_p[..., 1], log_p[..., 0])
    return torch.autograd.grad(
        (taken if counted is None else taken[counted]).sum(), list(policy.parameters())
    )


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The length of the difference as a share of the length of the exact gradient, all
    parameters together."""
    flat = lambda parts: torch.cat([part.double().flatten() for part in parts])
    return ((flat(found) - flat(exact)).norm() / flat(exact).norm()).item()


def time_rollouts(policy: Policy, glances: torch.Tensor) -> dict:
    "Milliseconds of a sampled and a greedy rollout with log-probabilities and gradient."
    device = glances.device.type
    noise = torch.rand(glances.shape[:2], device=device)
    rows = {
        "frame by frame": median_ms(lambda: plain_step(policy, glances, noise), device, 10, 2),
        "fast": median_ms(lambda: fast_step(policy, glances), device),
        "fast, 4 sampled rollouts": median_ms(lambda: fast_step(policy, glances, 4), device),
    }
    if device == "cuda":
        rows["frame by frame, captured"] = median_ms(
            captured(lambda: plain_step(policy, glances, noise)), device, 20
        )
        rows["fast, captured"] = median_ms(
            captured(lambda: fast_step(policy, glances)), device, 100
        )

        def half(rollouts):
            with torch.autocast("cuda", torch.bfloat16):
                fast_step(policy, glances, rollouts)

        rows["fast, half precision, captured"] = median_ms(captured(lambda: half(1)), device, 100)
        rows["fast, half precision, 4 sampled rollouts, captured"] = median_ms(
            captured(lambda: half(4)), device, 100
        )
    return rows


def time_parts(policy: Policy, glances: torch.Tensor) -> dict:
    """Milliseconds of the parts of the fast form (captured and in half precision on CUDA), and
    the two ways to walk."""
    device = glances.device.type
    noise = torch.rand(2, *glances.shape[:2], device=device)
    projected = project(policy, glances).detach()
    logits = pair_logits(policy, projected)
    picks = roll_out(policy, projected, noise)
    parts = {
        "projection": lambda: project(policy, glances),
        "scan": lambda: roll_out_by_scan(policy, projected, noise),
        "pair table": lambda: pair_logits(policy, projected),
        "composition of maps": lambda: roll_out_by_table(logits, noise),
        "logits along the path": lambda: path_logits(policy, projected, picks),
    }
    rows = {}
    for name, part in parts.items():

        def step(part=part):
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                part()

        rows[name] = median_ms(captured(step) if device == "cuda" else step, device)
    return rows


def time_stream(policy: Policy, glances: torch.Tensor) -> float:
    "Milliseconds of one frame of a stream, the answer on the host."
    state = policy.start()
    state, *_ = policy.step(state, glances[0, 0])
    return median_ms(lambda: policy.step(state, glances[0, 1]), glances.device.type, 100)


def time_kmeans(device: str, clips: int, k: int = 6) -> dict:
    """k-means of all clips at once beside scikit-learn's, clip after clip, from the same
    starting centres."""
    from sklearn.cluster import KMeans

    features = torch.randn(clips, 30, 2048, device=device).cumsum(1)
    distances = frame_distances(features)
    start = (greedy_start(distances, k) @ features).cpu().numpy()
    ours = centre_distances(distances, kmeans_shares(distances, k)).amin(-1).sum(1).cpu()

    def plain():
        return [
            KMeans(k, init=centres, n_init=1, tol=0).fit(clip).inertia_
            for clip, centres in zip(features.cpu().numpy(), start)
        ]

    error = (ours / torch.tensor(plain()) - 1).abs().max().item()
    assert error < 1e-3, error
    picker, some = kmeans(k), Clips(features, features)
    rows = {
        "scikit-learn": median_ms(plain, "cpu", 3, 1),
        "batched": median_ms(lambda: picker(some), device),
    }
    if device == "cuda":
        rows["batched, captured"] = median_ms(captured(lambda: picker(some)), device)
    return {"clips": clips, "k": k, "largest relative inertia difference": error, "ms": rows}


def run(device: str, clips: int) -> dict:
    torch.manual_seed(0)
    glances = moving_glances(clips, 30, 3136, device)
    policy = Policy().to(device)
    policy.calibrate(glances, 6)
    return {
        "device": device_name(device),
        "clips": clips, "frames": 30, "glance_dims": 3136, "hidden": 1024,
        "equality": check_equal(policy, glances),
        "sampled and greedy rollout with gradient, ms": time_rollouts(policy, glances),
        "parts, 2 rollouts, ms": time_parts(policy, glances),
        "one frame of a stream, ms": time_stream(policy, glances),
        "k-means": time_kmeans(device, clips),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=str(ROOT/"data/results/benchmark_picker.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clips", type=int, default=0, help="default: 128 on CUDA, 16 on a CPU")
    options = parser.parse_args()
    result = {"benchmark": "picker", **origin(), "runs": [run("cpu", options.clips or 16)]}
    if options.device == "cuda":
        result["runs"].append(run("cuda", options.clips or 128))
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
