"""A reason beside the collective that it is given for: where the two disagree, what was really done.

Shardy says what has to move, and the partitioner how. Most of the time it is the obvious way; where it is another, as
the kind and the shapes of the collective show, the reason is given as that way, or as one that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hloscope.analysis.model import Collective
from hloscope.analysis.model.reason import Axes, Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.why.graph import dimensions_cut
from hloscope.why.names import ends_alike
from hloscope.why.partitioned import dimensions_of, significant
from hloscope.why.reshards import is_float, local_shape, without

Shape = tuple[int, ...]


def agreed(reason: Reason, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """The reason as the collective bears it out.

    Args:
        reason: Why data must move, as Shardy's shardings say.
        seen: The collective as the partitioner put it in, where that is known, and as it is in the end.
        mesh: Devices along each axis.
    """
    kind = seen[0].kind if reason.rewritten_from is None else Kind(reason.rewritten_from)
    if reason.kind is ReasonKind.PARTIAL_SUM:
        return reason if kind in SUMS else _without_sum(reason, kind, seen, mesh)
    if kind is Kind.ALL_TO_ALL and reason.kind is ReasonKind.OPERAND_CONFLICT and reason.wanted is None:
        return _brought_elsewhere(reason, seen)
    if reason.kind is ReasonKind.PARTITIONERS_CHOICE and not _is_moved(reason.moved, seen, mesh):
        return replace(reason, moved=None)
    return reason


def _without_sum(reason: Reason, kind: Kind, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """Of an operation whose parts nothing adds up: the operand that is gathered before, or the parts themselves."""
    if kind is Kind.ALL_GATHER:
        parts, made = _operands(seen), _results(seen)
        cuts = {number: dimensions_cut(operand.sharding, reason.axes) for number, operand in enumerate(reason.operands)}
        alike = [n for n, cut in cuts.items() if cut and significant(_local(reason.operands[n], mesh)) in parts]
        whole = [n for n in alike if significant(_local(_gathered(reason.operands[n], reason.axes), mesh)) in made]
        for number in whole:  # parts of both operands may be alike, and what is made of them not
            return _gathered_before(reason, number, cuts[number])
        if reason.moved is not None and significant(_local(reason.moved, mesh)) in parts:
            return reason
        for number in alike:
            return replace(_gathered_before(reason, number, cuts[number]), certain=False)
    return replace(_choice(reason), consumer=reason.producer)


def _gathered_before(reason: Reason, number: int, cut: tuple[int, ...]) -> Reason:
    """An operand is handed over whole, so that each device has the sum by itself."""
    operand = reason.operands[number]
    whole = [_gathered(operand, reason.axes) for operand in reason.operands]
    return replace(
        reason,
        kind=ReasonKind.GATHERED_OPERAND,
        moved=operand,
        wanted=whole[number].sharding,
        dimensions=cut,
        producer=None,
        consumer=reason.producer,
        operand=number,
        operands=tuple(operand if at == number else value for at, value in enumerate(whole)),
        result=None if reason.result is None else replace(reason.result, partial_over=()),
        asked_by=(),
    )


def _brought_elsewhere(reason: Reason, seen: Sequence[Collective]) -> Reason:
    """An array that an all-to-all cuts along the dimension that others are cut along.

    No array where it has no such dimension, or where the collective belongs to the operation that made it: then it may
    go the other way.
    """
    moved, letter = reason.moved, reason.conflicting or ""
    if not _is_of(reason.consumer, seen):
        own = reason.producer if _is_of(reason.producer, seen) else reason.consumer
        return replace(_choice(reason), consumer=own)
    if moved is None or moved.sharding is None or moved.letters.count(letter) != 1:
        return _choice(reason)
    number = moved.letters.index(letter)
    if number in reason.dimensions:
        return _choice(reason)
    wanted = list(without(moved.sharding, reason.axes))
    wanted[number] = (*wanted[number], *reason.axes)
    return replace(reason, wanted=tuple(wanted))


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


def _is_of(operation: Operation | None, seen: Iterable[Collective]) -> bool:
    """Whether a collective carries the name of an operation."""
    name = None if operation is None else operation.op_name
    return name is not None and any(
        collective.op_name is not None and ends_alike(name, collective.op_name) for collective in seen
    )


def _is_moved(moved: Tensor | None, seen: Iterable[Collective], mesh: Mapping[str, int]) -> bool:
    """Whether a collective's operand may be an array's part on one device: alike in shape, and not of another type."""
    if moved is None:
        return True
    floats = {is_float(shape.dtype) for collective in seen for shape in collective.operand_shapes}
    return is_float(moved.element_type) in floats and significant(_local(moved, mesh)) in _operands(seen)


def _gathered(tensor: Tensor, axes: Axes) -> Tensor:
    return replace(tensor, sharding=without(tensor.sharding or (), axes))


def _results(seen: Iterable[Collective]) -> set[Shape]:
    return {significant(dimensions) for collective in seen for dimensions in dimensions_of(collective.result_shapes)}


def _operands(seen: Iterable[Collective]) -> set[Shape]:
    return {significant(dimensions) for collective in seen for dimensions in dimensions_of(collective.operand_shapes)}


def _local(tensor: Tensor, mesh: Mapping[str, int]) -> Shape:
    return local_shape(tensor.shape, tensor.sharding or ((),) * len(tensor.shape), dict(mesh))
