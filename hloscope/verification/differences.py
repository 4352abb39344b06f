"""The differences between two runs' outputs, by element and by shard, compared with the tolerance.

Does not use JAX: shards are NumPy arrays with their place; tolerances follow from types and lengths of sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from hloscope.verification.model import ErrorMap, OutputComparison, Tolerance, ToleranceSource, Worst

_SHARDS_EXCHANGED = 64
"""The most shards of an output for which a wrong one is searched for among the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputShard:
    """One device's part of an output.

    Attributes:
        place: The device's position in the mesh, such as `X=1, Y=0`.
        start: The index of its first element in the whole array.
        values: Its elements.
    """

    place: str
    start: tuple[int, ...]
    values: Any


def compare_shards(
    shards: Sequence[OutputShard],
    expected: Any,
    allowed: Any,
    *,
    name: str,
    subject: str,
    against: str,
    unstable: Any = False,
) -> OutputComparison:
    """Compares each device's shard with the same part of an expected array.

    Args:
        shards: The shard of every device.
        expected: The whole expected array.
        allowed: The allowed error of each element for floating-point numbers; other types must agree exactly. NaN
            agrees with NaN, and an infinity with itself.
        name: The output's name.
        subject: The run with this output.
        against: The run with the expected output.
        unstable: Elements that are not judged.
    """
    errors, largest, worst, is_informative = np.zeros(expected.shape), 0.0, None, False
    unstable = np.broadcast_to(unstable, expected.shape)
    wrong_shards: list[str] = []
    blind_shards: list[str] = []
    for shard in shards:
        place = find_region(shard)
        part, limits = expected[place], allowed[place]
        ratios = np.where(unstable[place], 0.0, compute_error_ratios(shard.values, part, limits))
        says_something = find_telling_elements(part, limits) & ~unstable[place]
        errors[place] = np.maximum(errors[place], ratios)
        wrong_shards += [shard.place] if np.any(ratios > 1) else []
        is_informative |= bool(np.any(says_something))
        # true zeros aside, most of it could be something else and count as right
        is_blind = 2 * np.count_nonzero(says_something) < np.count_nonzero(part != 0)
        blind_shards += [shard.place] if is_blind else []
        if ratios.size and float(ratios.max()) > largest:
            largest = float(ratios.max())
            worst = _find_worst(shard, part, ratios, limits)
    held = sum(int(shard.values.size) for shard in shards)
    return OutputComparison(
        name=name,
        against=against,
        subject=subject,
        elements=int(expected.size),
        copies=held // expected.size if expected.size else 1,
        wrong=int(np.count_nonzero(errors > 1)),
        shards=len(shards),
        wrong_shards=tuple(wrong_shards),
        worst=worst,
        largest_error=largest,
        informative=is_informative,
        blind_shards=tuple(blind_shards),
        unstable=int(np.count_nonzero(unstable)),
        error_map=make_error_map(errors) if largest else None,
    )


