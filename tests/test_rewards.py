"""The reward of picked frames: equation by equation, at its edges, and as training calls it."""
from __future__ import annotations

import json

import pytest
import torch
from test_training import noise_corpus

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.text import PAD, SPECIALS, Vocabulary
from picknet_nb.method.cider import Cider
from picknet_nb.method.recipes import recipes
from picknet_nb.method.rewards import (
    REWARDS, REWARD_WEIGHTS, Reward, diversity_reward, limits_at, measure_diversity, reward_for,
    reward_from, within_limits)
from picknet_nb.method.stages import Environment, Model
from picknet_nb.training.train import train


def at_most(counts: list[int], frames: int = 30) -> torch.Tensor:
    "Picks of the first so many frames of each clip."
    return torch.arange(frames)[None] < torch.tensor(counts)[:, None]


@pytest.fixture
def corpus() -> Corpus:
    torch.manual_seed(0)
    captions = [
        ["a man sings", "a man is singing"],
        ["a dog runs", "the dog is running"],
        ["a cat sleeps"],
        ["a cow eats"],
    ]
    splits = {
        "train": torch.tensor([0, 1]),
        "validation": torch.tensor([2]),
        "test": torch.tensor([3]),
    }
    return Corpus.build(
        "four",
        list("abcd"),
        torch.rand(4, 30, 16).half(),
        torch.zeros(4, 30, 9, dtype=torch.uint8),
        captions,
        splits,
        preset("smoke").clip,
        {},
    )


