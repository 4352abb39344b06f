"""Queries on a traced program: its equations, their work, and platform-dependent branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

import jax
import numpy as np


def opened(program: Any) -> Any:
    """A jaxpr without the constants that it is closed over."""
    return getattr(program, "jaxpr", program)


def every_equation(jaxpr: Any) -> Iterator[Any]:
    """The operations of a program, those of its loops, branches and calls included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from every_equation(inner)


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an operation holds: the body of a loop, branches, a function that is called."""
    params = [[param] if not isinstance(param, tuple | list) else param for param in eqn.params.values()]
    return [opened(held) for held in chain(*params) if hasattr(opened(held), "eqns")]


def differs_by_platform(jaxpr: Any, backend: str) -> bool:
    """Whether `jax.lax.platform_dependent` chooses one branch for a backend of JAX's and another one for a TPU."""
    platform = {"gpu": "cuda"}.get(backend, backend)
    chosen = [eqn.params["platforms"] for eqn in every_equation(jaxpr) if eqn.primitive.name == "platform_index"]
    return any(_branch_for(platform, branches) != _branch_for("tpu", branches) for branches in chosen)


def _branch_for(platform: str, branches: Sequence[Sequence[str] | None]) -> int | None:
    return next((at for at, those in enumerate(branches) if those is None or platform in those), None)


def mesh_in(jaxpr: Any, devices: Sequence[Any]) -> jax.sharding.Mesh | None:
    """The mesh that a program's constraints, or its `shard_map`, name; None where none has as many devices.

    Args:
        jaxpr: The program.
        devices: What it runs on, in partition order: those of a mesh without devices.
    """
    for eqn in every_equation(jaxpr):
        named = (eqn.params.get("mesh"), getattr(eqn.params.get("sharding"), "mesh", None))
        for mesh in named:
            if isinstance(mesh, jax.sharding.Mesh) and mesh.size == len(devices):
                return mesh
            if isinstance(mesh, jax.sharding.AbstractMesh) and mesh.size == len(devices):
                laid_out = np.array(devices, dtype=object).reshape(mesh.axis_sizes)
                return jax.sharding.Mesh(laid_out, mesh.axis_names, axis_types=mesh.axis_types)
    return None


def matmul_flops(jaxpr: Any) -> float:
    """Floating-point operations of a program's matmuls and convolutions, on all devices together.

    A scan counts as often as it is long, and a `while` loop once: how often it runs, its values decide. Of branches
    the dearest counts, and in `shard_map` all devices of the axes that it makes manual. A kernel counts as its author
    says; nothing where he does not.
    """
    return sum(map(_flops_of, jaxpr.eqns))


def _flops_of(eqn: Any) -> float:
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
    inner = [matmul_flops(held) for held in inner_jaxprs(eqn)]
    if name == "cond":
        return max(inner, default=0.0)
    times = params["length"] if name == "scan" else _devices_of(params) if name == "shard_map" else 1
    return float(times * sum(inner))


def _devices_of(shard_map: Any) -> int:
    """Over how many devices a `shard_map` splits what is in it: those of the axes that it makes manual."""
    mesh = shard_map["mesh"]
    manual = shard_map.get("newly_manual_axes", shard_map.get("manual_axes", mesh.axis_names))
    return prod(size for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True) if axis in manual)
