"""How many words MSVD and MSR-VTT have, counted over all official captions and over those of the
training split.

python benchmarks/vocabulary.py --msvd captions.json youtube_mapping.txt --msrvtt
    train_val_annotation.zip test_videodatainfo.json.zip
"""
from __future__ import annotations

import argparse
import json
from collections import Counter

from common import ROOT, origin, write_result

from picknet_nb.data.datasets import read_captions
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.data.msvd import read_mapping
from picknet_nb.data.text import tokenize

LEAST = 3  # 4.2: "the word with frequency less than 3 is removed"
TRAINING = 1200  # of MSVD's clips, by number


def count_words(captions: dict[str, list[str]], training: set[str]) -> dict:
    """Videos, captions, and the words that occur often enough, over all captions and over those
    of the training split."""
    everywhere, taught = Counter(), Counter()
    for video, said in captions.items():
        words = Counter(word for caption in said for word in tokenize(caption))
        everywhere.update(words)
        if video in training:
            taught.update(words)
    common = lambda counts: sum(count >= LEAST for count in counts.values())
    return {
        "videos": len(captions),
        "captions": sum(map(len, captions.values())),
        "all": common(everywhere),
        "training": common(taught),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--msvd", nargs=2, metavar=("CAPTIONS", "MAPPING"), required=True)
    parser.add_argument("--msrvtt", nargs="+", metavar="ANNOTATIONS", required=True)
    parser.add_argument("--out", default=str(ROOT/"data"/"results"/"vocabulary.json"))
    options = parser.parse_args()
    numbers = read_mapping(options.msvd[1])
    captions, splits = read_msrvtt(*options.msrvtt)
    counts = {
        "msvd": count_words(
            read_captions(options.msvd[0]),
            {name for name, number in numbers.items() if number <= TRAINING},
        ),
        "msrvtt": count_words(
            captions, {name for name, split in splits.items() if split == "train"}
        ),
    }
    result = {"kind": "vocabulary", **origin("cpu"), "least": LEAST, "counts": counts}
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
