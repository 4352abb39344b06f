"""From a reshard, or from an operation whose operand is sharded, to the reason for a collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hloscope.analysis.model.reason import AskedBy, Axes, Reason, ReasonKind, Tensor
from hloscope.compiler.shardy_model import ShardyOp, ShardyValue, ValueSharding
from hloscope.shardy.graph import WRITTEN, axes_in, is_asked_for, whole_axis, wholes
from hloscope.shardy.names import is_gradient, name_in_jax, search_name
from hloscope.shardy.reshards import Reshard, dimensions_over, final_value, sharding_known, without
from hloscope.shardy.tensors import (
    Program,
    asker_of,
    askers,
    differentiated,
    frames_of,
    holders,
    operands_of,
    operation_name,
    operation_of,
    output_asker,
    spec_of,
    tensor_of,
)

_REGIONS = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation"})
_CUTS = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
_INDEXING = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.gather"})


def reason_of_reshard(program: Program, reshard: Reshard) -> Reason:
    """Why one array moves."""
    graph = program.graph
    if reshard.is_sum:
        partial = tensor_of(program, reshard.value, reshard.before, reshard.axes)
        result = final_value(graph, graph.value(reshard.op.results[0]))
        needed = _needed(program, reshard.axes, reshard.final, reshard.consumers, result)
        known = needed | _in_loop(program, reshard.value, reshard.loop)
        return _of_weight(
            program, reshard.producer, _sum_reason(program, reshard.producer, reshard.axes, partial, known)
        )
    if reshard.is_constraint:
        return _of_reshard(program, reshard, ReasonKind.CONSTRAINT, _constraint(reshard))
    if not reshard.consumers:
        outputs = _outputs(program, graph.value(reshard.op.results[0]), reshard.axes)
        maker = reshard.producer
        if not outputs and maker is not None and maker.rule is not None and maker.rule.need_replication:
            reason = _of_reshard(program, reshard, ReasonKind.NEEDS_WHOLE_DIMENSION, ())
            return replace(reason, consumer=operation_of(program, maker), result=reason.moved)
        kind = ReasonKind.REQUESTED_OUTPUT if outputs else ReasonKind.PARTITIONERS_CHOICE
        return _of_reshard(program, reshard, kind, outputs)
    asking, asked = _asked_behind(program, reshard)
    if asking is not None:
        reason = _of_reshard(program, reshard, ReasonKind.CONSTRAINT, asked)
        return replace(reason, consumer=operation_of(program, asking), operand=0)
    if asked:
        return _of_reshard(program, reshard, ReasonKind.REQUESTED_OUTPUT, asked)
    consumer, operand = reshard.consumers[0]
    if _cut_from(program, consumer, operand, reshard.axes)[0] is not consumer:
        taken = reason_at(program, consumer, operand, reshard.axes)
        if taken is not None:
            return taken
    kind, conflict = _need(program, consumer, operand, reshard.dimensions, reshard.axes)
    if kind in (ReasonKind.PARTITIONERS_CHOICE, ReasonKind.HALO):  # Shardy moves no array for its edges alone
        kind, conflict = ReasonKind.OPERAND_CONFLICT, _conflict(program, consumer, operand, reshard.axes)
    asked, letter = _asked_and_letter(program, conflict, reshard.axes)
    return _of_reshard(program, reshard, kind, asked, letter)


def _asked_behind(program: Program, reshard: Reshard) -> tuple[ShardyOp | None, tuple[AskedBy, ...]]:
    """The constraint that an array moves for, or else the outputs, behind operations that only rearrange it."""
    graph = program.graph
    first = reshard.consumers[0][0]
    if len(reshard.consumers) > 1 or first.kind == "stablehlo.reshape" or not graph.keeps_elements(first):
        return None, ()
    value = graph.value(first.results[0])
    while len(users := graph.users(value)) == 1 and graph.keeps_elements(users[0][0]):
        if is_asked_for(users[0][0]):
            return users[0][0], (asker_of(program, users[0][0], ",".join(reshard.axes)),)
        value = graph.value(users[0][0].results[0])
    return None, _outputs(program, value, reshard.axes) if all(user.kind == "func.return" for user, _ in users) else ()


def reason_at(program: Program, op: ShardyOp, number: int, axes: Axes) -> Reason | None:
    """Why an operand may have to move although Shardy moves it nowhere; None when these axes do not shard it.

    Args:
        program: The program.
        op: The operation.
        number: Which operand.
        axes: The axes that a collective at this operation runs over.
    """
    graph = program.graph
    op, number = _cut_from(program, op, number, axes)
    value = graph.unmoved(graph.value(op.operands[number]))
    dimensions = dimensions_over(value, axes)
    if not dimensions:
        return None
    kind, conflict = _need(program, op, number, dimensions, axes)
    if kind is ReasonKind.PARTIAL_SUM:
        return _sum_reason(program, op, axes, tensor_of(program, graph.value(op.results[0]), None, axes))
    asked, letter = _asked_and_letter(program, conflict, axes)
    return Reason(
        kind=kind,
        axes=axes,
        moved=tensor_of(program, value),
        dimensions=dimensions,
        producer=operation_of(program, graph.op(value)),
        consumer=operation_of(program, op),
        operand=number,
        operands=operands_of(program, op, unmoved=True),
        result=tensor_of(program, graph.value(op.results[0])) if op.results else None,
        held_by=holders(program, value, axes),
        asked_by=asked,
        conflicting=letter,
        **_in_loop(program, value, graph.loop(op)),
    )


def _of_weight(program: Program, maker: ShardyOp | None, reason: Reason) -> Reason:
    """The reason for a sum of a gradient's parts, with the argument whose gradient it is."""
    original = differentiated(program, maker)
    if original is None or not program.graph.is_of_argument(original):
        return reason
    root, _ = program.graph.root(original)
    held = root.sharding if root.shape == original.shape else program.graph.unmoved(original).sharding
    if not held:  # in a shard_map shapes are those of one device, and the argument is cut as it is outside
        held = root.sharding if len(root.shape) == len(original.shape) else sharding_known(original)
    return replace(reason, weight=tensor_of(program, original, held))


