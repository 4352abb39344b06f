"""The criteria by which collectives of two programs are the same: never a name, a channel or a line of HLO.

The same are, beside those of one place and amount, spellings that the compiler may exchange for one another. XLA splits
an all-reduce into a reduce-scatter and an all-gather of the same array and joins them again; its windowed einsum
(collective matmul) sends the shards of an all-gather, or the partial sums of a reduce-scatter, around the ring with
permutes: over n devices n - 1 chunks, or n + 1 where it fills and drains a pipeline.

Two procedures ask for them, and neither can do what the other does. `equivalent_leftovers` has both programs, and
adds up: an all-reduce of 2 MB is the same as two reduce-scatters of 1 MB and an all-gather of 2 MB, although none of
the former completes the latter; and 8 permutes of 2 kB over 4 devices are the same as two all-gathers of 8 kB, one in
3 chunks and one in 5, which the permutes alone do not say. `respelled` has one program and the limits of a contract,
which hold for each transfer: a reduce-scatter and an all-gather of 32 kB are one all-reduce of 32 kB, and two of each
of 16 kB add up to as much and break `x1`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from operator import attrgetter

from hloscope.analysis.model import Collective, Mesh
from hloscope.analysis.places import path_of, users_frame
from hloscope.analysis.totals import grouped
from hloscope.analysis.vocabulary import SUMS, Bound, Kind
from hloscope.matching.model import Change, ChangeKind
from hloscope.units import known_sum

Key = Callable[[Collective], Hashable]
_kind = attrgetter("kind")


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
    """How much moves, of which types, combined how, how often, how deep in loops; unknown amounts are equal here."""
    return (
        frozenset(shape.dtype for shape in collective.operand_shapes),
        collective.reduction,
        collective.payload_bytes,
        collective.wire_bytes,
        collective.executions,
        collective.executions_bound,
        len(collective.loops),
    )


def equivalent_leftovers(
    old: Sequence[Collective], new: Sequence[Collective], function: Key
) -> tuple[list[Change], tuple[list[Collective], list[Collective]]]:
    """Takes out of two lists what is the same in another spelling.

    Args:
        old: Collectives for which no partner was found.
        new: The same of the other program.
        function: Where a collective is written; only what is written in one place is exchanged.

    Returns:
        One change for each exchange, and what is left of both lists.
    """

    def together(collective: Collective) -> Hashable:
        return axes_identity(collective), collective.link, function(collective)

    before, after = grouped(together, old), grouped(together, new)
    changes = [
        Change(kind=ChangeKind.EQUIVALENT, old=tuple(before[key]), new=tuple(after[key]))
        for key in before
        if key in after and _are_equivalent(before[key], after[key])
    ]
    taken = [collective for change in changes for collective in (*change.old, *change.new)]
    return changes, ([left for left in old if left not in taken], [left for left in new if left not in taken])


def _are_equivalent(before: Sequence[Collective], after: Sequence[Collective]) -> bool:
    if any(collective.executions_bound is not Bound.EXACT for collective in (*before, *after)):
        return False
    return any(
        rule(whole, parts)
        for rule in (_is_split_all_reduce, _is_collective_matmul)
        for whole, parts in ((before, after), (after, before))
    )


def _is_split_all_reduce(whole: Sequence[Collective], parts: Sequence[Collective]) -> bool:
    """Whether `whole` are all-reduces, and `parts` reduce-scatters and all-gathers that each move the same arrays."""
    of_parts = grouped(_kind, parts)
    if len({part.reduction for part in (*whole, *parts) if part.kind in SUMS}) != 1:
        return False
    if grouped(_kind, whole).keys() != {Kind.ALL_REDUCE} or of_parts.keys() != {Kind.REDUCE_SCATTER, Kind.ALL_GATHER}:
        return False
    payloads = {known_sum(part.payload_bytes_per_step for part in side) for side in (whole, *of_parts.values())}
    return len(payloads) == 1 and None not in payloads


def _is_collective_matmul(whole: Sequence[Collective], parts: Sequence[Collective]) -> bool:
    """Whether `parts` are permutes that together send what the all-gathers or reduce-scatters in `whole` do.

    A windowed einsum over n devices sends n - 1 chunks, or n + 1 where it fills and drains a pipeline: XLA's scatter
    side over 4 devices prints 5 permutes, its gather side over 16 prints 17.
    """
    kinds, sizes = {*map(_kind, whole)}, {part.group_size for part in whole}
    if kinds not in ({Kind.ALL_GATHER}, {Kind.REDUCE_SCATTER}) or {*map(_kind, parts)} != {Kind.COLLECTIVE_PERMUTE}:
        return False
    size = sizes.pop()
    needed, sent = (known_sum(part.wire_bytes_per_step for part in side) for side in (whole, parts))
    if sizes or size is None or size < 2 or needed is None or sent is None:
        return False
    return needed <= sent <= needed * Fraction(size + 1, size - 1)


def respelled(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """Some of the collectives, and the same in another spelling that the compiler may choose for them; each such pair.

    Args:
        collectives: Those of one program.
        mesh: The sizes of its axes, without which no collective matmul is known from other permutes.
    """
    for first in collectives:
        if first.kind is Kind.ALL_REDUCE:
            half = None if first.wire_bytes is None else first.wire_bytes // 2
            scatter = replace(first, kind=Kind.REDUCE_SCATTER, wire_bytes=half)
            yield [first], [scatter, replace(scatter, kind=Kind.ALL_GATHER, reduction=None)]
        if first.kind is Kind.REDUCE_SCATTER:
            for gather in collectives:
                if _completes(first, gather):
                    wire = known_sum((first.wire_bytes, gather.wire_bytes))
                    yield [first, gather], [replace(first, kind=Kind.ALL_REDUCE, wire_bytes=wire)]
    yield from _matmuls(collectives, mesh)


def _completes(scatter: Collective, gather: Collective) -> bool:
    """Whether an all-gather puts together what a reduce-scatter left in parts."""
    sides = ((c.axes, c.link, c.payload_bytes, c.executions, c.executions_bound) for c in (scatter, gather))
    return gather.kind is Kind.ALL_GATHER and scatter.payload_bytes is not None and len(set(sides)) == 1


def _matmuls(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """The permutes of each collective matmul, as its all-gather and as its reduce-scatter.

    Over n devices it sends n - 1 chunks or more; what sends fewer, such as one shift to a neighbor, is none.
    """
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    known = [
        permute
        for permute in collectives
        if permute.kind is Kind.COLLECTIVE_PERMUTE and permute.axes and permute.payload_bytes is not None
    ]
    for permutes in grouped(_matmul_key, known).values():
        axes = permutes[0].axes or ()
        size = prod(sizes.get(axis, 0) for axis in axes)  # 0 for parts of axes, or without a mesh
        if 1 < size <= sum(permute.executions for permute in permutes) + 1:
            for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
                yield permutes, [_whole(permutes, kind, size)]


def _matmul_key(permute: Collective) -> Hashable:
    return permute.axes, permute.link, permute.op_name, permute.source[:1]


def _whole(permutes: Sequence[Collective], kind: Kind, size: int) -> Collective:
    """One collective of the array that permutes send in chunks.

    n - 1 chunks make the array but for the device's own; a windowed einsum that fills and drains a pipeline sends
    n + 1. Where it is neither, all that is sent counts.
    """
    sent = sum(permute.payload_bytes_per_step or 0 for permute in permutes)
    chunks = {permute.payload_bytes for permute in permutes}
    fills_a_pipeline = len(chunks) == 1 and sum(permute.executions for permute in permutes) == size + 1
    return replace(
        permutes[0],
        kind=kind,
        reduction="add" if kind in SUMS else None,
        group_size=size,
        payload_bytes=(chunks.pop() or 0) * size if fills_a_pipeline else -(-sent * size // (size - 1)),
        wire_bytes=sum(permute.wire_bytes_per_step or 0 for permute in permutes),
        executions=1,
    )
