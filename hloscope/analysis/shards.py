"""The holders of an array's parts: the shards that a sharding cuts it into, and the devices that hold each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from hloscope.analysis.groups import SubAxis
from hloscope.hlo.records import UNBOUNDED
from hloscope.model import ArrayFact, IntermediateFact, Mesh
from hloscope.model.capture import multiply_axis_sizes, parse_spec

_SUB_AXIS = re.compile(r"(?P<axis>.+):\((?P<before>\d+)\)(?P<size>\d+)", re.DOTALL)

ShardPlace = tuple[int, ...]
"""Index of the piece in each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One dimension of an array and its pieces.

    Attributes:
        size: Number of elements of the whole array along it.
        axes: The mesh axes that cut it, major first; empty if it is whole.
        pieces: Number of pieces.
        piece_size: Number of elements of each piece; the last ones are padded if the dimension does not divide evenly.
    """

    size: int
    axes: tuple[str, ...] = ()
    pieces: int = 1
    piece_size: int

    def bounds(self, number: int) -> tuple[int, int]:
        """The first element of a piece and the end of the piece; both are the size if it is all padding."""
        return min(number * self.piece_size, self.size), min((number + 1) * self.piece_size, self.size)

    def padding(self, number: int) -> int:
        """Number of padding elements in a piece."""
        begin, end = self.bounds(number)
        return self.piece_size - (end - begin)

    def padded_share(self, number: int) -> float:
        """The fraction of a piece that is padding."""
        return self.padding(number) / self.piece_size if self.piece_size else 0.0

    @property
    def is_padded(self) -> bool:
        """True if a piece holds padding."""
        return self.pieces * self.piece_size > self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGrid:
    """An array as a grid over two of its dimensions.

    Attributes:
        rows: The dimension that is cut into rows; None for an array with fewer than two dimensions.
        columns: The dimension that is cut into columns; None for a scalar.
        holders: The devices that hold any part of each place, by row and column.
        hidden: The other dimensions.
        shards_per_place: Number of shards at one place, which is more than 1 if a hidden dimension is cut.
    """

    rows: int | None
    columns: int | None
    holders: tuple[tuple[tuple[int, ...], ...], ...]
    hidden: tuple[int, ...] = ()
    shards_per_place: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """An array and the shards that it is cut into.

    Attributes:
        name: The array's name.
        dtype: XLA's short type name.
        global_shape: Dimensions of the whole array; None if unknown.
        local_shape: Dimensions on one device.
        sharding: The sharding as written; None if unknown.
        axis_sizes: Size of each axis of the mesh.
        why_unknown: The reason why the holders are unknown; None if they are known.
        cuts: The cut of each dimension; empty if unknown.
        copied_over: Axes along which devices hold the same elements.
        unreduced: Axes along which devices hold different addends of the same elements.
        holders: The devices that hold each shard, by its place in the array; empty if unknown.
        ids_are: The meaning of device numbers: `device` (JAX's numbers), `partition` (the program's) or `place`
        (positions in the mesh).
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...] | None
    local_shape: tuple[int, ...]
    sharding: str | None
    axis_sizes: Mapping[str, int]
    why_unknown: str | None = None
    cuts: tuple[Cut, ...] = ()
    copied_over: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    holders: Mapping[ShardPlace, tuple[int, ...]] = field(default_factory=dict)
    ids_are: str = "device"

    @property
    def copies(self) -> int:
        """Number of devices that hold the same elements of the same addend."""
        return multiply_axis_sizes(self.copied_over, self.axis_sizes)

    @property
    def holders_are_addends(self) -> bool:
        """True if the holders of a shard differ only in the addends that they hold."""
        return bool(self.unreduced) and not self.copied_over

    @property
    def addends(self) -> int:
        """Number of addends of each element."""
        return multiply_axis_sizes(self.unreduced, self.axis_sizes)

    def axis_words(self, axis: str) -> str:
        """Renders an axis with its size, `X=4`; a part of an axis already includes its size."""
        return f"{axis}={self.axis_sizes[axis]}" if axis in self.axis_sizes else axis

    def padded_share_at(self, grid: ShardGrid, row: int, column: int) -> float:
        """The fraction of a place in a grid that is padding."""
        shown = ((grid.rows, row), (grid.columns, column))
        return 1 - prod(1 - self.cuts[number].padded_share(piece) for number, piece in shown if number is not None)

    def shown_dimensions(self) -> tuple[int, ...]:
        """The two dimensions to show, in order: those cut into the most pieces, otherwise the largest."""
        order = sorted(
            range(len(self.cuts)), key=lambda number: (-self.cuts[number].pieces, -self.cuts[number].size, number)
        )
        return tuple(sorted(order[:2]))

    def grid(self, dimensions: Sequence[int] | None = None) -> ShardGrid:
        """The array as a grid over one or two of its dimensions.

        Args:
            dimensions: The row's and the column's; by default `shown_dimensions`.
        """
        shown = self.shown_dimensions() if dimensions is None else tuple(dimensions)
        rows, columns = (None, *shown)[-2:] if shown else (None, None)
        row_count, column_count = (1 if number is None else self.cuts[number].pieces for number in (rows, columns))
        held: list[list[list[int]]] = [[[] for _ in range(column_count)] for _ in range(row_count)]
        for place, devices in self.holders.items():
            row, column = (0 if number is None else place[number] for number in (rows, columns))
            held[row][column].extend(devices)
        hidden = tuple(number for number in range(len(self.cuts)) if number not in shown)
        return ShardGrid(
            rows=rows,
            columns=columns,
            holders=tuple(tuple(tuple(sorted(devices)) for devices in row) for row in held),
            hidden=hidden,
            shards_per_place=prod(self.cuts[number].pieces for number in hidden),
        )