def with_written(program: Program, op: ShardyOp, reason: Reason) -> Reason:
    """The reason for a collective that the user wrote, with what it moves; of a transpose, by its original's name."""
    graph, producer = program.graph, reason.producer
    moved = tensor_of(program, graph.value(op.operands[0]))
    original = program.written.get(op.source[0]) if op.source and is_gradient(op.op_name) else None
    if original is None or producer is None:
        return replace(reason, moved=moved)
    forward = tensor_of(program, graph.value(original.operands[0]))
    name = name_in_jax(operation_name(graph, original))
    moved = replace(moved, name=f"gradient of {forward.name}", named=forward.named)
    return replace(reason, moved=moved, producer=replace(producer, name=name))


def reason_of_differentiation(program: Program, op: ShardyOp, axes: Axes) -> Reason | None:
    """Why differentiation put a sum into a `shard_map`: a gradient's parts, of what each device has alike.

    None for a collective that the user wrote, or for the transpose of one, whose line holds one of the forward pass.
    """
    graph = program.graph
    if not is_gradient(op.op_name) or not op.source or op.kind != "stablehlo.all_reduce":
        return None
    if op.source[0] in program.written:
        return None
    value = made = graph.value(op.operands[0])
    while (maker := graph.maker(made)) is not None and maker.kind in WRITTEN:
        made = graph.value(maker.operands[0])
    reason = _sum_reason(program, maker, axes, tensor_of(program, value, None, axes))
    reason = _of_weight(program, maker, replace(reason, wanted=None))
    # an unchecked psum transposes to a psum, whose line is not there where nothing reads the forward one
    return reason if reason.weight is not None or _is_checked(op) else replace(reason, certain=False)


def _is_checked(op: ShardyOp) -> bool:
    """Whether JAX knows of each value in a `shard_map` which devices have the same, and sums where that is lost."""
    return "_invariant" in (op.op_name or "").rpartition("/")[2]


def _in_loop(program: Program, moved: ShardyValue, loop: ShardyOp | None) -> dict[str, Any]:
    """Whether an array moves in a loop, and is the same in every iteration."""
    is_invariant = loop is not None and program.graph.is_invariant(moved, loop)
    return {"in_loop": loop is not None, "loop_invariant": is_invariant}


def _asked_and_letter(
    program: Program, conflict: _Conflict | None, axes: Axes
) -> tuple[tuple[AskedBy, ...], str | None]:
    """Who asks for what an operand has to fit, and the letter of the conflicting dimension."""
    return ((), None) if conflict is None else (askers(program, conflict[0], axes), conflict[1])


