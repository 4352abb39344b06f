"""The shift-reduce loop over Lark's tables, with its contextual lexer.

It replaces Lark's own loop by one function for lexer and parser together, which takes half the time. The lexer tries
only the terminals that the parser can use next. No regular expression can delimit nested brackets; the end of a
bracketed raw value is found by counting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from hloscope.hlo.tables import END_TERMINAL, GrammarRule, ParseTables

_NOTHING = -1 << 30
"""An action that no table has: the token is not allowed here."""

_BEGINS_SKIPPED = " \n\t\r/"

_Callback = Callable[[list[Any]], Any]


class _Reduction(NamedTuple):
    """A rule, ready to be applied."""

    size: int
    origin: str
    children: Callable[[list[Any]], list[Any]] | None
    callback: _Callback | None


class LalrRuntime:
    """A parser for the rules of a grammar.

    Args:
        tables: The automaton.
        callbacks: The callbacks, by the name of the rule or of its alternative; each needs one.
    """

    def __init__(self, tables: ParseTables, callbacks: Mapping[str, _Callback]) -> None:
        self._tables = tables
        self._reductions = [_make_reduction(rule, callbacks) for rule in tables.rules]
        self._skip = re.compile(f"(?:{'|'.join(tables.ignored)})*+").match
        self._lexers: list[StateLexer | None] = [None] * len(tables.actions)
        self._by_accepted: dict[frozenset[str], StateLexer] = {}

    def parse(self, start: str, text: str) -> Any:
        """The result of the callbacks for a text.

        Raises:
            HloSyntaxError: The text does not follow the rule.
        """
        actions, reductions, lexers = self._tables.actions, self._reductions, self._lexers
        skip, length, end = self._skip, len(text), 0
        state, last = self._tables.starts[start], self._tables.ends[start]
        states: list[int] = [state]
        values: list[Any] = []
        while True:
            position = skip(text, end).end() if text[end : end + 1] in _BEGINS_SKIPPED else end  # type: ignore[union-attr]
            if position < length:
                lexer = lexers[state] or self._lexer(state)
                match = lexer.match(text, position)
                kind, end = (match.lastgroup or "", match.end()) if match else lexer.raw(text, position)
            else:
                kind = END_TERMINAL
            while (action := actions[state].get(kind, _NOTHING)) < 0:
                if action == _NOTHING:
                    raise HloSyntaxError(position, opened_at=None, accepted=actions[state])
                size, origin, children, callback = reductions[~action]
                found = values[-size:] if size else []
                if size:
                    del states[-size:], values[-size:]
                if children is not None:
                    found = children(found)
                values.append(found if callback is None else callback(found))
                state = actions[states[-1]][origin]
                states.append(state)
                if state == last and kind is END_TERMINAL:
                    return values[-1]
            state = action
            states.append(state)
            made = str.__new__(Token, text[position:end])
            made.type, made.start_pos, made.end_pos = kind, position, end
            values.append(made)

    def _lexer(self, state: int) -> StateLexer:
        accepted = self._tables.actions[state]
        names = frozenset(accepted)
        found = self._by_accepted.get(names)
        if found is None:
            found = self._by_accepted[names] = StateLexer(self._tables.terminals, accepted)
        self._lexers[state] = found
        return found


def _make_reduction(rule: GrammarRule, callbacks: Mapping[str, _Callback]) -> _Reduction:
    is_whole = rule.kept == tuple((place, False) for place in range(rule.size))
    callback = None if rule.origin.startswith("_") else callbacks[rule.callback]
    return _Reduction(rule.size, rule.origin, None if is_whole else _make_selector(rule.kept), callback)


def _make_selector(kept: tuple[tuple[int, bool], ...]) -> Callable[[list[Any]], list[Any]]:
    """A function that picks the kept children. A list in first place is extended, so long lists take linear time."""
    if not any(expanded for _, expanded in kept):
        places = [place for place, _ in kept]
        return lambda values: [values[place] for place in places]

    def select(values: list[Any]) -> list[Any]:
        (first, expanded), *rest = kept
        selected: list[Any] = values[first] if expanded else [values[first]]
        for place, is_list in rest:
            if is_list:
                selected += values[place]
            else:
                selected.append(values[place])
        return selected

    return select


USES_BEFORE_COMPILED = 256
"""Uses of a state after which its own pattern pays off: compiling one takes as long as some hundred tokens."""

_CLOSER = {"{": "}", "[": "]", "(": ")"}
_OPENER = {"BRACED": "{", "RAW_DICT": "{", "BRACKETED": "[", "PARENTHESIZED": "("}
# An unclosed quote runs to the end of the text: it is found there once, not retried from every later quote.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_SKIPPED = _STRING + r"|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|/\*(?:[^*]|\*(?!/))*+(?:\*/|\*?\Z)|//[^\r\n]*"


def _make_bracket_finder(opener: str, skipped: str) -> re.Pattern[str]:
    """A pattern that finds the next bracket of one kind, or a span whose brackets do not count."""
    return re.compile(rf"[{re.escape(opener + _CLOSER[opener])}]|{skipped}", re.DOTALL)


_FINDER = {
    name: _make_bracket_finder(opener, _STRING if name == "RAW_DICT" else _SKIPPED) for name, opener in _OPENER.items()
}
_LITERAL_FINDER = _make_bracket_finder("(", _SKIPPED)


AcceptedTerminals = Mapping[str, int]
"""The terminals that the parser can use in one state: its row of the tables."""


class HloSyntaxError(Exception):
    """The parser cannot continue, or a bracket is never closed.

    Attributes:
        position: Offset in the text; its length if the text ends too early.
        opened_at: Offset of the bracket that is never closed, if that is what failed.
        accepted: The terminals that would have been accepted there.
    """

    def __init__(self, position: int, *, opened_at: int | None, accepted: AcceptedTerminals) -> None:
        super().__init__(position)
        self.position = position
        self.opened_at = opened_at
        self.accepted = accepted


class StateLexer:
    """The possible next tokens in one parser state: terminals, best first, and raw values by opening bracket.

    Attributes:
        match: Matches the next token; its `lastgroup` is the terminal.
    """

    __slots__ = ("_accepted", "_known", "_matchers", "_raw", "_uses", "match")

    match: Callable[[str, int], re.Match[str] | None]

    def __init__(self, terminals: list[tuple[str, str]], accepted: AcceptedTerminals) -> None:
        self._known = [f"(?P<{name}>{pattern})" for name, pattern in terminals if name in accepted]
        self._matchers = [_make_matcher(pattern) for pattern in self._known]
        self._uses = 0
        self._raw = {opener: name for name, opener in _OPENER.items() if name in accepted}
        self._accepted = accepted
        self.match = self._match_one_by_one

    def _match_one_by_one(self, text: str, position: int) -> re.Match[str] | None:
        """Tries the terminals' own patterns, which many states share, instead of the state's combined pattern."""
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
        """The bracketed value or literal at an offset: its terminal, and its end offset.

        Raises:
            HloSyntaxError: None is allowed there, or it is never closed.
        """
        name = self._raw.get(text[position])
        if name is not None:
            return name, _find_closing(text, position, _FINDER[name], text[position], self._accepted).end()
        if "LITERAL" in self._accepted:  # which begins after the `(` of `constant(`
            return "LITERAL", _find_closing(text, position, _LITERAL_FINDER, "(", self._accepted, depth=1).start()
        raise HloSyntaxError(position, opened_at=None, accepted=self._accepted)


@cache
def _make_matcher(pattern: str) -> Callable[[str, int], re.Match[str] | None]:
    return re.compile(pattern).match


def _find_closing(
    text: str, position: int, finder: re.Pattern[str], opener: str, accepted: AcceptedTerminals, depth: int = 0
) -> re.Match[str]:
    """The bracket that closes the one at `position` or, with `depth` 1, the one just before it."""
    opened_at, closer = position - depth, _CLOSER[opener]
    for match in finder.finditer(text, position):
        found = match.group()
        if found == opener:
            depth += 1
        elif found == closer:
            depth -= 1
            if depth == 0:
                return match
    raise HloSyntaxError(len(text), opened_at=opened_at, accepted=accepted)


class Token(str):
    """A piece of the text, with its terminal and offsets.

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
