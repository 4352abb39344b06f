"""XLA's collective opcodes: plain, `-start`/`-done`, tuples, inside fusions and inside asynchronous computations."""

from __future__ import annotations

import re
from math import prod

from hloscope.analysis.groups import Groups, device_groups
from hloscope.analysis.model import Unmodelled
from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.spellings.opaque import LOWER_BOUND
from hloscope.analysis.transfers import Place, Transfer, not_understood
from hloscope.analysis.vocabulary import Kind
from hloscope.analysis.volume import arrays
from hloscope.hlo import HloInstruction, Shape
from hloscope.units import array_bytes

_REDUCE_SCATTER_FUSION = "all-reduce-scatter"
_KEEPS_ITS_SHAPE = "all-reduce-start"
_SLICE = re.compile(r"\{([\d,\s]+)\}")
_HAS_DESTINATION = frozenset({Kind.COLLECTIVE_PERMUTE, Kind.RAGGED_ALL_TO_ALL})


def read(place: Place) -> Transfer:
    """Reads a collective.

    Operands and results are those of the collective itself: the tuple of a `-start` holds both, and that of an
    asynchronous fusion holds them twice.
    """
    op = place.op
    kind = KIND_OF_OPCODE[base_opcode(op.opcode)]
    results = _results(op)
    if kind is Kind.ALL_REDUCE and _scatters(place):
        kind = Kind.REDUCE_SCATTER
        results = arrays([place.context.wrappers[-1].shape])
    groups = device_groups(op, kind, place.mesh)
    return Transfer(
        kind=kind,
        start=place.start,
        op=op,
        operands=_operands(op, kind),
        results=results,
        groups=groups,
        operand_bytes=_sliced_bytes(op),
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously or starts_chain(op),
        unmodelled=_unknown_groups(op, groups),
    )


def _operands(op: HloInstruction, kind: Kind) -> tuple[Shape, ...]:
    """What the device puts in; a ragged all-to-all and a permute of slices also name their destination and offsets."""
    operands = op.operands
    if kind in _HAS_DESTINATION and ("slice_sizes" in op.attributes or kind is Kind.RAGGED_ALL_TO_ALL):
        operands = operands[:1]
    return arrays(operand.shape for operand in operands)


def _results(op: HloInstruction) -> tuple[Shape, ...]:
    shape = op.shape
    if op.opcode.endswith("-start") and op.opcode != _KEEPS_ITS_SHAPE and len(shape.elements) > 1:
        shape = shape.elements[1]
    return arrays([shape])


def _scatters(place: Place) -> bool:
    """Whether the all-reduce stands in one of the fusions with which TPUs spell a reduce-scatter."""
    named = place.computation.name.startswith(_REDUCE_SCATTER_FUSION)
    return named and any(wrapper.opcode == "fusion" for wrapper in place.context.wrappers[-1:])


def starts_chain(op: HloInstruction) -> bool:
    """Whether the collective is the first link of an asynchronous collective fusion."""
    return any(user.custom_call_target == "AsyncCollectiveStart" for user in op.users)


def _sliced_bytes(op: HloInstruction) -> int | None:
    """Bytes of a permute that sends slices: `slice_sizes={{64,32}}` of the first operand; None for whole operands."""
    text = op.attributes.get("slice_sizes")
    if text is None or not op.operands:
        return None
    counts = [prod(int(size) for size in part.split(",")) for part in _SLICE.findall(text)]
    return array_bytes(op.operands[0].shape.element_type, sum(counts))


def _unknown_groups(op: HloInstruction, groups: Groups | None) -> Unmodelled | None:
    if groups is not None:
        return None
    return not_understood(op, f"who takes part in %{op.name} cannot be told from the text", LOWER_BOUND)
