"""What `make test` does: sync, then notebooks and pytest together and, beside them, wheel; each
step timed, a summary at the end. `make check` does sync and what a change touches; `make test-all`
is `make test` with every slow cell and every long test."""
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent
SINGLE = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "MPLBACKEND": "agg",
    "CI": os.environ.get("CI", "true"),
}


def call(*command, **options) -> None:
    "Run a command; its failure is ours."
    subprocess.run([str(part) for part in command], check=True, **options)


def sync() -> str:
    "Export, clean and make the README in a copy, and compare."
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("nbs", "picknet_nb"):
            shutil.copytree(
                name,
                copy / name,
                ignore=shutil.ignore_patterns("__pycache__", ".*"),
            )
        shutil.copy("settings.ini", copy)
        call(sys.executable, "tools/readme.py", copy)
        clean = Path("tools/clean.py").resolve()
        call(sys.executable, clean, cwd=copy, stdout=subprocess.DEVNULL)
        shutil.rmtree(copy/"picknet_nb")
        for written in Path("picknet_nb").rglob("__init__.py"):  # by hand, unless it is empty
            (copy/written).parent.mkdir(parents=True)
            shutil.copy(written, copy/written)
        call(BIN/"nbdev_export", cwd=copy, stdout=subprocess.DEVNULL)
        complaints = [
            *compare(
                copy,
                "picknet_nb",
                "*.py",
                "is not what the notebooks export: edit the notebook, then type `make export`",
            ),
            *compare(copy, "nbs", "*.ipynb", "is not clean: type `make clean-notebooks`"),
        ]
        if (copy/"README.md").read_bytes() != Path("README.md").read_bytes():
            complaints.append("README.md is not what nbs/index.ipynb says: type `make readme`")
    if complaints:
        raise SystemExit("\n".join(complaints))
    return "notebooks, package and README agree"


def compare(copy: Path, folder: str, pattern: str, complaint: str):
    "A sentence for each file that differs or stands on one side only."
    names = lambda root: {
        path.relative_to(root)
        for path in (root / folder).rglob(pattern)
        # an editor leaves copies of open files in hidden folders
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }
    for name in sorted(names(copy) | names(Path("."))):
        here, there = Path(name), copy / name
        if not (here.exists() and there.exists() and here.read_bytes() == there.read_bytes()):
            yield f"{name} {complaint}"


def side_by_side(*kinds: str) -> str:
    "Run files of these kinds by tools/pool.py; what it says at its end is the result."
    if "tests" in kinds:
        call(sys.executable, "tools/chromium.py")
    with subprocess.Popen(
        [sys.executable, "tools/pool.py", *kinds], env=SINGLE, stdout=subprocess.PIPE, text=True
    ) as process:
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        raise SystemExit("some of them failed: see above")
    return "\n".join(lines[lines.index("in short:") + 1 :])


def notebooks() -> str:
    "Every notebook, a few at a time."
    return side_by_side("notebooks")


def pytest() -> str:
    "Every test file, a few at a time."
    return side_by_side("tests")


def notebooks_and_pytest() -> str:
    "Every notebook and every test file, a few at a time."
    return side_by_side("notebooks", "tests")


def everything() -> str:
    "Every notebook with its slow cells and every test file with its long tests, a few at a time."
    return side_by_side("--long", "notebooks", "tests")


SECONDS = Path(sys.prefix)/"seconds.json"  # how long each took the last time, by tools/pool.py
BUDGET = 90  # seconds on the clock, for what a change touches


def changed_files() -> list[Path]:
    "Files that differ from where this branch left main, new ones included."
    git = lambda *words: subprocess.run(
        ["git", *words], capture_output=True, text=True
    ).stdout.splitlines()
    left = [git("merge-base", "HEAD", name) for name in ("origin/main", "main")]
    base = next((found[0] for found in left if found), "HEAD")
    named = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    paths = [Path(name) for name in dict.fromkeys(named)]
    return [path for path in paths if not any(part.startswith(".") for part in path.parts)]


def imports_of(test: Path) -> set[str]:
    "The modules of the package that a test file imports, as `core.files`."
    found = set()
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("picknet_nb."):
            module = node.module.removeprefix("picknet_nb.")
            found |= {module} | {f"{module}.{each.name}" for each in node.names}
    return found


