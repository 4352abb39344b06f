"""`hloscope timeline`: what runs when in one step, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import target_options

if TYPE_CHECKING:
    from hloscope.analysis.model.timeline import Timeline
    from hloscope.api.requests import Result

_EPILOG = """\b
Examples
  hloscope timeline model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --slice v5e:2x4
  hloscope timeline step.hlo --slice v6e:2x4 --format json -o step.json
  hloscope timeline step.hlo --slice v6e:2x4 --format trace -o step.json.gz
  hloscope timeline step.hlo --slice v6e:2x4 --format xplane -o logs

\b
https://ui.perfetto.dev opens the trace, XProf and TensorBoard the folder.
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options()
@running.reports("timeline")
def command(target: str, **options: Any) -> Result[Timeline]:
    """Predict the timeline of one step of TARGET: compute, transfers and waits. A loop is one body with a count."""
    request = targets.request_of(target, options)
    from hloscope.api.timelines import find_timeline

    return find_timeline(request)
