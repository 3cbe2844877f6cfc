"""Every exercise: its tests fail on the stub, pass on the folded solution, and notice the common
mistakes."""
import ast
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1]/"nbs"/"exercises"
EXERCISES = sorted(FOLDER.glob("0[12346]_*.ipynb"))  # 05: projects
sys.path.insert(0, str(FOLDER))
from checking import check


def cells_of(path: Path) -> list:
    return nbformat.read(path, as_version=4).cells


def functions_in(code: str) -> set[str]:
    "The names of the functions that code defines at its top level."
    return {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}


def stubs_of(path: Path) -> list[str]:
    "Cells of code that a student has to write."
    return [cell.source for cell in cells_of(path)
            if cell.cell_type == "code" and "raise NotImplementedError" in cell.source]


def solutions_of(path: Path) -> list[str]:
    "The code of the folded solutions."
    folded = r"<details><summary>Solution</summary>.*?```python\n(.*?)```.*?</details>"
    return [found for cell in cells_of(path) if cell.cell_type == "markdown"
            for found in re.findall(folded, cell.source, re.S)]


class Desk:
    "A notebook of exercises that has been run as it is, and what a student writes into it."

    def __init__(self, path: Path):
        self.path, self.space = path, {"__name__": "exercise"}
        self.stubs, self.solutions = stubs_of(path), solutions_of(path)
        self.run([cell.source for cell in cells_of(path) if cell.cell_type == "code"])

    def run(self, codes: list[str]) -> None:
        "Run code in the folder of the notebook."
        here = os.getcwd()
        os.chdir(self.path.parent)
        try:
            for code in codes:
                exec(compile(code, str(self.path), "exec"), self.space)
        finally:
            os.chdir(here)

    def passing(self, written: list[str]) -> list[bool]:
        "Which tests pass if this is written instead of the stubs."
        self.run([*self.stubs, *written])
        return [check(test) for test in self.tests]

    @property
    def tests(self) -> list:
        return [each for name, each in self.space.items() if name.startswith("test_")]


@pytest.fixture(scope="module", params=EXERCISES, ids=lambda path: path.stem)
def desk(request) -> Desk:
    return Desk(request.param)


def test_there_are_three_levels_each_with_a_stub_tests_and_a_solution(desk):
    cells = cells_of(desk.path)
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert re.findall(r"^## Level (\d): .+$", prose, re.M) == ["1", "2", "3"]
    assert len(desk.stubs) == len(desk.solutions) == 3
    for stub, solution in zip(desk.stubs, desk.solutions):
        assert functions_in(stub) <= functions_in(solution)
    assert not any("default_exp" in cell.source for cell in cells)


def test_every_test_fails_on_the_stub(desk):
    assert len(desk.tests) >= 9 and not any(desk.passing([]))


def test_every_test_passes_on_the_solution(desk):
    assert all(desk.passing(desk.solutions))
    # with what a student sees then: a figure, in some of them
    desk.run([cell.source for cell in cells_of(desk.path) if "\nif check(" in cell.source])


def test_the_tests_of_a_level_need_no_later_level(desk):
    counts = [sum(desk.passing(desk.solutions[:level])) for level in (1, 2)]
    assert 0 < counts[0] < counts[1] < len(desk.tests)


MISTAKES = {  # what a student may write instead, by exercise
    "01": [
        ("(reset * state) @ state_weight.T", "reset * (state @ state_weight.T)"),
        ("(1 - update) * state + update * proposal", "update * state + (1 - update) * proposal"),
        ("if word == EOS:", "if False:"),
        ("        state, logits = step(word, state)\n", "        _, logits = step(word, state)\n"),
        ("key=lambda each: -each[0])", "key=lambda each: each[0])"),
    ],
    "02": [
        ("            last = now", "            pass"),
        ("p_pick(now, last) > threshold", "p_pick(now, last) >= threshold"),
        ("0 not in event and len(chosen) < most", "0 not in event"),
        ("values = clip.float()\n    change", "values = clip\n    change"),
        ("means.quantile(0.025)", "means.quantile(0.25)"),
    ],
    "03": [
        ("range(1, 5)\n                   for start", "range(1, 4)\n                   for start"),
        ("min(weight, theirs[run]) * theirs[run]", "weight * theirs[run]"),
        ("total += damping * dot", "total += dot"),
        ("/ (2 * 6 ** 2)", "/ 6 ** 2"),
        ("beginnings | extended", "beginnings"),
    ],
    "04": [
        ("return -((reward", "return ((reward"),
        (".detach() * log_probability", " * log_probability"),
        ("/ (len(rewards) - 1)", "/ len(rewards)"),
        ("return reward_of(logits > 0)", "return rewards.max()"),
        ("logits.detach() - rate * gradient", "logits.detach() + rate * gradient"),
    ],
    "06": [
        ("[our - their for", "[abs(our - their) for"),
        ("math.sqrt(len(differences))", "len(differences)"),
        ('"c": "refuted"', '"c": "established"'),
        ('"e": "not tested"', '"e": "established"'),
        ('return "not tested", "refuted"', 'return "established", "refuted"'),
    ],
}


def test_common_mistakes_are_noticed(desk):
    for right, wrong in MISTAKES[desk.path.stem[:2]]:
        assert sum(right in each for each in desk.solutions) == 1, right
        desk.run([*desk.stubs, *(each.replace(right, wrong) for each in desk.solutions)])
        assert any(not check(test) for test in desk.tests), f"no test notices {wrong}"


def test_checking_says_what_failed(capsys):
    def test_a_good_one(): pass
    def test_a_bad_one(): assert 1 == 2, "one is not two\nand more"
    def test_a_missing_one(): raise NotImplementedError
    assert not check(test_a_good_one, test_a_bad_one, test_a_missing_one)
    assert capsys.readouterr().out.splitlines() == [
        "passed  a good one", "FAILED  a bad one: AssertionError: one is not two",
        "TO DO   a missing one", "1 of 3 tests pass"]
    assert check(test_a_good_one)
