"""Run folders from a stranger, or edited since: whatever is wrong with them is said in a
sentence, before anything is built or believed."""
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import long_but, noise_corpus
from safetensors.torch import load_file
from test_hostile_data import zip_bomb
from toys import invoked

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.printing import SOME_LEFT_OUT, say
from picknet_nb.core.settings import VERSION, preset
from picknet_nb.data.corpus import Corpus, CorpusError
from picknet_nb.world import world
from picknet_nb.method.recipes import recipes
from picknet_nb.method.stages import Model
from picknet_nb.training import runs
from picknet_nb.training.batches import TrainingError
from picknet_nb.training.checkpoints import read_checkpoint
from picknet_nb.training.loop import Step
from picknet_nb.training.runs import (
    RunError, change_settings, load_run, open_run, read_about, read_settings, save_weights)
from picknet_nb.training.train import train
from picknet_nb.measure.reproduction import train_first, train_row
from picknet_nb.interface import main as cli, prepare as preparing, watch as watching

CONFIG = preset(
    "smoke", supervision_epochs=2, reinforcement_epochs=1, adaptation_epochs=1, average_weights=0.5
)
QUICK = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=1)
ROW = recipes()["PickNet (V+L)"]


class Killed(BaseException):
    "Nothing in the package catches this."


def cut(folder: Path, corpus, config=CONFIG, row=ROW, steps: int = 9) -> Path:
    "A run that was killed after so many steps, with a checkpoint of the last but one."
    plain, calls = Step.update, iter(range(steps))

    def update(self, indices):
        if next(calls, None) is None: raise Killed
        plain(self, indices)

    Step.update = update
    try:
        with pytest.raises(Killed):
            train(folder, corpus, config, row, bars=False, save_seconds=0.0)
    finally:
        Step.update = plain
    return folder


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    "A run in the middle of its second epoch."
    return cut(tmp_path_factory.mktemp("begun")/"run", noise_corpus())


