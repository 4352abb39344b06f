"""What is on its way at any time of a step: bytes over each mesh axis, and HBM's traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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

    Args:
        placed: The step.
        axes: What the axes of each collective are called, by `computation/name`.
    """
    changes: dict[tuple[str, str], list[tuple[float, int, float]]] = defaultdict(list)
    for one in placed:
        interval = one.interval
        if one.role is not Role.WHOLE or not interval.moved_bytes or one.end_us <= one.begin_us:
            continue
        if interval.unit in (Unit.ICI, Unit.DCN):
            what = f"in flight over {axes.get(interval.collective or '', 'unknown axes')}", "bytes"
            value: float = interval.moved_bytes
        elif interval.unit in (Unit.CORE, Unit.HBM):
            what, value = ("HBM traffic", "GB/s"), interval.moved_bytes / interval.time_us / _MEGABYTES
        else:
            continue
        changes[what] += [(one.begin_us, 1, value), (one.end_us, -1, -value)]
    for what in sorted(changes):
        for at_us, value in _summed(sorted(changes[what])):
            yield Count(*what, at_us, value)


def _summed(changes: list[tuple[float, int, float]]) -> Iterator[tuple[float, float]]:
    """Sums of what is there, once for each time at which they change."""
    there, value = 0, 0.0
    for number, (at_us, one, change) in enumerate(changes):
        there += one
        value = value + change if there else 0.0
        if number + 1 == len(changes) or changes[number + 1][0] > at_us:
            yield at_us, value
