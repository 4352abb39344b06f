"""From a `Profile` to the bytes of an `xplane.pb`, as XProf and hloscope read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hloscope.profiles import xplane
from hloscope.profiles.model import Device, Event, Profile, ProfiledOperation, Run
from hloscope.profiles.reading import METADATA, OPERATIONS, RUNS, TRANSFERS
from hloscope.protobuf import message

_NUMBER = re.compile(r"\((\d+)\)$")
_HLO_PROTO, _DEVICE_TYPE, _PROGRAM_ID, _CORE_DETAILS = "Hlo Proto", "device_type_string", "program_id", "core_details"
_STATS = {name: number for number, name in enumerate((_HLO_PROTO, _DEVICE_TYPE, _PROGRAM_ID, _CORE_DETAILS), 1)}
_GLOBAL_CHIP_ID = 5

_Field = tuple[int, int | float | str | bytes]


@dataclass(slots=True)
class _Table:
    """A plane's table of events: what they have in common stands there once."""

    rows: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, name: str, program: str) -> int:
        """The number of a row; one that is new is made."""
        return self.rows.setdefault((name, program), len(self.rows) + 1)

    def fields(self) -> Iterator[_Field]:
        """The rows as fields of the plane."""
        for (name, program), number in self.rows.items():
            short = name.removeprefix("%").partition(" = ")[0]
            row: list[_Field] = [(xplane.METADATA_ID, number), (xplane.METADATA_NAME, name)]
            found = _NUMBER.search(program)
            if found is not None:
                row.append((xplane.METADATA_DISPLAY_NAME, short))
                row.append((xplane.METADATA_STATS, _stat(_PROGRAM_ID, (xplane.STAT_UINT64, int(found[1])))))
            yield xplane.PLANE_EVENT_METADATA, message([(xplane.MAP_KEY, number), (xplane.MAP_VALUE, message(row))])


def xspace(profile: Profile) -> bytes:
    """The bytes of the file."""
    planes = [*map(_device_plane, profile.devices), _metadata_plane(profile.protos)]
    return message((xplane.PLANES, plane) for plane in planes)


def _device_plane(device: Device) -> bytes:
    table = _Table()
    lines = (
        _line(
            RUNS, (((ProfiledOperation(run.program), run.begin_ps, run.duration_ps), "") for run in device.runs), table
        ),
        _line(OPERATIONS, _of_runs(device.runs, "operations"), table),
        _line(TRANSFERS, _of_runs(device.runs, "transfers"), table),
    )
    plane: list[_Field] = [(xplane.PLANE_NAME, device.name)]
    plane += [(xplane.PLANE_LINES, line) for line in lines]
    plane += table.fields()
    plane += _stat_names()
    plane.append((xplane.PLANE_STATS, _stat(_DEVICE_TYPE, (xplane.STAT_TEXT, device.kind))))
    if device.chip_id is not None:
        details = message([(_GLOBAL_CHIP_ID, device.chip_id)])
        plane.append((xplane.PLANE_STATS, _stat(_CORE_DETAILS, (xplane.STAT_BYTES, details))))
    return message(plane)


def _of_runs(runs: Iterable[Run], what: str) -> Iterator[tuple[Event, str]]:
    for run in runs:
        for event in getattr(run, what):
            yield event, run.program


def _line(name: str, events: Iterable[tuple[Event | tuple[ProfiledOperation, int, int], str]], table: _Table) -> bytes:
    line: list[_Field] = [(xplane.LINE_NAME, name)]
    for (operation, begin_ps, duration_ps), program in events:
        number = table.number(operation.text or operation.name, program)
        found = (
            (xplane.EVENT_METADATA_ID, number),
            (xplane.EVENT_OFFSET_PS, begin_ps),
            (xplane.EVENT_DURATION_PS, duration_ps),
        )
        line.append((xplane.LINE_EVENTS, message(found)))
    return message(line)


def _metadata_plane(protos: Mapping[str, bytes]) -> bytes:
    plane: list[_Field] = [(xplane.PLANE_NAME, METADATA)]
    for name, proto in protos.items():
        found = _NUMBER.search(name)
        number = int(found[1]) if found is not None else len(plane)
        stat = _stat(_HLO_PROTO, (xplane.STAT_BYTES, proto))
        row = message([(xplane.METADATA_ID, number), (xplane.METADATA_NAME, name), (xplane.METADATA_STATS, stat)])
        plane.append((xplane.PLANE_EVENT_METADATA, message([(xplane.MAP_KEY, number), (xplane.MAP_VALUE, row)])))
    return message([*plane, *_stat_names()])


def _stat_names() -> Iterator[_Field]:
    for name, number in _STATS.items():
        row = message([(xplane.METADATA_ID, number), (xplane.METADATA_NAME, name)])
        yield xplane.PLANE_STAT_METADATA, message([(xplane.MAP_KEY, number), (xplane.MAP_VALUE, row)])


def _stat(name: str, value: _Field) -> bytes:
    return message([(xplane.STAT_METADATA_ID, _STATS[name]), value])
