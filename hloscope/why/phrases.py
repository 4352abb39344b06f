"""Phrases shared by sentences, chains and advice: dimensions, axes and requests in words, arrays in notation.

The notation is that of the scaling literature: `Out[B_X, F] {U_Y} = In[B_X, D_Y] *_D W[D_Y, F]`. Source: "How to Scale
Your Model", chapter "Sharded Matrices and How to Multiply Them": a subscript names the mesh axes that cut a dimension,
`{U_Y}` an array of which each device along Y holds a partial sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.analysis.model.reason import AskedBy, Axes, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.shardy.graph import axes_in, whole_axis, wholes
from hloscope.shardy.reshards import without

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
"""What the partitioner does step by step, with permutes, while a product goes on."""
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


def notated(tensor: Tensor, sharding: tuple[Axes, ...] | None = None) -> str:
    """`In[B_X, D_Y]`, with another sharding than its own when one is given."""
    cut = tensor.sharding if sharding is None else sharding
    name = tensor.name.replace(" ", "_") if not tensor.named else tensor.name
    partial = f" {{U_{subscript(tensor.partial_over)}}}" if tensor.partial_over and sharding is None else ""
    entries = [
        letter if not axes else f"{letter}_{subscript(axes)}"
        for letter, axes in zip(tensor.letters, cut or ((),) * len(tensor.letters), strict=True)
    ]
    return f"{name}[{', '.join(entries)}]{partial}"


def subscript(axes: Axes) -> str:
    """`X`, or `(X,Y)` for several axes."""
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"


def equations(reason: Reason, kind: Kind) -> tuple[str, ...]:
    """What happens to the array, one equation for each step; empty when the array is not known."""
    is_known = reason.moved is not None and kind in _FUNCTIONS and reason.kind is not ReasonKind.AUTHORED
    if not is_known or reason.of_part or reason.realigns is not None or is_step(reason, kind):
        return ()
    assert reason.moved is not None
    if kind is Kind.COLLECTIVE_PERMUTE and reason.rewritten_from in _PARTED:
        kind = Kind(reason.rewritten_from)  # permutes that do it step by step, while the product goes on
    moved, function = reason.moved, f"{_FUNCTIONS[kind]}_{subscript(reason.axes)}"
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in SUMS:
        whole = f"{_producer(reason)}({function}({notated(moved)}))"
        return (f"{notated(moved)} = {_computed(reason)}", f"{notated(moved, moved.sharding)} = {whole}")
    if reason.kind is not ReasonKind.PARTIAL_SUM and kind in SUMS:
        return ()  # nothing is added up: elements and zeros, as a way to hand them on
    if reason.kind is ReasonKind.PARTIAL_SUM and reason.wanted is None:
        return ()  # inside shard_map, where arrays are those of one device
    if reason.kind is ReasonKind.PARTIAL_SUM:
        made = () if reason.producer is None else (f"{notated(moved)} = {_computed(reason)}",)
        return (*made, *_added_up(reason, moved, kind, function))
    left = left_by(reason, moved, kind)
    if left is None:
        return (f"{function}({notated(moved)})",)
    resharded = f"{notated(moved, left)} = {function}({notated(moved)})"
    if reason.result is None or not _is_contraction(reason):
        return (resharded,)
    operands = [
        replace(operand, sharding=left) if number == reason.operand else operand
        for number, operand in enumerate(reason.operands)
    ]
    contracted = _contracted(reason)
    result = replace(reason.result, partial_over=_summed_axes(operands, contracted))
    return (resharded, f"{notated(result)} = {_product([notated(operand) for operand in operands], contracted)}")


def _added_up(reason: Reason, moved: Tensor, kind: Kind, function: str) -> tuple[str, ...]:
    """What adds the parts up, and the free slice after an all-reduce of which only a part is needed.

    Of several collectives that add up over one axis each, every one is described by itself.
    """
    rest = tuple(axis for axis in moved.partial_over if axis not in reason.axes)
    here = replace(moved, partial_over=reason.axes)
    if kind is Kind.REDUCE_SCATTER and not axes_in(reason.wanted) & {*reason.axes}:
        return ()  # the first half of an all-reduce: where it leaves each part is the compiler's own affair
    if kind is Kind.REDUCE_SCATTER:
        return (f"{notated(moved, reason.wanted)} = {function}({notated(here)})",)
    summed = f"{notated(moved, moved.sharding)} = {function}({notated(here)})"
    wanted, had = reason.wanted or (), moved.sharding or ()
    cut = tuple(axis for axes in wanted for axis in axes if axis in reason.axes)
    is_cut = all(gets[: len(held)] == held for held, gets in zip(had, wanted, strict=False))
    if rest or not cut or not is_cut:
        return (summed,)
    return (summed, f"{notated(moved, wanted)} = Slice_{subscript(cut)}({notated(moved, had)})")


def is_step(reason: Reason, kind: Kind) -> bool:
    """Whether a collective cannot do alone what the reason asks for: it brings the array nearer, and others the rest.

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
    kept = zip(without(had, reason.axes), without(reason.wanted, reason.axes), strict=False)
    return any(
        rest != left or before[: len(rest)] != rest or after[: len(left)] != left
        for (before, after), (rest, left) in zip(pairs, kept, strict=True)
    )


