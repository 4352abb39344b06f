"""The whole chain for one collective: who sharded what, the step at which a sharding is lost, and what to change.

Source of the advice: each change was made to the programs of the tests and of `fixtures/programs` and compiled for v5e;
those that left the collective as large as it was are not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from hloscope.analysis.model import Analysis, Collective, SourceFrame
from hloscope.analysis.model.reason import Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import NOTHING, Sources, users_frame
from hloscope.analysis.vocabulary import Kind
from hloscope.errors import TargetError, did_you_mean
from hloscope.why.partitioned import dimensions_of, significant
from hloscope.why.phrases import (
    asked_words,
    axes_words,
    cut_words,
    equations,
    is_window,
    kept_axes,
    left_by,
    lost_words,
    notated,
    part_words,
    summed_words,
)
from hloscope.why.tensors import spec_of

_SCATTERED_ROWS = 8
"""Of results with fewer rows on a device, libtpu 0.0.42 and its successors make no reduce-scatter (measured, v5e)."""

_FOREIGN = ("_call", "callback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One link of the chain.

    Attributes:
        what: What happens, such as `argument W asks for P('X', None)` or `dot_general needs D whole`.
        arrays: The arrays that take part, in the literature's notation.
        becomes: The array as it has to be from here on; None where it stays as it is.
        source: Where it is written; None for arguments and outputs.
        is_loss: Whether the sharding is lost or changed here.
    """

    what: str
    arrays: tuple[str, ...] = ()
    becomes: str | None = None
    source: SourceFrame | None = None
    is_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is known about why a collective is there.

    Attributes:
        collective: The collective, with its reason.
        number: Its place in the report's list, counted from 1, by which it can be asked for.
        copies: Places of the compiled program with the same collective for the same reason.
        place: The line of the user's code; None when not known.
        excerpt: That line's text; None when the file cannot be read.
        unread: Whether that is since HLO text names the file, and the user did not say that it may be read.
        steps: From who sharded the array to who needed it otherwise.
        equations: The same in the literature's notation.
        advice: What to change.
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


def explain(analysis: Analysis, named: str | None = None, *, sources: Sources = NOTHING) -> tuple[Explanation, ...]:
    """The chain of one collective, or of all, most bytes per step first.

    Args:
        analysis: With reasons.
        named: The name of the instruction, with or without `%`, or its place in the report's list, counted from 1;
            None for all, of which those that differ in nothing but their name are told once.
        sources: The files of the user's code that may be read.

    Raises:
        TargetError: There is no such collective.
    """
    if named is not None:
        number = _find(analysis.collectives, named)
        return (_explanation(analysis.collectives[number - 1], number, 1, sources),)
    groups: dict[object, list[tuple[int, Collective]]] = {}
    for number, one in enumerate(analysis.collectives, start=1):
        key = (one.kind, one.axes, one.operand_shapes, one.result_shapes, one.executions, one.source, one.why)
        groups.setdefault(key, []).append((number, one))
    return tuple(_explanation(alike[0][1], alike[0][0], len(alike), sources) for alike in groups.values())


def _find(collectives: Sequence[Collective], named: str) -> int:
    """The place of a collective in the list, counted from 1."""
    wanted = named.removeprefix("%")
    for number, one in enumerate(collectives, start=1):
        if one.name == wanted:
            return number
    if wanted.isdigit() and 0 < int(wanted) <= len(collectives):
        return int(wanted)
    names = ", ".join(f"%{one.name}" for one in collectives[:8])
    more = f", and {len(collectives) - 8} more" if len(collectives) > 8 else ""
    raise TargetError(
        f"there is no collective {named!r} in the compiled program",
        why=f"it has {names}{more}" if collectives else "it has no collectives at all",
        fix=_how_to_name([one.name for one in collectives], wanted),
    )


def _how_to_name(names: Sequence[str], wanted: str) -> str:
    if not names:
        return "leave the name out"
    near = did_you_mean(wanted, names)
    first = f"{near} Else " if near else ""
    return f"{first}name one of them, or give its number in the list that `hloscope analyze` prints, counted from 1"


def _explanation(one: Collective, number: int, copies: int, sources: Sources) -> Explanation:
    reason = one.reason or Reason(kind=ReasonKind.UNKNOWN)
    place = _place(one, reason)
    line = None if place is None else sources.line(place.file, place.line)
    return Explanation(
        collective=one,
        number=number,
        copies=copies,
        place=place,
        excerpt=line or None,
        unread=place is not None and line is None,
        steps=tuple(_steps(reason, one.kind)),
        equations=equations(reason, one.kind),
        advice=advice(reason, one),
    )


