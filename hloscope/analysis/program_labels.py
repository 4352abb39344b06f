"""Labels for programs with the same name that are shown together, such as two shardings of one function."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.model import Analysis, ArrayFact, Mesh

_MOST_ARRAYS = 2


def label_programs(names: Sequence[str], programs: Sequence[Analysis | None]) -> tuple[str, ...]:
    """The names, with differences added to equal ones: `step (v5e:2x4)`, `step (w: P('X'))`.

    Args:
        names: The names that the user gave them.
        programs: Their analyses; None for an unknown one.
    """
    shown = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        words = _find_distinctions([programs[place] for place in places])
        for place, said in zip(places, words, strict=True):
            shown[place] = f"{name} ({said})"
    return tuple(shown)


def _find_distinctions(programs: Sequence[Analysis | None]) -> Sequence[str]:
    """The words that distinguish each program from all others; a number if nothing does."""
    known = [program for program in programs if program is not None]
    if len(known) == len(programs):
        slices = ["" if program.slice is None else program.slice.name for program in known]
        meshes = ["" if program.mesh is None else _render_mesh(program.mesh) for program in known]
        arguments = _describe_differences([program.arguments for program in known])
        outputs = _describe_differences([program.outputs for program in known])
        for words in (slices, meshes, arguments, outputs):
            if all(words) and len(set(words)) == len(words):
                return words
    return [str(number) for number, _ in enumerate(programs, start=1)]


def _render_mesh(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def _describe_differences(sides: Sequence[Sequence[ArrayFact]]) -> list[str]:
    """The arrays of each program whose sharding differs between the programs; the first ones if there are many."""
    said = [[f"{array.name}: {array.sharding}" for array in side] for side in sides]
    places = [place for place, alike in enumerate(zip(*said, strict=False)) if len(set(alike)) > 1]
    more = ", …" if len(places) > _MOST_ARRAYS else ""
    return [", ".join(words[place] for place in places[:_MOST_ARRAYS]) + more for words in said]
