"""The effect of rounding on outputs, measured on the reference, and the judgement of a run by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod, sqrt
from time import monotonic
from typing import Any

import numpy as np

from hloscope.messages import Option, say
from hloscope.program.jaxprs import walk_equations
from hloscope.program.loading import describe_exception
from hloscope.units import pluralize
from hloscope.verification import executing, machine, spreads
from hloscope.verification.differences import (
    OutputShard,
    assemble_shards,
    compare_shards,
    compute_relative_tolerance,
    compute_root_mean_square,
    find_exchanged,
    find_region,
    is_inexact,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Stage, VerificationJob
from hloscope.verification.model import COPIES, Bias, OutputComparison, Roughness, Tolerance
from hloscope.verification.spreads import RoundingSpread
from hloscope.verification.traced import describe_narrow_carry, find_mean_counts, find_path_units, is_rounding

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
    if job.memory_bytes is not None and elements * _BYTES_AN_ELEMENT > machine.MEMORY_SHARE * job.memory_bytes:
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
            differing = spreads.count_beyond(spread, found, _MOST_OF_A_SPLIT) if spread is not None else 0
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
    regions = spreads.find_regions(shape, [find_region(shard) for shard in (*shards, *alike)])
    return spreads.measure_spread(expected, moved, regions, unit=unit / 2)


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
    times = (spreads.compute_scale(spread, values) or 0.0) / max(spread.scale, 1.0)
    bias = _find_bias(shards, values, spread, sizes)
    rough = Roughness(times=times) if times > spreads.SCALE_SAFETY else None
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
        constant=lean.constant and spreads.has_ratio(spread, lean),
        one_way=lean.one_way,
        shards=places,
        meaning=sizes[meaning] if lean.constant and is_near else "",
        explained=spreads.compute_explained_ratio(spread),
    )


def _find_leaning(values: Any, region: spreads.Region, spread: RoundingSpread) -> spreads.Lean | None:
    lean = spreads.measure_lean(spread, values, region)
    leans = lean is not None and (spreads.has_ratio(spread, lean) or spreads.is_one_sided(spread, lean, values.size))
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
        is_an_array = spread.expected.size >= spreads.LEAST_ELEMENTS
        seen = spreads.compute_explained_ratio(spread) if is_an_array else output.tolerance.relative
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
    error = spreads.compute_scale(spread, values)
    first, *others = moved if copies_differ else (values, *moved)  # runs read the same copies, whichever that are
    around = spread.around(first)
    own = max((spreads.compute_scale(around, run) or 0.0 for run in others), default=0.0)
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
