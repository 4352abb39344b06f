"""From HLO text to a module."""

from __future__ import annotations

from hloscope.errors import HloParseError
from hloscope.hlo.builder import Builder
from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import parse_error
from hloscope.hlo.language import language
from hloscope.hlo.model import HloModule
from hloscope.hlo.records import ReadError, Text


def parse_module(text: str, *, name: str | None = None) -> HloModule:
    """Reads HLO text in any form that XLA prints or reads.

    Args:
        text: A module, computations without a header, or one instruction.
        name: The text's name in errors, such as `step.hlo` or `<stdin>`.

    Raises:
        HloParseError: The text is not HLO, is cut off, or uses names that it does not define.
    """
    return parse_whole(text, name=name)


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
        raise _error(builder, error, text, name) from None
    return HloModule(columns)


def _build(builder: Builder, parsed: Text) -> None:
    if parsed.header is not None:
        builder.add_header(parsed.header)
    builder.add_tables(parsed.tables)
    builder.add_computations(parsed.computations)
    if parsed.instruction is not None:
        builder.add_single(parsed.instruction)
    builder.finish()


def _error(builder: Builder, error: ReadError, text: str, name: str | None) -> HloParseError:
    head = language().reader.last_head
    open_computation = builder.open_computation
    if head is not None:
        open_computation = (head.name.lstrip("%"), head.span.start)
    return parse_error(text, name, error, open_computation)
