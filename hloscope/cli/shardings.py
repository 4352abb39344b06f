"""`hloscope shardings`: every array's sharding before anything is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options

if TYPE_CHECKING:
    from hloscope.api.requests import Result
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
@running.reports("shardings")
def command(target: str, draw: bool, **options: Any) -> Result[ShardingTable]:
    """Show the shardings of TARGET's arguments, constraints, outputs and large arrays, as Shardy propagates them."""
    request = targets.request_of(target, options)
    from hloscope.api.shardings import find_shardings

    return find_shardings(request, subject="drawn_shardings" if draw else "shardings")
