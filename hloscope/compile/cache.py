"""The cache of compiles: the compiler's output for a program, stored by the content of the program.

Source places are not part of that content: they are read from a lowered program, and adjusted if the same program has
moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import msgspec

from hloscope.base.documents import encode_text
from hloscope.base.environment import is_launcher
from hloscope.base.store import COMPILE, Store
from hloscope.compile import jax_support
from hloscope.model.capture import CodePlace, CompiledProgram, CompileRequest, ShardyModule
from hloscope.model.vocabulary import CompileStage
from hloscope.version import __version__

T = TypeVar("T")

_FORMAT = 10
"""The format of an entry: numbers of operations since 2, the compile's duration since 3, HBM at its peak since 4 and
over time since 5, the places of all operations, in the order of the module, since 6, the stage of the compile since 7,
the text of a dump since 8, the FLOPs of the traced program since 9, and open dimensions of constraints since 10."""
_HINT = "target"
_FIRST_COMPUTATION = re.compile(r"^(?:%|ENTRY )", re.MULTILINE)
_UNDIGESTED = re.compile(r", (?:metadata|backend_config)=")
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompileEntry:
    """One stored compile, with the source places of its program: each distinct stack once."""

    compiled: CompiledProgram
    stacks: tuple[tuple[tuple[str, int, int], ...], ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedCompile:
    """A program's entry in the cache of compiles.

    Attributes:
        store: The cache.
        target: The user's name for the program, by which `is_likely_cached` finds it the next time.
        key: Equal for equal programs.
        places: The source places of the program's operations.
    """

    store: Store
    target: str
    key: str
    places: _Places

    def get(self, wanted: CompileStage = CompileStage.COMPILED) -> CompiledProgram | None:
        """The result of an earlier compile of the program, with its present source places; None without one.

        Args:
            wanted: The stage that is enough; a later one is returned if it is there.
        """
        for stage in dict.fromkeys((CompileStage.COMPILED, wanted)):
            if stage is not wanted and not self.store.has(COMPILE, self._name(stage)):
                continue  # asking would count as a program that is not in the cache
            body = self.store.get(COMPILE, self._name(stage))
            found = None if body is None else _unpack(body, self.places)
            if found is not None:
                self._remember(stage)
                return found
        return None

    def put(self, compiled: CompiledProgram) -> None:
        """Stores the compiler's output for the program, beside that of another stage."""
        self.store.put(COMPILE, self._name(compiled.stage), _pack(compiled, self.places))
        self._remember(compiled.stage)

    def _name(self, stage: CompileStage) -> str:
        return self.key if stage is CompileStage.COMPILED else f"{self.key} {stage}"

    def _remember(self, stage: CompileStage) -> None:
        hint, name = _make_hint(self.target), self._name(stage).encode()
        if self.store.get(_HINT, hint) != name:
            self.store.put(_HINT, hint, name)


def is_likely_cached(store: Store, target: str) -> bool:
    """Returns whether a target's last compile is still in the cache, so that most likely no compiler is needed."""
    hint = store.get(_HINT, _make_hint(target))
    return hint is not None and store.has(COMPILE, hint.decode())


def _make_hint(target: str) -> str:
    """The name that identifies a target across runs."""
    folder = ""
    with suppress(OSError):  # it may have been deleted
        folder = os.getcwd()
    return f"{folder} {target}"


def make_cached_compile(
    store: Store, target: str, program: CompileRequest, versions: Mapping[str, str]
) -> CachedCompile:
    """Makes the cache entry of a program.

    Args:
        store: The cache.
        target: The user's name for the program.
        program: The program.
        versions: The versions of all packages involved.
    """
    from hloscope.compile.jax_private import read_module_bytecode

    module = read_module_bytecode(program.module)
    places, names = read_locations(module)
    parts = (
        module.operation.get_asm(),
        repr(names),
        *_list_settings(program),
        repr((sorted(versions.items()), __version__, _FORMAT, jax_support.find_libtpu_build())),
    )
    key = " ".join(hashlib.sha256(part.encode()).hexdigest() for part in parts)
    return CachedCompile(store=store, target=target, key=key, places=places)


