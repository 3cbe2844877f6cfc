"""Every command that writes, killed again and again: in the middle of a write, before a file gets
its name, and after any amount of work. Called once more, it leaves the bytes of one that was never
killed, and nothing beside them."""
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import reliability
from conftest import Forked, long_but
from reliability import SEED, leftovers, tally
from test_fuzzing_commands import FOUR, obeyed
from test_fuzzing_commands import data, quickly, toy  # noqa: F401 (fixtures)

av = pytest.importorskip("av")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")
KILLS = int(os.environ.get("PICKNET_KILLS", "0"))  # of each command; 0: one daily, else two
ROWS = ("Baseline", "PickNet (V+L)")


def calls(kind: str, toy, data: Path, out: Path) -> tuple:  # noqa: F811
    "The command of a kind that writes into a folder."
    films = ("caption", data/"videos", "--model", toy.run, "--out")
    return {
        "prepare": lambda: (
            "prepare", "videos", "--captions", data/"captions.json", "--splits", data/"splits.json",
            "--videos", data/"videos", *FOUR, "--out", out/"corpus"),
        "reproduce": lambda: (
            "reproduce", "--data", toy.corpus, "--scale", "smoke", "--folder", out/"table",
            "--workers", "1", "--no-scores",
            *(word for row in ROWS for word in ("--experiment", row)),
            *(word for setting in ("hidden=8", "word_embedding=8", "feature_embedding=8",
                                   "policy_hidden=8", "batch_size=4", "captions_together=1",
                                   "supervision_epochs=2", "reinforcement_epochs=1",
                                   "adaptation_epochs=1")
              for word in ("--set", setting))),
        "export": lambda: ("export", toy.run, out/"model"),
        "subtitles": lambda: (*films, out/"{}.srt"),
        "strip": lambda: (*films, out/"{}.png"),
        "gif": lambda: (*films, out/"{}.gif"),
        "mp4": lambda: (*films, out/"{}.mp4"),
    }[kind]()


KINDS = ("prepare", "reproduce", "export", "subtitles", "strip", "gif", "mp4")


def work(words: tuple, counts: Path, what: str = "", when: float = 0) -> None:
    """Do what a command says; die in the write, before the renaming or after the seconds of
    processor time that are given. Without any, note how many of each there were."""
    seen = Counter()

    def dying(name: str, plain):
        def call(*given, **more):
            seen[name] += 1
            if what == name and seen[name] == when:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*given, **more)
        return call

    os.fsync = dying("write", os.fsync)
    for each in ("replace", "rename"): setattr(os, each, dying("renaming", getattr(os, each)))
    if what == "work":  # nobody handles this signal, so it ends the process
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, when)
    used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    before = used()
    obeyed(*words)
    if not what:
        counts.write_text(json.dumps({**seen, "work": used() - before}))


def timeless(content):
    "What a JSON file says, without how long something took and when it was done."
    if isinstance(content, dict):
        return {name: timeless(each) for name, each in content.items()
                if not name.startswith(("minutes", "seconds", "date"))}
    return [timeless(each) for each in content] if isinstance(content, list) else content


def told(path: Path, out: Path):
    """What a file holds. What says how long something took is left out of texts, and a film is its
    pictures: x264 makes one byte more or less of the same ones, killed or not."""
    if path.suffix in (".json", ".jsonl"):
        text = path.read_text().replace(str(out), "")
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        return [timeless(json.loads(line)) for line in lines]
    if path.suffix != ".mp4": return path.read_bytes()
    with av.open(str(path)) as film:
        return np.stack([frame.to_ndarray(format="gray") for frame in film.decode(video=0)])


def differ(one, two) -> bool:
    "Whether two files hold something else; films, whether a picture does that anybody could see."
    if isinstance(one, np.ndarray):
        return one.shape != two.shape or np.abs(one.astype(float) - two).mean((1, 2)).max() > 2
    return one != two


def contents(out: Path) -> dict:
    "Every file of a folder."
    return {
        str(path.relative_to(out)): told(path, out)
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock") and path.name != "checkpoint.pt"
    }


def stage_of(out: Path) -> str:
    "How far the runs of a table have come."
    done = [path.stem for path in out.rglob("*.safetensors")]
    return "adaptation" if "reinforcement" in done else (
        "reinforcement" if "supervision" in done else "supervision")


@pytest.mark.parametrize("kind", long_but(KINDS, "prepare", "export", "subtitles", "strip"))
def test_a_killed_command_leaves_the_same_bytes_when_it_is_called_again(
        toy, data, tmp_path, kind):  # noqa: F811
    draw, whole = random.Random(f"{SEED}{kind}"), tmp_path/"whole"
    kills = KILLS or 1 + reliability.LONG
    whole.mkdir()
    alone = Forked(work, calls(kind, toy, data, whole), tmp_path/"counts.json")
    assert alone.wait() == 0, alone.output()
    most, expected = json.loads((tmp_path/"counts.json").read_text()), contents(whole)
    assert expected and most.get("write"), most
    struck, number = Counter(), 0
    while struck.total() < kills:
        (out := tmp_path/f"{number}").mkdir()
        for _ in range(min(4, kills - struck.total())):  # of one folder
            what = draw.choice([name for name in ("write", "renaming", "work") if most.get(name)])
            when = (draw.uniform(0, most[what]) if what == "work" else draw.randint(1, most[what]))
            child = Forked(work, calls(kind, toy, data, out), tmp_path/"none.json", what, when)
            if child.wait() == 0:
                break  # it was quicker this time, or had less to do
            assert -child.returncode in (signal.SIGKILL, signal.SIGPROF), child.output()
            stage = f", {stage_of(out)}" if kind == "reproduce" else ""
            struck[f"{what}{stage}"] += 1
            if kind == "export" and (out/"model").exists(): shutil.rmtree(out/"model")
        else:
            child = Forked(work, calls(kind, toy, data, out), tmp_path/"none.json")
            assert child.wait() == 0, child.output()
        found = contents(out)
        assert found.keys() == expected.keys()
        other = [name for name in expected if differ(found[name], expected[name])]
        assert not other, "\n".join(f"{found[name]}\n{expected[name]}"[:3000] for name in other)
        assert not list(leftovers(out)), list(leftovers(out))
        number += 1
    tally("kills", kind, struck)
    tally("runs", kind, Counter(same_bits=number))
