"""Run a pip command and say what it installs, how much of it and how far it is:
`python tools/install.py pip install ...`."""
import re
import subprocess
import sys
from pathlib import Path


def packages(constraints: Path) -> int:
    "How many packages a file of constraints pins."
    return sum("==" in line for line in constraints.read_text().splitlines())


def progress(lines, expected: int):
    "Lines for a person, from those that pip prints: a package, its number, megabytes so far."
    found, megabytes = 0, 0.0
    for line in lines:
        if name := re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.\[\],-]+)", line):
            found += 1
            yield f"{found} of about {expected}: {name[1]} ({megabytes:,.0f} MB downloaded so far)"
        elif size := re.search(r"Downloading .*\(([\d.,]+) ([kMG])B", line):
            megabytes += float(size[1].replace(",", "")) * {"k": 1e-3, "M": 1, "G": 1e3}[size[2]]
        elif line.startswith("Installing collected packages"):
            yield f"unpacking {line.count(',') + 1} packages, which takes minutes"
        elif line.startswith(("Successfully installed", "Successfully built")):
            yield line.split(" ", 2)[0] + " " + line.split(" ", 2)[1]


def main(command: list[str]) -> int:
    "Run pip; what it printed is shown as it is where it fails."
    expected, said = packages(Path("constraints.txt")), []
    print(
        f"setting up .venv: PyTorch, JupyterLab, MkDocs and their parts, about {expected} packages."
        "\nOn Linux they take about 8 GB, most of it PyTorch's libraries for GPUs; minutes on a "
        "quick line, half an hour on a slow one.",
        flush=True,
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = (said.append(line) or line for line in process.stdout)
        for line in progress(lines, expected):
            print(f"  {line}", flush=True)
    if process.returncode:
        print("".join(said[-40:]), file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
