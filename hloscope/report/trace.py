"""A step as a trace for Perfetto: Chrome's JSON, compressed, as JAX writes it; nothing in it was measured.

Perfetto silently drops slices that overlap others on their track or outlast the slice around them. So times are
whole nanoseconds here, a slice stays within the one around it, and overlapping slices have lanes of their own.

Source: "Trace Event Format" of Chrome; slices with one `bind_id` are tied to each other whatever their order.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hloscope.analysis.provenance import find_source_frames
from hloscope.base.canvas import Canvas
from hloscope.base.outputs import OutputFiles
from hloscope.base.units import pluralize
from hloscope.cost.unrolled import (
    PlacedInterval,
    PlacedRole,
    UnrolledTimeline,
    count_hbm_in_use,
    count_in_flight,
    count_iterations,
    find_iterations_bound,
)
from hloscope.measurement.predicted_profile import find_interval_instruction, format_hlo_line
from hloscope.model import Collective, CollectivePart, SourceFrame
from hloscope.model.capture import find_evidence
from hloscope.model.collectives import index_transfers
from hloscope.model.timeline import Interval, Timeline, Unit, WaitCause
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import dump_json_line
from hloscope.report.renderer import Renderer
from hloscope.report.words import format_axes
from hloscope.version import __version__

Event = dict[str, Any]

_PROCESS = 1
_CORE, DONE = "TensorCore", "done without a wait"
_UNITS = {
    Unit.CORE: "another thread",
    Unit.THREAD: "another thread",
    Unit.DCN: "DCN",
    Unit.HBM: "copies within the device",
    Unit.TO_HOST: "copies to the host",
    Unit.FROM_HOST: "copies from the host",
    Unit.HOST: "the host",
}
"""Tracks of units other than the core, in their order below those of ICI."""

_WAITS = {
    WaitCause.HBM: "copy within the device, {}",
    WaitCause.HOST: "the host, {}",
    WaitCause.KERNEL: "another thread, {}",
    WaitCause.LIMIT: "what memory or the matrix units take besides",
}
"""The words for waits that are not for collectives."""

_MICROSECOND_NS = 1000


class Trace(Renderer):
    """A timeline as a compressed file for Perfetto."""

    ending = ".json.gz"
    writes = "file"

    def render_timeline(self, found: Timeline, canvas: Canvas) -> OutputFiles:
        """The trace, whose title says that it is predicted."""
        unrolled = UnrolledTimeline(found)
        notes = () if unrolled.left_out is None else (unrolled.left_out,)
        names = ("target", "module", "slice", "step_us", "bound", "computing_us", "hidden_us")
        head = {
            "displayTimeUnit": "ns",
            "otherData": {
                "predicted_by": f"hloscope {__version__}: nothing here was measured",
                **{name: getattr(found, name) for name in names},
                "notes": [*found.notes, *notes],
            },
        }
        events = ",\n".join(dump_json_line(event) for event in _make_events(unrolled))
        text = f'{dump_json_line(head)[:-1]}, "traceEvents": [\n{events}\n]}}\n'
        contents = {"": gzip.compress(text.encode(), mtime=0)}
        return OutputFiles(contents=contents, opened_by="https://ui.perfetto.dev", notes=notes)


def _make_events(unrolled: UnrolledTimeline) -> Iterator[Event]:
    timeline = unrolled.timeline
    words = _Words(timeline)
    title = f"predicted by hloscope: {timeline.module} on {timeline.slice}"
    yield _make_metadata("process_name", 0, name=title)
    slices = [*_list_slices(unrolled, words)]
    order = sorted({track for track, _ in slices}, key=_make_order)
    numbers = {track: number for number, track in enumerate(order, _PROCESS + 1)}
    for track, number in numbers.items():
        yield _make_metadata("thread_name", number, name=words.name_track(track))
        yield _make_metadata("thread_sort_index", number, sort_index=number)
    for track, event in slices:
        yield event | {"tid": numbers[track]}
    for count in (*count_in_flight(unrolled, words.axes), *count_hbm_in_use(unrolled)):
        at, args = _to_us(_to_ns(count.at_us)), {count.unit: count.value}
        yield {"ph": "C", "pid": _PROCESS, "name": count.name, "ts": at, "args": args}


def _make_metadata(what: str, number: int, **args: str | int) -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": number, "name": what, "args": args}


# ---- slices on tracks


class _Track(NamedTuple):
    """The track of slices.

    Attributes:
        unit: The unit at work.
        links: Of ICI, the links in use.
        lane: Counts those that are at work at once, from 0.
        name: The name of a track of the core; empty for all others.
    """

    unit: Unit
    links: tuple[str, ...] = ()
    lane: int = 0
    name: str = ""


def _make_order(track: _Track) -> tuple[object, ...]:
    units = (Unit.ICI, *_UNITS)
    return not track.name, track.name != _CORE, units.index(track.unit), track.links, track.lane


def _list_slices(unrolled: UnrolledTimeline, words: _Words) -> Iterator[tuple[_Track, Event]]:
    """The slices of the step in their order, each with its track, whose number is still 0 in the event."""
    core, done, flows = _Filled(), _Filled(), _Flows()
    lanes: dict[_Track, list[int]] = defaultdict(list)
    for placed in unrolled:
        if placed.role is PlacedRole.START:
            continue
        if placed.role is PlacedRole.DONE:
            track = _Track(Unit.CORE, name=DONE)
            begin_ns, end_ns = done.fit(placed._replace(depth=0))
        elif placed.is_on_core:
            track = _Track(Unit.CORE, name=_CORE)
            begin_ns, end_ns = core.fit(placed)
        else:
            begin_ns, end_ns = _to_ns(placed.begin_us), max(_to_ns(placed.end_us), _to_ns(placed.begin_us) + 1)
            track = _Track(placed.interval.unit, placed.interval.links)
            track = track._replace(lane=_take_lane(lanes[track], begin_ns, end_ns))
        event = {
            "ph": "X", "pid": _PROCESS, "tid": 0, "name": words.name_slice(placed),
            "ts": _to_us(begin_ns), "dur": _to_us(end_ns - begin_ns), "args": words.list_args(placed),
        }  # fmt: skip
        yield track, event | flows.find(placed)


def _take_lane(ends_ns: list[int], begin_ns: int, end_ns: int) -> int:
    """Takes the first lane of a track that is free; `ends_ns` holds the end of the last slice on each lane."""
    lane = next((number for number, busy_ns in enumerate(ends_ns) if busy_ns <= begin_ns), len(ends_ns))
    ends_ns[lane : lane + 1] = [end_ns]
    return lane


class _Filled:
    """A track on which slices are within each other: those that are open, outermost first.

    A slice shorter than a nanosecond gets one, and the next begins later by that: two that begin at once would be
    shown one within the other.
    """

    def __init__(self) -> None:
        self._open: list[list[int]] = [[-1, 1 << 62, 0]]
        """The depth, the end and the filled extent of each open slice."""

    def fit(self, placed: PlacedInterval) -> tuple[int, int]:
        """The begin and the end of a slice, within the one around it and after the one before."""
        while self._open[-1][0] >= placed.depth:
            self._open.pop()
        _, most_ns, filled_ns = self._open[-1]
        begin_ns = min(max(_to_ns(placed.begin_us), filled_ns), most_ns)
        end_ns = min(max(_to_ns(placed.end_us), begin_ns + 1), most_ns)
        self._open[-1][2] = end_ns
        self._open.append([placed.depth, end_ns, begin_ns])
        return begin_ns, end_ns


class _Flows:
    """The begun flows, by the operation and its wait."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[tuple[object, ...], int] = {}

    def find(self, placed: PlacedInterval) -> Event:
        """The tie from the start of an operation to its wait that a slice belongs to, as fields of its event."""
        interval = placed.interval
        if interval.wait is not None:
            number = self._numbers.pop((placed.run, interval.waits_for, interval.name), None)
            return {} if number is None else {"bind_id": number, "flow_in": True}
        if interval.done is None or interval.is_prefetch:  # what waits is for what the step before has begun
            return {}
        key = placed.run, interval.name, interval.done
        if placed.role is PlacedRole.DONE:
            return {"bind_id": self._numbers.pop(key), "flow_in": True}
        self._count += 1
        self._numbers[key] = self._count
        return {"bind_id": self._count, "flow_out": True}


