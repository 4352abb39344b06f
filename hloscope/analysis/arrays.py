"""The program's arguments and outputs, as far as the text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hloscope.analysis.model import ArrayFact, Mesh
from hloscope.analysis.partition_specs import partition_spec
from hloscope.analysis.values.buffers import aliases_in_text, arrays_of, path_in_text
from hloscope.graph import entry_of
from hloscope.hlo import HloInstruction, HloModule, Shape, Sharding
from hloscope.hlo.shape import UNBOUNDED

_DONOR = re.compile(r"\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}\s*\)")

Numbers = tuple[int, ...]
"""Numbers in order: tuple indices, or the sizes of dimensions."""


def arguments_of(module: HloModule, mesh: Mesh | None, *, partitioned: bool = True) -> tuple[ArrayFact, ...]:
    """ENTRY's parameters; those that are tuples by their elements, as `name[0]`, `name[1]`. None without ENTRY.

    Args:
        module: The module.
        mesh: The user's mesh, to write shardings with.
        partitioned: Whether shapes are those of one device.
    """
    entry = entry_of(module)
    scope = _Scope(module, mesh, partitioned)
    reused = set(aliases_in_text(module.header.get("input_output_alias", "")).values())
    donated = reused | _donors(module)
    facts = []
    for number, parameter in enumerate(entry.parameters if entry is not None else ()):
        used = bool(parameter.users) or parameter.is_root
        for path, shape, sharding in leaves_of(parameter.shape, parameter.sharding):
            name = _display_name(parameter) + "".join(f"[{index}]" for index in path)
            fact = _fact(scope, name, shape, sharding, (number, path) in donated, used)
            facts.append(replace(fact, reused=(number, path) in reused) if fact.donated else fact)
    return tuple(facts)


def outputs_of(module: HloModule, mesh: Mesh | None, *, partitioned: bool = True) -> tuple[ArrayFact, ...]:
    """The elements of ENTRY's result, as `result`, or `result[0]`, `result[1]` for a tuple; see `arguments_of`."""
    entry = entry_of(module)
    if entry is None:
        return ()
    scope = _Scope(module, mesh, partitioned)
    root = entry.root
    aliased = aliases_in_text(module.header.get("input_output_alias", ""))
    facts = []
    for path, shape, sharding in leaves_of(root.shape, root.sharding):
        name = "result" + "".join(f"[{index}]" for index in path)
        facts.append(_fact(scope, name, shape, sharding, path in aliased, True))
    return tuple(facts)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What an array's facts depend on beside itself."""

    module: HloModule
    mesh: Mesh | None
    partitioned: bool


def _fact(scope: _Scope, name: str, shape: Shape, sharding: Sharding | None, donated: bool, used: bool) -> ArrayFact:
    spec = None
    if sharding is not None and scope.mesh is not None:
        spec = partition_spec(sharding, len(shape.dimensions), scope.mesh)
    alone = scope.partitioned and scope.module.num_partitions * scope.module.replica_count == 1
    tiles = (1,) * len(shape.dimensions) if alone else _tiles(shape, sharding)
    global_shape = _times(shape.dimensions, tiles) if scope.partitioned else shape.dimensions
    local_shape = shape.dimensions if scope.partitioned or tiles is None else _share(shape.dimensions, tiles)
    return ArrayFact(
        name=name,
        dtype=shape.element_type,
        global_shape=global_shape,
        local_shape=local_shape,
        sharding=spec,
        chosen_by=None,
        bytes_per_device=replace(shape, dimensions=local_shape).byte_size,
        donated=donated,
        used=used,
    )


def global_shape_of(shape: Shape, sharding: Sharding | None) -> Numbers | None:
    """Dimensions of the whole array of which a device holds one part of this shape; None when not known."""
    return _times(shape.dimensions, _tiles(shape, sharding))


def _times(local: Numbers, tiles: Numbers | None) -> Numbers | None:
    """The whole array; a dimension without a bound stays without one."""
    if tiles is None:
        return None
    return tuple(size if size == UNBOUNDED else size * count for size, count in zip(local, tiles, strict=True))


def _share(whole: Numbers, tiles: Numbers) -> Numbers:
    """What one device holds, padded when the parts are uneven."""
    return tuple(size if size == UNBOUNDED else -(-size // count) for size, count in zip(whole, tiles, strict=True))


def _tiles(shape: Shape, sharding: Sharding | None) -> tuple[int, ...] | None:
    """Parts that each dimension is cut into; None when not known. An uneven sharding pads its last part."""
    if sharding is None:
        return None
    if sharding.kind == "replicated":
        return (1,) * len(shape.dimensions)
    if sharding.kind != "tiled" or len(sharding.tile_dimensions) < len(shape.dimensions):
        return None
    return sharding.tile_dimensions[: len(shape.dimensions)]


def leaves_of(shape: Shape, sharding: Sharding | None) -> Iterator[tuple[Numbers, Shape, Sharding | None]]:
    """The arrays of a shape with their own shardings; one sharding of a whole tuple holds for all its elements."""
    leaves = list(arrays_of(shape))
    shardings: tuple[Sharding | None, ...] = (sharding,) * len(leaves)
    if sharding is not None and sharding.kind == "tuple":
        shardings = sharding.elements if len(sharding.elements) == len(leaves) else (None,) * len(leaves)
    for (path, leaf), own in zip(leaves, shardings, strict=True):
        if leaf.element_type != "token":
            yield path, leaf, own


def _donors(module: HloModule) -> set[tuple[int, Numbers]]:
    """Arguments that are donated and that the compiler has found no output for, as far as the text says."""
    donors = _DONOR.finditer(module.header.get("buffer_donor", ""))
    return {(int(donor["number"]), path_in_text(donor["index"])) for donor in donors}


def _display_name(parameter: HloInstruction) -> str:
    """JAX prints the argument's pytree path as the parameter's `op_name`."""
    return parameter.op_name or parameter.name
