"""What a comparison of two programs' collectives says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hloscope.analysis.model import Collective, Total
from hloscope.analysis.totals import known_sum
from hloscope.analysis.vocabulary import Bound, Kind


class ChangeKind(StrEnum):
    """What happened to a collective."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
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
    def same_traffic(self) -> bool:
        """Whether the same data moves as before, and is only spelled otherwise."""
        return self.kind in (ChangeKind.REGROUPED, ChangeKind.EQUIVALENT)

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Wire bytes per step more (or, negative, fewer) than before; None when a side is not known."""
        after, before = (known_sum(one.wire_bytes_per_step for one in side) for side in (self.new, self.old))
        return None if after is None or before is None else after - before

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
    """What collectives of one kind over the same axes move per step on one device, before and after.

    Attributes:
        kind: The kind.
        axes: Mesh axes joined by `,`; `?` where they are not known.
        old: The sum before.
        new: The sum after.
        axes_guessed: Whether the axes of some of them are.
    """

    kind: Kind
    axes: str
    old: Total
    new: Total
    axes_guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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
    old_total: Total
    new_total: Total

    @property
    def same(self) -> bool:
        """Whether both move surely the same data; false wherever something is not known."""
        return not self.unsure and all(change.same_traffic for change in self.changes)

    @property
    def increases(self) -> tuple[Change, ...]:
        """The changes after which more moves, or may move, or more of it is waited for."""
        return tuple(change for change in self.changes if change.is_increase)
