"""An output that is not what the program requests and computes.

What it does: compares each output of the compiled program with the shard that its sharding gives a device, and reports
one of another shape, or one that is a constant although `jax.lax.top_k` selects it from an argument.

Why it matters: the compiler made a mistake. The program runs, and its results are wrong.

Example: `jax.lax.top_k(x, 64)` with x sharded over the dimension that is searched: with some versions of XLA every
device gets zeros for the indices.

Use instead: constrain the operand of that operation to be whole along the dimension, or gather it under
`jax.shard_map`, which both gave right outputs for the example; try another version of jaxlib and libtpu, and report it
to XLA.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity


class WrongOutput(BuiltinRule, name="wrong-output", severity=Severity.ERROR):
    """An output that is not what the program requests and computes."""

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields an error for each output that the compiled program gets wrong."""
        for output in facts.analysis.outputs:
            if output.wrong is not None:
                yield finding_of(
                    self,
                    f"the compiler gets {output.name} wrong: {output.wrong}",
                    why="the compiled program differs from the one that was traced, and the mistake is the compiler's",
                    fix="constrain the operand of the operation that makes it to be whole along the dimension that "
                    "it searches, or try another version of jaxlib and libtpu; and report it to XLA",
                )


_OUTPUT = {
    "name": "result[1]",
    "dtype": "s32",
    "global_shape": (64, 64),
    "local_shape": (64, 64),
    "sharding": "P('data', None)",
    "chosen_by": "user",
    "bytes_per_device": 16_384,
}
INVALID = ({"known": {"outputs": ({**_OUTPUT, "wrong": "each device has s32[64,64] where its shard is s32[32,64]"},)}},)
VALID = (
    {"known": {"outputs": (_OUTPUT,)}},
    {
        "program": """\
@hloscope.target(mesh={"data": 2, "model": 4}, args=("f32[64@data,131072]",), out=("P('data', None)",) * 2)
def of_whole_rows(x):
    return tuple(jax.lax.top_k(x, 64))
"""
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("s32[8192@X,128]",), out=("P('X', None)",) * 2)
def constant_for_what_it_is(x):
    return x - x, x * 0 + 1
"""
    },
)
