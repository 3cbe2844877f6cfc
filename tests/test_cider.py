"""CIDEr-D against pycocoevalcap and against the plain formula, on real, random and hostile
captions."""
from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from picknet_nb.core.files import PickNetError
from picknet_nb.data.text import EOS, PAD, SPECIALS, UNK, Vocabulary, tokenize
from picknet_nb.method.cider import Cider, document_frequencies, plain_cider
from picknet_nb.method.fast_cider import clipped_dot, find

MSVD = Path(__file__).parents[1]/"data"/"msvd"/"captions.json"
WORDS = [f"w{i}" for i in range(60)]
# the last twenty words are unknown to the captioner
VOCABULARY = Vocabulary(SPECIALS + tuple(WORDS[:40]))


def coco(captions: list[str], references: list[list[list[str]]]) -> torch.Tensor:
    scorer_module = pytest.importorskip(
        "pycocoevalcap.cider.cider_scorer", reason="pycocoevalcap is not installed"
    )
    scorer = scorer_module.CiderScorer()
    for caption, known in zip(captions, references):
        scorer += (caption, [" ".join(words) for words in known])
    return torch.tensor(np.asarray(scorer.compute_score()[1]))


def make_references(videos: int, seed: int) -> list[list[list[str]]]:
    draw = random.Random(seed)
    sentence = lambda topic: [draw.choice(topic) for _ in range(draw.randint(0, 12))]
    corpus = []
    for video in range(videos):
        topic = draw.sample(WORDS, 8)
        corpus.append([sentence(topic) for _ in range([1, 80, draw.randint(1, 20)][min(video, 2)])])
    return corpus


def make_ids(references, seed: int, time: int = 20) -> torch.Tensor:
    "One caption for each video, from its own words and others; some run to the end without <eos>."
    draw = random.Random(seed)
    ids = torch.zeros(len(references), time, dtype=torch.int64)
    for row, captions in enumerate(references):
        topic = [VOCABULARY.ids.get(word, UNK) for words in captions for word in words] or [UNK]
        said = [
            draw.choice(topic) if draw.random() < 0.8 else draw.randint(UNK, len(VOCABULARY) - 1)
            for _ in range(draw.randint(0, time))
        ]
        said = (said + [EOS])[:time]
        ids[row, : len(said)] = torch.tensor(said)
    return ids


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_pycocoevalcap_on_random_captions(seed):
    references = make_references(60, seed)
    ids = make_ids(references, seed)
    ours = Cider(references, VOCABULARY)(ids, torch.arange(60))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(
        ours.double(), coco(VOCABULARY.decode(ids), references), atol=1e-6, rtol=0
    )


def test_equal_to_pycocoevalcap_with_eos():
    references = make_references(60, 5)
    ids = make_ids(references, 5)
    said = [" ".join(VOCABULARY.words[each] for each in row[row != PAD]) for row in ids]
    ended = [[words + ["<eos>"] for words in captions] for captions in references]
    ours = Cider(references, VOCABULARY, eos=True)(ids, torch.arange(60))
    torch.testing.assert_close(ours.double(), coco(said, ended), atol=1e-6, rtol=0)


