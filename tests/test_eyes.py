"Eyes, frame values, scorers: training, storing, and picks that follow what is stored."
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from toys import invoked, store_run

from picknet_nb import PickNetError, caption, caption_many, evaluate, load, prepare
from picknet_nb.core.settings import ConfigError, preset
from picknet_nb.data import eyes
from picknet_nb.data.backbones import random_network
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.eyes import EyeError, Glimpse, sight
from picknet_nb.data.student import save_student
from picknet_nb.method.pickers import Clips, PickerError, make_picker
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.scorer import FrameValues, Scorer
from picknet_nb.training import scorers
from picknet_nb.training.committee import Checkpoint, frame_values, read_values
from picknet_nb.training import cards
from picknet_nb.training.models import export_model, scorer_facts
from picknet_nb.training.runs import RunError, load_run
from picknet_nb.training.scorers import (
    SCORER, StoredScorer, fit_scorers, load_scorer, save_scorer, train_scorer)
from picknet_nb.training.train import open_data, picking_with, stages_of, train
from picknet_nb.use.drawing import caption_strip
from picknet_nb.use.exploration import Exploration, Library
from picknet_nb.use.many import Specification
from picknet_nb.use.page import Explorer
from picknet_nb.use.tables import Table, caption_list
from picknet_nb.world.shapes import events_seen, example_corpus
from picknet_nb.world.world import write_examples

MEMBERS = dict(hidden=16, word_embedding=8, attention=8)
CONFIG = preset("smoke", supervision_epochs=1, adaptation_epochs=1)


@pytest.fixture(scope="module", autouse=True)
def quick():
    "Runs whose scorers are trained for two epochs, not forty."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorers, "fit_scorers", partial(fit_scorers, epochs=2))
        yield


@pytest.fixture(scope="module")
def corpus():
    return example_corpus(videos=24)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    "A run whose scorer was taught by two captioners on halves."
    folder = tmp_path_factory.mktemp("scored")/"run"
    train(folder, corpus, CONFIG, Recipe("scorer", 3), bars=False)
    return folder


def some_values(dims: int = 256, **options) -> FrameValues:
    torch.manual_seed(0)
    return FrameValues([Scorer(dims, hidden=8, layers=1).eval()], **options)


def clips_of(corpus) -> Clips: return Clips(corpus.features, corpus.features)


def test_a_scorer_is_a_picker_with_a_budget_a_rule_and_a_threshold(corpus):
    clips = clips_of(corpus)
    picks = {k: make_picker("scorer", k, some_values())(clips) for k in (1, 3, 30)}
    assert [(each.sum(1) == k).all().item() for k, each in picks.items()] == [True] * 3
    assert (picks[1] & picks[3]).sum(1).eq(1).all()  # the best frame is among any budget's
    assert not torch.equal(make_picker("scorer", 3, some_values(rule="gap"))(clips), picks[3])
    fewer = make_picker("scorer", 3, some_values(threshold=0.3))(clips)
    assert (fewer & ~picks[3]).sum() == 0 and fewer.sum() < picks[3].sum()
    assert fewer.any(1).all()  # never no frame at all
    assert not picks[1][:, 0].all()  # the first frame is not forced


@pytest.mark.parametrize("rule", ["parts", "gap"])
def test_a_budget_is_spent_whatever_the_values_are(rule):
    "Also where the first picks lie so that half a part around each of them covers all frames."
    values = torch.rand(50, 30, generator=torch.Generator().manual_seed(0))
    values[0, 2::5] += 1.0
    spend = some_values(rule=rule).picks
    assert all(spend(values, k).sum(1).eq(k).all() for k in range(1, 31))


def test_a_scorer_cannot_do_without_values_or_with_clips_of_another_length(corpus):
    with pytest.raises(PickerError, match="scorer needs"):
        make_picker("scorer", 3)
    short = Clips(corpus.features[:, :10], corpus.features[:, :10])
    with pytest.raises(Exception, match="clips of 30 frames, and these have 10"):
        make_picker("scorer", 3, some_values())(short)


