"""The evaluation of a program with the rounding that right programs differ by: stored values are moved by units.

The move of a value depends on its bits, so that equal copies on several devices stay equal, whatever the devices
are. A scalar that holds for a whole array is always moved; elements of arrays are moved at random. The moves of
sums cover the roundings of their partial sums: of accumulators, and of the parts that devices pass on.

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., sections 2.8 and 3.1 (rounding errors as
random variables, and those of sums); Parker, Pierce and Eggert, "Monte Carlo arithmetic" (2000), for the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compile.jax_private import count_scan_values
from hloscope.verification.jaxpr_facts import PSUMS, find_called_program, find_stored_units, find_unit, is_rounding

_DIFFUSE = frozenset(
    "exp exp2 expm1 log log1p tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc "
    "erf_inv pow cbrt rsqrt lgamma digamma".split()
)
"""Functions that are approximated by other code for other shapes: a few units apart if the type is wide."""

_SILENT = frozenset(("debug_callback", "debug_print"))
"""Operations that only print for the user, which the program itself does once."""

_SCALAR = 8
"""The most elements with which an array counts as shared scalars."""

_MULTIPLIER_UNITS = {"tpu": 2.0**16, "gpu": 2.0**13}
"""The rounding of a factor of an f32 product at default precision, in units of f32."""

_MANY, _ALIKE = 200, 3
"""Operations that a program has at least, and how many of each kind in the mean, for kinds to be compiled one by one:
a kind takes twice as long to compile alone as an operation does among others."""

_LANES = 8
"""The least number of accumulators of a sum."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """The parameters of moving values.

    Attributes:
        salt: Another number gives other moves.
        parts: The number of devices that a sum may be spread over, each of which rounds its partial sum.
        platform: `cpu`, `tpu` or `gpu`.
        alone: Whether everything is on one device, whatever shardings the program requests.
        quiet: Whether nothing is moved.
        places: Numbers the operations.
        kinds: The compiled kinds of operations, if they are compiled one by one; None if all are compiled together.
        without: The operand to replace by zero, by the id of the operation.
    """

    salt: Any
    parts: int
    platform: str
    alone: bool
    quiet: bool = False
    places: Iterator[int] = field(default_factory=count)
    kinds: dict[Any, Callable[..., Any]] | None = None
    without: Mapping[int, int] = field(default_factory=dict)

    def move(self, value: Any, units: float = 1.0) -> Any:
        """Moves a value by units in its last place: by half of them on average for an array, by all for a scalar."""
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            return lax.complex(self.move(lax.real(value), units), self.move(lax.imag(value), units))
        if not jnp.issubdtype(value.dtype, jnp.floating) or not value.size:
            return value
        digits = jnp.finfo(value.dtype).nmant
        wide = value.dtype if value.dtype.itemsize >= 4 else jnp.dtype("float32")
        bits = lax.bitcast_convert_type(value, jnp.dtype(f"uint{8 * value.dtype.itemsize}"))
        leading = lax.bitcast_convert_type(bits & ~bits.dtype.type(2**digits - 1), value.dtype).astype(wide)
        step = leading * wide.type(2.0**-digits)
        moved = value.astype(wide) + step * _count_steps(self._hashed(bits), value.size, units).astype(wide)
        return jnp.where(jnp.isfinite(moved), moved, value.astype(wide)).astype(value.dtype)

    def _hashed(self, bits: Any) -> Any:
        """Thirty-two bits for each element that reveal nothing about its value."""
        mixed = (bits ^ (bits >> 32) if bits.dtype.itemsize == 8 else bits).astype(jnp.uint32)
        mixed = mixed ^ (self.salt + jnp.uint32(0x9E3779B9 * (next(self.places) + 1) % 2**32))
        for axis, size in enumerate(bits.shape):
            if size > 1:
                mixed = mixed + lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(_ODD[axis % len(_ODD)])
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
        return mixed ^ (mixed >> 16)


_ODD = (0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1)


def _count_steps(hashed: Any, size: int, units: float) -> Any:
    """The number of units that each element is moved by."""
    if size <= _SCALAR:
        return jnp.where(hashed & 1 == 0, jnp.float32(units), jnp.float32(-units))
    if units <= 1:
        low = hashed & 7
        return jnp.where(low == 0, jnp.float32(units), jnp.where(low == 1, jnp.float32(-units), jnp.float32(0)))
    share = hashed.astype(jnp.float32) * jnp.float32(2.0**-31) - 1
    return share * jnp.float32(units * sqrt(3) / 2)


def make_noisy(closed: ClosedJaxpr, *, parts: int, platform: str, alone: bool) -> Callable[..., list[Any]]:
    """A compiled function of a salt and the program's flat arguments that evaluates it with moved values.

    In a deep program, whose operations are alike, each kind is compiled once: the time does not depend on the depth.
    """
    every = list(_find_kinds(closed.jaxpr)) if alone else []
    repeats = len(every) >= max(_MANY, _ALIKE * len(set(every)))
    kinds: dict[Any, Callable[..., Any]] | None = {} if repeats else None

    def evaluated(salt: Any, *args: Any) -> list[Any]:
        noise = Noise(salt=salt, parts=parts, platform=platform, alone=alone, kinds=kinds)
        return _evaluate(closed.jaxpr, closed.consts, args, noise)

    return jax.jit(evaluated) if kinds is None else evaluated


def make_exact(
    closed: ClosedJaxpr, *, alone: bool, without: Mapping[int, int] | None = None
) -> Callable[..., list[Any]]:
    """A function of the program's flat arguments that evaluates it without moves, on one device if requested.

    Args:
        closed: The program.
        alone: Whether everything is on one device.
        without: The operand to replace by zero, by the id of the operation.
    """

    def evaluated(*args: Any) -> list[Any]:
        noise = Noise(salt=jnp.uint32(0), parts=1, platform="cpu", alone=alone, quiet=True, without=without or {})
        return _evaluate(closed.jaxpr, closed.consts, args, noise)

    return evaluated


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], noise: Noise) -> list[Any]:
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    stored, freed = find_stored_units(jaxpr), _find_last_uses(jaxpr)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _SILENT:
            continue
        with nullcontext() if noise.alone else eqn.ctx.manager:
            found = _evaluate_operation(eqn, _read_operands(eqn, read, noise), noise, _find_stored_unit(eqn, stored))
        env.update(zip(eqn.outvars, found, strict=True))
        for var in freed[id(eqn)]:
            env.pop(var, None)
    return [read(atom) for atom in jaxpr.outvars]


def _read_operands(eqn: Any, read: Callable[[Any], Any], noise: Noise) -> list[Any]:
    values = [read(atom) for atom in eqn.invars]
    if id(eqn) in noise.without:
        values[noise.without[id(eqn)]] *= 0  # which stays sharded, and varies over devices, as it did
    return values


def _find_stored_unit(eqn: Any, units: Mapping[Any, float]) -> float:
    return units.get(eqn.outvars[0], 0.0) if eqn.outvars else 0.0


def _find_last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """The values that are not read after an operation, by the operation's id."""
    read = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    freed: dict[int, list[Any]] = {}
    for eqn in reversed(jaxpr.eqns):
        last = {atom for atom in eqn.invars if not isinstance(atom, Literal)} - read
        freed[id(eqn)] = [*last, *(out for out in eqn.outvars if out not in read)]
        read |= last
    return freed


