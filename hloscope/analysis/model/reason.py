"""Why a collective is there: what asked for it, which places of the user's code it goes back to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from hloscope.documents import Table
from hloscope.shown import Brief

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One frame of the user's Python stack: where an operation was written.

    Attributes:
        file: Path of the source file, as it was traced.
        line: 1-based line.
        function: Qualified name of the function; None when not known.
        column: 0-based column; None when not known.
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
    """What makes data move.

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
    """A whole array of the user's program, with its sharding.

    Attributes:
        name: The argument's or the variable's name; `result of dot_general` where it has none.
        named: Whether `name` is the user's own.
        element_type: Such as `bf16`.
        shape: Dimensions of the whole array.
        letters: A letter for each dimension, from an einsum or the argument's notation; its size where there is none.
        sharding: The axes of each dimension, major first; None when not known.
        partial_over: Axes over which each device holds a partial sum.
        argument: The argument that it is made from by moving elements around; None when there is no single one.
        source: Where it was made, innermost frame first; empty for arguments.
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
    """An operation of the user's program.

    Attributes:
        name: JAX's name of it, such as `dot_general`.
        op_name: XLA's `op_name`; None where there is none.
        source: Where it was written, innermost frame first.
    """

    name: str
    op_name: str | None
    source: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBy:
    """Who put an axis on an array.

    Attributes:
        axis: The mesh axis.
        by: `argument`, `output`, `constraint`, `shard_map`, or `unknown`.
        name: The argument's or the output's name; None for a constraint.
        sharding: What was asked for, such as `P('X', None)`; None when not known.
        source: Where it was asked for, for a constraint or a shard_map.
    """

    axis: str
    by: str
    name: str | None
    sharding: str | None = None
    source: Stack = ()


_Tensor = Annotated[Tensor, Table("tensors", "The arrays of the user's program that reasons are about.")]
_Operation = Annotated[Operation, Table("operations", "The operations of the user's program that reasons are about.")]
_AskedBy = Annotated[AskedBy, Table("askers", "Who put axes on arrays.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reason(Brief):
    """Why a collective is there.

    Attributes:
        kind: What makes data move.
        certain: False when the link from the compiled collective to this operation is inferred.
        axes: The mesh axes that data moves over.
        moved: The array as it was; None when not known.
        wanted: The sharding that it had to get, by dimension; None when not known.
        dimensions: The dimensions of `moved` that lose these axes; for a partial sum those summed, of `operands[0]`.
        producer: The operation that made it; None for an argument.
        consumer: The operation that needed it otherwise; None for an output.
        operand: Which operand of the consumer it is.
        operands: The operands of the operation that explains the move, the consumer or the producer of partial sums.
        result: Its result.
        summed: Letters of the dimensions that it sums over.
        held_by: Who put the axes on `moved`.
        asked_by: Who asked for what `moved` has to fit.
        conflicting: The letter of the dimension that the same axis shards in the other operands or the result.
        in_loop: Whether the operation runs in a loop.
        loop_invariant: Whether what moves is the same in every iteration.
        candidates: How many places of the program fit equally well; 1 when there is no doubt.
        rewritten_from: What the partitioner had put there, when a later pass made this collective from it.
        combined: How many transfers the compiler combined into this collective.
        of_part: Whether what moves is not `moved` itself but its edges, a part of it, or something made from it.
        realigns: The collective whose padded parts this one brings where they belong; None where it is its own.
        weight: Of a sum over the parts of a gradient: the argument whose gradient it is, which has none of these axes.
        missing: What is not known and how to get it; None when nothing is missing.
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
    missing: str | None = None

    def with_(self, **known: Any) -> Reason:
        """The same with other values of some attributes; itself where it has these already, as most do."""
        other = {name: value for name, value in known.items() if getattr(self, name) != value}
        return replace(self, **other) if other else self


SharedReason = Annotated[Reason, Table("reasons", "Why collectives are there; several may be for the same reason.")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rematerialization(Brief):
    """The partitioner's warning that it can only replicate an array to change its sharding.

    Attributes:
        op_name: The operation's `op_name`; None when the warning does not say.
        opcode: Its HLO opcode.
        shape: The array's shape on one device.
        before: The sharding it has, in the user's axes where it follows them, else in XLA's words.
        after: The sharding it needs, likewise.
        source: Where the operation was written, innermost frame first; empty when not known.
        text: The whole warning.
    """

    op_name: str | None
    opcode: str
    shape: str
    before: str
    after: str
    source: Stack
    text: str
