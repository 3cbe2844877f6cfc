"A list of short clips and broken files, and the rows that one process makes of it."
from pathlib import Path

import pytest

from picknet_nb.training.models import find_model
from picknet_nb.use.captioning import load_captioner
from picknet_nb.use.many import Speaker, rows_of
from picknet_nb.use.tables import Parts
from picknet_nb.world.shapes import make_story
from picknet_nb.world.world import write_clip

SHAPES = Speaker("shapes")


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[str]:
    "Six good clips, and four files that are none, among them one that claims 2**31 frames."
    folder = tmp_path_factory.mktemp("videos")
    for number in range(6):
        write_clip(make_story((5, number)), folder/f"{number:02}.mp4")
    content = (folder/"00.mp4").read_bytes()
    sizes = content.index(b"stsz")
    swollen = content[: sizes + 8] + b"\0\0\0\1\x7f\xff\xff\xff" + content[sizes + 16 :]
    broken = {"a": b"", "b": b"some words", "c": content[: len(content) // 2], "d": swollen}
    for name, damaged in broken.items():
        (folder/f"0{name}.mp4").write_bytes(damaged)
    return sorted(map(str, folder.glob("*.mp4")))


@pytest.fixture(scope="module")
def rows(videos) -> list[dict]:
    "What one process says about them."
    return rows_of(load_captioner(find_model("shapes")), videos, **SHAPES.options)


def read(path: Path) -> list[dict]:
    "The rows of a finished list."
    return Parts(path, {}).read(path)
