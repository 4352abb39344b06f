"""The checks before JAX starts: that it is installed, its environment, and that the mesh fits the slice."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from math import prod

from hloscope.compiler.cache import flags_of_compiles
from hloscope.compiler.client import QUIET_LIBTPU
from hloscope.errors import HloscopeError, MeshError, TargetError
from hloscope.messages import Option, say
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.slices import Slice, find_fitting_slice, find_smallest_slice
from hloscope.units import plural

DEFAULT_DEVICES = 8
"""What a program sees that nothing was said of."""


def require_jax() -> None:
    """Checks that JAX is installed, which reading HLO text does not need.

    Raises:
        TargetError: It is not.
    """
    if importlib.util.find_spec("jax") is None:
        raise TargetError(
            "compiling a function needs JAX, which is not installed here",
            fix='pip install "jax[tpu]" on x86-64 Linux, pip install jax elsewhere; HLO files can be read without it',
        )


def prepare_environment(device_count: int, *, attached: bool) -> None:
    """Sets what JAX and libtpu read from the environment when they load; call it before JAX is imported.

    Args:
        device_count: Simulated CPU devices that user code will see.
        attached: Leave JAX its real devices.

    Raises:
        HloscopeError: XLA rejects the environment's XLA_FLAGS, or nothing has so many devices.
    """
    for name, value in QUIET_LIBTPU.items():
        os.environ.setdefault(name, value)
    if attached:
        return
    check_can_be_simulated(device_count)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(device_count)
    os.environ["XLA_FLAGS"] = flags_of_compiles()
    _check_xla_flags()


def most_devices() -> int:
    """How many devices the largest slice that is known has."""
    return max(chip.max_slice_chips * chip.devices_per_chip for chip in CHIPS)


def check_can_be_simulated(device_count: int) -> None:
    """Checks that devices can be simulated before any is made: far too many take all time and memory that there is.

    Raises:
        MeshError: No slice that is known has as many.
    """
    most = most_devices()
    if device_count > most:
        raise MeshError(
            f"{device_count:,} devices are too many",
            why=f"the largest known slice has {most:,}, and no more can be simulated",
            fix="use a smaller mesh or slice: the collectives over an axis are the same when it is shorter",
        )


def check_mesh_size(chosen: Slice | None, mesh: Mapping[str, int]) -> None:
    """Checks, before any device is made, that a mesh has as many devices as its slice, or that some slice has as many.

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

    It may have fewer where no slice of the generation has as few, and none that holds it is smaller.

    Raises:
        MeshError: It does not fit.
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
        f"the mesh has {plural(count, 'device')}, but the slice {chosen.name} has {available}",
        why=f"{' x '.join(f'{axis}={size}' for axis, size in mesh.items())} = {count}" if len(mesh) > 1 else None,
        fix=say(
            f"use a mesh of {plural(available, 'device')}",
            *(() if other is None else (", or ", Option("slice", other.name))),
        ),
    )


def _check_xla_flags() -> None:
    """Tries the environment's XLA_FLAGS in a process of its own: XLA ends the process over a flag it does not know.

    Raises:
        HloscopeError: XLA refuses them.
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
