"""`hloscope measure`: a program is run and profiled here, and compared, in one go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options
from hloscope.errors import TargetError
from hloscope.progress import progress

if TYPE_CHECKING:
    from hloscope.measured.model import CompareDocument

_EPILOG = """\b
Examples
  hloscope measure model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512
  hloscope measure model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=64,D=512 --on cpu
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.option(
    "--on",
    type=click.Choice(["tpu", "cpu"]),
    default="tpu",
    show_default=True,
    help="The attached TPU, or simulated CPU devices, for which no times are predicted.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of runs to profile.",
)
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Save the profile to DIR.")
@target_options()
@running.reports("comparison")
def command(target: str, on: str, runs: int, save: Path | None, **options: Any) -> CompareDocument:
    """Run TARGET on random arguments under JAX's profiler, and compare the measured times with the prediction."""
    from hloscope.api.measuring import measure_function
    from hloscope.store import default_store

    if targets.is_text(target):
        raise TargetError(f"{target} cannot be run", why="it is HLO text", fix="name the function: module:fn")
    facts = targets.prepared_facts(options)
    with running.stdout_kept_for_the_report(), progress() as stage:
        return measure_function(target, facts, on=on, runs=runs, folder=save, stage=stage, store=default_store())
