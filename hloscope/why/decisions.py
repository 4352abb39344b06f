"""The decisions behind a program's collectives: reasons that share an axis, and axes that bring nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from itertools import islice
from math import inf
from operator import add
from typing import NamedTuple

from hloscope.analysis.provenance import find_users_frame
from hloscope.base.results import group_by
from hloscope.base.units import sum_known
from hloscope.compile.estimates import MATMUL_KINDS, ShardyRuns, find_cut_factors
from hloscope.model import Analysis, Collective, StepTime, bytes_bound
from hloscope.model.analysis import RepeatedWork
from hloscope.model.capture import (
    ShardyOp,
    ShardyValue,
    find_cut_dimensions,
    multiply_axis_sizes,
    render_spec,
    whole_axis,
)
from hloscope.model.decision import Decision, DecisionKind
from hloscope.model.reason import AskedBy, Claim, Dimension, Reason, ReasonKind
from hloscope.model.vocabulary import Bound, Link
from hloscope.why.claims import Claims
from hloscope.why.reshards import known_sharding
from hloscope.why.sentences import find_kept_axes
from hloscope.why.shardy_graph import MOVE_KINDS, DimensionClass

LEAST_GAIN = 0.05
"""The least share of the step for the exposed time of the bytes that would be saved."""
LEAST_TRIED = 0.1
"""The least share of the step for which changes are tried against a decision that is not lost."""
LEAST_SHARE = 0.1
"""The least share of the step's bytes, where times are unknown."""
LOST_FACTOR = 2.0
"""The least ratio of the bytes sent to those sent if the loser had the axis, which the shapes only estimate."""
_MOST_OPERATIONS = 4


class _Key(NamedTuple):
    """The common part of the collectives of one decision."""

    kind: DecisionKind
    axis: str
    winner: Dimension | None = None
    loser: Dimension | None = None

    @property
    def name(self) -> str:
        """The decision's name."""
        if self.kind is DecisionKind.AUTHORED:
            return f"{self.axis}: written by the program"
        if self.kind is DecisionKind.IDLE:
            return f"{self.axis}: idle, not {self.loser.name if self.loser is not None else 'used'}"
        if self.winner is None:
            return f"{self.axis}: {self.loser.name if self.loser is not None else 'an array'} made whole"
        return f"{self.axis}: {self.winner.name}" + ("" if self.loser is None else f", not {self.loser.name}")


class _Share(NamedTuple):
    """A collective's part in one decision: of several transfers that were combined, those that follow from it.

    Its bytes are whole, so that those of all decisions add up.
    """

    collective: Collective
    reason: Reason
    share: float
    wire_bytes: int | None
    claims: tuple[Claim, ...]

    def of(self, amount: float | None) -> float | None:
        """This part of an amount; None if that is unknown."""
        return None if amount is None else amount * self.share


def find_decisions(
    collectives: Sequence[Collective], claims: Claims | None, time: StepTime | None, work: RepeatedWork | None = None
) -> tuple[Decision, ...]:
    """The decisions that a program's collectives follow from, those of the most exposed time first, then of most bytes.

    Args:
        collectives: The collectives, with their reasons.
        claims: The claims to the program's axes; None if nothing is known of it but its text.
        time: The step's time; None if it is not priced.
        work: What the compiled program's devices repeat in all; None if unknown.
    """
    shares: dict[_Key, list[_Share]] = defaultdict(list)
    for collective in collectives:
        if collective.reason is None:
            continue
        found = group_by(_list_keys(collective, collective.reason), lambda pair: pair[0])
        whole, done, sent = sum(map(len, found.values())), 0, collective.wire_bytes_per_step
        for key, pairs in found.items():
            before, done = done, done + len(pairs)
            wire_bytes = None if sent is None else sent * done // whole - sent * before // whole
            given = tuple(claim for _, claim in pairs if claim is not None)
            shares[key].append(_Share(collective, collective.reason, len(pairs) / whole, wire_bytes, given))
    step = _Step(
        wire_bytes=sum(collective.wire_bytes_per_step or 0 for collective in collectives),
        us=None if time is None else time.step_us,
    )
    repeated = dict(_find_repeated(claims, shares, time, work))
    for key, repeated_us in repeated.items():
        if repeated_us >= LEAST_GAIN * (step.us or 0.0):
            shares.setdefault(key, [])
    made = [_make_decision(key, of_key, claims, step, repeated.get(key)) for key, of_key in shares.items()]
    judged = [replace(each, is_lost=False, places=()) if _is_answered(each, made) else each for each in made]

    def key_of(decision: Decision) -> tuple[float, float, str]:
        waited_us = (decision.exposed_us or 0.0) + (decision.repeated_us or 0.0)
        return -waited_us, -(decision.wire_bytes or 0), decision.name

    return tuple(sorted(judged, key=key_of))


