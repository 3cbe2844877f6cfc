"""Data that somebody made to do harm: bombs at their real size under a limit of memory and disk,
files that show others, pipes, links, edited short cuts."""
import io
import json
import multiprocessing
import os
import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import noise_corpus

from picknet_nb.core import files
from picknet_nb.core.files import FileError, PickNetError, WriteError, locked, read_json
from picknet_nb.core.settings import ClipSettings
from picknet_nb.data.backbones import WeightsError, load_backbone, read_weights
from picknet_nb.data.corpus import Corpus, CorpusError, _read_videos, check_captions
from picknet_nb.data.annotations import read_captions
from picknet_nb.data.own_features import open_features, prepare_features
from picknet_nb.data.splits import read_splits
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.msvd_files import read_mapping, read_msvd_csv
from picknet_nb.data.text import tokenize
from picknet_nb.measure.metrics import (
    ScoreError, read_candidates, read_references, score)

# what a child may take beyond what it begins with, and how long it may take
MEMORY, DISK, SECONDS = 1 << 30, 64 << 20, 120
TWO = ClipSettings(frames=2, min_word_count=1, glance="feature")


# a child with limits
# ------------------------------------------------------------------------------------------------


def _tried(line, job) -> None:
    torch.set_num_threads(1)  # the parent's threads are not there after a fork
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK,) * 2)
    try:
        line.send(("read", job()))
    except PickNetError as error:
        line.send((type(error).__name__, str(error)))
    except BaseException as error:
        line.send((f"not ours: {type(error).__name__}", str(error)[:500]))


