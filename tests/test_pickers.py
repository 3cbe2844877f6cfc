"""Pickers beyond their notebook: random sizes, k-means against scikit-learn, equal frames, names."""
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies
from torch.testing import assert_close

from picknet_nb.pickers import (Clips, PickerError, all_frames, centre_distances, frame_distances, greedy_start, kmeans, kmeans_shares, learned,
                                make_picker, random_k, random_p, uniform)
from picknet_nb.policy import Policy


def make(clips=3, frames=30, dims=6, seed=0):
    torch.manual_seed(seed)
    return Clips(torch.randn(clips, frames, dims).half(), torch.randint(0, 256, (clips, frames, 9), dtype=torch.uint8))


@settings(max_examples=60, deadline=None)
@given(strategies.integers(0, 3), strategies.integers(1, 35), strategies.integers(1, 40), strategies.integers(0, 1000), strategies.booleans())
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
        expected = [cluster.KMeans(k, init=begin, n_init=1, tol=0).fit(points).inertia_ for points, begin in zip(features.numpy(), start)]
        ten = [cluster.KMeans(k, n_init=10, random_state=0).fit(points).inertia_ for points in features.numpy()]
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


@pytest.mark.parametrize("name, count", [("all", 30), ("uniform-6", 6), ("random-6", 6), ("kmeans-6", 6), ("random-1.0", 30), ("random-0.0", 1)])
def test_names(name, count):
    assert (make_picker(name)(make()).sum(1) == count).all()


@pytest.mark.parametrize("name", ["", "best", "uniform", "uniform-", "uniform-x", "kmeans-0", "random--1", "random-1.5", "random-nan", "all-3", "uniform-2.5"])
def test_wrong_names_are_refused_in_one_sentence(name):
    with pytest.raises(PickerError) as caught:
        make_picker(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 120


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
