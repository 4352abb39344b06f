"""`hloscope compare`: a profile beside what is predicted of its programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options
from hloscope.outputs import check_report_file

if TYPE_CHECKING:
    from hloscope.api.requests import Result
    from hloscope.measured.model import CompareDocument

_EPILOG = """\b
Examples
  hloscope compare --profile /tmp/trace
  hloscope compare model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --profile /tmp/trace
  hloscope compare step.hlo --mesh data=4,model=2 --profile /tmp/trace \\
      --save calibration.toml
"""


def _write(found: CompareDocument, options: dict[str, Any]) -> None:
    """What the profile says of the chip, where that is asked for."""
    if options["save"] is None:
        return
    from hloscope.hardware.overrides import is_figure
    from hloscope.measured.fitting import calibration_file

    running.write_report(calibration_file(found, is_figure), options["save"])
    running.say(f"wrote {options['save']}: use it with --chip-override {options['save']}")


@click.command(epilog=_EPILOG)
@click.argument("target", required=False)
@click.option(
    "--profile",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output of jax.profiler: its folder, the folder of one run in it, or an xplane.pb.",
)
@click.option("--only", metavar="NAME", help="Compare only this program of the profile, such as jit_step.")
@click.option("--save", metavar="FILE", help="Save the chip figures that the profile measures, for --chip-override.")
@target_options()
@running.reports("comparison", then=_write)
def command(
    target: str | None, profile: Path, only: str | None, save: str | None, **options: Any
) -> Result[CompareDocument]:
    """Compare a profile's measured times with the prediction: of the step, each operation and each collective.

    Without TARGET, the programs stored in the profile itself are priced.
    """
    check_report_file(save)
    request = targets.request_of(target, options)
    from hloscope.api.comparing import find_comparison

    return find_comparison(request, profile, only=only)
