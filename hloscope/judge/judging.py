"""A program held against its baseline: its changes, the judgement on them, and what the baseline becomes with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hloscope.analysis.provenance import render_users_line
from hloscope.base.documents import make_document
from hloscope.base.results import group_by
from hloscope.base.units import pluralize, sum_known
from hloscope.judge.baselines import (
    ARGUMENT,
    ARRAY_KEYS,
    KERNEL,
    OUTPUT,
    ArrayRow,
    Baseline,
    BaselineRow,
    MatmulRow,
    add_bounds,
    add_machine_code,
    array_order,
    count_unknown,
    describe_changed_arrays,
    find_comparable_matmuls,
    find_row_order,
    format_axes,
    has_same_memory,
    make_baseline,
    make_matmul_rows,
    make_rows,
    names_program,
    to_collectives,
)
from hloscope.judge.changes import (
    REDUCTION,
    UNKNOWN,
    USUAL,
    AllowedGrowth,
    Cause,
    Change,
    ChangeKind,
    Figure,
    Judged,
    Judgement,
    Pair,
    describe_moved,
    describe_multiplied,
    describe_respelled,
    describe_unknown,
    describe_versions,
    format_sent,
    join_pairs,
    sum_flops,
)
from hloscope.judge.figures import (
    BETWEEN_SLICES,
    MULTIPLIED,
    SENT,
    STEP,
    TRANSFERS,
    find_caveats,
    find_figure,
    find_grown_memory,
    find_left_open,
    find_slower_step,
    is_older,
    make_figures,
    make_pricing,
    sum_time_us,
)
from hloscope.judge.matching import (
    Lost,
    Rows,
    as_many_are_summed,
    count_bits,
    explain_computed,
    find_lost,
    find_retyped,
    group_into_changes,
    is_retyped,
    match_rows,
    pair_by_types,
)
from hloscope.model import Analysis, ArrayFact, Collective, Matmuls
from hloscope.model.analysis import Kernel
from hloscope.model.vocabulary import REDUCING, Bound, CompileStage, Link

AnyRow = BaselineRow | MatmulRow
RowChange = Change[AnyRow]
_NO_ROWS = Pair[Any]((), ())

_NAMES_OF_TYPES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32",
    "u8": "uint8", "u32": "uint32", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "pred": "bool",
}  # fmt: skip
_FIELDS = {
    "slice": "slice", "mesh": "mesh", "memory": "memory", "step": "step", "unknown": "not_understood",
    "kernels": "kernels", "target": "target",
}  # fmt: skip
"""The field of a baseline that a change is kept in which is about no rows, by its key."""


def judge(
    before: Baseline,
    found: Analysis,
    *,
    root: Path | None = None,
    tolerance: AllowedGrowth = USUAL,
    of_target: bool = False,
) -> BaselineComparison:
    """Compares a program with its baseline.

    Args:
        before: The baseline.
        found: The program as it is now.
        root: The project's folder, below which files are named.
        tolerance: How far figures may grow.
        of_target: Whether the program is that of a target of the targets file, whose baseline has its function's name.
    """
    after = make_baseline(found, root=root)
    if found.stage is CompileStage.SCHEDULED and names_program(before, after.digest):
        after = add_machine_code(before, after)
    return _Judge(before, after, _Now.of(found, root), tolerance, of_target=of_target).compare()


def judge_two(
    before: Baseline,
    after: Baseline,
    found: Analysis | None = None,
    *,
    was: Analysis | None = None,
    root: Path | None = None,
    called: str,
) -> Judged:
    """Compares two programs as a program and its baseline are compared; figures that one of them lacks are notes.

    Args:
        before: The program before.
        after: The program after.
        found: All that is known of it; None where only its baseline is.
        was: The same of the program before.
        root: As it was for `after`.
        called: What the program before is called.
    """
    now = _Now() if found is None else _Now.of(found, root)
    as_written = _multiply_as_written(was, found)
    judged = _Judge(before, after, now, USUAL, called=called, as_written=as_written).compare().judged
    open_figures = (message for _, message in find_left_open(before, after, called=called))
    return replace(judged, notes=(*judged.notes, *open_figures))


def _multiply_as_written(*programs: Analysis | None) -> bool:
    """Returns whether programs as written surely multiply as much, and no device repeats any of that."""
    works = [None if each is None else each.repeated for each in programs]
    traced = {
        None
        if work is None or work.ratio is None or work.ratio > 1 or work.bound is not Bound.EXACT
        else work.traced_flops
        for work in works
    }
    return len(traced) == 1 and None not in traced


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """A program compared with its baseline, and what its baseline would become.

    Attributes:
        judged: What is to be reported.
        changes: Its causes with the rows that they are about.
        before: The baseline.
        after: The baseline of the program as it is.
    """

    judged: Judged
    changes: tuple[RowChange, ...]
    before: Baseline
    after: Baseline

    def is_all(self, keys: Collection[str]) -> bool:
        """True if changes of these keys are all changes."""
        return {change.key for change in self.changes} <= {*keys}

    def add_faster_step(self, keys: Collection[str]) -> Collection[str]:
        """The keys, and that of a faster step where nothing else is left: what was accepted before may be behind it."""
        left = [change for change in self.changes if change.key not in keys]
        is_faster = bool(left) and all((each.key, each.judgement) == ("step", Judgement.BETTER) for each in left)
        return (*keys, "step") if is_faster and len(left) < len(self.changes) else keys

    def accept(self, keys: Collection[str] | None = None) -> Baseline:
        """The baseline with the changes of some keys, or with all of them where none are given.

        What no accepted change is about stays as it was, the predicted step too, which comes of all of them together.
        Memory and times stay as well where they have hardly moved, so that accepting twice changes nothing.
        """
        accepted = [change for change in self.changes if keys is None or change.key in keys]
        before, after = self.before, self.after
        is_new = before.compiler != after.compiler or before.is_first_version
        if keys is None or self.is_all(keys):
            if is_new or accepted:
                return after
            is_exact = before.digest is not None and before.step == after.step and has_same_memory(before, after)
            digest = after.digest if is_exact else before.digest  # a program is kept with its own figures
            return replace(after, memory=before.memory, step=before.step, digest=digest)
        if before.is_first_version:  # whose rows say too little to be kept
            refused = [change for change in self.changes if change not in accepted]
            kept = _swap(after, before, [(change.key, change.after, change.before) for change in refused])
            return replace(kept, digest=None)
        found = _swap(before, after, [(change.key, change.before, change.after) for change in accepted])
        found = replace(found, digest=None)  # a part of a change is no program
        return replace(found, versions=after.versions, memory=after.memory, step=after.step) if is_new else found


def _swap(kept: Baseline, other: Baseline, steps: Iterable[tuple[str, Sequence[AnyRow], Sequence[AnyRow]]]) -> Baseline:
    """A baseline in which what some changes are about is as in another one: their keys, the rows here and there."""
    rows: list[AnyRow] = [*kept.rows, *(kept.matmuls or ())]
    fields: dict[str, Any] = {}
    for key, here, there in steps:
        rows = [*(row for row in rows if row not in here), *there]
        if key in _FIELDS:
            fields[_FIELDS[key]] = getattr(other, _FIELDS[key])
        elif key in ARRAY_KEYS.values():
            fields["arrays"] = _replace_arrays(fields.get("arrays", kept.arrays), other.arrays, key)
        elif key == REDUCTION and not (here or there):
            rows = [_add_reduction(row, other) for row in rows]
    in_order = sorted(dict.fromkeys(rows), key=find_row_order)
    moved = tuple(row for row in in_order if isinstance(row, BaselineRow))
    matmuls = tuple(row for row in in_order if isinstance(row, MatmulRow))
    return replace(kept, **fields, rows=moved, matmuls=matmuls)


def _replace_arrays(
    kept: tuple[ArrayRow, ...] | None, other: tuple[ArrayRow, ...] | None, key: str
) -> tuple[ArrayRow, ...] | None:
    """Arguments and outputs, of which those of a key are as in another baseline; all, where there were none."""
    if kept is None or other is None:
        return other
    rows = [
        *(row for row in kept if ARRAY_KEYS[row.kind] != key),
        *(row for row in other if ARRAY_KEYS[row.kind] == key),
    ]
    return tuple(sorted(rows, key=array_order))


def _add_reduction(row: AnyRow, other: Baseline) -> AnyRow:
    """A row of a file that does not say by which operation it is reduced, as another baseline has it."""
    if isinstance(row, MatmulRow) or row.reduction_is_known:
        return row
    return next((each for each in other.rows if replace(each, reduction=None) == row), row)


def replace_section(kept: Sequence[Baseline], accepted: Baseline, *, beside: bool = False) -> tuple[Baseline, ...]:
    """The sections of a file in which a program's own is as it was accepted.

    Args:
        kept: The sections that the file has.
        accepted: The one of the compiler that is used here.
        beside: Whether those of other compilers stay when this one gets its first.
    """
    kept = tuple(replace(each, target=accepted.target) for each in kept)  # which all sections share
    if any(each.compiler == accepted.compiler for each in kept):
        return tuple(accepted if each.compiler == accepted.compiler else each for each in kept)
    return (*kept, accepted) if beside else (accepted,)


@dataclass(frozen=True, slots=True)
class _Now:
    """The parts of a program as it is now, by the rows of its baseline."""

    moved: Mapping[BaselineRow, tuple[Collective, ...]] = field(default_factory=dict)
    multiplied: Mapping[MatmulRow, tuple[Matmuls | Kernel, ...]] = field(default_factory=dict)
    arrays: Mapping[str, tuple[ArrayFact, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Analysis, root: Path | None) -> _Now:
        """All of a program that was analyzed."""
        arrays = {ARGUMENT: found.arguments, OUTPUT: found.outputs}
        return cls(dict(make_rows(found, root)), dict(make_matmul_rows(found, root)), arrays)

    def find_line(self, rows: Iterable[AnyRow]) -> str | None:
        """The line of the user's code of the first row that has one."""
        parts: dict[Any, Sequence[Collective | Matmuls | Kernel]] = {**self.moved, **self.multiplied}
        return next(filter(None, (render_users_line(part.source) for row in rows for part in parts.get(row, ()))), None)

    def find_line_of_gone(self, rows: Sequence[AnyRow]) -> str | None:
        """The line of rows that are gone: one that is still there, or another one of their function."""
        places = [row.place for row in rows]
        known: tuple[AnyRow, ...] = (*self.moved, *self.multiplied)
        for alike in (lambda a, b: a == b, lambda a, b: (a.file, a.function) == (b.file, b.function)):
            for row in known:
                if row.place.file and any(alike(row.place, place) for place in places):
                    return self.find_line([row])
        return next((place.file for place in places if place.file), None)

    def find_largest(self, rows: Iterable[AnyRow]) -> Collective | None:
        """The collective among them that moves most."""
        behind = [each for row in rows if isinstance(row, BaselineRow) for each in self.moved.get(row, ())]
        return max(behind, key=lambda each: each.wire_bytes_per_step or 0, default=None)

    def find_name_of_largest(self, rows: Iterable[AnyRow]) -> str | None:
        """`params['w']`: what moves most among them, as the user's code calls it."""
        largest = self.find_largest(rows)
        if largest is None or largest.reason is None or largest.reason.moved is None:
            return None
        return largest.reason.moved.name if largest.reason.moved.named else None


