"examples/picknet_min.py: one short file, the code of the one-page notebook, and it trains."
import ast
import json
from pathlib import Path

import pytest
import torch
from conftest import load_script

ROOT = Path(__file__).parents[1]
FILE = ROOT/"examples"/"picknet_min.py"


def definitions(code: str) -> dict[str, str]:
    "Functions and classes at the top level, by name, as Python prints them."
    kinds = ast.FunctionDef, ast.ClassDef
    body = ast.parse(code).body
    return {each.name: ast.unparse(each) for each in body if isinstance(each, kinds)}


@pytest.fixture
def small(monkeypatch):
    "The example with a handful of clips and epochs."
    module = load_script(FILE)
    monkeypatch.setattr(module, "HELD_OUT", 4)
    monkeypatch.setattr(module, "EPOCHS", dict.fromkeys(module.EPOCHS, 2))
    return module


def test_it_is_short():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200 and max(map(len, lines)) <= 100


def test_the_one_page_has_the_same_code():
    cells = json.loads((ROOT/"nbs"/"method"/"00_one_page.ipynb").read_text())["cells"]
    page = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    shown, example = definitions(page), definitions(FILE.read_text())
    assert example and {name: shown.get(name) for name in example} == example


@pytest.mark.parametrize("baseline", ["leave-one-out", "greedy"])
def test_each_stage_changes_its_own_part(small, monkeypatch, baseline):
    monkeypatch.setattr(small, "BASELINE", baseline)
    torch.manual_seed(0)
    data = small.Data(small.make_stories(1 + 4 + 16))
    captioner, policy = small.Captioner(len(data.vocabulary)), small.PickNet()
    copy = lambda part: torch.cat([each.detach().flatten().clone() for each in part.parameters()])
    for stage, changes in {"supervision": (True, False), "reinforcement": (False, True),
                           "adaptation": (True, True)}.items():
        before = copy(captioner), copy(policy)
        history = small.train_stage(stage, data, captioner, policy)
        after = copy(captioner), copy(policy)
        assert tuple(not torch.equal(*each) for each in zip(before, after)) == changes
        assert len(history) == 2
    rows = small.compare(data, captioner, policy)
    assert rows["oracle"][2] <= small.MAX_PICKS and rows["all 30"][2] == 30


def test_the_score_knows_the_true_sentence(small):
    data = small.Data(small.make_stories(1 + 4 + 12))
    own = data.score(data.words[data.train], data.train)
    other = data.score(data.words[data.train].roll(1, 0), data.train)
    torch.testing.assert_close(own, torch.ones(len(own)))
    assert (other < 0.999).any() and other.mean() < own.mean()
