"""What every command shares: from what it finds to a report and an exit code, errors to messages, progress."""

from __future__ import annotations

import os
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

from hloscope.base.errors import EXIT_COULD_NOT_RUN, EXIT_INTERRUPTED, EXIT_OK, HloscopeError
from hloscope.base.outputs import OutputFiles, check_is_not_an_input, check_output, write_files, write_text
from hloscope.base.progress import StageDisplay
from hloscope.cli.options import LISTING, Decorator, report_options

if TYPE_CHECKING:
    from hloscope.app.requests import Result
    from hloscope.model.finding import Finding
    from hloscope.report.renderer import Canvas

T = TypeVar("T")


def reports(
    subject: str,
    exit_code: Callable[[Any, dict[str, Any]], int] = lambda _found, _options: EXIT_OK,
    *,
    writes_to: str = "FILE",
    then: Callable[[Any, dict[str, Any]], None] = lambda _found, _options: None,
) -> Decorator:
    """Makes a command of a function that takes its options and returns what it finds, or a `Result` of that.

    Args:
        subject: What that is, as `hloscope.report.formats` has it; `--format`, `-o` and `--debug` come with it. A
            `Result` names another subject with the same formats.
        exit_code: What the command ends with, by what was found and the options.
        writes_to: What `-o` names.
        then: Called with what was found and the options when the report is written.
    """

    def decorate(find: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(find)
        def command(format_name: str, output: str | None, debug: bool, **options: Any) -> None:
            check_streams()
            guarded(lambda: _check_output(format_name, output), debug=debug)
            guarded(lambda: check_is_not_an_input(output, options.values()), debug=debug)
            listing = {name: options[name] for name in LISTING if name in options}
            shown, found = guarded(lambda: _shown(subject, find(**options)), debug=debug)
            guarded(lambda: write_formatted(shown, format_name, found, output, **listing), debug=debug)
            guarded(lambda: then(found, options), debug=debug)
            raise SystemExit(exit_code(found, options))

        return report_options(subject, output=writes_to)(command)

    return decorate


def _shown(subject: str, found: Any) -> tuple[str, Any]:
    from hloscope.app.requests import Result

    return (found.subject, found.found) if isinstance(found, Result) else (subject, found)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Has SIGTERM, with which CI ends a job, do what Ctrl-C does meanwhile."""
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
    """Runs a command that finds a text, and the exit code that it ends with, whatever else it prints."""
    check_streams()
    with stdout_kept_for_the_report():
        text, code = guarded(find, debug=debug)
    guarded(lambda: write_report(text, None), debug=debug)
    raise SystemExit(code)


def check_streams() -> None:
    """Refuses to start where a report would be lost or written into some other file: with a closed stdout."""
    if sys.stdout is not None and sys.stderr is not None:
        return
    if sys.stderr is not None:
        click.echo(
            "error: standard output is closed\n   = fix: name a file for the report: -o FILE >/dev/null", err=True
        )
    raise SystemExit(EXIT_COULD_NOT_RUN)


def guarded(run: Callable[[], T], *, debug: bool) -> T:
    """Runs a command's work; a problem with the input becomes one message and exit code 2."""
    try:
        with _interrupts_kept():
            return run()
    except HloscopeError as error:
        _fail(str(error), debug)
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
def _interrupts_kept() -> Iterator[None]:
    """Has Ctrl-C come again a moment later where Python drops it, such as in JAX's callback at garbage collections."""
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
    """Writes a message to stderr, whatever strings of compiled text it quotes."""
    from hloscope.report.escaping import escape_for_terminal

    click.echo(escape_for_terminal(message), err=True)


def saying(stage: StageDisplay) -> Callable[[str], None]:
    """`say`, without the display of what is happening meanwhile."""

    def said(message: str) -> None:
        with stage.hidden():
            say(message)

    return said


def failing(findings: Iterable[Finding], fail_on: str | None) -> tuple[Finding, ...]:
    """The findings that `--fail-on` makes fail; none without it."""
    from hloscope.model.finding import Severity, unaccepted

    return () if fail_on is None else unaccepted(findings, Severity(fail_on))


def rules_failed(findings: Iterable[Finding]) -> bool:
    """Whether a rule of a plug-in could not run, so that nobody knows what it would have found; then it says so."""
    from hloscope.judge.plugins import FAILED

    failed = next((finding for finding in findings if finding.rule == FAILED), None)
    if failed is not None:
        say(f"error: no verdict: {failed.message}")
    return failed is not None


@contextmanager
def stdout_kept_for_the_report() -> Iterator[None]:
    """Sends file descriptor 1 to stderr meanwhile: what user code prints, by whatever means, is not the report.

    Both are afterwards as before, also where user code has closed one.
    """
    sys.stdout.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    os.dup2(2, 1)
    _kept.append(saved[1])
    try:
        yield
    finally:
        _kept.pop()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        for name, number in (("stdout", 1), ("stderr", 2)):
            if getattr(getattr(sys, name), "closed", False):
                setattr(sys, name, os.fdopen(number, "w", closefd=False))


_kept: list[int] = []
"""Duplicates of the standard output that is kept for the report."""
_begun: list[str] = []
"""What of the report stands there already."""


def begin_report(result: Result[Any], stages: StageDisplay) -> None:
    """Writes the beginning of a report on standard output while the rest is still looked for; only as text.

    Args:
        result: What is known so far, which the rest of the report leaves out.
        stages: The display, which makes room.
    """
    from hloscope.report.formats import render

    options = click.get_current_context().params
    output = options["output"]
    if options["format_name"] != "text" or output not in (None, "-") or not _kept:
        return
    with suppress(OSError), os.fdopen(os.dup(_kept[-1]), "w", errors="replace") as stream:
        text = render(result.subject, "text", result.found, _canvas_of(output, stream)).rstrip("\n")
        text += "\n" * (2 if result.subject == "dump" else 1)  # below a list begins the report itself
        with stages.hidden():
            stream.write(text)
            stream.flush()
        _begun.append(text)


def canvas(output: str | None) -> Canvas:
    """How wide a report may be and whether in colour, by where it goes."""
    return _canvas_of(output, sys.stdout)


def _canvas_of(output: str | None, stream: TextIO) -> Canvas:
    from hloscope.report.renderer import Canvas

    to_terminal = output in (None, "-") and stream.isatty()
    own = os.get_terminal_size(stream.fileno()).columns or 100 if to_terminal else 100
    width = shutil.get_terminal_size((own, 24)).columns if "COLUMNS" in os.environ else own
    colour = to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Canvas(width=width, colour=colour)


def write_formatted(subject: str, format_name: str, found: object, output: str | None, **listing: Any) -> None:
    """Writes what was found in one of the formats of its subject, which stand in `hloscope.report.formats`.

    Args:
        subject: One of them.
        format_name: One of its formats.
        found: What was found.
        output: The file; None or `-` for stdout.
        listing: Values of the options of `LISTING`.

    Raises:
        HloscopeError: It cannot be written.
    """
    from hloscope.report.formats import find_renderer, render, render_files

    if find_renderer(format_name).writes != "text":
        _write_files(render_files(subject, format_name, found), output)
        return
    write_report(render(subject, format_name, found, replace(canvas(output), **listing)), output)


def _check_output(format_name: str, output: str | None) -> None:
    from hloscope.report.formats import find_renderer

    writes = find_renderer(format_name).writes
    check_output(output, "folder" if writes == "folder" else "file")
    if writes == "file" and output in (None, "-") and sys.stdout.isatty():
        raise HloscopeError("this format is binary", fix="name a file: -o FILE")


def _write_files(files: OutputFiles, output: str | None) -> None:
    """Writes what is no text, and says how it is opened; a single file may go to standard output."""
    if output is not None and output != "-":
        for said in write_files(files, output):
            say(said)
        return
    try:
        sys.stdout.buffer.write(files.contents[""])
        sys.stdout.flush()
    except OSError as error:
        _stdout_failed(error)
    for said in files.notes:
        say(said)


def write_report(text: str, output: str | None, *, is_last: bool = True) -> None:
    """Writes a finished report to a file, or to stdout; a reader that went away is no error.

    Args:
        text: The report, or a part of it.
        output: The file; None or `-` for stdout.
        is_last: Whether nothing follows; a reader that went away ends the command where something does.

    Raises:
        HloscopeError: It cannot be written.
    """
    if output is not None and output != "-":
        write_text(text, output)
        return
    begun = _begun.pop() if _begun else ""
    text = text.removeprefix(begun)
    if begun and not text.strip():
        return
    try:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        click.echo(text.rstrip("\n"), color=True)
        sys.stdout.flush()
    except OSError as error:
        _stdout_failed(error)
        if not is_last:
            raise SystemExit(EXIT_OK) from None
    else:
        if is_last:
            os.dup2(2, 1)  # what the user's code prints at exit is not the report


def _stdout_failed(error: OSError) -> None:
    """What follows goes nowhere; a reader that went away is no error.

    Raises:
        HloscopeError: It is one.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(error, BrokenPipeError):
        raise HloscopeError("the report cannot be written to standard output", why=error.strerror) from error
