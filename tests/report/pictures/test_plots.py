"""Plots: a point for each way to shard, a bar for each slice, where their figures are."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import SVG, texts_in

from hloscope.base.errors import HloscopeError
from hloscope.measurement.model import MeasuredOperation, StepPart
from hloscope.model import Analysis, Memory, SliceFact, StepTime
from hloscope.model.trial import Figures, Suggestion, Suggestions
from hloscope.model.vocabulary import Bound
from hloscope.report.pictures import svg
from hloscope.report.pictures.plots import (
    _make_scale,
    draw_chips,
    draw_errors,
    draw_front,
    draw_measured,
    draw_parts,
    draw_prices,
    find_level,
    find_regions,
)
from hloscope.report.price import Unpriced
from hloscope.verification.model import ErrorMap


def front_svg(found):
    return svg.render(draw_front(found))


def prices_svg(found):
    return svg.render(draw_prices(found))


FIGURES = Figures(
    step_us=300.0,
    step_us_range=(280.0, 330.0),
    step_bound=Bound.EXACT,
    hbm_bytes=10**9,
    wire_bytes=10**6,
    wire_bytes_by_axis={"X": 10**6},
    wire_bound=Bound.EXACT,
    collectives=1,
)
OWN = Suggestion(recipe=None, mesh={"X": 8}, is_own=True, figures=FIGURES)


def way(name, step_us, hbm_bytes):
    figures = replace(FIGURES, step_us=step_us, hbm_bytes=hbm_bytes, step_us_range=None)
    return replace(OWN, recipe=name, is_own=False, gain=0.1, figures=figures)


def found(*front):
    return Suggestions(target="step", slice="v5e:2x4", own=OWN, front=front, space=9, ranked=9, compiled=2)


def test_points_stand_by_time_and_memory():
    root = ElementTree.fromstring(front_svg(found(way("fast", 200.0, 2 * 10**9), way("small", 400.0, 10**8))))
    fast, small = ((float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle"))
    assert fast[0] < small[0]
    assert fast[1] < small[1]  # more memory stands higher
    assert len(list(root.iter(f"{SVG}polygon"))) == 1  # the program as it is written


def test_what_has_no_figure_is_listed_and_not_drawn():
    picture = front_svg(found(way("unknown", None, 10**9)))
    assert len(list(ElementTree.fromstring(picture).iter(f"{SVG}circle"))) == 0
    assert any("unknown: unknown" in text and "not drawn" in text for text in texts_in(picture))
    nothing = replace(found(), own=replace(OWN, figures=replace(FIGURES, step_us=None)))
    assert any("not drawn" in text for text in texts_in(front_svg(nothing)))


@pytest.mark.parametrize("values", [(1.0, 2.0), (0.0,), (5.0, 5.0), (1e-3, 1e9), (312.4, 312.5)])
def test_ticks_are_round_and_few(values):
    scale = _make_scale(values, 0.0, 100.0)
    ticks = list(scale.list_ticks())
    assert 2 <= len(ticks) <= 8
    assert all(scale.least <= tick <= scale.most for tick in ticks)
    assert all(0.0 <= scale.at(value) <= 100.0 for value in values)


TIME = StepTime(step_us=100.0, compute_us=60.0, exposed_us=40.0, hidden_us=0.0)
ONE = Analysis(
    target="step",
    module="m",
    slice=SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user"),
    mesh=None,
    num_partitions=8,
    collectives=(),
    totals=None,
    arguments=(),
    outputs=(),
    memory=Memory(),
    time=TIME,
)


def test_bars_are_as_long_as_their_steps():
    twice = replace(ONE, time=replace(TIME, step_us=200.0, compute_us=200.0, exposed_us=0.0))
    refused = Unpriced(target="step", slice_name="v2:2x2", error=HloscopeError("too large"))
    picture = prices_svg((ONE, twice, refused, replace(ONE, time=None)))
    outlines = [box for box in ElementTree.fromstring(picture).iter(f"{SVG}rect") if box.get("fill") == "none"]
    first, second = (float(box.get("width")) for box in outlines)
    assert second == pytest.approx(2 * first, abs=0.02)
    texts = texts_in(picture)
    assert "too large" in texts
    assert "not priced" in texts
    assert "100 us, 40 us exposed" in texts


def on(name, chips, step_us, **about):
    where = replace(ONE.slice, name=name, chip=name.split(":")[0], chips=chips)
    return replace(ONE, slice=where, time=replace(TIME, step_us=step_us, **about))


def test_slices_stand_by_chips_and_time():
    picture = svg.render(draw_chips((on("v5e:2x4", 8, 100.0), on("v5e:4x4", 16, 60.0), on("v6e:4x4", 16, 20.0))))
    root = ElementTree.fromstring(picture)
    first, second, third = ((float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle"))
    assert first[0] < second[0] < third[0]  # those of as many chips beside each other
    assert first[1] < second[1] < third[1]  # a longer step stands higher
    (ideal,) = [line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    assert float(ideal.get("y2")) > second[1]  # twice the chips of the same generation would take half the time
    assert {"8", "16"} <= set(texts_in(picture))


def test_slices_that_are_too_small_or_not_known_are_marked():
    small = replace(on("v5e:2x4", 8, 100.0), memory=Memory(fits=False))
    floor = on("v5e:4x4", 16, 60.0, bound=Bound.AT_LEAST, unpriced_kernels=("k",))
    picture = svg.render(draw_chips((small, floor, replace(ONE, time=None))))
    assert {"v5e:2x4, does not fit", "v5e:4x4, ≥60 us"} <= set(texts_in(picture))
    assert len(list(ElementTree.fromstring(picture).iter(f"{SVG}circle"))) == 1
    assert not list(ElementTree.fromstring(svg.render(draw_chips((replace(ONE, time=None),)))).iter(f"{SVG}circle"))


def operation(measured_us, predicted_us, activity="computing"):
    return MeasuredOperation(
        name="f",
        computation="main",
        opcode="fusion",
        activity=activity,
        executions=1,
        predicted_executions=1,
        measured_us=measured_us,
        predicted_us=predicted_us,
        rule="cycles",
        calibrated=True,
        source=None,
    )


def test_operations_stand_on_the_line_where_both_agree():
    operations = [operation(100.0, 100.0), operation(400.0, 100.0, "communication"), operation(5.0, None)]
    root = ElementTree.fromstring(svg.render(draw_measured(operations)))
    (agrees,) = root.iter(f"{SVG}circle")
    (slower,) = root.iter(f"{SVG}rect")
    line = next(line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray") == "none")
    x1, y1, x2, y2 = (float(line.get(name)) for name in ("x1", "y1", "x2", "y2"))
    x, y = float(agrees.get("cx")), float(agrees.get("cy"))
    assert y == pytest.approx(y1 + (y2 - y1) * (x - x1) / (x2 - x1), abs=0.05)
    assert float(slower.get("x")) + 4 == pytest.approx(x, abs=0.05)
    assert float(slower.get("y")) + 4 < y


def test_parts_are_as_long_as_they_take():
    parts = [
        StepPart(part="computing", measured_us=80.0, predicted_us=40.0),
        StepPart(part="nothing", measured_us=20.0, predicted_us=None),
    ]
    picture = svg.render(draw_parts(parts))
    widths = [float(box.get("width")) for box in ElementTree.fromstring(picture).iter(f"{SVG}rect")]
    assert widths == pytest.approx([widths[0], widths[0] / 2, widths[0] / 4, 0.0], abs=0.05)
    assert {"80 us", "40 us", "20 us", "not predicted"} <= set(texts_in(picture))


ERRORS = st.sampled_from([0.0, 0.4, 0.9, 3.0, 30.0, math.inf])
MAPS = st.integers(1, 6).flatmap(lambda columns: st.lists(st.tuples(*[ERRORS] * columns), min_size=1, max_size=6))


@given(MAPS)
def test_regions_are_what_is_wrong_each_once(errors):
    found = ErrorMap(shape=(len(errors), len(errors[0])), errors=tuple(errors))
    wrong = [error for row in errors for error in row if error > 1]
    regions, covered = find_regions(found), []
    for region in regions:
        (top, begin), (bottom, end) = region.first, region.last
        inside = [(row, column) for row in range(top, bottom + 1) for column in range(begin, end + 1)]
        covered += inside
        assert region.worst in inside
        assert len({find_level(errors[row][column]) for row, column in inside}) == 1
    least = 1 if wrong else 0
    assert sorted(covered) == [
        (row, column) for row, line in enumerate(errors) for column, error in enumerate(line) if error > least
    ]
    worst = [errors[region.worst[0]][region.worst[1]] for region in regions]
    assert worst == sorted(worst, reverse=True)


def test_a_map_says_in_words_what_it_shows():
    errors = ((0.0, 0.2), (3.0, math.inf))
    picture = svg.render(draw_errors(ErrorMap(shape=(2, 2), errors=errors), "out"))
    texts = texts_in(picture)
    assert "wrong, up to 10 times what is allowed: 1 block" in texts
    assert "wrong, beyond 10 times: 1 block" in texts
    assert any("dimension 1: 2 elements" in text for text in texts)
    assert picture.count('stroke-opacity="0.75"') == 4  # what is wrong is hatched, and so is its key
