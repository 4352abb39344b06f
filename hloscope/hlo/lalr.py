"""The shift-reduce loop over Lark's tables, with its contextual lexer.

It replaces Lark's own loop by one function for lexer and parser together, which takes half the time. The lexer tries
only the terminals that the parser can use next. No regular expression can delimit nested brackets; the end of a
bracketed raw value is found by counting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hloscope.hlo.records import Token

# ---- XLA's words: opcodes, words that cannot be an instruction's name, and keys of attributes

_TEXT = """
    abs acos acosh add add-dependency after-all all-gather all-gather-done all-gather-start all-reduce
    all-reduce-done all-reduce-start all-to-all and asin asinh async-done async-start async-update atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil
    cholesky clamp collective-broadcast collective-permute collective-permute-done collective-permute-start compare
    complex concatenate conditional constant convert convolution copy copy-done copy-start cosine cosh
    count-leading-zeros custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element imag infeed iota
    is-finite log log-plus-one logistic map maximum minimum mulhi multiply negate not opt-barrier or outfeed pad
    parameter partition-id popcnt power ragged-all-to-all ragged-dot real recv recv-done reduce reduce-precision
    reduce-scatter reduce-window remainder replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state
    round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter send send-done
    set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
    """
OPCODES = frozenset(_TEXT.split())
"""Source: xla/hlo/ir/hlo_opcode.h."""

_ONE_OPERAND = """
    abs acos acosh all-gather all-reduce all-to-all asin asinh atanh bitcast bitcast-convert broadcast cbrt ceil
    cholesky collective-broadcast collective-permute concatenate convert copy copy-done copy-start cosine cosh
    count-leading-zeros domain erf exponential exponential-minus-one fft floor get-dimension-size get-tuple-element imag
    is-finite log log-plus-one logistic negate not opt-barrier popcnt real reduce-precision reduce-scatter reshape
    reverse round-nearest-afz round-nearest-even rsqrt sign sine sinh slice sort sqrt tan tanh topk transpose while
    """
_TWO_OPERANDS = """
    add add-dependency and atan2 compare complex conditional convolution divide dot dynamic-slice gather maximum minimum
    mulhi multiply or pad power ragged-dot reduce reduce-window remainder set-dimension-size shift-left
    shift-right-arithmetic shift-right-logical stochastic-convert subtract triangular-solve xor
    """
_THREE_OPERANDS = "batch-norm-training clamp dynamic-update-slice scatter select select-and-scatter"
NEEDED_OPERANDS = {
    opcode: count
    for count, text in enumerate((_ONE_OPERAND, _TWO_OPERANDS, _THREE_OPERANDS), start=1)
    for opcode in text.split()
}
"""The minimum number of operands of each opcode for which it is known."""

_ASYNC_ENDINGS = ("-start", "-update", "-done")


@cache
def is_known_opcode(opcode: str) -> bool:
    """True if XLA has the opcode, plain or in the short form of an asynchronous one, such as `all-to-all-start`."""
    if opcode in OPCODES:
        return True
    return any(opcode.endswith(ending) and opcode.removesuffix(ending) in OPCODES for ending in _ASYNC_ENDINGS)


RESERVED = frozenset(
    """
    true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames maximal replicated manual
    unreduced unknown last_tile_dim_replicate shard_as shard_like
    pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz
    f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu f4e2m1fn f6e3m2fn f6e2m3fn opaque token
    """.split()
)
"""Keywords and types, which XLA's lexer recognizes as such. With `%` they are names: XLA asks to rename a few of those
too, but texts of older versions have them.

Source: xla/hlo/parser/hlo_lexer.cc.
"""

_NUMBERS = (
    "index k iota_dimension index_vector_dim feature_group_count batch_group_count exponent_bits mantissa_bits "
    "feature_index num_carries delta cross_program_prefetch_index inferred_dimension num_partitions replica_count"
)
_BOOLEANS = (
    "is_stable largest use_global_device_ids constrain_layout is_host_transfer indices_are_sorted unique_indices "
    "custom_call_has_side_effect is_reverse is_associative left_side lower unit_diagonal is_composite "
    "has_dynamic_root is_scheduled alias_passthrough_params"
)
_LISTS = (
    "dimensions dynamic_slice_sizes fft_length offset_dims collapsed_slice_dims start_index_map operand_batching_dims "
    "start_indices_batching_dims update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
    "input_batching_dims scatter_indices_batching_dims lhs_contracting_dims rhs_contracting_dims lhs_batch_dims "
    "rhs_batch_dims lhs_ragged_dims rhs_group_dims"
)

_STRINGS = "custom_call_target infeed_config outfeed_config async_execution_thread"

RULE_OF_VALUE = {
    **dict.fromkeys(_NUMBERS.split(), "number"),
    **dict.fromkeys(_BOOLEANS.split(), "boolean"),
    **dict.fromkeys(_LISTS.split(), "integers"),
    **dict.fromkeys(_STRINGS.split(), "quoted"),
    "source_target_pairs": "integer_lists",
    "slice": "ranges",
    "window": "window",
    "padding": "padding",
    "dim_labels": "dim_labels",
    "result_accuracy": "result_accuracy",
    "input_output_alias": "aliasing",
    "output_to_operand_aliasing": "aliasing",
    "buffer_donor": "donors",
}
"""The grammar's rule for the values of an attribute that is checked although nothing may read it, by its key.