def test_learned_picks_beat_uniform_ones_on_clips_that_no_judge_has_seen():
    "With features as the eye; a frame is worth what it shows of the events."
    corpus = example_corpus(videos=90)
    worth = torch.zeros(len(corpus.ids), 30)
    for clip, frames in enumerate(corpus.details["key_frames"]): worth[clip, frames] = 1.0
    train_, validation, test = corpus.splits.values()
    fit = fit_scorers(corpus.features, 0, train_, worth[train_], [(validation, worth[validation])],
                      epochs=25, rate=3e-3, batch=18, hidden=32, layers=1)
    clips = Clips(corpus.features[test], corpus.features[test])
    key = [corpus.details["key_frames"][clip] for clip in test.tolist()]
    seen = {name: events_seen(key, picker(clips)) for name, picker in (
        ("scorer", make_picker("scorer", 3, FrameValues(fit.scorers))),
        ("uniform", make_picker("uniform", 3)))}
    assert seen["scorer"] > seen["uniform"] + 0.1


def test_a_committee_that_is_killed_continues_with_the_same_bits(corpus, tmp_path, monkeypatch):
    options = dict(pairs=1, whole=1, steps=7, clips=6, save_seconds=0, **MEMBERS)
    whole = frame_values(tmp_path/"whole", corpus, **options)
    plain, saved = Checkpoint.save, []

    def killed(self, step, again=False):
        plain(self, step, again)
        saved.append(step)
        if step == 4: raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        frame_values(tmp_path/"parts", corpus, **options)
    monkeypatch.setattr(Checkpoint, "save", plain)
    again = frame_values(tmp_path/"parts", corpus, **options)
    assert saved[-1] == 4 and torch.equal(again.values, whole.values)
    for name in ("whole", "parts"):
        assert not (tmp_path/name/"committee.checkpoint.pt").exists()
    weights = [load_file(tmp_path/name/"committee.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_table_of_values_belongs_to_its_corpus_and_its_members(corpus, tmp_path):
    options = dict(pairs=1, steps=2, clips=6, **MEMBERS)
    frame_values(tmp_path, corpus, **options)
    with pytest.raises(RunError, match="holds values of something else: steps 2 .now 3"):
        frame_values(tmp_path, corpus, **{**options, "steps": 3})
    other = replace(corpus, features=corpus.features + 1)
    with pytest.raises(RunError, match="holds values of something else: corpus"):
        frame_values(tmp_path, other, **options)
    path = tmp_path/"values.safetensors"
    save_file({"values": torch.zeros(2, 2)}, path)
    with pytest.raises(RunError, match="is not a table of frame values"):
        read_values(tmp_path)


def test_values_of_training_clips_come_from_members_that_did_not_see_them(corpus, tmp_path):
    table = frame_values(tmp_path, corpus, pairs=2, steps=2, clips=6, **MEMBERS)
    clip = corpus.splits["train"][3]
    judges = ~table.learned_from[:4, clip]
    assert judges.sum() == 2
    wanted = table.values[:4, clip][judges].float().mean(0)
    assert torch.allclose(table.unseen(clip[None])[0], wanted)


def test_a_run_with_a_scorer_has_its_file_and_so_has_its_model(run, corpus, tmp_path):
    stored = load_scorer(run)
    assert (stored.number, stored.eye, stored.taught_by) == (3, "tiny", "2 captioners")
    export_model(run, tmp_path/"model")
    again, looked = load_scorer(tmp_path/"model"), stored.look(corpus)
    clips = Clips(looked.features, looked.glances)
    assert torch.equal(again.picker()(clips), stored.picker()(clips))
    card = (tmp_path/"model"/"card.md").read_text()
    assert "picks 3 frames; its eye, tiny, costs " in card
    told = json.loads((tmp_path/"model"/"config.json").read_text())
    assert told["policy"]["eye"] == "feature"  # no path of the machine that trained it


def test_a_run_resumes_with_the_scorer_that_is_there(run, corpus, tmp_path):
    shutil.copytree(run, tmp_path/"run")
    before = (tmp_path/"run"/SCORER).read_bytes()
    wanted = load_file(run/"weights.safetensors")
    for name in ("weights.safetensors", "adaptation.safetensors", "checkpoint.pt"):
        (tmp_path/"run"/name).unlink()
    train(tmp_path/"run", corpus, CONFIG, Recipe("scorer", 3), bars=False)
    found = load_file(tmp_path/"run"/"weights.safetensors")
    assert (tmp_path/"run"/SCORER).read_bytes() == before
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("eye", ["grey", "feature", "corpus"])
def test_every_eye_trains_a_scorer(eye, corpus, tmp_path):
    if eye == "corpus":
        other = replace(corpus, features=corpus.features[..., :32],
                        settings=replace(corpus.settings, cnn="narrow"))
        eye = str(other.save(tmp_path/"seen"))
    config = CONFIG.changed(judges=0, eye=eye, supervision_epochs=1, adaptation_epochs=0)
    train(tmp_path/"run", corpus, config, Recipe("scorer", 2, adapted=False), bars=False)
    stored = load_scorer(tmp_path/"run")
    names = {"grey": "grey", "feature": "tiny"}
    assert stored.eye == names.get(eye, "narrow") and stored.taught_by == "its own captioner"
    if stored.eye == "narrow":
        with pytest.raises(RunError, match="sees with narrow, and these clips were prepared with"):
            stored.look(corpus)
    looked = stored.look(corpus, eye)
    assert stored.picker()(Clips(looked.features, looked.glances)).sum(1).eq(2).all()


def test_an_eye_that_cannot_see_the_clips_is_an_error(corpus, tmp_path):
    with pytest.raises(EyeError, match="must be grey, feature, or the folder of a corpus"):
        sight(corpus, "nothing")
    example_corpus(videos=12).save(tmp_path/"fewer")
    with pytest.raises(EyeError, match="lacks 12 of the clips, such as shapes00012"):
        sight(corpus, str(tmp_path/"fewer"))
    with pytest.raises(ConfigError, match="an even number, not 3"):
        preset("smoke", judges=3)


def test_a_scorer_to_begin_with_is_kept_where_training_is_no_better(corpus):
    begin, worth = some_values().scorers, torch.rand(24, 30)
    train_, validation, _ = corpus.splits.values()
    same = fit_scorers(corpus.features, 0, train_, torch.zeros(len(train_), 30),
                       [(validation, torch.ones(len(validation), 30))], begin=begin, epochs=2,
                       hidden=8, layers=1)
    assert same.epoch == 0 and worth.shape == (24, 30)
    for name, each in begin[0].state_dict().items():
        assert torch.equal(same.scorers[0].state_dict()[name], each)


def test_a_scorer_to_begin_with_keeps_how_many_frames_its_eye_looks_at(corpus, run, tmp_path):
    begin = FrameValues([Scorer(256, 10, hidden=8, layers=1).eval()], every=3)
    save_scorer(tmp_path, StoredScorer(begin, 3, "tiny"))
    assert load_scorer(tmp_path).values.every == 3 and load_scorer(tmp_path).values.frames == 30
    captioner = load_run(run)[0].captioner
    config = CONFIG.changed(judges=0, eye="feature")
    made = train_scorer(tmp_path/"made", corpus, config, captioner, 4, load_scorer(tmp_path))
    assert (made.values.every, made.number, made.values.scorers[0].sizes["frames"]) == (3, 4, 10)
    other = train_scorer(tmp_path/"other", corpus, config, captioner, 4)
    assert (other.values.every, other.values.scorers[0].sizes["frames"]) == (1, 30)


def damaged(about: dict, **changes) -> dict:
    return {"scorer": json.dumps({**about, **changes})}


@pytest.mark.parametrize("changes, message", [
    ({"version": 1}, "is of version 1"),
    ({"rule": "best"}, "header is damaged"),
    ({"number": 0}, "header is damaged"),
    ({"scorers": 10**9}, "header is damaged"),
    ({"threshold": "high"}, "header is damaged"),
    ({"sizes": {"dims": 256}}, "header is damaged"),
    ({"scorers": 2}, "does not fit"),
    ({"every": 2}, "header is damaged"),
    ({"every": "3"}, "header is damaged"),
    ({"every": 99}, "header is damaged"),  # of clips longer than there are
])
def test_a_damaged_scorer_is_one_sentence(changes, message, tmp_path):
    path = save_scorer(tmp_path, StoredScorer(some_values(), 3, "tiny"))
    with safe_open(path, "pt") as file: about = json.loads(file.metadata()["scorer"])
    save_file(load_file(path), path, damaged(about, **changes))
    with pytest.raises(RunError, match=message):
        load_scorer(tmp_path)


def test_a_foreign_file_is_no_scorer(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path/SCORER)
    with pytest.raises(RunError, match="is not a scorer"):
        load_scorer(tmp_path)


def test_a_scorer_is_asked_for_by_its_label_and_trained_after_the_captioner():
    recipe = picking_with("scorer-3")
    assert recipe == Recipe("scorer", 3) and recipe.most == 3
    assert [each.name for each in stages_of(recipe, CONFIG)] == ["supervision"]
    after = stages_of(recipe, CONFIG, begun=True, scorer=some_values())
    assert [(each.name, each.picker.label) for each in after] == [("adaptation", "scorer-3")]
    with pytest.raises(PickerError):
        picking_with("scorer")


# in use: a changed eye, scorer, budget or threshold changes the picks of a file, a folder, a table
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    "A model that learned to pick while it watches, and two videos."
    folder = tmp_path_factory.mktemp("used")
    write_examples(folder/"videos", 2)
    return store_run(folder/"run", folder/"videos"), folder/"videos"


def with_scorer(run, folder, eye: str = "tiny", number: int = 3, seed: int = 0, **options):
    "A copy of the model with a scorer of random weights."
    dims = {"tiny": 256, "grey": 3136, "glimpse": 128}[eye]
    torch.manual_seed(seed)
    scorer = Scorer(dims, 30 // options.get("every", 1), hidden=8, layers=1,
                    side=56 if eye == "grey" else 0).eval()
    shutil.copytree(run, folder)
    save_scorer(folder, StoredScorer(FrameValues([scorer], **options), number, eye))
    return folder


def picks_of(model, videos, how: str, tmp_path, **options) -> list:
    "The picks of a file, of a folder, in the explorer, or how many a row of a table has."
    files = sorted(videos.glob("*.mp4"))
    if how == "file": return [caption(files[0], model, running=False, **options).picked]
    if how == "folder":
        captioner = load(model, frames=options.get("frames"))
        return [each.picked for each in captioner.caption_many(
            files, threshold=options.get("threshold"), running=False)]
    if how == "explorer":
        state, found = Exploration(load(model), Library(videos)), []
        for control, value in options.items(): setattr(state, control, value)
        for name in state.library.names:
            state.choose(name)
            found.append(state.outcome().picks.nonzero().flatten().tolist())
        return found
    return [row["times"] for row in caption_many(files, model, **options)]


@pytest.mark.parametrize("how", ["file", "folder", "table", "explorer"])
def test_a_scorer_of_a_model_picks_and_what_it_holds_matters(how, place, tmp_path, monkeypatch):
    monkeypatch.setattr(eyes, "BUNDLED_GLIMPSE", tmp_path/"glimpse.safetensors")
    save_student(random_network(Glimpse), tmp_path/"glimpse.safetensors", torch.zeros(128),
                 torch.ones(128))
    run, videos = place
    own = picks_of(run, videos, how, tmp_path)
    models = {name: with_scorer(run, tmp_path/name, **options) for name, options in {
        "scorer": {}, "seed": {"seed": 1}, "grey": {"eye": "grey"}, "glimpse": {"eye": "glimpse"},
        "four": {"number": 4}, "third": {"every": 3}, "six": {"number": 6},
        "gap": {"number": 6, "rule": "gap"},
        "flat": {"threshold": 0.05}}.items()}
    found = {name: picks_of(model, videos, how, tmp_path) for name, model in models.items()}
    assert own not in found.values()
    one = found.pop("scorer")
    assert {len(each) for each in one} == {3} and {len(each) for each in found["four"]} == {4}
    assert one not in found.values() and found["six"] != found["gap"]
    assert sum(map(len, found["flat"])) < sum(map(len, one))
    # and so do the budget and the threshold of the caller
    more = picks_of(models["scorer"], videos, how, tmp_path, frames=5)
    assert {len(each) for each in more} == {5}
    fewer = picks_of(models["scorer"], videos, how, tmp_path, threshold=1.0)
    assert sum(map(len, fewer)) < sum(map(len, one))


def test_values_are_told_and_streams_keep_the_policy(place, tmp_path):
    run, videos = place
    model, file = with_scorer(run, tmp_path/"model"), sorted(videos.glob("*.mp4"))[0]
    captioner, plain = load(model), load(run)
    told = captioner.caption(file, running=False).to_dict()
    assert len(told["values"]) == 30 and abs(sum(told["values"])) < 0.01
    assert [index for index, p in enumerate(told["probabilities"]) if p] == told["picked"]
    assert "values" not in plain.caption(file, running=False).to_dict()
    remarks = [[each.frame for each in one.stream(str(file), rate=2.0)]
               for one in (captioner, plain)]
    assert remarks[0] == remarks[1] and remarks[0]
    learned = load(model, picker="learned").caption(file, running=False)
    assert learned.picked == plain.caption(file, running=False).picked
    assert learned.values is None


def test_the_page_follows_the_budget_and_shows_the_values(place, tmp_path):
    pytest.importorskip("ipywidgets")
    run, videos = place
    explorer = Explorer(with_scorer(run, tmp_path/"model"), videos, device="cpu")
    controls, parts, state = explorer.controls, explorer.board.parts, explorer.exploration
    boxes = lambda: parts["strip"].value.count("pn-picked")
    dots = lambda: parts["moment"].value.count("pn-dot")
    assert controls["frames"].value == 3 == boxes() == dots() and "limits" not in controls
    values = state.outcome().values
    assert f"value {values[0]:.2f}" in parts["strip"].value
    assert f"{values[0]:+.2f}" in parts["moment"].value
    controls["frames"].value = 6
    assert boxes() == dots() == 6 and state.outcome().name == "scorer-6"
    controls["threshold"].value = 0.05
    assert state.threshold == 0.05 and 1 <= boxes() == dots() < 6
    controls["threshold"].value = controls["threshold"].min
    assert state.threshold is None and boxes() == 6
    explorer.board.tabs.selected_index = 1
    assert "scorer-6" in parts["comparison"].value and not parts["message"].value
    plain = Explorer(run, videos, device="cpu")
    assert "frames" not in plain.controls and "pn-dot" not in plain.board.parts["moment"].value


def test_the_policy_of_a_model_with_a_scorer_is_on_the_page_with_its_own_threshold(
    place, tmp_path
):
    pytest.importorskip("ipywidgets")
    run, videos = place
    model = with_scorer(run, tmp_path/"model")
    explorer = Explorer(model, videos, device="cpu")
    controls, parts, state = explorer.controls, explorer.board.parts, explorer.exploration
    pickers = dict(controls["picker"].options)
    assert "PickNet" in pickers and controls["policy_threshold"].value == 0.5
    controls["picker"].value = pickers["PickNet"]
    alone = Exploration(load(run), Library(videos))  # the same policy, without a scorer
    for threshold in (0.5, 0.05, 0.9):
        controls["policy_threshold"].value = alone.threshold = threshold
        own, found = alone.outcome(), state.outcome()
        assert torch.equal(found.picks, own.picks) and found.captions == own.captions
        torch.testing.assert_close(found.probabilities, own.probabilities)
        frame = state.frame = alone.frame = 5
        assert torch.equal(state.moment().difference, alone.moment().difference), frame
    assert "p(pick)" in parts["strip"].value and not parts["message"].value
    # the budget of the scorer is not the policy's, nor the other way round
    controls["picker"].value = state.captioner.picker
    assert state.outcome().picks.sum() == 3 and "value" in parts["strip"].value
    assert [each.label for each in state.rivals()][:2] == ["scorer-3", "learned"]
    assert "policy_threshold" not in Explorer(run, videos, device="cpu").controls


def test_a_drawn_caption_has_the_curve_of_its_values(place, tmp_path):
    run, videos = place
    file = sorted(videos.glob("*.mp4"))[0]
    scored = caption(file, with_scorer(run, tmp_path/"model"), frames=4)
    axes, plain = (caption_strip(each).axes[0] for each in (scored, caption(file, run)))
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 10]
    assert sum(len(line.get_xdata()) for line in dots) == 4 and len(curves) == 3
    level = [-each for line in curves for each in line.get_ydata() - line.get_ydata().mean()]
    best = max(scored.picked, key=lambda index: scored.values[index])
    row = best // 10 * 10
    assert max(range(row, row + 10), key=lambda index: level[index]) == best
    assert not [line for line in plain.lines if line.get_marker() == "o"]


@pytest.fixture
def begun(place, corpus, tmp_path):
    "A run to begin with: trained on these clips, and with a scorer that sees their features."
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1)
    train(tmp_path/"plain", corpus, config, Recipe(language=1.0), bars=False)
    return with_scorer(tmp_path/"plain", tmp_path/"begun"), config.changed(
        start_from=str(tmp_path/"begun"))


