"""The stage `Target -> Propagated`: trace, lower and let Shardy propagate; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hloscope.compiler import client, jax_internals
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.program.arguments import argument_letters
from hloscope.program.lowering import lower, watched_backend
from hloscope.program.plan import axis_kinds, choose_slice, make_plan, users_mesh
from hloscope.program.target import TargetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Propagated:
    """A program as Shardy propagates it.

    Attributes:
        shardy: Its module; None when Shardy could not be asked, which a note tells.
        axis_sizes: Size of each axis of the user's mesh, major first; empty without one.
        axis_types: `auto`, `explicit` or `manual` for each axis.
        slice_name: What it would be compiled for.
        letters: For each argument that the program reads, the letters of its dimensions in the user's notation.
        outputs: Names of the outputs, in order.
        unused: Names of arguments that the program does not read.
        notes: Choices made for the user, one sentence each.
    """

    shardy: ShardyModule | None
    axis_sizes: dict[str, int]
    axis_types: tuple[str, ...]
    slice_name: str
    letters: tuple[tuple[str | None, ...] | None, ...]
    outputs: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def propagate(
    function: Callable[..., Any], facts: TargetFacts, *, name: str, stage: Callable[[str], None] = lambda _: None
) -> Propagated:
    """Lowers a function and lets Shardy propagate its shardings.

    Args:
        function: The user's function, plain, jitted, shard_mapped or a factory.
        facts: How to call and place it.
        name: Its name in messages.
        stage: Told what is happening, for a progress display.

    Raises:
        HloscopeError: Bad input, or JAX refuses the program.
    """
    plan = make_plan(facts)
    stage("tracing")
    with watched_backend([] if plan.is_real else plan.notes):
        lowered = lower(function, facts, plan, name)
    seen = jax_internals.lowered_facts(lowered)
    mesh = users_mesh(plan, seen)
    chosen, _ = choose_slice(plan, mesh, seen.device_count)
    stage("propagating")
    shardy, _ = client.propagate(jax_internals.bytecode(lowered), "jax", plan.notes, timeout_s=facts.timeout_s)
    letters = argument_letters(facts, len(seen.argument_names))
    kept = set(seen.kept)
    return Propagated(
        shardy=shardy,
        axis_sizes={} if mesh is None else dict(zip(map(str, mesh.axis_names), mesh.axis_sizes, strict=True)),
        axis_types=() if mesh is None else axis_kinds(mesh),
        slice_name=chosen.name,
        letters=tuple(letters[index] for index in seen.kept),
        outputs=seen.result_names,
        unused=tuple(name for index, name in enumerate(seen.argument_names) if index not in kept),
        notes=tuple(plan.notes),
    )
