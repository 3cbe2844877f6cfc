"""Official layouts of data sets, clips that are missing, ready-made features, downloads that
break off."""
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from picknet_nb.core.files import PickNetError
from picknet_nb.core.registry import MODULES, USED
from picknet_nb.core.settings import ClipSettings
from picknet_nb.data.backbones import load_backbone
from picknet_nb.data.corpus import SPLITS, Corpus, CorpusError
from picknet_nb.data.annotations import DATASETS, read_annotations
from picknet_nb.data.datasets import prepare_dataset, prepare_videos
from picknet_nb.data.own_features import open_features, prepare_features
from picknet_nb.data.splits import read_splits
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.msvd_files import read_mapping, read_msvd_csv
from picknet_nb.data.text import _nltk_words
from picknet_nb.interface.main import app
from picknet_nb.interface.python import prepare

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT/"data"/"example.mp4"
ONE = ClipSettings(min_word_count=1)


HEADER = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"


def test_msvd_in_its_official_layout(tmp_path):
    clips = tmp_path/"YouTubeClips"
    clips.mkdir()
    for name in ("aaa_1_5", "bbb_2_9", "ccc_0_4"):
        shutil.copy(EXAMPLE, clips/f"{name}.avi")
    (tmp_path/"video_corpus.csv").write_text(
        HEADER
        + "".join(
            f'{video},{start},{end},1,clean,9,{language},"{text}"\n'
            for video, start, end, language, text in (
                ("bbb", 2, 9, "English", "A man, his dog."),
                ("aaa", 1, 5, "English", "a cat"),
                ("aaa", 1, 5, "German", "eine Katze"),
                ("aaa", 1, 5, "English", ""),
                ("ccc", 0, 4, "English", "two\nlines"),
                ("ddd", 0, 4, "English", "no clip"),
            )
        ),
        encoding="utf-8",
    )
    (tmp_path/"youtube_mapping.txt").write_text(
        "aaa_1_5 vid1200\nbbb_2_9 vid1201\nccc_0_4 vid1301\nddd_0_4 vid1302\n"
    )
    (clips/"empty.avi").touch()
    made = prepare_dataset(
        tmp_path/"out",
        "msvd",
        tmp_path/"video_corpus.csv",
        clips,
        load_backbone("tiny"),
        tmp_path/"youtube_mapping.txt",
        ONE,
        1,
        False,
    )
    assert made.corpus.ids == ["aaa_1_5", "bbb_2_9", "ccc_0_4"]
    assert [made.corpus.splits[split].tolist() for split in SPLITS] == [[0], [1], [2]]
    assert made.corpus.captions == [["a cat"], ["A man, his dog."], ["two\nlines"]]
    assert made.missing == ["ddd_0_4"] and "the file is empty" in made.failed["empty"]
    assert (
        made.corpus.settings == replace(ONE, cnn="tiny") == Corpus.load(tmp_path/"out").settings
    )
    with pytest.raises(CorpusError, match="names 4 of MSVD's 1,970 clips"):
        prepare_dataset(
            tmp_path/"other",
            "msvd",
            tmp_path/"video_corpus.csv",
            clips,
            load_backbone("tiny"),
            None,
            ONE,
            1,
            False,
        )


def test_what_cutting_captions_needs_is_asked_for_before_extraction(tmp_path, monkeypatch):
    _nltk_words.cache_clear()
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)  # as if it were not installed
    shutil.copy(EXAMPLE, tmp_path/"clip.avi")
    with pytest.raises(PickNetError, match="tokenising needs NLTK"):
        prepare_videos(
            tmp_path/"out",
            "mine",
            {"clip": tmp_path/"clip.avi"},
            {"clip": ["a man, his dog"]},
            None,
            "captions.json",
            load_backbone("tiny"),
            ONE,
            1,
            False,
        )
    assert not (tmp_path/"out").exists()


