"""The constants and the spreads that ship are those that the published timings gave."""

import json
import re
import runpy
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from hloscope.tpu import CHIPS, find_chip
from hloscope.tpu.generation import CONSTANTS, Constants, Measured

RESIDUALS = json.loads(
    (Path(__file__).parents[1] / "benchmarks" / "published" / "residuals.json").read_text(encoding="utf-8")
)
PUBLISHED = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "published_timings.py"))
REQUIRED = {name: row for name, row in RESIDUALS["rows"].items() if not row["extra"]}
ROWS_OF_CONSTANT = {
    "link_share": ("book-2x2-all-gather", "v6e-all-reduce-pairs", "v5p-permute-64MiB"),
    "one_way_ring_share": ("seed-naive-all-gather", "book-all-gather-big", "rs-psum-scatter"),
    "grid_share": ("v6e-256-psum", "v5p-reduce-scatter-f32", "v5p-all-gather"),
    "dma_grid_share": (),
    "start_us": ("book-all-gather-small", "seed-naive-all-gather"),
    "permute_start_us": ("v5p-permute-1MiB",),
    "offloaded_start_us": ("7x-all-gather",),
    "hop_us": ("book-all-gather-small", "v5p-permute-1MiB"),
    "array_us": ("v5p-all-reduce-9xf32", "v5p-all-reduce-19xf32"),
    "hbm_read_share": ("v5e-thin-8", "v5e-thin-64", "v5p-reduce"),
    "hbm_write_share": ("v6e-fill", "v6e-copy", "v5p-adamw"),
    "single_rows_share": (),
    "transposed_share": (),
    "vector_share": ("v5e-thin-1",),
    "narrow_share": ("v6e-int8-4096", "v6e-int8-6144"),
    "dcn_share": ("2xv6e-256-psum",),
    "host_share": (),
    "host_both_ways_share": (),
}
"""The measurements that set each constant most."""
RANKINGS = [
    ("seed-unsharded", "seed-collective", "seed-naive"),
    ("rs-psum-scatter", "rs-halving", "rs-ring"),
    ("mlp-auto", "mlp-overlapped"),
    ("moe-all-to-all", "moe-naive"),
]


def measured(chip):
    return find_chip(chip).measured


def own_constants(chip):
    found = asdict(measured(chip).constants)
    return {name: value for name, value in found.items() if value != getattr(CONSTANTS, name)}


def factor(row, prediction="left_out_us"):
    ratio = row[prediction] / row["measured_us"]
    return max(ratio, 1 / ratio)


def test_the_constants_are_the_fitted_ones():
    own = {f"{chip.name}.{name}": value for chip in CHIPS for name, value in own_constants(chip.name).items()}
    fitted = RESIDUALS["constants"]
    assert {**asdict(CONSTANTS), **own} == {name: pytest.approx(value, rel=5e-3) for name, value in fitted.items()}


def test_a_generation_has_its_own_constants_and_the_others_for_the_rest():
    assert own_constants("v5p") == {"one_way_ring_share": 1.067, "start_us": 5.41}
    assert measured("v4").constants == CONSTANTS


def test_what_a_fit_prints_is_what_ships():
    assert re.findall(r"(\w+): float = (.+)", PUBLISHED["code_of_constants"](RESIDUALS)) == [
        (name, str(value)) for name, value in asdict(CONSTANTS).items()
    ]
    for chip in RESIDUALS["errors"]:
        code = PUBLISHED["code_of_generation"](RESIDUALS, chip).strip().removeprefix("measured=").removesuffix(",")
        assert eval(code, {"Measured": Measured, "Constants": Constants}) == measured(chip)


def test_every_constant_names_the_rows_that_set_it():
    assert set(ROWS_OF_CONSTANT) == set(asdict(CONSTANTS))
    assert {row for rows in ROWS_OF_CONSTANT.values() for row in rows} <= set(RESIDUALS["rows"])


@pytest.mark.parametrize("chip", ["v2", "v5e", "v5p", "v6e", "v7x"])
def test_the_spreads_are_those_of_the_residuals(chip):
    factors = [factor(row) for row in REQUIRED.values() if row["generation"] == chip]
    spread = measured(chip)
    assert spread.rows == len(factors)
    assert spread.median == pytest.approx(statistics.median(factors), abs=2e-3)
    assert spread.worst == pytest.approx(max(factors), abs=2e-3)


@pytest.mark.parametrize(
    ("chip", "median", "worst"), [("v5e", 1.02, 1.15), ("v5p", 1.05, 1.2), ("v6e", 1.05, 1.2), ("v7x", 1.1, 1.15)]
)
def test_the_bars_hold_for_what_was_left_out(chip, median, worst):
    factors = [factor(row) for row in REQUIRED.values() if row["generation"] == chip]
    assert statistics.median(factors) <= median
    assert max(factors) <= worst


def test_the_errors_of_the_rules_are_those_of_the_residuals():
    for chip, rules in RESIDUALS["errors"].items():
        assert {rule: measured(chip).error_of(rule) for rule in rules} == rules
        assert dict(measured(chip).rule_errors).keys() == rules.keys()


def test_ranges_hold_most_rows_and_are_narrow_where_something_was_measured():
    rows = RESIDUALS["rows"].values()
    inside = [row["range_us"][0] <= row["measured_us"] <= row["range_us"][1] for row in rows]
    assert sum(inside) / len(inside) >= 0.8
    widths = [(row["range_us"][1] - row["range_us"][0]) / 2 / row["left_out_us"] for row in REQUIRED.values()]
    assert statistics.median(widths) < 0.15
    errors = [error for rules in RESIDUALS["errors"].values() for error in rules.values()]
    assert 2 * max(errors) <= measured("v4").error_of("cycles") <= 0.4


@pytest.mark.parametrize("prediction", ["predicted_us", "left_out_us"])
@pytest.mark.parametrize("group", RANKINGS, ids=lambda group: group[0])
def test_programs_that_compute_the_same_are_ranked_as_measured(group, prediction):
    times = [REQUIRED[name][prediction] for name in group]
    assert times == sorted(times)


def test_generations_without_measurements_are_not_calibrated():
    assert measured("v4").rows == 0
    assert not measured("v4").is_calibrated("cycles")
    assert measured("v5e").is_calibrated("cycles")
    assert not measured("v5e").is_calibrated("data-center network")
    assert not measured("v6e").is_calibrated("permute")
