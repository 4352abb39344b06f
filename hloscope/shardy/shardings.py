"""The shardings that Shardy gave arrays: those of the program, and those of large arrays in the compiled module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, prod

from hloscope.analysis.model import Frame, IntermediateFact, SourceFrame
from hloscope.analysis.places import find_users_frame
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.shardy.graph import MOVE_KINDS, ShardyGraph, find_source_line, is_written
from hloscope.shardy.letters import Letters
from hloscope.shardy.names import have_matching_ends
from hloscope.shardy.reshards import cache_local_shape, find_reshards, hlo_type, known_sharding, local_shape
from hloscope.shardy.tensors import UserProgram, find_own_name, read_user_program, render_spec, to_frames
from hloscope.shown import Brief
from hloscope.units import count_array_bytes

_HELD = frozenset({"func.func", "func.call", "stablehlo.constant", "sdy.constant", "stablehlo.while"})


class ArrayRole(StrEnum):
    """The role of an array in the program."""

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

    role: ArrayRole
    name: str
    element_type: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    sharding: str
    bytes_per_device: int | None
    source: Frame | None = None
    is_moved: bool = False


def list_sharded_arrays(
    module: ShardyModule, letters: Sequence[Letters | None], outputs: Sequence[str], *, largest: int = 10
) -> tuple[ShardedArray, ...]:
    """The arguments, constraints and outputs in the program's order, then the largest intermediates.

    Args:
        module: The module after propagation.
        letters: The letters of the arguments.
        outputs: The names of the outputs.
        largest: Maximum number of intermediates; those that look the same in the report count once.
    """
    program = read_user_program(ShardyGraph(module), letters, outputs)
    moved = {same.index for reshard in find_reshards(program.graph) for same in program.graph.passed_in(reshard.value)}
    reader = _ShardingReader(program, dict(module.mesh), moved)
    arguments = [value for value in module.values if program.graph.is_program_argument(value)]
    constraints = [op for op in module.ops if is_written(op)]
    return (
        *(reader.array(ArrayRole.ARGUMENT, value, value.name or f"argument {value.number}") for value in arguments),
        *(reader.constraint(op) for op in constraints),
        *reader.outputs(outputs),
        *reader.largest(largest),
    )


@dataclass(frozen=True, slots=True)
class _ShardingReader:
    program: UserProgram
    mesh: dict[str, int]
    moved: set[int]

    def array(self, role: ArrayRole, value: ShardyValue, name: str, source: SourceFrame | None = None) -> ShardedArray:
        sharding = known_sharding(value)
        local = local_shape(value.shape, sharding, self.mesh)
        element_type = hlo_type(value.element_type)
        return ShardedArray(
            role=role,
            name=name,
            element_type=element_type,
            global_shape=value.shape,
            local_shape=local,
            sharding=render_spec(sharding, value.unreduced) or "P()",
            bytes_per_device=count_array_bytes(element_type, prod(local)),
            source=source,
            is_moved=value.index in self.moved,
        )

    def constraint(self, op: ShardyOp) -> ShardedArray:
        value = self.program.graph.value(op.results[0])
        if op.asked is not None:  # its own sharding may still be its operand's, followed by the reshard
            value = replace(value, sharding=op.asked)
        return self.array(
            ArrayRole.CONSTRAINT, value, find_own_name(self.program, value), find_users_frame(to_frames(op.source))
        )

    def outputs(self, names: Sequence[str]) -> Iterator[ShardedArray]:
        graph = self.program.graph
        returned = None if graph.module.main is None else graph.returns.get((graph.module.main, 0))
        for number, operand in enumerate(() if returned is None else returned.operands):
            name = names[number] if number < len(names) else f"result[{number}]"
            yield self.array(ArrayRole.OUTPUT, graph.value(operand), name)

    def largest(self, count: int) -> list[ShardedArray]:
        graph = self.program.graph
        made = [value for value in graph.module.values if not value.is_argument and value.shape]
        made = [value for value in made if graph.module.ops[value.owner].kind not in MOVE_KINDS | _HELD]
        sized = [(self._bytes(value), value) for value in made if not graph.in_manual(graph.module.ops[value.owner])]
        sized.sort(key=lambda pair: (-pair[0], pair[1].index))
        found: dict[ShardedArray, None] = {}
        for _, value in sized:
            op = graph.module.ops[value.owner]
            name = find_own_name(self.program, value)
            found.setdefault(self.array(ArrayRole.INTERMEDIATE, value, name, find_users_frame(to_frames(op.source))))
            if len(found) == count:
                break
        return list(found)

    def _bytes(self, value: ShardyValue) -> float:
        """Bytes on one device, for sorting; an array whose type has no known size sorts first."""
        local = local_shape(value.shape, known_sharding(value), self.mesh)
        known = count_array_bytes(hlo_type(value.element_type), prod(local))
        return inf if known is None else known


def attach_shardings(found: Sequence[IntermediateFact], module: ShardyModule) -> tuple[IntermediateFact, ...]:
    """Adds to each array the global shape and sharding of the value that it is a device's part of.

    That is the value that is cut to this array's shape and produced by the operation of its name, in any type that the
    compiler keeps it in; otherwise the one of its type from its line of code. The array is unchanged if there is no
    such value, or if there are several with different shardings.

    Args:
        found: Large arrays of the compiled program.
        module: The program after Shardy's propagation.
    """
    graph, cut_to = ShardyGraph(module), cache_local_shape(dict(module.mesh))
    cut: dict[tuple[int, ...], list[ShardyValue]] = {fact.local_shape: [] for fact in found}
    for value in module.values:
        if value.is_argument or not value.shape:
            continue
        alike, maker = cut.get(cut_to(value.shape, known_sharding(value))), module.ops[value.owner]
        if alike is not None and maker.kind not in MOVE_KINDS and not graph.in_manual(maker):
            alike.append(value)
    return tuple(_attach_sharding(fact, cut[fact.local_shape], module) for fact in found)


def _attach_sharding(fact: IntermediateFact, values: Iterable[ShardyValue], module: ShardyModule) -> IntermediateFact:
    made_by = [(value, module.ops[value.owner]) for value in values]
    named = [value for value, op in made_by if _has_name_of(fact, op)]
    of_its_type = ((value, op) for value, op in made_by if hlo_type(value.element_type) == fact.dtype)
    chosen = named or [value for value, op in of_its_type if _has_line_of(fact, op)]
    whole = {(value.shape, render_spec(known_sharding(value)) or "P()") for value in chosen}
    if len(whole) != 1:
        return fact
    [(shape, sharding)] = whole
    return replace(fact, global_shape=shape, sharding=sharding)


def _has_name_of(fact: IntermediateFact, op: ShardyOp) -> bool:
    return fact.op_name is not None and op.op_name is not None and have_matching_ends(op.op_name, fact.op_name)


def _has_line_of(fact: IntermediateFact, op: ShardyOp) -> bool:
    return bool(fact.source) and find_source_line(fact.source) == find_source_line(op.source)