def touched_by(files: list[Path], tests: list[Path]) -> list[str]:
    """Names of notebooks and test files for tools/pool.py: first what was changed itself, then
    tests of changed modules of the package, those that import the fewest modules first."""
    there = lambda path: path.exists()  # a file that was removed touches nothing
    books = [path for path in files if path.suffix == ".ipynb" and there(path)]
    names = [f"{path.parent.name}/{path.stem}" for path in books if path.parent != Path("nbs")]
    names += ["index"] * (Path("nbs/index.ipynb") in books)
    names += [path.stem for path in files if path in tests and there(path)]
    # prose, a lesson cell or an output of a notebook changes no module, and `sync` has seen to it
    # that each module is what its notebook exports
    modules = {f"{path.parent.name}.{path.stem}" for path in files if path.parts[0] == "picknet_nb"}
    imports = {test: imports_of(test) for test in tests}
    users = sorted(
        (test for test in tests if imports[test] & modules), key=lambda test: len(imports[test])
    )
    return list(dict.fromkeys([*names, *(test.stem for test in users)]))


def affordable(names: list[str], seconds: dict[str, float]) -> list[str]:
    "As many of these, in order, as the time allows; what was never timed counts as ten seconds."
    left, chosen = BUDGET * (os.cpu_count() or 1), []
    for name in names:
        if (takes := seconds.get(name, 10.0)) <= left:
            chosen.append(name)
            left -= takes
    return chosen


def remembered() -> dict[str, float]:
    "How many seconds each notebook and test file took the last time, as far as known."
    return json.loads(SECONDS.read_text()) if SECONDS.exists() else {}


def changed() -> str:
    "The notebooks and tests that a change touches, as many as fit into the time."
    names = touched_by(changed_files(), sorted(Path("tests").glob("test_*.py")))
    seconds = remembered()
    chosen = affordable(names, seconds)
    late = [name for name in names if name not in chosen]
    if late:
        print(f"too long for this, `make test` runs them: {', '.join(late)}", flush=True)
    if not chosen: return "nothing that has a test was changed"
    minutes = sum(seconds.get(name, 10.0) for name in chosen) / (os.cpu_count() or 1) / 60
    print(f"{len(chosen)} notebooks and test files, about {minutes:.1f} minutes", flush=True)
    return side_by_side(*chosen)


def copy_sources(root: Path, folder: Path) -> None:
    "Copy what a wheel is made of; notebooks, data and built things stay behind."
    anywhere = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    above = {"data", "nbs", "site", "build", "dist"}
    at_the_top = lambda place: above if Path(place) == root else set()
    shutil.copytree(
        root, folder, ignore=lambda place, names: anywhere(place, names) | at_the_top(place)
    )


def wheel() -> str:
    """Build a source distribution, and from it a wheel that is installed alone, imported and
    run; both install the same files."""
    with tempfile.TemporaryDirectory() as folder:
        # setuptools writes beside the sources, which others are reading meanwhile
        copy_sources(Path("."), Path(folder)/"copy")
        call(
            sys.executable,
            "-m",
            "build",
            "--outdir",
            folder,
            f"{folder}/copy",
            stdout=subprocess.DEVNULL,
        )
        (built,), (packed,) = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
        call(sys.executable, "-m", "venv", "--without-pip", f"{folder}/empty")
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            f"{folder}/empty/bin/python",
        )
        quiet = "--quiet", "--no-compile"  # most of PyTorch is never imported
        call(*pip, "install", *quiet, "--constraint", "constraints.txt", built)
        installed = subprocess.run(
            [*pip, "list", "--format=freeze"], check=True, capture_output=True, text=True
        ).stdout
        if "torch==" not in installed:
            raise SystemExit(f"the wheel does not bring PyTorch:\n{installed}")
        unwanted = re.findall(
            r"^(?:nbdev|fastcore|jupyter\w*|notebook|ipykernel|av|nltk|matplotlib)(?===)",
            installed,
            re.M,
        )
        if unwanted:
            raise SystemExit(
                f"the wheel pulls in {', '.join(unwanted)}: see requirements in settings.ini"
            )
        try_out(folder)
        of_the_wheel = package_in(folder)
        call(*pip, "uninstall", "--quiet", "--yes", "picknet_nb")
        if package_in(folder):
            raise SystemExit("files of the package are left after it was uninstalled")
        call(*pip, "install", *quiet, "--no-deps", packed)  # its dependencies came with the wheel
        if package_in(folder) != of_the_wheel:
            raise SystemExit("the source distribution installs other files than the wheel")
        call(f"{folder}/empty/bin/picknet", "--help", cwd=folder, stdout=subprocess.DEVNULL)
        return f"{built.name} and {packed.name} install and run alone"


