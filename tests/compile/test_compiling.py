"""Programs as users write them, compiled for slices nobody has."""

from __future__ import annotations

import re

import pytest

from hloscope.base.errors import CompileError, MeshError, TargetError, TraceError
from hloscope.compile.stages import read_dumps

pytestmark = pytest.mark.tpu_compiler


ARGS_OF_128 = ("bf16[64@X,64@Y]", "bf16[64@Y,64]")


def shapes(arrays):
    return [(a.name, a.dtype, a.global_shape, a.local_shape, a.sharding) for a in arrays]


@pytest.mark.smoke
def test_arguments_and_outputs_have_global_and_local_shapes(compiled):
    capture = compiled("matmul.py:matmul")
    assert shapes(capture.arguments) == [
        ("In", "bf16", (8, 2048), (2, 1024), "P('X', 'Y')"),
        ("W", "bf16", (2048, 8192), (1024, 8192), "P('Y', None)"),
    ]
    assert shapes(capture.outputs) == [("result", "bf16", (8, 8192), (2, 8192), "P('X', None)")]
    assert capture.slice.name == "v5e:4x2"
    assert capture.slice_chosen_by == "user"
    assert (capture.mesh.axis_names, capture.mesh.axis_sizes, capture.mesh.axis_types) == (
        ("X", "Y"),
        (4, 2),
        ("auto", "auto"),
    )
    assert capture.compiled.memory_bytes["argument_size_in_bytes"] == 2 * 1024 * 2 + 1024 * 8192 * 2
    assert set(capture.versions) == {"jax", "jaxlib", "libtpu"}
    assert "all-reduce" in capture.compiled.text


@pytest.mark.smoke
def test_module_level_mesh_arrays_and_keys(compiled):
    capture = compiled("own_mesh.py:factory")
    assert shapes(capture.arguments) == [
        ("params['w']", "f32", (512, 1024), (512, 512), "P(None, 'model')"),
        ("x", "f32", (64, 512), (16, 512), "P('data', None)"),
    ]
    assert [a.donated for a in capture.arguments] == [True, False]
    assert [a.name for a in capture.outputs] == ["result['loss']", "result['params']['w']"]
    assert (capture.mesh.axis_names, capture.mesh.axis_sizes) == (("data", "model"), (4, 2))
    assert (capture.slice.name, capture.slice_chosen_by) == ("v5e:2x4", "default")


def test_module_level_constants_are_traced_too(compiled):
    capture = compiled("own_mesh.py:plain", mesh={"data": 4, "model": 2}, args=("f32[64@data,1024@model]",))
    assert shapes(capture.outputs)[0][2:4] == ((64, 1024), (16, 512))


def test_a_shard_mapped_function_brings_its_mesh(compiled):
    capture = compiled("own_mesh.py:total", args=("f32[64,128]",))
    assert capture.used_devices == 8
    assert "all-reduce" in capture.compiled.text


@pytest.mark.smoke
def test_an_nnx_factory(compiled):
    capture = compiled("modern.py:nnx_linear")
    kernel = next(a for a in capture.arguments if "kernel" in a.name)
    assert (kernel.global_shape, kernel.local_shape, kernel.sharding) == ((256, 512), (256, 256), "P(None, 'model')")


def test_pytrees_keys_and_donation(compiled):
    capture = compiled("modern.py:pytree")
    assert [a.name for a in capture.arguments] == [
        "params['layers'][0]",
        "params['layers'][1]",
        "params['w']",
        "x",
        "key",
    ]
    assert [a.donated for a in capture.arguments] == [True, True, True, False, False]
    assert capture.arguments[-1].dtype == "key<fry>"
    assert not any(a.asked for a in capture.outputs)


def test_arguments_from_a_callable_leave_the_sharding_open(compiled):
    (x,) = compiled("modern.py:from_callable").arguments
    assert (x.asked, x.sharding, x.local_shape) == (False, "P('X', None)", (8, 64))


@pytest.mark.smoke
def test_host_callbacks_compile(compiled):
    assert "pjrt_rendezvous" in compiled("modern.py:with_callback").compiled.text


def test_static_values(compiled):
    assert compiled("modern.py:with_static").arguments[0].name == "x"
    assert compiled("modern.py:with_static", static={"shift": 0}).compiled.text.count("collective-permute") == 0