@pytest.fixture
def run(begun, tmp_path) -> Path:
    return shutil.copytree(begun, tmp_path/"run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    "A run that has everything, with weights that nobody trained."
    folder, corpus = tmp_path_factory.mktemp("finished")/"run", noise_corpus()
    open_run(folder, corpus, QUICK, ROW)
    save_weights(Model.for_corpus(QUICK, corpus).state_dict(), folder/"weights.safetensors")
    return folder


@pytest.fixture
def trained(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path/"trained")


def go_on(folder: Path, corpus=None, config=CONFIG):
    return train(folder, corpus or noise_corpus(), config, ROW, bars=False)


def edit(path: Path, place: str, value) -> None:
    "Something else in one place of a JSON file, such as `details.opened.data`."
    content = inside = json.loads(path.read_text())
    *way, last = place.split(".")
    for step in way: inside = inside.setdefault(step, {})
    inside[last] = value
    path.write_text(json.dumps(content))


# other data
# --------------------------------------------------------------------------------------------------


def moved(corpus):
    splits = {
        **corpus.splits,
        "train": torch.cat([corpus.splits["train"], corpus.splits["test"][:1]]),
        "test": corpus.splits["test"][1:],
    }
    return replace(corpus, splits=splits)


def exchanged(corpus):
    swap = lambda values: [values[1], values[0], *values[2:]]
    return type(corpus).build(
        corpus.name,
        corpus.ids,
        corpus.features,
        corpus.glances,
        swap(corpus.captions),
        corpus.splits,
        corpus.settings,
    )


def inverted(corpus):
    return replace(corpus, glances=255 - corpus.glances)


def overwritten(corpus):
    corpus.features[5, 7, 11] += 1
    return corpus


def rewritten(corpus):
    "As an altered words.json would: the captions are the same, the words that are learned are not."
    corpus.words[3, 0], corpus.words[3, 1] = corpus.words[3, 1].clone(), corpus.words[3, 0].clone()
    return corpus


CHANGES = {
    moved: "split train 24 clips, .* .now 25 clips, .*split test 8",
    exchanged: "captions 200 of 40 clips, .* .now 200 of 40 clips",
    inverted: "glances 40 x 30 x 196",
    overwritten: "features 40 x 30 x 32",
    rewritten: "words 200 x 16",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_run_does_not_go_on_with_other_data(run, change):
    before = {path.name: path.read_bytes() for path in run.glob("[!.]*")}
    with pytest.raises(RunError, match=f"holds another run: .*({CHANGES[change]})"):
        go_on(run, change(noise_corpus()))
    assert {path.name: path.read_bytes() for path in run.glob("[!.]*")} == before


def test_every_clip_counts(tmp_path):
    "Not only every third one, from which earlier runs made their fingerprint."
    corpus = noise_corpus(videos=200, captions=1)
    config = QUICK.changed(captions_together=1)
    open_run(tmp_path/"run", corpus, config, ROW)
    corpus.features[1, 29, 31] += 1
    with pytest.raises(RunError, match="features 200 x 30 x 32, .* .now 200 x 30 x 32"):
        open_run(tmp_path/"run", corpus, config, ROW)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_row_that_learned_from_other_data_is_not_this_one(tmp_path, change):
    corpus = noise_corpus()
    train_first(corpus, tmp_path, QUICK, bars=False)
    train_row(corpus, tmp_path, QUICK, "Baseline", recipes()["Baseline"], bars=False)
    with pytest.raises(
        FileError, match="seed-0.baseline.json: was made with .*, and this table needs"
    ):
        train_row(
            change(noise_corpus()), tmp_path, QUICK, "Baseline", recipes()["Baseline"], bars=False
        )


@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1, "4", None, 4.0, True])
def test_a_file_of_another_version_is_an_error_of_one_sentence(run, tmp_path, version):
    said = f"is of version {version!r}, and this picknet_nb reads {VERSION}"
    for name, read in (("run.json", read_about), ("config.json", read_settings)):
        before = (run/name).read_text()
        (run/name).write_text(json.dumps(json.loads(before) | {"version": version}))
        with pytest.raises(RunError, match=re.escape(f"{name}: {said}")):
            read(run)
        (run/name).write_text(before)
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    torch.save(stored | {"version": version}, run/"checkpoint.pt")
    with pytest.raises(RunError, match=re.escape(f"checkpoint.pt: {said}")):
        read_checkpoint(run)
    noise_corpus().save(tmp_path/"corpus")
    about = tmp_path/"corpus"/"corpus.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"version": version}))
    with pytest.raises(CorpusError, match=re.escape(f"corpus.json: {said}")):
        Corpus.load(tmp_path/"corpus")


def test_the_file_of_an_experiment_without_its_version_or_its_origin_is_an_error(tmp_path):
    corpus = noise_corpus()
    train_first(corpus, tmp_path, QUICK, bars=False)
    again = lambda: train_row(
        corpus, tmp_path, QUICK, "Baseline", recipes()["Baseline"], bars=False)
    row, path = again(), tmp_path/"rows"/"seed-0.baseline.json"
    for name, said in (("version", "is of version None"), ("made_from", "what it was made from")):
        path.write_text(json.dumps({key: row[key] for key in row if key != name}))
        with pytest.raises(FileError, match=said):
            again()


