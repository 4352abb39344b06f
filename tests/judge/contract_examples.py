"""Analyses written by hand and small HLO, from which the contract tests start."""

from __future__ import annotations

from dataclasses import replace

from hloscope.analysis.totals import compute_totals
from hloscope.model import Analysis, ArrayFact, Collective, Memory, Mesh, SourceFrame, StepTime, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link

REDUCE = Collective(
    kind=Kind.ALL_REDUCE,
    name="all-reduce.1",
    computation="main",
    line=10,
    axes=("Y",),
    groups=((0, 1), (2, 3), (4, 5), (6, 7)),
    group_size=2,
    link=Link.ICI,
    operand_shapes=make_shapes("bf16[2,8192]"),
    result_shapes=make_shapes("bf16[2,8192]"),
    payload_bytes=32_768,
    wire_bytes=32_768,
    executions=1,
    executions_bound=Bound.EXACT,
    reduction="add",
    source=(SourceFrame(file="/home/me/model/mlp.py", line=7, function="block"),),
)
GATHER = replace(
    REDUCE,
    kind=Kind.ALL_GATHER,
    reduction=None,
    name="all-gather.8",
    line=20,
    axes=("X",),
    group_size=4,
    operand_shapes=make_shapes("bf16[256,1024]"),
    result_shapes=make_shapes("bf16[1024,1024]"),
    payload_bytes=2_097_152,
    wire_bytes=1_572_864,
    executions=6,
    loops=("while.3",),
    source=(
        SourceFrame(file="/home/me/model/moe.py", line=91, function="expert"),
        SourceFrame(file="/home/me/model/layers.py", line=40, function="stack"),
    ),
    why="W is sharded over X",
)
SCATTER = replace(REDUCE, kind=Kind.REDUCE_SCATTER, name="reduce-scatter.1", wire_bytes=16_384)
ARRAY = ArrayFact(
    name="x",
    dtype="f32",
    global_shape=(8,),
    local_shape=(1,),
    sharding="P('X')",
    chosen_by="user",
    bytes_per_device=4,
)


def program(*collectives, mesh=("X=4", "Y=2"), **facts):
    """An analysis of a program that moves these."""
    sizes = dict(axis.split("=") for axis in mesh)
    return Analysis(
        **{
            "target": "model.py:step",
            "module": "jit_step",
            "slice": None,
            "mesh": Mesh(axis_names=tuple(sizes), axis_sizes=tuple(map(int, sizes.values()))),
            "num_partitions": 8,
            "collectives": collectives,
            "totals": compute_totals(collectives),
            "arguments": (ARRAY,),
            "outputs": (replace(ARRAY, name="result"),),
            "memory": Memory(),
            **facts,
        }
    )


PRICED = StepTime(step_us=1000.0, compute_us=900.0, exposed_us=100.0, hidden_us=50.0)
