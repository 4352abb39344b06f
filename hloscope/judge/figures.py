"""The figures of a program and of its baseline, before and after, and what the baseline does not record.

Figures are times, bytes by axes, FLOPs and memory. A figure that a baseline does not have, or not so that it could be
compared, is said to be missing: it is neither equal to what is found nor zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hloscope.base.errors import HloscopeError
from hloscope.base.units import format_bytes, format_share, format_time, pluralize
from hloscope.cost.collectives import AxesPricing
from hloscope.judge.baselines import (
    MEMORY_PARTS,
    Baseline,
    BaselineRow,
    MatmulRow,
    add_bounds,
    count_unknown,
    format_axes,
)
from hloscope.judge.changes import REDUCTION, AllowedGrowth, Cause, Figure, Judgement, sum_flops
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound, Link
from hloscope.tpu.slices import parse_slice

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


def make_figures(before: Baseline, after: Baseline, time_of: TimeOf) -> Iterator[Figure]:
    """The figures of both.

    Args:
        before: The baseline.
        after: The program as it is now.
        time_of: Microseconds of the transfers of a row, by the cost model as it is now; None where it cannot tell.
    """
    rows = (*before.rows, *after.rows)
    yield from _make_step(before, after)
    times = [sum_time_us(side.rows, time_of) for side in (before, after)]
    if None not in times and any(times):
        bounds = [_find_bound(side, side.rows) for side in (before, after)]
        yield _make_bounded(TRANSFERS, "us", times, bounds)
    yield _make_sent(SENT, before, after, lambda _: True)
    for axes in dict.fromkeys(map(format_axes, rows)):
        yield _make_sent(f"sent over {axes}", before, after, lambda row, axes=axes: format_axes(row) == axes)  # type: ignore[misc]
    if any(row.link is not Link.ICI for row in rows):
        yield _make_sent(BETWEEN_SLICES, before, after, lambda row: row.link is not Link.ICI)
    if before.matmuls is not None:
        matmuls = [side.matmuls or () for side in (before, after)]
        bounds = [_find_bound(side, rows) for side, rows in zip((before, after), matmuls, strict=True)]
        yield _make_bounded(MULTIPLIED, "flops", list(map(sum_flops, matmuls)), bounds)
    for name, part in MEMORY_PARTS.items():
        was, now = getattr(before.memory, part), getattr(after.memory, part)
        if was is not None or now is not None:
            is_alike = name not in _COUNTED_OTHERWISE or not before.is_first_version
            yield Figure(name=f"{MEMORY}{name}", unit="bytes", before=was, after=now, comparable=is_alike)


def _make_step(before: Baseline, after: Baseline) -> Iterator[Figure]:
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
            comparable=then is None or now is None or then.has_basis_of(now),
        )


def make_pricing(baseline: Baseline) -> AxesPricing | None:
    """The pricing of a baseline's transfers; None if its slice or its mesh is unknown."""
    axes = dict(baseline.mesh or ())
    if not axes or baseline.slice is None:
        return None
    mesh = Mesh(axis_names=tuple(axes), axis_sizes=tuple(axes.values()))
    try:
        return AxesPricing.on(parse_slice(baseline.slice), mesh)
    except HloscopeError:  # a chip of a file of the user's, of which baselines know only the name
        return None


def _make_sent(name: str, before: Baseline, after: Baseline, is_meant: Callable[[BaselineRow], bool]) -> Figure:
    """The bytes of rows before and after; unknown ones make what is known a lower bound."""
    sides = [[row for row in side.rows if is_meant(row)] for side in (before, after)]
    bounds = [_find_bound(side, rows) for side, rows in zip((before, after), sides, strict=True)]
    return _make_bounded(name, "bytes", [sum(row.wire_bytes or 0 for row in rows) for rows in sides], bounds)


def _make_bounded(name: str, unit: str, amounts: Sequence[float | None], bounds: Sequence[Bound]) -> Figure:
    """A figure of both sides with the bound of each."""
    return Figure(
        name=name, unit=unit, before=amounts[0], after=amounts[1], before_bound=bounds[0], after_bound=bounds[1]
    )


