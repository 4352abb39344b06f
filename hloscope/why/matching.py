"""Matches compiled collectives with the program's reshards, by operation, axes, kind and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from hloscope.model.capture import (
    ShardyModule,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_whole_axes,
    remove_axes,
)
from hloscope.model.reason import Axes, Reason, ReasonKind
from hloscope.model.vocabulary import REDUCING, Kind
from hloscope.why.partitioned import Neighbors, WindowedEinsum, drop_ones
from hloscope.why.reasons import (
    explain_differentiation,
    explain_operand,
    explain_reshard,
    explain_sum_of_parts,
    find_operand_kind,
    sums_parts,
)
from hloscope.why.reshards import (
    Reshard,
    find_reshards,
    hlo_type,
    is_float,
    is_reshuffle,
    known_sharding,
    local_shape,
)
from hloscope.why.sentences import render_needed_elsewhere
from hloscope.why.shardings import UserProgram, has_anothers_name
from hloscope.why.shardy_graph import BARRIER_KINDS, COLLECTIVE_KINDS, MOVE_KINDS, ShardyGraph

AT_OWN = 4
"""The score of a match at the operation that a collective was compiled from."""
AT_PASSED = 3
"""The score of a match at an operation that lies only on the way to it."""
_ENOUGH = 3
"""Minimum score of a match, which needs the same operation or shape: axes and kind alone say too little."""
SUITS_KIND = 3
_EXACT = 2
_COMBINES = {
    "reduce_sum": "add",
    "dot_general": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_xor": "xor",
}
"""JAX's reductions that the compiler does not turn into other ones."""
_BOTH = 5

