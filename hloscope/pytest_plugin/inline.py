"""Expectations written in the tests themselves, and updated with `--hloscope-update`.

A test says what is to be written; the process that prints the summary writes, at the end and once for each file, so
that processes of pytest-xdist do not write over each other.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from hloscope.base.errors import HloscopeError, NotationError, is_own_file
from hloscope.base.results import group_by
from hloscope.judge.evaluate import evaluate, make_exact_contract
from hloscope.judge.model import AT_LEAST_OK, Contract, format_clauses
from hloscope.judge.notation import parse_contract
from hloscope.judge.verdict import Verdict
from hloscope.model import Analysis
from hloscope.pytest_plugin.call_sites import (
    SourceFile,
    apply_edits,
    find_argument,
    find_call_ending_at,
    make_edit,
    read_source,
    write_source,
)

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
