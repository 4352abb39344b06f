"""Checks and settings before JAX starts: installation, environment and accelerators, and a mesh against its slice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path

from hloscope.base.errors import HloscopeError, MeshError, Option, TargetError, say
from hloscope.base.units import pluralize
from hloscope.compile.cache import read_compile_flags
from hloscope.compile.client import QUIET_LIBTPU
from hloscope.compile.pool import hold_interrupts
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.slices import Slice, find_fitting_slice, find_smallest_slice

DEFAULT_DEVICES = 8
"""The number of devices that a program sees if no option gives one."""

_TPU_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")
_GPU_PLUGINS = {
    "jax_cuda12_plugin": "cuda",
    "jax_cuda13_plugin": "cuda",
    "jax_rocm60_plugin": "rocm",
    "jax_rocm7_plugin": "rocm",
}
_GPU_DEVICES = ("nvidia[0-9]*", "kfd")


def require_jax() -> None:
    """Checks that JAX is installed; reading HLO text does not need it.

    Raises:
        TargetError: JAX is not installed.
    """
    if find_spec("jax") is None:
        raise TargetError(
            "compiling a function needs JAX, which is not installed here",
            fix='pip install "jax[tpu]" on x86-64 Linux, pip install jax elsewhere; HLO files can be read without it',
        )


def prepare_environment(device_count: int, *, attached: bool) -> None:
    """Sets the environment variables that JAX and libtpu read when they load; must run before JAX is imported.

    Args:
        device_count: Simulated CPU devices that user code will see.
        attached: Leave JAX its real devices.

    Raises:
        HloscopeError: XLA rejects the environment's XLA_FLAGS, or no slice has this many devices.
    """
    for name, value in QUIET_LIBTPU.items():
        os.environ.setdefault(name, value)
    if attached:
        return
    check_can_be_simulated(device_count)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(device_count)
    os.environ["XLA_FLAGS"] = read_compile_flags()
    _check_xla_flags()


def import_jax() -> None:
    """Imports JAX, and raises Ctrl-C only afterwards: in the middle of its native libraries it ends the process.

    Raises:
        HloscopeError: JAX rejects a variable of the environment.
        KeyboardInterrupt: Ctrl-C was pressed meanwhile.
    """
    with hold_interrupts():
        try:
            import_module("jax")
        except ValueError as error:
            raise HloscopeError(
                "JAX rejects the environment", why=str(error), fix="fix or unset the variable of JAX that it names"
            ) from error


def find_largest_device_count() -> int:
    """The number of devices of the largest known slice."""
    return max(chip.max_slice_chips * chip.devices_per_chip for chip in CHIPS)


def check_can_be_simulated(device_count: int) -> None:
    """Checks the number of simulated devices before any is created: far too many use up all time and memory.

    Raises:
        MeshError: No known slice has as many.
    """
    most = find_largest_device_count()
    if device_count > most:
        raise MeshError(
            f"{device_count:,} devices are too many",
            why=f"the largest known slice has {most:,}, and no more can be simulated",
            fix="use a smaller mesh or slice: the collectives over an axis are the same when it is shorter",
        )


def check_mesh_size(chosen: Slice | None, mesh: Mapping[str, int]) -> None:
    """Checks, before any device is created, that a mesh is as large as its slice, or that some slice is as large.

    Args:
        chosen: The slice that the user named; None for the smallest that fits.
        mesh: Size by axis name.

    Raises:
        MeshError: It has another number of devices than its slice.
        SliceError: No single slice is that large.
    """
    if chosen is None:
        find_smallest_slice(prod(mesh.values()))
    else:
        check_device_count(chosen, mesh)


def check_device_count(chosen: Slice, mesh: Mapping[str, int]) -> None:
    """Checks that a mesh has as many devices as the slice.

    It may have fewer if no slice of the generation is that small and this is the smallest that holds the mesh.

    Raises:
        MeshError: The mesh does not fit.
    """
    count = prod(mesh.values())
    if chosen.is_attached:
        import jax

        available = len(jax.devices())
    else:
        available = chosen.device_count
    if available == count or chosen.can_be_used_in_part_by(count):
        return
    other = None if chosen.chip is None else find_fitting_slice(count, chosen.chip.name)
    raise MeshError(
        f"the mesh has {pluralize(count, 'device')}, but the slice {chosen.name} has {available}",
        why=f"{' x '.join(f'{axis}={size}' for axis, size in mesh.items())} = {count}" if len(mesh) > 1 else None,
        fix=say(
            f"use a mesh of {pluralize(available, 'device')}",
            *(() if other is None else (", or ", Option("slice", other.name))),
        ),
    )


def find_attached_platform(devices: Path = Path("/dev")) -> str | None:
    """`tpu` or `gpu` if the system shows one and JAX has the parts to use it; otherwise None.

    Args:
        devices: The folder of device files.

    Source: `jax/_src/cloud_tpu_init.py` and `hardware_utils.py`, which look for the same files.
    """

    def any_of(patterns: tuple[str, ...]) -> bool:
        return any(next(devices.glob(pattern), None) is not None for pattern in patterns)

    if any_of(_TPU_DEVICES) and find_spec("libtpu") is not None:
        return "tpu"
    if any_of(_GPU_DEVICES) and any(find_spec(name) is not None for name in _GPU_PLUGINS):
        return "gpu"
    return None


def find_jax_platform(platform: str) -> str:
    """The value of `JAX_PLATFORMS` for `cpu`, `tpu` or `gpu`: JAX fails if the value has no plugin."""
    if platform != "gpu":
        return platform
    return next((backend for name, backend in _GPU_PLUGINS.items() if find_spec(name) is not None), "cuda")


def _check_xla_flags() -> None:
    """Tries the environment's XLA_FLAGS in a separate process: XLA ends the process over an unknown flag.

    Raises:
        HloscopeError: XLA rejects them.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags:
        return
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        said = [line for line in tried.stderr.splitlines() if "flag" in line.lower()] or tried.stderr.splitlines()[-3:]
        raise HloscopeError(
            "XLA rejects the environment's XLA_FLAGS",
            where=f"XLA_FLAGS={flags}",
            why="\n".join(said)[:600],
            fix=say("fix or unset XLA_FLAGS; pass options of the TPU compiler with ", Option("compiler-option")),
        )