def test_equal_to_pycocoevalcap_on_real_captions():
    if not MSVD.exists():
        pytest.skip("needs the MSVD captions in data/msvd/captions.json")
    clips = list(json.loads(MSVD.read_text()).values())[:1200]
    references = [[tokenize(caption) for caption in captions] for captions in clips]
    vocabulary = Vocabulary.build(
        (caption for captions in clips for caption in captions), min_count=3
    )
    ids = vocabulary.encode(
        [captions[number % len(captions)] for number, captions in enumerate(clips)], 20
    )
    ids[::3] = ids[::3].roll(1, 0)  # captions of other clips
    ids[1::3, 2] = torch.where(ids[1::3, 2] > UNK, UNK, ids[1::3, 2])
    ours = Cider(references, vocabulary)(ids, torch.arange(len(clips)))
    torch.testing.assert_close(
        ours.double(), coco(vocabulary.decode(ids), references), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    "said", [[], ["w1"], ["<unk>"] * 4, ["w1"] * 30, ["w1", "w2", "w3"] * 19, ["w59", "w1"]]
)
@pytest.mark.parametrize("video", [0, 1])
def test_hostile_captions(said, video):
    references = make_references(10, 7)
    assert [len(references[0]), len(references[1])] == [1, 80] and max(map(len, references[1])) < 57
    ids = torch.tensor(
        [([VOCABULARY.ids.get(word, UNK) for word in said] + [EOS] + [PAD] * 60)[:60]]
    )
    ours = Cider(references, VOCABULARY)(ids, torch.tensor([video]))
    captions = ["w1 w2"] * 10
    captions[video] = VOCABULARY.decode(ids)[0]
    torch.testing.assert_close(
        ours[0].double(), coco(captions, references)[video], atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_captions_shorter_than_the_longest_ngram(length):
    references = [[["w1", "w2", "w3", "w4"]], [["w5"]], [[]]]
    ids = torch.tensor([[VOCABULARY.ids[word] for word in ("w1", "w2", "w3", "w4")][:length]])
    expected = plain_cider(
        WORDS[1 : 1 + length], references[0], document_frequencies(references), 3
    )
    torch.testing.assert_close(
        Cider(references, VOCABULARY)(ids, torch.tensor([0])), torch.tensor([expected])
    )


def test_unknown_words_match_nothing_even_if_spelt_out():
    references = [[["<unk>", "<eos>", "<pad>", "w1"]], [["w2"]]]
    cider = Cider(references, VOCABULARY)
    assert cider(torch.tensor([[UNK, UNK, EOS]]), torch.tensor([0])).item() == 0
    assert cider(torch.tensor([[VOCABULARY.ids["w1"], EOS]]), torch.tensor([0])).item() > 0


def test_words_after_the_end_are_not_read():
    references, one = make_references(4, 9), VOCABULARY.ids["w1"]
    cider = Cider(references, VOCABULARY, eos=True)
    clean, dirty = torch.tensor([[one, EOS, PAD, PAD]]), torch.tensor([[one, EOS, one, EOS]])
    assert torch.equal(cider(clean, torch.tensor([1])), cider(dirty, torch.tensor([1])))


def test_document_frequencies_of_chosen_videos():
    references = make_references(30, 11)
    ids, chosen = make_ids(references, 11), list(range(0, 30, 2))
    ours = Cider(references, VOCABULARY, documents=torch.tensor(chosen))(ids, torch.arange(30))
    frequencies = document_frequencies([references[video] for video in chosen])
    plain = [
        plain_cider(caption.split(), captions, frequencies, len(chosen))
        for caption, captions in zip(VOCABULARY.decode(ids), references)
    ]
    torch.testing.assert_close(
        ours.double(), torch.tensor(plain, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_one_video_or_a_word_in_every_video_scores_zero():
    assert (
        Cider([[["w1"]]], VOCABULARY)(
            torch.tensor([[VOCABULARY.ids["w1"], EOS]]), torch.tensor([0])
        ).item()
        == 0
    )
    everywhere = [[["w1"]], [["w1", "w2"]]]
    assert (
        Cider(everywhere, VOCABULARY)(
            torch.tensor([[VOCABULARY.ids["w1"], EOS]]), torch.tensor([0])
        ).item()
        == 0
    )


def test_a_word_more_than_255_times():
    references = [[["w1"] * 300, ["w2"]], [["w3"]]]
    ids = torch.full((1, 299), VOCABULARY.ids["w1"])
    expected = plain_cider(["w1"] * 299, references[0], document_frequencies(references), 2)
    torch.testing.assert_close(
        Cider(references, VOCABULARY)(ids, torch.tensor([0])), torch.tensor([expected])
    )


def test_both_ways_to_sum_agree():
    torch.manual_seed(0)
    counts = torch.randint(0, 4, (50, 7), dtype=torch.uint8)
    counts[0] = 0
    rows = torch.randint(0, 50, (5, 4, 9)) * (torch.rand(5, 4, 9) < 0.5)
    running = torch.randint(1, 4, (5, 4, 9))
    squares = torch.rand(5, 4, 9, dtype=torch.float64)
    torch.testing.assert_close(
        *(clipped_dot(counts, rows, running, squares, everywhere) for everywhere in (True, False))
    )


def test_find_beyond_the_ends_of_the_table():
    places, found = find(torch.tensor([3, 5, 9]), torch.tensor([1, 3, 4, 9, 10]))
    assert found.tolist() == [False, True, False, True, False] and places.max() == 2


@pytest.mark.parametrize(
    "references, reason",
    [
        ([], "there are none"),
        ([[["a"]], []], "video 1 has none"),
        ([["a man"]], "tokenize"),
        ([[[]]], "empty"),
    ],
)
def test_refused_references(references, reason):
    with pytest.raises(PickNetError, match=reason):
        Cider(references, VOCABULARY)


def test_too_many_words_for_exact_keys():
    with pytest.raises(PickNetError, match="64-bit"):
        Cider([[[f"x{i}" for i in range(56_000)]]], VOCABULARY)


def test_tables_of_many_captions_are_small_and_right():
    "50,000 captions of 20,000 words: what would grow with videos times n-grams does not fit."
    draw = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(20_000)])
    chosen = words[np.minimum(draw.zipf(1.3, (50_000, 9)) - 1, 19_999)].tolist()
    references = [chosen[video * 20 : (video + 1) * 20] for video in range(2_500)]
    cider, said = Cider(references, VOCABULARY), [captions[0] for captions in references[:20]]
    assert sum(table.nbytes for table in cider.tables) < 100e6
    ids = torch.tensor(
        [[VOCABULARY.ids.get(word, UNK) for word in words] + [EOS] for words in said]
    )
    frequencies = document_frequencies(references)
    known = [[word if word in VOCABULARY.ids else "<unk>" for word in words] for words in said]
    plain = [
        plain_cider(words, captions, frequencies, len(references))
        for words, captions in zip(known, references)
    ]
    torch.testing.assert_close(
        cider(ids, torch.arange(20)).double(),
        torch.tensor(plain, dtype=torch.float64),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fused", [False, True])
def test_captured_on_cuda(fused):
    from picknet_nb.core.gpu import Captured

    references = make_references(60, 3)
    ids, videos = make_ids(references, 3).cuda(), torch.arange(60).cuda()
    cider = Cider(references, VOCABULARY, device="cuda")
    other = make_ids(references, 4)
    expected = Cider(references, VOCABULARY)(other, torch.arange(60))
    with torch.set_grad_enabled(not fused):  # kernels are fused where nothing is differentiated
        captured = Captured(cider, ids, videos)
        torch.testing.assert_close(
            captured(other.cuda(), videos).cpu(), expected, atol=1e-6, rtol=0
        )
