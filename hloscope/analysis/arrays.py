"""The program's arguments and outputs, as far as the text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hloscope.analysis.model import ArrayFact, Mesh
from hloscope.analysis.partition_specs import partition_spec
from hloscope.hlo import HloInstruction, HloModule, Shape, Sharding

_ALIAS = re.compile(r"\{(?P<output>[\d,\s]*)\}\s*:\s*\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}")
_DONOR = re.compile(r"\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}\s*\)")

Path = tuple[int, ...]


def arguments_of(module: HloModule, mesh: Mesh | None) -> tuple[ArrayFact, ...]:
    """ENTRY's parameters; those that are tuples by their elements, as `name[0]`, `name[1]`."""
    donated = _donated_arguments(module)
    facts = []
    for number, parameter in enumerate(module.entry.parameters):
        used = bool(parameter.users) or parameter.is_root
        for path, shape, sharding in _leaves(parameter.shape, parameter.sharding):
            name = _display_name(parameter) + "".join(f"[{index}]" for index in path)
            facts.append(_fact(module, mesh, name, shape, sharding, (number, path) in donated, used))
    return tuple(facts)


def outputs_of(module: HloModule, mesh: Mesh | None) -> tuple[ArrayFact, ...]:
    """The elements of ENTRY's result, as `result`, or `result[0]`, `result[1]` for a tuple."""
    root = module.entry.root
    aliased = {_path(match["output"]) for match in _ALIAS.finditer(module.header.get("input_output_alias", ""))}
    facts = []
    for path, shape, sharding in _leaves(root.shape, root.sharding):
        name = "result" + "".join(f"[{index}]" for index in path)
        facts.append(_fact(module, mesh, name, shape, sharding, path in aliased, True))
    return tuple(facts)


def _fact(
    module: HloModule, mesh: Mesh | None, name: str, shape: Shape, sharding: Sharding | None, donated: bool, used: bool
) -> ArrayFact:
    devices = module.num_partitions * module.replica_count
    spec = None if sharding is None or mesh is None else partition_spec(sharding, len(shape.dimensions), mesh)
    return ArrayFact(
        name=name,
        dtype=shape.element_type,
        global_shape=shape.dimensions if devices == 1 else _global_shape(shape, sharding),
        local_shape=shape.dimensions,
        sharding=spec,
        chosen_by=None,
        bytes_per_device=shape.byte_size,
        donated=donated,
        used=used,
    )


def _global_shape(shape: Shape, sharding: Sharding | None) -> tuple[int, ...] | None:
    """The local shape times the tiles; an uneven sharding pads the last tile, which the text does not tell."""
    if sharding is None:
        return None
    if sharding.kind == "replicated":
        return shape.dimensions
    if sharding.kind != "tiled" or len(sharding.tile_dimensions) < len(shape.dimensions):
        return None
    return tuple(size * tiles for size, tiles in zip(shape.dimensions, sharding.tile_dimensions, strict=False))


def _leaves(shape: Shape, sharding: Sharding | None) -> Iterator[tuple[Path, Shape, Sharding | None]]:
    """The arrays of a shape with their own shardings; one sharding of a whole tuple holds for all its elements."""
    leaves = list(_paths(shape))
    shardings: tuple[Sharding | None, ...] = (sharding,) * len(leaves)
    if sharding is not None and sharding.kind == "tuple":
        shardings = sharding.elements if len(sharding.elements) == len(leaves) else (None,) * len(leaves)
    for (path, leaf), own in zip(leaves, shardings, strict=True):
        if leaf.element_type != "token":
            yield path, leaf, own


def _paths(shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Shape]]:
    if not shape.is_tuple:
        yield path, shape
    for index, element in enumerate(shape.elements if shape.is_tuple else ()):
        yield from _paths(element, (*path, index))


def _donated_arguments(module: HloModule) -> set[tuple[int, Path]]:
    matches = [
        *_ALIAS.finditer(module.header.get("input_output_alias", "")),
        *_DONOR.finditer(module.header.get("buffer_donor", "")),
    ]
    return {(int(match["number"]), _path(match["index"])) for match in matches}


def _path(text: str) -> Path:
    return tuple(int(index) for index in re.findall(r"\d+", text))


def _display_name(parameter: HloInstruction) -> str:
    """JAX prints the argument's pytree path as the parameter's `op_name`."""
    return parameter.op_name or parameter.name