def _to_ns(time_us: float) -> int:
    return round(time_us * _MICROSECOND_NS)


def _to_us(time_ns: int) -> float:
    return time_ns / _MICROSECOND_NS


# ---- words


class _Words:
    """The names and arguments of slices.

    Args:
        timeline: The step.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._collectives = index_transfers(timeline.collectives)
        self.axes = {key: _format_axes(each) for key, (_, each) in self._collectives.items()}
        self._axes_of_links: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for computation in timeline.computations:
            for interval in computation.intervals:
                if interval.unit is Unit.ICI and interval.collective in self.axes:
                    self._axes_of_links[interval.links].add(self.axes[interval.collective])
        evidence = find_evidence(timeline)
        self._module = None if evidence is None else evidence.module()
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    def name_track(self, track: _Track) -> str:
        """The name of a track: `ICI x± (axis fsdp)`."""
        lane = f" · {track.lane + 1}" if track.lane else ""
        if track.name:
            return track.name
        if track.unit is not Unit.ICI:
            return f"{_UNITS[track.unit]}{lane}"
        axes = sorted(self._axes_of_links[track.links])
        said = f" (over {' and '.join(axes)})" if axes else ""
        return f"ICI {_format_links(track.links)}{said}{lane}"

    def name_slice(self, placed: PlacedInterval) -> str:
        """The name of a slice: kind and axes of a collective, or the instruction."""
        interval, name = placed.interval, placed.name or "the end"
        if placed.role is PlacedRole.ITERATION:
            return f"iteration {placed.iteration} of {find_iterations_bound(interval).marked(str(placed.iterations))}"
        if placed.role is PlacedRole.LEFT_OUT:
            return f"iterations {placed.iteration} to {placed.iterations}, shown as one"
        if placed.role is PlacedRole.DONE:
            return name
        what = self._name_collective(interval) or interval.waits_for or name
        mark = interval.bound.marked("")
        if interval.wait is not None:
            return f"wait: {mark}{_WAITS.get(interval.wait, what).format(what)}"
        if max((run.times for run in interval.runs), default=0) > 1:
            iterations = pluralize(count_iterations(interval), "iteration")
            return f"{name}, {find_iterations_bound(interval).marked(iterations)}"
        return f"{mark}{what}"

    def _name_collective(self, interval: Interval) -> str | None:
        if interval.collective not in self._collectives:
            return None
        _, each = self._collectives[interval.collective]
        return f"{each.kind} over {self.axes[interval.collective]}"

    def list_args(self, placed: PlacedInterval) -> dict[str, Any]:
        """The known arguments of a slice."""
        interval = placed.interval
        found = {
            "instruction": placed.name,
            "computation": placed.computation,
            "waits for": interval.waits_for,
            "rule": interval.rule,
            "flops": interval.flops,
            "bytes": interval.moved_bytes,
            "HBM bytes in use": interval.live_bytes,
            "time is": _format_bound(interval.bound),
            "queued us": None if interval.issued_us is None else interval.begin_us - interval.issued_us,
            "begun by the step before": interval.is_prefetch or None,
        }
        if interval.collective is not None:
            found |= self._describe_collective(interval.collective)
        elif placed.name is not None:
            found |= self._describe_instruction(placed.computation, placed.name)
        return {name: value for name, value in found.items() if value is not None}

    def _describe_collective(self, key: str) -> dict[str, Any]:
        if key not in self._collectives:
            return {}
        whole, each = self._collectives[key]
        return {
            "collective": key,
            "kind": str(each.kind),
            "axes": self.axes[key],
            "link": str(each.link),
            "payload bytes": each.payload_bytes,
            "wire bytes": each.wire_bytes,
            "bytes are": _format_bound(whole.bytes_bound),
            "times per step": each.executions,
            "times per step are": _format_bound(whole.executions_bound),
            "why": whole.why,
            "op": whole.op_name,
            "source": _format_places(whole.source),
        }

    def _describe_instruction(self, computation: str, name: str) -> dict[str, Any]:
        """The program's facts about an instruction; none for a timeline that was read from a document."""
        if (computation, name) not in self._known:
            instruction = None if self._module is None else find_interval_instruction(self._module, computation, name)
            self._known[computation, name] = {} if instruction is None else {
                "op": instruction.op_name,
                "source": _format_places(find_source_frames(instruction)),
                "HLO": format_hlo_line(instruction),
            }  # fmt: skip
        return self._known[computation, name]


def _format_bound(bound: Bound) -> str | None:
    """A bound in words: `at least`; None if exact."""
    return None if bound is Bound.EXACT else "as counted" if bound is Bound.UNKNOWN else str(bound)


def _format_axes(each: Collective | CollectivePart) -> str:
    if isinstance(each, Collective):
        return format_axes(each)
    return "unknown axes" if each.axes is None else ",".join(each.axes) or "none"


def _format_links(links: Iterable[str]) -> str:
    """Links in short: `x±` for both directions along one axis."""
    directions: dict[str, str] = defaultdict(str)
    for link in links:
        directions[link[0]] += link[1:]
    return " ".join(axis + ("±" if len(signs) > 1 else signs) for axis, signs in directions.items())


def _format_places(frames: Iterable[SourceFrame]) -> str | None:
    places = (f"{one.file}:{one.line}" + (f" in {one.function}" if one.function else "") for one in frames)
    return "\n".join(places) or None
