"""Each reason in words: in one or two sentences why a collective is there, and what to change.

Both are made from the typed evidence and from nothing else; `_WORDS` has them side by side, one entry for each kind.

Source of the advice: each change was made to the programs of the tests and of `fixtures/programs` and compiled for v5e;
those that left the collective as large as it was are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from hloscope.analysis.model import Collective
from hloscope.analysis.model.reason import AskedBy, Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.why.graph import axes_in
from hloscope.why.names import is_gradient
from hloscope.why.partitioned import dimensions_of, significant
from hloscope.why.phrases import (
    CONTRACTIONS,
    asked_words,
    axes_words,
    cut_words,
    dimension_of,
    elsewhere_words,
    is_step,
    kept_axes,
    listed,
    lost_words,
    notated,
    part_words,
    summed_words,
)
from hloscope.why.tensors import spec_of

_NAMED_OTHERS = 3
_LOOKUPS = ("gather", "take")
_WINDOWS = ("conv_general_dilated", "reduce_window", "select_and_scatter")
_FOREIGN = ("_call", "callback")
_SCATTERED_ROWS = 8
"""Of results with fewer rows on a device, libtpu 0.0.42 and its successors make no reduce-scatter (measured, v5e)."""


def sentence(reason: Reason, kind: Kind, others: Sequence[Tensor | None] = ()) -> str:
    """Why a collective of this kind is there, in the user's terms.

    It begins with "likely" where the link from the compiled collective to the program is inferred, and says "not
    known" where there is none.

    Args:
        reason: The evidence; of a collective that the compiler combined from several, that for its largest part.
        kind: What it does.
        others: The arrays of the other parts, None for one that is not known; empty when nobody looked at them.
    """
    body = _filled(_WORDS[reason.kind].sentence(reason), reason)
    if reason.realigns is not None:
        over = axes_words(reason)
        return f"likely: realigns the padded parts that %{reason.realigns} leaves: {kind} over {over}. {body}"
    if reason.kind is ReasonKind.UNKNOWN:
        return body
    more = _combined_with(reason, others)
    if reason.kind is ReasonKind.AUTHORED:
        return f"{body}{more}"
    doubt = "" if reason.certain else "likely: "
    several = f" (one of {reason.candidates} such places)" if reason.candidates > reason.combined else ""
    was = reason.rewritten_from if reason.rewritten_from != kind else None
    made = f", made from the partitioner's {was}" if was else ""
    how = _how(reason, kind)
    return f"{doubt}{body}: {kind} over {axes_words(reason)}{_in_loop(reason)}{how}{made}{more}{several}"


def _how(reason: Reason, kind: Kind) -> str:
    """How the collective serves its reason, where that is not plain."""
    if reason.kind is not ReasonKind.PARTIAL_SUM:
        if kind in SUMS and reason.certain:
            return ", to which devices without them add zeros"
        return ", one step on the way" if is_step(reason, kind) else ""
    if kind is Kind.ALL_GATHER and reason.rewritten_from in (None, kind):
        return f" of each device's {part_words(reason)}, from which every device makes the whole"
    if kind is Kind.REDUCE_SCATTER and not kept_axes(reason):
        return ", the first half of an all-reduce"
    return ", where a reduce-scatter would do" if kind is Kind.ALL_REDUCE and kept_axes(reason) else ""


def _combined_with(reason: Reason, others: Sequence[Tensor | None]) -> str:
    """How many other transfers go in the same one, and of what where they are few."""
    count = reason.combined - 1
    if count < 1:
        return ""
    names = dict.fromkeys(f"`{notated(other)}`" for other in others if other is not None)
    if count == len(others) and None not in others and len(names) <= _NAMED_OTHERS:
        among = f" of {listed(list(names))}"
        return (
            f", combined with {'that' if count == 1 else f'{count} others' if count > len(names) else 'those'}{among}"
        )
    return f", combined with {'another' if count == 1 else f'{count} others'}"


def _in_loop(reason: Reason) -> str:
    if not reason.in_loop:
        return ""
    return " in every iteration, although it is the same in each" if reason.loop_invariant else " in every iteration"


def advice(reason: Reason, of: Collective | None = None) -> tuple[str, ...]:
    """Changes worth a thought, the likeliest first; none for what the user wrote or what is not known.

    Whether a change pays depends on the rest of the program, so each names what it trades.

    Args:
        reason: Why the collective is there.
        of: The collective; None where only the reason is at hand.
    """
    if reason.kind is ReasonKind.PARTIAL_SUM and reason.wanted is None:
        return ()  # of a sum that differentiation put into a shard_map, which takes no constraints
    changes = (*_scattered(reason, of), *_WORDS[reason.kind].advice(reason))
    return tuple(_filled(change, reason) for change in changes)


def _scattered(reason: Reason, of: Collective | None) -> Iterator[str]:
    """Of an all-reduce, how to make a reduce-scatter of it."""
    if of is None or of.kind is not Kind.ALL_REDUCE or reason.kind is not ReasonKind.PARTIAL_SUM:
        return
    local = max(dimensions_of(of.operand_shapes), key=prod, default=())
    devices = of.group_size
    is_vector = reason.moved is not None and len(significant(reason.moved.shape)) < 2  # libtpu adds dimensions of 1
    if is_vector or len(local) < 2 or not devices or not any(size % devices == 0 for size in local):
        return  # nothing is left to cut, and libtpu scatters no vectors
    if local[-2] < _SCATTERED_ROWS:
        yield (
            f"give each device {_SCATTERED_ROWS} rows or more, and ask for the result sharded over {{axes}} too: TPU's "
            "compiler makes no reduce-scatter of fewer, which moves half of what an all-reduce does"
        )
    elif kept_axes(reason):
        yield (
            "shard another dimension of the result over {axes}: where the compiler makes a reduce-scatter of it, that "
            "moves half of what an all-reduce does"
        )
    else:
        yield (
            "ask for the result sharded over {axes} too: where the compiler makes a reduce-scatter of it, that moves "
            "half of what an all-reduce does"
        )


def _filled(template: str, reason: Reason) -> str:
    return template.format_map(_Pieces(reason))


class _Pieces(dict[str, str]):
    """What stands in braces in a template, each piece made when it is asked for; names of the user's come in here."""

    def __init__(self, reason: Reason) -> None:
        self._reason = reason

    def __missing__(self, name: str) -> str:
        return _PIECES[name](self._reason)


