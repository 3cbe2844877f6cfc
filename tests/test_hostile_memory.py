"""A few kilobytes that would fill the memory: tensors that repeat one number, lists that stand in
many others, and settings each of which is within its limit."""
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from picknet_nb.core.files import PickNetError
from picknet_nb.interface import main
from picknet_nb.method import stages
from picknet_nb.method.stages import caption_videos
from picknet_nb.training.checkpoints import read_checkpoint
from picknet_nb.training.models import export_model, find_model
from picknet_nb.training.runs import RunError
from picknet_nb.use.loading import load_captioner
from test_hostile_runs import begun, finished, go_on, run, trained  # noqa: F401


def repeated(*shape: int) -> torch.Tensor:
    "A tensor of one number, which takes four bytes in its file."
    return torch.zeros(1).as_strided(shape, (0,) * len(shape))


def nested(levels: int = 7, width: int = 10) -> list:
    "Ten to the power of levels, of which each level is stored once."
    found = ["x"]
    for _ in range(levels):
        found = [found] * width
    return found


def put(*way, value):
    def edit(stored):
        inside = stored
        for step in way[:-1]: inside = inside[step]
        inside[way[-1]] = value
    return edit


SWOLLEN = {
    "rate": put("optimiser", "param_groups", 0, "lr", value=repeated(20_000_000)),
    "moments": put("optimiser", "state", 0, "exp_avg", value=repeated(20_000_000)),
    "weights": put("model", "policy.compare.bias", value=repeated(20_000_000)),
    "random numbers": put("random", 0, "cuda", value=torch.zeros(1, dtype=torch.uint8)
                          .expand(20_000_000)),
    "averages": put("average", value=[repeated(5000, 5000)]),
    "sparse": put("sums", "sums", value=torch.sparse_coo_tensor(
        torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6))),
    "log": put("log", 0, "more", value=nested()),
    "settings": put("settings", "seed", value=nested()),
    "sums": put("sums", "names", value=nested()),
    "origin": put("learned_from", "more", value=nested()),
    "texts": put("log", 0, "more", value=["x" * 100_000] * 5000),
}


@pytest.mark.parametrize("kind", SWOLLEN)
def test_a_checkpoint_that_says_more_than_its_file_holds_is_not_read(run, kind):  # noqa: F811
    stored = torch.load(run/"checkpoint.pt", weights_only=True)
    size = (run/"checkpoint.pt").stat().st_size
    SWOLLEN[kind](stored)
    torch.save(stored, run/"checkpoint.pt")
    assert (run/"checkpoint.pt").stat().st_size < 2 * size + 200_000
    with pytest.raises(
        RunError, match="checkpoint.pt: .*(parts|more than twice its|no tensor needs).*move"
    ):
        read_checkpoint(run)


def test_an_honest_checkpoint_is_read(run):  # noqa: F811
    assert read_checkpoint(run)["progress"]["stage"] == "supervision"


def model_of(folder, frames=30, beam=1, words=16, picker="all"):
    "The model for the toy world, with other numbers in its files."
    shutil.copytree(find_model("shapes"), folder)
    about = json.loads((folder/"run.json").read_text())
    about["recipe"] |= {"picker": picker, "picks": None}
    about["speech"] = {"beam": beam, "no_repeats": True}
    about["settings"] |= {"frames": frames, "max_words": words}
    (folder/"run.json").write_text(json.dumps(about))
    config = json.loads((folder/"config.json").read_text())
    config["clip"] |= {"frames": frames, "max_words": words}
    (folder/"config.json").write_text(json.dumps(config))
    return folder


def test_frames_times_frames_have_a_limit(tmp_path):
    captioner = load_captioner(model_of(tmp_path/"m", frames=1000), device="cpu")
    features = torch.zeros(1000, next(captioner.captioner.parameters()).shape[1]).half()
    with pytest.raises(PickNetError, match="1000 captions of 1000 picked frames would take"):
        captioner.remember(features, torch.arange(1000))
    captioner.remember(features, torch.arange(1000), running=False)


def test_captions_times_beam_times_words_have_a_limit(tmp_path):
    captioner = load_captioner(model_of(tmp_path/"m", beam=100), device="cpu")
    features = torch.zeros(600, next(captioner.captioner.parameters()).shape[1]).half()
    memory = captioner.remember(features[:100], torch.arange(100))
    memory = memory._replace(video=memory.video.repeat(10, 1))
    with pytest.raises(PickNetError, match="1000 captions with a beam of 100 would take"):
        captioner.words(memory)
    assert len(captioner.words(memory, beam=1)[0]) == 1000


def test_long_captions_times_beam_have_a_limit(tmp_path):
    captioner = load_captioner(model_of(tmp_path/"m", beam=100), device="cpu")
    features = torch.zeros(100, next(captioner.captioner.parameters()).shape[1]).half()
    memory = captioner.remember(features, torch.arange(100))
    long = replace(captioner, config=captioner.config.changed(max_words=1000))
    with pytest.raises(PickNetError, match="10,000,000 steps, and at most 2,000,000 are taken"):
        long.words(memory)
    assert len(long.words(memory, beam=1)[0]) == 100


def test_a_split_is_captioned_in_batches_that_shrink_with_the_beam(monkeypatch):
    seen = []

    def caption(captioner, features, picks, most, beam, no_repeats):
        seen.append(len(features))
        return torch.zeros(len(features), most, dtype=torch.long)

    class Corpus:
        features = torch.zeros(600, 2, 1)
        settings = type("Settings", (), {"max_words": 3})

    class Model:
        captioner = None

    monkeypatch.setattr(stages, "caption", caption)
    choose = lambda videos: torch.ones(len(videos), 2, dtype=torch.bool)
    for beam, largest in ((1, 512), (5, 512), (100, 40)):
        seen.clear()
        words, _ = caption_videos(Model, Corpus, torch.arange(600), choose, beam)
        assert len(words) == 600 and max(seen) == largest


KINDS = ["float8_e4m3fn", "float8_e5m2", "complex64", "int64", "int8", "bool"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how_many", [1, 100], ids=["one", "all"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_weights_of_a_type_that_no_model_has_are_a_sentence(tmp_path, kind, how_many):
    folder = model_of(tmp_path/"model")
    weights = load_file(folder/"weights.safetensors")
    for name in sorted(weights)[:how_many]:
        weights[name] = weights[name].float().to(getattr(torch, kind))
    save_file(weights, folder/"weights.safetensors")
    for use in (
        lambda: load_captioner(folder, device="cpu"),
        lambda: export_model(folder, tmp_path/"exported"),
    ):
        with pytest.raises(RunError, match=f"weights.safetensors: holds weights of type {kind}"):
            use()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_weights_of_every_usual_type_are_read(tmp_path, kind):
    folder = model_of(tmp_path/"model")
    weights = load_file(folder/"weights.safetensors")
    save_file({name: each.to(getattr(torch, kind)) for name, each in weights.items()},
              folder/"weights.safetensors")
    assert load_captioner(folder, device="cpu")


@pytest.mark.parametrize("reason", [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: not enough memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
])
def test_a_command_without_memory_says_so(reason, monkeypatch):
    def app(): raise reason
    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit, match="^picknet: there is not enough memory for this"):
        main.main()


def test_other_errors_keep_their_traceback(monkeypatch):
    def app(): raise RuntimeError("a defect")
    monkeypatch.setattr(main, "app", app)
    with pytest.raises(RuntimeError, match="a defect"):
        main.main()
