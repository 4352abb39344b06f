"""Collectives and copies between host and device: measured and predicted time, exposed time and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from hloscope.analysis.model import Analysis
from hloscope.analysis.places import users_line
from hloscope.analysis.provenance import provenance_of
from hloscope.analysis.totals import grouped
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.cost.predicted import WITHIN_DEVICE, Predicted
from hloscope.measured.joined import Joined
from hloscope.measured.model import MeasuredAxis, MeasuredTransfer
from hloscope.units import known_sum

_MICROSECONDS = 1e6
_ROUNDED_US = 1e-6
"""What adding up leaves over."""

_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What one execution took.

    Attributes:
        time_us: From its beginning to its end; None where it did not run.
        exposed_us: What the device waited for it.
        bound: How `time_us` relates to the truth.
    """

    time_us: float | None
    exposed_us: float
    bound: Bound


def transfers_of(joined: Joined) -> Iterator[MeasuredTransfer]:
    """Returns the collectives of a program in program order, then its copies between host and device."""
    for collective in joined.analysis.collectives:
        for part in collective.parts or (collective,):
            around = _holder(joined, collective.computation, part.name)
            yield _transfer(
                joined,
                joined.predicted.get(around),
                around=around,
                kind=part.kind.value,
                name=part.name,
                computation=collective.computation,
                axes=part.axes,
                wire_bytes=part.wire_bytes,
                source=users_line(collective.source),
            )
    for name, found in joined.predicted.items():
        if found.queue is not None and found.queue != WITHIN_DEVICE and name in joined.matched:
            source = provenance_of(joined.graph, [found.instruction]).source
            yield _transfer(
                joined,
                found,
                around=name,
                kind=f"copy {found.queue}",
                name=name,
                computation=found.instruction.computation.name,
                axes=None,
                wire_bytes=found.moved_bytes,
                source=users_line(source),
            )


def _holder(joined: Joined, computation: str, name: str) -> str:
    """The instruction of the schedule that a collective is or is in."""
    while name not in joined.predicted and name not in joined.matched:
        caller = joined.graph.only_caller(computation)
        if caller is None or not (caller.opcode == "fusion" or caller.opcode.endswith("-start")):
            break
        computation, name = caller.computation.name, caller.name
    return name


def _transfer(
    joined: Joined,
    found: Predicted | None,
    *,
    around: str,
    wire_bytes: int | None,
    name: str,
    **said: object,
) -> MeasuredTransfer:
    taken = _taken(joined, around, found, is_inside=around != name)
    predicted_us = None if found is None else _predicted_us(joined, found)
    exposed_us = None if found is None or predicted_us is None else _predicted_exposed_us(joined, found)
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
        measured_bytes_per_s=_rate(wire_bytes, taken.time_us),
        predicted_bytes_per_s=_rate(wire_bytes, predicted_us),
        rule=rule,
        calibrated=joined.is_calibrated(rule),
        **said,  # type: ignore[arg-type]
    )


def _rate(moved_bytes: int | None, time_us: float | None) -> float | None:
    return None if not moved_bytes or not time_us else moved_bytes / time_us * _MICROSECONDS


def _predicted_us(joined: Joined, found: Predicted) -> float | None:
    """What a transfer should take alone; of one inside another operation that one's time."""
    if found.transfer_us is not None:
        return found.transfer_us
    key = (found.instruction.computation.name, found.instruction.name)
    times = {} if joined.prediction is None else joined.prediction.walk.priced.times
    return None if key in times or found.time_us <= 0 else found.time_us


def _predicted_exposed_us(joined: Joined, found: Predicted) -> float:
    exposed_us = found.time_us + joined.predicted_waits_us.get(found.instruction.name, 0.0)
    return exposed_us if exposed_us > _ROUNDED_US else 0.0


