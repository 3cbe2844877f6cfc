"""The explorer without a browser, and then in a real Chromium: JupyterLab's widgets as `picknet
explore` serves them."""
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

pytest.importorskip("av")

from browser import chromium_tool, find_chromium, laboratory, launch, settled, slider, started
from conftest import free_port
from toys import Looker, brightest, store_run, undecided

from picknet_nb.core.files import PickNetError
from picknet_nb.data.video_files import VideoError
from picknet_nb.world.world import write_examples
from picknet_nb.method.captioner import CAPTIONERS
from picknet_nb.method.pickers import PICKERS, make_picker
from picknet_nb.method.recipes import Recipe
from picknet_nb.method.rewards import (
    REWARDS, diversity_reward, measure_diversity, reward_from)
from picknet_nb.training.models import example_run, find_model
from picknet_nb.use import page as module, server
from picknet_nb.use.loading import load_captioner
from picknet_nb.use.exploration import Exploration, Library, limited_threshold, threshold_sweep
from picknet_nb.use.page import (
    Explorer, captions_html, choose_sources, first_look, head_html)
from picknet_nb.use.server import write_page


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    "A folder with a run and the clips it knows."
    folder = tmp_path_factory.mktemp("toy")
    undecided(example_run(folder, clips=4))
    return folder


@pytest.fixture
def exploration(toy):
    return Exploration(load_captioner(toy/"run", device="cpu"), Library(toy/"videos"))


def test_nothing_outside_the_folder_can_be_opened(exploration, toy, tmp_path):
    secret = shutil.copy(toy/"videos"/"example.mp4", tmp_path/"secret.mp4")
    (toy/"videos"/"link.mp4").symlink_to(secret)
    for name in ("../run/run.json", str(secret), "link.mp4", "../../secret.mp4", "nothing.mp4", ""):
        with pytest.raises(VideoError, match="is not one of the clips"):
            exploration.choose(name)
    (toy/"videos"/"link.mp4").unlink()


def test_a_folder_that_is_not_there_is_named_as_it_was_typed(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VideoError, match="^nodir: no such folder$"):
        Library("nodir")
    with pytest.raises(VideoError, match="example.mp4: is a file"):
        Library(toy/"videos"/"example.mp4")


def test_links_to_nothing_are_not_shown(toy, tmp_path):
    (tmp_path/"a.mp4").symlink_to(tmp_path/"nowhere.mp4")
    with pytest.raises(VideoError, match="only links, to videos that are gone"):
        Library(tmp_path)
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"b.mp4")
    assert Library(tmp_path).names == ["b.mp4"]


def test_links_are_followed_where_they_led_when_the_folder_was_opened(toy, tmp_path):
    (tmp_path/"a.mp4").symlink_to(toy/"videos"/"example.mp4")
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"b.mp4")
    (tmp_path/"c.mp4").symlink_to(tmp_path/"b.mp4")
    library = Library(tmp_path)
    assert library.names == ["a.mp4", "b.mp4", "c.mp4"]
    assert library.path("a.mp4") == tmp_path/"a.mp4"
    (tmp_path/"a.mp4").unlink()
    (tmp_path/"a.mp4").symlink_to(toy/"videos"/"clip 1.mp4")
    with pytest.raises(VideoError, match="is not one of the clips"):
        library.path("a.mp4")


def test_a_clip_without_captions_has_no_reward(toy, tmp_path):
    (tmp_path/"videos").mkdir()
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"videos")
    bare = Exploration(load_captioner(toy/"run", device="cpu"), Library(tmp_path/"videos"))
    bare.frame = 29
    told = module.rewards_html(bare.moment())
    assert "No reward: " in told and "penalty" not in told and "reward so far" not in told


def test_weights_of_ones_own_reach_the_page(toy, monkeypatch):
    launched = []
    monkeypatch.setattr(
        pytest.importorskip("voila.app").Voila,
        "launch_instance",
        lambda *_, **__: launched.append(os.environ[server._SOURCES]),
    )
    for part in (module, server):
        monkeypatch.setattr(
            part,
            "load_captioner",
            lambda run, device=None, weights=None: (
                load_captioner(run, "cpu") if weights else pytest.fail("no weights")
            ),
        )
    monkeypatch.setenv(server._SOURCES, "{}")
    server.serve(toy/"run", toy/"videos", browser=False, weights="mine.pth")
    assert json.loads(launched[0])["weights"] == str(Path("mine.pth").resolve())
    assert server.page().exploration.viewing


