"""Where a value goes to and where it comes from, through tuples, copies, fusions and loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.graph.hlo_graph import HloGraph, call_sites
from hloscope.hlo import HloInstruction

VISIT_LIMIT = 96
"""Values looked at before a search gives up: what is further away than this says nothing about the value."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value, or one element of a tuple.

    Attributes:
        instruction: The instruction that makes it.
        path: Tuple indices into the instruction's result, outermost first; empty for the whole result.
    """

    instruction: HloInstruction
    path: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What tells this value from all others of the module."""
        return self.instruction.computation.name, self.instruction.name, self.path


def consumers(graph: HloGraph, instruction: HloInstruction, limit: int = VISIT_LIMIT) -> Iterator[HloInstruction]:
    """Instructions that the result reaches, nearest first.

    Follows elements through tuples, loop bodies (also into the next iteration), calls and fused computations.
    """
    queue = deque([Value(instruction)])
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    while queue and len(seen) < limit:
        for value in _next_values(graph, queue.popleft()):
            if value.key not in seen:
                seen.add(value.key)
                yield value.instruction
                queue.append(value)


def producers(graph: HloGraph, instruction: HloInstruction, limit: int = VISIT_LIMIT) -> Iterator[HloInstruction]:
    """Instructions that the operands come from, nearest first; the mirror of `consumers`."""
    queue = deque(Value(operand) for operand in instruction.operands)
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    while queue and len(seen) < limit:
        value = queue.popleft()
        if value.key in seen:
            continue
        seen.add(value.key)
        yield value.instruction
        queue.extend(_previous_values(graph, value))


def _next_values(graph: HloGraph, value: Value) -> Iterator[Value]:
    for user in value.instruction.users:
        yield from _through_user(graph, value, user)
    if value.instruction.is_root:
        yield from _out_of_computation(graph, value)


def _through_user(graph: HloGraph, value: Value, user: HloInstruction) -> Iterator[Value]:
    path = value.path
    if user.opcode == "get-tuple-element":
        if not path or path[0] == user.tuple_index:
            yield Value(user, path[1:])
        return
    positions = user.positions_of(value.instruction)
    if user.opcode == "tuple":
        yield from (Value(user, (position, *path)) for position in positions)
        return
    if user.opcode in ("fusion", "call", "while", "conditional", "async-start"):
        for site in call_sites(user):
            numbers = _argument_numbers(user.opcode, site.position, positions)
            yield from _into_callee(graph, site.callee, numbers, path)
    yield Value(user, path if user.opcode in ("while", "copy", "bitcast", "opt-barrier") else ())


def _argument_numbers(opcode: str, position: int, operand_positions: list[int]) -> list[int]:
    """The callee's parameters that an operand becomes; branch n of a conditional takes operand n + 1 alone."""
    if opcode == "conditional":
        return [0] if position + 1 in operand_positions else []
    return operand_positions


def _into_callee(graph: HloGraph, callee: str, numbers: list[int], path: tuple[int, ...]) -> Iterator[Value]:
    parameters = graph.module.computation(callee).parameters
    yield from (Value(parameters[number], path) for number in numbers if number < len(parameters))


def _out_of_computation(graph: HloGraph, value: Value) -> Iterator[Value]:
    for site in graph.callers(value.instruction.computation.name):
        if site.attribute == "condition":
            continue
        if site.attribute == "body":
            yield from _into_callee(graph, site.callee, [0], value.path)
        yield Value(site.caller, value.path)


def _previous_values(graph: HloGraph, value: Value) -> Iterator[Value]:
    instruction, path = value.instruction, value.path
    if instruction.opcode == "get-tuple-element" and instruction.tuple_index is not None:
        yield from (Value(operand, (instruction.tuple_index, *path)) for operand in instruction.operands[:1])
        return
    if instruction.opcode == "tuple" and path:
        yield from (Value(operand, path[1:]) for operand in instruction.operands[path[0] : path[0] + 1])
        return
    if instruction.opcode == "parameter":
        yield from _into_callers(graph, instruction, path)
        return
    if instruction.opcode in ("fusion", "call", "while", "conditional"):
        for site in call_sites(instruction):
            if site.attribute != "condition":
                yield Value(graph.module.computation(site.callee).root, path)
    keeps_path = instruction.opcode in ("while", "copy", "bitcast", "opt-barrier")
    yield from (Value(operand, path if keeps_path else ()) for operand in instruction.operands)


def _into_callers(graph: HloGraph, parameter: HloInstruction, path: tuple[int, ...]) -> Iterator[Value]:
    number = parameter.parameter_number or 0
    for site in graph.callers(parameter.computation.name):
        operands = site.caller.operands
        place = site.position + 1 if site.caller.opcode == "conditional" else number
        if place < len(operands):
            yield Value(operands[place], path)
        if site.attribute == "body":
            yield Value(graph.module.computation(site.callee).root, path)
