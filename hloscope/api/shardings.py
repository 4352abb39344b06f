"""`shardings`: the shardings that Shardy propagates, without a compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from hloscope.api.analyzing import with_function
from hloscope.api.texts import meant, text_of
from hloscope.calls import front_door
from hloscope.compiler.client import propagate
from hloscope.errors import CompileError, TargetError
from hloscope.messages import Command, say
from hloscope.program.loading import name_of
from hloscope.program.target import ProgramOptions, TargetFacts, make_facts, with_options
from hloscope.progress import waiting
from hloscope.report.shardings import ShardingTable
from hloscope.shardy.shardings import sharded_arrays


@front_door
@with_options(ProgramOptions)
def shardings(
    target: Callable[..., Any] | str,
    args: Any = None,
    *,
    slice: str | None = None,
    timeout_s: float | None = None,
    **options: Unpack[ProgramOptions],
) -> ShardingTable:
    """Returns the shardings of arguments, constraints, outputs and large arrays, as Shardy propagates them.

    Nothing is compiled.

    Example:
        >>> print(hloscope.shardings(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2}))

    Args:
        target: As for `analyze`, except programs that are already compiled.
        args: One entry per positional argument, as for `analyze`.
        slice: The slice that it would be compiled for.
        timeout_s: Time limit in seconds.
        {options}

    Raises:
        HloscopeError: The input is invalid, JAX rejects the program, or Shardy cannot propagate its shardings.
    """
    target = meant(target)
    described: dict[str, Any] = {"args": args, "slice": slice, "timeout_s": timeout_s, **options}
    if text_of(target, {}) is not None:
        raise TargetError(
            f"{name_of(target)} is already compiled, and its shardings are already propagated",
            fix="pass the function itself, or analyze it",
        )
    facts = make_facts(**described)
    with waiting() as stage:
        return shardings_of(target, facts, stage=stage)


def shardings_of(
    target: Callable[..., Any] | str, facts: TargetFacts, *, stage: Callable[[str], None] = lambda _: None
) -> ShardingTable:
    """Returns all arguments, constraints and outputs and the large intermediates, with their shardings.

    Raises:
        HloscopeError: The input is invalid, JAX rejects the program, or Shardy cannot propagate its shardings.
    """

    def propagated(function: Callable[..., Any], known: TargetFacts) -> ShardingTable:
        from hloscope.compiler.jax_internals import bytecode  # these import JAX, which takes its time
        from hloscope.program.arguments import argument_letters
        from hloscope.program.devices import axis_sizes
        from hloscope.program.lowering import lower

        program = lower(function, known, name=name_of(target), stage=stage)
        seen, notes = program.seen, list(program.plan.notes)
        stage("propagating")
        shardy, _ = propagate(bytecode(program.module), "jax", notes, timeout_s=known.timeout_s)
        if shardy is None:
            raise CompileError(
                f"the shardings of {name_of(target)} cannot be propagated here",
                why="; ".join(notes),
                fix=say(Command("analyze"), " compiles the program and shows what the compiler chose"),
            )
        letters = argument_letters(known, len(seen.argument_names))
        return ShardingTable(
            target=name_of(target),
            slice_name=program.slice.name,
            axis_sizes={} if program.mesh is None else axis_sizes(program.mesh),
            arrays=sharded_arrays(shardy, tuple(letters[index] for index in seen.kept), seen.result_names),
            unused=tuple(name for index, name in enumerate(seen.argument_names) if index not in seen.kept),
            notes=tuple(notes),
        )

    return with_function(target, facts, propagated, stage=stage)
