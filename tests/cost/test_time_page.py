"""The page on predicted times shows the constants that ship and the residuals that were fitted."""

import json
import re
import runpy
from dataclasses import asdict
from pathlib import Path

from hloscope.tpu.generation import CONSTANTS

ROOT = Path(__file__).parents[2]
PUBLISHED = runpy.run_path(str(ROOT / "tests" / "benchmarks" / "published_timings.py"))
PAGE = (ROOT / "docs" / "time.md").read_text(encoding="utf-8")
RESIDUALS = json.loads((ROOT / "tests" / "benchmarks" / "published" / "residuals.json").read_text(encoding="utf-8"))


def test_every_residual_is_on_the_page_and_nothing_else():
    assert sorted(PUBLISHED["ROW_OF_PAGE"].findall(PAGE)) == sorted(RESIDUALS["rows"])
    assert PUBLISHED["page_with"](PAGE, RESIDUALS) == PAGE


def test_the_constants_are_those_that_ship():
    values = [float(value) for value in re.findall(r"^\| [^|]+ \| ([\d.]+)(?: us)? \| [^|]+ \|$", PAGE, re.MULTILINE)]
    assert values == list(asdict(CONSTANTS).values())


def test_the_spreads_are_those_of_the_residuals():
    shown = PUBLISHED["SPREAD_OF_PAGE"].findall(PAGE)
    expected = {name for name in RESIDUALS["spreads"] if name.endswith("left out")}
    assert {f"v{name.removeprefix('v')} left out" for name in shown} == expected
