"""What each stage does with its settings: a test for every fault in tools/mutants.py, and for
the contract that all captioners share."""
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import Ranks, noise_corpus
from reliability import run_process
from safetensors.torch import load_file

from picknet_nb.core import processes
from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.method import stages
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method import extras
from picknet_nb.method.extras import ExtendedSupervision
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.policy import Rollouts
from picknet_nb.method.recipes import Recipe, recipes
from picknet_nb.method.rewards import REWARD_WEIGHTS, Earned, cider_for, reward_for
from picknet_nb.method.stages import (
    Adaptation, Environment, Model, Reinforcement, Supervision, feedback_at, frame_choice)
from picknet_nb.training import loop as training, train as trained
from picknet_nb.training.batches import TrainingError
from picknet_nb.training.runs import RunError, read_about, read_recipe, read_settings
from picknet_nb.training.train import build_stage, stages_of, train

HERE = Path(__file__).parent
BOTH = recipes()["PickNet (V+L)"]


def fresh(config, corpus) -> Model:
    torch.manual_seed(0)
    return Model.for_corpus(config, corpus)


def seeded(function, *arguments):
    "What a function gives with the same random numbers each time."
    torch.manual_seed(1)
    return function(*arguments)


def counting_rewards(stage: Reinforcement) -> None:
    "Reward picks by their number: a reward that is known without a caption."
    def rewards_of(picks, videos):
        count = picks.sum(1).float()
        return Earned(count, count, count, count > 0)
    stage.rewards_of = rewards_of


def test_an_entropy_reward_makes_the_policy_less_certain(corpus):
    config = preset(
        "smoke",
        entropy_weight=1.0,
        rollouts=2,
        baseline="others",
        min_picks=30,
        final_max_picks=30,
        first_max_picks=30,
    )
    model = fresh(config, corpus)
    model.policy.calibrate(corpus.glances, wanted=6)
    stage = Reinforcement(model, corpus, config, reward_for(config.policy, corpus))
    videos = corpus.splits["train"]
    loss, before = seeded(stage, videos)
    assert before["inside"] == 0  # all are penalised alike, so nothing but the entropy pulls
    loss.backward()
    with torch.no_grad():
        for weight in model.policy.parameters():
            weight -= 1e-3 * weight.grad / weight.grad.norm()
    assert seeded(stage, videos)[1]["entropy"] > before["entropy"]


def test_the_self_critical_baseline_is_the_reward_of_the_greedy_picks(corpus):
    config = preset("smoke", baseline="greedy", rollouts=3, entropy_weight=0.0)
    model = fresh(config, corpus)
    model.policy.calibrate(corpus.glances, wanted=6)
    stage, videos = Reinforcement(model, corpus, config, None), corpus.splits["train"]
    counting_rewards(stage)
    loss, measures = seeded(stage, videos)
    tried = seeded(model.policy.explore, corpus.glances[videos], 3)
    sampled = tried.sampled.sum(-1).float()
    greedy = model.policy.rollout(corpus.glances[videos]).sum(-1).float()
    assert (sampled != greedy).any()
    torch.testing.assert_close(loss, -((sampled - greedy) * tried.log_probability).mean())
    torch.testing.assert_close(measures["baseline"], greedy.mean())


def test_the_mean_of_the_others_leaves_a_sample_out(corpus):
    config = preset("smoke", baseline="others", rollouts=3, entropy_weight=0.0)
    model = fresh(config, corpus)
    stage, videos = Reinforcement(model, corpus, config, None), corpus.splits["train"]
    counting_rewards(stage)
    loss, _ = seeded(stage, videos)
    tried = seeded(model.policy.explore, corpus.glances[videos], 3)
    counts = tried.sampled.sum(-1).float()
    others = torch.stack([counts[[1, 2]].mean(0), counts[[0, 2]].mean(0), counts[[0, 1]].mean(0)])
    torch.testing.assert_close(loss, -((counts - others) * tried.log_probability).mean())


