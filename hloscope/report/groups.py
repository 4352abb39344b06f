"""Collectives in groups, by part of the user's model, by mesh axis, by line or by kind, and what each group costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hloscope.analysis.model import Collective, Collectives, ModelPart, Phase, Role
from hloscope.analysis.paths import with_layers
from hloscope.analysis.places import short_source

_FEW = 40
"""Collectives that can be listed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a report lists what a program has much of.

    Attributes:
        by: One of `hloscope.report.formats.GROUPINGS`; None to list them one by one as long as they are few.
        everything: Whether each collective, array and finding is listed by itself.
    """

    by: str | None = None
    everything: bool = False

    def grouping(self, collectives: Sequence[Collective]) -> str | None:
        """What they are grouped by; None to list them one by one, where they are few or nothing names a module."""
        if self.everything:
            return None
        many = len(collectives) > _FEW and any(
            collective.part is not None and collective.part.module for collective in collectives
        )
        return self.by or ("module" if many else None)


ONE_BY_ONE = Listing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Collectives that belong together.

    Attributes:
        name: What they have in common, such as `layers[0-35].mlp.gate`.
        members: In the order of the analysis.
    """

    name: str
    members: Collectives

    @property
    def wire_bytes(self) -> int | None:
        """Per step; None when not known of any."""
        return self.members.wire_bytes_per_step

    @property
    def time_us(self) -> float | None:
        """Per step; None when one of them is not priced."""
        return self.members.time_us_per_step

    @property
    def exposed_us(self) -> float | None:
        """What the step waits for them; None when one of them is not priced."""
        return self.members.exposed_us_per_step

    @property
    def cost(self) -> tuple[bool, float, float]:
        """For sorting, dearest last: what it is not known of, then the wait, then the bytes."""
        return self.wire_bytes is None, self.exposed_us or 0.0, self.wire_bytes or 0

    def of_phase(self, phase: Phase | None) -> Group:
        """The members of one pass."""
        return Group(
            name=self.name, members=Collectives(member for member in self.members if phase_of(member) is phase)
        )


def phase_of(collective: Collective) -> Phase | None:
    """The pass; None where it is not known."""
    return None if collective.part is None else collective.part.phase


def groups_of(collectives: Iterable[Collective], key: Callable[[Collective], object]) -> list[Group]:
    """Groups of those with the same key, dearest first; their names are those of their parts."""
    found: dict[object, list[Collective]] = {}
    for collective in collectives:
        found.setdefault(key(collective), []).append(collective)
    groups = (Group(name=part_name(members), members=Collectives(members)) for members in found.values())
    return sorted(groups, key=lambda group: group.cost, reverse=True)


def named_groups(collectives: Iterable[Collective], name: Callable[[Collective], str]) -> list[Group]:
    """Groups of those with the same name, dearest first."""
    found: dict[str, list[Collective]] = {}
    for collective in collectives:
        found.setdefault(name(collective), []).append(collective)
    groups = (Group(name=known, members=Collectives(members)) for known, members in found.items())
    return sorted(groups, key=lambda group: group.cost, reverse=True)


_NOWHERE = ModelPart()


def module_key(collective: Collective) -> object:
    """The module; the line where none is known."""
    part = collective.part or _NOWHERE
    return part.module or line_name(collective)


def line_name(collective: Collective) -> str:
    """`model.py:31 in attention`: the line that is not in a shared helper; the instruction where none is known."""
    part = collective.part or _NOWHERE
    words = short_source(collective.source if part.line is None else (part.line,))
    return words or f"%{collective.name}"


def part_name(members: Sequence[Collective]) -> str:
    """`layers[0-35].mlp.gate`: the module with the layers of all members; the line where none is known."""
    part = members[0].part or _NOWHERE
    if part.module is None:
        return line_name(members[0])
    layers = {layer for member in members if member.part is not None for layer in member.part.layers}
    return with_layers(part.module, sorted(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """What the same is done to in modules that stand side by side, pass by pass: one of the things that cost most.

    Attributes:
        group: Its collectives.
        parts: Their modules, dearest first.
        phase: Their pass.
        role: What they move.
    """

    group: Group
    parts: tuple[Group, ...]
    phase: Phase | None
    role: Role | None


def dearest(collectives: Iterable[Collective], count: int) -> list[Thing]:
    """The things that the step waits for longest, or that move most bytes where it is not priced."""
    things = []
    for group in groups_of(collectives, _thing_key)[:count]:
        part = group.members[0].part or _NOWHERE
        parts = tuple(groups_of(group.members, module_key))
        things.append(Thing(group=group, parts=parts, phase=part.phase, role=part.role))
    return things


def _thing_key(collective: Collective) -> tuple[object, ...]:
    part = collective.part or _NOWHERE
    parent, _, own = (part.module or "").rpartition(".")
    place = parent if "*" in parent and "*" not in own else module_key(collective)
    return place, part.phase, part.role, collective.axes


_FAR = 2.0
_SHARE = 0.1


def unlike_layers(group: Group) -> Iterator[tuple[int, float]]:
    """The layers that cost much more than the others do, and the microseconds per step that each waits.

    Much more is twice the median, and by a tenth of what all cost.
    """
    waits: dict[int, float] = {}
    for collective in group.members:
        layers = () if collective.part is None else collective.part.layers
        if len(layers) == 1 and collective.exposed_us is not None:
            waits[layers[0]] = waits.get(layers[0], 0.0) + collective.exposed_us * collective.executions
    usual, total = median(waits.values()) if waits else 0.0, sum(waits.values())
    for layer, wait in sorted(waits.items()):
        if len(waits) > 2 and wait > _FAR * usual and wait - usual > _SHARE * total:
            yield layer, wait
