"""`hloscope price`: the same program on several slices, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import executor_option, target_options
from hloscope.errors import EXIT_COULD_NOT_RUN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.api.requests import Result
    from hloscope.report.price import Priced, Prices

_EPILOG = """\b
Examples
  hloscope price model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --slice v5e:2x4 --slice v6e:2x4
  hloscope price step.hlo --mesh data=4,model=2 --slice v5e:2x4 \\
      --chip-override hbm_bytes_per_s=750e9
"""


def _exit_code(priced: Priced, _options: object) -> int:
    """2 when the program could not be compiled for one of the slices."""
    from hloscope.analysis.model import Analysis

    return EXIT_OK if all(isinstance(priced_for, Analysis) for priced_for in priced) else EXIT_COULD_NOT_RUN


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.option(
    "--slice",
    "slices",
    multiple=True,
    required=True,
    metavar="NAME",
    help="v5e:2x4, v5p-16, 2*v5e:2x4. Repeats: each is a row of the table.",
)
@target_options(without=("slice",))
@executor_option
@running.reports("prices", _exit_code)
def command(target: str, slices: tuple[str, ...], executor: str | None, **options: Any) -> Result[Prices]:
    """Predict how long one step of TARGET takes on each slice: compute, and exposed communication."""
    request = targets.request_of(target, {**options, "slice": slices[0]})
    from hloscope.api.pricing import find_prices

    return find_prices(request, slices, executor)
