"""Published timings of TPU programs: what was run, where, what was measured, and how exactly.

Sources, by the names used below:

* `seed`: "How to Scale Your Model", chapter on programming TPUs in JAX (text and profile pictures).
* `sharding`: the same book, chapter on sharded matrices (measured times named in the text).
* `profiling`: the same book, chapter on profiling (times read off profile pictures).
* `jax-docs`: JAX's Pallas documentation, matrix multiplication on TPU (timed from the host).
* `nb09`, `nb10`: notebooks on profiling and on mixtures of experts, github.com/YashJayswal24/Model_scaling_jax (Kaggle
  v5e-8); times are written in prose, rounded.
* `recipes`: github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks of v6e and 7x.
* `microbenchmarks`: github.com/AI-Hypercomputer/accelerator-microbenchmarks, the tables of 7x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from published import programs

STEP = "step"
"""The whole program was timed."""
COLLECTIVE = "collective"
"""The collective alone was timed, as the picture or the text says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        name: Its name in tables.
        program: The function that is compiled.
        slice: Where it ran.
        args: Array types of its arguments.
        measured_us: What was measured.
        uncertainty: Relative half-width of what the source leaves open: rounding, reading off a picture, dispatch.
        source: Who measured it.
        mesh: Mesh axes and sizes.
        out: Sharding of the result; None leaves it to the program.
        options: Compiler options.
        timed: What was timed: the step or its collective.
        extra: Whether the row is beyond the ones that the model must predict.
    """

    name: str
    program: Callable[..., Any]
    slice: str
    args: tuple[str, ...]
    measured_us: float
    uncertainty: float
    source: str
    mesh: Mapping[str, int] | None = None
    out: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    timed: str = STEP
    extra: bool = False

    @property
    def generation(self) -> str:
        """The chip's name."""
        prefix = self.slice.rpartition("*")[2].partition(":")[0]
        return {"tpu7x": "v7x"}.get(prefix, prefix)


_ASYNC = {"xla_tpu_enable_async_collective_fusion": "true"}
_VMEM = {"xla_tpu_scoped_vmem_limit_kib": "65536"}
_SEED = {"slice": "v5e:2x4", "mesh": {"X": 2, "Y": 4}, "source": "seed"}
_BOOK_2X2 = {"slice": "v5e:2x2", "mesh": {"dp": 2, "mp": 2}, "source": "profiling"}
_EXPERTS = ("f32[8@x,4096,14336]", "f32[2048@x,4096]", "s32[2048@x]")
_NB10 = {"slice": "v5e:2x4", "options": _ASYNC, "source": "nb10"}
_DOWN = ("f32[4096@x,14336@y]", "f32[14336@y,4096]")
_UP_DOWN = ("f32[4096@x,4096@y]", "f32[4096,14336@y]", "f32[14336@y,4096]")


def _matmul_7x(size: int, tflops_per_s: float, **more: Any) -> Row:
    return Row(
        name=f"7x-matmul-{size}",
        program=programs.matmul_f32_out,
        slice="tpu7x:1x1x1",
        args=(f"bf16[{size},{size}]",) * 2,
        options=_VMEM,
        measured_us=2 * size**3 / tflops_per_s / 1e6,
        uncertainty=0.01,
        source="recipes",
        **more,
    )


