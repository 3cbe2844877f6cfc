"""CIDEr-D on ids beside the plain formula and beside pycocoevalcap. Equality first, then time.

python benchmarks/cider.py [--out data/results/benchmark_cider.json] [--device cuda]

References are MSVD's where data/msvd/captions.json is there, otherwise made up with the same
statistics.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from common import ROOT, median_ms, origin, write_result

from picknet_nb.core.gpu import Captured
from picknet_nb.data.text import EOS, SPECIALS, UNK, Vocabulary, tokenize
from picknet_nb.method.cider import Cider, document_frequencies, plain_cider


def real_references(path: Path) -> list[list[list[str]]]:
    "The words of every MSVD caption, by clip."
    return [
        [tokenize(caption) for caption in captions]
        for captions in json.loads(path.read_text()).values()
    ]


def made_up_references(
    videos: int = 1970, lexicon: int = 12_000, seed: int = 0
) -> list[list[list[str]]]:
    """Captions with MSVD's counts: 18 to 81 for a clip, about 7 words each, a few topics and
    many small changes."""
    draw = np.random.default_rng(seed)
    words = np.array([f"w{i}" for i in range(lexicon)])
    share = 1 / np.arange(1, lexicon + 1)
    share /= share.sum()
    corpus = []
    for count in np.clip(draw.normal(41, 8, videos), 18, 81).astype(int):
        topics = [draw.choice(words, max(3, int(draw.normal(7, 2))), p=share) for _ in range(4)]
        captions = []
        for _ in range(count):
            caption = topics[draw.integers(4)].copy()
            change = draw.random(len(caption)) < 0.25
            caption[change] = draw.choice(words, change.sum(), p=share)
            captions.append(caption.tolist())
        corpus.append(captions)
    return corpus


def make_candidates(references, vocabulary: Vocabulary, batch: int, max_words: int, seed: int = 0):
    "A batch of clips, and for each a caption: one of its own with a few words changed, as ids."
    draw = np.random.default_rng(seed)
    videos = draw.integers(len(references), size=batch)
    ids = torch.zeros(batch, max_words, dtype=torch.int64)
    for row, video in enumerate(videos):
        caption = references[video][draw.integers(len(references[video]))][: max_words - 1]
        said = [
            vocabulary.ids.get(word, UNK)
            if draw.random() < 0.8
            else int(draw.integers(UNK, len(vocabulary)))
            for word in caption
        ]
        ids[row, : len(said) + 1] = torch.tensor(said + [EOS])
    return ids, torch.from_numpy(videos)


def coco_scores(captions: list[str], references: list[list[str]]):
    "pycocoevalcap's score of each caption, exactly as a user calls it."
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    scorer = CiderScorer()
    for caption, known in zip(captions, references):
        scorer += (caption, known)
    return scorer.compute_score()[1]


def check_against_coco(references, vocabulary, ids, videos, device: str) -> float | str:
    """Largest difference to pycocoevalcap on a corpus of this batch's clips, and the time it
    takes; or why not."""
    captions = vocabulary.decode(ids)
    known = [[" ".join(words) for words in references[video]] for video in videos.tolist()]
    try:
        theirs = coco_scores(captions, known)
    except ImportError as reason:
        return f"skipped: {reason}"
    small = Cider([references[video] for video in videos.tolist()], vocabulary, device=device)
    ours = small(ids.to(device), torch.arange(len(ids), device=device))
    return float(np.abs(theirs - ours.cpu().numpy()).max())


def measure(device: str, batch: int, max_words: int) -> dict:
    "Build the tables, check, time."
    path = ROOT/"data"/"msvd"/"captions.json"
    references = real_references(path) if path.exists() else made_up_references()
    counts: dict[str, int] = {}
    for word in (word for captions in references for caption in captions for word in caption):
        counts[word] = counts.get(word, 0) + 1
    vocabulary = Vocabulary(
        SPECIALS
        + tuple(word for word, count in counts.items() if count >= 3 and word not in SPECIALS)
    )
    begin = time.perf_counter()
    cider = Cider(references, vocabulary, device=device)
    build_s = time.perf_counter() - begin
    ids, videos = make_candidates(references, vocabulary, batch, max_words)

    frequencies = document_frequencies(references)
    captions = [caption.split() for caption in vocabulary.decode(ids)]
    plain = lambda: [
        plain_cider(caption, references[video], frequencies, len(references))
        for caption, video in zip(captions, videos.tolist())
    ]
    on_device = ids.to(device), videos.to(device)
    difference = (
        (cider(*on_device).cpu().double() - torch.tensor(plain(), dtype=torch.float64))
        .abs()
        .max()
        .item()
    )
    coco_difference = check_against_coco(references, vocabulary, ids, videos, device)
    for name, value in (("the plain formula", difference), ("pycocoevalcap", coco_difference)):
        if isinstance(value, float) and not value <= 1e-6:
            sys.exit(f"not equal to {name}: the largest difference is {value:.2e}")

    ms = {
        "plain": median_ms(plain, "cpu", 3, 0),
        "ours": median_ms(lambda: cider(*on_device), device, 50, 3),
    }
    if device == "cpu" and torch.get_num_threads() > 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        ms["ours, one thread"] = median_ms(lambda: cider(*on_device), device, 50, 3)
        torch.set_num_threads(threads)
    if device == "cuda":
        replay = Captured(cider, *on_device)
        assert torch.equal(replay(*on_device), cider(*on_device))
        ms["ours, captured"] = median_ms(lambda: replay(*on_device), device, 200, 3)
    if isinstance(coco_difference, float):
        strings = (
            vocabulary.decode(ids),
            [[" ".join(words) for words in references[video]] for video in videos.tolist()],
        )
        ms["pycocoevalcap"] = median_ms(lambda: coco_scores(*strings), "cpu", 5, 1)
    return dict(
        references="MSVD" if path.exists() else "made up",
        videos=len(references),
        captions=sum(map(len, references)),
        batch=batch,
        max_words=max_words,
        references_per_video=sum(len(references[video]) for video in videos.tolist()) / batch,
        build_s=build_s,
        table_mb=sum(table.nbytes for table in cider.tables) / 1e6,
        difference_to_plain=difference,
        difference_to_pycocoevalcap=coco_difference,
        ms=ms,
        times_faster_than={
            name: value / min(each for ours, each in ms.items() if ours.startswith("ours"))
            for name, value in ms.items()
            if not name.startswith("ours")
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT/"data"/"results"/"benchmark_cider.json"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--max-words", type=int, default=20)
    chosen = parser.parse_args()
    result = {**origin(chosen.device), **measure(chosen.device, chosen.batch, chosen.max_words)}
    write_result(chosen.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