def test_msvd_with_one_clip_under_two_names(tmp_path):
    """vid1.avi and <clip id>.avi are the same clip: which of them would be used is not ours to
    guess."""
    (tmp_path/"captions.json").write_text(json.dumps({"aaa_1_5": ["a cat"]}))
    (tmp_path/"mapping.txt").write_text("aaa_1_5 vid1\n")
    clips = tmp_path/"clips"
    clips.mkdir()
    for name in ("aaa_1_5.avi", "vid1.avi"):
        shutil.copy(EXAMPLE, clips / name)
    with pytest.raises(CorpusError, match="vid1.avi: is clip aaa_1_5, and so is aaa_1_5.avi"):
        prepare_dataset(
            tmp_path/"out",
            "msvd",
            tmp_path/"captions.json",
            clips,
            load_backbone("tiny"),
            tmp_path/"mapping.txt",
            ONE,
            1,
            False,
        )


def test_msvd_csv_that_is_none(tmp_path):
    (tmp_path/"other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CorpusError, match="has no column"):
        read_msvd_csv(tmp_path/"other.csv")
    (tmp_path/"empty.csv").write_text(HEADER)
    with pytest.raises(CorpusError, match="no English captions"):
        read_msvd_csv(tmp_path/"empty.csv")
    with pytest.raises(CorpusError, match="no such file"):
        read_msvd_csv(tmp_path/"missing.csv")


def annotations(path: Path, videos: dict[int, str]) -> Path:
    path.write_text(
        json.dumps(
            {
                "info": {"contributor": "Microsoft Research"},
                "videos": [
                    {
                        "category": 9,
                        "url": "",
                        "video_id": f"video{n}",
                        "start time": 1,
                        "end time": 9,
                        "split": split,
                        "id": n,
                    }
                    for n, split in videos.items()
                ],
                "sentences": [
                    {
                        "caption": f"caption {k} of {n}",
                        "video_id": f"video{n}",
                        "sen_id": 20 * n + k,
                    }
                    for n in videos
                    for k in range(20)
                ],
            }
        )
    )
    return path


def test_msrvtt_in_its_official_layout(tmp_path):
    first = annotations(
        tmp_path/"train_val_videodatainfo.json",
        {n: "train" if n < 6513 else "validate" for n in range(7010)},
    )
    second = annotations(
        tmp_path/"test_videodatainfo.json", {n: "test" for n in range(7010, 10_000)}
    )
    captions, which = read_msrvtt(first, second)
    assert (
        list(captions) == [f"video{n}" for n in range(10_000)]
        and sum(map(len, captions.values())) == 200_000
    )
    assert [list(which.values()).count(split) for split in SPLITS] == [6513, 497, 2990]
    videos = tmp_path/"videos"
    videos.mkdir()
    for number in (9, 10, 6600, 8000):
        (videos/f"video{number}.mp4").symlink_to(EXAMPLE)
    made = prepare_dataset(
        tmp_path/"out",
        "msrvtt",
        [first, second],
        videos,
        load_backbone("tiny"),
        None,
        ONE,
        1,
        False,
    )
    assert (
        made.corpus.ids == ["video9", "video10", "video6600", "video8000"]
        and len(made.missing) == 9996
    )
    assert [made.corpus.splits[split].tolist() for split in SPLITS] == [[0, 1], [2], [3]]


def test_msrvtt_that_is_none(tmp_path):
    (tmp_path/"a.json").write_text(
        '{"videos": [{"video_id": "video0", "split": "holiday"}], "sentences": []}'
    )
    with pytest.raises(CorpusError, match="not in the layout of MSR-VTT"):
        read_msrvtt(tmp_path/"a.json")
    (tmp_path/"a.zip").write_bytes(b"PK")
    with pytest.raises(CorpusError, match="cannot be read"):
        read_msrvtt(tmp_path/"a.zip")


@pytest.fixture
def texts(tmp_path) -> tuple[Path, Path]:
    (tmp_path/"captions.json").write_text(json.dumps({name: ["a dog runs"] for name in "abc"}))
    (tmp_path/"splits.json").write_text(json.dumps({"train": ["a"], "val": ["b"], "test": ["c"]}))
    return tmp_path/"captions.json", tmp_path/"splits.json"


def test_features_with_grey_glances(tmp_path, texts):
    values = np.random.rand(3, 30, 5).astype(np.float32)
    grey = np.random.randint(0, 256, (3, 30, 4, 4)).astype(np.uint8)
    np.savez(tmp_path/"f.npz", ids=list("abc"), features=values)
    np.savez(tmp_path/"g.npz", ids=list("abc"), features=grey)
    made = prepare_features(
        tmp_path/"out",
        tmp_path/"f.npz",
        *texts,
        glances=tmp_path/"g.npz",
        cnn="mine",
        settings=ONE,
    )
    assert torch.equal(made.corpus.glances, torch.from_numpy(grey).flatten(2)) and (
        made.corpus.settings.glance,
        made.corpus.settings.glance_size,
        made.corpus.settings.cnn,
    ) == ("grey", 4, "mine")
    assert_close(
        Corpus.load(tmp_path/"out").features.float(),
        torch.from_numpy(values),
        rtol=1e-3,
        atol=1e-3,
    )


def test_a_video_without_a_glance_is_missing(tmp_path, texts):
    np.savez(
        tmp_path/"f.npz", ids=list("abc"), features=np.random.rand(3, 30, 5).astype(np.float32)
    )
    np.savez(tmp_path/"g.npz", ids=list("ac"), features=np.zeros((2, 30, 4), np.uint8))
    made = prepare_features(
        tmp_path/"out",
        tmp_path/"f.npz",
        *texts,
        glances=tmp_path/"g.npz",
        cnn="mine",
        settings=ONE,
    )
    assert made.corpus.ids == ["a", "c"] and made.missing == ["b"]


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_glances_that_are_not_grey_levels(tmp_path, texts, kind):
    np.savez(
        tmp_path/"f.npz", ids=list("abc"), features=np.random.rand(3, 30, 5).astype(np.float32)
    )
    np.savez(tmp_path/"g.npz", ids=list("abc"), features=np.random.rand(3, 30, 4).astype(kind))
    with pytest.raises(
        CorpusError,
        match=f"g.npz: a is torch.{kind.__name__}: grey glances must be uint8, 0 to 255",
    ):
        prepare_features(
            tmp_path/"out",
            tmp_path/"f.npz",
            *texts,
            glances=tmp_path/"g.npz",
            cnn="mine",
            settings=ONE,
        )
    assert not (tmp_path/"out"/"corpus.json").exists()


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda values: values[:, :29], "29.*30 frames are wanted"),
        (lambda values: np.where(values > 0.99, np.nan, values), "not finite numbers"),
        (lambda values: values * 1e6, "too large for half precision"),
        (lambda values: values[:, 0], "30 frames are wanted"),
    ],
)
def test_features_that_do_not_fit(tmp_path, texts, spoil, reason):
    np.savez(
        tmp_path/"f.npz",
        ids=list("abc"),
        features=spoil(np.random.rand(3, 30, 50).astype(np.float32)),
    )
    with pytest.raises(CorpusError, match=reason) as caught:
        prepare_features(tmp_path/"out", tmp_path/"f.npz", *texts)
    assert "f.npz" in str(caught.value) and not (tmp_path/"out"/"corpus.json").exists()


