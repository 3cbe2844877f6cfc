"Runs that are killed, cut, crowded and starved: what was there before must still be there after."
import json
import os
import random
import resource
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import Forked, Ranks, noise_corpus
from reliability import tally, wait_for
from safetensors.torch import load_file

from picknet_nb.core.files import locked
from picknet_nb.core.processes import (
    agreed, average_gradients, joined, rank_and_world, share_weights)
from picknet_nb.core.settings import ConfigError, preset
from picknet_nb.method.recipes import recipes
from picknet_nb.method.rewards import reward_for
from picknet_nb.method.stages import Adaptation, Model, Supervision, Validation
from picknet_nb.training import checkpoints, loop, runs
from picknet_nb.training.batches import TrainingError
from picknet_nb.training.checkpoints import Trainer, read_checkpoint, restore
from picknet_nb.training.loop import Step, epoch_batches
from picknet_nb.training.runs import RunError, load_run
from picknet_nb.training.train import start_policy, train

CONFIG = preset(
    "smoke",
    hidden=16,
    word_embedding=16,
    feature_embedding=16,
    policy_hidden=16,
    supervision_epochs=3,
    word_epochs=1,
    reinforcement_epochs=3,
    adaptation_epochs=2,
    average_weights=0.5,
    consensus=1.0,
    clock=True,
    mention_weight=0.5,
)
ROW = recipes()["PickNet (V+L)"]
VIDEOS = 24  # of which 14 are trained on: four steps an epoch


def learn(folder: Path) -> None:
    torch.set_num_threads(1)
    train(folder, noise_corpus(VIDEOS), CONFIG, ROW, bars=False, save_seconds=0.05)


