"""What Shardy makes of a target's shardings, without a compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hloscope.errors import CompileError
from hloscope.program.loading import loaded, name_of

if TYPE_CHECKING:
    from hloscope.program.target import TargetFacts
    from hloscope.report.shardings import ShardingTable


def shardings_of(
    target: Callable[..., Any] | str, facts: TargetFacts, *, stage: Callable[[str], None] = lambda _: None
) -> ShardingTable:
    """Every argument, constraint and output and the large intermediates, with their shardings.

    Raises:
        HloscopeError: Bad input, JAX refuses the program, or Shardy cannot be asked.
    """
    from hloscope.program.devices import on_enough_devices
    from hloscope.program.importing import modules_of
    from hloscope.program.propagating import Propagated, propagate
    from hloscope.program.surroundings import one_call
    from hloscope.program.target import attached_facts
    from hloscope.report.shardings import ShardingTable
    from hloscope.why.shardings import sharded_arrays

    def work() -> Propagated:
        stage("importing")
        function = loaded(target, facts)
        with modules_of(function):
            return propagate(function, facts.over(attached_facts(function)), name=name_of(target), stage=stage)

    with one_call():
        found = on_enough_devices((target,), facts, work)
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