def test_one_video_with_another_width(tmp_path, texts):
    (tmp_path/"npy").mkdir()
    for name, dims in zip("abc", (4, 4, 5)):
        np.save(tmp_path/"npy"/f"{name}.npy", np.zeros((30, dims), np.float32))
    with pytest.raises(CorpusError, match="c has 5 dimensions, those before it 4"):
        prepare_features(tmp_path/"out", tmp_path/"npy", *texts)


def test_features_of_other_videos(tmp_path, texts):
    np.savez(tmp_path/"f.npz", **{name: np.zeros((30, 2), np.float32) for name in "xyz"})
    with pytest.raises(CorpusError, match="has no video id in common with"):
        prepare_features(tmp_path/"out", tmp_path/"f.npz", *texts)


@pytest.mark.parametrize(
    "name, content",
    [("a.npz", b"nothing"), ("a.h5", b"nothing"), ("a.npz", b""), ("missing.npz", None)],
)
def test_feature_files_that_are_none(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match="cannot be read as features"):
        open_features(tmp_path / name)


def test_pickled_features_are_refused(tmp_path, texts):
    np.savez(tmp_path/"f.npz", a=np.array([{"any": "object"}], dtype=object))
    with pytest.raises(CorpusError, match="a cannot be read"):
        prepare_features(tmp_path/"out", tmp_path/"f.npz", *texts)


