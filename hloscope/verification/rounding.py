"""The effect of rounding on outputs, measured on the reference, and the judgement of a run by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod, sqrt
from time import monotonic
from typing import Any

import numpy as np

from hloscope.base.errors import Option, describe_exception, say
from hloscope.base.units import pluralize
from hloscope.compile.jaxprs import walk_equations
from hloscope.verification import executing
from hloscope.verification.differences import (
    OutputShard,
    as_double,
    as_wide,
    assemble_shards,
    compare_shards,
    compute_errors,
    compute_relative_tolerance,
    compute_root_mean_square,
    find_exchanged,
    find_region,
    is_inexact,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.jaxpr_facts import describe_narrow_carry, find_mean_counts, find_path_units, is_rounding
from hloscope.verification.job import Stage, VerificationJob
from hloscope.verification.model import COPIES, Bias, OutputComparison, Roughness, Tolerance

# ---- the spread of right runs of one program, by element, and its meaning for another run. Does not use JAX
#
# A spread is made from runs of the reference with values moved by rounding. Elements are judged in groups of one
# magnitude: values that cancelled to nearly zero have errors of the size of their terms, unlike those always small.

Region = tuple[slice, ...]

LEAST_ELEMENTS = 32
"""The least elements for a statement about a whole array; fewer are judged one by one."""

_ENOUGH, _ZEROS, _NEAR = 64, -10_000, 2
"""Elements of one magnitude that are enough to say how far they move; the magnitude of zero; how many magnitudes below
count where they are fewer: what cancelled further says of its own error, and not of what larger elements are off by."""

_ENOUGH_FOR_SUMS = 2**18
"""The most elements of a run for which its lean and scale are measured."""

_OUTLIER = 16
"""An element that moves this many times the usual for its magnitude depends on a decision, such as an index."""

_SAFETY, _SMALL_SAMPLES = 1.5, 6.0
"""An element may be off by `1.5 + 6 / sqrt(samples)` times the largest move of its magnitude that was seen."""

SCALE_SAFETY, _RATIO_SAFETY, _OFFSET_SAFETY = 2.0, 1.5, 2.0
"""The multiples of the measured values that rounding still explains."""

_ONE_WAY = 0.9
"""The least share of the differing elements with the same sign that counts as one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundingSpread:
    """The effect of rounding on one output of a program.

    Attributes:
        expected: The output.
        allowed: The allowed error of each element in a right program.
        typical: For each element, the root mean square error of the elements of its magnitude.
        unstable: Elements that depend on a decision that rounding can change.
        unit: Unit roundoff of the narrowest stored type on the output's path.
        scale: The largest root mean square of a run's errors, each in units of `typical`.
        ratio: The largest distance from 1 of the ratio of a run to the output, over all regions.
        offset: The largest distance from 0 of the mean error of a run, in units of `typical`, over all regions.
    """

    expected: Any
    allowed: Any
    typical: Any
    unstable: Any
    unit: float
    scale: float = 1.0
    ratio: float = 0.0
    offset: float = 0.0

    def around(self, expected: Any) -> RoundingSpread:
        """The same spread around another right run of the program."""
        return replace(self, expected=as_wide(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """The lean of a run's errors: `ratio` of the run to the expected values, `offset` in typical errors."""

    ratio: float
    offset: float
    one_way: float
    constant: bool


def measure_spread(expected: Any, runs: Sequence[Any], regions: Sequence[Region], *, unit: float) -> RoundingSpread:
    """Measures a spread.

    Args:
        expected: The output of the program itself.
        runs: The same output of runs with moved values.
        regions: The parts of it on each device.
        unit: Unit roundoff of the narrowest stored type on the output's path.
    """
    exact, expected = np.asarray(expected), as_wide(expected)
    largest = np.zeros(expected.shape, expected.real.dtype)
    for run in runs:
        np.maximum(largest, np.abs(compute_errors(as_wide(run), expected)), out=largest)
    if exact.dtype.kind in "iub":
        nothing = np.zeros(expected.shape)
        allowed, typical, unstable = nothing, nothing, largest > 0
    else:
        allowed, typical, unstable = _measure_elements(expected, runs, largest)
        floor = _find_floor(exact, expected)
        allowed, typical = np.maximum(allowed, floor), np.maximum(typical, floor / 2)
    blank = RoundingSpread(expected=expected, allowed=allowed, typical=typical, unstable=unstable, unit=unit)
    leans = [found for run in runs for part in regions if (found := measure_lean(blank, np.asarray(run)[part], part))]
    return replace(
        blank,
        scale=max((compute_scale(blank, run) or 0.0 for run in runs), default=0.0),
        ratio=max((abs(found.ratio - 1) for found in leans), default=0.0),
        offset=max((abs(found.offset) for found in leans), default=0.0),
    )


def _measure_elements(expected: Any, runs: Sequence[Any], largest: Any) -> tuple[Any, Any, Any]:
    """The allowed and typical error of each element, and the unstable elements."""
    groups = _group_by_magnitude(expected)
    order = np.argsort(groups, axis=None, kind="stable")
    arranged = groups.ravel()[order]
    bounds = [0, *(np.flatnonzero(arranged[1:] != arranged[:-1]) + 1), arranged.size] if arranged.size else [0]
    inside = {int(arranged[start]): order[start:end] for start, end in pairwise(bounds)}
    limits, typical, safety = (np.zeros(1 + max(inside, default=_ZEROS) - _ZEROS, largest.dtype) for _ in range(3))
    for group in inside:
        at = group - _ZEROS
        limits[at], typical[at], safety[at] = _measure_pool(
            _select_pool(group, inside), largest.ravel(), expected.ravel(), runs
        )
    places = groups - _ZEROS
    unstable = largest > limits[places]
    return safety[places] * np.where(unstable, largest, limits[places]), typical[places], unstable


def _select_pool(group: int, inside: Mapping[int, Any]) -> list[tuple[Any, float]]:
    """The elements that are measured for one magnitude, each part with the weight of its moves.

    If they are few, the next magnitudes are included: the moves of larger elements count fully,
    and those of smaller elements in proportion.
    """
    pool, elements = [(inside[group], 1.0)], len(inside[group])
    for near in sorted(inside, key=lambda near: abs(near - group))[1:]:
        if elements < _ENOUGH and near > _ZEROS and group - near <= _NEAR:
            pool.append((inside[near], 2.0 ** max(0, group - near)))
            elements += len(inside[near])
    return pool


def _measure_pool(
    pool: Sequence[tuple[Any, float]], largest: Any, expected: Any, runs: Sequence[Any]
) -> tuple[float, float, float]:
    """The largest and the typical move of elements of one magnitude, and the safety factor of the largest."""
    furthest = max(float(largest[places].max()) * weight for places, weight in pool)
    drawn = [(places[_draw_places(len(places))], weight) for places, weight in pool]
    places = np.concatenate([part for part, _ in drawn])
    weights = np.concatenate([np.full(len(part), weight) for part, weight in drawn])
    moves = largest[places] * weights
    moved = moves[moves > 0]
    limit = min(furthest, _OUTLIER * float(np.median(moved))) if moved.size else 0.0
    usual, weights = places[moves <= limit], weights[moves <= limit]
    squares = [
        np.mean(np.square(np.abs(compute_errors(as_wide(np.ravel(run)[usual]), expected[usual])) * weights))
        for run in runs
        if usual.size and limit
    ]
    elements = sum(len(part) for part, _ in pool)
    return (
        limit,
        sqrt(float(np.mean(squares))) if squares else 0.0,
        _SAFETY + _SMALL_SAMPLES / sqrt(len(runs) * elements),
    )


def compute_scale(spread: RoundingSpread, found: Any) -> float | None:
    """The root mean square of a run's errors in units of the typical ones; None if too little is known."""
    errors = _draw_errors(spread, found)
    return None if errors is None else float(sqrt(np.mean(np.square(np.abs(errors[0])))))


def count_beyond(spread: RoundingSpread, found: Any, times: float) -> int:
    """The number of elements of another run with errors above a multiple of the allowed ones.

    If rounding changes decisions, as many elements as were seen to depend on them may differ without being counted.
    """
    if np.shape(found) != spread.expected.shape:
        return int(spread.expected.size)
    errors = np.where(spread.unstable, 0.0, np.abs(compute_errors(as_wide(found), spread.expected)))
    differing = int(np.count_nonzero(errors > times * spread.allowed))
    return differing if differing > np.count_nonzero(spread.unstable) else 0


def measure_lean(spread: RoundingSpread, found: Any, region: Region) -> Lean | None:
    """The lean of a run's errors in one region with values `found`; None if too little is known."""
    drawn = _draw_errors(spread, found, region)
    if drawn is None or np.iscomplexobj(drawn[0]):
        return None
    errors, scaled = drawn
    size = float(np.dot(scaled, scaled))
    if not size:
        return None
    ratio = 1 + float(np.dot(scaled, errors)) / size
    differing = np.count_nonzero(errors)
    positive = max(np.count_nonzero(errors > 0), np.count_nonzero(errors < 0))
    rest = errors - (ratio - 1) * scaled
    return Lean(
        ratio=ratio,
        offset=float(errors.mean()),
        one_way=positive / differing if differing else 0.0,
        constant=float(np.square(rest).sum()) < 0.1 * float(np.square(errors).sum()),
    )


def has_ratio(spread: RoundingSpread, found: Lean) -> bool:
    """Returns whether a run's elements are a multiple of the expected ones, beyond what rounding explains."""
    return abs(found.ratio - 1) > compute_explained_ratio(spread)


def compute_explained_ratio(spread: RoundingSpread) -> float:
    """The explained distance of a ratio from 1: the measured one, and one rounded factor of a whole array."""
    return _RATIO_SAFETY * spread.ratio + max(spread.unit, 2.0**-21)


def is_one_sided(spread: RoundingSpread, found: Lean, elements: int) -> bool:
    """Returns whether a run's errors point in one direction more than the measured ones."""
    by_chance = 6 / sqrt(elements)
    return found.one_way > _ONE_WAY and abs(found.offset) > _OFFSET_SAFETY * spread.offset + by_chance + 0.25


def find_regions(shape: tuple[int, ...], regions: Sequence[Region]) -> list[Region]:
    """The whole array, and the part of each device, once."""
    everything = tuple(slice(0, size) for size in shape)
    unlike = {tuple((part.start, part.stop) for part in region): region for region in (everything, *regions)}
    return list(unlike.values())


def _draw_errors(spread: RoundingSpread, found: Any, region: Region = ()) -> tuple[Any, Any] | None:
    """The errors of a region's elements, and the elements, in typical errors; None if these are too few.

    Of many elements some are drawn: sums over a quarter of a million say as much as sums over more.
    """
    expected, typical, unstable = spread.expected[region], spread.typical[region], spread.unstable[region]
    drawn = _draw_places(expected.size)
    place = np.unravel_index(drawn, expected.shape) if isinstance(drawn, np.ndarray) else ()
    found, expected, typical = (np.ravel(array[place]) for array in (np.asarray(found), expected, typical))
    found, expected = as_double(found), as_double(expected)
    use = np.isfinite(expected) & np.isfinite(found) & (typical > 0) & ~np.ravel(unstable[place])
    if np.count_nonzero(use) < LEAST_ELEMENTS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return (found[use] - expected[use]) / typical[use], expected[use] / typical[use]


def _draw_places(elements: int) -> Any:
    """The positions of the elements that represent all of them."""
    if elements <= _ENOUGH_FOR_SUMS:
        return slice(None)
    return np.random.default_rng(0).integers(elements, size=_ENOUGH_FOR_SUMS)


def _group_by_magnitude(expected: Any) -> Any:
    """A number for the magnitude of each element: a factor of two per group, with zeros and non-finite values."""
    sizes = np.abs(expected)
    exponents = np.frexp(sizes)[1].astype(np.int16)
    return np.where(np.isfinite(sizes) & (sizes > 0), exponents, np.int16(_ZEROS))


def _find_floor(exact: Any, expected: Any) -> Any:
    """A unit of single precision, for exact results of the reference; none for a narrow type."""
    dtype = np.asarray(exact).dtype
    unit = 2.0**-52 if (dtype.itemsize >= 8 and dtype.kind == "f") or dtype.itemsize >= 16 else 2.0**-23
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(expected), unit * np.abs(expected), 0.0)


_RUNS, _RUNS_OF_TARGET = range(1, 7), range(1, 3)
_RUNS_OF_DECISIONS = range(7, 31)
"""More runs for integers, such as indices, that depend on decisions: each changes only if rounding can change it."""

_SHARE_UNSEEN = {False: 5, True: 32}
"""One in this many elements that rounding can change may be one that no run changed; fewer after more runs."""

_FEW_UNSEEN = 2
"""The additional number of such elements if six runs changed as many, because few say little about a share."""

_NAMES = {2.0**-7: "bfloat16", 2.0**-10: "float16", 2.0**-23: "float32", 2.0**-52: "float64"}
_BYTES_AN_ELEMENT = 8 * (2 * len(_RUNS) + 7)
"""The bytes kept for each element of an output: every run, its errors and the results, as doubles."""

_MOST_OF_A_SPLIT = 4.0
"""The largest error of another split of the reference, in multiples of the tolerance, that counts as rounding."""

_SHARE_EXPLAINED, _TIMES_AS_ROUGH = 0.1, 3.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramRun:
    """A program, its arguments, every device's shard of each output after a run, and the duration."""

    program: Prepared
    outputs: list[tuple[OutputShard, ...]]
    values: Sequence[Any]
    seconds: float


def time_run(program: Prepared, values: Sequence[Any]) -> ProgramRun:
    """Runs a program."""
    before = monotonic()
    outputs = executing.run_program(program, values)
    return ProgramRun(program=program, outputs=outputs, values=values, seconds=monotonic() - before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRounding:
    """The effect of rounding on the outputs.

    Attributes:
        spreads: The spread of each output of the reference; empty if the user sets the tolerance, or if the reference
            cannot be evaluated with moved values.
        relative: The relative tolerance from types and sums alone.
        failure: Why there are no spreads although the user set no tolerance; empty if there are.
        runs: The runs of the reference for each output's spread.
        parts: The number of devices that a sum may be spread over, each of which rounds its partial sum.
        notes: Observations about the reference.
    """

    spreads: Sequence[RoundingSpread | None]
    relative: float
    parts: int
    failure: str = ""
    runs: Sequence[Sequence[Any]] = ()
    notes: tuple[str, ...] = ()


def measure_rounding(target: ProgramRun, reference: ProgramRun, job: VerificationJob, stage: Stage) -> MeasuredRounding:
    """Runs the reference with moved values, unless the user sets the tolerance."""
    program = reference.program
    parts = job.devices if target.program.adds_across or program.adds_across else 1
    roundings = (target.program.rounding, program.rounding)
    relative = compute_relative_tolerance(roundings, devices=parts, platform=job.platform)
    nothing = MeasuredRounding(spreads=(), relative=relative, parts=parts)
    if job.settings.rtol is not None or job.settings.atol is not None:
        return nothing
    elements = sum(int(aval.size) for aval in program.seen.result_avals)
    if job.memory_bytes is not None and elements * _BYTES_AN_ELEMENT > executing.MEMORY_SHARE * job.memory_bytes:
        return replace(nothing, failure="its outputs are too large to keep several copies of")
    if program.traced is not None and not any(map(is_rounding, walk_equations(program.traced.jaxpr))):
        exact = [
            [assemble_shards(shards, find_global_shape(shards), shards[0].values.dtype)] for shards in reference.outputs
        ]
        return replace(nothing, spreads=_measure_spreads(exact, target, reference), runs=exact)
    stage("measuring the effect of rounding on the reference")
    try:
        again = partial(executing.run_noisy, program, reference.values, parts=parts, platform=job.platform)
        moved = [list(runs) for runs in zip(*again(runs=_RUNS), strict=True)]
        decided = [runs for runs in moved if not is_inexact(runs[0])]
        if any(run.tobytes() != runs[0].tobytes() for runs in decided for run in runs):
            more = zip(*again(runs=_RUNS_OF_DECISIONS), strict=True)
            moved = [runs if is_inexact(runs[0]) else [*runs, *rest] for runs, rest in zip(moved, more, strict=True)]
    except executing.UNEVALUABLE as error:
        return replace(nothing, failure=describe_exception(error).splitlines()[0][:200])
    return replace(nothing, spreads=_measure_spreads(moved, target, reference), runs=moved)


def measure_other_splits(
    measured: MeasuredRounding, target: ProgramRun, reference: ProgramRun, stage: Stage
) -> MeasuredRounding:
    """Adds the reference's results with other splits of its arguments, if rounding explains them.

    A right program never differs more than the reference differs from itself. If another split gives numbers that
    rounding does not explain, they are noted and not allowed: the reference's value depends on its shardings.
    """
    if not measured.spreads:
        return measured
    stage("sharding the reference differently")
    runs, notes = [list(kept) for kept in measured.runs], []
    names = reference.program.seen.result_names
    for words, shardings in executing.find_other_splits(reference.program, target.program):
        try:
            outputs = executing.run_split(reference.program, reference.values, shardings)
        except executing.UNEVALUABLE:
            continue
        for name, kept, found, spread in zip(names, runs, outputs, measured.spreads, strict=True):
            differing = count_beyond(spread, found, _MOST_OF_A_SPLIT) if spread is not None else 0
            if differing:
                off = f"{pluralize(differing, 'element')} beyond {_MOST_OF_A_SPLIT:g} times what rounding explains"
                notes.append(f"the reference returns a different {name} when its arguments are {words}: {off}")
            else:
                kept.append(found)
    return replace(measured, spreads=_measure_spreads(runs, target, reference), runs=runs, notes=tuple(notes))


def _measure_spreads(
    runs: Sequence[Sequence[Any]], target: ProgramRun, reference: ProgramRun
) -> list[RoundingSpread | None]:
    units = find_path_units(reference.program.traced) if reference.program.traced is not None else []
    beside = [*target.outputs, *[()] * len(reference.outputs)]
    rows = zip(reference.outputs, beside, runs, units, strict=False)
    return [_measure_spread(shards, theirs, moved, unit) for shards, theirs, moved, unit in rows]


def _measure_spread(
    shards: Sequence[OutputShard], beside: Sequence[OutputShard], moved: Sequence[Any], unit: float
) -> RoundingSpread | None:
    """The spread of an output, of which the target's devices may hold other parts."""
    shape = find_global_shape(shards)
    if any(run.shape != shape for run in moved):
        return None
    expected = assemble_shards(shards, shape, shards[0].values.dtype)
    alike = [shard for shard in beside if find_global_shape(beside) == shape]
    regions = find_regions(shape, [find_region(shard) for shard in (*shards, *alike)])
    return measure_spread(expected, moved, regions, unit=unit / 2)


def judge_by_spread(
    shards: Sequence[OutputShard], expected: Any, spread: RoundingSpread, *, sizes: Mapping[float, str], **words: str
) -> OutputComparison:
    """Compares an output with an expected one by its spread: element by element, and as a whole."""
    found = compare_shards(shards, expected, spread.allowed, unstable=spread.unstable, **words)
    found = replace(found, tolerance=_make_tolerance(expected, spread))
    unseen = found.unstable // _SHARE_UNSEEN[not is_inexact(expected)]
    if found.wrong and found.wrong <= unseen + (min(found.unstable, _FEW_UNSEEN) if is_inexact(expected) else 0):
        found = replace(found, wrong=0, wrong_shards=(), unstable=found.unstable + found.wrong, largest_error=1.0)
    values = assemble_shards(shards, expected.shape, expected.dtype)
    times = (compute_scale(spread, values) or 0.0) / max(spread.scale, 1.0)
    bias = _find_bias(shards, values, spread, sizes)
    rough = Roughness(times=times) if times > SCALE_SAFETY else None
    if found.wrong:
        swapped = find_exchanged(shards, found.wrong_shards, expected, spread.allowed)
        kept = bias if bias is not None and bias.constant else None
        return replace(found, bias=kept, roughness=rough, exchanged=swapped)
    return replace(found, bias=None if rough and bias and not bias.constant else bias, roughness=rough)


def _find_bias(
    shards: Sequence[OutputShard], values: Any, spread: RoundingSpread, sizes: Mapping[float, str]
) -> Bias | None:
    """The bias of an output's errors: of all together, or of those of some devices."""
    everywhere = tuple(slice(0, size) for size in values.shape)
    lean, places = _find_leaning(values, everywhere, spread), tuple[str, ...]()
    if lean is None:
        leans = [(shard.place, _find_leaning(shard.values, find_region(shard), spread)) for shard in shards]
        leaning = {place: found for place, found in leans if found is not None}
        if not leaning:
            return None
        lean, places = max(leaning.values(), key=lambda found: abs(found.ratio - 1)), tuple(leaning)
    ratio = lean.ratio
    meaning = min(sizes, key=lambda size: abs(ratio / size - 1), default=0.0)
    is_near = bool(meaning) and abs(ratio / meaning - 1) < min(0.005, 0.02 * abs(meaning - 1))
    return Bias(
        ratio=ratio,
        constant=lean.constant and has_ratio(spread, lean),
        one_way=lean.one_way,
        shards=places,
        meaning=sizes[meaning] if lean.constant and is_near else "",
        explained=compute_explained_ratio(spread),
    )


def _find_leaning(values: Any, region: Region, spread: RoundingSpread) -> Lean | None:
    lean = measure_lean(spread, values, region)
    leans = lean is not None and (has_ratio(spread, lean) or is_one_sided(spread, lean, values.size))
    return lean if leans else None


def describe_sizes(mesh: Any, values: Sequence[Any]) -> dict[float, str]:
    """The meanings of ratios: the size of an axis, of all axes, or a length of an argument over the next smaller."""
    axes = {str(axis): int(size) for axis, size in mesh.shape.items() if size > 1} if mesh is not None else {}
    sizes = [(size, f"the size of {axis}") for axis, size in axes.items()]
    if len(axes) > 1:
        sizes.append((prod(axes.values()), "the number of devices"))
    named: dict[float, str] = {}
    for size, words in sizes:
        named.setdefault(float(size), words)
        named.setdefault(1 / size, f"1 / {words}")
        named.setdefault(sqrt(size), f"the square root of {words}")
        named.setdefault(1 / sqrt(size), f"1 / the square root of {words}")
    for length in sorted({int(length) for value in values for length in np.shape(value) if length > 2}):
        named.setdefault(length / (length - 1), f"{length:,} / {length - 1:,}, as if a mean were over one too few")
        named.setdefault((length - 1) / length, f"{length - 1:,} / {length:,}, as if a mean were over one too many")
    return named


def _make_tolerance(expected: Any, spread: RoundingSpread) -> Tolerance:
    """The tolerance of elements of typical size."""
    size = compute_root_mean_square(expected)
    if not size:
        return Tolerance(source="rounding")
    sizes = np.abs(spread.expected)
    large = np.isfinite(sizes) & (sizes >= min(size, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))) / 2)
    large &= np.isfinite(spread.allowed)
    relative = float(np.median(spread.allowed[large] / sizes[large])) if large.any() else 0.0
    return Tolerance(relative=relative, absolute=relative * size, source="rounding")