def is_same_program(one: CompileRequest, other: CompileRequest) -> bool:
    """Returns whether two requests are for the same program, wherever its lines are in the source."""
    from hloscope.compile.jax_private import read_module_bytecode

    modules = (read_module_bytecode(each.module).operation.get_asm() for each in (one, other))
    return len(set(modules)) == 1 and _list_settings(one) == _list_settings(other)


def _list_settings(program: CompileRequest) -> tuple[str, ...]:
    """All but the module that decides what a version of the compiler makes of a program."""
    return (
        hashlib.sha256(program.settings).hexdigest(),
        repr((program.slice.name, program.layout, sorted(program.options.items()))),
        repr((read_compile_flags().split(), os.environ.get("LIBTPU_INIT_ARGS", "").split())),
    )


def make_digest(program: CompileRequest, text: str) -> str:
    """A digest of a scheduled program, of the settings that its machine code is made with, and of the chip's figures.

    Code generation adds to configurations and changes nothing else, so that the digest is equal at both stages. Names
    of source files, lines and operations are left out, which change without changing the program.
    """
    decides = (_list_settings(program), program.slice.chip, jax_support.find_libtpu_build())
    found = hashlib.sha256(repr(decides).encode())
    header, _, rest = text.partition("\n")
    found.update(header.partition(",")[2].encode())
    begin = _FIRST_COMPUTATION.search(rest)
    for line in rest[0 if begin is None else begin.start() :].splitlines():
        found.update(_UNDIGESTED.split(line, maxsplit=1)[0].encode())
    return found.hexdigest()[:_DIGEST_CHARS]


def read_compile_flags() -> str:
    """The environment's XLA_FLAGS, without the number of simulated devices, which does not affect compiles."""
    return re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", "")).strip()


def _pack(compiled: CompiledProgram, places: _Places) -> bytes:
    stacks: dict[tuple[tuple[str, int, int], ...], int] = {}
    order = tuple(stacks.setdefault(frames, len(stacks)) for frames in places)
    entry = _CompileEntry(compiled=compiled, stacks=tuple(stacks), order=order)
    return zlib.compress(msgspec.msgpack.encode(entry, enc_hook=encode_text), level=1)


def _unpack(body: bytes, places: _Places) -> CompiledProgram | None:
    """The stored compile with its present source places; None if these are unknown or the entry is unreadable."""
    try:
        entry = msgspec.msgpack.decode(zlib.decompress(body), type=_CompileEntry)
        moves = find_moves(tuple(entry.stacks[index] for index in entry.order), places)
    except (zlib.error, msgspec.DecodeError, IndexError):
        return None
    compiled = entry.compiled
    if moves is None or all(old == new for old, new in moves.items()):
        return compiled if moves is not None else None
    text = move_hlo_places(compiled.text, moves)
    partitioned = None if compiled.partitioned is None else move_hlo_places(compiled.partitioned, moves)
    if text is None or (partitioned is None) != (compiled.partitioned is None):
        return None
    stages = (compiled.shardy, compiled.shardy_as_written)
    shardy, as_written = (None if stage is None else move_places(stage, moves) for stage in stages)
    return replace(compiled, text=text, partitioned=partitioned, shardy=shardy, shardy_as_written=as_written)


_Place = tuple[str, int, int]
"""A file, a line and a column, the latter two from 1."""

_Places = tuple[tuple[_Place, ...], ...]
"""The frames of every operation in order, innermost first, down to the first frame that only starts the program."""

_NAMES = re.compile(r'(?:^|\n)FileNames\n(?P<names>(?:\d+ "(?:[^"\\]|\\.)*"\n)*)')
_NAME = re.compile(r'(?P<id>\d+) "(?P<file>(?:[^"\\]|\\.)*)"')
_LOCATION = re.compile(
    r"(?P<head>^\d+ \{file_name_id=(?P<file>\d+) function_name_id=\d+) line=(?P<line>\d+) end_line=(?P<end_line>\d+) "
    r"column=(?P<column>\d+) end_column=(?P<end_column>\d+)\}$",
    re.MULTILINE,
)


