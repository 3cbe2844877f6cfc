"What people write in Python, and parts of their own wherever a command or function takes one."
import ast
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import noise_corpus
from safetensors.torch import load_file, save_file
from toys import invoked, store_run

import picknet_nb as pn
from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.registry import MODULES, USED, use_thing
from picknet_nb.core.settings import ConfigError, preset
from picknet_nb.data.backbones import BACKBONES, Backbone, weights_origin
from picknet_nb.data.corpus import Corpus, CorpusError
from picknet_nb.data.msrvtt import read_msrvtt
from picknet_nb.world.shapes import example_corpus
from picknet_nb.world.world import write_examples
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS, Clips, make_picker
from picknet_nb.method.recipes import ROWS, Recipe
from picknet_nb.method.rewards import REWARDS, reward_for
from picknet_nb.method.stages import Model
from picknet_nb.training import train as training
from picknet_nb.training.cards import find_model
from picknet_nb.training.runs import RunError, load_run, read_settings
from picknet_nb.use.loading import load_captioner
from picknet_nb.measure.experiments import Task, Workers, circumstances, do_on_node, measure_row

MINE = '''
import torch
from torch import nn

from picknet_nb import Captioner, setting


class Pooled(Captioner):
    settings = {"pools": setting(2, "ours: how many pools", low=1, high=9)}

    def __init__(self, settings, feature_dims, vocabulary_size):
        super().__init__()
        size, self.pools = settings.hidden, settings.pools
        self.seen, self.words = nn.Linear(feature_dims, size), nn.Embedding(vocabulary_size, size)
        self.cell, self.say = nn.GRUCell(size, size), nn.Linear(size, vocabulary_size)

    def encode(self, picked):
        weight = picked.mask.float() / picked.mask.sum(1, keepdim=True)
        return self.seen((weight[..., None] * picked.features.float()).sum(1))

    def start(self, memory): return memory

    def step(self, word, state, memory):
        state = self.cell(self.words(word), state)
        return state, self.say(state)


def few(words, clips, features, picks): return -picks.sum(1).float()


few.needs_words = False


def ends(clips):
    picks = torch.zeros(clips.features.shape[:2], dtype=torch.bool, device=clips.features.device)
    picks[:, [0, -1]] = True
    return picks


ends.looks_at, ends.random = "nothing", False
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    "A folder with a module of parts of one's own, and no trace of it afterwards."
    registries = PICKERS, CAPTIONERS, REWARDS, ROWS, BACKBONES
    before = [dict(registry) for registry in registries]
    (tmp_path/"mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for known in (sys.modules, MODULES):
        known.pop("mine", None)
    USED.clear()
    for registry, content in zip(registries, before):
        registry.clear()
        registry.update(content)


# parts of one's own in other processes
# --------------------------------------------------------------------------------------------------


def parts_known(corpus, config=None, bars=False, bar_line=None) -> list[str]:
    "A job that needs the user's parts, and what it found."
    parts = CAPTIONERS.find("mine:Pooled"), REWARDS.find("mine:few"), PICKERS.find("mine:ends")
    return [type(part).__name__ for part in parts] + [config and config.captioner.pools]


def test_a_worker_process_knows_parts_that_are_named_by_their_module(mine):
    use_thing("mine:Pooled")
    workers = Workers(noise_corpus(4), 2, noise_corpus, tuple(USED), bars=False)
    (done,) = workers.results(deque([Task(Path("made"), parts_known)]))
    assert done.answer == ["type", "function", "function", None], done.reason


def forget_mine() -> None:
    "This process as a node of a cluster would be: it has never heard of the module."
    for registry in (PICKERS, CAPTIONERS, REWARDS):
        for name in [name for name in registry if name.startswith("mine:")]:
            del registry[name]
    for known in (sys.modules, MODULES):
        known.pop("mine", None)


def test_a_node_of_a_cluster_knows_them_too_and_their_settings_arrive(mine):
    use_thing("mine:Pooled")
    config = preset("smoke").changed(architecture="mine:Pooled", pools=5)
    sent = pickle.dumps(Task(Path("made"), partial(parts_known, config=config)))
    forget_mine()
    task = pickle.loads(sent)  # before anything else happens there
    assert task.work.keywords["config"] == config
    assert do_on_node(task, noise_corpus, ("mine",)) == ["type", "function", "function", 5]


# ... and in commands
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def handed_over(monkeypatch) -> dict:
    "What the commands that train many models hand over, without any training."
    given = {}

    def note(*arguments, **options):
        given.update(options, changes=next(each for each in arguments if isinstance(each, dict)))
        return {"rows": [], "config": {}}

    for place in ("reproduction.reproduce", "comparison.compare_captioners",
                  "frontier.measure_frontier"):
        monkeypatch.setattr(f"picknet_nb.measure.{place}", note)
    monkeypatch.setattr("picknet_nb.interface.reproduce.finish", lambda *arguments: None)
    return given


@pytest.mark.parametrize("command", [
    ("reproduce", "--captioner", "mine:Pooled"), ("reproduce", "--set", "architecture=mine:Pooled"),
    ("compare", "--captioner", "mine:Pooled"), ("frontier", "--set", "architecture=mine:Pooled")])
def test_commands_import_the_parts_that_settings_name(command, mine, handed_over):
    said = invoked(*command, "--set", "pools=3", "--set", "reward=mine:few", "--no-scores")
    assert said.exit_code == 0, said.output + str(said.exception)
    assert handed_over["modules"] == ["mine"]
    assert handed_over["changes"]["pools"] == 3 and handed_over["changes"]["reward"] == "mine:few"
    assert CAPTIONERS.find("mine:Pooled") and REWARDS.find("mine:few")


def test_train_knows_the_settings_of_a_captioner_that_it_imports(mine):
    noise_corpus(12).save(mine/"noise")
    quick = [word for name in ("supervision", "reinforcement", "adaptation")
             for word in ("--set", f"{name}_epochs=0")]
    train = ("train", mine/"run", "--data", mine/"noise", "--preset", "smoke", *quick)
    said = invoked(*train, "--captioner", "mine:Pooled", "--set", "pools=3", "--picker",
                   "mine:ends")
    assert said.exit_code == 0, said.output + str(said.exception)
    stored = json.loads((mine/"run"/"config.json").read_text())["captioner"]
    assert (stored["architecture"], stored["pools"]) == ("mine:Pooled", 3)
    forget_mine()  # another process, which is told of the module by an option
    said = invoked("train", mine/"run", "--resume", "--captioner", "mine:Pooled", "--picker",
                   "mine:ends")
    assert said.exit_code == 0, said.output + str(said.exception)


def test_the_page_of_the_explorer_imports_what_the_command_was_told_to(mine, monkeypatch):
    pytest.importorskip("av"), pytest.importorskip("ipywidgets")
    server = pytest.importorskip("picknet_nb.use.server")
    launched = []
    monkeypatch.setattr(pytest.importorskip("voila.app").Voila, "launch_instance",
                        lambda *_, **__: launched.append(os.environ[server._SOURCES]))
    monkeypatch.setenv(server._SOURCES, "{}")
    write_examples(mine/"videos", 1)
    use_thing("mine:Pooled")
    store_run(mine/"run", mine/"videos", Recipe("mine:ends"), architecture="mine:Pooled", pools=4)
    said = invoked("--use", "mine", "explore", "--model", mine/"run", "--videos", mine/"videos",
                   "--no-browser")
    assert said.exit_code == 0 and launched, said.output + str(said.exception)
    forget_mine()  # the kernel of a page is another process, in another folder
    (mine/"elsewhere").mkdir()
    monkeypatch.chdir(mine/"elsewhere")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(mine)])
    shown = server.page()
    assert getattr(shown, "exploration", None), shown.value
    assert shown.exploration.captioner.captioner.pools == 4


# what a result says of itself, and what a call leaves behind
# --------------------------------------------------------------------------------------------------


def test_a_result_names_the_machine_that_was_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device}")
    assert "CPU cores" in circumstances("cpu")["machine"]
    assert circumstances("cuda:1")["machine"] == "GPU cuda:1"
    assert circumstances()["machine"] == "GPU cuda"
    assert "CPU cores" in circumstances(torch.device("cpu"))["machine"]


def test_measuring_leaves_the_random_numbers_of_the_caller_alone():
    corpus, config = noise_corpus(12), preset("smoke")
    model = Model.for_corpus(config, corpus)
    draws = []
    for measured in (False, True):
        torch.manual_seed(5)
        if measured:
            picks = [measure_row(model, corpus, config, Recipe("random", 4))["pick_positions"]
                     for _ in range(2)]
            assert picks[0] == picks[1]  # while the seed of the settings decides what it draws
        draws.append(torch.rand(3))
    assert draws[0].equal(draws[1])


def test_loading_a_model_draws_nothing_from_the_random_numbers_of_the_caller():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load_run(find_model("shapes"))
    assert torch.rand(3).equal(wanted)


def test_the_limit_of_texts_holds_for_zipped_annotations_when_it_is_set(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path/"a.zip", "w") as archive:
        archive.writestr("a_videodatainfo.json", json.dumps(
            {"videos": [{"video_id": "video0", "split": "train"}],
             "sentences": [{"video_id": "video0", "caption": "a dog"}]}))
    assert read_msrvtt(tmp_path/"a.zip")[1] == {"video0": "train"}
    monkeypatch.setenv("PICKNET_TEXT_BYTES", "20")
    with pytest.raises(CorpusError, match="would unpack to .* bytes .PICKNET_TEXT_BYTES"):
        read_msrvtt(tmp_path/"a.zip")


def test_no_limit_is_read_when_a_module_is_imported():
    "One that is set later would not hold, and a wrong one would make the import fail."
    for path in sorted((Path(__file__).parents[1]/"picknet_nb").glob("*/*.py")):
        for statement in ast.parse(path.read_text()).body:
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
                assert not [each for each in calls if getattr(each, "id", "") == "limit"], path


# names of things that are given as themselves
# --------------------------------------------------------------------------------------------------


def picking(*frames: int):
    "A picker of these frames: a function inside a function."
    def pick(clips):
        picks = torch.zeros(clips.features.shape[:2], dtype=torch.bool)
        picks[:, list(frames)] = True
        return picks
    return pick


class Frames:
    "The same as an object that can be called."
    def __init__(self, *frames): self.pick = picking(*frames)
    def __call__(self, clips): return self.pick(clips)
    def method(self, clips): return self.pick(clips)


CLIPS = Clips(torch.zeros(1, 9, 2), torch.zeros(1, 9, 2))


@pytest.mark.parametrize("make", [
    lambda k: lambda clips: picking(0, k)(clips), lambda k: picking(0, k), lambda k: Frames(0, k),
    lambda k: partial(lambda clips, frame: picking(0, frame)(clips), frame=k),
    lambda k: Frames(0, k).method], ids=["lambda", "nested", "object", "partial", "method"])
def test_functions_without_a_name_never_share_one(make, mine):
    one, two = make(3), make(5)
    names = [PICKERS.name_of(one), PICKERS.name_of(two)]
    picked = [make_picker(name)(CLIPS)[0].nonzero().flatten().tolist() for name in names]
    assert picked == [[0, 3], [0, 5]] and len(set(names)) == 2
    assert [PICKERS.name_of(one), PICKERS.name_of(two)] == names  # one that is known keeps its own
    for name in names:  # in another process nobody has it
        del PICKERS[name]
        with pytest.raises(PickNetError, match="cannot be found again when its process has ended"):
            make_picker(name)


def test_a_cell_with_a_lambda_that_is_run_again_has_the_same_function(mine):
    space = {"picking": picking, "wanted": 4}
    cell = "lambda clips: picking(0, wanted)(clips)"
    one, two = eval(cell, space), eval(cell, space)
    assert PICKERS.name_of(one) == PICKERS.name_of(two)
    assert PICKERS.name_of(eval(cell, {**space, "wanted": 5})) != PICKERS.name_of(one)


def test_a_function_that_is_defined_anew_is_told(mine, recwarn):
    space = {"__name__": "mine", "picking": picking}
    cell = "def pick(clips): return picking(0, {})(clips)"
    for frame in (3, 3):  # the same cell, run twice
        exec(cell.format(frame), space)
        assert PICKERS.name_of(space["pick"]) == "mine:pick" and not recwarn.list
    exec(cell.format(7), space)
    with pytest.warns(UserWarning, match="'mine:pick' was defined anew"):
        PICKERS.name_of(space["pick"])
    assert make_picker("mine:pick")(CLIPS)[0, 7]


def test_a_class_that_is_registered_keeps_its_name(mine):
    use_thing("mine:Pooled")
    assert CAPTIONERS.name_of(CAPTIONERS.find("ta")) == "ta"
    assert CAPTIONERS.name_of(sys.modules["mine"].Pooled) == "mine:Pooled"


QUICK = dict(supervision_epochs=0, reinforcement_epochs=0, adaptation_epochs=0, bars=False)


FILM = Path(__file__).parents[1]/"data"/"example.mp4"


@pytest.fixture(scope="module")
def toys() -> Corpus:
    "A few clips of the toy world, as features of the backbone tiny."
    return example_corpus(16)


def test_runs_of_two_lambdas_are_each_loaded_with_their_own(mine, toys):
    for name, frame in (("a", 4), ("b", 9)):
        pn.train(mine/name, toys, "smoke", picker=lambda clips, at=frame: picking(0, at)(clips),
                 **QUICK)
    assert pn.load(mine/"a").caption(FILM).picked == [0, 4]
    assert pn.load(mine/"b").caption(FILM).picked == [0, 9]
    PICKERS.clear()
    with pytest.raises(PickNetError, match="run.json: no picker .*such as a lambda"):
        load_captioner(mine/"a")


# what is registered can be used
# --------------------------------------------------------------------------------------------------


def test_what_a_command_lists_it_can_use():
    code = """
from conftest import noise_corpus
import picknet_nb.interface.main, picknet_nb.interface.python
from picknet_nb.core.settings import preset
from picknet_nb.method.captioner import CAPTIONERS, make_captioner
from picknet_nb.method.pickers import PICKERS, make_picker
from picknet_nb.method.recipes import with_captioner
from picknet_nb.method.rewards import REWARDS
corpus = noise_corpus(8)
for name in PICKERS:
    number = {None: None, int: 3, float: 0.5}[PICKERS.facts(name).get("number")]
    # one with a policy is made by training
    assert PICKERS.facts(name).get("policy") or make_picker(name, number)
for name in REWARDS: assert REWARDS.find(name)(preset("smoke").policy, corpus)
for name in CAPTIONERS:
    assert make_captioner(with_captioner(preset("smoke"), name).captioner, 8, 9)
print(*sorted(PICKERS), *sorted(REWARDS))
"""
    said = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True,
                          capture_output=True, text=True).stdout.split()
    assert {"uniform", "varied", "paper"} <= set(said)


def test_a_plain_function_can_be_added_as_it_is(mine):
    PICKERS.add("tails", looks_at="nothing", random=False)(picking(0, -1))
    picker = make_picker("tails")
    assert picker(CLIPS)[0].nonzero().flatten().tolist() == [0, 8]
    assert (picker.looks_at, picker.random) == ("nothing", False)

    @REWARDS.add("thrifty")
    def thrifty(words, clips, features, picks): return -picks.sum(1).float()

    thrifty.needs_words = False
    corpus, policy = noise_corpus(12), preset("smoke", reward="thrifty").policy
    picks = torch.zeros(2, 30, dtype=torch.bool)
    picks[:, :4] = True
    earned = reward_for(policy, corpus)(None, torch.arange(2), corpus.features[:2], picks, 9)
    assert earned.total.tolist() == [-4, -4]


# weights of a file, and what a call of `train` can say
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(mine):
    "A backbone that reads its weights from a file, and two such files."
    @BACKBONES.add("counted")
    def make(weights=None):
        scale = load_file(weights)["scale"] if weights else torch.ones(1)
        body = Scaled(scale)
        origin = weights_origin(weights) if weights else "ours"
        return Backbone("counted", body, 3, 16, origin)

    for name, value in (("right", 2.0), ("wrong", 3.0)):
        save_file({"scale": torch.full((1,), value)}, mine/f"{name}.safetensors")
    return mine


class Scaled(torch.nn.Module):
    def __init__(self, scale): super().__init__(), self.register_buffer("scale", scale)
    def forward(self, images): return images.mean((2, 3)) * self.scale


def test_weights_of_a_file_reach_every_function(counted):
    right, wrong = counted/"right.safetensors", counted/"wrong.safetensors"
    names = [f"clip{number}" for number in range(6)]
    (counted/"videos").mkdir()
    for name in names:
        shutil.copy(FILM, counted/"videos"/f"{name}.mp4")
    corpus = pn.prepare(
        counted/"videos", {name: ["a star", "a ball"] for name in names}, counted/"corpus",
        cnn="counted", weights=right, frames=4, min_word_count=1, bars=False,
        splits={"train": names[:3], "validation": names[3:5], "test": names[5:]})
    assert len(corpus.splits["train"]) == 3 and corpus.features.shape[1] == 4
    train = partial(pn.train, counted/"run", corpus, "smoke", picker="uniform-2",
                    captions_together=1, **QUICK)
    with pytest.raises(FileError, match="wrong.safetensors: is not what the features of corpus"):
        train(weights=wrong)
    assert not (counted/"run").exists()
    assert train(weights=right).caption(FILM).picked == [0, 3]
    for call in (lambda weights=None: pn.load(counted/"run", weights=weights).caption(FILM),
                 lambda weights=None: pn.caption(FILM, counted/"run", weights=weights),
                 lambda weights=None: next(iter(pn.caption_many([FILM], counted/"run",
                                                                weights=weights)))):
        assert call(weights=right)
        with pytest.raises(PickNetError, match="made with other weights"):
            call(weights=wrong)
        with pytest.raises(PickNetError, match=r"give that file \(`weights`, on the command line"):
            call()
    evaluate = partial(pn.evaluate, counted/"run", corpus, scores=False, bars=False)
    assert evaluate(weights=right).captions.keys() == {"clip5"}
    with pytest.raises(FileError, match="is not what the features of .*run were made with"):
        evaluate(weights=wrong)


def test_a_backbone_that_would_not_be_found_again_is_rejected_before_any_work(mine):
    (mine/"videos").mkdir()
    shutil.copy(FILM, mine/"videos"/"a.mp4")
    unknown = Backbone("mine", Scaled(torch.ones(1)), 3, 16)
    with pytest.raises(PickNetError, match=r"'mine' is not registered.*@BACKBONES.add\('mine'\)"):
        pn.prepare(mine/"videos", {"a": ["a star"]}, mine/"out", cnn=unknown)
    assert not (mine/"out").exists()


def test_train_takes_an_experiment_or_a_picker_and_goes_on_for_more_epochs(
        mine, toys, monkeypatch):
    train = partial(pn.train, mine/"run", toys, "smoke", reinforcement_epochs=0, bars=False)
    with pytest.raises(PickNetError, match="give one of them"):
        train(experiment="Uniform", picker="uniform-3")

    def interrupted(trainer, plan, reward, train_stage=training.train_stage):
        if plan.name == "adaptation":
            raise KeyboardInterrupt
        train_stage(trainer, plan, reward)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "train_stage", interrupted)
        train(picker="all", supervision_epochs=1, adaptation_epochs=1)
    run = train(picker="all", supervision_epochs=1, adaptation_epochs=2)
    assert [each["stage"] for each in run.log] == ["supervision", "adaptation", "adaptation"]
    assert run.folder == mine/"run"
    with pytest.raises(RunError, match="cannot change adaptation_epochs to 3: adaptation has"):
        train(picker="all", supervision_epochs=1, adaptation_epochs=3)
    with pytest.raises(RunError, match="holds another run: hidden 64 .now 48."):
        train(picker="all", supervision_epochs=1, adaptation_epochs=3, hidden=48)
    assert read_settings(mine/"run").training.adaptation_epochs == 2  # nothing was changed


# types, for editors and type checkers
# --------------------------------------------------------------------------------------------------

FUNCTIONS = ("load", "caption", "caption_many", "prepare", "train", "evaluate", "reproduce")
# every name of the package, as somebody would write it; a type checker has nothing to say
GOOD = '''
from pathlib import Path

