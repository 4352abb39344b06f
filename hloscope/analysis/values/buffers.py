"""Which values share the memory of another one, rather than take memory of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction, Shape

Path = tuple[int, ...]
"""Tuple indices into a result, outermost first."""

_ALIAS = re.compile(r"\{(?P<output>[\d,\s]*)\}\s*:\s*\(\s*(?P<number>\d+)\s*,\s*\{(?P<index>[\d,\s]*)\}")
_DEPTH_LIMIT = 64
_SAME = frozenset({
    "bitcast", "opt-barrier", "add-dependency", "dynamic-update-slice", "scatter", "while", "all-reduce-done",
    "recv-done",
})  # fmt: skip
_RESULT_OF_START = {"copy-done": 0}
"""The element of a start's result that its `-done` hands out; element 1 for all others."""
_START_SHARES = {"copy-start": 1}
"""The element of a start's result that is the operand itself; element 0 for all others."""


@lru_cache(maxsize=64)
def aliases_in_text(text: str) -> Mapping[Path, tuple[int, Path]]:
    """Reads `{0}: (2, {1}, may-alias), …`: the operand or argument, and its element, that each output shares."""
    return {
        path_in_text(one["output"]): (int(one["number"]), path_in_text(one["index"])) for one in _ALIAS.finditer(text)
    }


def path_in_text(text: str) -> Path:
    """Reads `0, 1`."""
    return tuple(int(index) for index in re.findall(r"\d+", text))


def arrays_of(shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Shape]]:
    """The arrays, tokens and buffers of a shape, each with its place in the tuple."""
    if not shape.is_tuple:
        yield path, shape
    for index, element in enumerate(shape.elements if shape.is_tuple else ()):
        yield from arrays_of(element, (*path, index))


def shares(graph: HloGraph, value: Value) -> Value | None:
    """The value whose memory this one shares; None when it has its own.

    In-place updates are taken to be in place: XLA's copy insertion has seen to it in compiled text.
    """
    instruction, path = value.instruction, value.path
    number = 0
    match instruction.opcode:
        case "fusion":
            return _shared_by_fusion(graph, instruction, path)
        case "get-tuple-element" if instruction.tuple_index is not None:
            path = (instruction.tuple_index, *path)
        case "tuple" if path:
            number, path = path[0], path[1:]
        case opcode if opcode in _SAME or opcode.endswith("-update"):
            pass
        case opcode if opcode.endswith("-done"):
            path = (_RESULT_OF_START.get(opcode, 1), *path)
        case opcode if _is_start(instruction) and path[:1] == (_START_SHARES.get(opcode, 0),):
            path = path[1:]
        case _:
            return None
    operand = instruction.operand(number)
    return None if operand is None else Value(operand, path)


def _is_start(instruction: HloInstruction) -> bool:
    return instruction.opcode == "send" or (instruction.opcode.endswith("-start") and instruction.shape.is_tuple)


def buffer_of(graph: HloGraph, value: Value) -> Value:
    """The value that made the memory in which another one lies."""
    for _ in range(_DEPTH_LIMIT):
        source = shares(graph, value)
        if source is None:
            break
        value = source
    return value


def _shared_by_fusion(graph: HloGraph, fusion: HloInstruction, path: Path) -> Value | None:
    """The operand that a fusion updates in place, or hands on."""
    printed = fusion.attributes.get("output_to_operand_aliasing")
    alias = aliases_in_text(printed).get(path) if printed else None
    if alias is not None:
        number, inner = alias
    elif fusion.called:
        inside = Value(graph.module.computation(fusion.called[0][1]).root, path)
        inside = buffer_of(graph, inside)
        if inside.instruction.opcode != "parameter" or inside.instruction.parameter_number is None:
            return None
        number, inner = inside.instruction.parameter_number, inside.path
    else:
        return None
    operand = fusion.operand(number)
    return None if operand is None else Value(operand, inner)
