"""The chain of causes for one collective: how arrays are sharded, where a sharding is lost, and what to change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hloscope.analysis.model import Analysis, Collective, Collectives, Frame, SourceFrame
from hloscope.analysis.model.reason import Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.model.trial import Trials
from hloscope.analysis.places import NOTHING, Sources, users_frame
from hloscope.analysis.vocabulary import Kind
from hloscope.errors import TargetError, did_you_mean
from hloscope.messages import Either, say
from hloscope.shown import Shown, one_line
from hloscope.units import plural
from hloscope.why.phrases import (
    asked_words,
    equations,
    left_by,
    notated,
    part_words,
    summed_words,
)
from hloscope.why.sentences import advice

if TYPE_CHECKING:
    from hloscope.plain_types import ExplainDict

_NAMED = 8
"""Names of collectives that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step in the chain of causes.

    Attributes:
        what: What happens, such as `argument W requests P('X', None)` or `dot_general needs D whole`.
        arrays: The arrays involved, in named-axis notation.
        becomes: The array after this step; None if it stays as it is.
        source: Source frame of the step; None for arguments and outputs.
        is_loss: Whether the sharding is lost or changed in this step.
    """

    what: str
    arrays: tuple[str, ...] = ()
    becomes: str | None = None
    source: Frame | None = None
    is_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Shown):
    """The explanation of why a collective is there.

    Attributes:
        collective: The collective, with its reason.
        number: 1-based number in the report's list, by which it can be requested.
        copies: Number of places in the compiled program with the same collective for the same reason.
        place: Line of user code; None if unknown.
        excerpt: Text of that line; None if the file cannot be read.
        unread: Whether the excerpt is missing because the file is only named in HLO text and the user has not allowed
            reading it.
        steps: The chain, from the source of the sharding to the operation that needs another one.
        equations: The same in named-axis notation.
        advice: Suggested code changes, none of which was tried.
        trials: Results of the changes that were tried; None if there were none to try.
    """

    collective: Collective
    number: int
    copies: int
    place: SourceFrame | None
    excerpt: str | None
    unread: bool
    steps: tuple[Step, ...]
    equations: tuple[str, ...]
    advice: tuple[str, ...]
    trials: Trials | None = None

    def __repr__(self) -> str:
        return one_line(f"<{self.number}. {self.collective.kind} {self.collective.name}: {self.collective.why or '?'}>")

    def _subject(self) -> str:
        return "explanation"

    if TYPE_CHECKING:

        def to_dict(self) -> ExplainDict:
            """The result as plain data."""

    def _rendered(self) -> object:
        return (self,)


class Explanations(tuple[Explanation, ...], Shown):
    """The explanations of several collectives, most bytes per step first.

    Attributes:
        everything: Whether the report shows all explanations in full, rather than the first one and a list of the
            others.
    """

    everything: bool

    def __new__(cls, members: Iterable[Explanation] = (), *, everything: bool = False) -> Explanations:
        """Creates a tuple of these explanations."""
        made = super().__new__(cls, members)
        made.everything = everything
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (tuple(self), self.everything)

    def __repr__(self) -> str:
        return f"<Explanations of {plural(len(self), 'collective')}>"

    def _subject(self) -> str:
        return "explanation" if self.everything else "overview"

    if TYPE_CHECKING:

        def to_dict(self) -> ExplainDict:
            """The result as plain data."""


def _made(members: tuple[Explanation, ...], everything: bool) -> Explanations:
    return Explanations(members, everything=everything)


def explain(analysis: Analysis, named: str | None = None, *, sources: Sources = NOTHING) -> tuple[Explanation, ...]:
    """The chain of one collective, or of all, most bytes per step first.

    Args:
        analysis: With reasons.
        named: The name of the instruction, with or without `%`, its place in the report's list, counted from 1, or a
            contract's selector, such as `all-gather@X`, for all that it speaks of; None for all. Of several those that
            differ in nothing but their name are given once.
        sources: The files of the user's code that may be read.

    Raises:
        TargetError: There is no such collective.
        NotationError: The selector names an axis that there is not, or cannot be read.
    """
    chosen = None if named is None else _find(analysis.collectives, named)
    return tuple(
        _explanation(analysis.collectives[numbers[0] - 1], numbers[0], len(numbers), sources)
        for numbers in alike(analysis.collectives, chosen)
    )


def alike(collectives: Collectives, chosen: Collection[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """The places, counted from 1, of collectives that differ in nothing but their name: each is explained once.

    Args:
        collectives: All of a program.
        chosen: The places to tell; None for all.
    """
    groups: dict[object, list[int]] = {}
    for number, found in enumerate(collectives, start=1):
        if chosen is not None and number not in chosen:
            continue
        key = (found.kind, found.axes, found.operand_shapes, found.result_shapes, found.executions, found.source)
        groups.setdefault((*key, found.why), []).append(number)
    return tuple(map(tuple, groups.values()))


def _find(collectives: Collectives, named: str) -> Collection[int]:
    """The places of collectives in the list, counted from 1."""
    names, wanted = [collective.name for collective in collectives], named.removeprefix("%")
    if wanted in names:
        return (names.index(wanted) + 1,)
    if wanted.isdigit() and 0 < int(wanted) <= len(names):
        return (int(wanted),)
    if _is_selector(wanted):
        selected = {(collective.computation, collective.name) for collective in collectives.selected(wanted)}
        places = enumerate(((collective.computation, collective.name) for collective in collectives), start=1)
        numbers = [number for number, place in places if place in selected]
        if numbers:
            return numbers
    shown = ", ".join(f"%{name}" for name in names[:_NAMED])
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    near = did_you_mean(wanted, names)
    first = f"{near} Otherwise, " if near else ""
    how = say(
        first,
        Either(
            "name one of them, give its number in the list of hloscope analyze, or a selector, all-gather@X",
            'write collective="NAME" with one of them, its number in the report, or a selector: '
            'collective="all-gather@X"',
        ),
    )
    raise TargetError(
        f"there is no collective {named!r} in the compiled program",
        why=f"it has {shown}{more}" if names else "it has no collectives",
        fix=how if names else "leave the name out",
    )


def _is_selector(named: str) -> bool:
    """Whether a contract could speak so of collectives: `all-gather@X`, `all-*`, `reduce-scatter over dcn`."""
    kind = named.split(maxsplit=1)[0].partition("@")[0] if named.split() else ""
    return any(fnmatchcase(known, kind) for known in Kind)


def _explanation(collective: Collective, number: int, copies: int, sources: Sources) -> Explanation:
    reason = collective.reason or Reason(kind=ReasonKind.UNKNOWN)
    place = _place(collective, reason)
    line = None if place is None else sources.line(place.file, place.line)
    return Explanation(
        collective=collective,
        number=number,
        copies=copies,
        place=place,
        excerpt=line or None,
        unread=place is not None and line is None,
        steps=tuple(_steps(reason, collective.kind)),
        equations=equations(reason, collective.kind),
        advice=advice(reason),
    )


def _place(collective: Collective, reason: Reason) -> SourceFrame | None:
    """The line that needs the data; where that is not known, the collective's own."""
    asked = next((asker.source for asker in reason.asked_by if asker.by == "constraint"), ())
    first = asked if reason.kind is ReasonKind.CONSTRAINT else ()
    needing = reason.producer if reason.kind is ReasonKind.PARTIAL_SUM else reason.consumer or reason.producer
    return users_frame(first or (needing.source if needing is not None else ()) or collective.source)


