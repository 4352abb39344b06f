"""What a baseline becomes when changes of its program are accepted: all of them, or those that somebody names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloscope.contracts.array_rows import ARGUMENT, KEYS, ArrayRow, array_row_order
from hloscope.contracts.baselines import Baseline, BaselineRow, MatmulRow, row_order
from hloscope.contracts.judged import Cause, Judged, Judgement

Rows = tuple[BaselineRow | MatmulRow, ...]


class Change(NamedTuple):
    """One change of a program as its baseline would have it.

    Attributes:
        cause: What it is.
        old: The rows that it takes out of the baseline.
        new: The rows that it puts in their place.
    """

    cause: Cause
    old: Rows = ()
    new: Rows = ()


class Compared(NamedTuple):
    """A program beside its baseline, and what its baseline would become.

    Attributes:
        judged: What is to be reported.
        changes: Its causes with the rows that they are about.
        before: The baseline.
        after: The baseline of the program as it is.
    """

    judged: Judged
    changes: tuple[Change, ...]
    before: Baseline
    after: Baseline

    def accepting(self, keys: Collection[str] | None = None) -> Baseline:
        """The baseline with the changes of some keys, or with all of them where none are given.

        Memory and times stay as they were where they have hardly moved, so that accepting twice changes nothing.
        """
        refused = [change for change in self.changes if keys is not None and change.cause.key not in keys]
        refused_keys = {change.cause.key for change in refused}
        moved = {change.cause.key for change in self.changes} - refused_keys
        rows, matmuls = list(self.after.rows), list(self.after.matmuls or ())
        for change in refused:
            rows = [row for row in rows if row not in change.new]
            rows += [row for row in change.old if isinstance(row, BaselineRow)]
            matmuls = [row for row in matmuls if row not in change.new]
            matmuls += [row for row in change.old if isinstance(row, MatmulRow)]
        same_compiler = self.before.compiler == self.after.compiler
        is_new = not same_compiler or self.before.matmuls is None
        return replace(
            self.after,
            rows=tuple(sorted(dict.fromkeys(rows), key=row_order)),
            matmuls=tuple(sorted(dict.fromkeys(matmuls), key=row_order)),
            arrays=self._arrays(refused_keys),
            target=self.before.target if "target" in refused_keys else self.after.target,
            memory=self.after.memory if is_new or "memory" in moved or (moved and not refused) else self.before.memory,
            step=self.after.step if is_new or moved else self.before.step,
            not_understood=self.before.not_understood if "unknown" in refused_keys else self.after.not_understood,
            kernels=self.before.kernels if "kernels" in refused_keys else self.after.kernels,
        )

    def _arrays(self, refused: Collection[str]) -> tuple[ArrayRow, ...] | None:
        """Arguments and outputs as they are, but for those that are refused, which stay as they were."""
        if self.before.arrays is None:
            return None if KEYS[ARGUMENT] in refused else self.after.arrays
        sides = (self.before.arrays, self.after.arrays or ())
        kept = (row for side, rows in enumerate(sides) for row in rows if (KEYS[row.kind] in refused) is (side == 0))
        return tuple(sorted(kept, key=array_row_order)) or None


def with_section(kept: Sequence[Baseline], accepted: Baseline, *, beside: bool = False) -> tuple[Baseline, ...]:
    """The sections of a file in which a program's own is as it was accepted.

    Args:
        kept: The sections that the file has.
        accepted: The one of the compiler that is used here.
        beside: Whether those of other compilers stay, where there is none of this one yet.
    """
    kept = tuple(replace(each, target=accepted.target) for each in kept)  # which all sections share
    if any(each.compiler == accepted.compiler for each in kept):
        return tuple(accepted if each.compiler == accepted.compiler else each for each in kept)
    return (*kept, accepted) if beside else (accepted,)


def _saves_time(cause: Cause) -> bool:
    """Whether a change is not for the worse by what its transfers take, but by what comes with them."""
    return cause.judgement is Judgement.WORSE and (cause.time_us or 0) < 0


def joined_by_line(changes: Sequence[Change], others: Iterable[Change]) -> list[Change]:
    """The changes, with others that are of the same line, and as good or bad, as one."""
    found = list(changes)
    for other in others:
        same = (
            number
            for number, change in enumerate(found)
            if (change.cause.source, change.cause.judgement) == (other.cause.source, other.cause.judgement)
        )
        number = next(same, None)
        if number is None or other.cause.source is None:
            found.append(other)
            continue
        first = found[number]
        told = (other.cause, first.cause) if _saves_time(first.cause) else (first.cause, other.cause)
        cause = replace(first.cause, key=told[0].key, message="; ".join(cause.message for cause in told))
        found[number] = Change(cause, (*first.old, *other.old), (*first.new, *other.new))
    return found