def test_an_unused_argument_is_told(compiled):
    used, ignored = compiled("modern.py:with_unused").arguments
    assert (used.used, ignored.used) == (True, False)
    assert (ignored.local_shape, ignored.sharding) == ((64,), "P(None)")
    _, ignored = compiled("modern.py:with_unused", args=("f32[64@X,64]", "f32[64@X]")).arguments
    assert (ignored.used, ignored.local_shape, ignored.sharding) == (False, (8,), "P('X')")


def test_a_mesh_that_no_block_fits_is_compiled_on_a_subset(says, compiled):
    capture = compiled("modern.py:three_chips")
    assert (capture.slice.name, capture.used_devices) == ("v5e:2x2", 3)
    [note] = capture.notes
    assert re.findall(r"\b\d\b|v5e:2x2", says(note)) == ["3", "3", "4", "v5e:2x2"]


@pytest.mark.parametrize(
    ("size", "slice_name"), [(6, "v5e:2x4"), (6, None), (24, "v6e:4x8"), (1, "tpu7x:1x1x1"), (3, "v5p:2x2x1")]
)
def test_a_mesh_smaller_than_every_slice_is_compiled_on_a_part_of_the_one_that_is_named(compiled, size, slice_name):
    capture = compiled("modern.py:sharded_sum", mesh={"X": size}, args=(f"f32[{24 * size}@X,8]",), slice=slice_name)
    assert capture.used_devices == size < capture.slice.device_count
    assert capture.slice.name == (slice_name or "v5e:2x4")
    (note,) = capture.notes
    assert f"compiled on {size} of the {capture.slice.device_count} devices of {capture.slice.name}" in note


@pytest.mark.parametrize(
    ("size", "slice_name"),
    [(6, "v5e:4x4"), (1, "tpu7x:2x2x1"), (3, "v5p:2x2x2"), (12, "v6e:2x4"), (5, "v4:2x2x1"), (16, "tpu7x:1x1x1")],
)
def test_the_slice_that_an_error_names_holds_the_mesh(compiled, size, slice_name):
    facts = {"mesh": {"X": size}, "args": (f"f32[{size}@X,8]",)}
    with pytest.raises(MeshError) as caught:
        compiled("mistaken.py:mistaken", slice=slice_name, **facts)
    named = re.search(r"--slice (\S+)", caught.value.fix)[1]
    assert named != slice_name
    with pytest.raises(TraceError):  # the slice is taken, and the program's own mistake comes to light
        compiled("mistaken.py:mistaken", slice=named, **facts)


@pytest.mark.parametrize("dcn", [None, {"D": 2}, {"Y": 2}])
def test_two_slices(compiled, dcn):
    capture = compiled("modern.py:two_slices", dcn=dcn)
    assert "num_partitions=8" in capture.compiled.text
    assert ("xla_megascale_runtime" in capture.compiled.text) is (dcn != {"Y": 2})


def test_code_that_asks_for_the_backend_is_told_of_the_tpu_unless_that_is_turned_off(says, compiled):
    assert compiled("modern.py:asks_for_the_backend").notes == ()
    (note,) = compiled("modern.py:asks_for_the_backend", platform="cpu").notes
    assert note.startswith("tests/compile/user_code/modern.py:")
    assert re.findall(r"jax\.default_backend\(\)|'cpu'", note) == ["jax.default_backend()", "'cpu'"]
    says(re.sub(r"modern\.py:\d+", "modern.py:LINE", note))
    assert compiled("modern.py:asks_for_the_backend", slice="cpu:8").notes == ()


@pytest.mark.smoke
def test_simulated_cpu_devices(compiled):
    capture = compiled("matmul.py:matmul", slice="cpu:8")
    assert (capture.slice.name, capture.used_devices) == ("cpu:8", 8)
    assert "libtpu" not in capture.versions
    assert capture.arguments[0].local_shape == (2, 1024)


def test_attached_devices(compiled):
    capture = compiled(
        "matmul.py:matmul", slice="attached", mesh={"X": 8, "Y": 2}, args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]")
    )
    assert (capture.slice.name, capture.used_devices) == ("attached", 16)


@pytest.mark.parametrize("slice_name", ["v2:2x2", "v3:2x2", "v4:2x2x2", "tpu7x:2x2x1", "v5p:2x2x2", "v6e:2x4"])
def test_every_generation(compiled, slice_name):
    capture = compiled("matmul.py:matmul", slice=slice_name)
    assert capture.slice.device_count == 8
    assert "all-reduce" in capture.compiled.text


def test_one_chip(compiled):
    capture = compiled("matmul.py:matmul", mesh={"X": 1, "Y": 1}, slice="v5e:1x1")
    assert (capture.slice.name, capture.used_devices) == ("v5e:1x1", 1)
    assert "all-reduce" not in capture.compiled.text