def _steps(reason: Reason, kind: Kind) -> Iterator[Step]:
    for words in dict.fromkeys(map(asked_words, reason.held_by)):
        yield Step(what=words)
    if reason.kind is ReasonKind.PARTIAL_SUM:
        yield from _sum_steps(reason)
    elif reason.moved is not None and reason.kind is not ReasonKind.AUTHORED:
        yield from _move_steps(reason, reason.moved, kind)
    if reason.kind is not ReasonKind.CONSTRAINT:
        for words in dict.fromkeys(map(asked_words, reason.asked_by)):
            yield Step(what=words)


def _sum_steps(reason: Reason) -> Iterator[Step]:
    part = part_words(reason)
    if reason.producer is not None:
        cut = f"{summed_words(reason)} is sharded over {', '.join(reason.axes)}"
        what = f"{reason.producer.name} computes only a part of its result on each device, because {cut}"
        yield Step(what=what, arrays=tuple(map(notated, reason.operands)), source=_line(reason.producer), is_loss=True)
    if reason.moved is not None:
        yield Step(what=f"each device holds a partial {part}", arrays=(notated(reason.moved),))
    if reason.consumer is not None:
        arrays = () if reason.moved is None else (notated(reason.moved, reason.wanted),)
        yield Step(what=f"{reason.consumer.name} needs the {part}", arrays=arrays, source=_line(reason.consumer))


def _move_steps(reason: Reason, moved: Tensor, kind: Kind) -> Iterator[Step]:
    if reason.producer is not None and not moved.named:
        yield Step(what=f"{reason.producer.name} produces it", arrays=(notated(moved),), source=_line(reason.producer))
    left = left_by(reason, moved, kind)
    had, wanted = (notated(moved),), None if left is None else notated(moved, left)
    if reason.kind is ReasonKind.CONSTRAINT:
        asked = reason.asked_by[0] if reason.asked_by else None
        what = "a sharding constraint" if asked is None else asked_words(replace(asked, source=()))
        place = users_frame(asked.source) if asked else None
        yield Step(what=what, arrays=had, becomes=wanted, source=place, is_loss=True)
    elif reason.consumer is not None:
        what = f"{reason.consumer.name} needs another sharding"
        yield Step(what=what, arrays=had, becomes=wanted, source=_line(reason.consumer), is_loss=True)
    else:
        yield Step(what="the output needs another sharding", arrays=had, becomes=wanted, is_loss=True)


def _line(operation: Operation | None) -> SourceFrame | None:
    return None if operation is None else users_frame(operation.source)
