"""Entries about what was not understood."""

from __future__ import annotations

from hloscope.analysis.model import Unmodelled
from hloscope.hlo import HloInstruction


def not_understood(instruction: HloInstruction, what: str, effect: str) -> Unmodelled:
    """An `Unmodelled` entry that points at an instruction."""
    return Unmodelled(
        what=what,
        effect=effect,
        computation=instruction.computation.name,
        instruction=instruction.name,
        line=instruction.line,
    )
