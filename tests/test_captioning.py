"""Captions of files that people really have, and from runs with parts of one's own. One toy run
serves all tests."""
import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("av")

from reliability import run_process
from safetensors.torch import load_file
from toys import Looker, brightest, colours, examples_corpus, film, store_run, undecided

import picknet_nb
from picknet_nb.core.files import FileError, PickNetError
from picknet_nb.core.settings import ConfigError
from picknet_nb.data.backbones import BACKBONES, Backbone
from picknet_nb.data.video_files import VideoError, find_videos
from picknet_nb.method.captioner import CAPTIONERS, caption as caption_frames
from picknet_nb.method.pickers import PICKERS, make_picker
from picknet_nb.method.policy import Policy
from picknet_nb.method.recipes import Recipe, recipes
from picknet_nb.method.stages import caption_videos, frame_choice
from picknet_nb.training.models import (
    Decoding, example_run, export_model, find_model, find_run, has_both_rewards)
from picknet_nb.training.runs import RunError, load_run, save_weights
from picknet_nb.use import captioning
from picknet_nb.use.sources import Failure
from picknet_nb.use.clips import Caption, caption_clip, decide, look_closely, look_over
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.streams import Watcher


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    example_run(folder, clips=4)
    return folder


@pytest.fixture(scope="module")
def captioner(toy):
    return load_captioner(toy/"run", device="cpu")


@pytest.mark.parametrize(
    "name",
    [
        "a film with spaces.mp4",
        "кино 映画 فيلم.mp4",
        "-dash.mp4",
        "100%.mp4",
        "a:b?.mp4",
        "'quoted\".mp4",
    ],
)
def test_odd_names(captioner, toy, tmp_path, name):
    path = tmp_path / name
    shutil.copy(toy/"videos"/"example.mp4", path)
    caption = captioner.caption(path)
    assert caption.text == captioner.caption(toy/"videos"/"example.mp4").text
    assert json.loads(json.dumps(caption.to_dict()))["source"] == str(path)


def test_what_is_no_video_is_refused_in_one_line(captioner, tmp_path):
    (tmp_path/"text.mp4").write_text("some words")
    (tmp_path/"empty.mp4").touch()
    wrong = {
        "text.mp4": "not a video",
        "empty.mp4": "is empty",
        "": "is a folder",
        "missing.mp4": "no such file",
    }
    for name, reason in wrong.items():
        with pytest.raises(VideoError, match=reason) as refused:
            captioner.caption(tmp_path / name)
        assert "\n" not in str(refused.value)
    several, = captioner.caption_many(["https://example.org/film.mp4"])
    assert "picknet stream" in several.reason
    with pytest.raises(PickNetError, match="between 0 and 1"):
        captioner.caption(film(tmp_path/"film.mp4"), threshold=1.5)
    with pytest.raises(PickNetError, match="1 or more"):
        captioner.caption(tmp_path/"film.mp4", beam=0)
    with pytest.raises(VideoError, match="no video in this folder"):
        find_videos([tmp_path.joinpath("nothing").mkdir() or tmp_path/"nothing"])


