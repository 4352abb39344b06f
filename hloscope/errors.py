"""The errors that users see: what happened, where, why, and how to fix it.

Every error that bad input can cause derives from `HloscopeError`. The command line prints its text and exits with
`exit_code`, without a traceback unless `--debug` is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hloscope.messages import Message, Option, indented, join, on_one_line, placeholder, say

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
FULL = "full"
"""The value of `HLOSCOPE_TRACEBACK` with which tracebacks are whole."""

EXIT_OK = 0
EXIT_BROKEN = 1
"""A contract, a check or `--fail-on` is broken."""
EXIT_COULD_NOT_RUN = 2
EXIT_INTERRUPTED = 130


class _ShortInNotebooks(Exception):  # noqa: N818 (no error of its own)
    """An exception of which a notebook shows the user's own frames alone."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, which asks for it by this name."""
        trace = self.__traceback__
        if os.environ.get("HLOSCOPE_TRACEBACK") != FULL:
            trace = _without_own_frames(trace)
        shell = import_module("IPython").get_ipython()
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, trace, tb_offset=1)
        return lines


class HloscopeError(_ShortInNotebooks):
    """Base class of errors caused by the input or the machine, which the user can fix.

    Attributes:
        what: What is wrong, as a lower-case sentence without a full stop.
        where: The place, such as `file.hlo:12:7` or `model.py:31 in forward`; None if there is none.
        why: The reason; messages of JAX and other libraries are kept verbatim.
        fix: How to fix it.
        excerpt: Source lines with a caret, already formatted.
    """

    exit_code = EXIT_COULD_NOT_RUN
    heading = "error: "
    """What its text begins with; nothing in Python, which says the name of its class there."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        fix: str | None = None,
        excerpt: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        self.excerpt = excerpt
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _error_again, (type(self), self.args, self.__dict__)

    def on_one_line(self) -> str:
        """The problem, the reason and the fix on one line, for use in another message."""
        return join("; ", (on_one_line(part) for part in (self.what, self.why, self.fix) if part))

    def speak_python(self) -> None:
        """Renders its messages in Python's notation."""
        self.heading = ""
        for name in ("what", "why", "fix"):
            said = getattr(self, name)
            if isinstance(said, Message):
                setattr(self, name, said.python)
        self.args = (str(self), *self.args[1:])

    def message(self) -> Message:
        """Its whole text, for a result to hold."""
        lines = [say(self.heading, self.what)]
        if self.where:
            lines.append(say(f"  --> {self.where}"))
        if self.excerpt:
            lines.extend(say("   | ", line) for line in self.excerpt.splitlines())
        for label, text in (("why", self.why), ("fix", self.fix)):
            if text:
                lines.append(say(f"   = {label}: ", indented(text, 7 + len(label))))
        return join("\n", lines)

    def __str__(self) -> str:
        message = self.message()
        return str(message if self.heading else message.python)


class TargetError(HloscopeError):
    """The target cannot be found, imported or called."""


class ImportedTwiceError(TargetError):
    """A module registers something again that can be registered only once per process."""


class ProfileError(HloscopeError):
    """A profile cannot be read, or belongs to another program than it is compared with."""


class NotationError(HloscopeError):
    """An argument type, a PartitionSpec, a mesh or an option is invalid."""


class MeshError(HloscopeError):
    """The mesh does not fit the program, its arguments or the slice."""


