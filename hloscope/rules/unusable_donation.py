"""An argument that is donated in vain.

What it does: reports a donated argument whose memory no output takes over.

Why it matters: the caller has lost the array, and the memory was not saved: both the argument and the output that was
meant for its place are live at once. JAX warns of it once, among everything else that a job prints.

Example: a training step that donates its state and returns it in another dtype or with another sharding, so that no
output has the size that the donated buffer has on a device.

Use instead: return an array of the same shape, dtype and sharding as the argument (`out_shardings` equal to
`in_shardings` for state that is updated), or do not donate it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.rules import Facts, Finding, Severity, finding_of
from hloscope.rules.rule import BuiltinRule
from hloscope.units import format_bytes


class UnusableDonation(BuiltinRule, name="unusable-donation", severity=Severity.WARNING):
    """An argument that is donated in vain.

    Attributes:
        min_bytes: An argument that is smaller on a device is not worth a word.
    """

    min_bytes: int = 1_000_000

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each donated argument that no output is written over."""
        for array in facts.analysis.arguments:
            known = array.bytes_per_device
            if array.donated and array.used and array.reused is False and (known is None or known >= self.min_bytes):
                yield finding_of(
                    self,
                    f"{array.name} is donated, and no output takes its memory",
                    cost=None if known is None else f"{format_bytes(known)} on each device that donating was to save",
                    fix="return an array of the same shape, dtype and sharding, or do not donate it",
                )
