"""The compared runs, output by output, each pair with its tolerance; and the parts that their inputs do not test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope.errors import HloscopeError, TargetError
from hloscope.program.loading import describe_exception
from hloscope.units import pluralize
from hloscope.verification import executing
from hloscope.verification.changes import (
    find_separable_changes,
    find_small_changes,
    make_unchanged_run,
    prepare_changes,
)
from hloscope.verification.differences import (
    OutputShard,
    assemble_shards,
    compare_shards,
    compute_allowed,
    compute_root_mean_square,
    make_tolerance,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Stage, VerificationJob
from hloscope.verification.measuring import (
    MeasuredRounding,
    ProgramRun,
    describe_sizes,
    find_global_shape,
    judge_by_spread,
    measure_other_splits,
    measure_rounding,
    time_run,
)
from hloscope.verification.model import COPIES, OutputComparison, Untested
from hloscope.verification.values import Draw, draw_values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRuns:
    """The comparisons, the outputs that could not be compared with reasons, and the runs behind them."""

    comparisons: tuple[OutputComparison, ...]
    not_compared: dict[str, str]
    measured: MeasuredRounding
    runs: Mapping[str, ProgramRun]
    notes: tuple[str, ...]
    hidden: tuple[Untested, ...] = ()


_More = tuple[list[OutputComparison], list[str]]
"""Additional comparisons, with notes on them."""


def compare_runs(
    prepared: Mapping[str, Prepared], values: Sequence[Any], job: VerificationJob, stage: Stage
) -> ComparedRuns:
    """Runs both programs on these values and compares them, with all other comparisons that the job requests."""
    runs = {}
    for role, program in prepared.items():
        stage(f"running the {role}")
        runs[role] = time_run(program, values)
    measured, found = _compare_with_reference(runs, job, stage)
    for role, run in runs.items():
        found += _compare_own_copies(run, job, measured, subject=role)
    changes, hidden = _compare_changes(runs, job, measured, stage)
    found += changes
    not_compared, notes = _find_left_out(runs["target"], runs["reference"]), list(measured.notes)
    for is_wanted, what, extra in (
        (job.settings.against_single_device, "single device", _compare_with_single_device),
        (job.settings.grad, "gradients", _compare_gradients),
    ):
        if not is_wanted:
            continue
        stage(f"running the {what}")
        try:
            more, of_more = extra(runs, job, measured)
        except (HloscopeError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
            not_compared[what] = error.on_one_line() if isinstance(error, HloscopeError) else describe_exception(error)
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


def _compare_changes(
    runs: Mapping[str, ProgramRun], job: VerificationJob, measured: MeasuredRounding, stage: Stage
) -> tuple[list[OutputComparison], list[Untested]]:
    """Compares separately the small changes that make outputs of arguments, and reports which cannot be compared."""
    target, reference = runs["target"], runs["reference"]
    changes = find_small_changes(reference, measured)
    asked = job.settings.rtol is not None or job.settings.atol is not None
    places = [] if asked or not changes else find_separable_changes(target.program, reference.program, changes)
    found: list[OutputComparison] = []
    if places:
        stage("running both for the changes to their arguments")
        try:
            ran = {role: time_run(prepare_changes(run.program, places), run.values) for role, run in runs.items()}
            # of what is told beside the whole output, elements near zero say nothing against it
            found = [replace(output, blind_shards=()) for output in _compare_with_reference(ran, job, stage)[1]]
        except executing.UNEVALUABLE:
            places = []
    left = {place: argument for place, argument in changes.items() if place not in places}
    return found, list(_find_hidden(reference, left, job, measured)) if left else []


def _find_hidden(
    reference: ProgramRun, changes: Mapping[int, int], job: VerificationJob, measured: MeasuredRounding
) -> Iterator[Untested]:
    """The changed arguments whose output would pass with the argument itself in most elements."""
    words = {"subject": "target", "against": "reference"}
    beside = list(
        compare_outputs(make_unchanged_run(reference, changes), reference, job=job, measured=measured, **words)
    )
    for place, argument in changes.items():
        output = beside[place]
        if 2 * output.wrong < output.elements and output.bias is None and output.roughness is None:
            name = reference.program.seen.argument_names[argument]
            yield Untested(argument=name, shards=(), parts=1, changed=output.name)


def _compare_with_single_device(
    runs: Mapping[str, ProgramRun], job: VerificationJob, measured: MeasuredRounding
) -> _More:
    chosen = next((role for role, run in runs.items() if not run.program.is_manual), None)
    program = runs[chosen or "target"].program
    if chosen is None or not isinstance(program.lowered.facts.mesh, Mapping):
        raise TargetError(
            "neither program can be run on one device",
            why="both are per-device programs of shard_map" if chosen is None else "the mesh is the program's own",
            fix="pass the mesh as names and sizes, and a target or reference that jax.jit shards",
        )
    facts = replace(program.lowered.facts, mesh=dict.fromkeys(program.lowered.facts.mesh, 1))
    single = time_run(executing.prepare_program(program.function, facts, program.lowered.name), runs[chosen].values)
    against = f"the {chosen} on a single device"
    found = [
        output
        for role, run in runs.items()
        for output in compare_outputs(run, single, job=job, measured=measured, subject=role, against=against)
    ]
    return found, []


def _compare_gradients(runs: Mapping[str, ProgramRun], job: VerificationJob, _: MeasuredRounding) -> _More:
    ran = {}
    for role, run in runs.items():
        pulled, values = executing.prepare_gradient(run.program), run.values
        own = pulled.seen.argument_avals[: len(pulled.seen.argument_avals) - len(values)]
        rows = enumerate(own, start=len(values))
        cotangents = [draw_value(aval, Draw(), job.settings.seed, position) for position, aval in rows]
        ran[role] = time_run(pulled, [*cotangents, *values])
    measured, found = _compare_with_reference(ran, job, lambda _: None)
    return found, list(measured.notes)


def _compare_with_reference(
    runs: Mapping[str, ProgramRun], job: VerificationJob, stage: Stage
) -> tuple[MeasuredRounding, list[OutputComparison]]:
    """Compares both programs; before a difference is reported, the reference is also split in other ways."""
    target, reference = runs["target"], runs["reference"]

    def judged(measured: MeasuredRounding) -> list[OutputComparison]:
        return list(
            compare_outputs(target, reference, job=job, measured=measured, subject="target", against="reference")
        )

    measured = measure_rounding(target, reference, job, stage)
    found = judged(measured)
    if all(output.agrees for output in found):
        return measured, found
    measured = measure_other_splits(measured, target, reference, stage)
    return measured, judged(measured)


def compare_outputs(
    mine: ProgramRun,
    theirs: ProgramRun,
    *,
    job: VerificationJob,
    measured: MeasuredRounding,
    subject: str,
    against: str,
) -> Iterator[OutputComparison]:
    """Compares each output of one run with that of the other; outputs of different shapes are left out.

    Args:
        mine: The run to judge.
        theirs: The run whose values are expected.
        job: With the user's own tolerances.
        measured: The effect of rounding on the outputs.
        subject: The name of the run `mine`.
        against: The name of the run `theirs`.
    """
    sizes = describe_sizes(mine.program.lowered.mesh or theirs.program.lowered.mesh, mine.values)
    rows = zip(mine.program.seen.result_names, mine.outputs, theirs.outputs, strict=False)
    for index, (name, found, expected_shards) in enumerate(rows):
        shape = find_global_shape(expected_shards)
        if find_global_shape(found) != shape:
            continue
        expected = assemble_shards(expected_shards, shape, expected_shards[0].values.dtype)
        words = {"name": name, "subject": subject, "against": against}
        spread = measured.spreads[index] if index < len(measured.spreads) else None
        if spread is None:
            asked = job.settings
            tolerance = make_tolerance(
                measured.relative, compute_root_mean_square(expected), rtol=asked.rtol, atol=asked.atol
            )
            output = compare_shards(found, expected, compute_allowed(tolerance, expected), **words)
            output = replace(output, tolerance=tolerance)
        else:
            output = judge_by_spread(found, expected, spread.around(expected), sizes=sizes, **words)
        yield replace(output, error_map=None) if output.agrees else output


def _find_left_out(mine: ProgramRun, theirs: ProgramRun) -> dict[str, str]:
    """The outputs that `compare_outputs` leaves out, with reasons: at other sizes two programs may differ anew."""
    names = mine.program.seen.result_names
    rows = zip(names, mine.outputs, theirs.outputs, strict=False)
    shapes = {
        f"output {name}": (find_global_shape(found), find_global_shape(expected)) for name, found, expected in rows
    }
    unlike = {name: both for name, both in shapes.items() if both[0] != both[1]}
    if not shapes or len(unlike) == len(shapes):
        return {}  # that nothing is compared is a finding of its own
    return {
        name: f"its shape is {list(found)}, but {list(expected)} in the reference"
        for name, (found, expected) in unlike.items()
    }


def _compare_own_copies(
    run: ProgramRun, job: VerificationJob, measured: MeasuredRounding, *, subject: str
) -> Iterator[OutputComparison]:
    """A program's copies of its outputs on several devices, if they differ by more than rounding."""
    if not any(map(_differ, run.outputs)):
        return
    found = compare_outputs(run, run, job=job, measured=measured, subject=subject, against=COPIES)
    yield from (output for output in found if not output.agrees)


