"""Picks of PySceneDetect's content detector on the films of `benchmarks/evidence.py`, from the
pictures themselves: `pip install scenedetect opencv-python-headless av`, then
`python benchmarks/cuts.py --clips FOLDER --mapping youtube_mapping.txt --out cuts.json`. Its
thresholds are set on films of validation clips, as those of the other pickers are."""
from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
import scenedetect
from films import cut_film
from scenedetect import FrameTimecode
from scenedetect.detector import FlashFilter
from scenedetect.detectors import ContentDetector


@lru_cache(maxsize=800)
def pictures(path: Path) -> list[np.ndarray]:
    "The frames of a clip, as OpenCV has them."
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="bgr24") for frame in file.decode(video=0)]


class Known(ContentDetector):
    "A content detector that is told how much each frame changes, in order."

    def __init__(self, scores: list[float], **options):
        super().__init__(**options)
        self.scores = iter(scores)

    def _calculate_frame_score(self, timecode, frame_img) -> float:
        return next(self.scores)


def changes(frames: list[np.ndarray]) -> list[float]:
    "PySceneDetect's content value of each frame."
    detector = ContentDetector()
    return [detector._calculate_frame_score(FrameTimecode(number, 3.0), frame)
            for number, frame in enumerate(frames)]


def picks_of(scores: list[float], threshold: float) -> list[int]:
    "The first frame, and the first of every scene that the detector sees."
    detector = Known(scores, threshold=threshold, min_scene_len=2,
                     filter_mode=FlashFilter.Mode.SUPPRESS)
    blank = np.zeros((2, 2, 3), np.uint8)
    found = [cut for number in range(len(scores))
             for cut in detector.process_frame(FrameTimecode(number, 3.0), blank)]
    found += detector.post_process(FrameTimecode(len(scores), 3.0))
    return sorted({0, *(int(cut.frame_num) for cut in found)})


def main() -> None:
    "Detect, set thresholds on validation films, write picks of test films."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--mapping", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--films", type=int, default=400)
    parser.add_argument("--validation", type=int, default=200)
    options = parser.parse_args()
    number = {name: int(place[3:]) for name, place in
              (line.split() for line in options.mapping.read_text().splitlines())}
    at_hand = sorted(path.stem for path in options.clips.glob("*.mp4"))
    splits = {"validation": [name for name in at_hand if 1200 < number[name] <= 1300],
              "test": [name for name in at_hand if number[name] > 1300]}
    scores, cuts, spent = {}, {}, []
    for split, count in (("validation", options.validation), ("test", options.films)):
        draw = random.Random(f"0, {split}")
        films = [cut_film(draw, range(len(splits[split])), 30) for _ in range(count)]
        cuts[split] = [[[splits[split][scene.clip], scene.first, scene.length] for scene in film]
                       for film in films]
        scores[split] = []
        for film in cuts[split]:
            frames = [pictures(options.clips/f"{name}.mp4")[first + t]
                      for name, first, length in film for t in range(length)]
            begun = time.perf_counter()
            scores[split].append(changes(frames))
            spent.append(time.perf_counter() - begun)
    picks, levels = {"PySceneDetect, 27": [picks_of(each, 27.0) for each in scores["test"]]}, {}
    for budget in (4, 6, 8):
        low, high = 0.0, 255.0
        for _ in range(20):
            level = (low + high) / 2
            many = statistics.fmean(len(picks_of(each, level)) for each in scores["validation"])
            low, high = (level, high) if many > budget else (low, level)
        levels[budget] = level
        picks[f"PySceneDetect-{budget}"] = [picks_of(each, level) for each in scores["test"]]
    options.out.write_text(json.dumps({
        "kind": "cuts", "scenedetect": scenedetect.__version__, "python": sys.version.split()[0],
        "levels": levels, "seconds of a film": statistics.median(spent), "cuts": cuts["test"],
        "picks": picks}) + "\n")
    for name, rows in picks.items():
        seen = [len({np.searchsorted(np.cumsum([scene[2] for scene in film]), frame, "right")
                     for frame in row}) / len(film) for film, row in zip(cuts["test"], rows)]
        print(name, round(statistics.fmean(map(len, rows)), 2), round(statistics.fmean(seen), 3))
    print(levels, statistics.median(spent))


if __name__ == "__main__":
    main()
