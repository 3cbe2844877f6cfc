"""Surroundings that few machines have: another locale, odd time zones, a clock that goes back,
little shared memory, links, devices, crowds of files, cuts and ids, two processes in one folder."""
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from conftest import Forked, long_but, noise_corpus
from reliability import READ, in_children, settle, wait_for
from test_hostile_runs import CONFIG, ROW
from test_manners import EXAMPLE, command, posix
from toys import film

from picknet_nb.core.files import PickNetError, WriteError, check_distinct, write_whole
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.datasets import draw_splits, read_captions, read_splits
from picknet_nb.data.extraction import extract_folder
from picknet_nb.training import checkpoints
from picknet_nb.training.models import export_model, find_model
from picknet_nb.training.runs import RunError
from picknet_nb.training.train import train
from picknet_nb.use.loading import load, load_captioner
from picknet_nb.use.subtitles import cut_pieces

av = pytest.importorskip("av")
isolated = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="python -P came with Python 3.11")


@pytest.fixture(scope="module")
def captioner():
    return load_captioner(find_model("shapes"), device="cpu")


# locale, time zone, clock
# ------------------------------------------------------------------------------------------------

SURROUNDINGS = {
    "C": "export LC_ALL=C LANG=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
    "no locale": "export LC_ALL=nowhere LANG= PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
    "ASCII": "export PYTHONIOENCODING=ascii:strict",
    "time zone 99": "export TZ=XXX+99:99:99",
    "time zone of another file": "export TZ=:/etc/passwd",
    "no home": "unset HOME; export XDG_CACHE_HOME=/nowhere TMPDIR=/tmp",
}
# one of each sort at once, every day; each alone says which it was
SURROUNDINGS["several"] = "; ".join(
    SURROUNDINGS[kind] for kind in ("C", "time zone 99", "no home"))


@posix
@isolated
@pytest.mark.parametrize("kind", long_but(SURROUNDINGS, "several"))
def test_a_caption_is_the_same_in_any_surroundings(captioner, tmp_path, kind):
    "Of a file whose name no ASCII has, as text and as subtitles."
    shutil.copy(EXAMPLE, path := tmp_path/"caf\u00e9 \u8a9e.mp4")
    odd = command("caption", path, "--model", "shapes", "--json", shell=SURROUNDINGS[kind])
    assert odd.returncode == 0, odd.stderr
    assert json.loads(odd.stdout)["caption"] == captioner.caption(path).text
    written = command("caption", path, "--model", "shapes", "--out", tmp_path/"out.srt",
                      shell=SURROUNDINGS[kind])
    assert written.returncode == 0 and "-->" in (tmp_path/"out.srt").read_text(encoding="utf-8")


def test_files_that_changed_are_noticed_though_the_clock_went_back(tmp_path):
    folder = shutil.copytree(find_model("shapes"), tmp_path/"model")
    before = load(folder).caption(EXAMPLE)
    about = json.loads((folder/"run.json").read_text())
    about["recipe"] |= {"picker": "uniform", "picks": 2}
    (folder/"run.json").write_text(json.dumps(about))
    os.utime(folder/"run.json", (0, 0))  # 1970: older than what was read before
    after = load(folder).caption(EXAMPLE)
    assert len(after.picked) == 2 != len(before.picked)


def test_a_replaced_video_is_noticed_though_the_clock_went_back(tmp_path):
    path = film(tmp_path/"videos.mp4")
    (tmp_path/"videos").mkdir()
    shutil.copy(path, tmp_path/"videos"/"a.mp4")
    extract = lambda: extract_folder(
        tmp_path/"videos", tmp_path/"out", load_backbone("tiny"), 4, workers=1, progress=False)
    assert extract().made == 1 and extract().made == 0
    film(tmp_path/"videos"/"a.mp4", total=10)
    os.utime(tmp_path/"videos"/"a.mp4", (0, 0))
    assert extract().made == 1


def test_a_run_that_ends_before_it_began_ends_with_the_same_bits(tmp_path, monkeypatch):
    "The clock of the machine is set back at every look at it; only times in the log may differ."
    corpus = noise_corpus()
    train(tmp_path/"plain", corpus, CONFIG, ROW, bars=False)
    now = [2e9]

    def earlier():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr("time.time", earlier)
    train(tmp_path/"back", corpus, CONFIG, ROW, bars=False)
    for path in (tmp_path/"back").iterdir(): os.utime(path, (0, 0))
    train(tmp_path/"back", corpus, CONFIG, ROW, bars=False)  # finished: it stays as it is
    one, two = ((tmp_path/name/"weights.safetensors").read_bytes() for name in ("plain", "back"))
    assert one == two


