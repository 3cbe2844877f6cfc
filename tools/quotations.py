"""Compare quotations in the notebooks with the paper: `python tools/quotations.py PAPER.tex`.

The paper's text is not part of this repository. `tests/quotations.json` holds a digest of every
quotation that was found in it; a quotation that is new or has changed fails `tests/test_book.py`
until this program has found it, too. Formulas inside a quotation are not compared: they are
checked, equation by equation, where they are used."""
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = ROOT/"tests"/"quotations.json"
OTHER_PAPERS = ("systems",)  # these notebooks quote the papers of the compared captioners
PLACE = r"\d[\d.]*|table \d+|figure \d+|supplement"
LOOKS = "textit|textsf|textbf|texttt|textrm|text|emph|mathbf|mathrm|mathbb|mathcal|rm|bf|it"


def words_of(text: str) -> str:
    "The letters and digits of a text, without LaTeX commands for looks, citations and footnotes."
    text = re.sub(r"(?<!\\)%.*", "", text).replace("×", "times")
    text = re.sub(r"\\footnote\{(?:[^{}]|\{[^{}]*\})*\}", " ", text)
    text = re.sub(r"\\(?:cite|ref|eqref|label)\w*\s*\{[^}]*\}", " ", text)
    text = re.sub(rf"\\(?:{LOOKS})(?![a-zA-Z])", " ", text)
    return re.sub(r"[^a-z0-9]", "", text.lower())


def pieces_of(quotation: str) -> list[str]:
    "The words between the formulas, additions and omissions ([…], …) of a quotation."
    pieces = re.split(r"(?<!\\)\$.*?(?<!\\)\$|\[[^]]*\]|…|\.\.\.", quotation)
    return [words for piece in pieces if (words := words_of(piece))]


def quotations_in(prose: str) -> list[tuple[str, str]]:
    "The block quotations of a cell that name a place in the paper: their words, and the place."
    lines = [line for line in prose.splitlines() if line.startswith('> "')]
    return [pair for line in lines for pair in re.findall(rf'"(.+?)" \(({PLACE})\)', line)]


def all_quotations() -> Iterator[tuple[str, str, str]]:
    "Notebook, words and place of every quotation of the paper."
    for path in sorted((ROOT/"nbs").glob("*/[0-9]*.ipynb")):
        if path.parent.name not in OTHER_PAPERS:
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
                if cell["cell_type"] == "markdown":
                    for words, place in quotations_in("".join(cell["source"])):
                        yield f"{path.parent.name}/{path.stem}", words, place


def digest(quotation: str) -> str:
    "What stands for a quotation in the list of those that were checked."
    return hashlib.sha256("|".join(pieces_of(quotation)).encode()).hexdigest()[:16]


def occurs(quotation: str, paper: str) -> bool:
    "Whether the pieces of a quotation follow each other in the words of the paper."
    place = 0
    for piece in pieces_of(quotation):
        place = paper.find(piece, place) + len(piece)
        if place < len(piece):
            return False
    return True


def main(paper: Path, checked: Path = CHECKED) -> None:
    "Store the digests of all quotations, or name those that the paper does not have."
    words = words_of(paper.read_text(encoding="utf-8", errors="replace"))
    found, missing = {}, []
    for notebook, quotation, place in all_quotations():
        found[digest(quotation)] = place
        if not occurs(quotation, words):
            missing.append(f"{notebook} ({place}): {quotation}")
    if missing:
        raise SystemExit("not in the paper:\n" + "\n".join(missing))
    checked.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    print(f"{len(found)} quotations are in the paper")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
