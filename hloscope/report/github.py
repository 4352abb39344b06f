"""Workflow commands: annotations on the source lines of a pull request.

Source: GitHub's documentation of workflow commands, "Setting an error message"; the toolkit's escaping of data and
properties.
"""

from __future__ import annotations

from hloscope.base.canvas import Canvas
from hloscope.judge.checks import Checked
from hloscope.model.finding import Finding, Severity
from hloscope.report.checks import CheckReport, FindingsRenderer, list_once, list_sentences
from hloscope.report.escaping import escape_commands, escape_line

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


_MOST = 10
"""Annotations of one step that GitHub shows of each severity. Source: its documentation of annotations, "Limits"."""


class GitHub(FindingsRenderer):
    """Workflow commands: annotations on the source lines of a pull request."""

    escapes_itself = True  # its commands are obeyed on purpose

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """A command for each finding, the worst first; a line for each that has no annotation left; the headline."""
        findings = sorted(list_once(found), key=lambda pair: -pair[1].severity.rank)
        lines = [_format_command(found, checked, finding) for checked, finding in findings[:_MOST]]
        lines += [_format_line(checked, finding) for checked, finding in findings[_MOST:]]
        return "\n".join([*lines, f"hloscope {found.command}: {found.headline}"]) + "\n"


def _format_line(checked: Checked, finding: Finding) -> str:
    """A finding for the log alone, once GitHub's annotations are used up."""
    place = "" if finding.source is None else f"{finding.source}: "
    return escape_commands(escape_line(f"{finding.severity}[{finding.rule}] {checked.name}: {place}{finding.message}"))


def _format_command(report: CheckReport, checked: Checked, finding: Finding) -> str:
    file, line = report.in_repository(finding.source)
    properties = {"file": file, "line": line, "title": f"{finding.rule} ({checked.name})"}
    known = {name: _escape_property(str(value)) for name, value in properties.items() if value is not None}
    shown = ",".join(map("=".join, known.items()))
    message = "\n".join(map(escape_line, list_sentences(finding)))
    return "::" + escape_commands(f"{_COMMANDS[finding.severity]} {shown}::{_escape_data(message)}")


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(escape_line(text)).replace(":", "%3A").replace(",", "%2C")
