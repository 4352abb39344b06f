"""Matmuls that several devices do alike, because a mesh axis shards nothing there.

What it does: reports a program whose devices together do at least a quarter more FLOPs of matmuls and convolutions than
the traced program asks for, with the lines that repeat most and the axes that shard nothing there.

Why it matters: repeated work costs as much as useful work, and no profile shows it: every device is busy.

Example: a mesh axis that no argument of a layer is sharded over; attention with 8 heads for keys and values over 16
devices; a batch that lost its axis to features, so that each device computes all scores.

Use instead: shard a dimension of these matmuls over the axis, the batch for instance, or make the axis smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.provenance import render_users_line
from hloscope.base.units import format_digits, pluralize
from hloscope.judge.rule import BuiltinRule, Facts, finding_of
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound


class RepeatedMatmuls(BuiltinRule, name="repeated-work", severity=Severity.WARNING):
    """Matmuls that several devices do alike, because a mesh axis shards nothing there.

    Attributes:
        min_ratio: Programs that do fewer times the FLOPs of the traced program are not reported.
    """

    min_ratio: float = 1.25

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for a program that repeats much."""
        repeated = facts.analysis.repeated
        if repeated is None or repeated.ratio is None or repeated.ratio < self.min_ratio:
            return
        if repeated.bound is Bound.AT_MOST:
            return
        ratio = repeated.bound.said(format_digits(repeated.ratio, 3))
        lines = [line for line in repeated.lines if line.axes]
        places = [f"{pluralize(line.devices, 'device')} of {','.join(line.axes)} do the same" for line in lines]
        axes = dict.fromkeys(axis for line in lines for axis in line.axes)
        fix = (
            f"shard a dimension of these matmuls over {' and '.join(axes)}, or make that axis smaller" if axes else None
        )
        yield finding_of(
            self,
            f"devices do {ratio} times the FLOPs of the traced program",
            source=next((render_users_line(line.source) for line in repeated.lines), None),
            why="; ".join(dict.fromkeys(places)) or None,
            fix=fix,
        )


INVALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 4, "Y": 2}, args=("f32[512@X,1024]", "f32[1024,1024]"))
def an_axis_that_nothing_is_sharded_over(x, w):
    return jnp.tanh(x @ w) @ w
"""
    },
)
VALID = (
    {
        "program": """\
@hloscope.target(mesh={"X": 4, "Y": 2}, args=("f32[512@X,1024]", "f32[1024,1024@Y]"))
def both_axes_are_used(x, w):
    return x @ w
"""
    },
)
