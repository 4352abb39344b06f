"""The search space: all ways to shard a program, the arrays that may change, and their shardings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any

from hloscope.compiler.edits import ConstraintEdit
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ValueSharding
from hloscope.errors import NotationError, did_you_mean
from hloscope.program.capture import CapturedArray
from hloscope.program.change import ConstraintChange, Resharding
from hloscope.program.compiling import make_array_records
from hloscope.program.lowering import Lowered
from hloscope.search.leaves import ProgramLeaf, ProgramLeaves
from hloscope.shardy.dimensions import DimensionClass, Dimensions
from hloscope.shardy.graph import ShardyGraph, is_written
from hloscope.units import count_array_bytes

_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+")
_MOST_LAYOUTS = 256
_MOST_CONSTRAINTS = 400

_EVERY_RESULT = "out"
"""The option of a target that sets the shardings of its results."""

KEPT, DROPPED, FOLLOWING = "kept", "dropped", "following"
"""The fates of the program's own constraints: they stay, go, or follow the arguments that have their dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayGroup:
    """Arguments or results that are sharded alike, such as the same weight in all layers.

    Attributes:
        name: Name, such as `W`, or `params['layers'][*]['w']` for several.
        leaves: The arguments or results.
        layouts: The possible shardings, the original one first.
        classes: The class of each dimension.
        is_result: Whether they are results.
        is_state: Whether each step passes them on to the next one.
        belongs_to: Index of the part that these states belong to, such as a momentum's weight; None for all others.
        itemsize_bytes: Bytes of an element.
    """

    name: str
    leaves: tuple[ProgramLeaf, ...]
    layouts: tuple[ValueSharding | None, ...]
    classes: tuple[DimensionClass, ...]
    is_result: bool = False
    is_state: bool = False
    belongs_to: int | None = None
    itemsize_bytes: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each of them."""
        return self.leaves[0].array.global_shape

    @property
    def bytes(self) -> int:
        """The total bytes of all of them, as if on one device."""
        return prod(self.shape) * self.itemsize_bytes * len(self.leaves)

    @property
    def is_integer(self) -> bool:
        """True if they hold whole numbers, such as tokens."""
        return self.leaves[0].array.dtype[:1] in ("s", "u")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way to shard the program; hashable, and ordered as it was made.

    Attributes:
        mesh: The size of each axis, in the order of the program's own mesh.
        specs: The sharding of each part; None leaves a result open.
        constraints: The fate of the program's own constraints.
        order: The devices in the order of the mesh, by their positions in `jax.devices()`; None for that of
            `jax.make_mesh`.
    """

    mesh: tuple[int, ...]
    specs: tuple[ValueSharding | None, ...]
    constraints: str = KEPT
    order: tuple[int, ...] | None = None

    @property
    def traits(self) -> frozenset[tuple[object, ...]]:
        """The traits that distinguish it: which axis shards which dimension of which part, and what is open."""
        cuts = (
            (number, dimension, axis)
            for number, spec in enumerate(self.specs)
            for dimension, axes in enumerate(spec or ())
            for axis in axes
        )
        opened = ((number, "open") for number, spec in enumerate(self.specs) if spec is None)
        return frozenset((*cuts, *opened, ("constraints", self.constraints), ("mesh", *self.mesh)))


