"""How an error reads: what, where, the line with its caret, why, and how to fix it."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

from hypothesis import given
from hypothesis import strategies as st

import hloscope
from hloscope.base.errors import HloscopeError, TargetError, format_excerpt


def test_every_part_has_its_place():
    error = HloscopeError("it is wrong", where="a.py:3", excerpt="x = 1\n    ^", why="first\nsecond", fix="do this")
    assert str(error) == (
        "error: it is wrong\n  --> a.py:3\n   | x = 1\n   |     ^\n   = why: first\n          second\n   = fix: do this"
    )


def test_a_short_line_is_shown_whole():
    assert format_excerpt("bf16[8@X", 5) == "bf16[8@X\n    ^"


@given(st.text(alphabet="abcdefgh", min_size=1, max_size=400), st.data())
def test_the_caret_stands_under_its_character_however_long_the_line(line, data):
    column = data.draw(st.integers(1, len(line)))
    shown, caret = format_excerpt(line, column).split("\n")
    assert len(shown) <= 102
    assert shown[len(caret) - 1] == line[column - 1]


def every_error():
    for module in pkgutil.walk_packages(hloscope.__path__, "hloscope."):
        if module.name != "hloscope.__main__":
            importlib.import_module(module.name)
    kinds = [HloscopeError]
    for kind in kinds:
        kinds.extend(one for one in kind.__subclasses__() if one.__module__.startswith("hloscope."))
    return list(dict.fromkeys(kinds))


MADE_WITH = {
    "DeviceCountError": {"needed": 8, "available": 1},
    "TimeLimitError": {"doing": "compiling step", "limit_s": 5.0},
    "HloParseError": {
        "what": "it is wrong",
        "line": 3,
        "column": 7,
        "where": "a.hlo:3:7",
        "excerpt": "x",
        "fix": None,
    },
    "BaselineError": {"what": "it is wrong", "name": "a.txt", "line": 3, "column": 1, "excerpt": "x"},
    "ConfigMistakesError": {"mistakes": [HloscopeError("one"), HloscopeError("two", where="here")]},
}


def test_every_error_crosses_a_process_boundary_whole():
    kinds = every_error()
    assert len(kinds) >= 13
    for kind in kinds:
        made = kind(
            **MADE_WITH.get(
                kind.__name__, {"what": "it is wrong", "where": "a.py:3", "why": "because", "fix": "do this"}
            )
        )
        made.add_note("a note")
        again = pickle.loads(pickle.dumps(made))
        assert (type(again), str(again), again.args, vars(again).keys()) == (
            kind,
            str(made),
            made.args,
            vars(made).keys(),
        )
        assert again.__notes__ == ["a note"]
        assert repr(vars(again)) == repr(vars(made))


def test_an_error_is_told_on_one_line():
    error = TargetError("no such function", where="m.py:3", why="it is\n  misspelt", fix="write step")
    assert error.on_one_line() == "no such function; it is misspelt; write step"