def find_shards(
    array: ArrayFact | IntermediateFact, mesh: Mesh | None, *, device_ids: Sequence[int] | None = None
) -> Shards:
    """Finds the shards of an array and their holders.

    Args:
        array: Its shapes and its sharding.
        mesh: The user's mesh; one without axes for a program on one device; None if unknown.
        device_ids: The device of each partition; None if unknown, so that partitions are named instead.
    """
    if device_ids is not None and (mesh is None or len(device_ids) != mesh.device_count):
        device_ids = None
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    unknown = Shards(
        name=array.name,
        dtype=array.dtype,
        global_shape=array.global_shape,
        local_shape=array.local_shape,
        sharding=array.sharding,
        axis_sizes=sizes,
    )
    why = _explain_unknown(array, mesh)
    if why is not None:
        return replace(unknown, why_unknown=why)
    assert mesh is not None  # otherwise `why` is set; the same holds below
    assert array.global_shape is not None
    assert array.sharding is not None
    spec = parse_spec(array.sharding)
    cutting = (*spec.dimensions, *((),) * (len(array.global_shape) - len(spec.dimensions)))
    digits, addends = [_find_axis_digits(axes, mesh) for axes in cutting], _find_axis_digits(spec.unreduced, mesh)
    cuts = tuple(
        Cut(size=size, axes=axes, pieces=(count := prod(digit.size for digit in own)), piece_size=-(-size // count))
        for size, axes, own in zip(array.global_shape, cutting, digits, strict=True)
    )
    if tuple(cut.piece_size for cut in cuts) != array.local_shape:
        return replace(unknown, why_unknown="its shape on one device is not the one that its sharding makes")
    return replace(
        unknown,
        cuts=cuts,
        copied_over=_find_other_axes([digit for own in (*digits, addends) for digit in own], mesh),
        unreduced=spec.unreduced,
        holders=_find_shard_holders(digits, mesh, device_ids),
        ids_are="partition" if device_ids is None else "device",
    )


def _explain_unknown(array: ArrayFact | IntermediateFact, mesh: Mesh | None) -> str | None:
    """The reason why the holders are unknown; None if the array and the mesh determine them."""
    if array.global_shape is None or UNBOUNDED in array.global_shape:
        return "the shape of the whole array is not known"
    if array.sharding is None:
        return "its sharding is not known"
    if mesh is None:
        return "the mesh is not known"
    try:
        spec = parse_spec(array.sharding)
    except ValueError:
        return "its sharding cannot be read"
    if len(spec.dimensions) > len(array.global_shape):
        return "its sharding has more dimensions than it"
    used = [axis for axes in (*spec.dimensions, spec.unreduced) for axis in axes]
    missing = next((axis for axis in used if _find_axis_digit(axis, mesh) is None), None)
    if missing is not None:
        return f"the mesh has no axis {missing}"
    return "its sharding uses an axis twice" if len(set(used)) < len(used) else None


def _find_axis_digit(name: str, mesh: Mesh) -> SubAxis | None:
    """An axis, or a part of one such as `X:(1)2`, as a digit of positions in the mesh; None if it does not exist."""
    part = _SUB_AXIS.fullmatch(name) if name not in mesh.axis_names else None
    whole_name = name if part is None else part["axis"]
    if whole_name not in mesh.axis_names:
        return None
    axis = mesh.axis_names.index(whole_name)
    whole = mesh.axis_sizes[axis]
    before, size = (1, whole) if part is None else (int(part["before"]), int(part["size"]))
    return (
        SubAxis(axis, before, size, whole // (before * size)) if before * size and not whole % (before * size) else None
    )


def _find_axis_digits(names: Iterable[str], mesh: Mesh) -> list[SubAxis]:
    return [digit for digit in (_find_axis_digit(name, mesh) for name in names) if digit is not None]


def _find_other_axes(used: Sequence[SubAxis], mesh: Mesh) -> tuple[str, ...]:
    """The axes, and parts of axes, that are not used."""
    found = []
    for axis, size in enumerate(mesh.axis_sizes):
        before = 1
        for digit in sorted((digit for digit in used if digit.axis == axis), key=lambda digit: digit.before):
            if digit.before > before:
                found.append(SubAxis(axis, before, digit.before // before, size // digit.before))
            before = digit.before * digit.size
        if before < size:
            found.append(SubAxis(axis, before, size // before, 1))
    return tuple(digit.name(mesh) for digit in found)


def _find_shard_holders(
    digits: Sequence[Sequence[SubAxis]], mesh: Mesh, device_ids: Sequence[int] | None
) -> dict[ShardPlace, tuple[int, ...]]:
    """The devices of each shard, in ascending order."""
    positions = np.arange(mesh.device_count)
    places = [_find_pieces(own, positions, mesh) for own in digits]
    ids = np.asarray(mesh.ids)
    if device_ids is not None:
        ids = np.asarray(device_ids)[ids]
    held: dict[ShardPlace, list[int]] = {}
    for place, device in zip(zip(*places, strict=True) if places else ((),) * len(ids), ids.tolist(), strict=True):
        held.setdefault(place, []).append(device)
    return {place: tuple(sorted(held[place])) for place in sorted(held)}


def _find_pieces(digits: Sequence[SubAxis], positions: np.ndarray, mesh: Mesh) -> list[int]:
    """The piece at each mesh position along a dimension cut by some digits, major first."""
    piece = np.zeros_like(positions)
    for digit in digits:
        coordinate = positions // prod(mesh.axis_sizes[digit.axis + 1 :]) % mesh.axis_sizes[digit.axis]
        piece = piece * digit.size + coordinate // digit.after % digit.size
    found: list[int] = piece.tolist()
    return found


def index_partitions(mesh: Mesh) -> dict[str, int]:
    """The partition at each place of a mesh, by the place's name: `X=1, Y=0`."""
    places = np.stack(np.unravel_index(np.arange(mesh.device_count), mesh.axis_sizes), axis=-1).tolist()
    names = (", ".join(map("{}={}".format, mesh.axis_names, place)) for place in places)
    return dict(zip(names, mesh.ids, strict=True))
