"""The constants and the spreads that ship are those that the published timings gave."""

import json
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from hloscope.cost.constants import CONSTANTS, is_calibrated, spread_of

RESIDUALS = json.loads(
    (Path(__file__).parents[1] / "benchmarks" / "published" / "residuals.json").read_text(encoding="utf-8")
)
REQUIRED = {name: row for name, row in RESIDUALS["rows"].items() if not row["extra"]}
ROWS_OF_CONSTANT = {
    "link_share": (
        "book-2x2-all-gather",
        "book-2x2-reduce-scatter",
        "book-2x2-all-reduce",
        "book-2x2-layer",
        "moe-naive",
    ),
    "one_way_ring_share": ("seed-naive-all-gather", "book-all-gather-big", "rs-psum-scatter"),
    "grid_share": ("v6e-256-psum",),
    "start_us": ("book-all-gather-small", "seed-naive-all-gather"),
    "offloaded_start_us": ("7x-all-gather",),
    "hop_us": ("book-all-gather-small",),
    "hbm_share": ("v6e-copy",),
    "dcn_share": ("2xv6e-256-psum",),
}
"""The measurements that set each constant most."""
RANKINGS = [
    ("seed-unsharded", "seed-collective", "seed-naive"),
    ("rs-psum-scatter", "rs-halving", "rs-ring"),
    ("mlp-auto", "mlp-overlapped"),
    ("moe-all-to-all", "moe-naive"),
]


def factor(row, prediction="left_out_us"):
    ratio = row[prediction] / row["measured_us"]
    return max(ratio, 1 / ratio)


def test_the_constants_are_the_fitted_ones():
    fitted = RESIDUALS["constants"]
    assert asdict(CONSTANTS) == {name: pytest.approx(fitted[name], rel=5e-3) for name in asdict(CONSTANTS)}


def test_every_constant_names_the_rows_that_set_it():
    assert set(ROWS_OF_CONSTANT) == set(asdict(CONSTANTS))
    assert {row for rows in ROWS_OF_CONSTANT.values() for row in rows} <= set(RESIDUALS["rows"])


@pytest.mark.parametrize("chip", ["v2", "v5e", "v6e", "v7x"])
def test_the_spreads_are_those_of_the_residuals(chip):
    factors = [factor(row) for row in REQUIRED.values() if row["generation"] == chip]
    spread = spread_of(chip)
    assert spread.rows == len(factors)
    assert spread.median == pytest.approx(statistics.median(factors), abs=2e-3)
    assert spread.worst == pytest.approx(max(factors), abs=2e-3)


def test_the_bars_on_v5e_hold_for_sources_that_were_left_out():
    factors = [factor(row) for row in REQUIRED.values() if row["generation"] == "v5e"]
    assert statistics.median(factors) < 1.05
    assert max(factors) < 1.25


@pytest.mark.parametrize("prediction", ["predicted_us", "left_out_us"])
@pytest.mark.parametrize("group", RANKINGS, ids=lambda group: group[0])
def test_programs_that_compute_the_same_are_ranked_as_measured(group, prediction):
    times = [REQUIRED[name][prediction] for name in group]
    assert times == sorted(times)


def test_generations_without_measurements_are_not_calibrated():
    assert spread_of("v4") is None
    assert not is_calibrated("v4", "cycles")
    assert is_calibrated("v5e", "cycles")
    assert not is_calibrated("v5e", "data-centre network")