def test_run_folders_that_cannot_be_used(toy, tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        load_captioner(tmp_path/"missing")
    with pytest.raises(RunError, match="holds no trained run"):
        load_captioner(tmp_path)
    for name in ("weights.safetensors", "config.json", "vocabulary.json"):
        broken = shutil.copytree(toy/"run", tmp_path / name)
        (broken / name).unlink()
        with pytest.raises(FileError, match=name.split(".")[0]):
            load_captioner(broken)
    other = shutil.copytree(toy/"run", tmp_path/"other")
    for name in ("config.json", "run.json"):
        text = (other / name).read_text()
        (other / name).write_text(text.replace('"cnn": "tiny"', '"cnn": "resnet18"'))
    with pytest.raises(RunError, match="resnet18 makes 512"):
        load_captioner(other, weights="random")


def test_what_is_loaded_again_has_the_weights_that_are_in_the_files_now(toy, tmp_path):
    run = shutil.copytree(toy/"run", tmp_path/"run")
    before = picknet_nb.load(run, "cpu")
    weights = load_file(run/"weights.safetensors")
    save_weights({name: weight * 0 for name, weight in weights.items()}, run/"weights.safetensors")
    after = picknet_nb.load(run, "cpu")
    weighs = lambda captioner: sum(
        weight.abs().sum().item() for weight in captioner.captioner.parameters()
    )
    assert weighs(before) > 0 and weighs(after) == 0
    assert after.caption(toy/"videos"/"example.mp4").text != before.caption(
        toy/"videos"/"example.mp4"
    ).text


def test_what_is_loaded_belongs_to_who_loaded_it(toy):
    path, run = toy/"videos"/"example.mp4", toy/"run"
    mine, other = picknet_nb.load(run, "cpu"), picknet_nb.load(run, "cpu")
    said = other.caption(path)
    mine.picker, mine.picker.threshold = make_picker("uniform", 3), 0.9
    for network in (mine.captioner, mine.backbone):
        for weight in network.parameters():
            weight.data.zero_()
    for captioner in (other, picknet_nb.load(run, "cpu")):
        now = captioner.caption(path)
        assert (now.picked, now.n_best, now.scores) == (said.picked, said.n_best, said.scores)


def copy_run(run: Path, to: Path, age: int, row: str | None = None) -> Path:
    "A run of another age, and of another row of the table."
    shutil.copytree(run, to)
    os.utime(to/"weights.safetensors", (10**9 - age,) * 2)
    about = json.loads((to/"run.json").read_text())
    (to/"run.json").write_text(
        json.dumps(about | ({"recipe": asdict(recipes()[row])} if row else {}))
    )
    return to


def test_the_paper_s_method_is_found_before_newer_runs(toy, tmp_path):
    for age, name in enumerate(("Uniform", "PickNet (V+L)", "Baseline")):
        copy_run(toy/"run", tmp_path/"runs"/name, age, name)
    assert find_run(tmp_path/"runs").name == "PickNet (V+L)"
    shutil.rmtree(tmp_path/"runs"/"PickNet (V+L)")
    assert find_run(tmp_path).name == "Uniform"


def test_without_a_name_it_is_the_model_in_the_box_whatever_lies_about(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = copy_run(toy/"run", tmp_path/"runs"/"mine", 5, "PickNet (V+L)")
    assert find_run() == find_model() and find_run("runs") == Path("runs/mine")
    copy_run(toy/"run", tmp_path/"runs"/"other", 9)
    (mine/"run.json").write_text("[]")  # whoever asks for it hears what is wrong
    assert find_run("runs").name == "other"
    with pytest.raises(RunError, match="no such folder: .* leave it out for the default model"):
        find_run("nowhere")


def test_hidden_files_are_no_videos_and_links_to_nothing_are_left_out(captioner, toy, tmp_path):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    for hidden in ("._a.mp4", ".trash/b.mp4"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"no film")
    (tmp_path/"gone.mp4").symlink_to(tmp_path/"nowhere.mp4")
    caption, failure = captioner.caption_many(find_videos([tmp_path]))
    assert caption.source == str(tmp_path/"a.mp4") and failure == Failure(
        str(tmp_path/"gone.mp4"), "no such file"
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_many_files_get_the_captions_that_each_gets_alone(
    captioner, toy, tmp_path, monkeypatch, threads
):
    monkeypatch.setattr(captioning, "threads_to_use", lambda: threads)
    paths = find_videos([toy/"videos"])
    (tmp_path/"broken.mp4").write_bytes(b"no film")
    many = list(
        captioner.caption_many([paths[0], tmp_path/"broken.mp4", *paths[1:]], best=2, beam=3)
    )
    assert isinstance(many.pop(1), Failure)
    for one, path in zip(many, paths, strict=True):
        alone = captioner.caption(path, best=2, beam=3)
        assert (one.source, one.n_best, one.picked, one.times) == (
            str(path),
            alone.n_best,
            alone.picked,
            alone.times,
        )


def test_clips_are_captioned_side_by_side_each_by_a_thread_that_has_its_core(
    captioner, toy, monkeypatch
):
    "Two clips wait for each other: one after the other would wait for ever."
    usual, both, seen = captioning.caption_clip, threading.Barrier(2, timeout=1800), []

    def together(*arguments, **options):
        both.wait()
        seen.append((threading.current_thread(), torch.get_num_threads()))
        return usual(*arguments, **options)

    monkeypatch.setattr(captioning, "caption_clip", together)
    monkeypatch.setattr(captioning, "threads_to_use", lambda: 2)
    captioner.captioner.train()  # dropout on, unless somebody switches it off for all threads
    try:
        paths = find_videos([toy/"videos"])[:2] * 2
        one, two, three, four = (found.text for found in captioner.caption_many(paths))
        assert captioner.captioner.training
    finally:
        captioner.captioner.eval()
    assert (
        (one, two) == (three, four)
        and len({thread for thread, _ in seen}) == 2
        and {count for _, count in seen} == {1}
    )


@pytest.mark.skipif(sys.platform != "linux", reason="decoders are forked on Linux alone")
def test_no_decoder_is_forked_while_a_thread_is_inside_the_networks(
    captioner, toy, tmp_path, monkeypatch
):
    "A file that kills its decoder costs its own caption, and the next decoder inherits no locks."
    captions, reads, inside = captioning.caption_clip, captioning.read_file, set()

    def caption_slowly(*arguments, **options):
        inside.add(threading.get_ident())
        time.sleep(0.2)  # time enough for a decoder to die
        try:
            return captions(*arguments, **options)
        finally:
            inside.discard(threading.get_ident())

    def read_or_die(numbered, *how):
        if inside:  # here it is what it was when this process was forked
            (tmp_path/"forked").touch()
        if "deadly" in str(numbered[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return reads(numbered, *how)

    monkeypatch.setattr(captioning, "caption_clip", caption_slowly)
    monkeypatch.setattr(captioning, "read_file", read_or_die)
    monkeypatch.setattr(captioning, "threads_to_use", lambda: 2)
    paths = [toy/"videos"/"example.mp4", toy/"deadly.mp4"] * 6
    said, lost = set(), []
    for found in captioner.caption_many(paths, running=False):
        lost.append(found) if isinstance(found, Failure) else said.add(found.text)
    assert len(said) == 1 and [Path(each.source).stem for each in lost] == ["deadly"] * 6
    assert all("its process died" in each.reason for each in lost)
    assert not (tmp_path/"forked").exists()


def test_whoever_draws_at_random_draws_in_order(captioner, toy, monkeypatch):
    monkeypatch.setattr(captioning, "threads_to_use", lambda: 2)
    by_chance = replace(captioner, picker=make_picker("random", 5))
    paths = find_videos([toy/"videos"])
    torch.manual_seed(0)
    picked = [[found.picked for found in by_chance.caption_many(paths)]]
    torch.manual_seed(0)
    picked.append([by_chance.caption(path).picked for path in paths])
    assert picked[0] == picked[1] and len({str(each) for each in picked[0]}) > 1


def test_whoever_stops_asking_ends_the_threads(captioner, toy, monkeypatch):
    monkeypatch.setattr(captioning, "threads_to_use", lambda: 2)
    before, many = threading.active_count(), captioner.caption_many(find_videos([toy/"videos"]) * 3)
    next(many)
    many.close()
    assert threading.active_count() == before


def test_a_folder_is_captioned_with_as_many_threads_as_people_have(toy, tmp_path):
    # the suite runs with one
    around = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = run_process(
        [sys.executable, "-m", "picknet_nb.interface.main", "caption", str(toy/"videos")],
        cwd=tmp_path,
        env=around | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert said.returncode == 0 and len(said.stdout.splitlines()) >= len(
        find_videos([toy/"videos"])
    ), said.stderr


def test_whoever_asks_for_what_cannot_be_hears_of_it_from_any_process(captioner, toy):
    for paths in (find_videos([toy/"videos"]), [toy/"videos"/"example.mp4"]):
        with pytest.raises(PickNetError, match="beam and best must be 1 or more"):
            list(captioner.caption_many(paths, beam=0))
        with pytest.raises(PickNetError, match="threshold is a probability"):
            captioner.caption_many(paths, threshold=2)


def test_a_folder_of_fifty_goes_on_past_a_broken_file(captioner, toy, tmp_path):
    for number in range(50):
        os.link(
            toy/"videos"/"example.mp4", tmp_path/f"{number:02d}.mp4"
        ) if number != 17 else (tmp_path/"17.mp4").write_bytes(b"broken")
    results = list(captioner.caption_many(find_videos([tmp_path]), running=False))
    assert [Path(result.source).stem for result in results] == [
        f"{number:02d}" for number in range(50)
    ]
    failures = [result for result in results if isinstance(result, Failure)]
    assert [Path(failure.source).stem for failure in failures] == ["17"] and failures[0].to_dict()[
        "error"
    ] == failures[0].reason
    said = {result.text for result in results if isinstance(result, Caption)}
    assert said == {captioner.caption(toy/"videos"/"example.mp4").text}


def test_a_caption_from_the_file_is_the_one_from_the_corpus(captioner, toy):
    model, config, vocabulary, details = load_run(toy/"run")
    corpus = examples_corpus(toy/"videos", config.clip, vocabulary)
    picker = Recipe(**details["recipe"]).make_picker(model.policy, config.policy.threshold)
    words, picks = caption_videos(
        model, corpus, corpus.splits["train"], frame_choice(picker, corpus)
    )
    for name, text, chosen in zip(corpus.ids, vocabulary.decode(words), picks):
        caption = captioner.caption(toy/"videos"/f"{name}.mp4")
        assert caption.text == text and caption.picked == chosen.nonzero().flatten().tolist()


def test_other_pickers_and_feature_glances(captioner, toy):
    clip = captioner.read(toy/"videos"/"example.mp4")
    for picker, count in {
        make_picker("uniform", 6): 6,
        make_picker("kmeans", 4): 4,
        make_picker("all"): 30,
    }.items():
        assert (
            len(caption_clip(replace(captioner, picker=picker), clip).picked)
            == count
        )
    torch.manual_seed(0)
    policy = Policy(captioner.backbone.dims, 16)
    model = replace(captioner, picker=make_picker("learned", policy=policy), glance_size=0)
    caption, watcher = caption_clip(model, clip), Watcher(model, forget=False)
    remarks = [
        remark for number, frame in enumerate(clip.frames) if (remark := watcher.see(number, frame))
    ]
    assert [remark.frame for remark in remarks] == caption.picked and [
        remark.text for remark in remarks
    ] == caption.captions


class Counting(Backbone):
    "A backbone that counts its frames."
    seen = 0

    def forward(self, frames):
        self.seen += len(frames)
        return super().forward(frames)


@pytest.mark.parametrize(
    "name, number, grey, seen",
    [
        ("uniform", 6, True, 6),
        ("all", None, True, 30),
        ("random", 5, True, 5),
        ("kmeans", 6, True, 30),
        ("learned", None, True, None),
        ("learned", None, False, 30),
    ],
)
def test_the_cnn_sees_no_frame_twice_and_none_that_nobody_asked_for(
    captioner, toy, name, number, grey, seen
):
    clip = captioner.read(toy/"videos"/"example.mp4")
    cnn = captioner.backbone
    policy = captioner.picker.policy if grey else Policy(captioner.backbone.dims, 16)
    counting = Counting(cnn.name, cnn.body, cnn.dims, cnn.image_size)
    picker = make_picker(name, number, policy if name == "learned" else None)
    model = replace(
        captioner, backbone=counting, picker=picker, glance_size=56 if grey else 0)
    caption = caption_clip(model, clip)
    assert counting.seen == (seen or len(caption.picked))
    clips = look_over(model, clip.frames)
    picks, probabilities = decide(model, clips)
    torch.testing.assert_close(
        look_closely(model, clip.frames, clips, picks), cnn(clip.frames).half()[picks]
    )
    assert len(probabilities) == 30


def test_a_threshold_is_for_policies(captioner, toy, tmp_path):
    path = toy/"videos"/"example.mp4"
    unsure = load_captioner(undecided(shutil.copytree(toy/"run", tmp_path/"run")), device="cpu")
    assert len(unsure.caption(path, threshold=0.01).picked) > len(
        unsure.caption(path, threshold=0.99).picked
    )
    blind = replace(captioner, picker=make_picker("uniform", 6))
    with pytest.raises(
        PickNetError, match="uniform-6 picks without a policy, so it has no threshold"
    ):
        blind.caption(path, threshold=0.3)


def test_a_file_is_captioned_with_the_threshold_that_the_run_was_stored_with(toy, tmp_path):
    picked = {}
    for threshold in (0.001, 0.999):
        run = store_run(tmp_path/str(threshold), toy/"videos", threshold=threshold)
        mine = load_captioner(run, device="cpu")
        picked[threshold] = len(mine.caption(toy/"videos"/"example.mp4").picked)
        many, = mine.caption_many([toy/"videos"/"example.mp4"])
        assert len(many.picked) == picked[threshold]
    assert picked[0.001] > 20 and picked[0.999] < 5


def test_a_model_is_exported_with_a_threshold(toy, tmp_path):
    run, picked = store_run(tmp_path/"run", toy/"videos"), {}
    for threshold in (None, 0.001, 0.999):
        folder = export_model(run, tmp_path/str(threshold), threshold=threshold)
        mine = load_captioner(folder, device="cpu")
        assert mine.picker.threshold == (0.5 if threshold is None else threshold)
        picked[threshold] = len(mine.caption(toy/"videos"/"example.mp4").picked)
    assert picked[0.001] > 20 and picked[0.999] < 5
    with pytest.raises(ConfigError, match="threshold"):
        export_model(run, tmp_path/"two", threshold=2)
    assert not (tmp_path/"two").exists()


def test_a_file_is_captioned_without_repeats_where_the_model_says_so(toy, tmp_path):
    run, repeated = store_run(tmp_path/"run", toy/"videos"), {}
    for no_repeats in (False, True):
        folder = export_model(run, tmp_path/str(no_repeats), Decoding(no_repeats=no_repeats))
        mine = load_captioner(folder, device="cpu")
        words = mine.caption(toy/"videos"/"example.mp4").text.split()
        pairs = list(zip(words, words[1:]))
        repeated[no_repeats] = len(pairs) - len(set(pairs))
    assert repeated[False] > 0 and repeated[True] == 0


def test_dropout_stays_off_whatever_the_mode(toy, tmp_path):
    run = store_run(tmp_path/"run", toy/"videos", dropout=0.5, input_dropout=0.5)
    mine = load_captioner(run, device="cpu")
    said = mine.caption(toy/"videos"/"example.mp4").scores
    mine.captioner.train()
    assert (
        mine.caption(toy/"videos"/"example.mp4").scores == said
        and mine.captioner.training
    )
    assert [each.text for each in mine.stream(toy/"videos"/"example.mp4")] == [
        each.text for each in mine.stream(toy/"videos"/"example.mp4")
    ]


def test_a_run_on_weights_of_ones_own_asks_for_them_instead_of_fetching_others(
    toy, tmp_path, monkeypatch
):
    run = shutil.copytree(toy/"run", tmp_path/"run")
    about = json.loads((run/"run.json").read_text())
    about["details"] |= {"cnn": "resnet18", "weights": "my net.pth 0123456789ab"}
    (run/"run.json").write_text(json.dumps(about))
    monkeypatch.setattr(
        "picknet_nb.data.backbones._download_weights",
        lambda name: pytest.fail("nothing should be fetched"),
    )
    with pytest.raises(
        RunError, match=r"made with my net.pth \(0123456789ab\): give that file .*--weights"
    ):
        load_captioner(run, device="cpu")


def test_a_captioner_of_ones_own_captions_files(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(CAPTIONERS, "looker", Looker)
    run = store_run(tmp_path/"run", toy/"videos", architecture="looker")
    mine = load_captioner(run, device="cpu")
    caption = mine.caption(toy/"videos"/"example.mp4", beam=2, best=2)
    assert len(caption.n_best) == 2 and len(caption.captions) == len(caption.picked) > 2
    clip = mine.read(toy/"videos"/"example.mp4")
    picks = torch.isin(torch.arange(30), torch.tensor(caption.picked))[None]
    words = caption_frames(
        mine.captioner,
        mine.features(clip.frames)[None],
        picks,
        mine.max_words,
        beam_size=2,
    )
    # times and all, the same as in training
    assert mine.vocabulary.decode(words) == [caption.text]
    assert mine.caption(toy/"videos"/"example.mp4", beam=2, running=False).text == caption.text
    monkeypatch.delitem(CAPTIONERS, "looker")
    with pytest.raises(
        RunError, match="config.json: no captioner 'looker'.*registered first.*--use MODULE"
    ):
        load_captioner(run, device="cpu")


def test_a_picker_of_ones_own_picks_frames_of_files(toy, tmp_path, monkeypatch):
    PICKERS.add("brightest", number=int, looks_at="glances", random=False)(brightest)
    monkeypatch.setitem(PICKERS, "brightest", PICKERS.pop("brightest"))
    run = store_run(tmp_path/"run", toy/"videos", Recipe("brightest", 4))
    mine = load_captioner(run, device="cpu")
    caption = mine.caption(toy/"videos"/"example.mp4")
    assert (
        mine.picker.label == "brightest-4"
        and 4 <= len(caption.picked) <= 5
        and set(caption.probabilities) == {0.0, 1.0}
    )
    with pytest.raises(PickNetError, match="brightest-4 cannot choose"):
        next(mine.stream(toy/"videos"/"example.mp4"))
    monkeypatch.delitem(PICKERS, "brightest")
    with pytest.raises(RunError, match="run.json: no picker 'brightest'.*--use MODULE"):
        load_captioner(run, device="cpu")


def test_a_cnn_of_ones_own_is_found_again(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKBONES, "colours", colours)
    run = store_run(tmp_path/"run", toy/"videos", cnn="colours")
    mine = load_captioner(run, device="cpu")
    assert (
        mine.backbone.name == "colours"
        and mine.backbone.image_size == 64
        and mine.caption(toy/"videos"/"example.mp4").text
    )
    monkeypatch.delitem(BACKBONES, "colours")
    with pytest.raises(RunError, match="run.json: no backbone 'colours'.*--use MODULE"):
        load_captioner(run, device="cpu")


def test_the_paper_s_method_is_recognised(toy, tmp_path):
    run = shutil.copytree(toy/"run", tmp_path/"run")
    about = json.loads((run/"run.json").read_text())
    for language, diversity in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
        recipe = about["recipe"] | {"language": language, "diversity": diversity}
        (run/"run.json").write_text(json.dumps(about | {"recipe": recipe}))
        assert has_both_rewards(run) == (language == diversity)


@pytest.mark.parametrize(
    "recipe",
    [
        {"picker": 7},
        {"picker": "uniform"},
        {"picker": "learned", "colour": "red"},
        {"picker": "nothing-6"},
    ],
)
def test_a_garbled_recipe_is_refused_with_its_file(toy, tmp_path, recipe):
    run = shutil.copytree(toy/"run", tmp_path/"run")
    about = json.loads((run/"run.json").read_text())
    (run/"run.json").write_text(json.dumps(about | {"recipe": recipe}))
    with pytest.raises(RunError, match="run.json"):
        load_captioner(run, device="cpu")
