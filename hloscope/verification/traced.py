"""A program as JAX traced it: which of its operations round, to which types, and what lies on an output's path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

EXACT = frozenset(
    "reshape transpose broadcast_in_dim slice dynamic_slice dynamic_update_slice gather scatter concatenate pad rev "
    "squeeze expand_dims select_n max min neg abs sign copy copy_p stop_gradient reduce_max reduce_min sort top_k "
    "clamp approx_top_k all_gather all_gather_invariant all_gather_reduced all_to_all ppermute pbroadcast pvary pcast "
    "optimization_barrier floor ceil round real imag complex conj bitcast_convert_type sharding_constraint mesh_cast "
    "reshard cummax cummin pmax pmin split name device_put ragged_all_to_all scatter-max scatter-min "
    "reduce_window_max reduce_window_min layout_constraint vary_unreduced_cast".split()
)
"""Operations whose results are numbers that they were given: nothing is rounded."""

PSUMS = frozenset(
    "psum psum2 psum_invariant reduce_scatter psum_scatter unreduced_psum unreduced_reduce_scatter".split()
)
CARRYING = frozenset("div mul broadcast_in_dim reshape squeeze transpose expand_dims copy".split())
"""Operations through which a sum is followed to where it is converted to a narrower type."""

CALLS = {
    **dict.fromkeys(("pjit", "jit", "remat", "remat2", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
}
"""Operations that call another program, and the parameter that holds it."""


def rounds(eqn: Any) -> bool:
    """Whether an operation rounds its result."""
    name = eqn.primitive.name
    out: Any = eqn.outvars[0].aval if eqn.outvars else None
    if name in EXACT or not jnp.issubdtype(getattr(out, "dtype", np.int32), jnp.inexact):
        return False
    if name == "convert_element_type":
        return unit_of(out.dtype) > unit_of(eqn.invars[0].aval.dtype) > 0
    return name not in ("mul", "div") or not any(_is_power_of_two(atom) for atom in eqn.invars)


def stored_units(jaxpr: Any) -> dict[Any, float]:
    """For values that are soon converted to a narrower type, its unit: what devices hand on of a sum may have it."""
    stored: dict[Any, float] = {}
    for eqn in reversed(jaxpr.eqns):
        name = eqn.primitive.name
        unit = unit_of(eqn.outvars[0].aval.dtype) if name == "convert_element_type" else 0.0
        if name in CARRYING and eqn.outvars[0] in stored:
            unit = stored[eqn.outvars[0]]
        for atom in eqn.invars if unit else ():
            if not isinstance(atom, Literal) and unit > unit_of(atom.aval.dtype) > 0:
                stored[atom] = max(unit, stored.get(atom, 0.0))
    return stored


def means(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """For each output the counts that sums on its path are divided by."""
    nothing: _Divided = (False, frozenset())
    return [counts for _, counts in _means(closed.jaxpr, [nothing] * len(closed.jaxpr.invars))]


_Divided = tuple[bool, frozenset[int]]
"""Whether a value is a sum, and the counts that sums on its path were divided by."""


def _means(jaxpr: Any, given: Sequence[_Divided]) -> list[_Divided]:
    env: dict[Any, _Divided] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> _Divided:
        return (False, frozenset()) if isinstance(atom, Literal) else env.get(atom, (False, frozenset()))

    for eqn in jaxpr.eqns:
        name, known = eqn.primitive.name, [read(atom) for atom in eqn.invars]
        held = [
            _means(one, known if name in CALLS else [(False, frozenset())] * len(one.invars))
            for one in inner_jaxprs(eqn)
        ]
        if name in CALLS and held:
            env.update(zip(eqn.outvars, held[0], strict=True))
            continue
        counts = frozenset().union(*(one for _, one in known), *(one for outputs in held for _, one in outputs))
        if name == "div" and known[0][0]:
            counts |= _count(eqn.invars[1])
        carried = name in CARRYING | {"convert_element_type"} and any(is_sum for is_sum, _ in known)
        env.update((out, (carried or name == "reduce_sum" or name in PSUMS, counts)) for out in eqn.outvars)
    return [read(atom) for atom in jaxpr.outvars]


def _count(divisor: Any) -> frozenset[int]:
    value = float(np.asarray(divisor.val, np.float64).ravel()[0]) if isinstance(divisor, Literal) else 0.0
    return frozenset([int(value)] if value > 1 and value == int(value) else [])


def unit_of(dtype: Any) -> float:
    """The distance from 1 to the next number of a type; 0 for one that is no float."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _is_power_of_two(atom: Any) -> bool:
    if not isinstance(atom, Literal) or np.size(atom.val) != 1:
        return False
    mantissa = np.frexp(np.abs(np.asarray(atom.val, np.float64).ravel()[0]))[0]
    return bool(mantissa == 0.5)


def path_units(closed: ClosedJaxpr) -> list[float]:
    """For each output the coarsest unit that something on its path is rounded to; 0 where nothing is."""
    return _path_units(closed.jaxpr, [0.0] * len(closed.jaxpr.invars))


def _path_units(jaxpr: Any, given: Sequence[float]) -> list[float]:
    env: dict[Any, float] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> float:
        return 0.0 if isinstance(atom, Literal) else env.get(atom, 0.0)

    for eqn in jaxpr.eqns:
        known = [read(atom) for atom in eqn.invars]
        inner = eqn.params.get(CALLS.get(eqn.primitive.name, ""))
        if inner is not None:
            env.update(zip(eqn.outvars, _path_units(getattr(inner, "jaxpr", inner), known), strict=True))
            continue
        within = [_path_units(one, [0.0] * len(one.invars)) for one in inner_jaxprs(eqn)]
        unit = max([*known, *(unit for units in within for unit in units)], default=0.0)
        for out in eqn.outvars:
            own = unit_of(out.aval.dtype) if not within and rounds(eqn) else 0.0
            env[out] = max(unit, own) if jnp.issubdtype(getattr(out.aval, "dtype", np.int32), jnp.inexact) else 0.0
    return [read(atom) for atom in jaxpr.outvars]


def narrow_carry(closed: ClosedJaxpr) -> str | None:
    """In words, the narrow floating-point value that a loop carries along and adds to; None where there is none."""
    for eqn in every_equation(closed.jaxpr):
        if eqn.primitive.name not in ("scan", "while"):
            continue
        body = (eqn.params.get("jaxpr") or eqn.params["body_jaxpr"]).jaxpr
        sums = [one for one in body.eqns if one.primitive.name in ("add", "add_any")]
        narrow = [one.outvars[0].aval.dtype for one in sums if unit_of(one.outvars[0].aval.dtype) > 2.0**-23]
        if narrow:
            steps = eqn.params.get("length")
            often = f"of {steps:,} steps" if steps else "whose steps its values decide"
            return f"a loop {often} adds up in {narrow[0]}"
    return None


def every_equation(jaxpr: Any) -> Iterator[Any]:
    """The operations of a program, those of its loops, branches and calls included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from every_equation(inner)


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an operation holds: the body of a loop, branches, a function that is called."""
    held = [one for value in eqn.params.values() for one in (value if isinstance(value, tuple | list) else (value,))]
    return [
        getattr(one, "jaxpr", one)
        for one in held
        if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns")
    ]
