"""Every line that the front page or a `--help` shows is typed here, as it stands, at a size that
takes seconds."""
import csv
import json
import re
import shlex
import shutil
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av")
pytest.importorskip("pycocoevalcap")

from test_packaging import ROOT
from toys import film, invoked

import picknet_nb as pn
from picknet_nb.core import files, settings as config
from picknet_nb.core.files import PickNetError
from picknet_nb.data import backbones as cnn
from picknet_nb.data.video import read_clip
from picknet_nb.world import world
from picknet_nb.method import recipes
from picknet_nb.training import models, train as training
from picknet_nb.use import server, streams as streaming
from picknet_nb.measure import comparison as compared, experiments, frontier, metrics, reproduction
from picknet_nb.interface import main as cli, python

QUICK = dict(
    start_from="",
    feature_embedding=16,
    word_embedding=16,
    hidden=32,
    policy_hidden=16,
    batch_size=16,
    captions_together=4,
    supervision_epochs=1,
    reinforcement_epochs=1,
    adaptation_epochs=1,
    shrink_epochs=1,
)
MINE = """
import torch
from torch import nn
from picknet_nb.method.captioner import CAPTIONERS

@CAPTIONERS.add("mean")
class Mine(nn.Module):
    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        size = settings.hidden
        self.see, self.words = nn.Linear(feature_dims, size), nn.Embedding(vocabulary_size, size)
        self.cell, self.output = nn.GRUCell(size, size), nn.Linear(size, vocabulary_size)
    def encode(self, picked):
        return self.see(picked.features.float().sum(1) / picked.mask.sum(1, keepdim=True))
    def start(self, memory): return memory
    def step(self, word, state, memory):
        state = self.cell(self.words(word), state)
        return state, self.output(state)

def pick(clips): return clips.glances.float().mean(-1) > 0
"""


def help_lines() -> list[str]:
    "The examples under the help of the command and of each of its commands."
    commands = [*cli.app.registered_commands, *cli.prepare.registered_commands]
    texts = [cli.app.registered_callback.epilog, *(command.epilog for command in commands)]
    assert all(text.startswith("Example: ") and "Exit status" in text for text in texts)
    shown = [text.removeprefix("Example: ").partition("\n")[0] for text in texts]
    return [
        part[part.index("picknet ") :].partition(", with ")[0]
        for text in shown
        for part in text.split("; ")
    ]


def front_page(*commands: str) -> list[str]:
    """The lines of the front page that begin with one of these, in its blocks and in its prose;
    what stands in tables was typed elsewhere."""
    page = (ROOT/"README.md").read_text(encoding="utf-8")
    page = "\n".join(line for line in page.splitlines() if not line.startswith("|"))
    begins = f"(?:{'|'.join(commands or ['picknet'])}) "
    shown = re.findall(rf"(?<=`)[^`\n]*\b{begins}[^`\n]+(?=`)|^{begins}.+", page, re.M)
    return [found[re.search(rf"\b{begins}", found).start() :] for found in shown]


def msvd(desk: Path, names: list[str]) -> None:
    """Clips, captions and numbers as MSVD has them; the numbers also hold for the films of one's
    own."""
    (desk/"YouTubeClips").mkdir()
    rows, numbers = [], dict(zip(names, (1, 2, 3, 4, 5, 1201, 1202, 1301, 1302)))
    for place, number in enumerate((11, 12, 13, 1211, 1212, 1311)):
        shutil.copy(desk/"holiday.mp4", desk/"YouTubeClips"/f"tube{place}_0_9.mp4")
        rows += [
            [f"tube{place}", "0", "9", "English", f"a dog runs {words}"]
            for words in ("fast", "far", "away", "home")
        ]
        numbers[f"tube{place}_0_9"] = number
    (desk/"youtube_mapping.txt").write_text(
        "".join(f"{name} vid{number}\n" for name, number in numbers.items())
    )
    with open(desk/"video_corpus.csv", "w", newline="") as file:
        csv.writer(file).writerows([["VideoID", "Start", "End", "Language", "Description"], *rows])