def test_splits_in_every_form(tmp_path):
    (tmp_path/"m.txt").write_text("a vid1\nb vid1250\nc vid1970\n")
    (tmp_path/"lists.json").write_text('{"train": ["a"], "validation": ["b"], "test": ["c"]}')
    (tmp_path/"each.json").write_text('{"a": "train", "b": "validate", "c": "test"}')
    for name in ("m.txt", "lists.json", "each.json"):
        assert [read_splits(tmp_path / name, list("abc"))[split].tolist() for split in SPLITS] == [
            [0],
            [1],
            [2],
        ]
    (tmp_path/"bad.json").write_text('{"a": "holiday"}')
    for name in ("bad.json", "m.txt"):
        with pytest.raises(CorpusError):
            read_splits(tmp_path / name, list("abcd"))


@pytest.mark.parametrize(
    "lines, said",
    [
        ("a_0_1 vid1\nb_0_1 vid2\na_0_1 vid3\n", "line 3 names a_0_1 for the second time"),
        ("a_0_1 vid1\nb_0_1 vid01\n", "line 2 names vid01 for the second time"),
    ],
)
def test_a_mapping_names_every_clip_and_every_number_once(tmp_path, lines, said):
    (tmp_path/"mapping.txt").write_text(lines)
    with pytest.raises(CorpusError, match=said):
        read_mapping(tmp_path/"mapping.txt")


# a data set of one's own
# --------------------------------------------------------------------------------------------------

HOLIDAYS = """
import csv
import picknet_nb as pn

@pn.DATASETS.add("holidays", clips={"train": 40, "validation": 1, "test": 1}, backbone="tiny")
def read_holidays(*paths, splits=None):
    "Holidays on film."
    captions, which = {}, {}
    for path in paths:
        with open(path) as file:
            for clip, split, caption in csv.reader(file):
                captions.setdefault(clip, []).append(caption)
                which[clip] = split
    return captions, which
"""


@pytest.fixture
def holidays(tmp_path, monkeypatch) -> Path:
    "A folder with annotations, three of four videos, and a module that registers the data set."
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path/"holiday_films.py").write_text(HOLIDAYS)
    (tmp_path/"holidays.csv").write_text(
        "sea,train,a dog swims\nsea,train,a dog\nhill,train,a cow\nlake,val,a duck\nisle,test,a "
        "cat\n"
    )
    (tmp_path/"films").mkdir()
    for name in ("sea", "lake", "isle"):
        shutil.copy(EXAMPLE, tmp_path/"films"/f"{name}.mp4")
    yield tmp_path
    DATASETS.pop("holidays", None)
    for known in (sys.modules, MODULES):
        known.pop("holiday_films", None)
    USED.clear()


