"""Where a value was made, behind everything that only hands it on or writes it in another form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hloscope.analysis.values.handing_on import Frames, origin, pass_through
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_LIMIT = 128
FORMS = frozenset({"bitcast", "reshape", "transpose", "broadcast"})
"""Opcodes that put the same numbers into another shape."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Where a value was made.

    Attributes:
        value: What was made: the result of an instruction that does more than hand it on, or a parameter.
        frames: The fusions and asynchronous starts around it, outermost first.
    """

    value: Value
    frames: Frames = ()

    @property
    def outermost(self) -> HloInstruction:
        """The instruction that makes it, or the outermost fusion around that."""
        return self.frames[0] if self.frames else self.value.instruction


def maker_of(graph: HloGraph, value: Value, frames: Frames = (), *, through: Collection[str] = FORMS) -> Maker:
    """Follows a value back to where it was made, into fusions and out of them.

    Args:
        graph: The module.
        value: The value.
        frames: The fusions and asynchronous starts around it, outermost first.
        through: Opcodes of one operand that are looked through, beside copies and tuples.
    """
    for _ in range(_LIMIT):
        instruction, path = value.instruction, value.path
        source = pass_through(value)
        if source is not None:
            value = source
        elif instruction.opcode in through and not path and (operand := instruction.operand(0)) is not None:
            value = Value(operand)
        elif instruction.opcode == "fusion" and instruction.called:
            value = Value(graph.module.computation(instruction.called[0][1]).root, path)
            frames = (*frames, instruction)
        elif instruction.opcode == "parameter" and frames:
            argument = _argument(frames[-1], instruction)
            if argument is None:
                break
            value, frames = Value(argument, path), frames[:-1]
        else:
            break
    return Maker(value, frames)


def unchanged_by_loop(graph: HloGraph, loop: HloInstruction, path: tuple[int, ...]) -> bool:
    """Whether the body of a loop hands on an element of what it carries as it was, perhaps through loops inside it."""
    body = dict(loop.called).get("body")
    if body is None:
        return False
    after = origin(Value(graph.module.computation(body).root, path))
    while after.instruction.opcode == "while" and unchanged_by_loop(graph, after.instruction, after.path):
        before = after.instruction.operand(0)
        if before is None:
            return False
        after = origin(Value(before, after.path))
    return after.instruction.opcode == "parameter" and after.path == path


def _argument(caller: HloInstruction, parameter: HloInstruction) -> HloInstruction | None:
    """What a caller passes; late operands of an asynchronous start stand on its `-update`."""
    number = parameter.parameter_number
    if number is None:
        return None
    if caller.operand(0) is None and caller.opcode.endswith("-start"):
        updates = [user for user in caller.users if user.opcode.endswith("-update")]
        return updates[0].operand(number + 1) if updates else None
    return caller.operand(number)
