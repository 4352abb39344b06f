"""A large array that every device holds whole.

What it does: reports an argument, an output or a large array on the way above a size that no mesh axis shards. Of
arrays on the way only those are told whose sharding in the program as it was written is known.

Why it matters: it takes its whole size of every device's memory, and each device reads or writes all of it.

Example: an embedding table of 4 GB with the sharding `P()`, on 64 chips of 16 GB.

Use instead: shard one of its dimensions over an axis: `P('X', None)`; for an output, ask for it with
`out_shardings` or a `with_sharding_constraint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from hloscope.analysis.model import Analysis, ArrayFact, IntermediateFact, Mesh
from hloscope.analysis.places import users_line
from hloscope.findings import Finding, Severity
from hloscope.units import format_bytes

Array = ArrayFact | IntermediateFact


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedLargeArray:
    """A large array that every device holds whole.

    Attributes:
        min_bytes: A smaller array may be whole everywhere.
    """

    name: ClassVar[str] = "replicated-large-array"
    severity: ClassVar[Severity] = Severity.WARNING
    min_bytes: int = 100_000_000

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields a warning for each large array that is whole on every device."""
        mesh = analysis.mesh
        if mesh is None or mesh.device_count == 1:
            return
        for role, arrays in (("argument", analysis.arguments), ("output", analysis.outputs)):
            for array in arrays:
                if array.used and self._is_whole(array):
                    yield self._finding(f"{role} {array.name}", array, mesh)
        on_the_way = (one for one in analysis.intermediates if one.sharding is not None and self._is_whole(one))
        told = {(one.local_shape, one.source): one for one in on_the_way}
        for one in told.values():
            found = self._finding("the array", one, mesh)
            place = users_line(one.source)
            yield replace(found, source=place, computation=one.computation, instruction=one.name, line=one.line)

    def _is_whole(self, array: Array) -> bool:
        known = array.bytes_per_device
        large = (prod(array.local_shape) if known is None else known) >= self.min_bytes  # a byte each, at the least
        return large and array.global_shape is not None and array.global_shape == array.local_shape

    def _finding(self, what: str, array: Array, mesh: Mesh) -> Finding:
        shape = f"{array.dtype}[{','.join(map(str, array.local_shape))}]"
        return Finding(
            rule=self.name,
            severity=self.severity,
            message=f"{what} {shape} is whole on each of {mesh.device_count} devices",
            cost=None
            if array.bytes_per_device is None
            else f"{format_bytes(array.bytes_per_device)} of memory on each",
            fix=_fix(array, mesh),
        )


def _fix(array: Array, mesh: Mesh) -> str | None:
    """The first axis, largest first, that divides a dimension, major first."""
    for size, name in sorted(zip(mesh.axis_sizes, mesh.axis_names, strict=True), reverse=True):
        for position, length in enumerate(array.local_shape):
            if size > 1 and length % size == 0:
                spec = ", ".join(repr(name) if at == position else "None" for at in range(len(array.local_shape)))
                return f"shard it, for example P({spec}{',' if len(array.local_shape) == 1 else ''})"
    return None
