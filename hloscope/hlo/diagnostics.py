"""From an offset in a text to an error with a line, a column and a caret."""

from __future__ import annotations

import re

from hloscope.errors import HloParseError, caret_excerpt
from hloscope.hlo.records import ReadError

_NOT_HLO_FIX = (
    "give HLO text, which starts with `HloModule`: jax.jit(f).lower(...).compile().as_text() and "
    "XLA's dumps named *.txt are such text"
)
_CUT_OFF_FIX = "was the file cut off?"
_HLO_WORDS = ("HloModule", "ENTRY", "ROOT")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """1-based line and column of an offset; a line ends at a line feed."""
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
    position = min(error.position, len(text.rstrip(" \t\r\n")))
    if open_computation is not None and (error.at_end or _is_cut_off(text, position)):
        name, start = open_computation
        line, _ = line_and_column(text, start)
        what = f"the text ends inside computation %{name} that starts at line {line}"
        if error.opened_at is not None:
            what = f"{what}: {error.what}"
        return _located(text, file_name, position, what, _CUT_OFF_FIX)
    if open_computation is None and not error.at_end and _is_no_hlo(text[:position]):
        start = len(text) - len(text.lstrip(" \t\r\n"))
        return _located(text, file_name, start, _no_hlo_message(text), _NOT_HLO_FIX)
    if not error.at_end and _is_cut_off(text, position) and len(text[position:].split()) == 1:
        return _located(text, file_name, position, f"the text ends too early: {error.what}", _CUT_OFF_FIX)
    return _located(text, file_name, position, error.what, error.fix)


def _located(text: str, file_name: str | None, position: int, what: str, fix: str | None) -> HloParseError:
    line, column = line_and_column(text, position)
    start = position - column + 1
    end = text.find("\n", start)
    line_text = _CONTROL.sub("\ufffd", text[start : len(text) if end < 0 else end])
    where = f"{file_name or '<text>'}:{line}:{column}"
    excerpt = caret_excerpt(line_text, column)
    return HloParseError(what, line=line, column=column, where=where, excerpt=excerpt, fix=fix)


def _is_cut_off(text: str, position: int) -> bool:
    """Whether a place is on the last line of a text that does not end with a closing brace."""
    return text.find("\n", position) < 0 and not text.rstrip(" \t\r\n").endswith("}")


def _is_no_hlo(before: str) -> bool:
    """Whether what could be read, up to the first thing that could not, is less than two words."""
    words = before.split()
    return not words or (len(words) == 1 and words[0].isidentifier() and words[0] not in _HLO_WORDS)


def _no_hlo_message(text: str) -> str:
    if text.lstrip().startswith(("module ", "module@", "#loc", "#map", "func.func", "builtin.module")):
        return "this is MLIR (such as StableHLO), not HLO text"
    return "this is no HLO text"
