"""The shardings that Shardy gave arrays: each of a program's own, and the large ones of the compiled module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, prod

from hloscope.analysis.model import Frame, IntermediateFact, SourceFrame
from hloscope.analysis.places import users_frame
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.shardy.graph import MOVES, ShardyGraph, is_written, place_of
from hloscope.shardy.letters import Letters
from hloscope.shardy.names import ends_alike
from hloscope.shardy.reshards import hlo_type, local_shape, local_shapes, reshards_of, sharding_known
from hloscope.shardy.tensors import Program, frames_of, own_name, program_of, spec_of
from hloscope.shown import Brief
from hloscope.units import array_bytes

_HELD = frozenset({"func.func", "func.call", "stablehlo.constant", "sdy.constant", "stablehlo.while"})


class Role(StrEnum):
    """What an array is in the program."""

    ARGUMENT = "argument"
    CONSTRAINT = "constraint"
    OUTPUT = "output"
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardedArray(Brief):
    """One array of the program, with its sharding.

    Attributes:
        role: Role in the program.
        name: The user's name, or the operation that produces it.
        element_type: XLA's short type name.
        global_shape: Dimensions of the whole array.
        local_shape: Dimensions on one device, rounded up.
        sharding: The sharding, such as `P('X', None)`.
        bytes_per_device: Logical bytes on one device; None if the type is unknown.
        source: Where it is produced or constrained; None for arguments and outputs.
        is_moved: Whether Shardy reshards it before it is used.
    """

    role: Role
    name: str
    element_type: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    sharding: str
    bytes_per_device: int | None
    source: Frame | None = None
    is_moved: bool = False


def sharded_arrays(
    module: ShardyModule, letters: Sequence[Letters | None], outputs: Sequence[str], *, largest: int = 10
) -> tuple[ShardedArray, ...]:
    """Arguments, constraints and outputs in the program's order, then the largest intermediates.

    Args:
        module: After propagation.
        letters: Of the arguments.
        outputs: Names.
        largest: How many intermediates at most; those alike in all that is shown count once.
    """
    program = program_of(ShardyGraph(module), letters, outputs)
    moved = {same.index for reshard in reshards_of(program.graph) for same in program.graph.passed_in(reshard.value)}
    reader = _Reader(program, dict(module.mesh), moved)
    arguments = [value for value in module.values if program.graph.is_program_argument(value)]
    constraints = [op for op in module.ops if is_written(op)]
    return (
        *(reader.array(Role.ARGUMENT, value, value.name or f"argument {value.number}") for value in arguments),
        *(reader.constraint(op) for op in constraints),
        *reader.outputs(outputs),
        *reader.largest(largest),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    program: Program
    mesh: dict[str, int]
    moved: set[int]

    def array(self, role: Role, value: ShardyValue, name: str, source: SourceFrame | None = None) -> ShardedArray:
        sharding = sharding_known(value)
        local = local_shape(value.shape, sharding, self.mesh)
        element_type = hlo_type(value.element_type)
        return ShardedArray(
            role=role,
            name=name,
            element_type=element_type,
            global_shape=value.shape,
            local_shape=local,
            sharding=spec_of(sharding, value.unreduced) or "P()",
            bytes_per_device=array_bytes(element_type, prod(local)),
            source=source,
            is_moved=value.index in self.moved,
        )

    def constraint(self, op: ShardyOp) -> ShardedArray:
        value = self.program.graph.value(op.results[0])
        if op.asked is not None:  # what it has may still be its operand's, with the reshard behind it
            value = replace(value, sharding=op.asked)
        return self.array(Role.CONSTRAINT, value, own_name(self.program, value), users_frame(frames_of(op.source)))

    def outputs(self, names: Sequence[str]) -> Iterator[ShardedArray]:
        graph = self.program.graph
        returned = None if graph.module.main is None else graph.returns.get((graph.module.main, 0))
        for number, operand in enumerate(() if returned is None else returned.operands):
            name = names[number] if number < len(names) else f"result[{number}]"
            yield self.array(Role.OUTPUT, graph.value(operand), name)

    def largest(self, count: int) -> list[ShardedArray]:
        graph = self.program.graph
        made = [value for value in graph.module.values if not value.is_argument and value.shape]
        made = [value for value in made if graph.module.ops[value.owner].kind not in MOVES | _HELD]
        sized = [(self._bytes(value), value) for value in made if not graph.in_manual(graph.module.ops[value.owner])]
        sized.sort(key=lambda pair: (-pair[0], pair[1].index))
        found: dict[ShardedArray, None] = {}
        for _, value in sized:
            op = graph.module.ops[value.owner]
            name = own_name(self.program, value)
            found.setdefault(self.array(Role.INTERMEDIATE, value, name, users_frame(frames_of(op.source))))
            if len(found) == count:
                break
        return list(found)

    def _bytes(self, value: ShardyValue) -> float:
        """Bytes on one device, for the order; an array whose type has no known size comes first."""
        local = local_shape(value.shape, sharding_known(value), self.mesh)
        known = array_bytes(hlo_type(value.element_type), prod(local))
        return inf if known is None else known


def with_shardings(found: Sequence[IntermediateFact], module: ShardyModule) -> tuple[IntermediateFact, ...]:
    """Gives each array the whole shape and the sharding of the value that it is a device's part of.

    That is the value which is cut to this array's shape and was made by the operation of its name, in whatever type the
    compiler keeps it; else the one of its type made at its line of code. An array stays without where there is no such
    value, or several that are sharded in different ways.

    Args:
        found: Large arrays of the compiled program.
        module: The program after Shardy's propagation.
    """
    graph, cut_to = ShardyGraph(module), local_shapes(dict(module.mesh))
    cut: dict[tuple[int, ...], list[ShardyValue]] = {fact.local_shape: [] for fact in found}
    for value in module.values:
        if value.is_argument or not value.shape:
            continue
        alike, maker = cut.get(cut_to(value.shape, sharding_known(value))), module.ops[value.owner]
        if alike is not None and maker.kind not in MOVES and not graph.in_manual(maker):
            alike.append(value)
    return tuple(_with_sharding(fact, cut[fact.local_shape], module) for fact in found)


def _with_sharding(fact: IntermediateFact, values: Iterable[ShardyValue], module: ShardyModule) -> IntermediateFact:
    made_by = [(value, module.ops[value.owner]) for value in values]
    named = [value for value, op in made_by if _has_its_name(fact, op)]
    of_its_type = ((value, op) for value, op in made_by if hlo_type(value.element_type) == fact.dtype)
    chosen = named or [value for value, op in of_its_type if _has_its_line(fact, op)]
    whole = {(value.shape, spec_of(sharding_known(value)) or "P()") for value in chosen}
    if len(whole) != 1:
        return fact
    [(shape, sharding)] = whole
    return replace(fact, global_shape=shape, sharding=sharding)


def _has_its_name(fact: IntermediateFact, op: ShardyOp) -> bool:
    return fact.op_name is not None and op.op_name is not None and ends_alike(op.op_name, fact.op_name)


def _has_its_line(fact: IntermediateFact, op: ShardyOp) -> bool:
    return bool(fact.source) and place_of(fact.source) == place_of(op.source)
