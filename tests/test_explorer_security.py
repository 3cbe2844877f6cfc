"""Who gets an answer of `picknet explore`: a real server, real requests and websockets, as a
hostile page or neighbour would send them.

By hand, `python tests/test_explorer_security.py 20` opens so many pages at once and prints what
each of them costs.
"""
import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import stat
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("av")
pytest.importorskip("voila")

from conftest import Forked, free_port
from reliability import wait_for
from browser import running
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClosedError, websocket_connect

from picknet_nb.training.models import example_run
from picknet_nb.use import server as explorer
from picknet_nb.use.server import why_rejected
from picknet_nb.interface import main as cli

PAGES = 2  # at once, in these tests
STRANGERS = [
    {"Host": "attacker.example:{port}"},
    {"Host": "attacker.example:{port}", "Origin": "http://attacker.example:{port}"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "127.0.0.1:{port}", "Origin": "http://attacker.example"},
    {"Host": "127.0.0.1:{port}", "Origin": "null"},
    {"Host": "127.0.0.1:{port}", "Origin": "http://127.0.0.1:1"},
    {"Host": "127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
]


class Server:
    "A running explorer, and what one can ask of it."

    def __init__(self, process, log: Path):
        self.process, self.log = process, log
        self.base, self.token = re.search(
            r"(http://[\w.:]+/)(?:\?token=(\w+))?", log.read_text()
        ).groups(default="")
        self.port = int(self.base.split(":")[-1].strip("/"))

    def kernels(self) -> int:
        "How many kernels were started so far."
        return self.log.read_text().count("Kernel started")

    async def ask(self, path: str = "", headers=None, **options):
        "The answer to one request, whatever it is."
        request = HTTPRequest(
            self.base + path, headers=headers, request_timeout=90, follow_redirects=False, **options
        )
        return await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)

    async def knock(self, kernel: str, headers) -> int:
        "What a websocket to a kernel is answered; 101: it is open."
        address = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel}/channels?session_id=1"
        try:
            (await websocket_connect(HTTPRequest(address, headers=headers))).close()
        except HTTPClientError as error:
            return error.code
        return 101

    async def open(self) -> "Opened":
        "A page, as a browser opens it."
        answer = await self.ask("?token=" + self.token)
        return Opened(self, answer)


class Opened:
    "A page that is open: its kernel and its cookies."

    def __init__(self, server: Server, answer):
        self.server, self.code, self.text = server, answer.code, answer.body.decode()
        self.cookies = "; ".join(
            each.split(";")[0] for each in answer.headers.get_list("Set-Cookie")
        )
        self.own = {
            "Host": f"127.0.0.1:{server.port}",
            "Origin": server.base.strip("/"),
            "Cookie": self.cookies,
        }
        self.kernel = (
            re.search(r'"kernelId": "([\w-]+)"', self.text)[1] if self.code == 200 else None
        )

    async def close(self) -> int:
        "What a browser sends when its tab is closed."
        code = re.search(r"_xsrf=([^;]*)", self.cookies)[1]
        answer = await self.server.ask(
            f"voila/api/shutdown/{self.kernel}",
            {**self.own, "Content-Type": "application/x-www-form-urlencoded"},
            method="POST",
            body="_xsrf=" + code,
        )
        return answer.code


def explore(folder: Path, log: Path, pages: int) -> None:
    "`picknet explore` in a folder, for few pages and small clips; what it says in a file."
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    explorer.UPLOAD_MB, explorer.serve = 1, partial(explorer.serve, pages=pages)
    with open(log, "a") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    sys.argv = [
        "picknet",
        "explore",
        "--model",
        "run",
        "--videos",
        "videos",
        "--port",
        str(free_port()),
        "--no-browser",
    ]
    cli.main()


def toy_server(folder: Path, pages: int):
    "An explorer, started in a folder that has settings of somebody else."
    example_run(folder, clips=2)
    (folder/"voila.json").write_text(json.dumps({"Voila": {"token": "", "ip": "0.0.0.0"}}))
    (log := folder/"server.log").touch()
    return running(Forked(explore, folder, log, pages), log, "http://")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    with toy_server(folder, PAGES) as process:
        yield Server(process, folder/"server.log")


@pytest.fixture(scope="module")
def opened(server):
    "A page that stays open."
    opened = asyncio.run(server.open())
    assert opened.code == 200
    return opened


def local(headers: dict, server: Server) -> dict:
    return {name: value.format(port=server.port) for name, value in headers.items()}