@pytest.mark.parametrize(("recipe", "number"), [
    (Recipe(language=1.0), 3), (Recipe("scorer", 2, adapted=False), 2)])
def test_a_run_on_few_clips_keeps_the_scorer_that_it_begins_with(
    recipe, number, begun, corpus, tmp_path, monkeypatch
):
    folder, config = begun
    train(tmp_path/"run", corpus, config, recipe, bars=False)
    kept, before = load_scorer(tmp_path/"run"), load_scorer(folder)
    assert kept.number == number
    for name, each in before.values.state_dict().items():
        assert torch.equal(kept.values.state_dict()[name], each)
    monkeypatch.setattr(scorers, "FEW", 2)  # clips: these are more
    train(tmp_path/"more", corpus, config, Recipe("scorer", 2, adapted=False), bars=False)
    assert load_scorer(tmp_path/"more").taught_by != kept.taught_by
    found = evaluate(tmp_path/"run", corpus, scores=False, device="cpu")
    assert found.frames_used == number


def test_a_run_that_was_told_how_to_pick_does_not_take_another_scorer(begun, corpus, tmp_path):
    config = begun[1]
    train(tmp_path/"run", corpus, config, Recipe("uniform", 4, adapted=False), bars=False)
    assert load_scorer(tmp_path/"run") is None


