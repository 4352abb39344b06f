"""From a collective of the final module back to the one that the partitioner put into the program.

Source: measured on the programs of the tests and their like: names never survive, later passes renumber channels and
reuse their numbers, and a combined collective keeps the metadata of its first part only. So a channel counts together
with kind and axes, and without a channel the operation, its line and its exact dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.provenance import KIND_OF_PRIMITIVE
from hloscope.analysis.vocabulary import SUMS, Origin
from hloscope.hlo import HloInstruction, HloModule

_SHAPE = re.compile(r"^\w+\[([\d,]*)\]")
_CHANNEL_DEPTH = 3
_KEEPS_ELEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})

Dimensions = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned:
    """What the partitioner put into the program.

    Attributes:
        module: The module right after the partitioner.
        collectives: Its collectives, by place in the text.
        channels: The channel of each.
    """

    module: HloModule
    collectives: tuple[Collective, ...]
    channels: tuple[int | None, ...]

    def without(self, taken: Collective) -> Partitioned:
        """The same without one collective, which another of the final module is known to be made from."""
        left = [number for number, one in enumerate(self.collectives) if one is not taken]
        return Partitioned(
            module=self.module,
            collectives=tuple(self.collectives[number] for number in left),
            channels=tuple(self.channels[number] for number in left),
        )


def read_partitioned(module: HloModule, analysis: Analysis) -> Partitioned:
    """The collectives of the module right after the partitioner."""
    found = sorted(analysis.collectives, key=lambda one: one.line)
    channels = tuple(channel_of(module, one) for one in found)
    return Partitioned(module=module, collectives=tuple(found), channels=channels)


def link(final: Collective, channel: int | None, earlier: Partitioned) -> Collective | None:
    """The partitioner's collective that a final one is, or was made from; None when nothing tells."""
    alike = [
        (one, number)
        for one, number in zip(earlier.collectives, earlier.channels, strict=True)
        if one.kind is final.kind and one.axes == final.axes and one.axes is not None
    ]
    if channel is not None:
        same = [one for one, number in alike if number == channel and _same_operation(one, final)]
        if same:
            return same[0]
    placed = [one for one, _ in alike if _same_operation(one, final) and _same_line(one, final)]
    for simplified in (_significant, _in_any_order):
        wanted = simplified(final)
        fitting = [one for one in placed if simplified(one) == wanted]
        if fitting:
            return fitting[0]
    return None


def ancestor_of(final: Collective, channel: int | None, earlier: Partitioned) -> Collective | None:
    """The partitioner's collective of another kind that a later pass made a final one from; None when nothing tells.

    A later pass keeps the channel and the metadata, or drops both: then what is left are axes and operands, and that a
    reduce-scatter is an all-reduce of which a part is kept.
    """
    others = [
        (one, number)
        for one, number in zip(earlier.collectives, earlier.channels, strict=True)
        if one.kind is not final.kind and one.axes is not None and one.axes == final.axes
    ]
    for one, number in others:
        if number == channel is not None and one.op_name == final.op_name and _same_line(one, final):
            return one
    if final.source_of is None or final.kind not in SUMS:
        return None
    alike = [one for one, _ in others if one.kind in SUMS and _significant(one) == _significant(final)]
    return alike[0] if len(alike) == 1 else None


def link_by_size(final: Collective, finals: Sequence[Collective], earlier: Partitioned) -> Collective | None:
    """The partitioner's collective of a final one that has no metadata of its own, by kind, axes and size alone.

    None unless the partitioner put in as many of these as there are in the end, and there is one of them or all are the
    user's; of several in different places the place is not told. Over DCN libtpu drops all metadata and rearranges the
    dimensions, but not the number of elements.

    Args:
        final: One of `finals`.
        finals: All collectives of the final module.
        earlier: What the partitioner put in.
    """
    if final.axes is None or (final.op_name is not None and final.source_of is None):
        return None
    alike = [one for one in earlier.collectives if _size(one) == _size(final)]
    if not alike or len(alike) != sum(_size(one) == _size(final) for one in finals):
        return None
    if len(alike) > 1 and not all(is_authored(one) for one in alike):
        return None
    is_one_place = len({(one.op_name, one.source) for one in alike}) == 1
    return alike[0] if is_one_place else replace(alike[0], op_name=None, source=(), origin=Origin.AUTHORED)


def _size(one: Collective) -> object:
    elements = sorted(prod(dimensions) for dimensions in dimensions_of(one.operand_shapes))
    types = sorted(shape.partition("[")[0] for shape in one.operand_shapes)
    return one.kind, one.axes, elements, types


def is_authored(earlier: Collective) -> bool:
    """Whether a collective of the partitioner's text is the user's: there, names under shard_map are relative."""
    name = earlier.op_name or ""
    is_primitive = name.rpartition("/")[2] in KIND_OF_PRIMITIVE
    return earlier.origin is Origin.AUTHORED or (
        earlier.source_of is None and is_primitive and not name.startswith("jit(")
    )


def channel_of(module: HloModule, collective: Collective) -> int | None:
    """The channel of a collective, also inside what wraps it."""
    pending: list[tuple[HloInstruction, int]] = []
    for computation in module.computations:
        if computation.name == collective.computation:
            pending.append((computation.instruction(collective.name), 0))
    while pending:
        instruction, depth = pending.pop(0)
        if instruction.channel_id is not None:
            return instruction.channel_id
        if depth < _CHANNEL_DEPTH:
            inner = [module.computation(name) for _, name in instruction.called]
            pending += [(one, depth + 1) for held in inner for one in held.instructions if one.channel_id or one.called]
    return None


def argument_of(earlier: Partitioned, collective: Collective) -> str | None:
    """The program's argument that a collective of the partitioner's moves, by the name on its parameter.

    None when it moves something computed: followed are only operations that keep all elements.
    """
    computation = earlier.module.computation(collective.computation)
    instruction = computation.instruction(collective.name)
    while instruction.operands and (instruction.name == collective.name or instruction.opcode in _KEEPS_ELEMENTS):
        instruction = instruction.operands[0]
    return instruction.op_name if instruction.opcode == "parameter" and computation.is_entry else None


def dimensions_of(shapes: Iterable[str]) -> tuple[Dimensions, ...]:
    """`((2, 1024),)` of `("bf16[2,1024]",)`."""
    found = (_SHAPE.match(shape) for shape in shapes)
    return tuple(tuple(int(size) for size in one.group(1).split(",") if size) for one in found if one)


def significant(dimensions: Dimensions) -> Dimensions:
    """Dimensions without those of size 1, which compilers add and drop."""
    return tuple(size for size in dimensions if size != 1)


def _significant(one: Collective) -> object:
    return [significant(dimensions) for dimensions in dimensions_of(one.operand_shapes)]


def _in_any_order(one: Collective) -> object:
    return [sorted(significant(dimensions)) for dimensions in dimensions_of(one.operand_shapes)]


def _same_operation(one: Collective, other: Collective) -> bool:
    """Whether two op_names name one operation: the partitioner's are relative inside shard_map, final ones are full."""
    if one.op_name is None or other.op_name is None:
        return True
    return one.op_name.endswith(other.op_name) or other.op_name.endswith(one.op_name)


def _same_line(one: Collective, other: Collective) -> bool:
    if not one.source or not other.source:
        return one.op_name == other.op_name
    return (one.source[0].file, one.source[0].line) == (other.source[0].file, other.source[0].line)
