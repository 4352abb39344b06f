"""Analyses written by hand, from which the report tests start."""

from __future__ import annotations

from dataclasses import asdict, replace

from hloscope.model import (
    Analysis,
    ArrayFact,
    Collective,
    Memory,
    Mesh,
    SliceFact,
    SourceFrame,
    Total,
    Totals,
    make_shapes,
)
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound, Kind, Link


def total(wire_bytes, collectives=1, executions=1, bound=Bound.EXACT):
    return Total(
        wire_bytes=wire_bytes, payload_bytes=wire_bytes, collectives=collectives, executions=executions, bound=bound
    )


def totals(whole, by_axis=None, by_link=None):
    return Totals(**asdict(whole), by_axis=by_axis or {}, by_kind={}, by_link=by_link or {})


NOTHING = Analysis(
    target="model.py:step",
    module="jit_step",
    slice=None,
    mesh=None,
    num_partitions=1,
    collectives=(),
    totals=totals(total(0, 0, 0)),
    arguments=(),
    outputs=(),
    memory=Memory(),
    versions={"hloscope": "0.2.0"},
)

GATHER = Collective(
    kind=Kind.ALL_GATHER,
    name="all-gather.8",
    computation="body",
    line=97,
    axes=("X",),
    groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    group_size=4,
    link=Link.ICI,
    operand_shapes=make_shapes("bf16[1,4096,14336]"),
    result_shapes=make_shapes("bf16[4,4096,14336]"),
    payload_bytes=469_762_048,
    wire_bytes=352_321_536,
    executions=8,
    executions_bound=Bound.EXACT,
    source=(SourceFrame(file="/home/me/moe.py", line=14, function="layer.<locals>.expert"),),
    source_of="fusion.16",
)
BOUNDED = replace(
    GATHER,
    kind=Kind.ALL_REDUCE,
    name="all-reduce.2",
    operand_shapes=make_shapes("f32[16]", "f32[8,8]", "s32[4]"),
    result_shapes=make_shapes("f32[16]", "f32[8,8]", "s32[4]"),
    payload_bytes=336,
    wire_bytes=504,
    executions=1,
    executions_bound=Bound.AT_LEAST,
    axes=None,
    source=(),
    source_of=None,
)
OPAQUE = replace(
    GATHER,
    kind=Kind.OPAQUE,
    name="kernel",
    axes=None,
    groups=(),
    group_size=None,
    payload_bytes=None,
    wire_bytes=None,
    executions=1,
    source=(SourceFrame(file="/home/me/kernel.py", line=3, function="<lambda>"),),
    source_of=None,
)

FULL = replace(
    NOTHING,
    slice=SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user"),
    mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2), axis_types=("auto", "explicit")),
    num_partitions=8,
    collectives=(OPAQUE, GATHER, replace(GATHER, name="all-gather.9", line=98), BOUNDED),
    totals=totals(
        total(5_637_145_080, 4, 18, Bound.AT_LEAST),
        by_axis={"X": total(5_637_144_576, 2, 16), "?": total(504, 2, 2, Bound.AT_LEAST)},
    ),
    arguments=(
        ArrayFact(
            name="params['layers'][0]['kernel']",
            dtype="bf16",
            global_shape=(4, 4096, 14336),
            local_shape=(1, 4096, 14336),
            sharding="P('X', None, None)",
            chosen_by="user",
            bytes_per_device=117_440_512,
            donated=True,
        ),
        ArrayFact(
            name="unread",
            dtype="f32",
            global_shape=(64,),
            local_shape=(64,),
            sharding=None,
            chosen_by=None,
            bytes_per_device=256,
            used=False,
        ),
    ),
    outputs=(
        ArrayFact(
            name="result",
            dtype="f32",
            global_shape=None,
            local_shape=(16,),
            sharding=None,
            chosen_by="compiler",
            bytes_per_device=64,
        ),
    ),
    memory=Memory(
        argument_bytes=117_440_512,
        output_bytes=512,
        temp_bytes=16_000_000_000,
        alias_bytes=512,
        generated_code_bytes=4096,
        peak_bytes=16_117_444_608,
        hbm_bytes=16 * 2**30,
    ),
    findings=(
        Finding(
            rule="opaque-communication",
            severity=Severity.WARNING,
            message="%kernel communicates in a way the HLO text does not describe: totals are lower bounds",
            line=97,
            fix="account for its bytes by hand",
        ),
    ),
    notes=("no v5e block has 7 chips: compiled on 7 of the 8 chips of v5e:2x4",),
)

