"""The stage itself: from a parsed module to an `Analysis`."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.arrays import arguments_of, largest_intermediates, outputs_of
from hloscope.analysis.collectives import find_collectives
from hloscope.analysis.doubts import made_for_one_device, not_partitioned, notes_on, unread_instructions
from hloscope.analysis.mesh_text import mesh_from_text
from hloscope.analysis.model import Analysis, Collective, Memory, Mesh, Unmodelled
from hloscope.analysis.placement import Placement, lay_out
from hloscope.analysis.totals import largest_first, totals_of
from hloscope.graph import HloGraph, entry_of
from hloscope.hlo import HloModule, collector_paused


def analyze_module(
    module: HloModule,
    *,
    target: str,
    mesh: Mesh | None,
    devices_per_slice: int | None = None,
    placement: Placement | None = None,
) -> Analysis:
    """Finds what a compiled module moves.

    Args:
        module: The parsed module.
        target: What the user named, as it is to be shown.
        mesh: The user's mesh; None to take what names the text has.
        devices_per_slice: Devices of one slice when the program runs on several; None when there is one slice.
        placement: The slice and the device of each partition when the program runs on several slices. By default each
            slice has as many consecutive partitions as the text counts, and devices cannot be known.

    Returns:
        The facts that the text holds. Slice, memory and versions are left for whoever compiled it.
    """
    with collector_paused():
        return _analysis(module, target, mesh, devices_per_slice, placement)


def collectives_alone(module: HloModule, mesh: Mesh | None) -> tuple[Collective, ...]:
    """The collectives of a module in the order of its text, without their data flow and executions."""
    with collector_paused():
        mesh = mesh_from_text(module) if mesh is None else mesh
        layout = lay_out(_devices(module), mesh)
        found = find_collectives(HloGraph(module), mesh, layout, follows=False)
    return tuple(sorted((move.collective for move in found.moves), key=lambda collective: collective.line))


def _analysis(
    module: HloModule, target: str, mesh: Mesh | None, devices_per_slice: int | None, placement: Placement | None
) -> Analysis:
    mesh = mesh_from_text(module) if mesh is None else mesh
    layout = lay_out(_devices(module), mesh, devices_per_slice=devices_per_slice, placement=placement)
    graph = HloGraph(module)
    found = find_collectives(graph, mesh, layout)
    whole = not_partitioned(module, mesh, one_slice=layout.one_slice)
    alone = None if whole or found.moves else made_for_one_device(module, mesh, one_slice=layout.one_slice)
    doubts = (doubt for doubt in (whole, alone) if doubt is not None)
    unread = (*unread_instructions(module), *_cut_off(module), *doubts)
    return Analysis(
        target=target,
        module=module.name,
        slice=None,
        mesh=mesh,
        num_partitions=module.num_partitions,
        collectives=largest_first(move.collective for move in found.moves),
        totals=totals_of(
            [move.collective for move in found.moves],
            [move.reaches for move in found.moves],
            hidden=found.hidden or bool(unread),
        ),
        arguments=arguments_of(module, mesh, partitioned=whole is None),
        outputs=outputs_of(module, mesh, partitioned=whole is None),
        intermediates=largest_intermediates(graph) if whole is None else (),
        memory=Memory(),
        unmodelled=tuple(dict.fromkeys((*found.unmodelled, *unread))),
        notes=notes_on(module, mesh, found, assumed=layout.guessed),
    )


def _devices(module: HloModule) -> int:
    """Devices that the text counts."""
    return module.num_partitions * module.replica_count


def _cut_off(module: HloModule) -> Iterator[Unmodelled]:
    last = module.computations[-1].name
    if not module.truncated and _lost_its_entry(module):
        yield Unmodelled(
            what=f"no computation is marked ENTRY: %{last}, the last one, is taken for it",
            effect="the text is likely cut off between two computations; what came after is in no total, so totals "
            "are lower bounds",
            computation=last,
        )
    if module.truncated and entry_of(module) is None:
        yield Unmodelled(
            what=f"the text is cut off before ENTRY, after %{last}, its last whole computation",
            effect="nothing tells how often what there is runs: it is counted as if it ran once, so every count and "
            "total is a lower bound; arguments, outputs and intermediates are not known",
            computation=last,
        )
    elif module.truncated:
        yield Unmodelled(
            what=f"the text is cut off, or broken, after %{last}, its last whole computation",
            effect="what came after it is in no total, so totals are lower bounds",
            computation=last,
        )


def _lost_its_entry(module: HloModule) -> bool:
    """Whether the ENTRY that compilers print is missing; without it, text written by hand begins in its last part."""
    if module.mentions("ENTRY"):
        return False
    is_called = {
        name
        for computation in module.computations
        for instruction in computation.calling
        for _, name in instruction.called
    }
    alone = len(is_called) < len(module.computations) - 1
    return "entry_computation_layout" in module.header or alone
