"""The moving picture of the front page: a clip is watched, a few frames are picked, a sentence is
said.

python tools/moving_picture.py CLIP                                       what the bundled model
    does with any clip, into moving.webp
python tools/moving_picture.py CLIP --model shapes --out shapes.webp      another model or run,
    another file
python tools/moving_picture.py FOLDER --out nbs/images/moving.webp --front  the one of the front
    page, and a note of how it was made: of the clips in the folder whose caption both raters of
    `ratings_strict.json` call right for this model, the one whose picks are least like uniform
    sampling
"""
import argparse
import statistics
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw
from picture import made_with, note

from picknet_nb.core.figures import PICK_GREEN
from picknet_nb.core.files import PickNetError, read_json
from picknet_nb.data.video import read_clip
from picknet_nb.use.clips import Caption
from picknet_nb.use.loading import load
from picknet_nb.use.drawing import _font, drawable, height_to_width
from picknet_nb.use.values import heights

# of everything, of the frame that is watched, between things: pixels; steps from there to the row
WIDTH, LARGE, GAP, SLIDE = 640, 200, 10, 4
GREY, PALE = "#9a9a9a", "#ececec"


def row_places(count: int, tall: float, top: int) -> list[tuple[int, int, int, int]]:
    "Left, top, width and height of each picked frame in the row: all of them fit."
    wide = min(96, (WIDTH - GAP) // count - GAP)
    return [(GAP + i * (wide + GAP), top, wide, round(wide * tall)) for i in range(count)]


def paste(canvas, picture, place, picked: bool = False) -> None:
    "A frame, boxed where it was picked."
    left, top, wide, high = map(round, place)
    canvas.paste(picture.resize((wide, high), Image.Resampling.LANCZOS), (left, top))
    if picked:
        ImageDraw.Draw(canvas).rectangle(
            (left, top, left + wide - 1, top + high - 1),
            outline=PICK_GREEN,
            width=4 if wide > 150 else 3,
        )


def draw_chances(draw, chances: list[float], seen: int, picked, high: int, what: str) -> None:
    """p(pick) of the frames seen so far, or what a scorer values them, a bar each, with a dotted
    line at one half or at the mean."""
    left, top, bottom = LARGE + 3 * GAP, GAP + 26, GAP + high
    step, tallest = (WIDTH - GAP - left) / len(chances), bottom - top
    draw.text((left, GAP - 3), f"frame {seen} of {len(chances)}", "black", _font(17))
    draw.text((WIDTH - GAP, GAP - 3), what, GREY, _font(17), anchor="ra")
    for i, chance in enumerate(chances):
        colour = PALE if i >= seen else PICK_GREEN if i in picked else GREY
        tip = bottom - max(2, tallest * chance if i < seen else 0)
        draw.rectangle((left + i * step + 2, tip, left + (i + 1) * step - 2, bottom), fill=colour)
    for x in range(round(left), WIDTH - GAP, 6):
        draw.line((x, top + tallest / 2, x + 2, top + tallest / 2), fill="black")


def scenes(caption: Caption, frames: list, tall: float):
    "Every picture of the animation with the milliseconds it stays."
    high = round(LARGE * tall)
    row = row_places(len(caption.picked), tall, high + 2 * GAP)
    watched, bottom = (GAP, GAP, LARGE, high), row[0][1] + row[0][3] + GAP
    words = drawable(caption.text).split()
    chances, what = (caption.probabilities, "p(pick)") if caption.values is None else (
        heights(caption.values), "value")
    lines = lambda count: textwrap.wrap(" ".join(words[:count]), 42)

    def scene(now: int, done: int, moving: float | None = None, said: int = 0):
        canvas = Image.new("RGB", (WIDTH, bottom + 10 + 32 * len(lines(None))), "white")
        draw = ImageDraw.Draw(canvas)
        draw_chances(draw, chances, now + 1, caption.picked, high, what)
        paste(canvas, frames[now], watched, now in caption.picked)
        for place, number in zip(row, caption.picked[:done]):
            paste(canvas, frames[number], place, True)
        if moving is not None:
            paste(
                canvas,
                frames[now],
                [a + moving * (b - a) for a, b in zip(watched, row[done])],
                True,
            )
        draw.multiline_text((GAP, bottom), "\n".join(lines(said)), "black", _font(25))
        return canvas

    done = 0
    for now in range(len(frames)):
        yield scene(now, done), 150
        if now in caption.picked:
            yield from ((scene(now, done, step / SLIDE), 60) for step in range(1, SLIDE))
            done += 1
    for said in range(1, len(words)):
        yield scene(now, done, said=said), 250
    yield scene(now, done, said=len(words)), 4000


def moving_picture(caption: Caption, out: Path) -> int:  # how many pictures
    "Watched, picked and said, as an animated WebP that starts again when it ends."
    tall = height_to_width(caption.source)
    clip = read_clip(caption.source, len(caption.probabilities), LARGE)
    frames = [
        Image.fromarray(frame.permute(1, 2, 0).numpy()).resize((LARGE, round(LARGE * tall)))
        for frame in clip.frames
    ]
    pictures, stay = zip(*scenes(caption, frames, tall))
    first, *others = pictures
    first.save(
        out, save_all=True, append_images=others, duration=list(stay), loop=0, quality=70, method=4
    )
    return len(pictures)


def deviation(picked: list[int], frames: int) -> float:
    """How far picks are from as many uniform ones, with both ends or the middles of equal parts,
    whichever is nearer: a mean over picks, in frames."""
    count, most = len(picked), frames - 1
    ends = [place * most / max(count - 1, 1) for place in range(count)]
    middles = [(place + 0.5) * frames / count - 0.5 for place in range(count)]
    return min(sum(abs(one - other) for one, other in zip(sorted(picked), uniform)) / count
               for uniform in (ends, middles))


def least_uniform(folder: Path, model: str) -> tuple[Caption, dict]:
    "Of a folder's clips that all raters call right, the one with the least uniform picks."
    rated = read_json(Path("data/results/ratings_strict.json"))["clips"]
    right = {clip for clip, captions in rated.items() for each in captions.values()
             if model in each["models"] and set(each["ratings"]) == {"right"}}
    paths = [path for path in sorted(folder.glob("*.mp4")) if path.stem in right]
    if not paths:
        raise PickNetError(f"{folder}: none of its clips was rated right for {model}")
    captioner = load(model)
    found = [captioner.caption(path) for path in paths]
    far = [deviation(each.picked, len(each.probabilities)) for each in found]
    best = max(range(len(found)), key=far.__getitem__)
    return found[best], {"of clips": len(paths), "deviation": round(far[best], 2),
                         "median deviation": round(statistics.median(far), 2),
                         "frames": found[best].picked}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path, help="a clip, or a folder of rated clips")
    parser.add_argument(
        "--model", default="everyday", help="a bundled model, or the folder of a run"
    )
    parser.add_argument("--out", type=Path, default=Path("moving.webp"))
    parser.add_argument(
        "--front", action="store_true", help="note in data/results/front_page.json what was drawn"
    )
    given = parser.parse_args()
    found, rule = (least_uniform(given.clip, given.model) if given.clip.is_dir()
                   else (load(given.model).caption(given.clip), {}))
    count = moving_picture(found, given.out)
    print(f"{given.out}: {count} pictures, {given.out.stat().st_size / 1000:.0f} kB: {found.text}")
    if given.front:
        note(
            "moving", **made_with(given.model), clip=Path(found.source).stem, caption=found.text,
            picks=len(found.picked), **rule
        )


if __name__ == "__main__":
    main()
