"""Arrays that stand for what a program would have returned: zeros of its type and sharding that take no memory."""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from hloscope.compiler.jax_watching import first_address, give_host_value
from hloscope.errors import HloscopeError
from hloscope.program.arguments import KEY_IMPLEMENTATIONS

COUNTED_BYTES = 1_000_000
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Lets a region be larger than the machine's memory; Python knows it by name from 3.13 on. (Linux: mman-common.h.)"""


class Held:
    """How many bytes the arrays take that are real, as long as they are there."""

    def __init__(self) -> None:
        """Begins with none."""
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self.total_bytes = 0

    def add(self, array: Any) -> None:
        """Counts an array of JAX's, where it is large enough to count; one that is counted is not counted again."""
        count = getattr(array, "nbytes", 0)
        if count < COUNTED_BYTES or id(array) in self._arrays or not isinstance(array, jax.Array):
            return
        local = prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        held = local * len(array.sharding.addressable_devices)
        key = id(array)
        self.total_bytes += held
        self._arrays[key] = weakref.ref(array, lambda _: self._remove(key, held))

    def _remove(self, key: int, held: int) -> None:
        self._arrays.pop(key, None)
        self.total_bytes -= held


class Fakes:
    """The arrays of a recording whose values are not real: made up, or computed from what is."""

    def __init__(self, before_the_first: Callable[[], None] = lambda: None) -> None:
        """Begins with none; `before_the_first` is called before there is one."""
        self._before_the_first = before_the_first
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._lock = threading.RLock()
        self._making = threading.local()
        self.is_any = False

    def __contains__(self, value: object) -> bool:
        """Whether the values of an array of JAX's, or of NumPy's over the same memory, are not real."""
        if isinstance(value, np.ndarray):
            return self._is_ours(value.__array_interface__["data"][0])
        known = self._arrays.get(id(value))
        if known is not None and known() is value:
            return True
        is_large = self.is_any and isinstance(value, jax.Array) and value.nbytes >= COUNTED_BYTES
        return is_large and self._is_ours(first_address(value))

    def _is_ours(self, address: int | None) -> bool:
        """Whether an address is of memory that nobody has written: a part of an array of ours, or a view of it."""
        if address is None:
            return False
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            return at >= 0 and address < self._ends[self._starts[at]]

    def _forget(self, start: int) -> None:
        with self._lock:
            self._starts.remove(start)
            del self._ends[start]

    def are_made_here(self) -> bool:
        """Whether this thread is making one, for which JAX is asked to put zeros on devices."""
        return getattr(self._making, "depth", 0) > 0

    def _begin(self) -> None:
        if not self.is_any:
            self._before_the_first()
            self.is_any = True

    def zeros(self, shape: tuple[int, ...], dtype: Any, sharding: jax.sharding.Sharding | None) -> Any:
        """An array of JAX's, or of NumPy's where there is no sharding, of zeros that nobody has written down."""
        if sharding is None:
            return self._zeros(shape, dtype, 1)[0]
        return self.array(jax.ShapeDtypeStruct(shape, dtype), sharding, committed=True)

    def mark(self, array: Any) -> None:
        """Says of an array that its values come from such ones."""
        self._begin()
        key = id(array)
        self._arrays[key] = weakref.ref(array, lambda _: self._arrays.pop(key, None))

    def array(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        """An array of zeros that nobody has written down.

        Args:
            aval: Its shape and type.
            sharding: How it lies on devices.
            committed: Whether it must stay there.

        Raises:
            HloscopeError: The system gives no address space for it.
        """
        self._begin()
        self._making.depth = getattr(self._making, "depth", 0) + 1
        try:
            is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
            made = (self._keys if is_key else self._made)(aval, sharding, committed=committed)
        finally:
            self._making.depth -= 1
        self.mark(made)
        return made

    def _made(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        local, devices = sharding.shard_shape(aval.shape), sharding.addressable_devices
        parts = self._zeros(local, aval.dtype, len(devices))
        if not committed and len(devices) == 1:
            made = jax.device_put(parts[0], may_alias=True)
        else:
            kind = sharding.memory_kind
            ordered = list(sharding.addressable_devices_indices_map(aval.shape))
            homes = [jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for device in ordered]
            shards = [jax.device_put(part, home, may_alias=True) for part, home in zip(parts, homes, strict=True)]
            made = jax.make_array_from_single_device_arrays(aval.shape, sharding, shards)
            if len(parts) > 1:
                give_host_value(made, self._zeros(aval.shape, aval.dtype, 1)[0])
        return made

    def _keys(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        """Random keys, whose zeros are of another type than they are."""
        shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec = [*sharding.spec, *[None] * (len(shape.shape) - len(sharding.spec))]
            sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
        data = self.array(shape, sharding, committed=committed)
        return jax.random.wrap_key_data(data, impl=KEY_IMPLEMENTATIONS.get(str(aval.dtype)))

    def _zeros(self, shape: Sequence[int], dtype: Any, count: int) -> list[np.ndarray[Any, Any]]:
        """So many arrays over memory that the system backs only where it is written."""
        dtype = np.dtype(dtype)
        part_bytes = -(-prod(shape) * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        if not part_bytes:
            return [np.zeros(shape, dtype) for _ in range(count)]
        try:
            region = mmap.mmap(-1, part_bytes * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except OSError as error:
            raise HloscopeError(
                f"not enough address space for an output of {part_bytes * count:,} bytes that is not computed",
                why=error.strerror,
                fix="raise the limit of virtual memory (ulimit -v)",
            ) from error
        whole = np.frombuffer(region, np.uint8)
        start = whole.__array_interface__["data"][0]
        with self._lock:
            insort(self._starts, start)
            self._ends[start] = start + len(whole)
        weakref.finalize(whole, self._forget, start)
        used = prod(shape) * dtype.itemsize
        return [whole[at : at + used].view(dtype).reshape(shape) for at in range(0, len(whole), part_bytes)]