def test_what_an_eye_sees_is_prepared_beside_the_clips_and_found_there(
    place, tmp_path, monkeypatch
):
    monkeypatch.setattr(eyes, "BUNDLED_GLIMPSE", tmp_path/"glimpse.safetensors")
    save_student(random_network(Glimpse), eyes.BUNDLED_GLIMPSE, torch.zeros(128), torch.ones(128))
    run, videos = place
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    model = with_scorer(run, tmp_path/"bundled"/"mine", eye="glimpse")
    (model/"card.json").write_text(json.dumps({"scorer": scorer_facts(load_scorer(model))}))
    said = {path.stem: ["a ball rolls"] for path in videos.glob("*.mp4")}
    first, second = ([each] for each in sorted(said))
    options = dict(cnn="tiny", device="cpu", bars=False, min_word_count=1,
                   splits={"train": first, "validation": second, "test": []})
    prepare(videos, said, tmp_path/"mine", **options)
    assert Corpus.load(tmp_path/"mine"/"eyes"/"glimpse").settings.cnn == "glimpse"
    corpus = open_data(str(tmp_path/"mine"), "smoke")
    seen = load_scorer(model).look(corpus).glances
    assert torch.equal(seen, Corpus.load(tmp_path/"mine"/"eyes"/"glimpse").features)
    (tmp_path/"captions.json").write_text(json.dumps(said))
    (tmp_path/"splits.json").write_text(json.dumps(options["splits"]))
    done = invoked("prepare", "videos", "--videos", videos, "--captions", tmp_path/"captions.json",
                   "--splits", tmp_path/"splits.json", "--backbone", "tiny", "--out",
                   tmp_path/"again", "--set", "min_word_count=1")
    assert not done.exception and "what glimpse sees" in done.output
    assert torch.equal(Corpus.load(tmp_path/"again"/"eyes"/"glimpse").features, seen)
    (tmp_path/"msrvtt.json").write_text(json.dumps({
        "videos": [{"video_id": name, "split": split}
                   for name, split in (*zip(first, ["train"]), *zip(second, ["validate"]))],
        "sentences": [{"video_id": name, "caption": each}
                      for name, captions in said.items() for each in captions]}))
    done = invoked("prepare", "msrvtt", "--videos", videos, "--annotations",
                   tmp_path/"msrvtt.json", "--backbone", "tiny", "--out", tmp_path/"published",
                   "--set", "min_word_count=1")
    assert not done.exception and "what glimpse sees" in done.output
    beside = Corpus.load(tmp_path/"published"/"eyes"/"glimpse")
    assert torch.equal(beside.features, seen) and beside.name == "msrvtt"
    (model/SCORER).unlink(), (model/"card.json").unlink()
    prepare(videos, said, tmp_path/"plain", **options)
    assert not (tmp_path/"plain"/"eyes").exists()


