"""Simulated devices that answer as those of a slice: to whom, what, and that nothing of it stays."""

from __future__ import annotations

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hloscope
from hloscope.base.errors import SliceError
from hloscope.compile.compiling import start_compile
from hloscope.compile.devices import simulate_devices
from hloscope.compile.functions import Function, with_function
from hloscope.compile.lowering import lower
from hloscope.compile.simulated_slice import change_pose, find_posed_slice, pose_devices_as
from hloscope.compile.target import make_facts
from hloscope.tpu import parse_slice

ATTRIBUTES = ("id", "platform", "device_kind", "coords", "core_on_chip", "num_cores", "slice_index")


@pytest.fixture(params=["v5e:4x4", "v5p:2x2x2", "tpu7x:2x2x1", "2*v5e:2x2"])
def chosen(request):
    return parse_slice(request.param)


@pytest.fixture
def posing(chosen):
    with simulate_devices(chosen.device_count), pose_devices_as(chosen, jax.devices()[0].client):
        yield jax.devices()


def test_devices_are_the_slices(posing, chosen):
    from hloscope.tpu.slices import list_devices

    assert jax.default_backend() == "tpu"
    assert jax.devices("tpu") == posing
    assert (jax.device_count(), jax.local_device_count("tpu"), jax.process_count()) == (
        chosen.device_count,
        chosen.device_count,
        1,
    )
    assert {device.platform for device in posing} == {"tpu"}
    assert {device.device_kind for device in posing} == {chosen.chip.device_kind}
    assert {device.client.platform for device in posing} == {"tpu"}
    for device, known in zip(posing, list_devices(chosen), strict=True):
        assert (device.id, tuple(device.coords), device.core_on_chip, device.slice_index) == (
            known.id,
            known.coords,
            known.core_on_chip,
            known.slice_index,
        )
        assert device.memory_stats()["bytes_limit"] == chosen.chip.usable_hbm_bytes_per_device
    assert repr(posing[1]).startswith("TpuDevice(id=1, process_index=0, coords=(")
    assert str(posing[1]).startswith("TPU_1(process=0,(")


def test_the_hosts_cpu_is_beside_them(posing):
    (host,) = jax.devices("cpu")
    assert (host.platform, host in posing) == ("cpu", False)
    kept = jax.device_put(np.arange(8.0), host)
    assert kept.devices() == {host}
    mesh = Mesh(np.array(posing), ("x",))
    moved = jax.device_put(jnp.tile(kept, len(posing)), NamedSharding(mesh, PartitionSpec("x")))
    assert (moved.devices(), float(moved.sum())) == (set(posing), 28.0 * len(posing))


def test_eager_code_runs_on_the_cpu(posing):
    mesh = jax.make_mesh((len(posing),), ("x",)) if posing[-1].slice_index == 0 else Mesh(np.array(posing), ("x",))
    x = jax.device_put(jnp.ones((len(posing), 4)), NamedSharding(mesh, PartitionSpec("x")))
    assert float(jax.jit(lambda a: jnp.sort(a * 2).sum())(x)) == 8 * len(posing)
    assert jax.random.normal(jax.random.key(0), (3,)).shape == (3,)


def test_a_kernels_tables_are_the_chips(posing, chosen):
    from jax.experimental.pallas import tpu as pltpu

    if not hasattr(pltpu, "get_tpu_info"):
        pytest.skip("this JAX has no such table")
    assert str(pltpu.get_tpu_info().chip_version).lower().endswith(chosen.chip.name.lstrip("v"))


def test_other_threads_and_what_comes_after_see_the_cpu():
    def seen():
        device = jax.devices()[0]
        return [str(getattr(device, name, None)) for name in ATTRIBUTES], repr(device), jax.default_backend()

    before, found = seen(), []
    with simulate_devices(8), pose_devices_as(parse_slice("v5e:2x4"), jax.devices()[0].client):
        during = seen()
        thread = threading.Thread(target=lambda: found.append(seen()))
        thread.start()
        thread.join()
    assert during != before == found[0] == seen()
    assert not hasattr(jax.devices()[0], "coords")
    assert find_posed_slice() is None


def test_what_was_told_cannot_be_taken_back():
    with simulate_devices(8), pose_devices_as(parse_slice("v5e:2x4"), jax.devices()[0].client):
        assert change_pose(parse_slice("v6e:2x4"))
        assert jax.devices()[0].device_kind == parse_slice("v6e:2x4").chip.device_kind
        assert not change_pose(parse_slice("v5e:2x4"))
    assert not change_pose(parse_slice("v5e:2x4"))


