"""What a person's caption scores against the other captions of its clip: the yardstick of every
table of CIDEr. `python benchmarks/person.py --data data/corpora/msvd --out person_msvd.json`
(`--data shapes`: the toy world) asks five captions of each test clip, drawn at random; document
frequencies are those of the test clips, as in the scorer of the tables."""
from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path

from common import origin

from picknet_nb.core.files import write_whole
from picknet_nb.method.cider import ORDERS, document_frequencies, ngrams
from picknet_nb.training.train import open_data


class Vectors:
    "The tf-idf vectors of captions, one for each length of n-gram, kept for all comparisons."

    def __init__(self, frequencies: Counter, documents: int):
        self.frequencies, self.log = frequencies, math.log(documents)

    def __call__(self, words: list[str]) -> tuple[list[dict], list[float], int]:
        made = [{} for _ in range(ORDERS)]
        for ngram, count in ngrams(words).items():
            weight = self.log - math.log(max(1, self.frequencies[ngram]))
            made[len(ngram) - 1][ngram] = count * weight
        norms = [math.sqrt(sum(value ** 2 for value in each.values())) or 1.0 for each in made]
        return made, norms, max(0, len(words) - 1)


def score(candidate, references, sigma: float = 6.0) -> float:
    "CIDEr-D of one caption, as `plain_cider` has it, from vectors."
    total, (ours, our_norms, length) = 0.0, candidate
    for theirs, norms, other in references:
        near = math.exp(-(length - other) ** 2 / (2 * sigma ** 2))
        for mine, own, yours, norm in zip(ours, our_norms, theirs, norms):
            dot = sum(min(weight, yours[ngram]) * yours[ngram]
                      for ngram, weight in mine.items() if ngram in yours)
            total += near * dot / (own * norm)
    return 10 * total / (ORDERS * len(references))


def main() -> None:
    "Score people against people."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--preset", default="small", help="of the toy world")
    parser.add_argument("--captions", type=int, default=5, help="of each clip")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    corpus = open_data(options.data, options.preset, bars=False)
    tokens, videos = corpus.tokens, corpus.splits["test"].tolist()
    references = [tokens[video] for video in videos]
    draw, vector = random.Random(0), Vectors(document_frequencies(references), len(references))
    found = []
    for captions in references:
        made, asked = [vector(each) for each in captions], []
        for place in draw.sample(range(len(made)), min(options.captions, len(made))):
            asked.append(100 * score(made[place], made[:place] + made[place + 1:]))
        found.append(round(statistics.fmean(asked), 2))
    again = random.Random(0)
    means = sorted(statistics.fmean(again.choices(found, k=len(found))) for _ in range(1000))
    result = {"kind": "person", "data": corpus.name, "split": "test", "clips": len(found),
              "captions of each clip": options.captions, **origin("cpu"),
              "CIDEr": round(statistics.fmean(found), 2),
              "interval": [round(means[25], 2), round(means[974], 2)],
              "ids": [corpus.ids[video] for video in videos], "per clip": found}
    write_whole(options.out, json.dumps(result) + "\n")
    print(result["CIDEr"], result["interval"], len(found))


if __name__ == "__main__":
    main()
