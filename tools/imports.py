"""Draw which subpackage imports from which: `python tools/imports.py` writes
nbs/images/imports.svg.

Every import counts: of a module's first lines, inside functions, and by the name of a module in a
text. Only the homes that a registry names do not, because it imports them when it is asked for a
name that it does not know.
"""
from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT/"nbs"/"images"/"imports.svg"
# each may import from those before it
SUBPACKAGES = (
    "core", "data", "world", "method", "systems", "training", "use", "measure", "interface")


def modules_of_the_package() -> dict[str, ast.Module]:
    "The syntax tree of every exported module, by its dotted name."
    paths = sorted((ROOT/"picknet_nb").glob("*/[!_]*.py"))
    return {f"{path.parent.name}.{path.stem}": ast.parse(path.read_text(encoding="utf-8"))
            for path in paths}


def imported(name: str, nodes) -> list[tuple[str, str, str]]:
    "What a module imports from which module of the package by these statements."
    imports = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("picknet_nb.")]
            imports += [(name, module.removeprefix("picknet_nb."), "") for module in names]
        if isinstance(node, ast.ImportFrom):
            above = ["picknet_nb", *name.split(".")][: 3 - node.level] if node.level else []
            full = ".".join([*above, *filter(None, [node.module])])
            if full.startswith("picknet_nb."):
                source = full.removeprefix("picknet_nb.")
                imports += [(name, source, alias.name) for alias in node.names]
    return imports


def homes_of(tree: ast.Module) -> list[ast.Constant]:
    "The homes of members that a module's registries name."
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and getattr(node.func, "id", "") == "Registry"]
    given = [part for call in calls
             for part in [*call.args[1:2], *(keyword.value for keyword in call.keywords)]]
    return [node for part in given for node in ast.walk(part) if isinstance(node, ast.Constant)]


def named_modules(name: str, tree: ast.Module) -> list[tuple[str, str, str]]:
    """The modules of the package that a module names in a text, with which it could import them;
    the homes of a registry's members are not counted."""
    homes = set(map(id, homes_of(tree)))
    texts = [node.value for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)
             and id(node) not in homes]
    named = [re.fullmatch(r"(?:picknet_nb)?\.(\w+(?:\.\w+)*)(?::\w+)?", text) for text in texts]
    return [(name, match[1], "") for match in named
            if match and match[1].split(".")[0] in SUBPACKAGES]


def imports_between() -> list[tuple[str, str, str]]:
    "Who imports what from which module of the package, also inside of functions and by a text."
    return [arrow for name, tree in modules_of_the_package().items()
            for arrow in imported(name, ast.walk(tree)) + named_modules(name, tree)]


def arrows_between_modules() -> dict[str, set[str]]:
    "The modules that each module imports, also inside of functions and by a text."
    arrows = {name: set() for name in modules_of_the_package()}
    for name, source, what in imports_between():
        arrows[name] |= {source, f"{source}.{what}"} & arrows.keys()
    return arrows


def in_circles(arrows: dict[str, set[str]]) -> list[str]:
    "The modules that lie on a circle of imports, or import from one; none if there is no circle."
    left = dict(arrows)
    while ends := [name for name, others in left.items() if not others & left.keys()]:
        for name in ends:
            del left[name]
    return sorted(left)


def arrows_between_subpackages() -> set[tuple[str, str]]:
    "Which subpackage imports from which other one."
    pairs = {(name.split(".")[0], source.split(".")[0]) for name, source, _ in imports_between()}
    return {(one, other) for one, other in pairs if one != other}


_WIDE, _HIGH, _LEFT, _TOP = 84, 34, 112, 36


def picture() -> str:
    "A row for each subpackage, with a field in the column of every one that it imports from."
    arrows = arrows_between_subpackages()
    text = '<text x="{}" y="{}" text-anchor="{}" font-weight="{}">{}</text>'.format
    field = '<rect x="{}" y="{}" width="{}" height="{}" rx="4" fill="{}"/>'.format
    parts = [text(_LEFT - 12, 22, "end", "400", "imports from")]
    for row, importer in enumerate(SUBPACKAGES):
        top, left = _TOP + _HIGH * row, _LEFT + _WIDE * row
        parts += [text(_LEFT - 12, top + 22, "end", "700", importer),
                  text(left + _WIDE // 2, 22, "middle", "700", importer)]
        for column, source in enumerate(SUBPACKAGES):
            colour = ("#555" if row == column else
                      "#2e8b57" if (importer, source) in arrows else "#eee")
            parts.append(field(_LEFT + _WIDE * column + 2, top + 2, _WIDE - 4, _HIGH - 4, colour))
    width = _LEFT + _WIDE * len(SUBPACKAGES) + 8
    height = _TOP + _HIGH * len(SUBPACKAGES) + 8
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="15" fill="#222">',
        "<title>Which subpackage imports from which</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(SUBPACKAGES)} subpackages, "
          f"{len(arrows_between_subpackages())} arrows")
