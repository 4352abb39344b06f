"""How large the page of a large step is, how soon it can be used, and how long drawing its timeline takes.

    python tests/benchmarks/large_page.py TEXT SLICE

TEXT is compiled HLO, which may be compressed; the bars are set for a step of 24 MB. Needs Chromium and playwright.
The page is opened as a file in a fresh browser, and its timeline is zoomed in to a thousandth of the step and out
again, a frame for each notch of the wheel, over the whole width; then all groups of collectives are unfolded, and 50
of their rows. Printed are the seconds that making the page takes beside the analysis, its bytes, and the milliseconds
from opening it to where it answers, of a draw call, and of unfolding a row.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import hloscope

sys.path.append(str(Path(__file__).parent.parent / "report" / "html"))

MOST_BYTES = 4_000_000
MOST_READY_MS = 2000.0
MOST_DRAW_MS = 8.0
MOST_UNFOLD_MS = 100.0
RUNS = 3

ZOOM = """async () => {
  const canvas = document.querySelector('#timeline canvas:not(.overview)');
  const { width, top } = canvas.getBoundingClientRect();
  const view = canvas.timeline;
  view.draws.length = 0;
  canvas.focus();
  for (const deltaY of [...Array(60).fill(-60), ...Array(60).fill(60)]) {
    const offset = 110 + Math.random() * (width - 120);
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY, clientX: offset, clientY: top + 20, bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  return view.draws;
}"""

UNFOLD = """() => {
  document.querySelectorAll('#collectives tr.group button').forEach((button) => button.click());
  return [...document.querySelectorAll('#collectives tr[data-row] button')].slice(0, 50).map((button) => {
    const begun = performance.now();
    button.click();
    document.body.getBoundingClientRect();
    return performance.now() - begun;
  });
}"""


def measured(page: Path) -> tuple[float, list[float], list[float]]:
    """Milliseconds until a page answers, those of each draw call while zooming, and of unfolding each row."""
    from pages import chromium

    with chromium() as browser:
        shown: Any = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.goto(page.as_uri())
        shown.wait_for_selector("html[data-ready]", timeout=60_000)
        ready_ms = float(shown.evaluate("Number(document.documentElement.dataset.ready)"))
        draws, rows = (list(map(float, shown.evaluate(script))) for script in (ZOOM, UNFOLD))
        return ready_ms, draws, rows


def main(file: str, slice_name: str) -> int:
    """Prints what was measured; 1 when a bar is not reached."""
    found = hloscope.analyze(Path(file), slice=slice_name)
    start = time.process_time()
    html = found.report("html")
    made_s = time.process_time() - start
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        runs = [measured(page) for _ in range(RUNS)]
    size = len(html.encode())
    ready_ms = min(ready for ready, _, _ in runs)
    draws = [draw for _, drawn, _ in runs for draw in drawn]
    unfolds = [unfold for _, _, rows in runs for unfold in rows]
    intervals = sum(len(one.intervals) for one in found.timeline().computations)
    print(f"{len(found.collectives):,} collectives, {intervals:,} intervals; made in {made_s:.2f} s")
    print(f"size      {size / 1e6:.2f} MB (at most {MOST_BYTES / 1e6:.0f})")
    print(f"answers   {ready_ms:.0f} ms after it is opened (at most {MOST_READY_MS:.0f})")
    typical_ms = median(draws)
    print(f"draw call {typical_ms:.2f} ms in the median of {len(draws)}, {max(draws):.2f} the longest")
    unfold_ms = median(unfolds)
    print(f"unfolding {unfold_ms:.1f} ms in the median of {len(unfolds)} rows, {max(unfolds):.1f} the longest")
    is_slow = ready_ms > MOST_READY_MS or typical_ms > MOST_DRAW_MS or unfold_ms > MOST_UNFOLD_MS
    return int(size > MOST_BYTES or is_slow)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
