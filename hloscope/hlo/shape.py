"""Shapes and layouts of HLO values, and their sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from hloscope.errors import HloscopeError
from hloscope.units import count_array_bytes, sum_known

UNBOUNDED = -1
"""The dimension that XLA prints as `?`."""

COMBINED = -1
"""The tile dimension that XLA prints as `*`: it is merged with the next more minor one before tiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The position of an array's elements in memory.

    Attributes:
        minor_to_major: Dimension numbers from the fastest-varying to the slowest.
        tiles: Tile dimensions, outermost tile first; `COMBINED` for `*`.
        memory_space: The memory space; 0 is the default memory (HBM on a TPU).
        element_size_in_bits: Bits of one stored element; 0 means the element type's own.
        other_items: The remaining items, such as `L(16)`, as printed.
    """

    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = 0
    element_size_in_bits: int = 0
    other_items: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The type of an HLO value: an array, a tuple, a token, an opaque value or a buffer.

    Attributes:
        element_type: XLA's name, such as `bf16`; `tuple`, `token`, `opaque` or `buffer`; `unknown` if the text omits
        the shape and it does not follow from the operands.
        dimensions: The sizes; the upper bound of a bounded dynamic dimension, `UNBOUNDED` for `?`.
        dynamic: Whether each dimension is dynamic.
        layout: The layout; None if the text states none.
        elements: The elements of a tuple; the content of a buffer.
    """

    element_type: str
    dimensions: tuple[int, ...] = ()
    dynamic: tuple[bool, ...] = ()
    layout: Layout | None = None
    elements: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        """True for a tuple, also an empty one."""
        return self.element_type == "tuple"

    @property
    def element_count(self) -> int:
        """Number of elements in the array, over all leaves of a tuple; a bounded dimension counts as its bound.

        Raises:
            HloscopeError: A dimension has no bound.
        """
        if self.elements:
            return sum(element.element_count for element in self.elements)
        if UNBOUNDED in self.dimensions:
            raise HloscopeError(f"the elements of {self} cannot be counted", why="a dimension has no bound")
        return 0 if self.is_tuple else prod(self.dimensions)

    @cached_property  # very many instructions share few shapes
    def byte_size(self) -> int | None:
        """Logical bytes without padding; None if the element type is unknown or a dimension has no bound."""
        if self.elements or self.is_tuple:
            return sum_known(element.byte_size for element in self.elements)
        if UNBOUNDED in self.dimensions:
            return None
        return count_array_bytes(self.element_type, prod(self.dimensions))

    @cached_property
    def padded_byte_size(self) -> int | None:
        """Bytes of the array in memory with its tiles; None if the logical size is unknown.

        Source: xla/layout.h and xla/shape_util.cc: each tile applies to the most minor physical dimensions that
        the one before leaves, rounding each up to a multiple of the tile.
        """
        if self.elements or self.is_tuple:
            return sum_known(element.padded_byte_size for element in self.elements)
        if self.byte_size is None or self.layout is None:
            return self.byte_size
        if any(0 in tile for tile in self.layout.tiles):
            return None  # XLA accepts such a tile without defining its meaning
        alignment = _find_tail_alignment(self.layout)
        count = -(-prod(_tile_dimensions(self.dimensions, self.layout)) // alignment) * alignment
        bits = self.layout.element_size_in_bits
        return -(-bits * count // 8) if bits else count_array_bytes(self.element_type, count)

    def leaves(self) -> Iterator[Shape]:
        """The arrays, tokens and buffers of a tuple in order; the shape itself if it is not a tuple."""
        if not self.is_tuple:
            yield self
        else:
            for element in self.elements:
                yield from element.leaves()

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        if self.element_type == "buffer":
            return f"b({self.elements[0]})"
        dimensions = zip(self.dimensions, self.dynamic, strict=True)
        return f"{self.element_type}[{','.join(_render_dimension_size(size, dynamic) for size, dynamic in dimensions)}]"


UNKNOWN_SHAPE = Shape(element_type="unknown")
"""The shape of an instruction whose text omits it, if it does not follow from the operands."""


def _render_dimension_size(size: int, dynamic: bool) -> str:
    if size == UNBOUNDED:
        return "?"
    return f"<={size}" if dynamic else str(size)


def _find_tail_alignment(layout: Layout) -> int:
    for item in layout.other_items:
        if item.startswith("L") and item[2:-1].strip().isdigit():
            return max(1, int(item[2:-1]))
    return 1


def _tile_dimensions(dimensions: tuple[int, ...], layout: Layout) -> list[int]:
    """Physical dimensions, major first, after every tile has been applied."""
    order = layout.minor_to_major if len(layout.minor_to_major) == len(dimensions) else range(len(dimensions))[::-1]
    physical = [dimensions[index] for index in reversed(order)]
    for tile in layout.tiles:
        physical = _apply_tile(physical, tile)
    return physical


def _apply_tile(physical: list[int], tile: tuple[int, ...]) -> list[int]:
    """Splits the most minor dimensions into whole tiles: `[16, 200]` by `(8, 128)` is `[2, 2, 8, 128]`."""
    padded = [1] * (len(tile) - len(physical)) + physical
    kept, tiled = padded[: len(padded) - len(tile)], padded[len(padded) - len(tile) :]
    outer: list[int] = []
    carried = 1
    for size, tile_size in zip(tiled, tile, strict=True):
        if tile_size == COMBINED:
            carried *= size
            continue
        outer.append(-(-carried * size // tile_size))
        carried = 1
    return [*kept, *outer, *(size for size in tile if size != COMBINED)]
