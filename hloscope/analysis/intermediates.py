"""The largest arrays that a program makes on the way."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from hloscope.analysis.arrays import global_shape_of, leaves_of
from hloscope.analysis.model import IntermediateFact
from hloscope.analysis.provenance import provenance_of_value
from hloscope.analysis.values.buffers import Path, arrays_of, buffer_of, shares
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloComputation, HloInstruction, Shape, Sharding

SHOWN = 10
"""Arrays that are told."""
NEGLIGIBLE = 1000
"""An array that is this many times smaller than the largest one is not told."""

_NEVER_MAKE_ONE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "opt-barrier",
    "after-all", "partition-id", "replica-id", "send", "add-dependency", "dynamic-update-slice",
})  # fmt: skip
_INNER = frozenset({"body", "to_apply", "branch_computations", "true_computation", "false_computation"})
_CONTROL = frozenset({"while", "conditional", "call"})

_Loops = tuple[str, ...]


def largest_intermediates(graph: HloGraph) -> tuple[IntermediateFact, ...]:
    """The largest arrays that ENTRY, and the loops, branches and calls in it, take memory for.

    What only shares the memory of another array is not among them: tuples and their elements, bitcasts, updates in
    place, what a loop carries. Neither are arguments and outputs, and what stays inside a fusion.
    """
    if graph.entry is None:
        return ()
    outputs = {buffer_of(graph, Value(graph.entry.root, path)) for path, _ in arrays_of(graph.entry.root.shape)}
    largest: dict[int, int] = {}
    makers = [
        (size, instruction, loops)
        for computation, loops in _computations(graph, graph.entry)
        for instruction in computation.instructions
        if instruction.opcode not in _NEVER_MAKE_ONE and (size := _largest_array(instruction.shape, largest))
    ]
    makers.sort(key=lambda maker: (-maker[0], maker[1].line))
    found: list[tuple[int, HloInstruction, Path, Shape, Sharding | None, _Loops]] = []
    shown_sizes: list[int] = []
    for size, instruction, loops in makers:
        if len(shown_sizes) == SHOWN and size <= shown_sizes[0]:
            break
        for path, shape, sharding in leaves_of(instruction.shape, instruction.sharding):
            value = Value(instruction, path)
            if shape.byte_size and value not in outputs and shares(graph, value) is None:
                found.append((_size(shape), instruction, path, shape, sharding, loops))
                heappush(shown_sizes, _size(shape))
                if len(shown_sizes) > SHOWN:
                    heappop(shown_sizes)
    found.sort(key=lambda one: -one[0])
    least = found[0][0] // NEGLIGIBLE if found else 0
    return tuple(_fact(graph, *one[1:]) for one in found[:SHOWN] if (one[3].byte_size or 0) >= least)


def _computations(graph: HloGraph, entry: HloComputation) -> Iterator[tuple[HloComputation, _Loops]]:
    """ENTRY, and what runs in it as a step of its own; each once, with the loops around it."""
    pending: list[tuple[HloComputation, _Loops]] = [(entry, ())]
    seen = {entry.name}
    while pending:
        computation, loops = pending.pop()
        yield computation, loops
        for site in graph.calls(computation.name):
            if site.caller.opcode in _CONTROL and site.attribute in _INNER and site.callee not in seen:
                seen.add(site.callee)
                around = (*loops, site.caller.name) if site.attribute == "body" else loops
                pending.append((graph.module.computation(site.callee), around))


def _largest_array(shape: Shape, known: dict[int, int]) -> int:
    """Bytes of the largest array in a shape; `known` has those of other instructions with the same one."""
    size = known.get(id(shape))
    if size is None:
        size = known[id(shape)] = max((_size(array) for _, array in arrays_of(shape)), default=0)
    return size


def _size(shape: Shape) -> int:
    return shape.padded_byte_size or 0


def _fact(
    graph: HloGraph, instruction: HloInstruction, path: Path, shape: Shape, sharding: Sharding | None, loops: _Loops
) -> IntermediateFact:
    provenance = provenance_of_value(graph, instruction)
    layout = shape.layout
    return IntermediateFact(
        name=instruction.name + "".join(f"[{index}]" for index in path),
        computation=instruction.computation.name,
        line=instruction.line,
        dtype=shape.element_type,
        global_shape=global_shape_of(shape, sharding),
        local_shape=shape.dimensions,
        bytes_per_device=shape.byte_size or 0,
        padded_bytes_per_device=None if layout is None else shape.padded_byte_size,
        memory_space=0 if layout is None else layout.memory_space,
        loops=loops,
        op_name=provenance.op_name,
        source=provenance.source,
        source_of=provenance.source_of,
    )
