"""The HLO language: the parser for the grammar, made on first use, and what it says of text that does not follow it."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.hlo.grammar_actions import GrammarActions
from hloscope.hlo.lalr_runtime import Accepted, HloSyntaxError, LalrRuntime
from hloscope.hlo.records import ContradictionError, ReadError
from hloscope.hlo.tables import UPPER_STARTS, tables


class Language:
    """The parser with its callbacks.

    Attributes:
        reader: The callbacks; its `progress` knows the computation that was open when a parse failed.
    """

    def __init__(self) -> None:
        self.reader = GrammarActions()
        made = tables()
        callbacks = {
            name: getattr(self.reader, name)
            for name in {rule.callback for rule in made.rules if not rule.origin.startswith("_")}
        }
        self._runtime = LalrRuntime(made, callbacks)
        self.read = lru_cache(maxsize=1 << 14)(self._parse)
        self.reader.read = self.read

    def parse(self, start: str, text: str) -> Any:
        """Parses `text` by the rule `start` and returns what its callback made.

        Raises:
            ReadError: The text does not follow the grammar, or makes no sense; with the offset of the place. A
                `ContradictionError` where its values do not fit together.
        """
        if start in UPPER_STARTS:
            self.reader.progress.head = None
            self.reader.progress.end = None
        return self._parse(start, text)

    def _parse(self, start: str, text: str) -> Any:
        try:
            return self._runtime.parse(start, text)
        except HloSyntaxError as error:
            raise describe(text, error.position, error.opened_at, error.accepted) from None
        except HloscopeError as error:
            raise ContradictionError(0, error.what) from None


@cache
def language() -> Language:
    """The one parser of this process."""
    return Language()


_MARKS = "LBRACE RBRACE LSQB RSQB LPAR RPAR COMMA EQUAL COLON ARROW LESS_EQUAL ROOT ENTRY HLO_MODULE"
_MARKED = "{ } [ ] ( ) , = : -> <= ROOT ENTRY HloModule"
"""What the grammar calls its marks and words, and how each is written."""

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
    **{name: f"`{mark}`" for name, mark in zip(_MARKS.split(), _MARKED.split(), strict=True)},
    "TILE_LETTER": "tiles",
    "THREAD_KEY": "`execution_thread=`",
    "WINDOW_SIZES_KEY": "a field of a window",
    "WINDOW_PAD_KEY": "a field of a window",
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
        return "string" if text.find(character, position + 1) >= 0 else "unterminated string"
    if not character.isprintable():
        return f"character U+{ord(character):04X}"
    word = re.compile(r"%?[A-Za-z0-9_.-]*").match(text, position)
    found = word.group() if word is not None else ""
    if not found:
        return f"`{character}`"
    return f"`{found}`" if len(found) <= _MOST_SHOWN else f"`{found[:_MOST_SHOWN]}…`"
