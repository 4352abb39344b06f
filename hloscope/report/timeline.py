"""A predicted step: its text, and its picture as a strip with loops folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.text import Text

from hloscope.base.units import format_share, format_time
from hloscope.cost.unrolled import count_iterations, find_iterations_bound
from hloscope.model.timeline import Interval, TimedComputation, Timeline, Unit, WaitCause
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import escape_line
from hloscope.report.layout import INDENT, column, fold, fold_all, render_table, section
from hloscope.report.pictures import svg
from hloscope.report.pictures.svg import LINE_HEIGHT, MARGIN
from hloscope.report.words import make_legend, render_notes

_WIDTH, _LEFT, _LANE = 820.0, 118.0, 18.0
_LEAST = 0.6
"""The least width of a bar; narrower ones are joined with the next."""
_NARROW = 3.0
"""The least width of a bar with an outline and words."""
_MOST_LOOPS = 2
_LEAST_LOOP = 0.02
"""Loops with a smaller share of the step are not unfolded."""
_LANES = {
    Unit.ICI: "links (ICI)",
    Unit.DCN: "DCN",
    Unit.HBM: "copies in HBM",
    Unit.TO_HOST: "to the host",
    Unit.FROM_HOST: "from the host",
    Unit.HOST: "host",
    Unit.THREAD: "other threads",
}
_WAITS_FOR = {
    WaitCause.COLLECTIVE: "for collectives",
    WaitCause.HBM: "for copies",
    WaitCause.HOST: "for the host",
    WaitCause.KERNEL: "for other threads",
    WaitCause.LIMIT: "for memory or the matrix units",
}


class _Bar(NamedTuple):
    """A piece of the strip, with its extent and its words.

    Attributes:
        begin: Where it begins, in the picture.
        end: Where it ends.
        words: Its label.
        stands_for: Number of intervals that it stands for.
    """

    begin: float
    end: float
    words: str
    stands_for: int = 1


def draw_timeline(found: Timeline) -> svg.Element:
    """A step of a program as a strip for each of its parts."""
    strips = list(_list_strips(found))
    heights = [LINE_HEIGHT * 1.4 + _LANE * (1 + len(_list_lanes(computation))) + 12 for computation, _ in strips]
    head = [
        f"{found.target} on {found.slice}: {found.bound.marked(format_time(found.step_us))} a step",
        *_describe_parts(found),
    ]
    top = MARGIN + LINE_HEIGHT * (len(head) + 0.5)
    root = svg.make_picture(_WIDTH, top + sum(heights) + LINE_HEIGHT + MARGIN, head[0], " ".join(head[1:]))
    svg.add_title(root, head[0], _WIDTH)
    svg.write_lines(root, head[1:], MARGIN + 6 + LINE_HEIGHT, _WIDTH)
    for (computation, words), height in zip(strips, heights, strict=True):
        _draw_strip(root, computation, words, top)
        top += height
    legend = "Filled: at work. Hatched: the core waits. Outlined: a loop or a branch, unfolded below where it is long."
    svg.write_lines(root, [legend], top + LINE_HEIGHT * 0.7, _WIDTH)
    return root


def _describe_parts(found: Timeline) -> Iterator[str]:
    """The parts of the step in words."""
    waits = found.waits
    parts = (
        ("computing", found.computing_us),
        ("exposed collectives", waits.collective_us),
        ("waiting for copies", waits.hbm_us),
        ("for the host", waits.host_us),
        ("for other threads", waits.kernel_us),
        ("what memory or the matrix units take besides", waits.limit_us),
    )
    yield ", ".join(f"{words} {_format_part(time_us, found)}" for words, time_us in parts if time_us > 0)
    if found.hidden_us > 0:
        yield f"collectives hidden behind other work: {found.bound.of_part.marked(format_time(found.hidden_us))}"


def _format_part(time_us: float, found: Timeline) -> str:
    time = found.bound.of_part.marked(format_time(time_us))
    return f"{time} ({format_share(time_us / found.step_us)})" if found.step_us > 0 else "0 us"


def _list_strips(found: Timeline) -> Iterator[tuple[TimedComputation, str]]:
    """The step, and one iteration of each of the loops that take most of it."""
    named = {computation.name: computation for computation in found.computations}
    if found.entry not in named:
        return
    yield named[found.entry], f"one step, {found.bound.marked(format_time(found.step_us))}"
    inner = [computation for computation in found.computations if computation.name != found.entry]
    inner.sort(key=lambda computation: -computation.executions * computation.time_us)
    for computation in inner[:_MOST_LOOPS]:
        if computation.executions * computation.time_us > _LEAST_LOOP * found.step_us:
            count = computation.executions_bound.marked(f"{computation.executions:,}")
            times = "once" if count == "1" else f"one of {count} times"
            time = computation.bound.marked(format_time(computation.time_us))
            yield computation, escape_line(f"%{computation.name}, {times}, {time}")


def _list_lanes(computation: TimedComputation) -> list[Unit]:
    """The units other than the core that work in a computation."""
    busy = {interval.unit for interval in computation.intervals if interval.time_us > 0}
    return [unit for unit in _LANES if unit in busy]


def _draw_strip(root: svg.Element, computation: TimedComputation, words: str, top: float) -> None:
    svg.label(root, MARGIN, top + 10, svg.cut_to(words, _WIDTH - 2 * MARGIN), font_weight="bold")
    top += LINE_HEIGHT * 1.2
    core = [interval for interval in computation.intervals if interval.unit is Unit.CORE and interval.time_us > 0]
    _draw_lane(root, "core", top)
    for bar in _list_bars(computation, (interval for interval in core if interval.wait is None and not interval.runs)):
        _draw_bar(root, bar, top, fill=svg.TINT, fill_opacity=0.75)
    for bar in _list_bars(computation, (interval for interval in core if interval.wait is not None)):
        if bar.end - bar.begin < _NARROW:
            _draw_bar(root, bar, top, fill=svg.LINE, fill_opacity=0.35)
            continue
        group = _draw_bar(root, bar, top, fill="none", stroke_opacity=0.8)
        svg.add_path(group, svg.hatch(bar.begin, top + 2, max(bar.end - bar.begin, _LEAST), _LANE - 4, 5), 0.8)
    for bar in _list_bars(computation, (interval for interval in core if interval.runs)):
        group = _draw_bar(root, bar, top, fill=svg.TINT, fill_opacity=0.18, stroke_opacity=0.8)
        if svg.fits(bar.words, bar.end - bar.begin - 6, 10):
            svg.label(group, (bar.begin + bar.end) / 2, top + 13, bar.words, anchor="middle", size=10)
    for number, unit in enumerate(_list_lanes(computation), 1):
        _draw_lane(root, _LANES[unit], top + number * _LANE)
        for bar in _list_bars(computation, (interval for interval in computation.intervals if interval.unit is unit)):
            _draw_bar(root, bar, top + number * _LANE, fill=svg.LINE, fill_opacity=0.5)


def _draw_lane(root: svg.Element, name: str, top: float) -> None:
    svg.label(root, _LEFT - 8, top + 13, name, anchor="end", size=10.5, opacity=0.8)
    bottom = top + _LANE - 1
    svg.add_line(root, (_LEFT, bottom), (_WIDTH - MARGIN, bottom), stroke=svg.LINE, stroke_opacity=0.15)


def _draw_bar(root: svg.Element, bar: _Bar, top: float, **style: str | float) -> svg.Element:
    group = svg.add(root, "g")
    if bar.end - bar.begin >= _NARROW:
        more = f" and {bar.stands_for - 1:,} more" if bar.stands_for > 1 else ""
        svg.add(group, "title", text=f"{bar.words}{more}")
    style.setdefault("stroke", svg.LINE if "stroke_opacity" in style else "none")
    svg.box(group, (bar.begin, top + 2), (max(bar.end - bar.begin, _LEAST), _LANE - 4), **style)
    return group


def _list_bars(computation: TimedComputation, intervals: Iterable[Interval]) -> Iterator[_Bar]:
    """The intervals as bars; those that are too near to tell apart share one."""
    room = _WIDTH - MARGIN - _LEFT
    whole_us = max((interval.end_us for interval in computation.intervals), default=0.0)
    whole_us = max(whole_us, computation.time_us)
    last: _Bar | None = None
    for interval in sorted(intervals, key=lambda interval: interval.begin_us):
        if interval.time_us <= 0:
            continue
        begin, end = (_LEFT + room * at_us / whole_us for at_us in (interval.begin_us, interval.end_us))
        if last is not None and begin - last.end < _LEAST and not interval.runs:
            last = last._replace(end=max(last.end, end), stands_for=last.stands_for + 1)
            continue
        if last is not None:
            yield last
        last = _Bar(begin, end, _describe_interval(interval))
    if last is not None:
        yield last


def _describe_interval(interval: Interval) -> str:
    """An interval in words: `%fusion.3, 12 us`."""
    name = f"%{interval.name}" if interval.name is not None else "behind the last"
    if interval.wait is not None:
        waited = f"%{interval.waits_for or (interval.collective or '').rpartition('/')[2] or interval.name}"
        name = f"waits {_WAITS_FOR[interval.wait]}{'' if interval.wait is WaitCause.LIMIT else f': {waited}'}"
    times = count_iterations(interval)
    count = find_iterations_bound(interval).marked(f"{times:,}")
    often = f", {count} times" if interval.runs and count not in ("0", "1") else ""
    along = f" along {' '.join(interval.links)}" if interval.links else ""
    return escape_line(f"{name}{often}{along}, {interval.bound.marked(format_time(interval.time_us))}")


_MOST_WAITS = 10
_WAITS = {
    WaitCause.COLLECTIVE: "waiting for collectives",
    WaitCause.HBM: "waiting for copies within the device",
    WaitCause.HOST: "waiting for the host and its copies",
    WaitCause.KERNEL: "waiting for other threads",
    WaitCause.LIMIT: "what memory or the matrix units take besides",
}


class _Line(NamedTuple):
    """A line of a table: a name, a time of the step, and how often it is spent."""

    name: str
    time_us: float
    bound: Bound
    times: str = ""


def render_timeline(found: Timeline, width: int) -> Iterator[Text]:
    """The step, its parts, the units and the longest waits."""
    inner = width - INDENT
    shown = found.bound.marked(format_time(found.step_us))
    yield from fold(Text(f"{found.target} on {found.slice}: {shown} a step", style="bold"), width)
    tables = (_list_parts(found), _list_units(found), _find_longest_waits(found))
    parts, units, waits = (_render_table(rows, found, inner) for rows in tables)
    yield from section("Where the time goes", parts, inner)
    yield from section("Busy time of each resource", units, inner)
    if waits:
        yield from section("Longest waits", waits, inner)
    yield from fold_all((make_legend([*parts, *units, *waits]),), width)
    yield from render_notes(dict.fromkeys(found.notes), inner)


def _render_table(rows: list[_Line], found: Timeline, width: int) -> list[Text]:
    def share(row: _Line) -> str:
        return format_share(row.time_us / found.step_us) if found.step_us > 0 else ""

    columns = (
        column(rows, "", lambda row: row.name),
        column(rows, "time", lambda row: row.bound.marked(format_time(row.time_us)), right=True),
        column(rows, "of the step", share, right=True),
        column(rows, "", lambda row: row.times, given_up=1),
    )
    return render_table(columns, width)


def _list_parts(found: Timeline) -> list[_Line]:
    waits = found.waits
    times = (waits.collective_us, waits.hbm_us, waits.host_us, waits.kernel_us, waits.limit_us)
    named = (("computing", found.computing_us), *zip(_WAITS.values(), times, strict=True))
    rows = [_Line(name, time_us, found.bound.of_part) for name, time_us in named]
    return [rows[0], *(row for row in rows[1:] if row.time_us > 0)]


def _list_units(found: Timeline) -> list[_Line]:
    """The busy time of each unit, overlaps included."""
    times: defaultdict[str, float] = defaultdict(float)
    for computation in found.computations:
        for interval in computation.intervals:
            if interval.wait is None and not (interval.unit is Unit.CORE and interval.runs):
                beside = 0 if interval.unit is Unit.CORE else computation.executions_beside
                name = f"{interval.unit.value} {' '.join(interval.links)}".rstrip()
                times[name] += (computation.executions + beside) * interval.time_us
    bound = found.bound.of_part
    return [_Line(name, time_us, bound) for name, time_us in times.items() if time_us > 0]


def _find_longest_waits(found: Timeline) -> list[_Line]:
    waits = []
    for computation in found.computations:
        count = computation.executions_bound.marked(f"{computation.executions:,}")
        times = "" if count == "1" else f"{count} times"
        for interval in computation.intervals:
            time_us = computation.executions * interval.time_us
            if interval.wait is not None and time_us > 0:
                bound = computation.executions_bound + interval.bound
                waits.append(_Line(_format_waited_for(interval), time_us, bound, times))
    return sorted(waits, key=lambda row: row.time_us, reverse=True)[:_MOST_WAITS]


def _format_waited_for(interval: Interval) -> str:
    if interval.wait is WaitCause.LIMIT:
        return _WAITS[WaitCause.LIMIT]
    if interval.collective is not None:
        return f"%{interval.collective.rpartition('/')[2]}"
    return f"%{interval.waits_for or interval.name}"
