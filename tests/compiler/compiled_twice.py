"""A program compiled with numbers on its operations and without, and what tells the two apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.compiler.step import read_dumps
from hloscope.program.capture import Capture
from hloscope.program.compiling import start_compile
from hloscope.program.loading import load
from hloscope.program.lowering import Lowered, lower
from hloscope.program.target import attached_facts

LIKE_A_NUMBER = re.compile(r"#\d+(?:/|\\?\"|$)", re.MULTILINE)
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
        """Which texts differ, in whatever it is: names, places, schedules; a text that is missing on one side too."""
        pairs = {
            "final": (self.numbered.hlo_text, self.plain.hlo_text),
            "partitioned": (self.numbered.partitioned_text, self.partitioned),
            "diagnostics": (self.numbered.diagnostics, self.plain.diagnostics),
            "too large": (self.numbered.too_large, self.plain.too_large),
        }
        return [name for name, (numbered, plain) in pairs.items() if numbered != plain]


def lowered(target: str, **facts: object) -> Lowered:
    """The program of `path/to/file.py:function`, with other facts than stand beside it."""
    function = load(target)
    return lower(function, replace(attached_facts(function), **facts), name=target.rpartition(":")[2])


def compiled_twice(program: Lowered, folder: Path) -> Twice:
    """Compiles one lowered program with numbers, and without."""
    folder.mkdir(exist_ok=True)
    options = {**program.facts.compiler_options, **DUMPS, "xla_dump_to": str(folder)}
    plain = replace(program, facts=replace(program.facts, compiler_options=options))
    return Twice(
        numbered=start_compile(program).capture(),
        plain=start_compile(plain).capture(),
        partitioned=read_dumps(folder).partitioned,
        folder=folder,
    )


def dumps_with_numbers(folder: Path) -> list[str]:
    """The files in a folder of dumps in which something looks like a number."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if LIKE_A_NUMBER.search(path.read_text(errors="replace"))]
