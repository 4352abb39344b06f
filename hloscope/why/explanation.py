"""The causal chain of one collective: the shardings of arrays, where a sharding is lost, and what to change."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from hloscope.analysis.provenance import NO_SOURCES, SourceFiles, find_users_frame, frame_path
from hloscope.base.errors import Either, TargetError, did_you_mean, say
from hloscope.base.results import Shown, group_by, shorten_to_line
from hloscope.base.units import pluralize
from hloscope.model import Analysis, Collective, Collectives, SourceFrame
from hloscope.model.decision import Decision
from hloscope.model.reason import Frame, Operation, Reason, ReasonKind, Stack, Tensor
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import Kind
from hloscope.why.sentences import (
    find_sharding_left,
    render_array,
    render_equations,
    render_partial_value,
    render_request,
    render_summed_dimensions,
    suggest_changes,
)

if TYPE_CHECKING:
    from hloscope.plain_types import ExplainDict

_NAMED = 8
"""Maximum number of names of each kind that an error lists."""


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
        decision: What it follows from, with what else does: the costliest of its decisions; None if none is known.
        trials: Results of the changes that were tried; None if there were none to try.
    """

    _subject = "explanation"

    collective: Collective
    number: int
    copies: int
    place: SourceFrame | None
    excerpt: str | None
    unread: bool
    steps: tuple[Step, ...]
    equations: tuple[str, ...]
    advice: tuple[str, ...]
    decision: str | None = None
    trials: Trials | None = None

    def __repr__(self) -> str:
        return shorten_to_line(
            f"<{self.number}. {self.collective.kind} {self.collective.name}: {self.collective.why or '?'}>"
        )

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

    def __repr__(self) -> str:
        return f"<Explanations of {pluralize(len(self), 'collective')}>"

    @property
    def _subject(self) -> str:
        return "explanation" if self.everything else "overview"

    if TYPE_CHECKING:

        def to_dict(self) -> ExplainDict:
            """The result as plain data."""


def explain_collectives(
    analysis: Analysis, named: str | None = None, *, sources: SourceFiles = NO_SOURCES
) -> tuple[Explanation, ...]:
    """The explanation of one collective, or of all, most bytes per step first.

    Args:
        analysis: An analysis with reasons.
        named: The name of the instruction, with or without `%`, or its 1-based number in the report's list; for
            several, a contract selector such as `all-gather@X`, a mesh axis, a decision such as `data: D, not B`, an
            argument, or a line such as `blk.py:21`. None for all. Those that differ only in their name are given once.
        sources: The files of the user's code that may be read.

    Raises:
        TargetError: Nothing in the program has this name.
        NotationError: The selector names an axis that does not exist, or cannot be read.
    """
    chosen = None if named is None else _find_places(analysis, named)
    return tuple(
        _explain_collective(analysis, numbers[0], len(numbers), sources)
        for numbers in group_alike(analysis.collectives, chosen)
    )


