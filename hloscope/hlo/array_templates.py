"""Shapes of arrays that differ only in numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hloscope.hlo.language import language
from hloscope.hlo.shape import Layout, Shape

_FIRST_NUMBER = 101


class ArrayTemplate(NamedTuple):
    """An array's shape with places for its numbers.

    Attributes:
        example: A shape of this form, with other numbers.
        tiles: Dimensions of each tile.
    """

    example: Shape
    tiles: tuple[int, ...]

    def filled(self, numbers: list[int]) -> Shape:
        """The shape with these numbers, in printed order."""
        example, layout, rank = self.example, self.example.layout, len(self.example.dimensions)
        dimensions, rest = tuple(numbers[:rank]), numbers[rank:]
        if layout is None:
            return Shape(element_type=example.element_type, dimensions=dimensions, dynamic=example.dynamic)
        order, rest = tuple(rest[: len(layout.minor_to_major)]), rest[len(layout.minor_to_major) :]
        tiles = []
        for length in self.tiles:
            tiles.append(tuple(rest[:length]))
            rest = rest[length:]
        bits = rest.pop(0) if layout.element_size_in_bits else 0
        space = rest.pop(0) if layout.memory_space else 0
        filled = _layout(order, tuple(tiles), bits, space)
        return replace(example, dimensions=dimensions, layout=filled)


@lru_cache(maxsize=1 << 10)
def _layout(order: tuple[int, ...], tiles: tuple[tuple[int, ...], ...], bits: int, space: int) -> Layout:
    """A layout; the same few belong to very many shapes."""
    return Layout(minor_to_major=order, tiles=tiles, element_size_in_bits=bits, memory_space=space)


def array_template(pieces: tuple[str, ...]) -> ArrayTemplate | None:
    """The template of the arrays whose text has these pieces between its numbers; None where there is none.

    Every number is replaced by one of its own, so that the parse shows where each of them goes.

    Raises:
        ReadError: The pieces do not follow the grammar.
    """
    numbers = list(range(_FIRST_NUMBER, _FIRST_NUMBER + len(pieces) - 1))
    text = "".join(f"{piece}{number}" for piece, number in zip(pieces, numbers, strict=False)) + pieces[-1]
    example: Shape = language().read("shape", text).shape
    layout = example.layout
    found = ArrayTemplate(example, () if layout is None else tuple(map(len, layout.tiles)))
    is_filled = not example.elements and (layout is None or not layout.other_items) and found.filled(numbers) == example
    return found if is_filled and _numbers_of(example) == numbers else None


def _numbers_of(shape: Shape) -> list[int]:
    layout = shape.layout
    if layout is None:
        return list(shape.dimensions)
    last = [number for number in (layout.element_size_in_bits, layout.memory_space) if number]
    return [*shape.dimensions, *layout.minor_to_major, *(size for tile in layout.tiles for size in tile), *last]
