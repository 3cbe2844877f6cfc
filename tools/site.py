"""Build the web site from the notebooks: equations as MathML, so that it needs no network; an API
reference, model cards, mkdocs, and a check of every link."""
import ast
import html
import os
import re
import shutil
import subprocess
import sys
import tokenize
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import yaml
from nbformat.v4 import new_markdown_cell
from latex2mathml.converter import convert
from markdown.extensions.toc import slugify

sys.path.insert(0, str(Path(__file__).parent))
from book import FOLDERS, notebooks, tracks

from picknet_nb.training.cards import models, models_table, read_card

ROOT, DOCS = Path(__file__).parents[1], Path("_docs")
GITHUB = "https://github.com/picknet-nb/picknet_nb/blob/main/"
# one line installs what the notebooks need, at the versions of constraints.txt; .binder/postBuild
# has it, too
INSTALL = 'pip install -q -c constraints.txt -e ".[video,metrics,notebook]"'
COLAB = "https://colab.research.google.com/github/picknet-nb/picknet_nb/blob/main/"
BINDER = "https://mybinder.org/v2/gh/picknet-nb/picknet_nb/main?labpath="
ELSEWHERE = (
    "<details><summary>Run it in Colab or Binder</summary>\n\nBinder installs everything; the "
    "first start takes minutes. In Colab or Kaggle, run `!git clone https://github.com/picknet-nb/"
    f"picknet_nb && cd picknet_nb && {INSTALL}`, restart the kernel, and begin with `%cd "
    "/content/picknet_nb/nbs/FOLDER`.\n\n</details>"
)
STYLE = """
.md-grid { max-width: 76rem; }
[data-md-color-scheme=default] {
  --md-primary-fg-color: #1a7f3c; --md-typeset-a-color: #1a7f3c; --md-accent-fg-color: #0f5c2a; }
[data-md-color-scheme=slate] { --md-primary-fg-color: #14602e; }
math {
  font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", "Libertinus Math",
    "DejaVu Math TeX Gyre", math; }
.jp-Cell math { font-size: 1.1em; }
mtd[columnalign=left] { text-align: left; }
mtd[columnalign=right] { text-align: right; }
mtable[displaystyle=true] mtd { padding-left: 0; padding-right: 0; }
mtable[displaystyle=true] mtd:nth-child(2n+3) { padding-left: 2em; }
 math[display=block] { margin: 1em 0; overflow-x: auto; overflow-y: hidden; }
.jupyter-wrapper .jp-InputPrompt, .jupyter-wrapper .jp-OutputPrompt { display: none !important; }
.md-typeset .jupyter-wrapper table { display: block; overflow-x: auto; overflow-y: hidden; }
.md-typeset .jupyter-wrapper table:not([class]) { font-size: 0.6rem; }
.md-typeset table:not([class]) th, .md-typeset table:not([class]) td {
  min-width: 0; padding: 0.5em 0.8em; }
.md-typeset .jupyter-wrapper table:not([class]) code { white-space: nowrap; }
.md-typeset .jupyter-wrapper table:not([class]) td:first-child { min-width: 11em; }
.md-typeset table:not([class]) th[style*=right], .md-typeset table:not([class]) td[style*=right] {
  padding: 0.5em 0.35em; }
.md-typeset table:not([class]) th { vertical-align: bottom; }
/* a model's name is not broken in two */
.md-typeset table:not([class]) td:first-child code, .md-typeset table:not([class]) td a code {
  white-space: nowrap; }
.md-typeset table:not([class]) td[style*=right] {
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.md-typeset blockquote:has(> p:first-child > strong:first-child) {
  border-left-color: #d98e04; background: #d98e0418; color: inherit; padding: 0.2em 0.8em; }
/* a hundred letters fit into a line */
.jupyter-wrapper, .jupyter-wrapper * { --jp-code-font-size: 11.7px !important; }
.jupyter-wrapper img { max-width: 100%; height: auto; }
[data-md-color-scheme=slate] .md-typeset img { background: #fff; }
.md-typeset details.code { border: 0; box-shadow: none; background: none; margin: 0; }
.md-typeset details.code > summary { background: none; font-weight: normal; opacity: 0.7; }
.md-typeset details.code > summary::before { display: none; }
@media (max-width: 44em) {
  .md-typeset table:not([class]) td:first-child { min-width: 8.5em; }
  .md-typeset .jupyter-wrapper table:not([class]) td:not(:first-child):not([style*=right]) {
    min-width: 9em; }
  /* it would hide half of a short line */
  .jupyter-wrapper .zeroclipboard-container { display: none; }
  .jupyter-wrapper .jp-Notebook { padding: 0; }
  .md-typeset .jupyter-wrapper .jp-RenderedText pre {
    white-space: pre-wrap; overflow-wrap: anywhere; }
}
"""


