"""Rules: what is worth reporting about an analysis. Every rule imports what it needs from here, whoever brings it.

hloscope's own stand in `builtin`, those of others are found by `plugins`; `docs/rules.md` shows how to write one.
"""

from collections.abc import Mapping
from importlib import import_module

from hloscope.findings import Finding, RuleDoc, Severity
from hloscope.rules.facts import Facts
from hloscope.rules.rule import (
    Case,
    Rule,
    array_type,
    cost_of,
    element_types,
    finding_at,
    finding_of,
    over_axes,
    place_of,
)


def pages() -> Mapping[str, RuleDoc]:
    """The page of every rule, and of what else commands find, by name, as `hloscope rules` lists them."""
    found: Mapping[str, RuleDoc] = import_module("hloscope.report.pages").pages()
    return found


def page(name: str) -> RuleDoc:
    """The page of one.

    Raises:
        NotationError: No command finds anything of that name.
    """
    found: RuleDoc = import_module("hloscope.report.pages").page_named(name)
    return found


__all__ = [
    "Case",
    "Facts",
    "Finding",
    "Rule",
    "RuleDoc",
    "Severity",
    "array_type",
    "cost_of",
    "element_types",
    "finding_at",
    "finding_of",
    "over_axes",
    "page",
    "pages",
    "place_of",
]