def limited(job) -> tuple[str, object]:
    """What a call gives, or the name and the text of its error, in a process that may take a
    gigabyte of memory, write 64 MB into a file, and not hang."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("limits of memory need Linux")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_tried, args=(theirs, job), daemon=True)
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(SECONDS) else ("hang", "")
    except EOFError:
        child.join()
        return f"ended with {child.exitcode}", ""
    finally:
        child.kill()
        child.join()


def refused(job, *words: str) -> None:
    "The call is refused by an error of ours with all of these words."
    kind, said = limited(job)
    assert kind in ("FileError", "CorpusError", "WeightsError", "ScoreError"), (kind, said)
    assert all(word in said for word in words) and "\n" not in said, said


# bombs
# --------------------------------------------------------------------------------------------------


def zeros(count: int) -> bytes:
    "So many zeros, packed by deflate, without packing them all: one block again and again."
    block, pack = 1 << 20, zlib.compressobj(9, zlib.DEFLATED, -15)
    one = pack.compress(bytes(block)) + pack.flush(zlib.Z_FULL_FLUSH)
    rest = zlib.compressobj(9, zlib.DEFLATED, -15)
    return one * (count // block) + rest.compress(bytes(count % block)) + rest.flush()


def stored(content: bytes) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    return pack.compress(content) + pack.flush(zlib.Z_FULL_FLUSH)


def checksum(head: bytes, count: int) -> int:
    "The zip's own checksum, where somebody may get far enough to look at it."
    found, block = zlib.crc32(head), bytes(1 << 20)
    if count < 1 << 30:
        for begin in range(0, count, len(block)): found = zlib.crc32(block[:count - begin], found)
    return found


def zip_bomb(path: Path, entries: dict[str, tuple[bytes, int]]) -> Path:
    "A zip archive of entries that begin with some bytes and go on with zeros."
    body, directory = b"", b""
    for name, (head, count) in entries.items():
        packed = stored(head) + zeros(count)
        about = struct.pack(
            "<HHHHHIIIHH",
            20,
            0,
            8,
            0,
            33,
            checksum(head, count),
            len(packed),
            len(head) + count,
            len(name),
            0,
        )
        directory += (
            b"PK\1\2"
            + struct.pack("<H", 20)
            + about
            + struct.pack("<HHHII", 0, 0, 0, 0, len(body))
            + name.encode()
        )
        body += b"PK\3\4" + about + name.encode() + packed
    path.write_bytes(
        body
        + directory
        + b"PK\5\6"
        + struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(body), 0)
    )
    return path


def npy_head(shape: tuple, kind: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@pytest.fixture
def texts(tmp_path) -> tuple[Path, Path]:
    (tmp_path/"captions.json").write_text(json.dumps({name: ["a dog runs"] for name in "abc"}))
    (tmp_path/"splits.json").write_text(json.dumps({"train": ["a"], "val": ["b"], "test": ["c"]}))
    return tmp_path/"captions.json", tmp_path/"splits.json"


def preparing(tmp_path: Path, path: Path, texts):
    return lambda: prepare_features(tmp_path/"out", path, *texts, settings=TWO) and "made"


def test_an_archive_of_arrays_that_unpacks_to_nine_gigabytes(tmp_path, texts):
    each, wide = 3 << 30, (3 << 30) // 8
    path = zip_bomb(
        tmp_path/"each.npz", {f"{name}.npy": (npy_head((2, wide)), each) for name in "abc"}
    )
    assert path.stat().st_size < 12 << 20
    refused(
        preparing(tmp_path, path, texts),
        "each.npz",
        "would unpack to 9,66",
        "PICKNET_UNPACKED_BYTES",
    )
    path = zip_bomb(
        tmp_path/"all.npz",
        {
            "ids.npy": (npy_head((3,), "<U1") + "abc".encode("utf-32-le"), 0),
            "features.npy": (npy_head((3, 2, wide // 3)), each),
        },
    )
    refused(preparing(tmp_path, path, texts), "all.npz", "would unpack to 3,22")
    assert not (tmp_path/"out").exists()


def test_clips_and_ids_that_are_too_many_or_too_large(tmp_path, texts):
    "Below the limit of a file, and yet far more than a clip or a list of names can be."
    inside = 400 << 20
    path = zip_bomb(tmp_path/"one.npz", {"a.npy": (npy_head((2, inside // 8)), inside)})
    refused(
        preparing(tmp_path, path, texts),
        "one.npz: a cannot be read",
        "419,430,",
        "PICKNET_CLIP_BYTES",
    )
    path = zip_bomb(
        tmp_path/"ids.npz",
        {
            "ids.npy": (npy_head((60_000_000,), "|S1"), 60_000_000),
            "features.npy": (npy_head((3, 2, 2)), 48),
        },
    )
    refused(preparing(tmp_path, path, texts), "ids.npz", "at most 1,000,000 names")
    path = zip_bomb(
        tmp_path/"q.npz",
        {
            "ids.npy": (npy_head((1,), "<U1") + "a".encode("utf-32-le"), 0),
            "scale.npy": (npy_head((), "<f4") + b"\0\0\x80?", 0),
            "q.npy": (npy_head((1, inside // 2, 2), "|u1"), inside),
        },
    )
    refused(preparing(tmp_path, path, texts), "q.npz: a cannot be read", "PICKNET_CLIP_BYTES")


def test_arrays_with_holes(tmp_path, texts):
    "Sparse files, as tar and rsync carry them: a thousand gigabytes that take no room on the disk."
    (tmp_path/"npy").mkdir()
    for name in "abc":
        with open(tmp_path/"npy"/f"{name}.npy", "wb") as file:
            file.write(npy_head((2, 1 << 40)))
            file.truncate(1 << 38)
    refused(preparing(tmp_path, tmp_path/"npy", texts), "npy", "would unpack to 824,633,")


def test_hdf5_of_nine_gigabytes(tmp_path, texts):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path/"zeros.h5", "w") as file:
        file.create_dataset("a", (2, 1_150_000_000), "f4", chunks=(1, 1 << 20))
    assert (tmp_path/"zeros.h5").stat().st_size < 8000
    refused(
        preparing(tmp_path, tmp_path/"zeros.h5", texts),
        "zeros.h5",
        "would unpack to 9,200,000,000 bytes",
    )
    with h5py.File(tmp_path/"many.h5", "w") as file:
        one = file.create_dataset("a", (2, 5_000_000), "f4", chunks=(1, 1 << 20))
        for number in range(100):
            file[str(number)] = one  # another name for the same
    refused(
        preparing(tmp_path, tmp_path/"many.h5", texts),
        "many.h5",
        "would unpack to 4,040,000,000 bytes",
    )
    with h5py.File(tmp_path/"chunk.h5", "w") as file:
        file.create_dataset(
            "a", (2, 4), "f4", chunks=(2, 400_000_000), maxshape=(None, None), compression="gzip"
        ).id.write_direct_chunk((0, 0), zlib.compress(b""))
    refused(preparing(tmp_path, tmp_path/"chunk.h5", texts), "chunk.h5", "PICKNET_CLIP_BYTES")


def test_hdf5_whose_pieces_unpack_to_more_than_they_should(tmp_path, texts):
    """A chunk of 64 bytes holds a gzip stream of three gigabytes: the library itself follows it
    to the end."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path/"piece.h5", "w") as file:
        file.create_dataset("a", (2, 8), "f4", chunks=(2, 8), compression="gzip")
        bomb = b"\x78\xda" + zeros(3 << 30) + b"\0\0\0\0"
        file["a"].id.write_direct_chunk((0, 0), bomb)
    refused(
        preparing(tmp_path, tmp_path/"piece.h5", texts),
        "piece.h5: a cannot be read",
        "unpack to more than its 64 bytes",
    )
    with h5py.File(tmp_path/"lzf.h5", "w") as file:
        file.create_dataset("a", data=np.zeros((2, 8), "f4"), compression="lzf")
    with h5py.File(tmp_path/"small.h5", "w") as file:
        file.create_dataset("a", (2, 1 << 20), "f4", chunks=(1, 1))
    with pytest.raises(
        CorpusError, match="lzf.h5: a cannot be read: is packed in a way that is not read"
    ):
        prepare_features(tmp_path/"out", tmp_path/"lzf.h5", *texts, settings=TWO)
    with pytest.raises(
        CorpusError, match="small.h5: a cannot be read: is cut into more than 65,536 pieces"
    ):
        prepare_features(tmp_path/"out", tmp_path/"small.h5", *texts, settings=TWO)


