"""The devices that programs see: those of the process, or additional CPU devices of hloscope, and meshes over them.

JAX fixes the number of its CPU devices when it is first used. A CPU client of another size costs milliseconds, and in
the thread that analyses a program JAX is made to see that one: the user loses no array and no compile. A context
that is part of JAX's cache keys separates the traces and compiles of the two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np

from hloscope.base.errors import DeviceCountError, HloscopeError, MeshError, SliceError
from hloscope.base.units import pluralize
from hloscope.compile.environment import DEFAULT_DEVICES, check_can_be_simulated, check_mesh_size
from hloscope.compile.jax_private import backends_are_initialised, is_tracing, replace_in_this_thread, separate_caches
from hloscope.compile.jax_support import check_supported
from hloscope.compile.multislice import simulate_hybrid_meshes
from hloscope.compile.notation import parse_axis_types
from hloscope.compile.simulated_slice import change_pose, count_posed_processes, find_posed_slice, pose_devices_as
from hloscope.compile.target import TargetFacts, find_attached_facts
from hloscope.tpu.slices import Slice, SliceDevice, find_smallest_slice, list_devices, parse_slice

T = TypeVar("T")


class _VisibleClient(threading.local):
    """The client that a thread sees in place of the process's backend, or None; the class's is for other threads."""

    client: Any = None


_visible = _VisibleClient()


@contextmanager
def simulate_devices(count: int, *, in_all: bool = False) -> Iterator[None]:
    """Shows `count` simulated CPU devices and no others to this thread, or to all, however JAX was started."""
    check_can_be_simulated(count)
    client, before = _make_cpu_client(count), _visible.client
    with ExitStack() as stack:
        for holder, name, replacement in _list_replacements():
            stack.enter_context(replace_in_this_thread(holder, name, replacement, in_all=in_all))
        stack.enter_context(separate_caches(count))
        if jax.config.jax_default_device is not None:
            stack.enter_context(jax.default_device(None))
        _visible.client = client
        stack.callback(setattr, _visible, "client", before)
        if in_all:
            _VisibleClient.client = client
            stack.callback(setattr, _VisibleClient, "client", None)
        yield


def bypass_trace_caches() -> AbstractContextManager[None]:
    """Bypasses JAX's caches of traces, which do not notice that a global was changed."""
    return separate_caches(None)


def count_shown_devices() -> int | None:
    """The number of devices that `simulate_devices` shows to this thread; None outside of it."""
    return None if _visible.client is None else int(_visible.client.device_count())


@cache
def _make_cpu_client(count: int) -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(asynchronous=True, num_devices=count)


def _list_replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """The replacements of JAX's functions that list devices; those without a cache go through `get_backend`."""
    from jax._src import xla_bridge

    return [
        (xla_bridge, "get_backend", _get_backend),
        (xla_bridge, "backends", lambda: {"cpu": _visible.client}),
        (xla_bridge, "backends_are_initialized", lambda: True),
        *((home, "local_devices", _list_local_devices) for home in (xla_bridge, jax)),
        *((home, "process_count", lambda _backend=None: 1) for home in (xla_bridge, jax)),
    ]


def _get_backend(platform: Any = None) -> Any:
    if platform is None or platform == "cpu":
        return _visible.client
    if not isinstance(platform, str):
        return platform
    raise RuntimeError(f"Unknown backend {platform}. Available backends are ['cpu']")


def _list_local_devices(process_index: int | None = None, backend: Any = None, host_id: int | None = None) -> list[Any]:
    if (process_index or host_id or 0) != 0:
        raise ValueError(f"Unknown process_index {process_index or host_id}")
    return list(_get_backend(backend).local_devices())