@pytest.mark.parametrize("headers", STRANGERS, ids=lambda headers: " ".join(headers.values()))
def test_a_web_page_of_somebody_else_fails_at_its_first_step(server, headers):
    before = server.kernels()
    for path in (
        "",
        "?token=" + server.token,
        "voila/static/voila.js",
        "voila/files/explore.ipynb",
        f"api/kernels/{uuid.uuid4()}",
    ):
        for method in ("GET", "HEAD", "POST"):
            answer = asyncio.run(
                server.ask(
                    path,
                    local(headers, server),
                    method=method,
                    body="x" if method == "POST" else None,
                )
            )
            assert answer.code == 403 and b"<" not in answer.body
    assert server.kernels() == before
    assert why_rejected(local(headers, server))


@pytest.mark.parametrize("headers", STRANGERS, ids=lambda headers: " ".join(headers.values()))
def test_a_websocket_of_somebody_else_is_refused_even_with_cookie_and_kernel(
    server, opened, headers
):
    assert (
        asyncio.run(
            server.knock(opened.kernel, {"Cookie": opened.cookies, **local(headers, server)})
        )
        == 403
    )


def test_without_the_token_nothing_is_started_and_no_kernel_is_reached(server, opened):
    before = server.kernels()
    bare = {name: value for name, value in opened.own.items() if name != "Cookie"}
    for path in (
        "",
        "?token=",
        "?token=" + "0" * 48,
        "explore.ipynb",
        f"api/kernels/{opened.kernel}",
        "voila/files/explore.ipynb",
        "voila/files/open.html",
    ):
        for method in ("GET", "HEAD"):
            assert asyncio.run(server.ask(path, method=method)).code in (403, 405)
    assert (
        asyncio.run(
            server.ask(f"voila/api/shutdown/{opened.kernel}", bare, method="POST", body="")
        ).code
        == 403
    )
    assert asyncio.run(
        server.ask("login", bare, method="POST", body=f"password={server.token}")
    ).code in (403, 405)
    assert asyncio.run(server.knock(opened.kernel, bare)) == 403
    assert server.kernels() == before


def test_the_cookie_alone_starts_nothing(server, opened):
    before = server.kernels()
    answer = asyncio.run(server.ask(headers={"Cookie": opened.cookies}))
    assert (
        answer.code == 403
        and "needs its token" in answer.body.decode()
        and server.kernels() == before
    )
    assert asyncio.run(server.knock(str(uuid.uuid4()), opened.own)) in (403, 404)
    login = next(each for each in opened.cookies.split("; ") if each.startswith("username"))
    assert server.token not in login


async def talk(opened: Opened, content: str):
    """Send one message to the page's kernel; the first answer to it, or the code that the
    connection was closed with."""
    connection = await websocket_connect(
        HTTPRequest(
            f"ws://127.0.0.1:{opened.server.port}/api/kernels/{opened.kernel}/channels"
            "?session_id=1",
            headers=opened.own,
        )
    )
    # the server need not wait for the end of what is too long
    with contextlib.suppress(WebSocketClosedError):
        await connection.write_message(content)
    while (answer := await asyncio.wait_for(connection.read_message(), 60)) is not None:
        if "comm_info_reply" in str(answer):
            connection.close()
            return answer
    return connection.close_code


def test_the_page_itself_reaches_its_kernel_and_a_message_has_a_limit(opened):
    header = {
        "msg_id": "1",
        "msg_type": "comm_info_request",
        "session": "1",
        "username": "",
        "version": "5.3",
        "date": "",
    }
    message = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": {},
        "channel": "shell",
        "buffers": [],
    }
    assert "jupyter.widget" in str(asyncio.run(talk(opened, json.dumps(message))))
    # too big: twice the 1 MB that an upload may have; None: closed before all of it was sent
    assert asyncio.run(talk(opened, "x" * 2_100_000)) in (1009, None)


def test_twenty_at_once_are_two_pages_and_eighteen_sentences_and_a_closed_page_makes_room(
    server, opened
):
    before = server.kernels()

    async def all_at_once(count: int) -> list[Opened]:
        return await asyncio.gather(*(server.open() for _ in range(count)))

    pages = asyncio.run(all_at_once(20))
    new = [page for page in pages if page.code == 200]
    assert len(new) == PAGES - 1 == server.kernels() - before  # `opened` has the other place
    assert all(
        page.code == 503
        and "2 pages are open already" in page.text
        and "Close one and try again" in page.text
        for page in pages
        if page not in new
    )
    assert asyncio.run(new[0].close()) == 204
    again = asyncio.run(server.open())
    assert again.code == 200 and asyncio.run(again.close()) == 204


