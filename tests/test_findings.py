"What the front page and the result pages claim, held against the result files."
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest
from conftest import load_script

from picknet_nb.measure.metrics import paired_bootstrap
from picknet_nb.measure.scoring import Gap, few_seeds, signed

ROOT = Path(__file__).parents[1]
NOTEBOOKS, RESULTS = ROOT/"nbs", ROOT/"data"/"results"
STORY = ("00_scorecard", "01_toy_world", "02_msvd", "03_msrvtt", "04_why", "05_eyes",
         "06_unequal_films", "07_which_frames", "08_cost", "09_eleven_captioners", "10_equations",
         "11_errata")
LEADER = "PickNet (V+L)"
# what a difference with its interval looks like
SIGNED = r"(?:[+−]\d+\.\d|0\.0)"
GAP = rf"{SIGNED} \({SIGNED} to {SIGNED}\)"


def result(name: str) -> dict:
    "A result file."
    return json.loads((RESULTS/f"{name}.json").read_text(encoding="utf-8"))


def cells_of(path: Path) -> list[dict]:
    "The cells of a notebook."
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def prose_of(path: Path) -> str:
    "What a reader of a notebook sees as text: prose and Markdown that code puts out."
    parts = []
    for cell in cells_of(path):
        if cell["cell_type"] == "markdown": parts.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("data", {}).get("text/markdown", "")))
    return "\n".join(parts)


def stored_gap(name: str, other: str) -> str:
    "As `picknet reproduce` stored it, greedy."
    found = result(name)["comparisons"][other]
    return "{} ({} to {})".format(*(signed(100 * found[end])
                                    for end in ("difference", "low", "high")))


def beam_gap(name: str, other: str) -> str:
    "From the scores of single clips, beam 5."
    clips = result(f"{name}.clips")
    seeds = lambda row: [dict(zip(clips["ids"], each["CIDEr"]["beam5"])) for each in clips["rows"]
                         if each["row"] == row]
    return str(Gap.of(paired_bootstrap(seeds(LEADER), seeds(other))._asdict()))


def study_gap(one: str, other: str) -> str:
    "Of the study of rewards."
    rows = result("honest_rewards_clip.clips")["rows"]
    clips = lambda name: [dict(enumerate(each / 100 for each in seed))
                          for seed in rows[name].values()]
    return str(Gap.of(paired_bootstrap(clips(one), clips(other))._asdict()))


def film_gap(other: str) -> str:
    "Learned picks minus others, scene recall in points."
    rows = result("films_clip")["rows"]
    seeds = lambda name: [dict(enumerate(each["noticed"])) for each in rows[name].values()]
    return str(Gap.of(paired_bootstrap(seeds("learned-6"), seeds(other))._asdict()))


def eye_gap(data: str, frames: int, over: str = "the better uniform", eye: str = "lite0-clip",
            picker: str = "scorer") -> str:
    "Of the study of eyes: a picker that the committee taught, minus uniform frames."
    (row,) = [row for row in result("eyes")["rows"] if row["data"] == data
              and row["frames"] == frames and row["picker"] == picker and row.get("eye") == eye
              and row.get("teacher") == "committee" and row.get("seeds") == 10
              and row.get("variant") in (None, "plain")
              and row.get("rule") in (None, "best of equal parts")]
    return str(Gap(*row[f"minus {over}"]))


def mean_cider(name: str, row: str) -> str:
    "CIDEr × 100 of an experiment, greedy, mean over seeds."
    found = [100 * each["scores"]["greedy"]["CIDEr"] for each in result(name)["rows"]
             if each["row"] == row]
    return f"{statistics.fmean(found):.1f}"


def found_section(page: str) -> str:
    "What the front page says of results, without links."
    section = page.partition("## What we found\n")[2].partition("\n## ")[0]
    return re.sub(r"\]\([^)]*\)", "]", section)


TWO = 2, "six uniform"  # frames, and what is subtracted


@pytest.fixture(scope="module")
def front_page_gaps() -> list[str]:
    "Every difference of the front page, in its order, from the result files."
    return [
        stored_gap("shapes_small", "Uniform"), stored_gap("shapes_small", "Baseline"),
        stored_gap("msvd_resnet50_improved", "Baseline"),
        stored_gap("msrvtt_resnet50_improved", "Baseline"),
        beam_gap("msrvtt_resnet50", "Baseline"),
        stored_gap("msvd_resnet50_improved", "Uniform"),
        stored_gap("msrvtt_resnet50_improved", "Uniform"),
        eye_gap("msvd", 1), eye_gap("msrvtt", 1), eye_gap("msvd", *TWO),
        eye_gap("msrvtt", *TWO),
        film_gap("uniform-6")]


