"""The parser from the text of an option to a parse tree, or to an error that points at the column.

Lark reads the text; its errors are explained here in the words of the notation, not of the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, NoReturn

from hloscope.errors import NotationError, caret_excerpt, place_in
from hloscope.grammars_loader import grammar_text

if TYPE_CHECKING:
    from lark import Lark, Token, Tree, UnexpectedInput

Notation = Literal["array", "partition_spec", "integers", "words", "indices"]

_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

_MARKS = "LSQB RSQB LPAR RPAR LBRACE RBRACE LESSTHAN MORETHAN COMMA AT STAR COLON EQUAL"
"""Lark's names for `[](){}<>,@*:=`."""

_WORDS = {
    "NAME": "a name",
    "INTEGER": "a number",
    "QUOTED": "a quoted name",
    "KEY": "an element type",
    "WEAK": '"~"',
    "SPEC_CALL": '"P("',
    **{name: f'"{mark}"' for name, mark in zip(_MARKS.split(), "[](){}<>,@*:=", strict=True)},
    "$END": "the end",
}


@cache
def _make_parser() -> Lark:
    from lark import Lark  # which takes its time, and few of these texts need it

    return Lark(
        grammar_text("argument"),
        parser="lalr",
        start=["array", "partition_spec", "integers", "words", "indices"],
        maybe_placeholders=False,
    )


class QuotedText:
    """A text that is quoted by every error about it.

    Attributes:
        text: As the user wrote it.
        where: The place where the user wrote it, such as `pyproject.toml, target step`, or the notation's name.
    """

    __slots__ = ("text", "where")

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where

    def place(self, position: int) -> tuple[str, int, str]:
        """The place of a 0-based position, with its line if there are several; its 1-based column; and that line."""
        line, column, shown = place_in(self.text, position)
        return f"{self.where}, line {line}" if "\n" in self.text.rstrip("\n") else self.where, column, shown

    def error(self, what: str, position: int, *, why: str | None = None, fix: str | None = None) -> NotationError:
        """The error `what` at the 0-based `position` in the text."""
        where, column, shown = self.place(position)
        excerpt = caret_excerpt(shown, column)
        return NotationError(what, where=f"{where}, column {column}", excerpt=excerpt, why=why, fix=fix)


class Source(QuotedText):
    """The text of one option, on one line; `where` is the notation's name, such as `array type`.

    Attributes:
        example: An example of a correct text.
    """

    __slots__ = ("example",)

    def __init__(self, text: str, where: str, example: str) -> None:
        super().__init__(" ".join(text.splitlines()) if "\n" in text or "\r" in text else text, where)
        self.example = example

    def parse(self, notation: Notation) -> Tree[Token]:
        """Parses the text.

        Raises:
            NotationError: It is empty, a bracket is not closed, or something is not allowed by the notation.
        """
        from lark import UnexpectedInput

        if not self.text.strip():
            raise NotationError(f"an empty {self.where}", fix=f"write, for example, {self.example}")
        self._check_brackets()
        try:
            return _make_parser().parse(self.text, start=notation)
        except UnexpectedInput as error:
            self._refuse(error)

    def _check_brackets(self) -> None:
        opened: list[tuple[str, int]] = []
        for position, character in enumerate(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), self.text)):
            if character in _BRACKETS:
                opened.append((character, position))
            elif character in _BRACKETS.values():
                opening = opened.pop()[0] if opened else None
                if opening is None:
                    fix = f"write, for example, {self.example}"
                    raise self.error(f'unmatched "{character}"', position, fix=fix)
                if _BRACKETS[opening] != character:
                    fix = f'close it with "{_BRACKETS[opening]}" first'
                    raise self.error(f'"{character}" cannot close "{opening}"', position, fix=fix)
        for character, position in opened[-1:]:
            fix = f'add the matching "{_BRACKETS[character]}"'
            raise self.error(f'"{character}" is never closed', position, fix=fix)

    def _refuse(self, error: UnexpectedInput) -> NoReturn:
        token = getattr(error, "token", None)
        position = error.pos_in_stream or 0
        found = f'unexpected "{token or self.text[position : position + 1]}"'
        if token is not None and token.type == "$END":
            position, found = len(self.text.rstrip()), "it ends here"
        raise self.error(
            f"this is not a valid {self.where}",
            position,
            why=found + describe_expected(error, _WORDS),
            fix=f"write, for example, {self.example}",
        ) from None


def describe_expected(error: UnexpectedInput, words: Mapping[str, str]) -> str:
    """Describes what the parser expected at the error: `; expected a name or ","`; empty if no word describes it.

    Args:
        error: The parser's error.
        words: A notation's words for the names of its grammar, in the order in which they are listed.
    """
    ways = ("accepts", "expected", "allowed")  # of a token that cannot stand there, and of a character
    expected = next(filter(None, (getattr(error, way, None) for way in ways)), ())
    possible = [word for name, word in words.items() if name in expected]
    listed = " or ".join(part for part in (", ".join(possible[:-1]), *possible[-1:]) if part)
    return f"; expected {listed}" if possible else ""


def find_start(token: Token) -> int:
    """The 0-based position of a token in its text."""
    return token.start_pos or 0


def find_tokens(tree: Tree[Token], *path: str) -> list[Token]:
    """The tokens directly below `tree`, or below the trees that a path of names leads to, in order."""
    trees = [tree]
    for name in path:
        trees = [child for tree in trees for child in find_subtrees(tree, name)]
    return [child for tree in trees for child in tree.children if isinstance(child, str)]


def find_subtrees(tree: Tree[Token], name: str) -> list[Tree[Token]]:
    """The trees called `name` directly below `tree`, in order."""
    return [child for child in tree.children if not isinstance(child, str) and child.data == name]
