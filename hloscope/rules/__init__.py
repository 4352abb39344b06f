"""Rules: what is worth reporting about an analysis. Every rule imports what it needs from here, whoever brings it.

hloscope's own stand in `builtin`, those of others are found by `plugins`; `docs/rules.md` shows how to write one.
"""

from collections.abc import Mapping
from importlib import import_module

from hloscope.findings import Finding, RuleDoc, Severity
from hloscope.given import text
from hloscope.python_words import front_door, in_python_words
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


@front_door
def pages() -> Mapping[str, RuleDoc]:
    """The page of every rule, and of every other finding of a command, by name."""
    found: Mapping[str, RuleDoc] = import_module("hloscope.report.pages").pages()
    return {name: in_python_words(page) for name, page in found.items()}


@front_door
def page(name: str) -> RuleDoc:
    """The page of one rule or other finding.

    Args:
        name: A rule, or another finding of a command: `exposed-collective`.

    Raises:
        NotationError: No command finds anything of that name.
    """
    wanted = text("name", name, example='hloscope.rules.page("exposed-collective")')
    found: RuleDoc = import_module("hloscope.report.pages").page_named(wanted)
    return found


@front_door
def failed_cases(name: str | None = None) -> Mapping[str, tuple[str, ...]]:
    """Runs the cases of plug-ins' rules, and returns what they show to be wrong.

    Args:
        name: One rule; None for all that plug-ins of the project, or of `load_plugins`, bring.

    Returns:
        What is wrong, by the rule's name; nothing where every case is as it says.

    Raises:
        NotationError: There is no such rule, it is hloscope's own, or no plug-in brings one.
        HloscopeError: A plug-in cannot be loaded.
    """
    wanted = None if name is None else text("name", name, example='hloscope.rules.failed_cases("our-rule")')
    found: Mapping[str, tuple[str, ...]] = import_module("hloscope.api.own_rules").tested(wanted)
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
    "failed_cases",
    "finding_at",
    "finding_of",
    "over_axes",
    "page",
    "pages",
    "place_of",
]
