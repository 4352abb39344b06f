"""Conversion of HLO text to a module."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hloscope.base.errors import HloParseError, did_you_mean
from hloscope.hlo.columns import Builder, Columns
from hloscope.hlo.grammar import load_language
from hloscope.hlo.ir import HloComputation, HloModule, error_at, is_cut_off, lay_out_error
from hloscope.hlo.records import Computation, ParsedText, ReadError
from hloscope.hlo.scanner import FallbackToGrammar, Scanner

# ---- files of several modules, separated by lines of `// -----`, as in XLA's own tests

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


def parse_module(text: str, *, name: str | None = None) -> HloModule:
    """Parses HLO text in any form that XLA prints or reads.

    If the text is cut off, every complete computation is read, and the module is marked as `truncated`.

    Args:
        text: A module, computations without a header, or one instruction.
        name: The text's name in errors, such as `step.hlo` or `<stdin>`.

    Raises:
        HloParseError: The text is not HLO, is cut off before its first computation is complete, holds several modules,
        or uses names that it does not define.
    """
    try:
        return _read(Columns(text, name))
    except HloParseError:
        parts = split_modules(text)
        if len(parts) > 1:
            what = f"the text contains {len(parts)} modules, but one is needed"
            raise error_at(Columns(text, name), parts[1].begins, what, _render_choices(parts, name)) from None
        raise


def parse_modules(text: str, *, name: str | None = None) -> tuple[HloModule, ...]:
    """Parses a file of several modules, separated by lines of `// -----`, as in XLA's own tests.

    Lines count from the beginning of the file. A text without such lines is one module.

    Raises:
        HloParseError: As for `parse_module`, of the first module that cannot be read.
    """
    modules: list[HloModule] = []
    line, counted_to = 0, 0
    for start, end in [(part.start, part.end) for part in split_modules(text)] or [(0, len(text))]:
        line += text.count("\n", counted_to, start)
        counted_to = start
        modules.append(_read(Columns(text[start:end], name, line)))
    return tuple(modules)


def _read(columns: Columns) -> HloModule:
    builder = Builder(columns)
    with pause_collector():
        try:
            Scanner(builder).scan()
            builder.finish()
        except FallbackToGrammar as stop:
            if stop.line is None or not columns.computations:
                return _read_whole(Columns(columns.text, columns.file_name, columns.lines_before))
            builder.rollback()
            if stop.is_cut_off:
                builder.finish(truncated=True)
            else:
                _read_rest(builder, stop.line)
        return _complete_module(columns)


def _read_rest(builder: Builder, line: int) -> None:
    """Reads from a 0-based line on, at which a computation begins, by the grammar's rule for the rest of a text."""
    columns = builder.columns
    base = columns.line_starts[line]
    computations: tuple[Computation, ...] | None
    truncated = False
    try:
        computations = load_language().parse("continuation", columns.text[base:])
    except ReadError as error:
        moved = error.moved(base)
        if not is_cut_off(columns.text, moved):
            raise _make_error(builder, moved, base) from None
        computations, truncated = _parse_before_cut("continuation", columns.text[base:], error) or (), True
    try:
        builder.add_computations(computations, base)
        builder.finish(truncated=truncated)
    except ReadError as error:
        raise _make_error(builder, error, base) from None


def parse_whole(text: str, *, name: str | None = None) -> HloModule:
    """Parses the whole text by the grammar's rule for it, without any shortcut.

    `parse_module` falls back to this, and its shortcuts are tested against it.

    Raises:
        HloParseError: As for `parse_module`.
    """
    return _read_whole(Columns(text, name))


def _read_whole(columns: Columns) -> HloModule:
    builder = Builder(columns)
    try:
        parsed, truncated = _parse_text(columns.text)
        if parsed.header is not None:
            builder.add_header(parsed.header, columns.text)
        builder.add_tables(parsed.tables)
        builder.add_computations(parsed.computations)
        if parsed.instruction is not None:
            builder.add_single(parsed.instruction)
        builder.finish(truncated=truncated)
    except ReadError as error:
        raise _make_error(builder, error, 0) from None
    return _complete_module(columns)


def _parse_text(text: str) -> tuple[ParsedText, bool]:
    """The records of a text, up to the last complete computation if it is cut off, and whether it is."""
    try:
        return load_language().parse("text", text), False
    except ReadError as error:
        progress = load_language().reader.progress
        head = progress.head
        parsed: ParsedText | None = _parse_before_cut("text", text, error) if is_cut_off(text, error) else None
        if parsed is None:
            progress.head = head
            raise
        return parsed, True


def _parse_before_cut(start: str, text: str, error: ReadError) -> Any:
    """The result of a rule for the complete computations before a cut; None if there are none.

    A computation that ends directly before the cut was not yet known to be complete when the parser stopped.
    """
    end = load_language().reader.progress.end
    before = text[: error.position].rstrip(" \t\r\n")
    if not error.at_end and before.endswith("}"):
        with suppress(ReadError):
            return load_language().parse(start, before)
    return None if end is None else load_language().parse(start, text[:end])


def _complete_module(columns: Columns) -> HloModule:
    """The module; its header describes the lost ENTRY if a text ends between two computations."""
    module = HloModule(columns)
    layout = columns.header.get("entry_computation_layout")
    if columns.entry_is_implied and layout is not None and not _fits_layout(module.entry, layout):
        columns.entry, columns.truncated = -1, True
        return HloModule(columns)
    return module


def _fits_layout(computation: HloComputation, layout: str) -> bool:
    """Returns whether a computation can be the one that the header's `entry_computation_layout` describes.

    A value that cannot be read excludes no computation.
    """
    try:
        parameters, result = (load_language().read("shape", text).shape for text in layout[1:-1].rpartition("->")[::2])
    except ReadError:
        return True
    found = [str(parameter.shape) for parameter in computation.parameters]
    expected = list(map(str, parameters.elements))
    return found == expected and str(computation.root.shape) in (str(result), "unknown[]")


def _make_error(builder: Builder, error: ReadError, base: int) -> HloParseError:
    head = load_language().reader.progress.head
    open_computation = builder.open_computation
    if head is not None and open_computation is None:
        open_computation = (head.name.lstrip("%"), base + head.span.start)
    return lay_out_error(builder.columns, error, open_computation)


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pauses the garbage collector, which would find no cycles inside but take a third of the time.

    Objects made inside are moved to the old generation at once, so that the next young collection does not examine
    them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # otherwise objects frozen by the caller would be unfrozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
