"""What a caption costs with all frames and with picked frames only, part by part. Equality first,
then time.

python benchmarks/cost.py [--out data/results/cost.json] [--device cuda] [--cnn resnet152]

The paper counts CNN frames and nothing else. A clip also has to be decoded, and that does not get
cheaper by picking: every frame must be decoded before it can be glanced at. So five parts of one
caption are timed, with all frames and with the picked ones: decode, picker (glances and policy;
nothing when all frames are used), CNN, encoder, decoder. A picker is charged for what it looks at:
nothing, glances, or features, for which the CNN has to see every frame first. Each part is timed
alone, one call to warm up, then the median of several. What came of it:
nbs/results/08_cost.ipynb.
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.util import find_spec
from typing import Any, Callable

from common import ROOT, device_name, origin, write_result

import numpy as np
import torch
from torch import Tensor

from picknet_nb.core.figures import import_pyplot
from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.glance import glance
from picknet_nb.data.video import read_clip
from picknet_nb.method.captioner import caption, greedy, make_captioner
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.policy import Policy


def median_seconds(
    call: Callable[[], Any],
    repeats: int = 5,
    device: torch.device | str = "cpu",  # a GPU's queue is waited for before and after
) -> float:
    "Median wall-clock time of a call after one call to warm up."
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    call()
    taken = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


COST_PARTS = ("decode", "picker", "CNN", "encoder", "decoder")


def _captioning_seconds(
    images: Tensor, cnn, captioner, max_words: int, timed: Callable
) -> dict[str, float]:
    "Seconds from frames uint8 (frames, 3, height, width) to words, in three parts."
    features = cnn(images).to(images.device)[None]  # (1, frames, dims)
    every = torch.ones(features.shape[:2], dtype=torch.bool, device=images.device)
    encode = lambda: captioner.encode(pick_frames(features, every))
    memory = encode()
    return {
        "CNN": timed(lambda: cnn(images)),
        "encoder": timed(encode),
        "decoder": timed(lambda: greedy(captioner, memory, max_words)),
    }


def _picking(images: Tensor, cnn, picker) -> Callable[[], Tensor]:
    """A call that picks frames of a clip, bool (frames,), and does all the work that this picker
    needs for it."""
    nothing = torch.zeros(1, len(images), 1, device=images.device)
    seen = {
        "features": lambda: (cnn(images).to(images.device)[None], nothing),
        "glances": lambda: (nothing, glance(images)[None]),
    }
    look = seen.get(picker.looks_at, lambda: (nothing, nothing))
    return lambda: picker(Clips(*look()))[0]


@torch.no_grad()
def measure_cost(
    clip,  # path of a video, or its frames: uint8 (frames, 3, height, width)
    cnn,  # of `load_backbone`
    picker,  # of `make_picker`
    captioner,  # of `make_captioner`, in eval mode
    picks: Tensor | None = None,  # bool (frames,): keep these instead of what the picker picks
    frames: int = 30,
    max_words: int = 20,
    repeats: int = 5,
) -> dict[str, dict[str, float]]:  # {"all": seconds by part, "picked": ..., "frames": how many}
    """Seconds to caption one clip on this machine, with all frames and with picked frames only,
    part by part."""
    device = next(captioner.parameters()).device
    timed = lambda call: median_seconds(call, repeats, device)
    read = lambda: (
        clip if isinstance(clip, Tensor) else read_clip(clip, frames, cnn.image_size).frames
    )
    images = read().to(device)  # sent once, for both
    decode = 0.0 if isinstance(clip, Tensor) else timed(read)
    pick = _picking(images, cnn, picker)
    kept = images[(pick() if picks is None else picks).to(device)]
    rest = lambda some: _captioning_seconds(some, cnn, captioner, max_words, timed)
    return {
        "frames": {"all": len(images), "picked": len(kept)},
        "all": {"decode": decode, "picker": 0.0} | rest(images),
        "picked": {"decode": decode, "picker": timed(pick)} | rest(kept),
    }


def speed_up(cost: dict) -> tuple[float, float]:
    """How many times faster a caption from picked frames is: the CNN alone, which is what the
    paper counts, and in all."""
    return cost["all"]["CNN"] / cost["picked"]["CNN"], sum(cost["all"].values()) / sum(
        cost["picked"].values()
    )


def draw_cost(costs: dict[str, dict]):  # title -> what `measure_cost` gave
    "Time to a caption, all frames above picked ones, one panel for each measurement, parts apart."
    figure, axes = import_pyplot().subplots(
        1, len(costs), figsize=(4.2 * len(costs), 1.9), squeeze=False, dpi=80, layout="constrained"
    )
    shades, hatches = ("0.35", "tab:green", "0.8", "0.6", "0.95"), ("", "", "//", "..", "")
    for axis, (title, cost) in zip(axes[0], costs.items()):
        left = np.zeros(2)
        for part, shade, hatch in zip(COST_PARTS, shades, hatches):
            width = 1000 * np.array([cost["all"][part], cost["picked"][part]])
            axis.barh(
                [1, 0],
                width,
                left=left,
                color=shade,
                hatch=hatch,
                edgecolor="0.2",
                linewidth=0.5,
                label=part,
            )
            left += width
        axis.set(
            xlabel="milliseconds a clip",
            title=f"{title}: {speed_up(cost)[1]:.1f}x faster",
            yticks=[1, 0],
            yticklabels=[f"all {cost['frames']['all']}", f"{cost['frames']['picked']} picked"],
        )
        axis.title.set_fontsize(9)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7
    )
    import_pyplot().close(figure)
    return figure


def check_equal(captioner, picks: torch.Tensor, dims: int, device: str) -> bool:
    """A caption from the picked frames alone must be the caption from all frames with the picks
    as a mask."""
    features = torch.randn(8, len(picks), dims, device=device)
    masked = caption(captioner, features, picks.to(device).expand(8, -1), 20)
    alone = features[:, picks.to(device)]
    return torch.equal(
        masked,
        caption(captioner, alone, torch.ones(alone.shape[:2], dtype=torch.bool, device=device), 20),
    )


def measure(cnn_name: str, keep: int, device: str, repeats: int) -> dict:
    torch.manual_seed(0)
    cnn = load_backbone(cnn_name, weights="random", device=device)
    # weights do not change what is computed, only what is said; MSVD's vocabulary size
    captioner = (
        make_captioner(preset("paper").captioner, feature_dims=cnn.dims, vocabulary_size=5491)
        .to(device)
        .eval()
    )
    picker = make_picker("learned", policy=Policy().to(device))
    nothing = torch.zeros(1, 30, 1)
    picks = make_picker("uniform", keep)(Clips(nothing, nothing))[0]
    with torch.no_grad():
        equal = check_equal(captioner, picks, cnn.dims, device)
    decoded = find_spec("av") is not None
    clip = (
        ROOT/"data/example.mp4"
        if decoded
        else torch.randint(0, 256, (30, 3, cnn.image_size, cnn.image_size), dtype=torch.uint8)
    )
    cost = measure_cost(clip, cnn, picker, captioner, picks=picks, repeats=repeats)
    counted, in_all = speed_up(cost)
    return {
        "cnn": cnn_name,
        "device": device_name(device),
        "decoded": decoded,
        "same caption": equal,
        "cost": cost,
        "speed-up of the CNN": round(counted, 2),
        "speed-up in all": round(in_all, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=str(ROOT/"data/results/cost.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cnn", nargs="*", default=["resnet50", "resnet152"])
    parser.add_argument(
        "--keep",
        type=int,
        nargs="*",
        default=[6, 8],
        help="frames kept: the paper's 6 on MSVD and 8 on MSR-VTT",
    )
    parser.add_argument("--repeats", type=int, default=0, help="default: 50 on CUDA, 3 on a CPU")
    options = parser.parse_args()
    repeats = options.repeats or (50 if options.device == "cuda" else 3)
    rows = [
        measure(name, keep, options.device, repeats)
        for name in options.cnn
        for keep in options.keep
    ]
    result = {"kind": "cost", **origin(options.device), "rows": rows}
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
