"""Ids that are one and the same, or would be in another case or Unicode form: every reader names
them, and no clip moves from one split to another in silence."""
import io
import json
import zipfile

import numpy as np
import pytest
import torch

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.annotations import DATASETS, files_by_clip, read_annotations, read_captions
from picknet_nb.data.joining import prepare_joined
from picknet_nb.data.own_features import open_features
from picknet_nb.data.splits import draw_splits, read_splits
from picknet_nb.data.extraction import list_videos
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.msvd_files import read_mapping, read_msvd_csv
from conftest import noise_corpus

# pairs of ids that must not stand side by side
EQUAL = [
    pytest.param("clip", "clip", id="twice"),
    pytest.param("Clip", "clip", id="case"),
    pytest.param("caf\u00e9", "cafe\u0301", id="form"),
    pytest.param("STRASSE", "stra\u00dfe", id="case of more letters"),
]
UNEQUAL = EQUAL[1:]  # for what cannot hold one name twice


def names_both(error, *names) -> bool:
    return all(name in str(error.value) for name in names)


@pytest.mark.parametrize("one, other", EQUAL)
@pytest.mark.parametrize("first, second", [("test", "train"), ("train", "train")])
@pytest.mark.parametrize("files", [1, 2])
def test_msrvtt_has_each_video_once(tmp_path, one, other, first, second, files):
    listed = [{"video_id": one, "split": first}, {"video_id": other, "split": second}]
    said = [{"video_id": each, "caption": "a dog runs"} for each in {one, other}]
    parts = [listed] if files == 1 else [listed[:1], listed[1:]]
    for number, videos in enumerate(parts):
        (tmp_path/f"{number}.json").write_text(
            json.dumps({"videos": videos, "sentences": said if number == 0 else []})
        )
    with pytest.raises(FileError, match="listed twice") as error:
        read_msrvtt(*(tmp_path/f"{number}.json" for number in range(files)))
    assert names_both(error, one, other, f"{files - 1}.json")


def test_a_packed_annotation_file_has_each_name_once(tmp_path):
    twice = '{"videos": [], "videos": [{"video_id": "a", "split": "test"}], "sentences": []}'
    with zipfile.ZipFile(tmp_path/"info.zip", "w") as archive:
        archive.writestr("info.json", twice)
    with pytest.raises(FileError, match="'videos' is twice"):
        read_msrvtt(tmp_path/"info.zip")


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_captions_name_each_video_once(tmp_path, one, other):
    (tmp_path/"captions.json").write_text(json.dumps({one: ["a dog"], other: ["a cat"]}))
    with pytest.raises(FileError, match="the same video twice") as error:
        read_captions(tmp_path/"captions.json")
    assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_a_table_of_captions_names_each_video_once(tmp_path, one, other):
    rows = [f"{each},1,5,English,a dog runs" for each in (one, other)]
    (tmp_path/"corpus.csv").write_text("\n".join(["VideoID,Start,End,Language,Description", *rows]))
    with pytest.raises(FileError, match="the same video twice") as error:
        read_msvd_csv(tmp_path/"corpus.csv")
    assert names_both(error, one, other)


HEAD = "VideoID,Start,End,Language,Description\n"


def test_a_quotation_mark_that_is_never_closed_swallows_no_captions(tmp_path):
    path = tmp_path/"corpus.csv"
    path.write_text(HEAD + 'a,1,2,English,"a dog\nb,1,2,English,a cat\nc,1,2,English,a bird\n')
    with pytest.raises(FileError, match="a quotation mark that is never closed"):
        read_msvd_csv(path)


