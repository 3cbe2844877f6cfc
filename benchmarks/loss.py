"""The loss of captions on a CPU: F.cross_entropy beside the gradient by hand that a GPU gets.

python benchmarks/loss.py [--out data/results/benchmark_loss.json]

Equality first, then process time of the loss and its gradient, alternating, the median of nine.
"""
from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import ROOT, origin, write_result

from picknet_nb.data.text import PAD
from picknet_nb.method.recurrence import CaptionLoss

ROWS, SMOOTHING = 1600, 0.1  # words of a batch; as the preset `improved` has it
VOCABULARIES = {"small": 300, "msvd": 3283}
WAYS = {
    "CaptionLoss": lambda logits, words: CaptionLoss.apply(logits, words, SMOOTHING),
    "F.cross_entropy": lambda logits, words: F.cross_entropy(
        logits, words, ignore_index=PAD, label_smoothing=SMOOTHING, reduction="none"
    ),
}


def measure(vocabulary: int, repeats: int = 9) -> dict:
    "Milliseconds of both ways for a batch, and how far their gradients are apart."
    torch.manual_seed(0)
    logits = torch.randn(ROWS, vocabulary, requires_grad=True)
    words = torch.randint(vocabulary, (ROWS,)) * (torch.rand(ROWS) < 0.7)  # three in ten: padding
    spent, gradients = {name: [] for name in WAYS}, {}
    for _ in range(repeats + 1):
        for name, way in WAYS.items():
            started = time.process_time()
            (gradients[name],) = torch.autograd.grad(way(logits, words).sum(), [logits])
            spent[name].append(1000 * (time.process_time() - started))
    first, second = gradients.values()
    milliseconds = {name: round(statistics.median(each[1:]), 1) for name, each in spent.items()}
    return {
        "vocabulary": vocabulary,
        "milliseconds": milliseconds,
        "ratio": round(milliseconds["CaptionLoss"] / milliseconds["F.cross_entropy"], 2),
        "largest_difference": float((first - second).abs().max()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT/"data"/"results"/"benchmark_loss.json"
    parser.add_argument("--out", type=Path, default=default)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    found = {name: measure(size) for name, size in VOCABULARIES.items()}
    assert all(each["largest_difference"] < 1e-6 for each in found.values()), found
    write_result(out, {"what": __doc__.splitlines()[0], "rows": ROWS, "threads": 1, "sizes": found}
                 | origin())
    print(found)
