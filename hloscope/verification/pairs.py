"""The runs that are compared, output by output, each pair with the tolerance that both programs together ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from hloscope.errors import HloscopeError, TargetError
from hloscope.program.loading import describe
from hloscope.program.target import TargetFacts
from hloscope.verification import executing
from hloscope.verification.differences import Shard, compare_shards, root_mean_square, whole
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Function, Job
from hloscope.verification.model import OutputComparison
from hloscope.verification.tolerances import relative_tolerance, tolerance_at
from hloscope.verification.values import Bounds, random_values

Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A function and everything that is known of how it is called."""

    function: Function
    facts: TargetFacts
    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Both:
    """The target and its reference, compiled, with the values that both are given.

    Attributes:
        target: The program.
        reference: Its reference.
        prepared: Both, compiled, by `target` and `reference`.
        values: The value of each argument.
    """

    target: Program
    reference: Program
    prepared: Mapping[str, Prepared]
    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A program and what every device held of each output after a run."""

    program: Prepared
    outputs: list[tuple[Shard, ...]]


def compare(both: Both, job: Job, stage: Stage) -> tuple[tuple[OutputComparison, ...], dict[str, str]]:
    """Runs both programs and compares them, and whatever else the job asks for.

    Returns:
        The comparisons, and what could not be run beyond the outputs, with the reason.
    """
    runs = {}
    for name, program in both.prepared.items():
        stage(f"running the {name}")
        runs[name] = Run(program=program, outputs=executing.run(program, both.values))
    found = list(compared(runs["target"], runs["reference"], job, subject="target", against="reference"))
    found += own_copies(runs["reference"], job)
    not_compared = left_out(runs["target"], runs["reference"])
    for wanted, what, extra in (
        (job.against_single_device, "single device", _against_single_device),
        (job.grad, "gradients", _gradients),
    ):
        if not wanted:
            continue
        stage(f"running the {what}")
        try:
            found += extra(both, runs, job)
        except (HloscopeError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
            not_compared[what] = (
                str(error).removeprefix("error: ") if isinstance(error, HloscopeError) else describe(error)
            )
    return tuple(found), not_compared


def _against_single_device(both: Both, runs: Mapping[str, Run], job: Job) -> list[OutputComparison]:
    chosen = next((name for name, one in both.prepared.items() if not one.is_manual), None)
    program = both.reference if chosen == "reference" else both.target
    if chosen is None or not isinstance(program.facts.mesh, Mapping):
        raise TargetError(
            "neither program can be run on one device",
            why="both are written for each device by shard_map" if chosen is None else "the mesh is the program's own",
            fix="give the mesh by names and sizes, and a target or a reference that jax.jit shards",
        )
    facts = replace(program.facts, mesh=dict.fromkeys(program.facts.mesh, 1))
    alone = executing.prepare(program.function, facts, program.name)
    single = Run(program=alone, outputs=executing.run(alone, both.values))
    against = f"the {chosen} on a single device"
    return [one for name, run in runs.items() for one in compared(run, single, job, subject=name, against=against)]


def _gradients(both: Both, _: Mapping[str, Run], job: Job) -> list[OutputComparison]:
    forward = both.prepared["target"]
    ran = {}
    for name, program in (("target", both.target), ("reference", both.reference)):
        pulled = executing.prepare_gradient(program.function, program.facts, both.prepared[name], program.name)
        own = pulled.seen.argument_avals[: len(pulled.seen.argument_avals) - len(both.values)]
        cotangents = [
            random_value(aval, None, job.seed, position) for position, aval in enumerate(own, start=len(both.values))
        ]
        ran[name] = Run(program=pulled, outputs=executing.run(pulled, [*cotangents, *both.values]))
    names = gradient_names(forward)
    return list(compared(ran["target"], ran["reference"], job, subject="target", against="reference", names=names))


def compared(
    mine: Run, theirs: Run, job: Job, *, subject: str, against: str, names: Sequence[str] = ()
) -> Iterator[OutputComparison]:
    """Each output of one run beside the same output of the other; outputs of different shapes are left out.

    Args:
        mine: The run to judge.
        theirs: The run whose values are expected.
        job: With the user's own tolerances.
        subject: Whose run `mine` is.
        against: Whose run `theirs` is.
        names: The outputs' names; by default those of the program.
    """
    roundings = (mine.program.rounding, theirs.program.rounding)
    devices = job.devices if mine.program.adds_across or theirs.program.adds_across else 1
    relative = relative_tolerance(roundings, devices=devices, platform=job.platform)
    rows = zip(names or mine.program.seen.result_names, mine.outputs, theirs.outputs, strict=False)
    for name, found, expected_shards in rows:
        shape = _shape(expected_shards)
        if _shape(found) != shape:
            continue
        expected = whole(expected_shards, shape, expected_shards[0].values.dtype)
        tolerance = tolerance_at(relative, root_mean_square(expected), rtol=job.rtol, atol=job.atol)
        yield compare_shards(found, expected, tolerance, name=name, subject=subject, against=against)


def left_out(mine: Run, theirs: Run) -> dict[str, str]:
    """The outputs that `compared` leaves out, and why: at other sizes two programs may differ where they did not."""
    names = mine.program.seen.result_names
    rows = zip(names, mine.outputs, theirs.outputs, strict=False)
    shapes = {f"output {name}": (_shape(found), _shape(expected)) for name, found, expected in rows}
    unlike = {name: both for name, both in shapes.items() if both[0] != both[1]}
    if not shapes or len(unlike) == len(shapes):
        return {}  # that nothing is compared is told as such
    return {
        name: f"its shape is {list(one)}, and {list(other)} in the reference" for name, (one, other) in unlike.items()
    }


def own_copies(run: Run, job: Job) -> Iterator[OutputComparison]:
    """The reference's copies of its outputs on several devices, where they are not the same."""
    itself = compared(run, run, job, subject="reference", against="the reference's other copies")
    return (comparison for comparison in itself if comparison.wrong)


def gradient_names(program: Prepared) -> list[str]:
    """`gradient of W`, for each argument that has one."""
    rows = zip(program.seen.argument_names, program.seen.argument_avals, strict=True)
    return [f"gradient of {name}" for name, aval in rows if jnp.issubdtype(aval.dtype, jnp.inexact)]


def random_value(aval: Any, bounds: Bounds | None, seed: int, position: int) -> Any:
    """A value for an argument, random keys included."""
    if executing.is_key(aval):
        return executing.make_key(aval, seed, position)
    return random_values(aval.dtype, aval.shape, bounds, seed=seed, position=position)


def _shape(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The dimensions of the whole array."""
    ends = [tuple(a + n for a, n in zip(shard.start, shard.values.shape, strict=True)) for shard in shards]
    return tuple(max(column) for column in zip(*ends, strict=True))
