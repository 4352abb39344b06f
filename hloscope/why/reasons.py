"""The reason for a collective, from a reshard or from an operation whose operand is sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hloscope.analysis.provenance import find_jax_name, is_gradient
from hloscope.model.capture import (
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_whole_axes,
    remove_axes,
    render_spec,
    whole_axis,
)
from hloscope.model.reason import AskedBy, Axes, Reason, ReasonKind, Tensor
from hloscope.why.reshards import Reshard, find_dimensions_over, find_final_value, find_search_name, known_sharding
from hloscope.why.shardings import (
    UserProgram,
    find_differentiated,
    find_operation_name,
    make_operand_tensors,
    make_operation,
    make_tensor,
)
from hloscope.why.shardy_graph import COLLECTIVE_KINDS, ShardyGraph, is_users_constraint, is_written, to_frames

_REGIONS = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation"})
_CUTS = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
_INDEXING = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.gather"})


def explain_reshard(program: UserProgram, reshard: Reshard) -> Reason:
    """The reason why one array moves."""
    graph = program.graph
    if reshard.is_sum:
        partial = make_tensor(program, reshard.value, reshard.before, reshard.axes)
        needed = _describe_need(
            program, reshard.axes, reshard.final, reshard.consumers, graph.value(reshard.op.results[0])
        )
        known = needed | _describe_loop(program, reshard.value, reshard.loop)
        return _add_weight(
            program, reshard.producer, _explain_sum(program, reshard.producer, reshard.axes, partial, **known)
        )
    if reshard.constraint is not None:
        return _make_reshard_reason(program, reshard, ReasonKind.CONSTRAINT, _find_constraint_requests(reshard))
    if not reshard.consumers:
        outputs = _find_output_requests(program, graph.value(reshard.op.results[0]), reshard.axes)
        maker = reshard.producer
        if not outputs and maker is not None and maker.rule is not None and maker.rule.need_replication:
            reason = _make_reshard_reason(program, reshard, ReasonKind.NEEDS_WHOLE_DIMENSION, ())
            return replace(reason, consumer=make_operation(program, maker), result=reason.moved)
        kind = ReasonKind.REQUESTED_OUTPUT if outputs else ReasonKind.PARTITIONERS_CHOICE
        return _make_reshard_reason(program, reshard, kind, outputs)
    asking, asked = _find_requests_behind(program, reshard)
    if asking is not None:
        reason = _make_reshard_reason(program, reshard, ReasonKind.CONSTRAINT, asked)
        return replace(reason, consumer=make_operation(program, asking), operand=0)
    if asked:
        return _make_reshard_reason(program, reshard, ReasonKind.REQUESTED_OUTPUT, asked)
    consumer, operand = reshard.consumers[0]
    if _find_cutting_slice(program, consumer, operand, reshard.axes)[0] is not consumer:
        taken = explain_operand(program, consumer, operand, reshard.axes)
        if taken is not None:
            return taken
    kind, conflict = _find_need(program, consumer, operand, reshard.dimensions, reshard.axes)
    if kind in (ReasonKind.PARTITIONERS_CHOICE, ReasonKind.HALO):  # Shardy moves no array only for its edges
        kind, conflict = ReasonKind.OPERAND_CONFLICT, _find_conflict(program, consumer, operand, reshard.axes)
    asked, letter = _find_requests_and_letter(program, conflict, reshard.axes)
    return _make_reshard_reason(program, reshard, kind, asked, letter)


def _find_requests_behind(program: UserProgram, reshard: Reshard) -> tuple[ShardyOp | None, tuple[AskedBy, ...]]:
    """The constraint that an array moves for, otherwise the outputs, after operations that only rearrange it."""
    graph = program.graph
    first = reshard.consumers[0][0]
    if len(reshard.consumers) > 1 or first.kind == "stablehlo.reshape" or not graph.keeps_elements(first):
        return None, ()
    asking, value = _follow_to_constraint(graph, graph.value(first.results[0]))
    if asking is not None:
        return asking, (program.askers.make_asker(asking, ",".join(reshard.axes)),)
    is_returned = all(user.kind == "func.return" for user, _ in graph.users(value))
    return None, _find_output_requests(program, value, reshard.axes) if is_returned else ()


def _follow_to_constraint(graph: ShardyGraph, value: ShardyValue) -> tuple[ShardyOp | None, ShardyValue]:
    """The constraint that a value reaches with all of its elements, and the last value on the way there."""
    while len(users := graph.users(value)) == 1 and graph.keeps_elements(users[0][0]):
        if is_users_constraint(users[0][0]):
            return users[0][0], value
        value = graph.value(users[0][0].results[0])
    return None, value


def explain_operand(program: UserProgram, op: ShardyOp, number: int, axes: Axes) -> Reason | None:
    """The reason why an operand that Shardy does not move may have to; None if these axes do not shard it.

    Args:
        program: The program.
        op: The operation.
        number: The index of the operand.
        axes: The axes that a collective at this operation runs over.
    """
    graph = program.graph
    op, number = _find_cutting_slice(program, op, number, axes)
    value = graph.unmoved(graph.value(op.operands[number]))
    dimensions = find_dimensions_over(value, axes)
    if not dimensions:
        return None
    kind, conflict = _find_need(program, op, number, dimensions, axes)
    if kind is ReasonKind.PARTIAL_SUM:
        return _explain_sum(program, op, axes, make_tensor(program, graph.value(op.results[0]), None, axes))
    asked, letter = _find_requests_and_letter(program, conflict, axes)
    return Reason(
        kind=kind,
        axes=axes,
        moved=make_tensor(program, value),
        dimensions=dimensions,
        producer=make_operation(program, graph.op(value)),
        consumer=make_operation(program, op),
        operand=number,
        operands=make_operand_tensors(program, op, unmoved=True),
        result=make_tensor(program, graph.value(op.results[0])) if op.results else None,
        held_by=program.askers.find_holders(value, axes),
        asked_by=asked,
        conflicting=letter,
        claims=program.claims.find(op, number, axes) or program.claims.find_whole(op, number, axes),
        **_describe_loop(program, value, graph.loop(op)),
    )


def _add_weight(program: UserProgram, maker: ShardyOp | None, reason: Reason) -> Reason:
    """Adds to the reason for a sum of a gradient's parts the argument whose gradient it is."""
    original = find_differentiated(program, maker)
    if original is None or not program.graph.is_of_argument(original):
        return reason
    root, _ = program.graph.root(original)
    held = root.sharding if root.shape == original.shape else program.graph.unmoved(original).sharding
    if not held:  # inside shard_map, shapes are per device and the argument is cut as outside
        held = root.sharding if len(root.shape) == len(original.shape) else known_sharding(original)
    return replace(reason, weight=make_tensor(program, original, held))


