"""Claims to mesh axes: the classes of dimensions that arguments, constraints and outputs give them to.

An axis cuts at most one dimension of a value. Where two classes that both claim it meet in one operation, one of them
has it there, and the other one must do without.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from hloscope.base.units import count_array_bytes
from hloscope.model.capture import (
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_cut_dimensions,
    find_whole_axes,
    multiply_axis_sizes,
    render_spec,
    whole_axis,
)
from hloscope.model.decision import Place
from hloscope.model.reason import AskedBy, Axes, Claim, Dimension, DimensionRole
from hloscope.why.reshards import find_assigned_name, hlo_type, known_sharding
from hloscope.why.shardy_graph import (
    MOVE_KINDS,
    DimensionClass,
    Dimensions,
    ShardyGraph,
    is_users_constraint,
    is_written,
    to_frames,
)

_NUMBERED = re.compile(r"^(?:(?P<holder>\w+)_)?(?P<side>input|output): (?P<number>\d+)$")
_MOST_PLACES = 4
_HOLDERS = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "func.call"})
"""Operations whose results come from the operations in them, at which a decision fell first."""
_OWN = ("self", None)
"""The origins of an axis that an argument has by request, and not by propagation."""


class Askers:
    """The requests of a program that shard its arrays: its arguments, constraints and outputs.

    Args:
        graph: The module.
        outputs: The names of the program's outputs, in order.
        requested: The outputs whose sharding was requested.
        given: The arguments whose sharding was given; None if that is not known.
    """

    def __init__(
        self,
        graph: ShardyGraph,
        outputs: tuple[str, ...],
        requested: frozenset[int],
        given: frozenset[int] | None = None,
    ) -> None:
        self.graph, self.outputs, self.requested, self._given = graph, outputs, requested, given

    def has_own(self, value: ShardyValue, axis: str) -> bool:
        """Returns whether an argument of the program was given this axis, and does not have it by propagation."""
        return value.origins.get(axis) in _OWN if self._given is None else value.number in self._given

    def find_askers(self, value: ShardyValue, axes: Iterable[str]) -> tuple[AskedBy, ...]:
        """The requests that put these axes on a value, each once."""
        return tuple(dict.fromkeys(filter(None, (self._find_asker(value, axis) for axis in axes))))

    def _find_asker(self, value: ShardyValue, axis: str) -> AskedBy | None:
        graph = self.graph
        origin = value.origins.get(axis) or value.origins.get(whole_axis(axis))
        if origin is None:
            return None
        numbered = _NUMBERED.match(origin)
        holder = origin if numbered is None else numbered["holder"]
        if origin == "self" and graph.is_program_argument(value):
            return make_argument_asker(value, axis)
        if numbered is None or holder:
            op = graph.op(value) if origin == "self" else graph.named.get(holder)
            return None if op is None else self.make_asker(op, axis)
        number = int(numbered["number"])
        if numbered["side"] == "input":
            argument = graph.arguments.get(number)
            return None if argument is None else make_argument_asker(argument, axis)
        return self.find_output_asker(number, axis)

    def find_holders(self, value: ShardyValue, axes: Iterable[str]) -> tuple[AskedBy, ...]:
        """The requests that put these axes on a value's origin: its argument, or a constraint on the way back to it.

        If neither has them, Shardy's statement about the nearest value that it has one for.
        """
        return tuple(dict.fromkeys(filter(None, (self._find_axis_holder(value, axis) for axis in axes))))

    def _find_axis_holder(self, value: ShardyValue, axis: str) -> AskedBy | None:
        graph = self.graph
        nearest: AskedBy | None = None
        for before in graph.chain(value):
            op = graph.op(before)
            has = whole_axis(axis) in find_whole_axes(axes_in(before.sharding))
            if has and graph.is_program_argument(before):
                return make_argument_asker(before, axis)
            if has and op is not None and op.source and op.origin_name is not None:
                return self.make_asker(op, axis)
            nearest = nearest or self._find_asker(before, axis)
        return nearest

    def find_output_asker(self, number: int, axis: str) -> AskedBy | None:
        """The program's output with a number, with the sharding that it requests; None if it was left open."""
        if number not in self.requested:
            return None
        sharding = render_spec(self.returned[number].sharding) if number < len(self.returned) else None
        name = self.outputs[number] if number < len(self.outputs) else f"result[{number}]"
        return AskedBy(axis=axis, by="output", name=name, sharding=sharding)

    @cached_property
    def returned(self) -> tuple[ShardyValue, ...]:
        """The values that the program returns."""
        main = self.graph.module.main
        returned = None if main is None else self.graph.returns.get((main, 0))
        return () if returned is None else tuple(map(self.graph.value, returned.operands))

    def make_asker(self, op: ShardyOp, axis: str) -> AskedBy:
        """An operation that requests a sharding, or the argument whose sharding it repeats."""
        graph = self.graph
        if op.kind == "sdy.manual_computation":
            return AskedBy(axis=axis, by="shard_map", name=None, source=to_frames(op.source))
        sharding = op.asked or graph.value(op.results[0]).sharding
        root, _ = graph.root(graph.value(op.operands[0]))
        if not is_written(op) and graph.is_program_argument(root) and axis in axes_in(root.sharding):
            # a copy by the compiler of an argument's sharding, or by explicit mode of any value's
            return make_argument_asker(root, axis)
        spec = render_spec(sharding)
        return AskedBy(axis=axis, by="constraint", name=None, sharding=spec, source=to_frames(op.source))


