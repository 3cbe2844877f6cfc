"""What a captioner makes of the built-in world, given the frames of one picker or another.

python benchmarks/shapes_world.py [--out data/results/shapes_world.json] [--steps 800] [--hidden
    128] [--seeds 1]

Every row trains a captioner of its own on the frames that its picker picks: the same weights at the
start, the same steps. Nothing is learned about picking here; the oracle, which has read the
stories, says how much there is to learn. Rows that are in the file already, with the same settings,
are not done again.
"""
from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from common import ROOT, origin, write_result

from picknet_nb.core.settings import Config, preset
from picknet_nb.data.corpus import Corpus
from picknet_nb.world.shapes import events_seen, oracle_picks, rule_of_thumb
from picknet_nb.world.world import prepare_shapes
from picknet_nb.method.captioner import caption, make_captioner, repeated, teach
from picknet_nb.method.cider import Cider
from picknet_nb.method.decoder import caption_loss
from picknet_nb.method.encoder import pick_frames
from picknet_nb.method.pickers import Clips, make_picker
from picknet_nb.training.loop import LARGEST_GRADIENT

PICKERS = {
    picker.label: picker
    for picker in (
        make_picker("all"),
        *(make_picker(name, 6) for name in ("kmeans", "random", "uniform")),
    )
}
ROWS = ("oracle", "rule of thumb", *PICKERS)
CLIPS, TOGETHER = 20, 5  # clips in a batch, captions of each


def pick(name: str, corpus: Corpus) -> torch.Tensor:
    "Picks of all clips, bool (videos, frames)."
    if name == "oracle":
        return oracle_picks(corpus.details["key_frames"]).to(corpus.device)
    if name == "rule of thumb":
        return rule_of_thumb(corpus.glances.cpu()).to(corpus.device)
    return PICKERS[name](Clips(corpus.features.float(), corpus.glances))


@torch.no_grad()
def score(captioner, corpus: Corpus, picks, split: str) -> float:
    """CIDEr-D of greedy captions, in percent; document frequencies from the split that is
    scored, as coco-caption has it."""
    videos = corpus.splits[split]
    cider = Cider(corpus.tokens, corpus.vocabulary, documents=videos, device=corpus.device)
    said = [
        caption(captioner, corpus.features[part].float(), picks[part], corpus.settings.max_words)
        for part in videos.split(100)
    ]
    return 100 * cider(torch.cat(said), videos).mean().item()


def train(
    name: str, corpus: Corpus, config: Config, steps: int
) -> tuple[torch.nn.Module, torch.Tensor]:
    "A captioner for the frames of one picker; the best on the validation clips."
    torch.manual_seed(config.training.seed)
    captioner = (
        make_captioner(config.captioner, corpus.features.shape[-1], len(corpus.vocabulary))
        .to(corpus.device)
        .train()
    )
    rate = config.training.supervision_rate
    adam = torch.optim.Adam(captioner.parameters(), rate)
    captions = corpus.words.view(len(corpus.ids), -1, corpus.words.shape[1])
    picks = pick(name, corpus)
    best, kept, waiting = -1.0, None, torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if len(waiting) < CLIPS:
            waiting = corpus.splits["train"][torch.randperm(len(corpus.splits["train"]))]
            # new random frames in every epoch
            seen = pick(name, corpus) if name in PICKERS and PICKERS[name].random else picks
        clips, waiting = waiting[:CLIPS], waiting[CLIPS:]
        chosen = torch.rand(CLIPS, captions.shape[1]).argsort(1)[:, :TOGETHER]
        words = captions[clips[:, None], chosen].flatten(0, 1)
        memory = repeated(
            captioner.encode(pick_frames(corpus.features[clips].float(), seen[clips])), TOGETHER
        )
        adam.param_groups[0]["lr"] = rate * (1 if step < 0.7 * steps else 0.3)
        adam.zero_grad()
        caption_loss(teach(captioner, memory, words), words).backward()
        torch.nn.utils.clip_grad_norm_(captioner.parameters(), LARGEST_GRADIENT)
        adam.step()
        if step % 100 == 99:
            current = score(captioner, corpus, picks, "validation")
            if current > best:
                best = current
                kept = {key: value.clone() for key, value in captioner.state_dict().items()}
    captioner.load_state_dict(kept)
    return captioner, picks


def measure(name: str, corpus: Corpus, config: Config, steps: int) -> dict:
    "One row: frames, moments seen and CIDEr on the test clips."
    begin = time.process_time()
    captioner, picks = train(name, corpus, config, steps)
    test = corpus.splits["test"]
    row = {
        "row": name,
        "seed": config.training.seed,
        "frames": picks[test].sum(1).float().mean().item(),
        "events_seen": events_seen(
            [corpus.details["key_frames"][video] for video in test.tolist()], picks[test]
        ),
        "cider": score(captioner, corpus, picks, "test"),
        "train_cider": score(captioner, corpus, picks, "train"),
    }
    # what a captioner that was trained on all frames makes of fewer: the reward that PickNet starts
    # with
    if name == "all":
        row["cider_on"] = {
            other: score(captioner, corpus, pick(other, corpus), "test") for other in ROWS
        }
    return {**row, "cpu_seconds": round(time.process_time() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=str(ROOT/"data"/"results"/"shapes_world.json"))
    parser.add_argument("--corpus", default=str(ROOT/"data"/"corpora"/"shapes-small"))
    parser.add_argument("--scale", default="small")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    corpus = prepare_shapes(arguments.corpus, arguments.scale).to(arguments.device)
    half = arguments.hidden // 2
    settings = {"steps": arguments.steps, "hidden": arguments.hidden, "scale": arguments.scale}
    out = Path(arguments.out)
    result = json.loads(out.read_text()) if out.exists() else {}
    rows = result["rows"] if result.get("settings") == settings else []
    for seed in range(arguments.seeds):
        for name in ROWS:
            if any((row["row"], row["seed"]) == (name, seed) for row in rows):
                continue
            config = preset(
                "small",
                hidden=arguments.hidden,
                feature_embedding=half,
                word_embedding=half,
                seed=seed,
            )
            rows.append(measure(name, corpus, config, arguments.steps))
            write_result(
                out,
                {
                    "data": f"shapes, seed {corpus.details['seed']}",
                    "split": "test",
                    "decoding": "greedy",
                    "settings": settings,
                    "rows": rows,
                    "clips": {split: len(videos) for split, videos in corpus.splits.items()},
                    **origin(arguments.device),
                    "device": arguments.device,
                },
            )
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
