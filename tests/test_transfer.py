"""Runs that begin with a trained model: what is taken over, what is refused, and what a kill
must not change."""
import inspect
import json
import re
from dataclasses import replace

import pytest
import torch
from conftest import noise_corpus
from toys import invoked

import picknet_nb as pn
from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import Config, preset
from picknet_nb.data.annotations import dataset_facts
from picknet_nb.data.text import BOS, EOS, PAD, UNK, Vocabulary
from picknet_nb.world.world import write_examples
from picknet_nb.method.captioner import beam, generate
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.recipes import Recipe, recipes, with_captioner
from picknet_nb.method.stages import Model
from picknet_nb.training.loop import Step
from picknet_nb.training.models import BUNDLED, export_model, find_model
from picknet_nb.training.runs import (
    RunError, load_run, newest_weights, read_about, read_settings, read_words, stored_weights)
from picknet_nb.training.scorers import load_scorer
from picknet_nb.training.train import train
from picknet_nb.training.transfer import (
    StartError, find_start, matched_rows, read_start, rows_of_words, with_start_words)
from picknet_nb.measure.experiments import measure_row
from picknet_nb.measure.reproduction import train_first, train_row

ROW = recipes()["PickNet (V+L)"]
SHORT = dict(
    supervision_epochs=1,
    word_epochs=1,
    reinforcement_epochs=1,
    shrink_epochs=1,
    batch_size=20,
    captions_together=5,
)


FINGERPRINT = read_about(BUNDLED/"everyday")["details"]["weights"].split()[-1]
# the weights of everyday's captioner that have a row for each word
OF_WORDS = ("captioner.words.weight", "captioner.frequency")


def corpus_like(
    cnn: str = "clip-4bit:grid", dims: int = 13824, glance_dims: int = 3136, **details
):
    """Noise that has the sizes of real clips, with words of which some are known to the
    bundled model."""
    corpus, draw = noise_corpus(videos=16), torch.Generator().manual_seed(1)
    words = Vocabulary((*corpus.vocabulary.words[:-2], "jabberwock", "snark"))
    return replace(
        corpus,
        vocabulary=words,
        details=details,
        features=torch.randn(16, 30, dims, generator=draw).half(),
        settings=replace(corpus.settings, cnn=cnn),
        glances=torch.randint(0, 256, (16, 30, glance_dims), generator=draw, dtype=torch.uint8),
    )


def begun(corpus, config: Config = preset("laptop")) -> tuple[Model, dict, object]:
    "A model with what it has taken over, its weights before, and the model that it begins with."
    torch.manual_seed(0)
    model, start = Model.for_corpus(config, corpus), read_start(config, corpus, load_run)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    start.hand_over(model, config, corpus)
    return model, before, start


def test_rows_go_by_word_and_everything_else_by_name():
    corpus = corpus_like()
    model, before, start = begun(corpus)
    now, learned = model.state_dict(), stored_weights(newest_weights(find_model("everyday")))
    shared = [word for word in corpus.vocabulary.words if word in start.words.ids]
    fresh = [word for word in corpus.vocabulary.words if word not in start.words.ids]
    assert "<eos>" in shared and len(shared) > 4 and fresh == ["jabberwock", "snark"]
    for name in OF_WORDS:
        for word in shared:
            assert torch.equal(
                now[name][corpus.vocabulary.ids[word]], learned[name][start.words.ids[word]].float()
            )
        for word in fresh:
            assert torch.equal(
                now[name][corpus.vocabulary.ids[word]], before[name][corpus.vocabulary.ids[word]]
            )
        assert name.removeprefix("captioner.") in rows_of_words(preset("laptop"), corpus)
    same = [
        name
        for name in learned
        if name not in OF_WORDS
    ]
    assert all(torch.equal(now[name], learned[name].float()) for name in same) and any(
        name.startswith("policy.") for name in same
    )


def test_weights_that_the_model_lacks_stay_random():
    shapes = preset("small", mention_weight=0.5, start_from="shapes")
    model, before, _ = begun(corpus_like("tiny", 256), shapes)
    now = model.state_dict()
    new = [name for name in now if name.startswith("captioner.mentions.")]
    assert new and all(torch.equal(now[name], before[name]) for name in new)
    assert not torch.equal(now["policy.compare.weight"], before["policy.compare.weight"])


