"""Run notebooks and test files, each in a process of its own: `python tools/pool.py [--long]
[notebooks|tests|NAME ...]`. With `--long`, cells marked `#| slow` and tests marked `long` run, too.

What takes long and is the same for all is done once, before the first process is forked: importing
PyTorch and what it imports later, drawing the example clips, and starting METEOR. There is one
process more than there are cores, because many tests wait, for a server, a browser or a process
that they have killed. What took longest the last time comes first, so that nothing long is left at
the end. Files that tests write live in memory where that has room: thousands of them are made, and
many are written through to the disk.
"""
import ctypes
import gc
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import xml.etree.ElementTree as xml
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import Lock
from pathlib import Path
from unittest.mock import patch

# a fork does not survive PyTorch's threads
os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="agg")

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT/".venv"/"seconds.json"
FIRST = (
    "test_cluster",
    "test_cli",
    "test_examples",
    "test_reproduction",
    "test_systems",
    "test_explorer",
    "test_training",
    "method/14_three_stages",
    "test_fuzzing_commands",
    "test_hostile_surroundings",
    "test_committees",
    "test_faults",
    "test_workers",
    "interface/08_your_own",
    "method/06_decoder",
    "test_stranger",
    "test_hostile_runs",
    "systems/08_ms_rnn",
    "test_captioning",
    "test_streaming",
)  # where nothing is known yet


def name_of(path: Path) -> str:
    "What a test file or a notebook is called here: test_cider, method/10_cider."
    inside = path.parent != ROOT/"nbs" and path.suffix == ".ipynb" and ROOT/"nbs" in path.parents
    return f"{path.parent.name}/{path.stem}" if inside else path.stem


class SharedMeteor:
    """What a METEOR that others use too looks like to one who asks: nobody comes between a
    question and its answers."""

    def __init__(self, java, lock):
        self.java, self.lock, self.awaited = java, lock, 0

    def __enter__(self): return self
    def __exit__(self, *_): pass

    def answer(self, line: str | None = None) -> str:
        "Send a line, if there is one, and read a line."
        if line is not None:
            if not self.lock.acquire(timeout=600):
                raise TimeoutError(
                    "METEOR was left in the middle of an answer by a notebook that died"
                )
            self.awaited = 1 + (line.count(" ||| ") if line.startswith("EVAL") else 0)
        self.awaited -= 1
        try:
            return self.java.answer(line)
        finally:
            if not self.awaited:
                self.lock.release()


def helpers():
    "tests/conftest.py, by a name that leaves pytest its own; it imports others of its folder."
    sys.path.append(str(ROOT/"tests"))
    about = spec_from_file_location("helpers", ROOT/"tests"/"conftest.py")
    about.loader.exec_module(module := module_from_spec(about))
    return module


@contextmanager
def one_meteor():
    """A METEOR with few paraphrases for all notebooks that score, instead of `meteor_process`;
    measure/01_metrics and tests start their own."""
    from picknet_nb.measure import metrics

    few_paraphrases = helpers().few_paraphrases
    with tempfile.TemporaryDirectory() as folder:
        try:
            with patch(
                "pycocoevalcap.meteor.meteor.__file__",
                str(few_paraphrases(Path(folder))/"meteor.py"),
            ):
                java = metrics.meteor_process()
        # not installed, or no Java: whoever needs it will say so
        except (ImportError, metrics.ScoreError):
            yield metrics.meteor_process
            return
        with shared(java) as meteor:
            yield meteor


@contextmanager
def shared(java):
    "A Java process, started, as a function that gives it to whoever asks."
    with java:
        # there is no time limit on all notebooks together, and a fork should see no other thread
        java.watch.cancel()
        java.watch.join()
        lock = Lock()
        yield lambda *_, **__: SharedMeteor(java, lock)


NEEDED = (
    "av",
    "IPython.display",
    "ipywidgets",
    "nbdev.test",
    "nltk.tokenize",
    "picknet_nb.interface.python",
    "picknet_nb.measure.comparison",
    "picknet_nb.use.server",
    "picknet_nb.measure.frontier",
    "picknet_nb.interface.watch",
    "PIL.Image",
    "pycocoevalcap.cider.cider_scorer",
    "pytest",
    "torch._dynamo",
    "torch.distributed",
    "torchvision",
    "voila.app",
)  # every optimiser imports PyTorch's compiler


def prepare() -> None:
    "Import and draw what many notebooks and tests need."
    import matplotlib.pyplot as plt

    unwanted = ("scipy", "sklearn")
    # NLTK would import them, for nobody, and every fork would copy their 1300 mappings
    sys.modules.update(dict.fromkeys(unwanted))
    for name in NEEDED:
        with suppress(ImportError): import_module(name)  # whoever needs it will say so
    for name in unwanted: del sys.modules[name]
    from picknet_nb.world.shapes import example_corpus
    example_corpus()
    figure, axis = plt.subplots()
    axis.set(title="words", xlabel="$x^2$")
    figure.savefig(io.BytesIO())  # fonts are looked for once
    plt.close(figure)
    gc.collect()
    gc.freeze()  # a collection in a forked process would otherwise copy all of this
    in_large_pages()


