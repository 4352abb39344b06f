"""Plots: times on several slices, ways to shard, measured against predicted, and where values differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor, inf, log10, prod

from hloscope.base.units import format_bytes, format_time, format_time_range, pluralize
from hloscope.measurement.model import MeasuredOperation, StepPart
from hloscope.model import Analysis, SliceFact, StepTime
from hloscope.model.trial import Suggestion, Suggestions
from hloscope.model.vocabulary import Bound
from hloscope.report.comparing import NOT_PREDICTED
from hloscope.report.pictures import svg
from hloscope.report.pictures.svg import LINE_HEIGHT, MARGIN
from hloscope.report.price import Priced, Unpriced, format_slice
from hloscope.report.suggestions import format_name
from hloscope.report.words import format_difference
from hloscope.verification.model import ErrorMap

_WIDTH = 720.0
_LEFT, _PLOT = 84.0, 260.0
_TICKS = 5
_BAR, _BAR_GAP, _NAME = 22.0, 12.0, 150.0
_TOP = MARGIN + LINE_HEIGHT
_BOTTOM = _TOP + _PLOT
_PART = 190.0
_MOST_POINTS = 400
_ASIDE = 30.0
"""Between slices of as many chips."""
_OF_SLICES = ("chips (log scale) →", "↑ a step takes (log scale)")
_OF_OPERATIONS = ("predicted (log scale) →", "↑ measured (log scale)")
_NOT_KNOWN = "not drawn: a figure is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Numbers along a line.

    Attributes:
        least: The number at its beginning.
        most: The number at its end.
        begin: Where it begins.
        end: Where it ends.
        powers: Whether each power of ten has as much of it as the next.
        marks: The labeled numbers; round ones if empty.
    """

    least: float
    most: float
    begin: float
    end: float
    powers: bool = False
    marks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """The position of a number."""
        least, most, here = (log10(each) if self.powers else each for each in (self.least, self.most, value))
        share = (here - least) / (most - least) if most > least else 0.5
        return self.begin + share * (self.end - self.begin)

    def list_ticks(self) -> Iterator[float]:
        """About five round numbers; on a logarithmic scale powers of ten, with steps between if they are few."""
        if self.marks:
            yield from self.marks
            return
        if self.powers:
            powers = range(floor(log10(self.least)), floor(log10(self.most)) + 1)
            steps = (1, 2, 5) if len(powers) < _TICKS else (1,)
            numbers = (step * 10.0**power for power in powers for step in steps)
            yield from (number for number in numbers if self.least <= number <= self.most)
            return
        rough = (self.most - self.least) / _TICKS or 1.0
        power = 10 ** floor(log10(rough))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
        for number in range(ceil(self.least / step), floor(self.most / step) + 1):
            yield number * step


def draw_front(found: Suggestions) -> svg.Element:
    """The program as written and the Pareto front of shardings, by time and memory."""
    ways = [found.own, *found.front]
    drawn = [way for way in ways if way.figures.step_us is not None and way.figures.hbm_bytes is not None]
    rows = len(ways) + 1
    title = f"{found.target} on {found.slice}: shardings by time and memory"
    said = "; ".join(f"{number}: {_describe_way(found, way)}" for number, way in enumerate(ways))
    bottom = MARGIN + 2 * LINE_HEIGHT + _PLOT
    root = svg.make_picture(_WIDTH, bottom + 2.6 * LINE_HEIGHT + LINE_HEIGHT * rows + MARGIN, title, said)
    svg.add_title(root, title, _WIDTH)
    if drawn:
        times = [time for way in drawn for time in (*(way.figures.step_us_range or ()), way.figures.step_us or 0.0)]
        sizes = [float(way.figures.hbm_bytes or 0) for way in drawn]
        across = _make_scale(times, _LEFT, _WIDTH - 2 * MARGIN)
        down = _make_scale(sizes, bottom, MARGIN + 2 * LINE_HEIGHT)
        _draw_axes(root, across, down, (format_time, format_bytes), ("a step takes →", "↑ memory of a device"))
        for number, way in enumerate(ways):
            if way in drawn:
                _draw_way(root, found, number, across, down)
    for number, way in enumerate(ways):
        y = bottom + 3 * LINE_HEIGHT + LINE_HEIGHT * number
        words = f"{number}  {_describe_way(found, way)}{'' if way in drawn else f', {_NOT_KNOWN}'}"
        weight = "bold" if way.is_worth_it else "normal"
        svg.label(root, MARGIN, y, svg.cut_to(words, _WIDTH - 2 * MARGIN), font_weight=weight)
    return root


