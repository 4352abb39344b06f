"""A collective that the user neither wrote nor allowed.

What it does: reports each collective that the user did not write and did not allow. Only the author knows which
collectives a program should have. The rule is therefore silent until something is allowed
(`--allow 'all-reduce@Y: partial sums'`) or the rule is selected (`--select unexpected-collective`).

Why it matters: the partitioner makes any program correct by moving data. What it moves is not visible in the code, and
changes with a sharding, a shape or a compiler version.

Example: a program that allows one all-reduce over `Y`, where a reshape makes the partitioner gather the weights too.

Use instead: a sharding that needs no communication there, or an `allow` with the reason why it is fine.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.base.errors import Option
from hloscope.judge.model import Selector, format_selector
from hloscope.judge.rule import BuiltinRule, Facts, finding_at, over_axes, place_of
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Origin


class UnexpectedCollective(BuiltinRule, name="unexpected-collective", severity=Severity.ERROR):
    """A collective that the user neither wrote nor allowed.

    Attributes:
        active: Whether the rule runs without an `allow`; it always runs with one.
    """

    named_options = (Option("allow", ["all-reduce@Y: partial sums"]), Option("select", ["unexpected-collective"]))

    active: bool = False

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields an error for each collective that is not the user's own; allowing is left to `allow`."""
        for collective in facts.collectives:
            if collective.origin is not Origin.AUTHORED and collective.wire_bytes != 0:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} at {place_of(collective)} was not requested",
                    fix="change the shardings that meet there, or allow it: "
                    + format_selector(Selector(kind=collective.kind, axes=collective.axes or None)),
                )


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
  r0 = f32[8] parameter(0)
  r1 = f32[8] all-reduce(r0), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
  ROOT out = f32[8] negate(r1)
}
""",
        "mesh": {"X": 8},
    },
)
VALID = (
    {
        "hlo": """\
HloModule kernel, num_partitions=2

ENTRY main {
  p = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"body":"x"}}
}
"""
    },
)
