"""Programs with the same name shown together, such as two shardings of one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hloscope.analysis.model import Analysis

_MOST_ARRAYS = 2


def told_apart(names: Sequence[str], programs: Sequence[Analysis | None]) -> tuple[str, ...]:
    """The names, and behind those that coincide what the programs differ in: `step (v5e:2x4)`, `step (w: P('X'))`.

    Args:
        names: What the user called them.
        programs: What is known of them; None for one of which that is nothing.
    """
    shown = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        words = _words([programs[place] for place in places])
        for place, said in zip(places, words, strict=True):
            shown[place] = f"{name} ({said})"
    return tuple(shown)


def _words(programs: Sequence[Analysis | None]) -> Sequence[str]:
    """For each program what no other of them has in common with it; a number where nothing is so."""
    known = [program for program in programs if program is not None]
    if len(known) == len(programs):
        for ask in (_slice, _mesh, _differing(known, _arguments), _differing(known, _outputs)):
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


def _differing(programs: Sequence[Analysis], ask: Callable[[Analysis], Iterator[str]]) -> Callable[[Analysis], str]:
    """Those of a program's arrays whose sharding is not that of all the others, as far as they are few."""
    sides = [list(ask(program)) for program in programs]
    places = [place for place, same in enumerate(zip(*sides, strict=False)) if len(set(same)) > 1]

    def words(program: Analysis) -> str:
        mine = list(ask(program))
        more = ", …" if len(places) > _MOST_ARRAYS else ""
        return ", ".join(mine[place] for place in places[:_MOST_ARRAYS]) + more

    return words
