"""Make a deck of slides for each of the six lectures, from the figures, equations, summaries and
questions of its lessons. `make slides` or `python tools/slides.py FOLDER` writes each as one HTML
file that needs no network, and as a notebook with the same slides, to be edited (`jupyter nbconvert
--to slides` turns that into reveal.js slides, which load their scripts from the network)."""
import html
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import nbformat
from markdown import markdown
from nbformat.v4 import new_markdown_cell, new_notebook

NOTEBOOKS = Path(__file__).parents[1]/"nbs"
LECTURES = {  # as the teacher's guide has them
    "See it work": ("method/00_one_page", "method/02_toy_world"),
    "REINFORCE": ("method/01_seven_logits", "method/12_reinforce"),
    "From frames to words": ("method/03_frames", "method/04_captions", "method/05_encoder",
                             "method/06_decoder"),
    "Which frames": ("method/08_pickers", "method/09_policy"),
    "What frames are worth": ("method/10_cider", "method/11_rewards"),
    "Learning to pick": ("method/13_starting", "method/14_three_stages", "method/15_learned",
                         "results/04_why"),
}
WORDS = 60  # of the text above a picture
STYLE = """
html, body {margin: 0; height: 100%; background: #fff; color: #222;
  font: 1.9vw/1.45 system-ui, sans-serif}
section {display: none; box-sizing: border-box; width: 100vw; height: 100vh; padding: 4vh 6vw;
  flex-direction: column; justify-content: center; overflow: auto}
section.now {display: flex}
h1 {color: #1a7f3c; font-size: 2.2em; margin: 0 0 .3em}
h2 {font-size: 1.5em; margin: 0 0 .4em}
p, ul, ol {margin: .3em 0} li {margin: .3em 0}
img {min-height: 0; flex: 0 1 auto; width: 100%; max-height: 74vh;
  object-fit: contain; margin: 0 auto}
math {font-size: 1.15em} math[display=block] {margin: .4em 0}
mtd[columnalign=left] {text-align: left} mtd[columnalign=right] {text-align: right}
mtable[displaystyle=true] mtd {padding-left: 0; padding-right: 0}
mtable[displaystyle=true] mtd:nth-child(2n+3) {padding-left: 2em}
blockquote {color: #555; border-left: .3em solid #ccc; margin: .4em 0; padding-left: .8em}
footer {position: fixed; right: 2vw; bottom: 1.5vh; font-size: .55em; color: #777}
@media print {
  @page {size: 33.87cm 19.05cm; margin: 0}
  section {display: flex; break-after: page} footer {display: none}
}
"""
SCRIPT = """
const slides = [...document.querySelectorAll("section")], foot = document.querySelector("footer");
let now = Math.min(slides.length, Math.max(1, Number(location.hash.slice(1)) || 1)) - 1;
const show = to => {
  slides[now].classList.remove("now");
  now = Math.min(slides.length - 1, Math.max(0, to));
  slides[now].classList.add("now");
  foot.textContent = `${now + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${now + 1}`);
};
const keys = {ArrowRight: 1, " ": 1, PageDown: 1, ArrowLeft: -1, PageUp: -1};
addEventListener("keydown", event => {
  if (event.key in keys) { event.preventDefault(); show(now + keys[event.key]); }
  if (event.key === "Home") show(0);
  if (event.key === "End") show(slides.length - 1);
});
addEventListener("click", event => show(now + (event.clientX < innerWidth / 3 ? -1 : 1)));
show(now);
"""


class Slide(NamedTuple):
    "One slide: Markdown, and pictures under it."
    text: str
    pictures: tuple[tuple[str, str], ...] = ()  # kind and base64 of each


