"""Rate captions by hand, blind to the model: right, half right or wrong.

python tools/rate.py sheet ratings --videos clips --captions sharp=FILE --captions everyday=FILE
python tools/rate.py page ratings                 rate on a local web page, resumable
python tools/rate.py score ratings/ratings.json ratings/key.json

`sheet` draws random clips of those that all models have captioned, with a seed, and writes to the
folder: sheet-01.png … with six frames of each clip and the captions below, lettered in a random
order; questions.json, the same as text; ratings.json, to be filled in; and key.json, which says
whose caption has which letter and is not needed before the end. A caption that several models give
is shown once. A FILE with captions is JSON {clip: caption}, or what tools/card.py wrote. `score`
counts, with 95 % Wilson intervals.

Right: a person would accept the sentence for this clip. Half: something essential is right, and
something is wrong. Wrong: the rest.
"""
from __future__ import annotations

import argparse
import base64
import html
import io
import json
import random
import sys
import textwrap
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import sqrt
from pathlib import Path
from urllib.parse import parse_qs

from PIL import Image, ImageDraw, ImageFont

from picknet_nb.core.files import FileError, PickNetError, read_json, write_whole
from picknet_nb.core.printing import printable
from picknet_nb.data.extraction import find_videos
from picknet_nb.data.video import VideoError, read_clip

JUDGEMENTS = {"r": "right", "h": "half", "w": "wrong"}
FRAMES, WIDTH, GAP = 6, 1400, 8  # of a clip; pixels of a sheet, and between its parts
LETTERS = "abcdefghij"


def captions_in(path: Path) -> dict[str, str]:
    "Captions by clip: a plain JSON object, or what tools/card.py wrote of a model."
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("sets"), dict):
        content = {clip: text for found in content["sets"].values()
                   for clip, text in found["learned, as it speaks"]["captions"].items()}
    if not isinstance(content, dict) or not all(isinstance(each, str) for each in content.values()):
        raise FileError(path, "must be {clip: caption}, or a file of tools/card.py")
    return content


def questions_for(
    models: dict[str, dict[str, str]],  # model -> clip -> caption
    clips: list[str], count: int, seed: int,
) -> tuple[dict, dict]:  # number -> clip and captions by letter; number -> models by letter
    "Draw clips, and put the captions of each in a random order; equal ones are one."
    draw, questions, key = random.Random(seed), {}, {}
    if count > len(clips):
        raise PickNetError(f"{count} clips are wanted, and there are {len(clips)} that all models "
                           "have captioned and whose videos are here")
    for number, clip in enumerate(draw.sample(sorted(clips), count), 1):
        by_text: dict[str, list[str]] = {}
        for model, captions in models.items():
            by_text.setdefault(captions[clip], []).append(model)
        order = draw.sample(sorted(by_text), len(by_text))
        questions[str(number)] = {"clip": clip, "captions": dict(zip(LETTERS, order))}
        key[str(number)] = {letter: by_text[text] for letter, text in zip(LETTERS, order)}
    return questions, key


def strip_of(path: Path) -> Image.Image:
    "Frames of a clip side by side, four units wide and three high each."
    wide = (WIDTH - (FRAMES + 1) * GAP) // FRAMES
    size = wide, wide * 3 // 4
    strip = Image.new("RGB", (WIDTH, size[1]), "white")
    for place, frame in enumerate(read_clip(path, FRAMES, 256).frames):
        image = Image.fromarray(frame.permute(1, 2, 0).numpy()).resize(size)
        strip.paste(image, (GAP + place * (wide + GAP), 0))
    return strip


def drawn(number: str, question: dict, strip: Image.Image) -> Image.Image:
    "One clip of a sheet: its number, its frames, and its lettered captions."
    large, plain = ImageFont.load_default(30), ImageFont.load_default(26)
    rows = [(letter if not place else "", line)
            for letter, text in question["captions"].items()
            for place, line in enumerate(textwrap.wrap(text, 96) or ["(no words)"])]
    part = Image.new("RGB", (WIDTH, strip.height + 44 + 36 * len(rows) + 14), "white")
    pen = ImageDraw.Draw(part)
    pen.line((0, 2, WIDTH, 2), "black", 2)
    pen.text((GAP, 8), f"Clip {number}", "black", large)
    part.paste(strip, (0, 44))
    for place, (letter, line) in enumerate(rows):
        height = strip.height + 50 + 36 * place
        if letter:
            pen.text((GAP, height), f"{number}{letter}", "#b00000", plain)
        pen.text((GAP + 90, height), line, "black", plain)
    return part


