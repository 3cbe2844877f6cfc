"""A data set as tensors and as a folder: parts that do not fit together, folders that were torn
or edited, writers that were killed."""
import json
import random
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from conftest import Forked, noise_corpus
from reliability import leftovers
from safetensors.torch import load_file
from torch.testing import assert_close

from picknet_nb.core.files import PickNetError
from picknet_nb.core.settings import ClipSettings
from picknet_nb.data.corpus import SPLITS, Corpus, CorpusError, Rows, assemble, write_tensors
from picknet_nb.data.extraction import write_part

ROOT = Path(__file__).parents[1]
ONE = ClipSettings(min_word_count=1)


def small(glances: bool = True) -> Corpus:
    features = torch.rand(4, 30, 6, generator=torch.Generator().manual_seed(0))
    grey = torch.randint(0, 256, (4, 30, 9), dtype=torch.uint8) if glances else None
    captions = [
        ["A dog runs.", "it's a dog"],
        ["a cat"],
        ["Birds sing!", "birds", "some birds sing"],
        ["a dog sings"],
    ]
    return Corpus.build(
        "small",
        list("abcd"),
        features,
        grey,
        captions,
        {"train": [0, 2], "validation": [1], "test": [3]},
        ONE,
        {"source": "nowhere"},
    )


@pytest.mark.parametrize("glances", [True, False])
def test_save_and_load(tmp_path, glances):
    corpus = small(glances)
    corpus.save(tmp_path)
    again = Corpus.load(tmp_path)
    for name in ("features", "glances", "words", "caption_video"):
        assert torch.equal(getattr(again, name), getattr(corpus, name))
    for name in ("name", "ids", "captions", "vocabulary", "settings", "details", "sentences"):
        assert getattr(again, name) == getattr(corpus, name)
    assert all(torch.equal(again.splits[split], corpus.splits[split]) for split in SPLITS)
    assert (again.glances is again.features) == (not glances)
    assert_close(
        corpus.features.float(),
        torch.rand(4, 30, 6, generator=torch.Generator().manual_seed(0)),
        rtol=1e-3,
        atol=1e-3,
    )


def test_words_are_made_again_when_captions_change(tmp_path):
    small().save(tmp_path)
    captions = json.loads((tmp_path/"captions.json").read_text())
    captions["a"] = ["a zebra"]
    (tmp_path/"captions.json").write_text(json.dumps(captions))
    again = Corpus.load(tmp_path)
    assert "zebra" in again.vocabulary.words and again.tokens[0] == [["a", "zebra"]]


def edit_about(path: Path, **changes) -> None:
    "Change `corpus.json` as a person would."
    about = json.loads((path/"corpus.json").read_text())
    (path/"corpus.json").write_text(json.dumps(about | changes))


@pytest.mark.parametrize("count_over, known", [("train", False), ("all", True)])
def test_the_vocabulary_forgets_clips_that_are_no_longer_trained_on(tmp_path, count_over, known):
    "A clip that moves from training to test takes the words along that only its people used."
    corpus = small()
    Corpus.build(**parts(settings=ClipSettings(min_word_count=1, vocabulary_from=count_over))).save(
        tmp_path
    )
    assert "birds" in Corpus.load(tmp_path).vocabulary.words
    edit_about(tmp_path, splits={"train": ["a"], "validation": ["b"], "test": ["c", "d"]})
    moved = Corpus.load(tmp_path)
    assert ("birds" in moved.vocabulary.words) == known and moved.sentences == corpus.sentences
    fresh = Corpus.build(**parts(settings=moved.settings, splits=moved.splits))
    assert moved.vocabulary == fresh.vocabulary and torch.equal(moved.words, fresh.words)


