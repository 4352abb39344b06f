"""From HLO text to a module."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from hloscope.errors import HloParseError
from hloscope.hlo.builder import Builder
from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import parse_error
from hloscope.hlo.language import language
from hloscope.hlo.model import HloModule
from hloscope.hlo.records import ReadError, Text
from hloscope.hlo.scanner import GaveUp, Scanner


def parse_module(text: str, *, name: str | None = None) -> HloModule:
    """Reads HLO text in any form that XLA prints or reads.

    Args:
        text: A module, computations without a header, or one instruction.
        name: The text's name in errors, such as `step.hlo` or `<stdin>`.

    Raises:
        HloParseError: The text is not HLO, is cut off, or uses names that it does not define.
    """
    columns = Columns(text, name)
    builder = Builder(columns)
    with _no_garbage_collection():
        try:
            Scanner(builder).scan()
            builder.finish()
        except GaveUp as stop:
            if stop.line is None or not columns.computations:
                return parse_whole(text, name=name)
            builder.rollback(stop.line + 1)
            _read_rest(builder, stop.line)
    return HloModule(columns)


def _read_rest(builder: Builder, line: int) -> None:
    """Reads from a 0-based line on, where a computation begins, by the grammar's rule for the rest of a text."""
    text = builder.columns.text
    base = builder.columns.offset_of_line(line)
    try:
        builder.add_computations(language().parse("continuation", text[base:]), base)
        builder.finish()
    except ReadError as error:
        moved = error if builder.open_computation is not None else error.moved(base)
        raise _error(builder, moved, base) from None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nothing that reading makes is cyclic, and looking for cycles would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_whole(text: str, *, name: str | None = None) -> HloModule:
    """Reads the whole text by the grammar's rule for it, without any shortcut.

    This is what `parse_module` falls back to, and what its shortcuts are tested against.

    Raises:
        HloParseError: As for `parse_module`.
    """
    columns = Columns(text, name)
    builder = Builder(columns)
    try:
        parsed: Text = language().parse("text", text)
        _build(builder, parsed)
    except ReadError as error:
        raise _error(builder, error, 0) from None
    return HloModule(columns)


def _build(builder: Builder, parsed: Text) -> None:
    if parsed.header is not None:
        builder.add_header(parsed.header, builder.columns.text)
    builder.add_tables(parsed.tables)
    builder.add_computations(parsed.computations)
    if parsed.instruction is not None:
        builder.add_single(parsed.instruction)
    builder.finish()


def _error(builder: Builder, error: ReadError, base: int) -> HloParseError:
    head = language().reader.last_head
    open_computation = builder.open_computation
    if head is not None and open_computation is None:
        open_computation = (head.name.lstrip("%"), base + head.span.start)
    return parse_error(builder.columns.text, builder.columns.file_name, error, open_computation)
