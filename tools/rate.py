"""Rate captions by hand, blind to the model, so that a second person can repeat it.

python tools/rate.py sheet FOLDER --videos clips30.zip --videos clips.zip
python tools/rate.py count FOLDER/key.json rater_1.json rater_2.json --out FILE

`sheet` takes the clips that data/results/ratings.json has rated, and writes to the folder:
RULE.md, what right, half and wrong mean; sheet_01.png … with six frames of each clip and, below
them, its captions, lettered in a random order; index.html, the same with buttons, which keeps what
was clicked and saves it as a file; sheet.json, the same as text, to be filled in; and key.json,
which says whose caption has which letter and is not opened before the end. Videos are folders or
zip files. The captions are those of data/results/model_NAME.json (--models). With --clips and
--seed, clips are drawn anew. A caption that several models give is shown once.

`count` gives each rater's right, half and wrong for each model with 95 % Wilson intervals, and for
every two raters how many captions both rated alike and Cohen's kappa.
"""
from __future__ import annotations

import argparse
import base64
import html
import io
import json
import random
import shutil
import sys
import tempfile
import textwrap
import zipfile
from itertools import combinations
from math import sqrt
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from picknet_nb.core.files import FileError, PickNetError, read_json, write_whole
from picknet_nb.core.printing import printable
from picknet_nb.data.video import read_clip
from picknet_nb.data.video_files import is_video

RESULTS = Path(__file__).resolve().parents[1]/"data"/"results"
JUDGEMENTS = "right", "half", "wrong"
FRAMES, WIDTH, GAP = 6, 1540, 8  # of a clip; pixels of a sheet, and between its parts
LETTERS = "ABCDEFGHIJ"
RULE = """\
# How a caption is rated

Look at the frames of a clip, left to right: they are spread over the whole clip. Then judge each
caption on its own, strictly, as someone would who has just typed the command and wants to use the
sentence. Ask in this order and stop at the first yes:

1. **right**: would a person who watched the clip say this sentence about it? Everything in it
   fits: who, what they do, with what, where. What it leaves out does not count against it; a slip
   of grammar ("a elephant") does not either.
2. **half**: does the clip show this action or a related one (slicing for peeling, a flute for a
   violin, two puppies for five), with something else in the sentence amiss?
3. **half**: is the action missed, but do both who and where, or who and with what, fit?
4. **wrong**: everything else. That the subject alone fits ("a man") does not count.

When two answers are possible, take the stricter one. Judge what the frames show: sound and titles
are not known here. A man called a woman is amiss: half at best. Rate all clips; do not compare the
captions of a clip with each other, do not look anything up, and do not change the ratings of
earlier clips once you have gone on to the next sheet.

Write `right`, `half` or `wrong` (or `r`, `h`, `w`) as each `rating` of sheet.json, and who you are
as its `rater`; or open index.html, click, and save the file at its end.
"""


# the sheets
# --------------------------------------------------------------------------------------------------


def captions_of(model: str) -> dict[str, str]:
    "Captions by clip, as tools/card.py made them of a bundled model."
    sets = read_json(RESULTS/f"model_{model}.json")["sets"]
    own = [found.get("scorer, as it speaks") or found["learned, as it speaks"]
           for found in sets.values()]
    return {clip: text for each in own for clip, text in each["captions"].items()}


def questions_for(
    models: dict[str, dict[str, str]],  # model -> clip -> caption
    clips: list[str], seed: int,
) -> tuple[dict, dict]:  # number -> letter -> caption; number -> letter -> models
    "The captions of each clip in a random order; equal ones are one."
    draw, questions, key = random.Random(seed), {}, {}
    for number, clip in enumerate(clips, 1):
        by_text: dict[str, list[str]] = {}
        for model, captions in models.items():
            by_text.setdefault(captions[clip], []).append(model)
        order = draw.sample(sorted(by_text), len(by_text))
        questions[str(number)] = dict(zip(LETTERS, order))
        key[str(number)] = {letter: by_text[text] for letter, text in zip(LETTERS, order)}
    return questions, key


def find_clips(places: list[Path], wanted: list[str] | None, into: Path) -> dict[str, Path]:
    "Paths of videos by clip; what a zip file holds of the wanted ones is unpacked."
    found = {}
    for place in places:
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as packed:
                for member in filter(is_video, packed.namelist()):
                    if wanted is None or Path(member).stem in wanted:
                        path = into/Path(member).name
                        with packed.open(member) as source, open(path, "wb") as target:
                            shutil.copyfileobj(source, target)
                        found[path.stem] = path
        elif place.is_dir():
            found |= {path.stem: path for path in sorted(place.rglob("*")) if is_video(path)}
        else:
            raise FileError(place, "is neither a folder nor a zip file")
    return found


