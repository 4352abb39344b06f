"""Telling text that the SPMD partitioner has been through from text that it has yet to see.

Before it, shapes are those of whole arrays and there are no collectives: read as compiled text, such a program would
seem to move nothing.
"""

from __future__ import annotations

from hloscope.analysis.mesh_text import shardy_devices
from hloscope.analysis.model import Mesh, Unmodelled
from hloscope.analysis.unmodelled import not_understood
from hloscope.graph import entry_of
from hloscope.hlo import HloInstruction, HloModule, Sharding

_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_MARKER_PREFIX = "xla.sdy."
_KEEPS_SHARDING = frozenset({"parameter", "send", "send-done", "recv", "recv-done", "infeed", "outfeed"})
"""Opcodes on which compiled text still has shardings: of arguments, and of transfers with the host."""


def not_partitioned(module: HloModule, mesh: Mesh | None = None, *, one_slice: bool = False) -> Unmodelled | None:
    """What shows that a program is not partitioned yet; None for compiled text.

    A program for one device has nothing to partition: compilers leave what they find of meshes and shardings in it.

    Args:
        module: The module.
        mesh: The user's mesh.
        one_slice: Whether the text is the program of one slice of several, which may have a single device.

    Source: JAX's `lowered.as_text("hlo")`, which has Shardy's meshes in the header and no `num_partitions`; and XLA's
        dumps from before the pass `spmd-partitioning`, which have shardings on all instructions.
    """
    entry = entry_of(module)
    last = module.computations[-1].root if entry is None else entry.root
    if "xla.sdy.meshes" in module.header.get("frontend_attributes", "") and shardy_devices(module) != 1:
        return _entry(last, "its header still names Shardy's meshes")
    devices = module.num_partitions * module.replica_count
    for parameter in entry.parameters if entry is not None else ():
        if devices == 1 and not one_slice and _devices_of(parameter.sharding) > 1:
            return _entry(parameter, f"it has one device, but %{parameter.name} is sharded over more")
    alone = devices == 1 and (shardy_devices(module) == 1 or (mesh is not None and mesh.device_count == 1))
    marker = _first_marker(module, devices, alone)
    return None if marker is None else _entry(marker, f"%{marker.name} still asks for a sharding")


def made_for_one_device(module: HloModule, mesh: Mesh | None, *, one_slice: bool = False) -> Unmodelled | None:
    """What is to be told of a program for one device that is said to run on a mesh of several; None for all others.

    Args:
        module: The module, in which there are no collectives.
        mesh: The user's mesh.
        one_slice: Whether the text is the program of one slice of several, which may have a single device.
    """
    if mesh is None or mesh.device_count == 1 or one_slice or module.num_partitions * module.replica_count > 1:
        return None
    axes = " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return Unmodelled(
        what=f"the program is compiled for one device, and the mesh {axes} has {mesh.device_count}",
        effect="nothing in it is sharded, so it says nothing about what moves on that mesh",
    )


def _entry(instruction: HloInstruction, evidence: str) -> Unmodelled:
    return not_understood(
        instruction,
        f"the program is not partitioned yet: {evidence}",
        "shapes are those of whole arrays, and the compiler has yet to put its collectives in",
    )


def _first_marker(module: HloModule, devices: int, alone: bool) -> HloInstruction | None:
    """The first custom call or sharding that the partitioner would have taken away.

    Args:
        module: The module.
        devices: Devices that the text counts.
        alone: Whether one device is all that the program is for.
    """
    for instruction in module.with_opcodes(["custom-call"] if not alone else []):
        if _is_marker(instruction, devices):
            return instruction
    entry = entry_of(module)
    if module.is_scheduled or entry is None:
        return None
    for instruction in entry.instructions:
        is_result = instruction.is_root and instruction.opcode == "tuple"
        if instruction.opcode not in _KEEPS_SHARDING and not is_result and _devices_of(instruction.sharding) > 1:
            return instruction
    return None


def _is_marker(instruction: HloInstruction, devices: int) -> bool:
    target = instruction.custom_call_target or ""
    if target == "Sharding" and devices == 1:
        return _devices_of(instruction.sharding) > 1
    return target in _MARKERS or target.startswith(_MARKER_PREFIX)


def _devices_of(sharding: Sharding | None) -> int:
    """Devices that a sharding tells apart; 1 for replicated and unknown ones."""
    if sharding is None:
        return 1
    return max([len(sharding.devices), *(_devices_of(element) for element in sharding.elements)])
