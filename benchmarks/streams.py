"""What a stream says of a film of many scenes: how often it is about the scene that is shown.

python benchmarks/streams.py --videos FOLDER --captions captions.json --mapping youtube_mapping.txt
    [--clips 22] [--seeds 11 12 13] [--model everyday] [--out data/results/streams_scenes.json]
    (needs PyAV; CPU)

Test clips of MSVD, drawn at random and laid end to end, make a film; each clip is a scene. The
films are watched at one frame a second as `picknet stream` does, with and without forgetting. The
sentence of a scene is the one that stands when the scene ends. Each sentence is scored by CIDEr-D
against what people said of each clip of the film (document frequencies of all test clips). It is
*about the scene* if its own clip is the best of them, and *nearly* if its own clip is among the
best three; a sentence that earns nothing is neither. The same rule judges the sentence that each
clip gets by itself, as a file: more cannot be expected.
"""
from __future__ import annotations

import argparse
import json
import random
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import torch
from common import ROOT, origin, write_result

from picknet_nb.data.msvd_files import read_mapping
from picknet_nb.data.text import tokenize
from picknet_nb.data.video import stream_frames
from picknet_nb.method.cider import document_frequencies, plain_cider
from picknet_nb.training.cards import named_model
from picknet_nb.use.loading import load
from picknet_nb.use.streams import watch

RATE, SIDE = 25, 224
# `window` and `forget` of `use.streams.watch`
WAYS = {"no forgetting": (0, False), "the last four picks": (4, False), "forgetting": (0, True),
        "forgetting, and the last four picks": (4, True)}
ALONE = "each clip by itself"


def join_clips(paths: list[Path], film: Path) -> list[float]:
    "Write clips end to end, at their own speed; the second in which each of them ends."
    ends, written = [], 0
    with av.open(str(film), "w") as out:
        stream = out.add_stream("libx264", rate=RATE)
        stream.width = stream.height = SIDE
        stream.pix_fmt, stream.options = "yuv420p", {"preset": "ultrafast"}
        for path in paths:
            for _, frame in stream_frames(path, RATE, SIDE):
                picture = av.VideoFrame.from_ndarray(frame.permute(1, 2, 0).numpy(), "rgb24")
                picture = picture.reformat(format="yuv420p")
                picture.pts, picture.time_base = written, Fraction(1, RATE)
                out.mux(stream.encode(picture))
                written += 1
            ends.append(written / RATE)
        out.mux(stream.encode(None))
    return ends


def sentences(remarks: list, ends: list[float]) -> list[str]:
    "The sentence that stands at the end of each scene."
    return [[each.text for each in remarks if each.time < end][-1] for end in ends]


def ranks(texts: list[str], clips: list[str], references: dict[str, list]) -> list[int | None]:
    "How many clips earn as much with each sentence as its own clip does; None: it earns nothing."
    frequencies, count = document_frequencies(list(references.values())), len(references)
    found = []
    for text, own in zip(texts, clips):
        earned = {clip: plain_cider(tokenize(text), references[clip], frequencies, count)
                  for clip in clips}
        found.append(sum(value >= earned[own] for value in earned.values())
                     if earned[own] > 0 else None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--mapping", type=Path, required=True)
    parser.add_argument("--clips", type=int, default=22)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--model", default="everyday")
    parser.add_argument("--out", type=Path, default=ROOT/"data"/"results"/"streams_scenes.json")
    given = parser.parse_args()
    people, numbers = json.loads(given.captions.read_text()), read_mapping(given.mapping)
    references = {clip: [tokenize(each) for each in texts] for clip, texts in people.items()
                  if numbers[clip] > 1300}
    there = sorted(path.stem for path in given.videos.glob("*.mp4") if path.stem in references)
    captioner, films = load(named_model(given.model), "cpu"), []
    watching = captioner.streaming()  # with a picker that decides at once
    for seed in given.seeds:
        clips = random.Random(seed).sample(there, given.clips)
        paths = [given.videos/f"{clip}.mp4" for clip in clips]
        with tempfile.TemporaryDirectory() as folder:
            film = Path(folder)/"film.mp4"
            ends = join_clips(paths, film)
            remarks = {name: list(watch(watching, film, window=window, forget=forget))
                       for name, (window, forget) in WAYS.items()}
        texts = {name: sentences(each, ends) for name, each in remarks.items()}
        texts[ALONE] = [each.text for each in captioner.caption_many(paths, running=False)]
        films.append({
            "seed": seed, "seconds": round(ends[-1], 1), "clips": clips,
            "lines": {name: sum(each.changed for each in found)
                      for name, found in remarks.items()},
            "sentences": texts,
            "ranks": {name: ranks(found, clips, references) for name, found in texts.items()},
        })
    scenes, ways = given.clips * len(films), {}
    for name in (*WAYS, ALONE):
        found = [rank for film in films for rank in film["ranks"][name] if rank]
        ways[name] = {"about_the_scene": sum(rank == 1 for rank in found),
                      "nearly": sum(rank <= 3 for rank in found), "scenes": scenes}
        print(f"{name:40} about {ways[name]['about_the_scene']}, nearly {ways[name]['nearly']} of "
              f"{scenes}")
    write_result(given.out, {
        **origin("cpu"),
        "model": given.model,
        "rule": "the sentence that stands when a scene ends is about the scene if its own clip is "
                "the one of the film with which it earns most CIDEr-D, nearly if it is among the "
                "best three",
        "ways": ways,
        "films": films,
    })


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
