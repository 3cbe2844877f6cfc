"""The first hour of a stranger: a wheel in an empty environment, files of several kinds, and
nothing but what the front page says. Its first minute is daily, the rest is long; the longest
hour also installs what the front page says, gigabytes, where pip finds an index."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("av")

from conftest import free_port
from test_examples import front_page
from browser import find_chromium, launch, running
from test_packaging import shared_wheel

from picknet_nb.world.shapes import describe, draw, make_story

ROOT = Path(__file__).parents[1]
BRIEF = [
    word
    for setting in (
        "supervision_epochs=2",
        "word_epochs=0",
        "reinforcement_epochs=1",
        "shrink_epochs=1",
        "average_weights=0.5",
        "batch_size=16",
    )
    for word in ("--set", setting)
]


def write_film(path: Path, story, grain: float = 10.0) -> None:
    "A story as a camera would have seen it, with grain, in the format that the name asks for."
    import av
    import numpy as np

    noise = np.random.default_rng(0)
    codec, pixels = {
        ".mp4": ("mpeg4", "yuv420p"),
        ".avi": ("mpeg4", "yuv420p"),
        ".mkv": ("mpeg4", "yuv420p"),
        ".gif": ("gif", "rgb8"),
    }[path.suffix]
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 96, pixels
        for beat in range(30):
            picture = np.asarray(draw(story, beat), np.float32)
            picture = np.clip(picture + noise.normal(0, grain, picture.shape), 0, 255).astype(
                np.uint8
            )
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    "A folder with twenty films of three kinds, and what people said of them."
    folder = tmp_path_factory.mktemp("desk")
    (folder/"clips").mkdir()
    stories = {f"film{number}": make_story((5, number)) for number in range(20)}
    for number, (name, story) in enumerate(stories.items()):
        write_film(folder/"clips"/f"{name}{('.mp4', '.avi', '.gif')[number % 3]}", story)
    (folder/"captions.json").write_text(
        json.dumps({name: describe(story) for name, story in stories.items()})
    )
    write_film(folder/"holiday.mp4", make_story((6, 0)))
    write_film(folder/"film.mp4", make_story((6, 1)))
    write_film(folder/"holiday.mkv", make_story((6, 0)))
    return folder


def with_few_paraphrases(site: Path, table: Path) -> None:
    "METEOR is borrowed, too, but for its table, which takes Java ten seconds to read."
    shutil.copytree(table, site/"pycocoevalcap"/"meteor")
    for each in Path(find_spec("pycocoevalcap.meteor.meteor").origin).parent.glob("*.py"):
        shutil.copy(each, site/"pycocoevalcap"/"meteor")


@pytest.fixture(scope="module")
def command(tmp_path_factory, request) -> Path:
    """`picknet` as the wheel installs it into an empty environment; what it depends on is
    borrowed from here."""
    folder, wheel = tmp_path_factory.mktemp("stranger"), shared_wheel(tmp_path_factory)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder/"empty"], check=True)
    python = folder/"empty"/"bin"/"python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            wheel,
        ],
        check=True,
    )
    (own,) = (folder/"empty").glob("lib/python*/site-packages")
    # not read as a site: an editable install of ours stays out
    (own/"borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if find_spec("pycocoevalcap"):
        with_few_paraphrases(own, request.getfixturevalue("small_table"))
    found = subprocess.run(
        [python, "-c", "import picknet_nb; print(picknet_nb.__file__)"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=alone(),
        check=True,
    )
    assert str(own) in found.stdout
    return python.with_name("picknet")


@pytest.fixture
def bare(tmp_path_factory, monkeypatch) -> Path:
    """`picknet` of an environment in which nothing is installed yet, and a home in which nothing
    was ever kept. What is installed is too large for a disk in memory."""
    downloads = installing("cache", "dir")
    if installing("index", "versions", "typer").returncode:
        pytest.skip("pip finds no index here")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        if shutil.disk_usage(folder).free < 20 << 30:
            pytest.skip("an environment with PyTorch for GPUs needs 20 GB while it is installed")
        for name in ("HOME", "TMPDIR"):
            monkeypatch.setenv(name, str(Path(folder)/name))
            Path(folder, name).mkdir()
        monkeypatch.setenv("PIP_CACHE_DIR", downloads.stdout.strip())
        environment = Path(folder)/"environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        yield environment/"bin"/"picknet"


def installing(*words, into: Path = Path(sys.executable)) -> subprocess.CompletedProcess:
    "What pip says; it is ours, and works on another environment, too."
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", into, *words], capture_output=True, text=True,
        env=alone())


def install_as_said(line: str, command: Path, wheel: Path) -> None:
    "Type a line of pip of the front page; the package is our wheel, not what a server has."
    words = [re.sub(r"(?<= @ ).+", wheel.as_uri(), word) for word in shlex.split(line)[1:]]
    done = installing(*words, "--quiet", into=command.with_name("python"))
    assert done.returncode == 0, done.stdout + done.stderr


def answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=20):
        return True
    return False


def alone() -> dict[str, str]:
    "The environment without what was set for tests."
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PICKNET"))
    }


def typed(command: Path, desk: Path, *words, **options) -> tuple[str, str]:
    "What a command prints on standard output and on standard error; it must succeed."
    done = subprocess.run(
        [command, *map(str, words)],
        cwd=desk,
        capture_output=True,
        env=alone(),
        timeout=600,
        **options,
    )
    said, told = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, said + told
    return said, told


@pytest.mark.long
def test_without_a_network_everyday_speaks_and_sharp_says_what_to_bring(
    command, desk, tmp_path
):
    cut_off = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run(
            [*cut_off, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process give up its network")
    nothing_kept = alone() | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path/"cache")}

    def caption(*words):
        return subprocess.run(
            [*cut_off, command, "caption", "holiday.mp4", *words],
            capture_output=True, text=True, cwd=desk, env=nothing_kept)
    everyday, sharp = caption(), caption("--model", "sharp")
    assert everyday.returncode == 0, everyday.stderr
    assert re.match(r"[a-z ]+\n\d+ frames? picked, at \d", everyday.stdout)
    assert sharp.returncode == 1 and sharp.stdout == ""
    (sentence,) = [line for line in sharp.stderr.splitlines() if line.startswith("picknet: ")]
    # without timm, what to install; with it, what to bring
    assert '"picknet_nb[clip]"' in sentence or "--weights" in sentence
    assert "Traceback" not in sharp.stderr


def explored(command: Path, desk: Path, *words) -> str:
    "What the explorer has printed when its page can be opened; then it is stopped."
    borrowed = alone()
    if not command.with_name("voila").exists():  # its templates lie beside the packages
        borrowed["JUPYTER_PATH"] = str(Path(sys.prefix)/"share"/"jupyter")
    words = [command, *words, "--no-browser", "--port", str(free_port())]
    with open(desk/"server.log", "w") as output:
        server = subprocess.Popen(words, stdout=output, stderr=output, cwd=desk, env=borrowed)
    with running(server, desk/"server.log", "?token="):
        return (desk/"server.log").read_text()


# what a line of the front page says; standard output, then standard error
PROMISED = {
    "picknet caption holiday.mp4": (r"[a-z ]+\n\d+ frames? picked, at \d", "model: everyday"),
    "picknet caption holiday.mp4 --out picks.png": ("picks.png", ""),
    "picknet caption film.mp4 --out film.srt": ("film.srt", ""),
    "picknet caption clips --out out/{}.srt": ("out/film19.srt", ""),
    "picknet models sharp": ("What it cannot do", ""),
    "picknet prepare videos": (
        r"data/corpora/mine: 20 videos \(15 train, 2 validation, 3 test\)",
        "20 videos, on this machine: about",
    ),
    "picknet train runs/mine --data": (
        "runs/mine/weights.safetensors",
        r"starts from everyday, which was trained on MSVD and MSR-VTT; its [\d,]+ words are kept, "
        r"and \d+ new ones of these clips are added\n"
        r"(.*\n)*on this machine: about .+ \(supervision .+, reinforcement .+\)"
        r"(.*\n)*next: `picknet evaluate --model runs/mine` scores it",
    ),
    "picknet evaluate --model runs/mine": (
        r"CIDEr \d+\.\d .*videos:3(.*\n)*.*\d distinct captions? of 3, \d+\.\d words each",
        "",
    ),
    "picknet --help": ("caption +", ""),
}
# in seconds, not minutes: little is looked at, and little is learned
SHORT = {"prepare": ("--set", "frames=8"), "train": BRIEF}


def test_the_first_minute(command, desk):
    "The first command of the front page; it is in the wheel, with its model."
    line = "picknet caption holiday.mp4"
    assert line in [each.partition("#")[0].strip() for each in front_page()]
    for found, expected in zip(typed(command, desk, *line.split()[1:]), PROMISED[line]):
        assert re.search(expected, found), found


@pytest.mark.long
@pytest.mark.parametrize("environment", ["command", "bare"])
def test_the_first_hour(environment, desk, tmp_path, tmp_path_factory, request):
    """Every line of the front page, in its order, in an environment that has nothing but the
    wheel, or nothing before its lines of pip were typed; pictures that it only names are drawn,
    too."""
    command, said_by = request.getfixturevalue(environment), {}
    desk = shutil.copytree(desk, tmp_path/"desk")
    first = "picknet caption holiday.mp4"
    lines = front_page("pip install", "picknet")
    if environment == "command":
        lines = front_page()
    elif cpu := [line for line in lines if "--index-url" in line]:  # it says: first
        lines = [line for line in lines if line not in cpu]
        lines = [line for line in cpu if answers(line.split()[-1])] + lines
    lines += [f"{first} --out clip.gif", f"{first} --out clip.mp4"]
    # what is resumed must have been begun
    for line in sorted(lines, key=lambda line: "--resume" in line):
        if line.startswith("pip "):
            install_as_said(line, command, shared_wheel(tmp_path_factory))
            continue
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "explore":
            known = environment == "bare" or find_spec("voila")
            assert not known or "?token=" in explored(command, desk, *words)
        elif words[:2] == ["stream", "0"]:  # there is no camera here
            done = subprocess.run(
                [command, *words], cwd=desk, capture_output=True, text=True, env=alone()
            )
            assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        elif words[-2:] == ["--model", "sharp"]:  # fetches CLIP, where there is a network
            done = subprocess.run(
                [command, *words], cwd=desk, capture_output=True, text=True, env=alone()
            )
            assert "Traceback" not in done.stderr
            missing = "cannot be fetched", "picknet_nb[clip]"
            assert done.returncode == 0 or any(each in done.stderr for each in missing)
        else:
            fresh = SHORT.get(words[0], ()) if "--resume" not in words else ()
            said_by[shlex.join(["picknet", *words])] = typed(command, desk, *words, *fresh)
    for promise, (said, told) in PROMISED.items():
        found = [
            each for line, each in said_by.items() if line.replace("'", "").startswith(promise)
        ]
        assert found, promise
        assert re.search(said, found[0][0]) and re.search(told, found[0][1]), (promise, found[0])
    for name, begins in {
        "picks.png": b"\x89PNG",
        "clip.gif": b"GIF8",
        "clip.mp4": b"\0\0\0",
        "film.srt": b"1\n00:",
    }.items():
        assert (desk / name).read_bytes().startswith(begins)
    assert len(list((desk/"out").iterdir())) == 20
    assert "runs/mine" in typed(command, desk, "info")[0]
    type_its_python(command, desk)


def type_its_python(command: Path, desk: Path) -> None:
    "The blocks of Python of the front page, in their order."
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    code = "\n".join(line for kind, lines in blocks_of(page) if kind == "python" for line in lines)
    code += "\nprint(found.text)\nassert found.times[0] == 0\n"
    done = subprocess.run([command.with_name("python"), "-c", code], cwd=desk, env=alone(),
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and re.fullmatch(r"[a-z ]+\n", done.stdout), done.stderr


def blocks_of(page: str) -> list[tuple[str, list[str]]]:
    "The language and the lines of every fenced block of a page."
    return [(kind, text.splitlines())
            for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.S)]


def test_every_block_of_the_front_page_is_typed_or_printed():
    "No line of a block is of a kind that these tests do not type."
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    makefile = (ROOT/"Makefile").read_text(encoding="utf-8")
    named, targets = front_page(), set(re.findall(r"^([\w-]+):", makefile, re.M))
    extras = known_extras()
    typed_something = 0
    for kind, lines in blocks_of(page):
        if kind == "python":
            continue  # typed below
        for line in lines:
            first = line.split()[0] if line.split() else ""
            if first == "picknet":
                assert line in named, line
            elif first == "make":
                assert line.split()[1] in targets, line
            elif line.startswith("pip install"):
                for extra in re.findall(r"picknet_nb\[([\w,]+)\]", line):
                    assert set(extra.split(",")) <= extras, line
            else:  # what the command above prints
                assert typed_something, line
                continue
            typed_something += 1
    assert typed_something > 8 and any(kind == "python" for kind, _ in blocks_of(page))


def known_extras() -> set[str]:
    "The extras that pip knows of this package."
    from importlib.metadata import metadata

    return set(metadata("picknet_nb").get_all("Provides-Extra"))


@pytest.mark.long
def test_the_make_lines_of_the_front_page_say_first_what_they_do():
    "Each is a target that make accepts; what it runs is read, and not run again from here."
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    lines = [line for _, block in blocks_of(page) for line in block if line.startswith("make ")]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        done = subprocess.run(
            [words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_stream_by_a_pipe(command, desk):
    said, _ = typed(
        command, desk, "stream", "-", "--rate", "10", input=(desk/"holiday.mkv").read_bytes()
    )
    lines = said.splitlines()
    assert lines and all(re.match(r" +\d+\.\d s  [a-z ]+", line) for line in lines)
    sentences = [line.partition(" s  ")[2] for line in lines]
    # what was just said is not said again
    assert all(one != next for one, next in zip(sentences, sentences[1:]))


@pytest.mark.long
def test_a_page_in_a_browser(command, desk, tmp_path):
    pytest.importorskip("voila")
    sync_api = pytest.importorskip("playwright.sync_api")
    find_chromium()
    words = [
        command,
        "explore",
        "--model",
        "shapes",
        "--videos",
        "clips",
        "--port",
        str(free_port()),
        "--no-browser",
    ]
    # Voilà's templates lie beside the packages, not in them
    borrowed = os.environ | {"JUPYTER_PATH": str(Path(sys.prefix)/"share"/"jupyter")}
    with open(tmp_path/"server.log", "w") as output:
        server = subprocess.Popen(words, stdout=output, stderr=output, cwd=desk, env=borrowed)
    with (
        running(server, tmp_path/"server.log", "?token="),
        sync_api.sync_playwright() as playwright,
    ):
        browser = launch(playwright)
        page = browser.new_page()
        page.goto(
            re.search(r"http://\S+\?token=\w+", (tmp_path/"server.log").read_text())[0],
            timeout=180_000,
        )
        page.wait_for_selector(".pn-strip .pn-picked", timeout=180_000)
        browser.close()
