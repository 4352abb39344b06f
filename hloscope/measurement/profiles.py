"""The contents of a profile: when programs and their operations ran on each device."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from hloscope.base.errors import TARGET, Command, Option, ProfileError, say
from hloscope.base.protobuf import WireError, WireValue, encode_message, read_double, read_fields, to_signed

PREDICTED = "predicted"
"""The name, or its beginning, of the runs that hloscope writes itself: nothing in them was measured."""

PREDICTED_BY, SLICE, PLACE = "predicted_by", "slice", "place"
"""The statistics of such a run's devices: the version of hloscope, the slice, and the places of its partitions."""
READ_BACK = (PREDICTED_BY, SLICE, PLACE)
"""The statistics of a device that are read back."""

_MICROSECOND_PS = 1e6


Stats = tuple[tuple[str, int | float | str | bytes], ...]
"""The facts for viewers in addition to names and times, by the names that viewers expect.

Only `READ_BACK` is read back.
"""


class ProfiledOperation(NamedTuple):
    """The operation of profiled events.

    Attributes:
        name: The HLO instruction, without `%`.
        text: Its line of HLO as far as the profile has it, such as `%add = f32[8] add(...)`; empty if it has none.
        stats: Its other statistics in the profile.
    """

    name: str
    text: str = ""
    stats: Stats = ()


class ProfileEvent(NamedTuple):
    """One execution of an operation on a device.

    Attributes:
        operation: The operation.
        begin_ps: Begin, in picoseconds.
        duration_ps: Duration, in picoseconds.
    """

    operation: ProfiledOperation
    begin_ps: int
    duration_ps: int

    @property
    def end_ps(self) -> int:
        """End, in picoseconds."""
        return self.begin_ps + self.duration_ps

    @property
    def duration_us(self) -> float:
        """Duration, in microseconds."""
        return self.duration_ps / _MICROSECOND_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """One run of a program on one device.

    Attributes:
        program: The program's name and number, such as `jit_step(1234)`.
        begin_ps: Begin, in picoseconds.
        duration_ps: Duration, in picoseconds, including waiting for other devices.
        operations: Operations during the run, by begin, with loops and branches before their contents.
        transfers: Asynchronous transfers during the run, each from its start to its done.
        loops: The loops around operations, if these are separate.
        counters: The counters during the run: events without duration, whose operations' stats have the new values.
    """

    program: str
    begin_ps: int
    duration_ps: int
    operations: tuple[ProfileEvent, ...]
    transfers: tuple[ProfileEvent, ...] = ()
    loops: tuple[ProfileEvent, ...] = ()
    counters: tuple[ProfileEvent, ...] = ()

    @property
    def duration_us(self) -> float:
        """Duration, in microseconds."""
        return self.duration_ps / _MICROSECOND_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledDevice:
    """A device and what ran on it.

    Attributes:
        name: Name in the profile, such as `/device:TPU:0`.
        kind: Kind in the profile, such as `TPU v6 Lite` or `CPU`; empty if unknown.
        chip_id: Number of its chip among all chips of the slice; None if unknown.
        runs: Runs on the device, by begin.
        stats: Its other statistics in the profile.
    """

    name: str
    kind: str
    chip_id: int | None
    runs: tuple[DeviceRun, ...]
    stats: Stats = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile of the devices of one or more hosts.

    Attributes:
        name: The file or folder, as the user named it.
        devices: Devices on which something ran.
        protos: Serialized `HloProto` of each program, by name and number.
        notes: Choices made while reading, one sentence each.
        stats: Statistics of the host in the profile.
    """

    name: str
    devices: tuple[ProfiledDevice, ...]
    protos: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    stats: Stats = ()

    @property
    def prediction(self) -> Mapping[str, str]:
        """The statistics about the prediction in a profile that hloscope wrote itself, by name; otherwise empty."""
        said = {name: str(value) for name, value in self.devices[0].stats}
        return said if PREDICTED_BY in said else {}


# ---- the messages of a profile (`XSpace`): planes of lines of events, with names and details in separate tables
#
# Source: tsl/profiler/protobuf/xplane.proto, including the numbers of the fields. jaxlib's own reader,
# `jax.profiler.ProfileData`, omits the common parts of events, and with them the programs.

PLANES = 1
NAME, PLANE_LINES, PLANE_EVENT_METADATA, PLANE_STAT_METADATA, PLANE_STATS = 2, 3, 4, 5, 6
LINE_ID, LINE_TIMESTAMP_NS, LINE_EVENTS = 1, 3, 4
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


def read_name(message: bytes) -> str:
    """The name of a plane or a line, which both have in one field; nothing else of it is read."""
    return next((_decode_text(value) for number, value in read_fields(message) if number == NAME), "")


def read_plane(plane: bytes) -> Plane:
    """A plane with its tables."""
    found: dict[int, list[bytes]] = {}
    for number, value in read_fields(plane):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value)
    events = dict(_read_map_entry(entry) for entry in found.get(PLANE_EVENT_METADATA, ()))
    stats = dict(_read_map_entry(entry) for entry in found.get(PLANE_STAT_METADATA, ()))
    return Plane(
        name=_decode_text(found.get(NAME, [b""])[0]),
        lines=tuple(found.get(PLANE_LINES, ())),
        events={key: _read_event_metadata(value) for key, value in events.items()},
        stat_names={
            key: _decode_text(dict(read_fields(value)).get(METADATA_NAME, b"")) for key, value in stats.items()
        },
        own_stats=tuple(found.get(PLANE_STATS, ())),
    )


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


# ---- the conversion of `xplane.pb` files to a `Profile`, and the errors for files without one of a TPU

_TPU = re.compile(r"/device:TPU:\d+")
_GPU = "/device:GPU"
HOST_CPU = "/host:CPU"
METADATA = "/host:metadata"
RUNS, OPERATIONS, TRANSFERS = "XLA Modules", "XLA Ops", "Async XLA Ops"
_HLO_LINE = re.compile(r"%?([\w.\-]+) = ")
_FILES = "*.xplane.pb*"
_RUNS = ("plugins/profile", "profile", "")
"""The folders of runs, relative to the folder passed to `jax.profiler.start_trace` or one within it."""

_HOW_TO_NAME = "pass the folder that was passed to jax.profiler.start_trace or jax.profiler.trace"
_GLOBAL_CHIP_ID = 5
"""The field of `CoreDetails` that numbers chips: 4 to 7 in a profile of the second host of a v6e-8."""


def find_profile_files(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The files of the profile in a folder, one for each host, and the choices that were made.

    Args:
        path: One such file, the folder of a run, or one that was passed to `jax.profiler`.

    Raises:
        ProfileError: There is no such file.
    """
    if os.path.isfile(path):
        return [path], ()
    if not os.path.isdir(path):
        raise ProfileError(f"there is no profile {path}", fix=_HOW_TO_NAME)
    own = sorted(path.glob(_FILES))
    if own:
        return own, ()
    for below in _RUNS:
        runs = sorted({file.parent for file in (path / below).glob(f"*/{_FILES}")}, key=_find_run_order)
        if runs:
            note = f"of {len(runs)} profiles in {path}, the last one is used: {runs[-1].name}"
            return sorted(runs[-1].glob(_FILES)), (note,) if len(runs) > 1 else ()
    raise ProfileError(
        f"{path} contains no profile",
        why="there is no *.xplane.pb in it, nor in plugins/profile/* below it",
        fix=_HOW_TO_NAME,
    )


