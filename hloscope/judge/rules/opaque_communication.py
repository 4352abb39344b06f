"""A transfer whose bytes are not in the compiled text.

What it does: reports every collective of kind `opaque`: a kernel that communicates with other chips by itself, or a
transfer in an unknown form.

Why it matters: its bytes are not counted, so every total that it belongs to is a lower bound.

Example: a Pallas kernel with remote copies, printed as a `tpu_custom_call` with `"has_communication":true`.

Use instead: keep the kernel and account for its bytes by hand, or write the transfer with `jax.lax` collectives.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.rule import BuiltinRule, Facts, finding_at
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind


class OpaqueCommunication(BuiltinRule, name="opaque-communication", severity=Severity.WARNING):
    """A transfer whose bytes are not in the compiled text."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each opaque collective."""
        for collective in facts.collectives:
            if collective.kind is Kind.OPAQUE:
                yield finding_at(
                    self,
                    collective,
                    f"%{collective.name} communicates in a way the HLO text does not describe: totals are lower bounds",
                    fix="account for its bytes by hand, or write the transfer with jax.lax collectives",
                )


INVALID = (
    {
        "hlo": """\
HloModule kernel, num_partitions=2

ENTRY main {
  p = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"has_communication":true}}
}
"""
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
