"""Integer scalars of a loop, as linear functions of what the loop carries."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

Element = tuple[int, ...]
"""A carried scalar: the parameter's number, then tuple indices, outermost first."""

Frames = tuple[HloInstruction, ...]
"""The fusions and calls that were entered, outermost first; a parameter inside stands for the last one's operand."""

_DEPTH_LIMIT = 200
_TRANSPARENT = frozenset({"copy", "bitcast", "convert", "reshape", "opt-barrier", "copy-done", "bitcast-convert"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A sum of carried scalars, each times a whole number, and a constant.

    Attributes:
        offset: The constant.
        scales: What each carried scalar is multiplied by; never 0.
    """

    offset: int
    scales: dict[Element, int]


def constant(number: int) -> Linear:
    """The function that is `number` whatever the loop carries."""
    return Linear(offset=number, scales={})


def read_linear(graph: HloGraph, value: Value, frames: Frames = (), depth: int = 0) -> Linear | None:
    """Reads an integer scalar.

    Args:
        graph: The module.
        value: The scalar; may be an element of a tuple.
        frames: The fusions and calls around `value`; empty in the computation whose parameters are the elements.
        depth: Steps taken so far.

    Returns:
        The scalar as a linear function of the parameters' elements in the outermost computation, or None when it is
        anything else.
    """
    instruction, path = value.instruction, value.path
    if depth > _DEPTH_LIMIT:
        return None
    match instruction.opcode:
        case "constant":
            return None if path else _literal(instruction)
        case "parameter":
            return _read_parameter(graph, value, frames, depth)
        case "fusion" | "call":
            callee = graph.module.computation(instruction.called[0][1])
            return read_linear(graph, Value(callee.root, path), (*frames, instruction), depth + 1)
        case "add" | "subtract" | "multiply" | "negate":
            return None if path else _arithmetic(graph, instruction, frames, depth)
    source = _pass_through(value)
    return None if source is None else read_linear(graph, source, frames, depth + 1)


def carried(element: Element) -> Linear:
    """The carried scalar itself."""
    return Linear(offset=0, scales={element: 1})


def _pass_through(value: Value) -> Value | None:
    """The value that this one merely hands on; None when it is computed."""
    instruction, path = value.instruction, value.path
    if instruction.opcode == "get-tuple-element" and instruction.tuple_index is not None:
        return Value(instruction.operands[0], (instruction.tuple_index, *path))
    if instruction.opcode == "tuple" and path:
        return Value(instruction.operands[path[0]], path[1:])
    if instruction.opcode == "copy-start" and path:
        return Value(instruction.operands[0], path[1:])
    if instruction.opcode == "copy-done":
        return Value(instruction.operands[0], (0, *path))
    if instruction.opcode in _TRANSPARENT and instruction.operands:
        return Value(instruction.operands[0], path)
    return None


def _read_parameter(graph: HloGraph, value: Value, frames: Frames, depth: int) -> Linear | None:
    number = value.instruction.parameter_number
    if number is None:
        return None
    if not frames:
        return carried((number, *value.path))
    operands = frames[-1].operands
    if number >= len(operands):
        return None
    return read_linear(graph, Value(operands[number], value.path), frames[:-1], depth + 1)


def _literal(instruction: HloInstruction) -> Linear | None:
    """A constant of integer type; TPU text also prints one-element arrays as `{3}`."""
    try:
        return constant(int((instruction.literal or "").strip("{} ")))
    except ValueError:
        return None


def _arithmetic(graph: HloGraph, instruction: HloInstruction, frames: Frames, depth: int) -> Linear | None:
    terms = [read_linear(graph, Value(operand), frames, depth + 1) for operand in instruction.operands]
    known = [term for term in terms if term is not None]
    if len(known) != len(terms) or not known:
        return None
    if instruction.opcode == "negate":
        return _scaled(known[0], -1)
    if instruction.opcode == "multiply":
        return _product(known[0], known[1])
    return _sum(known[0], _scaled(known[1], -1) if instruction.opcode == "subtract" else known[1])


def _sum(left: Linear, right: Linear) -> Linear:
    elements = dict.fromkeys((*left.scales, *right.scales))
    sums = {element: left.scales.get(element, 0) + right.scales.get(element, 0) for element in elements}
    return Linear(
        offset=left.offset + right.offset, scales={element: scale for element, scale in sums.items() if scale}
    )


def _scaled(term: Linear, factor: int) -> Linear:
    if factor == 0:
        return constant(0)
    return Linear(
        offset=term.offset * factor, scales={element: scale * factor for element, scale in term.scales.items()}
    )


def _product(left: Linear, right: Linear) -> Linear | None:
    if left.scales and right.scales:
        return None
    return _scaled(left, right.offset) if left.scales else _scaled(right, left.offset)
