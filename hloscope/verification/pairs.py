"""The runs that are compared, output by output, each pair with its tolerance; and what their inputs say nothing of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope.errors import HloscopeError, TargetError
from hloscope.program.loading import describe
from hloscope.units import plural
from hloscope.verification import executing
from hloscope.verification.changes import prepare_changes, small_changes, told_apart, unchanged
from hloscope.verification.differences import Shard, allowed_by, compare_shards, root_mean_square, tolerance_at, whole
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Job, Stage
from hloscope.verification.measuring import (
    Measured,
    Run,
    judged_by_spread,
    measure,
    over_other_splits,
    run_of,
    shape_of,
    size_words,
)
from hloscope.verification.model import COPIES, OutputComparison, Untested
from hloscope.verification.values import Draw, random_values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRuns:
    """The comparisons, what could not be compared and why, and what they stand on."""

    comparisons: tuple[OutputComparison, ...]
    not_compared: dict[str, str]
    measured: Measured
    runs: Mapping[str, Run]
    notes: tuple[str, ...]
    hidden: tuple[Untested, ...] = ()


_More = tuple[list[OutputComparison], list[str]]
"""What else was compared, and notes on it."""


def compare(prepared: Mapping[str, Prepared], values: Sequence[Any], job: Job, stage: Stage) -> ComparedRuns:
    """Runs both programs on these values and compares them, and whatever else the job asks for."""
    runs = {}
    for role, program in prepared.items():
        stage(f"running the {role}")
        runs[role] = run_of(program, values)
    measured, found = _beside_reference(runs, job, stage)
    for role, run in runs.items():
        found += _own_copies(run, job, measured, subject=role)
    changes, hidden = _changes(runs, job, measured, stage)
    found += changes
    not_compared, notes = _left_out(runs["target"], runs["reference"]), list(measured.notes)
    for is_wanted, what, extra in (
        (job.settings.against_single_device, "single device", _against_single_device),
        (job.settings.grad, "gradients", _gradients),
    ):
        if not is_wanted:
            continue
        stage(f"running the {what}")
        try:
            more, of_more = extra(runs, job, measured)
        except (HloscopeError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
            not_compared[what] = error.on_one_line() if isinstance(error, HloscopeError) else describe(error)
        else:
            found, notes = found + more, notes + of_more
    return ComparedRuns(
        comparisons=tuple(found),
        not_compared=not_compared,
        measured=measured,
        runs=runs,
        notes=tuple(notes),
        hidden=tuple(hidden),
    )


def _changes(
    runs: Mapping[str, Run], job: Job, measured: Measured, stage: Stage
) -> tuple[list[OutputComparison], list[Untested]]:
    """Compares by themselves the small changes that make outputs of arguments, and says which cannot be compared."""
    target, reference = runs["target"], runs["reference"]
    changes = small_changes(reference, measured)
    asked = job.settings.rtol is not None or job.settings.atol is not None
    places = [] if asked or not changes else told_apart(target.program, reference.program, changes)
    found: list[OutputComparison] = []
    if places:
        stage("running both for the changes to their arguments")
        try:
            ran = {role: run_of(prepare_changes(run.program, places), run.values) for role, run in runs.items()}
            # of what is told beside the whole output, elements near zero say nothing against it
            found = [replace(output, blind_shards=()) for output in _beside_reference(ran, job, stage)[1]]
        except executing.UNEVALUABLE:
            places = []
    left = {place: argument for place, argument in changes.items() if place not in places}
    return found, list(_hidden(reference, left, job, measured)) if left else []


def _hidden(reference: Run, changes: Mapping[int, int], job: Job, measured: Measured) -> Iterator[Untested]:
    """Of outputs that are changed arguments, those of which most of the argument itself would pass."""
    words = {"subject": "target", "against": "reference"}
    beside = list(compared(unchanged(reference, changes), reference, job=job, measured=measured, **words))
    for place, argument in changes.items():
        output = beside[place]
        if 2 * output.wrong < output.elements and output.bias is None and output.roughness is None:
            name = reference.program.seen.argument_names[argument]
            yield Untested(argument=name, shards=(), parts=1, changed=output.name)


def _against_single_device(runs: Mapping[str, Run], job: Job, measured: Measured) -> _More:
    chosen = next((role for role, run in runs.items() if not run.program.is_manual), None)
    program = runs[chosen or "target"].program
    if chosen is None or not isinstance(program.lowered.facts.mesh, Mapping):
        raise TargetError(
            "neither program can be run on one device",
            why="both are per-device programs of shard_map" if chosen is None else "the mesh is the program's own",
            fix="pass the mesh as names and sizes, and a target or reference that jax.jit shards",
        )
    facts = replace(program.lowered.facts, mesh=dict.fromkeys(program.lowered.facts.mesh, 1))
    single = run_of(executing.prepare(program.function, facts, program.lowered.name), runs[chosen].values)
    against = f"the {chosen} on a single device"
    found = [
        output
        for role, run in runs.items()
        for output in compared(run, single, job=job, measured=measured, subject=role, against=against)
    ]
    return found, []


def _gradients(runs: Mapping[str, Run], job: Job, _: Measured) -> _More:
    ran = {}
    for role, run in runs.items():
        pulled, values = executing.prepare_gradient(run.program), run.values
        own = pulled.seen.argument_avals[: len(pulled.seen.argument_avals) - len(values)]
        rows = enumerate(own, start=len(values))
        cotangents = [random_value(aval, Draw(), job.settings.seed, position) for position, aval in rows]
        ran[role] = run_of(pulled, [*cotangents, *values])
    measured, found = _beside_reference(ran, job, lambda _: None)
    return found, list(measured.notes)


def _beside_reference(runs: Mapping[str, Run], job: Job, stage: Stage) -> tuple[Measured, list[OutputComparison]]:
    """Compares both; before a difference is reported, the reference is split in other ways too."""
    target, reference = runs["target"], runs["reference"]

    def judged(measured: Measured) -> list[OutputComparison]:
        return list(compared(target, reference, job=job, measured=measured, subject="target", against="reference"))

    measured = measure(target, reference, job, stage)
    found = judged(measured)
    if all(output.agrees for output in found):
        return measured, found
    measured = over_other_splits(measured, target, reference, stage)
    return measured, judged(measured)


def compared(
    mine: Run, theirs: Run, *, job: Job, measured: Measured, subject: str, against: str
) -> Iterator[OutputComparison]:
    """Each output of one run beside the same output of the other; outputs of different shapes are left out.

    Args:
        mine: The run to judge.
        theirs: The run whose values are expected.
        job: With the user's own tolerances.
        measured: What rounding does to the outputs.
        subject: Whose run `mine` is.
        against: Whose run `theirs` is.
    """
    sizes = size_words(mine.program.lowered.mesh or theirs.program.lowered.mesh, mine.values)
    rows = zip(mine.program.seen.result_names, mine.outputs, theirs.outputs, strict=False)
    for index, (name, found, expected_shards) in enumerate(rows):
        shape = shape_of(expected_shards)
        if shape_of(found) != shape:
            continue
        expected = whole(expected_shards, shape, expected_shards[0].values.dtype)
        words = {"name": name, "subject": subject, "against": against}
        spread = measured.spreads[index] if index < len(measured.spreads) else None
        if spread is None:
            asked = job.settings
            tolerance = tolerance_at(measured.relative, root_mean_square(expected), rtol=asked.rtol, atol=asked.atol)
            output = compare_shards(found, expected, allowed_by(tolerance, expected), **words)
            output = replace(output, tolerance=tolerance)
        else:
            output = judged_by_spread(found, expected, spread.around(expected), sizes=sizes, **words)
        yield replace(output, error_map=None) if output.agrees else output


def _left_out(mine: Run, theirs: Run) -> dict[str, str]:
    """The outputs that `compared` leaves out, and why: at other sizes two programs may differ where they did not."""
    names = mine.program.seen.result_names
    rows = zip(names, mine.outputs, theirs.outputs, strict=False)
    shapes = {f"output {name}": (shape_of(found), shape_of(expected)) for name, found, expected in rows}
    unlike = {name: both for name, both in shapes.items() if both[0] != both[1]}
    if not shapes or len(unlike) == len(shapes):
        return {}  # that nothing is compared is a finding of its own
    return {
        name: f"its shape is {list(found)}, but {list(expected)} in the reference"
        for name, (found, expected) in unlike.items()
    }


def _own_copies(run: Run, job: Job, measured: Measured, *, subject: str) -> Iterator[OutputComparison]:
    """A program's copies of its outputs on several devices, where they differ by more than rounding."""
    if not any(map(_differ, run.outputs)):
        return
    found = compared(run, run, job=job, measured=measured, subject=subject, against=COPIES)
    yield from (output for output in found if not output.agrees)


