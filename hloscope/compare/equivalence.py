"""Spellings that the compiler may exchange for one another, and how to tell that they move the same data.

An all-reduce is a reduce-scatter and an all-gather of the same array. A collective matmul passes the shards of an
all-gather (or the partial sums of a reduce-scatter) around the ring with permutes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction

from hloscope.analysis.model import Collective
from hloscope.analysis.totals import known_sum
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.compare.identity import axes_identity, function_of
from hloscope.compare.model import Change, ChangeKind

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
