"""What cannot be told as a story about tables and figures: fuzzed files, odd histograms, missing libraries."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet_nb import analysis
from picknet_nb.config import PickNetError

ROW = {"row": "PickNet (V+L)", "seed": 0, "frames_used": 5.5, "scores": {"greedy": {"CIDEr": 0.64, "BLEU@4": 0.4}},
       "pick_counts": [0, 1, 2], "pick_positions": [1.0, 0.5]}
RESULT = {"kind": "table", "data": "msvd", "rows": [ROW]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RESULT, *ROW, "greedy"]), inner, max_size=4),
    max_leaves=8)


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@settings(max_examples=200, deadline=None)
@given(value=json_values, where=st.sampled_from([("kind",), ("data",), ("rows",), ("rows", 0), *(("rows", 0, key) for key in ROW)]))
def test_any_change_of_a_result_is_drawn_or_refused(tmp_path_factory, value, where):
    changed = json.loads(json.dumps(RESULT))
    place = changed
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = write(tmp_path_factory.mktemp("results") / "result.json", changed)
    try:
        result = analysis.load_results(path)
    except analysis.ResultError as error:
        assert error.path == str(path) and error.reason
    else:
        assert "| model |" in analysis.results_table(result)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"kind": "table"}', '{"kind": "table", "rows": {}}', "\x00", '{"kind": "cost"}'])
def test_files_that_are_no_result_are_refused(tmp_path, content):
    with pytest.raises(analysis.ResultError, match="result.json"):
        analysis.load_results(write(tmp_path / "result.json", content))
    with pytest.raises(analysis.ResultError, match="no such file"):
        analysis.load_results(tmp_path / "absent.json")


def test_stored_results_choose_by_data_kind_and_scale(tmp_path):
    for name, changes in {"a": {"scale": "small", "date": "2026-01-01"}, "b": {"scale": "full", "date": "2025-01-01"},
                          "c": {"scale": "small", "date": "2026-02-01"}, "d": {"data": "shapes"}, "e": {"kind": "speed"}}.items():
        write(tmp_path / f"{name}.json", RESULT | changes)
    assert [r["date"] for r in analysis.stored_results("msvd", folder=tmp_path)] == ["2025-01-01", "2026-02-01", "2026-01-01"]
    assert len(analysis.stored_results("msvd", scale="small", folder=tmp_path)) == 2
    assert analysis.stored_results("msrvtt", folder=tmp_path) == [] == analysis.stored_results(folder=tmp_path / "absent")
    write(tmp_path / "f.json", RESULT | {"rows": [{}]})
    with pytest.raises(analysis.ResultError, match="f.json: row 1"):
        analysis.stored_results("msvd", folder=tmp_path)


def test_table_shows_seeds_spread_and_unknown_rows():
    rows = [ROW | {"seed": seed, "scores": {"greedy": {"CIDEr": value}}} for seed, value in enumerate((0.6, 0.7, 0.8))]
    rows += [ROW | {"row": "a setting of ours", "scores": {"greedy": {"CIDEr": 0.5}, "beam5": {"CIDEr": 0.55}}}]
    table = analysis.results_table(RESULT | {"rows": rows, "command": "picknet reproduce"})
    assert "| PickNet (V+L) | 5.5 | 3 |" in table and "70.0 ± 10.0 | 76.0 |" in table and "`picknet reproduce`" in table
    assert "| a setting of ours | 5.5 | 1 |" in table and "50.0 |  |" in table
    beam = analysis.results_table(RESULT | {"rows": rows}, decoding="beam5")
    assert "PickNet" not in beam and "55.0" in beam
    two = analysis.results_table([RESULT, RESULT | {"rows": [ROW | {"seed": 1}]}])
    assert "| PickNet (V+L) | 5.5 | 2 |" in two


def test_paper_file_is_complete_and_its_time_columns_agree_with_each_other():
    paper = analysis.load_paper()
    for data, length in {"msvd": 12, "msrvtt": 10}.items():
        scores, cost = paper["scores"][data], paper["cost"][data]
        assert len(scores["rows"]) == len(cost["rows"]) == length and scores["picks"] == cost["picks"]
        for row, times in zip(scores["rows"], cost["rows"]):
            assert row["row"] == times["row"] and row["time"] == times["time"] and (row["ours"] or row["cite"])
            assert all(row[metric] is None or 20 < row[metric] < 80 for metric in analysis.METRICS)
            factors = [times[key] for key in ("appearance_cost", "motion_cost", "frames_cost") if times[key]]
            assert math.isclose(math.prod(float(f.rstrip("x")) for f in factors), float(times["time"].rstrip("x")))


def test_every_cell_of_the_time_tables_agrees_or_is_marked():
    marked = {(data, row, column): cell for data in ("msvd", "msrvtt")
              for row, cells in analysis.recompute_cost(data).items() for column, cell in cells.items() if not cell.agrees}
    assert {key[:2] for key in marked} == {("msrvtt", "Aalto"), ("msrvtt", "DenseCap")}
    assert marked["msrvtt", "DenseCap", "ratio"] == ("3.5x", 3.75) and marked["msrvtt", "Aalto", "frames"] == ("36", 10)
    assert analysis.cost_table("msvd").count("✗") == 0 and analysis.cost_table("msrvtt").count("✗") == len(marked) == 7


@pytest.mark.parametrize("shares", [[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1], [1, 0.01, 0.02, 0], [1, 1]])
def test_odd_histograms_are_fitted_without_nan(shares):
    fit = analysis.fit_positions(shares, 100, samples=20)
    assert all(math.isfinite(value) for value in fit[:-1]) and fit.verdict and 0 <= fit.distance <= 1


def test_nothing_picked_is_refused():
    with pytest.raises(PickNetError, match="nothing to fit"):
        analysis.fit_positions([1, 0, 0], 10)


def test_fit_agrees_with_a_grid_search():
    generator = np.random.default_rng(0)
    t = np.arange(2.0, 31)
    counts = generator.integers(1, 50, len(t))
    grid = np.linspace(-2, 2, 4001)
    for statistic in (np.log(t), t / 10):
        laws = np.exp(-grid[:, None] * statistic)
        best = grid[(counts * np.log(laws / laws.sum(1, keepdims=True))).sum(1).argmax()]
        assert abs(analysis.fit_law(counts, statistic) - best) < 1e-3


def test_p_value_is_uniform_when_the_law_is_true():
    generator = np.random.default_rng(0)
    t = np.arange(2.0, 31)
    law = t**-1 / (t**-1).sum()
    values = [analysis.fit_positions([1, *generator.multinomial(2000, law) / 1000], 1000, samples=60, seed=i).p_value for i in range(60)]
    assert 0.35 < np.mean(values) < 0.65


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**16))
def test_counts_and_positions_agree(clips, frames, seed):
    picks = torch.rand(clips, frames, generator=torch.Generator().manual_seed(seed)) < 0.5
    counts, positions = analysis.pick_counts(picks), analysis.pick_positions(picks)
    assert counts.sum() == clips and len(counts) == frames + 1 and len(positions) == frames
    assert math.isclose((counts * torch.arange(frames + 1)).sum() / clips, positions.sum(), abs_tol=1e-5)


@pytest.mark.parametrize("lines, epochs", [("", 0), ('{"epoch": 1}\n', 1), ('{"epoch": 1}\n{"epo', 1), ('{"stage": 3, "loss": "x"}\n', 1)])
def test_curves_of_short_cut_and_odd_logs(tmp_path, lines, epochs):
    path = write(tmp_path / "log.jsonl", lines)
    assert len(analysis.read_log(path)) == epochs
    analysis.learning_curves(path)
    analysis.learning_curves(tmp_path)


def test_a_bad_line_in_the_middle_of_a_log_is_refused(tmp_path):
    with pytest.raises(analysis.ResultError, match="line 2"):
        analysis.read_log(write(tmp_path / "log.jsonl", '{"epoch": 1}\nnonsense\n{"epoch": 3}\n'))
    with pytest.raises(analysis.ResultError, match="cannot be read"):
        analysis.read_log(tmp_path / "absent.jsonl")


def test_without_matplotlib_the_module_imports_and_a_figure_says_what_to_install():
    code = ("import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.pyplot'] = None\n"
            "from picknet_nb import analysis\n"
            "try: analysis.draw_cost({})\nexcept analysis.PickNetError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "picknet_nb[video]" in done.stdout, done.stderr


def test_a_table_says_whether_the_code_differed_from_its_commit():
    result = {"data": "noise", "rows": [], "command": "picknet reproduce"}
    made = lambda commit: analysis.results_table(result | {"commit": commit})
    assert "(commit 85201bd000-dirty)" in made("85201bd" + "0" * 33 + "-dirty")
    assert "(commit 85201bd000)" in made("85201bd" + "0" * 33)
    assert "(version 0.1.0)" in made("version 0.1.0")
