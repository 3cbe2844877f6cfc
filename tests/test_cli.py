"""The `picknet` command as people type it: what it writes, what it says, and what it refuses
before any work is done."""
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

pytest.importorskip("av")

from conftest import noise_corpus
from toys import film, invoked

from picknet_nb.core import printing as terminal
from picknet_nb.core.files import PickNetError, write_whole
from picknet_nb.core.registry import USED
from picknet_nb.core.settings import explanations
from picknet_nb.data import text
from picknet_nb.data.corpus import Corpus
from picknet_nb.world import world
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS
from picknet_nb.method.recipes import ROWS
from picknet_nb.training import loop, models, train as training
from picknet_nb.training.checkpoints import save_checkpoint
from picknet_nb.training.models import example_run, find_run
from picknet_nb.use import captioning, drawing, loading
from picknet_nb.measure import reproduction, tables as analysis
from picknet_nb.interface import main as cli, python
from picknet_nb.interface.prepare import settings_of

QUICK = [
    each
    for name in ("supervision", "reinforcement", "adaptation")
    for each in ("--set", f"{name}_epochs=1")
]


def picknet(*words) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command; a refusal comes as it would be
    printed."""
    found = invoked(*words)
    if isinstance(found.exception, PickNetError):
        return 1, found.stdout, found.stderr + str(found.exception)
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


def refused(*words) -> str:
    "The one line that says why a command was refused."
    code, _, errors = picknet(*words)
    assert code in (1, 2) and "Traceback" not in errors
    return errors


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the four clips that it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=4)
    return folder


@pytest.fixture
def tree(toy, tmp_path) -> Path:
    "Two videos of the same name in different folders."
    for name in ("a", "b"):
        (tmp_path/"videos"/name).mkdir(parents=True)
        shutil.copy(toy/"videos"/"example.mp4", tmp_path/"videos"/name/"v.mp4")
    return tmp_path/"videos"


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> Path:
    "The folder of a small corpus."
    return noise_corpus().save(tmp_path_factory.mktemp("corpus")/"noise")


def drawn(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# one place for runs
# --------------------------------------------------------------------------------------------------


def test_a_run_is_looked_for_where_reproduce_leaves_it(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "data_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy/"run", tmp_path/"runs"/"shapes-smoke"/"seed-0"/"picknet-v-l")
    found = find_run(tmp_path/"runs")
    assert found.name == "picknet-v-l"
    assert (
        json.loads(picknet("info", "--json")[1])["runs"] == [str(found)]
        and str(found) in picknet("info")[1]
    )


# interrupted
# --------------------------------------------------------------------------------------------------


def test_an_interrupted_training_names_resume(noise, tmp_path, monkeypatch, capsys):
    def interrupted(folder, *_, **__):
        write_whole(folder/"run.json", "{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    monkeypatch.setattr(
        sys,
        "argv",
        ["picknet", "train", str(tmp_path/"run"), "--data", str(noise), "--scale", "smoke"],
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert (
        end.value.code == 130
        and "no checkpoint yet: add --resume to start again" in capsys.readouterr().err
    )
    (tmp_path/"run"/"checkpoint.pt").touch()
    assert "the last checkpoint is kept: add --resume" in cli.after_interrupt(sys.argv[1:])


def test_what_cannot_go_on_does_not_promise_to(tmp_path):
    assert (
        cli.after_interrupt(["stream", "0"])
        == cli.after_interrupt(["caption", "x.mp4"])
        == cli.after_interrupt(["explore"])
        == "interrupted"
    )
    # before the run was begun
    assert cli.after_interrupt(["train", str(tmp_path)]) == "interrupted"
    for line in (
        ["reproduce"],
        ["prepare", "msvd"],
        ["train", str(tmp_path), "--resume"],
        ["--use", "mine", "reproduce"],
    ):
        assert "the same command continues" in cli.after_interrupt(line)


# training
# --------------------------------------------------------------------------------------------------


def test_a_run_remembers_what_it_was_begun_with(noise, tmp_path):
    run = tmp_path/"run"
    assert (
        picknet(
            "train",
            run,
            "--data",
            noise,
            "--scale",
            "smoke",
            "--experiment",
            "Uniform",
            "--picks",
            4,
            *QUICK,
        )[0]
        == 0
    )
    (run/"weights.safetensors").unlink()
    assert picknet("train", run, "--resume")[0] == 0 and (run/"weights.safetensors").exists()
    assert (
        picknet(
            "train",
            run,
            "--resume",
            "--data",
            noise,
            "--scale",
            "smoke",
            "--experiment",
            "Uniform",
            "--set",
            "hidden=64",
        )[0]
        == 0
    )
    assert "started with --preset smoke, not small" in refused(
        "train", run, "--resume", "--scale", "small"
    )
    assert f"started with --data {noise}, not shapes" in refused(
        "train", run, "--resume", "--data", "shapes"
    )
    assert "started with --experiment 'Uniform' --picks 4" in refused(
        "train", run, "--resume", "--experiment", "Baseline"
    )
    again = refused("train", run, "--resume", "--picks", 5)
    assert "started with --experiment 'Uniform' --picks 4" in again
    assert "contains a run already" in refused("train", run)
    differing = refused("train", run, "--resume", "--set", "hidden=48")
    assert (
        "hidden 64 (now 48)" in differing
        and differing.count("(now") == 1
        and "other data, another preset" in differing
    )


def test_a_run_that_goes_on_may_be_shortened(noise, tmp_path, monkeypatch):
    "Two epochs of twenty are done when somebody has seen enough."
    run, epoch = tmp_path/"run", loop.Loop.one_epoch

    def until_seen(self):
        if self.progress.epoch == 2:
            raise KeyboardInterrupt
        epoch(self)
        saving = next(each for each in self.callbacks if isinstance(each, loop.SaveRun))
        save_checkpoint(saving.trainer, self.step)

    monkeypatch.setattr(loop.Loop, "one_epoch", until_seen)
    words = [run, "--data", noise, "--scale", "smoke", *QUICK, "--set", "supervision_epochs=20"]
    assert picknet("train", *words)[0] == 130 and "supervision, 2 epochs done" in str(
        cli.unfinished_runs([tmp_path])
    )
    monkeypatch.setattr(loop.Loop, "one_epoch", epoch)
    assert "supervision has gone on for 2 epochs" in refused(
        "train", run, "--resume", "--set", "supervision_epochs=1"
    )
    assert (
        picknet(
            "train",
            run,
            "--resume",
            "--set",
            "supervision_epochs=3",
            "--set",
            "adaptation_epochs=2",
        )[0]
        == 0
    )
    lines = [json.loads(line)["stage"] for line in (run/"log.jsonl").read_text().splitlines()]
    assert lines == ["supervision"] * 3 + ["reinforcement"] + ["adaptation"] * 2
    assert "supervision has ended" in refused(
        "train", run, "--resume", "--set", "supervision_epochs=4"
    )
    assert picknet("train", run, "--resume")[0] == 0


def test_a_corpus_may_move_between_calls(noise, tmp_path):
    shutil.copytree(noise, tmp_path/"here")
    picknet(
        "train",
        tmp_path/"run",
        "--data",
        tmp_path/"here",
        "--scale",
        "smoke",
        "--experiment",
        "Baseline",
        *QUICK,
    )
    (tmp_path/"here").rename(tmp_path/"there")
    assert picknet("train", tmp_path/"run", "--resume", "--data", tmp_path/"there")[0] == 0


def test_a_finished_run_goes_on_with_what_it_was_started_with(noise, tmp_path):
    run = tmp_path/"run"
    begun = ("--data", noise, "--preset", "smoke", "--experiment", "Uniform", "--picks", 4)
    assert picknet("train", run, *begun, *QUICK)[0] == 0
    (run/"weights.safetensors").unlink()
    assert picknet("train", run, "--resume")[0] == 0 and (run/"weights.safetensors").exists()
    again = refused("train", run, "--resume", "--picks", 5)
    assert "started with --experiment 'Uniform' --picks 4" in again
    again = refused("train", run, "--resume", "--preset", "small")
    assert "started with --preset smoke, not small" in again


def test_an_older_run_that_noted_nothing_goes_on_with_what_is_typed(noise, tmp_path):
    picknet(
        "train", tmp_path/"run", "--data", noise, "--preset", "smoke",
        "--experiment", "Baseline", *QUICK,
    )
    about = json.loads((tmp_path/"run"/"run.json").read_text())
    del about["details"]["opened"]
    (tmp_path/"run"/"run.json").write_text(json.dumps(about))
    assert picknet("train", tmp_path/"run", "--resume", "--data", noise)[0] == 0


def test_what_cannot_be_trained_is_refused_before_the_folder_is_taken(noise, tmp_path):
    run, data = tmp_path/"run", ("--data", noise, "--scale", "smoke")
    assert "contains no run to resume" in refused("train", run, *data, "--resume")
    assert "wants more frames than a clip has: 30" in refused(
        "train", run, *data, "--experiment", "k-means", "--picks", 99
    )
    assert "--picks" in refused("train", run, *data, "--experiment", "k-means", "--picks", 0)
    assert "takes no such number" in refused("train", run, *data, "--picks", 5)
    assert "no such experiment: 'nope'; there are 'Baseline'" in refused(
        "train", run, *data, "--experiment", "nope"
    )
    assert not run.exists()


def test_a_run_is_evaluated_on_what_it_was_trained_on(noise, tmp_path):
    picknet(
        "train", tmp_path/"run", "--data", noise, "--preset", "smoke",
        "--experiment", "Baseline", *QUICK,
    )
    assert "noise has no clips in the split 'nope'; it has train (24)" in refused(
        "evaluate", "--model", tmp_path/"run", "--split", "nope"
    )
    world = noise_corpus(seed=1)
    other = replace(world, features=world.features[..., :16].contiguous()).save(tmp_path/"other")
    assert "give its own data" in refused("evaluate", "--model", tmp_path/"run", "--data", other)
    details = {"weights": "tiny, of other days"}  # the same sizes by other weights
    other = replace(world, details=world.details | details).save(tmp_path/"weights")
    about = json.loads((tmp_path/"run"/"run.json").read_text())
    about["details"] = {"weights": "tiny, of today"}
    (tmp_path/"run"/"run.json").write_text(json.dumps(about))
    assert "with other weights than those of" in refused(
        "evaluate", "--model", tmp_path/"run", "--data", other)
    assert "everyday was trained on features of clip-4bit:grid (13824" in refused(
        "evaluate", "--model", "everyday", "--data", noise
    )


def test_a_threshold_is_for_policies_wherever_it_is_given(toy, noise, tmp_path):
    "Where there is none, `evaluate` says what `caption` says."
    picknet(
        "train", tmp_path/"run", "--data", noise, "--preset", "smoke",
        "--experiment", "Uniform", *QUICK,
    )
    chosen = ("--picker", "uniform-4", "--threshold", 0.01)
    said = "uniform-4 picks without a policy, so it has no threshold"
    assert said in refused("caption", toy/"videos"/"example.mp4", "--model", toy/"run", *chosen)
    assert said in refused("evaluate", "--model", tmp_path/"run", "--no-scores", *chosen)
    assert "uniform-6 picks without a policy" in refused(
        "evaluate", "--model", tmp_path/"run", "--no-scores", "--threshold", 0.01
    )
    assert "uniform-6 picks without a policy" in refused(
        "export", tmp_path/"run", tmp_path/"model", "--threshold", 0.01
    )


def test_a_model_is_evaluated_on_clips_of_which_other_words_were_said(
    noise, tmp_path, quick_meteor
):
    picknet(
        "train", tmp_path/"run", "--data", noise, "--preset", "smoke",
        "--experiment", "Baseline", *QUICK,
    )
    other = noise_corpus(seed=1).save(tmp_path/"other")
    # without Java
    code, said = picknet(
        "evaluate",
        "--model",
        tmp_path/"run",
        "--data",
        other,
        "--no-scores",
        "--json",
        "--out",
        tmp_path/"said.json",
    )[:2]
    assert (
        code == 0
        and json.loads(said).keys() == {"frames_used", "diagnostics", "variety"}
        and len(json.loads((tmp_path/"said.json").read_text())) == 8
    )
    said_now = json.loads((tmp_path/"said.json").read_text()).values()
    assert json.loads(said)["variety"]["distinct"] == len(set(said_now))
    found = json.loads(picknet("evaluate", "--model", tmp_path/"run", "--data", other, "--json")[1])
    assert found["frames_used"] == 30 and 0 <= found["scores"]["BLEU@1"] <= 1


def test_a_run_is_set_beside_the_model_that_it_began_from(noise, tmp_path, quick_meteor):
    data = ("--data", noise, "--scale", "smoke", "--experiment", "Baseline", *QUICK)
    first, second = tmp_path/"first", tmp_path/"second"
    alone = picknet("train", first, *data)[2]
    assert "from which the run began" not in alone  # it began from random weights
    assert "chosen on 8 validation clips, scores come from 8 test clips" in alone
    told = picknet("train", second, *data, "--set", f"start_from={first}")[2]
    assert f"{first}, from which the run began, and the run on 8 test clips" in told
    assert told.count("\n  people: ") == 5 and "95 % interval" in told
    assert re.search(f"CIDEr [0-9.]+ of {first}, [0-9.]+ of the run: [+-]", told)
    assert "8 clips are too few to show" in told or "training changed nothing" in told
    said = picknet("evaluate", "--model", second)[1]
    assert f"{second} on 8 test clips: " in said and "8 clips are too few to judge" in said
    assert f"of {first}, " in said and f"{first} was trained on noise: if these clips" in said
    found = json.loads(picknet("evaluate", "--model", second, "--json")[1])
    low, high = found["CIDEr_interval"]
    assert low <= found["scores"]["CIDEr"] <= high
    assert found["start"]["CIDEr_of_the_run"] == pytest.approx(found["scores"]["CIDEr"])
    assert found["start"]["model"] == str(first)
    # other weights at that place are not what it began from
    shutil.rmtree(first)
    picknet("train", first, *data, "--set", "seed=7")
    assert "start" not in json.loads(picknet("evaluate", "--model", second, "--json")[1])


def test_a_run_without_scorers_is_compared_in_sentences(noise, tmp_path, monkeypatch):
    data = ("--data", noise, "--scale", "smoke", "--experiment", "Baseline", *QUICK)
    picknet("train", tmp_path/"first", *data)

    def missing(): raise PickNetError("scoring needs pycocoevalcap")

    monkeypatch.setattr(reproduction, "check_scorers", missing)
    told = picknet("train", tmp_path/"second", *data,
                   "--set", f"start_from={tmp_path/'first'}")[2]
    assert "from which the run began" in told and "CIDEr" not in told.split("began")[1]


# settings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, value",
    [
        ("true", True),
        ("Yes", True),
        ("on", True),
        ("1", True),
        ("false", False),
        ("no", False),
        ("OFF", False),
        ("0", False),
    ],
)
def test_a_switch_is_on_or_off(typed, value):
    assert settings_of([f"clock={typed}"]) == {"clock": value}


@pytest.mark.parametrize(
    "pair, reason",
    [
        ("clock=maybe", "clock must be true or false, not 'maybe'"),
        ("clock=", "true or false"),
        ("__doc__=1", "no such setting: '__doc__'"),
        ("hiden=3", "did you mean hidden?"),
        ("hidden", "hidden needs a value: write hidden=…"),
        ("hidden=3.5", "a whole number"),
        ("dropout=x", "a number"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(pair, reason):
    with pytest.raises(PickNetError) as error:
        settings_of([pair])
    assert reason in str(error.value)


def test_settings_are_explained_by_group():
    code, listing, _ = picknet("info", "--settings")
    assert code == 0 and all(len(line) <= 100 for line in listing.splitlines())
    text, meanings = " ".join(listing.split()), explanations()
    presets = json.loads(picknet("info", "--json")[1])["settings"]
    # other captioners have their own pages
    presets = {
        scale: groups
        for scale, groups in presets.items()
        if scale == "paper" or groups["captioner"]["architecture"] != scale
    }
    for group, values in presets["paper"].items():
        assert f"{group}, " in text
        for name, value in values.items():
            said = f"{name} {value}".strip()  # a default may be nothing
            assert f"{said} {meanings[name]}" in text
            for scale, others in presets.items():
                if others[group][name] != value:
                    assert f"{scale}: {others[group][name]}" in text[text.index(f"{said} ") :]


@pytest.mark.parametrize(
    "pair",
    [
        "frames=12",
        "cnn=resnet18",
        "glance=feature",
        "glance_size=28",
        "min_word_count=5",
        "vocabulary_from=all",
        "max_words=9",
    ],
)
def test_what_a_clip_is_cannot_be_set_when_training(noise, tmp_path, pair):
    for command in (
        ["train", tmp_path/"run"],
        ["reproduce", "--folder", tmp_path/"run", "--no-scores"],
    ):
        said = refused(*command, "--data", noise, "--scale", "smoke", "--set", pair)
        assert (
            f"{pair.split('=')[0]} belongs to the corpus: set it when preparing (picknet prepare …)"
            in said
        )
    assert not (tmp_path/"run").exists()


def test_a_setting_that_tunes_what_is_off_is_refused(noise, tmp_path):
    assert "feedback_every would have no effect: feedback_step is 0" in refused(
        "train", tmp_path/"run", "--data", noise, "--preset", "small",
        "--set", "feedback_step=0", "--set", "feedback_every=3",
    )
    assert not (tmp_path/"run").exists()


def test_settings_that_a_corpus_does_not_depend_on_are_refused(tmp_path):
    words = (
        "--captions",
        tmp_path/"c.json",
        "--videos",
        tmp_path,
        "--out",
        tmp_path/"out",
        "--set",
        "frames=8",
        "--set",
        "hidden=3",
        "--set",
        "clock=on",
    )
    assert (
        "preparing does not read hidden, clock; a corpus depends on frames, glance_size"
        in refused("prepare", "videos", *words)
    )
    assert (
        "does not read cnn; a corpus depends on frames"
        in (said := refused("prepare", "videos", *words[:6], "--set", "cnn=tiny"))
        and "--backbone" in said
    )
    features = (
        "--features",
        tmp_path,
        "--captions",
        tmp_path,
        "--splits",
        tmp_path,
        "--out",
        tmp_path/"out",
        "--set",
        "glance_size=28",
    )
    assert "does not read glance_size" in refused("prepare", "features", *features)
    assert "does not read frames" in refused(
        "prepare", "shapes", "--out", tmp_path/"out", "--set", "frames=8"
    )


def test_every_cnn_is_offered():
    from picknet_nb.data.backbones import BACKBONES

    for command in (["prepare", "videos"], ["prepare", "msvd"], ["prepare", "msrvtt"]):
        # a name may be broken at a hyphen where a line ends
        offered = " ".join(picknet(*command, "--help")[1].split()).replace("- ", "-")
        assert (
            all(name in offered for name in BACKBONES)
            and "timm:NAME" in offered
            and "--use MODULE" in offered
        )


def test_clips_of_the_built_in_world_can_be_made_otherwise(tmp_path, monkeypatch):
    monkeypatch.setitem(world.SCALES, "smoke", (4, 2, 2))
    prepare = ("prepare", "shapes", "--scale", "smoke", "--out", tmp_path/"world")
    assert "--set needs its own --out" in refused(
        "prepare", "shapes", "--scale", "smoke", "--set", "max_words=8"
    )
    assert picknet(*prepare, "--set", "max_words=8", "--set", "glance=feature")[0] == 0
    about = json.loads((tmp_path/"world"/"corpus.json").read_text())["settings"]
    assert (about["max_words"], about["glance"], about["cnn"]) == (8, "feature", "tiny")
    assert "was prepared with other settings: choose another --out" in refused(
        *prepare, "--set", "max_words=9"
    )


# what is one's own
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch):
    "A folder with a module of one's own, and no trace of it afterwards."
    from test_reproduction import MINE

    before = [dict(registry) for registry in (ROWS, PICKERS, CAPTIONERS)]
    registries = (ROWS, PICKERS, CAPTIONERS)
    (tmp_path/"my_own.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_own", None)
    USED.clear()
    for registry, content in zip(registries, before):
        registry.clear()
        registry.update(content)


def test_a_module_of_one_s_own_brings_captioner_picker_and_row(own, noise):
    quick = ("--data", noise, "--scale", "smoke", *QUICK)
    assert (
        "no captioner 'mean'"
        in (said := refused("train", own/"run", *quick, "--captioner", "mean"))
        and "--use MODULE" in said
        and not (own/"run").exists()
    )
    assert (
        picknet(
            "--use",
            "my_own",
            "train",
            own/"run",
            *quick,
            "--captioner",
            "mean",
            "--experiment",
            "Baseline",
        )[0]
        == 0
    )
    assert (
        json.loads((own/"run"/"config.json").read_text())["captioner"]["architecture"] == "mean"
    )
    assert picknet("--use", "my_own.py", "train", own/"run", "--resume")[0] == 0
    assert "architecture mean (now paper)" in refused(
        "train", own/"run", "--resume", "--captioner", "paper"
    )
    assert "'mine' takes no such number" in refused(
        "train", own/"other", *quick, "--experiment", "mine", "--picks", 5
    )
    code, said, _ = picknet(
        "--use",
        "my_own",
        "reproduce",
        *quick,
        "--experiment",
        "Baseline",
        "--experiment",
        "mine",
        "--no-scores",
        "--workers",
        2,
        "--folder",
        own/"table",
    )
    assert code == 0 and sorted(path.name for path in (own/"table"/"seed-0").iterdir()) == [
        "mine",
        "supervision",
        "supervision-mean",
    ]


def test_a_module_that_is_not_there_or_fails_is_told(own):
    assert f"nowhere: there is no such module, neither in {own}" in refused(
        "--use", "nowhere", "info"
    )
    (own/"broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        picknet("--use", "broken", "info")


def test_help_tells_of_modules():
    said = " ".join(picknet("--help")[1].split())
    assert (
        "--use MODULE" in said and "picknet --use mine reproduce --captioner mean, with" in said
    )


# data of one's own
# --------------------------------------------------------------------------------------------------


def test_from_videos_of_one_s_own_to_a_caption(toy, tmp_path):
    out, run = tmp_path/"mine", tmp_path/"run"
    prepare = (
        "prepare",
        "videos",
        "--captions",
        toy/"videos"/"captions.json",
        "--videos",
        toy/"videos",
        "--out",
        out,
        "--backbone",
        "tiny",
        "--workers",
        1,
    )
    code, said, _ = picknet(*prepare)
    assert (
        code == 0
        and "4 videos (2 train, 1 validation, 1 test)" in said
        and f"at random, 80 : 5 : 15, as written in {out/'splits.json'}" in said
    )
    first = (out/"splits.json").read_text()
    assert picknet(*prepare)[0] == 0 and (out/"splits.json").read_text() == first
    assert json.loads((out/"corpus.json").read_text())["name"] == "mine"
    assert picknet("train", run, "--data", out, "--scale", "smoke", *QUICK)[0] == 0
    code, said, _ = picknet("caption", toy/"videos"/"example.mp4", "--model", run)
    assert code == 0 and said.splitlines()[0] and "picked, at" in said


def test_splits_of_one_s_own(toy, tmp_path):
    prepare = lambda splits: (
        "prepare",
        "videos",
        "--captions",
        toy/"videos"/"captions.json",
        "--videos",
        toy/"videos",
        "--out",
        tmp_path/"mine",
        "--backbone",
        "tiny",
        "--workers",
        1,
        "--name",
        "four",
        "--splits",
        splits,
    )
    (tmp_path/"splits.json").write_text(
        json.dumps({"train": ["example", "clip 1"], "validation": ["clip 2"]})
    )
    code, said, errors = picknet(*prepare(tmp_path/"splits.json"))
    assert (
        code == 0
        and "2 train, 1 validation, 0 test" in said
        and "in no split: clip 3 (1)" in errors
    )
    (tmp_path/"empty.json").write_text(json.dumps({"train": ["example"]}))
    shutil.rmtree(tmp_path/"mine")
    assert "empty.json: leaves no clip for validation, and training needs both" in refused(
        *prepare(tmp_path/"empty.json")
    )
    assert not (tmp_path/"mine").exists()  # nothing was extracted


def test_captions_of_other_videos_are_refused(toy, tmp_path):
    (tmp_path/"captions.json").write_text(json.dumps({"example.mp4": ["a star hops"]}))
    words = (
        "prepare",
        "videos",
        "--captions",
        tmp_path/"captions.json",
        "--videos",
        toy/"videos",
        "--out",
        tmp_path/"mine",
        "--backbone",
        "tiny",
    )
    assert "names no video in" in refused(
        *words
    ) and "without extension, such as 'clip 1'" in refused(*words)
    (tmp_path/"captions.json").write_text(json.dumps({"example": ["a star hops"]}))
    assert "cannot be split in three" in refused(*words)


def test_a_file_that_is_left_out_is_named_once(toy, tmp_path):
    shutil.copytree(toy/"videos", tmp_path/"videos")
    (tmp_path/"videos"/"clip 1.mp4").write_bytes(b"no film")
    code, _, errors = picknet(
        "prepare",
        "videos",
        "--captions",
        toy/"videos"/"captions.json",
        "--videos",
        tmp_path/"videos",
        "--out",
        tmp_path/"mine",
        "--backbone",
        "tiny",
        "--workers",
        1,
    )
    assert (
        code == terminal.SOME_LEFT_OUT
        and errors.count("clip 1.mp4") == 1
        and "left out: 1, named above" in errors
    )


def test_weights_that_tiny_would_not_read_are_refused(toy, tmp_path):
    nothing = tmp_path/"nope.pth"
    assert "the backbone tiny reads no weights" in refused(
        "prepare",
        "videos",
        "--captions",
        toy/"videos"/"captions.json",
        "--videos",
        toy/"videos",
        "--out",
        tmp_path/"parts",
        "--backbone",
        "tiny",
        "--weights",
        nothing,
    )
    assert "nope.pth: no such file" in refused(
        "caption", toy/"videos", "--model", toy/"run", "--weights", nothing
    )
    nothing.write_bytes(b"not read")
    assert "the backbone tiny, which reads no weights" in refused(
        "caption", toy/"videos", "--model", toy/"run", "--weights", nothing
    )


# captions
# --------------------------------------------------------------------------------------------------


def test_nothing_is_drawn_that_nobody_asked_for(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert picknet("caption", toy/"videos"/"example.mp4", "--model", toy/"run")[0] == 0
    assert drawn(tmp_path) == []


def test_drawings_of_one_video_are_files_and_of_several_a_folder(toy, tree, tmp_path, monkeypatch):
    # which takes its time
    monkeypatch.setattr(drawing, "render", lambda found, out: Path(out).touch())
    one, out = tree/"a"/"v.mp4", tmp_path/"out"
    code, said, _ = picknet(
        "caption",
        one,
        "--model",
        toy/"run",
        "--out",
        out/"new"/"s.png",
        "--out",
        out/"g.gif",
        "--out",
        out/"deep"/"m.mp4",
    )
    assert (
        code == 0
        and drawn(out) == ["deep/m.mp4", "g.gif", "new/s.png"]
        and str(out/"g.gif") in said
    )
    # one is drawn by now; from here on it is names that count
    monkeypatch.setattr(drawing, "save_strip", lambda found, out: Path(out).touch())
    for paths, names in (
        ([tree], ["a/v", "b/v"]),
        ([tree/"a"/"v.mp4", tree/"b"/"v.mp4"], ["a/v", "b/v"]),
        ([tree/"a"], ["v"]),
    ):
        shutil.rmtree(out)
        assert (
            picknet(
                "caption", *paths, "--model", toy/"run", "--out", out, "--out", out/"{}.gif"
            )[0]
            == 0
        )
        assert drawn(out) == sorted(f"{name}.{kind}" for name in names for kind in ("gif", "png"))


@pytest.mark.parametrize(
    "name, reason",
    [
        ("x.doc", "must end in .png"),
        ("x.webm", "must end in .png"),
        ("file", "must end in .png"),
        ("file/x.png", "cannot be written"),
        ("videos/a/v.mp4", "is one of the videos"),
        ("folder/v.gif", "v.gif/v.png: cannot be written: is a folder"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_anything_is_read(
    tree, tmp_path, monkeypatch, name, reason
):
    monkeypatch.setattr(loading, "load_captioner", lambda *_, **__: pytest.fail("too late"))
    (tmp_path/"file").touch()
    (tmp_path/"folder"/"v.gif"/"v.png").mkdir(parents=True)
    said = refused("caption", tree/"a"/"v.mp4", "--out", tmp_path / name)
    assert str(tmp_path / name) in said and reason in said


def test_a_new_folder_of_an_output_is_named(tree, tmp_path):
    place = tmp_path/"new"/"dir"/"picks.png"
    code, _, said = picknet("caption", tree/"a"/"v.mp4", "--model", "shapes", "--out", place)
    assert code == 0 and place.exists() and f"made the folder {place.parent}" in said
    said = picknet("caption", tree/"a"/"v.mp4", "--model", "shapes", "--out", place)[2]
    assert "made the folder" not in said


@pytest.mark.parametrize("words", [("evaluate", "--beam"), ("stream", "v.mp4", "--window")])
def test_a_number_that_no_machine_can_hold_is_a_mistyped_command(words):
    code, _, said = picknet(*words, "9" * 30)
    limit = "less than or equal", "is not in the range"  # the words of a later and an earlier typer
    assert code == 2 and f"'{words[-1]}'" in said and any(each in said for each in limit)


def test_json_takes_no_file_name(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_captioner", lambda *_, **__: pytest.fail("too late"))
    said = refused("caption", tree/"a"/"v.mp4", "--json", tmp_path/"out.json")
    assert f"write --json > {tmp_path/'out.json'}" in said


def test_several_videos_do_not_share_a_file(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_captioner", lambda *_, **__: pytest.fail("too late"))
    for name in ("p.png", "g.gif", "m.mp4", "s.srt"):
        said = refused("caption", tree, "--out", tmp_path / name)
        assert "one file for 2 videos" in said and f"{{}}{Path(name).suffix}" in said
    assert "is one of the videos" in refused("caption", tree, "--out", tree/"{}.mp4")
    assert drawn(tmp_path) == ["videos/a/v.mp4", "videos/b/v.mp4"]


@pytest.mark.parametrize("ending", ["png", "gif", "srt", "json"])
def test_each_video_of_a_folder_has_an_output_of_its_own(toy, tmp_path, monkeypatch, ending):
    for job in ("render", "save_strip"):
        monkeypatch.setattr(drawing, job, lambda found, out: Path(out).write_text(found.source))
    for name in ("a.mp4", "a.mkv", "a.mp4.mov", "b.mp4"):
        (tmp_path/"videos").mkdir(exist_ok=True)
        shutil.copy(toy/"videos"/"example.mp4", tmp_path/"videos"/name)
    code, said, _ = picknet(
        "caption", tmp_path/"videos", "--model", toy/"run", "--out", tmp_path/"out"/f"{{}}.{ending}"
    )
    assert code == 0
    names = ("a.mkv", "a.mp4", "a.mp4.mov", "b")
    assert drawn(tmp_path/"out") == sorted(f"{name}.{ending}" for name in names)
    # one file, typed in two ways, is one video
    code, said, _ = picknet(
        "caption", tmp_path/"videos"/"b.mp4", f"{tmp_path}/./videos/b.mp4", "--model", toy/"run"
    )
    assert code == 0 and len(said.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_closed_folder_is_named(tree, tmp_path):
    (tmp_path/"closed").mkdir(mode=0o500)
    assert f"{tmp_path/'closed'/'s.png'}: cannot be written" in refused(
        "caption", tree/"a"/"v.mp4", "--out", tmp_path/"closed"/"s.png"
    )


def test_the_best_sentences_are_printed(toy):
    code, said, _ = picknet(
        "caption", toy/"videos"/"example.mp4", "--model", toy/"run", "--best", 3
    )
    assert code == 0 and len(set(said.splitlines())) == 4  # three sentences, and the frames
    assert (
        len(
            picknet("caption", toy/"videos", "--model", toy/"run", "--best", 2, "--beam", 3)[
                1
            ].splitlines()
        )
        == 8
    )
    assert "--best 3 needs a --beam of 3 or more, not 2" in refused(
        "caption", toy/"videos", "--best", 3, "--beam", 2
    )


def test_failures_are_part_of_the_json(toy, tmp_path):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    (tmp_path/"b.mp4").write_bytes(b"no film")
    code, said, errors = picknet("caption", tmp_path, "--model", toy/"run", "--json")
    first, second = map(json.loads, said.splitlines())
    assert (
        code == terminal.SOME_LEFT_OUT
        and "caption" in first
        and second["source"] == str(tmp_path/"b.mp4")
        and "not a video" in second["error"]
    )
    assert "left out" in errors


def test_a_model_that_nobody_named_is_named(toy, tmp_path, monkeypatch, quick_everyday):
    monkeypatch.chdir(tmp_path)
    video, run = toy/"videos"/"example.mp4", tmp_path/"runs"/"mine"
    shutil.copytree(toy/"run", run)
    for command in ("caption", "stream"):
        code, _, errors = picknet(command, video)
        assert code == 0 and errors.startswith("model: everyday; `picknet models everyday` prints")
        assert (
            picknet(command, video, "--model", "runs")[2] == "model: runs/mine, trained on shapes\n"
        )
        assert (
            picknet(command, video, "--model", run)[2]
            == picknet(command, video, "--model", "shapes")[2]
            == ""
        )
    said = [
        json.loads(picknet("caption", video, "--json", *words)[1])["caption"]
        for words in (("--model", "shapes"), ("--model", run))
    ]
    assert said[0] == said[1] and json.loads(picknet("caption", video, "--json")[1])[
        "run"
    ].endswith("everyday")
    assert (
        "shape: no such folder, and no bundled model 'shape'; did you mean shapes?"
        in refused("caption", video, "--model", "shape")
    )


def test_a_model_is_listed_shown_made_and_used(toy, tmp_path):
    listed = json.loads(picknet("models", "--json")[1])
    names = [each["name"] for each in listed]
    assert names[0] == "everyday" and "shapes" in names
    columns = picknet("models")[1].splitlines()[0].split()
    assert columns[:5] == ["model", "right", "half", "wrong", "of"] and "CIDEr" in columns
    assert "## What it cannot do" in picknet("models", "shapes")[1]
    assert f"there are {', '.join(sorted(names))}" in refused("models", "nobody")
    code, said, _ = picknet("export", toy/"run", tmp_path/"mine", "--beam", 3, "--no-repeats")
    assert (
        code == 0
        and str(tmp_path/"mine") in said
        and "not an empty folder" in refused("export", toy/"run", tmp_path/"mine")
    )
    assert picknet("caption", toy/"videos"/"example.mp4", "--model", tmp_path/"mine")[0] == 0


def test_subtitles_of_a_video_of_several_and_of_a_broken_one(toy, tmp_path):
    video = toy/"videos"/"example.mp4"
    code, said, _ = picknet(
        "caption", video, "--model", "shapes", "--out", tmp_path/"a.srt"
    )
    assert (
        code == 0
        and said.startswith("00:00:00 - 00:00:")
        and (tmp_path/"a.srt").read_text().startswith("1\n00:00:00,000 --> ")
    )
    (tmp_path/"films").mkdir()
    for name in ("one.mp4", "two.mp4"):
        shutil.copy(video, tmp_path/"films" / name)
    (tmp_path/"films"/"broken.mp4").write_bytes(b"no film")
    code, _, errors = picknet(
        "caption", tmp_path/"films", "--model", "shapes", "--out", tmp_path/"texts"/"{}.srt"
    )
    assert (
        code == 3
        and "broken.mp4" in errors
        and sorted(path.name for path in (tmp_path/"texts").iterdir()) == ["one.srt", "two.srt"]
    )
    assert "cannot be combined" in refused(
        "caption", video, "--out", tmp_path/"b.srt", "--best", 3, "--beam", 3
    )
    assert "cannot be combined" in refused(
        "caption", video, "--out", tmp_path/"b.srt", "--out", tmp_path/"b.png"
    )


def test_whoever_asks_one_sentence_of_a_long_video_hears_of_subtitles(toy, tmp_path):
    film(tmp_path/"long.mp4", total=90, rate=1)
    assert (
        "it lasts 1 minute: --out long.srt"
        in picknet("caption", tmp_path/"long.mp4", "--model", "shapes")[2]
    )


def test_corpora_are_joined_by_a_command(tmp_path):
    parts = [
        replace(
            noise_corpus(seed=seed),
            ids=[f"{seed}.{name}" for name in noise_corpus().ids],
            name=f"part {seed}",
        ).save(tmp_path / str(seed))
        for seed in range(2)
    ]
    code, said, _ = picknet(
        "prepare", "join", *parts, "--out", tmp_path/"both", "--set", "min_word_count=2"
    )
    assert code == 0 and "80 videos (48 train, 16 validation, 16 test)" in said
    assert Corpus.load(tmp_path/"both").settings.min_word_count == 2
    code, said, _ = picknet(
        "prepare", "join", *parts, "--out", tmp_path/"more", "--more-training"
    )
    more, first = Corpus.load(tmp_path/"more"), Corpus.load(parts[0])
    assert code == 0 and "64 videos (48 train, 8 validation, 8 test)" in said
    assert [more.ids[clip] for clip in more.splits["test"]] == [
        first.ids[clip] for clip in first.splits["test"]
    ]
    assert torch.equal(
        more.features[more.splits["train"][24:]],
        Corpus.load(parts[1]).features[first.splits["train"]],
    )
    assert "does not read hidden" in refused(
        "prepare", "join", *parts, "--out", tmp_path/"x", "--set", "hidden=3"
    )
    assert "at least two corpora" in refused("prepare", "join", parts[0], "--out", tmp_path/"x")
    assert "the same video twice" in refused(
        "prepare", "join", parts[0], parts[0], "--out", tmp_path/"x"
    )


def test_sentences_on_the_way_are_made_for_those_who_see_them(toy, tmp_path, monkeypatch):
    asked, plain = [], captioning.VideoCaptioner.caption_many
    monkeypatch.setattr(
        captioning.VideoCaptioner,
        "caption_many",
        lambda self, paths, **options: (
            asked.append(options["running"]) or plain(self, paths, **options)
        ),
    )
    command = "caption", toy/"videos"/"example.mp4", "--model", toy/"run"
    text, found, _ = (
        picknet(*command, *more)[1]
        for more in ((), ("--json",), ("--out", tmp_path/"strip.png"))
    )
    assert asked == [False, True, True]
    found = json.loads(found)
    assert text.splitlines()[0] == found["caption"] == found["captions"][-1] and len(
        found["captions"]
    ) == len(found["picked"])


def test_a_drawing_does_not_go_to_standard_output(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        "not to standard output" in refused("caption", tree/"a"/"v.mp4", "--out", "-")
        and not (tmp_path/"-").exists()
    )


# the whole command
# --------------------------------------------------------------------------------------------------


def typed(monkeypatch, *words) -> int:
    "The exit code of the command with all that surrounds it."
    monkeypatch.setattr(sys, "argv", ["picknet", *map(str, words)])
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    return 0


def test_letters_that_the_terminal_lacks_do_not_end_the_work(toy, tmp_path, monkeypatch):
    for name in ("Käse.mp4", "z.mp4"):
        shutil.copy(toy/"videos"/"example.mp4", tmp_path/name)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert typed(monkeypatch, "caption", tmp_path, "--model", toy/"run") == 0
    first, second = terminal.buffer.getvalue().splitlines()
    assert b"K\\xe4se.mp4: " in first and b"z.mp4: " in second


def test_a_name_that_begins_with_a_dash_is_explained(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(toy/"videos"/"example.mp4", "-8y1Q.mp4")
    assert (
        typed(monkeypatch, "caption", "-8y1Q.mp4") == 2
        and "write ./-8y1Q.mp4" in capsys.readouterr().err
    )
    assert typed(monkeypatch, "caption", "-nope.mp4") == 2 and "./" not in capsys.readouterr().err
    assert typed(monkeypatch, "caption", "./-8y1Q.mp4", "--model", toy/"run") == 0


def test_warnings_of_ours_are_one_line(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        training, "train", lambda *_, **__: warnings.warn("7 clips are left out", stacklevel=2)
    )
    # there is no run that could be compared with what it began from
    monkeypatch.setattr("picknet_nb.interface.train.show_gain", lambda *_: None)
    assert typed(monkeypatch, "train", tmp_path/"run", "--data", noise, "--scale", "smoke") == 0
    # first what it will cost, and how few clips there are
    *before, warned, advice = capsys.readouterr().err.splitlines()
    assert not any("left out" in line for line in before)
    assert warned == "picknet: 7 clips are left out" and advice.startswith("next: ")
    terminal.show_warning("theirs", DeprecationWarning, "torch/x.py", 3)
    assert "x.py:3: DeprecationWarning: theirs" in capsys.readouterr().err


@pytest.mark.parametrize("group", [[], ["prepare"]])
def test_nothing_is_cut_off_in_the_list_of_commands(group):
    listing = CliRunner().invoke(cli.app, [*group, "--help"], terminal_width=80).stdout
    assert "..." not in listing.partition("Options:")[2]


def test_every_command_stands_under_one_heading_and_what_captions_comes_first():
    command = typer.main.get_command(cli.app)
    under = [name for names in cli.HEADINGS.values() for name in names]
    assert sorted(under) == sorted(command.commands) and len(set(under)) == len(under)
    listing = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert re.findall(r"^  (\w+)  +[A-Z]", listing.partition("--help  ")[2], re.M) == under
    assert all(f"\n{heading}:\n" in listing for heading in cli.HEADINGS)
    first = "caption", "prepare", "reproduce"
    assert tuple(names[0] for names in cli.HEADINGS.values()) == first
    ours = CliRunner().invoke(cli.app, ["prepare", "--help"]).stdout.partition("Commands:")[2]
    assert ours.split()[0] == "videos"


# the rest
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "prepare shapes --seed -1",
        "explore --port 99999",
        "explore --port 0",
        "reproduce --beam 0",
        "prepare videos --captions x --videos y --out z --workers 0",
    ],
)
def test_numbers_out_of_range_are_mistyped_commands(line):
    assert picknet(*line.split())[0] == 2


def test_one_s_own_weights_can_be_explored(toy, tmp_path):
    explore = ("explore", "--model", toy/"run", "--videos", toy/"videos", "--no-browser")
    assert "the backbone tiny, which reads no weights" in refused(
        *explore, "--weights", tmp_path/"mine.pth"
    )


def test_missing_parts_are_named_with_what_brings_them():
    there = {name: True for names in terminal.PARTS.values() for name in names}
    assert (
        terminal.missing_parts({**there, "voila": False})
        == 'voila (pip install "picknet_nb[notebook]")'
    )
    assert "voila" in json.loads(picknet("info", "--json")[1])["optional"]


def test_the_cider_of_one_clip_is_explained(tmp_path, monkeypatch):
    from picknet_nb.measure import metrics

    monkeypatch.setattr(metrics, "score", lambda *_, **__: metrics.Scores({"CIDEr": 0.0}, ""))
    for count, told in ((1, True), (2, False)):
        (tmp_path/"c.json").write_text(
            json.dumps({str(number): "a dog runs" for number in range(count)})
        )
        (tmp_path/"r.json").write_text(
            json.dumps({str(number): ["a dog runs"] for number in range(count)})
        )
        assert (
            "only one clip"
            in picknet("score", tmp_path/"c.json", "--references", tmp_path/"r.json")[2]
        ) is told


def test_a_folder_that_is_not_there_is_not_explored(toy, tmp_path):
    assert f"{tmp_path/'nodir'}: no such folder" in refused(
        "explore", "--model", toy/"run", "--videos", tmp_path/"nodir", "--no-browser"
    )


TRAP = "from pathlib import Path\nPath({mark!r}).touch()\nraise SystemExit\n"


def test_nothing_of_the_current_folder_is_run_that_nobody_named(tmp_path):
    """A package installed without a checkout, in a folder that others can write to: neither
    benchmarks of a parent folder nor modules beside the videos are run."""
    shutil.copytree(
        Path(cli.__file__).parents[1],
        tmp_path/"site"/"picknet_nb",
        ignore=shutil.ignore_patterns("__pycache__", "bundled"),
    )
    work, mark = tmp_path/"shared"/"work", tmp_path/"mark"
    (tmp_path/"shared"/"benchmarks").mkdir(parents=True)
    work.mkdir()
    (tmp_path/"shared"/"settings.ini").touch()
    trap = TRAP.format(mark=str(mark))
    (tmp_path/"shared"/"benchmarks"/"captioner.py").write_text(trap + "__name__ == '__main__'\n")
    for name in ("multiprocessing", "struct", "torch", "numpy"):
        (work/f"{name}.py").write_text(trap)
    (tmp_path/"bin").mkdir()
    (tmp_path/"bin"/"picknet").write_text(
        "import multiprocessing, sys\n"
        "from picknet_nb.interface.main import main\n"
        "if __name__ == '__main__':\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        # Python 3.10 has no such switch: there the processes of `reproduce` look here first
        "    if sys.version_info < (3, 11): sys.exit()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=int)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    assert child.exitcode == 0\n"
    )
    kept = {name: each for name, each in os.environ.items() if name != "PYTHONSAFEPATH"}
    for words in (["models"], ["--version"]):
        subprocess.run(
            [sys.executable, tmp_path/"bin"/"picknet", *words],
            cwd=work,
            env=kept | {"PYTHONPATH": str(tmp_path/"site")},
        )
        assert not mark.exists(), words


def test_the_version():
    from picknet_nb import __version__
    assert picknet("--version")[:2] == (0, f"picknet_nb {__version__}\n")


def test_a_table_is_printed_though_there_is_nothing_to_draw_with(tmp_path, monkeypatch):
    row = {
        "row": "Baseline",
        "seed": 0,
        "picker": "all",
        "frames_used": 30.0,
        "scores": {"greedy": dict.fromkeys(analysis.TABLE_METRICS, 0.5)},
    }
    result = {
        "kind": "table",
        "data": "shapes",
        "scale": "smoke",
        "config": {"seed": 0},
        "rows": [row],
    }
    monkeypatch.setattr(reproduction, "reproduce", lambda *_, **__: result)
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path/"seed-0"/"supervision").mkdir(parents=True)
    (tmp_path/"seed-0"/"supervision"/"log.jsonl").write_text(
        json.dumps({"stage": "supervision", "epoch": 0, "loss": 1.0, "seconds": 1.0}) + "\n"
    )
    code, said, errors = picknet("reproduce", "--folder", tmp_path)
    assert (
        code == 0
        and "| Baseline | 30.0 |" in said
        and "no pictures: drawing needs matplotlib" in errors
    )
    assert (tmp_path/"table.md").exists()


def test_a_bundled_model_is_judged_by_data_that_somebody_names():
    for words in (["--model", "everyday"], []):
        assert "name a corpus to evaluate it on (`data`, on the command line --data)" in refused(
            "evaluate", *words, "--no-scores"
        )


def test_a_model_is_a_bundled_one_or_a_folder(toy, tmp_path, monkeypatch, quick_everyday):
    "A folder that has a bundled model's name does not take its place."
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy/"run", tmp_path/"everyday")
    video = toy/"videos"/"example.mp4"
    cnn = lambda said: json.loads(said)["run"]
    assert cnn(picknet("caption", video, "--json", "--model", "./everyday")[1]) == "everyday"
    assert cnn(picknet("caption", video, "--json", "--model", "everyday")[1]) == str(
        models.find_model("everyday")
    )
    for command in (["caption", video], ["stream", video], ["evaluate", "--no-scores"]):
        assert "./nowhere: no such folder" in refused(*command, "--model", "./nowhere")
        said = refused(*command, "--model", "nowhere")
        assert "nowhere: no such folder, and no bundled model" in said


@pytest.mark.parametrize(
    "line",
    [
        "caption {video} --out --json",
        "caption {video} --picker --json",
        "caption {video} --model --json",
        "evaluate --out --no-scores",
        "prepare videos --captions c.json --videos v --out --name",
        "train run --data --resume",
    ],
)
def test_an_option_is_not_the_value_of_another(toy, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    said = refused(*line.format(video=toy/"videos"/"example.mp4").split())
    assert "needs a value, and --" in said and drawn(tmp_path) == []


def test_a_place_that_cannot_be_written_is_noticed_before_a_split_is_captioned(
    toy, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        python, "evaluate", lambda *_, **__: pytest.fail("captions were made first")
    )
    (tmp_path/"file").write_text("")
    assert "file" in refused(
        "evaluate", "--model", toy/"run", "--no-scores", "--out", tmp_path/"file"/"captions.json"
    )
    monkeypatch.setattr(
        reproduction,
        "check_scorers",
        lambda: (_ for _ in ()).throw(PickNetError("scoring needs pycocoevalcap")),
    )
    assert "scoring needs" in refused("evaluate", "--model", toy/"run")


def test_a_damaged_log_of_one_run_does_not_hide_the_others(tmp_path):
    for name, log in (
        ("good", '{"stage": "supervision", "epoch": 3}\n'),
        ("bad", '{"stage": "super\n{}\n'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name/"run.json").write_text("{}")
        (tmp_path / name/"log.jsonl").write_text(log)
    assert list(cli.unfinished_runs([tmp_path]).values()) == [
        "no epoch done yet",
        "supervision, 4 epochs done",
    ]


def test_where_use_belongs_is_said():
    assert terminal.after_mistake(["caption", "film.mp4", "--use", "mine"]) == [
        "--use comes before the command: `picknet --use MODULE COMMAND …`"
    ]
    assert (
        terminal.after_mistake(["--use", "mine", "caption", "--no-such"])
        == terminal.after_mistake([])
        == []
    )


# the first hour
# --------------------------------------------------------------------------------------------------


def in_a_process(*words, **options) -> subprocess.CompletedProcess:
    "The command in a process, which says on its last line of errors whether it imported PyTorch."
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from picknet_nb.interface.main import main\n"
        "main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, **options
    )


def test_what_is_plainly_wrong_is_said_before_pytorch_is_imported(tmp_path):
    (tmp_path/"empty.mp4").touch()
    (tmp_path/"still.mp4").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path/"photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(20))
    (tmp_path/"out.json").write_text("{}")
    (tmp_path/"film.mp4").write_bytes(bytes(20))
    for line, reason in {
        "caption nowhere.mp4": "nowhere.mp4: no such file",
        "caption empty.mp4": "empty.mp4: is empty",
        "caption still.mp4": "still.mp4: is a picture (PNG), not a video",
        "caption photo.jpg --json": "photo.jpg: is a picture (JPEG), not a video",
        "caption --json out.json": "--json takes no file name: add > FILE",
        "stream nowhere.mp4": "nowhere.mp4: no such file",
        "stream empty.mp4": "empty.mp4: is empty",
        "caption film.mp4 --model everyda": "did you mean everyday?",
        "stream film.mp4 --model ./nowhere": "./nowhere: no such folder",
        "models everyda": "did you mean everyday?",
        "models everyday": "",
        "models": "",
        "--help": "",
    }.items():
        done = in_a_process(*line.split(), cwd=tmp_path)
        *told, imported = done.stderr.splitlines()
        assert reason in "".join(told) and imported == "False", (line, done.stderr)


def test_a_picture_among_videos_is_left_out(toy, tmp_path):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    (tmp_path/"b.mp4").touch()
    code, said, told = picknet("caption", tmp_path/"a.mp4", tmp_path/"b.mp4", "--model", toy/"run")
    assert code == terminal.SOME_LEFT_OUT and "a.mp4: " in said and "b.mp4" in told


def test_a_clip_of_two_frames_is_reported_alike_to_people_and_programs(toy, tmp_path):
    film(tmp_path/"two.mp4", total=2, rate=30)
    words = ("caption", tmp_path/"two.mp4", "--model", toy/"run", "--picker", "uniform-5")
    sentence, frames = picknet(*words)[1].splitlines()
    found = json.loads(picknet(*words, "--json")[1])
    assert found["times"] == [0.0, 0.033] and frames == "2 frames picked, at 0.000, 0.033 s"


def test_training_on_the_built_in_world_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: None)
    monkeypatch.setitem(world.SCALES, "smoke", (8, 4, 4))
    monkeypatch.setattr(training, "data_folder", lambda: tmp_path/"data")
    said = "no --data: training on the toy world"
    assert said in picknet("train", tmp_path/"a", "--preset", "smoke")[2]
    assert said not in picknet("train", tmp_path/"b", "--data", "shapes", "--preset", "smoke")[2]


@pytest.mark.parametrize("word", ["--preset", "--scale"])
def test_a_mistyped_preset_is_guessed(tmp_path, word):
    assert "no preset 'laptopp': did you mean laptop? There are paper" in refused(
        "train", tmp_path/"run", word, "laptopp"
    )


def handful(toy, folder: Path, count: int) -> tuple:
    "Some videos of one's own, and the words that prepare them."
    (folder/"clips").mkdir()
    for number in range(count):
        shutil.copy(toy/"videos"/"example.mp4", folder/"clips"/f"c{number}.mp4")
    (folder/"captions.json").write_text(
        json.dumps({f"c{number}": ["a ball rolls, again"] for number in range(count)})
    )
    return (
        *("prepare", "videos", "--captions", folder/"captions.json", "--videos", folder/"clips"),
        *("--out", folder/"out", "--backbone", "tiny", "--workers", 1),
    )


def test_three_clips_are_too_few_and_clips_without_captions_one_line(toy, tmp_path):
    words = handful(toy, tmp_path, 3)
    for number in range(7):
        shutil.copy(toy/"videos"/"example.mp4", tmp_path/"clips"/f"x{number}.mp4")
    code, _, told = picknet(*words)
    assert code == terminal.SOME_LEFT_OUT and "3 clips are too few to learn from" in told
    (skipped,) = [line for line in told.splitlines() if line.startswith("skipped")]
    assert skipped.startswith("skipped 7: ") and skipped.endswith("and 5 more")


def test_what_preparing_needs_is_checked_before_anything_is_measured(toy, tmp_path, monkeypatch):
    from picknet_nb.training import forecast

    monkeypatch.setattr(
        forecast, "foresee_extraction", lambda *_, **__: pytest.fail("measured first")
    )
    words = handful(toy, tmp_path, 4)
    for name in {"nltk", *(name for name in sys.modules if name.startswith("nltk."))}:
        monkeypatch.setitem(sys.modules, name, None)
    text._nltk_words.cache_clear()
    assert 'pip install "picknet_nb[metrics]"' in refused(*words)
    monkeypatch.undo()
    monkeypatch.setattr(
        forecast, "foresee_extraction", lambda *_, **__: pytest.fail("measured first")
    )
    full = shutil._ntuple_diskusage(10**9, 10**9, 10**3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert "MB are needed, and 0 MB are free" in refused(*words)
    (tmp_path/"file").touch()
    assert "is a file" in refused(*words[:6], "--out", tmp_path/"file"/"out", *words[8:])
    assert "no backbone 'nope'" in refused(
        *words[:6], "--out", tmp_path/"new", "--backbone", "nope", "--workers", 1
    )
    assert not (tmp_path/"new").exists()


def test_a_full_disk_is_noticed_before_training(noise, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained first"))
    full = shutil._ntuple_diskusage(10**9, 10**9, 10**3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert "MB are needed, and 0 MB are free" in refused(
        "train", tmp_path/"run", "--data", noise, "--preset", "smoke"
    )


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_what_was_drawn_before_is_not_captioned(toy, tmp_path, ending):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    drawing_of_it = tmp_path/f"drawn.{ending}"
    assert picknet(
        "caption", tmp_path/"a.mp4", "--model", toy/"run", "--out", drawing_of_it
    )[0] == 0
    with pytest.warns(UserWarning, match=f"has drawn it: drawn.{ending}"):
        code, said, _ = picknet("caption", tmp_path, "--model", toy/"run")
    assert code == 0 and len(said.splitlines()) == 2
    # named, it is a video like any other
    assert picknet("caption", drawing_of_it, "--model", toy/"run")[0] == 0


def test_a_notebook_is_a_shell_with_a_kernel(monkeypatch):
    "Old ipywidgets import ipykernel in every process."
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for shell, seen in ((None, False), (SimpleNamespace(), False),
                        (SimpleNamespace(kernel=object()), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        assert terminal.at_terminal() == seen


def test_no_progress_bar_goes_into_a_log_file(toy, tmp_path, monkeypatch):
    "On a terminal there is one."
    words = handful(toy, tmp_path, 4)
    assert "%|" not in picknet(*words)[2]
    shutil.rmtree(tmp_path/"out")
    monkeypatch.setattr("picknet_nb.data.extraction.at_terminal", lambda: True)
    assert "%|" in picknet(*words)[2]
