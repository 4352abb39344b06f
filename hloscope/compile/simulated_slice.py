"""Simulated CPU devices that answer like those of a TPU slice, so that user code takes its branches for that slice.

Code chooses kernels, meshes and batch sizes by the properties of its devices. The answer depends on the caller:
JAX's own machinery, which runs eager operations on them, sees CPU devices; all other code, including Pallas and
the code that lays meshes over devices, sees the slice.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax

from hloscope.base.errors import Option, SliceError, say
from hloscope.base.store import open_default_store
from hloscope.base.units import pluralize
from hloscope.compile.client import ask_platform_version
from hloscope.compile.importing import format_path
from hloscope.compile.jax_private import replace_in_this_thread, separate_caches
from hloscope.tpu.generation import Chip
from hloscope.tpu.slices import Slice, SliceDevice, list_devices

_JAX = Path(jax.__file__).parent
_MACHINERY = tuple(f"{package}/" for package in (_JAX, _JAX.with_name("jaxlib"), Path(__file__).parents[1]))
_CHOOSING_FILES = ("/mesh_utils.py", "/sharding_impls.py", "/mesh.py", "/tpu_info.py")
_CHOOSING_FOLDERS = ("/pallas/", "/mosaic/")
"""Parts of JAX that choose by the properties of devices, and run nothing on them."""


@dataclass(slots=True)
class _Pose:
    """The slice that a client's devices pose as.

    Attributes:
        hosts: The number of hosts of the slice.
        processes: The number of processes that share it, host by host.
        sees_meshes: Whether the program makes all its meshes during the pose, in the slice's device order.
        until: The cleanup at the end of the pose.
        notes: The questions that no stand-in can answer, a sentence each.
        was_asked: Whether any code has asked for their properties since.
    """

    slice: Slice
    chip: Chip
    client: Any
    devices: Mapping[Any, SliceDevice]
    hosts: int
    processes: int
    sees_meshes: bool
    until: ExitStack
    notes: list[str] = field(default_factory=list)
    was_asked: bool = False

    def process_of(self, known: SliceDevice) -> int:
        """The process that a device belongs to."""
        return known.host * self.processes // self.hosts


class _Posing(threading.local):
    """The pose of a thread's devices; the class's own is for threads without one."""

    pose: _Pose | None = None


_posing = _Posing()


def find_posed_slice() -> Slice | None:
    """The slice that this thread's devices pose as; None if they report as CPU devices."""
    return None if _posing.pose is None else _posing.pose.slice


def orders_meshes_as(chosen: Slice) -> bool:
    """Returns whether the program's own meshes have the device order of a slice."""
    pose = _posing.pose
    return pose is not None and pose.sees_meshes and pose.slice.name == chosen.name


def count_posed_processes() -> int:
    """The number of processes that share the posed slice."""
    return 1 if _posing.pose is None else _posing.pose.processes


def change_pose(chosen: Slice, processes: int = 1) -> bool:
    """Changes the slice that this thread's devices pose as, unless code has already asked for the previous one.

    Returns:
        Whether the slice was changed.
    """
    pose = _posing.pose
    if pose is None or pose.was_asked:
        return False
    _set_pose(chosen, pose.client, processes, pose.sees_meshes, pose.until)
    return True


def _set_pose(chosen: Slice, client: Any, processes: int, sees_meshes: bool, until: ExitStack) -> None:
    assert chosen.chip is not None
    until.enter_context(separate_caches((client.device_count(), chosen.name)))
    listed = list_devices(chosen)
    hosts = listed[-1].host + 1
    if hosts % processes:
        raise SliceError(
            f"{chosen.name} cannot be shared by {processes} processes",
            why=f"it has {pluralize(hosts, 'host')}, and each must run the same number of processes",
            fix=f"use a number that divides {hosts}" if hosts > 1 else say("leave ", Option("processes"), " out"),
        )
    known = dict(zip(client.devices(), listed, strict=False))
    _posing.pose = _Pose(chosen, chosen.chip, client, known, hosts, processes, sees_meshes, until)


