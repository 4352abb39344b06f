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
from hloscope.program.jaxprs import every_equation
from hloscope.program.loading import describe
from hloscope.units import plural
from hloscope.verification import executing, machine, spreads
from hloscope.verification.differences import (
    Shard,
    compare_shards,
    exchanged,
    is_inexact,
    region_of,
    relative_tolerance,
    root_mean_square,
    whole,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Job, Stage
from hloscope.verification.model import COPIES, Bias, OutputComparison, Roughness, Tolerance
from hloscope.verification.spreads import Spread
from hloscope.verification.traced import means, narrow_carry, path_units, rounds

_RUNS, _RUNS_OF_TARGET = range(1, 7), range(1, 3)
_RUNS_OF_DECISIONS = range(7, 31)
"""More runs, where integers such as indices hang on decisions: each then moves only where rounding can move it."""

_SHARE_UNSEEN = {False: 5, True: 32}
"""One in so many elements that rounding can tip may be one that no run did; of those that took more runs, fewer."""

_FEW_UNSEEN = 2
"""And so many more where six runs tipped as many, since few say little of a share."""

_NAMES = {2.0**-7: "bfloat16", 2.0**-10: "float16", 2.0**-23: "float32", 2.0**-52: "float64"}
_BYTES_AN_ELEMENT = 8 * (2 * len(_RUNS) + 7)
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
        parts: Devices that a sum may be spread over, each of which rounds what it hands on.
        notes: What was noticed of the reference on the way.
    """

    spreads: Sequence[Spread | None]
    relative: float
    parts: int
    failure: str = ""
    runs: Sequence[Sequence[Any]] = ()
    notes: tuple[str, ...] = ()


def measure(target: Run, reference: Run, job: Job, stage: Stage) -> Measured:
    """Runs the reference with its values moved, unless the user says what is allowed."""
    program = reference.program
    parts = job.devices if target.program.adds_across or program.adds_across else 1
    roundings = (target.program.rounding, program.rounding)
    relative = relative_tolerance(roundings, devices=parts, platform=job.platform)
    nothing = Measured(spreads=(), relative=relative, parts=parts)
    if job.settings.rtol is not None or job.settings.atol is not None:
        return nothing
    elements = sum(int(aval.size) for aval in program.seen.result_avals)
    if job.memory_bytes is not None and elements * _BYTES_AN_ELEMENT > machine.SHARE * job.memory_bytes:
        return replace(nothing, failure="its outputs are too large to keep several copies of")
    if program.traced is not None and not any(map(rounds, every_equation(program.traced.jaxpr))):
        exact = [[whole(shards, shape_of(shards), shards[0].values.dtype)] for shards in reference.outputs]
        return replace(nothing, spreads=_spreads(exact, target, reference), runs=exact)
    stage("measuring the effect of rounding on the reference")
    try:
        again = partial(executing.run_moved, program, reference.values, parts=parts, platform=job.platform)
        moved = [list(runs) for runs in zip(*again(runs=_RUNS), strict=True)]
        decided = [runs for runs in moved if not is_inexact(runs[0])]
        if any(run.tobytes() != runs[0].tobytes() for runs in decided for run in runs):
            more = zip(*again(runs=_RUNS_OF_DECISIONS), strict=True)
            moved = [runs if is_inexact(runs[0]) else [*runs, *rest] for runs, rest in zip(moved, more, strict=True)]
    except executing.UNEVALUABLE as error:
        return replace(nothing, failure=describe(error).splitlines()[0][:200])
    return replace(nothing, spreads=_spreads(moved, target, reference), runs=moved)


def over_other_splits(measured: Measured, target: Run, reference: Run, stage: Stage) -> Measured:
    """The same with what the reference gives when its arguments are split in other ways, as far as that is rounding.

    A right program is never off by more than the reference is from itself. Where another split gives numbers that
    rounding does not explain, they are not allowed but noted: the reference's value depends on its shardings.
    """
    if not measured.spreads:
        return measured
    stage("sharding the reference differently")
    runs, notes = [list(kept) for kept in measured.runs], []
    names = reference.program.seen.result_names
    for words, shardings in executing.other_splits(reference.program, target.program):
        try:
            outputs = executing.run_split(reference.program, reference.values, shardings)
        except executing.UNEVALUABLE:
            continue
        for name, kept, found, spread in zip(names, runs, outputs, measured.spreads, strict=True):
            differing = spreads.beyond(spread, found, _MOST_OF_A_SPLIT) if spread is not None else 0
            if differing:
                off = f"{plural(differing, 'element')} beyond {_MOST_OF_A_SPLIT:g} times what rounding explains"
                notes.append(f"the reference returns a different {name} when its arguments are {words}: {off}")
            else:
                kept.append(found)
    return replace(measured, spreads=_spreads(runs, target, reference), runs=runs, notes=tuple(notes))


def _spreads(runs: Sequence[Sequence[Any]], target: Run, reference: Run) -> list[Spread | None]:
    units = path_units(reference.program.traced) if reference.program.traced is not None else []
    beside = [*target.outputs, *[()] * len(reference.outputs)]
    rows = zip(reference.outputs, beside, runs, units, strict=False)
    return [_spread(shards, theirs, moved, unit) for shards, theirs, moved, unit in rows]


def _spread(shards: Sequence[Shard], beside: Sequence[Shard], moved: Sequence[Any], unit: float) -> Spread | None:
    """What rounding does to an output, of which the target's devices may hold other parts."""
    shape = shape_of(shards)
    if any(run.shape != shape for run in moved):
        return None
    expected = whole(shards, shape, shards[0].values.dtype)
    alike = [shard for shard in beside if shape_of(beside) == shape]
    regions = spreads.parts_of(shape, [region_of(shard) for shard in (*shards, *alike)])
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
    times = (spreads.scale_of(spread, values) or 0.0) / max(spread.scale, 1.0)
    bias = _bias(shards, values, spread, sizes)
    rough = Roughness(times=times) if times > spreads.SCALE_SAFETY else None
    if found.wrong:
        swapped = exchanged(shards, found.wrong_shards, expected, spread.allowed)
        kept = bias if bias is not None and bias.constant else None
        return replace(found, bias=kept, roughness=rough, exchanged=swapped)
    return replace(found, bias=None if rough and bias and not bias.constant else bias, roughness=rough)


def _bias(shards: Sequence[Shard], values: Any, spread: Spread, sizes: Mapping[float, str]) -> Bias | None:
    """How an output's errors lean: all of them together, or those of some devices."""
    everywhere = tuple(slice(0, size) for size in values.shape)
    lean, places = _leaning(values, everywhere, spread), tuple[str, ...]()
    if lean is None:
        leans = [(shard.place, _leaning(shard.values, region_of(shard), spread)) for shard in shards]
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
        explained=spreads.explained_ratio(spread),
    )


