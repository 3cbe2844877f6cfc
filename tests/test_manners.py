"""What a program owes the machine that it runs on: the umask, the environment, no litter, and a
sentence where something is missing."""
import copy
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import Forked
from reliability import wait_for
from picknet_nb.core.files import (
    PickNetError, WriteError, new_folder, replacing, sweep, write_whole)
from picknet_nb.core.processes import apart
from picknet_nb.core.registry import use_module
from picknet_nb.training import models
from picknet_nb.training.models import export_model, find_model
from picknet_nb.use import drawing
from picknet_nb.use.loading import load_captioner

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT/"data"/"example.mp4"
posix = pytest.mark.skipif(os.name != "posix", reason="modes and signals as POSIX has them")


@pytest.fixture(scope="module")
def captioner():
    return load_captioner(find_model("shapes"), device="cpu")


@pytest.fixture(params=[0o077, 0o022, 0o027], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}


@posix
def test_files_and_folders_are_made_as_the_umask_says(captioner, tmp_path, umask):
    caption = captioner.caption(EXAMPLE)
    write_whole(tmp_path/"out"/"text.txt", "x")
    drawing.save_strip(caption, tmp_path/"out"/"strip.png")
    drawing.render(caption, tmp_path/"out"/"moving.gif", seconds=1)
    export_model(find_model("shapes"), tmp_path/"out"/"model")
    for folder in (tmp_path/"out", tmp_path/"out"/"model"):
        for name, mode in modes(folder).items():
            full = 0o777 if name in ("out", "model") else 0o666
            assert oct(mode) == oct(full & ~umask), name


def three():
    yield from range(3)


