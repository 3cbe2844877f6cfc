"""CLIP's image tower: timm's network with weights from a file or from timm's hub, under timm's
names or OpenAI's."""
import sys
import zipfile
from dataclasses import replace
from urllib.error import HTTPError

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from typer.testing import CliRunner

from conftest import noise_corpus
from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.data import backbones, clip
from picknet_nb.data.backbones import WeightsError, load_backbone
from picknet_nb.data.clip import ClipVision, known_as
from picknet_nb.interface.main import app
from picknet_nb.method.recipes import recipes
from picknet_nb.training import cards
from picknet_nb.training.models import export_model
from picknet_nb.training.train import train
from picknet_nb.world.world import write_examples

timm = pytest.importorskip("timm")

SMALL = dict(zip(clip.SIZES, (16, 2, 2, 32)))  # width, heads, depth, patch
OPENAI = {"norm_pre": "ln_pre", "blocks": "transformer.resblocks", "norm1": "ln_1",
          "norm2": "ln_2", "attn.qkv.": "attn.in_proj_", "attn.proj": "attn.out_proj",
          "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "patch_embed.proj": "conv1"}


@pytest.fixture
def tower():
    "A small network of timm's, as CLIP's."
    torch.manual_seed(0)
    net = timm.create_model(clip.TIMM, num_classes=0, **SMALL).eval()
    for weight in net.parameters(): weight.data += 0.1 * torch.randn_like(weight)
    return net


@pytest.fixture
def state(tower) -> dict:
    return {name: weight.half() for name, weight in tower.state_dict().items()}


@pytest.fixture
def small(monkeypatch):
    for name, value in SMALL.items(): monkeypatch.setitem(clip.SIZES, name, value)


def as_openai(state: dict) -> dict:
    "The same weights as OpenAI names them, with some of a text tower."
    named = {"visual.proj": torch.randn(16, 4), "transformer.resblocks.0.ln_1.bias": torch.ones(3),
             "positional_embedding": torch.ones(2, 3)}
    for name, weight in state.items():
        if name.startswith("norm."): name = name.replace("norm.", "ln_post.")
        for ours, theirs in OPENAI.items(): name = name.replace(ours, theirs)
        if name == "cls_token": name, weight = "class_embedding", weight.flatten()
        if name == "pos_embed": name, weight = "positional_embedding", weight[0]
        named[f"visual.{name}"] = weight.contiguous()
    return named


@pytest.fixture
def hub(monkeypatch, state):
    "What timm gets from its hub; it counts how often it is asked."
    from timm.models import _builder
    asked = []
    monkeypatch.setattr(backbones, "_reachable", lambda address: True)
    monkeypatch.setattr(_builder, "has_hf_hub", lambda **_: True)
    monkeypatch.setattr(_builder, "load_state_dict_from_hf",
                        lambda name, *_, **__: asked.append(name) or dict(state))
    return asked


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    "No network, and nothing in the cache of the hub's library."
    from huggingface_hub import constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path/"hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return constants


def test_names_of_timm_and_openai_give_one_network(small, state, hub, tmp_path):
    safetensors.torch.save_file(state, tmp_path/"timm.safetensors")
    safetensors.torch.save_file(as_openai(state), tmp_path/"openai.safetensors")
    torch.save(as_openai(state), tmp_path/"openai.pth")
    frames = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    fetched = load_backbone("clip-vit-b16")
    assert hub == ["timm/vit_base_patch16_clip_224.openai"] and fetched.dims == 32
    for name in ("timm.safetensors", "openai.safetensors", "openai.pth"):
        other = load_backbone("clip-vit-b16", tmp_path/name)
        assert torch.equal(other(frames), fetched(frames)) and other.weights == fetched.weights


def test_the_feature_is_the_class_token_and_the_mean_of_the_patches(tower):
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        found, tokens = ClipVision(tower)(images), []
        tower.blocks[-1].register_forward_hook(lambda _, __, made: tokens.append(made))
        normed = tower.forward_features(images)
    assert_close(found[:, :16], normed[:, 0])
    assert_close(found[:, 16:], tokens[0][:, 1:].mean(1))


def test_gelu_in_place_of_quick_gelu_is_another_network(tower):
    trap = "vit_base_patch16_clip_224.openai"
    other = timm.create_model(trap, num_classes=0, **SMALL).eval()
    images = torch.rand(1, 3, 224, 224)
    other.load_state_dict(tower.state_dict())  # it loads, and nothing complains
    with torch.no_grad():
        gap = other.forward_features(images) - tower.forward_features(images)
    assert gap.abs().max() > 1e-4


def test_without_a_network_one_sentence_says_what_to_do(small, no_hub):
    with pytest.raises(WeightsError, match="cannot be fetched .*--weights") as one:
        load_backbone("clip-vit-b16")
    assert "\n" not in str(one.value) and no_hub.HF_HUB_OFFLINE is False


def test_an_answer_of_any_status_is_a_network(monkeypatch):
    def answer(*_, **__): raise HTTPError("address", 403, "no", {}, None)
    monkeypatch.setattr(backbones, "urlopen", answer)
    assert backbones._reachable("http://127.0.0.1:9")


def test_without_timm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PickNetError, match=r'CLIP.* pip install "picknet_nb\[clip\]"'):
        load_backbone("clip-vit-b16")