def read_locations(module: Any) -> tuple[_Places, tuple[tuple[str, ...], ...]]:
    """Reads the source places and names of the operations of a `jaxlib.mlir.ir.Module`.

    Returns:
        Files, lines and columns, which may move without changing the program; and for every operation in order the
        names of its functions and scopes, and of its arguments if it is a function.
    """
    from jaxlib.mlir import ir

    known: dict[Any, tuple[_Place | str, ...]] = {}  # thousands of operations share a few stacks
    stacks: list[tuple[_Place | str, ...]] = []

    def expand(location: Any) -> tuple[_Place | str, ...]:
        key = location.attr  # locations themselves are hashed by identity
        if key not in known:
            known[key] = tuple(expand_new(location, type(location).__name__))
        return known[key]

    def expand_new(location: Any, kind: str) -> Iterator[_Place | str]:
        if kind == "FileLineColLoc":
            yield location.filename, location.start_line, location.start_col
        elif kind == "NameLoc":
            yield from (location.name_str, *expand(location.child_loc))
        elif kind in ("CallSiteLoc", "FusedLoc"):
            inner = location.locations if kind == "FusedLoc" else (location.callee, location.caller)
            yield from chain.from_iterable(map(expand, inner))

    def note(op: Any) -> Any:
        stacks.append(_cut_to_user_frames(expand(op.location)))
        if op.name == "func.func":
            stacks.extend(expand(argument.location)[:1] for block in op.regions[0] for argument in block.arguments)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    names = tuple(tuple(part for part in stack if isinstance(part, str)) for stack in stacks)
    return tuple(tuple(part for part in stack if not isinstance(part, str)) for stack in stacks), names


def _cut_to_user_frames(parts: Sequence[_Place | str]) -> tuple[_Place | str, ...]:
    """The frames up to the first one that only starts the program, whose function name precedes its place."""
    owns = (index for index, part in enumerate(parts) if not isinstance(part, str) and is_launcher(part[0]))
    end = next(owns, None)
    return tuple(parts if end is None else parts[: max(0, end - 1)])


def find_moves(old: _Places, new: _Places) -> dict[_Place, _Place] | None:
    """The present place of each earlier place of a program; None if unknown.

    It is unknown if the operations have different frames, or if one place has become two.
    """
    if list(map(len, old)) != list(map(len, new)):
        return None
    return _make_mapping(zip(chain(*old), chain(*new), strict=True))


def _make_mapping(pairs: Iterable[tuple[T, T]]) -> dict[T, T] | None:
    """A mapping from each first item to its second; None if one item has two of them."""
    found: dict[T, T] = {}
    return found if all(found.setdefault(first, second) == second for first, second in pairs) else None


def move_places(module: ShardyModule, moves: Mapping[_Place, _Place]) -> ShardyModule:
    """A propagated module with its places moved; other places are not the user's, and stay."""

    def there(place: CodePlace) -> CodePlace:
        file, line, column = moves.get((place.file, place.line, place.column), (place.file, place.line, place.column))
        return CodePlace(file=file, line=line, column=column, function=place.function)

    @cache
    def moved_stack(stack: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
        return tuple(map(there, stack))

    return replace(module, ops=tuple(replace(op, source=moved_stack(op.source)) for op in module.ops))


def move_hlo_places(text: str, moves: Mapping[_Place, _Place]) -> str | None:
    """HLO text with the places in its tables moved; None if a file does not move as a whole."""
    names = _NAMES.search(text)
    if names is None:
        return text
    files = {match["id"]: match["file"] for match in _NAME.finditer(names["names"])}
    known = set(files.values())
    renamed = _make_mapping((old, new) for (old, _, _), (new, _, _) in moves.items() if old in known)
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
