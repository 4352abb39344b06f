"""Workflow commands: annotations on the source lines of a pull request.

Source: GitHub's documentation of workflow commands, "Setting an error message"; the toolkit's escaping of data and
properties.
"""

from __future__ import annotations

from hloscope.contracts.checked import Checked
from hloscope.findings import Finding, Severity
from hloscope.report.checks import CheckReport, once_each
from hloscope.report.escaping import plain_line, without_commands

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(report: CheckReport) -> str:
    """One command for each finding, then the headline, which is printed as it is."""
    commands = [_command(report, checked, finding) for checked, finding in once_each(report)]
    return "\n".join([*commands, f"hloscope {report.command}: {report.headline}"]) + "\n"


def _command(report: CheckReport, checked: Checked, finding: Finding) -> str:
    file, line = report.in_repository(finding.source)
    properties = {"file": file, "line": line, "title": f"{finding.rule} ({checked.name})"}
    shown = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value is not None)
    said = [finding.message, *map(": ".join, finding.details)]
    message = "\n".join(map(plain_line, said))
    return "::" + without_commands(f"{_COMMANDS[finding.severity]} {shown}::{_data(message)}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(plain_line(text)).replace(":", "%3A").replace(",", "%2C")