def _taken(joined: Joined, around: str, found: Predicted | None, *, is_inside: bool) -> _Taken:
    """What one execution took: the median over all executions, runs and devices.

    A transfer that the device waits for ends when the wait does; its operation may have waited for others first. Of one
    that it does not wait for nobody sees the end, and of one that had to wait for another nobody sees the beginning,
    unless that was waited for.
    """
    own = joined.durations_us.get(around)
    if not own or around not in joined.matched:
        return _Taken(time_us=None, exposed_us=0.0, bound=Bound.UNKNOWN)
    waits = joined.waits.get(around)
    if not waits and found is not None and found.runs_beside:
        return _Taken(time_us=None, exposed_us=median_low(own), bound=Bound.UNKNOWN)
    if not waits:
        is_less = is_inside or (found is not None and _waits_for_others(found))
        return _Taken(
            time_us=median_low(own), exposed_us=median_low(own), bound=Bound.AT_MOST if is_less else Bound.EXACT
        )
    exposed_us = median_low(wait.waited_us for wait in waits)
    is_seen = sum(wait.is_exact for wait in waits) * 2 > len(waits)
    if found is not None and found.queue is None:  # other fusions may drive it, and links may be shared
        is_seen = is_seen and found.instruction.opcode != "fusion" and found.queued_us == 0
    return _Taken(
        time_us=median_low(wait.flight_us for wait in waits),
        exposed_us=exposed_us + median_low(own),
        bound=Bound.EXACT if is_seen else Bound.AT_MOST,
    )


def _waits_for_others(found: Predicted) -> bool:
    """Whether an operation that is a transfer waits for the links before it begins."""
    return found.transfer_us is not None and found.time_us > found.transfer_us + _ROUNDED_US


# ---- by mesh axes


def axes_of(analysis: Analysis, transfers: Sequence[MeasuredTransfer]) -> Iterator[MeasuredAxis]:
    """Returns the collectives summed by axes, most exposed first."""
    links = {
        (collective.computation, part.name): part.link
        for collective in analysis.collectives
        for part in collective.parts or (collective,)
    }
    known = [
        (links[key], transfer) for transfer in transfers if (key := (transfer.computation, transfer.name)) in links
    ]
    groups = grouped(lambda pair: (_axes(pair[1]), pair[0]), known)
    found = [_axis(axes, link, [transfer for _, transfer in each]) for (axes, link), each in groups.items()]
    yield from sorted(found, key=lambda axis: axis.measured_exposed_us, reverse=True)


def _axes(transfer: MeasuredTransfer) -> str:
    return _NOT_KNOWN if transfer.axes is None else ",".join(transfer.axes) or "none"


def _axis(axes: str, link: Link, transfers: Sequence[MeasuredTransfer]) -> MeasuredAxis:
    ran = [transfer for transfer in transfers if transfer.executions]
    sent = known_sum(transfer.wire_bytes for transfer in ran)
    measured, predicted = _summed(ran, "measured_us"), _summed(ran, "predicted_us")
    bounds = {transfer.measured_bound for transfer in ran}
    bound = Bound.EXACT if bounds == {Bound.EXACT} else Bound.AT_LEAST if bounds <= _AT_MOST else Bound.UNKNOWN
    all_bytes = None if sent is None else sum((transfer.wire_bytes or 0) * transfer.executions for transfer in ran)
    return MeasuredAxis(
        axes=axes,
        link=link,
        collectives=len(transfers),
        wire_bytes=None if all_bytes is None else round(all_bytes),
        measured_exposed_us=sum(transfer.measured_exposed_us * transfer.executions for transfer in ran),
        predicted_exposed_us=_summed(ran, "predicted_exposed_us"),
        measured_bytes_per_s=None if not all_bytes or not measured else all_bytes / measured * _MICROSECONDS,
        measured_bound=bound,
        predicted_bytes_per_s=None if not all_bytes or not predicted else all_bytes / predicted * _MICROSECONDS,
    )


_AT_MOST = {Bound.EXACT, Bound.AT_MOST}


def _summed(transfers: Sequence[MeasuredTransfer], name: str) -> float | None:
    """A time per step; None where that of one is not known."""
    times = [(getattr(transfer, name), transfer.executions) for transfer in transfers]
    return None if any(time is None for time, _ in times) else sum(time * count for time, count in times)
