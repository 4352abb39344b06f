"""The trace for Perfetto: every number in it is one of the timeline's JSON, and nothing overlaps on a track."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from functools import partial
from time import process_time
from typing import Any

import pytest
from step_by_step import Told, per_step, told
from timeline_examples import CHOSEN, EVIL, LONG, check_every, deep_text, hostile_text, timeline_of

import hloscope
from hloscope.base.errors import HloscopeError, NotationError
from hloscope.cost.unrolled import UnrolledTimeline
from hloscope.model.timeline import Timeline
from hloscope.report import trace

NS = 1e-3
MOVED_US = 0.05
"""What takes less than a nanosecond gets one, and moves what follows by that."""

BOUNDS = {"exact": None, "at most": "at most", "at least": "at least", "unknown": "as counted"}


class Trace:
    """A trace that was read back."""

    def __init__(self, found: Timeline) -> None:
        self.document: Any = json.loads(gzip.decompress(trace.Trace().files("timeline", found).contents[""]))
        self.events: list[Any] = self.document["traceEvents"]
        self.slices = [one for one in self.events if one["ph"] == "X"]
        self.tracks = {one["tid"]: one["args"]["name"] for one in self.events if one["name"] == "thread_name"}

    def track(self, one: Any) -> str:
        """Where a slice is shown."""
        return str(self.tracks[one["tid"]])

    def key(self, one: Any) -> tuple[object, ...]:
        """What a slice is of."""
        args = one["args"]
        is_wait = one["name"].startswith("wait: ")
        return self.track(one) == "TensorCore", args["computation"], args.get("instruction"), is_wait


def key_of(one: Told) -> tuple[object, ...]:
    return one.is_on_core, one.computation, one.interval["name"], one.interval["wait"] is not None


def check_slices(shown: Trace, document: Any) -> None:
    """Every interval, as often as it comes, is a slice of its own with the same numbers, and there are no others."""
    slices = defaultdict[tuple[object, ...], list[Any]](list)
    for one in shown.slices:
        if shown.track(one) != trace.DONE and not one["name"].startswith("iteration "):
            slices[shown.key(one)].append(one)
    collectives = {
        f"{one['computation']}/{each['name']}": {**one, **each}
        for one in document["collectives"]
        for each in (one, *one["parts"])
    }
    for expected in sorted(told(document), key=lambda one: one.begin_us):
        given = slices[key_of(expected)].pop(0)
        assert given["ts"] == pytest.approx(expected.begin_us, abs=MOVED_US)
        assert given["ts"] + given["dur"] == pytest.approx(expected.end_us, abs=MOVED_US)
        check_args(given["args"], expected.interval, collectives.get(expected.interval["collective"]))
    assert not any(slices.values())


def check_args(args: Any, interval: Any, collective: Any) -> None:
    for name, field in (("flops", "flops"), ("bytes", "moved_bytes"), ("rule", "rule"), ("waits for", "waits_for")):
        assert args.get(name) == interval[field]
    assert args.get("time is") == BOUNDS[interval["bound"]]
    if collective is not None:
        for name, field in (
            ("kind", "kind"),
            ("payload bytes", "payload_bytes"),
            ("wire bytes", "wire_bytes"),
            ("times per step", "executions"),
            ("why", "why"),
            ("op", "op_name"),
        ):
            assert args.get(name) == collective[field]
        assert args.get("times per step are") == BOUNDS[collective["executions_bound"]]
        assert args.get("bytes are") == BOUNDS[collective["bytes_bound"]]


def check_sums(shown: Trace, found: Timeline, document: Any) -> None:
    """What the slices add up to is what a step holds: computing, waits, FLOPs and bytes, and its collectives' bytes."""
    working = [one for one in shown.slices if shown.track(one) in ("TensorCore", "another thread")]
    for name, field in (("flops", "flops"), ("bytes", "moved_bytes")):
        assert sum(one["args"].get(name, 0) for one in working) == per_step(document, field, unit="core")
    on_core = [one for one in working if shown.track(one) == "TensorCore"]
    waits = [one for one in on_core if one["name"].startswith("wait: ")]
    waited_us = sum(one["dur"] for one in waits)
    rounded = pytest.approx(found.waits.total_us, rel=1e-3, abs=NS * (len(on_core) + 1))
    assert waited_us == rounded
    sent = sum(one["args"].get("bytes", 0) for one in shown.slices if shown.track(one).startswith(("ICI", "DCN")))
    assert sent == sum(per_step(document, "moved_bytes", unit=unit) for unit in ("ici", "dcn"))


def check_counts(shown: Trace) -> None:
    """At the end nothing is on its way any more, and never less than nothing."""
    last = {}
    for one in shown.events:
        if one["ph"] == "C":
            ((unit, value),) = one["args"].items()
            assert value >= -1e-6
            last[one["name"], unit] = value
    assert {value for (name, _), value in last.items() if name != "HBM in use"} <= {0}
    on_network = any(one["args"].get("bytes") for one in shown.slices if shown.track(one).startswith(("ICI", "DCN")))
    assert any(unit == "bytes" for _, unit in last) == on_network


