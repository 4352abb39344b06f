"""A step interval by interval, as text: where its time goes, what works meanwhile, and what is waited for longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from hloscope.analysis.model.timeline import Interval, TimedComputation, Timeline, Unit, WaitCause
from hloscope.analysis.vocabulary import Bound
from hloscope.report.layout import INDENT, column, fold, folded, section, table_lines
from hloscope.report.words import legend, notes_section
from hloscope.units import format_share, format_time

_MOST_WAITS = 10
_WAITS = {
    WaitCause.COLLECTIVE: "waiting for collectives",
    WaitCause.HBM: "waiting for copies within the device",
    WaitCause.HOST: "waiting for the host and its copies",
    WaitCause.KERNEL: "waiting for other threads",
    WaitCause.LIMIT: "what memory or the matrix units take besides",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of a table: a name, and a time of the step."""

    name: str
    time_us: float
    bound: Bound
    times: str = ""


def lines(found: Timeline, width: int) -> Iterator[Text]:
    """The step, its parts, the units and the longest waits."""
    inner = width - INDENT
    shown = found.bound.marked(format_time(found.step_us))
    yield from fold(Text(f"{found.target} on {found.slice}: {shown} a step", style="bold"), width)
    parts, units, waits = (_table(rows, found, inner) for rows in (_parts(found), _units(found), _longest_waits(found)))
    yield from section("Where the time goes", parts, inner)
    yield from section("Busy time of each resource", units, inner)
    if waits:
        yield from section("Longest waits", waits, inner)
    yield from folded((legend([*parts, *units, *waits]),), width)
    yield from notes_section(dict.fromkeys(found.notes), inner)


def _table(rows: list[_Line], found: Timeline, width: int) -> list[Text]:
    def share(row: _Line) -> str:
        return format_share(row.time_us / found.step_us) if found.step_us > 0 else ""

    return table_lines(
        [
            column(rows, "", lambda row: row.name),
            column(rows, "time", lambda row: row.bound.marked(format_time(row.time_us)), right=True),
            column(rows, "of the step", share, right=True),
            column(rows, "", lambda row: row.times, given_up=1),
        ],
        width,
    )


def _parts(found: Timeline) -> list[_Line]:
    waits = found.waits
    times = (waits.collective_us, waits.hbm_us, waits.host_us, waits.kernel_us, waits.limit_us)
    named = (("computing", found.computing_us), *zip(_WAITS.values(), times, strict=True))
    rows = [_Line(name=name, time_us=time_us, bound=found.bound.of_part) for name, time_us in named]
    return [rows[0], *(row for row in rows[1:] if row.time_us > 0)]


def _units(found: Timeline) -> list[_Line]:
    """How long each part of the device works, whatever else does."""
    times: dict[str, float] = {}
    for computation in found.computations:
        for interval in computation.intervals:
            if interval.wait is None and not (interval.unit is Unit.CORE and interval.runs):
                name = f"{interval.unit.value} {' '.join(interval.links)}".rstrip()
                beside = 0 if interval.unit is Unit.CORE else computation.executions_beside
                executions = computation.executions + beside
                times[name] = times.get(name, 0.0) + executions * interval.time_us
    bound = found.bound.of_part
    return [_Line(name=name, time_us=time_us, bound=bound) for name, time_us in times.items() if time_us > 0]


def _longest_waits(found: Timeline) -> list[_Line]:
    waits = [
        _Line(
            name=_waited_for(interval),
            time_us=computation.executions * interval.time_us,
            bound=computation.executions_bound + interval.bound,
            times=_times(computation),
        )
        for computation in found.computations
        for interval in computation.intervals
        if interval.wait is not None and computation.executions * interval.time_us > 0
    ]
    return sorted(waits, key=lambda row: row.time_us, reverse=True)[:_MOST_WAITS]


def _times(computation: TimedComputation) -> str:
    """`≤8 times`; nothing of what surely runs once."""
    count = computation.executions_bound.marked(f"{computation.executions:,}")
    return "" if count == "1" else f"{count} times"


def _waited_for(interval: Interval) -> str:
    if interval.wait is WaitCause.LIMIT:
        return _WAITS[WaitCause.LIMIT]
    if interval.collective is not None:
        return f"%{interval.collective.rpartition('/')[2]}"
    return f"%{interval.waits_for or interval.name}"
