"""Arrays that stand for what a program would have returned: zeros of its type and sharding that take no memory."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from hloscope.compiler.jax_watching import give_host_value
from hloscope.errors import HloscopeError
from hloscope.program.arguments import KEY_IMPLEMENTATIONS


class Fakes:
    """The arrays of a recording whose values are not real: made up, or computed from what is."""

    def __init__(self) -> None:
        """Begins with none."""
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._regions: dict[int, int] = {}
        self.is_any = False

    def __contains__(self, value: object) -> bool:
        """Whether the values of an array of JAX's, or of NumPy's over the same memory, are not real."""
        if isinstance(value, np.ndarray):
            address = value.__array_interface__["data"][0]
            return any(start <= address < end for start, end in list(self._regions.items()))
        known = self._arrays.get(id(value))
        return known is not None and known() is value

    def mark(self, array: Any) -> None:
        """Says of an array that its values come from such ones."""
        self.is_any = True
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
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return self._keys(aval, sharding, committed=committed)
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
        self.mark(made)
        return made

    def _keys(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        """Random keys, whose zeros are of another type than they are."""
        shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec = [*sharding.spec, *[None] * (len(shape.shape) - len(sharding.spec))]
            sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
        data = self.array(shape, sharding, committed=committed)
        keys = jax.random.wrap_key_data(data, impl=KEY_IMPLEMENTATIONS.get(str(aval.dtype)))
        self.mark(keys)
        return keys

    def _zeros(self, shape: Sequence[int], dtype: Any, count: int) -> list[np.ndarray[Any, Any]]:
        """So many arrays over memory that the system backs only where it is written."""
        dtype = np.dtype(dtype)
        part_bytes = -(-prod(shape) * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        if not part_bytes:
            return [np.zeros(shape, dtype) for _ in range(count)]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            region = mmap.mmap(-1, part_bytes * count, flags=flags)
        except OSError as error:
            raise HloscopeError(
                f"no address space for an output of {part_bytes * count:,} bytes that is not computed",
                why=error.strerror,
                fix="raise the limit on virtual memory (ulimit -v)",
            ) from error
        whole = np.frombuffer(region, np.uint8)
        start = whole.__array_interface__["data"][0]
        self._regions[start] = start + len(whole)
        weakref.finalize(whole, self._regions.pop, start, None)
        used = prod(shape) * dtype.itemsize
        return [whole[at : at + used].view(dtype).reshape(shape) for at in range(0, len(whole), part_bytes)]
