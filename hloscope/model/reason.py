"""Why a collective is there: its cause and the places in user code it traces back to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from hloscope.base.documents import Table
from hloscope.base.results import Brief

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One frame of the user's Python stack at an operation.

    Attributes:
        file: Path of the source file, as recorded while tracing.
        line: 1-based line.
        function: Qualified name of the function; None if unknown.
        column: 0-based column; None if unknown.
    """

    file: str
    line: int
    function: str | None = None
    column: int | None = None


Frame = Annotated[SourceFrame, Table("frames", "Lines of the user's code that the document refers to.")]
Stack = Annotated[
    tuple[Frame, ...],
    Table("stacks", "Ways of calls that lead to a line, each a list of numbers in `frames`, innermost first."),
]


class ReasonKind(StrEnum):
    """The cause of data movement.

    Source: Shardy's propagation and explicit resharding, whose operations and sharding rules these are read from.
    """

    AUTHORED = "authored"
    PARTIAL_SUM = "partial-sum"
    OPERAND_CONFLICT = "operand-conflict"
    NEEDS_WHOLE_DIMENSION = "needs-whole-dimension"
    INDEXED_IN_LOOP = "indexed-in-loop"
    HALO = "halo"
    CONSTRAINT = "constraint"
    REQUESTED_OUTPUT = "requested-output"
    MERGED_DIMENSIONS = "merged-dimensions"
    NO_RULE = "no-rule"
    PARTITIONERS_CHOICE = "partitioners-choice"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tensor(Brief):
    """A global array of the user's program, with its sharding.

    Attributes:
        name: Name of the argument or variable; `result of dot_general` if it has none.
        named: Whether `name` comes from the user.
        element_type: XLA's short type name, such as `bf16`.
        shape: Global shape.
        letters: A letter for each dimension, from an einsum or the argument's notation; the size of a dimension that
            has none.
        sharding: Mesh axes of each dimension, major first; None if unknown.
        partial_over: Axes over which each device holds a partial sum.
        argument: The argument whose elements it rearranges; None if there is no single one.
        source: Source frames of its producer, innermost first; empty for arguments.
    """

    name: str
    named: bool
    element_type: str
    shape: tuple[int, ...]
    letters: tuple[str, ...]
    sharding: tuple[Axes, ...] | None
    partial_over: Axes = ()
    argument: str | None = None
    source: Stack = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Operation(Brief):
    """An operation in the user's program.

    Attributes:
        name: JAX's name for it, such as `dot_general`.
        op_name: XLA's `op_name`; None if there is none.
        source: Source frames, innermost first.
    """

    name: str
    op_name: str | None
    source: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBy:
    """The request that shards an array over an axis.

    Attributes:
        axis: The mesh axis.
        by: What requests the sharding: `argument`, `output`, `constraint`, `shard_map` or `unknown`.
        name: Name of the argument or output; None for a constraint.
        sharding: The requested sharding, such as `P('X', None)`; None if unknown.
        source: Source frames of the request, for a constraint or a shard_map.
    """

    axis: str
    by: str
    name: str | None
    sharding: str | None = None
    source: Stack = ()


class DimensionRole(StrEnum):
    """The role of a dimension in a training step."""

    BATCH = "batch"
    DATA = "data"
    FEATURES = "features"


