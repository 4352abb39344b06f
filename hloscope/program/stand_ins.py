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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib

import hloscope
from hloscope.compiler.jax_internals import kept_apart, replaced_in_this_thread
from hloscope.hardware.chips import Chip
from hloscope.hardware.devices import SliceDevice, slice_devices
from hloscope.hardware.slices import Slice

_MACHINERY = tuple(f"{Path(file).parent}/" for file in (jax.__file__, jaxlib.__file__, hloscope.__file__))
_CHOOSES = ("mesh_utils.py", "sharding_impls.py", "mesh.py", "/pallas/", "/mosaic/")
"""Parts of JAX that choose by what devices say of themselves, and run nothing on them."""


@dataclass(slots=True)
class _Pose:
    """What a client's devices pose as.

    Attributes:
        until: What is undone once they pose no more.
        was_asked: Whether anybody asked them what they are since.
    """

    slice: Slice
    chip: Chip
    client: Any
    devices: Mapping[Any, SliceDevice]
    until: ExitStack
    was_asked: bool = False


class _Posing(threading.local):
    pose: _Pose | None = None


_posing = _Posing()


def posed_slice() -> Slice | None:
    """The slice that this thread's devices answer for; None where they say that they are CPU devices."""
    return None if _posing.pose is None else _posing.pose.slice


def pose_as(chosen: Slice) -> bool:
    """Lets this thread's devices pose as another slice, unless somebody was told of the one that they posed as.

    Returns:
        Whether they do now.
    """
    pose = _posing.pose
    if pose is None or pose.was_asked:
        return False
    _pose(chosen, pose.client, pose.until)
    return True


def _pose(chosen: Slice, client: Any, until: ExitStack) -> None:
    assert chosen.chip is not None
    until.enter_context(kept_apart((client.device_count(), chosen.name)))
    known = dict(zip(client.devices(), slice_devices(chosen), strict=False))
    _posing.pose = _Pose(chosen, chosen.chip, client, known, until)


@contextmanager
def posing_as(chosen: Slice, client: Any) -> Iterator[None]:
    """Lets a client's devices answer as a slice's, in this thread and to all but JAX's own machinery.

    Args:
        chosen: A TPU slice; of more devices than the client has, the first ones.
        client: Of the simulated devices.
    """
    from jax._src import xla_bridge

    with ExitStack() as stack:
        stack.callback(setattr, _posing, "pose", _posing.pose)
        for name, answer in _OF_DEVICES.items():
            stack.enter_context(_answered(type(client.devices()[0]), name, answer))
        stack.enter_context(_answered(type(client), "platform", lambda pose, _: _platform(pose)))
        for home, names in ((jax, _FUNCTIONS), (xla_bridge, (*_FUNCTIONS, "get_backend"))):
            for name in names:
                stack.enter_context(replaced_in_this_thread(home, name, _for_a_slice(getattr(home, name))))
            stack.enter_context(replaced_in_this_thread(home, "default_backend", _default_backend(home)))
        _pose(chosen, client, stack)
        yield


def _asked_by_machinery(depth: int, *, choosing_too: bool = False) -> bool:
    """Whether the caller that many frames above is a part of JAX, or hloscope, that must know what a device is."""
    file = sys._getframe(depth + 1).f_code.co_filename
    if not file.startswith(_MACHINERY):
        return False
    return choosing_too or not (file.endswith(_CHOOSES[:3]) or any(part in file for part in _CHOOSES[3:]))


def _platform(_: _Pose) -> str:
    return "tpu"


def _memory(pose: _Pose) -> dict[str, int]:
    """What a device says of its memory before anything runs on it."""
    limit = pose.chip.usable_hbm_bytes_per_device
    unused = ("bytes_in_use", "peak_bytes_in_use", "bytes_reserved", "largest_alloc_size", "num_allocs")
    return {"bytes_limit": limit, "bytes_reservable_limit": limit, **dict.fromkeys(unused, 0)}


def _place(known: SliceDevice) -> str:
    return ",".join(map(str, known.coords))


_Answer = Callable[[_Pose, SliceDevice], Any]

_OF_DEVICES: Mapping[str, _Answer] = {
    "id": lambda _, known: known.id,
    "platform": lambda pose, _: _platform(pose),
    "device_kind": lambda pose, _: pose.chip.device_kind,
    "coords": lambda _, known: list(known.coords),
    "core_on_chip": lambda _, known: known.core_on_chip,
    "num_cores": lambda pose, _: pose.chip.cores_per_chip // pose.chip.devices_per_chip,
    "slice_index": lambda _, known: known.slice_index,
    "memory_stats": lambda pose, _: lambda: _memory(pose),
    "__repr__": lambda _, known: (
        f"TpuDevice(id={known.id}, process_index=0, coords=({_place(known)}), core_on_chip={known.core_on_chip})"
    ),
    "__str__": lambda _, known: f"TPU_{known.id}(process=0,({_place(known)},{known.core_on_chip}))",
}
"""What a device of a slice says of itself, by the name of the attribute."""
_NUMBERS = ("id", "__repr__", "__str__")
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


def _for_a_slice(original: Callable[..., Any]) -> Callable[..., Any]:
    """One of JAX's functions that say which devices there are, where the backends are a TPU and its host's CPU."""

    def answering(*args: Any, **kwargs: Any) -> Any:
        pose = _posing.pose
        if pose is None:
            return original(*args, **kwargs)
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


def _default_backend(home: Any) -> Callable[[], Any]:
    original = home.default_backend

    def answering() -> Any:
        pose = _posing.pose
        if pose is None or _asked_by_machinery(2):
            return original()
        pose.was_asked = True
        return _platform(pose)

    return answering
