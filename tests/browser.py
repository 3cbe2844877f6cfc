"""A real Chromium for tests, and servers for it to look at."""
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from conftest import free_port, load_script
from reliability import wait_for


def chromium_tool():
    "tools/chromium.py, which fetches a browser for `make test`."
    return load_script(Path(__file__).parents[1]/"tools"/"chromium.py")


@cache
def find_chromium() -> str:
    "A Chromium to test with; `make test` fetches one where there is none."
    tool = chromium_tool()
    if found := tool.find_chromium():
        return found
    pytest.skip(
        tool.NOTE.read_text().strip()
        if tool.NOTE.exists()
        else "no Chromium here: `make test` fetches one"
    )


def started(command, log: Path, ready: str):
    "A server in a process of its own."
    with open(log, "w") as output:
        return running(subprocess.Popen(command, stdout=output, stderr=output), log, ready)


@contextmanager
def running(server, log: Path, ready: str):
    "A server, from the moment its log says that it is ready."
    try:
        wait_for(lambda: ready in log.read_text() or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try: server.wait(60)
        finally: server.kill()  # one that does not end is a failure, and not left behind


def launch(playwright):
    """A Chromium that knows no other machine: Voilà's page asks one for fonts, and where names
    are looked up for minutes, it waits."""
    return playwright.chromium.launch(
        executable_path=find_chromium(),
        args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
    )


def settled(page, read, wanted):
    "What the page shows, as soon as it is what is wanted."
    def shown():
        page.wait_for_timeout(100)
        return (value,) if wanted(value := read()) else ()
    return wait_for(shown)[0]


def slider(page, name: str):
    "The handle of the slider with this description."
    return (
        page.locator(".widget-slider", has=page.get_by_text(name, exact=True))
        .locator(".noUi-handle")
        .first
    )


@contextmanager
def laboratory(browser, notebook: Path):
    "A page of JupyterLab with a notebook in it whose first cell runs."
    pytest.importorskip("jupyterlab")
    playwright = pytest.importorskip("playwright.sync_api")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={notebook.parent}",
    ]
    with started(command, notebook.with_suffix(".log"), "is running at"):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"http://127.0.0.1:{port}/lab/tree/{notebook.name}?reset", timeout=180_000)
        prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
        for _ in range(30):  # keys are lost until the notebook listens
            if re.search(r"[*\d]", prompt.inner_text(timeout=120_000)):
                break
            # a page that is being laid out takes no click: once more, then
            with suppress(playwright.Error):
                # JupyterLab's own questions
                for asked in page.locator(".jp-Dialog .jp-mod-accept").all():
                    asked.click()
                # even if one comes just now
                page.locator(".jp-CodeCell .cm-content").first.click(force=True)
                page.keyboard.press("Shift+Enter")
            page.wait_for_timeout(2000)
        yield page
