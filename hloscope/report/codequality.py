"""GitLab's code quality report, which merge requests show next to the code.

Source: GitLab's documentation, "Code Quality report format".
"""

from __future__ import annotations

from hloscope.judge.checks import Checked
from hloscope.model.finding import Finding, Severity
from hloscope.report.checks import CheckReport, FindingsRenderer, fingerprints, once_each, said
from hloscope.report.escaping import dumped, plain_line
from hloscope.report.renderer import Canvas

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}


class CodeQuality(FindingsRenderer):
    """GitLab's code quality report, which merge requests show next to the code."""

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """The list, with one issue for each finding."""
        findings = once_each(found)
        issues = [
            _issue(found, checked, finding, fingerprint)
            for (checked, finding), fingerprint in zip(findings, fingerprints(found, findings), strict=True)
        ]
        return dumped(issues) + "\n"


def _issue(report: CheckReport, checked: Checked, finding: Finding, fingerprint: str) -> dict[str, object]:
    """One finding. GitLab requires a place: without one, it is the first line of the target's file."""
    place, line = report.in_repository(finding.source or checked.name.partition(":")[0])
    message, *details = said(finding)
    return {
        "description": "\n".join(map(plain_line, [f"{checked.name}: {message}", *details])),
        "check_name": finding.rule,
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[finding.severity],
        "location": {"path": plain_line(place or checked.name), "lines": {"begin": line or 1}},
    }
