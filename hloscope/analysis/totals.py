"""Sums over collectives, per device and step, and whether a single device attains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from hloscope.analysis.groups import DEVICES_PER_SLICE_ID, Groups, Numbering
from hloscope.analysis.transfers import Transfer
from hloscope.base.documents import make_document
from hloscope.base.results import group_by
from hloscope.model import (
    Analysis,
    ArrayFact,
    Collective,
    CollectivePart,
    Collectives,
    Mesh,
    Total,
    Totals,
    bytes_bound,
)
from hloscope.model.vocabulary import Bound, CompileStage, Kind, Link

UNKNOWN_AXES = "?"


def compute_totals(
    collectives: Sequence[Collective], reaches: Sequence[tuple[Reach, ...]] | None = None, *, hidden: bool = False
) -> Totals:
    """Adds up the transfers of one step.

    Args:
        collectives: All collectives of the program.
        reaches: The sending devices of each collective, or of each of its parts; by default every device.
        hidden: Whether the text may hide further transfers, which makes every total a lower bound.

    Returns:
        The total and its parts. A transfer of unknown bytes over unknown axes is a lower bound for every axis, since it
        may run over any of them. If no device sends in all addends, the sum is an upper bound; so is that of a link
        that some transfers may partly avoid.
    """
    reaches = reaches or [(Reach(),) * max(1, len(collective.parts)) for collective in collectives]
    moves = [_Addend(collective, collective, reach) for collective, reach in zip(collectives, reaches, strict=True)]
    parts = [part for move in moves for part in move.by_part()]
    floor = Bound.AT_LEAST if hidden else Bound.EXACT
    anywhere = any(move.part.wire_bytes is None and move.collective.axes is None for move in moves)
    links = _sum_by_key(lambda move: move.part.link.value, parts, floor)
    return make_document(
        Totals,
        _sum_addends(moves, floor),
        by_axis=_sum_by_key(lambda move: axes_key(move.collective), moves, Bound.AT_LEAST if anywhere else floor),
        by_kind=_sum_by_key(lambda move: move.collective.kind.value, moves, floor),
        by_link={link: _adjust_total_of_link(total, link, parts) for link, total in links.items()},
    )


class _Addend(NamedTuple):
    """The contribution of one collective, or one part of it, to a total."""

    collective: Collective
    part: Collective | CollectivePart
    reaches: tuple[Reach, ...]

    @property
    def wire_bytes_per_step(self) -> int:
        """The wire bytes per step; 0 if unknown."""
        return (self.part.wire_bytes or 0) * self.collective.executions

    def by_part(self) -> list[_Addend]:
        """The parts, each on one network; the collective itself if it has none."""
        parts = zip(self.collective.parts, self.reaches, strict=False)
        return [_Addend(self.collective, part, (reach,)) for part, reach in parts] or [self]


def sort_largest_first(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Sorts collectives by wire bytes per step, with unknown bytes first, then by line."""
    return tuple(
        sorted(collectives, key=lambda c: (c.wire_bytes is not None, -(c.wire_bytes_per_step or 0), c.line, c.name))
    )


def axes_key(collective: Collective) -> str:
    """The key that totals are grouped by: axis names joined by `,`, or `?`."""
    return UNKNOWN_AXES if collective.axes is None else ",".join(collective.axes)


def _sum_by_key(key: Callable[[_Addend], str], moves: Iterable[_Addend], floor: Bound) -> dict[str, Total]:
    totals = {name: _sum_addends(group, floor) for name, group in group_by(moves, key).items()}
    return dict(sorted(totals.items(), key=lambda item: (-item[1].wire_bytes, item[0])))


def _adjust_total_of_link(total: Total, link: str, moves: Iterable[_Addend]) -> Total:
    """A link's total, adjusted for groups with several devices per slice, whose transfers may partly avoid the link."""
    stays = any(reach.within_slices and move.part.link == link for move in moves for reach in move.reaches)
    return replace(total, bound=total.bound + Bound.AT_MOST) if stays else total


def _sum_addends(moves: Sequence[_Addend], floor: Bound) -> Total:
    bound = floor if _has_device_that_sends_all(moves) else floor + Bound.AT_MOST
    return Total(
        wire_bytes=sum(move.wire_bytes_per_step for move in moves),
        payload_bytes=sum((move.part.payload_bytes or 0) * move.collective.executions for move in moves),
        collectives=len(moves),
        executions=sum(move.collective.executions for move in moves),
        bound=reduce(lambda bound, move: bound + bytes_bound(move.collective), moves, bound),
    )


