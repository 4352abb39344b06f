"""The result of comparing two programs' collectives, and each change in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from hloscope.analysis.model import Collective, Total, Totals
from hloscope.analysis.places import short_source
from hloscope.analysis.totals import axes_key, bytes_bound
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.shown import Brief
from hloscope.units import format_bytes, format_time, known_sum


class ChangeKind(StrEnum):
    """The kind of change to a collective."""

    ADDED = "added"
    REMOVED = "removed"
    BYTES = "bytes"
    EXECUTIONS = "executions"
    INTO_LOOP = "moved into a loop"
    OUT_OF_LOOP = "moved out of a loop"
    NEWLY_EXPOSED = "newly exposed"
    BOUND = "known less or more surely"
    REGROUPED = "regrouped"
    EQUIVALENT = "equivalent spelling"
    REDUCTION = "another reduction"

    @property
    def same_traffic(self) -> bool:
        """Whether the same data moves as before, and is only spelled otherwise."""
        return self in (ChangeKind.REGROUPED, ChangeKind.EQUIVALENT)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Change(Brief):
    """One difference.

    Attributes:
        kind: What happened; a collective that changed in two ways has two changes.
        old: The collectives before; empty for one that was added, several where they were combined or split.
        new: The collectives after; empty for one that was removed.
    """

    kind: ChangeKind
    old: tuple[Collective, ...]
    new: tuple[Collective, ...]

    @property
    def any(self) -> Collective:
        """The collective to point at: the new one, else the old one."""
        return (self.new or self.old)[0]

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Wire bytes per step more (or, negative, fewer) than before; None when a side is not known."""
        after, before = (known_sum(part.wire_bytes_per_step for part in side) for side in (self.new, self.old))
        return None if after is None or before is None else after - before

    @property
    def bound(self) -> Bound:
        """How `wire_bytes_per_step` relates to the truth: of two lower bounds the difference is unknown."""
        after, before = (
            reduce(lambda bound, part: bound + bytes_bound(part), side, Bound.EXACT) for side in (self.new, self.old)
        )
        return after + -before

    @property
    def is_increase(self) -> bool:
        """Whether more moves than before, or may: unknown bytes are an increase until they are known."""
        if self.kind in (ChangeKind.ADDED, ChangeKind.INTO_LOOP, ChangeKind.NEWLY_EXPOSED):
            return True
        if self.kind is ChangeKind.REMOVED:
            return False
        if self.kind is ChangeKind.BOUND:
            return self.new[0].executions_bound is not Bound.EXACT
        more = self.wire_bytes_per_step
        return more is None or more > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the collectives of one kind over the same axes, per device and per step, before and after.

    Attributes:
        kind: Kind of collective.
        axes: Mesh axes joined by `,`; `?` if unknown.
        old: Sum before.
        new: Sum after.
        axes_guessed: Whether the axes of any of them are guessed.
    """

    kind: Kind
    axes: str
    old: Total
    new: Total
    axes_guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Brief):
    """Two lists of collectives, matched.

    Attributes:
        changes: Every difference, the one of most bytes per step first.
        unchanged: Pairs that are the same but, perhaps, for their names, lines and spelling.
        unsure: Collectives of either side whose bytes or executions are not known exactly, or whose axes are not
            known: of these nobody can say that they are the same.
        tallies: Sums by kind and axes, most bytes first.
        old_total: The sum over all collectives before.
        new_total: The sum over all collectives after.
    """

    changes: tuple[Change, ...]
    unchanged: tuple[tuple[Collective, Collective], ...]
    unsure: tuple[Collective, ...]
    tallies: tuple[Tally, ...]
    old_total: Totals
    new_total: Totals

    @property
    def same(self) -> bool:
        """Whether both move surely the same data; false wherever something is not known."""
        return not self.unsure and all(change.kind.same_traffic for change in self.changes)

    @property
    def increases(self) -> tuple[Change, ...]:
        """The changes after which more moves, or may move, or more of it is waited for."""
        return tuple(change for change in self.changes if change.is_increase)


AmountWords = Callable[[Collective], str]

_BOUNDS = {Bound.EXACT: "", Bound.AT_MOST: "at most ", Bound.AT_LEAST: "at least ", Bound.UNKNOWN: "~"}
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
    if change.kind.same_traffic:
        return f"{_several(change.old)} -> {_several(change.new)}, the same bytes"
    before, after = change.old[0], change.new[0]
    if change.kind is ChangeKind.NEWLY_EXPOSED:
        return f"is newly exposed: {format_time(before.exposed_us)} -> {format_time(after.exposed_us)}"
    if change.kind is ChangeKind.BOUND:
        return f"{amount(after)}: was {before.executions_bound}, is {after.executions_bound}"
    if change.kind is ChangeKind.REDUCTION:
        return f"{amount(after)}: {reduction_words(before, after)}"
    moved = f", {change.kind}" if change.kind in (ChangeKind.INTO_LOOP, ChangeKind.OUT_OF_LOOP) else ""
    return f"{amount(before)} -> {amount(after)}{moved}"


def reduction_words(before: Collective, after: Collective) -> str:
    """`maximum where add was`."""
    now, was = (side.reduction or "another operation" for side in (after, before))
    return f"{now} where {was} was"


def _several(side: Sequence[Collective]) -> str:
    kinds = " + ".join(dict.fromkeys(str(part.kind) for part in side))
    return f"{len(side)} {kinds}"


def amount(collective: Collective) -> str:
    """`6 x 2.10 MB payload`: executions per step, where they are several, and payload bytes of each."""
    bound = _BOUNDS[collective.executions_bound]
    count = "" if collective.executions == 1 else f"{collective.executions:,} x "
    payload = format_bytes(collective.payload_bytes)
    known = payload if collective.payload_bytes is None else collective.bytes_bound.marked(payload)
    return f"{bound}{count}{known} payload"
