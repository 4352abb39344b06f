"""A program beside its baseline: better, worse or different, by what, and each figure before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hloscope.analysis.model import Analysis, ArrayFact, Collective, Matmuls, SourceFrame
from hloscope.analysis.places import users_line
from hloscope.analysis.totals import grouped
from hloscope.analysis.vocabulary import SUMS, Bound
from hloscope.contracts.accepting import Change, Compared, Rows, joined_by_line
from hloscope.contracts.array_rows import ARGUMENT, KEYS, OUTPUT, ArrayRow, changed_arrays
from hloscope.contracts.baselines import (
    Baseline,
    BaselineRow,
    MatmulRow,
    Place,
    as_collectives,
    baseline_of,
    matmul_rows_of,
    rows_of,
)
from hloscope.contracts.change_words import (
    moved_words,
    multiplied_words,
    respelled_words,
    sent_words,
    unknown_words,
    versions_words,
)
from hloscope.contracts.figures import (
    MULTIPLIED,
    figures_of,
    grown_memory,
    named,
    pricing_of,
    slower_step,
    total_time_us,
)
from hloscope.contracts.judged import REDUCTION, UNKNOWN, USUAL, Cause, Figure, Judged, Judgement, Tolerance
from hloscope.contracts.left_open import caveats, is_first_version, is_older, left_open
from hloscope.contracts.losing import Lost, as_many_are_summed, axes_words, lost_of, why_computed
from hloscope.contracts.pairing import (
    Multiplied,
    Pair,
    is_known,
    is_only_of,
    is_retyped,
    new_rows,
    of_one_change,
    of_other_types,
    old_rows,
    retyped,
    selector_of,
)
from hloscope.contracts.verdicts_of_causes import judgement_of_types, verdict, weight
from hloscope.matching import Change as MatchedChange
from hloscope.matching import ChangeKind, match
from hloscope.units import known_sum, plural

_TYPES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32",
    "u8": "uint8", "u32": "uint32", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "pred": "bool",
}  # fmt: skip


def judge(
    before: Baseline,
    found: Analysis,
    *,
    root: Path | None = None,
    tolerance: Tolerance = USUAL,
    of_target: bool = False,
) -> Compared:
    """Compares a program with its baseline.

    Args:
        before: The baseline.
        found: The program as it is now.
        root: The project's folder, below which files are named.
        tolerance: How far figures may grow.
        of_target: Whether the program is that of a target of the targets file, whose baseline has its function's name.
    """
    compared = _Judge(before, baseline_of(found, root=root), _Now.of(found, root), tolerance, of_target=of_target)
    return compared.compared()


def judge_two(
    before: Baseline, after: Baseline, found: Analysis | None = None, *, root: Path | None = None, called: str
) -> Judged:
    """Compares two programs as a program and its baseline are compared; what one leaves open is a note.

    Args:
        before: The program before.
        after: The program after.
        found: All that is known of it; None where only its baseline is.
        root: As it was for `after`.
        called: What the program before is called.
    """
    now = _Now({}, {}) if found is None else _Now.of(found, root)
    judged = _Judge(before, after, now, USUAL, called=called).compared().judged
    open_figures = (message for _, message in left_open(before, after, called=called))
    return replace(judged, notes=(*judged.notes, *open_figures))


class _Now(NamedTuple):
    """What stands behind the rows of a program as it is now."""

    moved: Mapping[BaselineRow, tuple[Collective, ...]]
    multiplied: Mapping[MatmulRow, tuple[Matmuls, ...]]
    arrays: Mapping[str, tuple[ArrayFact, ...]] = MappingProxyType({})

    @classmethod
    def of(cls, found: Analysis, root: Path | None) -> _Now:
        """All of a program that was analyzed."""
        arrays = {ARGUMENT: found.arguments, OUTPUT: found.outputs}
        return cls(dict(rows_of(found, root)), dict(matmul_rows_of(found, root)), arrays)

    def line(self, rows: Iterable[BaselineRow | MatmulRow]) -> str | None:
        """The line of the user's code of the first row that has one."""
        return next(filter(None, (users_line(source) for row in rows for source in self._stacks(row))), None)

    def _stacks(self, row: BaselineRow | MatmulRow) -> list[tuple[SourceFrame, ...]]:
        if isinstance(row, MatmulRow):
            return [each.source for each in self.multiplied.get(row, ())]
        return [each.source for each in self.moved.get(row, ())]

    def largest(self, rows: Iterable[BaselineRow | MatmulRow]) -> Collective | None:
        """The collective among them that moves most."""
        behind = [each for row in rows if isinstance(row, BaselineRow) for each in self.moved.get(row, ())]
        return max(behind, key=lambda each: each.wire_bytes_per_step or 0, default=None)


