"A captioner that says one sentence for everything, made so, and everybody who has to notice it."
import json
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

pytest.importorskip("pycocoevalcap")

from conftest import noise_corpus

from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.text import BOS, EOS
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.recipes import Recipe
from picknet_nb.training.diagnostics import describe_captions, warn_if_due
from picknet_nb.measure import experiments, metrics
from picknet_nb.measure.reproduction import reproduce
from picknet_nb.measure.tables import results_table
from picknet_nb.interface import main as cli

QUICK = dict(supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1, shrink_epochs=1)
SAME = "all 8 clips get one and the same sentence"


class Parrot(nn.Module):
    "It knows one sentence of three words, and sees nothing."

    def __init__(self, settings, feature_dims: int, vocabulary_size: int):
        super().__init__()
        self.following = nn.Embedding(vocabulary_size, vocabulary_size)
        for word, follower in ((BOS, 4), (4, 5), (5, 6), (6, EOS)):
            self.following.weight.data[word, follower] = 20.0

    def encode(self, picked): return picked.features.float().sum(1)
    def start(self, memory): return torch.zeros(len(memory), 1)
    def step(self, word, state, memory):
        return state, self.following(word) + 0 * memory.sum(1, keepdim=True)


@pytest.fixture
def parrot(tmp_path, monkeypatch):
    "A corpus of eight test clips, and the name of a captioner that cannot tell them apart."
    noise_corpus().save(tmp_path/"corpus")
    monkeypatch.setitem(CAPTIONERS, "parrot", Parrot)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        metrics,
        "score_many",
        lambda systems, references, *_, **__: [
            (
                name,
                metrics.Scores({"CIDEr": 0.5}, "quick", {"CIDEr": dict.fromkeys(references, 0.5)}),
            )
            for name in systems
        ],
    )  # Java takes seconds
    return "parrot"


def test_train_and_evaluate_say_so(parrot, tmp_path, monkeypatch, capsys):
    changes = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "picknet",
            "train",
            "run",
            "--data",
            "corpus",
            "--scale",
            "smoke",
            "--captioner",
            parrot,
            *changes,
        ],
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr().err
    assert end.value.code == 0 and re.search(
        f"(^|\\r)picknet: supervision, after 1 epoch: {SAME}", told, re.M
    )
    line = json.loads((tmp_path/"run"/"log.jsonl").read_text().splitlines()[0])
    assert line["diagnostics"]["distinct"] == 1 and len(line["samples"]) == 3
    said, people = zip(*line["samples"])
    assert len(set(said)) == 1 and len(set(people)) == 3

    found = CliRunner().invoke(cli.app, ["evaluate", "--model", "run"])
    assert (
        found.exit_code == 0
        and "1 distinct caption of 8" in found.stdout
        and f"picknet: {SAME}" in found.stderr
    )
    found = json.loads(CliRunner().invoke(cli.app, ["evaluate", "--model", "run", "--json"]).stdout)
    assert found["diagnostics"]["distinct"] == 1 and found["diagnostics"]["clips"] == 8


def test_its_table_says_so(parrot, tmp_path):
    with pytest.warns(UserWarning, match=SAME):
        result = reproduce(
            "corpus",
            "smoke",
            ["Baseline"],
            1,
            tmp_path/"table",
            {**QUICK, "architecture": parrot},
            bars=False,
        )
    header, _, row = results_table(result).splitlines()[:3]
    columns = dict(zip(header.split(" | "), row.split(" | ")))
    assert columns["distinct"] == "1 of 8" and columns["words"] == "3.0"


def test_ten_epochs_without_a_step_are_noticed_once():
    line = {
        "stage": "supervision",
        "diagnostics": {"clips": 12, "distinct": 12, "length": 5.0, "without_eos": 0.0},
        "validation": {"CIDEr": 0.2},
    }
    with pytest.warns(UserWarning, match="has not moved for 10 epochs"):
        warn_if_due([line] * 10, "supervision", 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_due([line] * 11, "supervision", 30)
        # too few to move often
        warn_if_due(
            [{**line, "diagnostics": {**line["diagnostics"], "clips": 2, "distinct": 2}}] * 10,
            "supervision",
            30,
        )
    with pytest.warns(UserWarning) as seen:
        cut_off = {**line["diagnostics"], "without_eos": 1.0}
        warn_if_due([{**line, "diagnostics": cut_off}], "supervision", 1)
    assert len(seen) == 1 and "100% of the captions have no <eos>" in str(seen[0].message)


def test_a_policy_that_keeps_within_its_limits_by_chance_alone_is_noticed():
    line = {
        "stage": "reinforcement",
        "inside": 0.93,
        "diagnostics": {"clips": 12, "distinct": 12, "length": 5.0, "without_eos": 0.0},
        "validation": {"CIDEr": 0.2, "inside": 0.41},
    }
    with pytest.warns(UserWarning, match="sampled picks .* 93% of the clips, greedy picks for 41%"):
        warn_if_due([line], "reinforcement", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_due([{**line, "validation": {"CIDEr": 0.2, "inside": 0.9}}], "reinforcement", 1)
        # it has not learned the limits at all, and its score says so
        warn_if_due([{**line, "inside": 0.5}], "reinforcement", 1)
        # a share of nine clips is no share
        warn_if_due(
            [{**line, "diagnostics": {**line["diagnostics"], "clips": 9, "distinct": 9}}],
            "reinforcement",
            1,
        )


def test_words_are_counted_before_they_are_joined(monkeypatch):
    "A caption that was cut off has no `<eos>`, whether its words are written as one or not."
    config = preset("smoke", min_word_count=1)
    corpus = Corpus.build(
        "hands", ["a", "b", "c"], torch.zeros(3, 30, 4).half(), torch.zeros(3, 30, 4).byte(),
        [["a woman's hand", "it isn't red"], ["a hand"], ["red"]],
        {"train": [0], "validation": [], "test": [1, 2]}, config.clip,
    )
    ids = corpus.vocabulary.ids
    cut_off = [ids[word] for word in "a woman 's hand".split()] * 4
    words = torch.tensor([cut_off, [ids["it"], EOS] + [0] * 14])
    wanted = {"clips": 2, "distinct": 2, "length": 8.5, "without_eos": 0.5}

    logged = describe_captions(SimpleNamespace(words=words, videos=torch.arange(2)), corpus)
    assert logged["diagnostics"] == wanted
    picks = torch.ones(2, 30, dtype=torch.bool)
    monkeypatch.setattr(experiments, "caption_videos", lambda *_, **__: (words, picks))
    row = experiments.measure_row(SimpleNamespace(policy=None), corpus, config, Recipe("all"))
    assert row["diagnostics"]["greedy"] == wanted
    assert row["captions"]["greedy"]["c"] == "it"
