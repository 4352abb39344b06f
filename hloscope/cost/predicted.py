"""What is predicted of each operation of a schedule: the same that a profile measures of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hloscope.analysis.model import Analysis
from hloscope.analysis.trip_counts import trip_count
from hloscope.cost.constants import is_calibrated
from hloscope.cost.operations import Basis, OperationTime
from hloscope.cost.paths import NetworkTime
from hloscope.cost.price import timeline_of
from hloscope.cost.records import Key, Span
from hloscope.cost.timeline import LOCAL_STARTS, RUNS, Timeline, ends_chain
from hloscope.hardware.chips import Chip
from hloscope.hlo import HloInstruction, HloModule
from hloscope.program.capture import Capture

_UNPRICED = "not priced"
_ON_ANOTHER_THREAD = "on another thread"
_LINK_TO_HOST = "link to the host"
_HANDS_ON = frozenset({"get-tuple-element", "call-update", "async-update", "bitcast"})
WITHIN_DEVICE, TO_HOST, FROM_HOST = "within the device", "to the host", "from the host"
_NOT_RUN = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


class Activity(StrEnum):
    """What a device does, or waits for, during an operation."""

    COMPUTING = "computing"
    COMMUNICATION = "communication"
    HOST = "host copies"
    MEMORY = "memory copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One instruction of the schedule.

    Attributes:
        instruction: The instruction.
        activity: What the device does meanwhile.
        executions: How often it comes to it in one step.
        time_us: How long it is at it, each time; of what runs beside other things that is the start or the wait alone.
        rule: What priced it.
        waits_for: The start of what it waits for; None for all else.
        transfer_us: Of a transfer, how long that takes once it has begun; None for all else, and where nothing tells.
        latency_us: The part of it that does not depend on bytes.
        queued_us: How long it waits, once started, for what was started before it.
        moved_bytes: What a copy moves; None for all else.
        hbm_bytes: What an operation that computes reads and writes of HBM, at the least.
        runs_beside: Whether it only starts what runs beside the rest.
        link_axes: Of a collective within a slice: how many axes of the torus carry it; None for all else.
        queue: Copies of one queue are carried out one after the other; None for all else.
    """

    instruction: HloInstruction
    activity: Activity
    executions: int
    time_us: float
    rule: str
    waits_for: str | None = None
    transfer_us: float | None = None
    latency_us: float | None = None
    queued_us: float = 0.0
    moved_bytes: int | None = None
    hbm_bytes: int = 0
    runs_beside: bool = False
    link_axes: int | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step as it is predicted, operation by operation.

    Attributes:
        chip: The generation.
        step_us: The whole step.
        operations: What the device is at, by the computation and the name of the instruction, in the order of the text;
            without loops, branches and calls, whose time is that of what is in them.
        timeline: The walk that priced it.
    """

    chip: str
    step_us: float
    operations: Mapping[Key, Predicted]
    timeline: Timeline

    def is_calibrated(self, rule: str) -> bool:
        """Whether a rule was compared with a measurement of this generation."""
        return is_calibrated(self.chip, rule)

    def schedule(self) -> Iterator[tuple[Span, float, bool]]:
        """Every instruction that runs in one step, as often as it runs; what runs others comes before them.

        Yields:
            The span, the time since the beginning of the step in microseconds, and whether it runs others.
        """
        begin_us = 0.0
        for computation in self.timeline.graph.module.outermost:
            yield from self._run(computation.name, begin_us)
            begin_us += self.timeline.sums_of(computation.name).total_us

    def _run(self, computation: str, begin_us: float) -> Iterator[tuple[Span, float, bool]]:
        stack = [iter(self._spans(computation, begin_us))]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            span, at_us = found
            inner = list(run_by(self.timeline, span.instruction))
            yield span, at_us, bool(inner)
            if inner:
                stack.append(self._inside(inner, at_us))

    def _spans(self, computation: str, begin_us: float) -> Iterator[tuple[Span, float]]:
        for span in self._all_spans.get(computation, ()):
            yield span, begin_us + span.begin_us

    def _inside(self, inner: list[tuple[str, int]], begin_us: float) -> Iterator[tuple[Span, float]]:
        """What an instruction runs: a loop its condition and its body in turn, and the condition once more."""
        rounds = max(times for _, times in inner)
        for number in range(rounds):
            for name, times in inner:
                if number < times:
                    yield from self._spans(name, begin_us)
                    begin_us += self.timeline.sums_of(name).total_us

    @property
    def _all_spans(self) -> Mapping[str, list[Span]]:
        return self.timeline.spans or {}


def predicted_step(program: Capture, module: HloModule, priced: Analysis) -> Prediction | None:
    """What is predicted of each operation of a compiled program; None where it is not priced.

    Args:
        program: Its text, with what else is known of it.
        module: The parsed text.
        priced: Its analysis, with times.

    Raises:
        SliceError: Its slice has no TPU chips.
    """
    if priced.time is None or program.slice is None or program.slice.chip is None:
        return None
    timeline, _ = timeline_of(
        priced,
        module,
        program.slice,
        device_ids=program.compiled.device_ids or None,
        kernel_costs=program.kernel_costs,
        spans={},
    )
    timeline.step()
    counts = _executions(timeline)
    starts = {name: _starts(timeline, name) for name in counts}
    operations = {
        (name, span.instruction.name): _predicted(timeline, span, times, starts[name].get(span.instruction.name))
        for name, times in counts.items()
        for span in (timeline.spans or {}).get(name, ())
        if span.instruction.opcode not in _NOT_RUN and not any(run_by(timeline, span.instruction))
    }
    return Prediction(
        chip=program.slice.chip.name, step_us=priced.time.step_us, operations=operations, timeline=timeline
    )


def run_by(timeline: Timeline, instruction: HloInstruction) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs on the device's own schedule, and how often; of branches the longest.

    The condition of a loop comes before its body.
    """
    if instruction.opcode not in RUNS:
        return
    called = instruction.called
    if instruction.opcode == "while":
        trips = trip_count(timeline.graph, instruction).count
        for attribute, name in sorted(called, key=lambda pair: pair[0] != "condition"):
            yield name, trips + 1 if attribute == "condition" else trips
    elif instruction.opcode == "conditional":
        yield max((name for _, name in called), key=lambda name: timeline.sums_of(name).total_us), 1
    else:
        yield from ((name, 1) for _, name in called)


