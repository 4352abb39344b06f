"""The reason for a collective in one or two sentences, made from the typed evidence and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.analysis.model.reason import Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.why.names import is_gradient
from hloscope.why.phrases import (
    asked_words,
    axes_words,
    cut_words,
    dimension_of,
    elsewhere_words,
    is_cumulative,
    is_step,
    is_window,
    kept_axes,
    listed,
    lost_words,
    notated,
    part_words,
    summed_words,
)
from hloscope.why.tensors import spec_of


def sentence(reason: Reason, kind: Kind, others: Sequence[Tensor | None] = ()) -> str:
    """Why a collective of this kind is there, in the user's terms.

    It begins with "likely" where the link from the compiled collective to the program is inferred, and says "not
    known" where there is none.

    Args:
        reason: The evidence; of a collective that the compiler combined from several, that for its largest part.
        kind: What it does.
        others: The arrays of the other parts, None for one that is not known; empty when nobody looked at them.
    """
    body = _BODIES[reason.kind](reason)
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
    names = dict.fromkeys(f"`{notated(one)}`" for one in others if one is not None)
    if count == len(others) and None not in others and len(names) <= _NAMED_OTHERS:
        among = f" of {listed(list(names))}"
        return (
            f", combined with {'that' if count == 1 else f'{count} others' if count > len(names) else 'those'}{among}"
        )
    return f", combined with {'another' if count == 1 else f'{count} others'}"


_NAMED_OTHERS = 3
_LOOKUPS = ("gather", "take")


def _partial_sum(reason: Reason) -> str:
    if reason.producer is None:
        return f"`{_name(reason.moved)}` comes as a partial sum on each device; {_demand(reason, 'sum')}"
    axes, cut = axes_words(reason), "is" if len(reason.summed) == 1 else "are"
    arrays = listed([f"`{notated(one)}`" for one in reason.operands if _is_cut(one, reason)])
    name = reason.producer.name
    letters = listed(list(reason.summed))
    part = part_words(reason)
    if name in ("dot_general", "dot") and reason.summed:
        dimensions = f"dimension{'s' * (len(reason.summed) > 1)}"
        start = f"contracting {dimensions} {letters} of {arrays} {cut} sharded over {axes}, "
    elif name in _LOOKUPS and reason.summed:
        start = (
            f"`{name}`{_at(reason.producer)} looks up along {summed_words(reason)} of {arrays}, sharded over {axes}, "
        )
    elif reason.summed:
        start = f"`{name}`{_at(reason.producer)} reduces over {summed_words(reason)} of {arrays}, sharded over {axes}, "
    else:
        start = f"`{name}`{_at(reason.producer)} leaves a part of the result on each device along {axes}, "
    return f"{start}so each device holds a partial {part}; {_demand(reason, part)}"


def _demand(reason: Reason, part: str) -> str:
    """Who wants the sum, and how."""
    left = kept_axes(reason)
    state = f"is sharded over {', '.join(left)}" if left else f"is replicated over {axes_words(reason)}"
    output = next((one for one in reason.asked_by if one.by == "output"), None)
    if output is not None:
        return f"the requested output {output.sharding or output.name} {state}"
    needed = f"its own part of the {part} along {', '.join(left)}" if left else f"the whole {part}"
    who = "each device" if reason.consumer is None else f"`{reason.consumer.name}`{_at(reason.consumer)}"
    return f"{who} needs {needed}"


def _gathered_operand(reason: Reason) -> str:
    is_lookup = reason.consumer is not None and reason.consumer.name in _LOOKUPS
    does = "looks up along" if is_lookup else "sums over"
    return (
        f"{_consumer(reason)} {does} {lost_words(reason)} of `{_name(reason.moved)}`, which is sharded over "
        f"{cut_words(reason)}, and the partitioner hands it all of that instead of adding up partial sums"
    )


def _operand_conflict(reason: Reason) -> str:
    elsewhere = elsewhere_words(reason)
    if elsewhere is not None:
        asked = "".join(f", because {asked_words(one)}" for one in reason.asked_by[:1])
        return f"{_state(reason)}, and {_consumer(reason)} needs it {elsewhere}{asked}"
    start = f"{_state(reason)}, and {_consumer(reason)} needs it whole"
    if reason.conflicting is None:
        return start
    other = next(
        (one for one in (*reason.operands, *([reason.result] if reason.result else ())) if _cuts(one, reason)), None
    )
    holder = "" if other is None else f" of `{notated(other)}`"
    return f"{start} because {cut_words(reason)} shards {dimension_of(reason.conflicting)}{holder} there"


def _cuts(tensor: Tensor, reason: Reason) -> bool:
    """Whether an array is cut along the conflicting dimension by the axes that move."""
    return any(
        letter == reason.conflicting and set(axes) & set(reason.axes)
        for letter, axes in zip(tensor.letters, tensor.sharding or (), strict=False)
    )


def _needs_whole(reason: Reason) -> str:
    return (
        f"{_consumer(reason)} needs {lost_words(reason)} of `{_name(reason.moved)}` whole on each device, "
        f"and it is sharded over {cut_words(reason)}"
    )


def _indexed_in_loop(reason: Reason) -> str:
    return (
        f"{_state(reason)}, and {_consumer(reason)} indexes that dimension at a position that the loop decides, "
        "so every device needs all of it"
    )


def _halo(reason: Reason) -> str:
    if is_cumulative(reason):
        return (
            f"{_consumer(reason)} needs what comes before each device's part along {lost_words(reason)} of "
            f"`{_name(reason.moved)}`, which is sharded over {cut_words(reason)}"
        )
    whose = "its neighbours'" if is_window(reason) else "other devices'"
    return (
        f"{_consumer(reason)} needs {whose} elements along {lost_words(reason)} of `{_name(reason.moved)}`, "
        f"which is sharded over {cut_words(reason)}"
    )


def _constraint(reason: Reason) -> str:
    asked = next((one for one in reason.asked_by if one.by == "constraint"), None)
    place = "" if asked is None or not asked.source else f" ({short_source(asked.source)})"
    spec = asked.sharding if asked is not None else spec_of(reason.wanted)
    return f"the sharding constraint {spec}{place} asks for another sharding than that of `{_name(reason.moved)}`"


def _requested_output(reason: Reason) -> str:
    outputs = [one for one in reason.asked_by if one.by == "output"]
    asked = outputs[0].sharding if outputs else spec_of(reason.wanted)
    return f"`{_name(reason.moved)}` is computed as {_spec(reason.moved)}, and the requested output is {asked}"


def _merged(reason: Reason) -> str:
    if reason.moved is not None and all(reason.moved.shape[number] == 1 for number in reason.dimensions):
        return f"{_state(reason)}, and {_consumer(reason)} drops this dimension"
    return f"{_state(reason)}, and {_consumer(reason)} merges it into a dimension that cannot keep this sharding"


def _no_rule(reason: Reason) -> str:
    if reason.of_part:
        return (
            f"Shardy has no sharding rule for {_consumer(reason)}, so the partitioner decides what moves of "
            f"`{_name(reason.moved)}`, which is sharded over {cut_words(reason)}"
        )
    return (
        f"Shardy has no sharding rule for {_consumer(reason)}, so the partitioner hands it all of "
        f"`{_name(reason.moved)}`, which is sharded over {cut_words(reason)}"
    )


def _choice(reason: Reason) -> str:
    start = f"the partitioner's own way to {_consumer(reason)}, which Shardy's shardings alone do not ask for"
    return start if reason.moved is None else f"{start}: `{_name(reason.moved)}` is sharded over {cut_words(reason)}"


def _authored(reason: Reason) -> str:
    name = reason.producer.name if reason.producer else "a collective"
    made = f", made from this {reason.rewritten_from}" if reason.rewritten_from else ""
    backward = reason.producer is not None and is_gradient(reason.producer.op_name)
    who = "the backward pass of what the user wrote there" if backward else "written by the user"
    return f"{who}: `{name}`{_at(reason.producer)} over {axes_words(reason)}{made}"


def _unknown(reason: Reason) -> str:
    return f"not known: {reason.missing}"


_BODIES: dict[ReasonKind, Callable[[Reason], str]] = {
    ReasonKind.AUTHORED: _authored,
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
    ReasonKind.UNKNOWN: _unknown,
}


def _state(reason: Reason) -> str:
    return f"`{_name(reason.moved)}` is sharded along {lost_words(reason)} over {cut_words(reason)}"


def _in_loop(reason: Reason) -> str:
    if not reason.in_loop:
        return ""
    return " in every iteration, although it is the same in each" if reason.loop_invariant else " in every iteration"


def _is_cut(tensor: Tensor, reason: Reason) -> bool:
    return bool({axis for axes in tensor.sharding or () for axis in axes} & set(reason.axes))


def _name(tensor: Tensor | None) -> str:
    return "an array" if tensor is None else notated(tensor)


def _spec(tensor: Tensor | None) -> str:
    return "another sharding" if tensor is None else spec_of(tensor.sharding) or "another sharding"


def _consumer(reason: Reason) -> str:
    if reason.consumer is None:
        return "an operation"
    return f"`{reason.consumer.name}`{_at(reason.consumer)}"


def _at(operation: Operation | None) -> str:
    place = None if operation is None else short_source(operation.source)
    return "" if place is None else f" ({place})"
