"""From an offset in a text to an error with a line, a column and a caret."""

from __future__ import annotations

from hloscope.errors import HloParseError, caret_excerpt
from hloscope.hlo.records import ReadError

_NOT_HLO_FIX = (
    "give HLO text, which starts with `HloModule`: jax.jit(f).lower(...).compile().as_text() and "
    "XLA's dumps named *.txt are such text"
)


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """1-based line and column of an offset; lines end at `\\n`."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def parse_error(
    text: str, file_name: str | None, error: ReadError, open_computation: tuple[str, int] | None = None
) -> HloParseError:
    """Lays out an error of the grammar for the user.

    Args:
        text: The whole text.
        file_name: Its name.
        error: The error, with offsets in `text`.
        open_computation: Name and offset of the computation that the error lies in.
    """
    if not text.strip(" \t\r\n"):
        return _located(text, file_name, 0, "the text is empty", _NOT_HLO_FIX)
    if error.at_end and open_computation is not None:
        name, start = open_computation
        line, _ = line_and_column(text, start)
        what = f"the text ends inside computation %{name} that starts at line {line}"
        position = len(text.rstrip()) if error.opened_at is None else error.opened_at
        if error.opened_at is not None:
            what = f"{what}: {error.what}"
        return _located(text, file_name, position, what, "was the file cut off?")
    if not error.at_end and _is_first_word(text, error.position):
        return _located(text, file_name, error.position, _first_word_message(text), _NOT_HLO_FIX)
    return _located(text, file_name, min(error.position, len(text.rstrip())), error.what, error.fix)


def _located(text: str, file_name: str | None, position: int, what: str, fix: str | None) -> HloParseError:
    line, column = line_and_column(text, position)
    start = position - column + 1
    end = text.find("\n", start)
    line_text = text[start : len(text) if end < 0 else end]
    where = f"{file_name or '<text>'}:{line}:{column}"
    return HloParseError(
        what, line=line, column=column, where=where, excerpt=caret_excerpt(line_text, column), fix=fix
    )


def _is_first_word(text: str, position: int) -> bool:
    return not text[:position].strip(" \t\r\n%")


def _first_word_message(text: str) -> str:
    start = text.lstrip()
    if start.startswith(("module ", "module@", "#loc", "#map", "func.func", "builtin.module")):
        return "this is MLIR (such as StableHLO), not HLO text"
    return "this is no HLO text"
