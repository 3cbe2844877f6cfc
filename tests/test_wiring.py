"""Every setting that is stored with a model, a run or a corpus changes what it should, where it
acts. TABLE has a row for each of them; a setting without a row fails. To retire a setting, delete
its row."""
import json
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import noise_corpus
from safetensors.torch import load_file
from toys import colours, store_run, undecided

import picknet_nb.systems  # noqa: F401
from picknet_nb.core.settings import Config, own_settings, preset
from picknet_nb.data.backbones import BACKBONES
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import Corpus
from picknet_nb.world.world import write_examples
from picknet_nb.data.text import SPECIALS, Vocabulary
from picknet_nb.method.captioner import CAPTIONERS, Captioner, caption, make_captioner
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.pickers import make_picker
from picknet_nb.method.recipes import Recipe, recipes
from picknet_nb.method.rewards import REWARDS, reward_from
from picknet_nb.method.stages import Validation
from picknet_nb.training import scorers
from picknet_nb.training.models import Decoding, export_model
from picknet_nb.training.train import train
from picknet_nb.use import clips as at_work
from picknet_nb.use.clips import ClipCaptioner
from picknet_nb.use.loading import load_captioner

# of runs as short as these, much could be said
pytestmark = pytest.mark.filterwarnings("ignore:.*(one and the same|never end|single word)")

DECLARED = [
    *(each.name for group in fields(Config) for each in fields(group.default_factory)),
    *(f"{kind}.{name}" for kind in CAPTIONERS for name in own_settings(kind)),
    *(f"decoding.{each.name}" for each in fields(Decoding)),
    *(f"recipe.{each.name}" for each in fields(Recipe)),
]
BOTH = recipes()["PickNet (V+L)"]
BASE = dict(supervision_epochs=1, word_epochs=1, reinforcement_epochs=2, adaptation_epochs=1,
            keep="last", shrink_epochs=1)
