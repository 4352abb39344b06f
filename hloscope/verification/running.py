"""The run of both programs on the same random inputs, in this process: the child process, or a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from time import monotonic
from typing import Any

import jax

from hloscope.errors import HloscopeError, NotationError
from hloscope.program.loading import describe_exception, find_target_name, load_target
from hloscope.program.stand_ins import pose_devices_as
from hloscope.program.target import TargetFacts, find_attached_facts
from hloscope.tpu.slices import Slice, parse_slice
from hloscope.units import pluralize
from hloscope.verification import executing, machine
from hloscope.verification.executing import Prepared
from hloscope.verification.fan_in import find_fan_in
from hloscope.verification.job import Function, OtherProgramError, Stage, VerificationJob, complete_reference_facts
from hloscope.verification.measuring import explain_by_own_rounding, find_invisible_counts
from hloscope.verification.model import Numerics, NumericsStatus, Untested
from hloscope.verification.pairs import ComparedRuns, compare_runs, draw_value, find_untested
from hloscope.verification.traced import find_index_sizes
from hloscope.verification.values import Draw, check_range, describe_draw, find_largest_fan_in

_FEWEST_PLACES = 3
"""The most places for which a single index may be any of them; of more it is not one at either end."""

_UNMEASURED = (
    "the effect of rounding on the reference could not be measured, so one tolerance, from types and lengths of sums "
    "alone, applies to every output, and biased errors are not detected"
)


def run_verification(job: VerificationJob, stage: Stage = lambda _: None) -> Numerics:
    """Runs both programs and compares them; an error of a run is its result.

    Raises:
        OtherProgramError: The programs are not those of the job.
    """
    refusal = _explain_too_few_devices(job)
    if refusal:
        return job.came_to(NumericsStatus.NOT_RUN, refusal)
    pose = _find_pose(job)
    with _pose_for_job(job):
        found = _run(job, stage)
    if pose is None or found.status not in (NumericsStatus.FAILED, NumericsStatus.NOT_IMPLEMENTED):
        return found
    again = _run(job, stage)
    if again.status is not NumericsStatus.RAN:
        return found
    why = f"simulated devices cannot run the branch for {pose[0].name}, so the CPU branch ran: {found.message}"
    return replace(again, other_branches=(why,))


def _find_pose(job: VerificationJob) -> tuple[Slice, int] | None:
    return None if job.poses is None or job.platform != "cpu" else (parse_slice(job.poses[0]), job.poses[1])


@contextmanager
def _pose_for_job(job: VerificationJob) -> Iterator[None]:
    """Makes the simulated devices of a job pose as those of the slice that it was compiled for."""
    pose = _find_pose(job)
    with nullcontext() if pose is None else pose_devices_as(pose[0], jax.devices("cpu")[0].client, pose[1]):
        yield


def _run(job: VerificationJob, stage: Stage) -> Numerics:
    try:
        _check_programs(job, stage)
        prepared = prepare_both(job, stage)
        found = compare_prepared(prepared, job, stage)
        others = (f"in {each.lowered.name} {_BY_PLATFORM}" for each in prepared.values() if each.differs_by_platform)
        return replace(found, other_branches=tuple(dict.fromkeys(others)))
    except (HloscopeError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        words = error.on_one_line() if isinstance(error, HloscopeError) else describe_exception(error)
        missing = "UNIMPLEMENTED" in words or "not implemented" in words.lower()
        status = NumericsStatus.NOT_IMPLEMENTED if missing else NumericsStatus.FAILED
        return job.came_to(status, words, ran_on=_describe_devices(job))


_BY_PLATFORM = "jax.lax.platform_dependent took a different branch than on a TPU"


def prepare_both(job: VerificationJob, stage: Stage = lambda _: None) -> dict[str, Prepared]:
    """Imports and compiles both programs of a job, `target` and `reference`, for one seed or several.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    stage("importing")
    prepared = {}
    for role, program in zip(("target", "reference"), _load_both(job), strict=True):
        stage(f"compiling the {role}")
        prepared[role] = executing.prepare_program(*program)
    return prepared


