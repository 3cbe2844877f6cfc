"""What cannot be told as a story about tables and figures: fuzzed files, missing libraries."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet_nb.core.settings import preset
from picknet_nb.method.captioner import make_captioner
from picknet_nb.method.pickers import make_picker
from picknet_nb.training.runs import RunError, read_log
from picknet_nb.measure import figures, tables as analysis

sys.path.append(str(Path(__file__).parents[1]/"benchmarks"))
import cost

ROW = {
    "row": "PickNet (V+L)",
    "seed": 0,
    "frames_used": 5.5,
    "scores": {"greedy": {"CIDEr": 0.64, "BLEU@4": 0.4}},
    "pick_counts": [0, 1, 2],
    "pick_positions": [1.0, 0.5],
}
RESULT = {"kind": "table", "data": "msvd", "rows": [ROW]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*RESULT, *ROW, "greedy"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@settings(max_examples=200, deadline=None)
@given(
    value=json_values,
    where=st.sampled_from(
        [("kind",), ("data",), ("rows",), ("rows", 0), *(("rows", 0, key) for key in ROW)]
    ),
)
def test_any_change_of_a_result_is_drawn_or_refused(tmp_path_factory, value, where):
    changed = json.loads(json.dumps(RESULT))
    place = changed
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = write(tmp_path_factory.mktemp("results")/"result.json", changed)
    try:
        result = analysis.load_results(path)
    except analysis.ResultError as error:
        assert error.path == str(path) and error.reason
    else:
        assert "| model |" in analysis.results_table(result)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        '{"kind": "table"}',
        '{"kind": "table", "rows": {}}',
        "\x00",
        '{"kind": "cost"}',
    ],
)
def test_files_that_are_no_result_are_refused(tmp_path, content):
    with pytest.raises(analysis.ResultError, match="result.json"):
        analysis.load_results(write(tmp_path/"result.json", content))
    with pytest.raises(analysis.ResultError, match="no such file"):
        analysis.load_results(tmp_path/"absent.json")


def test_stored_results_choose_by_data_kind_and_scale(tmp_path):
    for name, changes in {
        "a": {"scale": "small", "date": "2026-01-01"},
        "b": {"scale": "paper", "date": "2025-01-01"},
        "c": {"scale": "small", "date": "2026-02-01"},
        "d": {"data": "shapes"},
        "e": {"kind": "speed"},
    }.items():
        write(tmp_path/f"{name}.json", RESULT | changes)
    assert [r["date"] for r in analysis.stored_results("msvd", folder=tmp_path)] == [
        "2025-01-01",
        "2026-02-01",
        "2026-01-01",
    ]
    assert len(analysis.stored_results("msvd", scale="small", folder=tmp_path)) == 2
    assert (
        analysis.stored_results("msrvtt", folder=tmp_path)
        == []
        == analysis.stored_results(folder=tmp_path/"absent")
    )
    write(tmp_path/"f.json", RESULT | {"rows": [{}]})
    with pytest.raises(analysis.ResultError, match="f.json: row 1"):
        analysis.stored_results("msvd", folder=tmp_path)


def test_every_stored_result_can_still_be_drawn():
    stored = analysis.stored_results()
    if not stored:
        pytest.skip("nothing is stored in data/results")
    assert all("| model |" in analysis.results_table(result) for result in stored)


def test_table_shows_seeds_spread_and_unknown_rows():
    rows = [
        ROW | {"seed": seed, "scores": {"greedy": {"CIDEr": value}}}
        for seed, value in enumerate((0.6, 0.7, 0.8))
    ]
    rows += [
        ROW
        | {
            "row": "a setting of ours",
            "scores": {"greedy": {"CIDEr": 0.5}, "beam5": {"CIDEr": 0.55}},
        }
    ]
    table = analysis.results_table(RESULT | {"rows": rows, "command": "picknet reproduce"})
    assert (
        "| PickNet (V+L) | 5.5 | 3 |" in table
        and "70.0 ± 10.0 | 76.0 |" in table
        and "`picknet reproduce`" in table
    )
    assert "| a setting of ours | 5.5 | 1 |" in table and "50.0 |  |" in table
    beam = analysis.results_table(RESULT | {"rows": rows}, decoding="beam5")
    assert "PickNet" not in beam and "55.0" in beam
    two = analysis.results_table([RESULT, RESULT | {"rows": [ROW | {"seed": 1}]}])
    assert "| PickNet (V+L) | 5.5 | 2 |" in two


def test_paper_file_is_complete_and_its_time_columns_agree_with_each_other():
    paper = analysis.load_paper()
    for data, length in {"msvd": 12, "msrvtt": 10}.items():
        scores, given = paper["scores"][data], paper["cost"][data]
        assert (
            len(scores["rows"]) == len(given["rows"]) == length
            and scores["picks"] == given["picks"]
        )
        for row, times in zip(scores["rows"], given["rows"]):
            assert (
                row["row"] == times["row"]
                and row["time"] == times["time"]
                and (row["ours"] or row["cite"])
            )
            assert all(row[metric] is None or 20 < row[metric] < 80 for metric in analysis.COLUMNS)
            factors = [
                times[key]
                for key in ("appearance_cost", "motion_cost", "frames_cost")
                if times[key]
            ]
            assert math.isclose(
                math.prod(float(f.rstrip("x")) for f in factors), float(times["time"].rstrip("x"))
            )


@pytest.mark.parametrize("name, number, looks", [("uniform", 4, 0), ("kmeans", 4, 30)])
def test_a_picker_is_charged_for_the_frames_that_the_cnn_must_see_for_it(name, number, looks):
    seen = []

    def cnn(images):
        seen.append(len(images))
        return images.float().mean((2, 3))  # (frames, 3)

    captioner = make_captioner(preset("smoke").captioner, feature_dims=3, vocabulary_size=9).eval()
    clip = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8)
    found = cost.measure_cost(
        clip, cnn, make_picker(name, number), captioner, max_words=3, repeats=1
    )
    assert (
        found["frames"] == {"all": 30, "picked": 4}
        and found["all"]["decode"] == found["picked"]["decode"] == 0
    )
    assert set(found["all"]) == set(found["picked"]) == set(cost.COST_PARTS)
    # the first choice, then warm-up and one repeat; features and twice the CNN for all frames and
    # for the picked ones
    expected = [30] * (1 if looks else 0) + [30] * 3 + [4] * 3 + [30] * (2 if looks else 0)
    assert sorted(seen) == sorted(expected)


def test_given_picks_are_kept_and_the_picker_is_still_timed():
    captioner = make_captioner(preset("smoke").captioner, feature_dims=3, vocabulary_size=9).eval()
    picks = torch.arange(10) < 3
    cnn = lambda images: images.float().mean((2, 3))
    found = cost.measure_cost(
        torch.zeros(10, 3, 8, 8, dtype=torch.uint8),
        cnn,
        make_picker("all"),
        captioner,
        picks=picks,
        repeats=1,
    )
    assert (
        found["frames"] == {"all": 10, "picked": 3}
        and found["picked"]["picker"] > 0 == found["all"]["picker"]
    )
    counted, in_all = cost.speed_up(found)
    assert counted > 0 and in_all > 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**16))
def test_counts_and_positions_agree(clips, frames, seed):
    picks = torch.rand(clips, frames, generator=torch.Generator().manual_seed(seed)) < 0.5
    counts, positions = figures.pick_counts(picks), figures.pick_positions(picks)
    assert counts.sum() == clips and len(counts) == frames + 1 and len(positions) == frames
    assert math.isclose(
        (counts * torch.arange(frames + 1)).sum() / clips, positions.sum(), abs_tol=1e-5
    )


@pytest.mark.parametrize(
    "lines, epochs",
    [
        ("", 0),
        ('{"epoch": 1}\n', 1),
        ('{"epoch": 1}\n{"epo', 1),
        ('{"stage": 3, "loss": "x"}\n', 1),
    ],
)
def test_curves_of_short_cut_and_odd_logs(tmp_path, lines, epochs):
    path = write(tmp_path/"log.jsonl", lines)
    assert len(read_log(path)) == epochs
    figures.learning_curves(path)
    figures.learning_curves(tmp_path)


def test_a_bad_line_in_the_middle_of_a_log_is_refused(tmp_path):
    with pytest.raises(RunError, match="line 2"):
        read_log(write(tmp_path/"log.jsonl", '{"epoch": 1}\nnonsense\n{"epoch": 3}\n'))
    with pytest.raises(RunError, match="cannot be read"):
        read_log(tmp_path/"absent.jsonl")


def test_without_matplotlib_the_module_imports_and_a_figure_says_what_to_install():
    code = ("import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.pyplot'] = None\n"
            "from picknet_nb.core.files import PickNetError\n"
            "from picknet_nb.measure import figures\n"
            "try: figures.draw_picks({})\n"
            "except PickNetError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("picknet_nb[video]") == 1, done.stderr


def test_a_table_says_whether_the_code_differed_from_its_commit():
    result = {"data": "noise", "rows": [], "command": "picknet reproduce"}
    made = lambda commit: analysis.results_table(result | {"commit": commit})
    assert "(commit 85201bd000-dirty)" in made("85201bd" + "0" * 33 + "-dirty")
    assert "(commit 85201bd000)" in made("85201bd" + "0" * 33)
    assert "(version 0.1.0)" in made("version 0.1.0")