def _find_kinds(jaxpr: Any) -> Iterator[Any]:
    stored = find_stored_units(jaxpr)
    for eqn in jaxpr.eqns:
        inner = find_called_program(eqn)
        if inner is not None:
            yield from _find_kinds(getattr(inner, "jaxpr", inner))
        elif eqn.outvars:
            yield _make_kind_key(eqn, _find_stored_unit(eqn, stored))


def _make_kind_key(eqn: Any, stored: float) -> Any:
    """The key of operations that share one compiled function."""
    inputs = tuple((atom.aval, repr(atom.val) if isinstance(atom, Literal) else "") for atom in eqn.invars)
    kind = (eqn.primitive, inputs, tuple(sorted(eqn.params.items(), key=lambda item: item[0])), stored)
    try:
        hash(kind)
    except TypeError:
        return id(eqn)
    return kind


def _evaluate_by_kind(eqn: Any, values: list[Any], noise: Noise, stored: float) -> Sequence[Any]:
    """An operation's result from the compiled function of its kind, moved with a salt of its own."""
    kind = _make_kind_key(eqn, stored)

    def evaluated(salt: Any, values: list[Any]) -> Sequence[Any]:
        return _evaluate_operation(eqn, values, replace(noise, salt=salt, places=count(), kinds=None), stored)

    salt = np.uint32((int(noise.salt) + 0x9E3779B9 * (next(noise.places) + 1)) % 2**32)
    compiled = {} if noise.kinds is None else noise.kinds
    return list(compiled.setdefault(kind, jax.jit(evaluated))(salt, values))


