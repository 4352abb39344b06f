"""One step of a `Timeline` as it goes by: what runs when since its beginning, loops iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import reduce
from itertools import count
from typing import NamedTuple

from hloscope.analysis.model.timeline import Interval, TimedComputation, Timeline, Unit
from hloscope.analysis.vocabulary import Bound
from hloscope.errors import ProfileError

MOST_EVENTS = 200_000
"""What viewers still open; of a step that holds more, loops are told with fewer iterations."""
MOST_OPERATIONS = 2_000_000
"""What is told of a step that holds more than viewers open even with one iteration of each loop."""


class Role(StrEnum):
    """What of an interval is at a place of the step."""

    WHOLE = "whole"
    """The interval itself."""
    START = "start"
    """The core starts it; takes no time."""
    DONE = "done"
    """The core comes to what would wait for it, and goes on at once."""
    ITERATION = "iteration"
    """One iteration of the loop that it is."""
    LEFT_OUT = "left out"
    """Turns of the loop that are not told one by one."""


class Placed(NamedTuple):
    """An interval at its place in the step.

    Attributes:
        role: What of it is there.
        interval: The interval.
        computation: The computation that holds it.
        run: A number for this one execution of the computation.
        depth: How many loops, iterations, branches and calls are around it.
        begin_us: When, since the beginning of the step.
        end_us: Until when.
        beside: Whether another thread is at it.
        iteration: Of an iteration its number, from 1; of iterations that are left out that of the first.
        iterations: How many the loop has.
    """

    role: Role
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
        """The instruction that it is of."""
        return self.interval.done if self.role is Role.DONE else self.interval.name

    @property
    def is_on_core(self) -> bool:
        """Whether the core is at it, or waits, rather than something beside it."""
        return not self.beside and (self.interval.unit is Unit.CORE or self.role is not Role.WHOLE)


class _Item(NamedTuple):
    """What one execution of a computation holds, from its beginning."""

    begin_us: float
    end_us: float
    role: Role
    interval: Interval


class Unrolled:
    """A step as it goes by.

    Args:
        timeline: The step.
        most_events: How much may be told, unless one iteration of each loop holds more.

    Attributes:
        timeline: The step.
        most_iterations: How many iterations of each loop are told one by one.
        left_out: What is said of iterations that are not; None where all are told.

    Raises:
        ProfileError: The step has too many operations, with one iteration of each loop.
    """

    def __init__(self, timeline: Timeline, most_events: int = MOST_EVENTS) -> None:
        self.timeline = timeline
        self._times_us = {one.name: one.time_us for one in timeline.computations}
        self._items = {one.name: sorted(_items(one), key=lambda item: item[:2]) for one in timeline.computations}
        self._callees_first = list(self._ordered())
        longest = max((iterations_of(item.interval) for items in self._items.values() for item in items), default=0)
        self.most_iterations = longest
        while self.most_iterations > 1 and self._count(self.most_iterations) > most_events:
            self.most_iterations //= 2
        if self._count(self.most_iterations) > max(most_events, MOST_OPERATIONS):
            raise ProfileError(
                f"the step runs more than {MOST_OPERATIONS:,} operations, too many for a trace or a profile",
                why="every call is shown, and of each loop at least one iteration",
                fix="export a program with fewer layers, or the timeline as JSON, which has each computation once",
            )
        self.left_out = (
            None if self.most_iterations >= longest else _about_iterations(self.most_iterations, most_events)
        )

    def __iter__(self) -> Iterator[Placed]:
        """All of it: what runs others before what it runs, and else by when it begins."""
        numbers = count()
        stack = [self._computation(self.timeline.entry, next(numbers), 0, 0.0, beside=False)]
        while stack:
            placed = next(stack[-1], None)
            if placed is None:
                stack.pop()
                continue
            yield placed
            if placed.role is Role.ITERATION:
                stack.append(self._iteration(placed, placed.iteration - 1, numbers))
            elif placed.role is Role.WHOLE and placed.interval.runs:
                stack.append(self._inside(placed, numbers))

    def _computation(self, name: str, run: int, depth: int, at_us: float, *, beside: bool) -> Iterator[Placed]:
        """One execution of a computation."""
        for begin_us, end_us, role, interval in self._items.get(name, ()):
            yield Placed(role, interval, name, run, depth, at_us + begin_us, at_us + end_us, beside)

    def _inside(self, placed: Placed, numbers: Iterator[int]) -> Iterator[Placed]:
        """The iterations of a loop, the last of which has only a condition; of all else what it runs."""
        runs, at_us = placed.interval.runs, placed.begin_us
        iterations, most = iterations_of(placed.interval), max(run.times for run in runs)
        for number in range(most):
            end_us = at_us + sum(self._times_us[run.computation] for run in runs if number < run.times)
            if self.most_iterations <= number < iterations:
                yield placed._replace(
                    role=Role.LEFT_OUT,
                    depth=placed.depth + 1,
                    begin_us=at_us,
                    iteration=number + 1,
                    iterations=iterations,
                )
                return
            iteration = placed._replace(
                role=Role.ITERATION,
                depth=placed.depth + 1,
                begin_us=at_us,
                end_us=end_us,
                iteration=number + 1,
                iterations=iterations,
            )
            if most > 1 and number < iterations:
                yield iteration
            else:
                yield from self._iteration(iteration, number, numbers)
            at_us = end_us

    def _iteration(self, placed: Placed, number: int, numbers: Iterator[int]) -> Iterator[Placed]:
        """What runs in one iteration: of a loop its condition and its body."""
        at_us, beside = placed.begin_us, placed.beside or placed.interval.unit is not Unit.CORE
        for run in placed.interval.runs:
            if number < run.times:
                yield from self._computation(run.computation, next(numbers), placed.depth + 1, at_us, beside=beside)
                at_us += self._times_us[run.computation]

    def _ordered(self) -> Iterator[str]:
        """The computations that a step runs, each behind those that it runs itself."""
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
        """How much is told with so many iterations of each loop."""
        counts: dict[str, int] = {}
        for name in self._callees_first:
            items = self._items.get(name, ())
            runs = (run for item in items if item.role is Role.WHOLE for run in item.interval.runs)
            inside = sum(min(run.times, most_iterations) * (1 + counts.get(run.computation, 0)) for run in runs)
            counts[name] = len(items) + inside
        return counts.get(self.timeline.entry, 0)


def iterations_of(interval: Interval) -> int:
    """How often what an interval runs comes: of a loop its body, whose condition comes once more."""
    return min((run.times for run in interval.runs if run.times), default=0)


def times_bound(interval: Interval) -> Bound:
    """How the iterations relate to the truth."""
    return reduce(lambda bound, run: bound + run.bound, interval.runs, Bound.EXACT)


def _items(computation: TimedComputation) -> Iterator[_Item]:
    """The intervals of a computation; of what the core goes on beside also where it starts and ends that."""
    waits = {(one.name, one.waits_for) for one in computation.intervals if one.wait is not None}
    for interval in computation.intervals:
        yield _Item(interval.begin_us, interval.end_us, Role.WHOLE, interval)
        if interval.issued_us is not None:
            yield _Item(interval.issued_us, interval.issued_us, Role.START, interval)
        if interval.done_us is not None and (interval.done, interval.name) not in waits:
            yield _Item(interval.done_us, interval.done_us, Role.DONE, interval)


def _about_iterations(most_iterations: int, most_events: int) -> str:
    several = f"first {most_iterations:,} iterations are" if most_iterations > 1 else "first iteration is"
    return (
        f"the step has more than {most_events:,} events: of each loop the {several} shown, and the rest as one, "
        "so that sums over single operations are too small"
    )
