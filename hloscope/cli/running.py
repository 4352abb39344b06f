"""The frame of every command: turns its result into a report and an exit code, and errors into messages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from hloscope.base.calls import check_variables
from hloscope.base.canvas import LISTING, Canvas
from hloscope.base.errors import EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED, EXIT_OK, HloscopeError
from hloscope.base.outputs import OutputFiles, check_is_not_an_input, check_output, write_files, write_text
from hloscope.base.progress import StageDisplay
from hloscope.cli.options import Decorator, report_options

if TYPE_CHECKING:
    from hloscope.model.finding import Finding

T = TypeVar("T")


def reports(
    subject: str,
    exit_code: Callable[[Any, dict[str, Any]], int] = lambda _found, _options: EXIT_OK,
    *,
    shown: Callable[[dict[str, Any]], str] | None = None,
    writes_to: str = "FILE",
    then: Callable[[Any, dict[str, Any]], None] = lambda _found, _options: None,
) -> Decorator:
    """Makes a command from a function that takes its options and returns records.

    Args:
        subject: The kind of report, as in `hloscope.report.formats`; it adds the options of its listing, `--format`,
            `-o` and `--debug`.
        exit_code: Returns the exit code for the records and the options.
        shown: Returns the subject for the options, if it may be another one with the same formats.
        writes_to: The meaning of `-o`, for its help.
        then: Called with the records and the options after the report is written.
    """

    def decorate(find: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(find)
        def command(format_name: str, output: str | None, debug: bool, **options: Any) -> None:
            check_streams()
            run_guarded(lambda: _check_output(format_name, output), debug=debug)
            run_guarded(lambda: check_is_not_an_input(output, options.values()), debug=debug)
            listing = {name: options[name] for name in LISTING if name in options}
            found = run_guarded(lambda: find(**options), debug=debug)
            chosen = shown(options) if shown else subject
            run_guarded(lambda: write_formatted(chosen, format_name, found, output, **listing), debug=debug)
            run_guarded(lambda: then(found, options), debug=debug)
            raise SystemExit(exit_code(found, options))

        return report_options(subject, output=writes_to)(command)

    return decorate


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Treats SIGTERM, with which CI ends a job, like Ctrl-C within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def print_text(find: Callable[[], tuple[str, int]], *, debug: bool) -> NoReturn:
    """Runs a command that returns a text and an exit code; anything else that it prints goes to stderr."""
    check_streams()
    with reserve_stdout():
        text, code = run_guarded(find, debug=debug)
    run_guarded(lambda: write_report(text, None), debug=debug)
    raise SystemExit(code)


def check_streams() -> None:
    """Refuses to start with a closed stdout, where a report would be lost or written to another file."""
    if sys.stdout is not None and sys.stderr is not None:
        return
    if sys.stderr is not None:
        click.echo(
            "error: standard output is closed\n   = fix: name a file for the report: -o FILE >/dev/null", err=True
        )
    raise SystemExit(EXIT_COULD_NOT_RUN)


def run_guarded(run: Callable[[], T], *, debug: bool) -> T:
    """Runs a command's work; a problem with the input becomes one message and exit code 2."""
    try:
        with _repeat_lost_interrupts():
            check_variables()
            return run()
    except HloscopeError as error:  # one of a Python function that the user's code calls has no heading
        _fail(f"{'' if error.heading else HloscopeError.heading}{error}", debug)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except MemoryError as error:
        _fail(f"error: out of memory\n   = why: {error or 'this machine has no memory left'}", debug)
    except SystemExit:
        raise
    except BaseException as error:  # exit code 1 is for findings
        _fail(
            f"error: hloscope itself failed: {type(error).__name__}: {error}\n"
            "   = fix: run again with --debug and report the traceback",
            debug,
        )