def list_worth_trying(found: Analysis) -> tuple[Decision, ...]:
    """The decisions to try the other way round: those that are lost, and then others at a notable cost.

    These are the two costliest that make a dimension whole, one of an axis that crosses slices, one of sums that a
    constraint requests, and one of an axis that a constraint gives to the winner.
    """
    lost = tuple(decision for decision in found.decisions if decision.is_lost)
    step_us = inf if found.time is None else found.time.step_us
    costly = [
        decision
        for decision in found.decisions
        if not decision.is_lost and decision.collectives and (decision.exposed_us or 0.0) >= LEAST_TRIED * step_us
    ]
    crossing = find_crossing_axes(found.collectives)
    whole = (decision for decision in costly if decision.kind is DecisionKind.MADE_WHOLE)
    apart = (each for each in costly if each.kind is not DecisionKind.AUTHORED and each.axis in crossing)
    requested = {each.name for each in found.collectives if each.reason is not None and _is_requested_sum(each.reason)}
    summed = (each for each in costly if not requested.isdisjoint(each.collectives))
    given = (each for each in costly if each.kind is DecisionKind.CONTENDED and is_given_by_constraint(each))
    first = {each.name: each for each in (*islice(whole, 2), *islice(apart, 1), *islice(summed, 1), *islice(given, 1))}
    return (*lost, *first.values())


def is_given_by_constraint(decision: Decision) -> bool:
    """Returns whether a constraint of the program gives the axis to the winner."""
    return any(asker.by == "constraint" for asker in decision.held_by)


def _is_requested_sum(reason: Reason) -> bool:
    """Returns whether a constraint of the program requests a sum on every device."""
    by_constraint = any(asker.by == "constraint" for asker in reason.asked_by)
    return reason.kind is ReasonKind.PARTIAL_SUM and by_constraint and not find_kept_axes(reason)


def find_crossing_axes(collectives: Iterable[Collective]) -> frozenset[str]:
    """The mesh axes of collectives that cross slices, without those of collectives that do not."""
    axes: dict[bool, set[str]] = {True: set(), False: set()}
    for collective in collectives:
        axes[collective.link is not Link.ICI].update(map(whole_axis, collective.axes or ()))
    return frozenset(axes[True] - axes[False])


def _find_repeated(
    claims: Claims | None, shares: Mapping[_Key, Sequence[_Share]], time: StepTime | None, work: RepeatedWork | None
) -> Iterator[tuple[_Key, float]]:
    """The time of matmuls, at the device's peak, that devices repeat because an axis shards nothing.

    It is no more than what the compiled program repeats in all: the partitioner may do better than Shardy asks.
    """
    if claims is None or time is None or not time.flops or not time.peak_flops_share:
        return
    if work is None or work.ratio is None or work.ratio <= 1 or work.bound not in (Bound.EXACT, Bound.AT_LEAST):
        return
    idle, flops = IdleAxes(claims), defaultdict[_Key, float](float)
    for (axis, dimension, is_claimed), repeated in idle.repeated.items():
        flops[_Key(DecisionKind.MADE_WHOLE if is_claimed else DecisionKind.IDLE, axis, None, dimension)] += repeated
    for key, of_key in shares.items():
        if key.kind is DecisionKind.MADE_WHOLE:
            gathered = {claim.operation for share in of_key for claim in share.claims if claim.operation is not None}
            flops[key] += sum(idle.count_repeated(number, key.axis) for number in gathered)
    most = time.flops * (1 - 1 / work.ratio)
    for key, repeated in flops.items():
        if repeated:
            yield key, time.step_us * time.peak_flops_share * min(repeated, most) / time.flops