def _sum_sentence(reason: Reason) -> str:
    if reason.weight is not None:
        return "{weight} is replicated over {axes}, so its gradient, of which {producer} makes a part, is summed there"
    if reason.producer is None:
        return "{moved} comes as a partial sum on each device; {demand}"
    if not reason.summed:
        start = "{producer} leaves a part of the result on each device along {axes}"
    elif reason.producer.name in CONTRACTIONS:
        start = "contracting {contracted} of {cut_operands} {are} sharded over {axes}"
    else:
        does = "looks up along" if reason.producer.name in _LOOKUPS else "reduces over"
        start = f"{{producer}} {does} {{summed}} of {{cut_operands}}, sharded over {{axes}}"
    return start + ", so each device holds a partial {part}; {demand}"


def _sum_advice(reason: Reason) -> Iterator[str]:
    if reason.producer is None:
        yield "have {array} added up where it is made, unless only a part of it is needed there"
    elif not reason.summed:
        yield _SAY_HOW.replace("{operation}", "{maker}")
    else:
        yield "take {axes} off {summed}, and shard another dimension with it{held}"


def _conflict_sentence(reason: Reason) -> str:
    if elsewhere_words(reason) is not None:
        return "{state}, and {consumer} needs it {elsewhere}{because}"
    whole = "{state}, and {consumer} needs it whole"
    return whole if reason.conflicting is None else whole + " because {cut} shards {conflicting} there"


def _conflict_advice(reason: Reason) -> Iterator[str]:
    if reason.loop_invariant:
        yield "gather {array} once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield "leave {cut} off {array}, where every device has room for all of it{held}"
    yield "or shard {array} over an axis that nothing else here uses, along a dimension that is not summed over"
    if reason.moved is not None and reason.moved.argument is not None:
        yield "or keep it, where memory is what counts: what is gathered where it is used lies in parts (FSDP)"


def _index_advice(reason: Reason) -> Iterator[str]:
    yield "shard {array} along a dimension that the loop does not index{held}"
    if reason.loop_invariant:
        yield "or gather it once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield "or send what is needed to where it is: an all-to-all under jax.shard_map"


def _halo_advice(reason: Reason) -> Iterator[str]:
    yield "shard another dimension than {lost}{held}"
    if _consumer_name(reason).startswith(_WINDOWS):
        yield "or leave it: only the edges move"


def _no_rule_advice(reason: Reason) -> tuple[str, ...]:
    if reason.consumer is not None and not reason.consumer.name.endswith(_FOREIGN):
        return _BEFORE_IT
    return (
        "call it under jax.shard_map, so that each device hands over its own part",
        "or give it a rule: jax.experimental.custom_partitioning with a sharding_rule",
    )


