"""axe-core, of npm, finds nothing to complain of: in light and in dark, on wide and narrow screens, all unfolded."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from pages import CHROMIUM, UNFOLD_ALL, Shown, chromium
from report_examples import DOUBTFUL, FULL
from result_examples import all_of

import hloscope
from hloscope.app.analyzing import analyze_hlo
from hloscope.base.canvas import Canvas
from hloscope.report.formats import render

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm"),
]
pytest.importorskip("playwright", reason="playwright is not installed")

AUDIT = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "axe-core"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"axe-core cannot be installed: {done.stderr[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages_of(found, captured, tmp_path_factory):
    """A page of a loop with a timeline and findings, of what is half known, of a difference, and of other results."""
    other = analyze_hlo(captured("mixture_of_experts_shard_map"), name="other.hlo", mesh={"X": 8}, slice="v5e:2x4")
    return {
        "loop": found.report("html"),
        "full": render("analysis", "html", FULL, Canvas()),
        "doubtful": render("analysis", "html", DOUBTFUL, Canvas()),
        "difference": hloscope.diff(found, other).report("html"),
        **{name: shown.report("html") for name, shown in all_of(tmp_path_factory.mktemp("check")).items()},
    }


RESULTS = ("check", "comparison", "prices", "suggestions", "verification")


@pytest.mark.parametrize("name", ["loop", "full", "doubtful", "difference", *RESULTS])
def test_axe_finds_nothing(pages_of, axe, tmp_path, name):
    with chromium() as browser:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 420)):
            how = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
            shown = Shown(browser, pages_of[name], tmp_path, **how)
            shown.page.evaluate(UNFOLD_ALL)
            shown.page.evaluate(axe)
            found = shown.page.evaluate(AUDIT)
            assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == [], (scheme, width)
            shown.close()
