"""A program as traced by JAX: the operations that round, those on an output's path, and integers used as indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compile.jax_private import count_scan_values
from hloscope.compile.jaxprs import find_inner_jaxprs, open_jaxpr, walk_equations

_EXACT = frozenset(
    "reshape transpose broadcast_in_dim slice dynamic_slice dynamic_update_slice gather scatter concatenate pad rev "
    "squeeze expand_dims select_n max min neg abs sign copy copy_p stop_gradient reduce_max reduce_min sort top_k "
    "clamp approx_top_k all_gather all_gather_invariant all_gather_reduced all_to_all ppermute pbroadcast pvary pcast "
    "optimization_barrier floor ceil round real imag complex conj bitcast_convert_type sharding_constraint mesh_cast "
    "reshard cummax cummin pmax pmin split name device_put ragged_all_to_all scatter-max scatter-min "
    "reduce_window_max reduce_window_min layout_constraint vary_unreduced_cast".split()
)
"""Operations whose results are numbers from their operands: nothing is rounded."""

PSUMS = frozenset(
    "psum psum2 psum_invariant reduce_scatter psum_scatter unreduced_psum unreduced_reduce_scatter".split()
)
_CARRYING = frozenset("div mul broadcast_in_dim reshape squeeze transpose expand_dims copy".split())
"""Operations through which a sum is followed to its conversion to a narrower type."""

CALLS = {
    **dict.fromkeys(("pjit", "jit", "remat", "remat2", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
}
"""Operations that call another program, with the parameter that contains it."""


def is_rounding(eqn: Any) -> bool:
    """Returns whether an operation rounds its result."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval if eqn.outvars else None
    if name in _EXACT or not find_unit(out):
        return False
    if name == "convert_element_type":
        return find_unit(out) > find_unit(eqn.invars[0].aval) > 0
    return name not in ("mul", "div") or not any(_is_power_of_two(atom) for atom in eqn.invars)


def find_stored_units(jaxpr: Any) -> dict[Any, float]:
    """The unit of values that are soon converted to a narrower type: partial sums of devices may have it."""
    stored: dict[Any, float] = {}
    for eqn in reversed(jaxpr.eqns):
        name = eqn.primitive.name
        unit = find_unit(eqn.outvars[0].aval) if name == "convert_element_type" else 0.0
        if name in _CARRYING and eqn.outvars[0] in stored:
            unit = stored[eqn.outvars[0]]
        for atom in eqn.invars if unit else ():
            if not isinstance(atom, Literal) and unit > find_unit(atom.aval) > 0:
                stored[atom] = max(unit, stored.get(atom, 0.0))
    return stored


def find_called_program(eqn: Any) -> Any:
    """The program that an operation only calls; None if the operation does anything else."""
    return eqn.params.get(CALLS.get(eqn.primitive.name, ""))


T = TypeVar("T")


