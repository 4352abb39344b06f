"""Text that was read but not understood, so that a total may miss something.

What it does: turns every entry of `unmodelled` into a finding: an unknown opcode, replica groups that cannot be
expanded, a loop whose trip count cannot be read.

Why it matters: silence would make a total look exact when it is not.

Example: a `while` whose bound is computed at run time. Its collectives are counted for one iteration, and marked as
neither a lower nor an upper bound.

Use instead: a static bound (`lax.scan`, `lax.fori_loop`). If the bound really is decided at run time, leave it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind


class UnmodelledText(BuiltinRule, name="unmodelled-text", severity=Severity.WARNING):
    """Text that was read but not understood."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each thing that was not understood, opaque collectives aside."""
        opaque = {(known.computation, known.name) for known in facts.collectives if known.kind is Kind.OPAQUE}
        for item in facts.analysis.unmodelled:
            if (item.computation, item.instruction) in opaque:
                continue  # opaque-communication reports it
            yield finding_of(
                self,
                f"{item.what}: {item.effect}",
                computation=item.computation,
                instruction=item.instruction,
                line=item.line,
            )


CASES = """\
HloModule loop, num_partitions=2

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

condition {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT more = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[8] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT out = (s32[], s32[], f32[8]) tuple(next, n, r)
}

ENTRY main {
  zero = s32[] constant(0)
  n = s32[] parameter(1)
  x = f32[8] parameter(0)
  state = (s32[], s32[], f32[8]) tuple(zero, n, x)
  ROOT w = (s32[], s32[], f32[8]) while(state), condition=condition, body=body
}
"""
INVALID = ({"hlo": CASES},)
VALID = ({"hlo": CASES.replace("n = s32[] parameter(1)", "n = s32[] constant(5)")},)
