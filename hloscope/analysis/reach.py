"""Which devices send in a collective: what makes a sum over collectives one that a single device attains."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hloscope.analysis.groups import Groups
from hloscope.analysis.placement import DEVICES_PER_SLICE_ID, Layout
from hloscope.analysis.transfers import Transfer
from hloscope.analysis.vocabulary import Kind, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Who sends.

    Attributes:
        senders: The devices that send a collective's wire bytes; None when all do, or nothing tells.
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
