"""Programs of known repeated work: a generator that counts their FLOPs itself, from sizes and mesh axes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

MESHES = ({"a": 2, "b": 4}, {"a": 4, "b": 2}, {"a": 8}, {"a": 2, "b": 2, "c": 2})
KINDS = ("auto", "uneven", "explicit", "manual", "partly_manual", "scan", "gradient", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matmul `[m, k] x [k, n]`, each dimension cut by some mesh axes."""

    sizes: Mapping[str, int]
    cut: Mapping[str, tuple[str, ...]]

    def spec(self, dimensions: str) -> P:
        """The sharding of an array with these dimensions."""
        return P(*(self.cut[name] or None for name in dimensions))

    def count(self, mesh: Mapping[str, int]) -> tuple[float, float, float]:
        """FLOPs as traced, with padding, and of all devices."""
        parts = {name: prod(mesh[axis] for axis in axes) for name, axes in self.cut.items()}
        padded = prod(-(-size // parts[name]) * parts[name] for name, size in self.sizes.items())
        repeated = prod(mesh.values()) // prod(parts.values())
        return 2.0 * prod(self.sizes.values()), 2.0 * padded, 2.0 * padded * repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program with its arguments and mesh, and what it multiplies: as traced, with padding, and on all devices."""

    function: Callable[..., Any]
    args: tuple[str, ...]
    mesh: Mapping[str, int]
    traced: float
    padded: float
    everywhere: float
    axis_types: str = "auto"


def make_example(seed: int) -> Example:
    """The example of a number; each kind in turn."""
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    return _MAKERS[kind](random, random.choice(MESHES))


def _choose_cut(random: Random, axes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each axis cuts one of the dimensions, or none."""
    chosen = {axis: random.choice("mkn-") for axis in axes}
    return {name: tuple(axis for axis in axes if chosen[axis] == name) for name in "mkn"}


def _make_chain(random: Random, mesh: Mapping[str, int], sizes: Sequence[int], length: int) -> list[Product]:
    rows, width = random.choice(sizes), random.choice(sizes)
    chain = []
    for _ in range(length):
        after = random.choice(sizes)
        chain.append(Product(sizes={"m": rows, "k": width, "n": after}, cut=_choose_cut(random, list(mesh))))
        width = after
    return chain


def _sum_counts(products: Sequence[Product], mesh: Mapping[str, int], times: int = 1) -> dict[str, float]:
    counts = zip(*(product.count(mesh) for product in products), strict=True)
    return dict(zip(("traced", "padded", "everywhere"), (times * sum(each) for each in counts), strict=True))


def _list_args(chain: Sequence[Product]) -> tuple[str, ...]:
    first = chain[0].sizes
    return (f"f32[{first['m']},{first['k']}]", *(f"f32[{each.sizes['k']},{each.sizes['n']}]" for each in chain))


def _multiply(x: jax.Array, w: jax.Array, product: Product) -> jax.Array:
    cut = jax.lax.with_sharding_constraint
    return cut(cut(x, product.spec("mk")) @ cut(w, product.spec("kn")), product.spec("mn"))


def _make_auto(random: Random, mesh: Mapping[str, int], sizes: Sequence[int] = (16, 32, 64)) -> Example:
    chain = _make_chain(random, mesh, sizes, random.randint(1, 3))

    def program(x, *weights):
        for w, product in zip(weights, chain, strict=True):
            x = jnp.tanh(_multiply(x, w, product))
        return x

    return Example(function=program, args=_list_args(chain), mesh=mesh, **_sum_counts(chain, mesh))


def _make_uneven(random: Random, mesh: Mapping[str, int]) -> Example:
    return _make_auto(random, mesh, (10, 18, 30, 50))


def _make_explicit(random: Random, mesh: Mapping[str, int]) -> Example:
    chain = _make_chain(random, mesh, (16, 32, 64), random.randint(1, 3))

    def program(x, *weights):
        for w, product in zip(weights, chain, strict=True):
            x, cut = (jax.sharding.reshard(each, product.spec(on)) for each, on in ((x, "mk"), (w, "kn")))
            x = jnp.tanh(jnp.einsum("mk,kn->mn", x, cut, out_sharding=product.spec("mn")))
        return x

    counts = _sum_counts(chain, mesh)
    return Example(function=program, args=_list_args(chain), mesh=mesh, axis_types="explicit", **counts)


def _make_manual(random: Random, mesh: Mapping[str, int]) -> Example:
    """Each device multiplies its own rows with all columns, or the same as others: by intention, so nothing repeats."""
    axis = random.choice(list(mesh))
    rows, width, columns = 8 * mesh[axis], random.choice((16, 32)), random.choice((16, 32))

    def program(x, w):
        return jax.shard_map(lambda x, w: jnp.tanh(x @ w), in_specs=(P(axis), P()), out_specs=P(axis))(x, w)

    flops = 2.0 * 8 * width * columns * prod(mesh.values())
    args = (f"f32[{rows},{width}]", f"f32[{width},{columns}]")
    return Example(function=program, args=args, mesh=mesh, traced=flops, padded=flops, everywhere=flops)


def _make_partly_manual(random: Random, mesh: Mapping[str, int]) -> Example:
    """One axis is manual; the compiler cuts the columns over another one, and repeats over the rest."""
    manual, *others = random.sample(list(mesh), len(mesh))
    used = random.choice([None, *others])
    width, columns = random.choice((16, 32)), random.choice((16, 32))

    def part(x, w):
        return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, P(None, used)))

    def program(x, w):
        w = jax.lax.with_sharding_constraint(w, P(None, used))
        return jax.shard_map(part, in_specs=(P(manual), P()), out_specs=P(manual), axis_names={manual})(x, w)

    flops = 2.0 * 8 * width * columns * mesh[manual]
    repeated = prod(mesh[axis] for axis in others if axis != used)
    args = (f"f32[{8 * mesh[manual]},{width}]", f"f32[{width},{columns}]")
    return Example(function=program, args=args, mesh=mesh, traced=flops, padded=flops, everywhere=flops * repeated)


