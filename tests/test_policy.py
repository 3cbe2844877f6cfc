"""The policy beyond its notebook: random sizes, odd inputs, precision, CUDA graphs."""
import itertools

import pytest
import torch
from hypothesis import given, settings, strategies
from torch.testing import assert_close

from picknet_nb.method import fast_policy
from picknet_nb.method.policy import (
    Policy, last_picks, pair_logits, path_scores, project, roll_out, roll_out_by_frame,
    roll_out_by_scan)
from picknet_nb.method.recurrence import roll_out_by_table

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(clips=3, frames=9, dims=20, hidden=8, seed=0, wanted=4, clock=False):
    torch.manual_seed(seed)
    glances = torch.randint(0, 256, (clips, frames, dims), dtype=torch.uint8)
    return Policy(dims, hidden, clock).calibrate(glances, wanted, spread=2.0), glances


@settings(max_examples=40, deadline=None)
@given(
    strategies.integers(0, 4),
    strategies.integers(1, 35),
    strategies.integers(1, 3),
    strategies.integers(0, 10_000),
    strategies.booleans(),
)
def test_every_rollout_is_the_same_rollout(clips, frames, rollouts, seed, clock):
    policy, glances = make(max(clips, 1), frames, seed=seed, clock=clock)
    glances = glances[:clips]
    noise = torch.rand(rollouts, clips, frames)
    projected = project(policy, glances).detach()
    reference = torch.stack([roll_out_by_frame(policy, glances, each) for each in noise])
    assert torch.equal(roll_out_by_scan(policy, projected, noise), reference)
    assert torch.equal(roll_out_by_table(pair_logits(policy, projected), noise), reference)
    assert torch.equal(policy.explore(glances, noise=noise).sampled, reference)


def test_large_batches_are_cut(monkeypatch):
    policy, glances = make(clips=7)
    noise, projected = torch.rand(2, 7, 9), project(policy, glances).detach()

    # a tensor that claims to live on a GPU, so that the table is used
    class Pretended(torch.Tensor):
        is_cuda = True

    # two clips at a time
    monkeypatch.setattr(fast_policy, "_TABLE_BYTES", 4 * 9 * 9 * 8 * 2)
    # as they are written: to compile them takes half a minute, and is tested on a GPU
    for name in ("pair_sums", "roll_out_by_table"):
        function = getattr(fast_policy, name)
        monkeypatch.setattr(fast_policy, name, getattr(function, "__wrapped__", function))
    picks = roll_out(policy, projected.as_subclass(Pretended), noise)
    assert torch.equal(
        torch.as_tensor(picks).as_subclass(torch.Tensor), roll_out_by_scan(policy, projected, noise)
    )


def test_probabilities_of_all_sequences_add_up_to_one():
    policy, glances = make(clips=2, frames=7)
    every = (
        torch.tensor([(1, *rest) for rest in itertools.product((0, 1), repeat=6)])
        .bool()[:, None]
        .expand(-1, 2, -1)
    )
    assert_close(policy.log_probability(glances, every).exp().sum(0), torch.ones(2))


def test_samples_follow_their_probability():
    policy, glances = make(clips=1, frames=4)
    tried = policy.explore(glances, rollouts=20_000)
    every, counts = tried.sampled[:, 0].unique(dim=0, return_counts=True)
    assert_close(
        counts / 20_000,
        policy.log_probability(glances, every[:, None])[:, 0].exp().detach(),
        atol=0.015,
        rtol=0,
    )


def test_gradient_is_that_of_the_plain_form():
    policy, glances = make()
    picks = policy.rollout(glances, "sample")
    policy.log_probability(glances, picks).sum().backward()
    fast = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()
    before = glances[torch.arange(3)[:, None], last_picks(picks)]
    logits = policy((glances.float() - before.float()) / 255)
    path_scores(logits, picks)[0].sum().backward()
    for parameter, gradient in zip(policy.parameters(), fast):
        assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-4)


def test_gradient_against_finite_differences():
    policy, glances = make(clips=1, frames=5, dims=6, hidden=4)
    policy.double()
    picks = torch.tensor([[1, 0, 1, 1, 0]]).bool()
    names = [name for name, _ in policy.named_parameters()]
    log_p = lambda *values: torch.func.functional_call(
        _Scored(policy, glances), dict(zip([f"policy.{n}" for n in names], values)), (picks,)
    )
    assert torch.autograd.gradcheck(
        log_p,
        tuple(parameter.detach().clone().requires_grad_() for parameter in policy.parameters()),
    )


