"""The arguments and outputs of the program, and its largest intermediate arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from hloscope.analysis.dataflow import follow_values
from hloscope.analysis.groups import SubAxis
from hloscope.analysis.provenance import find_provenance
from hloscope.hlo import HloComputation, HloInstruction, HloModule, Shape, Sharding
from hloscope.hlo.call_graph import HloGraph, Value, find_entry
from hloscope.hlo.records import UNBOUNDED
from hloscope.model import ArrayFact, IntermediateFact, Mesh
from hloscope.model.capture import format_spec

# ---- conversion of XLA shardings to PartitionSpecs over the user's mesh axes


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
    if sorted(sharding.devices) != sorted(mesh.ids) or prod(sharding.tile_dimensions) != mesh.device_count:
        return None
    tiling = sharding.tile_dimensions
    tile_of = np.empty((max(mesh.ids) + 1, rank), dtype=int)
    tile_of[list(sharding.devices)] = np.indices(tiling).reshape(len(tiling), -1)[:rank].T
    tiles = tile_of[list(mesh.ids)]  # of each mesh position; tile dimensions beyond the array's own are replication
    for digits in _split_into_primes(mesh):
        dimensions = _find_digits_by_dimension(tiles, digits, mesh)
        if dimensions is not None:
            return _render_dimensions(dimensions, mesh)
    return None


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


def _find_digits_by_dimension(tiles: np.ndarray, digits: list[SubAxis], mesh: Mesh) -> list[list[SubAxis]] | None:
    """The digits that cut each dimension, major first; None if the tiles are not a product of digits."""
    strides: list[list[tuple[int, SubAxis]]] = [[] for _ in range(tiles.shape[1])]
    explained, coordinates = np.zeros_like(tiles), np.indices(mesh.axis_sizes).reshape(-1, len(tiles))
    for digit in digits:
        step = digit.after * prod(mesh.axis_sizes[digit.axis + 1 :])
        stride = tiles[step] - tiles[0]
        if np.count_nonzero(stride) > 1:
            return None
        explained += np.outer(coordinates[digit.axis] // digit.after % digit.size, stride)
        for dimension in np.flatnonzero(stride):
            strides[dimension].append((stride[dimension], digit))
    if not np.array_equal(explained, tiles):
        return None
    return [[digit for _, digit in sorted(part, key=lambda item: -item[0])] for part in strides]


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


_DONOR = re.compile(r"\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}\s*\)")

_Numbers = tuple[int, ...]
"""Numbers in order: tuple indices or dimension sizes."""


def find_arguments(module: HloModule, mesh: Mesh | None, *, partitioned: bool = True) -> tuple[ArrayFact, ...]:
    """ENTRY's parameters; tuples are listed by element, as `name[0]`, `name[1]`. Empty without ENTRY.

    Args:
        module: The module.
        mesh: The user's mesh, in whose axes shardings are written.
        partitioned: Whether shapes are those of one device.
    """
    entry = find_entry(module)
    reused = set(parse_aliases(module.header.get("input_output_alias", "")).values())
    found = _DONOR.finditer(module.header.get("buffer_donor", ""))  # donors that the compiler found no output for
    donated = reused | {(int(donor["number"]), _parse_tuple_path(donor["index"])) for donor in found}
    facts = []
    for number, parameter in enumerate(entry.parameters if entry is not None else ()):
        used = bool(parameter.users) or parameter.is_root
        printed = parameter.op_name or parameter.name  # JAX prints the argument's pytree path as the `op_name`
        for path, shape, sharding in _iterate_leaves(parameter.shape, parameter.sharding):
            at = (number, path)
            of_argument = {"used": used, "donated": at in donated, "reused": at in reused if at in donated else None}
            facts.append(_make_fact(module, mesh, partitioned, printed, path, shape, sharding, **of_argument))
    return tuple(facts)


def find_outputs(module: HloModule, mesh: Mesh | None, *, partitioned: bool = True) -> tuple[ArrayFact, ...]:
    """The elements of ENTRY's result, as `result`, or `result[0]`, `result[1]` for a tuple; see `find_arguments`."""
    entry = find_entry(module)
    root = None if entry is None else entry.root
    aliased = parse_aliases(module.header.get("input_output_alias", ""))
    leaves = () if root is None else _iterate_leaves(root.shape, root.sharding)
    return tuple(_make_fact(module, mesh, partitioned, "result", *leaf, donated=leaf[0] in aliased) for leaf in leaves)


