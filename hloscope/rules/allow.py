"""Accepted findings, each with a reason: for a whole target, or in a comment on the line of code.

`small-collectives: metrics, once per step` accepts the findings of one rule, `all-gather@X: weights of FSDP` accepts
collectives of a kind over axes, for all rules. Both can be narrowed like a contract's clauses: a rule over
axes, `collective-in-loop@X`, and either by ` over dcn` and ` in FILE` or ` in FILE:LINE`. In code:

    metrics = jax.lax.psum(loss, "X")  # hloscope: allow small-collectives: metrics, once per step
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hloscope.analysis.model import Analysis, Collective, SourceFrame
from hloscope.analysis.places import SourceFiles, split_place
from hloscope.analysis.vocabulary import Kind
from hloscope.cells import format_place
from hloscope.contracts.model import Selector, format_selector, is_at, is_exactly
from hloscope.contracts.notation import parse_selector
from hloscope.errors import NotationError, did_you_mean
from hloscope.findings import UNUSED_ALLOW, Finding, Severity, page_of_finding
from hloscope.messages import Command, say

UNUSED_PAGE = page_of_finding(
    UNUSED_ALLOW,
    "An `allow` that matches nothing.",
    "reports an `allow`, on the command line, in the targets file or in a comment, that matches no finding.",
    "what it accepted no longer exists, and something new that matches it would be accepted unnoticed.",
    "`# hloscope: allow small-collectives: once per step`, above a sum that is now combined with others.",
    "remove it.",
    severity=Severity.NOTE,
)

_FORM = re.compile(r"(?P<subject>(?P<what>[\w*?-]+).*?)\s*:(?![\d(])\s*(?P<reason>\S.*)", re.DOTALL)
_COMMENT = re.compile(r"#\s*hloscope:\s*allow\s+(?P<text>.+)$")
CodeLine = tuple[str, int]
"""A file and a line, counted from 1."""

_HOW_TO_WRITE = "write RULE: REASON or KIND@AXES: REASON, such as 'all-gather@X: weights of FSDP'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """One accepted thing, with the reason.

    Attributes:
        rule: The rule whose findings are accepted; None for those of all rules.
        selector: The collectives that they are about.
        reason: The user's words.
        where: The place where the user wrote it.
    """

    rule: str | None
    selector: Selector
    reason: str
    where: str

    def __str__(self) -> str:
        words = format_selector(replace(self.selector, source=None))
        return words if self.rule is None else f"{self.rule}{words.removeprefix('*')}"


def parse_allow(text: str, *, known_rules: Iterable[str], where: str = "--allow") -> Allow:
    """Parses `RULE: REASON` or `KIND@AXES in FILE:LINE: REASON`.

    Raises:
        NotationError: There is no reason, or neither a rule nor a kind has that name.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise NotationError(f"{where} {text!r} does not say what is allowed and why", fix=_HOW_TO_WRITE)
    subject, what, rules = match["subject"], match["what"], tuple(known_rules)
    rule = what if what in rules else None
    if rule is None and what not in set(Kind) and not {"*", "?"} & set(what):
        fix = did_you_mean(what, (*rules, *Kind), say(Command("rules"), " lists them"))
        raise NotationError(f"{where}: {what!r} is neither a rule nor a kind of collective", fix=fix)
    selector = parse_selector(subject if rule is None else f"*{subject.removeprefix(rule)}", where=where)
    return Allow(rule=rule, selector=selector, reason=match["reason"].strip(), where=where)


def find_collective_lines(analysis: Analysis) -> set[CodeLine]:
    """The lines of the user's code that collectives come from, including callers."""
    return {(frame.file, frame.line) for collective in analysis.collectives for frame in collective.source}


def find_finding_lines(findings: Iterable[Finding]) -> set[CodeLine]:
    """The lines of the user's code in findings."""
    places = (split_place(finding.source) for finding in findings if finding.source is not None)
    return {(file, line) for file, line in places if line is not None}


def find_allows_in_code(
    lines: Iterable[CodeLine], *, known_rules: Sequence[str], sources: SourceFiles
) -> Iterator[Allow]:
    """The allow comments on lines of the user's code, or on the line above, in the files that may be read.

    Raises:
        NotationError: A comment begins like one of them and cannot be parsed.
    """
    for file, line in sorted(lines):
        above = (sources.line(file, line - 1) or "").strip() if line > 1 else ""
        lines_to_read = (sources.line(file, line) or "", above if above.startswith("#") else "")
        for comment in filter(None, map(_COMMENT.search, lines_to_read)):
            read = parse_allow(comment["text"], known_rules=known_rules, where=format_place(f"{file}:{line}"))
            yield replace(read, selector=replace(read.selector, source=f"{glob.escape(file)}:{line}"))


def find_unread_files(lines: Iterable[CodeLine], sources: SourceFiles) -> tuple[str, ...]:
    """The files that may not be read, although a comment in them could have accepted something."""
    return tuple(dict.fromkeys(file for file, line in sorted(lines) if sources.line(file, line) is None))


def apply_allows(findings: Iterable[Finding], allows: Sequence[Allow], analysis: Analysis) -> tuple[Finding, ...]:
    """Marks the accepted findings, and adds a note for each allow that matches nothing."""
    collectives = {(collective.computation, collective.name): collective for collective in analysis.collectives}
    used: set[Allow] = set()
    marked = []
    for finding in findings:
        about = collectives.get((finding.computation or "", finding.instruction or ""))
        fitting = [allow for allow in allows if _fits(allow, finding, about)]
        used.update(fitting)
        marked.append(replace(finding, allowed=fitting[0].reason) if fitting else finding)
    unused = (_make_unused_finding(allow) for allow in allows if allow not in used)
    return (*marked, *unused)


def _fits(allow: Allow, finding: Finding, about: Collective | None) -> bool:
    if allow.rule not in (None, finding.rule):
        return False
    if about is not None:
        return is_exactly(allow.selector, about)
    speaks_of_collectives = allow.rule is None or allow.selector.axes is not None or allow.selector.link is not None
    return not speaks_of_collectives and _is_at(allow.selector.source, finding.source)


def _is_at(place: str | None, source: str | None) -> bool:
    if place is None:
        return True
    file, line = split_place(source or "")
    return line is not None and is_at(place, SourceFrame(file=file, line=line))


def _make_unused_finding(allow: Allow) -> Finding:
    return Finding(
        rule=UNUSED_ALLOW,
        severity=Severity.NOTE,
        message=f"{allow.where} allows {allow}, but it matches nothing: {allow.reason}",
        fix="remove it",
    )
