"""What a caption costs with all frames and with picked frames only, part by part. Equality first,
then time.

python benchmarks/cost.py [--out data/results/cost.json] [--device cuda] [--cnn resnet152]
"""
from __future__ import annotations

import argparse
import json
from importlib.util import find_spec

import torch
from common import ROOT, device_name, origin, write_result

from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import load_backbone
from picknet_nb.method.captioner import caption, make_captioner
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.method.policy import Policy
from picknet_nb.measure.cost import measure_cost, speed_up


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