_KEEPS_NUMBERS = frozenset({"bitcast", "broadcast", "copy", "reshape", "slice", "transpose"})


def find_constant_outputs(module: HloModule) -> frozenset[int]:
    """The numbers of ENTRY's outputs that are constants, whatever the arguments."""
    entry = find_entry(module)
    if entry is None:
        return frozenset()
    outputs = entry.root.operands if entry.root.opcode == "tuple" else (entry.root,)
    return frozenset(number for number, output in enumerate(outputs) if _is_constant(module, output))


def _is_constant(module: HloModule, instruction: HloInstruction) -> bool:
    while instruction.opcode in _KEEPS_NUMBERS and instruction.operands:
        instruction = instruction.operands[0]
    if instruction.opcode == "fusion" and not instruction.operands:
        return _is_constant(module, module.computation(instruction.called[0][1]).root)
    return instruction.opcode == "constant"


def _make_fact(
    module: HloModule,
    mesh: Mesh | None,
    partitioned: bool,
    whole: str,
    path: _Numbers,
    shape: Shape,
    sharding: Sharding | None,
    **of_argument: Any,
) -> ArrayFact:
    """An array, which may be an element of a whole tuple."""
    spec = None
    if sharding is not None and mesh is not None:
        spec = render_partition_spec(sharding, len(shape.dimensions), mesh)
    alone = partitioned and module.device_count == 1
    tiles = (1,) * len(shape.dimensions) if alone else _count_tiles(shape, sharding)
    global_shape = _multiply_by_tiles(shape.dimensions, tiles) if partitioned else shape.dimensions
    local_shape = shape.dimensions if partitioned or tiles is None else _divide_by_tiles(shape.dimensions, tiles)
    return ArrayFact(
        name=whole + "".join(f"[{index}]" for index in path),
        dtype=shape.element_type,
        global_shape=global_shape,
        local_shape=local_shape,
        sharding=spec,
        chosen_by=None,
        bytes_per_device=replace(shape, dimensions=local_shape).byte_size,
        **of_argument,
    )


def _multiply_by_tiles(local: _Numbers, tiles: _Numbers | None) -> _Numbers | None:
    """The global dimensions of an array; an unbounded dimension stays unbounded."""
    if tiles is None:
        return None
    return tuple(size if size == UNBOUNDED else size * count for size, count in zip(local, tiles, strict=True))


def _divide_by_tiles(whole: _Numbers, tiles: _Numbers) -> _Numbers:
    """The dimensions of one device's share, padded if the parts are uneven."""
    return tuple(size if size == UNBOUNDED else -(-size // count) for size, count in zip(whole, tiles, strict=True))


def _count_tiles(shape: Shape, sharding: Sharding | None) -> tuple[int, ...] | None:
    """Number of parts that each dimension is cut into; None if unknown. An uneven sharding pads its last part."""
    if sharding is None:
        return None
    if sharding.kind == "replicated":
        return (1,) * len(shape.dimensions)
    if sharding.kind != "tiled" or len(sharding.tile_dimensions) < len(shape.dimensions):
        return None
    return sharding.tile_dimensions[: len(shape.dimensions)]


def _iterate_leaves(shape: Shape, sharding: Sharding | None) -> Iterator[tuple[_Numbers, Shape, Sharding | None]]:
    """The arrays of a shape with their own shardings; a single sharding of a tuple applies to all its elements."""
    leaves = list(_list_arrays(shape))
    shardings: tuple[Sharding | None, ...] = (sharding,) * len(leaves)
    if sharding is not None and sharding.kind == "tuple":
        shardings = sharding.elements if len(sharding.elements) == len(leaves) else (None,) * len(leaves)
    for (path, leaf), own in zip(leaves, shardings, strict=True):
        if leaf.element_type != "token":
            yield path, leaf, own


SHOWN = 10
"""Maximum number of arrays reported."""
_NEGLIGIBLE = 1000
"""An array this many times smaller than the largest one is not reported."""

_NEVER_MAKE_ONE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "opt-barrier",
    "after-all", "partition-id", "replica-id", "send", "add-dependency", "dynamic-update-slice",
})  # fmt: skip
_INNER_KEYS = frozenset({"body", "to_apply", "branch_computations", "true_computation", "false_computation"})
_CONTROL = frozenset({"while", "conditional", "call"})

