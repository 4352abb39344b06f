"""A state's terminals one by one, and its one pattern: both find the same token."""

from __future__ import annotations

import re

import pytest
from hlo_texts import BARE, MODULE

from hloscope.hlo.lalr import USES_BEFORE_COMPILED, StateLexer, load_tables

STATES = {frozenset(row): row for row in load_tables().actions}
TEXT = MODULE + BARE
STARTS = [match.start() for match in re.finditer(r"\b|[^\w\s]", TEXT)][::7]


@pytest.mark.parametrize("accepted", STATES.values(), ids=lambda row: "-".join(sorted(row))[:60])
def test_both_ways_find_the_same_token(accepted):
    lexer = StateLexer(load_tables().terminals, accepted)
    one_by_one = [_found(lexer, start) for start in STARTS[:USES_BEFORE_COMPILED]]
    for start in STARTS[: USES_BEFORE_COMPILED + 1]:
        _found(lexer, start)
    assert one_by_one == [_found(lexer, start) for start in STARTS[:USES_BEFORE_COMPILED]]


def _found(lexer: StateLexer, start: int) -> tuple[str | None, int] | None:
    match = lexer.match(TEXT, start)
    return None if match is None else (match.lastgroup, match.end())


def test_a_state_that_is_used_often_gets_a_pattern_of_its_own():
    lexer = StateLexer(load_tables().terminals, load_tables().actions[load_tables().starts["text"]])
    before = lexer.match
    for _ in range(USES_BEFORE_COMPILED + 1):
        assert lexer.match("HloModule m", 0).lastgroup == "HLO_MODULE"
    assert lexer.match != before