def in_large_pages() -> None:
    """Move what this process holds into pages of 2 MB, where the kernel can: a fork copies one
    entry for each, instead of 512."""
    if sys.platform != "linux":
        return
    libc, size = ctypes.CDLL(None), 2 << 20
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, file, *name = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in place.split("-"))
        if rights == "rw-p" and file == "0" and name in ([], ["[heap]"]):
            for page in range(-(-start // size) * size, end - size + 1, size):
                # MADV_COLLAPSE; an older kernel knows none, and nothing is lost
                libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(size), 25)


def place_in_memory() -> str | None:
    """A folder in memory for temporary files, where there is one with room in which programs may
    run; None: wherever they usually are."""
    folder = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(folder, os.W_OK | os.X_OK):
        return None
    about = os.statvfs(folder)
    roomy = about.f_bavail * about.f_frsize > 6 << 30  # three times what all of them take together
    return str(folder) if roomy and not about.f_flag & os.ST_NOEXEC else None


@contextmanager
def temporary_files():
    "A folder for all temporary files, so that what a killed process leaves behind goes with it."
    with tempfile.TemporaryDirectory(dir=place_in_memory()) as place, \
            patch.dict(os.environ, TMPDIR=place), patch.object(tempfile, "tempdir", place):
        yield place


def slow_cells(path: Path) -> bool:
    "Whether a notebook has cells that only a long run executes."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return any("#| slow" in "".join(cell["source"]).splitlines() for cell in cells)


def copied(path: Path, folder: Path) -> Path:
    """A notebook in a copy of the checkout: slow cells store what they measured in data/results,
    and a test leaves the results of the repository alone."""
    for each in ROOT.iterdir():
        if each.name not in ("nbs", "data"): (folder/each.name).symlink_to(each)
    hidden = shutil.ignore_patterns(".*")
    shutil.copytree(ROOT/"nbs", folder/"nbs", ignore=hidden)
    (folder/"data").mkdir()
    for each in (ROOT/"data").iterdir():
        if each.name != "results": (folder/"data"/each.name).symlink_to(each)
    shutil.copytree(ROOT/"data"/"results", folder/"data"/"results", ignore=hidden)
    return folder/path.relative_to(ROOT)


def run_notebook(path: Path, report: Path, meteor, long: bool) -> bool:
    "Whether every cell of a notebook passed."
    from IPython.core import pylabtools
    from nbdev import test
    from nbdev.config import get_config

    from picknet_nb.measure import metrics

    os.chdir(ROOT)
    flags = [flag for flag in get_config().tst_flags.split() if not (long and flag == "slow")]
    if long and slow_cells(path):
        path = copied(path, Path(tempfile.mkdtemp()))
    os.chdir(path.parent)  # as in JupyterLab: paths are seen from the notebook's folder
    metrics.meteor_process = meteor
    test.CaptureShell = partial(test.CaptureShell, mpl_format="png")
    usual = pylabtools.print_figure
    # nobody looks: draw once, and small
    pylabtools.print_figure = lambda figure, **how: usual(
        figure, **how | {"bbox_inches": None, "dpi": 72}
    )
    return test.test_nb(
        path, skip_flags=flags, do_print=True, basepath=ROOT
    )[0]


def run_tests(path: Path, report: Path, meteor, long: bool) -> bool:
    "Whether every test of a file passed; what became of each goes into the report."
    import pytest

    os.chdir(ROOT)
    sys.path[0] = str(ROOT)  # as it is for `python -m pytest`
    # a process that a test spawns would read this file again
    sys.modules["__main__"] = types.ModuleType("__main__")
    written = report.with_suffix("")
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"--basetemp={written}"]
    ended = pytest.main([*options, *(["--long"] if long else []), str(path)])
    shutil.rmtree(written, ignore_errors=True)
    # a file without what it needs is skipped as a whole
    return ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def started(path: Path, folder: Path, meteor, long: bool) -> int:
    """The process that runs a notebook or a test file; what it says goes into the folder, and a
    mark if all went well."""
    if process := os.fork():
        return process
    # who works in the background of a shell ignores it, but tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said = os.open(folder/f"{path.parent.name}.{path.name}.txt", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout, sys.stderr = (
            open(stream, "w", buffering=1, closefd=False) for stream in (1, 2)
        )
        run = run_notebook if path.suffix == ".ipynb" else run_tests
        if run(path, folder/f"{path.parent.name}.{path.name}.xml", meteor, long):
            (folder/f"{path.parent.name}.{path.name}.passed").touch()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(0)