def test_reward_weights_reach_the_reward(corpus):
    model = fresh(preset("smoke"), corpus)
    picks = torch.zeros(4, 30, dtype=torch.bool)
    picks[:, [0, 5, 9, 20]] = True
    videos = corpus.splits["train"][:4]
    for language, diversity in ((1.0, 0.0), (0.0, 1.0), (0.5, 2.0)):
        config = preset("smoke", language_weight=language, diversity_weight=diversity)
        earned = Reinforcement(model, corpus, config, reward_for(config.policy, corpus)).rewards_of(
            picks, videos
        )
        torch.testing.assert_close(
            earned.total, language * earned.language + diversity * earned.diversity
        )
        assert (earned.diversity > 0).all()


def test_scheduled_sampling_grows_as_the_settings_say(corpus):
    config = preset("smoke", feedback_step=0.1, feedback_every=2, dropout=0.0)
    assert [round(feedback_at(epoch, config), 2) for epoch in range(10)] == [
        0,
        0,
        0.1,
        0.1,
        0.2,
        0.2,
        0.25,
        0.25,
        0.25,
        0.25,
    ]
    stage = Supervision(
        fresh(config, corpus), corpus, config, frame_choice(make_picker("all"), corpus)
    )
    captions, losses = corpus.pairs("train")[:20], {}
    for epoch in (0, 9):
        stage.start_epoch(epoch)
        losses[epoch] = seeded(stage, captions)[0]
    assert losses[0] != losses[9]  # some of the words that were fed are the model's own
    later = Supervision(
        fresh(config, corpus),
        corpus,
        config,
        frame_choice(make_picker("all"), corpus),
        first_epoch=6,
    )
    later.start_epoch(0)
    assert later.feedback == pytest.approx(0.25)


def test_stage_three_keeps_the_limit_that_stage_two_ended_with(corpus):
    config = preset("smoke", first_max_picks=10, final_max_picks=6, shrink_epochs=4)
    stage = Adaptation(fresh(config, corpus), corpus, config, reward_for(config.policy, corpus))
    for epoch in (0, 1, 5):
        stage.start_epoch(epoch)
        assert stage.reinforcement.max_picks == 6
    second = Reinforcement(fresh(config, corpus), corpus, config, None)
    second.start_epoch(0)
    assert second.max_picks == 10


def test_stage_three_feeds_the_decoder_its_own_words_as_often_as_stage_one_did_in_the_end(corpus):
    config = preset("smoke", supervision_epochs=6, feedback_step=0.05, feedback_every=2)
    stage = Adaptation(fresh(config, corpus), corpus, config, reward_for(config.policy, corpus))
    for epoch, expected in ((0, 0.15), (1, 0.15), (2, 0.2), (9, 0.25)):
        stage.start_epoch(epoch)
        assert stage.supervision.feedback.item() == pytest.approx(expected)
    first = Supervision(
        fresh(config, corpus), corpus, config, frame_choice(make_picker("all"), corpus)
    )
    first.start_epoch(0)
    assert first.feedback.item() == 0


def test_stage_three_goes_on_with_the_feedback_that_stage_one_ended_with(corpus):
    config = preset("smoke", supervision_epochs=6, feedback_step=0.05, feedback_every=2)
    stage = Adaptation(fresh(config, corpus), corpus, config, reward_for(config.policy, corpus))
    for epoch in (0, 4):
        stage.start_epoch(epoch)
        assert (
            stage.supervision.feedback == pytest.approx(feedback_at(6 + epoch, config))
            and stage.supervision.feedback > 0
        )


def test_stage_three_teaches_the_captioner_on_sampled_picks(corpus):
    config = preset("smoke", rollouts=2)
    model = fresh(config, corpus)
    stage = Adaptation(model, corpus, config, reward_for(config.policy, corpus))
    sampled = torch.zeros(2, 4, 30, dtype=torch.bool)
    sampled[0, :, :5], sampled[1, :, :3] = True, True
    greedy = torch.ones(4, 30, dtype=torch.bool)
    model.policy.explore = lambda glances, rollouts: Rollouts(
        sampled, greedy, torch.zeros(2, 4, requires_grad=True), torch.zeros(2, 4)
    )
    seen, plain = [], stage.supervision.choose
    stage.supervision.choose = lambda videos: seen.append(plain(videos)) or seen[-1]
    stage(corpus.pairs("train")[:20])
    assert torch.equal(seen[0], sampled[0])


