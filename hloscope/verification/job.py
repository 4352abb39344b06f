"""The request to run two programs, as passed from the user to the process that runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, sqrt
from typing import Any

import numpy as np
from ml_dtypes import finfo

from hloscope.base.calls import format_value
from hloscope.base.errors import NotationError
from hloscope.compile.target import TargetFacts, find_attached_facts
from hloscope.verification.model import Numerics, NumericsStatus

Range = tuple[float | str, float | str]

_PLATFORMS = ("auto", "cpu", "tpu", "gpu")

_RANGE = re.compile(r"\s*(?P<name>[^=]+?)\s*=\s*(?P<low>[^:=]+?)\s*:\s*(?P<high>[^:=]+?)\s*")
_HOW_TO_WRITE = "write NAME=LOW:HIGH, such as B=0:8 or x=-1:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's settings for a run.

    Attributes:
        seed: The random seed.
        ranges: Half-open ranges of values for arguments, by name, as numbers or letters.
        scale: Smaller sizes for the letters of the target's dimensions.
        rtol: Relative tolerance; None to derive it from types and contraction sizes.
        atol: Absolute tolerance; None to derive it from the magnitude of the expected values.
        grad: Whether to compare gradients as well.
        against_single_device: Whether to compare both with a single-device run as well.
        on: `cpu` for simulated devices, `tpu` or `gpu` for attached ones, `auto` for attached ones if there are any.
        timeout_s: Time limit of a run, in seconds.
    """

    seed: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)
    scale: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    grad: bool = False
    against_single_device: bool = False
    on: str = "auto"
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.on not in _PLATFORMS:
            raise NotationError(
                f"{format_value(self.on)} is not a platform to run on", fix=f"use one of {', '.join(_PLATFORMS)}"
            )
        if not self.timeout_s > 0:
            raise NotationError(f"a time limit cannot be {self.timeout_s:g} s", fix="use a number of seconds above 0")
        if self.seed != int(self.seed):
            raise NotationError(f"a seed must be a whole number, not {format_value(self.seed)}", fix="use 0 or more")
        if self.seed < 0:
            raise NotationError(f"a seed cannot be negative: {self.seed}", fix="use 0 or more")
        for name, bounds in self.ranges.items():
            given: Any = bounds
            pair = isinstance(given, tuple | list) and len(given) == 2
            if not pair or not all(isinstance(bound, int | float | str) for bound in given):
                raise NotationError(
                    f"the range of {name} cannot be {format_value(given)}", fix="pass its two ends: (0, 8)"
                )
        for name, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if tolerance is not None and not 0 <= tolerance < inf:
                raise NotationError(f"{name} cannot be {tolerance:g}", fix="use a number that is 0 or more")


def parse_range(text: str) -> tuple[str, Range]:
    """Parses the values of an argument: `B=0:8`, `x=-1:1`, `B=0:E` with a letter of the target's dimensions.

    Returns:
        The argument's name, and the least value and the one above the greatest.

    Raises:
        NotationError: The text is not a range.
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise NotationError(f"{text!r} is not a range", fix=_HOW_TO_WRITE)
    low, high = _parse_bound(found["low"], text), _parse_bound(found["high"], text)
    if not isinstance(low, str) and not isinstance(high, str) and low >= high:
        raise NotationError(f"the range {text!r} is empty", why=f"{low:g} is not below {high:g}")
    return found["name"], (low, high)


def _parse_bound(text: str, whole: str) -> float | str:
    if text.isidentifier() and text not in ("inf", "nan"):
        return text
    try:
        number = float(text)
    except ValueError as error:
        raise NotationError(f"{text!r} in {whole!r} is not a number", fix=_HOW_TO_WRITE) from error
    if not isfinite(number):
        raise NotationError(f"{text!r} in {whole!r} is not finite", fix="write numbers, such as x=-1:1")
    return number


Function = Callable[..., Any]
Stage = Callable[[str], None]
"""Called with the name of each step, so that a process that dies leaves a record of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationJob:
    """A run of two programs on the same inputs.

    Attributes:
        target: `module:fn` or `file.py:fn`, or the function itself for a run in this process.
        reference: Its reference, in the same form; it takes missing options from the target's decorator.
        devices: The number of devices that the larger of both needs.
        facts: Options for both besides their own decorators.
        settings: The user's settings for the run.
        platform: `cpu` for simulated devices, or the platform of attached ones: `tpu`, `gpu`.
        memory_bytes: Memory that the run may take; None if unknown.
        poses: The slice that simulated devices pose as, and the processes that share it, so that the programs take
            the compiled branches; None if they report as CPU devices.
        programs: The fingerprints of the programs; None for one that is identified by its name alone.
    """

    target: str | Function
    reference: str | Function
    devices: int
    facts: TargetFacts = field(default_factory=TargetFacts)
    settings: Settings = field(default_factory=Settings)
    platform: str = "cpu"
    memory_bytes: int | None = None
    poses: tuple[str, int] | None = None
    programs: tuple[str | None, str | None] = (None, None)

    def came_to(self, status: NumericsStatus, message: str = "", *, ran_on: str = "") -> Numerics:
        """The outcome before anything was compared."""
        dims = dict(self.settings.scale)
        return Numerics(status=status, ran_on=ran_on, message=message, seed=self.settings.seed, dims=dims)


