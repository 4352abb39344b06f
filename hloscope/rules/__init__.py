"""Rules: what is worth telling about an analysis. A new rule is one file and one line in `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hloscope.analysis.model import Analysis
from hloscope.findings import Finding
from hloscope.rules import opaque_communication, unmodelled_text

Rule = Callable[[Analysis], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    unmodelled_text.check,
    opaque_communication.check,
)


def run_rules(analysis: Analysis) -> tuple[Finding, ...]:
    """Everything that the rules find, the most severe first."""
    found = [finding for rule in RULES for finding in rule(analysis)]
    return tuple(sorted(found, key=lambda finding: -finding.severity.rank))