def _differ(shards: Sequence[Shard]) -> bool:
    """Whether two devices hold the same part of an output and other values."""
    first: dict[tuple[Any, ...], Any] = {}
    for shard in shards:
        known = first.setdefault((shard.start, shard.values.shape), shard.values)
        if known is not shard.values and known.tobytes() != shard.values.tobytes():
            return True
    return False


def random_value(aval: Any, draw: Draw, seed: int, position: int) -> Any:
    """A value for an argument, random keys included."""
    if executing.is_key(aval):
        return executing.make_key(aval, seed, position)
    return random_values(aval.dtype, aval.shape, draw, seed=seed, position=position)


Place = tuple[tuple[slice, ...], tuple[str, ...]]

_PATIENCE_S = 1.0
"""Seconds of runs with changed shards beyond which a reverse pass, which has to be compiled, is quicker."""

_MOST_CHANGES = 128
"""Runs with a changed shard at most."""


def untested(
    target: Prepared, reference: Run, another: Callable[[int], Any], *, patience_s: float
) -> tuple[Untested, ...]:
    """Finds the shards of arguments that the reference's outputs do not depend on.

    Arguments that the reference does not read, and donated ones that are only overwritten, are left out. Where changing
    every shard of an argument would take too long it is changed as a whole, and its parts are reported as not tried;
    once that takes too long as well, all arguments that are left are reported as not tried, in one.

    Args:
        target: The target; its shards count as well as the reference's.
        reference: The reference after a run.
        another: Other random values for the argument at a position.
        patience_s: Seconds that all runs with changed shards may take.
    """
    program = reference.program
    read = set(program.seen.kept)
    cuts = {position: max((_cut(position, each) for each in (target, program)), key=len) for position in read}
    takes_long = reference.seconds * sum(map(len, cuts.values())) > _PATIENCE_S
    silent = _without_gradient(program, reference.values) if takes_long else None
    most = min(_MOST_CHANGES, int(max(patience_s, _PATIENCE_S) / reference.seconds))
    found, changes, left = [], 0, {}
    for position, name in enumerate(program.seen.argument_names):
        value = reference.values[position]
        if position not in read or not np.size(value):
            continue
        places = cuts[position]
        doubtful = [place for place in places if silent is None or silent(position, place[0])]
        if doubtful and changes >= max(most, 1):
            left[name] = len(places)
            continue
        if changes + len(doubtful) > most and len(doubtful) > 1:
            found.append(Untested(argument=name, shards=(), parts=len(places), tried=False))
            doubtful = [(tuple(slice(None) for _ in np.shape(value)), ())]
        changes += len(doubtful)
        fresh = another(position) if doubtful else None
        idle = [place for place in doubtful if _changes_nothing(reference, position, place[0], fresh)]
        donated = target.seen.donated[position] or program.seen.donated[position]
        if idle and not (donated and len(idle) == len(places)):
            shards = tuple(place for _, held in idle for place in held)
            found.append(Untested(argument=name, shards=shards if len(idle) < len(places) else (), parts=len(places)))
    if left:
        first, *others = left
        name = f"{first} and {plural(len(others), 'other argument')}" if others else first
        found.append(Untested(argument=name, shards=(), parts=sum(left.values()), tried=False))
    return tuple(found)


