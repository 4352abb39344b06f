"""Every array of a program with its sharding, as Shardy propagates it: arguments, constraints, outputs, large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, prod

from hloscope.analysis.model import SourceFrame
from hloscope.analysis.places import users_frame
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.units import array_bytes
from hloscope.why.constraints import is_written
from hloscope.why.element_types import hlo_type
from hloscope.why.graph import MOVES, ShardyGraph
from hloscope.why.letters import Letters
from hloscope.why.moves import local_shape, moves_of, sharding_known
from hloscope.why.tensors import Program, frames_of, own_name, program_of, spec_of

_HELD = frozenset({"func.func", "func.call", "stablehlo.constant", "sdy.constant", "stablehlo.while"})


class Role(StrEnum):
    """What an array is in the program."""

    ARGUMENT = "argument"
    CONSTRAINT = "constraint"
    OUTPUT = "output"
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedArray:
    """One array.

    Attributes:
        role: What it is in the program.
        name: The user's name, or what made it.
        element_type: XLA's short type name.
        global_shape: Dimensions of the whole array.
        local_shape: Dimensions on one device, rounded up.
        sharding: Such as `P('X', None)`.
        bytes_per_device: Logical bytes on one device; None when the type is not known.
        source: Where it is made or constrained; None for arguments and outputs.
        is_moved: Whether Shardy moves it before it is used.
    """

    role: Role
    name: str
    element_type: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    sharding: str
    bytes_per_device: int | None
    source: SourceFrame | None = None
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
    moved = {one.index for move in moves_of(program.graph) for one in program.graph.passed_in(move.value)}
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