def kind_at(program: Program, op: ShardyOp, number: int, axes: Axes) -> ReasonKind | None:
    """The kind of `reason_at`."""
    op, number = _cut_from(program, op, number, axes)
    value = program.graph.unmoved(program.graph.value(op.operands[number]))
    dimensions = dimensions_over(value, axes)
    return _need(program, op, number, dimensions, axes)[0] if dimensions else None


def _cut_from(program: Program, op: ShardyOp, number: int, axes: Axes) -> tuple[ShardyOp, int]:
    """The slice that takes one element of a sharded dimension, in place of the reshape that drops what is left of it.

    Shardy leaves that element sharded, so that it is the reshape which asks for what the slice has taken.
    """
    value = program.graph.unmoved(program.graph.value(op.operands[number]))
    maker = program.graph.op(value)
    cut = dimensions_over(value, axes)
    drops = op.kind == "stablehlo.reshape" and all(value.shape[number] == 1 for number in cut)
    return (maker, 0) if drops and maker is not None and maker.kind in _CUTS else (op, number)


def _need(
    program: Program, op: ShardyOp, operand: int, dimensions: Sequence[int], axes: Axes
) -> tuple[ReasonKind, _Conflict | None]:
    """What makes an operation need an operand otherwise, and the array that it has to fit.

    Source: the factors of Shardy's sharding rules: those that must be replicated, those that need their neighbors,
    and those that other operands or results shard over the same axes.
    """
    rule = op.rule
    if op.kind in _REGIONS:
        return ReasonKind.OPERAND_CONFLICT, None
    if rule is None or operand >= len(rule.operands):
        return ReasonKind.NO_RULE, None
    factors = {factor for dimension in dimensions for factor in rule.operands[operand][dimension]}
    if factors & rule.need_replication:
        in_loop = op.kind in _INDEXING and program.graph.loop(op) is not None
        return ReasonKind.INDEXED_IN_LOOP if in_loop else ReasonKind.NEEDS_WHOLE_DIMENSION, None
    if factors & rule.permutation:
        return ReasonKind.HALO, (program.graph.value(op.results[0]), None)
    if op.kind == "stablehlo.reshape" and factors:
        kept = _keeps(program, op, factors, axes)
        return ReasonKind.PARTITIONERS_CHOICE if kept else ReasonKind.MERGED_DIMENSIONS, None
    if _sums(op, operand, dimensions):
        return ReasonKind.PARTIAL_SUM, None
    conflict = _conflict(program, op, operand, axes)
    return ReasonKind.OPERAND_CONFLICT if conflict else ReasonKind.PARTITIONERS_CHOICE, conflict


def _keeps(program: Program, op: ShardyOp, factors: set[int], axes: Axes) -> bool:
    """Whether the result of an operation is sharded over these axes along the same dimensions: nothing moves for it."""
    if op.rule is None or not op.results:
        return False
    result, mapping = program.graph.unmoved(program.graph.value(op.results[0])), op.rule.results[0]
    kept = {factor for axis in axes for factor in _factors_over(result, mapping, axis)}
    return factors <= kept


def _sums(op: ShardyOp, operand: int, dimensions: Sequence[int]) -> bool:
    """Whether an operation reduces several arrays together along these dimensions, as `argmax` does.

    Shardy puts together only the results that are used, and the partitioner all of them.
    """
    if op.rule is None or len(op.results) < 2:
        return False
    factors = {factor for number in dimensions for factor in op.rule.operands[operand][number]}
    return bool(factors) and factors <= op.rule.reduction


_Conflict = tuple[ShardyValue, str | None]
"""An array that another one has to fit, and the letter of the dimension that the same axes shard in it; None where they
shard the same dimension in another way."""


