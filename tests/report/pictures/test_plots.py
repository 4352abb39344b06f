"""Plots: a point for each way to shard, a bar for each slice, where their figures are."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from reading import SVG, texts_in

from hloscope.analysis.model import Analysis, Memory, SliceFact, StepTime
from hloscope.analysis.model.suggestion import Figures, Suggestion, Suggestions
from hloscope.analysis.vocabulary import Bound
from hloscope.errors import HloscopeError
from hloscope.report.pictures.plots import _spread, front_svg, prices_svg
from hloscope.report.price import Unpriced

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
    scale = _spread(values, 0.0, 100.0)
    ticks = list(scale.ticks())
    assert 2 <= len(ticks) <= 8
    assert all(scale.least <= tick <= scale.most for tick in ticks)
    assert all(0.0 <= scale.at(value) <= 100.0 for value in values)


def test_bars_are_as_long_as_their_steps():
    time = StepTime(step_us=100.0, compute_us=60.0, exposed_us=40.0, hidden_us=0.0)
    one = Analysis(
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
        time=time,
    )
    twice = replace(one, time=replace(time, step_us=200.0, compute_us=200.0, exposed_us=0.0))
    refused = Unpriced(target="step", slice_name="v2:2x2", error=HloscopeError("too large"))
    picture = prices_svg((one, twice, refused, replace(one, time=None)))
    outlines = [box for box in ElementTree.fromstring(picture).iter(f"{SVG}rect") if box.get("fill") == "none"]
    first, second = (float(box.get("width")) for box in outlines)
    assert second == pytest.approx(2 * first, abs=0.02)
    texts = texts_in(picture)
    assert "too large" in texts
    assert "not priced" in texts
    assert "100 us, 40 us exposed" in texts
