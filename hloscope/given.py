"""Conversion of values given in Python; a value that is not clear is refused with one message that names it."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hloscope.errors import NotationError, did_you_mean

ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""What `repr` says of objects that is another thing in every run."""
_MOST_SHOWN = 60
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
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


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
