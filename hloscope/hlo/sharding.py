"""Shardings of HLO values: every printed form as a single tile assignment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

from hloscope.base.errors import HloscopeError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- the device groups of a collective, in the three forms that XLA prints

MAX_DEVICES = 1 << 20
"""More devices than any machine has; a larger product of sizes is considered broken text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iota:
    """A compact list of devices: `[dimensions]<=[reshape]T(permutation)`.

    Attributes:
        dimensions: The shape of the result.
        reshape: The shape that 0, 1, 2, … first gets.
        permutation: The order into which its dimensions are then transposed; None to keep it.
    """

    dimensions: tuple[int, ...]
    reshape: tuple[int, ...]
    permutation: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = prod(self.reshape)
        if count != prod(self.dimensions):
            raise HloscopeError(f"{list(self.dimensions)} does not contain the {count} devices of {list(self.reshape)}")
        if not 0 <= count <= MAX_DEVICES or min((*self.dimensions, *self.reshape), default=0) < 0:
            raise HloscopeError(f"{list(self.reshape)} is not a number of devices")
        if self.permutation is not None and sorted(self.permutation) != list(range(len(self.reshape))):
            raise HloscopeError(f"T{self.permutation} does not permute {len(self.reshape)} dimensions")

    def array(self) -> npt.NDArray[np.int64]:
        """The device ids, shaped by `dimensions`."""
        import numpy as np  # takes a tenth of a second, only needed by texts with such groups

        ids = np.arange(prod(self.reshape)).reshape(self.reshape)
        if self.permutation is not None:
            ids = ids.transpose(self.permutation)
        return ids.reshape(self.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisReference:
    """A mesh axis, or a part of one such as `name:(pre)size`.

    Attributes:
        name: As printed, without quotes.
        pre_size: Number of devices of the axis outside the part, major to it; None for the whole axis.
        size: Number of devices along the part; None for the whole axis.
    """

    name: str
    pre_size: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMesh:
    """The mesh that the named forms of groups and shardings print.

    Attributes:
        axes: (name, size), major first.
        device_ids: The devices in row-major order; None for 0, 1, 2, …
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = prod(size for _, size in self.axes)
        if not 0 < count <= MAX_DEVICES or any(size < 1 for _, size in self.axes):
            raise HloscopeError(f"the mesh sizes {[size for _, size in self.axes]} are not numbers of devices")
        if self.device_ids is not None and len(self.device_ids) != count:
            raise HloscopeError(f"device_ids has {len(self.device_ids)} devices, but the mesh has {count}")

    def split_by(self, references: tuple[AxisReference, ...]) -> tuple[npt.NDArray[np.int64], list[int], list[int]]:
        """Splits every axis at the named (sub-)axes.

        Returns:
            The device ids with one dimension for each part, the dimensions of `references` in their order, and the
            remaining dimensions in mesh order.

        Raises:
            HloscopeError: A name is not in the mesh, or a part does not divide its axis.
        """
        import numpy as np

        cuts = [self._cuts(index, references) for index in range(len(self.axes))]
        starts = [0, *accumulate(len(parts) for parts in cuts)]
        sizes = [size for parts in cuts for _, size in parts]
        named: list[int] = []
        for reference in references:
            index = self._axis_index(reference.name)
            wanted = (reference.pre_size or 1, reference.size or self.axes[index][1])
            if wanted not in cuts[index]:
                raise HloscopeError(f"sub-axis {reference.name} overlaps another")
            named.append(starts[index] + cuts[index].index(wanted))
        if len(set(named)) != len(named):
            raise HloscopeError("a mesh axis appears twice")
        flat = np.arange(prod(sizes)) if self.device_ids is None else np.array(self.device_ids)
        rest = [dimension for dimension in range(len(sizes)) if dimension not in named]
        return flat.reshape(sizes), named, rest

    def _axis_index(self, name: str) -> int:
        names = [axis_name for axis_name, _ in self.axes]
        if name in names:
            return names.index(name)
        if name.isdigit() and int(name) < len(names):
            return int(name)
        raise HloscopeError(f"axis {name!r} is not in the mesh {names}")

    def _cuts(self, index: int, references: tuple[AxisReference, ...]) -> list[tuple[int, int]]:
        """(size outside, size) of each part of axis `index`, major first."""
        _, size = self.axes[index]
        marks = {1, size}
        for reference in references:
            if self._axis_index(reference.name) == index and reference.size is not None:
                before = reference.pre_size or 1
                marks |= {before, before * reference.size}
        ordered = sorted(marks)
        if any(low < 1 or high % low for low, high in zip(ordered, [*ordered[1:], size], strict=True)):
            raise HloscopeError(f"a sub-axis of {self.axes[index][0]!r} does not divide its size {size}")
        return [(low, high // low) for low, high in pairwise(ordered)] or [(1, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """The groups of a collective.

    Attributes:
        text: As printed.
        listed: The groups of the form `{{0,1},{2,3}}`; None for the other forms.
        iota: The form `[groups,size]<=[…]T(…)`; None for the other forms.
        mesh: The mesh of the named form; None for the other forms.
        axes: The axes of the named form.
        contradiction: Why the printed text defines no groups; None if it does.
    """

    text: str = ""
    listed: tuple[tuple[int, ...], ...] | None = None
    iota: Iota | None = None
    mesh: NamedMesh | None = None
    axes: tuple[AxisReference, ...] = ()
    contradiction: str | None = None

    def groups(self, device_count: int) -> tuple[tuple[int, ...], ...]:
        """The groups as device numbers.

        Args:
            device_count: The devices of the program; `{}` means one group of all of them.

        Raises:
            HloscopeError: The text names contradictory axes or sizes.
        """
        if self.contradiction is not None:
            raise HloscopeError(self.contradiction)
        return _expand_groups(self, device_count)


@lru_cache(maxsize=4096)
def _expand_groups(replica_groups: ReplicaGroups, device_count: int) -> tuple[tuple[int, ...], ...]:
    if replica_groups.iota is not None:
        rows = replica_groups.iota.array()
    elif replica_groups.mesh is not None:
        ids, named, rest = replica_groups.mesh.split_by(replica_groups.axes)
        group_size = prod(ids.shape[dimension] for dimension in named)
        rows = ids.transpose([*rest, *named]).reshape(-1, group_size)
    else:
        listed = tuple(group for group in replica_groups.listed or () if group)
        return listed or (tuple(range(device_count)),)
    return tuple(tuple(map(int, row)) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The distribution of a value over the devices.

    Attributes:
        kind: `replicated`, `manual`, `maximal`, `unknown`, `unreduced`, `tiled` or `tuple`.
        text: The text, as printed.
        tile_dimensions: Tiles along each dimension of the array, then the trailing subgroup dimensions.
        devices: Devices in row-major order of the tiles; the one device of `maximal`.
        replicate_on_last_tile_dim: Whether the last tile dimension replicates instead of sharding data.
        last_tile_dims: The kind of each trailing subgroup dimension (`manual`, `replicated`, …).
        elements: One sharding for each leaf of a tuple.
        mesh: The mesh of the named form; None for the other forms.
    """

    kind: str
    text: str = ""
    tile_dimensions: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    replicate_on_last_tile_dim: bool = False
    last_tile_dims: tuple[str, ...] = ()
    elements: tuple[Sharding, ...] = ()
    mesh: NamedMesh | None = None


def convert_mesh_sharding(
    mesh: NamedMesh,
    placements: tuple[tuple[AxisReference, ...], ...],
    *,
    manual: tuple[AxisReference, ...],
    unreduced: tuple[AxisReference, ...],
) -> Sharding:
    """Converts the named form to a tile assignment.

    Args:
        mesh: The mesh that the axes belong to.
        placements: For each dimension of the array, the axes that shard it, major first.
        manual: Axes that are manual.
        unreduced: Axes over which the value is a partial sum. Unnamed axes replicate.

    Raises:
        HloscopeError: The axes do not fit the mesh.

    Source: `HloSharding` in xla/hlo/ir/hlo_sharding.cc; subgroup dimensions trail the data dimensions.
    """
    sharded = tuple(axis for axes in placements for axis in axes)
    ids, named, rest = mesh.split_by((*sharded, *manual, *unreduced))
    sizes = iter([ids.shape[dimension] for dimension in named])
    tiles = [prod(next(sizes) for _ in axes) for axes in placements]
    subgroups = {
        "manual": prod(next(sizes) for _ in manual),
        "unreduced": prod(sizes),
        "replicated": prod(ids.shape[dimension] for dimension in rest),
    }
    kept = {kind: size for kind, size in subgroups.items() if size > 1}
    if prod(tiles) == 1 and len(kept) <= 1:
        return Sharding(kind=next(iter(kept), "replicated"), mesh=mesh)
    only_replicated = list(kept) == ["replicated"]  # this has its own form
    return Sharding(
        kind="tiled",
        tile_dimensions=(*tiles, *kept.values()),
        devices=tuple(map(int, ids.transpose([*named, *rest]).reshape(-1))),
        replicate_on_last_tile_dim=only_replicated,
        last_tile_dims=() if only_replicated else tuple(kept),
        mesh=mesh,
    )
