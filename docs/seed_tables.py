"""The tables of `docs/seeds.md`: each claim of the book and its retellings beside what hloscope finds of its program.

`python docs/seed_tables.py moves` prints the claims about what moves, `times` the times; `docs/refresh.py` runs both.
A claim about what moves is a contract, so that the last column is the verdict of `hloscope check`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax import P
from markup import table

import hloscope
from hloscope.base.units import format_bytes, format_time, format_time_range

PROGRAMS = Path(__file__).parent.parent / "fixtures" / "programs"
sys.path.insert(0, str(PROGRAMS))

feed_forward: Any = import_module("feed_forward")
moe_pipelined: Any = import_module("moe_pipelined")
ring_reduce_scatter: Any = import_module("reduce_scatter_matmul").ring_reduce_scatter


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says of a program.

    Attributes:
        says: The claim, in a few words.
        programs: Functions of `fixtures/programs`, as `file.py:function`.
        contract: What each of them would move if the claim held.
        dims: Sizes of letters that differ from the program's own.
    """

    says: str
    programs: tuple[str, ...]
    contract: str
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A time that a source has measured.

    Attributes:
        says: What was measured.
        measured_us: How long it took.
        program: A function, or the name of one as `file.py:function`.
        assumed: What the source leaves open and this program assumes.
        options: What else is said of the program.
    """

    says: str
    measured_us: float
    program: str | Callable[..., Any]
    assumed: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


CLAIMS = (
    Claim(
        says="the squared matmul needs one all-reduce over Y",
        programs=("matmul.py:matmul",),
        contract="all-reduce@Y x1; nothing else",
    ),
    Claim(
        says="constraining the hidden activation of two matmuls leaves one all-reduce",
        programs=("two_matmuls.py:two_matmuls",),
        contract="all-reduce@Y x1; nothing else",
    ),
    Claim(
        says="out `P('X', None)` induces an all-reduce",
        programs=("ambiguous_einsum.py:whole_columns",),
        contract="all-reduce@Y x1; nothing else",
    ),
    Claim(
        says="out `P('X', 'Y')` induces a reduce-scatter, at the book's 8 rows",
        programs=("ambiguous_einsum.py:sharded_columns",),
        contract="reduce-scatter@Y x1; nothing else",
    ),
    Claim(
        says="the same, at 512 rows",
        programs=("ambiguous_einsum.py:sharded_columns",),
        contract="reduce-scatter@Y x1; nothing else",
        dims={"B": 512},
    ),
    Claim(
        says="slicing and averaging moves only what it averages: 16 bytes",
        programs=("slice_and_average.py:slice_and_average",),
        contract="all-reduce@(X,Y) <= 16B x1; nothing else",
    ),
    Claim(
        says='the mean within each shard needs no communication, "but sometimes XLA adds it anyway"',
        programs=("shard_means.py:shard_means", "shard_means.py:shard_means_constrained"),
        contract="none",
    ),
    Claim(
        says="the roll within each shard needs none either",
        programs=("roll_difference.py:roll_difference", "roll_difference.py:roll_difference_jit"),
        contract="none",
    ),
    Claim(
        says="the naive collective matmul begins with a blocking all-gather",
        programs=("collective_matmul.py:naive",),
        contract="all-gather@Y x1; nothing else",
    ),
    Claim(
        says="the naive mixture of experts gathers the activations, 33.6 MB",
        programs=("mixture_of_experts.py:mixture_of_experts",),
        contract="all-gather@X <= 33.6MB; nothing else",
    ),
    Claim(
        says="with tokens sent to their experts, only all-to-alls are left",
        programs=("moe_pipelined.py:pipelined", "moe_top_k.py:top_k_pipelined"),
        contract="all-to-all@X; nothing else",
    ),
    Claim(
        says="the compiler overlaps the feed-forward block by itself: no time is exposed",
        programs=("feed_forward.py:feed_forward_auto",),
        contract="exposed <= 5%",
    ),
    Claim(
        says="tiling the all-reduce over the output gives one all-reduce a tile",
        programs=("all_reduce_matmul.py:all_reduce_matmul_tiled",),
        contract="all-reduce@Y <= 4MiB; nothing else",
    ),
    Claim(
        says="column-parallel layers need no communication",
        programs=("nnx_linear.py:column_parallel",),
        contract="none",
    ),
    Claim(
        says="row-parallel layers need one `psum`",
        programs=("nnx_linear.py:row_parallel",),
        contract="all-reduce@model x1; nothing else",
    ),
)


def _integers(program: Callable[..., Any]) -> dict[str, Any]:
    """The feed-forward block of one retelling: the book's int32 arrays, up and down, on v5e:4x2."""
    return {
        "program": program,
        "options": {
            "args": ("s32[B@X,D@Y]", "s32[D,F@Y]", "s32[F@Y,D]"),
            "dims": {"B": 1024, "D": 2048, "F": 8192},
            "mesh": {"X": 4, "Y": 2},
            "slice": "v5e:4x2",
            "out": "P('X', 'Y')",
        },
        "assumed": "the book's sizes, twice: B=1024, D=2048, F=8192, int32, no non-linearity",
    }