def test_out_in_pytree_leaf_order(compiled):
    capture = compiled("modern.py:pytree", out=(None, None, None, "P(None, 'X')"))
    assert [a.asked for a in capture.outputs] == [False, False, False, True]
    assert capture.outputs[-1].local_shape == (64, 32)


def test_a_compiler_option_reaches_the_compiler(says, compiled):
    with pytest.raises(CompileError) as caught:
        compiled("matmul.py:matmul", compiler_options={"xla_no_such_option": "1"})
    assert "'xla_no_such_option'" in says(caught.value.what)


@pytest.mark.parametrize("option", ["xla_dump_hlo_as_text", "xla_tpu_enable_async_collective_fusion"])
@pytest.mark.parametrize("value", [True, False, "true"])
def test_options_of_xla_and_of_libtpu_take_booleans(compiled, option, value):
    assert compiled("matmul.py:matmul", compiler_options={option: value}).compiled.text


@pytest.mark.smoke
def test_out_of_all_bounds_is_read_from_what_the_compiler_wrote_down(says, compiled):
    capture = compiled("modern.py:too_large")
    assert "272.00G" in capture.compiled.too_large
    assert " 16 GiB" in capture.compiled.too_large
    says(capture.compiled.too_large.splitlines()[-1])
    assert "all-gather" in capture.compiled.text
    assert capture.compiled.memory_bytes.get("generated_code_size_in_bytes") is None
    peak, memory = capture.compiled.hbm_peak, capture.compiled.memory_bytes
    assert peak.live_bytes == 272 << 30
    assert peak.heap_bytes == memory["temp_size_in_bytes"]
    arguments = sum(one.bytes for one in peak.buffers if one.parameter is not None)
    assert arguments == memory["argument_size_in_bytes"]


@pytest.mark.smoke
def test_what_is_live_at_the_peak_is_what_the_compiler_counts(compiled):
    found = compiled("modern.py:saves_for_the_backward_pass").compiled
    assert abs(found.hbm_peak.live_bytes - found.memory_bytes["peak_memory_in_bytes"]) < 16384
    assert found.hbm_peak.temporary_bytes <= found.hbm_peak.heap_bytes
    assert max(found.hbm_peak.live_bytes_at.values()) == found.hbm_peak.live_bytes_at[found.hbm_peak.at]
    assert found.hbm_peak.live_bytes_at[found.hbm_peak.at] == found.hbm_peak.live_bytes


def test_what_does_not_fit_in_hbm_is_compiled_all_the_same(compiled):
    capture = compiled("modern.py:larger_than_a_chip")
    assert "exceeds available HBM" in capture.compiled.too_large
    assert " 16 GiB" in capture.compiled.too_large
    assert "ENTRY" in capture.compiled.text


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("target", "asked", "works"),
    [("matmul.py:matmul", "explicit", "auto"), ("matmul.py:matmul_explicit", "auto", "explicit")],
)
def test_the_other_axis_types_are_named_when_only_they_work(says, compiled, target, asked, works):
    with pytest.raises(TraceError) as caught:
        compiled(target, axis_types=asked)
    assert re.findall(r"(?:--axis-types )?(?:auto|explicit)\b", caught.value.fix) == [f"--axis-types {works}", asked]
    says(caught.value.fix)
    assert caught.value.where.startswith("fixtures/programs/matmul.py:")


def test_mixed_axis_types(compiled):
    capture = compiled("matmul.py:matmul", axis_types="X=explicit,Y=auto")
    assert capture.mesh.axis_types == ("explicit", "auto")


@pytest.mark.parametrize("types", ["X=explicit,Y=auto", "X=auto,Y=explicit"])
def test_an_output_that_explicit_axes_leave_partly_open_is_shown_as_it_was_compiled(compiled, types):
    capture = compiled(
        "modern.py:product", mesh={"X": 4, "Y": 2}, args=("f32[512@X,1024]", "f32[1024,512@Y]"), axis_types=types
    )
    (output,) = capture.outputs
    assert (output.sharding, output.local_shape, output.asked) == ("P('X', 'Y')", (128, 256), False)


def test_manual_axes_belong_to_shard_map(says, compiled):
    with pytest.raises(MeshError) as caught:
        compiled("matmul.py:matmul", axis_types="X=manual")
    assert re.findall(r"\bX\b|manual", caught.value.what) == ["X", "manual"]
    says(caught)