class _Judge:
    """One comparison."""

    def __init__(
        self,
        before: Baseline,
        after: Baseline,
        now: _Now,
        tolerance: AllowedGrowth,
        *,
        called: str | None = None,
        of_target: bool = False,
        as_written: bool = False,
    ) -> None:
        self._as_written = as_written
        self._before, self._after, self._now, self._tolerance = before, after, now, tolerance
        self._called, self._is_accepted = called or "the baseline", called is None
        self._of_target = of_target
        self._loses = False
        self._multiplying = find_comparable_matmuls(before, after, older=is_older(before, after))
        self._sides = to_collectives(before.rows, after.rows, dict(after.mesh or ()))
        self._times = self._price_rows()

    def _price_rows(self) -> dict[BaselineRow, float | None]:
        """Microseconds of the transfers of each row of both, on the slice and the mesh of the program after."""
        rows, pricing = (*self._before.rows, *self._after.rows), make_pricing(self._after)
        if pricing is None:
            return dict.fromkeys(rows)
        priced = zip(rows, chain(*self._sides), strict=True)
        return {row: pricing.time_us(moved, row.executions) for row, moved in priced}

    def compare(self) -> BaselineComparison:
        """Compares the two."""
        matched = list(match_rows(self._before, self._after, self._sides))
        reduced = [pair for change, pair in matched if change.kind is ChangeKind.REDUCTION]
        pairs = list(self._find_changed(matched))
        figures = tuple(make_figures(*self._multiplying, self._times.get))
        moved = [*self._find_reductions(reduced), *self._find_types(pairs), *self._find_moved(pairs, reduced)]
        changes = [*_join_by_line(moved, self._find_multiplied(figures)), *self._find_others()]
        changes += [self._make_change("memory", *grown) for grown in find_grown_memory(figures, self._tolerance)]
        slower = find_slower_step(figures, changes, self._tolerance)
        changes += [] if slower is None else [self._make_change("step", *slower)]
        changes.sort(key=_weigh)
        judged = Judged(
            judgement=judge_all(changes, figures, loses=self._loses),
            causes=tuple(make_document(Cause, change) for change in changes),
            figures=figures,
            versions=describe_versions(self._before, self._after),
            notes=tuple(self._find_notes(matched, figures)),
            caveats=tuple(find_caveats(*self._multiplying, self._tolerance)),
        )
        return BaselineComparison(judged=judged, changes=tuple(changes), before=self._before, after=self._after)

    def _find_changed(self, matched: Sequence[tuple[Change[Collective], Rows]]) -> Iterator[Rows]:
        """The rows that are not as before: what moves more or less, and sums of another type."""
        for change, pair in matched:
            is_same = change.judgement is Judgement.SAME
            if change.kind is not ChangeKind.REDUCTION and (not is_same or is_retyped(pair)):
                yield pair
        touched = {id(row) for _, pair in matched for row in pair.both}
        old, new = ([row for row in side.rows if id(row) not in touched] for side in (self._before, self._after))
        yield from find_retyped(old, new)

    def _find_notes(
        self, matched: Iterable[tuple[Change[Collective], Rows]], figures: Sequence[Figure]
    ) -> Iterator[str]:
        """Facts that are no changes but worth knowing."""
        if self._is_only_counted_otherwise(figures):
            yield (
                "other FLOPs are counted than before, although both programs as written multiply as much and no device "
                "repeats any: what the compiler merges, or makes other operations than matmuls of, is not counted"
            )
        for change, pair in matched:
            if change.kind is ChangeKind.EQUIVALENT and not is_retyped(pair):
                yield describe_respelled(pair)
        if self._before.is_first_version and self._before.kernels is None:
            for name, _ in self._after.kernels or ():
                yield f"the kernel {name} sends by itself, but the baseline does not record what it does"

    # ---- changes of what moves and multiplies

    def _find_types(self, pairs: list[Rows]) -> Iterator[RowChange]:
        """Arrays that move, or are multiplied, in another type than before; each pair of types is one change."""
        found: dict[tuple[str, str], list[Rows]] = {}
        for types, alike in list(pair_by_types(pairs)):
            pairs[:] = [pair for pair in pairs if pair not in alike]
            found.setdefault(types, []).extend(alike)
        matmuls = self._find_retyped_matmuls()
        for types in dict.fromkeys((*found, *matmuls)):
            moved, multiplied = join_pairs(found.get(types, [])), join_pairs(matmuls.get(types, []))
            times = sum(row.executions for row in moved.after)
            parts = [f"{pluralize(times, 'transfer')}, {format_sent(moved)}"] if types in found else []
            parts += [f"the matmuls of {pluralize(len(multiplied.after), 'line')}"] if types in matmuls else []
            name = self._now.find_name_of_largest(moved.after)
            name = name or (moved.after[0].place.text if len(moved.after) == 1 else None)
            where = f": `{name}`" if name else ""
            before, after = (_NAMES_OF_TYPES.get(each, each) for each in types)
            judgement = _judge_types(types, moved.before)
            rounded = f"; a sum in {after} is less precise" if judgement is Judgement.DIFFERENT else ""
            message = f"{after} where {before} was{where} ({', and '.join(parts)}){rounded}"
            both = Pair[AnyRow]((*moved.before, *multiplied.before), (*moved.after, *multiplied.after))
            yield self._make_change("types", judgement, message, both)

    def _find_reductions(self, pairs: Sequence[Rows]) -> Iterator[RowChange]:
        """Arrays that are combined by another operation than before, as a maximum in place of a sum."""
        by_reductions = group_by(pairs, lambda pair: (pair.before[0].reduction, pair.after[0].reduction))
        for (was, now), alike in by_reductions.items():
            pair = join_pairs(alike)
            name = self._now.find_name_of_largest(pair.after)
            what = (
                f"{pluralize(sum(row.executions for row in pair.after), 'transfer')} over {format_axes(pair.after[0])}"
            )
            message = f"{now} where {was} was{f': {name}' if name else ''} ({what})"
            yield self._make_change(REDUCTION, Judgement.DIFFERENT, message, pair)

    def _find_retyped_matmuls(self) -> dict[tuple[str, str], list[Pair[MatmulRow]]]:
        found: dict[tuple[str, str], list[Pair[MatmulRow]]] = {}
        before, after = (
            group_by((row for row in side.matmuls or () if row.dtype != KERNEL), lambda row: row.place)
            for side in (self._before, self._after)
        )
        for place in before.keys() & after.keys():
            gone = [row for row in before[place] if row.dtype not in {other.dtype for other in after[place]}]
            new = [row for row in after[place] if row.dtype not in {other.dtype for other in before[place]}]
            if len(gone) == len(new) == 1:
                found.setdefault((gone[0].dtype, new[0].dtype), []).append(Pair((gone[0],), (new[0],)))
        return found

    def _find_moved(self, pairs: Sequence[Rows], reduced: Sequence[Rows]) -> Iterator[RowChange]:
        """Transfers that changed, those of one line of source as one change."""
        otherwise = set(join_pairs(reduced).after)
        for alike in self._join_lost(group_into_changes(pairs), otherwise):
            pair = join_pairs(alike)
            is_known = all(row.bound is Bound.EXACT and row.wire_bytes is not None for row in pair.both)
            judgement, lost, why = self._judge_line(pair, alike, otherwise, is_known=is_known)
            message = describe_moved(
                pair,
                in_pairs=all(each.before and each.after for each in alike),
                lost=lost and lost.words,
                as_many=as_many_are_summed(pair.both, self._before, self._after),
            )
            message += "" if is_known else describe_unknown(pair.both)
            message += "" if alike[0].place.file else ", source unknown"
            largest = max((*pair.after, *pair.before), key=lambda row: row.wire_bytes or 0)
            key = largest.selector if lost is None or lost.key is None else lost.key
            change = self._make_change(key, judgement, message, pair, at=() if lost is None else lost.instead)
            # Why what is left of the sums moves does not say why another part is gone.
            is_less = why is not None if lost is None else all(row.kind in REDUCING for row in pair.after)
            yield replace(change, why=why, tried=None) if is_less or not is_known else change

    def _join_lost(self, found: Iterable[Sequence[Rows]], otherwise: Collection[BaselineRow]) -> list[list[Rows]]:
        """The changes, in which what reduces arrays that another change has lost is a part of that."""
        changes = [list(each) for each in found]
        for alike in changes:
            lost = self._find_lost(alike, otherwise)
            instead = set() if lost is None else {*lost.instead}
            for other in changes if instead else ():
                if other is not alike and all(not pair.before and {*pair.after} <= instead for pair in other):
                    alike.extend(other)
                    other.clear()
        return [each for each in changes if each]

    def _judge_line(
        self, pair: Rows, alike: Sequence[Rows], otherwise: Collection[BaselineRow], *, is_known: bool
    ) -> tuple[Judgement, Lost | None, str | None]:
        """The judgement on the changes of one line; the sum or call that is lost, if one is, and the reason."""
        was, now = (sum(row.wire_bytes or 0 for row in side) for side in pair)
        if (lost := self._find_lost(alike, otherwise)) is not None:
            self._loses = True
            if self._sums_less:
                return Judgement.DIFFERENT, lost, lost.why
            return Judgement.WORSE, None, explain_computed(pair.before) if now < was else None
        if not is_known:
            return Judgement.DIFFERENT, None, None
        crossed, crosses = (sum(row.wire_bytes or 0 for row in side if row.link is not Link.ICI) for side in pair)
        if (crosses, now) == (crossed, was):
            return Judgement.DIFFERENT, None, None
        return Judgement.WORSE if crosses > crossed or now > was else Judgement.BETTER, None, None

    def _find_lost(self, pairs: Iterable[Rows], otherwise: Collection[BaselineRow]) -> Lost | None:
        """The first loss that no change of a reduction says already."""
        rows = ((row, pair.after) for pair in pairs for row in pair.before)
        losses = filter(None, (find_lost(*each, self._before, self._after) for each in rows))
        return next((each for each in losses if not each.instead or not {*each.instead} <= {*otherwise}), None)

    @property
    def _sums_less(self) -> bool:
        """True if a sum that is gone is lost; false if each device now multiplies more by itself instead."""
        before, after = (side.matmuls or () for side in self._multiplying)
        is_like = count_unknown(before) == count_unknown(after)
        return not is_like or sum_flops(after) <= (1 + self._tolerance.step) * sum_flops(before)

    def _find_multiplied(self, figures: Sequence[Figure]) -> Iterator[RowChange]:
        """Lines that multiply more than before, where that is more than a little of all, or an unknown amount."""
        whole = find_figure(figures, MULTIPLIED)
        if whole is None or whole.before is None or whole.after is None or self._is_only_counted_otherwise(figures):
            return
        sign = 1 if whole.after > whole.before else -1
        if abs(whole.after - whole.before) > self._tolerance.step * whole.before:
            judgement = self._judge_multiplied(sign)
            functions = [pair for pair in _group_matmuls(*self._multiplying) if sign * _count_more_flops(pair) > 0]
        else:
            judgement = Judgement.DIFFERENT
            was, now = (count_unknown(side.matmuls or ()) for side in self._multiplying)
            functions = [
                pair
                for pair in _group_matmuls(*self._multiplying)
                if now > was and count_unknown(pair.after) > count_unknown(pair.before)
            ]
        functions.sort(key=lambda pair: -abs(_count_more_flops(pair)))
        if functions:
            first, *others = functions
            is_decided = judgement is not Judgement.DIFFERENT
            message = describe_multiplied(first, whole, others=len(others), is_decided=is_decided)
            changed = _find_functions(functions)
            own = [pair for pair in _group_matmuls(self._before, self._after) if _find_functions([pair]) & changed]
            yield self._make_change("matmuls", judgement, message, join_pairs(own), at=_sort_most_grown(first))

    def _is_only_counted_otherwise(self, figures: Sequence[Figure]) -> bool:
        """Returns whether another amount is counted of what is as much as written; more only if no step is longer."""
        whole, step = find_figure(figures, MULTIPLIED), find_figure(figures, STEP)
        more = 0 if whole is None else (whole.after or 0) - (whole.before or 0)
        if more <= 0 or not self._as_written:
            return more < 0 and self._as_written
        return step is not None and step.is_decided and (step.after or 0) <= (step.before or 0)

    def _judge_multiplied(self, sign: int) -> Judgement:
        """The judgement on more or fewer FLOPs, left open by branches that may not run, or by unknown ones.

        It is not left open where these bound it.
        """
        before, after = (add_bounds(side.matmuls or ()) for side in self._multiplying)
        if after + -before not in (Bound.EXACT, Bound.AT_LEAST if sign > 0 else Bound.AT_MOST):
            return Judgement.DIFFERENT
        return Judgement.WORSE if sign > 0 else Judgement.BETTER

    # ---- other changes

    def _find_others(self) -> Iterator[RowChange]:
        """Changes that make the two incomparable, or that leave less of the program understood."""
        then, now = self._before, self._after
        for what, before, after in (("slice", then.slice, now.slice), ("mesh", then.mesh, now.mesh)):
            if before != after:
                message = f"the {what} differs: {_format_value(before)} in {self._called}, {_format_value(after)} now"
                yield self._make_change(what, Judgement.DIFFERENT, message)
        if self._of_target and then.target != now.target:
            message = f"this baseline was accepted for {then.target}, and this target is {now.target}"
            yield self._make_change("target", Judgement.DIFFERENT, message)
        are_known = now.arrays or now.not_understood <= then.not_understood
        for kind, key in ARRAY_KEYS.items() if then.arrays and then.mesh == now.mesh and are_known else ():
            words = describe_changed_arrays(kind, then.arrays or (), now.arrays or (), self._now.arrays.get(kind, ()))
            if words is not None:
                yield self._make_change(key, Judgement.DIFFERENT, words)
        things = pluralize(now.not_understood, "thing")
        understood = f"not understood: {things} in the program, {then.not_understood} in {self._called}"
        if now.not_understood > then.not_understood:
            yield self._make_change(UNKNOWN, Judgement.DIFFERENT, understood)
        yield from self._find_other_kernels()
        if not self._is_accepted:
            return
        if now.not_understood < then.not_understood and not then.is_first_version and not is_older(then, now):
            yield self._make_change(UNKNOWN, Judgement.BETTER, understood)
        for key, message in find_left_open(then, now, called=self._called):
            yield replace(self._make_change(key, Judgement.BETTER, message), is_left_open=True)

    def _find_other_kernels(self) -> Iterator[RowChange]:
        """Kernels that send by themselves and are not those that were accepted."""
        then, now = self._before.kernels, self._after.kernels or ()
        unsaid = then is None and self._before.is_first_version
        for name, does in () if unsaid else now:
            if (name, does) not in (then or ()):
                is_known = name in dict(then or ())
                unlike = "and its code differs from that in" if is_known else "but is not in"
                message = f"the kernel {name} sends by itself, {unlike} {self._called}"
                yield self._make_change("kernels", Judgement.DIFFERENT, message)
        for name in sorted({name for name, _ in then or ()} - {name for name, _ in now}):
            yield self._make_change("kernels", Judgement.DIFFERENT, f"the kernel {name}, which sent by itself, is gone")

    def _make_change(
        self, key: str, judgement: Judgement, message: str, pair: Pair[Any] = _NO_ROWS, at: Sequence[AnyRow] = ()
    ) -> RowChange:
        """A change of rows, if any, that is of the line of `at`, where that is known, else of the rows' own."""
        moved = [[row for row in side if isinstance(row, BaselineRow)] for side in pair]
        before, after = (sum_known(row.wire_bytes for row in side) for side in moved)
        times = [sum_time_us(side, self._times.get) for side in moved]
        largest = self._now.find_largest(pair.after)
        line = self._now.find_line(at) or (None if largest is None else render_users_line(largest.source))
        return Change(
            key=key,
            judgement=judgement,
            message=message,
            source=line or self._now.find_line(pair.after) or self._now.find_line_of_gone(pair.before),
            why=None if largest is None else largest.why,
            tried=None if largest is None else largest.tried,
            wire_bytes=None if before is None or after is None or not any(moved) else after - before,
            time_us=None if None in times or not any(moved) else (times[1] or 0) - (times[0] or 0),
            before=pair.before,
            after=pair.after,
            bound=add_bounds(moved[1]) + -add_bounds(moved[0]),
        )


