"""`hloscope merge-reports`: one report of the shards of a check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running
from hloscope.cli.check import (
    also_option,
    changes_option,
    check_exit_code,
    check_files,
    report_of_error,
    strict_option,
    write_also,
)
from hloscope.cli.options import config_option
from hloscope.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.report.checks import CheckReport

_EPILOG = """\b
Each shard writes one report, and a later job merges them:
  hloscope check --shard 1/4 --format json -o shard-1.json
  hloscope merge-reports shard-*.json --write junit=hloscope.xml

\b
Exit codes: those of hloscope check. A target that is in no report counts as
one that could not be analyzed.
"""


@click.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="REPORT.json...")
@config_option
@also_option
@strict_option
@changes_option
@running.reports("check", check_exit_code, then=write_also)
def command(files: tuple[str, ...], also: tuple[str, ...], config: str | None, **options: Any) -> CheckReport:
    """Merge the JSON reports of a sharded check, and judge them like a single run."""
    check_files(also)
    from hloscope.api.checking import opened_project
    from hloscope.api.merging import merged

    try:
        with running.stdout_kept_for_the_report():
            project = opened_project(None if config is None else Path(config))
            return merged(project, files, **options)
    except HloscopeError as error:
        return report_of_error(error, also)
