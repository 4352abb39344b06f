"""The page on predicted times shows the constants that ship and the residuals that were fitted."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from hloscope.cost.constants import CONSTANTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "time.md").read_text(encoding="utf-8")
RESIDUALS = json.loads((ROOT / "tests" / "benchmarks" / "published" / "residuals.json").read_text(encoding="utf-8"))
_ROW = re.compile(
    r"^\| ([\w-]+)( \*)? \| ([\w-]+) \| ([\d,.]+) \| ([\d.]+)% \| ([\d,.]+) \| ([\d.]+) \| (source|row) \|$",
    re.MULTILINE,
)


def _shown(microseconds):
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def test_every_residual_is_on_the_page_and_nothing_else():
    expected = {
        (
            name,
            " *" if row["extra"] else "",
            row["source"],
            _shown(row["measured_us"]),
            f"{100 * row['uncertainty']:.1f}",
            _shown(row["left_out_us"]),
            f"{row['left_out_us'] / row['measured_us']:.2f}",
            row["left_out"],
        )
        for name, row in RESIDUALS["rows"].items()
    }
    assert set(_ROW.findall(PAGE)) == expected


def test_the_constants_are_those_that_ship():
    values = [float(value) for value in re.findall(r"^\| [^|]+ \| ([\d.]+)(?: us)? \| [^|]+ \|$", PAGE, re.MULTILINE)]
    assert values == list(asdict(CONSTANTS).values())


def test_the_spread_of_v5e_is_the_one_in_the_residuals():
    spread = RESIDUALS["spreads"]["v5e left out"]
    assert (
        f"{spread['rows']} rows, off by a factor of {spread['median']} (median) and {spread['worst']} (worst)" in PAGE
    )
