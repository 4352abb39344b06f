"""One logical collective, its parts, and the mesh it runs over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from hloscope.analysis.model.reason import Reason, SourceFrame
from hloscope.analysis.vocabulary import Bound, Kind, Link, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The user's logical mesh.

    Attributes:
        axis_names: Axis names, major to minor.
        axis_sizes: Devices along each axis.
        axis_types: `auto`, `explicit` or `manual` for each axis; None when unknown (HLO text).
        partition_ids: The partition id at each mesh position in row-major order; None means 0, 1, 2, …
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...] | None = None
    partition_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise ValueError("a mesh needs one size for each axis name")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"mesh axis names repeat: {self.axis_names}")

    @property
    def device_count(self) -> int:
        """Devices in the mesh."""
        return prod(self.axis_sizes)


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
    groups: tuple[tuple[int, ...], ...]
    group_size: int | None
    link: Link
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    asynchronous: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
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
            nothing tells the partitions.
        group_size: Devices in a group; the largest one where groups differ; None for a permute.
        link: The network it crosses.
        operand_shapes: Per-device operand shapes, such as `bf16[2,1024]`.
        result_shapes: Per-device result shapes.
        payload_bytes: The larger side on one device per execution (all-gather: result; others: operand), without
            tile padding; of a TPU's all-reduce in the type of its reducer, which may be wider than operand and result.
        wire_bytes: Bytes that one device must send per execution on an ideal ring. All-gather (n-1)/n of the result;
            reduce-scatter and all-to-all (n-1)/n of the operand; all-reduce 2(n-1)/n of the operand; permute
            the operand for each target of one source; broadcast the operand.
        executions: Times it runs per step.
        executions_bound: How `executions` relates to the truth.
        bytes_bound: How `payload_bytes` and `wire_bytes` relate to the truth: at most where sizes are decided at run
            time (ragged all-to-all, bounded dimensions) or where two element types leave open what moves.
        payload_bytes_at_least: What the payload cannot be smaller than; the payload itself where it is exact.
        wire_bytes_at_least: What the wire bytes cannot be smaller than.
        padded_bytes: What the payload takes in memory with its tiles; None where the text gives no layout.
        permute: How far and along which axes a permute shifts; None where it is no uniform shift, and for all others.
        result_slices: Shapes of the slices, at offsets that only the device decides, that are all that is ever read
            of an all-reduce's result; empty where more of it is read.
        undone_by: For an all-gather of which each device only ever reads the part again that it has put in: the HLO
            instruction that takes it; None for all others, and where that cannot be told.
        moved_values: A name for each array that is moved: `computation::instruction` where it was made, behind copies,
            conversions and loops that carry it unchanged; ` slice` after it for a slice at an offset that is decided
            at run time. Two collectives with equal names, none of them such a slice, move the same values.
        moves_zeros: Whether all that it moves is known to be zeros.
        loop_invariant: Whether it moves the same values in every iteration of the innermost loop around it; None
            outside loops and where that cannot be told.
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
        overlap: What it could be hidden behind; None where it is hardly exposed, or no matmul is near or priced.
        op_name: XLA's `op_name`, such as `jit(f)/dot_general`.
        source: Source frames, innermost first; empty when not known.
        source_of: None when `source` is the collective's own, else the name of the instruction it was taken from.
        why: Why it is there, in the user's terms; None when nobody asked.
        reason: The evidence that `why` is made from; None when nobody asked.
    """

    kind: Kind
    name: str
    computation: str
    line: int
    axes: tuple[str, ...] | None
    groups: tuple[tuple[int, ...], ...]
    group_size: int | None
    link: Link
    operand_shapes: tuple[str, ...]
    result_shapes: tuple[str, ...]
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: Bound
    axes_guessed: bool = False
    bytes_bound: Bound = Bound.EXACT
    payload_bytes_at_least: int | None = None
    wire_bytes_at_least: int | None = None
    padded_bytes: int | None = None
    permute: PermutePattern | None = None
    result_slices: tuple[str, ...] = ()
    undone_by: str | None = None
    moved_values: tuple[str, ...] = ()
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
    overlap: Overlap | None = None
    op_name: str | None = None
    source: tuple[SourceFrame, ...] = ()
    source_of: str | None = None
    why: str | None = None
    reason: Reason | None = None

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Bytes one device sends per step: `wire_bytes` x `executions`."""
        return None if self.wire_bytes is None else self.wire_bytes * self.executions

    @property
    def payload_bytes_per_step(self) -> int | None:
        """`payload_bytes` x `executions`."""
        return None if self.payload_bytes is None else self.payload_bytes * self.executions


class Relation(StrEnum):
    """How a matrix multiplication stands to a collective beside it."""

    INDEPENDENT = "independent"
    """Neither needs the other: a schedule could run both at once."""
    CONSUMER = "consumer"
    """It uses what the collective brings, and could begin with the part that is there."""
    PRODUCER = "producer"
    """It makes what the collective takes away, which could leave part by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The longest matrix multiplication that a collective could run beside.

    Attributes:
        name: Its HLO instruction, without `%`, in the collective's own computation.
        relation: How it stands to the collective.
        time_us: Its predicted microseconds per execution.
        source: Its source frames, innermost first; empty when not known.
    """

    name: str
    relation: Relation
    time_us: float
    source: tuple[SourceFrame, ...] = ()


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