def test_honest_hdf5_is_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    values = np.random.RandomState(0).rand(30, 600).astype(np.float32)
    with h5py.File(tmp_path/"all.h5", "w") as file:
        for name, how in {
            "plain": {},
            "gzip": dict(compression="gzip"),
            "full": dict(compression="gzip", shuffle=True, fletcher32=True),
            "chunked": dict(chunks=(7, 100)),
            "sum": dict(fletcher32=True),
            "noise": dict(compression=9),
        }.items():
            file.create_dataset(name, data=values, **how)
    for name, read in open_features(tmp_path/"all.h5").items():
        assert np.array_equal(read(), values), name


def test_weights_that_unpack_to_five_gigabytes(tmp_path):
    torch.save({"a": torch.randn(4), "b": torch.randn(4)}, tmp_path/"good.pth")
    with zipfile.ZipFile(tmp_path/"good.pth") as good:
        entries = {
            name: (b"", 2_700_000_000) if "/data/" in name else (good.read(name), 0)
            for name in good.namelist()
        }
    path = zip_bomb(tmp_path/"bomb.pth", entries)
    assert path.stat().st_size < 8 << 20
    refused(lambda: read_weights(path), "bomb.pth", "it is packed")
    refused(lambda: load_backbone("resnet18", path), "bomb.pth", "it is packed")


def test_lists_of_tensors_that_ask_for_memory(tmp_path):
    class Large:
        def __reduce__(self):
            return bytearray, (2 << 30,)

    torch.save({"a": torch.zeros(1), "b": Large()}, tmp_path/"large.pth")
    refused(lambda: read_weights(tmp_path/"large.pth"), "large.pth", "bytearray, which no tensor")
    with zipfile.ZipFile(tmp_path/"nested.pth", "w") as archive:
        archive.writestr("nested/data.pkl", b"\x80\x02" + b"]" * 9_000_000 + b".")
        archive.writestr("nested/version", "3\n")
        archive.writestr("nested/byteorder", "little")
    refused(
        lambda: read_weights(tmp_path/"nested.pth"),
        "nested.pth",
        "list of tensors has 9,000,003 bytes",
    )


