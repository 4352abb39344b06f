"""The places where Shardy's shardings require data movement: a `Reshard` for each, with producer and consumer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloscope.analysis.provenance import is_gradient
from hloscope.base.environment import is_library
from hloscope.model.capture import (
    Axes,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_cut_dimensions,
    find_dropped_axes,
    find_whole_axes,
    multiply_axis_sizes,
)
from hloscope.why.shardy_graph import MOVE_KINDS, RESHARD_KINDS, ShardyGraph, is_users_constraint, is_written

_SIGNED = {f"i{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_UNSIGNED = {f"ui{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_OTHERS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_HLO = {**_SIGNED, **_UNSIGNED, **_OTHERS}
_FLOATS = ("f", "bf", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """One array that must move.

    Attributes:
        op: The operation that Shardy inserted.
        value: The array before the move.
        before: Its sharding.
        after: Its sharding after the move.
        final: Its sharding after further reshards of the same array, such as the free slice of a reduce-scatter.
        axes: The axes that data moves over.
        is_sum: Whether partial sums are added.
        constraint: The user's own constraint that requests it; None if there is none.
        producer: The operation that produced the array; None for an argument.
        passed: The preceding element-wise operations, at which the partitioner may move the array instead.
        consumers: The operations that need it, with the operand's number; empty if the program only returns it.
        is_returned: Whether the program returns it.
        loop: The innermost enclosing loop.
    """

    op: ShardyOp
    value: ShardyValue
    before: ValueSharding
    after: ValueSharding
    final: ValueSharding
    axes: Axes
    is_sum: bool
    constraint: ShardyOp | None
    producer: ShardyOp | None
    passed: tuple[ShardyOp, ...]
    consumers: tuple[tuple[ShardyOp, int], ...]
    is_returned: bool
    loop: ShardyOp | None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions that lose axes."""
        return tuple(
            number
            for number, (had, gets) in enumerate(zip(self.before, self.after, strict=True))
            if not self.is_sum and find_dropped_axes(had, gets)
        )


def find_reshards(graph: ShardyGraph) -> Iterator[Reshard]:
    """All reshards in text order, except those that only cut further, which is free."""
    for op in graph.module.ops:
        if op.kind not in MOVE_KINDS:
            continue
        value, result = graph.value(op.operands[0]), graph.value(op.results[0])
        before = known_sharding(value)
        after = known_sharding(result)
        is_sum = op.kind not in RESHARD_KINDS
        axes = op.axes if is_sum else _find_moved_axes(before, after)
        users = _find_users(graph, result, before)
        earlier = graph.op(value)
        is_moved_back = (  # it was only just moved away from there, so the earlier value is still there
            earlier is not None
            and earlier.kind in RESHARD_KINDS
            and known_sharding(graph.value(earlier.operands[0])) == after
        )
        if not axes or not users or (not is_sum and is_moved_back):
            continue
        yield Reshard(
            op=op,
            value=value,
            before=before,
            after=after,
            final=known_sharding(find_final_value(graph, result)),
            axes=axes,
            is_sum=is_sum,
            constraint=None if is_sum else _find_users_constraint(graph, op),
            producer=graph.maker(value),
            passed=tuple(graph.plain_makers(value)),
            consumers=tuple((user, number) for user, number in users if not user.kind.endswith(".return")),
            is_returned=any(user.kind == "func.return" and user.parent == graph.module.main for user, _ in users),
            loop=graph.loop(op),
        )


def _find_users(graph: ShardyGraph, result: ShardyValue, before: ValueSharding) -> tuple[tuple[ShardyOp, int], ...]:
    """The users of a moved value, without those for which it is moved back, unless there are no others."""
    onward = (graph.value(user.results[0]) for user, _ in graph.users(result) if user.kind in MOVE_KINDS)
    back = {user for value in onward if known_sharding(value) == before for user in graph.real_users(value)}
    users = graph.real_users(result)
    return tuple(user for user in users if user not in back) or users


