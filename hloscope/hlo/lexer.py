"""The contextual lexer that feeds Lark's LALR tables.

Lark's own contextual lexer cannot delimit nested brackets. This one reads the terminals from the grammar as Lark's
does, tries only those that the parser can use next, and finds the end of a bracketed raw value by counting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lark.common import LexerConf
from lark.lexer import Lexer, LexerState, Token

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


class HloLexError(Exception):
    """No terminal fits, or a bracket is never closed.

    Attributes:
        position: Offset in the text; its length where the text ends too early.
        opened_at: Offset of the bracket that is never closed; None when no terminal fits.
        state: The parser's state, for the names of what it could use.
    """

    def __init__(self, position: int, *, opened_at: int | None, state: Any) -> None:
        super().__init__(position)
        self.position = position
        self.opened_at = opened_at
        self.state = state


class _StateLexer:
    """What can come next in one parser state: one pattern, and the raw values by their opening bracket."""

    __slots__ = ("match", "raw")

    def __init__(self, conf: LexerConf, accepted: frozenset[str]) -> None:
        known = [conf.terminals_by_name[name] for name in accepted if name in conf.terminals_by_name]
        known = [terminal for terminal in known if terminal.name not in _OPENER and terminal.name != "LITERAL"]
        known.sort(key=lambda terminal: (-terminal.priority, -len(terminal.pattern.value), terminal.name))
        alternatives = "|".join(f"(?P<{terminal.name}>{terminal.pattern.to_regexp()})" for terminal in known)
        self.match = re.compile(alternatives or r"(?!)").match
        self.raw = {opener: name for name, opener in _OPENER.items() if name in accepted}


class HloLexer(Lexer):
    """Lark's interface for a lexer that looks at the parser's state before each token."""

    __future_interface__ = 2

    def __init__(self, conf: LexerConf) -> None:
        self._conf = conf
        ignored = "|".join(conf.terminals_by_name[name].pattern.to_regexp() for name in conf.ignore)
        self._skip = re.compile(f"(?:{ignored})*+").match
        self._by_state: dict[Any, _StateLexer] = {}
        self._by_accepted: dict[frozenset[str], _StateLexer] = {}

    def _state_lexer(self, parser_state: Any) -> _StateLexer:
        accepted = frozenset(parser_state.parse_conf.states[parser_state.position])
        found = self._by_accepted.get(accepted)
        if found is None:
            found = self._by_accepted[accepted] = _StateLexer(self._conf, accepted)
        self._by_state[parser_state.position] = found
        return found

    def lex(self, lexer_state: LexerState, parser_state: Any) -> Iterator[Token]:
        """Yields the tokens of the text; each is chosen after the parser has taken the one before.

        Raises:
            HloLexError: No terminal that the parser could use fits, or a bracket is never closed.
        """
        text = lexer_state.text if isinstance(lexer_state.text, str) else lexer_state.text.text
        skip, by_state, length, position = self._skip, self._by_state, len(text), 0
        while (position := skip(text, position).end()) < length:  # type: ignore[union-attr]
            state_lexer = by_state.get(parser_state.position) or self._state_lexer(parser_state)
            match = state_lexer.match(text, position)
            if match is not None:
                name, end = match.lastgroup, match.end()
            elif (name := state_lexer.raw.get(text[position])) is not None:
                end = _balanced_end(text, position, _FINDER[name], parser_state)
            elif "LITERAL" in parser_state.parse_conf.states[parser_state.position]:
                name, end = "LITERAL", _literal_end(text, position, parser_state)
            else:
                raise HloLexError(position, opened_at=None, state=parser_state)
            yield Token(name, text[position:end], position, end_pos=end)  # type: ignore[arg-type]
            position = end


def _balanced_end(text: str, position: int, finder: re.Pattern[str], state: Any) -> int:
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
    raise HloLexError(len(text), opened_at=position, state=state)


def _literal_end(text: str, position: int, state: Any) -> int:
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
    raise HloLexError(len(text), opened_at=position - 1, state=state)
