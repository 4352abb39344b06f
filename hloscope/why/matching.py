"""Matches compiled collectives with the program's reshards, by operation, axes, kind and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.compiler.shardy_model import ShardyOp, ShardyValue, ValueSharding
from hloscope.shardy.graph import find_whole_axes
from hloscope.shardy.reshards import Reshard, cache_local_shape, hlo_type, is_float, is_reshuffle, remove_axes
from hloscope.why.partitioned import Neighbors, WindowedEinsum, drop_ones, list_dimensions

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

ArgumentOf = Callable[[ShardyValue], str | None]


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


def collect_clues(
    final: Collective,
    earlier: Collective | None,
    axes: tuple[str, ...],
    numbers: frozenset[int],
    between: Neighbors,
    argument: str | None = None,
    window: WindowedEinsum | None = None,
) -> Clues:
    """The clues of a collective."""
    texts = [final] if earlier is None else [earlier, final]
    return Clues(
        kind=texts[0].kind if window is None else window.stands_for,
        axes=axes,
        numbers=numbers,
        between=between,
        operands=list_dimensions(shape for text in texts for shape in text.operand_shapes),
        results=list_dimensions(shape for text in texts for shape in text.result_shapes),
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

    def __init__(self, reshards: Sequence[Reshard], mesh: dict[str, int], argument_of: ArgumentOf) -> None:
        """Takes all reshards of a program, in text order.

        Args:
            reshards: The reshards of a program.
            mesh: Size of each axis.
            argument_of: The program's argument that a value is, up to element-wise operations and rearrangement.
        """
        self._reshards = reshards
        self._local_shape = cache_local_shape(mesh)
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
        """The operations whose results are summed in the bodies of loops with these numbers.

        A sum that a loop adds to in every iteration is finished once after the loop, under the loop's name.
        """
        return frozenset(added for number in numbers for added in self._added_in.get(number, ()))

    def _clues_in(self, reshard: Reshard) -> Iterator[object]:
        """The clues of which a collective must have one to match this reshard: operation numbers and shapes."""
        for op in (*_list_operations(reshard), *reshard.passed):
            yield from op.numbers
        for sharding in (reshard.before, reshard.after, reshard.final):
            yield drop_ones(self._local_shape(reshard.value.shape, sharding))

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
        wanted = drop_ones(self._local_shape(value.shape, sharding))
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
