"""Every command with wrong inputs of every kind, a tenth of them daily: an answer, or one sentence
with the file's name; no traceback, no hang, no bomb, nothing raw on the terminal."""
import io
import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from reliability import (
    READ, REFUSED, SCALE, SEED, Outcomes, a_tenth, damage, in_children, leftovers, settle)
from test_hostile_data import npy_head, zip_bomb
from test_fuzzing import CSV, ODD, SENTENCES, changed, feature_file, film, spots
from test_fuzzing import films  # noqa: F401 (a fixture)

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import BACKBONES, load_backbone
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.extraction import extract_folder
from picknet_nb.data.text import SPECIALS, Vocabulary
from picknet_nb.data.video import Clip
from picknet_nb.method.recipes import recipes
from picknet_nb.training import loop
from picknet_nb.training.train import open_data, train
from picknet_nb.use.clips import Caption
from picknet_nb.use.drawing import render, save_strip
from picknet_nb.use.page import Explorer
from picknet_nb.interface import main as cli

av = pytest.importorskip("av")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="forks and limits as Linux has them"
)
PATIENCE = 90.0  # seconds: a command gives up a file after 60
COMMAND, TINY, usual_tiny = (
    typer.main.get_command(cli.app),
    load_backbone("tiny"),
    BACKBONES["tiny"],
)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    "Make the command line and the backbone once instead of a thousand times; the rest is as it is."
    monkeypatch.setattr(cli, "app", COMMAND)
    monkeypatch.setitem(
        BACKBONES, "tiny", lambda weights=None: TINY if weights is None else usual_tiny(weights)
    )
    av.logging.set_level(av.logging.PANIC)


# a command, called in a child
# ----------------------------------------------------------------------------------------


def picknet(*arguments) -> tuple[int, str, str]:
    "The status of a command, what it said and what it complained of."
    printed = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    usual = (sys.argv, sys.stdout, sys.stderr)
    sys.argv, sys.stdout, sys.stderr, status, last = (
        ["picknet", *map(str, arguments)],
        *printed,
        0,
        "",
    )
    try:
        cli.main()
    except SystemExit as end:
        status, last = (end.code or 0, "") if isinstance(end.code, int | None) else (1, end.code)
    finally:
        sys.argv, sys.stdout, sys.stderr = usual
        for each in printed:
            each.flush()
    said, complaints = (each.buffer.getvalue().decode("utf-8") for each in printed)
    return status, said, complaints + last


def no_constant(name: str):
    raise ValueError(f"{name} is no JSON")


# what a terminal would obey instead of showing
RAW = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def obeyed(*arguments) -> str:
    """What a command said; one that refuses becomes an error here, and everything that neither
    answers nor refuses is a failure."""
    status, said, complaints = picknet(*arguments)
    assert status in (0, 1, 3), f"status {status}: {said} {complaints}"
    assert "Traceback" not in complaints, complaints
    assert not (
        raw := RAW.search(said if "--json" not in arguments else "") or RAW.search(complaints)
    ), f"raw {raw[0]!r} in {said!r} {complaints!r}"
    for line in said.split("\n")[:-1] if "--json" in arguments else ():
        json.loads(line, parse_constant=no_constant)
    if status:
        raise PickNetError(complaints)
    return said


def write_all(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    "Each content under its name."
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder/name).write_bytes(content)
    return [folder/name for name in contents]


def commands(kind: str, job, items, good_film: bool = False) -> Counter:
    """Give each input to a command in a child, and count what became of it. A film that is good
    needs no process of its own to be decoded in."""
    return settle(kind, in_children(job, items, PATIENCE, parent=not good_film))


def each_command(kind: str, job, jobs: dict, good_film: bool = False) -> Counter:
    """The same for inputs of several commands, the first word of each: what became of them is
    counted for each command."""
    found, counts = in_children(job, list(jobs), PATIENCE, parent=not good_film), Counter()
    for name in sorted({entry_of(call) for call in jobs.values()}):
        outcomes = Outcomes(
            {each: outcome for each, outcome in found.items() if entry_of(jobs[each]) == name}
        )
        outcomes.peak = found.peak
        counts += settle(f"{name}, {kind}", outcomes)
    return counts


def entry_of(call: tuple) -> str:
    "The entry point that a call is counted under."
    return (
        "drawing"
        if {"--strip", "--gif", "--mp4"} & set(call)
        else "train --resume"
        if call[0] == "train"
        else str(call[0])
    )


# a small world: videos, a corpus, a finished run and two that were stopped
# ---------------------------------------------

CONFIG = preset(
    "smoke",
    hidden=8,
    word_embedding=8,
    feature_embedding=8,
    policy_hidden=8,
    frames=6,
    glance_size=8,
    supervision_epochs=2,
    reinforcement_epochs=1,
    adaptation_epochs=1,
    batch_size=4,
    captions_together=1,
)
ROW = recipes()["PickNet (V+L)"]


def toy_corpus() -> Corpus:
    "Eight clips of noise, as the backbone tiny might see them."
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(8, 6, TINY.dims, generator=draw).half()
    glances = torch.randint(0, 256, (8, 6, 64), generator=draw, dtype=torch.uint8)
    captions = [
        [f"a {who} runs", f"the {who} jumps high"]
        for who in ("man", "dog", "cat", "girl", "man", "dog", "cat", "girl")
    ]
    return Corpus.build(
        "toy",
        list("abcdefgh"),
        features,
        glances,
        captions,
        {"train": range(4), "validation": range(4, 6), "test": range(6, 8)},
        CONFIG.clip,
    )


