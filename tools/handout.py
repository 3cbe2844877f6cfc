"""Write handouts: the exercises without solutions, answers and outputs, ready to hand out. `make
handouts` or `python tools/handout.py FOLDER` writes them into handouts/ or FOLDER."""
import re
import sys
from pathlib import Path

import nbformat

EXERCISES = Path(__file__).parents[1]/"nbs"/"exercises"
GUIDE = "00_teachers_guide"  # stays with the teacher: it has the answers of the exam
FOLDED = re.compile(
    r"\n*<details>\s*<summary>(?:Solutions?|Answers?)</summary>.*?</details>\n*", re.S)
# links lead to notebooks that a handout does not bring along
SITE = "https://picknet-nb.github.io/picknet_nb/"


def on_site(text: str, handed_out: set[str]) -> str:
    "Prose whose links to notebooks lead to the site, except to other handouts."
    def link(match: re.Match) -> str:
        path, anchor = match[1], match[2] or ""
        if path in handed_out:
            return match[0]
        page = path.removeprefix("../") if path.startswith("../") else f"exercises/{path}"
        return f"]({SITE}{page}.html{anchor.lower()})"
    return re.sub(r"\]\((?!https?:)([\w./]+)\.ipynb(#[^)]*)?\)", link, text)


def without_solutions(notebook: nbformat.NotebookNode, handed_out: set[str] = frozenset()):
    "The same notebook without folded solutions, empty cells and outputs."
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = on_site(FOLDED.sub("\n\n", cell.source), handed_out).strip()
            cell.source = cell.source.replace(" Each solution is folded under its tests.", "")
        else:
            cell.outputs, cell.execution_count = [], None
        if cell.source:
            cells.append(cell)
    notebook.cells = cells
    return notebook


def write_handouts(folder: Path) -> list[Path]:
    "Every exercise without its solutions, and what they import."
    folder.mkdir(parents=True, exist_ok=True)
    paths = [each for each in sorted(EXERCISES.glob("0*_*.ipynb")) if each.stem != GUIDE]
    names = {each.stem for each in paths}
    written = []
    for path in paths:
        notebook = without_solutions(nbformat.read(path, as_version=4), names)
        written.append(folder/path.name)
        nbformat.write(notebook, written[-1])
    (folder/"checking.py").write_bytes((EXERCISES/"checking.py").read_bytes())
    return written


def main() -> None:
    "Write the handouts and say where they are."
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "handouts")
    for path in write_handouts(folder):
        print(path)


if __name__ == "__main__":
    main()