def explain_written(program: UserProgram, op: ShardyOp, reason: Reason) -> Reason:
    """Adds the moved array to the reason for the user's own collective; a transpose goes by its original's name."""
    graph, producer = program.graph, reason.producer
    moved = make_tensor(program, graph.value(op.operands[0]))
    original = program.written.get(op.source[0]) if op.source and is_gradient(op.op_name) else None
    if original is None or producer is None:
        return replace(reason, moved=moved)
    forward = make_tensor(program, graph.value(original.operands[0]))
    name = find_jax_name(find_operation_name(graph, original))
    moved = replace(moved, name=f"gradient of {forward.name}", named=forward.named)
    return replace(reason, moved=moved, producer=replace(producer, name=name))


def explain_differentiation(program: UserProgram, op: ShardyOp, axes: Axes) -> Reason | None:
    """The reason why differentiation added a sum to a `shard_map`: it sums a gradient over devices that share a value.

    None for a collective that the user wrote, and for the transpose of one, whose line also has one in the forward
    pass.
    """
    graph = program.graph
    if not is_gradient(op.op_name) or not op.source or op.kind != "stablehlo.all_reduce":
        return None
    if op.source[0] in program.written:
        return None
    value = made = graph.value(op.operands[0])
    while (maker := graph.maker(made)) is not None and maker.kind in COLLECTIVE_KINDS:
        made = graph.value(maker.operands[0])
    reason = _explain_sum(program, maker, axes, make_tensor(program, value, None, axes))
    reason = _add_weight(program, maker, replace(reason, wanted=None))
    # JAX checks which devices share each value, and sums where that is lost; an unchecked psum transposes to a psum,
    # whose line is missing if nothing reads the forward one
    is_checked = "_invariant" in (op.op_name or "").rpartition("/")[2]
    return reason if reason.weight is not None or is_checked else replace(reason, certain=False)


