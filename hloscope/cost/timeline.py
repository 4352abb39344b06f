"""Conversion of a walk's records to the `Timeline` that users see: plain intervals of each scheduled computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from types import MappingProxyType

import numpy as np

from hloscope.analysis.analyze import analyze_program
from hloscope.cost.price import price_walk
from hloscope.cost.records import CollectiveKey, Schedule, Stretch, Sums, TimeBasis
from hloscope.cost.walk import Walk
from hloscope.hlo import HloModule
from hloscope.model import Analysis
from hloscope.model.capture import Capture, Evidence, attach_evidence
from hloscope.model.collectives import index_transfers
from hloscope.model.timeline import Interval, TimedComputation, Timeline, Unit, WaitCause, Waits
from hloscope.model.vocabulary import Bound

_AXES = "xyz"


def build_timeline(
    walk: Walk, analysis: Analysis, slice_name: str, live_bytes_at: Mapping[str, int] = MappingProxyType({})
) -> Timeline | None:
    """The timeline of a step; None if it is not priced.

    Args:
        walk: The walk that priced it.
        analysis: The analysis with the times from this walk.
        slice_name: The slice that it was priced on.
        live_bytes_at: HBM in use by buffers while an instruction runs, by its name, if known.
    """
    if analysis.time is None:
        return None
    entry, writer = walk.graph.module.entry.name, _IntervalWriter(walk, analysis, live_bytes_at)
    step = walk.schedules[entry].sums
    return Timeline(
        target=analysis.target,
        module=analysis.module,
        slice=slice_name,
        step_us=step.total_us,
        bound=analysis.time.bound,
        computing_us=step.computing_us,
        waits=_sum_waits(step),
        hidden_us=step.hidden_us,
        entry=entry,
        computations=tuple(writer.computations()),
        collectives=analysis.collectives,
        notes=analysis.time.notes,
    )


def _sum_waits(step: Sums) -> Waits:
    waited_us = step.waited_us
    return Waits(
        collective_us=waited_us[WaitCause.COLLECTIVE],
        hbm_us=waited_us[WaitCause.HBM],
        host_us=waited_us[WaitCause.HOST],
        kernel_us=waited_us[WaitCause.KERNEL],
        limit_us=waited_us[WaitCause.LIMIT],
    )


class _IntervalWriter:
    """Converts a walk's records to intervals, with a cache for the names of links.

    Args:
        walk: The walk.
        analysis: The analysis with the bytes of collectives.
        live_bytes_at: As for `build_timeline`.
    """

    def __init__(self, walk: Walk, analysis: Analysis, live_bytes_at: Mapping[str, int]) -> None:
        self._walk = walk
        self._live_bytes_at = live_bytes_at
        transfers = index_transfers(analysis.collectives).items()
        self._wire_bytes = {key: each.wire_bytes for key, (_, each) in transfers}
        self._bounds = {key: whole.bytes_bound for key, (whole, _) in transfers}
        self._dimensions = walk.operations.chip.torus_dimensions
        self._links: dict[int, tuple[str, ...]] = {}

    def computations(self) -> Iterator[TimedComputation]:
        """The computations of the walk, in text order."""
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
            collective=_render_key(stretch.key),
            rule=_find_rule(stretch),
            links=() if transfer is None or stretch.cause is not None else self._words_of(transfer.links),
            runs=tuple(run for _, run in stretch.runs),
            is_prefetch=stretch.is_prefetch,
            issued_us=stretch.issued_us,
            done=None if stretch.done is None else stretch.done.name,
            done_us=stretch.done_us,
            flops=_find_flops(stretch),
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
            return self._wire_bytes.get(_render_key(stretch.key) or "")
        if stretch.cause is not None or stretch.cost is None:
            return None
        return stretch.cost.hbm_bytes if stretch.unit is Unit.CORE else stretch.cost.moved_bytes

    def _waits_for_thread(self, stretch: Stretch, beside: Sums) -> Iterator[Interval]:
        """A wait for another thread, split into its kernels and each thing that these wait for."""
        share, begin_us = stretch.time_us / beside.total_us, stretch.begin_us
        for cause, key, of_thread_us in _split_thread_time(beside):
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
                    collective=_render_key(key),
                    rule=rule,
                    bound=beside.bound,
                    live_bytes=self._live_bytes(stretch),
                )
                begin_us = end_us

    def _words_of(self, links: np.ndarray | None) -> tuple[str, ...]:
        """The axes and directions of the used links, which are flattened by chip, axis and direction."""
        if links is None:
            return ()
        if id(links) not in self._links:
            _, axes, directions = np.nonzero(links.reshape(-1, self._dimensions, 2))
            used = sorted(set(zip(axes.tolist(), directions.tolist(), strict=True)))
            self._links[id(links)] = tuple(f"{_AXES[axis]}{'+-'[direction]}" for axis, direction in used)
        return self._links[id(links)]


def _render_key(key: CollectiveKey | None) -> str | None:
    return None if key is None else "/".join(key)


def _find_flops(stretch: Stretch) -> int | None:
    cost = stretch.cost
    if stretch.unit is not Unit.CORE or stretch.cause is not None or cost is None or cost.basis is TimeBasis.UNKNOWN:
        return None
    return cost.flops


def _find_rule(stretch: Stretch) -> str | None:
    """The rule that priced a stretch."""
    if stretch.key is not None:
        return None if stretch.transfer is None else stretch.transfer.rule
    return None if stretch.cost is None else stretch.cost.basis.value


def _split_thread_time(beside: Sums) -> Iterator[tuple[WaitCause, CollectiveKey | None, float]]:
    """The parts of a thread's time: the causes with their times, each collective separately."""
    for cause, time_us in beside.waits_for_it():
        if cause is not WaitCause.COLLECTIVE:
            yield cause, None, time_us
            continue
        whole_us = sum(beside.waits.values())
        for key, waited_us in beside.waits.items():
            yield cause, key, time_us * waited_us / whole_us if whole_us > 0 else 0.0


# ---- pricing of a compiled program from the results of its compile


def predict_timeline(
    program: Capture, module: HloModule, *, target: str, explained: Callable[[Analysis], Analysis]
) -> Timeline | None:
    """The timeline of one step of a compiled program; None if it is not priced.

    Args:
        program: The results of its compile.
        module: The parsed text.
        target: The target as the user named it.
        explained: A function that adds reasons to the collectives of its analysis.
    """
    found, device_ids = analyze_program(program, module, target=target), program.compiled.device_ids or None
    priced = price_walk(found, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
    if priced is None or program.slice is None:
        return None
    peak = program.compiled.hbm_peak
    live = {} if peak is None else peak.live_bytes_at
    timeline = build_timeline(priced.walk, explained(priced.analysis), program.slice.name, live)
    return None if timeline is None else attach_evidence(timeline, Evidence(program=program, name=target))
