"""A reason beside the collective that it is given for: where the two disagree, what was really done.

Shardy says what has to move, and the partitioner how. Most of the time it is the obvious way; where it is another, as
the kind and the shapes of the collective show, the reason is given as the partitioner's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloscope.analysis.model import Collective
from hloscope.analysis.model.reason import Reason, ReasonKind, Tensor
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.why.partitioned import dimensions_of, significant
from hloscope.why.reshards import is_float, local_shape


def agreed(reason: Reason, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """The reason as the collective bears it out.

    Args:
        reason: Why data must move, as Shardy's shardings say.
        seen: The collective as the partitioner put it in, where that is known, and as it is in the end.
        mesh: Devices along each axis.
    """
    kind = seen[0].kind if reason.rewritten_from is None else Kind(reason.rewritten_from)
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in SUMS:
        is_of_parts = kind is Kind.ALL_GATHER and _has_its_shape(reason.moved, seen, mesh)
        return reason if is_of_parts else replace(_choice(reason), consumer=reason.producer)
    if kind is Kind.ALL_TO_ALL and reason.kind is ReasonKind.OPERAND_CONFLICT and reason.wanted is None:
        return _choice(reason)  # makes nothing whole, and Shardy asks for nothing else
    if reason.kind is not ReasonKind.PARTITIONERS_CHOICE or reason.moved is None:
        return reason
    floats = {is_float(shape.dtype) for collective in seen for shape in collective.operand_shapes}
    is_moved = is_float(reason.moved.element_type) in floats and _has_its_shape(reason.moved, seen, mesh)
    return reason if is_moved else replace(reason, moved=None)


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


def _has_its_shape(moved: Tensor | None, seen: Sequence[Collective], mesh: Mapping[str, int]) -> bool:
    """Whether a collective's operand has the shape of an array's part on one device."""
    if moved is None:
        return False
    part = local_shape(moved.shape, moved.sharding or ((),) * len(moved.shape), dict(mesh))
    shapes = dimensions_of(shape for collective in seen for shape in collective.operand_shapes)
    return significant(part) in map(significant, shapes)
