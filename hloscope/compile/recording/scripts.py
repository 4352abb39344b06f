"""Runs the user's command line in this process, as Python would run it."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from hloscope.base.environment import is_library
from hloscope.base.errors import Either, TargetError, make_missing_file_error, say
from hloscope.compile.importing import format_path

RUN_BELOW_BYTES = 64_000_000
_PYTHON = re.compile(r"^python[\d.]*$")
_RUNPY = runpy.run_path.__code__.co_filename
_FLAGS = re.compile(r"^-[uOBsSEIiqvbd]+$")
"""Flags of the interpreter that change nothing here."""


class SeenEnoughError(BaseException):
    """Ends a script whose programs are all known; not an `Exception`, which a script may catch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What to execute, and when to end a recording.

    Attributes:
        run_below_bytes: Execute programs with fewer bytes of arguments and results than this.
        run_all: Execute every program that can run on simulated devices.
        stop_after: Number of calls of the most expensive program, without a new compile in between, after which the
            script ends; 0 for no limit. None means 3, once a program has not been executed.
        allow_writes: Whether the script may write and remove files even though values are not real.
    """

    run_below_bytes: int = RUN_BELOW_BYTES
    run_all: bool = False
    stop_after: int | None = None
    allow_writes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script to run.

    Attributes:
        words: The command line without the interpreter.
        path: File of the script; None for a module or an entry point.
        module: The module that `-m` names.
        entry: Function of a console script, as `package.module:function`.
        arguments: The script's arguments.
    """

    words: tuple[str, ...]
    path: Path | None = None
    module: str | None = None
    entry: str | None = None
    arguments: tuple[str, ...] = ()

    def run(self) -> None:
        """Runs it as `__main__`, with its own arguments and path."""
        sys.argv = [str(self.path or self.module or self.words[0]), *self.arguments]
        if self.path is not None:
            sys.path.insert(0, str(self.path.resolve().parent))
            runpy.run_path(str(self.path.absolute()), run_name="__main__")
        elif self.module is not None:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        else:
            assert self.entry is not None
            home, _, name = self.entry.partition(":")
            found: Any = importlib.import_module(home)
            for part in name.split("."):
                found = getattr(found, part)
            sys.exit(found())


def find_script(words: Sequence[str]) -> Script:
    """Finds what a command line runs: `script.py args…`, `-m package.module args…` or a console script.

    `python` with flags may come before it.

    Raises:
        TargetError: It names nothing that Python can run here.
    """
    given = tuple(words)
    if given and _PYTHON.match(Path(given[0]).name):
        given = given[1:]
        while given and _FLAGS.match(given[0]):
            given = given[1:]
    if not given:
        raise TargetError(
            "no script is named",
            fix=say(
                Either(
                    "write it after --: hloscope record -- train.py --steps 100", 'write hloscope.record("train.py")'
                )
            ),
        )
    first, rest = given[0], given[1:]
    if first == "-c":
        raise TargetError(
            "code on the command line has no source lines to refer to", fix="write it to a file, and name the file"
        )
    if first == "-m":
        return _find_module(given, rest)
    if os.path.isfile(first) or first.endswith(".py"):
        return _find_file(given, Path(first), rest)
    for entry in metadata.entry_points(group="console_scripts"):
        if entry.name == Path(first).name:
            return Script(words=given, entry=entry.value, arguments=rest)
    found = shutil.which(first)
    if found is not None:
        return _find_file(given, Path(found), rest)
    raise TargetError(
        f"{first} is neither a script nor a command of an installed package",
        fix="name a file, or a module as -m package.module",
    )


def _find_module(given: tuple[str, ...], rest: tuple[str, ...]) -> Script:
    if not rest:
        raise TargetError("-m does not name a module", fix="write -m package.module")
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(rest[0].partition(".")[0])  # for a submodule it would import the package
    except (ImportError, ValueError) as error:
        raise TargetError(f"there is no module {rest[0]}", why=str(error)) from error
    finally:
        sys.path[:] = before
    if found is None:
        raise TargetError(f"there is no module {rest[0]}", fix="run from the folder that contains its package")
    return Script(words=given, module=rest[0], arguments=rest[1:])


