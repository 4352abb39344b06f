"""What rounding does to the outputs of two programs, measured on the reference, and a run judged by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from time import monotonic
from typing import Any

import numpy as np

from hloscope.program.loading import describe
from hloscope.units import plural
from hloscope.verification import executing, machine, spreads
from hloscope.verification.differences import (
    Shard,
    as_wide,
    compare_shards,
    exchanged,
    is_inexact,
    region_of,
    relative_tolerance,
    root_mean_square,
    whole,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Job
from hloscope.verification.model import Bias, OutputComparison, Roughness, Tolerance
from hloscope.verification.spreads import Spread
from hloscope.verification.traced import every_equation, means, narrow_carry, path_units, rounds

Stage = Callable[[str], None]

_RUNS, _RUNS_OF_TARGET = range(1, 7), range(1, 3)
_RUNS_OF_DECISIONS = range(7, 31)
"""More runs, where integers such as indices hang on decisions: each then moves only where rounding can move it."""

_SHARE_UNSEEN = {False: 5, True: 32}
"""One in so many elements that rounding can tip may be one that no run did; of those that took more runs, fewer."""

_FEW_UNSEEN = 2
"""And so many more where six runs tipped as many, since few say little of a share."""

_NAMES = {2.0**-7: "bfloat16", 2.0**-10: "float16", 2.0**-23: "float32", 2.0**-52: "float64"}
_BYTES_AN_ELEMENT = 8 * (2 * len(_RUNS) + 6)
"""What measuring keeps of each element of an output: every run, its errors, and what is found, as doubles."""

_MOST_OF_A_SPLIT = 4.0
"""Another split of the reference may be off by so many times what its moved values allow for, and still be rounding."""

_SHARE_EXPLAINED, _TIMES_AS_ROUGH = 0.1, 3.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A program, what it was given, what every device held of each output after a run, and how long that took."""

    program: Prepared
    outputs: list[tuple[Shard, ...]]
    values: Sequence[Any]
    seconds: float


