"""XLA's collective opcodes: plain, `-start`/`-done`, tuples, inside fusions and inside asynchronous computations."""

from __future__ import annotations

import re
from math import prod

from hloscope.analysis.groups import Groups, are_consistent, device_count, device_groups
from hloscope.analysis.model import Unmodelled
from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.spellings.opaque import LOWER_BOUND
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.unmodelled import not_understood
from hloscope.analysis.vocabulary import Kind
from hloscope.analysis.volume import arrays, shapes_fit, total_bytes
from hloscope.hlo import HloInstruction, Shape
from hloscope.units import array_bytes

_REDUCE_SCATTER_FUSION = "all-reduce-scatter"

_TAKES_SLICE = frozenset({"dynamic-slice", "slice"})
_KEEPS_ITS_SHAPE = "all-reduce-start"
_SLICE = re.compile(r"\{\s*(\d+(?:\s*,\s*\d+)*)\s*\}")
_HAS_DESTINATION = frozenset({Kind.COLLECTIVE_PERMUTE, Kind.RAGGED_ALL_TO_ALL})


def read(place: Place) -> Transfer:
    """Reads a collective.

    Operands and results are those of the collective itself: the tuple of a `-start` holds both, and that of an
    asynchronous fusion holds them twice.
    """
    op = place.op
    kind = KIND_OF_OPCODE[base_opcode(op.opcode)]
    operands, results = _operands(op, kind), _results(op)
    scattered = _scattered(place, operands) if kind is Kind.ALL_REDUCE else None
    if scattered is not None:
        kind, results = Kind.REDUCE_SCATTER, arrays([scattered])
    named = device_groups(op, kind, place.mesh)
    groups = named if named is not None and _fit(named, place, kind) else None
    sliced = _sliced_bytes(op)
    misfit = groups is not None and sliced is None and not shapes_fit(kind, operands, results, groups)
    counted = results if kind is Kind.ALL_GATHER else operands
    size = total_bytes(counted) if sliced is None else sliced
    return Transfer(
        kind=kind,
        start=place.start,
        op=op,
        operands=operands,
        results=results,
        groups=None if misfit else groups,
        operand_bytes=sliced,
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously or starts_chain(op),
        unmodelled=_misfitting(op) if misfit else _unknown(op, kind, named, groups, size),
    )


def _operands(op: HloInstruction, kind: Kind) -> tuple[Shape, ...]:
    """What the device puts in; a ragged all-to-all and a permute of slices also name their destination and offsets.

    Nothing, when it puts in slices whose sizes cannot be read.
    """
    operands = op.operands
    if "slice_sizes" in op.attributes and _sliced_bytes(op) is None:
        return ()
    if kind in _HAS_DESTINATION and ("slice_sizes" in op.attributes or kind is Kind.RAGGED_ALL_TO_ALL):
        operands = operands[:1]
    return arrays(operand.shape for operand in operands)


def _results(op: HloInstruction) -> tuple[Shape, ...]:
    shape = op.shape
    if op.opcode.endswith("-start") and op.opcode != _KEEPS_ITS_SHAPE and len(shape.elements) > 1:
        shape = shape.elements[1]
    return arrays([shape])


def _scattered(place: Place, operands: tuple[Shape, ...]) -> Shape | None:
    """The result of a reduce-scatter, where the all-reduce stands in one of the fusions with which TPUs spell one.

    Each device keeps a slice: the fusion takes slices, and its result is smaller than what the all-reduce adds up.
    """
    if not place.computation.name.startswith(_REDUCE_SCATTER_FUSION):
        return None
    wrapper = next((wrapper for wrapper in place.context.wrappers[-1:] if wrapper.opcode == "fusion"), None)
    if wrapper is None and place.graph.entry is None and not place.context.wrappers:
        wrapper = place.computation.root  # the text is cut off before the fusion, whose result is the same
    if wrapper is None or not any(one.opcode in _TAKES_SLICE for one in place.computation.instructions):
        return None
    before, after = total_bytes(operands), total_bytes(arrays([wrapper.shape]))
    return wrapper.shape if before is not None and after is not None and after < before else None


def starts_chain(op: HloInstruction) -> bool:
    """Whether the collective is the first link of an asynchronous collective fusion."""
    return any(user.custom_call_target == "AsyncCollectiveStart" for user in op.users)


def _sliced_bytes(op: HloInstruction) -> int | None:
    """Bytes of a permute that sends slices: `slice_sizes={{64,32}}` of the first operand.

    None for whole operands, and for sizes that cannot be read.
    """
    text = op.attributes.get("slice_sizes")
    if text is None or not op.operands:
        return None
    counts = [prod(int(size) for size in part.split(",")) for part in _SLICE.findall(text)]
    return array_bytes(op.operands[0].shape.element_type, sum(counts)) if counts else None


def _fit(groups: Groups, place: Place, kind: Kind) -> bool:
    return are_consistent(groups, kind, device_count(place.op.computation.module, place.mesh))


def _misfitting(op: HloInstruction) -> Unmodelled:
    return not_understood(op, f"the shapes of %{op.name} do not fit the size of its groups", LOWER_BOUND)


def _unknown(
    op: HloInstruction, kind: Kind, named: Groups | None, groups: Groups | None, size: int | None
) -> Unmodelled | None:
    """What the text does not tell about a collective.

    Args:
        op: The collective.
        kind: What it does.
        named: The groups that the text names; None when it does not tell.
        groups: The same, None also when they contradict themselves.
        size: Bytes on one device; None when not known.
    """
    if named is None:
        printed = None if kind is Kind.COLLECTIVE_PERMUTE else op.replica_groups
        if printed is not None and printed.contradiction is not None:
            what = f"the replica groups of %{op.name} contradict themselves: {printed.contradiction}"
            return not_understood(op, what, LOWER_BOUND)
        return not_understood(op, f"who takes part in %{op.name} cannot be told from the text", LOWER_BOUND)
    if groups is None:
        what = "source-target pairs" if kind is Kind.COLLECTIVE_PERMUTE else "replica groups"
        return not_understood(op, f"the {what} of %{op.name} are inconsistent", LOWER_BOUND)
    if size is None:
        return not_understood(op, f"the size of what %{op.name} moves cannot be told from the text", LOWER_BOUND)
    return None
