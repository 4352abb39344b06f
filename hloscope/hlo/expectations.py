"""What the grammar expected, in words."""

from __future__ import annotations

import re

from hloscope.hlo.lexer import Accepted
from hloscope.hlo.records import ReadError

_WORDS = {
    "NAME": "a name",
    "IDENT": "a name",
    "ARRAY": "a shape",
    "KEY": "an attribute",
    "STRING": "a string",
    "INTEGER": "a number",
    "WORD": "a value",
    "BRACED": "`{`",
    "RAW_DICT": "`{`",
    "BRACKETED": "`[`",
    "PARENTHESIZED": "`(`",
    "LITERAL": "a literal",
    "LAYOUT": "a layout",
    "ELEMENT_TYPE": "an element type",
    "PARAMETER_NAME": "a name",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "ARROW": "`->`",
    "LESS_EQUAL": "`<=`",
    "ROOT": "`ROOT`",
    "ENTRY": "`ENTRY`",
    "HLO_MODULE": "`HloModule`",
    "TILE_LETTER": "tiles",
    "THREAD_KEY": "`execution_thread=`",
    "WINDOW_SIZES_KEY": "a part of a window",
    "WINDOW_PAD_KEY": "a part of a window",
    "SIZES": "sizes such as `3x3`",
    "WINDOW_PAD": "a padding such as `0_0x1_1`",
    "PADDING": "a padding such as `0_0x1_1`",
    "DIM_LABELS": "labels such as `b01f_01io->b01f`",
    "MODE_KEY": "`mode=`",
    "TOLERANCE_KEY": "`tolerance=`",
    "ACCURACY_MODE": "`default` or `highest`",
    "BOOLEAN": "`true` or `false`",
}
_END = "the end of the text"
"""Named only where nothing else can come: LALR tables allow it after any instruction, for texts of a single one."""
_MOST_NAMED = 5
_MOST_SHOWN = 40


def describe(text: str, position: int, opened_at: int | None, accepted: Accepted) -> ReadError:
    """Turns a failed parse into an error that says what stood there and what was expected.

    Args:
        text: The text that was parsed.
        position: Where the parser could not go on.
        opened_at: The bracket that is never closed, if that is what failed.
        accepted: What the parser could have used at that place.
    """
    if opened_at is not None:
        what = f"the `{text[opened_at]}` is never closed"
        return ReadError(opened_at, what, fix="close it; or was the file cut off?", at_end=True, opened_at=opened_at)
    expected = _expected_words(accepted)
    if position >= len(text):
        what = f"the text ends where {expected} was expected" if expected else "the text ends too early"
        return ReadError(len(text), what, fix="was the file cut off?", at_end=True)
    found = _shown(text, position)
    what = f"unexpected {found} where {expected} was expected" if expected else f"unexpected {found}"
    return ReadError(position, what)


def _expected_words(accepted: Accepted) -> str:
    """`a name, `,` or `}``; empty when too much is possible to be of help."""
    words = sorted({_WORDS[name] for name in accepted if name in _WORDS} - {_END}) or [_END]
    if len(words) > _MOST_NAMED:
        return ""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(text: str, position: int) -> str:
    character = text[position]
    if character in "\"'":
        return "string" if text.find(character, position + 1) >= 0 else "string that never ends"
    if not character.isprintable():
        return f"character U+{ord(character):04X}"
    word = re.compile(r"%?[A-Za-z0-9_.-]*").match(text, position)
    found = word.group() if word is not None else ""
    if not found:
        return f"`{character}`"
    return f"`{found}`" if len(found) <= _MOST_SHOWN else f"`{found[:_MOST_SHOWN]}…`"
