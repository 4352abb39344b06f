"""Phrases shared by sentences, chains and advice: dimensions, axes and requests in words, and arrays in notation.

The notation is that of the scaling literature: `Out[B_X, F] {U_Y} = In[B_X, D_Y] *_D W[D_Y, F]`. Source: "How to Scale
Your Model", chapter "Sharded Matrices and How to Multiply Them": a subscript names the mesh axes that cut a dimension,
`{U_Y}` marks an array whose partial sums the devices along Y hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.analysis.model.reason import AskedBy, Axes, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import REDUCING, Kind
from hloscope.shardy.graph import axes_in, find_whole_axes, whole_axis
from hloscope.shardy.reshards import remove_axes

_FUNCTIONS = {
    Kind.ALL_GATHER: "AllGather",
    Kind.ALL_REDUCE: "AllReduce",
    Kind.REDUCE_SCATTER: "ReduceScatter",
    Kind.ALL_TO_ALL: "AllToAll",
    Kind.RAGGED_ALL_TO_ALL: "RaggedAllToAll",
    Kind.COLLECTIVE_PERMUTE: "Permute",
    Kind.COLLECTIVE_BROADCAST: "Broadcast",
}
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
    is_known = reason.moved is not None and kind in _FUNCTIONS and reason.kind is not ReasonKind.AUTHORED
    if not is_known or reason.of_part or reason.realigns is not None or is_partial_step(reason, kind):
        return ()
    assert reason.moved is not None
    if kind is Kind.COLLECTIVE_PERMUTE and reason.rewritten_from in _PARTED:
        kind = Kind(reason.rewritten_from)  # permutes that do it step by step during the product
    moved, function = reason.moved, f"{_FUNCTIONS[kind]}_{render_subscript(reason.axes)}"
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
