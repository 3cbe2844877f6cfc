"""Kills, Ctrl-C, full disks, closed folders, crowded folders: what was finished is still there,
and the rest can be taken up again."""
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import noise_corpus
from reliability import leftovers, tally, wait_for
from safetensors.torch import load_file
from test_fuzzing import run_folder  # noqa: F401 (a fixture)
from toys import invoked

from picknet_nb.core.files import FileError, PickNetError, WriteError, locked, write_whole
from picknet_nb.core.settings import preset
from picknet_nb.data import extraction
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import Corpus, CorpusError, assemble
from picknet_nb.data.own_features import prepare_features
from picknet_nb.data.extraction import extract_folder, part_path, read_part
from picknet_nb.data.video import read_clip
from picknet_nb.world import world
from picknet_nb.world.world import prepare_shapes
from picknet_nb.method.recipes import recipes
from picknet_nb.training import loop as training
from picknet_nb.training.train import train
from picknet_nb.use.loading import load_captioner
from picknet_nb.measure import metrics
from picknet_nb.measure.scoring import score_rows

EXAMPLE = Path(__file__).parents[1]/"data"/"example.mp4"
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
named = pytest.mark.parametrize("kill", SIGNALS, ids=[each.name for each in SIGNALS])
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="forks, mounts and signals as Linux has them"
)


def forked(job, *arguments):
    "A process of its own group that does the job, with everything imported already."
    def work():
        os.setpgrp()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(2)
        torch.set_num_threads(1)
        try:
            job(*arguments)
        except KeyboardInterrupt:
            os._exit(130)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def for_ever():
    "Where a process stops until it is struck: then nothing depends on how fast it was."
    threading.Event().wait()


def strike(process, kill) -> None:
    "End a process as its user or its machine would: Ctrl-C reaches the whole group."
    (os.killpg if kill == signal.SIGINT else os.kill)(process.pid, kill)
    process.join()
    assert process.exitcode in (-kill, 130), process.exitcode
    tally("faults", kill.name, "injected")


@contextmanager
def small_disk(folder: Path, kilobytes: int):
    """A folder on a disk of so many kilobytes, or, where nothing may be mounted, a limit on
    every file; `grow` ends it."""
    folder.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)],
            capture_output=True,
        ).returncode
        == 0
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))

    def grow():
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True)

    try:
        yield folder, grow
        tally("faults", "full disk", "injected")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path):
    "A folder in which nobody can write, not even root."
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        inside = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        modes = [path.stat().st_mode for path in inside]
        for path in inside: path.chmod(0o555)
        undo = lambda: [path.chmod(mode) for path, mode in zip(inside, modes)]
    else:
        mount = lambda *how: subprocess.run(["mount", *how], capture_output=True).returncode == 0
        if not mount("--bind", str(folder), str(folder)):
            pytest.skip("root writes everywhere, and nothing may be mounted")
        undo = lambda: subprocess.run(["umount", "--lazy", str(folder)], check=True)
        assert mount("-o", "remount,ro,bind", str(folder))
    try:
        yield folder
        tally("faults", "read-only folder", "injected")
    finally:
        undo()


# extraction
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def videos(tmp_path) -> dict[str, Path]:
    return {f"clip{number}": EXAMPLE for number in range(5)}


def extract(videos, out):
    return extract_folder(videos, out, load_backbone("tiny"), workers=1, progress=False)


def parts(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out/"parts").glob("*.safetensors")}


@named
def test_extraction_is_ended_and_taken_up_again(videos, tmp_path, monkeypatch, kill):
    "The lock opens and the parts stay, even where a decoder is still busy with its file."
    out, read = tmp_path/"out", []
    with monkeypatch.context() as patch:
        patch.setattr(
            extraction,
            "read_clip",
            lambda *rest: read.append(rest) or (for_ever() if len(read) > 3 else read_clip(*rest)),
        )
        process = forked(extract, videos, out)
        wait_for(lambda: (out/"parts").exists() and len(parts(out)) >= 2)
        strike(process, kill)
    before = parts(out)
    done = extract(videos, out)
    assert 2 <= len(before) < 5 and done.made == 5 - len(before) and len(done.ids) == 5
    assert all(parts(out)[name] == content for name, content in before.items())


