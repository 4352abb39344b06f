"""Attribute values, from raw text to what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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


def read(columns: Columns, index: int, key: str, start: str, raw: str) -> Any:
    """Reads the value of one attribute by a rule of the grammar's lower level.

    Raises:
        HloParseError: The value does not follow the rule; the error points at it in the whole text.
    """
    try:
        return language().read(start, raw)
    except ReadError as error:
        line_start = columns.line_start(index)
        offset = columns.text.find(f"{key}={raw}", line_start)
        base = line_start if offset < 0 else offset + len(key) + 1
        what = f"{key} of %{columns.names[index]} cannot be read: {error.what}"
        raise parse_error(columns, ReadError(error.position + base, what, fix=error.fix)) from None


_texts: dict[tuple[str, str], Any] = {}
"""Groups and shardings that have been read, by key and text: the same few stand on very many instructions."""

_MOST_TEXTS = 1 << 12


def _with_text(columns: Columns, index: int, key: str, raw: str) -> Any:
    """Groups or a sharding, with the text that they were read from."""
    found = _texts.get((key, raw))
    if found is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        found = _texts[key, raw] = replace(read(columns, index, key, key, raw), text=raw)
    return found


def replica_groups(columns: Columns, index: int, attributes: Mapping[str, str]) -> ReplicaGroups | None:
    """The attribute `replica_groups` in any of its three forms.

    Sizes and axes that do not fit together are kept as printed: XLA prints and reads them too.
    """
    raw = attributes.get("replica_groups")
    if raw is None:
        return None
    found: ReplicaGroups | None = _texts.get(("replica_groups", raw))
    return found or _contradictory(raw) or _with_text(columns, index, "replica_groups", raw)


def _contradictory(raw: str) -> ReplicaGroups | None:
    """Groups that follow the grammar and cannot be; None for all others."""
    try:
        language().read("replica_groups", raw)
    except ContradictionError as error:
        return ReplicaGroups(text=raw, contradiction=error.what)
    except ReadError:
        return None  # which is reported with its place in the whole text
    return None


def sharding(columns: Columns, index: int, attributes: Mapping[str, str]) -> Sharding | None:
    """The attribute `sharding` in any of its forms."""
    raw = attributes.get("sharding")
    return None if raw is None else _with_text(columns, index, "sharding", raw)


def source_target_pairs(
    columns: Columns, index: int, attributes: Mapping[str, str]
) -> tuple[tuple[int, int], ...] | None:
    """The attribute `source_target_pairs`.

    Raises:
        HloParseError: An entry is no pair.
    """
    raw = attributes.get("source_target_pairs")
    if raw is None:
        return None
    plain = _plain_pairs(raw)
    if plain is not None:
        return plain
    pairs: tuple[tuple[int, ...], ...] = read(columns, index, "source_target_pairs", "integer_lists", raw)
    if any(len(pair) != 2 for pair in pairs):
        error = ReadError(columns.line_start(index), f"source_target_pairs of %{columns.names[index]} are no pairs")
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
    raw = attributes.get(key)
    if raw is None:
        return None
    found: tuple[int, ...] = read(columns, index, key, "integers", raw)
    return found


def entries(columns: Columns, index: int, key: str, raw: str | None) -> Mapping[str, str]:
    """The entries of `metadata` or `frontend_attributes`, from the value's text."""
    if raw is None:
        return _EMPTY
    return _plain_entries(raw) or MappingProxyType(read(columns, index, key, key, raw).values)


@lru_cache(maxsize=_MOST_ENTRIES)
def _plain_entries(raw: str) -> Mapping[str, str] | None:
    """Entries that are all strings and words, which every rule for entries reads alike; None for others."""
    if _is_plain(raw) is None:
        return None
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
