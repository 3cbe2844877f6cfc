"""Weights of backbones from elsewhere: files that claim more than they hold, tensors of an odd kind
and names that are none are a sentence, and take no memory."""
import io
import pickle
import zipfile

import pytest
import torch

from picknet_nb.core.files import PickNetError
from picknet_nb.data import clip
from picknet_nb.data.backbones import WeightsError, load_backbone, read_weights
from test_hostile_memory import nested, repeated

resnet = pytest.importorskip("torchvision").models.resnet18


def swollen(**changes) -> dict:
    "The weights of a ResNet-18, all of them one number that is stored once; and some changes."
    one = torch.zeros(1)
    return {name: one.as_strided(each.shape, (0,) * each.dim())
            for name, each in resnet().state_dict().items()} | changes


CLAIMS = {
    "one number for all": (swollen(), "more than twice its"),
    "a huge tensor": ({"conv1.weight": repeated(20_000_000)}, "more than twice its"),
    "a list that stands in many others": ({"conv1.weight": nested()}, "parts|more than twice its"),
    "a list beside tensors": ({"conv1.weight": torch.zeros(1), "more": nested()},
                              "parts|more than twice its"),
    "a text many times": ({"a": ["x" * 100_000] * 5000}, "more than twice its"),
    "sparse": ({"conv1.weight": torch.sparse_coo_tensor(
        torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6))}, "odd kind"),
    "on no device": ({"conv1.weight": torch.zeros(10**6, device="meta")}, "odd kind"),
    "a name that is a number": ({5: torch.zeros(1)}, "state_dict"),
    "a name that is nothing": ({None: torch.zeros(1)}, "state_dict"),
}


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_weights_that_claim_more_than_their_file_holds_are_a_sentence(tmp_path, kind, old):
    content, message = CLAIMS[kind]
    torch.save(content, path := tmp_path/"weights.pth", _use_new_zipfile_serialization=not old)
    assert path.stat().st_size < 300_000
    with pytest.raises(WeightsError, match=f"weights.pth: .*({message})"):
        read_weights(path)
    for name in ("resnet18", "clip-vit-b16"):
        with pytest.raises(PickNetError, match="weights.pth: "):
            load_backbone(name, path)


