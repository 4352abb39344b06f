"""Reasons in words: one or two sentences why a collective is there, and code changes that may avoid it.

Both are made from typed evidence only. Changes of shardings are tried (`hloscope.search`); the untried advice here only
covers changes that rewrite the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.analysis.model.reason import AskedBy, Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import REDUCING, Kind
from hloscope.shardy.graph import axes_in
from hloscope.shardy.names import is_gradient
from hloscope.shardy.tensors import render_spec
from hloscope.why.phrases import (
    CONTRACTIONS,
    find_kept_axes,
    is_partial_step,
    join_words,
    render_array,
    render_axes,
    render_cutting_axes,
    render_letter,
    render_lost_dimensions,
    render_needed_elsewhere,
    render_partial_value,
    render_request,
    render_summed_dimensions,
)

_NAMED_OTHERS = 3
_LOOKUPS = ("gather", "take")
_WINDOWS = ("conv_general_dilated", "reduce_window", "select_and_scatter")
_FOREIGN = ("_call", "callback")
_BROUGHT_WHOLE = (ReasonKind.OPERAND_CONFLICT, ReasonKind.INDEXED_IN_LOOP)


def render_sentence(reason: Reason, kind: Kind, others: Sequence[Tensor | None] = ()) -> str:
    """The reason for a collective of this kind, in the user's terms.

    The text starts with "likely" if the link from the compiled collective to the program is inferred, and says "not
    known" if there is none.

    Args:
        reason: The evidence; for a combined collective, that of its largest part.
        kind: The kind of the collective.
        others: The arrays of the other parts, None for an unknown one; empty if they were not examined.
    """
    template = _SENTENCES[reason.kind]
    body = (template if isinstance(template, str) else template(reason)).format_map(_SentencePieces(reason))
    if reason.realigns is not None:
        over = render_axes(reason)
        return f"likely: realigns the padded shards that %{reason.realigns} leaves: {kind} over {over}. {body}"
    if reason.kind is ReasonKind.UNKNOWN:
        return body
    more = _render_combined(reason, others)
    if reason.kind is ReasonKind.AUTHORED:
        return f"{body}{more}"
    doubt = "" if reason.certain else "likely: "
    several = f" (one of {reason.candidates} possible places)" if reason.candidates > reason.combined else ""
    was = reason.rewritten_from if reason.rewritten_from != kind else None
    made = f", rewritten from the partitioner's {was}" if was else ""
    how = _render_manner(reason, kind)
    return f"{doubt}{body}: {kind} over {render_axes(reason)}{_render_loop(reason)}{how}{made}{more}{several}"


def _render_manner(reason: Reason, kind: Kind) -> str:
    """The way in which the collective serves its reason, if it is not obvious."""
    if reason.kind is not ReasonKind.PARTIAL_SUM:
        if kind in REDUCING and reason.certain:
            return ", with zeros from the devices that lack them"
        return ", one of several steps" if is_partial_step(reason, kind) else ""
    if kind is Kind.ALL_GATHER and reason.rewritten_from in (None, kind):
        return f" of the partial {render_partial_value(reason)}s, which every device then combines itself"
    if kind is Kind.REDUCE_SCATTER and not find_kept_axes(reason):
        return ", the first half of an all-reduce"
    return ", where a reduce-scatter would be enough" if kind is Kind.ALL_REDUCE and find_kept_axes(reason) else ""


def _render_combined(reason: Reason, others: Sequence[Tensor | None]) -> str:
    """The number of other transfers in the same collective, and their arrays if there are few."""
    count = reason.combined - 1
    if count < 1:
        return ""
    names = dict.fromkeys(f"`{render_array(other)}`" for other in others if other is not None)
    if count == len(others) and None not in others and len(names) <= _NAMED_OTHERS:
        among = f" of {join_words(list(names))}"
        return (
            f", combined with {'that' if count == 1 else f'{count} others' if count > len(names) else 'those'}{among}"
        )
    return f", combined with {'another' if count == 1 else f'{count} others'}"


def _render_loop(reason: Reason) -> str:
    if not reason.in_loop:
        return ""
    return (
        " in every iteration, even though the value is loop-invariant"
        if reason.loop_invariant
        else " in every iteration"
    )


def suggest_changes(reason: Reason) -> tuple[str, ...]:
    """Possible code changes, none of which was tried; empty if only shardings can be changed."""
    kind, array = reason.kind, _render_moved_array(reason)
    found: list[str] = []
    if kind in _BROUGHT_WHOLE and reason.loop_invariant:
        found.append(f"gather {array} once, with a constraint before the loop: every device then holds all of it")
    if kind is ReasonKind.INDEXED_IN_LOOP:
        found.append("send the other operand to the shard that it needs: an all-to-all under jax.shard_map")
    if kind is ReasonKind.CONSTRAINT and _render_consumer(reason) == "reshard":
        found.append(
            f"drop the reshard to {_name_constraint(reason)}, so that the array keeps the sharding it is computed with"
        )
    if kind is ReasonKind.MERGED_DIMENSIONS:
        found.append("keep the dimensions separate")
    if kind is ReasonKind.NO_RULE and _render_consumer(reason).endswith(_FOREIGN):
        found.append("call it under jax.shard_map, so that each device passes its own shard")
        found.append("give it a sharding rule: jax.experimental.custom_partitioning with a sharding_rule")
    elif kind in (ReasonKind.NO_RULE, ReasonKind.NEEDS_WHOLE_DIMENSION):
        does = _render_consumer(reason) or "the operation"
        found.append(f"run {does} shard by shard under jax.shard_map, where a shard is enough")
    return tuple(found)


class _SentencePieces(dict[str, str]):
    """Values for the braces of a template, made on demand; the user's names are inserted here."""

    def __init__(self, reason: Reason) -> None:
        self._reason = reason

    def __missing__(self, name: str) -> str:
        return _PIECES[name](self._reason)


