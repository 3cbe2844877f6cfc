"""Count how long the course is and how large the package: `make book-stats` counts words, lines
of code and figures of the lessons, then modules, lines, commands, options and settings."""
import re
import statistics
from dataclasses import fields
from pathlib import Path

import click
import nbformat
import typer

import picknet_nb
from picknet_nb.core.settings import Config
from picknet_nb.interface.main import app

ROOT = Path(__file__).parents[1]
LAST_LESSON = 17  # later numbers of nbs/method are optional chapters
METHOD = tuple(
    f"method/{path.stem}"
    for path in sorted((ROOT/"nbs"/"method").glob("[0-9]*.ipynb"))
    if int(path.stem.partition("_")[0]) <= LAST_LESSON
)
FOLDERS = {  # in the order in which the site lists them
    "method": "The course", "exercises": "Exercises",
    "results": "Results", "use": "Use a model", "interface": "Commands", "training": "Training",
    "data": "Data", "world": "The toy world",
    "systems": "Compared captioners", "measure": "Measuring", "core": "Core", "archive": "Archive"}


WIDEST = 100  # letters on a line of the site
CATCHES = r"except [\w.(), ]*Error\b[\w.(), ]* as "


def notebooks() -> list[str]:
    "Folder and name of every notebook, in reading order."
    found = {folder: sorted((ROOT/"nbs"/folder).glob("[0-9]*.ipynb")) for folder in FOLDERS}
    return [f"{folder}/{path.stem}" for folder, paths in found.items() for path in paths]


def tracks() -> dict[str, list[str]]:
    "The notebooks of each part of the book, in reading order: the course, then the rest."
    rest = [name for name in notebooks() if name not in METHOD]
    parts = {
        title if folder != "method" else "Optional chapters": [
            name for name in rest if name.startswith(f"{folder}/")
        ]
        for folder, title in FOLDERS.items()
    }
    return {
        FOLDERS["method"]: [*METHOD], **{title: names for title, names in parts.items() if names}
    }


def cells_of(name: str) -> list:
    "The cells of a notebook."
    return nbformat.read(ROOT/"nbs"/f"{name}.ipynb", as_version=4).cells


def uses(name: str) -> tuple[set[int], set[int]]:
    "The numbers of the lessons whose modules a lesson imports, and of those that it links."
    modules = {
        match[1]: int(each.partition("/")[2][:2])
        for each in METHOD
        for cell in cells_of(each)
        if (match := re.match(r"#\| default_exp method\.(\w+)", cell.source))
    }
    code, prose = (
        "\n".join(cell.source for cell in cells_of(name) if cell.cell_type == kind)
        for kind in ("code", "markdown")
    )
    imported = re.findall(r"picknet_nb\.method\.(\w+) import", code)
    linked = map(int, re.findall(r"\]\((\d\d)_\w+\.ipynb", prose))
    return {modules[each] for each in imported if each in modules}, set(linked)


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
    "Words and lines of code in the course before the paper's equation of this number is displayed."
    passed = []
    for name in METHOD:
        for cell in cells_of(name):
            if cell.cell_type == "markdown" and re.search(rf"\\tag\{{{number}\}}", cell.source):
                return words_in(passed), lines_in(passed)
            passed.append(cell)
    raise SystemExit(f"equation {number} is nowhere in the course")


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
    "How long the course is, and what of it is hard to read."
    (words_1, lines_1), (words_12, lines_12) = before_equation(1), before_equation(12)
    return {
        "notebooks": len(METHOD),
        "words": sum(words_in(cells_of(name)) for name in METHOD),
        "words before equation 1": words_1,
        "lines of code before equation 1": lines_1,
        "words before equation 12": words_12,
        "lines of code before equation 12": lines_12,
        "median exported cell of the course": exported_median(METHOD),
        "median exported cell of all notebooks": exported_median(notebooks()),
        **{what: sum(count(cells_of(name)) for name in METHOD) for what, count in READING.items()},
    }


def commands_of(command: click.Command) -> list[click.Command]:
    "A command, or the commands of a group and of the groups in it."
    if not hasattr(command, "commands"):
        return [command]
    return [each for part in command.commands.values() for each in commands_of(part)]


def package_counts() -> dict[str, int]:
    "How large the package is that is imported here, for its developers and for its users."
    modules = [
        path for path in Path(picknet_nb.__file__).parent.rglob("*.py") if path.stem != "_modidx"
    ]
    lines = [line for path in modules for line in path.read_text("utf-8").splitlines()]
    beside = {
        f"lines of {folder}": sum(
            len(path.read_text("utf-8").splitlines()) for path in (ROOT/folder).rglob("*.py"))
        for folder in ("tests", "tools", "benchmarks")
    }
    commands = commands_of(typer.main.get_command(app))
    options = [
        parameter
        for command in commands
        for parameter in command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
    ]
    return {
        "modules": len([path for path in modules if path.stem != "__init__"]),
        "lines": len(lines),
        "lines that are not empty": sum(bool(line.strip()) for line in lines),
        **beside,
        "commands": len(commands),
        "options of all commands": len(options),
        "settings": sum(len(fields(group)) for group in vars(Config()).values()),
    }


def main() -> None:
    "Print the counts."
    print(f"{'notebook':24}{'words':>7}{'code':>6}{'figures':>9}")
    for name in METHOD:
        cells = cells_of(name)
        print(f"{name:24}{words_in(cells):7,}{lines_in(cells):6,}{figures_in(cells):9}")
    print("\nthe course")
    found = counts()
    for what, value in found.items():
        print(f"{what:42}{value:8,g}")
    rest = [name for name in notebooks() if name not in METHOD]
    print("\nall notebooks")
    every = {name: cells_of(name) for name in notebooks()}
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
    print("\nthe package")
    for what, value in package_counts().items():
        print(f"{what:42}{value:8,}")


if __name__ == "__main__":
    main()
