"""How an error reads: what, where, the line with its caret, why, and how to fix it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hloscope.errors import HloscopeError, caret_excerpt


def test_every_part_has_its_place():
    error = HloscopeError("it is wrong", where="a.py:3", excerpt="x = 1\n    ^", why="first\nsecond", fix="do this")
    assert str(error) == (
        "error: it is wrong\n  --> a.py:3\n   | x = 1\n   |     ^\n   = why: first\n          second\n   = fix: do this"
    )


def test_a_short_line_is_shown_whole():
    assert caret_excerpt("bf16[8@X", 5) == "bf16[8@X\n    ^"


@given(st.text(alphabet="abcdefgh", min_size=1, max_size=400), st.data())
def test_the_caret_stands_under_its_character_however_long_the_line(line, data):
    column = data.draw(st.integers(1, len(line)))
    shown, caret = caret_excerpt(line, column).split("\n")
    assert len(shown) <= 102
    assert shown[len(caret) - 1] == line[column - 1]