def _conflict(program: Program, op: ShardyOp, operand: int, axes: Axes) -> _Conflict | None:
    """Another array of an operation that these axes shard along another dimension, or else in another way."""
    rule = op.rule
    if rule is None or operand >= len(rule.operands):
        return None
    own = rule.operands[operand]
    moved = program.graph.unmoved(program.graph.value(op.operands[operand]))
    indices = (*op.results, *(index for number, index in enumerate(op.operands) if number != operand))
    mappings = (*rule.results, *(mapping for number, mapping in enumerate(rule.operands) if number != operand))
    others = [
        (program.graph.unmoved(program.graph.value(index)), mapping)
        for index, mapping in zip(indices, mappings, strict=False)
    ]
    cut = wholes(axes_in(sharding_known(moved)))
    mine = {axis: _factors_over(moved, own, axis) for axis in dict.fromkeys(map(whole_axis, axes)) if axis in cut}
    for value, mapping in others:
        for axis, factors in mine.items():
            for dimension in dimensions_over(value, (axis,)):
                if dimension < len(mapping) and not factors & {*mapping[dimension]}:
                    return value, tensor_of(program, value).letters[dimension]
    alike = (
        value
        for value, mapping in others
        for axis, factors in mine.items()
        if factors & _factors_over(value, mapping, axis)
    )
    return next(((value, None) for value in alike), None)


def _factors_over(value: ShardyValue, mapping: Sequence[tuple[int, ...]], axis: str) -> set[int]:
    """The factors of a sharding rule that an axis cuts in a value."""
    return {factor for dimension in dimensions_over(value, (axis,)) for factor in mapping[dimension]}


def _of_reshard(
    program: Program, reshard: Reshard, kind: ReasonKind, asked_by: tuple[AskedBy, ...], conflicting: str | None = None
) -> Reason:
    graph = program.graph
    consumer, operand = reshard.consumers[0] if reshard.consumers else (None, None)
    shown = consumer if kind is not ReasonKind.CONSTRAINT else None
    if kind is ReasonKind.CONSTRAINT and reshard.constraint is not None:
        consumer, operand = reshard.constraint, 0
    return Reason(
        kind=kind,
        axes=reshard.axes,
        moved=tensor_of(program, reshard.value, reshard.before),
        wanted=reshard.after,
        dimensions=reshard.dimensions,
        producer=operation_of(program, reshard.producer),
        consumer=operation_of(program, consumer),
        operand=operand,
        operands=() if shown is None else operands_of(program, shown),
        result=None if shown is None or not shown.results else tensor_of(program, graph.value(shown.results[0])),
        held_by=_other_than(asked_by, holders(program, reshard.value, reshard.axes)),
        asked_by=asked_by,
        conflicting=conflicting,
        **_in_loop(program, reshard.value, reshard.loop),
    )


def _other_than(asked_by: Iterable[AskedBy], held_by: Iterable[AskedBy]) -> tuple[AskedBy, ...]:
    """Who sharded an array, without those that ask for it otherwise: Shardy hands their axes backwards too."""
    asking = [(asker.by, asker.name, asker.sharding, asker.source) for asker in asked_by]
    return tuple(holder for holder in held_by if (holder.by, holder.name, holder.sharding, holder.source) not in asking)


def _needed(
    program: Program, axes: Axes, wanted: ValueSharding, users: Sequence[tuple[ShardyOp, int]], result: ShardyValue
) -> dict[str, Any]:
    """Who needs a sum over some axes, and how."""
    consumer, operand = users[0] if users else (None, None)
    while consumer is not None and consumer.kind == "stablehlo.convert":
        onward = program.graph.real_users(program.graph.value(consumer.results[0]))
        if len(onward) != 1 or not onward[0][0].source or onward[0][0].kind.endswith(".return"):
            break
        consumer, operand = onward[0]  # who needs it is not the one that only converts it
    return {
        "wanted": wanted,
        "consumer": operation_of(program, consumer),
        "operand": operand,
        "asked_by": _outputs(program, result, axes)
        or askers(program, result, (axis for axis in axes if axis in axes_in(wanted))),
    }


def _outputs(program: Program, value: ShardyValue, axes: Axes) -> tuple[AskedBy, ...]:
    """The outputs that an array is handed out as."""
    users, main = program.graph.real_users(value), program.graph.module.main
    numbers = [number for user, number in users if user.kind == "func.return" and user.parent == main]
    return tuple(filter(None, (output_asker(program, number, ",".join(axes)) for number in numbers)))


def _constraint(reshard: Reshard) -> tuple[AskedBy, ...]:
    """The constraint that asks for a reshard."""
    source = frames_of(reshard.constraint.source if reshard.constraint else reshard.op.source)
    axis = ",".join(reshard.axes)
    return (AskedBy(axis=axis, by="constraint", name=None, sharding=spec_of(reshard.after), source=source),)