# where a change can show first: the weights of a part at the end of a stage
PLACES = [("supervision", "captioner"), ("words", "captioner"), ("reinforcement", "policy"),
          ("adaptation", "captioner"), ("adaptation", "policy")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    "A folder for runs, with the clips of a toy in it."
    folder = tmp_path_factory.mktemp("wired")
    write_examples(folder/"videos", 2)
    trained.cache_clear()
    return folder


@cache
def clips() -> Corpus:
    return noise_corpus(20)


@cache
def trained(folder: Path, changes: tuple, recipe: Recipe = BOTH) -> dict[tuple, dict]:
    "The weights of each part at the end of each stage of a run."
    run = folder/f"run{trained.cache_info().misses}"
    train(run, clips(), preset("smoke", **dict(changes)), recipe, bars=False)
    return {
        (stage, part): {
            name: weight for name, weight in load_file(run/f"{stage}.safetensors").items()
            if name.startswith(part)
        }
        for stage, part in PLACES if (run/f"{stage}.safetensors").exists()
    }


def same(one: dict | None, other: dict | None) -> bool:
    if one is None or other is None or one.keys() != other.keys():
        return one is other
    return all(one[name].shape == other[name].shape and torch.equal(one[name], other[name])
               for name in one)


def first_difference(one: dict, other: dict) -> str | None:
    "The stage in which two runs part."
    return next((place[0] for place in PLACES if not same(one.get(place), other.get(place))), None)


@dataclass
class Trains:
    "A setting that changes weights, in this stage for the first time."
    stage: str
    value: object
    base: dict = field(default_factory=dict)  # what it needs to have an effect

    def __call__(self, name: str, place: Path, monkeypatch) -> None:
        base = BASE | self.base
        one = trained(place, tuple(base.items()))
        other = trained(place, tuple((base | {name: self.value}).items()))
        assert first_difference(one, other) == self.stage


@dataclass
class Own:
    "A setting of one captioner that changes its weights, in this stage for the first time."
    stage: str
    value: object

    def __call__(self, name: str, place: Path, monkeypatch) -> None:
        captioner, _, own = name.partition(".")
        Trains(self.stage, self.value, {"architecture": captioner, "word_epochs": 0})(
            own, place, monkeypatch)


@dataclass
class Recipes:
    "A part of a recipe that changes weights, in this stage for the first time."
    stage: str
    one: Recipe
    other: Recipe

    def __call__(self, name: str, place: Path, monkeypatch) -> None:
        runs = [trained(place, tuple(BASE.items()), each) for each in (self.one, self.other)]
        assert first_difference(*runs) == self.stage


@dataclass
class Files:
    "A setting that a captioner of files obeys: what is seen with each value."
    see: object   # (VideoCaptioner, Caption) -> anything
    wanted: dict  # value -> what is seen

    def __call__(self, name: str, place: Path, monkeypatch) -> None:
        monkeypatch.setitem(BACKBONES, "colours", colours)
        for value, wanted in self.wanted.items():
            folder = place/f"{name} {value}"
            if name.startswith("decoding."):
                run = store_run(place/f"{name} {value} run", place/"videos")
                export_model(run, folder, Decoding(**{name.partition(".")[2]: value}))
            elif name.startswith("recipe."):
                store_run(folder, place/"videos", value)
            else:
                undecided(store_run(folder, place/"videos", **{name: value}))
            captioner = load_captioner(folder, device="cpu")
            caption = captioner.caption(place/"videos"/"example.mp4")
            assert self.see(captioner, caption) == wanted, (name, value)


@dataclass
class Corpora:
    "A setting that a corpus is built with: what is seen with each value."
    see: object   # Corpus -> anything
    wanted: dict  # value -> what is seen

    def __call__(self, name: str, place: Path, monkeypatch) -> None:
        said = [["a dog runs", "a dog sits"], ["a cat runs"], ["one bird", "one bird"]]
        for value, wanted in self.wanted.items():
            settings = replace(preset("smoke", glance="feature").clip, **{name: value})
            corpus = Corpus.build(
                "words", ["a", "b", "c"], torch.zeros(3, 30, 4).half(), None, said,
                {"train": [0], "validation": [1], "test": [2]}, settings,
            )
            assert self.see(corpus) == wanted, (name, value)
            corpus.save(place/f"corpus {name} {value}")
            assert self.see(Corpus.load(place/f"corpus {name} {value}")) == wanted, (name, value)


def scores(*values):
    "A validation that says these one after the other, whatever the model."
    left = iter(values * 10)
    return lambda self, model: {"score": next(left), "CIDEr": 0.0, "picks": 5.0, "inside": 1.0}


def keeps_the_best_or_the_last(name, place, monkeypatch) -> None:
    runs = {}
    for value, best in (("best", 0), ("best ", 1), ("last", 0)):
        monkeypatch.setattr(Validation, "__call__", scores(*((1.0, 0.0) if best == 0 else (0, 1))))
        changes = BASE | dict(supervision_epochs=2, keep=value.strip(), word_epochs=0,
                              reinforcement_epochs=0, adaptation_epochs=0)
        run = place/f"keep {value}"
        train(run, clips(), preset("smoke", **changes), recipes()["Baseline"], bars=False)
        runs[value] = load_file(run/"weights.safetensors")
    assert not same(runs["best"], runs["last"]) and same(runs["best "], runs["last"])


def starts_from_another_run(name, place, monkeypatch) -> None:
    trained(place, tuple(BASE.items()))
    other = place/"to start from"
    train(other, clips(), preset("smoke", **BASE | {"seed": 5}), BOTH, bars=False)
    one = trained(place, tuple(BASE.items()))
    two = trained(place, tuple((BASE | {"start_from": str(other)}).items()))
    assert first_difference(one, two) == "supervision"
    begun = sorted(place.glob("run*"), key=lambda path: path.stat().st_mtime)[-1]
    assert json.loads((begun/"run.json").read_text())["began_from"]["model"] == str(other)


def rewards_as_the_name_says(name, place, monkeypatch) -> None:
    few = lambda words, clips, features, picks: -picks.sum(1).float()
    monkeypatch.setitem(REWARDS, "few", reward_from(few))
    Trains("reinforcement", "few")(name, place, monkeypatch)


def trusts_its_tags(name, place, monkeypatch) -> None:
    "What is added to the scores of candidates grows with the setting."
    added = {}
    for value in (1.0, 3.0):
        config = preset("smoke", architecture="ruc-uva", trust=value)
        torch.manual_seed(0)
        captioner = make_captioner(config.captioner, 12, 9)
        frames, candidates = torch.rand(2, 5, 12), torch.randint(1, 9, (2, 4, 6))
        memory = captioner.encode(pick_frames(frames, torch.ones(2, 5, dtype=torch.bool)))
        added[value] = captioner.rescore(memory, candidates, torch.zeros(2, 4))
    assert added[1.0].any() and torch.allclose(added[3.0], 3 * added[1.0])


def searches_with(part):
    "What a beam search is asked for, as a model's decoding says."
    def see(captioner, caption):
        asked, plain = [], at_work.search_beam

        def noted(captioner, memory, size, max_words, **options):
            asked.append(size if part == "beam" else options["no_repeats"])
            return plain(captioner, memory, size, max_words, **options)

        at_work.search_beam = noted
        try: captioner.caption(caption.source)
        finally: at_work.search_beam = plain
        return asked[0]
    return see


def words_of(corpus) -> list[str]: return sorted(corpus.vocabulary.words[4:])


def scores_otherwise(value, **base):
    "A setting that changes the scorer of a run."
    def check(name, place, monkeypatch) -> None:
        monkeypatch.setattr(scorers, "fit_scorers", partial(scorers.fit_scorers, epochs=2))
        files = []
        for changes in (base, base | {name: value}):
            run = place/f"scored {name} {changes.get(name)}"
            train(run, clips(), preset("smoke", supervision_epochs=1, **changes),
                  Recipe("scorer", 2, adapted=False), bars=False)
            files.append((run/"scorer.safetensors").read_bytes())
        assert files[0] != files[1]
    return check


WAYS = dict(feedback_every=1, feedback_step=0.2, supervision_epochs=3)
UNIFORM = Recipe("uniform", 6)
TABLE = {
    # clips
    "frames": Files(lambda who, said: (len(said.probabilities), len(said.clip.frames)),
                    {30: (30, 30), 12: (12, 12)}),
    "cnn": Files(lambda who, said: (who.backbone.name, who.backbone.dims),
                 {"tiny": ("tiny", 256), "colours": ("colours", 12)}),
    "glance_size": Files(lambda who, said: who.glances(said.clip.frames).shape[1],
                         {56: 3136, 14: 196}),
    "glance": Files(lambda who, said: (who.sees_all, "glance" in said.timings),
                    {"grey": (False, True), "feature": (True, False)}),
    "min_word_count": Corpora(words_of, {1: ["a", "dog", "runs", "sits"], 2: ["a", "dog"]}),
    "vocabulary_from": Corpora(words_of, {
        "train": ["a", "dog", "runs", "sits"],
        "all": ["a", "bird", "cat", "dog", "one", "runs", "sits"]}),
    "max_words": [
        Corpora(lambda corpus: corpus.words.shape[1], {16: 16, 3: 3}),
        Files(lambda who, said: len(who.words(who.remember(
            torch.zeros(1, 256).half(), torch.arange(1)))[0][0, 0]), {16: 16, 3: 3})],
    # captioner
    "architecture": Trains("supervision", "ta"),
    "feature_embedding": Trains("supervision", 16),
    "word_embedding": Trains("supervision", 16),
    "hidden": Trains("supervision", 32),
    "dropout": Trains("supervision", 0.4),
    "input_dropout": Trains("supervision", 0.3),
    "video_vector": Trains("supervision", "mean"),
    "mention_weight": Trains("supervision", 0.5, {"mention_weight": 0.1}),
    # policy
    "policy_hidden": Trains("reinforcement", 16),
    "clock": Trains("reinforcement", True),
    "reward": rewards_as_the_name_says,
    "language_weight": Trains("reinforcement", 0.2),
    "diversity_weight": Trains("reinforcement", 0.2),
    "penalty": Trains("reinforcement", -3.0),
    "min_picks": Trains("reinforcement", 5),
    "first_max_picks": Trains("reinforcement", 14),
    "final_max_picks": Trains("reinforcement", 4),
    "shrink_epochs": Trains("reinforcement", 9, {"final_max_picks": 4}),
    "baseline": Trains("reinforcement", "greedy"),
    "rollouts": Trains("reinforcement", 3),
    "entropy_weight": Trains("reinforcement", 2.0),
    "eye": scores_otherwise("grey", judges=0),
    "scorer_rule": scores_otherwise("gap", judges=0),
    "judges": scores_otherwise(2, judges=0),
    "threshold": Files(lambda who, said: len(said.picked) > 20, {0.01: True, 0.99: False}),
    # training
    "batch_size": Trains("supervision", 10),
    "captions_together": Trains("supervision", 1, {"word_epochs": 0}),
    "supervision_rate": Trains("supervision", 1e-3),
    "reinforcement_rate": Trains("reinforcement", 1e-4),
    "adaptation_rate": [Trains("adaptation", 1e-4, {"word_epochs": 0}), Trains("words", 1e-4)],
    "supervision_epochs": Trains("supervision", 2),
    "reinforcement_epochs": Trains("reinforcement", 3),
    "adaptation_epochs": Trains("adaptation", 2),
    "weight_decay": Trains("supervision", 0.1),
    "label_smoothing": Trains("supervision", 0.2),
    "feedback_step": Trains("supervision", 0.1, WAYS),
    "feedback_every": Trains("supervision", 2, WAYS),
    "supervision_picks": Trains("supervision", 3),
    "varied_picks": Trains("supervision", True),
    "consensus": Trains("supervision", 1.0),
    "word_epochs": Trains("words", 2),
    "keep": keeps_the_best_or_the_last,
    "average_weights": Trains("supervision", 0.5),
    "seed": Trains("supervision", 1),
    "start_from": starts_from_another_run,
    # of one captioner each
    "lstm-e.coherence": Own("supervision", 0.1),
    "ruc-uva.trust": trusts_its_tags,
    "hrne.window": Own("supervision", 10),
    "ms-rnn.latent": Own("supervision", 4),
    "densecap.detection_weight": Own("supervision", 0.1),
    "transformer.layers": Own("supervision", 2),
    "transformer.patches": Own("supervision", 2),
    # how a model makes sentences
    "decoding.beam": Files(searches_with("beam"), {1: 1, 4: 4}),
    "decoding.no_repeats": Files(searches_with("no_repeats"), {False: False, True: True}),
    # which frames, and what was learned for them
    "recipe.picker": Files(lambda who, said: said.picked, {
        UNIFORM: [0, 6, 12, 17, 23, 29], Recipe("all"): list(range(30))}),
    "recipe.picks": Files(lambda who, said: len(said.picked),
                          {UNIFORM: 6, Recipe("uniform", 3): 3}),
    "recipe.adapted": Recipes("adaptation", UNIFORM, replace(UNIFORM, adapted=False)),
    "recipe.language": Recipes("reinforcement", BOTH, replace(BOTH, language=0.0)),
    "recipe.diversity": Recipes("reinforcement", BOTH, replace(BOTH, diversity=0.0)),
    "recipe.architecture": Recipes("supervision", UNIFORM, replace(UNIFORM, architecture="ta")),
}


def test_every_setting_has_a_row_and_every_row_a_setting():
    assert sorted(TABLE) == sorted(DECLARED)


@pytest.mark.parametrize("name", TABLE)
def test_a_setting_acts_where_it_should(name, place, monkeypatch):
    row = TABLE[name]
    for check in row if isinstance(row, list) else [row]:
        check(name, place, monkeypatch)


def test_a_run_is_the_same_twice(place):
    trained.cache_clear()
    one = trained(place/"one", tuple(BASE.items()))
    trained.cache_clear()
    assert first_difference(one, trained(place/"two", tuple(BASE.items()))) is None


class Torn(Captioner):
    "It prefers a word by less than a logarithm can hold, and judges candidates by its own rule."

    def encode(self, picked): return picked.features.float().sum(1)
    def start(self, memory): return torch.zeros(len(memory), 1)
    def rescore(self, memory, candidates, scores): return candidates.float().mean(-1)

    def step(self, word, state, memory):
        logits = torch.zeros(len(word), 9)
        logits[:, 6] = 1e-8
        return state, logits + 1e-8 * (word[:, None] == 6) * torch.arange(9)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("no_repeats", [False, True])
def test_files_are_decoded_as_in_an_evaluation(beam, no_repeats):
    torn, features = Torn(), torch.rand(1, 5, 12).half()
    model = ClipCaptioner(load_backbone("tiny"), make_picker("all"), torn,
                          Vocabulary((*SPECIALS, *"abcde")), preset("smoke", max_words=7),
                          Decoding(beam, no_repeats))
    words, _ = model.words(model.remember(features[0], torch.arange(5), running=False))
    every = torch.ones(1, 5, dtype=torch.bool)
    assert torch.equal(words[:, 0], caption(torn, features, every, 7, beam, no_repeats=no_repeats))
