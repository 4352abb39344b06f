"""Dimensions that belong together: an axis that cuts one of them can cut the others without moving data."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.compiler.shardy_model import ShardyOp
from hloscope.shardy.graph import BARRIER_KINDS, LOOP_BODY, MOVE_KINDS, ShardyGraph

DimensionClass = tuple[str, int, int]
"""A class of dimensions, named by one of its members."""


class Dimensions:
    """The dimensions of all values of a program, in classes.

    Two dimensions are in one class if they are one factor of an operation's sharding rule, or if one value becomes the
    other across a loop, a call or a manual computation. If a dimension consists of several factors, the major one
    counts, which a mesh axis cuts first.

    Args:
        graph: The module.
    """

    def __init__(self, graph: ShardyGraph) -> None:
        self._graph = graph
        self._above: dict[DimensionClass, DimensionClass] = {}
        self._contracted: set[DimensionClass] = set()
        for op in graph.module.ops:
            self._join_factors(op)
        for value in graph.module.values:
            outside = graph.outside(value)
            if outside is not None:
                self._join_values((value.index,), (outside.index,))
        for (holder, region), returned in graph.returns.items():
            self._join_results(graph.module.ops[holder], region, returned)

    def of(self, value: int) -> tuple[DimensionClass, ...]:
        """The class of each dimension of a value, named by any of its members."""
        return tuple(self._top(("value", value, number)) for number in range(len(self._graph.value(value).shape)))

    def is_contracted(self, found: DimensionClass) -> bool:
        """Returns whether an operation sums over a class."""
        return any(self._top(node) == found for node in self._contracted)

    def _top(self, node: DimensionClass) -> DimensionClass:
        top = node
        while (above := self._above.get(top, top)) != top:
            top = above
        while (above := self._above.get(node, node)) != top:
            self._above[node], node = top, above
        return top

    def _join(self, one: DimensionClass, other: DimensionClass) -> None:
        first, second = self._top(one), self._top(other)
        if first != second:
            self._above[max(first, second)] = min(first, second)

    def _join_factors(self, op: ShardyOp) -> None:
        rule = op.rule
        if op.kind in MOVE_KINDS | BARRIER_KINDS:
            self._join_values(op.results, op.operands)
        if rule is None or len(rule.operands) != len(op.operands) or len(rule.results) != len(op.results):
            return
        sides = (*zip(op.operands, rule.operands, strict=True), *zip(op.results, rule.results, strict=True))
        for value, mapping in sides:
            for number, factors in enumerate(mapping):
                major = next((factor for factor in factors if rule.sizes[factor] > 1), None)
                if major is not None:
                    self._join(("value", value, number), ("factor", op.index, major))
        self._contracted.update(("factor", op.index, factor) for factor in rule.reduction)

    def _join_results(self, holder: ShardyOp, region: int, returned: ShardyOp) -> None:
        """Joins the results of a loop, a branch, a function or a manual computation with their values outside."""
        if holder.kind == "func.func":
            for call in self._graph.callers.get(holder.symbol or "", ()):
                self._join_values(call.results, returned.operands)
        elif holder.kind != "stablehlo.while" or region == LOOP_BODY:
            self._join_values(holder.results, returned.operands)
        if holder.kind == "stablehlo.while":
            self._join_values(holder.results, holder.operands)

    def _join_values(self, some: Sequence[int], others: Sequence[int]) -> None:
        for one, other in zip(some, others, strict=False):
            shape = self._graph.value(one).shape
            if shape == self._graph.value(other).shape:
                for number in range(len(shape)):
                    self._join(("value", one, number), ("value", other, number))
