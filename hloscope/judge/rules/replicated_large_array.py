"""A large array that is replicated on every device.

What it does: reports an argument, an output or an intermediate array above a given size that no mesh axis shards. An
intermediate array is reported only if its sharding in the original program is known, and not if an all-gather makes it
for one use, as of the weights with FSDP.

Why it matters: the array takes its full size in the memory of every device, and each device reads or writes all of it.

Example: an embedding table of 4 GB with the sharding `P()`, on 64 chips of 16 GB.

Use instead: shard one of its dimensions over an axis, such as `P('X', None)`. For an output, request this with
`out_shardings` or a `with_sharding_constraint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from hloscope.analysis.provenance import render_users_line
from hloscope.base.units import format_bytes
from hloscope.judge.rule import BuiltinRule, Facts, array_type, finding_of
from hloscope.model import ArrayFact, IntermediateFact
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Kind

Array = ArrayFact | IntermediateFact


class ReplicatedLargeArray(BuiltinRule, name="replicated-large-array", severity=Severity.WARNING):
    """A large array that is replicated on every device.

    Attributes:
        min_bytes: Smaller arrays are not reported.
    """

    min_bytes: int = 100_000_000

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each large array that is whole on every device."""
        if prod(facts.axis_sizes.values()) == 1:
            return
        for role, array in facts.used_arrays:
            if self._is_whole(array):
                yield self._finding(f"{role} {array.name}", array, facts)
        gathers = (each for each in facts.analysis.collectives if each.kind is Kind.ALL_GATHER)
        gathered = {(collective.computation, collective.name) for collective in gathers}
        known = (made for made in facts.analysis.intermediates if made.sharding is not None)
        own = (made for made in known if (made.computation, made.name.partition("[")[0]) not in gathered)
        whole = filter(self._is_whole, own)
        for made in {(made.local_shape, made.source): made for made in whole}.values():
            found = self._finding("the array", made, facts)
            place = render_users_line(made.source)
            yield replace(found, source=place, computation=made.computation, instruction=made.name, line=made.line)

    def _is_whole(self, array: Array) -> bool:
        known = array.bytes_per_device
        large = (prod(array.local_shape) if known is None else known) >= self.min_bytes  # a byte each, at the least
        return large and array.global_shape is not None and array.global_shape == array.local_shape

    def _finding(self, what: str, array: Array, facts: Facts) -> Finding:
        known = array.bytes_per_device
        return finding_of(
            self,
            f"{what} {array_type(array)} is replicated on all {prod(facts.axis_sizes.values())} devices",
            cost=None if known is None else f"{format_bytes(known)} of memory on each device",
            fix=_suggest_fix(array, facts.axis_sizes),
        )


def _suggest_fix(array: Array, axis_sizes: dict[str, int]) -> str | None:
    """The first axis, largest first, that divides a dimension, also largest first."""
    dimensions = sorted(enumerate(array.local_shape), key=lambda dimension: -dimension[1])
    for size, name in sorted(((size, name) for name, size in axis_sizes.items()), reverse=True):
        for position, length in dimensions:
            if size > 1 and length % size == 0:
                spec = ", ".join(repr(name) if at == position else "None" for at in range(len(array.local_shape)))
                return f"shard it, for example P({spec}{',' if len(array.local_shape) == 1 else ''})"
    return None


INVALID = (
    {
        "known": {
            "arguments": (
                {
                    "name": "W",
                    "dtype": "f32",
                    "global_shape": (8_192, 4_096),
                    "local_shape": (8_192, 4_096),
                    "sharding": "P()",
                    "chosen_by": "user",
                    "bytes_per_device": 134_217_728,
                },
            )
        },
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[65536@X,65536]", "f32[65536,65536]"))
def too_much(a, w):
    return jnp.tanh(a @ w.T)
"""
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[8192,64]", "f32[8192@X,128]"))
def whole_on_the_way(rows, x):
    distances = constrained(jnp.exp(rows @ rows.T), P(None, None))
    return distances @ x, jnp.argmax(distances, axis=1)
"""
    },
)
VALID = (
    {
        "known": {
            "arguments": (
                {
                    "name": "W",
                    "dtype": "f32",
                    "global_shape": (8_192, 4_096),
                    "local_shape": (1_024, 4_096),
                    "sharding": "P()",
                    "chosen_by": "user",
                    "bytes_per_device": 16_777_216,
                },
            )
        },
    },
    {
        "known": {
            "arguments": (
                {
                    "name": "W",
                    "dtype": "f32",
                    "global_shape": (8,),
                    "local_shape": (8,),
                    "sharding": "P()",
                    "chosen_by": "user",
                    "bytes_per_device": 32,
                },
            )
        },
    },
    {
        "known": {
            "arguments": (
                {
                    "name": "W",
                    "dtype": "f32",
                    "global_shape": (8_192, 4_096),
                    "local_shape": (8_192, 4_096),
                    "sharding": "P()",
                    "chosen_by": "user",
                    "bytes_per_device": 134_217_728,
                    "used": False,
                },
            )
        },
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 4, "Y": 2}, args=("bf16[1024@X,2048]", "bf16[2048,8192@Y]"))
def well_sharded(a, w):
    return a @ w
"""
    },
)
