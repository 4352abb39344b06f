"""Errors with a line, a column and a caret, from an offset in a text; and detection of text that is only cut off."""

from __future__ import annotations

import re

from hloscope.base.errors import HloParseError, find_line_and_column, format_excerpt
from hloscope.hlo.columns import Columns
from hloscope.hlo.records import ReadError

_NOT_HLO_FIX = (
    "use HLO text, which starts with `HloModule`, such as the output of jax.jit(f).lower(...).compile().as_text() or "
    "XLA's dumps named *.txt"
)
_CUT_OFF_FIX = "was the file cut off?"
_HLO_WORDS = ("HloModule", "ENTRY", "ROOT")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def lay_out_error(columns: Columns, error: ReadError, open_computation: tuple[str, int] | None = None) -> HloParseError:
    """Converts an error of the grammar for the user.

    Args:
        columns: The columns read so far, for the text and its name.
        error: The error, with offsets in the text.
        open_computation: Name and offset of the computation that contains the error.
    """
    text = columns.text
    if not text.strip(" \t\r\n"):
        return error_at(columns, 0, "the text is empty", _NOT_HLO_FIX)
    position = min(error.position, len(text.rstrip(" \t\r\n")))
    if _begins_second_module(text, position):
        fix = "pass one module at a time, or separate modules with lines of `// -----` and read them with parse_modules"
        return error_at(columns, text.rindex("HloModule", 0, position), "a second module begins here", fix)
    if open_computation is not None and (error.at_end or _is_cut_off(text, position)):
        name, start = open_computation
        line = find_line_and_column(text, start)[0] + columns.lines_before
        what = f"the text ends inside computation %{name} that starts at line {line}"
        if error.opened_at is not None:
            what = f"{what}: {error.what}"
        return error_at(columns, position, what, _CUT_OFF_FIX)
    if open_computation is None and not error.at_end and _is_no_hlo(text[:position]):
        start = len(text) - len(text.lstrip(" \t\r\n"))
        return error_at(columns, start, _render_no_hlo_message(text), _NOT_HLO_FIX)
    if not error.at_end and _is_cut_off(text, position) and len(text[position:].split()) == 1:
        return error_at(columns, position, f"the text ends too early: {error.what}", _CUT_OFF_FIX)
    return error_at(columns, position, error.what, error.fix)


def lost_entry_error(columns: Columns) -> HloParseError:
    """The error for a module whose text ends before its `ENTRY`."""
    last = columns.computations[-1].name
    what = f"the text is cut off before ENTRY; %{last} is the last complete computation"
    return error_at(columns, len(columns.text.rstrip(" \t\r\n")), what, "use the whole text; XLA prints ENTRY last")


def error_at(columns: Columns, position: int, what: str, fix: str | None) -> HloParseError:
    """An error at an offset of the text, with a fix."""
    line, column, line_text = find_line_and_column(columns.text, position)
    line += columns.lines_before
    where = f"{columns.file_name or '<text>'}:{line}:{column}"
    excerpt = format_excerpt(_CONTROL.sub("\ufffd", line_text), column)
    return HloParseError(what, line=line, column=column, where=where, excerpt=excerpt, fix=fix)


def _is_cut_off(text: str, position: int) -> bool:
    """Returns whether an offset is on the last line of a text that does not end with a closing brace."""
    return text.find("\n", position) < 0 and not text.rstrip(" \t\r\n").endswith("}")


def _is_no_hlo(before: str) -> bool:
    """Returns whether the text before the error is less than two words."""
    words = before.split()
    return not words or (len(words) == 1 and words[0].isidentifier() and words[0] not in _HLO_WORDS)


def _render_no_hlo_message(text: str) -> str:
    if text.lstrip().startswith(("module ", "module@", "#loc", "#map", "func.func", "builtin.module")):
        return "this is MLIR (such as StableHLO), not HLO text"
    return "this is not HLO text"


_NEXT_INSTRUCTION = re.compile(r"\n[ \t]*+(?:ROOT[ \t]++)?%?[A-Za-z_][A-Za-z0-9_.-]*+[ \t]*+=[ \t]")
_HEADER_BEFORE = re.compile(r"(?<![%\w.-])HloModule[ \t\r\n]++\Z")
_CUT_TOKEN = re.compile(r"""[A-Za-z0-9_%/<.?-][^\s})\]]*+\s*+|["'{\[(@/][^\n]*+\n?""")
"""The possible beginning of a token at the very end of a text; the second kind may contain blanks."""


def is_cut_off(text: str, error: ReadError) -> bool:
    """Returns whether the text ends too early, rather than being broken at the error.

    It ends too early if something was still expected, or in the middle of a token. A bracket or quote that is never
    closed although further instructions follow is a separate mistake.
    """
    if error.at_end and error.opened_at is None:
        return True
    start = error.position if error.opened_at is None else error.opened_at
    if _begins_second_module(text, error.position):
        return False
    if error.opened_at is None:
        return _CUT_TOKEN.fullmatch(text, start) is not None
    return _NEXT_INSTRUCTION.search(text, start) is None


def _begins_second_module(text: str, position: int) -> bool:
    """Returns whether the text at an offset is the name after a second `HloModule`."""
    return _HEADER_BEFORE.search(text, max(0, position - 80), position) is not None and text.count("HloModule") > 1