def write_sheets(folder: Path, questions: dict, videos: dict[str, Path], per_sheet: int) -> None:
    "Write the sheets, so many clips on each."
    parts, sheets = [], 0
    for number, question in questions.items():
        parts.append(drawn(number, question, strip_of(videos[question["clip"]])))
        if len(parts) == per_sheet or number == str(len(questions)):
            sheets += 1
            sheet = Image.new("RGB", (WIDTH, sum(part.height for part in parts)), "white")
            for place, part in enumerate(parts):
                sheet.paste(part, (0, sum(each.height for each in parts[:place])))
            file = io.BytesIO()
            sheet.save(file, "PNG")
            write_whole(folder/f"sheet-{sheets:02}.png", file.getvalue())
            parts = []


def sheet(given: argparse.Namespace) -> None:
    "Draw clips, write sheets, questions, an empty file of ratings, and the key."
    models = {}
    for pair in given.captions:
        name, mark, path = pair.partition("=")
        if not mark:
            raise PickNetError(f"--captions {pair}: write NAME=FILE")
        models[name] = captions_in(Path(path))
    if (given.folder/"key.json").exists():
        raise FileError(given.folder/"key.json", "is there already: choose another folder")
    videos = {path.stem: path for path in find_videos(given.videos)}
    clips = set(videos).intersection(*models.values())
    questions, key = questions_for(models, sorted(clips), given.clips, given.seed)
    write_sheets(given.folder, questions, videos, given.per_sheet)
    empty = {number: dict.fromkeys(each["captions"], "") for number, each in questions.items()}
    keep = lambda name, content: write_whole(
        given.folder/name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    keep("questions.json", {number: {**each, "video": str(videos[each["clip"]])}
                            for number, each in questions.items()})
    keep("ratings.json", empty)
    # last: with it the folder is complete
    keep("key.json", {"seed": given.seed, "drawn from": len(clips), "key": key,
                      "clips": {number: each["clip"] for number, each in questions.items()}})
    print(f"{printable(given.folder)}: {len(questions)} clips of {len(clips)}, "
          f"{sum(map(len, key.values()))} captions to rate; fill in ratings.json (right, half or "
          f"wrong), or `python tools/rate.py page {printable(given.folder)}`")


# a web page
# --------------------------------------------------------------------------------------------------

PAGE = """<!doctype html><meta charset="utf-8"><title>{done} of {total}</title>
<style>body {{font: 20px sans-serif; max-width: 1420px; margin: 1em auto}}
button {{font-size: 20px; margin-right: .6em}} .said {{margin: .8em 0}}</style>
<p>{done} of {total} captions rated</p><img src="data:image/jpeg;base64,{strip}" width="1400">
{forms}"""
FORM = """<form method="post" class="said"><p>{text}</p><input type="hidden" name="clip"
value="{number}"><input type="hidden" name="letter" value="{letter}">
<button name="is" value="right">right</button><button name="is" value="half">half</button>
<button name="is" value="wrong">wrong</button> {now}</form>"""


class Ratings:
    "What was asked and answered so far; an answer is on the disk before the next question."

    def __init__(self, folder: Path):
        self.path, self.questions = folder/"ratings.json", read_json(folder/"questions.json")
        self.given = read_json(self.path)

    def next(self) -> str | None:
        "The first clip with a caption that nobody has rated."
        return next((number for number, each in self.given.items() if not all(each.values())), None)

    def rate(self, number: str, letter: str, judgement: str) -> None:
        if letter not in self.given.get(number, {}) or judgement not in JUDGEMENTS.values():
            raise PickNetError(f"there is no caption {number}{letter} that could be {judgement}")
        self.given[number][letter] = judgement
        write_whole(self.path, json.dumps(self.given, indent=1) + "\n")

    def page(self) -> str:
        "The clip that comes next, with a form for each caption that is not rated yet."
        answers = [answer for each in self.given.values() for answer in each.values()]
        counts = {"done": sum(map(bool, answers)), "total": len(answers)}
        if (number := self.next()) is None:
            return PAGE.format(strip="", forms="<p>All of them are rated.</p>", **counts)
        question, image = self.questions[number], io.BytesIO()
        strip_of(Path(question["video"])).save(image, "JPEG", quality=90)
        forms = "".join(
            FORM.format(text=html.escape(text), number=number, letter=letter,
                        now=self.given[number][letter] and f"now: {self.given[number][letter]}")
            for letter, text in question["captions"].items())
        return PAGE.format(strip=base64.b64encode(image.getvalue()).decode(), forms=forms, **counts)


def server_of(folder: Path, port: int) -> HTTPServer:
    "A server for this machine alone that shows clips and keeps ratings."
    ratings = Ratings(folder)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                content = ratings.page().encode()
            except VideoError as reason:
                content = f"<p>{html.escape(str(reason))}</p>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):
            length = min(int(self.headers.get("Content-Length", 0)), 10_000)
            sent = {name: values[0] for name, values in
                    parse_qs(self.rfile.read(length).decode()).items()}
            try:
                ratings.rate(sent.get("clip", ""), sent.get("letter", ""), sent.get("is", ""))
                self.send_response(303)
                self.send_header("Location", "/")
            except PickNetError:
                self.send_response(400)
            self.end_headers()

        def log_message(self, *_): pass

    return HTTPServer(("127.0.0.1", port), Answer)


# counting
# --------------------------------------------------------------------------------------------------


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    "The 95 % interval of a share by Wilson's formula."
    if not total:
        return 0.0, 1.0
    share, spread = count / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / total + spread / total / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def counted(ratings: dict, key: dict) -> dict[str, dict]:
    "How often each model was right, half right and wrong, with intervals."
    found: dict[str, dict] = {}
    for number, letters in key["key"].items():
        for letter, models in letters.items():
            said = str(ratings.get(number, {}).get(letter, "")).strip().lower()
            judgement = JUDGEMENTS.get(said, said)
            if judgement and judgement not in JUDGEMENTS.values():
                raise PickNetError(f"{number}{letter} is rated {said!r}: right, half or wrong")
            for model in models:
                each = found.setdefault(
                    model, {"clips": 0, "right": 0, "half": 0, "wrong": 0, "not rated": 0})
                each[judgement or "not rated"] += 1
                each["clips"] += bool(judgement)
    for each in found.values():
        good = each["right"] + each["half"]
        each["right_interval"] = wilson(each["right"], each["clips"])
        each["right_or_half"] = good / each["clips"] if each["clips"] else 0.0
        each["right_or_half_interval"] = wilson(good, each["clips"])
        each["shown"] = "in random order, without the name of the model"
    return found


def score(given: argparse.Namespace) -> dict[str, dict]:
    "Print a table of models; with --out, write what a card needs."
    key = read_json(given.key)
    if not isinstance(key, dict) or "key" not in key:
        raise FileError(given.key, "is not a key that `sheet` wrote")
    found = counted(read_json(given.ratings), key)
    print("| model | clips | right | half | wrong | right (95 %) | right or half (95 %) |\n"
          "|---|---|---|---|---|---|---|")
    share = lambda value, interval: (f"{100 * value:.0f} % ({100 * interval[0]:.0f} to "
                                     f"{100 * interval[1]:.0f})")
    for model, each in sorted(found.items()):
        right = each["right"] / each["clips"] if each["clips"] else 0.0
        print(f"| {model} | {each['clips']} | {each['right']} | {each['half']} | {each['wrong']} | "
              f"{share(right, each['right_interval'])} | "
              f"{share(each['right_or_half'], each['right_or_half_interval'])} |")
        if each["not rated"]:
            print(f"{model}: {each['not rated']} captions are not rated", file=sys.stderr)
    if given.out:
        write_whole(given.out, json.dumps(
            {"kind": "ratings", "seed": key["seed"], "drawn from": key["drawn from"],
             "models": found}, indent=1) + "\n")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    one = ways.add_parser("sheet")
    one.add_argument("folder", type=Path)
    one.add_argument("--videos", type=Path, action="append", required=True)
    one.add_argument("--captions", action="append", required=True, metavar="NAME=FILE")
    one.add_argument("--clips", type=int, default=100)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--per-sheet", type=int, default=4)
    two = ways.add_parser("page")
    two.add_argument("folder", type=Path)
    two.add_argument("--port", type=int, default=8877)
    three = ways.add_parser("score")
    three.add_argument("ratings", type=Path)
    three.add_argument("key", type=Path)
    three.add_argument("--out", type=Path, help="JSON for tools/card.py")
    given = parser.parse_args(arguments)
    try:
        if given.way == "page":
            server = server_of(given.folder, given.port)
            print(f"http://127.0.0.1:{server.server_port}; Ctrl-C ends it, and nothing is lost")
            server.serve_forever()
        else:
            {"sheet": sheet, "score": score}[given.way](given)
    except PickNetError as reason:
        sys.exit(f"rate: {printable(reason)}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