def test_the_checkpoint_knows_what_run_json_no_longer_says(run):
    about = json.loads((run/"run.json").read_text())
    for name in ("learned_from", "settings"): about.pop(name, None)
    (run/"run.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match="checkpoint.pt: was written with glances"):
        go_on(run, inverted(noise_corpus()))


def test_data_that_change_under_a_run_stop_it_at_the_end_of_the_stage(tmp_path, monkeypatch):
    corpus, plain, calls = noise_corpus(), Step.update, iter(range(3))

    def update(self, indices):
        # as somebody who writes into the mapped file: PyTorch does not know
        if next(calls, None) is None:
            corpus.features.numpy()[30] = 0
        plain(self, indices)

    monkeypatch.setattr(Step, "update", update)
    with pytest.raises(
        RunError,
        match="the training data changed while supervision was trained: features 40 x 30 x 32",
    ):
        train(tmp_path/"run", corpus, CONFIG, ROW, bars=False, save_seconds=0.0)
    assert (
        read_checkpoint(tmp_path/"run")["finished"] == []
        and not (tmp_path/"run"/"weights.safetensors").exists()
    )


@pytest.mark.parametrize(
    "name, value",
    [("training.seed", 5), ("training.supervision_rate", 0.5), ("policy.penalty", -3.0)],
)
def test_settings_edited_by_hand_are_noticed(run, name, value):
    edit(run/"config.json", name, value)
    short = name.split(".")[1]
    with pytest.raises(
        RunError,
        match=f"config.json: was changed after the run was begun, or run.json was: {short} "
              f"{value}, and run.json notes",
    ):
        # as `picknet train --resume` reads them
        go_on(run, config=CONFIG.changed(**{short: value}))
    edit(run/"run.json", f"settings.{short}", value)
    with pytest.raises(RunError, match=f"checkpoint.pt: was written with {short} "):
        go_on(run, config=CONFIG.changed(**{short: value}))


def test_epochs_change_on_the_way_but_not_by_hand(run):
    edit(run/"config.json", "training.adaptation_epochs", 9)
    with pytest.raises(
        RunError,
        match="was changed after the run was begun, or run.json was: adaptation_epochs 9, and "
              "run.json notes",
    ):
        go_on(run, config=CONFIG.changed(adaptation_epochs=9))
    change_settings(run, {"adaptation_epochs": 1})
    go_on(run, config=CONFIG.changed(adaptation_epochs=1))


def test_another_number_of_processes_is_told(run):
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    torch.save(stored | {"random": stored["random"] * 2}, run/"checkpoint.pt")
    with pytest.warns(
        UserWarning, match="written by 2 processes and is resumed by 1: .* not be bit-identical"
    ):
        go_on(run)


def test_the_same_number_of_processes_is_no_news(run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # of noise there is nothing to learn
        warnings.filterwarnings("ignore", message=".*one and the same sentence")
        go_on(run)


# files of a run
# --------------------------------------------------------------------------------------------------


ODD = ["abc", None, 1.5, -1, True, [], {}, [1, 2], 10**30, float("nan"), "\x00", "x" * 5000]
PLACES = [
    "recipe",
    "recipe.picker",
    "recipe.picks",
    "recipe.adapted",
    "recipe.language",
    "recipe.architecture",
    "recipe.nonsense",
    "corpus",
    "feature_dims",
    "glance_dims",
    "details",
    "details.opened",
    "details.opened.data",
    "details.opened.scale",
    "settings",
    "settings.seed",
    "learned_from",
    "learned_from.captions",
]


def picknet(*words) -> tuple[int, str]:
    "Exit code and last words of a command; an error that is not ours is one of the test."
    found = invoked(*words)
    if found.exception and not isinstance(found.exception, (PickNetError, SystemExit)):
        raise found.exception
    return (
        (1, str(found.exception))
        if isinstance(found.exception, PickNetError)
        else (found.exit_code, found.output)
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_run_json_with_anything_anywhere_is_refused_or_read(run, trained, tmp_path, place):
    """By `train --resume`, `evaluate` and `load_run`; what is refused names a file of the run,
    or says which data is not there."""
    refused = 0
    for value in ODD[len(place) % 2 :: 2]:
        for folder, line in (
            (run, ("train", run, "--resume", "--data", tmp_path/"nowhere")),
            (trained, ("evaluate", "--model", trained, "--data", tmp_path/"nowhere")),
            (trained, None),
        ):
            kept = (folder/"run.json").read_text()
            edit(folder/"run.json", place, value)
            try:
                if line:
                    code, said = picknet(*line)
                    assert code == 1 and "Traceback" not in said
                else:
                    load_run(folder)
            except FileError as reason:
                assert str(folder) in str(reason)
                refused += 1
            finally:
                (folder/"run.json").write_text(kept)
    assert refused or place not in (
        "recipe",
        "recipe.picker",
        "feature_dims",
        "glance_dims",
    )


@pytest.mark.parametrize("value", ["abc", None, 1.5, 10**6])
def test_frames_that_cannot_be_are_named(trained, value):
    edit(trained/"config.json", "clip.frames", value)
    edit(trained/"run.json", "settings", {})
    with pytest.raises(
        RunError,
        match="config.json: frames (must be int|1000000 is far too large: 1000 are the most)",
    ):
        load_run(trained)


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("recipe.picker", 5, "its recipe is garbled"),
        ("recipe.picks", "six", "its recipe is garbled"),
        ("recipe.architecture", "../up", "no captioner '../up'"),
        ("recipe.picks", 10**9, "1000 are the most"),
        ("details.opened.data", [1], "details.opened.data cannot be"),
        ("details.opened", "shapes", "details.opened cannot be"),
        ("feature_dims", "abc", "feature_dims cannot be"),
        ("glance_dims", -4, "lacks or garbles sizes of the model: glance_dims"),
    ],
)
def test_what_is_wrong_in_run_json_is_named(trained, place, value, message):
    edit(trained/"run.json", place, value)
    with pytest.raises(RunError, match=f"run.json: .*{message}"):
        load_run(trained)


@pytest.mark.parametrize("file, place, kind", [
    ("run.json", "recipe.picker", "picker"), ("config.json", "policy.reward", "reward")])
def test_what_a_resumed_run_lacks_is_named_with_the_file(run, file, place, kind):
    edit(run/file, place, "../up")
    code, said = picknet("train", run, "--resume", "--data", "shapes")
    assert code == 1 and said.startswith(f"{run/file}: no {kind} '../up'"), said


def test_data_that_is_gone_is_named(run):
    edit(run/"run.json", "details.opened", {"data": "/nowhere/at/all", "scale": "smoke"})
    assert picknet("train", run, "--resume")[1].endswith(
        "was started with the data in /nowhere/at/all, which is gone: say where it is now "
        "(`data`, on the command line --data)"
    )
    edit(run/"run.json", "details.opened", {})  # nor is the built-in world made for it
    assert picknet("train", run, "--resume")[1].endswith(
        "does not say which data it was started with: name it with --data"
    )


def test_a_vocabulary_that_is_gone_or_another_is_noticed_when_the_run_goes_on(run):
    words = json.loads((run/"vocabulary.json").read_text())
    (run/"vocabulary.json").write_text(json.dumps(words[:4] + words[:3:-1]))
    with pytest.raises(RunError, match="vocabulary.json: holds other words"):
        go_on(run)
    (run/"vocabulary.json").unlink()
    with pytest.raises(RunError, match="vocabulary.json: no such file"):
        go_on(run)


def test_best_weights_that_are_gone_are_missed_at_once(run, monkeypatch):
    monkeypatch.setattr(Step, "update", lambda *_: pytest.fail("too late"))
    (run/"supervision.safetensors").unlink()
    with pytest.raises(RunError, match="supervision.safetensors: is gone"):
        go_on(run)


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "run.json"])
def test_a_file_that_is_a_folder_or_gone_is_named(run, name):
    (run/name).unlink()
    (run/name).mkdir()
    with pytest.raises(RunError, match=name):
        go_on(run)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(trained, number):
    weights = load_file(trained/"weights.safetensors")
    weights["captioner.decoder.output.weight"][3] = number
    save_weights(weights, trained/"weights.safetensors")
    with pytest.raises(
        RunError,
        match="weights.safetensors: holds numbers that are not finite: "
              "captioner.decoder.output.weight",
    ):
        load_run(trained)


