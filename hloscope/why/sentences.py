"""The reason for a collective in one or two sentences, made from the typed evidence and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.analysis.model.reason import AskedBy, Operation, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import Kind
from hloscope.why.notation import notated
from hloscope.why.tensors import spec_of


def sentence(reason: Reason, kind: Kind) -> str:
    """Why a collective of this kind is there, in the user's terms.

    It begins with "likely" where the link from the compiled collective to the program is inferred, and says "not
    known" where there is none.
    """
    body = _BODIES[reason.kind](reason)
    if reason.kind in (ReasonKind.UNKNOWN, ReasonKind.AUTHORED):
        return body
    doubt = "" if reason.certain else "likely: "
    several = f" (one of {reason.candidates} such places)" if reason.candidates > reason.combined else ""
    was = reason.rewritten_from if reason.rewritten_from != kind else None
    made = f", made from the partitioner's {was}" if was else ""
    others = "another" if reason.combined == 2 else f"{reason.combined - 1} others"
    more = f", with {others} in one transfer" if reason.combined > 1 else ""
    spare = ", where a reduce-scatter would do" if kind is Kind.ALL_REDUCE and kept_axes(reason) else ""
    return f"{doubt}{body}: {kind} over {axes_words(reason)}{_in_loop(reason)}{spare}{made}{more}{several}"


def _partial_sum(reason: Reason) -> str:
    axes, cut = axes_words(reason), "is" if len(reason.summed) == 1 else "are"
    arrays = _list([f"`{notated(one)}`" for one in reason.operands if _is_cut(one, reason)])
    name = reason.producer.name if reason.producer else "the operation"
    letters = _list(list(reason.summed))
    part = part_words(reason)
    if name in ("dot_general", "dot") and reason.summed:
        dimensions = f"dimension{'s' * (len(reason.summed) > 1)}"
        start = f"contracting {dimensions} {letters} of {arrays} {cut} sharded over {axes}, "
    elif name in ("gather", "take") and reason.summed:
        start = (
            f"`{name}`{_at(reason.producer)} looks up along {summed_words(reason)} of {arrays}, sharded over {axes}, "
        )
    elif reason.summed:
        start = f"`{name}`{_at(reason.producer)} reduces over {summed_words(reason)} of {arrays}, sharded over {axes}, "
    else:
        start = f"`{name}`{_at(reason.producer)} leaves a part of the result on each device along {axes}, "
    return f"{start}so each device holds a partial {part}; {_demand(reason, part)}"


def summed_words(reason: Reason) -> str:
    """The dimensions that an operation sums over: by letter, or by number and size of the array that it sums."""
    if reason.operands and reason.dimensions and any(letter.isdigit() for letter in reason.summed):
        return _list([dimension_words(reason.operands[0], number) for number in dict.fromkeys(reason.dimensions)])
    return _list([dimension_of(letter) for letter in reason.summed]) if reason.summed else "the summed dimension"


def part_words(reason: Reason) -> str:
    """What each device holds a part of: a sum, or what else the operation makes of its operands."""
    return _PARTS.get(reason.producer.name if reason.producer else "", "sum")


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


def _demand(reason: Reason, part: str) -> str:
    """Who wants the sum, and how."""
    left = kept_axes(reason)
    state = f"is sharded over {', '.join(left)}" if left else f"is replicated over {axes_words(reason)}"
    output = next((one for one in reason.asked_by if one.by == "output"), None)
    if output is not None:
        return f"the requested output {output.sharding or output.name} {state}"
    needed = f"its own part of the {part} along {', '.join(left)}" if left else f"the whole {part}"
    if reason.consumer is not None:
        return f"`{reason.consumer.name}`{_at(reason.consumer)} needs {needed}"
    return f"the whole {part} is needed"


def kept_axes(reason: Reason) -> tuple[str, ...]:
    """The axes of a partial sum over which the sum is needed in parts only."""
    wanted = {axis for axes in reason.wanted or () for axis in axes}
    is_sum = reason.kind is ReasonKind.PARTIAL_SUM
    return tuple(axis for axis in reason.axes if axis in wanted) if is_sum else ()


def _operand_conflict(reason: Reason) -> str:
    elsewhere = _elsewhere(reason)
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
    return f"{start} because {axes_words(reason)} shards {dimension_of(reason.conflicting)}{holder} there"


def _elsewhere(reason: Reason) -> str | None:
    """How an array is needed that keeps the axes which move: along another dimension, or in another order."""
    if reason.moved is None or reason.wanted is None:
        return None
    found = [number for number, axes in enumerate(reason.wanted) if {*axes} & {*reason.axes}]
    if not {*reason.axes} <= {axis for number in found for axis in reason.wanted[number]}:
        return None
    if found == list(reason.dimensions):
        order = "; ".join(", ".join(reason.wanted[number]) for number in found)
        return f"over these axes in the order {order}"
    return f"along {_list([dimension_words(reason.moved, number) for number in found])} instead"


def dimension_of(letter: str) -> str:
    """`D`, or `the dimension of 2048` where it has no letter."""
    return letter if not letter.isdigit() else f"the dimension of {letter}"


def _cuts(tensor: Tensor, reason: Reason) -> bool:
    """Whether an array is cut along the conflicting dimension by the axes that move."""
    return any(
        letter == reason.conflicting and set(axes) & set(reason.axes)
        for letter, axes in zip(tensor.letters, tensor.sharding or (), strict=False)
    )


def _needs_whole(reason: Reason) -> str:
    return (
        f"{_consumer(reason)} needs {lost_words(reason)} of `{_name(reason.moved)}` whole on each device, "
        f"and it is sharded over {axes_words(reason)}"
    )


def _indexed_in_loop(reason: Reason) -> str:
    return (
        f"{_state(reason)}, and {_consumer(reason)} indexes that dimension at a position that the loop decides, "
        "so every device needs all of it"
    )


def _halo(reason: Reason) -> str:
    whose = "its neighbours'" if is_window(reason) else "other devices'"
    return (
        f"{_consumer(reason)} needs {whose} elements along {lost_words(reason)} of `{_name(reason.moved)}`, "
        f"which is sharded over {axes_words(reason)}"
    )


def is_window(reason: Reason) -> bool:
    """Whether the consumer slides a window over its operand, so that only edges move."""
    return reason.consumer is not None and reason.consumer.name.startswith(_WINDOWS)


_WINDOWS = ("conv_general_dilated", "reduce_window", "select_and_scatter")


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
            f"`{_name(reason.moved)}`, which is sharded over {axes_words(reason)}"
        )
    return (
        f"Shardy has no sharding rule for {_consumer(reason)}, so the partitioner hands it all of "
        f"`{_name(reason.moved)}`, which is sharded over {axes_words(reason)}"
    )


def _choice(reason: Reason) -> str:
    return (
        f"the partitioner's own way to {_consumer(reason)}, which Shardy's shardings alone do not ask for: "
        f"`{_name(reason.moved)}` is sharded over {axes_words(reason)}"
    )


def _authored(reason: Reason) -> str:
    name = reason.producer.name if reason.producer else "a collective"
    made = f", made from this {reason.rewritten_from}" if reason.rewritten_from else ""
    return f"written by the user: `{name}`{_at(reason.producer)} over {axes_words(reason)}{made}"


def _unknown(reason: Reason) -> str:
    return f"not known: {reason.missing}"


_BODIES: dict[ReasonKind, Callable[[Reason], str]] = {
    ReasonKind.AUTHORED: _authored,
    ReasonKind.PARTIAL_SUM: _partial_sum,
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


def asked_words(asked: AskedBy) -> str:
    """`argument W asks for P('X', None)`, `the constraint at moe.py:31 asks for P('X')`."""
    place = f" at {short_source(asked.source)}" if asked.source else ""
    who = {"argument": f"argument {asked.name}", "output": f"output {asked.name}"}.get(
        asked.by, f"the {asked.by.replace('constraint', 'sharding constraint')}{place}"
    )
    return f"{who} asks for {asked.sharding}" if asked.sharding else f"{who} asks for {asked.axis}"


def _state(reason: Reason) -> str:
    return f"`{_name(reason.moved)}` is sharded along {lost_words(reason)} over {axes_words(reason)}"


def axes_words(reason: Reason) -> str:
    """`X, Y`."""
    return ", ".join(reason.axes) if reason.axes else "no axis"


def _in_loop(reason: Reason) -> str:
    if not reason.in_loop:
        return ""
    return " in every iteration, although it is the same in each" if reason.loop_invariant else " in every iteration"


def _is_cut(tensor: Tensor, reason: Reason) -> bool:
    return bool({axis for axes in tensor.sharding or () for axis in axes} & set(reason.axes))


def lost_words(reason: Reason) -> str:
    """The dimensions that lose their axes, by letter or by number and size."""
    if reason.moved is None or not reason.dimensions:
        return "a dimension"
    return _list([dimension_words(reason.moved, number) for number in reason.dimensions])


def dimension_words(tensor: Tensor, number: int) -> str:
    """`D`, or `dimension 0 (2048)` where it has no letter."""
    letter = tensor.letters[number]
    return letter if not letter.isdigit() else f"dimension {number} ({letter})"


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


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "an array"