@pytest.mark.parametrize(("eye", "looks"), [("tiny", [30]), ("grey", [3])])
def test_the_backbone_looks_at_no_frame_twice(eye, looks, place, tmp_path, monkeypatch):
    run, videos = place
    captioner, counted = load(with_scorer(run, tmp_path/"model", eye=eye)), []
    features = type(captioner).features
    monkeypatch.setattr(type(captioner), "features", lambda self, frames: (
        counted.append(len(frames)) or features(self, frames)))
    found = captioner.caption(sorted(videos.glob("*.mp4"))[0], running=False)
    assert counted == looks and len(found.picked) == 3


def test_a_stream_cannot_have_the_frames_of_a_scorer_that_was_asked_for(place, tmp_path):
    run, videos = place
    model, file = with_scorer(run, tmp_path/"model"), str(sorted(videos.glob("*.mp4"))[0])
    for how in ({"frames": 2}, {"picker": "scorer-3"}):
        with pytest.raises(PickNetError, match="a stream has no end, so scorer-. cannot choose"):
            next(load(model, **how).stream(file))
    asked = invoked("stream", file, "--model", model, "--frames", "2")
    assert "a stream has no end, so scorer-2 cannot" in str(asked.exception)
    assert invoked("stream", file, "--model", model).exit_code == 0


