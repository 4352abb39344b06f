"""What a program did that nothing in it does now: sums that are missing, and collectives that the code called for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloscope.analysis.vocabulary import SUMS
from hloscope.contracts.baselines import MIXED, Baseline, BaselineRow
from hloscope.contracts.pairing import SAME_COUNT, amount_of, same_sum
from hloscope.units import known_sum, plural


def lost_words(row: BaselineRow, new: Sequence[BaselineRow], before: Baseline, after: Baseline) -> str | None:
    """What a row did that nothing does now: `the sum over model is missing`.

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
    return f"the {what} in the code was larger" if calls else f"the {what} written in the code is missing"


def _less_is_summed(row: BaselineRow, before: Baseline, after: Baseline) -> str | None:
    axes, (was, now) = axes_words(row), _arrays_summed(row, before, after)
    is_sum = row.reduction in (None, "add", MIXED)
    if was is None or now is None:
        most, left = (amount_of(_sums_like(row, side)) or 0 for side in (before, after))
        return f"less is summed over {axes} than before" if left < most else None
    if now >= was:
        return f"less is summed over {axes} than before" if row.written and _shrank(row, before, after) else None
    if now:
        verb = "summed" if is_sum else f"reduced by {row.reduction}"
        return f"{was - now:,} of {plural(was, 'array')} {_is(was - now)} no longer {verb} over {axes}"
    what = "sum" if is_sum else f"reduction by {row.reduction}"
    return f"the {what if was == 1 else plural(was, what)} over {axes} {_is(was)} missing"


def why_lost(rows: Iterable[BaselineRow]) -> str | None:
    """What it comes to that sums are missing; None where it is no sum that is."""
    if not any(row.kind in SUMS for row in rows):
        return None
    return "either each device continues with its own partial sum, or nothing uses the result any longer"


def why_computed(rows: Iterable[BaselineRow]) -> str:
    """Why sums are gone where each device multiplies more than before."""
    axes = " and ".join(dict.fromkeys(axes_words(row) for row in rows if row.kind in SUMS))
    return f"likely: each device now computes what the devices along {axes} shared, so nothing is left to sum"


def are_joined(gone: Iterable[BaselineRow], before: Baseline, after: Baseline) -> bool:
    """Whether rows that are gone are sums whose arrays the program sums together with others."""
    if before.mesh != after.mesh:
        return False
    rows = tuple(gone)
    counts = (_arrays_summed(row, before, after) for row in rows)
    return all(row.kind in SUMS for row in rows) and all(was and now and now >= was for was, now in counts)


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
