"""Files of several modules, which lines of `// -----` separate, as in XLA's own tests."""

from __future__ import annotations

import re
from typing import NamedTuple

from hloscope.errors import HloParseError, did_you_mean
from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import located

_SEPARATOR = re.compile(r"^[ \t]*//[ ]*-----.*$", re.MULTILINE)
_COMMENTS = re.compile(r"(?:\s|//[^\n]*|/\*(?:[^*]|\*(?!/))*+\*/)*+")
_MODULE_NAME = re.compile(r"HloModule\s+%?([A-Za-z_][A-Za-z0-9_.-]*)")


class Part(NamedTuple):
    """One of the modules of a text.

    Attributes:
        start: Offset after the separator before it.
        end: Offset of the separator after it.
        begins: Offset of its first word.
        name: As its header gives it; empty where it has no header.
        number: From 1 on.
    """

    start: int
    end: int
    begins: int
    name: str
    number: int


def parts_of(text: str) -> list[Part]:
    """What stands between separators and is more than comments."""
    borders = [0]
    for match in _SEPARATOR.finditer(text):
        borders += [match.start(), match.end()]
    parts: list[Part] = []
    for start, end in zip(borders[::2], [*borders[1::2], len(text)], strict=True):
        begins = _COMMENTS.match(text, start, end).end()  # type: ignore[union-attr]
        if begins < end:
            named = _MODULE_NAME.match(text, begins, end)
            parts.append(Part(start, end, begins, named.group(1) if named else "", len(parts) + 1))
    return parts


def module_text(text: str, wanted: str, *, name: str | None = None) -> str:
    """The text of one module of a file of several, on the lines where it stands in the file.

    Args:
        text: The text of the file; one module alone is chosen from like several.
        wanted: The module's name, or its number in the file, from 1 on, where names are missing or not unique.
        name: The file's name in errors, such as `many.hlo`.

    Raises:
        HloParseError: No module has that name or number, or several have the name.
    """
    parts = parts_of(text)
    chosen = [part for part in parts if part.name == wanted] or [part for part in parts if str(part.number) == wanted]
    if len(chosen) == 1:
        (part,) = chosen
        return "\n" * text.count("\n", 0, part.start) + text[part.start : part.end]
    columns = Columns(text, name)
    if not chosen:
        what, fix = f'no module is named "{wanted}"', did_you_mean(wanted, [part.name for part in parts if part.name])
        raise located(columns, 0, what, fix or _choose(parts, name))
    what = f'{len(chosen)} modules are named "{wanted}"'
    raise located(columns, chosen[1].begins, what, _choose(chosen, name, by_number=True))


def several_modules(columns: Columns, parts: list[Part]) -> HloParseError:
    """The error for a text of several modules where one is wanted."""
    what = f"the text contains {len(parts)} modules, but one is needed"
    return located(columns, parts[1].begins, what, _choose(parts, columns.file_name))


_MOST_NAMED = 8


def _choose(parts: list[Part], name: str | None, *, by_number: bool = False) -> str:
    """How one of some modules is asked for: `many.hlo#first, many.hlo#2`, by number where a name is no help."""
    names = [part.name for part in parts]
    words = [
        part.name if part.name and not by_number and names.count(part.name) == 1 else str(part.number) for part in parts
    ]
    listed = ", ".join(f"{name or ''}#{word}" for word in words[:_MOST_NAMED])
    more = f" … and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return f"choose one: {listed}{more}"