def _describe_loop(program: UserProgram, moved: ShardyValue, loop: ShardyOp | None) -> dict[str, Any]:
    """The loop facts of a reason: whether an array moves in a loop, and whether it is loop-invariant."""
    is_invariant = loop is not None and program.graph.is_invariant(moved, loop)
    return {"in_loop": loop is not None, "loop_invariant": is_invariant}


def _find_requests_and_letter(
    program: UserProgram, conflict: _Conflict | None, axes: Axes
) -> tuple[tuple[AskedBy, ...], str | None]:
    """The requests for the array that an operand has to fit, and the letter of the conflicting dimension."""
    return ((), None) if conflict is None else (program.askers.find_askers(conflict[0], axes), conflict[1])


def find_operand_kind(program: UserProgram, op: ShardyOp, number: int, axes: Axes) -> ReasonKind | None:
    """The kind of the reason that `explain_operand` gives."""
    op, number = _find_cutting_slice(program, op, number, axes)
    value = program.graph.unmoved(program.graph.value(op.operands[number]))
    dimensions = find_dimensions_over(value, axes)
    return _find_need(program, op, number, dimensions, axes)[0] if dimensions else None


def _find_cutting_slice(program: UserProgram, op: ShardyOp, number: int, axes: Axes) -> tuple[ShardyOp, int]:
    """The slice that takes one element of a sharded dimension, instead of the reshape that then drops the dimension.

    Shardy leaves that element sharded, so that the reshape requests what the slice has taken.
    """
    value = program.graph.unmoved(program.graph.value(op.operands[number]))
    maker = program.graph.op(value)
    cut = find_dimensions_over(value, axes)
    drops = op.kind == "stablehlo.reshape" and all(value.shape[number] == 1 for number in cut)
    return (maker, 0) if drops and maker is not None and maker.kind in _CUTS else (op, number)


def _find_need(
    program: UserProgram, op: ShardyOp, operand: int, dimensions: Sequence[int], axes: Axes
) -> tuple[ReasonKind, _Conflict | None]:
    """The reason why an operation needs another sharding of an operand, and the array that it has to fit.

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
    conflict = _find_conflict(program, op, operand, axes)
    return ReasonKind.OPERAND_CONFLICT if conflict else ReasonKind.PARTITIONERS_CHOICE, conflict


def _keeps(program: UserProgram, op: ShardyOp, factors: set[int], axes: Axes) -> bool:
    """Returns whether an operation's result keeps these axes on the same dimensions, so that nothing moves."""
    if op.rule is None or not op.results:
        return False
    result, mapping = program.graph.unmoved(program.graph.value(op.results[0])), op.rule.results[0]
    kept = {factor for axis in axes for factor in _find_factors_over(result, mapping, axis)}
    return factors <= kept


def _sums(op: ShardyOp, operand: int, dimensions: Sequence[int]) -> bool:
    """Returns whether an operation reduces several arrays together along these dimensions, as `argmax` does.

    Shardy combines only the results that are used, the partitioner all of them.
    """
    if op.rule is None or len(op.results) < 2:
        return False
    factors = {factor for number in dimensions for factor in op.rule.operands[operand][number]}
    return bool(factors) and factors <= op.rule.reduction


_Conflict = tuple[ShardyValue, str | None]
"""An array that another one has to fit, and the letter of the dimension that the same axes shard in it; None if they
shard the same dimension in another way."""


def _find_conflict(program: UserProgram, op: ShardyOp, operand: int, axes: Axes) -> _Conflict | None:
    """An array of the operation that these axes shard along another dimension, or else in another way."""
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
    cut = find_whole_axes(axes_in(known_sharding(moved)))
    mine = {axis: _find_factors_over(moved, own, axis) for axis in dict.fromkeys(map(whole_axis, axes)) if axis in cut}
    for value, mapping in others:
        for axis, factors in mine.items():
            for dimension in find_dimensions_over(value, (axis,)):
                if dimension < len(mapping) and not factors & {*mapping[dimension]}:
                    return value, make_tensor(program, value).letters[dimension]
    alike = (
        value
        for value, mapping in others
        for axis, factors in mine.items()
        if factors & _find_factors_over(value, mapping, axis)
    )
    return next(((value, None) for value in alike), None)


