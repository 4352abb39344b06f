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

    def until(self, end: int) -> Token:
        """The same token without its last characters; `end` is negative."""
        found = Token(self[:end])
        found.type, found.start_pos, found.end_pos = self.type, self.start_pos, self.end_pos + end
        return found