def _group_matmuls(*sides: Baseline) -> Iterator[Pair[MatmulRow]]:
    """The matrix multiplications of each function, before and after.

    A function of a file that only one side has may be in another file there: it is told by its name alone.
    """
    in_files = [{row.place.file for row in side.matmuls or ()} for side in sides]
    kept = set.intersection(*in_files)

    def find_function(row: MatmulRow) -> tuple[str | None, str | None]:
        return row.place.file if row.place.file in kept else None, row.place.function

    before, after = (group_by(side.matmuls or (), find_function) for side in sides)
    for function in dict.fromkeys((*before, *after)):
        yield Pair(tuple(before.get(function, ())), tuple(after.get(function, ())))


def _find_functions(pairs: Iterable[Pair[MatmulRow]]) -> set[tuple[str | None, str | None]]:
    return {(row.place.file, row.place.function) for pair in pairs for row in pair.both}


def _count_more_flops(pair: Pair[MatmulRow]) -> int:
    return sum_flops(pair.after) - sum_flops(pair.before)


def _sort_most_grown(pair: Pair[MatmulRow]) -> list[MatmulRow]:
    """The lines after, the one that multiplies most beyond what it did first."""
    before = group_by(pair.before, lambda row: row.place.text)
    return sorted(
        pair.after, key=lambda row: (row.flops or 0) - sum_flops(before.get(row.place.text, ())), reverse=True
    )