@posix
def test_the_environment_is_as_before_after_threads_that_start_processes(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    second_is_in, first_is_out, count = threading.Event(), threading.Event(), itertools.count()
    kind = multiprocessing.get_context("fork").Process
    plain = kind.start

    def start(process):  # the first leaves while the second is inside, if it can be inside
        if next(count) == 0:
            second_is_in.wait(0.5)
        else:
            second_is_in.set()
            first_is_out.wait()
        plain(process)

    def work():
        items = apart(three)
        first_is_out.set()
        assert list(items) == [0, 1, 2]

    monkeypatch.setattr(kind, "start", start)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads: each.start()
    for each in threads: each.join()
    assert next(count) == 2 and "OMP_NUM_THREADS" not in os.environ


def draw_and_stop(captioner, out: Path) -> None:
    "Begin to draw, and stop after a few pictures for as long as it takes."
    def slowly(*_, **__):
        for number, picture in enumerate(plain(*_, **__)):
            if number == 3:
                (out.parent/"begun").touch()
                threading.Event().wait()
            yield picture

    plain, drawing.spoken_pictures = drawing.spoken_pictures, slowly
    drawing.render(captioner.caption(EXAMPLE), out)


@posix
@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_what_a_killed_drawing_left_is_swept_away_by_the_next(captioner, tmp_path, ending):
    out = tmp_path/f"moving.{ending}"
    first, second = (Forked(draw_and_stop, captioner, out) for _ in range(2))
    hidden = lambda: [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    wait_for(lambda: len(hidden()) == 2 and (tmp_path/"begun").exists())
    first.kill()
    first.wait()
    for _ in range(20):  # a process that it had begun may keep the file open a moment longer
        drawing.render(captioner.caption(EXAMPLE), out, seconds=0.5)
        if len(hidden()) == 1: break
    assert len(hidden()) == 1, "what the dead process left is gone, what the other writes is not"
    second.kill()
    second.wait()
    for _ in range(20):
        drawing.render(captioner.caption(EXAMPLE), out, seconds=0.5)
        if not hidden(): break
    assert not hidden() and out.stat().st_size


def export_and_stop(out: Path) -> None:
    "Begin to export a model, and stop before its last file for as long as it takes."
    def slowly(*given):
        plain(*given)
        (out.parent/"begun").touch()
        threading.Event().wait()

    plain, models.save_weights = models.save_weights, slowly
    export_model(find_model("shapes"), out)


@posix
def test_what_a_killed_export_left_is_swept_away_by_the_next(tmp_path):
    out = tmp_path/"model"
    first, second = (Forked(export_and_stop, out) for _ in range(2))
    hidden = lambda: [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    wait_for(lambda: len(hidden()) == 2 and (tmp_path/"begun").exists())
    first.kill()
    first.wait()
    export_model(find_model("shapes"), out)
    assert len(hidden()) == 1, "what the dead process left is gone, what the other writes is not"
    second.kill()
    second.wait()
    shutil.rmtree(out)
    export_model(find_model("shapes"), out)
    assert not hidden() and load_captioner(out, device="cpu").caption(EXAMPLE).text


@posix
def test_of_two_exports_into_one_folder_the_second_says_so(tmp_path):
    out = tmp_path/"model"
    with pytest.raises(WriteError, match="model: cannot be written: "):
        with new_folder(out) as made:
            (made/"file").touch()
            export_model(find_model("shapes"), out)
    assert load_captioner(out, device="cpu").caption(EXAMPLE).text
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_is_not_swept_away_through_a_link(tmp_path):
    (precious := tmp_path/"precious").mkdir()
    (precious/"file").touch()
    with new_folder(tmp_path/"model") as made:
        mark = made.name.split(".")[1]
    (link := tmp_path/f".{mark}.abcdef00.partial").symlink_to(precious)
    sweep(tmp_path/"model")
    assert (precious/"file").exists() and link.is_symlink()


def test_sweeping_touches_nothing_else(tmp_path):
    with replacing(tmp_path/"other.gif") as file:
        others = [tmp_path/".12345678.abcdef00.partial", tmp_path/".hidden", tmp_path/"a.gif"]
        for path in others: path.touch()
        sweep(tmp_path/"a.gif")
        assert all(path.exists() for path in others) and len(list(tmp_path.iterdir())) == 4
        file.write(b"x")


@pytest.mark.parametrize("name", ["", ".", "..", ".m", "..m", "m.", "a..b", "a\0b", "a\nb", ".py"])
def test_what_is_no_module_is_a_sentence(name):
    with pytest.raises(PickNetError, match="is not the name of a module"):
        use_module(name)


def command(*words, shell: str = "", **options):
    "The command as a process, begun by a shell that does something first."
    line = [sys.executable, "-P", "-m", "picknet_nb.interface.main", *map(str, words)]
    done = subprocess.run(
        ["bash", "-c", f'{shell}\nexec "$@"', "bash", *line], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, **options,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@posix
@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P came with Python 3.11")
@pytest.mark.parametrize("words", [["info"], ["caption", EXAMPLE, "--model", "shapes"]], ids=str)
def test_a_current_folder_that_is_gone_is_a_sentence(tmp_path, words):
    done = command(*words, shell=f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir ../gone")
    assert done.returncode == 1 and "the current folder cannot be read" in done.stderr


@posix
@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P came with Python 3.11")
def test_too_few_files_at_once_are_a_sentence():
    done = command("caption", EXAMPLE, "--model", "shapes", shell="ulimit -n 7")
    assert done.returncode == 1 and "Too many open files" in done.stderr


def test_a_captioner_can_be_sent_to_another_process(captioner):
    again = pickle.loads(pickle.dumps(captioner))
    one, other = captioner.caption(EXAMPLE), again.caption(EXAMPLE)
    assert (one.text, one.scores, one.picked) == (other.text, other.scores, other.picked)


def test_a_copy_of_a_captioner_picks_with_its_own_policy():
    one = load_captioner(find_model("shapes"), device="cpu")
    other = copy.deepcopy(one)
    inside = {id(cell.cell_contents) for cell in other.picker.choose.__closure__}
    assert id(other.picker.policy) in inside and id(one.picker.policy) not in inside


@posix
def test_ctrl_c_while_drawing_leaves_nothing(captioner, tmp_path):
    drawn = Forked(draw_and_stop, captioner, tmp_path/"moving.gif")
    wait_for((tmp_path/"begun").exists)
    drawn.send_signal(signal.SIGINT)
    drawn.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]
