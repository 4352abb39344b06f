"""Pictures of an analysis, as `Analysis.array` and `Analysis.mesh_picture` hand them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hloscope import given
from hloscope.analysis.model import Analysis, ArrayFact, IntermediateFact, Mesh
from hloscope.analysis.model.evidence import evidence_if_known
from hloscope.analysis.model.picture import Picture
from hloscope.analysis.shards import Shards, shards_of
from hloscope.cost.link_traffic import link_traffic
from hloscope.cost.placed import PlacedMesh, placed_mesh
from hloscope.errors import HloscopeError, did_you_mean
from hloscope.hlo import HloModule
from hloscope.report.layout import drawn
from hloscope.report.pictures.arrays import shards_svg
from hloscope.report.pictures.boxes import shards_lines
from hloscope.report.pictures.mesh_boxes import mesh_lines
from hloscope.report.pictures.meshes import mesh_svg
from hloscope.shardy.shardings import ShardedArray

_Array = TypeVar("_Array", ArrayFact | IntermediateFact, ShardedArray)
_WIDTH = 100
_ONE_DEVICE = Mesh(axis_names=(), axis_sizes=())
_NEAR = 3


def array_picture(found: Analysis, name: str) -> Picture:
    """An argument, an output or a large intermediate of an analyzed program, cut into its shards.

    Args:
        found: The analysis.
        name: The array's name, as reports have it.

    Raises:
        HloscopeError: There is no such array.
    """
    arrays: tuple[ArrayFact | IntermediateFact, ...] = (*found.arguments, *found.outputs, *found.intermediates)
    return picture_of(shards_in(found, named(arrays, name, found.target)))


def picture_of(shards: Shards) -> Picture:
    """An array cut into its shards, drawn."""
    text = drawn(shards_lines(shards, _WIDTH), _WIDTH, False).rstrip("\n")
    return Picture(title=f"{shards.name}, {shards.sharding or 'unknown sharding'}", svg=shards_svg(shards), text=text)


def shards_in(found: Analysis, array: ArrayFact | IntermediateFact) -> Shards:
    """Who holds what of an array of an analyzed program; devices are numbered as JAX does, where that is known."""
    evidence = evidence_if_known(found)
    device_ids = None if evidence is None else evidence.program.compiled.device_ids or None
    mesh = _ONE_DEVICE if found.mesh is None and found.num_partitions == 1 else found.mesh
    return shards_of(array, mesh, device_ids=device_ids)


def named(arrays: Sequence[_Array], name: str, target: str) -> _Array:
    """The array of a name.

    Args:
        arrays: Those that there are.
        name: The name.
        target: What they are arrays of.

    Raises:
        HloscopeError: There is none of that name.
    """
    array = next((array for array in arrays if array.name == name), None)
    if array is not None:
        return array
    names = list(dict.fromkeys(array.name for array in arrays))
    shown = ", ".join(names[:_NEAR]) + (f" and {len(names) - _NEAR} more" if len(names) > _NEAR else "")
    raise HloscopeError(
        f"{target} has no array {given.shown(name)} among its arguments, outputs and large intermediates",
        fix=did_you_mean(str(name), names, f"it has {shown}" if names else None, most=_NEAR),
    )


def mesh_picture(found: Analysis) -> Picture:
    """The mesh of an analyzed program on its slice.

    Raises:
        HloscopeError: It has no TPU slice.
    """
    placed = placed_in(found)
    text = drawn(mesh_lines(placed, _WIDTH), _WIDTH, False).rstrip("\n")
    return Picture(title=f"the mesh of {found.target} on {placed.slice.name}", svg=mesh_svg(placed), text=text)


def placed_in(found: Analysis, module: HloModule | None = None) -> PlacedMesh:
    """The mesh of an analyzed program on its slice, with what crosses the links where the program is known.

    Args:
        found: The analysis.
        module: Its parsed text, where somebody has it.

    Raises:
        HloscopeError: It has no TPU slice.
    """
    evidence = evidence_if_known(found)
    if evidence is None:
        return placed_mesh(found)
    program = evidence.program
    return placed_mesh(
        found,
        chosen=program.slice,
        device_ids=program.compiled.device_ids or None,
        traffic=link_traffic(program, module or evidence.module(), found),
    )
