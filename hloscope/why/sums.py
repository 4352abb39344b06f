"""Partial sums: what an operation that adds up along a sharded dimension leaves on each device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hloscope.analysis.model.reason import AskedBy, Axes, Reason, ReasonKind, Tensor
from hloscope.compiler.shardy_model import ShardyOp, ShardyValue
from hloscope.why.moves import dimensions_over, sharding_known, without
from hloscope.why.names import search_name
from hloscope.why.tensors import Program, holders, operands_of, operation_of, output_asker, tensor_of


def sum_reason(
    program: Program, maker: ShardyOp | None, axes: Axes, partial: Tensor, *, unmoved: bool = False
) -> Reason:
    """The partial result of an operation that sums over a sharded dimension.

    Args:
        program: The program.
        maker: The operation; None when it is not known.
        axes: The axes over which the sum is to be finished.
        partial: Its result.
        unmoved: Whether its operands are those from before Shardy would move them for it.
    """
    graph = program.graph
    summed, dimensions = _summed(program, maker, axes, _seen(program, unmoved))
    values = [] if maker is None else [_seen(program, unmoved)(one) for one in maker.operands]
    arrays = [one for one in values if one.shape]
    operands = () if maker is None else operands_of(program, maker, unmoved=unmoved)
    if maker is not None and search_name(graph, maker) is not None:
        operands = operands[:1]  # the positions beside it are JAX's
    return Reason(
        kind=ReasonKind.PARTIAL_SUM,
        axes=axes,
        moved=partial,
        wanted=partial.sharding,
        dimensions=dimensions,
        producer=None if maker is None else operation_of(program, maker),
        operands=tuple(one for one in operands if one.shape),
        result=partial,
        summed=summed,
        held_by=tuple(dict.fromkeys(asker for one in arrays for asker in _held(program, one, axes))),
        in_loop=maker is not None and graph.loop(maker) is not None,
    )


def sums_parts(program: Program, op: ShardyOp, axes: Axes) -> bool:
    """Whether a contraction can be done part by part: these axes cut one contracted dimension of all its operands.

    Shardy may bring the operands elsewhere first, because its result is wanted along these axes. The partitioner then
    multiplies what lies where it is, and adds up.
    """
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
    users, main = program.graph.real_users(result), program.graph.module.main
    inside = [(user, number) for user, number in users if not user.kind.endswith(".return")]
    handed_out = [number for user, number in users if user.kind == "func.return" and user.parent == main]
    consumer, operand = inside[0] if inside else (None, None)
    return replace(
        sum_reason(program, op, axes, partial, unmoved=True),
        wanted=wanted,
        consumer=None if consumer is None else operation_of(program, consumer),
        operand=operand,
        asked_by=tuple(output_asker(program, number, ",".join(axes)) for number in handed_out),
    )


def _seen(program: Program, unmoved: bool) -> Callable[[int], ShardyValue]:
    """Values by their index, as an operation has them or as they were before they were moved for it."""
    graph = program.graph
    return (lambda index: graph.unmoved(graph.value(index))) if unmoved else graph.value


def _held(program: Program, value: ShardyValue, axes: Axes) -> tuple[AskedBy, ...]:
    """Who shards a value over these axes."""
    return holders(program, value, axes) if dimensions_over(value, axes) else ()


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