TWO_SLICES = replace(
    FULL,
    slice=SliceFact(name="2*v5e:2x4", chip="v5e", chips=16, devices=16, slices=2, used_devices=16, chosen_by="user"),
    mesh=Mesh(axis_names=("D", "Y"), axis_sizes=(4, 4), axis_types=("auto", "auto")),
    collectives=(
        replace(GATHER, kind=Kind.ALL_REDUCE, name="all-reduce.1", axes=("D:(2)2",)),
        replace(GATHER, kind=Kind.ALL_REDUCE, name="all-reduce.3", axes=("D:(1)2",), link=Link.DCN),
    ),
    totals=totals(
        total(5_637_144_576, 2, 16),
        by_axis={"D:(1)2": total(2_818_572_288, 1, 8), "D:(2)2": total(2_818_572_288, 1, 8)},
        by_link={"dcn": total(2_818_572_288, 1, 8), "ici": total(2_818_572_288, 1, 8)},
    ),
    findings=(),
    notes=("D crosses DCN: it is the first axis that can be divided over 2 slices (choose another with --dcn)",),
)

AT_MOST = replace(GATHER, name="all-gather.3", executions=3, executions_bound=Bound.AT_MOST, source_of=None)
DOUBTFUL = replace(
    FULL,
    collectives=(AT_MOST, replace(GATHER, source_of=None, executions_bound=Bound.AT_LEAST)),
    totals=totals(
        total(3_875_536_896, 2, 11, Bound.UNKNOWN),
        by_axis={"X": total(3_875_536_896, 2, 11, Bound.UNKNOWN)},
        by_link={"ici": total(3_875_536_896, 2, 11, Bound.UNKNOWN)},
    ),
    findings=(),
    notes=(
        "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {devices=[1,4,2]<=[8] "
        "last_tile_dim_replicate} to {devices=[4,1,2]<=[8] last_tile_dim_replicate} efficiently for HLO operation "
        "%copy.1 = f32[64,256,2048]{2,1,0} copy(%param.2). As the last resort, SPMD will replicate the tensor and then "
        "partition it to obtain the target sharding, which is inefficient.",
    ),
)


def parameters(count):
    """Donated parameters of a deep model, all of one size but for the embedding."""
    return tuple(
        ArrayFact(
            name=f"params['layers'][{index}]['attention']['kernel']" if index else "params['embedding']",
            dtype="bf16",
            global_shape=(512, 2048) if index else (256_000, 2048),
            local_shape=(128, 1024) if index else (64_000, 1024),
            sharding="P('fsdp', 'tensor')",
            chosen_by="compiler",
            bytes_per_device=262_144 if index else 131_072_000,
            donated=True,
        )
        for index in range(count)
    )


DEEP = replace(
    NOTHING,
    mesh=Mesh(axis_names=("fsdp", "tensor"), axis_sizes=(4, 2)),
    arguments=(*parameters(40), replace(parameters(1)[0], name="key", used=False, sharding=None, chosen_by=None)),
    outputs=parameters(40),
)

LONG_NAME = "encoder_layers_block_number_000_attention_query_key_value_projection_kernel"
LONG = replace(
    FULL,
    target="experiments/a_folder_with_a_long_name/and_another_folder/train.py:the_training_step_of_the_large_model",
    mesh=Mesh(axis_names=("fsdp_transpose_sequence", "tensor"), axis_sizes=(4, 2), axis_types=("auto", "auto")),
    collectives=(
        replace(
            GATHER,
            kind=Kind.COLLECTIVE_PERMUTE,
            axes=("fsdp_transpose_sequence", "tensor"),
            operand_shapes=make_shapes("bf16[8,1024,512]", "f32[8,1024,1]", "f32[16]", "f32[16]"),
            source=(SourceFrame(file="train.py", line=6, function="the_training_step_of_the_large_model"),),
        ),
    ),
    totals=totals(
        total(2_818_572_288, 1, 8),
        by_axis={"fsdp_transpose_sequence,tensor": total(2_818_572_288, 1, 8)},
        by_link={"ici": total(2_818_572_288, 1, 8)},
    ),
    arguments=tuple(replace(one, name=f"parameters_of_the_model['{LONG_NAME}']") for one in parameters(3)[1:]),
    outputs=(replace(FULL.outputs[0], sharding="P(None, ('fsdp_transpose_sequence', 'tensor'))"),),
)
