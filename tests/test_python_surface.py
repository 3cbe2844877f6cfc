"What people write in Python, and parts of their own wherever a command or function takes one."
import json
import pickle
import sys
from collections import deque
from pathlib import Path

import pytest
from conftest import noise_corpus
from toys import invoked

from picknet_nb.core.registry import MODULES, USED, use_thing
from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import BACKBONES
from picknet_nb.measure.experiments import Task, Workers, do_on_node
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS
from picknet_nb.method.recipes import ROWS
from picknet_nb.method.rewards import REWARDS

MINE = '''
import torch
from torch import nn

from picknet_nb import Captioner, setting


class Pooled(Captioner):
    settings = {"pools": setting(2, "ours: how many pools", low=1, high=9)}

    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        size, self.pools = settings.hidden, settings.pools
        self.seen, self.words = nn.Linear(feature_dims, size), nn.Embedding(vocabulary_size, size)
        self.cell, self.say = nn.GRUCell(size, size), nn.Linear(size, vocabulary_size)

    def encode(self, picked):
        weight = picked.mask.float() / picked.mask.sum(1, keepdim=True)
        return self.seen((weight[..., None] * picked.features.float()).sum(1))

    def start(self, memory): return memory

    def step(self, word, state, memory):
        state = self.cell(self.words(word), state)
        return state, self.say(state)


def few(words, clips, features, picks): return -picks.sum(1).float()


few.needs_words = False


def ends(clips):
    picks = torch.zeros(clips.features.shape[:2], dtype=torch.bool, device=clips.features.device)
    picks[:, [0, -1]] = True
    return picks


ends.looks_at, ends.random = "nothing", False
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    "A folder with a module of parts of one's own, and no trace of it afterwards."
    registries = PICKERS, CAPTIONERS, REWARDS, ROWS, BACKBONES
    before = [dict(registry) for registry in registries]
    (tmp_path/"mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for known in (sys.modules, MODULES):
        known.pop("mine", None)
    USED.clear()
    for registry, content in zip(registries, before):
        registry.clear()
        registry.update(content)


# parts of one's own in other processes
# --------------------------------------------------------------------------------------------------


def parts_known(corpus, config=None, bars=False, place=None) -> list[str]:
    "A job that needs the user's parts, and what it found."
    parts = CAPTIONERS.find("mine:Pooled"), REWARDS.find("mine:few"), PICKERS.find("mine:ends")
    return [type(part).__name__ for part in parts] + [config and config.captioner.pools]


def test_a_worker_process_knows_parts_that_are_named_by_their_module(mine):
    use_thing("mine:Pooled")
    workers = Workers(noise_corpus(4), 2, noise_corpus, tuple(USED), bars=False)
    (done,) = workers.results(deque([Task(Path("made"), parts_known)]))
    assert done.answer == ["type", "function", "function", None], done.reason


def forget_mine() -> None:
    "This process as a node of a cluster would be: it has never heard of the module."
    for registry in (PICKERS, CAPTIONERS, REWARDS):
        for name in [name for name in registry if name.startswith("mine:")]:
            del registry[name]
    for known in (sys.modules, MODULES):
        known.pop("mine", None)


def test_a_node_of_a_cluster_knows_them_too_and_their_settings_arrive(mine):
    from functools import partial

    use_thing("mine:Pooled")
    config = preset("smoke").changed(architecture="mine:Pooled", pools=5)
    sent = pickle.dumps(Task(Path("made"), partial(parts_known, config=config)))
    forget_mine()
    task = pickle.loads(sent)  # before anything else happens there
    assert task.work.keywords["config"] == config
    assert do_on_node(task, noise_corpus, ("mine",)) == ["type", "function", "function", 5]


# ... and in commands
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def handed_over(monkeypatch) -> dict:
    "What the commands that train many models hand over, without any training."
    given = {}

    def note(*arguments, **options):
        given.update(options, changes=next(each for each in arguments if isinstance(each, dict)))
        return {"rows": [], "config": {}}

    for place in ("reproduction.reproduce", "comparison.compare_captioners",
                  "frontier.measure_frontier"):
        monkeypatch.setattr(f"picknet_nb.measure.{place}", note)
    monkeypatch.setattr("picknet_nb.interface.reproduce.finish", lambda *arguments: None)
    return given


@pytest.mark.parametrize("command", [
    ("reproduce", "--captioner", "mine:Pooled"), ("reproduce", "--set", "architecture=mine:Pooled"),
    ("compare", "--captioner", "mine:Pooled"), ("frontier", "--set", "architecture=mine:Pooled")])
def test_commands_import_the_parts_that_settings_name(command, mine, handed_over):
    said = invoked(*command, "--set", "pools=3", "--set", "reward=mine:few", "--no-scores")
    assert said.exit_code == 0, said.output + str(said.exception)
    assert handed_over["modules"] == ["mine"]
    assert handed_over["changes"]["pools"] == 3 and handed_over["changes"]["reward"] == "mine:few"
    assert CAPTIONERS.find("mine:Pooled") and REWARDS.find("mine:few")


def test_train_knows_the_settings_of_a_captioner_that_it_imports(mine):
    noise_corpus(12).save(mine/"noise")
    quick = [word for name in ("supervision", "reinforcement", "adaptation")
             for word in ("--set", f"{name}_epochs=0")]
    train = ("train", mine/"run", "--data", mine/"noise", "--preset", "smoke", *quick)
    said = invoked(*train, "--captioner", "mine:Pooled", "--set", "pools=3", "--picker",
                   "mine:ends")
    assert said.exit_code == 0, said.output + str(said.exception)
    stored = json.loads((mine/"run"/"config.json").read_text())["captioner"]
    assert (stored["architecture"], stored["pools"]) == ("mine:Pooled", 3)
    forget_mine()  # another process, which is told of the module by an option
    said = invoked("train", mine/"run", "--resume", "--captioner", "mine:Pooled", "--picker",
                   "mine:ends")
    assert said.exit_code == 0, said.output + str(said.exception)