def start_child(folder: Path) -> Forked:
    "A training run in a process of its own."
    return Forked(learn, folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    "The same run, left alone."
    folder, started = tmp_path_factory.mktemp("run")/"undisturbed", time.monotonic()
    child = start_child(folder)
    assert child.wait(300) == 0, child.output()
    (folder/"seconds.txt").write_text(f"{time.monotonic() - started}")
    return folder


def lines(folder: Path) -> list[str]:
    "The log without how long its epochs took."
    return [
        line.rsplit('"seconds"', 1)[0] for line in (folder/"log.jsonl").read_text().splitlines()
    ]


def stage_of(folder: Path) -> str:
    "The stage that the checkpoint of a run stands in, and whether something was being written."
    stored = read_checkpoint(folder)
    return (stored["progress"]["stage"] if stored else "start") + ", writing" * bool(
        list(folder.glob(".*.partial"))
    )


def killed_until_done(
    start, folder: Path, whole: float, most: int, draw: random.Random, kill
) -> list[str]:
    """Kill a run at random moments, at most so often, and start it again until it is finished;
    what comes back says where it was struck."""
    struck = []
    for _ in range(400):
        child = start(folder)
        if len(struck) < most:
            before = set(folder.glob("*"))
            wait_for(  # until it has begun to work
                lambda: child.poll() is not None
                or (folder/"checkpoint.pt").exists()
                or set(folder.glob("*")) - before
            )
            # early and late: every stage is struck
            time.sleep(draw.uniform(0.0, draw.choice((0.25, 1.0)) * whole))
            if child.poll() is None:
                child.send_signal(kill)
                child.wait(60)
                struck.append(stage_of(folder))
        code = child.wait(300)
        assert code in (0, -kill), child.output()
        if code == 0 and (folder/"weights.safetensors").exists():
            return struck
    raise AssertionError("never finished")


def same_bits(folder: Path, undisturbed: Path) -> None:
    "A run has ended as the one that was left alone."
    expected = load_file(undisturbed/"weights.safetensors")
    found = load_file(folder/"weights.safetensors")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert lines(folder) == lines(undisturbed)
    assert not list(folder.glob(".*.partial"))


def killed_as_often(
    start, undisturbed: Path, tmp_path: Path, moments: int, kill=signal.SIGKILL
) -> None:
    "So many kills, in one run after the other; where they are few, one run is enough."
    draw = random.Random(int(kill))
    struck = []
    whole = float((undisturbed/"seconds.txt").read_text())
    for number in range(moments):
        since, before = time.monotonic(), len(struck)
        struck += killed_until_done(
            start, tmp_path/f"killed{number}", whole, moments - len(struck), draw, kill
        )
        # it ended before its kill: the machine was busier when the other run was left alone
        if len(struck) == before: whole = min(whole, time.monotonic() - since)
        same_bits(tmp_path/f"killed{number}", undisturbed)
        if len(struck) >= moments or struck and moments < 10:
            break
    tally("kills", f"{1 + (start is start_pair)}, {kill.name}", Counter(struck))
    tally("runs", f"{1 + (start is start_pair)}", Counter(same_bits=number + 1))
    assert struck


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_killed_at_random_moments_ends_with_the_same_bits(undisturbed, tmp_path, kill):
    killed_as_often(
        start_child, undisturbed, tmp_path, int(os.environ.get("PICKNET_KILLS", "4")), kill
    )


# dies_at: the write in which the first process dies; 0: in none
def learn_together(folder: Path, dies_at: int = 0) -> None:
    torch.set_num_threads(1)
    plain, left = os.fsync, [dies_at]

    def fsync(handle):
        left[0] -= 1
        # in the middle of a write
        if not left[0] and os.environ.get("RANK", "0") == "0": os.kill(os.getpid(), signal.SIGKILL)
        plain(handle)
    os.fsync = fsync
    with joined("gloo"): train(folder, noise_corpus(VIDEOS), CONFIG, ROW, bars=False)


def start_pair(folder: Path, dies_at: int = 0) -> Ranks:
    "The same run on two processes, which are killed together."
    return Ranks(learn_together, folder, dies_at)


@pytest.fixture(scope="module")
def undisturbed_pair(tmp_path_factory) -> Path:
    "The same run on two processes, left alone."
    folder, started = tmp_path_factory.mktemp("pair")/"undisturbed", time.monotonic()
    child = start_pair(folder)
    assert child.wait() == 0, child.output()
    (folder/"seconds.txt").write_text(f"{time.monotonic() - started}")
    return folder


def test_two_processes_killed_together_end_with_the_same_bits(undisturbed_pair, tmp_path):
    killed_as_often(
        start_pair, undisturbed_pair, tmp_path, int(os.environ.get("PICKNET_KILLS", "2"))
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_dies_in_the_middle_of_a_write_ends_with_the_same_bits(
    request, tmp_path, processes
):
    "Alone, or as one of two."
    undisturbed = request.getfixturevalue("undisturbed_pair" if processes == 2 else "undisturbed")
    moments = int(os.environ.get("PICKNET_KILLS", "2"))
    draw = random.Random(0)
    struck = []
    number = 0
    while len(struck) < moments or not (tmp_path/f"{number}"/"weights.safetensors").exists():
        if (tmp_path/f"{number}"/"weights.safetensors").exists():
            number += 1
        folder = tmp_path/f"{number}"
        dies_at = draw.randint(2, 14) if len(struck) < moments else 0
        child = (
            start_pair(folder, dies_at)
            if processes == 2
            else Forked(learn_together, folder, dies_at)
        )
        if code := child.wait():
            assert code == -signal.SIGKILL, child.output()
            struck.append(stage_of(folder))
        else:
            same_bits(folder, undisturbed)
    tally("kills", f"{processes}, SIGKILL", Counter(struck))
    tally("runs", f"{processes}", Counter(same_bits=number + 1))
    assert all(each.endswith(", writing") for each in struck)


class Killed(BaseException):
    "Nothing in the package catches this, as nothing catches a kill."


def test_killed_after_every_kind_of_write_ends_with_the_same_bits(tmp_path, monkeypatch):
    corpus = noise_corpus(videos=10)
    config = CONFIG.changed(supervision_epochs=2, reinforcement_epochs=1, adaptation_epochs=1)
    train(tmp_path/"alone", corpus, config, ROW, bars=False)
    alone = load_file(tmp_path/"alone"/"weights.safetensors")
    plain = runs.write_whole
    left = [0]
    last = set()

    def write_and_die(path, content):
        plain(path, content)
        left[0] -= 1
        if not left[0]:
            last.add(Path(path).name)
            raise Killed

    for module in (runs, checkpoints):
        monkeypatch.setattr(module, "write_whole", write_and_die)
    for writes in (3, 4, 5):  # of one life; it saves after every step, and a save is three at most
        folder = tmp_path/f"{writes}"
        while not (folder/"weights.safetensors").exists():
            left[0] = writes
            try:
                train(folder, corpus, config, ROW, bars=False, save_seconds=0.0)
            except Killed:
                pass
        killed = load_file(folder/"weights.safetensors")
        assert all(torch.equal(alone[name], killed[name]) for name in alone)
        assert lines(folder) == lines(tmp_path/"alone")
    assert {
        "checkpoint.pt",
        "log.jsonl",
        "supervision.safetensors",
        "adaptation.safetensors",
        "weights.safetensors",
    } <= last, last


def test_what_a_kill_left_half_written_goes(corpus, tmp_path):
    (tmp_path/"run").mkdir()
    (tmp_path/"run"/".abcdefgh.partial").write_bytes(b"half a checkpoint")
    (tmp_path/"run"/".abcdefgh.12345678.partial").mkdir()  # of an export into the run's own folder
    (tmp_path/"run"/".abcdefgh.12345678.partial"/"weights.safetensors").write_bytes(b"half")
    train(
        tmp_path/"run",
        corpus,
        preset("smoke", supervision_epochs=1),
        recipes()["Baseline"],
        bars=False,
    )
    assert not list((tmp_path/"run").glob(".*.partial"))


def test_a_finished_run_has_everything_it_needs(undisturbed):
    model, config, vocabulary, details = load_run(undisturbed)
    assert (
        config.training.average_weights == 0.5
        and len(vocabulary) > 4
        and details["corpus"] == "noise"
    )


def test_the_last_weights_are_kept_where_that_is_asked_for(corpus, tmp_path):
    for keep in ("best", "last"):
        train(
            tmp_path / keep,
            corpus,
            preset("smoke", supervision_epochs=4, keep=keep),
            recipes()["Baseline"],
            bars=False,
        )
    best, last = (load_file(tmp_path / keep/"weights.safetensors") for keep in ("best", "last"))
    scores = [
        json.loads(line)["validation"]["score"]
        for line in (tmp_path/"best"/"log.jsonl").read_text().splitlines()
    ]
    same = all(torch.equal(best[name], last[name]) for name in best)
    assert same == (scores.index(max(scores)) == len(scores) - 1)


def test_a_captioner_trained_without_a_clock_serves_a_policy_with_one(corpus, tmp_path):
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=0, adaptation_epochs=0)
    train(tmp_path/"first", corpus, config, recipes()["Baseline"], bars=False)
    train(
        tmp_path/"second",
        corpus,
        config.changed(clock=True),
        ROW,
        start=tmp_path/"first"/"weights.safetensors",
        bars=False,
    )
    first, second = (
        load_file(tmp_path / name/"weights.safetensors") for name in ("first", "second")
    )
    assert "policy.clock" in second and "policy.clock" not in first
    train(tmp_path/"alone", corpus, config.changed(clock=True), recipes()["Baseline"], bars=False)
    alone = load_file(tmp_path/"alone"/"weights.safetensors")
    same = [
        torch.equal(first[name], other[name])
        for other in (second, alone)
        for name in first
        if name.startswith("captioner.")
    ]
    assert same and all(same)  # the rows of stage one are the same with and without


@pytest.fixture
def trainer(corpus, tmp_path) -> Trainer:
    "A run that has not begun."
    torch.manual_seed(0)
    return Trainer(tmp_path/"run", Model.for_corpus(CONFIG, corpus), corpus, CONFIG, bars=False)


@pytest.mark.parametrize("stage", ["supervision", "words", "reinforcement", "adaptation"])
def test_every_epoch_has_batches_of_its_own(trainer, stage):
    trainer.progress.stage = stage
    first, second, again = (epoch_batches(trainer, epoch)[0] for epoch in (0, 1, 0))
    assert first.shape == second.shape and not torch.equal(first, second)
    assert torch.equal(first, again)


@pytest.mark.parametrize("stage", ["supervision", "words", "reinforcement", "adaptation"])
def test_processes_share_the_clips_of_an_epoch(trainer, stage):
    trainer.progress.stage, seen = stage, []
    for trainer.share in ((0, 1), (0, 2), (1, 2)):
        seen.append(epoch_batches(trainer, 0)[0].flatten().tolist())
    whole, one, other = seen
    assert not set(one) & set(other) and sorted(one + other) == sorted(whole)


def test_the_policy_starts_in_the_middle_of_its_first_limits(trainer):
    trainer.config = CONFIG.changed(min_picks=4, first_max_picks=20, final_max_picks=6)
    start_policy(trainer)
    glances = trainer.corpus.glances[trainer.corpus.splits["train"]]
    assert abs(trainer.model.policy.rollout(glances).sum(1).float().mean() - 12) < 1


def test_weight_decay_leaves_the_policy_alone(corpus, tmp_path):
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0)
    train(tmp_path/"first", corpus, config, recipes()["Baseline"], bars=False)
    for decay in (0.0, 0.1):
        train(
            tmp_path/f"{decay}",
            corpus,
            config.changed(weight_decay=decay),
            ROW,
            start=tmp_path/"first"/"weights.safetensors",
            bars=False,
        )
    without, with_decay = (
        load_file(tmp_path/f"{decay}"/"weights.safetensors") for decay in (0.0, 0.1)
    )
    assert all(torch.equal(without[name], with_decay[name]) for name in without)
    train(
        tmp_path/"decayed",
        corpus,
        config.changed(weight_decay=0.1),
        recipes()["Baseline"],
        bars=False,
    )
    assert not torch.equal(
        load_file(tmp_path/"decayed"/"weights.safetensors")["captioner.decoder.output.weight"],
        without["captioner.decoder.output.weight"],
    )


