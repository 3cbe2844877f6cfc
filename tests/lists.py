"A list of short clips and broken files, the rows that one process makes of it, odd servers."
import http.server
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from picknet_nb.use.many import Specification
from picknet_nb.use.tables import FORMATS
from picknet_nb.world.shapes import make_story
from picknet_nb.world.world import write_clip

SHAPES = Specification("shapes")


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[str]:
    "Four good clips, and four files that are none, among them one that claims 2**31 frames."
    folder = tmp_path_factory.mktemp("videos")
    for number in range(4):
        write_clip(make_story((5, number)), folder/f"{number:02}.mp4")
    content = (folder/"00.mp4").read_bytes()
    sizes = content.index(b"stsz")
    swollen = content[: sizes + 8] + b"\0\0\0\1\x7f\xff\xff\xff" + content[sizes + 16 :]
    broken = {"a": b"", "b": b"some words", "c": content[: len(content) // 2], "d": swollen}
    for name, damaged in broken.items():
        (folder/f"0{name}.mp4").write_bytes(damaged)
    return sorted(map(str, folder.glob("*.mp4")))


@pytest.fixture(scope="module")
def good(videos) -> list[str]:
    "Those that are videos."
    return [video for video in videos if Path(video).stem.isdecimal()]


@pytest.fixture(scope="module")
def captioner():
    "The model of the toy world, loaded once."
    return SHAPES.load()


@pytest.fixture(scope="module")
def rows(videos, captioner) -> list[dict]:
    "What one process says about them."
    return list(captioner.rows(videos))


def read(path: Path) -> list[dict]:
    "The rows of a finished table."
    return list(FORMATS[path.suffix][1](path))


@contextmanager
def served(answer, port: int = 0):
    "The address of a server on this machine that answers each GET with `answer(handler)`."
    handler = type("Handler", (http.server.SimpleHTTPRequestHandler,), {
        "do_GET": lambda self: answer(self), "log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def send(handler, content: bytes, **headers) -> None:
    "Answer with these bytes."
    handler.send_response(200)
    for name, value in {"Content-Length": len(content), **headers}.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(content)