def compare_prepared(prepared: Mapping[str, Prepared], job: VerificationJob, stage: Stage = lambda _: None) -> Numerics:
    """Runs both compiled programs on the inputs of the job's seed and compares them."""
    target = prepared["target"]
    refusal = _explain_unlike_arguments(*prepared.values())
    if refusal:
        return job.came_to(NumericsStatus.REFUSED, refusal, ran_on=_describe_devices(job))
    draws = list(_choose_draws(prepared, job))
    basis = replace(_check_size(prepared, job), inputs=tuple(_describe_inputs(target, draws)))
    if basis.status is NumericsStatus.TOO_LARGE:
        return basis

    def value(position: int, *, seed: int) -> Any:
        return draw_value(target.seen.argument_avals[position], draws[position], seed, position)

    begun, seed = monotonic(), job.settings.seed
    found = compare_runs(prepared, [value(position, seed=seed) for position in range(len(draws))], job, stage)
    stage("looking for inputs that no output depends on")
    comparisons = explain_by_own_rounding(found.comparisons, found.runs, found.measured, job)
    parts: tuple[Untested, ...] = ()
    if any(output.informative for output in found.comparisons):
        another = partial(value, seed=seed + 1)
        parts = find_untested(target, found.runs["reference"], another, patience_s=monotonic() - begun)
    return replace(
        basis,
        status=NumericsStatus.RAN,
        comparisons=comparisons,
        not_compared=found.not_compared,
        untested=(*found.hidden, *parts),
        notes=tuple(_make_notes(found)),
    )


def _check_size(prepared: Mapping[str, Prepared], job: VerificationJob) -> Numerics:
    """The sizes of the run, with the status that it is too large if there is not enough memory."""
    programs = [program.memory_bytes for program in prepared.values()]
    seen = prepared["target"].seen
    inputs, outputs = (
        sum(prod(aval.shape) * int(aval.dtype.itemsize) for aval in avals)
        for avals in (seen.argument_avals, seen.result_avals)
    )
    host = inputs + 2 * outputs * seen.device_count  # what every device holds of both programs' outputs
    needed = max((count for count in programs if count is not None), default=0) + host  # they run one after the other
    is_too_large = job.memory_bytes is not None and needed > machine.MEMORY_SHARE * job.memory_bytes
    return replace(
        job.came_to(
            NumericsStatus.TOO_LARGE if is_too_large else NumericsStatus.NOT_RUN, ran_on=_describe_devices(job)
        ),
        available_bytes=job.memory_bytes,
        estimated_bytes=None if None in programs and not is_too_large else needed,
    )


def fingerprint_programs(job: VerificationJob) -> tuple[str, str]:
    """The fingerprints of the programs of a job.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    with _pose_for_job(job):
        target, reference = (executing.fingerprint_program(*program) for program in _load_both(job))
    return target, reference


def _check_programs(job: VerificationJob, stage: Stage) -> None:
    if job.programs == (None, None):
        return
    stage("comparing the imported programs with those that were compiled")
    try:
        found = fingerprint_programs(job)
    except HloscopeError as error:
        raise OtherProgramError from error
    if any(known not in (None, here) for known, here in zip(job.programs, found, strict=True)):
        raise OtherProgramError


def _make_notes(found: ComparedRuns) -> Iterator[str]:
    """The notes on the basis of the numbers."""
    if found.measured.failure:
        yield f"{_UNMEASURED}: {found.measured.failure}"
    yield from found.notes
    yield from find_invisible_counts(found.runs["reference"], found.measured, found.comparisons)
    hanging = [output for output in found.comparisons if output.unstable]
    if hanging:
        places = ", ".join(f"{each.unstable:,} of {each.elements:,} elements of {each.name}" for each in hanging)
        why = "rounding changes them much more than others, for example where an index depends on it"
        yield f"not judged, because {why}: {places}"


def _explain_too_few_devices(job: VerificationJob) -> str:
    """Why the available devices are not enough; empty if they are."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        return f"JAX cannot use the attached {job.platform.upper()}: {error}"
    if len(found) >= job.devices:
        return ""
    return f"{pluralize(job.devices, 'device')} are needed, but JAX has {len(found)} ({found[0].device_kind})"


