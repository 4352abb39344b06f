"""`hloscope analyze`: the communication of a program, or of each module in a folder of dumps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hloscope.base.calls import parse_capacity
from hloscope.base.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK, HloscopeError, TargetError
from hloscope.base.progress import StageDisplay, show_progress
from hloscope.base.units import pluralize
from hloscope.cli import running, targets
from hloscope.cli.options import (
    check_try_options,
    combine_options,
    fail_on_option,
    jobs_option,
    quick_option,
    rule_options,
    source_root_option,
    target_options,
    try_options,
)

if TYPE_CHECKING:
    from hloscope.app.dumps import HowToAnalyze
    from hloscope.app.requests import Request, Trying
    from hloscope.compile.dumps import Dump
    from hloscope.model import Analysis
    from hloscope.report.dumps import DumpedResult

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


_FORMATS_OF_ALL = ("text", "json")
_MOST_NAMED = 5


class _Capacity(click.ParamType):  # type: ignore[type-arg]
    """A size of memory: `4GiB`, `500MB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes."""
        found = parse_capacity(value)
        return self.fail(f"{value!r} is not a memory size: write 4GiB or 500MB", param, ctx) if found is None else found


def _choose_exit_code(found: Analysis, options: dict[str, Any]) -> int:
    broken = running.find_failing(found.findings, options["fail_on"])
    if not broken:
        return EXIT_OK
    if running.report_failed_rules(broken):
        return EXIT_COULD_NOT_RUN
    count = pluralize(len(broken), "finding")
    running.say(f"failed: {count} at or above --fail-on {options['fail_on']}: {broken[0].message}")
    return EXIT_BROKEN


_folder_options = combine_options(
    click.option("--only", metavar="NAME", help="For a folder of dumps: the module with this name, number or file."),
    click.option(
        "--memory",
        type=_Capacity(),
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
@quick_option
@try_options("on a terminal, 20s or 1.2 times its compile, where an axis is lost")
@source_root_option
@rule_options
@fail_on_option()
@running.reports("analysis", _choose_exit_code)
def command(target: str, **options: Any) -> Analysis:
    """Compile TARGET for a TPU slice, and report which collectives move how many bytes over which mesh axis."""
    request = targets.make_request(target, options, only=options["only"], helpers=targets.find_own_helpers())
    check_try_options(options["try_s"], no_try=options["no_try"])
    request = replace(request, trying=_find_trying(options))
    if not options["quick"] and running.is_shown_as_it_comes():
        request = replace(request, begins=True)
    if request.is_folder:
        return _find_in_folder(request, options)
    _refuse_options_of_folders(target, options)
    from hloscope.app.analyses import find_analysis

    return find_analysis(request)


def _find_trying(options: dict[str, Any]) -> Trying:
    """The wish to turn a decision: on a terminal, or if asked for."""
    from hloscope.app.requests import Trying

    is_default = running.is_shown_as_it_comes() and not os.environ.get("CI")
    wanted = options["try_s"] is not None or (is_default and not options["no_try"])
    return Trying(wanted=wanted, seconds=options["try_s"])


# ---- folders of dumps


def _refuse_options_of_folders(target: str, options: dict[str, Any]) -> None:
    """Refuses options of folders for any other target.

    Raises:
        TargetError: Such an option is given.
    """
    for name in ("only", "memory", "jobs"):
        if options[name]:
            what = f"{target} is not one" if os.path.exists(target) else f"there is no folder {target}"
            raise TargetError(f"--{name} is for a folder of XLA dumps, but {what}", fix="leave it out")


def _find_in_folder(request: Request, options: dict[str, Any]) -> Analysis:
    """The analysis of the largest module in a folder, or of the named one, after a list of all modules.

    With `--all`, every module is reported as soon as it is done, and the command ends here.

    Raises:
        HloscopeError: There is no such module, it cannot be read, or options contradict each other.
    """
    from hloscope.app.analyses import find_analysis
    from hloscope.app.dumps import HowToAnalyze
    from hloscope.compile.dumps import read_dump

    if options["everything"]:
        dump = read_dump(request.target)
        _report_all(dump, HowToAnalyze(judging=request.judging, facts=request.facts_of_text()), options)
    for name in ("memory", "jobs"):
        if options[name]:
            raise TargetError(f"--{name} requires --all", fix="leave it out, or analyze every module: --all")
    listed: list[Dump] = []

    def begin(subject: str, found: Dump, stage: StageDisplay) -> None:
        listed.append(found)
        running.begin_report(subject, found, stage)

    try:
        return find_analysis(replace(request, door=replace(request.door, begin=begin)))
    except HloscopeError as error:
        if listed:
            error.fix = "; ".join(filter(None, (error.fix, "or analyze another one: --only NAME, --all")))
            error.args = (str(error),)
        raise


def _report_all(dump: Dump, how: HowToAnalyze, options: dict[str, Any]) -> NoReturn:
    """Reports every module as soon as it is done, and ends the command."""
    from hloscope.app.dumps import analyze_all

    params = click.get_current_context().params
    form, output = params["format_name"], params["output"]
    if options["only"] is not None:
        raise TargetError("--only and --all exclude each other", fix="leave one of them out")
    if form not in _FORMATS_OF_ALL:
        raise TargetError(
            f"--format {form} reports on one module only", fix=f"with --all, use {' or '.join(_FORMATS_OF_ALL)}"
        )
    results: list[DumpedResult] = []
    begun = time.monotonic()
    with show_progress() as stage, _open_report(output, stage) as write:
        rows = _Rows(dump, write, output) if form == "text" else _Documents(write)
        stage(f"analyzing {pluralize(len(dump.modules), 'module')}")
        try:
            for result in analyze_all(dump, how, workers=options["jobs"], memory_bytes=options["memory"]):
                results.append(result)
                rows.add(result)
                stage(f"{len(results)} of {len(dump.modules)} modules analyzed")
        finally:
            rows.end(results, time.monotonic() - begun)
    raise SystemExit(_choose_exit_code_of_all(results, options["fail_on"]))


class _Documents:
    """A report with the JSON document of one module on each line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def add(self, result: DumpedResult) -> None:
        """Writes the document of one module."""
        from hloscope.base.documents import encode_document
        from hloscope.report.dumps import make_module_document

        self._write(encode_document(make_module_document(result)))

    def end(self, results: list[DumpedResult], seconds: float) -> None:
        """Does nothing, because the report is complete at any time."""


class _Rows:
    """A report with a headline, a row for each module, and a summary."""

    def __init__(self, dump: Dump, write: Callable[[str], None], output: str | None) -> None:
        from hloscope.report.dumps import Rows

        self._write, self._canvas, self._dump = write, running.make_canvas(output), dump
        self._rows = Rows.of(dump, self._canvas.width)
        self._draw(self._rows.render_head(dump))

    def add(self, result: DumpedResult) -> None:
        """Writes the row of one module."""
        self._draw([self._rows.render_row(result)])

    def end(self, results: list[DumpedResult], seconds: float) -> None:
        """Writes the summary."""
        from hloscope.report.dumps import render_summary

        self._draw(render_summary(self._dump, results, seconds))

    def _draw(self, lines: Any) -> None:
        from hloscope.report.layout import draw_lines

        self._write(draw_lines(lines, self._canvas.width, self._canvas.colour).rstrip("\n"))


@contextmanager
def _open_report(output: str | None, stage: StageDisplay) -> Iterator[Callable[[str], None]]:
    """Opens the report, and yields a function that writes a line of it at once.

    Raises:
        HloscopeError: The report cannot be written.
    """
    if output is None or output == "-":

        def write(text: str) -> None:
            with stage.hidden():
                running.write_report(text, None, is_last=False)

        yield write
        return
    try:
        with open(output, "w", encoding="utf-8", buffering=1) as stream:
            yield lambda text: print(text, file=stream, flush=True)
    except OSError as error:
        raise HloscopeError(f"the report cannot be written to {output}", why=error.strerror) from error


def _choose_exit_code_of_all(results: list[DumpedResult], fail_on: str | None) -> int:
    unread = [result.module.file for result in results if result.analysis is None]
    if unread:
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        named = ", ".join(unread[:_MOST_NAMED]) + more
        running.say(f"error: {len(unread)} of {pluralize(len(results), 'module')} could not be analyzed: {named}")
        return EXIT_COULD_NOT_RUN
    broken = [
        finding
        for result in results
        if result.analysis is not None
        for finding in running.find_failing(result.analysis.findings, fail_on)
    ]
    if not broken:
        return EXIT_OK
    running.say(f"failed: {pluralize(len(broken), 'finding')} at or above --fail-on {fail_on}: {broken[0].message}")
    return EXIT_COULD_NOT_RUN if running.report_failed_rules(broken) else EXIT_BROKEN
