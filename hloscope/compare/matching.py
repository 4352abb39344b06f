"""Pairs the collectives of two programs, the surest pairs first, and tells what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from hloscope.analysis.model import Collective, Total
from hloscope.analysis.totals import axes_key, bytes_bound, totals_of
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.compare.equivalence import amount_of, axes_identity, equivalent_leftovers, function_of, place_of
from hloscope.compare.model import Change, ChangeKind, Comparison, Tally

_EXPOSED_SHARE = 0.1
"""Of its own time: a collective that is exposed for less counts as hidden."""

Pair = tuple[Collective, Collective]
Key = Callable[[Collective], Hashable]


def match(old: Sequence[Collective], new: Sequence[Collective], *, equivalent: bool = False) -> Comparison:
    """Compares what two programs move.

    Kind, axes and link must agree for two collectives to be the same one. Of those the surest pairs are taken first:
    equal amounts on the same line, equal amounts in the same function (its lines moved), equal amounts anywhere (it was
    written elsewhere); then what was combined or split; and then, with amounts that differ, the same line and the same
    function. What is left was added or removed.

    Args:
        old: The collectives of the program before, or of the reference.
        new: The collectives of the program after.
        equivalent: Whether spellings that the compiler may exchange are the same: an all-reduce for a reduce-scatter
            and an all-gather of as many bytes; permutes of a collective matmul for its all-gather or reduce-scatter.
    """
    pairs, left_old, left_new = _paired(_SURE_KEYS, old, new)
    changes, left_old, left_new = _regrouped(left_old, left_new)
    if equivalent:
        exchanged, left_old, left_new = equivalent_leftovers(left_old, left_new)
        changes += exchanged
    changed, left_old, left_new = _paired(_UNSURE_KEYS, left_old, left_new)
    changes += [change for pair in changed for change in _differences(*pair)]
    changes += [change for pair in pairs for change in _differences(*pair)]
    changes += [Change(kind=ChangeKind.REMOVED, old=(one,), new=()) for one in left_old]
    changes += [Change(kind=ChangeKind.ADDED, old=(), new=(one,)) for one in left_new]
    return Comparison(
        changes=tuple(sorted(changes, key=_weight)),
        unchanged=tuple(pair for pair in (*pairs, *changed) if not any(_differences(*pair))),
        unsure=tuple(one for one in (*old, *new) if _is_unsure(one)),
        tallies=_tallies(old, new),
        old_total=totals_of(old),
        new_total=totals_of(new),
    )


def _paired(
    keys: Sequence[Key], old: Sequence[Collective], new: Sequence[Collective]
) -> tuple[list[Pair], list[Collective], list[Collective]]:
    pairs: list[Pair] = []
    left_old, left_new = list(old), list(new)
    for key in keys:
        found, left_old, left_new = _paired_by(key, left_old, left_new)
        pairs += found
    return pairs, left_old, left_new


def _paired_by(
    key: Key, old: Iterable[Collective], new: Iterable[Collective]
) -> tuple[list[Pair], list[Collective], list[Collective]]:
    """Pairs of equal keys, in the order of both lists, and what is left of each."""
    waiting: dict[Hashable, list[Collective]] = defaultdict(list)
    for one in old:
        waiting[_what(one), key(one)].append(one)
    pairs, left_new = [], []
    for one in new:
        partners = waiting.get((_what(one), key(one)))
        if partners:
            pairs.append((partners.pop(0), one))
        else:
            left_new.append(one)
    return pairs, [one for partners in waiting.values() for one in partners], left_new


def _what(collective: Collective) -> Hashable:
    return collective.kind, axes_identity(collective), collective.link


_SURE_KEYS: tuple[Key, ...] = (
    lambda one: (amount_of(one), place_of(one)),
    lambda one: (amount_of(one), function_of(one)),
    amount_of,
)
_UNSURE_KEYS: tuple[Key, ...] = (
    lambda one: (place_of(one), one.payload_bytes),
    lambda one: (place_of(one), len(one.loops)),
    place_of,
    lambda one: (function_of(one), one.payload_bytes),
    function_of,
)


def _differences(old: Collective, new: Collective) -> Iterator[Change]:
    def change(kind: ChangeKind) -> Change:
        return Change(kind=kind, old=(old,), new=(new,))

    if (old.payload_bytes, old.wire_bytes) != (new.payload_bytes, new.wire_bytes):
        yield change(ChangeKind.BYTES)
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


def _regrouped(
    old: Sequence[Collective], new: Sequence[Collective]
) -> tuple[list[Change], list[Collective], list[Collective]]:
    """Leftovers of one kind and axes that move the same bytes at the same depth in another number of transfers."""
    before, after = _by(_grouping, old), _by(_grouping, new)
    changes = []
    for key in before.keys() & after.keys():
        if _bytes(before[key]) == _bytes(after[key]) is not None:
            changes.append(Change(kind=ChangeKind.REGROUPED, old=tuple(before.pop(key)), new=tuple(after.pop(key))))
    return changes, [one for part in before.values() for one in part], [one for part in after.values() for one in part]


def _grouping(collective: Collective) -> Hashable:
    return _what(collective), len(collective.loops), collective.executions, collective.executions_bound


def _bytes(collectives: Iterable[Collective]) -> tuple[int, int] | None:
    """Payload and wire bytes per execution, summed; None where some are not known."""
    payload, wire = 0, 0
    for one in collectives:
        if one.payload_bytes is None or one.wire_bytes is None:
            return None
        payload, wire = payload + one.payload_bytes, wire + one.wire_bytes
    return payload, wire


def _by(key: Key, collectives: Iterable[Collective]) -> dict[Hashable, list[Collective]]:
    parts: dict[Hashable, list[Collective]] = {}
    for one in collectives:
        parts.setdefault(key(one), []).append(one)
    return parts


def _tallies(old: Sequence[Collective], new: Sequence[Collective]) -> tuple[Tally, ...]:
    def key(one: Collective) -> tuple[Kind, str]:
        return one.kind, axes_key(one)

    sides = _by(key, old), _by(key, new)

    def tally(kind: Kind, axes: str) -> Tally:
        before, after = (side.get((kind, axes), []) for side in sides)
        guessed = any(one.axes_guessed for one in (*before, *after))
        return Tally(kind=kind, axes=axes, old=_total(before), new=_total(after), axes_guessed=guessed)

    tallies = [tally(*found) for found in dict.fromkeys(key(one) for one in (*old, *new))]
    return tuple(sorted(tallies, key=lambda one: (-max(one.old.wire_bytes, one.new.wire_bytes), one.kind, one.axes)))


def _total(collectives: Sequence[Collective]) -> Total:
    whole = totals_of(collectives)
    return Total(
        wire_bytes=whole.wire_bytes,
        payload_bytes=whole.payload_bytes,
        collectives=whole.collectives,
        executions=whole.executions,
        bound=whole.bound,
    )


def _weight(change: Change) -> tuple[bool, int, str, str, int]:
    """Unknown bytes first, then most bytes per step, then in an order that does not depend on names."""
    known = change.wire_bytes_per_step
    one = change.any
    return known is not None, -abs(known or 0), one.kind, axes_key(one), one.line