def _find_run_order(run: Path) -> tuple[bool, str]:
    """The sort key of runs, of which the last one is read: predictions come before measured runs."""
    return not run.name.startswith(PREDICTED), run.name


def read_profile(name: str, files: Iterable[tuple[str, bytes]], *, of_cpu: bool = False) -> Profile:
    """Reads the runs on the devices from the files of all hosts.

    Args:
        name: The file or folder, as the user named it.
        files: The name and the unpacked bytes of each file.
        of_cpu: Whether the runs on CPU devices are wanted, rather than those on TPUs.

    Raises:
        ProfileError: A file is cut off or not a profile, or nothing ran on such a device.
    """
    devices: list[ProfiledDevice] = []
    protos: dict[str, bytes] = {}
    seen: list[str] = []
    for file, data in files:
        try:
            for plane in map(read_plane, _select_planes(data, seen, of_cpu)):
                if plane.name == METADATA:
                    protos |= _read_protos(plane)
                else:
                    devices.extend(_read_cpu_devices(plane) if of_cpu else [_read_device(plane)])
        except WireError as error:
            raise ProfileError(
                f"{file} is not a complete profile",
                why=f"read as XSpace, it is invalid: {error}" if seen else f"it does not begin like an XSpace: {error}",
                fix="copy it again, or take the profile again and stop it properly",
            ) from None
    ran = [device for device in devices if device.runs]
    if not ran:
        raise _make_nothing_ran_error(name, seen, devices)
    return Profile(name=name, devices=tuple(ran), protos=protos)


def _select_planes(data: bytes, seen: list[str], of_cpu: bool) -> Iterator[bytes]:
    """The planes to read; the names of all planes are noted."""
    for plane in read_planes(data):
        name = read_name(plane)
        seen.append(name)
        if name == METADATA or (name == HOST_CPU if of_cpu else _TPU.fullmatch(name)):
            yield plane


