"""Calls in source files, and a text written into one of them so that nothing else changes.

Offsets count bytes of UTF-8, as the columns of Python's syntax do, with line ends as they are in the file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hloscope.base.errors import HloscopeError
from hloscope.base.outputs import replace_file

_LINE_END = re.compile(rb"\r\n|\r|\n")
_COMMENT = re.compile(rb"#[^\r\n]*")
_BLANKS = b" \t\f\r\n\\"
_NARROWEST = 79
"""Columns of a line that every formatter leaves alone, because no project sets it to fewer."""
_ON_ONE_LINE = 2
"""Parts of a text that share a line."""


class Span(NamedTuple):
    """A part of a file, from one offset to another."""

    start: int
    end: int


class Edit(NamedTuple):
    """A part of a file, and its replacement."""

    span: Span
    text: str


@dataclass(frozen=True)
class SourceFile:
    """A Python file.

    Attributes:
        path: Its path.
        raw: Its bytes.
        encoding: The encoding that it declares.
        utf8: Its text in UTF-8.
    """

    path: Path
    raw: bytes
    encoding: str
    utf8: bytes

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.utf8.decode())

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The offset of each line."""
        return (0, *(found.end() for found in _LINE_END.finditer(self.utf8)))

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """The span of a node of the syntax tree."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return Span(self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column)


def read_source(path: Path) -> SourceFile:
    """Reads a Python file.

    Raises:
        HloscopeError: It cannot be read, or its text cannot be written back in the same bytes.
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
    return SourceFile(path, raw, encoding, text.encode())


def find_call_ending_at(source: SourceFile, line: int, byte: int) -> ast.Call | None:
    """The call whose closing parenthesis is at a place, at which no other call ends; None if no call ends there."""
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return next((call for call in calls if (call.end_lineno, call.end_col_offset) == (line, byte)), None)


def find_argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The value that a call passes for a parameter; None if it passes none, or passes it within `*` or `**`."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if named is not None or any(isinstance(given, ast.Starred) for given in call.args[: position + 1]):
        return named
    return call.args[position] if len(call.args) > position else None


def make_edit(source: SourceFile, call: ast.Call, position: int, name: str, lines: Sequence[str]) -> Edit:
    """The edit that puts a text in place of an argument of a call.

    One line is written in quotes if it fits. Several are written between triple quotes, indented, with each argument on
    a line of its own, as the formatters write it.

    Args:
        source: The file.
        call: The call.
        position: Position of the argument; all positions before it have to be taken.
        name: Name of the argument.
        lines: The text.
    """
    return _CallText(source, call, position, name).edit(lines)


def apply_edits(source: SourceFile, edits: Sequence[Edit]) -> tuple[str, list[int]]:
    """A file's text with edits in it, and the lines on which they begin.

    Raises:
        HloscopeError: One of them is within another, or the result is not valid Python.
    """
    parts, lines, done = list[bytes](), list[int](), 0
    for edit in sorted(edits):
        if edit.span.start < done:
            raise HloscopeError("nested calls cannot be rewritten at once", fix="give each a line of its own")
        parts.append(source.utf8[done : edit.span.start])
        lines.append(1 + len(_LINE_END.findall(b"".join(parts))))
        parts.append(edit.text.encode())
        done = edit.span.end
    text = b"".join([*parts, source.utf8[done:]]).decode()
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise HloscopeError("the text does not fit where it would be written", why=str(error)) from None
    return text, lines


def write_source(source: SourceFile, text: str) -> None:
    """Writes a file's new text, whole or not at all, and as accessible as it was.

    Raises:
        HloscopeError: It cannot be written.
    """
    replace_file(source.path, text.encode(source.encoding), str(source.path))


