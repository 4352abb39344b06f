"""`hloscope explain`: why a collective is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import source_root_option, target_options

if TYPE_CHECKING:
    from hloscope.why.explanation import Explanation

_EPILOG = """\b
COLLECTIVE is an instruction's name, such as all-gather.8, its number in the list of `hloscope analyze`, counted
from 1, or all. Without it the one that moves most is explained and the others are listed; JSON has all of them.

\b
Examples
  hloscope explain model.py:step
  hloscope explain model.py:step all-gather.8
  hloscope explain model.py:step all
  hloscope explain model.py:step 1 --format json
"""

_ALL = "all"


def _subject(options: dict[str, Any]) -> str:
    return "overview" if options["collective"] is None else "explanation"


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.argument("collective", required=False)
@target_options()
@source_root_option
@running.reports("explanation", shown_as=_subject)
def command(target: str, collective: str | None, **options: Any) -> tuple[Explanation, ...]:
    """Say why the collectives of TARGET are there: which array, which line, which shardings met."""
    targets.start_compiler(target, options["slice"])
    from hloscope.analysis.places import Sources
    from hloscope.why import explain

    root = options["source_root"]
    sources = Sources(captured=not targets.is_text(target), root=None if root is None else Path(root))
    named = None if collective == _ALL else collective
    return explain(targets.analysis_of_target(target, options), named, sources=sources)
