"""What a collective moves: where its operands were made, and whether a loop changes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hloscope.analysis.makers import FORMS, Maker, maker_of, unchanged_by_loop
from hloscope.analysis.scalars import Frames
from hloscope.analysis.transfers import Place, Transfer
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction
from hloscope.units import element_bits

_STEP_LIMIT = 128
_LOOP_LIMIT = 16
_SLICES = frozenset({"dynamic-slice", "slice"})
_FIXED = frozenset({"constant", "iota", "partition-id", "replica-id"})
_UNKNOWABLE = frozenset({
    "infeed", "recv", "recv-done", "rng", "rng-bit-generator", "rng-get-and-update-state", "custom-call", "while",
    "conditional", "call",
})  # fmt: skip


def moved_values(graph: HloGraph, place: Place, transfer: Transfer) -> tuple[str, ...]:
    """Names for what is moved, operand by operand: two collectives with one name move the same value.

    Returns:
        `computation::instruction` where it was made, behind copies, conversions, other shapes and loops that carry it
        unchanged; `[1]` after it for an element of a tuple, ` slice` for a slice of it at an offset that is decided at
        run time, which may be another one each time.
    """
    frames = place.context.wrappers
    return tuple(_name(graph, Value(operand), frames) for operand in _counted_operands(transfer))


def narrower_operands(graph: HloGraph, place: Place, transfer: Transfer) -> str | None:
    """The narrower element type that every operand was converted from; None when one was not."""
    types = set()
    for operand in _counted_operands(transfer):
        maker = maker_of(graph, Value(operand), place.context.wrappers).value.instruction
        if maker.opcode != "convert" or not maker.operands:
            return None
        types.add(narrower(maker.operands[0].shape.element_type, maker.shape.element_type))
    return types.pop() if len(types) == 1 else None


def narrower(one: str, other: str) -> str | None:
    """The first of two element types where it has fewer bits and both are floats or both are not."""
    bits, other_bits = element_bits(one), element_bits(other)
    if bits is None or other_bits is None or not 0 < bits < other_bits:
        return None
    return one if _is_float(one) == _is_float(other) else None


def is_loop_invariant(graph: HloGraph, place: Place, transfer: Transfer) -> bool | None:
    """Whether what is moved is the same in every iteration of the innermost loop around it; None without a loop.

    Also None where it cannot be told: what is too far away, and what comes from custom calls or other loops.
    """
    if not place.context.loops:
        return None
    operands = [Value(operand) for operand in _counted_operands(transfer)]
    search = _Search(graph, place.context.loops[-1])
    found = [search.is_fixed(operand, place.context.wrappers) for operand in operands]
    if False in found:
        return False
    return True if found and None not in found else None


def _counted_operands(transfer: Transfer) -> tuple[HloInstruction, ...]:
    """The operands that hold data: the others name destinations and offsets, or are tokens."""
    operands = transfer.op.operands if transfer.op.opcode != "send" else transfer.op.operands[:1]
    return tuple(operand for operand in operands if operand.shape.element_type != "token")[: len(transfer.operands)]


def _name(graph: HloGraph, value: Value, frames: Frames) -> str:
    suffix = ""
    for _ in range(_LOOP_LIMIT):
        maker = maker_of(graph, value, frames, through=(*FORMS, "convert"))
        value, frames = maker.value, maker.frames
        instruction = value.instruction
        if instruction.opcode in _SLICES and not value.path:
            suffix = f" slice{suffix}" if instruction.opcode == "dynamic-slice" else _bounds(instruction) + suffix
            value = Value(instruction.operands[0])
            continue
        outer = _around_loop(graph, maker)
        if outer is None:
            break
        value = outer
    where = frames[0] if frames else value.instruction
    element = "" if frames else "".join(f"[{index}]" for index in value.path)
    return f"{where.computation.name}::{where.name}{element}{suffix}"


def _bounds(instruction: HloInstruction) -> str:
    return f" {instruction.attributes.get('slice', 'slice')}"


def _around_loop(graph: HloGraph, maker: Maker) -> Value | None:
    """What a loop got from outside, when what was found is an element that it carries unchanged."""
    instruction, path = maker.value.instruction, maker.value.path
    if maker.frames:
        return None
    loop = graph.only_caller(instruction.computation.name) if instruction.opcode == "parameter" else instruction
    if loop is None or loop.opcode != "while" or not unchanged_by_loop(graph, loop, path):
        return None
    return Value(loop.operands[0], path)


def _is_float(element_type: str) -> bool:
    return element_type.startswith(("f", "bf"))


@dataclass(slots=True)
class _Search:
    """Looks through all that a value depends on, as far as the body of one loop."""

    graph: HloGraph
    loop: str
    steps: int = 0
    seen: dict[tuple[HloInstruction, tuple[int, ...]], bool | None] = field(default_factory=dict)

    def is_fixed(self, value: Value, frames: Frames) -> bool | None:
        """Whether it is the same in every iteration; None when that cannot be told."""
        maker = maker_of(self.graph, value, frames)
        instruction, path = maker.value.instruction, maker.value.path
        key = (instruction, path)
        if key not in self.seen:
            self.steps += 1
            self.seen[key] = self._decide(maker) if self.steps <= _STEP_LIMIT else None
        return self.seen[key]

    def _decide(self, maker: Maker) -> bool | None:
        instruction = maker.value.instruction
        if instruction.opcode in _FIXED:
            return True
        if instruction.opcode == "parameter":
            return self._parameter(maker)
        if instruction.opcode in _UNKNOWABLE or not instruction.operands:
            return None
        unknown = False
        for part in self._parts(instruction, maker.frames):
            if part is False:
                return False
            unknown = unknown or part is None
        return None if unknown else True

    def _parts(self, instruction: HloInstruction, frames: Frames) -> Iterator[bool | None]:
        yield from (self.is_fixed(Value(operand), frames) for operand in instruction.operands)

    def _parameter(self, maker: Maker) -> bool | None:
        instruction = maker.value.instruction
        caller = self.graph.only_caller(instruction.computation.name)
        if maker.frames or caller is None or caller.opcode != "while":
            return None
        if caller.name == self.loop:
            return unchanged_by_loop(self.graph, caller, maker.value.path)
        return None
