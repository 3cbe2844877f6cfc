"""How much a better choice of frames could bring at all, for a captioner that is given.

python benchmarks/choice.py RUN CORPUS [--frames 6] [--tries 20] [--out data/results/choice.json]

Every test clip is captioned from many random choices of its frames. One half of its references
chooses the best of these captions, the other half judges it: what is left of the gain is no luck
with the judges. It need not be a matter of frames either, since whoever knows the answer gains by
any choice between captions. So the same is done with other words about the same frames: the first
candidates of a beam search, as many as there were different captions before.
"""
from __future__ import annotations

import argparse
import json

import torch
from common import ROOT, origin, write_result
from tqdm import tqdm

from picknet_nb.core.settings import Config
from picknet_nb.data.corpus import Corpus
from picknet_nb.method.captioner import beam
from picknet_nb.method.cider import Cider
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.pickers import Picker, make_picker
from picknet_nb.method.stages import caption_videos, frame_choice
from picknet_nb.training.runs import load_run


def halves(corpus: Corpus, videos: list[int]) -> tuple[Cider, Cider]:
    "CIDEr with every other reference of each clip, and with the rest."
    tokens = [corpus.tokens[video] for video in videos]
    return tuple(
        Cider(
            [references[start::2] or references for references in tokens],
            corpus.vocabulary,
            device=corpus.device,
        )
        for start in (0, 1)
    )


@torch.no_grad()
def judged(
    model, corpus: Corpus, picker: Picker, judges: tuple[Cider, Cider]
) -> tuple[torch.Tensor, torch.Tensor]:
    "Scores (2, clips) of the captions from a picker's frames, by both halves, and the captions."
    videos = corpus.splits["test"]
    words, _ = caption_videos(model, corpus, videos, frame_choice(picker, corpus))
    return torch.stack(
        [judge(words, torch.arange(len(videos), device=words.device)).float() for judge in judges]
    ), words


def best_of(scores: torch.Tensor) -> dict[str, float]:
    """Of scores (tries, 2, clips): what choosing brings, by the judges that chose and by the
    others, both ways round."""
    chosen = scores.argmax(0)  # (2, clips): the best try in the eyes of each half
    seen = torch.stack([scores[:, half].gather(0, chosen[half][None])[0] for half in (0, 1)])
    unseen = torch.stack([scores[:, 1 - half].gather(0, chosen[half][None])[0] for half in (0, 1)])
    return {
        "mean of all tries": scores.mean().item(),
        "best, by the judges that chose it": seen.mean().item(),
        "best, by the other judges": unseen.mean().item(),
    }


@torch.no_grad()
def candidates(
    model, corpus: Corpus, picker: Picker, count: int, judges: tuple[Cider, Cider]
) -> torch.Tensor:
    """Scores (candidates, 2, clips) of the first candidates of a beam search about the same
    frames, by both halves."""
    videos, scores = corpus.splits["test"], []
    choose = frame_choice(picker, corpus)
    for some in videos.split(64):
        memory = model.captioner.encode(pick_frames(corpus.features[some], choose(some)))
        words, _ = beam(model.captioner, memory, count, corpus.settings.max_words, best=count)
        place = torch.searchsorted(videos, some)
        scores.append(
            torch.stack(
                [
                    torch.stack([judge(words[:, each], place).float() for judge in judges])
                    for each in range(count)
                ]
            )
        )
    return torch.cat(scores, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("corpus")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--out", default=str(ROOT/"data"/"results"/"choice.json"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, config, _, _ = load_run(options.run, device)
    corpus, frames = Corpus.load(options.corpus, device, config.clip), options.frames
    judges = halves(corpus, corpus.splits["test"].tolist())
    torch.manual_seed(0)
    tries = [
        judged(model, corpus, make_picker("random", frames), judges)
        for _ in tqdm(range(options.tries), "random choices")
    ]
    distinct = (
        torch.tensor(
            [
                len({tuple(words[clip].tolist()) for _, words in tries})
                for clip in range(len(tries[0][1]))
            ]
        )
        .float()
        .mean()
        .item()
    )
    pickers = make_picker("all"), make_picker("uniform", frames), make_picker("kmeans", frames)
    fixed = {
        picker.label: judged(model, corpus, picker, judges)[0].mean().item() for picker in pickers
    }
    row = {
        **fixed,
        **best_of(torch.stack([scores for scores, _ in tries])),
        "different captions of a clip": distinct,
    }
    count = max(2, round(distinct))
    control = candidates(model, corpus, make_picker("uniform", frames), count, judges)
    row |= {"beam candidates": count, "first candidate": control[0].mean().item()} | {
        f"{name}, of candidates": value
        for name, value in best_of(control).items()
        if "best" in name
    }
    result = {
        "kind": "choice",
        "data": corpus.name,
        "split": "test",
        "clips": len(corpus.splits["test"]),
        "frames": frames,
        "tries": options.tries,
        **origin(),
        "metrics": "CIDEr-D as in training, half of the references at a time",
        "captioner": {
            name: value for name, value in config.flat().items() if value != Config().flat()[name]
        },
        "rows": [{name: round(value, 4) for name, value in row.items()}],
    }
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
