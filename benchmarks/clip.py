"""CLIP ViT-B/16 on a CPU in float32: ways to the same features, and frames at a time.

    OMP_NUM_THREADS=1 python benchmarks/clip.py

CPU seconds of one thread for a frame, the least of several turns in which all ways take part, so
that what else runs on the machine disturbs all of them. Weights are random: a product takes as
long whatever it multiplies. What was measured goes to data/results/benchmark_clip.json.
"""
from __future__ import annotations

import argparse
import copy
import time

import torch
from common import ROOT, origin, write_result
from torch import Tensor, nn

from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.clip import FoldedMLP


class OneDnnLinear(nn.Module):
    "A linear layer as oneDNN computes it, with what comes after it in the same pass."

    def __init__(self, plain: nn.Linear, then: str = "none"):
        super().__init__()
        self.weight, self.bias, self.then = plain.weight, plain.bias, then

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.then, [], "")


class OneDnnMLP(nn.Module):
    "A folded MLP whose activation is part of the first product."

    def __init__(self, folded: FoldedMLP, both: bool):
        super().__init__()
        self.fc1 = OneDnnLinear(folded.fc1, "swish")
        self.fc2 = OneDnnLinear(folded.fc2) if both else folded.fc2

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


def all_ways() -> dict[str, nn.Module]:
    "The same network in several forms."
    plain = load_backbone("clip-vit-b16", "random", fast=False).body
    ways = {"plain": plain, "folded activation": load_backbone("clip-vit-b16", "random").body}
    for name, both in (("and oneDNN with the activation inside", False),
                       ("and oneDNN for all products", True)):
        ways[name] = copy.deepcopy(ways["folded activation"])
        for block in ways[name].net.net.blocks:
            block.mlp = OneDnnMLP(block.mlp, both)
            if both:
                block.attn.qkv = OneDnnLinear(block.attn.qkv)
                block.attn.proj = OneDnnLinear(block.attn.proj)
    return ways


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out", default=ROOT/"data"/"results"/"benchmark_clip.json")
    given = parser.parse_args()
    torch.manual_seed(0)
    images, ways, least = torch.rand(12, 3, 224, 224), all_ways(), {}

    def timed(name, net: nn.Module, frames: int) -> Tensor:
        begin = time.process_time()
        found = torch.cat([net(some) for some in images.split(frames)])
        taken = (time.process_time() - begin) / len(images)
        least[name] = min(taken, least.get(name, taken))
        return found

    for _ in range(given.turns):
        found = {name: timed(name, net, 6) for name, net in ways.items()}
        for frames in (1, 3, 12):
            timed(frames, ways["folded activation"], frames)
    least[6] = least["folded activation"]
    write_result(given.out, {
        "kind": "benchmark", **origin("cpu"),
        "ways": {name: {"seconds_per_frame": round(least[name], 4),
                        "difference": (found[name] - found["plain"]).abs().max().item()}
                 for name in ways},
        "batches": {str(frames): round(least[frames], 4) for frames in (1, 3, 6, 12)},
    })


if __name__ == "__main__":
    main()