def _sum_reason(
    program: Program,
    maker: ShardyOp | None,
    axes: Axes,
    partial: Tensor,
    known: Mapping[str, Any] = MappingProxyType({}),
    *,
    unmoved: bool = False,
) -> Reason:
    """The partial result of an operation that sums over a sharded dimension.

    Args:
        program: The program.
        maker: The operation; None when it is not known.
        axes: The axes over which the sum is to be finished.
        partial: Its result.
        known: What is known besides, by field of the reason, such as who needs the sum.
        unmoved: Whether its operands are those from before Shardy would move them for it.
    """
    graph, seen = program.graph, _seen(program, unmoved)
    summed, dimensions = _summed(program, maker, axes, seen)
    arrays = [array for array in map(seen, () if maker is None else maker.operands) if array.shape]
    operands = () if maker is None else operands_of(program, maker, unmoved=unmoved)
    if maker is not None and search_name(graph, maker) is not None:
        operands = operands[:1]  # the positions beside it are JAX's
    held_by = [asker for array in arrays if dimensions_over(array, axes) for asker in holders(program, array, axes)]
    unsaid = {"wanted": partial.sharding, "in_loop": maker is not None and graph.loop(maker) is not None}
    return Reason(
        kind=ReasonKind.PARTIAL_SUM,
        axes=axes,
        moved=partial,
        dimensions=dimensions,
        producer=operation_of(program, maker),
        operands=tuple(operand for operand in operands if operand.shape),
        result=partial,
        summed=summed,
        held_by=tuple(dict.fromkeys(held_by)),
        **(unsaid | {**known}),
    )


def sums_parts(program: Program, op: ShardyOp, axes: Axes) -> bool:
    """Whether an operation can be done part by part: these axes cut a contracted dimension of all operands.

    Shardy may bring the operands elsewhere first, because its result is wanted along these axes. The partitioner then
    multiplies what lies where it is, and adds up.
    """
    if op.kind == "stablehlo.scatter":  # into an array of zeros on each device, in whatever parts the updates lie
        return True
    if op.rule is None or len(op.operands) != 2 or not op.rule.reduction:
        return False
    cut = [
        {
            (factor, axis)
            for dimension, here in enumerate(sharding_known(_seen(program, True)(operand)))
            for factor in set(mapping[dimension]) & op.rule.reduction
            for axis in here
        }
        for operand, mapping in zip(op.operands, op.rule.operands, strict=True)
    ]
    return {*axes} <= {axis for _, axis in cut[0] & cut[1]}


def sum_of_parts(program: Program, op: ShardyOp, axes: Axes) -> Reason:
    """The partial sum of a contraction that `sums_parts`, with who needs it."""
    result = program.graph.value(op.results[0])
    wanted = sharding_known(result)
    partial = tensor_of(program, result, without(wanted, axes), axes)
    users = [user for user in program.graph.real_users(result) if not user[0].kind.endswith(".return")]
    needed = _needed(program, axes, wanted, users, result)
    return _of_weight(program, op, _sum_reason(program, op, axes, partial, needed, unmoved=True))


def _seen(program: Program, unmoved: bool) -> Callable[[int], ShardyValue]:
    """Values by their index, as an operation has them or as they were before they were moved for it."""
    graph = program.graph
    return (lambda index: graph.unmoved(graph.value(index))) if unmoved else graph.value


def _summed(
    program: Program, maker: ShardyOp | None, axes: Axes, seen: Callable[[int], ShardyValue]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Letters of the dimensions that an operation sums over and that these axes shard; their numbers in operand 0."""
    if maker is None or maker.rule is None:
        return (), ()
    letters: dict[int, str] = {}
    numbers: list[int] = []
    for position, (operand, mapping) in enumerate(zip(maker.operands, maker.rule.operands, strict=False)):
        value = seen(operand)
        shown = tensor_of(program, value).letters
        for number in dimensions_over(value, axes):
            for factor in set(mapping[number]) & maker.rule.reduction:
                if not letters.get(factor, "0").isalpha():
                    letters[factor] = shown[number]
                numbers += [number] if position == 0 else []
    return tuple(dict.fromkeys(letters.values())), tuple(numbers)
