"""How long the way through the book is: `make book-stats` counts words, lines of code and
figures along the method track."""
import re
import statistics
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
METHOD = (
    "picknet_on_one_page",
    "08_shapes",
    "10_encoder",
    "11_decoder",
    "12_policy",
    "13_pickers",
    "14_captioner",
    "20_cider",
    "21_rewards",
    "22_reinforce",
    "23_stages",
)
# off the method track
SIDE_ROOMS = (
    "02_text",
    "15_attention",
    "16_one_stack",
    "17_shared_space",
    "18_hierarchies",
    "19_committees",
    "24_extras",
)
# where a side room leads back to
BACK = {"02_text": "11_decoder", "19_committees": "20_cider", "24_extras": "90_shapes_table"}
LIMITS = {
    "notebooks": 12,
    "words": 20_000,
    "words before equation 1": 3_000,
    "words before equation 12": 8_000,
}


WIDEST = 100  # letters on a line of the site
CATCHES = r"except [\w.(), ]*Error\b[\w.(), ]* as "


def tracks() -> dict[str, list[str]]:
    "The notebooks of each part of the book, in reading order."
    numbered = sorted(path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb"))
    rest = [name for name in numbered if name not in METHOD + SIDE_ROOMS]
    return {
        "The method": list(METHOD),
        "Side rooms": list(SIDE_ROOMS),
        "The machine": [name for name in rest if name < "90"],
        "Results": [name for name in rest if name >= "90"],
    }


def following() -> dict[str, str]:
    "What each notebook's last line leads to: the next one on its track."
    parts = tracks()
    pairs = [pair for names in parts.values() for pair in zip(names, names[1:])]
    ends = {
        "23_stages": parts["Results"][0],
        parts["The machine"][-1]: parts["Results"][0],
        parts["Results"][-1]: "index",
    }
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
    shown = [
        cell.source
        for cell in cells
        if cell.cell_type == "code"
        and not re.search(r"^#\|\s*(hide|echo:\s*false)", cell.source, re.M)
    ]
    return sum(
        bool(line.strip()) and not line.startswith("#|")
        for source in shown
        for line in source.splitlines()
    )


def before_equation(number: int) -> tuple[int, int]:
    """Words and lines of code on the method track before the paper's equation of this number is
    displayed."""
    passed = []
    for name in METHOD:
        for cell in cells_of(name):
            if cell.cell_type == "markdown" and re.search(rf"\\tag\{{{number}\}}", cell.source):
                return words_in(passed), lines_in(passed)
            passed.append(cell)
    raise SystemExit(f"equation {number} is nowhere on the method track")


def figures_in(cells) -> int:
    "Pictures among the outputs, and pictures that the prose shows."
    drawn = sum(
        name.startswith("image/")
        for cell in cells
        if cell.cell_type == "code"
        for output in cell.outputs
        for name in output.get("data", {})
    )
    return drawn + sum(
        len(re.findall(r"!\[", cell.source)) for cell in cells if cell.cell_type == "markdown"
    )


def exported_median(names) -> float:
    "The median length, in lines, of exported cells."
    cells = [
        cell
        for name in names
        for cell in cells_of(name)
        if cell.cell_type == "code" and re.search(r"^#\|\s*export", cell.source, re.M)
    ]
    return statistics.median(lines_in([cell]) for cell in cells)


def shown_cells(cells) -> list:
    "Cells of code that a reader sees."
    return [
        cell
        for cell in cells
        if cell.cell_type == "code" and not re.search(r"^#\|\s*hide", cell.source, re.M)
    ]


def printed(cell, kinds=("stream", "execute_result", "display_data")) -> list[str]:
    "What a cell says in plain text; pictures and tables are something else."
    richer = lambda output: any(
        kind.startswith(("image/", "text/markdown", "text/html")) for kind in output.get("data", {})
    )
    plain = [
        output for output in cell.outputs if output.output_type in kinds and not richer(output)
    ]
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in plain]


