"""The contents of a profile: when programs and their operations ran on each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PREDICTED = "predicted"
"""What the runs that hloscope writes itself are called, and begin with: nothing in them was measured."""

_MICROSECOND_PS = 1e6


Stats = tuple[tuple[str, int | float | str | bytes], ...]
"""What viewers are told beside names and times, by the names that they look for; written, and not read back."""


class ProfiledOperation(NamedTuple):
    """What events are of.

    Attributes:
        name: The HLO instruction, without `%`.
        text: Its line of HLO as far as the profile has it, such as `%add = f32[8] add(...)`; empty where it has none.
        stats: What is said of it beside.
    """

    name: str
    text: str = ""
    stats: Stats = ()


class Event(NamedTuple):
    """One operation on a device, once.

    Attributes:
        operation: The operation.
        begin_ps: When it begins, in picoseconds.
        duration_ps: How long it takes.
    """

    operation: ProfiledOperation
    begin_ps: int
    duration_ps: int

    @property
    def end_ps(self) -> int:
        """When it ends."""
        return self.begin_ps + self.duration_ps

    @property
    def duration_us(self) -> float:
        """How long it takes."""
        return self.duration_ps / _MICROSECOND_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program on one device.

    Attributes:
        program: The program's name and number, such as `jit_step(1234)`.
        begin_ps: When it begins, in picoseconds.
        duration_ps: How long it takes, waiting for other devices included.
        operations: What the device did meanwhile, in the order in which it began; loops and branches around what is in
            them.
        transfers: What was on its way beside it, from its start to its done.
        loops: The loops around operations, where these stand alone.
    """

    program: str
    begin_ps: int
    duration_ps: int
    operations: tuple[Event, ...]
    transfers: tuple[Event, ...] = ()
    loops: tuple[Event, ...] = ()

    @property
    def duration_us(self) -> float:
        """How long it takes."""
        return self.duration_ps / _MICROSECOND_PS


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device and what ran on it.

    Attributes:
        name: As the profile has it, such as `/device:TPU:0`.
        kind: As the profile has it, such as `TPU v6 Lite` or `CPU`; empty where it does not say.
        chip_id: The number of its chip among all chips of the slice; None where the profile does not say.
        runs: In the order in which they began.
        stats: What is said of it beside.
    """

    name: str
    kind: str
    chip_id: int | None
    runs: tuple[Run, ...]
    stats: Stats = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What ran on the devices of one or several hosts.

    Attributes:
        name: The file or folder, as the user named it.
        devices: Those on which something ran.
        protos: The serialized `HloProto` of each program, by its name and number.
        notes: What was chosen on the way, one sentence each.
        stats: What is said of the host beside.
    """

    name: str
    devices: tuple[Device, ...]
    protos: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    stats: Stats = ()
