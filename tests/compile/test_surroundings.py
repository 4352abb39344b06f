"""Calls from a script of the user's: JAX, modules and settings of the process are his, and stay so."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import hloscope
from hloscope.compile.devices import bypass_trace_caches, simulate_devices
from hloscope.compile.importing import IsolatedModules, isolate_call, read_process_state, restore_process_state

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
    world = IsolatedModules((str(tmp_path),))
    first = world.import_module("flagged", None)
    assert world.import_module("flagged", None) is first
    (tmp_path / "flagged.py").write_text(flags + "OTHER = 2\n")
    again = world.import_module("flagged", None)
    assert (first.VALUE, again.OTHER, hasattr(again, "VALUE")) == (1, 2, False)
    assert "flagged" not in sys.modules
    assert str(tmp_path) not in sys.path


def test_a_module_of_the_users_that_takes_a_librarys_name_is_told_from_it(tmp_path, monkeypatch):
    library, own = ModuleType("hloscope_of_both"), ModuleType("hloscope_of_both")
    library.__file__, own.__file__ = np.__file__, str(tmp_path / "hloscope_of_both.py")
    (tmp_path / "hloscope_of_both.py").write_text("VALUE = 1\n")
    (tmp_path / "hloscope_of_none.py").write_text("")
    world = IsolatedModules((str(tmp_path),))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    world.import_module("hloscope_of_none", None)  # sees the library
    monkeypatch.setitem(sys.modules, library.__name__, own)
    assert world.import_module(own.__name__, None).VALUE == 1
    assert sys.modules[own.__name__] is own


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
    assert re.search(r"registering\.py.*\(--slice, --mesh\)", done.stderr, re.S)
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
    with simulate_devices(24), bypass_trace_caches():
        assert (jax.device_count(), len(jax.local_devices()), jax.default_backend()) == (24, 24, "cpu")
        assert jnp.zeros(3).devices() <= set(jax.devices())
        assert jax.jit(lambda y: y + x)(jnp.ones(4)).tolist() == [1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="Unknown backend tpu"):
            jax.devices("tpu")
    assert (jax.device_count(), (jax.local_devices, jax.process_count)) == (count, functions)
    assert jnp.zeros(3).devices() <= set(jax.devices())
    assert (x + 1).tolist() == [1, 2, 3, 4]


def meddling(x):
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(3600)
    warnings.simplefilter("error")
    warnings.showwarning = print
    os.umask(0o777)
    sys.argv[:] = ["other"]
    sys.argv = ["another"]
    sys.excepthook = sys.displayhook = print
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    random.seed(1)
    np.random.seed(1)
    return x * 2


def state():
    return {
        "handlers": [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)],
        "alarm": signal.getitimer(signal.ITIMER_REAL),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "umask": re.search(r"Umask:\s*(\d+)", Path("/proc/self/status").read_text())[1],
        "arguments": (id(sys.argv), list(sys.argv)),
        "hooks": (sys.excepthook, sys.displayhook),
        "recursion": sys.getrecursionlimit(),
        "random numbers": (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]),
    }


def test_what_traced_code_does_to_the_interpreter_is_undone():
    before, filters = state(), warnings.filters
    hloscope.analyze(meddling, ("f32[8]",), slice="cpu:1")
    after = state()
    assert {name for name, value in before.items() if after[name] != value} == set()
    assert warnings.filters is filters


def test_random_numbers_of_another_threads_call_are_left_alone():
    """They are the main thread's, which goes on with them meanwhile."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(read_process_state()))
    thread.start()
    thread.join()
    assert (seen[0]["random numbers"], seen[0]["handlers"]) == ({}, {})


def test_a_block_of_the_users_own_keeps_its_random_numbers():
    with isolate_call(of_a_block=True):
        random.seed(5)
    assert random.getstate() == random.Random(5).getstate()


def test_a_limit_that_a_module_sets_holds_when_it_is_used_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.py").write_text(
        "import sys\nsys.setrecursionlimit(4321)\n\ndef step(x):\n    return x * sys.getrecursionlimit()\n"
    )
    before, saved = sys.getrecursionlimit(), tmp_path / "deep.hlo"
    for _ in range(2):
        hloscope.analyze("deep.py:step", ("f32[8]",), slice="cpu:1", save_hlo=saved)
        assert "constant(4321)" in saved.read_text()
    assert sys.getrecursionlimit() == before


def lowered_modules():
    gc.collect()
    return sum(type(one).__name__ == "JaxIrContext" for one in gc.get_objects())


def test_nothing_is_kept_of_a_plain_function_that_was_analyzed():
    """JAX keeps what it lowered, of a megabyte and more, for as long as the function lives that it was made from."""

    def step(x, w, *, scale=2.0):
        return (x @ w).sum() * scale

    def analyzed():
        return hloscope.analyze(step, ("f32[64@X,128]", "f32[128,64]"), mesh={"X": 4}, slice="cpu:4")

    found, before = analyzed(), lowered_modules()
    for _ in range(3):
        assert analyzed() == found
    assert found.target.endswith("step")
    assert found.arguments[0].name == "x"
    assert lowered_modules() <= before


def test_looking_at_the_surroundings_takes_no_time():
    rounds = 20
    begun = time.perf_counter()
    for _ in range(rounds):
        restore_process_state(read_process_state())
    assert (time.perf_counter() - begun) / rounds < 0.02  # it takes 2 ms where nothing else runs


DRAWING = """
import random
import jax  # which draws numbers of NumPy's when it is imported
import numpy as np
import hloscope

random.seed(1)
before = random.getstate(), np.random.get_state()[1].tolist()
found = hloscope.analyze(lambda x: x * 2, ("f32[8]",), slice="cpu:1")
table = hloscope.shardings(lambda x: x * 2, ("f32[8]",))
print(found, table)
print((random.getstate(), np.random.get_state()[1].tolist()) == before)
"""


def test_the_first_call_of_a_process_draws_no_random_numbers_of_the_users(tmp_path, root):
    command = [sys.executable, "-c", DRAWING]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nTrue\n"), done.stderr