def known_sharding(value: ShardyValue) -> ValueSharding:
    """A value's sharding; if Shardy states none after it closes all shardings, the value is replicated.

    A value on a single device, such as the data of a host callback, has a sharding without dimensions: nothing cuts it.
    """
    said = value.sharding
    return said if said is not None and len(said) == len(value.shape) else ((),) * len(value.shape)


def local_shape(shape: tuple[int, ...], sharding: ValueSharding, mesh: Mapping[str, int]) -> tuple[int, ...]:
    """The shape on one device, rounded up."""
    return tuple(-(-size // multiply_axis_sizes(axes, mesh)) for size, axes in zip(shape, sharding, strict=True))


def _find_moved_axes(before: ValueSharding, after: ValueSharding) -> Axes:
    """The axes whose cut of a dimension is lost, in the order of the sharding before the move."""
    return tuple(
        dict.fromkeys(axis for had, gets in zip(before, after, strict=True) for axis in find_dropped_axes(had, gets))
    )


def _find_users_constraint(graph: ShardyGraph, op: ShardyOp) -> ShardyOp | None:
    """The user's constraint that a reshard is or leads to."""
    result = graph.value(op.results[0])
    following = [user for user, _ in graph.users(result) if user.kind in RESHARD_KINDS]
    reached = [user for user in following if graph.value(user.results[0]).sharding == result.sharding]
    left = _find_carried_out_constraints(graph, op)
    return next((constraint for constraint in (op, *reached, *left) if is_users_constraint(constraint)), None)


def _find_carried_out_constraints(graph: ShardyGraph, op: ShardyOp) -> tuple[ShardyOp, ...]:
    """The constraint before a reshard that carries it out: one that requests this sharding, or keeps its own.

    `jax.sharding.reshard` is the second kind: it does not request the axes that are lost.
    """
    value = graph.value(op.operands[0])
    asked = graph.op(value)
    if asked is None or not is_written(asked) or asked.source != op.source:
        return ()
    if asked.asked == known_sharding(graph.value(op.results[0])):
        return (asked,)
    lost = _find_moved_axes(known_sharding(value), known_sharding(graph.value(op.results[0])))
    return () if any(axis in value.origins for axis in lost) else (asked,)


def find_final_value(graph: ShardyGraph, value: ShardyValue) -> ShardyValue:
    """A value after all further moves, as long as nothing else uses it in between."""
    while len(users := graph.users(value)) == 1 and users[0][0].kind in MOVE_KINDS:
        value = graph.value(users[0][0].results[0])
    return value


def find_dimensions_over(value: ShardyValue, axes: Axes) -> tuple[int, ...]:
    """The dimensions of a value that any of these axes shards."""
    return find_cut_dimensions(known_sharding(value), axes)


def is_reshuffle(reshard: Reshard) -> bool:
    """Returns whether axes move to another dimension, as an all-to-all does; otherwise they are given up."""
    return not reshard.is_sum and find_whole_axes(reshard.axes) <= find_whole_axes(axes_in(reshard.after))


def hlo_type(mlir_type: str) -> str:
    """XLA's short name, such as `s32` for `i32` and `f8e4m3fn` for `f8E4M3FN`."""
    return _HLO.get(mlir_type, mlir_type.lower())


def is_float(name: str) -> bool:
    """Returns whether an element type, under either name, is a floating-point or complex one."""
    return name.startswith(_FLOATS)


# ---- the user's names for values other than arguments: the variables that the source assigns them to

RESULT_NAME = "Out"
"""The name of a value that a `return` returns, as in the scaling literature."""

_ANONYMOUS = ("<lambda>", "<genexpr>")
"""Functions whose values are not those that the enclosing statement assigns."""

_CONTAINERS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp, ast.Tuple)
_SEARCHES = {"gt": "argmax", "lt": "argmin"}
_WITH_POSITIONS = 2


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of one simple statement, the name that it assigns, `Out` for a return, and where the value begins."""

    first: int
    last: int
    name: str | None
    begins: tuple[int, int] | None = None


def find_assigned_name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    """The variable that holds a value: assigned by the statement that produces it, and used elsewhere.

    None if the source cannot be read, the statement does not assign a single array to a name, the value does not leave
    it, it belongs to the backward pass of the statement, or the name is that of an argument, which is another array;
    the program's return value is then its result. A value that the statement still converts or rearranges has the name
    as well.
    """
    op = graph.op(value)
    here = None if op is None else next((place for place in op.source if not is_library(place.file)), None)
    if op is None or here is None or is_gradient(op.op_name):
        return None
    statement = _find_statement(here.file, here.line)
    if statement is None or statement.name is None:
        return None
    users = [user for user, _ in graph.real_users(value)]
    if statement.name == RESULT_NAME or statement.name in graph.argument_names or here.function.endswith(_ANONYMOUS):
        returned = any(user.kind == "func.return" and user.parent == graph.module.main for user in users)
        return RESULT_NAME if returned else None
    # such as the argument of a call, or what a library computes on the way
    is_inner = here is not op.source[0] or (here.line, here.column) != statement.begins
    if any(_is_outside_statement(user, here.file, statement, is_inner=is_inner) for user in users):
        return statement.name
    onward = graph.value(users[0].results[0]) if len(users) == 1 and graph.keeps_elements(users[0]) else None
    return None if onward is None else find_assigned_name(graph, onward)


def find_search_name(graph: ShardyGraph, op: ShardyOp) -> str | None:
    """`argmax` or `argmin` for a reduction that also tracks each element's position; None for any other operation.

    Source: JAX lowers these two to a `stablehlo.reduce` of the array and an `iota` that first compares two elements.
    """
    if op.kind != "stablehlo.reduce" or len(op.results) != _WITH_POSITIONS:
        return None
    positions = graph.maker(graph.value(op.operands[1]))
    first = graph.module.ops[op.index + 1]
    if positions is None or positions.kind != "stablehlo.iota" or first.parent != op.index:
        return None
    return _SEARCHES.get((first.op_name or "").rpartition("/")[2].rstrip(":"))


def _is_outside_statement(user: ShardyOp, file: str, statement: Statement, *, is_inner: bool) -> bool:
    """Returns whether a user is outside of a statement, and for a value within it also outside of what that calls."""
    if user.kind.endswith(".return"):
        return True
    if not user.source:  # the compiler's own
        return False
    places = user.source if is_inner else user.source[:1]
    return not any(place.file == file and statement.first <= place.line <= statement.last for place in places)


@lru_cache(maxsize=4096)
def _find_statement(file: str, line: int) -> Statement | None:
    around = [statement for statement in _parse_statements(file) if statement.first <= line <= statement.last]
    return min(around, key=lambda statement: statement.last - statement.first, default=None)


@lru_cache(maxsize=64)
def _parse_statements(file: str) -> tuple[Statement, ...]:
    """The simple statements of a file; empty if it cannot be read or is not Python."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
    return tuple(
        Statement(node.lineno, node.end_lineno or node.lineno, _read_target_name(node), _find_begin(node))
        for node in ast.walk(tree)
        if isinstance(node, simple)
    )


def _find_begin(node: ast.stmt) -> tuple[int, int] | None:
    """The line and the byte of the line where the value of a statement begins."""
    value: ast.expr | None = getattr(node, "value", None)
    return None if value is None else (value.lineno, value.col_offset)


def _read_target_name(node: ast.stmt) -> str | None:
    if isinstance(getattr(node, "value", None), _CONTAINERS):
        return None
    if isinstance(node, ast.Return):
        return None if node.value is None else RESULT_NAME
    if isinstance(node, ast.Assign):
        return node.targets[0].id if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) else None
    target = getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def have_matching_ends(name: str, other: str) -> bool:
    """Returns whether op_names agree, or one is relative to a function in which the other is called."""
    short, long = sorted((name.rstrip(":"), other.rstrip(":")), key=len)
    return long == short or long.endswith(f"/{short}")