def _render_sum_sentence(reason: Reason) -> str:
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


def _render_conflict_sentence(reason: Reason) -> str:
    if render_needed_elsewhere(reason) is not None:
        return "{state}, but {consumer} needs it {elsewhere}{because}"
    whole = "{state}, but {consumer} needs it replicated over {cut}"
    return whole if reason.conflicting is None else whole + ", because {conflicting} is sharded over {cut} too"


def _render_choice_sentence(reason: Reason) -> str:
    what = "to return {moved}" if reason.consumer is None else "for {consumer}"
    way = f"the partitioner's own choice {what}, not required by Shardy's shardings"
    return way if reason.moved is None or reason.consumer is None else way + ": {moved} is sharded over {cut}"


_SENTENCES: dict[ReasonKind, str | Callable[[Reason], str]] = {
    ReasonKind.AUTHORED: "{author}: {written} over {axes}{made_from}",
    ReasonKind.PARTIAL_SUM: _render_sum_sentence,
    ReasonKind.OPERAND_CONFLICT: _render_conflict_sentence,
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
    ReasonKind.PARTITIONERS_CHOICE: _render_choice_sentence,
    ReasonKind.UNKNOWN: "not known: {missing}",
}
"""The sentences by kind: a template with pieces of the reason in braces, or a function that chooses one."""


def _render_operation(operation: Operation | None, otherwise: str) -> str:
    """Renders an operation with its place, ``dot_general` (moe.py:31)`."""
    if operation is None:
        return otherwise
    place = short_source(operation.source)
    return f"`{operation.name}`" + ("" if place is None else f" ({place})")


def _render_moved_array(reason: Reason) -> str:
    return "the array" if reason.moved is None else reason.moved.name


def _render_consumer(reason: Reason) -> str:
    return "" if reason.consumer is None else reason.consumer.name


def _render_moved(reason: Reason) -> str:
    return "`an array`" if reason.moved is None else f"`{render_array(reason.moved)}`"


def _render_moved_spec(reason: Reason) -> str | None:
    return None if reason.moved is None else render_spec(reason.moved.sharding)


def _render_cut_operands(reason: Reason) -> str:
    """The operands that the axes of a collective cut."""
    return join_words(
        [f"`{render_array(operand)}`" for operand in reason.operands if axes_in(operand.sharding) & {*reason.axes}]
    )