def with_mathml(text: str) -> str:
    "Replace $…$ and $$…$$ outside of code by MathML."

    def equation(match: re.Match) -> str:
        if match["code"]:
            return match["code"]
        display = match["display"] is not None
        source = re.sub(
            r"\\tag\{(.*?)\}",
            r"\\qquad(\1)",
            (match["display"] if display else match["inline"]).replace("\n> ", "\n").strip(),
        )
        source = re.sub(r"\\(begin|end)\{align(ed)?\}", r"\\\1{align*}", source).replace(
            r"\arg\max", r"\operatorname{arg\,max}"
        )
        mathml = convert(source, display="block" if display else "inline").replace("\n", " ")
        if unknown := re.search(r"<m\w+>([^<]*\\[^<]*|&)</m\w+>", mathml):
            raise SystemExit(f"LaTeX that does not become MathML ({unknown[1]}): {source}")
        return mathml

    return re.sub(
        r"(?P<code>```.*?```|`[^`\n]+`)|\$\$(?P<display>.+?)\$\$"
        r"|(?<![\\\w$])\$(?P<inline>[^$\n]+?)\$(?!\w)",
        equation,
        text,
        flags=re.S,
    )


def on_site(target: str, folder: str = "") -> str:
    """Where a link of a notebook in this folder leads on the site: notebooks to pages, modules to
    the API, other files to GitHub."""
    if re.match(r"\w+:|#", target):
        return target if target[0] != "#" else f"#{slugify(target[1:], '-')}"
    path, _, anchor = target.partition("#")
    path = os.path.normpath(f"nbs/{folder}/{path}")
    up = "../" * bool(folder)
    if module := re.fullmatch(r"picknet_nb/(\w+)/(\w+)\.py", path):
        return f"{up}api/{module[1]}.{module[2]}.html" + f"#{anchor}" * bool(anchor)
    if not path.startswith("nbs/"):
        return GITHUB + path
    page = up + path[4:].replace(".ipynb", ".html")
    return page + f"#{slugify(anchor, '-')}" * bool(anchor)


def for_site(text: str, folder: str = "") -> str:
    "Markdown of a notebook in this folder with equations and links as the site wants them."
    text = re.sub(
        r"(\]\()((?:[^()\s]|\([^()\s]*\))+)(\))",
        lambda link: link[1] + on_site(link[2], folder) + link[3],
        text,
    )
    # code in a heading would spoil its anchor
    text = re.sub(r"^#+ .+$", lambda heading: heading[0].replace("`", ""), text, flags=re.M)
    return with_mathml(text)


def folded(cells: list) -> list:
    """Cells of a result page with their code folded away above what it prints, so that prose,
    tables and figures come first."""
    found, code = [], []  # code that is not on the page yet
    for cell in [*cells, None]:
        if cell and cell.cell_type == "code" and "no-input" not in cell.metadata["tags"]:
            code.append(cell.source)
            cell.metadata["tags"] = ["no-input"]
            if not cell.outputs:
                continue
        if any(code):
            shown = "```python\n{}\n```".format("\n\n".join(code))
            found.append(new_markdown_cell(
                f'<details class="code"><summary>Code</summary>\n\n{shown}\n\n</details>'))
            code = []
        if cell and (cell.cell_type == "markdown" or cell.outputs):
            found.append(cell)
    return found


def launch_links(folder: str, name: str) -> str:
    "Where a notebook can be downloaded, read and run."
    place = f"nbs/{folder}/{name}"
    return (
        f"\n\n[Open in Colab]({COLAB}{place}) · [Open in Binder]({BINDER}{place}) · "
        f"[Download this notebook](../notebooks/{folder}/{name}) · "
        f"[see it on GitHub]({GITHUB}{place})\n\n"
        + ELSEWHERE.replace("FOLDER", folder)
    )


