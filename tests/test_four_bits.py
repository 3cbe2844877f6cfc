"""CLIP in four bits: what is stored, and what the errors cost."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from picknet_nb.data.backbones import WeightsError, load_backbone
from picknet_nb.data.clip import Tower
from picknet_nb.data.four_bits import (
    BUNDLED_CLIP, GROUP, in_four_bits, packed, read_four_bits, rounded, save_four_bits, step_of,
    unpacked)
ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT/"tools"))


def test_codes_and_bytes_are_two_ways_of_writing_the_same():
    codes = torch.arange(-8, 8).repeat(4, 8)
    steps = torch.tensor([[0.5, 0.25]]).repeat(4, 1).half()
    assert packed(codes).shape == (4, 64) and packed(codes).dtype == torch.uint8
    scale = torch.tensor([0.5, 0.25]).repeat_interleave(GROUP)
    assert torch.equal(unpacked(packed(codes), steps), codes * scale)


def test_no_weight_is_further_from_its_value_than_the_making_good_needs():
    torch.manual_seed(0)
    weight, apart = torch.randn(6, 2 * GROUP), torch.eye(2 * GROUP)
    found = unpacked(*rounded(weight, apart))  # inputs have nothing to do with one another
    steps = torch.stack([step_of(group) for group in weight.split(GROUP, 1)], 1)
    assert ((found - weight).abs() <= 0.51 * steps.repeat_interleave(GROUP, 1)).all()


def test_inputs_that_never_moved_do_no_harm():
    weight, seen = torch.randn(3, GROUP), torch.zeros(GROUP, GROUP)
    seen[0, 0] = 1.0
    assert unpacked(*rounded(weight, seen)).isfinite().all()


@pytest.mark.parametrize("damage", ["steps", "shape", "kind"])
def test_a_damaged_file_is_named(tmp_path, damage):
    tower = Tower(64, heads=2, depth=1, patch=32).eval()
    state = in_four_bits(tower, torch.rand(2, 3, 224, 224))
    name = "blocks.0.mlp.fc1.weight"
    match damage:
        case "steps": del state[name]
        case "shape": state[f"{name}.steps"] = state[f"{name}.steps"][1:].clone()
        case "kind": state[name] = state[name].int()
    path = save_four_bits(state, tmp_path/"damaged.safetensors")
    with pytest.raises(WeightsError, match="damaged.safetensors.*mlp.fc1"):
        read_four_bits(path)


def test_the_tools_other_networks_are_what_they_are_called():
    from four_bits import each_by_itself, for_smaller_pictures

    torch.manual_seed(0)
    tower = Tower(64, heads=2, depth=2, patch=32).eval()
    before = {name: weight.clone() for name, weight in tower.state_dict().items()}
    small, simple = for_smaller_pictures(tower, 160), each_by_itself(tower)
    assert small(torch.rand(1, 3, 160, 160)).shape == (1, 128)
    levels = simple.blocks[0].mlp.fc1.weight[0, :GROUP].unique()
    assert 2 < len(levels) <= 16
    layers = [layer for layer in simple.blocks.modules() if isinstance(layer, nn.Linear)]
    assert len(layers) == 8
    assert all(torch.equal(weight, before[name]) for name, weight in tower.state_dict().items())


def test_the_bundled_network_is_the_one_that_was_measured():
    measured = json.loads((ROOT/"data/results/four_bits.json").read_text())
    backbone = load_backbone("clip-4bit")
    assert backbone.weights == measured["weights"]
    assert BUNDLED_CLIP.stat().st_size == measured["bytes"] < 50e6
    rows = {row["network"]: row["cosine"] for row in measured["rows"]}
    assert rows["four bits, one column after another"] > 0.9 > rows[
        "four bits, each weight by itself"]
