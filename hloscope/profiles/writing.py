"""The conversion of a `Profile` to the bytes of an `xplane.pb`, as XProf and hloscope read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from hloscope.profiles import xplane
from hloscope.profiles.model import DeviceRun, Profile, ProfiledDevice, ProfiledOperation, ProfileEvent, Stats
from hloscope.profiles.reading import HOST_CPU, METADATA, OPERATIONS, RUNS, TRANSFERS
from hloscope.protobuf import encode_message

_STEPS, _LOOPS, _COUNTERS = "Steps", "Loops", "_counters_"
"""Source: XProf's xplane_schema.cc; XProf draws events on the last one as counters, by their stats."""
_NUMBER = re.compile(r"\((\d+)\)$")
_GLOBAL_CHIP_ID = 5

_Field = tuple[int, int | float | str | bytes]


class _PlaneWriter:
    """A plane that is being written; the common parts of events and stats are stored once, in tables.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._fields: list[_Field] = [(xplane.PLANE_NAME, name)]
        self._operations: dict[tuple[ProfiledOperation, str], int] = {}
        self._stats: dict[str, int] = {}

    def add_stats(self, stats: Stats) -> None:
        """Adds statistics of the plane itself."""
        self._fields += [(xplane.PLANE_STATS, self._stat(*stat)) for stat in stats]

    def add_line(self, name: str, events: Iterable[tuple[ProfileEvent, str]]) -> None:
        """Writes events, each with its program, on a separate line."""
        line: list[_Field] = [(xplane.LINE_ID, len(self._fields)), (xplane.LINE_NAME, name)]
        for (operation, begin_ps, duration_ps), program in events:
            found = (
                (
                    xplane.EVENT_METADATA_ID,
                    self._operations.setdefault((operation, program), len(self._operations) + 1),
                ),
                (xplane.EVENT_OFFSET_PS, begin_ps),
                (xplane.EVENT_DURATION_PS, duration_ps),
            )
            line.append((xplane.LINE_EVENTS, encode_message(found)))
        self._fields.append((xplane.PLANE_LINES, encode_message(line)))

    def add_row(self, number: int, name: str, display_name: str, stats: Stats) -> None:
        """Writes a row of the table of events."""
        row: list[_Field] = [(xplane.METADATA_ID, number), (xplane.METADATA_NAME, name)]
        row += [(xplane.METADATA_DISPLAY_NAME, display_name)] if display_name else []
        row += [(xplane.METADATA_STATS, self._stat(*stat)) for stat in stats]
        entry = encode_message([(xplane.MAP_KEY, number), (xplane.MAP_VALUE, encode_message(row))])
        self._fields.append((xplane.PLANE_EVENT_METADATA, entry))

    def written(self) -> bytes:
        """The plane with its tables."""
        for (operation, program), number in self._operations.items():
            of_program = _NUMBER.search(program)
            stats = operation.stats if of_program is None else (("program_id", int(of_program[1])), *operation.stats)
            name = operation.text or operation.name
            self.add_row(number, name, operation.name if of_program is not None else "", stats)
        for name, number in self._stats.items():
            row = encode_message([(xplane.METADATA_ID, number), (xplane.METADATA_NAME, name)])
            entry = encode_message([(xplane.MAP_KEY, number), (xplane.MAP_VALUE, row)])
            self._fields.append((xplane.PLANE_STAT_METADATA, entry))
        return encode_message(self._fields)

    def _stat(self, name: str, value: int | float | str | bytes) -> bytes:
        number = self._stats.setdefault(name, len(self._stats) + 1)
        return encode_message([(xplane.STAT_METADATA_ID, number), (_KINDS[type(value)], value)])


_KINDS: Mapping[type, int] = {
    int: xplane.STAT_UINT64,
    float: xplane.STAT_DOUBLE,
    str: xplane.STAT_TEXT,
    bytes: xplane.STAT_BYTES,
}


def write_xspace(profile: Profile) -> bytes:
    """The bytes of the file."""
    planes = [*map(_write_device_plane, profile.devices), _write_metadata_plane(profile.protos)]
    if profile.stats:
        host = _PlaneWriter(HOST_CPU)
        host.add_stats(profile.stats)
        planes.append(host.written())
    return encode_message((xplane.PLANES, plane) for plane in planes)


def _write_device_plane(device: ProfiledDevice) -> bytes:
    plane, runs = _PlaneWriter(device.name), device.runs
    plane.add_line(_STEPS, ((_make_run_event(run, str(number)), "") for number, run in enumerate(runs)))
    plane.add_line(RUNS, ((_make_run_event(run, run.program), "") for run in runs))
    plane.add_line(OPERATIONS, _list_run_events(runs, "operations"))
    plane.add_line(TRANSFERS, _list_run_events(runs, "transfers"))
    if any(run.loops for run in runs):
        plane.add_line(_LOOPS, _list_run_events(runs, "loops"))
    if any(run.counters for run in runs):
        plane.add_line(_COUNTERS, ((event, "") for run in runs for event in run.counters))
    plane.add_stats((("device_type_string", device.kind), *device.stats))
    if device.chip_id is not None:
        plane.add_stats((("core_details", encode_message([(_GLOBAL_CHIP_ID, device.chip_id)])),))
    return plane.written()


def _make_run_event(run: DeviceRun, name: str) -> ProfileEvent:
    return ProfileEvent(ProfiledOperation(name), run.begin_ps, run.duration_ps)


def _list_run_events(runs: Iterable[DeviceRun], what: str) -> Iterator[tuple[ProfileEvent, str]]:
    events_of = attrgetter(what)
    return ((event, run.program) for run in runs for event in events_of(run))


def _write_metadata_plane(protos: Mapping[str, bytes]) -> bytes:
    plane = _PlaneWriter(METADATA)
    for row, (name, proto) in enumerate(protos.items(), 1):
        found = _NUMBER.search(name)
        plane.add_row(row if found is None else int(found[1]), name, "", (("Hlo Proto", proto),))
    return plane.written()