def count_simulated_devices() -> int | None:
    """The number of simulated devices that user code sees, or will see when it asks; None if it sees real ones."""
    own = count_shown_devices()
    if own is not None:
        return own
    if not backends_are_initialised():
        count = jax.config.jax_num_cpu_devices if jax.config.jax_platforms == "cpu" else 0
        return count if count > 0 else None  # -1 leaves it to XLA's flags
    return None if jax.default_backend() != "cpu" else len(jax.devices())


class _OtherDevicesNeededError(Exception):
    """A program's own facts, known only after its import, ask for other devices than it was shown."""

    def __init__(self, facts: TargetFacts) -> None:
        super().__init__(facts.slice)
        self.facts = facts


def check_devices_seen(facts: TargetFacts) -> None:
    """Makes `run_on_enough_devices` start again if a program was shown other devices than those it is for.

    Raises:
        OtherDevicesNeededError: It was.
    """
    if facts.slice == "attached":
        if count_shown_devices() is not None:
            raise _OtherDevicesNeededError(facts)
        return
    shown, seen, processes = _find_slice_to_show(facts), find_posed_slice(), facts.processes or 1
    if shown is None or seen is None:
        is_other = shown is not seen
    else:
        is_named = facts.slice is not None
        is_other = processes != count_posed_processes() or (is_named and shown.name != seen.name)
    if is_other and (shown is None or not change_pose(shown, processes)):
        raise _OtherDevicesNeededError(facts)


def show_all_of_slice(facts: TargetFacts) -> AbstractContextManager[None]:
    """Shows all devices of the slice that an imported target names itself, which a factory may count."""
    shown, seen = None if facts.slice in (None, "attached") else _find_slice_to_show(facts), count_simulated_devices()
    if facts.mesh is not None or shown is None or seen in (None, shown.device_count):
        return nullcontext()
    return _show_devices(facts, shown.device_count, by_name=True)


def _find_slice_to_show(facts: TargetFacts) -> Slice | None:
    """The slice that the simulated devices pose as for a program; None if they report as CPU devices."""
    if facts.platform == "cpu":
        return None
    if facts.slice is not None:
        chosen = parse_slice(facts.slice)
        return None if chosen.chip is None else chosen
    count = count_simulated_devices()
    if count is None:
        return None
    try:
        return find_smallest_slice(count)
    except SliceError:
        return None


@contextmanager
def _show_devices(facts: TargetFacts, count: int | None, by_name: bool, *, in_all: bool = False) -> Iterator[None]:
    """Shows this thread the devices that a program is compiled for: simulated devices that pose as those of its slice.

    If the function is not given by name, its module was imported before, and may have made its meshes then.
    """
    with ExitStack() as stack:
        if count is not None:
            stack.enter_context(simulate_devices(count, in_all=in_all))
        chosen = None if facts.slice == "attached" else _find_slice_to_show(facts)
        if chosen is not None:
            client = jax.devices("cpu")[0].client
            stack.enter_context(
                pose_devices_as(chosen, client, facts.processes or 1, sees_meshes=by_name, in_all=in_all)
            )
        yield


@contextmanager
def show_slice_to_script(facts: TargetFacts, chosen: Slice) -> Iterator[Mapping[Any, SliceDevice]]:
    """Shows a slice to a script that runs unchanged, and yields the slice's device for each simulated device.

    Args:
        facts: The options given for the script, including the slice.
        chosen: The slice.
    """
    count = _choose_device_count(facts, by_name=True)
    with _show_devices(facts, count, by_name=True, in_all=True), simulate_hybrid_meshes(), _ignore_device_settings():
        client = jax.devices("cpu")[0].client
        yield dict(zip(client.devices(), list_devices(chosen), strict=True))


