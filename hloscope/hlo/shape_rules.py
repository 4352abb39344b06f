"""Shape inference, as in XLA, for operations whose text omits the result shape, by opcode; windows of convolutions.

Source: xla/service/shape_inference.cc, and the opcodes for which xla/hlo/parser/hlo_parser.cc asks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from hloscope.base.units import count_element_bits
from hloscope.hlo.records import MAX_DEPTH, UNBOUNDED, UNKNOWN_SHAPE, Shape

_INTEGER = re.compile(r"-?\d+")
_WINDOW_ITEM = re.compile(r"(\w+)=([\dx_-]+)")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_PARTS = {"c64": "f32", "c128": "f64"}
_COMPLEX = {part: whole for whole, part in _PARTS.items()}
_FLOATS = {
    "f4e2m1fn": (3, 2), "f8e3m4": (4, 5), "f8e4m3b11fnuz": (5, 4), "f8e4m3": (8, 4), "f8e4m3fnuz": (8, 4),
    "f8e4m3fn": (9, 4), "f8e5m2": (16, 3), "f8e5m2fnuz": (16, 3), "f8e8m0fnu": (128, 1), "f16": (16, 11),
    "bf16": (128, 8), "f32": (128, 24), "f64": (1024, 53),
}  # fmt: skip
"""The overflow exponent and significand bits of each type: the wider of two types has the greater pair."""

_ELEMENTWISE = """
    add and atan2 compare divide maximum minimum mulhi multiply or power remainder shift-left shift-right-arithmetic
    shift-right-logical subtract xor
    """
"""Opcodes with two operands that may differ in their precision, and in which dimensions are dynamic."""

_LIKE_FIRST_OPERAND = """
    abs acos acosh add-dependency asin asinh atanh cbrt ceil copy cosine cosh count-leading-zeros domain
    dynamic-update-slice erf exponential exponential-minus-one floor log log-plus-one logistic negate not opt-barrier
    popcnt reverse round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh while
    """
_MOST_LEAVES = 100_000
"""Maximum number of leaves of an inferred tuple: tuples of tuples double at every step."""


class _Size(NamedTuple):
    """One dimension: its size, or `UNBOUNDED`, and whether it is dynamic."""

    size: int
    dynamic: bool = False


_Attributes = Mapping[str, str]
"""The raw values of an instruction's attributes."""

_Rule = Callable[[_Attributes, Sequence[Shape]], Shape]
"""A rule: the result's shape from the attributes and, in order, the shapes that `find_needed_shapes` names."""


def find_needed_shapes(opcode: str) -> tuple[slice, bool]:
    """The operands whose shapes determine the result's, and whether the root of the first callee does."""
    operands = slice(None) if opcode in _RULES else slice(0)
    return _OPERANDS.get(opcode, operands), opcode in _APPLYING


def infer_shape(opcode: str, attributes: _Attributes, shapes: Sequence[Shape], *, has_callee: bool) -> Shape:
    """The shape that XLA infers; unknown if there is no rule, or if the input is unknown or does not fit.

    Args:
        opcode: The opcode.
        attributes: The raw values of its attributes.
        shapes: The shapes that `find_needed_shapes` names, in that order.
        has_callee: Whether the instruction calls a computation.
    """
    is_whole = has_callee or opcode not in _APPLYING
    if opcode not in _RULES or not is_whole or (UNKNOWN_SHAPE in shapes and opcode != "tuple"):
        return UNKNOWN_SHAPE
    try:
        return _RULES[opcode](attributes, shapes)
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return UNKNOWN_SHAPE  # text that XLA rejects: a missing dimension or operand


def _infer_elementwise(_: _Attributes, shapes: Sequence[Shape]) -> Shape:
    first, *others = shapes
    is_same = not others or (first.element_type, str(first)) == (others[0].element_type, str(others[0]))
    return first if is_same else _merge_shapes(shapes)


