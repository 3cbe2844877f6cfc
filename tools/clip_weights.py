"""Convert CLIP ViT-B/16's image tower from an int8 ONNX file to safetensors with timm's key names.

    python tools/clip_weights.py clip_encoder.int8.onnx clip-vit-b16.safetensors

The file must hold OpenAI's image tower with Hugging Face's names and linear layers quantised to
int8 per output channel (MatMulInteger). The result is in half precision, 173 MB.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import safetensors.torch
import torch
from onnx import numpy_helper
from torch import Tensor

PARTS = {  # of a block: timm's name, Hugging Face's
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.proj": "self_attn.out_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def from_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    "Weights of Hugging Face's CLIPVisionModel or CLIPModel under timm's names."
    state = {name.removeprefix("vision_model."): weight for name, weight in state.items()}
    found = {
        "cls_token": state["embeddings.class_embedding"].view(1, 1, -1),
        "pos_embed": state["embeddings.position_embedding.weight"][None],
        "patch_embed.proj.weight": state["embeddings.patch_embedding.weight"],
    }
    pairs = [("norm_pre", "pre_layrnorm"), ("norm", "post_layernorm")]
    for number in range(sum(name.endswith("layer_norm1.bias") and name.startswith("encoder.")
                            for name in state)):
        layer, block = f"encoder.layers.{number}", f"blocks.{number}"
        pairs += [(f"{block}.{ours}", f"{layer}.{theirs}") for ours, theirs in PARTS.items()]
        for end in ("weight", "bias"):
            found[f"{block}.attn.qkv.{end}"] = torch.cat(
                [state[f"{layer}.self_attn.{part}_proj.{end}"] for part in "qkv"])
    found |= {f"{ours}.{end}": state[f"{theirs}.{end}"]
              for ours, theirs in pairs for end in ("weight", "bias")}
    if "visual_projection.weight" in state:
        found["head.weight"] = state["visual_projection.weight"]
    return found


def dequantised(path) -> dict[str, Tensor]:  # by Hugging Face's names
    "Every tensor of the image tower, its quantised matrices as numbers again."
    graph = onnx.load(str(path)).graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = {name: torch.tensor(value) for name, value in stored.items()
             if name.startswith("vision_model.")}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            name = node.input[1].removesuffix("_quantized")
            whole, zero, scale = (stored[name + end]
                                  for end in ("_quantized", "_zero_point", "_scale"))
            matrix = (whole.astype(np.float32) - zero.astype(np.float32)) * scale
            place = node.name[1:].replace("/MatMul_quant", "").replace("/", ".")
            found[f"{place}.weight"] = torch.tensor(matrix.T.copy())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("onnx", type=Path, help="the quantised file")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    given = parser.parse_args()
    weights = {name: weight.half().contiguous()
               for name, weight in from_hugging_face(dequantised(given.onnx)).items()}
    safetensors.torch.save_file(weights, given.out)
    print(f"{given.out}: {len(weights)} tensors, {given.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
