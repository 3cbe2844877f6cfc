"""A corpus made of noise: quick to make, and enough wherever the content of a clip does not matter.
A process to be killed that has nothing to import. A METEOR that starts quickly. And a web server
that fails as it is told."""
import contextlib
import faulthandler
import gzip
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

# before torch is there: some tests fork, and a fork does not survive torch's threads
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import reliability
import torch
from reliability import wait_for

from picknet_nb.core.settings import preset
from picknet_nb.data.corpus import Corpus

WORDS = (
    "a the red blue green ball square star rolls jumps spins left right fast slow big small".split()
)


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--long", action="store_true",
        help="all inputs, and the tests marked long, as `make test-all` runs them")


def pytest_configure(config) -> None:
    reliability.LONG = config.getoption("--long")
    config.addinivalue_line(
        "markers", "long: guards a machine and not a change; only `make test-all` runs it")


def pytest_collection_modifyitems(config, items) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: `make test-all` runs it"))


def long_but(values, *daily) -> list:
    "Values for `parametrize` of which only the named ones run daily; the others are long."
    assert set(daily) <= set(values), daily
    return [value if value in daily else pytest.param(value, marks=pytest.mark.long)
            for value in values]


def load_script(path: Path):
    "The module in a file that belongs to no package: of tools/, benchmarks/ or examples/."
    about = importlib.util.spec_from_file_location(f"{path.stem}_script", path)
    about.loader.exec_module(module := importlib.util.module_from_spec(about))
    return module


def noise_corpus(videos: int = 40, captions: int = 5, seed: int = 0, frames: int = 30) -> Corpus:
    "Random features and glances with random captions, split 60/20/20."
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    said = [
        [" ".join(draw.choices(WORDS, k=draw.randint(4, 8))) for _ in range(captions)]
        for _ in range(videos)
    ]
    features = torch.randn(videos, frames, 32, generator=generator).half()
    glances = torch.randint(0, 256, (videos, frames, 196), generator=generator, dtype=torch.uint8)
    borders = int(videos * 0.6), int(videos * 0.8)
    splits = {
        "train": range(borders[0]),
        "validation": range(*borders),
        "test": range(borders[1], videos),
    }
    return Corpus.build(
        "noise",
        [f"video{number}" for number in range(videos)],
        features,
        glances,
        said,
        splits,
        preset("smoke").clip,
    )


@pytest.fixture
def corpus() -> Corpus:
    return noise_corpus()


@pytest.fixture
def quick_everyday(monkeypatch):
    """The default model sees through networks that take no time. Name, size and fingerprint are
    those of CLIP in four bits and of the scorer's eye; sentences and picks mean nothing."""
    from picknet_nb.data.backbones import BACKBONES, Backbone
    from picknet_nb.training.cards import find_model
    from picknet_nb.training.runs import read_about
    from picknet_nb.training.scorers import load_scorer
    from picknet_nb.use.loading import _loaded

    folder = find_model("everyday")
    about, scorer = read_about(folder), load_scorer(folder)
    facts = [(about["settings"]["cnn"], about["feature_dims"], about["details"]["weights"]),
             (scorer.eye, scorer.values.scorers[0].sizes["dims"], scorer.weights)]

    def maker(name: str, dims: int, weights: str):
        def make(_=None, variant="") -> Backbone:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                body = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(),
                                           torch.nn.Linear(192, dims))
            return Backbone(name, body, dims, 224, weights)
        return make

    for name, dims, weights in facts:
        family = name.partition(":")[0]
        BACKBONES.find(family)  # its home is imported before it is replaced
        monkeypatch.setitem(BACKBONES.data, family, maker(name, dims, weights))
    _loaded.cache_clear()  # a captioner that was loaded before sees through the real ones
    yield
    _loaded.cache_clear()


