"""The conversion of `xplane.pb` files to a `Profile`, and the errors for files without one of a TPU."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from hloscope.errors import ProfileError
from hloscope.messages import TARGET, Command, Option, say
from hloscope.profiles import xplane
from hloscope.profiles.model import (
    PREDICTED,
    READ_BACK,
    DeviceRun,
    Profile,
    ProfiledDevice,
    ProfiledOperation,
    ProfileEvent,
)
from hloscope.profiles.xplane import Plane
from hloscope.protobuf import WireError, read_fields

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
    if path.is_file():
        return [path], ()
    if not path.is_dir():
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
            for plane in map(xplane.read_plane, _select_planes(data, seen, of_cpu)):
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
    for plane in xplane.read_planes(data):
        name = xplane.read_plane_name(plane)
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
    lines = {xplane.read_line_name(line): line for line in plane.lines}
    operations = {key: _read_operation(found) for key, found in plane.events.items()}
    runs = [
        DeviceRun(
            program=plane.events[raw.metadata_id].name,
            begin_ps=raw.begin_ps,
            duration_ps=raw.duration_ps,
            operations=(),
        )
        for raw in xplane.read_line_events(lines.get(RUNS, b""))
        if raw.metadata_id in plane.events
    ]
    runs.sort(key=attrgetter("begin_ps"))
    during = {
        name: _split_by_run(runs, _read_events(lines.get(name, b""), operations)) for name in (OPERATIONS, TRANSFERS)
    }
    return ProfiledDevice(
        name=plane.name,
        kind=str(stats.get("device_type_string", "")),
        chip_id=_read_chip_id(stats.get("core_details")),
        runs=tuple(
            replace(run, operations=tuple(during[OPERATIONS][index]), transfers=tuple(during[TRANSFERS][index]))
            for index, run in enumerate(runs)
        ),
        stats=tuple((name, str(stats[name])) for name in READ_BACK if name in stats),
    )


def _read_operation(found: xplane.EventMetadata) -> ProfiledOperation:
    line = _HLO_LINE.match(found.name)
    if line is not None:
        return ProfiledOperation(line[1], found.name)
    return ProfiledOperation((found.display_name or found.name).removeprefix("%"))


def _read_events(line: bytes, operations: Mapping[int, ProfiledOperation]) -> Iterator[ProfileEvent]:
    for raw in xplane.read_line_events(line):
        operation = operations.get(raw.metadata_id)
        if operation is not None:
            yield ProfileEvent(operation, raw.begin_ps, raw.duration_ps)


def _split_by_run(runs: Sequence[DeviceRun], events: Iterable[ProfileEvent]) -> list[list[ProfileEvent]]:
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
        for raw in xplane.read_line_events(line):
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
