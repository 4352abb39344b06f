"""`hloscope explain`: why a collective is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import report_options, source_root_option, target_options

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis

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


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.argument("collective", required=False)
@target_options()
@source_root_option
@report_options()
def command(
    target: str, collective: str | None, format_name: str, output: str | None, debug: bool, **options: Any
) -> None:
    """Say why the collectives of TARGET are there: which array, which line, which shardings met."""
    running.check_streams()

    def run() -> str:
        targets.start_compiler(target, options["slice"])
        from hloscope.analysis.places import Sources
        from hloscope.report.explanation import FORMATS, render_overview
        from hloscope.why import explain

        root = options["source_root"]
        sources = Sources(captured=not targets.is_text(target), root=None if root is None else Path(root))
        named = None if collective == _ALL else collective
        explanations = explain(_analysis(target, options), named, sources=sources)
        render = render_overview if collective is None and format_name == "text" else FORMATS[format_name]
        return render(explanations, running.canvas(output))

    text = running.guarded(run, debug=debug)
    running.guarded(lambda: running.write_report(text, output), debug=debug)


def _analysis(target: str, options: dict[str, Any]) -> Analysis:
    from hloscope.api import analysis_of, analyze_text

    if targets.is_text(target):
        name, text = targets.read_text(target, options)
        return analyze_text(text, name=name, **targets.text_facts(options))
    return analysis_of(targets.capture_function(target, options), target)
