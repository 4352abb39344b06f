"""Pages of programs that have what is hard to show, and a browser to show them in."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
UNFOLD_ALL = """() => {
  for (let round = 0; round < 4; round += 1) {
    document.querySelectorAll('button.unfold[aria-expanded="false"]').forEach((button) => button.click());
    document.querySelectorAll('details:not([open])').forEach((details) => { details.open = true; details.fill?.(); });
  }
}"""


def data_of(page: str) -> dict[str, Any]:
    """The data of a page, as its script unpacks it."""
    packed = re.search(r'id="data">([A-Za-z0-9+/=]*)</script>', page)
    assert packed is not None
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that fetches nothing and keeps nothing."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """A page in the browser, with everything that it complained of or wanted to fetch."""

    def __init__(self, browser: Any, html: str, folder: Path, **how: Any) -> None:
        path = folder / f"page-{len(os.listdir(folder))}.html"
        path.write_text(html, encoding="utf-8")
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **how}
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)

    def close(self) -> None:
        """Ends with a page that never complained and fetched nothing but itself."""
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.fetched if not url.startswith(("file:", "data:"))] == []
