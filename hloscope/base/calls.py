"""The wrapper of public functions: checked calls, messages in Python's notation, and short tracebacks.

A call that does not match the signature is refused before anything else happens. An error ends a short traceback:
hloscope's own frames, and the exceptions that it was made from, are left out, unless `HLOSCOPE_TRACEBACK=full` is set.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from hloscope.base.errors import (
    FULL,
    HloscopeError,
    Message,
    NotationError,
    UnknownKeywordError,
    WrongCallError,
    did_you_mean,
)

P = ParamSpec("P")
T = TypeVar("T")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MOST_SHOWN = 3

_WITHOUT_MESSAGES = {"collectives", "arguments", "outputs", "intermediates", "command", "config"}
"""Fields of results that hold no message, and may be long."""
_WITHOUT = {"compare": 'pass profile="/tmp/trace"; to compare two programs, use hloscope.diff(old, new)'}
"""What else is said where an argument is missing, by the function."""


def front_door(call: Callable[P, T]) -> Callable[P, T]:
    """Has a public function, which may be a coroutine, speak Python: in its errors, and in what it returns."""
    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            __tracebackhide__ = True
            try:
                return in_python(await call(*args, **kwargs))
            except HloscopeError as error:
                failed = in_python(error)
                if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                    raise
            raise _shorten(failed) from None

        return awaited  # type: ignore[return-value]

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            check_call(call, args, kwargs)
            return in_python(call(*args, **kwargs))
        except (HloscopeError, KeyboardInterrupt) as error:
            failed = in_python(error)
            if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                raise
        raise _shorten(failed) from None

    return called


def in_python(result: T) -> T:
    """A result or an error with its messages in Python's notation; an error is changed in place."""
    return _converted(result)  # type: ignore[no-any-return]


def _converted(result: Any) -> Any:
    if isinstance(result, Message):
        return result if result == result.python else result.python
    if isinstance(result, HloscopeError):
        result.speak_python()
        return result
    if isinstance(result, tuple):
        members = [_converted(each) for each in result]
        same = all(new is old for new, old in zip(members, result, strict=True))
        return result if same else _with_members(result, members)
    if not is_dataclass(result) or isinstance(result, type):
        return result
    changed = {}
    for field in fields(result):
        if field.init and field.name not in _WITHOUT_MESSAGES:
            old = getattr(result, field.name)
            new = _converted(old)
            if new is not old:
                changed[field.name] = new
    if not changed:
        return result
    made = replace(result, **changed)
    return result._remembered_by(made) if hasattr(result, "_remembered_by") else made


def _with_members(value: tuple[Any, ...], members: list[Any]) -> Any:
    """A tuple of the same type, with the attributes that such a type has in addition to its members."""
    made = tuple.__new__(type(value), members)
    vars(made).update(vars(value)) if hasattr(value, "__dict__") else None
    return made


def _shorten(error: BaseException) -> BaseException:
    """An error without the frames that it passed, its causes, and JAX's note on frames that it left out."""
    error.__context__ = None
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]
    return error.with_traceback(None)


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


# ---- conversion of values given in Python; a value that is not clear is refused with one message that names it

ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""What `repr` says of objects that is another thing in every run."""
_LONGEST_SHOWN = 60
_SPAN = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(?P<count>\d+(?:\.\d*)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def shown(value: object) -> str:
    """A value for messages: on one line, short, and without an address, which is another one in every run."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__qualname__}>"
    text = ADDRESS.sub("", text)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def refuse(name: str, kind: str, value: object, example: str) -> NoReturn:
    """Refuses a value.

    Args:
        name: What the user calls it.
        kind: What it must be: `a whole number`.
        value: What it is.
        example: What to write.

    Raises:
        NotationError: Always.
    """
    raise NotationError(f"{name} must be {kind}, not {shown(value)}", fix=f"write {example}")


def has_value(value: object) -> bool:
    """Whether anything is given: neither None nor something empty."""
    return value is not None and not (isinstance(value, str | tuple | list | Mapping) and not value)


