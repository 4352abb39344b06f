"""Which blocks of chips one slice may have, and which of them come near a block that it may not have.

libtpu cannot answer this: it lays out any block, `v5e:6x6` included, so the answer is a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod

from hloscope.hardware.chip_model import Chip

Shape = tuple[int, ...]

CUBE_EDGE = 4
"""Chips along the edge of the cube that larger 3D slices are made of. Source: Google Cloud, TPU v4 and v5p pages."""


@lru_cache(maxsize=16)
def slice_shapes(chip: Chip) -> tuple[Shape, ...]:
    """Every block of `chip` in one orientation: fewest chips first, then the most cube-like.

    3D generations offer 4A x 4B x 4C with A <= B <= C up to their largest slice, besides the blocks below one cube.
    """
    shapes = (*chip.slice_shapes, *(_cuboids(chip.max_slice_chips) if chip.torus_dimensions == 3 else ()))
    return tuple(sorted(shapes, key=lambda shape: (prod(shape), sum(shape))))


def _cuboids(max_chips: int) -> Iterator[Shape]:
    cubes = max_chips // CUBE_EDGE**3
    for first in range(1, cubes + 1):
        for second in range(first, cubes // first + 1):
            for third in range(second, cubes // (first * second) + 1):
                yield (CUBE_EDGE * first, CUBE_EDGE * second, CUBE_EDGE * third)


def is_slice_shape(chip: Chip, shape: Shape) -> bool:
    """Whether `chip` comes in blocks of `shape`, in this or any other orientation."""
    return tuple(sorted(shape)) in {tuple(sorted(known)) for known in slice_shapes(chip)}


def shape_with(chip: Chip, chip_count: int) -> Shape | None:
    """The block with exactly `chip_count` chips, the most cube-like of several; None when there is none.

    Source: Google Cloud, "TPU types and topologies": the default for a chip count is the most cube-like block.
    """
    return next((shape for shape in slice_shapes(chip) if prod(shape) == chip_count), None)


def shape_for_at_least(chip: Chip, chip_count: int) -> Shape | None:
    """The smallest block with `chip_count` chips or more; None when even the largest slice is too small."""
    return next((shape for shape in slice_shapes(chip) if prod(shape) >= chip_count), None)


def nearest_shapes(chip: Chip, chip_count: int, shape: Shape | None = None, limit: int = 3) -> tuple[Shape, ...]:
    """The blocks nearest to a wish: by number of chips, then by how much their edges differ.

    Args:
        chip: The generation.
        chip_count: Chips wished for.
        shape: The edges wished for, if they were said.
        limit: How many to return at most.
    """
    wished = tuple(sorted(shape or ()))

    def distance(known: Shape) -> tuple[int, int, int]:
        return abs(prod(known) - chip_count), _edge_difference(wished, tuple(sorted(known))), sum(known)

    return tuple(sorted(slice_shapes(chip), key=distance)[:limit])


def _edge_difference(wished: Shape, known: Shape) -> int:
    width = max(len(wished), len(known))
    padded = ((1,) * (width - len(edges)) + edges for edges in (wished, known))
    return sum(abs(left - right) for left, right in zip(*padded, strict=True))


def shown(shape: Iterable[int]) -> str:
    """`2x4`."""
    return "x".join(str(edge) for edge in shape)


def offered(chip: Chip) -> str:
    """The blocks of `chip` in words, for an error."""
    listed = ", ".join(shown(shape) for shape in chip.slice_shapes)
    if chip.torus_dimensions == 2:
        return listed
    return f"{listed}, and blocks whose three edges are multiples of {CUBE_EDGE}, up to {chip.max_slice_chips:,} chips"
