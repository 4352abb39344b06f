"""The contextual lexer: it tries only the terminals that the parser can use next.

Nested brackets no regular expression can delimit; the end of a bracketed raw value is found by counting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

USES_BEFORE_COMPILED = 64
"""Uses of a state after which a pattern of its own pays: making one takes as long as some hundred tokens do."""

_CLOSER = {"{": "}", "[": "]", "(": ")"}
_OPENER = {"BRACED": "{", "RAW_DICT": "{", "BRACKETED": "[", "PARENTHESIZED": "("}
# What is never closed runs to the end of the text: it is found once there, not tried again from every later quote.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_SKIPPED = _STRING + r"|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|/\*(?:[^*]|\*(?!/))*+(?:\*/|\*?\Z)|//[^\r\n]*"


def _bracket_finder(opener: str, skipped: str) -> re.Pattern[str]:
    """A pattern that finds the next bracket of one kind, or a span whose brackets do not count."""
    return re.compile(rf"[{re.escape(opener + _CLOSER[opener])}]|{skipped}", re.DOTALL)


_FINDER = {
    name: _bracket_finder(opener, _STRING if name == "RAW_DICT" else _SKIPPED) for name, opener in _OPENER.items()
}
_LITERAL_FINDER = _bracket_finder("(", _SKIPPED)


Accepted = Mapping[str, int]
"""What the parser can use in one state: its row of the tables."""


class HloSyntaxError(Exception):
    """The parser cannot go on, or a bracket is never closed.

    Attributes:
        position: Offset in the text; its length where the text ends too early.
        opened_at: Offset of the bracket that is never closed, if that is what failed.
        accepted: What could have stood there.
    """

    def __init__(self, position: int, *, opened_at: int | None, accepted: Accepted) -> None:
        super().__init__(position)
        self.position = position
        self.opened_at = opened_at
        self.accepted = accepted


class StateLexer:
    """What can come next in one parser state: the terminals, best first, and the raw values by their opening bracket.

    Attributes:
        match: Matches the next token; its `lastgroup` is the terminal.
    """

    __slots__ = ("_accepted", "_known", "_matchers", "_raw", "_uses", "match")

    match: Callable[[str, int], re.Match[str] | None]

    def __init__(self, terminals: list[tuple[str, str]], accepted: Accepted) -> None:
        self._known = [_named(name, pattern) for name, pattern in terminals if name in accepted]
        self._matchers = [_matcher(pattern) for pattern in self._known]
        self._uses = 0
        self._raw = {opener: name for name, opener in _OPENER.items() if name in accepted}
        self._accepted = accepted
        self.match = self._match_one_by_one

    def _match_one_by_one(self, text: str, position: int) -> re.Match[str] | None:
        """Tries the terminals' own patterns, which many states share, as the state's one pattern would."""
        self._uses += 1
        if self._uses > USES_BEFORE_COMPILED:
            self.match = re.compile("|".join(self._known) or r"(?!)").match
            return self.match(text, position)
        for matcher in self._matchers:
            found = matcher(text, position)
            if found is not None:
                return found
        return None

    def raw(self, text: str, position: int) -> tuple[str, int]:
        """The bracketed value or literal at an offset: its terminal, and the offset after it.

        Raises:
            HloSyntaxError: None can stand there, or it is never closed.
        """
        name = self._raw.get(text[position])
        if name is not None:
            return name, _balanced_end(text, position, _FINDER[name], self._accepted)
        if "LITERAL" in self._accepted:
            return "LITERAL", _literal_end(text, position, self._accepted)
        raise HloSyntaxError(position, opened_at=None, accepted=self._accepted)


def _named(name: str, pattern: str) -> str:
    return f"(?P<{name}>{pattern})"


@cache
def _matcher(pattern: str) -> Callable[[str, int], re.Match[str] | None]:
    return re.compile(pattern).match


def _balanced_end(text: str, position: int, finder: re.Pattern[str], accepted: Accepted) -> int:
    """The offset after the bracket that closes the one at `position`."""
    opener, closer, depth = text[position], _CLOSER[text[position]], 0
    for match in finder.finditer(text, position):
        found = match.group()
        if found == opener:
            depth += 1
        elif found == closer:
            depth -= 1
            if depth == 0:
                return match.end()
    raise HloSyntaxError(len(text), opened_at=position, accepted=accepted)


def _literal_end(text: str, position: int, accepted: Accepted) -> int:
    """The offset of the `)` that closes `constant(`, of which `position` is the first character inside."""
    depth = 1
    for match in _LITERAL_FINDER.finditer(text, position):
        found = match.group()
        if found == "(":
            depth += 1
        elif found == ")":
            depth -= 1
            if depth == 0:
                return match.start()
    raise HloSyntaxError(len(text), opened_at=position - 1, accepted=accepted)