def _evaluate_operation(eqn: Any, values: list[Any], noise: Noise, stored: float) -> Sequence[Any]:
    name, inner = eqn.primitive.name, find_called_program(eqn)
    if inner is not None:
        return _evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values, noise)
    if noise.kinds is not None:
        return _evaluate_by_kind(eqn, values, noise, stored)
    if name in _STRUCTURED:
        return _STRUCTURED[name](eqn, values, noise)
    if noise.alone and name in ("sharding_constraint", "layout_constraint"):
        return values
    units = 0.0 if noise.quiet else _count_units(eqn, noise, stored)
    if units > 1 and count_terms(eqn) > 1:
        moved = len(values) if name in PSUMS else 1
        values = [_move_summand(value, eqn, units, noise) for value in values[:moved]] + values[moved:]
    found = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    found = found if eqn.primitive.multiple_results else [found]
    return [noise.move(value, units) for value in found] if units else found


def _count_units(eqn: Any, noise: Noise, stored: float) -> float:
    """The error of an operation's result in units in the last place; 0 if it is exact.

    Args:
        eqn: The operation.
        noise: The parameters of moving values.
        stored: The unit of a narrower type that its result is soon converted to, or 0.
    """
    name = eqn.primitive.name
    if not is_rounding(eqn):
        return 0.0
    unit, terms = find_unit(eqn.outvars[0].aval), count_terms(eqn)
    if name in _DIFFUSE and unit <= 2.0**-23:
        return 3.0
    if terms <= 1:
        return 1.0
    accumulated = min(unit, 2.0**-23) / unit
    parts = max(noise.parts, terms if name in PSUMS else 1)
    handed_on = max(1.0, stored / unit) if parts > 1 else 1.0
    return sqrt(max(1.0, parts / 3) * handed_on**2 + terms / _LANES * accumulated**2)


def count_terms(eqn: Any) -> int:
    """The number of terms that an operation adds up for one element; 1 if it does not add up."""
    return int(_TERMS[eqn.primitive.name](eqn)) if eqn.primitive.name in _TERMS else 1


def _count_terms_over(eqn: Any, dims: Iterable[int]) -> int:
    return prod(eqn.invars[0].aval.shape[dim] for dim in dims)