def test_stage_one_sees_as_many_random_frames_as_the_settings_say(corpus, tmp_path, monkeypatch):
    counts, plain = [], stages.pick_frames

    def noted(features, picks, most=None):
        if torch.is_grad_enabled():
            counts.append(picks.sum(1))  # in training, not in validation
        return plain(features, picks, most)

    monkeypatch.setattr(stages, "pick_frames", noted)
    for wanted in (3, 0):
        counts.clear()
        train(
            tmp_path/f"{wanted}",
            corpus,
            preset("smoke", supervision_epochs=1, supervision_picks=wanted),
            recipes()["Baseline"],
            bars=False,
        )
        assert torch.cat(counts).unique().tolist() == [wanted or 30]


def test_rewarded_words_have_nine_tenths_of_the_loss(corpus, monkeypatch):
    losses, config = {}, preset("smoke", word_epochs=1)
    for share in (extras.CRITICAL_SHARE, 0.0, 1.0):
        monkeypatch.setattr(extras, "CRITICAL_SHARE", share)
        stage = ExtendedSupervision(
            fresh(config, corpus),
            corpus,
            config,
            frame_choice(make_picker("all"), corpus),
            cider=cider_for(corpus),
        )
        losses[share] = seeded(stage, corpus.pairs("train")[:20])[0]
    assert losses[0.0] != losses[1.0]
    torch.testing.assert_close(losses[0.9], 0.1 * losses[0.0] + 0.9 * losses[1.0])


def test_consensus_and_label_smoothing_reach_the_loss(corpus):
    losses = set()
    for changes in ({}, {"consensus": 1.0}, {"label_smoothing": 0.1}):
        config = preset("smoke", **changes)
        stage = ExtendedSupervision(
            fresh(config, corpus), corpus, config, frame_choice(make_picker("all"), corpus)
        )
        losses.add(seeded(stage, corpus.pairs("train")[:20])[0].item())
    assert len(losses) == 3


def test_each_stage_learns_at_its_own_rate(corpus, tmp_path, monkeypatch):
    rates, plain = [], training.make_adam
    monkeypatch.setattr(
        training,
        "make_adam",
        lambda parameters, rate: rates.append(rate) or plain(parameters, rate),
    )
    config = preset(
        "smoke",
        supervision_epochs=1,
        word_epochs=1,
        reinforcement_epochs=1,
        adaptation_epochs=1,
        supervision_rate=1e-3,
        reinforcement_rate=2e-3,
        adaptation_rate=3e-3,
    )
    train(tmp_path/"learned", corpus, config, BOTH, bars=False)
    train(tmp_path/"uniform", corpus, config, recipes()["Uniform"], bars=False)
    assert rates == [1e-3, 3e-3, 2e-3, 3e-3] + [1e-3, 3e-3, 3e-3]


def test_the_policy_is_not_averaged_in_stage_two(corpus, tmp_path):
    config = preset(
        "smoke", supervision_epochs=1, reinforcement_epochs=2, adaptation_epochs=0, keep="last"
    )
    train(tmp_path/"first", corpus, config, recipes()["Baseline"], bars=False)
    for decay in (0.0, 0.9):
        train(
            tmp_path/f"{decay}",
            corpus,
            config.changed(average_weights=decay),
            BOTH,
            start=tmp_path/"first"/"weights.safetensors",
            bars=False,
        )
    plain, averaged = (
        load_file(tmp_path/f"{decay}"/"weights.safetensors") for decay in (0.0, 0.9)
    )
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def test_the_captioner_is_averaged_in_stage_one(corpus, tmp_path):
    for decay in (0.0, 0.9):
        train(
            tmp_path/f"{decay}",
            corpus,
            preset("smoke", supervision_epochs=2, keep="last", average_weights=decay),
            recipes()["Baseline"],
            bars=False,
        )
    plain, averaged = (
        load_file(tmp_path/f"{decay}"/"weights.safetensors") for decay in (0.0, 0.9)
    )
    assert not torch.equal(
        plain["captioner.decoder.output.weight"], averaged["captioner.decoder.output.weight"]
    )


def test_validation_uses_the_threshold(corpus):
    counts = {}
    for threshold in (0.0, 1.0):
        config = preset("smoke", threshold=threshold)
        model = fresh(config, corpus)
        _, validate = build_stage(
            stages_of(BOTH, config)[-1], model, corpus, config, reward_for(config.policy, corpus)
        )
        counts[threshold] = validate(model)["picks"]
    assert counts == {0.0: 30.0, 1.0: 1.0}


