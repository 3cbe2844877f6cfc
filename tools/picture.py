"""The pictures of the front page, made by trained models.

python tools/picture.py method             nbs/images/method.png: the shared clip of the course,
    as the model of lesson 14 glances at it, picks from it and captions it
python tools/picture.py caption CLIP       nbs/images/caption.jpg: what the bundled model picks
    of a real clip, a test clip of MSVD
python tools/picture.py explorer CLIP      nbs/images/explorer.png: the page of `picknet explore`
    with the clip of the moving picture (needs a Chromium)
"""
import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from picknet_nb.core.figures import PICK_GREEN
from picknet_nb.core.files import file_digest, write_whole
from picknet_nb.data.glance import glance
from picknet_nb.method.policy import glance_differences
from picknet_nb.training.models import find_model
from picknet_nb.training.runs import newest_weights, read_about
from picknet_nb.use.loading import load
from picknet_nb.world.shapes import draw_clip, example_story

GREY, PALE, PALE_GREEN = "#666666", "#f3f3f3", "#e8f5ec"
LEFT, RIGHT, STEP = 1.9, 13.3, 1.155  # the columns of the ten frames


def image(axes, picture, left: float, top: float, picked: bool = False) -> None:
    "A frame, a glance or a difference, one unit wide; boxed where it was picked."
    axes.imshow(picture, extent=(left, left + 1, top + 1, top), cmap="gray", vmin=0, vmax=255)
    axes.add_patch(
        Rectangle(
            (left, top),
            1,
            1,
            fill=False,
            edgecolor=PICK_GREEN if picked else "#b0b0b0",
            lw=3.5 if picked else 0.5,
        )
    )


def box(
    axes,
    text: str,
    left: float,
    top: float,
    right: float,
    bottom: float,
    colour: str = GREY,
    fill: str = PALE,
) -> None:
    "A part of the method with its equations."
    axes.add_patch(
        FancyBboxPatch(
            (left, top),
            right - left,
            bottom - top,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=fill,
            edgecolor=colour,
            lw=1.5,
        )
    )
    axes.text((left + right) / 2, (top + bottom) / 2, text, ha="center", va="center", fontsize=11)


def arrow(axes, start, end, colour: str = GREY, **how) -> None:
    "From one part to the next."
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=13,
            color=colour,
            lw=1.6,
            shrinkA=0,
            shrinkB=0,
            **how,
        )
    )


def columns(axes, frames, glances, before, picks, chances) -> None:
    "Frame, glance, difference to the last pick and p(pick), one column for each frame."
    differences = (127.5 + 127.5 * glance_differences(glances, before)).view(-1, 56, 56)
    axes.plot([LEFT - 0.05, RIGHT + 0.05], [4.35, 4.35], color="black", lw=0.7, ls=":")
    for i, left in enumerate(LEFT + STEP * i for i in range(len(frames))):
        image(axes, frames[i].permute(1, 2, 0), left, 0, bool(picks[i]))
        image(axes, glances[i].view(56, 56), left, 1.15)
        image(axes, differences[i], left, 2.3)
        axes.bar(
            left + 0.5,
            -1.1 * chances[i],
            width=0.55,
            bottom=4.9,
            color=PICK_GREEN if picks[i] else "#b0b0b0",
            zorder=3,
        )
        if picks[i]:
            arrow(axes, (left + 0.5, 5.0), (left + 0.5, 5.55), PICK_GREEN)
            arrow(axes, (left + 0.5, 6.15), (left + 0.5, 6.6))
    for height, text in (
        (0.5, "frame"),
        (1.65, "glance"),
        (2.8, "difference to\nthe last pick"),
        (4.15, "PickNet\n(12–14):\np(pick)"),
    ):
        axes.text(1.65, height, text, ha="right", va="center", fontsize=11)


