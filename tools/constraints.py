"""Pin what is installed in this environment; a release that no longer supports our oldest Python
is pinned for newer ones only."""
import re
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

OLDEST, NEWER = "3.10.19", "3.11"
# the last three: torch pins them itself, where it has a use for them
LEFT = re.compile(r"(picknet-nb|pip|wheel|triton|nvidia-.+|cuda-.+)$")


def needed(supported: SpecifierSet) -> str:
    "For which Pythons a release is pinned, as a marker; nothing where all of ours will do."
    if OLDEST in supported:
        return ""
    if NEWER in supported:
        return f'; python_version >= "{NEWER}"'
    return (f'; python_full_version >= '
            f'"{max((each.version for each in supported if each.operator == ">="), key=Version)}"')


lines = {}
for distribution in distributions():
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    if LEFT.match(name):
        continue
    lines[name] = f"{name}=={distribution.version}" + needed(
        SpecifierSet(distribution.metadata.get("Requires-Python") or "")
    )

Path("constraints.txt").write_text(
    "# written by `make constraints`\n" + "\n".join(lines[name] for name in sorted(lines)) + "\n"
)
