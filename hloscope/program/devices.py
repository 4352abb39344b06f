"""The devices that programs see: those of the process or additional CPU devices of hloscope, and meshes over them.

JAX fixes the number of its CPU devices when it is first used. A CPU client of another size costs milliseconds, and in
the thread that analyses a program JAX is made to see that one: no array and no compile of the user's is lost. A context
that is part of JAX's cache keys holds apart what is traced and compiled for either.
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

from hloscope.compiler.jax_internals import backends_are_initialised, is_tracing, kept_apart, replaced_in_this_thread
from hloscope.compiler.jax_support import check_supported
from hloscope.errors import DeviceCountError, HloscopeError, MeshError, SliceError
from hloscope.program.environment import DEFAULT_DEVICES, check_can_be_simulated, check_mesh_size
from hloscope.program.notation import parse_axis_types
from hloscope.program.several_slices import simulated_hybrid_meshes
from hloscope.program.stand_ins import pose_as, posed_processes, posed_slice, posing_as
from hloscope.program.target import TargetFacts, attached_facts
from hloscope.tpu.devices import SliceDevice, list_devices
from hloscope.tpu.slices import Slice, find_smallest_slice, parse_slice
from hloscope.units import plural

T = TypeVar("T")


class _Seen(threading.local):
    """What a thread sees instead of the process's own backend; None for that. The class's is for all other threads."""

    client: Any = None


_seen = _Seen()


@contextmanager
def own_devices(count: int, *, in_all: bool = False) -> Iterator[None]:
    """Lets this thread, or all, see `count` simulated CPU devices and no others, whatever JAX was started with."""
    check_can_be_simulated(count)
    client, before = _own_client(count), _seen.client
    with ExitStack() as stack:
        for holder, name, replacement in _replacements():
            stack.enter_context(replaced_in_this_thread(holder, name, replacement, in_all=in_all))
        stack.enter_context(kept_apart(count))
        if jax.config.jax_default_device is not None:
            stack.enter_context(jax.default_device(None))
        _seen.client = client
        stack.callback(setattr, _seen, "client", before)
        if in_all:
            _Seen.client = client
            stack.callback(setattr, _Seen, "client", None)
        yield


def traced_afresh() -> AbstractContextManager[None]:
    """Lets nothing be taken from JAX's caches of traces meanwhile, which do not notice that a global was changed."""
    return kept_apart(None)


def own_device_count() -> int | None:
    """How many devices `own_devices` shows to this thread; None outside of it."""
    return None if _seen.client is None else int(_seen.client.device_count())


@cache
def _own_client(count: int) -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(asynchronous=True, num_devices=count)


def _replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """JAX's functions that say which devices there are; those without a cache go through `get_backend`."""
    from jax._src import xla_bridge

    return [
        (xla_bridge, "get_backend", _backend),
        (xla_bridge, "backends", lambda: {"cpu": _seen.client}),
        (xla_bridge, "backends_are_initialized", lambda: True),
        *((home, "local_devices", _local_devices) for home in (xla_bridge, jax)),
        *((home, "process_count", lambda _backend=None: 1) for home in (xla_bridge, jax)),
    ]


def _backend(platform: Any = None) -> Any:
    if platform is None or platform == "cpu":
        return _seen.client
    if not isinstance(platform, str):
        return platform
    raise RuntimeError(f"Unknown backend {platform}. Available backends are ['cpu']")


def _local_devices(process_index: int | None = None, backend: Any = None, host_id: int | None = None) -> list[Any]:
    if (process_index or host_id or 0) != 0:
        raise ValueError(f"Unknown process_index {process_index or host_id}")
    return list(_backend(backend).local_devices())


def simulated_device_count() -> int | None:
    """How many devices user code sees that stand in for those of a slice; None where it sees real ones, or none yet."""
    own = own_device_count()
    if own is not None or not backends_are_initialised():
        return own
    return None if jax.default_backend() != "cpu" else len(jax.devices())


class _SeenOtherwiseError(Exception):
    """A program says of itself what it runs on, which only its import showed, and was shown something else."""

    def __init__(self, facts: TargetFacts) -> None:
        super().__init__(facts.slice)
        self.facts = facts


