"""Shapes by their text. Those that differ only in numbers are parsed once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hloscope.hlo.attribute_skeletons import Irregular, cut_numbers, has_comment, without_index_comments
from hloscope.hlo.language import language
from hloscope.hlo.records import ReadError
from hloscope.hlo.shape import Layout, Shape

_MOST_SHAPES = 1 << 15
"""Shapes that are kept for later lines; beyond it all are forgotten and read again."""

_MOST_ELEMENTS = 4096
"""Elements of a tuple that is put together here."""


class ShapeWords:
    """Shapes that have been read, by their text.

    Attributes:
        known: The shapes.
    """

    def __init__(self) -> None:
        self.known: dict[str, Shape] = {}
        self._templates: dict[tuple[str, ...], _ArrayTemplate | None] = {}
        self._tuples: set[int] = set()

    def read(self, text: str) -> Shape:
        """The shape that a text of nothing else says.

        Raises:
            ReadError: It does not follow the grammar.
            Irregular: It holds a comment.
        """
        found = self.known.get(text)
        if found is None:
            if has_comment(text):
                raise Irregular
            if len(self.known) >= _MOST_SHAPES:
                self.known.clear()
            read = self._tuple if text[:1] == "(" else self._array
            found = self.known[text] = read(text) or _parsed(text)
        return found

    def _tuple(self, text: str) -> Shape | None:
        """A tuple by its elements; None where they are tuples themselves, or not printed as usual."""
        inner = without_index_comments(text[1:-1])
        elements = inner.split(", ")
        if text[-1] != ")" or inner[:1] in ("", "(") or ", (" in inner or len(elements) > _MOST_ELEMENTS:
            return None
        try:
            found = tuple(map(self.read, elements))
        except ReadError:
            return None  # the error is that of the whole
        if len(elements) not in self._tuples:
            _parsed(f"({', '.join(['f32[]'] * len(elements))})")
            self._tuples.add(len(elements))
        return Shape(element_type="tuple", elements=found)

    def _array(self, text: str) -> Shape | None:
        parts = cut_numbers(text)
        key = tuple(parts[::2])
        if key not in self._templates:
            if len(self._templates) >= _MOST_SHAPES:
                self._templates.clear()
            self._templates[key] = _array_template(key)
        found = self._templates[key]
        return None if found is None else found.filled(list(map(int, parts[1::2])))


def _parsed(text: str) -> Shape:
    shape: Shape = language().read("shape", text).shape
    return shape


_FIRST_NUMBER = 101


class _ArrayTemplate(NamedTuple):
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


def _array_template(pieces: tuple[str, ...]) -> _ArrayTemplate | None:
    """The template of the arrays whose text has these pieces between its numbers; None where there is none.

    Every number is replaced by one of its own, so that the parse shows where each of them goes.

    Raises:
        ReadError: The pieces do not follow the grammar.
    """
    numbers = list(range(_FIRST_NUMBER, _FIRST_NUMBER + len(pieces) - 1))
    text = "".join(f"{piece}{number}" for piece, number in zip(pieces, numbers, strict=False)) + pieces[-1]
    example: Shape = language().read("shape", text).shape
    layout = example.layout
    found = _ArrayTemplate(example, () if layout is None else tuple(map(len, layout.tiles)))
    is_filled = not example.elements and (layout is None or not layout.other_items) and found.filled(numbers) == example
    return found if is_filled and _numbers_of(example) == numbers else None


def _numbers_of(shape: Shape) -> list[int]:
    layout = shape.layout
    if layout is None:
        return list(shape.dimensions)
    last = [number for number in (layout.element_size_in_bits, layout.memory_space) if number]
    return [*shape.dimensions, *layout.minor_to_major, *(size for tile in layout.tiles for size in tile), *last]