def some_of(picks, count: int = 10) -> list[int]:
    "The picked frames, and as many others, evenly spaced, as there is room for."
    picked = picks.nonzero().flatten().tolist()
    others = [place for place in range(len(picks)) if place not in picked]
    room = count - len(picked)
    return sorted(
        picked + [others[(2 * number + 1) * len(others) // (2 * room)] for number in range(room)]
    )


def line(axes, *points, colour: str = GREY) -> None:
    "An arrow with corners: straight from point to point, its head at the last one."
    axes.plot(*zip(*points[:-1]), color=colour, lw=1.6, solid_joinstyle="round")
    arrow(axes, points[-2], points[-1], colour)


def draw(found: dict):
    "The whole picture: ten frames of the shared clip, as the trained model of the course sees it."
    picks = torch.zeros(30, dtype=torch.bool).index_fill(0, torch.tensor(found["picks"]), True)
    every = torch.from_numpy(draw_clip(example_story()))
    glances = glance(every)
    # each frame is compared with
    last = torch.tensor(
        [max((pick for pick in found["picks"] if pick < place), default=0) for place in range(30)]
    )
    shown = some_of(picks)
    figure = pyplot.figure(figsize=(11.2, 7.35), dpi=150)
    axes = figure.add_axes((0, 0, 1, 1))
    box(axes, "", LEFT - 0.05, 3.65, RIGHT + 0.05, 4.98, PICK_GREEN, PALE_GREEN)
    columns(
        axes,
        every[shown],
        glances[shown],
        glances[last][shown],
        picks[shown],
        [found["p"][place] for place in shown],
    )
    box(axes, "CNN, frozen: picked frames only", LEFT - 0.05, 5.55, RIGHT + 0.05, 6.15)
    box(axes, "LSTM (1–6): one step for each picked frame", LEFT - 0.05, 6.6, RIGHT + 0.05, 7.2)
    box(axes, "reward (15–17):\nCIDEr + diversity, within limits", LEFT - 0.05, 7.65, 6.7, 8.55)
    box(axes, "GRU (7–11): word by word", 9.3, 7.8, RIGHT + 0.05, 8.4)
    arrow(axes, (11.3, 7.2), (11.3, 7.8))
    axes.text(11.45, 7.5, "$\\mathbf{v}$", va="center", fontsize=12)
    arrow(axes, (9.3, 8.1), (6.7, 8.1))
    axes.text(8.0, 7.95, "caption", ha="center", va="bottom", fontsize=11)
    axes.text(11.3, 8.7, f"“{found['caption']}”", ha="center", va="center", fontsize=11,
              style="italic")
    box(axes, "references: what people wrote", LEFT - 0.05, 8.95, 6.7, 9.4)
    arrow(axes, (4.3, 8.95), (4.3, 8.55))
    line(axes, (LEFT - 0.05, 5.85), (1.5, 5.85), (1.5, 7.9), (LEFT - 0.05, 7.9))
    axes.text(1.42, 6.9, "features", ha="right", va="center", fontsize=11, rotation=90)
    line(axes, (LEFT - 0.05, 8.3), (0.85, 8.3), (0.85, 4.82), (LEFT - 0.05, 4.82),
         colour=PICK_GREEN)
    axes.text(0.77, 6.5, "REINFORCE (19–24)", ha="right", va="center", fontsize=11, rotation=90)
    axes.set(xlim=(0.1, 13.6), ylim=(9.5, -0.15), aspect="equal")
    axes.axis("off")
    return figure


def draw_method() -> None:
    "The method at work, as lesson 14 stored it: picks, p(pick) and caption after stage three."
    result = Path("data/results/course_stages.json")
    runs = json.loads(result.read_text(encoding="utf-8"))["runs"]
    found = runs[0]["after"]["stage three"]
    draw(found).savefig("nbs/images/method.png", facecolor="white")
    shown = {name: found[name] for name in ("caption", "picks", "p")}
    note("method", result=result.name, **shown)


def note(picture: str, **facts) -> None:
    "Write down what a picture was made with, so that a test notices when that has changed."
    path = Path("data/results/front_page.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"kind": "pictures"}
    known[picture] = facts
    write_whole(path, json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def made_with(model: str) -> dict:
    "A bundled model by its name, its weights and those of the network that it sees with."
    folder = find_model(model)
    return {"model": model, "weights": file_digest(newest_weights(folder)),
            "sees with": read_about(folder)["details"]["weights"]}


def draw_caption(path: Path, people: str) -> None:
    """The picks of the bundled model on a real clip, and a note of its caption, for the
    front page."""
    from picknet_nb.use.drawing import save_strip

    found = load().caption(path)
    save_strip(found, Path("nbs/images/caption.jpg"))
    note("caption", **made_with("everyday"), clip=path.stem, caption=found.text, people=people,
         times=found.times)


def draw_explorer(path: Path) -> None:
    "A screenshot of the page with a real clip."
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, "tools")
    from chromium import find_chromium

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as clips,
          sync_playwright() as playwright):
        shutil.copy(path, clips)
        serving = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "picknet_nb.interface.main",
                "explore",
                "--port",
                str(port),
                "--no-browser",
                "--videos",
                clips,
            ],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_CACHE_HOME": cache},
        )
        address = next(
            word
            for line in serving.stdout
            for word in line.split()
            if word.startswith("http") and "token=" in word
        )
        page = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox"]
        ).new_page(viewport={"width": 1180, "height": 900})
        page.goto(address, timeout=300_000)
        page.locator(".pn-strip").first.wait_for(timeout=300_000)
        handle = page.locator(".noUi-handle").last
        handle.focus()
        for _ in range(9):  # to a frame that differs from the last pick
            handle.press("ArrowRight")
            page.wait_for_timeout(150)
        page.wait_for_timeout(4000)
        page.screenshot(path="nbs/images/explorer.png")
        serving.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", choices=("method", "caption", "explorer"))
    parser.add_argument("clip", nargs="?", type=Path)
    parser.add_argument("--people", default="", help="what somebody said about the clip")
    given = parser.parse_args()
    if given.picture == "caption":
        return draw_caption(given.clip, given.people)
    if given.picture == "method":
        return draw_method()
    draw_explorer(given.clip)
    note("explorer", **made_with("everyday"), clip=given.clip.stem)


if __name__ == "__main__":
    main()