def check_seen(facts: TargetFacts) -> None:
    """Lets `on_enough_devices` begin anew where a program was shown other devices than those that it is for.

    Raises:
        SeenOtherwiseError: It was.
    """
    if facts.slice == "attached":
        if own_device_count() is not None:
            raise _SeenOtherwiseError(facts)
        return
    shown, seen, processes = _slice_to_show(facts), posed_slice(), facts.processes or 1
    if shown is None or seen is None:
        is_other = shown is not seen
    else:
        is_named = facts.slice is not None
        is_other = processes != posed_processes() or (is_named and shown.name != seen.name)
    if is_other and (shown is None or not pose_as(shown, processes)):
        raise _SeenOtherwiseError(facts)


def _name(chosen: Slice | None) -> str | None:
    return None if chosen is None else chosen.name


def _slice_to_show(facts: TargetFacts) -> Slice | None:
    """What the simulated devices pose as for a program; None where they say that they are CPU devices."""
    if facts.platform == "cpu":
        return None
    if facts.slice is not None:
        chosen = parse_slice(facts.slice)
        return None if chosen.chip is None else chosen
    count = simulated_device_count()
    if count is None:
        return None
    try:
        return find_smallest_slice(count)
    except SliceError:
        return None


@contextmanager
def _shown(facts: TargetFacts, count: int | None, by_name: bool, *, in_all: bool = False) -> Iterator[None]:
    """Lets this thread see what a program is to be compiled for: simulated devices that pose as those of its slice.

    The module of a function that is not given by name has been imported before, and may have made its meshes then.
    """
    with ExitStack() as stack:
        if count is not None:
            stack.enter_context(own_devices(count, in_all=in_all))
        chosen = None if facts.slice == "attached" else _slice_to_show(facts)
        if chosen is not None:
            client = jax.devices("cpu")[0].client
            stack.enter_context(posing_as(chosen, client, facts.processes or 1, sees_meshes=by_name, in_all=in_all))
        yield


@contextmanager
def shown_for_a_script(facts: TargetFacts, chosen: Slice) -> Iterator[Mapping[Any, SliceDevice]]:
    """Lets code that runs as it is see a slice, and yields what each simulated device stands for.

    Args:
        facts: What was said of the code; the slice is in it.
        chosen: The slice.
    """
    count = _devices_to_begin_with(facts, by_name=True)
    with _shown(facts, count, by_name=True, in_all=True), simulated_hybrid_meshes(), _device_settings_ignored():
        client = jax.devices("cpu")[0].client
        yield dict(zip(client.devices(), list_devices(chosen), strict=True))


def on_enough_devices(targets: Sequence[Callable[..., Any] | str], facts: TargetFacts, work: Callable[[], T]) -> T:
    """Does something with programs while they see as many simulated devices as they need.

    Those that JAX was started with are used where they do, so that a mesh over them is the user's own. Elsewhere there
    are devices beside them, and JAX stays as it is. A program that turns out to need another number gets them.

    Args:
        targets: The programs.
        facts: What was said of all of them.
        work: Imports, traces and compiles them.

    Raises:
        HloscopeError: JAX is tracing the function that calls this.
        MeshError: No number of devices suits the program, or its mesh is not as large as its slice.
        SliceError: No single slice is as large as its mesh.
    """
    check_supported()
    check_not_tracing()
    facts = next((facts.over(attached_facts(target)) for target in targets if not isinstance(target, str)), facts)
    _check_mesh_size(facts)
    attached = facts.slice == "attached"
    by_name = all(isinstance(target, str) for target in targets)
    count = None if attached else _devices_to_begin_with(facts, by_name)
    tried: list[int] = []
    while True:
        try:
            with _shown(facts, count, by_name):
                return work()
        except _SeenOtherwiseError as error:
            facts, attached = error.facts, error.facts.slice == "attached"
            count = None if attached else _devices_to_begin_with(facts, by_name)
        except DeviceCountError as error:
            if attached:
                raise MeshError(
                    f"the program needs {plural(error.needed, 'device')}, but {error.available} are attached",
                    fix="name the slice to compile for, such as v5e:2x4, or cpu:8 for simulated devices",
                ) from error
            tried.append(count or error.available)
            if error.needed in tried:
                raise _no_count_fits(tried[-1], error) from error
            count = error.needed


@contextmanager
def devices_to_run_on(count: int, where: str) -> Iterator[None]:
    """Lets this thread run programs on the devices that JAX has, or where these are too few on simulated ones."""
    enough = where in ("tpu", "gpu") or (backends_are_initialised() and len(jax.devices()) >= count)
    with nullcontext() if enough else own_devices(count):
        yield


