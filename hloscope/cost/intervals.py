"""What a walk has recorded, as the `Timeline` that users see: plain intervals of each computation on the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from types import MappingProxyType

import numpy as np

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.collective import transfers_in
from hloscope.analysis.model.timeline import Interval, TimedComputation, Timeline, Unit, WaitCause, Waits
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.operations import Basis
from hloscope.cost.records import Key, Schedule, Stretch, Sums
from hloscope.cost.walk import Walk

_AXES = "xyz"


def timeline_of(
    walk: Walk, analysis: Analysis, slice_name: str, live_bytes_at: Mapping[str, int] = MappingProxyType({})
) -> Timeline | None:
    """The intervals of a step; None where it is not priced.

    Args:
        walk: The walk that priced it.
        analysis: What was made of that, with times.
        slice_name: Where it was priced.
        live_bytes_at: What buffers take of HBM while an instruction runs, by its name, as far as that is known.
    """
    if analysis.time is None:
        return None
    entry, writer = walk.graph.module.entry.name, _Writer(walk, analysis, live_bytes_at)
    step = walk.schedules[entry].sums
    return Timeline(
        target=analysis.target,
        module=analysis.module,
        slice=slice_name,
        step_us=step.total_us,
        bound=analysis.time.bound,
        computing_us=step.computing_us,
        waits=_waits(step),
        hidden_us=step.hidden_us,
        entry=entry,
        computations=tuple(writer.computations()),
        collectives=analysis.collectives,
        notes=analysis.time.notes,
    )


def _waits(step: Sums) -> Waits:
    waited_us = step.waited_us
    return Waits(
        collective_us=waited_us[WaitCause.COLLECTIVE],
        hbm_us=waited_us[WaitCause.HBM],
        host_us=waited_us[WaitCause.HOST],
        kernel_us=waited_us[WaitCause.KERNEL],
        limit_us=waited_us[WaitCause.LIMIT],
    )


class _Writer:
    """Writes what a walk has recorded; remembers the words for links.

    Args:
        walk: The walk.
        analysis: What the collectives move.
        live_bytes_at: As for `timeline_of`.
    """

    def __init__(self, walk: Walk, analysis: Analysis, live_bytes_at: Mapping[str, int]) -> None:
        self._walk = walk
        self._live_bytes_at = live_bytes_at
        transfers = transfers_in(analysis.collectives).items()
        self._wire_bytes = {key: each.wire_bytes for key, (_, each) in transfers}
        self._bounds = {key: whole.bytes_bound for key, (whole, _) in transfers}
        self._dimensions = walk.operations.chip.torus_dimensions
        self._links: dict[int, tuple[str, ...]] = {}

    def computations(self) -> Iterator[TimedComputation]:
        """Those that were walked, in the order of the text."""
        executions, bounds = self._walk.executions(), self._walk.execution_bounds()
        for computation in self._walk.graph.module.computations:
            schedule = self._walk.schedules.get(computation.name)
            if schedule is not None:
                runners = executions[computation.name]
                yield TimedComputation(
                    name=computation.name,
                    executions=runners[Unit.CORE],
                    executions_beside=runners[Unit.THREAD],
                    executions_bound=bounds[computation.name],
                    time_us=schedule.sums.total_us,
                    bound=schedule.sums.bound,
                    intervals=tuple(sorted(self._intervals(schedule), key=lambda one: (one.begin_us, one.end_us))),
                )

    def _intervals(self, schedule: Schedule) -> Iterator[Interval]:
        for stretch in schedule.stretches:
            if stretch.cause is not None and stretch.beside is not None:
                yield from self._waits_for_thread(stretch, stretch.beside)
            else:
                yield self._interval(stretch)

    def _interval(self, stretch: Stretch) -> Interval:
        transfer = stretch.transfer
        return Interval(
            name=None if stretch.instruction is None else stretch.instruction.name,
            unit=stretch.unit,
            begin_us=stretch.begin_us,
            end_us=stretch.end_us,
            wait=stretch.cause,
            waits_for=None if stretch.of is None else stretch.of.name,
            collective=_words(stretch.key),
            rule=_rule(stretch),
            links=() if transfer is None or stretch.cause is not None else self._words_of(transfer.links),
            runs=tuple(run for _, run in stretch.runs),
            is_prefetch=stretch.is_prefetch,
            issued_us=stretch.issued_us,
            done=None if stretch.done is None else stretch.done.name,
            done_us=stretch.done_us,
            flops=_flops(stretch),
            moved_bytes=self._moved_bytes(stretch),
            bound=self._bound(stretch),
            live_bytes=self._live_bytes(stretch),
        )

    def _live_bytes(self, stretch: Stretch) -> int | None:
        if stretch.unit is not Unit.CORE or stretch.runs or stretch.instruction is None:
            return None
        return self._live_bytes_at.get(stretch.instruction.name)

    def _bound(self, stretch: Stretch) -> Bound:
        if stretch.key is not None:
            return Bound.AT_LEAST if stretch.transfer is None else self._bounds.get("/".join(stretch.key), Bound.EXACT)
        of_runs = (sums.bound + run.bound for sums, run in stretch.runs)
        own = Bound.EXACT if stretch.cost is None else stretch.cost.bound
        return reduce(lambda bound, other: bound + other, of_runs, own)

    def _moved_bytes(self, stretch: Stretch) -> int | None:
        if stretch.is_collective:
            return self._wire_bytes.get(_words(stretch.key) or "")
        if stretch.cause is not None or stretch.cost is None:
            return None
        return stretch.cost.hbm_bytes if stretch.unit is Unit.CORE else stretch.cost.moved_bytes

    def _waits_for_thread(self, stretch: Stretch, beside: Sums) -> Iterator[Interval]:
        """A wait for another thread, in pieces: for its kernels, and for each thing that these wait for."""
        share, begin_us = stretch.time_us / beside.total_us, stretch.begin_us
        for cause, key, of_thread_us in _parts(beside):
            if of_thread_us > 0:
                end_us = begin_us + share * of_thread_us
                rule = None
                if key is not None and (transfer := self._walk.priced.times[key]) is not None:
                    rule = transfer.rule
                yield Interval(
                    name=None if stretch.instruction is None else stretch.instruction.name,
                    unit=Unit.CORE,
                    begin_us=begin_us,
                    end_us=end_us,
                    wait=cause,
                    waits_for=None if stretch.of is None else stretch.of.name,
                    collective=_words(key),
                    rule=rule,
                    bound=beside.bound,
                    live_bytes=self._live_bytes(stretch),
                )
                begin_us = end_us

    def _words_of(self, links: np.ndarray | None) -> tuple[str, ...]:
        """The axes and directions of the links in use, which lie flat, by chip, axis and direction."""
        if links is None:
            return ()
        if id(links) not in self._links:
            _, axes, directions = np.nonzero(links.reshape(-1, self._dimensions, 2))
            used = sorted(set(zip(axes.tolist(), directions.tolist(), strict=True)))
            self._links[id(links)] = tuple(f"{_AXES[axis]}{'+-'[direction]}" for axis, direction in used)
        return self._links[id(links)]


def _words(key: Key | None) -> str | None:
    return None if key is None else "/".join(key)


def _flops(stretch: Stretch) -> int | None:
    cost = stretch.cost
    if stretch.unit is not Unit.CORE or stretch.cause is not None or cost is None or cost.basis is Basis.UNKNOWN:
        return None
    return cost.flops


def _rule(stretch: Stretch) -> str | None:
    """What priced it."""
    if stretch.key is not None:
        return None if stretch.transfer is None else stretch.transfer.rule
    return None if stretch.cost is None else stretch.cost.basis.value


def _parts(beside: Sums) -> Iterator[tuple[WaitCause, Key | None, float]]:
    """What a thread's time is made of: causes with their times, collectives each by itself."""
    for cause, time_us in beside.waits_for_it():
        if cause is not WaitCause.COLLECTIVE:
            yield cause, None, time_us
            continue
        whole_us = sum(beside.waits.values())
        for key, waited_us in beside.waits.items():
            yield cause, key, time_us * waited_us / whole_us if whole_us > 0 else 0.0
