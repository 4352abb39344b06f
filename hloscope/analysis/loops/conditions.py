"""The condition of a loop, as comparisons joined by and, or and not."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.loops.progressions import Direction
from hloscope.analysis.loops.scalars import Linear, read_linear
from hloscope.analysis.values.handing_on import Frames, pass_through
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_DEPTH_LIMIT = 100
_STEP_LIMIT = 1000
"""Values looked at for one condition: an operand that is used twice is looked at twice, at every level."""
_CONSTANTS = {"false": False, "0": False, "true": True, "1": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`left` `direction` `right`, both functions of what the loop carries, of one integer type."""

    left: Linear
    right: Linear
    direction: Direction

    @property
    def element_type(self) -> str:
        """The type that both sides have."""
        return self.left.element_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """All of some conditions, or any of them.

    Attributes:
        is_all: Whether all of them have to hold.
        parts: The conditions; None for one that cannot be read.
    """

    is_all: bool
    parts: tuple[Condition | None, ...]


Condition = Comparison | Junction | bool


def read_condition(graph: HloGraph, value: Value) -> Condition | None:
    """Reads a condition; None when it is none of these, or when the text does not fit together."""
    return _Reader(graph).read(value, (), False, 0)


def read_comparison(
    graph: HloGraph, compare: HloInstruction, frames: Frames = (), *, negated: bool = False
) -> Comparison | None:
    """Reads a `compare` of integers, or its negation."""
    direction = Direction.__members__.get(compare.attributes.get("direction", ""))
    if compare.opcode != "compare" or len(compare.operands) != 2 or direction is None:
        return None
    left, right = (read_linear(graph, Value(operand), frames) for operand in compare.operands)
    if left is None or right is None or left.element_type != right.element_type:
        return None
    signs = {"SIGNED": "s", "UNSIGNED": "u"}
    if not left.element_type.startswith(signs.get(compare.attributes.get("type", ""), "")):
        return None
    return Comparison(left=left, right=right, direction=direction.opposite if negated else direction)


class _Reader:
    """Reads one condition, in a limited number of steps."""

    __slots__ = ("graph", "steps")

    def __init__(self, graph: HloGraph) -> None:
        self.graph = graph
        self.steps = 0

    def read(self, value: Value, frames: Frames, negated: bool, depth: int) -> Condition | None:
        instruction = value.instruction
        operands = instruction.operands
        self.steps += 1
        if depth > _DEPTH_LIMIT or self.steps > _STEP_LIMIT:
            return None
        match instruction.opcode:
            case "compare":
                return read_comparison(self.graph, instruction, frames, negated=negated)
            case "and" | "or" if len(operands) == 2 and _is_boolean(instruction):
                parts = tuple(self.read(Value(operand), frames, negated, depth + 1) for operand in operands)
                return Junction(is_all=(instruction.opcode == "and") != negated, parts=parts)
            case "not" if len(operands) == 1 and _is_boolean(instruction):
                return self.read(Value(operands[0]), frames, not negated, depth + 1)
            case "fusion" | "call" if instruction.called:
                root = self.graph.module.computation(instruction.called[0][1]).root
                return self.read(Value(root, value.path), (*frames, instruction), negated, depth + 1)
            case "constant" if _is_boolean(instruction) and (instruction.literal or "") in _CONSTANTS:
                return _CONSTANTS[instruction.literal or ""] != negated
        source, outer = _handed_on(value, frames)
        return None if source is None else self.read(source, outer, negated, depth + 1)


def _is_boolean(instruction: HloInstruction) -> bool:
    return instruction.shape.element_type == "pred"


def _handed_on(value: Value, frames: Frames) -> tuple[Value | None, Frames]:
    instruction = value.instruction
    if instruction.opcode == "parameter":
        number = instruction.parameter_number
        if not frames or number is None or number >= len(frames[-1].operands):
            return None, frames
        return Value(frames[-1].operands[number], value.path), frames[:-1]
    if instruction.opcode == "convert" and all(map(_is_boolean, (instruction, *instruction.operands[:1]))):
        return Value(instruction.operands[0]) if instruction.operands else None, frames
    return pass_through(value), frames