def _find_file(given: tuple[str, ...], path: Path, rest: tuple[str, ...]) -> Script:
    if not os.path.exists(path):
        raise make_missing_file_error(str(path), lambda name: name.endswith(".py"))
    if os.path.isdir(path):
        raise TargetError(f"{path} is a folder", fix=f"name the script in it, such as {path}/train.py")
    if path.suffix not in (".py", ".pyw"):
        with path.open("rb") as file:
            first = file.readline(200)
        if not (first.startswith(b"#!") and b"python" in first):
            raise TargetError(f"{path} is not written in Python", fix="name the Python script that it starts")
    return Script(words=given, path=path, arguments=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a script.

    Attributes:
        kind: `ended`, `stopped`, `raised` or `interrupted`.
        status: Its exit status; None if it was stopped.
        said: The way it ended, as a sentence.
    """

    kind: str
    status: int | None
    said: str


def run_to_its_end(run: Callable[[], None]) -> Ending:
    """Runs a script and returns how it ended; an exception is printed as Python would print it."""
    before, before_path, before_exit, process = sys.argv, list(sys.path), os._exit, os.getpid()

    def leave(status: int) -> None:
        """Replaces `os._exit`, which would end this process, too; a forked one may end."""
        if os.getpid() != process:
            before_exit(status)
        raise SystemExit(status)

    os._exit = leave  # type: ignore[assignment]
    try:
        with _signals_restored():
            run()
    except BaseException as error:
        ending = ending_of(error)
        if isinstance(error, SystemExit) and ending.status and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
        elif ending.kind == "raised":
            _print_users_part(error)
    else:
        ending = ending_of(None)
    finally:
        os._exit = before_exit
        sys.argv, sys.path[:] = before, before_path
    if os.getpid() != process:  # the script forked, and only the first process makes a report
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        before_exit(ending.status or 0)
    return ending


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restores the handlers of signals, so that Ctrl-C ends the analysis, and clears the alarm."""
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def ending_of(error: BaseException | None) -> Ending:
    """The end of code by the error that it raised, or None."""
    if isinstance(error, SeenEnoughError):
        return Ending(kind="stopped", status=None, said="")
    if isinstance(error, KeyboardInterrupt):
        return Ending(kind="interrupted", status=130, said="Ctrl-C ended the script")
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Ending(kind="ended", status=0, said="the script ran to completion")
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 1
        return Ending(kind="ended", status=status, said=f"the script ended with exit status {status}")
    return Ending(kind="raised", status=1, said=f"the script raised {_shorten(error)}")


def _print_users_part(error: BaseException) -> None:
    """Prints the traceback from the script's first frame on."""
    trace = error.__traceback__
    while trace is not None and is_library(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].filename == _RUNPY:  # nothing ran: Python did not find the module, or could not read it
        error.__suppress_context__ = True
        traceback.print_exception(error.with_traceback(None))
        return
    traceback.print_exception(error.with_traceback(trace or error.__traceback__))


def _shorten(error: BaseException) -> str:
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not is_library(each.filename)]
    where = f" at {format_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {words[0]}' if words else ''}{where}"


def are_threads_left() -> bool:
    """Whether the script left threads behind that Python would wait for at exit."""
    left = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    return any("hloscope" not in each.name for each in left)


@contextmanager
def marked_output(stream: IO[str], mark: str) -> Iterator[None]:
    """Sends standard output and standard error to a stream, with a mark before each line.

    Args:
        stream: The stream.
        mark: The mark.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    reading, writing = os.pipe()
    for number in saved:
        os.dup2(writing, number)
    os.close(writing)
    copying = threading.Thread(target=_copy_marked, args=(reading, stream, mark), daemon=True)
    copying.start()
    try:
        yield
    finally:
        for name, number in (("stdout", 1), ("stderr", 2)):
            with suppress(OSError, ValueError, AttributeError):
                getattr(sys, name).flush()
            os.dup2(saved[number], number)
            os.close(saved[number])
            if getattr(getattr(sys, name), "closed", False):
                setattr(sys, name, os.fdopen(number, "w", closefd=False))
        copying.join(timeout=1.0)  # a process that the script left behind may hold the other end


def _copy_marked(reading: int, stream: IO[str], mark: str) -> None:
    with os.fdopen(reading, "rb", buffering=0) as source:
        begins = True
        while chunk := source.read(65536):
            text = chunk.decode("utf-8", "replace")
            for piece in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):
                stream.write((mark if begins else "") + piece)
                begins = piece[-1] in "\r\n"
            stream.flush()
        if not begins:
            stream.write("\n")
            stream.flush()
