"""The search space: all ways to shard a program, the arrays that may change, and their shardings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, count, product
from math import inf, prod
from types import SimpleNamespace
from typing import Any

from hloscope.base.errors import NotationError, did_you_mean
from hloscope.base.results import group_by
from hloscope.base.units import count_array_bytes
from hloscope.compile.compiling import make_array_records
from hloscope.compile.lowering import Lowered
from hloscope.compile.retracing import RewrittenLine
from hloscope.compile.sharding_change import ConstraintChange, ConstraintEdit, LeafChange, Resharding
from hloscope.compile.step import order_devices
from hloscope.model.analysis import parse_argument_path
from hloscope.model.capture import CapturedArray, ShardyModule, ShardyOp, ShardyValue, ValueSharding, axes_in
from hloscope.tpu.slices import Slice, SliceDevice, list_devices
from hloscope.why.reshards import known_sharding
from hloscope.why.shardy_graph import BARRIER_KINDS, DimensionClass, Dimensions, ShardyGraph, is_written

# ---- A program's arguments and results: their shardings, which of them belong together, and replaced arguments

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLeaf:
    """One argument or result.

    Attributes:
        index: Its position among the flat arguments or results.
        array: The facts from JAX and the compiler.
        sharding: Axes by dimension; None if unknown.
        computed: For a result, its sharding before it is resharded to the requested one.
        value: Shardy's value: the argument or the returned value; None for an argument that the program does not read.
    """

    index: int
    array: CapturedArray
    sharding: ValueSharding | None
    computed: ValueSharding | None = None
    value: ShardyValue | None = None

    @property
    def asked(self) -> ValueSharding | None:
        """The sharding that the user requested; None if left open."""
        return self.sharding if self.array.asked else None

    @property
    def tail(self) -> tuple[str, ...]:
        """The path within its tree: `('layers', '3', 'w')` of `params['layers'][3].w`."""
        return parse_argument_path(self.array.name)[1:]


class ProgramLeaves:
    """All leaves of a program.

    Args:
        arguments: The facts about arguments from JAX, and from the compiler if it ran.
        results: The same about results.
        graph: The program as Shardy propagates it.
    """

    def __init__(
        self, arguments: Sequence[CapturedArray] | None, results: Sequence[CapturedArray] | None, graph: ShardyGraph
    ) -> None:
        self._arguments, self._results = arguments or (), results or ()
        self._graph = graph
        self.mesh = dict(graph.module.mesh)

    @cached_property
    def arguments(self) -> tuple[ProgramLeaf, ...]:
        """The arguments in order; empty if the module's arguments differ."""
        arrays = self._arguments
        used = [index for index, array in enumerate(arrays) if array.used]
        values = sorted(
            filter(self._graph.is_program_argument, self._graph.module.values), key=lambda value: value.number
        )
        if len(values) < len(used):
            return ()
        of = dict(zip(used, values[len(values) - len(used) :], strict=True))  # tokens of ordered effects come first
        return tuple(
            ProgramLeaf(
                index=index, array=array, sharding=None if value is None else known_sharding(value), value=value
            )
            for index, array in enumerate(arrays)
            for value in [of.get(index)]
        )

    @cached_property
    def results(self) -> tuple[ProgramLeaf, ...]:
        """The results in order; empty if the module's results differ."""
        arrays = self._results
        main = self._graph.module.main
        returned = None if main is None else self._graph.returns.get((main, 0))
        if returned is None or len(returned.operands) < len(arrays):
            return ()
        operands = returned.operands[len(returned.operands) - len(arrays) :]
        values = [self._graph.value(operand) for operand in operands]
        return tuple(
            ProgramLeaf(
                index=index,
                array=array,
                sharding=known_sharding(value),
                computed=known_sharding(self._graph.unmoved(value)),
                value=value,
            )
            for index, (array, value) in enumerate(zip(arrays, values, strict=True))
        )

    def argument_named(self, name: str | None) -> ProgramLeaf | None:
        """The argument with a name."""
        return next((leaf for leaf in self.arguments if leaf.array.name == name), None)

    def argument_of(self, value: ShardyValue) -> ProgramLeaf | None:
        """The argument of a value, regardless of the value's shape."""
        root, _ = self._graph.root(value)
        is_own = self._graph.is_program_argument(root)
        return next((leaf for leaf in self.arguments if is_own and leaf.value is not None and leaf.value == root), None)

    @cached_property
    def replaces(self) -> dict[int, int]:
        """The argument that each result replaces in the next step, as far as known.

        Shape and type are equal, and the tail of the path; otherwise, the argument is donated. Of several, it is the
        one that the result is computed from in the fewest operations, then one of the same sharding.
        """
        found: dict[int, int] = {}
        for by_path in (True, False):
            for result in self.results:
                taken = {*found.values()}
                alike = [leaf for leaf in self.arguments if leaf.index not in taken and _have_same_type(leaf, result)]
                if by_path:
                    most = max((_count_common_tail(leaf, result) for leaf in alike), default=0)
                    alike = [leaf for leaf in alike if most and _count_common_tail(leaf, result) == most]
                else:
                    alike = [leaf for leaf in alike if leaf.array.donated]
                if result.index not in found and alike:
                    nearest = self._find_nearest(result, alike, by_path=by_path)
                    found.update({} if nearest is None else {result.index: nearest.index})
        return found

    def _find_nearest(self, result: ProgramLeaf, alike: Sequence[ProgramLeaf], *, by_path: bool) -> ProgramLeaf | None:
        """The argument of several that a result most likely replaces; None if only their order tells them apart."""
        steps = self._count_steps(result)

        def key(leaf: ProgramLeaf) -> tuple[float, bool]:
            return steps.get(leaf.index, inf), leaf.sharding != result.sharding

        first, *others = sorted(alike, key=key)
        is_guess = not by_path and key(first)[0] == inf and any(key(other) == key(first) for other in others)
        return None if is_guess else first

    def _count_steps(self, result: ProgramLeaf) -> dict[int, int]:
        """The number of operations from each argument to a result, through values of its shape alone."""
        named = {leaf.value.index: leaf.index for leaf in self.arguments if leaf.value is not None}
        found: dict[int, int] = {}
        pending = [] if result.value is None else [result.value]
        seen = {value.index for value in pending}
        for steps in count():
            if not pending:
                return found
            found.update({named[value.index]: steps for value in pending if value.index in named})
            before = [each for value in pending for each in self._list_operands(value)]
            pending = [each for each in {each.index: each for each in before}.values() if each.index not in seen]
            seen |= {each.index for each in pending}
        return found

    def _list_operands(self, value: ShardyValue) -> list[ShardyValue]:
        """The values of one shape that a value is computed from: before a loop, and within a function or region."""
        graph, op = self._graph, self._graph.op(value)
        if op is None or op.kind == "func.call" or op.kind in BARRIER_KINDS:
            before = graph.before(value)
            return [] if before is None else [before[0]]
        if op.kind == "stablehlo.while":
            return [graph.value(op.operands[value.number])]
        inside = graph.returns.get((op.index, 0)) if op.kind == "sdy.manual_computation" else None
        if inside is not None:
            return [graph.value(inside.operands[value.number])]
        return [each for each in map(graph.value, op.operands) if each.shape == value.shape]

    def alike(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The same argument of all layers, including `leaf`: names that differ only in numbers."""
        pattern = _NUMBER.sub("#", leaf.array.name)
        same = (other for other in self.arguments if _NUMBER.sub("#", other.array.name) == pattern)
        return tuple(other for other in same if _have_same_type(leaf, other) and other.sharding == leaf.sharding)

    def of_one_kind(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The states with the same shape, type and sharding, including `leaf`, such as caches of keys and values."""
        states = {*self.replaces.values()}
        same = (other for other in self.arguments if other.index in states and _have_same_type(leaf, other))
        return tuple(other for other in same if other.sharding == leaf.sharding)

    def states_of(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The arguments that belong to another one, such as a weight's momenta: the same tail, shape and sharding."""
        return tuple(
            other
            for other in self.arguments
            if other.array.global_shape == leaf.array.global_shape
            and other.sharding == leaf.sharding
            and (other.index == leaf.index or (leaf.tail and other.tail[-len(leaf.tail) :] == leaf.tail))
        )

    def fits(self, array: CapturedArray, sharding: ValueSharding | None) -> bool:
        """Returns whether JAX accepts a sharding for an array: each axis once, all dimensions divided evenly.

        A type that records pending sums accepts no other sharding, because they belong to its own.
        """
        if "reduced=" in (array.sharding or ""):
            return False
        if sharding is None:
            return True
        axes = [axis for here in sharding for axis in here]
        if len(axes) != len(set(axes)) or any(":" in axis or axis not in self.mesh for axis in axes):
            return False
        return len(sharding) == len(array.global_shape) and all(
            size % prod(self.mesh[axis] for axis in here) == 0
            for size, here in zip(array.global_shape, sharding, strict=True)
        )

    def change(
        self,
        arguments: Iterable[tuple[ProgramLeaf, ValueSharding]] = (),
        results: Iterable[tuple[ProgramLeaf, ValueSharding | None]] = (),
    ) -> Resharding | None:
        """A change of specs, including those of the results that replace the arguments; None if it changes nothing.

        A result that replaces a changed argument gets its sharding, even if the program leaves it open: otherwise the
        next step would begin with another sharding than this one, or with a move that nothing has the price of.

        Args:
            arguments: Arguments and their new specs.
            results: Results and their new specs; None leaves one open.
        """
        into = {leaf.index: (leaf, spec) for leaf, spec in arguments if spec != leaf.sharding}
        out_of: dict[int, tuple[ProgramLeaf, ValueSharding | None]] = {
            leaf.index: (leaf, spec) for leaf, spec in results if spec != leaf.asked
        }
        for index, argument in self.replaces.items():
            result = self.results[index]
            if index not in out_of and argument in into and into[argument][1] != result.asked:
                out_of[index] = (result, into[argument][1])
        specs = [*into.values(), *out_of.values()]
        if not specs or not all(self.fits(leaf.array, spec) for leaf, spec in specs):
            return None
        return Resharding(
            arguments=tuple(
                replace(
                    _make_leaf_change(*into[index], into[index][0].sharding), moves=self._moves(index, into, out_of)
                )
                for index in sorted(into)
            ),
            results=tuple(
                _make_leaf_change(*out_of[index], out_of[index][0].asked, self.replaces.get(index))
                for index in sorted(out_of)
            ),
            frees_output=any(self._frees(index, spec, into) for index, (_, spec) in out_of.items()),
        )

    def _moves(
        self,
        argument: int,
        into: dict[int, tuple[ProgramLeaf, ValueSharding]],
        out_of: dict[int, tuple[ProgramLeaf, ValueSharding | None]],
    ) -> bool:
        """Returns whether no result that replaces an argument has the argument's new sharding."""
        after = into[argument][1]
        replacing = (index for index, replaced in self.replaces.items() if replaced == argument)
        return all((out_of[index][1] if index in out_of else self.results[index].asked) != after for index in replacing)

    def _frees(
        self, index: int, spec: ValueSharding | None, into: dict[int, tuple[ProgramLeaf, ValueSharding]]
    ) -> bool:
        is_asked = self.results[index].asked is not None
        argument = self.replaces.get(index)
        if argument is None or spec is None:
            return is_asked
        return spec != (into[argument][1] if argument in into else self.arguments[argument].sharding)

    def layouts(self, leaf: ProgramLeaf, axes: Iterable[str]) -> Iterator[ValueSharding]:
        """Other shardings of an array for these axes: without them, and on each other dimension that they divide.

        An array that they do not shard yet is sharded by them.
        """
        if leaf.sharding is None:
            return
        wanted = tuple(dict.fromkeys(axis for axis in axes if axis in self.mesh))
        bare = tuple(tuple(axis for axis in here if axis not in wanted) for here in leaf.sharding)
        yield bare
        own = tuple(axis for axis in wanted if axis in axes_in(leaf.sharding)) or wanted
        for number in range(len(bare)):
            yield tuple((*here, *own) if number == at else here for at, here in enumerate(bare))


def _make_leaf_change(
    leaf: ProgramLeaf, after: ValueSharding | None, before: ValueSharding | None, replaces: int | None = None
) -> LeafChange:
    return LeafChange(index=leaf.index, name=leaf.array.name, before=before, after=after, replaces=replaces)


def _have_same_type(one: ProgramLeaf, other: ProgramLeaf) -> bool:
    return (one.array.global_shape, one.array.dtype) == (other.array.global_shape, other.array.dtype)


def _count_common_tail(one: ProgramLeaf, other: ProgramLeaf) -> int:
    """The number of names that two paths share at their ends; numbers alone do not count."""
    count, named = 0, 0
    for mine, theirs in zip(reversed(one.tail), reversed(other.tail), strict=False):
        if mine != theirs:
            break
        count += 1
        named += not mine.isdigit()
    return count if named else 0


_NUMBER_OUTSIDE_WORD = re.compile(r"(?<![A-Za-z\d])\d+")
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
        lines: The constraints to write into the source, in words.
        written: The lines of the source with them.
    """

    mesh: tuple[int, ...]
    specs: tuple[ValueSharding | None, ...]
    constraints: str = KEPT
    order: tuple[int, ...] | None = None
    lines: tuple[str, ...] = ()
    written: tuple[RewrittenLine, ...] = ()


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

    @property
    def held_results(self) -> tuple[ProgramLeaf, ...]:
        """The results that keep their requested sharding and do not follow an argument."""
        freed = {leaf.index for part in self.parts if part.is_result for leaf in part.leaves} | {*self.leaves.replaces}
        return tuple(leaf for leaf in self.leaves.results if leaf.asked is not None and leaf.index not in freed)

    def freed(self, point: Point) -> Resharding | None:
        """The change to a point with all results open that keep their requested sharding; None without such results."""
        kept = self.held_results
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
        cut = self.cut_classes(point)
        edits: list[_Edit] = []
        for op in self.constraints:
            after = None if point.constraints == DROPPED else self.follow_classes(op.results[0], cut)
            edits.append((op, op.asked or self.graph.value(op.results[0]).sharding, after))
        of_line = group_by(edits, lambda each: each[0].source[:1])
        for op, before, after in edits:
            if after != before or point.constraints != FOLLOWING:
                edit = ConstraintEdit(operation=op.identity[-1], sharding=after)
                yield ConstraintChange(edits=(edit,), place=_name_place(op, of_line[op.source[:1]]), before=before)

    def cut_classes(self, point: Point) -> dict[DimensionClass, tuple[str, ...]]:
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

    def list_users(self, value: int) -> list[tuple[ShardyOp, int]]:
        """The users of a value that an edit of the module finds, each with the operand's number."""
        users = self.graph.users(self.graph.value(value))
        found = ((op, operand) for op, operand in users if op.identity and not self.graph.in_manual(op))
        return [(op, operand) for op, operand in found if self._numbers[op.identity[-1]] == 1]

    @cached_property
    def _numbers(self) -> Counter[int]:
        """The number of operations with each last number of an identity."""
        return Counter(op.identity[-1] for op in self.graph.module.ops if op.identity)

    def follow_classes(self, index: int, cut: Mapping[DimensionClass, tuple[str, ...]]) -> ValueSharding:
        """The sharding of a value whose dimensions are sharded as their classes are, each axis once."""
        value = self.graph.value(index)
        spec: list[tuple[str, ...]] = []
        for size, dimension in zip(value.shape, self.dimensions.of(value.index), strict=True):
            axes = cut.get(dimension, ())
            seen = {axis for here in spec for axis in here}
            usable = tuple(axis for axis in axes if axis not in seen)
            spec.append(usable if size % prod(self.mesh[axis] for axis in usable) == 0 else ())
        return tuple(spec)


_Edit = tuple[ShardyOp, ValueSharding | None, ValueSharding | None]
"""A constraint with its sharding before and after."""


def _name_place(op: ShardyOp, edits: Sequence[_Edit]) -> str:
    """The line of a constraint: `moe.py:31`; if others in that line are edited otherwise, that of the helper's call.

    Args:
        op: The constraint.
        edits: Those in its line.
    """
    own = next(edit for other, *edit in edits if other is op)
    others = [other.source for other, *edit in edits if edit != own]
    apart = (at for at in range(len(op.source)) if all(op.source[: at + 1] != each[: at + 1] for each in others))
    frame = op.source[next(apart, 0)] if op.source else None
    return "no line" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


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
    return _NUMBER_OUTSIDE_WORD.sub("*", name)


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


# ---- Orders of a slice's devices in a mesh: that of `jax.make_mesh`, and others that may be better


def follows_axes(chosen: Slice, mesh_shape: Sequence[int]) -> bool:
    """Returns whether `jax.make_mesh` lays a mesh over a slice without splitting an axis of the slice."""
    return _find_default_order(chosen, mesh_shape) is not None


def find_device_orders(chosen: Slice, mesh_shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Other orders of a slice's devices than that of `jax.make_mesh`, by their positions in `jax.devices()`.

    They are that of `jax.devices()` itself and, if one axis takes all devices, a path from neighbor to neighbor.
    """
    known = list_devices(chosen)
    if prod(mesh_shape) != len(known) or chosen.slice_count > 1:
        return
    usual = _find_default_order(chosen, mesh_shape)
    orders = [tuple(range(len(known)))]
    if max(mesh_shape) == len(known):
        orders.insert(0, _make_winding_order(known))
    yield from (order for order in dict.fromkeys(orders) if order != usual)


def _find_default_order(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The order of `jax.make_mesh`; None if it refuses the mesh."""
    assert chosen.chip is not None
    of_all = {"device_kind": chosen.chip.device_kind, "platform": "tpu", "process_index": 0, "slice_index": 0}
    devices = [
        SimpleNamespace(id=place, coords=known.coords, core_on_chip=known.core_on_chip, **of_all)
        for place, known in enumerate(list_devices(chosen))
    ]
    ordered = order_devices(mesh_shape, devices) if prod(mesh_shape) == len(devices) else None
    return None if ordered is None else tuple(device.id for device in ordered)


def _make_winding_order(known: Sequence[SliceDevice]) -> tuple[int, ...]:
    """Row after row in alternating directions, and layer after layer in the same way.

    In two dimensions it winds through the other columns and returns through the first one, so that its last
    device is a neighbor of its first.
    """
    depth, height, width = (max(device.coords[axis] for device in known) + 1 for axis in (2, 1, 0))
    if depth == 1 and height % 2 == 0 and width > 1 and height > 1:
        path = [(x, y, 0) for y in range(height) for x in _turn_row(range(1, width), y)]
        path += [(0, y, 0) for y in reversed(range(height))]
    else:
        rows = [(y, z) for z in range(depth) for y in _turn_row(range(height), z)]
        path = [(x, y, z) for number, (y, z) in enumerate(rows) for x in _turn_row(range(width), number)]
    place = {(*device.coords, device.core_on_chip): at for at, device in enumerate(known)}
    cores = sorted({device.core_on_chip for device in known})
    return tuple(place[*coords, core] for coords in path for core in cores)


def _turn_row(row: range, number: int) -> Sequence[int]:
    """A row, reversed if its number is odd."""
    return row if number % 2 == 0 else row[::-1]
