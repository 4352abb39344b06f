"""Random shard_map programs in which the compiler must keep every collective.

Each collective takes x·x + w, with x the result of the one before it and w different on every device: nothing is dead,
nothing equals another, nothing is loop-invariant, and no sum can be pulled through a product of x with itself.
Independent, linear or loop-invariant collectives would be merged, dropped or hoisted, and rightly so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

Mesh = dict[str, int]


@dataclass(frozen=True)
class Step:
    """One collective; `pairs` are those of a permute."""

    kind: str
    axes: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Loop:
    """Steps that run `trips` times, written as a `scan`, a `fori_loop` from `first`, or inlined by a `jit` call."""

    how: str
    trips: int
    body: tuple[Step | Loop, ...]
    first: int = 0
    unroll: int = 1


@dataclass(frozen=True)
class Program:
    """A chain of steps over an array `dtype[rows x devices, columns]` on each device."""

    mesh: tuple[tuple[str, int], ...]
    dtype: str
    rows: int
    columns: int
    steps: tuple[Step | Loop, ...]

    @property
    def sizes(self) -> Mesh:
        return dict(self.mesh)

    @property
    def devices(self) -> int:
        return prod(self.sizes.values())

    def group_size(self, step: Step) -> int:
        return prod(self.sizes[axis] for axis in step.axes)

    @property
    def argument(self) -> jax.ShapeDtypeStruct:
        """The global array of each of the two arguments, sharded over all axes on its first dimension."""
        return jax.ShapeDtypeStruct((self.rows * self.devices * self.devices, self.columns), jnp.dtype(self.dtype))

    def function(self) -> Callable[..., Any]:
        """The program over local shards."""
        everywhere = P(tuple(self.sizes))

        def chain(x: jax.Array, w: jax.Array) -> jax.Array:
            return run(self.steps, x, w, self.sizes)

        return jax.shard_map(chain, in_specs=(everywhere, everywhere), out_specs=everywhere, check_vma=False)


def steps_of(parts: Sequence[Step | Loop]) -> Iterator[Step]:
    """Every step of a program, those in loops too."""
    for part in parts:
        yield from steps_of(part.body) if isinstance(part, Loop) else (part,)


def run(steps: Sequence[Step | Loop], x: jax.Array, w: jax.Array, sizes: Mesh) -> jax.Array:
    for step in steps:
        x = communicate(step, x * x + w, sizes) if isinstance(step, Step) else repeat(step, x, w, sizes)
    return x


def repeat(loop: Loop, x: jax.Array, w: jax.Array, sizes: Mesh) -> jax.Array:
    def body(x: jax.Array) -> jax.Array:
        return run(loop.body, x, w, sizes)

    if loop.how == "fori":
        return lax.fori_loop(loop.first, loop.first + loop.trips, lambda _, x: body(x), x)
    if loop.how == "scan":
        return lax.scan(lambda x, _: (body(x), None), x, length=loop.trips, unroll=loop.unroll)[0]
    return jax.jit(body)(x)


def communicate(step: Step, x: jax.Array, sizes: Mesh) -> jax.Array:
    """One collective, its result brought back to the shape of `x` in a way that keeps all of it alive."""
    n = prod(sizes[axis] for axis in step.axes)
    match step.kind:
        case "psum":
            return lax.psum(x, step.axes)
        case "pmax":
            return lax.pmax(x, step.axes)
        case "all_gather":
            return jnp.max(lax.all_gather(x, step.axes, tiled=True).reshape(n, *x.shape), axis=0)
        case "psum_scatter":
            part = lax.psum_scatter(x, step.axes, tiled=True)
            return jnp.concatenate([part * part + jnp.asarray(i, part.dtype) for i in range(n)])
        case "all_to_all":
            return lax.all_to_all(x, step.axes, split_axis=0, concat_axis=0, tiled=True)
        case "ppermute":
            return lax.ppermute(x, step.axes, perm=step.pairs)
    raise ValueError(step.kind)


KINDS = ("psum", "pmax", "all_gather", "psum_scatter", "all_to_all", "ppermute")


@st.composite
def steps(draw: st.DrawFn, sizes: Mesh, kinds: Sequence[str]) -> Step:
    kind = draw(st.sampled_from(kinds))
    axes = tuple(draw(st.permutations(sorted(sizes)).flatmap(lambda p: st.integers(1, len(p)).map(lambda n: p[:n]))))
    if kind != "ppermute":
        return Step(kind, axes)
    in_order = tuple(axis for axis in sizes if axis in axes)  # JAX wants those of a ppermute in the order of the mesh
    return Step(kind, in_order, draw(pairs(prod(sizes[axis] for axis in axes))))


@st.composite
def pairs(draw: st.DrawFn, n: int) -> tuple[tuple[int, int], ...]:
    """A shift by any distance, or any partial permutation."""
    if draw(st.booleans()):
        shift = draw(st.integers(0, n - 1))
        return tuple((i, (i + shift) % n) for i in range(n))
    targets = draw(st.permutations(range(n)))
    return tuple(enumerate(targets))[: draw(st.integers(1, n))]


@st.composite
def loops(draw: st.DrawFn, inner: st.SearchStrategy[Step | Loop]) -> Loop:
    how = draw(st.sampled_from(("scan", "fori", "call")))
    trips = 1 if how == "call" else draw(st.integers(0, 5))
    unroll = draw(st.integers(1, 2)) if how == "scan" else 1
    body = tuple(draw(st.lists(inner, min_size=1, max_size=3)))
    return Loop(how, trips, body, first=draw(st.integers(-3, 3)) if how == "fori" else 0, unroll=unroll)


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    device_counts: Sequence[int],
    dtypes: Sequence[str],
    rows: Sequence[int],
    kinds: Sequence[str] = KINDS,
) -> Program:
    """Programs over meshes of 1 to 3 axes with as many devices in all as one of `device_counts`."""
    devices = draw(st.sampled_from(device_counts))
    sizes: list[int] = []
    for _ in range(draw(st.integers(0, 2))):
        rest = devices // prod(sizes)
        sizes.append(draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
    sizes.append(devices // prod(sizes))
    mesh = dict(zip(draw(st.permutations("abc")), sizes, strict=False))
    nested = st.recursive(steps(mesh, kinds), loops, max_leaves=4)
    return Program(
        tuple(mesh.items()),
        draw(st.sampled_from(dtypes)),
        rows=draw(st.sampled_from(rows)),
        columns=draw(st.sampled_from((256, 384, 512))),
        steps=tuple(draw(st.lists(nested, min_size=1, max_size=4))),
    )