def front_page_others() -> list[str]:
    "Every other decimal number of that section, in its order."
    used = [statistics.fmean(each["frames"] for each in result("films_clip")["rows"][name].values())
            for name in ("learned-6", "uniform-6")]
    return [*(f"{each:.1f}" for each in used),
            mean_cider("msvd_resnet50_improved", LEADER), mean_cider("msvd_resnet50", LEADER),
            "76.0", mean_cider("msvd_resnet50_improved", "Baseline"), "69.4"]


def wrong_numbers(page: str, gaps: list[str]) -> list[str]:
    "Differences and scores of the front page that are not those of the result files."
    section = found_section(page)
    written = re.findall(GAP, section)
    others = re.findall(r"(?<![\d.])\d+\.\d", re.sub(GAP, "", section))
    pairs = [*zip(written, gaps), *zip(others, front_page_others())]
    counts = [] if (len(written), len(others)) == (len(gaps), 7) else ["their number"]
    clips = str(len(result("msrvtt_resnet50_improved.clips")["ids"]))
    return (counts + [said for said, true in pairs if said != true]
            + ([] if f"{clips} of MSR-VTT's 2,990" in section else ["clips of MSR-VTT"]))


def test_the_findings_of_the_front_page_are_those_of_the_result_files(front_page_gaps):
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    assert wrong_numbers(page, front_page_gaps) == []


def test_any_changed_number_of_the_findings_is_noticed(front_page_gaps):
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    before, section = page.split("## What we found\n")
    places = [found.span() for found in re.finditer(r"\d+\.\d", section.partition("\n## ")[0])]
    assert len(places) == 3 * len(front_page_gaps) + 7
    for start, end in places:
        last = (int(section[end - 1]) + 1) % 10
        changed = f"{before}## What we found\n{section[:end - 1]}{last}{section[end:]}"
        assert wrong_numbers(changed, front_page_gaps), section[start:end]


def test_the_paper_prints_what_the_front_page_says():
    from picknet_nb.measure.tables import paper_scores

    printed = paper_scores("msvd")
    assert [f"{printed[row]['CIDEr']:.1f}" for row in (LEADER, "Baseline")] == ["76.0", "69.4"]


def test_the_table_of_models_is_that_of_the_result_files():
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    lines = {line.split("|")[1].strip(" `"): [each.strip() for each in line.split("|")[2:-1]]
             for line in page.partition("<details>")[0].splitlines() if line.startswith("|")}
    raters = result("ratings_strict")["raters"].values()
    for name in ("everyday", "sharp"):
        scores = result(f"model_{name}")["scores"]["msvd"]
        own = scores["scorer, as it speaks"]
        low, high = (100 * each for each in own["CIDEr_interval"])
        files = [*(ROOT/"picknet_nb"/"bundled"/name).glob("*.safetensors")]
        bundled = ROOT/"picknet_nb"/"bundled"
        if name == "everyday": files.append(bundled/"sharp"/"weights.safetensors")
        files += [bundled/"backbones"/f"{each}.safetensors" for each in
                  {"everyday": ["lite0-clip", "clip-4bit"], "sharp": ["lite0-clip"]}[name]]
        weights = sum(each.stat().st_size for each in files) / 1e6
        fetched = {"sharp": " + 345 fetched"}.get(name, "")  # CLIP, by timm
        assert lines[name] == [
            ", ".join(" / ".join(str(rater["models"][name][each])
                                 for each in ("right", "half", "wrong")) for rater in raters
                      if name in rater["models"]) or "not rated",
            f"{100 * own['CIDEr']:.1f} ({low:.1f} to {high:.1f})",
            f"{100 * scores['uniform, as it speaks']['CIDEr']:.1f}", f"{own['frames']:.1f}",
            f"{result(f'benchmark_{name}')['seconds_per_clip']:.2f}",
            f"{weights:.0f}{fetched}"]
    person = result("person_msvd")
    low, high = person["interval"]
    assert lines["a person"][1] == f"{person['CIDEr']:.1f} ({low:.1f} to {high:.1f})"
    assert lines["PickNet in the paper"][1] == "76.0"


def test_the_time_of_make_reproduce_was_measured():
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    assert f"took {result('shapes_small_cpu')['minutes_of_call']:.0f} minutes" in page


def scorecard_lines() -> dict[str, list[str]]:
    "The cells of the scorecard, by what was measured."
    text = prose_of(NOTEBOOKS/"results"/"00_scorecard.ipynb")
    table = text.partition("| measured | difference")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[each.strip() for each in line.split("|")[1:-1]] for line in table if "|" in line]
    return {measured: rest for measured, *rest in rows if rest[0]}


