"""Weights of backbones from elsewhere: files that claim more than they hold, tensors of an odd kind
and names that are none are a sentence, and take no memory."""
import pickle
import struct
import zipfile
import zlib
from contextlib import nullcontext

import pytest
import torch

from picknet_nb.core.files import PickNetError
from picknet_nb.data.backbones import WeightsError, load_backbone, read_weights
from picknet_nb.training.checkpoints import read_checkpoint
from picknet_nb.training.runs import RunError
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
        torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6))}, "no tensor needs"),
    "on no device": ({"conv1.weight": torch.zeros(10**6, device="meta")}, "no tensor needs"),
    "of many dimensions": ({"conv1.weight": torch.zeros((1,) * 50)}, "odd kind"),
    "a name that is a number": ({5: torch.zeros(1)}, "state_dict"),
    "a name that is nothing": ({None: torch.zeros(1)}, "neither a text nor a small number"),
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


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
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


# pickles: small programs that build objects, followed before PyTorch builds any
# ------------------------------------------------------------------------------------------------


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def call(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n(".encode() + b"".join(arguments) + b"tR"


def storage(numbers: int, key: bytes) -> bytes:
    kind = b"ctorch\nFloatStorage\n"
    return b"(" + text("storage") + kind + key + text("cpu") + number(numbers) + b"tQ"


def tensor(numbers: int, key: bytes = text("0")) -> bytes:
    "A tensor of so many numbers, as `torch.save` writes it."
    shape, stride = number(numbers) + b"\x85", b"K\x01\x85"
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return call("torch._utils", "_rebuild_tensor_v2",
                storage(numbers, key), b"K\x00", shape, stride, hooks)


def plain(content: bytes, key: bytes = text("a")) -> bytes:
    "A pickle of a dictionary with one value."
    return b"\x80\x02}" + key + content + b"s."


# a tuple of twice a tuple of twice a tuple: hashing it takes two to the power of 20 steps
SLOW = b"K\x01K\x01\x86q\x00" + b"".join(
    b"h" + bytes([level]) + b"\x86q" + bytes([level + 1]) for level in range(20))
ONE = tensor(1)
BOMBS = {
    "a key that takes years to hash": plain(ONE, SLOW),
    "the same, inside of a list": plain(b"]}" + SLOW + b"K\x01sa"),
    "the same, of a storage": plain(tensor(1, SLOW)),
    "the same, of many items": b"\x80\x02}(" + SLOW + ONE + b"u.",
    "the same, called": plain(SLOW + b")R"),
    "the same, in an ordered dictionary": plain(
        call("collections", "OrderedDict", b"](" + SLOW + b"K\x01\x86e")),
    "the same, counted": plain(call("collections", "Counter", b"](" + SLOW + b"e")),
    "numbers that fall on each other": plain(
        ONE, b"\x8a\x09" + (2**61 - 1 << 8).to_bytes(9, "little")),
    "a key that is a tensor": plain(ONE, ONE),
    "a key that is a number with a point": plain(ONE, b"G" + bytes(8)),
    "a bytearray of any size": plain(call("builtins", "bytearray", number(2 << 30))),
    "a codec of the attacker's choice": plain(call("_codecs", "encode", text("x"), text("idna"))),
    "a storage of any size": plain(call("torch.storage", "UntypedStorage", number(2 << 40))),
    "a tensor of any size": plain(call("torch", "FloatTensor", number(2 << 30))),
    "a new object": plain(b"ctorch.storage\nUntypedStorage\n" + number(1) + b"\x85\x81"),
    "a tensor that is built anew": plain(ONE + b"(K\x01tb"),
    "numbers that the file does not hold": plain(tensor(1 << 40)),
    "an instruction of later pickles": b"\x80\x04\x95" + bytes(8) + b"}.",
    "a command": plain(call("os", "system", text("true"))),
    "nothing to take": b"\x80\x02\x85R.",
    "no end": b"\x80\x02}",
    "no beginning": b"",
    "no pickle": b"x",
}
# how the older format begins: a magic number, a version, and the sizes of types
OLD = b"".join(pickle.dumps(each, 2)
               for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))


def stored(path, content: bytes, old: bool = False):
    "A file of `torch.save` with this list of tensors, and one number."
    if old:
        path.write_bytes(OLD + content + pickle.dumps(["0"], 2) + number(1)[2:] + bytes(4))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", bytes(4))
    return path


def in_old_format(content: bytes) -> bytes:
    "Storages have a sixth part there."
    return content.replace(b"tQ", b"NtQ")


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_a_pickle_is_followed_before_anything_is_built(tmp_path, monkeypatch, kind, old):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("PyTorch has begun to build"))
    content = in_old_format(BOMBS[kind]) if old else BOMBS[kind]
    path = stored(tmp_path/"weights.pth", content, old)
    with pytest.raises(WeightsError, match="weights.pth: (rejected|cannot be read): "):
        read_weights(path)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old format"])
