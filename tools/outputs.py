"""Which outputs that notebooks store are not what their cells give today.

python tools/outputs.py [NOTEBOOK ...]            names the cells, with both outputs
python tools/outputs.py --write [NOTEBOOK ...]    and stores the new ones

`make test` runs every notebook but does not look at what is stored, so a list of backbones or the
words of an error can stay behind the code. Without names, all notebooks are run, which takes an
hour. Text is compared without its numbers, and without places in memory, temporary folders, the
kind of machine and embedded pictures, all of which change from run to run. Sentences of a captioner
that a notebook trains differ between kinds of processors; they need not be stored again. Cells that
`make test` leaves out (those for data or a GPU that are not everywhere) are not run and keep their
outputs.
"""
from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbdev.config import get_config

ROOT = Path(__file__).resolve().parents[1]
CHANGING = (  # what differs between two runs that are both right
    (r"base64,[\w+/=]+", "base64"),
    (r"/(tmp|var)/[\w/.-]+", "folder"),
    (r"\b0x[0-9a-f]+\b", "place"),
    (r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,}\b", "digest"),
    (r"x86_64|aarch64|arm64|\+cpu|\+cu\d+", "machine"),
    (r"\d[\d.,]*(e[-+]?\d+)?", "0"),
    (r"\b(second|minute|hour)s\b", r"\1"),
    (r"[-+](?=0)|(?<=\[) +", ""),
    (r"[ \t]+|[-─━=#|█▏▎▍▌▋▊▉]{2,}", " "),  # columns are as wide as their numbers
)


def text_of(cell) -> str:
    "What a cell has put out as text, without what changes from run to run."
    found = []
    for output in cell.get("outputs", []):
        parts = {"": output.get("text", ""), **output.get("data", {})}
        found += [content for kind, content in sorted(parts.items())
                  if kind in ("", "text/plain", "text/markdown", "text/html")]
    text = "\n".join(found)
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return "\n".join(line for each in text.splitlines() if (line := each.strip()))


def left_out(source: str, flags: list[str]) -> bool:
    "Whether `make test` does not run a cell with this source."
    directives = [line[2:].strip() for line in source.splitlines() if line.startswith("#|")]
    return any(each in flags or each == "eval: false" for each in directives)


def stale(path: Path, write: bool = False) -> list[tuple[str, str]]:
    "The cells whose stored text is another one today, by id, each with the difference."
    notebook = nbformat.read(path, 4)
    flags = get_config(path=ROOT).tst_flags.split()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    resting = {cell.id: (cell.source, cell.outputs) for cell in cells
               if left_out(cell.source, flags)}
    before = {cell.id: text_of(cell) for cell in cells}
    for cell in cells:
        if cell.id in resting:
            cell.source = ""
    NotebookClient(notebook, timeout=None, record_timing=False,
                   resources={"metadata": {"path": path.parent}}).execute()
    for cell in cells:
        if cell.id in resting:
            cell.source, cell.outputs = resting[cell.id]
    found = [(cell.id, "\n".join(difflib.unified_diff(
        before[cell.id].splitlines(), now.splitlines(), "stored", "today", lineterm="", n=1)))
        for cell in cells  # where a line is broken depends on the length of numbers and folders
        if (now := text_of(cell)).split() != before[cell.id].split()]
    if found and write:
        nbformat.write(notebook, path)
    return found


def main(arguments: list[str] | None = None) -> int:
    "Print the cells of each notebook whose stored text is another one today."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="store the new outputs")
    asked = parser.parse_args(arguments)
    everything = sorted(path for path in (ROOT/"nbs").rglob("*.ipynb")
                        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts))
    count = failed = 0
    for path in asked.notebooks or everything:
        try:
            found = stale(path, asked.write)
        except CellExecutionError as reason:
            failed += 1
            print(f"{path}: does not run: {reason.ename}: {reason.evalue}", flush=True)
            continue
        count += len(found)
        for cell, difference in found:
            print(f"{path}, cell {cell}\n{difference}\n", flush=True)
        print(f"{path}: {len(found) or 'no'} stale", flush=True)
    if count and asked.write:
        print("now: make clean-notebooks")
    return 1 if failed or count and not asked.write else 0


if __name__ == "__main__":
    sys.exit(main())