class Forked:
    """A call in a process, session and group of its own, with everything imported already;
    otherwise like a `subprocess.Popen`."""

    def __init__(self, do, *arguments):
        # every optimiser imports it: once here, or a second in each process
        import torch._dynamo  # noqa: F401

        self.printed, self.returncode = tempfile.TemporaryFile("w+"), None
        self.pid = os.fork()
        if not self.pid:
            self._live(do, arguments)

    def _live(self, do, arguments) -> None:
        "What the new process does; it never comes back."
        status = 1
        try:
            os.setsid()
            for stream in (1, 2): os.dup2(self.printed.fileno(), stream)
            # pytest's own are not for this process
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            faulthandler.register(signal.SIGUSR2, file=1)  # says where it stands
            do(*arguments)
            status = 0
        except SystemExit as end:  # as Python itself ends
            if isinstance(end.code, str): print(end.code)
            status = end.code if isinstance(end.code, int) else bool(end.code)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        "The exit status, minus the signal that ended it; None while it runs."
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended: self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, still: float = 60.0) -> int:
        wait_for(lambda: self.poll() is not None, still=still, explain=self.standing)
        return self.returncode

    def standing(self) -> str:
        "What it has printed, and the lines at which its threads stand."
        self.send_signal(signal.SIGUSR2)
        time.sleep(1.0)  # it writes them
        return f"for a process that printed\n{self.output()}"

    def send_signal(self, kind) -> None:
        if self.poll() is None: os.kill(self.pid, kind)

    def kill(self) -> None: self.send_signal(signal.SIGKILL)

    def output(self) -> str:
        "What it has printed so far, to either stream."
        return os.pread(self.printed.fileno(), 10**6, 0).decode()


def free_port() -> int:
    """A port at which nobody listens, and none that the system gives to whoever connects, or Ray
    to its workers: before a test's server is up, a client of another test could have taken it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


class Ranks:
    """A call in several forked processes that know of each other as those of torchrun do; as
    under torchrun, none outlives the first that fails."""

    def __init__(self, do, *arguments, world: int = 2):
        meet = {
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }

        def as_one_of_them(rank: str) -> None:
            os.environ.update(meet, RANK=rank, LOCAL_RANK=rank)
            do(*arguments)

        self.processes = [Forked(as_one_of_them, str(rank)) for rank in range(world)]

    def poll(self) -> int | None:
        "The exit status of the first that failed, 0 if all have ended well, None while they run."
        codes = [process.poll() for process in self.processes]
        if any(codes): self.kill()
        return None if None in codes else next(filter(None, codes), 0)

    wait, standing = Forked.wait, Forked.standing

    @property
    def returncode(self) -> int | None: return self.poll()

    def send_signal(self, kind) -> None:
        for process in self.processes: process.send_signal(kind)

    def kill(self) -> None: self.send_signal(signal.SIGKILL)

    def output(self) -> str: return "\n".join(process.output() for process in self.processes)


def few_paraphrases(part: Path, *more: tuple[str, str]) -> Path:
    """METEOR's program in a folder, beside the first thousand of its five million paraphrases
    and some of one's own."""
    from pycocoevalcap.meteor import meteor as module

    whole = Path(module.__file__).parent
    shutil.copy(whole / module.METEOR_JAR, part)  # a link would lead Java to the whole table
    (part/"data").mkdir()
    with (
        gzip.open(whole/"data"/"paraphrase-en.gz", "rt") as table,
        gzip.open(part/"data"/"paraphrase-en.gz", "wt") as beginning,
    ):
        beginning.writelines(itertools.islice(table, 3000))  # three lines for each
        beginning.writelines(f"0.5\n{phrase}\n{other}\n" for phrase, other in more)
    return part


@pytest.fixture(scope="session")
def small_table(tmp_path_factory) -> Path:
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    return few_paraphrases(tmp_path_factory.mktemp("meteor"))


@pytest.fixture
def quick_meteor(monkeypatch, small_table) -> None:
    """METEOR as it is, but with few paraphrases: whoever starts one waits a second for it, not
    twelve."""
    monkeypatch.setattr("pycocoevalcap.meteor.meteor.__file__", str(small_table/"meteor.py"))
