"""Both programs on the same random inputs, in this process: what the child process does, and a notebook without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from time import monotonic
from typing import Any

import jax

from hloscope.errors import HloscopeError, NotationError
from hloscope.program.arguments import required_parameters
from hloscope.program.loading import describe, loaded, name_of
from hloscope.program.target import TargetFacts, attached_facts
from hloscope.units import plural
from hloscope.verification import executing, machine
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Job, OtherProgramError, Side, references_facts
from hloscope.verification.measuring import invisible, with_own_rounding
from hloscope.verification.model import Numerics, NumericsStatus
from hloscope.verification.pairs import Both, Compared, Program, compare, random_value, untested
from hloscope.verification.traced import index_sizes
from hloscope.verification.values import Bounds, check_range, described_bounds

Stage = Callable[[str], None]

_FEWEST_PLACES = 3
"""Places up to which a single index may be any of them; of more it is not one at either end."""

_UNMEASURED = (
    "what rounding does to the reference could not be measured, so that one tolerance, from types and lengths of sums "
    "alone, holds for every output, and nothing is said of errors that lean one way"
)


def run_job(job: Job, stage: Stage = lambda _: None) -> Numerics:
    """Runs both programs and compares them; whatever stops a run is its result.

    Args:
        job: What to run.
        stage: Told what is happening, so that a process that dies leaves word of where it was.

    Raises:
        OtherProgramError: The programs are not those that the job knows.
    """
    try:
        return _run(job, stage)
    except (HloscopeError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        words = error.on_one_line() if isinstance(error, HloscopeError) else describe(error)
        missing = "UNIMPLEMENTED" in words or "not implemented" in words.lower()
        status = NumericsStatus.NOT_IMPLEMENTED if missing else NumericsStatus.FAILED
        return replace(_basis(job), status=status, message=words)


def _run(job: Job, stage: Stage) -> Numerics:
    refusal = _too_few_devices(job)
    if refusal:
        return Numerics(status=NumericsStatus.NOT_RUN, message=refusal, seed=job.seed, dims=dict(job.dims))
    _check_programs(job, stage)
    target, reference, prepared = both_prepared(job, stage)
    return compare_prepared(target, reference, prepared, job, stage)


def both_prepared(job: Job, stage: Stage = lambda _: None) -> tuple[Program, Program, dict[str, Prepared]]:
    """Imports and compiles both programs of a job, for one seed or several.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    stage("importing")
    target, reference = _both_loaded(job)
    stage("compiling the target")
    prepared = {"target": executing.prepare(target.function, target.facts, target.name)}
    stage("compiling the reference")
    prepared["reference"] = executing.prepare(reference.function, reference.facts, reference.name)
    return target, reference, prepared


def compare_prepared(
    target: Program, reference: Program, prepared: Mapping[str, Prepared], job: Job, stage: Stage = lambda _: None
) -> Numerics:
    """Runs both compiled programs on the inputs of the job's seed and compares them."""
    refusal = _unlike_arguments(*prepared.values())
    if refusal:
        return replace(_basis(job), status=NumericsStatus.REFUSED, message=refusal)
    bounds = list(_all_bounds(prepared, job, target.facts))
    basis = replace(_sized(prepared, job), inputs=tuple(_described(prepared["target"], bounds)))
    if basis.status is NumericsStatus.TOO_LARGE:
        return basis
    begun, values = monotonic(), _values(prepared["target"], bounds, job.seed)
    found = compare(Both(target=target, reference=reference, prepared=prepared, values=values), job, stage)
    stage("looking for inputs that nothing depends on")
    telling = any(one.informative for one in found.comparisons)
    another = partial(_value, prepared["target"], bounds, job.seed + 1)
    return replace(
        basis,
        status=NumericsStatus.RAN,
        comparisons=with_own_rounding(found.comparisons, found.runs, found.measured, job),
        not_compared=found.not_compared,
        untested=untested(prepared["target"], found.runs["reference"], another, patience_s=monotonic() - begun)
        if telling
        else (),
        notes=tuple(_notes(found)),
    )


def _sized(prepared: Mapping[str, Prepared], job: Job) -> Numerics:
    """What the run needs, and that it is too large where there is no room for it."""
    programs = [one.memory_bytes for one in prepared.values()]
    needed = machine.needed_bytes(programs, _host_bytes(prepared["target"]))
    basis = replace(_basis(job), available_bytes=job.memory_bytes)
    if job.memory_bytes is not None and needed > machine.SHARE * job.memory_bytes:
        return replace(basis, status=NumericsStatus.TOO_LARGE, estimated_bytes=needed)
    return replace(basis, estimated_bytes=None if None in programs else needed)


