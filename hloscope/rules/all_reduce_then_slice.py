"""An all-reduce of which each device keeps only its own part.

What it does: reports an all-reduce whose result is only ever read through slices at the device's own position.

Why it matters: a reduce-scatter gives each device its part for half the bytes and half the time.

Example: an einsum with a sharded contracting dimension and `out_sharding=P('X', 'Y')`, which today's TPU compiler
prints as an all-reduce over `Y` and a slice when the result is small.

Use instead: `jax.lax.psum_scatter` under `shard_map`; or leave that dimension unsharded where the result is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hloscope.analysis.model import Analysis
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, over_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceThenSlice:
    """An all-reduce of which each device keeps only its own part."""

    name: ClassVar[str] = "all-reduce-then-slice"
    severity: ClassVar[Severity] = Severity.WARNING

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields a warning for each all-reduce of which only the device's own slices are read."""
        for one in analysis.collectives:
            if one.result_slices and one.wire_bytes:
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} of {', '.join(one.operand_shapes)} is paid for, "
                    f"and only {', '.join(one.result_slices)} of it is kept",
                    fix="write it as jax.lax.psum_scatter under shard_map: half the bytes",
                )