def _differ(shards: Sequence[OutputShard]) -> bool:
    """Returns whether two devices hold the same part of an output with different values."""
    first: dict[tuple[Any, ...], Any] = {}
    for shard in shards:
        known = first.setdefault((shard.start, shard.values.shape), shard.values)
        if known is not shard.values and known.tobytes() != shard.values.tobytes():
            return True
    return False


def draw_value(aval: Any, draw: Draw, seed: int, position: int) -> Any:
    """A value for an argument, including random keys."""
    if executing.is_key(aval):
        return executing.make_key(aval, seed, position)
    return draw_values(aval.dtype, aval.shape, draw, seed=seed, position=position)


ShardPlaces = tuple[tuple[slice, ...], tuple[str, ...]]

_PATIENCE_S = 1.0
"""The time of runs with changed shards beyond which a reverse pass, which must be compiled, is quicker."""

_MOST_CHANGES = 128
"""The most runs with a changed shard."""


def find_untested(
    target: Prepared, reference: ProgramRun, another: Callable[[int], Any], *, patience_s: float
) -> tuple[Untested, ...]:
    """Finds the shards of arguments that the reference's outputs do not depend on.

    Arguments that the reference does not read, and donated ones that are only overwritten, are left out. If changing
    every shard of an argument would take too long it is changed as a whole, and its parts are reported as not tried;
    once that takes too long as well, all remaining arguments are reported as not tried, in one.

    Args:
        target: The target; its shards count as well as the reference's.
        reference: The reference after a run.
        another: Other random values for the argument at a position.
        patience_s: Time limit of all runs with changed shards, in seconds.
    """
    program = reference.program
    read = set(program.seen.kept)
    cuts = {position: max((_find_parts(position, each) for each in (target, program)), key=len) for position in read}
    takes_long = reference.seconds * sum(map(len, cuts.values())) > _PATIENCE_S
    silent = _make_gradient_test(program, reference.values) if takes_long else None
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
        name = f"{first} and {pluralize(len(others), 'other argument')}" if others else first
        found.append(Untested(argument=name, shards=(), parts=sum(left.values()), tried=False))
    return tuple(found)