def check_tracks(shown: Trace) -> None:
    """On each track slices follow each other or are within each other, in whole nanoseconds."""
    by_track = defaultdict[int, list[tuple[int, int]]](list)
    for one in shown.slices:
        begin_ns, end_ns = round(one["ts"] / NS), round((one["ts"] + one["dur"]) / NS)
        assert one["ts"] == pytest.approx(begin_ns * NS)
        by_track[one["tid"]].append((begin_ns, end_ns))
    for track in by_track.values():
        around: list[int] = []
        for begin_ns, end_ns in sorted(track, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin_ns:
                around.pop()
            assert not around or end_ns <= around[-1]
            around.append(end_ns)


def check_flows(shown: Trace) -> None:
    """What was started leads to where it is waited for: each flow begins once, and ends once and no earlier."""
    begins = {one["bind_id"]: one["ts"] for one in shown.slices if one.get("flow_out")}
    ends = {one["bind_id"]: one["ts"] for one in shown.slices if one.get("flow_in")}
    assert len(begins) + len(ends) == sum("bind_id" in one for one in shown.slices)
    assert all(begins[number] <= at_us for number, at_us in ends.items())


def check(found: Timeline) -> None:
    shown, document = Trace(found), found.to_dict()
    assert shown.document["otherData"]["step_us"] == document["step_us"]
    check_slices(shown, document)
    check_sums(shown, found, document)
    check_counts(shown)
    check_tracks(shown)
    check_flows(shown)


@pytest.mark.parametrize("path", CHOSEN, ids=lambda path: path.name)
def test_every_number_is_that_of_the_json(path):
    check(timeline_of(path))


@pytest.mark.long
def test_so_it_is_of_every_fixture():
    check_every(check)


def test_tracks_and_slices_say_what_they_are():
    path = next(path for path in CHOSEN if path.name.startswith("mixture_of_experts"))
    shown = Trace(hloscope.timeline(path, slice="v5e:2x4", mesh={"X": 4, "Y": 2}))
    assert list(shown.tracks.values()) == ["TensorCore", "ICI x± y± (over X,Y)"]
    (title,) = (one["args"]["name"] for one in shown.events if one["name"] == "process_name")
    assert title == "predicted by hloscope: jit_mixture_of_experts on v5e:2x4"
    names = Counter(one["name"] for one in shown.slices)
    assert names["while.10, 8 iterations"] == names["iteration 3 of 8"] == 1
    assert names["all-gather over X,Y"] == names["wait: all-gather over X,Y"] == 8
    (source,) = {one["args"]["source"] for one in shown.slices if one["name"] == "all-gather over X,Y"}
    assert source.splitlines()[0].startswith("fixtures/programs/mixture_of_experts.py:26 in ")
    assert {name for one in shown.events if one["ph"] == "C" for name in one["args"]} == {"GB/s", "bytes"}


def test_of_a_long_loop_the_rest_is_one_slice_and_that_is_said(monkeypatch):
    monkeypatch.setattr(trace, "UnrolledTimeline", partial(UnrolledTimeline, most_events=50))
    path = next(path for path in CHOSEN if path.name.startswith("mixture_of_experts"))
    found = timeline_of(path)
    shown, (note,) = Trace(found), trace.Trace().files("timeline", found).notes
    assert note in shown.document["otherData"]["notes"]
    (rest,) = (one for one in shown.slices if one["name"] == "iterations 3 to 8, shown as one")
    assert rest["ts"] + rest["dur"] == pytest.approx(found.step_us, abs=MOVED_US)
    gather, whole = (one for one in found.computation("wide.region_0.1_spmd.clone.sunk").intervals if one.collective)
    counts = [one for one in shown.events if one["ph"] == "C" and one["ts"] == rest["ts"] and "bytes" in one["args"]]
    mean = gather.moved_bytes * gather.time_us / (rest["dur"] / 6)
    assert whole.wait == "collective"
    assert [one["args"]["bytes"] for one in counts] == [pytest.approx(mean, rel=1e-3)]


def test_hostile_text_is_text(tmp_path):
    file = tmp_path / "step.hlo"
    file.write_text(hostile_text())
    found = hloscope.timeline(file, slice="v5e:2x2")
    said = json.dumps(found.to_dict())
    assert "<script>" in said
    shown = Trace(found)
    assert shown.slices[0]["name"] == LONG
    for one in shown.slices:
        assert one["args"]["op"] == f"jit(f)/{EVIL}"
        assert one["args"]["source"] == f"/src/{EVIL}.py:3"


def test_it_is_the_same_each_time_and_no_text():
    found = timeline_of(CHOSEN[0])
    assert trace.Trace().files("timeline", found) == trace.Trace().files("timeline", found)
    with pytest.raises(NotationError, match="the format 'trace' is not text"):
        found.report("trace")


def test_a_timeline_that_was_read_from_json_has_a_trace_too():
    found = timeline_of(CHOSEN[0])
    read, whole = Trace(Timeline.from_dict(found.to_dict())), Trace(found)
    assert [one["ts"] for one in read.slices] == [one["ts"] for one in whole.slices]
    assert [one["args"].get("why") for one in read.slices] == [one["args"].get("why") for one in whole.slices]


@pytest.mark.parametrize("format_name", ["trace", pytest.param("xplane", marks=pytest.mark.process)])
def test_a_step_of_too_many_operations_is_refused_before_it_is_unrolled(says, tmp_path, format_name):
    file = tmp_path / "deep.hlo"
    file.write_text(deep_text(30))
    found = hloscope.timeline(file, slice="v5e:2x2")
    begun_s = process_time()
    with pytest.raises(HloscopeError) as caught:
        found.save(tmp_path / "out", format_name)
    assert process_time() - begun_s < 1
    assert not (tmp_path / "out").exists()
    says(caught)


def test_a_step_of_fewer_has_each_of_its_operations(tmp_path):
    file = tmp_path / "deep.hlo"
    file.write_text(deep_text(6))
    shown = Trace(hloscope.timeline(file, slice="v5e:2x2"))
    permutes = [one for one in shown.slices if shown.track(one).startswith("ICI")]
    assert len(permutes) == 2**6
