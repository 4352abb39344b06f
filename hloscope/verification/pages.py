"""The findings of a verification: for each, its name, its severity and the page that `hloscope rules` prints."""

from __future__ import annotations

from typing import Any

from hloscope.findings import Finding, Severity, read_pages
from hloscope.messages import Option

_NAMED_OPTIONS = (
    Option("range", {"B": (0, 8)}),
    Option("range", {"x": (-1, 1)}),
    Option("scale", {"B": 64, "F": 256}),
    Option("on", "tpu"),
    *map(Option, ("scale", "rtol", "atol", "strict", "timeout")),
)
"""The options that pages name, longer ones before those that they begin with."""
PAGES = read_pages(str(__package__), *_NAMED_OPTIONS)
RULE_NAMES = tuple(page.name for page in PAGES)
"""The names of all findings of a verification."""
_SEVERITIES = {page.name: page.severity for page in PAGES}


def make_finding(name: str, message: str, *, severity: Severity | None = None, **facts: Any) -> Finding:
    """A finding with the severity of its page, unless another one is given."""
    return Finding(rule=name, severity=severity or _SEVERITIES[name], message=message, **facts)
