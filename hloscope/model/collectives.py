"""The collectives of a program, with lookups, sums and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from operator import add, attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, SupportsIndex, overload

from hloscope.base.calls import front_door, text, texts
from hloscope.base.documents import Table, TextValue
from hloscope.base.environment import find_cell, format_place
from hloscope.base.errors import Helpful
from hloscope.base.presenter import ask
from hloscope.base.results import Brief
from hloscope.base.units import format_bytes, format_time, pluralize, sum_known
from hloscope.model.reason import Frame, SharedReason, Stack
from hloscope.model.vocabulary import Bound, Kind, Link, Origin

if TYPE_CHECKING:
    from pandas import DataFrame

    from hloscope.base.canvas import Grouping


# ---- the place of a collective in the user's model: module, layers, pass, and the role of the moved array


class Phase(StrEnum):
    """The pass of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Including what is recomputed for it."""
    OPTIMIZER = "optimizer"
    """Everything after the gradient."""


class Role(StrEnum):
    """The role of the moved array in its module."""

    WEIGHTS = "weights"
    """An argument itself."""
    GRADIENT = "gradient"
    """The gradient of an argument."""
    ACTIVATIONS = "activations"
    """An operand or the result of a multiplication with an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A place in the user's model.

    Attributes:
        module: Path of the module, such as `layers.*.mlp.gate`, with `*` for layer numbers; None if there is no module
            name.
        layers: Layer numbers that the first `*` stands for, ascending; several if one collective serves several layers.
        phase: Pass of the training step; None if unknown or if the program computes no gradient.
        role: Role of the moved array; None if unknown or none of these.
        arguments: Names of the program's arguments that it concerns.
        line: Innermost line of user code outside helpers that many lines call.
    """

    module: str | None = None
    layers: tuple[int, ...] = ()
    phase: Phase | None = None
    role: Role | None = None
    arguments: tuple[str, ...] = ()
    line: Frame | None = None


SharedPart = Annotated[ModelPart, Table("parts", "Places in the user's model; several collectives may be at one.")]


# ---- one logical collective, its parts, and the mesh it runs over


class ArrayShape(TextValue):
    """The per-device shape of an array, created from its HLO text, such as `bf16[2,1024]`."""

    PATTERN = r"^(\w+\[(((<=)?\d+|\?)(,((<=)?\d+|\?))*)?\]|b\(.*\))$"
    __slots__ = ()

    @property
    def dtype(self) -> str:
        """XLA's short type name, such as `bf16`."""
        return self.text.removeprefix("b(").partition("[")[0]

    @property
    def dimensions(self) -> tuple[int, ...] | None:
        """Dimensions; None if one of them is dynamic."""
        return _parse_dimensions(self.text)


def make_shapes(*shapes: object) -> tuple[ArrayShape, ...]:
    """Creates shapes from objects that print as HLO shapes."""
    return tuple(_make_shape(str(shape)) for shape in shapes)


def list_dimensions(shapes: Iterable[ArrayShape]) -> tuple[tuple[int, ...], ...]:
    """The dimensions of all shapes without dynamic dimensions."""
    return tuple(shape.dimensions for shape in shapes if shape.dimensions is not None)


@lru_cache(maxsize=1024)
def _parse_dimensions(text: str) -> tuple[int, ...] | None:
    sizes = text.rpartition("]")[0].partition("[")[2]
    if "<" in sizes or "?" in sizes:
        return None
    return tuple(int(size) for size in sizes.split(",") if size)


_make_shape = lru_cache(maxsize=1024)(ArrayShape)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedValue:
    """The producer of a moved array, traced through copies, conversions and loops that carry it unchanged.

    Attributes:
        computation: The HLO computation of the producer.
        instruction: The HLO instruction that produces the array, without `%`.
        element: Position in the instruction's result, as indices into nested tuples; empty for the whole result.
        slices: Slices taken of the array, in order, each as bounds in HLO syntax; None for a slice at a dynamic offset,
            which may differ each time.
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
    """One transfer of a collective across slices; its fields mean the same as those of the collective.

    Attributes:
        kind: Kind of this part.
        name: The HLO instruction that starts it, without `%`.
        line: 1-based line in the HLO text.
        axes: Mesh axes it runs over.
        groups: Groups of participants, by the ids in the text.
        group_size: Number of devices in a group.
        link: The network it crosses, one of the two.
        payload_bytes: Bytes of the larger of operand and result on one device, per execution.
        wire_bytes: Bytes that one device must send, per execution.
        executions: Executions per step.
        asynchronous: Whether the text has it as a start and a done instruction.
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
    """A shift: every device sends to the one a fixed distance away along a mesh axis or a product of axes.

    Attributes:
        axes: The axis or sub-axis; several, major first, for a product of axes.
        size: Number of devices along them.
        distance: Positions from source to target; negative towards position 0. On a ring, the shorter way round;
            positive if both ways are equally long.
        ring: Whether the shift wraps around, so that each device that sends also receives.
    """

    axes: tuple[str, ...]
    size: int
    distance: int
    ring: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutePattern:
    """A permute that is a uniform shift.

    Attributes:
        shifts: The shift along each crossed axis, major first.
        ring: Whether each device that sends also receives.
    """

    shifts: tuple[AxisShift, ...]
    ring: bool


