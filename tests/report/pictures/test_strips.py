"""A step as a strip: bars where things happen, as many as can be seen."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from reading import SVG, texts_in

from hloscope.model.timeline import Interval, TimedComputation, TimedRun, Timeline, Unit, WaitCause, Waits
from hloscope.model.vocabulary import Bound
from hloscope.report.pictures import svg
from hloscope.report.timeline import draw_timeline


def timeline_svg(found):
    return svg.render(draw_timeline(found))


CORE = Interval(name="dot", unit=Unit.CORE, begin_us=0.0, end_us=60.0)
WAIT = Interval(
    name="gather", unit=Unit.CORE, begin_us=60.0, end_us=100.0, wait=WaitCause.COLLECTIVE, waits_for="gather"
)
MOVE = Interval(name="gather", unit=Unit.ICI, begin_us=50.0, end_us=100.0, links=("x+", "x-"))
ENTRY = TimedComputation(name="main", executions=1, executions_beside=0, time_us=100.0, intervals=(CORE, MOVE, WAIT))
FOUND = Timeline(
    target="step",
    module="m",
    slice="v5e:2x4",
    step_us=100.0,
    bound=Bound.EXACT,
    computing_us=60.0,
    waits=Waits(collective_us=40.0),
    hidden_us=10.0,
    entry="main",
    computations=(ENTRY,),
)


def with_intervals(*intervals, time_us=100.0):
    return replace(FOUND, computations=(replace(ENTRY, intervals=intervals, time_us=time_us),))


def bars_in(picture):
    """The bars by what they are: from where to where."""
    found = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        words = "" if title is None else title.text
        found.setdefault(words, []).append((float(box.get("x")), float(box.get("x")) + float(box.get("width"))))
    return found


def test_bars_are_as_long_as_what_they_show():
    bars = bars_in(timeline_svg(FOUND))
    [(begin, end)] = bars["%dot, 60 us"]
    [(waits, ends)] = bars["waits for collectives: %gather, 40 us"]
    [(moves, moved)] = bars["%gather along x+ x-, 50 us"]
    whole = ends - begin
    assert end == pytest.approx(waits, abs=0.02)
    assert (end - begin) / whole == pytest.approx(0.6, abs=0.001)
    assert (moves - begin) / whole == pytest.approx(0.5, abs=0.001)
    assert moved == pytest.approx(ends, abs=0.02)


def test_where_the_time_goes_is_said():
    texts = texts_in(timeline_svg(FOUND))
    assert "computing 60 us (60.0%), exposed collectives 40 us (40.0%)" in texts
    assert "collectives hidden behind other work: 10 us" in texts


def test_what_is_too_near_to_be_told_apart_is_one_bar():
    many = tuple(replace(CORE, name=f"op.{n}", begin_us=n / 100, end_us=(n + 1) / 100) for n in range(10_000))
    picture = timeline_svg(with_intervals(*many))
    assert len(picture) < 10_000
    assert "%op.0, 0.01 us and 9,999 more" in bars_in(picture)


def test_a_loop_is_folded_and_its_body_unfolded_once():
    loop = replace(
        CORE,
        name="while.1",
        end_us=80.0,
        runs=(TimedRun(computation="cond", times=5), TimedRun(computation="body", times=4)),
    )
    body = TimedComputation(
        name="body", executions=4, executions_beside=0, time_us=20.0, intervals=(replace(CORE, end_us=20.0),)
    )
    picture = timeline_svg(replace(with_intervals(loop), computations=(replace(ENTRY, intervals=(loop,)), body)))
    texts = texts_in(picture)
    assert "%while.1, 4 times, 80 us" in texts
    assert "%body, one of 4 times, 20 us" in texts


@pytest.mark.parametrize(
    ("found", "bars"),
    [
        (with_intervals(time_us=0.0), {}),
        (with_intervals(replace(CORE, end_us=0.0)), {}),
        (replace(FOUND, computations=()), {}),
        (replace(FOUND, step_us=0.0), bars_in(timeline_svg(FOUND))),
    ],
    ids=["no intervals", "none that takes time", "no computations", "no step"],
)
def test_of_nothing_nothing_is_drawn(found, bars):
    picture = timeline_svg(found)
    assert bars_in(picture) == bars
    assert "nan" not in picture
    assert "inf" not in picture
    boxes = [box for box in ElementTree.fromstring(picture).iter(f"{SVG}rect") if "%" not in box.get("width")]
    assert all(float(box.get(name)) >= 0 for box in boxes for name in ("x", "y", "width", "height"))


def test_what_is_a_bound_says_so():
    loop = replace(
        CORE, name="while.1", runs=(TimedRun(computation="body", times=1, bound=Bound.UNKNOWN),), bound=Bound.UNKNOWN
    )
    wait = replace(WAIT, bound=Bound.AT_LEAST)
    picture = timeline_svg(replace(with_intervals(loop, wait), bound=Bound.AT_LEAST))
    assert {"%while.1, ~1 times, ~60 us", "waits for collectives: %gather, ≥40 us"} <= set(bars_in(picture))
    assert "computing ~60 us (60.0%), exposed collectives ~40 us (40.0%)" in texts_in(picture)


def test_hostile_names_are_text():
    picture = timeline_svg(with_intervals(replace(CORE, name="<script>\u202e\x1b")))
    assert "script" not in {each.tag for each in ElementTree.fromstring(picture).iter()}
    assert not any(letter in picture for letter in "\u202e\x1b")
