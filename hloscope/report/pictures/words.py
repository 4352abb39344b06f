"""The words of pictures: what is said of an array, the labels of its pieces and who holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from hloscope.analysis.shards import Grid, Shards
from hloscope.report.escaping import plain_line
from hloscope.units import array_bytes, format_bytes, plural

MOST_SHOWN = 16
"""Pieces along a dimension that are drawn one by one."""
_FIRST, _LAST = 4, 2
_LONGEST_LIST = 30


def shown_places(count: int, most: int = MOST_SHOWN) -> list[int | None]:
    """The pieces of a dimension that are drawn; None stands for those that are left out."""
    if count <= most:
        return list(range(count))
    last = min(_LAST, max(most // 3, 1))
    first = max(min(_FIRST, most - 1 - last), 1)
    return [*range(first), None, *range(count - last, count)]


_DETAILS = 4
WAYS_TO_FIT = tuple((detail, most) for detail in range(_DETAILS) for most in (MOST_SHOWN, 7, 5, 3))
"""How short labels are, and how many columns are drawn, from what shows most to what takes least room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """How the holders of a place can be written, in ever fewer letters."""

    devices: tuple[int, ...]
    are_addends: bool = False

    COUNTED: ClassVar[int] = _DETAILS - 1
    """The detail at which only their number is left."""

    def label(self, detail: int) -> str:
        """The holders in ever fewer letters, from 0, all of their numbers, to `COUNTED`, how many they are."""
        if not self.devices:
            return "nobody" if detail < self.COUNTED else "–"
        between = "+" if self.are_addends else ","
        whole = between.join(map(str, self.devices))
        if detail == 0 and len(whole) <= _LONGEST_LIST:
            return whole
        if detail <= 1:
            return ranges(self.devices)
        if detail == 2 or len(self.devices) == 1:
            return plural(len(self.devices), "device") if len(self.devices) > 1 else whole
        return f"×{len(self.devices)}"


def ranges(values: Sequence[int]) -> str:
    """Numbers in rising order in few letters: `0–7`, `0,2,…,14`, `0,1,4,5`."""
    steps = {after - before for before, after in pairwise(values)}
    if len(values) > 2 and steps == {1}:
        return f"{values[0]}–{values[-1]}"
    if len(values) > 4 and len(steps) == 1:
        return f"{values[0]},{values[1]},…,{values[-1]}"
    return ",".join(map(str, values))


def heading(shards: Shards) -> str:
    """`bf16[8192,2048]  P('X', None)`, the whole array and its sharding."""
    whole = "?" if shards.global_shape is None else ",".join(map(str, shards.global_shape))
    return f"{shards.dtype}[{whole}]  {shards.sharding or 'unknown sharding'}"


def described(shards: Shards, grid: Grid | None, *, with_mesh: bool = True) -> Iterator[str]:
    """What a drawing stands under: the mesh, what each device holds, and the dimensions that are seen, a line each."""
    sizes = " ".join(f"{name}={size}" for name, size in shards.axis_sizes.items())
    mesh = plain_line(f"on mesh {sizes}: ") if sizes and with_mesh else ""
    size = format_bytes(array_bytes(shards.dtype, prod(shards.local_shape)))
    yield f"{mesh}each device holds {shards.dtype}[{','.join(map(str, shards.local_shape))}], {size}"
    for arrow, dimension in (("↓", grid.rows), ("→", grid.columns)) if grid is not None else ():
        if dimension is not None:
            yield f"{arrow} {cut_words(shards, dimension)}"


def cut_words(shards: Shards, dimension: int) -> str:
    """`dimension 0: 8,192 in 4 pieces of 2,048 over X=4`."""
    cut = shards.cuts[dimension]
    said = f"dimension {dimension}: {cut.size:,}"
    if not cut.axes:
        return f"{said}, whole"
    over = ", ".join(shards.axis_words(axis) for axis in cut.axes)
    minor = ", the last fastest" if len(cut.axes) > 1 else ""
    return f"{said} in {plural(cut.pieces, 'piece')} of {cut.piece_size:,} over {over}{minor}"


def bounds_words(shards: Shards, dimension: int, piece: int) -> str:
    """`0:1024`, the elements of a piece."""
    return "{}:{}".format(*shards.cuts[dimension].bounds(piece))


def remarks(shards: Shards, grid: Grid, detail: int, *, with_mesh: bool = True) -> Iterator[str]:
    """What a picture does not show by itself, and what its labels mean, a sentence each."""
    if shards.copied_over:
        over = ", ".join(map(shards.axis_words, shards.copied_over))
        yield f"{plural(shards.copies, 'copy').replace('copys', 'copies')} of everything: replicated over {over}."
    if shards.unreduced:
        over = ", ".join(map(shards.axis_words, shards.unreduced))
        yield f"Not yet summed over {over}: its devices hold {shards.addends} different addends of each element (+)."
    for number in grid.hidden:
        cut = shards.cuts[number]
        if cut.pieces > 1:
            yield f"Not drawn, {cut_words(shards, number)}: {grid.shards_per_place} shards lie behind each other."
        else:
            yield f"Not drawn, {cut_words(shards, number)}."
    for number, cut in enumerate(shards.cuts):
        if cut.is_padded:
            padding = cut.pieces * cut.piece_size - cut.size
            yield f"Dimension {number} does not divide: {plural(padding, 'element')} of padding at its end (hatched)."
    if with_mesh:
        yield ids_words(shards)
    if detail >= Holders.COUNTED:
        yield "×4 stands for four devices."


def ids_words(shards: Shards) -> str:
    """What the numbers of devices are."""
    return {
        "device": "Numbers are device ids.",
        "place": "Numbers are places in the mesh, its last axis fastest.",
        "partition": "Numbers are partitions, as the program counts its devices.",
    }[shards.ids_are]
