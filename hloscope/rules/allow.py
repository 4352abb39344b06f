"""Accepting what a rule finds, with a reason: for a whole target, or in a comment on the line of code.

`small-collectives: metrics, once per step` accepts what one rule finds, `all-gather@X: weights of FSDP` accepts
collectives of a kind over axes, whatever rule finds them. ` in FILE` or ` in FILE:LINE` narrows either. In code:

    metrics = jax.lax.psum(loss, "X")  # hloscope: allow small-collectives: metrics, once per step
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.errors import NotationError, did_you_mean
from hloscope.findings import Finding, Severity

UNUSED = "unused-allow"

_FORM = re.compile(
    r"(?P<what>[\w-]+)(?:@(?P<axes>[^\s]+))?(?:\s+in\s+(?P<source>[^\s:]+(?::\d+)?))?\s*:\s*(?P<reason>.+)"
)
_COMMENT = re.compile(r"#\s*hloscope:\s*allow\s+(?P<text>.+)$")
_HOW = "write RULE: REASON or KIND@AXES: REASON, such as 'all-gather@X: weights of FSDP'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """What is accepted, and why.

    Attributes:
        what: A rule's name, or a kind of collective.
        axes: Mesh axes of the collective, sorted; None for any.
        file: A pattern for the end of the source file's path; None for any.
        line: The line in that file; None for any.
        reason: The user's words.
        where: Where the user wrote it.
    """

    what: str
    axes: tuple[str, ...] | None
    file: str | None
    line: int | None
    reason: str
    where: str

    @property
    def names_a_kind(self) -> bool:
        """Whether it accepts collectives of a kind rather than the findings of a rule."""
        return self.what in set(Kind)


def parse_allow(text: str, *, known_rules: Iterable[str], where: str = "--allow") -> Allow:
    """Reads `RULE: REASON` or `KIND@AXES in FILE:LINE: REASON`.

    Raises:
        NotationError: There is no reason, or no rule and no kind of that name.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise NotationError(f"{where} {text!r} does not say what is allowed and why", fix=_HOW)
    names = (*known_rules, *Kind)
    if match["what"] not in names:
        fix = did_you_mean(match["what"], names, "hloscope rules lists them")
        raise NotationError(f"{where}: there is no rule and no kind of collective {match['what']!r}", fix=fix)
    file, _, line = (match["source"] or "").partition(":")
    return Allow(
        what=match["what"],
        axes=tuple(sorted(match["axes"].split(","))) if match["axes"] else None,
        file=file or None,
        line=int(line) if line else None,
        reason=match["reason"].strip(),
        where=where,
    )


def allows_in_code(analysis: Analysis, *, known_rules: Sequence[str]) -> Iterator[Allow]:
    """The comments on, or on a line of their own above, the lines of the user's code that collectives come from.

    Raises:
        NotationError: A comment begins like one of them and cannot be read.
    """
    lines = {(frame.file, frame.line) for one in analysis.collectives for frame in one.source}
    for file, line in sorted(lines):
        above = linecache.getline(file, line - 1).strip() if line > 1 else ""
        lines_to_read = (linecache.getline(file, line).rstrip(), above if above.startswith("#") else "")
        for comment in filter(None, map(_COMMENT.search, lines_to_read)):
            read = parse_allow(comment["text"], known_rules=known_rules, where=f"{file}:{line}")
            yield replace(read, file=file, line=line)


def apply_allows(findings: Iterable[Finding], allows: Sequence[Allow], analysis: Analysis) -> tuple[Finding, ...]:
    """Marks the findings that are accepted, and adds a note for each allow that accepts nothing."""
    collectives = {(one.computation, one.name): one for one in analysis.collectives}
    used: set[Allow] = set()
    marked = []
    for finding in findings:
        about = collectives.get((finding.computation or "", finding.instruction or ""))
        fitting = [allow for allow in allows if _fits(allow, finding, about)]
        used.update(fitting)
        marked.append(replace(finding, allowed=fitting[0].reason) if fitting else finding)
    unused = (_unused(allow) for allow in allows if allow not in used)
    return (*marked, *unused)


def _fits(allow: Allow, finding: Finding, about: Collective | None) -> bool:
    if allow.names_a_kind:
        if about is None or about.kind != allow.what:
            return False
        if allow.axes is not None and allow.axes != tuple(sorted(about.axes or ())):
            return False
    elif allow.what != finding.rule:
        return False
    return allow.file is None or any(_at(allow, file, line) for file, line in _places(finding, about))


def _places(finding: Finding, about: Collective | None) -> Iterator[tuple[str, int]]:
    if about is not None:
        yield from ((frame.file, frame.line) for frame in about.source)
    elif finding.source is not None:
        file, _, line = finding.source.rpartition(":")
        yield file, int(line)


def _at(allow: Allow, file: str, line: int) -> bool:
    in_file = file == allow.file or fnmatch(file, f"*/{allow.file}") or fnmatch(file, allow.file or "")
    return in_file and allow.line in (None, line)


def _unused(allow: Allow) -> Finding:
    axes = f"@{','.join(allow.axes)}" if allow.axes else ""
    return Finding(
        rule=UNUSED,
        severity=Severity.NOTE,
        message=f"{allow.where} allows {allow.what}{axes}, and nothing of it was found: {allow.reason}",
        fix="remove it",
    )