def test_a_vocabulary_of_the_same_length_is_matched_by_word_too():
    corpus = corpus_like()
    words = corpus.vocabulary
    turned = type(words)((*words.words[:4], *reversed(words.words[4:])))
    rows = torch.randn(len(words), 3)
    assert torch.equal(
        matched_rows(torch.zeros(len(words), 3), rows, turned, words)[4:], rows[4:].flip(0)
    )


@pytest.mark.parametrize(
    "changes, made, reason",
    [
        (
            {},
            {"cnn": "resnet50"},
            "it uses the features of clip-4bit:grid, and these clips were prepared with "
            "resnet50; prepare them with --backbone clip-4bit:grid",
        ),
        ({}, {"dims": 36}, "its feature size is 13824, and here it is 36"),
        (
            {},
            {"cnn": "resnet50", "dims": 2048},
            "these clips were prepared with resnet50; prepare them with --backbone clip-4bit:grid",
        ),
        (
            {},
            {"weights": "mine.pth 0123456789ab"},
            f"its backbone's fingerprint is {FINGERPRINT}, and here it is 0123456789ab",
        ),
        ({"hidden": 64}, {}, "its hidden is 384, and here it is 64"),
        ({"word_embedding": 32}, {}, "its word_embedding is 384, and here it is 32"),
        ({"architecture": "paper"}, {}, "its architecture is transformer, and here it is paper"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changes, made, reason, tmp_path):
    with pytest.raises(StartError) as refused:
        train(
            tmp_path/"run",
            corpus_like(**made),
            preset("laptop", **SHORT, **changes),
            ROW,
            bars=False,
        )
    assert (
        reason in str(refused.value)
        and "--set start_from=" in str(refused.value)
        and not (tmp_path/"run").exists()
    )


def test_a_name_that_nothing_has_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(
        PickNetError,
        match="start_from=evryday is not a bundled model .there are everyday, shapes, "
              "sharp. and no folder of a run",
    ):
        find_start("evryday")
    assert (
        find_start("everyday") == BUNDLED/"everyday"
        and find_start(str(BUNDLED/"shapes")) == BUNDLED/"shapes"
    )


def test_a_policy_of_another_size_starts_anew():
    model, before, start = begun(corpus_like(glance_dims=196))
    assert not start.policy and all(
        torch.equal(weight, before[name])
        for name, weight in model.state_dict().items()
        if name.startswith("policy.")
    )
    assert (
        "is initialised from scratch" in start.described(corpus_like())
        and not begun(corpus_like(), preset("laptop", policy_hidden=32))[2].policy
    )


class PowerCut(Exception):
    "The run is cut off."


def cut_after(steps: int):
    "A training step that fails after so many calls."
    plain, calls = Step.update, iter(range(steps))
    def update(self, indices):
        if next(calls, None) is None: raise PowerCut
        plain(self, indices)
    return update


def test_a_killed_run_ends_with_the_bits_of_one_left_alone(tmp_path, monkeypatch):
    corpus, config = corpus_like(), preset("laptop", **SHORT)
    alone = train(tmp_path/"alone", corpus, config, ROW, bars=False).state_dict()
    # before the first checkpoint, in stage one, in the epoch of rewarded words, before stage two
    for steps in (0, 1, 2, 1):
        with monkeypatch.context() as patch:
            patch.setattr(Step, "update", cut_after(steps))
            with pytest.raises(PowerCut):
                train(tmp_path/"cut", corpus, config, ROW, bars=False, save_seconds=0.0)
        if steps == 1:  # from here on the model that it began with is not asked again
            monkeypatch.setattr(
                "picknet_nb.training.train.read_start", lambda *_: pytest.fail("read again")
            )
    survivor = train(tmp_path/"cut", corpus, config, ROW, bars=False).state_dict()
    assert all(torch.equal(weight, survivor[name]) for name, weight in alone.items())
    noted = [
        json.loads((tmp_path / name/"run.json").read_text())["began_from"]
        for name in ("alone", "cut")
    ]
    assert (
        noted[0] == noted[1]
        and noted[0]["model"] == "everyday"
        and noted[0]["policy"]
        and len(noted[0]["weights"]) == 12
    )


def test_a_run_that_has_no_checkpoint_yet_refuses_other_weights(tmp_path, monkeypatch):
    corpus, config = corpus_like(), preset("laptop", **SHORT)
    monkeypatch.setattr(Step, "update", cut_after(0))
    with pytest.raises(PowerCut):
        train(tmp_path/"run", corpus, config, ROW, bars=False)
    about = json.loads((tmp_path/"run"/"run.json").read_text())
    about["began_from"]["weights"] = "0" * 12
    (tmp_path/"run"/"run.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match="holds another run: weights 000000000000"):
        train(tmp_path/"run", corpus, config, ROW, bars=False)


def test_a_policy_that_has_learned_is_not_calibrated_unless_it_must_be(tmp_path, monkeypatch):
    from picknet_nb.method.policy import Policy

    corpus, config = corpus_like(), preset("laptop", **SHORT)
    calls, plain = [], Policy.calibrate
    monkeypatch.setattr(
        Policy,
        "calibrate",
        lambda self, *given, **named: calls.append(self) or plain(self, *given, **named),
    )
    monkeypatch.setattr(
        Policy,
        "rollout",
        lambda self, glances, *_, **__: torch.arange(30).lt(6).expand(len(glances), 30),
    )
    train(tmp_path/"six", corpus, config, ROW, bars=False)
    assert not calls
    monkeypatch.setattr(
        Policy,
        "rollout",
        lambda self, glances, *_, **__: torch.ones(len(glances), 30, dtype=torch.bool),
    )
    train(tmp_path/"all", corpus, config, ROW, bars=False)
    assert len(calls) == 1


def test_ones_own_clips_become_a_run_of_the_default_model(tmp_path, quick_everyday):
    "Nothing is named: the backbone, what its eye sees, the preset and the scorer are the model's."
    write_examples(tmp_path/"videos", 5)
    captions = json.loads((tmp_path/"videos"/"captions.json").read_text())
    names = list(captions)
    pn.prepare(tmp_path/"videos", captions, tmp_path/"corpus", bars=False, min_word_count=1,
               splits={"train": names[:3], "validation": names[3:4], "test": names[4:]})
    run = pn.train(tmp_path/"run", tmp_path/"corpus", bars=False, **SHORT)
    kept, own = load_scorer(tmp_path/"run"), load_scorer(find_model())
    assert (kept.eye, kept.weights, kept.number) == (own.eye, own.weights, own.number)
    file = tmp_path/"videos"/f"{names[4]}.mp4"
    assert len(run.caption(file, running=False).picked) == own.number
    export_model(run.folder, tmp_path/"model")
    found = pn.evaluate(tmp_path/"model", tmp_path/"corpus", picker=f"scorer-{own.number}",
                        scores=False)
    assert found.frames_used == own.number and list(found.captions) == names[4:]


def test_clips_of_another_length_are_left_to_the_policy(tmp_path, quick_everyday, quick_meteor):
    "A scorer of thirty frames is not kept for eight, and does not stand in the way."
    write_examples(tmp_path/"videos", 5)
    captions = json.loads((tmp_path/"videos"/"captions.json").read_text())
    names = list(captions)
    data = pn.prepare(tmp_path/"videos", captions, tmp_path/"corpus", bars=False, frames=8,
                      min_word_count=1,
                      splits={"train": names[:3], "validation": names[3:4], "test": names[4:]})
    trained = invoked("train", str(tmp_path/"run"), "--data", str(tmp_path/"corpus"),
                      *(word for each in SHORT.items() for word in ("--set", "%s=%s" % each)))
    assert trained.exit_code == 0, trained.output
    assert re.search(r"picks from clips of 30 frames, and these have 8:\s+it is not kept",
                     trained.output)
    assert load_scorer(tmp_path/"run") is None
    beside = r"of everyday with the picks of its policy, [\d.]+ of the run"
    assert re.search(beside, trained.output)
    assert "everyday with the picks of its policy, from which the run began" in trained.output
    evaluated = invoked("evaluate", "--model", str(tmp_path/"run"))
    assert evaluated.exit_code == 0 and re.search(beside, evaluated.output), evaluated.output
    with pytest.raises(RunError, match="clips of 30 frames, and these have 8: prepare them"):
        pn.evaluate("everyday", data, scores=False)
    assert len(pn.evaluate("everyday", data, scores=False, picker="learned").captions) == 1


def test_what_is_prepared_is_what_the_default_model_was_trained_on():
    by_default = {inspect.signature(pn.prepare).parameters["cnn"].default,
                  dataset_facts("pictures")["backbone"], preset("laptop").clip.cnn}
    helps = [invoked("prepare", kind, "--help").output for kind in ("videos", "pictures")]
    shown = {re.search(r"--backbone.*?\[default:\s+(\S+)\]", each, re.S)[1] for each in helps}
    assert by_default == shown == {read_settings(find_model()).clip.cnn}


def test_a_run_of_ones_own_can_be_begun_with(tmp_path):
    corpus = noise_corpus(videos=16)
    config = preset(
        "smoke",
        supervision_epochs=1,
        reinforcement_epochs=1,
        adaptation_epochs=0,
        mention_weight=0.5,
    )
    first = train(tmp_path/"first", corpus, config, ROW, bars=False).state_dict()
    second = train(
        tmp_path/"second",
        corpus,
        config.changed(
            start_from=str(tmp_path/"first"), supervision_epochs=0, reinforcement_epochs=0
        ),
        ROW,
        bars=False,
    )
    assert all(
        torch.equal(weight, first[name])
        for name, weight in second.state_dict().items()
        if name.startswith("captioner.")
    )


# words
# --------------------------------------------------------------------------------------------------


def named_once(word: str):
    "A corpus of few words in which one caption names another word, too rarely to be counted."
    corpus = corpus_like()
    sentences = [list(clip) for clip in corpus.sentences]
    sentences[0][0] = f"a man is cutting a {word} with a knife"
    return replace(corpus, sentences=sentences)


def test_a_run_keeps_the_words_of_the_model_that_it_begins_with(tmp_path):
    corpus, config = corpus_like(), preset("laptop", **SHORT)
    model = train(tmp_path/"run", corpus, config, ROW, bars=False)
    known, words = read_words(find_model("everyday")), read_words(tmp_path/"run")
    assert words.words == (*known.words, "jabberwock", "snark")
    assert len(model.captioner.words.weight) == len(words)
    assert len(corpus.vocabulary) < 30  # the caller's corpus is as it was


def test_what_people_named_once_is_no_unknown_word_if_the_model_knows_it():
    corpus, config = named_once("potato"), preset("laptop")
    wide = with_start_words(corpus, config)
    said = wide.vocabulary.decode(wide.words[:1])
    assert said == ["a man is cutting a potato with a knife"]
    assert with_start_words(wide, config) is wide
    strange = with_start_words(named_once("bandersnatch"), config)
    assert strange.vocabulary.decode(strange.words[:1]) == [
        "a man is cutting a <unk> with a knife"]  # nobody knows it: that is said
    assert with_start_words(corpus, preset("smoke")) is corpus


def test_learned_rows_stay_when_the_words_of_a_corpus_are_added():
    corpus = with_start_words(corpus_like(), preset("laptop"))
    model, before, start = begun(corpus)
    learned = stored_weights(newest_weights(find_model("everyday")))
    for name in OF_WORDS:
        now, known = model.state_dict()[name], len(start.words)
        assert torch.equal(now[:known], learned[name].float())
        assert torch.equal(now[known:], before[name][known:]) and len(now) == known + 2
    known = len(json.loads((find_model("everyday")/"vocabulary.json").read_text())) - 4
    kept = f"its {known:,} words are kept, and 2 new ones of these clips are added"
    assert kept in start.described(corpus)


def test_a_run_has_its_words_though_the_model_it_began_with_is_gone(tmp_path, monkeypatch):
    first = noise_corpus(videos=16)
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1)
    recipe = Recipe("all", adapted=False)
    train(tmp_path/"first", first, config, recipe, bars=False)
    begun_with = config.changed(start_from=str(tmp_path/"first"), supervision_epochs=2)
    corpus = replace(first, vocabulary=Vocabulary((*first.vocabulary.words[:6], "snark")))
    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", cut_after(1))
        with pytest.raises(PowerCut):
            train(tmp_path/"run", corpus, begun_with, recipe, bars=False, save_seconds=0.0)
    (tmp_path/"first").rename(tmp_path/"elsewhere")
    train(tmp_path/"run", corpus, begun_with, recipe, bars=False)
    assert read_words(tmp_path/"run").words == (*first.vocabulary.words, "snark")


def test_a_row_is_measured_in_the_words_of_its_run(tmp_path):
    corpus, config = corpus_like(), preset("laptop", **SHORT)
    recipe = Recipe("all", adapted=False)
    home = train_first(corpus, tmp_path, config, recipe, bars=False)
    row = train_row(corpus, tmp_path, config, "Baseline", recipe, bars=False)
    model, _, words, _ = load_run(home)
    own = measure_row(model, replace(corpus, vocabulary=words), config, recipe)
    assert row["captions"] == own["captions"] and any(row["captions"]["greedy"].values())


@pytest.mark.parametrize("architecture", ["densecap", "ruc-uva", "aalto", "p-rnn", "ms-rnn"])
def test_captioners_with_columns_of_words_begin_with_another_run_too(tmp_path, architecture):
    import picknet_nb.systems  # noqa: F401

    first = noise_corpus(videos=16)
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=0, adaptation_epochs=0)
    config = with_captioner(config, architecture)
    recipe = Recipe("all", adapted=False)
    trained = train(tmp_path/"first", first, config, recipe, bars=False).state_dict()
    more = replace(first, vocabulary=Vocabulary((*first.vocabulary.words, "snark")))
    begun_with = config.changed(start_from=str(tmp_path/"first"), supervision_epochs=0)
    second = train(tmp_path/"second", more, begun_with, recipe, bars=False).state_dict()
    axes = rows_of_words(config, first)
    assert axes
    for name, weight in trained.items():
        if not name.startswith("captioner."):
            continue
        kept = second[name]
        if (axis := axes.get(name.removeprefix("captioner."))) is not None:
            assert kept.shape[axis] == weight.shape[axis] + 1
            kept = kept.narrow(axis, 0, weight.shape[axis])
        assert torch.equal(kept, weight), name


def test_a_run_on_pictures_is_a_start_for_clips(tmp_path):
    pictures, clips = noise_corpus(videos=16, frames=1), noise_corpus(videos=16, seed=1)
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0)
    one = Recipe("all", adapted=False)
    first = train(tmp_path/"pictures", pictures, config.changed(min_picks=1), one, bars=False)
    begun_with = config.changed(start_from=str(tmp_path/"pictures"), supervision_epochs=0)
    second = train(tmp_path/"clips", clips, begun_with, ROW, bars=False)
    name = "captioner.encoder.embedding.weight"
    assert torch.equal(first.state_dict()[name], second.state_dict()[name])


def test_unknown_words_are_never_generated(corpus):
    "Also where a captioner has learned nothing else."
    import picknet_nb.systems  # noqa: F401

    model = Model.for_corpus(with_captioner(preset("smoke"), "ta"), corpus).eval()
    with torch.no_grad():
        model.captioner.output.bias[[PAD, BOS, UNK]] = 50.0
        features = corpus.features[:4].float()
        every = torch.ones(features.shape[:2], dtype=torch.bool)
        memory = model.captioner.encode(pick_frames(features, every))
        found = [generate(model.captioner, memory, 8)[0],
                 generate(model.captioner, memory, 8, sampled=True)[0],
                 beam(model.captioner, memory, 3, 8)[0][:, 0]]
    for words in found:
        ended = (words == EOS).cumsum(1) > 0
        assert not torch.isin(words[~ended], torch.tensor([PAD, BOS, UNK])).any()
        assert all("<" not in said for said in corpus.vocabulary.decode(words))