def test_a_hanging_decoder_keeps_neither_the_lock_nor_itself(tmp_path, monkeypatch):
    hangs = tmp_path/"hangs"
    monkeypatch.setattr(extraction, "read_clip", lambda *rest: hangs.touch() or for_ever())
    process = forked(extract, {"clip": EXAMPLE}, tmp_path)
    wait_for(hangs.exists)
    decoder, = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    strike(process, signal.SIGKILL)
    with locked(tmp_path/"parts"):
        tally("faults", "hanging worker", "injected")
    wait_for(lambda: not Path(f"/proc/{decoder}").exists())


def test_a_second_extraction_is_told_who_is_there(videos, tmp_path, monkeypatch):
    go_on = tmp_path/"go on"
    monkeypatch.setattr(
        extraction, "read_clip", lambda *rest: wait_for(go_on.exists) and read_clip(*rest)
    )
    process = forked(extract, videos, tmp_path)
    wait_for((tmp_path/"parts"/"made_with.json").exists)
    with pytest.raises(FileError, match=f"parts: in use by process {process.pid}"):
        extract(videos, tmp_path)
    go_on.touch()
    process.join()
    assert process.exitcode == 0 and len(parts(tmp_path)) == 5
    tally("faults", "two runs on one folder", "injected")


def test_extraction_onto_a_full_disk(videos, tmp_path):
    "What fits is there and whole, the error names the file, and with room again the rest is made."
    with small_disk(tmp_path/"disk", 300) as (disk, grow):
        with pytest.raises(
            WriteError, match="disk.*cannot be written: (No space left|File too large)"
        ):
            extract(videos, disk/"out")
        before = parts(disk/"out") if (disk/"out"/"parts").exists() else {}
        assert not list(leftovers(disk))
        for name in before:
            assert read_part(disk/"out", name.removesuffix(".safetensors"))["features"].shape == (
                30,
                256,
            )
        grow()
        assert (
            extract(videos, disk/"out").made == 5 - len(before) and len(parts(disk/"out")) == 5
        )


def test_extraction_into_a_closed_folder(videos, tmp_path):
    with read_only(tmp_path/"closed") as closed:
        with pytest.raises(WriteError, match="closed.*cannot be written"):
            extract(videos, closed/"out")


def test_names_that_no_disk_can_take(tmp_path):
    "Ids with slashes, dots, NUL or a thousand letters stay ids; their parts stay in the folder."
    names = [
        "../../up",
        "/etc/cron.d/x",
        "a/b",
        "..",
        ".",
        "",
        "x" * 1000,
        "é" * 120,
        "nul\0byte",
        "plain",
    ]
    done = extract({name: EXAMPLE for name in names}, tmp_path/"in"/"out")
    assert done.ids == names and not done.failed
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - {
        tmp_path/"in"/"out"/"parts" / name
        for name in (".lock", ".locked_by", "made_with.json")
    } == {part_path(tmp_path/"in"/"out", name) for name in names}


# a corpus
# --------------------------------------------------------------------------------------------------


def build(out: Path, words: str = "a star jumps") -> Corpus:
    return assemble(
        out,
        "stars",
        {f"clip{number}": [words] for number in range(5)},
        {"train": [0, 1, 2], "validation": [3], "test": [4]},
    )


def test_assembly_onto_a_full_disk_keeps_the_corpus_that_was_there(videos, tmp_path):
    with small_disk(tmp_path/"disk", 1400) as (disk, grow):
        grow()
        extract(videos, disk)
        build(disk)
        subprocess.run(["mount", "-o", "remount,size=1240k", str(disk)], capture_output=True)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(WriteError, match="cannot be written"):
            build(disk, "another caption")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert Corpus.load(disk).captions[0] == ["a star jumps"] and not list(leftovers(disk))
        grow()
        assert build(disk, "another caption").captions[0] == ["another caption"]


