"""A change in one line: `+1 all-gather fsdp 6 x 2.10 MB  moe.py:91 in expert`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.analysis.model import Collective
from hloscope.analysis.places import short_source
from hloscope.analysis.totals import axes_key
from hloscope.compare.model import Change, ChangeKind
from hloscope.units import format_bytes, format_time

AmountWords = Callable[[Collective], str]

_SIGNS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-"}


def change_line(change: Change, amount_words: AmountWords | None = None) -> str:
    """What happened, to what, and where; how much moves in words of the caller's where it has better ones."""
    side = change.new or change.old
    count = f"{_SIGNS[change.kind]}{len(side)}" if change.kind in _SIGNS else "~"
    first = side[0]
    where = short_source(first.source) or (f"%{first.name}" if first.name else "source not known")
    guessed = "?" if first.axes_guessed else ""
    return f"{count} {first.kind} {axes_key(first) or 'none'}{guessed} {_what(change, amount_words or amount)}  {where}"


def _what(change: Change, amount: AmountWords) -> str:
    if change.kind in _SIGNS:
        return amount(change.any)
    if change.same_traffic:
        return f"{_several(change.old)} -> {_several(change.new)}, the same bytes"
    before, after = change.old[0], change.new[0]
    if change.kind is ChangeKind.NEWLY_EXPOSED:
        return f"is newly exposed: {format_time(before.exposed_us)} -> {format_time(after.exposed_us)}"
    if change.kind is ChangeKind.BOUND:
        return f"{amount(after)}: was {before.executions_bound}, is {after.executions_bound}"
    moved = f", {change.kind}" if change.kind in (ChangeKind.INTO_LOOP, ChangeKind.OUT_OF_LOOP) else ""
    return f"{amount(before)} -> {amount(after)}{moved}"


def _several(side: Sequence[Collective]) -> str:
    kinds = " + ".join(dict.fromkeys(str(one.kind) for one in side))
    return f"{len(side)} {kinds}"


def amount(one: Collective) -> str:
    """`6 x 2.10 MB`: executions per step, where they are several, and payload bytes of each."""
    bound = "" if one.executions_bound == "exact" else f"{one.executions_bound} "
    count = "" if one.executions == 1 else f"{one.executions:,} x "
    return f"{bound}{count}{format_bytes(one.payload_bytes)}"