def test_weights_with_holes(tmp_path):
    size = 3 << 30
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(tmp_path/"holes.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    refused(
        lambda: read_weights(tmp_path/"holes.safetensors"),
        "holes.safetensors",
        "would unpack to 3,22",
    )


def test_damaged_weights_are_found_by_their_checksums(tmp_path):
    torch.save({"layer.weight": torch.zeros(100, 100)}, tmp_path/"good.pth")
    content, found = (tmp_path/"good.pth").read_bytes(), 0
    with zipfile.ZipFile(tmp_path/"good.pth") as archive:
        begin = next(
            entry.header_offset
            for entry in archive.infolist()
            if entry.filename.endswith("/data/0")
        )
    for place in range(begin + 200, begin + 40_000, 2000):
        (tmp_path/"bad.pth").write_bytes(
            content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :]
        )
        with pytest.raises(WeightsError, match="bad.pth: .*damaged one .Bad CRC-32 for .*data/0"):
            read_weights(tmp_path/"bad.pth")
        found += 1
    assert found == 20


def test_captions_that_nobody_wrote(tmp_path):
    "A caption of 100 kB: its alignment with a reference would take gigabytes, and hours."
    long = "a dog " * 17_000
    (path := tmp_path/"said.json").write_text(json.dumps({"one": "a dog", "two": long}))
    for read in (read_candidates, read_references):
        with pytest.raises(
            ScoreError,
            match=r"said.json: more than 5,000 letters in one caption \(PICKNET_CAPTION_LETTERS\) "
                  r"of two",
        ):
            read(path)
    refused(
        lambda: score({"one": "a dog", "two": long}, {"one": ["a dog"], "two": ["a dog"]}),
        "more than 5,000 letters",
        "of two",
    )
    refused(
        lambda: score({"two": "a dog"}, {"two": ["a dog", long]}),
        "more than 5,000 letters",
        "of two",
    )
    (tmp_path/"mine.json").write_text(json.dumps({"one": ["a dog"], "two": ["a dog", long]}))
    with pytest.raises(
        CorpusError, match="mine.json: two has a caption of more than 5,000 letters"
    ):
        read_captions(tmp_path/"mine.json")
    (tmp_path/"mine.csv").write_text(
        f"VideoID,Start,End,Language,Description\na,1,2,English,{long}\n"
    )
    with pytest.raises(
        CorpusError, match="mine.csv: a_1_2 has a caption of more than 5,000 letters"
    ):
        read_msvd_csv(tmp_path/"mine.csv")


def test_captions_of_too_many_words_or_of_none():
    pytest.importorskip("pycocoevalcap", reason="pycocoevalcap is not installed")
    with pytest.raises(
        ScoreError, match=r"more than 200 words in one caption \(PICKNET_CAPTION_WORDS\) of two"
    ):
        score(
            {"one": "a dog", "two": "a dog"},
            {"one": ["a dog"], "two": ["a cat", "a,b " * 101]},
            ("CIDEr",),
        )
    with pytest.raises(ScoreError, match="not one word in the references of two"):
        score(
            {"one": "a dog", "two": "a dog"},
            {"one": ["a dog"], "two": ["...", "?", ""]},
            ("CIDEr",),
        )
    with pytest.raises(ScoreError, match="not one word in the references of one"):
        score({"one": "a dog"}, {"one": ["..."]}, ("CIDEr",))


def test_blanks_without_end_are_cut_at_once():
    assert limited(
        lambda: [tokenize(" " * 200_000 + text) for text in ("!", "dog.", "dog. he")]
    ) == ("read", [[], ["dog"], ["dog", "he"]])


def test_words_that_would_fill_the_memory(tmp_path):
    noise_corpus().save(tmp_path)
    about = json.loads((tmp_path/"corpus.json").read_text())
    about["settings"]["max_words"] = 1_000_000
    (tmp_path/"corpus.json").write_text(json.dumps(about))
    refused(
        lambda: Corpus.load(tmp_path),
        str(tmp_path),
        "max_words=1000000 would make 1,600,000,000 bytes",
    )


