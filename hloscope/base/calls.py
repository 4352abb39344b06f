"""The wrapper of public functions: checked calls, messages in Python's notation, and short tracebacks.

A call that does not match the signature is refused before anything else happens. An error ends a short traceback:
hloscope's own frames, and the exceptions that caused it, are omitted, unless `HLOSCOPE_TRACEBACK=full` is set.
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

_FIELDS_WITHOUT_MESSAGES = {"collectives", "arguments", "outputs", "intermediates", "command", "config"}
"""Fields of results that hold no message, and may be long."""
_MISSING_ARGUMENT_FIXES = {"compare": 'pass profile="/tmp/trace"; to compare two programs, use hloscope.diff(old, new)'}
"""The fixes for a missing argument that are not the usual one, by function."""


def front_door(call: Callable[P, T]) -> Callable[P, T]:
    """Makes a public function, which may be a coroutine, use Python's notation in its errors and results."""
    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            __tracebackhide__ = True
            try:
                check_variables()
                return speak_python(await call(*args, **kwargs))
            except HloscopeError as error:
                failed = speak_python(error)
                if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                    raise
            raise _shorten(failed) from None

        return awaited  # type: ignore[return-value]

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            check_call(call, args, kwargs)
            check_variables()
            return speak_python(call(*args, **kwargs))
        except (HloscopeError, KeyboardInterrupt) as error:
            failed = speak_python(error)
            if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                raise
        raise _shorten(failed) from None

    return called


def speak_python(result: T) -> T:
    """A result or an error with its messages in Python's notation; an error is changed in place."""
    return _convert_messages(result)  # type: ignore[no-any-return]


def _convert_messages(result: Any) -> Any:
    if isinstance(result, Message):
        return result if result == result.python else result.python
    if isinstance(result, HloscopeError):
        result.speak_python()
        return result
    if isinstance(result, tuple):
        members = [_convert_messages(each) for each in result]
        same = all(new is old for new, old in zip(members, result, strict=True))
        return result if same else _replace_members(result, members)
    if not is_dataclass(result) or isinstance(result, type):
        return result
    changed = {}
    for field in fields(result):
        if field.init and field.name not in _FIELDS_WITHOUT_MESSAGES:
            old = getattr(result, field.name)
            new = _convert_messages(old)
            if new is not old:
                changed[field.name] = new
    if not changed:
        return result
    made = replace(result, **changed)
    return result._remembered_by(made) if hasattr(result, "_remembered_by") else made


def _replace_members(value: tuple[Any, ...], members: list[Any]) -> Any:
    """A tuple of the same type, with the attributes that such a type has in addition to its members."""
    made = tuple.__new__(type(value), members)
    vars(made).update(vars(value)) if hasattr(value, "__dict__") else None
    return made


def _shorten(error: BaseException) -> BaseException:
    """An error without its frames, its causes, and JAX's note on omitted frames."""
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
    name, count = _find_call_name(call), len(given)
    if own and own[0].name in ("self", "cls"):
        own, count = own[1:], count - 1
    kinds = {known.kind for known in own}
    positional = [known.name for known in own if known.kind in _POSITIONAL]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        check_keywords(named, [known.name for known in own if known.kind in _BY_NAME], name)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and count > len(positional):
        raise _make_position_error(name, count, positional, own)
    twice = next((known for known in positional[:count] if known in named), None)
    if twice is not None:
        raise WrongCallError(f"{name} got {twice} twice", fix="pass it once")
    needed = [known for known in own if known.default is known.empty and known.kind in (*_POSITIONAL, *_BY_NAME)]
    missing = [known.name for known in needed if known.name not in named and known.name not in positional[:count]]
    if missing:
        shown = (known.name if known.kind in _POSITIONAL else f"{known.name}=…" for known in needed)
        more = ", …" if len(own) > len(needed) else ""
        fix = _MISSING_ARGUMENT_FIXES.get(name, f"write {name}({', '.join(shown)}{more})")
        raise WrongCallError(f"{name} needs {' and '.join(missing)}", fix=fix)


def check_keywords(given: Mapping[str, Any], known: Sequence[str], taker: str) -> None:
    """Refuses unknown keywords.

    Args:
        given: The arguments by name.
        known: The known keywords.
        taker: The name of the function, for messages.

    Raises:
        UnknownKeywordError: A keyword is unknown.
    """
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no keywords"
            raise UnknownKeywordError(
                f"{taker} got an unexpected keyword argument {name!r}", fix=did_you_mean(name, known, takes)
            )


def _find_call_name(call: Callable[..., Any]) -> str:
    """The user's name for a function; for a callable object, that of its class."""
    name = call.__name__
    return call.__qualname__.partition(".")[0].lower() if name.startswith("__") else name


def _make_position_error(
    name: str, count: int, positional: Sequence[str], own: Sequence[inspect.Parameter]
) -> WrongCallError:
    """The error for too many positional arguments."""
    keywords = [known.name for known in own if known.kind is inspect.Parameter.KEYWORD_ONLY]
    by_name = [f"{keyword}=…" for keyword in ("mesh",) * ("mesh" in keywords) or keywords]
    rest = f"by name: {', '.join(by_name[:_MOST_SHOWN])}"
    if "args" in positional:
        fix = f"pass the arguments as one tuple, args=(…), and the rest {rest}"
    else:
        fix = f"pass the rest {rest}" if by_name else "leave the rest out"
    takes = " and ".join(positional) or "nothing"
    return WrongCallError(f"{name} takes {takes} by position, but got {count} arguments", fix=fix)


