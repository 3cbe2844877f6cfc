"""A CNN from decoded frames to features: plain eager float32 beside faster ways, in one run.

    python benchmarks/features.py --out data/results/benchmark_features.json
    python benchmarks/features.py --cnn efficientnet-lite0 --out data/results/benchmark_lite0.json

With a GPU: ResNet-152 at 224x224, several batch sizes. Without one: ResNet-18 at a small size, only
to see that it runs. EfficientNet-Lite0 is made for CPUs: the thirty frames of a clip, on as many
threads as OMP_NUM_THREADS says. Every way is held against strict float32 before it is timed.
Weights are random: a product of matrices takes as long whatever it computes. The result is written
after every row, so that a run that is cut short keeps what it measured.
"""
from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import torch
import torchvision
from common import ROOT, median_ms, origin, write_result
from torch import Tensor, nn
from torch.nn import functional as F

from picknet_nb.data.backbones import Backbone, FastResNet, Folded, Normalised, ResNet
from picknet_nb.data.efficientnet import EfficientNetLite0, folded

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
NAME, SIDE, BATCHES = ("resnet152", 224, (256, 512, 1024)) if CUDA else ("resnet18", 64, (8,))


def make_plain() -> ResNet:
    "A ResNet with random weights whose activations stay in the range of a trained one."
    torch.manual_seed(0)
    net = torchvision.models.get_model(NAME, weights=None)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    for block in (
        block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage
    ):
        # a block adds a little to what enters it
        (block.bn3 if hasattr(block, "bn3") else block.bn2).weight.data.fill_(0.2)
    return ResNet(net).eval().requires_grad_(False).to(DEVICE)