def test_the_captioner_reads_no_more_frames_of_a_sample_than_the_first_limit(corpus):
    config = preset("smoke", first_max_picks=5, final_max_picks=4)
    torch.manual_seed(0)
    model = Model.for_corpus(config, corpus).eval()
    stage = Adaptation(model, corpus, config, reward_for(config.policy, corpus))
    picks = torch.ones(1, corpus.features.shape[1], dtype=torch.bool)
    captions, losses = corpus.pairs("train")[:5], []
    for most in (picks.shape[1], 5):
        stage.sampled = picks & (torch.arange(picks.shape[1]) < most)
        losses.append(stage.supervision(captions)[0])
    assert torch.equal(*losses)


def test_clips_with_too_few_captions_are_told_so_before_anything_is_written(tmp_path):
    config = preset("smoke", supervision_epochs=1, word_epochs=1)
    run = lambda videos, **changes: train(
        tmp_path/"run", videos, config.changed(**changes), recipes()["Baseline"], bars=False
    )
    with pytest.raises(
        TrainingError,
        match="no training clip has 5 captions that could go together; set captions_together=2$",
    ):
        run(noise_corpus(captions=2))
    with pytest.raises(TrainingError, match="set captions_together=1 and word_epochs=0$"):
        run(noise_corpus(captions=1))
    assert not (tmp_path/"run").exists()
    run(noise_corpus(captions=2), captions_together=2)  # the advice is not refused as another run


