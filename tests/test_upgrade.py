"""Files of earlier editions are read: runs, models, tables and corpora that the first and the
second edition wrote themselves, in tests/runs."""
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toys import invoked

from picknet_nb.core.files import FileError
from picknet_nb.core.settings import VERSION, ConfigError, preset, settings_from
from picknet_nb.data.corpus import Corpus, CorpusError
from picknet_nb.method.recipes import Recipe, recipes
from picknet_nb.training.checkpoints import read_checkpoint
from picknet_nb.training.models import export_model, has_both_rewards
from picknet_nb.training.runs import RunError, change_settings, load_run, read_about, read_settings
from picknet_nb.training.train import train
from picknet_nb.training.upgrade import UPGRADES, upgraded
from picknet_nb.use.loading import load_captioner
from picknet_nb.measure.reproduction import reproduce

RUNS = Path(__file__).parent/"runs"
VIDEO = RUNS.parents[1]/"data"/"example.mp4"
EXPECTED = {
    (edition, run): expected
    for edition in ("first", "second")
    for run, expected in json.loads((RUNS/edition/"expected.json").read_text()).items()
}
EDITIONS = pytest.mark.parametrize("edition", ["first", "second"])


@pytest.mark.parametrize("edition, run", EXPECTED)
def test_a_video_gets_the_caption_that_the_edition_itself_gave(edition, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of them is not finished
        found = load_captioner(RUNS/edition/run, device="cpu").caption(VIDEO)
    assert {"caption": found.text, "picked": list(found.picked)} == EXPECTED[edition, run]


@EDITIONS
def test_an_interrupted_run_goes_on_to_its_end(edition, tmp_path):
    run = shutil.copytree(RUNS/edition/"interrupted", tmp_path/"run")
    before = read_checkpoint(run)
    result = invoked("train", run, "--resume", "--data", RUNS/edition/"corpus")
    assert result.exit_code == 0, result.output
    log = [json.loads(line) for line in (run/"log.jsonl").read_text().splitlines()]
    stages = ["supervision"] * 12 + ["reinforcement"] * 2 + ["adaptation"]
    assert [line["stage"] for line in log] == stages
    known = json.loads(json.dumps(before["log"]))
    assert log[: len(known)] == known
    weights, whole = (
        load_file(folder/"weights.safetensors") for folder in (run, RUNS/edition/"finished")
    )
    # the arithmetic of the first edition differs in its last digits
    for name, weight in whole.items():
        torch.testing.assert_close(weights[name], weight, rtol=0.1, atol=0.1)
    assert read_checkpoint(run)["version"] == VERSION


@EDITIONS
def test_an_interrupted_run_does_not_go_on_with_other_data(edition, tmp_path):
    run = shutil.copytree(RUNS/edition/"interrupted", tmp_path/"run")
    corpus = Corpus.load(RUNS/edition/"corpus")
    corpus.features[0, 0, 0] += 1
    recipe = Recipe(**read_about(run)["recipe"])
    with pytest.raises(RunError, match="holds another run: features"):
        train(run, corpus, read_settings(run), recipe, bars=False)


@EDITIONS
def test_a_finished_run_is_trained_no_further(edition, tmp_path):
    run = shutil.copytree(RUNS/edition/"finished", tmp_path/"run")
    result = invoked("train", run, "--resume", "--data", RUNS/edition/"corpus")
    kept, found = (folder/"weights.safetensors" for folder in (RUNS/edition/"finished", run))
    assert result.exit_code == 0 and found.read_bytes() == kept.read_bytes()


@EDITIONS
def test_a_table_keeps_its_rows(edition, tmp_path):
    folder = shutil.copytree(RUNS/edition/"table", tmp_path/"table")
    changes = {
        name: value
        for name, value in read_settings(folder/"seed-0"/"supervision").flat().items()
        if value != preset("smoke").flat()[name] and name not in ("frames", "glance_size")
    }
    rows = {path.name: json.loads(path.read_text()) for path in (folder/"rows").iterdir()}
    result = reproduce(
        RUNS/edition/"corpus",
        "smoke",
        ["Baseline", "Random"],
        folder=folder,
        changes=changes | {"language_weight": 1.0, "diversity_weight": 1.0},
        scores=False,
        bars=False,
    )
    assert [row["picker"] for row in result["rows"]] == ["all", "chance-0.5"]
    for path in (folder/"rows").iterdir():
        assert json.loads(path.read_text()) == rows[path.name]


@EDITIONS
def test_a_corpus_says_what_its_clips_are(edition):
    corpus = Corpus.load(RUNS/edition/"corpus")
    assert (corpus.settings.frames, corpus.settings.cnn, corpus.settings.glance_size) == (
        8, "tiny", 8)
    assert not {"frames", "cnn", "glance"} & corpus.details.keys() and "weights" in corpus.details


def test_what_the_first_edition_wrote_is_understood():
    about = read_about(RUNS/"first"/"uniform")
    assert Recipe(**about["recipe"]) == recipes(4)["Uniform"]
    assert about["clip"]["frames"] == 8 and "settings" not in about
    assert has_both_rewards(RUNS/"first"/"finished")
    assert not has_both_rewards(RUNS/"first"/"uniform")


def test_files_that_are_written_today_say_their_version(tmp_path):
    run = shutil.copytree(RUNS/"first"/"finished", tmp_path/"run")
    change_settings(run, {"adaptation_epochs": 1})
    export_model(run, tmp_path/"model")
    Corpus.load(RUNS/"first"/"corpus").save(tmp_path/"corpus")
    for path in ("run/run.json", "run/config.json", "model/run.json", "model/config.json",
                 "corpus/corpus.json"):
        assert json.loads((tmp_path/path).read_text())["version"] == VERSION
    # and what was upgraded once is what it was
    found = load_captioner(tmp_path/"run", device="cpu").caption(VIDEO)
    assert found.text == EXPECTED["first", "finished"]["caption"]


@pytest.mark.parametrize("name", ["run.json", "config.json"])
@pytest.mark.parametrize("version", [VERSION + 1, 0, "3", None, 2.0, True])
def test_a_file_of_an_unknown_version_is_refused(tmp_path, name, version):
    run = shutil.copytree(RUNS/"second"/"finished", tmp_path/"run")
    content = json.loads((run/name).read_text()) | {"version": version}
    (run/name).write_text(json.dumps(content))
    with pytest.raises(RunError, match=f"{name}: .*version"):
        load_run(run)


def test_a_corpus_of_a_later_version_is_refused(tmp_path):
    corpus = shutil.copytree(RUNS/"second"/"corpus", tmp_path/"corpus")
    about = json.loads((corpus/"corpus.json").read_text()) | {"version": VERSION + 1}
    (corpus/"corpus.json").write_text(json.dumps(about))
    with pytest.raises(CorpusError, match=f"corpus.json: is of version {VERSION + 1}"):
        Corpus.load(corpus)


def test_a_row_of_a_later_version_is_refused(tmp_path):
    folder = shutil.copytree(RUNS/"second"/"table", tmp_path/"table")
    path = folder/"rows"/"seed-0.baseline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": VERSION + 1}))
    with pytest.raises(FileError, match=f"seed-0.baseline.json: is of version {VERSION + 1}"):
        reproduce(RUNS/"second"/"corpus", "smoke", ["Baseline"], folder=folder, scores=False,
                  bars=False)


