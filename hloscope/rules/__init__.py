"""The names with which a project writes its own rules, and the pages of all rules.

The built-in rules are in `hloscope.judge.rules`; `docs/rules.md` shows how to write one.
"""

from collections.abc import Mapping

from hloscope.base.calls import front_door, speak_python, text
from hloscope.base.presenter import ask
from hloscope.judge.rule import (
    Case,
    Facts,
    Rule,
    array_type,
    cost_of,
    element_types,
    finding_at,
    finding_of,
    over_axes,
    place_of,
)
from hloscope.model.finding import Finding, RuleDoc, Severity


@front_door
def pages() -> Mapping[str, RuleDoc]:
    """Returns the page of every rule, and of every other finding of a command, by name."""
    return {name: speak_python(page) for name, page in ask("rule pages").items()}


@front_door
def page(name: str) -> RuleDoc:
    """Returns the page of one rule or other finding.

    Args:
        name: Name of a rule or of another finding of a command, such as `exposed-collective`.

    Raises:
        NotationError: No finding has this name.
    """
    wanted = text("name", name, example='hloscope.rules.page("exposed-collective")')
    found: RuleDoc = ask("rule page", wanted)
    return found


@front_door
def failed_cases(name: str | None = None) -> Mapping[str, tuple[str, ...]]:
    """Runs the cases of plug-ins' rules and returns the failures.

    Args:
        name: Name of one rule; None for all rules of the project's plug-ins and of `load_plugins`.

    Returns:
        The failures by rule name; empty if all cases pass.

    Raises:
        NotationError: The rule does not exist or is built in, or no plug-in has a rule.
        HloscopeError: A plug-in cannot be loaded.
    """
    wanted = None if name is None else text("name", name, example='hloscope.rules.failed_cases("our-rule")')
    failed: Mapping[str, tuple[str, ...]] = ask("failed cases", wanted)
    return failed


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
