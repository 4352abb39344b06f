"""The places where Shardy's shardings require data movement: a `Reshard` for each, with producer and consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import prod

from hloscope.compiler.shardy_model import Axes, ShardyOp, ShardyValue, ValueSharding
from hloscope.shardy.graph import (
    MOVES,
    RESHARDS,
    ShardyGraph,
    axes_in,
    dimensions_cut,
    is_asked_for,
    is_written,
    wholes,
)

_SIGNED = {f"i{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_UNSIGNED = {f"ui{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_OTHERS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_HLO = {**_SIGNED, **_UNSIGNED, **_OTHERS}
_FLOATS = ("f", "bf", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """One array that must move.

    Attributes:
        op: The operation that Shardy put in.
        value: The array before.
        before: Its sharding.
        after: Its sharding afterwards.
        final: Its sharding after further reshards of the same array, such as the free slice of a reduce-scatter.
        axes: The axes that data moves over.
        is_sum: Whether partial sums are added up.
        constraint: The user's own constraint that asks for it; None when there is none.
        producer: The operation that made the array; None for an argument.
        passed: The element-wise operations before, at which the partitioner may move the array as well.
        consumers: The operations that need it, with the operand's number; none for what only the program returns.
        is_returned: Whether it is handed out.
        loop: The innermost loop around it.
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
    def is_constraint(self) -> bool:
        """Whether the user's own constraint asks for it."""
        return self.constraint is not None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions that lose axes."""
        return tuple(
            number
            for number, (had, gets) in enumerate(zip(self.before, self.after, strict=True))
            if not self.is_sum and _given_up(had, gets)
        )


def reshards_of(graph: ShardyGraph) -> Iterator[Reshard]:
    """All of them in text order; one that only cuts further is free, and left out."""
    for op in graph.module.ops:
        if op.kind not in MOVES:
            continue
        value, result = graph.value(op.operands[0]), graph.value(op.results[0])
        before = sharding_known(value)
        after = sharding_known(result)
        is_sum = op.kind not in RESHARDS
        axes = op.axes if is_sum else _moved_axes(before, after)
        users = _users(graph, result, before)
        if not axes or not users or (not is_sum and _is_moved_back(graph, value, after)):
            continue
        yield Reshard(
            op=op,
            value=value,
            before=before,
            after=after,
            final=sharding_known(final_value(graph, result)),
            axes=axes,
            is_sum=is_sum,
            constraint=None if is_sum else _constraint(graph, op),
            producer=graph.maker(value),
            passed=tuple(graph.plain_makers(value)),
            consumers=tuple((user, number) for user, number in users if not user.kind.endswith(".return")),
            is_returned=any(user.kind == "func.return" and user.parent == graph.module.main for user, _ in users),
            loop=graph.loop(op),
        )


def _is_moved_back(graph: ShardyGraph, value: ShardyValue, after: ValueSharding) -> bool:
    """Whether a value has just been moved away from where it is to go: what it was before is still there."""
    op = graph.op(value)
    return op is not None and op.kind in RESHARDS and sharding_known(graph.value(op.operands[0])) == after


def _users(graph: ShardyGraph, result: ShardyValue, before: ValueSharding) -> tuple[tuple[ShardyOp, int], ...]:
    """Who uses a value that was moved, without those for whom it is moved back again, if there are others."""
    onward = (graph.value(user.results[0]) for user, _ in graph.users(result) if user.kind in MOVES)
    back = {user for value in onward if sharding_known(value) == before for user in graph.real_users(value)}
    users = graph.real_users(result)
    return tuple(user for user in users if user not in back) or users


def sharding_known(value: ShardyValue) -> ValueSharding:
    """A value's sharding; what Shardy leaves unsaid after it closes all shardings is replicated.

    What only one device has, such as the data of a host callback, has a sharding without dimensions: nothing cuts it.
    """
    said = value.sharding
    return said if said is not None and len(said) == len(value.shape) else ((),) * len(value.shape)


def local_shape(shape: tuple[int, ...], sharding: ValueSharding, mesh: dict[str, int]) -> tuple[int, ...]:
    """The shape on one device, rounded up."""
    return tuple(-(-size // axes_size(axes, mesh)) for size, axes in zip(shape, sharding, strict=True))


def local_shapes(mesh: dict[str, int]) -> Callable[[tuple[int, ...], ValueSharding], tuple[int, ...]]:
    """`local_shape` on a mesh, each answer found once: the layers of a model have the same few shapes."""
    return cache(partial(local_shape, mesh=mesh))


def axes_size(axes: Axes, mesh: dict[str, int]) -> int:
    """Devices along some axes together; of `X:(1)2` the part's own size."""
    return prod(int(axis.rpartition(")")[2]) if ":" in axis else mesh.get(axis, 1) for axis in axes)