class _Judge:
    """One comparison."""

    def __init__(
        self,
        before: Baseline,
        after: Baseline,
        now: _Now,
        tolerance: Tolerance,
        *,
        called: str | None = None,
        of_target: bool = False,
    ) -> None:
        self._before, self._after, self._now, self._tolerance = before, after, now, tolerance
        self._called, self._is_accepted = called or "the baseline", called is None
        self._of_target = of_target
        self._loses = False
        self._pricing = pricing_of(after)
        sides = (before.rows, after.rows)
        priced = as_collectives(*sides, sizes=dict(after.mesh or ()))
        self._row_of = dict(zip(map(id, priced), (*before.rows, *after.rows), strict=True))
        self._collectives = priced[: len(before.rows)], priced[len(before.rows) :]
        self._times: dict[BaselineRow, float | None] = {self._row_of[id(each)]: self._time_us(each) for each in priced}

    def _time_us(self, moved: Collective) -> float | None:
        if self._pricing is None:
            return None
        return self._pricing.time_us(moved, self._row_of[id(moved)].executions)

    def compared(self) -> Compared:
        """All of it."""
        matched = match(*self._collectives, equivalent=True).changes
        reduced = [self._pair(change) for change in matched if change.kind is ChangeKind.REDUCTION]
        pairs = list(self._changed(matched))
        figures = tuple(figures_of(self._before, self._after, self._times.get))
        moved = [*self._other_reductions(reduced), *self._other_types(pairs), *self._moved(pairs, reduced)]
        changes = [*joined_by_line(moved, self._multiplied(figures)), *self._others()]
        changes += [self._cause("memory", *grown) for grown in grown_memory(figures, self._tolerance)]
        slower = slower_step(figures, [change.cause for change in changes], self._tolerance)
        changes += [] if slower is None else [self._cause("step", *slower)]
        changes.sort(key=lambda change: weight(change.cause))
        causes = tuple(change.cause for change in changes)
        judged = Judged(
            judgement=verdict(causes, figures, loses=self._loses),
            causes=causes,
            figures=figures,
            versions=versions_words(self._before, self._after),
            notes=tuple(self._notes(matched)),
            caveats=tuple(caveats(self._before, self._after, self._tolerance)),
        )
        return Compared(judged, tuple(changes), self._before, self._after)

    def _changed(self, matched: Sequence[MatchedChange]) -> Iterator[Pair]:
        """The rows that are not as before: what moves more or less, and sums of another type."""
        touched = {id(row) for change in matched for side in self._pair(change) for row in side}
        others = (change for change in matched if change.kind is not ChangeKind.REDUCTION)
        known = [(self._pair(change), change.kind.same_traffic) for change in others]
        yield from (pair for pair, is_same in known if not is_same or is_retyped(pair))
        old, new = ([row for row in side.rows if id(row) not in touched] for side in (self._before, self._after))
        yield from retyped(old, new)

    def _notes(self, matched: Iterable[MatchedChange]) -> Iterator[str]:
        """What is no change, and worth knowing."""
        for change in matched:
            if change.kind is ChangeKind.EQUIVALENT and not is_retyped(pair := self._pair(change)):
                yield respelled_words(*pair)
        if is_first_version(self._before):
            for name, _ in self._after.kernels or () if self._before.kernels is None else ():
                yield f"the kernel {name} sends by itself, but the baseline does not record what it does"

    def _pair(self, change: MatchedChange) -> Pair:
        old, new = (tuple(self._row_of[id(each)] for each in side) for side in (change.old, change.new))
        return Pair(old, new)

    # ---- causes

    def _other_types(self, pairs: list[Pair]) -> Iterator[Change]:
        """Arrays that move, or are multiplied, in another type than before; each pair of types is one cause."""
        found: dict[tuple[str, str], list[Pair]] = {}
        for types, alike in list(of_other_types(pairs)):
            pairs[:] = [pair for pair in pairs if pair not in alike]
            found.setdefault(types, []).extend(alike)
        matmuls = self._matmuls_of_other_types()
        for types in dict.fromkeys((*found, *matmuls)):
            moved, multiplied = found.get(types, []), matmuls.get(types, [])
            old = tuple(row for pair in moved for row in pair.old)
            new = tuple(row for pair in moved for row in pair.new)
            largest = self._now.largest(new)
            name = _value_name(largest)
            times = sum(row.executions for row in new)
            parts = [f"{plural(times, 'transfer')}, {sent_words(old, new)}"] if moved else []
            parts += [f"the matmuls of {plural(len(multiplied), 'line')}"] if multiplied else []
            name = name or (new[0].place.text if len(new) == 1 else None)
            where = f": `{name}`" if name else ""
            before, after = (_TYPES.get(each, each) for each in types)
            judgement = judgement_of_types(types, old)
            rounded = f"; a sum in {after} is less precise" if judgement is Judgement.DIFFERENT else ""
            yield self._cause(
                "types",
                judgement,
                f"{after} where {before} was{where} ({', and '.join(parts)}){rounded}",
                (*old, *(pair[0] for pair in multiplied)),
                (*new, *(pair[1] for pair in multiplied)),
            )

    def _other_reductions(self, pairs: Sequence[Pair]) -> Iterator[Change]:
        """Arrays that are combined by another operation than before, as a maximum in place of a sum."""
        for (was, now), alike in grouped(lambda pair: (pair.old[0].reduction, pair.new[0].reduction), pairs).items():
            old, new = (tuple(row for pair in alike for row in side(pair)) for side in (old_rows, new_rows))
            name = _value_name(self._now.largest(new))
            what = f"{plural(sum(row.executions for row in new), 'transfer')} over {axes_words(new[0])}"
            message = f"{now} where {was} was{f': {name}' if name else ''} ({what})"
            yield self._cause(REDUCTION, Judgement.DIFFERENT, message, old, new)

    def _matmuls_of_other_types(self) -> dict[tuple[str, str], list[tuple[MatmulRow, MatmulRow]]]:
        found: dict[tuple[str, str], list[tuple[MatmulRow, MatmulRow]]] = {}
        before, after = self._matmuls_by_place()
        for place in before.keys() & after.keys():
            gone = [row for row in before[place] if row.dtype not in {other.dtype for other in after[place]}]
            new = [row for row in after[place] if row.dtype not in {other.dtype for other in before[place]}]
            if len(gone) == len(new) == 1:
                found.setdefault((gone[0].dtype, new[0].dtype), []).append((gone[0], new[0]))
        return found

    def _matmuls_by_place(self) -> tuple[dict[Place, list[MatmulRow]], dict[Place, list[MatmulRow]]]:
        before, after = (grouped(lambda row: row.place, side.matmuls or ()) for side in (self._before, self._after))
        return before, after

    def _moved(self, pairs: Sequence[Pair], reduced: Sequence[Pair]) -> Iterator[Change]:
        """What moves otherwise than before, the changes of one line of source as one."""
        otherwise = {row for pair in reduced for row in pair.new}
        for alike in self._with_instead(of_one_change(pairs), otherwise):
            place = alike[0].place
            old, new = (tuple(row for pair in alike for row in side(pair)) for side in (old_rows, new_rows))
            judgement, lost, why = self._judgement(alike, otherwise)
            largest = max((*new, *old), key=lambda row: row.wire_bytes or 0)
            in_pairs = all(pair.old and pair.new for pair in alike)
            as_many = as_many_are_summed((*old, *new), self._before, self._after)
            message = moved_words(old, new, in_pairs=in_pairs, lost=lost and lost.words, as_many=as_many)
            message += "" if is_known(alike) else unknown_words((*old, *new))
            message += "" if place.file else ", source unknown"
            key = selector_of(largest) if lost is None or lost.key is None else lost.key
            change = self._cause(key, judgement, message, old, new)
            line = None if lost is None or not lost.instead else self._now.line(lost.instead)
            change = change if line is None else change._replace(cause=replace(change.cause, source=line))
            # Why what is left of the sums moves does not say why another part is gone.
            is_less = why is not None if lost is None else all(row.kind in SUMS for row in new)
            is_less |= not is_known(alike)
            yield change._replace(cause=replace(change.cause, why=why, tried=None)) if is_less else change

    def _with_instead(self, found: Iterable[Sequence[Pair]], otherwise: Collection[BaselineRow]) -> list[list[Pair]]:
        """The changes, in which what reduces arrays that another change has lost is a part of that."""
        changes = [list(each) for each in found]
        for alike in changes:
            lost = self._lost(alike, otherwise)
            instead = () if lost is None else lost.instead
            for other in changes if instead else ():
                if other is not alike and is_only_of(other, instead):
                    alike.extend(other)
                    other.clear()
        return [each for each in changes if each]

    def _judgement(
        self, pairs: Sequence[Pair], reduced: Collection[BaselineRow]
    ) -> tuple[Judgement, Lost | None, str | None]:
        """What changes of one line are together; what is lost where that is more than bytes, and why."""
        was, now = (sum(row.wire_bytes or 0 for pair in pairs for row in side(pair)) for side in (old_rows, new_rows))
        if (lost := self._lost(pairs, reduced)) is not None:
            self._loses = True
            if self._sums_less:
                return Judgement.DIFFERENT, lost, lost.why
            old = tuple(row for pair in pairs for row in pair.old)
            return Judgement.WORSE, None, why_computed(old) if now < was else None
        if not is_known(pairs):
            return Judgement.DIFFERENT, None, None
        return Judgement.WORSE if now > was else Judgement.BETTER if now < was else Judgement.DIFFERENT, None, None

    def _lost(self, pairs: Iterable[Pair], reduced: Collection[BaselineRow]) -> Lost | None:
        """What is lost first that no change of a reduction says already."""
        rows = ((row, pair.new) for pair in pairs for row in pair.old)
        losses = filter(None, (lost_of(*each, self._before, self._after) for each in rows))
        return next((each for each in losses if not each.instead or not {*each.instead} <= {*reduced}), None)

    @property
    def _sums_less(self) -> bool:
        """Whether a sum that is gone is lost, and not what each device now multiplies by itself."""
        was, now = (known_sum(row.flops for row in side.matmuls or ()) for side in (self._before, self._after))
        return was is None or now is None or now <= (1 + self._tolerance.step) * was

    def _multiplied(self, figures: Sequence[Figure]) -> Iterator[Change]:
        """Lines that multiply more than before, where that is more than a little of all."""
        whole = named(figures, MULTIPLIED)
        if whole is None or whole.before is None or whole.after is None:
            return
        if abs(whole.after - whole.before) <= self._tolerance.step * whole.before:
            return
        sign = 1 if whole.after > whole.before else -1
        functions = [each for each in self._matmuls_by_function() if sign * each.more > 0]
        functions.sort(key=lambda each: -abs(each.more))
        if not functions:
            return
        first, *others = functions
        change = self._cause(
            "matmuls",
            self._judgement_of_multiplied(sign),
            multiplied_words(first, whole, others=len(others)),
            tuple(row for each in functions for row in each.old),
            tuple(row for each in functions for row in each.new),
        )
        line = self._now.line(first.grown())
        yield change if line is None else change._replace(cause=replace(change.cause, source=line))

    def _judgement_of_multiplied(self, sign: int) -> Judgement:
        """What more or fewer FLOPs are; what may not run, as in a branch, says neither unless it bounds the change."""
        before, after = (
            reduce(add, (row.bound for row in side.matmuls or ()), Bound.EXACT) for side in (self._before, self._after)
        )
        if after + -before not in (Bound.EXACT, Bound.AT_LEAST if sign > 0 else Bound.AT_MOST):
            return Judgement.DIFFERENT
        return Judgement.WORSE if sign > 0 else Judgement.BETTER

    def _matmuls_by_function(self) -> Iterator[Multiplied]:
        """What each function multiplies, before and after."""
        sides = [
            grouped(lambda row: (row.place.file, row.place.function), side.matmuls or ())
            for side in (self._before, self._after)
        ]
        for function in dict.fromkeys((*sides[0], *sides[1])):
            old, new = (tuple(side.get(function, ())) for side in sides)
            yield Multiplied(old, new)

    def _others(self) -> Iterator[Change]:
        """What makes the two incomparable, or less of the program understood."""
        then, now = self._before, self._after
        for what, before, after in (("slice", then.slice, now.slice), ("mesh", then.mesh, now.mesh)):
            if before != after:
                message = f"the {what} differs: {_words(before)} in {self._called}, {_words(after)} now"
                yield self._cause(what, Judgement.DIFFERENT, message)
        if self._of_target and then.target != now.target:
            message = f"this baseline was accepted for {then.target}, and this target is {now.target}"
            yield self._cause("target", Judgement.DIFFERENT, message)
        if then.arrays and then.mesh == now.mesh and (now.arrays or now.not_understood <= then.not_understood):
            yield from self._other_arrays(then.arrays, now.arrays or ())
        if now.not_understood > then.not_understood:
            yield self._cause(UNKNOWN, Judgement.DIFFERENT, self._unknown_words())
        yield from self._other_kernels()
        if not self._is_accepted:
            return
        if now.not_understood < then.not_understood and not is_first_version(then) and not is_older(then, now):
            yield self._cause(UNKNOWN, Judgement.BETTER, self._unknown_words())
        for key, message in left_open(then, now, called=self._called):
            change = self._cause(key, Judgement.BETTER, message)
            yield change._replace(cause=replace(change.cause, is_left_open=True))

    def _other_arrays(self, then: Sequence[ArrayRow], now: Sequence[ArrayRow]) -> Iterator[Change]:
        """Arguments, and outputs, of other types than before."""
        for kind, key in KEYS.items():
            words = changed_arrays(kind, then, now, self._now.arrays.get(kind, ()))
            if words is not None:
                yield self._cause(key, Judgement.DIFFERENT, words)

    def _unknown_words(self) -> str:
        now, then = self._after.not_understood, self._before.not_understood
        return f"not understood: {plural(now, 'thing')} in the program, {then} in {self._called}"

    def _other_kernels(self) -> Iterator[Change]:
        """Kernels that send by themselves and are not those that somebody accepted."""
        then, now = self._before.kernels, self._after.kernels or ()
        unsaid = then is None and is_first_version(self._before)
        for name, does in () if unsaid else now:
            if name not in dict(then or ()):
                message = f"the kernel {name} sends by itself, but is not in {self._called}"
                yield self._cause("kernels", Judgement.DIFFERENT, message)
            elif (name, does) not in (then or ()):
                message = f"the kernel {name} sends by itself, and its code differs from that in {self._called}"
                yield self._cause("kernels", Judgement.DIFFERENT, message)
        for name in sorted({name for name, _ in then or ()} - {name for name, _ in now}):
            yield self._cause("kernels", Judgement.DIFFERENT, f"the kernel {name}, which sent by itself, is gone")

    def _cause(
        self,
        key: str,
        judgement: Judgement,
        message: str,
        old: Rows = (),
        new: Rows = (),
    ) -> Change:
        moved = [[row for row in side if isinstance(row, BaselineRow)] for side in (old, new)]
        before, after = (known_sum(row.wire_bytes for row in side) for side in moved)
        times = [total_time_us(side, self._times.get) for side in moved]
        largest = self._now.largest(new)
        cause = Cause(
            key=key,
            judgement=judgement,
            message=message,
            source=(None if largest is None else users_line(largest.source))
            or self._now.line(new)
            or self._line_of(old),
            why=None if largest is None else largest.why,
            tried=None if largest is None else largest.tried,
            wire_bytes=None if before is None or after is None or not any(moved) else after - before,
            time_us=None if None in times or not any(moved) else (times[1] or 0) - (times[0] or 0),
        )
        return Change(cause, old, new)

    def _line_of(self, rows: Sequence[BaselineRow | MatmulRow]) -> str | None:
        """Where rows that are gone were written: a line that is still there, else another one of their function."""
        places = [row.place for row in rows]
        known: tuple[BaselineRow | MatmulRow, ...] = (*self._now.moved, *self._now.multiplied)
        for alike in (lambda a, b: a == b, lambda a, b: (a.file, a.function) == (b.file, b.function)):
            for row in known:
                if row.place.file and any(alike(row.place, place) for place in places):
                    return self._now.line([row])
        return next((place.file for place in places if place.file), None)


def _value_name(moved: Collective | None) -> str | None:
    """`params['w']`: what moves, as the user's code calls it."""
    if moved is None or moved.reason is None or moved.reason.moved is None or not moved.reason.moved.named:
        return None
    return moved.reason.moved.name


def _words(value: str | tuple[tuple[str, int], ...] | None) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{name}={size}" for name, size in value)
    return value or "none"