def _render_demand(reason: Reason) -> str:
    """The consumer of a sum, and the form that it needs."""
    left, part = find_kept_axes(reason), render_partial_value(reason)
    state = f"is sharded over {', '.join(left)}" if left else f"is replicated over {render_axes(reason)}"
    output = _find_asker_by(reason, "output")
    if output is not None:
        return f"the requested output {output.sharding or output.name} {state}"
    needed = f"only its own shard of the {part} over {', '.join(left)}" if left else f"the full {part}"
    return f"{_render_operation(reason.consumer, 'each device')} needs {needed}"


def _find_asker_by(reason: Reason, by: str) -> AskedBy | None:
    return next((asker for asker in reason.asked_by if asker.by == by), None)


def _render_conflicting(reason: Reason) -> str:
    """The conflicting dimension, and the array that the moving axes cut along it."""
    arrays = (*reason.operands, *([reason.result] if reason.result else ()))
    cut = (
        f" of `{render_array(array)}`"
        for array in arrays
        for letter, axes in zip(array.letters, array.sharding or (), strict=False)
        if letter == reason.conflicting and {*axes} & {*reason.axes}
    )
    return render_letter(reason.conflicting or "") + next(cut, "")


def _render_neighbors(reason: Reason) -> str:
    name = _render_consumer(reason)
    if name.startswith("cum"):
        return "the elements before each device's shard"
    return "its neighbors' elements" if name.startswith(_WINDOWS) else "other devices' elements"


def _name_constraint(reason: Reason) -> str:
    asked = _find_asker_by(reason, "constraint")
    if asked is None:
        return str(render_spec(reason.wanted))
    return f"{asked.sharding} ({short_source(asked.source)})" if asked.source else str(asked.sharding)


def _render_requested(reason: Reason) -> str:
    asked = _find_asker_by(reason, "output")
    return str(render_spec(reason.wanted) if asked is None else asked.sharding)


def _render_merges(reason: Reason) -> str:
    if reason.moved is not None and all(reason.moved.shape[number] == 1 for number in reason.dimensions):
        return "drops this dimension"
    if reason.moved is not None and reason.result is not None and len(reason.result.shape) > len(reason.moved.shape):
        return f"splits it into {'x'.join(map(str, reason.result.shape))}, which cannot keep this sharding"
    return "merges it into a dimension that cannot keep this sharding"


def _render_author(reason: Reason) -> str:
    backward = reason.producer is not None and is_gradient(reason.producer.op_name)
    return "the transpose of a collective written by the user" if backward else "written by the user"


_PIECES: dict[str, Callable[[Reason], str]] = {
    "are": lambda reason: "is" if len(reason.summed) == 1 else "are",
    "author": _render_author,
    "axes": render_axes,
    "because": lambda reason: "".join(f", because {render_request(asker)}" for asker in reason.asked_by[:1]),
    "computed": lambda reason: _render_moved_spec(reason) or "another sharding",
    "conflicting": _render_conflicting,
    "constraint": _name_constraint,
    "consumer": lambda reason: _render_operation(reason.consumer, "an operation"),
    "contracted": lambda reason: f"dimension{'s' * (len(reason.summed) > 1)} {join_words(reason.summed)}",
    "cut": render_cutting_axes,
    "cut_operands": _render_cut_operands,
    "demand": _render_demand,
    "elsewhere": lambda reason: render_needed_elsewhere(reason) or "",
    "hands": lambda reason: "decides what to move of" if reason.of_part else "passes it all of",
    "lost": render_lost_dimensions,
    "made_from": lambda reason: f", rewritten from this {reason.rewritten_from}" if reason.rewritten_from else "",
    "merges": _render_merges,
    "missing": lambda reason: str(reason.missing),
    "moved": _render_moved,
    "neighbors": _render_neighbors,
    "part": render_partial_value,
    "producer": lambda reason: _render_operation(reason.producer, "an operation"),
    "requested": _render_requested,
    "state": lambda reason: (
        f"{_render_moved(reason)} is sharded along {render_lost_dimensions(reason)} over {render_cutting_axes(reason)}"
    ),
    "summed": render_summed_dimensions,
    "weight": lambda reason: "" if reason.weight is None else f"`{render_array(reason.weight)}`",
    "written": lambda reason: _render_operation(reason.producer, "`a collective`"),
}
