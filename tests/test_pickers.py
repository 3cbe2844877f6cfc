"""Pickers beyond their notebook: random sizes, k-means against scikit-learn, equal frames,
names."""
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies
from torch.testing import assert_close

from picknet_nb.core.files import PickNetError
from picknet_nb.core.registry import MODULES
from picknet_nb.method.fast_kmeans import (
    centre_distances, frame_distances, greedy_start, kmeans_shares)
from picknet_nb.method.pickers import (
    PICKERS, Clips, PickerError, all_frames, kmeans, learned, make_picker, parse_label, picks_at,
    random_k, random_p, uniform)
from picknet_nb.method.policy import Policy


def make(clips=3, frames=30, dims=6, seed=0):
    torch.manual_seed(seed)
    return Clips(
        torch.randn(clips, frames, dims).half(),
        torch.randint(0, 256, (clips, frames, 9), dtype=torch.uint8),
    )


@settings(max_examples=60, deadline=None)
@given(
    strategies.integers(0, 3),
    strategies.integers(1, 35),
    strategies.integers(1, 40),
    strategies.integers(0, 1000),
    strategies.booleans(),
)
def test_exactly_k_different_frames_and_the_first(clips, frames, k, seed, equal):
    some = make(clips, frames, seed=seed)
    if equal:
        some = Clips(some.features[:, :1].expand(-1, frames, -1), some.glances)
    for picker in (uniform(k), random_k(k), kmeans(k)):
        picks = picker(some)
        assert picks.dtype == torch.bool and picks.shape == (clips, frames)
        assert (picks.sum(1) == min(k, frames)).all() and picks[:, 0].all()


def test_all_and_coins():
    some = make()
    assert all_frames()(some).all()
    assert random_p(0.0)(some).sum().item() == 3 and random_p(1.0)(some).all()
    assert abs(random_p(0.3)(make(400)).float().mean().item() - (1 + 29 * 0.3) / 30) < 0.02


@pytest.mark.parametrize("k", [1, 2, 6, 30])
def test_kmeans_against_scikit_learn(k):
    cluster = pytest.importorskip("sklearn.cluster")
    features = torch.randn(5, 30, 12, generator=torch.Generator().manual_seed(k)).cumsum(1)
    distances = frame_distances(features)
    inertia = centre_distances(distances, kmeans_shares(distances, k)).amin(-1).sum(1)
    start = (greedy_start(distances, k) @ features).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [
            cluster.KMeans(k, init=begin, n_init=1, tol=0).fit(points).inertia_
            for points, begin in zip(features.numpy(), start)
        ]
        ten = [
            cluster.KMeans(k, n_init=10, random_state=0).fit(points).inertia_
            for points in features.numpy()
        ]
    assert_close(inertia, torch.tensor(expected, dtype=torch.float32), rtol=1e-3, atol=1e-2)
    assert inertia.sum() <= 1.15 * sum(ten) + 0.1


def test_kmeans_is_deterministic_and_independent_of_the_batch():
    some = make(6)
    picks = kmeans(5)(some)
    assert torch.equal(picks, kmeans(5)(some))
    assert torch.equal(picks[2:3], kmeans(5)(Clips(*(tensor[2:3] for tensor in some))))


def test_kmeans_finds_the_scenes():
    scenes = torch.eye(4)[torch.tensor([0] * 8 + [1] * 8 + [2] * 8 + [3] * 6)] * 10
    some = Clips((scenes + 0.01 * torch.randn(2, 30, 4)), make(2).glances)
    picks = kmeans(4)(some)
    for begin, end in ((0, 8), (8, 16), (16, 24), (24, 30)):
        assert (picks[:, begin:end].sum(1) == 1).all()


def test_learned_is_the_policys_argmax():
    some = make()
    policy = Policy(9, 4)
    assert torch.equal(learned(policy)(some), policy.rollout(some.glances))
    assert learned(policy, threshold=0.0)(some).all()


@pytest.mark.parametrize(
    "name, number, count",
    [
        ("all", None, 30),
        ("uniform", 6, 6),
        ("random", 6, 6),
        ("kmeans", 6, 6),
        ("chance", 1.0, 30),
        ("chance", 0, 1),
    ],
)
def test_names_and_numbers(name, number, count):
    picker = make_picker(name, number)
    assert (picker(make()).sum(1) == count).all()
    assert parse_label(picker.label) == (name, picker.number) and picker.most == (
        number if isinstance(picker.number, int) else None
    )