def _make_scale(values: Sequence[float], begin: float, end: float) -> _Scale:
    """A linear scale for some numbers, with room on both sides."""
    least, most = min(values), max(values)
    room = 0.08 * (most - least) or 0.1 * most or 1.0
    return _Scale(least=max(least - room, 0.0), most=most + room, begin=begin, end=end)


def _describe_way(found: Suggestions, way: Suggestion) -> str:
    difference = "" if way.is_own else format_difference(found.own.figures, way.figures)
    kind = "as written" if way.is_own else f"{'better: ' if way.is_worth_it else ''}{format_name(way)}"
    fits = "" if way.fits else ", does not fit"
    cost = (way.figures.step_words, difference, f"{format_bytes(way.figures.hbm_bytes)} of HBM")
    return f"{kind}: {', '.join(filter(None, cost))}{fits}"


def _draw_axes(
    root: svg.Element,
    across: _Scale,
    down: _Scale,
    shown: tuple[Callable[[float], str], Callable[[float], str]],
    words: tuple[str, str],
) -> None:
    """Labels and lines for round numbers across and down, and the titles of both axes."""
    for value in across.list_ticks():
        x = across.at(value)
        svg.add_line(root, (x, down.begin), (x, down.end), stroke=svg.LINE, stroke_opacity=0.18)
        svg.label(root, x, down.begin + 14, shown[0](value), anchor="middle", size=10, opacity=0.8)
    for value in down.list_ticks():
        y = down.at(value)
        svg.add_line(root, (across.begin, y), (across.end, y), stroke=svg.LINE, stroke_opacity=0.18)
        svg.label(root, across.begin - 6, y + 3, shown[1](value), anchor="end", size=10, opacity=0.8)
    svg.label(root, across.end, down.begin + 28, words[0], anchor="end", size=10.5)
    svg.label(root, MARGIN, down.end - 6, words[1], size=10.5)


def _draw_way(root: svg.Element, found: Suggestions, number: int, across: _Scale, down: _Scale) -> None:
    """A point with the range of its time: a diamond for the program as written, a filled circle if better."""
    way = found.front[number - 1] if number else found.own
    x, y = across.at(way.figures.step_us or 0.0), down.at(float(way.figures.hbm_bytes or 0))
    group = svg.add(root, "g")
    svg.add(group, "title", text=f"{number}: {_describe_way(found, way)}")
    if way.figures.step_us_range is not None:
        least, most = way.figures.step_us_range
        _draw_range(group, across.at(least), across.at(most), y)
    style: dict[str, str | float] = {"fill": svg.TINT, "stroke": svg.LINE, "stroke_width": 1.5}
    style["fill_opacity"] = 0.9 if way.is_worth_it else 0.15
    if way.is_own:
        corners = ((x - 7, y), (x, y - 7), (x + 7, y), (x, y + 7))
        points = " ".join(f"{svg.number(left)},{svg.number(top)}" for left, top in corners)
        svg.add(group, "polygon", text=None, points=points, **style)
    else:
        svg.add(group, "circle", text=None, cx=x, cy=y, r=6.0, **style)
    svg.label(group, x + 9, y - 8, str(number), size=11, font_weight="bold")


def draw_prices(priced: Priced) -> svg.Element:
    """The step of a program on several slices, split into computing and waiting."""
    title = f"{priced[0].target}: a step on each slice" if priced else "no slices"
    top = MARGIN + 1.6 * LINE_HEIGHT
    height = top + len(priced) * (_BAR + _BAR_GAP) + LINE_HEIGHT + MARGIN
    root = svg.make_picture(_WIDTH, height, title, "; ".join(map(_describe_price, priced)))
    svg.add_title(root, title, _WIDTH)
    longest = max((time.most_us for one in priced if isinstance(one, Analysis) and (time := one.time)), default=1.0)
    scale = _Scale(least=0.0, most=longest, begin=MARGIN + _NAME, end=_WIDTH - MARGIN - 170)
    for number, one in enumerate(priced):
        _draw_price(root, one, top + number * (_BAR + _BAR_GAP), scale.at)
    legend = "Filled: computing. Hatched: exposed collectives."
    if any(isinstance(one, Analysis) and one.time is not None and one.time.has_range for one in priced):
        legend += " The line below is the range of the step."
    svg.label(root, MARGIN, height - MARGIN, legend, size=10.5, opacity=0.8)
    return root