class _Step(NamedTuple):
    """The bytes that one device sends in a step, and its time."""

    wire_bytes: int
    us: float | None


def _list_keys(collective: Collective, reason: Reason) -> Iterator[tuple[_Key, Claim | None]]:
    """The decisions of a collective, for each axis and each transfer that was combined; empty without a reason."""
    if reason.kind is ReasonKind.AUTHORED:
        yield _Key(DecisionKind.AUTHORED, ",".join(collective.axes or reason.axes)), None
    for claim in reason.claims if reason.kind is not ReasonKind.UNKNOWN else ():
        if claim.winner is None and claim.loser is None:
            continue
        if claim.winner is None:
            kind = DecisionKind.MADE_WHOLE
        else:
            kind = DecisionKind.SHARDED if claim.loser is None else DecisionKind.CONTENDED
        yield _Key(kind, claim.axis, claim.winner, claim.loser), claim


def _make_decision(
    key: _Key, shares: Sequence[_Share], claims: Claims | None, step: _Step, repeated_us: float | None
) -> Decision:
    wire_bytes = sum_known(share.wire_bytes for share in shares)
    exposed_us = _sum_known(share.of(_find_exposed(share.collective)) for share in shares)
    other_bytes = None if key.loser is None else _sum_other_bytes(shares)
    needing = [share.reason for share in shares if key.kind is DecisionKind.MADE_WHOLE]
    lines = (find_users_frame(share.collective.source) for share in shares)
    bounds = (bytes_bound(share.collective) for share in shares)
    made = Decision(
        name=key.name,
        kind=key.kind,
        axis=key.axis,
        winner=key.winner,
        loser=key.loser,
        held_by=_list_holders(key, claims, needing),
        lost_by=() if claims is None else claims.find_claimants_of(key.loser, key.axis),
        collectives=tuple(share.collective.name for share in shares),
        operations=_list_operations(needing),
        is_summed=any(share.reason.kind is ReasonKind.PARTIAL_SUM for share in shares),
        source=next(filter(None, lines), None),
        wire_bytes=wire_bytes,
        bound=reduce(add, bounds, Bound.EXACT),
        exposed_us=exposed_us,
        other_bytes=None if other_bytes is None else round(other_bytes),
        repeated_us=repeated_us if key.winner is None else None,
    )
    if claims is None or not _is_lost(made, shares, IdleAxes(claims), step):
        return made
    places = claims.find_places(key.axis, key.winner, key.loser)
    return replace(made, places=places, is_lost=bool(places) or key.winner is None)


def _is_lost(decision: Decision, shares: Sequence[_Share], idle: IdleAxes, step: _Step) -> bool:
    """Returns whether the axis is where it costs most, judging by the program and the time of its step."""
    axis, winner, loser = decision.axis, decision.winner, decision.loser
    if winner is None and (decision.repeated_us or 0.0) >= LEAST_GAIN * (step.us or inf):
        return True
    sent, other = decision.wire_bytes, decision.other_bytes
    if not sent:
        return False
    if other is not None and sent > LOST_FACTOR * other and _is_notable(sent, other, decision.exposed_us, step):
        return True
    if not _is_notable(sent, 0, decision.exposed_us, step):
        return False
    asked = any(asker.by == "output" for share in shares for asker in share.reason.asked_by)
    if asked and idle.find_unlike_outputs(axis, winner, loser):
        return True
    return winner is None and idle.is_needless(axis, loser)


def _find_exposed(collective: Collective) -> float | None:
    return None if collective.exposed_us is None else collective.exposed_us * collective.executions


def _is_notable(wire_bytes: float, other_bytes: float, exposed_us: float | None, step: _Step) -> bool:
    """Returns whether the exposed time of the bytes that are saved is a notable share of the step; else the bytes."""
    if exposed_us is None or step.us is None:
        return wire_bytes >= LEAST_SHARE * max(step.wire_bytes, 1)
    return exposed_us * (1 - other_bytes / wire_bytes) >= LEAST_GAIN * step.us


