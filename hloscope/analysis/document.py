"""The analysis as plain data: the document that `--format json` prints, described by `schema.json`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum

from hloscope.analysis.model import Analysis, Collective, Mesh, StepTime

SCHEMA_VERSION = 1
"""Changes when a field is renamed, removed or given another meaning; not when one is added."""


def to_document(analysis: Analysis) -> dict[str, object]:
    """Turns an analysis into dicts, lists, strings, numbers, booleans and None.

    Field names are those of the model. What is not known is None, never zero.
    """
    return {
        "schema": SCHEMA_VERSION,
        "target": analysis.target,
        "module": analysis.module,
        "slice": plain(analysis.slice),
        "mesh": _mesh(analysis.mesh),
        "num_partitions": analysis.num_partitions,
        "collectives": [_collective(collective) for collective in analysis.collectives],
        "totals": plain(analysis.totals),
        "arguments": plain(analysis.arguments),
        "outputs": plain(analysis.outputs),
        "intermediates": plain(analysis.intermediates),
        "memory": plain(analysis.memory),
        "time": _time(analysis.time),
        "rematerializations": plain(analysis.rematerializations),
        "findings": plain(analysis.findings),
        "unmodelled": plain(analysis.unmodelled),
        "notes": list(analysis.notes),
        "versions": dict(analysis.versions),
    }


def _collective(collective: Collective) -> dict[str, object]:
    """A collective with its bytes per step, which follow from bytes per execution."""
    return {
        **{field.name: plain(getattr(collective, field.name)) for field in fields(collective)},
        "payload_bytes_per_step": collective.payload_bytes_per_step,
        "wire_bytes_per_step": collective.wire_bytes_per_step,
    }


def _time(time: StepTime | None) -> dict[str, object] | None:
    """The step's time, with the names of its rules by how far they can be trusted."""
    if time is None:
        return None
    return {
        **{field.name: plain(getattr(time, field.name)) for field in fields(time)},
        "calibrated": list(time.calibrated),
        "uncalibrated": list(time.uncalibrated),
    }


def _mesh(mesh: Mesh | None) -> dict[str, object] | None:
    """The mesh without its partition ids, which belong to the compiler rather than to the user."""
    if mesh is None:
        return None
    return {
        "axis_names": list(mesh.axis_names),
        "axis_sizes": list(mesh.axis_sizes),
        "axis_types": None if mesh.axis_types is None else list(mesh.axis_types),
    }


def plain(value: object) -> object:
    """A model as dicts, lists, strings, numbers, booleans and None."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value