def left_by(reason: Reason, moved: Tensor, kind: Kind) -> tuple[Axes, ...] | None:
    """The sharding that a collective leaves: a gather gives its axes up, wherever Shardy would have moved them."""
    had = moved.sharding
    if kind is not Kind.ALL_GATHER or had is None or not {*reason.axes} <= axes_in(had):
        return reason.wanted
    return without(had, reason.axes)


def _summed_axes(operands: list[Tensor], summed: tuple[str, ...]) -> Axes:
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


def _computed(reason: Reason) -> str:
    operands = [notated(operand) for operand in reason.operands]
    if len(operands) == 2 and reason.producer is not None and reason.producer.name in CONTRACTIONS:
        return _product(operands, _contracted(reason))
    return f"{_producer(reason)}({', '.join(operands)})"


def _producer(reason: Reason) -> str:
    return "sum" if reason.producer is None else reason.producer.name


def _contracted(reason: Reason) -> tuple[str, ...]:
    """The dimensions that a product sums over: those of both operands that the result lacks."""
    left, right = (operand.letters for operand in reason.operands)
    kept = () if reason.result is None else reason.result.letters
    return tuple(letter for letter in left if letter in right and letter not in kept) or reason.summed


def _product(operands: list[str], summed: tuple[str, ...]) -> str:
    return f" *_{subscript(summed)} ".join(operands) if summed else f"dot_general({', '.join(operands)})"


def _is_contraction(reason: Reason) -> bool:
    return reason.consumer is not None and reason.consumer.name in CONTRACTIONS and len(reason.operands) == 2


def asked_words(asked: AskedBy) -> str:
    """`argument W requests P('X', None)`, `the sharding constraint at moe.py:31 requests P('X')`."""
    place = f" at {short_source(asked.source)}" if asked.source else ""
    who = {"argument": f"argument {asked.name}", "output": f"output {asked.name}"}.get(
        asked.by, f"the {asked.by.replace('constraint', 'sharding constraint')}{place}"
    )
    return f"{who} requests {asked.sharding}" if asked.sharding else f"{who} requests axis {asked.axis}"


def axes_words(reason: Reason) -> str:
    """`X, Y`."""
    return ", ".join(reason.axes) if reason.axes else "no axis"


def cut_words(reason: Reason) -> str:
    """The axes that cut what moves: of those that data moves over, not each has to."""
    had = () if reason.moved is None else reason.moved.sharding or ()
    cut = wholes(axis for number in reason.dimensions for axis in had[number])
    return ", ".join(axis for axis in reason.axes if whole_axis(axis) in cut) or axes_words(reason)


def kept_axes(reason: Reason) -> tuple[str, ...]:
    """The axes of a partial sum over which the sum is needed in parts only."""
    wanted = axes_in(reason.wanted) if reason.kind is ReasonKind.PARTIAL_SUM else ()
    return tuple(axis for axis in reason.axes if axis in wanted)


def summed_words(reason: Reason) -> str:
    """The dimensions that an operation sums over: by letter, or by number and size of the array that it sums."""
    if reason.operands and reason.dimensions and any(letter.isdigit() for letter in reason.summed):
        return listed([dimension_words(reason.operands[0], number) for number in dict.fromkeys(reason.dimensions)])
    return listed([dimension_of(letter) for letter in reason.summed]) if reason.summed else "the summed dimension"


def part_words(reason: Reason) -> str:
    """What each device holds a part of: a sum, or what else the operation makes of its operands."""
    return _PARTS.get(reason.producer.name if reason.producer else "", "sum")


def lost_words(reason: Reason) -> str:
    """The dimensions that lose their axes, by letter or by number and size."""
    if reason.moved is None or not reason.dimensions:
        return "a dimension"
    return listed([dimension_words(reason.moved, number) for number in reason.dimensions])


def elsewhere_words(reason: Reason) -> str | None:
    """How an array is needed that keeps the axes which move: along another dimension, or in another order."""
    if reason.moved is None or reason.wanted is None:
        return None
    had, own = reason.moved.sharding or (), wholes(reason.axes)
    lost = {axis for number in reason.dimensions for axis in had[number] if whole_axis(axis) in own}
    found = [number for number, axes in enumerate(reason.wanted) if lost & {*axes}]
    if not lost or not lost <= {axis for number in found for axis in reason.wanted[number]}:
        return None
    if found == list(reason.dimensions):
        order = "; ".join(", ".join(reason.wanted[number]) for number in found)
        return f"with these axes in the order {order}"
    return f"sharded along {listed([dimension_words(reason.moved, number) for number in found])} instead"


def dimension_words(tensor: Tensor, number: int) -> str:
    """`D`, or `dimension 0 (2048)` where it has no letter."""
    letter = tensor.letters[number]
    return letter if not letter.isdigit() else f"dimension {number} ({letter})"


def dimension_of(letter: str) -> str:
    """`D`, or `the dimension of 2048` where it has no letter."""
    return letter if not letter.isdigit() else f"the dimension of {letter}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "an array"