def run_of(program: Prepared, values: Sequence[Any]) -> Run:
    """Runs a program."""
    before = monotonic()
    outputs = executing.run(program, values)
    return Run(program=program, outputs=outputs, values=values, seconds=monotonic() - before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What rounding does to the outputs.

    Attributes:
        spreads: For each output of the reference; empty where the user says how much is allowed, or where the reference
            cannot be evaluated with its values moved.
        relative: The relative tolerance that types and sums alone give.
        failure: Why there are no spreads although nobody said otherwise; empty where there are.
        runs: For each output, the runs of the reference that its spread was measured on.
        notes: What was noticed of the reference on the way.
    """

    spreads: Sequence[Spread | None]
    relative: float
    failure: str = ""
    runs: Sequence[Sequence[Any]] = ()
    notes: tuple[str, ...] = ()


def measure(target: Run, reference: Run, job: Job, stage: Stage) -> Measured:
    """Runs the reference with its values moved, unless the user says what is allowed."""
    roundings = (target.program.rounding, reference.program.rounding)
    parts = parts_of_sums(target, reference, job)
    relative = relative_tolerance(roundings, devices=parts, platform=job.platform)
    if job.rtol is not None or job.atol is not None:
        return Measured(spreads=(), relative=relative)
    elements = sum(int(aval.size) for aval in reference.program.seen.result_avals)
    if job.memory_bytes is not None and elements * _BYTES_AN_ELEMENT > machine.SHARE * job.memory_bytes:
        return Measured(spreads=(), relative=relative, failure="its outputs are too large to be kept several times")
    if reference.program.traced is not None and not any(map(rounds, every_equation(reference.program.traced.jaxpr))):
        exact = [[whole(shards, shape_of(shards), shards[0].values.dtype)] for shards in reference.outputs]
        return Measured(spreads=_spreads(exact, target, reference), relative=relative, runs=exact)
    stage("measuring what rounding does to the reference")
    try:
        again = partial(executing.run_moved, reference.program, reference.values, parts=parts, platform=job.platform)
        moved = again(runs=_RUNS)
        more = again(runs=_RUNS_OF_DECISIONS) if _hang_on_decisions(moved) else []
    except executing.UNEVALUABLE as error:
        return Measured(spreads=(), relative=relative, failure=describe(error).splitlines()[0][:200])
    kept = [_runs_of(index, moved, more) for index in range(len(reference.outputs))]
    return Measured(spreads=_spreads(kept, target, reference), relative=relative, runs=kept)


def over_other_splits(
    measured: Measured, target: Run, reference: Run, stage: Stage, names: Sequence[str] = ()
) -> Measured:
    """The same with what the reference gives when its arguments are split in other ways, as far as that is rounding.

    A right program is never off by more than the reference is from itself. Where another split gives numbers that
    rounding does not explain, they are not allowed but told: the reference's value depends on its shardings.
    """
    if not measured.spreads:
        return measured
    stage("splitting the reference in other ways")
    runs, notes = [list(one) for one in measured.runs], []
    names = names or reference.program.seen.result_names
    for words, shardings in executing.other_splits(reference.program, target.program):
        try:
            outputs = executing.run_split(reference.program, reference.values, shardings)
        except executing.UNEVALUABLE:
            continue
        for name, kept, found, spread in zip(names, runs, outputs, measured.spreads, strict=True):
            differing = spreads.beyond(spread, found, _MOST_OF_A_SPLIT) if spread is not None else 0
            if differing:
                off = f"{plural(differing, 'element')} beyond {_MOST_OF_A_SPLIT:g} times what rounding explains"
                notes.append(f"the reference gives another {name} when its arguments are {words}: {off}")
            else:
                kept.append(found)
    return replace(measured, spreads=_spreads(runs, target, reference), runs=runs, notes=tuple(notes))


def _spreads(runs: Sequence[Sequence[Any]], target: Run, reference: Run) -> list[Spread | None]:
    units = path_units(reference.program.traced) if reference.program.traced is not None else []
    rows = enumerate(zip(reference.outputs, runs, units, strict=True))
    return [_spread(shards, target, moved, index, unit) for index, (shards, moved, unit) in rows]


def _hang_on_decisions(moved: Sequence[Sequence[Any]]) -> bool:
    """Whether rounding moves an output of integers."""
    return any(
        not is_inexact(first) and any(first.tobytes() != other.tobytes() for other in others)
        for first, *others in zip(*moved, strict=True)
    )


def _runs_of(index: int, moved: Sequence[Sequence[Any]], more: Sequence[Sequence[Any]]) -> list[Any]:
    """An output in all runs that it needs: only one of integers needs more."""
    return [run[index] for run in (*moved, *(more if not is_inexact(moved[0][index]) else ()))]


def parts_of_sums(target: Run, reference: Run, job: Job) -> int:
    """Devices that a sum may be spread over, each of which rounds what it hands on."""
    return job.devices if target.program.adds_across or reference.program.adds_across else 1


def _spread(shards: Sequence[Shard], target: Run, moved: Sequence[Any], index: int, unit: float) -> Spread | None:
    shape = shape_of(shards)
    if any(run.shape != shape for run in moved):
        return None
    expected = whole(shards, shape, shards[0].values.dtype)
    of_target = target.outputs[index] if index < len(target.outputs) else ()
    alike = [one for one in of_target if shape_of(of_target) == shape]
    regions = list(spreads.parts_of(shape, [region_of(one) for one in (*shards, *alike)]))
    return spreads.spread_of(expected, moved, regions, unit=unit / 2)


def judged_by_spread(
    shards: Sequence[Shard], expected: Any, spread: Spread, *, sizes: Mapping[float, str], **words: str
) -> OutputComparison:
    """Compares an output with an expected one by what rounding does to it: element by element, and all in all."""
    found = compare_shards(shards, expected, spread.allowed, unstable=spread.unstable, **words)
    found = replace(found, tolerance=_tolerance(expected, spread))
    unseen = found.unstable // _SHARE_UNSEEN[not is_inexact(expected)]
    if found.wrong and found.wrong <= unseen + (min(found.unstable, _FEW_UNSEEN) if is_inexact(expected) else 0):
        found = replace(found, wrong=0, wrong_shards=(), unstable=found.unstable + found.wrong, largest_error=1.0)
    values = whole(shards, expected.shape, expected.dtype)
    scale = spreads.scale_of(spread, values)
    bias = _bias(shards, values, spread, sizes)
    rough = Roughness(times=scale / max(spread.scale, 1)) if scale and spreads.is_too_rough(spread, scale) else None
    if found.wrong:
        swapped = exchanged(shards, found.wrong_shards, expected, spread.allowed)
        kept = bias if bias is not None and bias.constant else None
        return replace(found, bias=kept, roughness=rough, exchanged=swapped)
    return replace(found, bias=None if rough and bias and not bias.constant else bias, roughness=rough)


def _bias(shards: Sequence[Shard], values: Any, spread: Spread, sizes: Mapping[float, str]) -> Bias | None:
    """How an output's errors lean: all of them together, or those of some devices."""
    everywhere = tuple(slice(0, size) for size in values.shape)
    together = _leaning(values, everywhere, spread)
    if together is not None:
        return _as_bias(together, (), spread, sizes)
    leaning = [(shard.place, one) for shard in shards if (one := _leaning(shard.values, region_of(shard), spread))]
    if not leaning:
        return None
    largest = max((one for _, one in leaning), key=lambda one: abs(one.ratio - 1))
    return _as_bias(largest, tuple(place for place, _ in leaning), spread, sizes)


def _leaning(values: Any, region: spreads.Region, spread: Spread) -> spreads.Lean | None:
    one = spreads.lean(spread, values, region)
    if one is None or not (spreads.has_ratio(spread, one) or spreads.leans(spread, one, values.size)):
        return None
    return one


def _as_bias(one: spreads.Lean, places: tuple[str, ...], spread: Spread, sizes: Mapping[float, str]) -> Bias:
    explained = spreads.explained_ratio(spread)
    meaning = min(sizes, key=lambda size: abs(one.ratio / size - 1), default=0.0)
    is_near = bool(meaning) and abs(one.ratio / meaning - 1) < min(0.005, 0.02 * abs(meaning - 1))
    return Bias(
        ratio=one.ratio,
        constant=one.constant and spreads.has_ratio(spread, one),
        one_way=one.one_way,
        shards=places,
        meaning=sizes[meaning] if one.constant and is_near else "",
        explained=explained,
    )


def size_words(mesh: Any, values: Sequence[Any]) -> dict[float, str]:
    """What a ratio may be: the size of an axis, of all axes, or a length of an argument over the one below it."""
    axes = {str(axis): int(size) for axis, size in mesh.shape.items() if size > 1} if mesh is not None else {}
    named: dict[float, str] = {}
    for size, words in [*((size, f"the size of {axis}") for axis, size in axes.items()), *_all(axes)]:
        named.setdefault(float(size), words)
        named.setdefault(1 / size, f"1 / {words}")
        named.setdefault(sqrt(size), f"the square root of {words}")
        named.setdefault(1 / sqrt(size), f"1 / the square root of {words}")
    lengths = sorted({int(length) for value in values for length in np.shape(value) if length > 2})
    for length in lengths:
        named.setdefault(length / (length - 1), f"{length:,} / {length - 1:,}, as of a mean over one too few")
        named.setdefault((length - 1) / length, f"{length - 1:,} / {length:,}, as of a mean over one too many")
    return named


def _all(axes: Mapping[str, int]) -> list[tuple[int, str]]:
    product = 1
    for size in axes.values():
        product *= size
    return [(product, "the number of devices")] if len(axes) > 1 else []


def _tolerance(expected: Any, spread: Spread) -> Tolerance:
    """What is allowed for elements of typical size."""
    size = root_mean_square(expected)
    if not size:
        return Tolerance(source="rounding")
    sizes = np.abs(spread.expected)
    large = np.isfinite(sizes) & (sizes >= min(size, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))) / 2)
    large &= np.isfinite(spread.allowed)
    relative = float(np.median(spread.allowed[large] / sizes[large])) if large.any() else 0.0
    return Tolerance(relative=relative, absolute=relative * size, source="rounding")


