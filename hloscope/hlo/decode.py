"""Values of attributes, decoded from raw text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hloscope.hlo.columns import Columns
from hloscope.hlo.diagnostics import lay_out_error
from hloscope.hlo.language import load_language
from hloscope.hlo.line_patterns import NAME, STRING
from hloscope.hlo.records import ContradictionError, ReadError
from hloscope.hlo.replica_groups import ReplicaGroups
from hloscope.hlo.sharding import Sharding
from hloscope.hlo.value_actions import is_plain_pairs, unquote

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
    """Reads the value of one attribute by a rule of the grammar's lower level; None if it is missing.

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
        raise lay_out_error(columns, ReadError(error.position + base, what, fix=error.fix)) from None


@lru_cache(maxsize=_MOST_ENTRIES)
def _attach_text(key: str, raw: str) -> Any:
    """Parses groups or a sharding, and keeps their text: the same few occur on very many instructions."""
    try:
        return replace(load_language().read(key, raw), text=raw)
    except ContradictionError as error:
        if key != "replica_groups":
            raise
        return ReplicaGroups(text=raw, contradiction=error.what)


def read_replica_groups(columns: Columns, index: int, attributes: Mapping[str, str]) -> ReplicaGroups | None:
    """The attribute `read_replica_groups` in any of its three forms.

    Contradictory sizes and axes are kept as printed: XLA prints and reads them too.
    """
    key = "replica_groups"
    found: ReplicaGroups | None = _read(columns, index, attributes, key, _attach_text, key)
    return found


def read_sharding(columns: Columns, index: int, attributes: Mapping[str, str]) -> Sharding | None:
    """The attribute `sharding` in any of its forms."""
    found: Sharding | None = _read(columns, index, attributes, "sharding", _attach_text, "sharding")
    return found


def read_source_target_pairs(
    columns: Columns, index: int, attributes: Mapping[str, str]
) -> tuple[tuple[int, int], ...] | None:
    """The attribute `read_source_target_pairs`.

    Raises:
        HloParseError: An entry is not a pair.
    """
    key = "source_target_pairs"
    plain = _read_plain_pairs(attributes[key]) if key in attributes else None
    if plain is not None or key not in attributes:
        return plain
    pairs: tuple[tuple[int, ...], ...] = _read(columns, index, attributes, key, load_language().read, "integer_lists")
    if any(len(pair) != 2 for pair in pairs):
        error = ReadError(columns.line_start(index), f"source_target_pairs of %{columns.names[index]} are not pairs")
        raise lay_out_error(columns, error)
    return tuple((pair[0], pair[1]) for pair in pairs)


@lru_cache(maxsize=_MOST_ENTRIES)
def _read_plain_pairs(raw: str) -> tuple[tuple[int, int], ...] | None:
    if not is_plain_pairs(raw):
        return None
    numbers = list(map(int, _NUMBER.findall(raw)))
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def read_integers(columns: Columns, index: int, attributes: Mapping[str, str], key: str) -> tuple[int, ...] | None:
    """An attribute such as `dimensions={0,1}`."""
    found: tuple[int, ...] | None = _read(columns, index, attributes, key, load_language().read, "integers")
    return found


def read_entries(columns: Columns, index: int, attributes: Mapping[str, str], key: str) -> Mapping[str, str]:
    """The entries of `metadata` or `frontend_attributes`."""
    return _read(columns, index, attributes, key, _cut_plain_entries, key) or _EMPTY


@lru_cache(maxsize=_MOST_ENTRIES)
def _cut_plain_entries(key: str, raw: str) -> Mapping[str, str]:
    """Cuts out strings and words; other entries are read by their rule."""
    if _is_plain(raw) is None:
        return MappingProxyType(load_language().read(key, raw).values)
    found = _cut_entries(raw)
    return MappingProxyType(
        {key: plain or (unquote(value) if value[0] == '"' else value) for key, plain, value in found}
    )


def read_integer(raw: str | None) -> int | None:
    """An integer; None if it is missing or printed as something else, such as the `_` of a fingerprint."""
    return int(raw) if raw is not None and _INTEGER.fullmatch(raw) else None


def read_string(raw: str | None) -> str | None:
    """An unquoted string."""
    return unquote(raw) if raw else None


def read_backend_config(raw: str | None) -> Mapping[str, object]:
    """A backend's configuration, which may be JSON or a string of JSON."""
    if raw is None:
        return _EMPTY
    text = unquote(raw) if raw[0] in "\"'" else raw
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"raw": text}
    return found if isinstance(found, dict) else {"raw": text}
