"""Errors in the words of whoever made the call: a message that names `--mesh X=4` says `mesh={"X": 4}` in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hloscope.errors import HloscopeError
from hloscope.program.target import OPTIONS

_KEYWORDS = {
    **{flag.removeprefix("--"): option.name for option in OPTIONS for flag in option.flags},
    **{name: name for name in ("allow", "atol", "rtol", "scale")},
    "against-single-device": "against_single_device=True",
    "range": "ranges",
}
_OPTION = re.compile(r"(?<![\w-])--(" + "|".join(_KEYWORDS) + r")(?![\w-])(?:[ =](\w+=[^\s,;)]+(?:,\w+=\w+)*))?")
_TAKING_A_WORD = re.compile(r"(?<![\w-])--(axis-types|slice) ([\w*:=-]+)")
_PAIR = re.compile(r"(\w+)=([^,]+)")


@contextmanager
def python_words() -> Iterator[None]:
    """Has errors name keywords instead of options of the command line; also decorates a function."""
    try:
        yield
    except HloscopeError as error:
        error.what = without_options(error.what)
        error.why, error.fix = (text and without_options(text) for text in (error.why, error.fix))
        error.args = (str(error), *error.args[1:])
        raise


def without_options(text: str) -> str:
    """A message with keywords in place of options."""
    text = text.replace("--arg name=", "kwargs name=")
    text = _TAKING_A_WORD.sub(lambda found: f'{_KEYWORDS[found[1]]}="{found[2]}"', text)
    return _OPTION.sub(_keyword, text)


def _keyword(found: re.Match[str]) -> str:
    keyword, values = _KEYWORDS[found[1]], found[2]
    if values is None:
        return keyword
    if keyword == "chip_overrides":
        return f'chip_overrides=["{values}"]'
    pairs = ", ".join(f'"{name}": {_value(value)}' for name, value in _PAIR.findall(values))
    return f"{keyword}={{{pairs}}}"


def _value(text: str) -> str:
    low, colon, high = text.partition(":")
    return f"({low}, {high})" if colon else text
