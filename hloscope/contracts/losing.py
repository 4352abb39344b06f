"""What a program did that nothing in it does now: sums that are missing, and collectives that the code called for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloscope.analysis.vocabulary import SUMS
from hloscope.contracts.baselines import MIXED, Baseline, BaselineRow
from hloscope.contracts.judged import REDUCTION
from hloscope.contracts.pairing import SAME_COUNT, amount_of, same_axes, same_sum
from hloscope.units import known_sum, plural


class Lost(NamedTuple):
    """What a program did that nothing in it does now.

    Attributes:
        words: `the sum over model is missing`.
        instead: What the program reduces by another operation, or over other axes, in its place; empty for nothing.
        key: What the change is accepted by, where it is not what moves.
        why: What that comes to; None where it is not known.
    """

    words: str
    instead: tuple[BaselineRow, ...] = ()
    key: str | None = None
    why: str | None = None


def lost_of(row: BaselineRow, new: Sequence[BaselineRow], before: Baseline, after: Baseline) -> Lost | None:
    """What a row did that nothing does now.

    Args:
        row: A row of the baseline.
        new: What the program has in its place.
        before: The baseline.
        after: The program as it is.

    Returns:
        None where the row only moved data for the compiler's sake, or where axes of one name are not the same ones.
    """
    if before.mesh != after.mesh:
        return None
    if row.kind in SUMS:
        return _less_is_summed(row, before, after)
    calls = [other for other in new if other.written]
    if not row.written or (amount_of(calls) or 0) >= (amount_of([row]) or 0):
        return None
    what = f"{row.kind} over {axes_words(row)}"
    return Lost(f"the {what} in the code was larger" if calls else f"the {what} written in the code is missing")


def _less_is_summed(row: BaselineRow, before: Baseline, after: Baseline) -> Lost | None:
    axes, (was, now) = axes_words(row), _arrays_summed(row, before, after)
    if was is None or now is None:
        most, left = (amount_of(_sums_like(row, side)) or 0 for side in (before, after))
        return Lost(f"less is summed over {axes} than before") if left < most else None
    if now >= was:
        shrank = row.written and _shrank(row, before, after)
        return Lost(f"less is summed over {axes} than before") if shrank else None
    some = f"{was - now:,} of {plural(was, 'array')} {_is(was - now)}" if was > 1 else "the array is"
    instead = _reduced_instead(row, before, after, was - now)
    if instead:
        is_axes = not same_axes(row, instead[0])
        was_there = axes if is_axes else row.reduction or "add"
        done = f"{_verb_of(instead[0])} over {axes_words(instead[0])}"
        return Lost(f"{some} {done} where {was_there} was", instead, None if is_axes else REDUCTION)
    if now:
        return Lost(f"{some} no longer {_verb_of(row)} over {axes}", why=_WHY)
    what = "sum" if _is_sum(row) else f"reduction by {row.reduction}"
    return Lost(f"the {what if was == 1 else plural(was, what)} over {axes} {_is(was)} missing", why=_WHY)


_WHY = "likely: each device continues with its own partial result, or nothing uses the result any longer"


def _reduced_instead(row: BaselineRow, before: Baseline, after: Baseline, lost: int) -> tuple[BaselineRow, ...]:
    """What reduces as many arrays more than before, by another operation or over other axes."""
    found = []
    for other in after.rows:
        if other.kind not in SUMS or other.axes is None or same_sum(other, row):
            continue
        was, now = _arrays_summed(other, before, after)
        if was is not None and now is not None and now - was >= lost and _is_like(row, other):
            found.append(other)
    if not found:
        return ()
    first = min(found, key=lambda other: (not same_axes(row, other), len(other.axes or ())))
    alike = tuple(other for other in found if same_sum(other, first))
    return tuple(other for other in alike if other not in before.rows) or alike


def _is_like(row: BaselineRow, other: BaselineRow) -> bool:
    """Whether one differs from the other by its operation or by its axes, and not by both."""
    return same_axes(row, other) or None in (row.reduction, other.reduction) or row.reduction == other.reduction


def _is_sum(row: BaselineRow) -> bool:
    return row.reduction in (None, "add", MIXED)


def _verb_of(row: BaselineRow) -> str:
    return "summed" if _is_sum(row) else f"reduced by {row.reduction}"


def why_computed(rows: Iterable[BaselineRow]) -> str:
    """Why sums are gone where each device multiplies more than before."""
    axes = " and ".join(dict.fromkeys(axes_words(row) for row in rows if row.kind in SUMS))
    return f"likely: each device now computes what the devices along {axes} shared, so nothing is left to sum"


def as_many_are_summed(rows: Sequence[BaselineRow], before: Baseline, after: Baseline) -> bool:
    """Whether rows are sums over axes over which as many arrays are summed as before."""
    if before.mesh != after.mesh:
        return False
    counts = (_arrays_summed(row, before, after) for row in rows)
    return all(row.kind in SUMS for row in rows) and all(was and was == now for was, now in counts)


def _arrays_summed(row: BaselineRow, before: Baseline, after: Baseline) -> tuple[int | None, int | None]:
    """How many arrays are summed over the axes of a row, before and after."""
    was, now = (known_sum(other.arrays for other in _sums_like(row, side)) for side in (before, after))
    return was, now


def _shrank(row: BaselineRow, before: Baseline, after: Baseline) -> bool:
    """Whether the sums that the code calls for are of fewer elements, as those of another array are."""
    was, now = (amount_of([one for one in _sums_like(row, side) if one.written]) or 0 for side in (before, after))
    return now < (1 - SAME_COUNT) * was


def _sums_like(row: BaselineRow, side: Baseline) -> list[BaselineRow]:
    """What a program combines over the axes of a row, by the same operation."""
    return [other for other in side.rows if same_sum(other, row)]


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def axes_words(row: BaselineRow) -> str:
    """The axes of a row, as they stand after `over`."""
    return "unknown axes" if row.axes is None else ",".join(row.axes) or "no axis"
