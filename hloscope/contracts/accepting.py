"""What a baseline becomes when changes of its program are accepted: all of them, or those that somebody names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hloscope.contracts.array_rows import KEYS, ArrayRow, array_row_order
from hloscope.contracts.baselines import Baseline, BaselineRow, MatmulRow, reduction_is_known, row_order
from hloscope.contracts.judged import REDUCTION, Cause, Judged, Judgement
from hloscope.contracts.left_open import is_first_version

Rows = tuple[BaselineRow | MatmulRow, ...]

_FIELDS = {
    "slice": "slice", "mesh": "mesh", "memory": "memory", "step": "step", "unknown": "not_understood",
    "kernels": "kernels", "target": "target",
}  # fmt: skip
"""What a change is kept in that is about no rows, by its key."""


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

    def is_all(self, keys: Collection[str]) -> bool:
        """Whether changes of these keys are all changes."""
        return {change.cause.key for change in self.changes} <= {*keys}

    def with_faster_step(self, keys: Collection[str]) -> Collection[str]:
        """The keys, and that of a faster step where nothing else is left: what was accepted before may be behind it."""
        left = [change.cause for change in self.changes if change.cause.key not in keys]
        is_faster = bool(left) and all((each.key, each.judgement) == ("step", Judgement.BETTER) for each in left)
        return (*keys, "step") if is_faster and len(left) < len(self.changes) else keys

    def accepting(self, keys: Collection[str] | None = None) -> Baseline:
        """The baseline with the changes of some keys, or with all of them where none are given.

        What no accepted change is about stays as it was, the predicted step too, which comes of all of them together.
        Memory and times stay as well where they have hardly moved, so that accepting twice changes nothing.
        """
        accepted = [change for change in self.changes if keys is None or change.cause.key in keys]
        before, after = self.before, self.after
        is_new = before.compiler != after.compiler or is_first_version(before)
        if keys is None or self.is_all(keys):
            return after if is_new or accepted else replace(after, memory=before.memory, step=before.step)
        if is_first_version(before):  # whose rows say too little to be kept
            refused = [change for change in self.changes if change not in accepted]
            return _with(after, before, [(change.cause.key, change.new, change.old) for change in refused])
        found = _with(before, after, [(change.cause.key, change.old, change.new) for change in accepted])
        return replace(found, versions=after.versions, memory=after.memory, step=after.step) if is_new else found


def _with(kept: Baseline, other: Baseline, steps: Iterable[tuple[str, Rows, Rows]]) -> Baseline:
    """A baseline in which what some changes are about is as in another one: their keys, the rows here and there."""
    rows: list[BaselineRow | MatmulRow] = [*kept.rows, *(kept.matmuls or ())]
    fields: dict[str, Any] = {}
    for key, here, there in steps:
        rows = [*(row for row in rows if row not in here), *there]
        if key in _FIELDS:
            fields[_FIELDS[key]] = getattr(other, _FIELDS[key])
        elif key in KEYS.values():
            fields["arrays"] = _with_arrays(fields.get("arrays", kept.arrays), other.arrays, key)
        elif key == REDUCTION and not (here or there):
            rows = [_reduced(row, other) for row in rows]
    in_order = sorted(dict.fromkeys(rows), key=row_order)
    moved = tuple(row for row in in_order if isinstance(row, BaselineRow))
    matmuls = tuple(row for row in in_order if isinstance(row, MatmulRow))
    return replace(kept, **fields, rows=moved, matmuls=matmuls)


def _with_arrays(
    kept: tuple[ArrayRow, ...] | None, other: tuple[ArrayRow, ...] | None, key: str
) -> tuple[ArrayRow, ...] | None:
    """Arguments and outputs, of which those of a key are as in another baseline; all, where there were none."""
    if kept is None or other is None:
        return other
    rows = [*(row for row in kept if KEYS[row.kind] != key), *(row for row in other if KEYS[row.kind] == key)]
    return tuple(sorted(rows, key=array_row_order))


def _reduced(row: BaselineRow | MatmulRow, other: Baseline) -> BaselineRow | MatmulRow:
    """A row of a file that does not say by which operation it is reduced, as another baseline has it."""
    if isinstance(row, MatmulRow) or reduction_is_known(row):
        return row
    return next((each for each in other.rows if replace(each, reduction=None) == row), row)


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


def _is_of_one_function(change: Change) -> bool:
    return len({(row.place.file, row.place.function) for row in (*change.old, *change.new)}) == 1


def joined_by_line(changes: Sequence[Change], others: Iterable[Change]) -> list[Change]:
    """The changes, with others that are of the same line alone, and as good or bad, as one."""
    found = list(changes)
    for other in others:
        same = (
            number
            for number, change in enumerate(found)
            if (change.cause.source, change.cause.judgement) == (other.cause.source, other.cause.judgement)
        )
        number = next(same, None)
        if number is None or other.cause.source is None or not _is_of_one_function(other):
            found.append(other)
            continue
        first = found[number]
        told = (other.cause, first.cause) if _saves_time(first.cause) else (first.cause, other.cause)
        cause = replace(first.cause, key=told[0].key, message="; ".join(cause.message for cause in told))
        found[number] = Change(cause, (*first.old, *other.old), (*first.new, *other.new))
    return found
