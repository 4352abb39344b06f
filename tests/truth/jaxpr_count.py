"""What a shard_map program moves, counted in its jaxpr: a second opinion that never sees compiled text.

Written from the definitions of JAX's primitives alone, and sharing no code with the package under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

REDUCTIONS = {"psum", "psum_invariant", "pmax", "pmin"}
GATHERS = {"all_gather", "all_gather_invariant"}
SCATTERS = {"reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all"}
COMMUNICATING = {*REDUCTIONS, *GATHERS, *SCATTERS, "ppermute"}
SILENT = {"axis_index"}
CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "shard_map"}
BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


@dataclass(frozen=True, slots=True)
class Moved:
    """Sums over all executions of one step, on one device."""

    executions: int
    payload_bytes: int
    wire_bytes: int

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.executions + other.executions,
            self.payload_bytes + other.payload_bytes,
            self.wire_bytes + other.wire_bytes,
        )

    def times(self, count: int) -> Moved:
        return Moved(self.executions * count, self.payload_bytes * count, self.wire_bytes * count)


Count = dict[tuple[str, frozenset[str]], Moved]
"""By kind and by the mesh axes that are crossed."""


def add(count: Count, key: tuple[str, frozenset[str]], moved: Moved) -> None:
    count[key] = count[key] + moved if key in count else moved


def count_jaxpr(jaxpr: Any, axis_sizes: Mapping[str, int], times: int = 1) -> Count:
    """Every collective of a jaxpr, those in loops and calls as often as they run; groups of one are left out."""
    total: Count = {}
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found = collective_of(eqn, axis_sizes)
        if found is not None:
            (kind, axes), moved = found
            if axes and moved.wire_bytes and times:
                add(total, (kind, axes), moved.times(times))
            continue
        for inner, trips in callees(eqn):
            for key, moved in count_jaxpr(inner, axis_sizes, times * trips).items():
                add(total, key, moved)
    return total


def callees(eqn: Any) -> Iterator[tuple[Any, int]]:
    """The jaxprs that an equation runs, and how often.

    Raises:
        AssertionError: It runs one in a way that is not known here.
    """
    name = eqn.primitive.name
    inner = [value for value in eqn.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
    if name == "scan":
        yield eqn.params["jaxpr"], eqn.params["length"]
    elif name in CALLS:
        yield from ((one, 1) for one in inner)
    else:
        assert not inner, f"the jaxpr counter does not know how often {name} runs its jaxpr"


def collective_of(eqn: Any, axis_sizes: Mapping[str, int]) -> tuple[tuple[str, frozenset[str]], Moved] | None:
    """Kind, axes and volume of one communicating equation; None for any other."""
    name = eqn.primitive.name
    if name not in COMMUNICATING:
        assert "axis_name" not in eqn.params or name in SILENT, f"the jaxpr counter does not know {name}"
        return None
    names = eqn.params.get("axes", eqn.params.get("axis_name"))
    names = (names,) if isinstance(names, str) else tuple(names or ())
    axes = frozenset(axis for axis in names if axis_sizes[axis] > 1)
    n = prod(axis_sizes[axis] for axis in names)
    operand, result = (sum(bytes_of(v.aval) for v in side) for side in (eqn.invars, eqn.outvars))
    if name in REDUCTIONS:
        return ("all-reduce", axes), Moved(1, operand, 2 * (n - 1) * operand // n)
    if name in GATHERS:
        return ("all-gather", axes), Moved(1, result, (n - 1) * result // n)
    if name in SCATTERS:
        return (SCATTERS[name], axes), Moved(1, operand, (n - 1) * operand // n)
    moves = [(source, target) for source, target in eqn.params["perm"] if source != target]
    return ("collective-permute", axes_moved(moves, names, axis_sizes)), Moved(1, operand, operand if moves else 0)


def axes_moved(moves: list[tuple[int, int]], names: tuple[str, ...], axis_sizes: Mapping[str, int]) -> frozenset[str]:
    """The axes along which some source and its target differ."""
    shape = tuple(axis_sizes[axis] for axis in names)
    steps = [zip(*(np.unravel_index(end, shape) for end in pair), strict=True) for pair in moves]
    return frozenset(axis for step in steps for axis, (s, t) in zip(names, step, strict=True) if s != t)


def bytes_of(aval: Any) -> int:
    return prod(aval.shape) * BITS.get(aval.dtype.name, aval.dtype.itemsize * 8) // 8