class Space:
    """The ways to shard one program on one mesh.

    Args:
        lowered: The program.
        module: Shardy's output for it.
        keep: Names, or patterns such as `params*`, of arguments that keep their shardings.
        free: The same for results that need not keep their sharding; `out` means all of them.

    Raises:
        NotationError: A name matches no argument, or no result.
    """

    def __init__(self, lowered: Lowered, module: ShardyModule, keep: Sequence[str], free: Sequence[str]) -> None:
        self.lowered = lowered
        self.mesh: Mapping[str, int] = dict(module.mesh)
        self.graph = ShardyGraph(module)
        self.dimensions = Dimensions(self.graph)
        arguments, results = make_array_records(lowered)
        self.leaves = ProgramLeaves(arguments, results, self.graph)
        _check_patterns("argument", keep, [array.name for array in arguments])
        free = tuple("*" if name == _EVERY_RESULT else name for name in free)
        _check_patterns("result", free, [array.name for array in results])
        self.parts = tuple(self._parts(keep, free))
        kinds = () if lowered.mesh is None else tuple(map(str, lowered.mesh.axis_types))
        self.is_auto = bool(kinds) and all("auto" in kind.lower() for kind in kinds)

    @cached_property
    def own(self) -> Point:
        """The program as written."""
        specs = tuple(part.leaves[0].asked if part.is_result else part.leaves[0].sharding for part in self.parts)
        return Point(mesh=tuple(self.mesh.values()), specs=specs)

    @property
    def size(self) -> int:
        """The number of points with states sharded like the part that they belong to."""
        return prod(len(part.layouts) for part in self.parts if part.belongs_to is None)

    def _parts(self, keep: Sequence[str], free: Sequence[str]) -> Iterator[ArrayGroup]:
        """The parts, weights first, so that states can refer to them."""
        taken: set[int] = set()
        groups: list[tuple[ProgramLeaf, ...]] = []
        for leaf in self.leaves.arguments:
            is_free = leaf.array.used and leaf.array.global_shape and leaf.value is not None
            if leaf.index in taken or not is_free or _is_named(leaf.array, keep):
                continue
            pattern = make_name_pattern(leaf.array.name)
            same = (other for other in self.leaves.alike(leaf) if make_name_pattern(other.array.name) == pattern)
            alike = tuple(other for other in same if not _is_named(other.array, keep))
            taken.update(other.index for other in alike)
            groups.append(alike)
        states = {*self.leaves.replaces.values()}
        layouts = [self._layouts(group[0]) for group in groups]
        movable = [(group, ways) for group, ways in zip(groups, layouts, strict=True) if len(ways) > 1]
        owner = _find_owners([group[0] for group, _ in movable])
        for number, (group, ways) in enumerate(movable):
            yield self._part(group, ways, is_state=group[0].index in states, belongs_to=owner.get(number))
        for leaf in self.leaves.results:
            if _is_named(leaf.array, free) and leaf.asked is not None and leaf.index not in self.leaves.replaces:
                yield self._part((leaf,), (leaf.asked, None, *self._layouts(leaf)), is_result=True)

    def _part(
        self, group: tuple[ProgramLeaf, ...], layouts: Iterable[ValueSharding | None], **how: object
    ) -> ArrayGroup:
        leaf = group[0]
        assert leaf.value is not None
        size = count_array_bytes(leaf.array.dtype, 1) or leaf.array.itemsize_bytes
        name = leaf.array.name if len(group) == 1 else make_name_pattern(leaf.array.name)
        classes = self.dimensions.of(leaf.value.index)
        return ArrayGroup(
            name=name,
            leaves=group,
            layouts=tuple(dict.fromkeys(layouts)),
            classes=classes,
            itemsize_bytes=size,
            **how,  # type: ignore[arg-type]
        )

    def _layouts(self, leaf: ProgramLeaf) -> tuple[ValueSharding, ...]:
        """Every sharding that divides evenly, axes of one dimension in the mesh's order; the original one first."""
        rank, axes = len(leaf.array.global_shape), [axis for axis, size in self.mesh.items() if size > 1]
        found: list[ValueSharding] = [] if leaf.sharding is None else [leaf.sharding]
        if (rank + 1) ** len(axes) > _MOST_LAYOUTS:
            ways: Iterable[tuple[int, ...]] = _place_few_axes(rank, len(axes))
        else:
            ways = product(range(-1, rank), repeat=len(axes))
        for places in ways:
            spec = tuple(
                tuple(axis for axis, at in zip(axes, places, strict=True) if at == number) for number in range(rank)
            )
            if self.leaves.fits(leaf.array, spec):
                found.append(spec)
        return tuple(dict.fromkeys(found))

    def argument_bytes(self, point: Point) -> int:
        """The bytes of the arguments on one device."""
        total = 0.0
        for part, spec in zip(self.parts, point.specs, strict=True):
            if not part.is_result:
                total += part.bytes / prod(self.mesh[axis] for axes in spec or () for axis in axes)
        return int(total)

    def neighbors(self, point: Point) -> Iterator[Point]:
        """The points that differ in one part, with its states or without, or in the fate of constraints."""
        for number, part in enumerate(self.parts):
            along = [other for other, state in enumerate(self.parts) if state.belongs_to == number]
            for spec in part.layouts:
                if spec != point.specs[number]:
                    yield self._with(point, {number: spec, **dict.fromkeys(along, spec)})
                    if along:
                        yield self._with(point, {number: spec})
        for constraints in self.ways_of_constraints:
            if constraints != point.constraints:
                yield replace(point, constraints=constraints)

    def _with(self, point: Point, specs: Mapping[int, ValueSharding | None]) -> Point:
        return replace(point, specs=tuple(specs.get(number, spec) for number, spec in enumerate(point.specs)))

    def everything(self) -> Iterator[Point]:
        """All points whose states are sharded like the part that they belong to, with constraints kept."""
        heads = [number for number, part in enumerate(self.parts) if part.belongs_to is None]
        for specs in product(*(self.parts[number].layouts for number in heads)):
            chosen = dict(zip(heads, specs, strict=True))
            for number, part in enumerate(self.parts):
                if part.belongs_to is not None:
                    chosen[number] = chosen[part.belongs_to]
            yield self._with(self.own, chosen)

    @cached_property
    def constraints(self) -> tuple[ShardyOp, ...]:
        """The constraints in the program that an edit of the module can change."""
        if not self.is_auto:
            return ()
        found = [op for op in self.graph.module.ops if is_written(op) and op.identity and not self.graph.in_manual(op)]
        numbers = [op.identity[-1] for op in found]
        return tuple(op for op in found if numbers.count(op.identity[-1]) == 1)[:_MOST_CONSTRAINTS]

    @property
    def ways_of_constraints(self) -> tuple[str, ...]:
        """The possible fates of the constraints."""
        return (KEPT, DROPPED, FOLLOWING) if self.constraints else (KEPT,)

    def change(self, point: Point) -> Resharding | None:
        """The change from the program to a point of this mesh.

        Results that replace an argument get its sharding, whether or not the program requested a sharding of them.
        None if nothing changes or JAX would refuse it.
        """
        arguments, results = [], []
        of_state = {argument: result for result, argument in self.leaves.replaces.items()}
        for part, spec in zip(self.parts, point.specs, strict=True):
            for leaf in part.leaves:
                if part.is_result:
                    results.append((self.leaves.results[leaf.index], spec))
                elif spec is not None:
                    arguments.append((leaf, spec))
                    if leaf.index in of_state and spec != leaf.sharding:
                        results.append((self.leaves.results[of_state[leaf.index]], spec))
        found = self.leaves.change(arguments, results)
        edits = tuple(self._constraint_changes(point))
        if found is None:
            return Resharding(constraints=edits) if edits and self.is_own(point) else None
        return replace(found, constraints=edits)

    def freed(self, point: Point) -> Resharding | None:
        """The change to a point with all results open that keep their requested sharding; None without such results."""
        held = {leaf.index for part in self.parts if part.is_result for leaf in part.leaves} | {*self.leaves.replaces}
        kept = [leaf for leaf in self.leaves.results if leaf.asked is not None and leaf.index not in held]
        arguments = [
            (leaf, spec)
            for part, spec in zip(self.parts, point.specs, strict=True)
            for leaf in part.leaves
            if spec is not None and not part.is_result
        ]
        return self.leaves.change(arguments, [(leaf, None) for leaf in kept]) if kept else None

    def is_own(self, point: Point) -> bool:
        """Returns whether the arrays have their shardings as written."""
        return point.specs == self.own.specs

    def _constraint_changes(self, point: Point) -> Iterator[ConstraintChange]:
        if point.constraints == KEPT:
            return
        cut = self._cut_classes(point)
        for op in self.constraints:
            value = self.graph.value(op.results[0])
            before = op.asked or value.sharding
            after = None if point.constraints == DROPPED else self._following(op, cut)
            if after == before and point.constraints == FOLLOWING:
                continue
            place = f"{op.source[0].file.rpartition('/')[2]}:{op.source[0].line}" if op.source else "no line"
            edit = ConstraintEdit(operation=op.identity[-1], sharding=after)
            yield ConstraintChange(edits=(edit,), place=place, before=before)

    def _cut_classes(self, point: Point) -> dict[DimensionClass, tuple[str, ...]]:
        """The axes that shard each class of dimensions: data take precedence over weights."""
        found: dict[DimensionClass, tuple[str, ...]] = {}
        rows = zip(self.parts, point.specs, strict=True)
        for part, spec in sorted(rows, key=lambda row: row[0].is_state):
            for dimension, axes in zip(part.classes, spec or (), strict=False):
                taken = {axis for others in found.values() for axis in others}
                free = tuple(axis for axis in axes if axis not in taken)
                if free and dimension not in found:
                    found[dimension] = free
        return found

    def _following(self, op: ShardyOp, cut: Mapping[DimensionClass, tuple[str, ...]]) -> ValueSharding:
        value = self.graph.value(op.results[0])
        spec: list[tuple[str, ...]] = []
        for size, dimension in zip(value.shape, self.dimensions.of(value.index), strict=True):
            axes = cut.get(dimension, ())
            seen = {axis for here in spec for axis in here}
            usable = tuple(axis for axis in axes if axis not in seen)
            spec.append(usable if size % prod(self.mesh[axis] for axis in usable) == 0 else ())
        return tuple(spec)


