"""libtpu as a guest: quiet, beside other processes, and absent."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import hloscope
from hloscope.base.errors import SliceError, TargetError
from hloscope.compile import environment, step
from hloscope.compile.step import CapturedStderr, capture_stderr

COMMAND = [sys.executable, "-m", "hloscope", "analyze", "fixtures/programs/matmul.py:matmul"]


@pytest.mark.tpu_compiler
def test_two_processes_compile_at_the_same_time(root):
    pair = [subprocess.Popen(COMMAND, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert all(b"all-reduce" in out for out, _ in results)
    assert [err for _, err in results] == [b"", b""]


def test_without_libtpu_the_error_says_what_still_works(says, monkeypatch):
    import jax  # noqa: F401  # which sets TPU_LIBRARY_PATH where libtpu is installed

    monkeypatch.setattr(step, "find_spec", lambda _name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(SliceError) as caught:
        hloscope.analyze(lambda x: x, ("f32[8]",), slice="v5e:2x4", mesh={"X": 8})
    assert re.findall("v5e:2x4|libtpu", caught.value.what) == ["v5e:2x4", "libtpu"]
    assert re.findall(r"pip install \S+\"|HLO|cpu:N", caught.value.fix) == ['pip install "jax[tpu]"', "HLO", "cpu:N"]
    says(caught)


def test_what_c_code_writes_to_stderr_is_captured_and_given_back(capfd):
    with capture_stderr() as captured:
        os.write(2, b"noise\n")
    os.write(2, b"shown\n")
    assert captured.text == "noise\n"
    assert capfd.readouterr().err == "shown\n"


def test_the_partitioners_warnings_are_told_from_noise():
    captured = CapturedStderr(
        text="WARNING: Logging before InitGoogle() is written to STDERR\n"
        "I0000 00:00:1795 1 common_lib.cc:5] [SPMD] not a warning\n"
        + "W0000 00:00:1795 2 spmd_partitioner.cc:654] [SPMD] Involuntary full rematerialization. More.\n"
        * 2
    )
    assert captured.diagnostics() == ("[SPMD] Involuntary full rematerialization. More.",)


@pytest.mark.tpu_compiler
def test_a_spinner_shows_on_a_terminal_only(root):
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(COMMAND, cwd=root, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait() == 0
    assert b"compiling for v5e:4x2" in shown
    assert b"InitGoogle" not in shown


def test_without_jax_the_error_says_what_still_works(says, monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda _name: None)
    with pytest.raises(TargetError) as caught:
        environment.require_jax()
    assert "JAX" in caught.value.what
    assert re.findall(r"pip install \S+|HLO", caught.value.fix) == ['pip install "jax[tpu]"', "pip install jax", "HLO"]
    says(caught)


KERNEL_AND_CALLBACKS = """\
import jax, jax.numpy as jnp, hloscope
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)

def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def step(x):
    y = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    jax.debug.callback(print, y[0, 0])
    return y + jax.pure_callback(abs, jax.ShapeDtypeStruct((), jnp.float32), y[0, 0])

found = hloscope.analyze(step, ("f32[512,512]",), slice="v5e:1x1")
sums = hloscope.analyze(lambda x: x.sum(), ("f32[8@X]",), mesh={"X": 4})
print(len(sums.collectives), "libtpu" in open("/proc/self/maps").read())
"""


@pytest.mark.tpu_compiler
def test_the_users_process_never_loads_libtpu(tmp_path):
    (tmp_path / "script.py").write_text(KERNEL_AND_CALLBACKS)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("1 False\n", 0), done.stderr