def refusals_in(cells) -> int:
    """Cells that show how something is refused: they catch an error, or call a function that
    does, and say something."""
    cells = [
        cell
        for cell in cells
        if cell.cell_type == "code" and not re.search(r"^#\|\s*export", cell.source, re.M)
    ]
    functions = [
        each
        for cell in cells
        for each in re.finditer(r"^def (\w+)\(.*?(?=^\S|\Z)", cell.source, re.M | re.S)
    ]
    helpers = [rf"(?<!def )\b{each[1]}\(" for each in functions if re.search(CATCHES, each[0])]
    return sum(
        bool(printed(cell) and re.search("|".join([CATCHES, *helpers]), cell.source))
        for cell in shown_cells(cells)
    )


def wide_lines_in(cells) -> int:
    "Printed lines that are too wide for the page."
    return sum(
        len(line) > WIDEST
        for cell in shown_cells(cells)
        for text in printed(cell)
        for line in text.splitlines()
    )


def wide_code_in(cells) -> int:
    "Lines of code that are too wide for the page."
    shown = [
        cell.source
        for cell in shown_cells(cells)
        if not re.search(r"^#\|\s*echo:\s*false", cell.source, re.M)
    ]
    return sum(len(line) > WIDEST for source in shown for line in source.splitlines())


def nested_in(cells) -> int:
    """Cells that end in dictionaries within dictionaries, or in a list of them, where a table
    would be read."""
    said = [text for cell in shown_cells(cells) for text in printed(cell, ("execute_result",))]
    return sum(bool(re.search(r"\{[^{}]*: \{|\[\{", text)) for text in said)


READING = {
    "refusals shown": refusals_in,
    f"printed lines over {WIDEST} letters": wide_lines_in,
    f"lines of code over {WIDEST} letters": wide_code_in,
    "nested dictionaries printed": nested_in,
}


def counts() -> dict[str, float]:
    "Everything that has a limit, and what else there is to know."
    (words_1, lines_1), (words_12, lines_12) = before_equation(1), before_equation(12)
    return {
        "notebooks": len(METHOD),
        "words": sum(words_in(cells_of(name)) for name in METHOD),
        "words before equation 1": words_1,
        "lines of code before equation 1": lines_1,
        "words before equation 12": words_12,
        "lines of code before equation 12": lines_12,
        "median exported cell on the method track": exported_median(METHOD),
        "median exported cell of all notebooks": exported_median(
            path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb")
        ),
        **{what: sum(count(cells_of(name)) for name in METHOD) for what, count in READING.items()},
    }


def main() -> int:
    "Print the counts; 1 if one is over its limit."
    print(f"{'notebook':24}{'words':>7}{'code':>6}{'figures':>9}")
    for name in METHOD:
        cells = cells_of(name)
        print(f"{name:24}{words_in(cells):7,}{lines_in(cells):6,}{figures_in(cells):9}")
    print("\nthe method track")
    found = counts()
    for what, value in found.items():
        print(
            f"{what:42}{value:8,g}" + (f"   (at most {LIMITS[what]:,})" if what in LIMITS else "")
        )
    rest = sorted(
        path.stem for path in (ROOT/"nbs").glob("[0-9]*.ipynb") if path.stem not in METHOD
    )
    print("\nall notebooks")
    every = {path.stem: cells_of(path.stem) for path in sorted((ROOT/"nbs").glob("*.ipynb"))}
    for what, count in READING.items():
        places = {name: number for name, cells in every.items() if (number := count(cells))}
        print(
            f"{what:42}{sum(places.values()):8,}   "
            + ", ".join(f"{name} {number}" for name, number in places.items())
        )
    print(
        "\nfigures elsewhere:",
        ", ".join(f"{name} {count}" for name in rest if (count := figures_in(cells_of(name)))),
    )
    return int(any(found[what] > most for what, most in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