def run_all(
    paths: list[Path], most: int, folder: Path, meteor=None, long: bool = False
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """How long each took, by the clock and in processor seconds, and the names of those that
    failed; what these said is printed."""
    waiting, running, taken, failed = list(paths), {}, {}, []
    while waiting or running:
        while waiting and len(running) < most:
            path = waiting.pop(0)
            running[started(path, folder, meteor, long)] = path, time.monotonic()
        process, _, used = os.wait3(0)
        if process not in running:
            continue
        path, begun = running.pop(process)
        taken[name_of(path)] = (
            round(time.monotonic() - begun, 1),
            round(used.ru_utime + used.ru_stime, 1),
        )
        # an exit status would also be 0 after os._exit(0) in a test
        if not (passed := (folder/f"{path.parent.name}.{path.name}.passed").exists()):
            failed.append(name_of(path))
            print(
                f"── {name_of(path)}",
                (folder/f"{path.parent.name}.{path.name}.txt").read_text(errors="replace"),
                sep="\n",
            )
        print(
            f"{name_of(path):40} {'passed' if passed else 'failed'} in "
            f"{taken[name_of(path)][0]:.0f} s",
            flush=True,
        )
    return taken, failed


def counts(folder: Path) -> list[str]:
    "How many tests passed, and how many were skipped for which reason, from the reports."
    cases = [
        case
        for report in folder.glob("*.xml")
        for case in xml.parse(report).getroot().iter("testcase")
    ]
    reasons = Counter(
        skipped.get("message", "no reason given")
        for case in cases
        for skipped in case.iter("skipped")
    )
    passed = sum(
        not list(case) or {part.tag for part in case} <= {"system-out", "system-err", "properties"}
        for case in cases
    )
    return [
        f"{passed} tests passed, {sum(reasons.values())} skipped",
        *(f"{count} skipped: {why}" for why, count in reasons.most_common()),
    ]


def slowest(taken: dict[str, tuple[float, float]], most: int = 10) -> list[str]:
    "A table of the files that took most processor time, with their share of it."
    whole = sum(used for _, used in taken.values()) or 1.0
    first = sorted(taken.items(), key=lambda item: -item[1][1])[:most]
    row = lambda name, used, clock: (
        f"{name:36} {used:7.1f} s {100 * used / whole:5.1f} % {clock:7.1f} s")
    total = sum(clock for clock, _ in taken.values())
    return [
        f"{f'the slowest {len(first)} of {len(taken)} files':36} {'processor':>9} {'share':>7} "
        f"{'clock':>9}",
        *(row(name, used, clock) for name, (clock, used) in first),
        row("all of them", whole, total),
    ]


def remembered() -> dict[str, float]:
    "How many seconds each took the last time it ran."
    return json.loads(SECONDS.read_text()) if SECONDS.exists() else {}


def chosen(names: list[str]) -> list[Path]:
    "The notebooks and test files of these names, what took longest before the others."
    hidden = lambda path: any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    found = {
        "notebooks": [path for path in (ROOT/"nbs").rglob("*.ipynb") if not hidden(path)],
        "tests": list((ROOT/"tests").glob("test_*.py")),
    }
    if (
        unknown := set(names)
        - set(found)
        - {name_of(path) for paths in found.values() for path in paths}
    ):
        sys.exit(f"no notebook and no test file is called {', '.join(sorted(unknown))}")
    paths = [
        path
        for kind, paths in found.items()
        for path in paths
        if not names or kind in names or name_of(path) in names
    ]
    known = dict.fromkeys(FIRST, 1000) | remembered()
    return sorted(paths, key=lambda path: (-known.get(name_of(path), 10), path.name))


def cores() -> int:
    "How many cores this process may use."
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def main(words: list[str]) -> None:
    long, names = "--long" in words, [word for word in words if word != "--long"]
    paths = chosen(names)
    if long:  # nothing takes longer than the trainings in slow cells
        paths.sort(key=lambda path: path.suffix != ".ipynb" or not slow_cells(path))
    os.environ["PICKNET_POOL"] = str(os.getpid())  # by which tests know that they run side by side
    prepare()
    with temporary_files() as place, one_meteor() as meteor:
        taken, failed = run_all(paths, cores() + 1, Path(place), meteor, long)
        outcome = counts(Path(place)) if any(path.suffix == ".py" for path in paths) else []
    if SECONDS.parent.is_dir() and not long:  # what a daily run takes decides the order
        seconds = {name: clock for name, (clock, _) in taken.items()}
        SECONDS.write_text(json.dumps(remembered() | seconds, indent=1))
    passed = f"{len(taken) - len(failed)} notebooks and test files passed"
    print("in short:", passed, *outcome, *slowest(taken), sep="\n", flush=True)
    if failed:
        sys.exit("\n".join(["these failed, see above:", *failed]))


if __name__ == "__main__":
    main(sys.argv[1:])
