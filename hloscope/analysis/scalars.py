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
    """`scale` x the carried scalar `element` + `offset`; a constant when `element` is None and `scale` is 0."""

    scale: int
    offset: int
    element: Element | None


def constant(number: int) -> Linear:
    """The function that is `number` whatever the loop carries."""
    return Linear(scale=0, offset=number, element=None)


def read_linear(graph: HloGraph, value: Value, frames: Frames = (), depth: int = 0) -> Linear | None:
    """Reads an integer scalar.

    Args:
        graph: The module.
        value: The scalar; may be an element of a tuple.
        frames: The fusions and calls around `value`; empty in the computation whose parameters are the elements.
        depth: Steps taken so far.

    Returns:
        The scalar as a linear function of one parameter element of the outermost computation, or None when it is
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
    return Linear(scale=1, offset=0, element=element)


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
        return _multiply(known[0], constant(-1))
    if instruction.opcode == "multiply":
        return _multiply(known[0], known[1])
    if instruction.opcode == "subtract":
        minus = _multiply(known[1], constant(-1))
        return None if minus is None else _add(known[0], minus)
    return _add(known[0], known[1])


def _add(left: Linear, right: Linear) -> Linear | None:
    if left.element is not None and right.element is not None and left.element != right.element:
        return None
    scale = left.scale + right.scale
    return Linear(
        scale=scale, offset=left.offset + right.offset, element=(left.element or right.element) if scale else None
    )


def _multiply(left: Linear, right: Linear) -> Linear | None:
    if left.element is not None and right.element is not None:
        return None
    factor, term = (left.offset, right) if left.element is None else (right.offset, left)
    scale = term.scale * factor
    return Linear(scale=scale, offset=term.offset * factor, element=term.element if scale else None)
