"""The document follows its schema, field for field."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from hloscope.model import CollectivePart, IntermediateFact, Memory, Mesh, SliceFact, SourceFrame, StepTime, make_shapes
from hloscope.model.collectives import AxisShift, PermutePattern
from hloscope.model.finding import Finding, Severity
from hloscope.model.trial import RuleUse, Spread, UnknownOperation
from hloscope.model.vocabulary import Kind, Link


@pytest.fixture
def schema(schema_of):
    return schema_of("analysis")


@pytest.fixture
def full(analyze):
    """An analysis in which every optional field is filled."""
    entry = """
    %p = f32[4] parameter(0), sharding={devices=[8]<=[8]}, metadata={op_name="x"}
    %k = f32[4] custom-call(%p), custom_call_target="ncclSend"
    ROOT %c = f32[4] all-reduce(%k), channel_id=1, use_global_device_ids=true,
      replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum,
      metadata={op_name="jit(f)/psum" source_file="m.py" source_line=3}
    """
    analysis = analyze(entry, mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4), axis_types=("auto", "explicit")))
    shift = AxisShift(axes=("X", "Y"), size=8, distance=-1, ring=True)
    part = CollectivePart(
        kind=Kind.REDUCE_SCATTER,
        name="rs",
        line=4,
        axes=("Y",),
        groups=((0, 1), (2, 3)),
        group_size=2,
        link=Link.ICI,
        payload_bytes=16,
        wire_bytes=8,
        executions=1,
        asynchronous=False,
    )
    priced = [
        replace(
            c,
            time_us=1.5,
            exposed_us=0.0,
            why="because",
            link=Link.BOTH,
            parts=(part,),
            permute=PermutePattern(shifts=(shift,), ring=True),
            result_slices=make_shapes("f32[1]"),
            undone_by="s",
            loop_invariant=True,
            narrow_type="bf16",
        )
        for c in analysis.collectives
    ]
    return replace(
        analysis,
        collectives=tuple(priced),
        intermediates=(
            IntermediateFact(
                name="i[1]",
                computation="main",
                line=5,
                dtype="f32",
                global_shape=(8, 4),
                local_shape=(4, 4),
                bytes_per_device=64,
                padded_bytes_per_device=4096,
                memory_space=1,
                loops=("w",),
                op_name="jit(f)/mul",
                source=(SourceFrame(file="m.py", line=3),),
                source_of="n",
            ),
        ),
        slice=SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user"),
        memory=Memory(argument_bytes=1, output_bytes=2, temp_bytes=3, hbm_bytes=16 * 10**9),
        time=StepTime(
            step_us=3.5,
            compute_us=2.0,
            exposed_us=1.5,
            hidden_us=0.5,
            peak_flops_share=0.4,
            rules=(RuleUse(rule="cycles", time_us=2.0, calibrated=True),),
            spread=Spread(rows=3, median=1.02, worst=1.1),
            unknown_operations=(UnknownOperation(what="sort", count=1, bytes=64, time_us=0.1),),
        ),
        findings=(Finding(rule="r", severity=Severity.ERROR, message="m", line=3),),
        notes=("n",),
        versions={"hloscope": "0.2.0"},
    )


def test_a_full_analysis_is_valid_and_survives_json(full, schema):
    document = full.to_dict()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(document)) == []
    assert json.loads(json.dumps(document)) == document


def test_an_empty_analysis_is_valid(analyze, schema):
    document = analyze("ROOT %p = f32[] parameter(0)", header="").to_dict()
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(document)) == []


def test_top_level_keys_and_values(full):
    document = full.to_dict()
    assert list(document) == [
        "schema", "target", "module", "slice", "mesh", "num_partitions", "stage", "digest", "collectives", "totals",
        "arguments", "outputs", "intermediates", "matmuls", "kernels", "repeated", "memory", "memory_peak", "time",
        "decisions", "rematerializations", "findings", "unmodelled", "notes", "versions", "device_groups",
        "permute_patterns", "values", "stacks", "frames", "parts", "reasons", "tensors", "operations", "askers",
        "places",
    ]  # fmt: skip
    assert (document["schema"], document["target"], document["module"]) == (2, "test.hlo", "test")
    assert document["mesh"] == {
        "axis_names": ["X", "Y"],
        "axis_sizes": [2, 4],
        "axis_types": ["auto", "explicit"],
        "partition_ids": None,
        "made_up": False,
    }
    assert list(document["totals"]) == [
        "wire_bytes", "payload_bytes", "collectives", "executions", "bound", "by_axis", "by_kind", "by_link",
    ]  # fmt: skip
    opaque, reduction = document["collectives"]
    assert (opaque["kind"], opaque["wire_bytes"], opaque["axes"]) == ("opaque", None, None)
    assert (reduction["kind"], reduction["wire_bytes"], reduction["axes"]) == ("all-reduce", 24, ["Y"])
    assert (reduction["payload_bytes_per_step"], reduction["wire_bytes_per_step"]) == (16, 24)
    assert (opaque["payload_bytes_per_step"], opaque["wire_bytes_per_step"]) == (None, None)
    (frame,) = document["stacks"][reduction["source"]]
    assert document["frames"][frame] == {"file": "m.py", "line": 3}
    assert document["arguments"][0]["sharding"] == "P(('X', 'Y'))"
    assert document["totals"]["bound"] == "at least"


@pytest.mark.parametrize("change", [{"extra": 1}, {"num_partitions": None}, {"schema": 1}, {"notes": "n"}])
def test_the_schema_is_strict(full, schema, change):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**full.to_dict(), **change}, schema)