def list_pose_notes() -> list[str]:
    """The questions of user code that no stand-in can answer."""
    return [] if _posing.pose is None else list(dict.fromkeys(_posing.pose.notes))


@contextmanager
def pose_devices_as(
    chosen: Slice, client: Any, processes: int = 1, *, sees_meshes: bool = True, in_all: bool = False
) -> Iterator[None]:
    """Makes a client's devices answer like a slice's, in this thread and to all code except JAX's own machinery.

    Args:
        chosen: A TPU slice; if it has more devices than the client, its first ones.
        client: The client of the simulated devices.
        processes: The number of processes that share the slice; this is the first.
        sees_meshes: Whether the program makes all its meshes during the pose.
        in_all: In every thread, not only in this one.

    Raises:
        SliceError: Its hosts cannot be divided among the processes.
    """
    from jax._src import xla_bridge

    with ExitStack() as stack:
        stack.callback(setattr, _posing, "pose", _posing.pose)
        for name, answer in _DEVICE_ANSWERS.items():
            stack.enter_context(_override_attribute(type(client.devices()[0]), name, answer))
        for name, answer in _CLIENT_ANSWERS.items():
            stack.enter_context(_override_attribute(type(client), name, answer))
        for home, names in ((jax, _FUNCTIONS), (xla_bridge, (*_FUNCTIONS, "get_backend"))):
            for name in names:
                stand_in = _wrap_for_slice(name, getattr(home, name))
                stack.enter_context(replace_in_this_thread(home, name, stand_in, in_all=in_all))
            backend = _make_default_backend(home)
            stack.enter_context(replace_in_this_thread(home, "default_backend", backend, in_all=in_all))
        for name, said in _CLUSTER_ANSWERS.items():
            stack.enter_context(replace_in_this_thread(jax.distributed, name, said, in_all=in_all))
        _set_pose(chosen, client, processes, sees_meshes, stack)
        if in_all:
            stack.callback(setattr, _Posing, "pose", None)
            _Posing.pose = _posing.pose
        yield


def _asked_by_machinery(depth: int, *, choosing_too: bool = False) -> bool:
    """Returns whether the caller that many frames up is part of JAX, or hloscope, and must see CPU devices."""
    file = sys._getframe(depth + 1).f_code.co_filename
    if not file.startswith(_MACHINERY):
        return False
    return choosing_too or not (file.endswith(_CHOOSING_FILES) or any(folder in file for folder in _CHOOSING_FOLDERS))


def _find_calling_line(depth: int) -> str:
    """The line that runs the given number of frames up."""
    frame = sys._getframe(depth)
    return f"{format_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _answer_memory_query(pose: _Pose, _: SliceDevice) -> Callable[[], dict[str, int]]:
    """The `memory_stats` of a device before anything runs on it."""
    note = f"{_find_calling_line(3)} reads memory statistics, which show 0 bytes in use: nothing runs on the slice"
    pose.notes.append(note)
    limit = pose.chip.usable_hbm_bytes_per_device
    unused = ("bytes_in_use", "peak_bytes_in_use", "bytes_reserved", "largest_alloc_size", "num_allocs")
    return lambda: {"bytes_limit": limit, "bytes_reservable_limit": limit, **dict.fromkeys(unused, 0)}


def _format_repr(pose: _Pose, known: SliceDevice) -> str:
    place = ",".join(map(str, known.coords))
    return f"process_index={pose.process_of(known)}, coords=({place}), core_on_chip={known.core_on_chip}"


def _format_str(pose: _Pose, known: SliceDevice) -> str:
    return f"process={pose.process_of(known)},({','.join(map(str, (*known.coords, known.core_on_chip)))})"


_Answer = Callable[[_Pose, SliceDevice], Any]

