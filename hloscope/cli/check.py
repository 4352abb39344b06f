"""`hloscope check`: checks every target against its contract and its baseline."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.base.errors import (
    EXIT_BROKEN,
    EXIT_COULD_NOT_RUN,
    EXIT_INTERRUPTED,
    EXIT_OK,
    HloscopeError,
    NotationError,
    did_you_mean,
)
from hloscope.base.outputs import check_report_file
from hloscope.base.units import pluralize
from hloscope.cli import running, targets
from hloscope.cli.options import Decorator, config_option, executor_option, jobs_option, limit_option, project_options
from hloscope.report.formats import find_renderer, list_formats

if TYPE_CHECKING:
    from hloscope.judge.checks import Checked
    from hloscope.report.checks import CheckReport

_EPILOG = """\b
Targets are those of [tool.hloscope] in pyproject.toml, or of hloscope.toml:
  [tool.hloscope.targets.step]
  function = "model.py:step"
  mesh = { data = 4, model = 2 }
  slice = "v5e:2x4"
  args = ["bf16[512@data,2048]", "bf16[2048,8192@model]"]
  contract = ["all-reduce@model <= 2MB", "nothing else", "hbm <= 14GiB"]
  fail-on = "warning"    # findings of rules fail the target too

\b
Exit codes: 0 everything is as expected, 1 something is not, 2 a target could
not be analyzed.
"""


def choose_check_exit_code(report: CheckReport, _options: object) -> int:
    """The exit code: 130 after Ctrl-C, 2 if a target could not be analyzed or a rule failed, 1 if a target failed."""
    if report.interrupted:
        return EXIT_INTERRUPTED
    if report.not_run or running.report_failed_rules(
        finding for checked in report.checks for finding in checked.findings
    ):
        return EXIT_COULD_NOT_RUN
    return EXIT_BROKEN if report.failed else EXIT_OK


def _parse_format_and_file(text: str) -> tuple[str, str]:
    """Parses `sarif=hloscope.sarif` into the format and the file.

    Raises:
        NotationError: There is no such format, or no file of that name can be written.
    """
    name, _, path = text.partition("=")
    known = list_formats("check")
    if name not in known:
        otherwise = f"write FORMAT=FILE, FORMAT one of {', '.join(known)}"
        fix = did_you_mean(name, known, otherwise) if "=" in text else otherwise
        raise NotationError(f"--write {text!r} does not begin with a format", fix=fix)
    if path in ("", "-"):
        raise NotationError(f"--write {text!r} does not name a file", fix=f"write {name}=FILE; standard output is -o -")
    if not os.path.isdir(Path(path).resolve().parent):
        raise NotationError(f"the folder of --write {text!r} does not exist", fix="create it first")
    check_report_file(path, find_renderer(name).ending)
    return name, path


def check_files(also: tuple[str, ...]) -> None:
    """Refuses files and formats that cannot be written, before anything is compiled.

    Raises:
        NotationError: A file or a format cannot be written.
    """
    for text in also:
        _parse_format_and_file(text)


def write_also(report: CheckReport, options: dict[str, Any]) -> None:
    """Writes the other formats, after the report itself."""
    for text in options["also"]:
        format_name, path = _parse_format_and_file(text)
        running.write_formatted("check", format_name, report, path)


also_option: Decorator = click.option(
    "--write", "also", multiple=True, metavar="FORMAT=FILE", help="Also write a report in this format. Repeats."
)
strict_option: Decorator = click.option(
    "--strict/--no-strict",
    default=None,
    help="Whether missing baselines, baselines without a target and unused allowances fail. [default: where CI is set]",
)
changes_option: Decorator = click.option(
    "--fail-on",
    "changes",
    type=click.Choice(["increase", "any"]),
    default="increase",
    help="Which changes from a baseline fail: those for the worse or that lose something, or any.",
)


@click.command(epilog=_EPILOG)
@click.argument("names", nargs=-1)
@project_options
@jobs_option
@executor_option
@click.option("--shard", metavar="I/N", help="Check one of N shards of the targets; merge with hloscope merge-reports.")
@also_option
@strict_option
@changes_option
@limit_option
@running.reports("check", choose_check_exit_code, then=write_also)
def command(names: tuple[str, ...], also: tuple[str, ...], strict: bool | None, **options: Any) -> CheckReport:
    """Check the named targets, or all, against their contracts and baselines."""
    check_files(also)
    try:
        return _check_targets(names, strict, options)
    except HloscopeError as error:
        return make_error_report(error, also)


def _check_targets(names: tuple[str, ...], strict: bool | None, options: dict[str, Any]) -> CheckReport:
    """The report of a check; if it is interrupted, with the targets that were checked by then."""
    from hloscope.app.checking import add_unfinished, check_project, make_project_report, open_project
    from hloscope.app.jobs import Shard, run_over_targets

    config, shard = options.pop("config"), options.pop("shard")
    shard = None if shard is None else Shard.read(shard)
    with running.reserve_stdout():  # plug-ins are the project's own code
        project = open_project(None if config is None else Path(config))
    known: dict[str, Checked] = {}

    def line(checked: Checked) -> str:
        known[checked.name] = checked
        return _format_line(checked)

    try:
        with running.interrupt_on_sigterm():
            checks = run_over_targets(
                check_project,
                project,
                names,
                door=targets.make_front_door(),
                **targets.make_run_options(options),
                changes=options["changes"],
                shard=shard,
                line=line,
            )
    except KeyboardInterrupt:
        checks = add_unfinished(project, names, known, shard=shard)
        return replace(make_project_report(project, checks, names, shard=shard, strict=strict), interrupted=True)
    if (words := _describe_sources(checks)) is not None:
        running.say(words)
    return make_project_report(project, checks, names, shard=shard, strict=strict)


def _describe_sources(checks: tuple[Checked, ...]) -> str | None:
    """`38 of 40 compiles came from the cache, 12 of them from the shared one`; None if nothing was compiled."""
    sources = Counter(checked.compile_from for checked in checks if checked.compile_from is not None)
    shared, known = sources["shared cache"], sources["cache"] + sources["shared cache"]
    if not sources.total():
        return None
    found = f"{known} of {pluralize(sources.total(), 'compile')} came from the cache"
    return f"{found}, {shared} of them from the shared one" if shared else found


def _format_line(checked: Checked) -> str:
    """The line of a target: `ok      block  12.3 s`."""
    from hloscope.report.checks import list_asides

    mark = "ERROR" if checked.error is not None else "ok" if checked.passed else "FAILED"
    parts = [mark.ljust(6), checked.name, *([] if checked.seconds is None else [f"{checked.seconds:.1f} s"])]
    return "  ".join((*parts, *list_asides(checked)))


def make_error_report(error: HloscopeError, also: tuple[str, ...]) -> CheckReport:
    """The report of a check that could not begin, for example because of a mistake in the targets file.

    Raises:
        HloscopeError: The error itself, if the report is text.
    """
    from hloscope.judge.checks import make_failed_check
    from hloscope.report.checks import CheckReport

    report = CheckReport(checks=(make_failed_check("hloscope check", error),), root=Path.cwd())
    if click.get_current_context().params["format_name"] == "text":
        write_also(report, {"also": also})
        raise error
    running.say(str(error))
    return report


_MERGE_EPILOG = """\b
Each shard writes one report, and a later job merges them:
  hloscope check --shard 1/4 --format json -o shard-1.json
  hloscope merge-reports shard-*.json --write junit=hloscope.xml

\b
Exit codes: those of hloscope check. A target that is in no report counts as
one that could not be analyzed.
"""


@click.command(epilog=_MERGE_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="REPORT.json...")
@config_option
@also_option
@strict_option
@changes_option
@running.reports("check", choose_check_exit_code, then=write_also)
def merge_reports(files: tuple[str, ...], also: tuple[str, ...], config: str | None, **options: Any) -> CheckReport:
    """Merge the JSON reports of a sharded check, and judge them like a single run."""
    check_files(also)
    from hloscope.app.checking import merge_report_files, open_project

    try:
        with running.reserve_stdout():
            project = open_project(None if config is None else Path(config))
            return merge_report_files(project, files, **options)
    except HloscopeError as error:
        return make_error_report(error, also)
