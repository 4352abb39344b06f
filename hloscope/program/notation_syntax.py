"""From the text of an option to a parse tree, or to an error that points at the column.

Lark reads the text; what it cannot read is explained here in the words of the notation, not of the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal, NoReturn

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from hloscope.errors import NotationError, caret_excerpt
from hloscope.grammars_loader import grammar_text

Notation = Literal["array", "partition_spec", "integers", "words", "indices"]

_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

_WORDS = {
    "NAME": "a name",
    "INTEGER": "a number",
    "QUOTED": "a quoted name",
    "KEY": "an element type",
    "WEAK": '"~"',
    "SPEC_CALL": '"P("',
    "LSQB": '"["',
    "RSQB": '"]"',
    "LPAR": '"("',
    "RPAR": '")"',
    "LBRACE": '"{"',
    "RBRACE": '"}"',
    "LESSTHAN": '"<"',
    "MORETHAN": '">"',
    "COMMA": '","',
    "AT": '"@"',
    "STAR": '"*"',
    "COLON": '":"',
    "EQUAL": '"="',
    "$END": "the end",
}


@cache
def _parser() -> Lark:
    return Lark(
        grammar_text("argument"),
        parser="lalr",
        start=["array", "partition_spec", "integers", "words", "indices"],
        maybe_placeholders=False,
    )


class Source:
    """The text of one option, which every error about it quotes.

    Attributes:
        text: As the user wrote it, on one line.
        what: What it should be, such as `array type`.
        example: A text that would be right.
    """

    __slots__ = ("example", "text", "what")

    def __init__(self, text: str, what: str, example: str) -> None:
        self.text = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
        self.what = what
        self.example = example

    def error(self, what: str, position: int, *, why: str | None = None, fix: str | None = None) -> NotationError:
        """The error `what` at the 0-based `position` in the text."""
        return NotationError(
            what,
            where=f"{self.what}, column {position + 1}",
            excerpt=caret_excerpt(self.text, position + 1),
            why=why,
            fix=fix,
        )

    def parse(self, notation: Notation) -> Tree[Token]:
        """Reads the text.

        Raises:
            NotationError: It is empty, a bracket is not closed, or something else is there than the notation allows.
        """
        if not self.text.strip():
            raise NotationError(f"an empty {self.what}", fix=f"write, for example, {self.example}")
        self._check_brackets()
        try:
            return _parser().parse(self.text, start=notation)
        except UnexpectedInput as error:
            self._refuse(error)

    def _check_brackets(self) -> None:
        opened: list[tuple[str, int]] = []
        for position, character in enumerate(_without_quotes(self.text)):
            if character in _BRACKETS:
                opened.append((character, position))
            elif character in _BRACKETS.values():
                self._check_closing(character, position, opened.pop()[0] if opened else None)
        if opened:
            character, position = opened[-1]
            raise self.error(
                f'"{character}" is never closed', position, fix=f'add the "{_BRACKETS[character]}" that belongs to it'
            )

    def _check_closing(self, character: str, position: int, opening: str | None) -> None:
        if opening is None:
            raise self.error(f'"{character}" closes nothing', position, fix=f"write, for example, {self.example}")
        if _BRACKETS[opening] != character:
            raise self.error(
                f'"{character}" cannot close "{opening}"', position, fix=f'close it with "{_BRACKETS[opening]}" first'
            )

    def _refuse(self, error: UnexpectedInput) -> NoReturn:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        position = len(self.text.rstrip()) if ended else error.pos_in_stream or 0
        found = "it ends here" if ended else f'"{self._found(error, position)}" does not belong here'
        raise self.error(
            f"this is no {self.what}",
            position,
            why=found + expected_by(error, _WORDS),
            fix=f"write, for example, {self.example}",
        ) from None

    def _found(self, error: UnexpectedInput, position: int) -> str:
        return str(error.token) if isinstance(error, UnexpectedToken) else self.text[position]


def _without_quotes(text: str) -> str:
    """The text with its quoted parts blanked, at the same positions."""
    return _QUOTED.sub(lambda match: " " * len(match[0]), text)


def expected_by(error: UnexpectedInput, words: Mapping[str, str]) -> str:
    """What could stand where a text cannot be read: `; expected a name or ","`; empty where no word says it.

    Args:
        error: What cannot be read.
        words: A notation's words for the names of its grammar, in the order in which they are told.
    """
    expected: set[str] = set()
    if isinstance(error, UnexpectedToken):
        expected = set(error.accepts or error.expected)
    elif isinstance(error, UnexpectedCharacters):
        expected = set(error.allowed or ())
    told = [word for name, word in words.items() if name in expected]
    listed = " or ".join(part for part in (", ".join(told[:-1]), *told[-1:]) if part)
    return f"; expected {listed}" if told else ""


def start_of(token: Token) -> int:
    """The 0-based position of a token in its text."""
    return token.start_pos or 0


def tokens_of(tree: Tree[Token]) -> list[Token]:
    """The tokens directly below `tree`, in order."""
    return [child for child in tree.children if isinstance(child, Token)]


def subtrees_of(tree: Tree[Token], name: str) -> list[Tree[Token]]:
    """The trees called `name` directly below `tree`, in order."""
    return [child for child in tree.children if isinstance(child, Tree) and child.data == name]
