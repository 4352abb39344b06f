"""Source places in compiler texts: read from a lowered program, and moved where the same program has moved.

A program that is kept from an earlier compile is the same one as today's but, perhaps, for the lines it is written on.
Its operations stand in the same order, so the places of one are those of the other, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hloscope.compiler.shardy_model import CodePlace, ShardyModule
from hloscope.launchers import is_launcher

Place = tuple[str, int, int]
"""A file, a line and a column, the latter two from 1."""

Places = tuple[tuple[Place, ...], ...]
"""The frames of every operation in order, innermost first, up to the first frame that only starts the program."""

_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_USE = re.compile(r"loc\((#loc\d*)\)")
_NAMED_ARGUMENT = re.compile(r'loc\(("(?:[^"\\]|\\.)*")\)')
_PARTS = re.compile(r'"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)|(?P<alias>#loc\d*)|"(?:[^"\\]|\\.)*"')
_NAMES = re.compile(r'(?:^|\n)FileNames\n(?P<names>(?:\d+ "(?:[^"\\]|\\.)*"\n)*)')
_NAME = re.compile(r'(?P<id>\d+) "(?P<file>(?:[^"\\]|\\.)*)"')
_LOCATION = re.compile(
    r"(?P<head>^\d+ \{file_name_id=(?P<file>\d+) function_name_id=\d+) line=(?P<line>\d+) end_line=(?P<end_line>\d+) "
    r"column=(?P<column>\d+) end_column=(?P<end_column>\d+)\}$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    """Where the operations of a program were written, and under which names.

    Attributes:
        places: Files, lines and columns, which move without changing the program.
        names: The arguments; then for every operation in order its functions and scopes.
    """

    places: Places
    names: tuple[tuple[str, ...], ...]


def locations_of(text: str) -> Locations:
    """The locations of every operation of a module in MLIR, printed with its locations."""
    definitions = {match[1]: match[2] for match in _DEFINITION.finditer(text)}
    expanded: dict[str, tuple[Place | str, ...]] = {}

    def expand(alias: str) -> tuple[Place | str, ...]:
        if alias not in expanded:
            found: list[Place | str] = []
            for part in _PARTS.finditer(definitions.get(alias, "")):
                if part["alias"]:
                    found += expand(part["alias"])
                elif part["file"] is not None:
                    found.append((part["file"], int(part["line"]), int(part["column"])))
                else:
                    found.append(part[0])
            expanded[alias] = tuple(found)
        return expanded[alias]

    begin = text.find("module")
    body = text[begin : first.start()] if (first := _DEFINITION.search(text, begin)) else text[begin:]
    stacks = [_users(expand(use[1])) for use in _USE.finditer(body)]
    names = (tuple(part for part in stack if isinstance(part, str)) for stack in stacks)
    return Locations(
        places=tuple(tuple(part for part in stack if not isinstance(part, str)) for stack in stacks),
        names=(tuple(_NAMED_ARGUMENT.findall(body)), *names),
    )


def _users(parts: Sequence[Place | str]) -> tuple[Place | str, ...]:
    """Up to the first frame that only starts the program, whose function's name stands before its place."""
    owns = (index for index, part in enumerate(parts) if not isinstance(part, str) and is_launcher(part[0]))
    end = next(owns, None)
    return tuple(parts if end is None else parts[: max(0, end - 1)])


def moves_between(old: Places, new: Places) -> dict[Place, Place] | None:
    """Where each place of a program is now; None where that cannot be told.

    It cannot where the operations do not have the same frames, or where one place has become two.
    """
    moves: dict[Place, Place] = {}
    if len(old) != len(new):
        return None
    for before, after in zip(old, new, strict=True):
        if len(before) != len(after):
            return None
        for one, other in zip(before, after, strict=True):
            if moves.setdefault(one, other) != other:
                return None
    return moves


def moved(module: ShardyModule, moves: Mapping[Place, Place]) -> ShardyModule:
    """A propagated module with its places moved; places that are not among the moves are not the user's, and stay."""
    stacks: dict[tuple[CodePlace, ...], tuple[CodePlace, ...]] = {}

    def there(place: CodePlace) -> CodePlace:
        file, line, column = moves.get((place.file, place.line, place.column), (place.file, place.line, place.column))
        return CodePlace(file=file, line=line, column=column, function=place.function)

    def moved_stack(stack: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
        if stack not in stacks:
            stacks[stack] = tuple(map(there, stack))
        return stacks[stack]

    return replace(module, ops=tuple(replace(op, source=moved_stack(op.source)) for op in module.ops))


def relocated_hlo(text: str, moves: Mapping[Place, Place]) -> str | None:
    """HLO text with the places in its tables moved; None where files do not move as wholes."""
    names = _NAMES.search(text)
    if names is None:
        return text
    files = {match["id"]: match["file"] for match in _NAME.finditer(names["names"])}
    renamed = _renamed(files, moves)
    if renamed is None:
        return None

    def replace(match: re.Match[str]) -> str:
        line, column = int(match["line"]), int(match["column"])
        place = (files.get(match["file"], ""), line, column)
        _, new_line, new_column = moves.get(place, place)
        return (
            f"{match['head']} line={new_line} end_line={int(match['end_line']) + new_line - line} "
            f"column={new_column} end_column={int(match['end_column']) + new_column - column}}}"
        )

    start, end = names.span("names")
    table = "".join(f'{number} "{renamed.get(file, file)}"\n' for number, file in files.items())
    tables_end = text.find("\n\n\n", end)
    head, tables, rest = text[:start], text[end : tables_end + 1], text[tables_end + 1 :]
    if tables_end < 0:
        tables, rest = text[end:], ""
    return head + table + _LOCATION.sub(replace, tables) + rest


def _renamed(files: Mapping[str, str], moves: Mapping[Place, Place]) -> dict[str, str] | None:
    """The new name of each file; None where a file has become two."""
    names: dict[str, str] = {}
    present = set(files.values())
    for (old, _, _), (new, _, _) in moves.items():
        if old in present and names.setdefault(old, new) != new:
            return None
    return names
