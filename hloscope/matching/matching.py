"""Pairs the collectives of two programs, the surest pairs first, and says what differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from hloscope.analysis.model import Collective, Total
from hloscope.analysis.totals import axes_key, bytes_bound, grouped, totals_of
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.documents import document
from hloscope.matching.equivalence import (
    Key,
    amount_of,
    axes_identity,
    equivalent_leftovers,
    function_of,
    place_of,
)
from hloscope.matching.model import Change, ChangeKind, Comparison, Tally
from hloscope.units import known_sum

_EXPOSED_SHARE = 0.1
"""Of its own time: a collective that is exposed for less counts as hidden."""

_payload = attrgetter("payload_bytes")
Pair = tuple[Collective, Collective]
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
    place, function = (place_of, function_of) if by_place else (_anywhere, _anywhere)
    pairs, left = _paired((old, new), (amount_of, place), (amount_of, function), (amount_of,))
    changes, left = _regrouped(*left)
    if equivalent:
        exchanged, left = equivalent_leftovers(*left, function)
        changes += exchanged
    changed, (left_old, left_new) = _paired(
        left, (place, _payload), (place, _depth), (place,), (function, _payload), (function,)
    )
    changes += [change for pair in (*changed, *pairs) for change in _differences(*pair)]
    changes += [Change(kind=ChangeKind.REMOVED, old=(gone,), new=()) for gone in left_old]
    changes += [Change(kind=ChangeKind.ADDED, old=(), new=(added,)) for added in left_new]
    return Comparison(
        changes=tuple(sorted(changes, key=_weight)),
        unchanged=tuple(pair for pair in (*pairs, *changed) if not any(_differences(*pair))),
        unsure=tuple(filter(_is_unsure, (*old, *new))),
        tallies=_tallies(old, new),
        old_total=totals_of(old),
        new_total=totals_of(new),
    )


def _anywhere(_: Collective) -> Hashable:
    return None


def _depth(collective: Collective) -> Hashable:
    return len(collective.loops)


def _what(collective: Collective) -> Hashable:
    return collective.kind, axes_identity(collective), collective.link


def _paired(
    sides: tuple[Sequence[Collective], Sequence[Collective]], *keys: tuple[Key, ...]
) -> tuple[list[Pair], _Leftovers]:
    """Pairs of what is the same collective by one key after the other, in the order of both lists, and what is left."""
    pairs: list[Pair] = []
    left_old, left_new = (list(side) for side in sides)
    for parts in keys:

        def key(collective: Collective, parts: tuple[Key, ...] = parts) -> Hashable:
            return _what(collective), *(part(collective) for part in parts)

        waiting, unpaired = grouped(key, left_old), []
        for collective in left_new:
            partners = waiting.get(key(collective))
            if partners:
                pairs.append((partners.pop(0), collective))
            else:
                unpaired.append(collective)
        left_old, left_new = list(chain(*waiting.values())), unpaired
    return pairs, (left_old, left_new)


def _differences(old: Collective, new: Collective) -> Iterator[Change]:
    def change(kind: ChangeKind) -> Change:
        return Change(kind=kind, old=(old,), new=(new,))

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
    """Whether a step waits for it; None when it was not priced."""
    if collective.exposed_us is None or collective.time_us is None:
        return None
    return collective.exposed_us > _EXPOSED_SHARE * collective.time_us


def _is_unsure(collective: Collective) -> bool:
    return bytes_bound(collective) is not Bound.EXACT or (collective.axes is None and not collective.groups)


def _regrouped(old: Sequence[Collective], new: Sequence[Collective]) -> tuple[list[Change], _Leftovers]:
    """Leftovers of one kind and axes that move the same bytes at the same depth in another number of transfers."""

    def together(collective: Collective) -> Hashable:
        how_often = collective.executions, collective.executions_bound
        return _what(collective), _depth(collective), how_often, collective.reduction

    before, after = grouped(together, old), grouped(together, new)
    changes = [
        Change(kind=ChangeKind.REGROUPED, old=tuple(before.pop(key)), new=tuple(after.pop(key)))
        for key in before.keys() & after.keys()
        if _bytes(before[key]) == _bytes(after[key]) is not None
    ]
    return changes, (list(chain(*before.values())), list(chain(*after.values())))


def _bytes(collectives: Sequence[Collective]) -> tuple[int, int] | None:
    """Payload and wire bytes per execution, summed; None where some are not known."""
    payload = known_sum(collective.payload_bytes for collective in collectives)
    wire = known_sum(collective.wire_bytes for collective in collectives)
    return None if payload is None or wire is None else (payload, wire)


def _tallies(old: Sequence[Collective], new: Sequence[Collective]) -> tuple[Tally, ...]:
    def key(collective: Collective) -> tuple[Kind, str]:
        return collective.kind, axes_key(collective)

    before, after = grouped(key, old), grouped(key, new)
    tallies = [
        Tally(
            kind=kind,
            axes=axes,
            old=document(Total, totals_of(before.get((kind, axes), []))),
            new=document(Total, totals_of(after.get((kind, axes), []))),
            axes_guessed=any(part.axes_guessed for part in parts),
        )
        for (kind, axes), parts in grouped(key, (*old, *new)).items()
    ]
    return tuple(sorted(tallies, key=lambda row: (-max(row.old.wire_bytes, row.new.wire_bytes), row.kind, row.axes)))


def _weight(change: Change) -> tuple[bool, int, str, str, int]:
    """Unknown bytes first, then most bytes per step, then in an order that does not depend on names."""
    known, shown = change.wire_bytes_per_step, change.any
    return known is not None, -abs(known or 0), shown.kind, axes_key(shown), shown.line
