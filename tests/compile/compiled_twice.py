"""A program compiled with numbers on its operations and without, and what tells the two apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from hloscope.compile.compiling import start_compile
from hloscope.compile.loading import import_target
from hloscope.compile.lowering import Lowered, lower
from hloscope.compile.stages import read_dumps
from hloscope.compile.target import find_attached_facts
from hloscope.model.capture import Capture

_PLACE = re.compile(r" place=\[.*?\]")
_FRAME = re.compile(r" stack_frame_id=(\d+)")
_FRAME_ROW = re.compile(r"(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?\}")
_LOCATION_ROW = re.compile(r"(\d+) \{file_name_id=.*\}")
_DEFINED = re.compile(r" *(?:ROOT )?%([\w.\-]+) = ")
_LIKE_A_NUMBER = re.compile(r"#\d+/")
DUMPS = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_as_long_text": True,
    "xla_dump_hlo_pass_re": "shardy-xla|spmd-partitioning",
}


@dataclass(frozen=True, kw_only=True)
class Twice:
    """What the compiler makes of a program with and without numbers.

    Attributes:
        numbered: As users get it.
        plain: With dumps in the user's own folder, which switches numbers off.
        partitioned: The module right after the partitioner, of the latter.
        folder: Those dumps.
    """

    numbered: Capture
    plain: Capture
    partitioned: str | None
    folder: Path

    @property
    def differences(self) -> list[str]:
        """What differs: lines of the texts, down to names and places, and whatever else users see.

        Where the compiler makes one instruction of several operations of the same name, it keeps one place if their
        names are one and drops it if they differ, as numbers make them: the place is not compared there.
        """
        numbered, plain = self.numbered, self.plain
        merged = {name for name, of in (numbered.compiled.identities or {}).items() if len(of) > 1}
        merged_earlier = {name for name, of in numbered.compiled.partitioned_identities.items() if len(of) > 1}
        found = [*_differing(numbered.compiled.text, plain.compiled.text, merged)]
        found += _differing(numbered.compiled.partitioned or "", self.partitioned or "", merged_earlier)
        said = ("diagnostics", "too_large", "memory_bytes")
        found += [field for field in said if getattr(numbered.compiled, field) != getattr(plain.compiled, field)]
        arrays = ("arguments", "outputs")
        return found + [field for field in arrays if getattr(numbered, field) != getattr(plain, field)]


def _differing(numbered: str, plain: str, merged: set[str]) -> Iterator[str]:
    """Lines of one text that are not those of the other."""
    for here, there in zip_longest(_lines_with_places(numbered), _lines_with_places(plain), fillvalue=""):
        defined = _DEFINED.match(here)
        is_merged = defined is not None and defined[1] in merged
        if here != there and not (is_merged and _PLACE.sub("", here) == _PLACE.sub("", there)):
            yield f"{here}\ninstead of\n{there}"


def _lines_with_places(text: str) -> Iterator[str]:
    """The lines of a module, each place where it is used: a dropped one would move all rows below it up."""
    lines = text.splitlines()
    locations = dict(row.group(1, 0) for row in map(_LOCATION_ROW.fullmatch, lines) if row)
    frames = {row[1]: row for row in map(_FRAME_ROW.fullmatch, lines) if row}

    def place(used: re.Match[str]) -> str:
        steps, frame = [], used[1]
        while frame is not None:
            row = frames[frame]
            steps.append(locations[row[2]].partition(" ")[2])
            frame = row[3] if row[3] != frame else None
        return f" place={steps}"

    tables = {*locations.values(), *(row[0] for row in frames.values())}
    return (_FRAME.sub(place, line) for line in lines if line not in tables)


def lowered(target: str, **facts: object) -> Lowered:
    """The program of `path/to/file.py:function`, with other facts than stand beside it."""
    function = import_target(target)
    return lower(function, replace(find_attached_facts(function), **facts), name=target.rpartition(":")[2])


def compiled_twice(program: Lowered, folder: Path) -> Twice:
    """Compiles one lowered program with numbers, and without."""
    folder.mkdir(exist_ok=True)
    options = {**program.facts.compiler_options, **DUMPS, "xla_dump_to": str(folder)}
    captured = start_compile(replace(program, facts=replace(program.facts, compiler_options=options))).capture()
    dumped = read_dumps(folder)
    return Twice(
        numbered=start_compile(program).capture(),
        plain=replace(captured, compiled=replace(captured.compiled, text=dumped.text)),
        partitioned=dumped.partitioned,
        folder=folder,
    )


def files_with_numbers(folder: Path) -> list[str]:
    """The files in a folder of dumps in which something looks like a number."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if _LIKE_A_NUMBER.search(path.read_text(errors="replace"))]