def _describe_price(one: Analysis | Unpriced) -> str:
    if isinstance(one, Unpriced):
        return f"{format_slice(one)}: {one.error.what}"
    if one.time is None:
        return f"{format_slice(one)}: not priced"
    time = one.time
    step = time.bound.marked(format_time(time.step_us))
    between = f" ({format_time_range(time.least_us, time.most_us)})" if time.has_range else ""
    return f"{format_slice(one)}: {step}{between}"


def _draw_price(root: svg.Element, one: Analysis | Unpriced, y: float, at: Callable[[float], float]) -> None:
    group = svg.add(root, "g")
    svg.add(group, "title", text=_describe_price(one))
    svg.label(group, MARGIN, y + _BAR * 0.68, svg.cut_to(format_slice(one), _NAME - 8))
    time = one.time if isinstance(one, Analysis) else None
    if time is None:
        words = _describe_price(one).partition(": ")[2]
        svg.label(group, at(0.0), y + _BAR * 0.68, svg.cut_to(words, _WIDTH - at(0.0) - MARGIN), opacity=0.8)
        return
    computed, waited, end = at(time.compute_us), at(time.compute_us + time.exposed_us), at(time.step_us)
    svg.box(group, (at(0.0), y), (end - at(0.0), _BAR), fill="none", stroke_opacity=0.7)
    svg.box(group, (at(0.0), y), (computed - at(0.0), _BAR), fill=svg.TINT, fill_opacity=0.75, stroke="none")
    if waited > computed:
        svg.add_path(group, svg.hatch(computed, y, waited - computed, _BAR), 0.8)
    most = at(time.most_us) if time.has_range else end
    if time.has_range:
        _draw_range(group, at(time.least_us), most, y + _BAR + 4)
    exposed = time.bound.of_part.marked(format_time(time.exposed_us))
    words = f"{time.bound.marked(format_time(time.step_us))}, {exposed} exposed"
    svg.label(group, max(end, most) + 8, y + _BAR * 0.68, words, size=11)


def draw_chips(priced: Priced) -> svg.Element:
    """The step by chips on several slices, with the ideal line of equal chip time."""
    known = [
        (one, one.slice, one.time)
        for one in priced
        if isinstance(one, Analysis) and one.slice is not None and one.time is not None and one.time.step_us > 0
    ]
    title = "A step by the number of chips"
    root = svg.make_picture(_WIDTH, _BOTTOM + 2.6 * LINE_HEIGHT, title, "; ".join(map(_describe_price, priced)))
    if not known:
        return root
    chips, spans = [where.chips for _, where, _ in known], [each for *_, time in known for each in _find_span(time)]
    across = _make_log_scale([float(count) for count in chips], _LEFT, _WIDTH - 2 * MARGIN)
    across = replace(across, marks=tuple(map(float, sorted(set(chips)))))
    down = _make_log_scale(spans, _BOTTOM, _TOP)
    _draw_axes(root, across, down, (lambda value: f"{value:g}", format_time), _OF_SLICES)
    for generation in dict.fromkeys(where.chip for _, where, _ in known):
        _draw_ideal(root, [(where, time) for _, where, time in known if where.chip == generation], across, down)
    for number, (one, where, _) in enumerate(known):
        beside = [place for place, (_, other, _) in enumerate(known) if other.chips == where.chips]
        aside = beside.index(number) - (len(beside) - 1) / 2
        group = svg.add(root, "g")
        svg.add(group, "title", text=_describe_price(one))
        _draw_slice(group, one, across.at(where.chips) + _ASIDE * aside, down, is_left=aside < 0)
    return root


def _make_log_scale(values: Sequence[float], begin: float, end: float, *, room: float = 1.25) -> _Scale:
    """A logarithmic scale for some numbers, with a factor of room on both sides."""
    return _Scale(least=min(values) / room, most=max(values) * room, begin=begin, end=end, powers=True)


def _find_span(time: StepTime) -> tuple[float, float]:
    """The range of a step; the step itself if it has no range."""
    return (time.least_us, time.most_us) if time.has_range else (time.step_us, time.step_us)


def _make_upright(x: float, begin: float, end: float) -> str:
    """The path of a vertical range with ends."""
    left, low, high = svg.number(x - 4), svg.number(begin), svg.number(end)
    return f"M{left} {low}h8M{left} {high}h8M{svg.number(x)} {low}V{high}"


