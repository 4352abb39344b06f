"""The HLO language: Lark's parser for the grammar, made on first use."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedToken
from lark.lexer import Token

from hloscope.errors import HloscopeError
from hloscope.grammars_loader import grammar_text
from hloscope.hlo.expectations import describe
from hloscope.hlo.lexer import HloLexer, HloLexError
from hloscope.hlo.reader import HloReader
from hloscope.hlo.records import ReadError

UPPER_STARTS = ("text", "header", "table_row", "computation_head", "computation_end", "instruction", "continuation")
LOWER_STARTS = (
    "shape",
    "array",
    "layout",
    "replica_groups",
    "sharding",
    "integers",
    "integer_lists",
    "metadata",
    "frontend_attributes",
)


class Language:
    """The parser with its callbacks.

    Attributes:
        reader: The callbacks; its `last_head` names the computation that was open when a parse failed.
    """

    def __init__(self) -> None:
        self.reader = HloReader()
        self._lark = Lark(
            grammar_text("hlo"),
            parser="lalr",
            lexer=HloLexer,
            start=[*UPPER_STARTS, *LOWER_STARTS],
            transformer=self.reader,
            maybe_placeholders=False,
        )
        self.read = lru_cache(maxsize=1 << 16)(self._parse)
        self.reader.read = self.read

    def parse(self, start: str, text: str) -> Any:
        """Parses `text` by the rule `start` and returns what its callback made.

        Raises:
            ReadError: The text does not follow the grammar, or makes no sense; with the offset of the place.
        """
        if start in UPPER_STARTS:
            self.reader.last_head = None
        return self._parse(start, text)

    def _parse(self, start: str, text: str) -> Any:
        try:
            return self._lark.parse(text, start=start)
        except UnexpectedToken as error:
            raise describe(text, _position(error.token, text), None, error.state) from None
        except HloLexError as error:
            raise describe(text, error.position, error.opened_at, error.state) from None
        except HloscopeError as error:
            raise ReadError(0, error.what) from None


def _position(token: Token, text: str) -> int:
    return len(text) if token.type == "$END" or token.start_pos is None else token.start_pos


@cache
def language() -> Language:
    """The one parser of this process."""
    return Language()