def strip_of(path: Path) -> Image.Image:
    "Frames of a clip side by side, four units wide and three high each."
    wide = (WIDTH - (FRAMES + 1) * GAP) // FRAMES
    size = wide, wide * 3 // 4
    strip = Image.new("RGB", (WIDTH, size[1]), "white")
    for place, frame in enumerate(read_clip(path, FRAMES, 256).frames):
        image = Image.fromarray(frame.permute(1, 2, 0).numpy()).resize(size)
        strip.paste(image, (GAP + place * (wide + GAP), 0))
    return strip


def drawn(number: str, captions: dict[str, str], strip: Image.Image) -> Image.Image:
    "One clip of a sheet: its number, its frames, and its lettered captions."
    font = ImageFont.load_default(28)
    rows = [(letter if not place else "", line)
            for letter, text in captions.items()
            for place, line in enumerate(textwrap.wrap(text, 96) or ["(no words)"])]
    part = Image.new("RGB", (WIDTH, strip.height + 12 + 38 * len(rows) + 12), "white")
    pen = ImageDraw.Draw(part)
    pen.line((0, 2, WIDTH, 2), "black", 2)
    part.paste(strip, (0, 10))
    for place, (letter, line) in enumerate(rows):
        height = strip.height + 14 + 38 * place
        if letter:
            pen.text((GAP, height), f"{number} {letter}", "#b00000", font)
        pen.text((GAP + 110, height), line, "black", font)
    return part


def write_sheets(folder: Path, parts: list[Image.Image], per_sheet: int) -> None:
    "Write the pictures of clips below each other, a few on each sheet."
    for first in range(0, len(parts), per_sheet):
        some = parts[first:first + per_sheet]
        sheet = Image.new("RGB", (WIDTH, sum(part.height for part in some)), "white")
        for place, part in enumerate(some):
            sheet.paste(part, (0, sum(each.height for each in some[:place])))
        file = io.BytesIO()
        sheet.save(file, "PNG")
        write_whole(folder/f"sheet_{first // per_sheet + 1:02}.png", file.getvalue())


