"""Strips and renderings of captions: odd shapes, odd names, files that cannot be written."""
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

av = pytest.importorskip("av")

from toys import film

from picknet_nb.core.files import FileError
from picknet_nb.data.video_files import VideoError
from picknet_nb.method.pickers import make_picker
from picknet_nb.training.models import example_run
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.drawing import caption_strip, original_frames, render, save_strip


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=4)
    return folder


@pytest.fixture(scope="module")
def captioner(toy):
    return load_captioner(toy/"run", device="cpu")


@pytest.mark.parametrize(
    "shape",
    [
        dict(width=96, height=240),
        dict(width=320, height=96),
        dict(width=3840, height=2160, total=3),
        dict(total=2),
        dict(total=1),
    ],
    ids=["vertical", "wide", "4K", "two frames", "one frame"],
)
def test_every_shape_of_video_gets_a_caption_a_strip_and_a_rendering(captioner, tmp_path, shape):
    caption = captioner.caption(film(tmp_path/"film.mp4", **shape), beam=2, best=2)
    assert (
        caption.text
        and len(caption.n_best) == 2
        and caption.picked[0] == 0
        and len(caption.probabilities) == 30
    )
    written = [each.get_text() for each in caption_strip(caption).axes[0].texts]
    assert "bar: probability of being picked · dotted line: one half" in written[-1]
    images = caption_strip(caption).axes[0].images
    left, right, bottom, top = images[0].get_extent()
    assert (
        len(images) == 30
        and abs((right - left) / (bottom - top) - shape.get("width", 96) / shape.get("height", 96))
        < 0.02
    )
    for kind in ("gif", "mp4"):
        made = render(caption, tmp_path/f"out.{kind}", rate=4)
        with av.open(str(made)) as container:
            width, height = container.streams.video[0].width, container.streams.video[0].height
        asked = shape.get("width", 96) / shape.get("height", 96)
        assert asked * 0.5 < width / height <= asked and width <= 720  # the caption stands beneath


@pytest.mark.parametrize(
    "name",
    [
        "a film with spaces.mp4",
        "кино 映画 فيلم.mp4",
        "-dash.mp4",
        "100%.mp4",
        "a:b?.mp4",
        "'quoted\".mp4",
    ],
)
def test_odd_names_are_drawn(captioner, toy, tmp_path, name):
    path = tmp_path / name
    shutil.copy(toy/"videos"/"example.mp4", path)
    assert render(captioner.caption(path), tmp_path/f"{name}.gif", rate=2, largest=64).exists()


def test_a_rendering_that_fails_leaves_nothing_behind(captioner, toy, tmp_path):
    caption = captioner.caption(toy/"videos"/"example.mp4")
    gone = replace(caption, source=str(tmp_path/"gone.mp4"))
    with pytest.raises(FileError):
        render(gone, tmp_path/"out.mp4")
    (tmp_path/"file").touch()
    with pytest.raises(FileError, match="out.gif: cannot be written"):
        render(caption, tmp_path/"file"/"out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_are_made_for_what_is_drawn(captioner, toy, tmp_path):
    caption = captioner.caption(toy/"videos"/"example.mp4")
    assert render(caption, tmp_path/"one"/"two"/"out.gif", rate=1, largest=64).exists()
    assert save_strip(caption, tmp_path/"three"/"strip.PDF").read_bytes().startswith(b"%PDF")
    with pytest.raises(VideoError, match="strip.txt: the name of a strip must end in .png"):
        save_strip(caption, tmp_path/"strip.txt")
    (tmp_path/"file").touch()
    with pytest.raises(FileError, match="strip.png: cannot be written"):
        save_strip(caption, tmp_path/"file"/"strip.png")


def test_the_green_frame_of_a_gif_comes_with_the_picked_picture(captioner, tmp_path):
    "A quarter of a second from each pick on, and at no other time."
    path = film(tmp_path/"film.mp4", total=40, rate=10)  # four seconds, nothing green in them
    four = replace(captioner, picker=make_picker("uniform", 4))
    caption = four.caption(path)
    ticks = []  # ten a second: whether the picture has a green corner
    with Image.open(render(caption, tmp_path/"out.gif", rate=10)) as gif:
        for picture in ImageSequence.Iterator(gif):
            red, green, blue = picture.convert("RGB").getpixel((0, 0))
            # neighbours that do not differ are one picture of the file
            ticks += [green > max(red, blue) + 50] * round(picture.info["duration"] / 100)
    assert len(caption.picked) == 4 and len(ticks) in (39, 40)
    since = lambda tick: min(
        (tick / 10 - time for time in caption.times if time <= tick / 10 + 1e-3), default=9.0
    )
    assert ticks == [since(tick) < 0.25 for tick in range(len(ticks))]


def test_a_slow_video_keeps_its_length(tmp_path):
    path = film(tmp_path/"slow.mp4", total=6, rate=2)  # three seconds
    times = [time for time, _ in original_frames(path, rate=8, largest=96)]
    assert times == [tick / 8 for tick in range(21)]


def test_a_process_that_converted_pictures_itself_draws_on(captioner, tmp_path):
    "PyAV 19 keeps threads for the next conversion, which a process that is forked does not have."
    found = captioner.caption(film(tmp_path/"film.mp4"))
    av.VideoFrame(96, 64, "rgb24").reformat(format="yuv420p")
    with Image.open(render(found, tmp_path/"drawn.gif")) as drawn:
        assert drawn.n_frames > 1