def _infer_compare(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    return replace(_infer_elementwise(attributes, shapes), element_type="pred", layout=None)


def _infer_tuple(_: _Attributes, shapes: Sequence[Shape]) -> Shape:
    extents = [_measure_nesting(shape) for shape in shapes]
    leaves, depth = sum(count for count, _ in extents), 1 + max((depth for _, depth in extents), default=0)
    if leaves > _MOST_LEAVES or depth > MAX_DEPTH:
        return UNKNOWN_SHAPE
    return Shape(element_type="tuple", elements=tuple(shapes))


def _measure_nesting(shape: Shape) -> tuple[int, int]:
    """Number of leaves of a tuple, and its nesting depth."""
    if not shape.elements:
        return 1, 0
    extents = [_measure_nesting(element) for element in shape.elements]
    return sum(count for count, _ in extents), 1 + max(depth for _, depth in extents)


def _infer_element(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    index, elements = int(attributes["index"]), shapes[0].elements
    return UNKNOWN_SHAPE if index < 0 else elements[index]


def _choose_wider(types: Iterable[str]) -> str:
    """The widest of some element types, as XLA chooses if operands differ.

    Raises:
        KeyError: Two of them are equally wide.
    """
    found, *others = dict.fromkeys(types)
    for other in others:
        ours, theirs = _describe_precision(found), _describe_precision(other)
        if ours == theirs:
            raise KeyError(other)
        found = max((ours, found), (theirs, other))[1]
    return found


def _merge_shapes(shapes: Sequence[Shape]) -> Shape:
    """The result of an element-wise operation: dynamic if one operand is, bounded if one is.

    Raises:
        ValueError: The operands differ in their sizes, or in more than the precision of floats.
    """
    types = {shape.element_type for shape in shapes}
    if len(types) > 1 and not types <= _FLOATS.keys():
        raise ValueError(types)
    sizes = [_merge_sizes(column) for column in zip(*map(_sizes, shapes), strict=True)]
    return _array(_choose_wider(types), sizes)


def _merge_sizes(column: Sequence[_Size]) -> _Size:
    bounded = [extent for extent in column if extent.size != UNBOUNDED]
    if len({extent.size for extent in bounded}) > 1:
        raise ValueError(column)
    return _Size(bounded[0].size, any(extent.dynamic for extent in bounded)) if bounded else _Size(UNBOUNDED, True)


def _describe_precision(element_type: str) -> tuple[tuple[int, int], int, bool]:
    part = _PARTS.get(element_type, element_type)
    bits = count_element_bits(part)
    if bits is None:
        raise KeyError(element_type)
    return _FLOATS.get(part, (-1, -1)), bits, part.startswith("s")


def _sizes(shape: Shape) -> list[_Size]:
    return [_Size(*pair) for pair in zip(shape.dimensions, shape.dynamic, strict=True)]


def _array(element_type: str, sizes: Sequence[_Size]) -> Shape:
    return Shape(
        element_type=element_type,
        dimensions=tuple(extent.size for extent in sizes),
        dynamic=tuple(extent.dynamic for extent in sizes),
    )


def _make_one_or_tuple(shapes: Sequence[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else Shape(element_type="tuple", elements=tuple(shapes))


def _integers(attributes: _Attributes, key: str) -> list[int]:
    return list(map(int, _INTEGER.findall(attributes.get(key, ""))))


def _without(sizes: Sequence[_Size], *dropped: Sequence[int]) -> list[_Size]:
    positions = {position for group in dropped for position in group}
    if not positions <= set(range(len(sizes))):
        raise IndexError(positions)
    return [extent for position, extent in enumerate(sizes) if position not in positions]


def _make_scalar_rule(element_type: str) -> _Rule:
    return lambda _, shapes: Shape(element_type=element_type)


def _make_like_rule(number: int) -> _Rule:
    return lambda _, shapes: shapes[number]


# ---- shapes put together or apart


def _infer_broadcast(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    """The shape of broadcasting a scalar to a scalar: for all others the sizes do not follow from the operand."""
    return shapes[0] if not _integers(attributes, "dimensions") and not shapes[0].dimensions else UNKNOWN_SHAPE


def _infer_complex(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    both = _merge_shapes(shapes)
    return _array(_COMPLEX[both.element_type], _sizes(both))


def _infer_part(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    element_type = shapes[0].element_type
    return _array(_PARTS.get(element_type, element_type), _sizes(shapes[0]))


def _infer_transpose(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    sizes, order = _sizes(shapes[0]), _integers(attributes, "dimensions")
    if sorted(order) != list(range(len(sizes))):
        raise ValueError(order)
    return _array(shapes[0].element_type, [sizes[axis] for axis in order])


def _infer_concatenate(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    (dimension,) = _integers(attributes, "dimensions")
    sizes = [list(column) for column in zip(*map(_sizes, shapes), strict=True)]
    along = sizes[dimension]
    bounded = all(extent.size != UNBOUNDED for extent in along)
    total = sum(extent.size for extent in along) if bounded else UNBOUNDED
    result = [
        _Size(total, any(extent.dynamic for extent in column)) if position == dimension else _merge_sizes(column)
        for position, column in enumerate(sizes)
    ]
    return _array(_choose_wider(shape.element_type for shape in shapes), result)


def _infer_pad(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    sizes = _sizes(shapes[0])
    padding = [[*map(int, part.split("_")), 0][:3] for part in attributes["padding"].split("x")]
    result = [
        extent
        if extent.size == UNBOUNDED
        else _Size(low + extent.size + high + max(extent.size - 1, 0) * inside, extent.dynamic)
        for extent, (low, high, inside) in zip(sizes, padding, strict=bool(sizes))
    ]
    return _array(_choose_wider(shape.element_type for shape in shapes), result)


def _infer_dimension_set(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    (dimension,) = _integers(attributes, "dimensions")
    sizes = _sizes(shapes[0])
    sizes[dimension] = _Size(sizes[dimension].size, True)
    return _array(shapes[0].element_type, sizes)


def _infer_topk(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    sizes = [*_sizes(shapes[0])[:-1], _Size(int(attributes["k"]))]
    return _make_one_or_tuple([_array(shapes[0].element_type, sizes), _array("s32", sizes)])


def _infer_gather(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    offsets = set(_integers(attributes, "offset_dims"))
    dropped = (_integers(attributes, "collapsed_slice_dims"), _integers(attributes, "operand_batching_dims"))
    slices = iter(_without([_Size(size) for size in _integers(attributes, "slice_sizes")], *dropped))
    indices, vector = _sizes(shapes[1]), int(attributes["index_vector_dim"])
    batch = iter(_without(indices, [vector]) if vector < len(indices) else indices)
    rank = len(offsets) + len(indices) - (vector < len(indices))
    return _array(shapes[0].element_type, [next(slices if axis in offsets else batch) for axis in range(rank)])


# ---- sums


def _apply(root: Shape, sizes: Sequence[_Size]) -> Shape:
    """Arrays of these sizes, with the types that a computation on scalars returns."""
    if not root.is_tuple:
        return _array(root.element_type, sizes)
    return _make_one_or_tuple([_array(leaf.element_type, sizes) for leaf in root.elements])


def _infer_map(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    *operands, root = shapes
    return _apply(root, _sizes(operands[0]))


def _infer_reduce(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    *operands, root = shapes
    return _apply(root, _without(_sizes(operands[0]), _integers(attributes, "dimensions")))


def _infer_reduce_window(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    *operands, root = shapes
    sizes = _sizes(operands[0])
    windows = _parse_windows(attributes)
    return _apply(root, [_count_windows(extent, window) for extent, window in zip(sizes, windows, strict=True)])


def _parse_windows(attributes: _Attributes) -> list[dict[str, str]]:
    """The fields of `window` for each axis, such as `{"size": "3", "pad": "1_1"}`."""
    said = {key: text.split("x") for key, text in _WINDOW_ITEM.findall(attributes.get("window", ""))}
    return [{key: parts[axis] for key, parts in said.items()} for axis in range(len(said.get("size", ())))]


def _count_windows(extent: _Size, window: dict[str, str]) -> _Size:
    """The number of windows along one axis."""
    if extent.size == UNBOUNDED:
        return extent
    low, high = map(int, window.get("pad", "0_0").split("_"))
    room = low + high + (0 if extent.size == 0 else (extent.size - 1) * int(window.get("lhs_dilate", "1")) + 1)
    reach = (int(window["size"]) - 1) * int(window.get("rhs_dilate", "1")) + 1
    count = 0 if reach > room else (room - reach) // int(window.get("stride", "1")) + 1
    return _Size(count, extent.dynamic)


def _infer_scan(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    """The results of each step, stacked along the scanned dimension, then the last carried values."""
    root, carried = shapes[-1], int(attributes["num_carries"])
    if not root.is_tuple:
        return root
    (dimension,) = _integers(attributes, "dimensions")
    steps = _Size(shapes[0].dimensions[dimension])
    stacked = root.elements[: len(root.elements) - carried]
    sizes = [(shape, _sizes(shape)) for shape in stacked]
    parts = [_array(shape.element_type, [*own[:dimension], steps, *own[dimension:]]) for shape, own in sizes]
    return Shape(element_type="tuple", elements=(*parts, *root.elements[len(stacked) :]))


# ---- products


def _infer_product(attributes: _Attributes, shapes: Sequence[Shape], grouped: Sequence[int] = ()) -> Shape:
    """Batch dimensions, then the remaining ones of each operand; for the second one without the grouped ones."""
    left, right = _sizes(shapes[0]), _sizes(shapes[1])
    batch, other = _integers(attributes, "lhs_batch_dims"), _integers(attributes, "rhs_batch_dims")
    result = [
        *(left[axis] for axis in batch),
        *_without(left, batch, _integers(attributes, "lhs_contracting_dims")),
        *_without(right, other, _integers(attributes, "rhs_contracting_dims"), grouped),
    ]
    return _array(_choose_wider(shape.element_type for shape in shapes[:2]), result)


def _infer_ragged_dot(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    product = _infer_product(attributes, shapes, grouped=_integers(attributes, "rhs_group_dims"))
    (ragged,) = _integers(attributes, "lhs_ragged_dims")
    if ragged not in _integers(attributes, "lhs_contracting_dims"):
        return product
    return _array(product.element_type, [_sizes(shapes[2])[-1], *_sizes(product)])


def _infer_convolution(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    labels = _LABELS.fullmatch(attributes["dim_labels"])
    if labels is None:
        return UNKNOWN_SHAPE
    left, right = (dict(zip(labels[at], _sizes(shapes[at - 1]), strict=True)) for at in (1, 2))
    groups = int(attributes.get("batch_group_count", "1"))
    sizes = {"b": _Size(left["b"].size // groups, left["b"].dynamic), "f": right["o"]}
    axes = sorted(label for label in left if label.isdigit())
    for axis, window in zip(axes, _parse_windows(attributes), strict=True):
        sizes[axis] = _count_windows(left[axis], {"size": str(right[axis].size), **window})
    if any(extent.size == UNBOUNDED for extent in (*left.values(), *right.values())):
        return UNKNOWN_SHAPE
    return _array(_choose_wider(shape.element_type for shape in shapes), [sizes[label] for label in labels[3]])


def _infer_fft(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    (operand,) = shapes
    sizes, length = _sizes(operand), _integers(attributes, "fft_length")[-1]
    match attributes["fft_type"]:
        case "RFFT":
            return _array(_COMPLEX[operand.element_type], [*sizes[:-1], _Size(length // 2 + 1, sizes[-1].dynamic)])
        case "IRFFT":
            return _array(_PARTS[operand.element_type], [*sizes[:-1], _Size(length, sizes[-1].dynamic)])
    return operand


def _infer_batch_norm(attributes: _Attributes, shapes: Sequence[Shape]) -> Shape:
    feature = _sizes(shapes[0])[int(attributes["feature_index"])]
    statistic = _array(shapes[0].element_type, [feature])
    return _make_one_or_tuple([shapes[0], statistic, statistic])


_APPLYING = frozenset({"call", "conditional", "map", "reduce", "reduce-window", "scan"})
"""Opcodes whose result type comes from the root of the first computation that they call."""

_OPERANDS = {
    **dict.fromkeys(("after-all", "call"), slice(0)),
    **dict.fromkeys((*_LIKE_FIRST_OPERAND.split(), "get-tuple-element"), slice(1)),
    "clamp": slice(1, 2),
    "select": slice(1, 3),
}
"""The operands that determine the result, for opcodes in which not all of them do."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _infer_elementwise),
    **dict.fromkeys((*_LIKE_FIRST_OPERAND.split(), "call", "clamp"), _make_like_rule(0)),
    "after-all": _make_scalar_rule("token"),
    "batch-norm-grad": _infer_batch_norm,
    "batch-norm-inference": _make_like_rule(0),
    "batch-norm-training": _infer_batch_norm,
    "broadcast": _infer_broadcast,
    "cholesky": _make_like_rule(0),
    "compare": _infer_compare,
    "complex": _infer_complex,
    "concatenate": _infer_concatenate,
    "conditional": _make_like_rule(-1),
    "convolution": _infer_convolution,
    "dot": _infer_product,
    "fft": _infer_fft,
    "gather": _infer_gather,
    "get-dimension-size": _make_scalar_rule("s32"),
    "get-tuple-element": _infer_element,
    "imag": _infer_part,
    "is-finite": lambda _, shapes: _array("pred", _sizes(shapes[0])),
    "map": _infer_map,
    "pad": _infer_pad,
    "partition-id": _make_scalar_rule("u32"),
    "ragged-dot": _infer_ragged_dot,
    "real": _infer_part,
    "reduce": _infer_reduce,
    "reduce-window": _infer_reduce_window,
    "replica-id": _make_scalar_rule("u32"),
    "scan": _infer_scan,
    "scatter": lambda _, shapes: _make_one_or_tuple(shapes[: len(shapes) // 2]),
    "select": _infer_elementwise,
    "select-and-scatter": _make_like_rule(0),
    "set-dimension-size": _infer_dimension_set,
    "sort": lambda _, shapes: _make_one_or_tuple(shapes),
    "topk": _infer_topk,
    "transpose": _infer_transpose,
    "triangular-solve": _make_like_rule(1),
    "tuple": _infer_tuple,
}


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
