"""Which rows of a baseline, and of the program as it is, belong to one change."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hloscope.analysis.totals import grouped
from hloscope.analysis.vocabulary import SUMS, Bound
from hloscope.contracts.baselines import BaselineRow, MatmulRow, Place
from hloscope.units import element_bits, known_sum

SAME_COUNT = 0.01
"""Of the elements that move: what is padded otherwise, or a scalar more, makes no other program."""


class Pair(NamedTuple):
    """Rows of one change, before and after."""

    old: tuple[BaselineRow, ...]
    new: tuple[BaselineRow, ...]

    @property
    def place(self) -> Place:
        """Where it is now; where it was, if nothing is there now."""
        return (self.new or self.old)[0].place


class Multiplied(NamedTuple):
    """What one function multiplies, before and after."""

    old: tuple[MatmulRow, ...]
    new: tuple[MatmulRow, ...]

    @property
    def was(self) -> int:
        """FLOPs of the baseline."""
        return known_sum(row.flops for row in self.old) or 0

    @property
    def now(self) -> int:
        """FLOPs of the program as it is."""
        return known_sum(row.flops for row in self.new) or 0

    @property
    def more(self) -> int:
        """FLOPs more than before, or fewer."""
        return self.now - self.was

    def grown(self) -> list[MatmulRow]:
        """The lines, the one that multiplies most beyond what it did first."""
        before = grouped(lambda row: row.place, self.old)

        def beyond(row: MatmulRow) -> int:
            return (row.flops or 0) - (known_sum(old.flops for old in before.get(row.place, ())) or 0)

        return sorted(self.new, key=beyond, reverse=True)


def old_rows(pair: Pair) -> tuple[BaselineRow, ...]:
    """Those of the baseline."""
    return pair.old


def new_rows(pair: Pair) -> tuple[BaselineRow, ...]:
    """Those of the program as it is."""
    return pair.new


def same_axes(row: BaselineRow, other: BaselineRow) -> bool:
    """Whether both run over the same axes, in whatever order."""
    return row.axes is not None and other.axes is not None and set(row.axes) == set(other.axes)


def same_sum(row: BaselineRow, other: BaselineRow) -> bool:
    """Whether both combine over the same axes by the same operation, as far as that is known."""
    alike = row.reduction is None or other.reduction is None or row.reduction == other.reduction
    return row.kind in SUMS and other.kind in SUMS and same_axes(row, other) and alike


def bits_of(dtype: str) -> int:
    """Bits of an element; 0 for what is no type."""
    return element_bits(dtype) or 0


def elements_of(rows: Sequence[BaselineRow]) -> float | None:
    """How many elements move; None for several types in one row, and where bytes are not known."""
    counts = []
    for row in rows:
        if row.payload_bytes is None or row.dtype is None or not bits_of(row.dtype):
            return None
        counts.append(row.payload_bytes * 8 / bits_of(row.dtype))
    return sum(counts)


def amount_of(rows: Sequence[BaselineRow]) -> float | None:
    """Elements of all rows together; bytes where the types of some are not known; None where nothing is."""
    count = elements_of(rows)
    return count if count is not None else known_sum(row.payload_bytes for row in rows)


def retyped(old: Iterable[BaselineRow], new: Iterable[BaselineRow]) -> Iterator[Pair]:
    """Sums that send as many bytes as before, of fewer or more elements in another type, which a matcher takes for one.

    Args:
        old: Rows of the baseline of which nothing has changed but the type.
        new: The same of the program as it is.
    """

    def what(row: BaselineRow) -> Hashable:
        return row.kind, row.axes, row.link, row.payload_bytes

    before, after = (grouped(what, (row for row in side if row.kind in SUMS)) for side in (old, new))
    for key in before.keys() & after.keys():
        pair = Pair(_unlike(before[key], after[key]), _unlike(after[key], before[key]))
        if is_retyped(pair):
            yield pair


def _unlike(rows: Sequence[BaselineRow], others: Sequence[BaselineRow]) -> tuple[BaselineRow, ...]:
    """Those of no type that the others have."""
    return tuple(row for row in rows if row.dtype not in {other.dtype for other in others})


def is_retyped(pair: Pair) -> bool:
    """Whether sums are in other types than before."""
    before, after = ({row.dtype for row in side} for side in pair)
    if not before or not after or None in before | after or not all(row.kind in SUMS for row in pair.old):
        return False
    types = ({dtype for name in side for dtype in (name or "").split("+")} for side in (before, after))
    return next(types) != next(types)


def of_other_types(pairs: Sequence[Pair]) -> Iterator[tuple[tuple[str, str], list[Pair]]]:
    """The changes in which as many elements move as before, in another type: alone, or all over the same axes together.

    What is in another type may be joined with other arrays than before, and be found at other lines for that.
    """

    def what(pair: Pair) -> Hashable:
        row = (pair.new or pair.old)[0]
        return row.kind in SUMS or row.kind, row.axes, row.link

    left = []
    for pair in pairs:
        types = _types(pair.old, pair.new)
        if types is None:
            left.append(pair)
        else:
            yield types, [pair]
    for alike in grouped(what, left).values():
        types = _types(*([row for pair in alike for row in side(pair)] for side in (old_rows, new_rows)))
        if types is not None:
            yield types, alike


def _types(old: Sequence[BaselineRow], new: Sequence[BaselineRow]) -> tuple[str, str] | None:
    """The type before and the one after, where as many elements of one type move as did of the other."""
    before, after = _by_type(old), _by_type(new)
    if before is None or after is None or len(before) != 1 or len(after) != 1 or before.keys() == after.keys():
        return None
    (was, count), (now, count_now) = *before.items(), *after.items()
    return (was, now) if abs(count_now - count) <= SAME_COUNT * count else None


def _by_type(rows: Sequence[BaselineRow]) -> dict[str, float] | None:
    """How many elements of each type move, without types of which there are hardly any; None where that is unknown."""
    counts: dict[str, float] = {}
    for row in rows:
        count = elements_of([row])
        if count is None:
            return None
        counts[row.dtype or ""] = counts.get(row.dtype or "", 0.0) + count
    least = SAME_COUNT * sum(counts.values())
    return {dtype: count for dtype, count in counts.items() if count > least}


def of_one_change(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The changes of one line together, and those lines of which one lost what another has now."""
    by_place = [list(alike) for alike in grouped(lambda pair: pair.place, pairs).values()]
    gone: dict[Hashable, list[Pair]] = {}
    for alike in by_place:
        if not any(pair.new for pair in alike):
            gone.setdefault(_what_moved(alike), []).extend(alike)
    found = []
    for alike in by_place:
        if any(pair.new for pair in alike):
            is_new = not any(pair.old for pair in alike)
            found.append([*alike, *(gone.pop(_what_moved(alike), []) if is_new else [])])
    return [*found, *gone.values()]


def _what_moved(alike: Sequence[Pair]) -> Hashable:
    rows = [row for pair in alike for row in (*pair.old, *pair.new)]
    return frozenset((row.kind in SUMS or row.kind, row.axes, row.link) for row in rows)


def is_known(pairs: Iterable[Pair]) -> bool:
    """Whether the bytes and counts of all rows are known exactly."""
    rows = [row for pair in pairs for row in (*pair.old, *pair.new)]
    return all(row.bound is Bound.EXACT and row.wire_bytes is not None for row in rows)


def is_only_of(pairs: Iterable[Pair], rows: Collection[BaselineRow]) -> bool:
    """Whether pairs are of such rows that are new, and of nothing else."""
    return all(not pair.old and {*pair.new} <= {*rows} for pair in pairs)


def selector_of(row: BaselineRow) -> str:
    """`all-gather@fsdp`: what a row moves, as contracts write it."""
    return f"{row.kind}@{'?' if row.axes is None else ','.join(row.axes)}"