def _make_scan(random: Random, mesh: Mapping[str, int]) -> Example:
    trips, size = random.randint(2, 9), random.choice((16, 32))
    product = Product(sizes=dict.fromkeys("mkn", size), cut=_choose_cut(random, list(mesh)))

    def program(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(_multiply(x, w, product)), None), x, weights)[0]

    args = (f"f32[{size},{size}]", f"f32[{trips},{size},{size}]")
    return Example(function=program, args=args, mesh=mesh, **_sum_counts([product], mesh, trips))


def _make_gradient(random: Random, mesh: Mapping[str, int]) -> Example:
    """The matmul once forward, and two of the same size backward."""
    [product] = _make_chain(random, mesh, (16, 32, 64), 1)

    def program(x, w):
        def loss(x, w):
            return jnp.sin(_multiply(jnp.sin(x), w, product)).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(x, w)

    return Example(function=program, args=_list_args([product]), mesh=mesh, **_sum_counts([product], mesh, 3))


def _make_checkpoint(random: Random, mesh: Mapping[str, int]) -> Example:
    """The same in a loop, where nothing merges with the matmul that runs once more before the backward pass."""
    trips, size = random.randint(2, 5), random.choice((16, 32))
    product = Product(sizes=dict.fromkeys("mkn", size), cut=_choose_cut(random, list(mesh)))

    def program(x, weights):
        def layer(x, w):
            return jnp.sin(_multiply(x, w, product)), None

        def loss(x, weights):
            return jax.lax.scan(jax.checkpoint(layer), x, weights)[0].sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(x, weights)

    args = (f"f32[{size},{size}]", f"f32[{trips},{size},{size}]")
    return Example(function=program, args=args, mesh=mesh, **_sum_counts([product], mesh, 4 * trips))


_MAKERS: Mapping[str, Callable[[Random, Mapping[str, int]], Example]] = {
    "auto": _make_auto,
    "uneven": _make_uneven,
    "explicit": _make_explicit,
    "manual": _make_manual,
    "partly_manual": _make_partly_manual,
    "scan": _make_scan,
    "gradient": _make_gradient,
    "checkpoint": _make_checkpoint,
}
