"""The contents of a profile: when programs and their operations ran on each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PREDICTED = "predicted"
"""What the runs that hloscope writes itself are called, and begin with: nothing in them was measured."""

PREDICTED_BY, SLICE, PLACE = "predicted_by", "slice", "place"
"""Of such a run, what its devices' statistics say: which hloscope, for which slice, and where its partitions are."""
SAID = (PREDICTED_BY, SLICE, PLACE)
"""What is read back of what a device says of itself."""

_MICROSECOND_PS = 1e6


Stats = tuple[tuple[str, int | float | str | bytes], ...]
"""What viewers are told beside names and times, by the names that they look for.

Only `SAID` is read back.
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


class Event(NamedTuple):
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
class Run:
    """One run of a program on one device.

    Attributes:
        program: The program's name and number, such as `jit_step(1234)`.
        begin_ps: Begin, in picoseconds.
        duration_ps: Duration, in picoseconds, including waiting for other devices.
        operations: Operations during the run, by begin, with loops and branches before their contents.
        transfers: Asynchronous transfers during the run, each from its start to its done.
        loops: The loops around operations, where these stand alone.
        counters: What is counted meanwhile: events without duration, whose operations' stats have the new values.
    """

    program: str
    begin_ps: int
    duration_ps: int
    operations: tuple[Event, ...]
    transfers: tuple[Event, ...] = ()
    loops: tuple[Event, ...] = ()
    counters: tuple[Event, ...] = ()

    @property
    def duration_us(self) -> float:
        """Duration, in microseconds."""
        return self.duration_ps / _MICROSECOND_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
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
    runs: tuple[Run, ...]
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
    devices: tuple[Device, ...]
    protos: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    stats: Stats = ()

    @property
    def prediction(self) -> Mapping[str, str]:
        """What a profile that hloscope wrote itself says of its prediction, by the names of statistics; else empty."""
        said = {name: str(value) for name, value in self.devices[0].stats}
        return said if PREDICTED_BY in said else {}