def test_the_vocabulary_is_counted_again_when_the_limit_is_edited(tmp_path):
    corpus = small()
    corpus.save(tmp_path)
    edit_about(tmp_path, settings=asdict(corpus.settings) | {"min_word_count": 2})
    assert (
        Corpus.load(tmp_path).vocabulary
        == Corpus.load(tmp_path, settings=replace(corpus.settings, min_word_count=2)).vocabulary
    )
    assert (
        "runs" in corpus.vocabulary.words and "runs" not in Corpus.load(tmp_path).vocabulary.words
    )


def test_sentences_follow_the_ids(tmp_path):
    "Two clips with as many captions change places: each keeps its own sentences."
    corpus = small()
    corpus.save(tmp_path)
    edit_about(tmp_path, ids=["a", "d", "c", "b"])
    again = Corpus.load(tmp_path)
    assert again.sentences == [corpus.sentences[place] for place in (0, 3, 2, 1)]


def test_settings_say_what_the_tensors_are():
    corpus = Corpus.build(**parts(settings=ClipSettings(frames=8, glance_size=99, cnn="mine")))
    assert (
        corpus.settings.frames,
        corpus.settings.glance_size,
        corpus.settings.glance,
        corpus.settings.cnn,
    ) == (30, 3, "grey", "mine")
    assert Corpus.build(**parts(glances=None)).settings.glance == "feature"


def test_loading_cannot_rename_the_cnn(tmp_path):
    corpus = Corpus.build(**parts(settings=ClipSettings(cnn="mine")))
    corpus.save(tmp_path)
    again = Corpus.load(tmp_path, settings=ClipSettings(cnn="another", glance_size=99, max_words=7))
    assert (again.settings.cnn, again.settings.glance_size, again.words.shape[1]) == ("mine", 3, 7)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"frames": "thirty"}, "frames must be int"),
        ({"colour": "red"}, "colour"),
        ([], "mapping"),
        (7, "mapping"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, reason):
    small().save(tmp_path)
    edit_about(tmp_path, settings=settings)
    with pytest.raises(
        CorpusError, match=f"corpus.json: was built with settings that cannot be: .*{reason}"
    ):
        Corpus.load(tmp_path)


def test_it_is_shown_in_one_line():
    corpus = noise_corpus()
    assert repr(corpus) == str(corpus) and "\n" not in repr(corpus) and len(repr(corpus)) < 200
    assert repr(corpus) == (
        "Corpus('noise': 40 clips (24 train, 8 validation, 8 test), 30 frames, 32 features of "
        "tiny, "
        "200 captions, 21 words, on cpu)"
    )


def test_no_tokeniser_needed_to_load(tmp_path, monkeypatch):
    small().save(tmp_path)
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    # nor to count the words again
    again = Corpus.load(tmp_path, settings=replace(ONE, min_word_count=2))
    assert again.tokens[0][1] == ["it", "'s", "a", "dog"] and len(again.vocabulary) < len(
        small().vocabulary
    )


def test_pairs_and_references_are_those_of_a_split():
    corpus = small()
    assert corpus.pairs("train").tolist() == [0, 1, 3, 4, 5]
    assert corpus.references("test") == {"d": ["a dog sings"]}


def parts(**changes) -> dict:
    corpus = small()
    return (
        dict(
            name="small",
            ids=corpus.ids,
            features=corpus.features,
            glances=corpus.glances,
            captions=corpus.captions,
            splits=dict(corpus.splits),
            settings=ONE,
        )
        | changes
    )