def _describe_devices(job: VerificationJob) -> str:
    if job.platform == "cpu":
        return pluralize(job.devices, "simulated CPU device")
    return pluralize(job.devices, f"{jax.devices()[0].device_kind} device")


_Loaded = tuple[Function, TargetFacts, str]
"""A function, its options, and the user's name for it."""


def _load_both(job: VerificationJob) -> tuple[_Loaded, _Loaded]:
    target = _load_program(job, job.target, job.reference, None)
    return target, _load_program(job, job.reference, job.target, target)


def _load_program(
    job: VerificationJob, name: str | Function, beside: str | Function, target: _Loaded | None
) -> _Loaded:
    function = load_target(name, replace(job.facts, slice="attached"), beside)
    facts = job.facts.over(find_attached_facts(function))
    if target is not None:
        facts = complete_reference_facts(target[1], function, job.facts)
    facts = replace(facts, dcn=None, compiler_options={}, dims={**facts.dims, **job.settings.scale})
    return function, facts, find_target_name(name)


def _explain_unlike_arguments(target: Prepared, reference: Prepared) -> str:
    """Why both cannot have the same inputs; empty if they can."""
    both = target.seen.argument_avals, reference.seen.argument_avals
    sides = [[(tuple(aval.shape), str(aval.dtype)) for aval in avals] for avals in both]
    if sides[0] == sides[1]:
        return ""
    shown = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in side) or "nothing" for side in sides]
    return f"the target takes {shown[0]}, but the reference {shown[1]}"


def _choose_draws(prepared: Mapping[str, Prepared], job: VerificationJob) -> Iterator[Draw]:
    """How each argument's values are drawn: alike for both programs, so the reference decides which are weights."""
    sizes = [_find_index_sizes_of(program) for program in prepared.values()]
    weights = _find_fan_in_of(prepared["reference"])
    seen, facts = prepared["target"].seen, prepared["target"].lowered.facts
    for position, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True)):
        given = job.settings.ranges.get(name)
        if given is not None:
            low, high = (_resolve_bound(bound, facts) for bound in given)
            check_range(name, aval.dtype, (low, high))
            yield Draw(bounds=(low, high))
            continue
        size = max((found[position] for found in sizes if position in found), default=0)
        inner = int(aval.size) == 1 and size > _FEWEST_PLACES  # at an end, a place too far is clamped to the right one
        if size > 1:
            yield Draw(bounds=(int(inner), size - int(inner)), is_index=True)
        elif position in weights:
            yield Draw(fan_in=min(weights[position], find_largest_fan_in(aval.dtype)))
        else:
            yield Draw()


def _find_index_sizes_of(program: Prepared) -> dict[int, int]:
    try:
        return {} if program.traced is None else find_index_sizes(program.traced)
    except executing.UNEVALUABLE:
        return {}  # an operation of another form than in the versions of JAX that are known; ranges are then given


def _find_fan_in_of(program: Prepared) -> dict[int, float]:
    try:
        return {} if program.traced is None else find_fan_in(program.traced)
    except executing.UNEVALUABLE:
        return {}


def _resolve_bound(bound: float | str, facts: TargetFacts) -> float:
    if not isinstance(bound, str):
        return float(bound)
    if bound not in facts.dims:
        raise NotationError(
            f"the range bound {bound!r} is neither a number nor a letter of the target's dimensions",
            fix=f"its letters are {', '.join(facts.dims)}" if facts.dims else "write a number",
        )
    return float(facts.dims[bound])


def _describe_inputs(program: Prepared, draws: Sequence[Draw]) -> Iterator[str]:
    for name, aval, draw in zip(program.seen.argument_names, program.seen.argument_avals, draws, strict=True):
        yield f"{name}: {'random keys' if executing.is_key(aval) else describe_draw(aval.dtype, draw)}"
