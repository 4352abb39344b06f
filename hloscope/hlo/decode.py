"""Attribute values, from raw text to what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import parse_error
from hloscope.hlo.language import language
from hloscope.hlo.line_patterns import NAME, STRING
from hloscope.hlo.records import ContradictionError, ReadError
from hloscope.hlo.replica_groups import ReplicaGroups
from hloscope.hlo.sharding import Sharding
from hloscope.hlo.value_actions import plain_pairs, unquote

_NUMBER = re.compile(r"[0-9]+")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_ENTRY = rf"""({NAME})=(?:"([^"\\]++)"|({STRING}|[A-Za-z0-9_.?+@:-]++))"""
_cut_entries = re.compile(_ENTRY).findall
_is_plain = re.compile(
    rf"""\{{(?:{NAME}=(?:"[^"\\]++"|{STRING}|[A-Za-z0-9_.?+@:-]++)[, ]?)*+\}}"""  # re fails with groups in a `*+`
).fullmatch
_MOST_ENTRIES = 1 << 12

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _read(
    columns: Columns, index: int, attributes: Mapping[str, str], key: str, by: Callable[[str, str], Any], start: str
) -> Any:
    """Reads the value of one attribute by a rule of the grammar's lower level; None where there is none.

    Raises:
        HloParseError: The value does not follow the rule; the error points at it in the whole text.
    """
    raw = attributes.get(key)
    if raw is None:
        return None
    try:
        return by(start, raw)
    except ReadError as error:
        line_start = columns.line_start(index)
        offset = columns.text.find(f"{key}={raw}", line_start)
        base = line_start if offset < 0 else offset + len(key) + 1
        what = f"invalid {key} of %{columns.names[index]}: {error.what}"
        raise parse_error(columns, ReadError(error.position + base, what, fix=error.fix)) from None


@lru_cache(maxsize=_MOST_ENTRIES)
def _with_text(key: str, raw: str) -> Any:
    """Groups or a sharding, with the text that they were read from: the same few stand on very many instructions."""
    try:
        return replace(language().read(key, raw), text=raw)
    except ContradictionError as error:
        if key != "replica_groups":
            raise
        return ReplicaGroups(text=raw, contradiction=error.what)


def replica_groups(columns: Columns, index: int, attributes: Mapping[str, str]) -> ReplicaGroups | None:
    """The attribute `replica_groups` in any of its three forms.

    Sizes and axes that do not fit together are kept as printed: XLA prints and reads them too.
    """
    key = "replica_groups"
    found: ReplicaGroups | None = _read(columns, index, attributes, key, _with_text, key)
    return found


def sharding(columns: Columns, index: int, attributes: Mapping[str, str]) -> Sharding | None:
    """The attribute `sharding` in any of its forms."""
    found: Sharding | None = _read(columns, index, attributes, "sharding", _with_text, "sharding")
    return found


def source_target_pairs(
    columns: Columns, index: int, attributes: Mapping[str, str]
) -> tuple[tuple[int, int], ...] | None:
    """The attribute `source_target_pairs`.

    Raises:
        HloParseError: An entry is no pair.
    """
    key = "source_target_pairs"
    plain = _plain_pairs(attributes[key]) if key in attributes else None
    if plain is not None or key not in attributes:
        return plain
    pairs: tuple[tuple[int, ...], ...] = _read(columns, index, attributes, key, language().read, "integer_lists")
    if any(len(pair) != 2 for pair in pairs):
        error = ReadError(columns.line_start(index), f"source_target_pairs of %{columns.names[index]} are not pairs")
        raise parse_error(columns, error)
    return tuple((pair[0], pair[1]) for pair in pairs)


@lru_cache(maxsize=_MOST_ENTRIES)
def _plain_pairs(raw: str) -> tuple[tuple[int, int], ...] | None:
    if not plain_pairs(raw):
        return None
    numbers = list(map(int, _NUMBER.findall(raw)))
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def integers(columns: Columns, index: int, attributes: Mapping[str, str], key: str) -> tuple[int, ...] | None:
    """An attribute such as `dimensions={0,1}`."""
    found: tuple[int, ...] | None = _read(columns, index, attributes, key, language().read, "integers")
    return found


def entries(columns: Columns, index: int, attributes: Mapping[str, str], key: str) -> Mapping[str, str]:
    """The entries of `metadata` or `frontend_attributes`."""
    return _read(columns, index, attributes, key, _entries, key) or _EMPTY


@lru_cache(maxsize=_MOST_ENTRIES)
def _entries(key: str, raw: str) -> Mapping[str, str]:
    """Strings and words are cut out; entries that are anything else are read by their rule."""
    if _is_plain(raw) is None:
        return MappingProxyType(language().read(key, raw).values)
    found = _cut_entries(raw)
    return MappingProxyType(
        {key: plain or (unquote(value) if value[0] == '"' else value) for key, plain, value in found}
    )


def plain_integer(raw: str | None) -> int | None:
    """An integer; None where there is none or it is printed as something else, such as the `_` of a fingerprint."""
    return int(raw) if raw is not None and _INTEGER.fullmatch(raw) else None


def string(raw: str | None) -> str | None:
    """An unquoted string."""
    return unquote(raw) if raw else None


def backend_config(raw: str | None) -> Mapping[str, object]:
    """A backend's configuration, which may be JSON or a string that holds JSON."""
    if raw is None:
        return _EMPTY
    text = unquote(raw) if raw[0] in "\"'" else raw
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"raw": text}
    return found if isinstance(found, dict) else {"raw": text}
