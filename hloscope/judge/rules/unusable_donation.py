"""A donated argument whose memory is not reused.

What it does: reports a donated argument whose memory no output reuses.

Why it matters: the caller has lost the array, but no memory was saved. The argument and the output that was meant to
replace it are live at the same time. JAX warns about it once, among everything else that a job prints.

Example: a training step that donates its state and returns it in another dtype or with another sharding, so that no
output has the size of the donated buffer on a device.

Use instead: return an array of the same shape, dtype and sharding as the argument (`out_shardings` equal to
`in_shardings` for state that is updated), or do not donate it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloscope.base.units import format_bytes
from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.analysis import ArrayFact, parse_argument_path
from hloscope.model.finding import Finding, Severity


class UnusableDonation(BuiltinRule, name="unusable-donation", severity=Severity.WARNING):
    """A donated argument whose memory is not reused.

    Attributes:
        min_bytes: Arguments that are smaller on a device are not reported.
    """

    min_bytes: int = 1_000_000

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each donated argument that no output is written over."""
        for array in facts.analysis.arguments:
            known = array.bytes_per_device
            if array.donated and array.used and array.reused is False and (known is None or known >= self.min_bytes):
                other = _find_moved(array, facts.analysis.outputs)
                if other is not None:
                    yield finding_of(
                        self,
                        f"{array.name} is donated with {array.sharding}, but {other.name}, of the same type, comes "
                        f"back with {other.sharding}: if it replaces {array.name}, it is moved before the next step",
                        cost="that move is not in this step, and no memory is reused",
                        fix=f"request {array.sharding} for {other.name}: its move is then priced in this step",
                    )
                    continue
                yield finding_of(
                    self,
                    f"{array.name} is donated, but no output reuses its memory",
                    cost=None
                    if known is None
                    else f"{format_bytes(known)} on each device that donation should have saved",
                    fix="return an array of the same shape, dtype and sharding, or do not donate it",
                )


def _find_moved(argument: ArrayFact, outputs: Sequence[ArrayFact]) -> ArrayFact | None:
    """The output of an argument's type that comes back with another sharding: of several, the one of the same path.

    An output that is written over another donated argument replaces that one.
    """
    alike = [
        each
        for each in outputs
        if not each.donated
        and (each.global_shape, each.dtype) == (argument.global_shape, argument.dtype)
        and None not in (each.sharding, argument.sharding)
        and each.sharding != argument.sharding
    ]
    of_path = [each for each in alike if _is_same_path(argument, each)]
    return alike[0] if len(alike) == 1 else of_path[0] if len(of_path) == 1 else None


def _is_same_path(one: ArrayFact, other: ArrayFact) -> bool:
    """Returns whether one path in a tree, such as `['p']['up']`, is the end of another one."""
    path, whole = sorted((parse_argument_path(each.name)[1:] for each in (one, other)), key=len)
    return bool(path) and whole[-len(path) :] == path


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=("f32[8192@X,1024]",), donate=0)
def donated_in_vain(state):
    return (state * 0.9).astype(jnp.bfloat16)
"""
    },
    {
        "program": """\
@hloscope.target(mesh={"X": 8}, args=({"w": "f32[8192,1024]"}, {"w": "f32[8192@X,1024]"}), donate=0)
def comes_back_otherwise(state, gradient):
    return {"w": constrained(state["w"] - gradient["w"], P("X", None))}
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(
    mesh={"X": 8},
    args=({"w": "f32[8192@X,1024]", "b": "bf16[4,1024@X]", "n": "s32[]"}, "f32[8192@X,1024]"),
    out=({"w": "P('X', None)", "b": "P(None, 'X')", "n": "P()"}, "P('X', None)"),
    donate=0,
)
def donated_and_reused(state, x):
    return {"w": state["w"] * 0.9 + x, "b": state["b"] + 1, "n": state["n"] + 1}, x * 2
"""
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
                    "donated": True,
                    "reused": True,
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
                    "donated": True,
                    "reused": None,
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
                    "donated": True,
                    "reused": False,
                    "used": False,
                },
            )
        },
    },
)
