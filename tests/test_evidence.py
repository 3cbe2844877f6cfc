"The research in benchmarks/: cross-fitted rewards, pickers that see the whole clip, films."
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from picknet_nb.core.settings import preset
from picknet_nb.world.shapes import example_corpus
from picknet_nb.method.captioner import caption
from picknet_nb.method.cider import document_frequencies, plain_cider
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.policy import Policy
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.rewards import paper_reward
from picknet_nb.method.stages import Environment, Model
from picknet_nb.training.runs import RunError, load_run

sys.path.append(str(Path(__file__).parents[1]/"benchmarks"))
import person
from cross_fitting import (
    CROSS_FITTED, CrossFittedReward, CrossFittingError, FrameScorer, cross_fitted_reward,
    half_corpus, halves_of, top, train_cross_fitted, train_halves, value_sets)
from films import (
    FilmError, cut_film, even_picks, grey_distances, learned_picks, make_films, make_streams,
    noticed, picks_at_cuts, picks_by_change, scene_reward, scenes_noticed)

CONFIG = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0,
                min_picks=2, first_max_picks=8, final_max_picks=7)


@pytest.fixture(scope="module")
def corpus():
    return example_corpus(videos=36)


@pytest.fixture(scope="module")
def halves(corpus, tmp_path_factory):
    "A folder with one captioner for each half."
    return train_halves(tmp_path_factory.mktemp("halves"), corpus, CONFIG, bars=False)


def test_each_training_clip_is_in_one_half_and_other_clips_are_in_the_first(corpus):
    halves, train = halves_of(corpus, 3), corpus.splits["train"]
    assert halves[train].sum() == len(train) - len(train) // 2
    assert not halves[corpus.splits["test"]].any()
    assert not torch.equal(halves, halves_of(corpus, 4))
    parts = [half_corpus(corpus, halves, half).splits["train"] for half in (0, 1)]
    assert torch.equal(torch.cat(parts).sort().values, train.sort().values)


def test_a_clip_is_described_by_the_captioner_that_never_saw_it(corpus):
    torch.manual_seed(0)
    pair = [Model.for_corpus(CONFIG, corpus).captioner.eval() for _ in range(2)]
    number, most = halves_of(corpus, 0), corpus.settings.max_words
    reward = CrossFittedReward(paper_reward(CONFIG.policy, corpus), pair, number, most)
    videos = corpus.splits["train"]
    picks = make_picker("uniform", 4)(Clips(corpus.features[videos], corpus.glances[videos]))
    words = reward.describe(videos, corpus.features[videos], picks)
    for half, stranger in ((0, pair[1]), (1, pair[0])):
        rows = number[videos] == half
        alone = caption(stranger, corpus.features[videos[rows]], picks[rows], most)
        assert torch.equal(words[rows], alone)
    earned = reward(None, videos, corpus.features[videos], picks, 8)
    assert torch.allclose(earned.language, reward.cider(words, videos))
    assert not reward.needs_words


def test_training_with_cross_fitted_rewards_leaves_a_run_that_names_its_captioners(
        corpus, halves, tmp_path):
    model = train_cross_fitted(tmp_path/"run", corpus, CONFIG,
                               Recipe(language=1.0, adapted=False), halves=halves, bars=False)
    picks = make_picker("learned", policy=model.policy)(Clips(corpus.features, corpus.glances))
    assert picks[:, 0].all()
    _, config, _, about = load_run(tmp_path/"run")
    assert config.policy.reward == CROSS_FITTED and about["details"]["cross_fitted"] == str(halves)


def test_a_cross_fitted_reward_without_captioners_or_with_those_of_other_clips_is_an_error(
        corpus, halves):
    with pytest.raises(CrossFittingError, match="two captioners"):
        cross_fitted_reward(CONFIG.policy, corpus)
    fewer = replace(corpus, details={"cross_fitted": str(halves)},
                    splits={**corpus.splits, "train": corpus.splits["train"][:-2]})
    with pytest.raises(RunError, match="other clips"):
        cross_fitted_reward(CONFIG.policy, fewer)


def test_a_picker_that_sees_the_whole_clip_may_skip_the_first_frame(corpus):
    clips = Clips(corpus.features, corpus.glances)
    scorer = FrameScorer.for_corpus(corpus).eval()
    with torch.no_grad():
        scorer.bias.copy_(torch.arange(30.0))
        picks = top(scorer, 3)(clips)
    assert picks[:, -3:].all() and (picks.sum(1) == 3).all()


