"""Shardings of HLO values: every printed form as a single tile assignment."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hloscope.hlo.replica_groups import AxisReference, NamedMesh


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