def test_texts_have_a_limit_that_can_be_raised(tmp_path, monkeypatch):
    with open(tmp_path/"holes.json", "wb") as file:
        file.truncate(3 << 30)
    for read in (
        read_json,
        read_captions,
        read_mapping,
        read_msvd_csv,
        lambda path: read_splits(path, []),
        read_candidates,
        read_msrvtt,
    ):
        refused(
            lambda: read(tmp_path/"holes.json"),
            "holes.json",
            "more than 50,331,648 bytes",
            "PICKNET_TEXT_BYTES",
        )
    (tmp_path/"small.json").write_text('{"a": 1}' + " " * 100)
    monkeypatch.setenv("PICKNET_TEXT_BYTES", "50")
    with pytest.raises(FileError, match="more than 50 bytes"):
        read_json(tmp_path/"small.json")
    monkeypatch.setenv("PICKNET_TEXT_BYTES", "5000")
    assert read_json(tmp_path/"small.json") == {"a": 1}
    monkeypatch.setenv("PICKNET_TEXT_BYTES", "a lot")
    with pytest.raises(
        PickNetError, match="PICKNET_TEXT_BYTES must be a whole number, not 'a lot'"
    ):
        read_json(tmp_path/"small.json")


def test_every_limit_is_named_in_an_error_and_can_be_raised(tmp_path, texts, monkeypatch):
    np.savez_compressed(
        tmp_path/"f.npz", **{name: np.zeros((2, 5000), np.float32) for name in "abc"}
    )
    monkeypatch.setitem(files.LIMITS, "PICKNET_UNPACKED_BYTES", 50_000)
    monkeypatch.setitem(files.LIMITS, "PICKNET_CLIP_BYTES", 30_000)
    with pytest.raises(CorpusError, match="PICKNET_UNPACKED_BYTES"):
        prepare_features(tmp_path/"out", tmp_path/"f.npz", *texts, settings=TWO)
    monkeypatch.setenv("PICKNET_UNPACKED_BYTES", "1000000")
    with pytest.raises(CorpusError, match="PICKNET_CLIP_BYTES"):
        prepare_features(tmp_path/"out", tmp_path/"f.npz", *texts, settings=TWO)
    monkeypatch.setenv("PICKNET_CLIP_BYTES", "1000000")
    assert prepare_features(
        tmp_path/"out", tmp_path/"f.npz", *texts, settings=TWO
    ).corpus.features.shape == (3, 2, 5000)


# other files
# --------------------------------------------------------------------------------------------------