def msrvtt(desk: Path) -> None:
    "The same for MSR-VTT."
    (desk/"videos").mkdir()
    for file, places in {
        "train_val_videodatainfo.json": range(6),
        "test_videodatainfo.json": range(6, 8),
    }.items():
        videos = [
            {
                "video_id": f"video{each}",
                "split": ("train", "validate", "test")[min(each // 4, 1) + each // 6],
            }
            for each in places
        ]
        sentences = [
            {"video_id": each["video_id"], "caption": f"a cat {word}"}
            for each in videos
            for word in ("runs", "sleeps", "eats", "runs home")
        ]
        (desk / file).write_text(json.dumps({"videos": videos, "sentences": sentences}))
        for each in videos:
            shutil.copy(desk/"holiday.mp4", desk/"videos"/f"{each['video_id']}.mp4")


def coco(desk: Path) -> None:
    "Twenty pictures with captions, as COCO has them."
    (desk/"train2017").mkdir()
    names = {number: f"{number:012}.jpg" for number in range(20)}
    for number, name in names.items():
        Image.new("RGB", (64, 48), (9 * number, 90, 150)).save(desk/"train2017"/name)
    (desk/"captions_train2017.json").write_text(json.dumps({
        "images": [{"id": number, "file_name": name} for number, name in names.items()],
        "annotations": [{"image_id": number, "caption": "a coloured picture"} for number in names],
    }))


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    "A folder in which every file is there that an example names."
    desk = tmp_path_factory.mktemp("desk")
    for name in ("holiday.mp4", "film.mp4"):
        film(desk / name)
    names = [f"film{number}" for number in range(9)]
    for folder in ("clips", "holiday"):
        (desk / folder).mkdir()
        for name in names[: 9 if folder == "clips" else 2]:
            shutil.copy(desk/"holiday.mp4", desk / folder/f"{name}.mp4")
    said = {
        name: [
            f"a bar {verb} {way}"
            for verb in ("goes", "wanders")
            for way in ("right", "along", "over")
        ]
        for name in names
    }
    for file in ("captions.json", "references.json"):
        (desk / file).write_text(json.dumps(said))
    (desk/"said.json").write_text(json.dumps({name: each[0] for name, each in said.items()}))
    for part in (0, 1):
        np.savez(
            desk/f"vgg16_part{part}.npz",
            **{name: np.random.rand(30, 8).astype("float32") for name in names[part::2]},
        )
    msvd(desk, names)
    msrvtt(desk)
    coco(desk)
    (desk/"mine.py").write_text(MINE)
    return desk


@pytest.fixture
def quick(desk, monkeypatch, quick_everyday):
    "Everything small, nothing from outside: no network, no camera, no server that stays."
    monkeypatch.chdir(desk)
    config.preset("laptop")  # those of captioners are there from here on
    for name, usual in config.PRESETS.items():
        monkeypatch.setitem(
            config.PRESETS,
            name,
            usual.changed(
                **QUICK, **({"word_epochs": 1} if usual.training.word_epochs else {}),
                **({"patches": 0} if getattr(usual.captioner, "patches", 0) else {})),  # of tiny
        )
    monkeypatch.setattr(world, "SCALES", dict.fromkeys(world.SCALES, (8, 4, 4)))
    for module in (files, training, models, reproduction, compared, frontier):
        monkeypatch.setattr(module, "data_folder", lambda: Path("data"))
    kept = {name: recipes.ROWS[name] for name in ("Baseline", *compared.COMPARED_ROWS)}
    for name in set(recipes.ROWS) - set(kept):
        monkeypatch.delitem(recipes.ROWS, name)
    load, frames = cnn.load_backbone, read_clip("film.mp4", 8, 224)
    monkeypatch.setattr(cnn, "load_backbone", lambda name, *others: load("tiny"))
    monkeypatch.setattr(experiments, "default_workers", lambda: 1)
    opened = lambda *_, **__: zip(frames.times.tolist(), frames.frames)
    monkeypatch.setattr(streaming, "watch", partial(streaming.watch, opened=opened))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])  # every host is found
    monkeypatch.setattr(
        metrics,
        "score_many",
        lambda systems, references, *_, **__: [
            (
                name,
                metrics.Scores({"CIDEr": 0.5}, "quick", {"CIDEr": dict.fromkeys(references, 0.5)}),
            )
            for name in systems
        ],
    )  # Java takes seconds
    monkeypatch.setattr(
        server, "make_server", lambda *_: SimpleNamespace(launch_instance=lambda *_, **__: None)
    )


