"""From the JSON document of a report back to the analysis: the other direction of `document`."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.analysis import SCHEMA_VERSION
from hloscope.errors import HloscopeError


def from_document(document: object, *, name: str) -> Analysis:
    """Reads what `to_document` made; what follows from other fields is not read.

    Args:
        document: Plain data, as JSON has it.
        name: The file's name, for messages.

    Raises:
        HloscopeError: It is no such document, or one of another schema.
    """
    if not isinstance(document, dict) or "collectives" not in document:
        raise HloscopeError(
            f"{name} is no report of hloscope", fix="make one with hloscope analyze --format json -o FILE"
        )
    if document.get("schema") != SCHEMA_VERSION:
        raise HloscopeError(
            f"{name} is a report of schema {document.get('schema')}, and this hloscope reads {SCHEMA_VERSION}",
            fix="make it again with this version",
        )
    try:
        read: Analysis = _read(Analysis, document, "report")
    except (TypeError, ValueError) as error:
        raise HloscopeError(f"{name} is no whole report of hloscope", why=str(error)) from None
    return read


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of a type, from plain data.

    Raises:
        TypeError: The data is not of that type.
        ValueError: A word is not one of its set.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, where)
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin is dict:
        _, inner = get_args(kind)
        return {key: _read(inner, item, f"{where}.{key}") for key, item in _of(dict, value, where).items()}
    if is_dataclass(kind):
        return _dataclass(kind, _of(dict, value, where), where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if kind is Any else _of(kind, value, where)


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    failures = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, value, where)
            except (TypeError, ValueError) as error:
                failures.append(error)
    raise failures[0] if failures else TypeError(f"{where} is {value!r}")


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _of(list, value, where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if len(kinds) != len(items):
        raise TypeError(f"{where} has {len(items)} entries")
    return tuple(
        _read(kind, item, f"{where}[{index}]") for index, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _dataclass(kind: Any, value: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    given = {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TypeError(f"{where} has no {field.name}")
    return kind(**given)


def _of(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{where} is {value!r}")
    return value