def peak_of(job, *arguments) -> tuple[str, int]:
    """What a job is refused with, and by how many megabytes the memory grew, in a process of its
    own."""

    def work():
        try:
            job(*arguments)
            said = "nothing"
        except PickNetError as reason:
            said = str(reason)
        there.send((said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(False)
    child = fork.Process(target=work)
    before = (
        int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
    // 1024
    )
    child.start()
    assert here.poll(60)
    said, peak = here.recv()
    child.join()
    return said, peak - before


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and asks Linux for the memory")
@pytest.mark.parametrize(
    "file, place, value",
    [
        ("config.json", "captioner.hidden", 25_000),
        ("config.json", "captioner.word_embedding", 1_000_000),
        ("config.json", "policy.policy_hidden", 1_000_000),
        ("run.json", "feature_dims", 10**9),
        ("run.json", "glance_dims", 10**9),
        ("run.json", "feature_dims", 2**62),
    ],
)
def test_a_model_that_the_weights_do_not_fit_is_never_built(trained, file, place, value):
    edit(trained / file, place, value)
    said, megabytes = peak_of(load_run, trained)
    assert (
        "weights.safetensors: does not fit the model that config.json and run.json describe" in said
        or "garbles sizes" in said
    ) and megabytes < 200, (said, megabytes)


def test_a_model_that_is_far_too_large_is_not_trained(tmp_path, monkeypatch):
    with pytest.raises(TrainingError, match="has [0-9,]+ weights, and 250,000,000 are the most"):
        train(tmp_path/"run", noise_corpus(), CONFIG.changed(hidden=25_000), ROW, bars=False)
    assert not (tmp_path/"run").exists()


def test_settings_of_the_machine_are_not_taken_from_a_checkpoint(run):
    """How Adam is computed is no matter of the run: one from a GPU goes on without it, and one
    that says nonsense there goes on, too."""
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    stored["optimiser"]["param_groups"][0] |= {"foreach": "x", "fused": [], "capturable": True}
    torch.save(stored, run/"checkpoint.pt")
    go_on(run)


# damaged checkpoints
# -------------------------------------------------------------------------------------------------


def equal(one, other) -> bool:
    "Whether two checkpoints say the same."
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(equal(one[name], other[name]) for name in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def damage(content: bytes, draw: random.Random) -> bytes:
    "A few bytes changed, a piece cut out, doubled or filled, or the end missing."
    content, at, size = (
        bytearray(content),
        draw.randrange(len(content)),
        draw.choice((1, 4, 64, 1000)),
    )
    match draw.randrange(6):
        case 0:
            content[at] ^= 1 << draw.randrange(8)
        case 1:
            content[at : at + size] = draw.randbytes(min(size, len(content) - at))
        case 2:
            del content[at : at + size]
        case 3:
            content[at:at] = content[at : at + size]
        case 4:
            content[at : at + size] = bytes(min(size, len(content) - at))
        case 5:
            del content[at:]
    return bytes(content)


def test_a_damaged_checkpoint_is_refused_or_says_the_same(begun, tmp_path):
    "The zip's own checksums know; PyTorch does not ask for them."
    whole = read_checkpoint(begun)
    content = (begun/"checkpoint.pt").read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        (tmp_path/"checkpoint.pt").write_bytes(damage(content, draw))
        try:
            assert equal(whole, read_checkpoint(tmp_path)), "other numbers, and not a word"
        except RunError as reason:
            assert str(tmp_path/"checkpoint.pt") in str(reason)
            refused += 1
    assert refused > 200


def changed(*way, to=None, drop=False):
    "A checkpoint with something else in one place."
    def edit(stored):
        inside = stored
        for step in way[:-1]: inside = inside[step]
        if drop: del inside[way[-1]]
        else: inside[way[-1]] = to(inside[way[-1]]) if callable(to) else to
    return edit


FLAT = torch.zeros(3)
EDITS = [
    *(changed("progress", "epoch", to=value) for value in ("one", None, -1, 1.5, 7, True, [])),
    *(changed("progress", "step", to=value) for value in ("one", -3, 10**6, None)),
    changed("progress", "stage", to="nonsense"),
    changed("progress", "stage", to=5),
    changed("progress", "stage", to="adaptation"),
    changed("progress", "best", to="x"),
    changed("progress", "seconds", to="x"),
    changed("progress", "more", to=1),
    changed("progress", "epoch", drop=True),
    changed("progress", to=[]),
    changed("finished", to="supervision"),
    changed("finished", to=[1]),
    changed("finished", to=["supervision"]),
    changed("finished", to=["nonsense"]),
    changed("log", to={}),
    changed("log", to=[]),
    changed("log", to=["x"]),
    changed("log", to=[{"stage": 1}]),
    changed("log", 0, "seconds", to=FLAT),
    changed("log", 0, "stage", to="words"),
    changed("random", to=[{}]),
    changed("random", to=FLAT),
    changed("random", 0, "cpu", to=FLAT),
    changed("random", 0, "cpu", to=lambda state: state.float()),
    changed("model", to={}),
    changed("model", to=[]),
    changed("model", "policy.compare.bias", drop=True),
    changed("model", "policy.compare.bias", to=FLAT),
    changed("model", "more", to=FLAT),
    changed("optimiser", to={}),
    changed("optimiser", to=[]),
    changed("optimiser", "state", to=[]),
    changed("optimiser", "state", 0, "exp_avg", to=FLAT),
    changed("optimiser", "state", 0, "exp_avg", drop=True),
    changed("optimiser", "state", 0, "step", to="x"),
    changed("optimiser", "state", 99, to={"exp_avg": FLAT}),
    changed("sums", to={}),
    changed("sums", "sums", to=FLAT),
    changed("sums", "names", to=5),
    changed("average", to=[]),
    changed("average", 0, to=FLAT),
    changed("average", to=None),
    changed("settings", to=5),
    changed("settings", "seed", to=3),
    changed("learned_from", "glances", to="others"),
    changed("learned_from", "glances", to=FLAT),
    changed("settings", "weight_decay", to=FLAT),
    changed("settings", "frames", to=[]),
    changed("model", drop=True),
    changed("progress", drop=True),
]


@pytest.mark.parametrize("number", long_but(range(len(EDITS)), *range(0, len(EDITS), 8)))
def test_an_edited_checkpoint_is_named_with_the_reason(run, monkeypatch, number):
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    EDITS[number](stored)
    torch.save(stored, run/"checkpoint.pt")
    monkeypatch.setattr(Step, "update", lambda *_: pytest.fail("it went on"))
    with pytest.raises(
        RunError, match=r"(checkpoint\.pt|\.safetensors): "
    ):
        go_on(run)


def filled(number: float):
    "All numbers of a tensor replaced by one."
    return lambda tensor: torch.full_like(tensor, number)


ADAM = ("optimiser", "state", 0)
BIAS = ("model", "policy.compare.bias")
VALUES = {
    "weights that are not numbers": changed(*BIAS, to=filled(math.nan)),
    "weights of another type": changed(*BIAS, to=torch.Tensor.half),
    "complex weights": changed(*BIAS, to=lambda weight: weight.to(torch.complex64)),
    "an average that is not a number": changed("average", 0, to=filled(math.nan)),
    "an average of one number": changed("average", 0, to=torch.tensor(0.0)),
    "an average of whole numbers": changed("average", 0, to=torch.Tensor.long),
    "a moment of one number": changed(*ADAM, "exp_avg", to=torch.tensor(0.0)),
    "a moment of another type": changed(*ADAM, "exp_avg", to=torch.Tensor.double),
    "a moment that is not a number": changed(*ADAM, "exp_avg", to=filled(math.nan)),
    "a negative square": changed(*ADAM, "exp_avg_sq", to=filled(-1.0)),
    "steps before the first": changed(*ADAM, "step", to=torch.tensor(-5.0)),
    "measures that are not numbers": changed("sums", "sums", to=filled(math.nan)),
    "measures of another type": changed("sums", "count", to=torch.Tensor.float),
    "a best score that is not a number": changed("progress", "best", to=math.nan),
    "a best epoch to come": changed("progress", "best_epoch", to=99),
    "time before the start": changed("progress", "seconds", to=-1.0),
    "an epoch left out": changed("log", 0, "epoch", to=1),
    "a loss in words": changed("log", 0, "loss", to="low"),
    "a loss that is not a number": changed("log", 0, "loss", to=math.nan),
    "a score in words": changed("log", 0, "validation", to={"score": "high"}),
    "a finished stage in place of their list": changed("finished", to="supervision"),
    "no list of finished stages": changed("finished", to=None),
    "a list as the name of a measure": changed("sums", "names", 1, to=[]),
    "a tensor as the name of a measure": changed("sums", "names", 0, to=torch.zeros(3)),
    "no settings": changed("settings", to={}),
    "no data": changed("learned_from", to={}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_numbers_that_no_training_leaves_are_named_before_they_are_used(run, monkeypatch, kind):
    "PyTorch would end with a traceback, compute with what is not its own, or train on garbage."
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    VALUES[kind](stored)
    torch.save(stored, run/"checkpoint.pt")
    monkeypatch.setattr(Step, "update", lambda *_: pytest.fail("it went on"))
    with pytest.raises(RunError, match=r"checkpoint\.pt: does not fit this run: "):
        go_on(run)


@pytest.mark.parametrize(
    "content", [[], 5, "text", {"version": VERSION}, {"version": VERSION, "progress": 1}], ids=str)
def test_what_is_no_checkpoint_is_told_so(run, content):
    torch.save(content, run/"checkpoint.pt")
    with pytest.raises(RunError, match="checkpoint.pt: is not a checkpoint of a run"):
        go_on(run)


def test_a_packed_checkpoint_is_not_unpacked(run):
    zip_bomb(
        run/"checkpoint.pt",
        {"checkpoint/data.pkl": (b"", 10), "checkpoint/data/0": (b"", 600 << 20)},
    )
    assert (run/"checkpoint.pt").stat().st_size < 1 << 20
    with pytest.raises(RunError, match="checkpoint.pt: "):
        read_checkpoint(run)


def test_a_pipe_is_not_waited_for(run):
    (run/"checkpoint.pt").unlink()
    os.mkfifo(run/"checkpoint.pt")
    with pytest.raises(RunError, match="checkpoint.pt: is not a file"):
        go_on(run)


def test_a_checkpoint_is_spoken_of_only_where_there_is_one(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(
            RunError,
            match="cannot be written .No space left on device.; there is no checkpoint yet",
        ),
    ):
        patch.setattr(
            runs,
            "write_whole",
            lambda path, content: (
                full()
                if path.name in ("log.jsonl", "supervision.safetensors")
                else Path(path).write_text(content)
            ),
        )
        train(tmp_path/"run", noise_corpus(), CONFIG, ROW, bars=False)
    cut(tmp_path/"other", noise_corpus())
    monkeypatch.setattr(runs, "write_whole", full)
    with pytest.raises(
        RunError, match="the checkpoint before this one is whole: supervision, epoch"
    ):
        go_on(tmp_path/"other")


# links
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "videos", "prepare"])
def test_no_command_takes_a_lock_through_a_link(tmp_path, command, monkeypatch):
    """`.lock` and `.locked_by` that lead to a file of somebody else: the command is refused or
    does its work, and the file stays as it is."""
    monkeypatch.setitem(world.SCALES, "smoke", (2, 1, 1))
    (victim := tmp_path/"victim.txt").write_text("mine")
    out, videos = tmp_path/"out", tmp_path/"videos"
    for folder in (out, out/"parts") if command == "videos" else (out,):
        folder.mkdir()
        for name in (".lock", ".locked_by"):
            (folder / name).symlink_to(victim)
    videos.mkdir()
    for name in "abcd":
        shutil.copy(Path(__file__).parents[1]/"data"/"example.mp4", videos/f"{name}.mp4")
    (tmp_path/"captions.json").write_text(json.dumps(dict.fromkeys("abcd", ["a ball"])))
    words = {
        "train": (
            "train",
            out,
            "--data",
            noise_corpus(8).save(tmp_path/"corpus"),
            "--scale",
            "smoke",
            "--experiment",
            "Baseline",
        ),
        "videos": (
            *("prepare", "videos", "--captions", tmp_path/"captions.json", "--videos", videos),
            *("--out", out, "--backbone", "tiny", "--workers", 1),
        ),
        "prepare": ("prepare", "shapes", "--scale", "smoke", "--out", out),
    }
    code, said = picknet(*words[command])
    assert code == 1 and str(out) in said and victim.read_text() == "mine", said


def test_files_of_a_run_are_not_written_through_links(tmp_path):
    (victim := tmp_path/"victim.txt").write_text("mine")
    names = (
        "config.json",
        "vocabulary.json",
        "log.jsonl",
        "supervision.safetensors",
        "weights.safetensors",
        ".abcdefgh.partial",
    )
    (tmp_path/"run").mkdir()
    for name in names:
        (tmp_path/"run" / name).symlink_to(victim)
    train(tmp_path/"run", noise_corpus(), QUICK, recipes()["Baseline"], bars=False)
    assert victim.read_text() == "mine" and not any(
        (tmp_path/"run" / name).is_symlink() for name in names
    )


# manners
# --------------------------------------------------------------------------------------------------


def test_a_terminal_is_shown_and_not_told():
    assert (
        preparing.printable("\x1b[2J a\nb\r\x07\x9b \u202egpj")
        == "\\x1b[2J a\\nb\\r\\x07\\x9b \\u202egpj"
    )
    assert (
        preparing.printable("Käse 映画 👩‍🚀 é") == "Käse 映画 👩‍🚀 é"
        and preparing.printable("half\udc80") == "half\\udc80"
    )


def test_escapes_in_names_do_not_reach_the_terminal(tmp_path, capsys, monkeypatch):
    bad = tmp_path/"\x1b]0;owned\x07\nleft out: nothing.mp4"
    bad.write_bytes(b"no film")
    for words in (
        ("score", bad, "--references", bad),
        ("train", tmp_path/"\x1b[2J\n", "--resume"),
        ("evaluate", "--model", tmp_path/"\x1b[2J"),
    ):
        monkeypatch.setattr(sys, "argv", ["picknet", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        text = said.out + said.err + (end.value.code if isinstance(end.value.code, str) else "")
        assert (
            "\x1b" not in text
            and "\x07" not in text
            and "\\x1b" in text
            and not any(line.startswith("left out: nothing") for line in text.splitlines())
        )


def test_words_of_a_vocabulary_do_not_reach_the_terminal_raw(capsys):
    from picknet_nb.use.sources import Failure

    say({}, False, "a \x1b[31mred\x1b[0m ball\nnext")
    watching.print_caption(Failure("a\x1b.mp4", "is\nno video"), False, True, Path("run"))
    said = capsys.readouterr()
    assert (
        said.out == "a \\x1b[31mred\\x1b[0m ball\nnext\n"
        and said.err == "left out: a\\x1b.mp4: is\\nno video\n"
    )


def test_names_in_json_do_not_reach_the_terminal_raw(capsys):
    name = "a\x1b\x7f\x85\x9b31m\u200b\u2028\u202egpj Käse 映画\udc80"
    say({"source": name}, True, "")
    said = capsys.readouterr().out
    assert said.rstrip("\n").isprintable() and "Käse 映画" in said
    assert json.loads(said) == {"source": name}


def test_what_is_no_number_is_no_json():
    with pytest.raises(PickNetError, match="cannot be written as JSON"):
        say({"score": math.nan}, True, "")


def test_exit_codes_of_files_that_are_left_out(tmp_path):
    pytest.importorskip("av")
    videos = tmp_path/"videos"
    videos.mkdir()
    (videos/"a.mp4").write_bytes(b"no film")
    caption = ("caption", videos, "--model", "shapes")
    assert picknet(*caption)[0] == 1
    shutil.copy(Path(__file__).parents[1]/"data"/"example.mp4", videos/"b.mp4")
    assert picknet(*caption)[0] == SOME_LEFT_OUT
    for command in (
        ["caption"],
        ["prepare", "videos"],
        ["prepare", "msvd"],
        ["prepare", "msrvtt"],
        ["prepare", "features"],
    ):
        assert (
            "Exit status: 0 success, 1 error or no file could be used, 3 some files were left out"
            in " ".join(picknet(*command, "--help")[1].split())
        )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", long_but(("--version", "info --settings"), "--version"))
def test_a_full_device_is_a_sentence(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "picknet_nb.interface.main", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "picknet: standard output cannot be written: No space left on device\n",
    )


def test_every_limit_is_written_down():
    "In SECURITY.md, by its name; and nothing there that is no limit."
    from picknet_nb.core import files  # noqa: F401 (each adds its own)
    from picknet_nb.data import video_files  # noqa: F401 (each adds its own)
    from picknet_nb.use import drawing, many  # noqa: F401 (each adds its own)
    said = set(re.findall(r"^\|.*?\|", (Path(__file__).parents[1]/"SECURITY.md").read_text(), re.M))
    assert set(re.findall("PICKNET_[A-Z_]+", "".join(said))) == set(files.LIMITS)
