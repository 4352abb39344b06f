"""Shardings name the axes of a mesh of their own, which has to be the one that is reported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.base.errors import MeshError

MESH, SLICE = {"X": 4, "Y": 2}, "cpu:8"
OTHER = AbstractMesh((2, 4), ("X", "Y"))


def step(x, w):
    return (x @ w).sum()


def product(x, w):
    return x @ w


def of(mesh, spec="X"):
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(mesh, P(spec)))
    return x, jax.ShapeDtypeStruct((128, 64), jnp.float32)


def unread(x, w):
    return w


TYPES = ("f32[64,128]", "f32[128,64]")
OUT = NamedSharding(OTHER, P("X"))
OTHERWISE = {
    "an argument": (step, of(OTHER), {}),
    "axes the other way round": (step, of(AbstractMesh((2, 4), ("Y", "X"))), {}),
    "an argument that is not read": (unread, of(OTHER), {}),
    "another number of devices": (step, of(AbstractMesh((2, 2), ("X", "Y"))), {}),
    "axes that the mesh lacks": (step, of(AbstractMesh((8,), ("Z",)), "Z"), {}),
    "a result": (product, TYPES, {"out": OUT}),
    "in_shardings": (jax.jit(step, in_shardings=(OUT, None)), TYPES, {}),
    "out_shardings": (jax.jit(product, out_shardings=OUT), TYPES, {}),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_shardings_of_another_mesh_are_refused(says, case):
    target, args, options = OTHERWISE[case]
    with pytest.raises(MeshError) as caught:
        hloscope.analyze(target, args, mesh=MESH, slice=SLICE, **options)
    assert "X=4,Y=2" in caught.value.what
    if case == "an argument":
        says(caught)


FRONTS = {
    "shardings": lambda: hloscope.shardings(step, of(OTHER), mesh=MESH, slice=SLICE),
    "explain": lambda: hloscope.explain(step, args=of(OTHER), mesh=MESH, slice=SLICE),
    "price": lambda: hloscope.price(step, "v5e:2x4", of(OTHER), mesh=MESH),
    "verify": lambda: hloscope.verify(step, unread, of(OTHER), mesh=MESH, slice=SLICE),
}


@pytest.mark.parametrize("front", FRONTS)
def test_every_front_refuses_them(front):
    with pytest.raises(MeshError, match="sharded over the mesh X=2,Y=4, but the program's mesh is X=4,Y=2"):
        FRONTS[front]()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_the_mesh_of_arguments_without_devices_is_reported(kind):
    found = hloscope.analyze(step, of(AbstractMesh((4,), ("X",), axis_types=(kind,))), slice="cpu:4")
    assert (found.mesh.axis_names, found.mesh.axis_sizes) == (("X",), (4,))
    assert [one.axes for one in found.collectives] == [("X",)]
    assert found.arguments[0].local_shape == (16, 128)


@pytest.mark.tpu_compiler
@pytest.mark.smoke
def test_it_is_reported_for_a_slice_too():
    found = hloscope.analyze(step, of(AbstractMesh((4,), ("X",))), slice="v5e:2x2")
    assert (found.mesh.axis_names, [one.axes for one in found.collectives]) == (("X",), [("X",)])


def test_two_meshes_without_devices_are_no_one_mesh():
    x, _ = of(AbstractMesh((4,), ("X",)))
    w = jax.ShapeDtypeStruct((128, 64), jnp.float32, sharding=NamedSharding(AbstractMesh((4,), ("Z",)), P("Z")))
    with pytest.raises(MeshError, match="w is sharded over the mesh Z=4, but the program's mesh is X=4"):
        hloscope.analyze(step, (x, w), slice="cpu:4")


def test_an_array_on_a_second_mesh_of_the_same_devices_is_noted(says):
    devices = np.array(jax.devices()[:8])
    x, _ = of(Mesh(devices.reshape(4, 2), ("X", "Y")))
    w = jax.ShapeDtypeStruct((128, 64), jnp.float32, sharding=NamedSharding(Mesh(devices, ("X",)), P("X")))
    found = hloscope.analyze(product, (x, w), slice=SLICE)
    assert [array.local_shape for array in found.arguments] == [(16, 128), (16, 64)]
    [note] = found.notes
    says(note)


@pytest.fixture(scope="module")
def exported():
    return export.export(jax.jit(step), platforms=("cpu",))(*of(AbstractMesh((2, 2), ("X", "Y"))))


@pytest.mark.parametrize("mesh", [{"X": 4}, {"Y": 2, "X": 2}, AbstractMesh((4,), ("Z",))], ids=str)
def test_an_exported_program_is_not_called_under_another_mesh(exported, mesh):
    with pytest.raises(MeshError, match="exported program is sharded over the mesh X=2,Y=2"):
        hloscope.analyze(exported, mesh=mesh, slice="cpu:4")


def test_an_exported_program_keeps_its_axis_types():
    mesh = AbstractMesh((2, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    made = export.export(jax.jit(lambda x: x * 2), platforms=("tpu",))(of(mesh)[0])
    found = hloscope.shardings(made, mesh={"X": 2, "Y": 2})
    assert found.axis_sizes == {"X": 2, "Y": 2}