def _join_by_line(changes: Sequence[RowChange], others: Iterable[RowChange]) -> list[RowChange]:
    """The changes, with others that are of the same line alone, and as good or bad, as one."""
    found = list(changes)
    for other in others:
        about = (other.source, other.judgement)
        number = next((at for at, each in enumerate(found) if (each.source, each.judgement) == about), None)
        functions = {(row.place.file, row.place.function) for row in (*other.before, *other.after)}
        if number is None or other.source is None or len(functions) != 1:
            found.append(other)
            continue
        first = found[number]
        saves_time = first.judgement is Judgement.WORSE and (first.time_us or 0) < 0
        told = (other, first) if saves_time else (first, other)
        found[number] = replace(
            first,
            key=told[0].key,
            message="; ".join(each.message for each in told),
            before=(*first.before, *other.before),
            after=(*first.after, *other.after),
        )
    return found


def _format_value(value: str | tuple[tuple[str, int], ...] | None) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{name}={size}" for name, size in value)
    return value or "none"


# ---- the judgement on several changes

_SAME_TIME = 0.005
"""Of a step, or of what transfers take: less is no difference."""

_RANKS = {Judgement.DIFFERENT: 0, Judgement.WORSE: 1, Judgement.BETTER: 2, Judgement.SAME: 3}


