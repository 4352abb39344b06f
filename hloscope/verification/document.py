"""A verification as plain data: the document that `--format json` prints, described by `schema.json`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite

from hloscope.verification.communication import traffic_rows
from hloscope.verification.model import Verification

SCHEMA_VERSION = 1
"""Changes when a field is renamed, removed or given another meaning; not when one is added."""


def to_document(found: Verification) -> dict[str, object]:
    """Turns a verification into dicts, lists, strings, numbers, booleans and None; an infinite error is `"inf"`."""
    rows = traffic_rows(found.communication, found.target, found.reference)
    return {
        "schema": SCHEMA_VERSION,
        "target": found.target.target,
        "reference": found.reference.target,
        "slice": _plain(found.target.slice),
        "passed": found.passed,
        "untested": list(found.untested),
        "numerics": _plain(found.numerics),
        "communication": {
            "same": found.communication.same,
            "rows": _plain(rows),
            "target_wire_bytes": found.communication.new_total.wire_bytes,
            "reference_wire_bytes": found.communication.old_total.wire_bytes,
            "bytes_ratio": found.bytes_ratio,
            "time_ratio": found.time_ratio,
        },
        "memory": {"target": _plain(found.target.memory), "reference": _plain(found.reference.memory)},
        "findings": _plain(found.findings),
        "versions": dict(found.target.versions),
    }


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