# the page, which needs no server: it keeps its answers in the browser and saves them as a file
# --------------------------------------------------------------------------------------------------

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Captions to rate</title>
<meta name="viewport" content="width=device-width">
<style>body {{font: 18px sans-serif; max-width: 1560px; margin: 1em auto; padding: 0 1em}}
img {{max-width: 100%}} 
fieldset {{border: 0; border-top: 1px solid #888; margin: 1.5em 0; padding: 0}}
p.caption {{margin: .5em 0}} label {{margin-right: 1em}} pre {{white-space: pre-wrap}}
footer {{position: sticky; bottom: 0; background: #fff; padding: .6em 0}}</style>
<pre>{rule}</pre>{clips}
<footer><label>Who are you? <input id="rater"></label> <button id="save">save</button>
<span id="count"></span></footer>
<script>
const sheet = {sheet}, kept = "captions to rate {mark}"
const inputs = [...document.querySelectorAll("input[type=radio]")]
Object.assign(sheet, JSON.parse(localStorage.getItem(kept) || "{{}}"))
const at = input => sheet.ratings[input.dataset.clip][input.dataset.letter]
function keep() {{
  localStorage.setItem(kept, JSON.stringify(sheet))
  const all = Object.values(sheet.ratings).flatMap(each => Object.values(each))
  const done = all.filter(each => each.rating).length
  count.textContent = `${{done}} of ${{all.length}} captions rated`
}}
for (const input of inputs) {{
  input.checked = at(input).rating === input.value
  input.onchange = () => {{ at(input).rating = input.value; keep() }}
}}
rater.value = sheet.rater
rater.oninput = () => {{ sheet.rater = rater.value; keep() }}
save.onclick = () => {{
  const link = document.createElement("a")
  link.href = URL.createObjectURL(new Blob([JSON.stringify(sheet, null, 1)]))
  link.download = "ratings.json"
  link.click()
}}
keep()
</script></html>
"""


def page_of(sheet: dict, strips: dict[str, Image.Image], mark: str) -> str:
    "The rule, and each clip with its captions and a button for each judgement."
    clips = []
    for number, captions in sheet["ratings"].items():
        image = io.BytesIO()
        strips[number].save(image, "JPEG", quality=85)
        picture = base64.b64encode(image.getvalue()).decode()
        rows = "".join(
            f'<p class="caption"><b>{number} {letter}</b> {html.escape(each["caption"])}<br>'
            + "".join(f'<label><input type="radio" name="{number}{letter}" value="{judgement}" '
                      f'data-clip="{number}" data-letter="{letter}"> {judgement}</label>'
                      for judgement in JUDGEMENTS)
            + "</p>" for letter, each in captions.items())
        clips.append(f'<fieldset><img alt="six frames of clip {number}" loading="lazy" '
                     f'src="data:image/jpeg;base64,{picture}">{rows}</fieldset>')
    # a caption that holds "</script>" must not end the script
    inside = json.dumps(sheet).replace("<", "\\u003c")
    return PAGE.format(rule=html.escape(RULE), clips="\n".join(clips), sheet=inside, mark=mark)


def write_sheet(given: argparse.Namespace) -> None:
    "Write the rule, the sheets, the page, what is to be filled in, and the key."
    models = {name: captions_of(name) for name in given.models.split(",")}
    if (given.folder/"key.json").exists():
        raise FileError(given.folder/"key.json", "is there already: choose another folder")
    captioned = set.intersection(*map(set, models.values()))
    with tempfile.TemporaryDirectory() as unpacked:
        if given.clips:
            videos = find_clips(given.videos, None, Path(unpacked))
            both = sorted(captioned & set(videos))
            if given.clips > len(both):
                raise PickNetError(f"{given.clips} clips are wanted, and there are {len(both)} "
                                   "that all models have captioned and whose videos are here")
            clips = random.Random(given.seed).sample(both, given.clips)
        else:
            clips = list(read_json(RESULTS/"ratings.json")["clips"])
            videos = find_clips(given.videos, clips, Path(unpacked))
        if missing := sorted(set(clips) - captioned.intersection(videos)):
            raise PickNetError(f"{len(missing)} of {len(clips)} clips have no video here or no "
                               f"caption, the first is {missing[0]}")
        questions, key = questions_for(models, clips, given.seed)
        strips = {str(number): strip_of(videos[clip]) for number, clip in enumerate(clips, 1)}
    sheet = {"rater": "", "ratings": {
        number: {letter: {"caption": text, "rating": ""} for letter, text in captions.items()}
        for number, captions in questions.items()}}
    keep = lambda name, content: write_whole(
        given.folder/name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_whole(given.folder/"RULE.md", RULE)
    write_sheets(given.folder, [drawn(number, captions, strips[number])
                                for number, captions in questions.items()], given.per_sheet)
    write_whole(given.folder/"index.html", page_of(sheet, strips, f"{given.seed} {len(clips)}"))
    keep("sheet.json", sheet)
    # last: with it the folder is complete
    keep("key.json", {"seed": given.seed, "clips": dict(zip(key, clips)), "key": key,
                      "captions": questions})
    print(f"{printable(given.folder)}: {len(clips)} clips, {sum(map(len, key.values()))} captions "
          "to rate by RULE.md; open index.html, or fill in sheet.json beside the pictures")


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


def judgements_in(path: Path, key: dict) -> tuple[str, dict[str, dict[str, str]]]:
    "Who rated, and what, by number and letter, of a sheet that is filled in."
    sheet = read_json(path)
    if not isinstance(sheet, dict) or not isinstance(sheet.get("ratings"), dict):
        raise FileError(path, "is not a sheet that `sheet` wrote")
    found: dict[str, dict[str, str]] = {}
    for number, captions in key["captions"].items():
        for letter, text in captions.items():
            try:
                each = sheet["ratings"][number][letter]
                caption, rating = each["caption"], str(each["rating"]).strip().lower()
            except (KeyError, TypeError):
                raise FileError(path, f"has no caption and rating of {number} {letter}") from None
            if caption != text:
                raise FileError(path, f"{number} {letter} is another caption than the key's")
            full = next((word for word in JUDGEMENTS if rating in (word, word[0])), "")
            if rating and not full:
                raise FileError(path, f"{number} {letter} is rated {rating!r}: right, half or "
                                      "wrong")
            found.setdefault(number, {})[letter] = full
    return str(sheet.get("rater") or path.stem), found


def counted(ratings: dict[str, dict[str, str]], key: dict) -> dict[str, dict]:
    "How often each model was right, half right and wrong, with intervals."
    by_model: dict[str, list[str]] = {}
    for number, letters in key["key"].items():
        for letter, models in letters.items():
            for model in models:
                by_model.setdefault(model, []).append(ratings[number][letter])
    found = {}
    for model, given in sorted(by_model.items()):
        count = {word: given.count(word) for word in JUDGEMENTS}
        total, good = sum(count.values()), count["right"] + count["half"]
        found[model] = {
            "clips": total, **count, "not rated": given.count(""),
            "right_interval": wilson(count["right"], total),
            "wrong_interval": wilson(count["wrong"], total),
            "right_or_half": good / total if total else 0.0,
            "right_or_half_interval": wilson(good, total)}
    return found


def agreement(one: dict, two: dict) -> dict:
    "How often two raters gave the same judgement, and Cohen's kappa, over captions both rated."
    pairs = [(one[number][letter], two[number][letter]) for number in one for letter in one[number]
             if one[number][letter] and two[number][letter]]
    table = {f"{a}, {b}": pairs.count((a, b)) for a in JUDGEMENTS for b in JUDGEMENTS}
    if not pairs:
        return {"captions": 0, "alike": None, "kappa": None, "table": table}
    total = len(pairs)
    alike = sum(a == b for a, b in pairs) / total
    chance = sum(sum(a == word for a, _ in pairs) * sum(b == word for _, b in pairs)
                 for word in JUDGEMENTS) / total ** 2
    kappa = (alike - chance) / (1 - chance) if chance < 1 else None
    return {"captions": total, "alike": alike, "kappa": kappa, "table": table}


def percent(count: int, total: int, interval: tuple[float, float]) -> str:
    return (f"{100 * count / max(1, total):.0f} % ({100 * interval[0]:.0f} to "
            f"{100 * interval[1]:.0f})")


def count(given: argparse.Namespace) -> dict:
    "Print a table of raters and models and their agreement; with --out, keep both."
    key = read_json(given.key)
    if not isinstance(key, dict) or not {"key", "captions", "clips"} <= set(key):
        raise FileError(given.key, "is not a key that `sheet` wrote")
    sheets = [judgements_in(path, key) for path in given.sheets]
    raters = {f"rater {place}": {"who": who, "models": counted(found, key)}
              for place, (who, found) in enumerate(sheets, 1)}
    print("| rater | model | clips | right | half | wrong | right (95 %) | wrong (95 %) |\n"
          "|---|---|---|---|---|---|---|---|")
    for name, rater in raters.items():
        for model, each in rater["models"].items():
            print(f"| {name} | {model} | {each['clips']} | "
                  + " | ".join(str(each[word]) for word in JUDGEMENTS)
                  + f" | {percent(each['right'], each['clips'], each['right_interval'])} | "
                  f"{percent(each['wrong'], each['clips'], each['wrong_interval'])} |")
            if each["not rated"]:
                print(f"{name}, {model}: {each['not rated']} captions are not rated",
                      file=sys.stderr)
    pairs = {}
    for (a, (_, one)), (b, (_, two)) in combinations(enumerate(sheets, 1), 2):
        pairs[f"raters {a} and {b}"] = found = agreement(one, two)
        if found["kappa"] is not None:
            print(f"raters {a} and {b} rate {100 * found['alike']:.0f} % of {found['captions']} "
                  f"captions alike; Cohen's kappa {found['kappa']:.2f}")
    clips = {clip: {letter: {"models": key["key"][number][letter], "caption": text,
                             "ratings": [found[number][letter] for _, found in sheets]}
                    for letter, text in key["captions"][number].items()}
             for number, clip in key["clips"].items()}
    result = {"kind": "strict ratings", "rule": RULE, "seed": key["seed"],
              "command": "python tools/rate.py sheet … ; python tools/rate.py count …",
              "raters": raters, "agreement": pairs, "clips": clips}
    if given.out:
        write_whole(given.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    one = ways.add_parser("sheet", help="write the rule, sheets, a page and the key")
    one.add_argument("folder", type=Path)
    one.add_argument("--videos", type=Path, action="append", required=True)
    one.add_argument("--models", default="everyday,sharp", help="bundled models, with commas")
    one.add_argument("--clips", type=int, default=0, help="draw so many (default: the rated ones)")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--per-sheet", type=int, default=5)
    two = ways.add_parser("count", help="count what raters have filled in")
    two.add_argument("key", type=Path)
    two.add_argument("sheets", type=Path, nargs="+")
    two.add_argument("--out", type=Path, help="JSON, which tools/card.py reads")
    given = parser.parse_args(arguments)
    try:
        {"sheet": write_sheet, "count": count}[given.way](given)
    except PickNetError as reason:
        sys.exit(f"rate: {printable(reason)}")


if __name__ == "__main__":
    main()