def find_invisible_counts(
    reference: ProgramRun, measured: MeasuredRounding, comparisons: Sequence[OutputComparison]
) -> Iterator[str]:
    """Notes the divisions by a count whose error by one would not be visible in an output at the tested sizes."""
    counts = (
        find_mean_counts(reference.program.traced) if reference.program.traced is not None and measured.spreads else []
    )
    for output, spread, divided in zip(filter(_is_verdict, comparisons), measured.spreads, counts, strict=False):
        if spread is None or not output.informative:
            continue
        is_an_array = spread.expected.size >= LEAST_ELEMENTS
        seen = compute_explained_ratio(spread) if is_an_array else output.tolerance.relative
        hidden = [count for count in divided if 1 / count < seen]
        if hidden:
            count, stored = max(hidden), _NAMES.get(2 * spread.unit)
            within = f"{100 * seen:.2g}% that rounding{f' to {stored}' if stored else ''} explains"
            yield say(
                f"in {output.name} a mean over {count - 1:,} is indistinguishable from one over {count:,} within the "
                f"{within}: a wrong count would not be noticed; use ",
                Option("scale"),
                " for fewer elements",
            )


def _is_verdict(output: OutputComparison) -> bool:
    """Returns whether it compares the two programs, and not one of them with something else."""
    return output.subject == "target" and output.against == "reference"


