"""Compiles that need not be done again: what the compiler made of a program, kept by the content of the program.

Source places are no part of that content: they are read from a lowered program, and moved where the same program has
moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TypeVar

import msgspec

from hloscope.compiler import libtpu
from hloscope.compiler.model import Compiled, Program
from hloscope.compiler.shardy_model import CodePlace, ShardyModule
from hloscope.documents import text_of
from hloscope.launchers import is_launcher
from hloscope.store import COMPILE, Store
from hloscope.version import __version__

T = TypeVar("T")

_FORMAT = 5
"""What an entry holds: numbers of operations since 2, how long the compile took since 3, HBM at its peak since 4, and
over time since 5."""
_HINT = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One compile as it is kept, with the places that its program had: each distinct stack once."""

    compiled: Compiled
    stacks: tuple[tuple[tuple[str, int, int], ...], ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A program's place among the compiles of a store.

    Attributes:
        store: Where they are kept.
        target: The user's name for the program, by which `is_expected` asks the next time.
        key: Equal for equal programs.
        places: Where the program's operations are written.
    """

    store: Store
    target: str
    key: str
    places: _Places

    def get(self) -> Compiled | None:
        """What an earlier compile made of the program, its places as they are now; None where there is none."""
        body = self.store.get(COMPILE, self.key)
        found = None if body is None else _restored(body, self.places)
        if found is not None:
            self._remember()
        return found

    def put(self, compiled: Compiled) -> None:
        """Keeps what the compiler made of the program."""
        self.store.put(COMPILE, self.key, _packed(compiled, self.places))
        self._remember()

    def _remember(self) -> None:
        hint = _hint_of(self.target)
        if self.store.get(_HINT, hint) != self.key.encode():
            self.store.put(_HINT, hint, self.key.encode())


def is_expected(store: Store, target: str) -> bool:
    """Whether a target's last compile is still in a store, so that most likely no compiler is needed."""
    hint = store.get(_HINT, _hint_of(target))
    return hint is not None and store.has(COMPILE, hint.decode())


def _hint_of(target: str) -> str:
    """What a target is called between two runs."""
    folder = ""
    with suppress(OSError):  # it may have been deleted
        folder = os.getcwd()
    return f"{folder} {target}"


def kept_in(
    store: Store, target: str, program: Program, text: str, located_text: str, versions: Mapping[str, str]
) -> Kept:
    """What a program is kept as.

    Args:
        store: Where compiles are kept.
        target: The user's name for the program.
        program: The program.
        text: Its StableHLO without source places.
        located_text: The same with them.
        versions: Of all that takes part.
    """
    places, names = locations_of(located_text)
    parts = (
        text,
        repr(names),
        hashlib.sha256(program.settings).hexdigest(),
        repr((program.slice.name, program.layout, sorted(program.options.items()))),
        repr((sorted(versions.items()), __version__, _FORMAT, libtpu.build())),
        repr((flags_of_compiles().split(), os.environ.get("LIBTPU_INIT_ARGS", "").split())),
    )
    key = " ".join(hashlib.sha256(part.encode()).hexdigest() for part in parts)
    return Kept(store=store, target=target, key=key, places=places)


def flags_of_compiles() -> str:
    """The environment's XLA_FLAGS, without the number of simulated devices, which no compile depends on."""
    return re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", "")).strip()


def _packed(compiled: Compiled, places: _Places) -> bytes:
    stacks: dict[tuple[tuple[str, int, int], ...], int] = {}
    order = tuple(stacks.setdefault(frames, len(stacks)) for frames in places)
    entry = _Entry(compiled=compiled, stacks=tuple(stacks), order=order)
    return zlib.compress(msgspec.msgpack.encode(entry, enc_hook=text_of), level=1)


def _restored(body: bytes, places: _Places) -> Compiled | None:
    """What was kept, its places as they are now; None where these cannot be known, or the entry cannot be read."""
    try:
        entry = msgspec.msgpack.decode(zlib.decompress(body), type=_Entry)
        moves = moves_between(tuple(entry.stacks[index] for index in entry.order), places)
    except (zlib.error, msgspec.DecodeError, IndexError):
        return None
    compiled = entry.compiled
    if moves is None or all(old == new for old, new in moves.items()):
        return compiled if moves is not None else None
    text = relocated_hlo(compiled.text, moves)
    partitioned = None if compiled.partitioned is None else relocated_hlo(compiled.partitioned, moves)
    if text is None or (partitioned is None) != (compiled.partitioned is None):
        return None
    return replace(
        compiled,
        text=text,
        partitioned=partitioned,
        shardy=None if compiled.shardy is None else moved(compiled.shardy, moves),
        shardy_as_written=None if compiled.shardy_as_written is None else moved(compiled.shardy_as_written, moves),
    )


_Place = tuple[str, int, int]
"""A file, a line and a column, the latter two from 1."""

_Places = tuple[tuple[_Place, ...], ...]
"""The frames of every operation in order, innermost first, up to the first frame that only starts the program."""

_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_MODULE = re.compile(r"^module\b", re.MULTILINE)
_USE = re.compile(r'loc\((?:(?P<name>"(?:[^"\\]|\\.)*")\()?(?P<alias>#loc\d*)\)')
_NAMED_ARGUMENT = re.compile(r'loc\(("(?:[^"\\]|\\.)*")\)')
_PARTS = re.compile(r'"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)|(?P<alias>#loc\d*)|"(?:[^"\\]|\\.)*"')
_NAMES = re.compile(r'(?:^|\n)FileNames\n(?P<names>(?:\d+ "(?:[^"\\]|\\.)*"\n)*)')
_NAME = re.compile(r'(?P<id>\d+) "(?P<file>(?:[^"\\]|\\.)*)"')
_LOCATION = re.compile(
    r"(?P<head>^\d+ \{file_name_id=(?P<file>\d+) function_name_id=\d+) line=(?P<line>\d+) end_line=(?P<end_line>\d+) "
    r"column=(?P<column>\d+) end_column=(?P<end_column>\d+)\}$",
    re.MULTILINE,
)


def locations_of(text: str) -> tuple[_Places, tuple[tuple[str, ...], ...]]:
    """Where the operations of a module in MLIR, printed with its locations, were written, and under which names.

    Returns:
        Files, lines and columns, which move without changing the program; and the names of the arguments, then for
        every operation in order those of its functions and scopes.
    """
    definitions = {match[1]: match[2] for match in _DEFINITION.finditer(text)}

    @cache
    def expand(alias: str) -> tuple[_Place | str, ...]:
        found: list[_Place | str] = []
        for part in _PARTS.finditer(definitions.get(alias, "")):
            if part["alias"]:
                found += expand(part["alias"])
            elif part["file"] is not None:
                found.append((part["file"], int(part["line"]), int(part["column"])))
            else:
                found.append(part[0])
        return tuple(found)

    start = _MODULE.search(text)  # some definitions stand before it, and a function in them may be called `<module>`
    begin = start.start() if start else 0
    body = text[begin : first.start()] if (first := _DEFINITION.search(text, begin)) else text[begin:]
    uses = ((*filter(None, [use["name"]]), *expand(use["alias"])) for use in _USE.finditer(body))
    stacks = list(map(_users, uses))
    names = (tuple(part for part in stack if isinstance(part, str)) for stack in stacks)
    places = tuple(tuple(part for part in stack if not isinstance(part, str)) for stack in stacks)
    return places, (tuple(_NAMED_ARGUMENT.findall(body)), *names)


def _users(parts: Sequence[_Place | str]) -> tuple[_Place | str, ...]:
    """Up to the first frame that only starts the program, whose function's name stands before its place."""
    owns = (index for index, part in enumerate(parts) if not isinstance(part, str) and is_launcher(part[0]))
    end = next(owns, None)
    return tuple(parts if end is None else parts[: max(0, end - 1)])


def moves_between(old: _Places, new: _Places) -> dict[_Place, _Place] | None:
    """Where each place of a program is now; None where that cannot be known.

    It cannot where the operations do not have the same frames, or where one place has become two.
    """
    if list(map(len, old)) != list(map(len, new)):
        return None
    return _mapping(zip(chain(*old), chain(*new), strict=True))


def _mapping(pairs: Iterable[tuple[T, T]]) -> dict[T, T] | None:
    """What each first is paired with; None where one of them is paired with two."""
    found: dict[T, T] = {}
    return found if all(found.setdefault(first, second) == second for first, second in pairs) else None


def moved(module: ShardyModule, moves: Mapping[_Place, _Place]) -> ShardyModule:
    """A propagated module with its places moved; places that are not among the moves are not the user's, and stay."""

    def there(place: CodePlace) -> CodePlace:
        file, line, column = moves.get((place.file, place.line, place.column), (place.file, place.line, place.column))
        return CodePlace(file=file, line=line, column=column, function=place.function)

    @cache
    def moved_stack(stack: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
        return tuple(map(there, stack))

    return replace(module, ops=tuple(replace(op, source=moved_stack(op.source)) for op in module.ops))


def relocated_hlo(text: str, moves: Mapping[_Place, _Place]) -> str | None:
    """HLO text with the places in its tables moved; None where files do not move as wholes."""
    names = _NAMES.search(text)
    if names is None:
        return text
    files = {match["id"]: match["file"] for match in _NAME.finditer(names["names"])}
    known = set(files.values())
    renamed = _mapping((old, new) for (old, _, _), (new, _, _) in moves.items() if old in known)
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
