"""Our ResNet-50 features of 300 real MSVD clips beside those that another program made of the same
clips.

    python benchmarks/features_agreement.py --frames 3 --out data/results/features_agreement.json

The stored ones keep the root of each number in steps of 1/30, so two right answers differ by up to
half a step. They were made from FFmpeg's default conversion to RGB; `read_clip` interpolates colour
more finely. Both are measured: the first shows that the network is the same, the second what the
conversion is worth. Needs PyAV, and the files under data/msvd and data/weights.
"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from common import ROOT, origin, write_result
from torch.nn import functional as F
from tqdm import tqdm

from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.video import read_clip, spaced


def read_plain(path: Path, chosen: list[int]) -> torch.Tensor:
    "Frames in FFmpeg's default conversion to RGB, as most programs take them."
    import av

    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    order = spaced(len(frames), 30)
    return torch.stack(
        [
            torch.from_numpy(frames[order[i]].to_ndarray(format="rgb24")).permute(2, 0, 1)
            for i in chosen
        ]
    )


class Agreement:
    "How far features are from stored ones, summed over clips."

    def __init__(self):
        self.cosine, self.error, self.same, self.near, self.count = [], [], 0, 0, 0

    def add(self, ours: torch.Tensor, steps: torch.Tensor, scale: float) -> None:
        theirs, off = (steps / scale) ** 2, (ours.sqrt() * scale - steps).abs()
        self.cosine += F.cosine_similarity(ours, theirs).tolist()
        self.error += ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).tolist()
        self.same = self.same + (off <= 0.5).sum().item()
        self.near = self.near + (off <= 1.5).sum().item()
        self.count += off.numel()

    def result(self) -> dict:
        return {
            "cosine, mean": float(np.mean(self.cosine)),
            "cosine, least": min(self.cosine),
            "relative error, mean": float(np.mean(self.error)),
            "relative error, most": max(self.error),
            "share in the same step": self.same / self.count,
            "share within one step": self.near / self.count,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--frames", type=int, default=3, help="of the 30, equally spaced")
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"features_agreement.json"
    )
    options = parser.parse_args()
    data, device = ROOT/"data", "cuda" if torch.cuda.is_available() else "cpu"
    cnn = load_backbone(
        "resnet50", data/"weights"/"resnet50_imagenet_rgbnorm_fp16.safetensors", device
    )
    stored = np.load(data/"msvd"/"clips300_resnet50.npz")
    ids, codes, scale = stored["ids"], stored["q"], float(stored["scale"])
    chosen = torch.linspace(0, 29, options.frames).round().long().tolist()
    places = range(0, len(ids), max(1, len(ids) // options.clips))
    plain, ours = Agreement(), Agreement()
    for number in tqdm(places):
        path = data/"msvd"/"clips300"/f"{ids[number]}.mp4"
        # (frames, dims), the root of the feature times `scale`
        steps = torch.from_numpy(codes[number].T.copy()).float()[chosen]
        plain.add(cnn(read_plain(path, chosen)).cpu(), steps, scale)
        ours.add(cnn(read_clip(path).frames[chosen]).cpu(), steps, scale)
    result = {
        "what": "ResNet-50 features beside stored ones (6 bits a number)",
        "cnn": cnn.name,
        "clips": len(places),
        "frames of each": options.frames,
        "FFmpeg's default colours": plain.result(),
        "read_clip": ours.result(),
        **origin(),
    }
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