class DeviceCountError(MeshError):
    """A program needs another number of simulated devices than there are.

    Attributes:
        needed: Number of devices that it needs.
        available: Number of devices that it sees.
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed = needed
        self.available = available
        super().__init__(
            f"{needed} simulated devices are needed, but there are {available}",
            fix=f"use a mesh of {needed} devices",
        )


class SliceError(HloscopeError):
    """The slice name is invalid, or there is no such slice."""


class TraceError(HloscopeError):
    """JAX rejected the program while tracing or lowering it."""


class CompileError(HloscopeError):
    """The compiler rejected the program, for example because it does not fit in HBM."""


class HbmError(CompileError):
    """The compiler rejected the program because it does not fit in HBM."""


class CompilerDiedError(CompileError):
    """The process that runs the compiler died before it finished.

    Attributes:
        by_machine: Whether the machine rather than the program may have ended it, for lack of memory or disk space.
    """

    by_machine = False


class TimeLimitError(HloscopeError):
    """An operation exceeded its time limit.

    Attributes:
        doing: What was being done, such as `compiling step for v5e:2x4`.
        limit_s: The time limit in seconds.
        waited_s: Seconds of that spent waiting for compiles of other processes.
    """

    def __init__(self, doing: str, limit_s: float) -> None:
        self.doing = doing
        self.limit_s = limit_s
        self.waited_s = 0.0
        super().__init__(
            f"{doing} took longer than {limit_s:g} s",
            fix=say(
                "allow more: ",
                Option("timeout", placeholder("SECONDS")),
                ", timeout in the targets file, or HLOSCOPE_TIMEOUT; 0 means no limit",
            ),
        )

    def after_waiting(self, seconds: float) -> TimeLimitError:
        """Returns the same error with the time spent waiting for other processes' compiles, if that is a large part."""
        self.waited_s = seconds
        if seconds > self.limit_s / 10:
            self.why = f"for {round(seconds, 1):g} s of that it waited for compiles of other processes"
            self.fix = say("allow more parallel compiles if memory permits: HLOSCOPE_MAX_WORKERS; or ", self.fix or "")
        self.args = (str(self),)
        return self


class WrongCallError(HloscopeError, TypeError):
    """A call does not match the function's signature; Python itself would raise a `TypeError`."""


class UnknownKeywordError(WrongCallError):
    """A call has an unknown keyword."""


class HloParseError(HloscopeError):
    """The HLO text cannot be parsed.

    Attributes:
        line: 1-based line in the text.
        column: 1-based column in that line.
    """

    def __init__(self, what: str, *, line: int, column: int, where: str | None, excerpt: str, fix: str | None) -> None:
        self.line = line
        self.column = column
        super().__init__(what, where=where, excerpt=excerpt, fix=fix)


def is_own_file(path: str) -> bool:
    """Whether code is hloscope's own."""
    return path.startswith(_OWN)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of hloscope's own files."""
    if trace is None:
        return None
    rest = _without_own_frames(trace.tb_next)
    if is_own_file(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _error_again(kind: type[HloscopeError], args: tuple[Any, ...], state: dict[str, Any]) -> HloscopeError:
    """An error that comes from another process, whatever its class is made from."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str | None = None, *, most: int = 1, cutoff: float = 0.6
) -> str | None:
    """The fix for a name that is not known: the names nearest to it, else `otherwise`.

    Args:
        word: What was written.
        known: What could have been.
        otherwise: The fix where nothing is near.
        most: How many names are offered.
        cutoff: How near is near, from 0 to 1, as `difflib.get_close_matches` counts.
    """
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


class Helpful:
    """What says, asked for an attribute that it does not have, which one was likely meant."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_attribute(f"{type(self).__name__!r} object", name, dir(type(self)))


def no_attribute(holder: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute that there is not; it has no object, lest Python adds a guess of its own.

    Args:
        holder: What does not have it.
        name: The attribute.
        known: Those that there are.
    """
    said = f"{holder} has no attribute {name!r}"
    if not name.startswith("_"):
        public = [public_name for public_name in known if not public_name.startswith("_")]
        near = did_you_mean(name, public) or did_you_mean(
            name, (public_name for public_name in public if name in public_name), cutoff=0.0
        )
        said = f"{said}: {near}" if near else said
    return AttributeError(said, name=name)


def place_in(text: str, position: int) -> tuple[int, int, str]:
    """1-based line and column of an offset in a text, and that line; a line ends at a line feed."""
    start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position)
    return text.count("\n", 0, start) + 1, position - start + 1, text[start : len(text) if end < 0 else end]


def caret_excerpt(line_text: str, column: int, width: int = 100) -> str:
    """Lays out one source line with a caret under `column` (1-based), cut to `width` characters around it."""
    start = max(0, min(column - 1 - width // 2, len(line_text) - width))
    shown = line_text[start : start + width].replace("\t", " ").rstrip("\r\n")
    head = "…" if start else ""
    tail = "…" if start + width < len(line_text.rstrip()) else ""
    return f"{head}{shown}{tail}\n" + " " * (len(head) + column - 1 - start) + "^"