def run_on_enough_devices(targets: Sequence[Callable[..., Any] | str], facts: TargetFacts, work: Callable[[], T]) -> T:
    """Runs a function while programs see as many simulated devices as they need.

    JAX's own devices are used if they suffice, so that a mesh over them is the user's own. Otherwise hloscope
    adds devices of its own and leaves JAX's alone. A program that turns out to need another number gets that number.

    Args:
        targets: The programs.
        facts: The options given for all of them.
        work: Imports, traces and compiles them.

    Raises:
        HloscopeError: JAX is tracing the function that calls this.
        MeshError: No number of devices suits the program, or its mesh is not as large as its slice.
        SliceError: No single slice is as large as its mesh.
    """
    check_supported()
    check_not_tracing()
    facts = next((facts.over(find_attached_facts(target)) for target in targets if not isinstance(target, str)), facts)
    _check_mesh_size(facts)
    by_name = all(isinstance(target, str) for target in targets)
    count = _choose_device_count(facts, by_name)
    tried: list[int] = []
    while True:
        try:
            with _show_devices(facts, count, by_name):
                return work()
        except _OtherDevicesNeededError as error:
            facts = error.facts
            count = _choose_device_count(facts, by_name)
        except DeviceCountError as error:
            if facts.slice == "attached":
                raise MeshError(
                    f"the program needs {pluralize(error.needed, 'device')}, but {error.available} are attached",
                    fix="name the slice to compile for, such as v5e:2x4, or cpu:8 for simulated devices",
                ) from error
            tried.append(count or error.available)
            if error.needed in tried:
                raise _make_no_count_fits_error(tried[-1], error) from error
            count = error.needed


def provide_devices(count: int, where: str) -> AbstractContextManager[None]:
    """Lets this thread run programs on JAX's own devices, or on simulated ones if these are too few."""
    enough = where in ("tpu", "gpu") or (backends_are_initialised() and len(jax.devices()) >= count)
    return nullcontext() if enough else simulate_devices(count)


def check_not_tracing() -> None:
    """Checks that JAX is not tracing a function of the user's, because that trace could not continue afterwards.

    Raises:
        HloscopeError: JAX is tracing one.
    """
    if is_tracing():
        raise HloscopeError(
            "hloscope was called inside a function that JAX is tracing",
            why="inside jax.jit, jax.grad, jax.vmap or jax.shard_map there is no complete program to compile yet",
            fix="call it outside of tracing, and pass it the function itself",
        )


def _check_mesh_size(facts: TargetFacts) -> None:
    """Checks the size of a given mesh before any of its devices is created."""
    if facts.mesh is not None and not isinstance(facts.mesh, jax.sharding.Mesh) and facts.slice != "attached":
        sizes = facts.mesh if isinstance(facts.mesh, Mapping) else find_axis_sizes(facts.mesh)
        check_mesh_size(parse_slice(facts.slice) if facts.slice else None, sizes)


def _make_no_count_fits_error(seen: int, error: DeviceCountError) -> MeshError:
    fewer, more = sorted((seen, error.needed))
    return MeshError(
        f"the program needs {fewer} devices in one place and {more} in another",
        why=f"where it sees {more} devices, it needs {fewer}, and where it sees {fewer}, it needs {more}",
        fix="use a mesh with as many devices as the program's own mesh, or leave the mesh out",
    )


def _choose_device_count(facts: TargetFacts, by_name: bool) -> int | None:
    """The number of hloscope's own devices to show to programs at first; None for the process's devices.

    Functions may hold meshes over the process's devices, and see them if they suffice; modules that are still to be
    imported may count devices, and see as many as the slice has.
    """
    if facts.slice == "attached" or isinstance(facts.mesh, jax.sharding.Mesh):
        return None
    if facts.mesh is not None:
        wanted = int(prod(facts.mesh.values()) if isinstance(facts.mesh, Mapping) else facts.mesh.size)
    else:
        wanted = parse_slice(facts.slice).device_count if facts.slice else 0
    if backends_are_initialised():
        available = len(jax.devices()) if jax.default_backend() == "cpu" else 0
    else:
        available = jax.config.jax_num_cpu_devices if jax.config.jax_platforms == "cpu" else 0
    enough = available == wanted if by_name and wanted else available >= max(wanted, 1)
    return None if enough else wanted or DEFAULT_DEVICES


