"""Expectations written in the tests themselves, and updated with `--hloscope-update`.

A test says what is to be written; the process that prints the summary writes, at the end and once for each file, so
that processes of pytest-xdist do not write over each other.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from hloscope.base.errors import HloscopeError, NotationError, is_own_file
from hloscope.base.outputs import replace_file
from hloscope.base.results import group_by
from hloscope.judge.evaluate import evaluate, make_exact_contract
from hloscope.judge.model import AT_LEAST_OK, Contract, format_clauses
from hloscope.judge.notation import parse_contract
from hloscope.judge.verdict import Verdict
from hloscope.model import Analysis

_LINE_END = re.compile(rb"\r\n|\r|\n")
_COMMENT = re.compile(rb"#[^\r\n]*")
_BLANKS = b" \t\f\r\n\\"
_NARROWEST = 79
"""Columns of a line that every formatter leaves alone, because no project sets it to fewer."""
_ON_ONE_LINE = 2
"""Parts of a text that share a line."""


# ---- calls in source files, and a text written into one of them so that nothing else changes
#
# Offsets count bytes of UTF-8, as the columns of Python's syntax do, with line ends as they are in the file.


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


_POSITION, _NAME, _CALL = 1, "expected", "inline"
_UPDATE = "pytest --hloscope-update"
_WRITABLE = 0o222
_NOTHING = Contract()
_YOURS = "note: pytest --hloscope-update writes what moves, and keeps your limits, bans and trips"
_LITERAL = 'write it as hlo.expect.inline(report, "…"), with the text in quotes'


class Wanted(NamedTuple):
    """The text that a test wants for an expectation in a file.

    Attributes:
        path: The file.
        digest: Of its bytes when the test ran.
        line: Where the call ends.
        byte: Where on that line, in bytes of UTF-8.
        text: The lines of the expectation; empty to keep the current text.
        test: The node id of the test.
    """

    path: str
    digest: str
    line: int
    byte: int
    text: tuple[str, ...]
    test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The texts to write at the end of a session.

    Attributes:
        since_ns: When the session began, before which its files were last changed.
        wanted: What its tests want.
    """

    since_ns: int
    wanted: list[Wanted] = field(default_factory=list)

    def take(self, wanted: Iterable[Sequence[Any]]) -> None:
        """Takes what tests of another process want."""
        self.wanted.extend(Wanted(*each) for each in wanted)


