"""A program as JAX traced it: which operations round, what lies on an output's path, which integers index something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compiler.jax_internals import scan_sizes
from hloscope.program.jaxprs import every_equation, inner_jaxprs, opened

_EXACT = frozenset(
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
_CARRYING = frozenset("div mul broadcast_in_dim reshape squeeze transpose expand_dims copy".split())
"""Operations through which a sum is followed to where it is converted to a narrower type."""

CALLS = {
    **dict.fromkeys(("pjit", "jit", "remat", "remat2", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
}
"""Operations that call another program, and the parameter that holds it."""


def rounds(eqn: Any) -> bool:
    """Whether an operation rounds its result."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval if eqn.outvars else None
    if name in _EXACT or not unit_of(out):
        return False
    if name == "convert_element_type":
        return unit_of(out) > unit_of(eqn.invars[0].aval) > 0
    return name not in ("mul", "div") or not any(_is_power_of_two(atom) for atom in eqn.invars)


def stored_units(jaxpr: Any) -> dict[Any, float]:
    """For values that are soon converted to a narrower type, its unit: what devices hand on of a sum may have it."""
    stored: dict[Any, float] = {}
    for eqn in reversed(jaxpr.eqns):
        name = eqn.primitive.name
        unit = unit_of(eqn.outvars[0].aval) if name == "convert_element_type" else 0.0
        if name in _CARRYING and eqn.outvars[0] in stored:
            unit = stored[eqn.outvars[0]]
        for atom in eqn.invars if unit else ():
            if not isinstance(atom, Literal) and unit > unit_of(atom.aval) > 0:
                stored[atom] = max(unit, stored.get(atom, 0.0))
    return stored


def called(eqn: Any) -> Any:
    """The program that an operation does nothing but call; None where it does something else."""
    return eqn.params.get(CALLS.get(eqn.primitive.name, ""))


T = TypeVar("T")


def followed(program: Any, given: Sequence[T], nothing: T, step: Callable[[Any, list[T]], Sequence[T]]) -> list[T]:
    """For each output of a program what is known of it.

    Args:
        program: The program.
        given: What is known of its arguments.
        nothing: What is known of a constant.
        step: What is known of an operation's results, by what is known of its operands.
    """
    jaxpr = opened(program)
    env: dict[Any, T] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> T:
        return nothing if isinstance(atom, Literal) else env.get(atom, nothing)

    for eqn in jaxpr.eqns:
        known, inner = [read(atom) for atom in eqn.invars], called(eqn)
        results = step(eqn, known) if inner is None else followed(inner, known, nothing, step)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _followed_inside(eqn: Any, nothing: T, step: Callable[[Any, list[T]], Sequence[T]]) -> list[list[T]]:
    """The same for each program that an operation holds, of whose arguments nothing is known."""
    return [followed(inner, [nothing] * len(inner.invars), nothing, step) for inner in inner_jaxprs(eqn)]


_Divided = tuple[bool, frozenset[int]]
"""Whether a value is a sum, and the counts that sums on its path were divided by."""