@pytest.mark.parametrize(
    "changes, reason",
    [
        (dict(ids=["a", "b", "c", "c"]), "same video twice: c"),
        (dict(ids=["a", "b", "c"]), "captions of 4 videos, but 3 ids"),
        (dict(features=torch.rand(3, 30, 6)), "features of 3 videos, but 4 ids"),
        (dict(features=torch.rand(4, 30)), r"\(videos, frames, dims\)"),
        (
            dict(features=torch.full((4, 30, 6), float("inf"))),
            "not finite numbers.*: a, b, c and 1 more",
        ),
        (
            dict(features=torch.full((4, 30, 6), 7e4)),
            "too large for half precision.*: a, b, c and 1 more",
        ),
        (dict(glances=torch.zeros(4, 20, 9, dtype=torch.uint8)), "do not fit features"),
        (dict(glances=torch.rand(4, 30, 9)), "torch.float32: grey glances must be uint8, 0 to 255"),
        (
            dict(glances=torch.full((4, 30, 9), 300)),
            "torch.int64: grey glances must be uint8, 0 to 255",
        ),
        (dict(captions=[["a"], ["b"], [], ["d"]]), "videos without captions: c"),
        (dict(captions=[["a"], ["b"], [3], ["d"]]), "must be a list of texts"),
        (
            dict(splits={"train": [0], "val": [1], "test": [2]}),
            "splits must be train, validation, test",
        ),
        (dict(splits={"train": [0], "validation": [0], "test": [2]}), "two splits"),
        (dict(splits={"train": [0], "validation": [9], "test": [2]}), "names video 9"),
        (dict(features=torch.rand(4, 0, 6), glances=None), "frames must be 1 or more"),
        (dict(details={"cnn": "tiny", "frames": 30}), "frames, cnn: say so in the settings"),
    ],
)
def test_parts_that_do_not_fit(changes, reason):
    with pytest.raises(CorpusError, match=reason):
        Corpus.build(**parts(**changes))


def test_features_as_glances_in_any_precision():
    features = torch.rand(4, 30, 6)
    corpus = Corpus.build(**parts(features=features, glances=features))
    assert corpus.glances is corpus.features and corpus.features.dtype == torch.float16


def test_nan_on_disk(tmp_path):
    corpus = small()
    corpus.features[2, 5, 1] = float("nan")
    corpus.save(tmp_path)
    with pytest.raises(CorpusError, match="not finite numbers.*: c"):
        Corpus.load(tmp_path)


def test_wrong_number_of_frames_or_no_glances(tmp_path):
    small(glances=False).save(tmp_path)
    with pytest.raises(CorpusError, match="30 frames for each video, the settings ask for 8"):
        Corpus.load(tmp_path, settings=ClipSettings(frames=8, glance="feature"))
    with pytest.raises(CorpusError, match="no grey glances"):
        Corpus.load(tmp_path, settings=ClipSettings())


@pytest.mark.parametrize(
    "name", ["corpus.json", "captions.json", "words.json", "videos.safetensors"]
)
def test_torn_and_garbled_folders(tmp_path, name):
    "Whatever is cut off or overwritten, loading gives the same corpus or a readable error."
    corpus, chance = small(), random.Random(name)
    corpus.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    for _ in range(25):
        cut = chance.randrange(len(content))
        torn = (
            content[:cut]
            if chance.random() < 0.5
            else content[:cut] + chance.randbytes(3) + content[cut + 3 :]
        )
        (tmp_path / name).write_bytes(torn)
        try:
            again = Corpus.load(tmp_path)
        except PickNetError as error:
            assert str(tmp_path) in str(error)
        else:
            assert again.ids and len(again.words) == len(again.caption_video)


def test_assembly_killed(tmp_path):
    "A kill while the corpus is written leaves the parts and no folder that looks complete."
    for number in range(40):
        write_part(
            tmp_path, f"v{number}", torch.rand(30, 2048), torch.zeros(30, 3136, dtype=torch.uint8)
        )
    ids = [f"v{number}" for number in range(40)]

    def assemble_for_ever():
        while True:
            assemble(
                tmp_path,
                "killed",
                {name: ["a dog"] for name in ids},
                {"train": range(30), "validation": [30], "test": [31]},
            )

    for moment in (0.05, 0.2, 0.35):
        process = Forked(assemble_for_ever)
        time.sleep(moment)
        process.kill()
        process.wait()
        try:
            assert len(Corpus.load(tmp_path).ids) == 40
        except CorpusError as error:
            assert "has not finished" in error.reason
    corpus = assemble(
        tmp_path,
        "whole",
        {f"v{n}": ["a dog"] for n in range(40)},
        {"train": range(30), "validation": [30], "test": [31]},
    )
    assert corpus.features.shape == (40, 30, 2048)


