"""Messages: sentences in which options, values and commands are typed parts, rendered for the command line or Python.

    say("add the mesh, for example ", Option("mesh", {"X": 4, "Y": 2}))

reads `add the mesh, for example --mesh X=4,Y=2` on the command line and `… mesh={"X": 4, "Y": 2}` in Python. A message
is a `str` in one of the two notations that keeps its parts, so that it can still be rendered in the other. An f-string
or `str.join` makes plain text of it: compose messages with `say`, `join` or `+`. Plain text, such as a path or what a
user's exception or a plugin's rule says, is never changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

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


class _Word(NamedTuple):
    """What tells an option in Python from its flag on the command line.

    Attributes:
        keyword: The keyword in Python.
        value: For a switch, the value that the keyword is given in Python.
        pair: What separates the two numbers of a tuple on the command line.
        is_span: Whether seconds are written as a span, such as `5m`.
        is_argument: Whether the command line takes the value by position, without a flag.
    """

    keyword: str
    value: bool | None = None
    pair: str = ","
    is_span: bool = False
    is_argument: bool = False


OPTIONS = {
    "against-single-device": _Word("against_single_device", True),
    "all": _Word("everything", True),
    "allow-writes": _Word("allow_writes", True),
    "arg": _Word("args"),
    "beside": _Word("beside", True),
    "chip-override": _Word("chip_overrides"),
    "collective": _Word("collective", is_argument=True),
    "compiler-option": _Word("compiler_options"),
    "dim": _Word("dims"),
    "kernel-cost": _Word("kernel_costs"),
    "range": _Word("ranges", pair=":"),
    "strict": _Word("strict", True),
    "timeout": _Word("timeout_s"),
    "try": _Word("try_s", is_span=True),
}
"""Options with another keyword than their flag, or whose values are written in a way of their own; tests compare all
options that messages name with the commands and the functions.
"""


def word_of(name: str) -> _Word:
    """An option in Python, by its flag without dashes, or by the name of the argument."""
    return OPTIONS.get(name) or _Word(name.replace("-", "_"))


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
        word, flag = word_of(self.name), f"--{self.name}"
        if self.value is None:
            return flag
        if word.is_argument:
            return _on_command_line(self.value, word)
        values = self.value if isinstance(self.value, list) else [self.value]
        if self.name == "arg" and isinstance(self.value, tuple):
            values = [str(each) if isinstance(each, Mapping) else each for each in self.value]
        return " ".join(f"{flag} {_on_command_line(each, word)}" for each in values)

    @property
    def python(self) -> str:
        """`mesh={"X": 4, "Y": 2}`."""
        word = word_of(self.name)
        value = word.value if self.value is None else self.value
        keyword = "kwargs" if self.name == "arg" and isinstance(value, Mapping) else word.keyword
        return keyword if value is None else f"{keyword}={_in_python(value)}"


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
            each.command_line if isinstance(each, Option) else _on_command_line(each) for each in self.arguments
        )
        return " ".join(("hloscope", self.name, *arguments))

    @property
    def python(self) -> str:
        """`hloscope.accept("step", only=["all-gather@X"])`."""
        function = f"hloscope.{self.name.replace('-', '_')}"
        if not self.arguments:
            return _FUNCTIONS.get(self.name, function)
        arguments = (each.python if isinstance(each, Option) else _in_python(each) for each in self.arguments)
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
    """A message made of text, other messages and typed parts, in the notation of `speaking`."""
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


def indented(message: str, columns: int) -> str:
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
def speaking(notation: Notation) -> Iterator[None]:
    """Has `say` render messages in a notation, for reports that are printed at once."""
    token = _CURRENT.set(notation)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _render(part: Part, notation: Notation) -> str:
    return part.python if notation is Notation.PYTHON else part.command_line


def _on_command_line(value: Any, word: _Word = _Word("")) -> str:  # noqa: B008 (a constant)
    """A value as a shell takes it."""
    if isinstance(value, Either):
        return value.command_line
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_on_command_line(each, word)}" for name, each in value.items())
    if isinstance(value, tuple):
        return word.pair.join(_on_command_line(each, word) for each in value)
    if isinstance(value, str):
        return f'"{value}"' if "'" in value and not set('"$`\\!') & set(value) else shlex.quote(value)
    if word.is_span:
        return next(f"{value // seconds:g}{unit}" for unit, seconds in _SPANS if not value % seconds or seconds == 1)
    return _number(value)


def _in_python(value: Any) -> str:
    """A value as a Python expression."""
    if isinstance(value, Either):
        return value.python
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_in_python(name)}: {_in_python(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_python, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_python, value))}]"
    return f'"{value}"' if isinstance(value, str) else _number(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
