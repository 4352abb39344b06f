"""The comparison of a reason with its collective, and a correction if the two disagree.

Shardy says what has to move, and the partitioner how. Most of the time it is the obvious way; where it is another, as
the kind and the shapes of the collective show, the reason is given as the partitioner's choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hloscope.analysis.model import ArrayShape, Collective
from hloscope.analysis.model.reason import Reason, ReasonKind, Tensor
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.shardy.reshards import is_float, local_shape, without
from hloscope.why.partitioned import dimensions_of, significant


def agreed(reason: Reason, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """The reason as the collective bears it out.

    Args:
        reason: Why data must move, as Shardy's shardings say.
        seen: The collective as the partitioner put it in, where that is known, and as it is in the end.
        mesh: Devices along each axis.
    """
    kind = seen[0].kind if reason.rewritten_from is None else Kind(reason.rewritten_from)
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in SUMS:
        return reason if _is_of_parts(reason, kind, seen, mesh) else replace(_choice(reason), consumer=reason.producer)
    if kind is Kind.ALL_TO_ALL and reason.kind is ReasonKind.OPERAND_CONFLICT and reason.wanted is None:
        return _choice(reason)  # makes nothing whole, and Shardy asks for nothing else
    if reason.kind is not ReasonKind.PARTITIONERS_CHOICE or reason.moved is None:
        return reason
    shapes = [shape for collective in seen for shape in collective.operand_shapes]
    is_moved = is_float(reason.moved.element_type) in {is_float(shape.dtype) for shape in shapes}
    return reason if is_moved and _is_one_of(reason.moved, shapes, mesh) else replace(reason, moved=None)


def _is_of_parts(reason: Reason, kind: Kind, seen: Sequence[Collective], mesh: Mapping[str, int]) -> bool:
    """Whether a collective gathers the parts of a sum, and no operand for each device to make the sum of by itself."""
    if kind is not Kind.ALL_GATHER or reason.moved is None:
        return False
    whole = [replace(operand, sharding=without(operand.sharding or (), reason.axes)) for operand in reason.operands]
    results = [shape for collective in seen for shape in collective.result_shapes]
    parts = [shape for collective in seen for shape in collective.operand_shapes]
    return _is_one_of(reason.moved, parts, mesh) and not any(_is_one_of(operand, results, mesh) for operand in whole)


def _choice(reason: Reason) -> Reason:
    """Of what the partitioner did for reasons of its own, the operation that it did it for is all that is said."""
    return replace(
        reason,
        kind=ReasonKind.PARTITIONERS_CHOICE,
        certain=False,
        moved=None,
        wanted=None,
        dimensions=(),
        producer=None,
        operand=None,
        asked_by=(),
        conflicting=None,
    )


def _is_one_of(tensor: Tensor, shapes: Iterable[ArrayShape], mesh: Mapping[str, int]) -> bool:
    """Whether an array's part on one device has one of these shapes."""
    part = local_shape(tensor.shape, tensor.sharding or ((),) * len(tensor.shape), dict(mesh))
    return significant(part) in map(significant, dimensions_of(shapes))