def _find_owners(firsts: Sequence[ProgramLeaf]) -> dict[int, int]:
    """For each part of states, by its first leaf, the index of the part that it belongs to: the one with its tails."""
    owners: dict[tuple[Any, ...], int] = {}
    found: dict[int, int] = {}
    for number, leaf in enumerate(firsts):
        tail, *alike = make_name_pattern(".".join(leaf.tail)), leaf.array.global_shape, leaf.sharding
        of_kin = [at for (other, *rest), at in owners.items() if rest == alike and _ends_alike(tail, other)]
        if of_kin:
            found[number] = of_kin[0]
        else:
            owners[tail, *alike] = number
    return found


def _place_few_axes(rank: int, axes: int) -> Iterator[tuple[int, ...]]:
    """The positions of at most two axes, or of all on one dimension, if all positions would be too many."""
    nowhere = (-1,) * axes
    yield nowhere
    yield from ((number,) * axes for number in range(rank))
    for first, second in product(range(axes), repeat=2):
        for places in product(range(rank), repeat=2):
            if first <= second:
                put = dict(zip((first, second), places, strict=True))
                yield tuple(put.get(axis, -1) for axis in range(axes))


def make_name_pattern(name: str) -> str:
    """A name with layer numbers replaced: `params['layers'][*]['w']`; `W1` and `W2` stay two names."""
    return _NUMBER.sub("*", name)


def _ends_alike(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return bool(short) and (long == short or long.endswith(f".{short}"))


def _is_named(array: CapturedArray, patterns: Iterable[str]) -> bool:
    return any(array.name == pattern or fnmatchcase(array.name, pattern) for pattern in patterns)


def _check_patterns(what: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            few = ", ".join(chain(names[:8], ["…"] if len(names) > 8 else []))
            fix = did_you_mean(pattern, names, f"it has {few}" if names else f"it has no {what}s")
            raise NotationError(f"the program has no {what} {pattern!r}", fix=fix)
