"""Findings on a page: those of one cause together, each with why, cost and fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloscope.findings import Finding, Severity, by_cause
from hloscope.report.html.island import rules_of
from hloscope.report.html.pieces import Element, Page, add, badge, labelled, made, unfolding
from hloscope.units import plural

_KINDS = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.NOTE: "info"}
_MOST_PLACES = 20


def cards(page: Page, parent: Element, findings: Sequence[Finding]) -> None:
    """A card for each cause, in their order; its rule leads to the rule's page in the section of `rules`."""
    known = rules_of(findings)
    around = add(parent, "div", class_="findings")
    for places in by_cause(findings):
        finding = places[0]
        kind = _KINDS[finding.severity]
        card = add(around, "article", class_=f"finding {kind}")
        allowed = badge("allowed", "good") if finding.allowed is not None else None
        name = page.name(finding.rule, tag="code")
        rule = made("a", name, href=f"#rule-{finding.rule}") if finding.rule in known else name
        add(card, "p", badge(str(finding.severity), kind), " ", rule, allowed)
        add(card, "p", page.prose(finding.message))
        told = [("allowed", finding.allowed or ""), *finding.details]
        labelled(card, [(label, page.prose(words)) for label, words in told])
        _places(page, card, places)


def rules(page: Page, findings: Iterable[Finding]) -> None:
    """A section with the pages of the rules that have found something; none where nothing was found."""
    known = rules_of(findings)
    if not known:
        return
    section = page.section("rules", "Rules", "What the rules say")
    for name, about in known.items():
        of = unfolding(section, made("code", name), " ", made("span", page.prose(str(about["summary"])), class_="of"))
        of.set("id", f"rule-{name}")
        of.set("class", "target-card")
        for title, text in about["sections"]:
            add(of, "h3", title, class_="sub")
            for part in text.split("\n\n"):
                add(of, "p", page.prose(part), class_="page")


def _places(page: Page, card: Element, places: Sequence[Finding]) -> None:
    said = dict.fromkeys(_place(place) for place in places)
    said.pop("", None)
    if said:
        of = add(card, "ul", class_="places")
        for words in list(said)[:_MOST_PLACES]:
            add(of, "li", page.name(words, 160, class_="name mono"))
        if len(said) > _MOST_PLACES:
            add(of, "li", f"and {plural(len(said) - _MOST_PLACES, 'more place')}")


def _place(finding: Finding) -> str:
    """`moe.py:31 · %all-gather.8 · HLO line 97`."""
    instruction = None if finding.instruction is None else f"%{finding.instruction}"
    line = None if finding.line is None else f"HLO line {finding.line:,}"
    return " · ".join(filter(None, (finding.source, instruction, line)))
