"""One logical collective, its parts, and the mesh it runs over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated

from hloscope.analysis.model.part import SharedPart
from hloscope.analysis.model.reason import SharedReason, Stack
from hloscope.analysis.vocabulary import Bound, Kind, Link, Origin
from hloscope.cells import cell_of
from hloscope.documents import Table, Text
from hloscope.errors import Helpful
from hloscope.shown import Brief
from hloscope.units import format_bytes, format_time


class ArrayShape(Text):
    """The shape of an array on one device, made from its HLO text, such as `bf16[2,1024]`."""

    PATTERN = r"^(\w+\[(((<=)?\d+|\?)(,((<=)?\d+|\?))*)?\]|b\(.*\))$"
    __slots__ = ()

    @property
    def dtype(self) -> str:
        """XLA's short type name, such as `bf16`."""
        return self.text.removeprefix("b(").partition("[")[0]

    @property
    def dimensions(self) -> tuple[int, ...] | None:
        """Its dimensions; None where one of them is decided at run time."""
        return _dimensions_of(self.text)


def shapes_of(*shapes: object) -> tuple[ArrayShape, ...]:
    """Shapes made from what prints as their HLO texts."""
    return tuple(_shape_of(str(shape)) for shape in shapes)


@lru_cache(maxsize=1024)
def _dimensions_of(text: str) -> tuple[int, ...] | None:
    sizes = text.rpartition("]")[0].partition("[")[2]
    if "<" in sizes or "?" in sizes:
        return None
    return tuple(int(size) for size in sizes.split(",") if size)


_shape_of = lru_cache(maxsize=1024)(ArrayShape)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedValue:
    """Where an array was made that is moved, behind copies, conversions and loops that carry it unchanged.

    Attributes:
        computation: The HLO computation it was made in.
        instruction: The HLO instruction that made it, without `%`.
        element: Which element of that one's result it is, as indices into nested tuples; empty for the whole result.
        slices: What is taken of it, slice by slice: the bounds as HLO has them; null for a slice at an offset that is
            decided at run time, which may be another one each time.
    """

    computation: str
    instruction: str
    element: tuple[int, ...] = ()
    slices: tuple[str | None, ...] = ()


SharedValue = Annotated[MovedValue, Table("values", "Arrays that are moved; several collectives may move one.")]