# ---- conversion of values given in Python; an invalid value is refused with one message that names it

ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""The part of an object's `repr` that differs in every run."""
_LONGEST_SHOWN = 60
_SPAN = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(?P<count>\d+(?:\.\d*)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def format_value(value: object) -> str:
    """A value for messages: on one line, short, and without an address, which differs in every run."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__qualname__}>"
    text = ADDRESS.sub("", text)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def refuse(name: str, kind: str, value: object, example: str) -> NoReturn:
    """Refuses a value.

    Args:
        name: The user's name for it.
        kind: The required kind, such as `a whole number`.
        value: The value.
        example: A valid example.

    Raises:
        NotationError: Always.
    """
    raise NotationError(f"{name} must be {kind}, not {format_value(value)}", fix=f"write {example}")


def has_value(value: object) -> bool:
    """Returns whether a value is given: neither None nor empty."""
    return value is not None and not (isinstance(value, str | tuple | list | Mapping) and not value)


def integer(value: object) -> int | None:
    """A whole number of Python or NumPy; None for anything else, including booleans."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def whole(name: str, value: object, *, least: int = 0, example: str | None = None) -> int:
    """A whole number.

    Raises:
        NotationError: It is not a whole number, or is smaller than `least`.
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
        NotationError: It is not a finite number.
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
    found = parse_span(value)
    if found is None or found < 0:
        refuse(name, "a number of seconds", value, example)
    return found


def parse_span(value: object) -> float | None:
    """Seconds of a span such as `30s`, `5m` or `2h`, or of a number; None for anything else."""
    match = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        return float(match["count"]) * _SECONDS[match["unit"]] if match else number("", value, example="")
    except NotationError:
        return None


def parse_capacity(text: object) -> int | None:
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
    found = parse_capacity(value)
    if found is None:
        refuse(name, "a number of bytes or a size such as 4GiB", value, example)
    return whole(name, found)


def text(name: str, value: object, *, example: str) -> str:
    """Text.

    Raises:
        NotationError: It is not text.
    """
    return value if isinstance(value, str) else refuse(name, "text", value, example)


def texts(name: str, value: object, *, example: str) -> tuple[str, ...]:
    """One or several texts; empty for None.

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
        NotationError: It is neither a path nor None.
    """
    if value is None:
        return None
    named = os.fspath(value) if isinstance(value, os.PathLike) else value
    return Path(named) if isinstance(named, str) else refuse(name, "a path", value, example)


def named_path(value: object, *, example: str) -> Path:
    """The path `path`, which has to be given.

    Raises:
        NotationError: It is not a path.
    """
    return path("path", value, example=example) or refuse("path", "a path", value, example)


def choice(name: str, value: object, known: Iterable[str]) -> str:
    """One of the known words.

    Raises:
        NotationError: It is not one of them.
    """
    choices = [str(word) for word in known]
    if isinstance(value, str) and value in choices:
        return value
    said = f"it is one of {', '.join(choices)}"
    near = did_you_mean(value, choices, said) if isinstance(value, str) else said
    raise NotationError(f"{name} cannot be {format_value(value)}", fix=near)


def mapping(name: str, value: object, *, example: str) -> dict[str, Any]:
    """A dict by name; empty for None.

    Raises:
        NotationError: It is not a dict with names as keys.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    refuse(name, "a dict with names as keys", value, example)


def counts(name: str, value: object, *, least: int, what: str, example: str) -> dict[str, int]:
    """Whole numbers by name.

    Args:
        name: The user's name for it.
        value: The mapping.
        least: The smallest valid number.
        what: The keys and values, for messages: `axis names to sizes`.
        example: A valid example.

    Raises:
        NotationError: It is not such a mapping.
    """
    if not isinstance(value, Mapping):
        raise NotationError(f"{name} must map {what}, not {format_value(value)}", fix=f"write {example}")
    found: dict[str, int] = {}
    for key, each in value.items():
        size = integer(each)
        is_name = isinstance(key, str) and bool(key.strip())
        if not is_name or size is None or size < least:
            entry = (
                f"the size of {format_value(key)} is {format_value(each)}"
                if is_name
                else f"{format_value(key)} is not a name"
            )
            raise NotationError(
                f"{name} must map {what}, but {entry}",
                why=f"a name is text that is not empty, and a size is a whole number of {least} or more",
                fix=f"write {example}",
            )
        found[str(key)] = size
    return found


# ---- environment variables of hloscope's own, checked before any work; those of the cache are in `store`

_WORDS = {"HLOSCOPE_CACHE": ("0", "1"), "HLOSCOPE_TRACEBACK": (FULL,)}


def check_variables() -> None:
    """Checks the variables that are read late, or only compared.

    Raises:
        NotationError: One is set to something that it does not take.
    """
    for name, known in _WORDS.items():
        text = os.environ.get(name, "")
        if text and text not in known:
            raise NotationError(
                f"{name}={text!r} is not {' or '.join(known)}", fix=f"write {name}={known[0]}, or unset it"
            )
    read_time_limit()
    read_worker_count()


def read_time_limit() -> float | None:
    """The seconds of `HLOSCOPE_TIMEOUT`; None if it is not set.

    Raises:
        NotationError: It is not a number of seconds.
    """
    text = os.environ.get("HLOSCOPE_TIMEOUT", "").strip()
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise NotationError(
            f"HLOSCOPE_TIMEOUT={text} is not a number of seconds", fix="write 600 for ten minutes; 0 means no limit"
        )
    return limit


def read_worker_count() -> int | None:
    """The number of `HLOSCOPE_MAX_WORKERS`; None if it is not set.

    Raises:
        NotationError: It is not a whole number above 0.
    """
    text = os.environ.get("HLOSCOPE_MAX_WORKERS", "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise NotationError(
            f"HLOSCOPE_MAX_WORKERS={text!r} is not a number of workers", fix="write 1 or more, or unset it"
        )
    return int(text)