def test_parts_that_do_not_fit_each_other(tmp_path):
    write_part(tmp_path, "a", torch.rand(30, 8), torch.zeros(30, 9, dtype=torch.uint8))
    write_part(tmp_path, "b", torch.rand(20, 8), torch.zeros(20, 9, dtype=torch.uint8))
    captions = {"a": ["a dog"], "b": ["a cat"]}
    splits = {"train": [0], "validation": [1], "test": []}
    with pytest.raises(CorpusError, match=r"b.safetensors.*\(20, 8\)"):
        assemble(tmp_path, "bad", captions, splits)
    write_part(
        tmp_path, "b", torch.full((30, 8), float("nan")), torch.zeros(30, 9, dtype=torch.uint8)
    )
    with pytest.raises(CorpusError, match="b.safetensors.*not finite"):
        assemble(tmp_path, "bad", captions, splits)
    write_part(tmp_path, "b", torch.rand(30, 8), torch.rand(30, 9))
    with pytest.raises(
        CorpusError, match="b.safetensors.*torch.float32: grey glances must be uint8"
    ):
        assemble(tmp_path, "bad", captions, splits)


def test_what_a_kill_left_half_written_goes(tmp_path):
    write_part(tmp_path, "a", torch.rand(30, 8), torch.zeros(30, 9, dtype=torch.uint8))
    splits = {"train": [0], "validation": [], "test": []}
    for write in (
        lambda: small().save(tmp_path),
        lambda: assemble(tmp_path, "one", {"a": ["a dog"]}, splits, ONE),
    ):
        (tmp_path/".abcdefgh.partial").write_bytes(b"half a file")
        (tmp_path/".abcdefgh.12345678.partial").mkdir(exist_ok=True)
        write()
        assert not list(tmp_path.rglob(".*.partial"))


def test_two_writers_of_one_file(tmp_path):
    """Each writes a file of its own; whoever is last has the name, and the other's readers keep
    what they opened."""
    path = tmp_path/"videos.safetensors"
    one = lambda value: torch.full((1, 2), value, dtype=torch.uint8)

    def pieces():
        yield one(1)
        write_tensors(path, {"glances": Rows(torch.uint8, (2, 2), [one(2), one(2)])})
        found.append((path.read_bytes(), load_file(path)["glances"]))
        yield one(1)

    found = []
    write_tensors(path, {"glances": Rows(torch.uint8, (2, 2), pieces())})
    ((content, seen),) = found
    assert (
        torch.equal(load_file(path)["glances"], one(1).expand(2, 2))
        and path.read_bytes() != content
    )
    assert torch.equal(seen, one(2).expand(2, 2)) and not list(leftovers(tmp_path))


def test_loading_maps_a_large_file(tmp_path, monkeypatch):
    "A corpus that is larger than the limit does not fill the memory."
    psutil = pytest.importorskip("psutil")
    monkeypatch.setenv("PICKNET_MEMORY_BYTES", "1000000")
    videos = 400
    write_tensors(
        tmp_path/"videos.safetensors",
        {
            "features": Rows(
                torch.float16,
                (videos, 30, 8192),
                (torch.ones(1, 30, 8192, dtype=torch.float16) for _ in range(videos)),
            )
        },
    )
    process = psutil.Process()
    before = process.memory_full_info().uss
    from picknet_nb.data.corpus import _read_videos

    features, _ = _read_videos(tmp_path/"videos.safetensors")
    assert features[7, 3].sum() == 8192
    assert process.memory_full_info().uss - before < 50e6 < features.nbytes