def _has_device_that_sends_all(moves: Iterable[_Addend]) -> bool:
    """Returns whether one device sends in all of these, so that the sum is that of the busiest device."""
    senders = {reach.senders for move in moves if move.wire_bytes_per_step for reach in move.reaches}
    some = [devices for devices in senders if devices is not None]
    return not some or bool(frozenset.intersection(*some))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The senders of a transfer.

    Attributes:
        senders: The devices that send a collective's wire bytes; None if all do, or if unknown.
        within_slices: Whether it crosses slices in groups that hold several devices of one slice, so that a part of its
            bytes may stay inside.
    """

    senders: frozenset[int] | None = None
    within_slices: bool = False


def find_reach(transfer: Transfer, link: Link, layout: Numbering, num_partitions: int) -> Reach:
    """Finds the senders of a transfer.

    Args:
        transfer: The transfer.
        link: The network it crosses.
        layout: The meaning of device ids in the text.
        num_partitions: Number of partitions according to the text.
    """
    if transfer.groups is None:
        return Reach()
    slices = [_find_slices_of_group(transfer, layout, group) for group in transfer.groups]
    crowded = transfer.kind is not Kind.COLLECTIVE_PERMUTE and any(
        len(set(found)) < len(found) for found in slices if None not in found
    )
    return Reach(
        senders=_find_senders(transfer, layout, num_partitions),
        within_slices=link is Link.DCN and crowded,
    )


def _find_senders(transfer: Transfer, layout: Numbering, num_partitions: int) -> frozenset[int] | None:
    """The sources of a permute that send to another device, or the members of the largest groups."""
    groups = transfer.groups or ()
    if transfer.kind is Kind.COLLECTIVE_PERMUTE:
        sending: Groups = tuple((pair[0],) for pair in groups if pair[0] != pair[-1])
    else:
        largest = max(map(len, groups), default=0)
        sending = tuple(group for group in groups if len(group) == largest)
    if transfer.device_ids:
        return _mark_unplaced({device for group in sending for device in group}, num_partitions)
    everywhere = sending if transfer.global_ids else layout.everywhere(sending)
    return None if everywhere is None else frozenset(device for group in everywhere for device in group)


def _mark_unplaced(devices: set[int], num_partitions: int) -> frozenset[int] | None:
    """Physical devices, complemented so that none is mistaken for a partition; None if whole slices send."""
    in_slice = Counter(device // DEVICES_PER_SLICE_ID for device in devices)
    if devices and set(in_slice.values()) == {num_partitions}:
        return None
    return frozenset(~device for device in devices)


def _find_slices_of_group(transfer: Transfer, layout: Numbering, group: tuple[int, ...]) -> list[int | None]:
    if transfer.device_ids:
        return [device // DEVICES_PER_SLICE_ID for device in group]
    if layout.placement is None or (layout.one_slice and not transfer.global_ids):
        return [None]
    return [layout.placement.slice_of(device) for device in group]


# ---- an analysis without hloscope's guesses: nothing that a user writes down is compared with a guess

GUESS = "guess"
"""`SliceFact.chosen_by` of a slice that was guessed from a text."""


def remove_guesses(analysis: Analysis, *, keep_estimates: bool = False) -> Analysis:
    """The analysis as of text that names neither axes nor a slice: for contracts, baselines and comparisons.

    Args:
        analysis: The analysis.
        keep_estimates: Whether the times of a program that is only scheduled stay.
    """
    return _remove_made_up_names(remove_guessed_times(analysis, keep_estimates=keep_estimates))


def remove_guessed_times(analysis: Analysis, *, keep_estimates: bool = False) -> Analysis:
    """The analysis without times that a verdict must not rest on: of a guessed chip, or before code is generated."""
    is_guess = analysis.slice is not None and analysis.slice.chosen_by == GUESS
    if not is_guess and (keep_estimates or analysis.stage is not CompileStage.SCHEDULED):
        return analysis
    collectives = tuple(
        replace(collective, time_us=None, exposed_us=None, time_error=None, overlap=None)
        for collective in analysis.collectives
    )
    known = replace(analysis, time=None, collectives=Collectives(collectives))
    if is_guess:
        known = replace(known, slice=None, memory=replace(analysis.memory, hbm_bytes=None, fits=None))
    return analysis._remembered_by(known)


def _remove_made_up_names(analysis: Analysis) -> Analysis:
    if analysis.mesh is None or not analysis.mesh.made_up:
        return analysis
    collectives = tuple(replace(collective, axes=None) for collective in analysis.collectives)
    totals = compute_totals(collectives, hidden=bool(analysis.unmodelled))
    return analysis._remembered_by(replace(analysis, mesh=None, collectives=Collectives(collectives), totals=totals))


# ---- labels for programs with the same name that are shown together, such as two shardings of one function

_MOST_ARRAYS = 2


def label_programs(names: Sequence[str], programs: Sequence[Analysis | None]) -> tuple[str, ...]:
    """The names, with differences added to equal ones: `step (v5e:2x4)`, `step (w: P('X'))`.

    Args:
        names: The names that the user gave them.
        programs: Their analyses; None for an unknown one.
    """
    shown = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        words = _find_distinctions([programs[place] for place in places])
        for place, said in zip(places, words, strict=True):
            shown[place] = f"{name} ({said})"
    return tuple(shown)


def _find_distinctions(programs: Sequence[Analysis | None]) -> Sequence[str]:
    """The words that distinguish each program from all others; a number if nothing does."""
    known = [program for program in programs if program is not None]
    if len(known) == len(programs):
        slices = ["" if program.slice is None else program.slice.name for program in known]
        meshes = ["" if program.mesh is None else _render_mesh(program.mesh) for program in known]
        arguments = _describe_differences([program.arguments for program in known])
        outputs = _describe_differences([program.outputs for program in known])
        for words in (slices, meshes, arguments, outputs):
            if all(words) and len(set(words)) == len(words):
                return words
    return [str(number) for number, _ in enumerate(programs, start=1)]


def _render_mesh(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def _describe_differences(sides: Sequence[Sequence[ArrayFact]]) -> list[str]:
    """The arrays of each program whose sharding differs between the programs; the first ones if there are many."""
    said = [[f"{array.name}: {array.sharding}" for array in side] for side in sides]
    places = [place for place, alike in enumerate(zip(*said, strict=False)) if len(set(alike)) > 1]
    more = ", …" if len(places) > _MOST_ARRAYS else ""
    return [", ".join(words[place] for place in places[:_MOST_ARRAYS]) + more for words in said]