ROWS: tuple[Row, ...] = (
    Row(
        name="seed-naive",
        program=programs.matmul,
        args=("s32[1024@X,2048@Y]", "s32[2048,8192@Y]"),
        out="P('X', 'Y')",
        measured_us=311.99,
        uncertainty=0.003,
        **_SEED,
    ),
    Row(
        name="seed-naive-all-gather",
        program=programs.matmul,
        args=("s32[1024@X,2048@Y]", "s32[2048,8192@Y]"),
        out="P('X', 'Y')",
        timed=COLLECTIVE,
        measured_us=89.2,
        uncertainty=0.01,
        **_SEED,
    ),
    Row(
        name="seed-collective",
        program=programs.collective_matmul,
        args=("s32[1024@X,2048@Y]", "s32[2048,8192@Y]"),
        measured_us=239.4,  # 244 in the text, 234.8 in the picture
        uncertainty=0.02,
        **_SEED,
    ),
    Row(
        name="seed-unsharded",
        program=programs.matmul,
        args=("s32[1024@X,2048]", "s32[2048,8192@Y]"),
        out="P('X', 'Y')",
        measured_us=224.0,
        uncertainty=0.003,
        **_SEED,
    ),
    Row(
        name="book-all-gather-big",
        program=programs.gather_rows("Y"),
        slice="v5e:8x4",
        mesh={"X": 8, "Y": 4},
        args=("bf16[2048@Y,8192]",),
        timed=COLLECTIVE,
        measured_us=680.0,
        uncertainty=0.01,
        source="sharding",
    ),
    Row(
        name="book-all-gather-small",
        program=programs.gather_rows("Y"),
        slice="v5e:8x4",
        mesh={"X": 8, "Y": 4},
        args=("bf16[256@Y,256]",),
        timed=COLLECTIVE,
        measured_us=8.0,
        uncertainty=0.07,
        source="sharding",
    ),
    Row(
        name="book-2x2-all-gather",
        program=programs.gather_last,
        args=("bf16[64@dp,32,8192@mp]",),
        timed=COLLECTIVE,
        measured_us=187.0,
        uncertainty=0.02,
        **_BOOK_2X2,
    ),
    Row(
        name="book-2x2-reduce-scatter",
        program=programs.scatter_last,
        args=("bf16[64@dp,32,8192]",),
        timed=COLLECTIVE,
        measured_us=192.0,
        uncertainty=0.02,
        **_BOOK_2X2,
    ),
    Row(
        name="book-2x2-all-reduce",
        program=programs.sum_over_mp,
        args=("bf16[64@dp,32,8192]",),
        timed=COLLECTIVE,
        measured_us=379.0,
        uncertainty=0.02,
        **_BOOK_2X2,
    ),
    Row(
        name="book-2x2-layer",
        program=programs.transformer_layer,
        args=(
            "bf16[64@dp,32,8192@mp]",
            *("bf16[8192,32@mp,256]",) * 4,
            "bf16[32768@mp,8192]",
            "bf16[8192,32768@mp]",
        ),
        out="P('dp', None, 'mp')",
        measured_us=5167.0,
        uncertainty=0.005,
        **_BOOK_2X2,
    ),
    Row(
        name="ffw-up",
        program=programs.up_projection,
        slice="v5e:1x1",
        args=("bf16[32,32,8192]", "bf16[16384,8192]"),
        measured_us=1456.95,
        uncertainty=0.001,
        source="profiling",
    ),
    Row(
        name="dense",
        program=programs.dense,
        slice="v5e:1x1",
        args=("bf16[32,1024,8192]", "bf16[8192,32768]"),
        measured_us=94_132.0,
        uncertainty=0.001,
        source="nb09",
    ),
    Row(
        name="matmul-4096",
        program=programs.matmul,
        slice="v5e:1x1",
        args=("bf16[4096,4096]", "bf16[4096,4096]"),
        measured_us=827.3,
        uncertainty=0.12,  # the host's dispatch is in it
        source="jax-docs",
    ),
    Row(
        name="v2-ffw",
        program=programs.dense,
        slice="v2:1x1",
        args=("bf16[8,1024,8192]", "bf16[8192,16384]"),
        measured_us=96_990.0,
        uncertainty=0.001,
        source="profiling",
    ),
    Row(
        name="fsdp-all-gather",
        program=programs.gather_rows("data"),
        slice="v5e:2x4",
        mesh={"data": 8},
        args=("bf16[8192@data,16384]",),
        timed=COLLECTIVE,
        measured_us=6_000.0,
        uncertainty=0.08,  # "6 ms"
        source="nb09",
    ),
    Row(
        name="moe-naive",
        program=programs.experts_scanned,
        mesh={"x": 8, "y": 1},
        args=_EXPERTS,
        measured_us=73_000.0,
        uncertainty=0.007,
        **_NB10,
    ),
    Row(
        name="moe-all-to-all",
        program=programs.experts_exchanged,
        mesh={"x": 8, "y": 1},
        args=_EXPERTS,
        measured_us=1_700.0,
        uncertainty=0.03,
        **_NB10,
    ),
    Row(
        name="mlp-auto",
        program=programs.mlp,
        mesh={"x": 4, "y": 2},
        args=_UP_DOWN,
        measured_us=1_200.0,
        uncertainty=0.04,
        **_NB10,
    ),
    Row(
        name="rs-psum-scatter",
        program=programs.scatter_by_xla,
        mesh={"x": 2, "y": 4},
        args=_DOWN,
        measured_us=1_010.0,
        uncertainty=0.005,
        **_NB10,
    ),
    Row(
        name="rs-ring",
        program=programs.scatter_by_ring,
        mesh={"x": 2, "y": 4},
        args=_DOWN,
        measured_us=1_200.0,
        uncertainty=0.04,
        **_NB10,
    ),
    Row(
        name="rs-halving",
        program=programs.scatter_by_halving,
        mesh={"x": 2, "y": 4},
        args=_DOWN,
        measured_us=1_100.0,  # printed as "1.1 us"
        uncertainty=0.05,
        **_NB10,
    ),
    Row(
        name="mlp-overlapped",
        program=programs.mlp_overlapped,
        mesh={"x": 4, "y": 2},
        args=_UP_DOWN,
        measured_us=1_250.0,
        uncertainty=0.004,
        **_NB10,
    ),
    Row(
        name="v6e-matmul-8192",
        program=programs.matmul,
        slice="v6e:1x1",
        args=("bf16[8192,8192]", "bf16[8192,8192]"),
        options=_VMEM,
        measured_us=1_328.8,
        uncertainty=0.001,
        source="recipes",
    ),
    Row(
        name="v6e-copy",
        program=programs.copy,
        slice="v6e:1x1",
        args=("bf16[16777216]",),
        options=_VMEM,
        measured_us=49.36,
        uncertainty=0.01,
        source="recipes",
    ),
    Row(
        name="v6e-256-psum",
        program=programs.sum_over_all,
        slice="v6e:16x16",
        mesh={"x": 16, "y": 16},
        args=("bf16[17408,17408]",),
        measured_us=5_120.0,
        uncertainty=0.002,
        source="recipes",
    ),
    _matmul_7x(2048, 679.3),
    _matmul_7x(16384, 950.1),
    Row(
        name="7x-all-gather",
        program=programs.gather_rows("x"),
        slice="tpu7x:2x2x1",
        mesh={"x": 4, "core": 2},
        args=("f32[4096@x,8,128]",),
        timed=COLLECTIVE,
        measured_us=2 * 3 * 4096 * 1024 / 161.9e9 * 1e6,  # 25.2 MB that both cores of a chip receive, at 161.9 GB/s
        uncertainty=0.01,
        source="microbenchmarks",
    ),
    Row(
        name="2xv6e-256-psum",
        program=programs.sum_over_slices,
        slice="2*v6e:16x16",
        mesh={"dcn": 2, "ici": 256},
        args=("bf16[17408@dcn,17408]",),
        measured_us=17408 * 17408 / 4.1131e9 * 1e6,  # half a matrix per chip, at 4.11 GB/s
        uncertainty=0.05,  # one line of a log
        source="recipes",
        extra=True,
    ),
    _matmul_7x(1024, 349.7, extra=True),
    _matmul_7x(4096, 892.9, extra=True),
    Row(
        name="ffw-data-parallel",
        program=programs.dense,
        slice="v5e:1x1",
        args=("bf16[1,1024,8192]", "bf16[8192,16384]"),
        measured_us=1_430.0,
        uncertainty=0.004,
        source="nb09",
        extra=True,
    ),
    Row(
        name="logits-data-parallel",
        program=programs.up_projection,
        slice="v5e:1x1",
        args=("bf16[1,1024,8192]", "bf16[32768,8192]"),
        measured_us=2_910.0,
        uncertainty=0.004,
        source="nb09",
        extra=True,
    ),
)

RANKINGS: tuple[tuple[str, ...], ...] = (
    ("seed-unsharded", "seed-collective", "seed-naive"),
    ("rs-psum-scatter", "rs-halving", "rs-ring"),
    ("mlp-auto", "mlp-overlapped"),
    ("moe-all-to-all", "moe-naive"),
)
"""Programs that compute the same, the fastest first."""
