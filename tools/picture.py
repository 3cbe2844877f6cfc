"The picture of the method, nbs/images/method.png: the running clip glanced at, picked from, read and described. An untrained policy picks."
import torch
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from picknet_nb.policy import Policy, glance_differences, last_picks
from picknet_nb.shapes import describe, example_corpus, example_story
from picknet_nb.video import PICK_GREEN, glance, read_clip

GREY, PALE, PALE_GREEN = "#666666", "#f3f3f3", "#e8f5ec"
LEFT, RIGHT, STEP = 1.9, 13.3, 1.155  # the columns of the ten frames


def image(axes, picture, left: float, top: float, picked: bool = False) -> None:
    "A frame, a glance or a difference, one unit wide; boxed where it was picked."
    axes.imshow(picture, extent=(left, left + 1, top + 1, top), cmap="gray", vmin=0, vmax=255)
    axes.add_patch(Rectangle((left, top), 1, 1, fill=False, edgecolor=PICK_GREEN if picked else "#b0b0b0", lw=3.5 if picked else 0.5))


def box(axes, text: str, left: float, top: float, right: float, bottom: float, colour: str = GREY, fill: str = PALE) -> None:
    "A part of the method with its equations."
    axes.add_patch(FancyBboxPatch((left, top), right - left, bottom - top, boxstyle="round,pad=0,rounding_size=0.12", facecolor=fill, edgecolor=colour, lw=1.5))
    axes.text((left + right) / 2, (top + bottom) / 2, text, ha="center", va="center", fontsize=11)


def arrow(axes, start, end, colour: str = GREY, **how) -> None:
    "From one part to the next."
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=colour, lw=1.6, shrinkA=0, shrinkB=0, **how))


def columns(axes, frames, glances, picks, chances) -> None:
    "Frame, glance, difference to the last pick and p(pick), one column for each frame."
    differences = (127.5 + 127.5 * glance_differences(glances, glances[last_picks(picks)])).view(-1, 56, 56)
    axes.plot([LEFT - 0.05, RIGHT + 0.05], [4.35, 4.35], color="black", lw=0.7, ls=":")
    for i, left in enumerate(LEFT + STEP * i for i in range(len(frames))):
        image(axes, frames[i].permute(1, 2, 0), left, 0, bool(picks[i]))
        image(axes, glances[i].view(56, 56), left, 1.15)
        image(axes, differences[i], left, 2.3)
        axes.bar(left + 0.5, -1.1 * chances[i], width=0.55, bottom=4.9, color=PICK_GREEN if picks[i] else "#b0b0b0", zorder=3)
        if picks[i]:
            arrow(axes, (left + 0.5, 5.0), (left + 0.5, 5.55), PICK_GREEN)
            arrow(axes, (left + 0.5, 6.15), (left + 0.5, 6.6))
    for height, text in ((0.5, "frame"), (1.65, "glance"), (2.8, "difference to\nthe last pick"), (4.35, "PickNet\n(12–14):\np(pick)")):
        axes.text(1.65, height, text, ha="right", va="center", fontsize=11)


def draw():
    "The whole picture, with every third frame of the clip."
    torch.manual_seed(3)  # one that happens to see both moments: this is an illustration, not a result
    clip, world = read_clip("data/example.mp4", frames=30, size=224), example_corpus(24).glances[:, ::3]
    frames = clip.frames[::3]
    policy, glances = Policy().calibrate(world, wanted=4.5, spread=4.0), glance(frames)
    picks = policy.rollout(glances[None])[0]
    figure = pyplot.figure(figsize=(11.2, 6.7), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    box(axes, "", LEFT - 0.05, 3.65, RIGHT + 0.05, 4.98, PICK_GREEN, PALE_GREEN)
    columns(axes, frames, glances, picks, policy.probabilities(glances[None], picks[None])[0].tolist())
    box(axes, "CNN, frozen: picked frames only", LEFT - 0.05, 5.55, RIGHT + 0.05, 6.15)
    box(axes, "LSTM (1–6): one step for each picked frame", LEFT - 0.05, 6.6, RIGHT + 0.05, 7.2)
    box(axes, "reward (15–17): caption, diversity, limits", LEFT - 0.05, 7.65, 6.7, 8.25)
    box(axes, "GRU (7–11): word by word", 9.3, 7.65, RIGHT + 0.05, 8.25)
    arrow(axes, (11.3, 7.2), (11.3, 7.65))
    axes.text(11.45, 7.43, "$\\mathbf{v}$", va="center", fontsize=12)
    arrow(axes, (9.3, 7.95), (6.7, 7.95))
    axes.text(8.0, 8.45, f"“{describe(example_story())[0]}”", ha="center", va="center", fontsize=11, style="italic")
    arrow(axes, (LEFT - 0.05, 7.95), (1.0, 5.0), PICK_GREEN, connectionstyle="angle,angleA=180,angleB=90,rad=8")
    axes.text(0.85, 6.5, "REINFORCE (19–24)", ha="right", va="center", fontsize=11, rotation=90)
    axes.set(xlim=(0.1, 13.6), ylim=(8.75, -0.15), aspect="equal")
    axes.axis("off")
    return figure


if __name__ == "__main__":
    draw().savefig("nbs/images/method.png", facecolor="white")