def test_diversity_is_the_sum_of_standard_deviations():
    torch.manual_seed(1)
    features, picks = 50 + torch.randn(16, 30, 64), torch.rand(16, 30) < 0.3
    picks[:, 0] = True
    expected = torch.stack(
        [clip[chosen].std(0, correction=0).sum() for clip, chosen in zip(features, picks)]
    )
    torch.testing.assert_close(diversity_reward(features, picks), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("counts, frames", [([0], 30), ([1], 30), ([1], 1), ([30], 30)])
def test_diversity_has_no_nan(counts, frames):
    for features in (
        torch.randn(1, frames, 8),
        torch.ones(1, frames, 8),
        torch.zeros(1, frames, 8),
    ):
        reward = diversity_reward(features, at_most(counts, frames))
        assert reward.isfinite().all() and reward >= 0
        assert reward == 0 or counts == [30]


def test_equal_frames_earn_exactly_nothing():
    features = (1000 * torch.rand(5, 1, 2048)).half().expand(5, 30, 2048)
    assert (diversity_reward(features, at_most([1, 2, 3, 7, 30])) == 0).all()


def test_half_precision_does_not_overflow():
    features = torch.full((1, 30, 64), 60000.0).half()
    features[:, ::2] *= -1
    torch.testing.assert_close(
        diversity_reward(features, at_most([30])), torch.tensor([64 * 60000.0]), rtol=1e-3, atol=0
    )


def test_rewards_are_single_precision_without_gradient_under_autocast():
    features = torch.randn(4, 30, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = diversity_reward(features, at_most([3] * 4))
    assert inside.dtype == torch.float32 and not inside.requires_grad
    torch.testing.assert_close(inside, diversity_reward(features, at_most([3] * 4)))


def test_limits_shrink_on_a_line():
    config = preset("paper", first_max_picks=10, final_max_picks=6, shrink_epochs=8).policy
    assert [limits_at(epoch, config) for epoch in range(10)] == [10, 10, 9, 9, 8, 8, 7, 7, 6, 6]
    assert limits_at(0, preset("paper", shrink_epochs=0).policy) == 7


def test_limits_include_their_ends():
    picks = at_most([0, 2, 3, 7, 8, 30])
    for limit in (7, torch.tensor(7)):
        assert within_limits(picks, 3, limit).tolist() == [False, False, True, True, False, False]


def test_total_is_the_weighted_sum_or_the_penalty(corpus):
    config = preset("paper", language_weight=0.5, diversity_weight=2.0, penalty=-3.0).policy
    reward = reward_for(config, corpus)
    words = corpus.vocabulary.encode(["a man sings", "a man sings", "a dog", "a dog"], 8)
    earned = reward(
        words, torch.tensor([0, 0, 1, 1]), corpus.features[[0, 0, 1, 1]], at_most([2, 3, 7, 8]), 7
    )
    assert earned.inside.tolist() == [False, True, True, False]
    assert earned.total[[0, 3]].tolist() == [-3.0, -3.0]
    torch.testing.assert_close(
        earned.total[1:3], 0.5 * earned.language[1:3] + 2 * earned.diversity[1:3]
    )


def test_the_three_settings(corpus):
    words, videos = corpus.vocabulary.encode(["a man sings"] * 2, 8), torch.tensor([0, 1])
    ask = lambda name: reward_for(preset("paper", **REWARD_WEIGHTS[name]).policy, corpus)(
        words, videos, corpus.features[:2], at_most([4, 5]), 7
    )
    visual, language, both = ask("V"), ask("L"), ask("V+L")
    assert torch.equal(visual.total, visual.diversity) and torch.equal(
        language.total, language.language
    )
    torch.testing.assert_close(both.total, visual.total + language.total)


def test_diversity_alone_needs_no_captions(corpus):
    reward = Reward(preset("paper", **REWARD_WEIGHTS["V"]).policy, None)
    earned = reward(None, torch.arange(4), corpus.features, at_most([5] * 4), 7)
    assert torch.equal(earned.total, earned.diversity) and (earned.language == 0).all()


def test_reward_uses_the_training_clips_only(corpus):
    config = preset("paper").policy
    reward = reward_for(config, corpus)
    references = [[caption.split() for caption in captions or [""]] for captions in corpus.captions]
    expected = Cider(references, corpus.vocabulary, documents=[0, 1], eos=True)
    words = corpus.vocabulary.encode(["a man sings"] * 4, 8)
    assert torch.equal(reward.cider(words, torch.arange(4)), expected(words, torch.arange(4)))
    assert reward.diversity_scale == measure_diversity(corpus.features[:2], config)
    corpus.features[2:] *= 9
    assert reward_for(config, corpus).diversity_scale == reward.diversity_scale


def test_unit_of_diversity():
    torch.manual_seed(2)
    features, config = torch.randn(100, 30, 32), preset("paper").policy
    unit = measure_diversity(features, config)
    assert unit == measure_diversity(features, config) and unit != measure_diversity(
        features, config, seed=1
    )
    assert measure_diversity(3 * features, config) == pytest.approx(3 * unit, rel=1e-5)
    assert measure_diversity(torch.ones(4, 30, 8), config) == 1.0


def test_every_allowed_set_of_frames_beats_the_penalty(corpus):
    config = preset("paper").policy
    torch.manual_seed(3)
    picks = torch.rand(200, 30) < torch.rand(200, 1)
    videos = torch.randint(0, 4, (200,))
    words = torch.randint(0, len(corpus.vocabulary), (200, 8))
    earned = reward_for(config, corpus)(words, videos, corpus.features[videos], picks, 10)
    assert earned.total.isfinite().all() and earned.inside.any() and not earned.inside.all()
    assert earned.total[earned.inside].min() >= 0 > config.penalty


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_with_a_moving_limit(corpus):
    from picknet_nb.core.gpu import Captured

    corpus = corpus.to("cuda")
    reward = reward_for(preset("paper").policy, corpus)
    videos = torch.arange(4, device="cuda")
    limit = torch.tensor(10, device="cuda")
    words = corpus.vocabulary.encode(["a man sings"] * 4, 8).cuda()
    picks = at_most([2, 5, 8, 11]).cuda()
    step = Captured(
        lambda *inputs: tuple(reward(*inputs)), words, videos, corpus.features, picks, limit
    )
    for most in (10, 7):
        torch.testing.assert_close(
            step(words, videos, corpus.features, picks, torch.tensor(most, device="cuda"))[0],
            reward(words, videos, corpus.features, picks, most).total,
        )


def test_vocabulary_of_another_corpus_is_scored_by_its_own_words():
    vocabulary = Vocabulary(SPECIALS + ("dog", "a"))
    cider = Cider([[["a", "dog"]], [["a", "cat"]]], vocabulary)
    assert cider(vocabulary.encode(["a dog"], 4), torch.tensor([0])).item() == pytest.approx(
        10 * 2 / 4, abs=1e-5
    )


def test_a_reward_of_your_own_is_found_by_name_and_keeps_to_the_limits(tmp_path, monkeypatch):
    monkeypatch.setitem(
        REWARDS, "thrifty", reward_from(lambda words, videos, features, picks: -picks.sum(1))
    )
    brief = preset("smoke", reward="thrifty", supervision_epochs=1, reinforcement_epochs=2)
    train(tmp_path/"run", noise_corpus(), brief, recipes()["PickNet (V+L)"], bars=False)
    log = [json.loads(line) for line in (tmp_path/"run"/"log.jsonl").read_text().splitlines()]
    earned = [entry["reward"] for entry in log if entry["stage"] == "reinforcement"]
    # three picks or more cost three or more, and fewer the penalty
    assert len(earned) == 2 and max(earned) <= -1
    with pytest.raises(PickNetError, match="no reward 'thirfty': did you mean thrifty?"):
        train(
            tmp_path/"other",
            noise_corpus(),
            brief.changed(reward="thirfty"),
            recipes()["PickNet (V+L)"],
            bars=False,
        )


def test_a_reward_of_your_own_gets_words_whatever_counts_and_the_corpus_if_it_asks(monkeypatch):
    corpus, seen = noise_corpus(), []

    def wordy(words, clips, features, picks, corpus):
        seen.append(words), seen.append(corpus)
        return (words != PAD).sum(1)

    def silent(words, clips, features, picks):
        seen.append(words)
        return picks.sum(1)

    silent.needs_words = False
    videos, picks = torch.arange(4), torch.zeros(4, 30, dtype=torch.bool)
    picks[:, :4] = True
    for earned, language in ((wordy, 0.0), (silent, 1.0)):
        monkeypatch.setitem(REWARDS, "own", reward_from(earned))
        config = preset("smoke", reward="own", language_weight=language)
        captioner = Model.for_corpus(config, corpus).captioner
        reward = reward_for(config.policy, corpus)
        found = Environment(captioner, corpus, config, reward).earned(picks, videos, 7)
        assert found.inside.all()
        if earned is silent:
            assert seen == [None] and found.total.tolist() == [4] * 4
        else:
            assert seen[0].shape == (4, corpus.settings.max_words) and seen[1] is corpus
            assert torch.equal(found.total, (seen[0] != PAD).sum(1).float())
        seen.clear()