# devices and links
# ------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "socket"])
def test_a_device_is_not_replaced_by_a_file(tmp_path, kind):
    "Root may rename a file over /dev/null: then nothing on the machine works any more."
    if kind == "socket":
        import socket
        os.chdir(tmp_path)  # a socket's name is short
        socket.socket(socket.AF_UNIX).bind("odd")
    else:
        os.mkfifo(tmp_path/("odd" if kind == "pipe" else "pipe"))
        if kind != "pipe": (tmp_path/"odd").symlink_to(tmp_path/"pipe")
    before = os.lstat(tmp_path/"odd").st_mode
    with pytest.raises(WriteError, match="odd: cannot be written: a pipe, a socket or a device"):
        write_whole(tmp_path/"odd", "text")
    assert os.lstat(tmp_path/"odd").st_mode == before and not list(tmp_path.glob(".*"))


@posix
@isolated
def test_captions_are_not_written_over_a_pipe(tmp_path):
    os.mkfifo(tmp_path/"odd.srt")
    done = command("caption", EXAMPLE, "--model", "shapes", "--out", tmp_path/"odd.srt")
    assert done.returncode == 1 and "odd.srt: cannot be written" in done.stderr
    assert stat.S_ISFIFO(os.lstat(tmp_path/"odd.srt").st_mode)


FILES = ("run.json", "config.json", "vocabulary.json", "weights.safetensors")
TARGETS = {"nowhere": "nowhere", "itself": None, "a folder": ".", "zeros without end": "/dev/zero",
           "a terminal": "/dev/tty", "a pipe": "pipe", "another file": "/etc/passwd"}


@posix
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FILES)
def test_a_link_in_a_model_folder_is_followed_or_a_sentence(tmp_path, name, target):
    folder = shutil.copytree(find_model("shapes"), tmp_path/"model")
    os.mkfifo(folder/"pipe")
    (folder/name).unlink()
    (folder/name).symlink_to(TARGETS[target] or name)
    for use in (lambda: load_captioner(folder, device="cpu"),
                lambda: export_model(folder, tmp_path/"out")):
        with pytest.raises(PickNetError, match="model") as error:
            use()
        assert "root:" not in str(error.value), "what another file says"
    assert not (tmp_path/"out").exists()


@posix
def test_a_model_of_links_to_its_files_is_read_and_exported_as_files(captioner, tmp_path):
    (folder := tmp_path/"model").mkdir()
    for name in FILES: (folder/name).symlink_to(find_model("shapes")/name)
    one, two = load_captioner(folder, device="cpu").caption(EXAMPLE), captioner.caption(EXAMPLE)
    assert (one.text, one.scores, one.picked) == (two.text, two.scores, two.picked)
    made = export_model(folder, tmp_path/"out")
    assert not any(path.is_symlink() for path in made.iterdir())


# crowds
# ------------------------------------------------------------------------------------------------


@posix
@isolated
@pytest.mark.parametrize("count", long_but((50, 500), 50))
def test_five_hundred_videos_with_forty_open_files(tmp_path, count):
    content = film(tmp_path/"film.mp4", 16, 16, total=3).read_bytes()
    (folder := tmp_path/"videos").mkdir()
    for number in range(count): (folder/f"{number:03}.mp4").write_bytes(content)
    (folder/"025.mp4").write_bytes(b"broken")
    done = command("caption", folder, "--model", "shapes", "--json", shell="ulimit -n 40")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3 and len(lines) == count, done.stderr
    assert [line["source"][-7:-4] for line in lines if "error" in line] == ["025"]


@pytest.mark.parametrize("count", long_but((1000, 10_000), 1000))
@pytest.mark.parametrize("shade", [lambda number: 255 * (number % 2), lambda number: number * 67],
                         ids=["flicker", "cuts"])
def test_ten_thousand_cuts_are_pieces_of_two_to_ten_seconds(shade, count):
    "Another picture three times a second."
    frames = ((number / 3, torch.full((3, 16, 16), shade(number) % 256, dtype=torch.uint8))
              for number in range(count))
    pieces = [(piece.times[0].item(), end) for piece, end in cut_pieces(frames)]
    assert all(one[1] == pytest.approx(two[0]) and 1.99 <= one[1] - one[0] <= 10.01
               for one, two in itertools.pairwise(pieces))
    assert pieces[0][0] == 0 and pieces[-1][1] == pytest.approx((count - 1) / 3)


