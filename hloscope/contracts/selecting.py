"""Which collectives a clause speaks of: surely, surely not, or nobody can tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase

from hloscope.analysis.model import Collective, SourceFrame
from hloscope.analysis.places import path_of, split_place
from hloscope.analysis.vocabulary import SUMS, Kind, Link
from hloscope.contracts.model import Selector
from hloscope.errors import NotationError, did_you_mean


class Fit(IntEnum):
    """Whether a collective is one that a selector speaks of."""

    NO = 0
    MAYBE = 1
    YES = 2


def is_exactly(selector: Selector, collective: Collective) -> bool:
    """Whether an expectation of `selector` takes a collective: its very axes, and nothing about it unknown."""
    kind = fnmatchcase(collective.kind, selector.kind)
    return kind and _fits(selector, collective, _has_axes(selector.axes, collective, alone=True)) is Fit.YES


def touches(selector: Selector, collective: Collective) -> Fit:
    """Whether a ban or a limit on `selector` covers a collective: over its axes alone or with others.

    An opaque transfer may be of any kind, one without known axes may run over any, one without source may come from
    anywhere: of these the answer is MAYBE.
    """
    kind = Fit.YES if fnmatchcase(collective.kind, selector.kind) else Fit.NO
    if collective.kind is Kind.OPAQUE and kind is Fit.NO:
        kind = Fit.MAYBE
    return min(kind, _fits(selector, collective, _has_axes(selector.axes, collective, alone=False)))


def chosen(collectives: Iterable[Collective], selector: Selector, mesh_axes: Sequence[str] | None) -> list[Collective]:
    """Those that a selector speaks of, surely or perhaps.

    Args:
        collectives: All of a program.
        selector: Of which.
        mesh_axes: The axes of its mesh; None where there is none.

    Raises:
        NotationError: It names an axis that the mesh does not have, of which there is never any.
    """
    for pattern in selector.axes or () if mesh_axes is not None else ():
        if not any(axis_fits(pattern.partition(":")[0], axis) for axis in mesh_axes or ()):
            has = f"its axes are {', '.join(mesh_axes or ())}" if mesh_axes else "it has no axes"
            raise NotationError(f"the mesh has no axis {pattern}", fix=did_you_mean(pattern, mesh_axes or (), has))
    return [collective for collective in collectives if touches(selector, collective) is not Fit.NO]


def _fits(selector: Selector, collective: Collective, axes: Fit) -> Fit:
    return min(
        axes,
        _reduces_by(selector.reduction, collective),
        _crosses(selector.link, collective),
        comes_from(selector.source, collective.source),
    )


def _has_axes(patterns: tuple[str, ...] | None, collective: Collective, *, alone: bool) -> Fit:
    if patterns is None:
        return Fit.YES
    if collective.axes is None:
        return Fit.MAYBE
    all_there = all(any(axis_fits(pattern, axis) for axis in collective.axes) for pattern in patterns)
    no_others = all(any(axis_fits(pattern, axis) for pattern in patterns) for axis in collective.axes)
    return Fit.YES if all_there and (no_others or not alone) else Fit.NO


def axis_fits(pattern: str, axis: str) -> bool:
    """Whether a pattern names an axis; one without `:` names the parts of an axis, `X:(1)2`, too."""
    return fnmatchcase(axis if ":" in pattern else axis.partition(":")[0], pattern)


def _reduces_by(reduction: str | None, collective: Collective) -> Fit:
    """Whether it reduces by an operation; MAYBE where it reduces by more than one, or nobody can tell."""
    if reduction is None or reduction == collective.reduction:
        return Fit.YES
    is_open = collective.kind is Kind.OPAQUE or (collective.kind in SUMS and collective.reduction is None)
    return Fit.MAYBE if is_open else Fit.NO


def _crosses(link: Link | None, collective: Collective) -> Fit:
    crossed = {collective.link, *(part.link for part in collective.parts)}
    if link is None or link in crossed or Link.BOTH in crossed:
        return Fit.YES
    return Fit.MAYBE if Link.UNKNOWN in crossed else Fit.NO


def comes_from(source: str | None, frames: Iterable[SourceFrame]) -> Fit:
    """Whether one of the frames is at a place, `moe.py` or `model/moe.py:40`; MAYBE without frames."""
    if source is None:
        return Fit.YES
    known = list(frames)
    if not known:
        return Fit.MAYBE
    return Fit.YES if any(is_at(source, frame) for frame in known) else Fit.NO


def is_at(source: str, frame: SourceFrame) -> bool:
    """Whether a frame is at a place, which is the end of a path with patterns in it, and perhaps `:LINE`."""
    path, line = split_place(source)
    return path_of(frame).match(path) and line in (None, frame.line)