def find_calling_frame() -> FrameType:
    """The frame of whoever called hloscope."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def check_against_source(
    node: pytest.Item, analysis: Analysis, expected: object, frame: FrameType, update: Update | None
) -> str | None:
    """The failure of a program against an expectation in a test; None if it passes, or if the text will be written.

    Args:
        node: The test.
        analysis: The program.
        expected: The text of the expectation.
        frame: Where the call is that holds it.
        update: Where what is to be written is kept; None where nothing is.

    Raises:
        HloscopeError: The text is no contract, or cannot be written.
    """
    if not isinstance(expected, str):
        fix = f"{_LITERAL}; any other contract goes with hlo.expect(report, …)"
        raise NotationError(f"the expectation is not text: {expected!r}", fix=fix)
    root = node.config.rootpath
    old = _NOTHING if _is_empty(expected) else parse_contract(expected, where="expectation")
    verdict = evaluate(old, analysis, root=root)
    holds = verdict.holds and old != _NOTHING
    wanted = old if holds else make_exact_contract(analysis, old, root=root)
    would = verdict if holds else evaluate(wanted, analysis, root=root)
    if update is None:
        return None if holds else _format_failure(verdict, old, would)
    if not would.holds:
        return str(would) if old == _NOTHING else f"{would}\n\n{_YOURS}"
    try:
        text = () if holds else _format_lines(wanted, expected, analysis)
        update.wanted.append(_make_wanted(node, expected, frame, text, update.since_ns))
    except HloscopeError:
        if not holds:
            raise
    return None


def _is_empty(text: str) -> bool:
    return not any(line.partition("#")[0].strip("; \t") for line in text.splitlines())


def _format_failure(verdict: Verdict, old: Contract, would: Verdict) -> str:
    """The failure, and the text that would be written; or the reason why that text would not hold either."""
    if not would.holds:
        return str(would if old == _NOTHING else verdict)
    fix = f"{_UPDATE} writes it; review it before you commit" if old == _NOTHING else f"to accept the change: {_UPDATE}"
    said = f"nothing is expected of {verdict.target} yet" if old == _NOTHING else verdict
    return f"{said}\n\n   = found: {would.contract}\n   = fix: {fix}"


def _format_lines(wanted: Contract, expected: str, analysis: Analysis) -> tuple[str, ...]:
    """The clauses of a contract, each with the comment that stood behind it."""
    parts = (line.partition("#") for line in expected.splitlines())
    comments = {said.rpartition(";")[2].strip(): comment.strip() for said, _, comment in parts if comment.strip()}
    if wanted.at_least_ok and analysis.unmodelled:
        comments.setdefault(AT_LEAST_OK, " ".join(analysis.unmodelled[0].what.split()))
    clauses = format_clauses(wanted)
    return tuple(f"{clause}  # {comments[clause]}" if clause in comments else clause for clause in clauses)


# ---- the place of an expectation


def _make_wanted(node: pytest.Item, expected: str, frame: FrameType, text: tuple[str, ...], since_ns: int) -> Wanted:
    """The text that a test wants in the call that its frame is at.

    Raises:
        HloscopeError: The text cannot be written there.
    """
    path = Path(frame.f_code.co_filename)
    where = f"{_shorten(path, node.config.rootpath)}:{frame.f_lineno}"
    try:
        _check_file(path, node.config.rootpath, since_ns)
        source = read_source(path.resolve())
        call = _find_call(frame, source)
        _check_text(call, expected)
    except HloscopeError as error:
        error.where = where
        raise
    digest = hashlib.sha256(source.raw).hexdigest()
    return Wanted(str(source.path), digest, call.end_lineno or 0, call.end_col_offset or 0, text, node.nodeid)


def _check_file(path: Path, root: Path, since_ns: int) -> None:
    """Refuses a file that is not to be written.

    Raises:
        HloscopeError: It does not exist, is not the project's, is read-only, or changed since it was imported.
    """
    refusal = "the expectation cannot be written"
    if not path.is_file():
        raise HloscopeError(refusal, why=f"there is no file {path}: the call is in code that was generated at run time")
    if not path.resolve().is_relative_to(root.resolve()) or "site-packages" in path.parts:
        raise HloscopeError(refusal, why=f"{path} is not in the project {root}")
    status = path.stat()
    if not status.st_mode & _WRITABLE or not os.access(path, os.W_OK):
        raise HloscopeError(refusal, why="the file is read-only", fix=f"chmod u+w {path}")
    if max(status.st_mtime_ns, status.st_ctime_ns) > since_ns:
        raise HloscopeError(refusal, why="the file was changed after it was imported", fix=f"run {_UPDATE} again")


def _find_call(frame: FrameType, source: SourceFile) -> ast.Call:
    """The call that a frame is at.

    Raises:
        HloscopeError: It is no plain call of `inline`.
    """
    try:
        from executing import Source
    except ImportError:
        raise HloscopeError(
            "writing inline expectations requires the package executing", fix="pip install 'hloscope[pytest]'"
        ) from None
    found = Source.executing(frame).node
    if isinstance(found, ast.Call) and _find_name(found.func) == _CALL:
        call = find_call_ending_at(source, found.end_lineno or 0, found.end_col_offset or 0)
        if call is not None and ast.dump(call) == ast.dump(found):
            return call
    raise HloscopeError("the expectation cannot be written: its call cannot be located in the source", fix=_LITERAL)


def _find_name(called: ast.expr) -> str | None:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None


def _check_text(call: ast.Call, expected: str) -> None:
    """Refuses a text that is not the one in the call.

    Raises:
        HloscopeError: It is computed, or written elsewhere.
    """
    given = find_argument(call, _POSITION, _NAME)
    stands = "" if given is None else given.value if isinstance(given, ast.Constant) else None
    if stands != expected:
        what = f"it is {ast.unparse(given)}" if given is not None else "it is among * or ** arguments"
        raise HloscopeError(
            "the expectation cannot be written: its text is not a string literal", why=what, fix=_LITERAL
        )


def _shorten(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


# ---- writing it


def write_expectations(wanted: Iterable[Wanted], root: Path) -> tuple[list[str], bool]:
    """Writes what tests want into their files, each file whole or not at all.

    If two tests want different texts at one place, nothing is written there.

    Args:
        wanted: The texts.
        root: The project's folder.

    Returns:
        Lines for the user, and whether something could not be written.
    """
    done, problems = list[str](), list[str]()
    for path, of_file in sorted(group_by(wanted, lambda each: each.path).items()):
        shown = _shorten(Path(path), root)
        agreed = list[Wanted]()
        for (line, _), asked in sorted(group_by(of_file, lambda each: (each.line, each.byte)).items()):
            if len({each.text for each in asked}) > 1:
                problems.append(_format_quarrel(f"{shown}:{line}", asked))
            elif asked[0].text:
                agreed.append(asked[0])
        try:
            done += [f"expectation written: {shown}:{line}" for line in _write_file(Path(path), agreed)]
        except HloscopeError as error:
            problems.append(f"expectations of {shown} not written: {error.on_one_line()}")
    return [*done, *problems], bool(problems)


def _format_quarrel(where: str, asked: Sequence[Wanted]) -> str:
    """The problem that tests want different texts at one place."""
    first = {each.text: each.test for each in asked}
    wants = [f"  {test}: {'; '.join(text) or 'the current text'}" for text, test in first.items()]
    fix = "  = fix: give each a text of its own, or use hlo.expect.baseline, which keeps a file for each test"
    return "\n".join([f"expectation not written: {where} runs with programs that move different things", *wants, fix])


def _write_file(path: Path, agreed: Sequence[Wanted]) -> list[int]:
    """Writes the expectations of a file; returns the line of each.

    Raises:
        HloscopeError: It cannot be written, or is another file by now.
    """
    if not agreed:
        return []
    source = read_source(path)
    if any(each.digest != hashlib.sha256(source.raw).hexdigest() for each in agreed):
        raise HloscopeError("the file changed while the tests ran", fix=f"run {_UPDATE} again")
    calls = [(find_call_ending_at(source, each.line, each.byte), each.text) for each in agreed]
    edits = [make_edit(source, call, _POSITION, _NAME, text) for call, text in calls if call is not None]
    text, lines = apply_edits(source, edits)
    write_source(source, text)
    return lines
