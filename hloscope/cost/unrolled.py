"""One step of a `Timeline` as it passes: what runs when since its beginning, with loops iteration by iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial, reduce
from itertools import count, groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

from hloscope.base.errors import ProfileError
from hloscope.model.timeline import Interval, TimedComputation, Timeline, Unit
from hloscope.model.vocabulary import Bound

MOST_EVENTS = 200_000
"""Maximum number of events that viewers can open; larger steps list fewer iterations of loops."""
MOST_OPERATIONS = 2_000_000
"""Maximum number of events for a step that exceeds `MOST_EVENTS` even with one iteration of each loop."""


class PlacedRole(StrEnum):
    """The part of an interval at one place of the step."""

    WHOLE = "whole"
    """The interval itself."""
    START = "start"
    """The core starts it, which takes no time."""
    DONE = "done"
    """The core reaches the instruction that would wait for it, and continues at once."""
    ITERATION = "iteration"
    """One iteration of the loop."""
    LEFT_OUT = "left out"
    """Iterations of the loop that are not listed individually."""


class PlacedInterval(NamedTuple):
    """An interval at its place in the step.

    Attributes:
        role: The part of the interval at this place.
        interval: The interval.
        computation: The computation that holds it.
        run: A number for this one execution of the computation.
        depth: Number of enclosing loops, iterations, branches and calls.
        begin_us: Begin, since the beginning of the step.
        end_us: End, on the same clock.
        beside: Whether it runs on another thread.
        iteration: The 1-based number of an iteration; for left-out iterations, that of the first.
        iterations: Number of iterations of the loop.
    """

    role: PlacedRole
    interval: Interval
    computation: str
    run: int
    depth: int
    begin_us: float
    end_us: float
    beside: bool = False
    iteration: int = 0
    iterations: int = 0

    @property
    def name(self) -> str | None:
        """Name of its instruction."""
        return self.interval.done if self.role is PlacedRole.DONE else self.interval.name

    @property
    def is_on_core(self) -> bool:
        """True if the core runs it, or waits, rather than another unit."""
        return not self.beside and (self.interval.unit is Unit.CORE or self.role is not PlacedRole.WHOLE)


class _RelativeInterval(NamedTuple):
    """An interval within one execution of a computation, from its beginning."""

    begin_us: float
    end_us: float
    role: PlacedRole
    interval: Interval


class UnrolledTimeline:
    """A step as it passes.

    Args:
        timeline: The step.
        most_events: Maximum number of events, unless one iteration of each loop has more.

    Attributes:
        timeline: The step.
        most_iterations: Number of iterations of each loop that are listed individually.
        left_out: The note on iterations that are not; None if all are listed.

    Raises:
        ProfileError: The step has too many operations, with one iteration of each loop.
    """

    def __init__(self, timeline: Timeline, most_events: int = MOST_EVENTS) -> None:
        self.timeline = timeline
        self._times_us = {one.name: one.time_us for one in timeline.computations}
        self._items = {one.name: sorted(_list_items(one), key=lambda item: item[:2]) for one in timeline.computations}
        self._callees_first = list(self._ordered())
        longest = max((count_iterations(item.interval) for items in self._items.values() for item in items), default=0)
        self.most_iterations = longest
        while self.most_iterations > 1 and self._count(self.most_iterations) > most_events:
            self.most_iterations //= 2
        if self._count(self.most_iterations) > max(most_events, MOST_OPERATIONS):
            raise ProfileError(
                f"the step runs more than {MOST_OPERATIONS:,} operations, too many for a trace or a profile",
                why="every call is shown, and of each loop at least one iteration",
                fix="export a program with fewer layers, or the timeline as JSON, which has each computation once",
            )
        self.left_out = None if self.most_iterations >= longest else _note_iterations(self.most_iterations, most_events)

    def __iter__(self) -> Iterator[PlacedInterval]:
        """Yields all intervals: callers before the intervals that they run, otherwise by begin."""
        numbers = count()
        stack = [self._computation(self.timeline.entry, next(numbers), 0, 0.0, beside=False)]
        while stack:
            placed = next(stack[-1], None)
            if placed is None:
                stack.pop()
                continue
            yield placed
            if placed.role is PlacedRole.ITERATION:
                stack.append(self._iteration(placed, placed.iteration - 1, numbers))
            elif placed.role is PlacedRole.WHOLE and placed.interval.runs:
                stack.append(self._inside(placed, numbers))

    def _computation(self, name: str, run: int, depth: int, at_us: float, *, beside: bool) -> Iterator[PlacedInterval]:
        """One execution of a computation."""
        for begin_us, end_us, role, interval in self._items.get(name, ()):
            yield PlacedInterval(role, interval, name, run, depth, at_us + begin_us, at_us + end_us, beside)

    def _inside(self, placed: PlacedInterval, numbers: Iterator[int]) -> Iterator[PlacedInterval]:
        """The iterations of a loop, the last with only a condition; for all others, the intervals that it runs."""
        runs, at_us = placed.interval.runs, placed.begin_us
        iterations, most = count_iterations(placed.interval), max(run.times for run in runs)
        for number in range(most):
            end_us = at_us + sum(self._times_us[run.computation] for run in runs if number < run.times)
            iteration = placed._replace(
                role=PlacedRole.ITERATION,
                depth=placed.depth + 1,
                begin_us=at_us,
                end_us=end_us,
                iteration=number + 1,
                iterations=iterations,
            )
            if self.most_iterations <= number < iterations:
                yield iteration._replace(role=PlacedRole.LEFT_OUT, end_us=placed.end_us)
                return
            if most > 1 and number < iterations:
                yield iteration
            else:
                yield from self._iteration(iteration, number, numbers)
            at_us = end_us

    def _iteration(self, placed: PlacedInterval, number: int, numbers: Iterator[int]) -> Iterator[PlacedInterval]:
        """The intervals of one iteration: for a loop, its condition and its body."""
        at_us, beside = placed.begin_us, placed.beside or placed.interval.unit is not Unit.CORE
        for run in placed.interval.runs:
            if number < run.times:
                yield from self._computation(run.computation, next(numbers), placed.depth + 1, at_us, beside=beside)
                at_us += self._times_us[run.computation]

    def _ordered(self) -> Iterator[str]:
        """The computations that a step runs, each after its callees."""
        begun, stack = set[str](), [(self.timeline.entry, False)]
        while stack:
            name, is_done = stack.pop()
            if is_done:
                yield name
            elif name not in begun:
                begun.add(name)
                stack.append((name, True))
                items = self._items.get(name, ())
                stack += [(run.computation, False) for item in items for run in item.interval.runs if run.times]

    def _count(self, most_iterations: int) -> int:
        """Number of events with this many iterations of each loop."""
        counts: dict[str, int] = {}
        for name in self._callees_first:
            items = self._items.get(name, ())
            runs = (run for item in items if item.role is PlacedRole.WHOLE for run in item.interval.runs)
            inside = sum(min(run.times, most_iterations) * (1 + counts.get(run.computation, 0)) for run in runs)
            counts[name] = len(items) + inside
        return counts.get(self.timeline.entry, 0)


def count_iterations(interval: Interval) -> int:
    """Number of iterations of an interval: for a loop, those of its body, whose condition runs once more."""
    return min((run.times for run in interval.runs if run.times), default=0)


def find_iterations_bound(interval: Interval) -> Bound:
    """The bound of the number of iterations."""
    return reduce(lambda bound, run: bound + run.bound, interval.runs, Bound.EXACT)


def _list_items(computation: TimedComputation) -> Iterator[_RelativeInterval]:
    """The intervals of a computation; for concurrent work also the instructions that start and end it."""
    waits = {(one.name, one.waits_for) for one in computation.intervals if one.wait is not None}
    for interval in computation.intervals:
        yield _RelativeInterval(interval.begin_us, interval.end_us, PlacedRole.WHOLE, interval)
        if interval.issued_us is not None:
            yield _RelativeInterval(interval.issued_us, interval.issued_us, PlacedRole.START, interval)
        if interval.done_us is not None and (interval.done, interval.name) not in waits:
            yield _RelativeInterval(interval.done_us, interval.done_us, PlacedRole.DONE, interval)


def _note_iterations(most_iterations: int, most_events: int) -> str:
    several = f"first {most_iterations:,} iterations are" if most_iterations > 1 else "first iteration is"
    return (
        f"the step has more than {most_events:,} events: of each loop the {several} shown, and the rest as one, "
        "so that sums over single operations are too small"
    )


# ---- counters over the time of a step: bytes in flight over each mesh axis, HBM traffic, and HBM in use

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
