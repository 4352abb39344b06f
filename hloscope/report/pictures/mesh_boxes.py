"""The mesh on the slice that it lies on, in characters: the chips with their devices, and the links between them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.analysis.vocabulary import Bound
from hloscope.cost.placed import PlacedMesh
from hloscope.report.layout import hanging
from hloscope.report.pictures.mesh_words import mesh_words
from hloscope.report.pictures.words import shown_places
from hloscope.report.words import BOUNDS_WORDS

_MOST_PLANES = 6
_BUSY_WORDS = "Bold links (━ ┃) carry something each step, thin ones nothing."
_ROUND_WORDS = "Links that stick out at the sides lead round to the other one."


def mesh_lines(placed: PlacedMesh, width: int) -> Iterator[Text]:
    """The mesh on its slice, as lines of text; the chips where they fit."""
    title, *said = mesh_words(placed)
    yield from hanging(Text(title, style="bold"), width)
    for words in said:
        yield from hanging(Text(words), width)
    columns, rows, count = (*placed.torus.shape, 1, 1)[:3]
    cell = max(len(_ids(placed, (column, row, 0))) for column in range(columns) for row in range(rows)) + 2
    if columns * (cell + 2) + 2 <= width:
        for z in shown_places(count, _MOST_PLANES):
            if z is not None:
                yield Text()
                yield from _plane(placed, z, cell)
        yield Text()
    for words in (*_legend(placed), *(f"{note[0].upper()}{note[1:].rstrip('.')}." for note in placed.notes)):
        yield from hanging(Text(words, style="dim"), width)


def _plane(placed: PlacedMesh, z: int, cell: int) -> Iterator[Text]:
    """The chips that have one place along the third axis."""
    columns, rows, count = (*placed.torus.shape, 1, 1)[:3]
    round_x = placed.torus.wraparound[0] and columns > 2
    if count > 1:
        yield Text(f"z={z}", style="dim")
    for y in range(rows):
        line = Text("━━" if round_x and _is_busy(placed, (columns - 1, y, z), 0) else "──" if round_x else "  ")
        for x in range(columns):
            line.append(_ids(placed, (x, y, z)).center(cell), style="reverse")
            if x < columns - 1 or round_x:
                line.append("━━" if _is_busy(placed, (x, y, z), 0) else "──")
        yield line
        if y < rows - 1:
            below = ("┃" if _is_busy(placed, (x, y, z), 1) else "│" for x in range(columns))
            yield Text("  " + "  ".join(mark.center(cell) for mark in below))


def _ids(placed: PlacedMesh, place: tuple[int, int, int]) -> str:
    """The devices of a chip."""
    cores = placed.torus.devices_per_chip
    first = _chip(placed, place) * cores
    return " ".join(map(str, range(first, first + cores)))


def _chip(placed: PlacedMesh, place: tuple[int, int, int]) -> int:
    columns, rows, _ = (*placed.torus.shape, 1, 1)[:3]
    x, y, z = place
    return (z * rows + y) * columns + x


def _is_busy(placed: PlacedMesh, place: tuple[int, int, int], axis: int) -> bool:
    traffic = placed.traffic
    return traffic is not None and max(traffic.bytes_between(_chip(placed, place), axis)) > 0


def _legend(placed: PlacedMesh) -> Iterator[str]:
    if placed.traffic is not None and placed.traffic.link_bytes.any():
        is_exact = placed.traffic.bound is Bound.EXACT
        yield _BUSY_WORDS if is_exact else f"{_BUSY_WORDS[:-1]} that is known."
        yield from () if is_exact else (BOUNDS_WORDS[placed.traffic.bound],)
    if placed.torus.wraparound[0] and placed.torus.shape[0] > 2:
        yield _ROUND_WORDS
