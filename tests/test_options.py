"""Every option of every command, and every argument of the seven functions of `picknet_nb`, acts
wherever it is accepted, or is an error there.

TABLE has a row for each of them, and PLACES the places in which a command or a function is used:
one file, a folder, a table, a cluster … An option without a row fails, and so does a row that
leaves out a place. To retire an option, delete its row; to add one, write a row of `Acts`: what
to type, and what is noted where it acts (see `take_notes`)."""
import inspect
import json
import os
import pickle
import pkgutil
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import click
import numpy as np
import pytest
import torch
import typer
from conftest import noise_corpus
from PIL import Image
from safetensors.torch import load_file
from toys import colours, film, invoked, store_run

import picknet_nb as pn
from picknet_nb.core.files import LIMITS, limit
from picknet_nb.core.registry import MODULES, USED
from picknet_nb.core.settings import preset
from picknet_nb.data.backbones import BACKBONES
from picknet_nb.data.corpus import Corpus
from picknet_nb.data.datasets import Prepared
from picknet_nb.data.eyes import EYES
from picknet_nb.data.video import Clip
from picknet_nb.interface.main import app
from picknet_nb.measure.metrics import Scores
from picknet_nb.method.pickers import PICKERS
from picknet_nb.method.recipes import recipes
from picknet_nb.method.stages import Model
from picknet_nb.training.models import Decoding, read_card
from picknet_nb.training.runs import open_run, read_settings, save_weights
from picknet_nb.use.captioning import VideoCaptioner
from picknet_nb.use.loading import _loaded
from picknet_nb.use.cluster import Share
from picknet_nb.use.page import Explorer
from picknet_nb.use.server import page
from picknet_nb.world.world import write_examples

pytest.importorskip("av")
pytest.importorskip("pyarrow")
# a module that were imported while another one is spied on would keep the spy
for each in pkgutil.walk_packages(pn.__path__, "picknet_nb."): import_module(each.name)
FUNCTIONS = "load", "caption", "caption_many", "prepare", "train", "evaluate", "reproduce"


# what there is
# ------------------------------------------------------------------------------------------


def options_of(command: click.Command, name: str = "picknet") -> Iterator[str]:
    "Every option and argument of a command and of those inside it, as `caption --beam`."
    for each in command.params:
        if "completion" not in each.name:  # what completes words in a shell is Typer's own
            yield f"{name} {each.opts[0]}"
    context = click.Context(command)
    for each in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = each if name == "picknet" else f"{name} {each}"
        yield from options_of(command.get_command(context, each), inner)


def arguments_of(name: str) -> Iterator[str]:
    "Every argument of a function of `picknet_nb`, as `pn.caption picker`."
    for each in inspect.signature(getattr(pn, name)).parameters.values():
        yield f"pn.{name} {'**' * (each.kind is each.VAR_KEYWORD)}{each.name}"


DECLARED = [
    *options_of(typer.main.get_command(app)),
    *(each for name in FUNCTIONS for each in arguments_of(name)),
]


# the bench
# ------------------------------------------------------------------------------------------


class Stop(Exception):
    "Ends a call when all has been noted: what would come next takes long."


def stop(*_, **__): raise Stop


class Bench:
    "Runs commands and functions in an empty folder, and notes what arrives where it acts."

    def __init__(self, monkeypatch, folder: Path, there: dict):
        self.monkeypatch, self.folder, self.there = monkeypatch, folder, there
        self.seen, self.runs = defaultdict(list), 0

    def note(self, where: str, instead: Callable | None = None, **facts: Callable) -> None:
        """Note facts about each call of a function, read from its arguments; then call it, or
        what is given instead."""
        subpackage, module, *owner, name = where.split(".")
        home = import_module(f"picknet_nb.{subpackage}.{module}")
        for each in owner: home = getattr(home, each)
        plain = getattr(home, name)
        signature = inspect.signature(plain)

        @wraps(plain)  # so that it can be noted once more
        def noted(*arguments, **options):
            given = signature.bind(*arguments, **options)
            given.apply_defaults()
            call = SimpleNamespace(**given.arguments)
            for fact, read in facts.items(): self.seen[fact].append(read(call))
            return (instead or plain)(*arguments, **options)

        # a method that is bound to its class is called on the class, without it
        self.monkeypatch.setattr(home, name, staticmethod(noted) if inspect.ismethod(plain)
                                 else noted)

    def run(self, command: str, given: str | dict) -> "Outcome":
        "What came of a command line, or of a function and its arguments."
        self.runs += 1
        here = self.folder/f"{self.runs}"
        here.mkdir()
        self.monkeypatch.chdir(here)
        self.seen.clear()
        _loaded.cache_clear()  # a model that is remembered is not opened
        os.environ.pop("PICKNET_EXPLORE", None)
        error, printed = None, ""
        try:
            if command.startswith("pn."):
                self.use(getattr(pn, command[3:])(**self.put(given)))
            else:
                name = [] if command == "picknet" else command.split()
                words = [self.there.get(word, word) for word in given.split()]
                done = invoked(*name, *words)
                failed = done.exit_code not in (0, 3)  # 3: some files were left out
                printed, error = done.stdout, done.exception if failed else None
                if isinstance(error, SystemExit): error = RuntimeError(done.output)
        except Exception as reason:
            error = reason
        error = error or self.open_page()
        facts = {name: list(values) for name, values in self.seen.items()}
        facts["written"] = sorted(str(path.relative_to(here)) for path in here.rglob("*"))
        facts["json"], facts["scored"] = [is_json(printed)], [bool(facts.get("scored"))]
        if (here/"made"/"corpus.json").exists(): facts |= of_corpus(Corpus.load(here/"made"))
        if (here/"made"/"weights.safetensors").exists(): facts |= of_model(here/"made")
        return Outcome(facts, printed, None if isinstance(error, Stop) else error)

    def open_page(self) -> Exception | None:
        "What `explore` serves, opened in another folder as its kernel does; the error, if any."
        if "PICKNET_EXPLORE" not in os.environ: return None
        self.monkeypatch.chdir(self.folder)
        made = page()
        return None if isinstance(made, Explorer) else RuntimeError(made.value)

    def put(self, given):
        "What the words in arguments stand for."
        if isinstance(given, dict): return {name: self.put(each) for name, each in given.items()}
        if isinstance(given, list): return [self.put(each) for each in given]
        return self.there.get(given, given) if isinstance(given, str) else given

    def use(self, made) -> None:
        "Use what a function gave back, where it does nothing before that."
        if isinstance(made, VideoCaptioner): made.caption(self.there["VIDEO"])
        if isinstance(made, pn.Run): made.captioner
        if hasattr(made, "iter_batches"): made = made.iter_batches()
        if isinstance(made, Iterator): list(made)


@dataclass
class Outcome:
    facts: dict[str, list]
    printed: str
    error: Exception | None


def is_json(text: str) -> bool:
    "Whether a text is JSON as a whole, or line by line."
    for parts in ([text], text.splitlines()):
        try:
            return bool([json.loads(part) for part in parts])
        except ValueError:
            continue
    return False


def of_model(folder: Path) -> dict[str, list]:
    "What the options of `export` may decide about a model."
    decoding = Decoding.read(folder)
    return {"beam": [decoding.beam], "no_repeats": [decoding.no_repeats],
            "threshold": [read_settings(folder).policy.threshold],
            "card": [read_card(folder)]}


def of_corpus(corpus: Corpus) -> dict[str, list]:
    "What the options of `prepare` may decide about a corpus."
    named = lambda split: tuple(corpus.ids[clip] for clip in corpus.splits[split].tolist())
    return {
        "name": [corpus.name], "backbone": [corpus.settings.cnn], "files": [tuple(corpus.ids)],
        "captions": [sum(map(len, corpus.captions))], "train": [named("train")],
        "test": [named("test")], "glance": [corpus.settings.glance],
        "min_word_count": [corpus.settings.min_word_count],
    }


