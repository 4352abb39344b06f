"""Files of several modules, separated by lines of `// -----`, as in XLA's own tests."""

from __future__ import annotations

import re
from typing import NamedTuple

from hloscope.errors import HloParseError, did_you_mean
from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import error_at

_SEPARATOR = re.compile(r"^[ \t]*//[ ]*-----.*$", re.MULTILINE)
_COMMENTS = re.compile(r"(?:\s|//[^\n]*|/\*(?:[^*]|\*(?!/))*+\*/)*+")
_MODULE_NAME = re.compile(r"HloModule\s+%?([A-Za-z_][A-Za-z0-9_.-]*)")


class ModuleSection(NamedTuple):
    """One of the modules of a text.

    Attributes:
        start: Offset after the separator before it.
        end: Offset of the separator after it.
        begins: Offset of its first word.
        name: The name in its header; empty if it has no header.
        number: Its 1-based number.
    """

    start: int
    end: int
    begins: int
    name: str
    number: int


def split_modules(text: str) -> list[ModuleSection]:
    """The parts between separators that contain more than comments."""
    borders = [0]
    for match in _SEPARATOR.finditer(text):
        borders += [match.start(), match.end()]
    parts: list[ModuleSection] = []
    for start, end in zip(borders[::2], [*borders[1::2], len(text)], strict=True):
        begins = _COMMENTS.match(text, start, end).end()  # type: ignore[union-attr]
        if begins < end:
            named = _MODULE_NAME.match(text, begins, end)
            parts.append(ModuleSection(start, end, begins, named.group(1) if named else "", len(parts) + 1))
    return parts


def select_module_text(text: str, wanted: str, *, name: str | None = None) -> str:
    """The text of one module in a file of several, on the same lines as in the file.

    Args:
        text: The text of the file, with one or several modules.
        wanted: The module's name, or its 1-based number in the file if names are missing or not unique.
        name: The file's name in errors, such as `many.hlo`.

    Raises:
        HloParseError: No module has that name or number, or several have the name.
    """
    parts = split_modules(text)
    chosen = [part for part in parts if part.name == wanted] or [part for part in parts if str(part.number) == wanted]
    if len(chosen) == 1:
        (part,) = chosen
        return "\n" * text.count("\n", 0, part.start) + text[part.start : part.end]
    columns = Columns(text, name)
    if not chosen:
        what, fix = f'no module is named "{wanted}"', did_you_mean(wanted, [part.name for part in parts if part.name])
        raise error_at(columns, 0, what, fix or _render_choices(parts, name))
    what = f'{len(chosen)} modules are named "{wanted}"'
    raise error_at(columns, chosen[1].begins, what, _render_choices(chosen, name, by_number=True))


def several_modules_error(columns: Columns, parts: list[ModuleSection]) -> HloParseError:
    """The error for a text of several modules if one is needed."""
    what = f"the text contains {len(parts)} modules, but one is needed"
    return error_at(columns, parts[1].begins, what, _render_choices(parts, columns.file_name))


_MOST_NAMED = 8


def _render_choices(parts: list[ModuleSection], name: str | None, *, by_number: bool = False) -> str:
    """The selectors of some modules: `many.hlo#first, many.hlo#2`, by number if a name does not help."""
    names = [part.name for part in parts]
    words = [
        part.name if part.name and not by_number and names.count(part.name) == 1 else str(part.number) for part in parts
    ]
    listed = ", ".join(f"{name or ''}#{word}" for word in words[:_MOST_NAMED])
    more = f" … and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return f"choose one: {listed}{more}"