def _make_nothing_ran_error(name: str, seen: Sequence[str], devices: Sequence[ProfiledDevice]) -> ProfileError:
    """The error for a profile without anything to compare with."""
    if any(plane.startswith(_GPU) for plane in seen):
        return ProfileError(
            f"{name} is a profile of a GPU", why="hloscope predicts only TPUs", fix="use a profile of a TPU slice"
        )
    if devices:
        return ProfileError(
            f"no program ran to completion while {name} was taken",
            why=f"its devices have no events on the line {RUNS}",
            fix="take the profile around a few complete steps, and block until they are ready before stopping it",
        )
    if HOST_CPU in seen:
        return ProfileError(
            f"{name} is a profile of a host without a TPU",
            why="it has no plane /device:TPU:0",
            fix=say(
                "take the profile on the host of the TPU; ",
                Command("measure", (TARGET, Option("on", "cpu"))),
                " measures CPU devices",
            ),
        )
    return ProfileError(f"{name} is empty", why="it has no device plane", fix=_HOW_TO_NAME)


def _read_protos(plane: Plane) -> dict[str, bytes]:
    """The serialized `HloProto` of each program."""
    found = ((event.name, plane.stats(event.stats).get("hlo_proto")) for event in plane.events.values())
    return {name: proto for name, proto in found if isinstance(proto, bytes)}


# ---- a TPU: a plane of its own


def _read_device(plane: Plane) -> ProfiledDevice:
    stats = plane.stats(plane.own_stats)
    lines = {read_name(line): line for line in plane.lines}
    operations = {key: _read_operation(found) for key, found in plane.events.items()}
    runs = sorted(
        (raw for raw in read_line_events(lines.get(RUNS, b"")) if raw.metadata_id in plane.events),
        key=attrgetter("begin_ps"),
    )
    of_runs, of_transfers = (
        _split_by_run(runs, _read_events(lines.get(name, b""), operations)) for name in (OPERATIONS, TRANSFERS)
    )
    return ProfiledDevice(
        name=plane.name,
        kind=str(stats.get("device_type_string", "")),
        chip_id=_read_chip_id(stats.get("core_details")),
        runs=tuple(
            DeviceRun(
                program=plane.events[raw.metadata_id].name,
                begin_ps=raw.begin_ps,
                duration_ps=raw.duration_ps,
                operations=tuple(operations_of_run),
                transfers=tuple(transfers),
            )
            for raw, operations_of_run, transfers in zip(runs, of_runs, of_transfers, strict=True)
        ),
        stats=tuple((name, str(stats[name])) for name in READ_BACK if name in stats),
    )


def _read_operation(found: EventMetadata) -> ProfiledOperation:
    line = _HLO_LINE.match(found.name)
    if line is not None:
        return ProfiledOperation(line[1], found.name)
    return ProfiledOperation((found.display_name or found.name).removeprefix("%"))


def _read_events(line: bytes, operations: Mapping[int, ProfiledOperation]) -> Iterator[ProfileEvent]:
    for raw in read_line_events(line):
        operation = operations.get(raw.metadata_id)
        if operation is not None:
            yield ProfileEvent(operation, raw.begin_ps, raw.duration_ps)


def _split_by_run(runs: Sequence[RawEvent], events: Iterable[ProfileEvent]) -> list[list[ProfileEvent]]:
    """The events of each run; those outside all runs are left out."""
    found: list[list[ProfileEvent]] = [[] for _ in runs]
    begins = [run.begin_ps for run in runs]
    for event in sorted(events, key=attrgetter("begin_ps")):  # what begins together stays in the order of the file
        index = bisect_right(begins, event.begin_ps) - 1
        if index >= 0 and event.begin_ps <= begins[index] + runs[index].duration_ps:
            found[index].append(event)
    return found


def _read_chip_id(core_details: object) -> int | None:
    """The number of the chip in a serialized `CoreDetails`."""
    if not isinstance(core_details, bytes):
        return None
    try:
        found = dict(read_fields(core_details)).get(_GLOBAL_CHIP_ID)
    except WireError:
        return None
    return found if isinstance(found, int) else None


# ---- CPU devices: events of one plane, on the lines of threads