# the checks of a row
# ------------------------------------------------------------------------------------------

# facts of which there are several at once: it is enough that the value is among them
MANY = {"written", "sources"}
WITHOUT: dict[tuple, Outcome] = {}  # what comes of a command without more options, by place


@dataclass
class Acts:
    "An option that arrives where it acts, and is not there without it."
    given: str | dict  # what is typed or handed over in addition
    fact: str          # of `take_notes`
    value: object
    places: str = ""   # of PLACES, several with spaces between; empty: all of them
    alone: bool = False  # not in addition, but instead of what the place has

    def __call__(self, bench: Bench, command: str, place: str) -> None:
        usual = PLACES[command][place]
        if (command, place) not in WITHOUT:
            WITHOUT[command, place] = bench.run(command, usual)
            assert WITHOUT[command, place].error is None, WITHOUT[command, place].error
        before = WITHOUT[command, place].facts.get(self.fact, [])
        done = bench.run(command, self.given if self.alone else joint(usual, self.given))
        assert done.error is None, done.error
        found = done.facts.get(self.fact, [])
        assert self.value in found and self.value not in before, (found, before)
        assert self.fact in MANY or all(each == self.value for each in found), found


@dataclass
class Fails:
    "An option that cannot act here, which is an error."
    given: str | dict
    message: str
    places: str = ""
    alone: bool = False

    def __call__(self, bench: Bench, command: str, place: str) -> None:
        usual = PLACES[command][place]
        done = bench.run(command, self.given if self.alone else joint(usual, self.given))
        assert done.error is not None and self.message in str(done.error), done.error


@dataclass
class Prints:
    "An option that decides what is printed."
    given: str
    text: str
    places: str = ""

    def __call__(self, bench: Bench, command: str, place: str) -> None:
        usual = PLACES[command][place]
        done = bench.run(command, joint(usual, self.given))
        assert done.error is None and self.text in done.printed, (done.error, done.printed)
        assert self.text not in bench.run(command, usual).printed


def joint(usual: str | dict, given: str | dict) -> str | dict:
    return f"{usual} {given}" if isinstance(usual, str) else {**usual, **given}


# what is noted, and where
# ------------------------------------------------------------------------------------------


def frames_of(source, rate=1.0, size=64, *_, total=6, **__) -> Iterator[tuple[float, torch.Tensor]]:
    "The frames of any video: each a little brighter than the one before."
    for number in range(total):
        yield number / rate, torch.full((3, size, size), 5 * number, dtype=torch.uint8)


CLUSTER = SimpleNamespace(  # what stands for the module `ray`, connected
    cluster_resources=dict, nodes=list, get=lambda made: made,
    exceptions=SimpleNamespace(RayError=ConnectionError),
    remote=lambda function: SimpleNamespace(remote=function))


def on_ray_here(ray, actor, given, columns, workers=None):
    """What a cluster would do, done here: its actor gets everything through a pickle, and has none
    of the limits that are set in the environment here."""
    import pyarrow

    sent = pickle.loads(pickle.dumps(given(Share(workers or 2, 1, 0))))

    def work(**_):
        with patch.dict(os.environ):
            for name in LIMITS: os.environ.pop(name, None)
            made = actor(*sent)(pyarrow.table(columns))
        yield made

    return SimpleNamespace(iter_batches=work)


def rows_of_jobs(jobs, workers, finished=None) -> dict:
    "What would come of the jobs of a table or a frontier, without any training."
    answers = {}
    for job in jobs:
        known = job.work.keywords
        answers[job.path] = {
            "row": known.get("name", ""), "seed": known["config"].training.seed, "picker": "all",
            "budget": known.get("budget"), "machine": "", "minutes": 0.0, "minutes_shared": 0.0,
            "frames": 30, "frames_used": 30, "captions": {"greedy": {}},
        }
    return answers


def of_jobs(read: Callable) -> Callable:
    "What all jobs of a call have in common, or each has: a tuple without repetitions."
    return lambda call: tuple(dict.fromkeys(
        value for job in call.jobs if (value := read(job.work.keywords)) is not None))


