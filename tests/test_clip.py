"""CLIP's image tower against timm's, weights under three sets of names, and downloads that break
off, lie or find no network."""
import hashlib
import http.server
import threading
import zipfile
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from typer.testing import CliRunner

from conftest import noise_corpus
from picknet_nb.core.settings import preset
from picknet_nb.data import clip
from picknet_nb.data.backbones import WeightsError, load_backbone
from picknet_nb.data.clip import ClipVision, Pin, fetch_clip, known_as, read_clip, read_torchscript
from picknet_nb.world.world import write_examples
from picknet_nb.method.recipes import recipes
from picknet_nb.training import cards
from picknet_nb.training.models import export_model
from picknet_nb.training.train import train
from picknet_nb.interface.main import app

SMALL = {"width": 16, "heads": 2, "depth": 2, "patch": 32}


@pytest.fixture
def tower():
    torch.manual_seed(0)
    net = ClipVision(**SMALL).eval()
    for weight in net.parameters(): weight.data += 0.1 * torch.randn_like(weight)
    return net


@pytest.fixture
def small(monkeypatch, tmp_path):
    for name, value in SMALL.items(): monkeypatch.setitem(clip.SIZES, name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"cache"))


def as_openai(state: dict) -> dict:
    "The same weights as OpenAI names them, with some of a text tower."
    named = {"visual.proj": torch.randn(16, 4), "transformer.resblocks.0.ln_1.bias": torch.ones(3),
             "positional_embedding": torch.ones(2, 3)}
    for name, weight in state.items():
        for ours, (_, theirs) in clip._PARTS.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        if name.startswith("norm."): name = name.replace("norm.", "ln_post.")
        name = (name.replace("norm_pre", "ln_pre").replace("attn.qkv.", "attn.in_proj_")
                .replace("blocks.", "transformer.resblocks.").replace("patch_embed.proj", "conv1"))
        if name == "cls_token": name, weight = "class_embedding", weight.flatten()
        if name == "pos_embed": name, weight = "positional_embedding", weight[0]
        named[f"visual.{name}"] = weight
    return named


class Scripted(nn.Module):
    "Weights as a TorchScript file keeps them."

    def __init__(self, weights: dict):
        super().__init__()
        for name, weight in weights.items():
            *path, last = name.split(".")
            place = self
            for step in path:
                if not hasattr(place, step): place.add_module(step, nn.Module())
                place = getattr(place, step)
            place.register_buffer(last, weight.half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Hub:
    "A server with one file; it may end its first answer in the middle."

    def __init__(self, content: bytes, breaks: bool = False):
        self.content, self.breaks, self.asked, hub = content, breaks, [], self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
                hub.asked.append((self.path, start))
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start : len(content) // 2 if hub.breaks else None])
                hub.breaks = False

            def log_message(self, *_): pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server.server_port}/models"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self): return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def published(tower, tmp_path):
    "The tower as a file of OpenAI's kind, and its pin."
    path = tmp_path/"ViT-B-16.pt"
    torch.jit.save(torch.jit.script(Scripted(as_openai(tower.state_dict()))), path)
    content = path.read_bytes()
    return content, Pin("ViT-B-16.pt", hashlib.sha256(content).hexdigest(), "http://127.0.0.1:9")


def test_a_download_is_checked_converted_and_kept(small, published, tower, monkeypatch):
    content, pin = published
    monkeypatch.setattr(clip, "OPENAI", pin)
    with Hub(content) as hub:
        monkeypatch.setenv("PICKNET_CLIP_ADDRESS", hub.address)
        cnn = load_backbone("clip-vit-b16")
    assert hub.asked == [(f"/models/{pin.sha256}/ViT-B-16.pt", 0)]
    kept = [path.name for path in clip.cache_folder().iterdir() if path.name[0] != "."]
    assert kept == [clip.KEPT]
    assert_close(cnn.body.net.pos_embed, tower.pos_embed.half().float())
    again = load_backbone("clip-vit-b16")  # without a server
    frames = torch.randint(0, 256, (3, 3, 50, 60), dtype=torch.uint8)
    assert_close(again(frames), cnn(frames))