def test_the_policy_beside_a_scorer_keeps_its_own_threshold(place, tmp_path):
    run, videos = place
    file = sorted(videos.glob("*.mp4"))[0]
    shutil.copytree(run, tmp_path/"run")
    settings = json.loads((run/"config.json").read_text())
    settings["policy"]["threshold"] = 0.2
    (tmp_path/"run"/"config.json").write_text(json.dumps(settings))
    own = load(tmp_path/"run").caption(file, running=False).picked
    assert own != load(run).caption(file, running=False).picked
    model = with_scorer(tmp_path/"run", tmp_path/"model")
    assert load(model, picker="learned").caption(file, running=False).picked == own


def test_what_made_a_row_has_the_threshold_and_the_eye(place, tmp_path, monkeypatch):
    run, videos = place
    made, files = {}, sorted(videos.glob("*.mp4"))
    for seed in (0, 1):  # of the weights of the eye
        monkeypatch.setattr(eyes, "BUNDLED_GLIMPSE", tmp_path/f"glimpse-{seed}.safetensors")
        save_student(random_network(Glimpse), eyes.BUNDLED_GLIMPSE, torch.full((128,), seed),
                     torch.ones(128))
        model = tmp_path/"model"
        if not model.exists(): with_scorer(run, model, eye="glimpse")
        made["eye", seed] = Specification(str(model)).load(device="cpu").made_with
    made["half"] = Specification(str(model), threshold=0.5).load(device="cpu").made_with
    made["policy"] = Specification(str(model), picker="learned").load(device="cpu").made_with
    assert len(set(made.values())) == len(made)
    assert "threshold=none" in made["eye", 1] and "threshold=0.5" in made["half"]
    for row, file in zip(caption_many(files, model), files):
        assert row["values"] == caption(file, model).to_dict()["values"]
        assert len(row["values"]) == 30
    assert all(row["values"] is None for row in caption_many(files, model, picker="learned"))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_table_keeps_the_values_and_continues(ending, place, tmp_path):
    run, videos = place
    model, files = with_scorer(run, tmp_path/"model"), sorted(videos.glob("*.mp4"))
    how = Specification(str(model))
    caption_list(files[:1], tmp_path/f"rows.{ending}", how, progress=False)
    done = caption_list(files, tmp_path/f"rows.{ending}", how, progress=False)
    assert done.done == 1
    stored = list(Table(done.out).read(done.out))
    assert [row["values"] for row in stored] == [
        row["values"] for row in caption_many(files, model)]