def _choice_sentence(reason: Reason) -> str:
    way = "the partitioner's own way to {consumer}, which Shardy's shardings alone do not ask for"
    return way if reason.moved is None else way + ": {moved} is sharded over {cut}"


_SAY_HOW = "say how the operands of {operation} are to be sharded, with jax.lax.with_sharding_constraint before it"
_BEFORE_IT = (
    "shard another dimension than {lost} before {operation}{held}",
    "or do what {operation} does part by part under jax.shard_map, where a part is enough",
)


@dataclass(frozen=True, slots=True)
class _Words:
    """The templates of a kind of reason.

    Attributes:
        sentence: Why data moves.
        advice: Changes, the likeliest first; none for what the user wrote or what is not known.
    """

    sentence: Callable[[Reason], str]
    advice: Callable[[Reason], Iterable[str]]


def _words(
    sentence: str | Callable[[Reason], str], *changes: str, advice: Callable[[Reason], Iterable[str]] | None = None
) -> _Words:
    """Templates that are always the same, or functions that choose them by the evidence."""
    said = (lambda _: sentence) if isinstance(sentence, str) else sentence
    return _Words(said, (lambda _: changes) if advice is None else advice)


_WORDS = {
    ReasonKind.AUTHORED: _words("{author}: {written} over {axes}{made_from}"),
    ReasonKind.PARTIAL_SUM: _words(_sum_sentence, advice=_sum_advice),
    ReasonKind.GATHERED_OPERAND: _words(
        "{consumer} {sums} {lost} of {moved}, which is sharded over {cut}, and the partitioner hands it all of that "
        "instead of adding up partial sums",
        "take {cut} off {lost} of {array}, and shard another dimension with it{held}",
    ),
    ReasonKind.OPERAND_CONFLICT: _words(_conflict_sentence, advice=_conflict_advice),
    ReasonKind.NEEDS_WHOLE_DIMENSION: _words(
        "{consumer} needs {lost} of {moved} whole on each device, and it is sharded over {cut}", *_BEFORE_IT
    ),
    ReasonKind.INDEXED_IN_LOOP: _words(
        "{state}, and {consumer} indexes that dimension at a position that the loop decides, so every device needs all "
        "of it",
        advice=_index_advice,
    ),
    ReasonKind.HALO: _words(
        "{consumer} needs {neighbours} along {lost} of {moved}, which is sharded over {cut}", advice=_halo_advice
    ),
    ReasonKind.CONSTRAINT: _words(
        "the sharding constraint {constraint} asks for another sharding than that of {moved}",
        "drop or change the constraint: {asked}, and the array is {had}{held}",
    ),
    ReasonKind.REQUESTED_OUTPUT: _words(
        "{moved} is computed as {computed}, and the requested output is {requested}",
        "ask for the output as it is computed, {computed_as}, or leave its sharding open{held}",
    ),
    ReasonKind.MERGED_DIMENSIONS: _words(
        "{state}, and {consumer} {merges}",
        "shard the major one of the merged dimensions instead of {lost}{held}",
        "or keep the dimensions apart",
    ),
    ReasonKind.NO_RULE: _words(
        "Shardy has no sharding rule for {consumer}, so the partitioner {hands} {moved}, which is sharded over {cut}",
        advice=_no_rule_advice,
    ),
    ReasonKind.PARTITIONERS_CHOICE: _words(_choice_sentence, _SAY_HOW),
    ReasonKind.UNKNOWN: _words("not known: {missing}"),
}


def _named(operation: Operation | None, otherwise: str) -> str:
    """An operation with its place, ``dot_general` (moe.py:31)`."""
    if operation is None:
        return otherwise
    place = short_source(operation.source)
    return f"`{operation.name}`" + ("" if place is None else f" ({place})")


def _consumer_name(reason: Reason) -> str:
    return "" if reason.consumer is None else reason.consumer.name


def _moved(reason: Reason) -> str:
    return "`an array`" if reason.moved is None else f"`{notated(reason.moved)}`"


def _moved_spec(reason: Reason) -> str | None:
    return None if reason.moved is None else spec_of(reason.moved.sharding)


def _cut_operands(reason: Reason) -> str:
    """The operands that the axes of a collective cut."""
    return listed(
        [f"`{notated(operand)}`" for operand in reason.operands if axes_in(operand.sharding) & {*reason.axes}]
    )


