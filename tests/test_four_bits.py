"""CLIP in four bits: what is stored, what the errors cost, and models that share a captioner."""
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from picknet_nb.core.files import PickNetError
from picknet_nb.data.backbones import WeightsError, load_backbone
from picknet_nb.data.clip import Tower
from picknet_nb.data.four_bits import (
    BUNDLED_CLIP, GROUP, in_four_bits, packed, read_four_bits, rounded, save_four_bits, step_of,
    unpacked)
from picknet_nb.training.cards import describe_model, find_model, models, read_card
from picknet_nb.training.runs import (
    RunError, load_run, newest_weights, read_about, stored_weights)
from picknet_nb.use.many import model_digest

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
    weight, found = (net.blocks[0].mlp.fc1.weight[:, :GROUP] for net in (tower, simple))
    step = step_of(weight)[:, None]
    assert torch.allclose(found, (weight / step).round() * step)  # each to its nearest value
    layers = [layer for layer in simple.blocks.modules() if isinstance(layer, nn.Linear)]
    assert len(layers) == 8
    assert all(torch.equal(weight, before[name]) for name, weight in tower.state_dict().items())


def test_the_bundled_network_is_the_one_that_was_measured_and_that_everyday_was_set_up_with():
    measured = json.loads((ROOT/"data/results/four_bits.json").read_text())
    backbone = load_backbone("clip-4bit")
    assert backbone.weights == measured["weights"]
    assert backbone.weights == read_about(find_model("everyday"))["details"]["weights"]
    assert BUNDLED_CLIP.stat().st_size == measured["bytes"] < 50e6
    rows = {row["network"]: row["cosine"] for row in measured["rows"]}
    assert rows["four bits, one column after another"] > 0.9 > rows[
        "four bits, each weight by itself"]
    assert f"mean cosine of {rows['four bits, one column after another']}" in read_card(
        find_model("everyday"))


# models that share a captioner
# ---------------------------------------------------------------------------------------------


def test_everyday_speaks_with_the_captioner_of_sharp():
    everyday, sharp = find_model("everyday"), find_model("sharp")
    assert newest_weights(everyday) == sharp/"weights.safetensors"
    found, stored = load_run(everyday)[0].state_dict(), stored_weights(sharp/"weights.safetensors")
    assert all(torch.equal(weight, stored[name].to(weight.dtype))
               for name, weight in found.items())
    own = sum(path.stat().st_size for path in everyday.glob("*.safetensors"))
    assert describe_model(everyday).megabytes == round(
        (own + (sharp/"weights.safetensors").stat().st_size) / 1e6, 1)


def test_weights_are_shared_with_bundled_models_alone(tmp_path):
    everyday = shutil.copytree(find_model("everyday"), tmp_path/"everyday")
    about = json.loads((everyday/"run.json").read_text())
    for name in ("../bundled/sharp", "nobody", str(tmp_path/"everyday")):
        (everyday/"run.json").write_text(json.dumps(about | {"weights_of": name}))
        with pytest.raises(PickNetError, match="no bundled model"):
            newest_weights(everyday)
    (everyday/"run.json").write_text(json.dumps(about | {"weights_of": ["sharp"]}))
    with pytest.raises(RunError, match="weights_of"):
        newest_weights(everyday)


def test_the_digest_of_a_model_depends_on_weights_wherever_they_are(tmp_path):
    everyday = shutil.copytree(find_model("everyday"), tmp_path/"everyday")
    shared = model_digest(everyday)
    own = stored_weights(find_model("sharp")/"weights.safetensors")
    own["policy.compare.bias"] = own["policy.compare.bias"] + 1
    save_file(own, everyday/"weights.safetensors")
    assert model_digest(everyday) != shared
    other = model_digest(everyday)
    # of a run on its way
    (everyday/"weights.safetensors").rename(everyday/"supervision.safetensors")
    with pytest.warns(UserWarning, match="not finished"):
        assert model_digest(everyday) == other


def test_every_bundled_model_is_described_without_its_weights():
    assert {"everyday", "sharp", "shapes"} == set(models())
