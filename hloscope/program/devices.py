"""Devices to trace on and devices to compile for: simulated CPU devices, TPU topologies, meshes over both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hloscope.compiler.cache import flags_of_compiles
from hloscope.compiler.client import QUIET_LIBTPU
from hloscope.errors import DeviceCountError, HloscopeError, MeshError, TargetError
from hloscope.hardware.slices import Slice, parse_slice, slice_that_fits
from hloscope.program.notation import parse_axis_types
from hloscope.program.target import TargetFacts, attached_facts
from hloscope.units import plural

if TYPE_CHECKING:
    import jax

T = TypeVar("T")

DEFAULT_DEVICES = 8
"""What a program sees that nothing was said of."""


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
    os.environ["XLA_FLAGS"] = flags_of_compiles()
    _check_xla_flags()


def _prepare_libtpu() -> None:
    """Sets what libtpu reads from the environment when it loads, where the user has not."""
    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET_LIBTPU.items()})


def simulated_devices(count: int) -> list[Any]:
    """At least `count` CPU devices: hloscope's own where `on_enough_devices` made them, else those of this process.

    Raises:
        DeviceCountError: There are fewer.
    """
    import jax

    devices: list[Any] = jax.devices("cpu")
    if len(devices) < count:
        raise DeviceCountError(count, len(devices))
    return devices


def simulated_device_count() -> int | None:
    """How many devices user code sees that stand in for those of a slice; None where it sees real ones, or none yet."""
    import jax

    from hloscope.compiler.jax_internals import backends_are_initialised
    from hloscope.program.own_backend import own_device_count

    own = own_device_count()
    if own is not None or not backends_are_initialised():
        return own
    return None if jax.default_backend() != "cpu" else len(jax.devices())


class _AttachedDevicesError(Exception):
    """A program says of itself that it runs on attached devices, which only its import told."""


def check_attached(facts: TargetFacts) -> None:
    """Lets `on_enough_devices` begin anew where a program is for attached devices, and sees simulated ones.

    Raises:
        AttachedDevicesError: It is so.
    """
    from hloscope.program.own_backend import own_device_count

    if facts.slice == "attached" and own_device_count() is not None:
        raise _AttachedDevicesError


def on_enough_devices(targets: Sequence[Callable[..., Any] | str], facts: TargetFacts, work: Callable[[], T]) -> T:
    """Does something with programs while they see as many simulated devices as they need.

    Those that JAX was started with are used where they do, so that a mesh over them is the user's own. Elsewhere there
    are devices beside them, and JAX stays as it is. A program that turns out to need another number gets them.

    Args:
        targets: The programs.
        facts: What was said of all of them.
        work: Imports, traces and compiles them.

    Raises:
        MeshError: No number of devices suits the program.
    """
    from hloscope.compiler.jax_support import check_supported
    from hloscope.program.own_backend import own_devices

    check_supported()
    if facts.slice == "attached":
        return _refusing_other_counts(work)
    count = _devices_to_begin_with(targets, facts)
    tried: list[int] = []
    while True:
        try:
            with nullcontext() if count is None else own_devices(count):
                return work()
        except _AttachedDevicesError:
            return _refusing_other_counts(work)
        except DeviceCountError as error:
            tried.append(count or error.available)
            if error.needed in tried:
                raise _no_count_fits(tried[-1], error) from error
            count = error.needed


@contextmanager
def devices_to_run_on(count: int, where: str) -> Iterator[None]:
    """Lets this thread run programs on the devices that JAX has, or where these are too few on simulated ones."""
    import jax

    from hloscope.compiler.jax_internals import backends_are_initialised
    from hloscope.program.own_backend import own_devices

    enough = where in ("tpu", "gpu") or (backends_are_initialised() and len(jax.devices()) >= count)
    with nullcontext() if enough else own_devices(count):
        yield


def _refusing_other_counts(work: Callable[[], T]) -> T:
    try:
        return work()
    except DeviceCountError as error:
        raise MeshError(
            f"the program needs {plural(error.needed, 'device')}, and {error.available} are attached",
            fix="name a slice that it is to run on, such as v5e:2x4, or cpu:8 for simulated devices",
        ) from error


def _no_count_fits(seen: int, error: DeviceCountError) -> MeshError:
    fewer, more = sorted((seen, error.needed))
    return MeshError(
        f"the program needs {fewer} devices in one place and {more} in another",
        why=f"where it sees {more} devices, it needs {fewer}, and where it sees {fewer}, it needs {more}",
        fix="ask for a mesh of as many devices as the program's own mesh has, or for none",
    )


def _devices_to_begin_with(targets: Sequence[Callable[..., Any] | str], facts: TargetFacts) -> int | None:
    """How many devices of hloscope's own to show to programs; None for the process's."""
    import jax

    from hloscope.compiler.jax_internals import backends_are_initialised

    facts = next((facts.over(attached_facts(one)) for one in targets if not isinstance(one, str)), facts)
    if isinstance(facts.mesh, jax.sharding.Mesh):
        return None
    wanted = _devices_said(facts)
    if backends_are_initialised():
        enough = jax.default_backend() == "cpu" and len(jax.devices()) >= (wanted or 1)
    else:
        enough = jax.config.jax_platforms == "cpu" and jax.config.jax_num_cpu_devices >= (wanted or 1)
    return None if enough else wanted or DEFAULT_DEVICES


def _devices_said(facts: TargetFacts) -> int | None:
    if facts.mesh is not None:
        return int(prod(facts.mesh.values()) if isinstance(facts.mesh, Mapping) else facts.mesh.size)
    return parse_slice(facts.slice).device_count if facts.slice else None


def seen_by_modules(facts: TargetFacts) -> Hashable:
    """What decides what a module of the user's does when it is imported, beside its own text."""
    import jax

    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return repr(
        (
            simulated_device_count(),
            facts.slice == "attached",
            facts.mesh,
            facts.axis_types,
            environment,
            jax.config.values,
        )
    )


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
        stack.enter_context(_device_settings_ignored())
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


_OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")


@contextmanager
def _device_settings_ignored() -> Iterator[None]:
    """Lets a module say `jax.config.update("jax_num_cpu_devices", 8)`, which would fail once JAX has its devices."""
    import jax

    from hloscope.compiler.jax_internals import replaced_in_this_thread

    original = jax.config.update

    def update(name: str, value: Any) -> None:
        if name not in _OURS:
            original(name, value)

    with replaced_in_this_thread(jax.config, "update", update):
        yield


def compiling_settings() -> dict[str, str]:
    """What decides of this process how a program is traced and compiled: JAX's settings, XLA's and libtpu's."""
    import jax

    chosen = {name: repr(value) for name, value in jax.config.values.items() if name not in _OURS}
    return chosen | {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}


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