def naive_feed_forward(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Left to the compiler."""
    return (x @ w_in) @ w_out


def _overlapped(x: Any, w_in: Any, w_out: Any) -> Any:
    """Both products are collective matmuls."""
    return ring_reduce_scatter(feed_forward.ring_all_gather(x, w_in), w_out)


overlapped_feed_forward: Callable[..., Any] = jax.shard_map(
    _overlapped, in_specs=feed_forward.SPECS, out_specs=P("X", "Y")
)


def rounds(capacity: int, count: int) -> Callable[..., Any]:
    """The mixture with tokens sent in so many rounds of so many tokens for each expert."""

    def pipelined(experts: Any, tokens: Any, routes: Any) -> Any:
        moe_pipelined.CAPACITY, moe_pipelined.ROUNDS = capacity, count
        return moe_pipelined.routed(experts, tokens, routes)

    made: Callable[..., Any] = jax.shard_map(pipelined, in_specs=(P("X"), P("X"), P("X")), out_specs=P("X"))
    return made


OF_EXPERTS = {"args": moe_pipelined.ARGS, "dims": moe_pipelined.DIMS, "mesh": moe_pipelined.MESH, "slice": "v5e:2x4"}
MEASUREMENTS = (
    Measurement(says="naive matmul", measured_us=311, program="collective_matmul.py:naive"),
    Measurement(says="collective matmul", measured_us=244, program="collective_matmul.py:collective"),
    Measurement(says="unsharded matmul", measured_us=224, program="collective_matmul.py:unsharded"),
    Measurement(says="int32 feed-forward, by `jit`", measured_us=622, **_integers(naive_feed_forward)),
    Measurement(says="int32 feed-forward, overlapped", measured_us=490, **_integers(overlapped_feed_forward)),
    Measurement(
        says="mixture of experts, naive", measured_us=73_000, program="mixture_of_experts.py:mixture_of_experts"
    ),
    Measurement(
        says="mixture of experts, tokens sent",
        measured_us=1_700,
        program=rounds(32, 2),
        options=OF_EXPERTS,
        assumed="C = 32, two rounds",
    ),
    Measurement(
        says="the same",
        measured_us=1_700,
        program=rounds(64, 8),
        options=OF_EXPERTS,
        assumed="the source's own C = 64 and eight rounds",
    ),
    Measurement(
        says="two experts a token",
        measured_us=1_700,
        program="moe_top_k.py:top_k_pipelined",
        assumed="C = 32, two rounds",
    ),
    Measurement(
        says="matmul with `psum_scatter`", measured_us=1_010, program="reduce_scatter_matmul.py:reduce_scatter_matmul"
    ),
    Measurement(
        says="the same by recursive halving",
        measured_us=1_100,
        program="reduce_scatter_matmul.py:reduce_scatter_matmul_halving",
    ),
    Measurement(
        says="the same by a manual ring",
        measured_us=1_200,
        program="reduce_scatter_matmul.py:reduce_scatter_matmul_ring",
        assumed="a ring that overlaps; the source's is not shown in full",
    ),
    Measurement(says="feed-forward, by `jit`", measured_us=1_200, program="feed_forward.py:feed_forward_linear"),
    Measurement(says="feed-forward, overlapped", measured_us=1_250, program="feed_forward.py:feed_forward_gathered"),
)


def moves() -> str:
    """The table of what moves."""
    rows = []
    for claim in CLAIMS:
        found = [hloscope.analyze(f"{PROGRAMS}/{name}", dims=dict(claim.dims) or None) for name in claim.programs]
        holds = all(hloscope.check(one, contract=claim.contract).passed for one in found)
        rows.append((claim.says, " / ".join(dict.fromkeys(map(what_moves, found))), "yes" if holds else "no"))
    return table(("claim", "what one device sends per step", "holds"), rows)


def what_moves(found: hloscope.Analysis) -> str:
    """What a program moves, in one line."""
    groups = [
        f"{kind} over {', '.join(map(str, group[0].axes or ('?',)))}: {format_bytes(group.wire_bytes_per_step)}"
        for kind, group in found.collectives.by("kind").items()
    ]
    waits = f"; {found.time.exposed_us / found.time.step_us:.0%} of the step exposed" if found.time else ""
    return f"{', '.join(groups)}{waits}" if groups else "nothing"


def times() -> str:
    """The table of times."""
    rows = []
    for one in MEASUREMENTS:
        target = f"{PROGRAMS}/{one.program}" if isinstance(one.program, str) else one.program
        time = hloscope.analyze(target, **one.options).time
        assert time is not None
        predicted = f"{format_time(time.step_us)} ({format_time_range(time.least_us, time.most_us)})"
        ratio = f"{time.step_us / one.measured_us:.2f}"
        rows.append((one.says, format_time(one.measured_us), predicted, ratio, one.assumed))
    return table(("what was measured", "measured", "predicted", "ratio", "assumed"), rows)


if __name__ == "__main__":
    sys.stdout.write({"moves": moves, "times": times}[sys.argv[1]]() + "\n")
