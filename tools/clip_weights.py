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

from picknet_nb.data.clip import from_hugging_face


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
