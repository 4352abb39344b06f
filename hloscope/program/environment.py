"""What has to be right before JAX starts: that it is there, its environment, and that a mesh fits its slice."""

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
from hloscope.hardware.slices import Slice, slice_that_fits
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
            "compiling a function needs JAX, and it is not installed here",
            fix='pip install "jax[tpu]" on x86-64 Linux, pip install jax elsewhere; HLO files can be read without it',
        )


def prepare_environment(device_count: int, *, attached: bool) -> None:
    """Sets what JAX and libtpu read from the environment when they load; call it before JAX is imported.

    Args:
        device_count: Simulated CPU devices that user code will see.
        attached: Leave JAX its real devices.

    Raises:
        HloscopeError: XLA refuses the environment's XLA_FLAGS.
    """
    for name, value in QUIET_LIBTPU.items():
        os.environ.setdefault(name, value)
    if attached:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(device_count)
    os.environ["XLA_FLAGS"] = flags_of_compiles()
    _check_xla_flags()


def check_device_count(chosen: Slice, mesh: Mapping[str, int], *, at_least: bool = False) -> None:
    """Checks that a mesh has as many devices as the slice, or with `at_least` no more.

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
    if available == count or (at_least and count < available) or chosen.can_be_used_in_part_by(count):
        return
    other = None if chosen.chip is None else slice_that_fits(count, chosen.chip.name)
    raise MeshError(
        f"the mesh has {plural(count, 'device')} and the slice {chosen.name} has {available}",
        why=f"{' x '.join(f'{axis}={size}' for axis, size in mesh.items())} = {count}" if len(mesh) > 1 else None,
        fix=f"use a mesh of {plural(available, 'device')}" + ("" if other is None else f", or --slice {other.name}"),
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
            "XLA refuses the environment's XLA_FLAGS",
            where=f"XLA_FLAGS={flags}",
            why="\n".join(said)[:600],
            fix="correct or unset XLA_FLAGS; options for the TPU compiler go to --compiler-option",
        )
