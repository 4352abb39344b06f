"""`hloscope shardings`: every array's sharding before anything is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options
from hloscope.errors import TargetError
from hloscope.progress import progress

if TYPE_CHECKING:
    from hloscope.report.shardings import ShardingTable

_EPILOG = """\b
TARGET is a function: package.module:fn or path/to/file.py:fn.
Arrays marked "moves" are resharded before they are used; `hloscope explain`
explains why.
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options(without=("chip_overrides", "kernel_costs"))
@click.option(
    "--draw", is_flag=True, help="Draw how the mesh shards each array, and which places in the mesh hold each shard."
)
@running.reports("shardings", shown_as=lambda options: "drawn_shardings" if options["draw"] else "shardings")
def command(target: str, draw: bool, **options: Any) -> ShardingTable:
    """Show the shardings of TARGET's arguments, constraints, outputs and large arrays, as Shardy propagates them."""
    del draw  # which says how it is shown
    targets.start_compiler(target, None)
    from hloscope.api.shardings import shardings_of

    if targets.is_text(target):
        raise TargetError(
            f"{target} is already compiled, and its shardings are already propagated",
            fix="name the function itself, or use hloscope analyze",
        )
    facts = targets.prepared_facts(options)
    with running.stdout_kept_for_the_report(), progress() as stage:
        return shardings_of(target, facts, stage=stage)