def test_limits_are_kept_where_any_threshold_keeps_them(exploration):
    policy, glances = exploration.captioner.picker.policy, exploration.viewing.glances
    counts = set(
        threshold_sweep(policy, glances, torch.linspace(-8, 8, 161).sigmoid()).sum(1).tolist()
    )
    for low, high in ((1, 30), (1, 2), (4, 6), (20, 30), (30, 30)):
        threshold = limited_threshold(policy, glances, 0.5, low, high)
        count = threshold_sweep(policy, glances, torch.tensor([threshold])).sum().item()
        if any(low <= each <= high for each in counts):
            assert low <= count <= high


def test_state_follows_every_control(exploration):
    exploration.choose("example.mp4")
    first = exploration.outcome()
    exploration.threshold = 0.01
    assert exploration.outcome().picks.sum() > first.picks.sum()
    exploration.limits = (1, 3)
    assert exploration.outcome().picks.sum() <= 3
    exploration.picker, exploration.limits = make_picker("uniform", 6), None
    assert exploration.outcome().picks.sum() == 6
    first, second = (
        exploration.outcome(make_picker("random", 5)).picks
        for _ in range(2)
        if exploration.outcomes.clear() is None
    )
    assert first.equal(second)
    exploration.frame = 29
    moment = exploration.moment()
    assert (
        moment.n_picks == 6
        and moment.caption == exploration.outcome().captions[-1]
        and moment.rewards["language"] >= 0
    )


