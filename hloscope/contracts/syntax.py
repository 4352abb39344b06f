"""From the text of a contract to its parse tree, or to an error that points at the line and the column."""

from __future__ import annotations

import re
from functools import cache
from typing import NoReturn

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from hloscope.analysis.vocabulary import Kind
from hloscope.errors import NotationError, caret_excerpt, did_you_mean
from hloscope.grammars_loader import grammar_text

EXAMPLE = "all-reduce@Y <= 32KiB x2"
_EXAMPLES = {"contract": EXAMPLE, "selector": 'all-gather@(X,Y) in "model/attention.py"'}
CLAUSE_WORDS = (
    "no",
    "wire",
    "payload",
    "hbm",
    "time",
    "exposed",
    "trips",
    "nothing else",
    "none",
    "equivalent",
    "at-least-ok",
)

_UP_TO_BLANK = re.compile(r"[^\s;]+")
_WORDS = {
    "KIND": "a kind of collective",
    "AXIS": "a mesh axis",
    "QUOTED": "a place",
    "LINK": "ici or dcn",
    "AMOUNT": "an amount with its unit",
    "COUNT": '"x" and a count',
    "PER_STEP": '"/step"',
    "INTEGER": "a number",
    "AT": '"@"',
    "OVER": '"over"',
    "IN": '"in"',
    "__ANON_0": '"<="',
    "EQUAL": '"="',
    "LPAR": '"("',
    "RPAR": '")"',
    "COMMA": '","',
    "SEMICOLON": "the end of the clause",
}


@cache
def _parser() -> Lark:
    return Lark(grammar_text("contract"), parser="lalr", start=["contract", "selector"], maybe_placeholders=False)


class ContractSource:
    """The text of a contract, which every error about it quotes.

    Attributes:
        text: As the user wrote it.
        where: Where the user wrote it, such as `pyproject.toml, target step`.
    """

    __slots__ = ("text", "where")

    def __init__(self, text: str, where: str = "contract") -> None:
        self.text = text
        self.where = where

    def parse(self, start: str = "contract") -> Tree[Token]:
        """Reads the text.

        Args:
            start: What it is: a `contract`, or only the `selector` of a clause.

        Raises:
            NotationError: It is none.
        """
        try:
            return _parser().parse(self.text, start=start)
        except UnexpectedInput as error:
            self._refuse(error, start)

    def error(self, what: str, position: int, *, why: str | None = None, fix: str | None = None) -> NotationError:
        """The error `what` at the 0-based `position` in the text."""
        line, column = self.place(position)
        return NotationError(
            what,
            where=f"{self.where}, {f'line {line}, ' if self.has_lines else ''}column {column}",
            excerpt=caret_excerpt(self.line_at(position), column),
            why=why,
            fix=fix,
        )

    @property
    def has_lines(self) -> bool:
        """Whether messages have to say on which line something stands."""
        return "\n" in self.text.rstrip("\n")

    def place(self, position: int) -> tuple[int, int]:
        """1-based line and column of a position."""
        before = self.text[:position]
        return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1

    def line_at(self, position: int) -> str:
        """The line that holds a position."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        return self.text[start : len(self.text) if end < 0 else end]

    def _refuse(self, error: UnexpectedInput, start: str) -> NoReturn:
        expected: set[str] = set()
        if isinstance(error, UnexpectedToken):
            expected = set(error.accepts or error.expected)
        elif isinstance(error, UnexpectedCharacters):
            expected = set(error.allowed or ())
        position, found = self._found(error)
        words = [word for name, word in _WORDS.items() if name in expected]
        raise self.error(
            "this is no contract" if start == "contract" else "this names no collectives",
            position,
            why=f"{found}; expected {_any_of(words)}" if words else found,
            fix=self._suggestion(position) or f"write, for example, {_EXAMPLES[start]}",
        ) from None

    def _found(self, error: UnexpectedInput) -> tuple[int, str]:
        """The 0-based position of what does not belong, and what it is."""
        token = error.token if isinstance(error, UnexpectedToken) else None
        if token is not None and token.type == "$END":
            return len(self.text.rstrip()), "it ends here"
        position = error.pos_in_stream or 0
        if token is not None and token.type == "_NEWLINE":
            return position, "the clause ends here"
        shown = _UP_TO_BLANK.match(self.text, position)
        return position, f'"{shown[0] if shown else self.text[position]}" does not belong here'

    def _suggestion(self, position: int) -> str | None:
        """What the user may have meant by the first word of the clause, where that is no word of the notation."""
        line = self.line_at(position)
        column = self.place(position)[1] - 1
        clause = line[line.rfind(";", 0, column) + 1 :].split(";")[0].strip()
        first = clause.replace("@", " ").partition(" ")[0]
        if first in ("only", "just"):
            return f"write {clause.removeprefix(first).strip() or EXAMPLE}; nothing else"
        return None if first in CLAUSE_WORDS or first in set(Kind) else nearest_word(first)


def nearest_word(word: str) -> str | None:
    """The kind or the clause that a word is near to, as a question; None when there is none."""
    return did_you_mean(word.lower().replace("_", "-"), (*Kind, *CLAUSE_WORDS))


def _any_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