def test_the_scorecard_is_drawn_from_the_result_files():
    own = "grey glances, rewarded by its captioner"
    true = {
        "toy world, PickNet minus uniform frames": stored_gap("shapes_small", "Uniform"),
        "toy world, minus all frames": stored_gap("shapes_small", "Baseline"),
        "toy world, minus all frames with as many epochs":
            stored_gap("shapes_small_cpu", "Baseline, adapted"),
        "MSVD, about six frames minus all thirty (`improved`)":
            stored_gap("msvd_resnet50_improved", "Baseline"),
        "MSR-VTT, about six minus all thirty (`improved`)":
            stored_gap("msrvtt_resnet50_improved", "Baseline"),
        "MSVD, the paper's schedule, minus all with as many epochs":
            stored_gap("msvd_resnet50", "Baseline, adapted"),
        "MSR-VTT, the paper's schedule, minus all, beam 5": beam_gap("msrvtt_resnet50", "Baseline"),
        f"MSVD, six frames, {own}": stored_gap("msvd_resnet50_improved", "Uniform"),
        f"MSR-VTT, seven frames, {own}": stored_gap("msrvtt_resnet50_improved", "Uniform"),
        "MSR-VTT, three frames, the paper's schedule, beam 5":
            beam_gap("msrvtt_resnet50", "Uniform"),
        "MSVD, six frames, feature glances, rewarded by its captioner":
            stored_gap("msvd_resnet50_features", "Uniform"),
        "MSVD, six frames, grey glances, cross-fitted rewards":
            study_gap("picknet, honest-6", "uniform-6"),
        **{f"{name}, {count} frame{'s' * (k > 1)}, eye `lite0-clip`": eye_gap(data, k)
           for data, name in (("msvd", "MSVD"), ("msrvtt", "MSR-VTT"))
           for k, count in ((1, "one"), (2, "two"))},
        "MSVD, six frames, eye `lite0-clip`": eye_gap("msvd", 6),
        "MSVD, six frames, eye CLIP": eye_gap("msvd", 6, eye="clip-vit-b16"),
        "MSVD, one frame, grey eye": eye_gap("msvd", 1, eye="grey"),
        "MSVD, six frames, the paper's policy, eye `lite0-clip`":
            eye_gap("msvd", 6, picker="policy"),
        "MSVD, two learned minus six uniform, eye `lite0-clip`": eye_gap("msvd", *TWO),
        "MSR-VTT, two learned minus six uniform, eye `lite0-clip`": eye_gap("msrvtt", *TWO),
        "films of unequal scenes, scene recall in points, minus uniform": film_gap("uniform-6"),
        "the same, minus a threshold on change": film_gap("change threshold-6")}
    lines = scorecard_lines()
    assert {what: cells[0] for what, cells in lines.items()} == true
    for what, (both, verdict, count, seeds, page) in lines.items():
        low, high = (float(each.replace("−", "-")) for each in re.findall(SIGNED, both)[1:])
        wanted = "above" if low >= 0 < high else "below" if high <= 0 else "no significant"
        assert verdict.startswith(wanted) and (seeds == "–" or re.fullmatch(GAP, seeds))
        target = re.fullmatch(r"\[.+\]\((.+)\)", page)[1]
        assert (NOTEBOOKS/"results"/target).exists() and int(count) in (1, 3, 5, 10)


def test_the_interval_of_three_seeds_is_student_s():
    "By hand, from the mean scores of each seed."
    rows = result("shapes_small")["rows"]
    score = lambda name: {row["seed"]: 100 * row["scores"]["greedy"]["CIDEr"] for row in rows
                          if row["row"] == name}
    each = [value - score("Uniform")[seed] for seed, value in score(LEADER).items()]
    middle, half = statistics.fmean(each), 4.303 * statistics.stdev(each) / math.sqrt(3)
    shown = scorecard_lines()["toy world, PickNet minus uniform frames"][3]
    assert shown == str(Gap(middle, middle - half, middle + half))


def test_scores_that_were_not_reached_are_named():
    text = prose_of(NOTEBOOKS/"results"/"00_scorecard.ipynb")
    for name, data in (("msvd_resnet50_improved", "msvd"), ("msrvtt_resnet50", "msrvtt")):
        for row in (LEADER, "Baseline"):
            assert re.search(rf"\| {data} \|.*\| {re.escape(row)} \| \d+ \| "
                             rf"{mean_cider(name, row)} \|", text)


