"""Calls in source files, and how a text is written into one of them so that nothing else changes."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hloscope.base.errors import HloscopeError

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNSEEN = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_NARROWEST = 79
"""Columns of a line that no formatter breaks, as nobody sets it to fewer."""
_ON_ONE_LINE = 2
"""Parts of a text that share a line."""


class Span(NamedTuple):
    """A part of a text, from one offset to another."""

    start: int
    end: int


class Edit(NamedTuple):
    """A part of a file, and what it becomes."""

    span: Span
    text: str


class _Token(NamedTuple):
    kind: int
    text: str
    span: Span


@dataclass(frozen=True)
class SourceFile:
    """A file of Python.

    Attributes:
        path: Where it is.
        raw: Its bytes.
        encoding: What it says of its encoding.
        text: What the bytes say, line ends as they are.
    """

    path: Path
    raw: bytes
    encoding: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.plain)

    @cached_property
    def plain(self) -> str:
        """The text with the line ends that Python sees."""
        return _LINE_END.sub("\n", self.text)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each line begins."""
        return (0, *(found.end() for found in _LINE_END.finditer(self.text)))

    def line(self, number: int) -> str:
        """A line, counted from 1, without its end."""
        first = self.starts[number - 1]
        end = _LINE_END.search(self.text, first)
        return self.text[first : len(self.text) if end is None else end.start()]

    def offset(self, line: int, byte: int) -> int:
        """Where something is that the syntax places by the line and the bytes before it."""
        return self.starts[line - 1] + len(self.line(line).encode()[:byte].decode())

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """Where something of the syntax stands."""
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(self.offset(node.lineno, node.col_offset), self.offset(*end))

    @cached_property
    def tokens(self) -> tuple[_Token, ...]:
        """All that is more than blanks and line ends."""
        return tuple(self._tokens())

    def _tokens(self) -> Iterator[_Token]:
        for token in tokenize.generate_tokens(io.StringIO(self.plain).readline):
            if token.type not in _UNSEEN:
                start, end = (self.starts[row - 1] + column for row, column in (token.start, token.end))
                yield _Token(token.type, token.string, Span(start, end))


def read_source(path: Path) -> SourceFile:
    """Reads a file of Python.

    Raises:
        HloscopeError: It cannot be read, or not written back as it is.
    """
    try:
        raw = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        whole = text.encode(encoding) == raw
    except (OSError, SyntaxError, UnicodeError) as error:
        raise HloscopeError(f"{path} cannot be read", why=str(error)) from None
    if not whole:
        raise HloscopeError(f"{path} cannot be rewritten: its encoding, {encoding}, has several spellings of one text")
    return SourceFile(path, raw, encoding, text)