def test_hdf5_shows_no_other_file(tmp_path, texts):
    "External storage, virtual data sets and links of all kinds, each of which h5py follows."
    h5py = pytest.importorskip("h5py")
    (secret := tmp_path/"secret.txt").write_bytes(b"a secret" * 8)
    with h5py.File(tmp_path/"other.h5", "w") as file:
        file["a"] = np.frombuffer(secret.read_bytes(), np.uint8).reshape(2, 32)
    with h5py.File(tmp_path/"external.h5", "w") as file:
        file.create_dataset("a", (2, 32), "u1", external=[(str(secret), 0, 64)])
    with h5py.File(tmp_path/"link.h5", "w") as file:
        file["a"] = h5py.ExternalLink("other.h5", "/a")
    with h5py.File(tmp_path/"soft.h5", "w") as file:
        file.create_group("g")["out"] = h5py.ExternalLink("other.h5", "/")
        file["a"] = h5py.SoftLink("/g/out/a")
    with h5py.File(tmp_path/"virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((2, 32), "u1")
        layout[:] = h5py.VirtualSource(tmp_path/"other.h5", "a", (2, 32))
        file.create_virtual_dataset("a", layout)
    for name, reason in {
        "external.h5": "a has its numbers in other files",
        "link.h5": "a is a link",
        "soft.h5": "a is a link",
        "virtual.h5": "a has its numbers in other files",
    }.items():
        # the attack is real
        with h5py.File(tmp_path / name) as file:
            assert file["a"][()].tobytes() == secret.read_bytes()
        with pytest.raises(CorpusError, match=f"{name}: .*{reason}"):
            prepare_features(tmp_path/"out", tmp_path / name, *texts, settings=TWO)
    with h5py.File(tmp_path/"group.h5", "w") as file:
        file.create_group("a")["b"] = 1
    with pytest.raises(CorpusError, match="a is not a data set of numbers"):
        open_features(tmp_path/"group.h5")
    assert not (tmp_path/"out").exists()


# pipes
# --------------------------------------------------------------------------------------------------


def load_with_pipe(tmp_path: Path, name: str):
    noise_corpus(4).save(tmp_path/"corpus")
    (tmp_path/"corpus"/name).unlink()
    os.mkfifo(tmp_path/"corpus"/name)
    return lambda: repr(Corpus.load(tmp_path/"corpus"))


@pytest.mark.parametrize("name", ["captions.json", "corpus.json", "videos.safetensors"])
def test_a_pipe_in_a_corpus(tmp_path, name):
    refused(
        load_with_pipe(tmp_path, name),
        name,
        "cannot be read: a folder, a pipe or a device, not a regular file",
    )


def test_a_pipe_instead_of_words(tmp_path):
    "words.json is only a short cut: it is not read, and the words are counted."
    assert limited(load_with_pipe(tmp_path, "words.json")) == ("read", repr(noise_corpus(4)))


@pytest.mark.parametrize(
    "name, read",
    [
        ("pipe.json", read_json),
        ("pipe.json", read_captions),
        ("pipe.csv", read_captions),
        ("pipe.txt", read_mapping),
        ("pipe.zip", read_msrvtt),
        ("pipe.json", read_candidates),
        ("pipe.json", read_references),
        ("pipe.npz", open_features),
        ("pipe.h5", open_features),
        ("pipe.pth", read_weights),
        ("pipe.safetensors", read_weights),
        ("pipe.json", lambda path: files.file_digest(path)),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_pipe_is_not_read(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    refused(lambda: read(tmp_path / name), name)


def test_a_pipe_among_arrays(tmp_path, texts):
    (tmp_path/"npy").mkdir()
    os.mkfifo(tmp_path/"npy"/"a.npy")
    refused(preparing(tmp_path, tmp_path/"npy", texts), "a cannot be read", "a pipe")


# short cuts that were edited, files that change
# ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda words: words["vocabulary"].append("zebra"),
        lambda words: words["vocabulary"].reverse(),
        lambda words: words["vocabulary"].__setitem__(5, "zebra"),
        lambda words: words["sentences"][0].__setitem__(0, "zebra zebra"),
        lambda words: words["sentences"].reverse(),
        lambda words: words.pop("checksum"),
        lambda words: words["counted_with"].update(min_word_count=9),
        lambda words: words.update(checksum=None),
        lambda words: words.update(more=1),
    ],
)
def test_edited_words_are_not_believed(tmp_path, edit):
    corpus = noise_corpus()
    corpus.save(tmp_path)
    words = json.loads((tmp_path/"words.json").read_text())
    edit(words)
    (tmp_path/"words.json").write_text(json.dumps(words))
    again = Corpus.load(tmp_path)
    assert (
        again.vocabulary == corpus.vocabulary
        and again.sentences == corpus.sentences
        and torch.equal(again.words, corpus.words)
    )


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        "7",
        "null",
        '{"checksum": ' + "[" * 900 + "]" * 900 + "}",
        '{"checksum": 1, "checksum": 1}',
        "\ufeff{}",
    ],
)
def test_words_of_the_wrong_kind(tmp_path, content):
    corpus = noise_corpus()
    corpus.save(tmp_path)
    (tmp_path/"words.json").write_text(content)
    assert Corpus.load(tmp_path).vocabulary == corpus.vocabulary


def test_words_are_still_a_short_cut(tmp_path, monkeypatch):
    noise_corpus().save(tmp_path)
    monkeypatch.setattr("picknet_nb.data.corpus.cut_captions", None)
    monkeypatch.setattr("picknet_nb.data.corpus._count_words", None)
    Corpus.load(tmp_path)


