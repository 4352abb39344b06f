"""What is only a bound says so wherever it is shown."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import pytest
from bounded_examples import BRANCH, KERNEL, LOOP, ONCE, analysis_of, ways_of

import hloscope
from hloscope.base.canvas import Canvas
from hloscope.measurement.predicted_profile import make_predicted_profile
from hloscope.model.vocabulary import Bound
from hloscope.report.diffs import list_figure_rows
from hloscope.report.formats import render, render_files
from hloscope.report.pictures import svg
from hloscope.report.pictures.plots import draw_front


def front_svg(found):
    return svg.render(draw_front(found))


def difference(old, new):
    return hloscope.diff(analysis_of(old), analysis_of(new))


def rows_of(found):
    return {row[0]: row[1:] for row in list_figure_rows(found)}


def test_the_bound_of_a_difference():
    assert [Bound.EXACT + -bound for bound in Bound] == ["exact", "at least", "at most", "unknown"]
    assert Bound.AT_LEAST + -Bound.AT_MOST == "at least"
    assert Bound.AT_LEAST + -Bound.AT_LEAST == "unknown"


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (ONCE, ONCE, ("6.14 kB", "6.14 kB", "=")),
        (ONCE, BRANCH, ("6.14 kB", "≤6.14 kB", "≤0 B")),
        (BRANCH, ONCE.replace("1024", "2048"), ("≤6.14 kB", "12.3 kB", "≥+6.14 kB")),
        (ONCE.replace("1024", "2048"), BRANCH, ("12.3 kB", "≤6.14 kB", "≤−6.14 kB")),
        (BRANCH, BRANCH, ("≤6.14 kB", "≤6.14 kB", "unknown")),
        (LOOP, ONCE, ("~6.14 kB", "6.14 kB", "unknown")),
    ],
)
def test_a_change_has_the_bound_of_both_sides(old, new, shown):
    assert rows_of(difference(old, new))["sent per step"] == shown


def test_a_change_that_nothing_bounds_is_said_to_be_unknown():
    found = difference(ONCE, LOOP)
    assert found.step_bounds == ("exact", "unknown")
    assert rows_of(found)["predicted step"][1:] == ("~6.52 us", "unknown")
    assert found.changes[0].bound == "unknown"
    assert "~4.10 kB payload" in found.changes[0].text
    for form in ("text", "markdown"):
        report = render("difference", form, found, Canvas())
        assert "a change is unknown where the bounds of both sides do not bound their difference" in report
        assert "~ means as counted" in report


def test_a_change_says_bytes_that_are_bounds():
    before, after = analysis_of(ONCE), analysis_of(ONCE.replace("1024", "2048"))
    row = replace(after.collectives[0], bytes_bound=Bound.AT_MOST)
    found = hloscope.diff(before, replace(after, collectives=type(after.collectives)([row])))
    assert "4.10 kB payload -> ≤8.19 kB payload" in found.changes[0].text
    assert (found.changes[0].bound, found.changes[0].new[0].bytes_bound) == ("at most", "at most")


@pytest.mark.parametrize(("text", "mark"), [(LOOP, "~"), (BRANCH, "≤")])
def test_the_graph_marks_what_is_a_bound(text, mark):
    graph = analysis_of(text).graph()
    (reduce,) = [node for node in graph.nodes if node.collective]
    assert (graph.bound, reduce.bound) == (analysis_of(text).time.bound, "exact")
    assert reduce.executions_bound == graph.bound
    assert f"critical path of the step, {mark}6.52 us" in graph.report("text")
    assert f"{mark}1" in graph.report("text").split("%r ")[1].split("\n")[0]
    assert f"{mark} means" in graph.report("text")
    assert f"6.52 us, {mark}1 times" in graph.report("dot")
    assert f'executions_bound="{graph.bound}"' in graph.report("dot")
    assert f"6.52 us ×{mark}1" in graph.report("svg")
    assert f"critical path of the step {mark}6.52 us" in graph.report("svg")
    assert f"{mark} means" in graph.report("svg")
    assert reduce.executions_bound in {node["executions_bound"] for node in graph.to_dict()["nodes"]}


def test_what_an_unknown_cost_takes_is_a_bound():
    found = analysis_of(KERNEL)
    bounds = {node.name: node.bound for node in found.graph().nodes}
    assert (bounds["k"], bounds["u"]) == ("at least", "unknown")
    assert "≥" in found.graph().report("dot")
    (computation,) = found.timeline().computations
    assert {one.name: one.bound for one in computation.intervals} == {"k": "at least", "u": "unknown"}
    assert computation.bound == "at least"


def slices_of(found):
    (content,) = render_files("timeline", "trace", found.timeline()).contents.values()
    return [one for one in json.loads(gzip.decompress(content))["traceEvents"] if one["ph"] == "X"]


def test_the_trace_marks_what_is_a_bound():
    kernel, other = slices_of(analysis_of(KERNEL))
    assert (kernel["name"], kernel["args"]["time is"]) == ("≥k", "at least")
    assert (other["name"], other["args"]["time is"]) == ("~u", "as counted")
    names = {one["name"]: one["args"] for one in slices_of(analysis_of(LOOP))}
    assert {"w, ~1 iteration", "iteration 1 of ~1"} <= set(names)
    assert names["all-reduce over X"]["times per step are"] == "as counted"
    names = {one["name"]: one["args"] for one in slices_of(analysis_of(BRANCH))}
    assert names["≤o"]["time is"] == names["all-reduce over X"]["times per step are"] == "at most"


def test_the_profile_says_what_is_a_bound():
    found = analysis_of(KERNEL)
    profile = make_predicted_profile(found.timeline(), found.evidence.program, found.evidence.module())
    (run,) = profile.devices[0].runs
    assert [dict(event.operation.stats)["time_bound"] for event in run.operations] == ["at least", "unknown"]
    assert dict(profile.devices[0].stats)["step_bound"] == "at least"
    found = analysis_of(LOOP)
    profile = make_predicted_profile(found.timeline(), found.evidence.program, found.evidence.module())
    reduce = next(event.operation for event in profile.devices[0].runs[0].operations if event.operation.name == "r")
    assert dict(reduce.stats)["executions_bound"] == "unknown"
    assert "iteration 1 of ~1" in {event.operation.name for event in profile.devices[0].runs[0].loops}


@pytest.mark.parametrize(("text", "mark", "parts"), [(LOOP, "~", "~"), (BRANCH, "≤", "~"), (ONCE, "", "")])
def test_the_timeline_marks_what_is_a_bound(text, mark, parts):
    shown = render("timeline", "text", analysis_of(text).timeline(), Canvas())
    assert f": {mark}6.52 us a step" in shown
    assert f" {parts}6.52 us " in next(line for line in shown.split("\n") if "waiting for collectives" in line)
    assert f" {mark}6.52 us " in next(line for line in shown.split("\n") if "%r" in line)


@pytest.mark.parametrize(("text", "mark"), [(LOOP, "~"), (BRANCH, "≤"), (ONCE, "")])
def test_the_mesh_marks_what_crosses_its_links(text, mark):
    svg = analysis_of(text).mesh_picture().svg
    assert f"busiest links each step: x+ {mark}3.07 kB" in svg
    assert f">{mark}3.07 kB</text>" in svg
    assert f"{mark}3.07 kB there and {mark}3.07 kB back each step" in svg
    assert ("means" in svg) == bool(mark)


@pytest.mark.parametrize(
    ("before", "after", "gain", "ratio"),
    [
        (Bound.EXACT, Bound.EXACT, "", ""),
        (Bound.EXACT, Bound.AT_MOST, "≥", "≤"),
        (Bound.AT_LEAST, Bound.EXACT, "≥", "≤"),
        (Bound.AT_MOST, Bound.AT_MOST, "~", "~"),
        (Bound.AT_MOST, Bound.EXACT, "≤", "≥"),
    ],
)
def test_a_gain_has_one_bound_wherever_it_is_shown(before, after, gain, ratio):
    steps = before.marked("1 ms"), after.marked("250 us")
    found = ways_of(before, after, 250.0)
    text, page = found.report("text"), found.report("html")
    assert f"The best sharding found takes {gain}75.0% less time" in text
    assert f"{steps[0]} -> {steps[1]}, {gain}75.0% less: way" in text
    assert set(re.findall(" ([≥≤~]) means", text)) == {*"".join((before.marked(""), after.marked(""), gain))}
    assert f">{gain}75.0% less time</data>" in page
    assert f">{ratio}25.0%</data>" in page
    for shown in (text, found.report("markdown").replace("\\", ""), page, front_svg(found)):
        assert set(re.findall(r"([≥≤~]?)75\.0% less", shown)) == {gain}
    assert f"{steps[0]} -> {steps[1]}" in repr(found)
    slower = ways_of(before, after, 1500.0)
    for shown in (slower.report("html"), front_svg(slower)):
        assert set(re.findall(r"([≥≤~]?)50\.0% more", shown)) == {ratio}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ONCE, "one device sends 6.14 kB, 1 time per step: 6.14 kB per step, 6.52 us each, 6.52 us of it exposed"),
        (BRANCH, "at most 1 time per step: ≤6.14 kB per step, 6.52 us each"),
        (LOOP, "about 1 time per step: ~6.14 kB per step, 6.52 us each"),
    ],
)
def test_an_explanation_marks_what_is_a_bound(text, words):
    found = analysis_of(text)
    for form in ("text", "markdown"):
        shown = render("explanation", form, hloscope.explain(found), Canvas(width=300))
        assert words in shown.replace("\\", "")


def test_an_explanation_marks_bytes_that_are_a_bound():
    found = analysis_of(ONCE)
    for change, words in (
        (
            {"bytes_bound": Bound.AT_MOST},
            "sends ≤6.14 kB, 1 time per step: ≤6.14 kB per step, ≤6.52 us each",
        ),
        ({"wire_bytes": None}, "sends unknown, 1 time per step: unknown per step, 6.52 us each"),
    ):
        one = replace(found.collectives[0], **change)
        explained = hloscope.explain(replace(found, collectives=type(found.collectives)([one])))
        assert words in render("explanation", "text", explained, Canvas(width=300))


def test_a_step_of_which_a_part_is_unknown_has_no_range():
    for text, has_range in ((ONCE, True), (BRANCH, True), (LOOP, False), (KERNEL, False)):
        found = analysis_of(text)
        assert found.time.has_range is has_range
        report = found.report("text")
        assert ("(4.24 to 8.81 us)" in report) is has_range
        assert ("of unknown accuracy" in report) is not has_range


@pytest.mark.parametrize(("text", "mark", "parts"), [(LOOP, "~", "~"), (BRANCH, "≤", "~"), (ONCE, "", "")])
def test_times_in_text_are_marked_as_bytes_are(text, mark, parts):
    found = analysis_of(text)
    report = found.report("text")
    row = next(line for line in report.splitlines() if "all-reduce" in line and "f32[1024]" in line)
    assert f" {mark}6.14 kB " in row
    assert f" {mark}6.52 us " in row
    assert f"communication {parts}6.52 us exposed" in report
    grouped = found.report("text", group_by="kind")
    assert f"{mark}6.52 us" in next(line for line in grouped.splitlines() if line.strip().startswith("all-reduce"))
    assert f"{parts}6.52 us exposed" in found._repr_html_()
