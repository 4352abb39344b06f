"""Simulated CPU devices that answer as those of a TPU slice would, so that user code takes its branches for that.

Code chooses kernels, meshes and batch sizes by what its devices say of themselves. Who asks decides what they say:
JAX's own machinery, which runs eager operations on them, is told that they are CPU devices; everybody else is told of
the slice, Pallas and what lays meshes over devices included.
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

from hloscope.compiler.client import platform_version
from hloscope.compiler.jax_internals import kept_apart, replaced_in_this_thread
from hloscope.errors import SliceError
from hloscope.messages import Option, say
from hloscope.program.importing import shown_path
from hloscope.store import default_store
from hloscope.tpu.devices import SliceDevice, list_devices
from hloscope.tpu.generation import Chip
from hloscope.tpu.slices import Slice
from hloscope.units import plural

_JAX = Path(jax.__file__).parent
_MACHINERY = tuple(f"{package}/" for package in (_JAX, _JAX.with_name("jaxlib"), Path(__file__).parents[1]))
_CHOOSING_FILES = ("/mesh_utils.py", "/sharding_impls.py", "/mesh.py", "/tpu_info.py")
_CHOOSING_FOLDERS = ("/pallas/", "/mosaic/")
"""Parts of JAX that choose by what devices say of themselves, and run nothing on them."""


@dataclass(slots=True)
class _Pose:
    """What a client's devices pose as.

    Attributes:
        hosts: How many hosts the slice has.
        processes: How many processes share it, host by host.
        sees_meshes: Whether the program makes all its meshes meanwhile, in the order that they have on the slice.
        until: What is undone once they pose no more.
        notes: What was asked that no stand-in can answer, a sentence each.
        was_asked: Whether anybody asked them what they are since.
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
    """What a thread's devices pose as; the class's own is for threads that have none."""

    pose: _Pose | None = None


_posing = _Posing()


def posed_slice() -> Slice | None:
    """The slice that this thread's devices answer for; None where they say that they are CPU devices."""
    return None if _posing.pose is None else _posing.pose.slice


def orders_meshes_as(chosen: Slice) -> bool:
    """Whether the program's own meshes have the order that they have on a slice."""
    pose = _posing.pose
    return pose is not None and pose.sees_meshes and pose.slice.name == chosen.name


def posed_processes() -> int:
    """The processes that share it."""
    return 1 if _posing.pose is None else _posing.pose.processes


def pose_as(chosen: Slice, processes: int = 1) -> bool:
    """Lets this thread's devices pose as another slice, unless somebody was told of the one that they posed as.

    Returns:
        Whether they do now.
    """
    pose = _posing.pose
    if pose is None or pose.was_asked:
        return False
    _pose(chosen, pose.client, processes, pose.sees_meshes, pose.until)
    return True


def _pose(chosen: Slice, client: Any, processes: int, sees_meshes: bool, until: ExitStack) -> None:
    assert chosen.chip is not None
    until.enter_context(kept_apart((client.device_count(), chosen.name)))
    listed = list_devices(chosen)
    hosts = listed[-1].host + 1
    if hosts % processes:
        raise SliceError(
            f"{chosen.name} cannot be shared by {processes} processes",
            why=f"it has {plural(hosts, 'host')}, and each must run the same number of processes",
            fix=f"use a number that divides {hosts}" if hosts > 1 else say("leave ", Option("processes"), " out"),
        )
    known = dict(zip(client.devices(), listed, strict=False))
    _posing.pose = _Pose(chosen, chosen.chip, client, known, hosts, processes, sees_meshes, until)


def taken_notes() -> list[str]:
    """What user code asked meanwhile that no stand-in can answer."""
    return [] if _posing.pose is None else list(dict.fromkeys(_posing.pose.notes))


@contextmanager
def posing_as(
    chosen: Slice, client: Any, processes: int = 1, *, sees_meshes: bool = True, in_all: bool = False
) -> Iterator[None]:
    """Lets a client's devices answer as a slice's, in this thread and to all but JAX's own machinery.

    Args:
        chosen: A TPU slice; of more devices than the client has, the first ones.
        client: Of the simulated devices.
        processes: How many processes share the slice; this is the first.
        sees_meshes: Whether the program makes all its meshes meanwhile.
        in_all: In every thread, and not in this one only.

    Raises:
        SliceError: Its hosts cannot be shared out so.
    """
    from jax._src import xla_bridge

    with ExitStack() as stack:
        stack.callback(setattr, _posing, "pose", _posing.pose)
        for name, answer in _OF_DEVICES.items():
            stack.enter_context(_answered(type(client.devices()[0]), name, answer))
        for name, answer in _OF_CLIENTS.items():
            stack.enter_context(_answered(type(client), name, answer))
        for home, names in ((jax, _FUNCTIONS), (xla_bridge, (*_FUNCTIONS, "get_backend"))):
            for name in names:
                stand_in = _for_a_slice(name, getattr(home, name))
                stack.enter_context(replaced_in_this_thread(home, name, stand_in, in_all=in_all))
            backend = _default_backend(home)
            stack.enter_context(replaced_in_this_thread(home, "default_backend", backend, in_all=in_all))
        for name, said in _OF_A_CLUSTER.items():
            stack.enter_context(replaced_in_this_thread(jax.distributed, name, said, in_all=in_all))
        _pose(chosen, client, processes, sees_meshes, stack)
        if in_all:
            stack.callback(setattr, _Posing, "pose", None)
            _Posing.pose = _posing.pose
        yield


