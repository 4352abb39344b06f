"""The words that sentences, chains and advice have in common: dimensions, axes, and who asked for what."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.analysis.model.reason import AskedBy, Reason, ReasonKind, Tensor
from hloscope.analysis.places import short_source
from hloscope.why.graph import whole_axis

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


_WINDOWS = ("conv_general_dilated", "reduce_window", "select_and_scatter")


def asked_words(asked: AskedBy) -> str:
    """`argument W asks for P('X', None)`, `the constraint at moe.py:31 asks for P('X')`."""
    place = f" at {short_source(asked.source)}" if asked.source else ""
    who = {"argument": f"argument {asked.name}", "output": f"output {asked.name}"}.get(
        asked.by, f"the {asked.by.replace('constraint', 'sharding constraint')}{place}"
    )
    return f"{who} asks for {asked.sharding}" if asked.sharding else f"{who} asks for {asked.axis}"


def axes_words(reason: Reason) -> str:
    """`X, Y`."""
    return ", ".join(reason.axes) if reason.axes else "no axis"


def cut_words(reason: Reason) -> str:
    """The axes that cut what moves: of those that data moves over, not each has to."""
    had = () if reason.moved is None else reason.moved.sharding or ()
    cut = {whole_axis(axis) for number in reason.dimensions for axis in had[number]}
    return ", ".join(axis for axis in reason.axes if whole_axis(axis) in cut) or axes_words(reason)


def kept_axes(reason: Reason) -> tuple[str, ...]:
    """The axes of a partial sum over which the sum is needed in parts only."""
    wanted = {axis for axes in reason.wanted or () for axis in axes}
    is_sum = reason.kind is ReasonKind.PARTIAL_SUM
    return tuple(axis for axis in reason.axes if axis in wanted) if is_sum else ()


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
    had, own = reason.moved.sharding or (), {whole_axis(axis) for axis in reason.axes}
    lost = {axis for number in reason.dimensions for axis in had[number] if whole_axis(axis) in own}
    found = [number for number, axes in enumerate(reason.wanted) if lost & {*axes}]
    if not lost or not lost <= {axis for number in found for axis in reason.wanted[number]}:
        return None
    if found == list(reason.dimensions):
        order = "; ".join(", ".join(reason.wanted[number]) for number in found)
        return f"over these axes in the order {order}"
    return f"along {listed([dimension_words(reason.moved, number) for number in found])} instead"


def dimension_words(tensor: Tensor, number: int) -> str:
    """`D`, or `dimension 0 (2048)` where it has no letter."""
    letter = tensor.letters[number]
    return letter if not letter.isdigit() else f"dimension {number} ({letter})"


def dimension_of(letter: str) -> str:
    """`D`, or `the dimension of 2048` where it has no letter."""
    return letter if not letter.isdigit() else f"the dimension of {letter}"


def is_cumulative(reason: Reason) -> bool:
    """Whether the consumer adds up, or multiplies, everything that comes before each element."""
    return reason.consumer is not None and reason.consumer.name.startswith("cum")


def is_window(reason: Reason) -> bool:
    """Whether the consumer slides a window over its operand, so that only edges move."""
    return reason.consumer is not None and reason.consumer.name.startswith(_WINDOWS)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "an array"
