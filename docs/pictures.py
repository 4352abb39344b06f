"""Takes the pictures of the guide to pages again: `python docs/pictures.py`.

Each is a part of a page in headless Chromium, of programs in `fixtures/programs`. Needs Chromium, playwright, Pillow.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import hloscope

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "report" / "html"))

STEP = "fixtures/programs/decoder_step.py:decoder_step"
EXPERTS = "fixtures/programs/mixture_of_experts.py:mixture_of_experts"
WRONG = """import jax.numpy as jnp


def right(x, w):
    return jnp.sin(x @ w), (x * 3).sum(1)


def wrong(x, w):
    y, total = right(x, w)
    return y.at[168:192].mul(1.5), total.at[168:192].mul(1.5)
"""
WIDTH = 1000
TOP_OF_TIMELINE = "window.scrollTo({ top: document.querySelector('#timeline').offsetTop - 70, behavior: 'instant' })"


def to_the_longest_wait(page: Any) -> None:
    """Shows what the step waits for longest, with its row unfolded."""
    page.get_by_role("button", name="Longest wait").click()
    page.locator("#timeline").get_by_role("button", name="Show the collective").click()
    page.wait_for_timeout(1000)
    page.evaluate(TOP_OF_TIMELINE)


def pages() -> dict[str, tuple[str, int, str, Callable[[Any], None] | None]]:
    """By the name of a picture: the page, how high the window is, its theme, and what is done in it."""
    with chdir(ROOT):
        step = hloscope.analyze(STEP).report("html")
        difference = hloscope.diff(EXPERTS, f"{EXPERTS}_shard_map").report("html")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("wrong.py").write_text(WRONG)
        arguments = ("f32[256@X,128]", "f32[128,512@Y]")
        verified = hloscope.verify(
            "wrong.py:wrong", reference="wrong.py:right", args=arguments, mesh={"X": 4, "Y": 2}, slice="v5e:2x4"
        ).report("html")
    return {
        "page": (step, 1060, "light", None),
        "page-timeline": (step, 1249, "dark", to_the_longest_wait),
        "page-difference": (difference, 1100, "light", None),
        "page-verification": (verified, 1270, "light", None),
    }


def main() -> None:
    """Takes all of them."""
    from pages import chromium
    from PIL import Image

    made = pages()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, (html, height, theme, do) in made.items():
            file = Path(folder, f"{name}.html")
            file.write_text(html, encoding="utf-8")
            page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme=theme)
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready]")
            if do is not None:
                do(page)
            page.wait_for_timeout(500)
            taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            small = taken.resize((WIDTH, round(height * WIDTH / 1280)), Image.Resampling.LANCZOS)
            few = small.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(ROOT / "docs" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
