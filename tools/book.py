"How long the way through the book is: `make book-stats` counts words, lines of code and figures along the method track."
import re
import statistics
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
METHOD = ("picknet_on_one_page", "08_shapes", "10_encoder", "11_decoder", "12_policy", "13_pickers", "14_captioner",
          "20_cider", "21_rewards", "22_reinforce", "23_stages")
SIDE_ROOMS = ("02_text", "15_attention", "16_one_stack", "17_shared_space", "18_hierarchies", "19_committees", "24_extras")  # off the method track
BACK = {"02_text": "11_decoder", "19_committees": "20_cider", "24_extras": "90_shapes_table"}  # where a side room leads back to
LIMITS = {"notebooks": 12, "words": 20_000, "words before equation 1": 3_000, "words before equation 12": 8_000}


def tracks() -> dict[str, list[str]]:
    "The notebooks of each part of the book, in reading order."
    numbered = sorted(path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb"))
    rest = [name for name in numbered if name not in METHOD + SIDE_ROOMS]
    return {"The method": list(METHOD), "Side rooms": list(SIDE_ROOMS), "The machine": [name for name in rest if name < "90"],
            "Results": [name for name in rest if name >= "90"]}


def following() -> dict[str, str]:
    "What each notebook's last line leads to: the next one on its track."
    parts = tracks()
    pairs = [pair for names in parts.values() for pair in zip(names, names[1:])]
    ends = {"23_stages": parts["Results"][0], parts["The machine"][-1]: parts["Results"][0], parts["Results"][-1]: "index"}
    return dict(pairs) | ends | BACK


def cells_of(name: str) -> list:
    "The cells of a notebook."
    return nbformat.read(ROOT/"nbs"/f"{name}.ipynb", as_version=4).cells


def words_in(cells) -> int:
    "Words of prose, without answers that are folded away."
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return len(re.sub(r"<details>.*?</details>", "", prose, flags=re.S).split())


def lines_in(cells) -> int:
    "Lines of code, without directives, empty lines and cells that no reader sees."
    shown = [cell.source for cell in cells if cell.cell_type == "code" and not re.search(r"^#\|\s*(hide|echo:\s*false)", cell.source, re.M)]
    return sum(bool(line.strip()) and not line.startswith("#|") for source in shown for line in source.splitlines())


def before_equation(number: int) -> tuple[int, int]:
    "Words and lines of code on the method track before the paper's equation of this number is displayed."
    passed = []
    for name in METHOD:
        for cell in cells_of(name):
            if cell.cell_type == "markdown" and re.search(rf"\\tag\{{{number}\}}", cell.source):
                return words_in(passed), lines_in(passed)
            passed.append(cell)
    raise SystemExit(f"equation {number} is nowhere on the method track")


def figures_in(cells) -> int:
    "Pictures among the outputs, and pictures that the prose shows."
    drawn = sum(name.startswith("image/") for cell in cells if cell.cell_type == "code"
                for output in cell.outputs for name in output.get("data", {}))
    return drawn + sum(len(re.findall(r"!\[", cell.source)) for cell in cells if cell.cell_type == "markdown")


def exported_median(names) -> float:
    "The median length, in lines, of exported cells."
    cells = [cell for name in names for cell in cells_of(name) if cell.cell_type == "code" and re.search(r"^#\|\s*export", cell.source, re.M)]
    return statistics.median(lines_in([cell]) for cell in cells)


def counts() -> dict[str, float]:
    "Everything that has a limit, and what else there is to know."
    (words_1, lines_1), (words_12, lines_12) = before_equation(1), before_equation(12)
    return {"notebooks": len(METHOD), "words": sum(words_in(cells_of(name)) for name in METHOD),
            "words before equation 1": words_1, "lines of code before equation 1": lines_1,
            "words before equation 12": words_12, "lines of code before equation 12": lines_12,
            "median exported cell on the method track": exported_median(METHOD),
            "median exported cell of all notebooks": exported_median(path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb"))}


def main() -> int:
    "Print the counts; 1 if one is over its limit."
    print(f"{'notebook':24}{'words':>7}{'code':>6}{'figures':>9}")
    for name in METHOD:
        cells = cells_of(name)
        print(f"{name:24}{words_in(cells):7,}{lines_in(cells):6,}{figures_in(cells):9}")
    print("\nthe method track")
    found = counts()
    for what, value in found.items():
        print(f"{what:42}{value:8,g}" + (f"   (at most {LIMITS[what]:,})" if what in LIMITS else ""))
    rest = sorted(path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb") if path.stem not in METHOD)
    print("\nfigures elsewhere:", ", ".join(f"{name} {count}" for name in rest if (count := figures_in(cells_of(name)))))
    return int(any(found[what] > most for what, most in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
