"""One program's runs compared with its prediction: matched by instruction, summed by activity, axis and rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import median_low

from hloscope.analysis.provenance import find_provenance, find_source_frames, render_users_line
from hloscope.base.results import group_by
from hloscope.base.units import sum_known
from hloscope.cost.predictions import WITHIN_DEVICE, PredictedOperation, Prediction
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph, find_call_graph
from hloscope.measurement.model import (
    MeasuredAxis,
    MeasuredOperation,
    MeasuredProgram,
    MeasuredRule,
    MeasuredStep,
    MeasuredTransfer,
    StepPart,
)
from hloscope.measurement.profiles import DeviceRun, ProfiledDevice, ProfiledOperation, ProfileEvent
from hloscope.model import Analysis
from hloscope.model.timeline import Activity
from hloscope.model.vocabulary import Bound, Link

# ---- the runs of one program, by operation: executions, durations and waits

_MICROSECOND_PS = 1e6
_SEEN_US = 1.0
"""A shorter wait means that the operation has likely ended before."""

_LAYOUT = re.compile(r"\{[^{}]*\}")
_HEAD = re.compile(r"%?[\w.\-]+ = (?P<shape>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedRun:
    """One run on one device, summed by operation.

    Attributes:
        run: The run.
        alone_ps: The total time of each operation by its name, without that of operations inside it.
        counts: The number of executions of each.
    """

    run: DeviceRun
    alone_ps: Mapping[str, int]
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ObservedProgram:
    """All runs of one program, on all devices.

    Attributes:
        program: Its name and number in the profile.
        runs: The runs.
        devices: The devices on which it ran.
    """

    program: str
    runs: tuple[SummedRun, ...]
    devices: tuple[ProfiledDevice, ...] = field(repr=False)

    @cached_property
    def operations(self) -> dict[str, ProfiledOperation]:
        """The operations by name, in the order of their first begin."""
        events = chain.from_iterable(found.run.operations for found in self.runs)
        return {event.operation.name: event.operation for event in reversed(list(events))}

    @cached_property
    def median_run(self) -> SummedRun:
        """The run with the median time; the lower one of an even number."""
        middle = median_low(found.run.duration_ps for found in self.runs)
        return next(found for found in self.runs if found.run.duration_ps == middle)

    @property
    def durations_us(self) -> list[float]:
        """The duration of each run."""
        return [found.run.duration_us for found in self.runs]

    @property
    def total_us(self) -> float:
        """The total time of all runs, on one device."""
        return sum(self.durations_us) / len(self.devices)

    def time_us(self, name: str) -> float:
        """The time of an operation in one run: the median over all runs."""
        return median_low(found.alone_ps.get(name, 0) for found in self.runs) / _MICROSECOND_PS

    def executions(self, name: str) -> float:
        """The average number of executions of an operation in one run."""
        return sum(found.counts.get(name, 0) for found in self.runs) / len(self.runs)


def find_observed_programs(devices: Sequence[ProfiledDevice]) -> tuple[ObservedProgram, ...]:
    """The programs that ran, the one with the most time first."""
    runs: dict[str, list[SummedRun]] = {}
    on: dict[str, list[ProfiledDevice]] = {}
    for device in devices:
        for run in device.runs:
            runs.setdefault(run.program, []).append(_sum_run(run))
            if device not in on.setdefault(run.program, []):
                on[run.program].append(device)
    found = (ObservedProgram(program=name, runs=tuple(each), devices=tuple(on[name])) for name, each in runs.items())
    return tuple(sorted(found, key=lambda each: each.total_us, reverse=True))


def _sum_run(run: DeviceRun) -> SummedRun:
    """The times of a run's operations; the time of operations inside another, as in a loop, is subtracted from it."""
    alone: dict[str, int] = {}
    counts: dict[str, int] = {}
    around: list[ProfileEvent] = []
    for event in run.operations:
        while around and around[-1].end_ps <= event.begin_ps:
            around.pop()
        name = event.operation.name
        alone[name] = alone.get(name, 0) + event.duration_ps
        counts[name] = counts.get(name, 0) + 1
        if around and event.end_ps <= around[-1].end_ps:
            alone[around[-1].operation.name] -= event.duration_ps
        if event.duration_ps:
            around.append(event)
    return SummedRun(run=run, alone_ps=alone, counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWait:
    """One execution of an asynchronous operation.

    Attributes:
        flight_us: The time from its start to the end of its wait, or from the end of the transfer before it.
        waited_us: The time that the device waited.
        is_exact: Whether both its begin and its end were seen; otherwise `flight_us` is an upper bound.
    """

    flight_us: float
    waited_us: float
    is_exact: bool


def find_waits(
    observed: ObservedProgram, starts: Mapping[str, str], queues: Mapping[str, str]
) -> dict[str, list[ObservedWait]]:
    """Each execution of asynchronous operations, by the name of the start.

    Args:
        observed: The runs.
        starts: The start by the name of the operation that waits.
        queues: The queue of starts whose transfers are carried out one after the other in the order of the starts.
    """
    found: dict[str, list[ObservedWait]] = {}
    for each in observed.runs:
        for name, waited in _find_waits_of_run(each.run, starts, queues):
            found.setdefault(name, []).append(waited)
    return found


def _find_waits_of_run(
    run: DeviceRun, starts: Mapping[str, str], queues: Mapping[str, str]
) -> Iterator[tuple[str, ObservedWait]]:
    """The waits of one run.

    A transfer ends with its wait, and so has everything before it in its queue. For the rest, the profile does not show
    the end, nor the begin of the transfer behind it.
    """
    wanted = set(starts.values())
    begun: dict[str, int] = {}
    before: dict[str, list[str]] = {}
    on_the_way: dict[str, list[str]] = {}
    seen_end_ps: dict[str, int] = {}
    for event in run.operations:
        name = event.operation.name
        if name in wanted:
            begun[name] = event.begin_ps
            seen_end_ps.pop(name, None)
            waiting = on_the_way.setdefault(queues.get(name, name), [])
            before[name] = [other for other in waiting if other != name]
            waiting.append(name)
        start = starts.get(name)
        if start is None or start not in begun:
            continue
        is_end_seen = event.duration_us > _SEEN_US
        ahead = before.pop(start)
        since_ps = max([begun.pop(start), *(seen_end_ps[other] for other in ahead if other in seen_end_ps)])
        if is_end_seen:
            seen_end_ps[start] = event.end_ps
        waiting = on_the_way[queues.get(start, start)]
        on_the_way[queues.get(start, start)] = [other for other in waiting if other != start]
        yield (
            start,
            ObservedWait(
                flight_us=max(event.end_ps - since_ps, event.duration_ps) / _MICROSECOND_PS,
                waited_us=event.duration_us,
                is_exact=is_end_seen and all(other in seen_end_ps for other in ahead),
            ),
        )


def parse_printed_form(operation: ProfiledOperation) -> tuple[str, str] | None:
    """The shape without layouts and the opcode, if the profile has an operation's line; otherwise None."""
    head = _HEAD.match(operation.text)
    if head is None:
        return None
    shape = head["shape"]
    while _LAYOUT.search(shape):
        shape = _LAYOUT.sub("", shape)
    return shape.replace(" ", ""), head["opcode"]


# ---- the runs of a program, joined with its compiled module and its prediction


@dataclass(frozen=True, kw_only=True)
class JoinedProgram:
    """One program, measured and predicted.

    Attributes:
        observed: Its runs.
        module: The compiled module.
        analysis: Its analysis.
        prediction: The prediction for its operations; None if not priced.
    """

    observed: ObservedProgram
    module: HloModule
    analysis: Analysis
    prediction: Prediction | None

    @cached_property
    def graph(self) -> HloGraph:
        """The module's graph."""
        return find_call_graph(self.module)

    @cached_property
    def matched(self) -> Mapping[str, HloInstruction]:
        """The instructions of the compiled module for the measured operations, by their names."""
        named = self.module.named(set(self.observed.operations))
        return {name: named[name] for name in self.observed.operations if name in named and self._is_same(named[name])}

    @cached_property
    def predicted(self) -> Mapping[str, PredictedOperation]:
        """The predictions for the operations of the schedule, by their names."""
        if self.prediction is None:
            return {}
        return {name: found for (_, name), found in self.prediction.operations.items()}

    @cached_property
    def waits(self) -> Mapping[str, list[ObservedWait]]:
        """Each measured execution of an asynchronous operation, by the name of its start."""
        starts = {name: found.waits_for for name, found in self.predicted.items() if found.waits_for is not None}
        queues = {name: found.queue for name, found in self.predicted.items() if found.queue is not None}
        return find_waits(self.observed, starts, queues)

    @cached_property
    def durations_us(self) -> Mapping[str, list[float]]:
        """The duration of each measured execution of each operation, by its name."""
        events = chain.from_iterable(found.run.operations for found in self.observed.runs)
        by_name = group_by(events, lambda event: event.operation.name)
        return {name: [event.duration_us for event in each] for name, each in by_name.items()}

    @cached_property
    def predicted_waits_us(self) -> Mapping[str, float]:
        """The predicted wait for each asynchronous operation, by the name of its start."""
        found: dict[str, float] = {}
        for interval in self.predicted.values():
            if interval.waits_for is not None:
                found[interval.waits_for] = found.get(interval.waits_for, 0.0) + interval.time_us
        return found

    @cached_property
    def matched_share(self) -> float | None:
        """The share of the operations' time in matched ones; None without any."""
        times = {name: self.observed.time_us(name) for name in self.observed.operations}
        whole = sum(times.values())
        return None if whole <= 0 else sum(times[name] for name in self.matched) / whole

    def activity_of(self, name: str) -> Activity | None:
        """The device's activity during an operation; None if the compiled module or its schedule lacks it.

        Without a prediction, as for CPU devices, everything except collectives is assumed to compute.
        """
        if name in self.predicted:
            return self.predicted[name].activity if self._is_in_module(name) else None
        if self.prediction is not None or name not in self.matched:
            return None
        return Activity.COMMUNICATION if name in self._collectives else Activity.COMPUTING

    def _is_in_module(self, name: str) -> bool:
        return name in self.matched or name not in self.observed.operations

    @cached_property
    def _collectives(self) -> frozenset[str]:
        return frozenset(part.name for one in self.analysis.collectives for part in one.parts or (one,))

    def is_calibrated(self, rule: str | None) -> bool:
        """Returns whether a rule was compared with published measurements of this generation."""
        return rule is not None and self.prediction is not None and self.prediction.is_calibrated(rule)

    def _is_same(self, instruction: HloInstruction) -> bool:
        """Returns whether a measured operation has the opcode and shape of the instruction of its name."""
        printed = parse_printed_form(self.observed.operations[instruction.name])
        return printed is None or printed == (str(instruction.shape).replace(" ", ""), instruction.opcode)


# ---- collectives and copies between host and device: measured and predicted time, exposed time and bandwidth

_MICROSECONDS = 1e6
_ROUNDED_US = 1e-6
"""The rounding error of a sum."""

_NOT_KNOWN = "not known"


def measure_transfers(joined: JoinedProgram) -> Iterator[MeasuredTransfer]:
    """Returns the collectives of a program in program order, then its copies between host and device."""
    for collective in joined.analysis.collectives:
        for part in collective.parts or (collective,):
            around = _find_holder(joined, collective.computation, part.name)
            yield _make_transfer(
                joined,
                joined.predicted.get(around),
                around=around,
                kind=part.kind.value,
                name=part.name,
                computation=collective.computation,
                axes=part.axes,
                wire_bytes=part.wire_bytes,
                source=render_users_line(collective.source),
            )
    for name, found in joined.predicted.items():
        if found.queue is not None and found.queue != WITHIN_DEVICE and name in joined.matched:
            source = find_provenance(joined.graph, [found.instruction]).source
            yield _make_transfer(
                joined,
                found,
                around=name,
                kind=f"copy {found.queue}",
                name=name,
                computation=found.instruction.computation.name,
                axes=None,
                wire_bytes=found.moved_bytes,
                source=render_users_line(source),
            )


def _find_holder(joined: JoinedProgram, computation: str, name: str) -> str:
    """The instruction of the schedule that is, or contains, a collective."""
    while name not in joined.predicted and name not in joined.matched:
        caller = joined.graph.only_caller(computation)
        if caller is None or not (caller.opcode == "fusion" or caller.opcode.endswith("-start")):
            break
        computation, name = caller.computation.name, caller.name
    return name


def _make_transfer(
    joined: JoinedProgram,
    found: PredictedOperation | None,
    *,
    around: str,
    wire_bytes: int | None,
    name: str,
    **said: object,
) -> MeasuredTransfer:
    measured_us, waited_us, bound = _measure_taken(joined, around, found, is_inside=around != name)
    predicted_us = None if found is None else _find_predicted_us(joined, found)
    exposed_us = None if found is None or predicted_us is None else _find_predicted_exposed_us(joined, found)
    rule = None if found is None else found.rule
    return MeasuredTransfer(
        name=name,
        executions=joined.observed.executions(around),
        wire_bytes=wire_bytes,
        measured_us=measured_us,
        measured_bound=bound,
        predicted_us=predicted_us,
        measured_exposed_us=waited_us,
        predicted_exposed_us=exposed_us,
        measured_hidden_us=None if measured_us is None else max(measured_us - waited_us, 0.0),
        predicted_hidden_us=None if predicted_us is None or exposed_us is None else max(predicted_us - exposed_us, 0.0),
        measured_bytes_per_s=_compute_rate(wire_bytes, measured_us),
        predicted_bytes_per_s=_compute_rate(wire_bytes, predicted_us),
        rule=rule,
        calibrated=joined.is_calibrated(rule),
        **said,  # type: ignore[arg-type]
    )


def _compute_rate(moved_bytes: float | None, time_us: float | None) -> float | None:
    return None if not moved_bytes or not time_us else moved_bytes / time_us * _MICROSECONDS


def _find_predicted_us(joined: JoinedProgram, found: PredictedOperation) -> float | None:
    """The predicted time of a transfer alone; for one inside another operation, that operation's time."""
    if found.transfer_us is not None:
        return found.transfer_us
    key = (found.instruction.computation.name, found.instruction.name)
    times = {} if joined.prediction is None else joined.prediction.walk.priced.times
    return None if key in times or found.time_us <= 0 else found.time_us


def _find_predicted_exposed_us(joined: JoinedProgram, found: PredictedOperation) -> float:
    exposed_us = found.time_us + joined.predicted_waits_us.get(found.instruction.name, 0.0)
    return exposed_us if exposed_us > _ROUNDED_US else 0.0


def _measure_taken(
    joined: JoinedProgram, around: str, found: PredictedOperation | None, *, is_inside: bool
) -> tuple[float | None, float, Bound]:
    """The measured time of one execution, the exposed part of it, and whether it is exact; None if it did not run.

    Each is the median over all executions, runs and devices. A transfer that the device waits for ends with the wait;
    its operation may have waited for others first. The end of one without a wait is not visible, nor is the begin of
    one that had to wait for another, unless the device waited for that other one.
    """
    own = joined.durations_us.get(around)
    if not own or around not in joined.matched:
        return None, 0.0, Bound.UNKNOWN
    waits, own_us = joined.waits.get(around), median_low(own)
    if not waits and found is not None and found.runs_beside:
        return None, own_us, Bound.UNKNOWN
    if not waits:
        is_less = is_inside or (found is not None and _waits_for_others(found))
        return own_us, own_us, Bound.AT_MOST if is_less else Bound.EXACT
    is_seen = sum(wait.is_exact for wait in waits) * 2 > len(waits)
    if found is not None and found.queue is None:  # other fusions may drive it, and links may be shared
        is_seen = is_seen and found.instruction.opcode != "fusion" and found.queued_us == 0
    exposed_us = median_low(wait.waited_us for wait in waits) + own_us
    return median_low(wait.flight_us for wait in waits), exposed_us, Bound.EXACT if is_seen else Bound.AT_MOST


def _waits_for_others(found: PredictedOperation) -> bool:
    """Returns whether an operation that is a transfer waits for the links before it begins."""
    return found.transfer_us is not None and found.time_us > found.transfer_us + _ROUNDED_US


# ---- by mesh axes


def sum_by_axes(analysis: Analysis, transfers: Sequence[MeasuredTransfer]) -> Iterator[MeasuredAxis]:
    """Returns the collectives summed by axes, most exposed first."""
    links = {
        (collective.computation, part.name): part.link
        for collective in analysis.collectives
        for part in collective.parts or (collective,)
    }
    known = [
        (links[key], transfer) for transfer in transfers if (key := (transfer.computation, transfer.name)) in links
    ]
    groups = group_by(known, lambda pair: (_format_axes(pair[1]), pair[0]))
    found = [_sum_axis(axes, link, [transfer for _, transfer in each]) for (axes, link), each in groups.items()]
    yield from sorted(found, key=lambda axis: axis.measured_exposed_us, reverse=True)


def _format_axes(transfer: MeasuredTransfer) -> str:
    return _NOT_KNOWN if transfer.axes is None else ",".join(transfer.axes) or "none"


def _sum_axis(axes: str, link: Link, transfers: Sequence[MeasuredTransfer]) -> MeasuredAxis:
    ran = [transfer for transfer in transfers if transfer.executions]
    sent = sum_known(transfer.wire_bytes for transfer in ran)
    measured, predicted = _sum_times(ran, "measured_us"), _sum_times(ran, "predicted_us")
    bounds = {transfer.measured_bound for transfer in ran}
    bound = Bound.EXACT if bounds == {Bound.EXACT} else Bound.AT_LEAST if bounds <= _AT_MOST else Bound.UNKNOWN
    all_bytes = None if sent is None else sum((transfer.wire_bytes or 0) * transfer.executions for transfer in ran)
    return MeasuredAxis(
        axes=axes,
        link=link,
        collectives=len(transfers),
        wire_bytes=None if all_bytes is None else round(all_bytes),
        measured_exposed_us=sum(transfer.measured_exposed_us * transfer.executions for transfer in ran),
        predicted_exposed_us=_sum_times(ran, "predicted_exposed_us"),
        measured_bytes_per_s=_compute_rate(all_bytes, measured),
        measured_bound=bound,
        predicted_bytes_per_s=_compute_rate(all_bytes, predicted),
    )


_AT_MOST = {Bound.EXACT, Bound.AT_MOST}


def _sum_times(transfers: Sequence[MeasuredTransfer], name: str) -> float | None:
    """A time per step; None if one of them is unknown."""
    times = [(getattr(transfer, name), transfer.executions) for transfer in transfers]
    return None if any(time is None for time, _ in times) else sum(time * count for time, count in times)


IDLE, NOT_MATCHED = "idle", "not matched"
_RUNS_OTHERS = frozenset({"while", "conditional", "call"})


def compare_program(joined: JoinedProgram) -> MeasuredProgram:
    """Compares a program's runs with its prediction."""
    chosen, observed = None if joined.prediction is None else joined.analysis.slice, joined.observed
    durations = observed.durations_us
    operations = tuple(_compare_operations(joined))
    transfers = tuple(measure_transfers(joined))
    return MeasuredProgram(
        program=observed.program,
        runs=len(observed.runs),
        devices=len(observed.devices),
        slice=None if chosen is None else chosen.name,
        slice_chosen_by=None if chosen is None else chosen.chosen_by,
        partitions=joined.module.device_count,
        step=MeasuredStep(
            median_us=median_low(durations),
            least_us=min(durations),
            most_us=max(durations),
            predicted_us=None if joined.prediction is None else joined.prediction.step_us,
        ),
        parts=tuple(_compare_parts(joined)),
        operations=tuple(sorted(operations, key=_compute_disagreement, reverse=True)),
        measured_operations=len(observed.operations),
        matched_operations=len(joined.matched),
        matched_share=joined.matched_share,
        transfers=transfers,
        axes=tuple(sum_by_axes(joined.analysis, transfers)),
        rules=tuple(_compare_rules(joined, operations)),
        notes=() if joined.analysis.time is None else joined.analysis.time.notes,
    )


def _compute_disagreement(operation: MeasuredOperation) -> float:
    """The error of the prediction in one step; the whole time of an operation without a prediction."""
    found = operation.difference_us
    return operation.measured_us if found is None else abs(found)


# ---- operations


def _compare_operations(joined: JoinedProgram) -> Iterator[MeasuredOperation]:
    for name, operation in joined.observed.operations.items():
        instruction = joined.matched.get(name)
        if instruction is not None and instruction.opcode in _RUNS_OTHERS:
            continue
        printed = parse_printed_form(operation)
        opcode = printed[1] if printed is not None else "unknown"
        yield _compare_operation(joined, name, opcode if instruction is None else instruction.opcode)
    for name, predicted in joined.predicted.items():
        if name not in joined.observed.operations and predicted.time_us > 0:
            yield _compare_operation(joined, name, predicted.instruction.opcode)


def _compare_operation(joined: JoinedProgram, name: str, opcode: str) -> MeasuredOperation:
    measured = name in joined.observed.operations
    instruction = joined.matched.get(name) if measured else joined.predicted[name].instruction
    predicted = None if instruction is None else joined.predicted.get(name)
    rule = None if predicted is None else predicted.rule
    return MeasuredOperation(
        name=name,
        computation=None if instruction is None else instruction.computation.name,
        opcode=opcode,
        activity=joined.activity_of(name),
        executions=joined.observed.executions(name),
        predicted_executions=None if predicted is None else predicted.executions,
        measured_us=joined.observed.time_us(name),
        predicted_us=None if predicted is None else predicted.executions * predicted.time_us,
        rule=rule,
        calibrated=joined.is_calibrated(rule),
        source=None if instruction is None else render_users_line(find_source_frames(instruction)),
    )


def _compare_parts(joined: JoinedProgram) -> Iterator[StepPart]:
    """The breakdown of the time of the median run, and of the prediction; each adds up to its step."""
    run = joined.observed.median_run
    measured: dict[str, float] = {}
    for name, alone_ps in run.alone_ps.items():
        instruction, activity = joined.matched.get(name), joined.activity_of(name)
        if instruction is not None and instruction.opcode in _RUNS_OTHERS:
            continue
        part = NOT_MATCHED if activity is None else activity.value
        measured[part] = measured.get(part, 0.0) + alone_ps / _MICROSECOND_PS
    predictions: dict[str, float] = {}
    for found in joined.predicted.values():
        key = found.activity.value
        predictions[key] = predictions.get(key, 0.0) + found.executions * found.time_us
    measured[IDLE] = max(run.run.duration_us - sum(measured.values()), 0.0)  # threads of a CPU run side by side
    if joined.prediction is not None:
        rest_us = joined.prediction.step_us - sum(predictions.values())
        predictions[IDLE] = rest_us if rest_us > _ROUNDED_US else 0.0
    for part in (*(activity.value for activity in Activity), NOT_MATCHED, IDLE):
        if measured.get(part) or predictions.get(part):
            known = None if joined.prediction is None else predictions.get(part, 0.0)
            yield StepPart(part=part, measured_us=measured.get(part, 0.0), predicted_us=known)


# ---- rules


def _compare_rules(joined: JoinedProgram, operations: Sequence[MeasuredOperation]) -> Iterator[MeasuredRule]:
    """The measured times of the operations by the rule that priced them; starts without a duration are skipped."""
    known = [found for found in operations if found.rule is not None and found.predicted_us is not None]
    by_rule = group_by((found for found in known if found.executions), lambda found: found.rule or "")
    sums = [
        MeasuredRule(
            rule=rule,
            operations=len(each),
            measured_us=sum(found.measured_us for found in each),
            predicted_us=sum(found.predicted_us or 0.0 for found in each),
            calibrated=joined.is_calibrated(rule),
        )
        for rule, each in by_rule.items()
    ]
    yield from sorted(sums, key=lambda found: found.measured_us, reverse=True)
