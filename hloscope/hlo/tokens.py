"""The tokens that the lexer makes."""

from __future__ import annotations


class Token(str):
    """A piece of the text, with the terminal it is and where it stands.

    Attributes:
        type: The terminal's name in the grammar.
        start_pos: Offset of its first character.
        end_pos: Offset after its last character.
    """

    __slots__ = ("end_pos", "start_pos", "type")

    type: str
    start_pos: int
    end_pos: int
