"""The stage itself: from a parsed module to an `Analysis`."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.arrays import arguments_of, outputs_of
from hloscope.analysis.collectives import find_collectives
from hloscope.analysis.mesh_text import mesh_from_text
from hloscope.analysis.model import Analysis, Memory, Mesh, Unmodelled
from hloscope.analysis.totals import largest_first, totals_of
from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction, HloModule

_NOT_PARTITIONED = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_NOT_PARTITIONED_PREFIX = "xla.sdy."


def analyze_module(
    module: HloModule, *, target: str, mesh: Mesh | None, devices_per_slice: int | None = None
) -> Analysis:
    """Finds what a compiled module moves.

    Args:
        module: The parsed module.
        target: What the user named, as it is to be shown.
        mesh: The user's mesh; None to take what names the text has.
        devices_per_slice: Devices of one slice when the program runs on several; None when there is one slice.

    Returns:
        The facts that the text holds. Slice, memory and versions are left for whoever compiled it.
    """
    mesh = mesh_from_text(module) if mesh is None else mesh
    graph = HloGraph(module)
    found = find_collectives(graph, mesh, devices_per_slice)
    unread = tuple(_unread(module))
    collectives = largest_first(found.collectives)
    return Analysis(
        target=target,
        module=module.name,
        slice=None,
        mesh=mesh,
        num_partitions=module.num_partitions,
        collectives=collectives,
        totals=totals_of(collectives, hidden=found.hidden or bool(unread)),
        arguments=arguments_of(module, mesh),
        outputs=outputs_of(module, mesh),
        memory=Memory(),
        unmodelled=tuple(dict.fromkeys((*found.unmodelled, *unread))),
        notes=tuple(_notes(module, mesh)),
    )


def _unread(module: HloModule) -> Iterator[Unmodelled]:
    """What may hide transfers: opcodes that are not known, and text from before the compiler put transfers in."""
    unknown = dict.fromkeys(module.unknown_opcodes)
    for opcode, instruction in _first_uses(module, set(unknown)).items():
        yield Unmodelled(
            what=f"opcode {opcode} is not known",
            effect="it may move data between devices that totals do not count",
            computation=instruction.computation.name,
            instruction=instruction.name,
            line=instruction.line,
        )
    if module.num_partitions > 1:
        marker = next(_sharding_markers(module), None)
        if marker is not None:
            yield Unmodelled(
                what=f"the program is not partitioned yet: %{marker.name} still asks for a sharding",
                effect="shapes may be those of whole arrays, and the compiler has yet to put its collectives in",
                computation=marker.computation.name,
                instruction=marker.name,
                line=marker.line,
            )


def _first_uses(module: HloModule, opcodes: set[str]) -> dict[str, HloInstruction]:
    uses: dict[str, HloInstruction] = {}
    if opcodes:
        for computation in module.computations:
            for instruction in computation.instructions:
                if instruction.opcode in opcodes:
                    uses.setdefault(instruction.opcode, instruction)
    return uses


def _sharding_markers(module: HloModule) -> Iterator[HloInstruction]:
    """Custom calls that the partitioner would have taken away."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "custom-call":
                name = instruction.custom_call_target or ""
                if name in _NOT_PARTITIONED or name.startswith(_NOT_PARTITIONED_PREFIX):
                    yield instruction


def _notes(module: HloModule, mesh: Mesh | None) -> Iterator[str]:
    devices = module.num_partitions * module.replica_count
    if mesh is not None and devices > 1 and mesh.device_count % devices:
        yield (
            f"the mesh has {mesh.device_count} devices and the program has {devices} partitions, "
            "so collectives cannot be named by mesh axes"
        )
