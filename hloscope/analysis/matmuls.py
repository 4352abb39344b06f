"""Matmuls and convolutions: the FLOPs of each, and their number on each source line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from math import gcd, prod
from operator import add
from typing import NamedTuple

from hloscope.analysis.executions import Context, count_executions
from hloscope.analysis.provenance import find_source_frames, find_users_frame
from hloscope.base.units import count_array_bytes, sum_known
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import Matmuls, SourceFrame
from hloscope.model.vocabulary import Bound

MATMUL_OPCODES = frozenset({"dot", "convolution"})


_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW_ITEM = re.compile(r"(\w+)=([\dx_-]+)")


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


def find_matmuls(graph: HloGraph) -> tuple[Matmuls, ...]:
    """The matmuls and convolutions that ENTRY reaches, merged by line and type, most operations first."""
    multiplying = graph.module.with_opcodes(MATMUL_OPCODES)
    if not multiplying:
        return ()
    contexts = count_executions(graph, {each.computation.name for each in multiplying}).contexts
    found: dict[tuple[SourceFrame | None, str], list[tuple[HloInstruction, tuple[SourceFrame, ...]]]] = {}
    for instruction in multiplying:
        if contexts.get(instruction.computation.name):
            source = find_source_frames(instruction)
            found.setdefault((find_users_frame(source), _find_type(instruction)), []).append((instruction, source))
    made = [_merge_matmuls(dtype, alike, contexts) for (_, dtype), alike in found.items()]
    return tuple(sorted(made, key=lambda matmuls: (matmuls.flops is not None, -(matmuls.flops or 0))))


def _merge_matmuls(
    dtype: str,
    alike: Sequence[tuple[HloInstruction, tuple[SourceFrame, ...]]],
    contexts: Mapping[str, tuple[Context, ...]],
) -> Matmuls:
    times = [sum(context.executions for context in contexts[each.computation.name]) for each, _ in alike]
    flops = zip((count_flops(each) for each, _ in alike), times, strict=True)
    bounds = (context.bound for each, _ in alike for context in contexts[each.computation.name])
    return Matmuls(
        dtype=dtype,
        executions=sum(times),
        flops=sum_known(None if each is None else each * count for each, count in flops),
        bound=reduce(add, bounds, Bound.EXACT),
        source=alike[0][1],
    )


def _find_type(instruction: HloInstruction) -> str:
    """The wider type of the two multiplied arrays."""
    shapes = (operand.shape for operand in instruction.operands[:2])
    return max((shape.element_type for shape in shapes), key=lambda name: count_array_bytes(name, 8) or 0, default="?")


def count_flops(instruction: HloInstruction) -> int | None:
    """FLOPs of a `dot` or `convolution`, counting a multiply-add as two; None if its text does not determine them.

    Source: `HloCostAnalysis::HandleDot` and `HandleConvolution` in xla/service/hlo_cost_analysis.cc: positions of the
        window that fall on padding or on holes of a dilated operand are not counted.
    """
    operands = instruction.operands
    if len(operands) < 2:
        return None
    left, right = operands[0].shape.dimensions, operands[1].shape.dimensions
    result = instruction.shape.dimensions
    if instruction.opcode == "dot":
        contracted = parse_integers(instruction.attributes.get("lhs_contracting_dims", ""))
        if not all(axis < len(left) for axis in contracted):
            return None
        return 2 * prod(result) * prod(left[axis] for axis in contracted)
    labels = _LABELS.fullmatch(instruction.attributes.get("dim_labels", ""))
    if labels is None or [len(part) for part in labels.groups()] != [len(left), len(right), len(result)]:
        return None
    return _count_convolution_flops(labels.groups(), (left, right, result), instruction.attributes)


def parse_integers(text: str) -> tuple[int, ...]:
    """The numbers in an attribute, such as `{0,2}`."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _count_convolution_flops(
    labels: Sequence[str], shapes: Sequence[Sequence[int]], attributes: Mapping[str, str]
) -> int | None:
    left, right, result = (dict(zip(names, sizes, strict=True)) for names, sizes in zip(labels, shapes, strict=True))
    window = dict(_WINDOW_ITEM.findall(attributes.get("window", "")))
    count = result.get("b", 1) * result.get("f", 1) * right.get("i", 1)
    for position, axis in enumerate(sorted(name for name in result if name.isdigit())):
        along = _parse_window_axis(window, position)
        if axis not in left or axis not in right or along is None:
            return None
        count *= _count_valid_positions(left[axis], right[axis], result[axis], along)
    return 2 * count


def _parse_window_axis(window: Mapping[str, str], position: int) -> ConvolutionWindow | None:
    """The window along one axis; None if the text is invalid."""
    said = {key: value.split("x")[position] for key, value in window.items() if position < len(value.split("x"))}
    found = ConvolutionWindow(
        stride=int(said.get("stride", "1")),
        hole=int(said.get("lhs_dilate", "1")),
        spread=int(said.get("rhs_dilate", "1")),
        low=int(said.get("pad", "0_0").split("_")[0]),
    )
    return found if min(found.stride, found.hole, found.spread) > 0 else None


@lru_cache(maxsize=1024)
def _count_valid_positions(size: int, kernel: int, outputs: int, window: ConvolutionWindow) -> int:
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
