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
from hloscope.verification.differences import Shard, allowed_by, compare_shards, root_mean_square, whole
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Function, Job
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
from hloscope.verification.model import COPIES, OutputComparison
from hloscope.verification.tolerances import tolerance_at
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
class Compared:
    """The comparisons, what could not be compared and why, and what they stand on."""

    comparisons: tuple[OutputComparison, ...]
    not_compared: dict[str, str]
    measured: Measured
    runs: Mapping[str, Run]
    notes: tuple[str, ...]


_More = tuple[list[OutputComparison], list[str]]
"""What else was compared, and notes on it."""


def compare(both: Both, job: Job, stage: Stage) -> Compared:
    """Runs both programs and compares them, and whatever else the job asks for."""
    runs = {}
    for name, program in both.prepared.items():
        stage(f"running the {name}")
        runs[name] = run_of(program, both.values)
    measured, found = _beside_reference(runs, job, stage)
    found += own_copies(runs["target"], job, measured, subject="target")
    found += own_copies(runs["reference"], job, measured, subject="reference")
    not_compared, notes = left_out(runs["target"], runs["reference"]), list(measured.notes)
    for wanted, what, extra in (
        (job.against_single_device, "single device", _against_single_device),
        (job.grad, "gradients", _gradients),
    ):
        if not wanted:
            continue
        stage(f"running the {what}")
        try:
            more, of_more = extra(both, runs, job, measured)
        except (HloscopeError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
            not_compared[what] = error.on_one_line() if isinstance(error, HloscopeError) else describe(error)
        else:
            found, notes = found + more, notes + of_more
    return Compared(
        comparisons=tuple(found), not_compared=not_compared, measured=measured, runs=runs, notes=tuple(notes)
    )


def _against_single_device(both: Both, runs: Mapping[str, Run], job: Job, measured: Measured) -> _More:
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
    single = run_of(alone, both.values)
    against = f"the {chosen} on a single device"
    found = [
        one
        for name, run in runs.items()
        for one in compared(run, single, job=job, measured=measured, subject=name, against=against)
    ]
    return found, []


def _gradients(both: Both, _: Mapping[str, Run], job: Job, __: Measured) -> _More:
    forward = both.prepared["target"]
    ran = {}
    for name, program in (("target", both.target), ("reference", both.reference)):
        pulled = executing.prepare_gradient(program.function, program.facts, both.prepared[name], program.name)
        own = pulled.seen.argument_avals[: len(pulled.seen.argument_avals) - len(both.values)]
        cotangents = [
            random_value(aval, None, job.seed, position) for position, aval in enumerate(own, start=len(both.values))
        ]
        ran[name] = run_of(pulled, [*cotangents, *both.values])
    measured, found = _beside_reference(ran, job, lambda _: None, names=gradient_names(forward))
    return found, list(measured.notes)


def _beside_reference(
    runs: Mapping[str, Run], job: Job, stage: Stage, names: Sequence[str] = ()
) -> tuple[Measured, list[OutputComparison]]:
    """Compares the target with its reference; before a difference is told, the reference is split in other ways too."""
    target, reference = runs["target"], runs["reference"]

    def judged(measured: Measured) -> list[OutputComparison]:
        words = {"subject": "target", "against": "reference"}
        return list(compared(target, reference, job=job, measured=measured, names=names, **words))

    measured = measure(target, reference, job, stage)
    found = judged(measured)
    if all(one.agrees for one in found):
        return measured, found
    measured = over_other_splits(measured, target, reference, stage, names=names)
    return measured, judged(measured)


def compared(
    mine: Run, theirs: Run, *, job: Job, measured: Measured, subject: str, against: str, names: Sequence[str] = ()
) -> Iterator[OutputComparison]:
    """Each output of one run beside the same output of the other; outputs of different shapes are left out.

    Args:
        mine: The run to judge.
        theirs: The run whose values are expected.
        job: With the user's own tolerances.
        measured: What rounding does to the outputs.
        subject: Whose run `mine` is.
        against: Whose run `theirs` is.
        names: The outputs' names; by default those of the program.
    """
    rows = zip(names or mine.program.seen.result_names, mine.outputs, theirs.outputs, strict=False)
    for index, (name, found, expected_shards) in enumerate(rows):
        shape = shape_of(expected_shards)
        if shape_of(found) != shape:
            continue
        expected = whole(expected_shards, shape, expected_shards[0].values.dtype)
        words = {"name": name, "subject": subject, "against": against}
        spread = measured.spreads[index] if index < len(measured.spreads) else None
        if spread is None:
            tolerance = tolerance_at(measured.relative, root_mean_square(expected), rtol=job.rtol, atol=job.atol)
            yield replace(
                compare_shards(found, expected, allowed_by(tolerance, expected), **words), tolerance=tolerance
            )
            continue
        sizes = size_words(mine.program.mesh or theirs.program.mesh, mine.values)
        yield judged_by_spread(found, expected, spread.around(expected), sizes=sizes, **words)


def left_out(mine: Run, theirs: Run) -> dict[str, str]:
    """The outputs that `compared` leaves out, and why: at other sizes two programs may differ where they did not."""
    names = mine.program.seen.result_names
    rows = zip(names, mine.outputs, theirs.outputs, strict=False)
    shapes = {f"output {name}": (shape_of(found), shape_of(expected)) for name, found, expected in rows}
    unlike = {name: both for name, both in shapes.items() if both[0] != both[1]}
    if not shapes or len(unlike) == len(shapes):
        return {}  # that nothing is compared is told as such
    return {
        name: f"its shape is {list(one)}, and {list(other)} in the reference" for name, (one, other) in unlike.items()
    }


def own_copies(run: Run, job: Job, measured: Measured, *, subject: str) -> Iterator[OutputComparison]:
    """A program's copies of its outputs on several devices, where they differ by more than rounding."""
    if not any(map(_differ, run.outputs)):
        return
    for one in compared(run, run, job=job, measured=measured, subject=subject, against=COPIES):
        if not one.agrees:
            yield one


def _differ(shards: Sequence[Shard]) -> bool:
    """Whether two devices hold the same part of an output and other values."""
    first: dict[tuple[Any, ...], Any] = {}
    for shard in shards:
        known = first.setdefault((shard.start, shard.values.shape), shard.values)
        if known is not shard.values and known.tobytes() != shard.values.tobytes():
            return True
    return False


def gradient_names(program: Prepared) -> list[str]:
    """`gradient of W`, for each argument that has one."""
    rows = zip(program.seen.argument_names, program.seen.argument_avals, strict=True)
    return [f"gradient of {name}" for name, aval in rows if jnp.issubdtype(aval.dtype, jnp.inexact)]


def random_value(aval: Any, bounds: Bounds | None, seed: int, position: int) -> Any:
    """A value for an argument, random keys included."""
    if executing.is_key(aval):
        return executing.make_key(aval, seed, position)
    return random_values(aval.dtype, aval.shape, bounds, seed=seed, position=position)