def _without_gradient(program: Prepared, values: Sequence[Any]) -> Callable[[int, tuple[slice, ...]], bool] | None:
    """Whether a part of an argument has no gradient, or none can be said; None where JAX cannot differentiate."""
    floats = [position for position, value in enumerate(values) if jnp.issubdtype(value.dtype, jnp.floating)]
    if not floats:
        return lambda position, region: True
    try:
        gradients = dict(zip(floats, executing.gradients(program, values, floats), strict=True))
    except executing.UNEVALUABLE:
        return None

    def silent(position: int, region: tuple[slice, ...]) -> bool:
        return position not in gradients or not np.any(gradients[position][region] != 0)

    return silent


def _cut(position: int, program: Prepared) -> list[Place]:
    """The parts of an argument that devices hold, and which devices those are."""
    shape = tuple(program.seen.argument_avals[position].shape)
    everything: list[Place] = [(tuple(slice(0, size) for size in shape), ())]
    sharding = executing.sharding_of(program, position)
    if sharding is None:
        return everything
    held: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for device, region in sharding.devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(region, shape, strict=True))
        held.setdefault(bounds, []).append(executing.place_of(device, program.lowered.mesh))
    return [(tuple(slice(*ends) for ends in bounds), tuple(places)) for bounds, places in held.items()]


def _changes_nothing(reference: Run, position: int, region: tuple[slice, ...], fresh: Any) -> bool:
    """Whether the reference gives the same, to the bit, with other values in a part of an argument."""
    values = list(reference.values)
    if executing.is_key(values[position]):
        values[position] = fresh
    else:
        changed = np.array(values[position])
        same = changed[region].tobytes() == fresh[region].tobytes()
        changed[region] = fresh[region]
        if same:
            return False  # a range of one value: nothing can be said
        values[position] = changed
    again = executing.run(reference.program, values)
    pairs = (pair for outputs in zip(reference.outputs, again, strict=True) for pair in zip(*outputs, strict=True))
    return all(before.values.tobytes() == after.values.tobytes() for before, after in pairs)
