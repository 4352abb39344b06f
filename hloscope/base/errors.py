"""The errors that users see: what happened, where, why, and how to fix it.

Every error that bad input can cause derives from `HloscopeError`. The command line prints its text and exits with
`exit_code`, without a traceback unless `--debug` is given.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

# ---- messages: sentences in which options, values and commands are typed parts, rendered for the command line or
# Python
#
#     say("add the mesh, for example ", Option("mesh", {"X": 4, "Y": 2}))
#
# reads `add the mesh, for example --mesh X=4,Y=2` on the command line and `… mesh={"X": 4, "Y": 2}` in Python. A
# message is a `str` in one of the two notations that keeps its parts, so that it can still be rendered in the other.
# An f-string or `str.join` makes plain text of it: compose messages with `say`, `join` or `+`. Plain text, such as a
# path or what a user's exception or a plugin's rule says, is never changed.

_SPANS = (("h", 3600), ("m", 60), ("s", 1))


class Notation(Enum):
    """A way to write options and commands."""

    COMMAND_LINE = "command line"
    PYTHON = "Python"


_CURRENT: ContextVar[Notation] = ContextVar("notation", default=Notation.COMMAND_LINE)


@dataclass(frozen=True, slots=True)
class Either:
    """Words that have nothing in common in the two notations.

    Attributes:
        command_line: The words for the command line.
        python: The words for Python.
    """

    command_line: str
    python: str


TARGET = Either("TARGET", "…")
"""The target of a command that the reader has just run."""


WITH_TRACEBACK = Either("hloscope analyze --debug", "hloscope.analyze with HLOSCOPE_TRACEBACK=full")
"""A run that shows the whole traceback of an error."""


def placeholder(name: str) -> Either:
    """A value that the reader chooses, such as `SECONDS`; without quotes in Python."""
    return Either(name, name)


class _PythonForm(NamedTuple):
    """The form of an option in Python, and its differences from the flag on the command line.

    Attributes:
        keyword: The keyword in Python.
        value: For a switch, the value of the keyword in Python.
        pair: The separator between the two numbers of a tuple on the command line.
        is_span: Whether seconds are written as a span, such as `5m`.
        is_argument: Whether the command line takes the value by position, without a flag.
    """

    keyword: str
    value: bool | None = None
    pair: str = ","
    is_span: bool = False
    is_argument: bool = False


OPTIONS = {
    "against-single-device": _PythonForm("against_single_device", True),
    "all": _PythonForm("everything", True),
    "allow-writes": _PythonForm("allow_writes", True),
    "arg": _PythonForm("args"),
    "beside": _PythonForm("beside", True),
    "chip-override": _PythonForm("chip_overrides"),
    "collective": _PythonForm("collective", is_argument=True),
    "compiler-option": _PythonForm("compiler_options"),
    "dim": _PythonForm("dims"),
    "kernel-cost": _PythonForm("kernel_costs"),
    "range": _PythonForm("ranges", pair=":"),
    "strict": _PythonForm("strict", True),
    "timeout": _PythonForm("timeout_s"),
    "try": _PythonForm("try_s", is_span=True),
}
"""Options whose keyword differs from their flag, or whose values have a special form; tests compare all options that
messages name with the commands and the functions.
"""


def find_python_form(name: str) -> _PythonForm:
    """The Python form of an option, by its flag without dashes, or by the name of the argument."""
    return OPTIONS.get(name) or _PythonForm(name.replace("-", "_"))


_FUNCTIONS = {"accept": "hloscope.accept()", "rules": "hloscope.rules.pages()"}
"""The Python for a command without arguments that is not simply the function's name."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, alone or with a value.

    Attributes:
        name: Its flag without dashes, or the name of an argument.
        value: The value as Python takes it, such as a dict for `mesh`, seconds for `try` or a list for `select`; it may
            hold placeholders. None names the option alone, or sets a switch.
    """

    name: str
    value: Any = None

    @property
    def command_line(self) -> str:
        """`--mesh X=4,Y=2`; a list repeats the flag."""
        word, flag = find_python_form(self.name), f"--{self.name}"
        if self.value is None:
            return flag
        if word.is_argument:
            return _format_for_shell(self.value, word)
        values = self.value if isinstance(self.value, list) else [self.value]
        if self.name == "arg" and isinstance(self.value, tuple):
            values = [str(each) if isinstance(each, Mapping) else each for each in self.value]
        return " ".join(f"{flag} {_format_for_shell(each, word)}" for each in values)

    @property
    def python(self) -> str:
        """`mesh={"X": 4, "Y": 2}`."""
        word = find_python_form(self.name)
        value = word.value if self.value is None else self.value
        keyword = "kwargs" if self.name == "arg" and isinstance(value, Mapping) else word.keyword
        return keyword if value is None else f"{keyword}={_format_for_python(value)}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, alone or with arguments.

    Attributes:
        name: Its name on the command line.
        arguments: Options, and positional arguments such as a target.
    """

    name: str
    arguments: tuple[str | Either | Option, ...] = ()

    def with_option(self, name: str, value: Any = None) -> Command:
        """The same command with one more option."""
        return Command(self.name, (*self.arguments, Option(name, value)))

    @property
    def command_line(self) -> str:
        """`hloscope accept step --only all-gather@X`."""
        arguments = (
            each.command_line if isinstance(each, Option) else _format_for_shell(each) for each in self.arguments
        )
        return " ".join(("hloscope", self.name, *arguments))

    @property
    def python(self) -> str:
        """`hloscope.accept("step", only=["all-gather@X"])`."""
        function = f"hloscope.{self.name.replace('-', '_')}"
        if not self.arguments:
            return _FUNCTIONS.get(self.name, function)
        arguments = (each.python if isinstance(each, Option) else _format_for_python(each) for each in self.arguments)
        return f"{function}({', '.join(arguments)})"


