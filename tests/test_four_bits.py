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

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.data.backbones import WeightsError, load_backbone
from picknet_nb.data.clip import Tower
from picknet_nb.data.four_bits import (
    BUNDLED_CLIP, GROUP, in_four_bits, packed, read_four_bits, rounded, save_four_bits, step_of,
    unpacked)
from picknet_nb.data.student import in_eight_bits, in_single_precision
from picknet_nb.training import cards, runs
from picknet_nb.training.cards import (
    BUNDLED, describe_model, find_model, models, read_card)
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


# frames looked at closely, and weights in eight bits
# ---------------------------------------------------------------------------------------------


def test_the_variant_with_parts_begins_with_what_the_other_one_sees():
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, 60, 80), dtype=torch.uint8)
    plain, closely = (load_backbone(name, "random") for name in ("clip-4bit", "clip-4bit:grid"))
    assert (closely.name, closely.dims) == ("clip-4bit:grid", 18 * plain.dims // 2)
    assert torch.equal(closely(frames)[:, :plain.dims], plain(frames))
    # a part is what the tokens in its quarter of a row and a column have in common
    images = torch.rand(1, 3, 224, 224)
    tower = Tower(16, heads=2, depth=2, patch=16, grid=True).eval()
    with torch.no_grad():
        before = tower.blocks[0](tower.first_tokens(images))[0, 1:].unflatten(0, (14, 14))
        parts = tower(images)[0, 32:].unflatten(0, (4, 4, 16))
    assert torch.allclose(parts[0, 0], before[:4, :4].mean((0, 1)), atol=1e-5)
    assert torch.allclose(parts[3, 1], before[10:, 3:7].mean((0, 1)), atol=1e-5)


@pytest.mark.parametrize("name", ["clip-4bit:gird", "clip-4bit:224"])
def test_a_variant_that_does_not_exist_is_named(name):
    with pytest.raises(PickNetError, match=f"no variant '{name.partition(':')[2]}', only grid"):
        load_backbone(name)


def test_any_run_s_weights_may_be_in_eight_bits(tmp_path):
    plain = load_run(find_model("shapes"))[0].state_dict()
    run = shutil.copytree(find_model("shapes"), tmp_path/"run")
    save_file(in_eight_bits(plain), run/"weights.safetensors")
    assert (run/"weights.safetensors").stat().st_size < 0.55 * (
        find_model("shapes")/"weights.safetensors").stat().st_size
    found = load_run(run)[0].state_dict()
    for name, weight in plain.items():  # off by half a step of its row at most
        step = weight.flatten(1).abs().amax(1) / 127 if weight.dim() > 1 else torch.zeros(1)
        off = (found[name] - weight).flatten(1) if weight.dim() > 1 else found[name] - weight
        assert (off.abs() <= 0.51 * step.view(-1, *[1] * (off.dim() - 1))).all(), name
    assert any(not torch.equal(found[name], weight) for name, weight in plain.items())


@pytest.mark.parametrize("damage", ["no scale", "another scale"])
def test_eight_bits_without_their_scales_are_refused(tmp_path, damage):
    run = shutil.copytree(find_model("shapes"), tmp_path/"run")
    state = in_eight_bits(load_run(run)[0].state_dict())
    name = next(name for name in state if name.endswith(".scale"))
    if damage == "no scale": del state[name]
    else: state[name] = state[name][:-1].clone()
    save_file(state, run/"weights.safetensors")
    with pytest.raises(RunError, match="weights.safetensors"):
        load_run(run)


def test_a_weight_that_somebody_called_scale_stays():
    state = {"body.weight": torch.ones(2, 2), "body.weight.scale": torch.ones(2),
             "scale": torch.ones(1)}
    assert in_single_precision(state).keys() == state.keys()
    assert in_single_precision(in_eight_bits({"body.weight": torch.eye(2)})).keys() == {
        "body.weight"}


def test_a_captioner_is_bundled_as_the_mean_of_runs(tmp_path, monkeypatch):
    from bundle_captioner import main

    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    monkeypatch.setattr(runs, "find_model", lambda name: tmp_path/"bundled"/name)
    for name in ("sharp", "shapes"): shutil.copytree(BUNDLED/name, tmp_path/"bundled"/name)
    shared = shutil.copytree(BUNDLED/"shapes", tmp_path/"bundled"/"shared")
    about = json.loads((shared/"run.json").read_text()) | {"weights_of": "shapes"}
    (shared/"run.json").write_text(json.dumps(about))
    (shared/"weights.safetensors").unlink()
    made = []
    for number in (0, 1):
        run = shutil.copytree(BUNDLED/"shapes", tmp_path/f"run{number}")
        weights = {name: torch.randn(weight.shape) for name, weight in stored_weights(
            run/"weights.safetensors").items()}
        save_file(weights, run/"weights.safetensors")
        made.append(weights)
    policy = stored_weights(tmp_path/"bundled"/"shapes"/"weights.safetensors")
    monkeypatch.setattr(sys, "argv", [
        "bundle_captioner.py", "shapes", *(str(tmp_path/f"run{number}") for number in (0, 1))])
    main()
    found = stored_weights(tmp_path/"bundled"/"shapes"/"weights.safetensors")
    for name, weight in found.items():
        wanted = (made[0][name] + made[1][name]) / 2 if name.startswith("captioner.") else (
            policy[name].float())
        assert torch.allclose(weight.float(), wanted, atol=0.02), name
    about = json.loads((tmp_path/"bundled"/"shapes"/"run.json").read_text())
    assert about["details"]["averaged"] == 2
    load_run(tmp_path/"bundled"/"shapes")
    monkeypatch.setattr(sys, "argv", ["bundle_captioner.py", "shared", str(tmp_path/"run0")])
    main()  # it has the other one's weights still
    assert not (shared/"weights.safetensors").exists()
    assert json.loads((shared/"run.json").read_text())["weights_of"] == "shapes"
    (tmp_path/"run1"/"vocabulary.json").write_text("[]")
    monkeypatch.setattr(sys, "argv", [
        "bundle_captioner.py", "shapes", *(str(tmp_path/f"run{number}") for number in (0, 1))])
    with pytest.raises(FileError, match="other words"): main()
