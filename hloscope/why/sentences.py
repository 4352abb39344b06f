"""Each reason in words: in one or two sentences why a collective is there, and which change of code may do without it.

Both are made from the typed evidence and from nothing else. Changes of shardings are tried (`hloscope.search`); what
is advised here unseen are only those that rewrite the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.analysis.model.reason import AskedBy, Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.shardy.graph import axes_in
from hloscope.shardy.names import is_gradient
from hloscope.shardy.tensors import spec_of
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

_NAMED_OTHERS = 3
_LOOKUPS = ("gather", "take")
_WINDOWS = ("conv_general_dilated", "reduce_window", "select_and_scatter")
_FOREIGN = ("_call", "callback")
_BROUGHT_WHOLE = (ReasonKind.OPERAND_CONFLICT, ReasonKind.INDEXED_IN_LOOP)


def sentence(reason: Reason, kind: Kind, others: Sequence[Tensor | None] = ()) -> str:
    """Why a collective of this kind is there, in the user's terms.

    It begins with "likely" where the link from the compiled collective to the program is inferred, and says "not
    known" where there is none.

    Args:
        reason: The evidence; of a collective that the compiler combined from several, that for its largest part.
        kind: What it does.
        others: The arrays of the other parts, None for one that is not known; empty when nobody looked at them.
    """
    template = _SENTENCES[reason.kind]
    body = (template if isinstance(template, str) else template(reason)).format_map(_Pieces(reason))
    if reason.realigns is not None:
        over = axes_words(reason)
        return f"likely: realigns the padded shards that %{reason.realigns} leaves: {kind} over {over}. {body}"
    if reason.kind is ReasonKind.UNKNOWN:
        return body
    more = _combined_with(reason, others)
    if reason.kind is ReasonKind.AUTHORED:
        return f"{body}{more}"
    doubt = "" if reason.certain else "likely: "
    several = f" (one of {reason.candidates} possible places)" if reason.candidates > reason.combined else ""
    was = reason.rewritten_from if reason.rewritten_from != kind else None
    made = f", rewritten from the partitioner's {was}" if was else ""
    how = _how(reason, kind)
    return f"{doubt}{body}: {kind} over {axes_words(reason)}{_in_loop(reason)}{how}{made}{more}{several}"


def _how(reason: Reason, kind: Kind) -> str:
    """How the collective serves its reason, where that is not plain."""
    if reason.kind is not ReasonKind.PARTIAL_SUM:
        if kind in SUMS and reason.certain:
            return ", with zeros from the devices that lack them"
        return ", one of several steps" if is_step(reason, kind) else ""
    if kind is Kind.ALL_GATHER and reason.rewritten_from in (None, kind):
        return f" of the partial {part_words(reason)}s, which every device then combines itself"
    if kind is Kind.REDUCE_SCATTER and not kept_axes(reason):
        return ", the first half of an all-reduce"
    return ", where a reduce-scatter would be enough" if kind is Kind.ALL_REDUCE and kept_axes(reason) else ""


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
    return (
        " in every iteration, even though the value is loop-invariant"
        if reason.loop_invariant
        else " in every iteration"
    )


def advice(reason: Reason) -> tuple[str, ...]:
    """Changes of the code worth a thought, none of which was tried; none where only shardings can be changed."""
    kind, array = reason.kind, _array(reason)
    found: list[str] = []
    if kind in _BROUGHT_WHOLE and reason.loop_invariant:
        found.append(f"gather {array} once, with a constraint before the loop: every device then holds all of it")
    if kind is ReasonKind.INDEXED_IN_LOOP:
        found.append("send the other operand to the shard that it needs: an all-to-all under jax.shard_map")
    if kind is ReasonKind.CONSTRAINT and _consumer_name(reason) == "reshard":
        found.append(
            f"drop the reshard to {_constraint(reason)}, so that the array keeps the sharding it is computed with"
        )
    if kind is ReasonKind.MERGED_DIMENSIONS:
        found.append("keep the dimensions separate")
    if kind is ReasonKind.NO_RULE and _consumer_name(reason).endswith(_FOREIGN):
        found.append("call it under jax.shard_map, so that each device passes its own shard")
        found.append("give it a sharding rule: jax.experimental.custom_partitioning with a sharding_rule")
    elif kind in (ReasonKind.NO_RULE, ReasonKind.NEEDS_WHOLE_DIMENSION):
        does = _consumer_name(reason) or "the operation"
        found.append(f"run {does} shard by shard under jax.shard_map, where a shard is enough")
    return tuple(found)


class _Pieces(dict[str, str]):
    """What stands in braces in a template, each piece made when it is asked for; names of the user's come in here."""

    def __init__(self, reason: Reason) -> None:
        self._reason = reason

    def __missing__(self, name: str) -> str:
        return _PIECES[name](self._reason)


def _sum_sentence(reason: Reason) -> str:
    if reason.weight is not None:
        return "{weight} is replicated over {axes}, so its gradient is summed there; {producer} computes it"
    if reason.producer is None:
        return "{moved} is a partial sum on each device; {demand}"
    if not reason.summed:
        start = "{producer} computes only a part of the result on each device along {axes}"
    elif reason.producer.name in CONTRACTIONS:
        start = "contracting {contracted} of {cut_operands} {are} sharded over {axes}"
    else:
        does = "indexes" if reason.producer.name in _LOOKUPS else "reduces over"
        start = f"{{producer}} {does} {{summed}} of {{cut_operands}}, sharded over {{axes}}"
    return start + ", so each device holds a partial {part}; {demand}"


