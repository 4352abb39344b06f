"""`hloscope measure`: a program is run and profiled here, and compared, in one go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options

if TYPE_CHECKING:
    from hloscope.api.requests import Result
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
def command(target: str, on: str, runs: int, save: Path | None, **options: Any) -> Result[CompareDocument]:
    """Run TARGET on random arguments under JAX's profiler, and compare the measured times with the prediction."""
    from hloscope.api.measuring import find_measurement

    return find_measurement(targets.request_of(target, options, ahead=False), on=on, runs=runs, folder=save)
