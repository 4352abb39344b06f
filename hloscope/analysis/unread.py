"""Instructions that may hide transfers: unknown opcodes and custom-call targets, calls that name no computation."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.model import Unmodelled
from hloscope.analysis.spellings.custom_calls import may_communicate
from hloscope.analysis.unmodelled import not_understood
from hloscope.hlo import HloInstruction, HloModule

_MAY_MOVE = "it may move data between devices that totals do not count"
_NOT_COUNTED = "whatever it runs is not counted, so totals are a lower bound"
_CALLS = frozenset({"while", "conditional", "fusion", "call", "async-start", "fusion-start", "call-start"})
_NAME_SEVERAL = frozenset({"while", "conditional"})
_CUSTOM_CALLS = frozenset({"custom-call", "custom-call-start"})


def unread_instructions(module: HloModule) -> Iterator[Unmodelled]:
    """Finds what may hide transfers; of each unknown opcode and target the first use, in text order."""
    told: set[str] = set()
    unknown = frozenset(module.unknown_opcodes)
    silent = (one for one in module.with_opcodes(_CALLS) if not one.called or one.opcode in _NAME_SEVERAL)
    looked_at = (*module.with_opcodes(unknown | _CUSTOM_CALLS), *silent)
    for instruction in sorted(looked_at, key=lambda one: one.line):
        for key, entry in _entries(instruction, unknown):
            if key not in told:
                told.add(key)
                yield entry


def _entries(instruction: HloInstruction, unknown: frozenset[str]) -> Iterator[tuple[str, Unmodelled]]:
    """What is to be told about an instruction, with what it is told once for."""
    opcode, name = instruction.opcode, instruction.name
    if opcode in unknown:
        yield opcode, not_understood(instruction, f"opcode {opcode} is not known", _MAY_MOVE)
    if opcode in _CUSTOM_CALLS:
        what = may_communicate(instruction)
        if what is not None:
            yield what, not_understood(instruction, what, _MAY_MOVE)
    if opcode in _CALLS:
        for missing in _missing(instruction):
            what = f"%{name} in %{instruction.computation.name} is a {opcode} that names no {missing}"
            yield what, not_understood(instruction, what, _NOT_COUNTED)


def _missing(instruction: HloInstruction) -> Iterator[str]:
    named = {attribute for attribute, _ in instruction.called}
    if instruction.opcode == "while":
        yield from (attribute for attribute in ("condition", "body") if attribute not in named)
    elif not named:
        yield "computation"
    elif instruction.opcode == "conditional" and len({"true_computation", "false_computation"} & named) == 1:
        yield "other branch"