def explain_by_own_rounding(
    comparisons: Sequence[OutputComparison],
    runs: Mapping[str, ProgramRun],
    measured: MeasuredRounding,
    job: VerificationJob,
) -> tuple[OutputComparison, ...]:
    """Adds to wrong outputs whether the target's own rounding explains them, which takes runs of the target."""
    target, reference = runs["target"], runs["reference"]
    names = list(target.program.seen.result_names)
    doubtful = [
        output
        for output in comparisons
        if _is_verdict(output) and output.name in names and (output.wrong or output.roughness)
    ]
    if not doubtful or not measured.spreads:
        return tuple(comparisons)
    again = partial(executing.run_noisy, parts=measured.parts, platform=job.platform, runs=_RUNS_OF_TARGET)
    try:
        moved = again(target.program, target.values)
    except executing.UNEVALUABLE:
        return tuple(comparisons)

    torn = {output.name for output in comparisons if output.against == COPIES and output.wrong}

    def explained(output: OutputComparison) -> OutputComparison:
        index = names.index(output.name)
        runs_of_it, spread = [run[index] for run in moved], measured.spreads[index]
        differ = output.name in torn
        rough = _find_own_roughness(index, runs_of_it, target, reference, spread, copies_differ=differ)
        return output if rough is None else replace(output, roughness=rough)

    return tuple(explained(output) if output in doubtful else output for output in comparisons)