_Loops = tuple[str, ...]


def find_largest_intermediates(graph: HloGraph) -> tuple[IntermediateFact, ...]:
    """The largest arrays that ENTRY and its loops, branches and calls allocate memory for.

    Excludes values that share the memory of another array (tuples and their elements, bitcasts, in-place updates,
    values carried by a loop), arguments and outputs, and values inside a fusion.
    """
    if graph.entry is None:
        return ()
    outputs = {_find_buffer(graph, Value(graph.entry.root, path)) for path, _ in _list_arrays(graph.entry.root.shape)}
    makers = [
        (-size, index, computation, loops)
        for computation, loops in _walk_computations(graph, graph.entry)
        for index, form in computation.forms()
        if form.opcode not in _NEVER_MAKE_ONE
        and (size := (form.shape or computation.instruction_at(index).shape).largest_array_bytes)
    ]
    makers.sort()
    found: list[tuple[int, HloInstruction, _Path, Shape, Sharding | None, _Loops]] = []
    for size, index, computation, loops in makers:
        if len(found) >= SHOWN and -size <= found[SHOWN - 1][0]:
            break
        instruction = computation.instruction_at(index)
        for path, shape, sharding in _iterate_leaves(instruction.shape, instruction.sharding):
            value = Value(instruction, path)
            if shape.byte_size and value not in outputs and find_memory_owner(graph, value) is None:
                found.append((shape.largest_array_bytes, instruction, path, shape, sharding, loops))
        found.sort(key=lambda entry: -entry[0])
    least = found[0][0] // _NEGLIGIBLE if found else 0
    return tuple(_make_intermediate(graph, *entry[1:]) for entry in found[:SHOWN] if (entry[3].byte_size or 0) >= least)


def _walk_computations(graph: HloGraph, entry: HloComputation) -> Iterator[tuple[HloComputation, _Loops]]:
    """ENTRY and the computations that run in it as steps of their own; each once, with its enclosing loops."""
    pending: list[tuple[HloComputation, _Loops]] = [(entry, ())]
    seen = {entry.name}
    while pending:
        computation, loops = pending.pop()
        yield computation, loops
        for site in graph.calls(computation.name):
            if site.caller.opcode in _CONTROL and site.attribute in _INNER_KEYS and site.callee not in seen:
                seen.add(site.callee)
                around = (*loops, site.caller.name) if site.attribute == "body" else loops
                pending.append((graph.module.computation(site.callee), around))


def _make_intermediate(
    graph: HloGraph, instruction: HloInstruction, path: _Path, shape: Shape, sharding: Sharding | None, loops: _Loops
) -> IntermediateFact:
    provenance = find_provenance(graph, [instruction])
    layout = shape.layout
    return IntermediateFact(
        name=instruction.name + "".join(f"[{index}]" for index in path),
        computation=instruction.computation.name,
        line=instruction.line,
        dtype=shape.element_type,
        global_shape=_multiply_by_tiles(shape.dimensions, _count_tiles(shape, sharding)),
        local_shape=shape.dimensions,
        bytes_per_device=shape.byte_size or 0,
        padded_bytes_per_device=None if layout is None else shape.padded_byte_size,
        memory_space=0 if layout is None else layout.memory_space,
        loops=loops,
        op_name=provenance.op_name,
        source=provenance.source,
        source_of=provenance.source_of,
    )


