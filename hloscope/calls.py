"""The wrapper of public functions: checked calls, messages in Python's notation, and short tracebacks.

A call that does not match the signature is refused before anything else happens. An error ends a short traceback:
hloscope's own frames, and the exceptions that it was made from, are left out, unless `HLOSCOPE_TRACEBACK=full` is set.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from hloscope.errors import FULL, HloscopeError, UnknownKeywordError, WrongCallError, did_you_mean
from hloscope.messages import Message

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
