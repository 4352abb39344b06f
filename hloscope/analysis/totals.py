"""Sums over collectives, per device and step, and which of them a single device attains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, TypeVar

from hloscope.analysis.groups import Groups
from hloscope.analysis.model import Collective, CollectivePart, Total, Totals
from hloscope.analysis.model import bytes_bound as bytes_bound  # noqa: PLC0414 (handed on)
from hloscope.analysis.placement import DEVICES_PER_SLICE_ID, Layout
from hloscope.analysis.transfers import Transfer
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.documents import document

UNKNOWN_AXES = "?"
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def totals_of(
    collectives: Sequence[Collective], reaches: Sequence[tuple[Reach, ...]] | None = None, *, hidden: bool = False
) -> Totals:
    """Adds up what moves in one step.

    Args:
        collectives: All of them.
        reaches: Who sends in each, or in each of its parts; by default every device in all of them.
        hidden: Whether the text may hold transfers that are not among them; every total is then a lower bound.

    Returns:
        The total and its parts. A transfer of unknown bytes over unknown axes is a lower bound for every axis, since it
        may run over any of them. Where no device sends in all that is added, the sum is an upper bound; so is that of a
        link whose transfers may partly stay off it.
    """
    reaches = reaches or [(Reach(),) * max(1, len(collective.parts)) for collective in collectives]
    moves = [_Move(collective, collective, reach) for collective, reach in zip(collectives, reaches, strict=True)]
    parts = [part for move in moves for part in move.by_part()]
    floor = Bound.AT_LEAST if hidden else Bound.EXACT
    anywhere = any(move.part.wire_bytes is None and move.collective.axes is None for move in moves)
    links = _totals_by(lambda move: move.part.link.value, parts, floor)
    return document(
        Totals,
        _sum(moves, floor),
        by_axis=_totals_by(lambda move: axes_key(move.collective), moves, Bound.AT_LEAST if anywhere else floor),
        by_kind=_totals_by(lambda move: move.collective.kind.value, moves, floor),
        by_link={link: _of_link(total, link, parts) for link, total in links.items()},
    )


class _Move(NamedTuple):
    """What one collective, or one part of it, adds to a total."""

    collective: Collective
    part: Collective | CollectivePart
    reaches: tuple[Reach, ...]

    @property
    def wire_bytes_per_step(self) -> int:
        """0 where they are not known."""
        return (self.part.wire_bytes or 0) * self.collective.executions

    def by_part(self) -> list[_Move]:
        """The parts, each on one network; the collective itself when it has none."""
        parts = zip(self.collective.parts, self.reaches, strict=False)
        return [_Move(self.collective, part, (reach,)) for part, reach in parts] or [self]


def largest_first(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """By wire bytes per step, unknown bytes before all others, then by line."""
    return tuple(
        sorted(collectives, key=lambda c: (c.wire_bytes is not None, -(c.wire_bytes_per_step or 0), c.line, c.name))
    )


def axes_key(collective: Collective) -> str:
    """What totals are grouped by: axis names joined by `,`, or `?`."""
    return UNKNOWN_AXES if collective.axes is None else ",".join(collective.axes)


def grouped(key: Callable[[_Item], _Key], items: Iterable[_Item]) -> dict[_Key, list[_Item]]:
    """The items of each key, in order."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _totals_by(key: Callable[[_Move], str], moves: Iterable[_Move], floor: Bound) -> dict[str, Total]:
    totals = {name: _sum(group, floor) for name, group in grouped(key, moves).items()}
    return dict(sorted(totals.items(), key=lambda item: (-item[1].wire_bytes, item[0])))


def _of_link(total: Total, link: str, moves: Iterable[_Move]) -> Total:
    """A link's total. What crosses slices in groups of several devices per slice may partly stay off the link."""
    stays = any(reach.within_slices and move.part.link == link for move in moves for reach in move.reaches)
    return replace(total, bound=total.bound + Bound.AT_MOST) if stays else total


def _sum(moves: Sequence[_Move], floor: Bound) -> Total:
    bound = floor if _one_device_sends_all(moves) else floor + Bound.AT_MOST
    return Total(
        wire_bytes=sum(move.wire_bytes_per_step for move in moves),
        payload_bytes=sum((move.part.payload_bytes or 0) * move.collective.executions for move in moves),
        collectives=len(moves),
        executions=sum(move.collective.executions for move in moves),
        bound=reduce(lambda bound, move: bound + bytes_bound(move.collective), moves, bound),
    )


def _one_device_sends_all(moves: Iterable[_Move]) -> bool:
    """Whether some device sends in every one of these, so that the sum is what the busiest device sends."""
    senders = {reach.senders for move in moves if move.wire_bytes_per_step for reach in move.reaches}
    some = [devices for devices in senders if devices is not None]
    return not some or bool(frozenset.intersection(*some))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Who sends.

    Attributes:
        senders: The devices that send a collective's wire bytes; None when all do, or nothing says.
        within_slices: Whether it crosses slices in groups that hold several devices of one slice, so that a part of its
            bytes may stay inside.
    """

    senders: frozenset[int] | None = None
    within_slices: bool = False


def reach_of(transfer: Transfer, link: Link, layout: Layout, num_partitions: int) -> Reach:
    """Finds who sends in a transfer.

    Args:
        transfer: The transfer.
        link: The network it crosses.
        layout: How the text's ids are to be read.
        num_partitions: Partitions that the text counts.
    """
    if transfer.groups is None:
        return Reach()
    slices = [_slices_of(transfer, layout, group) for group in transfer.groups]
    crowded = transfer.kind is not Kind.COLLECTIVE_PERMUTE and any(
        len(set(found)) < len(found) for found in slices if None not in found
    )
    return Reach(
        senders=_senders(transfer, layout, num_partitions),
        within_slices=link is Link.DCN and crowded,
    )


def _senders(transfer: Transfer, layout: Layout, num_partitions: int) -> frozenset[int] | None:
    """The sources of a permute that leave home, or the members of the largest groups."""
    groups = transfer.groups or ()
    if transfer.kind is Kind.COLLECTIVE_PERMUTE:
        sending: Groups = tuple((pair[0],) for pair in groups if pair[0] != pair[-1])
    else:
        largest = max(map(len, groups), default=0)
        sending = tuple(group for group in groups if len(group) == largest)
    if transfer.device_ids:
        return _unplaced({device for group in sending for device in group}, num_partitions)
    everywhere = sending if transfer.global_ids else layout.everywhere(sending)
    return None if everywhere is None else frozenset(device for group in everywhere for device in group)


def _unplaced(devices: set[int], num_partitions: int) -> frozenset[int] | None:
    """Physical devices, complemented so that none of them passes for a partition; None when whole slices send."""
    in_slice = Counter(device // DEVICES_PER_SLICE_ID for device in devices)
    if devices and set(in_slice.values()) == {num_partitions}:
        return None
    return frozenset(~device for device in devices)


def _slices_of(transfer: Transfer, layout: Layout, group: tuple[int, ...]) -> list[int | None]:
    if transfer.device_ids:
        return [device // DEVICES_PER_SLICE_ID for device in group]
    if layout.placement is None or (layout.one_slice and not transfer.global_ids):
        return [None]
    return [layout.placement.slice_of(device) for device in group]
