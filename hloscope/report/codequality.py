"""GitLab's code quality report, which merge requests show next to the code.

Source: GitLab's documentation, "Code Quality report format".
"""

from __future__ import annotations

from hloscope.base.canvas import Canvas
from hloscope.judge.checks import Checked
from hloscope.model.finding import Finding, Severity
from hloscope.report.checks import CheckReport, FindingsRenderer, list_once, list_sentences, make_fingerprints
from hloscope.report.escaping import dump_json, escape_line

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}


class CodeQuality(FindingsRenderer):
    """GitLab's code quality report, which merge requests show next to the code."""

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """The list, with one issue for each finding."""
        findings = list_once(found)
        issues = [
            _make_issue(found, checked, finding, fingerprint)
            for (checked, finding), fingerprint in zip(findings, make_fingerprints(found, findings), strict=True)
        ]
        return dump_json(issues) + "\n"


def _make_issue(report: CheckReport, checked: Checked, finding: Finding, fingerprint: str) -> dict[str, object]:
    """One finding. GitLab requires a place: without one, it is the first line of the target's file."""
    place, line = report.in_repository(finding.source or checked.name.partition(":")[0])
    message, *details = list_sentences(finding)
    return {
        "description": "\n".join(map(escape_line, [f"{checked.name}: {message}", *details])),
        "check_name": finding.rule,
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[finding.severity],
        "location": {"path": escape_line(place or checked.name), "lines": {"begin": line or 1}},
    }
