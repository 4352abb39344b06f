"""Floating-point operations of matmuls and convolutions, from their printed shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction

MATMULS = frozenset({"dot", "convolution"})

_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW_ITEM = re.compile(r"(\w+)=([\dx_-]+)")


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


def flops_by_computation(graph: HloGraph) -> dict[str, int]:
    """FLOPs of each computation, with the fusions in it; computations without any are left out."""
    found: dict[str, int] = {}
    for instruction in graph.module.with_opcodes(MATMULS):
        name = instruction.computation.name
        found[name] = found.get(name, 0) + (flops_of(instruction) or 0)
    for computation in reversed(graph.reachable):
        for site in graph.calls(computation.name):
            if site.caller.opcode == "fusion" and site.callee in found:
                found[computation.name] = found.get(computation.name, 0) + found[site.callee]
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
