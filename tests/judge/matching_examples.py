"""Collectives written by hand, from which the comparison tests start."""

from __future__ import annotations

from dataclasses import replace

from hloscope.model import Collective, SourceFrame, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link

GATHER = Collective(
    kind=Kind.ALL_GATHER,
    name="all-gather.1",
    computation="main",
    line=10,
    axes=("fsdp",),
    groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    group_size=4,
    link=Link.ICI,
    operand_shapes=make_shapes("bf16[256,1024]"),
    result_shapes=make_shapes("bf16[1024,1024]"),
    payload_bytes=2_097_152,
    wire_bytes=1_572_864,
    executions=6,
    executions_bound=Bound.EXACT,
    loops=("while.1",),
    source=(SourceFrame(file="/home/me/model/moe.py", line=91, function="expert"),),
)
REDUCE = replace(
    GATHER,
    kind=Kind.ALL_REDUCE,
    name="all-reduce.1",
    operand_shapes=make_shapes("bf16[1024,1024]"),
    wire_bytes=3_145_728,
    executions=1,
    loops=(),
    source=(SourceFrame(file="/home/me/model/loss.py", line=7, function="loss"),),
)
SCATTER = replace(
    REDUCE,
    kind=Kind.REDUCE_SCATTER,
    name="reduce-scatter.1",
    wire_bytes=1_572_864,
    result_shapes=make_shapes("bf16[256,1024]"),
)
PERMUTE = replace(
    GATHER,
    kind=Kind.COLLECTIVE_PERMUTE,
    name="collective-permute.1",
    group_size=None,
    groups=((0, 1), (1, 2), (2, 3), (3, 0)),
    operand_shapes=make_shapes("bf16[256,1024]"),
    result_shapes=make_shapes("bf16[256,1024]"),
    payload_bytes=524_288,
    wire_bytes=524_288,
)


def moved(one, line, function=None, file=None):
    """The collective in another line, function or file."""
    frame = one.source[0]
    changed = replace(frame, line=line, function=function or frame.function, file=file or frame.file)
    return replace(one, source=(changed,))
