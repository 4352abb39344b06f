"""Reasons in words: one or two sentences why a collective is there, and code changes that may avoid it.

Both are made from typed evidence only. Changes of shardings are tried (`hloscope.search`); the untried advice here only
covers changes that rewrite the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.analysis.provenance import find_jax_name, is_gradient, short_source
from hloscope.model import Analysis, Collective, Collectives
from hloscope.model.capture import axes_in, find_whole_axes, remove_axes, render_spec, whole_axis
from hloscope.model.collectives import change_collective
from hloscope.model.reason import AskedBy, Axes, Operation, Reason, ReasonKind, Tensor
from hloscope.model.vocabulary import REDUCING, Kind, Origin

# ---- phrases shared by sentences, chains and advice: dimensions, axes and requests in words, and arrays in notation
#
# The notation is that of the scaling literature: `Out[B_X, F] {U_Y} = In[B_X, D_Y] *_D W[D_Y, F]`. Source: "How to
# Scale Your Model", chapter "Sharded Matrices and How to Multiply Them": a subscript names the mesh axes that cut a
# dimension, `{U_Y}` marks an array whose partial sums the devices along Y hold.

_PARTED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
"""The kinds that the partitioner may carry out step by step, with permutes during a product."""
_WANT_WHOLE = (ReasonKind.OPERAND_CONFLICT, ReasonKind.NEEDS_WHOLE_DIMENSION, ReasonKind.INDEXED_IN_LOOP)
CONTRACTIONS = ("dot_general", "dot")
_PARTS = {
    "reduce": "result",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "argmax": "result",
    "argmin": "result",
    "reduce_prod": "product",
    "reduce_and": "result",
    "reduce_or": "result",
}


def render_array(tensor: Tensor, sharding: tuple[Axes, ...] | None = None) -> str:
    """Renders `In[B_X, D_Y]`; with another sharding than its own if one is given."""
    cut = tensor.sharding if sharding is None else sharding
    name = tensor.name.replace(" ", "_") if not tensor.named else tensor.name
    partial = f" {{U_{render_subscript(tensor.partial_over)}}}" if tensor.partial_over and sharding is None else ""
    entries = [
        letter if not axes else f"{letter}_{render_subscript(axes)}"
        for letter, axes in zip(tensor.letters, cut or ((),) * len(tensor.letters), strict=True)
    ]
    return f"{name}[{', '.join(entries)}]{partial}"


def render_subscript(axes: Axes) -> str:
    """Renders `X`, or `(X,Y)` for several axes."""
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"


def render_equations(reason: Reason, kind: Kind) -> tuple[str, ...]:
    """Renders the move of the array, one equation per step; empty if the array is unknown."""
    is_known = reason.moved is not None and kind is not Kind.OPAQUE and reason.kind is not ReasonKind.AUTHORED
    if not is_known or reason.of_part or reason.realigns is not None or is_partial_step(reason, kind):
        return ()
    assert reason.moved is not None
    if kind is Kind.COLLECTIVE_PERMUTE and reason.rewritten_from in _PARTED:
        kind = Kind(reason.rewritten_from)  # permutes that do it step by step during the product
    moved, words = reason.moved, kind.removeprefix("collective-").split("-")
    function = f"{''.join(map(str.capitalize, words))}_{render_subscript(reason.axes)}"  # `AllGather_X`, `Permute_X`
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in REDUCING:
        whole = f"{_render_producer(reason)}({function}({render_array(moved)}))"
        return (f"{render_array(moved)} = {_render_call(reason)}", f"{render_array(moved, moved.sharding)} = {whole}")
    if reason.kind is not ReasonKind.PARTIAL_SUM and kind in REDUCING:
        return ()  # not a real sum: elements and zeros, as a way to pass them on
    if reason.kind is ReasonKind.PARTIAL_SUM and reason.wanted is None:
        return ()  # inside shard_map, where arrays are per device
    if reason.kind is ReasonKind.PARTIAL_SUM:
        made = () if reason.producer is None else (f"{render_array(moved)} = {_render_call(reason)}",)
        return (*made, *_render_sum(reason, moved, kind, function))
    left = find_sharding_left(reason, moved, kind)
    if left is None:
        return (f"{function}({render_array(moved)})",)
    resharded = f"{render_array(moved, left)} = {function}({render_array(moved)})"
    if reason.result is None or not _is_contraction(reason):
        return (resharded,)
    operands = [
        replace(operand, sharding=left) if number == reason.operand else operand
        for number, operand in enumerate(reason.operands)
    ]
    contracted = _find_contracted(reason)
    result = replace(reason.result, partial_over=_find_summed_axes(operands, contracted))
    return (
        resharded,
        f"{render_array(result)} = {_render_product([render_array(operand) for operand in operands], contracted)}",
    )


def _render_sum(reason: Reason, moved: Tensor, kind: Kind, function: str) -> tuple[str, ...]:
    """The equation that sums the parts, and the free slice after an all-reduce if only a part of it is needed.

    If several collectives sum over one axis each, every one is described separately.
    """
    rest = tuple(axis for axis in moved.partial_over if axis not in reason.axes)
    here = replace(moved, partial_over=reason.axes)
    if kind is Kind.REDUCE_SCATTER and not axes_in(reason.wanted) & {*reason.axes}:
        return ()  # the first half of an all-reduce: the compiler decides where each part goes
    if kind is Kind.REDUCE_SCATTER:
        return (f"{render_array(moved, reason.wanted)} = {function}({render_array(here)})",)
    summed = f"{render_array(moved, moved.sharding)} = {function}({render_array(here)})"
    wanted, had = reason.wanted or (), moved.sharding or ()
    cut = tuple(axis for axes in wanted for axis in axes if axis in reason.axes)
    is_cut = all(gets[: len(held)] == held for held, gets in zip(had, wanted, strict=False))
    if rest or not cut or not is_cut:
        return (summed,)
    return (summed, f"{render_array(moved, wanted)} = Slice_{render_subscript(cut)}({render_array(moved, had)})")


def is_partial_step(reason: Reason, kind: Kind) -> bool:
    """Returns whether a collective does only a part of what the reason demands, and others do the rest.

    An all-to-all takes its own axes off the end of one dimension and puts them at the end of another; a permute leaves
    each dimension in as many parts as it is.
    """
    had = None if reason.moved is None else reason.moved.sharding
    if had is None or reason.kind is ReasonKind.PARTIAL_SUM or reason.rewritten_from in _PARTED:
        return False
    if reason.wanted is None:
        return kind is Kind.COLLECTIVE_PERMUTE and reason.kind in _WANT_WHOLE
    pairs = tuple(zip(had, reason.wanted, strict=False))
    if kind is Kind.COLLECTIVE_PERMUTE:
        there = axes_in(had) | axes_in(reason.wanted)
        return not {*reason.axes} <= there or any(len(before) != len(after) for before, after in pairs)
    if kind is not Kind.ALL_TO_ALL:
        return False
    kept = zip(remove_axes(had, reason.axes), remove_axes(reason.wanted, reason.axes), strict=False)
    return any(
        rest != left or before[: len(rest)] != rest or after[: len(left)] != left
        for (before, after), (rest, left) in zip(pairs, kept, strict=True)
    )


def find_sharding_left(reason: Reason, moved: Tensor, kind: Kind) -> tuple[Axes, ...] | None:
    """The sharding after a collective: a gather gives up its axes, wherever Shardy would have moved them."""
    had = moved.sharding
    if kind is not Kind.ALL_GATHER or had is None or not {*reason.axes} <= axes_in(had):
        return reason.wanted
    return remove_axes(had, reason.axes)


def _find_summed_axes(operands: list[Tensor], summed: tuple[str, ...]) -> Axes:
    """The axes that cut a summed dimension of both operands, so that the product is a partial sum over them."""
    each = [
        [
            axis
            for letter, axes in zip(operand.letters, operand.sharding or (), strict=False)
            if letter in summed
            for axis in axes
        ]
        for operand in operands
    ]
    return tuple(axis for axis in each[0] if axis in each[1])


def _render_call(reason: Reason) -> str:
    operands = [render_array(operand) for operand in reason.operands]
    if len(operands) == 2 and reason.producer is not None and reason.producer.name in CONTRACTIONS:
        return _render_product(operands, _find_contracted(reason))
    return f"{_render_producer(reason)}({', '.join(operands)})"


def _render_producer(reason: Reason) -> str:
    return "sum" if reason.producer is None else reason.producer.name


def _find_contracted(reason: Reason) -> tuple[str, ...]:
    """The dimensions that a product sums over: those that both operands have and the result lacks."""
    left, right = (operand.letters for operand in reason.operands)
    kept = () if reason.result is None else reason.result.letters
    return tuple(letter for letter in left if letter in right and letter not in kept) or reason.summed


def _render_product(operands: list[str], summed: tuple[str, ...]) -> str:
    return f" *_{render_subscript(summed)} ".join(operands) if summed else f"dot_general({', '.join(operands)})"


def _is_contraction(reason: Reason) -> bool:
    return reason.consumer is not None and reason.consumer.name in CONTRACTIONS and len(reason.operands) == 2


def render_request(asked: AskedBy) -> str:
    """Renders `argument W requests P('X', None)`, `the sharding constraint at moe.py:31 requests P('X')`."""
    place = f" at {short_source(asked.source)}" if asked.source else ""
    who = {"argument": f"argument {asked.name}", "output": f"output {asked.name}"}.get(
        asked.by, f"the {asked.by.replace('constraint', 'sharding constraint')}{place}"
    )
    return f"{who} requests {asked.sharding}" if asked.sharding else f"{who} requests axis {asked.axis}"


def render_axes(reason: Reason) -> str:
    """Renders `X, Y`."""
    return ", ".join(reason.axes) if reason.axes else "no axis"


def render_cutting_axes(reason: Reason) -> str:
    """The axes that cut the moved array, which need not be all axes that data moves over."""
    had = () if reason.moved is None else reason.moved.sharding or ()
    cut = find_whole_axes(axis for number in reason.dimensions for axis in had[number])
    return ", ".join(axis for axis in reason.axes if whole_axis(axis) in cut) or render_axes(reason)


def find_kept_axes(reason: Reason) -> tuple[str, ...]:
    """The axes of a partial sum over which only parts of the sum are needed."""
    wanted = axes_in(reason.wanted) if reason.kind is ReasonKind.PARTIAL_SUM else ()
    return tuple(axis for axis in reason.axes if axis in wanted)


def render_summed_dimensions(reason: Reason) -> str:
    """The summed dimensions, by letter, or by number and size in the array."""
    if reason.operands and reason.dimensions and any(letter.isdigit() for letter in reason.summed):
        return join_words([render_dimension(reason.operands[0], number) for number in dict.fromkeys(reason.dimensions)])
    return join_words([render_letter(letter) for letter in reason.summed]) if reason.summed else "the summed dimension"


def render_partial_value(reason: Reason) -> str:
    """The partial value that each device holds: a sum, or another result of the operation."""
    return _PARTS.get(reason.producer.name if reason.producer else "", "sum")


def render_lost_dimensions(reason: Reason) -> str:
    """The dimensions that lose their axes, by letter, or by number and size."""
    if reason.moved is None or not reason.dimensions:
        return "a dimension"
    return join_words([render_dimension(reason.moved, number) for number in reason.dimensions])


def render_needed_elsewhere(reason: Reason) -> str | None:
    """The needed position of the moving axes if the array keeps them: along another dimension, or in another order."""
    if reason.moved is None or reason.wanted is None:
        return None
    had, own = reason.moved.sharding or (), find_whole_axes(reason.axes)
    lost = {axis for number in reason.dimensions for axis in had[number] if whole_axis(axis) in own}
    found = [number for number, axes in enumerate(reason.wanted) if lost & {*axes}]
    if not lost or not lost <= {axis for number in found for axis in reason.wanted[number]}:
        return None
    if found == list(reason.dimensions):
        order = "; ".join(", ".join(reason.wanted[number]) for number in found)
        return f"with these axes in the order {order}"
    return f"sharded along {join_words([render_dimension(reason.moved, number) for number in found])} instead"


def render_dimension(tensor: Tensor, number: int) -> str:
    """Renders `D`, or `dimension 0 (2048)` if it has no letter."""
    letter = tensor.letters[number]
    return letter if not letter.isdigit() else f"dimension {number} ({letter})"


def render_letter(letter: str) -> str:
    """Renders `D`, or `the dimension of 2048` if it has no letter."""
    return letter if not letter.isdigit() else f"the dimension of {letter}"


def join_words(words: Sequence[str]) -> str:
    """Renders `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "an array"


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
    body = _render_cause(reason)
    if reason.realigns is not None:
        over = render_axes(reason)
        return f"likely: realigns the padded shards that %{reason.realigns} leaves: {kind} over {over}. {body}"
    if reason.kind is ReasonKind.UNKNOWN:
        return body
    more = _render_combined(reason, others)
    if reason.kind is ReasonKind.AUTHORED:
        made = f", compiled to {'an' if kind[0] in 'ao' else 'a'} {kind}" if reason.rewritten_from else ""
        return f"{body}{made}{more}"
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
    kind, array = reason.kind, "the array" if reason.moved is None else reason.moved.name
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


def _render_cause(reason: Reason) -> str:
    """The cause in words; `_render_need` has those of an array that an operation needs in another sharding."""
    moved = _render_moved(reason)
    match reason.kind:
        case ReasonKind.AUTHORED:
            backward = reason.producer is not None and is_gradient(reason.producer.op_name)
            author = "the transpose of a collective written by the user" if backward else "written by the user"
            written = _render_operation(reason.producer, "`a collective`")
            return f"{author}: {written} over {render_axes(reason)}"
        case ReasonKind.PARTIAL_SUM:
            return _render_sum_cause(reason)
        case ReasonKind.CONSTRAINT:
            return f"the sharding constraint {_name_constraint(reason)} requests a different sharding for {moved}"
        case ReasonKind.REQUESTED_OUTPUT:
            had = None if reason.moved is None else render_spec(reason.moved.sharding)
            asked = _find_asker_by(reason, "output")
            wanted = render_spec(reason.wanted) if asked is None else asked.sharding
            return f"{moved} is computed as {had or 'another sharding'}, but the requested output sharding is {wanted}"
        case ReasonKind.PARTITIONERS_CHOICE:
            what = f"for {_render_operation(reason.consumer, '')}" if reason.consumer else f"to return {moved}"
            cut = (
                ""
                if None in (reason.moved, reason.consumer)
                else f": {moved} is sharded over {render_cutting_axes(reason)}"
            )
            return f"the partitioner's own choice {what}, not required by Shardy's shardings{cut}"
        case ReasonKind.UNKNOWN:
            return f"not known: {reason.missing}"
    return _render_need(reason, moved)


def _render_need(reason: Reason, moved: str) -> str:
    consumer, cut = _render_operation(reason.consumer, "an operation"), render_cutting_axes(reason)
    lost = render_lost_dimensions(reason)
    state = f"{moved} is sharded along {lost} over {cut}, but {consumer}"
    match reason.kind:
        case ReasonKind.NEEDS_WHOLE_DIMENSION if reason.of_part:
            return f"{consumer} works along {lost} of {moved}, which is sharded over {cut}, in several steps"
        case ReasonKind.NEEDS_WHOLE_DIMENSION:
            return f"{consumer} needs all of {lost} of {moved} on each device, but it is sharded over {cut}"
        case ReasonKind.INDEXED_IN_LOOP:
            why = "indexes that dimension at a position that changes in the loop, so every device needs all of it"
            return f"{state} {why}"
        case ReasonKind.HALO:
            return f"{consumer} needs {_render_neighbors(reason)} along {lost} of {moved}, which is sharded over {cut}"
        case ReasonKind.MERGED_DIMENSIONS:
            return f"{state} {_render_merges(reason)}"
        case ReasonKind.NO_RULE:
            does = f"{'decides what to move of' if reason.of_part else 'passes it all of'} {moved}"
            return (
                f"Shardy has no sharding rule for {consumer}, and the partitioner {does}, which is sharded over {cut}"
            )
    elsewhere = render_needed_elsewhere(reason)
    if elsewhere is not None:
        because = "".join(f", because {render_request(asker)}" for asker in reason.asked_by[:1])
        return f"{state} needs it {elsewhere}{because}"
    other = None if reason.conflicting is None else _render_conflicting(reason)
    return f"{state} needs it replicated over {cut}" + (f", because {other} is sharded over {cut} too" if other else "")


def _render_sum_cause(reason: Reason) -> str:
    axes, producer = render_axes(reason), _render_operation(reason.producer, "an operation")
    if reason.weight is not None:
        weight = f"`{render_array(reason.weight)}`"
        return f"{weight} is replicated over {axes}, so its gradient is summed there; {producer} computes it"
    demand = _render_demand(reason)
    if reason.producer is None:
        return f"{_render_moved(reason)} is a partial sum on each device; {demand}"
    if not reason.summed:
        start = f"{producer} computes only a part of the result on each device along {axes}"
    elif reason.producer.name in CONTRACTIONS:
        one = len(reason.summed) == 1
        contracted = f"dimension{'' if one else 's'} {join_words(reason.summed)} of {_render_cut_operands(reason)}"
        start = f"contracting {contracted} {'is' if one else 'are'} sharded over {axes}"
    else:
        does = f"{'indexes' if reason.producer.name in _LOOKUPS else 'reduces over'} {render_summed_dimensions(reason)}"
        start = f"{producer} {does} of {_render_cut_operands(reason)}, sharded over {axes}"
    return f"{start}, so each device holds a partial {render_partial_value(reason)}; {demand}"


def _render_operation(operation: Operation | None, otherwise: str) -> str:
    """Renders an operation with its place, ``dot_general` (moe.py:31)`."""
    if operation is None:
        return otherwise
    place = short_source(operation.source)
    return f"`{operation.name}`" + ("" if place is None else f" ({place})")


def _render_consumer(reason: Reason) -> str:
    return "" if reason.consumer is None else reason.consumer.name


def _render_moved(reason: Reason) -> str:
    return "`an array`" if reason.moved is None else f"`{render_array(reason.moved)}`"


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
    if _find_asker_by(reason, "constraint") is not None:
        return f"the sharding constraint {_name_constraint(reason)} requests {needed}"
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
        if letter == reason.conflicting and {*map(whole_axis, axes)} & {*map(whole_axis, reason.axes)}
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


def _render_merges(reason: Reason) -> str:
    if reason.moved is not None and all(reason.moved.shape[number] == 1 for number in reason.dimensions):
        return "drops this dimension"
    if reason.moved is not None and reason.result is not None and len(reason.result.shape) > len(reason.moved.shape):
        return f"splits it into {'x'.join(map(str, reason.result.shape))}, which cannot keep this sharding"
    return "merges it into a dimension that cannot keep this sharding"


# ---- collectives with their reasons; of HLO text without its program, all that is known is the user's own

_NOT_CAPTURED = (
    "HLO text keeps no shardings of the program it was compiled from; name the function itself (module:fn) to have it "
    "compiled and explained"
)


def explain_from_text(analysis: Analysis) -> Analysis:
    """Adds to every collective of HLO text what is known without its program: its author, or what is missing."""
    return replace(analysis, collectives=Collectives(_explain_alone(final) for final in analysis.collectives))


def _explain_alone(final: Collective) -> Collective:
    reason = make_authored_reason(final) if final.origin is Origin.AUTHORED else None
    return attach_reason(final, reason or make_unknown_reason(final, _NOT_CAPTURED))


def make_unknown_reason(final: Collective, missing: str) -> Reason:
    """The reason for a collective of which nothing else is known."""
    return Reason(kind=ReasonKind.UNKNOWN, axes=final.axes or (), missing=missing, certain=False)


def make_authored_reason(final: Collective) -> Reason:
    """The reason for a collective that the user wrote."""
    name = (final.op_name or "").rpartition("/")[2]
    return Reason(
        kind=ReasonKind.AUTHORED,
        axes=final.axes or (),
        producer=Operation(name=find_jax_name(name) or final.kind.value, op_name=final.op_name, source=final.source),
        combined=max(len(final.operand_shapes), 1),
        in_loop=bool(final.loops),
    )


def attach_reason(
    final: Collective, reason: Reason, others: Sequence[Tensor | None] = (), *, origin: Origin | None = None
) -> Collective:
    """A collective with its reason, in words too, and the line that needs the data if it has none of its own."""
    why = render_sentence(reason, final.kind, others)
    reasoned = change_collective(final, reason=reason, why=why, origin=final.origin if origin is None else origin)
    needed_by = reason.consumer.source if reason.consumer is not None and reason.kind in _WANT_WHOLE else ()
    if final.source_of is None or not needed_by or not reason.certain or reason.candidates > 1:
        return reasoned
    return change_collective(reasoned, source=needed_by, source_of=None)  # better than the line of a neighbor
