"""Labels for programs with the same name that are shown together, such as two shardings of one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hloscope.model import Analysis

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
        for ask in (_slice, _mesh, _make_renderer(known, _arguments), _make_renderer(known, _outputs)):
            words = [ask(program) for program in known]
            if all(words) and len(set(words)) == len(words):
                return words
    return [str(number) for number, _ in enumerate(programs, start=1)]


def _slice(program: Analysis) -> str:
    return "" if program.slice is None else program.slice.name


def _mesh(program: Analysis) -> str:
    mesh = program.mesh
    if mesh is None:
        return ""
    return ",".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def _arguments(program: Analysis) -> Iterator[str]:
    return (f"{array.name}: {array.sharding}" for array in program.arguments)


def _outputs(program: Analysis) -> Iterator[str]:
    return (f"{array.name}: {array.sharding}" for array in program.outputs)


def _make_renderer(programs: Sequence[Analysis], ask: Callable[[Analysis], Iterator[str]]) -> Callable[[Analysis], str]:
    """A function that describes those arrays of a program whose sharding differs between the programs, if few do."""
    sides = [list(ask(program)) for program in programs]
    places = [place for place, same in enumerate(zip(*sides, strict=False)) if len(set(same)) > 1]

    def words(program: Analysis) -> str:
        mine = list(ask(program))
        more = ", …" if len(places) > _MOST_ARRAYS else ""
        return ", ".join(mine[place] for place in places[:_MOST_ARRAYS]) + more

    return words