def _find_factors_over(value: ShardyValue, mapping: Sequence[tuple[int, ...]], axis: str) -> set[int]:
    """The factors of a sharding rule that an axis cuts in a value."""
    return {factor for dimension in find_dimensions_over(value, (axis,)) for factor in mapping[dimension]}


def _make_reshard_reason(
    program: UserProgram,
    reshard: Reshard,
    kind: ReasonKind,
    asked_by: tuple[AskedBy, ...],
    conflicting: str | None = None,
) -> Reason:
    graph = program.graph
    consumer, operand = reshard.consumers[0] if reshard.consumers else (None, None)
    shown = consumer if kind is not ReasonKind.CONSTRAINT else None
    if kind is ReasonKind.CONSTRAINT and reshard.constraint is not None:
        consumer, operand = reshard.constraint, 0
    return Reason(
        kind=kind,
        axes=reshard.axes,
        moved=make_tensor(program, reshard.value, reshard.before),
        wanted=reshard.after,
        dimensions=reshard.dimensions,
        producer=make_operation(program, reshard.producer),
        consumer=make_operation(program, consumer),
        operand=operand,
        operands=() if shown is None else make_operand_tensors(program, shown),
        result=None if shown is None or not shown.results else make_tensor(program, graph.value(shown.results[0])),
        held_by=_exclude_holders(asked_by, program.askers.find_holders(reshard.value, reshard.axes)),
        asked_by=asked_by,
        conflicting=conflicting,
        claims=(() if shown is None else program.claims.find(shown, operand, reshard.axes))
        or program.claims.find_moved(reshard.value, reshard.before, reshard.after, reshard.axes),
        **_describe_loop(program, reshard.value, reshard.loop),
    )


def _exclude_holders(asked_by: Iterable[AskedBy], held_by: Iterable[AskedBy]) -> tuple[AskedBy, ...]:
    """The requests without those of the holders: Shardy also propagates their axes backwards."""
    asking = [(asker.by, asker.name, asker.sharding, asker.source) for asker in asked_by]
    return tuple(holder for holder in held_by if (holder.by, holder.name, holder.sharding, holder.source) not in asking)


def _describe_need(
    program: UserProgram, axes: Axes, wanted: ValueSharding, users: Sequence[tuple[ShardyOp, int]], result: ShardyValue
) -> dict[str, Any]:
    """The consumer of a sum over some axes, and the needed form."""
    asking, _ = _follow_to_constraint(program.graph, result)
    if asking is not None and is_written(asking) and not asking.leaves_open:
        asked = program.askers.make_asker(asking, ",".join(axes))
        by_constraint = {"consumer": make_operation(program, asking), "operand": 0, "asked_by": (asked,)}
        return {"wanted": wanted, **by_constraint}
    final = find_final_value(program.graph, result)
    consumer, operand = users[0] if users else (None, None)
    while consumer is not None and consumer.kind == "stablehlo.convert":
        onward = program.graph.real_users(program.graph.value(consumer.results[0]))
        if len(onward) != 1 or not onward[0][0].source or onward[0][0].kind.endswith(".return"):
            break
        consumer, operand = onward[0]  # the real consumer, not the operation that only converts it
    return {
        "wanted": wanted,
        "consumer": make_operation(program, consumer),
        "operand": operand,
        "asked_by": _find_output_requests(program, final, axes)
        or program.askers.find_askers(final, (axis for axis in axes if axis in axes_in(wanted))),
    }


def _find_output_requests(program: UserProgram, value: ShardyValue, axes: Axes) -> tuple[AskedBy, ...]:
    """The requests of the outputs that return an array."""
    users, main = program.graph.real_users(value), program.graph.module.main
    numbers = [number for user, number in users if user.kind == "func.return" and user.parent == main]
    return tuple(filter(None, (program.askers.find_output_asker(number, ",".join(axes)) for number in numbers)))


def _find_constraint_requests(reshard: Reshard) -> tuple[AskedBy, ...]:
    """The constraint that requests a reshard."""
    source = to_frames(reshard.constraint.source if reshard.constraint else reshard.op.source)
    axis = ",".join(reshard.axes)
    return (AskedBy(axis=axis, by="constraint", name=None, sharding=render_spec(reshard.after), source=source),)


