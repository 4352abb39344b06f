"""Both programs on the same random inputs, in this process: what the child process does, and a notebook without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import jax

from hloscope.errors import HloscopeError, NotationError
from hloscope.program.arguments import required_parameters
from hloscope.program.loading import describe, loaded, name_of
from hloscope.program.target import TargetFacts, attached_facts
from hloscope.units import plural
from hloscope.verification import executing, memory
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Job, Side, references_facts
from hloscope.verification.model import Numerics, NumericsStatus
from hloscope.verification.pairs import Both, Program, compare, random_value
from hloscope.verification.values import Bounds, described_bounds

Stage = Callable[[str], None]

_NARROWER = (
    "the program stores narrower floating-point types than its reference, and what they round is allowed: --rtol says "
    "how much instead"
)


def run_job(job: Job, stage: Stage = lambda _: None) -> Numerics:
    """Runs both programs and compares them; whatever stops a run is its result.

    Args:
        job: What to run.
        stage: Told what is happening, so that a process that dies leaves word of where it was.
    """
    try:
        return _run(job, stage)
    except (HloscopeError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        words = str(error) if isinstance(error, HloscopeError) else describe(error)
        missing = "UNIMPLEMENTED" in words or "not implemented" in words.lower()
        status = NumericsStatus.NOT_IMPLEMENTED if missing else NumericsStatus.FAILED
        return replace(_basis(job), status=status, message=words.removeprefix("error: "))


def _run(job: Job, stage: Stage) -> Numerics:
    refusal = _too_few_devices(job)
    if refusal:
        return Numerics(status=NumericsStatus.NOT_RUN, message=refusal, seed=job.seed, dims=dict(job.dims))
    stage("importing")
    target = _loaded(job.target, job, None)
    reference = _loaded(job.reference, job, target)
    stage("compiling the target")
    prepared = {"target": executing.prepare(target.function, target.facts, target.name)}
    stage("compiling the reference")
    prepared["reference"] = executing.prepare(reference.function, reference.facts, reference.name)
    refusal = _unlike_arguments(*prepared.values())
    if refusal:
        return replace(_basis(job), status=NumericsStatus.REFUSED, message=refusal)
    programs = [one.memory_bytes for one in prepared.values()]
    needed = memory.needed_bytes(programs, _host_bytes(prepared["target"]))
    basis = replace(
        _basis(job),
        inputs=tuple(_described(prepared["target"], job, target.facts)),
        estimated_bytes=None if None in programs else needed,
        available_bytes=job.memory_bytes,
    )
    if job.memory_bytes is not None and needed > memory.SHARE * job.memory_bytes:
        return replace(basis, status=NumericsStatus.TOO_LARGE, estimated_bytes=needed)
    both = Both(
        target=target, reference=reference, prepared=prepared, values=_values(prepared["target"], job, target.facts)
    )
    found, not_compared = compare(both, job, stage)
    notes = () if job.rtol is not None or not _is_narrower(**prepared) else (_NARROWER,)
    return replace(basis, status=NumericsStatus.RAN, comparisons=found, not_compared=not_compared, notes=notes)


def _is_narrower(target: Prepared, reference: Prepared) -> bool:
    """Whether the target rounds more than its reference does, which the tolerance cannot tell from an error."""
    return target.rounding.narrowest > reference.rounding.narrowest > 0


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


def _bounds(name: str, job: Job, facts: TargetFacts) -> Bounds | None:
    given = job.ranges.get(name)
    if given is None:
        return None
    low, high = (_number(bound, facts) for bound in given)
    return low, high


def _number(bound: float | str, facts: TargetFacts) -> float:
    if not isinstance(bound, str):
        return float(bound)
    if bound not in facts.dims:
        raise NotationError(
            f"the range bound {bound!r} is neither a number nor a letter of the target's dimensions",
            fix=f"its letters are {', '.join(facts.dims)}" if facts.dims else "write a number",
        )
    return float(facts.dims[bound])


def _described(program: Prepared, job: Job, facts: TargetFacts) -> Iterator[str]:
    for name, aval in zip(program.seen.argument_names, program.seen.argument_avals, strict=True):
        key = executing.is_key(aval)
        words = "random keys" if key else described_bounds(aval.dtype, _bounds(name, job, facts))
        yield f"{name}: {words}"


def _host_bytes(program: Prepared) -> int:
    """Inputs once, and what every device holds of both programs' outputs, as NumPy arrays."""
    inputs = sum(prod(aval.shape) * aval.dtype.itemsize for aval in program.seen.argument_avals)
    outputs = sum(prod(aval.shape) * aval.dtype.itemsize for aval in program.seen.result_avals)
    return int(inputs + 2 * outputs * program.seen.device_count)


def _values(program: Prepared, job: Job, facts: TargetFacts) -> list[Any]:
    rows = enumerate(zip(program.seen.argument_names, program.seen.argument_avals, strict=True))
    return [random_value(aval, _bounds(name, job, facts), job.seed, position) for position, (name, aval) in rows]