def test_the_value_of_a_set_is_what_its_caption_earns(corpus):
    torch.manual_seed(0)
    model = Model.for_corpus(CONFIG, corpus).eval()
    environment = Environment(model.captioner, corpus, CONFIG, paper_reward(CONFIG.policy, corpus))
    videos = corpus.splits["train"][:3]
    pool = value_sets(environment, videos, k=2, sets=4, batch=5)
    assert pool.picks.shape == (3, 4, 30) and (pool.picks.sum(-1) == 2).all()
    one = environment.earned(pool.picks[1, 2:3], videos[1:2], 30).language
    assert torch.allclose(pool.values[1, 2], one[0])


def test_films_depend_on_the_names_of_clips_alone_and_never_mix_splits(corpus):
    counts = {"train": 5, "validation": 2, "test": 4}
    films = make_films(corpus, counts)
    more = make_films(corpus, {**counts, "train": 9})
    cut = lambda some: [some.cuts[n] for n in some.splits["test"].tolist()]
    assert cut(films) == cut(more)
    for split in counts:
        own = set(corpus.splits[split].tolist()) | {-1}
        assert set(films.sources[films.splits[split]].flatten().tolist()) <= own
    film, scenes = films.cuts[0], films.scenes[0]
    for number, scene in enumerate(film):
        at = (scenes == number).nonzero()[:, 0]
        wanted = corpus.features[scene.clip, scene.first:scene.first + scene.length]
        assert torch.equal(films.features[0, at], wanted)
    with pytest.raises(FilmError, match="needs as many clips"):
        cut_film(random.Random(0), range(2), 30)


def test_a_policy_learns_on_films_with_a_reward_for_each_scene(corpus, tmp_path):
    from picknet_nb.training.train import train

    train(tmp_path/"whole", corpus, CONFIG, Recipe("all", adapted=False), bars=False)
    films = make_films(corpus, {"train": 8, "validation": 3, "test": 3})
    with pytest.raises(FilmError, match="name the run"):
        scene_reward(CONFIG.policy, films)
    films = replace(films, details={"captioner": str(tmp_path/"whole")})
    config = CONFIG.changed(reward="scenes", batch_size=5)
    model = train(tmp_path/"run", films, config, Recipe(language=1.0, adapted=False), bars=False,
                  start=tmp_path/"whole"/"weights.safetensors")
    assert model.policy.rollout(films.glances).shape == (14, 40)


def test_a_change_threshold_and_picknet_find_a_cut_that_uniform_sampling_misses():
    glances = torch.zeros(1, 40, 16)
    glances[:, 25:27] = 100.0
    distances = grey_distances(glances)
    for rule in (picks_by_change, picks_at_cuts):
        assert rule(distances, 50.0)[0].nonzero()[:, 0].tolist() == [0, 25, 27]
    assert not even_picks(1, 40, 6)[0, 25:27].any()
    policy = Policy(16, 8)
    assert torch.equal(learned_picks(policy, glances)(100.0), policy.rollout(glances))


def test_a_stream_of_films_counts_every_scene_once(corpus):
    films = make_films(corpus, {"train": 1, "validation": 1, "test": 4})
    which = films.splits["test"]
    streams = make_streams(films, which, together=2, seconds=lambda name: 30.0)
    count = (films.sources[which] >= 0).sum().item()
    assert len(streams.scenes.unique()) == count and streams.minutes == pytest.approx(160 / 60)
    first = torch.zeros_like(streams.scenes, dtype=torch.bool)
    first[:, 0] = True
    assert noticed(first, streams) == pytest.approx(2 / count)
    everything = torch.ones(4, 40, dtype=torch.bool)
    assert (scenes_noticed(everything, films, which) == 1).all()


def test_the_score_of_a_person_is_cider(corpus):
    references = corpus.tokens[:12]
    frequencies = document_frequencies(references)
    vector = person.Vectors(frequencies, 12)
    candidate, *others = references[0]
    wanted = plain_cider(candidate, others, frequencies, 12)
    assert person.score(vector(candidate), [vector(each) for each in others]) == pytest.approx(
        wanted)
    assert wanted > 0
