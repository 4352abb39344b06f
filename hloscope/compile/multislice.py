"""Several slices joined by the data-center network: the mesh axis that crosses it, and the slice of each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.base.errors import MeshError, Option, say

if TYPE_CHECKING:
    import jax


def choose_slices_per_axis(
    axis_sizes: Mapping[str, int], slice_count: int, dcn: Mapping[str, int] | None, notes: list[str]
) -> tuple[int, ...]:
    """The number of slices that each mesh axis spans.

    Args:
        axis_sizes: Size of the whole mesh by axis name.
        slice_count: The number of slices, at least 2.
        dcn: The user's choice; by default the first axis that the slice count divides crosses DCN.
        notes: Receives a sentence when the default is used.

    Raises:
        MeshError: `dcn` names an axis that is not in the mesh, does not divide it or does not make the slice count.
    """
    if not dcn:
        first = next((name for name, size in axis_sizes.items() if size % slice_count == 0), None)
        if first is None:
            raise MeshError(
                f"no mesh axis of {format_axis_sizes(axis_sizes)} can be divided over {slice_count} slices",
                fix=say(
                    "name the axis that crosses DCN, for example ",
                    Option("dcn", {"X": 2}),
                    ", and make its size a multiple",
                ),
            )
        notes.append(
            say(
                f"{first} crosses DCN: it is the first axis that can be divided over {slice_count} slices (choose "
                "another with ",
                Option("dcn"),
                ")",
            )
        )
        dcn = {first: slice_count}
    unknown = [name for name in dcn if name not in axis_sizes]
    if unknown:
        raise MeshError(
            say(
                Option("dcn"),
                f" names {unknown[0]!r}, which is not an axis of the mesh {format_axis_sizes(axis_sizes)}",
            )
        )
    uneven = [name for name, slices in dcn.items() if axis_sizes[name] % slices]
    if uneven or prod(dcn.values()) != slice_count:
        raise MeshError(
            say(Option("dcn", dcn), f" does not fit {slice_count} slices and the mesh {format_axis_sizes(axis_sizes)}"),
            fix=f"the numbers must multiply to {slice_count}, and each must divide its axis",
        )
    return tuple(dcn.get(name, 1) for name in axis_sizes)


def find_slices_per_axis(mesh: jax.sharding.Mesh, slice_count: int) -> tuple[int, ...] | None:
    """The number of slices that each axis of a user's own mesh spans; None without a regular arrangement.

    On a pod, `jax.devices()` lists slice after slice, and the simulated devices represent it in that order.
    """
    per_slice = mesh.size // slice_count
    slice_of = np.array([device.id // per_slice for device in mesh.devices.flat]).reshape(mesh.devices.shape)
    candidates = product(range(1, slice_count + 1), repeat=mesh.devices.ndim)
    return next((slices for slices in candidates if prod(slices) == slice_count and _fits(slices, slice_of)), None)


def assign_slices(mesh_shape: Sequence[int], slices: Sequence[int]) -> np.ndarray[Any, Any]:
    """The slice of each mesh position, as an array of `mesh_shape`, if each axis spans `slices` slices."""
    block = [size // count for size, count in zip(mesh_shape, slices, strict=True)]
    return np.kron(np.arange(prod(slices)).reshape(slices), np.ones(block, dtype=int))


def _fits(slices: Sequence[int], slice_of: np.ndarray[Any, Any]) -> bool:
    if any(size % count for size, count in zip(slice_of.shape, slices, strict=True)):
        return False
    return bool((assign_slices(slice_of.shape, slices) == slice_of).all())


def simulate_hybrid_meshes() -> AbstractContextManager[None]:
    """Makes `mesh_utils.create_hybrid_device_mesh` work on simulated CPU devices, which have no slices.

    The devices count as those of one slice after the other, as on a pod.
    """
    from jax.experimental import mesh_utils

    from hloscope.compile.jax_private import replace_in_this_thread
    from hloscope.compile.simulated_slice import find_posed_slice

    original = mesh_utils.create_hybrid_device_mesh

    def create(mesh_shape: Any, dcn_mesh_shape: Any, devices: Any = None, **options: Any) -> Any:
        import jax

        chosen = list(jax.devices() if devices is None else devices)
        slices = prod(dcn_mesh_shape)
        if find_posed_slice() is not None or chosen[0].platform != "cpu" or prod(mesh_shape) * slices != len(chosen):
            return original(mesh_shape, dcn_mesh_shape, devices, **options)
        dimensions, sizes = len(mesh_shape), np.multiply(dcn_mesh_shape, mesh_shape)
        apart = np.array(chosen, dtype=object).reshape(*dcn_mesh_shape, *mesh_shape)
        return np.moveaxis(apart, range(dimensions), range(0, 2 * dimensions, 2)).reshape(sizes)

    return replace_in_this_thread(mesh_utils, "create_hybrid_device_mesh", create)


def format_axis_sizes(sizes: Mapping[str, int]) -> str:
    """`X=4,Y=2`."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())
