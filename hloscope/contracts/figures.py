"""The figures of a program and of its baseline: times, bytes by axes, FLOPs and memory, before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add

from hloscope.analysis.model import Mesh
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.contracts.baselines import MEMORY_PARTS, Baseline, BaselineRow, MatmulRow
from hloscope.contracts.change_words import most_grown_words
from hloscope.contracts.judged import Cause, Figure, Judgement, Tolerance
from hloscope.contracts.left_open import is_first_version, memory_words
from hloscope.contracts.losing import axes_words
from hloscope.cost.collectives import AxesPricing
from hloscope.errors import HloscopeError
from hloscope.tpu.slices import parse_slice
from hloscope.units import format_bytes, format_share, format_time, known_sum

TimeOf = Callable[[BaselineRow], float | None]
STEP, TRANSFERS, SENT, BETWEEN_SLICES, MULTIPLIED = (
    "predicted step", "transfers alone", "sent per step", "sent between slices", "multiplied",
)  # fmt: skip
MEMORY = "memory: "
_COUNTED_OTHERWISE = ("temporaries", "peak")
"""Parts of the memory that hloscope 0.1 read from `memory_analysis()` and not from the buffer assignment."""

_COMPILERS_OWN_BYTES = 128 << 10
"""No growth at all: code and scratch of the compiler's own, which are most of what a tiny program takes.