LocalSizes = tuple[int, ...]
MatchKey = tuple[int, Kind, tuple[str, ...]]
"""A reshard with the kind and axes of the collective that carries it out: one reshard may take several kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """The clues of a collective, from its final text and from the partitioner's if that was found.

    Attributes:
        kind: Its kind; the partitioner's kind if known.
        axes: The mesh axes it runs over.
        numbers: Numbers of the operations that it was compiled from; empty if unknown.
        between: The operations around it, if those that it was compiled from are unknown.
        operands: Dimensions of the operands on one device, for each text.
        results: Dimensions of the results.
        element_types: HLO types of the operands.
        argument: The program's argument that it moves; None if it moves a computed value, or if unknown.
        window: The windowed einsum that it belongs to; None for others.
        in_loop: Whether it runs in a loop.
        reduction: The operation that combines two elements, such as `add`; None if there is none, or if unknown.
        is_edge: Whether some devices only send or only receive, as for the elements next to a part or a part that does
        not divide evenly: in a reshard, each sending device also receives another part.
    """

    kind: Kind
    axes: tuple[str, ...]
    numbers: frozenset[int]
    between: Neighbors
    operands: tuple[LocalSizes, ...]
    results: tuple[LocalSizes, ...]
    element_types: frozenset[str]
    argument: str | None
    window: WindowedEinsum | None
    in_loop: bool
    reduction: str | None
    is_edge: bool

    def are_of(self, ops: Iterable[ShardyOp]) -> bool:
        """Returns whether the collective was compiled from one of these operations."""
        return any(number in self.numbers for op in ops for number in op.numbers)


@dataclass(frozen=True, slots=True)
class Match:
    """The best fitting reshard, how well its place and shape fit, and equally good ones.

    Attributes:
        reshard: The best fitting reshard.
        key: The key under which it counts as taken.
        place: `AT_OWN`, `AT_PASSED`, or 0 if the collective was compiled from none of its operations.
        shape: The score of `Matcher._shape`.
        is_certain: Whether operation, axes and shape agree.
        suits: Whether a collective of this kind carries out all of the reshard, and not only a part of it.
        ties: The reshards that fit equally well, including this one.
    """

    reshard: Reshard
    key: MatchKey
    place: int
    shape: int
    is_certain: bool
    suits: bool
    ties: tuple[Reshard, ...]


class Matcher:
    """Finds the reshard of a collective, among those that share an operation or a shape with it."""

    def __init__(self, graph: ShardyGraph) -> None:
        self._reshards = tuple(find_reshards(graph))
        self._mesh = graph.module.mesh
        self._argument_of = graph.argument_behind
        self._added_in: dict[int, set[int]] = defaultdict(set)
        self._by_clue: dict[object, set[int]] = defaultdict(set)
        for number, reshard in enumerate(self._reshards):
            for clue in self._clues_in(reshard):
                self._by_clue[clue].add(number)
            if reshard.is_sum and reshard.loop is not None:
                for loop in reshard.loop.numbers:
                    self._added_in[loop].update(reshard.op.numbers)

    def within(self, numbers: Iterable[int]) -> frozenset[int]:
        """The operations whose results are summed in the bodies of loops with these numbers.

        A sum that a loop adds to in every iteration is finished once after the loop, under the loop's name.
        """
        return frozenset(added for number in numbers for added in self._added_in.get(number, ()))

    def _clues_in(self, reshard: Reshard) -> Iterator[object]:
        """The clues of which a collective must have one to match this reshard: operation numbers and shapes."""
        for op in (*_list_operations(reshard), *reshard.passed):
            yield from op.numbers
        for sharding in (reshard.before, reshard.after, reshard.final):
            yield drop_ones(local_shape(reshard.value.shape, sharding, self._mesh))

    def _candidates(self, clues: Clues) -> list[Reshard]:
        """The reshards that share a clue, in text order; if the operation is known, only those at it."""
        shapes = [drop_ones(dimensions) for dimensions in (*clues.operands, *clues.results)]
        keys: Iterable[object] = clues.numbers or (*clues.between.makers, *clues.between.users, *shapes)
        numbers = set().union(*(self._by_clue.get(key, set()) for key in keys))
        return [self._reshards[number] for number in sorted(numbers)]

    def best(self, clues: Clues, taken: Collection[MatchKey] = ()) -> Match | None:
        """The reshard that a collective carries out; None if none fits.

        Among equals, the first that is not yet taken by another collective: unrolled layers have the same order in
        both.
        """
        scored = [(score, reshard) for reshard in self._candidates(clues) if (score := self._score(clues, reshard))]
        if not scored:
            return None
        highest = max(score for score, _ in scored)
        ties = tuple(reshard for score, reshard in scored if score == highest)
        left = tuple(reshard for reshard in ties if _make_match_key(reshard, clues) not in taken)
        chosen = (left or ties)[0]
        place, shape = _score_place(clues, chosen), self._shape(clues, chosen)
        suits = _score_kind(clues, chosen) >= SUITS_KIND
        is_there = place == AT_OWN if clues.numbers else all(self._sides(clues, chosen))
        if place == AT_PASSED and clues.numbers:  # JAX 0.12's compiler names the array's producer
            is_there = len(scored) == 1 and shape == _BOTH and {*clues.axes} == {*chosen.axes}
        is_certain = is_there and (shape > 0 if suits else shape >= SUITS_KIND)
        return Match(chosen, _make_match_key(chosen, clues), place, shape, is_certain, suits, left or (chosen,))

    def _score(self, clues: Clues, reshard: Reshard) -> int:
        axes = _score_axes(clues, reshard)
        kind = _score_kind(clues, reshard) if axes else 0
        if not kind or self._is_another_argument(clues, reshard) or _is_another_type(clues, reshard):
            return 0
        if reshard.is_sum and reshard.producer is not None and combines_otherwise(reshard.producer, clues.reduction):
            return 0
        place, shape = _score_place(clues, reshard), self._shape(clues, reshard)
        if place + shape < _ENOUGH:
            return 0
        same_type = hlo_type(reshard.value.element_type) in clues.element_types
        in_same_loop = clues.in_loop == (reshard.loop is not None)
        at_it = clues.are_of([reshard.op]) + sum(self._sides(clues, reshard))
        return axes + kind + place + shape + same_type + at_it + in_same_loop

    def _sides(self, clues: Clues, reshard: Reshard) -> tuple[bool, bool]:
        """The match of both sides: whether a reshard takes exactly a collective's operands, and makes its results."""
        around = clues.between
        argument = self._argument_of(reshard.value) if reshard.producer is None else None
        makers = frozenset(() if reshard.producer is None else reshard.producer.numbers)
        users = frozenset(number for consumer, _ in reshard.consumers for number in consumer.numbers)
        arguments = around.arguments or (frozenset() if around.makers else frozenset(filter(None, (clues.argument,))))
        comes_from_there = around.makers == makers and arguments == frozenset(filter(None, (argument,)))
        is_at_itself = bool(around.users) and around.users == frozenset(reshard.op.numbers)  # as JAX 0.12 leaves them
        goes_there = (around.users == users or is_at_itself) and bool(around.outputs) == reshard.is_returned
        return comes_from_there and bool(makers or argument), goes_there and bool(around.users or around.outputs)

    def _is_another_argument(self, clues: Clues, reshard: Reshard) -> bool:
        argument = None if clues.argument is None or reshard.is_sum else self._argument_of(reshard.value)
        return argument is not None and argument != clues.argument

    def _shape(self, clues: Clues, reshard: Reshard) -> int:
        """5 if operand and result have the shapes before and after, 3 for one of them, less if only sizes match."""
        had = self.alike(reshard.value, reshard.before, clues.operands)
        left = {reshard.after, reshard.final}
        if clues.kind is Kind.ALL_GATHER and had == _EXACT:  # the step that makes it whole
            left.add(remove_axes(reshard.before, clues.axes))
        gets = max(self.alike(reshard.value, shape, clues.results) for shape in left)
        return _BOTH if had == gets == _EXACT else max(had + gets, had * 3 // 2, gets * 3 // 2)

    def alike(self, value: ShardyValue, sharding: ValueSharding, given: Iterable[LocalSizes]) -> int:
        """2 if a device's part has one of these shapes, 1 for equal sizes or number of elements, otherwise 0."""
        wanted = drop_ones(local_shape(value.shape, sharding, self._mesh))
        found = [drop_ones(shape) for shape in given]
        if wanted in found:
            return _EXACT
        return int(any(prod(wanted) == prod(shape) for shape in found))


def _make_match_key(reshard: Reshard, clues: Clues) -> MatchKey:
    return reshard.op.index, clues.kind, clues.axes


def combines_otherwise(op: ShardyOp, reduction: str | None) -> bool:
    """Returns whether an operation combines elements differently than a collective; False if either is unknown."""
    name = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")[2]
    own = _COMBINES.get(name)
    return None not in (own, reduction) and own != reduction


def _is_another_type(clues: Clues, reshard: Reshard) -> bool:
    """Returns whether integers would have to become floats, or vice versa; compilers change only the floats' width."""
    floats = {is_float(name) for name in clues.element_types}
    return bool(floats) and is_float(reshard.value.element_type) not in floats


def _score_axes(clues: Clues, reshard: Reshard) -> int:
    here, there = set(clues.axes), set(reshard.axes)
    if here == there:
        return 4
    if here <= there or there <= here:
        return 2
    return int(bool(find_whole_axes(here) & find_whole_axes(there)))


def _score_kind(clues: Clues, reshard: Reshard) -> int:
    """The score of a collective's kind for a reshard: 3 and more if it suits, 1 if it may replace one that does."""
    kind = clues.kind
    if reshard.is_sum:
        return {Kind.ALL_REDUCE: 4, Kind.REDUCE_SCATTER: 4, Kind.ALL_GATHER: 1, Kind.COLLECTIVE_PERMUTE: 1}.get(kind, 0)
    if kind is Kind.ALL_TO_ALL:
        return 4 if is_reshuffle(reshard) else SUITS_KIND
    if kind is Kind.ALL_GATHER:
        return SUITS_KIND if is_reshuffle(reshard) else 4
    if kind is Kind.COLLECTIVE_PERMUTE:
        return SUITS_KIND if is_reshuffle(reshard) else 1
    return int(kind in (Kind.ALL_REDUCE, Kind.COLLECTIVE_BROADCAST))


def _list_operations(reshard: Reshard) -> list[ShardyOp]:
    asked = [] if reshard.constraint is None else [reshard.constraint]
    made = [] if reshard.producer is None else [reshard.producer]
    return [reshard.op, *asked, *made, *(consumer for consumer, _ in reshard.consumers)]


def _score_place(clues: Clues, reshard: Reshard) -> int:
    """The score of a reshard's place: at the collective's own operations, at those on the way, or next to it."""
    if clues.are_of(_list_operations(reshard)):
        return AT_OWN
    around = clues.between.makers | clues.between.users
    is_near = not clues.numbers and not around.isdisjoint(reshard.op.numbers)
    return AT_PASSED if is_near or clues.are_of(reshard.passed) else 0


# ---- the places in a program that a collective may come from: its reshards, and the operands of its operations

_FITS = 2
_SAME_ARGUMENT = 3
_CHOICE = ReasonKind.PARTITIONERS_CHOICE
_SURE = (
    ReasonKind.HALO,
    ReasonKind.NO_RULE,
    ReasonKind.NEEDS_WHOLE_DIMENSION,
    ReasonKind.INDEXED_IN_LOOP,
    ReasonKind.PARTIAL_SUM,
)
"""Reasons that are certain without a matching shape: the operation's rule demands them, even for a part or edge."""
_NO_SUMS = (ReasonKind.OPERAND_CONFLICT, ReasonKind.MERGED_DIMENSIONS)
"""Reasons that move an array, for which nothing is summed."""
_EXPANDED = frozenset({"stablehlo.fft", "stablehlo.reduce_window"})
_NO_TRANSFER = frozenset(
    {
        "func.func",
        "func.call",
        "func.return",
        "stablehlo.return",
        "sdy.return",
        "sdy.manual_computation",
        "sdy.named_computation",
        "stablehlo.while",
    }
)


@dataclass(frozen=True, slots=True)
class OperandReason:
    """A reason at an operand, and whether the collective was compiled from its operation, as in `Match.place`."""

    reason: Reason
    place: int


class Candidates:
    """A program with its operations by number, so that each collective examines few of them.

    Attributes:
        program: The program.
        matcher: The matcher of collectives with reshards.
    """

    def __init__(self, program: UserProgram) -> None:
        self.program = program
        self.matcher = Matcher(program.graph)
        self._argument_of = program.graph.argument_behind
        self._by_number: dict[int, list[ShardyOp]] = defaultdict(list)
        self._moves: dict[int, list[ShardyOp]] = defaultdict(list)
        for op in program.graph.module.ops:
            for number in op.numbers:
                if op.kind in MOVE_KINDS:
                    self._moves[number].append(op)
                elif _may_move(op) or op.kind in BARRIER_KINDS:
                    self._by_number[number].append(op)

    def reason_of(self, match: Match) -> Reason:
        """The reason for a matched reshard, with the number of distinct places that fit equally well."""
        reasons = [explain_reshard(self.program, reshard) for reshard in match.ties]
        different = {
            (reason.kind, reason.moved and reason.moved.name, reason.dimensions, reason.producer) for reason in reasons
        }
        chosen = reasons[match.ties.index(match.reshard)]
        borrowed = not match.reshard.is_sum and any(has_anothers_name(op) for op, _ in match.reshard.consumers[:1])
        # of a loop or the like, whose sharding rule gives no reason, the conflict need not be known
        is_shown = _says_why(chosen) or any(op.kind in _NO_TRANSFER for op, _ in match.reshard.consumers[:1])
        return replace(chosen, certain=match.is_certain and is_shown and not borrowed, candidates=len(different))

    def at(self, numbers: Iterable[int]) -> Iterator[ShardyOp]:
        """The operations with these numbers."""
        return (op for number in numbers for op in self._by_number.get(number, ()))

    def written(self, numbers: Iterable[int]) -> ShardyOp | None:
        """The program's own collective with one of these numbers, as it was before partitioning."""
        return next((op for op in self.at(numbers) if op.kind in COLLECTIVE_KINDS), None)

    def differentiation(self, numbers: Iterable[int], axes: Axes) -> Reason | None:
        """The reason for a sum that differentiation inserted; None for other operations."""
        reasons = (explain_differentiation(self.program, op, axes) for op in self.at(numbers))
        return next((reason for reason in reasons if reason is not None), None)

    def at_operand(self, clues: Clues, *, is_nothing_else: bool = False) -> OperandReason | None:
        """A reason at an operand that Shardy does not move: a halo, no sharding rule, or the partitioner's choice.

        Among several operands, one that must move comes first, then one with the collective's shape, then one at the
        collective's own operation. JAX 0.12's compiler names the operation that produced the operand.

        Args:
            clues: The clues of a collective.
            is_nothing_else: Whether there is no reshard that it could carry out.
        """
        near = tuple(dict.fromkeys(self._near(clues, is_nothing_else=is_nothing_else)))
        added_up = self._added_up(clues, near) if clues.kind in REDUCING else None
        if added_up is not None:
            return added_up
        best: tuple[int, OperandReason | None] = 0, None
        for op in near:
            for number in range(len(op.operands)):
                value = self.program.graph.value(op.operands[number])
                brought = self._brings(clues, value, op, is_nothing_else=is_nothing_else)
                place = AT_OWN * (brought or clues.are_of([op, *self.program.graph.makers(value)]))
                fit = self._fit(clues, value)
                kind = find_operand_kind(self.program, op, number, clues.axes) if place + fit > 1 else None
                if kind is None or (clues.kind in REDUCING and kind in _NO_SUMS):
                    continue
                if brought and kind is ReasonKind.HALO and clues.kind is Kind.ALL_GATHER:
                    continue
                is_edge = kind is ReasonKind.HALO and clues.kind is Kind.COLLECTIVE_PERMUTE
                own = _FITS * (is_edge and (clues.is_edge or clues.are_of([op])))
                strength = place + fit + own + 2 * (kind is not _CHOICE)
                if strength > best[0]:
                    best = strength, self._reason_at(clues, op, number, place, fit)
        return best[1]

    def _added_up(self, clues: Clues, near: Iterable[ShardyOp]) -> OperandReason | None:
        """The contraction whose parts a collective sums, although Shardy would have moved the operands instead."""
        mesh = self.program.graph.module.mesh
        found: list[tuple[bool, ShardyOp]] = []
        for op in near:
            if not clues.are_of([op]) or combines_otherwise(op, clues.reduction):
                continue
            if not sums_parts(self.program, op, clues.axes):
                continue
            result = self.program.graph.value(op.results[0])
            part = local_shape(result.shape, remove_axes(known_sharding(result), clues.axes), mesh)
            if any(prod(part) == prod(operand) for operand in clues.operands):
                found.append((any(sorted(part) == sorted(operand) for operand in clues.operands), op))
        if not found:
            return None
        best = any(same for same, _ in found)
        fitting = [op for same, op in found if same == best]
        reason = explain_sum_of_parts(self.program, fitting[0], clues.axes)
        cut = axes_in(reason.operands[-1].sharding) if reason.operands else frozenset()
        certain = best and {*clues.axes} <= cut
        return OperandReason(replace(reason, certain=certain, candidates=len(fitting)), AT_OWN)

    def _reason_at(self, clues: Clues, op: ShardyOp, number: int, place: int, fit: int) -> OperandReason | None:
        """The reason at an operand, and its certainty."""
        reason = explain_operand(self.program, op, number, clues.axes)
        if reason is None:
            return None
        certain = bool(place) and (reason.kind in _SURE or fit >= _FITS) and reason.kind is not _CHOICE
        certain = certain and _says_why(reason)
        moved = op.results[0] if reason.kind is ReasonKind.PARTIAL_SUM else op.operands[number]
        of_part = self._is_part(clues, self.program.graph.value(moved))
        return OperandReason(replace(reason, certain=certain, of_part=of_part), place)

    def expanded(self, clues: Clues, compiled: ShardyModule) -> Reason | None:
        """A reason at an operation that the compiler expands into others before it partitions, such as an FFT.

        Args:
            clues: The clues of a collective.
            compiled: The module that the compiler partitioned, which no longer has the operation.
        """
        kept = {(op.kind, op.op_name) for op in compiled.ops}
        ops = self.program.graph.module.ops
        gone = [op for op in ops if op.kind in _EXPANDED and (op.kind, op.op_name) not in kept]
        here = [op for op in gone if not clues.numbers.isdisjoint(op.identity) or self._lies_at(clues, op)]
        if not here and (clues.numbers or len(gone) != 1):
            return None
        found = (explain_operand(self.program, op, 0, clues.axes) for op in here or gone)
        reason = next((each for each in found if each is not None), None)
        if reason is None:
            return None
        if reason.kind is ReasonKind.HALO and clues.kind is not Kind.COLLECTIVE_PERMUTE:
            reason = replace(reason, kind=ReasonKind.NEEDS_WHOLE_DIMENSION)
        return replace(reason, certain=len(here) == 1, of_part=True)

    def _lies_at(self, clues: Clues, op: ShardyOp) -> bool:
        """Returns whether a collective lies between an operation's operands and the users of its result."""
        graph, around = self.program.graph, clues.between
        makers = {number for value in map(graph.value, op.operands) for number in _list_numbers(graph.maker(value))}
        arguments = {self._argument_of(graph.value(operand)) for operand in op.operands}
        users = {number for user, _ in graph.real_users(graph.value(op.results[0])) for number in _list_numbers(user)}
        comes_from_there = around.makers <= makers and around.arguments <= arguments
        return comes_from_there and around.users <= users and bool(around.makers or around.arguments) and bool(users)

    def _fit(self, clues: Clues, value: ShardyValue) -> int:
        """The score of an operand's part on one device, or of its argument, against a collective's operand."""
        if clues.argument is not None and self._argument_of(value) == clues.argument:
            return _SAME_ARGUMENT
        fit = self.matcher.alike(value, known_sharding(value), clues.operands)
        return max(fit, int(any(len(drop_ones(value.shape)) == len(drop_ones(operand)) for operand in clues.operands)))

    def _brings(self, clues: Clues, value: ShardyValue, op: ShardyOp, *, is_nothing_else: bool) -> bool:
        """Returns whether a transfer without a number brings an argument to the only operation that uses it."""
        if clues.numbers or clues.argument is None:
            return False
        if clues.kind is not Kind.COLLECTIVE_PERMUTE and not (clues.kind is Kind.ALL_GATHER and is_nothing_else):
            return False
        users = clues.between.users
        return bool(users) and {*users} <= {*op.numbers} and self._argument_of(value) == clues.argument

    def _is_part(self, clues: Clues, value: ShardyValue) -> bool:
        """Returns whether a collective moves anything but a device's whole part of an array."""
        wanted = prod(local_shape(value.shape, known_sharding(value), self.program.graph.module.mesh))
        return all(prod(operand) != wanted for operand in clues.operands)

    def _near(self, clues: Clues, *, is_nothing_else: bool) -> Iterator[ShardyOp]:
        """The operations that a collective was compiled from or lies at, and the users of their results."""
        graph, around = self.program.graph, clues.between
        numbers = sorted(clues.numbers or around.makers | around.users)
        for number in numbers:
            made = list(self.at([number]))
            yield from (op for op in made if op.kind not in BARRIER_KINDS)
            made += self._moves.get(number, ()) if is_nothing_else else ()
            for result in (result for op in made for result in op.results):
                yield from (user for user, _ in graph.real_users(graph.value(result)) if _may_move(user))


def _says_why(reason: Reason) -> bool:
    """Returns whether a reason for a needed array states what needs it."""
    is_conflict = reason.kind is ReasonKind.OPERAND_CONFLICT
    return not is_conflict or reason.conflicting is not None or render_needed_elsewhere(reason) is not None


def _list_numbers(op: ShardyOp | None) -> tuple[int, ...]:
    return () if op is None else op.numbers


def _may_move(op: ShardyOp) -> bool:
    """Returns whether the partitioner may have to move an operand of an operation."""
    return bool(op.operands) and op.kind not in MOVE_KINDS | BARRIER_KINDS | _NO_TRANSFER