def take_notes(bench: Bench, corpus: Corpus) -> None:
    "Stand wherever an option acts."
    def opened(data, scale, seed=0, device="cpu", bars=True):
        return replace(corpus, details={**corpus.details, "opened": {"data": data, "scale": scale}})

    def begun(folder, corpus, config, recipe, **_):  # as `train` begins, or raises an error
        open_run(Path(folder), corpus, replace(recipe.settings(config), clip=corpus.settings),
                 recipe)

    threshold = lambda call: call.model.picker.threshold
    # files and streams
    bench.note("use.loading.load_run", device=lambda call: call.device,
               model=lambda call: Path(call.folder).name)
    bench.note("use.loading.load_scorer", device=lambda call: call.device)
    bench.note("use.loading.load_backbone", weights=lambda call: name_of(call.weights),
               device=lambda call: call.device)
    bench.note("use.captioning.VideoCaptioner.caption_many", device=lambda call: call.self.device)
    bench.note("use.clips.decide", threshold=threshold,
               picker=lambda call: call.model.picker.label)
    bench.note("use.clips.search_beam", beam=lambda call: call.size,
               best=lambda call: call.best)
    bench.note("use.captioning.caption_clip", sources=lambda call: name_of(call.source),
               running=lambda call: call.running,
               pixels=lambda call: limit("PICKNET_FRAME_PIXELS"))
    # no option acts in a decoder: all videos look alike, and no process is started for them
    bench.note("use.captioning.can_fork", lambda: False)
    bench.note("use.captioning.read_clip", lambda path, frames, size: Clip(
        torch.stack([frame for _, frame in frames_of(path, size=size, total=frames)]),
        torch.arange(float(frames))))
    bench.note("use.subtitles.stream_frames", frames_of)
    bench.note("use.subtitles.subtitle_video", sources=lambda call: name_of(call.source))
    bench.note("use.streams.stream_frames", frames_of, rate=lambda call: call.rate,
               sources=lambda call: name_of(call.source))
    bench.note("use.streams.Memory.__init__", window=lambda call: call.window)
    bench.note("use.streams.Watcher.__init__", forget=lambda call: call.forget)
    bench.note("method.picker_contract.Picker.step", threshold=lambda call: call.threshold,
               picker=lambda call: call.self.label)
    # a cluster
    bench.note("use.many.use_module", used=lambda call: call.name)
    bench.note("use.cluster.on_ray", on_ray_here, workers=lambda call: call.workers)
    for home in ("core.processes", "use.cluster", "use.tables", "measure.experiments",
                 "interface.python"):
        bench.note(f"{home}.connected", lambda *_: CLUSTER,
                   ray=lambda call: call.address)
    # a table
    bench.note("use.tables.Table._set_aside", begun_anew=lambda call: True)
    # a page
    server = SimpleNamespace(launch_instance=lambda argv, config: bench.seen["page"].append(
        (config.Voila.port, config.Voila.open_browser)))
    bench.note("use.server.make_server", lambda *_: server)
    bench.note("use.server.make_kernels", lambda *_: None)
    bench.monkeypatch.setenv("PICKNET_EXPLORE", "{}")  # as it was, when the test has ended
    bench.note("use.exploration.Library.__init__", videos=lambda call: name_of(call.folder),
               said=lambda call: name_of(call.captions))
    bench.note("use.server.use_module", used=lambda call: call.name)
    # data
    bench.note("data.backbones.load_backbone", backbone=lambda call: call.name,
               weights=lambda call: name_of(call.weights))
    bench.note("interface.python.load_backbone", backbone=lambda call: call.name,
               weights=lambda call: name_of(call.weights), device=lambda call: str(call.device))
    for home in ("data.datasets", "interface.python"):
        bench.note(
            f"{home}.prepare_videos", name=lambda call: call.name,
            files=lambda call: tuple(sorted(call.videos)), bars=lambda call: call.progress,
            captions=lambda call: sum(map(len, call.captions.values())),
            train=lambda call: tuple(
                list(call.captions)[clip] for clip in call.split(list(call.captions))["train"]),
            made_by=lambda call: call.cnn.name,
            min_word_count=lambda call: call.settings.min_word_count,
            max_words=lambda call: call.settings.max_words,
            glance=lambda call: call.settings.glance,
            glance_size=lambda call: call.settings.glance_size,
            vocabulary_from=lambda call: call.settings.vocabulary_from,
            extract=lambda call: getattr(call.extract, "func", call.extract).__name__,
            cluster=lambda call: getattr(call.extract, "keywords", {}).get("ray"))
    bench.note("data.datasets.extract_folder", out=lambda call: name_of(call.out))
    bench.note("data.extraction.decode_files", stop, decoders=lambda call: call.workers,
               frames=lambda call: call.shape.frames,
               pixels=lambda call: limit("PICKNET_FRAME_PIXELS"))
    bench.note("training.forecast.foresee_extraction", lambda *_: 0)
    bench.note("world.world.prepare_shapes",
               min_word_count=lambda call: call.settings.min_word_count)
    bench.note("world.world.make_shapes", stop, out=lambda call: Path(call.folder).parent.name,
               seed=lambda call: call.seed, clips=lambda call: call.train)
    bench.note("data.corpus.Corpus.to", moved=lambda call: str(call.device))
    # training
    for home in ("training.train", "interface.python", "measure.experiments"):
        bench.note(f"{home}.open_data", opened, data=lambda call: name_of(call.data),
                   preset=lambda call: call.scale, device=lambda call: str(call.device),
                   bars=lambda call: call.bars)
    for where in ("training.train.train", "interface.python.train_run"):
        bench.note(
            where, begun, folder=lambda call: name_of(call.folder),
            experiment=lambda call: call.recipe.label, bars=lambda call: call.bars,
            captioner=lambda call: call.config.captioner.architecture,
            hidden=lambda call: call.config.captioner.hidden,
            epochs=lambda call: call.config.training.supervision_epochs,
            reward=lambda call: call.config.policy.reward)
    bench.note("interface.train.announce", lambda *_: None)
    bench.note("interface.python.load_captioner", lambda *_, **__: None,
               device=lambda call: str(call.device), weights=lambda call: name_of(call.weights))
    # experiments
    bench.note("measure.experiments.Workers.open", workers=lambda call: call.number,
               modules=lambda call: tuple(call.modules), cluster=lambda call: call.ray)
    for home in ("reproduction", "frontier"):
        bench.note(
            f"measure.{home}.run_jobs", rows_of_jobs,
            experiments=of_jobs(lambda job: job.get("name")),
            seeds=of_jobs(lambda job: job["config"].training.seed),
            captioners=of_jobs(lambda job: job["config"].captioner.architecture),
            hidden=of_jobs(lambda job: job["config"].captioner.hidden),
            rewards=of_jobs(lambda job: job["config"].policy.reward),
            beams=of_jobs(lambda job: job.get("beams")),
            budgets=of_jobs(lambda job: job.get("budget")))
    for home in ("reproduction", "comparison"):
        bench.note(f"measure.{home}.print_forecast", lambda *_: None)
    for home in ("core.files", "measure.reproduction", "measure.comparison", "measure.frontier"):
        bench.note(f"{home}.data_folder", lambda: Path("data"))  # not that of a checkout
    for home in ("measure.reproduction", "measure.comparison", "measure.frontier",
                 "interface.python"):
        bench.note(f"{home}.check_scorers", lambda: None)
    scored = dict(scored=lambda call: True)
    bench.note("measure.reproduction.score_rows", lambda *_, **__: "", **scored)
    bench.note("measure.frontier.with_scores", lambda points, _: points, **scored)
    for name in ("tables.results_table", "comparison.captioners_table", "frontier.frontier_table",
                 "comparison.draw_captioners", "frontier.draw_frontier"):
        bench.note(f"measure.{name}", lambda *_, **__: "a table")
    bench.note("interface.reproduce.save_figure", lambda *_: None)
    # evaluation
    bench.note("training.models.load_run", model=lambda call: Path(call.folder).name)
    bench.note("interface.python.load_run", model=lambda call: Path(call.folder).name,
               device=lambda call: call.device)
    bench.note("interface.python.load_scorer", device=lambda call: call.device)
    bench.note("interface.python.measure_row", split=lambda call: call.split)
    bench.note("measure.experiments.caption_videos", beam=lambda call: call.beam,
               no_repeats=lambda call: call.no_repeats)
    bench.note("measure.experiments.frame_choice", picker=lambda call: call.picker.label,
               threshold=lambda call: call.picker.threshold)
    bench.note("measure.metrics.score",
               lambda captions, references, **_: Scores(
                   {"CIDEr": 0.5}, "quick", {"CIDEr": dict.fromkeys(references, 0.5)}), **scored,
               captions=lambda call: sorted(call.candidates),
               references=lambda call: sorted(call.references))


def name_of(path) -> str | None:
    "The name of a file or folder, which is the same in any place."
    return None if path is None else Path(path).name


# where it is used
# ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return noise_corpus(20)


