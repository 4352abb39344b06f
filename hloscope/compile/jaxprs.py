"""Queries on a traced program: its equations, their work, and platform-dependent branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

import jax
import numpy as np


def find_jaxpr(traced: Any) -> Any:
    """The closed jaxpr of a trace, or of a library's wrapper of one; None without a jaxpr."""
    while traced is not None and not hasattr(traced, "jaxpr"):
        traced = getattr(traced, "traced", None)  # flax.nnx.jit wraps JAX's own
    return None if traced is None else traced.jaxpr


def open_jaxpr(program: Any) -> Any:
    """A jaxpr without the constants that it closes over."""
    return getattr(program, "jaxpr", program)


def walk_equations(jaxpr: Any) -> Iterator[Any]:
    """The operations of a program, including those of its loops, branches and calls."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in find_inner_jaxprs(eqn):
            yield from walk_equations(inner)


def find_inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs inside an operation: the body of a loop, branches, a function that is called."""
    return [open_jaxpr(held) for held in _list_held(eqn) if hasattr(open_jaxpr(held), "eqns")]


def _list_held(eqn: Any) -> Iterator[Any]:
    """The parameters of an operation, and the members of those that are lists."""
    return chain(*(param if isinstance(param, tuple | list) else [param] for param in eqn.params.values()))


def list_manual_functions(jaxpr: Any) -> list[Any]:
    """The functions under `shard_map`, without those that differentiation makes of them."""
    return list(_walk_manual_functions(open_jaxpr(jaxpr)))


def _walk_manual_functions(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if "transpose(" in str(eqn.source_info.name_stack):  # the names of operations within do not repeat it
            continue
        inner = find_inner_jaxprs(eqn)
        yield from inner if eqn.primitive.name == "shard_map" else ()
        for each in inner:
            yield from _walk_manual_functions(each)


_SIZES = frozenset({"shape", "new_sizes", "limit_indices", "slice_sizes", "sizes"})
"""The parameters of operations that say the sizes of arrays."""
_TYPING = frozenset({"pvary", "pcast"})
"""Operations that compute nothing: they say over which axes a value differs."""


def is_alike(one: Any, other: Any, axes: frozenset[str]) -> bool:
    """Returns whether two functions have the same operations and numbers, apart from sizes, and none names the axes.

    Their values are not compared: the order of operations says little of what is made of what.
    """
    all_eqns = [list(walk_equations(each)) for each in (one, other)]
    numbers = ([*chain(*map(_list_numbers, eqns))] for eqns in all_eqns)
    some, others = ([eqn for eqn in eqns if eqn.primitive.name not in _TYPING] for eqns in all_eqns)
    is_same = len(some) == len(others) and all(_is_alike(a, b, axes) for a, b in zip(some, others, strict=True))
    return is_same and is_equal(*numbers)


def _is_alike(one: Any, other: Any, axes: frozenset[str]) -> bool:
    params = [{name: param for name, param in eqn.params.items() if name not in _SIZES} for eqn in (one, other)]
    plain = [{name: param for name, param in each.items() if _is_plain(param)} for each in params]
    names = [param if isinstance(param, tuple) else (param,) for param in plain[0].values()]
    is_free = not any(name in axes for each in names for name in each if isinstance(name, str))
    return is_free and one.primitive.name == other.primitive.name and plain[0] == plain[1]


def _list_numbers(eqn: Any) -> list[Any]:
    """The numbers that an operation, or a function in it, is written with."""
    literals = [value.val for value in eqn.invars if hasattr(value, "val")]
    return [*literals, *chain(*(getattr(held, "consts", ()) for held in _list_held(eqn)))]


def is_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether arrays or numbers are equal, one by one."""
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def _is_plain(param: Any) -> bool:
    """Returns whether a parameter is a number, a name or a tuple of them."""
    if isinstance(param, tuple):
        return all(map(_is_plain, param))
    return param is None or isinstance(param, bool | int | float | str | np.dtype)


def differs_by_platform(jaxpr: Any, backend: str) -> bool:
    """Returns whether `jax.lax.platform_dependent` chooses different branches for a JAX backend and a TPU."""
    platform = {"gpu": "cuda"}.get(backend, backend)
    chosen = [eqn.params["platforms"] for eqn in walk_equations(jaxpr) if eqn.primitive.name == "platform_index"]
    return any(_find_branch(platform, branches) != _find_branch("tpu", branches) for branches in chosen)


def _find_branch(platform: str, branches: Sequence[Sequence[str] | None]) -> int | None:
    return next((at for at, those in enumerate(branches) if those is None or platform in those), None)


def find_jaxpr_mesh(jaxpr: Any, devices: Sequence[Any]) -> jax.sharding.Mesh | None:
    """The mesh that a program's constraints, calls and `shard_map`s name.

    None if none has the right number of devices, or if two such meshes have different axes.

    Args:
        jaxpr: The program.
        devices: The devices it runs on, in partition order, for a mesh without devices.
    """
    named = [mesh for eqn in walk_equations(jaxpr) for mesh in _find_meshes(eqn) if mesh.size == len(devices)]
    if len({(mesh.axis_names, mesh.axis_sizes) for mesh in named}) != 1:
        return None
    own = next((mesh for mesh in named if isinstance(mesh, jax.sharding.Mesh)), None)
    if own is not None:
        return own
    laid_out = np.array(devices, dtype=object).reshape(named[0].axis_sizes)
    return jax.sharding.Mesh(laid_out, named[0].axis_names, axis_types=named[0].axis_types)


def _find_meshes(eqn: Any) -> Iterator[jax.sharding.Mesh | jax.sharding.AbstractMesh]:
    """The meshes that an operation names, alone or in shardings."""
    for held in _list_held(eqn):
        mesh = held.mesh if isinstance(held, jax.sharding.NamedSharding) else held
        if isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
            yield mesh


def count_matmul_flops(jaxpr: Any) -> float:
    """The floating-point operations of a program's matmuls and convolutions, on all devices together.

    A scan counts once per iteration, and a `while` loop once, because its trip count depends on values. The
    most expensive branch counts, and in `shard_map` all devices of its manual axes. A kernel counts as its author
    states, or as nothing.
    """
    return sum(map(_count_flops, jaxpr.eqns))


def _count_flops(eqn: Any) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        lengths = [eqn.invars[0].aval.shape[dimension] for dimension in contracted]
        return float(2 * prod(eqn.outvars[0].aval.shape) * prod(lengths))
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
        return float(2 * prod(eqn.outvars[0].aval.shape) * prod(kernel) / max(outputs, 1))
    if name == "pallas_call":
        return float(getattr(params.get("cost_estimate"), "flops", 0) or 0)
    inner = [count_matmul_flops(held) for held in find_inner_jaxprs(eqn)]
    if name == "cond":
        return max(inner, default=0.0)
    times = params["length"] if name == "scan" else _count_manual_devices(params) if name == "shard_map" else 1
    return float(times * sum(inner))


def _count_manual_devices(shard_map: Any) -> int:
    """The number of devices that a `shard_map` splits its contents over: those of its manual axes."""
    mesh = shard_map["mesh"]
    manual = shard_map.get("newly_manual_axes", shard_map.get("manual_axes", mesh.axis_names))
    return prod(size for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True) if axis in manual)