@pytest.mark.parametrize(
    "what",
    [
        ("",),
        ("best", 6),
        ("uniform",),
        ("uniform", "x"),
        ("kmeans", 0),
        ("random", -1),
        ("chance", 1.5),
        ("chance", float("nan")),
        ("all", 3),
        ("uniform", 2.5),
        ("uniform", True),
        ("learned",),
    ],
)
def test_what_cannot_be_picked_with_is_refused_in_one_sentence(what):
    with pytest.raises(PickNetError) as caught:
        make_picker(*what)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_label_is_a_name_and_a_number():
    assert parse_label("chance-0.5") == ("chance", 0.5) and parse_label("random-6") == ("random", 6)
    assert (
        parse_label("learned") == ("learned", None)
        and parse_label("my-picker") == ("my-picker", None)
        and parse_label("my-picker-3") == ("my-picker", 3)
    )


def test_picknet_goes_through_the_same_call():
    some, policy = make(), Policy(9, 4)
    picker = make_picker("learned", policy=policy, threshold=0.3)
    picks = picker(some)
    assert (
        torch.equal(picks, policy.rollout(some.glances, threshold=0.3))
        and picker.looks_at == "glances"
        and picker.causal
        and not picker.random
    )
    assert torch.equal(picker.probabilities(some, picks), policy.probabilities(some.glances, picks))
    assert torch.equal(make_picker("uniform", 3).probabilities(some, picks), picks.float())


def test_a_picker_of_ones_own_keeps_the_rules(monkeypatch):
    monkeypatch.setitem(
        PICKERS,
        "last",
        lambda: (
            lambda clips: (
                picks_at(torch.tensor([clips.features.shape[1] - 1]), clips)
                & (torch.arange(30) > 0)
            )
        ),
    )
    monkeypatch.setitem(PICKERS, "wrong", lambda: lambda clips: torch.ones(2, 2))
    picks = make_picker("last")(make())
    # the first frame is picked whatever it says
    assert picks[:, 0].all() and picks[:, -1].all() and (picks.sum(1) == 2).all()
    with pytest.raises(
        PickerError, match="wrong must give torch.bool .3, 30., not torch.float32 .2, 2."
    ):
        make_picker("wrong")(make())


def test_a_picker_that_is_not_forced_may_skip_the_first_frame():
    last = lambda clips: torch.arange(clips.glances.shape[1]).expand(clips.glances.shape[:2]) == 29
    PICKERS.add("last", looks_at="nothing", random=False, forced=False)(last)
    try:
        assert make_picker("last")(make()).nonzero()[:, 1].tolist() == [29, 29, 29]
    finally:
        del PICKERS["last"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_without_waiting():
    some = make(8)
    there = Clips(*(tensor.cuda() for tensor in some))
    pickers = [all_frames(), uniform(6), random_k(6), random_p(0.5), kmeans(6)]
    for picker in pickers:
        picker(there)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [picker(there) for picker in pickers]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(results[1].cpu(), uniform(6)(some))
    assert (results[-1].sum(1) == 6).all()


def test_an_answer_that_is_no_tensor_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(PICKERS, "three", lambda: lambda clips: 3)
    with pytest.raises(PickerError, match="three must give torch.bool .*, not int"):
        make_picker("three")(make())


@pytest.mark.parametrize("label", ["uniform-²", "uniform-٣", "random-0.²"])
def test_digits_that_are_no_numbers_are_part_of_a_name(label):
    assert parse_label(label) == (label, None)
    with pytest.raises(PickNetError, match=f"no picker '{label}'"):
        make_picker(*parse_label(label))


def test_a_function_that_fails_is_named_with_its_line(monkeypatch):
    monkeypatch.setitem(MODULES, "mine", SimpleNamespace(pick=lambda clips: clips.nothing))
    try:
        with pytest.raises(PickerError, match=(
                r"mine:pick raised AttributeError \(test_pickers\.py, line \d+\): .*nothing")):
            make_picker("mine:pick")(make())
    finally:
        PICKERS.pop("mine:pick", None)
