"""The movement of a convolution's window, and how much of it falls on elements of the operand."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple


class ConvolutionWindow(NamedTuple):
    """The movement of a convolution's window along one axis.

    Attributes:
        stride: Distance from one window to the next.
        hole: Distance from one element of the operand to the next (`lhs_dilate`).
        spread: Distance from one element of the window to the next (`rhs_dilate`).
        low: Padding before the operand.
    """

    stride: int = 1
    hole: int = 1
    spread: int = 1
    low: int = 0


@lru_cache(maxsize=1024)
def count_valid_positions(size: int, kernel: int, outputs: int, window: ConvolutionWindow) -> int:
    """Number of pairs of an output and a kernel position, along one axis, that meet an element of the operand.

    Args:
        size: Number of elements of the operand.
        kernel: Number of elements of the window.
        outputs: Number of elements of the result.
        window: The movement of the window.
    """
    stride, hole, spread, low = window
    end = (size - 1) * hole + 1
    shared = gcd(stride, hole)
    period = hole // shared
    inverse = pow(stride // shared, -1, period)
    found = 0
    for offset in range(kernel):
        at = offset * spread - low
        first = max(-(at // stride), 0)
        count = min(outputs, -((at - end) // stride)) - first
        at += first * stride
        if count > 0 and at % shared == 0:
            skipped = -at // shared * inverse % period  # windows until one begins on an element, not on a hole
            found += max(count - skipped + period - 1, 0) // period
    return found
