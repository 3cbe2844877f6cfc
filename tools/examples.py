"""Twelve random test clips with what both models and a person say, and three that show what CIDEr
rewards.

python tools/examples.py CLIPS CAPTIONS    into nbs/images/examples.webp, with a note of what is
    shown in data/results/examples.json

CLIPS is a folder or a zip file with test clips of MSVD, CAPTIONS a JSON file {clip: sentences}. The
models' sentences are those of data/results/model_*.json; nothing is captioned here. The clips of
the grid are `random.Random(SEED).sample(sorted(clips), 12)` of all test clips that both models
captioned. The person's sentence is the one of middle length. The three others are, of the captions
of `sharp` that both raters of ratings_strict.json judge alike, the right one with the lowest CIDEr,
the half-right one with the highest, and the right one with the highest.
"""
import argparse
import json
import random
import tempfile
import textwrap
import zipfile
from pathlib import Path

from PIL import Image, ImageDraw

from picknet_nb.core.files import read_json, write_whole
from picknet_nb.data.video import read_clip
from picknet_nb.use.drawing import _font, drawable

RESULTS, OUT = Path("data/results"), Path("nbs/images/examples.webp")
MODELS = ("everyday", "sharp")
SEED, COUNT, COLUMNS = 0, 12, 3
FRAMES, WIDE, HIGH, GAP, LINE = 3, 128, 96, 12, 21  # of a clip; pixels


def captions_of(model: str) -> dict[str, str]:
    "What a bundled model says of the test clips of MSVD."
    kinds = read_json(RESULTS/f"model_{model}.json")["sets"]["msvd"]
    return (kinds.get("scorer, as it speaks") or kinds["learned, as it speaks"])["captions"]


def drawn(clips, seed: int = SEED, count: int = COUNT) -> list[str]:
    "The clips of the grid: a random sample, always the same one."
    return random.Random(seed).sample(sorted(clips), count)


def middle(sentences: list[str]) -> str:
    "The sentence of middle length."
    return sorted(sentences, key=lambda each: (len(each), each))[len(sentences) // 2]


def score_examples(model: str = "sharp") -> list[dict]:
    "Three rated captions: right and scored low, half right and scored high, right and high."
    rated = read_json(RESULTS/"ratings_strict.json")["clips"]
    scores = read_json(RESULTS/f"model_{model}.json")["scores"]["msvd"]["per_clip"]
    captions = captions_of(model)
    known = [(scores[clip], each["ratings"][0], clip) for clip, letters in rated.items()
             for each in letters.values() if clip in scores and model in each["models"]
             and len(set(each["ratings"])) == 1]
    of = lambda rating: [each for each in known if each[1] == rating]
    chosen = min(of("right")), max(of("half")), max(of("right"))
    return [{"clip": clip, "rating": rating, "caption": captions[clip],
             "CIDEr": round(100 * score, 1)} for score, rating, clip in chosen]


def cell(path: Path, lines: list[tuple[str, str]]) -> Image.Image:
    "Three frames of a clip in a row, and sentences below."
    size = FRAMES * WIDE, HIGH + 2 * LINE * len(lines)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for place, frame in enumerate(read_clip(path, FRAMES, WIDE).frames):
        picture = Image.fromarray(frame.permute(1, 2, 0).numpy()).resize((WIDE, HIGH))
        canvas.paste(picture, (place * WIDE, 0))
    top = HIGH + 4
    for colour, text in lines:
        for part in textwrap.wrap(drawable(text), 42)[:2]:
            draw.text((0, top), part, colour, _font(16))
            top += LINE
    return canvas.crop((0, 0, size[0], top + 2))


def grid(cells: list[Image.Image]) -> Image.Image:
    "Cells in rows, each row as high as its highest."
    rows = [cells[n:n + COLUMNS] for n in range(0, len(cells), COLUMNS)]
    heights = [max(each.height for each in row) + GAP for row in rows]
    canvas = Image.new("RGB", (COLUMNS * (FRAMES * WIDE + GAP) - GAP, sum(heights)), "white")
    for number, row in enumerate(rows):
        for place, each in enumerate(row):
            canvas.paste(each, (place * (FRAMES * WIDE + GAP), sum(heights[:number])))
    return canvas


def find_clips(source: Path, names: list[str], folder: Path) -> dict[str, Path]:
    "These clips of a folder, or out of a zip file."
    if source.is_dir():
        return {name: source/f"{name}.mp4" for name in names}
    with zipfile.ZipFile(source) as packed:
        inside = {Path(each).stem: each for each in packed.namelist()}
        for name in names: (folder/f"{name}.mp4").write_bytes(packed.read(inside[name]))
    return {name: folder/f"{name}.mp4" for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("captions", type=Path)
    given = parser.parse_args()
    people, by_model = read_json(given.captions), {name: captions_of(name) for name in MODELS}
    names = drawn(set.intersection(*map(set, by_model.values())))
    shown = [{"clip": name, **{model: by_model[model][name] for model in MODELS},
              "person": middle(people[name]).strip()} for name in names]
    scores = [each | {"people": [middle(people[each["clip"]][n::3]).strip() for n in range(3)]}
              for each in score_examples()]
    colours = {"everyday": "#1f6fb4", "sharp": "#157f3b", "person": "#555555"}
    with tempfile.TemporaryDirectory() as folder:
        paths = find_clips(given.clips, names, Path(folder))
        picture = grid([cell(paths[each["clip"]], [(colour, f"{who}: {each[who]}")
                                                   for who, colour in colours.items()])
                        for each in shown])
    picture.save(OUT, quality=72, method=6)
    write_whole(RESULTS/"examples.json", json.dumps({
        "kind": "examples", "command": "python tools/examples.py CLIPS CAPTIONS", "seed": SEED,
        "rule": f"random.Random({SEED}).sample(sorted(clips), {COUNT})",
        "weights": {name: read_json(RESULTS/f"model_{name}.json")["weights"] for name in MODELS},
        "clips": shown, "scores": scores}, indent=1, ensure_ascii=False) + "\n")
    print(f"{OUT}: {picture.width} x {picture.height}, {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