def integer(value: object) -> int | None:
    """A whole number, of Python's or NumPy's; None for anything else, truth values included."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def whole(name: str, value: object, *, least: int = 0, example: str | None = None) -> int:
    """A whole number.

    Raises:
        NotationError: It is none, or smaller than `least`.
    """
    found = integer(value)
    if found is None:
        refuse(name, "a whole number", value, example or f"{name}={max(least, 1)}")
    if found < least:
        raise NotationError(f"{name}={found} is too small", fix=f"use {least} or more")
    return found


def number(name: str, value: object, *, example: str) -> float:
    """A finite number.

    Raises:
        NotationError: It is none.
    """
    try:
        found = float(value) if not isinstance(value, str | bytes | bool) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        refuse(name, "a number", value, example)
    return found


def seconds(name: str, value: object, *, example: str) -> float:
    """Seconds: a number, or a span such as `30s`, `5m` or `2h`.

    Raises:
        NotationError: It is neither, or negative.
    """
    found = span(value)
    if found is None or found < 0:
        refuse(name, "a number of seconds", value, example)
    return found


def span(value: object) -> float | None:
    """Seconds of a span such as `30s`, `5m` or `2h`, or of a number; None for anything else."""
    match = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        return float(match["count"]) * _SECONDS[match["unit"]] if match else number("", value, example="")
    except NotationError:
        return None


def capacity(text: object) -> int | None:
    """Bytes of a size such as `4GiB` or `500MB`, or of a whole number; None for anything else."""
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return integer(text)
    step = 1024 if match["binary"] else 1000
    return int(float(match["count"]) * step ** " kmgt".index(match["unit"].lower() or " "))


def size(name: str, value: object, *, example: str) -> int:
    """Bytes: a whole number, or a size such as `4GiB`.

    Raises:
        NotationError: It is neither, or negative.
    """
    found = capacity(value)
    if found is None:
        refuse(name, "a number of bytes or a size such as 4GiB", value, example)
    return whole(name, found)


def text(name: str, value: object, *, example: str) -> str:
    """Text.

    Raises:
        NotationError: It is none.
    """
    return value if isinstance(value, str) else refuse(name, "text", value, example)


def texts(name: str, value: object, *, example: str) -> tuple[str, ...]:
    """One text or several; none of them for None.

    Raises:
        NotationError: It is neither text nor a list of texts.
    """
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping):
        found = tuple(value)
        if all(isinstance(each, str) for each in found):
            return found
    refuse(name, "text or a list of texts", value, example)


def path(name: str, value: object, *, example: str) -> Path | None:
    """A path; None for None.

    Raises:
        NotationError: It is neither.
    """
    if value is None:
        return None
    named = os.fspath(value) if isinstance(value, os.PathLike) else value
    return Path(named) if isinstance(named, str) else refuse(name, "a path", value, example)


def named_path(name: str, value: object, *, example: str) -> Path:
    """A path.

    Raises:
        NotationError: It is none.
    """
    return path(name, value, example=example) or refuse(name, "a path", value, example)


def choice(name: str, value: object, known: Iterable[str]) -> str:
    """One of some words.

    Raises:
        NotationError: It is none of them.
    """
    choices = [str(word) for word in known]
    if isinstance(value, str) and value in choices:
        return value
    said = f"it is one of {', '.join(choices)}"
    near = did_you_mean(value, choices, said) if isinstance(value, str) else said
    raise NotationError(f"{name} cannot be {shown(value)}", fix=near)


def mapping(name: str, value: object, *, example: str) -> dict[str, Any]:
    """A table by name; an empty one for None.

    Raises:
        NotationError: It is none.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    refuse(name, "a dict with names as keys", value, example)


def counts(name: str, value: object, *, least: int, what: str, example: str) -> dict[str, int]:
    """Whole numbers by name.

    Args:
        name: What the user calls it.
        value: The table.
        least: The smallest number that there may be.
        what: What it maps, for messages: `axis names to sizes`.
        example: What to write.

    Raises:
        NotationError: It is no such table.
    """
    if not isinstance(value, Mapping):
        raise NotationError(f"{name} must map {what}, not {shown(value)}", fix=f"write {example}")
    found: dict[str, int] = {}
    for key, each in value.items():
        size = integer(each)
        is_name = isinstance(key, str) and bool(key.strip())
        if not is_name or size is None or size < least:
            entry = f"the size of {shown(key)} is {shown(each)}" if is_name else f"{shown(key)} is not a name"
            raise NotationError(
                f"{name} must map {what}, but {entry}",
                why=f"a name is text that is not empty, and a size is a whole number of {least} or more",
                fix=f"write {example}",
            )
        found[str(key)] = size
    return found