def site():
    "tools/site.py, under another name: `site` is a module of Python."
    spec = spec_from_file_location("picknet_site", Path(__file__).with_name("site.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(text: str) -> str:
    "Prose without links and answers that are folded away."
    text = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).strip()


def shortened(text: str) -> str:
    "The last paragraph of some prose, cut after a sentence where it is long."
    paragraphs = [each for each in plain(text).split("\n\n")
                  if not re.match(r"[>|#$-]|\d\. |```", each)]
    kept = []
    for sentence in re.split(r"(?<=[.:?!]) +", paragraphs[-1] if paragraphs else ""):
        if kept and len(" ".join([*kept, sentence]).split()) > WORDS:
            break
        kept.append(sentence)
    return " ".join(kept)


def slides_of(name: str) -> list[Slide]:
    "The slides of a lesson: title, equations with a number, pictures, summary, questions."
    slides, heading, before = [], "", ""
    for cell in nbformat.read(NOTEBOOKS/f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown":
            if opening := re.match(r"# (.+)\n> (.+)", cell.source):
                slides.append(Slide(f"# {opening[1]}\n\n{plain(opening[2])}"))
                continue
            if found := re.match(r"##+ (.+)", cell.source):
                heading, before = plain(found[1]), ""
            prose = re.sub(r"^##+ .+\n*", "", cell.source)
            if heading == "Summary" and prose:
                slides.append(Slide(f"## {heading}\n\n{plain(prose).split(chr(10) + 'Next')[0]}"))
            elif heading == "Three questions" and prose:
                slides.append(Slide(f"## {heading}\n\n{plain(prose)}"))
            else:
                slides += [Slide(f"## {heading}\n\n{equation}")
                           for equation in re.findall(r"\$\$.+?\$\$", prose, re.S)
                           if r"\tag{" in equation]
            before = prose or before
            continue
        pictures = tuple(
            (kind, output.data[kind].replace("\n", ""))
            for output in cell.get("outputs", []) for kind in ("image/png", "image/jpeg")
            if kind in output.get("data", {}))
        if pictures:
            slides.append(Slide(f"## {heading}\n\n{shortened(before)}", pictures))
            before = ""
    return slides


def as_html(title: str, slides: list[Slide], with_mathml) -> str:
    "A deck as one HTML file."
    sections = "\n".join(
        f"<section>{markdown(with_mathml(slide.text))}"
        + "".join(f"<img alt='' src='data:{kind};base64,{data}'>" for kind, data in slide.pictures)
        + "</section>"
        for slide in slides)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
            f"<style>{STYLE}</style>\n{sections}\n<footer></footer>"
            f"<script>{SCRIPT}</script></html>")


def as_notebook(slides: list[Slide]) -> nbformat.NotebookNode:
    "A deck as a notebook whose cells are slides; pictures are attached to them."
    cells = []
    for slide in slides:
        cell = new_markdown_cell(slide.text)
        for number, (kind, data) in enumerate(slide.pictures, 1):
            cell.setdefault("attachments", {})[f"figure{number}"] = {kind: data}
            cell.source += f"\n\n![](attachment:figure{number})"
        cell.metadata["slideshow"] = {"slide_type": "slide"}
        cells.append(cell)
    return new_notebook(cells=cells)


def write_slides(folder: Path) -> list[Path]:
    "A deck for each lecture, in both forms; the HTML files."
    folder.mkdir(parents=True, exist_ok=True)
    with_mathml, written = site().with_mathml, []
    for number, (title, names) in enumerate(LECTURES.items(), 1):
        lessons = [name for name in names if (NOTEBOOKS/f"{name}.ipynb").exists()]
        slides = [Slide(f"# {number}. {title}\n\nPicking informative frames for video captioning"),
                  *(slide for name in lessons for slide in slides_of(name))]
        path = folder/f"{number}_{title.lower().replace(' ', '_')}.html"
        path.write_text(as_html(title, slides, with_mathml), encoding="utf-8")
        nbformat.write(as_notebook(slides), path.with_suffix(".ipynb"))
        written.append(path)
    return written


def main() -> None:
    "Write the decks and say where they are."
    for path in write_slides(Path(sys.argv[1] if len(sys.argv) > 1 else "slides")):
        print(path)


if __name__ == "__main__":
    main()