def _explain_sum(
    program: UserProgram,
    maker: ShardyOp | None,
    axes: Axes,
    partial: Tensor,
    *,
    unmoved: bool = False,
    **known: Any,
) -> Reason:
    """The reason for a partial result of an operation that sums over a sharded dimension.

    Args:
        program: The program.
        maker: The operation; None if unknown.
        axes: The axes over which the sum must be completed.
        partial: Its result.
        unmoved: Whether to use its operands as they were before Shardy moved them for it.
        known: Further known fields of the reason, such as the consumer of the sum.
    """
    graph, seen = program.graph, _make_value_reader(program, unmoved)
    summed, dimensions = _find_summed(program, maker, axes, seen)
    arrays = [array for array in map(seen, () if maker is None else maker.operands) if array.shape]
    operands = () if maker is None else make_operand_tensors(program, maker, unmoved=unmoved)
    if maker is not None and find_search_name(graph, maker) is not None:
        operands = operands[:1]  # the positions after it are JAX's
    held_by = [
        asker
        for array in arrays
        if find_dimensions_over(array, axes)
        for asker in program.askers.find_holders(array, axes)
    ]
    unsaid = {"wanted": partial.sharding, "in_loop": maker is not None and graph.loop(maker) is not None}
    return Reason(
        kind=ReasonKind.PARTIAL_SUM,
        axes=axes,
        moved=partial,
        dimensions=dimensions,
        producer=make_operation(program, maker),
        operands=tuple(operand for operand in operands if operand.shape),
        result=partial,
        summed=summed,
        held_by=tuple(dict.fromkeys(held_by)),
        claims=program.claims.find(maker, None, axes),
        **(unsaid | known),
    )


def sums_parts(program: UserProgram, op: ShardyOp, axes: Axes) -> bool:
    """Returns whether an operation can be done in parts: these axes cut a contracted dimension of all operands.

    Shardy may move the operands first, because the result is needed along these axes. The partitioner then multiplies
    the parts in place, and sums.
    """
    if op.kind == "stablehlo.scatter":  # into an array of zeros on each device, however the updates are cut
        return True
    if op.rule is None or len(op.operands) != 2 or not op.rule.reduction:
        return False
    cut = [
        {
            (factor, axis)
            for dimension, here in enumerate(known_sharding(_make_value_reader(program, True)(operand)))
            for factor in set(mapping[dimension]) & op.rule.reduction
            for axis in here
        }
        for operand, mapping in zip(op.operands, op.rule.operands, strict=True)
    ]
    return {*axes} <= {axis for _, axis in cut[0] & cut[1]}


def explain_sum_of_parts(program: UserProgram, op: ShardyOp, axes: Axes) -> Reason:
    """The reason for the partial sum of a contraction for which `sums_parts` holds, with its consumer."""
    result = program.graph.value(op.results[0])
    wanted = known_sharding(result)
    partial = make_tensor(program, result, remove_axes(wanted, axes), axes)
    users = [user for user in program.graph.real_users(result) if not user[0].kind.endswith(".return")]
    needed = _describe_need(program, axes, wanted, users, result)
    return _add_weight(program, op, _explain_sum(program, op, axes, partial, unmoved=True, **needed))


def _make_value_reader(program: UserProgram, unmoved: bool) -> Callable[[int], ShardyValue]:
    """A function from indexes to values, as an operation has them or as they were before they were moved for it."""
    graph = program.graph
    return (lambda index: graph.unmoved(graph.value(index))) if unmoved else graph.value


def _find_summed(
    program: UserProgram, maker: ShardyOp | None, axes: Axes, seen: Callable[[int], ShardyValue]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Letters of the dimensions that an operation sums over and these axes shard, and their indexes in operand 0."""
    if maker is None or maker.rule is None:
        return (), ()
    letters: dict[int, str] = {}
    numbers: list[int] = []
    for position, (operand, mapping) in enumerate(zip(maker.operands, maker.rule.operands, strict=False)):
        value = seen(operand)
        shown = make_tensor(program, value).letters
        for number in find_dimensions_over(value, axes):
            for factor in set(mapping[number]) & maker.rule.reduction:
                if not letters.get(factor, "0").isalpha():
                    letters[factor] = shown[number]
                numbers += [number] if position == 0 else []
    return tuple(dict.fromkeys(letters.values())), tuple(numbers)
