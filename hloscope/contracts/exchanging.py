"""`equivalent`: collectives in the spelling that a contract expects, where the compiler chose another one.

Source: XLA splits an all-reduce into a reduce-scatter and an all-gather and joins them again; its windowed einsum sends
the shards of an all-gather, or the partial sums of a reduce-scatter, around the ring with permutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from hloscope.analysis.model import Collective, Mesh
from hloscope.analysis.vocabulary import Kind
from hloscope.contracts.model import Contract, Expectation
from hloscope.contracts.selecting import is_exactly


def with_expected_spellings(contract: Contract, moving: Sequence[Collective], mesh: Mesh | None) -> list[Collective]:
    """The collectives, with those that no expectation takes put into a spelling that one does.

    What fits no expectation in any spelling stays as it is.
    """
    left = [one for one in moving if not _expected(contract, one)]
    kept = [one for one in moving if _expected(contract, one)]
    for before, after in _exchanges(left, mesh):
        if all(one in left for one in before) and all(_expected(contract, one) for one in after):
            left = [one for one in left if one not in before]
            kept += after
    return kept + left


def _expected(contract: Contract, one: Collective) -> bool:
    return any(isinstance(clause, Expectation) and is_exactly(clause.selector, one) for clause in contract.clauses)


def _exchanges(left: Sequence[Collective], mesh: Mesh | None) -> Iterator[tuple[list[Collective], list[Collective]]]:
    for one in left:
        if one.kind is Kind.ALL_REDUCE:
            yield [one], _split(one)
        if one.kind is Kind.REDUCE_SCATTER:
            yield from (([one, other], [_joined(one, other)]) for other in left if _completes(one, other))
    yield from _matmuls(left, mesh)


def _split(reduce: Collective) -> list[Collective]:
    half = None if reduce.wire_bytes is None else reduce.wire_bytes // 2
    return [replace(reduce, kind=kind, wire_bytes=half) for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)]


def _completes(scatter: Collective, gather: Collective) -> bool:
    """Whether an all-gather puts together what a reduce-scatter left in parts."""
    return (
        gather.kind is Kind.ALL_GATHER
        and scatter.payload_bytes is not None
        and (gather.axes, gather.link, gather.payload_bytes) == (scatter.axes, scatter.link, scatter.payload_bytes)
        and (gather.executions, gather.executions_bound) == (scatter.executions, scatter.executions_bound)
    )


def _joined(scatter: Collective, gather: Collective) -> Collective:
    known = scatter.wire_bytes is not None and gather.wire_bytes is not None
    wire = (scatter.wire_bytes or 0) + (gather.wire_bytes or 0) if known else None
    return replace(scatter, kind=Kind.ALL_REDUCE, wire_bytes=wire)


def _matmuls(left: Sequence[Collective], mesh: Mesh | None) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """The permutes of each collective matmul, as its all-gather and as its reduce-scatter.

    Over n devices it sends n - 1 chunks or more; what sends fewer, such as one shift to a neighbour, is none.
    """
    groups: dict[object, list[Collective]] = {}
    for one in left:
        if one.kind is Kind.COLLECTIVE_PERMUTE and one.axes and one.payload_bytes is not None:
            groups.setdefault((one.axes, one.link, one.op_name, one.source[:1]), []).append(one)
    for permutes in groups.values():
        size = _axes_size(permutes[0], mesh)
        if size is not None and 1 < size <= sum(one.executions for one in permutes) + 1:
            for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
                yield permutes, [_whole(permutes, kind, size)]


def _axes_size(permute: Collective, mesh: Mesh | None) -> int | None:
    """Devices along the axes of a permute; None for parts of axes, or without a mesh."""
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    axes = permute.axes or ()
    return prod(sizes[axis] for axis in axes) if all(axis in sizes for axis in axes) else None


def _whole(permutes: Sequence[Collective], kind: Kind, size: int) -> Collective:
    """One collective of the array that permutes send in chunks.

    n - 1 chunks make the array but for the device's own; a windowed einsum that fills and drains a pipeline sends
    n + 1. Where it is neither, all that is sent counts.
    """
    sent = sum(one.payload_bytes_per_step or 0 for one in permutes)
    transfers = sum(one.executions for one in permutes)
    chunks = {one.payload_bytes for one in permutes}
    if len(chunks) == 1 and transfers == size + 1:
        payload = (chunks.pop() or 0) * size
    else:
        payload = -(-sent * size // (size - 1))
    return replace(
        permutes[0],
        kind=kind,
        group_size=size,
        payload_bytes=payload,
        wire_bytes=sum(one.wire_bytes_per_step or 0 for one in permutes),
        executions=1,
    )
