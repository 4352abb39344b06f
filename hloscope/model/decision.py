"""Decisions: which dimension a mesh axis was given to, what else could have had it, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from hloscope.base.documents import Table
from hloscope.base.results import Brief
from hloscope.base.units import format_bytes, pluralize
from hloscope.model.reason import AskedBy, Axes, Dimension, Frame, Stack
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import Bound

_MOST_NAMES = 2


class DecisionKind(StrEnum):
    """The form of a decision."""

    CONTENDED = "contended"
    """Two dimensions claim the axis where they meet, and one has it."""
    SHARDED = "sharded"
    """The axis shards a dimension that is summed over, and no other dimension claims it."""
    MADE_WHOLE = "made-whole"
    """A sharded dimension is made whole: an operation needs all of it, or an array is requested so."""
    IDLE = "idle"
    """The axis shards nothing in matmuls, which its devices repeat, and nothing claims it there."""
    AUTHORED = "authored"
    """The program's own collectives."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Place(Brief):
    """A value where a decision fell.

    Attributes:
        array: The value under the user's name.
        source: Source frames of the operation that makes it, innermost first.
        operation: JAX's name of that operation; None if it has none.
        shape: The shape of the whole value.
        sharding: The sharding that it would have if the other dimension had the axis: axes by dimension.
        spec: The same as the user writes it: `P('data', None, None)`.
        argument: The name of the function's argument that it is; None for a value that an operation makes.
    """

    array: str
    source: Stack
    operation: str | None
    shape: tuple[int, ...]
    sharding: tuple[Axes, ...]
    spec: str
    argument: str | None = None

    @property
    def is_named(self) -> bool:
        """True if the value has a name of the user's."""
        return not self.array.startswith("result of ")


_Place = Annotated[Place, Table("places", "Values where decisions fell.")]
_AskedBy = Annotated[AskedBy, Table("askers", "Who put axes on arrays.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Decision(Brief):
    """The dimension that one mesh axis shards, another one that does without, and what follows from it.

    Bytes and times of a collective with several decisions are split evenly among them, so that the bytes of all
    decisions and of the collectives without any add up to those of the step.

    Attributes:
        name: Its name: `data: D, not B`.
        kind: Its form.
        axis: The mesh axis.
        winner: The dimension that has the axis; None if it shards none there.
        loser: The dimension that claims it, had it, or could have it, and lacks it there; None without one.
        held_by: What gives the axis to the winner; without one, each `shard_map` whose specs make the loser whole.
        lost_by: What gives it to the loser.
        places: The first values where both could have it.
        collectives: The names of the collectives that follow.
        operations: The JAX names of the operations that need the dimension whole, if that is why.
        source: The line of the first of them.
        is_summed: Whether the winner is a dimension that operations sum over.
        wire_bytes: Bytes that one device sends for them per step; None if unknown.
        bound: Whether these are exact or a bound.
        exposed_us: The exposed time of these collectives per step, in microseconds; None if not priced.
        other_bytes: About as many bytes would be sent per step if the loser had the axis at the same operations, from
            the shapes alone; None if unknown.
        repeated_us: Time of matmuls, at the device's peak, that devices repeat because the axis shards nothing, in
            microseconds; None if unknown, or if the axis shards something.
        is_lost: Whether the axis is where it costs most: the collectives that follow send several times what they would
            if the loser had the axis, and the step waits for a notable part of that; or devices repeat notable work
            because it shards nothing; or a requested output lacks it where the state that it replaces has it; or a
            constraint takes it from a dimension that has it again in the next operation.
        trials: The program with constraints for the loser, as the user would write them, or with other requests of its
            own; None if none was asked for.
    """

    name: str
    kind: DecisionKind
    axis: str
    winner: Dimension | None = None
    loser: Dimension | None = None
    held_by: tuple[_AskedBy, ...] = ()
    lost_by: tuple[_AskedBy, ...] = ()
    places: tuple[_Place, ...] = ()
    collectives: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    source: Frame | None = None
    is_summed: bool = False
    wire_bytes: int | None = None
    bound: Bound = Bound.EXACT
    exposed_us: float | None = None
    other_bytes: int | None = None
    repeated_us: float | None = None
    is_lost: bool = False
    trials: Trials | None = None

    @property
    def first_place(self) -> Place | None:
        """The first place at a value that has a name in the source, or otherwise the first one; None without places."""
        return next((place for place in self.places if place.is_named), next(iter(self.places), None))

    @property
    def summary_of_all(self) -> str:
        """The decision and what follows: `data shards features D, not the batch B: 27.6 GB per step, …`."""
        return f"{self.summary}: {self.size} per step in {pluralize(len(self.collectives), 'collective')}"

    @property
    def size(self) -> str:
        """The bytes of what follows, with their bound: `27.6 GB`."""
        return "unknown bytes" if self.wire_bytes is None else self.bound.marked(format_bytes(self.wire_bytes))

    @property
    def summary(self) -> str:
        """The decision in words: `data shards features D (4,096), not the batch B (64)`."""
        if self.kind is DecisionKind.AUTHORED:
            return f"collectives over {self.axis} that the program itself contains"
        lost = "a dimension" if self.loser is None else self.loser.summary
        if self.kind is DecisionKind.IDLE:
            return f"{self.axis} shards nothing in matmuls that its devices repeat, and could shard {lost}"
        if self.winner is None:
            need = f" for {' and '.join(self.operations[:_MOST_NAMES])}" if self.operations else ""
            return f"{self.axis} no longer shards {lost}, which is made whole{need}"
        but = "" if self.loser is None else f", not {lost}"
        summed = ", which is summed over" if self.kind is DecisionKind.SHARDED and self.is_summed else ""
        return f"{self.axis} shards {self.winner.summary}{but}{summed}"