def _draw_slice(root: svg.Element, one: Analysis, x: float, down: _Scale, *, is_left: bool) -> None:
    """A round point with the range of its time; a cross if the program does not fit."""
    assert one.time is not None
    y, (least, most) = down.at(one.time.step_us), _find_span(one.time)
    if least < most:
        line = _make_upright(x, down.at(least), down.at(most))
        svg.add(root, "path", d=line, stroke=svg.LINE, fill="none")
    is_exact = one.time.bound is Bound.EXACT
    said = [format_slice(one), *([] if is_exact else [one.time.bound.marked(format_time(one.time.step_us))])]
    if one.memory.fits is False:
        svg.add(root, "path", text=None, d=f"M{svg.number(x - 6)} {svg.number(y - 6)}l12 12m0 -12l-12 12", **_CROSS)
        said.append("does not fit")
    else:
        svg.add(root, "circle", text=None, cx=x, cy=y, r=6.0, fill=svg.TINT, stroke=svg.LINE)
    words = ", ".join(said)
    room = x - 10 - _LEFT if is_left else _WIDTH - x - 10
    goes_left = is_left if svg.fits(words, room, 11) else not is_left
    away, anchor = (-10, "end") if goes_left else (10, "start")
    svg.label(root, x + away, y - 6, words, anchor=anchor, size=11)


_CROSS: dict[str, str | float] = {"stroke": svg.LINE, "stroke_width": 2.5, "fill": "none"}


def has_ideal(priced: Priced) -> bool:
    """True if a plot has a line of equal chip time: slices of one generation differ in chips."""
    known = [one.slice for one in priced if isinstance(one, Analysis) and one.time is not None]
    slices = {(where.chip, where.chips) for where in known if where is not None}
    return len(slices) > len({chip for chip, _ in slices})


def _draw_ideal(root: svg.Element, known: Sequence[tuple[SliceFact, StepTime]], across: _Scale, down: _Scale) -> None:
    """The line of equal chip time, from the fewest chips of a generation on."""
    fewest, time = min(known, key=lambda one: (one[0].chips, one[1].step_us))
    most = max(where.chips for where, _ in known)
    last = min(float(most), fewest.chips * time.step_us / down.least)
    if last > fewest.chips:
        begin = across.at(fewest.chips), down.at(time.step_us)
        end = across.at(last), down.at(time.step_us * fewest.chips / last)
        svg.add_line(root, begin, end, stroke=svg.LINE, stroke_opacity=0.55, stroke_dasharray="5 5")


def draw_parts(parts: Sequence[StepPart]) -> svg.Element:
    """The parts of a step, each as measured and, below that, as predicted."""
    title = "Where the step's time goes, measured and predicted"
    said = "; ".join(
        f"{part.part}: {format_time(part.measured_us)} measured, "
        + (NOT_PREDICTED if part.predicted_us is None else f"{format_time(part.predicted_us)} predicted")
        for part in parts
    )
    row = _BAR + _BAR_GAP
    root = svg.make_picture(_WIDTH, 2 * MARGIN + len(parts) * row + LINE_HEIGHT, title, said)
    longest = max((max(part.measured_us, part.predicted_us or 0.0) for part in parts), default=1.0) or 1.0
    scale = _Scale(least=0.0, most=longest, begin=MARGIN + _PART, end=_WIDTH - MARGIN - 90)
    for number, part in enumerate(parts):
        y = MARGIN + number * row
        svg.label(root, MARGIN, y + _BAR * 0.68, svg.cut_to(part.part, _PART - 8))
        for value, below, solid in ((part.measured_us, 0.0, 0.8), (part.predicted_us, _BAR / 2, 0.15)):
            begin, end = scale.at(0.0), scale.at(value or 0.0)
            svg.box(root, (begin, y + below), (end - begin, _BAR / 2), fill=svg.TINT, fill_opacity=solid)
            words = NOT_PREDICTED if value is None else format_time(value)
            svg.label(root, end + 6, y + below + 9, words, size=10)
    legend = "Filled: measured. Pale: predicted."
    svg.label(root, MARGIN, MARGIN + len(parts) * row + 8, legend, size=10.5, opacity=0.8)
    return root


