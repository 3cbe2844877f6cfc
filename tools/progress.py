"""How far `make docs` is: a hook that mkdocs calls for each page whose content is made."""
import time


class Progress:
    "Says every ten seconds how many pages are done, and how long the rest will take."

    def __init__(self, total: int):
        self.total, self.done, self.began = total, 0, time.monotonic()
        self.said = self.began

    def page_done(self) -> str:
        "Count a page; a line if the last one is ten seconds old."
        self.done, now = self.done + 1, time.monotonic()
        if now - self.said < 10:
            return ""
        self.said, left = now, (now - self.began) / self.done * (self.total - self.done)
        return (f"   {self.done} of {self.total} pages, about "
                + (f"{left / 60:.0f} minutes" if left >= 90 else f"{left:.0f} seconds") + " left")


_progress: list[Progress] = []  # of the build that mkdocs is at


def on_page_content(html: str, page, config, files) -> str:
    "Called by mkdocs; the page stays as it is."
    _progress[:] = _progress or [Progress(len(files.documentation_pages()))]
    if line := _progress[0].page_done(): print(line, flush=True)
    return html
