"""`hloscope graph`: a compiled program as a graph of instructions."""

from __future__ import annotations

from typing import Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options

_EPILOG = """\b
Examples
  hloscope graph step.hlo --slice v5e:2x4 --around all-gather.8 --hops 3 \\
      --format svg -o around.svg
  hloscope graph model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --format graphml -o step.graphml
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options()
@click.option("--computation", metavar="NAME", help="One HLO computation. [default: all that run in a step]")
@click.option("--around", metavar="INSTRUCTION", help="Only what is near an instruction, such as all-gather.8.")
@click.option(
    "--hops",
    type=click.IntRange(0),
    metavar="N",
    help="How many edges away from --around. [default: 3]",
)
@running.reports("graph")
def command(target: str, computation: str | None, around: str | None, hops: int | None, **options: Any) -> Any:
    """Write TARGET's instructions as a graph, with times, bytes and axes, and the critical path marked."""
    request = targets.request_of(target, options, helpers=targets.helpers())
    from hloscope.api.graphs import find_graph

    return find_graph(request, computation=computation, around=around, hops=hops)