def test_a_captioner_of_ones_own_is_explored(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(CAPTIONERS, "looker", Looker)
    mine = load_captioner(
        store_run(tmp_path/"run", toy/"videos", architecture="looker"), device="cpu"
    )
    exploration = Exploration(mine, Library(toy/"videos"))
    exploration.choose("example.mp4")
    assert exploration.outcome().captions == mine.caption(toy/"videos"/"example.mp4").captions
    assert all(exploration.outcome(each).captions[-1] for each in exploration.rivals())


def test_a_picker_of_ones_own_is_explored(toy, tmp_path, monkeypatch):
    pytest.importorskip("ipywidgets")
    PICKERS.add("brightest", number=int, looks_at="glances", random=False)(brightest)
    monkeypatch.setitem(PICKERS, "brightest", PICKERS.pop("brightest"))
    run = store_run(tmp_path/"run", toy/"videos", Recipe("brightest", 4))
    explorer = Explorer(run, toy/"videos", device="cpu")
    names = [label for label, _ in explorer.controls["picker"].options]
    assert (
        names[0] == "brightest-4"
        and "PickNet" not in names
        and "picks by brightest-4" in head_html(explorer.exploration)
    )
    assert (
        explorer.exploration.outcome().name == "brightest-4"
        and "dropped by brightest-4"
        in module.moment_html(
            next(
                moment
                for explorer.exploration.frame in range(30)
                if not (moment := explorer.exploration.moment()).picked
            ),
            explorer.exploration.outcome(),
        )
    )
    rival = Exploration(load_captioner(toy/"run", device="cpu"), Library(toy/"videos")).rivals()
    assert "learned" == rival[0].label and any(each.name == "brightest" for each in rival)
    explorer.controls["picker"].value = explorer.controls["picker"].options[-1][1]
    assert not explorer.board.parts["message"].value


def test_the_reward_is_the_one_that_the_run_was_trained_with(toy, tmp_path, monkeypatch):
    thrifty = reward_from(
        lambda words, videos, features, picks: -picks.sum(1) - words.shape[1] / 99
    )
    monkeypatch.setitem(REWARDS, "thrifty", thrifty)
    limits = dict(min_picks=1, first_max_picks=30, final_max_picks=30)
    found = {}
    for name in ("paper", "thrifty"):
        run = store_run(tmp_path / name, toy/"videos", reward=name, **limits)
        mine = Exploration(load_captioner(run, device="cpu"), Library(toy/"videos"))
        mine.choose("example.mp4")
        mine.frame = 29
        found[name] = mine.moment()
    paper, own = found["paper"].rewards, found["thrifty"].rewards
    picked = found["thrifty"].n_picks
    assert -picked - 1 < own["total"] < -picked and paper["total"] >= 0
    for part in ("language", "diversity", "inside"):
        assert own[part] == paper[part]
    # a clip without captions has words of its own, and nothing that they could agree with
    mine.upload("mine.mp4", (toy/"videos"/"example.mp4").read_bytes())
    mine.frame = 29
    uploaded = mine.moment().rewards
    assert uploaded["language"] is None and uploaded["total"] == own["total"]
    monkeypatch.delitem(REWARDS, "thrifty")
    lost = Exploration(load_captioner(run, device="cpu"), Library(toy/"videos"))
    moment, outcome = lost.moment(), lost.outcome()
    assert moment.rewards is None and "no reward 'thrifty'" in moment.no_reward
    assert "No reward: no reward &#x27;thrifty&#x27;" in module.rewards_html(moment)
    assert "<td>–</td><td>–</td>" in module.comparison_html(lost.viewing, [outcome])


def test_diversity_is_measured_in_random_picks_of_the_clip_itself(exploration):
    "The corpus of the page is blank: its unit would be that of clips that never change."
    exploration.choose("example.mp4")
    viewing, outcome = exploration.viewing, exploration.outcome()
    unit = measure_diversity(viewing.features[None], viewing.settings)
    earned = diversity_reward(viewing.features[None], outcome.picks[None]) / unit
    assert unit != 1 and earned > 0
    torch.testing.assert_close(outcome.rewards.diversity[-1:], earned)


def test_a_page_opens_when_the_picked_frames_have_been_looked_at_and_the_others_follow(
    toy, monkeypatch
):
    pytest.importorskip("ipywidgets")
    waiting, look_on = [], Exploration.look_on
    monkeypatch.setattr(
        Exploration, "look_on", lambda self, then: waiting.append(lambda: look_on(self, then))
    )
    explorer = Explorer(toy/"run", toy/"videos", device="cpu")
    exploration, moment = explorer.exploration, explorer.board.parts["moment"]
    assert (
        sorted(exploration.viewing.looks.known)
        == exploration.outcome().picks.nonzero().flatten().tolist()
        and len(exploration.viewing.looks.left()) > 10
    )
    assert (
        "The reward comes when" in moment.value
        and exploration.outcome().captions[0] in explorer.board.parts["captions"].value
    )
    waiting.pop()().join(60)
    assert not exploration.viewing.looks.left() and "reward so far" in moment.value
    explorer.controls["clip"].value = "example.mp4"
    waiting.pop()
    explorer.controls["picker"].value = next(
        picker
        for label, picker in explorer.controls["picker"].options
        if label.startswith("kmeans")
    )
    assert not exploration.viewing.looks.left()  # it compares features of every frame


def test_frames_of_a_clip_that_is_no_longer_shown_are_not_looked_at(exploration):
    exploration.choose("clip 1.mp4")
    other = exploration.viewing
    exploration.choose("example.mp4")
    looks, seen = exploration.viewing.looks, exploration.captioner.backbone
    exploration.captioner.backbone = lambda frames: (
        setattr(exploration, "viewing", other),
        seen(frames),
    )[1]
    exploration.look_on(lambda: pytest.fail("drawn"), at_once=3).join(60)
    assert len(looks.known) == 3


def test_an_uploaded_clip_is_shown_and_forgotten(exploration, toy):
    exploration.upload("../../mine.mp4", (toy/"videos"/"clip 1.mp4").read_bytes())
    assert (
        exploration.viewing.name == "../../mine.mp4"
        and exploration.moment().rewards["language"] is None
    )
    before = exploration.viewing
    with pytest.raises(VideoError, match="broken.mp4: not a video"):
        exploration.upload("broken.mp4", b"words")
    assert exploration.viewing is before


def test_picks_that_leave_a_sentence_as_it_was_share_its_line(exploration):
    from dataclasses import replace

    outcome = exploration.outcome()
    many = int(outcome.picks.sum())
    assert many >= 3
    texts = ["a dog runs"] * (many - 1) + ["a cat sits"]
    told = replace(outcome, captions=texts)
    shown = captions_html(exploration.viewing, told, int(outcome.picks.nonzero()[-2]))
    assert shown.count("a dog runs") == 1 and f"after {many - 1} picks, to " in shown
    assert shown.index("pn-current") < shown.index("a dog runs") < shown.index("a cat sits")
    one = captions_html(exploration.viewing, replace(outcome, captions=["a dog runs"] * many), 0)
    assert one.count("<li") == 1 + len(exploration.viewing.references)
    assert "a dog runs" in first_look(replace_outcome(exploration, told))


def replace_outcome(exploration, outcome):
    "An exploration with this outcome of the chosen picker."
    from types import SimpleNamespace

    return SimpleNamespace(
        viewing=exploration.viewing, outcome=lambda: outcome, captioner=exploration.captioner,
        library=exploration.library)


def test_a_clip_that_is_too_large_is_not_uploaded(exploration, monkeypatch):
    monkeypatch.setattr("picknet_nb.use.exploration.UPLOAD_MB", 1)
    with pytest.raises(VideoError, match="^big.mp4: is larger than 1 MB: put it into the folder$"):
        exploration.upload("big.mp4", bytes(10**6 + 1))


def test_a_folder_opens_with_the_first_clip_that_can_be_read(toy, tmp_path):
    pytest.importorskip("ipywidgets")
    for name in ("a.mp4", "b.mp4", "d.mp4"):
        (tmp_path / name).write_text("no video")
    for name in ("c.mp4", "e.mp4"):
        shutil.copy(toy/"videos"/"example.mp4", tmp_path / name)
    explorer = Explorer(toy/"run", tmp_path, device="cpu")
    clips, message = explorer.controls["clip"], explorer.board.parts["message"]
    shown = lambda: [label for label, _ in clips.options]
    assert (
        explorer.exploration.viewing.name == clips.value == "c.mp4"
        and "(2 of them cannot be read)" in head_html(explorer.exploration)
    )
    assert shown() == [
        "a.mp4 (cannot be read)",
        "b.mp4 (cannot be read)",
        "c.mp4",
        "d.mp4",
        "e.mp4",
    ]
    clips.value = "d.mp4"
    assert explorer.exploration.viewing.name == "c.mp4" and "d.mp4: not a video" in message.value
    assert clips.value == "d.mp4" and shown()[3] == "d.mp4 (cannot be read)"
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"a.mp4")
    clips.value = "a.mp4"
    assert (
        explorer.exploration.viewing.name == clips.value == "a.mp4"
        and not message.value
        and shown()[0] == "a.mp4"
    )