def test_a_download_that_broke_off_goes_on(small, published, tmp_path):
    content, pin = published
    with Hub(content, breaks=True) as hub:
        pin = pin._replace(address=hub.address)
        with pytest.raises(WeightsError, match="broke off after"):
            fetch_clip(pin, tmp_path/"weights")
        path = fetch_clip(pin, tmp_path/"weights")
    assert [start for _, start in hub.asked] == [0, len(content) // 2]
    assert read_clip(path)[0]["cls_token"].shape == (1, 1, 16)


def test_the_wrong_file_is_rejected(small, published, tmp_path):
    content, pin = published
    with Hub(content[:-1] + b"x") as hub:
        with pytest.raises(WeightsError, match="ViT-B-16.pt: .*SHA-256 is .* should be"):
            fetch_clip(pin._replace(address=hub.address), tmp_path/"weights")
    assert not (tmp_path/"weights"/clip.KEPT).exists()
    assert not list((tmp_path/"weights").glob("*.partial"))


def test_without_a_network_one_sentence_says_what_to_do(small, published, monkeypatch):
    monkeypatch.setattr(clip, "OPENAI", published[1])
    monkeypatch.setattr(clip, "find_spec", lambda name: None)  # nor timm
    with pytest.raises(WeightsError, match="once online, or bring ViT-B-16.pt .* --weights") as one:
        load_backbone("clip-vit-b16")
    assert "\n" not in str(one.value)


def test_a_file_brought_to_the_cache_is_used(small, published, monkeypatch):
    content, pin = published
    monkeypatch.setattr(clip, "OPENAI", pin)
    clip.cache_folder().mkdir(parents=True)
    (clip.cache_folder()/pin.name).write_bytes(content)
    assert load_backbone("clip-vit-b16").dims == 32


def test_the_three_sets_of_names_give_one_network(small, tower, published, tmp_path):
    state = {name: weight.half() for name, weight in tower.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path/"timm.safetensors")
    (tmp_path/"openai.pt").write_bytes(published[0])
    torch.save(as_openai(state), tmp_path/"openai.pth")
    frames, made = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8), []
    for name in ("timm.safetensors", "openai.pt", "openai.pth"):
        made.append(load_backbone("clip-vit-b16", tmp_path/name))
    for other in made[1:]:
        assert_close(other(frames), made[0](frames))
        assert other.weights == made[0].weights


def test_hugging_face_names(tower):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=224, patch_size=32, hidden_act="quick_gelu")
    theirs, images = transformers.CLIPVisionModel(config).eval(), torch.rand(2, 3, 224, 224)
    tower.load_state_dict(clip.timm_names(theirs.state_dict(), "test"))
    with torch.no_grad():
        found = theirs(images)
        assert_close(tower(images)[:, :16], found.pooler_output, atol=1e-5, rtol=1e-4)
        assert_close(tower.tokens(images), found.last_hidden_state, atol=1e-5, rtol=1e-4)


def test_timm_has_the_same_network():
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(clip.TIMM, pretrained=False, depth=2).eval()
    ours, images = ClipVision(**{**clip.SIZES, "depth": 2}).eval(), torch.rand(2, 3, 224, 224)
    ours.load_state_dict({name: weight for name, weight in theirs.state_dict().items()
                          if not name.startswith("head.")})
    with torch.no_grad():
        assert_close(ours.norm(ours.tokens(images)), theirs.forward_features(images))
        trap = "vit_base_patch16_clip_224.openai"
        other = timm.create_model(trap, pretrained=False, depth=2).eval()
        other.load_state_dict(theirs.state_dict())  # the trap: it loads, and is another network
        gap = other.forward_features(images) - theirs.forward_features(images)
    assert gap.abs().max() > 1e-4