def invisible(reference: Run, measured: Measured, comparisons: Sequence[OutputComparison]) -> Iterator[str]:
    """Says of divisions by a count that one more or less would not be seen in an output, at the sizes that were run."""
    counts = means(reference.program.traced) if reference.program.traced is not None and measured.spreads else []
    judged = [one for one in comparisons if one.subject == "target" and one.against == "reference"]
    for one, spread, divided in zip(judged, measured.spreads, counts, strict=False):
        if spread is None or not one.informative:
            continue
        seen = spreads.explained_ratio(spread) if spreads.is_an_array(spread) else one.tolerance.relative
        hidden = [count for count in divided if 1 / count < seen]
        if hidden:
            count, stored = max(hidden), _NAMES.get(2 * spread.unit)
            within = f"{100 * seen:.2g}% that rounding{f' to {stored}' if stored else ''} explains"
            yield (
                f"a mean over {count - 1:,} or {count:,} is the same in {one.name} within the {within}: a wrong count "
                "would not be seen; use --scale for fewer elements"
            )


def with_own_rounding(
    comparisons: Sequence[OutputComparison], runs: Mapping[str, Run], measured: Measured, job: Job
) -> tuple[OutputComparison, ...]:
    """Says of wrong outputs whether the target's own rounding makes them so, which takes runs of the target."""
    target, reference = runs["target"], runs["reference"]
    doubtful = [one for one in comparisons if one.subject == "target" and one.against == "reference"]
    if not any(one.wrong or one.roughness for one in doubtful) or not measured.spreads:
        return tuple(comparisons)
    try:
        parts = parts_of_sums(target, reference, job)
        moved = executing.run_moved(
            target.program, target.values, parts=parts, platform=job.platform, runs=_RUNS_OF_TARGET
        )
    except executing.UNEVALUABLE:
        return tuple(comparisons)
    names = list(target.program.seen.result_names)
    return tuple(
        _explained(one, names.index(one.name), moved, target, reference, measured)
        if any(one is other for other in doubtful) and one.name in names and (one.wrong or one.roughness)
        else one
        for one in comparisons
    )


