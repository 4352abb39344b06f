"""A program that nearly fills the memory of a device.

What it does: reports a program whose arguments, outputs, temporaries and code take more than a given share of the
chip's HBM.

Why it matters: the runtime, other programs on the chip and the next version of the compiler need memory too. A program
at 98% fits today and fails tomorrow.

Example: a training step at 15.7 GiB on a v5e with 16 GiB.

Use instead: donate arguments, rematerialize activations, shard optimizer state over one more axis, or a chip with more
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from hloscope.base.units import format_bytes, format_capacity
from hloscope.judge.rule import SHARE, BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity


class HbmNearLimit(BuiltinRule, name="hbm-near-limit", severity=Severity.WARNING):
    """A program that nearly fills the memory of a device.

    Attributes:
        share: The share of HBM above which it is reported.
    """

    share: float = field(default=0.9, metadata=SHARE)

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning when the peak is above the share, and up to the whole."""
        memory, share = facts.analysis.memory, facts.hbm_share
        if share is not None and self.share < share <= 1:
            yield finding_of(
                self,
                f"the program uses {100 * share:.1f}% of a device's {format_capacity(memory.hbm_bytes)} of HBM",
                cost=f"{format_bytes(memory.peak_bytes)} on each device",
                fix="donate arguments, rematerialize activations, or shard large arguments over one more axis",
            )


INVALID = ({"known": {"memory": {"peak_bytes": 16_000_000_000, "hbm_bytes": 17_179_869_184}}},)
VALID = (
    {"known": {"memory": {"peak_bytes": 8_000_000_000, "hbm_bytes": 17_179_869_184}}},
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[65536@X,65536]", "f32[65536,65536]"))
def too_much(a, w):
    return jnp.tanh(a @ w.T)
"""
    },
)
