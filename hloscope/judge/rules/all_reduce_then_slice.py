"""An all-reduce of which each device keeps only its own shard.

What it does: reports an all-reduce whose result is only ever read through slices at the device's own position.

Why it matters: a reduce-scatter gives each device its shard for half the bytes and half the time.

Example: an einsum with a sharded contracting dimension and `out_sharding=P('X', 'Y')`, which today's TPU compiler
turns into an all-reduce over `Y` and a slice when the result is small.

Use instead: `jax.lax.psum_scatter` under `shard_map`, or leave that dimension unsharded if the result is small. Maxima
and minima have no scatter in JAX: use `jax.lax.all_to_all`, and reduce on each device. If the compiler lowers a
`psum_scatter` to this form: use `tiled=True`, and one mesh axis at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.transfers import gathers_by_summing
from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model import Collective
from hloscope.model.finding import Finding, Severity

_SCATTERS = ("reduce_scatter", "psum_scatter")


class AllReduceThenSlice(BuiltinRule, name="all-reduce-then-slice", severity=Severity.WARNING):
    """An all-reduce of which each device keeps only its own shard."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each all-reduce of which only the device's own slices are read."""
        for collective in facts.sending:
            if collective.result_slices:
                gathers = facts.graph is not None and gathers_by_summing(facts.graph, collective)
                what = f"{'puts together' if gathers else 'reduces'} {', '.join(map(str, collective.operand_shapes))}"
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} {what}, "
                    f"but only {', '.join(map(str, collective.result_slices))} of the result is used",
                    fix=_GATHERED if gathers else _suggest_fix(collective),
                )


_GATHERED = (
    "exchange only these parts under shard_map, with jax.lax.all_to_all or jax.lax.ppermute, instead of gathering all"
)


def _suggest_fix(collective: Collective) -> str:
    if collective.reduction not in (None, "add"):
        return "exchange the shards with jax.lax.all_to_all under shard_map and reduce them locally: half the bytes"
    if collective.op_name is not None and collective.op_name.endswith(_SCATTERS):
        return "the compiler lowered a psum_scatter to this: try it with tiled=True, over one mesh axis at a time"
    return "write it as jax.lax.psum_scatter under shard_map: half the bytes"


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 4, "Y": 2}, args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), axis_types="explicit")
def scattered_by_the_compiler(a, w):
    return jnp.einsum("bd,df->bf", a, w, out_sharding=P("X", "Y"))
"""
    },
)
VALID = ({"captured": "matmul.matmul", "mesh": {"X": 4, "Y": 2}},)
