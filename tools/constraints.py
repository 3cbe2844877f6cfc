"Pin what is installed in this environment; a release that no longer supports our oldest Python is pinned for newer ones only."
import re
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

OLDEST, NEWER = "3.10.19", 'python_version >= "3.11"'
LEFT = re.compile(r"(picknet-nb|pip|wheel|triton|nvidia-.+|cuda-.+)$")  # the last three: torch pins them itself, where it has a use for them

lines = {}
for distribution in distributions():
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    if LEFT.match(name):
        continue
    everywhere = OLDEST in SpecifierSet(distribution.metadata.get("Requires-Python") or "")
    lines[name] = f"{name}=={distribution.version}" + ("" if everywhere else f"; {NEWER}")

Path("constraints.txt").write_text("# written by `make constraints`\n" + "\n".join(lines[name] for name in sorted(lines)) + "\n")
