"""The HLO language: the parser for the grammar, created on first use, and error messages for invalid text."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.hlo.grammar_actions import GrammarActions
from hloscope.hlo.lalr_runtime import AcceptedTerminals, HloSyntaxError, LalrRuntime
from hloscope.hlo.records import ContradictionError, ReadError
from hloscope.hlo.tables import UPPER_STARTS, load_tables


class Language:
    """The parser with its callbacks.

    Attributes:
        reader: The callbacks; its `progress` has the computation that was open when a parse failed.
    """

    def __init__(self) -> None:
        self.reader = GrammarActions()
        made = load_tables()
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
            `ContradictionError` if its values contradict each other.
        """
        if start in UPPER_STARTS:
            self.reader.progress.head = None
            self.reader.progress.end = None
        return self._parse(start, text)

    def _parse(self, start: str, text: str) -> Any:
        try:
            return self._runtime.parse(start, text)
        except HloSyntaxError as error:
            raise describe_failure(text, error.position, error.opened_at, error.accepted) from None
        except HloscopeError as error:
            raise ContradictionError(0, error.what) from None


@cache
def load_language() -> Language:
    """The only parser of this process."""
    return Language()


_MARKS = "LBRACE RBRACE LSQB RSQB LPAR RPAR COMMA EQUAL COLON ARROW LESS_EQUAL ROOT ENTRY HLO_MODULE"
_MARKED = "{ } [ ] ( ) , = : -> <= ROOT ENTRY HloModule"
"""The grammar's names of marks and words, and their spelling."""

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
"""Named only if nothing else can follow: LALR tables allow it after any instruction, for single-instruction texts."""
_MOST_NAMED = 5
_MOST_SHOWN = 40


def describe_failure(text: str, position: int, opened_at: int | None, accepted: AcceptedTerminals) -> ReadError:
    """Converts a failed parse to an error that states what was found and what was expected.

    Args:
        text: The text that was parsed.
        position: The offset at which the parser could not continue.
        opened_at: The bracket that is never closed, if that is what failed.
        accepted: The terminals that would have been accepted there.
    """
    if opened_at is not None:
        what = f"the `{text[opened_at]}` is never closed"
        return ReadError(opened_at, what, fix="close it; or was the file cut off?", at_end=True, opened_at=opened_at)
    expected = _render_expected(accepted)
    if position >= len(text):
        what = f"the text ends where {expected} was expected" if expected else "the text ends too early"
        return ReadError(len(text), what, fix="was the file cut off?", at_end=True)
    found = _render_excerpt(text, position)
    what = f"unexpected {found} where {expected} was expected" if expected else f"unexpected {found}"
    return ReadError(position, what)


def _render_expected(accepted: AcceptedTerminals) -> str:
    """Renders `a name, `,` or `}``; empty if there are too many possibilities to be helpful."""
    words = sorted({_WORDS[name] for name in accepted if name in _WORDS} - {_END}) or [_END]
    if len(words) > _MOST_NAMED:
        return ""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _render_excerpt(text: str, position: int) -> str:
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