DeviceGroups = Annotated[
    tuple[tuple[int, ...], ...],
    Table(
        "device_groups", "Which devices exchange data: the groups, or a permute's source-target pairs, of collectives."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePart:
    """One of the transfers that a collective across slices is made of; the fields mean what they do there.

    Attributes:
        kind: What this part does.
        name: The HLO instruction that starts it, without `%`.
        line: 1-based line in the HLO text.
        axes: The mesh axes it runs over.
        groups: Who takes part, in the ids that the text has.
        group_size: Devices in a group.
        link: The network it crosses: one of the two.
        payload_bytes: Bytes of the larger side on one device per execution.
        wire_bytes: Bytes that one device must send per execution.
        executions: Times it runs per step.
        asynchronous: Whether it is printed as a start and a done.
    """

    kind: Kind
    name: str
    line: int
    axes: tuple[str, ...] | None
    groups: DeviceGroups
    group_size: int | None
    link: Link
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    asynchronous: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisShift:
    """Every device sends to the one a fixed distance away along a mesh axis, or along a product of axes.

    Attributes:
        axes: The axis or sub-axis; several, major first, where the devices are counted through all of them.
        size: Devices along them.
        distance: Positions from source to target; negative towards position 0. On a ring the shorter way round, and
            positive where both ways are equally long.
        ring: Whether what leaves at one end enters at the other, so that each device that sends also receives.
    """

    axes: tuple[str, ...]
    size: int
    distance: int
    ring: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutePattern:
    """A permute that is one uniform shift.

    Attributes:
        shifts: The shift along each axis that the data crosses, major first.
        ring: Whether each device that sends also receives.
    """

    shifts: tuple[AxisShift, ...]
    ring: bool


SharedPattern = Annotated[PermutePattern, Table("permute_patterns", "How permutes shift along axes.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Collective(Helpful):
    """One logical collective: a place in the program that starts a transfer.

    Attributes:
        kind: What it does.
        name: The HLO instruction that starts it, without `%`.
        computation: The HLO computation that holds it.
        line: 1-based line in the HLO text.
        axes: The mesh axes it runs over, major first, sub-axes as `X:(1)2`; None when the groups match no axes or
            there is no mesh.
        axes_guessed: Whether the axes rest on a guess of which part of the mesh each of several slices holds.
        groups: The groups of partition ids (for a permute its source-target pairs), as the text has them: in one
            slice's program those of the slice. Between slices, partition ids of the whole program, or device ids where
            nothing says the partitions.
        group_size: Devices in a group; the largest one where groups differ; None for a permute.
        link: The network it crosses.
        operand_shapes: Per-device operand shapes, such as `bf16[2,1024]`.
        result_shapes: Per-device result shapes.
        payload_bytes: Bytes of the larger side on one device per execution (all-gather: result; others: operand),
            without tile padding; of a TPU's all-reduce in the type of its reducer, which may be wider than both.
        wire_bytes: Bytes that one device must send per execution on an ideal ring. All-gather (n-1)/n of the result;
            reduce-scatter and all-to-all (n-1)/n of the operand; all-reduce 2(n-1)/n of the operand; permute
            the operand for each target of one source; broadcast the operand.
        executions: Times it runs per step.
        executions_bound: How `executions` relates to the truth.
        bytes_bound: How `payload_bytes` and `wire_bytes` relate to the truth: at most where sizes are decided at run
            time (ragged all-to-all, bounded dimensions) or where two element types leave open what moves.
        payload_bytes_at_least: Bytes that the payload cannot be smaller than; the payload itself where it is exact.
        wire_bytes_at_least: What the wire bytes cannot be smaller than.
        padded_bytes: Bytes that the payload takes in memory with its tiles; None where the text gives no layout.
        permute: How far and along which axes a permute shifts; None where the shift is not uniform, and for all others.
        result_slices: Shapes of the slices, at offsets that only the device decides, that are all that is ever read
            of an all-reduce's result; empty where more of it is read.
        undone_by: For an all-gather of which each device only ever reads the part again that it has put in: the HLO
            instruction that takes it; None for all others, and where that cannot be known.
        moved_values: Where each array was made that is moved; two collectives of which these are equal, none of them
            a slice at an offset that is decided at run time, move the same values.
        moves_zeros: Whether all that it moves is known to be zeros.
        loop_invariant: Whether it moves the same values in every iteration of the innermost loop around it; None
            outside loops and where that cannot be known.
        narrow_type: The narrower element type that all operands were converted from, or that all readers convert the
            result to, also where the compiler has made such a conversion part of the collective; None when there is
            none.
        parts: What an all-reduce across slices is made of, in the order in which it runs; empty for all others.
        loops: Names of the `while` instructions around it, outermost first.
        loop_trips: How often each of them runs each time it is reached; None for one that cannot be read.
        reduction: The opcode with which a reduction combines two elements, such as `add` or `maximum`; None for all
            others, and for a reducer that is more than one operation.
        origin: Who put it there.
        asynchronous: Whether it is printed as a start and a done.
        time_us: Predicted microseconds per execution; None when not priced.
        exposed_us: The part of it that nothing hides; None when not priced.
        time_error: How far `time_us` may be off, as a share of it; None when not priced.
        overlap: What it could be hidden behind; None where it is hardly exposed, or no matmul is near or priced.
        op_name: XLA's `op_name`, such as `jit(f)/dot_general`.
        source: Source frames, innermost first; empty when not known.
        source_of: None when `source` is the collective's own, else the name of the instruction it was taken from.
        part: Where in the user's model it is; None when nobody asked.
        why: Why it is there, in the user's terms; None when nobody asked.
        reason: The evidence that `why` is made from; None when nobody asked.
        tried: Of the changes that `hloscope explain` has tried against it, the one that helps most, and the step before
            and after; None where none is known.
        payload_bytes_per_step: Payload bytes per step: `payload_bytes` x `executions`.
        wire_bytes_per_step: Bytes one device sends per step: `wire_bytes` x `executions`.
    """

    kind: Kind
    name: str
    computation: str
    line: int
    axes: tuple[str, ...] | None
    groups: DeviceGroups
    group_size: int | None
    link: Link
    operand_shapes: tuple[ArrayShape, ...]
    result_shapes: tuple[ArrayShape, ...]
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: Bound
    axes_guessed: bool = False
    bytes_bound: Bound = Bound.EXACT
    payload_bytes_at_least: int | None = None
    wire_bytes_at_least: int | None = None
    padded_bytes: int | None = None
    permute: SharedPattern | None = None
    result_slices: tuple[ArrayShape, ...] = ()
    undone_by: str | None = None
    moved_values: tuple[SharedValue, ...] = ()
    moves_zeros: bool = False
    loop_invariant: bool | None = None
    narrow_type: str | None = None
    parts: tuple[CollectivePart, ...] = ()
    loops: tuple[str, ...] = ()
    loop_trips: tuple[int | None, ...] = ()
    reduction: str | None = None
    origin: Origin = Origin.UNKNOWN
    asynchronous: bool = False
    time_us: float | None = None
    exposed_us: float | None = None
    time_error: float | None = None
    overlap: Overlap | None = None
    op_name: str | None = None
    source: Stack = ()
    source_of: str | None = None
    part: SharedPart | None = None
    why: str | None = None
    reason: SharedReason | None = None
    tried: str | None = None
    payload_bytes_per_step: int | None = field(init=False, default=None)
    wire_bytes_per_step: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("payload_bytes", "wire_bytes"):
            count = getattr(self, name)
            object.__setattr__(self, f"{name}_per_step", None if count is None else count * self.executions)

    def __repr__(self) -> str:
        over = "over unknown axes" if self.axes is None else f"over {','.join(self.axes) or 'none'}"
        shape = " ".join(map(str, self.operand_shapes[:1])) + (" and more" if len(self.operand_shapes) > 1 else "")
        parts = [f"{self.kind} {self.name} {over} of {shape}", f"{format_bytes(self.wire_bytes)} x {self.executions}"]
        parts += [] if self.exposed_us is None else [f"{format_time(self.exposed_us)} exposed"]
        parts += [f"{cell_of(frame.file) or PurePath(frame.file).name}:{frame.line}" for frame in self.source[:1]]
        return f"<{', '.join(parts)}>"


class Relation(StrEnum):
    """How a matrix multiplication is related to a nearby collective."""

    INDEPENDENT = "independent"
    """Neither needs the other: a schedule could run both at once."""
    CONSUMER = "consumer"
    """It uses what the collective brings, and could begin with the part that is there."""
    PRODUCER = "producer"
    """It produces what the collective moves, which could be sent chunk by chunk."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Overlap(Brief):
    """The longest matrix multiplication that a collective could overlap with.

    Attributes:
        name: Its HLO instruction, without `%`, in the collective's own computation.
        relation: How it stands to the collective.
        time_us: Its predicted microseconds per execution.
        source: Its source frames, innermost first; empty when not known.
    """

    name: str
    relation: Relation
    time_us: float
    source: Stack = ()


def transfers_in(collectives: Iterable[Collective]) -> dict[str, tuple[Collective, Collective | CollectivePart]]:
    """What is on its way on the network, each with its collective: this itself and the parts of one across slices.

    By `computation/name`, which intervals of a timeline have.
    """
    found: dict[str, tuple[Collective, Collective | CollectivePart]] = {}
    for whole in collectives:
        found[f"{whole.computation}/{whole.name}"] = whole, whole
        for part in whole.parts:
            found[f"{whole.computation}/{part.name}"] = whole, part
    return found
