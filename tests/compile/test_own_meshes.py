"""Programs that bring their own mesh, with and without one given from outside."""

from __future__ import annotations

import re

import pytest

from hloscope.base.errors import NotationError, TraceError

pytestmark = pytest.mark.tpu_compiler

OUTSIDE = {"data": 2, "model": 4}


@pytest.mark.parametrize("mesh", [None, OUTSIDE])
def test_a_jitted_function_keeps_its_in_shardings(says, compiled, mesh):
    capture = compiled("meshes_of_users.py:jitted", mesh=mesh, args=("f32[512,512]", "f32[64,512]"))
    w, x = capture.arguments
    assert len(capture.notes) == (0 if mesh is None else 1)
    if capture.notes:
        assert "arguments" in says(capture.notes)
    assert (w.sharding, x.sharding) == ("P(None, 'model')", "P('data', None)")


def test_a_factory_with_an_explicit_mesh_is_reported_as_explicit(says, compiled):
    capture = compiled("meshes_of_users.py:explicit_factory", mesh=OUTSIDE)
    assert capture.mesh.axis_types == ("explicit", "explicit")
    [note] = capture.notes
    assert "without a current mesh" in says(note)


def test_the_mesh_of_the_arguments_is_made_current_where_it_is_needed(says, compiled):
    capture = compiled("meshes_of_users.py:constrained_factory")
    assert capture.outputs[0].sharding == "P('data', 'model')"
    [note] = capture.notes
    assert "jax.set_mesh" in says(note)


@pytest.mark.parametrize(
    ("target", "axes"),
    [
        ("shard_mapped_inside", {"X": 8}),
        ("constrained_inside", {"X": 4, "Y": 2}),
        ("called_inside", {"X": 8}),
        ("on_two_meshes", None),
    ],
)
def test_a_mesh_that_only_the_operations_name_is_the_programs(compiled, target, axes):
    mesh = compiled(f"meshes_of_users.py:{target}").mesh
    assert (mesh and dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))) == axes


def test_a_mesh_that_only_the_operations_name_takes_the_place_of_another(says, compiled):
    capture = compiled("meshes_of_users.py:shard_mapped_inside", mesh=OUTSIDE)
    assert (capture.mesh.axis_names, capture.mesh.axis_sizes) == (("X",), (8,))
    assert "is not used" in says(capture.notes[-1])


@pytest.mark.smoke
def test_a_function_jitted_by_nnx(compiled):
    capture = compiled("meshes_of_users.py:nnx_jitted", mesh=OUTSIDE)
    assert "P(None, 'model')" in [a.sharding for a in capture.arguments]


@pytest.mark.smoke
@pytest.mark.parametrize(("target", "slices"), [("hybrid", (0,) * 8 + (1,) * 8), ("model_over_dcn", (0, 1) * 8)])
def test_a_hybrid_mesh_made_by_the_program_decides_what_crosses_dcn(compiled, target, slices):
    capture = compiled(f"meshes_of_users.py:{target}", slice="2*v5e:2x4")
    assert capture.compiled.slice_of_partition == slices
    assert ("xla_megascale_runtime" in capture.compiled.text) is (target == "hybrid")
    assert capture.notes == ()


def test_the_default_dcn_axis_is_told(says, compiled):
    capture = compiled("modern.py:two_slices")
    [note] = capture.notes
    assert re.findall(r"^D\b|DCN|\b2\b|--dcn", says(note)) == ["D", "DCN", "2", "--dcn"]
    assert capture.compiled.slice_of_partition == (0,) * 8 + (1,) * 8


def test_axis_types_without_a_mesh(says, compiled):
    with pytest.raises(NotationError) as caught:
        compiled("meshes_of_users.py:explicit_factory", axis_types="auto")
    assert re.findall("axis types|no mesh", caught.value.what) == ["axis types", "no mesh"]
    says(caught)


def test_a_program_that_needs_a_mesh_is_told_how_to_give_one(says, compiled):
    with pytest.raises(TraceError) as caught:
        compiled("modern.py:needs_a_mesh", args=("f32[64,64]",))
    assert "--mesh " in says(caught.value.fix)


def test_a_program_with_a_mesh_of_its_own_is_not_asked_for_one(compiled):
    with pytest.raises(TraceError, match="evenly divide") as caught:
        compiled("meshes_of_users.py:indivisible_factory")
    assert caught.value.fix is None


@pytest.mark.parametrize(
    ("program", "mesh", "args"),
    [
        ("explicit_mesh_and_a_mistake", {"X": 8}, None),
        ("explicit_mesh_and_a_mistake", OUTSIDE, None),
        ("named_constraint_and_a_mistake", None, None),
    ],
)
def test_the_error_is_the_programs_own_mistake_where_only_a_later_attempt_gets_to_it(compiled, program, mesh, args):
    with pytest.raises(TraceError) as caught:
        compiled(f"mistaken.py:{program}", mesh=mesh, args=args)
    assert re.search("dot_general .*contracting dimensions", caught.value.why)
    assert caught.value.where.endswith("in mistaken")


def test_without_a_mistake_of_its_own_the_first_attempts_error_is_shown(compiled):
    with pytest.raises(TraceError, match="Resource axis: nowhere "):
        compiled("mistaken.py:unknown_axis", mesh=OUTSIDE, args=("f32[64,64]",))
