"""Per-layer traffic on the network between slices.

What it does: reports a collective over DCN that runs in a loop, sums activations, or is not a reduction: all-gathers
and all-to-alls of activations or weights, and reductions in every layer. DCN is meant for a reduction once per step, as
in data parallelism, and for permutes, as in pipelines; these are not reported.

Why it matters: a chip has 7 to 14 times less bandwidth over DCN than over one ICI link, so tensor, expert or fully
sharded data parallelism across slices waits for the network in every layer.

Example: a mesh `model=8` over two slices of four chips. The all-reduce of every layer then crosses DCN.

Use instead: a data-parallel axis across slices (`--dcn data=2`), with the other axes inside a slice.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.base.errors import Option, say
from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes
from hloscope.model import Collective, Phase, Role
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import REDUCING, Kind, Link

_CROSSING = (Link.DCN, Link.BOTH)


class ModelParallelOverDcn(BuiltinRule, name="model-parallel-over-dcn", severity=Severity.WARNING):
    """Per-layer traffic on the network between slices.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    named_options = (Option("dcn", {"data": 2}),)

    min_payload_bytes: int = 1_000_000

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each collective that DCN should not carry."""
        for collective in facts.moving(self.min_payload_bytes):
            if collective.link in _CROSSING and _belongs_in_a_slice(collective):
                often = "in every iteration of a loop" if collective.loops else "and is not a reduction"
                if not collective.loops and _sums_activations(collective):
                    often = "for a sum of activations"
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} crosses DCN {often}",
                    fix=_suggest_fix(collective),
                )


def _belongs_in_a_slice(collective: Collective) -> bool:
    return collective.kind is not Kind.COLLECTIVE_PERMUTE and (
        bool(collective.loops) or collective.kind not in REDUCING or _sums_activations(collective)
    )


def _sums_activations(collective: Collective) -> bool:
    """Returns whether it sums activations, as in each layer of a model that is written out."""
    is_of_weight = collective.reason is not None and collective.reason.weight is not None
    is_of_them = collective.part is not None and collective.part.role is Role.ACTIVATIONS and not is_of_weight
    return is_of_them and collective.kind in REDUCING


def _suggest_fix(collective: Collective) -> str:
    if _sums_gradients(collective):
        return (
            "if the loop runs over microbatches, sum the gradients once, after it; if it runs over layers, each has "
            "gradients of its own, and nothing is gained"
        )
    axes = ",".join(collective.axes) if collective.axes else "its axis"
    only = " an axis over which only gradients are summed, and shard no weights over it"
    return say(f"keep {axes} within a slice: give ", Option("dcn"), only)


def _sums_gradients(collective: Collective) -> bool:
    """Returns whether it sums gradients, by its part of the model; DCN is the right axis for these."""
    part = collective.part
    is_of_them = part is not None and (part.role is Role.GRADIENT or part.phase is Phase.OPTIMIZER)
    return is_of_them and collective.kind in REDUCING


INVALID = (
    {
        "hlo": """\
HloModule dcn, num_partitions=8

ENTRY main {
  p = f32[1024,1024] parameter(0)
  ROOT r = f32[2048,1024] all-gather(p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}
}
""",
        "mesh": {"outer": 2, "model": 4},
        "each": {"link": "dcn"},
    },
    {
        "program": """\
@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="2*v5e:2x2",
    dcn={"model": 2},
    args=("bf16[1024@data,2048]", "bf16[2048,4096@model]", "bf16[4096@model,2048]"),
)
def written_out(x, up, down):
    return jnp.tanh(x @ up) @ down
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(
    mesh={"data": 2, "model": 4},
    slice="2*v5e:2x2",
    dcn={"data": 2},
    args=({"w": "bf16[2048,2048]"}, {"x": "bf16[1024@data,2048]"}),
    out={"w": "P()"},
)
def data_parallel(params, batch):
    def loss(params):
        return jnp.mean(jnp.square(batch["x"] @ params["w"]).astype(jnp.float32))

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))
"""
    },
    {
        "hlo": """\
HloModule dcn, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[1024,1024] parameter(0)
  ROOT r = f32[1024,1024] all-reduce(p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=add
}
""",
        "mesh": {"outer": 2, "model": 4},
        "each": {"link": "dcn"},
    },
    {
        "hlo": """\
HloModule dcn, num_partitions=8

ENTRY main {
  p = f32[8,1024] parameter(0)
  ROOT r = f32[16,1024] all-gather(p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}
}
""",
        "mesh": {"outer": 2, "model": 4},
        "each": {"link": "dcn"},
    },
)