@pytest.mark.parametrize("kind", ["complex64", "int64", "bool", "float8_e4m3fn"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_weights_of_a_type_that_no_backbone_has_are_a_sentence(tmp_path, kind):
    state = resnet().state_dict()
    state["conv1.weight"] = state["conv1.weight"].to(getattr(torch, kind))
    torch.save(state, path := tmp_path/"weights.pth")
    with pytest.raises(WeightsError, match=f"weights.pth: conv1.weight is of type {kind}"):
        load_backbone("resnet18", path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_of_a_backbone_that_are_no_numbers_are_a_sentence(tmp_path, number):
    state = resnet().state_dict()
    state["layer1.0.conv1.weight"][0, 0, 0, 0] = number
    torch.save(state, path := tmp_path/"weights.pth")
    with pytest.raises(WeightsError, match="weights.pth: layer1.0.conv1.weight holds numbers that"):
        load_backbone("resnet18", path)


def test_honest_weights_are_read(tmp_path):
    torch.manual_seed(0)
    state = resnet().half().state_dict()
    torch.save(state | {"again": state["conv1.weight"]}, path := tmp_path/"weights.pth")
    assert load_backbone("resnet18", path).dims == 512


# OpenAI's file of CLIP: a TorchScript archive, read by a reader of our own
# ------------------------------------------------------------------------------------------------


class Scripted(pickle._Pickler):
    "Write what TorchScript writes: modules by name, tensors by the number of their storage."

    def persistent_id(self, value):
        return value.saved if isinstance(value, Stored) else None


class Stored:
    "Bytes of an archive, as a pickle refers to them."

    def __init__(self, kind, key: str):
        self.saved = ("storage", kind, key, "cpu", 0)


class Shaped:
    "A tensor of any shape over stored numbers."

    def __init__(self, stored: Stored, shape: tuple, stride: tuple):
        self.how = (stored, 0, shape, stride, False, {})

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.how


def module(**parts):
    "A module of TorchScript that holds these parts."
    made = Module()
    made.__dict__.update(parts)
    return made


class Module:
    pass


def scripted(path, content) -> None:
    "A TorchScript file with one stored number, by hand: `torch.jit.save` would check it."
    Module.__module__, Module.__qualname__ = "__torch__", "Module"
    found, buffer = Module, io.BytesIO()
    writer = Scripted(buffer, protocol=2)
    writer.save_global = lambda value, name=None: writer.write(
        b"c__torch__\nModule\n" if value is found else
        f"c{value.__module__}\n{value.__name__}\n".encode())
    writer.dump(content)
    pickled = content if isinstance(content, bytes) else buffer.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clip/data.pkl", pickled)
        archive.writestr("clip/constants.pkl", b"\x80\x02).")
        archive.writestr("clip/data/0", b"\0\0\0\0")


def shared_modules(levels: int):
    "Two to the power of levels modules, of which each level is stored once."
    found = module(weight=Shaped(Stored(torch.FloatStorage, "0"), (1,), (1,)))
    for _ in range(levels):
        found = module(a=found, b=found)
    return found


SCRIPTS = {
    "a huge tensor": lambda: module(
        weight=Shaped(Stored(torch.FloatStorage, "0"), (50_000, 50_000), (0, 0))),
    "tensors that share a number": lambda: module(
        **{f"w{n}": Shaped(Stored(torch.FloatStorage, "0"), (10_000,), (0,)) for n in range(100)}),
    "modules inside of many others": lambda: shared_modules(40),
    "parts numbered in the billions": lambda: b"\x80\x02Nr\xff\xff\xff\x3f.",
    "larger than its storage": lambda: module(
        weight=Shaped(Stored(torch.FloatStorage, "0"), (5,), (1,))),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_torchscript_file_that_claims_more_than_it_holds_is_a_sentence(tmp_path, kind):
    scripted(path := tmp_path/"clip.pt", SCRIPTS[kind]())
    with pytest.raises(WeightsError, match="clip.pt: "):
        clip.read_torchscript(path)


def test_an_honest_torchscript_file_is_read(tmp_path):
    scripted(path := tmp_path/"clip.pt", module(visual=shared_modules(0)))
    assert clip.read_torchscript(path)["visual.weight"].tolist() == [0.0]


ODD_TOWERS = [
    {"visual.class_embedding": torch.zeros(4, 4).T[:, ::2], "visual.positional_embedding": 0},
    {"visual.class_embedding": torch.zeros(3), "visual.proj": torch.zeros(2, 3, 4)},
    {"embeddings.class_embedding": torch.zeros(4, 4).T[::2], **{
        f"embeddings.{name}": torch.zeros(3)
        for name in ("position_embedding.weight", "patch_embedding.weight")}},
    {"embeddings.class_embedding": torch.zeros(3),
     **{f"embeddings.{name}": torch.zeros(3)
        for name in ("position_embedding.weight", "patch_embedding.weight")},
     "encoder.layers.0.layer_norm1.bias": torch.zeros(1),
     **{f"encoder.layers.0.self_attn.{part}_proj.weight": torch.zeros(size, size)
        for size, part in enumerate("qkv", 2)}},
    {"patch_embed.proj.weight": torch.zeros(1)},
]


@pytest.mark.parametrize("number", range(len(ODD_TOWERS)))
def test_a_tower_of_odd_shapes_is_a_sentence(tmp_path, number):
    torch.save({name: torch.as_tensor(each) for name, each in ODD_TOWERS[number].items()},
               path := tmp_path/"clip.pth")
    with pytest.raises(WeightsError, match="clip.pth: "):
        load_backbone("clip-vit-b16", path)
