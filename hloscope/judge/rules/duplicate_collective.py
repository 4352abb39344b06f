"""The same values moved twice in the same way.

What it does: reports collectives of one kind over the same groups that move the same values as an earlier one, in
arrays of the same shapes and, where they reduce, with the same reduction. Collectives in different branches are not
reported, because only one of them runs.

Why it matters: the second one could reuse the result of the first, if there is memory to keep it.

Example: weights gathered in the forward pass and again in the rematerialized backward pass. Fully sharded data
parallelism does that on purpose, so this is only a note.

Use instead: bind the gathered array to a name and use it twice; under `jax.checkpoint`, a policy that saves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes, place_of
from hloscope.model import Collective
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound, Kind

_MAY_NOT_RUN = (Bound.AT_MOST, Bound.UNKNOWN)
_WHAT_IT_DOES = attrgetter("kind", "groups", "moved_values", "reduction", "operand_shapes", "result_shapes")
"""Collectives for which these are equal bring the same arrays."""


class DuplicateCollective(BuiltinRule, name="duplicate-collective", severity=Severity.NOTE):
    """The same values moved twice in the same way.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
    """

    min_payload_bytes: int = 1_000_000

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a note for each collective that repeats an earlier one, or one that surely runs."""
        seen: dict[tuple[object, ...], Collective] = {}
        moving = facts.moving(self.min_payload_bytes)
        for collective in sorted(moving, key=lambda each: (each.executions_bound in _MAY_NOT_RUN, each.line)):
            values = collective.moved_values
            at_run_time = any(None in value.slices for value in values)
            if not values or at_run_time or collective.kind is Kind.COLLECTIVE_PERMUTE:
                continue
            first = seen.setdefault(_WHAT_IT_DOES(collective), collective)
            if first is not collective and not _are_apart(first, collective):
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} moves the same values as %{first.name} at {place_of(first)}",
                    fix="if memory allows, keep the result of the first one: bind it to a name, or save it with a "
                    "jax.checkpoint policy",
                )


def _are_apart(first: Collective, other: Collective) -> bool:
    """Returns whether one cannot use the other's result: two runs of one instruction, or possibly two branches."""
    if first.computation == other.computation:
        return first.name == other.name
    return first.executions_bound in _MAY_NOT_RUN and other.executions_bound in _MAY_NOT_RUN


INVALID = (
    {
        "hlo": """\
HloModule twice, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[262144] parameter(0)
  a = f32[262144] all-reduce(p), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  b = f32[262144] all-reduce(p), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = (f32[262144], f32[262144]) tuple(a, b)
}
""",
        "mesh": {"X": 8},
    },
)
VALID = (
    {
        "hlo": """\
HloModule twice, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[262144] parameter(0)
  q = f32[262144] parameter(1)
  a = f32[262144] all-reduce(p), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  b = f32[262144] all-reduce(q), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = (f32[262144], f32[262144]) tuple(a, b)
}
""",
        "mesh": {"X": 8},
    },
    {
        "hlo": """\
HloModule twice, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[262144] parameter(0)
  i = s32[] parameter(1)
  s = f32[262144] dynamic-slice(p, i), dynamic_slice_sizes={262144}
  a = f32[262144] all-reduce(s), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  b = f32[262144] all-reduce(s), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = (f32[262144], f32[262144]) tuple(a, b)
}
""",
        "mesh": {"X": 8},
    },
)
