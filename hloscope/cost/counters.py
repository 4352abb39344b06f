"""Counters over the time of a step: bytes in flight over each mesh axis, HBM traffic, and HBM in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

from hloscope.analysis.model.timeline import Unit
from hloscope.cost.unrolled import PlacedInterval, PlacedRole

_MEGABYTES = 1e3
"""Megabytes in a gigabyte: bytes per microsecond are megabytes per second."""


class CounterSample(NamedTuple):
    """The value of a counter from one point in time on.

    Attributes:
        name: Name of the counter.
        unit: Unit of the value.
        at_us: Time of the change, from the beginning of the step.
        value: Value from then on.
    """

    name: str
    unit: str
    at_us: float
    value: float


def count_in_flight(placed: Iterable[PlacedInterval], axes: Mapping[str, str]) -> Iterator[CounterSample]:
    """The changes of everything in flight, by counter; transfers with unknown bytes are left out.

    Left-out iterations have the mean of the previous ones.

    Args:
        placed: The step.
        axes: The axis names of each collective, by `computation/name`.
    """
    spans: dict[tuple[str, str], list[_ValueSpan]] = defaultdict(list)
    loops_us: dict[tuple[int, str | None], float] = {}
    for one in placed:
        if one.role is PlacedRole.LEFT_OUT:
            since_us = loops_us[one.run, one.name]
            for found in spans.values():
                found.append(_ValueSpan(one.begin_us, one.end_us, _compute_mean(found, since_us, one.begin_us)))
        elif one.role is PlacedRole.WHOLE and one.interval.runs:
            loops_us[one.run, one.name] = one.begin_us
        elif (what := _find_counter(one, axes)) is not None:
            name, unit, value = what
            spans[name, unit].append(_ValueSpan(one.begin_us, one.end_us, value))
    for name, unit in sorted(spans):
        for at_us, value in _sum_spans(spans[name, unit]):
            yield CounterSample(name, unit, at_us, value)


def count_hbm_in_use(placed: Iterable[PlacedInterval]) -> Iterator[CounterSample]:
    """The HBM in use by buffers, at each change; left-out iterations have the maximum of the previous ones.

    Instructions that take no time are merged, with the maximum of their values.
    """
    loops_us: dict[tuple[int, str | None], float] = {}
    live: list[tuple[float, int]] = []
    for one in placed:
        if one.role is PlacedRole.LEFT_OUT:
            inside = takewhile(partial(_is_since, loops_us[one.run, one.name]), reversed(live))
            live += [(one.begin_us, most) for most in sorted(count for _, count in inside)[-1:]]
        elif one.role is PlacedRole.WHOLE and one.interval.runs:
            loops_us[one.run, one.name] = one.begin_us
        elif one.is_on_core and one.role is PlacedRole.WHOLE and one.interval.live_bytes is not None:
            live.append((one.begin_us, one.interval.live_bytes))
    before = None
    for at_us, there in groupby(live, key=itemgetter(0)):
        most = max(count for _, count in there)
        if most != before:
            yield CounterSample("HBM in use", "bytes", at_us, float(most))
        before = most


def _is_since(begin_us: float, one: tuple[float, int]) -> bool:
    return one[0] >= begin_us


class _ValueSpan(NamedTuple):
    """A value from one time to another."""

    begin_us: float
    end_us: float
    value: float


def _find_counter(placed: PlacedInterval, axes: Mapping[str, str]) -> tuple[str, str, float] | None:
    """The counter, unit and value for something in flight; None if nothing is counted."""
    interval = placed.interval
    if placed.role is not PlacedRole.WHOLE or not interval.moved_bytes or placed.end_us <= placed.begin_us:
        return None
    if interval.unit in (Unit.ICI, Unit.DCN):
        over = axes.get(interval.collective or "", "unknown axes")
        return f"in flight over {over}", "bytes", float(interval.moved_bytes)
    if interval.unit in (Unit.CORE, Unit.HBM):
        return "HBM traffic", "GB/s", interval.moved_bytes / interval.time_us / _MEGABYTES
    return None


def _compute_mean(spans: Sequence[_ValueSpan], begin_us: float, end_us: float) -> float:
    """The mean value between two times; spans begin one after the other."""
    since = takewhile(lambda span: span.begin_us >= begin_us, reversed(spans))
    return sum(span.value * (span.end_us - span.begin_us) for span in since) / (end_us - begin_us)


def _sum_spans(spans: Iterable[_ValueSpan]) -> Iterator[tuple[float, float]]:
    """The sum of all current values, at each time at which it changes."""
    changes = [change for begin_us, end_us, value in spans for change in ((begin_us, 1, value), (end_us, -1, -value))]
    changes.sort()
    there, value = 0, 0.0
    for number, (at_us, one, change) in enumerate(changes):
        there += one
        value = value + change if there else 0.0
        if number + 1 == len(changes) or changes[number + 1][0] > at_us:
            yield at_us, value