Part = Either | Option | Command


class Message(str):
    """A sentence in one notation that keeps its parts.

    Attributes:
        parts: Plain text and typed parts, in their order.
    """

    __slots__ = ("parts",)

    parts: tuple[str | Part, ...]

    def __new__(cls, parts: tuple[str | Part, ...], notation: Notation = Notation.COMMAND_LINE) -> Message:
        """Renders parts in a notation."""
        texts = (part if isinstance(part, str) else _render(part, notation) for part in parts)
        made = super().__new__(cls, "".join(texts))
        made.parts = parts
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        is_python = self != self.command_line
        return Message, (self.parts, Notation.PYTHON if is_python else Notation.COMMAND_LINE)

    def __add__(self, other: str) -> Message:
        return say(self, other)

    def __radd__(self, other: str) -> Message:
        return say(other, self)

    @property
    def command_line(self) -> Message:
        """The same message in the words of the command line."""
        return Message(self.parts)

    @property
    def python(self) -> Message:
        """The same message in the words of Python."""
        return Message(self.parts, Notation.PYTHON)


def say(*parts: str | Part) -> Message:
    """A message made of text, other messages and typed parts, in the notation of `use_notation`."""
    flat: list[str | Part] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Message) else [part])
    return Message(tuple(flat), _CURRENT.get())


def join(separator: str, messages: Iterable[str | Part]) -> Message:
    """Messages joined like `str.join`."""
    parts: list[str | Part] = []
    for message in messages:
        parts += [separator, message] if parts else [message]
    return say(*parts)


def on_one_line(message: str) -> str:
    """A message with each run of white space as one space."""
    if not isinstance(message, Message):
        return " ".join(message.split())
    parts = [re.sub(r"\s+", " ", part) if isinstance(part, str) else part for part in message.parts]
    if isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return say(*parts)


def indent(message: str, columns: int) -> str:
    """A message whose lines after the first are indented."""
    if not isinstance(message, Message):
        return f"\n{' ' * columns}".join(message.strip().splitlines())
    return say(*(part.replace("\n", f"\n{' ' * columns}") if isinstance(part, str) else part for part in message.parts))


def mark(text: str, *parts: Part) -> Message:
    """A message from a text of hloscope's own, such as a docstring, that names options as the command line does.

    Args:
        text: The text.
        parts: The parts to find in it.
    """
    found: list[str | Part] = [text]
    for part in parts:
        pieces: list[str | Part] = []
        for piece in found:
            texts = piece.split(part.command_line) if isinstance(piece, str) else [piece]
            pieces += [texts[0], *(each for text in texts[1:] for each in (part, text))]
        found = pieces
    return say(*found)