def test_a_data_set_of_one_s_own_is_one_function(holidays):
    exec(HOLIDAYS, {"__name__": "__main__"})  # as in a notebook
    made = prepare_dataset(
        holidays/"out", "holidays", "holidays.csv", "films", load_backbone("tiny"), None, ONE, 1,
        False,
    )
    assert made.corpus.ids == ["sea", "lake", "isle"] and made.missing == ["hill"]
    assert [made.corpus.splits[split].tolist() for split in SPLITS] == [[0], [1], [2]]
    assert made.corpus.captions[0] == ["a dog swims", "a dog"]
    (holidays/"holidays.csv").write_text("sea,summer,a dog swims\n")
    with pytest.raises(CorpusError, match="splits that are not train, validation, test: summer"):
        prepare_dataset(
            holidays/"out", "holidays", "holidays.csv", "films", load_backbone("tiny"), None, ONE
        )


def test_a_data_set_of_one_s_own_is_a_command(holidays):
    "It is listed, says what it is, and reports how much of it is there."
    use = ["--use", "holiday_films", "prepare"]
    assert "holidays" not in CliRunner().invoke(app, ["prepare", "--help"]).output
    listed = CliRunner().invoke(app, [*use, "--help"]).output
    assert "msvd" in listed and "holidays" in listed and "Holidays on film." in listed
    asked = CliRunner().invoke(app, [*use, "holidays", "--help"]).output
    assert "Holidays on film." in asked and "--annotations" in asked and "tiny" in asked
    made = CliRunner().invoke(
        app,
        [*use, "holidays", "--annotations", "holidays.csv", "--videos", "films", "--out", "out",
         "--workers", "1", "--set", "min_word_count=1"],
    )
    assert "out: 3 videos (1 of 40 train, 1 validation, 1 test)" in made.output, made.output
    assert Corpus.load("out").name == "holidays" and Corpus.load("out").settings.cnn == "tiny"


def test_files_that_a_data_set_does_not_take_are_an_error(tmp_path):
    for files, more in ((["a.csv", "b.csv"], None), ([], None)):
        with pytest.raises(PickNetError, match="msvd is not read from"):
            read_annotations("msvd", files, more)
    with pytest.raises(PickNetError, match="msrvtt is not read from 1 annotation file and a file"):
        read_annotations("msrvtt", ["a.json"], "splits.json")
    with pytest.raises(PickNetError, match="no data set 'msvdd': did you mean msvd?"):
        read_annotations("msvdd", ["a.json"])


def test_msvd_by_the_command(tmp_path):
    (tmp_path/"captions.json").write_text(json.dumps({"aaa_1_5": ["a cat"], "bbb_2_9": ["a dog"]}))
    (tmp_path/"mapping.txt").write_text("aaa_1_5 vid1\nbbb_2_9 vid1201\n")
    (tmp_path/"clips").mkdir()
    shutil.copy(EXAMPLE, tmp_path/"clips"/"vid1.avi")
    shutil.copy(EXAMPLE, tmp_path/"clips"/"bbb_2_9.avi")
    made = CliRunner().invoke(
        app,
        ["prepare", "msvd", "--annotations", str(tmp_path/"captions.json"), "--videos",
         str(tmp_path/"clips"), "--splits", str(tmp_path/"mapping.txt"), "--out",
         str(tmp_path/"out"), "--backbone", "tiny", "--workers", "1", "--set", "min_word_count=1"],
    )
    assert "2 videos (1 of 1,200 train, 1 of 100 validation, 0 of 670 test)" in made.output


def test_preparing_from_python_prints_nothing_of_a_command(tmp_path, capsys):
    (tmp_path/"clips").mkdir()
    for name in "abc":
        shutil.copy(EXAMPLE, tmp_path/"clips"/f"{name}.mp4")
    captions = {name: ["a dog runs"] for name in "abc"}
    prepare(
        tmp_path/"clips", captions, tmp_path/"out", "tiny", workers=1, bars=False, min_word_count=1
    )
    assert capsys.readouterr().out == "" and (tmp_path/"out"/"splits.json").exists()