def test_clips_that_are_left_out_are_counted(corpus, tmp_path):
    first = corpus.splits["train"][0].item()
    corpus.caption_video[(corpus.caption_video == first).nonzero()[0]] = first + 1
    with pytest.warns(
        UserWarning,
        match="1 of 24 training clips have fewer than 5 captions and are left out; "
              "captions_together=1 would keep them",
    ):
        train(
            tmp_path/"run",
            corpus,
            preset("smoke", supervision_epochs=1),
            recipes()["Baseline"],
            bars=False,
        )


def test_one_clip_to_validate_with_says_nothing_and_the_last_epoch_is_kept(corpus, tmp_path):
    corpus.splits["validation"] = corpus.splits["validation"][:1]
    for keep in ("best", "last"):
        with pytest.warns(
            UserWarning, match="the validation split has fewer than two clips: CIDEr.* is always 0"
        ):
            train(
                tmp_path / keep,
                corpus,
                preset("smoke", supervision_epochs=3, keep=keep),
                recipes()["Baseline"],
                bars=False,
            )
    best, last = (load_file(tmp_path / keep/"weights.safetensors") for keep in ("best", "last"))
    assert len(lines(tmp_path/"best")) == 3 and all(
        torch.equal(best[name], last[name]) for name in best
    )