def programs_of(job: Job) -> tuple[str, str]:
    """What the programs of a job are known by.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    target, reference = (executing.fingerprint(one.function, one.facts, one.name) for one in _both_loaded(job))
    return target, reference


def _check_programs(job: Job, stage: Stage) -> None:
    if job.programs == (None, None):
        return
    stage("comparing the imported programs with those that were compiled")
    try:
        found = programs_of(job)
    except HloscopeError as error:
        raise OtherProgramError from error
    if any(known not in (None, one) for known, one in zip(job.programs, found, strict=True)):
        raise OtherProgramError


def _notes(found: Compared) -> Iterator[str]:
    """What the numbers stand on."""
    if found.measured.failure:
        yield f"{_UNMEASURED}: {found.measured.failure}"
    yield from found.notes
    yield from invisible(found.runs["reference"], found.measured, found.comparisons)
    hanging = [one for one in found.comparisons if one.unstable]
    if hanging:
        places = ", ".join(f"{one.unstable:,} of {one.elements:,} elements of {one.name}" for one in hanging)
        why = "rounding moves them much further than others, as where an index hangs on it"
        yield f"not judged, because {why}: {places}"


def _too_few_devices(job: Job) -> str:
    """Why the devices at hand do not do; empty when they do."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        return f"JAX cannot use the attached {job.platform.upper()}: {error}"
    if len(found) >= job.devices:
        return ""
    return f"{plural(job.devices, 'device')} are needed, and JAX has {len(found)} ({found[0].device_kind})"


def _basis(job: Job) -> Numerics:
    return Numerics(status=NumericsStatus.NOT_RUN, ran_on=_ran_on(job), seed=job.seed, dims=dict(job.dims))


def _ran_on(job: Job) -> str:
    if job.platform == "cpu":
        return plural(job.devices, "simulated CPU device")
    return plural(job.devices, f"{jax.devices()[0].device_kind} device")


def _both_loaded(job: Job) -> tuple[Program, Program]:
    target = _loaded(job.target, job, None)
    return target, _loaded(job.reference, job, target)


def _loaded(side: Side, job: Job, target: Program | None) -> Program:
    beside = job.reference if side is job.target else job.target
    function = loaded(side.target, replace(side.facts, slice="attached"), beside.target)
    facts = side.facts.over(attached_facts(function))
    if target is not None:
        facts = references_facts(target.facts, facts, is_factory=not required_parameters(function))
    facts = replace(facts, dcn=None, compiler_options={}, dims={**facts.dims, **job.dims})
    return Program(function=function, facts=facts, name=name_of(side.target))


def _unlike_arguments(target: Prepared, reference: Prepared) -> str:
    """Why both cannot be given the same inputs; empty when they can."""
    sides = [[(tuple(aval.shape), str(aval.dtype)) for aval in one.seen.argument_avals] for one in (target, reference)]
    if sides[0] == sides[1]:
        return ""
    shown = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in side) or "nothing" for side in sides]
    return f"the target takes {shown[0]}, and the reference {shown[1]}"


def _all_bounds(prepared: Mapping[str, Prepared], job: Job, facts: TargetFacts) -> Iterator[tuple[Bounds | None, bool]]:
    """For each argument its bounds, and whether they are those of what it indexes."""
    sizes = [_index_sizes(one) for one in prepared.values()]
    seen = prepared["target"].seen
    for position, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True)):
        given = job.ranges.get(name)
        if given is not None:
            low, high = (_number(bound, facts) for bound in given)
            check_range(name, aval.dtype, (low, high))
            yield (low, high), False
            continue
        size = max((found[position] for found in sizes if position in found), default=0)
        inner = int(aval.size) == 1 and size > _FEWEST_PLACES  # at an end, a place too far is clamped to the right one
        yield ((int(inner), size - int(inner)), True) if size > 1 else (None, False)


def _index_sizes(program: Prepared) -> dict[int, int]:
    try:
        return {} if program.traced is None else index_sizes(program.traced)
    except executing.UNEVALUABLE:
        return {}  # an operation of another form than in the versions of JAX that are known; ranges are then given


def _number(bound: float | str, facts: TargetFacts) -> float:
    if not isinstance(bound, str):
        return float(bound)
    if bound not in facts.dims:
        raise NotationError(
            f"the range bound {bound!r} is neither a number nor a letter of the target's dimensions",
            fix=f"its letters are {', '.join(facts.dims)}" if facts.dims else "write a number",
        )
    return float(facts.dims[bound])


def _described(program: Prepared, bounds: Sequence[tuple[Bounds | None, bool]]) -> Iterator[str]:
    rows = zip(program.seen.argument_names, program.seen.argument_avals, bounds, strict=True)
    for name, aval, (limits, is_index) in rows:
        key = executing.is_key(aval)
        yield f"{name}: {'random keys' if key else described_bounds(aval.dtype, limits, is_index=is_index)}"


def _host_bytes(program: Prepared) -> int:
    """Inputs once, and what every device holds of both programs' outputs, as NumPy arrays."""
    inputs = sum(prod(aval.shape) * aval.dtype.itemsize for aval in program.seen.argument_avals)
    outputs = sum(prod(aval.shape) * aval.dtype.itemsize for aval in program.seen.result_avals)
    return int(inputs + 2 * outputs * program.seen.device_count)


def _values(program: Prepared, bounds: Sequence[tuple[Bounds | None, bool]], seed: int) -> list[Any]:
    return [_value(program, bounds, seed, position) for position in range(len(bounds))]


def _value(program: Prepared, bounds: Sequence[tuple[Bounds | None, bool]], seed: int, position: int) -> Any:
    return random_value(program.seen.argument_avals[position], bounds[position][0], seed, position)
