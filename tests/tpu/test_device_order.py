"""The order of a mesh's devices, compared with `jax.make_mesh`'s own code over stand-in devices."""

from dataclasses import dataclass

import pytest

from hloscope.tpu import parse_slice
from hloscope.tpu.slices import find_device_order
from hloscope.tpu.torus import Torus

MESHES = {
    "v2:2x2": [(8,), (2, 4), (4, 2), (2, 2, 2)],
    "v3:4x4": [(32,), (4, 8), (2, 16)],
    "v4:2x2x1": [(4,), (2, 2), (1, 4)],
    "v4:4x4x4": [(64,), (16, 4), (4, 16), (4, 4, 4), (1, 4, 16)],
    "v5e:2x2": [(4,), (2, 2), (4, 1)],
    "v5e:2x4": [(8,), (2, 4), (4, 2), (8, 1), (2, 2, 2)],
    "v5e:4x4": [(16,), (4, 4), (1, 16)],
    "v5e:4x8": [(32,), (4, 8), (8, 4)],
    "v5e:8x8": [(64,), (8, 8), (64, 1)],
    "v5p:2x2x2": [(8,), (2, 4), (4, 2)],
    "v5p:4x4x8": [(128,), (16, 8), (4, 32), (8, 16), (4, 4, 8), (4, 8, 4)],
    "v6e:2x4": [(8,), (4, 2)],
    "v6e:16x16": [(256,), (16, 16)],
    "tpu7x:2x2x1": [(8,), (4, 2), (2, 4)],
    "tpu7x:2x2x2": [(16,), (8, 2)],
    "tpu7x:4x4x4": [(128,), (16, 8), (64, 2), (4, 32)],
}


@dataclass(frozen=True)
class StandIn:
    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    device_kind: str
    platform: str = "tpu"
    process_index: int = 0


def stand_ins(name):
    chosen = parse_slice(name)
    torus = Torus.of(chosen)
    places = [(*torus.coordinates(device), 0, 0)[:3] for device in range(torus.device_count)]
    kind = chosen.chip.device_kind
    return [StandIn(device, place, device % torus.devices_per_chip, kind) for device, place in enumerate(places)]


@pytest.mark.parametrize(("name", "mesh"), [(name, mesh) for name, meshes in MESHES.items() for mesh in meshes])
def test_the_order_is_the_one_that_jax_chooses(name, mesh):
    import jax
    from jax.experimental import mesh_utils

    if name == "v5p:2x2x2" and jax.__version_info__ < (0, 12):
        pytest.skip("this JAX knows v5p by another name")
    expected = [device.id for device in mesh_utils.create_device_mesh(mesh, stand_ins(name)).flat]
    assert find_device_order(parse_slice(name), mesh) == tuple(expected)


@pytest.mark.parametrize(("name", "mesh"), [("v5p:8x8x8", (4, 16, 8)), ("v5e:4x8", (2, 16)), ("v5e:2x4", (4,))])
def test_a_mesh_that_jax_refuses_has_no_order(name, mesh):
    from jax.experimental import mesh_utils

    with pytest.raises((NotImplementedError, ValueError)):
        mesh_utils.create_device_mesh(mesh, stand_ins(name))
    assert find_device_order(parse_slice(name), mesh) is None


def test_devices_without_links_have_no_order():
    assert find_device_order(parse_slice("cpu:8"), (8,)) is None