def copy_notebooks() -> list[Path]:
    """Notebooks with their equations rendered, hidden cells left out; and the originals, to
    download."""
    paths = [ROOT/"nbs"/f"{name}.ipynb" for name in notebooks()]
    for path in paths:
        folder = path.parent.name
        (DOCS/"notebooks"/folder).mkdir(parents=True, exist_ok=True)
        (DOCS/folder).mkdir(exist_ok=True)
        shutil.copy(path, DOCS/"notebooks"/folder)
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [
            cell
            for cell in notebook.cells
            if not re.search(r"^#\|\s*(hide|default_exp)", cell.source, re.M)
        ]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = for_site(cell.source, folder)
                continue
            hidden = re.search(r"^#\|\s*echo:\s*false", cell.source, re.M)
            cell.metadata["tags"] = ["no-input"] * bool(hidden)
            cell.source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M)
            for output in cell.outputs:
                if "text/markdown" in output.get("data", {}):
                    output.data["text/markdown"] = for_site(output.data["text/markdown"], folder)
        if folder == "results":
            notebook.cells = folded(notebook.cells)
        notebook.cells[0].source += launch_links(folder, path.name)
        nbformat.write(notebook, DOCS/folder/path.name)
    for page in (ROOT/"nbs").glob("*/*.html"):  # figures that are pages of their own
        shutil.copy(page, DOCS/page.parent.name)
    return paths


def comments_of(path: Path) -> dict[int, str]:
    "The comment at the end of each line, or inside brackets above it."
    found, above, depth = {}, [], 0
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                text = token.string.lstrip("# ")
                if not token.line.strip().startswith("#"):
                    found[token.start[0]] = text
                elif depth:
                    above.append(text)
            elif token.type not in (tokenize.NL, tokenize.NEWLINE):
                if above:
                    found[token.start[0]] = " ".join(above)
                    above = []
                depth += (token.string in "([{") - (token.string in ")]}") if token.string else 0
    return found


def about_each(arguments: list, end: int, comments: dict[int, str]) -> list[tuple[str, str]]:
    "The name of each parameter, and the first comment from its line up to the next parameter."
    lines = [argument.lineno for argument in arguments]
    return [
        (argument.arg, next((comments[line] for line in range(first, max(last, first + 1))
                             if line in comments), ""))
        for argument, first, last in zip(arguments, lines, [*lines[1:], end])
    ]


def cell(text: str) -> str:
    "Text that may stand in a cell of a Markdown table."
    return html.escape(text, quote=False).replace("|", "&#124;")