def test_broken_clips_are_named_when_the_page_is_served(toy, tmp_path, monkeypatch, capsys):
    (tmp_path/"a\x1b[31m.mp4").write_text("no video")
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"b.mp4")
    monkeypatch.setattr(
        pytest.importorskip("voila.app").Voila, "launch_instance", lambda *_, **__: None
    )
    monkeypatch.setenv(server._SOURCES, "{}")
    server.serve(toy/"run", tmp_path, browser=False)
    assert r"cannot be read: 'a\x1b[31m.mp4'" in capsys.readouterr().err


def test_a_folder_of_broken_clips_is_refused_in_one_sentence(toy, tmp_path):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_text("no video")
    with pytest.raises(
        VideoError, match="a.mp4: not a video.*; no other clip of the folder can be read either$"
    ):
        Exploration(load_captioner(toy/"run", device="cpu"), Library(tmp_path))


def test_a_page_whose_videos_have_gone_says_so(toy, tmp_path, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.setenv(
        server._SOURCES, json.dumps({"run": str(toy/"run"), "videos": str(tmp_path/"gone")})
    )
    assert "gone: no such folder" in server.page().value


def test_a_folder_without_captions_works(toy, tmp_path):
    shutil.copy(toy/"videos"/"example.mp4", tmp_path/"<b>odd & name.mp4")
    pytest.importorskip("ipywidgets")
    explorer = Explorer(toy/"run", tmp_path, device="cpu")
    parts = explorer.board.parts
    explorer.board.tabs.selected_index = 1
    assert "–" in parts["comparison"].value
    explorer.board.tabs.selected_index = 0  # by now every frame has been looked at
    assert "no captions" in parts["moment"].value
    explorer.attempt(explorer.exploration.choose, "<i>nothing.mp4")
    assert "&lt;i&gt;" in parts["message"].value


def test_without_run_or_videos_clips_are_written_once_and_the_model_that_knows_them_is_shown(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"cache"))
    monkeypatch.setattr(
        module, "write_examples", lambda folder, clips, seed: write_examples(folder, 2, seed)
    )
    run, videos = choose_sources()
    written = (videos/"captions.json").stat().st_mtime_ns
    assert (
        choose_sources() == (run, videos)
        and (videos/"captions.json").stat().st_mtime_ns == written
    )
    assert run == find_model("shapes") and Library(videos).names
    assert choose_sources(videos=videos) == (find_model("everyday"), videos)


