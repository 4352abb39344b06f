"""The devices of a slice, which need not be attached, and the device of each partition of a program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

from hloscope.compiler.diagnostics import capture_stderr
from hloscope.compiler.model import DeviceLayout
from hloscope.errors import SliceError
from hloscope.messages import Option, say
from hloscope.tpu.slices import Slice


def find_physical_devices(chosen: Slice, layout: DeviceLayout, notes: list[str]) -> list[Any]:
    """The device of each partition.

    Args:
        chosen: A TPU slice, or simulated CPU devices that this process was started with.
        layout: The program's requirements for its devices.
        notes: Receives a sentence for each choice that the user's own `make_mesh` would not make.

    Raises:
        SliceError: There is no libtpu on this machine, or it does not know the slice.
    """
    if chosen.chip is None:
        import jax

        simulated = jax.devices("cpu")
        return [simulated[number] for number in layout.simulated_ids or range(layout.device_count)]
    physical = find_topology_devices(chosen)
    if layout.simulated_ids is not None:
        return [physical[number] for number in layout.simulated_ids]
    if layout.mesh_shape is None:
        return choose_subset(physical, layout.device_count)
    laid_out = arrange_mesh(layout.mesh_shape, physical, layout.dcn_shape, notes)
    return laid_out if layout.positions is None else [laid_out[position] for position in layout.positions]


def find_topology_devices(chosen: Slice) -> list[Any]:
    """The devices of a TPU slice, from libtpu's ahead-of-time compiler.

    Raises:
        SliceError: There is no libtpu on this machine, or it does not know the slice.
    """
    from jax.experimental import topologies

    with capture_stderr() as stderr:
        try:
            topology = topologies.get_topology_desc(
                chosen.libtpu_topology_name, platform="tpu", **chosen.topology_kwargs
            )
            return list(topology.devices)
        except Exception as error:  # libtpu raises many types; each means that there is no such topology here
            failure = error
    require_libtpu(chosen)
    raise SliceError(
        f"libtpu cannot describe {chosen.name}",
        why=f"{type(failure).__name__}: {failure}\n{stderr.text.strip()[-500:]}".strip(),
        fix="check that libtpu is the version that jax[tpu] pins",
    )


def require_libtpu(chosen: Slice) -> None:
    """Checks that there is a TPU compiler, without loading it.

    Raises:
        SliceError: There is no TPU compiler.
    """
    if chosen.chip is None or os.environ.get("TPU_LIBRARY_PATH") or find_spec("libtpu") is not None:
        return
    raise SliceError(
        f"cannot compile for {chosen.name}: libtpu is not installed here",
        why="libtpu, which contains the TPU compiler, exists only for x86-64 Linux",
        fix=say(
            'on x86-64 Linux: pip install "jax[tpu]"; elsewhere HLO files can be read, and ',
            Option("slice", "cpu:N"),
            " compiles for simulated CPU devices",
        ),
    )


def arrange_mesh(
    mesh_shape: Sequence[int], devices: Sequence[Any], dcn_shape: Sequence[int] | None, notes: list[str]
) -> list[Any]:
    """Lays a logical mesh over physical devices in the order of `jax.make_mesh`.

    Args:
        mesh_shape: Sizes of the mesh axes, DCN included.
        devices: Devices of all slices; more than the mesh has if it is compiled for a subset.
        dcn_shape: The number of slices that each axis spans; None on one slice.
        notes: Receives a sentence for each choice that the user's own `make_mesh` would not make.

    Returns:
        Devices in row-major mesh order.
    """
    from jax.experimental import mesh_utils

    if dcn_shape is not None:
        within = [size // slices for size, slices in zip(mesh_shape, dcn_shape, strict=True)]
        one_slice = [device for device in devices if device.slice_index == devices[0].slice_index]
        splits = not _follows_axes(within, one_slice)
        hybrid = mesh_utils.create_hybrid_device_mesh(
            within, list(dcn_shape), devices=devices, allow_split_physical_axes=splits
        )
        return list(hybrid.flat)
    if prod(mesh_shape) < len(devices):
        return choose_subset(devices, prod(mesh_shape))
    splits = not _follows_axes(mesh_shape, devices)
    if splits:
        notes.append(
            f"a mesh of {tuple(mesh_shape)} does not follow the slice's physical axes: jax.make_mesh would reject it "
            "there; compiled with allow_split_physical_axes=True"
        )
    return list(mesh_utils.create_device_mesh(list(mesh_shape), devices=devices, allow_split_physical_axes=splits).flat)


def choose_subset(devices: Sequence[Any], count: int) -> list[Any]:
    """A number of devices of a slice: the first ones, unless libtpu would take that block for a slice of its own.

    For a program on 2x3 chips of v5e:2x4, libtpu makes rings of the whole slice's length, and ends the process.
    """
    chosen = list(devices)[:count]
    if 2 < count < len(devices):
        edges = [len({device.coords[axis] for device in chosen}) for axis in range(len(chosen[0].coords))]
        cores = len({device.core_on_chip for device in chosen})
        if prod(edges) * cores == count and len(devices) % count:
            chosen[-1] = devices[count]
    return chosen


def _follows_axes(mesh_shape: Sequence[int], devices: Sequence[Any]) -> bool:
    """Returns whether `jax.make_mesh` lays a mesh over a slice without splitting its physical axes."""
    from jax.experimental import mesh_utils

    try:
        mesh_utils.create_device_mesh(list(mesh_shape), devices=devices)
    except (NotImplementedError, ValueError, AssertionError):
        return False
    return True
