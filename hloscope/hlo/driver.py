"""The shift-reduce loop over Lark's tables.

It does what Lark's own loop does, in one function for lexer and parser together, which takes half the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hloscope.hlo.lexer import HloSyntaxError, StateLexer
from hloscope.hlo.tables import END, Rule, Tables
from hloscope.hlo.tokens import Token

_NOTHING = -1 << 30
"""An action that no table holds: the token cannot stand here."""

_BEGINS_SKIPPED = " \n\t\r/"

Callback = Callable[[list[Any]], Any]


class _Reduction(NamedTuple):
    """A rule, ready to be applied."""

    size: int
    origin: str
    children: Callable[[list[Any]], list[Any]] | None
    callback: Callback | None


class Driver:
    """A parser for the rules of a grammar.

    Args:
        tables: The automaton.
        callbacks: By the name of the rule or of its alternative; every one needs one.
    """

    def __init__(self, tables: Tables, callbacks: Mapping[str, Callback]) -> None:
        self._tables = tables
        self._reductions = [_reduction(rule, callbacks) for rule in tables.rules]
        self._skip = re.compile(f"(?:{'|'.join(tables.ignored)})*+").match
        self._lexers: list[StateLexer | None] = [None] * len(tables.actions)
        self._by_accepted: dict[frozenset[str], StateLexer] = {}

    def parse(self, start: str, text: str) -> Any:
        """What the callbacks make of a text.

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
                kind = END
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
                if state == last and kind is END:
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


def _reduction(rule: Rule, callbacks: Mapping[str, Callback]) -> _Reduction:
    is_whole = rule.kept == tuple((place, False) for place in range(rule.size))
    callback = None if rule.origin.startswith("_") else callbacks[rule.callback]
    return _Reduction(rule.size, rule.origin, None if is_whole else _selector(rule.kept), callback)


def _selector(kept: tuple[tuple[int, bool], ...]) -> Callable[[list[Any]], list[Any]]:
    """Picks the children that are kept. A list that comes first is continued, so that long lists take linear time."""
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
