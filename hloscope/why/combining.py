"""A collective that the compiler combined from several, taken apart again: one for each array that it moves.

Source: measured on the programs of the tests and their like: a combined collective keeps the metadata of one of its
parts, while each operand was still made by an operation with its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from hloscope.analysis.model import Collective
from hloscope.analysis.provenance import source_frames
from hloscope.hlo import HloInstruction, HloModule
from hloscope.units import array_bytes
from hloscope.why.partitioned import dimensions_of

_MADE_AT = re.compile(r"^(?P<computation>.+)::(?P<instruction>[^\s\[]+)")


def parts_of(combined: Collective, module: HloModule) -> tuple[Collective, ...]:
    """A collective for each array, most bytes first; of an ordinary one, itself alone.

    Args:
        combined: A collective of `module`.
        module: The final module.
    """
    count = len(combined.operand_shapes)
    if count < 2 or not count == len(combined.result_shapes) == len(combined.moved_values):
        return (combined,)
    by_size = sorted(range(count), key=lambda number: -_bytes(combined.operand_shapes[number]))
    return tuple(_part(combined, number, module) for number in by_size)


def _bytes(shape: str) -> int:
    """Bytes of a shape, for their order; an element type without a size comes first, as the largest there can be."""
    (dimensions,) = dimensions_of((shape,)) or ((),)
    known = array_bytes(shape.partition("[")[0], prod(dimensions))
    return 1 << 62 if known is None else known


def _part(combined: Collective, number: int, module: HloModule) -> Collective:
    told = next((one for one in _makers(combined, number, module) if one.op_name), None)
    return replace(
        combined,
        operand_shapes=combined.operand_shapes[number : number + 1],
        result_shapes=combined.result_shapes[number : number + 1],
        moved_values=combined.moved_values[number : number + 1],
        op_name=None if told is None else told.op_name,
        source=() if told is None else source_frames(told),
    )


def _makers(combined: Collective, number: int, module: HloModule) -> Iterator[HloInstruction]:
    """The instruction that hands an array over, then the one that made it."""
    operands = module.computation(combined.computation).instruction(combined.name).operands
    if len(operands) == len(combined.operand_shapes):
        yield operands[number]
    made = _MADE_AT.match(combined.moved_values[number])
    if made is not None:
        yield module.computation(made["computation"]).instruction(made["instruction"])
