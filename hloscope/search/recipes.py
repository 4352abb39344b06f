"""Named schemes for sharding a whole program: the part of data, weights and states that each mesh axis shards.

Data, tensor, sequence and expert parallelism, FSDP and ZeRO all have one form: an axis shards one class of dimensions
of the data, and one of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from hloscope.compile.sharding_change import ConstraintChange, ConstraintEdit, Resharding
from hloscope.search.space import FOLLOWING, KEPT, ArrayGroup, Point, Space
from hloscope.why.shardy_graph import DimensionClass

_MOST_OF_DATA = 3
_MOST_OF_WEIGHTS = 5
_MOST, _LEAST = 1500, 6
_DOT = "stablehlo.dot_general"
_PRODUCTS = (_DOT, "stablehlo.convolution")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisUse:
    """The dimensions that one mesh axis shards.

    Attributes:
        data: The class of data dimensions that it shards, or None.
        weights: The same for weights.
        states: The same for the states that belong to weights, if it differs from that of the weights.
    """

    data: DimensionClass | None = None
    weights: DimensionClass | None = None
    states: DimensionClass | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A named scheme: the use of each axis.

    Attributes:
        name: Name of the scheme, such as `FSDP over X, tensor parallel over Y`.
        point: The resulting point of the search space.
    """

    name: str
    point: Point


