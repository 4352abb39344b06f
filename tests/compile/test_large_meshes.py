"""Sizes are judged before any device is made: far too many would take all time and memory."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.base.errors import MeshError, SliceError
from hloscope.compile import devices, environment
from hloscope.compile.environment import check_can_be_simulated, find_largest_device_count, prepare_environment
from hloscope.tpu.slices import parse_slice


def double(x):
    return x * 2


@pytest.fixture(autouse=True)
def no_devices(monkeypatch):
    """Fails a test that makes devices."""
    monkeypatch.setattr(devices, "_make_cpu_client", lambda count: pytest.fail(f"{count} devices are made"))


@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ({"X": 20_000}, {}),
        ({"X": 100_000}, {"slice": "v5e:2x4"}),
        ({"X": 2**31}, {}),
        ({"X": 10**30}, {}),
        ({"X": 10**30}, {"slice": "cpu:8"}),
        (AbstractMesh((2**31,), ("X",)), {}),
        (None, {"slice": "cpu:100000"}),
        (None, {"slice": "99999*v5e:2x4"}),
    ],
    ids=str,
)
def test_a_mesh_that_is_far_too_large_is_refused(mesh, options):
    with pytest.raises((MeshError, SliceError)):
        hloscope.analyze(double, ("f32[8]",), mesh=mesh, **options)


def test_so_is_that_of_a_decorator_and_that_of_the_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.py").write_text(
        "import hloscope\n\n@hloscope.target(args=('f32[8]',), mesh={'X': 20_000})\ndef double(x):\n    return x * 2\n"
    )
    with monkeypatch.context() as patched:
        patched.setattr(devices, "_choose_device_count", lambda *_: None)
        with pytest.raises(SliceError, match="has 20,000 devices"):
            hloscope.analyze("large.py:double")
    x = jax.ShapeDtypeStruct((20_000,), "float32", sharding=NamedSharding(AbstractMesh((20_000,), ("X",)), P("X")))
    with pytest.raises(MeshError, match="20,000 devices are too many"):
        hloscope.analyze(double, (x,))


def test_the_limit_is_the_largest_slice_that_is_known(says, monkeypatch):
    assert find_largest_device_count() >= parse_slice("v5p:16x16x24").device_count
    monkeypatch.setattr(environment, "find_largest_device_count", lambda: 32)
    check_can_be_simulated(32)
    with pytest.raises(MeshError) as caught:
        check_can_be_simulated(33)
    says(caught)
    with pytest.raises(MeshError, match="33 devices are too many"):
        prepare_environment(33, attached=False)


@pytest.mark.parametrize("options", [("--mesh", "X=2147483648"), ("--slice", "cpu:100000")], ids=" ".join)
def test_the_command_line_refuses_before_jax_starts(root, options):
    command = [sys.executable, "-m", "hloscope", "analyze", "fixtures/programs/matmul.py:matmul", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
