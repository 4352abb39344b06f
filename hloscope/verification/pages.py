"""What a verification may find: for each finding its name, its severity and the page that `hloscope rules` prints."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from hloscope.findings import SECTIONS, Finding, RuleDoc, Severity, page_of_finding
from hloscope.messages import Option, mark

_PAGE = re.compile(r"^## (\S+): (\w+)$", re.MULTILINE)
_SECTION = re.compile(rf"^(?:{'|'.join(SECTIONS)}): ", re.MULTILINE)


_NAMED_OPTIONS = (
    Option("range", {"B": (0, 8)}),
    Option("range", {"x": (-1, 1)}),
    Option("scale", {"B": 64, "F": 256}),
    Option("on", "tpu"),
    *map(Option, ("scale", "rtol", "atol", "strict", "timeout")),
)
"""The options that pages name, longer ones before those that they begin with."""


def _page(name: str, severity: str, text: str) -> RuleDoc:
    parts = (mark(" ".join(part.split()), *_NAMED_OPTIONS) for part in _SECTION.split(text))
    summary, what, why, example, instead = parts
    return page_of_finding(name, summary, what, why, example, instead, Severity(severity))


_parts = iter(_PAGE.split(files(__package__).joinpath("pages.md").read_text(encoding="utf-8"))[1:])
PAGES = tuple(_page(*page) for page in zip(_parts, _parts, _parts, strict=True))
RULE_NAMES = tuple(page.name for page in PAGES)
"""Every name that a finding of a verification may have."""
_SEVERITIES = {page.name: page.severity for page in PAGES}


def finding(name: str, message: str, *, severity: Severity | None = None, **facts: Any) -> Finding:
    """A finding, as severe as its page says unless something else is said here."""
    return Finding(rule=name, severity=severity or _SEVERITIES[name], message=message, **facts)
