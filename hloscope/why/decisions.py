"""The decisions behind a program's collectives: reasons that share an axis, the dimension that has it and its rival."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from operator import add
from typing import NamedTuple

from hloscope.analysis.provenance import find_users_frame
from hloscope.base.results import group_by
from hloscope.model import Collective, StepTime, bytes_bound
from hloscope.model.analysis import RepeatedWork
from hloscope.model.decision import Decision, DecisionKind
from hloscope.model.reason import Claim, Dimension, Reason, ReasonKind
from hloscope.model.vocabulary import Bound
from hloscope.why.claims import Claims
from hloscope.why.idle_axes import IdleAxes

LEAST_GAIN = 0.05
"""The least share of the step for the exposed time of the bytes that would be saved."""
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
    """A collective's part in one decision: of several transfers that were combined, those that follow from it."""

    collective: Collective
    reason: Reason
    share: float
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
        whole = sum(len(pairs) for pairs in found.values())
        for key, pairs in found.items():
            given = tuple(claim for _, claim in pairs if claim is not None)
            shares[key].append(_Share(collective, collective.reason, len(pairs) / whole, given))
    step = _Step(
        wire_bytes=sum(collective.wire_bytes_per_step or 0 for collective in collectives),
        us=None if time is None else time.step_us,
    )
    repeated = dict(_find_repeated(claims, time, work))
    for key, repeated_us in repeated.items():
        if repeated_us >= LEAST_GAIN * (step.us or 0.0):
            shares.setdefault(key, [])
    made = [_make_decision(key, of_key, claims, step, repeated.get(key)) for key, of_key in shares.items()]
    judged = [replace(each, is_lost=each.is_lost and not _is_answered(each, made)) for each in made]

    def key_of(decision: Decision) -> tuple[float, float, str]:
        waited_us = (decision.exposed_us or 0.0) + (decision.repeated_us or 0.0)
        return -waited_us, -(decision.wire_bytes or 0), decision.name

    return tuple(sorted(judged, key=key_of))


def _find_repeated(
    claims: Claims | None, time: StepTime | None, work: RepeatedWork | None
) -> Iterator[tuple[_Key, float]]:
    """The time of matmuls, at the device's peak, that devices repeat because an axis shards nothing.

    It is no more than what the compiled program repeats in all: the partitioner may do better than Shardy asks.
    """
    if claims is None or time is None or not time.flops or not time.peak_flops_share:
        return
    if work is None or work.ratio is None or work.ratio <= 1 or work.bound not in (Bound.EXACT, Bound.AT_LEAST):
        return
    most = time.flops * (1 - 1 / work.ratio)
    for (axis, dimension, is_claimed), flops in IdleAxes(claims).repeated.items():
        kind = DecisionKind.MADE_WHOLE if is_claimed else DecisionKind.IDLE
        yield _Key(kind, axis, None, dimension), time.step_us * time.peak_flops_share * min(flops, most) / time.flops


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
    wire_bytes = _sum_known(share.of(share.collective.wire_bytes_per_step) for share in shares)
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
        held_by=() if claims is None else claims.find_claimants_of(key.winner, key.axis),
        lost_by=() if claims is None else claims.find_claimants_of(key.loser, key.axis),
        collectives=tuple(share.collective.name for share in shares),
        operations=_list_operations(needing),
        is_summed=any(share.reason.kind is ReasonKind.PARTIAL_SUM for share in shares),
        source=next(filter(None, lines), None),
        wire_bytes=None if wire_bytes is None else round(wire_bytes),
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
    if other and sent > LOST_FACTOR * other and _is_notable(sent, other, decision.exposed_us, step):
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
        other.is_lost
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

    An operation that does not have it, beside others that do, is expected to send as much as it does.
    """
    known: dict[object, int] = {}
    same = 0.0
    for share in shares:
        for claim in share.claims:
            if claim.other_bytes is None:
                same += (share.of(share.collective.wire_bytes_per_step) or 0.0) / len(share.claims)
                continue
            key = claim.operation if claim.operation is not None else object()
            known[key] = max(known.get(key, 0), claim.other_bytes * share.collective.executions)
    return round(sum(known.values()) + same) if known else None


def _list_operations(reasons: Iterable[Reason]) -> tuple[str, ...]:
    names = (reason.consumer.name for reason in reasons if reason.consumer is not None)
    return tuple(dict.fromkeys(names))[:_MOST_OPERATIONS]