@pytest.fixture
def usual_interrupt():
    "Ctrl-C as Python has it in the foreground."
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["step", "validation"])
def test_an_interrupt_waits_for_the_step_and_costs_nothing(
    corpus, tmp_path, monkeypatch, usual_interrupt, where
):
    owner, name = (Step, "update") if where == "step" else (Validation, "__call__")
    config = preset("smoke", supervision_epochs=3)
    plain = getattr(owner, name)
    calls = iter(range(4 if where == "step" else 1))
    train(tmp_path/"whole", corpus, config, recipes()["Baseline"], bars=False)

    def pressed(self, argument):
        if next(calls, None) is None:
            signal.raise_signal(signal.SIGINT)
        return plain(self, argument)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, pressed)
        train(tmp_path/"cut", corpus, config, recipes()["Baseline"], bars=False, save_seconds=1e9)
    assert signal.getsignal(signal.SIGINT) is usual_interrupt
    progress = read_checkpoint(tmp_path/"cut")["progress"]
    assert (progress["epoch"], progress["step"]) == ((0, 5) if where == "step" else (2, 0))
    train(tmp_path/"cut", corpus, config, recipes()["Baseline"], bars=False)
    whole, cut = (load_file(tmp_path / name/"weights.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole) and lines(
        tmp_path/"whole"
    ) == lines(tmp_path/"cut")


def test_rewarded_words_need_other_samples_of_the_clip():
    with pytest.raises(ConfigError, match="captions_together"):
        preset("paper", word_epochs=1)


def test_another_config_and_another_vocabulary_are_refused(undisturbed, corpus):
    before = {path: path.read_bytes() for path in undisturbed.iterdir()}
    with pytest.raises(RunError, match="hidden 16 .now 48"):
        train(undisturbed, corpus, CONFIG.changed(hidden=48), ROW, bars=False)
    with pytest.raises(RunError, match="vocabulary"):
        train(undisturbed, noise_corpus(videos=6), CONFIG, ROW, bars=False)
    assert {
        path: path.read_bytes()
        for path in undisturbed.iterdir()
        if path.name not in (".lock", ".locked_by")
    } == {
        path: content
        for path, content in before.items()
        if path.name not in (".lock", ".locked_by")
    }


def test_a_checkpoint_cut_in_half_is_named_and_kept(undisturbed, tmp_path):
    import shutil
    folder = shutil.copytree(undisturbed, tmp_path/"run")
    whole = (folder/"checkpoint.pt").read_bytes()
    (folder/"checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="checkpoint.pt: cannot be read"):
        train(folder, noise_corpus(VIDEOS), CONFIG, ROW, bars=False)
    assert (folder/"checkpoint.pt").stat().st_size == len(whole) // 2


def test_a_full_disk_is_an_error_and_costs_nothing(corpus, tmp_path):
    folder, config = tmp_path/"run", CONFIG.changed(average_weights=0.0)
    plain, calls = Step.update, iter(range(10))

    def fill_disk_after_a_while(self, indices):
        if next(calls, None) is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        plain(self, indices)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    Step.update = fill_disk_after_a_while
    try:
        with pytest.raises((RunError, OSError), match="large|space|written"):
            train(folder, corpus, config, ROW, bars=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
        Step.update = plain
    assert not [
        path
        for path in folder.iterdir()
        if path.name.startswith(".") and path.name not in (".lock", ".locked_by")
    ]
    train(folder, corpus, config, ROW, bars=False)  # goes on from the last whole checkpoint
    assert (folder/"weights.safetensors").exists()


def test_a_finished_run_keeps_its_weights_and_no_optimiser(corpus, tmp_path):
    folder = tmp_path/"run"
    before = train(folder, corpus, CONFIG, ROW, bars=False).state_dict()
    stored = read_checkpoint(folder)
    assert (
        not stored["model"]
        and not stored["optimiser"]
        and not stored["average"]
        and stored["finished"][-1] == stored["progress"]["stage"]
    )
    assert (folder/"checkpoint.pt").stat().st_size < (
        folder/"weights.safetensors"
    ).stat().st_size
    after = train(folder, corpus, CONFIG, ROW, bars=False).state_dict()  # which only opens it
    assert (
        all(torch.equal(before[name], after[name]) for name in before)
        and read_checkpoint(folder)["log"] == stored["log"]
    )


def test_a_loss_that_is_no_number_names_step_tensor_and_checkpoint(corpus, tmp_path):
    corpus.features[corpus.splits["train"][0]] = float("nan")
    with pytest.raises(Exception) as caught:
        train(tmp_path/"run", corpus, CONFIG, recipes()["Baseline"], bars=False)
    assert "features" in str(caught.value)


def test_exploding_weights_stop_the_run(corpus, tmp_path, monkeypatch):
    plain, calls = Step.update, iter(range(3))

    def spoil(self, indices):
        if next(calls, None) is None:
            with torch.no_grad():
                self.parts[0][0].fill_(float("inf"))
        plain(self, indices)

    monkeypatch.setattr(Step, "update", spoil)
    with pytest.raises(
        TrainingError,
        match=r"supervision, epoch 0, step 3: .* captioner\..* last good checkpoint in .*: none "
              r"yet",
    ):
        train(tmp_path/"run", corpus, CONFIG, recipes()["Baseline"], bars=False)


def test_a_gradient_that_is_no_number_stops_the_run_though_the_loss_is_one(
    corpus, tmp_path, monkeypatch
):
    plain, calls = torch.nn.utils.clip_grad_norm_, iter(range(3))

    def spoil(weights, limit):
        weights = list(weights)
        if next(calls, None) is None:
            weights[0].grad.fill_(float("nan"))
        return plain(weights, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    with pytest.raises(
        TrainingError,
        match=r"supervision, epoch 0, step 3: .* or it or its gradient is not a number",
    ):
        train(
            tmp_path/"run", corpus, CONFIG.changed(keep="last"), recipes()["Baseline"], bars=False
        )
    assert not (tmp_path/"run"/"weights.safetensors").exists()


def test_the_time_before_a_kill_counts_and_the_checkpoint_is_named(corpus, tmp_path, monkeypatch):
    config, plain, calls = preset("smoke", supervision_epochs=2), Step.update, iter(range(3))

    def slow(self, indices):
        if next(calls, None) is None:
            raise Killed
        time.sleep(0.2)
        plain(self, indices)

    monkeypatch.setattr(Step, "update", slow)
    with pytest.raises(Killed):
        train(tmp_path/"run", corpus, config, recipes()["Baseline"], bars=False, save_seconds=0.0)
    monkeypatch.setattr(Step, "update", plain)
    train(tmp_path/"run", corpus, config, recipes()["Baseline"], bars=False)
    first, second = (
        json.loads(line)["seconds"]
        for line in (tmp_path/"run"/"log.jsonl").read_text().splitlines()
    )
    assert first >= 0.6
    trainer = Trainer(
        tmp_path/"run", Model.for_corpus(config, corpus), corpus, config, bars=False
    )
    step = Step(
        Supervision(trainer.model, corpus, config, lambda clips: None),
        [trainer.model.captioner],
        1e-3,
        config,
    )
    restore(trainer, "supervision", step)
    assert trainer.kept == "supervision, epoch 2, step 0"


def test_run_files_that_say_nothing_are_named(undisturbed, tmp_path):
    import shutil
    folder = shutil.copytree(undisturbed, tmp_path/"run")
    stored = torch.load(folder/"checkpoint.pt", weights_only=True)
    torch.save(stored | {"progress": []}, folder/"checkpoint.pt")
    with pytest.raises(RunError, match="checkpoint.pt: does not fit this run: "):
        train(folder, noise_corpus(VIDEOS), CONFIG, ROW, bars=False)
    (folder/"run.json").write_text("[]")
    with pytest.raises(RunError, match="run.json: does not describe a run"):
        train(folder, noise_corpus(VIDEOS), CONFIG, ROW, bars=False)


def test_two_runs_cannot_share_a_folder(corpus, tmp_path):
    with locked(tmp_path):
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
            train(tmp_path, corpus, CONFIG, ROW, bars=False)


def tell_losses(folder: Path) -> None:
    "Train, in double precision, and write down the loss of each step, the mean over all processes."
    torch.set_num_threads(1)
    # single precision would hide what is not equal behind rounding
    torch.set_default_dtype(torch.float64)
    losses, plain = [], loop.Sums.add

    def add(self, loss, gradient, measures):
        mean = loss.clone()
        if rank_and_world()[1] > 1:
            torch.distributed.all_reduce(mean)
            mean /= rank_and_world()[1]
        losses.append(mean.item())
        plain(self, loss, gradient, measures)

    loop.Sums.add = add
    with joined("gloo"):
        train(
            folder,
            noise_corpus(),
            preset("smoke", supervision_epochs=4, dropout=0.0, feedback_step=0.0),
            recipes()["Baseline"],
            bars=False,
        )
    if rank_and_world()[0] == 0:
        (folder/"losses.json").write_text(json.dumps(losses))


def test_two_processes_reach_the_losses_of_one(tmp_path):
    for processes in (
        Forked(tell_losses, tmp_path/"alone"),
        Ranks(tell_losses, tmp_path/"both"),
    ):
        assert processes.wait() == 0, processes.output()
    alone, both = (
        json.loads((tmp_path / name/"losses.json").read_text()) for name in ("alone", "both")
    )
    assert len(alone) >= 20
    torch.testing.assert_close(
        torch.tensor(both[:20], dtype=torch.float64),
        torch.tensor(alone[:20], dtype=torch.float64),
        rtol=0,
        atol=1e-10,
    )


def disagree(folder: Path) -> None:
    torch.set_num_threads(1)
    plain, calls = Validation.__call__, iter(range(100))
    keep, best = loop.KeepBest.after_epoch, []

    def apart(self, model):  # what one process finds worse every time, the other finds better
        return plain(self, model) | {
            "score": float(next(calls) * (1 if rank_and_world()[0] else -1))
        }

    def note(self, loop, line):
        keep(self, loop, line)
        best.append(loop.progress.best_epoch)

    Validation.__call__, loop.KeepBest.after_epoch = apart, note
    signal.alarm(100)  # processes that wait for each other end, too
    with joined("gloo"):
        train(
            folder,
            noise_corpus(),
            preset("smoke", supervision_epochs=1, adaptation_epochs=3),
            recipes()["Random, adapted"],
            bars=False,
        )
    (folder/f"best-{rank_and_world()[0]}.json").write_text(json.dumps(best))


def test_processes_that_find_different_scores_keep_the_same_epoch(tmp_path):
    both = Ranks(disagree, tmp_path/"run")
    assert both.wait() == 0, both.output()
    found = [json.loads((tmp_path/"run"/f"best-{rank}.json").read_text()) for rank in (0, 1)]
    # the first process decides: the first epoch of each stage was the best
    assert found == [[0, 0, 0, 0]] * 2


def meet(folder: Path) -> None:
    "What two processes have in common after each has begun with something else."
    with joined("gloo") as device:
        rank = rank_and_world()[0]
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, rank)
        share_weights(model)
        model.weight.grad = torch.full((1, 1), float(rank))
        average_gradients([*model.parameters(), torch.nn.Parameter(torch.ones(1))])
        found = [model.weight.item(), model.weight.grad.item(), agreed({"score": rank})]
        (folder/f"{rank}.txt").write_text(f"{found} {device.type}")


def test_two_processes_share_weights_gradients_and_scores(tmp_path):
    assert (both := Ranks(meet, tmp_path)).wait() == 0, both.output()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    assert {path.read_text() for path in tmp_path.iterdir()} == {
        f"[0.0, 0.5, {{'score': 0}}] {kind}"
    }


def test_a_process_alone_shares_with_nobody():
    model = torch.nn.Linear(1, 1)
    model.weight.grad = torch.ones(1, 1)
    share_weights(model), average_gradients(list(model.parameters()))
    with joined() as device: assert device.type in ("cpu", "cuda")
    assert model.weight.grad.item() == 1 and agreed({"score": 3}) == {"score": 3}