class Recipes:
    """The roles of a program's parts, and the whole ways to shard them.

    Args:
        space: The program.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._axes = [axis for axis, size in space.mesh.items() if size > 1]

    @cached_property
    def _is_data(self) -> tuple[bool, ...]:
        """True for each part that holds data: parts with the batch, and whole numbers."""
        batch = self._batch
        return tuple(not part.is_result and (part.is_integer or batch in part.classes) for part in self._space.parts)

    @cached_property
    def _batch(self) -> DimensionClass | None:
        """The leading dimension of tokens; without tokens, of a stateful step's inputs; otherwise what is kept."""
        parts = [part for part in self._space.parts if not part.is_result]
        tokens = [part for part in parts if part.is_integer]
        fed = [part for part in parts if not part.is_state] if any(part.is_state for part in parts) else []
        for part in (*tokens, *fed[:1]):
            return part.classes[0]
        return self._find_kept(parts)

    def _find_kept(self, parts: Sequence[ArrayGroup]) -> DimensionClass | None:
        """The dimension of arguments and results that no operation sums over and most results of matmuls have.

        A chain of matmuls keeps the batch from one to the next, and a dimension of a weight only where it ends; of
        several, the leading one of the results counts. Gradients keep all dimensions but the batch.
        """
        dimensions, results = self._space.dimensions, self._space.leaves.results
        shown = [found for leaf in results if leaf.value is not None for found in dimensions.of(leaf.value.index)]
        given = {found for part in parts for found in part.classes}
        kept = [found for found in shown if found in given and not dimensions.is_contracted(found)]
        if kept:
            products = [dimensions.of(op.results[0]) for op in self._space.graph.module.ops if op.kind in _PRODUCTS]
            return max(kept, key=lambda found: sum(found in product for product in products))
        leading = [part.classes[0] for part in parts if part.classes]
        return next((found for found in leading if found not in shown), leading[0] if leading else None)

    def _ranked(self, *, of_data: bool) -> list[DimensionClass]:
        """Classes of dimensions by the bytes of their arrays, with those of leading data dimensions first."""
        weight: dict[DimensionClass, float] = {}
        for part, is_data in zip(self._space.parts, self._is_data, strict=True):
            if part.is_result or is_data != of_data:
                continue
            for number, found in enumerate(part.classes):
                if part.shape[number] > 1:
                    weight[found] = weight.get(found, 0.0) + part.bytes / (1 + number * of_data)
        return sorted(weight, key=lambda found: -weight[found])

    @cached_property
    def _of_data(self) -> list[DimensionClass]:
        return self._ranked(of_data=True)

    @cached_property
    def _batched(self) -> frozenset[DimensionClass]:
        """Classes that a matmul has in a weight, in the other operand and in its result, such as experts."""
        found: set[DimensionClass] = set()
        graph, dimensions, space = self._space.graph, self._space.dimensions, self._space
        weights = {
            leaf.index
            for part, is_data in zip(space.parts, self._is_data, strict=True)
            if not part.is_result and not is_data
            for leaf in part.leaves
        }
        for op in graph.module.ops:
            if op.kind != _DOT or len(op.operands) != 2:
                continue
            leaves = [space.leaves.argument_of(graph.value(operand)) for operand in op.operands]
            if any(leaf is not None and leaf.index in weights for leaf in leaves):
                sides = [{*dimensions.of(value)} for value in (*op.operands, op.results[0])]
                found |= sides[0] & sides[1] & sides[2]
        return frozenset(found)

    @property
    def _ways(self) -> list[AxisUse]:
        """The uses of an axis, plain ones first: of the batch, then of weights, then of both."""
        data = [None, *self._of_data[:_MOST_OF_DATA]]
        weights = [None, *self._ranked(of_data=False)[:_MOST_OF_WEIGHTS]]
        found = [
            (first + second, AxisUse(data=data[first], weights=weights[second]))
            for first, second in product(range(len(data)), range(len(weights)))
        ]
        if any(part.belongs_to is not None for part in self._space.parts) and len(data) > 1:
            found += [
                (number + 1, AxisUse(data=data[1], states=weights[number])) for number in range(1, len(weights))[:2]
            ]
        return [way for _, way in sorted(found, key=lambda item: item[0])]

    def all(self) -> Iterator[Recipe]:
        """All recipes, the plainest first; each point once, with constraints that follow and that are kept."""
        ways = self._ways
        while len(ways) ** len(self._axes) > _MOST and len(ways) > _LEAST:
            ways = ways[:-1]
        seen: set[Point] = set()
        every = product(range(len(ways)), repeat=len(self._axes))
        for chosen in ([ways[number] for number in numbers] for numbers in sorted(every, key=sum)):
            point = self._point(chosen)
            for constraints in (FOLLOWING, KEPT) if self._space.constraints else (KEPT,):
                here = Point(mesh=point.mesh, specs=point.specs, constraints=constraints)
                if here not in seen:
                    seen.add(here)
                    yield Recipe(name=self._name(chosen), point=here)

    def make_constrained(self, point: Point) -> Resharding | None:
        """The change to a point with constraints on activations, as people write such a scheme.

        Results of matmuls that have a dimension of the data are sharded as the data are, and along their other
        dimensions as the weights. This ranks schemes: lines to write are found in the compiled program.
        """
        space, change = self._space, self._space.change(point)
        if change is None or not space.is_auto:
            return None
        parts = zip(space.parts, self._is_data, strict=True)
        data = {dimension for part, is_data in parts if is_data for dimension in part.classes}
        cut = space.cut_classes(point)
        edits: dict[tuple[int, int], ConstraintEdit] = {}
        for op in space.graph.module.ops:
            users = [] if op.kind not in _PRODUCTS else space.list_users(op.results[0])
            if users and data & {*space.dimensions.of(op.results[0])}:
                user, operand = users[0]
                sharding = space.follow_classes(op.results[0], cut)
                number = user.identity[-1]
                edits[number, operand] = ConstraintEdit(operation=number, operand=operand, sharding=sharding)
        made = tuple(ConstraintChange(edits=(edit,), place="an activation") for edit in edits.values())
        return replace(change, constraints=(*change.constraints, *made)) if made else None

    def _point(self, chosen: Sequence[AxisUse]) -> Point:
        specs = []
        for part, is_data in zip(self._space.parts, self._is_data, strict=True):
            cuts: list[list[str]] = [[] for _ in part.shape]
            for axis, way in zip(self._axes, chosen, strict=True):
                self._cut(part, cuts, axis, way, is_data=is_data)
            spec = tuple(map(tuple, cuts))
            fits = self._space.leaves.fits(part.leaves[0].array, spec)
            specs.append(spec if fits else part.layouts[0])
        return Point(mesh=self._space.own.mesh, specs=tuple(specs))

    def _cut(self, part: ArrayGroup, cuts: list[list[str]], axis: str, way: AxisUse, *, is_data: bool) -> None:
        """Shards one part over one axis, if it has the class and divides; a weight without it on its largest one."""
        wanted: tuple[DimensionClass | None, ...]
        if part.is_result:
            wanted = (way.data, way.weights)
        elif is_data:
            wanted = (way.data,)
        else:
            wanted = (way.states if part.belongs_to is not None and way.states is not None else way.weights,)
        size_of_axis = self._space.mesh[axis]
        for found in wanted:
            for number, (size, dimension) in enumerate(zip(part.shape, part.classes, strict=True)):
                cut = prod(self._space.mesh[other] for other in cuts[number]) * size_of_axis
                if found is not None and dimension == found and size % cut == 0:
                    cuts[number].append(axis)
                    return

    def _name(self, chosen: Sequence[AxisUse]) -> str:
        """The name of a recipe: `data parallel over X, tensor parallel over Y`; axes with the same use are combined."""
        named: dict[str, list[str]] = {}
        for axis, way in zip(self._axes, chosen, strict=True):
            named.setdefault(self._word(way), []).append(axis)
        if set(named) == {""}:
            return "replicated"
        return ", ".join(f"{word} over {' and '.join(axes)}" for word, axes in named.items() if word)

    def _word(self, way: AxisUse) -> str:
        batch = self._of_data[:1]
        if way.data is None and way.weights is None:
            return ""
        if way.weights is None:
            if [way.data] != batch:
                return "sequence parallel"
            return "data parallel" if way.states is None else "data parallel with ZeRO"
        if way.weights in self._batched:
            return "expert parallel"
        if way.data is None:
            return "tensor parallel"
        if [way.data] == batch:
            return "FSDP"
        return "tensor parallel" if way.data == way.weights else "tensor and sequence parallel"