def parameters(arguments: ast.arguments) -> list[str]:
    "Each parameter as it is written, without `self`; of an `Annotated` type only the type."

    def written(argument: ast.arg, default=None, stars: str = "") -> str:
        kind = argument.annotation
        if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated":
            kind = kind.slice.elts[0]
        name = stars + argument.arg + (f": {ast.unparse(kind)}" if kind else "")
        return name + (f" = {ast.unparse(default)}" if default else "")

    plain = arguments.posonlyargs + arguments.args
    shown = [
        written(*pair)
        for pair in zip(plain, [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults)
    ]
    shown += (
        [written(arguments.vararg, stars="*")]
        if arguments.vararg
        else ["*"]
        if arguments.kwonlyargs
        else []
    )
    shown += [written(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    shown += [written(arguments.kwarg, stars="**")] if arguments.kwarg else []
    return [each for each in shown if each not in ("self", "cls")]


def signature(function: ast.FunctionDef, name: str) -> str:
    "How it is called; one line for each parameter where a single line would be long."
    returns = (
        f" -> {ast.unparse(function.returns)}"
        if function.returns and function.name != "__init__"
        else ""
    )
    shown = parameters(function.args)
    line = f"{name}({', '.join(shown)}){returns}"
    return line if len(line) < 80 else f"{name}(\n    " + ",\n    ".join(shown) + f",\n){returns}"


def describe(node, comments: dict[int, str], level: int, owner: str = "") -> str:
    """One function or class: signature, docstring, a row for each commented parameter, its
    public methods."""
    text = f"{'#' * level} {owner}{node.name} {{#{owner}{node.name}}}\n\n"
    if isinstance(node, ast.ClassDef):
        members = [
            member
            for member in node.body
            if isinstance(member, ast.FunctionDef)
            and (not member.name.startswith("_") or member.name == "__call__")
        ]
        start = next(
            (
                member
                for member in node.body
                if isinstance(member, ast.FunctionDef) and member.name == "__init__"
            ),
            None,
        )
    else:
        members, start = [], node
    if start:
        arguments = [
            argument
            for argument in [*start.args.args, *start.args.kwonlyargs]
            if argument.arg != "self"
        ]
        text += f"```python\n{signature(start, owner + node.name)}\n```\n\n"
    text += (ast.get_docstring(node) or "") + "\n\n"
    if isinstance(node, ast.ClassDef) and (
        bases := [ast.unparse(base) for base in node.bases if ast.unparse(base) != "NamedTuple"]
    ):
        text += f"Extends {', '.join(f'`{base}`' for base in bases)}.\n\n"
    rows = (
        about_each(arguments, start.body[0].lineno, comments)
        if start
        else []
    )
    if isinstance(node, ast.ClassDef):
        rows = [
            (ast.unparse(field), comments.get(field.lineno, ""))
            for field in node.body
            if isinstance(field, ast.AnnAssign)
        ] or rows
    if any(comment for _, comment in rows):
        kind = "field" if isinstance(node, ast.ClassDef) and start is None else "parameter"
        text += (
            f"| {kind} | |\n|---|---|\n"
            + "".join(f"| `{name}` | {cell(comment)} |\n" for name, comment in rows if comment)
            + "\n"
        )
    return text + "".join(
        describe(member, comments, level + 1, f"{node.name}.") for member in members
    )


def write_api(notebooks: list[Path]) -> list[str]:
    "A page for each module, linked to its notebook."
    names = []
    (DOCS/"api").mkdir()
    for notebook in notebooks:
        folder, plain = notebook.parent.name, notebook.stem.split("_", 1)[1]
        module, name = ROOT/"picknet_nb"/folder/f"{plain}.py", f"{folder}.{plain}"
        if not module.exists():
            continue
        tree, comments = ast.parse(module.read_text()), comments_of(module)
        nodes = [
            node
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
        ]
        intro = (f"# {name}\n\n{ast.get_docstring(tree)}\n\nDerived and tested in "
                 f"[{folder}/{notebook.stem}](../{folder}/{notebook.name}).\n\n")
        (DOCS/"api"/f"{name}.md").write_text(
            intro + "".join(describe(node, comments, 2) for node in nodes)
        )
        names.append(name)
    return names


CALLS = ("load", "caption", "prepare", "train", "evaluate")  # what most people need


def public_names(module: Path) -> list[tuple[str, str]]:
    "The public functions and classes of a module, each with the first sentence about it."
    found = []
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            text = " ".join((ast.get_docstring(node) or "").split())
            found.append((node.name, re.split(r"(?<=[.;:]) ", text)[0].rstrip(";:")))
    return found


def write_reference(modules: list[str]) -> None:
    "The first page of the API: the calls that most people need, then every name by subpackage."
    path = ROOT/"picknet_nb"/"interface"/"python.py"
    functions, comments = {node.name: node for node in ast.parse(path.read_text()).body
                           if isinstance(node, ast.FunctionDef)}, comments_of(path)
    text = [
        "# API reference\n",
        "Five calls do what most people need; `import picknet_nb as pn` is enough for them.\n",
        *(describe(functions[name], comments, 2) for name in CALLS),
        "## Every public name\n",
        "By subpackage and module. What is not listed is private and may change.\n",
    ]
    package = ""
    for name in modules:
        folder, module = name.split(".")
        source = ROOT/"picknet_nb"/folder/f"{module}.py"
        if folder != package:
            package = folder
            text.append(f"### picknet_nb.{folder} {{#{folder}}}\n")
        about = ast.get_docstring(ast.parse(source.read_text()))
        text.append(f"**[{name}]({name}.md)**: {about}\n\n| name | |\n|---|---|\n" + "".join(
            f"| [`{each}`]({name}.md#{each}) | {cell(first)} |\n"
            for each, first in public_names(source)))
    (DOCS/"api"/"index.md").write_text("\n".join(text))


def write_models() -> list[str]:
    "A page that compares the bundled models, and the card of each."
    (DOCS/"models").mkdir()
    first, *rows = models_table(models().values())
    line = lambda row: f"| {' | '.join(row)} |\n"
    (DOCS/"models"/"index.md").write_text(
        "# Models\n\nThese models come with the package; `picknet models` prints this table, and "
        "`picknet caption holiday.mp4 --model NAME` uses one. Two raters judged "
        "captions of the same 100 clips as right, half right or wrong, blind and by a strict "
        "written rule: a number of each; CIDEr is measured on test clips, with the frames "
        "that the model picks.\n\n" + line(first)
        + line(["---", *["--:"] * (len(first) - 2), "---"])
        + "".join(line([f"[{row[0]}]({row[0]}.md)", *row[1:]]) for row in rows)
        + "\nHow to make one of your own: [training/models](../training/07_models.ipynb).\n")
    for name, each in models().items():
        # links and pages by file name, as in the notebooks
        (DOCS/"models"/f"{name}.md").write_text(read_card(each.folder))
    return list(models())


PARTS = {  # the tabs of the site, and the folders of notebooks under each
    "Guide": ("use", "interface"),
    "Results": ("results", "archive"),
    "Library": ("training", "data", "world", "systems", "measure", "core"),
}


def navigation(modules: list[str], cards: tuple = ()) -> list:
    "The table of contents: course, guide, results, models, the rest, then the API by subpackage."
    parts = {title: [f"{name}.ipynb" for name in names] for title, names in tracks().items()}
    packages = {name.partition(".")[0]: [] for name in modules}
    for name in modules:
        packages[name.partition(".")[0]].append({name: f"api/{name}.md"})
    found = {title: [{FOLDERS[folder]: parts[FOLDERS[folder]]} for folder in folders]
             if len(folders) > 1 else parts[FOLDERS[folders[0]]]
             for title, folders in PARTS.items()}
    return [
        {"Home": "index.md"},
        {"The course": [*parts["The course"], *({title: parts[title]} for title in (
            FOLDERS["exercises"], "Optional chapters"))]},
        *({title: pages} for title, pages in found.items()),
        {"Models": ["models/index.md", *({name: f"models/{name}.md"} for name in cards)]},
        {"API": ["api/index.md", *({package: pages} for package, pages in packages.items())]},
    ]


class Page(HTMLParser):
    "What a page can be linked by, and what it links to."

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def broken_links(site: Path) -> list[str]:
    "Every link inside the site that leads nowhere, anchors included."
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target/"index.html" if target.is_dir() else target
            if (
                not target.exists()
                or parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return sorted(set(broken))


STEPS = (
    "copying the notebooks, with equations as MathML",
    "writing the API reference and the model cards",
    "building the pages with mkdocs, which takes most of the time",
    "following every link",
)


def announce(step: int) -> None:
    "Say which step begins."
    print(f"{step + 1} of {len(STEPS)}: {STEPS[step]}", flush=True)


def main() -> None:
    "Write _docs, build site, follow its links."
    announce(0)
    shutil.rmtree(DOCS, ignore_errors=True)
    DOCS.mkdir()
    (DOCS/"site.css").write_text(STYLE)
    shutil.copytree(ROOT/"nbs"/"images", DOCS/"images")
    home = (ROOT/"README.md").read_text().replace("<details>", '<details markdown="1">')
    # what compares the models is a page of the site; GitHub has the notebook behind it
    home = home.replace("[Models](nbs/training/00_cards.ipynb)", "[Models](models/index.md)")
    # notebooks and pictures are part of the site, folders are not
    home = re.sub(r"(\]\(|src=\")nbs/(?=images/|\w+/\w+\.ipynb)", r"\1", home)
    # sections of notebooks have the site's anchors
    home = re.sub(r"(\]\([^)#]+\.ipynb)#([^)]+)\)",
                  lambda link: f"{link[1]}#{slugify(link[2], '-')})", home)
    elsewhere = r"\]\((?!https?:|images/|#)(?!(?!nbs/)\w+/\w+\.ipynb)([^)]+)\)"
    (DOCS/"index.md").write_text(re.sub(elsewhere, rf"]({GITHUB}\1)", home))
    notebooks = copy_notebooks()
    announce(1)
    modules = write_api(notebooks)
    write_reference(modules)
    settings = yaml.safe_load((ROOT/"mkdocs.yml").read_text()) | {
        "nav": navigation(modules, write_models()),
        "docs_dir": str(DOCS.resolve()),
        "site_dir": str(Path("site").resolve()),
        "hooks": [str(ROOT/"tools"/"progress.py")],
    }
    made = DOCS.with_suffix(".yml")
    made.write_text(yaml.safe_dump(settings, sort_keys=False))
    announce(2)
    try:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "mkdocs",
                "build",
                "--quiet",
                "--strict",
                "--config-file",
                str(made),
            ],
            check=True,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        )
    finally:
        made.unlink()
    announce(3)
    if broken := broken_links(Path("site")):
        raise SystemExit("\n".join(["links that lead nowhere:", *broken]))


if __name__ == "__main__":
    main()
