"""Loops with a 64-bit counter that is carried as two 32-bit words."""

from __future__ import annotations

from hloscope.analysis.loops.carried import LoopValues
from hloscope.analysis.loops.conditions import Comparison, Condition, Junction, read_comparison
from hloscope.analysis.loops.progressions import Direction
from hloscope.analysis.loops.scalars import Element, Linear, carried, read_linear
from hloscope.analysis.values.handing_on import origin
from hloscope.graph import Value

_WORD = 1 << 32


def low_word(values: LoopValues, condition: Condition | None) -> Comparison | None:
    """The comparison that alone decides when a loop with a counter of two words ends.

    The condition is `high < H or (high == H and low < L)`, with any order for `<`. As long as `low` does not wrap
    around, which counting makes sure of, its carry leaves `high` alone: when that begins as H, `low` alone decides.

    Args:
        values: The loop.
        condition: Its condition.

    Returns:
        The comparison of the low words; None when the condition is anything else.

    Source: the form that libtpu prints for s64 and u64 counters, which its vector units do not have.
    """
    if not isinstance(condition, Junction) or condition.is_all:
        return None
    outer = next((part for part in condition.parts if isinstance(part, Comparison)), None)
    inner = next((part for part in condition.parts if isinstance(part, Junction) and part.is_all), None)
    if outer is None or inner is None or outer.direction not in (Direction.LT, Direction.GT):
        return None
    comparisons = [part for part in inner.parts if isinstance(part, Comparison)]
    equal = next((part for part in comparisons if part.direction is Direction.EQ), None)
    low = next((part for part in comparisons if part.direction is not Direction.EQ), None)
    if equal is None or low is None or not _holds_still(values, outer, equal, low):
        return None
    return low


def _holds_still(values: LoopValues, outer: Comparison, equal: Comparison, low: Comparison) -> bool:
    """Whether the high word begins as what it is compared with, and only ever takes the carry of the low word."""
    high, counter = _element(outer.left), _element(low.left)
    if high is None or counter is None or outer.left != equal.left or low.element_type != "u32":
        return False
    bounds = [values.constant(outer.right), values.constant(equal.right), values.initial(high)]
    words = {None if word is None else word % _WORD for word in bounds}
    return len(words) == 1 and None not in words and _takes_carry(values, high, counter)


def _element(term: Linear) -> Element | None:
    """The carried scalar that a function is; None when it is anything else."""
    [element] = term.scales if len(term.scales) == 1 else [None]
    return element if element is not None and term == carried(element) else None


def _takes_carry(values: LoopValues, high: Element, low: Element) -> bool:
    """Whether a trip makes the high word `select(low + step < low, …, high)`, for a step that counts up."""
    graph = values.graph
    choice = origin(values.after_a_trip(high)).instruction
    if choice.opcode != "select" or len(choice.operands) != 3:
        return False
    if read_linear(graph, Value(choice.operands[2])) != carried(high):
        return False
    overflow = read_comparison(graph, origin(Value(choice.operands[0])).instruction)
    following = values.following(low)
    if overflow is None or overflow.direction is not Direction.LT or following is None:
        return False
    counts_up = following.scales == carried(low).scales and not following.provided and 0 < following.offset < _WORD // 2
    matches = overflow.element_type == "u32" and overflow.left == following and overflow.right == carried(low)
    return counts_up and matches
