"The web site from the notebooks: equations as MathML, so that it needs no network; an API page for each module; then mkdocs."
import ast
import html
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import nbformat
import yaml
from latex2mathml.converter import convert

ROOT, DOCS = Path(__file__).parents[1], Path("_docs")
CHAPTERS = {"Data": range(0, 9), "The captioner": range(9, 12), "The picker": range(12, 14), "Learning to pick": range(20, 24),
            "Scores, use, reproduction": range(30, 90), "The paper's tables": range(90, 100)}
STYLE = """
.jp-Cell math { font-size: 1.1em; } math[display=block] { margin: 1em 0; overflow-x: auto; overflow-y: hidden; }
.md-typeset .jupyter-wrapper table { display: block; overflow-x: auto; overflow-y: hidden; }
.jupyter-wrapper img { max-width: 100%; height: auto; }
[data-md-color-scheme=slate] .jp-RenderedImage img { background: #fff; }
"""


def with_mathml(text: str) -> str:
    "Replace $…$ and $$…$$ outside of code by MathML."
    def equation(match: re.Match) -> str:
        if match["code"]:
            return match["code"]
        display = match["display"] is not None
        source = re.sub(r"\\tag\{(.*?)\}", r"\\qquad(\1)", (match["display"] if display else match["inline"]).replace("\n> ", "\n").strip())
        if "&" in source and r"\begin" not in source:
            source = r"\begin{aligned}" + source + r"\end{aligned}"
        return convert(source.replace(r"\begin{align}", r"\begin{aligned}").replace(r"\end{align}", r"\end{aligned}"),
                       display="block" if display else "inline").replace("\n", " ")
    return re.sub(r"(?P<code>```.*?```|`[^`\n]+`)|\$\$(?P<display>.+?)\$\$|(?<![\\\w$])\$(?P<inline>[^$\n]+?)\$(?!\w)", equation, text, flags=re.S)


def copy_notebooks() -> list[Path]:
    "Notebooks with their equations rendered, hidden cells left out."
    paths = sorted(path for path in (ROOT/"nbs").glob("*.ipynb") if not path.name.startswith((".", "index")))
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if not re.search(r"^#\|\s*(hide|default_exp)", cell.source, re.M)]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = with_mathml(cell.source)
            else:
                cell.source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M)
        nbformat.write(notebook, DOCS/path.name)
    return paths


def comments_of(path: Path) -> dict[int, str]:
    "The comment at the end of each line."
    with open(path, "rb") as file:
        return {token.start[0]: token.string.lstrip("# ") for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT}


def describe(node, comments: dict[int, str], level: int, owner: str = "") -> str:
    "One function or class: signature, docstring, a row for each commented parameter, its public methods."
    text = f"{'#' * level} {owner}{node.name}\n\n"
    if isinstance(node, ast.ClassDef):
        members = [member for member in node.body if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__call__")]
        start = next((member for member in node.body if isinstance(member, ast.FunctionDef) and member.name == "__init__"), None)
    else:
        members, start = [], node
    if start:
        arguments = [argument for argument in [*start.args.args, *start.args.kwonlyargs] if argument.arg != "self"]
        shown = ast.unparse(start.args).removeprefix("self, ").removeprefix("self")
        returns = f" -> {ast.unparse(start.returns)}" if start.returns and start is node else ""
        text += f"```python\n{owner}{node.name}({shown}){returns}\n```\n\n"
    text += (ast.get_docstring(node) or "") + "\n\n"
    rows = [(argument.arg, comments.get(argument.lineno, "")) for argument in arguments] if start else []
    if any(comment for _, comment in rows):
        text += "| parameter | |\n|---|---|\n" + "".join(f"| `{name}` | {html.escape(comment)} |\n" for name, comment in rows if comment) + "\n"
    return text + "".join(describe(member, comments, level + 1, f"{node.name}.") for member in members)


def write_api(notebooks: list[Path]) -> list[str]:
    "A page for each module, linked to its notebook."
    names = []
    (DOCS/"api").mkdir()
    for notebook in notebooks:
        name = notebook.stem.split("_", 1)[1]
        module = ROOT/"picknet_nb"/f"{name}.py"
        if not module.exists():
            continue
        tree, comments = ast.parse(module.read_text()), comments_of(module)
        nodes = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")]
        intro = f"# {name}\n\n{ast.get_docstring(tree)}\n\nDerived and tested in [{notebook.stem}](../{notebook.name}).\n\n"
        (DOCS/"api"/f"{name}.md").write_text(intro + "".join(describe(node, comments, 2) for node in nodes))
        names.append(name)
    return names


def navigation(notebooks: list[Path], modules: list[str]) -> list:
    "The table of contents: chapters of notebooks, then the API."
    chapters = [{title: [path.name for path in notebooks if int(path.stem[:2]) in floors]} for title, floors in CHAPTERS.items()]
    return [{"Home": "index.md"}, *(chapter for chapter in chapters if all(chapter.values())),
            {"API": [{name: f"api/{name}.md"} for name in modules]}]


def main() -> None:
    "Write _docs and build site."
    shutil.rmtree(DOCS, ignore_errors=True)
    DOCS.mkdir()
    (DOCS/"site.css").write_text(STYLE)
    shutil.copytree(ROOT/"nbs"/"images", DOCS/"images")
    home = (ROOT/"README.md").read_text().replace("](nbs/", "](").replace('src="nbs/', 'src="')
    (DOCS/"index.md").write_text(re.sub(r"\]\((?!https?:|images/|#)(?!\d\d_\w+\.ipynb)([^)]+)\)", r"](https://github.com/picknet-nb/picknet_nb/tree/main/\1)", home))
    notebooks = copy_notebooks()
    settings = yaml.safe_load((ROOT/"mkdocs.yml").read_text()) | {"nav": navigation(notebooks, write_api(notebooks)), "docs_dir": str(DOCS.resolve()), "site_dir": str(Path("site").resolve())}
    made = DOCS.with_suffix(".yml")
    made.write_text(yaml.safe_dump(settings, sort_keys=False))
    try:
        subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(made)], check=True)
    finally:
        made.unlink()


if __name__ == "__main__":
    main()