def means(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """For each output the counts that sums on its path are divided by."""
    nothing: _Divided = (False, frozenset())

    def step(eqn: Any, known: list[_Divided]) -> list[_Divided]:
        name, held = eqn.primitive.name, _followed_inside(eqn, nothing, step)
        counts = frozenset().union(*(of_one for _, of_one in chain(known, *held)))
        if name == "div" and known[0][0]:
            counts |= _count(eqn.invars[1])
        carried = name in _CARRYING | {"convert_element_type"} and any(is_sum for is_sum, _ in known)
        return [(carried or name == "reduce_sum" or name in PSUMS, counts)] * len(eqn.outvars)

    return [counts for _, counts in followed(closed, [nothing] * len(closed.jaxpr.invars), nothing, step)]


def _count(divisor: Any) -> frozenset[int]:
    value = float(np.asarray(divisor.val, np.float64).ravel()[0]) if isinstance(divisor, Literal) else 0.0
    return frozenset([int(value)] if value > 1 and value == int(value) else [])


def unit_of(value: Any) -> float:
    """The distance from 1 to the next number of a value's type; 0 for one that is no float."""
    dtype = getattr(value, "dtype", np.int32)
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _is_power_of_two(atom: Any) -> bool:
    if not isinstance(atom, Literal) or np.size(atom.val) != 1:
        return False
    mantissa = np.frexp(np.abs(np.asarray(atom.val, np.float64).ravel()[0]))[0]
    return bool(mantissa == 0.5)


def path_units(closed: ClosedJaxpr) -> list[float]:
    """For each output the coarsest unit that something on its path is rounded to; 0 where nothing is."""

    def step(eqn: Any, known: list[float]) -> list[float]:
        within = _followed_inside(eqn, 0.0, step)
        rounded = not within and rounds(eqn)
        unit = max(chain(known, *within), default=0.0)
        own = [unit_of(out.aval) for out in eqn.outvars]
        return [max(unit, each if rounded else 0.0) if each else 0.0 for each in own]

    return followed(closed, [0.0] * len(closed.jaxpr.invars), 0.0, step)


def narrow_carry(closed: ClosedJaxpr) -> str | None:
    """In words, the narrow floating-point value that a loop carries along and adds to; None where there is none."""
    for eqn in every_equation(closed.jaxpr):
        if eqn.primitive.name not in ("scan", "while"):
            continue
        body = (eqn.params.get("jaxpr") or eqn.params["body_jaxpr"]).jaxpr
        sums = [inner.outvars[0].aval for inner in body.eqns if inner.primitive.name in ("add", "add_any")]
        narrow = [total.dtype for total in sums if unit_of(total) > 2.0**-23]
        if narrow:
            steps = eqn.params.get("length")
            often = f"of {steps:,} steps" if steps else "with a data-dependent number of steps"
            return f"a loop {often} accumulates in {narrow[0]}"
    return None


_PASSING = frozenset(
    "convert_element_type reshape broadcast_in_dim squeeze expand_dims slice dynamic_slice gather transpose select_n "
    "concatenate rev copy max min clamp sharding_constraint all_gather all_gather_invariant all_to_all ppermute pvary "
    "pcast sub".split()
)
"""Operations whose result indexes what their operands do; `sub` takes off where a device's own part begins."""

_SOURCES = {
    **dict.fromkeys(("dynamic_slice", "gather", "sub"), slice(1)),
    "clamp": slice(1, 2),
    "select_n": slice(1, None),
}
"""The operands that the values come from, where not all of them do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a value comes from.

    Attributes:
        arguments: Positions of the integer arguments that it takes its values from.
        columns: The same for each of its last dimension's entries, where it was put together from them.
        counted: Elements that it counts from 0, for an iota; 0 for anything else.
        shards: For each dimension into how many parts a `shard_map` cuts it; empty where it does not.
    """

    arguments: frozenset[int] = frozenset()
    columns: tuple[frozenset[int], ...] = ()
    counted: int = 0
    shards: tuple[int, ...] = ()


_NOTHING = _Origin()


def index_sizes(closed: ClosedJaxpr) -> dict[int, int]:
    """For each argument that indexes something, by position, how many elements the smallest of it has."""
    search = _IndexSearch()
    given = [
        _Origin(arguments=frozenset([place])) if getattr(var.aval.dtype, "kind", "") in "iu" else _NOTHING
        for place, var in enumerate(closed.jaxpr.invars)
    ]
    search.follow(closed, given)
    return {argument: min(sizes) for argument, sizes in search.sizes.items()}


class _IndexSearch:
    """Finds what the arguments of a program index: `sizes` has the sizes that were found for each."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[int]] = {}

    def follow(self, program: Any, given: Sequence[_Origin]) -> list[_Origin]:
        return followed(program, given, _NOTHING, self._step)

    def _step(self, eqn: Any, known: list[_Origin]) -> Sequence[_Origin]:
        """Notes what an operation indexes, and follows values through it."""
        name, params, nothing = eqn.primitive.name, eqn.params, [_NOTHING] * len(eqn.outvars)
        self._look(eqn, known)
        if name == "scan":
            consts, carried = scan_sizes(params)
            rows = [replace(row, columns=(), shards=()) for row in known[consts + carried :]]
            self.follow(params["jaxpr"], [*known[: consts + carried], *rows])
            return nothing
        if name == "while":
            self.follow(params["body_jaxpr"], known[params["cond_nconsts"] :])
            return nothing
        if name == "cond":
            first, *_ = [self.follow(branch, known[1:]) for branch in params["branches"]]
            return first
        if name == "shard_map":
            sizes = dict(params["mesh"].shape)
            cut = [
                replace(origin, columns=(), shards=parts_of_dims(spec, var.aval.ndim, sizes))
                for origin, spec, var in zip(known, params["in_specs"], eqn.invars, strict=True)
            ]
            return self.follow(params["jaxpr"], cut)
        return [_passed(eqn, known)] * len(eqn.outvars) if eqn.outvars else nothing

    def _look(self, eqn: Any, known: list[_Origin]) -> None:
        name, params = eqn.primitive.name, eqn.params
        if name == "eq":
            for indices, counted in (known, known[::-1]):
                if counted.counted:
                    self._found(indices, counted.counted)
        elif name == "gather":
            numbers = params["dimension_numbers"]
            self._found_columns(eqn, known, numbers.start_index_map, params["slice_sizes"])
        elif name.startswith("scatter"):
            dims = params["dimension_numbers"].scatter_dims_to_operand_dims
            self._found_columns(eqn, known, dims, [1] * eqn.invars[0].aval.ndim)
        elif name in ("dynamic_slice", "dynamic_update_slice"):
            first = 1 if name == "dynamic_slice" else 2
            taken = params["slice_sizes"] if first == 1 else eqn.invars[1].aval.shape
            for whole, part, origin in zip(_whole(eqn, known), taken, known[first:], strict=False):
                self._found(origin, whole - part + 1)

    def _found_columns(self, eqn: Any, known: list[_Origin], dims: Sequence[int], taken: Sequence[int]) -> None:
        """Notes the dimensions that the columns of an array of indices stand for."""
        whole, indices = _whole(eqn, known), known[1]
        sizes = [whole[dim] - taken[dim] + 1 for dim in dims]
        if len(indices.columns) == len(sizes):
            for arguments, size in zip(indices.columns, sizes, strict=True):
                self._found(_Origin(arguments=arguments), size)
        elif sizes:
            self._found(indices, min(sizes))

    def _found(self, indices: _Origin, size: int) -> None:
        for argument in indices.arguments:
            self.sizes.setdefault(argument, []).append(size)


def _whole(eqn: Any, known: list[_Origin]) -> list[int]:
    """The dimensions of the whole array that an operation reads, of which a device may hold a shard."""
    shape = eqn.invars[0].aval.shape
    return [size * part for size, part in zip(shape, known[0].shards or (1,) * len(shape), strict=True)]


def parts_of_dims(spec: Any, rank: int, sizes: Mapping[Any, int]) -> tuple[int, ...]:
    """Into how many parts a `shard_map` cuts each dimension of an argument."""
    parts = [1] * rank
    for dim, axes in enumerate(tuple(spec)[:rank]):
        for axis in axes if isinstance(axes, tuple) else (axes,):
            parts[dim] *= int(sizes.get(axis, 1))
    return tuple(parts)


def _passed(eqn: Any, known: list[_Origin]) -> _Origin:
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name == "iota":
        return _Origin(counted=int(eqn.params["shape"][eqn.params["dimension"]]))
    if name not in _PASSING or not known:
        return _NOTHING
    sources = known[_SOURCES.get(name, slice(None))]
    if name == "concatenate" and eqn.params["dimension"] == out.ndim - 1:
        columns = [
            part.arguments for part, var in zip(known, eqn.invars, strict=True) for _ in range(var.aval.shape[-1])
        ]
        return _Origin(arguments=frozenset().union(*columns), columns=tuple(columns))
    return _Origin(
        arguments=frozenset().union(*(source.arguments for source in sources)),
        columns=sources[0].columns if name in ("convert_element_type", "pvary", "pcast", "clamp") else (),
        counted=max((source.counted for source in sources), default=0),
        shards=sources[0].shards if name in ("convert_element_type", "pvary", "pcast", "copy") else (),
    )