class OtherProgramError(Exception):
    """A name that was imported in another process leads to another program than intended."""


def complete_target_facts(target: Function, reference: Function, asked: TargetFacts) -> TargetFacts:
    """The target's options; where it has no arguments, completed with the reference's for its call and placement.

    Args:
        target: The target.
        reference: Its reference.
        asked: The user's options for both.
    """
    own = asked.over(find_attached_facts(target))
    if _has_arguments(own, target):
        return own
    return complete_reference_facts(asked.over(find_attached_facts(reference)), target, asked)


def _has_arguments(facts: TargetFacts, function: Function) -> bool:
    from hloscope.compile.arguments import find_required_parameters  # which imports JAX

    return facts.args is not None or bool(facts.kwargs) or not find_required_parameters(function)


def complete_reference_facts(target: TargetFacts, reference: Function, asked: TargetFacts) -> TargetFacts:
    """The reference's options, completed with the target's for its call and placement.

    The output shardings and the axis types are its own, because they are fixed in a `shard_map`.

    Args:
        target: The target's facts.
        reference: The reference, which may bring its own arguments.
        asked: The user's options for both.
    """
    own = asked.over(find_attached_facts(reference))
    has_arguments = _has_arguments(own, reference)
    borrowed = TargetFacts(
        mesh=target.mesh,
        slice=target.slice,
        dcn=target.dcn,
        args=None if has_arguments else target.args,
        kwargs={} if has_arguments else target.kwargs,
        dims=target.dims,
    )
    return own.over(borrowed)


# ---- random inputs: the same numbers for the same seed, position and type, on whatever devices they are put

Bounds = tuple[float, float]

_DEFAULT_INTEGERS = (-100, 100)

_UNEVEN = (0.5, 1.0)
"""The deviation of normal numbers at the start and at the end of each dimension: with numbers of one size, a mean of a
part of them equals that over all of them, and a division by their size does nothing. Larger numbers round more where
functions saturate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The distribution of an argument's values.

    Attributes:
        bounds: The least value and the one above the greatest; by default floats are normal with the mean 0, and
            integers lie between -100 and 100, within the limits of their type.
        is_index: Whether the bounds come from the dimension that the argument indexes.
        fan_in: The divisor of normal numbers' variance: the number of elements that a product with them sums over.
    """

    bounds: Bounds | None = None
    is_index: bool = False
    fan_in: float = 1.0


