"""Which rules run on an analysis, and what of their findings is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hloscope.analysis.model import Analysis
from hloscope.errors import NotationError, did_you_mean
from hloscope.findings import Finding
from hloscope.rules import RULES
from hloscope.rules.allow import allows_in_code, apply_allows, parse_allow
from hloscope.rules.rule import Rule
from hloscope.rules.unexpected_collective import UnexpectedCollective


def judged(
    analysis: Analysis, *, select: Sequence[str] = (), ignore: Sequence[str] = (), allow: Sequence[str] = ()
) -> Analysis:
    """The analysis with what the chosen rules find, most severe first, accepted findings marked and last.

    Args:
        analysis: The facts.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules not to run.
        allow: What is accepted and why, in the notation of `hloscope.rules.allow`.

    Raises:
        NotationError: There is no rule of a name, or an allow cannot be read.
    """
    names = [rule.name for rule in RULES]
    for name in (*select, *ignore):
        find_rule(name)
    allows = [parse_allow(text, known_rules=names) for text in allow]
    expecting = any(one.names_a_kind for one in allows) or UnexpectedCollective.name in select
    rules = [rule for rule in RULES if rule.name not in ignore and (not select or rule.name in select)]
    if expecting:
        rules = [
            UnexpectedCollective(active=True) if isinstance(rule, UnexpectedCollective) else rule for rule in rules
        ]
    allows.extend(allows_in_code(analysis, known_rules=names))
    found = apply_allows(run_rules(analysis, rules), allows, analysis)
    ordered = sorted(found, key=lambda finding: (finding.allowed is not None, -finding.severity.rank))
    return replace(analysis, findings=tuple(ordered))


def run_rules(analysis: Analysis, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """Everything that the rules find."""
    return [finding for rule in rules for finding in rule.check(analysis)]


def find_rule(name: str) -> Rule:
    """The rule of a name.

    Raises:
        NotationError: There is none.
    """
    for rule in RULES:
        if rule.name == name:
            return rule
    fix = did_you_mean(name, [rule.name for rule in RULES], "hloscope rules lists them")
    raise NotationError(f"there is no rule {name!r}", fix=fix)