@pytest.mark.skipif(sys.platform != "linux", reason="forks and limits as Linux has them")
@pytest.mark.parametrize("count", long_but((50_000, 10**6), 50_000))
def test_a_million_ids(tmp_path, count):
    "Captions, splits and the search for equal ids: in memory and time that a laptop has."
    ids = [f"video{number}" for number in range(count)]
    (tmp_path/"captions.json").write_text(json.dumps({name: ["a man"] for name in ids}))
    (tmp_path/"splits.json").write_text(
        json.dumps({"train": ids[:-2], "validation": ids[-2:-1], "test": ids[-1:]}))
    (tmp_path/"twice.json").write_text(
        json.dumps({"train": ids[:-2], "validation": ids[-2:], "test": ["VIDEO7"]}))

    def job(path):
        if path.name == "captions.json":
            draw_splits(list(read_captions(path)), path.with_name("drawn.json"))
            drawn = json.loads(path.with_name("drawn.json").read_text())
            assert len(drawn["train"]) == 4 * count // 5
        else:
            read_splits(path, ids)

    paths = [tmp_path/name for name in ("captions.json", "splits.json", "twice.json")]
    assert settle("prepare, a million ids", in_children(job, paths, 120.0))[READ] == 2
    with pytest.raises(PickNetError, match="video7 and VIDEO7"):
        check_distinct("ids", [*ids, "VIDEO7"])


# several processes
# ------------------------------------------------------------------------------------------------


def train_slowly(folder: Path) -> None:
    "Train, and stop after the first checkpoint for as long as it takes."
    def stop(*given):
        plain(*given)
        (folder/"stopped").touch()
        signal.pause()

    from picknet_nb.training import loop
    plain, loop.save_checkpoint = checkpoints.save_checkpoint, stop
    train(folder, noise_corpus(), CONFIG, ROW, bars=False, save_seconds=0.0)


@posix
def test_a_run_under_way_is_neither_trained_twice_nor_exported(tmp_path):
    first = Forked(train_slowly, run := tmp_path/"run")
    wait_for(lambda: (run/"stopped").exists() or first.poll() is not None)
    with pytest.raises(RunError, match=f"in use by process {first.pid}"):
        train(run, noise_corpus(), CONFIG, ROW, bars=False)
    with pytest.raises(RunError, match="run"):
        export_model(run, tmp_path/"model")
    assert not (tmp_path/"model").exists()
    first.kill()
    first.wait()
    (run/"stopped").unlink()
    train(run, noise_corpus(), CONFIG, ROW, bars=False)  # the lock has gone with its holder
    assert export_model(run, tmp_path/"model").is_dir()


def train_again_and_again(folder: Path) -> None:
    "Write the weights of a finished run anew, as long as anybody lets it."
    content = (folder/"weights.safetensors").read_bytes()
    while True: write_whole(folder/"weights.safetensors", content)


@posix
def test_a_model_is_whole_though_its_weights_are_written_meanwhile(tmp_path):
    folder = shutil.copytree(find_model("shapes"), tmp_path/"run")
    expected = export_model(folder, tmp_path/"alone")/"weights.safetensors"
    writer = Forked(train_again_and_again, folder)
    for number in range(10):
        made = export_model(folder, tmp_path/f"{number}")/"weights.safetensors"
        assert made.read_bytes() == expected.read_bytes()
    assert writer.poll() is None, writer.output()
    writer.kill()
    writer.wait()


SHARED = """
import sys
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.extraction import extract_folder
done = extract_folder(sys.argv[1], sys.argv[2], load_backbone("tiny"), 100, workers=4,
                      progress=False)
print(len(done.ids), done.failed)
"""


@pytest.mark.parametrize("size", long_but(("64k", "6m"), "64k"))
def test_little_shared_memory_is_enough(size):
    # files of tests may lie in /dev/shm, which is hidden below
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        extract_with_little_shared_memory(Path(folder), size)


def extract_with_little_shared_memory(folder: Path, size: str) -> None:
    (folder/"videos").mkdir()
    for number in range(6): shutil.copy(EXAMPLE, folder/"videos"/f"{number}.mp4")
    inside = f"mount -t tmpfs -o size={size} none /dev/shm"
    if shutil.which("unshare") is None or subprocess.run(
            ["unshare", "-m", "bash", "-c", inside], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    root = Path(__file__).parents[1]
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", f'{inside} && exec "$@"', "bash", sys.executable, "-c",
         SHARED, str(folder/"videos"), str(folder/"out")],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)})
    assert done.stdout.split() == ["6", "{}"], done.stderr
