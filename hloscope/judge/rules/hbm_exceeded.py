"""A program that does not fit in the memory of a device.

What it does: reports a program that the compiler rejects for lack of HBM. hloscope then compiles it once more without
that check, so that everything else about it is still known.

Why it matters: the program will not start.

Example: a training step of 20 GB on a v5e with 16 GiB.

Use instead: shard its largest arguments over one more axis, donate arguments that are replaced, rematerialize, or use
a larger chip or slice.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.provenance import render_users_line
from hloscope.base.units import format_bytes, format_capacity
from hloscope.judge.rule import BuiltinRule, Facts, array_type, finding_of
from hloscope.model.finding import Finding, Severity

_LARGEST_SHOWN = 3


class HbmExceeded(BuiltinRule, name="hbm-exceeded", severity=Severity.ERROR):
    """A program that does not fit in the memory of a device."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields an error when the compiler says so, or the peak is more than there is."""
        memory, share = facts.analysis.memory, facts.hbm_share
        if memory.fits is False or (memory.fits is None and share is not None and share > 1):
            yield finding_of(
                self,
                f"the program does not fit in a device's {format_capacity(memory.hbm_bytes)} of HBM",
                why=_describe_largest(facts),
                cost=f"{format_bytes(memory.peak_bytes)} on each device" if memory.peak_bytes else None,
                fix="shard the largest over one more axis, donate arguments that are replaced, rematerialize, "
                "or use a larger chip or slice",
            )


def _describe_largest(facts: Facts) -> str | None:
    """The largest arrays, with their known origins."""
    arrays = [
        (array.bytes_per_device, f"{role} {array.name}")
        for role, array in facts.used_arrays
        if array.bytes_per_device is not None
    ]
    for made in facts.analysis.intermediates:
        line = render_users_line(made.source[:1])
        place = f" (%{made.name})" if line is None else f" made at {line}"
        arrays.append((made.bytes_per_device, f"{array_type(made)}{place}"))
    largest = sorted(arrays, reverse=True)[:_LARGEST_SHOWN]
    words = "; ".join(f"{text} {format_bytes(size)}" for size, text in largest)
    return f"the largest arrays are {words}" if words else None


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[65536@X,65536]", "f32[65536,65536]"))
def too_much(a, w):
    return jnp.tanh(a @ w.T)
"""
    },
    {"known": {"memory": {"peak_bytes": 18_000_000_000, "hbm_bytes": 17_179_869_184}}},
)
VALID = (
    {"known": {"memory": {"peak_bytes": 16_000_000_000, "hbm_bytes": 17_179_869_184}}},
    {
        "program": """\
@hloscope.target(mesh={"X": 4, "Y": 2}, args=("bf16[1024@X,2048]", "bf16[2048,8192@Y]"))
def well_sharded(a, w):
    return a @ w
"""
    },
)