@pytest.mark.parametrize("pickle", [b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04K\x01.", b"", b"x"])
def test_scripted_files_that_are_damaged_or_run_code(tmp_path, pickle):
    with zipfile.ZipFile(tmp_path/"evil.pt", "w") as archive:
        archive.writestr("evil/constants.pkl", b"")
        archive.writestr("evil/data.pkl", pickle)
    with pytest.raises(WeightsError, match="rejected|damaged"):
        read_torchscript(tmp_path/"evil.pt")


def test_a_tensor_that_reaches_beyond_its_numbers(tmp_path):
    with pytest.raises(RuntimeError):
        clip.ScriptedTensors.tensor(torch.ones(4), 0, (1000,), (1,))


def test_weights_of_another_network_are_named(small, tmp_path):
    safetensors.torch.save_file({"conv1.weight": torch.ones(3)}, tmp_path/"other.safetensors")
    with pytest.raises(WeightsError, match="CLIP's image tower"):
        load_backbone("clip-vit-b16", tmp_path/"other.safetensors")


def test_copies_with_rounded_matrices_are_known_as_the_same(tower):
    before = known_as(tower)
    tower.blocks[0].attn.qkv.weight.data += 1e-3
    assert known_as(tower) == before
    tower.norm.weight.data += 1e-2
    assert known_as(tower) != before


def test_half_precision_stays_close(tower):
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        quick = clip.HalfPrecision(tower, torch.device("cpu"))(images)
        assert quick.dtype == torch.float32
        assert F.cosine_similarity(quick, tower(images)).min() > 0.999


# a bundled model whose backbone is fetched
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def sharp(small, published, tower, tmp_path, monkeypatch):
    "A bundled model on features of the small tower, a clip, and the command."
    content, pin = published
    monkeypatch.setattr(clip, "OPENAI", pin)
    monkeypatch.setattr(clip, "find_spec", lambda name: None)  # no timm
    monkeypatch.setattr(cards, "BUNDLED", tmp_path/"bundled")
    corpus = noise_corpus(videos=16)
    known = ClipVision(**SMALL)
    known.load_state_dict({name: weight.half() for name, weight in tower.state_dict().items()})
    corpus = replace(corpus, settings=replace(corpus.settings, cnn="clip-vit-b16"),
                     details={"weights": known_as(known)})
    config = preset("smoke", supervision_epochs=1, reinforcement_epochs=1, adaptation_epochs=0)
    train(tmp_path/"run", corpus, config, recipes()["PickNet (V+L)"], bars=False)
    export_model(tmp_path/"run", tmp_path/"bundled"/"sharp")
    write_examples(tmp_path/"clips", 1)
    (video,) = (tmp_path/"clips").glob("*.mp4")
    return lambda *more: CliRunner().invoke(app, [
        "caption", str(video), "--model", "sharp", *map(str, more)])


def test_sharp_without_weights_and_network_says_in_one_sentence_what_to_bring(sharp):
    said = sharp()
    assert said.exit_code == 1 and isinstance(said.exception, WeightsError)
    sentence = str(said.exception)
    assert "\n" not in sentence and "cannot be fetched" in sentence
    assert "once online, or bring ViT-B-16.pt of OpenAI's CLIP" in sentence
    assert "--weights" in sentence


def test_sharp_with_a_file(sharp, published, tmp_path):
    (tmp_path/"brought.pt").write_bytes(published[0])
    said = sharp("--weights", tmp_path/"brought.pt")
    assert said.exit_code == 0 and "frame" in said.output, said.output


def test_sharp_fetches_its_weights_once(sharp, published, monkeypatch):
    with Hub(published[0], breaks=True) as hub:
        monkeypatch.setenv("PICKNET_CLIP_ADDRESS", hub.address)
        broken = sharp()
        assert broken.exit_code == 1 and "broke off after" in str(broken.exception)
        first = sharp()
    assert first.exit_code == 0, first.output
    assert [start for _, start in hub.asked] == [0, len(published[0]) // 2]
    monkeypatch.delenv("PICKNET_CLIP_ADDRESS")
    assert sharp().output == first.output  # without a network


def test_sharp_rejects_the_wrong_file_from_the_hub_and_by_hand(sharp, published, tower, tmp_path,
                                                               monkeypatch):
    with Hub(published[0][:-1] + b"x") as hub:
        monkeypatch.setenv("PICKNET_CLIP_ADDRESS", hub.address)
        assert "SHA-256 is" in str(sharp().exception)
    assert not (clip.cache_folder()/clip.KEPT).exists()
    other = {name: weight + 1 for name, weight in tower.state_dict().items()}
    safetensors.torch.save_file(other, tmp_path/"other.safetensors")
    said = sharp("--weights", tmp_path/"other.safetensors")
    assert said.exit_code == 1 and "features made with other weights" in str(said.exception)


def test_the_folded_activation_gives_the_same_features(small, tower, tmp_path):
    safetensors.torch.save_file(tower.state_dict(), tmp_path/"tower.safetensors")
    frames = torch.randint(0, 256, (3, 3, 60, 80), dtype=torch.uint8)
    plain, quick = (load_backbone("clip-vit-b16", tmp_path/"tower.safetensors", fast=fast)
                    for fast in (False, None))
    kinds = [type(cnn.body.net.blocks[0].mlp) for cnn in (plain, quick)]
    assert kinds == [clip.MLP, clip.FoldedMLP] and plain.weights == quick.weights
    assert_close(quick(frames), plain(frames), rtol=1e-4, atol=1e-5)