def test_validation_penalises_clips_outside_the_limits_where_picks_are_learned(corpus):
    config = preset("smoke", threshold=1.0, penalty=-7.0)  # the forced first frame alone: too few
    model, found = fresh(config, corpus), {}
    for plan in stages_of(BOTH, config):
        reward = reward_for(config.policy, corpus)
        _, validate = build_stage(plan, model, corpus, config, reward)
        found[plan.name] = validate(model)
    for name in ("reinforcement", "adaptation"):
        assert found[name]["inside"] == 0 and found[name]["score"] == -7.0 < found[name]["CIDEr"]
    # all frames are more than a policy may pick, and nobody has chosen them
    assert found["supervision"]["inside"] == 0
    assert found["supervision"]["score"] == found["supervision"]["CIDEr"]


def test_settings_of_a_clip_come_from_the_corpus(corpus, tmp_path):
    train(
        tmp_path/"run",
        corpus,
        preset("smoke", supervision_epochs=0, max_words=7, cnn="resnet50"),
        recipes()["Baseline"],
        bars=False,
    )
    from picknet_nb.training.runs import load_run

    assert load_run(tmp_path/"run")[1].clip == corpus.settings


def test_mentions_need_a_captioner_that_has_them(corpus, tmp_path, monkeypatch):
    from test_captioner import Attentive

    monkeypatch.setitem(CAPTIONERS, "attentive", Attentive)
    with pytest.raises(
        PickNetError, match="mention_weight has no effect on the captioner 'attentive'"
    ):
        train(
            tmp_path/"run",
            corpus,
            preset("smoke", architecture="attentive", mention_weight=0.5),
            recipes()["Baseline"],
            bars=False,
        )


def test_a_captioner_of_ones_own_is_trained_in_all_stages(corpus, tmp_path, monkeypatch):
    from test_captioner import Attentive

    monkeypatch.setitem(CAPTIONERS, "attentive", Attentive)
    config = preset(
        "smoke", supervision_epochs=2, word_epochs=1, reinforcement_epochs=1, adaptation_epochs=1
    )
    model = train(
        tmp_path/"run",
        corpus,
        config,
        Recipe(language=1.0, diversity=1.0, architecture="attentive"),
        bars=False,
    )
    assert isinstance(model.captioner, Attentive)
    from picknet_nb.training.runs import load_run

    loaded, settings, _, _ = load_run(tmp_path/"run")
    assert settings.captioner.architecture == "attentive" and isinstance(
        loaded.captioner, Attentive
    )
    monkeypatch.delitem(CAPTIONERS, "attentive")
    with pytest.raises(PickNetError, match="no captioner 'attentive'"):
        load_run(tmp_path/"run")


def test_an_extra_loss_is_learned_from(corpus, monkeypatch):
    from test_captioner import Attentive

    class Pulled(Attentive):
        "Also wants its vectors to be small."

        def extra_loss(self, memory, words):
            return memory["frames"].square().mean()

    monkeypatch.setitem(CAPTIONERS, "pulled", Pulled)
    config = preset("smoke", architecture="pulled")
    loss, measures = Supervision(
        fresh(config, corpus), corpus, config, frame_choice(make_picker("all"), corpus)
    )(corpus.pairs("train")[:20])
    torch.testing.assert_close(loss.detach(), measures["loss"] + measures["extra"])


def one_step(captions: torch.Tensor) -> torch.Tensor:
    "The captioner's weights after one step on these captions, without anything random in it."
    corpus, config = noise_corpus(), preset("smoke", dropout=0.0)
    model = fresh(config, corpus)
    step = training.Step(
        Supervision(model, corpus, config, frame_choice(make_picker("all"), corpus)),
        [model.captioner],
        1e-3,
        config,
    )
    step(captions)
    return torch.cat([weight.detach().flatten() for weight in model.captioner.parameters()])


def half_a_step(captions: torch.Tensor, folder: Path) -> None:
    with processes.joined("gloo"):
        rank = processes.rank_and_world()[0]
        torch.save(one_step(captions.chunk(2)[rank]), folder/f"{rank}.pt")


