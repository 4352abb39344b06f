"""`hloscope analyze`: the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import folders, running, targets
from hloscope.cli.options import (
    fail_on_option,
    group_by_option,
    jobs_option,
    rule_options,
    source_option,
    source_root_option,
    target_options,
    together,
)
from hloscope.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.units import plural

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis
    from hloscope.api.requests import Result

_EPILOG = """\b
TARGET is one of
  package.module:fn   a function, plain, jitted or shard_mapped, or a factory
                      that returns (fn, args)
  path/to/file.py:fn  the same, by file
  step.hlo, step.txt  HLO text, such as compiled.as_text() prints; also .gz,
                      .xz, .zst, .pb
  dump/               a folder of XLA dumps (xla_dump_to): its largest
                      compiled module
  -                   HLO text on standard input

\b
Examples
  hloscope analyze model.py:step --mesh data=4,model=2 \\
      --arg 'bf16[8@data,2048]' --arg 'bf16[2048,8192@model]'
  hloscope analyze model.py:step --mesh X=16 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --slice v5p:2x2x4
  hloscope analyze step.hlo --mesh data=4,model=2 --format json
  hloscope analyze dump/ --only jit_train_step
  hloscope analyze dump/ --all --format json -o modules.jsonl
"""


def _exit_code(found: Analysis, options: dict[str, Any]) -> int:
    broken = running.failing(found.findings, options["fail_on"])
    if not broken:
        return EXIT_OK
    if running.rules_failed(broken):
        return EXIT_COULD_NOT_RUN
    count = plural(len(broken), "finding")
    running.say(f"failed: {count} at or above --fail-on {options['fail_on']}: {broken[0].message}")
    return EXIT_BROKEN


_folder_options = together(
    click.option("--only", metavar="NAME", help="For a folder of dumps: the module with this name, number or file."),
    click.option(
        "--memory",
        type=folders.Capacity(),
        metavar="SIZE",
        help="Memory limit of --all. [default: half of what is free]",
    ),
    jobs_option,
)


@click.command(epilog=_EPILOG)
@click.argument("target")
@_folder_options
@target_options()
@click.option("--save-hlo", metavar="FILE", help="Write the compiled HLO text, to which the report's lines refer.")
@source_root_option
@rule_options
@fail_on_option()
@group_by_option
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="List every collective and every finding individually; for a folder of dumps, analyze every module.",
)
@source_option
@running.reports("analysis", _exit_code)
def command(target: str, **options: Any) -> Result[Analysis]:
    """Compile TARGET for a TPU slice, and report which collectives move how many bytes over which mesh axis."""
    request = targets.request_of(target, options, only=options["only"], helpers=targets.helpers())
    if request.is_folder:
        return folders.find_in_folder(request, options)
    folders.refuse_options_of_folders(target, options)
    from hloscope.api.analyses import find_analysis

    return find_analysis(request)