def try_out(folder: str) -> None:
    "Import every module of the installed package and run its command, away from the checkout."
    # PyTorch would be compiled each time
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    call(f"{folder}/empty/bin/python", "-c", IMPORT_ALL, cwd=folder, env=kept)
    call(f"{folder}/empty/bin/picknet", "--help", cwd=folder, env=kept, stdout=subprocess.DEVNULL)
    call(f"{folder}/empty/bin/picknet", "info", cwd=folder, env=kept)


def package_in(folder: str) -> dict[str, bytes]:
    "Every file of the package that is installed there, and the command."
    return {
        str(path): path.read_bytes()
        for pattern in ("lib/python*/site-packages/picknet_nb/**/*", "bin/picknet")
        for path in Path(f"{folder}/empty").glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    }


IMPORT_ALL = """
import importlib, pkgutil, picknet_nb
for module in pkgutil.walk_packages(picknet_nb.__path__, "picknet_nb."):
    importlib.import_module(module.name)
picknet_nb.measure.tables.load_paper()  # data that must come along
"""
STEPS = {
    step.__name__: step
    for step in (sync, changed, notebooks, pytest, notebooks_and_pytest, everything, wheel)
}


@contextmanager
def beside(name: str):
    """A step in a process of its own, which ends with the block at the latest; what comes out
    gives its result, or its failure."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, name],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )

        def result() -> str:
            failed = process.wait()
            said.seek(0)
            told, _, summary = said.read().rpartition(f"\n{command([name])} passed\n")
            print((told + summary * bool(failed)).rstrip(), flush=True)
            if failed:
                raise SystemExit(f"the step '{name}' failed: see above")
            return summary.strip()

        try:
            yield result
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def command(names: list[str]) -> str:
    "What a person typed to have these steps done."
    if "changed" in names: return "make check"
    return "make test-all" if "everything" in names else "make test"


def announcement(title: str) -> str:
    "What a command is going to do, and how long that takes."
    if title == "make check":
        return (f"{title}: first whether notebooks, package and README agree (ten seconds), then "
                f"the notebooks and tests that your change touches ({BUDGET} seconds at most)")
    what = f"{title}: every notebook, every test file and the wheel"
    if title == "make test-all":
        return f"{what}, with slow cells, long tests and all inputs; an hour on two quiet cores"
    seconds, workers = remembered(), (os.cpu_count() or 1) + 1  # as many as tools/pool.py starts
    last = f"{sum(seconds.values()) / workers / 60:.0f} minutes, as it took last time"
    return f"{what}; {last if len(seconds) > 100 else 'a quarter of an hour on two quiet cores'}"


def in_order(names: list[str], title: str) -> list[str]:
    "Do steps one after the other; a line of summary for each."
    summary = []
    for name in names:
        print(f"── {name}: {STEPS[name].__doc__}", flush=True)
        start = time.monotonic()
        try:
            found = STEPS[name]()
        except (subprocess.CalledProcessError, SystemExit) as failure:
            raise SystemExit(f"{failure}\n{title} failed at the step '{name}'") from None
        first, *more = found.splitlines()
        summary += [
            f"{name:10} {first} ({time.monotonic() - start:.0f} s)",
            *(f"{'':10} {line}" for line in more),
        ]
    return summary


def main(names: list[str]) -> None:
    "Do the named steps, the wheel beside the others, and say what they found."
    title = command(names)
    for name in names:
        if name not in STEPS:
            raise SystemExit(f"no step {name!r}: {', '.join(STEPS)}")
    # in one queue, so that no core waits for the last of either
    if {"notebooks", "pytest"} <= set(names):
        names = [
            "notebooks_and_pytest" if name == "notebooks" else name
            for name in names
            if name != "pytest"
        ]
    if len(names) == 1 or "wheel" not in names:
        if len(names) > 1: print(announcement(title), flush=True)
        summary = in_order(names, title)
    else:
        print(announcement(title), flush=True)
        with beside("wheel") as wheel_result:
            summary = in_order([name for name in names if name != "wheel"], title)
            print("── wheel: what it said meanwhile", flush=True)
            summary.append(wheel_result())
    print("", f"{title} passed", *summary, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["sync", "notebooks", "pytest", "wheel"])
