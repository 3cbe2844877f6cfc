"""Properties of words and ids that hold for any text, not only for the captions of the notebook."""

import json
import string
import subprocess
import sys
from time import process_time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.data import text
from picknet_nb.data.text import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, tokenize

word_tokenize = pytest.importorskip("nltk.tokenize").word_tokenize

simple = st.text(alphabet="abcdXYZ019 .\t\n", max_size=40)
pieces = st.sampled_from(
    [
        "cannot",
        "Gonna",
        "wanna",
        "dog",
        "dogs.",
        "it's",
        "can't",
        "t-shirt",
        "1/2",
        "$3.50",
        "--",
        "...",
        "'",
        '"',
        "(a)",
        "é",
        "ſ",
        "İ",
    ]
)
mixed = st.lists(pieces, max_size=8).map(" ".join)


def from_nltk(caption):
    words = word_tokenize(text._split_sentences(caption.lower()), preserve_line=True)
    return [word for word in words if not all(letter in string.punctuation for letter in word)]


@settings(max_examples=200, deadline=None)
@given(caption=simple | mixed | st.text(max_size=30))
def test_the_shortcut_gives_the_words_of_nltk(caption):
    assert tokenize(caption) == from_nltk(caption)


@settings(max_examples=100, deadline=None)
@given(caption=simple | mixed | st.text(max_size=30))
def test_a_word_is_lower_case_without_spaces_and_more_than_punctuation(caption):
    for word in tokenize(caption):
        assert word == word.lower() and word and not any(letter.isspace() for letter in word)
        assert any(letter not in string.punctuation for letter in word)


@pytest.mark.parametrize("caption, words", [
    ("A man runs. A dog barks.", "a man runs a dog barks"),
    ("A man runs.\nA dog barks.", "a man runs a dog barks"),
    ("Mr. Bean vs. Dr. No", "mr. bean vs. dr. no"),
    ("Chef B. Smith on t.v. today.", "chef b. smith on t.v. today"),
    ("She cuts 3.5 onions.", "she cuts 3.5 onions"),
    ("It's Bob's, isn't it?", "it 's bob 's is n't it"),
    ("You cannot do this!!!", "you can not do this"),
    ("", ""), (" . ", ""), ("?!", ""),
])
def test_words_of_a_caption(caption, words):
    assert tokenize(caption) == words.split()


CUT_OFF = {"'s", "'re", "'ll", "'ve", "'d", "'m", "n't"}


@settings(max_examples=50, deadline=None)
@given(
    captions=st.lists(mixed | simple, max_size=8),
    max_words=st.integers(1, 9),
    min_count=st.integers(1, 3),
)
def test_rows_of_ids_are_well_formed(captions, max_words, min_count):
    vocabulary = Vocabulary.build(captions, min_count)
    words = vocabulary.encode(captions, max_words)
    assert words.shape == (len(captions), max_words) and words.dtype == torch.int64
    assert (
        ((words == EOS).sum(1) == 1).all()
        and not (words == BOS).any()
        and (words < len(vocabulary)).all()
    )
    for row, caption, sentence in zip(words.tolist(), captions, vocabulary.decode(words)):
        end = row.index(EOS)
        assert PAD not in row[:end] and set(row[end + 1 :]) <= {PAD}
        expected = [
            word if word in vocabulary.ids else "<unk>"
            for word in tokenize(caption)[: max_words - 1]
        ]
        # what was cut off a word is joined to it again, and nothing else is
        cut = [word for word in expected[1:] if word in CUT_OFF]
        assert sentence.replace(" ", "") == "".join(expected)
        assert sentence.count(" ") == max(0, len(expected) - 1 - len(cut))


@pytest.mark.parametrize("text", [
    "a kangaroo is licking a woman's hand", "it isn't red", "they're cutting it", "they can't",
    "we'd say it's his", "'s", "a boy's dog's tail"])
def test_words_that_were_cut_are_whole_in_a_caption(text):
    vocabulary = Vocabulary.build([text], 1)
    assert vocabulary.decode(vocabulary.encode([text], 12)) == [text]


@settings(max_examples=30, deadline=None)
@given(captions=st.lists(mixed | simple, max_size=8), order=st.randoms())
def test_a_vocabulary_does_not_depend_on_the_order_of_captions(captions, order):
    shuffled = captions[:]
    order.shuffle(shuffled)
    one, other = Vocabulary.build(captions, 1), Vocabulary.build(shuffled, 1)
    assert one == other and one.fingerprint() == other.fingerprint() and hash(one) == hash(other)


def test_a_vocabulary_survives_its_file(tmp_path):
    vocabulary = Vocabulary.build(["ein Fluß fließt", "a naïve café"], 1)
    assert Vocabulary.load(vocabulary.save(tmp_path/"words.json")) == vocabulary
    assert Vocabulary(vocabulary.to_list()) == vocabulary


@pytest.mark.parametrize(
    "content, reason",
    [
        (None, "no such file"),
        (b"", "not valid JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "list of words"),
        (b"null", "list of words"),
        (json.dumps([*SPECIALS, 4]).encode(), "list of words"),
        (json.dumps([*SPECIALS, ""]).encode(), "list of words"),
        (b'["a"]', "begin with"),
        (b"[]", "begin with"),
        (json.dumps([*SPECIALS, "a", "a"]).encode(), "twice"),
    ],
)
def test_a_bad_vocabulary_file_is_refused(tmp_path, content, reason):
    path = tmp_path/"words.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=reason) as caught:
        Vocabulary.load(path)
    assert caught.value.path == str(path)


def test_bad_words_and_widths_are_refused():
    with pytest.raises(PickNetError, match="begin with"):
        Vocabulary(("a",))
    with pytest.raises(PickNetError, match="max_words"):
        Vocabulary(SPECIALS).encode(["a"], 0)


def test_text_that_looks_like_a_special_is_not_one():
    vocabulary = Vocabulary.build(["<unk> <eos> <pad>"] * 3)
    assert vocabulary.encode(["<eos> dog"], 4).tolist() == [[vocabulary.ids["eos"], UNK, EOS, PAD]]


def test_no_caption_is_a_matrix_too():
    assert Vocabulary(SPECIALS).encode([], 5).shape == (0, 5)
    assert Vocabulary(SPECIALS).decode(torch.zeros(0, 5, dtype=torch.int64)) == []


def test_many_captions_are_quick():
    captions = [f"A man number {i} is slicing a tomato." for i in range(20_000)]
    started = process_time()
    Vocabulary.build(captions, 1).encode(captions, 20)
    assert process_time() - started < 5  # takes 0.4 s; through NLTK alone 8 s


def test_without_nltk_simple_captions_still_work_and_others_say_what_to_install():
    script = (
        "import sys\nsys.modules['nltk'] = None\nfrom picknet_nb.core import files\n"
        "from picknet_nb.data import text\nprint(text.tokenize('A dog runs.'))\n"
        "try: text.tokenize(\"It's a dog\")\nexcept files.PickNetError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "['a', 'dog', 'runs']" in said and "picknet_nb[metrics]" in said