def check_not_tracing() -> None:
    """Checks that no function of the user's is being traced, which JAX could not go on with after another.

    Raises:
        HloscopeError: One is.
    """
    if is_tracing():
        raise HloscopeError(
            "hloscope was called inside a function that JAX is tracing",
            why="inside jax.jit, jax.grad, jax.vmap or jax.shard_map there is no complete program to compile yet",
            fix="call it outside of tracing, and pass it the function itself",
        )


def _check_mesh_size(facts: TargetFacts) -> None:
    """Checks a mesh that is given, before any of its devices is made."""
    if facts.mesh is not None and not isinstance(facts.mesh, jax.sharding.Mesh) and facts.slice != "attached":
        sizes = facts.mesh if isinstance(facts.mesh, Mapping) else axis_sizes(facts.mesh)
        check_mesh_size(parse_slice(facts.slice) if facts.slice else None, sizes)


def _no_count_fits(seen: int, error: DeviceCountError) -> MeshError:
    fewer, more = sorted((seen, error.needed))
    return MeshError(
        f"the program needs {fewer} devices in one place and {more} in another",
        why=f"where it sees {more} devices, it needs {fewer}, and where it sees {fewer}, it needs {more}",
        fix="use a mesh with as many devices as the program's own mesh, or leave the mesh out",
    )


def _devices_to_begin_with(facts: TargetFacts, by_name: bool) -> int | None:
    """How many devices of hloscope's own to show to programs; None for the process's.

    Functions may hold meshes over the process's devices, and see them where they suffice; modules that are imported
    first may count devices, and see as many as a slice has.
    """
    if isinstance(facts.mesh, jax.sharding.Mesh):
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


def seen_by_modules(facts: TargetFacts) -> Hashable:
    """What decides what a module of the user's does when it is imported, beside its own text."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return repr(
        (
            simulated_device_count(),
            facts.slice == "attached",
            _name(posed_slice()),
            posed_processes(),
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
    with simulated_hybrid_meshes(), _device_settings_ignored():
        mesh = asked_mesh(facts) if isinstance(facts.mesh, Mapping) else None
        with nullcontext() if mesh is None else jax.set_mesh(mesh):
            yield


def axis_sizes(mesh: Any) -> dict[str, int]:
    """Size by axis name, major first."""
    return dict(zip(map(str, mesh.axis_names), mesh.axis_sizes, strict=True))


def asked_mesh(facts: TargetFacts, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh that facts say by names and sizes; `devices` as for `make_mesh`."""
    return make_mesh(facts.mesh, parse_axis_types(facts.axis_types or "auto", tuple(facts.mesh)), devices)


def make_mesh(
    axis_sizes: Mapping[str, int], axis_types: Mapping[str, str], devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """A concrete mesh over simulated devices, with the axis types given and never JAX's own default.

    Args:
        axis_sizes: Size by axis name, major first.
        axis_types: `auto` or `explicit` by axis name.
        devices: Devices in mesh order; simulated CPU devices when None.

    Raises:
        DeviceCountError: There are fewer devices than the mesh has.
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
        _laid_out(chosen[:count], tuple(axis_sizes.values())),
        tuple(axis_sizes),
        axis_types=tuple(kinds[axis_types[name]] for name in axis_sizes),
    )


def _laid_out(devices: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Devices in the order in which `jax.make_mesh` has them, so that a mesh that the program makes is the same one."""
    posed = posed_slice()
    if posed is not None and posed.slice_count == 1 and len(devices) == posed.device_count:
        from jax.experimental import mesh_utils

        with suppress(NotImplementedError, ValueError, AssertionError):  # it does not follow the physical axes
            return np.asarray(mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True))
    return np.array(devices, dtype=object).reshape(sizes)


_OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")


@contextmanager
def _device_settings_ignored() -> Iterator[None]:
    """Lets a module say `jax.config.update("jax_num_cpu_devices", 8)`, which would fail once JAX has its devices."""
    original = jax.config.update

    def update(name: str, value: Any) -> None:
        if name not in _OURS:
            original(name, value)

    with replaced_in_this_thread(jax.config, "update", update):
        yield


def compiling_settings() -> dict[str, str]:
    """What decides of this process how a program is traced and compiled: JAX's settings, XLA's and libtpu's."""
    chosen = {name: repr(value) for name, value in jax.config.values.items() if name not in _OURS}
    return chosen | {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
