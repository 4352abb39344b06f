"""What several changes of a program are together, and which of them is named first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloscope.analysis.vocabulary import SUMS
from hloscope.contracts.array_rows import KEYS
from hloscope.contracts.baselines import BaselineRow
from hloscope.contracts.figures import BETWEEN_SLICES, SENT, STEP, TRANSFERS, named
from hloscope.contracts.judged import Cause, Figure, Judgement
from hloscope.contracts.pairing import bits_of

_SAME_TIME = 0.005
"""Of a step, or of what transfers take: less is no difference."""

_RANKS = {Judgement.DIFFERENT: 0, Judgement.WORSE: 1, Judgement.BETTER: 2, Judgement.SAME: 3}


def verdict(causes: Sequence[Cause], figures: Sequence[Figure], *, loses: bool) -> Judgement:
    """What all changes are together.

    Arguments and outputs of other types make the program another one, unless it is worse: then that is said.

    Args:
        causes: The changes.
        figures: What is measured of both.
        loses: Whether something is not reduced, or not called for, any more.
    """
    others = [cause for cause in causes if not _is_of_arrays(cause)]
    found = _of_causes({cause.judgement for cause in others}, others, figures)
    is_other = loses or len(others) < len(causes)
    return Judgement.DIFFERENT if is_other and found in (Judgement.BETTER, Judgement.SAME) else found


def _is_of_arrays(cause: Cause) -> bool:
    return cause.key in KEYS.values() and cause.judgement is Judgement.DIFFERENT


def _of_causes(kinds: set[Judgement], causes: Sequence[Cause], figures: Sequence[Figure]) -> Judgement:
    if Judgement.DIFFERENT in kinds or len(kinds) < 2:
        return Judgement.DIFFERENT if Judgement.DIFFERENT in kinds else next(iter(kinds), Judgement.SAME)
    memory = {cause.judgement for cause in causes if cause.key == "memory"}
    if Judgement.WORSE in memory or _grew(figures, BETWEEN_SLICES):
        return Judgement.WORSE
    for name in (STEP, TRANSFERS, SENT):
        figure = named(figures, name)
        if figure is None or figure.before is None or figure.after is None:
            continue
        least = 0.0 if figure.unit == "bytes" else _SAME_TIME
        if abs(figure.after - figure.before) > least * figure.before:
            return Judgement.WORSE if figure.after > figure.before else Judgement.BETTER
    return Judgement.WORSE


def _grew(figures: Iterable[Figure], name: str) -> bool:
    figure = named(figures, name)
    return figure is not None and (figure.after or 0) > (figure.before or 0)


def weight(cause: Cause) -> tuple[object, ...]:
    """What changes the meaning first, then what costs most time, then most bytes; memory and arrays after causes."""
    late = cause.key in ("memory", "step", *KEYS.values())
    rank = _RANKS[Judgement.WORSE if _is_of_arrays(cause) else cause.judgement]
    return rank, late, -abs(cause.time_us or 0), -abs(cause.wire_bytes or 0), cause.message


def judgement_of_types(types: tuple[str, str], old: Sequence[BaselineRow]) -> Judgement:
    """What it is that arrays are in another type: a sum of a narrower one, or of another kind, has another result."""
    if bits_of(types[1]) > bits_of(types[0]):
        return Judgement.WORSE
    return Judgement.DIFFERENT if any(row.kind in SUMS for row in old) else Judgement.BETTER
