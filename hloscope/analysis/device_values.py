"""Values that only the device decides: computed from its number and from constants, and the same in every trip."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.makers import unchanged_by_loop
from hloscope.analysis.scalars import Frames, origin
from hloscope.graph import HloGraph, Value

_STEP_LIMIT = 128
_NUMBERS = frozenset({"partition-id", "replica-id"})
_FIXED = frozenset({"constant", "iota"})
_UNKNOWABLE = frozenset({
    "infeed", "recv", "recv-done", "rng", "rng-bit-generator", "rng-get-and-update-state", "custom-call", "while",
    "conditional", "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute",
    "collective-permute-done", "after-all",
})  # fmt: skip
"""Opcodes whose results depend on data, on time or on other devices."""


def is_of_device(graph: HloGraph, value: Value, frames: Frames = ()) -> bool | None:
    """Whether a value is a function of the device's number alone.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and calls around it, outermost first.

    Returns:
        True when it depends on the number, False when it is a constant, None when it depends on anything else, or may.
    """
    return _Search(graph).read(value, frames)


@dataclass(slots=True)
class _Search:
    graph: HloGraph
    steps: int = 0

    def read(self, value: Value, frames: Frames) -> bool | None:
        value = origin(value)
        instruction = value.instruction
        self.steps += 1
        if self.steps > _STEP_LIMIT or instruction.opcode in _UNKNOWABLE:
            return None
        if instruction.opcode in _NUMBERS or instruction.opcode in _FIXED:
            return instruction.opcode in _NUMBERS
        if instruction.opcode == "parameter":
            return self._argument(value, frames)
        if instruction.opcode == "fusion" and instruction.called:
            root = self.graph.module.computation(instruction.called[0][1]).root
            return self.read(Value(root, value.path), (*frames, instruction))
        if value.path or not instruction.operands:
            return None
        parts = [self.read(Value(operand), frames) for operand in instruction.operands]
        return None if None in parts else True in parts

    def _argument(self, value: Value, frames: Frames) -> bool | None:
        """What the caller passes; a loop has to hand it on unchanged."""
        parameter = value.instruction
        caller = frames[-1] if frames else self.graph.only_caller(parameter.computation.name)
        number = parameter.parameter_number or 0
        if caller is None or caller.opcode not in ("fusion", "call", "while") or number >= len(caller.operands):
            return None
        if caller.opcode == "while" and not unchanged_by_loop(self.graph, caller, value.path):
            return None
        return self.read(Value(caller.operands[number], value.path), frames[:-1])