def test_retired_settings_are_passed_over_where_they_had_no_effect():
    read = lambda content: settings_from(upgraded("settings", content))
    assert read({"hidden": 7, "beam": 1, "image_size": 96}) == preset("paper", hidden=7)
    assert read({"captioner": {"hidden": 7, "output_gate": "sigmoid"}}) == preset("paper", hidden=7)
    with pytest.raises(ConfigError, match="output_gate is no longer a setting"):
        read({"output_gate": "tanh"})


RETIRED = {"patience": 3, "gradient_clip": 1.0, "reward_eos": False}


@pytest.mark.parametrize("version", [2, 3])
def test_settings_that_were_retired_since_are_passed_over(tmp_path, version):
    "The files that an edition wrote with every setting at its default, some of which are gone."
    neutral = {"patience": 0, "gradient_clip": 5.0, "reward_eos": True}
    run = shutil.copytree(RUNS/"second"/"interrupted", tmp_path/"run")
    for name in ("config.json", "run.json"):
        content = json.loads((run/name).read_text())
        (content["settings"] if name == "run.json" else content["training"]).update(neutral)
        (run/name).write_text(json.dumps(content | {"version": version}))
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    stored["settings"] |= neutral
    if version == 3:
        stored["average"] = stored.pop("shadow")
    torch.save(stored | {"version": version}, run/"checkpoint.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not neutral.keys() & read_settings(run).flat().keys()
    result = invoked("train", run, "--resume", "--data", RUNS/"second"/"corpus")
    assert result.exit_code == 0 and (run/"weights.safetensors").exists(), result.output
    assert not neutral.keys() & read_checkpoint(run)["settings"].keys()


@pytest.mark.parametrize("name", RETIRED)
def test_a_model_trained_with_a_retired_setting_is_used_and_not_trained_on(tmp_path, name):
    said = f"trained with {name}={RETIRED[name]!r}, which is no longer a setting: now "
    finished = shutil.copytree(RUNS/"second"/"finished", tmp_path/"finished")
    content = json.loads((finished/"config.json").read_text())
    group = "policy" if name == "reward_eos" else "training"
    content[group][name] = RETIRED[name]
    (finished/"config.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=said):
        found = load_captioner(finished, device="cpu").caption(VIDEO)
    assert found.text == EXPECTED["second", "finished"]["caption"]
    run = shutil.copytree(RUNS/"second"/"interrupted", tmp_path/"run")
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    stored["settings"][name] = RETIRED[name]
    torch.save(stored, run/"checkpoint.pt")
    with pytest.raises(RunError, match=f"checkpoint.pt: was {said}.*start this run again"):
        read_checkpoint(run)


def test_a_row_made_with_a_retired_setting_is_named(tmp_path):
    folder = shutil.copytree(RUNS/"second"/"table", tmp_path/"table")
    path = folder/"rows"/"seed-0.baseline.json"
    row = json.loads(path.read_text())
    row["made_from"]["settings"]["training"]["patience"] = 3
    path.write_text(json.dumps(row))
    with pytest.raises(FileError, match="baseline.json: was trained with patience=3"):
        reproduce(RUNS/"second"/"corpus", "smoke", ["Baseline"], folder=folder, scores=False,
                  bars=False)


@pytest.mark.parametrize("kind", UPGRADES)
def test_upgrading_twice_changes_nothing_more(kind):
    files = {"settings": "config.json", "run": "run.json"}
    content = (
        json.loads((RUNS/"first"/"uniform"/files[kind]).read_text())
        if kind in files
        else json.loads((RUNS/"first"/"corpus"/"corpus.json").read_text())
        if kind == "corpus"
        else json.loads((RUNS/"first"/"table"/"rows"/"seed-0.random.json").read_text())
        if kind == "row"
        else {"progress": {}, "shadow": []}
    )
    once = upgraded(kind, content)
    assert once != content and upgraded(kind, once) == once
    assert all(step(once) == once for step in UPGRADES[kind])
