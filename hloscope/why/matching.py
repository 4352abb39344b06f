"""Matches compiled collectives with the reshards of the program, by operation, axes, kind and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.compiler.shardy_model import ShardyOp, ShardyValue, ValueSharding
from hloscope.shardy.graph import wholes
from hloscope.shardy.reshards import Reshard, hlo_type, is_float, is_reshuffle, local_shapes, without
from hloscope.why.partitioned import Between, Window, dimensions_of, significant

OWN = 4
"""What a match is worth by being at the operation that a collective was compiled from."""
PASSED = 3
"""The same where that only lies on the way to it."""
_ENOUGH = 3
"""A match needs the same operation or the same shape: axes and kind alone say too little."""
SUITS = 3
_EXACT = 2
_COMBINES = {
    "reduce_sum": "add",
    "dot_general": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_xor": "xor",
}
"""JAX's reductions of which the compiler makes no other ones."""
_BOTH = 5

Shape = tuple[int, ...]
Taken = tuple[int, Kind, tuple[str, ...]]
"""A reshard, with the kind and the axes of the collective that carries it out: one reshard may take several kinds."""

ArgumentOf = Callable[[ShardyValue], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What is known of a collective, from its final text and from the partitioner's where that was found.

    Attributes:
        kind: What it does; the partitioner's kind where that is known.
        axes: The mesh axes it runs over.
        numbers: Of the operations that it was compiled from; empty where that is not known.
        between: The operations around it, where those that it was compiled from are not known.
        operands: Dimensions of the operands on one device, for each text.
        results: Dimensions of the results.
        element_types: HLO types of the operands.
        argument: The program's argument that it moves; None when it moves something computed, or nothing shows which.
        window: The windowed einsum that it belongs to; None for others.
        in_loop: Whether it runs in a loop.
        reduction: How it combines two elements, such as `add`; None where it does not, or that is not known.
        is_edge: Whether some devices only send or only receive, which is so for elements next to a part, and where a
            part is not divided evenly: a reshard gives each device that sends another part.
    """

    kind: Kind
    axes: tuple[str, ...]
    numbers: frozenset[int]
    between: Between
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    element_types: frozenset[str]
    argument: str | None
    window: Window | None
    in_loop: bool
    reduction: str | None
    is_edge: bool

    def are_of(self, ops: Iterable[ShardyOp]) -> bool:
        """Whether the collective was compiled from one of these operations."""
        return any(number in self.numbers for op in ops for number in op.numbers)


def clues_of(
    final: Collective,
    earlier: Collective | None,
    axes: tuple[str, ...],
    numbers: frozenset[int],
    between: Between,
    argument: str | None = None,
    window: Window | None = None,
) -> Clues:
    """The clues of a collective."""
    texts = [final] if earlier is None else [earlier, final]
    return Clues(
        kind=texts[0].kind if window is None else window.stands_for,
        axes=axes,
        numbers=numbers,
        between=between,
        operands=dimensions_of(shape for text in texts for shape in text.operand_shapes),
        results=dimensions_of(shape for text in texts for shape in text.result_shapes),
        element_types=frozenset(shape.dtype for text in texts for shape in text.operand_shapes),
        argument=argument,
        window=window,
        in_loop=bool(final.loops) and window is None,
        reduction=final.reduction,
        is_edge=window is None and _is_one_way(texts[0]),
    )


def _is_one_way(collective: Collective) -> bool:
    if collective.kind is not Kind.COLLECTIVE_PERMUTE:
        return False
    senders, receivers = ({pair[end] for pair in collective.groups} for end in (0, 1))
    return senders != receivers


@dataclass(frozen=True, slots=True)
class Match:
    """The reshard that fits best, how well its place and its shape do, and those that fit as well.

    Attributes:
        reshard: The one.
        key: What it is taken by.
        place: `OWN`, `PASSED`, or 0 where the collective was compiled from none of its operations.
        shape: As `Matcher._shape`.
        is_certain: Whether operation, axes and shape agree.
        suits: Whether a collective of this kind does what it asks for, and not only a part of it.
        ties: Those that fit as well, this one among them.
    """

    reshard: Reshard
    key: Taken
    place: int
    shape: int
    is_certain: bool
    suits: bool
    ties: tuple[Reshard, ...]


class Matcher:
    """Finds the reshard of a collective, among those that share an operation or a shape with it."""

    def __init__(self, reshards: Sequence[Reshard], mesh: dict[str, int], argument_of: ArgumentOf) -> None:
        """Takes all reshards of a program, in text order.

        Args:
            reshards: Those of a program.
            mesh: Size of each axis.
            argument_of: The program's argument that a value is, up to element-wise operations and rearrangement.
        """
        self._reshards = reshards
        self._local_shape = local_shapes(mesh)
        self._argument_of = argument_of
        self._added_in: dict[int, set[int]] = defaultdict(set)
        self._by_clue: dict[object, set[int]] = defaultdict(set)
        for number, reshard in enumerate(reshards):
            for clue in self._clues_in(reshard):
                self._by_clue[clue].add(number)
            if reshard.is_sum and reshard.loop is not None:
                for loop in reshard.loop.numbers:
                    self._added_in[loop].update(reshard.op.numbers)

    def within(self, numbers: Iterable[int]) -> frozenset[int]:
        """The operations whose results are added up in the bodies of loops of these numbers.

        A sum that a loop adds to in every iteration is finished once, behind it, and goes by the loop's name.
        """
        return frozenset(added for number in numbers for added in self._added_in.get(number, ()))

    def _clues_in(self, reshard: Reshard) -> Iterator[object]:
        """What a collective must have one of to be this reshard's: an operation's number, or a shape."""
        for op in (*_operations(reshard), *reshard.passed):
            yield from op.numbers
        for sharding in (reshard.before, reshard.after, reshard.final):
            yield significant(self._local_shape(reshard.value.shape, sharding))

    def _candidates(self, clues: Clues) -> list[Reshard]:
        """The reshards that share a clue, in text order; where the operation is known, only those at it."""
        shapes = [significant(dimensions) for dimensions in (*clues.operands, *clues.results)]
        keys: Iterable[object] = clues.numbers or (*clues.between.makers, *clues.between.users, *shapes)
        numbers = set().union(*(self._by_clue.get(key, set()) for key in keys))
        return [self._reshards[number] for number in sorted(numbers)]

    def best(self, clues: Clues, taken: Collection[Taken] = ()) -> Match | None:
        """The reshard that a collective carries out; None when none fits.

        Among equals the first that no other collective was matched to: unrolled layers come in one order in both.
        """
        scored = [(score, reshard) for reshard in self._candidates(clues) if (score := self._score(clues, reshard))]
        if not scored:
            return None
        highest = max(score for score, _ in scored)
        ties = tuple(reshard for score, reshard in scored if score == highest)
        left = tuple(reshard for reshard in ties if _key(reshard, clues) not in taken)
        chosen = (left or ties)[0]
        place, shape = _place(clues, chosen), self._shape(clues, chosen)
        suits = _kind(clues, chosen) >= SUITS
        is_there = place == OWN if clues.numbers else all(self._sides(clues, chosen))
        if place == PASSED and clues.numbers:  # JAX 0.12's compiler names what made the array
            is_there = len(scored) == 1 and shape == _BOTH and {*clues.axes} == {*chosen.axes}
        is_certain = is_there and (shape > 0 if suits else shape >= SUITS)
        return Match(chosen, _key(chosen, clues), place, shape, is_certain, suits, left or (chosen,))

    def _score(self, clues: Clues, reshard: Reshard) -> int:
        axes = _axes(clues, reshard)
        kind = _kind(clues, reshard) if axes else 0
        if not kind or self._is_another_argument(clues, reshard) or _is_another_type(clues, reshard):
            return 0
        if reshard.is_sum and reshard.producer is not None and combines_otherwise(reshard.producer, clues.reduction):
            return 0
        place, shape = _place(clues, reshard), self._shape(clues, reshard)
        if place + shape < _ENOUGH:
            return 0
        same_type = hlo_type(reshard.value.element_type) in clues.element_types
        in_same_loop = clues.in_loop == (reshard.loop is not None)
        at_it = clues.are_of([reshard.op]) + sum(self._sides(clues, reshard))
        return axes + kind + place + shape + same_type + at_it + in_same_loop

    def _sides(self, clues: Clues, reshard: Reshard) -> tuple[bool, bool]:
        """Whether a reshard takes what a collective takes, all of it and nothing else; and makes what that makes."""
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
        """5 when operand and result have the shapes before and after, 3 for one of them, less for mere sizes."""
        had = self.alike(reshard.value, reshard.before, clues.operands)
        left = {reshard.after, reshard.final}
        if clues.kind is Kind.ALL_GATHER and had == _EXACT:  # a step that makes it whole
            left.add(without(reshard.before, clues.axes))
        gets = max(self.alike(reshard.value, shape, clues.results) for shape in left)
        return _BOTH if had == gets == _EXACT else max(had + gets, had * 3 // 2, gets * 3 // 2)

    def alike(self, value: ShardyValue, sharding: ValueSharding, given: Iterable[Shape]) -> int:
        """2 when the part on one device has one of these shapes, 1 when it has its sizes or its elements, else 0."""
        wanted = significant(self._local_shape(value.shape, sharding))
        found = [significant(shape) for shape in given]
        if wanted in found:
            return _EXACT
        return int(any(prod(wanted) == prod(shape) for shape in found))


def _key(reshard: Reshard, clues: Clues) -> Taken:
    return reshard.op.index, clues.kind, clues.axes


def combines_otherwise(op: ShardyOp, reduction: str | None) -> bool:
    """Whether an operation combines elements, and in another way than a collective; False where either is not known."""
    name = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")[2]
    own = _COMBINES.get(name)
    return None not in (own, reduction) and own != reduction


def _is_another_type(clues: Clues, reshard: Reshard) -> bool:
    """Whether integers would have to become floats, or floats integers; compilers change only the width of floats."""
    floats = {is_float(name) for name in clues.element_types}
    return bool(floats) and is_float(reshard.value.element_type) not in floats


def _axes(clues: Clues, reshard: Reshard) -> int:
    here, there = set(clues.axes), set(reshard.axes)
    if here == there:
        return 4
    if here <= there or there <= here:
        return 2
    return int(bool(wholes(here) & wholes(there)))


def _kind(clues: Clues, reshard: Reshard) -> int:
    """How well a kind of collective suits a reshard: 3 and more when it does, 1 when it may stand for one that does."""
    kind = clues.kind
    if reshard.is_sum:
        return {Kind.ALL_REDUCE: 4, Kind.REDUCE_SCATTER: 4, Kind.ALL_GATHER: 1, Kind.COLLECTIVE_PERMUTE: 1}.get(kind, 0)
    if kind is Kind.ALL_TO_ALL:
        return 4 if is_reshuffle(reshard) else SUITS
    if kind is Kind.ALL_GATHER:
        return SUITS if is_reshuffle(reshard) else 4
    if kind is Kind.COLLECTIVE_PERMUTE:
        return SUITS if is_reshuffle(reshard) else 1
    return int(kind in (Kind.ALL_REDUCE, Kind.COLLECTIVE_BROADCAST))


def _operations(reshard: Reshard) -> list[ShardyOp]:
    asked = [] if reshard.constraint is None else [reshard.constraint]
    made = [] if reshard.producer is None else [reshard.producer]
    return [reshard.op, *asked, *made, *(consumer for consumer, _ in reshard.consumers)]


def _place(clues: Clues, reshard: Reshard) -> int:
    """Whether the collective was compiled from the reshard's operations, from those on the way, or lies at one."""
    if clues.are_of(_operations(reshard)):
        return OWN
    around = clues.between.makers | clues.between.users
    is_near = not clues.numbers and not around.isdisjoint(reshard.op.numbers)
    return PASSED if is_near or clues.are_of(reshard.passed) else 0