def test_more_simulated_devices_than_jax_was_started_with(compiled):
    capture = compiled("matmul.py:matmul", mesh={"X": 64, "Y": 2}, args=ARGS_OF_128, slice="v5e:8x16")
    assert (capture.used_devices, capture.arguments[0].local_shape) == (128, (1, 32))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mesh": {"X": 4, "Z": 2}}, ["bf16[B@X,D@Y]", "'Y'", "mesh"]),
        ({"slice": "v5e:4x4"}, ["mesh", " 8 ", "v5e:4x4", " 16"]),
        ({"slice": "2*v5e:2x4", "mesh": {"X": 4, "Y": 4}, "dcn": {"Z": 2}}, ["--dcn ", "'Z'"]),
        ({"slice": "2*v5e:2x4", "mesh": {"X": 4, "Y": 4}, "dcn": {"X": 3}}, ["--dcn X=3", " 2 "]),
        ({"dcn": {"X": 2}}, ["--dcn ", "several"]),
        ({"args": ("bf16[8@X,2047@Y]", "bf16[2047@Y,8]")}, ["dimension 1", "bf16[8@X,2047@Y]", "sharded", " Y"]),
        ({"out": "P('Q', None)"}, ["P('Q', None)", "'Q'", "mesh"]),
        ({"out": "P('X', 'Y', None)"}, ["P('X', 'Y', None)", " 3 ", " 2 "]),
        (
            {"args": ("bf16[6,64]", "bf16[64,8]"), "out": "P(('X', 'Y'))"},
            ["dimension 0", "bfloat16[6,8]", "sharded", "(X,Y)"],
        ),
    ],
    ids=[
        "arg",
        "slice",
        "dcn axis",
        "dcn size",
        "dcn of one",
        "indivisible",
        "out axis",
        "out entries",
        "out indivisible",
    ],
)
def test_what_does_not_fit_the_mesh(says, compiled, facts, words):
    with pytest.raises(MeshError) as caught:
        compiled("matmul.py:matmul", **facts)
    assert [word for word in words if word not in caught.value.what] == []
    says(caught)


def test_wrong_argument_counts(says, compiled):
    with pytest.raises(TargetError) as caught:
        compiled("matmul.py:matmul", args=("bf16[8@X,2048@Y]",))
    assert re.findall(r"matmul\.py:matmul\(In, W\)|\d positional", caught.value.what) == [
        "matmul.py:matmul(In, W)",
        "1 positional",
    ]
    assert "'W'" in caught.value.why
    says(caught.value.what)


def test_memory_is_read_from_the_compilers_buffer_assignment(tmp_path):
    (tmp_path / "module_1.after_optimizations-buffer-assignment.txt").write_text(
        "BufferAssignment:\n"
        "allocation 0: size 4096, page 0, parameter 0, shape |f32[1024]| at ShapeIndex {}:\n"
        " value: <8 param @0> (size=4096,offset=0): f32[1024]{0}\n"
        "allocation 1: size 512, parameter 1, shape |f32[128]| at ShapeIndex {}, maybe-live-out:\n"
        "allocation 2: size 256, page 0, output shape is |f32[64]|, maybe-live-out:\n"
        "allocation 3: size 2048, color 1, page 0, preallocated-temp:\n"
        "allocation 4: size 1024, page 0, preallocated-temp:\n"
    )
    assert read_dumps(tmp_path).memory_bytes == {
        "argument_size_in_bytes": 4608,
        "output_size_in_bytes": 768,
        "temp_size_in_bytes": 1024,
        "alias_size_in_bytes": 512,
    }
    assert read_dumps(tmp_path / "nothing").memory_bytes == {}


def test_only_explicit_axes_have_sums_that_are_not_taken_yet(says, compiled):
    with pytest.raises(MeshError) as refused:
        compiled("own_mesh.py:plain", mesh={"data": 4, "model": 2}, args=("f32[64,1024]{U:data}",))
    assert "f32[64,1024]{U:data}" in refused.value.what
    assert "--axis-types data=explicit" in refused.value.fix
    says(refused)


def test_a_refusal_names_the_users_line_and_no_other_frame(compiled):
    with pytest.raises(CompileError) as caught:
        compiled("mistaken.py:missing_kernel")
    assert re.search(r"emitter .*\bmissing_kernel\b", caught.value.why)
    assert "hloscope" not in caught.value.why
    assert "Suspected" not in caught.value.why
    assert re.search(r"mistaken\.py:\d+ in missing_kernel$", caught.value.where)