def test_neighbours_find_neither_token_nor_kernel(server, opened):
    psutil = pytest.importorskip("psutil")
    process = psutil.Process(server.process.pid)
    kernels = process.children(recursive=True)
    assert kernels and not any(
        server.token in " ".join(each.cmdline()) for each in (process, *kernels)
    )
    folder = Path(re.search(r"Storing connection files in (.+)\.", server.log.read_text())[1])
    assert all(stat.S_IMODE(each.stat().st_mode) & 0o077 == 0 for each in (folder, folder.parent))
    if len(str(folder)) > 57:
        pytest.skip("the name of the temporary folder is too long for sockets in it")
    # not a port that all can listen to
    assert {json.loads(path.read_text())["transport"] for path in folder.glob("kernel-*.json")} == {
        "ipc"
    }


@pytest.mark.parametrize(
    "path",
    [
        "voila/templates/x",
        "voila/templates/../static/x",
        "voila/templates/%2e%2e/static/%2e%2e/x",
        "voila/templates/lab/static/none.js",
        "voila/static/../../app.py",
        "voila/labextensions/none.js",
        "voila/labextensions/../../etc/passwd",
        "voila/api/themes/none.css",
        "voila/files/../../etc/passwd",
        "%00",
        "favicon.ico",
        "voila/query/x",
        "api/kernels",
        "?template=../../x",
        "%ff",
    ],
)
def test_odd_addresses_get_no_file_and_leave_no_traceback(server, path):
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
        answer = asyncio.run(
            server.ask(path, method=method, body="x" if method == "POST" else None)
        )
        assert answer.code in (400, 403, 404, 405) or method == "OPTIONS" and answer.code == 204
    assert not re.search("Traceback|Uncaught exception", server.log.read_text())


def half_a_request(server: Server) -> socket.socket:
    "A connection that never says what it wants."
    found = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    found.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: ")
    return found


def is_closed(connection: socket.socket) -> bool:
    "Whether the other side has hung up."
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_crowd_at_the_door_keeps_nobody_out(server):
    before = len(server.log.read_text())
    crowd = [half_a_request(server) for _ in range(300)]
    try:
        answer = asyncio.run(server.ask())
        assert answer.code == 403 and "needs its token" in answer.body.decode()
        wait_for(lambda: sum(map(is_closed, crowd)) >= 200)  # the oldest have gone
    finally:
        for each in crowd: each.close()
    for _ in range(50):
        assert asyncio.run(server.ask()).code == 403
    assert len(server.log.read_text()) - before < 3000, "a line a minute"


def test_half_a_request_is_not_waited_for(server):
    connection = half_a_request(server)
    assert connection.recv(1) == b"", "the server hangs up"


def test_the_token_is_in_the_printed_address_and_nowhere_else_in_the_log(server):
    for path in ("nothing-here", "voila/static/none.js", "api/kernels", "voila/files/x", "%00"):
        for method in ("GET", "POST"):
            body = "x" if method == "POST" else None
            asyncio.run(server.ask(f"{path}?token={server.token}", method=method, body=body))
    assert server.log.read_text().count(server.token) == 1


def test_settings_in_the_folder_where_one_is_are_not_read(server):
    assert server.base.startswith("http://127.0.0.1:") and len(server.token) == 48


if __name__ == "__main__":
    import tempfile
    import psutil

    async def measure(server: Server, count: int) -> None:
        "Open so many pages at once, and print what they cost."
        pages = await asyncio.gather(*(server.open() for _ in range(count + 1)))
        kernels = [
            each
            for each in psutil.Process(server.process.pid).children(recursive=True)
            if "ipykernel" in " ".join(each.cmdline())
        ]
        memory = [each.memory_full_info() for each in kernels]
        print(
            f"{sum(page.code == 200 for page in pages)} pages, "
            f"{sum(page.code == 503 for page in pages)} refused, {len(kernels)} kernels; each "
            f"{max(each.rss for each in memory) / 1e6:.0f} MB resident, "
            f"{max(each.uss for each in memory) / 1e6:.0f} MB of its own; together "
            f"{sum(each.pss for each in memory) / 1e9:.2f} GB; the server "
            f"{psutil.Process(server.process.pid).memory_info().rss / 1e6:.0f} MB"
        )

    folder, count = Path(tempfile.mkdtemp()), int(sys.argv[1])
    with toy_server(folder, count) as process:
        asyncio.run(measure(Server(process, folder/"server.log"), count))
    shutil.rmtree(folder)
