"""`hloscope analyze`: the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import fail_on_option, report_options, rule_options, source_root_option, target_options
from hloscope.errors import EXIT_BROKEN, EXIT_OK
from hloscope.units import plural

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis

_EPILOG = """\b
TARGET is one of
  package.module:fn     a function, a jitted or shard_mapped one, or a factory returning (fn, args)
  path/to/file.py:fn    the same, by file
  step.hlo, step.txt    HLO text, such as compiled.as_text() prints; also .gz, .xz, .zst, .pb
  -                     HLO text on standard input

\b
Examples
  hloscope analyze model.py:step --mesh data=4,model=2 --arg 'bf16[8@data,2048]' --arg 'bf16[2048,8192@model]'
  hloscope analyze model.py:step --mesh X=16 --arg 'f32[S@X,D]' --dim S=4096,D=512 --slice v5p:2x2x4
  hloscope analyze step.hlo --mesh data=4,model=2 --format json
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options()
@click.option("--save-hlo", metavar="FILE", help="Write the compiled HLO text, which the report's lines refer to.")
@source_root_option
@rule_options
@fail_on_option()
@report_options("analysis")
def command(
    target: str, format_name: str, output: str | None, fail_on: str | None, debug: bool, **options: Any
) -> None:
    """Compile TARGET for a TPU slice, and report which collectives move how many bytes over which mesh axis."""
    running.check_streams()
    found = running.guarded(lambda: _analyze(target, options), debug=debug)
    running.guarded(lambda: running.write_formatted("analysis", format_name, found, output), debug=debug)
    raise SystemExit(_exit_code(found, fail_on))


def _analyze(target: str, options: dict[str, Any]) -> Analysis:
    targets.start_compiler(target, options["slice"])
    return targets.analysis_of_target(target, options, targets.judging_of(options))


def _exit_code(found: Analysis, fail_on: str | None) -> int:
    broken = running.failing(found.findings, fail_on)
    if not broken:
        return EXIT_OK
    running.say(f"failed: {plural(len(broken), 'finding')} as severe as --fail-on {fail_on}: {broken[0].message}")
    return EXIT_BROKEN