def draw_measured(operations: Sequence[MeasuredOperation]) -> svg.Element:
    """Operations by predicted and measured time, which agree on the line."""
    title = "Operations: predicted and measured time per step"
    known = (one for one in operations if one.measured_us > 0 and one.predicted_us)
    drawn = sorted(known, key=lambda one: one.measured_us, reverse=True)[:_MOST_POINTS]
    said = f"{len(drawn)} operations, all in the table below"
    root = svg.make_picture(_WIDTH, _BOTTOM + 2.6 * LINE_HEIGHT, title, said)
    if not drawn:
        return root
    times = [time for one in drawn for time in (one.measured_us, one.predicted_us or 0.0)]
    across = _make_log_scale(times, _LEFT, _WIDTH - 2 * MARGIN, room=2.5)  # so that the lines of half and twice fit
    down = _make_log_scale(times, _BOTTOM, _TOP, room=2.5)
    _draw_axes(root, across, down, (format_time, format_time), _OF_OPERATIONS)
    for factor, dashes in ((1.0, "none"), (2.0, "5 5"), (0.5, "5 5")):
        _draw_factor(root, factor, dashes, across, down)
    for one in drawn:
        _draw_operation(root, one, across, down)
    return root


def _draw_factor(root: svg.Element, factor: float, dashes: str, across: _Scale, down: _Scale) -> None:
    """The line on which measured times are a multiple of predicted ones."""
    ends = (max(across.least, down.least / factor), min(across.most, down.most / factor))
    x1, x2 = (across.at(end) for end in ends)
    y1, y2 = (down.at(end * factor) for end in ends)
    place = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    svg.add(root, "line", text=None, stroke=svg.LINE, stroke_opacity=0.5, stroke_dasharray=dashes, **place)


def _draw_operation(root: svg.Element, one: MeasuredOperation, across: _Scale, down: _Scale) -> None:
    """A point: round, a square for communication."""
    x, y = across.at(one.predicted_us or 0.0), down.at(one.measured_us)
    words = f"{one.name}: {format_time(one.measured_us)} measured, {format_time(one.predicted_us)} predicted"
    style: dict[str, str | float] = {"fill": svg.TINT, "fill_opacity": 0.5, "stroke": svg.LINE, "stroke_opacity": 0.7}
    if one.activity == "computing":
        point = svg.add(root, "circle", text=None, cx=x, cy=y, r=4.0, **style)
    else:
        point = svg.add(root, "rect", text=None, x=x - 4, y=y - 4, width=8.0, height=8.0, **style)
    svg.add(point, "title", text=words)


def _draw_range(root: svg.Element, least: float, most: float, y: float) -> None:
    """A horizontal range with ends."""
    top = svg.number(y - 4)
    ends = f"M{svg.number(least)} {top}v8M{svg.number(most)} {top}v8"
    path = f"{ends}M{svg.number(least)} {svg.number(y)}H{svg.number(most)}"
    svg.add_path(root, path, 0.6)


_MAP_WIDTH, _MAP_LEFT, _MAP_TOP = 560.0, 64.0, 30.0
_MAP, _LEAST, _KEY_HEIGHT = 460.0, 28.0, 20.0
_LEVELS = (
    (0.0, "no error", 0.0),
    (0.5, "up to half of what is allowed", 0.15),
    (1.0, "up to what is allowed", 0.3),
    (10.0, "wrong, up to 10 times what is allowed", 0.55),
    (inf, "wrong, beyond 10 times", 0.9),
)
"""The largest error of each level as a multiple of the allowed error, its words, and its opacity."""
_FIRST_WRONG = 3


