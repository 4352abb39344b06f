"""The messages of a profile (`XSpace`): planes of lines of events, with names and details in separate tables.

Source: tsl/profiler/protobuf/xplane.proto, including the numbers of the fields. jaxlib's own reader,
`jax.profiler.ProfileData`, omits the common parts of events, and with them the programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hloscope.protobuf import WireError, WireValue, read_double, read_fields, to_signed

PLANES = 1
PLANE_NAME, PLANE_LINES, PLANE_EVENT_METADATA, PLANE_STAT_METADATA, PLANE_STATS = 2, 3, 4, 5, 6
LINE_ID, LINE_NAME, LINE_TIMESTAMP_NS, LINE_EVENTS = 1, 2, 3, 4
EVENT_METADATA_ID, EVENT_OFFSET_PS, EVENT_DURATION_PS, EVENT_STATS = 1, 2, 3, 4
METADATA_ID, METADATA_NAME, METADATA_DISPLAY_NAME, METADATA_STATS = 1, 2, 4, 5
MAP_KEY, MAP_VALUE = 1, 2
STAT_METADATA_ID, STAT_DOUBLE, STAT_UINT64, STAT_INT64, STAT_TEXT, STAT_BYTES, STAT_REFERENCE = 1, 2, 3, 4, 5, 6, 7

_NANOSECOND_PS = 1000

StatValue = int | float | str | bytes


class RawEvent(NamedTuple):
    """An event of a line.

    Attributes:
        metadata_id: The row of the plane's table of events.
        begin_ps: Begin in picoseconds, since the start of the profile.
        duration_ps: Duration in picoseconds.
        stats: Messages with its statistics.
    """

    metadata_id: int
    begin_ps: int
    duration_ps: int
    stats: tuple[bytes, ...]


class EventMetadata(NamedTuple):
    """The common part of the events of an operation.

    Attributes:
        name: The HLO line of a device's operation, or the name and number of a program.
        display_name: The short name; may be empty.
        stats: Messages with its statistics.
    """

    name: str
    display_name: str
    stats: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """A device, a host or the table of programs.

    Attributes:
        name: Such as `/device:TPU:0` or `/host:metadata`.
        lines: The bytes of each line.
        events: The table of events.
        stat_names: The table of the names of stats.
        own_stats: Messages with the plane's statistics.
    """

    name: str
    lines: tuple[bytes, ...]
    events: Mapping[int, EventMetadata]
    stat_names: Mapping[int, str]
    own_stats: tuple[bytes, ...]

    def stats(self, messages: tuple[bytes, ...]) -> dict[str, StatValue]:
        """The stats by name, in lower case with `_` for spaces, as in newer profiles."""
        return dict(self._stat(message) for message in messages)

    def _stat(self, message: bytes) -> tuple[str, StatValue]:
        found = dict(read_fields(message))
        name = self.stat_names.get(_check_integer(found.get(STAT_METADATA_ID, 0)), "")
        number, value = next(((key, found[key]) for key in found if key != STAT_METADATA_ID), (STAT_TEXT, b""))
        return name.lower().replace(" ", "_"), self._value(number, value)

    def _value(self, number: int, value: WireValue) -> StatValue:
        if isinstance(value, bytes):
            return (
                read_double(value) if number == STAT_DOUBLE else value if number == STAT_BYTES else _decode_text(value)
            )
        if number == STAT_REFERENCE:
            return self.stat_names.get(value, "")
        return to_signed(value) if number == STAT_INT64 else value


def read_planes(data: bytes) -> Iterator[bytes]:
    """The planes of a file.

    Raises:
        WireError: It is not an XSpace, or is cut off.
    """
    for number, value in read_fields(data):
        if number == PLANES:
            yield _check_message(value)


def read_plane_name(plane: bytes) -> str:
    """A plane's name; nothing else of the plane is read."""
    return next((_decode_text(value) for number, value in read_fields(plane) if number == PLANE_NAME), "")


def read_plane(plane: bytes) -> Plane:
    """A plane with its tables."""
    found: dict[int, list[bytes]] = {}
    for number, value in read_fields(plane):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value)
    events = dict(_read_map_entry(entry) for entry in found.get(PLANE_EVENT_METADATA, ()))
    stats = dict(_read_map_entry(entry) for entry in found.get(PLANE_STAT_METADATA, ()))
    return Plane(
        name=_decode_text(found.get(PLANE_NAME, [b""])[0]),
        lines=tuple(found.get(PLANE_LINES, ())),
        events={key: _read_event_metadata(value) for key, value in events.items()},
        stat_names={
            key: _decode_text(dict(read_fields(value)).get(METADATA_NAME, b"")) for key, value in stats.items()
        },
        own_stats=tuple(found.get(PLANE_STATS, ())),
    )


def read_line_name(line: bytes) -> str:
    """A line's name."""
    return next((_decode_text(value) for number, value in read_fields(line) if number == LINE_NAME), "")


def read_line_events(line: bytes) -> Iterator[RawEvent]:
    """The events of a line, in the order of the file."""
    events: list[bytes] = []
    since_ps = 0
    for number, value in read_fields(line):
        if number == LINE_EVENTS:
            events.append(_check_message(value))
        elif number == LINE_TIMESTAMP_NS:
            since_ps = to_signed(_check_integer(value)) * _NANOSECOND_PS
    for event in events:
        numbers = {EVENT_METADATA_ID: 0, EVENT_OFFSET_PS: 0, EVENT_DURATION_PS: 0}
        stats: list[bytes] = []
        for number, value in read_fields(event):
            if isinstance(value, int):
                numbers[number] = value
            elif number == EVENT_STATS:
                stats.append(value)
        begin_ps = since_ps + to_signed(numbers[EVENT_OFFSET_PS])
        yield RawEvent(numbers[EVENT_METADATA_ID], begin_ps, to_signed(numbers[EVENT_DURATION_PS]), tuple(stats))


def _read_map_entry(entry: bytes) -> tuple[int, bytes]:
    """An entry of a map: a number and a message."""
    found = dict(read_fields(entry))
    return _check_integer(found.get(MAP_KEY, 0)), _check_message(found.get(MAP_VALUE, b""))


def _read_event_metadata(message: bytes) -> EventMetadata:
    name, display_name, stats = "", "", []
    for number, value in read_fields(message):
        if number == METADATA_NAME:
            name = _decode_text(value)
        elif number == METADATA_DISPLAY_NAME:
            display_name = _decode_text(value)
        elif number == METADATA_STATS:
            stats.append(_check_message(value))
    return EventMetadata(name, display_name, tuple(stats))


def _check_message(value: WireValue) -> bytes:
    if isinstance(value, int):
        raise WireError("a number was found instead of a message")
    return value


def _check_integer(value: WireValue) -> int:
    if isinstance(value, bytes):
        raise WireError("a message was found instead of a number")
    return value


def _decode_text(value: WireValue) -> str:
    return _check_message(value).decode("utf-8", "replace")
