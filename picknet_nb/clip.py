"""draft"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cnn import CNN, CNNS, Normalised, WeightsError, _empty, _fit_weights, _origin, _random, read_weights


class Attention(nn.Module):
    "Self-attention: every token looks at all tokens, in several heads."

    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dims, 3 * dims), nn.Linear(dims, dims)

    def forward(self, x: Tensor) -> Tensor:  # (n, tokens, dims) -> the same shape
        n, tokens, dims = x.shape
        split = self.qkv(x).view(n, tokens, 3, self.heads, dims // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (n, heads, tokens, dims / heads)
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).reshape(n, tokens, dims))


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class MLP(nn.Module):
    def __init__(self, dims: int, inner: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dims, inner), nn.Linear(inner, dims)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(quick_gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dims), Attention(dims, heads)
        self.norm2, self.mlp = nn.LayerNorm(dims), MLP(dims, 4 * dims)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    def __init__(self, dims: int, side: int):
        super().__init__()
        self.proj = nn.Conv2d(3, dims, side, side, bias=False)

    def forward(self, images: Tensor) -> Tensor:  # (n, 3, 224, 224) -> (n, 196, dims)
        return self.proj(images).flatten(2).transpose(1, 2)


class ClipVision(nn.Module):
    image_size = 224

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12, patch: int = 16):
        super().__init__()
        self.dims, places = 2 * width, (self.image_size // patch) ** 2
        self.patch_embed = PatchEmbedding(width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, places + 1, width) * 0.02)
        self.norm_pre = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def tokens(self, images: Tensor) -> Tensor:  # (n, 3, 224, 224) -> (n, 197, 768)
        patches = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed
        return self.blocks(self.norm_pre(x))

    def forward(self, images: Tensor) -> Tensor:  # (n, 3, 224, 224) -> (n, 1536)
        x = self.tokens(images)
        return torch.cat([self.norm(x[:, 0]), x[:, 1:].mean(1)], 1).float()


MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


class Autocast(nn.Module):
    def __init__(self, body, device, kind):
        super().__init__()
        self.body, self.place, self.kind = body, device.type, kind

    def forward(self, images):
        with torch.autocast(self.place, self.kind):
            return self.body(images).float()


def faster_clip(body, device):
    return Autocast(body, device, torch.float16) if device.type == "cuda" else body


@CNNS.add("clip-vit-b16", faster=faster_clip, fast_on=("cuda",))
def _clip(weights=None) -> CNN:
    if weights == "random":
        net, origin = _random(ClipVision), "random, seed 0"
    else:
        _fit_weights(net := _empty(ClipVision), read_weights(weights)[0], weights)
        origin = _origin(weights)
    return CNN("clip-vit-b16", Normalised(net, MEAN, STD), net.dims, net.image_size, origin,
               batch=6, batch_on_cuda=480)


def timm_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    "Weights of Hugging Face's CLIPVisionModel under timm's names."
    state = {name.removeprefix("vision_model."): weight for name, weight in state.items()}
    found = {
        "cls_token": state["embeddings.class_embedding"].view(1, 1, -1),
        "pos_embed": state["embeddings.position_embedding.weight"][None],
        "patch_embed.proj.weight": state["embeddings.patch_embedding.weight"],
    }
    for ours, theirs in (("norm_pre", "pre_layrnorm"), ("norm", "post_layernorm")):
        for part in ("weight", "bias"):
            found[f"{ours}.{part}"] = state[f"{theirs}.{part}"]
    if "visual_projection.weight" in state:
        found["head.weight"] = state["visual_projection.weight"]
    number = 0
    while f"encoder.layers.{number}.layer_norm1.weight" in state:
        layer, block = f"encoder.layers.{number}", f"blocks.{number}"
        for part in ("weight", "bias"):
            found[f"{block}.attn.qkv.{part}"] = torch.cat(
                [state[f"{layer}.self_attn.{each}_proj.{part}"] for each in "qkv"])
            for ours, theirs in (("norm1", "layer_norm1"), ("norm2", "layer_norm2"),
                                 ("attn.proj", "self_attn.out_proj"),
                                 ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2")):
                found[f"{block}.{ours}.{part}"] = state[f"{layer}.{theirs}.{part}"]
        number += 1
    return found
