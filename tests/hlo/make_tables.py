"""The parse tables of HLO's grammar, made by Lark: `python tests/hlo/make_tables.py` writes those of `hlo.lark`."""

from __future__ import annotations

import json
from typing import Any

from lark import Lark
from lark.lexer import Lexer
from lark.parsers.lalr_analysis import Shift

from hloscope.base.environment import read_grammar
from hloscope.hlo.lalr import RULE_OF_VALUE, TABLES, UPPER_STARTS, GrammarRule, ParseTables

LOWER_STARTS = (
    *("shape", "array", "layout", "replica_groups", "sharding", "metadata", "frontend_attributes"),
    *dict.fromkeys(RULE_OF_VALUE.values()),
)


class NoLexer(Lexer):
    """A placeholder, because Lark is only used for its tables."""

    def __init__(self, _conf: Any) -> None: ...

    def lex(self, _state: Any, _parser: Any) -> Any: ...


def make_tables(grammar: str, *, debug: bool = False) -> ParseTables:
    """The tables made by Lark; with `debug` it logs the conflicts that it resolves itself."""
    starts = [*UPPER_STARTS, *LOWER_STARTS]
    lark = Lark(grammar, parser="lalr", lexer=NoLexer, start=starts, maybe_placeholders=False, debug=debug)
    table = lark.parser.parser._parse_table
    rules = sorted(lark.rules, key=lambda rule: (rule.origin.name, rule.order, [item.name for item in rule.expansion]))
    index = {rule: number for number, rule in enumerate(rules)}
    numbers = _number_states(table.states, [table.start_states[start] for start in starts])
    actions = [
        {
            name: numbers[target] if action is Shift else ~index[target]
            for name, (action, target) in sorted(table.states[state].items())
        }
        for state in numbers
    ]
    terminals = [terminal for terminal in lark.terminals if terminal.name not in lark.ignore_tokens]
    terminals.sort(key=lambda terminal: (-terminal.priority, -len(terminal.pattern.value), terminal.name))
    patterns = {terminal.name: terminal.pattern.to_regexp() for terminal in lark.terminals}
    return ParseTables(
        actions=actions,
        rules=list(map(_convert_rule, rules)),
        starts={start: numbers[table.start_states[start]] for start in starts},
        ends={start: numbers[table.end_states[start]] for start in starts},
        terminals=[(terminal.name, patterns[terminal.name]) for terminal in terminals],
        ignored=[patterns[name] for name in sorted(lark.ignore_tokens)],
    )


def _number_states(states: Any, starts: list[Any]) -> dict[Any, int]:
    """A number for each state, in the order in which they are reached; Lark's own order changes between runs."""
    numbers = {state: number for number, state in enumerate(starts)}
    for state in (reached := list(starts)):
        for _, (action, target) in sorted(states[state].items(), key=lambda item: str(item[0])):
            if action is Shift and target not in numbers:
                numbers[target] = len(numbers)
                reached.append(target)
    return numbers


def _convert_rule(rule: Any) -> GrammarRule:
    kept = tuple(
        (place, not symbol.is_term and symbol.name.startswith("_"))
        for place, symbol in enumerate(rule.expansion)
        if not (symbol.is_term and symbol.filter_out)
    )
    return GrammarRule(rule.origin.name, rule.alias or rule.origin.name, len(rule.expansion), kept)


if __name__ == "__main__":
    tables = make_tables(read_grammar("hlo"))
    TABLES.write_text(json.dumps(tables._asdict(), separators=(",", ":")) + "\n", encoding="utf-8")