SharedPattern = Annotated[PermutePattern, Table("permute_patterns", "How permutes shift along axes.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Collective(Helpful):
    """One logical collective: a place in the program that starts a transfer.

    Attributes:
        kind: Kind of collective.
        name: The HLO instruction that starts it, without `%`.
        computation: The HLO computation that contains it.
        line: 1-based line in the HLO text.
        axes: Mesh axes it runs over, major first, sub-axes as `X:(1)2`; None if the groups match no axes or there is no
            mesh.
        axes_guessed: Whether the axes rest on a guess of which part of the mesh each of several slices holds.
        groups: Groups of partition ids (for a permute, its source-target pairs) from the text. Within a slice's
            program, the ids of that slice. Between slices, partition ids of the whole program, or device ids if the
            partitions are unknown.
        group_size: Number of devices in a group, in the largest group if they differ; None for a permute.
        link: The network it crosses.
        operand_shapes: Operand shapes per device, such as `bf16[2,1024]`.
        result_shapes: Result shapes per device.
        payload_bytes: Bytes of the larger of operand and result on one device, per execution (all-gather: result;
            others: operand), without tile padding. For an all-reduce on TPU, in the type of its reducer, which may be
            wider than both.
        wire_bytes: Bytes that one device must send per execution on an ideal ring. All-gather: (n-1)/n of the result;
            reduce-scatter and all-to-all: (n-1)/n of the operand; all-reduce: 2(n-1)/n of the operand; permute: the
            operand for each target of one source; broadcast: the operand.
        executions: Executions per step.
        executions_bound: Whether `executions` is exact or a bound.
        bytes_bound: Whether `payload_bytes` and `wire_bytes` are exact or bounds: upper bounds if sizes are dynamic
            (ragged all-to-all, bounded dimensions) or if it is unclear which of two element types moves.
        payload_bytes_at_least: Lower bound of the payload bytes; equal to `payload_bytes` if that is exact.
        wire_bytes_at_least: Lower bound of the wire bytes.
        padded_bytes: Bytes of the payload in memory, with tile padding; None if the text has no layout.
        permute: Distance and axes of a permute's shift; None if the shift is not uniform, and for other kinds.
        result_slices: Shapes of the slices, at device-dependent offsets, if only these are read from an all-reduce's
            result; empty if more of it is read.
        undone_by: For an all-gather from which each device reads back only the shard that it contributed, the HLO
            instruction that slices it out; None for all others, and if unknown.
        moved_values: The producer of each moved array. Two collectives with equal producers move the same values,
            unless one of them is a slice at a dynamic offset.
        moves_zeros: Whether everything it moves is known to be zeros.
        loop_invariant: Whether it moves the same values in every iteration of the innermost enclosing loop; None
            outside loops and if unknown.
        narrow_type: The narrower element type that all operands were converted from, or that all users convert the
            result to, including conversions that the compiler has made part of the collective; None if there is none.
        parts: The parts of an all-reduce across slices, in execution order; empty for all others.
        loops: Names of the enclosing `while` instructions, outermost first.
        loop_trips: Trip count of each of these loops; None for one that is unknown.
        reduction: Opcode of the reducer, such as `add` or `maximum`; None if the collective does not reduce, and for a
            reducer with more than one operation.
        origin: Who inserted it.
        asynchronous: Whether the text has it as a start and a done instruction.
        time_us: Predicted time per execution, in microseconds; None if not priced.
        exposed_us: The exposed part of `time_us`, which does not overlap with computation; None if not priced.
        time_error: Relative error of `time_us`; None if not priced.
        overlap: The matmul it could overlap with; None if it is hardly exposed, or if no priced matmul is nearby.
        op_name: XLA's `op_name`, such as `jit(f)/dot_general`.
        source: Source frames, innermost first; empty if unknown.
        source_of: The instruction whose source frames these are; None if they are the collective's own.
        part: Place in the user's model; None if not requested.
        why: Why it is there, in terms of the user's program; None if not requested.
        reason: The evidence for `why`; None if not requested.
        tried: The most helpful change that `hloscope explain` has tried against it, with the step before and after;
            None if unknown.
        payload_bytes_per_step: Payload bytes per step: `payload_bytes` x `executions`.
        wire_bytes_per_step: Bytes that one device sends per step: `wire_bytes` x `executions`.
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
        parts += [f"{find_cell(frame.file) or PurePath(frame.file).name}:{frame.line}" for frame in self.source[:1]]
        return f"<{', '.join(parts)}>"


_SETTERS = {each.name: getattr(Collective, each.name).__set__ for each in fields(Collective)}
_read_fields = attrgetter(*_SETTERS)


def change_collective(old: Collective, **values: object) -> Collective:
    """The collective with other values of some fields; `dataclasses.replace` takes twice as long."""
    new = object.__new__(Collective)
    for setter, value in zip(_SETTERS.values(), _read_fields(old), strict=True):
        setter(new, value)
    for name, value in values.items():
        _SETTERS[name](new, value)
    new.__post_init__()
    return new


class Relation(StrEnum):
    """The relation of a matrix multiplication to a nearby collective."""

    INDEPENDENT = "independent"
    """Neither depends on the other, so a schedule could run both at once."""
    CONSUMER = "consumer"
    """It consumes the collective's result and could start on the shards that have arrived."""
    PRODUCER = "producer"
    """It produces the collective's operand, which could be sent chunk by chunk."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Overlap(Brief):
    """The longest matrix multiplication that a collective could overlap with.

    Attributes:
        name: Its HLO instruction, without `%`, in the collective's computation.
        relation: Its relation to the collective.
        time_us: Predicted time per execution, in microseconds.
        source: Source frames, innermost first; empty if unknown.
    """

    name: str
    relation: Relation
    time_us: float
    source: Stack = ()


def index_transfers(collectives: Iterable[Collective]) -> dict[str, tuple[Collective, Collective | CollectivePart]]:
    """The network transfers of these collectives: each collective itself and, across slices, its parts.

    Keys are `computation/name`, as in the intervals of a timeline.
    """
    found: dict[str, tuple[Collective, Collective | CollectivePart]] = {}
    for whole in collectives:
        found[f"{whole.computation}/{whole.name}"] = whole, whole
        for part in whole.parts:
            found[f"{whole.computation}/{part.name}"] = whole, part
    return found


def bytes_bound(collective: Collective) -> Bound:
    """The bound of a collective's bytes per step; unknown bytes make a lower bound."""
    if collective.wire_bytes is None or collective.payload_bytes is None:
        return collective.executions_bound + Bound.AT_LEAST
    return collective.executions_bound + collective.bytes_bound


_COLUMNS = (
    "kind",
    "name",
    "axes",
    "group_size",
    "link",
    "operand_shapes",
    "result_shapes",
    "payload_bytes",
    "wire_bytes",
    "bytes_bound",
    "executions",
    "executions_bound",
    "payload_bytes_per_step",
    "wire_bytes_per_step",
    "time_us",
    "exposed_us",
    "origin",
    "line",
    "why",
)
"""The columns of a table, by attribute of a collective; several values are joined into one text."""


class Collectives(tuple[Collective, ...], Helpful):
    """A tuple of collectives, most bytes first.

    Example:
        >>> found.collectives[0]          # number 1 in the report: the most bytes
        >>> found.collectives.where("all-gather", axis="fsdp").wire_bytes_per_step
        >>> found.collectives.by("module")

    Attributes:
        mesh_axes: Axes of the program's mesh, which selectors are checked against; None without a mesh.
    """

    mesh_axes: tuple[str, ...] | None

    def __new__(cls, members: Iterable[Collective] = (), *, mesh_axes: tuple[str, ...] | None = None) -> Collectives:
        """Creates a tuple of these collectives, for a program on a mesh with these axes."""
        made = super().__new__(cls, members)
        made.mesh_axes = mesh_axes
        return made

    @front_door
    def where(
        self,
        kind: str = "*",
        *,
        axis: str | Iterable[str] | None = None,
        source: str | None = None,
        module: str | None = None,
        link: str | None = None,
    ) -> Collectives:
        """Returns the collectives that match every filter, including those with unknown properties that might match.

        Example:
            >>> assert not (bad := found.collectives.where("all-gather", axis="fsdp")), bad
            >>> found.collectives.where(source="moe.py:40").wire_bytes_per_step

        Args:
            kind: Kind of collective, or a pattern such as `all-*`.
            axis: Mesh axes that it runs over, alone or among others; each may be a pattern.
            source: The end of a file's path, optionally with `:LINE`.
            module: A module of the user's model or a pattern, such as `layers.*.mlp`; includes its submodules.
            link: `ici` or `dcn`.

        Raises:
            NotationError: The kind or the axis does not exist, or another filter cannot be parsed.
        """
        axes = None if axis is None else texts("axis", axis, example='axis="X", or axis=("X", "Y")')
        if module is not None:
            text("module", module, example='module="layers.*.mlp"')
        found = self._only(ask("filter", self, kind, axes, source, link))
        return found if module is None else found._only(member for member in found if _is_in_module(module, member))

    @front_door
    def selected(self, selector: str) -> Collectives:
        """The collectives that a contract selector matches: `all-gather@fsdp`, `all-*@(X,Y) in "moe.py" over dcn`.

        Raises:
            NotationError: The selector cannot be parsed, or names an unknown kind or axis.
        """
        said = text("the selector", selector, example='found["all-gather@fsdp"]; found.collectives[0] is the first')
        return self._only(ask("select", self, said))

    def _only(self, members: Iterable[Collective]) -> Collectives:
        return Collectives(members, mesh_axes=self.mesh_axes)

    @front_door
    def by(self, what: Grouping) -> dict[str, Collectives]:
        """Groups the collectives by name, most expensive group first, like `report(group_by=…)`.

        Example:
            >>> {name: group.exposed_us_per_step for name, group in found.collectives.by("module").items()}

        Args:
            what: What to group by: `axis`, `kind`, `line` or `module`.

        Raises:
            NotationError: `what` is none of these.
        """
        return {group.name: self._only(group.members) for group in ask("groups", self, what)}

    @property
    def bound(self) -> Bound:
        """The bound of the bytes per step: exact, or `at least` if a loop has an unknown trip count."""
        return reduce(add, map(bytes_bound, self), Bound.EXACT)

    @property
    def payload_bytes_per_step(self) -> int | None:
        """Total payload bytes on one device, subject to `bound`; None if those of any collective are unknown."""
        return sum_known(member.payload_bytes_per_step for member in self)

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Total bytes that one device sends, subject to `bound`; None if those of any collective are unknown."""
        return sum_known(member.wire_bytes_per_step for member in self)

    @property
    def time_us_per_step(self) -> float | None:
        """Total predicted time in microseconds; None if any collective is not priced."""
        return _sum_per_step(self, "time_us")

    @property
    def exposed_us_per_step(self) -> float | None:
        """Total predicted exposed time in microseconds; None if any collective is not priced."""
        return _sum_per_step(self, "exposed_us")

    def to_dataframe(self) -> DataFrame:
        """Returns a pandas DataFrame with one row per collective: bytes per device and execution, time per execution.

        All columns are scalar; `hlo_line` is the line in the HLO text and `source` the line of user code.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        named = {name: "hlo_line" if name == "line" else name for name in _COLUMNS}
        rows = [
            {named[name]: _scalar(getattr(member, name)) for name in _COLUMNS} | _place_row(member) for member in self
        ]
        return pandas.DataFrame(rows, columns=[*named.values(), "module", "phase", "source"])

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Collective: ...
    @overload
    def __getitem__(self, index: slice, /) -> Collectives: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Collective | Collectives:
        found = super().__getitem__(index)
        return self._only(found) if isinstance(index, slice) else found  # type: ignore[arg-type, return-value]

    def __repr__(self) -> str:
        waits = "" if self.exposed_us_per_step is None else f", {format_time(self.exposed_us_per_step)} exposed"
        known = [sent for member in self if (sent := member.wire_bytes_per_step) is not None]
        sends = self.bound.marked(format_bytes(sum(known))) if known or not self else "unknown"
        return f"<{pluralize(len(self), 'collective')}, {sends} on the wire per step{waits if self else ''}>"

    def __str__(self) -> str:
        return "\n".join(map(repr, self)) or repr(self)


def _is_in_module(pattern: str, collective: Collective) -> bool:
    """Returns whether it is in a part of the model; an unknown part may be."""
    module = None if collective.part is None else collective.part.module
    return module is None or any(fnmatchcase(module, known) for known in (pattern, f"{pattern}.*"))


def _sum_per_step(members: Iterable[Collective], name: str) -> float | None:
    total = 0.0
    for member in members:
        each: float | None = getattr(member, name)
        if each is None:
            return None
        total += each * member.executions
    return total


def _scalar(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _place_row(member: Collective) -> dict[str, object]:
    """The place of a collective in the user's model and code."""
    frame, part = (member.source or (None,))[0], member.part
    return {
        "module": None if part is None else part.module,
        "phase": None if part is None or part.phase is None else str(part.phase),
        "source": None if frame is None else format_place(f"{frame.file}:{frame.line}"),
    }