def _place(one: Collective, reason: Reason) -> SourceFrame | None:
    """The line that needs the data; where that is not known, the collective's own."""
    asked = next((asker.source for asker in reason.asked_by if asker.by == "constraint"), ())
    first = asked if reason.kind is ReasonKind.CONSTRAINT else ()
    told = reason.producer if reason.kind is ReasonKind.PARTIAL_SUM else reason.consumer or reason.producer
    return users_frame(first or (told.source if told is not None else ()) or one.source)


def _steps(reason: Reason, kind: Kind) -> Iterator[Step]:
    for asker in dict.fromkeys(asked_words(one) for one in reason.held_by):
        yield Step(what=asker)
    if reason.kind is ReasonKind.PARTIAL_SUM:
        yield from _sum_steps(reason)
    elif reason.moved is not None:
        yield from _move_steps(reason, reason.moved, kind)
    if reason.kind is not ReasonKind.CONSTRAINT:
        for asker in dict.fromkeys(asked_words(one) for one in reason.asked_by):
            yield Step(what=asker)


def _sum_steps(reason: Reason) -> Iterator[Step]:
    part = part_words(reason)
    if reason.producer is not None:
        operands = tuple(notated(one) for one in reason.operands)
        cut = f"{summed_words(reason)} is sharded over {', '.join(reason.axes)}"
        what = f"{reason.producer.name} leaves a part of its result on each device, because {cut}"
        yield Step(what=what, arrays=operands, source=_line(reason.producer), is_loss=True)
    if reason.moved is not None:
        yield Step(what=f"each device holds a partial {part}", arrays=(notated(reason.moved),))
    if reason.consumer is not None:
        arrays = () if reason.moved is None else (notated(reason.moved, reason.wanted),)
        yield Step(what=f"{reason.consumer.name} needs the {part}", arrays=arrays, source=_line(reason.consumer))


def _move_steps(reason: Reason, moved: Tensor, kind: Kind) -> Iterator[Step]:
    if reason.producer is not None and not moved.named:
        yield Step(what=f"{reason.producer.name} makes it", arrays=(notated(moved),), source=_line(reason.producer))
    left = left_by(reason, moved, kind)
    had, wanted = (notated(moved),), None if left is None else notated(moved, left)
    if reason.kind is ReasonKind.CONSTRAINT:
        asked = reason.asked_by[0] if reason.asked_by else None
        what = "a sharding constraint" if asked is None else asked_words(replace(asked, source=()))
        place = users_frame(asked.source) if asked else None
        yield Step(what=what, arrays=had, becomes=wanted, source=place, is_loss=True)
    elif reason.consumer is not None:
        what = f"{reason.consumer.name} needs it otherwise"
        yield Step(what=what, arrays=had, becomes=wanted, source=_line(reason.consumer), is_loss=True)
    else:
        yield Step(what="it is handed out otherwise", arrays=had, becomes=wanted, is_loss=True)


def _line(operation: Operation | None) -> SourceFrame | None:
    return None if operation is None else users_frame(operation.source)


def advice(reason: Reason, of: Collective | None = None) -> tuple[str, ...]:
    """Changes worth a thought, the likeliest first; none for what the user wrote or what is not known.

    Whether a change pays depends on the rest of the program, so each names what it trades.

    Args:
        reason: Why the collective is there.
        of: The collective; None where only the reason is at hand.
    """
    if reason.kind not in _ADVICE:
        return ()
    return (*_scattered(reason, of), *_ADVICE[reason.kind](reason))


def _scattered(reason: Reason, of: Collective | None) -> Iterator[str]:
    """Of an all-reduce, how to make a reduce-scatter of it."""
    if of is None or of.kind is not Kind.ALL_REDUCE or reason.kind is not ReasonKind.PARTIAL_SUM:
        return
    local = max(dimensions_of(of.operand_shapes), key=prod, default=())
    devices = of.group_size
    is_vector = reason.moved is not None and len(significant(reason.moved.shape)) < 2  # libtpu adds dimensions of 1
    if is_vector or len(local) < 2 or not devices or not any(size % devices == 0 for size in local):
        return  # nothing is left to cut, and libtpu scatters no vectors
    axes = axes_words(reason)
    if local[-2] < _SCATTERED_ROWS:
        yield (
            f"give each device {_SCATTERED_ROWS} rows or more, and ask for the result sharded over {axes} too: TPU's "
            "compiler makes no reduce-scatter of fewer, which moves half of what an all-reduce does"
        )
    elif kept_axes(reason):
        yield (
            f"shard another dimension of the result over {axes}: where the compiler makes a reduce-scatter of it, that "
            "moves half of what an all-reduce does"
        )
    else:
        yield (
            f"ask for the result sharded over {axes} too: where the compiler makes a reduce-scatter of it, that moves "
            "half of what an all-reduce does"
        )


