"""Which integer arguments index something, and how many elements that has, from the program that JAX traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compiler.jax_internals import scan_sizes
from hloscope.verification.traced import CALLS

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