def make_error_map(errors: Any) -> ErrorMap:
    """A coarse map of an output's errors.

    Args:
        errors: The error of each element, as a multiple of the tolerance.
    """
    flat = errors.reshape(-1, errors.shape[-1] if errors.ndim else 1)
    rows, columns = (np.arange(min(size, ErrorMap.MOST)) * size // min(size, ErrorMap.MOST) for size in flat.shape)
    largest = np.maximum.reduceat(np.maximum.reduceat(flat, rows, axis=0), columns, axis=1)
    return ErrorMap(
        shape=tuple(map(int, errors.shape)),
        errors=tuple(tuple(_round_error(float(error)) for error in row) for row in largest),
    )


def _round_error(error: float) -> float:
    """An error with three digits; a value beyond 1 stays beyond 1."""
    digits = float(f"{error:.3g}")
    return 1.01 if error > 1 >= digits else digits


def find_region(shard: OutputShard) -> tuple[slice, ...]:
    """The part of the whole array in a shard."""
    return tuple(slice(start, start + size) for start, size in zip(shard.start, shard.values.shape, strict=True))


def compute_allowed(tolerance: Tolerance, expected: Any) -> Any:
    """The allowed error of each element under a tolerance; 0 for types that must agree exactly."""
    if not is_inexact(expected):
        return np.zeros(expected.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        return tolerance.absolute + tolerance.relative * np.abs(as_wide(expected))


def as_wide(values: Any) -> Any:
    """Numbers in single precision if that holds their type, otherwise in double precision, real or complex."""
    values = np.asarray(values)
    if not is_inexact(values) or values.dtype.itemsize > (8 if np.iscomplexobj(values) else 4):
        return as_double(values)
    return values.astype(np.complex64 if np.iscomplexobj(values) else np.float32, copy=False)


def as_double(values: Any) -> Any:
    """Numbers in double precision, real or complex."""
    values = np.asarray(values)
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def find_exchanged(shards: Sequence[OutputShard], wrong: Sequence[str], expected: Any, allowed: Any) -> tuple[str, ...]:
    """A message for each wrong shard that holds the expected values of another one."""
    found = []
    for shard in shards:
        if (
            shard.place not in wrong
            or len(shards) > _SHARDS_EXCHANGED
            or not np.any(find_telling_elements(shard.values, 0.0))
        ):
            continue
        for other in shards:
            part = find_region(other)
            if other.values.shape != shard.values.shape or find_region(shard) == part:
                continue
            if not np.any(compute_error_ratios(shard.values, expected[part], allowed[part]) > 1):
                found.append(f"{shard.place} holds what the reference holds at {other.place}")
                break
    return tuple(found)


def compute_error_ratios(found: Any, expected: Any, allowed: Any) -> Any:
    """The error of each element as a multiple of the tolerance; infinite without one, or if one value is not finite."""
    if not is_inexact(found):
        return np.where(found == expected, 0.0, inf)
    errors = np.abs(compute_errors(as_wide(found), as_wide(expected)))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratios = np.where((allowed > 0) & np.isfinite(errors), errors / allowed, inf)
    return np.where(errors == 0, 0.0, ratios)


def compute_errors(found: Any, expected: Any) -> Any:
    """The error of each element; infinite if one of the two is not finite and the other differs."""
    with np.errstate(invalid="ignore", over="ignore"):
        errors = found - expected
        if np.isfinite(errors).all():
            return errors
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return np.where(np.isfinite(errors), errors, np.where(same, 0, inf))


def compute_root_mean_square(expected: Any) -> float:
    """The root mean square of an array's finite elements; 0 without any, or for a type that is compared exactly."""
    if not is_inexact(expected):
        return 0.0
    magnitudes = np.abs(as_wide(expected))
    finite = magnitudes[np.isfinite(magnitudes)]
    largest = float(finite.max(initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(finite / largest)))) if largest else 0.0  # no square overflows


def find_telling_elements(expected: Any, allowed: Any) -> Any:
    """The elements that would reveal a wrong program: those that are finite, and for which a zero would be wrong."""
    if not is_inexact(expected):
        return expected != 0
    return np.isfinite(as_wide(expected)) & (compute_error_ratios(np.zeros_like(expected), expected, allowed) > 1)


def assemble_shards(shards: Iterable[OutputShard], shape: tuple[int, ...], dtype: Any) -> Any:
    """The whole array of some shards; of several copies the first one counts."""
    array = np.zeros(shape, dtype)
    for shard in reversed(list(shards)):
        array[find_region(shard)] = shard.values
    return array


def is_inexact(values: Any) -> bool:
    """Returns whether an array holds floating-point numbers, real or complex, including those of ml_dtypes."""
    dtype = np.asarray(values).dtype
    return np.issubdtype(dtype, np.inexact) or dtype.name.startswith(("bfloat", "float"))


def _find_worst(shard: OutputShard, expected: Any, ratios: Any, allowed: Any) -> Worst:
    local = tuple(int(index) for index in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    return Worst(
        index=tuple(start + index for start, index in zip(shard.start, local, strict=True)),
        shard=shard.place,
        local_index=local,
        found=_format_value(shard.values[local]),
        expected=_format_value(expected[local]),
        allowed=float(allowed[local]),
    )


def _format_value(value: Any) -> str:
    if isinstance(value, np.bool_ | bool):
        return str(bool(value)).lower()
    if not is_inexact(value):
        return str(int(value))
    return f"{complex(value):.7g}" if np.iscomplexobj(value) else f"{float(value):.7g}"


_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance from 1 to the next number of a floating-point type, by StableHLO's name."""
_EIGHT_BITS_OR_LESS = 2.0**-3
_MATMUL_ROUNDOFF = {"cpu": 2.0**-24, "tpu": 2.0**-8, "gpu": 2.0**-11}
_SAFETY = 4
_LARGEST = 0.25
"""The largest meaningful tolerance: a missing term of four changes a sum by as much."""

_FLOAT_TENSOR = re.compile(r"tensor<(?:[\dx?]*x)?(?:complex<)?(bf16|f\d+\w*)")
_DOT = re.compile(
    r"stablehlo\.dot_general.*?contracting_dims = \[([\d, ]*)\] x \[[\d, ]*\].*?: \(tensor<([^>]*)>, tensor<[^>]*>\)"
)
_RAGGED_DOT = re.compile(r"ragged_dot.*?: \(tensor<([^>]*)>, tensor<")
_REDUCE = re.compile(r"stablehlo\.reduce\(.*?across dimensions = \[([\d, ]*)\] : \(tensor<([^>]*)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The properties that determine the rounding errors of a program.

    Attributes:
        narrowest: Unit roundoff of the narrowest floating-point type of a stored value; 0 without floats.
        sum_length: Terms of the longest sum.
        products: Matrix products in the text.
    """

    narrowest: float
    sum_length: int
    products: int


def read_rounding(stablehlo: str, devices: int) -> Rounding:
    """Reads the rounding properties of a lowered program.

    Args:
        stablehlo: The module's text.
        devices: The number of devices it runs on; sums inside `shard_map` are at most that many times longer.
    """
    dots, ragged_dots = _DOT.findall(stablehlo), _RAGGED_DOT.findall(stablehlo)
    lengths = [_find_length(dims, shape) for dims, shape in (*dots, *_REDUCE.findall(stablehlo))]
    lengths += [_parse_sizes(shape)[-1] for shape in ragged_dots if _parse_sizes(shape)]
    manual = devices if is_manual(stablehlo) else 1
    stored = [_UNIT_ROUNDOFF.get(name, _EIGHT_BITS_OR_LESS) for name in _FLOAT_TENSOR.findall(stablehlo)]
    return Rounding(
        narrowest=max(stored, default=0.0),
        sum_length=manual * max(lengths, default=1),
        products=len(dots) + len(ragged_dots),
    )


def is_manual(stablehlo: str) -> bool:
    """Returns whether a part of a lowered program is written for each device, with `shard_map`."""
    return any(mark in stablehlo for mark in ("manual_computation", "SPMDFullToShardShape", "GlobalToLocalShape"))


def compute_relative_tolerance(roundings: tuple[Rounding, ...], *, devices: int, platform: str) -> float:
    """The relative tolerance for outputs of programs with these rounding properties.

    `4 * (u_stored * sqrt(devices + products) + u_accumulated * sqrt(sum length))`, where u is the unit roundoff: values
    are stored once for each product and, in a sum over devices, once for each device; sums are accumulated in f32 or
    better. A TPU multiplies f32 in one pass of bf16 at default precision, a GPU in TF32.

    Args:
        roundings: The properties of each program.
        devices: The number of devices that a sum may be spread over.
        platform: `cpu`, `tpu` or `gpu`.
    """
    products = max(rounding.products for rounding in roundings)
    sums = max(rounding.sum_length for rounding in roundings)
    stored = max(
        *(rounding.narrowest for rounding in roundings), _MATMUL_ROUNDOFF.get(platform, 0.0) if products else 0.0
    )
    accumulated = min(stored, _UNIT_ROUNDOFF["f32"])
    return min(_LARGEST, _SAFETY * (stored * sqrt(devices + products) + accumulated * sqrt(sums)))


def make_tolerance(relative: float, typical: float, *, rtol: float | None, atol: float | None) -> Tolerance:
    """The tolerance of one output.

    Args:
        relative: The relative tolerance from the programs' rounding.
        typical: The root mean square of the output: values that cancel to nearly zero have errors of this size's terms.
        rtol: The user's own relative tolerance; None to take `relative`.
        atol: The user's own absolute one; None to take the relative one of `typical`.
    """
    source: ToleranceSource = "types" if rtol is None and atol is None else "user"
    relative = relative if rtol is None else rtol
    return Tolerance(relative=relative, absolute=relative * typical if atol is None else atol, source=source)


def _find_length(dims: str, shape: str) -> int:
    sizes = _parse_sizes(shape)
    chosen = [int(dim) for dim in dims.split(",") if dim.strip()]
    return prod(sizes[dim] for dim in chosen if dim < len(sizes))


def _parse_sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")[:-1] if size.isdigit()]
