"""SARIF 2.1.0, which GitHub, GitLab and editors show next to the code.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from hloscope.base.canvas import Canvas
from hloscope.judge.checks import Checked
from hloscope.model.finding import Finding, RuleDoc, Severity
from hloscope.report.checks import CheckReport, FindingsRenderer, list_once, list_sentences, make_fingerprints
from hloscope.report.escaping import dump_json, escape_line
from hloscope.report.pages import list_pages
from hloscope.report.words import join_lines
from hloscope.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_ROOT = "%SRCROOT%"
_LINK = re.compile(r"\](?=\()")
"""The beginning of a link in a message."""


class Sarif(FindingsRenderer):
    """SARIF 2.1.0, which GitHub, GitLab and editors show next to the code."""

    ending = ".sarif"

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """The log, with one run, the pages of the rules that it names, and one result for each finding."""
        findings = list_once(found)
        names = tuple(dict.fromkeys(finding.rule for _, finding in findings))
        run = {
            "tool": {
                "driver": {
                    "name": "hloscope",
                    "version": __version__,
                    "semanticVersion": __version__,
                    "rules": [_make_rule(name, list_pages().get(name)) for name in names],
                }
            },
            "invocations": [{"executionSuccessful": not found.not_run}],
            "columnKind": "unicodeCodePoints",
            "results": [
                _make_result(found, checked, finding, names.index(finding.rule), fingerprint)
                for (checked, finding), fingerprint in zip(findings, make_fingerprints(found, findings), strict=True)
            ],
        }
        return dump_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _make_rule(name: str, page: RuleDoc | None) -> dict[str, Any]:
    if page is None:
        return {"id": name}
    sections = [f"**{title}:** {text}" for title, text in page.sections]
    starts = (text[:1].upper() + text[1:] for _, text in page.sections[:2])  # the text goes on from its title
    return {
        "id": name,
        "name": name.title().replace("-", ""),
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": " ".join((page.summary, *map(join_lines, starts)))},
        "help": {
            "text": "\n\n".join(f"{title}: {text}" for title, text in page.sections),
            "markdown": "\n\n".join(sections),
        },
        "defaultConfiguration": {"level": _LEVELS[page.severity]},
    }


def _make_result(
    report: CheckReport, checked: Checked, finding: Finding, index: int, fingerprint: str
) -> dict[str, Any]:
    message, *details = list_sentences(finding)
    text = _LINK.sub("] ", "\n".join(map(escape_line, [f"{checked.name}: {message}", *details])))
    place, line = report.in_repository(finding.source)
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "partialFingerprints": {"hloscope/v1": fingerprint},
    }
    if place is not None:
        result["locations"] = [_make_location(place, line, checked, finding)]
    return result


def _make_location(place: str, line: int | None, checked: Checked, finding: Finding) -> dict[str, Any]:
    inside = not place.startswith("/")
    artifact = {"uri": quote(place), "uriBaseId": _ROOT} if inside else {"uri": f"file://{quote(place)}"}
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if line:
        physical["region"] = {"startLine": line}
    name = escape_line(f"{checked.name}%{finding.instruction}" if finding.instruction else checked.name)
    return {"physicalLocation": physical, "logicalLocations": [{"fullyQualifiedName": name}]}
