"""What `make clean-notebooks` does: nbdev_clean, then drop live widgets from stored outputs. A live
widget cannot be shown without the kernel that made it; the page that is stored beside it can."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIVE = "application/vnd.jupyter.widget-view+json"


def without_live_widgets(notebook: dict) -> None:
    "Remove live widgets, and their state, from a notebook; outputs in other forms stay."
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(LIVE, None)


def drop_live_widgets(path: Path) -> None:
    "Remove live widgets from a notebook file, which is written only where it had some."
    text = path.read_text(encoding="utf-8")
    if LIVE not in text and '"widgets"' not in text:
        return
    notebook = json.loads(text)
    without_live_widgets(notebook)
    # as nbdev writes it
    written = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    if written != text:
        path.write_text(written, encoding="utf-8")


def before_saving(model: dict, **_) -> None:
    """What `make lab` has JupyterLab do to a notebook before it writes it, so that one that was
    opened and run is as clean as a commit needs it."""
    from nbdev.clean import clean_nb

    if model["type"] == "notebook" and model["content"]["nbformat"] == 4:
        clean_nb(model["content"])
        without_live_widgets(model["content"])


def main() -> None:
    "Clean every notebook below nbs/ of the current folder."
    subprocess.run([str(Path(sys.executable).with_name("nbdev_clean"))], check=True)
    for path in Path("nbs").rglob("*.ipynb"):
        if not any(part.startswith(".") for part in path.parts):
            drop_live_widgets(path)


if __name__ == "__main__":
    main()