def find_import_conditions(facts: TargetFacts) -> Hashable:
    """The conditions that determine, besides its own text, what a user's module does when it is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    posed = find_posed_slice()
    return repr(
        (
            count_simulated_devices(),
            facts.slice == "attached",
            None if posed is None else posed.name,
            count_posed_processes(),
            facts.mesh,
            facts.axis_types,
            environment,
            jax.config.values,
        )
    )


@contextmanager
def set_mesh_for_import(facts: TargetFacts) -> Iterator[None]:
    """Sets the command line's mesh while user modules are imported, so that their eager code finds it."""
    if facts.slice == "attached":
        yield
        return
    with simulate_hybrid_meshes(), _ignore_device_settings():
        mesh = make_requested_mesh(facts) if isinstance(facts.mesh, Mapping) else None
        with nullcontext() if mesh is None else jax.set_mesh(mesh):
            yield


def find_axis_sizes(mesh: Any) -> dict[str, int]:
    """The size of each axis by name, major first."""
    return dict(zip(map(str, mesh.axis_names), mesh.axis_sizes, strict=True))


def make_requested_mesh(facts: TargetFacts, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh that the options give by names and sizes; `devices` as for `make_mesh`."""
    return make_mesh(facts.mesh, parse_axis_types(facts.axis_types or "auto", tuple(facts.mesh)), devices)


def make_mesh(
    axis_sizes: Mapping[str, int], axis_types: Mapping[str, str], devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Makes a concrete mesh over simulated devices, with the given axis types and never JAX's own default.

    Args:
        axis_sizes: Size by axis name, major first.
        axis_types: `auto` or `explicit` by axis name.
        devices: Devices in mesh order; simulated CPU devices when None.

    Raises:
        DeviceCountError: The mesh has more devices than there are.
        MeshError: An axis is manual.
    """
    manual = [name for name in axis_sizes if axis_types[name] == "manual"]
    if manual:
        raise MeshError(
            f"the axis {manual[0]} cannot be made manual from outside",
            why="an axis is manual only inside jax.shard_map",
            fix="use auto or explicit; a shard_mapped function makes its axes manual by itself",
        )
    count = prod(axis_sizes.values())
    chosen = jax.devices("cpu") if devices is None else devices
    if len(chosen) < count:
        raise DeviceCountError(count, len(chosen))
    kinds = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}
    return jax.sharding.Mesh(
        _order_devices(chosen[:count], tuple(axis_sizes.values())),
        tuple(axis_sizes),
        axis_types=tuple(kinds[axis_types[name]] for name in axis_sizes),
    )


def _order_devices(devices: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The devices in the order of `jax.make_mesh`, so that a mesh that the program makes itself is the same one."""
    posed = find_posed_slice()
    if posed is not None and posed.slice_count == 1 and len(devices) == posed.device_count:
        from jax.experimental import mesh_utils

        with suppress(NotImplementedError, ValueError, AssertionError):  # it does not follow the physical axes
            return np.asarray(mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True))
    return np.array(devices, dtype=object).reshape(sizes)


_OWN_SETTINGS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")


def _ignore_device_settings() -> AbstractContextManager[None]:
    """Ignores a module's `jax.config.update("jax_num_cpu_devices", 8)`, which would fail once JAX has its devices."""
    original = jax.config.update

    def update(name: str, value: Any) -> None:
        if name not in _OWN_SETTINGS:
            original(name, value)

    return replace_in_this_thread(jax.config, "update", update)


def read_compile_settings() -> dict[str, str]:
    """The settings of this process that affect traces and compiles: JAX's, XLA's and libtpu's."""
    chosen = {name: repr(value) for name, value in jax.config.values.items() if name not in _OWN_SETTINGS}
    return chosen | {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