@pytest.mark.parametrize(
    "missing, words", [("ipywidgets", "needs ipywidgets"), ("voila.app", "needs Voilà")]
)
def test_what_is_missing_is_named_with_what_to_install(toy, monkeypatch, missing, words):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PickNetError, match=words):
        Explorer(
            toy/"run", toy/"videos", device="cpu"
        ) if missing == "ipywidgets" else server.serve(toy/"run", toy/"videos")


def test_a_browser_is_fetched_where_that_works_and_missed_with_a_reason_where_not(
    tmp_path, monkeypatch
):
    tool, asked = chromium_tool(), []
    monkeypatch.setattr(tool, "NOTE", tmp_path/"note")
    monkeypatch.setattr(
        tool, "find_chromium", lambda: "/usr/bin/chromium" if "second" in asked else ""
    )
    monkeypatch.setattr(tool, "from_playwright", lambda: asked.append("first") or "no network")
    monkeypatch.setattr(tool, "from_distribution", lambda: asked.append("second") or "")
    tool.main()
    assert asked == ["first", "second"] and not tool.NOTE.exists()
    tool.main()
    assert asked == ["first", "second"]  # there is one now
    monkeypatch.setattr(tool, "find_chromium", lambda: "")
    tool.main()
    assert (
        "Playwright's: no network; the distribution's: it does not run here"
        in tool.NOTE.read_text()
        and len(asked) == 4
    )
    tool.main()
    assert len(asked) == 4  # what could not be had is not tried at every call


def test_a_download_that_hangs_is_given_up_with_all_that_it_has_started(tmp_path):
    child = "import subprocess, sys; subprocess.Popen(['sleep', '300']).wait()"
    assert chromium_tool().attempt(1, sys.executable, "-c", child) == "it took longer than 1 s"
    assert "lost" in chromium_tool().attempt(
        60, "sh", "-c", "echo begun; echo 'Error: lost'; echo more; exit 3"
    )
    assert "No such file" in chromium_tool().attempt(
        60, str(tmp_path/"nothing")
    ) and not chromium_tool().attempt(60, "true")


@pytest.fixture(scope="module")
def address(toy, tmp_path_factory):
    "Where `serve` answers, in a process of its own."
    pytest.importorskip("voila")
    pytest.importorskip("playwright")
    find_chromium()
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "picknet_nb.interface.main",
        "explore",
        "--model",
        toy/"run",
        "--videos",
        toy/"videos",
        "--port",
        str(port),
        "--no-browser",
    ]
    log = tmp_path_factory.mktemp("log")/"server.log"
    with started(command, log, "?token="):
        yield re.search(r"http://\S+\?token=\w+", log.read_text())[0]


@pytest.fixture(scope="module")
def browser(address):
    "A Chromium without a window."
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(address, browser):
    "The page, open and drawn."
    page = browser.new_page(viewport={"width": 1240, "height": 820})
    page.goto(address, timeout=180_000)
    page.wait_for_selector(".pn-strip", timeout=180_000)
    return page


def picked(page) -> int:
    return page.locator(".pn-strip .pn-picked").count()


def first_picture(page) -> str:
    return page.locator(".pn-strip .pn-f0").evaluate(
        "element => getComputedStyle(element).backgroundImage"
    )


def test_a_clip_is_chosen(page, toy):
    shown = first_picture(page)
    page.locator("select").first.select_option("example.mp4")
    settled(page, lambda: first_picture(page), lambda picture: picture != shown)
    told = json.loads((toy/"videos"/"captions.json").read_text())["example"][0]
    # folded, so not yet visible
    settled(page, lambda: page.locator(".pn-captions").text_content(), lambda text: told in text)
    page.get_by_text("what people said").click()


def test_stepping_changes_the_caption_that_stands(page):
    current = page.locator(".pn-captions .pn-current")
    first = settled(page, current.inner_text, bool)
    handle = slider(page, "frame")
    handle.focus()
    for _ in range(29):
        page.keyboard.press("ArrowRight")
    settled(
        page,
        lambda: page.locator(".pn-moment").inner_text(),
        lambda text: text.startswith("frame 30"),
    )
    settled(page, current.inner_text, lambda text: text != first)
    assert page.locator(".pn-strip .pn-now").count() == 1


