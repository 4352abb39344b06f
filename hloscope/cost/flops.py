"""Operations of matmuls and convolutions, and the passes of the matrix unit that they take, from their printed text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction

MATMULS = frozenset({"dot", "convolution"})

_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW_ITEM = re.compile(r"(\w+)=([\dx_-]+)")

_PRECISION_PASSES = {"high": 3.0, "highest": 6.0}
"""Passes of an f32 matmul, by `operand_precision`; at the default precision it is one. Source: JAX, `lax.Precision`."""

_INTEGER_PASSES = {"s16": 4.0, "u16": 4.0, "s32": 10.0, "u32": 10.0}
"""Passes of a matmul of integers. Source: libtpu's estimated cycles, beside those of the same matmul in bf16."""


class Window(NamedTuple):
    """How the window of a convolution moves along one axis.

    Attributes:
        stride: From one window to the next.
        hole: From one element of the operand to the next (`lhs_dilate`).
        spread: From one element of the window to the next (`rhs_dilate`).
        low: Padding before the operand.
    """

    stride: int = 1
    hole: int = 1
    spread: int = 1
    low: int = 0


class Work(NamedTuple):
    """What matmuls and convolutions ask of the matrix unit.

    Attributes:
        flops: Multiply-adds, two operations each.
        bf16_flops: The same, as if each pass of the matrix unit were a bf16 matmul.
        is_whole: Whether the text told all of it.
    """

    flops: int = 0
    bf16_flops: float = 0.0
    is_whole: bool = True

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(self.flops + other.flops, self.bf16_flops + other.bf16_flops, self.is_whole and other.is_whole)


def work_of(instruction: HloInstruction, narrow_passes: Mapping[str, float]) -> Work:
    """What a `dot` or `convolution` asks of the matrix unit.

    Args:
        instruction: The instruction.
        narrow_passes: Time of an operation over that of a bf16 one, for the types narrower than bf16 that the matrix
            unit takes as they are; others are widened to bf16.
    """
    flops = flops_of(instruction)
    if flops is None:
        return Work(is_whole=False)
    return Work(flops, flops * _passes(instruction, narrow_passes))


def _passes(instruction: HloInstruction, narrow_passes: Mapping[str, float]) -> float:
    words = re.findall(r"\w+", instruction.attributes.get("operand_precision", ""))
    known = {"f32": max((_PRECISION_PASSES.get(word, 1.0) for word in words), default=1.0)}
    known |= {**_INTEGER_PASSES, **narrow_passes}
    return max(known.get(operand.shape.element_type, 1.0) for operand in instruction.operands[:2])


def flops_of(instruction: HloInstruction) -> int | None:
    """Multiply-adds of a `dot` or `convolution`, two operations each; None when its text does not tell.

    Source: `HloCostAnalysis::HandleDot` and `HandleConvolution` in xla/service/hlo_cost_analysis.cc: positions of the
        window that fall on padding or on holes of a dilated operand are not counted.
    """
    operands = instruction.operands
    if len(operands) < 2:
        return None
    left, right = operands[0].shape.dimensions, operands[1].shape.dimensions
    result = instruction.shape.dimensions
    if instruction.opcode == "dot":
        contracted = _integers(instruction.attributes.get("lhs_contracting_dims", ""))
        return 2 * prod(result) * prod(left[axis] for axis in contracted) if _fits(contracted, left) else None
    labels = _LABELS.fullmatch(instruction.attributes.get("dim_labels", ""))
    if labels is None or [len(part) for part in labels.groups()] != [len(left), len(right), len(result)]:
        return None
    return _convolution(labels.groups(), (left, right, result), instruction.attributes)


def work_by_computation(graph: HloGraph, narrow_passes: Mapping[str, float]) -> dict[str, Work]:
    """The work of each computation, with the fusions in it; computations without any are left out."""
    found: dict[str, Work] = {}
    for instruction in graph.module.with_opcodes(MATMULS):
        name = instruction.computation.name
        found[name] = found.get(name, Work()).plus(work_of(instruction, narrow_passes))
    for computation in reversed(graph.reachable):
        for site in graph.calls(computation.name):
            if site.caller.opcode == "fusion" and site.callee in found:
                found[computation.name] = found.get(computation.name, Work()).plus(found[site.callee])
    return found


def _fits(axes: Sequence[int], dimensions: Sequence[int]) -> bool:
    return all(axis < len(dimensions) for axis in axes)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _convolution(labels: Sequence[str], shapes: Sequence[Sequence[int]], attributes: Mapping[str, str]) -> int | None:
    left, right, result = (dict(zip(names, sizes, strict=True)) for names, sizes in zip(labels, shapes, strict=True))
    window = dict(_WINDOW_ITEM.findall(attributes.get("window", "")))
    count = result.get("b", 1) * result.get("f", 1) * right.get("i", 1)
    for position, axis in enumerate(sorted(name for name in result if name.isdigit())):
        along = _of_axis(window, position)
        if axis not in left or axis not in right or along is None:
            return None
        count *= _valid_positions(left[axis], right[axis], result[axis], along)
    return 2 * count


def _of_axis(window: Mapping[str, str], position: int) -> Window | None:
    """The window along one axis; None when it cannot be meant."""
    said = {key: value.split("x")[position] for key, value in window.items() if position < len(value.split("x"))}
    found = Window(
        stride=int(said.get("stride", "1")),
        hole=int(said.get("lhs_dilate", "1")),
        spread=int(said.get("rhs_dilate", "1")),
        low=int(said.get("pad", "0_0").split("_")[0]),
    )
    return found if min(found.stride, found.hole, found.spread) > 0 else None


@lru_cache(maxsize=1024)
def _valid_positions(size: int, kernel: int, outputs: int, window: Window) -> int:
    """Pairs of an output and a kernel position, along one axis, that meet an element of the operand.

    Args:
        size: Elements of the operand.
        kernel: Elements of the window.
        outputs: Elements of the result.
        window: How the window moves.
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
