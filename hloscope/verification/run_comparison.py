"""The compared runs, output by output, each pair with its tolerance; and the parts that their inputs do not test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope.base.errors import HloscopeError, TargetError, describe_exception
from hloscope.base.units import pluralize
from hloscope.compile.jax_private import count_scan_values
from hloscope.verification import executing
from hloscope.verification.differences import (
    OutputShard,
    as_double,
    assemble_shards,
    compare_shards,
    compute_allowed,
    compute_root_mean_square,
    find_region,
    is_inexact,
    make_tolerance,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.jaxpr_facts import find_bodies, find_path_units, follow_program
from hloscope.verification.job import Draw, Function, Stage, VerificationJob, draw_values
from hloscope.verification.model import COPIES, OutputComparison, Untested
from hloscope.verification.noise import make_exact
from hloscope.verification.rounding import (
    MeasuredRounding,
    ProgramRun,
    describe_sizes,
    find_global_shape,
    judge_by_spread,
    measure_other_splits,
    measure_rounding,
    time_run,
)

# ---- outputs that are an argument with a small update, such as new parameters: the update itself must be right
#
# The rounding of the parameters hides a wrong update, in bf16 all of it. So both programs are run with the argument
# removed from the sum, which leaves the update.

_SMALL = 0.25
"""The largest difference, as a share of an argument's size, at which an output counts as the changed argument."""

_KNOWN = 100
"""The least size of a change, in multiples of the output's tolerance, that need not be compared by itself."""

_LOOKED_AT = 4096
"""The elements of an output and of an argument that are compared first."""