class Half(nn.Module):
    "A ResNet in bfloat16, batch normalisation and all."

    def __init__(self, plain: ResNet, channels_last: bool):
        super().__init__()
        self.order = torch.channels_last if channels_last else torch.contiguous_format
        self.net = copy.deepcopy(plain.net).to(torch.bfloat16, memory_format=self.order)
        self.register_buffer("mean", plain.mean.clone())
        self.register_buffer("std", plain.std.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.net(
            ((images - self.mean) / self.std).to(torch.bfloat16, memory_format=self.order)
        ).float()


class Unfused(FastResNet):
    "Folded, but bias, sum and ReLU in passes of their own unless a compiler joins them."

    def forward(self, images: Tensor) -> Tensor:
        x = ((images - self.mean) / self.std).to(
            self.stem.weight.dtype, memory_format=torch.channels_last
        )
        x = self.pool(self.step(self.stem, x))
        for block in self.blocks:
            plus = (
                x if block.down is None else F.conv2d(x, block.down.weight, None, *block.down.place)
            )
            for step in block.steps[:-1]:
                x = self.step(step, x)
            x = self.step(block.steps[-1], x, plus)
        return x.float().mean((2, 3))

    @staticmethod
    def step(folded: Folded, x: Tensor, plus: Tensor | None = None) -> Tensor:
        y = F.conv2d(x, folded.weight, folded.bias, *folded.place)
        return F.relu(y if plus is None else y + plus)


class Products(FastResNet):
    """Fused, with the 1x1 convolutions that open a block as matrix products with bias and ReLU
    in their epilogue."""

    def forward(self, images: Tensor) -> Tensor:
        x = ((images - self.mean) / self.std).to(
            self.stem.weight.dtype, memory_format=torch.channels_last
        )
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            x = self.pool(self.stem(x))
            for block in self.blocks:
                plus = (
                    x
                    if block.down is None
                    else F.conv2d(x, block.down.weight, None, *block.down.place)
                )
                for step in block.steps[:-1]:
                    x = (
                        self.product(step, x)
                        if step.weight.shape[2:] == (1, 1) and step.place[0] == (1, 1)
                        else step(x)
                    )
                x = block.steps[-1](x, plus)
            return x.float().mean((2, 3))

    @staticmethod
    def product(folded: Folded, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        # a view: the order in memory is the same
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        out = torch._addmm_activation(folded.bias, rows, folded.weight.flatten(1).t())
        return out.view(n, height, width, -1).permute(0, 3, 1, 2)


def half(kind: type[FastResNet], plain: ResNet) -> FastResNet:
    "One of the folded networks in bfloat16 on CUDA."
    net = kind(copy.deepcopy(plain).cpu()).eval().requires_grad_(False).to(DEVICE)
    return net.tuned() if CUDA else net


def make_lite0() -> Normalised:
    "EfficientNet-Lite0 with random weights and statistics."
    torch.manual_seed(0)
    net = EfficientNetLite0()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    body = Normalised(net, [0.498] * 3, [0.502] * 3)
    body.dims = net.dims
    return body.eval().requires_grad_(False).to(DEVICE)


def lite0_ways(plain: Normalised) -> list[tuple[str, int, callable, dict]]:
    "Folding and the order in memory, one by one and together."
    last = lambda body: copy.deepcopy(body).to(memory_format=torch.channels_last)
    first = lambda body: copy.deepcopy(body).to(memory_format=torch.contiguous_format)
    return [
        (way, batch, make, {})
        for batch in ((30, 512) if CUDA else (30,))
        for way, make in (
            ("plain", lambda: plain),
            ("channels last", lambda: last(plain)),
            ("folded", lambda: first(folded(plain))),
            ("folded, channels last (load_backbone's fast way)", lambda: folded(plain)),
        )
    ]


def about(name: str, side: int) -> dict:
    return {"what": f"{name} from uint8 frames {side}x{side} to features", **origin(),
            "cudnn": torch.backends.cudnn.version() if CUDA else None, "weights": "random"}


def ways(plain: ResNet) -> list[tuple[str, int, callable, dict]]:
    """Name, batch size, how to make it, and how long one may wait before starting it (compiling
    takes a minute or more)."""
    first, middle = BATCHES[0], BATCHES[len(BATCHES) // 2]
    rows = [
        ("eager float32, TF32 off", first, lambda: plain, {"tf32": False}),
        ("eager float32, PyTorch's defaults", first, lambda: plain, {}),
        ("eager bfloat16", first, lambda: Half(plain, False), {}),
        ("eager bfloat16, channels last", first, lambda: Half(plain, True), {}),
        ("folded, bfloat16, channels last", middle, lambda: half(Unfused, plain), {}),
    ]
    rows += [
        ("fused (load_backbone's fast way)", batch, lambda: half(FastResNet, plain), {})
        for batch in BATCHES
    ]
    if CUDA:
        rows += [
            ("fused, opening 1x1 as products", batch, lambda: half(Products, plain), {})
            for batch in BATCHES[-2:]
        ]
        rows += [
            (
                "torch.compile, folded",
                middle,
                lambda: torch.compile(half(Unfused, plain), dynamic=False),
                {"before": 90},
            ),
            (
                "torch.compile, bfloat16, channels last",
                middle,
                lambda: torch.compile(Half(plain, True), dynamic=False),
                {"before": 110},
            ),
            (
                "torch.compile max-autotune-no-cudagraphs, folded",
                middle,
                lambda: torch.compile(
                    half(Unfused, plain), dynamic=False, mode="max-autotune-no-cudagraphs"
                ),
                {"before": 130},
            ),
        ]
    return rows


def measure(
    make, batch: int, frames: Tensor, reference: Tensor, tf32: bool, repeats: int, flops: float
) -> dict:
    """Check one way against the reference, then time it with frames on the device and from
    pinned memory."""
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    net = Backbone("net", make(), reference.shape[1], frames.shape[-1], batch=batch)
    begin = time.perf_counter()
    here = frames[:batch].to(DEVICE)
    found = net(here)[: len(reference)].float()
    reference = reference[: len(found)]
    if CUDA:
        torch.cuda.synchronize()
    start = time.perf_counter() - begin
    row = {
        "batch": batch,
        "relative error": ((found - reference).norm() / reference.norm()).item(),
        "cosine": F.cosine_similarity(found, reference).min().item(),
        "seconds to start": round(start, 1),
    }
    row["frames/s"] = round(1000 * batch / median_ms(lambda: net(here), DEVICE, repeats, 2))
    if CUDA:
        host = frames[:batch].pin_memory()
        row["frames/s from pinned memory"] = round(
            1000 * batch / median_ms(lambda: net(host), DEVICE, repeats, 2)
        )
        row["TFLOP/s"] = round(row["frames/s"] * flops / 1e12, 1)
        row["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cnn", choices=["resnet", "efficientnet-lite0"], default="resnet")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=8 if CUDA else 3)
    parser.add_argument(
        "--seconds", type=float, default=170, help="start no further row after this long"
    )
    options, begin = parser.parse_args(), time.perf_counter()
    lite0 = options.cnn != "resnet"
    out = options.out or ROOT/"data"/"results" / (
        "benchmark_lite0.json" if lite0 else "benchmark_features.json"
    )
    plain, name, side = (make_lite0(), options.cnn, 224) if lite0 else (make_plain(), NAME, SIDE)
    # two for each of 0.385 and of 11.51 G multiply-adds a frame
    flops = 0.77e9 if lite0 else 23.03e9
    rows = (lite0_ways if lite0 else ways)(plain)
    frames = torch.randint(
        0,
        256,
        (max(row[1] for row in rows), 3, side, side),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    torch.backends.cudnn.allow_tf32 = False
    reference = Backbone("reference", plain, plain.dims, side)(
        frames[: 64 if CUDA else 8].to(DEVICE)
    )
    result = {**about(name, side), "rows": []}
    for name, batch, make, how in rows:
        gone = time.perf_counter() - begin
        if gone > min(options.seconds, how.get("before", options.seconds)):
            row = {"batch": batch, "skipped": f"{gone:.0f} s had gone"}
        else:
            try:
                if CUDA:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                row = measure(
                    make, batch, frames, reference, how.get("tf32", True), options.repeats, flops
                )
            # one way that this machine cannot go must not hide the others
            except Exception as error:
                row = {"batch": batch, "failed": f"{type(error).__name__}: {str(error)[:300]}"}
        result["rows"].append({"way": name, **row})
        result["seconds"] = round(time.perf_counter() - begin, 1)
        write_result(out, result)
        print(name, row, flush=True)


if __name__ == "__main__":
    main()