import torch

import picknet_nb as pn


def ends(clips: pn.Clips) -> torch.Tensor:
    picks = torch.zeros(clips.features.shape[:2], dtype=torch.bool)
    picks[:, [0, -1]] = True
    return picks


@pn.PICKERS.add("ends", looks_at="nothing", random=False)
def also_ends(clips: pn.Clips) -> torch.Tensor: return ends(clips)


@pn.REWARDS.add("few")
@pn.reward_from
def few(words: torch.Tensor, clips: torch.Tensor, features: torch.Tensor,
        picks: torch.Tensor) -> torch.Tensor:
    return -picks.sum(1).float()


@pn.CAPTIONERS.add("mine")
class Mine(pn.Captioner):
    settings = {"pools": pn.setting(2, "ours: how many", low=1)}


@pn.BACKBONES.add("mine")
def mine(weights: Path | None = None) -> pn.Backbone:
    return pn.Backbone("mine", torch.nn.Flatten(), 3, 16)


@pn.DATASETS.add("mine")
def read(*paths: str) -> tuple[dict[str, list[str]], dict[str, str]]: return {}, {}


pn.ROWS["mine"] = lambda picks: pn.Recipe("uniform", picks)
model: pn.VideoCaptioner = pn.load("everyday", "cpu", ends, Path("weights.pth"))
said: pn.Caption = pn.caption(Path("a.mp4"), None, "uniform-6", beam=5, device="cpu", weights="w")
texts: list[str] = [said.text, model.caption("a.mp4", beam=2).text]
captions = [row["caption"] for row in pn.caption_many(["a.mp4", Path("b.mp4")], picker=ends)]
corpus: pn.Corpus = pn.prepare(
    "videos", {"a": ["a dog"]}, Path("out"), cnn=mine(), splits={"train": ["a"]}, frames=8)