def _find_bound(side: Baseline, rows: Iterable[BaselineRow | MatmulRow]) -> Bound:
    """The bound of a sum over rows: at least so much where anything in the program is not understood."""
    is_whole = not side.not_understood and not side.kernels
    return add_bounds(rows) + (Bound.EXACT if is_whole else Bound.AT_LEAST)


def sum_time_us(rows: Sequence[BaselineRow], time_of: TimeOf) -> float | None:
    """Microseconds of all of them; None if one is unknown."""
    times = [time_of(row) for row in rows]
    return None if None in times else sum(time for time in times if time is not None)


def find_figure(figures: Iterable[Figure], name: str) -> Figure | None:
    """The figure of a name, if it means the same before and after; otherwise None."""
    return next((figure for figure in figures if figure.name == name and figure.comparable), None)


def find_grown_memory(figures: Iterable[Figure], tolerance: AllowedGrowth) -> Iterator[tuple[Judgement, str]]:
    """Parts of the memory that grew beyond what is let pass, or shrank by as much, each with its judgement."""
    parts = {figure.name.removeprefix(MEMORY): figure for figure in figures if figure.name.startswith(MEMORY)}
    for name, share in tolerance.memory.items():
        figure = parts.get(name)
        if figure is None or figure.before is None or not figure.comparable:
            continue
        shown = describe_memory(name)
        if figure.after is None:
            yield Judgement.DIFFERENT, f"{shown} is unknown; it was {format_bytes(figure.before)}"
            continue
        grown = figure.after - figure.before
        if abs(grown) > max(share * figure.before, _COMPILERS_OWN_BYTES):
            much = f"{'grew' if grown > 0 else 'shrank'} by {format_share(abs(grown) / max(figure.before, 1))}"
            most = _describe_most_grown(parts, grown) if name == "peak" else ""
            words = f"{shown} {much}: {format_bytes(figure.before)} -> {format_bytes(figure.after)}{most}"
            yield Judgement.WORSE if grown > 0 else Judgement.BETTER, words


def _describe_most_grown(parts: Mapping[str, Figure], grown: float) -> str:
    """`, most of it temporaries`: the part that accounts for at least half of it."""
    for name, figure in parts.items():
        more = (figure.after or 0) - (figure.before or 0)
        if name not in ("peak", "aliased") and more / grown >= 0.5:
            return f", most of it {name}: {format_bytes(figure.before)} -> {format_bytes(figure.after)}"
    return ""


def find_slower_step(
    figures: Iterable[Figure], causes: Iterable[Cause], tolerance: AllowedGrowth
) -> tuple[Judgement, str] | None:
    """A step that takes longer, or less long, although nothing else says why; or of which that is not known."""
    figures = tuple(figures)
    step = find_figure(figures, STEP)
    if step is None or step.before is None or step.after is None:
        return None
    more_us = step.after - step.before
    judgement = Judgement.WORSE if more_us > 0 else Judgement.BETTER
    if abs(more_us) <= tolerance.step * step.before or _is_explained(judgement, causes):
        return None
    before, after = (
        bound.marked(format_time(step_us))
        for step_us, bound in ((step.before, step.before_bound), (step.after, step.after_bound))
    )
    if not step.is_decided:
        return Judgement.DIFFERENT, f"whether the step takes longer than before is not known: {before} -> {after}"
    much, amount = ("longer", "more") if more_us > 0 else ("less", "less")
    share = f"{format_share(abs(more_us) / step.before)} " if step.before else ""
    others = [find_figure(figures, name) for name in (SENT, MULTIPLIED)]
    if all(other is not None and other.change_bound is Bound.EXACT for other in others):
        although = f"it neither moves nor multiplies {amount}"
    else:
        although = f"it is not known to move or multiply {amount}"
    return judgement, f"the step takes {share}{much}, {before} -> {after}, although {although}"


def _is_explained(judgement: Judgement, causes: Iterable[Cause]) -> bool:
    """True if a change of what moves or multiplies says why a step is judged so."""
    changes = (cause for cause in causes if cause.key != "memory" and not cause.is_left_open)
    return any(change.judgement in (judgement, Judgement.DIFFERENT) for change in changes)


# ---- what a baseline leaves open

_LARGE = 0.25
"""The share of growth from which every reader of a check is told that it is allowed."""