def follow_program(
    program: Any, given: Sequence[T], nothing: T, step: Callable[[Any, list[T]], Sequence[T]]
) -> list[T]:
    """Follows facts through a program, and returns those of each output.

    Args:
        program: The program.
        given: The facts about its arguments.
        nothing: The facts about a constant.
        step: Returns the facts about an operation's results, given those of its operands.
    """
    jaxpr = open_jaxpr(program)
    env: dict[Any, T] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> T:
        return nothing if isinstance(atom, Literal) else env.get(atom, nothing)

    for eqn in jaxpr.eqns:
        known, inner = [read(atom) for atom in eqn.invars], find_called_program(eqn)
        results = step(eqn, known) if inner is None else follow_program(inner, known, nothing, step)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def find_bodies(
    eqn: Any, known: Sequence[T], as_row: Callable[[T], T], as_part: Callable[[T, tuple[int, ...]], T]
) -> list[tuple[Any, Sequence[T]]]:
    """The programs that an operation runs, each with the facts about its arguments; empty for other operations.

    Args:
        eqn: A loop, a branch, a `shard_map`, or any other operation.
        known: The facts about its operands.
        as_row: Returns the facts about one row of an operand that a loop runs over.
        as_part: Returns the facts about a device's part of an operand, given the number of parts of each dimension.
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        first = sum(count_scan_values(params))
        return [(params["jaxpr"], [*known[:first], *map(as_row, known[first:])])]
    if name == "while":
        return [(params["body_jaxpr"], known[params["cond_nconsts"] :])]
    if name == "cond":
        return [(branch, known[1:]) for branch in params["branches"]]
    if name == "shard_map":
        sizes = dict(params["mesh"].shape)
        rows = zip(known, params["in_specs"], eqn.invars, strict=True)
        parts = [as_part(row, _count_parts_of_dims(spec, var.aval.ndim, sizes)) for row, spec, var in rows]
        return [(params["jaxpr"], parts)]
    return []


def _count_parts_of_dims(spec: Any, rank: int, sizes: Mapping[Any, int]) -> tuple[int, ...]:
    """The number of parts into which a `shard_map` cuts each dimension of an argument."""
    parts = [1] * rank
    for dim, axes in enumerate(tuple(spec)[:rank]):
        for axis in axes if isinstance(axes, tuple) else (axes,):
            parts[dim] *= int(sizes.get(axis, 1))
    return tuple(parts)


def _follow_inside(eqn: Any, nothing: T, step: Callable[[Any, list[T]], Sequence[T]]) -> list[list[T]]:
    """The same for each program inside an operation, without facts about its arguments."""
    return [follow_program(inner, [nothing] * len(inner.invars), nothing, step) for inner in find_inner_jaxprs(eqn)]


_Divided = tuple[bool, frozenset[int]]
"""Whether a value is a sum, and the counts that divide the sums on its path."""


def find_mean_counts(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """The counts that sums on each output's path are divided by."""
    nothing: _Divided = (False, frozenset())

    def step(eqn: Any, known: list[_Divided]) -> list[_Divided]:
        name, held = eqn.primitive.name, _follow_inside(eqn, nothing, step)
        counts = frozenset().union(*(of_one for _, of_one in chain(known, *held)))
        if name == "div" and known[0][0]:
            counts |= _read_count(eqn.invars[1])
        carried = name in _CARRYING | {"convert_element_type"} and any(is_sum for is_sum, _ in known)
        return [(carried or name == "reduce_sum" or name in PSUMS, counts)] * len(eqn.outvars)

    return [counts for _, counts in follow_program(closed, [nothing] * len(closed.jaxpr.invars), nothing, step)]


def _read_count(divisor: Any) -> frozenset[int]:
    value = float(np.asarray(divisor.val, np.float64).ravel()[0]) if isinstance(divisor, Literal) else 0.0
    return frozenset([int(value)] if value > 1 and value == int(value) else [])


def find_unit(value: Any) -> float:
    """The distance from 1 to the next number of a value's type; 0 for a type other than a float."""
    dtype = getattr(value, "dtype", np.int32)
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _is_power_of_two(atom: Any) -> bool:
    if not isinstance(atom, Literal) or np.size(atom.val) != 1:
        return False
    mantissa = np.frexp(np.abs(np.asarray(atom.val, np.float64).ravel()[0]))[0]
    return bool(mantissa == 0.5)


def find_path_units(closed: ClosedJaxpr) -> list[float]:
    """The coarsest unit of rounding on each output's path; 0 without rounding."""

    def step(eqn: Any, known: list[float]) -> list[float]:
        within = _follow_inside(eqn, 0.0, step)
        rounded = not within and is_rounding(eqn)
        unit = max(chain(known, *within), default=0.0)
        own = [find_unit(out.aval) for out in eqn.outvars]
        return [max(unit, each if rounded else 0.0) if each else 0.0 for each in own]

    return follow_program(closed, [0.0] * len(closed.jaxpr.invars), 0.0, step)


def describe_narrow_carry(closed: ClosedJaxpr) -> str | None:
    """Describes the narrow floating-point value that a loop carries and adds to; None without one."""
    for eqn in walk_equations(closed.jaxpr):
        if eqn.primitive.name not in ("scan", "while"):
            continue
        body = (eqn.params.get("jaxpr") or eqn.params["body_jaxpr"]).jaxpr
        sums = [inner.outvars[0].aval for inner in body.eqns if inner.primitive.name in ("add", "add_any")]
        narrow = [total.dtype for total in sums if find_unit(total) > 2.0**-23]
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
"""Operations whose result indexes the same as their operands; `sub` subtracts the start of a device's own part."""

