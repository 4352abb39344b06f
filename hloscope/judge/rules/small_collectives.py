"""Many small collectives that could be one.

What it does: reports collectives of one kind over the same axes, of the same element types and from the same HLO
computation that each move so little that their time is latency, when there are several of them.

Why it matters: a collective takes a few microseconds, however little it moves. Ten of one kilobyte cost as much as ten
of a hundred kilobytes.

Example: a `psum` for each of a model's scalar metrics, or for the gradient of each bias, that the compiler could not
combine because each depends on the one before.

Use instead: one collective over a tuple or a stacked array, `jax.lax.psum((a, b, c), "X")`, for values that do
not depend on one another's results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, pluralize
from hloscope.judge.rule import BuiltinRule, Facts, element_types, finding_at, over_axes
from hloscope.model import Collective
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind

_COMBINED = {
    Kind.ALL_GATHER: "jax.lax.all_gather of one stacked array",
    Kind.ALL_REDUCE: "jax.lax.psum of a tuple or of one stacked array",
    Kind.REDUCE_SCATTER: "jax.lax.psum_scatter of one stacked array",
    Kind.ALL_TO_ALL: "jax.lax.all_to_all of one stacked array",
}
_WHAT_COMBINES = attrgetter("computation", "loops", "kind", "groups", "reduction")
"""Collectives for which these are equal could be one, if they move the same types."""
_REDUCING = {"maximum": "pmax", "minimum": "pmin"}


class SmallCollectives(BuiltinRule, name="small-collectives", severity=Severity.WARNING):
    """Many small collectives that could be one.

    Attributes:
        max_payload_bytes: A collective that moves more is not small.
        min_collectives: Fewer of one kind in one place are not reported.
    """

    max_payload_bytes: int = 65_536
    min_collectives: int = 4

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields one warning for each group of small collectives, at the first of them."""
        sized = ((each, each.payload_bytes) for each in facts.sending if each.kind in _COMBINED)
        small = (each for each, size in sized if size is not None and size <= self.max_payload_bytes)
        for group in group_by(small, lambda each: (_WHAT_COMBINES(each), element_types(each))).values():
            if len(group) < self.min_collectives:
                continue
            group.sort(key=lambda collective: collective.line)
            first, total = group[0], sum(collective.payload_bytes or 0 for collective in group)
            found = finding_at(
                self,
                first,
                f"{pluralize(len(group), first.kind)}{over_axes(first).removeprefix(first.kind)} "
                f"move {format_bytes(total)} in total: their time is latency",
                fix=f"combine those that do not depend on each other: {_suggest_combined(first)}",
            )
            yield replace(found, cost=None)


def _suggest_combined(collective: Collective) -> str:
    return _COMBINED[collective.kind].replace("psum ", f"{_REDUCING.get(collective.reduction or '', 'psum')} ")


INVALID = (
    {
        "hlo": """\
HloModule chain, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  r0 = f32[16] parameter(0)
  r1 = f32[16] all-reduce(r0), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r2 = f32[16] all-reduce(r1), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r3 = f32[16] all-reduce(r2), channel_id=3, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r4 = f32[16] all-reduce(r3), channel_id=4, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = f32[16] negate(r4)
}
""",
        "mesh": {"X": 8},
    },
)
VALID = (
    {
        "hlo": """\
HloModule chain, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  r0 = f32[16] parameter(0)
  r1 = f32[16] all-reduce(r0), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r2 = f32[16] all-reduce(r1), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r3 = f32[16] all-reduce(r2), channel_id=3, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = f32[16] negate(r3)
}
""",
        "mesh": {"X": 8},
    },
    {
        "hlo": """\
HloModule chain, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  r0 = f32[65536] parameter(0)
  r1 = f32[65536] all-reduce(r0), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r2 = f32[65536] all-reduce(r1), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r3 = f32[65536] all-reduce(r2), channel_id=3, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  r4 = f32[65536] all-reduce(r3), channel_id=4, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = f32[65536] negate(r4)
}
""",
        "mesh": {"X": 8},
    },
)
