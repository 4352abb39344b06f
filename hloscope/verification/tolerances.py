"""How far two correct programs may differ: from the types they compute in and the lengths of their sums.

Two programs that add the same numbers in another order differ by rounding. What is stored in a narrow type is rounded
once for each sum or product that passes through it; what is accumulated is rounded once for each term, and the errors
add up like a random walk.

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., sections 3.1 (rounding errors of sums) and
2.8 (their statistical growth with the square root of the number of terms).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod, sqrt

from hloscope.verification.model import Tolerance, ToleranceSource

_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_EIGHT_BITS_OR_LESS = 2.0**-3
_MATMUL_ROUNDOFF = {"cpu": 2.0**-24, "tpu": 2.0**-8, "gpu": 2.0**-11}
_SAFETY = 4
_LARGEST = 0.25
"""Beyond this a comparison would say nothing: a missing term of four changes a sum by as much."""

_FLOAT_TENSOR = re.compile(r"tensor<(?:[\dx?]*x)?(?:complex<)?(bf16|f\d+\w*)")
_DOT = re.compile(
    r"stablehlo\.dot_general.*?contracting_dims = \[([\d, ]*)\] x \[[\d, ]*\].*?: \(tensor<([^>]*)>, tensor<([^>]*)>\)"
)
_RAGGED_DOT = re.compile(r"ragged_dot.*?: \(tensor<([^>]*)>, tensor<")
_REDUCE = re.compile(r"stablehlo\.reduce\(.*?across dimensions = \[([\d, ]*)\] : \(tensor<([^>]*)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What decides the rounding errors of a program.

    Attributes:
        narrowest: Unit roundoff of the narrowest floating-point type that a value is stored in; 0 without floats.
        sum_length: Terms of the longest sum.
        products: Matrix products in the text.
    """

    narrowest: float
    sum_length: int
    products: int


def rounding_of(stablehlo: str, devices: int) -> Rounding:
    """Reads a program as it was lowered.

    Args:
        stablehlo: The module's text.
        devices: Devices it runs on; sums inside `shard_map` are as much longer at most.
    """
    lengths = [_length(dims, shape) for dims, shape, _ in _DOT.findall(stablehlo)]
    lengths += [_sizes(shape)[-1] for shape in _RAGGED_DOT.findall(stablehlo) if _sizes(shape)]
    lengths += [_length(dims, shape) for dims, shape in _REDUCE.findall(stablehlo)]
    manual = devices if is_manual(stablehlo) else 1
    stored = [unit_roundoff(name) for name in _FLOAT_TENSOR.findall(stablehlo)]
    return Rounding(
        narrowest=max(stored, default=0.0),
        sum_length=manual * max(lengths, default=1),
        products=len(_DOT.findall(stablehlo)) + len(_RAGGED_DOT.findall(stablehlo)),
    )


def is_manual(stablehlo: str) -> bool:
    """Whether a part of a lowered program is written for each device, by `shard_map`."""
    return any(mark in stablehlo for mark in ("manual_computation", "SPMDFullToShardShape", "GlobalToLocalShape"))


def relative_tolerance(roundings: tuple[Rounding, ...], *, devices: int, platform: str) -> float:
    """The relative tolerance for outputs of programs that round like these.

    `4 * (u_stored * sqrt(devices + products) + u_accumulated * sqrt(sum length))`, where u is the unit roundoff: values
    are stored once for each product and, in a sum over devices, once for each device; sums are accumulated in f32 or
    better. A TPU multiplies f32 in one pass of bf16 at default precision, a GPU in TF32.

    Args:
        roundings: Of each of the programs.
        devices: Devices that a sum may be spread over.
        platform: `cpu`, `tpu` or `gpu`.
    """
    stored = max(one.narrowest for one in roundings)
    if any(one.products for one in roundings):
        stored = max(stored, _MATMUL_ROUNDOFF.get(platform, 0.0))
    accumulated = min(stored, _UNIT_ROUNDOFF["f32"]) if stored else 0.0
    sums = max(one.sum_length for one in roundings)
    products = max(one.products for one in roundings)
    return min(_LARGEST, _SAFETY * (stored * sqrt(devices + products) + accumulated * sqrt(sums)))


def tolerance_at(relative: float, typical: float, *, rtol: float | None, atol: float | None) -> Tolerance:
    """The tolerance of one output.

    Args:
        relative: What the programs' rounding allows.
        typical: The root mean square of the output: what cancels to nearly zero has errors of terms of this size.
        rtol: The user's own relative tolerance; None to take `relative`.
        atol: The user's own absolute one; None to take the relative one of `typical`.
    """
    source: ToleranceSource = "types" if rtol is None and atol is None else "user"
    relative = relative if rtol is None else rtol
    return Tolerance(relative=relative, absolute=relative * typical if atol is None else atol, source=source)


def unit_roundoff(type_name: str) -> float:
    """Half the distance from 1 to the next number of a floating-point type, by StableHLO's name."""
    return _UNIT_ROUNDOFF.get(type_name, _EIGHT_BITS_OR_LESS)


def _length(dims: str, shape: str) -> int:
    sizes = _sizes(shape)
    chosen = [int(dim) for dim in dims.split(",") if dim.strip()]
    return prod(sizes[dim] for dim in chosen if dim < len(sizes))


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")[:-1] if size.isdigit()]
