"""README.md from nbs/index.ipynb, up to the mark that ends it: prose as it is, code fenced, links
turned so that they work from the repository's root."""
import re
import sys
from pathlib import Path

import nbformat


def cell_text(cell) -> str:
    "One cell as Markdown; hidden cells and directives vanish."
    if cell.cell_type == "markdown":
        return cell.source
    if re.search(r"^#\|\s*hide", cell.source, re.M):
        return ""
    code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("#|")).strip()
    shown = (
        [f"```python\n{code}\n```"]
        if code and not re.search(r"^#\|\s*echo:\s*false", cell.source, re.M)
        else []
    )
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "text/markdown" in data:
            shown.append(data["text/markdown"])
        elif text := data.get("text/plain") or output.get("text"):
            shown.append("```\n" + text.rstrip() + "\n```")
    return "\n\n".join(shown)


END = "<!-- the README ends here -->"  # what follows is for readers of the notebook


def readme(notebook: Path) -> str:
    "The notebook as Markdown, as far as it belongs to the front page."
    cells = nbformat.read(notebook, as_version=4).cells
    ends = next((i for i, cell in enumerate(cells) if END in cell.source), len(cells))
    cells = cells[:ends]
    text = "\n\n".join(filter(None, map(cell_text, cells))) + "\n"
    # beside the notebook
    text = re.sub(r"(\]\(|src=\")(?!https?:|#|\.\./|mailto:)", r"\1nbs/", text)
    return re.sub(r"(\]\(|src=\")\.\./", r"\1", text)                         # above it


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    (root/"README.md").write_text(readme(root/"nbs"/"index.ipynb"), encoding="utf-8")