run: pn.Run = pn.train("run", corpus, "smoke", picker=ends, captioner=Mine, hidden=64, clock=True)
again: pn.Run = pn.train(Path("run"), "shapes", preset="small", experiment="Uniform", reward=few)
losses: list[float] = [epoch["loss"] for epoch in run.log]
words: str = run.caption("a.mp4").text + run.captioner.caption("a.mp4").text
found: pn.Evaluation = pn.evaluate(run, corpus, picker=ends, device=torch.device("cpu"))
share: float = found.frames_used
table: pn.Table = pn.reproduce("shapes", "smoke", ["Uniform"], seeds=2, workers=2, captioner="ta")
other: pn.Table = pn.reproduce(experiment="Baseline", beams=[1, 5])
try:
    pn.core, pn.data, pn.world, pn.method, pn.systems, pn.training, pn.use, pn.measure, pn.interface
except pn.PickNetError as error:
    print(error)
'''
# one mistake in each line after the first
BAD = '''import picknet_nb as pn
pn.caption("a.mp4", bean=5)
pn.caption(["a.mp4", "b.mp4"])
pn.captoin("a.mp4")
pn.load("everyday", picker=6)
pn.caption_many("a.mp4", ray=True, worker=3)
pn.prepare("videos", {"a": "a dog"}, "out")
pn.prepare("videos", "captions.json", "out", frames="eight")
pn.train("run", "shapes", experiment=["Uniform"])
pn.train("run", "shapes", hidden=[64])
pn.train("run", "shapes").captoin("a.mp4")
pn.evaluate("run", split=3)
pn.evaluate("run", scale="smoke", row="Uniform")
pn.reproduce("shapes", rows=["Uniform"])
pn.setting(3)
'''
# libraries of their own size, whose types would take a minute to read
ELSEWHERE = "torch torchvision numpy safetensors tqdm typer av ray PIL matplotlib pyarrow IPython"


def test_a_type_checker_knows_every_public_name_and_sees_wrong_arguments(tmp_path, monkeypatch):
    check = pytest.importorskip("mypy.api").run
    (tmp_path/"good.py").write_text(GOOD)
    (tmp_path/"bad.py").write_text(BAD)
    (tmp_path/"mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n"
        f"[mypy-{','.join(f'{name}.*' for name in ELSEWHERE.split())}]\nfollow_imports = skip\n")
    monkeypatch.setenv("MYPYPATH", str(Path(pn.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    surface = Path(pn.__file__).parent
    report, trouble, _ = check([
        "--config-file", "mypy.ini", "--cache-dir", "cache", "good.py", "bad.py",
        str(surface/"__init__.py"), str(surface/"interface"/"python.py"),
        str(surface/"core"/"registry.py")])
    errors = [line for line in report.splitlines() if ": error: " in line]
    assert not trouble and not [line for line in errors if not line.startswith("bad.py")], report
    wrong = {int(line.split(":")[1]) for line in errors}
    assert wrong == set(range(2, BAD.count("\n") + 1)), report
    for name in pn.__all__:
        assert f"pn.{name}" in GOOD, name
    assert (surface/"py.typed").exists()


def test_editors_read_the_names_that_there_are():
    tree = ast.parse(Path(pn.__file__).read_text())
    (block,) = [node for node in tree.body if ast.unparse(getattr(node, "test", tree.body[0]))
                == "TYPE_CHECKING"]
    read = {each.asname or each.name for node in block.body for each in node.names}
    folders = {path.parent.name for path in Path(pn.__file__).parent.glob("*/__init__.py")}
    assert read == {*pn.__all__, *folders} and read <= set(dir(pn))
    for name in read:  # also where nothing has imported it yet
        assert pn.__getattr__(name) is getattr(pn, name)


def test_the_functions_agree_about_their_arguments():
    shared = {}
    for function in FUNCTIONS:
        for name, each in inspect.signature(getattr(pn, function)).parameters.items():
            assert each.annotation is not each.empty, f"{function}: {name}"
            assert name not in ("scale", "row", "rows", "options"), f"{function}: {name}"
            if each.kind is each.VAR_KEYWORD:
                assert function in ("train", "reproduce") and name == "settings"
            if name in ("device", "weights", "picker", "captioner", "reward", "bars", "ray",
                        "threshold", "beam"):
                kind = each.annotation, each.default
                assert shared.setdefault(name, kind) == kind, f"{function}: {name}"
        assert getattr(pn, function).__annotations__["return"]
    for function in ("load", "caption", "caption_many", "prepare", "train", "evaluate"):
        assert {"device", "weights"} <= inspect.signature(getattr(pn, function)).parameters.keys()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_unknown_argument_fails_at_the_call(function, mine):
    given = {"load": (), "prepare": ("videos", "captions.json", "out"), "reproduce": (),
             "train": ("run", "shapes")}.get(function, ("nothing",))
    with pytest.raises((TypeError, ConfigError), match="bean"):
        getattr(pn, function)(*given, bean=5)
    assert {path.name for path in mine.iterdir()} <= {"mine.py", "__pycache__"}


def test_a_function_picks_wherever_a_name_does(mine):
    use_thing("mine:ends")
    ends = sys.modules["mine"].ends
    assert pn.load("shapes", picker=ends).caption(FILM).picked == [0, 29]
    assert pn.caption(FILM, "shapes", ends, device="cpu").picked == [0, 29]
    (row,) = pn.caption_many([FILM], "shapes", ends)
    assert row["caption"] == pn.caption(FILM, "shapes", "mine:ends").text
    with pytest.raises(PickNetError, match="other processes cannot find .*define it in a module"):
        pn.caption_many([FILM], "shapes", lambda clips: ends(clips), ray="local")
    with pytest.raises(PickNetError, match="give its address by `ray`"):
        pn.caption_many([FILM], "shapes", workers=3)


def test_a_process_that_imported_no_captioner_compares_them_with_their_own_presets():
    "The preset of a captioner is there when its module is imported."
    code = ("from picknet_nb.measure.comparison import own_changes; "
            "print(sorted(own_changes('improved', 'ta')))")
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "architecture" in made.stdout and "mention_weight" in made.stdout