@pytest.mark.parametrize("before, row, caption", [
    ("", 'a,1,2,English,"a ""big"" dog, fast\nand far"', 'a "big" dog, fast\nand far'),
    ("\ufeff", "a,1,2,English,a dog", "a dog"),
    ("", 'a,1,2,English,a 5" disk', 'a 5" disk'),
], ids=["quoted", "of a spreadsheet", "a mark in the middle"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=repr)
def test_honest_tables_are_read(tmp_path, before, row, caption, end):
    (tmp_path/"corpus.csv").write_text(before + HEAD + row + end, newline="")
    assert read_msvd_csv(tmp_path/"corpus.csv") == {"a_1_2": [caption]}


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_a_mapping_names_each_clip_once(tmp_path, one, other):
    (tmp_path/"mapping.txt").write_text(f"{one} vid1\n{other} vid1300\n")
    with pytest.raises(FileError, match="the same id twice") as error:
        read_mapping(tmp_path/"mapping.txt")
    assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", EQUAL)
def test_a_file_of_splits_has_each_clip_in_one(tmp_path, one, other):
    path = tmp_path/"splits.json"
    path.write_text(json.dumps({"train": [one], "validation": ["x"], "test": [other]}))
    for read in (lambda: read_splits(path, [one]), lambda: draw_splits([one, "x", "y"], path)):
        with pytest.raises(FileError, match="in two splits") as error:
            read()
        assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_a_list_of_clips_has_each_in_one_split(tmp_path, one, other):
    path = tmp_path/"splits.json"
    path.write_text(json.dumps({one: "train", other: "test"}))
    with pytest.raises(FileError, match="in two splits") as error:
        read_splits(path, [one])
    assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_a_data_set_of_ones_own_has_each_clip_in_one_split(monkeypatch, one, other):
    read = lambda path: ({one: ["a dog"]}, {one: "train", other: "test"})
    monkeypatch.setitem(DATASETS, "own", read)
    with pytest.raises(FileError, match="in two splits") as error:
        read_annotations("own", ["captions.json"])
    assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_two_files_are_not_one_clip(tmp_path, one, other):
    for folder, name in (("a", one), ("b", other)):
        (tmp_path/folder).mkdir()
        (tmp_path/folder/f"{name}.mp4").touch()
    with pytest.raises(FileError, match="has the same id as"):
        list_videos(tmp_path)
    with pytest.raises(FileError, match="the same id twice"):
        list_videos({one: "a.mp4", other: "b.mp4"})
    with pytest.raises(FileError, match=f"is clip {other}"):
        files_by_clip({one: tmp_path/"a.mp4", "vid1": tmp_path/"b.mp4"}, {"vid1": other})


@pytest.mark.parametrize("one, other", EQUAL)
def test_features_of_one_clip_stand_in_one_place(tmp_path, one, other):
    clip = np.zeros((3, 4), np.float16)
    np.savez(tmp_path/"ids.npz", ids=np.array([one, other]), features=np.stack([clip, clip]))
    for part, name in (("x", one), ("y", other)):
        np.savez(tmp_path/f"{part}.npz", **{name: clip})
    with pytest.raises(FileError, match="the same id twice") as error:
        open_features(tmp_path/"ids.npz")
    assert names_both(error, one, other)
    with pytest.raises(FileError, match="another file holds too") as error:
        open_features(tmp_path/"x.npz", tmp_path/"y.npz")
    assert names_both(error, one, other)


@pytest.mark.parametrize("one, other", EQUAL)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_of_arrays_has_each_name_once(tmp_path, one, other):
    np.save(array := io.BytesIO(), np.zeros((3, 4), np.float16))
    with zipfile.ZipFile(tmp_path/"all.npz", "w") as archive:
        for name in (one, other):
            archive.writestr(f"{name}.npy", array.getvalue())
    with pytest.raises(FileError, match="the same id twice"):
        open_features(tmp_path/"all.npz")


@pytest.mark.parametrize("one, other", UNEQUAL)
def test_folders_and_hdf5_have_each_clip_once(tmp_path, one, other):
    h5py = pytest.importorskip("h5py")
    (tmp_path/"arrays").mkdir()
    with h5py.File(tmp_path/"all.h5", "w") as file:
        for name in (one, other):
            np.save(tmp_path/"arrays"/f"{name}.npy", np.zeros((3, 4), np.float16))
            file[name] = np.zeros((3, 4), np.float16)
    for path in (tmp_path/"arrays", tmp_path/"all.h5"):
        with pytest.raises(FileError, match="the same id twice"):
            open_features(path)


@pytest.mark.parametrize("one, other", EQUAL)
def test_a_corpus_holds_each_clip_once(one, other):
    empty = {"train": [0], "validation": [1], "test": []}
    with pytest.raises(PickNetError, match="twice|captions of"):
        Corpus.build(
            "c", [one, other], torch.zeros(2, 30, 4).half(), None, [["a"], ["b"]], empty,
            preset("smoke", glance="feature").clip,
        )


def test_corpora_that_share_a_clip_are_not_joined(tmp_path):
    one, other = noise_corpus(10), noise_corpus(10, seed=1)
    other.ids = [f"other{number}" for number in range(9)] + ["VIDEO3"]
    with pytest.raises(FileError, match="the same video twice: video3 and VIDEO3"):
        prepare_joined(tmp_path/"joined", [one, other])


def test_ids_that_differ_are_left_alone(tmp_path):
    ids = ["a_1_5", "a_1_50", "a-1-5", "\u00e4", "a", "o\u0308", "vid1", "vid10"]
    (tmp_path/"captions.json").write_text(json.dumps({each: ["a dog"] for each in ids}))
    assert list(read_captions(tmp_path/"captions.json")) == ids