def _read_cpu_devices(plane: Plane) -> Iterator[ProfiledDevice]:
    """The runs of each CPU device; its operations name the device and the run.

    Source: profiles written by JAX 0.10 and 0.12.
    """
    found: dict[tuple[int, object], list[tuple[str, ProfileEvent]]] = {}
    for line in plane.lines:
        for raw in read_line_events(line):
            stats = plane.stats(raw.stats) if raw.stats else {}
            name, ordinal = stats.get("hlo_op"), stats.get("device_ordinal")
            if isinstance(name, str) and isinstance(ordinal, int):
                program = "{}({})".format(*(str(stats.get(key, "")) for key in ("hlo_module", "program_id")))
                event = ProfileEvent(ProfiledOperation(name), raw.begin_ps, raw.duration_ps)
                found.setdefault((ordinal, stats.get("run_id")), []).append((program, event))
    for device in sorted({ordinal for ordinal, _ in found}):
        runs = [_make_cpu_run(events) for (ordinal, _), events in found.items() if ordinal == device]
        runs.sort(key=attrgetter("begin_ps"))
        yield ProfiledDevice(name=f"CPU device {device}", kind="CPU", chip_id=device, runs=tuple(runs))


def _make_cpu_run(found: Sequence[tuple[str, ProfileEvent]]) -> DeviceRun:
    events = sorted((event for _, event in found), key=lambda event: (event.begin_ps, -event.duration_ps))
    begin_ps, end_ps = events[0].begin_ps, max(event.end_ps for event in events)
    return DeviceRun(program=found[0][0], begin_ps=begin_ps, duration_ps=end_ps - begin_ps, operations=tuple(events))


# ---- the conversion of a `Profile` to the bytes of an `xplane.pb`, as XProf and hloscope read it

_STEPS, _LOOPS, _COUNTERS = "Steps", "Loops", "_counters_"
"""Source: XProf's xplane_schema.cc; XProf draws events on the last one as counters, by their stats."""
_NUMBER = re.compile(r"\((\d+)\)$")

_Field = tuple[int, int | float | str | bytes]


class _PlaneWriter:
    """A plane that is being written; the common parts of events and stats are stored once, in tables.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._fields: list[_Field] = [(NAME, name)]
        self._operations: dict[tuple[ProfiledOperation, str], int] = {}
        self._stats: dict[str, int] = {}

    def add_stats(self, stats: Stats) -> None:
        """Adds statistics of the plane itself."""
        self._fields += [(PLANE_STATS, self._stat(*stat)) for stat in stats]

    def add_line(self, name: str, events: Iterable[tuple[ProfileEvent, str]]) -> None:
        """Writes events, each with its program, on a separate line."""
        line: list[_Field] = [(LINE_ID, len(self._fields)), (NAME, name)]
        for (operation, begin_ps, duration_ps), program in events:
            number = self._operations.setdefault((operation, program), len(self._operations) + 1)
            found = ((EVENT_METADATA_ID, number), (EVENT_OFFSET_PS, begin_ps), (EVENT_DURATION_PS, duration_ps))
            line.append((LINE_EVENTS, encode_message(found)))
        self._fields.append((PLANE_LINES, encode_message(line)))

    def add_row(self, number: int, name: str, display_name: str, stats: Stats) -> None:
        """Writes a row of the table of events."""
        row: list[_Field] = [(METADATA_ID, number), (METADATA_NAME, name)]
        row += [(METADATA_DISPLAY_NAME, display_name)] if display_name else []
        row += [(METADATA_STATS, self._stat(*stat)) for stat in stats]
        self._add_entry(PLANE_EVENT_METADATA, number, row)

    def _add_entry(self, table: int, number: int, row: Iterable[_Field]) -> None:
        self._fields.append((table, encode_message([(MAP_KEY, number), (MAP_VALUE, encode_message(row))])))

    def written(self) -> bytes:
        """The plane with its tables."""
        for (operation, program), number in self._operations.items():
            of_program = _NUMBER.search(program)
            stats = operation.stats if of_program is None else (("program_id", int(of_program[1])), *operation.stats)
            name = operation.text or operation.name
            self.add_row(number, name, operation.name if of_program is not None else "", stats)
        for name, number in self._stats.items():
            self._add_entry(PLANE_STAT_METADATA, number, [(METADATA_ID, number), (METADATA_NAME, name)])
        return encode_message(self._fields)

    def _stat(self, name: str, value: int | float | str | bytes) -> bytes:
        number = self._stats.setdefault(name, len(self._stats) + 1)
        return encode_message([(STAT_METADATA_ID, number), (_KINDS[type(value)], value)])


_KINDS: Mapping[type, int] = {int: STAT_UINT64, float: STAT_DOUBLE, str: STAT_TEXT, bytes: STAT_BYTES}


def write_xspace(profile: Profile) -> bytes:
    """The bytes of the file."""
    planes = [*map(_write_device_plane, profile.devices), _write_metadata_plane(profile.protos)]
    if profile.stats:
        host = _PlaneWriter(HOST_CPU)
        host.add_stats(profile.stats)
        planes.append(host.written())
    return encode_message((PLANES, plane) for plane in planes)


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