def test_the_threshold_changes_the_boxes(page):
    before, handle = picked(page), slider(page, "threshold")
    handle.focus()
    page.keyboard.press("Home")
    more = settled(page, lambda: picked(page), lambda count: count > before)
    page.keyboard.press("End")
    settled(page, lambda: picked(page), lambda count: count < more)


def test_pickers_side_by_side(page):
    page.get_by_text("side by side").click()
    settled(page, lambda: page.locator(".pn-compare .pn-row").count(), lambda count: count >= 4)


def upload(page, path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_text("upload a clip").click()
    chooser.value.set_files(path)


def test_a_file_that_is_no_video_becomes_one_red_line(page, tmp_path):
    (tmp_path/"words.mp4").write_text("no video")
    upload(page, tmp_path/"words.mp4")
    settled(
        page,
        lambda: page.locator(".pn-error").inner_text() if page.locator(".pn-error").count() else "",
        lambda text: "words.mp4" in text,
    )


def test_a_clip_of_one_s_own_is_shown(page, toy):
    upload(page, toy/"videos"/"clip 2.mp4")
    settled(page, lambda: page.locator(".pn-error").count(), lambda count: count == 0)
    page.get_by_text("this frame").click()
    settled(
        page,
        lambda: page.locator(".pn-moment").inner_text(),
        lambda text: "there are no captions of this clip" in text,
    )


def test_the_first_picture_is_there_before_the_page_has_a_process(address):
    "What the browser gets first shows the clip; Voilà's spinner counts cells to nobody."
    import urllib.request

    with urllib.request.urlopen(address, timeout=180) as reply:
        text = ""
        while 'id="rendered_cells"' not in text:
            text += reply.read(4096).decode(errors="replace")
    assert 'class="pn-strip"' in text and 'class="pn pn-captions"' in text
    assert "Loading the model; in some seconds" in text
    assert "spinner-container" not in text.partition("<body")[2]


def test_the_first_picture_stays_until_there_is_a_control(browser, address):
    "Between both, the page was white, with `Loading widget...` on it."
    page = browser.new_page()
    page.goto(address, timeout=180_000, wait_until="commit")
    page.wait_for_selector(".pn-strip", timeout=180_000)
    page.wait_for_function(
        "document.querySelector('.widget-slider') || !document.querySelector('.pn-strip')",
        timeout=180_000)
    assert page.locator(".widget-slider").count() and not page.locator(".pn-first").count()
    page.close()


def test_on_a_telephone_the_caption_comes_first_and_nothing_is_cut(browser, address):
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(address, timeout=180_000)
    page.wait_for_selector(".widget-slider", timeout=180_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    box = lambda what: page.locator(what).first.bounding_box()
    caption, moment = box(".pn-captions .pn-current"), box(".pn-moment")
    assert caption["y"] < moment["y"]
    for what in (".pn-captions", ".pn-moment", ".pn-strip", ".widget-dropdown", ".widget-slider"):
        for each in page.locator(what).all():
            if (place := each.bounding_box()) and place["width"]:
                assert place["x"] >= 0 and place["x"] + place["width"] <= 400, what
    for track in page.locator(".widget-slider .noUi-base").all():
        assert track.bounding_box()["width"] > 60
    page.close()


def test_the_server_hands_out_no_files(address):
    for name in (
        "voila/files/explore.ipynb",
        "voila/files/../../etc/passwd",
        "voila/files/%2e%2e/%2e%2e/etc/passwd",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address.replace("?", f"{name}?"))
        assert refused.value.code in (403, 404)


def test_jupyterlab_shows_the_same_page(browser, toy, tmp_path):
    code = (f"from picknet_nb.use.page import Explorer\nExplorer({str(toy/'run')!r}, "
            f"{str(toy/'videos')!r}, device='cpu')")
    notebook = json.loads(write_page(tmp_path).read_text())
    notebook["cells"][0]["source"] = code
    (tmp_path/"explore.ipynb").write_text(json.dumps(notebook))
    with laboratory(browser, tmp_path/"explore.ipynb") as page:
        page.wait_for_selector(".pn-strip", timeout=180_000)
        before, handle = picked(page), slider(page, "threshold")
        handle.focus()
        page.keyboard.press("Home")
        settled(page, lambda: picked(page), lambda count: count > before)
