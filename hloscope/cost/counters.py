"""What there is at any time of a step: bytes in flight over each mesh axis, HBM's traffic, and what is taken of HBM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

from hloscope.analysis.model.timeline import Unit
from hloscope.cost.unrolled import Placed, Role

_MEGABYTES = 1e3
"""In a gigabyte: bytes over microseconds are megabytes over seconds."""


class Count(NamedTuple):
    """From a time on, how much of something there is.

    Attributes:
        name: What is counted.
        unit: In what.
        at_us: Since when, from the beginning of the step.
        value: How much.
    """

    name: str
    unit: str
    at_us: float
    value: float


def counts(placed: Iterable[Placed], axes: Mapping[str, str]) -> Iterator[Count]:
    """What is on its way, by what is counted and when that changes; transfers whose bytes are not known are left out.

    Of iterations that are left out it is the mean of those before.

    Args:
        placed: The step.
        axes: What the axes of each collective are called, by `computation/name`.
    """
    spans: dict[tuple[str, str], list[_Span]] = defaultdict(list)
    loops_us: dict[tuple[int, str | None], float] = {}
    for one in placed:
        if one.role is Role.LEFT_OUT:
            since_us = loops_us[one.run, one.name]
            for found in spans.values():
                found.append(_Span(one.begin_us, one.end_us, _mean(found, since_us, one.begin_us)))
        elif one.role is Role.WHOLE and one.interval.runs:
            loops_us[one.run, one.name] = one.begin_us
        elif (what := _counted(one, axes)) is not None:
            name, unit, value = what
            spans[name, unit].append(_Span(one.begin_us, one.end_us, value))
    for name, unit in sorted(spans):
        for at_us, value in _summed(spans[name, unit]):
            yield Count(name, unit, at_us, value)


def hbm_in_use(placed: Iterable[Placed]) -> Iterator[Count]:
    """What buffers take of HBM, whenever that changes; of iterations that are left out, the most of those before.

    Where several instructions take no time, it is the most of theirs.
    """
    loops_us: dict[tuple[int, str | None], float] = {}
    live: list[tuple[float, int]] = []
    for one in placed:
        if one.role is Role.LEFT_OUT:
            inside = takewhile(partial(_since, loops_us[one.run, one.name]), reversed(live))
            live += [(one.begin_us, most) for most in sorted(count for _, count in inside)[-1:]]
        elif one.role is Role.WHOLE and one.interval.runs:
            loops_us[one.run, one.name] = one.begin_us
        elif one.is_on_core and one.role is Role.WHOLE and one.interval.live_bytes is not None:
            live.append((one.begin_us, one.interval.live_bytes))
    before = None
    for at_us, there in groupby(live, key=itemgetter(0)):
        most = max(count for _, count in there)
        if most != before:
            yield Count("HBM in use", "bytes", at_us, float(most))
        before = most


def _since(begin_us: float, one: tuple[float, int]) -> bool:
    return one[0] >= begin_us


class _Span(NamedTuple):
    """How much of something there is from when to when."""

    begin_us: float
    end_us: float
    value: float


def _counted(placed: Placed, axes: Mapping[str, str]) -> tuple[str, str, float] | None:
    """What is counted of something on its way, in what unit, and how much; None where nothing is."""
    interval = placed.interval
    if placed.role is not Role.WHOLE or not interval.moved_bytes or placed.end_us <= placed.begin_us:
        return None
    if interval.unit in (Unit.ICI, Unit.DCN):
        over = axes.get(interval.collective or "", "unknown axes")
        return f"in flight over {over}", "bytes", float(interval.moved_bytes)
    if interval.unit in (Unit.CORE, Unit.HBM):
        return "HBM traffic", "GB/s", interval.moved_bytes / interval.time_us / _MEGABYTES
    return None


def _mean(spans: Sequence[_Span], begin_us: float, end_us: float) -> float:
    """The mean of what is there meanwhile; spans begin one after the other."""
    since = takewhile(lambda span: span.begin_us >= begin_us, reversed(spans))
    return sum(span.value * (span.end_us - span.begin_us) for span in since) / (end_us - begin_us)


def _summed(spans: Iterable[_Span]) -> Iterator[tuple[float, float]]:
    """Sums of what is there, once for each time at which they change."""
    changes = [change for begin_us, end_us, value in spans for change in ((begin_us, 1, value), (end_us, -1, -value))]
    changes.sort()
    there, value = 0, 0.0
    for number, (at_us, one, change) in enumerate(changes):
        there += one
        value = value + change if there else 0.0
        if number + 1 == len(changes) or changes[number + 1][0] > at_us:
            yield at_us, value