_SOURCES = {
    **dict.fromkeys(("dynamic_slice", "gather", "sub"), slice(1)),
    "clamp": slice(1, 2),
    "select_n": slice(1, None),
}
"""The operands that the values come from, for operations where not all count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexOrigin:
    """The origin of a value.

    Attributes:
        arguments: Positions of the integer arguments that it takes its values from.
        columns: The same for each entry of its last dimension, if it was assembled from them.
        counted: Elements that it counts from 0, for an iota; 0 for anything else.
        shards: The number of parts into which a `shard_map` cuts each dimension; empty if it does not.
    """

    arguments: frozenset[int] = frozenset()
    columns: tuple[frozenset[int], ...] = ()
    counted: int = 0
    shards: tuple[int, ...] = ()


_NOTHING = _IndexOrigin()


def find_index_sizes(closed: ClosedJaxpr) -> dict[int, int]:
    """The smallest number of elements that each argument indexes, by the argument's position."""
    search = _IndexSearch()
    given = [
        _IndexOrigin(arguments=frozenset([place])) if getattr(var.aval.dtype, "kind", "") in "iu" else _NOTHING
        for place, var in enumerate(closed.jaxpr.invars)
    ]
    search.follow(closed, given)
    return {argument: min(sizes) for argument, sizes in search.sizes.items()}


class _IndexSearch:
    """Finds the targets of a program's index arguments: `sizes` has the sizes found for each."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[int]] = {}

    def follow(self, program: Any, given: Sequence[_IndexOrigin]) -> list[_IndexOrigin]:
        return follow_program(program, given, _NOTHING, self._step)

    def _step(self, eqn: Any, known: list[_IndexOrigin]) -> Sequence[_IndexOrigin]:
        """Notes the dimensions that an operation indexes, and follows values through it."""
        nothing = [_NOTHING] * len(eqn.outvars)
        self._look(eqn, known)
        bodies = find_bodies(
            eqn,
            known,
            lambda origin: replace(origin, columns=(), shards=()),
            lambda origin, parts: replace(origin, columns=(), shards=parts),
        )
        if bodies:
            first, *_ = [self.follow(body, given) for body, given in bodies]
            return nothing if eqn.primitive.name in ("scan", "while") else first
        return [_pass_origin(eqn, known)] * len(eqn.outvars) if eqn.outvars else nothing

    def _look(self, eqn: Any, known: list[_IndexOrigin]) -> None:
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
            for whole, part, origin in zip(_find_whole_shape(eqn, known), taken, known[first:], strict=False):
                self._found(origin, whole - part + 1)

    def _found_columns(self, eqn: Any, known: list[_IndexOrigin], dims: Sequence[int], taken: Sequence[int]) -> None:
        """Notes the dimensions that the columns of an array of indices refer to."""
        whole, indices = _find_whole_shape(eqn, known), known[1]
        sizes = [whole[dim] - taken[dim] + 1 for dim in dims]
        if len(indices.columns) == len(sizes):
            for arguments, size in zip(indices.columns, sizes, strict=True):
                self._found(_IndexOrigin(arguments=arguments), size)
        elif sizes:
            self._found(indices, min(sizes))

    def _found(self, indices: _IndexOrigin, size: int) -> None:
        for argument in indices.arguments:
            self.sizes.setdefault(argument, []).append(size)


def _find_whole_shape(eqn: Any, known: list[_IndexOrigin]) -> list[int]:
    """The dimensions of the whole array that an operation reads, even if a device holds a shard of it."""
    shape = eqn.invars[0].aval.shape
    return [size * part for size, part in zip(shape, known[0].shards or (1,) * len(shape), strict=True)]


def _pass_origin(eqn: Any, known: list[_IndexOrigin]) -> _IndexOrigin:
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if name == "iota":
        return _IndexOrigin(counted=int(eqn.params["shape"][eqn.params["dimension"]]))
    if name not in _PASSING or not known:
        return _NOTHING
    sources = known[_SOURCES.get(name, slice(None))]
    if name == "concatenate" and eqn.params["dimension"] == out.ndim - 1:
        columns = [
            part.arguments for part, var in zip(known, eqn.invars, strict=True) for _ in range(var.aval.shape[-1])
        ]
        return _IndexOrigin(arguments=frozenset().union(*columns), columns=tuple(columns))
    return _IndexOrigin(
        arguments=frozenset().union(*(source.arguments for source in sources)),
        columns=sources[0].columns if name in ("convert_element_type", "pvary", "pcast", "clamp") else (),
        counted=max((source.counted for source in sources), default=0),
        shards=sources[0].shards if name in ("convert_element_type", "pvary", "pcast", "copy") else (),
    )
