"""Boundaries of `shard_map`: other specs for its arrays, and whether its function computes the same with them.

With another axis in the specs each device runs the function on a part of what it had whole. The results are the same if
the function is the same apart from the sizes, and computes each part of that dimension alone: nothing is summed over
it, numbered along it, or taken from other places in it. That is read from the program as JAX and Shardy have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hloscope.analysis.provenance import short_source
from hloscope.base.errors import HloscopeError
from hloscope.compile.jaxprs import find_jaxpr, is_alike, is_equal, list_manual_functions
from hloscope.compile.lowering import Lowered
from hloscope.compile.sharding_change import WrittenConstraint
from hloscope.model.capture import ShardyOp, ShardyValue, ValueSharding, render_spec, whole_axis
from hloscope.model.decision import Decision, Place
from hloscope.search.source_changes import SHARD_MAP, write_constraint
from hloscope.why.claims import Claims
from hloscope.why.reshards import find_assigned_name, known_sharding
from hloscope.why.shardy_graph import BARRIER_KINDS, MOVE_KINDS, DimensionClass, ShardyGraph, to_frames

_MANUAL = "sdy.manual_computation"
_TRANSPOSED = "transpose("
"""The mark of what differentiation made of a function, in the names of operations."""
_HOLDERS = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "func.call", "func.func"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_ARRANGED = frozenset({"stablehlo.iota", "stablehlo.constant", "sdy.constant", "stablehlo.rng_bit_generator"})
"""Operations that make other numbers at each place of an array."""

Turned = tuple[tuple[Place, WrittenConstraint], ...]
"""Specs that are turned, with the arrays that they are for."""


def list_boundaries(claims: Claims, decision: Decision) -> Iterator[Turned]:
    """For each `shard_map` that makes a dimension whole, or shards another one, its specs with the axis there."""
    for op in claims.graph.module.ops if decision.loser is not None else ():
        if op.kind == _MANUAL and op.source and _TRANSPOSED not in (op.op_name or "") and _loses(claims, op, decision):
            sides = (("in_specs", op.operands), ("out_specs", op.results))
            turned = tuple(pair for side, values in sides for pair in _turn_side(claims, op, decision, side, values))
            if any(written.keyword == "in_specs" for _, written in turned):
                yield turned


def _loses(claims: Claims, op: ShardyOp, decision: Decision) -> bool:
    """Returns whether a dimension of an operand has an axis before it enters, and not inside."""
    for value in map(claims.graph.value, op.operands):
        before, after = known_sharding(claims.graph.unmoved(value)), known_sharding(value)
        assert decision.loser is not None
        for number in claims.find_dimensions(value, decision.loser):
            if decision.axis in map(whole_axis, before[number]) and decision.axis not in after[number]:
                return True
    return False


def _turn_side(
    claims: Claims, op: ShardyOp, decision: Decision, side: str, values: Sequence[int]
) -> Iterator[tuple[Place, WrittenConstraint]]:
    """The specs of arguments or results that change."""
    assert decision.loser is not None
    changed: dict[int, tuple[ShardyValue, ValueSharding, ValueSharding]] = {}
    for leaf, value in enumerate(map(claims.graph.value, values)):
        own, numbers = known_sharding(value), claims.find_dimensions(value, decision.loser)
        if numbers and decision.axis not in own[numbers[0]]:
            kept = [tuple(axis for axis in axes if axis != decision.axis) for axes in own]
            kept[numbers[0]] = (*kept[numbers[0]], decision.axis)
            changed[leaf] = value, own, tuple(kept)
    for leaf, (value, own, after) in changed.items():
        place = Place(
            array=find_assigned_name(claims.graph, claims.graph.unmoved(value)) or f"{side}[{leaf}]",
            source=to_frames(op.source),
            operation=SHARD_MAP,
            shape=claims.graph.value(op.results[0]).shape,
            sharding=after,
            spec=render_spec(after) or "P()",
        )
        written = write_constraint(place, requested=own)
        # differentiation puts arguments and results of its own before those of the function
        yield place, replace(written, keyword=side, leaf=leaf - len(values))


def find_unproven(
    before: ShardyGraph, after: ShardyGraph, programs: tuple[Lowered, Lowered], turned: Iterable[WrittenConstraint]
) -> list[str]:
    """The operations of functions under `shard_map` of which it is unknown whether they compute each part alone.

    Differentiation makes the same of the same functions, so that those that it makes are not compared.

    Args:
        before: The program as written.
        after: The program with other specs.
        programs: Both as JAX has them.
        turned: The specs.

    Raises:
        HloscopeError: The function is another one with these specs.
    """
    pairs = [pair for each in turned for pair in zip(each.requested or (), each.sharding, strict=True)]
    axes = frozenset(axis for old, new in pairs for axis in {*old} ^ {*new})
    jaxprs = [find_jaxpr(program.traced) for program in programs]
    functions = [list_manual_functions(jaxpr) for jaxpr in jaxprs]
    holders = [
        [op for op in graph.module.ops if op.kind == _MANUAL and _TRANSPOSED not in (op.op_name or "")]
        for graph in (before, after)
    ]
    if len({*map(len, functions), *map(len, holders)}) != 1 or not is_equal(jaxprs[0].consts, jaxprs[1].consts):
        raise _refuse("the program is another one")
    unproven: dict[str, None] = {}
    for old, new, one, other in zip(*holders, *functions, strict=True):
        if _Bodies(before, after).is_changed(old, new):
            if not is_alike(one, other, axes):
                raise _refuse("it names the axis, or has other operations or numbers")
            unproven.update(dict.fromkeys(_Bodies(before, after).compare(old, new)))
    return list(unproven)


def _refuse(why: str) -> HloscopeError:
    return HloscopeError("with them its function is not known to compute the same", why=why)


@dataclass(slots=True)
class _Bodies:
    """A function under `shard_map` for two sizes of its arrays.

    Attributes:
        before: The program with the sizes as written.
        after: The program with the others.
        same: The values of the one in the other.
        changed: The classes of dimensions of other sizes, with the ratios of these.
    """

    before: ShardyGraph
    after: ShardyGraph
    same: dict[int, int] = field(default_factory=dict)
    changed: dict[DimensionClass, Fraction] = field(default_factory=dict)

    def is_changed(self, old: ShardyOp, new: ShardyOp) -> bool:
        """Returns whether its arguments have other sizes."""
        self._match(old, new, _list_arguments(self.before, old), _list_arguments(self.after, new))
        return any(one != other for value in self.same for one, other in self._pair_sizes(value))

    def compare(self, old: ShardyOp, new: ShardyOp) -> Iterator[str]:
        """The operations that nothing is known of.

        Raises:
            HloscopeError: The functions differ, or mix what other specs put on several devices.
        """
        pairs = [(old, new), *self._pair(old, new)]
        for one, other in pairs:
            self._match(one, other, _list_arguments(self.before, one), _list_arguments(self.after, other))
            if one is not old:
                self._match(one, other, one.results, other.results)
        for value in _list_arguments(self.before, old):
            self._note_changed(value)
        opaque = [one for one, _ in pairs[1:] if self._is_opaque(one)]
        for value in (value for one in opaque for value in one.results):
            self._note_changed(value)
        self._check_results(old, new)
        for value in self.same:
            self._check_sizes(value)
        for one, other in pairs[1:]:
            if [self.same.get(value) for value in one.operands] != [*other.operands]:
                raise _refuse(f"{one.kind} has other operands")
            self._check_factors(one)
        yield from (one.symbol or one.kind for one in opaque if self._touches(one))

    def _pair(self, old: ShardyOp, new: ShardyOp) -> list[tuple[ShardyOp, ShardyOp]]:
        bodies = list(_list_body(self.before, old)), list(_list_body(self.after, new))
        if [op.kind for op in bodies[0]] != [op.kind for op in bodies[1]]:
            raise _refuse("it has other operations")
        return list(zip(*bodies, strict=True))

    def _match(self, one: ShardyOp, other: ShardyOp, olds: Sequence[int], news: Sequence[int]) -> None:
        """Notes which values are the same; the sizes of one may be others."""
        if len(olds) != len(news) or one.groups != other.groups:
            raise _refuse(f"{one.kind} is another one")
        for first, second in zip(olds, news, strict=True):
            old, new = self.before.value(first), self.after.value(second)
            facts = [(value.element_type, value.whole_number, len(value.shape)) for value in (old, new)]
            if facts[0] != facts[1]:
                raise _refuse(f"{one.kind} makes another array or number")
            self.same[first] = second

    def _note_changed(self, value: int) -> None:
        for number, (old, new) in enumerate(self._pair_sizes(value)):
            if old != new:
                self.changed[self.before.dimensions.of(value)[number]] = Fraction(new, old)

    def _pair_sizes(self, value: int) -> list[tuple[int, int]]:
        return list(zip(self.before.value(value).shape, self.after.value(self.same[value]).shape, strict=True))

    def _check_results(self, old: ShardyOp, new: ShardyOp) -> None:
        """Refuses other sizes of whole results; what only the function's gradient uses may have them."""
        for first, second in zip(old.results, new.results, strict=True):
            used = {user.kind for user, _ in self.before.real_users(self.before.value(first))}
            if used != {_MANUAL} and self.before.value(first).shape != self.after.value(second).shape:
                raise _refuse("its result has another size")

    def _check_sizes(self, value: int) -> None:
        """Refuses a value of which other dimensions change than those of the classes, or two of them."""
        classes, sizes = self.before.dimensions.of(value), self._pair_sizes(value)
        if max(Counter(each for each in classes if each in self.changed).values(), default=0) > 1:
            raise _refuse("an array has the dimension twice")
        for dimension, (old, new) in zip(classes, sizes, strict=True):
            if new != old * self.changed.get(dimension, 1):
                raise _refuse(f"a dimension of {old} becomes {new}")

    def _check_factors(self, op: ShardyOp) -> None:
        """Refuses an operation that does not compute each part of a dimension alone; nothing is known of a kernel."""
        place = short_source(to_frames(op.source))
        where = op.kind.partition(".")[2] + ("" if place is None else f" at {place}")
        if not self._touches(op) or op.kind in _HOLDERS | _RETURNS | MOVE_KINDS | BARRIER_KINDS:
            return
        if op.kind in _ARRANGED:
            raise _refuse(f"{where} numbers the places of the dimension")
        if not self._is_opaque(op) and not self._is_separate(op):
            raise _refuse(f"{where} needs several places of the dimension")

    def _is_separate(self, op: ShardyOp) -> bool:
        """Returns whether each factor of the classes is a dimension of its own wherever it is, and nothing is mixed."""
        rule, dimensions = op.rule, self.before.dimensions
        if rule is None or (len(rule.operands), len(rule.results)) != (len(op.operands), len(op.results)):
            return False
        minor = {factor for side in (*rule.operands, *rule.results) for here in side for factor in here[1:]}
        factors = {factor for factor, size in enumerate(rule.sizes) if size > 1}
        factors = {factor for factor in factors if dimensions.of_factor(op.index, factor) in self.changed}
        sides = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
        pairs = [pair for value, side in sides for pair in zip(dimensions.of(value), side, strict=True)]
        is_whole = all(factors.intersection(here[:1]) for dimension, here in pairs if dimension in self.changed)
        return is_whole and not factors & (rule.reduction | rule.need_replication | rule.permutation | minor)

    @staticmethod
    def _is_opaque(op: ShardyOp) -> bool:
        return op.rule is None and op.kind == "stablehlo.custom_call"

    def _touches(self, op: ShardyOp) -> bool:
        values = (*op.operands, *op.results)
        return any(each in self.changed for value in values for each in self.before.dimensions.of(value))


def _list_arguments(graph: ShardyGraph, op: ShardyOp) -> list[int]:
    """The arguments of the blocks in an operation."""
    return [value.index for value in graph.module.values if value.is_argument and value.owner == op.index]


def _list_body(graph: ShardyGraph, holder: ShardyOp, seen: frozenset[int] = frozenset()) -> Iterator[ShardyOp]:
    """The operations in another one, and in the functions that they call."""
    inside, calls = {holder.index}, []
    for op in graph.module.ops[holder.index + 1 :]:
        if op.parent in inside:
            inside.add(op.index)
            yield op
            function = graph.functions.get(op.symbol or "") if op.kind == "func.call" else None
            calls += [] if function is None or function.index in seen else [function]
    for function in calls:
        yield function
        yield from _list_body(graph, function, seen | {function.index})