Source: the mean of 512 x 2048 squares took 604,160 bytes as libtpu 0.0.42 compiled it, and 636,416 as 0.0.50 did.
"""


def figures_of(before: Baseline, after: Baseline, time_of: TimeOf) -> Iterator[Figure]:
    """What is measured of both.

    Args:
        before: The baseline.
        after: The program as it is now.
        time_of: Microseconds of the transfers of a row, by the cost model as it is now; None where it cannot tell.
    """
    rows = (*before.rows, *after.rows)
    yield from _step(before, after)
    times = [total_time_us(side.rows, time_of) for side in (before, after)]
    if None not in times and any(times):
        bounds = [_bound_of(side, side.rows) for side in (before, after)]
        yield _bounded(TRANSFERS, "us", times, bounds)
    yield _sent(SENT, before, after, lambda _: True)
    for axes in dict.fromkeys(map(axes_words, rows)):
        yield _sent(f"sent over {axes}", before, after, lambda row, axes=axes: axes_words(row) == axes)  # type: ignore[misc]
    if any(row.link is not Link.ICI for row in rows):
        yield _sent(BETWEEN_SLICES, before, after, lambda row: row.link is not Link.ICI)
    if before.matmuls is not None:
        matmuls = [side.matmuls or () for side in (before, after)]
        bounds = [_bound_of(side, rows) for side, rows in zip((before, after), matmuls, strict=True)]
        yield _bounded(MULTIPLIED, "flops", [known_sum(row.flops for row in rows) for rows in matmuls], bounds)
    for name, part in MEMORY_PARTS.items():
        was, now = getattr(before.memory, part), getattr(after.memory, part)
        if was is not None or now is not None:
            is_alike = name not in _COUNTED_OTHERWISE or not is_first_version(before)
            yield Figure(name=f"{MEMORY}{name}", unit="bytes", before=was, after=now, comparable=is_alike)


def _step(before: Baseline, after: Baseline) -> Iterator[Figure]:
    then, now = before.step, after.step
    if then is not None or now is not None:
        yield Figure(
            name=STEP,
            unit="us",
            before=None if then is None else then.step_us,
            after=None if now is None else now.step_us,
            before_range=None if then is None else (then.least_us, then.most_us),
            after_range=None if now is None else (now.least_us, now.most_us),
            before_bound=Bound.EXACT if then is None else then.bound,
            after_bound=Bound.EXACT if now is None else now.bound,
            comparable=then is None or now is None or then.model == now.model,
        )


def pricing_of(baseline: Baseline) -> AxesPricing | None:
    """What prices the transfers of a baseline; None where its slice or its mesh is not known."""
    axes = dict(baseline.mesh or ())
    if not axes or baseline.slice is None:
        return None
    mesh = Mesh(axis_names=tuple(axes), axis_sizes=tuple(axes.values()))
    try:
        return AxesPricing.on(parse_slice(baseline.slice), mesh)
    except HloscopeError:  # a chip of a file of the user's, of which baselines know only the name
        return None


def _sent(name: str, before: Baseline, after: Baseline, is_meant: Callable[[BaselineRow], bool]) -> Figure:
    sides = [[row for row in side.rows if is_meant(row)] for side in (before, after)]
    bounds = [_bound_of(side, rows) for side, rows in zip((before, after), sides, strict=True)]
    return _bounded(name, "bytes", [known_sum(row.wire_bytes for row in rows) for rows in sides], bounds)


def _bounded(name: str, unit: str, amounts: Sequence[float | None], bounds: Sequence[Bound]) -> Figure:
    """A figure of both sides with the bound of each."""
    return Figure(
        name=name, unit=unit, before=amounts[0], after=amounts[1], before_bound=bounds[0], after_bound=bounds[1]
    )


def _bound_of(side: Baseline, rows: Iterable[BaselineRow | MatmulRow]) -> Bound:
    """The bound of a sum over rows: at least so much where anything in the program is not understood."""
    is_whole = not side.not_understood and not side.kernels
    return reduce(add, (row.bound for row in rows), Bound.EXACT if is_whole else Bound.AT_LEAST)


def total_time_us(rows: Sequence[BaselineRow], time_of: TimeOf) -> float | None:
    """Microseconds of all of them; None where nobody can tell of one."""
    times = [time_of(row) for row in rows]
    return None if None in times else sum(time for time in times if time is not None)


def named(figures: Iterable[Figure], name: str) -> Figure | None:
    """The figure of a name that means the same before and after; None where there is none."""
    return next((figure for figure in figures if figure.name == name and figure.comparable), None)


def grown_memory(figures: Iterable[Figure], tolerance: Tolerance) -> Iterator[tuple[Judgement, str]]:
    """Parts of the memory that grew beyond what is let pass, or shrank by as much, each with its judgement."""
    parts = {figure.name.removeprefix(MEMORY): figure for figure in figures if figure.name.startswith(MEMORY)}
    for name, share in tolerance.memory.items():
        figure = parts.get(name)
        if figure is None or figure.before is None or not figure.comparable:
            continue
        shown = memory_words(name)
        if figure.after is None:
            yield Judgement.DIFFERENT, f"{shown} is unknown; it was {format_bytes(figure.before)}"
            continue
        grown = figure.after - figure.before
        if abs(grown) > max(share * figure.before, _COMPILERS_OWN_BYTES):
            much = f"{'grew' if grown > 0 else 'shrank'} by {format_share(abs(grown) / max(figure.before, 1))}"
            most = most_grown_words(parts, grown) if name == "peak" else ""
            words = f"{shown} {much}: {format_bytes(figure.before)} -> {format_bytes(figure.after)}{most}"
            yield Judgement.WORSE if grown > 0 else Judgement.BETTER, words


def slower_step(
    figures: Iterable[Figure], causes: Iterable[Cause], tolerance: Tolerance
) -> tuple[Judgement, str] | None:
    """A step that takes longer, or less long, although nothing else says why."""
    step = named(figures, STEP)
    if step is None or step.before is None or step.after is None:
        return None
    change = step.after / step.before - 1 if step.before else 0.0
    judgement = Judgement.WORSE if change > 0 else Judgement.BETTER
    explained = any(cause.judgement in (judgement, Judgement.DIFFERENT) and cause.key != "memory" for cause in causes)
    if abs(change) <= tolerance.step or explained:
        return None
    much, amount = ("longer", "more") if change > 0 else ("less", "less")
    before, after = (
        bound.marked(format_time(step_us))
        for step_us, bound in ((step.before, step.before_bound), (step.after, step.after_bound))
    )
    return judgement, (
        f"the step takes {format_share(abs(change))} {much}, {before} -> {after}, although it neither moves nor "
        f"multiplies {amount}"
    )