_DEVICE_ANSWERS: Mapping[str, _Answer] = {
    "id": lambda _, known: known.id,
    "platform": lambda _, __: "tpu",
    "device_kind": lambda pose, _: pose.chip.device_kind,
    "coords": lambda _, known: list(known.coords),
    "core_on_chip": lambda _, known: known.core_on_chip,
    "num_cores": lambda pose, _: pose.chip.cores_per_chip // pose.chip.devices_per_chip,
    "slice_index": lambda _, known: known.slice_index,
    "process_index": lambda pose, known: pose.process_of(known),
    "memory_stats": _answer_memory_query,
    "__repr__": lambda pose, known: f"TpuDevice(id={known.id}, {_format_repr(pose, known)})",
    "__str__": lambda pose, known: f"TPU_{known.id}({_format_str(pose, known)})",
}
"""The answers of a slice's device, by the name of the attribute."""
_CLIENT_ANSWERS: Mapping[str, Callable[[_Pose, Any], Any]] = {
    "platform": lambda _, __: "tpu",
    "platform_version": lambda pose, _: ask_platform_version(pose.slice, open_default_store()),
}
_IDENTITIES = ("id", "process_index", "__repr__", "__str__")
"""The attributes by which JAX distinguishes devices: no part of JAX gets the slice's values."""


@contextmanager
def _override_attribute(kind: type, name: str, answer: Callable[[_Pose, Any], Any]) -> Iterator[None]:
    """Gives a class of jaxlib's an attribute whose value depends on the caller."""
    before = kind.__dict__.get(name)
    is_method = name.startswith("__")

    def told(holder: Any) -> Any:
        pose = _posing.pose
        known = None if pose is None else pose.devices.get(holder, holder if holder is pose.client else None)
        if pose is None or known is None or _asked_by_machinery(1, choosing_too=name in _IDENTITIES):
            if before is None:
                raise AttributeError(name)
            return before(holder) if is_method else before.__get__(holder)
        pose.was_asked = True
        return answer(pose, known)

    setattr(kind, name, told if is_method else property(told))
    try:
        yield
    finally:
        if before is None:
            delattr(kind, name)
        else:
            setattr(kind, name, before)


_FUNCTIONS = ("devices", "local_devices", "device_count", "local_device_count", "process_index", "process_count")


def _answer_for_processes(pose: _Pose, name: str, process_index: int | None = None, **_: Any) -> Any:
    """The answer of a function in the first of several processes that share a slice."""
    wanted = process_index if isinstance(process_index, int) and name == "local_devices" else 0
    listed = list(pose.devices)
    local = [device for device in listed if pose.process_of(pose.devices[device]) == wanted]
    return {
        "devices": listed,
        "device_count": len(listed),
        "local_devices": local,
        "local_device_count": len(local),
        "process_count": pose.processes,
        "process_index": 0,
        "get_backend": pose.client,
    }[name]


def _wrap_for_slice(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a JAX function that lists devices, so that the backends are a TPU and its host's CPU."""

    def answering(*args: Any, **kwargs: Any) -> Any:
        pose = _posing.pose
        if pose is None:
            return original(*args, **kwargs)
        if pose.processes > 1 and not _asked_by_machinery(2) and not {"cpu"} & {*args, *kwargs.values()}:
            return _answer_for_processes(pose, name, *args, **kwargs)
        backends = {"tpu": pose.client} if _asked_by_machinery(2) else {"tpu": pose.client, "cpu": _find_host_cpu()}

        def chosen(value: Any) -> Any:
            return backends.get(value, value) if isinstance(value, str) else value

        return original(*map(chosen, args), **{name: chosen(value) for name, value in kwargs.items()})

    return answering


@cache
def _find_host_cpu() -> Any:
    """The CPU of a slice's host, where user code keeps data with `jax.devices("cpu")`."""
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(asynchronous=True, num_devices=1)


def _initialize(*_: Any, **__: Any) -> None:
    """Does nothing: on a slice it finds the other processes, but here it would wait for them."""
    if _posing.pose is not None:
        _posing.pose.notes.append(
            f"{_find_calling_line(3)} calls jax.distributed.initialize(), which does nothing here"
        )


_CLUSTER_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "initialize": _initialize,
    "is_initialized": lambda: True,
    "shutdown": lambda: None,
}


def _make_default_backend(home: Any) -> Callable[[], Any]:
    original = home.default_backend

    def answering() -> Any:
        pose = _posing.pose
        if pose is None or _asked_by_machinery(2):
            return original()
        pose.was_asked = True
        return "tpu"

    return answering
