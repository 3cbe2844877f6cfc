"Small videos, small runs and parts of one's own, for tests of everything that uses a trained run."
import functools
import itertools
import json
from pathlib import Path
from unittest.mock import patch

import torch
import typer
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from picknet_nb.core.settings import ClipSettings, preset
from picknet_nb.data.backbones import Backbone, load_backbone
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.glance import glance
from picknet_nb.data.text import Vocabulary
from picknet_nb.data.video import read_clip
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.stages import Model
from picknet_nb.training.runs import open_run, save_weights
from picknet_nb.interface import main as cli


# 40 ms, which some tests would otherwise spend a hundred times
made_once = functools.cache(typer.main.get_command)


def invoked(*words):
    "What came of a command line in this process: exit code, output, exception."
    with patch("typer.testing._get_command", made_once):
        return CliRunner().invoke(cli.app, [str(word) for word in words])


def film(path, width=96, height=96, total=20, rate=10):
    "A bright bar that wanders over a dark picture."
    import av
    import numpy as np

    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(total):
            picture = np.full((height, width, 3), 30, np.uint8)
            picture[:, number * width // total:(number + 1) * width // total] = 220
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


def endless_frames():
    "Frames of a scene that changes now and then, as long as anyone likes."
    blocks = torch.randint(
        0, 256, (12, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    pictures = blocks.repeat_interleave(24, 2).repeat_interleave(24, 3).expand(-1, 3, -1, -1)
    for number in itertools.count():
        yield pictures[number // 10 % 12]


def examples_corpus(
    videos: Path, settings: ClipSettings, vocabulary: Vocabulary | None = None
) -> Corpus:
    "The clips of a toy as a corpus: all of them for training, none for anything else."
    captions = json.loads((videos/"captions.json").read_text())
    features, glances, weights = watched(
        tuple(videos/f"{name}.mp4" for name in captions), settings
    )
    splits = {
        "train": torch.arange(len(captions)),
        "validation": torch.arange(0),
        "test": torch.arange(0),
    }
    # what is remembered stays as it is
    features, glances = (each if each is None else each.clone() for each in (features, glances))
    return Corpus.build(
        "examples",
        list(captions),
        features,
        glances,
        list(captions.values()),
        splits,
        settings,
        {"weights": weights},
        vocabulary=vocabulary,
    )


@functools.cache
def watched(
    videos: tuple[Path, ...], settings: ClipSettings
) -> tuple[torch.Tensor, torch.Tensor | None, str]:
    "What a backbone and a glance see of some clips, and the weights of the backbone."
    cnn = load_backbone(settings.cnn)
    clips = [read_clip(path, settings.frames, cnn.image_size).frames for path in videos]
    glances = (
        torch.stack([glance(each, settings.glance_size) for each in clips])
        if settings.glance == "grey"
        else None
    )
    # features: (clips, frames, dims)
    return torch.stack([cnn(each) for each in clips]), glances, cnn.weights


def store_run(folder: Path, videos: Path, recipe: Recipe = Recipe(), **changes) -> Path:
    "A run that was never trained, on the clips of a toy."
    config = preset("smoke", **changes)
    corpus = examples_corpus(videos, config.clip)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model.for_corpus(config, corpus)
        model.policy.calibrate(corpus.glances, wanted=5, spread=2.0)
    open_run(folder, corpus, config, recipe)
    save_weights(model.state_dict(), folder/"weights.safetensors")
    return folder


def undecided(run: Path) -> Path:
    """The same run with a policy that is less sure of itself, so that a threshold makes a
    difference."""
    weights = load_file(run/"weights.safetensors")
    save_weights(
        {
            name: weight * 0.2 if name.startswith("policy.decide") else weight
            for name, weight in weights.items()
        },
        run/"weights.safetensors",
    )
    return run


class Looker(nn.Module):
    "A captioner that does the least it must, and remembers every picked frame in a dictionary."

    def __init__(self, settings, feature_dims: int, vocabulary_size: int):
        super().__init__()
        self.look = nn.Linear(feature_dims, settings.hidden)
        self.word = nn.Embedding(vocabulary_size, settings.hidden)
        self.say, self.drop = nn.Linear(settings.hidden, vocabulary_size), nn.Dropout(0.5)

    def encode(self, picked):
        later = (picked.times + 1).float().log()[..., None]
        return {
            "frames": self.drop(self.look(picked.features.float()).tanh() * later),
            "mask": picked.mask,
        }

    def start(self, memory):
        return {"thought": memory["frames"][:, 0]}

    def step(self, word, state, memory):
        thought = state["thought"] + self.word(word)
        match = (memory["frames"] @ thought[..., None])[..., 0].masked_fill(
            ~memory["mask"], -torch.inf
        )
        thought = torch.tanh(thought + (match.softmax(1)[..., None] * memory["frames"]).sum(1))
        return {"thought": thought}, self.say(thought)


def brightest(k: int):
    "The frames with the brightest glances."
    return lambda clips: (lambda light: light >= light.topk(k, 1).values[:, -1:])(
        clips.glances.float().mean(-1) + torch.arange(30) * 1e-4
    )


class Colours(nn.Module):
    "The mean colour of each quarter of a picture; a network without any numbers of its own."

    def forward(self, images):
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def colours(weights=None) -> Backbone:
    "A backbone that needs one function and no line anywhere else."
    return Backbone("colours", Colours(), 12, 64)