def _moved_axes(before: ValueSharding, after: ValueSharding) -> Axes:
    """The axes whose cut of a dimension does not stay, in the order of the sharding they leave."""
    return tuple(dict.fromkeys(axis for had, gets in zip(before, after, strict=True) for axis in _given_up(had, gets)))


def _given_up(had: Axes, gets: Axes) -> Axes:
    """What follows the common beginning: to cut further is free, to cut in another order is not."""
    kept = 0
    while kept < min(len(had), len(gets)) and had[kept] == gets[kept]:
        kept += 1
    return had[kept:]


def _constraint(graph: ShardyGraph, op: ShardyOp) -> ShardyOp | None:
    """The user's constraint that a reshard is, or leads to."""
    result = graph.value(op.results[0])
    following = [user for user, _ in graph.users(result) if user.kind in RESHARDS]
    reached = [user for user in following if graph.value(user.results[0]).sharding == result.sharding]
    left = _left_open(graph, op)
    return next((constraint for constraint in (op, *reached, *left) if is_asked_for(constraint)), None)


def _left_open(graph: ShardyGraph, op: ShardyOp) -> tuple[ShardyOp, ...]:
    """The constraint before a reshard that carries it out: one that asks for what this leaves, or that keeps its own.

    `jax.sharding.reshard` is the second kind: it does not ask for the axes that are lost.
    """
    value = graph.value(op.operands[0])
    asked = graph.op(value)
    if asked is None or not is_written(asked) or asked.source != op.source:
        return ()
    if asked.asked == sharding_known(graph.value(op.results[0])):
        return (asked,)
    lost = _moved_axes(sharding_known(value), sharding_known(graph.value(op.results[0])))
    return () if any(axis in value.origins for axis in lost) else (asked,)


def final_value(graph: ShardyGraph, value: ShardyValue) -> ShardyValue:
    """A value after all that moves it further, and nothing else uses."""
    while len(users := graph.users(value)) == 1 and users[0][0].kind in MOVES:
        value = graph.value(users[0][0].results[0])
    return value


def without(sharding: ValueSharding, axes: Axes) -> ValueSharding:
    """A sharding with some axes given up, as a gather over them leaves it."""
    return tuple(tuple(axis for axis in here if axis not in axes) for here in sharding)


def dimensions_over(value: ShardyValue, axes: Axes) -> tuple[int, ...]:
    """The dimensions of a value that any of these axes shards."""
    return dimensions_cut(sharding_known(value), axes)


def is_reshuffle(reshard: Reshard) -> bool:
    """Whether axes go from one dimension to another, which an all-to-all does; else they are given up."""
    return not reshard.is_sum and wholes(reshard.axes) <= wholes(axes_in(reshard.after))


def hlo_type(mlir_type: str) -> str:
    """XLA's short name, such as `s32` for `i32` and `f8e4m3fn` for `f8E4M3FN`."""
    return _HLO.get(mlir_type, mlir_type.lower())


def is_float(name: str) -> bool:
    """Whether an element type, under either name, is a floating-point or complex one."""
    return name.startswith(_FLOATS)