_FIRST_RELEASE = (0, 1)
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def find_left_open(then: Baseline, now: Baseline, *, called: str) -> Iterator[tuple[str, str]]:
    """The figures that a baseline should have, and has not, or not so that they could be compared: key and sentence.

    A baseline that was edited to be judged by less has such a gap. Figures unknown to an older release are no gap.

    Args:
        then: The baseline.
        now: The same of the program as it is.
        called: What the baseline is called in the sentence.
    """
    if then.is_first_version:
        return
    if not all(row.reduction_is_known for row in then.rows):
        yield REDUCTION, f"{called} does not say by which operation sums are reduced"
    if not then.arrays and now.arrays:
        yield "arguments", f"{called} does not say what the arguments and outputs are"
    if then.step is not None and now.step is not None and not _is_earlier_model(then, now):
        yield from ((("step", words),) if (words := _describe_other_basis(then, now)) else ())
    if is_older(then, now):
        return
    if then.step is None and now.step is not None:
        yield "step", f"{called} does not say how long a step takes"
    if then.arrays and not all(row.is_whole for row in then.arrays) and all(row.is_whole for row in now.arrays or ()):
        yield "arguments", f"{called} does not say how arguments and outputs are sharded"
    known = [name for name, part in MEMORY_PARTS.items() if getattr(now.memory, part) is not None]
    if unsaid := [name for name in known if getattr(then.memory, MEMORY_PARTS[name]) is None]:
        yield "memory", f"{called} does not say how much memory is taken: {', '.join(unsaid)}"


def find_caveats(then: Baseline, now: Baseline, tolerance: AllowedGrowth) -> Iterator[str]:
    """The limits of a comparison with a baseline: figures that are not judged, or that may grow by a large amount."""
    if then.is_first_version:
        yield (
            "the baseline is of format 1: types, operations, matmuls, arguments, outputs, the step and the peak memory "
            "are not judged"
        )
    elif (words := _describe_steps(then, now)) is not None:
        yield words
    unknown = max(count_unknown(side.matmuls or ()) for side in (then, now))
    if unknown and not then.is_first_version:
        yield f"the FLOPs of {pluralize(unknown, 'line')} are not judged: they are not known"
    for name in tolerance.memory:
        was, is_now = (getattr(side.memory, MEMORY_PARTS[name]) for side in (then, now))
        if was is None and is_now is not None:
            yield f"{describe_memory(name)} is not judged: the baseline does not have it"
    for name, share in {"step": tolerance.step, **tolerance.memory}.items():
        if share > _LARGE:
            yield f"{'the step' if name == 'step' else describe_memory(name)} may grow by {format_share(share)}"


def _describe_steps(then: Baseline, now: Baseline) -> str | None:
    if then.step is None or now.step is None:
        if then.step is now.step:
            return None
        missing = "the baseline does not have it" if then.step is None else "it is not predicted now"
        return f"the step is not judged: {missing}"
    if then.step.is_estimated and now.step.is_estimated:
        return "both steps are estimates, made before there was machine code"
    return _describe_other_basis(then, now)


def describe_memory(part: str) -> str:
    """`the peak memory`: a part of the memory, by its name in a baseline."""
    return "the peak memory" if part == "peak" else f"the memory for {part}"


def _describe_other_basis(then: Baseline, now: Baseline) -> str | None:
    if then.step is None or now.step is None or then.step.has_basis_of(now.step):
        return None
    if then.step.model == now.step.model:
        return "the steps are not compared: one of them is an estimate, made before there was machine code"
    return f"the step is not judged: the baseline's cost model is {then.step.model}, this is {now.step.model}"


def _is_earlier_model(then: Baseline, now: Baseline) -> bool:
    """True if an older release may have predicted the step: a model that never existed was written in by hand."""
    if then.step is None or now.step is None:
        return False
    return 0 < then.step.model < now.step.model and is_older(then, now)


def is_older(then: Baseline, now: Baseline) -> bool:
    """True if the baseline names an older release of hloscope, one that existed, as its writer."""
    before, here = (_parse_release(side.versions.get("hloscope", "")) for side in (then, now))
    return before is not None and here is not None and _FIRST_RELEASE <= before < here


def _parse_release(version: str) -> tuple[int, ...] | None:
    found = _RELEASE.match(version)
    return None if found is None else tuple(map(int, found[0].split(".")))