def test_two_processes_with_half_of_a_batch_each_make_the_step_of_the_whole_batch(corpus, tmp_path):
    captions = corpus.pairs("train")[:40]
    assert (processes := Ranks(half_a_step, captions, tmp_path)).wait() == 0, processes.output()
    first, second = (torch.load(tmp_path/f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    # a step is 1e-3 for each weight, and where its gradient is next to nothing, rounding moves it
    # by a part of that
    close = {"rtol": 1e-4, "atol": 5e-5}
    torch.testing.assert_close(first, one_step(captions), **close)
    # as it would be if nothing were exchanged
    assert not torch.allclose(first, one_step(captions[:20]), **close)


APART = """
import sys; sys.path.insert(0, sys.argv[2])
import torch; torch.set_num_threads(1)
from conftest import Ranks, noise_corpus
from picknet_nb.core.settings import preset
from picknet_nb.core.processes import joined, rank_and_world
from picknet_nb.method.recipes import recipes
from picknet_nb.training.train import train
config = preset("smoke", hidden=16, word_embedding=16, feature_embedding=16, policy_hidden=16,
                supervision_epochs=2, word_epochs=1, reinforcement_epochs=2, adaptation_epochs=2,
                average_weights=0.5, clock=True, mention_weight=0.5)
with joined("gloo"):
    for row in ("PickNet (V+L)", "PickNet (V)", "Uniform"):
        model = train(f"{sys.argv[1]}/{row}", noise_corpus(videos=20), config, recipes()[row],
                      bars=False)
        mine = torch.cat([weight.flatten() for weight in model.state_dict().values()])
        all_of_them = [torch.empty_like(mine) for _ in range(rank_and_world()[1])]
        torch.distributed.all_gather(all_of_them, mine)
        assert rank_and_world()[1] == 2 and torch.equal(*all_of_them) and mine.isfinite().all(), row
    print("equal")
"""


def test_every_process_of_torchrun_ends_with_the_same_weights_after_all_stages(tmp_path):
    script = tmp_path/"apart.py"
    script.write_text(APART)
    done = run_process(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
            str(tmp_path/"runs"),
            str(HERE),
        ],
    )
    assert done.returncode == 0 and done.stdout.count("equal") == 2, done.stderr


def test_processes_that_have_not_joined_are_told_so(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match="they have not joined"):
        train(tmp_path/"run", corpus, preset("smoke"), recipes()["Baseline"], bars=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_are_exchanged_inside_the_captured_step(tmp_path, monkeypatch):
    """One process in a group of one: NCCL's exchange is captured and replayed like the rest of
    the step."""
    monkeypatch.setattr(processes, "rank_and_world", lambda: (0, 1))
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    exchanged, plain = [], torch.distributed.all_reduce
    try:
        corpus, config = noise_corpus().to("cuda"), preset("smoke")
        weights = {}
        # with two, the exchange runs; alone in its group, it adds nothing, and halving is undone
        for world in (1, 2):
            monkeypatch.setattr(processes, "rank_and_world", lambda: (0, world))
            monkeypatch.setattr(
                torch.distributed,
                "all_reduce",
                lambda flat: (exchanged.append(1), plain(flat), flat.mul_(2)),
            )
            model = fresh(config, corpus)
            step = training.Step(
                Supervision(model, corpus, config, frame_choice(make_picker("all"), corpus)),
                [model.captioner],
                1e-3,
                config,
            )
            torch.manual_seed(0)
            for _ in range(5):
                step(corpus.pairs("train")[:20])
            assert [each.graph is not None for each in step.graphs.values()] == [True]
            weights[world] = model.captioner.decoder.output.weight.detach().clone()
        assert exchanged
        torch.testing.assert_close(weights[1], weights[2], rtol=1e-4, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("rows", ["V", "L", "V+L"])
def test_rewards_from_the_table_are_those_of_captions_to_the_last_bit(corpus, rows):
    config = preset("smoke", **REWARD_WEIGHTS[rows])
    model, chance = fresh(config, corpus), torch.Generator().manual_seed(0)
    environment = Environment(model.captioner, corpus, config, reward_for(config.policy, corpus))
    for round_number, limit in enumerate((10, 8, 7, 7)):
        if round_number == 2:  # the captioner learns: nothing that was remembered may be used
            torch.optim.Adam(model.captioner.parameters(), 0.05).step(
                lambda: sum((weight**2).sum() for weight in model.captioner.parameters()).backward()
            )
        videos = torch.randint(len(corpus.ids), (200,), generator=chance)
        picks = torch.rand(200, 30, generator=chance) < torch.rand(200, 1, generator=chance) / 2
        picks[:, 0], picks[:, 12:] = True, False  # few places: many come again
        expected = environment.earned(picks, videos, torch.tensor(limit))
        for some in (slice(0, 3), slice(None), slice(7, 190)):
            found = environment.earned_from_memory(picks[some], videos[some], torch.tensor(limit))
            inside = expected.inside[some]
            assert (
                torch.equal(found.total, expected.total[some])
                and torch.equal(found.inside, inside)
                and 0 < inside.sum() < len(inside)
            )
            assert all(
                torch.equal(now[inside], plain[some][inside]) for now, plain in zip(found, expected)
            )


def test_only_picks_that_are_new_and_within_the_limits_are_captioned(corpus, monkeypatch):
    config, asked = preset("smoke"), []
    environment = Environment(
        fresh(config, corpus).captioner, corpus, config, reward_for(config.policy, corpus)
    )
    plain = environment.earned
    monkeypatch.setattr(
        environment,
        "earned",
        lambda picks, videos, limit: (
            asked.append(picks.sum(1).tolist()) or plain(picks, videos, limit)
        ),
    )
    videos, picks = torch.arange(6), torch.zeros(6, 30, dtype=torch.bool)
    for row, count in enumerate((1, 2, 3, 5, 7, 8)):
        picks[row, :count] = True
    low, high = config.policy.min_picks, torch.tensor(7)
    for _ in range(2):
        total = environment.earned_from_memory(picks, videos, high).total
        assert len(asked) == 1 and set(asked[0]) == {
            count for count in (1, 2, 3, 5, 7, 8) if low <= count <= 7
        }
    assert (total[[0, 5]] == config.policy.penalty).all()
    environment.earned_from_memory(picks, videos, torch.tensor(8))  # the limit has moved: one more
    assert set(asked[1]) == {8}
    with torch.no_grad(): next(environment.captioner.parameters()).mul_(0.5)
    environment.earned_from_memory(picks, videos, high)  # the captioner has learned: all again
    assert set(asked[2]) == set(asked[0])


def test_a_run_with_half_a_reward_weight_goes_on_as_it_was_begun(corpus, tmp_path, monkeypatch):
    recipe, brief = Recipe(language=0.5, diversity=2.0), preset("smoke", adaptation_epochs=1)
    whole = train(tmp_path/"whole", corpus, brief, recipe, bars=False)
    folder, train_stage = tmp_path/"stopped", trained.train_stage

    def stop_before_adaptation(trainer, plan, *rest):
        if plan.name == "adaptation":
            raise KeyboardInterrupt
        return train_stage(trainer, plan, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trained, "train_stage", stop_before_adaptation)
        train(folder, corpus, brief, recipe, bars=False)
    # as the command goes on, which knows the folder alone, and as a script does
    stored = read_settings(folder), read_recipe(folder/"run.json", read_about(folder)["recipe"])
    assert stored[0].policy.language_weight == 0.5 and stored[0].policy.diversity_weight == 2.0
    resumed = train(folder, corpus, *stored, bars=False)
    again = train(folder, corpus, brief, recipe, bars=False)
    for one, two, three in zip(whole.parameters(), resumed.parameters(), again.parameters()):
        assert torch.equal(one, two) and torch.equal(one, three)
    with pytest.raises(RunError, match="language_weight 0.5 .now 1.0"):
        train(folder, corpus, brief, Recipe(language=1.0, diversity=2.0), bars=False)


def test_weights_of_0_and_1_are_stored_as_they_are(corpus, tmp_path):
    quick = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0)
    train(tmp_path, corpus, quick, recipes()["PickNet (V)"], bars=False)
    stored = read_about(tmp_path)["recipe"]
    assert stored == asdict(recipes()["PickNet (V)"])
    policy = read_settings(tmp_path).policy
    assert (policy.language_weight, policy.diversity_weight) == (0.0, 1.0)