def test_a_slice_of_several_processes_shows_the_first():
    with simulate_devices(16), pose_devices_as(parse_slice("v5e:4x4"), jax.devices()[0].client, 2):
        assert (jax.process_count(), jax.process_index(), jax.device_count(), jax.local_device_count()) == (2, 0, 16, 8)
        assert jax.local_devices() == [device for device in jax.devices() if device.process_index == 0]
        assert [device.process_index for device in jax.local_devices(process_index=1)] == [1] * 8
        assert repr(jax.devices()[8]).startswith("TpuDevice(id=8, process_index=1, ")
        assert float(jax.jit(jnp.sum)(jnp.ones(8))) == 8


def test_processes_divide_the_hosts(says):
    with (
        simulate_devices(8),
        pytest.raises(SliceError) as caught,
        pose_devices_as(parse_slice("v5e:2x4"), jax.devices()[0].client, 3),
    ):
        pass
    says(caught)
    assert find_posed_slice() is None


@pytest.mark.tpu_compiler
def test_what_no_stand_in_can_answer_is_noted(says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text(
        "import jax\n\njax.distributed.initialize()\n\n"
        "def step(x):\n    assert jax.devices()[0].memory_stats()['bytes_limit'] > 1e10\n    return x * 2\n"
    )
    notes = hloscope.analyze("asking:step", ("f32[8]",), slice="v5e:1x1").notes
    assert len(notes) == 2
    says(notes)
    sys.modules.pop("asking", None)


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
import hloscope
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

KIND = jax.devices()[0].device_kind
by_place = {tuple(device.coords): device for device in jax.devices()}
rows = [[by_place[x, y, 0] for y in range(4)] for x in range(2)]
MESH = Mesh(np.array(rows), ("a", "b"))

@hloscope.target(slice="v6e:2x4")
def step():
    assert jax.default_backend() == "tpu" and "v6" in KIND, KIND
    x = jax.ShapeDtypeStruct((64, 1024), jnp.bfloat16, sharding=NamedSharding(MESH, P(None, "b")))
    return lambda y=x: jnp.sum(y)

@hloscope.target(slice="v6e:2x4", args=("bf16[64,1024]",))
def total(x):
    assert jax.default_backend() == "tpu" and "v6" in KIND, KIND
    placed = jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(None, "b")))
    return jax.lax.platform_dependent(placed, tpu=lambda v: v.sum(), cpu=lambda v: v.max())
"""


@pytest.mark.tpu_compiler
def test_a_mesh_by_coordinates_keeps_its_order_and_the_branch_is_the_tpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "by_place.py").write_text(PROGRAM)
    found = hloscope.analyze("by_place:total")
    assert found.slice.name == "v6e:2x4"
    assert not any("default_backend" in note for note in found.notes)
    (one,) = [one for one in found.collectives if one.kind.value == "all-reduce"]
    assert one.reduction == "add"
    assert devices_of("by_place:total") == (0, 2, 4, 6, 1, 3, 5, 7)
    assert devices_of("by_place:total", mesh={"a": 2, "b": 4}) == (0, 2, 4, 6, 1, 3, 5, 7)
    sys.modules.pop("by_place", None)


def devices_of(target, **options):
    """The physical device of each partition."""
    return with_function(
        Function(target=target, facts=make_facts(**options)),
        lambda function, known: start_compile(lower(function, known, name="it")).capture(),
    ).compiled.device_ids


@pytest.mark.tpu_compiler
def test_a_mesh_that_was_made_before_is_laid_out_as_make_mesh_would():
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    assert [device.id for device in mesh.devices] == list(range(8))

    @hloscope.target(
        slice="v5e:2x4", args=(jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, PartitionSpec("x"))),)
    )
    def total(x):
        return jnp.sum(x)

    assert devices_of(total) == (0, 1, 2, 3, 7, 6, 5, 4)


def test_processes_without_a_slice_are_not_passed_over_in_silence(says):
    (note,) = hloscope.analyze(lambda x: x * 2, ("f32[8]",), slice="cpu:1", processes=2).notes
    assert "processes" in note
    says(note)


def test_platform_cpu_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "as_it_is.py").write_text(
        "import jax\n\ndef step(x):\n    assert jax.devices()[0].platform == 'cpu', jax.devices()\n    return x * 2\n"
    )
    found = hloscope.analyze("as_it_is:step", ("f32[8]",), slice="v5e:1x1", platform="cpu")
    assert found.collectives == ()


@pytest.mark.process
def test_the_first_program_of_a_process_is_shown_the_slice_like_a_second_one():
    program = """
import jax
from hloscope.compile.devices import run_on_enough_devices
from hloscope.compile.simulated_slice import find_posed_slice
from hloscope.compile.target import TargetFacts

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
for _ in range(2):
    print(run_on_enough_devices(("model.py:step",), TargetFacts(), find_posed_slice).name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["v5e:2x4", "v5e:2x4"]