class _Scored(torch.nn.Module):
    def __init__(self, policy, glances):
        super().__init__()
        self.policy, self.glances = policy, glances

    def forward(self, picks):
        return self.policy.log_probability(self.glances, picks)


@pytest.mark.parametrize("clock", [False, True])
def test_stream_equals_batch_and_keeps_one_glance(clock):
    policy, glances = make(clips=4, frames=30, wanted=8, clock=clock)
    for clip, expected in zip(glances, policy.rollout(glances, threshold=0.4)):
        state, picks, chances = policy.start(), [], []
        for each in clip:
            state, picked, chance = policy.step(state, each, threshold=0.4)
            assert state[0].shape == each.shape and state[0].dtype == torch.uint8
            picks.append(picked)
            chances.append(chance)
        assert picks == expected.tolist()
        assert_close(
            torch.tensor(chances),
            policy.probabilities(clip[None], expected[None])[0].detach(),
            atol=1e-5,
            rtol=1e-4,
        )


def test_a_single_hidden_unit_has_a_start_too():
    policy, _ = make(hidden=1)
    assert all(weight.isfinite().all() for weight in policy.parameters())


def test_a_clock_is_all_that_a_policy_knows_of_time_and_bounds_how_long_it_waits():
    still = torch.zeros(1, 30, 20, dtype=torch.uint8)
    assert make()[0].rollout(still).sum() in (1, 30)  # nothing changes: always the same answer
    policy, glances = make(clips=8, frames=30, wanted=6, clock=True)
    picked = policy.rollout(still)[0].nonzero()[:, 0]
    assert 2 < len(picked) < 15 and len(set(picked.diff().tolist())) == 1  # evenly spaced
    assert sorted(dict(policy.named_parameters())) == [
        "clock",
        "compare.bias",
        "compare.weight",
        "decide.bias",
        "decide.weight",
    ]


def test_thresholds_at_the_ends():
    policy, glances = make()
    assert policy.rollout(glances, threshold=0.0).all()
    assert policy.rollout(glances, threshold=1.0).sum().item() == 3


def test_first_pick_is_forced_even_if_the_picks_say_otherwise():
    policy, glances = make()
    picks = policy.rollout(glances, "sample")
    without = picks.clone()
    without[:, 0] = False
    assert_close(policy.log_probability(glances, picks), policy.log_probability(glances, without))


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.bfloat16])
def test_feature_glances(kind):
    torch.manual_seed(0)
    features = torch.randn(6, 12, 40).cumsum(1).to(kind)
    policy = Policy(40, 16).calibrate(features, wanted=4)
    assert abs(policy.rollout(features).sum(1).float().mean().item() - 4) < 1
    assert policy.explore(features, 2).log_probability.dtype == torch.float32


def test_calibration_gives_the_wanted_count_and_survives_saving():
    torch.manual_seed(0)
    glances = (torch.rand(16, 30, 50) < 0.05).cumsum(1).clamp(max=255).to(torch.uint8) * 20
    for wanted in (3, 6, 12):
        policy = Policy(50, 32).calibrate(glances, wanted)
        assert abs(policy.rollout(glances).sum(1).float().mean().item() - wanted) < 0.75
        again = Policy(50, 32)
        again.load_state_dict(policy.state_dict())
        assert torch.equal(again.rollout(glances), policy.rollout(glances))


@pytest.mark.parametrize("frames", [1, 2, 30])
def test_calibration_where_nothing_moves_stays_finite(frames):
    still = torch.full((3, frames, 10), 7, dtype=torch.uint8)
    policy = Policy(10, 4).calibrate(still, wanted=6)
    assert all(parameter.isfinite().all() for parameter in policy.parameters())
    assert policy.explore(still, 2).log_probability.isfinite().all()