def test_what_the_bombs_are_made_of_is_read_if_it_is_harmless(tmp_path, old):
    content = in_old_format(plain(ONE)) if old else plain(ONE)
    assert read_weights(stored(tmp_path/"weights.pth", content, old))[0]["a"].tolist() == [0.0]


@pytest.mark.parametrize("kind", ["a key that takes years to hash", "a bytearray of any size"])
def test_a_checkpoint_is_followed_before_anything_is_built(tmp_path, kind):
    stored(tmp_path/"checkpoint.pt", BOMBS[kind])
    with pytest.raises(RunError, match="checkpoint.pt: rejected: .*; move checkpoint.pt away"):
        read_checkpoint(tmp_path)


# archives that two programs read in two ways
# ------------------------------------------------------------------------------------------------


def two_directories(path, hidden: int = 1000, seen: int = 4):
    "PyTorch finds the directory where the end says that it begins, `zipfile` where it should end."
    written, directories = bytearray(), []
    for numbers in (hidden, seen):
        files = {"data.pkl": plain(tensor(numbers)), "version": b"3\n",
                 "data/0": bytes(4 * numbers)}
        places = []
        for name, content in files.items():
            name, sum_ = f"archive/{name}".encode(), zlib.crc32(content)
            places.append((name, content, sum_, len(written)))
            written += struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0x21, sum_, len(content),
                                   len(content), len(name), 0) + name + content
        directories.append(places)
    size = sum(46 + len(name) for name, *_ in directories[0])
    start = len(written)
    for places, shift in zip(directories, (0, size)):
        for name, content, sum_, place in places:
            written += struct.pack("<4s4B4H3L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0x21, sum_,
                                   len(content), len(content), len(name), 0, 0, 0, 0, 0,
                                   place - shift) + name
    path.write_bytes(written + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 3, 3, size, start, 0))
    return path


def test_pytorch_reads_the_directory_that_was_checked(tmp_path):
    path = two_directories(tmp_path/"weights.pth")
    assert torch.load(path, weights_only=True)["a"].numel() == 1000  # what PyTorch would see
    assert read_weights(path)[0]["a"].numel() == 4


def test_a_zip_behind_weights_of_the_old_format_hides_nothing(tmp_path):
    stored(archive := tmp_path/"archive.pth", plain(ONE))
    path = stored(tmp_path/"weights.pth", in_old_format(BOMBS["a bytearray of any size"]), old=True)
    path.write_bytes(path.read_bytes() + archive.read_bytes())
    with pytest.raises(WeightsError, match="weights.pth: rejected: it names builtins.bytearray"):
        read_weights(path)


@pytest.mark.parametrize("name", ["archive/DATA.PKL", "archive/data.pkl"])
def test_two_lists_under_one_name_are_rejected(tmp_path, name):
    with pytest.warns(UserWarning) if name.islower() else nullcontext():
        stored(path := tmp_path/"weights.pth", plain(ONE))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, plain(tensor(1, SLOW)))
    with pytest.raises(WeightsError, match="weights.pth: rejected: parts of it have one name"):
        read_weights(path)


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