def _is_answered(decision: Decision, others: Iterable[Decision]) -> bool:
    """Returns whether the opposite decision, at other values, costs more: then that is the one to turn."""
    return any(
        decision.is_lost
        and other.is_lost
        and (other.axis, other.winner, other.loser) == (decision.axis, decision.loser, decision.winner)
        and (other.wire_bytes or 0, other.name) > (decision.wire_bytes or 0, decision.name)
        for other in others
    )


def _sum_known(amounts: Iterable[float | None]) -> float | None:
    """The sum; None if a part is unknown."""
    found = 0.0
    for amount in amounts:
        if amount is None:
            return None
        found += amount
    return found


def _sum_other_bytes(shares: Iterable[_Share]) -> int | None:
    """Bytes per step if the loser had the axis, each operation once; None if no operation has it.

    A collective of operations that do not have it, beside others that do, is expected to send as much as it does.
    """
    known: dict[object, int] = {}
    same = 0.0
    for share in shares:
        judged = [claim for claim in share.claims if claim.other_bytes is not None]
        same += 0 if judged else share.wire_bytes or 0
        for claim in judged:
            assert claim.other_bytes is not None
            key = claim.operation if claim.operation is not None else object()
            known[key] = max(known.get(key, 0), claim.other_bytes * share.collective.executions)
    return round(sum(known.values()) + same) if known else None


def _list_holders(key: _Key, claims: Claims | None, needing: Iterable[Reason]) -> tuple[AskedBy, ...]:
    """The requests for the winner; without one, each `shard_map` whose specs make the dimension whole."""
    if key.winner is not None:
        return () if claims is None else claims.find_claimants_of(key.winner, key.axis)
    found = ((reason.consumer, reason.wanted) for reason in needing)
    asked = (
        AskedBy(axis=key.axis, by=operation.name, name=None, sharding=render_spec(wanted), source=operation.source)
        for operation, wanted in found
        if operation is not None and operation.name == "shard_map"
    )
    return tuple(dict.fromkeys(asked))


def _list_operations(reasons: Iterable[Reason]) -> tuple[str, ...]:
    names = (reason.consumer.name for reason in reasons if reason.consumer is not None)
    return tuple(dict.fromkeys(names))[:_MOST_OPERATIONS]


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
    def _runs(self) -> ShardyRuns:
        return ShardyRuns(self._graph.module)

    @cached_property
    def repeated(self) -> Mapping[tuple[str, Dimension, bool], float]:
        """FLOPs of matmuls that each device repeats because an axis, or a part of it, shards none of their dimensions.

        By the axis, the dimension that could have it, and whether anything claims it for that one: the largest that
        does, or otherwise one that is not summed over, rather of those that another axis shards. Matmuls in branches,
        which may not run, and in loops of unknown length are left out.
        """
        found: dict[tuple[str, Dimension, bool], float] = defaultdict(float)
        module, runs = self._graph.module, self._runs
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

    def count_repeated(self, number: int, axis: str) -> float:
        """FLOPs of a matmul that each device repeats because a dimension is gathered for it that Shardy left sharded.

        Where Shardy gathers an operand itself, the other one may be what has the axis.

        Args:
            number: The number of the operation; if it is no matmul, or runs an unknown number of times, nothing counts.
            axis: The axis of the gathered dimension.
        """
        module = self._graph.module
        op, of_op = module.ops[number], self._runs.of(module.ops[number])
        if op.kind not in MATMUL_KINDS or not op.flops or of_op.is_open or axis in of_op.manual:
            return 0.0
        if any(self._is_moved(self._graph.value(operand), axis) for operand in op.operands):
            return 0.0
        axes = {each for of_factor in find_cut_factors(module, op).values() for each in of_factor}
        gathered = {each for each in axes if whole_axis(each) == axis}
        factor = multiply_axis_sizes(gathered, module.mesh)
        return op.flops * of_op.times / multiply_axis_sizes(axes - gathered, module.mesh) * (1 - 1 / factor)

    def _is_moved(self, value: ShardyValue, axis: str) -> bool:
        """Returns whether Shardy gives a value an axis elsewhere, or takes it away, for one use."""
        before = known_sharding(self._graph.unmoved(value))
        return find_cut_dimensions(before, (axis,)) != find_cut_dimensions(known_sharding(value), (axis,))

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