def find_level(error: float) -> int:
    """The level of an error."""
    return next(number for number, (most, _, _) in enumerate(_LEVELS) if error <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A rectangle of blocks whose errors are of one level.

    Attributes:
        first: Row and column of its first block.
        last: Those of its last one.
        worst: Row and column of the block with the largest error.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    worst: tuple[int, int]


def find_regions(found: ErrorMap) -> list[Region]:
    """The wrong blocks as rectangles, largest error first; if none is wrong, those with any error."""
    levels = [[find_level(error) for error in row] for row in found.errors]
    wrong = [level for row in levels for level in row if level >= _FIRST_WRONG]
    least = _FIRST_WRONG if wrong else 1
    rows = [{run for run in _find_runs(line) if run[0] >= least} for line in levels]
    known: list[tuple[int, int, int, int]] = []
    begun: dict[tuple[int, int, int], int] = {}
    for number, (runs, below) in enumerate(zip(rows, [*rows[1:], set()], strict=True)):
        begun = {run: begun.get(run, number) for run in runs}
        known += [(begun[run], number, *run[1:]) for run in sorted(runs - below)]
    made = [_make_region(found, *place) for place in known]
    return sorted(made, key=lambda region: -found.errors[region.worst[0]][region.worst[1]])


def _make_region(found: ErrorMap, top: int, bottom: int, begin: int, end: int) -> Region:
    blocks = [(row, column) for row in range(top, bottom + 1) for column in range(begin, end)]
    worst = max(blocks, key=lambda block: found.errors[block[0]][block[1]])
    return Region(first=(top, begin), last=(bottom, end - 1), worst=worst)


def draw_errors(found: ErrorMap, name: str) -> svg.Element:
    """A map over an output: its last dimension across, all others down.

    Args:
        found: The largest error of each block.
        name: The output.
    """
    rows, columns = len(found.errors), len(found.errors[0])
    levels = [[find_level(error) for error in row] for row in found.errors]
    counts = Counter(level for row in levels for level in row)
    said = {number: f"{_LEVELS[number][1]}: {pluralize(counts[number], 'block')}" for number in sorted(counts)}
    down, across = prod(found.shape[:-1]), found.shape[-1] if found.shape else 1
    height = max(_LEAST, min(_MAP, _MAP * down / across)) if down > 1 else _LEAST
    size = (_MAP / columns, height / rows)
    end = _MAP_TOP + height + 22
    root = svg.make_picture(
        _MAP_WIDTH, end + len(said) * _KEY_HEIGHT, f"Where {name} differs", "; ".join(said.values())
    )
    for number in said:
        _draw_level(root, levels, number, size)
    svg.box(root, (_MAP_LEFT, _MAP_TOP), (_MAP, height), fill="none", stroke_opacity=0.7)
    _draw_sides(root, found.shape, height)
    for line, (number, words) in enumerate(said.items()):
        _draw_key(root, end + line * _KEY_HEIGHT, number, words)
    return root


def _draw_level(root: svg.Element, levels: list[list[int]], number: int, size: tuple[float, float]) -> None:
    """Draws the blocks of a level as one path, adjacent ones as one rectangle, hatched if wrong."""
    width, height = size
    dark = _LEVELS[number][2]
    found = ((row, *run) for row, line in enumerate(levels) for run in _find_runs(line))
    runs = [(row, begin, end) for row, level, begin, end in found if level == number]
    path = "".join(
        f"M{svg.number(_MAP_LEFT + begin * width)} {svg.number(_MAP_TOP + row * height)}"
        f"h{svg.number((end - begin) * width)}v{svg.number(height)}h{svg.number((begin - end) * width)}z"
        for row, begin, end in runs
    )
    if dark:
        svg.add(root, "path", text=None, d=path, fill=svg.TINT, fill_opacity=dark)
    if number >= _FIRST_WRONG:
        lines = "".join(
            svg.hatch(_MAP_LEFT + begin * width, _MAP_TOP + row * height, (end - begin) * width, height, 5)
            for row, begin, end in runs
        )
        svg.add_path(root, lines, 0.75)


def _find_runs(line: list[int]) -> Iterator[tuple[int, int, int]]:
    """The runs of adjacent blocks of one level: that level, the first block, and the one after the last."""
    end = 0
    for level, blocks in groupby(line):
        begin, end = end, end + len(list(blocks))
        yield level, begin, end


def _draw_sides(root: svg.Element, shape: tuple[int, ...], height: float) -> None:
    """Labels both sides with their dimensions and numbers of elements."""
    across = f"dimension {len(shape) - 1}: {shape[-1]:,} elements →" if shape else "one element"
    svg.label(root, _MAP_LEFT, _MAP_TOP - 10, across, size=11, opacity=0.85)
    if len(shape) > 1:
        dimensions = "dimension 0" if len(shape) == 2 else f"dimensions 0 to {len(shape) - 2}"
        words = svg.cut_to(f"{dimensions}: {prod(shape[:-1]):,} ↓", max(height, 120), 11)
        turned = f"rotate(-90 {svg.number(_MAP_LEFT - 12)} {svg.number(_MAP_TOP + height)})"
        svg.label(root, _MAP_LEFT - 12, _MAP_TOP + height, words, size=11, opacity=0.85, transform=turned)


def _draw_key(root: svg.Element, y: float, number: int, words: str) -> None:
    svg.box(root, (_MAP_LEFT, y), (22, 13), fill=svg.TINT, fill_opacity=_LEVELS[number][2])
    if number >= _FIRST_WRONG:
        svg.add_path(root, svg.hatch(_MAP_LEFT, y, 22, 13, 5), 0.75)
    svg.label(root, _MAP_LEFT + 30, y + 11, words, size=11)