def test_differences_have_a_real_minus_and_zero_has_no_sign():
    assert [signed(each) for each in (-0.04, 0.04, 0.0, -1.26, 7)] == [
        "0.0", "0.0", "0.0", "−1.3", "+7.0"]
    assert str(Gap(-0.04, -0.9, 0.8)) == "0.0 (−0.9 to +0.8)"
    assert Gap(-0.04, -0.9, 0.8).verdict == "no significant difference"
    assert signed(-0.004, 2) == "0.00" and "ten" not in few_seeds(10)
    for page in STORY:
        assert not re.search(r"[(| ]-\d+\.\d \(|[+-]0\.0[ )]",
                             prose_of(NOTEBOOKS/"results"/f"{page}.ipynb")), page


def test_no_page_calls_learned_and_uniform_frames_level():
    "It says which eye, which reward and how many frames, and that no difference was found."
    pages = [*NOTEBOOKS.rglob("[0-9]*.ipynb"), NOTEBOOKS/"index.ipynb"]
    texts = {path: prose_of(path) for path in pages if ".ipynb_checkpoints" not in path.parts}
    texts |= {path: path.read_text(encoding="utf-8") for path in
              [ROOT/"README.md", *(ROOT/"picknet_nb"/"bundled").glob("*/card.md")]}
    wrong = r"\b(are|is|was|were|again|it|and) level\b|\blevel with\b"
    assert [str(path) for path, text in texts.items() if re.search(wrong, text)] == []
    whole = " ".join(texts.values())
    assert "metronome, that" not in whole and "becomes a metronome" not in whole


def test_results_are_a_story_and_the_diary_is_linked_once():
    for name, after in zip(STORY, STORY[1:]):
        *_, last = [cell for cell in cells_of(NOTEBOOKS/"results"/f"{name}.ipynb")
                    if cell["cell_type"] == "markdown"]
        *_, line = "".join(last["source"]).strip().splitlines()
        assert re.findall(r"\]\(([^)#]+)\.ipynb", line)[-1] == after, name
    links = [str(path) for path in (*NOTEBOOKS.rglob("*.ipynb"), ROOT/"README.md")
             if ".ipynb_checkpoints" not in path.parts
             for _ in re.findall(r"\]\([^)]*01_msvd_diary\.ipynb", path.read_text("utf-8"))]
    assert links == [str(NOTEBOOKS/"results"/"02_msvd.ipynb")]


@pytest.fixture(scope="module")
def tools():
    "tools/examples.py and tools/moving_picture.py."
    sys.path.insert(0, str(ROOT/"tools"))
    try:
        return [load_script(ROOT/"tools"/f"{name}.py") for name in ("examples", "moving_picture")]
    finally:
        sys.path.remove(str(ROOT/"tools"))


def test_the_twelve_clips_are_drawn_and_not_chosen(tools):
    examples, stored = tools[0], result("examples")
    models = {name: result(f"model_{name}") for name in ("everyday", "sharp")}
    captions = {name: model["sets"]["msvd"]["scorer, as it speaks"]["captions"]
                for name, model in models.items()}
    assert [each["clip"] for each in stored["clips"]] == examples.drawn(
        captions["everyday"].keys() & captions["sharp"].keys())
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    for each in stored["clips"]:
        assert all(each[name] == captions[name][each["clip"]] for name in captions)
        assert f"| {each['everyday']} | {each['sharp']} | {each['person']} |" in page
    assert stored["weights"] == {name: model["weights"] for name, model in models.items()}
    assert (NOTEBOOKS/"images"/"examples.webp").stat().st_size < 200_000


def test_the_three_examples_of_cider_are_chosen_by_their_rule(tools, monkeypatch):
    monkeypatch.chdir(ROOT)
    stored = result("examples")["scores"]
    assert tools[0].score_examples() == [
        {key: each[key] for key in ("clip", "rating", "caption", "CIDEr")} for each in stored]


def test_picks_that_are_uniform_do_not_deviate(tools):
    deviation = tools[1].deviation
    assert deviation([0, 29], 30) == deviation([0, 10, 20, 30], 31) == 0
    assert deviation([0, 1, 2, 29], 30) == pytest.approx((29 / 3 - 1 + 58 / 3 - 2) / 4)
    assert deviation([7], 30) == 7
    assert deviation([7.5, 21.5], 30) == 0.5 and deviation([9, 17], 30) == 3.5
    shown = result("front_page")["moving"]
    assert shown["deviation"] == round(deviation(shown["frames"], 30), 2)
    assert shown["picks"] == len(shown["frames"])