def _conflict_sentence(reason: Reason) -> str:
    if elsewhere_words(reason) is not None:
        return "{state}, but {consumer} needs it {elsewhere}{because}"
    whole = "{state}, but {consumer} needs it replicated over {cut}"
    return whole if reason.conflicting is None else whole + ", because {conflicting} is sharded over {cut} too"


def _choice_sentence(reason: Reason) -> str:
    what = "to return {moved}" if reason.consumer is None else "for {consumer}"
    way = f"the partitioner's own choice {what}, not required by Shardy's shardings"
    return way if reason.moved is None or reason.consumer is None else way + ": {moved} is sharded over {cut}"


_SENTENCES: dict[ReasonKind, str | Callable[[Reason], str]] = {
    ReasonKind.AUTHORED: "{author}: {written} over {axes}{made_from}",
    ReasonKind.PARTIAL_SUM: _sum_sentence,
    ReasonKind.OPERAND_CONFLICT: _conflict_sentence,
    ReasonKind.NEEDS_WHOLE_DIMENSION: "{consumer} needs all of {lost} of {moved} on each device, but it is sharded "
    "over {cut}",
    ReasonKind.INDEXED_IN_LOOP: "{state}, but {consumer} indexes that dimension at a position that changes in the "
    "loop, so every device needs all of it",
    ReasonKind.HALO: "{consumer} needs {neighbors} along {lost} of {moved}, which is sharded over {cut}",
    ReasonKind.CONSTRAINT: "the sharding constraint {constraint} requests a different sharding for {moved}",
    ReasonKind.REQUESTED_OUTPUT: "{moved} is computed as {computed}, but the requested output sharding is {requested}",
    ReasonKind.MERGED_DIMENSIONS: "{state}, but {consumer} {merges}",
    ReasonKind.NO_RULE: "Shardy has no sharding rule for {consumer}, so the partitioner {hands} {moved}, which is "
    "sharded over {cut}",
    ReasonKind.PARTITIONERS_CHOICE: _choice_sentence,
    ReasonKind.UNKNOWN: "not known: {missing}",
}
"""By kind: a template with pieces of the reason in braces, or what chooses one."""


def _named(operation: Operation | None, otherwise: str) -> str:
    """An operation with its place, ``dot_general` (moe.py:31)`."""
    if operation is None:
        return otherwise
    place = short_source(operation.source)
    return f"`{operation.name}`" + ("" if place is None else f" ({place})")


def _array(reason: Reason) -> str:
    return "the array" if reason.moved is None else reason.moved.name


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
    needed = f"only its own shard of the {part} over {', '.join(left)}" if left else f"the full {part}"
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


def _neighbors(reason: Reason) -> str:
    name = _consumer_name(reason)
    if name.startswith("cum"):
        return "the elements before each device's shard"
    return "its neighbors' elements" if name.startswith(_WINDOWS) else "other devices' elements"


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
        return f"splits it into {'x'.join(map(str, reason.result.shape))}, which cannot keep this sharding"
    return "merges it into a dimension that cannot keep this sharding"


def _author(reason: Reason) -> str:
    backward = reason.producer is not None and is_gradient(reason.producer.op_name)
    return "the transpose of a collective written by the user" if backward else "written by the user"


_PIECES: dict[str, Callable[[Reason], str]] = {
    "are": lambda reason: "is" if len(reason.summed) == 1 else "are",
    "author": _author,
    "axes": axes_words,
    "because": lambda reason: "".join(f", because {asked_words(asker)}" for asker in reason.asked_by[:1]),
    "computed": lambda reason: _moved_spec(reason) or "another sharding",
    "conflicting": _conflicting,
    "constraint": _constraint,
    "consumer": lambda reason: _named(reason.consumer, "an operation"),
    "contracted": lambda reason: f"dimension{'s' * (len(reason.summed) > 1)} {listed(reason.summed)}",
    "cut": cut_words,
    "cut_operands": _cut_operands,
    "demand": _demand,
    "elsewhere": lambda reason: elsewhere_words(reason) or "",
    "hands": lambda reason: "decides what to move of" if reason.of_part else "passes it all of",
    "lost": lost_words,
    "made_from": lambda reason: f", rewritten from this {reason.rewritten_from}" if reason.rewritten_from else "",
    "merges": _merges,
    "missing": lambda reason: str(reason.missing),
    "moved": _moved,
    "neighbors": _neighbors,
    "part": part_words,
    "producer": lambda reason: _named(reason.producer, "an operation"),
    "requested": _requested,
    "state": lambda reason: f"{_moved(reason)} is sharded along {lost_words(reason)} over {cut_words(reason)}",
    "summed": summed_words,
    "weight": lambda reason: "" if reason.weight is None else f"`{notated(reason.weight)}`",
    "written": lambda reason: _named(reason.producer, "`a collective`"),
}