def _demand(reason: Reason) -> str:
    """Who wants a sum, and how."""
    left, part = kept_axes(reason), part_words(reason)
    state = f"is sharded over {', '.join(left)}" if left else f"is replicated over {axes_words(reason)}"
    output = _asker(reason, "output")
    if output is not None:
        return f"the requested output {output.sharding or output.name} {state}"
    needed = f"its own part of the {part} along {', '.join(left)}" if left else f"the whole {part}"
    return f"{_named(reason.consumer, 'each device')} needs {needed}"


def _asker(reason: Reason, by: str) -> AskedBy | None:
    return next((asker for asker in reason.asked_by if asker.by == by), None)


def _conflicting(reason: Reason) -> str:
    """The conflicting dimension, and the array that the axes which move cut along it."""
    arrays = (*reason.operands, *([reason.result] if reason.result else ()))
    cut = (
        f" of `{notated(array)}`"
        for array in arrays
        for letter, axes in zip(array.letters, array.sharding or (), strict=False)
        if letter == reason.conflicting and {*axes} & {*reason.axes}
    )
    return dimension_of(reason.conflicting or "") + next(cut, "")


def _neighbours(reason: Reason) -> str:
    name = _consumer_name(reason)
    if name.startswith("cum"):
        return "what comes before each device's part"
    return "its neighbours' elements" if name.startswith(_WINDOWS) else "other devices' elements"


def _constraint(reason: Reason) -> str:
    asked = _asker(reason, "constraint")
    if asked is None:
        return str(spec_of(reason.wanted))
    return f"{asked.sharding} ({short_source(asked.source)})" if asked.source else str(asked.sharding)


def _requested(reason: Reason) -> str:
    asked = _asker(reason, "output")
    return str(spec_of(reason.wanted) if asked is None else asked.sharding)


def _merges(reason: Reason) -> str:
    if reason.moved is not None and all(reason.moved.shape[number] == 1 for number in reason.dimensions):
        return "drops this dimension"
    if reason.moved is not None and reason.result is not None and len(reason.result.shape) > len(reason.moved.shape):
        return f"splits it into {'x'.join(map(str, reason.result.shape))}, whose dimensions do not divide so"
    return "merges it into a dimension that cannot keep this sharding"


def _author(reason: Reason) -> str:
    backward = reason.producer is not None and is_gradient(reason.producer.op_name)
    return "the transpose of what the user wrote there" if backward else "written by the user"


def _held(reason: Reason) -> str:
    words = "; ".join(dict.fromkeys(map(asked_words, reason.held_by)))
    return f" ({words})" if words else ""


_PIECES: dict[str, Callable[[Reason], str]] = {
    "are": lambda reason: "is" if len(reason.summed) == 1 else "are",
    "array": lambda reason: "the array" if reason.moved is None else reason.moved.name,
    "asked": lambda reason: next(map(asked_words, reason.asked_by), "the sharding constraint"),
    "author": _author,
    "axes": axes_words,
    "because": lambda reason: "".join(f", because {asked_words(asker)}" for asker in reason.asked_by[:1]),
    "computed": lambda reason: _moved_spec(reason) or "another sharding",
    "computed_as": lambda reason: str(_moved_spec(reason)),
    "conflicting": _conflicting,
    "constraint": _constraint,
    "consumer": lambda reason: _named(reason.consumer, "an operation"),
    "contracted": lambda reason: f"dimension{'s' * (len(reason.summed) > 1)} {listed(reason.summed)}",
    "cut": cut_words,
    "cut_operands": _cut_operands,
    "demand": _demand,
    "elsewhere": lambda reason: elsewhere_words(reason) or "",
    "had": lambda reason: _moved_spec(reason) or "sharded otherwise",
    "hands": lambda reason: "decides what moves of" if reason.of_part else "hands it all of",
    "held": _held,
    "lost": lost_words,
    "made_from": lambda reason: f", made from this {reason.rewritten_from}" if reason.rewritten_from else "",
    "maker": lambda reason: "the operation" if reason.producer is None else reason.producer.name,
    "merges": _merges,
    "missing": lambda reason: str(reason.missing),
    "moved": _moved,
    "neighbours": _neighbours,
    "operation": lambda reason: _consumer_name(reason) or "the operation",
    "part": part_words,
    "producer": lambda reason: _named(reason.producer, "an operation"),
    "requested": _requested,
    "state": lambda reason: f"{_moved(reason)} is sharded along {lost_words(reason)} over {cut_words(reason)}",
    "summed": summed_words,
    "sums": lambda reason: "looks up along" if _consumer_name(reason) in _LOOKUPS else "sums over",
    "weight": lambda reason: "" if reason.weight is None else f"`{notated(reason.weight)}`",
    "written": lambda reason: _named(reason.producer, "`a collective`"),
}
