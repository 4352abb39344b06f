"""The lines of the report about a step's time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.model import StepTime
from hloscope.model.trial import RuleUse, Spread, UnknownOperation
from hloscope.model.vocabulary import Bound
from hloscope.report.price import draw_time_bar, format_time_line, render_time

SEED = StepTime(
    step_us=312.4,
    compute_us=222.7,
    exposed_us=89.7,
    hidden_us=0.0,
    first_step_us=312.4,
    peak_flops_share=0.07,
    rules=(
        RuleUse(rule="cycles", time_us=222.7, calibrated=True),
        RuleUse(rule="memory", time_us=0.2, calibrated=False),
    ),
    spread=Spread(rows=21, median=1.016, worst=1.146),
)
MICROSECONDS = st.floats(0, 1e6, allow_subnormal=False)


def plain(time, width=120):
    return [line.plain for line in render_time(time, width)]


def test_the_split_is_one_line():
    assert format_time_line(SEED, 120).plain == (
        "312 us  ████████████░░░░  compute 223 us · communication 89.7 us exposed (29%), 0 us hidden"
    )


def test_what_it_rests_on_follows(says):
    shares, basis = plain(SEED, 200)[1:]
    assert shares == "7.0% of peak FLOP/s · memory-bound 0 us"
    assert re.findall(r"cycle estimates|\d+ published|[\d.]+ \(\w+\)|rules for .*", says(basis)) == [
        *("cycle estimates", "21 published"),
        *("1.02 (median)", "1.15 (worst)", "rules for memory"),
    ]


def test_a_roofline_a_bound_and_what_is_unknown_are_said(says):
    time = StepTime(
        step_us=10.0,
        compute_us=10.0,
        exposed_us=0.0,
        hidden_us=4.0,
        first_step_us=12.0,
        basis="roofline",
        bound=Bound.AT_LEAST,
        unknown_operations=tuple(UnknownOperation(what=what, count=2, bytes=2000, time_us=1.5) for what in "abcd"),
        notes=("one more thing",),
    )
    *split, basis, unknown, note = plain(time, 200)
    assert split == [
        "≥10 us  ██████████▓▓▓▓▓▓  compute ~10 us · communication ~0 us exposed, ~4 us hidden",
        "memory-bound ~0 us · first step ≥12 us",
    ]
    assert re.findall("roofline|lower bound|unknown accuracy", basis) == ["roofline", "lower bound", "unknown accuracy"]
    assert re.findall(r"\w \(.*?\)|\d more", unknown) == [
        *("a (2 times, 2 kB, 1.50 us)", "b (2 times, 2 kB, 1.50 us)", "c (2 times, 2 kB, 1.50 us)"),
        "1 more",
    ]
    assert note == "one more thing"
    says([basis, unknown])


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_no_line_is_wider_than_asked(width):
    assert max(map(len, plain(SEED, width))) <= width


@given(MICROSECONDS, MICROSECONDS, MICROSECONDS)
def test_the_bar_shows_every_part_that_is_there(compute, exposed, hidden):
    time = StepTime(step_us=compute + exposed, compute_us=compute, exposed_us=exposed, hidden_us=hidden)
    bar = draw_time_bar(time, 24).plain
    assert len(bar) == (24 if compute + exposed > 0 else 0)
    assert ("░" in bar) == (exposed > 0)
    assert ("▓" in bar) == (min(hidden, compute) > 0)
