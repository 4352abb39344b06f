"""From the bytes of `xplane.pb` files to a `Profile`, and what is said where they hold none of a TPU."""

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
from hloscope.profiles.model import PREDICTED, SAID, Device, Event, Profile, ProfiledOperation, Run
from hloscope.profiles.xplane import Plane
from hloscope.protobuf import WireError, fields

_TPU = re.compile(r"/device:TPU:\d+")
_GPU = "/device:GPU"
HOST_CPU = "/host:CPU"
METADATA = "/host:metadata"
RUNS, OPERATIONS, TRANSFERS = "XLA Modules", "XLA Ops", "Async XLA Ops"
_HLO_LINE = re.compile(r"%?([\w.\-]+) = ")
_FILES = "*.xplane.pb*"
_RUNS = ("plugins/profile", "profile", "")
"""Where the folders of runs lie in what `jax.profiler.start_trace` was given, and in folders within it."""

_HOW = "pass the folder that was passed to jax.profiler.start_trace or jax.profiler.trace"
_GLOBAL_CHIP_ID = 5
"""The field of `CoreDetails` that numbers chips; a profile of the second host of a v6e-8 has 4 to 7 there."""


def profile_files(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The files of the profile in a folder, one for each host, and what was chosen on the way.

    Args:
        path: One such file, the folder of a run, or one that `jax.profiler` was told to write to.

    Raises:
        ProfileError: There is none.
    """
    if path.is_file():
        return [path], ()
    if not path.is_dir():
        raise ProfileError(f"there is no profile {path}", fix=_HOW)
    own = sorted(path.glob(_FILES))
    if own:
        return own, ()
    for below in _RUNS:
        runs = sorted({file.parent for file in (path / below).glob(f"*/{_FILES}")}, key=_measured_last)
        if runs:
            note = f"of {len(runs)} profiles in {path}, the last one is used: {runs[-1].name}"
            return sorted(runs[-1].glob(_FILES)), (note,) if len(runs) > 1 else ()
    raise ProfileError(
        f"{path} contains no profile",
        why="there is no *.xplane.pb in it, nor in plugins/profile/* below it",
        fix=_HOW,
    )


def _measured_last(run: Path) -> tuple[bool, str]:
    """The order of runs, of which the last one is read: predictions come before all that was measured."""
    return not run.name.startswith(PREDICTED), run.name


def read_profile(name: str, files: Iterable[tuple[str, bytes]], *, of_cpu: bool = False) -> Profile:
    """What ran on the devices, by the files of all hosts.

    Args:
        name: The file or folder, as the user named it.
        files: The name and the unpacked bytes of each file.
        of_cpu: Whether what ran on CPU devices is wanted, rather than on TPUs.

    Raises:
        ProfileError: A file is cut off or no profile, or nothing ran on such a device.
    """
    devices: list[Device] = []
    protos: dict[str, bytes] = {}
    seen: list[str] = []
    for file, data in files:
        try:
            for plane in map(xplane.read_plane, _wanted(data, seen, of_cpu)):
                if plane.name == METADATA:
                    protos |= _protos(plane)
                else:
                    devices.extend(_cpu_devices(plane) if of_cpu else [_device(plane)])
        except WireError as error:
            raise ProfileError(
                f"{file} is not a complete profile",
                why=f"read as XSpace, it is invalid: {error}" if seen else f"it does not begin like an XSpace: {error}",
                fix="copy it again, or take the profile again and stop it properly",
            ) from None
    ran = [device for device in devices if device.runs]
    if not ran:
        raise _nothing_ran(name, seen, devices)
    return Profile(name=name, devices=tuple(ran), protos=protos)


def _wanted(data: bytes, seen: list[str], of_cpu: bool) -> Iterator[bytes]:
    """The planes that are read; the names of all are noted."""
    for plane in xplane.planes_of(data):
        name = xplane.plane_name(plane)
        seen.append(name)
        if name == METADATA or (name == HOST_CPU if of_cpu else _TPU.fullmatch(name)):
            yield plane


def _nothing_ran(name: str, seen: Sequence[str], devices: Sequence[Device]) -> ProfileError:
    """Why a profile holds nothing to compare with."""
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
    return ProfileError(f"{name} is empty", why="it has no device plane", fix=_HOW)


def _protos(plane: Plane) -> dict[str, bytes]:
    """The serialized `HloProto` of each program."""
    found = ((event.name, plane.stats(event.stats).get("hlo_proto")) for event in plane.events.values())
    return {name: proto for name, proto in found if isinstance(proto, bytes)}


# ---- a TPU: a plane of its own


def _device(plane: Plane) -> Device:
    stats = plane.stats(plane.own_stats)
    lines = {xplane.line_name(line): line for line in plane.lines}
    operations = {key: _operation(found) for key, found in plane.events.items()}
    runs = [
        Run(
            program=plane.events[raw.metadata_id].name,
            begin_ps=raw.begin_ps,
            duration_ps=raw.duration_ps,
            operations=(),
        )
        for raw in xplane.line_events(lines.get(RUNS, b""))
        if raw.metadata_id in plane.events
    ]
    runs.sort(key=attrgetter("begin_ps"))
    during = {name: _by_run(runs, _events(lines.get(name, b""), operations)) for name in (OPERATIONS, TRANSFERS)}
    return Device(
        name=plane.name,
        kind=str(stats.get("device_type_string", "")),
        chip_id=_chip_id(stats.get("core_details")),
        runs=tuple(
            replace(run, operations=tuple(during[OPERATIONS][index]), transfers=tuple(during[TRANSFERS][index]))
            for index, run in enumerate(runs)
        ),
        stats=tuple((name, str(stats[name])) for name in SAID if name in stats),
    )


def _operation(found: xplane.EventMetadata) -> ProfiledOperation:
    line = _HLO_LINE.match(found.name)
    if line is not None:
        return ProfiledOperation(line[1], found.name)
    return ProfiledOperation((found.display_name or found.name).removeprefix("%"))


def _events(line: bytes, operations: Mapping[int, ProfiledOperation]) -> Iterator[Event]:
    for raw in xplane.line_events(line):
        operation = operations.get(raw.metadata_id)
        if operation is not None:
            yield Event(operation, raw.begin_ps, raw.duration_ps)


def _by_run(runs: Sequence[Run], events: Iterable[Event]) -> list[list[Event]]:
    """The events of each run; those that no run holds are left out."""
    found: list[list[Event]] = [[] for _ in runs]
    begins = [run.begin_ps for run in runs]
    for event in sorted(events, key=attrgetter("begin_ps")):  # what begins together stays in the order of the file
        index = bisect_right(begins, event.begin_ps) - 1
        if index >= 0 and event.begin_ps <= begins[index] + runs[index].duration_ps:
            found[index].append(event)
    return found


def _chip_id(core_details: object) -> int | None:
    """The number of the chip in a serialized `CoreDetails`."""
    if not isinstance(core_details, bytes):
        return None
    try:
        found = dict(fields(core_details)).get(_GLOBAL_CHIP_ID)
    except WireError:
        return None
    return found if isinstance(found, int) else None


# ---- CPU devices: events of one plane, on the lines of threads


def _cpu_devices(plane: Plane) -> Iterator[Device]:
    """What each CPU device ran; its operations say the device and the run.

    Source: profiles that JAX 0.10 and 0.12 write.
    """
    found: dict[tuple[int, object], list[tuple[str, Event]]] = {}
    for line in plane.lines:
        for raw in xplane.line_events(line):
            stats = plane.stats(raw.stats) if raw.stats else {}
            name, ordinal = stats.get("hlo_op"), stats.get("device_ordinal")
            if isinstance(name, str) and isinstance(ordinal, int):
                program = "{}({})".format(*(str(stats.get(key, "")) for key in ("hlo_module", "program_id")))
                event = Event(ProfiledOperation(name), raw.begin_ps, raw.duration_ps)
                found.setdefault((ordinal, stats.get("run_id")), []).append((program, event))
    for device in sorted({ordinal for ordinal, _ in found}):
        runs = [_cpu_run(events) for (ordinal, _), events in found.items() if ordinal == device]
        runs.sort(key=attrgetter("begin_ps"))
        yield Device(name=f"CPU device {device}", kind="CPU", chip_id=device, runs=tuple(runs))


def _cpu_run(found: Sequence[tuple[str, Event]]) -> Run:
    events = sorted((event for _, event in found), key=lambda event: (event.begin_ps, -event.duration_ps))
    begin_ps, end_ps = events[0].begin_ps, max(event.end_ps for event in events)
    return Run(program=found[0][0], begin_ps=begin_ps, duration_ps=end_ps - begin_ps, operations=tuple(events))
