"""A program after Shardy's propagation, as plain data: every value with its sharding, every operation with its rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

EXPANDED_OPERATIONS = re.compile(r"\bstablehlo\.(fft|reduce_window)\b")
"""Operations that the TPU compiler expands into others before it partitions: Shardy is asked of both modules then."""

Axes = tuple[str, ...]
"""Mesh axes that cut one dimension, major first; part of an axis as `X:(1)2`."""

ValueSharding = tuple[Axes, ...]
"""The axes of every dimension of a value."""

Identity = tuple[int, ...]
"""The number of an operation, after those of the calls that lead to it."""

Identities = Mapping[str, tuple[Identity, ...]]
"""The operations that each instruction was made from, by the instruction's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """One frame of the user's Python stack, as MLIR locations keep it: lines count from 1, columns from 0."""

    file: str
    line: int
    column: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRule:
    """The relation of an operation's dimensions: `([i, k], [k, j])->([i, j])`.

    Attributes:
        operands: For each operand and dimension, the factors that make it, major first.
        results: The same for results.
        sizes: Size of each factor.
        reduction: Factors that the operation sums over.
        need_replication: Factors that must not be sharded.
        permutation: Factors along which neighbors are needed when they are sharded.
    """

    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    sizes: tuple[int, ...]
    reduction: frozenset[int] = frozenset()
    need_replication: frozenset[int] = frozenset()
    permutation: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyValue:
    """One value of the module.

    Attributes:
        index: Its position in `ShardyModule.values`.
        shape: Dimensions, of the whole array outside manual computations.
        element_type: MLIR's name, such as `bf16`.
        sharding: Axes by dimension; None if unknown.
        origins: The origin of each axis of the sharding in Shardy's words: `input: 0`, `output: 0`,
            `constraint_0`, `self`.
        owner: The operation that makes it, or that contains the block of this argument.
        number: Its index among the results or block arguments.
        is_argument: Whether it is a block argument.
        region: The owner's region, for a block argument.
        name: The user's name, for an argument of the program.
        whole_number: The number of a scalar integer constant.
        unreduced: Axes over which the devices hold parts of a sum that is not taken yet.
    """

    index: int
    shape: tuple[int, ...]
    element_type: str
    sharding: ValueSharding | None
    origins: Mapping[str, str]
    owner: int
    number: int
    is_argument: bool = False
    region: int = 0
    name: str | None = None
    whole_number: int | None = None
    unreduced: Axes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyOp:
    """One operation of the module.

    Attributes:
        index: Its position in `ShardyModule.ops`; operations come in text order, callers of regions before these.
        kind: MLIR's name, such as `stablehlo.dot_general` or `sdy.reshard`.
        operands: Indices of values.
        results: Indices of values.
        op_name: JAX's name, as XLA's `op_name` has it; relative to the caller in a private function.
        identity: Its number, after those of the calls that lead to it; empty without a number.
        source: The user's frames, innermost first.
        rule: Its sharding rule; None if Shardy has none.
        parent: The operation whose region contains it; None at the top.
        region: The index of that region.
        symbol: The name of a function, of the function called, or of the target of a custom call.
        origin_name: The name by which `ShardyValue.origins` refers to it, such as `constraint_0`.
        asked: The requested sharding of a constraint, which an explicit reshard before or after it may carry out.
        axes: The axes that `sdy.all_reduce` sums over, or that a manual computation makes manual.
        groups: The replica groups, or source-target pairs, of a collective that the user wrote.
    """

    index: int
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    op_name: str | None = None
    identity: Identity = ()
    source: tuple[CodePlace, ...] = ()
    rule: ShardingRule | None = None
    parent: int | None = None
    region: int = 0
    symbol: str | None = None
    origin_name: str | None = None
    asked: ValueSharding | None = None
    axes: Axes = ()
    groups: tuple[tuple[int, ...], ...] | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its own number, in the form used for the origins of compiled instructions; empty without a number."""
        return self.identity[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyModule:
    """A module after Shardy's propagation, with explicit operations wherever data must move.

    Attributes:
        mesh: Size of each axis by name, major first; that of the largest mesh when there are several.
        ops: All operations.
        values: All values.
        main: The operation that is the program's main function; None for an empty module.
        seen_by: The module's stage: `compiler` for the one that the compiler partitioned, `jax` for the lowered one.
    """

    mesh: Mapping[str, int]
    ops: tuple[ShardyOp, ...]
    values: tuple[ShardyValue, ...]
    main: int | None
    seen_by: str = "jax"
    users: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """For each value, the operations that use it, with the operand's number."""
