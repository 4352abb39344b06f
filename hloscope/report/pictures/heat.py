"""Where the values of an output differ, as SVG: its blocks, darker the further they are off, hatched where wrong."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from hloscope.report.pictures import svg
from hloscope.units import plural
from hloscope.verification.model import ErrorMap

_WIDTH, _LEFT, _TOP = 560.0, 64.0, 30.0
_MAP, _LEAST, _LINE_HEIGHT = 460.0, 28.0, 20.0
_LEVELS = (
    (0.0, "no error", 0.0),
    (0.5, "up to half of what is allowed", 0.15),
    (1.0, "up to what is allowed", 0.3),
    (10.0, "wrong, up to 10 times what is allowed", 0.55),
    (inf, "wrong, beyond 10 times", 0.9),
)
"""The largest error of a level as a multiple of what is allowed, what that is, and how dark it is."""
_FIRST_WRONG = 3


def level_of(error: float) -> int:
    """The level of an error."""
    return next(number for number, (most, _, _) in enumerate(_LEVELS) if error <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A rectangle of blocks whose errors are of one level.

    Attributes:
        first: Row and column of its first block.
        last: Those of its last one.
        worst: Those of the one that is furthest off.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    worst: tuple[int, int]


def regions_of(found: ErrorMap) -> list[Region]:
    """What is wrong, in rectangles, the furthest off first; where nothing is, what is off at all."""
    levels = [[level_of(error) for error in row] for row in found.errors]
    wrong = [level for row in levels for level in row if level >= _FIRST_WRONG]
    least = _FIRST_WRONG if wrong else 1
    rows = [{(level, *run) for level in range(least, len(_LEVELS)) for run in _runs(line, level)} for line in levels]
    known: list[tuple[int, int, int, int]] = []
    begun: dict[tuple[int, int, int], int] = {}
    for number, (runs, below) in enumerate(zip(rows, [*rows[1:], set()], strict=True)):
        begun = {run: begun.get(run, number) for run in runs}
        known += [(begun[run], number, *run[1:]) for run in sorted(runs - below)]
    made = [_region(found, *place) for place in known]
    return sorted(made, key=lambda region: -found.errors[region.worst[0]][region.worst[1]])


def _region(found: ErrorMap, top: int, bottom: int, begin: int, end: int) -> Region:
    blocks = [(row, column) for row in range(top, bottom + 1) for column in range(begin, end)]
    worst = max(blocks, key=lambda block: found.errors[block[0]][block[1]])
    return Region(first=(top, begin), last=(bottom, end - 1), worst=worst)


def errors_plot(found: ErrorMap, name: str) -> svg.Element:
    """A map over an output: its last dimension across, all others down.

    Args:
        found: The largest error of each block.
        name: The output.
    """
    rows, columns = len(found.errors), len(found.errors[0])
    levels = [[level_of(error) for error in row] for row in found.errors]
    counts = [sum(row.count(number) for row in levels) for number in range(len(_LEVELS))]
    said = [f"{words}: {plural(count, 'block')}" for (_, words, _), count in zip(_LEVELS, counts, strict=True) if count]
    down, across = prod(found.shape[:-1]), found.shape[-1] if found.shape else 1
    height = max(_LEAST, min(_MAP, _MAP * down / across)) if down > 1 else _LEAST
    size = (_MAP / columns, height / rows)
    end = _TOP + height + 22
    root = svg.picture(_WIDTH, end + len(said) * _LINE_HEIGHT, f"Where {name} differs", "; ".join(said))
    for number, (_, _, dark) in enumerate(_LEVELS):
        if counts[number]:
            _draw_level(root, levels, number, size, dark)
    svg.box(root, (_LEFT, _TOP), (_MAP, height), fill="none", stroke_opacity=0.7)
    _draw_sides(root, found.shape, height)
    drawn = [number for number, count in enumerate(counts) if count]
    for line, number in enumerate(drawn):
        _draw_key(root, end + line * _LINE_HEIGHT, number, said[line])
    return root


def _draw_level(
    root: svg.Element, levels: list[list[int]], number: int, size: tuple[float, float], dark: float
) -> None:
    """The blocks of a level as one path, those beside each other as one rectangle; hatched where they are wrong."""
    width, height = size
    runs = [(row, begin, end) for row, line in enumerate(levels) for begin, end in _runs(line, number)]
    path = "".join(
        f"M{svg.number(_LEFT + begin * width)} {svg.number(_TOP + row * height)}"
        f"h{svg.number((end - begin) * width)}v{svg.number(height)}h{svg.number((begin - end) * width)}z"
        for row, begin, end in runs
    )
    if dark:
        svg.add(root, "path", text=None, d=path, fill=svg.TINT, fill_opacity=dark)
    if number >= _FIRST_WRONG:
        lines = "".join(
            svg.hatch(_LEFT + begin * width, _TOP + row * height, (end - begin) * width, height, 5)
            for row, begin, end in runs
        )
        svg.add(root, "path", text=None, d=lines, stroke=svg.LINE, stroke_opacity=0.75, fill="none")


def _runs(line: list[int], number: int) -> list[tuple[int, int]]:
    """From and to of what is of a level, side by side."""
    found: list[tuple[int, int]] = []
    for at, level in enumerate(line):
        if level == number and found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        elif level == number:
            found.append((at, at + 1))
    return found


def _draw_sides(root: svg.Element, shape: tuple[int, ...], height: float) -> None:
    """What lies across and down, with its number of elements."""
    across = f"dimension {len(shape) - 1}: {shape[-1]:,} elements →" if shape else "one element"
    svg.label(root, _LEFT, _TOP - 10, across, size=11, opacity=0.85)
    if len(shape) > 1:
        dimensions = "dimension 0" if len(shape) == 2 else f"dimensions 0 to {len(shape) - 2}"
        words = svg.cut_to(f"{dimensions}: {prod(shape[:-1]):,} ↓", max(height, 120), 11)
        turned = f"rotate(-90 {svg.number(_LEFT - 12)} {svg.number(_TOP + height)})"
        svg.label(root, _LEFT - 12, _TOP + height, words, size=11, opacity=0.85, transform=turned)


def _draw_key(root: svg.Element, y: float, number: int, words: str) -> None:
    svg.box(root, (_LEFT, y), (22, 13), fill=svg.TINT, fill_opacity=_LEVELS[number][2])
    if number >= _FIRST_WRONG:
        lines = svg.hatch(_LEFT, y, 22, 13, 5)
        svg.add(root, "path", text=None, d=lines, stroke=svg.LINE, stroke_opacity=0.75, fill="none")
    svg.label(root, _LEFT + 30, y + 11, words, size=11)