def _executions(timeline: Timeline) -> dict[str, int]:
    """How often each computation runs in one step, on the device's own schedule."""
    graph = timeline.graph
    found = {computation.name: 1 for computation in graph.module.outermost}
    for computation in graph.reachable:
        for span in (timeline.spans or {}).get(computation.name, ()):
            for name, times in run_by(timeline, span.instruction):
                found[name] = found.get(name, 0) + found.get(computation.name, 0) * times
    return {name: times for name, times in found.items() if times}


def _predicted(timeline: Timeline, span: Span, executions: int, started: HloInstruction | None) -> Predicted:
    instruction, computation = span.instruction, span.instruction.computation.name
    activity, rule = _activity(timeline, computation, instruction if started is None else started)
    key = (computation, instruction.name)
    transfer = timeline.priced.times.get(key)
    copy = timeline.operations.copy_time(instruction) if instruction.opcode in LOCAL_STARTS else None
    transfer_us = transfer.time_us if transfer is not None else None if copy is None else copy.time_us
    begun = span.started
    return Predicted(
        instruction=instruction,
        activity=activity,
        executions=executions,
        time_us=span.end_us - span.begin_us,
        rule=rule,
        waits_for=None if started is None else started.name,
        transfer_us=transfer_us,
        latency_us=None if transfer is None else transfer.latency_us,
        queued_us=0.0
        if begun is None or transfer_us is None
        else max(begun.finish_us - transfer_us - span.begin_us, 0.0),
        moved_bytes=None if copy is None else copy.moved_bytes,
        hbm_bytes=timeline.operations.time_of(instruction).hbm_bytes if activity is Activity.COMPUTING else 0,
        runs_beside=begun is not None,
        link_axes=None if transfer is None else _link_axes(transfer, timeline.operations.chip),
        queue=None if copy is None else _queue(copy),
    )


def _link_axes(transfer: NetworkTime, chip: Chip) -> int | None:
    """How many axes of the torus have links in use; they lie flat, by chip, axis and direction."""
    if transfer.links is None:
        return None
    used = transfer.links.reshape(-1, chip.torus_dimensions, 2)
    return int(used.any(axis=(0, 2)).sum())


def _queue(copy: OperationTime) -> str:
    if not copy.is_over_host:
        return WITHIN_DEVICE
    return TO_HOST if copy.is_to_host else FROM_HOST


def _starts(timeline: Timeline, computation: str) -> dict[str, HloInstruction]:
    """What each instruction of a computation waits for, by the name of what waits.

    The end of an asynchronous collective fusion waits for its start, from which other fusions have handed it on.
    """
    found: dict[str, HloInstruction] = {}
    chains: dict[str, HloInstruction] = {}
    for span in (timeline.spans or {}).get(computation, ()):
        instruction = span.instruction
        opcode, name = instruction.opcode, instruction.name
        if opcode == "fusion" and (computation, name) in timeline.priced.asynchronous:
            chains[name] = instruction
        elif opcode in ("get-tuple-element", "fusion") and chains:
            chain = next((chains[operand] for operand in instruction.operand_names if operand in chains), None)
            if chain is not None and opcode == "fusion" and ends_chain(timeline.graph, instruction):
                found[name] = chain
            elif chain is not None:
                chains[name] = chain
        elif opcode.endswith("-done"):
            start = _start_of(instruction)
            if start is not None:
                found[name] = start
    return found


def _start_of(done: HloInstruction) -> HloInstruction | None:
    """What a done waits for, behind the updates of an asynchronous call."""
    start = done.operand(0)
    while start is not None and start.opcode in _HANDS_ON:
        start = start.operand(0)
    return start


def _activity(timeline: Timeline, computation: str, instruction: HloInstruction) -> tuple[Activity, str]:
    """What a device does or waits for, by what it was started with, and the rule that priced it."""
    priced, operations = timeline.priced, timeline.operations
    inside = [key for _, name in instruction.called for key in priced.inside.get(name, ())]
    own = (computation, instruction.name)
    for key in [own] if own in priced.times else inside:
        found = priced.times[key]
        return Activity.COMMUNICATION, _UNPRICED if found is None else found.rule
    if instruction.opcode in LOCAL_STARTS:
        copy = operations.copy_time(instruction)
        return (Activity.HOST, _LINK_TO_HOST) if copy.is_over_host else (Activity.MEMORY, copy.basis.value)
    if instruction.opcode in ("send", "recv"):
        return Activity.COMMUNICATION, _UNPRICED
    if instruction.opcode.endswith(("-start", "-done")) and instruction.called:
        return Activity.COMPUTING, _ON_ANOTHER_THREAD
    cost = operations.time_of(instruction)
    rule = _UNPRICED if cost.basis is Basis.UNKNOWN else cost.basis.value
    return (Activity.HOST, _LINK_TO_HOST) if cost.is_over_host else (Activity.COMPUTING, rule)
