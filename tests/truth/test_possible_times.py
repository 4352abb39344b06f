"""Predicted steps are possible: none is shorter than its operations, its memory traffic or its transfers can be.

Random programs on every generation. What a program computes, touches and sends is counted where it is generated, and
what chips can do at most stands here, so that nothing of hloscope's own arithmetic is on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import hloscope


@dataclass(frozen=True)
class Limits:
    """What one device of a generation can do at most.

    Attributes:
        where: A slice of it, and how many devices that has.
        flops: Of bf16 per second.
        int8: Of int8 per second.
        hbm: Bytes per second.
        links: Bytes per second over all links of its chip and between the chip's devices, one way.
    """

    where: tuple[str, int]
    flops: float
    int8: float
    hbm: float
    links: float


LIMITS = {  # per device, from the published figures of a chip; v2, v3 and 7x have two devices on each
    "v2": Limits(("v2:2x2", 8), 23e12, 23e12, 350e9, 4 * 60e9 + 350e9),
    "v3": Limits(("v3:2x2", 8), 61.5e12, 61.5e12, 450e9, 4 * 100e9 + 450e9),
    "v4": Limits(("v4:2x2x1", 4), 275e12, 275e12, 1200e9, 6 * 45e9),
    "v5e": Limits(("v5e:2x4", 8), 197e12, 394e12, 819e9, 4 * 45e9),
    "v5p": Limits(("v5p:2x2x1", 4), 459e12, 918e12, 2765e9, 6 * 90e9),
    "v6e": Limits(("v6e:2x4", 8), 918e12, 1836e12, 1638e9, 4 * 90e9),
    "v7x": Limits(("tpu7x:2x2x1", 8), 1153.5e12, 1153.5e12, 3690e9, 6 * 90e9 + 540e9),
}
ITEM = {"bfloat16": 2, "float32": 4, "int8": 1}
RANDOM = os.environ.get("HLOSCOPE_RANDOM")
EXAMPLES = 2 if RANDOM is None else int(RANDOM) if RANDOM.isdigit() else 25
"""Random programs for each generation: the same few in every run, unless somebody looks for more."""

LONGEST_US = 1e6
"""More than any of these programs can take."""


@dataclass(frozen=True)
class Least:
    """The least that one device does in a step, by what limits it."""

    flops: int = 0
    int8: int = 0
    hbm: int = 0
    wire: float = 0.0

    def __add__(self, other: Least) -> Least:
        return Least(self.flops + other.flops, self.int8 + other.int8, self.hbm + other.hbm, self.wire + other.wire)


@dataclass(frozen=True)
class Piece:
    """A part of a program with arguments and results of its own, as one device sees them.

    Attributes:
        what: For the report of a failure.
        function: From its arguments to its results.
        arguments: Shapes and types on one device.
        donated: Positions of arguments whose memory a result takes.
        least: What it does, whatever the compiler makes of it.
    """

    what: str
    function: Callable[..., tuple[jax.Array, ...]]
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    donated: tuple[int, ...]
    least: Least


def matmul(m: int, k: int, n: int, dtype: str) -> Piece:
    """A matmul; with few rows it is bound by memory."""
    out = "int32" if dtype == "int8" else "float32"
    flops = 2 * m * k * n

    def run(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        return (lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.dtype(out)),)

    touched = ITEM[dtype] * (m * k + k * n) + 4 * m * n
    least = Least(hbm=touched, **({"int8": flops} if dtype == "int8" else {"flops": flops}))
    return Piece(f"matmul {m} {k} {n} {dtype}", run, (((m, k), dtype), ((k, n), dtype)), (), least)


def gather(rows: int, columns: int, picked: int, dtype: str) -> Piece:
    """Rows of a table, all different, of which no more is touched."""
    least = Least(hbm=2 * picked * columns * ITEM[dtype])
    arguments = (((rows, columns), dtype), ((picked,), "int32"))
    return Piece(f"gather {picked} of {rows}x{columns} {dtype}", lambda t, i: (t[i] * 2,), arguments, (), least)


def update(rows: int, columns: int, part: int, dtype: str) -> Piece:
    """A few new rows in a donated array."""
    least = Least(hbm=2 * part * columns * ITEM[dtype])
    arguments = (((rows, columns), dtype), ((part, columns), dtype), ((1,), "int32"))

    def run(t: jax.Array, new: jax.Array, at: jax.Array) -> tuple[jax.Array, ...]:
        return (lax.dynamic_update_slice(t, new, (at[0], 0)),)

    return Piece(f"update {part} of {rows}x{columns} {dtype}", run, arguments, (0,), least)


def scatter(rows: int, columns: int, part: int, dtype: str) -> Piece:
    """A few rows of a donated array, all different, to which something is added."""
    least = Least(hbm=3 * part * columns * ITEM[dtype])
    arguments = (((rows, columns), dtype), ((part,), "int32"), ((part, columns), dtype))
    return Piece(
        f"scatter {part} to {rows}x{columns} {dtype}", lambda t, i, new: (t.at[i].add(new),), arguments, (0,), least
    )


def passed_through(rows: int, columns: int, dtype: str) -> Piece:
    """A donated array that is handed back as it is."""
    return Piece(f"pass {rows}x{columns} {dtype}", lambda t: (t,), (((rows, columns), dtype),), (0,), Least())


def elementwise(rows: int, columns: int, dtype: str) -> Piece:
    """One pass over an array."""
    least = Least(hbm=2 * rows * columns * ITEM[dtype])
    return Piece(f"map {rows}x{columns} {dtype}", lambda t: (t * t + 1,), (((rows, columns), dtype),), (), least)


def collective(kind: str, rows: int, columns: int, dtype: str, devices: int) -> Piece:
    """A collective over all devices: the bytes are those that no algorithm can do without sending."""
    size, n = rows * columns * ITEM[dtype], devices
    does: dict[str, tuple[Callable[[jax.Array], jax.Array], float, int]] = {
        "psum": (lambda x: lax.psum(x, "a"), 2 * (n - 1) / n * size, 2 * size),
        "all_gather": (lambda x: lax.all_gather(x, "a", tiled=True), (n - 1) * size, (1 + n) * size),
        "psum_scatter": (lambda x: lax.psum_scatter(x, "a", tiled=True), (n - 1) / n * size, size + size // n),
        "all_to_all": (lambda x: lax.all_to_all(x, "a", 0, 0, tiled=True), (n - 1) / n * size, 2 * size),
        "ppermute": (lambda x: lax.ppermute(x, "a", [(i, (i + 1) % n) for i in range(n)]), size, 2 * size),
    }
    run, wire, touched = does[kind]
    arguments = (((rows, columns), dtype),)
    return Piece(f"{kind} {rows}x{columns} {dtype}", lambda x: (run(x),), arguments, (), Least(hbm=touched, wire=wire))


@st.composite
def pieces(draw: st.DrawFn, devices: int) -> Piece:
    """One of them, between what fits in vector memory and what does not."""
    what = draw(st.sampled_from(("matvec", "matmul", "gather", "update", "scatter", "pass", "map", "collective")))
    dtype = draw(st.sampled_from(("bfloat16", "float32")))
    rows, columns = draw(st.sampled_from((2048, 4096, 16384))), draw(st.sampled_from((512, 1024, 2048)))
    part = draw(st.sampled_from((8, 32, 512)))
    match what:
        case "matvec":
            return matmul(draw(st.sampled_from((8, 16))), rows, columns, draw(st.sampled_from(tuple(ITEM))))
        case "matmul":
            return matmul(draw(st.sampled_from((1024, 4096))), columns, rows, draw(st.sampled_from(tuple(ITEM))))
        case "gather":
            return gather(rows, columns, 8 * part, dtype)
        case "update":
            return update(rows, columns, part, dtype)
        case "scatter":
            return scatter(rows, columns, part, dtype)
        case "pass":
            return passed_through(rows, columns, dtype)
        case "map":
            return elementwise(rows, columns, dtype)
    kind = draw(st.sampled_from(("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute")))
    return collective(kind, rows // 4, columns, dtype, devices)


PREFETCHED = matmul(8, 16384, 2048, "bfloat16")
"""Its weights fit in the vector memory of v5e and v6e, where each step finds them prefetched by the one before."""
SHARP = {
    "v2": scatter(4096, 512, 32, "float32"),
    "v3": collective("psum", 1024, 1024, "float32", 8),
    "v4": PREFETCHED,
    "v5e": PREFETCHED,
    "v5p": matmul(1024, 4096, 4096, "int8"),
    "v6e": PREFETCHED,
    "v7x": gather(16384, 1024, 4096, "float32"),  # whose cycles the compiler does not know
}
"""For each generation one program that tells possible times from impossible ones."""


def step_of(program: list[Piece]) -> Callable[..., Any]:
    """All pieces, each on its own arguments: nothing is dead, and nothing depends on anything."""

    def local(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        left, results = list(arguments), []
        for piece in program:
            taken = [left.pop(0) for _ in piece.arguments]
            results.extend(piece.function(*taken))
        return tuple(results)

    return jax.shard_map(local, in_specs=P("a"), out_specs=P("a"), check_vma=False)


def least_us(program: list[Piece], limits: Limits) -> dict[str, float]:
    """How long the step takes at the very least, for each thing that limits it."""
    least = sum((piece.least for piece in program), Least())
    return {
        "matrix units": (least.flops / limits.flops + least.int8 / limits.int8) * 1e6,
        "memory": least.hbm / limits.hbm * 1e6,
        "links": least.wire / limits.links * 1e6,
    }


def predicted(program: list[Piece], limits: Limits) -> hloscope.Analysis:
    """The program's analysis on that generation's slice."""
    name, devices = limits.where
    shapes = [argument for piece in program for argument in piece.arguments]
    arguments = tuple(
        jax.ShapeDtypeStruct((shape[0] * devices, *shape[1:]), jnp.dtype(dtype)) for shape, dtype in shapes
    )
    donated, at = [], 0
    for piece in program:
        donated.extend(at + position for position in piece.donated)
        at += len(piece.arguments)
    return hloscope.analyze(step_of(program), arguments, mesh={"a": devices}, slice=name, donate=tuple(donated))


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", LIMITS)
def test_no_step_is_shorter_than_it_can_be(generation, cached):
    limits = LIMITS[generation]

    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(pieces(limits.where[1]), min_size=1, max_size=3))
    @example([SHARP[generation]])
    def check(program):
        found = predicted(program, limits)
        assert isfinite(found.time.step_us)
        assert found.time.step_us < LONGEST_US
        for what, least in least_us(program, limits).items():
            assert found.time.step_us >= least * (1 - 1e-9), (what, [piece.what for piece in program])
        assert 0 <= (found.time.peak_flops_share or 0) <= 1 + 1e-9

    (check if RANDOM else seed(list(LIMITS).index(generation))(check))()