class Toy:
    "Where everything stands."

    def __init__(self, folder: Path):
        self.folder = folder
        self.corpus = folder/"corpus"
        self.run = folder/"run"
        self.film = film(folder/"film.mp4")
        toy_corpus().save(self.corpus)
        learn = lambda name: train(
            folder / name,
            open_data(str(self.corpus), "smoke"),
            CONFIG,
            ROW,
            bars=False,
            save_seconds=0,
        )
        learn("run")
        self.weights = (self.run/"weights.safetensors").read_bytes()
        save = loop.save_checkpoint
        for name, checkpoints in (("early", 2), ("late", 11)):  # of supervision, and of adaptation
            written = []

            def save_some(*rest):
                save(*rest)
                written.append(True)
                if len(written) == checkpoints:
                    raise KeyboardInterrupt

            loop.save_checkpoint = save_some
            try:
                with pytest.raises(KeyboardInterrupt):
                    learn(name)
            finally:
                loop.save_checkpoint = save


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Toy:
    "All of it, and everything imported that the children would otherwise import one by one."
    made = Toy(tmp_path_factory.mktemp("toy"))
    for kind, name in DRAWN.items():
        picknet("caption", made.film, "--run", made.run, kind, made.folder/"first" / name)
    if find_spec("ipywidgets"):
        Explorer(
            made.run,
            write_all(made.folder/"page", {"film.mp4": made.film.read_bytes()})[0].parent,
            device="cpu",
        )
    return made


