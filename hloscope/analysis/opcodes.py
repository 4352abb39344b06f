"""The communication that XLA's opcodes stand for, and entries about unsupported ones."""

from __future__ import annotations

import re
from functools import cache

from hloscope.analysis.model import Unmodelled
from hloscope.analysis.vocabulary import Kind
from hloscope.hlo import HloInstruction

KIND_OF_OPCODE = {kind.value: kind for kind in Kind if kind is not Kind.OPAQUE}
"""XLA's collective opcodes; each also has a `-start` form, native or as sugar for `async-start`."""

_COMMUNICATES = re.compile(
    r"(^|-)(all-gather|all-reduce|all-to-all|reduce-scatter|collective|permute|multicast|send|recv)(-|$)"
)


def base_opcode(opcode: str) -> str:
    """The opcode without the `-start` of its asynchronous form."""
    return opcode.removesuffix("-start")


@cache
def starts_transfer(opcode: str) -> bool:
    """Whether an instruction with this opcode starts, or looks as if it starts, a transfer between devices.

    Custom calls are not decided here: their target says what they do.
    """
    if opcode.endswith(("-done", "-update")):
        return False
    return base_opcode(opcode) in KIND_OF_OPCODE or _COMMUNICATES.search(opcode) is not None


def unsupported(instruction: HloInstruction, what: str, effect: str) -> Unmodelled:
    """An `Unmodelled` entry that points at an instruction."""
    return Unmodelled(
        what=what,
        effect=effect,
        computation=instruction.computation.name,
        instruction=instruction.name,
        line=instruction.line,
    )
