"""What a collective moves: where its operands were made, and whether a loop changes them."""

from __future__ import annotations

import re

from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.values.dependencies import is_fixed_in, outside
from hloscope.analysis.values.handing_on import Frames
from hloscope.analysis.values.makers import FORMS, maker_of
from hloscope.analysis.volume import narrower
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_LOOP_LIMIT = 16
_SLICES = frozenset({"dynamic-slice", "slice"})
_ZEROS = re.compile(r"[\s{}(),]*(?:(?:-?0(?:\.0*)?(?:[eE][+-]?\d+)?|false)[\s{}(),]*)++")
"""The literal of a constant that holds nothing but zeros, of whatever type and shape."""


def moved_values(graph: HloGraph, place: Place, transfer: Transfer) -> tuple[str, ...]:
    """Names for what is moved, operand by operand: two collectives with one name move the same value.

    Returns:
        `computation::instruction` where it was made, behind copies, conversions, other shapes and loops that carry it
        unchanged; `[1]` after it for an element of a tuple, ` slice` for a slice of it at an offset that is decided at
        run time, which may be another one each time.
    """
    frames = place.context.wrappers
    return tuple(_name(graph, Value(operand), frames) for operand in _counted_operands(transfer))


def moves_zeros(graph: HloGraph, place: Place, transfer: Transfer) -> bool:
    """Whether all that is moved is known to be zeros, such as those that a windowed einsum starts its sums from."""
    frames = place.context.wrappers
    made = [_made_at(graph, Value(operand), frames)[0].instruction for operand in _counted_operands(transfer)]
    return bool(made) and all(one.literal is not None and _ZEROS.fullmatch(one.literal) for one in made)


def narrower_operands(graph: HloGraph, place: Place, transfer: Transfer) -> str | None:
    """The narrower element type that every operand was converted from; None when one was not."""
    types = set()
    for operand in _counted_operands(transfer):
        maker = maker_of(graph, Value(operand), place.context.wrappers).value.instruction
        if maker.opcode != "convert" or not maker.operands:
            return None
        types.add(narrower(maker.operands[0].shape.element_type, maker.shape.element_type))
    return types.pop() if len(types) == 1 else None


def is_loop_invariant(graph: HloGraph, place: Place, transfer: Transfer) -> bool | None:
    """Whether what is moved is the same in every iteration of the innermost loop around it; None without a loop.

    Also None where it cannot be told: what is too far away, and what comes from custom calls or other loops.
    """
    if not place.context.loops:
        return None
    loop, frames = place.context.loops[-1], place.context.wrappers
    found = [is_fixed_in(graph, loop, Value(operand), frames) for operand in _counted_operands(transfer)]
    if False in found:
        return False
    return True if found and None not in found else None


def _counted_operands(transfer: Transfer) -> tuple[HloInstruction, ...]:
    """The operands that hold data: the others name destinations and offsets, or are tokens."""
    operands = transfer.op.operands if transfer.op.opcode != "send" else transfer.op.operands[:1]
    return tuple(operand for operand in operands if operand.shape.element_type != "token")[: len(transfer.operands)]


def _name(graph: HloGraph, value: Value, frames: Frames) -> str:
    value, frames, suffix = _made_at(graph, value, frames)
    where = frames[0] if frames else value.instruction
    element = "" if frames else "".join(f"[{index}]" for index in value.path)
    return f"{where.computation.name}::{where.name}{element}{suffix}"


def _made_at(graph: HloGraph, value: Value, frames: Frames) -> tuple[Value, Frames, str]:
    """Where a value was made, the fusions around that, and which slice of it the value is."""
    suffix = ""
    for _ in range(_LOOP_LIMIT):
        maker = maker_of(graph, value, frames, through=(*FORMS, "convert"))
        value, frames = maker.value, maker.frames
        instruction = value.instruction
        if instruction.opcode in _SLICES and not value.path:
            suffix = f" slice{suffix}" if instruction.opcode == "dynamic-slice" else _bounds(instruction) + suffix
            value = Value(instruction.operands[0])
            continue
        if instruction.opcode not in ("parameter", "while") or frames:
            break
        outer = outside(graph, value)
        if not isinstance(outer, Value):
            break
        value = outer
    return value, frames, suffix


def _bounds(instruction: HloInstruction) -> str:
    return f" {instruction.attributes.get('slice', 'slice')}"
