"""The kinds of communication behind XLA's opcodes, and reports on unsupported ones."""

from __future__ import annotations

import re
from functools import cache

from hloscope.hlo import HloInstruction
from hloscope.model import Unmodelled
from hloscope.model.vocabulary import Kind

KIND_OF_OPCODE = {kind.value: kind for kind in Kind if kind is not Kind.OPAQUE}
"""XLA's collective opcodes; each also has a `-start` form, native or as sugar for `async-start`."""

_COMMUNICATES = re.compile(
    r"(^|-)(all-gather|all-reduce|all-to-all|reduce-scatter|collective|permute|multicast|send|recv)(-|$)"
)


def strip_start(opcode: str) -> str:
    """The opcode without the `-start` of its asynchronous form."""
    return opcode.removesuffix("-start")


@cache
def starts_transfer(opcode: str) -> bool:
    """Returns whether an instruction with this opcode starts, or seems to start, a transfer between devices.

    Custom calls are not covered: they are classified by their target.
    """
    if opcode.endswith(("-done", "-update")):
        return False
    return strip_start(opcode) in KIND_OF_OPCODE or _COMMUNICATES.search(opcode) is not None


def make_unmodelled(instruction: HloInstruction, what: str, effect: str) -> Unmodelled:
    """An `Unmodelled` entry that refers to an instruction."""
    return Unmodelled(
        what=what,
        effect=effect,
        computation=instruction.computation.name,
        instruction=instruction.name,
        line=instruction.line,
    )
