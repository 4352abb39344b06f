"""A predicted step as a strip: what computes, what is waited for, and what is on its way meanwhile; loops folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloscope.analysis.model.timeline import Interval, TimedComputation, Timeline, Unit, WaitCause
from hloscope.cost.unrolled import iterations_of, times_bound
from hloscope.report.escaping import plain_line
from hloscope.report.pictures import svg
from hloscope.units import format_share, format_time

_WIDTH, _LEFT, _MARGIN = 820.0, 118.0, 14.0
_LANE, _LINE_HEIGHT = 18.0, 17.0
_LEAST = 0.6
"""What is narrower is drawn together with what stands beside it."""
_NARROW = 3.0
"""What is narrower has neither an outline nor words."""
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
_WAITS = {
    WaitCause.COLLECTIVE: "for collectives",
    WaitCause.HBM: "for copies",
    WaitCause.HOST: "for the host",
    WaitCause.KERNEL: "for other threads",
    WaitCause.LIMIT: "for memory or the matrix units",
}


@dataclass(frozen=True, slots=True)
class _Bar:
    """What is drawn as one piece: from where to where, and what it is.

    Attributes:
        begin: Where it begins, in the picture.
        end: Where it ends.
        words: What it is.
        count: How many intervals it stands for.
    """

    begin: float
    end: float
    words: str
    count: int = 1


def timeline_svg(found: Timeline) -> str:
    """A step of a program, as an SVG element for a page or a file."""
    return svg.written(timeline_strip(found))


def timeline_strip(found: Timeline) -> svg.Element:
    """The same, not yet written."""
    strips = list(_strips(found))
    heights = [_LINE_HEIGHT * 1.4 + _LANE * (1 + len(_lanes(computation))) + 12 for computation, _ in strips]
    head = [f"{found.target} on {found.slice}: {found.bound.marked(format_time(found.step_us))} a step", *_said(found)]
    top = _MARGIN + _LINE_HEIGHT * (len(head) + 0.5)
    root = svg.picture(_WIDTH, top + sum(heights) + _LINE_HEIGHT + _MARGIN, head[0], " ".join(head[1:]))
    svg.label(root, _MARGIN, _MARGIN + 6, svg.cut_to(head[0], _WIDTH - 2 * _MARGIN, 14), size=14, font_weight="bold")
    for index, line in enumerate(head[1:], 1):
        svg.label(
            root, _MARGIN, _MARGIN + 6 + _LINE_HEIGHT * index, svg.cut_to(line, _WIDTH - 2 * _MARGIN), opacity=0.8
        )
    for (computation, words), height in zip(strips, heights, strict=True):
        _draw_strip(root, computation, words, top)
        top += height
    legend = "Filled: at work. Hatched: the core waits. Outlined: a loop or a branch, unfolded below where it is long."
    svg.label(root, _MARGIN, top + _LINE_HEIGHT * 0.7, legend, opacity=0.8)
    return root


def _said(found: Timeline) -> Iterator[str]:
    """Where the time goes, in words."""
    waits = found.waits
    parts = (
        ("computing", found.computing_us),
        ("exposed collectives", waits.collective_us),
        ("waiting for copies", waits.hbm_us),
        ("for the host", waits.host_us),
        ("for other threads", waits.kernel_us),
        ("what memory or the matrix units take besides", waits.limit_us),
    )
    shown = (f"{words} {_share(time_us, found)}" for words, time_us in parts if time_us > 0)
    yield ", ".join(shown)
    if found.hidden_us > 0:
        yield f"collectives hidden behind other work: {found.bound.of_part.marked(format_time(found.hidden_us))}"


def _share(time_us: float, found: Timeline) -> str:
    time = found.bound.of_part.marked(format_time(time_us))
    return f"{time} ({format_share(time_us / found.step_us)})" if found.step_us > 0 else "0 us"


def _strips(found: Timeline) -> Iterator[tuple[TimedComputation, str]]:
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
            yield computation, plain_line(f"%{computation.name}, {times}, {time}")


def _lanes(computation: TimedComputation) -> list[Unit]:
    """The units beside the core that work in a computation."""
    busy = {interval.unit for interval in computation.intervals if interval.time_us > 0}
    return [unit for unit in _LANES if unit in busy]


def _draw_strip(root: svg.Element, computation: TimedComputation, words: str, top: float) -> None:
    svg.label(root, _MARGIN, top + 10, svg.cut_to(words, _WIDTH - 2 * _MARGIN), font_weight="bold")
    top += _LINE_HEIGHT * 1.2
    core = [interval for interval in computation.intervals if interval.unit is Unit.CORE and interval.time_us > 0]
    _draw_lane(root, "core", top)
    for bar in _bars(computation, (interval for interval in core if interval.wait is None and not interval.runs)):
        _draw_bar(root, bar, top, fill=svg.TINT, fill_opacity=0.75)
    for bar in _bars(computation, (interval for interval in core if interval.wait is not None)):
        if bar.end - bar.begin < _NARROW:
            _draw_bar(root, bar, top, fill=svg.LINE, fill_opacity=0.35)
            continue
        group = _draw_bar(root, bar, top, fill="none", stroke_opacity=0.8)
        lines = svg.hatch(bar.begin, top + 2, max(bar.end - bar.begin, _LEAST), _LANE - 4, 5)
        svg.add(group, "path", text=None, d=lines, stroke=svg.LINE, stroke_opacity=0.8, fill="none")
    for bar in _bars(computation, (interval for interval in core if interval.runs)):
        group = _draw_bar(root, bar, top, fill=svg.TINT, fill_opacity=0.18, stroke_opacity=0.8)
        if svg.fits(bar.words, bar.end - bar.begin - 6, 10):
            svg.label(group, (bar.begin + bar.end) / 2, top + 13, bar.words, anchor="middle", size=10)
    for number, unit in enumerate(_lanes(computation), 1):
        _draw_lane(root, _LANES[unit], top + number * _LANE)
        for bar in _bars(computation, (interval for interval in computation.intervals if interval.unit is unit)):
            _draw_bar(root, bar, top + number * _LANE, fill=svg.LINE, fill_opacity=0.5)


def _draw_lane(root: svg.Element, name: str, top: float) -> None:
    svg.label(root, _LEFT - 8, top + 13, name, anchor="end", size=10.5, opacity=0.8)
    bottom = top + _LANE - 1
    ends = {"x1": _LEFT, "y1": bottom, "x2": _WIDTH - _MARGIN, "y2": bottom}
    svg.add(root, "line", text=None, **ends, stroke=svg.LINE, stroke_opacity=0.15)


def _draw_bar(root: svg.Element, bar: _Bar, top: float, **style: str | float) -> svg.Element:
    group = svg.add(root, "g")
    if bar.end - bar.begin >= _NARROW:
        more = f" and {bar.count - 1:,} more" if bar.count > 1 else ""
        svg.add(group, "title", text=f"{bar.words}{more}")
    style.setdefault("stroke", svg.LINE if "stroke_opacity" in style else "none")
    svg.box(group, (bar.begin, top + 2), (max(bar.end - bar.begin, _LEAST), _LANE - 4), **style)
    return group


def _bars(computation: TimedComputation, intervals: Iterable[Interval]) -> Iterator[_Bar]:
    """The intervals as they can be seen: what is too near to be told apart is one bar."""
    room = _WIDTH - _MARGIN - _LEFT
    whole_us = max((interval.end_us for interval in computation.intervals), default=0.0)
    whole_us = max(whole_us, computation.time_us)
    last: _Bar | None = None
    for interval in sorted(intervals, key=lambda interval: interval.begin_us):
        if interval.time_us <= 0:
            continue
        begin, end = (_LEFT + room * at_us / whole_us for at_us in (interval.begin_us, interval.end_us))
        if last is not None and begin - last.end < _LEAST and not interval.runs:
            last = _Bar(last.begin, max(last.end, end), last.words, last.count + 1)
            continue
        if last is not None:
            yield last
        last = _Bar(begin, end, _words(interval))
    if last is not None:
        yield last


def _words(interval: Interval) -> str:
    """What an interval is: `%fusion.3, 12 us`."""
    name = f"%{interval.name}" if interval.name is not None else "behind the last"
    if interval.wait is not None:
        waited = f"%{interval.waits_for or (interval.collective or '').rpartition('/')[2] or interval.name}"
        name = f"waits {_WAITS[interval.wait]}{'' if interval.wait is WaitCause.LIMIT else f': {waited}'}"
    times = iterations_of(interval)
    count = times_bound(interval).marked(f"{times:,}")
    often = f", {count} times" if interval.runs and count not in ("0", "1") else ""
    along = f" along {' '.join(interval.links)}" if interval.links else ""
    return plain_line(f"{name}{often}{along}, {interval.bound.marked(format_time(interval.time_us))}")