def _find_own_roughness(
    index: int,
    moved: Sequence[Any],
    target: ProgramRun,
    reference: ProgramRun,
    spread: RoundingSpread | None,
    *,
    copies_differ: bool,
) -> Roughness | None:
    """The errors of an output as the target's own rounding, if that is large enough to explain them."""
    if spread is None:
        return None
    shards = target.outputs[index]
    values = assemble_shards(shards, spread.expected.shape, shards[0].values.dtype)
    error = compute_scale(spread, values)
    first, *others = moved if copies_differ else (values, *moved)  # runs read the same copies, whichever that are
    around = spread.around(first)
    own = max((compute_scale(around, run) or 0.0 for run in others), default=0.0)
    usual = max(spread.scale, 1.0)
    if not error or own**2 < _SHARE_EXPLAINED * error**2 or own < _TIMES_AS_ROUGH * usual:
        return None
    return Roughness(times=error / usual, own=True, words=_describe_rounding(target, reference, index))


def _describe_rounding(target: ProgramRun, reference: ProgramRun, index: int) -> str:
    """The roundings of the target that the reference does not have."""
    traced = target.program.traced, reference.program.traced
    if traced[0] is None or traced[1] is None:
        return ""
    carried, theirs = describe_narrow_carry(traced[0]), describe_narrow_carry(traced[1])
    if carried and carried != theirs:
        return f"in the program, {carried}"
    units = [find_path_units(closed)[index] for closed in traced]
    if units[0] > units[1]:
        wider = _NAMES.get(units[1], "no type that narrow")
        return (
            f"the program rounds intermediates to {_NAMES.get(units[0], 'a narrow type')}, and the reference to {wider}"
        )
    return ""


def find_global_shape(shards: Sequence[OutputShard]) -> tuple[int, ...]:
    """The dimensions of the whole array."""
    return tuple(max(part.stop for part in parts) for parts in zip(*map(find_region, shards), strict=True))