def _partial_sum(reason: Reason) -> Iterator[str]:
    if reason.producer is None:
        yield f"have {_name(reason)} added up where it is made, unless only a part of it is needed there"
        return
    if not reason.summed:
        yield from _choice(replace(reason, consumer=reason.producer))
        return
    yield f"take {axes_words(reason)} off {summed_words(reason)}, and shard another dimension with it{_held(reason)}"


def _gathered_operand(reason: Reason) -> Iterator[str]:
    yield (
        f"take {cut_words(reason)} off {lost_words(reason)} of {_name(reason)}, and shard another dimension with it"
        f"{_held(reason)}"
    )


def _operand_conflict(reason: Reason) -> Iterator[str]:
    name, axes = _name(reason), cut_words(reason)
    if reason.loop_invariant:
        yield f"gather {name} once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield f"leave {axes} off {name}, where every device has room for all of it{_held(reason)}"
    yield f"or shard {name} over an axis that nothing else here uses, along a dimension that is not summed over"
    if reason.moved is not None and reason.moved.argument is not None:
        yield "or keep it, where memory is what counts: what is gathered where it is used lies in parts (FSDP)"


def _needs_whole(reason: Reason) -> Iterator[str]:
    consumer = "the operation" if reason.consumer is None else reason.consumer.name
    yield f"shard another dimension than {lost_words(reason)} before {consumer}{_held(reason)}"
    yield f"or do what {consumer} does part by part under jax.shard_map, where a part is enough"


def _indexed_in_loop(reason: Reason) -> Iterator[str]:
    yield f"shard {_name(reason)} along a dimension that the loop does not index{_held(reason)}"
    if reason.loop_invariant:
        yield "or gather it once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield "or send what is needed to where it is: an all-to-all under jax.shard_map"


def _halo(reason: Reason) -> Iterator[str]:
    yield f"shard another dimension than {lost_words(reason)}{_held(reason)}"
    if is_window(reason):
        yield "or leave it: only the edges move"


def _constraint(reason: Reason) -> Iterator[str]:
    asked = next((asked_words(one) for one in reason.asked_by), "the sharding constraint")
    had = None if reason.moved is None else spec_of(reason.moved.sharding)
    yield f"drop or change the constraint: {asked}, and the array is {had or 'sharded otherwise'}{_held(reason)}"


def _requested_output(reason: Reason) -> Iterator[str]:
    had = None if reason.moved is None else spec_of(reason.moved.sharding)
    yield f"ask for the output as it is computed, {had}, or leave its sharding open{_held(reason)}"


def _merged(reason: Reason) -> Iterator[str]:
    yield f"shard the major one of the merged dimensions instead of {lost_words(reason)}{_held(reason)}"
    yield "or keep the dimensions apart"


def _no_rule(reason: Reason) -> Iterator[str]:
    if reason.consumer is not None and not reason.consumer.name.endswith(_FOREIGN):
        yield from _needs_whole(reason)
        return
    yield "call it under jax.shard_map, so that each device hands over its own part"
    yield "or give it a rule: jax.experimental.custom_partitioning with a sharding_rule"


def _choice(reason: Reason) -> Iterator[str]:
    where = "the operation" if reason.consumer is None else reason.consumer.name
    yield f"say how the operands of {where} are to be sharded, with jax.lax.with_sharding_constraint before it"


def _held(reason: Reason) -> str:
    words = "; ".join(dict.fromkeys(asked_words(one) for one in reason.held_by))
    return f" ({words})" if words else ""


def _name(reason: Reason) -> str:
    return "the array" if reason.moved is None else reason.moved.name


_ADVICE: dict[ReasonKind, Callable[[Reason], Iterator[str]]] = {
    ReasonKind.PARTIAL_SUM: _partial_sum,
    ReasonKind.GATHERED_OPERAND: _gathered_operand,
    ReasonKind.OPERAND_CONFLICT: _operand_conflict,
    ReasonKind.NEEDS_WHOLE_DIMENSION: _needs_whole,
    ReasonKind.INDEXED_IN_LOOP: _indexed_in_loop,
    ReasonKind.HALO: _halo,
    ReasonKind.CONSTRAINT: _constraint,
    ReasonKind.REQUESTED_OUTPUT: _requested_output,
    ReasonKind.MERGED_DIMENSIONS: _merged,
    ReasonKind.NO_RULE: _no_rule,
    ReasonKind.PARTITIONERS_CHOICE: _choice,
}
