"""A Chromium for the browser tests: the one that is there, else Playwright's, else the
distribution's.

Nothing fails here: where none can be had, the reason goes into a file, and the tests skip with it.
While that file is there, nothing is tried again.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NOTE = Path(sys.prefix)/".no-chromium"  # why there is none; remove it to try again
APT = (
    "apt-get",
    "-o",
    "Acquire::http::Timeout=20",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "DPkg::Lock::Timeout=60",
)
PACKAGE = (*APT, "install", "--yes", "--no-install-recommends", "chromium")


def attempt(seconds: int, *command: str) -> str:
    "Run a command and all that it starts for so many seconds at most; why it failed, or nothing."
    # no pipe: what the command started could hold it open for ever
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
        except OSError as reason:
            return str(reason)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"it took longer than {seconds} s"
        finally:  # also after Ctrl-C
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        lines = [
            line.strip()
            for line in said.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
    telling = [line for line in lines if "error" in line.lower() or line.startswith("E: ")]
    return (
        ""
        if process.returncode == 0
        else (*telling, *lines[-1:], f"exit status {process.returncode}")[0][:200]
    )


def find_chromium() -> str:
    "The path of a Chromium that starts, or nothing."
    found = list(filter(None, map(shutil.which, NAMES)))
    try:
        from playwright.sync_api import sync_playwright
        with sync_playwright() as running:
            found.append(running.chromium.executable_path)
    except Exception:  # not installed, or it does not run on this machine
        pass
    # some are only a hint at how to install one, some lack libraries
    starts = lambda path: not attempt(60, path, "--version")
    return next(filter(starts, found), "")


def from_playwright() -> str:
    "Playwright's own browser; why it cannot be had, or nothing."
    with_libraries = ("--with-deps",) if os.environ.get("GITHUB_ACTIONS") else ()
    return attempt(
        300 if with_libraries else 90,
        sys.executable,
        "-m",
        "playwright",
        "install",
        *with_libraries,
        "chromium",
    )


def from_distribution() -> str:
    "The package of Debian and its relatives; why it cannot be had, or nothing."
    if not shutil.which("apt-get"):
        return "there is no apt-get"
    if os.geteuid():
        return "only root may install it"
    # a download may be broken off, an installation should not be
    fetch = (180, *PACKAGE, "--download-only")
    # the lists of packages may be old
    reason = attempt(*fetch) and (attempt(90, *APT, "update") or attempt(*fetch))
    return reason or attempt(600, *PACKAGE)


def main() -> None:
    "See that there is a Chromium, or say why not."
    if find_chromium() or NOTE.exists():
        return
    print("no Chromium for the browser tests: fetching one", flush=True)
    reasons = {}
    for name, fetch in (
        ("Playwright's", from_playwright),
        ("the distribution's", from_distribution),
    ):
        reasons[name] = fetch() or "it does not run here"
        if find_chromium():
            return
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    NOTE.write_text(
        f"no Chromium here, and none could be fetched ({said}); install one, or remove {NOTE.name} "
        f"in the environment to try again\n"
    )


if __name__ == "__main__":
    main()