def test_a_refused_file_of_features_keeps_the_corpus_that_was_there(tmp_path):
    import numpy as np

    (tmp_path/"captions.json").write_text(json.dumps({"a": ["one"], "b": ["two"]}))
    (tmp_path/"splits.json").write_text(
        json.dumps({"train": ["a"], "validation": ["b"], "test": []})
    )
    prepare = lambda name: prepare_features(
        tmp_path/"corpus",
        tmp_path / name,
        tmp_path/"captions.json",
        tmp_path/"splits.json",
        settings=preset("smoke", frames=3, glance="feature").clip,
    )
    np.savez(tmp_path/"good.npz", a=np.ones((3, 2)), b=np.ones((3, 2)))
    np.savez(tmp_path/"bad.npz", a=np.ones((3, 2)), b=np.full((3, 2), np.nan))
    prepare("good.npz")
    with pytest.raises(CorpusError, match="bad.npz: b has values that are not finite"):
        prepare("bad.npz")
    assert Corpus.load(tmp_path/"corpus").ids == ["a", "b"] and not list(
        leftovers(tmp_path/"corpus")
    )


def test_two_assemblies_on_one_folder(videos, tmp_path):
    extract(videos, tmp_path)
    with locked(tmp_path):
        with pytest.raises(CorpusError, match=f"in use by process {os.getpid()}"):
            build(tmp_path)
    assert build(tmp_path).ids
    tally("faults", "two runs on one folder", "injected")


def test_two_that_want_the_same_world_both_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(world.SCALES, "smoke", (4, 2, 2))
    first, second = (forked(prepare_shapes, tmp_path/"world", "smoke", 0, False) for _ in range(2))
    first.join(), second.join()
    assert first.exitcode == second.exitcode == 0
    with read_only(tmp_path/"world"):  # and once it is there, reading is enough
        assert len(prepare_shapes(tmp_path/"world", "smoke", progress=False).ids) == 8
    tally("faults", "two runs on one folder", "injected")


# training
# --------------------------------------------------------------------------------------------------

CONFIG = preset("smoke", supervision_epochs=5, hidden=32)


def learn(folder, config=CONFIG):
    torch.set_num_threads(1)
    return train(
        folder, noise_corpus(), config, recipes()["Baseline"], bars=False, save_seconds=0.1
    )


def test_training_interrupted_by_hand_ends_with_the_same_bits(tmp_path, monkeypatch):
    whole = forked(learn, tmp_path/"whole")
    whole.join()
    with monkeypatch.context() as patch:
        save = training.save_checkpoint
        patch.setattr(training, "save_checkpoint", lambda *rest: save(*rest) or for_ever())
        process = forked(learn, tmp_path/"torn")
        wait_for((tmp_path/"torn"/"checkpoint.pt").exists)
        strike(process, signal.SIGINT)
    assert not (tmp_path/"torn"/"weights.safetensors").exists() and not list(
        leftovers(tmp_path/"torn")
    )
    again = forked(learn, tmp_path/"torn")
    again.join()
    expected, found = (
        load_file(tmp_path / name/"weights.safetensors") for name in ("whole", "torn")
    )
    assert expected.keys() == found.keys() and all(
        torch.equal(expected[name], found[name]) for name in expected
    )


def test_training_onto_a_disk_that_is_full_from_the_start(tmp_path):
    with small_disk(tmp_path/"disk", 8) as (disk, grow):
        with pytest.raises((PickNetError, OSError), match="cannot be written|No space|too large"):
            learn(disk/"run", preset("smoke", supervision_epochs=1, hidden=8))
        assert not list(leftovers(disk))
        grow()
        learn(disk/"run", preset("smoke", supervision_epochs=1, hidden=8))
        assert (disk/"run"/"weights.safetensors").exists()


# scoring
# --------------------------------------------------------------------------------------------------


def rows(folder: Path, count: int = 4) -> list[dict]:
    "Rows as training leaves them: captions, no scores."
    made = [
        {"row": f"Row {number}", "seed": 0, "captions": {"greedy": {"a": "a dog"}}}
        for number in range(count)
    ]
    for row in made:
        write_whole(folder/"rows"/f"seed-0.row-{row['row'][-1]}.json", json.dumps(row))
    return made


def stored(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((folder/"rows").glob("*.json"))]


def scored(waiting, references, **facts):
    "Scores without a scorer."
    for number in waiting:
        yield (
            number,
            metrics.Scores({"CIDEr": number + 0.5}, "test", {"CIDEr": {"a": number + 0.5}}),
        )


def scored_once(*rest, **facts):
    "The scores of the first row, and no more."
    yield next(scored(*rest, **facts))
    for_ever()


