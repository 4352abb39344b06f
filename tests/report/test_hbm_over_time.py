"""What buffers take of HBM over the step: in the timeline, in traces, in profiles and on the page."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from timeline_examples import CHOSEN, text_at, with_buffers

import hloscope
from hloscope.cost.unrolled import UnrolledTimeline, count_hbm_in_use
from hloscope.measurement import profiles as wire
from hloscope.measurement.predicted_profile import make_predicted_profile
from hloscope.measurement.profiles import write_xspace
from hloscope.model.timeline import Unit
from hloscope.report.formats import render_files


@pytest.fixture(scope="module")
def found():
    return with_buffers(hloscope.analyze_text(text_at(CHOSEN[0]), name="moe.hlo", mesh={"X": 8}, slice="v5e:2x4"))


@pytest.fixture(scope="module")
def live(found):
    return found.evidence.program.compiled.hbm_peak.live_bytes_at


def test_each_interval_of_the_core_has_what_is_taken(found, live):
    intervals = [one for each in found.timeline().computations for one in each.intervals]
    known = [one for one in intervals if one.live_bytes is not None]
    assert known
    assert all(one.live_bytes == live[one.name] for one in known)
    others = [one for one in intervals if one.live_bytes is None]
    assert all(one.unit is not Unit.CORE or one.runs or one.name is None for one in others)


def test_without_a_buffer_assignment_nothing_is_said():
    found = hloscope.analyze_text(text_at(CHOSEN[0]), name="moe.hlo", mesh={"X": 8}, slice="v5e:2x4").timeline()
    assert all(one.live_bytes is None for each in found.computations for one in each.intervals)
    assert list(count_hbm_in_use(UnrolledTimeline(found))) == []
    assert b"HBM in use" not in gzip.decompress(render_files("timeline", "trace", found).contents[""])


def counted(found):
    events = json.loads(gzip.decompress(render_files("timeline", "trace", found.timeline()).contents[""]))[
        "traceEvents"
    ]
    return [(one["ts"], one["args"]["bytes"]) for one in events if one["ph"] == "C" and one["name"] == "HBM in use"]


def test_the_trace_counts_it(found, live):
    counts = counted(found)
    times, values = zip(*counts, strict=True)
    assert list(times) == sorted(times)
    assert all(one != other for one, other in pairwise(values))
    assert set(values) <= set(live.values())
    loop = next(each for each in found.timeline().computations if each.executions == 8)
    most = max(one.live_bytes for one in loop.intervals if one.live_bytes is not None)
    assert values.count(most) == 8


def test_of_iterations_that_are_left_out_it_is_the_most(found):
    whole, short = (list(count_hbm_in_use(UnrolledTimeline(found.timeline(), most))) for most in (10_000, 50))
    assert len(short) < len(whole)
    assert max(one.value for one in short) == max(one.value for one in whole)
    left_out = next(one for one in UnrolledTimeline(found.timeline(), 50) if one.role == "left out")
    meanwhile = [one.value for one in short if one.at_us == left_out.begin_us]
    within = [found.timeline().computation(run.computation) for run in left_out.interval.runs]
    assert meanwhile == [max(one.live_bytes or 0 for each in within for one in each.intervals)]


def test_the_profile_counts_it(found):
    timeline = found.timeline()
    profile = make_predicted_profile(timeline, found.evidence.program, found.evidence.module())
    (run,) = profile.devices[0].runs
    expected = list(count_hbm_in_use(UnrolledTimeline(timeline)))
    assert [dict(event.operation.stats)["bytes"] for event in run.counters] == [one.value for one in expected]
    planes = map(wire.read_plane, wire.read_planes(write_xspace(profile)))
    plane = next(plane for plane in planes if plane.name.startswith("/device"))
    line = next(line for line in plane.lines if wire.read_name(line) == "_counters_")
    events = list(wire.read_line_events(line))
    assert [event.duration_ps for event in events] == [0] * len(expected)
    told = [plane.events[event.metadata_id] for event in events]
    assert {one.name for one in told} == {"HBM in use"}
    assert [plane.stats(one.stats)["bytes"] for one in told] == [one.value for one in expected]
    operation = next(event.operation for event in run.operations if "hbm_bytes_in_use" in dict(event.operation.stats))
    assert dict(operation.stats)["hbm_bytes_in_use"] in {
        one.live_bytes for each in timeline.computations for one in each.intervals
    }
