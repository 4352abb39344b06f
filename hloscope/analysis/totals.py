"""Sums over collectives, per device and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import reduce

from hloscope.analysis.model import Collective, Total, Totals
from hloscope.analysis.reach import Reach
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.analysis.volume import sizes_bound

UNKNOWN_AXES = "?"


_Part = tuple[Collective, Reach]


def totals_of(
    collectives: Sequence[Collective], reaches: Sequence[Reach] | None = None, *, hidden: bool = False
) -> Totals:
    """Adds up what moves in one step.

    Args:
        collectives: All of them.
        reaches: Who sends in each; by default every device in all of them.
        hidden: Whether the text may hold transfers that are not among them; every total is then a lower bound.

    Returns:
        The total and its parts. A transfer of unknown bytes over unknown axes is a lower bound for every axis, since it
        may run over any of them. Where no device sends in all that is added, the sum is an upper bound; so is that of a
        link whose transfers may partly stay off it.
    """
    moves = list(zip(collectives, reaches or [Reach()] * len(collectives), strict=True))
    floor = Bound.AT_LEAST if hidden else Bound.EXACT
    anywhere = any(c.wire_bytes is None and c.axes is None for c in collectives)
    whole = _sum(moves, floor)
    links = _parts(moves, lambda collective: collective.link.value, floor)
    return Totals(
        **{field.name: getattr(whole, field.name) for field in fields(whole)},
        by_axis=_parts(moves, _axis_key, Bound.AT_LEAST if anywhere else floor),
        by_kind=_parts(moves, lambda collective: collective.kind.value, floor),
        by_link={link: _of_link(total, link, moves) for link, total in links.items()},
    )


def largest_first(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """By wire bytes per step, unknown bytes before all others, then by line."""
    return tuple(
        sorted(collectives, key=lambda c: (c.wire_bytes is not None, -(c.wire_bytes_per_step or 0), c.line, c.name))
    )


def bytes_bound(collective: Collective) -> Bound:
    """How a collective's bytes per step relate to the truth.

    Unknown bytes make a lower bound. A ragged all-to-all sends what its run-time sizes say: at most its operand. See
    `sizes_bound` for what shapes say.
    """
    if collective.wire_bytes is None or collective.payload_bytes is None:
        return collective.executions_bound + Bound.AT_LEAST
    if collective.kind is Kind.RAGGED_ALL_TO_ALL:
        return collective.executions_bound + Bound.AT_MOST
    return collective.executions_bound + sizes_bound(
        collective.kind, collective.operand_shapes, collective.result_shapes
    )


def _axis_key(collective: Collective) -> str:
    return UNKNOWN_AXES if collective.axes is None else ",".join(collective.axes)


def _parts(moves: Iterable[_Part], key: Callable[[Collective], str], floor: Bound) -> dict[str, Total]:
    parts: dict[str, list[_Part]] = {}
    for collective, reach in moves:
        parts.setdefault(key(collective), []).append((collective, reach))
    totals = {name: _sum(part, floor) for name, part in parts.items()}
    return dict(sorted(totals.items(), key=lambda item: (-item[1].wire_bytes, item[0])))


def _of_link(total: Total, link: str, moves: Iterable[_Part]) -> Total:
    """A link's total. What crosses slices in groups of several devices per slice may partly stay off the link."""
    stays = any(reach.within_slices and collective.link == link for collective, reach in moves)
    return replace(total, bound=total.bound + Bound.AT_MOST) if stays else total


def _sum(moves: Sequence[_Part], floor: Bound) -> Total:
    collectives = [collective for collective, _ in moves]
    bound = floor if _one_device_sends_all(moves) else floor + Bound.AT_MOST
    return Total(
        wire_bytes=sum(collective.wire_bytes_per_step or 0 for collective in collectives),
        payload_bytes=sum(collective.payload_bytes_per_step or 0 for collective in collectives),
        collectives=len(collectives),
        executions=sum(collective.executions for collective in collectives),
        bound=reduce(lambda bound, collective: bound + bytes_bound(collective), collectives, bound),
    )


def _one_device_sends_all(moves: Iterable[_Part]) -> bool:
    """Whether some device sends in every one of these, so that the sum is what the busiest device sends."""
    senders = {reach.senders for collective, reach in moves if collective.wire_bytes_per_step}
    some = [devices for devices in senders if devices is not None]
    return not some or bool(frozenset.intersection(*some))
