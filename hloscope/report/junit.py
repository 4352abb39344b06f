"""JUnit's XML, which most CI systems show as a list of tests.

Source: the schema that Jenkins and GitLab read: `testsuites` of `testsuite`s of `testcase`s with `failure` or `error`.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hloscope.base.canvas import Canvas
from hloscope.judge.checks import Checked
from hloscope.model.finding import Severity
from hloscope.report.checks import CheckReport, render_details
from hloscope.report.escaping import escape_for_terminal
from hloscope.report.renderer import Renderer

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnit(Renderer):
    """JUnit's XML, which most CI systems show as a list of tests."""

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """The document, one test case for each target."""
        seconds = sum(checked.seconds or 0 for checked in found.checks)
        counts = {
            "tests": str(len(found.checks)),
            "failures": str(len(found.failed)),
            "errors": str(len(found.not_run)),
            "time": f"{seconds:.3f}",
        }
        root = ElementTree.Element("testsuites", counts)
        suite = ElementTree.SubElement(root, "testsuite", {"name": "hloscope", **counts})
        for checked in found.checks:
            _add_case(suite, checked, found)
        ElementTree.indent(root)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ElementTree.Element, checked: Checked, report: CheckReport) -> None:
    where = zip(("file", "line"), report.in_repository(checked.place), strict=True)
    about = {
        "classname": "hloscope.check",
        "name": _clean(checked.name),
        "time": f"{checked.seconds or 0:.3f}",
        **{key: str(value) for key, value in where if value is not None},
    }
    case = ElementTree.SubElement(suite, "testcase", about)
    body = "\n".join(line.plain for line in render_details(checked, report))
    if checked.error is not None:
        found = ElementTree.SubElement(case, "error", {"message": _clean(checked.error.splitlines()[0])})
        found.text = _clean(body)
    elif not checked.passed:
        first = next(report.shown(finding) for finding in checked.findings if finding.severity is Severity.ERROR)
        place = "" if first.source is None else f" ({first.source})"
        about = {"type": first.rule, "message": _clean(f"{first.message}{place}")}
        found = ElementTree.SubElement(case, "failure", about)
        found.text = _clean(body)
    elif body:
        ElementTree.SubElement(case, "system-out").text = _clean(body)


def _clean(text: str) -> str:
    """The text without characters that XML forbids, and without commands for terminals and CI runners."""
    return _NOT_XML.sub("\ufffd", escape_for_terminal(text))