def _count_kernel_terms(eqn: Any) -> int:
    kernel = eqn.invars[1].aval
    return int(kernel.size // kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]])


def _count_scatter_terms(eqn: Any) -> int:
    return max(2, -(-int(eqn.invars[2].aval.size) // max(1, int(eqn.invars[0].aval.size))))


def _count_group_terms(eqn: Any) -> int:
    axes = eqn.params.get("axes", eqn.params.get("axis_name"))
    return prod(lax.axis_size(axis) for axis in (axes if isinstance(axes, tuple | list | frozenset) else (axes,)))


_TERMS: Mapping[str, Callable[[Any], int]] = {
    "dot_general": lambda eqn: _count_terms_over(eqn, eqn.params["dimension_numbers"][0][0]),
    **dict.fromkeys(("ragged_dot", "ragged_dot_general"), lambda eqn: _count_terms_over(eqn, (-1,))),
    **dict.fromkeys(("reduce_sum", "reduce_prod"), lambda eqn: _count_terms_over(eqn, eqn.params["axes"])),
    **dict.fromkeys(("cumsum", "cumprod", "cumlogsumexp"), lambda eqn: _count_terms_over(eqn, (eqn.params["axis"],))),
    "reduce_window_sum": lambda eqn: prod(eqn.params["window_dimensions"]),
    "fft": lambda eqn: prod(eqn.params["fft_lengths"]),
    "conv_general_dilated": _count_kernel_terms,
    **dict.fromkeys(("scatter-add", "scatter-mul"), _count_scatter_terms),
    **dict.fromkeys(PSUMS, _count_group_terms),
}
"""The number of terms, for each kind of operation that adds up."""


def _move_summand(value: Any, eqn: Any, units: float, noise: Noise) -> Any:
    """A summand, moved by the rounding of its partial sums, which does not shrink if they cancel."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if not find_unit(value):
        return value
    if find_unit(value) > find_unit(out) and name in ("dot_general", "ragged_dot", "ragged_dot_general"):
        value = value.astype(out.dtype)
    if name in ("dot_general", "conv_general_dilated") and value.dtype == jnp.float32:
        units = max(units, _MULTIPLIER_UNITS.get(noise.platform, 0.0))
    return noise.move(value, units) if noise.parts > 1 or find_unit(value) <= 2.0**-23 else value


def _evaluate_scan(eqn: Any, values: list[Any], noise: Noise) -> Sequence[Any]:
    params = eqn.params
    consts, carried = count_scan_values(params)
    body = params["jaxpr"]

    def step(carry: Any, rows: Any) -> Any:
        found = _evaluate(body.jaxpr, body.consts, [*values[:consts], *carry, *rows], noise)
        return found[:carried], found[carried:]

    carry, rows = values[consts : consts + carried], values[consts + carried :]
    last, stacked = lax.scan(step, carry, rows, length=params["length"], reverse=params["reverse"])
    return [*last, *stacked]


def _evaluate_while(eqn: Any, values: list[Any], noise: Noise) -> Sequence[Any]:
    ahead, inside = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    of_test, of_body, begin = values[:ahead], values[ahead : ahead + inside], values[ahead + inside :]

    def goes_on(carry: Any) -> Any:
        return jax.extend.core.jaxpr_as_fun(test)(*of_test, *carry)[0]

    def step(carry: Any) -> Any:
        return _evaluate(body.jaxpr, body.consts, [*of_body, *carry], noise)

    return list(lax.while_loop(goes_on, step, begin))


def _evaluate_cond(eqn: Any, values: list[Any], noise: Noise) -> Sequence[Any]:
    def branch(closed: Any) -> Callable[..., Any]:
        return lambda *operands: _evaluate(closed.jaxpr, closed.consts, operands, noise)

    return list(lax.switch(values[0], [branch(closed) for closed in eqn.params["branches"]], *values[1:]))


def _evaluate_shard_map(eqn: Any, values: list[Any], noise: Noise) -> Sequence[Any]:
    params = eqn.params

    def body(salt: Any, *args: Any) -> Any:
        return tuple(_evaluate(params["jaxpr"], (), args, replace(noise, salt=salt)))

    mapped = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=(jax.sharding.PartitionSpec(), *params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=params["newly_manual_axes"],
        check_vma=params["check_vma"],
    )
    return list(mapped(noise.salt, *values))


_STRUCTURED = {
    "scan": _evaluate_scan,
    "while": _evaluate_while,
    "cond": _evaluate_cond,
    "shard_map": _evaluate_shard_map,
}
