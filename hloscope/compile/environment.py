"""The checks before JAX starts: that it is installed, its environment, and that the mesh fits the slice."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from math import prod

from hloscope.base.errors import HloscopeError, MeshError, Option, TargetError, say
from hloscope.base.units import pluralize
from hloscope.compile.cache import read_compile_flags
from hloscope.compile.client import QUIET_LIBTPU
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.slices import Slice, find_fitting_slice, find_smallest_slice

DEFAULT_DEVICES = 8
"""The number of devices that a program sees if no option gives one."""


def require_jax() -> None:
    """Checks that JAX is installed; reading HLO text does not need it.

    Raises:
        TargetError: JAX is not installed.
    """
    if importlib.util.find_spec("jax") is None:
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