Source: `hlo_parser.cc` of XLA, the attributes of each opcode and of the module.
"""


# ---- the parse tables that Lark makes from the grammar, as plain data
#
# Lark takes a tenth of a second to make them, longer than reading a module of a megabyte. So they are kept next to
# this file. After a change of `hlo.lark`, `python tests/hlo/make_tables.py` writes them again; a test fails until then.

UPPER_STARTS = ("text", "header", "table_row", "computation_head", "computation_end", "instruction", "continuation")
END_TERMINAL = "$END"
TABLES = Path(__file__).with_name("tables.json")


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
        actions: For each state, by terminal or rule name: the state to go to, or `~index` of the rule to reduce by.
        rules: The rules.
        starts: The first state for each start rule.
        ends: The state that each start rule ends in.
        terminals: (name, regular expression) of the terminals that a regular expression describes, best first.
        ignored: Regular expressions of the text allowed between tokens.
    """

    actions: list[dict[str, int]]
    rules: list[GrammarRule]
    starts: dict[str, int]
    ends: dict[str, int]
    terminals: list[tuple[str, str]]
    ignored: list[str]


def load_tables() -> ParseTables:
    """The tables of the grammar, which `tests/hlo/make_tables.py` has written."""
    data = json.loads(TABLES.read_text(encoding="utf-8"))
    data["rules"] = [
        GrammarRule(origin, callback, size, tuple((place, expanded) for place, expanded in kept))
        for origin, callback, size, kept in data["rules"]
    ]
    data["terminals"] = [(name, pattern) for name, pattern in data["terminals"]]
    return ParseTables(**data)


_NOTHING = -1 << 30
"""An action that no table has: the token is not allowed here."""

_BEGINS_SKIPPED = " \n\t\r/"

_Callback = Callable[[list[Any]], Any]
_Matcher = Callable[[str, int], re.Match[str] | None]


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
        self._matchers: list[list[tuple[str, _Matcher]]] = [[] for _ in tables.actions]

    def parse(self, start: str, text: str) -> Any:
        """The result of the callbacks for a text.

        Raises:
            HloSyntaxError: The text does not follow the rule.
        """
        actions, reductions, skip = self._tables.actions, self._reductions, self._skip
        length, end = len(text), 0
        state, last = self._tables.starts[start], self._tables.ends[start]
        states: list[int] = [state]
        values: list[Any] = []
        while True:
            position = skip(text, end).end() if text[end : end + 1] in _BEGINS_SKIPPED else end  # type: ignore[union-attr]
            kind, end = self._next_token(state, text, position) if position < length else (END_TERMINAL, end)
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

    def _next_token(self, state: int, text: str, position: int) -> tuple[str, int]:
        """The terminal at an offset and its end offset: the best one that matches, otherwise a raw value.

        Raises:
            HloSyntaxError: None is allowed there, or a bracket is never closed.
        """
        accepted, matchers = self._tables.actions[state], self._matchers[state]
        if not matchers:
            matchers += [(name, _make_matcher(regex)) for name, regex in self._tables.terminals if name in accepted]
        for name, match in matchers:
            found = match(text, position)
            if found is not None:
                return name, found.end()
        for name, opener in _OPENER.items():
            if name in accepted and text[position] == opener:
                return name, _find_closing(text, position, _FINDER[name], opener, accepted).end()
        if "LITERAL" in accepted:  # which begins after the `(` of `constant(`
            return "LITERAL", _find_closing(text, position, _LITERAL_FINDER, "(", accepted, depth=1).start()
        raise HloSyntaxError(position, opened_at=None, accepted=accepted)


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


@cache
def _make_matcher(pattern: str) -> _Matcher:
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
