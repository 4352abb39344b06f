"""Steps made up at random, as real ones are made: layers of a model, their gradients and updates, on some mesh."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

Notations = dict[str, str]
Weights = dict[str, Any]
Layer = Callable[[Weights, Any], Any]

_MESHES: tuple[dict[str, int], ...] = (
    {"X": 4, "Y": 2},
    {"X": 2, "Y": 4},
    {"X": 8, "Y": 1},
    {"X": 4, "Y": 4},
    {"X": 2, "Y": 2},
    {"X": 2, "Y": 8},
    {"X": 16, "Y": 1},
    {"X": 8, "Y": 4},
    {"X": 1, "Y": 1},
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One program.

    Attributes:
        name: What it is made of, and its seed.
        function: The function.
        args: Its arguments, as `hloscope.analyze` takes them.
        mesh: Axis sizes.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: dict[str, int]


@dataclass
class _Making:
    """A step that is being made: its random choices, and the weights that its layers have asked for."""

    dice: random.Random
    mesh: dict[str, int]
    weights: Notations = field(default_factory=dict)
    axes: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        pick = self.dice.choice
        self.dtype = pick(("bf16", "bf16", "bf16", "f32"))
        self.kept = pick(("bf16", "f32", self.dtype))
        self.batch = pick((1, 2, 4, 8)) * self.mesh["X"]
        self.length = pick((8, 16, 64, 128, 256, 384, 512, 1024, 2048))
        self.width = pick((256, 512, 768, 1024, 1536, 2048, 4096))
        if self.batch * self.length // self.mesh["X"] * self.width > 2**25:
            self.batch = self.mesh["X"]
        self.style = pick(("replicated", "tensor", "fsdp", "both"))

    def weight(self, name: str, *sizes: int, dtype: str | None = None, along: int = -1) -> str:
        """Asks for a weight, which is cut as the step's style says.

        Args:
            name: A name that no other weight needs to have.
            sizes: Its sizes.
            dtype: Its type; by default that in which weights are kept.
            along: The dimension that tensor parallelism cuts.
        """
        name = f"{name}{len(self.weights)}"
        cut = [str(size) for size in sizes]
        if self.style in ("tensor", "both") and sizes[along] % self.mesh["Y"] == 0 and self.mesh["Y"] > 1:
            cut[along] += "@Y"
        other = (along + 1) % len(sizes) if along >= 0 else -len(sizes)
        if self.style in ("fsdp", "both") and len(sizes) > 1 and sizes[other] % self.mesh["X"] == 0:
            cut[other] += "@X" if self.mesh["X"] > 1 else ""
        self.weights[name] = f"{dtype or self.kept}[{','.join(cut)}]"
        return name

    @property
    def type(self) -> Any:
        """The type of activations, as JAX names it."""
        return {"bf16": jnp.bfloat16, "f32": jnp.float32}[self.dtype]


def _feed_forward(made: _Making) -> Layer:
    hidden = made.dice.choice((2, 3, 4)) * made.width
    up, down = made.weight("up", made.width, hidden), made.weight("down", hidden, made.width, along=0)
    gate = made.weight("gate", made.width, hidden) if made.dice.random() < 0.5 else None
    exact = partial(jax.nn.gelu, approximate=False)
    act = made.dice.choice((jax.nn.gelu, jax.nn.silu, jax.nn.relu, jnp.tanh, exact))

    def layer(w: Weights, x: Any) -> Any:
        h = act(x @ w[up].astype(x.dtype))
        if gate:
            h = h * (x @ w[gate].astype(x.dtype))
        return x + h @ w[down].astype(x.dtype)

    return layer


def _attention(made: _Making) -> Layer:
    size = made.dice.choice((64, 128, 128, 256))
    heads = max(made.width // size, made.mesh["Y"])
    groups = made.dice.choice((1, 1, 2)) if heads % (2 * made.mesh["Y"]) == 0 else 1
    q = made.weight("q", made.width, heads, size, along=1)
    k, v = (made.weight(name, made.width, heads // groups, size, along=1) for name in "kv")
    o = made.weight("o", heads, size, made.width, along=0)
    is_causal, is_rotated, wide = (made.dice.random() < 0.5 for _ in range(3))

    def rotate(x: Any) -> Any:
        half = size // 2
        angle = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        sin, cos = jnp.sin(angle)[:, None].astype(x.dtype), jnp.cos(angle)[:, None].astype(x.dtype)
        one, two = x[..., :half], x[..., half:]
        return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)

    def layer(w: Weights, x: Any) -> Any:
        a, b, c = (jnp.einsum("btd,dhk->bthk", x, w[name].astype(x.dtype)) for name in (q, k, v))
        if is_rotated:
            a, b = rotate(a), rotate(b)
        if groups > 1:
            b, c = jnp.repeat(b, groups, 2), jnp.repeat(c, groups, 2)
        scores = jnp.einsum("bqhk,bthk->bhqt", a, b) / size**0.5
        scores = scores.astype(jnp.float32) if wide else scores
        if is_causal:
            scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e9)
        mixed = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores, -1).astype(x.dtype), c)
        return x + jnp.einsum("bqhk,hkd->bqd", mixed, w[o].astype(x.dtype))

    return layer


def _norm(made: _Making) -> Layer:
    scale, is_centered = made.weight("scale", made.width), made.dice.random() < 0.5

    def layer(w: Weights, x: Any) -> Any:
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True) if is_centered else y
        return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * w[scale]).astype(x.dtype)

    return layer


def _experts(made: _Making) -> Layer:
    count = made.dice.choice((4, 8)) * made.mesh["Y"]
    hidden, top = made.dice.choice((1, 2)) * made.width, made.dice.choice((1, 2))
    router = made.weight("router", made.width, count)
    up = made.weight("expert_up", count, made.width, hidden, along=0)
    down = made.weight("expert_down", count, hidden, made.width, along=0)

    def layer(w: Weights, x: Any) -> Any:
        logits = (x @ w[router].astype(x.dtype)).astype(jnp.float32)
        best, chosen = jax.lax.top_k(logits, top)
        gates = (jax.nn.one_hot(chosen, count) * jax.nn.softmax(best)[..., None]).sum(-2)
        room = max(x.shape[1] * top // count, 8)
        place = jnp.cumsum(gates > 0, 1) - 1
        sent = (jax.nn.one_hot(place, room) * (gates > 0)[..., None]).astype(x.dtype)
        there = jnp.einsum("btec,btd->ebcd", sent, x)
        h = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", there, w[up].astype(x.dtype)))
        back = jnp.einsum("ebcf,efd->ebcd", h, w[down].astype(x.dtype))
        return x + jnp.einsum("btec,ebcd->btd", sent * gates[..., None].astype(x.dtype), back)

    return layer


def _convolution(made: _Making) -> Layer:
    side = 16 if made.length < 512 else 32
    channels = min(made.length * made.width // side**2, 512)
    kernel = made.weight("kernel", 3, 3, channels, channels)

    def layer(w: Weights, x: Any) -> Any:
        image = x.reshape(x.shape[0], -1)[:, : side * side * channels].reshape(-1, side, side, channels)
        y = jax.lax.conv_general_dilated(
            image, w[kernel].astype(x.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        rest = jnp.zeros((x.shape[0], x.shape[1] * x.shape[2] - side * side * channels), x.dtype)
        return x + jnp.concatenate([jax.nn.relu(y).reshape(x.shape[0], -1), rest], -1).reshape(x.shape)

    return layer


def _projection(made: _Making) -> Layer:
    wide = made.dice.choice((128, 256, 384, 640, 1024, 1536, 2048, 3000, 4096, 6144, 8192))
    w1 = made.weight("projection", made.width, wide)
    shape = made.dice.choice(("plain", "scaled", "summed", "transposed"))

    def layer(w: Weights, x: Any) -> Any:
        y = x @ w[w1].astype(x.dtype)
        if shape == "scaled":
            y = jnp.exp(-jnp.abs(y)) * y
        if shape == "summed":
            return x + y.sum(-1, keepdims=True)
        if shape == "transposed":
            return x + jnp.einsum("btf,bsf->bts", y, y) @ x
        if wide % 5 == 0:
            return x * y.max(-1, keepdims=True)
        return jnp.tile(y, (1, 1, -(-x.shape[2] // wide)))[..., : x.shape[2]]

    return layer


def _short_convolution(made: _Making) -> Layer:
    taps, kernel = 4, made.weight("taps", 4, made.width)

    def layer(w: Weights, x: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (taps - 1, 0), (0, 0)))
        return x + sum(padded[:, n : n + x.shape[1]] * w[kernel][n].astype(x.dtype) for n in range(taps))

    return layer


def _byte_matmul(made: _Making) -> Layer:
    hidden = made.dice.choice((1, 2, 4)) * made.width
    up = made.weight("byte_up", made.width, hidden, dtype="s8")
    down = made.weight("byte_down", hidden, made.width, dtype="s8", along=0)

    def narrow(x: Any) -> Any:
        return jnp.clip(jnp.round(x * 16), -127, 127).astype(jnp.int8)

    def layer(w: Weights, x: Any) -> Any:
        h = jax.lax.dot_general(narrow(x), w[up], (((2,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        h = jax.nn.relu(h.astype(jnp.float32) / 256)
        y = jax.lax.dot_general(narrow(h), w[down], (((2,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return x + (y.astype(jnp.float32) / 256).astype(x.dtype)

    return layer


def _roll(x: Any) -> Any:
    return x + jnp.roll(x, 3, 1) * jnp.roll(x, 1, 2)


def _permute(x: Any) -> Any:
    order = jnp.argsort(x.astype(jnp.float32).sum(-1), axis=1)
    return x + jnp.take_along_axis(x, order[..., None], 1)


def _mark_largest(x: Any) -> Any:
    return x + jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1], dtype=x.dtype)


def _series(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (jnp.log1p(jnp.abs(wide)) * jnp.sin(wide) + jnp.sqrt(jnp.abs(wide) + 1)).astype(x.dtype)


def _scan_transposed(x: Any) -> Any:
    return x + jnp.swapaxes(jnp.cumsum(jnp.swapaxes(x, 1, 2), -1), 1, 2)


def _segments(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    ids = (jnp.abs(wide[:, :, 0]) * 64).astype(jnp.int32) % 64
    sums = jax.vmap(lambda values, id: jax.ops.segment_sum(values, id, 64))(wide, ids)
    return x + jax.vmap(lambda table, id: table[id])(sums, ids).astype(x.dtype)


def _odd_operations(made: _Making) -> Layer:
    kinds = (_roll, _permute, _mark_largest, _series, _scan_transposed, _segments, _roll, _series)
    kind = made.dice.choice(kinds)
    return lambda _, x: kind(x)


_LAYERS = (
    *3 * (_norm, _projection, _projection, _odd_operations), *2 * (_feed_forward, _short_convolution), _attention,
    _experts, _byte_matmul,
)  # fmt: skip


_SLOW = (_attention, _experts, _convolution)


def make_step(seed: int) -> Step:  # noqa: C901 (one draw after the other)
    """The step of a seed: one or two layers, perhaps with an embedding and a loss, perhaps with an update."""
    dice = random.Random(seed)
    made = _Making(dice=dice, mesh=dict(dice.choice(_MESHES)))
    makers = [dice.choice(_LAYERS) for _ in range(dice.choice((1, 1, 2)))]
    has_vocabulary, update = dice.random() < 0.08, dice.choice((None, None, None, "sgd", "adam"))
    vocabulary = dice.choice((8192, 32000, 32768))
    if any(maker in _SLOW for maker in makers) or (len(makers) > 1 and update == "adam"):  # to compile
        has_vocabulary, update = False, None
    table = made.weight("table", vocabulary, made.width, along=0) if has_vocabulary else None
    layers = [maker(made) for maker in makers]
    tied = dice.random() < 0.5
    last = None if not has_vocabulary or tied else made.weight("last", made.width, vocabulary)

    def forward(w: Weights, x: Any) -> Any:
        labels = x
        if table:
            x = w[table].astype(made.type)[x]
        for layer in layers:
            x = layer(w, x)
        if not table:
            return x
        logits = x @ (w[last] if last else w[table].T).astype(x.dtype)
        logits = logits.astype(jnp.float32)
        return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]).mean()

    def trained(w: Weights, m: Weights, v: Weights, x: Any) -> Any:
        learned = {name: value for name, value in w.items() if value.dtype != jnp.int8}
        fixed = {name: value for name, value in w.items() if value.dtype == jnp.int8}

        def loss(learned: Weights) -> Any:
            return (forward({**learned, **fixed}, x).astype(jnp.float32) ** 2).mean()

        gradient = jax.grad(loss)(learned)
        if update == "sgd":
            return jax.tree.map(lambda w, g: w - (0.01 * g).astype(w.dtype), learned, gradient)
        m = {n: 0.9 * m[n] + 0.1 * g for n, g in gradient.items()}
        v = {n: 0.99 * v[n] + 0.01 * g * g for n, g in gradient.items()}
        new = {n: (w - 0.01 * m[n] / (jnp.sqrt(v[n]) + 1e-8)).astype(w.dtype) for n, w in learned.items()}
        return new, m, v

    rows = f"{made.batch}@X" if made.mesh["X"] > 1 else f"{made.batch}"
    x = f"s32[{rows},{made.length}]" if table else f"{made.dtype}[{rows},{made.length},{made.width}]"
    names = "+".join(maker.__name__.strip("_") for maker in makers)
    name = f"{names}{'+vocabulary' if table else ''}{f'+{update}' if update else ''}#{seed}"
    states = {
        key: f"f32{value[value.index('[') :]}" for key, value in made.weights.items() if not value.startswith("s8")
    }
    if update is None or not states:
        return Step(name=name, function=forward, args=(made.weights, x), mesh=made.mesh)
    if update == "sgd":
        return Step(name=name, function=lambda w, x: trained(w, {}, {}, x), args=(made.weights, x), mesh=made.mesh)
    return Step(name=name, function=trained, args=(made.weights, states, states, x), mesh=made.mesh)


EXCHANGE = "exchange"
"""The name of steps that compute next to nothing."""

_LARGER_MESHES: tuple[dict[str, int], ...] = (
    *_MESHES[:-1],
    {"X": 8, "Y": 8},
    {"X": 4, "Y": 16},
    {"X": 64, "Y": 1},
    {"X": 16, "Y": 16},
    {"X": 4, "Y": 1},
    {"X": 32, "Y": 1},
    {"X": 2, "Y": 1},
)


def _exchange(value: Any, kind: str, axes: tuple[str, ...], dimension: int) -> Any:
    value = value + jax.lax.axis_index("X").astype(value.dtype)
    if kind == "sum":
        return jax.lax.psum(value, axes)
    if kind == "gather":
        return jax.lax.all_gather(value, axes, axis=dimension, tiled=True)
    if kind == "scatter":
        return jax.lax.psum_scatter(value, axes, scatter_dimension=dimension, tiled=True)
    return jax.lax.all_to_all(value, axes, dimension, dimension, tiled=True)


def make_exchange(seed: int) -> Step:
    """A step that exchanges some arrays, of any size, and computes next to nothing."""
    dice = random.Random(seed)
    mesh = dict(dice.choice(_LARGER_MESHES))
    devices = mesh["X"] * mesh["Y"]
    arrays, moves = [], []
    for _ in range(dice.choice((2, 3))):
        dtype = dice.choice(("bf16", "bf16", "f32", "f32", "s32", "s8"))
        kind = dice.choice(("sum", "sum", "gather", "gather", "scatter", "scatter", "exchange"))
        axes = dice.choice((("X",), ("Y",), ("X", "Y")))
        if all(mesh[axis] == 1 for axis in axes):
            axes = ("X",)
        rank = dice.choice((1, 2, 2, 3))
        elements = 2 ** dice.uniform(9, 24 if kind != "gather" else 26 - devices.bit_length())
        sizes = [128 * dice.choice((1, 2, 4, 8, 12, 16, 32)) for _ in range(rank)]
        sizes[0] = max(round(elements / prod(sizes[1:]) / 8), 1) * 8
        dimension = dice.randrange(rank)
        sizes[dimension] = -(-sizes[dimension] // devices) * devices
        arrays.append(f"{dtype}[{','.join(map(str, sizes))}]")
        moves.append((kind, axes, dimension))

    def moved(*values: Any) -> Any:
        return tuple(_exchange(value, *move) for value, move in zip(values, moves, strict=True))

    specs = tuple(P() for _ in arrays)
    function = jax.shard_map(in_specs=specs, out_specs=specs, check_vma=False)(moved)
    return Step(name=f"{EXCHANGE}#{seed}", function=function, args=tuple(arrays), mesh=mesh)


def _multiply_gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def _decode(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    a, b, c = x @ q, x @ k, x @ v
    scores = jax.nn.softmax((jnp.einsum("bqd,btd->bqt", a, b) / 16).astype(jnp.float32), -1)
    return x + jnp.einsum("bqt,btd->bqd", scores.astype(x.dtype), c) @ o


def _mix(x: Any, router: Any, up: Any, down: Any) -> Any:
    gates = jax.nn.softmax((x @ router).astype(jnp.float32), -1).astype(x.dtype)
    hidden = jax.nn.relu(jnp.einsum("td,edf->etf", x, up))
    return jnp.einsum("etf,efd,te->td", hidden, down, gates)


_CANDIDATES: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gated": (_multiply_gated, ((4096, 1024), (1024, 4096), (1024, 4096), (4096, 1024))),
    "attention": (_decode, ((8, 512, 1024), *4 * ((1024, 1024),))),
    "experts": (_mix, ((2048, 512), (512, 8), (8, 512, 1024), (8, 1024, 512))),
}
CANDIDATES_OF_EACH = 20


def make_candidates() -> Iterator[Step]:
    """Three programs, each with many shardings of its arguments, of which the fastest is sought."""
    for name, (function, shapes) in _CANDIDATES.items():
        for seed in range(CANDIDATES_OF_EACH):
            dice = random.Random(f"{name} {seed}")
            yield Step(
                name=f"candidate-{name}#{seed}",
                function=function,
                args=tuple(f"bf16[{','.join(_cut(dice, shape))}]" for shape in shapes),
                mesh={"X": 4, "Y": 2},
            )


def _cut(dice: random.Random, shape: tuple[int, ...]) -> list[str]:
    """The dimensions of an array, some of them cut along axes of the mesh."""
    cut = [str(size) for size in shape]
    for axis in ("X", "Y"):
        if dice.random() < 0.7:
            dimension = dice.randrange(len(shape))
            cut[dimension] += f"@{axis}" if "@" not in cut[dimension] else ""
    return cut
