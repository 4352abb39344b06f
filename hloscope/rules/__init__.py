"""Rules: what is worth reporting about an analysis. Every rule imports what it needs from here, whoever brings it.

hloscope's own stand in `builtin`, those of others are found by `plugins`; `docs/rules.md` shows how to write one.
"""

from hloscope.findings import Finding, Severity
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

__all__ = [
    "Case",
    "Facts",
    "Finding",
    "Rule",
    "Severity",
    "array_type",
    "cost_of",
    "element_types",
    "finding_at",
    "finding_of",
    "over_axes",
    "place_of",
]