def type_in(line: str, desk: Path) -> None:
    "A line must succeed. A command that is only named is asked for its help."
    words = shlex.split(line.partition("#")[0])[1:]
    # whose CLIP is fetched; the command is the same for the model that comes with the package
    words = ["everyday" if word == "sharp" and words[0] == "caption" else word for word in words]
    named = words[1:] if words[:1] == ["prepare"] else words
    if len(named) <= 1 and words != ["models"] and "--help" not in words:
        words.append("--help")
    # which is called captions.json there, as another file is elsewhere
    if words[0] == "score":
        words[1] = "said.json"
    if words[0] == "train" and "--resume" not in words:
        shutil.rmtree(desk / words[1], ignore_errors=True)
    if words[0] == "export":
        shutil.rmtree(desk / words[2], ignore_errors=True)
    found = invoked(*words)
    assert found.exit_code in (0, 3) and not isinstance(found.exception, PickNetError), (
        f"{line}: {found.output}{found.exception!r}"
    )


BEFORE = ("picknet prepare videos --captions captions.json --videos clips --out data/corpora/mine",
          "picknet train runs/mine --data data/corpora/mine --preset laptop")


def test_the_examples_of_every_help(quick, desk):
    lines = help_lines()
    assert len(lines) >= 20
    order = lambda line: " prepare join" in line  # what it joins is made by the others
    for line in [*BEFORE, *sorted(lines, key=order)]:
        type_in(line, desk)


def test_the_lines_of_the_front_page(quick, desk):
    lines = front_page()
    assert {
        "picknet caption holiday.mp4",
        "picknet evaluate --model runs/mine",
        "picknet caption holiday.mp4 --model sharp",
        "picknet explore --videos clips",
        "picknet --help",
    } <= {line.partition("#")[0].strip() for line in lines}
    for line in [*BEFORE, *lines]:
        type_in(line, desk)


def test_the_python_of_the_front_page(desk, monkeypatch, quick_everyday):
    monkeypatch.chdir(desk)
    (code,) = re.findall(
        r"```python\n(import picknet_nb as pn.+?)```",
        (ROOT/"README.md").read_text(encoding="utf-8"),
        re.S,
    )
    left = {}
    exec(code, left)
    assert left["found"].text and len(left["found"].times) == 2


@pytest.mark.parametrize("data, scale", [("shapes", "small"), ("data/corpora/mine", "laptop")])
def test_a_model_is_trained_at_a_scale_that_its_data_has(data, scale, tmp_path, monkeypatch):
    "`pn.train(folder, data)` chooses as `picknet train folder --data data` does."

    class Opened(Exception): pass

    def opened(data, scale, **options):
        raise Opened(data, scale)

    monkeypatch.setattr(python, "open_data", opened)
    with pytest.raises(Opened) as asked:
        pn.train(tmp_path/"run", data, bars=False)
    assert asked.value.args == (data, scale)


def test_python_prepares_without_a_word(desk, capfd):
    "What the command says of splits drawn at random is not printed into a script's output."
    corpus = pn.prepare(
        desk/"clips", desk/"captions.json", desk/"quiet", cnn="tiny", workers=1, bars=False
    )
    assert (desk/"quiet"/"splits.json").exists() and len(corpus.splits["test"])
    assert capfd.readouterr().out == ""


def test_the_make_commands_of_the_front_page():
    targets = re.findall(r"^([a-z-]+):", (ROOT/"Makefile").read_text(), re.M)
    assert set(
        re.findall(
            r"\bmake ([a-z-]+)",
            (ROOT/"README.md").read_text(encoding="utf-8").partition("## Cite")[0],
        )
    ) - {"a", "s"} <= set(targets)
