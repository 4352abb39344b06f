"""Calls from a script of the user's: JAX, modules and settings of the process are his, and stay so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hloscope.program.devices import own_devices, traced_afresh
from hloscope.program.importing import World

pytestmark = pytest.mark.tpu_compiler

SCRIPT = """
import os, sys, time
import hloscope

ARGS = ("f32[64@X,128]", "f32[128,64]")
before = dict(os.environ)
for size in (4, 8):
    found = hloscope.analyze("model.py:step", ARGS, mesh={"X": size})
    print(size, found.mesh.device_count, [str(one.kind) for one in found.collectives])
import jax
from jax._src import xla_bridge
print(dict(os.environ) == before, xla_bridge.backends_are_initialized(), jax.config.jax_num_cpu_devices)
with open("helper.py", "w") as file:
    file.write("def scale(x):\\n    return x.sum()  \\n")  # as long as before, and in the same second
print([str(one.kind) for one in hloscope.analyze("model:step", ARGS, mesh={"X": 8}).collectives])
print(hloscope.analyze("model.py:own_mesh").mesh.device_count, jax.device_count(), "helper" in sys.modules)
"""
MODEL = """
import jax
import jax.numpy as jnp
import helper

print("imported", jax.device_count())


def step(x, w):
    print("traced")
    return helper.scale(x @ w)


def own_mesh():
    mesh = jax.make_mesh((4, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("a", "b")))
    return (lambda x: x * 2), (x,)
"""
SAID = """imported 4
traced
4 4 []
imported 8
traced
8 8 []
True False -1
imported 8
traced
['all-reduce']
imported 8
imported 16
16 1 False
"""


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["script", "standard input"])
def test_a_script_without_a_guard(tmp_path, root, how):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text("def scale(x):\n    return x * 2    \n")
    (tmp_path / "script.py").write_text(SCRIPT)
    kept = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(
        [sys.executable, "script.py" if how == "script" else "-"],
        input=SCRIPT if how == "standard input" else None,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID


def test_an_edited_module_is_another_and_may_define_its_flags_again(tmp_path):
    pytest.importorskip("absl")
    flags = "from absl import flags\nflags.DEFINE_integer('hloscope_layers', 3, 'of a test')\n"
    (tmp_path / "flagged.py").write_text(flags + "VALUE = 1\n")
    world = World((str(tmp_path),))
    first = world.import_module("flagged", None)
    assert world.import_module("flagged", None) is first
    (tmp_path / "flagged.py").write_text(flags + "OTHER = 2\n")
    again = world.import_module("flagged", None)
    assert (first.VALUE, again.OTHER, hasattr(again, "VALUE")) == (1, 2, False)
    assert "flagged" not in sys.modules
    assert str(tmp_path) not in sys.path


REGISTERING = """
import argparse, jax
jax.tree_util.register_pytree_node(argparse.Namespace, vars, lambda _, children: children)


def own_mesh():
    mesh = jax.make_mesh((4, 8), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=jax.NamedSharding(mesh, jax.P("a", "b")))
    return (lambda x: x * 2), (x,)
"""


@pytest.mark.long
def test_what_can_be_registered_once_says_so(says, tmp_path, root):
    (tmp_path / "registering.py").write_text(REGISTERING)
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    options = {"env": {**environment, "PYTHONPATH": str(root)}, "cwd": tmp_path, "capture_output": True, "text": True}
    command = [sys.executable, "-m", "hloscope", "analyze", "registering.py:own_mesh"]
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 2
    assert re.search(r"registering\.py .*\(--slice, --mesh\)", done.stderr, re.S)
    says(re.search(r"this process.*", done.stderr)[0])  # what stands before it is JAX's
    assert subprocess.run([*command, "--slice", "v5e:4x8"], check=False, **options).returncode == 0
    script = "import hloscope, registering as r\nhloscope.analyze('registering.py:own_mesh', slice='v5e:4x8')\n"
    done = subprocess.run([sys.executable, "-c", script], check=False, **options)
    assert "the function itself" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", script.replace("'registering.py:own_mesh'", "r.own_mesh")], check=False, **options
    )
    assert done.returncode == 0, done.stderr


def test_devices_of_its_own_leave_jaxs_in_place():
    import jax
    import jax.numpy as jnp

    x, functions = jnp.arange(4.0), (jax.local_devices, jax.process_count)
    count = jax.device_count()
    with own_devices(24), traced_afresh():
        assert (jax.device_count(), len(jax.local_devices()), jax.default_backend()) == (24, 24, "cpu")
        assert jnp.zeros(3).devices() <= set(jax.devices())
        assert jax.jit(lambda y: y + x)(jnp.ones(4)).tolist() == [1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="Unknown backend tpu"):
            jax.devices("tpu")
    assert (jax.device_count(), (jax.local_devices, jax.process_count)) == (count, functions)
    assert jnp.zeros(3).devices() <= set(jax.devices())
    assert (x + 1).tolist() == [1, 2, 3, 4]
