"""A comparison of a reason with its collective, and a correction if they disagree.

Shardy determines what must move, and the partitioner how. Usually it takes the obvious way; if the kind and the shapes
of the collective show another, the reason is given as the partitioner's choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hloscope.analysis.model import ArrayShape, Collective
from hloscope.analysis.model.reason import Reason, ReasonKind, Tensor
from hloscope.analysis.vocabulary import REDUCING, Kind
from hloscope.shardy.reshards import is_float, local_shape, remove_axes
from hloscope.why.partitioned import drop_ones, list_dimensions


def reconcile_reason(reason: Reason, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """The reason, adjusted to what the collective shows.

    Args:
        reason: The reason for the move according to Shardy's shardings.
        seen: The collective as the partitioner inserted it, if known, and the final collective.
        mesh: Number of devices along each axis.
    """
    kind = seen[0].kind if reason.rewritten_from is None else Kind(reason.rewritten_from)
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in REDUCING:
        return (
            reason
            if _is_of_parts(reason, kind, seen, mesh)
            else replace(_reduce_to_choice(reason), consumer=reason.producer)
        )
    if kind is Kind.ALL_TO_ALL and reason.kind is ReasonKind.OPERAND_CONFLICT and reason.wanted is None:
        return _reduce_to_choice(reason)  # it makes nothing whole, and Shardy requests nothing else
    if reason.kind is not ReasonKind.PARTITIONERS_CHOICE or reason.moved is None:
        return reason
    shapes = [shape for collective in seen for shape in collective.operand_shapes]
    is_moved = is_float(reason.moved.element_type) in {is_float(shape.dtype) for shape in shapes}
    return reason if is_moved and _is_one_of(reason.moved, shapes, mesh) else replace(reason, moved=None)


def _is_of_parts(reason: Reason, kind: Kind, seen: Sequence[Collective], mesh: Mapping[str, int]) -> bool:
    """Returns whether a collective gathers the parts of a sum, and no operand of which each device sums its own."""
    if kind is not Kind.ALL_GATHER or reason.moved is None:
        return False
    whole = [replace(operand, sharding=remove_axes(operand.sharding or (), reason.axes)) for operand in reason.operands]
    results = [shape for collective in seen for shape in collective.result_shapes]
    parts = [shape for collective in seen for shape in collective.operand_shapes]
    return _is_one_of(reason.moved, parts, mesh) and not any(_is_one_of(operand, results, mesh) for operand in whole)


def _reduce_to_choice(reason: Reason) -> Reason:
    """The reason reduced to its operation, which is all that is known of a choice of the partitioner."""
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
    """Returns whether an array's part on one device has one of these shapes."""
    part = local_shape(tensor.shape, tensor.sharding or ((),) * len(tensor.shape), dict(mesh))
    return drop_ones(part) in map(drop_ones, list_dimensions(shapes))