def test_openais_own_file_is_named_for_what_it_is(small, tmp_path):
    with zipfile.ZipFile(path := tmp_path/"ViT-B-16.pt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"): archive.writestr(f"clip/{name}", b"\x80\x02).")
    with pytest.raises(WeightsError, match="ViT-B-16.pt: .*it is a TorchScript file .*code"):
        load_backbone("clip-vit-b16", path)


def test_weights_of_another_network_are_named(small, tmp_path):
    safetensors.torch.save_file({"conv1.weight": torch.ones(3)}, tmp_path/"other.safetensors")
    with pytest.raises(WeightsError, match="other.safetensors: .*another network.*--backbone"):
        load_backbone("clip-vit-b16", tmp_path/"other.safetensors")


def test_copies_with_rounded_matrices_are_known_as_the_same(tower):
    before = known_as(tower)
    tower.blocks[0].attn.qkv.weight.data += 1e-3
    assert known_as(tower) == before
    tower.norm.weight.data += 1e-2
    assert known_as(tower) != before


def test_half_precision_stays_close(tower):
    images, plain = torch.rand(2, 3, 224, 224), ClipVision(tower)
    with torch.no_grad():
        quick = clip.HalfPrecision(plain, torch.device("cpu"))(images)
        assert quick.dtype == torch.float32
        assert F.cosine_similarity(quick, plain(images)).min() > 0.999


def test_the_folded_activation_gives_the_same_features(small, state, tmp_path):
    safetensors.torch.save_file(state, tmp_path/"tower.safetensors")
    frames = torch.randint(0, 256, (3, 3, 60, 80), dtype=torch.uint8)
    plain, quick = (load_backbone("clip-vit-b16", tmp_path/"tower.safetensors", fast=fast)
                    for fast in (False, None))
    kinds = [isinstance(cnn.body.net.net.blocks[0].mlp, clip.FoldedMLP) for cnn in (plain, quick)]
    assert kinds == [False, True] and plain.weights == quick.weights
    assert_close(quick(frames), plain(frames), rtol=1e-4, atol=1e-5)


# a bundled model whose backbone is fetched
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def sharp(small, state, tower, tmp_path, monkeypatch):
    "A bundled model on features of the small tower, a clip, and the command."
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    corpus = noise_corpus(videos=16)
    tower.load_state_dict(state)
    corpus = replace(corpus, settings=replace(corpus.settings, cnn="clip-vit-b16"),
                     details={"weights": known_as(tower)})
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0)
    train(tmp_path/"run", corpus, config, recipes()["PickNet (V+L)"], bars=False)
    export_model(tmp_path/"run", tmp_path/"bundled"/"sharp")
    write_examples(tmp_path/"clips", 1)
    (video,) = (tmp_path/"clips").glob("*.mp4")
    return lambda *more: CliRunner().invoke(app, [
        "caption", str(video), "--model", "sharp", *map(str, more)])


def test_sharp_without_weights_and_network_says_in_one_sentence_what_to_do(sharp, no_hub):
    done = sharp()
    assert done.exit_code == 1 and isinstance(done.exception, WeightsError)
    sentence = str(done.exception)
    assert "\n" not in sentence and "cannot be fetched" in sentence and "--weights" in sentence


def test_sharp_captions_with_fetched_weights_and_with_those_of_a_file(sharp, hub, state, tmp_path):
    fetched = sharp()
    assert fetched.exit_code == 0 and "frame" in fetched.output, fetched.output
    safetensors.torch.save_file(as_openai(state), tmp_path/"brought.safetensors")
    brought = sharp("--weights", tmp_path/"brought.safetensors")
    assert brought.stdout == fetched.stdout and "brought.safetensors holds F16" in brought.stderr
    other = {name: weight + 1 for name, weight in state.items()}
    safetensors.torch.save_file(other, tmp_path/"other.safetensors")
    done = sharp("--weights", tmp_path/"other.safetensors")
    assert done.exit_code == 1 and "features made with other weights" in str(done.exception)