def test_a_corpus_that_is_cut_short_under_training(tmp_path):
    "What was read is in memory: whatever happens to the file, no page of it is missing."
    noise_corpus(400).save(tmp_path)

    def use():
        corpus = Corpus.load(tmp_path)
        os.truncate(tmp_path/"videos.safetensors", 1000)
        return float(corpus.features.float().abs().sum()), int(corpus.glances.long().sum())

    corpus = noise_corpus(400)
    assert limited(use) == (
        "read",
        (float(corpus.features.float().abs().sum()), int(corpus.glances.long().sum())),
    )


def test_a_corpus_that_is_cut_short_while_it_is_read(tmp_path, monkeypatch):
    noise_corpus(400).save(tmp_path)
    load = safetensors.torch.load_file

    def cut(path):
        mapped = load(path)
        os.truncate(path, 100_000)
        return mapped

    monkeypatch.setattr(safetensors.torch, "load_file", cut)
    refused(
        lambda: _read_videos(tmp_path/"videos.safetensors"),
        "videos.safetensors: was cut short while it was read",
    )


# links
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path) -> Path:
    "A file that nobody may touch."
    (path := tmp_path/"victim.txt").write_text("mine")
    yield path
    assert path.read_text() == "mine" and path.stat().st_mode & 0o777 == 0o600
    assert (
        sorted(each.name for each in (tmp_path/"elsewhere").iterdir()) == []
        if (tmp_path/"elsewhere").exists()
        else True
    )


@pytest.fixture(autouse=True)
def private(request):
    if "victim" in request.fixturenames:
        request.getfixturevalue("victim").chmod(0o600)


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_corpus_is_not_written_through_links(tmp_path, victim, make):
    (out := tmp_path/"out").mkdir()
    for name in (
        "videos.safetensors",
        "captions.json",
        "words.json",
        "corpus.json",
        ".locked_by",
        ".abc.partial",
    ):
        make(victim, out / name)
    (out/".folder.partial").mkdir()
    corpus = noise_corpus(4)
    corpus.save(out)
    assert Corpus.load(out).vocabulary == corpus.vocabulary and not (out/".abc.partial").exists()


def test_a_lock_is_not_taken_through_a_link(tmp_path, victim):
    (out := tmp_path/"out").mkdir()
    (out/".lock").symlink_to(victim)
    with pytest.raises((CorpusError, WriteError), match="out"): noise_corpus(4).save(out)


def test_the_holder_of_a_lock_is_not_read_through_a_link(tmp_path, victim):
    "Nor are escapes of a terminal repeated."
    (out := tmp_path/"out").mkdir()
    with locked(out):
        (out/".locked_by").unlink()
        (out/".locked_by").symlink_to(victim)
        with pytest.raises(FileError, match="in use by another process$"):
            with locked(out):
                pass
        (out/".locked_by").unlink()
        (out/".locked_by").write_text("\x1b[2Jprocess 1\n" + "x" * 1000)
        with pytest.raises(FileError) as caught:
            with locked(out):
                pass
        assert (
            caught.value.reason.startswith("in use by [2Jprocess 1x")
            and len(caught.value.reason) < 250
        )


def test_captions_up_to_the_limit_are_fine():
    check_captions("here", ["a"], {"a": ["x" * 5000]})
    with pytest.raises(CorpusError, match="here: a has a caption"):
        check_captions("here", ["a"], {"a": ["x" * 5001]})


def test_names_of_videos_that_are_skipped_do_not_reach_the_terminal_raw(tmp_path, capsys):
    pytest.importorskip("av")
    from toys import film
    from picknet_nb.data.datasets import prepare_videos

    names = ["clip", "\x1b[2Jnobody speaks of it"]
    files = {name: film(tmp_path/f"{name}.mp4") for name in names}
    everything = lambda ids: {"train": range(len(ids)), "validation": [], "test": []}
    prepare_videos(
        tmp_path/"out",
        "mine",
        files,
        {"clip": ["a bar wanders"]},
        everything,
        tmp_path/"captions.json",
        load_backbone("tiny"),
        ClipSettings(min_word_count=1),
    )
    said = capsys.readouterr().err
    assert "\\x1b[2Jnobody" in said and "\x1b[2J" not in said