@contextmanager
def use_notation(notation: Notation) -> Iterator[None]:
    """Makes `say` render messages in a notation within the block, for reports that are printed at once."""
    token = _CURRENT.set(notation)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _render(part: Part, notation: Notation) -> str:
    return part.python if notation is Notation.PYTHON else part.command_line


def _format_for_shell(value: Any, word: _PythonForm = _PythonForm("")) -> str:  # noqa: B008 (a constant)
    """A value as a shell takes it."""
    if isinstance(value, Either):
        return value.command_line
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_format_for_shell(each, word)}" for name, each in value.items())
    if isinstance(value, tuple):
        return word.pair.join(_format_for_shell(each, word) for each in value)
    if isinstance(value, str):
        return f'"{value}"' if "'" in value and not set('"$`\\!') & set(value) else shlex.quote(value)
    if word.is_span:
        return next(f"{value // seconds:g}{unit}" for unit, seconds in _SPANS if not value % seconds or seconds == 1)
    return _format_number(value)


def _format_for_python(value: Any) -> str:
    """A value as a Python expression."""
    if isinstance(value, Either):
        return value.python
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_format_for_python(name)}: {_format_for_python(each)}" for name, each in value.items())
            + "}"
        )
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_for_python, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_for_python, value))}]"
    return f'"{value}"' if isinstance(value, str) else _format_number(value)


def _format_number(value: Any) -> str:
    return re.sub(r"e\+0*", "e", f"{value:g}") if isinstance(value, float) else str(value)


_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
FULL = "full"
"""The value of `HLOSCOPE_TRACEBACK` for complete tracebacks."""

EXIT_OK = 0
EXIT_BROKEN = 1
"""A contract, a check or `--fail-on` is broken."""
EXIT_COULD_NOT_RUN = 2
EXIT_INTERRUPTED = 130


class _ShortInNotebooks(Exception):  # noqa: N818 (no error of its own)
    """An exception for which a notebook shows only the user's own frames."""

    def _render_traceback_(self) -> list[str]:
        """The traceback that IPython shows; it calls the method by this name."""
        trace = self.__traceback__
        if os.environ.get("HLOSCOPE_TRACEBACK") != FULL:
            trace = _remove_own_frames(trace)
        shell = import_module("IPython").get_ipython()
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, trace, tb_offset=1)
        return lines


class HloscopeError(_ShortInNotebooks):
    """Base class of errors caused by the input or the machine, which the user can fix.

    Attributes:
        what: The problem, as a lower-case sentence without a full stop.
        where: The place, such as `file.hlo:12:7` or `model.py:31 in forward`; None if there is none.
        why: The reason; messages of JAX and other libraries are kept verbatim.
        fix: How to fix it.
        excerpt: Source lines with a caret, already formatted.
    """

    exit_code = EXIT_COULD_NOT_RUN
    heading = "error: "
    """The beginning of its text; empty in Python, which prints the name of the class there."""

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
        """Its whole text, to be stored in a result."""
        lines = [say(self.heading, self.what)]
        if self.where:
            lines.append(say(f"  --> {self.where}"))
        if self.excerpt:
            lines.extend(say("   | ", line) for line in self.excerpt.splitlines())
        for label, text in (("why", self.why), ("fix", self.fix)):
            if text:
                lines.append(say(f"   = {label}: ", indent(text, 7 + len(label))))
        return join("\n", lines)

    def __str__(self) -> str:
        message = self.message()
        return str(message if self.heading else message.python)


class TargetError(HloscopeError):
    """The target cannot be found, imported or called."""


class ImportedTwiceError(TargetError):
    """A module registers something again that can be registered only once per process."""


class ProfileError(HloscopeError):
    """A profile cannot be read, or belongs to a different program than the one that it is compared with."""


class NotationError(HloscopeError):
    """An argument type, a PartitionSpec, a mesh or an option is invalid."""