_PASSING = frozenset(
    "convert_element_type reduce_precision copy sharding_constraint mesh_cast reshard pvary pcast name device_put "
    "stop_gradient layout_constraint optimization_barrier".split()
)
"""Operations whose result equals their operand, element by element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArgumentOrigin:
    """The origin of a value: an argument, by position, or the sum of one and something else.

    Attributes:
        argument: The argument's position; None for anything else.
        added: The position of the argument in a sum; None for any other value.
        sums: The operand that is the argument, for each operation (by id) that adds to an argument.
    """

    argument: int | None = None
    added: int | None = None
    sums: tuple[tuple[int, int], ...] = ()


_NOTHING = _ArgumentOrigin()


def _find_origins(program: Prepared) -> list[_ArgumentOrigin]:
    """The origin of each output of a program; empty without a trace of the program."""
    if program.traced is None:
        return []
    given = [_ArgumentOrigin(argument=place) for place in range(len(program.traced.jaxpr.invars))]
    return follow_program(program.traced, given, _NOTHING, _follow_step)


def _follow_step(eqn: Any, known: list[_ArgumentOrigin]) -> list[_ArgumentOrigin]:
    name = eqn.primitive.name
    if name == "shard_map":
        return follow_program(eqn.params["jaxpr"], known, _NOTHING, _follow_step)
    if name in ("scan", "while"):
        return _follow_loop(eqn, known)
    if name in _PASSING and len(known) == len(eqn.outvars):
        return known
    if name in ("add", "add_any", "sub"):
        return [_follow_sum(eqn, known)]
    if name == "select_n":  # as of a step that is left out where a gradient is not finite
        return [next((origin for origin in known[1:] if origin.sums), _NOTHING)]
    return [_NOTHING] * len(eqn.outvars)


def _follow_loop(eqn: Any, known: list[_ArgumentOrigin]) -> list[_ArgumentOrigin]:
    """The origins after a loop: the arguments that it carries unchanged."""
    ((body, given),) = find_bodies(eqn, known, lambda _: _NOTHING, lambda origin, _: origin)
    consts = count_scan_values(eqn.params)[0] if eqn.primitive.name == "scan" else eqn.params["body_nconsts"]
    after = follow_program(body, given, _NOTHING, _follow_step)
    kept = [
        was if was == now and was.argument is not None else _NOTHING
        for was, now in zip(given[consts:], after, strict=False)
    ]
    return kept + [_NOTHING] * (len(eqn.outvars) - len(kept))


def _follow_sum(eqn: Any, known: Sequence[_ArgumentOrigin]) -> _ArgumentOrigin:
    """The origin of a sum or difference: a sum with an argument stays one when more is added."""
    left, right = known
    if left.sums or right.sums:
        is_one = not (left.sums and right.sums) and (left.sums or eqn.primitive.name != "sub")
        return (left if left.sums else right) if is_one else _NOTHING
    places = [place for place, origin in enumerate(known) if origin.argument is not None]
    if len(places) != 1 or (eqn.primitive.name == "sub" and places[0]):
        return _NOTHING
    same = eqn.invars[places[0]].aval.shape == eqn.outvars[0].aval.shape
    return _ArgumentOrigin(added=known[places[0]].argument, sums=((id(eqn), places[0]),)) if same else _NOTHING


def find_small_changes(reference: ProgramRun, measured: MeasuredRounding) -> dict[int, int]:
    """The outputs that are arguments with changes too small to judge within them: argument positions by output's.

    If only a part of an output is changed, as in a cache, that part decides.

    Args:
        reference: The reference after a run.
        measured: The effect of rounding on its outputs.
    """
    found = {}
    program = reference.program
    units = find_path_units(program.traced) if program.traced is not None else []
    rows = zip(reference.outputs, _find_origins(program), units, strict=False)
    for place, (shards, origin, unit) in enumerate(rows):
        output = assemble_shards(shards, find_global_shape(shards), shards[0].values.dtype)
        argument = _find_similar_argument(output, reference.values)
        if argument is None or origin.argument is not None:
            continue
        change = as_double(output) - as_double(reference.values[argument])
        changed = change[change != 0]
        is_lost = not changed.size and unit > 2.0**-23  # in wider types it is no rounding that hides all of it
        if is_lost or 0 < compute_root_mean_square(changed) < _KNOWN * _find_allowed_error(place, output, measured):
            found[place] = argument
    return found


def make_unchanged_run(reference: ProgramRun, changes: Mapping[int, int]) -> ProgramRun:
    """The run of a program that returns the original arguments in place of some outputs.

    Args:
        reference: The run to compare it with.
        changes: The position of the argument, by the output's position.
    """

    def argument(shards: Sequence[OutputShard], place: int) -> tuple[OutputShard, ...]:
        values = np.asarray(reference.values[place])
        return tuple(replace(shard, values=values[find_region(shard)].astype(shard.values.dtype)) for shard in shards)

    outputs = enumerate(reference.outputs)
    kept = [argument(shards, changes[place]) if place in changes else shards for place, shards in outputs]
    return replace(reference, outputs=kept)


def _find_similar_argument(output: Any, values: Sequence[Any]) -> int | None:
    """The position of the argument that an output differs little from, or None."""
    for place, value in enumerate(values if is_inexact(output) and output.size else ()):
        if np.shape(value) != output.shape or executing.is_key(value) or not is_inexact(value):
            continue
        first, second = (np.ravel(array)[:_LOOKED_AT] for array in (value, output))
        if compute_root_mean_square(as_double(second) - as_double(first)) < _SMALL * compute_root_mean_square(first):
            return place
    return None


def _find_allowed_error(place: int, output: Any, measured: MeasuredRounding) -> float:
    """The allowed error of an output of typical size."""
    spread = measured.spreads[place] if place < len(measured.spreads) else None
    if spread is None:
        return measured.relative * compute_root_mean_square(output)
    return compute_root_mean_square(spread.allowed)


def find_separable_changes(target: Prepared, reference: Prepared, changes: Mapping[int, int]) -> list[int]:
    """The outputs whose change can be separated in both programs: those with an addition to the argument."""
    ours, theirs = _find_origins(target), _find_origins(reference)
    return [
        output
        for output, argument in changes.items()
        if output < min(len(ours), len(theirs))
        and theirs[output].added == argument
        and argument in (ours[output].added, ours[output].argument)
    ]


def prepare_changes(program: Prepared, outputs: Sequence[int]) -> Prepared:
    """Compiles a program that returns, for some outputs, only the addition to their argument.

    Args:
        program: The program.
        outputs: Positions of outputs; each must be such a sum, or the unchanged argument.

    Raises:
        HloscopeError: JAX refuses it.
    """
    closed = program.trace("run without adding its arguments")
    origins = _find_origins(program)
    without = {sum_id: operand for place in outputs for sum_id, operand in origins[place].sums}
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=executing.find_sharding(program, place))
        for place, aval in enumerate(program.seen.argument_avals)
    ]
    facts = replace(program.lowered.facts, args=tuple(arguments), kwargs={}, out=None, static={}, donate=None)
    zeros = {place for place in outputs if not origins[place].sums}
    found = executing.prepare_program(
        _make_function_returning(closed, outputs, zeros, without), facts, program.lowered.name
    )
    names = tuple(f"change of {program.seen.result_names[place]}" for place in outputs)
    return replace(found, seen=replace(found.seen, result_names=names))


def _make_function_returning(
    closed: Any, outputs: Sequence[int], zeros: Collection[int], without: Mapping[int, int]
) -> Function:
    evaluated = make_exact(closed, alone=False, without=without)

    def changes(*values: Any) -> list[Any]:
        found = evaluated(*values)
        return [found[place] * 0 if place in zeros else found[place] for place in outputs]

    return changes


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
