"""Signs that a mesh given beside a text is not the one that the program was compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from hloscope.analysis.axes import axes_of_groups
from hloscope.analysis.groups import Groups
from hloscope.analysis.mesh_text import meshes_in_text
from hloscope.analysis.model import Collective, Mesh
from hloscope.analysis.vocabulary import Kind
from hloscope.hlo import HloModule

_MOST_AXES = 4
_MOST_GROUPS = 32
"""Different groups tried with each order of the axes."""


def doubts_about_mesh(module: HloModule, mesh: Mesh, collectives: Sequence[Collective]) -> Iterator[str]:
    """Compares a mesh with the names in the text, and its order with the groups of the collectives.

    Args:
        module: The module.
        mesh: The mesh that was given.
        collectives: What was found with it.
    """
    named: Mesh | None = None
    for one in meshes_in_text(module):
        if _may_be(_axes(one), _axes(mesh)):
            return
        named = named or one
    better = _order_of_whole_axes(mesh, collectives)
    if named is not None:
        yield f"the text names the mesh {_words(named)}, and {_words(mesh)} was given, whose names are used"
    elif better is not None:
        yield (
            f"with its axes in the order {_words(better)} all collectives would run over whole axes of the mesh: "
            f"the order {_words(mesh)} is likely not the program's"
        )


def _axes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The axes that tell devices apart."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return tuple((name, size) for name, size in axes if size > 1)


def _may_be(named: tuple[tuple[str, int], ...], given: tuple[tuple[str, int], ...]) -> bool:
    """Whether two meshes are one, perhaps under other names."""
    renamed = not {name for name, _ in named} & {name for name, _ in given}
    return named == given or (renamed and [size for _, size in named] == [size for _, size in given])


def _words(mesh: Mesh) -> str:
    return " ".join(f"{name}={size}" for name, size in _axes(mesh))


def _order_of_whole_axes(mesh: Mesh, collectives: Sequence[Collective]) -> Mesh | None:
    """The mesh in the one other order in which no collective splits an axis, where all do in its own.

    One alone proves nothing: to change a sharding takes groups over parts of axes. Those of all devices fit any order.
    """
    axes = _axes(mesh)
    groups = {one.groups for one in collectives if len(one.groups) > 1 and one.kind is not Kind.COLLECTIVE_PERMUTE}
    if not 1 < len(axes) <= _MOST_AXES or not 1 < len(groups) <= _MOST_GROUPS:
        return None
    if any(_all_whole(mesh, {one}) for one in groups):
        return None
    orders = (
        Mesh(axis_names=tuple(name for name, _ in order), axis_sizes=tuple(size for _, size in order))
        for order in permutations(axes)
    )
    fitting = [order for order in orders if _all_whole(order, groups)]
    return fitting[0] if len(fitting) == 1 else None


def _all_whole(mesh: Mesh, groups: set[Groups]) -> bool:
    found = (axes_of_groups(one, mesh) for one in groups)
    return all(axes is not None and set(axes) <= set(mesh.axis_names) for axes in found)
