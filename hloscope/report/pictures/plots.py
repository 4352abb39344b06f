"""Plots of predicted times, as SVG: ways to shard a program by time and memory, and one program on several slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.suggestion import Suggestion, Suggestions
from hloscope.report.pictures import svg
from hloscope.report.price import Priced, Unpriced
from hloscope.report.suggestions import name_of
from hloscope.units import format_bytes, format_share, format_time, format_time_range

_WIDTH, _MARGIN, _LINE_HEIGHT = 720.0, 14.0, 17.0
_LEFT, _PLOT = 84.0, 260.0
_TICKS = 5
_BAR, _BAR_GAP, _NAME = 22.0, 12.0, 150.0
_NOT_KNOWN = "not drawn: a figure is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Numbers along a line.

    Attributes:
        least: The number at its beginning.
        most: The number at its end.
        begin: Where it begins.
        end: Where it ends.
    """

    least: float
    most: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a number stands."""
        share = (value - self.least) / (self.most - self.least) if self.most > self.least else 0.5
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> Iterator[float]:
        """Round numbers on it, some five."""
        rough = (self.most - self.least) / _TICKS or 1.0
        power = 10 ** floor(log10(rough))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
        for number in range(ceil(self.least / step), floor(self.most / step) + 1):
            yield number * step


def front_svg(found: Suggestions) -> str:
    """The program as it is written and the ways that nothing beats, by time and memory, as an SVG element."""
    return svg.written(front_plot(found))


def front_plot(found: Suggestions) -> svg.Element:
    """The same, not yet written."""
    ways = [found.own, *found.front]
    drawn = [way for way in ways if way.figures.step_us is not None and way.figures.hbm_bytes is not None]
    rows = len(ways) + 1
    title = f"{found.target} on {found.slice}: ways to shard it by time and memory"
    said = "; ".join(f"{number}: {_way_words(way)}" for number, way in enumerate(ways))
    bottom = _MARGIN + 2 * _LINE_HEIGHT + _PLOT
    root = svg.picture(_WIDTH, bottom + 2.6 * _LINE_HEIGHT + _LINE_HEIGHT * rows + _MARGIN, title, said)
    svg.label(root, _MARGIN, _MARGIN + 6, svg.cut_to(title, _WIDTH - 2 * _MARGIN, 14), size=14, font_weight="bold")
    if drawn:
        times = [time for way in drawn for time in (*(way.figures.step_us_range or ()), way.figures.step_us or 0.0)]
        sizes = [float(way.figures.hbm_bytes or 0) for way in drawn]
        across = _spread(times, _LEFT, _WIDTH - 2 * _MARGIN)
        down = _spread(sizes, bottom, _MARGIN + 2 * _LINE_HEIGHT)
        _draw_axes(root, across, down)
        for number, way in enumerate(ways):
            if way in drawn:
                _draw_way(root, way, number, across, down)
    for number, way in enumerate(ways):
        y = bottom + 3 * _LINE_HEIGHT + _LINE_HEIGHT * number
        words = f"{number}  {_way_words(way)}{'' if way in drawn else f', {_NOT_KNOWN}'}"
        weight = "bold" if way.is_worth_it else "normal"
        svg.label(root, _MARGIN, y, svg.cut_to(words, _WIDTH - 2 * _MARGIN), font_weight=weight)
    return root


def _spread(values: Sequence[float], begin: float, end: float) -> _Scale:
    """A line on which some numbers stand, with room on both sides."""
    least, most = min(values), max(values)
    room = 0.08 * (most - least) or 0.1 * most or 1.0
    return _Scale(least=max(least - room, 0.0), most=most + room, begin=begin, end=end)


def _way_words(way: Suggestion) -> str:
    figures = way.figures
    gain = ""
    if way.gain is not None and not way.is_own:
        gain = f", {format_share(abs(way.gain))} {'less' if way.gain >= 0 else 'more'}"
    kind = "as written" if way.is_own else f"{'better: ' if way.is_worth_it else ''}{name_of(way)}"
    fits = "" if way.fits else ", does not fit"
    return f"{kind}: {format_time(figures.step_us)}{gain}, {format_bytes(figures.hbm_bytes)} of HBM{fits}"


def _draw_axes(root: svg.Element, across: _Scale, down: _Scale) -> None:
    for value in across.ticks():
        x = across.at(value)
        _rule(root, (x, down.begin), (x, down.end))
        svg.label(root, x, down.begin + 14, format_time(value), anchor="middle", size=10, opacity=0.8)
    for value in down.ticks():
        y = down.at(value)
        _rule(root, (across.begin, y), (across.end, y))
        svg.label(root, across.begin - 6, y + 3, format_bytes(value), anchor="end", size=10, opacity=0.8)
    svg.label(root, across.end, down.begin + 28, "a step takes →", anchor="end", size=10.5)
    svg.label(root, _MARGIN, down.end - 6, "↑ memory of a device", size=10.5)


def _rule(root: svg.Element, begin: tuple[float, float], end: tuple[float, float]) -> None:
    (x1, y1), (x2, y2) = begin, end
    svg.add(root, "line", text=None, x1=x1, y1=y1, x2=x2, y2=y2, stroke=svg.LINE, stroke_opacity=0.18)


def _draw_way(root: svg.Element, way: Suggestion, number: int, across: _Scale, down: _Scale) -> None:
    """A point with the range of its time: round, a diamond for the program as it is written, filled where better."""
    x, y = across.at(way.figures.step_us or 0.0), down.at(float(way.figures.hbm_bytes or 0))
    group = svg.add(root, "g")
    svg.add(group, "title", text=f"{number}: {_way_words(way)}")
    if way.figures.step_us_range is not None:
        least, most = way.figures.step_us_range
        _draw_range(group, across.at(least), across.at(most), y)
    style: dict[str, str | float] = {"fill": svg.TINT, "stroke": svg.LINE, "stroke_width": 1.5}
    style["fill_opacity"] = 0.9 if way.is_worth_it else 0.15
    if way.is_own:
        corners = f"{svg.number(x - 7)},{svg.number(y)} {svg.number(x)},{svg.number(y - 7)} "
        corners += f"{svg.number(x + 7)},{svg.number(y)} {svg.number(x)},{svg.number(y + 7)}"
        svg.add(group, "polygon", text=None, points=corners, **style)
    else:
        svg.add(group, "circle", text=None, cx=x, cy=y, r=6.0, **style)
    svg.label(group, x + 9, y - 8, str(number), size=11, font_weight="bold")


def prices_svg(priced: Priced) -> str:
    """One program on several slices: what of its step is computed and what is waited for, as an SVG element."""
    return svg.written(prices_plot(priced))


def prices_plot(priced: Priced) -> svg.Element:
    """The same, not yet written."""
    title = f"{priced[0].target}: a step on each slice" if priced else "no slices"
    top = _MARGIN + 1.6 * _LINE_HEIGHT
    height = top + len(priced) * (_BAR + _BAR_GAP) + _LINE_HEIGHT + _MARGIN
    root = svg.picture(_WIDTH, height, title, "; ".join(map(_price_words, priced)))
    svg.label(root, _MARGIN, _MARGIN + 6, svg.cut_to(title, _WIDTH - 2 * _MARGIN, 14), size=14, font_weight="bold")
    longest = max((time.most_us for one in priced if isinstance(one, Analysis) and (time := one.time)), default=1.0)
    scale = _Scale(least=0.0, most=longest, begin=_MARGIN + _NAME, end=_WIDTH - _MARGIN - 170)
    for number, one in enumerate(priced):
        _draw_price(root, one, top + number * (_BAR + _BAR_GAP), scale.at)
    legend = "Filled: computing. Hatched: exposed collectives. The line below is the range of the step."
    svg.label(root, _MARGIN, height - _MARGIN, legend, size=10.5, opacity=0.8)
    return root


def _slice_name(one: Analysis | Unpriced) -> str:
    if isinstance(one, Unpriced):
        return one.slice_name
    return "no slice" if one.slice is None else one.slice.name


def _price_words(one: Analysis | Unpriced) -> str:
    if isinstance(one, Unpriced):
        return f"{_slice_name(one)}: {one.error.what}"
    if one.time is None:
        return f"{_slice_name(one)}: not priced"
    time = one.time
    step = time.bound.marked(format_time(time.step_us))
    between = f" ({format_time_range(time.least_us, time.most_us)})" if time.has_range else ""
    return f"{_slice_name(one)}: {step}{between}"


def _draw_price(root: svg.Element, one: Analysis | Unpriced, y: float, at: Callable[[float], float]) -> None:
    group = svg.add(root, "g")
    svg.add(group, "title", text=_price_words(one))
    svg.label(group, _MARGIN, y + _BAR * 0.68, svg.cut_to(_slice_name(one), _NAME - 8))
    time = one.time if isinstance(one, Analysis) else None
    if time is None:
        words = _price_words(one).partition(": ")[2]
        svg.label(group, at(0.0), y + _BAR * 0.68, svg.cut_to(words, _WIDTH - at(0.0) - _MARGIN), opacity=0.8)
        return
    computed, waited, end = at(time.compute_us), at(time.compute_us + time.exposed_us), at(time.step_us)
    svg.box(group, (at(0.0), y), (end - at(0.0), _BAR), fill="none", stroke_opacity=0.7)
    svg.box(group, (at(0.0), y), (computed - at(0.0), _BAR), fill=svg.TINT, fill_opacity=0.75, stroke="none")
    if waited > computed:
        lines = svg.hatch(computed, y, waited - computed, _BAR)
        svg.add(group, "path", text=None, d=lines, stroke=svg.LINE, stroke_opacity=0.8, fill="none")
    most = at(time.most_us)
    if time.has_range:
        _draw_range(group, at(time.least_us), most, y + _BAR + 4)
    words = f"{time.bound.marked(format_time(time.step_us))}, {format_time(time.exposed_us)} exposed"
    svg.label(group, max(end, most) + 8, y + _BAR * 0.68, words, size=11)


def _draw_range(root: svg.Element, least: float, most: float, y: float) -> None:
    """A line with ends, from the least to the most that something may be."""
    top = svg.number(y - 4)
    ends = f"M{svg.number(least)} {top}v8M{svg.number(most)} {top}v8"
    path = f"{ends}M{svg.number(least)} {svg.number(y)}H{svg.number(most)}"
    svg.add(root, "path", text=None, d=path, stroke=svg.LINE, stroke_opacity=0.6, fill="none")
