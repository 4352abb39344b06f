"""The compiler's cycles of an instruction, estimated from scheduled text, which does not have them yet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import ceil, prod

from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph
from hloscope.tpu.generation import Chip

_LANES, _SUBLANES = 128, 8
_TILE = _LANES * _SUBLANES
_PER_WORD = {"bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s8": 4, "u8": 4, "pred": 4, "f8e5m2": 4, "f8e4m3fn": 4, "s4": 8}
"""Elements in each 32 bits of a vector register; 1 for all other types."""

_CLASSES = {
    "plain": "add subtract multiply maximum minimum negate abs and or xor not compare select clamp sign floor ceil "
    "iota shift-left shift-right-logical shift-right-arithmetic is-finite reduce-precision bitcast-convert "
    "round-nearest-even round-nearest-afz",
    "function": "exponential log tanh logistic rsqrt sqrt exponential-minus-one log-plus-one cbrt",
    "divide": "divide",
    "series": "power sine cosine tan erf atan2 remainder",
    "shifted": "slice concatenate pad reverse dynamic-slice dynamic-update-slice",
}
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes.split()}
_REARRANGES = frozenset({"copy", "transpose", "reshape"})
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")

VECTOR = (
    "plain", "widened", "narrowed", "function", "divide", "series", "shifted", "kept", "moved", "turned",
    "lane_broadcast", "sublane_broadcast", "lane_reduce", "lane_reduce_rows", "sublane_reduce", "reduce", "window",
)  # fmt: skip
"""Classes of work of the vector unit, in tiles."""

PORTS = ("in1", "in2", "in4", "out1", "out2", "out4")
"""Tiles that come in or go out, by the number of elements in 32 bits."""

_GROUPS = {
    **dict.fromkeys(("plain", "widened", "narrowed", "lane_broadcast", "sublane_broadcast"), "plain"),
    **dict.fromkeys(("function", "divide", "series"), "function"),
    **dict.fromkeys(("kept", "moved", "turned", "shifted"), "moved"),
    **dict.fromkeys(("lane_reduce", "sublane_reduce", "reduce", "window"), "reduced"),
}
FUSED = (
    "before_plain", "before_function", "before_moved", "before_reduced", "after_plain", "after_function",
    "after_moved", "after_reduced", "result", "ports",
)  # fmt: skip
"""Work of the vector unit before and after a matmul, tiles of the product, and all tiles that come in or go out."""

MATRIX = ("mxu", "push")
"""Work of the matrix unit: its cycles at the peak, and those of loading weights."""

Tally = Mapping[str, float]


def count_cycle_work(
    graph: HloGraph,
    chip: Chip,
    instruction: HloInstruction,
    work_of: Callable[[HloInstruction], tuple[int, float, bool]],
    hbm_bytes: tuple[float, float],
) -> Tally | None:
    """The work of an instruction, in the terms that the estimate weighs; None if it is unknown.

    Args:
        graph: The module.
        chip: The chip.
        instruction: A fusion or an unfused operation.
        work_of: The FLOPs of an unfused matmul, those of bf16 that take as long, and whether both are known.
        hbm_bytes: Bytes read from HBM, and written to it.
    """
    found: defaultdict[str, float] = defaultdict(float)
    inner = list(_flatten(graph, instruction))
    matmuls = [(one, top, *work_of(one)) for one, top in inner if one.opcode in ("dot", "convolution")]
    before = _find_producers([top for _, top, *_ in matmuls])
    for one, _, flops, bf16_flops, is_known in matmuls:
        if not is_known or not _add_matmul(found, one, chip, flops, bf16_flops):
            return None
    for one, top in inner:
        for name, tiles in _list_vector_work(one):
            if not matmuls:
                found[name] += tiles
            elif name in _GROUPS:
                found[f"{'before' if top.name in before else 'after'}_{_GROUPS[name]}"] += tiles
    for direction, shapes in (("in", [each.shape for each in instruction.operands]), ("out", [instruction.shape])):
        for leaf in (leaf for shape in shapes for leaf in shape.leaves()):
            found["ports" if matmuls else f"{direction}{_count_per_word(leaf)}"] += count_tiles(leaf)
    for name in found.keys() - set(MATRIX):
        found[name] *= chip.devices_per_chip / chip.cores_per_chip
    found["matmuls"], found["from_hbm"] = float(bool(matmuls)), float(bool(matmuls) and hbm_bytes[0] > 0)
    per_cycle = chip.hbm_bytes_per_s / chip.devices_per_chip / chip.clock_hz
    found["read"], found["write"] = (size / per_cycle for size in hbm_bytes)
    return found


def _flatten(
    graph: HloGraph, instruction: HloInstruction, top: HloInstruction | None = None
) -> Iterator[tuple[HloInstruction, HloInstruction]]:
    """The instructions of a fusion and of those in it, each with the one of the outermost that it belongs to."""
    if instruction.opcode != "fusion":
        yield instruction, instruction
        return
    for one in graph.module.computation(instruction.called[0][1]).instructions:
        if one.opcode == "fusion":
            yield from ((inner, top or one) for inner, _ in _flatten(graph, one))
        else:
            yield one, top or one


def _find_producers(matmuls: list[HloInstruction]) -> set[str]:
    seen: set[str] = set()
    pending = [operand for one in matmuls for operand in one.operands]
    while pending:
        one = pending.pop()
        if one.name not in seen:
            seen.add(one.name)
            pending.extend(one.operands)
    return seen


def _add_matmul(found: dict[str, float], matmul: HloInstruction, chip: Chip, flops: int, bf16_flops: float) -> bool:
    shape = _find_matmul_shape(matmul, flops)
    if shape is None:
        return False
    rows, contracted, columns, count = shape
    bf16_flops_per_cycle = chip.bf16_flops_per_s / chip.devices_per_chip / chip.clock_hz
    wide = 2 * _round_up(contracted, _LANES) * _round_up(columns, _LANES) * bf16_flops / flops / bf16_flops_per_cycle
    found["mxu"] += count * _round_up(rows, _SUBLANES) * wide
    found["push"] += count * _LANES * wide
    found["result"] += count * _round_up(rows, _SUBLANES) * _round_up(columns, _LANES) / _TILE
    return True


def _find_matmul_shape(matmul: HloInstruction, flops: int) -> tuple[float, float, float, float] | None:
    """Rows, contracted elements and columns of a matmul, and the number of such matmuls."""
    if not flops:
        return None
    left, right, result = (one.shape.dimensions for one in (*matmul.operands[:2], matmul))
    if matmul.opcode != "convolution":
        contracted = prod(left[axis] for axis in _parse_axes(matmul, "lhs_contracting_dims"))
        count = prod(left[axis] for axis in _parse_axes(matmul, "lhs_batch_dims"))
        rows = prod(left) // max(contracted * count, 1)
        return rows, contracted, flops / 2 / max(rows * contracted * count, 1), count
    labels = _LABELS.fullmatch(matmul.attributes.get("dim_labels", ""))
    if labels is None:
        return None
    kernel, out = (dict(zip(names, sizes, strict=True)) for names, sizes in ((labels[2], right), (labels[3], result)))
    rows, contracted, columns = out.get("b", 1), kernel.get("i", 1), kernel.get("o", 1)
    positions = flops / 2 / (rows * contracted * columns)
    taps, places = (prod(size for name, size in one.items() if name.isdigit()) for one in (kernel, out))
    if positions == taps == places:
        return rows, contracted, columns, positions
    rows *= positions / taps
    return (rows, contracted, columns, taps) if taps <= places else (rows, contracted * taps, columns, 1)


def _parse_axes(matmul: HloInstruction, key: str) -> list[int]:
    return [int(axis) for axis in re.findall(r"\d+", matmul.attributes.get(key, ""))]


def _list_vector_work(one: HloInstruction) -> Iterator[tuple[str, float]]:
    opcode, tiles = one.opcode, count_tiles(one.shape)
    if opcode == "convert":
        yield "narrowed" if _count_per_word(one.shape) > _count_per_word(one.operands[0].shape) else "widened", tiles
    elif opcode in _CLASS_OF:
        yield _CLASS_OF[opcode], tiles
    elif opcode in _REARRANGES:
        yield _find_move(one), tiles
    elif opcode == "broadcast":
        kept = one.dimensions or ()
        new = [axis not in kept for axis in _find_minor(one.shape)]
        if kept and any(new):
            yield "lane_broadcast" if new[0] else "sublane_broadcast", tiles
    elif opcode == "reduce-window":
        yield "window", count_tiles(one.operands[0].shape)
    elif opcode == "reduce":
        yield from _list_reduce_work(one)


def _list_reduce_work(reduce: HloInstruction) -> Iterator[tuple[str, float]]:
    source, gone = reduce.operands[0].shape, reduce.dimensions or ()
    tiles, minor = count_tiles(source) * (len(reduce.operands) // 2), _find_minor(source)
    if minor and minor[0] in gone:
        yield "lane_reduce", tiles
        yield "lane_reduce_rows", tiles / ceil(source.dimensions[minor[0]] / _LANES)
    else:
        yield "sublane_reduce" if len(minor) > 1 and minor[1] in gone else "reduce", tiles


def count_tiles(shape: Shape) -> float:
    """Tiles of 8 times 128 elements that arrays fill."""
    return sum(map(_count_leaf_tiles, shape.leaves()))


def _count_leaf_tiles(leaf: Shape) -> float:
    minor = _find_minor(leaf)
    if len(minor) < 2:
        return ceil(prod(leaf.dimensions) / _TILE)
    lanes, sublanes = (leaf.dimensions[axis] for axis in minor)
    outside = prod(leaf.dimensions) / max(lanes * sublanes, 1)
    rows = sublanes / _SUBLANES if sublanes < _SUBLANES and outside > 1 else ceil(sublanes / _SUBLANES)
    return outside * ceil(lanes / _LANES) * max(rows, 1 / _SUBLANES)


def _count_per_word(shape: Shape) -> int:
    return min(_PER_WORD.get(shape.element_type, 1), 4)


def _find_minor(shape: Shape) -> tuple[int, ...]:
    """The two dimensions of an array that vary fastest."""
    return () if shape.layout is None else tuple(shape.layout.minor_to_major[:2])


def _find_move(one: HloInstruction) -> str:
    """The class of an operation that moves elements: it changes what lies along lanes, along sublanes, or neither."""
    before, after = _find_minor(one.operands[0].shape), _find_minor(one.shape)
    if one.opcode == "reshape":
        sizes = [
            [each.shape.dimensions[axis] for axis in axes] for each, axes in ((one.operands[0], before), (one, after))
        ]
        return "moved" if sizes[0][:1] == sizes[1][:1] else "turned"
    if one.opcode == "transpose":
        order = one.dimensions or ()
        after = tuple(order[axis] for axis in after if axis < len(order))
    return "turned" if before[:1] != after[:1] else "moved" if before != after else "kept"


def _round_up(size: float, to: int) -> float:
    return ceil(size / to) * to


_IN_BOTH = ("start", "read", "write", "sharpness")
_SHARPNESS_OF_LOADING = 4.0
"""Weights are loaded while others are multiplied, so that the longer one decides."""


def estimate_cycles(work: Tally, weights: Mapping[str, float]) -> float:
    """The cycles of an instruction: those of its start, and more or less of what takes longest of all that it does.

    Args:
        work: What it does.
        weights: Cycles by what it does, and how sharply the longest one decides.
    """
    is_matmul = work["matmuls"]
    start, read, write, sharpness = (
        is_matmul * weights[f"fused_{name}"] + (1 - is_matmul) * weights[name] for name in _IN_BOTH
    )
    vector = sum(weights[name] * work.get(name, 0.0) for name in (*VECTOR, *PORTS, *FUSED))
    multiplied, loaded = (weights[name] * work.get(name, 0.0) for name in MATRIX)
    matrix = _blend(multiplied, loaded, _SHARPNESS_OF_LOADING)
    computing = _blend(matrix, vector, 1 + weights["fused_unit_sharpness"])
    memory = read * work["read"] + write * work["write"]
    return start + weights["from_hbm"] * work["from_hbm"] + _blend(memory, computing, 1 + sharpness)


def _blend(one: float, other: float, sharpness: float) -> float:
    """From the sum of both, for a sharpness of 1, to the larger one."""
    scale = one + other + 1e-9
    found: float = scale * ((one / scale) ** sharpness + (other / scale) ** sharpness) ** (1 / sharpness)
    return found