def _make_gradient_test(program: Prepared, values: Sequence[Any]) -> Callable[[int, tuple[slice, ...]], bool] | None:
    """A test whether a part of an argument has no gradient, or an unknown one; None if JAX cannot differentiate."""
    floats = [position for position, value in enumerate(values) if jnp.issubdtype(value.dtype, jnp.floating)]
    if not floats:
        return lambda position, region: True
    try:
        gradients = dict(zip(floats, executing.compute_gradients(program, values, floats), strict=True))
    except executing.UNEVALUABLE:
        return None

    def silent(position: int, region: tuple[slice, ...]) -> bool:
        return position not in gradients or not np.any(gradients[position][region] != 0)

    return silent


def _find_parts(position: int, program: Prepared) -> list[ShardPlaces]:
    """The parts of an argument, each with the devices that hold it."""
    shape = tuple(program.seen.argument_avals[position].shape)
    everything: list[ShardPlaces] = [(tuple(slice(0, size) for size in shape), ())]
    sharding = executing.find_sharding(program, position)
    if sharding is None:
        return everything
    held: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for device, region in sharding.devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(region, shape, strict=True))
        held.setdefault(bounds, []).append(executing.format_mesh_position(device, program.lowered.mesh))
    return [(tuple(slice(*ends) for ends in bounds), tuple(places)) for bounds, places in held.items()]


def _changes_nothing(reference: ProgramRun, position: int, region: tuple[slice, ...], fresh: Any) -> bool:
    """Returns whether the reference gives the same bits with other values in a part of an argument."""
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
    again = executing.run_program(reference.program, values)
    pairs = (pair for outputs in zip(reference.outputs, again, strict=True) for pair in zip(*outputs, strict=True))
    return all(before.values.tobytes() == after.values.tobytes() for before, after in pairs)
