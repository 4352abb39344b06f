"""The pictures of a page: arrays as the mesh cuts them, and the mesh on the physical slice."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hloscope.analysis.model import Analysis, ArrayFact, IntermediateFact
from hloscope.errors import HloscopeError
from hloscope.hlo import HloModule
from hloscope.report.pictures.arrays import shards_svg
from hloscope.report.pictures.drawn import placed_in, shards_in
from hloscope.report.pictures.meshes import mesh_svg

_MOST = 240
"""Arrays that are drawn; those that lie alike are drawn once."""

_STYLE = re.compile(r'^(<svg\b[^>]*?) style="[^"]*"')

_Array = ArrayFact | IntermediateFact


def arrays_drawn(analysis: Analysis) -> dict[str, object]:
    """The pictures of arrays, and for each array the number of its picture and the name that stands in it."""
    known: dict[object, int] = {}
    drawn: list[str] = []
    names: list[str] = []

    def number(array: _Array) -> int | None:
        key = (array.dtype, array.global_shape, array.local_shape, array.sharding)
        if key not in known and len(drawn) < _MOST:
            known[key] = len(drawn)
            drawn.append(_for_page(shards_svg(shards_in(analysis, array))))
            names.append(array.name)
        return known.get(key)

    def numbers(arrays: Iterable[_Array]) -> list[int | None]:
        return [number(array) if array.sharding is not None else None for array in arrays]

    return {
        "arguments": numbers(analysis.arguments),
        "outputs": numbers(analysis.outputs),
        "intermediates": numbers(analysis.intermediates),
        "drawn": drawn,
        "names": names,
    }


def mesh_drawn(analysis: Analysis, module: HloModule | None) -> dict[str, str | None]:
    """The mesh on its slice, with what crosses each link; else why there is none.

    Args:
        analysis: What is known of the program.
        module: Its parsed text; None where that is not known.
    """
    try:
        return {"picture": _for_page(mesh_svg(placed_in(analysis, module))), "why_not": None}
    except HloscopeError as error:
        return {"picture": None, "why_not": error.on_one_line()}


def _for_page(picture: str) -> str:
    """A picture without its own style: the page's says as much, and its policy allows no other."""
    return _STYLE.sub(r"\1", picture)
