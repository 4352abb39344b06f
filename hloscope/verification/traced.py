"""A program as JAX traced it: which operations round, what lies on an output's path, which integers index something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compiler.jax_internals import scan_sizes

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
    name = eqn.primitive.name
    out: Any = eqn.outvars[0].aval if eqn.outvars else None
    if name in _EXACT or not jnp.issubdtype(getattr(out, "dtype", np.int32), jnp.inexact):
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
        if name in _CARRYING and eqn.outvars[0] in stored:
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
            for one in _inner_jaxprs(eqn)
        ]
        if name in CALLS and held:
            env.update(zip(eqn.outvars, held[0], strict=True))
            continue
        counts = frozenset().union(*(one for _, one in known), *(one for outputs in held for _, one in outputs))
        if name == "div" and known[0][0]:
            counts |= _count(eqn.invars[1])
        carried = name in _CARRYING | {"convert_element_type"} and any(is_sum for is_sum, _ in known)
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
        within = [_path_units(one, [0.0] * len(one.invars)) for one in _inner_jaxprs(eqn)]
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
        for inner in _inner_jaxprs(eqn):
            yield from every_equation(inner)


def _inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an operation holds: the body of a loop, branches, a function that is called."""
    held = [one for value in eqn.params.values() for one in (value if isinstance(value, tuple | list) else (value,))]
    return [
        getattr(one, "jaxpr", one)
        for one in held
        if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns")
    ]


_PASSING = frozenset(
    "convert_element_type reshape broadcast_in_dim squeeze expand_dims slice dynamic_slice gather transpose select_n "
    "concatenate rev copy max min clamp sharding_constraint all_gather all_gather_invariant all_to_all ppermute pvary "
    "pcast sub".split()
)
"""Operations whose result indexes what their operands do; `sub` takes off where a device's own part begins."""


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


@dataclass(slots=True)
class _Search:
    """The sizes that have been found for each argument."""

    sizes: dict[int, list[int]] = field(default_factory=dict)

    def found(self, arguments: Iterable[int], size: int) -> None:
        for argument in arguments:
            self.sizes.setdefault(argument, []).append(size)


def index_sizes(closed: ClosedJaxpr) -> dict[int, int]:
    """For each argument that indexes something, by position, how many elements the smallest of it has."""
    search = _Search()
    given = [_Origin(arguments=frozenset([place])) for place in range(len(closed.jaxpr.invars))]
    integers = [
        origin if getattr(var.aval.dtype, "kind", "") in "iu" else _NOTHING
        for origin, var in zip(given, closed.jaxpr.invars, strict=True)
    ]
    _walk(closed.jaxpr, integers, search)
    return {argument: min(sizes) for argument, sizes in search.sizes.items()}


def _walk(jaxpr: Any, given: Sequence[_Origin], search: _Search) -> list[_Origin]:
    env: dict[Any, _Origin] = dict(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> _Origin:
        return _NOTHING if isinstance(atom, Literal) else env.get(atom, _NOTHING)

    for eqn in jaxpr.eqns:
        if not eqn.outvars:
            continue
        known = [read(atom) for atom in eqn.invars]
        _look(eqn, known, search)
        results = _inside(eqn, known, search)
        if results is None:
            results = [_passed(eqn, known)] * len(eqn.outvars)
        env.update(zip(eqn.outvars, results, strict=False))
    return [read(atom) for atom in jaxpr.outvars]


def _inside(eqn: Any, known: list[_Origin], search: _Search) -> list[_Origin] | None:
    """Follows values into the programs that an operation holds; None for one that holds none."""
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        return _walk(_open(params[CALLS[name]]), known, search)
    if name == "scan":
        consts, carried = scan_sizes(params)
        rows = [_Origin(arguments=one.arguments, counted=one.counted) for one in known[consts + carried :]]
        _walk(_open(params["jaxpr"]), [*known[: consts + carried], *rows], search)
        return [_NOTHING] * len(eqn.outvars)
    if name == "while":
        ahead = params["cond_nconsts"]
        _walk(_open(params["body_jaxpr"]), known[ahead:], search)
        return [_NOTHING] * len(eqn.outvars)
    if name == "cond":
        found = [_walk(_open(branch), known[1:], search) for branch in params["branches"]]
        return found[0]
    if name == "shard_map":
        sizes = dict(params["mesh"].shape)
        cut = [
            _Origin(arguments=one.arguments, counted=one.counted, shards=_parts(spec, var.aval.ndim, sizes))
            for one, spec, var in zip(known, params["in_specs"], eqn.invars, strict=True)
        ]
        return _walk(_open(params["jaxpr"]), cut, search)
    return None


def _open(program: Any) -> Any:
    return getattr(program, "jaxpr", program)


def _parts(spec: Any, rank: int, sizes: Mapping[Any, int]) -> tuple[int, ...]:
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
    sources = known[:1] if name in ("dynamic_slice", "gather", "sub") else known
    if name == "clamp":
        sources = known[1:2]
    if name == "select_n":
        sources = known[1:]
    if name == "concatenate" and eqn.params["dimension"] == out.ndim - 1:
        columns = [one.arguments for one, var in zip(known, eqn.invars, strict=True) for _ in range(var.aval.shape[-1])]
        return _Origin(arguments=frozenset().union(*columns), columns=tuple(columns))
    kept = sources[0].shards if name in ("convert_element_type", "pvary", "pcast", "copy") else ()
    return _Origin(
        arguments=frozenset().union(*(one.arguments for one in sources)),
        columns=sources[0].columns if name in ("convert_element_type", "pvary", "pcast", "clamp") else (),
        counted=max((one.counted for one in sources), default=0),
        shards=kept,
    )


def _look(eqn: Any, known: list[_Origin], search: _Search) -> None:
    """Notes what an operation indexes."""
    name, params = eqn.primitive.name, eqn.params
    if name == "eq":
        for one, other in ((known[0], known[1]), (known[1], known[0])):
            if other.counted:
                search.found(one.arguments, other.counted)
    elif name == "gather":
        numbers = params["dimension_numbers"]
        _note(eqn.invars[0].aval.shape, known, numbers.start_index_map, params["slice_sizes"], search)
    elif name.startswith("scatter"):
        _note(eqn.invars[0].aval.shape, known, params["dimension_numbers"].scatter_dims_to_operand_dims, None, search)
    elif name in ("dynamic_slice", "dynamic_update_slice"):
        first = 1 if name == "dynamic_slice" else 2
        taken = params["slice_sizes"] if first == 1 else eqn.invars[1].aval.shape
        shape = _whole(eqn.invars[0].aval.shape, known[0])
        for dim, origin in enumerate(known[first : first + len(shape)]):
            search.found(origin.arguments, shape[dim] - taken[dim] + 1)


def _note(
    shape: Sequence[int], known: list[_Origin], dims: Sequence[int], taken: Sequence[int] | None, search: _Search
) -> None:
    """Notes the dimensions that the columns of an array of indices stand for."""
    whole, indices = _whole(shape, known[0]), known[1]
    sizes = [whole[dim] - (1 if taken is None else taken[dim]) + 1 for dim in dims]
    if len(indices.columns) == len(sizes):
        for arguments, size in zip(indices.columns, sizes, strict=True):
            search.found(arguments, size)
    elif sizes:
        search.found(indices.arguments, min(sizes))


def _whole(shape: Sequence[int], origin: _Origin) -> list[int]:
    """The dimensions of the whole array that a device holds a shard of."""
    parts = origin.shards or (1,) * len(shape)
    return [size * part for size, part in zip(shape, parts, strict=True)]
