"""The messages of a profile (`XSpace`): planes of lines of events, with names and details in separate tables.

Source: tsl/profiler/protobuf/xplane.proto; the numbers of the fields are those given there. jaxlib's own reader,
`jax.profiler.ProfileData`, leaves out what events have in common, and with it the programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hloscope.protobuf import Value, WireError, double, fields, signed

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
        begin_ps: Since the beginning of the profile.
        duration_ps: How long.
        stats: Messages that say more of it.
    """

    metadata_id: int
    begin_ps: int
    duration_ps: int
    stats: tuple[bytes, ...]


class EventMetadata(NamedTuple):
    """What the events of an operation have in common.

    Attributes:
        name: A device's operation by its HLO line, a program by its name and number.
        display_name: The short name; may be empty.
        stats: Messages that say more of it.
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
        stat_names: The table of what stats are called.
        own_stats: Messages that say more of the plane.
    """

    name: str
    lines: tuple[bytes, ...]
    events: Mapping[int, EventMetadata]
    stat_names: Mapping[int, str]
    own_stats: tuple[bytes, ...]

    def stats(self, messages: tuple[bytes, ...]) -> dict[str, StatValue]:
        """Stats by their names, in lower case with `_` for spaces, as newer profiles have them."""
        return dict(self._stat(message) for message in messages)

    def _stat(self, message: bytes) -> tuple[str, StatValue]:
        found = dict(fields(message))
        name = self.stat_names.get(_integer(found.get(STAT_METADATA_ID, 0)), "")
        number, value = next(((key, found[key]) for key in found if key != STAT_METADATA_ID), (STAT_TEXT, b""))
        return name.lower().replace(" ", "_"), self._value(number, value)

    def _value(self, number: int, value: Value) -> StatValue:
        if isinstance(value, bytes):
            return double(value) if number == STAT_DOUBLE else value if number == STAT_BYTES else _text(value)
        if number == STAT_REFERENCE:
            return self.stat_names.get(value, "")
        return signed(value) if number == STAT_INT64 else value


def planes_of(data: bytes) -> Iterator[bytes]:
    """The planes of a file.

    Raises:
        WireError: It is no XSpace, or is cut off.
    """
    for number, value in fields(data):
        if number == PLANES:
            yield _message(value)


def plane_name(plane: bytes) -> str:
    """A plane's name; the only thing that is read of it."""
    return next((_text(value) for number, value in fields(plane) if number == PLANE_NAME), "")


def read_plane(plane: bytes) -> Plane:
    """A plane with its tables."""
    found: dict[int, list[bytes]] = {}
    for number, value in fields(plane):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value)
    events = dict(_entry(entry) for entry in found.get(PLANE_EVENT_METADATA, ()))
    stats = dict(_entry(entry) for entry in found.get(PLANE_STAT_METADATA, ()))
    return Plane(
        name=_text(found.get(PLANE_NAME, [b""])[0]),
        lines=tuple(found.get(PLANE_LINES, ())),
        events={key: _event_metadata(value) for key, value in events.items()},
        stat_names={key: _text(dict(fields(value)).get(METADATA_NAME, b"")) for key, value in stats.items()},
        own_stats=tuple(found.get(PLANE_STATS, ())),
    )


def line_name(line: bytes) -> str:
    """A line's name."""
    return next((_text(value) for number, value in fields(line) if number == LINE_NAME), "")


def line_events(line: bytes) -> Iterator[RawEvent]:
    """The events of a line, in the order of the file."""
    events: list[bytes] = []
    since_ps = 0
    for number, value in fields(line):
        if number == LINE_EVENTS:
            events.append(_message(value))
        elif number == LINE_TIMESTAMP_NS:
            since_ps = signed(_integer(value)) * _NANOSECOND_PS
    for event in events:
        numbers = {EVENT_METADATA_ID: 0, EVENT_OFFSET_PS: 0, EVENT_DURATION_PS: 0}
        stats: list[bytes] = []
        for number, value in fields(event):
            if isinstance(value, int):
                numbers[number] = value
            elif number == EVENT_STATS:
                stats.append(value)
        begin_ps = since_ps + signed(numbers[EVENT_OFFSET_PS])
        yield RawEvent(numbers[EVENT_METADATA_ID], begin_ps, signed(numbers[EVENT_DURATION_PS]), tuple(stats))


def _entry(entry: bytes) -> tuple[int, bytes]:
    """An entry of a map: a number and a message."""
    found = dict(fields(entry))
    return _integer(found.get(MAP_KEY, 0)), _message(found.get(MAP_VALUE, b""))


def _event_metadata(message: bytes) -> EventMetadata:
    name, display_name, stats = "", "", []
    for number, value in fields(message):
        if number == METADATA_NAME:
            name = _text(value)
        elif number == METADATA_DISPLAY_NAME:
            display_name = _text(value)
        elif number == METADATA_STATS:
            stats.append(_message(value))
    return EventMetadata(name, display_name, tuple(stats))


def _message(value: Value) -> bytes:
    if isinstance(value, int):
        raise WireError("a number was found instead of a message")
    return value


def _integer(value: Value) -> int:
    if isinstance(value, bytes):
        raise WireError("a message was found instead of a number")
    return value


def _text(value: Value) -> str:
    return _message(value).decode("utf-8", "replace")