@named
def test_scoring_is_ended_and_taken_up_again(tmp_path, monkeypatch, kill):
    "Scores of finished rows stay; only the others are scored afterwards."
    monkeypatch.setattr(metrics, "score_many", scored_once)
    process = forked(score_rows, tmp_path, rows(tmp_path), {"a": ["a dog"]}, False)
    done = lambda: [row for row in stored(tmp_path) if row.get("scores")]
    wait_for(done)
    strike(process, kill)
    before, asked = done(), []
    assert len(before) == 1
    monkeypatch.setattr(
        metrics,
        "score_many",
        lambda waiting, *rest, **facts: asked.extend(waiting) or scored(waiting, *rest, **facts),
    )
    score_rows(tmp_path, stored(tmp_path), {"a": ["a dog"]}, False)
    assert len(done()) == 4 and len(asked) == 3 and all(row in done() for row in before)


def test_scoring_onto_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "score_many", scored)
    made = rows(tmp_path/"elsewhere")
    with small_disk(tmp_path/"disk", 8) as (disk, grow):
        with pytest.raises(WriteError, match="rows.*cannot be written"):
            score_rows(
                disk, [{**row, "filler": "x" * 5000} for row in made], {"a": ["a dog"]}, False
            )
        assert not list(leftovers(disk))
        grow()
        score_rows(disk, made, {"a": ["a dog"]}, False)
        assert len(stored(disk)) == 4


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_java_ends_with_the_one_who_asked(kill):
    pytest.importorskip("pycocoevalcap")
    psutil = pytest.importorskip("psutil")
    many = {str(number): "a man plays a guitar" for number in range(2000)}
    process = forked(metrics.score, many, {name: [caption] for name, caption in many.items()})
    children = wait_for(
        lambda: [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "java" in child.name()
        ]
    )
    strike(process, kill)
    wait_for(
        lambda: (
            not any(
                child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children
            )
        ),
        children,  # whose parent is gone
        still=300.0,  # Java notices when it next reads, and a busy machine lets it wait for that
    )


# captioning
# --------------------------------------------------------------------------------------------------


def test_captioning_a_folder_interrupted_by_hand(run_folder, tmp_path):  # noqa: F811
    "What was said is said in whole lines, one sentence tells the rest, and nothing hangs."
    for number in range(400):
        (tmp_path/f"{number:03d}.mp4").symlink_to(EXAMPLE)
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "picknet_nb.interface.main",
            "caption",
            str(tmp_path),
            "--model",
            str(run_folder),
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # a shell's background jobs ignore it
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors
    said = [json.loads(line) for line in (first + rest).splitlines()]
    assert 0 < len(said) < 400 and all("caption" in line for line in said)
    tally("faults", "SIGINT", "injected")


def test_captioning_from_a_closed_folder(run_folder):  # noqa: F811
    with read_only(run_folder):
        assert load_captioner(run_folder, device="cpu").caption(EXAMPLE).n_best


@pytest.mark.parametrize("command", [
    ["train", "runs/mine", "--data", "shapes", "--preset", "smoke"],
    ["train", "{}/mine", "--data", "shapes", "--preset", "smoke"],
    ["reproduce", "--preset", "smoke"]], ids=["train", "train elsewhere", "reproduce"])
def test_what_needs_the_toy_world_in_a_closed_folder(tmp_path, monkeypatch, command):
    "Also with a home that cannot be written: what is named is what to do, and nothing is left."
    monkeypatch.setattr("picknet_nb.training.train.data_folder", lambda: Path("data"))
    (tmp_path/"open").mkdir()
    with read_only(tmp_path/"closed") as closed:
        monkeypatch.chdir(closed)
        monkeypatch.setenv("HOME", str(closed))
        done = invoked(*(word.format(tmp_path/"open") for word in command))
    said = str(done.exception)
    assert isinstance(done.exception, WriteError) and done.exit_code == 1
    if command[1] == "runs/mine":  # the folder that was typed
        assert said.startswith("runs/mine: cannot be written: no permission")
    else:
        assert said.startswith(f"{closed}/data/corpora/shapes-smoke: cannot be written: ")
        assert "start in a folder that you can write to" in said
    assert not list((tmp_path/"open").iterdir())
