"""What the user should know about how axis names were found, or why they were not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloscope.analysis.collectives import Found
from hloscope.analysis.mesh_doubts import doubts_about_mesh
from hloscope.analysis.model import Mesh
from hloscope.hlo import HloModule

_NAMED = 3
"""Instructions that a note names before it says how many more there are."""


def notes_on(module: HloModule, mesh: Mesh | None, found: Found, *, assumed: bool) -> tuple[str, ...]:
    """One sentence for each thing to know.

    Args:
        module: The module.
        mesh: The user's mesh, or the one that the text names.
        found: Its collectives.
        assumed: Whether it is only assumed which part of the mesh a slice holds.
    """
    return () if mesh is None else tuple(_notes(module, mesh, found, assumed=assumed))


def _notes(module: HloModule, mesh: Mesh, found: Found, *, assumed: bool) -> Iterator[str]:
    devices = module.num_partitions * module.replica_count
    if devices > 1 and mesh.device_count % devices:
        yield (
            f"the mesh has {mesh.device_count} devices and the program has {devices} partitions, "
            "so collectives cannot be named by mesh axes"
        )
        return
    if mesh.axis_types is None:
        yield from doubts_about_mesh(module, mesh, [move.collective for move in found.moves])
    if assumed:
        yield (
            "the text is the program of one slice and does not say which part of the mesh a slice holds: taken to be "
            f"{devices} consecutive devices, so axis names are right only if the axis across slices is the major one"
        )
    unplaced = [move.collective.name for move in found.moves if move.transfer.device_ids]
    if unplaced:
        yield (
            f"the mesh axes of {_names(unplaced)} are not known: the text names devices, and does not tell which "
            "partition runs on which of them"
        )
    unmatched = [
        move.collective.name
        for move in found.moves
        if move.collective.axes is None and move.collective.groups and not move.transfer.device_ids
    ]
    if unmatched:
        yield f"the groups of {_names(unmatched)} follow no axes of the mesh, and are shown as they are"


def _names(instructions: Iterable[str]) -> str:
    names = [f"%{name}" for name in dict.fromkeys(instructions)]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
