"""Devices to trace on and devices to compile for: simulated CPU devices, TPU topologies, meshes over both."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.compiler.client import QUIET_LIBTPU
from hloscope.compiler.stderr_capture import captured_stderr
from hloscope.errors import DeviceCountError, MeshError, TargetError
from hloscope.hardware.slices import Slice, default_slice
from hloscope.program.notation import parse_axis_types
from hloscope.program.target import TargetFacts
from hloscope.program.user_settings import check_xla_flags, device_settings_ignored
from hloscope.units import plural

if TYPE_CHECKING:
    import jax


def require_jax() -> None:
    """Checks that JAX is installed, which reading HLO text does not need.

    Raises:
        TargetError: It is not.
    """
    from importlib.util import find_spec

    if find_spec("jax") is None:
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
    _prepare_libtpu()
    if attached:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(device_count)
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = flags.strip()
    check_xla_flags()


def _prepare_libtpu() -> None:
    """Sets what libtpu reads from the environment when it loads, where the user has not."""
    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET_LIBTPU.items()})


def simulated_devices(count: int) -> list[Any]:
    """At least `count` CPU devices of this process.

    Raises:
        DeviceCountError: JAX was initialised with fewer, which cannot be changed afterwards.
    """
    import jax

    from hloscope.compiler.jax_internals import backends_are_initialised

    if not backends_are_initialised():
        jax.config.update("jax_num_cpu_devices", max(count, jax.config.jax_num_cpu_devices))
        with captured_stderr() as told:  # where libtpu is installed and no TPU is, it says so at length
            jax.devices("cpu")
        if jax.default_backend() != "cpu":
            sys.stderr.write(told.text)
    devices: list[Any] = jax.devices("cpu")
    if len(devices) < count:
        raise DeviceCountError(count, len(devices))
    return devices


@contextmanager
def current_for_import(facts: TargetFacts) -> Iterator[None]:
    """Makes the command line's mesh current while user modules are imported, so that their eager code finds it."""
    if facts.slice == "attached":
        yield
        return
    import jax

    from hloscope.program.several_slices import simulated_hybrid_meshes

    with ExitStack() as stack:
        stack.enter_context(simulated_hybrid_meshes())
        stack.enter_context(device_settings_ignored())
        if isinstance(facts.mesh, Mapping):
            kinds = parse_axis_types(facts.axis_types or "auto", tuple(facts.mesh))
            stack.enter_context(jax.set_mesh(make_mesh(facts.mesh, kinds)))
        yield


def make_mesh(
    axis_sizes: Mapping[str, int], axis_types: Mapping[str, str], devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """A concrete mesh over simulated devices, with the axis types given and never JAX's own default.

    Args:
        axis_sizes: Size by axis name, major first.
        axis_types: `auto` or `explicit` by axis name.
        devices: Devices in mesh order; simulated CPU devices when None.
    """
    import jax

    manual = [name for name in axis_sizes if axis_types[name] == "manual"]
    if manual:
        raise MeshError(
            f"the axis {manual[0]} cannot be manual from outside",
            why="an axis becomes manual inside jax.shard_map only",
            fix="use auto or explicit; a shard_mapped function makes its axes manual by itself",
        )
    count = prod(axis_sizes.values())
    chosen = devices if devices is not None else simulated_devices(count)[:count]
    array = np.empty(count, dtype=object)
    array[:] = list(chosen)
    kinds = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}
    return jax.sharding.Mesh(
        array.reshape(tuple(axis_sizes.values())),
        tuple(axis_sizes),
        axis_types=tuple(kinds[axis_types[name]] for name in axis_sizes),
    )


def check_device_count(chosen: Slice, mesh: Mapping[str, int], *, at_least: bool = False) -> None:
    """Checks that a mesh has as many devices as the slice, or with `at_least` no more.

    Raises:
        MeshError: It does not fit.
    """
    count = prod(mesh.values())
    if chosen.is_attached:
        import jax

        available = len(jax.devices())
    else:
        available = chosen.device_count
    if available == count or (at_least and count < available):
        return
    other = "" if chosen.chip is None else f", or --slice {default_slice(count, chosen.chip.name).name}"
    raise MeshError(
        f"the mesh has {plural(count, 'device')} and the slice {chosen.name} has {available}",
        why=f"{' x '.join(f'{axis}={size}' for axis, size in mesh.items())} = {count}",
        fix=f"use a mesh of {plural(available, 'device')}{other}",
    )