def _explained(
    one: OutputComparison, index: int, moved: Sequence[Sequence[Any]], target: Run, reference: Run, measured: Measured
) -> OutputComparison:
    spread = measured.spreads[index]
    values = (
        whole(target.outputs[index], spread.expected.shape, target.outputs[index][0].values.dtype) if spread else None
    )
    if spread is None or values is None:
        return one
    error = spreads.scale_of(spread, values)
    around = replace(spread, expected=as_wide(values))
    own = max((spreads.scale_of(around, run[index]) or 0.0 for run in moved), default=0.0)
    if not error or own**2 < _SHARE_EXPLAINED * error**2 or own < _TIMES_AS_ROUGH * max(spread.scale, 1.0):
        return one
    return replace(
        one,
        roughness=Roughness(
            times=error / max(spread.scale, 1.0), own=True, words=_rounding_words(target, reference, index)
        ),
    )


def _rounding_words(target: Run, reference: Run, index: int) -> str:
    """What the target rounds that the reference does not."""
    traced = target.program.traced, reference.program.traced
    if traced[0] is None or traced[1] is None:
        return ""
    carried, theirs = narrow_carry(traced[0]), narrow_carry(traced[1])
    if carried and carried != theirs:
        return f"in the program {carried}"
    units = [path_units(one)[index] for one in traced]
    if units[0] > units[1]:
        wider = _NAMES.get(units[1], "nothing so narrow")
        return f"the program rounds to {_NAMES.get(units[0], 'a narrow type')} on its way, and the reference to {wider}"
    return ""


def shape_of(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The dimensions of the whole array."""
    ends = [tuple(a + n for a, n in zip(shard.start, shard.values.shape, strict=True)) for shard in shards]
    return tuple(max(column) for column in zip(*ends, strict=True))