class _CallText:
    """A call as it is written, and the place in it for an argument."""

    def __init__(self, source: SourceFile, call: ast.Call, position: int, name: str) -> None:
        self.source = source
        given: tuple[ast.expr | ast.keyword, ...] = (*call.args, *call.keywords)
        nodes = sorted(given, key=lambda node: (node.lineno, node.col_offset))
        spans, head, end = [source.span(node) for node in nodes], source.span(call.func).end, source.span(call).end - 1
        starts, ends = [*(span.start for span in spans), end], [head, *(span.end for span in spans)]
        gaps = [source.utf8[before:after] for before, after in zip(ends, starts, strict=True)]
        self.has_comments = any(map(_COMMENT.search, gaps))
        gaps = [_COMMENT.sub(lambda comment: b" " * len(comment[0]), gap) for gap in gaps]
        self.inside = Span(head + gaps[0].index(b"(") + 1, end)
        self.arguments = list(_widen_over_parentheses(spans, gaps))
        value = find_argument(call, position, name)
        values = [node.value if isinstance(node, ast.keyword) else node for node in nodes]
        found = values.index(value) if value in values else None
        is_named = not call.args if found is None else isinstance(nodes[found], ast.keyword)
        self.old = None if found is None else self.arguments[found]
        self.place = found if found is not None else len(nodes) if is_named else position
        self.head = f"{name}=" if is_named else ""

    def edit(self, lines: Sequence[str]) -> Edit:
        """The edit after which the argument is this text."""
        here = self.old or self.arguments[self.place - 1]
        indent = self._find_indent_of(here)
        gap = "" if self.old is not None else ", " if indent is None else f",{self.line_end}{indent}"
        span = here if self.old is not None else Span(here.end, here.end)
        line = gap + self.head + self._quote("; ".join(lines))
        if len(lines) <= _ON_ONE_LINE and "#" not in "".join(lines) and self._fits(span, line):
            return Edit(span, line)
        if indent is None and not self.has_comments:
            return self._spread(lines)
        indent = self._indent + self._step if indent is None else indent
        return Edit(span, gap + self.head + self._quote_block(lines, indent))

    def _spread(self, lines: Sequence[str]) -> Edit:
        """The call with each argument on a line of its own."""
        inner, end = self._indent + self._step, self.line_end
        texts = [self.source.utf8[span.start : span.end].decode() for span in self.arguments]
        texts[self.place : self.place + (self.old is not None)] = [self.head + self._quote_block(lines, inner)]
        spread = "".join(f"{inner}{text},{end}" for text in texts)
        return Edit(self.inside, f"{end}{spread}{self._indent}")

    def _quote_block(self, lines: Sequence[str], indent: str) -> str:
        """The text between triple quotes, a line of it on each line."""
        quotes = '"""'
        texts = [self._escape(line).replace(quotes, '\\"""') for line in lines]
        return f"{self.line_end}{indent}".join([quotes, *texts, quotes])

    def _quote(self, text: str) -> str:
        quote = "'" if '"' in text and "'" not in text else '"'
        return quote + self._escape(text).replace(quote, f"\\{quote}") + quote

    def _escape(self, text: str) -> str:
        """The text as it is written in a string of this file, whose encoding may lack some of its letters."""
        doubled = text.replace("\\", "\\\\")
        seen = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in doubled)
        return seen.encode(self.source.encoding, "backslashreplace").decode(self.source.encoding)

    def _find_indent_of(self, span: Span) -> str | None:
        """The blanks before a span that has its lines for itself; None if it shares them."""
        before, after = self._find_surroundings(span)
        is_alone = not before.strip() and re.fullmatch(r"\s*,?\s*(#.*)?", after) is not None
        return before if is_alone else None

    def _fits(self, span: Span, line: str) -> bool:
        before, after = self._find_surroundings(span)
        last = (before + line + after).replace(self.line_end, "\n").rpartition("\n")[2]
        return len(last.expandtabs(4)) <= _NARROWEST

    def _find_surroundings(self, span: Span) -> tuple[str, str]:
        """The text before a span on its first line, and after it on its last."""
        before, after = self.source.utf8[: span.start], self.source.utf8[span.end :]
        return _LINE_END.split(before)[-1].decode(), _LINE_END.split(after, maxsplit=1)[0].decode()

    @property
    def _indent(self) -> str:
        """The blanks before the line on which the arguments begin."""
        before, _ = self._find_surroundings(self.inside)
        return before[: len(before) - len(before.lstrip())]

    @property
    def _step(self) -> str:
        return "\t" if "\t" in self._indent else "    "

    @property
    def line_end(self) -> str:
        """The line end that is used here."""
        found = _LINE_END.search(self.source.utf8, self.inside.start) or _LINE_END.search(self.source.utf8)
        return "\n" if found is None else found[0].decode()


def _widen_over_parentheses(spans: Iterable[Span], gaps: Sequence[bytes]) -> Iterator[Span]:
    """Each argument with the parentheses around it, and without the comma behind it.

    Args:
        spans: The arguments.
        gaps: The text before each of them, and after the last one; comments are blanked out.
    """
    for number, (start, end) in enumerate(spans):
        opened = gaps[number].partition(b"," if number else b"(")[2].lstrip(_BLANKS)
        closed = gaps[number + 1].partition(b",")[0].rstrip(_BLANKS)
        yield Span(start - len(opened), end + len(closed))
