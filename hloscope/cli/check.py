"""`hloscope check`: every target against its contract and its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloscope.cli import running
from hloscope.cli.options import jobs_option, limit_option, project_options, report_options
from hloscope.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK, NotationError
from hloscope.report.formats import FORMATS

if TYPE_CHECKING:
    from hloscope.report.checks import CheckReport

_EPILOG = """\b
The targets are those of [tool.hloscope] in pyproject.toml, or of hloscope.toml:
  [tool.hloscope.targets.step]
  function = "model.py:step"
  mesh = { data = 4, model = 2 }
  slice = "v5e:2x4"
  args = ["bf16[512@data,2048]", "bf16[2048,8192@model]"]
  contract = ["all-reduce@model <= 2MB", "nothing else", "hbm <= 14GiB"]
  fail-on = "warning"    # what rules find fails it too

\b
Exit codes: 0 all as expected, 1 something is not, 2 a target could not be analysed.
"""


@click.command(epilog=_EPILOG)
@click.argument("names", nargs=-1)
@project_options
@jobs_option
@click.option(
    "--write", "also", multiple=True, metavar="FORMAT=FILE", help="Write a report in another format as well. Repeats."
)
@limit_option
@report_options("check")
def command(  # noqa: PLR0917  # click passes them by name
    names: tuple[str, ...],
    config: str | None,
    no_cache: bool,
    jobs: int | None,
    also: tuple[str, ...],
    timeout_s: float | None,
    format_name: str,
    output: str | None,
    debug: bool,
) -> None:
    """Hold targets, all of them or those NAMED, against their contracts and their baselines."""
    running.check_streams()
    others = running.guarded(lambda: [_format_and_file(text) for text in also], debug=debug)
    report = running.guarded(
        lambda: checked(names, config=config, cached=not no_cache, workers=jobs, timeout_s=timeout_s), debug=debug
    )
    running.guarded(lambda: _write(report, others), debug=debug)
    running.guarded(lambda: running.write_formatted("check", format_name, report, output), debug=debug)
    raise SystemExit(exit_code(report))


def _write(report: CheckReport, others: list[tuple[str, str]]) -> None:
    for format_name, path in others:
        running.write_formatted("check", format_name, report, path)


def _format_and_file(text: str) -> tuple[str, str]:
    """`sarif=hloscope.sarif`, as its two parts."""
    name, equals, path = text.partition("=")
    if not equals or not path or name not in FORMATS["check"]:
        raise NotationError(
            f"--write {text!r} is no format and file",
            fix=f"write FORMAT=FILE, FORMAT one of {', '.join(FORMATS['check'])}",
        )
    return name, path


def checked(
    names: tuple[str, ...], *, config: str | None, cached: bool, workers: int | None, timeout_s: float | None
) -> CheckReport:
    """Runs the check, with progress on a terminal."""
    from hloscope.api.checking import check, unused_baselines
    from hloscope.config import find_project
    from hloscope.report.checks import CheckReport

    project = find_project(Path.cwd(), named=None if config is None else Path(config))
    with running.progress() as stage:
        stage("compiling")
        checks = check(
            project,
            names,
            cached=cached,
            workers=workers,
            timeout_s=timeout_s,
            told=lambda name: stage(f"compiling, {name} is done"),
        )
    unused = () if names else unused_baselines(project)
    return CheckReport(checks=checks, root=project.root, unused_baselines=unused)


def exit_code(report: CheckReport) -> int:
    """2 when a target could not be analysed, 1 when one is not as expected."""
    if report.not_run:
        return EXIT_COULD_NOT_RUN
    return EXIT_BROKEN if report.failed else EXIT_OK
