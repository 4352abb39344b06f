"""Windowed einsums: a gather or a scatter that the partitioner turned into permutes between the parts of a product.

Source: XLA's spmd partitioner (dot_handler.cc) names the bodies of such loops `windowed_dot_general_body_ag` where an
operand is passed around in place of an all-gather, and `windowed_dot_general_body_rs` where partial sums are, in place
of a reduce-scatter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.hlo import HloInstruction, HloModule

_BODY = re.compile(r"^windowed_dot_general_body_(ag|rs)")
_STANDS_FOR = {"ag": Kind.ALL_GATHER, "rs": Kind.REDUCE_SCATTER}
_STEPS = 6


@dataclass(frozen=True, slots=True)
class Window:
    """A windowed einsum.

    Attributes:
        body: The computation that is its loop's body.
        stands_for: The collective that its permutes take the place of.
    """

    body: str
    stands_for: Kind


def window_of(module: HloModule, permute: Collective) -> Window | None:
    """The windowed einsum that a permute belongs to: inside its loop, or a step before or after it; None for others.

    Args:
        module: The module right after the partitioner.
        permute: One of its collectives.
    """
    if permute.kind is not Kind.COLLECTIVE_PERMUTE:
        return None
    inside = _window(permute.computation)
    if inside is not None:
        return inside
    instruction = module.computation(permute.computation).instruction(permute.name)
    return _after(instruction, _STEPS) or _before(instruction)


def _before(instruction: HloInstruction) -> Window | None:
    """The windowed loop that an instruction's result goes into."""
    carried = [user for user in instruction.users if user.opcode == "tuple"]
    loops = (loop for one in carried for loop in one.users if loop.opcode == "while")
    return next((found for loop in loops if (found := _of_loop(loop)) is not None), None)


def _of_loop(instruction: HloInstruction) -> Window | None:
    """The window whose loop an instruction is."""
    bodies = (name for attribute, name in instruction.called if attribute == "body")
    return next((found for name in bodies if (found := _window(name)) is not None), None)


def _after(instruction: HloInstruction, steps: int) -> Window | None:
    """The windowed loop that an instruction takes a result of, through a few steps."""
    if (own := _of_loop(instruction)) is not None:
        return own
    operands = instruction.operands if steps and instruction.opcode != "while" else ()
    return next((found for one in operands if (found := _after(one, steps - 1)) is not None), None)


def _window(computation: str) -> Window | None:
    found = _BODY.match(computation)
    return None if found is None else Window(computation, _STANDS_FOR[found.group(1)])
