"""A check as one JSON document, which `check_schema.json` describes: each target with its findings and its analysis."""

from __future__ import annotations

from dataclasses import asdict

from hloscope.contracts.checked import Checked
from hloscope.report.checks import CheckReport
from hloscope.report.escaping import dumped

SCHEMA_VERSION = 1
"""Changes when a field is renamed, removed or given another meaning; not when one is added."""


def render(report: CheckReport) -> str:
    """The document, indented."""
    document = {
        "schema": SCHEMA_VERSION,
        "passed": not report.failed and not report.not_run,
        "checks": [_check(one, report) for one in report.checks],
        "unused_baselines": [report.relative(str(path)) for path in report.unused_baselines],
    }
    return dumped(document)


def _check(one: Checked, report: CheckReport) -> dict[str, object]:
    return {
        "name": one.name,
        "passed": one.passed,
        "error": one.error,
        "seconds": one.seconds,
        "contract": None if one.verdict is None else str(one.verdict.contract),
        "remarks": [] if one.verdict is None else list(one.verdict.remarks),
        "baseline": None if one.baseline is None else report.relative(str(one.baseline)),
        "findings": [asdict(finding) for finding in one.findings],
        "analysis": None if one.analysis is None else one.analysis.to_dict(),
    }
