"""The contents of a profile: when programs and their operations ran on each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