def group_alike(collectives: Collectives, chosen: Collection[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """The 1-based numbers of collectives, grouped if they differ only in their name: each group is explained once.

    Args:
        collectives: All collectives of a program.
        chosen: The numbers to explain; None for all.
    """

    def key(number: int) -> Hashable:
        found = collectives[number - 1]
        moved = found.kind, found.axes, found.operand_shapes, found.result_shapes, found.executions
        return *moved, found.source, found.why

    numbers = (number for number in range(1, len(collectives) + 1) if chosen is None or number in chosen)
    return tuple(map(tuple, group_by(numbers, key).values()))


def _find_places(analysis: Analysis, named: str) -> Collection[int]:
    """The 1-based numbers of collectives in the list.

    Raises:
        TargetError: Nothing in the program has this name.
    """
    collectives = analysis.collectives
    names, wanted = [collective.name for collective in collectives], named.removeprefix("%")
    if wanted in names:
        return (names.index(wanted) + 1,)
    if wanted.isdigit() and 0 < int(wanted) <= len(names):
        return (int(wanted),)
    if "@" in wanted or _is_selector(wanted):
        selected = {(collective.computation, collective.name) for collective in collectives.selected(wanted)}
        places = enumerate(((collective.computation, collective.name) for collective in collectives), start=1)
        numbers = [number for number, place in places if place in selected]
        if numbers:
            return numbers
    return _find_related(analysis, named) or _refuse_name(analysis, named)


def _refuse_name(analysis: Analysis, named: str) -> NoReturn:
    """Refuses a name that no collective has, with the names that some have.

    Raises:
        TargetError: Always.
    """
    if not analysis.collectives:
        raise TargetError(
            f"there is no collective {named!r} in the compiled program",
            why="it has no collectives",
            fix="leave the name out",
        )
    known = _list_names(analysis)
    what, kind = _describe_miss(analysis, named)
    likely = [
        name.removeprefix("%") for name in chain(*known.values(), {move.kind: None for move in analysis.collectives})
    ]
    near = did_you_mean(named.removeprefix("%"), likely)
    how = say(
        f"{near} Otherwise, " if near else "",
        Either(
            "name one of them, its number in the list of hloscope analyze, a selector such as all-gather@X, an axis, "
            "an argument, a line such as model.py:21, or a decision",
            'write collective="NAME" with one of them, its number in the report, an axis, an argument, a line such as '
            '"model.py:21", a decision, or a selector: collective="all-gather@X"',
        ),
    )
    listed = known if kind is None else {kind: known[kind]}
    shown = "; ".join(f"{noun} {_list_few(names)}" for noun, names in listed.items() if names)
    raise TargetError(what, why=f"it has {shown}" if shown else f"no collective has known {kind}", fix=how)


def _list_names(analysis: Analysis) -> dict[str, tuple[str, ...]]:
    """The names by which collectives can be asked for, by kind."""
    moves = analysis.collectives
    arguments = set(chain.from_iterable(map(_list_arguments, moves)))
    frames = filter(None, (find_users_frame(move.source) for move in moves))
    return {
        "decisions": tuple(decision.name for decision in analysis.decisions if decision.collectives),
        "axes": tuple(dict.fromkeys(chain.from_iterable(move.axes or () for move in moves))),
        "arguments": tuple(array.name for array in analysis.arguments if array.name in arguments),
        "lines": tuple(dict.fromkeys(f"{frame_path(frame).name}:{frame.line}" for frame in frames)),
        "collectives": tuple(f"%{move.name}" for move in moves),
    }


def _describe_miss(analysis: Analysis, named: str) -> tuple[str, str | None]:
    """The reason that no collective has a name, and the kind of name that it could be; None if unknown."""
    file, _, line = named.rpartition(":")
    if named in (() if analysis.mesh is None else analysis.mesh.axis_names):
        return f"no collective moves data over axis {named!r}", "axes"
    if any(_is_part(array.name, named) for array in analysis.arguments):
        return f"no collective is about argument {named!r}", "arguments"
    if file and line.isdigit():
        return f"no collective is at line {named!r}", "lines"
    if any(_is_decision(decision, named) for decision in analysis.decisions):
        return f"no collective follows from the decision {named!r}", "decisions"
    if file:
        return f"there is no decision {named!r}", "decisions"
    return f"there is no collective {named!r} in the compiled program", None


def _list_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    separator = "; " if any(", " in name for name in names) else ", "
    return f"{separator.join(names[:_NAMED])}{more}"


def _find_related(analysis: Analysis, named: str) -> tuple[int, ...]:
    """The numbers of the collectives of a decision, over an axis, of an argument, or at a line of the user's."""
    file, _, line = named.rpartition(":")
    followed = {
        name
        for decision in analysis.decisions
        if _is_decision(decision, named) or any(_is_at(place.source, file, line) for place in decision.places)
        for name in decision.collectives
    }

    def is_meant(collective: Collective) -> bool:
        is_named = collective.name in followed or named in (collective.axes or ())
        is_about = any(_is_part(name, named) for name in _list_arguments(collective))
        return is_named or is_about or _is_at(collective.source, file, line)

    return tuple(number for number, collective in enumerate(analysis.collectives, start=1) if is_meant(collective))


def _is_decision(decision: Decision, named: str) -> bool:
    """Returns whether a text is the name or the summary of a decision, however it is spaced."""
    return "".join(named.split()) in ("".join(text.split()) for text in (decision.name, decision.summary))


def _is_part(argument: str, named: str) -> bool:
    """Returns whether a name is that of an argument or of a tree that it is a leaf of: `cache` of `cache['k']`."""
    return argument == named or argument.startswith((f"{named}[", f"{named}."))


def _is_at(source: Stack, file: str, line: str) -> bool:
    """Returns whether a stack has a line of a file, which may be the end of its path."""
    return line.isdigit() and any(
        frame.line == int(line) and f"/{frame.file}".endswith(f"/{file}") for frame in source if file
    )


def _list_arguments(collective: Collective) -> set[str]:
    """The arguments that the reason for a collective names."""
    reason = collective.reason
    if reason is None:
        return set()
    arrays = (reason.moved, reason.result, reason.weight, *reason.operands)
    names = [array.argument for array in arrays if array is not None]
    names += [asker.name for asker in (*reason.asked_by, *reason.held_by) if asker.by == "argument"]
    return set(filter(None, names))


def _is_selector(named: str) -> bool:
    """Returns whether a text looks like a contract selector: `all-gather@X`, `all-*`, `reduce-scatter over dcn`."""
    kind = named.split(maxsplit=1)[0].partition("@")[0] if named.split() else ""
    return any(fnmatchcase(known, kind) for known in Kind)


def _explain_collective(analysis: Analysis, number: int, copies: int, sources: SourceFiles) -> Explanation:
    collective = analysis.collectives[number - 1]
    decision = next(analysis.find_decisions(collective.name), None)
    reason = collective.reason or Reason(kind=ReasonKind.UNKNOWN)
    place = _find_needed_line(collective, reason)
    line = None if place is None else sources.line(place.file, place.line)
    return Explanation(
        collective=collective,
        number=number,
        copies=copies,
        place=place,
        excerpt=line or None,
        unread=place is not None and line is None,
        steps=tuple(_build_steps(reason, collective.kind)),
        equations=render_equations(reason, collective.kind),
        advice=suggest_changes(reason),
        decision=None if decision is None else decision.summary_of_all,
    )


def _find_needed_line(collective: Collective, reason: Reason) -> SourceFrame | None:
    """The line that needs the data; if unknown, the collective's own."""
    asked = next((asker.source for asker in reason.asked_by if asker.by == "constraint"), ())
    first = asked if reason.kind is ReasonKind.CONSTRAINT else ()
    needing = reason.producer if reason.kind is ReasonKind.PARTIAL_SUM else reason.consumer or reason.producer
    return find_users_frame(first or (needing.source if needing is not None else ()) or collective.source)


def _build_steps(reason: Reason, kind: Kind) -> Iterator[Step]:
    for words in dict.fromkeys(map(render_request, reason.held_by)):
        yield Step(what=words)
    if reason.kind is ReasonKind.PARTIAL_SUM:
        yield from _build_sum_steps(reason)
    elif reason.moved is not None and reason.kind is not ReasonKind.AUTHORED:
        yield from _build_move_steps(reason, reason.moved, kind)
    if reason.kind is not ReasonKind.CONSTRAINT:
        for words in dict.fromkeys(map(render_request, reason.asked_by)):
            yield Step(what=words)


def _build_sum_steps(reason: Reason) -> Iterator[Step]:
    part = render_partial_value(reason)
    if reason.producer is not None:
        cut = f"{render_summed_dimensions(reason)} is sharded over {', '.join(reason.axes)}"
        what = f"{reason.producer.name} computes only a part of its result on each device, because {cut}"
        yield Step(
            what=what,
            arrays=tuple(map(render_array, reason.operands)),
            source=_find_frame(reason.producer),
            is_loss=True,
        )
    if reason.moved is not None:
        yield Step(what=f"each device holds a partial {part}", arrays=(render_array(reason.moved),))
    if reason.consumer is not None:
        arrays = () if reason.moved is None else (render_array(reason.moved, reason.wanted),)
        yield Step(what=f"{reason.consumer.name} needs the {part}", arrays=arrays, source=_find_frame(reason.consumer))


def _build_move_steps(reason: Reason, moved: Tensor, kind: Kind) -> Iterator[Step]:
    if reason.producer is not None and not moved.named:
        yield Step(
            what=f"{reason.producer.name} produces it",
            arrays=(render_array(moved),),
            source=_find_frame(reason.producer),
        )
    left = find_sharding_left(reason, moved, kind)
    had, wanted = (render_array(moved),), None if left is None else render_array(moved, left)
    if reason.kind is ReasonKind.CONSTRAINT:
        asked = reason.asked_by[0] if reason.asked_by else None
        what = "a sharding constraint" if asked is None else render_request(replace(asked, source=()))
        place = find_users_frame(asked.source) if asked else None
        yield Step(what=what, arrays=had, becomes=wanted, source=place, is_loss=True)
    elif reason.consumer is not None:
        what = f"{reason.consumer.name} needs another sharding"
        yield Step(what=what, arrays=had, becomes=wanted, source=_find_frame(reason.consumer), is_loss=True)
    else:
        yield Step(what="the output needs another sharding", arrays=had, becomes=wanted, is_loss=True)


def _find_frame(operation: Operation | None) -> SourceFrame | None:
    return None if operation is None else find_users_frame(operation.source)
