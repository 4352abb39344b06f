"""Argument and output leaves: what JAX was asked for and what the compiler chose, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hloscope.compiler.jax_internals import LoweredFacts, op_sharding, partition_spec
from hloscope.compiler.model import Compiled
from hloscope.program.capture import CapturedArray
from hloscope.program.notation_dtypes import short_dtype


def arguments(
    seen: LoweredFacts,
    compiled: Compiled,
    mesh: jax.sharding.Mesh | None,
    given: Sequence[Any],
    letters: Sequence[tuple[str | None, ...] | None],
) -> tuple[CapturedArray, ...]:
    """One record per argument leaf; those that the program does not read have the sharding they were `given`."""
    dropped = list(given) if len(given) == len(seen.argument_names) else [None] * len(seen.argument_names)
    chosen = _op_shardings(compiled.parameter_shardings, len(seen.kept))
    kept = {index: (seen.in_shardings[at], chosen[at]) for at, index in enumerate(seen.kept)}
    return tuple(
        _record(
            name,
            aval,
            *kept.get(index, (dropped[index], None)),
            mesh=mesh,
            device_count=seen.device_count,
            donated=seen.donated[index],
            used=index in kept,
            letters=letters[index],
        )
        for index, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True))
    )


def outputs(seen: LoweredFacts, compiled: Compiled, mesh: jax.sharding.Mesh | None) -> tuple[CapturedArray, ...]:
    """One record per output leaf."""
    chosen = _op_shardings(compiled.output_shardings, len(seen.result_avals))
    rows = zip(seen.result_names, seen.result_avals, seen.out_shardings, chosen, strict=True)
    return tuple(
        _record(name, aval, asked, op_sharding, mesh=mesh, device_count=seen.device_count)
        for name, aval, asked, op_sharding in rows
    )


def _op_shardings(found: Sequence[bytes] | None, count: int) -> list[Any]:
    """The compiler's shardings for the last `count` leaves; tokens of ordered effects come before them."""
    shardings = [op_sharding(serialized) for serialized in found or ()]
    return shardings[-count:] if count and len(shardings) >= count else [None] * count


def _record(
    name: str,
    aval: Any,
    asked: Any,
    op_sharding: Any,
    *,
    mesh: jax.sharding.Mesh | None,
    device_count: int,
    donated: bool = False,
    used: bool = True,
    letters: tuple[str | None, ...] | None = None,
) -> CapturedArray:
    by_user = isinstance(asked, jax.sharding.Sharding)
    spec = None
    if isinstance(asked, jax.sharding.NamedSharding):
        spec, mesh = asked.spec, asked.mesh if isinstance(asked.mesh, jax.sharding.Mesh) else mesh
        if jax.sharding.PartitionSpec.UNCONSTRAINED in tuple(spec.partitions):  # explicit axes alone are decided
            spec, by_user = None, False
    if spec is None and op_sharding is not None and mesh is not None:
        spec = partition_spec(op_sharding, mesh)
    shape = tuple(aval.shape)
    local = None
    if spec is not None and mesh is not None:
        local = tuple(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape))
    elif device_count == 1:
        local = shape
    return CapturedArray(
        name=name,
        dtype=short_dtype(str(aval.dtype)) or str(aval.dtype),
        global_shape=shape,
        local_shape=local,
        sharding=None if spec is None else _shown(spec, len(shape)),
        asked=by_user,
        itemsize_bytes=int(aval.dtype.itemsize),
        donated=donated,
        used=used,
        letters=letters,
    )


def _shown(spec: jax.sharding.PartitionSpec, rank: int) -> str:
    """`P('X', None, unreduced={'Y'})`: one entry for each dimension, as the user would write it."""
    partitions = tuple(spec.partitions)
    shown = [_entry(entry) for entry in (*partitions, *([None] * (rank - len(partitions))))]
    for name, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced)):
        if axes:
            shown.append(f"{name}={{{', '.join(map(repr, sorted(axes)))}}}")
    return f"P({', '.join(shown)})"


def _entry(entry: Any) -> str:
    if isinstance(entry, tuple):
        return repr(entry[0]) if len(entry) == 1 else "(" + ", ".join(repr(axis) for axis in entry) + ")"
    return "None" if entry is None else repr(entry)
