"""Collectives and copies between host and device: measured and predicted time, exposed time and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from hloscope.analysis.model import Analysis
from hloscope.analysis.places import render_users_line
from hloscope.analysis.provenance import find_provenance
from hloscope.analysis.totals import collate
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.cost.predicted import WITHIN_DEVICE, PredictedOperation
from hloscope.measured.joined import JoinedProgram
from hloscope.measured.model import MeasuredAxis, MeasuredTransfer
from hloscope.units import sum_known

_MICROSECONDS = 1e6
_ROUNDED_US = 1e-6
"""The rounding error of a sum."""

_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TakenTime:
    """The measured time of one execution.

    Attributes:
        time_us: The time from its begin to its end; None if it did not run.
        exposed_us: The time that the device waited for it.
        bound: Whether `time_us` is exact or a bound.
    """

    time_us: float | None
    exposed_us: float
    bound: Bound


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
    taken = _measure_taken(joined, around, found, is_inside=around != name)
    predicted_us = None if found is None else _find_predicted_us(joined, found)
    exposed_us = None if found is None or predicted_us is None else _find_predicted_exposed_us(joined, found)
    rule = None if found is None else found.rule
    return MeasuredTransfer(
        name=name,
        executions=joined.observed.executions(around),
        wire_bytes=wire_bytes,
        measured_us=taken.time_us,
        measured_bound=taken.bound,
        predicted_us=predicted_us,
        measured_exposed_us=taken.exposed_us,
        predicted_exposed_us=exposed_us,
        measured_hidden_us=None if taken.time_us is None else max(taken.time_us - taken.exposed_us, 0.0),
        predicted_hidden_us=None if predicted_us is None or exposed_us is None else max(predicted_us - exposed_us, 0.0),
        measured_bytes_per_s=_compute_rate(wire_bytes, taken.time_us),
        predicted_bytes_per_s=_compute_rate(wire_bytes, predicted_us),
        rule=rule,
        calibrated=joined.is_calibrated(rule),
        **said,  # type: ignore[arg-type]
    )


def _compute_rate(moved_bytes: int | None, time_us: float | None) -> float | None:
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
) -> _TakenTime:
    """The measured time of one execution: the median over all executions, runs and devices.

    A transfer that the device waits for ends with the wait; its operation may have waited for others first. The end of
    one without a wait is not visible, nor is the begin of one that had to wait for another,
    unless the device waited for that other one.
    """
    own = joined.durations_us.get(around)
    if not own or around not in joined.matched:
        return _TakenTime(time_us=None, exposed_us=0.0, bound=Bound.UNKNOWN)
    waits = joined.waits.get(around)
    if not waits and found is not None and found.runs_beside:
        return _TakenTime(time_us=None, exposed_us=median_low(own), bound=Bound.UNKNOWN)
    if not waits:
        is_less = is_inside or (found is not None and _waits_for_others(found))
        return _TakenTime(
            time_us=median_low(own), exposed_us=median_low(own), bound=Bound.AT_MOST if is_less else Bound.EXACT
        )
    exposed_us = median_low(wait.waited_us for wait in waits)
    is_seen = sum(wait.is_exact for wait in waits) * 2 > len(waits)
    if found is not None and found.queue is None:  # other fusions may drive it, and links may be shared
        is_seen = is_seen and found.instruction.opcode != "fusion" and found.queued_us == 0
    return _TakenTime(
        time_us=median_low(wait.flight_us for wait in waits),
        exposed_us=exposed_us + median_low(own),
        bound=Bound.EXACT if is_seen else Bound.AT_MOST,
    )


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
    groups = collate(lambda pair: (_format_axes(pair[1]), pair[0]), known)
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
        measured_bytes_per_s=None if not all_bytes or not measured else all_bytes / measured * _MICROSECONDS,
        measured_bound=bound,
        predicted_bytes_per_s=None if not all_bytes or not predicted else all_bytes / predicted * _MICROSECONDS,
    )


_AT_MOST = {Bound.EXACT, Bound.AT_MOST}


def _sum_times(transfers: Sequence[MeasuredTransfer], name: str) -> float | None:
    """A time per step; None if one of them is unknown."""
    times = [(getattr(transfer, name), transfer.executions) for transfer in transfers]
    return None if any(time is None for time, _ in times) else sum(time * count for time, count in times)