def _leaning(values: Any, region: spreads.Region, spread: Spread) -> spreads.Lean | None:
    lean = spreads.lean(spread, values, region)
    leans = lean is not None and (spreads.has_ratio(spread, lean) or spreads.leans(spread, lean, values.size))
    return lean if leans else None


def size_words(mesh: Any, values: Sequence[Any]) -> dict[float, str]:
    """What a ratio may be: the size of an axis, of all axes, or a length of an argument over the one below it."""
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
    for output, spread, divided in zip(filter(_is_verdict, comparisons), measured.spreads, counts, strict=False):
        if spread is None or not output.informative:
            continue
        is_an_array = spread.expected.size >= spreads.LEAST_ELEMENTS
        seen = spreads.explained_ratio(spread) if is_an_array else output.tolerance.relative
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
    """Whether it compares the programs themselves, and not one of them with something else."""
    return output.subject == "target" and output.against == "reference"


def with_own_rounding(
    comparisons: Sequence[OutputComparison], runs: Mapping[str, Run], measured: Measured, job: Job
) -> tuple[OutputComparison, ...]:
    """Says of wrong outputs whether the target's own rounding makes them so, which takes runs of the target."""
    target, reference = runs["target"], runs["reference"]
    names = list(target.program.seen.result_names)
    doubtful = [
        output
        for output in comparisons
        if _is_verdict(output) and output.name in names and (output.wrong or output.roughness)
    ]
    if not doubtful or not measured.spreads:
        return tuple(comparisons)
    again = partial(executing.run_moved, parts=measured.parts, platform=job.platform, runs=_RUNS_OF_TARGET)
    try:
        moved = again(target.program, target.values)
    except executing.UNEVALUABLE:
        return tuple(comparisons)

    torn = {output.name for output in comparisons if output.against == COPIES and output.wrong}

    def explained(output: OutputComparison) -> OutputComparison:
        index = names.index(output.name)
        runs_of_it, spread = [run[index] for run in moved], measured.spreads[index]
        differ = output.name in torn
        rough = _own_roughness(index, runs_of_it, target, reference, spread, copies_differ=differ)
        return output if rough is None else replace(output, roughness=rough)

    return tuple(explained(output) if output in doubtful else output for output in comparisons)


def _own_roughness(
    index: int,
    moved: Sequence[Any],
    target: Run,
    reference: Run,
    spread: Spread | None,
    *,
    copies_differ: bool,
) -> Roughness | None:
    """The errors of an output as the target's own rounding, if that is large enough to explain them."""
    if spread is None:
        return None
    shards = target.outputs[index]
    values = whole(shards, spread.expected.shape, shards[0].values.dtype)
    error = spreads.scale_of(spread, values)
    first, *others = moved if copies_differ else (values, *moved)  # runs read the same copies, whichever that are
    around = spread.around(first)
    own = max((spreads.scale_of(around, run) or 0.0 for run in others), default=0.0)
    usual = max(spread.scale, 1.0)
    if not error or own**2 < _SHARE_EXPLAINED * error**2 or own < _TIMES_AS_ROUGH * usual:
        return None
    return Roughness(times=error / usual, own=True, words=_rounding_words(target, reference, index))


def _rounding_words(target: Run, reference: Run, index: int) -> str:
    """What the target rounds that the reference does not."""
    traced = target.program.traced, reference.program.traced
    if traced[0] is None or traced[1] is None:
        return ""
    carried, theirs = narrow_carry(traced[0]), narrow_carry(traced[1])
    if carried and carried != theirs:
        return f"in the program, {carried}"
    units = [path_units(closed)[index] for closed in traced]
    if units[0] > units[1]:
        wider = _NAMES.get(units[1], "no type that narrow")
        return (
            f"the program rounds intermediates to {_NAMES.get(units[0], 'a narrow type')}, and the reference to {wider}"
        )
    return ""


def shape_of(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The dimensions of the whole array."""
    return tuple(max(part.stop for part in parts) for parts in zip(*map(region_of, shards), strict=True))
