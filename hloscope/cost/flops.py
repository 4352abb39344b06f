"""Operations of matmuls and convolutions, and the passes of the matrix unit that they take, from their printed text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction

MATMULS = frozenset({"dot", "convolution"})

_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW_ITEM = re.compile(r"(\w+)=([\dx_-]+)")

_PRECISION_PASSES = {"high": 3.0, "highest": 6.0}
"""Passes of an f32 matmul, by `operand_precision`; at the default precision it is one. Source: JAX, `lax.Precision`."""

_INTEGER_PASSES = 10.0
"""Passes of a matmul of 32-bit integers. Source: libtpu's estimated cycles, beside those of the same matmul in bf16."""

_NARROW = re.compile(r"[su][248]|f8\w*|f4\w*")
_INTEGERS = frozenset({"s16", "u16", "s32", "u32"})


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


def work_of(instruction: HloInstruction, narrow_passes: float) -> Work:
    """What a `dot` or `convolution` asks of the matrix unit.

    Args:
        instruction: The instruction.
        narrow_passes: Time of an 8-bit operation over that of a bf16 one.
    """
    flops = flops_of(instruction)
    if flops is None:
        return Work(is_whole=False)
    return Work(flops, flops * _passes(instruction, narrow_passes))


def _passes(instruction: HloInstruction, narrow_passes: float) -> float:
    types = {operand.shape.element_type for operand in instruction.operands[:2]}
    if types & _INTEGERS:
        return _INTEGER_PASSES
    if all(_NARROW.fullmatch(one) for one in types):
        return narrow_passes
    words = re.findall(r"\w+", instruction.attributes.get("operand_precision", ""))
    return max((_PRECISION_PASSES.get(word, 1.0) for word in words), default=1.0) if "f32" in types else 1.0


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


def work_by_computation(graph: HloGraph, narrow_passes: float) -> dict[str, Work]:
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
        if axis not in left or axis not in right:
            return None
        along = _of_axis(window, position)
        count *= _valid_positions(
            left[axis],
            right[axis],
            result[axis],
            stride=int(along.get("stride", "1")),
            hole=int(along.get("lhs_dilate", "1")),
            spread=int(along.get("rhs_dilate", "1")),
            low=int(along.get("pad", "0_0").split("_")[0]),
        )
    return 2 * count


def _of_axis(window: dict[str, str], position: int) -> dict[str, str]:
    return {key: value.split("x")[position] for key, value in window.items() if position < len(value.split("x"))}


@lru_cache(maxsize=1024)
def _valid_positions(size: int, kernel: int, outputs: int, *, stride: int, hole: int, spread: int, low: int) -> int:
    """Pairs of an output and a kernel position, along one axis, that meet an element of the operand.

    Args:
        size: Elements of the operand.
        kernel: Elements of the window.
        outputs: Elements of the result.
        stride: From one window to the next.
        hole: From one element of the operand to the next (`lhs_dilate`).
        spread: From one element of the window to the next (`rhs_dilate`).
        low: Padding before the operand.
    """
    end = (size - 1) * hole + 1
    found = 0
    for offset in range(kernel):
        at = offset * spread - low
        found += sum(
            0 <= position < end and position % hole == 0 for position in range(at, at + outputs * stride, stride)
        )
    return found
