"""The decisions behind a program's collectives: reasons that share an axis, the dimension that has it and its rival."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hloscope.analysis.provenance import find_users_frame
from hloscope.model import Collective, StepTime
from hloscope.model.decision import Decision, DecisionKind
from hloscope.model.reason import Claim, Dimension, Reason, ReasonKind
from hloscope.why.claims import Claims

LEAST_SHARE = 0.1
"""The share of the step's bytes, or of its time, from which what a decision causes is notable."""
LOST_FACTOR = 2.0
"""How many times as much must be sent as if the loser had the axis, which the shapes alone do not say better."""
_MOST_OPERATIONS = 4


class _Key(NamedTuple):
    """What the collectives of one decision have in common."""

    kind: DecisionKind
    axis: str
    winner: Dimension | None = None
    loser: Dimension | None = None

    @property
    def name(self) -> str:
        """The decision's name."""
        if self.kind is DecisionKind.AUTHORED:
            return f"{self.axis}: written by the program"
        if self.winner is None:
            return f"{self.axis}: {self.loser.name if self.loser is not None else 'an array'} made whole"
        return f"{self.axis}: {self.winner.name}" + ("" if self.loser is None else f", not {self.loser.name}")


class _Share(NamedTuple):
    """A collective's part in one decision."""

    collective: Collective
    reason: Reason
    parts: int
    claim: Claim | None


def find_decisions(
    collectives: Sequence[Collective], claims: Claims | None, time: StepTime | None
) -> tuple[Decision, ...]:
    """The decisions that a program's collectives follow from, those of the most exposed time first, then of most bytes.

    Args:
        collectives: The collectives, with their reasons.
        claims: Who claims the program's axes; None if nothing is known of it but its text.
        time: The step's time; None if it is not priced.
    """
    shares: dict[_Key, list[_Share]] = defaultdict(list)
    for collective in collectives:
        keys = list(dict(_list_keys(collective)).items())
        for key, claim in keys:
            assert collective.reason is not None
            shares[key].append(_Share(collective, collective.reason, len(keys), claim))
    total = sum(collective.wire_bytes_per_step or 0 for collective in collectives)
    step_us = None if time is None else time.step_us
    found = (_make_decision(key, of_key, claims, total, step_us) for key, of_key in shares.items())
    return tuple(sorted(found, key=lambda each: (-(each.exposed_us or 0.0), -(each.wire_bytes or 0), each.name)))


def _list_keys(collective: Collective) -> Iterator[tuple[_Key, Claim | None]]:
    """The decisions of a collective, one for each axis at most; none if its reason is unknown."""
    reason = collective.reason
    if reason is None or reason.kind is ReasonKind.UNKNOWN:
        return
    if reason.kind is ReasonKind.AUTHORED:
        yield _Key(DecisionKind.AUTHORED, ",".join(collective.axes or reason.axes)), None
    for claim in reason.claims:
        if claim.winner is None and claim.loser is None:
            continue
        if claim.winner is None:
            kind = DecisionKind.MADE_WHOLE
        else:
            kind = DecisionKind.SHARDED if claim.loser is None else DecisionKind.CONTENDED
        yield _Key(kind, claim.axis, claim.winner, claim.loser), claim


def _make_decision(
    key: _Key, shares: Sequence[_Share], claims: Claims | None, total_bytes: int, step_us: float | None
) -> Decision:
    wire_bytes = _sum_shares((share.collective.wire_bytes_per_step, share.parts) for share in shares)
    exposed_us = _sum_shares(
        (None if each.exposed_us is None else each.exposed_us * each.executions, parts) for each, _, parts, _ in shares
    )
    other_bytes = None if key.loser is None or key.winner is None else _sum_other_bytes(shares)
    is_notable = (wire_bytes or 0) >= LEAST_SHARE * max(total_bytes, 1) or (
        exposed_us is not None and step_us is not None and exposed_us >= LEAST_SHARE * step_us
    )
    is_lost = None not in (wire_bytes, other_bytes) and (wire_bytes or 0) > LOST_FACTOR * (other_bytes or 0)
    is_lost = is_lost and is_notable
    needing = [share.reason for share in shares if key.kind is DecisionKind.MADE_WHOLE]
    lines = (find_users_frame(share.collective.source) for share in shares)
    return Decision(
        name=key.name,
        kind=key.kind,
        axis=key.axis,
        winner=key.winner,
        loser=key.loser,
        held_by=() if claims is None else claims.find_claimants_of(key.winner, key.axis),
        lost_by=() if claims is None else claims.find_claimants_of(key.loser, key.axis),
        places=claims.find_places(key.axis, key.winner, key.loser) if claims is not None and is_lost else (),
        collectives=tuple(share.collective.name for share in shares),
        operations=_list_operations(needing),
        source=next(filter(None, lines), None),
        wire_bytes=None if wire_bytes is None else round(wire_bytes),
        exposed_us=exposed_us,
        other_bytes=None if other_bytes is None else round(other_bytes),
        is_lost=is_lost,
    )


def _sum_shares(amounts: Iterable[tuple[float | None, int]]) -> float | None:
    """The sum of shares of equal parts; None if one is unknown."""
    found = 0.0
    for amount, parts in amounts:
        if amount is None:
            return None
        found += amount / parts
    return found


def _sum_other_bytes(shares: Sequence[_Share]) -> int | None:
    """Bytes per step if the loser had the axis; None if no operation has it, so that nothing is known.

    Nothing is expected to change for an operation that does not have it beside others that do.
    """
    known = [
        None if claim is None or claim.other_bytes is None else claim.other_bytes * collective.executions
        for collective, _, _, claim in shares
    ]
    if all(each is None for each in known):
        return None
    own = ((share.collective.wire_bytes_per_step or 0) / share.parts for share in shares)
    return round(sum(own if other is None else other for other, own in zip(known, own, strict=True)))


def _list_operations(reasons: Iterable[Reason]) -> tuple[str, ...]:
    names = (reason.consumer.name for reason in reasons if reason.consumer is not None)
    return tuple(dict.fromkeys(names))[:_MOST_OPERATIONS]
