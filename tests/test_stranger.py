"""The first hour of a stranger: a wheel in an empty environment, files of several kinds, and
nothing but what the front page says."""
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("av")

from conftest import free_port
from test_explorer import find_chromium, launch, running
from test_packaging import shared_wheel

from picknet_nb.world.shapes import describe, draw, make_story

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
        check=True,
    )
    assert str(own) in found.stdout
    return python.with_name("picknet")


def typed(command: Path, desk: Path, *words, **options) -> tuple[str, str]:
    "What a command prints on standard output and on standard error; it must succeed."
    surroundings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PICKNET"))
    }
    done = subprocess.run(
        [command, *map(str, words)],
        cwd=desk,
        capture_output=True,
        env=surroundings,
        timeout=600,
        **options,
    )
    said, told = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, said + told
    return said, told


def test_the_first_hour(command, desk):
    say = lambda *words, **options: typed(command, desk, *words, **options)
    said, told = say("caption", "holiday.mp4")
    assert (
        re.match(r"[a-z ]+\n\d+ frames? picked, at 0\.0", said)
        and "with the model in the box, everyday" in told
    )

    said, told = say(
        "prepare",
        "videos",
        "--captions",
        "captions.json",
        "--videos",
        "clips",
        "--cnn",
        "efficientnet-lite0",
        "--out",
        "data/corpora/mine",
        "--set",
        "frames=8",
    )
    assert (
        "data/corpora/mine: 20 videos (15 train, 2 validation, 3 test)" in said
        and "20 videos, on this machine: about" in told
    )

    said, told = say(
        "train", "runs/mine", "--data", "data/corpora/mine", "--scale", "laptop", *BRIEF
    )
    assert said == "runs/mine/weights.safetensors\n" and re.search(
        r"on this machine: about .+ \(supervision .+, reinforcement .+\)", told
    )
    assert re.search(
        r"begins with everyday, which has learned from MSVD and MSR-VTT; its 3,279 words are kept, "
        r"and \d+ of these clips are new to it",
        told,
    )
    assert "next: `picknet evaluate runs/mine` scores it" in told and "0/0" not in told

    said, told = say("evaluate", "runs/mine")
    assert re.search(r"CIDEr \d+\.\d .*videos:3", said) and re.search(
        r"\d distinct captions? of 3, \d+\.\d words each", said
    )

    said, _ = say("caption", "holiday.mp4", "--run", "runs/mine", "--strip", "strip.png")
    assert "strip.png" in said and (desk/"strip.png").read_bytes().startswith(b"\x89PNG")
    assert "runs/mine" in say("info")[0]


def test_a_stream_by_a_pipe(command, desk):
    said, _ = typed(
        command, desk, "stream", "-", "--rate", "10", input=(desk/"holiday.mkv").read_bytes()
    )
    lines = said.splitlines()
    assert lines and all(re.match(r" +\d+\.\d s  [a-z ]+", line) for line in lines)
    sentences = [line.partition(" s  ")[2] for line in lines]
    # what was just said is not said again
    assert all(one != next for one, next in zip(sentences, sentences[1:]))


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