def test_rounding_is_not_taken_for_a_deviation():
    for seed in range(6):
        torch.manual_seed(seed)
        policy = Policy(300, 256)
        still = torch.randint(0, 256, (4, 1, 300)).expand(-1, 30, -1).to(torch.uint8)
        before = policy.decide.weight.detach().abs()
        policy.calibrate(still, wanted=6)
        assert torch.equal(policy.decide.weight.abs(), before)
        assert policy.rollout(still).sum(1).unique().item() == 1


def test_repeated_frames_are_dropped_at_the_start():
    torch.manual_seed(0)
    few = torch.randint(0, 256, (40, 5, 60), dtype=torch.uint8)
    # five pictures, each six times: no threshold picks more than five and fewer than thirty
    repeated = few.repeat_interleave(6, 1)
    policy = Policy(60, 32).calibrate(repeated, wanted=6.5)
    new = (torch.arange(30) % 6 == 0).expand(40, -1)
    assert torch.equal(policy.rollout(repeated), new)
    assert policy.probabilities(repeated, new)[~new].max() < 0.05


def test_extreme_weights_give_no_nan():
    policy, glances = make()
    with torch.no_grad():
        policy.decide.weight.mul_(1e6)
    tried = policy.explore(glances, 2)
    (tried.log_probability.sum() + tried.entropy.sum()).backward()
    assert tried.log_probability.isfinite().all() and tried.entropy.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in policy.parameters())


def test_autocast_on_a_cpu_changes_nothing():
    policy, glances = make()
    noise = torch.rand(1, 3, 9)
    plain = policy.explore(glances, noise=noise)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = policy.explore(glances, noise=noise)
    assert_close(plain.log_probability, mixed.log_probability, atol=0.05, rtol=0.02)


def test_same_seed_same_picks():
    policy, glances = make()
    torch.manual_seed(5)
    first = policy.rollout(glances, "sample")
    torch.manual_seed(5)
    assert torch.equal(first, policy.rollout(glances, "sample"))


def test_wrong_word_is_refused():
    policy, glances = make()
    with pytest.raises(ValueError, match="sample"):
        policy.rollout(glances, "argmax")


@needs_cuda
@pytest.mark.parametrize("clock", [False, True])
def test_cuda_equals_cpu(clock):
    policy, glances = make(clips=32, frames=30, dims=3136, hidden=64, wanted=6, clock=clock)
    noise = torch.rand(2, 32, 30)
    here = policy.explore(glances, noise=noise)
    policy.cuda()
    there = policy.explore(glances.cuda(), noise=noise.cuda())
    assert (here.sampled == there.sampled.cpu()).float().mean() > 0.999
    assert_close(
        policy.log_probability(glances.cuda(), here.sampled.cuda()).cpu(),
        here.log_probability,
        atol=1e-2,
        rtol=1e-3,
    )


@needs_cuda
@pytest.mark.parametrize("clock", [False, True])
def test_half_precision_on_cuda_is_close(clock):
    policy, glances = make(clips=32, frames=30, dims=3136, hidden=64, wanted=6, clock=clock)
    policy, glances = policy.cuda(), glances.cuda()
    picks = policy.rollout(glances, "sample")
    full = policy.log_probability(glances, picks)
    gradients = torch.autograd.grad(full.sum(), list(policy.parameters()))
    with torch.autocast("cuda", torch.bfloat16):
        half = policy.log_probability(glances, picks)
        table = pair_logits(policy, project(policy, glances))
    assert half.dtype == torch.float32
    assert_close(half, full, atol=0.1, rtol=0.02)
    assert_close(table, pair_logits(policy, project(policy, glances)), atol=0.1, rtol=0.02)
    for quick, exact in zip(torch.autograd.grad(half.sum(), list(policy.parameters())), gradients):
        assert (quick - exact).norm() < 0.03 * exact.norm()


@needs_cuda
def test_exploring_can_be_captured_and_never_waits():
    policy, glances = make(clips=16, frames=30, dims=3136, hidden=64, wanted=6)
    policy, glances = policy.cuda(), glances.cuda()

    def step():
        policy.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            tried = policy.explore(glances, 2)
        tried.log_probability.sum().backward()
        return tried

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tried = step()
    graph.replay()
    first = tried.sampled.clone()
    graph.replay()
    assert not torch.equal(first, tried.sampled)  # each replay draws its own random numbers
    assert_close(
        policy.log_probability(glances, tried.sampled), tried.log_probability, atol=0.1, rtol=0.02
    )
