"""Put CLIP's image tower into four bits: the weights of the backbone clip-4bit.

python tools/four_bits.py clip-vit-b16.safetensors --clips training --held-out validation

Each matrix is rounded one column after another, and what that changes is made good by the columns
after it (data/21_four_bits). What the layers see comes from single frames of the clips in --clips.
How well the result agrees with CLIP itself is measured on frames of other clips, --held-out, beside
networks that are simpler to have: each weight rounded by itself, and CLIP with smaller pictures.
The weights go to --out, what was measured to data/results/four_bits.json. A quarter of an hour on
two cores.
"""
from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from picknet_nb.core.files import write_whole
from picknet_nb.data.backbones import load_backbone, weights_origin
from picknet_nb.data.clip import MEAN, STD, Tower
from picknet_nb.data.extraction import ClipShape, decode_files, list_videos
from picknet_nb.data.four_bits import (
    BUNDLED_CLIP, in_four_bits, new_tower, rounded, save_four_bits, unpacked)
from picknet_nb.measure.experiments import circumstances

ROOT = Path(__file__).resolve().parent.parent
SMALLER = 160  # pixels, of the pictures that are compared with
BATCH = 8


def single_frames(folders: list[Path], count: int, seed: int) -> Tensor:  # uint8 (n, 3, 224, 224)
    "One random frame of each of so many random clips."
    draw = random.Random(seed)
    videos = sorted(item for folder in folders for item in list_videos(folder).items())
    chosen = draw.sample(videos, min(count, len(videos)))
    clips = tqdm(decode_files(chosen, ClipShape(30, 224), 2), "frames", len(chosen))
    frames = {clip.name: clip.frames for clip in clips if not clip.reason}
    return torch.stack([frames[name][draw.randrange(30)] for name, _ in chosen if name in frames])


def images_of(frames: Tensor, side: int = Tower.image_size) -> Tensor:
    "Frames as CLIP takes them, of another size if asked for."
    images = frames.float() / 255
    if side != frames.shape[-1]:
        images = F.interpolate(images, side, mode="bilinear", antialias=True)
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@torch.no_grad()
def features_of(tower: nn.Module, images: Tensor, label: str) -> Tensor:
    return torch.cat([tower(some) for some in tqdm(images.split(BATCH), label)])


@torch.no_grad()
def for_smaller_pictures(tower: Tower, side: int) -> Tower:
    "The same network with its positions resized like a picture."
    tower, patch = copy.deepcopy(tower), tower.patch_embed.proj.kernel_size[0]
    own, grid = tower.pos_embed[:, :1], tower.pos_embed[:, 1:].transpose(1, 2)
    grid = grid.unflatten(2, (Tower.image_size // patch, -1))
    grid = F.interpolate(grid, side // patch, mode="bicubic", antialias=True)
    tower.pos_embed = nn.Parameter(torch.cat([own, grid.flatten(2).transpose(1, 2)], 1))
    return tower


@torch.no_grad()
def each_by_itself(tower: Tower) -> Tower:
    "Every weight of the blocks rounded to its nearest value, as if inputs had nothing in common."
    tower = copy.deepcopy(tower)
    for layer in tower.blocks.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(unpacked(*rounded(layer.weight, torch.eye(layer.in_features))))
    return tower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="of CLIP ViT-B/16, .safetensors or .pth")
    parser.add_argument("--clips", type=Path, action="append", required=True)
    parser.add_argument("--held-out", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, default=BUNDLED_CLIP)
    parser.add_argument("--pictures", type=int, default=160, help="frames for rounding")
    parser.add_argument("--compared", type=int, default=120, help="frames for the comparison")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tower = new_tower().eval()
    known = load_backbone("clip-vit-b16", given.weights, fast=False).body.net.net
    tower.load_state_dict(known.state_dict())
    seen = images_of(single_frames(given.clips, given.pictures, given.seed))
    whole, turned = sum(2 * weight.numel() for weight in tower.parameters()), copy.deepcopy(tower)
    small = in_four_bits(turned, seen)
    save_four_bits(small, given.out, {
        "network": "CLIP ViT-B/16's image tower (OpenAI, MIT), rounded",
        "pictures": f"{len(seen)} frames of training clips"})
    print(given.out, flush=True)
    frames = single_frames(given.held_out, given.compared, given.seed)
    images = images_of(frames)
    wanted = features_of(tower, images, "CLIP")
    mean, std, rows = wanted.mean(0), wanted.std(0).clamp(min=1e-6), []

    def compare(label: str, size: float, found: Tensor) -> None:
        standard = [(each - mean) / std for each in (found, wanted)]
        half = tower.dims // 2
        cosine = lambda part: round(F.cosine_similarity(
            *(each[:, part] for each in standard)).mean().item(), 3)
        rows.append({"network": label, "MB": round(size / 1e6, 1), "cosine": cosine(slice(None)),
                     "class token": cosine(slice(half)), "patches": cosine(slice(half, None))})
        print(rows[-1], flush=True)

    label = f"pictures of {SMALLER} × {SMALLER}"
    compare(label, whole, features_of(
        for_smaller_pictures(tower, SMALLER), images_of(frames, SMALLER), label))
    size, simple = sum(weight.nbytes for weight in small.values()), each_by_itself(tower)
    compare("four bits, each weight by itself", size, features_of(simple, images, "by itself"))
    compare("four bits, one column after another", size, features_of(turned, images, "in turn"))
    write_whole(ROOT/"data"/"results"/"four_bits.json", json.dumps({
        "kind": "backbone", "what": "mean cosine of standardised features to those of CLIP "
        "ViT-B/16 itself, single frames of clips that were not used for rounding",
        "command": "python tools/four_bits.py clip-vit-b16.safetensors --clips training "
        "--held-out validation", **circumstances("cpu"), "weights": weights_origin(
            given.out, "clip-4bit"), "bytes": given.out.stat().st_size,
        "pictures for rounding": len(seen), "pictures compared": len(frames), "rows": rows},
        indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