def test_an_eye_with_other_weights_is_an_error(place, tmp_path):
    run, _ = place
    model = with_scorer(run, tmp_path/"model")
    stored = load_scorer(model)
    save_scorer(model, replace(stored, weights="tiny 0123456789ab"))
    with pytest.raises(RunError, match="was trained to see with other weights"):
        load(model)


def test_evaluation_picks_with_the_scorer_and_its_budget(run, corpus, tmp_path):
    found = {frames: evaluate(run, corpus, scores=False, device="cpu", frames=frames)
             for frames in (None, 1, 5)}
    assert [each.frames_used for each in found.values()] == [3.0, 1.0, 5.0]
    narrow = replace(corpus, features=corpus.features[..., :32],
                     settings=replace(corpus.settings, cnn="narrow"))
    narrow.save(tmp_path/"seen")
    torch.manual_seed(0)
    shutil.copytree(run, tmp_path/"run")
    save_scorer(tmp_path/"run", StoredScorer(some_values(32), 3, "narrow"))
    with pytest.raises(RunError, match="name a corpus of the same clips"):
        evaluate(tmp_path/"run", corpus, scores=False, device="cpu")
    seen = evaluate(tmp_path/"run", corpus, scores=False, device="cpu", eye=tmp_path/"seen")
    assert seen.frames_used == 3.0