class MeshError(HloscopeError):
    """The mesh does not fit the program, its arguments or the slice."""


class DeviceCountError(MeshError):
    """A program needs a different number of simulated devices than there are.

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
        doing: The operation, such as `compiling step for v5e:2x4`.
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
    """Returns whether code is hloscope's own."""
    return path.startswith(_OWN)


def _remove_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of hloscope's own files."""
    if trace is None:
        return None
    rest = _remove_own_frames(trace.tb_next)
    if is_own_file(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _error_again(kind: type[HloscopeError], args: tuple[Any, ...], state: dict[str, Any]) -> HloscopeError:
    """Restores an error from another process, whatever the arguments of its class are."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ImmediateExit(SystemExit):
    """In place of `os._exit` of the user's code, which would end the process without a word."""


def find_exception_words(error: BaseException) -> str:
    """The message of an exception; empty if its own class cannot produce one."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def describe_exception(error: BaseException) -> str:
    """An exception's own words, after its type if the words alone would not be clear."""
    text, name = find_exception_words(error), type(error).__name__
    if isinstance(error, SystemExit):
        return f"it called {'os._exit' if isinstance(error, ImmediateExit) else 'sys.exit'}({error.code!r})"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{name}: {error.msg} ({error.filename}:{error.lineno})"
    return f"{name}: {text}" if text else name


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str | None = None, *, most: int = 1, cutoff: float = 0.6
) -> str | None:
    """The fix for an unknown name: the names nearest to it, or else `otherwise`.

    Args:
        word: The unknown name.
        known: The known names.
        otherwise: The fix if no name is near.
        most: Maximum number of names to offer.
        cutoff: The minimum similarity, from 0 to 1, as for `difflib.get_close_matches`.
    """
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def make_missing_file_error(path: str, is_meant: Callable[[str], bool]) -> TargetError:
    """The error for a missing file, with the names of files beside it that are near, or the folder that was searched.

    Args:
        path: The path as the user wrote it.
        is_meant: Returns whether a file with this name could be meant.
    """
    folder, name = os.path.split(path)
    beside: list[str] = []
    with suppress(OSError):  # there is no such folder, or it may not be read
        beside = os.listdir(folder or ".")
    near = did_you_mean(name, sorted(filter(is_meant, beside)), most=3, cutoff=0.8)
    if near is not None or os.path.isabs(path):
        return TargetError(f"there is no file {path}", fix=near or "check the path")
    where, fix = f"the current folder, {os.getcwd()}", "write the path from there, or the whole one"
    return TargetError(f"there is no file {path}", where=where, fix=fix)


class Helpful:
    """A class whose error for a missing attribute names the one that was likely meant."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise make_attribute_error(f"{type(self).__name__!r} object", name, dir(type(self)))


def make_attribute_error(holder: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a missing attribute; it has no object, so that Python does not add its own guess.

    Args:
        holder: The object or module without it, in words.
        name: The missing attribute.
        known: The existing attributes.
    """
    said = f"{holder} has no attribute {name!r}"
    if not name.startswith("_"):
        public = [public_name for public_name in known if not public_name.startswith("_")]
        near = did_you_mean(name, public) or did_you_mean(
            name, (public_name for public_name in public if name in public_name), cutoff=0.0
        )
        said = f"{said}: {near}" if near else said
    return AttributeError(said, name=name)


def find_line_and_column(text: str, position: int) -> tuple[int, int, str]:
    """1-based line and column of an offset in a text, and that line; a line ends at a line feed."""
    start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position)
    return text.count("\n", 0, start) + 1, position - start + 1, text[start : len(text) if end < 0 else end]


def format_excerpt(line_text: str, column: int, width: int = 100) -> str:
    """Lays out one source line with a caret under `column` (1-based), cut to `width` characters around it."""
    start = max(0, min(column - 1 - width // 2, len(line_text) - width))
    shown = line_text[start : start + width].replace("\t", " ").rstrip("\r\n")
    head = "…" if start else ""
    tail = "…" if start + width < len(line_text.rstrip()) else ""
    return f"{head}{shown}{tail}\n" + " " * (len(head) + column - 1 - start) + "^"
