"""What a rule is: a name, a severity, options, a page, and a function from an analysis to findings."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from textwrap import dedent
from typing import Any, ClassVar, Protocol

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.places import short_source, users_line
from hloscope.findings import SECTIONS, Finding, RuleDoc, Severity
from hloscope.units import format_bytes, format_count, format_time


class Rule(Protocol):
    """A frozen dataclass whose fields are the rule's options.

    Its module's docstring is its page, with the sections of `SECTIONS`; its own docstring tells what the options mean.
    """

    name: ClassVar[str]
    severity: ClassVar[Severity]

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """What the rule finds."""


def finding_at(rule: Rule, collective: Collective, message: str, *, fix: str | None = None) -> Finding:
    """A finding about one collective, with its place, its reason and its cost."""
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        message=message,
        computation=collective.computation,
        instruction=collective.name,
        line=collective.line,
        source=users_line(collective.source),
        why=collective.why,
        cost=cost_of(collective),
        fix=fix,
    )


def cost_of(collective: Collective) -> str | None:
    """`822 MB sent per device, 8 times per step (6.58 GB), 9.1 ms each`; None when the bytes are not known."""
    if collective.wire_bytes is None:
        return None
    words = f"{format_bytes(collective.wire_bytes)} sent per device"
    if collective.executions != 1:
        total = format_bytes(collective.wire_bytes_per_step)
        words += f", {format_count(collective.executions)} times per step ({total})"
    return words if collective.time_us is None else f"{words}, {format_time(collective.time_us)} each"


def moves_at_least(collective: Collective, payload_bytes: int) -> bool:
    """Whether a collective moves so much; what is not known may be as much as that."""
    return collective.payload_bytes is None or collective.payload_bytes >= payload_bytes


def over_axes(collective: Collective) -> str:
    """`all-gather over X,Y`, or `over X,Y (guessed)`; the kind alone where the axes are not known."""
    guessed = " (guessed)" if collective.axes_guessed else ""
    return f"{collective.kind} over {','.join(collective.axes)}{guessed}" if collective.axes else str(collective.kind)


def place_of(collective: Collective) -> str:
    """`moe.py:26 in expert_forward`, else `%all-gather.3`."""
    return short_source(collective.source) or f"%{collective.name}"


def doc_of(rule: Rule) -> RuleDoc:
    """The page of a rule, from its module's docstring, with its options from its own.

    Raises:
        ValueError: A section is missing.
    """
    page = inspect.cleandoc(sys.modules[type(rule).__module__].__doc__ or "")
    titles = "|".join(SECTIONS)
    summary, *parts = re.split(rf"(?m)^({titles}): ?", page)
    if tuple(parts[::2]) != SECTIONS:
        raise ValueError(f"the page of {rule.name} needs the sections {', '.join(SECTIONS)}")
    sections = tuple((title, dedent(text).strip()) for title, text in zip(parts[::2], parts[1::2], strict=True))
    options = tuple(_option(rule, field) for field in fields(rule))  # type: ignore[arg-type]
    return RuleDoc(
        name=rule.name, severity=rule.severity, summary=" ".join(summary.split()), sections=sections, options=options
    )


def _option(rule: Rule, field: Any) -> tuple[str, str, str]:
    described = re.search(rf"(?m)^ +{field.name}: ((?:.+\n?)(?:^ {{12,}}.+\n?)*)", type(rule).__doc__ or "")
    if described is None:
        raise ValueError(f"the option {field.name} of {rule.name} is not described")
    return field.name, repr(field.default), " ".join(described[1].split())
