"""The side-by-side report of prices."""

import json
from dataclasses import replace

import pytest
from bounded_examples import MULTIPLIES, analysis_of
from report_examples import FULL

from hloscope.base.canvas import Canvas
from hloscope.base.errors import HloscopeError
from hloscope.model import StepTime
from hloscope.model.trial import Spread
from hloscope.report.formats import render
from hloscope.report.price import Prices, Unpriced

ONE = StepTime(
    step_us=1000.0,
    compute_us=600.0,
    exposed_us=400.0,
    hidden_us=100.0,
    first_step_us=1000.0,
    peak_flops_share=0.5,
    spread=Spread(rows=21, median=1.02, worst=1.15),
)
OTHER = replace(ONE, step_us=500.0, compute_us=450.0, exposed_us=50.0, spread=None, basis="roofline", notes=("a note",))
PRICED = (
    replace(FULL, time=ONE, notes=()),
    replace(FULL, time=OTHER, notes=(), slice=replace(FULL.slice, name="v4:2x2x2", chips=8)),
    replace(FULL, time=None, notes=("not priced",), slice=replace(FULL.slice, name="v5p:2x2x2")),
)


def report(width=120):
    return render("prices", "text", PRICED, Canvas(width=width))


def test_each_slice_is_a_row():
    rows = [" ".join(line.split()) for line in report().splitlines()]
    chips = FULL.slice.chips
    first, second, third = (
        next(row for row in rows if row.startswith(name)) for name in (FULL.slice.name, "v4", "v5p")
    )
    assert first.endswith(f"600 us 400 us 100 us 50.0% {chips} ms ×1.15")
    assert second.endswith("450 us 50 us 100 us 50.0% 4 ms not measured")
    assert third.startswith("v5p:2x2x2 unknown unknown unknown unknown")


def test_what_was_assumed_is_said_for_each_slice(says):
    lines = report().splitlines()
    basis, note = [line for line in lines if line.startswith("  • v4:2x2x2: ")]
    assert "roofline" in says(basis)
    assert note == "  • v4:2x2x2: a note"
    assert "  • not priced" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, report(width).splitlines())) <= width


def test_json_has_the_times_of_every_slice():
    found = json.loads(render("prices", "json", PRICED, Canvas()))
    assert found["target"] == FULL.target
    assert [None if one["time"] is None else one["time"]["step_us"] for one in found["prices"]] == [1000.0, 500.0, None]


def test_the_error_of_a_slice_is_broken_below_what_follows_its_label():
    error = HloscopeError("the compiler died", why=f"its process was ended\n{'word ' * 20}")
    lines = render(
        "prices", "text", (*PRICED, Unpriced(target="t", slice_name="v5p:1x2x2", error=error)), Canvas(width=80)
    )
    below = lines.split("why: its process was ended\n")[1].splitlines()[:2]
    assert [len(line) - len(line.lstrip()) for line in below] == [14, 14]


def test_a_share_of_the_peak_is_no_bound_where_the_step_is_one():
    """The branch that takes longest reaches the peak, and the other one multiplies nothing at all."""
    found = analysis_of(MULTIPLIES)
    other = analysis_of(MULTIPLIES.replace("true_computation=yes", "true_computation=no"))
    shares = [each.time.peak_flops_share for each in (found, other)]
    assert (found.time.bound, *shares) == ("at most", pytest.approx(1.0), 0.0)
    assert "~100.0% of peak FLOP/s" in found.report("text")
    assert "~100.0%" in render("prices", "text", Prices((found, found)), Canvas(width=160))
    once = analysis_of(
        MULTIPLIES.replace(
            "conditional(q, p, p), true_computation=yes, false_computation=no",
            "dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        )
    )
    assert " 100.0% of peak FLOP/s" in once.report("text")
