"""The parse tables that Lark makes from the grammar, as plain data.

Lark takes a tenth of a second to make them, longer than reading a module of a megabyte. So they are kept next to this
file, with a digest of their grammar; a grammar with another digest is given to Lark again. After a change of
`hlo.lark`, write them again with `write_tables`; a test fails until that is done.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from hloscope.grammars_loader import grammar_text
from hloscope.hlo.opcodes import RULE_OF_VALUE

UPPER_STARTS = ("text", "header", "table_row", "computation_head", "computation_end", "instruction", "continuation")
_LOWER_STARTS = (
    *("shape", "array", "layout", "replica_groups", "sharding", "metadata", "frontend_attributes"),
    *dict.fromkeys(RULE_OF_VALUE.values()),
)
END_TERMINAL = "$END"
_KEPT = Path(__file__).with_name("tables.json")


class GrammarRule(NamedTuple):
    """One alternative of a rule.

    Attributes:
        origin: The rule's name; if it begins with `_`, its children become children of the containing rule.
        callback: The name of the callback.
        size: Symbols on the right-hand side.
        kept: For each kept symbol: its place, and whether it is replaced by its children.
    """

    origin: str
    callback: str
    size: int
    kept: tuple[tuple[int, bool], ...]


class ParseTables(NamedTuple):
    """An LALR(1) automaton with its terminals.

    Attributes:
        digest: The digest of the grammar's text.
        actions: For each state, by terminal or rule name: the state to go to, or `~index` of the rule to reduce by.
        rules: The rules.
        starts: The first state for each start rule.
        ends: The state that each start rule ends in.
        terminals: (name, regular expression) of the terminals that a regular expression describes, best first.
        ignored: Regular expressions of the text allowed between tokens.
    """

    digest: str
    actions: list[dict[str, int]]
    rules: list[GrammarRule]
    starts: dict[str, int]
    ends: dict[str, int]
    terminals: list[tuple[str, str]]
    ignored: list[str]


def _digest_grammar(grammar: str) -> str:
    """The digest that distinguishes one grammar from another."""
    return hashlib.sha256(grammar.encode()).hexdigest()


def make_tables(grammar: str, *, debug: bool = False) -> ParseTables:
    """The tables made by Lark; with `debug` it logs the conflicts that it resolves itself."""
    from lark import Lark
    from lark.lexer import Lexer
    from lark.parsers.lalr_analysis import Shift

    class NoLexer(Lexer):
        """A placeholder, because Lark is only used for its tables."""

        def __init__(self, _conf: Any) -> None: ...

        def lex(self, _state: Any, _parser: Any) -> Any: ...

    starts = [*UPPER_STARTS, *_LOWER_STARTS]
    lark = Lark(grammar, parser="lalr", lexer=NoLexer, start=starts, maybe_placeholders=False, debug=debug)
    table = lark.parser.parser._parse_table
    rules = sorted(lark.rules, key=lambda rule: (rule.origin.name, rule.order, [item.name for item in rule.expansion]))
    index = {rule: number for number, rule in enumerate(rules)}
    numbers = _number_states(table.states, [table.start_states[start] for start in starts], Shift)
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
        digest=_digest_grammar(grammar),
        actions=actions,
        rules=list(map(_convert_rule, rules)),
        starts={start: numbers[table.start_states[start]] for start in starts},
        ends={start: numbers[table.end_states[start]] for start in starts},
        terminals=[(terminal.name, patterns[terminal.name]) for terminal in terminals],
        ignored=[patterns[name] for name in sorted(lark.ignore_tokens)],
    )


def _number_states(states: Any, starts: list[Any], shift: Any) -> dict[Any, int]:
    """A number for each state, in the order in which they are reached; Lark's own order changes between runs."""
    numbers = {state: number for number, state in enumerate(starts)}
    for state in (reached := list(starts)):
        for _, (action, target) in sorted(states[state].items(), key=lambda item: str(item[0])):
            if action is shift and target not in numbers:
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


def render_tables_json(tables: ParseTables) -> str:
    """The tables as JSON; equal rows of the automaton are written once."""
    rows = {json.dumps(row): row for row in tables.actions}
    numbers = {text: number for number, text in enumerate(rows)}
    states = [numbers[json.dumps(row)] for row in tables.actions]
    return json.dumps({**tables._asdict(), "actions": list(rows.values()), "states": states}, separators=(",", ":"))


def parse_tables_json(text: str) -> ParseTables:
    """The tables from the JSON that `render_tables_json` wrote."""
    data = json.loads(text)
    rows, states = data["actions"], data.pop("states")
    data["actions"] = [rows[number] for number in states]
    data["rules"] = [
        GrammarRule(origin, callback, size, tuple((place, expanded) for place, expanded in kept))
        for origin, callback, size, kept in data["rules"]
    ]
    data["terminals"] = [(name, pattern) for name, pattern in data["terminals"]]
    return ParseTables(**data)


def load_tables() -> ParseTables:
    """The tables of the installed grammar."""
    grammar = grammar_text("hlo")
    if _KEPT.is_file():
        kept = parse_tables_json(_KEPT.read_text(encoding="utf-8"))
        if kept.digest == _digest_grammar(grammar):
            return kept
    return make_tables(grammar)


def write_tables() -> None:
    """Writes the tables of the current grammar."""
    _KEPT.write_text(render_tables_json(make_tables(grammar_text("hlo"))) + "\n", encoding="utf-8")