@pytest.fixture(scope="module")
def there(tmp_path_factory, corpus) -> Iterator[dict]:
    "What commands are given, by the word that stands for it in PLACES and TABLE."
    folder = tmp_path_factory.mktemp("there")
    write_examples(folder/"videos", 2)
    film(folder/"third.mp4")
    (folder/"list.txt").write_text(f"{folder/'third.mp4'}\n")
    (folder/"weights.safetensors").write_bytes(b"read by nobody here")
    corpus.save(folder/"corpus")
    for name in ("more", "most"):
        other = replace(corpus, ids=[f"{name} {each}" for each in corpus.ids], name=name)
        other.save(folder/name)
    clips = {"one": ["a dog runs", "a dog"], "two": ["a cat sits"], "gone": ["a bird"]}
    for name, content in {
        "captions": clips, "others": {**clips, "gone": ["a bird", "one bird"]},
        "splits": {"train": ["one"], "validation": ["two"], "test": ["gone"]},
        "turned": {"train": ["two"], "validation": ["one"], "test": ["gone"]},
        "msrvtt": msrvtt(clips), "more_msrvtt": msrvtt({"more": ["a bird", "one bird"]}),
        "said": {"a": "a dog", "b": "a cat"}, "one_said": {"a": "a dog"},
        "people": {"a": ["a dog"], "b": ["a cat"]},
        "strangers": {"a": ["a dog"], "b": ["a cat"], "c": ["a bird"]},
    }.items():
        (folder/f"{name}.json").write_text(json.dumps(content))
    (folder/"mapping.txt").write_text("one vid1\ntwo vid1201\ngone vid1301\n")
    (folder/"turned.txt").write_text("two vid1\none vid1201\ngone vid1301\n")
    for name in ("clips", "more_clips", "pictures", "more_pictures"): (folder/name).mkdir()
    for name in clips:
        for home in ["more_", ""][: 1 if name == "gone" else 2]:
            film(folder/f"{home}clips"/f"{name}.mp4", total=3)
            Image.new("RGB", (64, 64)).save(folder/f"{home}pictures"/f"{name}.png")
    for name, kept in (("features", clips), ("half", ["one", "two"])):
        np.savez(folder/f"{name}.npz", **{each: np.ones((30, 4), np.float32) for each in kept})
    np.savez(folder/"glances.npz", **{each: np.ones((30, 9), np.uint8) for each in clips})
    (folder/"card.md").write_text("# What it can do\n")
    (folder/"mine.py").write_text("MARK = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, "colours", colours)
        for name in ("run", "other"): store_run(folder/name, folder/"videos", cnn="colours")
        for name in ("noise", "second"): noise_run(folder/name, corpus)
        begun = {"data": str(folder/"corpus"), "scale": "smoke"}
        for name in ("begun", "again"):
            noise_run(folder/name, replace(corpus, details={"opened": begun}))

        @PICKERS.add("every", causal=True, looks_at="glances", random=False)
        def every():
            return lambda clips: torch.ones(clips.glances.shape[:2], dtype=torch.bool)

        @PICKERS.add("first", causal=True, looks_at="glances", random=False, number=int,
                     exact=True)
        def first(number):
            return lambda clips: (torch.arange(clips.glances.shape[1]) < number).expand(
                clips.glances.shape[:2])

        for name in ("every", "first"): patch.setitem(PICKERS, name, PICKERS.pop(name))
        WITHOUT.clear()
        yield {
            **{path.name.upper().replace(".", "_"): str(path) for path in folder.iterdir()},
            "VIDEO": str(folder/"videos"/"example.mp4"), "CLIP": str(folder/"third.mp4"),
            "FEWER": noise_corpus(12),
            "MARKED": replace(corpus, details={**corpus.details, "weights": "others 0123"}),
        }


def msrvtt(captions: dict[str, list[str]]) -> dict:
    "Annotations in the layout of MSR-VTT; the first clip is for training."
    splits = dict(zip(captions, ("train", "validate", "test")))
    return {
        "videos": [{"video_id": clip, "split": split} for clip, split in splits.items()],
        "sentences": [{"video_id": clip, "caption": text}
                      for clip, texts in captions.items() for text in texts],
    }


def noise_run(folder: Path, corpus: Corpus) -> Path:
    "A run on noise that was never trained."
    recipe = recipes()["PickNet (V+L)"]
    config = replace(recipe.settings(preset("smoke")), clip=corpus.settings)
    torch.manual_seed(0)
    model = Model.for_corpus(config, corpus)
    open_run(folder, corpus, config, recipe)
    save_weights(model.state_dict(), folder/"weights.safetensors")
    return folder


@pytest.fixture
def bench(monkeypatch, tmp_path, there, corpus) -> Iterator[Bench]:
    made = Bench(monkeypatch, tmp_path, there)
    take_notes(made, corpus)
    modules, used = dict(MODULES), list(USED)
    monkeypatch.setattr(sys, "path", [str(Path(there["MINE_PY"]).parent), *sys.path])
    yield made
    MODULES.clear(), MODULES.update(modules)
    USED[:] = used


TABLE_HERE = "--data CORPUS --preset smoke --folder made --no-scores"
VIDEOS_HERE = "--videos CLIPS --out made --backbone tiny"
PLACES: dict[str, dict[str, str | dict]] = {
    "picknet": {"": "info"},
    "caption": {
        "file": "VIDEO --model RUN",
        "folder": "VIDEOS --model RUN",
        "subtitles": "VIDEOS --model RUN --out {}.srt",
        "table": "VIDEOS --model RUN --out rows.jsonl",
        "ray": "VIDEOS --model RUN --out rows.jsonl --ray local",
    },
    "stream": {"": "VIDEO --model RUN"},
    "explore": {"": "--model RUN --videos VIDEOS --no-browser"},
    "models": {"": ""},
    "info": {"": ""},
    "export": {"": "NOISE made"},
    "score": {"": "SAID_JSON --references PEOPLE_JSON"},
    "evaluate": {
        "corpus": "--model NOISE --data CORPUS --no-scores",
        "shapes": "--model NOISE --data shapes --no-scores",
    },
    "train": {"new": "made --data CORPUS --preset smoke", "begun": "BEGUN --resume"},
    "reproduce": {
        "here": f"{TABLE_HERE} --experiment Baseline",
        "ray": f"{TABLE_HERE} --experiment Baseline --ray local",
    },
    "compare": {"": f"{TABLE_HERE} --captioner paper"},
    "frontier": {"": f"{TABLE_HERE} --budget 2"},
    "prepare shapes": {"": "--preset smoke --out made"},
    **{
        f"prepare {kind}": {"here": words, "ray": f"{words} --ray local"}
        for kind, words in {
            "videos": f"--captions CAPTIONS_JSON --splits SPLITS_JSON {VIDEOS_HERE}",
            "msvd": f"--annotations CAPTIONS_JSON --splits MAPPING_TXT {VIDEOS_HERE}",
            "msrvtt": f"--annotations MSRVTT_JSON {VIDEOS_HERE}",
            "pictures": "--annotations CAPTIONS_JSON --splits SPLITS_JSON --videos PICTURES "
                        "--out made --backbone tiny",
        }.items()
    },
    "prepare features": {
        "": "--features FEATURES_NPZ --captions CAPTIONS_JSON --splits SPLITS_JSON --out made"},
    "prepare join": {"": "CORPUS MORE --out made"},
    "pn.load": {"": dict(model="RUN")},
    "pn.caption": {"": dict(path="VIDEO", model="RUN")},
    "pn.caption_many": {
        "here": dict(paths=["VIDEO"], model="RUN"),
        "ray": dict(paths=["VIDEO"], model="RUN", ray="local"),
    },
    "pn.prepare": {
        place: dict(videos="CLIPS", captions="CAPTIONS_JSON", splits="SPLITS_JSON", out="made",
                    cnn="tiny", bars=False, **more)
        for place, more in {"here": {}, "ray": {"ray": "local"}}.items()
    },
    "pn.train": {
        "new": dict(folder="made", data="CORPUS", preset="smoke", bars=False),
        "begun": dict(folder="BEGUN", data="CORPUS", preset="smoke", bars=False),
    },
    "pn.evaluate": {
        place: dict(model="NOISE", data=data, scores=False, bars=False)
        for place, data in {"corpus": "CORPUS", "shapes": "shapes"}.items()
    },
    "pn.reproduce": {
        place: dict(data="CORPUS", preset="smoke", experiment="Baseline", folder="made",
                    scores=False, bars=False, **more)
        for place, more in {"here": {}, "ray": {"ray": "local"}}.items()
    },
}


# the table
# ------------------------------------------------------------------------------------------


def few(words, clips, features, picks): return -picks.sum(1).float()


def imports_a_module(bench: Bench) -> None:
    assert bench.run("picknet", "--use mine info").error is None and USED[-1] == "mine"
    for command in ("reproduce", "compare", "frontier"):  # and so do their workers
        place = next(iter(PLACES[command].values()))
        found = bench.run("picknet", f"--use mine {command} {place}")
        assert found.error is None and found.facts["modules"] == [("mine",)]
    for command, place in ("caption", "table"), ("caption", "ray"), ("explore", ""):
        found = bench.run("picknet", f"--use mine {command} {PLACES[command][place]}")
        assert found.error is None and "mine" in found.facts["used"]


def prints_the_version(bench: Bench) -> None:
    assert pn.__version__ in bench.run("picknet", "--version").printed


def usual(given: str | dict, file: str, rest: str | dict, places: str = "") -> Acts:
    "An option that names the folder of results where none is given; small is the usual preset."
    if "preset" not in str(given): given = f"{given} --preset smoke"
    return Acts(joint(given, rest), "written", f"data/runs/{file}", places, alone=True)


ROW, ONE, FEW = (f"--no-scores {each}" for each in (
    "--experiment Baseline", "--captioner paper", "--budget 2"))
OURS = dict(experiment="Baseline", scores=False, bars=False)
WEIGHTS = "--weights WEIGHTS_SAFETENSORS"
MINE = "weights.safetensors"
HAVING_WEIGHTS = dict(weights="WEIGHTS_SAFETENSORS")
TWO_CAPTIONERS = "the setting `architecture` is given twice"
ANOTHER_RUN = "holds another run"
OTHER_WEIGHTS = "is not what the features of"
NO_POLICY = "picks without a policy"
DECIDES = "itself decides how many frames it picks"
OTHER_DEVICE = dict(device="cpu:0")  # which is there everywhere, by another name
NO_DEVICE = "take the device that they have: leave out `device`"
TABLE = {
    "picknet --version": prints_the_version,
    "picknet --use": imports_a_module,
    # caption
    "caption videos": Acts("CLIP", "sources", "third.mp4"),
    "caption --model": Acts("--model OTHER", "model", "other"),
    "caption --out": [
        Acts("--out picks.png", "written", "picks.png", "file"),
        Acts("--out {}.png", "written", "example.png", "folder"),
        Acts("--out {}.vtt", "written", "example.vtt", "subtitles"),
        Acts("VIDEO --model RUN --out t.parquet", "written", "t.parquet", "table", alone=True),
        Fails("--out more.jsonl", "give one --out", "table ray"),
    ],
    "caption --picker": Acts("--picker uniform-3", "picker", "uniform-3"),
    "caption --threshold": [
        Acts("--threshold 0.01", "threshold", 0.01),
        Fails("--threshold 0.01 --picker uniform-3", NO_POLICY)],
    "caption --beam": Acts("--beam 4", "beam", 4),
    "caption --frames": [
        Acts("--frames 4 --picker uniform-3", "picker", "uniform-4"),
        Fails("--frames 4", DECIDES)],
    "caption --best": [
        Acts("--best 2", "best", 2, "file folder"),
        Fails("--best 2", "nor with --best", "subtitles"),
        Fails("--best 2", "one sentence per video", "table ray")],
    "caption --weights": Acts(WEIGHTS, "weights", MINE),
    "caption --list": Acts("--list LIST_TXT", "sources", "third.mp4"),
    "caption --ray": [
        Acts("--ray local", "ray", "local", "table"),
        Fails("--ray local", "--ray needs an --out", "file folder subtitles")],
    "caption --again": [
        Acts("--again", "begun_anew", True, "table ray"),
        Fails("--again", "--again needs an --out", "file folder subtitles")],
    "caption --json": Acts("--json", "json", True),
    # stream
    "stream source": Acts("CLIP --model RUN", "sources", "third.mp4", alone=True),
    "stream --model": Acts("--model OTHER", "model", "other"),
    "stream --picker": [
        Acts("--picker every", "picker", "every"),
        Fails("--picker uniform-3", "a stream has no end")],
    "stream --frames": [
        Acts("--frames 4 --picker first-3", "picker", "first-4"),
        Fails("--frames 4", DECIDES),
        Fails("--frames 4 --picker uniform-3", "a stream has no end")],
    "stream --rate": Acts("--rate 2", "rate", 2.0),
    "stream --threshold": [
        Acts("--threshold 0.01", "threshold", 0.01),
        Fails("--threshold 0.01 --picker every", NO_POLICY)],
    "stream --window": Acts("--window 3", "window", 3),
    "stream --forget": Acts("--no-forget", "forget", False),
    "stream --weights": Acts(WEIGHTS, "weights", MINE),
    "stream --json": Acts("--json", "json", True),
    # explore
    "explore --model": Acts("--model OTHER", "model", "other"),
    "explore --videos": Acts("--videos CLIPS", "videos", "clips"),
    "explore --captions": Acts("--captions CAPTIONS_JSON", "said", "captions.json"),
    "explore --port": Acts("--port 9000", "page", (9000, False)),
    "explore --browser": Acts("--browser", "page", (8866, True)),
    "explore --weights": Acts(WEIGHTS, "weights", MINE),
    # models, info, export
    "models name": Prints("shapes", "## "),
    "models --json": Acts("--json", "json", True),
    "info --settings": Prints("--settings", "supervision_epochs"),
    "info --json": Acts("--json", "json", True),
    "export run": Acts("SECOND made", "model", "second", alone=True),
    "export out": Acts("NOISE other", "written", "other/weights.safetensors", alone=True),
    "export --beam": Acts("--beam 4", "beam", 4),
    "export --no-repeats": Acts("--no-repeats", "no_repeats", True),
    "export --threshold": Acts("--threshold 0.01", "threshold", 0.01),
    "export --card": Acts("--card CARD_MD", "card", "# What it can do\n"),
    # score, evaluate
    "score captions": Acts(
        "ONE_SAID_JSON --references PEOPLE_JSON", "captions", ["a"], alone=True),
    "score --references": Acts("--references STRANGERS_JSON", "references", ["a", "b", "c"]),
    "score --json": Acts("--json", "json", True),
    "evaluate --model": Acts("--model SECOND", "model", "second"),
    "evaluate --data": Acts("--data MORE", "data", "more"),
    "evaluate --preset": [
        Acts("--preset paper", "preset", "paper", "shapes"),
        Fails("--preset paper", "(--preset) is for the toy world", "corpus")],
    "evaluate --split": Acts("--split validation", "split", "validation"),
    "evaluate --beam": Acts("--beam 4", "beam", 4),
    "evaluate --no-repeats": Acts("--no-repeats", "no_repeats", True),
    "evaluate --threshold": [
        Acts("--threshold 0.01", "threshold", 0.01),
        Fails("--threshold 0.01 --picker uniform-3", NO_POLICY)],
    "evaluate --frames": [
        Acts("--frames 4 --picker uniform-3", "picker", "uniform-4"),
        Fails("--frames 4", DECIDES)],
    "evaluate --eye": Fails("--eye MORE", "picks without an eye"),
    "evaluate --picker": Acts("--picker uniform-3", "picker", "uniform-3"),
    "evaluate --out": Acts("--out said.json", "written", "said.json"),
    "evaluate --scores": Acts("--scores", "scored", True),
    "evaluate --json": Acts("--json", "json", True),
    # train
    "train folder": [
        Acts("other --data CORPUS --preset smoke", "folder", "other", "new", alone=True),
        Acts("AGAIN --resume", "folder", "again", "begun", alone=True)],
    "train --data": [
        Acts("--data MORE", "data", "more", "new"),
        Fails("--data MORE", "was started with --data", "begun")],
    "train --preset": [
        Acts("--preset small", "preset", "small", "new"),
        Fails("--preset small", "was started with --preset", "begun")],
    "train --experiment": [
        Acts("--experiment Uniform", "experiment", "uniform-6", "new"),
        Fails("--experiment Uniform", "was started with", "begun")],
    "train --picker": [
        Acts("--picker uniform-4", "experiment", "uniform-4", "new"),
        Fails("--picker uniform-4 --experiment Uniform", "give one of them", "new"),
        Fails("--picker uniform-4", "was started with --picker", "begun")],
    "train --picks": [
        Acts("--experiment Uniform --picks 3", "experiment", "uniform-3", "new"),
        Fails("--picks 3", "--picks is for"),
        Fails("--picker uniform-4 --picks 3", "give one of them")],
    "train --captioner": [
        Acts("--captioner ta", "captioner", "ta", "new"),
        Fails("--captioner ta --set architecture=paper", TWO_CAPTIONERS),
        Fails("--captioner ta", "architecture", "begun")],
    "train --set": [
        Acts("--set hidden=24", "hidden", 24, "new"),
        Acts("--set supervision_epochs=9", "epochs", 9, "begun"),
        Fails("--set hidden=24", "hidden", "begun")],
    "train --resume": [
        Fails("--resume", "contains no run to resume", "new"),
        Fails("BEGUN", "contains a run already", "begun", alone=True)],
    # reproduce, compare, frontier
    "reproduce --data": [Acts("--data MORE", "data", "more"),
                         usual("--data MORE", "more-smoke/results.json", ROW, "here")],
    "reproduce --preset": [Acts("--preset small", "preset", "small"),
                           usual("--preset smoke", "shapes-smoke/results.json", ROW, "here")],
    "reproduce --experiment": Acts(
        "--experiment Uniform", "experiments", ("Baseline", "Uniform")),
    "reproduce --seeds": Acts("--seeds 2", "seeds", (0, 1)),
    "reproduce --folder": Acts("--folder other", "written", "other/results.json"),
    "reproduce --captioner": [
        Acts("--captioner ta", "captioners", ("ta",)),
        usual("--captioner ta", "shapes-smoke-ta/results.json", ROW, "here"),
        Fails("--captioner ta --set architecture=paper", TWO_CAPTIONERS)],
    "reproduce --set": Acts("--set hidden=24", "hidden", (24,)),
    "reproduce --beam": Acts("--beam 4", "beams", ((4,),)),
    "reproduce --scores": Acts("--scores", "scored", True),
    "reproduce --workers": [
        Acts("--workers 5", "workers", 5, "here"),
        Fails("--workers 5", "--workers is for this machine", "ray")],
    "reproduce --ray": Acts("--ray local", "cluster", "local"),
    "reproduce --json": Acts("--json", "json", True),
    "compare --data": [Acts("--data MORE", "data", "more"),
                       usual("--data MORE", "more-smoke-captioners/captioners.json", ONE)],
    "compare --preset": [
        Acts("--preset small", "preset", "small"),
        usual("--preset smoke", "shapes-smoke-captioners/captioners.json", ONE)],
    "compare --captioner": Acts("--captioner ta", "captioners", ("paper", "ta")),
    "compare --seeds": Acts("--seeds 2", "seeds", (0, 1)),
    "compare --folder": Acts("--folder other", "written", "other/captioners.json"),
    "compare --set": [
        Acts("--set hidden=24", "hidden", (24,)),
        Fails("--set architecture=ta", "name the captioners to compare")],
    "compare --beam": Acts("--beam 4", "beams", ((4,),)),
    "compare --scores": Acts("--scores", "scored", True),
    "compare --workers": Acts("--workers 5", "workers", 5),
    "compare --json": Acts("--json", "json", True),
    "frontier --data": [Acts("--data MORE", "data", "more"),
                        usual("--data MORE", "more-smoke-frontier/frontier.json", FEW)],
    "frontier --preset": [Acts("--preset small", "preset", "small"),
                          usual("--preset smoke", "shapes-smoke-frontier/frontier.json", FEW)],
    "frontier --budget": Acts("--budget 4", "budgets", (2, 4, 30)),
    "frontier --seeds": Acts("--seeds 2", "seeds", (0, 1)),
    "frontier --folder": Acts("--folder other", "written", "other/frontier.json"),
    "frontier --set": Acts("--set hidden=24", "hidden", (24,)),
    "frontier --scores": Acts("--scores", "scored", True),
    "frontier --workers": Acts("--workers 5", "workers", 5),
    "frontier --json": Acts("--json", "json", True),
    # prepare
    "prepare shapes --preset": [Acts("--preset small", "clips", 600),
                                Acts("--preset smoke", "out", "shapes-smoke", alone=True)],
    "prepare shapes --out": Acts("--out other", "out", "other"),
    "prepare shapes --seed": Acts("--seed 3", "seed", 3),
    "prepare shapes --set": Acts("--set min_word_count=2", "min_word_count", 2),
    "prepare videos --captions": Acts("--captions OTHERS_JSON", "captions", 5),
    "prepare videos --videos": Acts("--videos MORE_CLIPS", "files", ("gone", "one", "two")),
    "prepare videos --out": Acts("--out other", "out", "other"),
    "prepare videos --splits": Acts("--splits TURNED_JSON", "train", ("two",)),
    "prepare videos --name": Acts("--name mine", "name", "mine"),
    "prepare videos --backbone": Acts("--backbone colours", "backbone", "colours"),
    "prepare videos --weights": Acts(f"--backbone colours {WEIGHTS}", "weights", MINE),
    "prepare videos --workers": [
        Acts("--workers 5", "decoders", 5, "here"), Acts("--workers 5", "workers", 5, "ray")],
    "prepare videos --ray": Acts("--ray local", "cluster", "local"),
    "prepare videos --set": [
        Acts("--set frames=12", "frames", 12),
        Acts("--set min_word_count=2", "min_word_count", 2)],
    "prepare msvd --annotations": Acts(
        f"--annotations OTHERS_JSON --splits MAPPING_TXT {VIDEOS_HERE}", "captions", 5,
        alone=True),
    "prepare msvd --splits": Acts("--splits TURNED_TXT", "train", ("two",)),
    "prepare msrvtt --annotations": Acts("--annotations MORE_MSRVTT_JSON", "captions", 6),
    "prepare msrvtt --splits": Fails("--splits SPLITS_JSON", "is not read from"),
    "prepare pictures --annotations": Acts("--annotations OTHERS_JSON", "captions", 9),
    "prepare pictures --splits": Acts("--splits TURNED_JSON", "train", ("two",)),
    **{
        f"prepare {kind} {option}": row
        for kind in ("msvd", "msrvtt", "pictures")
        for option, row in {
            "--videos": Acts(f"--videos MORE_{'PICTURES' if kind == 'pictures' else 'CLIPS'}",
                             "files", ("gone", "one", "two")),
            "--out": Acts("--out other", "out", "other"),
            "--backbone": Acts("--backbone colours", "backbone", "colours"),
            "--weights": Acts(f"--backbone colours {WEIGHTS}", "weights", MINE),
            "--workers": [Acts("--workers 5", "decoders", 5, "here"),
                          Acts("--workers 5", "workers", 5, "ray")],
            "--ray": Acts("--ray local", "cluster", "local"),
            "--set": [Acts("--set frames=12", "frames", 12),
                      Acts("--set min_word_count=2", "min_word_count", 2)],
        }.items()
    },
    "prepare features --features": Acts(
        "--features HALF_NPZ --captions CAPTIONS_JSON --splits SPLITS_JSON --out made",
        "files", ("one", "two"), alone=True),
    "prepare features --captions": Acts("--captions OTHERS_JSON", "captions", 5),
    "prepare features --splits": Acts("--splits TURNED_JSON", "train", ("two",)),
    "prepare features --out": Acts("--out other", "written", "other/corpus.json"),
    "prepare features --glances": Acts("--glances GLANCES_NPZ", "glance", "grey"),
    "prepare features --name": Acts("--name mine", "name", "mine"),
    "prepare features --backbone": Acts("--backbone colours", "backbone", "colours"),
    "prepare features --set": Acts("--set min_word_count=2", "min_word_count", 2),
    "prepare join corpora": Acts("CORPUS MORE MOST --out made", "captions", 300, alone=True),
    "prepare join --out": Acts("--out other", "written", "other/corpus.json"),
    "prepare join --name": Acts("--name mine", "name", "mine"),
    "prepare join --more-training": Acts(
        "--more-training", "test", tuple(f"video{number}" for number in range(16, 20))),
    "prepare join --set": Acts("--set min_word_count=2", "min_word_count", 2),
    # Python
    "pn.load model": Acts(dict(model="OTHER"), "model", "other"),
    "pn.load device": Acts(OTHER_DEVICE, "device", "cpu:0"),
    "pn.load picker": Acts(dict(picker="uniform-3"), "picker", "uniform-3"),
    "pn.load frames": Acts(dict(frames=4, picker="uniform-3"), "picker", "uniform-4"),
    "pn.load weights": Acts(HAVING_WEIGHTS, "weights", MINE),
    "pn.caption path": Acts(dict(path="CLIP"), "sources", "third.mp4"),
    "pn.caption model": Acts(dict(model="OTHER"), "model", "other"),
    "pn.caption picker": Acts(dict(picker="uniform-3"), "picker", "uniform-3"),
    "pn.caption beam": Acts(dict(beam=4), "beam", 4),
    "pn.caption best": Acts(dict(best=2), "best", 2),
    "pn.caption threshold": [
        Acts(dict(threshold=0.01), "threshold", 0.01),
        Fails(dict(threshold=0.01, picker="uniform-3"), NO_POLICY)],
    "pn.caption running": Acts(dict(running=False), "running", False),
    "pn.caption frames": [
        Acts(dict(frames=4, picker="uniform-3"), "picker", "uniform-4"),
        Fails(dict(frames=4), DECIDES)],
    "pn.caption device": Acts(OTHER_DEVICE, "device", "cpu:0"),
    "pn.caption weights": Acts(HAVING_WEIGHTS, "weights", MINE),
    "pn.caption_many paths": Acts(dict(paths=["CLIP"]), "sources", "third.mp4"),
    "pn.caption_many model": Acts(dict(model="OTHER"), "model", "other"),
    "pn.caption_many picker": [
        Acts(dict(picker="uniform-3"), "picker", "uniform-3"),
        Fails(dict(picker=lambda clips: clips.valid), "other processes cannot find", "ray")],
    "pn.caption_many beam": Acts(dict(beam=4), "beam", 4),
    "pn.caption_many threshold": [
        Acts(dict(threshold=0.01), "threshold", 0.01),
        Fails(dict(threshold=0.01, picker="uniform-3"), NO_POLICY)],
    "pn.caption_many frames": [
        Acts(dict(frames=4, picker="uniform-3"), "picker", "uniform-4"),
        Fails(dict(frames=4), DECIDES)],
    "pn.caption_many device": [
        Acts(OTHER_DEVICE, "device", "cpu:0", "here"),
        Fails(dict(device="cpu"), NO_DEVICE, "ray")],
    "pn.caption_many weights": Acts(HAVING_WEIGHTS, "weights", MINE),
    "pn.caption_many ray": Acts(dict(ray="local"), "ray", "local"),
    "pn.caption_many workers": [
        Acts(dict(workers=5), "workers", 5, "ray"),
        Fails(dict(workers=5), "`workers` are those of a cluster", "here")],
    "pn.prepare videos": Acts(dict(videos="MORE_CLIPS"), "files", ("gone", "one", "two")),
    "pn.prepare captions": Acts(dict(captions="OTHERS_JSON"), "captions", 5),
    "pn.prepare out": Acts(dict(out="other"), "out", "other"),
    "pn.prepare cnn": Acts(dict(cnn="colours"), "made_by", "colours"),
    "pn.prepare splits": Acts(dict(splits="TURNED_JSON"), "train", ("two",)),
    "pn.prepare name": Acts(dict(name="mine"), "name", "mine"),
    "pn.prepare device": [
        Acts(OTHER_DEVICE, "device", "cpu:0", "here"),
        Fails(dict(cnn=colours(), device="cpu"), "leave out `weights` and `device`", "here"),
        Fails(dict(device="cpu"), NO_DEVICE, "ray")],
    "pn.prepare weights": [
        Acts(dict(cnn="colours", **HAVING_WEIGHTS), "weights", MINE),
        Fails(dict(cnn=colours(), **HAVING_WEIGHTS), "leave out `weights` and `device`")],
    "pn.prepare workers": [
        Acts(dict(workers=5), "decoders", 5, "here"), Acts(dict(workers=5), "workers", 5, "ray")],
    "pn.prepare bars": Acts(dict(bars=True), "bars", True),
    "pn.prepare ray": Acts(dict(ray="local"), "cluster", "local"),
    "pn.prepare frames": Acts(dict(frames=12), "frames", 12),
    "pn.prepare glance": Acts(dict(glance="feature"), "glance", "feature"),
    "pn.prepare glance_size": Acts(dict(glance_size=28), "glance_size", 28),
    "pn.prepare min_word_count": Acts(dict(min_word_count=2), "min_word_count", 2),
    "pn.prepare vocabulary_from": Acts(dict(vocabulary_from="all"), "vocabulary_from", "all"),
    "pn.prepare max_words": Acts(dict(max_words=9), "max_words", 9),
    "pn.train folder": Acts(dict(folder="other"), "folder", "other"),
    "pn.train data": [
        Acts(dict(data="MORE"), "data", "more", "new"),
        Fails(dict(data="FEWER"), ANOTHER_RUN, "begun")],
    "pn.train preset": [
        Acts(dict(preset="small"), "preset", "small", "new"),
        Fails(dict(preset="small"), ANOTHER_RUN, "begun")],
    "pn.train experiment": [
        Acts(dict(experiment="Uniform"), "experiment", "uniform-6", "new"),
        Fails(dict(experiment="Uniform"), ANOTHER_RUN, "begun")],
    "pn.train picker": [
        Acts(dict(picker="uniform-4"), "experiment", "uniform-4", "new"),
        Fails(dict(picker="uniform-4", experiment="Uniform"), "give one of them"),
        Fails(dict(picker="uniform-4"), ANOTHER_RUN, "begun")],
    "pn.train captioner": [
        Acts(dict(captioner="ta"), "captioner", "ta", "new"),
        Fails(dict(captioner="ta", architecture="paper"), TWO_CAPTIONERS),
        Fails(dict(captioner="ta"), "architecture", "begun")],
    "pn.train reward": [
        Acts(dict(reward=few), "reward", f"{__name__}:few", "new"),
        Fails(dict(reward=few), "reward", "begun")],
    "pn.train device": [
        Acts(OTHER_DEVICE, "device", "cpu:0"),
        Acts(dict(data="FEWER", **OTHER_DEVICE), "moved", "cpu:0", "new")],
    "pn.train weights": [
        Acts(HAVING_WEIGHTS, "weights", MINE),
        Fails(dict(data="MARKED", **HAVING_WEIGHTS), OTHER_WEIGHTS)],
    "pn.train bars": Acts(dict(bars=True), "bars", True),
    "pn.train **settings": [
        Acts(dict(hidden=24), "hidden", 24, "new"),
        Acts(dict(folder="AGAIN", supervision_epochs=9), "epochs", 9, "begun"),
        Fails(dict(hidden=24), "hidden", "begun")],
    "pn.evaluate model": Acts(dict(model="SECOND"), "model", "second"),
    "pn.evaluate data": Acts(dict(data="MORE"), "data", "more"),
    "pn.evaluate split": Acts(dict(split="validation"), "split", "validation"),
    "pn.evaluate preset": [
        Acts(dict(preset="paper"), "preset", "paper", "shapes"),
        Fails(dict(preset="paper"), "is for the toy world", "corpus")],
    "pn.evaluate beam": Acts(dict(beam=4), "beam", 4),
    "pn.evaluate no_repeats": Acts(dict(no_repeats=True), "no_repeats", True),
    "pn.evaluate threshold": [
        Acts(dict(threshold=0.01), "threshold", 0.01),
        Fails(dict(threshold=0.01, picker="uniform-3"), NO_POLICY)],
    "pn.evaluate picker": Acts(dict(picker="uniform-3"), "picker", "uniform-3"),
    "pn.evaluate frames": [
        Acts(dict(frames=4, picker="uniform-3"), "picker", "uniform-4"),
        Fails(dict(frames=4), DECIDES)],
    "pn.evaluate eye": Fails(dict(eye="MORE"), "picks without an eye"),
    "pn.evaluate scores": Acts(dict(scores=True), "scored", True),
    "pn.evaluate device": [
        Acts(OTHER_DEVICE, "device", "cpu:0"),
        Acts(dict(data="FEWER", **OTHER_DEVICE), "moved", "cpu:0", "corpus")],
    "pn.evaluate weights": [
        Fails(dict(data="MARKED", **HAVING_WEIGHTS), OTHER_WEIGHTS),
        Fails(HAVING_WEIGHTS, "cannot be checked: leave out `weights`")],
    "pn.evaluate bars": Acts(dict(bars=True), "bars", True),
    "pn.reproduce data": [
        Acts(dict(data="MORE"), "data", "more"),
        usual(dict(data="MORE", preset="smoke"), "more-smoke/results.json", OURS, "here")],
    "pn.reproduce preset": [
        Acts(dict(preset="small"), "preset", "small"),
        usual(dict(preset="smoke"), "shapes-smoke/results.json", OURS, "here")],
    "pn.reproduce experiment": [
        Acts(dict(experiment="Uniform"), "experiments", ("Uniform",)),
        Acts(dict(experiment=["Uniform", "Random"]), "experiments", ("Uniform", "Random"))],
    "pn.reproduce seeds": Acts(dict(seeds=2), "seeds", (0, 1)),
    "pn.reproduce folder": Acts(dict(folder="other"), "written", "other/results.json"),
    "pn.reproduce captioner": [
        Acts(dict(captioner="ta"), "captioners", ("ta",)),
        Fails(dict(captioner="ta", architecture="paper"), TWO_CAPTIONERS),
        Fails(dict(captioner=type("Mine", (), {})), "other processes cannot find", "ray")],
    "pn.reproduce reward": [
        Acts(dict(reward=few), "rewards", (f"{__name__}:few",)),
        Fails(dict(reward=lambda *_: 0), "other processes cannot find", "ray")],
    "pn.reproduce beams": Acts(dict(beams=(4,)), "beams", ((4,),)),
    "pn.reproduce scores": Acts(dict(scores=True), "scored", True),
    "pn.reproduce device": [
        Acts(OTHER_DEVICE, "device", "cpu:0", "here"),
        Fails(dict(device="cpu"), NO_DEVICE, "ray")],
    "pn.reproduce workers": [
        Acts(dict(workers=5), "workers", 5, "here"),
        Fails(dict(workers=5), "give `ray` or `workers`", "ray")],
    "pn.reproduce bars": Acts(dict(bars=True), "bars", True),
    "pn.reproduce ray": Acts(dict(ray="local"), "cluster", "local"),
    "pn.reproduce **settings": Acts(dict(hidden=24), "hidden", (24,)),
}


def checks_of(row) -> list: return row if isinstance(row, list) else [row]


def places_of(name: str, check) -> list[str]:
    "The places that a check is for: those that it names, else all that do not have it already."
    places = PLACES[name.rpartition(" ")[0]]
    return check.places.split() or [
        place for place, usual in places.items() if joint(usual, check.given) != usual and not (
            isinstance(usual, str) and f" {check.given} " in f" {usual} ")]


def test_every_option_has_a_row_and_every_row_an_option():
    assert len(set(DECLARED)) == len(DECLARED)
    assert not set(DECLARED) - set(TABLE), "without a row"
    assert not set(TABLE) - set(DECLARED), "without an option"


def test_a_row_leaves_out_no_place():
    "Each place is shown, unless what is used there has the option already."
    missing = {}
    for name, row in TABLE.items():
        command, _, option = name.rpartition(" ")
        has = lambda usual: option in (usual if isinstance(usual, dict) else usual.split())
        wanted = {place for place, usual in PLACES[command].items() if not has(usual)}
        if not inspect.isfunction(row):
            shown = {place for check in checks_of(row) for place in places_of(name, check)}
            missing |= {name: wanted - shown} if wanted - shown else {}
    assert missing == {}


@pytest.mark.parametrize("name", TABLE)
def test_an_option_acts_wherever_it_is_accepted(name, bench):
    if inspect.isfunction(TABLE[name]):
        return TABLE[name](bench)
    for check in checks_of(TABLE[name]):
        for place in places_of(name, check):
            check(bench, name.rpartition(" ")[0], place)


@pytest.mark.parametrize("command", ("caption", "pn.caption_many", "prepare videos", "pn.prepare"))
def test_limits_hold_on_a_cluster(command, bench, monkeypatch):
    monkeypatch.setenv("PICKNET_FRAME_PIXELS", "12345")
    found = bench.run(command, PLACES[command]["ray"])
    assert found.error is None and set(found.facts["pixels"]) == {12345}


@pytest.mark.parametrize("command", (
    "prepare videos", "prepare msvd", "prepare msrvtt", "prepare pictures", "pn.prepare"))
def test_what_an_eye_sees_is_prepared_with_the_same_options(command, bench, monkeypatch):
    "Of all that is asked for, folder, backbone and its weights alone differ."
    for home in ("training.cards", "interface.python"):
        monkeypatch.setattr(f"picknet_nb.{home}.eye_beside", lambda backbone: "colours")
    prepared = dict(
        made=lambda call: (str(call.out), call.cnn.name),
        alike=lambda call: (
            call.name, call.videos, call.captions, call.source, call.settings, call.workers,
            call.progress, getattr(call.extract, "func", call.extract),
            getattr(call.extract, "keywords", None),
            {part: clips.tolist() for part, clips in call.split(list(call.captions)).items()}))
    for home in ("data.datasets", "interface.python"):
        bench.note(f"{home}.prepare_videos", lambda *_, **__: Prepared(None, {}, []), **prepared)
    for place, usual in PLACES[command].items():
        options = "--workers 5 --set frames=12 --set min_word_count=2"
        if command.startswith("pn."):
            options = dict(workers=5, frames=12, min_word_count=2)
            options |= OTHER_DEVICE if place == "here" else {}
        done = bench.run(command, joint(usual, options))
        assert done.error is None and done.facts["made"] == [
            ("made", "tiny"), (f"made/{EYES}/colours", "colours")], (done.error, done.facts)
        one, other = done.facts["alike"]
        assert one == other and len(set(done.facts.get("device", "-"))) == 1


def test_of_pictures_an_eye_sees_nothing(bench, monkeypatch):
    "Of a clip of one frame nothing is picked."
    monkeypatch.setattr("picknet_nb.training.cards.eye_beside", lambda backbone: "colours")
    bench.note("data.datasets.prepare_videos", lambda *_, **__: Prepared(None, {}, []),
               made=lambda call: str(call.out))
    for usual in PLACES["prepare pictures"].values():
        assert bench.run("prepare pictures", usual).facts["made"] == ["made"]


def test_a_table_is_continued_by_the_model_itself_and_not_by_its_name(bench, there, tmp_path):
    first, copy, other = (tmp_path/name/"mine" for name in ("first", "copy", "other"))
    for model in (first, copy, other): shutil.copytree(there["RUN"], model)
    weights = load_file(other/"weights.safetensors")
    save_weights({name: weight + 1 for name, weight in weights.items()},
                 other/"weights.safetensors")
    captioned = lambda model: bench.run(
        "caption", f"VIDEO --model {model} --out {tmp_path/'rows.jsonl'}")
    assert captioned(first).facts["sources"] == ["example.mp4"]
    for same in (first, copy.rename(copy.with_name("renamed"))):
        again = captioned(same)
        assert again.error is None and "sources" not in again.facts
    assert "was made with another model" in str(captioned(other).error)
