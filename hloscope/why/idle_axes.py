"""Axes that bring nothing: those that shard nothing in a matmul, and those that a request takes away for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from hloscope.compile.estimates import MATMUL_KINDS, ShardyRuns, find_cut_factors
from hloscope.model.capture import ShardyOp, ShardyValue, multiply_axis_sizes, whole_axis
from hloscope.model.reason import Dimension
from hloscope.why.claims import Claims
from hloscope.why.reshards import known_sharding
from hloscope.why.shardy_graph import MOVE_KINDS, DimensionClass

_MOST_UPDATES = 200
"""The values up to which an argument is followed to the results."""


class IdleAxes:
    """Where the axes of a program bring nothing.

    Args:
        claims: The claims to them.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims, self._graph, self._dimensions = claims, claims.graph, claims.dimensions

    @cached_property
    def repeated(self) -> Mapping[tuple[str, Dimension, bool], float]:
        """FLOPs of matmuls that each device repeats because an axis, or a part of it, shards none of their dimensions.

        By the axis, the dimension that could have it, and whether anything claims it for that one: the largest that
        does, or otherwise one that is not summed over, rather of those that another axis shards. Matmuls in branches,
        which may not run, and in loops of unknown length are left out.
        """
        found: dict[tuple[str, Dimension, bool], float] = defaultdict(float)
        module, runs = self._graph.module, ShardyRuns(self._graph.module)
        for op in module.ops:
            if op.kind not in MATMUL_KINDS or op.rule is None or not op.flops:
                continue
            of_op, cut = runs.of(op), find_cut_factors(module, op)
            if of_op.is_open:
                continue
            axes = {axis for of_factor in cut.values() for axis in of_factor}
            devices = multiply_axis_sizes(axes, module.mesh)
            for axis, size in module.mesh.items():
                used = multiply_axis_sizes([each for each in axes if whole_axis(each) == axis], module.mesh)
                chosen = self._choose_idle(op, axis, cut) if used < size and axis not in of_op.manual else None
                if chosen is not None:
                    found[axis, *chosen] += op.flops * of_op.times / devices * (1 - used / size)
        return dict(found)

    def _choose_idle(self, op: ShardyOp, axis: str, cut: Mapping[int, frozenset[str]]) -> tuple[Dimension, bool] | None:
        """The dimension of a matmul that could have an axis, and whether it is claimed for it."""
        assert op.rule is not None
        factors = {factor for _, mapping in self._claims.list_sides(op) for here in mapping for factor in here[:1]}
        largest = sorted(factors, key=lambda factor: (factor not in cut, -op.rule.sizes[factor] if op.rule else 0))
        for factor in largest:
            own = self._dimensions.of_factor(op.index, factor)
            related = (*self._wholes.get(own, ()), *self._claims.list_parts(own), own)
            claiming = [each for each in related if self._claims.find_claimants(each, axis)]
            if claiming:
                return self._claims.describe(min(claiming, key=lambda each: each not in self._claims.letters)), True
        result = self._graph.unmoved(self._graph.value(op.results[0]))
        spare = {
            factors[0]
            for number, factors in enumerate(op.rule.results[0])
            if factors and number < len(result.shape) and self._claims.is_divided_by(result, number, axis)
        }
        best = next((factor for factor in largest if factor in spare), None)
        return None if best is None else (self._claims.describe(self._dimensions.of_factor(op.index, best)), False)

    @cached_property
    def _wholes(self) -> Mapping[DimensionClass, tuple[DimensionClass, ...]]:
        """The classes of which each class is a part."""
        found: dict[DimensionClass, list[DimensionClass]] = defaultdict(list)
        for whole, parts in self._dimensions.parts.items():
            for part in parts:
                found[part].append(whole)
        return {part: tuple(wholes) for part, wholes in found.items()}

    def find_unlike_outputs(self, axis: str, winner: Dimension | None, loser: Dimension | None) -> tuple[str, ...]:
        """The requested outputs with an axis at another dimension, or at none, than the state that they replace.

        Arguments of the same dimensions are that state; or one of them is, if the others have the axis there, and the
        program only updates it, element by element.
        """
        given, found = [value for value in self._graph.arguments.values() if value.shape], []
        for number, value in enumerate(self._claims.askers.returned):
            classes = self._dimensions.of(value.index)
            alike = [other for other in given if self._dimensions.of(other.index) == classes]
            described = [self._claims.describe(each) for each in classes]
            given_to = [described[at] for at in range(len(classes)) if self._has(value, axis, at)]
            if number not in self._claims.askers.requested or loser not in described:
                continue
            if given_to != ([] if winner is None else [winner]):
                continue
            at = [number for number, each in enumerate(described) if each == loser]
            having = [other for other in alike if self._has(other, axis, at[0])]
            lacking = [other for other in alike if other not in having]
            if having and (not lacking or any(map(self._is_only_updated, lacking))):
                names = self._claims.askers.outputs
                found.append(names[number] if number < len(names) else f"result[{number}]")
        return tuple(found)

    def _has(self, value: ShardyValue, axis: str, number: int) -> bool:
        return axis in map(whole_axis, known_sharding(value)[number])

    def _is_only_updated(self, value: ShardyValue) -> bool:
        """Returns whether all that is made of a value has its dimensions, up to the results."""
        classes, pending, seen = self._dimensions.of(value.index), [value], {value.index}
        while pending:
            for user, _ in self._graph.users(pending.pop()):
                for result in map(self._graph.value, user.results):
                    if self._dimensions.of(result.index) != classes or len(seen) > _MOST_UPDATES:
                        return False
                    if result.index not in seen:
                        seen.add(result.index)
                        pending.append(result)
        return True

    def is_needless(self, axis: str, loser: Dimension | None) -> bool:
        """Returns whether a constraint takes an axis from a dimension that has it again in the next operation."""
        for op, _ in self._claims.find_requests(axis, None, loser):
            value = self._graph.value(op.results[0])
            here = self._claims.find_dimensions(value, loser) if loser is not None else ()
            if here and self._comes_back(value, axis, here[0]):
                return True
        return False

    def _comes_back(self, value: ShardyValue, axis: str, number: int) -> bool:
        """Returns whether moves of a value give an axis back to a dimension that a move before them took it from."""
        pending = [(value, False)]
        while pending:
            current, was_whole = pending.pop()
            has = self._has(current, axis, number)
            if has and was_whole:
                return True
            moves = [user for user, _ in self._graph.users(current) if user.kind in MOVE_KINDS]
            after = [self._graph.value(user.results[0]) for user in moves]
            pending += [(moved, was_whole or not has) for moved in after if moved.shape == current.shape]
        return False
