"""Checks of calls against function signatures: a call that does not match is refused before anything else happens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hloscope.errors import UnknownKeywordError, WrongCallError, did_you_mean

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MOST_SHOWN = 3

_WITHOUT = {"compare": 'pass profile="/tmp/trace"; to compare two programs, use hloscope.diff(old, new)'}
"""What else is said where an argument is missing, by the function."""


def check_call(call: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Checks a call against the signature that `help` shows.

    Args:
        call: The function, which may be a method.
        given: The arguments by position.
        named: The arguments by name.

    Raises:
        UnknownKeywordError: The signature has no such keyword.
        WrongCallError: An argument is missing, given twice, or one too many.
    """
    own = list(inspect.signature(call).parameters.values())
    name, count = _name_of(call), len(given)
    if own and own[0].name in ("self", "cls"):
        own, count = own[1:], count - 1
    kinds = {known.kind for known in own}
    positional = [known.name for known in own if known.kind in _POSITIONAL]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        check_keywords(named, [known.name for known in own if known.kind in _BY_NAME], name)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and count > len(positional):
        raise _too_many(name, count, positional, own)
    twice = next((known for known in positional[:count] if known in named), None)
    if twice is not None:
        raise WrongCallError(f"{name} got {twice} twice", fix="pass it once")
    needed = [known for known in own if known.default is known.empty and known.kind in (*_POSITIONAL, *_BY_NAME)]
    missing = [known.name for known in needed if known.name not in named and known.name not in positional[:count]]
    if missing:
        shown = (known.name if known.kind in _POSITIONAL else f"{known.name}=…" for known in needed)
        more = ", …" if len(own) > len(needed) else ""
        fix = _WITHOUT.get(name, f"write {name}({', '.join(shown)}{more})")
        raise WrongCallError(f"{name} needs {' and '.join(missing)}", fix=fix)


def check_keywords(given: Mapping[str, Any], known: Sequence[str], taker: str) -> None:
    """Refuses keywords that there are not.

    Args:
        given: The arguments by name.
        known: The keywords that there are.
        taker: What takes them, for messages.

    Raises:
        UnknownKeywordError: One of them is none.
    """
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no keywords"
            raise UnknownKeywordError(
                f"{taker} got an unexpected keyword argument {name!r}", fix=did_you_mean(name, known, takes)
            )


def _name_of(call: Callable[..., Any]) -> str:
    """What the user calls it; of an object that is called itself its class."""
    name = call.__name__
    return call.__qualname__.partition(".")[0].lower() if name.startswith("__") else name


def _too_many(name: str, count: int, positional: Sequence[str], own: Sequence[inspect.Parameter]) -> WrongCallError:
    """That more is given by position than there are positions."""
    keywords = [known.name for known in own if known.kind is inspect.Parameter.KEYWORD_ONLY]
    by_name = [f"{keyword}=…" for keyword in ("mesh",) * ("mesh" in keywords) or keywords]
    rest = f"by name: {', '.join(by_name[:_MOST_SHOWN])}"
    if "args" in positional:
        fix = f"pass the arguments as one tuple, args=(…), and the rest {rest}"
    else:
        fix = f"pass the rest {rest}" if by_name else "leave the rest out"
    takes = " and ".join(positional) or "nothing"
    return WrongCallError(f"{name} takes {takes} by position, but got {count} arguments", fix=fix)