def judge_all(causes: Sequence[Cause], figures: Sequence[Figure], *, loses: bool) -> Judgement:
    """The judgement on all changes together.

    Arguments and outputs of other types make the program another one, unless it is worse: then that is said.

    Args:
        causes: The changes.
        figures: What is measured of both.
        loses: Whether something is not reduced, or not called for, any more.
    """
    others = [cause for cause in causes if not _is_of_arrays(cause)]
    found = _judge_causes({cause.judgement for cause in others}, others, figures)
    is_other = loses or len(others) < len(causes)
    return Judgement.DIFFERENT if is_other and found in (Judgement.BETTER, Judgement.SAME) else found


def _is_of_arrays(cause: Cause) -> bool:
    return cause.key in ARRAY_KEYS.values() and cause.judgement is Judgement.DIFFERENT


def _judge_causes(kinds: set[Judgement], causes: Sequence[Cause], figures: Sequence[Figure]) -> Judgement:
    """The judgement by the first figure that tells; a fall that is not sure tells nothing.

    What is not known exactly of transfers has not changed where both sides are as inexact, or it would be a cause.
    """
    if Judgement.DIFFERENT in kinds or len(kinds) < 2:
        return Judgement.DIFFERENT if Judgement.DIFFERENT in kinds else next(iter(kinds), Judgement.SAME)
    memory = {cause.judgement for cause in causes if cause.key == "memory"}
    if Judgement.WORSE in memory or _has_grown(figures, BETWEEN_SLICES):
        return Judgement.WORSE
    for name in (STEP, TRANSFERS, SENT):
        figure = find_figure(figures, name)
        if figure is None or figure.before is None or figure.after is None:
            continue
        least = 0.0 if figure.unit == "bytes" else _SAME_TIME
        if abs(figure.after - figure.before) <= least * figure.before:
            continue
        if figure.after > figure.before:
            return Judgement.WORSE
        if figure.is_decided or (name != STEP and figure.before_bound is figure.after_bound):
            return Judgement.BETTER
    return Judgement.WORSE


def _has_grown(figures: Iterable[Figure], name: str) -> bool:
    figure = find_figure(figures, name)
    return figure is not None and (figure.after or 0) > (figure.before or 0)


def _weigh(cause: Cause) -> tuple[object, ...]:
    """The sort key of changes: of meaning first, then by time, then by bytes; memory and arrays after their causes."""
    late = cause.key in ("memory", "step", *ARRAY_KEYS.values())
    rank = _RANKS[Judgement.WORSE if _is_of_arrays(cause) else cause.judgement]
    return rank, late, -abs(cause.time_us or 0), -abs(cause.wire_bytes or 0), cause.message


def _judge_types(types: tuple[str, str], old: Sequence[BaselineRow]) -> Judgement:
    """The judgement on arrays in another type: a sum in a narrower type, or one of another kind, has another result."""
    if count_bits(types[1]) > count_bits(types[0]):
        return Judgement.WORSE
    return Judgement.DIFFERENT if any(row.kind in REDUCING for row in old) else Judgement.BETTER