def call_that_ends(source: SourceFile, line: int, byte: int) -> ast.Call | None:
    """The call whose closing parenthesis is at a place, which is the one of no other; None where there is none."""
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return next((call for call in calls if (call.end_lineno, call.end_col_offset) == (line, byte)), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """What a call gives for a parameter; None where it does not, or within `*` or `**`."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if named is not None or any(isinstance(given, ast.Starred) for given in call.args[: position + 1]):
        return named
    return call.args[position] if len(call.args) > position else None


def edit_of(source: SourceFile, call: ast.Call, position: int, name: str, lines: Sequence[str]) -> Edit:
    """What becomes of a file where an argument of a call becomes a text.

    One line stands in quotes where it fits. Several stand between triple quotes, indented, each argument on a line of
    its own, as the formatters write it.

    Args:
        source: The file.
        call: The call.
        position: Of the argument, which all before it have to have.
        name: Of the argument.
        lines: The text.
    """
    return _CallText(source, call, position, name).edit(lines)


def edited(source: SourceFile, edits: Sequence[Edit]) -> tuple[str, list[int]]:
    """A file's text with edits in it, and the lines on which they begin.

    Raises:
        HloscopeError: Two of them are within each other, or what would come of it is no Python.
    """
    parts, lines, done = list[str](), list[int](), 0
    for edit in sorted(edits):
        if edit.span.start < done:
            raise HloscopeError("nested calls cannot be rewritten at once", fix="give each a line of its own")
        parts += [source.text[done : edit.span.start], edit.text]
        lines.append(1 + len(_LINE_END.findall("".join(parts[:-1]))))
        done = edit.span.end
    text = "".join([*parts, source.text[done:]])
    try:
        ast.parse(_LINE_END.sub("\n", text))
    except SyntaxError as error:
        raise HloscopeError("the text does not fit where it would be written", why=str(error)) from None
    return text, lines


def write_source(source: SourceFile, text: str) -> None:
    """Writes a file's new text, whole or not at all, and as accessible as it was.

    Raises:
        HloscopeError: It cannot be written.
    """
    temporary = source.path.with_name(f".{source.path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temporary.write_bytes(text.encode(source.encoding))
        shutil.copymode(source.path, temporary)
        temporary.replace(source.path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HloscopeError(f"{source.path} cannot be written", why=error.strerror or str(error)) from None


class _CallText:
    """A call as it is written, and the place in it for an argument."""

    def __init__(self, source: SourceFile, call: ast.Call, position: int, name: str) -> None:
        self.source = source
        end = source.span(call).end
        after = source.span(call.func).end
        opening = next(token for token in source.tokens if token.text == "(" and token.span.start >= after)
        self.inside = Span(opening.span.end, end - 1)
        tokens = [token for token in source.tokens if self.inside.start <= token.span.start < end]
        self.has_comments = any(token.kind == tokenize.COMMENT for token in tokens)
        self.tokens = [token for token in tokens if token.kind != tokenize.COMMENT]
        given: tuple[ast.expr | ast.keyword, ...] = (*call.args, *call.keywords)
        nodes = sorted(given, key=lambda node: (node.lineno, node.col_offset))
        self.arguments = list(self._arguments(map(source.span, nodes)))
        value = argument(call, position, name)
        found = [place for place, node in enumerate(nodes) if value is not None and value is _value(node)]
        is_named = isinstance(nodes[found[0]], ast.keyword) if found else not call.args
        self.old = self.arguments[found[0]] if found else None
        self.place = found[0] if found else len(nodes) if is_named else position
        self.head = f"{name}=" if is_named else ""

    def _arguments(self, nodes: Iterable[Span]) -> Iterator[Span]:
        """Each argument with the parentheses around it, and without the comma behind."""
        begin = self.inside.start
        for node in nodes:
            behind = (token.span for token in self.tokens if token.span.start >= node.end)
            until = next(span for span in behind if self._text(span) == "," or span.start == self.inside.end)
            own = [token.span for token in self.tokens if begin <= token.span.start < until.start]
            yield Span(own[0].start, own[-1].end)
            begin = until.end

    def edit(self, lines: Sequence[str]) -> Edit:
        """What becomes of the file where the text becomes this one."""
        here = self.old or self.arguments[self.place - 1]
        indent = self._indent_of(here)
        gap = "" if self.old is not None else ", " if indent is None else f",{self.line_end}{indent}"
        span = here if self.old is not None else Span(here.end, here.end)
        line = gap + self.head + self._in_quotes("; ".join(lines))
        if len(lines) <= _ON_ONE_LINE and "#" not in "".join(lines) and self._fits(span, line):
            return Edit(span, line)
        if indent is None and not self.has_comments:
            return self._spread(lines)
        return Edit(span, gap + self.head + self._block(lines, self._indent + self._step if indent is None else indent))

    def _spread(self, lines: Sequence[str]) -> Edit:
        """The call with each argument on a line of its own."""
        inner, end = self._indent + self._step, self.line_end
        texts = [self._text(span) for span in self.arguments]
        texts[self.place : self.place + (self.old is not None)] = [self.head + self._block(lines, inner)]
        spread = "".join(f"{inner}{text},{end}" for text in texts)
        return Edit(self.inside, f"{end}{spread}{self._indent}")

    def _block(self, lines: Sequence[str], indent: str) -> str:
        """The text between triple quotes, a line of it on each line."""
        quotes = '"""'
        texts = [self._escaped(line).replace(quotes, '\\"""') for line in lines]
        return f"{self.line_end}{indent}".join([quotes, *texts, quotes])

    def _in_quotes(self, text: str) -> str:
        quote = "'" if '"' in text and "'" not in text else '"'
        return quote + self._escaped(text).replace(quote, f"\\{quote}") + quote

    def _escaped(self, text: str) -> str:
        """The text as it stands in a string of this file, which may not be able to spell all of it."""
        seen = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in _doubled(text)
        )
        return seen.encode(self.source.encoding, "backslashreplace").decode(self.source.encoding)

    def _indent_of(self, span: Span) -> str | None:
        """The blanks before what begins a line and ends one; None where it shares its lines."""
        before, after = self._around(span)
        is_alone = not before.strip() and re.fullmatch(r"\s*,?\s*(#.*)?", after) is not None
        return before if is_alone else None

    def _fits(self, span: Span, line: str) -> bool:
        before, after = self._around(span)
        last = (before + line + after).replace(self.line_end, "\n").rpartition("\n")[2]
        return len(last.expandtabs(4)) <= _NARROWEST

    def _around(self, span: Span) -> tuple[str, str]:
        """What stands before something on its first line, and after it on its last."""
        text = self.source.text
        return _LINE_END.split(text[: span.start])[-1], _LINE_END.split(text[span.end :], maxsplit=1)[0]

    @property
    def _indent(self) -> str:
        """The blanks before the line on which the arguments begin."""
        before, _ = self._around(Span(self.inside.start, self.inside.start))
        return before[: len(before) - len(before.lstrip())]

    @property
    def _step(self) -> str:
        return "\t" if "\t" in self._indent else "    "

    @property
    def line_end(self) -> str:
        """How lines end here."""
        found = _LINE_END.search(self.source.text, self.inside.start) or _LINE_END.search(self.source.text)
        return "\n" if found is None else found[0]

    def _text(self, span: Span) -> str:
        return self.source.text[span.start : span.end]


def _value(node: ast.expr | ast.keyword) -> ast.expr:
    return node.value if isinstance(node, ast.keyword) else node


def _doubled(text: str) -> str:
    return text.replace("\\", "\\\\")
