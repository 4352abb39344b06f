"""The pairing of two programs: of their collectives, of the rows of their baselines, and what is lost between them.

Collectives are the same by what they move and where they are written: never by a name, a channel or a line of HLO.
The same are also spellings that the compiler may exchange for one another. XLA splits an all-reduce into a
reduce-scatter and an all-gather of the same array and joins them again; its windowed einsum (collective matmul) sends
the shards of an all-gather, or the partial sums of a reduce-scatter, around the ring with permutes: over n devices
n - 1 chunks, or n + 1 where it fills and drains a pipeline.

Two procedures ask for them, and neither can do what the other does. `_exchange_leftovers` has both programs, and adds
up: an all-reduce of 2 MB is the same as two reduce-scatters of 1 MB and an all-gather of 2 MB, although none of the
former completes the latter; and 8 permutes of 2 kB over 4 devices are the same as two all-gathers of 8 kB, one in 3
chunks and one in 5, which the permutes alone do not say. `respelled` has one program and the limits of a contract,
which hold for each transfer: a reduce-scatter and an all-gather of 32 kB are one all-reduce of 32 kB, and two of each
of 16 kB add up to as much and break `x1`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import chain
from math import prod
from operator import add, attrgetter
from typing import NamedTuple

from hloscope.analysis.provenance import find_users_frame, frame_path, render_users_line
from hloscope.analysis.totals import axes_key, compute_totals
from hloscope.base.documents import make_document
from hloscope.base.results import group_by
from hloscope.base.units import count_element_bits, pluralize, sum_known
from hloscope.judge.baselines import MIXED, Baseline, BaselineRow, format_axes
from hloscope.judge.changes import (
    REDUCTION,
    Change,
    ChangeKind,
    Comparison,
    Judgement,
    Pair,
    Tally,
    describe_collectives,
    join_pairs,
)
from hloscope.model import Collective, CollectivePart, Mesh, Total, bytes_bound
from hloscope.model.vocabulary import REDUCING, Bound, Kind

_EXPOSED_SHARE = 0.1
"""Of its own time: a collective that is exposed for less counts as hidden."""

_kind, _payload = attrgetter("kind"), attrgetter("payload_bytes")
Key = Callable[[Collective], Hashable]
Rows = Pair[BaselineRow]
_Leftovers = tuple[list[Collective], list[Collective]]


def match(
    old: Sequence[Collective], new: Sequence[Collective], *, equivalent: bool = False, by_place: bool = True
) -> Comparison:
    """Compares what two programs move.

    Kind, axes and link must agree for two collectives to be the same one. Of those the surest pairs are taken first:
    equal amounts, reduced by the same operation, on the same line, such in the same function (its lines moved), such
    anywhere (it was written elsewhere); then what was combined or split; and then, with amounts or operations that
    differ, the same line and the same function. What is left was added or removed.

    Args:
        old: The collectives of the program before, or of the reference.
        new: The collectives of the program after.
        equivalent: Whether spellings that the compiler may exchange are the same: an all-reduce for a reduce-scatter
            and an all-gather of as many bytes; permutes of a collective matmul for its all-gather or reduce-scatter.
        by_place: Whether it counts where they are written, which it does not in programs that say the same in other
            functions.
    """
    place, function = (_find_place, _find_function) if by_place else (_ignore_place, _ignore_place)
    pairs, left = _pair_by((old, new), (_find_amount, place), (_find_amount, function), (_find_amount,))
    changes, left = _find_joined(*left)
    if equivalent:
        exchanged, left = _exchange_leftovers(*left, function)
        changes += exchanged
    changed, (left_old, left_new) = _pair_by(
        left, (place, _payload), (place, _count_loops), (place,), (function, _payload), (function,)
    )
    differing = [(pair, list(_find_differences(*pair))) for pair in (*changed, *pairs)]
    changes += [change for _, differences in differing for change in differences]
    changes += [_make_change(ChangeKind.REMOVED, [gone], ()) for gone in left_old]
    changes += [_make_change(ChangeKind.ADDED, (), [added]) for added in left_new]
    return Comparison(
        changes=tuple(sorted(changes, key=_weigh)),
        unchanged=tuple(pair for pair, differences in differing if not differences),
        unsure=tuple(filter(_is_unsure, (*old, *new))),
        tallies=_make_tallies(old, new),
        old_total=compute_totals(old),
        new_total=compute_totals(new),
    )


def _ignore_place(_: Collective) -> Hashable:
    return None


def _count_loops(collective: Collective) -> Hashable:
    return len(collective.loops)


def _identify(collective: Collective) -> Hashable:
    return collective.kind, _identify_axes(collective), collective.link


def _pair_by(
    sides: tuple[Sequence[Collective], Sequence[Collective]], *keys: tuple[Key, ...]
) -> tuple[list[tuple[Collective, Collective]], _Leftovers]:
    """Pairs of what is the same collective by one key after the other, in the order of both lists, and what is left."""
    pairs: list[tuple[Collective, Collective]] = []
    left_old, left_new = (list(side) for side in sides)
    for parts in keys:

        def key(collective: Collective, parts: tuple[Key, ...] = parts) -> Hashable:
            return _identify(collective), *(part(collective) for part in parts)

        waiting, unpaired = group_by(left_old, key), []
        for collective in left_new:
            partners = waiting.get(key(collective))
            if partners:
                pairs.append((partners.pop(0), collective))
            else:
                unpaired.append(collective)
        left_old, left_new = list(chain(*waiting.values())), unpaired
    return pairs, (left_old, left_new)


def _find_differences(old: Collective, new: Collective) -> Iterator[Change[Collective]]:
    def change(kind: ChangeKind) -> Change[Collective]:
        return _make_change(kind, [old], [new])

    if (old.payload_bytes, old.wire_bytes) != (new.payload_bytes, new.wire_bytes):
        yield change(ChangeKind.BYTES)
    if old.reduction != new.reduction:
        yield change(ChangeKind.REDUCTION)
    depth = len(new.loops) - len(old.loops)
    if depth:
        yield change(ChangeKind.INTO_LOOP if depth > 0 else ChangeKind.OUT_OF_LOOP)
    elif old.executions != new.executions:
        yield change(ChangeKind.EXECUTIONS)
    elif old.executions_bound is not new.executions_bound:
        yield change(ChangeKind.BOUND)
    if _is_exposed(old) is False and _is_exposed(new):
        yield change(ChangeKind.NEWLY_EXPOSED)


def _is_exposed(collective: Collective) -> bool | None:
    """True if a step waits for it; None if it was not priced."""
    if collective.exposed_us is None or collective.time_us is None:
        return None
    return collective.exposed_us > _EXPOSED_SHARE * collective.time_us


def _is_unsure(collective: Collective) -> bool:
    return bytes_bound(collective) is not Bound.EXACT or (collective.axes is None and not collective.groups)


def _find_joined(old: Sequence[Collective], new: Sequence[Collective]) -> tuple[list[Change[Collective]], _Leftovers]:
    """Leftovers of one kind and axes that move the same bytes at the same depth in another number of transfers."""

    def together(collective: Collective) -> Hashable:
        how_often = collective.executions, collective.executions_bound
        return _identify(collective), _count_loops(collective), how_often, collective.reduction

    before, after = group_by(old, together), group_by(new, together)
    changes = [
        _make_change(ChangeKind.REGROUPED, before.pop(key), after.pop(key))
        for key in before.keys() & after.keys()
        if _sum_bytes(before[key]) == _sum_bytes(after[key]) is not None
    ]
    return changes, (list(chain(*before.values())), list(chain(*after.values())))


def _sum_bytes(collectives: Sequence[Collective]) -> tuple[int, int] | None:
    """Payload and wire bytes per execution, summed; None where some are not known."""
    payload = sum_known(collective.payload_bytes for collective in collectives)
    wire = sum_known(collective.wire_bytes for collective in collectives)
    return None if payload is None or wire is None else (payload, wire)


def _make_tallies(old: Sequence[Collective], new: Sequence[Collective]) -> tuple[Tally, ...]:
    def key(collective: Collective) -> tuple[Kind, str]:
        return collective.kind, axes_key(collective)

    before, after = group_by(old, key), group_by(new, key)
    tallies = [
        Tally(
            kind=kind,
            axes=axes,
            old=make_document(Total, compute_totals(before.get((kind, axes), []))),
            new=make_document(Total, compute_totals(after.get((kind, axes), []))),
            axes_guessed=any(part.axes_guessed for part in parts),
        )
        for (kind, axes), parts in group_by((*old, *new), key).items()
    ]
    return tuple(sorted(tallies, key=lambda row: (-max(row.old.wire_bytes, row.new.wire_bytes), row.kind, row.axes)))


def _weigh(change: Change[Collective]) -> tuple[bool, int, str, str, int]:
    """Unknown bytes first, then most bytes per step, then in an order that does not depend on names."""
    known, shown = change.wire_bytes, (change.after or change.before)[0]
    return known is not None, -abs(known or 0), shown.kind, axes_key(shown), shown.line


def _make_change(kind: ChangeKind, before: Sequence[Collective], after: Sequence[Collective]) -> Change[Collective]:
    """A change of collectives, with the judgement on it by itself: by what moves, which must be known to be less."""
    shown = (after or before)[0]
    was, now = (sum_known(part.wire_bytes_per_step for part in side) for side in (before, after))
    more = None if was is None or now is None else now - was
    return Change(
        key=f"{shown.kind}@{axes_key(shown)}",
        judgement=_judge_kind(kind, after, more),
        message=describe_collectives(kind, before, after),
        source=render_users_line(shown.source),
        why=shown.why,
        tried=shown.tried,
        wire_bytes=more,
        before=tuple(before),
        after=tuple(after),
        bound=_find_bound(after) + -_find_bound(before),
        kind=kind,
    )


def _find_bound(collectives: Iterable[Collective]) -> Bound:
    return reduce(add, map(bytes_bound, collectives), Bound.EXACT)


def _judge_kind(kind: ChangeKind, after: Sequence[Collective], more: int | None) -> Judgement:
    """The judgement on a change by itself: worse if more moves, or may; unknown bytes are an increase until known."""
    if kind.same_traffic:
        return Judgement.SAME
    if kind is ChangeKind.REMOVED:
        return Judgement.BETTER
    is_waited_for = kind in (ChangeKind.ADDED, ChangeKind.INTO_LOOP, ChangeKind.NEWLY_EXPOSED)
    is_less_sure = kind is ChangeKind.BOUND and after[0].executions_bound is not Bound.EXACT
    if is_waited_for or is_less_sure or (kind is not ChangeKind.BOUND and (more is None or more > 0)):
        return Judgement.WORSE
    is_same_amount = kind in (ChangeKind.REDUCTION, ChangeKind.BOUND) or more == 0
    return Judgement.DIFFERENT if is_same_amount else Judgement.BETTER


def match_rows(
    before: Baseline, after: Baseline, sides: tuple[Sequence[Collective], Sequence[Collective]]
) -> Iterator[tuple[Change[Collective], Rows]]:
    """The changes of two baselines whose rows, as the collectives `sides`, are matched, each with its rows."""
    row_of = dict(zip(map(id, chain(*sides)), (*before.rows, *after.rows), strict=True))
    for change in match(*sides, equivalent=True).changes:
        old, new = (tuple(row_of[id(part)] for part in side) for side in (change.before, change.after))
        yield change, Pair(old, new)


# ---- spellings that the compiler may exchange


def _identify_axes(collective: Collective) -> Hashable:
    """The axes; where they are not known, the groups as sets of devices."""
    if collective.axes is not None:
        return collective.axes
    return frozenset(frozenset(group) for group in collective.groups)


def _find_function(collective: Collective) -> Hashable:
    """The function that a collective was written in; where no line is known, XLA's `op_name`.

    Checkouts lie in different folders, so a file counts by its name.
    """
    frame = find_users_frame(collective.source)
    if frame is None:
        return ("", collective.op_name)
    return (frame_path(frame).name, frame.function)


def _find_place(collective: Collective) -> Hashable:
    """The line that a collective was written in, with its function."""
    frame = find_users_frame(collective.source)
    return (_find_function(collective), None if frame is None else (frame.line, frame.column))


def _find_amount(collective: Collective) -> Hashable:
    """The bytes, types, reduction, executions and depth in loops; unknown amounts are equal here."""
    return (
        frozenset(shape.dtype for shape in collective.operand_shapes),
        collective.reduction,
        collective.payload_bytes,
        collective.wire_bytes,
        collective.executions,
        collective.executions_bound,
        len(collective.loops),
    )


def _exchange_leftovers(
    old: Sequence[Collective], new: Sequence[Collective], function: Key
) -> tuple[list[Change[Collective]], _Leftovers]:
    """Takes out of two lists what is the same in another spelling.

    Args:
        old: Collectives for which no partner was found.
        new: The same of the other program.
        function: Where a collective is written; only what is written in one place is exchanged.

    Returns:
        One change for each exchange, and what is left of both lists.
    """

    def together(collective: Collective) -> Hashable:
        return _identify_axes(collective), collective.link, function(collective)

    before, after = group_by(old, together), group_by(new, together)
    changes = [
        _make_change(ChangeKind.EQUIVALENT, before[key], after[key])
        for key in before
        if key in after and _are_equivalent(before[key], after[key])
    ]
    taken = [collective for change in changes for collective in (*change.before, *change.after)]
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
    """True if `whole` are all-reduces, and `parts` reduce-scatters and all-gathers that each move the same arrays."""
    of_parts = group_by(parts, _kind)
    if len({part.reduction for part in (*whole, *parts) if part.kind in REDUCING}) != 1:
        return False
    if group_by(whole, _kind).keys() != {Kind.ALL_REDUCE} or of_parts.keys() != {Kind.REDUCE_SCATTER, Kind.ALL_GATHER}:
        return False
    payloads = {sum_known(part.payload_bytes_per_step for part in side) for side in (whole, *of_parts.values())}
    return len(payloads) == 1 and None not in payloads


def _is_collective_matmul(whole: Sequence[Collective], parts: Sequence[Collective]) -> bool:
    """True if `parts` are permutes that together send what the all-gathers or reduce-scatters in `whole` do.

    A windowed einsum over n devices sends n - 1 chunks, or n + 1 where it fills and drains a pipeline: XLA's scatter
    side over 4 devices prints 5 permutes, its gather side over 16 prints 17.
    """
    kinds, sizes = {*map(_kind, whole)}, {part.group_size for part in whole}
    if kinds not in ({Kind.ALL_GATHER}, {Kind.REDUCE_SCATTER}) or {*map(_kind, parts)} != {Kind.COLLECTIVE_PERMUTE}:
        return False
    size = sizes.pop()
    needed, sent = (sum_known(part.wire_bytes_per_step for part in side) for side in (whole, parts))
    if sizes or size is None or size < 2 or needed is None or sent is None:
        return False
    return needed <= sent <= needed * Fraction(size + 1, size - 1)


def find_respellings(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """Some of the collectives, and the same in another spelling that the compiler may choose for them; each such pair.

    Args:
        collectives: Those of one program.
        mesh: The sizes of its axes, without which no collective matmul is known from other permutes.
    """
    for first in collectives:
        if first.kind is Kind.ALL_REDUCE:
            yield [first], _split_all_reduce(first)
        if first.kind is Kind.REDUCE_SCATTER:
            for gather in collectives:
                if _completes(first, gather):
                    wire = sum_known((first.wire_bytes, gather.wire_bytes))
                    yield [first, gather], [replace(first, kind=Kind.ALL_REDUCE, wire_bytes=wire)]
    yield from _find_matmuls(collectives, mesh)


def _split_all_reduce(whole: Collective) -> list[Collective]:
    """The reduce-scatter and the all-gather that an all-reduce is made of; together they send what it does.

    Of one across slices, each has its own parts: an all-reduce between the slices is split in turn.
    """
    scattered, gathered = zip(*map(_split_part, whole.parts), strict=True) if whole.parts else ((), ())
    first, last = _halve(whole.wire_bytes)
    return [
        replace(whole, kind=Kind.REDUCE_SCATTER, wire_bytes=first, parts=tuple(chain(*scattered))),
        replace(whole, kind=Kind.ALL_GATHER, wire_bytes=last, parts=tuple(chain(*gathered)), reduction=None),
    ]


def _split_part(part: CollectivePart) -> tuple[tuple[CollectivePart, ...], tuple[CollectivePart, ...]]:
    """The parts of a reduce-scatter, and those of an all-gather, that a part of an all-reduce comes to."""
    if part.kind is not Kind.ALL_REDUCE:
        return ((), (part,)) if part.kind is Kind.ALL_GATHER else ((part,), ())
    first, last = _halve(part.wire_bytes)
    scatter = replace(part, kind=Kind.REDUCE_SCATTER, wire_bytes=first)
    return (scatter,), (replace(part, kind=Kind.ALL_GATHER, wire_bytes=last),)


def _halve(wire_bytes: int | None) -> tuple[int | None, int | None]:
    """Both halves of bytes, which add up to them; None for unknown ones."""
    return (None, None) if wire_bytes is None else (wire_bytes // 2, wire_bytes - wire_bytes // 2)


def _completes(scatter: Collective, gather: Collective) -> bool:
    """True if an all-gather puts together what a reduce-scatter left in parts."""
    sides = ((c.axes, c.link, c.payload_bytes, c.executions, c.executions_bound) for c in (scatter, gather))
    return gather.kind is Kind.ALL_GATHER and scatter.payload_bytes is not None and len(set(sides)) == 1


def _find_matmuls(
    collectives: Sequence[Collective], mesh: Mesh | None
) -> Iterator[tuple[list[Collective], list[Collective]]]:
    """The permutes of each collective matmul, as its all-gather and as its reduce-scatter.

    Over n devices it sends n - 1 chunks or more; fewer, such as one shift to a neighbor, are no collective matmul.
    """
    sizes = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    known = [
        permute
        for permute in collectives
        if permute.kind is Kind.COLLECTIVE_PERMUTE and permute.axes and permute.payload_bytes is not None
    ]
    for permutes in group_by(known, lambda each: (each.axes, each.link, each.op_name, each.source[:1])).values():
        axes = permutes[0].axes or ()
        size = prod(sizes.get(axis, 0) for axis in axes)  # 0 for parts of axes, or without a mesh
        if 1 < size <= sum(permute.executions for permute in permutes) + 1:
            for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
                yield permutes, [_join_permutes(permutes, kind, size)]


def _join_permutes(permutes: Sequence[Collective], kind: Kind, size: int) -> Collective:
    """One collective of the array that permutes send in chunks.

    n - 1 chunks make the array without the device's own; a windowed einsum that fills and drains a pipeline sends
    n + 1. Where it is neither, all that is sent counts.
    """
    sent = sum(permute.payload_bytes_per_step or 0 for permute in permutes)
    chunks = {permute.payload_bytes for permute in permutes}
    fills_a_pipeline = len(chunks) == 1 and sum(permute.executions for permute in permutes) == size + 1
    return replace(
        permutes[0],
        kind=kind,
        reduction="add" if kind in REDUCING else None,
        group_size=size,
        payload_bytes=(chunks.pop() or 0) * size if fills_a_pipeline else -(-sent * size // (size - 1)),
        wire_bytes=sum(permute.wire_bytes_per_step or 0 for permute in permutes),
        executions=1,
    )


# ---- rows of baselines that belong to one change

_SAME_COUNT = 0.01
"""Of the elements that move: what is padded otherwise, or a scalar more, makes no other program."""


def has_same_axes(row: BaselineRow, other: BaselineRow) -> bool:
    """True if both run over the same axes, in whatever order."""
    return row.axes is not None and other.axes is not None and set(row.axes) == set(other.axes)


def is_same_sum(row: BaselineRow, other: BaselineRow) -> bool:
    """True if both combine over the same axes by the same operation, or by one that is unknown."""
    alike = row.reduction is None or other.reduction is None or row.reduction == other.reduction
    return row.kind in REDUCING and other.kind in REDUCING and has_same_axes(row, other) and alike


def count_bits(dtype: str) -> int:
    """Bits of an element; 0 for what is no type."""
    return count_element_bits(dtype) or 0


def _count_elements(rows: Sequence[BaselineRow]) -> float | None:
    """The number of elements that move; None for several types in one row, and for unknown bytes."""
    counts = []
    for row in rows:
        if row.payload_bytes is None or row.dtype is None or not count_bits(row.dtype):
            return None
        counts.append(row.payload_bytes * 8 / count_bits(row.dtype))
    return sum(counts)


def _measure(rows: Sequence[BaselineRow]) -> float | None:
    """Elements of all rows together; bytes where the types of some are not known; None where nothing is."""
    count = _count_elements(rows)
    return count if count is not None else sum_known(row.payload_bytes for row in rows)


def find_retyped(old: Iterable[BaselineRow], new: Iterable[BaselineRow]) -> Iterator[Rows]:
    """Sums that send as many bytes as before, of fewer or more elements in another type, which a matcher takes for one.

    Args:
        old: Rows of the baseline of which nothing has changed but the type.
        new: The same of the program as it is.
    """

    def what(row: BaselineRow) -> Hashable:
        return row.kind, row.axes, row.link, row.payload_bytes

    before, after = (group_by((row for row in side if row.kind in REDUCING), what) for side in (old, new))
    for key in before.keys() & after.keys():
        pair = Pair(_find_unlike(before[key], after[key]), _find_unlike(after[key], before[key]))
        if is_retyped(pair):
            yield pair


def _find_unlike(rows: Sequence[BaselineRow], others: Sequence[BaselineRow]) -> tuple[BaselineRow, ...]:
    """Those of no type that the others have."""
    return tuple(row for row in rows if row.dtype not in {other.dtype for other in others})


def is_retyped(pair: Rows) -> bool:
    """True if sums are in other types than before."""
    before, after = ({row.dtype for row in side} for side in pair)
    if not before or not after or None in before | after or not all(row.kind in REDUCING for row in pair.before):
        return False
    types = ({dtype for name in side for dtype in (name or "").split("+")} for side in (before, after))
    return next(types) != next(types)


def pair_by_types(pairs: Sequence[Rows]) -> Iterator[tuple[tuple[str, str], list[Rows]]]:
    """The changes in which as many elements move as before, in another type: alone, or all over the same axes together.

    What is in another type may be joined with other arrays than before, and be found at other lines for that.
    """

    def what(pair: Rows) -> Hashable:
        row = (pair.after or pair.before)[0]
        return row.kind in REDUCING or row.kind, row.axes, row.link

    left = []
    for pair in pairs:
        types = _find_types(pair)
        if types is None:
            left.append(pair)
        else:
            yield types, [pair]
    for alike in group_by(left, what).values():
        types = _find_types(join_pairs(alike))
        if types is not None:
            yield types, alike


def _find_types(pair: Rows) -> tuple[str, str] | None:
    """The type before and the one after, where as many elements of one type move as did of the other."""
    before, after = map(_count_by_type, pair)
    if before is None or after is None or len(before) != 1 or len(after) != 1 or before.keys() == after.keys():
        return None
    (was, count), (now, count_now) = *before.items(), *after.items()
    return (was, now) if abs(count_now - count) <= _SAME_COUNT * count else None


def _count_by_type(rows: Sequence[BaselineRow]) -> dict[str, float] | None:
    """The number of elements of each type, without types of which there are hardly any; None if it is unknown."""
    counts: dict[str, float] = {}
    for row in rows:
        count = _count_elements([row])
        if count is None:
            return None
        counts[row.dtype or ""] = counts.get(row.dtype or "", 0.0) + count
    least = _SAME_COUNT * sum(counts.values())
    return {dtype: count for dtype, count in counts.items() if count > least}


def group_into_changes(pairs: Sequence[Rows]) -> list[list[Rows]]:
    """The changes of one line together, and those lines of which one lost what another has now."""
    by_place = [list(alike) for alike in group_by(pairs, lambda pair: pair.place).values()]
    gone: dict[Hashable, list[Rows]] = {}
    for alike in by_place:
        if not any(pair.after for pair in alike):
            gone.setdefault(_identify_moved(alike), []).extend(alike)
    found = []
    for alike in by_place:
        if any(pair.after for pair in alike):
            is_new = not any(pair.before for pair in alike)
            found.append([*alike, *(gone.pop(_identify_moved(alike), []) if is_new else [])])
    return [*found, *gone.values()]


def _identify_moved(alike: Iterable[Rows]) -> Hashable:
    return frozenset((row.kind in REDUCING or row.kind, row.axes, row.link) for row in join_pairs(alike).both)


# ---- what a program did that nothing in it does now


class Lost(NamedTuple):
    """A sum, or a collective in the code, that nothing in the program does now.

    Attributes:
        words: `the sum over model is missing`.
        instead: What the program reduces by another operation, or over other axes, in its place; empty for nothing.
        key: What the change is accepted by, where it is not what moves.
        why: What that comes to; None where it is not known.
    """

    words: str
    instead: tuple[BaselineRow, ...] = ()
    key: str | None = None
    why: str | None = None


def find_lost(row: BaselineRow, new: Sequence[BaselineRow], before: Baseline, after: Baseline) -> Lost | None:
    """Finds what a row did that nothing does now.

    Args:
        row: A row of the baseline.
        new: What the program has in its place.
        before: The baseline.
        after: The program as it is.

    Returns:
        None where the row only moved data for the compiler's sake, or where axes of one name are not the same ones.
    """
    if before.mesh != after.mesh:
        return None
    if row.kind in REDUCING:
        return _find_lost_sum(row, before, after)
    calls = [other for other in new if other.written]
    if not row.written or (_measure(calls) or 0) >= (_measure([row]) or 0):
        return None
    what = f"{row.kind} over {format_axes(row)}"
    return Lost(f"the {what} in the code was larger" if calls else f"the {what} written in the code is missing")


def _find_lost_sum(row: BaselineRow, before: Baseline, after: Baseline) -> Lost | None:
    axes, (was, now) = format_axes(row), _count_arrays_summed(row, before, after)
    if was is None or now is None:
        most, left = (_measure(_find_sums_like(row, side)) or 0 for side in (before, after))
        return Lost(f"less is summed over {axes} than before") if left < most else None
    if now >= was:
        shrank = row.written and _has_shrunk(row, before, after)
        return Lost(f"less is summed over {axes} than before") if shrank else None
    some = f"{was - now:,} of {pluralize(was, 'array')} {_choose_is(was - now)}" if was > 1 else "the array is"
    instead = _find_reduced_instead(row, before, after, was - now)
    if instead:
        is_axes = not has_same_axes(row, instead[0])
        was_there = axes if is_axes else row.reduction or "add"
        done = f"{_choose_verb(instead[0])} over {format_axes(instead[0])}"
        return Lost(f"{some} {done} where {was_there} was", instead, None if is_axes else REDUCTION)
    if now:
        return Lost(f"{some} no longer {_choose_verb(row)} over {axes}", why=_WHY)
    what = "sum" if _is_sum(row) else f"reduction by {row.reduction}"
    return Lost(f"the {what if was == 1 else pluralize(was, what)} over {axes} {_choose_is(was)} missing", why=_WHY)


_WHY = "likely: each device continues with its own partial result, or nothing uses the result any longer"


def _find_reduced_instead(row: BaselineRow, before: Baseline, after: Baseline, lost: int) -> tuple[BaselineRow, ...]:
    """The rows that reduce as many arrays more than before, by another operation or over other axes."""
    found = []
    for other in after.rows:
        if other.kind not in REDUCING or other.axes is None or is_same_sum(other, row):
            continue
        was, now = _count_arrays_summed(other, before, after)
        if was is not None and now is not None and now - was >= lost and _is_like(row, other):
            found.append(other)
    if not found:
        return ()
    first = min(found, key=lambda other: (not has_same_axes(row, other), len(other.axes or ())))
    alike = tuple(other for other in found if is_same_sum(other, first))
    return tuple(other for other in alike if other not in before.rows) or alike


def _is_like(row: BaselineRow, other: BaselineRow) -> bool:
    """True if they differ by their operation or by their axes, and not by both."""
    return has_same_axes(row, other) or None in (row.reduction, other.reduction) or row.reduction == other.reduction


def _is_sum(row: BaselineRow) -> bool:
    return row.reduction in (None, "add", MIXED)


def _choose_verb(row: BaselineRow) -> str:
    return "summed" if _is_sum(row) else f"reduced by {row.reduction}"


def explain_computed(rows: Iterable[BaselineRow]) -> str:
    """The reason why sums are gone if each device multiplies more than before."""
    axes = " and ".join(dict.fromkeys(format_axes(row) for row in rows if row.kind in REDUCING))
    return f"likely: each device now computes what the devices along {axes} shared, so nothing is left to sum"


def as_many_are_summed(rows: Sequence[BaselineRow], before: Baseline, after: Baseline) -> bool:
    """True if rows are sums over axes over which as many arrays are summed as before."""
    if before.mesh != after.mesh:
        return False
    counts = (_count_arrays_summed(row, before, after) for row in rows)
    return all(row.kind in REDUCING for row in rows) and all(was and was == now for was, now in counts)


def _count_arrays_summed(row: BaselineRow, before: Baseline, after: Baseline) -> tuple[int | None, int | None]:
    """The number of arrays that are summed over the axes of a row, before and after."""
    was, now = (sum_known(other.arrays for other in _find_sums_like(row, side)) for side in (before, after))
    return was, now


def _has_shrunk(row: BaselineRow, before: Baseline, after: Baseline) -> bool:
    """True if the sums that the code calls for are of fewer elements, as those of another array are."""
    was, now = (_measure([one for one in _find_sums_like(row, side) if one.written]) or 0 for side in (before, after))
    return now < (1 - _SAME_COUNT) * was


def _find_sums_like(row: BaselineRow, side: Baseline) -> list[BaselineRow]:
    """The rows of a program that combine over the axes of a row, by the same operation."""
    return [other for other in side.rows if is_same_sum(other, row)]


def _choose_is(count: int) -> str:
    return "is" if count == 1 else "are"
