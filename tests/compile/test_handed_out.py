"""What JAX hands out says for which slice it is, in which order of devices, and with which axes; it is not guessed."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.base.errors import TargetError

AUTO = (AxisType.Auto, AxisType.Auto)
pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]


def product(x, w):
    return x @ w


def lowered(mesh, spec="Y"):
    shapes = ((8, 2048), P("X", spec)), ((2048, 256), P(spec, None))
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, cut)) for shape, cut in shapes]
    return jax.jit(product).trace(*args).lower(lowering_platforms=("tpu",))


def topology(name, order=lambda devices: devices, **of_slices):
    devices = list(topologies.get_topology_desc(name, "tpu", **of_slices).devices)
    return Mesh(np.array(order(devices)).reshape(-1, 2), ("X", "Y"), axis_types=AUTO)


def far_apart(devices):
    """Pairs of which the two are not neighbors."""
    half = len(devices) // 2
    return [device for pair in zip(devices[:half], devices[half:][::-1], strict=True) for device in pair]


def costs(found):
    return [(c.kind, c.axes, c.link, c.wire_bytes, c.time_us) for c in found.collectives]


@pytest.mark.parametrize(
    ("name", "order"), [("v5e:2x4", list), ("v5e:2x4", far_apart), ("v5p:2x2x1", list)], ids=["v5e", "far", "v5p"]
)
def test_a_compiled_program_is_what_its_lowering_compiles_to(name, order):
    before = lowered(topology(name, order))
    found, again = hloscope.analyze(before), hloscope.analyze(before.compile())
    assert (found.slice.name, again.slice.name, again.slice.chosen_by) == (name, name, "compiled")
    assert costs(found) == costs(again) != []
    assert found.time == again.time
    same = {"fits": None, "temp_bytes": 0, "peak_bytes": 0, "data_bytes": 0}
    assert replace(found.memory, **same) == replace(again.memory, **same)
    assert (
        found.memory.temp_bytes
        < 1 << 20
        > again.memory.temp_bytes
        == before.compile().memory_analysis().temp_size_in_bytes
    )
    assert any("temporaries are those of memory_analysis()" in note for note in again.notes)


def test_devices_that_are_far_apart_take_longer():
    near, far = (hloscope.analyze(lowered(topology("v5e:2x4", order)).compile()) for order in (list, far_apart))
    assert far.collectives[0].time_us > near.collectives[0].time_us


def test_several_slices_stay_several():
    mesh = topology("v5e:2x2", num_slices=2)
    for target in (lowered(mesh), lowered(mesh).compile()):
        found = hloscope.analyze(target)
        assert (found.slice.name, found.slice.slices) == ("2*v5e:2x2", 2)


def test_a_mesh_between_slices_is_not_taken_for_one_along_them():
    def mixed(devices):
        return [device for pair in zip(devices[:4], devices[4:], strict=True) for device in pair]

    with pytest.raises(TargetError, match="interleaves the devices of several slices"):
        hloscope.analyze(lowered(topology("v5e:2x2", mixed, num_slices=2)).compile())


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_axes_of_an_abstract_mesh_stay_of_their_type(kind):
    mesh = AbstractMesh((4, 2), ("X", "Y"), axis_types=(AxisType[kind.title()],) * 2)
    found = hloscope.analyze(lowered(mesh, spec=None), slice="v5e:2x4")
    assert found.mesh.axis_types == (kind, kind)


@pytest.mark.parametrize("option", [{"platform": "cpu"}, {"processes": 2}, {"mesh": {"X": 8}}, {"donate": 0}], ids=str)
def test_what_is_settled_is_refused(option):
    (name,) = option
    with pytest.raises(TargetError, match=f"^{name} cannot be combined with a jax.stages.Lowered"):
        hloscope.analyze(lowered(topology("v5e:2x4")), **option)