@contextmanager
def _repeat_lost_interrupts() -> Iterator[None]:
    """Repeats Ctrl-C a moment later if Python drops it, for example in JAX's callback during garbage collection."""
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            before(dropped)
            return
        again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _fail(message: str, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    say(message)
    raise SystemExit(EXIT_COULD_NOT_RUN)


def say(message: str) -> None:
    """Writes a message to stderr, escaped for terminals, since it may quote strings of compiled text."""
    from hloscope.report.escaping import escape_for_terminal

    click.echo(escape_for_terminal(message), err=True)


def make_say(stage: StageDisplay) -> Callable[[str], None]:
    """`say`, with the display of progress hidden during each message."""

    def said(message: str) -> None:
        with stage.hidden():
            say(message)

    return said


def find_failing(findings: Iterable[Finding], fail_on: str | None) -> tuple[Finding, ...]:
    """The findings that fail under `--fail-on`; empty without it."""
    from hloscope.model.finding import Severity, unaccepted

    return () if fail_on is None else unaccepted(findings, Severity(fail_on))


def report_failed_rules(findings: Iterable[Finding]) -> bool:
    """Reports a plug-in's rule that could not run, whose findings are unknown; returns whether there is one."""
    from hloscope.judge.plugins import FAILED

    failed = next((finding for finding in findings if finding.rule == FAILED), None)
    if failed is not None:
        say(f"error: no verdict: {failed.message}")
    return failed is not None


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Redirects file descriptor 1 to stderr within the block, because the output of user code is not the report.

    Both are restored afterwards, even if user code has closed one.
    """
    sys.stdout.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    os.dup2(2, 1)
    _reserved_stdouts.append(saved[1])
    try:
        yield
    finally:
        _reserved_stdouts.pop()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        for name, number in (("stdout", 1), ("stderr", 2)):
            if getattr(getattr(sys, name), "closed", False):
                setattr(sys, name, os.fdopen(number, "w", closefd=False))


def is_shown_as_it_comes() -> bool:
    """Returns whether the report goes to a terminal as text, where a first report is replaced by the whole one."""
    options = click.get_current_context().params
    return options["format_name"] == "text" and options["output"] in (None, "-") and sys.stdout.isatty()


_reserved_stdouts: list[int] = []
"""Duplicates of the standard output that is reserved for the report."""
_begun_reports: list[str] = []
"""The part of the report that is already written."""


def begin_report(subject: str, found: object, stages: StageDisplay) -> None:
    """Writes the beginning of a report to standard output while the rest is still computed; only as text.

    Args:
        subject: The kind of report.
        found: Its records, which the rest of the report omits.
        stages: The display of progress, which is hidden for the output.
    """
    from hloscope.report.formats import render

    options = click.get_current_context().params
    output = options["output"]
    if options["format_name"] != "text" or output not in (None, "-") or not _reserved_stdouts:
        return
    with suppress(OSError), os.fdopen(os.dup(_reserved_stdouts[-1]), "w", errors="replace") as stream:
        text = render(subject, "text", found, _make_canvas_for(output, stream)).rstrip("\n")
        text += "\n" * (2 if subject == "dump" else 1)  # the report itself begins below a list
        with stages.hidden():
            stream.write(text)
            stream.flush()
        _begun_reports.append(text)


def make_canvas(output: str | None) -> Canvas:
    """The width of a report, and whether it has colors, depending on its destination."""
    return _make_canvas_for(output, sys.stdout)


def _make_canvas_for(output: str | None, stream: TextIO) -> Canvas:
    to_terminal = output in (None, "-") and stream.isatty()
    own = os.get_terminal_size(stream.fileno()).columns or 100 if to_terminal else 100
    width = shutil.get_terminal_size((own, 24)).columns if "COLUMNS" in os.environ else own
    colour = to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Canvas(width=width, colour=colour)


def write_formatted(subject: str, format_name: str, found: object, output: str | None, **listing: Any) -> None:
    """Writes records in one of the formats of their subject, which are listed in `hloscope.report.formats`.

    Args:
        subject: The kind of report.
        format_name: One of its formats.
        found: The records.
        output: The file; None or `-` for stdout.
        listing: Values of the options of its listing.

    Raises:
        HloscopeError: It cannot be written.
    """
    from hloscope.report.formats import find_renderer, render, render_files

    if find_renderer(format_name).writes != "text":
        _write_files(render_files(subject, format_name, found), output)
        return
    write_report(render(subject, format_name, found, replace(make_canvas(output), **listing)), output)


def _check_output(format_name: str, output: str | None) -> None:
    from hloscope.report.formats import find_renderer

    renderer = find_renderer(format_name)
    check_output(output, "folder" if renderer.writes == "folder" else "file", renderer.ending)
    if renderer.writes == "file" and output in (None, "-") and sys.stdout.isatty():
        raise HloscopeError("this format is binary", fix="name a file: -o FILE")


def _write_files(files: OutputFiles, output: str | None) -> None:
    """Writes a report in a form other than text, and prints how to open it; a single file may go to standard output."""
    if output is not None and output != "-":
        for said in write_files(files, output):
            say(said)
        return
    try:
        sys.stdout.buffer.write(files.contents[""])
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout(error)
    for said in files.notes:
        say(said)


def write_report(text: str, output: str | None, *, is_last: bool = True) -> None:
    """Writes a finished report to a file or to stdout; a closed pipe is not an error.

    Args:
        text: The report, or a part of it.
        output: The file; None or `-` for stdout.
        is_last: Whether nothing follows; if something does, a closed pipe ends the command.

    Raises:
        HloscopeError: It cannot be written.
    """
    if output is not None and output != "-":
        write_text(text, output)
        return
    begun = _begun_reports.pop() if _begun_reports else ""
    text = _clear_begun(begun, text) + text.removeprefix(begun)
    if begun and not text.strip():
        return
    try:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        click.echo(text.rstrip("\n"), color=True)
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout(error)
        if not is_last:
            raise SystemExit(EXIT_OK) from None
    else:
        if is_last:
            os.dup2(2, 1)  # what the user's code prints at exit is not the report


_STYLE = re.compile(r"\x1b\[[\d;]*m")


def _clear_begun(begun: str, whole: str) -> str:
    """The controls that clear the first report from the terminal; empty if it stays, as the beginning of the whole.

    One that is taller than the terminal stays as well, because what has scrolled away cannot be cleared.
    """
    if whole.startswith(begun) or not sys.stdout.isatty():
        return ""
    width, height = shutil.get_terminal_size()
    rows = sum(max(1, -(-len(_STYLE.sub("", line)) // width)) for line in begun.splitlines())
    return f"\x1b[{rows}F\x1b[J" if rows < height else "\n"


def _discard_stdout(error: OSError) -> None:
    """Discards all further output; a closed pipe is not an error.

    Raises:
        HloscopeError: The error is not a closed pipe.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(error, BrokenPipeError):
        raise HloscopeError("the report cannot be written to standard output", why=error.strerror) from error
