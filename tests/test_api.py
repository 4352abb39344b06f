"""hloscope in a notebook or a script: functions in, an Analysis out."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.app.pricing import price
from hloscope.model import Analysis

AUTO = (AxisType.Auto, AxisType.Auto)


def matmul(x, w):
    return x @ w


ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]")


def moves(found):
    return [(c.kind, c.axes, c.wire_bytes) for c in found.collectives]


@pytest.mark.smoke
@pytest.mark.tpu_compiler
def test_a_function_with_notations():
    found = hloscope.analyze(matmul, ARGS, mesh={"X": 4, "Y": 2}, slice="v5e:2x4", out="P('X', None)")
    assert isinstance(found, Analysis)
    assert moves(found) == [("all-reduce", ("Y",), 32768)]
    assert found.target == "matmul"
    assert found.slice.name == "v5e:2x4"
    assert json.loads(json.dumps(found.to_dict()))["totals"]["by_axis"]["Y"]["wire_bytes"] == 32768


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("kind", ["abstract", "concrete"])
def test_a_mesh_of_jax(kind):
    mesh = AbstractMesh((4, 2), ("X", "Y"), axis_types=AUTO)
    if kind == "concrete":
        mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("X", "Y"), axis_types=AUTO)
    found = hloscope.analyze(matmul, ARGS, mesh=mesh, out="P('X', None)")
    assert moves(found) == [("all-reduce", ("Y",), 32768)]
    assert found.mesh.axis_types == ("auto", "auto")


@pytest.mark.tpu_compiler
def test_shape_structs_of_the_users_own_mesh():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("X", "Y"), axis_types=AUTO)
    x = jax.ShapeDtypeStruct((8, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, P("X", "Y")))
    w = jax.ShapeDtypeStruct((2048, 8192), jnp.bfloat16, sharding=NamedSharding(mesh, P("Y", None)))
    found = hloscope.analyze(jax.jit(matmul, out_shardings=NamedSharding(mesh, P("X", None))), (x, w))
    assert moves(found) == [("all-reduce", ("Y",), 32768)]
    assert (found.mesh.axis_names, found.slice.name) == (("X", "Y"), "v5e:2x4")


@pytest.mark.tpu_compiler
def test_a_mesh_of_permuted_devices_keeps_its_axes():
    devices = np.array(jax.devices()[:8])[[7, 6, 5, 4, 3, 2, 1, 0]].reshape(4, 2)
    mesh = Mesh(devices, ("X", "Y"), axis_types=AUTO)
    found = hloscope.analyze(matmul, ARGS, mesh=mesh, out="P('X', None)")
    assert moves(found) == [("all-reduce", ("Y",), 32768)]


@pytest.mark.tpu_compiler
def test_source_frames_end_where_the_users_program_ends():
    found = hloscope.analyze(matmul, ARGS, mesh={"X": 4, "Y": 2}, out="P('X', None)")
    (frame,) = found.collectives[0].source
    assert (frame.file, frame.function) == (__file__, "matmul")


def test_the_decorator_changes_nothing_but_an_attribute(says):
    @hloscope.target(mesh={"X": 2}, args=("f32[8@X]",), donate=0)
    def step(x):
        return x + 1

    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.target(mesh={"X": 2})(len)
    assert "<built-in function len>" in caught.value.what
    says([caught.value.what, caught.value.fix])  # why is told in Python's words
    assert step(1) == 2
    assert step.__name__ == "step"


@pytest.mark.tpu_compiler
def test_arguments_win_over_the_decorator():
    decorated = hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[S@X,128]",), dims={"S": 64})(
        lambda x: x.sum()
    )
    assert hloscope.analyze(decorated).arguments[0].local_shape == (8, 128)
    assert hloscope.analyze(decorated, dims={"S": 128}).arguments[0].local_shape == (16, 128)
    assert hloscope.analyze(decorated, ("f32[8@X]",)).arguments[0].local_shape == (1,)


@pytest.mark.tpu_compiler
def test_a_size_of_a_letter_that_no_type_has_is_told(says):
    found = hloscope.analyze(lambda x: x + 1, ("f32[S@X,8]",), mesh={"X": 8}, dims={"S": 64, "T": 2, "U": 3})
    assert re.findall(r"\b[A-Z]\b", says(found.notes[-1])) == ["T", "U"]


@pytest.mark.tpu_compiler
def test_what_a_target_says_of_rules_is_joined_with_what_the_call_says(says):
    decorated = hloscope.target(
        mesh={"X": 4, "Y": 2},
        args=ARGS,
        out="P('X', None)",
        allow="all-gather@X: weights of FSDP",
        rule_options={"unexpected-collective.active": False, "small-collectives.min_collectives": 1},
    )(lambda x, w: x @ w)
    own = hloscope.analyze(decorated)
    assert [one.rule for one in own.findings] == ["unexpected-collective", "small-collectives", "unused-allow"]
    assert re.findall(r"target|all-gather@X|: .*", says(own.findings[-1].message)) == [
        *("target", "all-gather@X"),
        ": weights of FSDP",
    ]
    both = hloscope.analyze(
        decorated,
        allow=["all-reduce@Y: partial sums"],
        rule_options={"small-collectives.min_collectives": 2},
    )
    assert [(one.rule, one.allowed) for one in both.findings if one.allowed] == [
        ("unexpected-collective", "partial sums")
    ]
    assert "small-collectives" not in [one.rule for one in both.findings]


@pytest.mark.tpu_compiler
def test_libtpus_chatter_is_kept_from_the_user(tmp_path):
    (tmp_path / "quietly.py").write_text(
        "import hloscope\n"
        f"found = hloscope.analyze(lambda a, b: a @ b, {ARGS!r}, mesh={{'X': 4, 'Y': 2}})\n"
        "print(found.totals.collectives)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "TPU_"))}
    environment["PYTHONPATH"] = str(Path(hloscope.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "quietly.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert (ran.stdout.strip(), ran.stderr) == ("1", "")


def test_a_compressed_file_is_read_as_text_and_a_path_without_a_function_is_refused(says, tmp_path):
    text = "HloModule m, num_partitions=8\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    (tmp_path / "step.hlo.gz").write_bytes(gzip.compress(text.encode()))
    assert hloscope.analyze(str(tmp_path / "step.hlo.gz")).module == "m"
    assert hloscope.analyze(tmp_path / "step.hlo.gz").module == "m"
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze(Path("model.py"))
    assert "model.py" in caught.value.what
    assert "'model.py:FUNCTION'" in caught.value.fix
    says(caught)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"args": ("f32[4]",)}, "args"),
        ({"out": "P('X')"}, "out"),
        ({"dims": {"S": 4}}, "dims"),
        ({"donate": (0,)}, "donate"),
    ],
)
def test_what_only_a_function_can_obey_is_refused_beside_hlo_text(says, tmp_path, options, name):
    (tmp_path / "step.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
    for ask in (hloscope.analyze, lambda target, **given: price(target, ["v5e:2x4"], **given)):
        with pytest.raises(hloscope.HloscopeError) as caught:
            ask(str(tmp_path / "step.hlo"), **options)
        assert re.findall(r"^\w+|HLO text", caught.value.what) == [name, "HLO text"]
        says(caught, "price" if ask is not hloscope.analyze else "analyze")


def test_what_only_hlo_text_needs_is_refused_beside_a_function(says, tmp_path):
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze(matmul, ARGS, mesh={"X": 4, "Y": 2}, source_root=tmp_path)
    assert re.findall(r"^\w+|HLO text", caught.value.what) == ["source_root", "HLO text"]
    says(caught)


def test_a_mesh_that_does_not_fit_hlo_text(says):
    text = "HloModule m, num_partitions=8\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze_text(text, name="m.hlo", mesh={"X": 4})
    assert re.findall(r"\d+|m\.hlo", caught.value.what) == ["4", "m.hlo", "8"]
    assert re.findall(r"\w+=\d", caught.value.why) == ["num_partitions=8", "replica_count=1"]
    says(caught)
    assert hloscope.analyze_text(text, mesh={"X": 8}).mesh.device_count == 8


def test_devices_of_one_of_several_slices_are_told_apart_from_all(says):
    text = "HloModule m, num_partitions=16\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze_text(text, name="m.hlo", mesh={"X": 16}, slice="2*v5e:4x4")
    assert "one of 2 slices" in caught.value.why
    says(caught)


@pytest.mark.parametrize("take", [hloscope.analyze, hloscope.timeline])
def test_text_in_place_of_its_name_is_refused(take):
    text = "HloModule m\n" + "// a long comment\n" * 1000
    with pytest.raises(hloscope.TargetError, match="is HLO text itself") as caught:
        take(text, slice="v5e:2x4")
    assert "analyze_text" in caught.value.fix


def test_an_axis_has_a_name():
    for name in ("", " "):
        with pytest.raises(hloscope.HloscopeError, match="is not a name"):
            hloscope.analyze_text("HloModule m\n", mesh={name: 4})


def test_a_slice_that_is_too_small_for_hlo_text(says):
    text = "HloModule m, num_partitions=8\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze_text(text, name="m", slice="v5e:2x2")
    assert re.findall(r"v5e:2x2|\b\d\b|\bm\b", caught.value.what) == ["v5e:2x2", "4", "m", "8"]
    says(caught)
    found = hloscope.analyze_text(text, slice="2*v5e:2x4", mesh={"D": 2, "X": 8})
    assert (found.slice.used_devices, found.slice.slices) == (16, 2)


@pytest.mark.parametrize(
    ("facts", "name", "given"),
    [
        ({"mesh": (4, 2)}, "mesh", "not (4, 2)"),
        ({"mesh": {"X": "4"}}, "mesh", "the size of 'X' is '4'"),
        ({"mesh": "X=4,"}, "mesh", ""),
        ({"slice": 8}, "slice", "not 8"),
        ({"axis_types": 3}, "axis_types", "not 3"),
        ({"dcn": ["X"]}, "dcn", "not ['X']"),
    ],
)
def test_facts_that_are_not_written_as_they_must_be(says, facts, name, given):
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.analyze(matmul, ARGS, **facts)
    assert name in caught.value.what
    assert caught.value.what.endswith(given)
    says(caught)


@pytest.mark.tpu_compiler
def test_meshes_and_axis_types_in_other_words():
    found = hloscope.analyze(matmul, ARGS, mesh="X=4,Y=2", axis_types={"X": "auto"}, out="P('X', None)")
    assert moves(found) == [("all-reduce", ("Y",), 32768)]


def test_text_that_breaks_off_after_entry_is_a_lower_bound(says):
    whole = "HloModule m, num_partitions=2\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    for key, rest in (("cut off", "other {\n  x = f32[8] param"), ("broken", "garbage here\n")):
        found = hloscope.analyze_text(whole + rest)
        assert found.totals.bound == "at least"
        assert [finding.rule for finding in found.findings] == ["unmodelled-text"]
        assert "after %e" in says(found.findings[0].message, key)


ROWS_SUMMED = """\
HloModule m, num_partitions=8

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

ENTRY main {
  p = f32[16] parameter(0)
  ROOT r = f32[16] all-reduce(p), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=sum
}
"""


def test_what_a_call_says_of_rules_applies_to_hlo_text():
    text = ROWS_SUMMED
    plain = hloscope.analyze_text(text, mesh={"X": 4, "Y": 2})
    assert plain.findings == ()
    ask = {"small-collectives.min_collectives": 1}
    few = hloscope.analyze_text(text, mesh={"X": 4, "Y": 2}, rule_options=ask)
    assert [one.rule for one in few.findings] == ["small-collectives"]
    for how in ({"ignore": "small-collectives"}, {"select": "uneven-sharding"}):
        assert hloscope.analyze_text(text, mesh={"X": 4, "Y": 2}, rule_options=ask, **how).findings == ()
    allowed = hloscope.analyze_text(text, mesh={"X": 4, "Y": 2}, rule_options=ask, allow="small-collectives: one sum")
    assert [one.allowed for one in allowed.findings] == ["one sum"]
