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
* `xprof`: operations of MaxText's default model on a v5p of 4 chips, from a profile in the test data of
  github.com/openxla/xprof (early 2025). The program around them is not published, the layout of the chips is inferred
  from their number, and the compiler of that day may have laid collectives out otherwise than today's does.
* `permutes`: lax.ppermute on v5p-8, published as 4.55 us and 86.3 GB/s without dispatch.
* `transfers`: a profile of v6e programs that move 5.37 GB arrays, on chips of two hosts whose layout is inferred.
* `cubes-v5e`, `cubes-v6e`: single matmuls timed from the host, less what a launch alone takes (106 and 119 us). On v6e
  10 to 20 us stay in doubt; where that is a quarter of the row, the row is extra.
* `dvfs`: a matmul on one core of 7x without flags.
"""

from __future__ import annotations

from published.book_rows import BOOK_ROWS
from published.cube_rows import CUBE_ROWS
from published.profile_rows import PROFILE_ROWS
from published.row import COLLECTIVE, Row

__all__ = ["COLLECTIVE", "RANKINGS", "ROWS", "Row"]

ROWS: tuple[Row, ...] = (*BOOK_ROWS, *PROFILE_ROWS, *CUBE_ROWS)

RANKINGS: tuple[tuple[str, ...], ...] = (
    ("seed-unsharded", "seed-collective", "seed-naive"),
    ("rs-psum-scatter", "rs-halving", "rs-ring"),
    ("mlp-auto", "mlp-overlapped"),
    ("moe-all-to-all", "moe-naive"),
)
"""Programs that compute the same, the fastest first."""