def _asked_by_machinery(depth: int, *, choosing_too: bool = False) -> bool:
    """Whether the caller that many frames above is a part of JAX, or hloscope, that must know what a device is."""
    file = sys._getframe(depth + 1).f_code.co_filename
    if not file.startswith(_MACHINERY):
        return False
    return choosing_too or not (file.endswith(_CHOOSING_FILES) or any(folder in file for folder in _CHOOSING_FOLDERS))


def _platform(_: _Pose) -> str:
    return "tpu"


def _memory(pose: _Pose) -> dict[str, int]:
    """What a device says of its memory before anything runs on it."""
    limit = pose.chip.usable_hbm_bytes_per_device
    unused = ("bytes_in_use", "peak_bytes_in_use", "bytes_reserved", "largest_alloc_size", "num_allocs")
    return {"bytes_limit": limit, "bytes_reservable_limit": limit, **dict.fromkeys(unused, 0)}


def _place(depth: int) -> str:
    """The line that runs so many frames above."""
    frame = sys._getframe(depth)
    return f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _asks_for_memory(pose: _Pose, _: SliceDevice) -> Callable[[], dict[str, int]]:
    note = f"{_place(3)} reads memory statistics, which show 0 bytes in use: nothing runs on the slice"
    pose.notes.append(note)
    return lambda: _memory(pose)


def _named(pose: _Pose, known: SliceDevice) -> str:
    place = ",".join(map(str, known.coords))
    return f"process_index={pose.process_of(known)}, coords=({place}), core_on_chip={known.core_on_chip}"


def _shortly(pose: _Pose, known: SliceDevice) -> str:
    return f"process={pose.process_of(known)},({','.join(map(str, (*known.coords, known.core_on_chip)))})"


_Answer = Callable[[_Pose, SliceDevice], Any]

_OF_DEVICES: Mapping[str, _Answer] = {
    "id": lambda _, known: known.id,
    "platform": lambda pose, _: _platform(pose),
    "device_kind": lambda pose, _: pose.chip.device_kind,
    "coords": lambda _, known: list(known.coords),
    "core_on_chip": lambda _, known: known.core_on_chip,
    "num_cores": lambda pose, _: pose.chip.cores_per_chip // pose.chip.devices_per_chip,
    "slice_index": lambda _, known: known.slice_index,
    "process_index": lambda pose, known: pose.process_of(known),
    "memory_stats": _asks_for_memory,
    "__repr__": lambda pose, known: f"TpuDevice(id={known.id}, {_named(pose, known)})",
    "__str__": lambda pose, known: f"TPU_{known.id}({_shortly(pose, known)})",
}
"""What a device of a slice says of itself, by the name of the attribute."""
_OF_CLIENTS: Mapping[str, Callable[[_Pose, Any], Any]] = {
    "platform": lambda pose, _: _platform(pose),
    "platform_version": lambda pose, _: platform_version(pose.slice, default_store()),
}
_NUMBERS = ("id", "process_index", "__repr__", "__str__")
"""What JAX tells devices apart by: no part of it is told the slice's."""


@contextmanager
def _answered(kind: type, name: str, answer: Callable[[_Pose, Any], Any]) -> Iterator[None]:
    """Gives a class of jaxlib's an attribute whose value depends on who asks for it."""
    before = kind.__dict__.get(name)
    is_method = name.startswith("__")

    def told(holder: Any) -> Any:
        pose = _posing.pose
        known = None if pose is None else pose.devices.get(holder, holder if holder is pose.client else None)
        if pose is None or known is None or _asked_by_machinery(1, choosing_too=name in _NUMBERS):
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


def _of_processes(pose: _Pose, name: str, process_index: int | None = None, **_: Any) -> Any:
    """What a function says in the first of several processes that share a slice."""
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


def _for_a_slice(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """One of JAX's functions that say which devices there are, where the backends are a TPU and its host's CPU."""

    def answering(*args: Any, **kwargs: Any) -> Any:
        pose = _posing.pose
        if pose is None:
            return original(*args, **kwargs)
        if pose.processes > 1 and not _asked_by_machinery(2) and not {"cpu"} & {*args, *kwargs.values()}:
            return _of_processes(pose, name, *args, **kwargs)
        backends = {"tpu": pose.client} if _asked_by_machinery(2) else {"tpu": pose.client, "cpu": _host()}

        def chosen(value: Any) -> Any:
            return backends.get(value, value) if isinstance(value, str) else value

        return original(*map(chosen, args), **{name: chosen(value) for name, value in kwargs.items()})

    return answering


@cache
def _host() -> Any:
    """The CPU of a slice's host, which user code keeps data on by `jax.devices("cpu")`."""
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(asynchronous=True, num_devices=1)


def _initialize(*_: Any, **__: Any) -> None:
    """On a slice it finds the other processes; here it would wait for them."""
    if _posing.pose is not None:
        _posing.pose.notes.append(f"{_place(3)} calls jax.distributed.initialize(), which does nothing here")


_OF_A_CLUSTER: Mapping[str, Callable[..., Any]] = {
    "initialize": _initialize,
    "is_initialized": lambda: True,
    "shutdown": lambda: None,
}


def _default_backend(home: Any) -> Callable[[], Any]:
    original = home.default_backend

    def answering() -> Any:
        pose = _posing.pose
        if pose is None or _asked_by_machinery(2):
            return original()
        pose.was_asked = True
        return _platform(pose)

    return answering