_Path = tuple[int, ...]
"""Tuple indices into a result, outermost first."""

_ALIAS = re.compile(r"\{(?P<output>[\d,\s]*)\}\s*:\s*\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}")
_DEPTH_LIMIT = 64
_SAME_MEMORY = frozenset({
    "bitcast", "opt-barrier", "add-dependency", "dynamic-update-slice", "scatter", "while", "all-reduce-done",
    "recv-done",
})  # fmt: skip
_RESULT_OF_START = {"copy-done": 0}
"""Index, in a start's result, of the element that its `-done` returns; 1 for opcodes not listed."""
_START_SHARES = {"copy-start": 1}
"""Index, in a start's result, of the element that is the operand itself; 0 for opcodes not listed."""


@lru_cache(maxsize=64)
def parse_aliases(text: str) -> Mapping[_Path, tuple[int, _Path]]:
    """Reads `{0}: (2, {1}, may-alias), …`: for each output, the operand or argument that it shares, and its element."""
    return {
        _parse_tuple_path(alias["output"]): (int(alias["number"]), _parse_tuple_path(alias["index"]))
        for alias in _ALIAS.finditer(text)
    }


def _parse_tuple_path(text: str) -> _Path:
    """Reads `0, 1`."""
    return tuple(int(index) for index in re.findall(r"\d+", text))


def _list_arrays(shape: Shape, path: _Path = ()) -> Iterator[tuple[_Path, Shape]]:
    """The arrays, tokens and buffers of a shape, each with its position in the tuple."""
    if not shape.is_tuple:
        yield path, shape
    for index, element in enumerate(shape.elements if shape.is_tuple else ()):
        yield from _list_arrays(element, (*path, index))


def find_memory_owner(graph: HloGraph, value: Value) -> Value | None:
    """The value whose memory this one shares; None if it has its own.

    Updates in place are assumed to happen in place, because XLA's copy insertion guarantees it in compiled text.
    """
    instruction, path = value.instruction, value.path
    number = 0
    match instruction.opcode:
        case "fusion":
            return _find_value_shared_by_fusion(graph, instruction, path)
        case "get-tuple-element" if instruction.tuple_index is not None:
            path = (instruction.tuple_index, *path)
        case "tuple" if path:
            number, path = path[0], path[1:]
        case opcode if opcode in _SAME_MEMORY or opcode.endswith("-update"):
            pass
        case opcode if opcode.endswith("-done"):
            path = (_RESULT_OF_START.get(opcode, 1), *path)
        case opcode if opcode == "send" or (opcode.endswith("-start") and instruction.shape.is_tuple):
            if path[:1] != (_START_SHARES.get(opcode, 0),):
                return None
            path = path[1:]
        case _:
            return None
    operand = instruction.operand(number)
    return None if operand is None else Value(operand, path)


def _find_buffer(graph: HloGraph, value: Value) -> Value:
    """The value that allocated the memory of another value."""
    return follow_values(value, partial(find_memory_owner, graph), _DEPTH_LIMIT)


def _find_value_shared_by_fusion(graph: HloGraph, fusion: HloInstruction, path: _Path) -> Value | None:
    """The operand that a fusion updates in place or returns unchanged."""
    printed = fusion.attributes.get("output_to_operand_aliasing")
    alias = parse_aliases(printed).get(path) if printed else None
    if alias is not None:
        number, inner = alias
    elif fusion.called:
        inside = Value(graph.module.computation(fusion.called[0][1]).root, path)
        inside = _find_buffer(graph, inside)
        if inside.instruction.opcode != "parameter" or inside.instruction.parameter_number is None:
            return None
        number, inner = inside.instruction.parameter_number, inside.path
    else:
        return None
    operand = fusion.operand(number)
    return None if operand is None else Value(operand, inner)
