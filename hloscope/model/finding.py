"""Findings: messages of rules and other stages about a program, with severity and place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from hloscope.base.calls import choice
from hloscope.base.errors import Command, Option, mark
from hloscope.base.results import group_by, shorten_to_line

UNUSED_ALLOW = "unused-allow"
"""The rule on allowances of which nothing is found."""


class Severity(StrEnum):
    """The severity of a finding, which `--fail-on` is compared with."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for a note, 1 for a warning, 2 for an error."""
        return ("note", "warning", "error").index(self.value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding:
    """A message about one place of the compiled program.

    Attributes:
        rule: Name of the rule, as written after "allow": `opaque-communication`.
        severity: Severity of the finding.
        message: One sentence, lower case.
        computation: The HLO computation it concerns; None for the whole module.
        instruction: Name of the HLO instruction; None for the whole module.
        line: 1-based line in the HLO text; None for the whole module.
        source: Line of user code, such as `file.py:31`; None if unknown.
        why: The cause; None if unknown.
        cost: The cost in bytes or time; None if unknown.
        fix: How to fix it; None if unknown.
        allowed: The user's reason for accepting it; None if it is not accepted.
    """

    rule: str
    severity: Severity
    message: str
    computation: str | None = None
    instruction: str | None = None
    line: int | None = None
    source: str | None = None
    why: str | None = None
    cost: str | None = None
    fix: str | None = None
    allowed: str | None = None

    def __repr__(self) -> str:
        place = "" if self.source is None else f", {self.source}"
        return shorten_to_line(
            f"<{self.severity} {self.rule}: {self.message}{place}{', allowed' * bool(self.allowed)}>"
        )

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """The known ones of cause, cost and fix, each with its label."""
        known = ((label, getattr(self, label)) for label in ("why", "cost", "fix"))
        return tuple((label, words) for label, words in known if words)


_NUMBERS = r"(?<=\[)\d+(?=\])|(?<=_)\d+\b"
_OF_LAYERS = re.compile(_NUMBERS)
"""What differs between layers in the name of an argument."""
_OF_PLACES = re.compile(rf"%[\w.-]+|{_NUMBERS}|\b\d[\d.,]*(?: ?(?:[kMGTP]?B|us|ms|s)\b|%)")
"""What differs between two instructions for one cause: names, numbers of layers, bytes and times."""


def cause_of(finding: Finding) -> tuple[object, ...]:
    """Returns a key that findings with the same cause share, such as a layer written once and compiled 36 times.

    The key is the rule and the message without places and amounts. Each finding is still accepted, and fails a check,
    by itself.
    """
    varies = _OF_LAYERS if finding.instruction is None else _OF_PLACES
    words = (varies.sub("#", text or "") for text in (finding.message, finding.why, finding.fix))
    return finding.rule, finding.severity, finding.allowed, *words


def by_cause(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], ...]:
    """The findings of each cause, in the order of the first of each."""
    return tuple(map(tuple, group_by(findings, cause_of).values()))


def with_others(finding: Finding, others: int) -> Finding:
    """A finding that stands for others of its cause too, and says so."""
    words = f"{finding.message} (and {others:,} more place{'' if others == 1 else 's'} like it)"
    return replace(finding, message=words) if others else finding


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDoc:
    """The page of a rule, printed by `hloscope rules NAME` and included in SARIF.

    Attributes:
        name: Name of the rule.
        severity: Severity of its findings, unless a finding overrides it.
        summary: What the rule finds, one sentence.
        sections: Title and text: what it does, why it matters, an example, what to use instead.
        options: Name, default and description of each option.
    """

    name: str
    severity: Severity
    summary: str
    sections: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str, str], ...] = ()


SECTIONS = ("What it does", "Why it matters", "Example", "Use instead")
"""The titles of a page's sections."""


def page_of_finding(
    name: str, summary: str, what: str, why: str, example: str, instead: str, severity: Severity = Severity.ERROR
) -> RuleDoc:
    """The page of a finding that no rule makes; the texts after the summary are those of `SECTIONS`, in order."""
    sections = tuple(zip(SECTIONS, (what, why, example, instead), strict=True))
    return RuleDoc(name=name, severity=severity, summary=summary, sections=sections)


_PAGE = re.compile(r"^## (\S+): (\w+)$", re.MULTILINE)
_SECTION = re.compile(rf"^(?:{'|'.join(SECTIONS)}): ", re.MULTILINE)


def read_pages(package: str, *named: Option | Command) -> tuple[RuleDoc, ...]:
    """The pages in the `pages.md` of a package, in their order.

    Args:
        package: The package's dotted name.
        named: The options and commands that the pages name, longer ones before those that they begin with.
    """
    from importlib.resources import files  # only here: it takes milliseconds, and most commands need no page

    text = files(package).joinpath("pages.md").read_text(encoding="utf-8")
    _, *parts = _PAGE.split(text)
    pages = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return tuple(_page(*page, named) for page in pages)


def _page(name: str, severity: str, text: str, named: tuple[Option | Command, ...]) -> RuleDoc:
    summary, what, why, example, instead = (mark(" ".join(part.split()), *named) for part in _SECTION.split(text))
    return page_of_finding(name, summary, what, why, example, instead, Severity(severity))


def severe(findings: Iterable[Finding], fail_on: str) -> tuple[Finding, ...]:
    """The findings that make a program fail.

    Args:
        findings: All of them.
        fail_on: The least severity that does: `note`, `warning` or `error`.

    Raises:
        NotationError: There is no such severity.
    """
    return unaccepted(findings, Severity(choice("fail_on", fail_on, Severity)))


def unaccepted(findings: Iterable[Finding], least: Severity) -> tuple[Finding, ...]:
    """The findings that are as severe as `least` or worse, and not accepted."""
    return tuple(finding for finding in findings if finding.severity.rank >= least.rank and finding.allowed is None)