_ROLES = {DimensionRole.BATCH: "the batch", DimensionRole.FEATURES: "features"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A class of dimensions: those of the program's values that one mesh axis can shard together.

    Attributes:
        name: Its letter in einsums and in the notation of arguments, otherwise its size. Classes of one name, size and
            role count as one, as those of layers that are written out; where two of them compete, one has a mark.
        size: Its size.
        role: Its role in a training step: `batch` for the first dimension of arguments from outside, `data` for their
            others, `features` for those of weights; None for other programs.
    """

    name: str
    size: int
    role: DimensionRole | None = None

    @property
    def summary(self) -> str:
        """Its role, name and size: `the batch B (64)`."""
        role = _ROLES.get(self.role, "") if self.role is not None else ""
        name = self.name if self.name == str(self.size) else f"{self.name} ({self.size:,})"
        return f"{role} {name}" if role else f"dimension {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which dimension has a mesh axis at an operation, and which one does without.

    Attributes:
        axis: The mesh axis.
        winner: The dimension that it shards; None if it shards none.
        loser: The dimension that is made whole for this, or that the axis was given to elsewhere; None if no other
            dimension claims it.
        other_bytes: Bytes that one device would send at this operation per execution if the loser had the axis; None if
            unknown.
        operation: The number of the operation in the traced program, at which several collectives may be; None if
            unknown.
        parts: The number of transfers that the compiler combined to which it applies.
    """

    axis: str
    winner: Dimension | None = None
    loser: Dimension | None = None
    other_bytes: int | None = None
    operation: int | None = None
    parts: int = 1


_Tensor = Annotated[Tensor, Table("tensors", "The arrays of the user's program that reasons are about.")]
_Operation = Annotated[Operation, Table("operations", "The operations of the user's program that reasons are about.")]
_AskedBy = Annotated[AskedBy, Table("askers", "Who put axes on arrays.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reason(Brief):
    """Why a collective is there.

    Attributes:
        kind: The cause of data movement.
        certain: False if the link from the compiled collective to this operation is inferred.
        axes: Mesh axes that data moves over.
        moved: The array before the move; None if unknown.
        wanted: The sharding it is moved to, by dimension; None if unknown.
        dimensions: Dimensions of `moved` that lose these axes; for a partial sum, the summed dimensions of
            `operands[0]`.
        producer: The operation that produces `moved`; None for an argument.
        consumer: The operation that needs the other sharding; None for an output.
        operand: Index of `moved` among the consumer's operands.
        operands: Operands of the operation that explains the move: the consumer, or the producer of partial sums.
        result: Result of that operation.
        summed: Letters of the dimensions that the operation sums over.
        held_by: What shards `moved` over these axes.
        asked_by: What requests the sharding that `moved` has to match.
        conflicting: Letter of the dimension that is sharded over the same axis in the other operands or the result.
        in_loop: Whether the operation runs in a loop.
        loop_invariant: Whether the moved value is loop-invariant.
        candidates: Number of places in the program that match equally well; 1 if there is no ambiguity.
        rewritten_from: The partitioner's original operation, if a later pass rewrote it into this collective.
        combined: Number of transfers that the compiler combined into this collective.
        of_part: Whether only the edges of `moved`, a part of it, or a value computed from it is moved.
        realigns: The collective whose padded shards this one realigns; None if it realigns none.
        weight: For the sum of a gradient, the argument whose gradient it is; that argument is not sharded over these
            axes.
        claims: For each axis, which dimension has it there, and which one does without; empty if unknown.
        missing: What is unknown and how to find out; None if nothing is missing.
    """

    kind: ReasonKind
    certain: bool = True
    axes: Axes = ()
    moved: _Tensor | None = None
    wanted: tuple[Axes, ...] | None = None
    dimensions: tuple[int, ...] = ()
    producer: _Operation | None = None
    consumer: _Operation | None = None
    operand: int | None = None
    operands: tuple[_Tensor, ...] = ()
    result: _Tensor | None = None
    summed: tuple[str, ...] = ()
    held_by: tuple[_AskedBy, ...] = ()
    asked_by: tuple[_AskedBy, ...] = ()
    conflicting: str | None = None
    in_loop: bool = False
    loop_invariant: bool = False
    candidates: int = 1
    rewritten_from: str | None = None
    combined: int = 1
    of_part: bool = False
    weight: _Tensor | None = None
    realigns: str | None = None
    claims: tuple[Claim, ...] = ()
    missing: str | None = None


SharedReason = Annotated[Reason, Table("reasons", "Why collectives are there; several may be for the same reason.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rematerialization(Brief):
    """The partitioner's warning that it can only replicate an array to change its sharding.

    Attributes:
        op_name: The operation's `op_name`; None if the warning does not state it.
        opcode: Its HLO opcode.
        shape: The array's shape on one device.
        before: The sharding it has, over the user's axes if it can be expressed so, otherwise in XLA's notation.
        after: The sharding it needs, in the same notation.
        source: Source frames of the operation, innermost first; empty if unknown.
        text: The full warning.
    """

    op_name: str | None
    opcode: str
    shape: str
    before: str
    after: str
    source: Stack
    text: str
