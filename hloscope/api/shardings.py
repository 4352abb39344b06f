"""What Shardy makes of a target's shardings, without a compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hloscope.api.analyzing import with_function
from hloscope.errors import CompileError
from hloscope.program.loading import name_of

if TYPE_CHECKING:
    from hloscope.program.shardings import Propagated
    from hloscope.program.target import TargetFacts
    from hloscope.report.shardings import ShardingTable


def shardings_of(
    target: Callable[..., Any] | str, facts: TargetFacts, *, stage: Callable[[str], None] = lambda _: None
) -> ShardingTable:
    """Every argument, constraint and output and the large intermediates, with their shardings.

    Raises:
        HloscopeError: Bad input, JAX refuses the program, or Shardy cannot be asked.
    """
    from hloscope.report.shardings import ShardingTable
    from hloscope.why.shardings import sharded_arrays

    def propagated(function: Callable[..., Any], known: TargetFacts) -> Propagated:
        from hloscope.program.shardings import propagate

        return propagate(function, known, name=name_of(target), stage=stage)

    from hloscope.compiler.client import start_ahead

    start_ahead(name_of(target), facts.slice, None)
    found = with_function(target, facts, propagated, stage)
    if found.shardy is None:
        raise CompileError(
            f"the shardings of {name_of(target)} cannot be propagated here",
            why="; ".join(found.notes),
            fix="hloscope analyze compiles the program and shows what the compiler chose",
        )
    return ShardingTable(
        target=name_of(target),
        slice_name=found.slice_name,
        axis_sizes=found.axis_sizes,
        arrays=sharded_arrays(found.shardy, found.letters, found.outputs),
        unused=found.unused,
        notes=found.notes,
    )
