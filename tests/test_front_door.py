"Addresses, files that are no videos, and the hint at the better model: what newcomers type first."
import functools
import http.server
import json
import re
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file
from test_video import sound_only
from toys import film, invoked

import picknet_nb as pn
from picknet_nb.core.processes import _Apart, can_fork
from picknet_nb.data.video import stream_frames
from picknet_nb.data.video_files import VideoError
from picknet_nb.interface import watch as watching
from picknet_nb.training.cards import find_model
from picknet_nb.use import loading
from picknet_nb.use.sources import check_page

pytest.importorskip("av")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "The address of a server with a film and a page."
    folder = tmp_path_factory.mktemp("site")
    film(folder/"film.mp4")
    (folder/"page.html").write_text("<!doctype html><title>a film</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    handler.func.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr(loading, "load_captioner", lambda *_, **__: pytest.fail("too late"))


def test_an_address_is_captioned_like_the_file_that_is_there(site, tmp_path):
    folder, address = site
    found = pn.caption(f"{address}/film.mp4", "shapes")
    file = pn.caption(folder/"film.mp4", "shapes")
    assert (found.source, found.text, found.picked) == (
        f"{address}/film.mp4", file.text, file.picked)
    done = invoked("caption", f"{address}/film.mp4", f"{address}/gone.mp4", "--model", "shapes",
                   "--json", "--out", tmp_path/"{}.png")
    one, none = map(json.loads, done.stdout.splitlines())
    assert (one["source"], one["caption"]) == (f"{address}/film.mp4", file.text)
    assert none["source"] == f"{address}/gone.mp4"
    assert none["error"] == "the server has no such file (404)"
    assert done.exit_code == 3 and (tmp_path/"film.png").exists()
    done = invoked("caption", f"{address}/film.mp4", "--model", "shapes", "--out",
                   tmp_path/"{}.srt")
    assert done.exit_code == 0 and (tmp_path/"film.srt").exists()


def test_a_page_is_no_video_and_no_model_is_loaded_to_say_so(site, no_model):
    _, address = site
    done = invoked("caption", f"{address}/page.html")
    assert done.exit_code == 1
    assert f"left out: {address}/page.html: is a web page, not a video" in done.output
    for page in ("https://www.youtube.com/watch?v=x", "https://youtu.be/x"):
        assert "is a page of YouTube, not a video file" in invoked("caption", page).output
        with pytest.raises(VideoError, match="is a page of YouTube"): check_page(page)
        with pytest.raises(VideoError, match="is a page of YouTube"): pn.caption(page, "shapes")
    check_page("https://example.org/youtube.com/film.mp4")


@pytest.mark.parametrize("kind", ("text", "cut", "sound", "empty"))
@pytest.mark.parametrize("ending", ("", "srt"))
def test_a_bad_file_is_judged_before_a_model_is_loaded(tmp_path, no_model, kind, ending):
    path = tmp_path/"film.mp4"
    if kind == "sound":
        sound_only(path)
    else:
        content = film(path, total=60).read_bytes()
        path.write_bytes(
            {"text": b"some words", "cut": content[: len(content) // 2], "empty": b""}[kind])
    done = invoked("caption", path, *(["--out", tmp_path/f"f.{ending}"] if ending else []))
    assert done.exit_code == 1 and not (tmp_path/f"f.{ending}").exists()
    cut = "not a video, or a damaged one" if ending else "is truncated"
    reason = {"text": "is text", "cut": cut, "sound": "has sound but no video",
              "empty": "is empty"}[kind]
    assert reason in f"{done.output} {done.exception}"


WITHOUT_PYTORCH = """
import sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from picknet_nb.interface.main import app
for name in sys.argv[1:]:
    for command in ("caption", "stream"):
        done = CliRunner().invoke(app, [command, name])
        print(done.exit_code, *done.output.splitlines(), done.exception)
"""


def test_a_bad_file_is_judged_without_pytorch(tmp_path):
    "Importing it takes seconds, and an error about a file should not."
    (tmp_path/"none").mkdir()
    (tmp_path/"text.mp4").write_text("some words")
    (tmp_path/"empty.mp4").touch()
    content = film(tmp_path/"whole.mp4", total=60).read_bytes()
    (tmp_path/"cut.mp4").write_bytes(content[: len(content) // 2])
    sound_only(tmp_path/"sound.mp4")
    reasons = {
        "missing.mp4": "no such file", "none": "folder", "text.mp4": "is text",
        "empty.mp4": "is empty", "cut.mp4": "truncated|damaged",
        "sound.mp4": "has sound but no video", "https://films.invalid/a.mp4": "no host",
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH, *reasons], cwd=tmp_path, text=True,
        capture_output=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(reasons), done.stderr
    for name, *both in zip(reasons, lines[::2], lines[1::2]):
        for line in both:
            assert re.match(f"1 .*{name}: .*({reasons[name]})", line), line


@pytest.mark.parametrize("command", (("caption",), ("stream",)))
def test_missing_weights_are_missed_before_a_model_is_loaded(tmp_path, no_model, command):
    film(tmp_path/"film.mp4")
    done = invoked(*command, tmp_path/"film.mp4", "--weights", tmp_path/"none.safetensors")
    assert "none.safetensors: no such file" in str(done.exception)


def test_a_host_that_does_not_exist_is_named(no_model):
    done = invoked("caption", "https://films.invalid/a.mp4")
    assert "there is no host films.invalid: check the address" in done.output
    with pytest.raises(VideoError, match="there is no host films.invalid"):
        list(stream_frames("http://films.invalid/a.mp4"))


def test_people_at_a_terminal_hear_of_the_better_model(monkeypatch, capsys):
    watching.hint_at_better_models(find_model())
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    watching.hint_at_better_models(find_model("shapes"))
    assert not capsys.readouterr().err
    watching.hint_at_better_models(find_model())
    hint = capsys.readouterr().err
    assert "a little better, and slower: --model sharp (its backbone: " in hint


def test_half_precision_is_not_what_the_card_was_measured_with(tmp_path, capsys):
    for kind in (torch.float32, torch.float16):
        save_file({"x": torch.zeros(2, dtype=kind)}, tmp_path/"w.safetensors")
        watching.hint_at_weights(tmp_path/"w.safetensors", find_model("sharp"))
        assert ("w.safetensors holds F16" in capsys.readouterr().err) == (kind == torch.float16)


def test_an_output_below_a_file_is_an_error_that_says_so(tmp_path, no_model):
    film(tmp_path/"film.mp4")
    (tmp_path/"notes.txt").touch()
    done = invoked("caption", tmp_path/"film.mp4", "--out", tmp_path/"notes.txt"/"p.png")
    assert "notes.txt is a file, not a folder" in str(done.exception)


@pytest.mark.skipif(not can_fork(), reason="no process to end")
def test_a_process_whose_line_was_collected_first_is_ended_without_an_error():
    "At the end of Python garbage goes in any order, a connection before what closes it."
    process = _Apart(iter, ([1],), None, None, RuntimeError).start()
    line = process.line
    line.__del__()  # closes the file and does not say so
    process.close()
    line._handle = None
    assert not process.process.is_alive()
