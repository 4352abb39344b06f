"""Conversion of XLA shardings to PartitionSpecs over the user's mesh axes."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

from hloscope.analysis.groups import SubAxis
from hloscope.analysis.model import Mesh
from hloscope.hlo import Sharding
from hloscope.program.capture import format_spec


@lru_cache(maxsize=256)
def render_partition_spec(sharding: Sharding, rank: int, mesh: Mesh) -> str | None:
    """Renders a sharding as JAX would write it.

    Args:
        sharding: The sharding of one array.
        rank: The array's number of dimensions.
        mesh: The user's mesh, whose partition ids the sharding's devices are.

    Returns:
        `P('X', None)`, `P(('X', 'Y'), None)`, with an entry for every dimension; part of an axis as `'X:(1)2'`, which
        Shardy can express and JAX cannot. None if the sharding does not follow the mesh or is not tiled.
    """
    if sharding.kind == "replicated":
        return _render_dimensions([[] for _ in range(rank)], mesh)
    if sharding.kind != "tiled" or len(sharding.tile_dimensions) < rank:
        return None
    if len(sharding.devices) != mesh.device_count or prod(sharding.tile_dimensions) != mesh.device_count:
        return None
    tiles = _find_tiles_by_position(sharding, rank, mesh)
    if tiles is None:
        return None
    for digits in _split_into_primes(mesh):
        dimensions = _find_digits_by_dimension(tiles, sharding.tile_dimensions[:rank], digits, mesh)
        if dimensions is not None:
            return _render_dimensions(dimensions, mesh)
    return None


def _find_tiles_by_position(sharding: Sharding, rank: int, mesh: Mesh) -> list[tuple[int, ...]] | None:
    """The tile held at each mesh position; tile dimensions beyond the array's own are replication."""
    indices = product(*(range(size) for size in sharding.tile_dimensions))
    tile_of = {device: index[:rank] for device, index in zip(sharding.devices, indices, strict=True)}
    return [tile_of[device] for device in mesh.ids] if set(mesh.ids) == tile_of.keys() else None


def _split_into_primes(mesh: Mesh) -> list[list[SubAxis]]:
    """Two ways to split the axes into prime digits, major first: small primes first, and small primes last."""
    orders = []
    for descending in (False, True):
        digits = []
        for axis, size in enumerate(mesh.axis_sizes):
            before = 1
            for prime in sorted(_factorize(size), reverse=descending):
                digits.append(SubAxis(axis, before, prime, size // (before * prime)))
                before *= prime
        orders.append(digits)
    return orders


def _factorize(number: int) -> list[int]:
    primes, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            primes.append(divisor)
            number //= divisor
        divisor += 1
    return primes


def _find_digits_by_dimension(
    tiles: list[tuple[int, ...]], tile_counts: tuple[int, ...], digits: list[SubAxis], mesh: Mesh
) -> list[list[SubAxis]] | None:
    """The digits that cut each dimension, major first; None if the tiles are not a product of digits."""
    strides: list[list[tuple[int, SubAxis]]] = [[] for _ in tile_counts]
    for digit in digits:
        step = digit.after * prod(mesh.axis_sizes[digit.axis + 1 :])
        moved = [
            (d, there - here)
            for d, (here, there) in enumerate(zip(tiles[0], tiles[step], strict=True))
            if there != here
        ]
        if len(moved) > 1:
            return None
        for dimension, stride in moved:
            strides[dimension].append((stride, digit))
    if not _is_explained_by(tiles, strides, mesh):
        return None
    return [[digit for _, digit in sorted(part, key=lambda item: -item[0])] for part in strides]


def _is_explained_by(tiles: list[tuple[int, ...]], strides: list[list[tuple[int, SubAxis]]], mesh: Mesh) -> bool:
    """Returns whether each position holds the tile that its digits and their strides add up to."""
    for dimension, part in enumerate(strides):
        sums = [0]
        for axis, size in enumerate(mesh.axis_sizes):
            own = [(stride, digit) for stride, digit in part if digit.axis == axis]
            steps = [sum(stride * (digit.value(value)) for stride, digit in own) for value in range(size)]
            sums = [before + step for before in sums for step in steps]
        if sums != [tile[dimension] for tile in tiles]:
            return False
    return True


def _render_dimensions(dimensions: list[list[SubAxis]], mesh: Mesh) -> str:
    return format_spec([digit.name(mesh) for digit in _merge_digits(digits)] for digits in dimensions)


def _merge_digits(digits: list[SubAxis]) -> list[SubAxis]:
    """Joins adjacent digits of one axis, such as the two halves of an axis of 4."""
    merged: list[SubAxis] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if last and last.axis == digit.axis and last.before * last.size == digit.before:
            merged[-1] = SubAxis(last.axis, last.before, last.size * digit.size, digit.after)
        else:
            merged.append(digit)
    return merged