def edited(content, every: int, most: int = 10**6) -> list[bytes]:
    """A JSON value with something else, or nothing, in one place: every so many of the odd
    values for each place, more of them in a longer run."""
    found, places, every = [], spots(content), max(1, every // SCALE)
    for place in places[:: max(1, len(places) // (most * SCALE))]:
        start = len(str(place)) % every
        found += [
            changed(content, place, new, (start + number) % 5 == 0)
            for number, new in enumerate(ODD[start::every])
        ]
    return [json.dumps(each).encode() for each in found]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".lock")
    }


def folder_variants(source: Path, names, folder: Path, seeds: int, every: int = 4) -> list[Path]:
    """Copies of a folder with one file damaged, missing, empty, a folder itself, or with
    something else in one place of its JSON."""
    files, paths, planned = files_of(source), [], []

    def variant(name: str, content: bytes | None, kind: str) -> None:
        paths.append(folder/f"{len(paths)}_{kind}_{name}")
        paths[-1].mkdir(parents=True)
        for each in files:
            if each != name:
                (paths[-1] / each).write_bytes(files[each])
        if content is not None:
            (paths[-1] / name).write_bytes(content)
        if kind == "folder":
            (paths[-1] / name).mkdir()

    for name in names:
        planned += [(name, None, "missing"), (name, None, "folder"), (name, b"", "empty")]
        for seed in range(seeds * SCALE):
            planned.append((name, damage(files[name], (name, seed)), "damaged"))
        for content in edited(json.loads(files[name]), every, 80) if name.endswith(".json") else ():
            planned.append((name, content, "edited"))
    for each in a_tenth(planned, lambda each: (each[0], each[2])): variant(*each)
    return paths


# videos: caption, stream, draw, extract
# ------------------------------------------------------------------------------


def damaged_films(films, what: str, each: int) -> dict[str, bytes]:  # noqa: F811
    places = [(seed, name) for name in films if name != "example.mp4"
              for seed in range(each * SCALE)]
    return {f"{seed}_{name}": damage(films[name], (what, name, seed))
            for seed, name in a_tenth(places)}


def test_caption_of_damaged_videos(films, toy, tmp_path):  # noqa: F811
    def job(path):
        said = json.loads(obeyed("caption", path, "--run", toy.run, "--json", "--best", "2"))
        assert len(said["n_best"]) == 2 and len(said["probabilities"]) == 6

    commands(
        "caption, damaged videos",
        job,
        write_all(tmp_path/"films", damaged_films(films, "caption", 4)),
    )


def test_caption_of_a_folder_says_something_of_each_file(films, toy, tmp_path):  # noqa: F811
    "A broken file costs its own caption and no other."
    contents = damaged_films(films, "folder", 3)
    paths = write_all(tmp_path/"films", contents)
    outcomes = Outcomes()

    def job(folder):
        status, said, complaints = picknet("caption", folder, "--run", toy.run, "--json")
        lines = [json.loads(line) for line in said.splitlines()]
        assert [Path(line["source"]) for line in lines] == sorted(paths), complaints
        assert status == (3 if any("error" in line for line in lines) else 0) and all(
            line["error"] if "error" in line else "caption" in line for line in lines
        )
        (tmp_path/"counts.json").write_text(
            json.dumps([REFUSED if "error" in line else READ for line in lines])
        )

    settle("caption, a folder", in_children(job, [tmp_path/"films"], 600, parent=True))
    outcomes.update(zip(paths, json.loads((tmp_path/"counts.json").read_text())))
    settle("caption, files of a folder", outcomes)


def test_stream_of_damaged_videos(films, toy, tmp_path):  # noqa: F811
    def job(path):
        lines = [
            json.loads(line)
            for line in obeyed(
                "stream", path, "--run", toy.run, "--json", "--rate", "5"
            ).splitlines()
        ]
        assert lines and lines[0]["frame"] == 0

    commands(
        "stream, damaged videos",
        job,
        write_all(tmp_path/"films", damaged_films(films, "stream", 4)),
    )


DRAWN = {"--strip": "drawing.png", "--gif": "drawing.gif", "--mp4": "drawing.mp4"}


def draw(toy: Toy, path: Path, kind: str, run: Path | None = None) -> None:
    "Caption a file and draw it; where that is refused, no half drawing may be left."
    out = toy.folder/"drawings"/f"{os.getpid()}"
    shutil.rmtree(out, ignore_errors=True)
    try:
        obeyed("caption", path, "--run", run or toy.run, kind, out/DRAWN[kind])
        assert (out/DRAWN[kind]).stat().st_size > 100
    finally:
        assert not out.exists() or not list(leftovers(out)), list(leftovers(out))


def test_drawing_of_damaged_videos(films, toy, tmp_path):  # noqa: F811
    kinds, paths = list(DRAWN), write_all(tmp_path/"films", damaged_films(films, "draw", 3))
    commands(
        "drawing, damaged videos", lambda path: draw(toy, path, kinds[paths.index(path) % 3]), paths
    )


ODD_NAMES = [
    "a\nb",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "$\\frac{",
    "$x$",
    "😀",
    "é" * 60,
    "x" * 240,
    os.fsdecode(b"\xe9\xff"),
    os.fsdecode(b"\xed\xa0\x80"),
    "-x",
    "--json",
    "%s%n",
    "{0}",
    "'\"`",
    " ",
    "..a",
    "a.mp4",
    "\u202egpj",
    "\u2028",
    "Z\u0351\u036b",
    "<script>alert(1)<",
    "~",
    "*",
    "http:",
    "concat:a|b",
    "file:x",
    "pipe:0",
    "data:,x",
    "subfile,,start,0,end,9,,:x",
    "%d",
    "a\\b",
    "\t",
    "\x7f",
    "\x9b2J",
    "\r",
    "con",
    "&amp;",
    "#1",
    "?a=b",
    "\u200b",
]


def sort_of_text(text: str) -> str:
    "What is odd about a name or a word: a control character, half a letter, markup …"
    signs = {"control": r"[\x00-\x1f\x7f-\x9f]", "half": r"[\ud800-\udfff]", "option": r"^-",
             "address": r"\w:", "markup": r"[$<&%{\\]", "long": r".{200}", "script": r"[^ -~]"}
    return next((sort for sort, sign in signs.items() if re.search(sign, text)), "plain")


def test_odd_names_are_names_and_nothing_else(toy, tmp_path):
    "A good video under any name is streamed, captioned and drawn; a folder of them, too."
    jobs, folder = {}, tmp_path/"names"
    names = a_tenth(ODD_NAMES, sort_of_text)
    paths = write_all(folder, {f"{name}.mp4": toy.film.read_bytes() for name in names})
    for number, path in enumerate(paths):
        drawn = (
            ("--gif", "--strip", "--mp4")[number // 3 % 3]
            if number % 3 == 0 or SCALE > 1
            else "caption"
        )
        jobs |= {
            f"{kind} {path.name!r}": (kind, path)
            for kind in (("stream", "caption")[number % 2], drawn)
        }

    def job(name):
        kind, path = jobs[name]
        if kind in DRAWN:
            draw(toy, path, kind)
        else:
            obeyed(kind, path, "--run", toy.run)

    assert each_command("odd names", job, jobs)[READ] == len(jobs)
    whole = write_all(
        tmp_path/"whole", {path.name: path.read_bytes() for path in paths[:: max(1, 4 // SCALE)]}
    )
    everything = in_children(
        lambda folder: obeyed("caption", folder, "--run", toy.run, "--strip", tmp_path/"strips"),
        [tmp_path/"whole"],
        300,
        parent=True,
    )
    assert settle("drawing, a folder of odd names", everything)[READ] == 1
    # a hidden file is none of the folder's videos
    assert len(list((tmp_path/"strips").iterdir())) == sum(
        not path.name.startswith(".") for path in whole
    )


def test_titles_in_any_alphabet(toy, tmp_path):
    "What a video says of itself need not be text: Latin-1, half a character, escapes, nothing."
    mark, paths = b"TITLETITLETITLE!", []
    for ending, codec in (
        ("mp4", "libx264"),
        ("mkv", "libx264"),
        ("avi", "mpeg4"),
        ("mov", "libx264"),
        ("flv", "flv1"),
        ("ts", "libx264"),
        ("nut", "mpeg4"),
        ("wmv", "wmv2"),
    ):
        with av.open(str(tmp_path/f"plain.{ending}"), "w") as output:
            stream = output.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = 48, 48, "yuv420p"
            for key in ("title", "comment", "artist", "service_name"):
                output.metadata[key] = mark.decode()
            stream.metadata["title"] = stream.metadata["handler_name"] = mark.decode()
            for shade in range(10):
                output.mux(
                    stream.encode(
                        av.VideoFrame.from_ndarray(
                            np.full((48, 48, 3), 20 * shade, np.uint8), "rgb24"
                        ).reformat(format="yuv420p")
                    )
                )
            output.mux(stream.encode())
        content = (tmp_path/f"plain.{ending}").read_bytes()
        wide = mark.decode().encode("utf-16-le")
        for number, title in enumerate(
            (
                b"caf\xe9 \xfcber alles",
                b"\xff\xfe" * 8,
                b"\xed\xa0\x80\xed\xb0\x80" + b"x" * 10,
                b"\x1b[2J\x1b[31mred\x07\x07\x07\x07",
                b"\0" * 16,
                b"\xf0\x9f\x98" + b"y" * 13,
                b"\xc0\xaf" * 8,
            )
        ):
            paths.append(tmp_path/f"{number}.{ending}")
            title = title.ljust(16)[:16]
            paths[-1].write_bytes(content.replace(mark, title).replace(wide, title + title))
    kinds = (
        ("caption", *DRAWN)
        if SCALE > 1
        else (
            "caption",
            "--strip",
            "caption",
            "--gif",
            "caption",
            "caption",
            "--mp4",
            "caption",
            "caption",
        )
    )
    jobs = {
        f"{kind} {path.name}": (kind, path)
        for number, path in enumerate(a_tenth(paths, lambda path: path.suffix))
        for kind in [kinds[number % len(kinds)]]
    }

    def job(name):
        kind, path = jobs[name]
        draw(toy, path, kind) if kind in DRAWN else obeyed("caption", path, "--run", toy.run)

    assert each_command("odd titles", job, jobs)[READ] == len(jobs)


ODD_WORDS = [
    "$\\frac{",
    "$x$",
    "$",
    "\\",
    "_{^",
    "\\ud83d",
    "\x1b[2J",
    "\n",
    "\r",
    "\x07",
    "<script>alert(1)</script>",
    "&amp;",
    "%s",
    "{0}",
    "😀",
    "\u202e",
    "x" * 3000,
    "\u200b",
    " ",
    "\t",
    "Z\u0351\u036b",
    "\u2028",
    "\0",
    "\x9b31m",
    "\ufffe",
    "مرحبا",
    "語",
]


def run_with_words(toy: Toy, folder: Path, word: str) -> Path:
    "The run with other words, as somebody would make it who wants it to be believed."
    shutil.copytree(toy.run, folder)
    count = len(Vocabulary.load(folder/"vocabulary.json"))
    text = json.dumps(
        [*SPECIALS, *(f"{word}{number}{word}" for number in range(count - len(SPECIALS)))]
    ).replace("\\\\ud83d", "\\ud83d")
    (folder/"vocabulary.json").write_text(text)
    try:
        about = json.loads((folder/"run.json").read_text())
        (folder/"run.json").write_text(
            json.dumps(about | {"vocabulary": Vocabulary(json.loads(text)).fingerprint()})
        )
    except (PickNetError, UnicodeEncodeError):
        pass  # no such vocabulary can be noted
    return folder


def test_words_that_nobody_can_print(toy, tmp_path):
    """Markup, escapes, half characters: in the captions of a run from elsewhere, on the terminal
    and in drawings."""
    jobs = {}
    for number, word in enumerate(a_tenth(ODD_WORDS, sort_of_text)):
        run = run_with_words(toy, tmp_path/f"run{number}", word)
        jobs |= {
            f"{run} {kind}": (kind, run)
            for kind in ("caption", "stream", list(DRAWN)[number % 3])[
                : 3 if SCALE > 1 or number % 3 == 0 or "$" in word else 2
            ]
        }

    def job(name):
        kind, run = jobs[name]
        try:
            draw(toy, toy.film, kind, run) if kind in DRAWN else obeyed(
                kind, toy.film, "--run", run
            )
        except PickNetError as error:
            assert str(run) in str(error), f"unnamed: {error}"
            raise PickNetError(f"{name}: {error}") from error

    assert each_command("odd words", job, jobs, good_film=True)[READ] > len(jobs) // 2


def odd_text(seed: int) -> str:
    "A few letters of many kinds, some of them none."
    draw = random.Random(seed)
    kinds = [
        (32, 126),
        (0, 31),
        (0x80, 0xFF),
        (0x300, 0x36F),
        (0x590, 0x6FF),
        (0x2000, 0x206F),
        (0x4E00, 0x4FFF),
        (0xD800, 0xDFFF),
        (0xE000, 0xE0FF),
        (0xFFF0, 0xFFFF),
        (0x1F600, 0x1F64F),
    ]
    letters = [
        chr(draw.randint(*draw.choice(kinds)))
        if draw.random() < 0.5
        else draw.choice("$\\{}^_%&#~<>'\" \n\t")
        for _ in range(draw.choice((0, 1, 5, 40, 400)))
    ]
    return "".join(letters)


def test_drawing_of_any_text(toy, tmp_path):
    "The drawing itself, without the reader before it: captions of letters from everywhere."

    def job(seed):
        draw, frames = random.Random(seed), 6
        picked = sorted(draw.sample(range(frames), draw.randint(1, frames)))
        texts = [odd_text(seed * 100 + number) for number in range(len(picked))]
        clip = Clip(torch.zeros(frames, 3, 48, 48, dtype=torch.uint8), torch.arange(frames) * 0.1)
        caption = Caption(
            str(toy.film),
            [texts[-1]],
            [0.0],
            picked,
            texts,
            [draw.random() for _ in range(frames)],
            {},
            clip,
        )
        out = tmp_path/f"{seed}.{draw.choice(('png', 'jpg', 'pdf', 'svg', 'gif', 'mp4'))}"
        (render if out.suffix in (".gif", ".mp4") else save_strip)(caption, out)
        assert out.stat().st_size > 100

    seeds = a_tenth(list(range(20 * SCALE)))
    assert commands("drawing, any text", job, seeds)[READ] == len(seeds)


def test_extraction_of_damaged_videos(films, tmp_path):  # noqa: F811
    "Each in a folder with a good one, which must be done whatever happens to the other."
    contents, good = damaged_films(films, "extract", 3), films["h264.mp4"]
    paths = []
    for name, content in contents.items():
        paths.append(tmp_path/f"{name}.folder")
        write_all(paths[-1], {name: content, "good.mp4": good})

    def job(path):
        done = extract_folder(path, tmp_path/"out" / path.name, load_backbone("tiny"), 4, workers=1)
        assert "good" in done.ids and len(done.ids) + len(done.failed) == 2, done
        if done.failed:
            raise PickNetError(str(done.failed))

    commands("extract, damaged videos", job, paths)


# data: prepare, score
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory, toy) -> Path:
    "Four videos, extracted already, with captions and splits in every form that is read."
    folder = tmp_path_factory.mktemp("data")
    (folder/"videos").mkdir()
    for number in range(4):
        shutil.copy(toy.film, folder/"videos"/f"video{number}.mp4")
    names = [f"video{number}" for number in range(4)]
    (folder/"captions.json").write_text(
        json.dumps({name: ["a man runs", "someone is running"] for name in names})
    )
    (folder/"splits.json").write_text(
        json.dumps({"train": names[:2], "validation": names[2:3], "test": names[3:]})
    )
    (folder/"msrvtt.json").write_text(json.dumps(SENTENCES))
    (folder/"mapping.txt").write_text(
        "".join(f"video{number} vid{place}\n" for number, place in enumerate((1, 1201, 1301, 2)))
    )
    (folder/"msvd.csv").write_bytes(
        CSV.replace(b"v1,1,6", b"video1,,").replace(b"v2,2,7", b"video2,,")
    )
    (folder/"msvd.json").write_text((folder/"captions.json").read_text())
    feature_file(folder/"features.npz")
    (folder/"abc.json").write_text(json.dumps({name: ["a man runs"] for name in "abc"}))
    (folder/"abc_splits.json").write_text(
        json.dumps({"train": ["a"], "validation": ["b"], "test": ["c"]})
    )
    done = extract_folder(folder/"videos", folder/"out", load_backbone("tiny"), 4, workers=1)
    assert not done.failed
    return folder


FOUR = ("--cnn", "tiny", "--workers", "1", "--set", "frames=4", "--set", "min_word_count=1")
PREPARED = {  # a command: its files, and what it is called with
    "videos": {"captions.json": "--captions", "splits.json": "--splits"},
    "msvd": {"msvd.json": "--captions", "mapping.txt": "--mapping"},
    "msrvtt": {"msrvtt.json": "--annotations"},
    "features": {
        "abc.json": "--captions",
        "abc_splits.json": "--splits",
        "features.npz": "--features",
    },
}


@pytest.mark.parametrize("kind", PREPARED)
def test_preparing_from_damaged_files(data, tmp_path, kind):
    "A refusal leaves no corpus; what is read can be opened."
    options, paths = PREPARED[kind], []
    for name in options:
        content = (data / name).read_bytes()
        contents = [damage(content, (kind, name, seed)) for seed in range(12 * SCALE)] + [
            b"",
            b"\0" * 100,
            b"[" * 100_000,
            content + content,
        ]
        contents += edited(json.loads(content), 8) if name.endswith(".json") else []
        for number, each in enumerate(contents):
            paths += write_all(tmp_path, {f"{number}_{name}": each})

    def job(path):
        out, name = tmp_path/"out" / path.name, path.name.partition("_")[2]
        given = [
            part
            for each, option in options.items()
            for part in (option, path if each == name else data / each)
        ]
        if kind != "features":
            shutil.copytree(data/"out", out)
            given += ["--videos", data/"videos", *FOUR]
        else:
            given += ["--set", "frames=8", "--set", "min_word_count=1"]
        status, said, complaints = picknet("prepare", kind, *given, "--out", out)
        assert status in (0, 1, 3) and "Traceback" not in complaints, (status, complaints)
        assert not list(leftovers(out)), list(leftovers(out))
        if (out/"corpus.json").exists():
            assert Corpus.load(out).features.isfinite().all()
        shutil.rmtree(out, ignore_errors=True)
        if status == 1:
            assert any(str(each) in complaints for each in given if isinstance(each, Path)), (
                f"unnamed: {complaints}"
            )
            # what does not fit together lies in two files
            raise PickNetError(f"{path}: {complaints}")

    commands(f"prepare, {kind}", job, a_tenth(paths, lambda path: path.name.partition("_")[2]))


def test_scores_of_files_with_something_else_in_one_place(tmp_path):
    """Read, compared and refused before anything is scored: a caption has no references, and
    references no caption."""
    pytest.importorskip("pycocoevalcap")  # without it, the command refuses everything
    said, known = (
        {"a": "a man runs", "b": "a dog", "d": "nobody knows"},
        {
            "a": ["a man runs", "someone runs"],
            "b": ["a dog", "one dog"],
            "c": ["nobody said anything"],
        },
    )
    records = [{"image_id": name, "caption": caption} for name, caption in said.items()]
    paths = []
    for name, content in (
        ("captions", said),
        ("references", known),
        ("records", records),
        ("annotations", {"annotations": records[:2]}),
    ):
        for each in edited(content, 3):
            paths += write_all(tmp_path, {f"{len(paths)}_{name}.json": each})
    (tmp_path/"said.json").write_text(json.dumps(said))
    (tmp_path/"known.json").write_text(json.dumps(known))

    def job(path):
        references = any(name in path.name for name in ("references", "annotations"))
        try:
            obeyed(
                "score",
                tmp_path/"said.json" if references else path,
                "--references",
                path if references else tmp_path/"known.json",
            )
        except PickNetError as error:
            # what does not fit together lies in two files
            raise PickNetError(f"{path}: {error}") from error

    some = a_tenth(paths, lambda path: path.name.partition("_")[2])
    assert commands("score, odd files", job, some)[REFUSED] == len(some)


ODD_CAPTIONS = {  # what the scorers must stand; a reference needs one word at least
    "words": [
        "|||",
        "a ||| b",
        "SCORE ||| a ||| b",
        "EVAL ||| 1 2 3",
        "a|b",
        "\\ a",
        "%s",
        "a\nb",
        "a\r\nb",
        "a\u2028b",
        "a\x0bb",
        "a\x85b",
        "a\0b",
        "مرحبا بالعالم",
        "你好世界",
        "Z\u0351\u036b",
        "\u202eabc",
        "e\u0301",
        "\ufeffa",
        "1",
        "1e308",
        "nan",
        "inf",
        "-0",
        "1 2 3 4 5",
        "word " * 150,
        "x" * 3000,
        "a a a a",
        "the the",
        "A MAN RUNS",
        "-lrb- a",
        "a man runs.",
        "a" + " " * 2000 + "b",
        "don't can't",
        "a/b/c",
        "http://a.b/c?d=e",
        "<b>a</b>",
        "&amp; a",
        "a\tb",
        "$5.00",
        "U.S.A.",
        "...a",
        "`` a ''",
    ],
    "nothing": [
        "",
        " ",
        "😀 😀",
        "\t",
        "\n",
        "\u00a0",
        "\u3000",
        ".",
        "...",
        "?!",
        "-",
        "--",
        "''",
        "``",
        ",",
        ";",
        ":",
    ],
}


def test_scores_of_odd_captions(tmp_path, quick_meteor):
    """Through all four metrics, as captions and as references: a score is a finite number, or
    the call is refused in a sentence."""
    pytest.importorskip("pycocoevalcap")
    plain, calls = "a man runs fast", {}
    odd = {name: a_tenth(texts, sort_of_text) for name, texts in ODD_CAPTIONS.items()}

    def call(kind: str, pairs: list[tuple[str, str]]) -> None:
        pairs = [*pairs, (plain, plain)]
        calls[kind] = [tmp_path/f"{kind}.{side}.json" for side in ("said", "known")], len(pairs)
        for path, content in zip(
            calls[kind][0],
            (
                {str(n): said for n, (said, _) in enumerate(pairs)},
                {str(n): [known] for n, (_, known) in enumerate(pairs)},
            ),
        ):
            path.write_text(json.dumps(content))

    # METEOR is slow
    first, second = (odd["words"],) * 2 if SCALE > 1 else (odd["words"][::2], odd["words"][1::2])
    call(
        "words and nothing",
        [*((text, plain) for text in first + odd["nothing"]), *((plain, text) for text in second)],
    )
    if SCALE > 1:
        call("words twice", [(text, text) for text in odd["words"]])
    call("no reference", [(plain, text) for text in odd["nothing"]])

    def job(name):
        (said, known), _ = calls[name]
        try:
            scores = json.loads(obeyed("score", said, "--references", known, "--json"))["scores"]
        except PickNetError as error:
            raise PickNetError(f"{name}: {error}") from error
        assert all(0 <= score <= 10.1 for score in scores.values()), scores

    # Java reserves more than it uses
    found = in_children(job, list(calls), 4 * PATIENCE, room=None, parent=True)
    outcomes = Outcomes()
    outcomes.peak = found.peak
    for name, outcome in found.items():
        outcomes |= {(name, number): outcome for number in range(calls[name][1] - 1)}
    settle("score, odd captions", outcomes)
    assert all(
        outcome == (REFUSED if name == "no reference" else READ) for name, outcome in found.items()
    )


# runs: models from elsewhere, resumed training
# ------------------------------------------------------------------------


def test_models_from_elsewhere(toy, tmp_path):
    "A run folder that was copied, with anything wrong in it, through to a caption."

    def job(path):
        said = json.loads(obeyed("caption", toy.film, "--run", path, "--json"))
        assert isinstance(said["caption"], str) and all(
            0 <= each <= 1 for each in said["probabilities"]
        )

    paths = folder_variants(
        toy.run,
        ("run.json", "config.json", "vocabulary.json", "weights.safetensors"),
        tmp_path/"runs",
        10,
        every=17,
    )
    commands("models, run folders", job, paths, good_film=True)
    commands(
        "models, many broken ones",
        lambda path: obeyed("caption", toy.film, "--run", path),
        [tmp_path/"runs"],
    )


def test_resumed_training_notices_damage(toy, tmp_path):
    """A stopped run with one file damaged or edited is refused, or ends with the very weights of
    the run that was left alone."""

    def job(path):
        obeyed("train", path, "--resume")
        assert (path/"weights.safetensors").read_bytes() == toy.weights, (
            "other weights, and not a word"
        )
        obeyed("caption", toy.film, "--run", path, "--json")

    early = folder_variants(
        toy.folder/"early",
        ("checkpoint.pt", "config.json", "run.json", "vocabulary.json"),
        tmp_path/"early",
        8,
        every=34,
    )
    late = folder_variants(
        toy.folder/"late",
        ("checkpoint.pt", "supervision.safetensors", "reinforcement.safetensors", "log.jsonl"),
        tmp_path/"late",
        4,
    )
    # a bit inside a tensor is another number: not promised
    late = [path for path in late if "damaged" not in path.name or "safetensors" not in path.name]
    commands("train --resume, run folders", job, [*early, *late], good_film=True)


def checkpoint_variants(toy: Toy, folder: Path) -> list[Path]:
    "A checkpoint with something else in one place, written again: its checksums are right."
    stored = lambda name: torch.load(toy.folder / name/"checkpoint.pt", weights_only=True)
    odd = [*ODD, torch.zeros(3), torch.full((), torch.nan), -torch.inf, 10**9]
    paths = []

    def places(value, here=()):
        inside = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        return [here, *(place for key, each in inside for place in places(each, (*here, key)))]

    for name in ("early", "late"):
        every = places(stored(name))[1:]
        drawn = random.Random(f"{SEED}0").sample(every, min(len(every), 35 * SCALE))
        for number, place in a_tenth(list(enumerate(drawn))):
            paths.append(folder/f"{name}_{number}_{'.'.join(map(str, place))[:60]}")
            shutil.copytree(toy.folder / name, paths[-1], ignore=shutil.ignore_patterns(".lock*"))
            new = odd[number % len(odd)]
            torch.save(
                changed(stored(name), place, new, number % 5 == 0), paths[-1]/"checkpoint.pt"
            )
    return paths


def test_resumed_training_from_edited_checkpoints(toy, tmp_path):
    """Whoever writes a checkpoint may teach the model anything; what is no checkpoint is
    refused, and nothing raises."""

    def job(path):
        obeyed("train", path, "--resume")
        obeyed("caption", toy.film, "--run", path, "--json")

    commands(
        "train --resume, edited checkpoints",
        job,
        checkpoint_variants(toy, tmp_path),
        good_film=True,
    )


def test_resumed_training_notices_other_data(toy, tmp_path):
    "One file of the corpus damaged or edited between a stop and going on."
    sources = folder_variants(
        toy.corpus,
        ("corpus.json", "captions.json", "videos.safetensors"),
        tmp_path/"corpora",
        6,
        every=51,
    )
    paths = []
    # only a short cut: most are counted again
    sources += folder_variants(toy.corpus, ("words.json",), tmp_path/"words", 3, every=500)
    for number, corpus in enumerate(sources):
        paths.append(tmp_path/"runs"/f"{number}_{corpus.name}")
        shutil.copytree(toy.folder/"early", paths[-1], ignore=shutil.ignore_patterns(".lock*"))
        about = json.loads((paths[-1]/"run.json").read_text())
        about["details"]["opened"]["data"] = str(corpus)
        (paths[-1]/"run.json").write_text(json.dumps(about))
    corpora = dict(zip(paths, sources))

    def job(path):
        try:
            obeyed("train", path, "--resume")
        except PickNetError as error:
            assert str(path) in str(error) or str(corpora[path]) in str(error), f"unnamed: {error}"
            raise PickNetError(f"{path}: {error}") from error
        assert (path/"weights.safetensors").read_bytes() == toy.weights, (
            "other weights, and not a word"
        )

    commands("train --resume, other data", job, paths, good_film=True)


def test_weights_of_a_cnn_from_elsewhere(toy, tmp_path):
    "Damaged weights are refused by the command that is given them."
    state, contents = {"layer.weight": torch.randn(8, 6), "layer.bias": torch.randn(8)}, {}
    torch.save(state, tmp_path/"weights.pth")
    for seed in a_tenth(range(24 * SCALE)):
        contents[f"{seed}.pth"] = damage((tmp_path/"weights.pth").read_bytes(), seed)

    def job(path):
        obeyed(
            "prepare",
            "videos",
            "--captions",
            tmp_path/"captions.json",
            "--videos",
            tmp_path/"videos",
            "--out",
            tmp_path/"out" / path.name,
            "--cnn",
            "resnet18",
            "--weights",
            path,
        )

    films = {f"{number}.mp4": toy.film.read_bytes() for number in range(4)}
    write_all(tmp_path/"videos", films)
    (tmp_path/"captions.json").write_text(
        json.dumps({Path(name).stem: ["a man runs"] for name in films})
    )
    assert commands("weights, damaged", job, write_all(tmp_path/"weights", contents))[
        REFUSED
    ] == len(contents)


# the page
# --------------------------------------------------------------------------------------------------


def shown(page: Explorer) -> str:
    "Everything that a page shows, as HTML."
    texts, todo = [], [page.page]
    while todo:
        widget = todo.pop()
        texts += [
            value
            for value in (getattr(widget, name, "") for name in ("value", "description"))
            if isinstance(value, str) and type(widget).__name__ == "HTML"
        ]
        todo += getattr(widget, "children", ())
    return "\n".join(texts)


def test_the_page_opens_whatever_lies_in_its_folder(films, toy, tmp_path):  # noqa: F811
    "Damaged clips beside a good one, captions with markup in them, names of every kind."
    pytest.importorskip("ipywidgets")
    paths = []
    for name, content in damaged_films(films, "page", 1).items():
        paths.append(tmp_path/f"film_{name}")
        write_all(
            paths[-1],
            {
                name: content,
                "good.mp4": toy.film.read_bytes(),
                "captions.json": b'{"good": ["a <b>man</b> runs <script>alert(1)</script>"]}',
            },
        )
    for each in edited({"good": ["a man runs"], "other": ["x"]}, 4):
        paths.append(tmp_path/f"captions_{len(paths)}")
        write_all(paths[-1], {"good.mp4": toy.film.read_bytes(), "captions.json": each})
    for number, name in enumerate(ODD_NAMES if SCALE > 1 else ODD_NAMES[::4]):
        paths.append(tmp_path/f"name_{number}")
        write_all(
            paths[-1],
            {f"{name}.mp4": toy.film.read_bytes(), "z.mp4": damage(films["h264.mp4"], number)},
        )

    def job(path):
        page = Explorer(toy.run, path, device="cpu")
        for name in page.exploration.library.names:
            page.controls["clip"].value = name
            assert "<script" not in shown(page) and "<b>man" not in shown(page)

    commands("explore, folders", job, a_tenth(paths, lambda path: path.name.partition("_")[0]))


def test_uploads_of_any_content(films, toy, tmp_path):  # noqa: F811
    pytest.importorskip("ipywidgets")
    paths = write_all(tmp_path/"uploads", damaged_films(films, "upload", 4))
    folder = tmp_path/"library"
    write_all(folder, {"good.mp4": toy.film.read_bytes()})
    page = Explorer(toy.run, folder, device="cpu")

    def job(path):
        page.exploration.upload(str(path), path.read_bytes())
        assert 0 <= page.exploration.moment().probability <= 1
    commands("explore, uploads", job, paths)


# bombs
# --------------------------------------------------------------------------------------------------


def long_index(content: bytes, samples: int) -> bytes:
    "An MP4 whose index claims so many samples in one run: nothing in it grows but three numbers."
    changed, number = bytearray(content), samples.to_bytes(4, "big")
    sizes, times, chunks = (content.index(box) + 4 for box in (b"stsz", b"stts", b"stsc"))
    changed[sizes + 4:sizes + 12] = (1).to_bytes(4, "big") + number     # of one byte each
    changed[times + 4:times + 12] = (1).to_bytes(4, "big") + number     # all with the same duration
    changed[chunks + 4:chunks + 16] = (1).to_bytes(4, "big") * 2 + number  # all in the first chunk
    return bytes(changed)


def run_that_claims(toy: Toy, folder: Path, **claims) -> Path:
    "The run with other numbers in its settings, in both places that note them."
    shutil.copytree(toy.run, folder)
    config, about = (
        json.loads((folder / name).read_text()) for name in ("config.json", "run.json")
    )
    for group in (part for part in config.values() if isinstance(part, dict)):
        group |= {name: value for name, value in claims.items() if name in group}
    about["settings"] = about.get("settings", {}) | claims
    about |= {name: value for name, value in claims.items() if name in about}
    (folder/"config.json").write_text(json.dumps(config))
    (folder/"run.json").write_text(json.dumps(about))
    return folder


def test_bombs_at_their_real_size(toy, data, tmp_path):
    """Small files that would unpack to gigabytes: each is refused by the command that is given
    it, in a process that may not take them."""
    wide = (3 << 30) // 8
    features = [
        zip_bomb(
            tmp_path/"zeros.npz",
            {f"{name}.npy": (npy_head((8, wide // 4)), 3 << 30) for name in "abc"},
        )
    ]
    if h5py := pytest.importorskip("h5py"):
        with h5py.File(tmp_path/"zeros.h5", "w") as file:
            for name in "abc":
                file.create_dataset(name, (8, 100_000_000), "f4", chunks=(1, 1 << 20))
        features.append(tmp_path/"zeros.h5")
    weights = zip_bomb(
        tmp_path/"zeros.pth", {"zeros/data.pkl": (b"", 2 << 30), "zeros/data/0": (b"", 3 << 30)}
    )
    films = write_all(
        tmp_path/"films",
        {
            f"{samples}.mp4": long_index(toy.film.read_bytes(), samples)
            for samples in (85_000_000, 165_000_000, 2**31 - 1, 2**32 - 1)
        },
    )  # noqa: F811
    runs = [
        run_that_claims(toy, tmp_path / name, **claims)
        for name, claims in {
            "frames": {"frames": 1_000_000},
            "hidden": {"hidden": 25_000},
            "words": {"max_words": 10**9},
            "wide": {"word_embedding": 10**6, "feature_embedding": 10**6},
            "policy": {"policy_hidden": 10**6},
            "dims": {"feature_dims": 10**9, "glance_dims": 10**9},
        }.items()
    ]
    shutil.copytree(toy.folder/"early", stopped := tmp_path/"stopped")
    shutil.copy(weights, stopped/"checkpoint.pt")
    (long := tmp_path/"long.json").write_text(json.dumps({"a": "a dog " * 17_000}))
    (deep := tmp_path/"deep.json").write_text("[" * 10_000_000)
    splits = ("--splits", data/"abc_splits.json", "--set", "frames=8")
    calls = {
        **{
            path: (
                "prepare",
                "features",
                "--features",
                path,
                "--captions",
                data/"abc.json",
                *splits,
                "--out",
                tmp_path/"out",
            )
            for path in features
        },
        weights: (
            "prepare",
            "videos",
            "--captions",
            data/"captions.json",
            "--videos",
            data/"videos",
            "--out",
            tmp_path/"features",
            "--cnn",
            "resnet18",
            "--weights",
            weights,
        ),
        **{run: ("caption", toy.film, "--run", run) for run in runs},
        stopped: ("train", stopped, "--resume"),
        long: ("score", long, "--references", long),
        deep: (
            "prepare",
            "features",
            "--features",
            data/"features.npz",
            "--captions",
            deep,
            *splits,
            "--out",
            tmp_path/"deep",
        ),
    }
    for path in films:
        for name, call in {
            "caption": ("--run", toy.run),
            "stream": ("--run", toy.run),
            "draw": ("--run", toy.run, "--gif", tmp_path/"film.gif"),
        }.items():
            calls[f"{path} {name}"] = ("caption" if name == "draw" else name, path, *call)

    def job(name):
        try:
            obeyed(*calls[name])
        except PickNetError as error:
            path = str(name).removesuffix(" caption").removesuffix(" stream").removesuffix(" draw")
            assert path in str(error), f"unnamed: {error}"
            raise PickNetError(f"{name}: {error}") from error

    some = a_tenth(calls, lambda name: (calls[name][0], Path(str(name)).suffix))
    counts = each_command("bombs", job, some)
    # a video may be read as far as it goes
    assert counts[REFUSED] >= sum(not isinstance(name, str) for name in some)