def make_argument_asker(value: ShardyValue, axis: str) -> AskedBy:
    """The program's argument that a value is, as who asks for its sharding."""
    name = value.name or f"argument {value.number}"
    return AskedBy(axis=axis, by="argument", name=name, sharding=render_spec(value.sharding))


class Claims:
    """The classes of a program's dimensions that claim its axes.

    Args:
        askers: The requests of the program.
        letters: A letter for each dimension, by value.

    Attributes:
        askers: The requests of the program.
        graph: The program.
    """

    def __init__(self, askers: Askers, letters: Mapping[int, Sequence[str | None]]) -> None:
        self.askers, self.graph, self._known_letters = askers, askers.graph, letters
        self._known: dict[DimensionClass, Dimension] = {}
        self._described: dict[Dimension, list[DimensionClass]] = defaultdict(list)

    @property
    def dimensions(self) -> Dimensions:
        """The classes of the program's dimensions."""
        return self.graph.dimensions

    # The requests for an axis.

    @cached_property
    def _holders(self) -> Mapping[tuple[DimensionClass, str], tuple[AskedBy, ...]]:
        """The requests that give an axis to a class, by both; a part of a class is claimed with the whole."""
        found: dict[tuple[DimensionClass, str], dict[AskedBy, None]] = defaultdict(dict)
        for value, axis, number, asker in (*self._list_argument_claims(), *self._list_constraint_claims()):
            found[self.dimensions.of(value.index)[number], axis][asker] = None
        for value, axis, number, asker in self._list_output_claims():
            found[self.dimensions.of(value.index)[number], axis].setdefault(asker)
        for (whole, axis), askers in list(found.items()):
            for part in self.list_parts(whole):
                found[part, axis].update(askers)
        return {key: tuple(askers) for key, askers in found.items()}

    def list_parts(self, whole: DimensionClass) -> Iterator[DimensionClass]:
        """The classes that are parts of one, and their parts."""
        pending, seen = [whole], {whole}
        while pending:
            for part in self.dimensions.parts.get(pending.pop(), frozenset()) - seen:
                seen.add(part)
                pending.append(part)
                yield part

    def _list_argument_claims(self) -> Iterator[tuple[ShardyValue, str, int, AskedBy]]:
        for _, value in sorted(self.graph.arguments.items()):
            for number, axes in enumerate(known_sharding(value)):
                for axis in axes:
                    if self.askers.has_own(value, axis):
                        yield value, whole_axis(axis), number, make_argument_asker(value, axis)

    def _list_constraint_claims(self) -> Iterator[tuple[ShardyValue, str, int, AskedBy]]:
        for op in self.graph.module.ops:
            if is_written(op):
                value = self.graph.value(op.results[0])
                asked = op.asked or known_sharding(value)
                for number, axes in enumerate(asked if len(asked) == len(value.shape) else ()):
                    for axis in axes:
                        yield value, whole_axis(axis), number, self.askers.make_asker(op, axis)

    def _list_output_claims(self) -> Iterator[tuple[ShardyValue, str, int, AskedBy]]:
        for number, value in enumerate(self.askers.returned):
            for dimension, axes in enumerate(known_sharding(value)):
                for axis in axes:
                    asker = self.askers.find_output_asker(number, axis)
                    if asker is not None:
                        yield value, whole_axis(axis), dimension, asker

    def find_claimants(self, dimension: DimensionClass, axis: str) -> tuple[AskedBy, ...]:
        """The requests that give an axis to a class."""
        return self._holders.get((dimension, axis), ())

    def find_claimants_of(self, dimension: Dimension | None, axis: str) -> tuple[AskedBy, ...]:
        """The requests that give an axis to the classes of one description; empty for None."""
        found = () if dimension is None else self._described.get(dimension, ())
        return tuple(dict.fromkeys(asker for each in found for asker in self.find_claimants(each, axis)))

    # Classes in words.

    def describe(self, dimension: DimensionClass) -> Dimension:
        """A class of dimensions under its name in the user's code; classes of one name, as of layers, are one."""
        if dimension not in self._known:
            size = self._sizes[dimension]
            letter = self.letters.get(dimension)
            made = Dimension(name=letter or str(size), size=size, role=self._roles.get(dimension))
            self._known[dimension] = made
            self._described[made].append(dimension)
        return self._known[dimension]

    def _describe_other(self, dimension: DimensionClass, than: DimensionClass | None) -> Dimension:
        """A class of dimensions, with a mark at its name if another one has the same."""
        made = self.describe(dimension)
        if than is None or made != self.describe(than):
            return made
        marked = replace(made, name=f"{made.name}'")
        if dimension not in self._described[marked]:
            self._described[marked].append(dimension)
        return marked

    @cached_property
    def _sizes(self) -> Mapping[DimensionClass, int]:
        """The largest size of each class among the values that have its letter, among all if it has none.

        A part of it may be smaller, and what it is a part of larger: 16 groups G of 16,384 tokens.
        """
        found: dict[DimensionClass, int] = defaultdict(int)
        for value in self.graph.module.values:
            letters = self._known_letters.get(value.index) or (None,) * len(value.shape)
            for size, dimension, letter in zip(value.shape, self.dimensions.of(value.index), letters, strict=False):
                if self.letters.get(dimension) in (None, letter):
                    found[dimension] = max(found[dimension], size)
        return found

    @cached_property
    def letters(self) -> Mapping[DimensionClass, str]:
        """The letter that most values have for each class."""
        found: dict[DimensionClass, Counter[str]] = defaultdict(Counter)
        for index, letters in self._known_letters.items():
            for letter, dimension in zip(letters, self.dimensions.of(index), strict=False):
                if letter is not None and letter.isalpha():
                    found[dimension][letter] += 1
        return {dimension: letters.most_common(1)[0][0] for dimension, letters in found.items()}

    @cached_property
    def _roles(self) -> Mapping[DimensionClass, DimensionRole]:
        """The roles of dimensions in a training step: those of its weights, and of data that comes from outside.

        A weight is an argument that a result of the same dimensions replaces. Of a program of which most arguments are
        not replaced, nothing is known.
        """
        replaced = {self.dimensions.of(value.index) for value in self.askers.returned if value.shape}
        of = [self.dimensions.of(value.index) for value in self.graph.arguments.values() if value.shape]
        state = [classes for classes in of if classes in replaced]
        if 2 * len(state) <= len(of):
            return {}
        weights = {dimension for classes in state for dimension in classes}
        found = dict.fromkeys(weights, DimensionRole.FEATURES)
        for classes in (classes for classes in of if classes not in replaced):
            for number, dimension in enumerate(classes):
                role = DimensionRole.DATA if number else DimensionRole.BATCH
                for part in (dimension, *self.list_parts(dimension)):
                    found.setdefault(part, role)
        return found

    # The class that has an axis at an operation, and the one that does without.

    def find_moved(
        self, value: ShardyValue, before: ValueSharding, after: ValueSharding, axes: Axes
    ) -> tuple[Claim, ...]:
        """The classes that lose axes in one value, and those that get them there."""
        classes, found = self.dimensions.of(value.index), []
        for axis in dict.fromkeys(map(whole_axis, axes)):
            lost, won = (
                [classes[number] for number in find_cut_dimensions(sharding, (axis,))] for sharding in (before, after)
            )
            won = [dimension for dimension in won if dimension not in lost]
            winner = self.describe(won[0]) if won else None
            loser = self._describe_other(lost[0], won[0] if won else None) if lost else None
            found.append(Claim(axis=axis, winner=winner, loser=loser))
        return tuple(found)

    def find(self, op: ShardyOp | None, number: int | None, axes: Axes) -> tuple[Claim, ...]:
        """The classes that have axes at an operation, and those that claim them there and lack them.

        Args:
            op: The operation; None if it is unknown.
            number: The operand that moves; None for a partial sum.
            axes: The axes.
        """
        is_known = op is not None and op.rule is not None and len(op.rule.operands) == len(op.operands)
        if op is None or op.rule is None or not is_known:
            return ()
        found = []
        for axis in dict.fromkeys(map(whole_axis, axes)):
            having = self._find_having(op, axis, skip=number)
            summed = {factor for factor in having if factor in op.rule.reduction}
            moved = set() if number is None else self._find_cut(op.operands[number], op.rule.operands[number], axis)
            winners = summed if number is None and summed else having - moved
            winners = set() if moved & op.rule.need_replication else winners
            losers = moved or self._find_claiming(op, axis) - winners or self._find_spare(op, axis, summed)
            found.append(self._make_claim(op, axis, winners, losers, moves=bool(moved)))
        return tuple(found)

    def find_whole(self, op: ShardyOp | None, number: int | None, axes: Axes) -> tuple[Claim, ...]:
        """The classes that lose axes at an operation without a rule, which makes its operands whole."""
        if op is None or op.rule is not None or number is None:
            return ()
        value = self.graph.unmoved(self.graph.value(op.operands[number]))
        return self.find_moved(value, known_sharding(value), ((),) * len(value.shape), axes)

    def _make_claim(
        self, op: ShardyOp, axis: str, winners: Iterable[int], losers: Iterable[int], *, moves: bool
    ) -> Claim:
        won, lost = (
            list(dict.fromkeys(self.dimensions.of_factor(op.index, factor) for factor in sorted(factors)))
            for factors in (winners, losers)
        )
        lost = [dimension for dimension in lost if dimension not in self._reach(won)]
        lost = [dimension for dimension in lost if not self._reach([dimension]) & {*won}]
        lost.sort(key=lambda dimension: -len(self.find_claimants(dimension, axis)))
        if moves and not lost:  # another dimension of the same class, as of queries and keys, which is made whole
            won, lost = [], won
        winner = won[0] if won else None
        loser = lost[0] if lost else None
        if loser is None:
            other_bytes = None
        elif winner is None:
            other_bytes = self._count_exchanged(op, axis, loser)
        else:
            other_bytes = self._count_other_bytes(op, axis, loser)
        return Claim(
            axis=axis,
            winner=None if winner is None else self.describe(winner),
            loser=None if loser is None else self._describe_other(loser, winner),
            other_bytes=other_bytes,
            operation=op.index,
        )

    def _find_spare(self, op: ShardyOp, axis: str, summed: set[int]) -> set[int]:
        """The factor that could have an axis over which sums are completed that are larger than what they are of.

        Nothing claims the axis for it: it is the one with which the least would be sent. Empty without one.
        """
        if not summed or not op.results or self.graph.in_manual(op):
            return set()
        result = self.graph.unmoved(self.graph.value(op.results[0]))
        sizes = [self._count_bytes(value, axis) for value, _ in self.list_sides(op)]
        operands, made = sizes[: len(op.operands)], sizes[len(op.operands)]
        if made is None or sum(size or made for size in operands) >= made:
            return set()
        assert op.rule is not None
        found = {
            factors[0]: self._count_other_bytes(op, axis, self.dimensions.of_factor(op.index, factors[0]))
            for number, factors in enumerate(op.rule.results[0])
            if factors and factors[0] not in op.rule.reduction and self.is_divided_by(result, number, axis)
        }
        known = {factor: size for factor, size in found.items() if size}
        return {min(known, key=lambda factor: known[factor])} if known else set()

    def is_divided_by(self, value: ShardyValue, number: int, axis: str) -> bool:
        """Returns whether an axis, beside those that do already, can shard a dimension of a value evenly."""
        mesh = self.graph.module.mesh
        others = [each for each in known_sharding(value)[number] if whole_axis(each) != axis]
        return value.shape[number] % (multiply_axis_sizes(others, mesh) * mesh.get(axis, 1)) == 0

    def list_sides(self, op: ShardyOp) -> Iterator[tuple[ShardyValue, Sequence[tuple[int, ...]]]]:
        """The operands and results of an operation, before they are moved for it, with each dimension's factors."""
        assert op.rule is not None
        pairs = (*zip(op.operands, op.rule.operands, strict=False), *zip(op.results, op.rule.results, strict=False))
        for index, mapping in pairs:
            yield self.graph.unmoved(self.graph.value(index)), mapping

    def _find_cut(self, index: int, mapping: Sequence[tuple[int, ...]], axis: str) -> set[int]:
        """The major factors that an axis shards in an operand."""
        value = self.graph.unmoved(self.graph.value(index))
        return {mapping[number][0] for number in find_cut_dimensions(known_sharding(value), (axis,)) if mapping[number]}

    def _find_having(self, op: ShardyOp, axis: str, skip: int | None) -> set[int]:
        """The factors that an axis shards in the operands and results of an operation, without one operand."""
        assert op.rule is not None
        found: set[int] = set()
        for index, (value, mapping) in enumerate(self.list_sides(op)):
            if index != skip:
                found |= {
                    mapping[number][0]
                    for number in find_cut_dimensions(known_sharding(value), (axis,))
                    if number < len(mapping) and mapping[number]
                }
        return found

    def _find_claiming(self, op: ShardyOp, axis: str) -> set[int]:
        """The factors of an operation whose classes claim an axis somewhere."""
        assert op.rule is not None
        factors = (factor for _, mapping in self.list_sides(op) for here in mapping for factor in here[:1])
        return {factor for factor in factors if self.find_claimants(self.dimensions.of_factor(op.index, factor), axis)}

    # Where it fell.

    def find_places(self, axis: str, winner: Dimension | None, loser: Dimension | None) -> tuple[Place, ...]:
        """The first values of two classes where the first one has an axis, and the other one had it before.

        If the other one never had it, as where a loop takes slices of what the axis shards, the first values of both.
        """
        if loser is None:
            return ()
        found: dict[object, Place] = {}

        def add(places: Iterable[Place]) -> None:
            for place in places:
                found.setdefault((place.argument, place.source[:1], place.operation, place.sharding), place)

        for lost in self._described[loser]:
            if winner is None:
                add(self._find_needed(axis, lost))
                continue
            for finder in (self._find_spare_sums, self._find_places_of, self._find_sums, self._find_arguments):
                for won in self._described[winner]:
                    add(finder(axis, won, lost))
        return tuple(found.values())[:_MOST_PLACES]

    def find_repeated_places(self, axis: str, loser: Dimension) -> tuple[Place, ...]:
        """The first operands of matmuls that devices repeat because an axis shards nothing there, with the axis."""
        places = (place for lost in self._described[loser] for place in self._find_repeated(axis, lost))
        return tuple({(place.argument, place.source[:1], place.sharding): place for place in places}.values())[
            :_MOST_PLACES
        ]

    def describe_all(self) -> None:
        """Describes all classes, so that places are found by descriptions from another trace of the program."""
        for value in self.graph.module.values:
            for dimension in self.dimensions.of(value.index):
                self.describe(dimension)

    def find_dimensions(self, value: ShardyValue, described: Dimension) -> tuple[int, ...]:
        """The dimensions of a value that have a description."""
        classes = self.dimensions.of(value.index)
        return tuple(number for number, each in enumerate(classes) if self.describe(each) == described)

    def find_requests(
        self, axis: str, winner: Dimension | None, loser: Dimension | None
    ) -> Iterator[tuple[ShardyOp, ValueSharding]]:
        """The program's constraints that give an axis to one class and not to another one, and the opposite of each.

        Without a winner, those that leave the axis out.
        """
        for op in self.graph.module.ops if loser is not None else ():
            if not is_written(op) or not op.identity or self.graph.in_manual(op):
                continue
            value = self.graph.value(op.results[0])
            asked = op.asked or known_sharding(value)
            described = [self.describe(dimension) for dimension in self.dimensions.of(value.index)]
            given = [described[number] for number in find_cut_dimensions(asked, (axis,)) if number < len(described)]
            if loser in described and given == ([] if winner is None else [winner]):
                yield op, self.move(asked, axis, described.index(loser), self._described[loser][0])

    def find_typed_places(
        self, axis: str, winner: Dimension | None, loser: Dimension | None
    ) -> Iterator[tuple[Place, ValueSharding]]:
        """The values of a class that lack an axis there, and have it at no class but the winner; once per expression.

        Each has its present sharding beside it. With explicit axes that is a part of its type, which the program
        requests where it makes the value.
        """
        seen = set[object]()
        for op in self.graph.module.ops if loser is not None else ():
            is_own = op.kind not in MOVE_KINDS or is_users_constraint(op)
            if not is_own or not op.source or not op.results or self.graph.in_manual(op):
                continue
            value = self.graph.value(op.results[0])
            key = op.source[0], op.op_name, value.shape
            for found in self._find_typed(op, value, axis, winner, loser) if key not in seen else ():
                seen.add(key)
                yield found

    def _find_typed(
        self, op: ShardyOp, value: ShardyValue, axis: str, winner: Dimension | None, loser: Dimension | None
    ) -> Iterator[tuple[Place, ValueSharding]]:
        described = [self.describe(dimension) for dimension in self.dimensions.of(value.index)]
        sharding = op.asked or known_sharding(value)
        given = [described[number] for number in find_cut_dimensions(sharding, (axis,)) if number < len(described)]
        if loser in described and given in ([], [winner]):
            moved = self.move(sharding, axis, described.index(loser), self._described[loser][0])
            yield self._describe_place(op, value, moved), sharding

    def find_carried_places(
        self, axis: str, winner: Dimension | None, loser: Dimension | None
    ) -> Iterator[tuple[Place, ValueSharding]]:
        """The first values of what loops carry, as `find_typed_places` has others: they are to have the same types."""
        for op in self.graph.module.ops if loser is not None else ():
            for result in map(self.graph.value, op.results):
                for maker, value in self._find_entering(op, result):
                    if maker.source[:1] != op.source[:1] and not is_written(maker):  # which is not the loop's own
                        yield from self._find_typed(maker, value, axis, winner, loser)

    def find_used_places(
        self, axis: str, winner: Dimension | None, loser: Dimension | None
    ) -> Iterator[tuple[Place, Place]]:
        """The sums over a class that has an axis, each with an operand whose other class would have it."""
        for op in self.graph.module.ops if winner is not None and loser is not None else ():
            if op.rule is None or not op.source or not op.rule.reduction or self.graph.in_manual(op):
                continue
            summed = {self.describe(self.dimensions.of_factor(op.index, factor)) for factor in op.rule.reduction}
            for value, _ in list(self.list_sides(op))[: len(op.operands)] if winner in summed else ():
                made = self.graph.value(op.results[0])
                for moved, _ in self._find_typed(op, value, axis, winner, loser):
                    yield self._describe_place(op, made, known_sharding(made)), moved

    def move(self, sharding: ValueSharding, axis: str, number: int, dimension: DimensionClass) -> ValueSharding:
        """A sharding with an axis at one dimension, and nowhere else."""
        kept = [tuple(each for each in axes if whole_axis(each) != axis) for axes in sharding]
        order = self._list_order(dimension)
        kept[number] = tuple(sorted((axis, *kept[number]), key=lambda each: order.get(whole_axis(each), len(order))))
        return tuple(kept)

    def _find_places_of(self, axis: str, won: DimensionClass, lost: DimensionClass) -> Iterator[Place]:
        met = list(self._find_meetings(axis, won, lost))
        parted = [(op, value) for op, value in met if self._holds(self._list_operands(op), lost, axis)]
        entering = [pair for op, value in parted for pair in self._find_entering(op, value)]
        entering = [(op, value) for op, value in entering if self._holds(self._list_operands(op), lost, axis)]
        inner = [(op, value) for op, value in parted if op.kind not in _HOLDERS]
        holding = [(op, value) for op, value in parted if op.kind in _HOLDERS]
        first = sorted((*entering, *inner), key=lambda pair: pair[0].index)
        for op, value in (*first, *holding)[: _MOST_PLACES * _MOST_PLACES] if first else met[:_MOST_PLACES]:
            yield self._make_place(op, value, axis, lost)

    def _find_needed(self, axis: str, lost: DimensionClass) -> Iterator[Place]:
        """The values of which an operation needs a dimension whole, with the axis at each other one it divides."""
        for op in self.graph.module.ops:
            for value in self._list_needed(op, axis, lost):
                yield from self._shard_origin(value, axis, self._list_spare_dimensions(op, value, axis, lost))

    def _find_repeated(self, axis: str, lost: DimensionClass) -> Iterator[Place]:
        """The operands of matmuls that an axis shards nowhere, with the axis at each dimension that is not summed."""
        kin = self._reach([lost])
        for op in self.graph.module.ops:
            sides = list(self.list_sides(op)) if op.rule is not None and op.flops else []
            cut = (find_cut_dimensions(known_sharding(value), (axis,)) for value, _ in sides)
            if op.rule is None or any(cut) or self.graph.in_manual(op):
                continue
            for value, mapping in sides[: len(op.operands)]:
                kept = [number for number, factors in enumerate(mapping) if not op.rule.reduction.intersection(factors)]
                spare = [number for number in kept if self.is_divided_by(value, number, axis)]
                classes = self.dimensions.of(value.index)
                yield from self._shard_origin(value, axis, sorted(spare, key=lambda number: classes[number] not in kin))

    def _shard_origin(self, value: ShardyValue, axis: str, numbers: Sequence[int]) -> Iterator[Place]:
        """The value outside of loops and functions that a value is, with an axis at each of some dimensions."""
        origin = value
        while (outside := self.graph.outside(origin)) is not None:
            origin = self.graph.unmoved(outside)
        maker, classes = self.graph.op(origin), self.dimensions.of(origin.index)
        for number in numbers if origin.shape == value.shape else ():
            sharding = self.move(known_sharding(origin), axis, number, classes[number])
            if maker is not None and maker.source:
                yield self._describe_place(maker, origin, sharding)
            elif origin.name is not None and origin.name.isidentifier():
                yield self._describe_argument(origin, sharding)

    def _list_needed(self, op: ShardyOp, axis: str, lost: DimensionClass) -> Iterator[ShardyValue]:
        """The operands of which an operation needs a dimension of a class whole that an axis shards."""
        if op.rule is None or not op.rule.need_replication or self.graph.in_manual(op):
            return
        for value, mapping in list(self.list_sides(op))[: len(op.operands)]:
            cut = find_cut_dimensions(known_sharding(value), (axis,))
            factors = {factor for number in cut if number < len(mapping) for factor in mapping[number][:1]}
            needed = factors & op.rule.need_replication
            if lost in self._reach(self.dimensions.of_factor(op.index, factor) for factor in needed):
                yield value

    def _list_spare_dimensions(self, op: ShardyOp, value: ShardyValue, axis: str, lost: DimensionClass) -> list[int]:
        """The dimensions of an operand that are not needed whole, and that an axis divides.

        Those that were split from the class that lost the axis come first, and then the largest.
        """
        assert op.rule is not None
        mapping = next(mapping for side, mapping in self.list_sides(op) if side.index == value.index)
        found = [
            number
            for number, factors in enumerate(mapping)
            if factors and factors[0] not in op.rule.need_replication and self.is_divided_by(value, number, axis)
        ]
        classes, kin = self.dimensions.of(value.index), self._reach([lost])
        return sorted(found, key=lambda number: (classes[number] not in kin, -value.shape[number]))

    def _count_exchanged(self, op: ShardyOp, axis: str, lost: DimensionClass) -> int | None:
        """Bytes that one device sends if an axis changes to another dimension of what an operation needs whole.

        None if the operation does not need it, no other dimension can have the axis, or a type is unknown.
        """
        devices = self.graph.module.mesh.get(axis, 1)
        for value in self._list_needed(op, axis, lost):
            size = self._count_bytes(value, axis)
            if size is not None and self._list_spare_dimensions(op, value, axis, lost):
                return round(size / devices * (devices - 1) / devices)
        return None

    def _describe_argument(self, value: ShardyValue, sharding: ValueSharding) -> Place:
        return Place(
            array=value.name or "",
            source=(),
            operation=None,
            shape=value.shape,
            sharding=sharding,
            spec=render_spec(sharding) or "P()",
            argument=value.name,
        )

    def _find_spare_sums(self, axis: str, won: DimensionClass, lost: DimensionClass) -> Iterator[Place]:
        """The results of sums over a class, with the axis at another one that nothing claims it for."""
        for op in self.graph.module.ops if not self.find_claimants(lost, axis) else ():
            if op.rule is None or not op.source or not op.results or op.kind in MOVE_KINDS:
                continue
            value = self.graph.value(op.results[0])
            summed = {self.dimensions.of_factor(op.index, factor) for factor in op.rule.reduction}
            is_here = won in summed and lost in self.dimensions.of(value.index)
            if is_here and self._holds(self._list_operands(op), won, axis):
                yield self._make_place(op, value, axis, lost)

    def _find_sums(self, axis: str, won: DimensionClass, lost: DimensionClass) -> Iterator[Place]:
        """The results of sums over a class, whose operands have the axis there, where another class has it."""
        for op in self.graph.module.ops:
            rule = op.rule
            if rule is None or not op.source or op.kind in MOVE_KINDS or not op.results:
                continue
            value = self.graph.value(op.results[0])
            if not self._holds((value.index,), won, axis) or not self._holds(self._list_operands(op), lost, axis):
                continue
            if lost in {self.dimensions.of_factor(op.index, factor) for factor in rule.reduction}:
                kept = tuple(tuple(a for a in axes if whole_axis(a) != axis) for axes in known_sharding(value))
                yield self._describe_place(op, value, kept)

    def _find_arguments(self, axis: str, won: DimensionClass, lost: DimensionClass) -> Iterator[Place]:
        """The arguments of two classes of which the first has an axis, under names of the function's own."""
        for _, value in sorted(self.graph.arguments.items()):
            classes = self.dimensions.of(value.index)
            is_named = value.name is not None and value.name.isidentifier()
            if is_named and lost in classes and self._holds((value.index,), won, axis):
                sharding = self.move(known_sharding(value), axis, classes.index(lost), lost)
                yield self._describe_argument(value, sharding)

    def _find_entering(self, op: ShardyOp, value: ShardyValue) -> Iterator[tuple[ShardyOp, ShardyValue]]:
        """The value that a loop begins with where it ends with another one, and the operation that makes it."""
        if op.kind != "stablehlo.while":
            return
        given = self.graph.value(op.operands[op.results.index(value.index)])
        first = self.graph.unmoved(given)
        maker = self.graph.op(first)
        if maker is not None and not maker.source:  # of zeros, where they get the sharding of their explicit type
            typed = [each for each in self.graph.makers(given) if each.source and is_users_constraint(each)]
            maker, first = (typed[-1], self.graph.value(typed[-1].results[0])) if typed else (None, first)
        if maker is not None and (maker.kind not in MOVE_KINDS or is_users_constraint(maker)):
            yield maker, first

    def _find_meetings(
        self, axis: str, won: DimensionClass, lost: DimensionClass
    ) -> Iterator[tuple[ShardyOp, ShardyValue]]:
        """The values of two classes of which the first has an axis, with their operations, holders of others last.

        Copies of one number, such as the zeros in which a loop collects its results, are no place for a constraint.
        """
        for op in sorted(self.graph.module.ops, key=lambda op: op.kind in _HOLDERS):
            is_filled = not any(self.graph.value(index).shape for index in op.operands)
            if not op.source or op.kind in MOVE_KINDS or is_filled:
                continue
            for value in map(self.graph.value, op.results):
                if self._holds((value.index,), won, axis) and lost in self._reach(self.dimensions.of(value.index)):
                    yield op, value

    def _list_order(self, dimension: DimensionClass) -> Mapping[str, int]:
        """The order of the mesh axes on a class: as the largest request for it has them, then as in the mesh."""
        said = (axes for claimed, axes in self._requests if claimed == dimension)
        first = max(said, key=len, default=())
        return {axis: number for number, axis in enumerate(dict.fromkeys((*first, *self.graph.module.mesh)))}

    @cached_property
    def _requests(self) -> tuple[tuple[DimensionClass, tuple[str, ...]], ...]:
        """The axes that arguments and constraints give to each class and its parts, in their order."""
        found = []
        for value, _, number, _ in (*self._list_argument_claims(), *self._list_constraint_claims()):
            axes = tuple(map(whole_axis, known_sharding(value)[number]))
            whole = self.dimensions.of(value.index)[number]
            found += [(dimension, axes) for dimension in (whole, *self.list_parts(whole))]
        return tuple(dict.fromkeys(found))

    def _list_operands(self, op: ShardyOp) -> list[int]:
        """The operands of an operation as they were before they were moved for it."""
        return [self.graph.unmoved(self.graph.value(index)).index for index in op.operands]

    def _holds(self, values: Iterable[int], dimension: DimensionClass, axis: str) -> bool:
        """Returns whether an axis shards a class, or a dimension that it is a part of, in any of some values."""
        for index in values:
            sharding = known_sharding(self.graph.value(index))
            for here, axes in zip(self.dimensions.of(index), sharding, strict=True):
                if axis in map(whole_axis, axes) and dimension in (here, *self.list_parts(here)):
                    return True
        return False

    def _reach(self, classes: Iterable[DimensionClass]) -> set[DimensionClass]:
        return {part for dimension in classes for part in (dimension, *self.list_parts(dimension))}

    def _make_place(self, op: ShardyOp, value: ShardyValue, axis: str, lost: DimensionClass) -> Place:
        classes = self.dimensions.of(value.index)
        number = next(
            (number for number, here in enumerate(classes) if here == lost),
            next((number for number, here in enumerate(classes) if lost in self.list_parts(here)), 0),
        )
        return self._describe_place(op, value, self.move(known_sharding(value), axis, number, lost))

    def _describe_place(self, op: ShardyOp, value: ShardyValue, sharding: ValueSharding) -> Place:
        operation = (op.op_name or "").rpartition("/")[2].rstrip(":") or None
        name = find_assigned_name(self.graph, value) or f"result of {operation or op.kind}"
        return Place(
            array=name,
            source=to_frames(op.source),
            operation=operation,
            shape=value.shape,
            sharding=sharding,
            spec=render_spec(sharding) or "P()",
        )

    # The cost of the other way round.

    def _count_other_bytes(self, op: ShardyOp, axis: str, loser: DimensionClass) -> int | None:
        """Bytes that one device would send at an operation once if a class had the axis there that lacks it.

        Operands with that class are sharded by it, for which arguments are exchanged, others are gathered, and a sum
        over it is completed by an all-reduce. None if the operation does not have that class, none of its operands has
        the axis, or a type is unknown.
        """
        assert op.rule is not None
        devices = self.graph.module.mesh.get(axis, 1)
        is_spare = not self.find_claimants(loser, axis)  # so that nothing before the operation shards it
        here = {
            factor
            for _, mapping in self.list_sides(op)
            for dimension in mapping
            for factor in dimension[:1]
            if self.dimensions.of_factor(op.index, factor) == loser
        }
        if not here or devices < 2:
            return None
        moved: list[tuple[float, ShardyValue]] = []
        for value, mapping in list(self.list_sides(op))[: len(op.operands)]:
            with_it = {number for number, dimension in enumerate(mapping) if here.intersection(dimension[:1])}
            cut = find_cut_dimensions(known_sharding(value), (axis,))
            if not cut or self.graph.is_filled(value):
                continue
            if with_it.intersection(cut):
                moved.append((0, value))
            elif not with_it:
                moved.append((1, value))
            elif is_spare or self.graph.is_of_argument(value):  # which is sharded otherwise
                moved.append((1 / devices, value))
        if here & op.rule.reduction:
            moved.append((2, self.graph.unmoved(self.graph.value(op.results[0]))))
        if not moved:
            return None
        counts = [(times, self._count_bytes(value, axis)) for times, value in moved]
        known = [times * size for times, size in counts if size is not None]
        return round(sum(known) * (devices - 1) / devices) if len(known) == len(counts) else None

    def _count_bytes(self, value: ShardyValue, axis: str) -> float | None:
        """The bytes of a value on one device, if an axis did not shard it; None if its type is unknown."""
        eight_bytes = count_array_bytes(hlo_type(value.element_type), 8)
        if eight_bytes is None:
            return None
        size = eight_bytes / 8
        for dimension, axes in zip(value.shape, known_sharding(value), strict=True):
            left = tuple(each for each in axes if whole_axis(each) != axis)
            size *= dimension / multiply_axis_sizes(left, self.graph.module.mesh)
        return size