def draw_values(dtype: Any, shape: tuple[int, ...], draw: Draw, *, seed: int, position: int) -> Any:
    """An array of random values.

    Args:
        dtype: NumPy's or ml_dtypes' type: a float, an integer, a bool or a complex type.
        shape: Its dimensions.
        draw: The distribution.
        seed: The run's seed.
        position: The argument's position, so that two arguments of one type differ.
    """
    dtype = np.dtype(dtype)
    generator = np.random.default_rng([seed, position])
    if dtype == np.bool_:
        return generator.random(shape) < 0.5
    if is_integer(dtype):
        low, high = find_integer_bounds(dtype, draw.bounds)
        wide = np.uint64 if high > 2**63 else np.int64
        return generator.integers(low, high, shape, dtype=wide).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        real, imaginary = (_draw_floats(generator, shape, draw, dtype.itemsize // 2) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    return _draw_floats(generator, shape, draw, dtype.itemsize).astype(dtype)


def describe_draw(dtype: Any, draw: Draw) -> str:
    """Describes the values of an argument for the report: `0 to 7`, `normal`, `normal / √2048`, `-1 to 1`.

    Args:
        dtype: NumPy's or ml_dtypes' type.
        draw: The distribution.
    """
    dtype, bounds = np.dtype(dtype), draw.bounds
    if dtype == np.bool_:
        return "true or false"
    if is_integer(dtype):
        low, high = find_integer_bounds(dtype, bounds)
        indexed = "without the ends of what it indexes" if low > 0 else "all that it indexes"
        return f"{low} to {high - 1}{f', {indexed}' if draw.is_index else ''}"
    if bounds is not None:
        return f"{bounds[0]:g} to {bounds[1]:g}"
    return "normal" if draw.fan_in <= 1 else f"normal / √{round(draw.fan_in)}"


def find_largest_fan_in(dtype: Any) -> float:
    """The largest divisor of a floating-point type's variance with which most numbers are not zero."""
    smallest = float(finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
    return max(1.0, (8 * smallest) ** -2)


def check_range(name: str, dtype: Any, bounds: Bounds) -> None:
    """Refuses a range without values of the type, which would otherwise be replaced silently.

    Raises:
        NotationError: It is empty, or the type holds none of it, or has no ranges at all.
    """
    low, high = bounds
    if not (isfinite(low) and isfinite(high) and low < high):
        raise NotationError(f"the range of {name} is empty", why=f"{low:g} is not below {high:g}")
    if dtype == np.bool_ or str(dtype).startswith("key<"):
        raise NotationError(f"{name} cannot have a range", why=f"its type is {dtype}", fix="leave its range out")
    if not is_integer(dtype):
        return
    least, greatest = _find_limits(np.dtype(dtype))
    if low > greatest or high <= least or ceil(low) >= high:
        raise NotationError(
            f"{np.dtype(dtype).name} has no value in [{low:g}, {high:g}), the range of {name}",
            fix=f"use a range of integers within {least:,} to {greatest:,}",
        )


def find_integer_bounds(dtype: np.dtype[Any], bounds: Bounds | None) -> tuple[int, int]:
    """The least integer and the one above the greatest, within the limits of the type."""
    low, high = _DEFAULT_INTEGERS if bounds is None else (ceil(bounds[0]), ceil(bounds[1]))
    least, greatest = _find_limits(dtype)
    low = max(low, least)
    return low, max(low + 1, min(high, greatest + 1))


def is_integer(dtype: Any) -> bool:
    """Returns whether a type holds integers, including ml_dtypes' integers narrower than a byte."""
    return np.issubdtype(dtype, np.integer) or np.dtype(dtype).name.startswith(("int", "uint"))


def _find_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    bits = int(dtype.name.lstrip("uint"))
    if dtype.name.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _draw_floats(generator: np.random.Generator, shape: tuple[int, ...], draw: Draw, width_bytes: int) -> Any:
    """Numbers that use all the bytes of their type, so that a program cannot lose some unnoticed."""
    if draw.bounds is not None:
        return generator.uniform(*draw.bounds, shape)
    wide = np.float64 if width_bytes > 4 else np.float32
    numbers: Any = np.asarray(generator.standard_normal(shape, dtype=wide))
    if draw.fan_in > 1:
        return numbers * wide(1 / sqrt(draw.fan_in))
    for axis, size in enumerate(shape):
        if size > 1:
            sizes = np.linspace(*_UNEVEN, size, dtype=wide)
            numbers *= sizes.reshape(size, *[1] * (len(shape) - axis - 1))
    return numbers
