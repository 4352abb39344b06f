"""What makes two collectives of two programs the same one: never a name, a channel or a line of HLO.

The same are, beside those of one place and amount, spellings that the compiler may exchange for one another. XLA splits
an all-reduce into a reduce-scatter and an all-gather of the same array and joins them again; its windowed einsum
(collective matmul) sends the shards of an all-gather, or the partial sums of a reduce-scatter, around the ring with
permutes: over n devices n - 1 chunks, or n + 1 where it fills and drains a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from hloscope.analysis.model import Collective, Mesh
from hloscope.analysis.places import path_of, users_frame
from hloscope.analysis.totals import known_sum
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.compare.model import Change, ChangeKind


def axes_identity(collective: Collective) -> Hashable:
    """The axes; where they are not known, the groups as sets of devices."""
    if collective.axes is not None:
        return collective.axes
    return frozenset(frozenset(group) for group in collective.groups)


def function_of(collective: Collective) -> Hashable:
    """The function that a collective was written in; where no line is known, XLA's `op_name`.

    Checkouts lie in different folders, so a file counts by its name.
    """
    frame = users_frame(collective.source)
    if frame is None:
        return ("", collective.op_name)
    return (path_of(frame).name, frame.function)


def place_of(collective: Collective) -> Hashable:
    """The line that a collective was written in, with its function."""
    frame = users_frame(collective.source)
    return (function_of(collective), None if frame is None else (frame.line, frame.column))


def amount_of(collective: Collective) -> Hashable:
    """How much moves, how often, how deep in loops; two unknown amounts are equal here and told as unsure elsewhere."""
    return (
        collective.payload_bytes,
        collective.wire_bytes,
        collective.executions,
        collective.executions_bound,
        len(collective.loops),
    )


_Leftovers = tuple[list[Change], list[Collective], list[Collective]]


def equivalent_leftovers(old: Sequence[Collective], new: Sequence[Collective]) -> _Leftovers:
    """Takes out of two lists what is the same in another spelling.

    Returns:
        One change for each exchange, and what is left of both lists.
    """
    changes: list[Change] = []
    left_old, left_new = list(old), list(new)
    for is_exchange in (_is_split_all_reduce, _is_collective_matmul):
        for key in _shared_keys(left_old, left_new):
            before = [one for one in left_old if _key(one) == key]
            after = [one for one in left_new if _key(one) == key]
            exchange = _exchange(before, after, is_exchange)
            if exchange is not None:
                changes.append(exchange)
                left_old = [one for one in left_old if one not in exchange.old]
                left_new = [one for one in left_new if one not in exchange.new]
    return changes, left_old, left_new


def _key(collective: Collective) -> Hashable:
    return axes_identity(collective), collective.link, function_of(collective)


def _shared_keys(old: Iterable[Collective], new: Iterable[Collective]) -> list[Hashable]:
    others = {_key(one) for one in new}
    return list(dict.fromkeys(key for one in old if (key := _key(one)) in others))


_Side = Sequence[Collective]
_IsExchange = Callable[[_Side, _Side], bool]


def _exchange(before: _Side, after: _Side, is_exchange: _IsExchange) -> Change | None:
    if any(one.executions_bound is not Bound.EXACT for one in (*before, *after)):
        return None
    if is_exchange(before, after) or is_exchange(after, before):
        return Change(kind=ChangeKind.EQUIVALENT, old=tuple(before), new=tuple(after))
    return None


def _is_split_all_reduce(whole: _Side, parts: _Side) -> bool:
    """Whether `whole` are all-reduces, and `parts` reduce-scatters and all-gathers that each move the same arrays."""
    if {one.kind for one in whole} != {Kind.ALL_REDUCE}:
        return False
    if {one.kind for one in parts} != {Kind.REDUCE_SCATTER, Kind.ALL_GATHER}:
        return False
    reduced = _payload(whole)
    scattered = _payload(one for one in parts if one.kind is Kind.REDUCE_SCATTER)
    gathered = _payload(one for one in parts if one.kind is Kind.ALL_GATHER)
    return reduced is not None and reduced == scattered == gathered


def _is_collective_matmul(whole: _Side, parts: _Side) -> bool:
    """Whether `parts` are permutes that together send what the all-gathers or reduce-scatters in `whole` do.

    A windowed einsum over n devices sends n - 1 chunks, or n + 1 where it fills and drains a pipeline: XLA's scatter
    side over 4 devices prints 5 permutes, its gather side over 16 prints 17.
    """
    kinds = {one.kind for one in whole}
    if kinds not in ({Kind.ALL_GATHER}, {Kind.REDUCE_SCATTER}) or {one.kind for one in parts} != {
        Kind.COLLECTIVE_PERMUTE
    }:
        return False
    sizes = {one.group_size for one in whole}
    size = sizes.pop()
    needed, sent = _wire(whole), _wire(parts)
    if sizes or size is None or size < 2 or needed is None or sent is None:
        return False
    return needed <= sent <= needed * Fraction(size + 1, size - 1)


def _payload(collectives: Iterable[Collective]) -> int | None:
    return known_sum(one.payload_bytes_per_step for one in collectives)


def _wire(collectives: Iterable[Collective]) -> int | None:
    return known_sum(one.wire_bytes_per_step for one in collectives)


def respelled(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """Some of the collectives, and the same in another spelling that the compiler may choose for them; each such pair.

    Args:
        collectives: Those of one program.
        mesh: The sizes of its axes, without which no collective matmul is told from other permutes.
    """
    for one in collectives:
        if one.kind is Kind.ALL_REDUCE:
            yield [one], _split(one)
        if one.kind is Kind.REDUCE_SCATTER:
            yield from (([one, other], [_joined(one, other)]) for other in collectives if _completes(one, other))
    yield from _matmuls(collectives, mesh)


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


def _matmuls(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """The permutes of each collective matmul, as its all-gather and as its reduce-scatter.

    Over n devices it sends n - 1 chunks or more; what sends fewer, such as one shift to a neighbour, is none.
    """
    groups: dict[object, list[Collective]] = {}
    for one in collectives:
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
