"""JUnit's XML, which most CI systems show as a list of tests.

Source: the schema that Jenkins and GitLab read: `testsuites` of `testsuite`s of `testcase`s with `failure` or `error`.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hloscope.contracts.checked import Checked
from hloscope.report.checks import CheckReport, split_source
from hloscope.report.escaping import for_terminal
from hloscope.report.formats import Canvas

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: CheckReport, _: Canvas) -> str:
    """The document, one test case for each target."""
    seconds = sum(one.seconds or 0 for one in report.checks)
    counts = {
        "tests": str(len(report.checks)),
        "failures": str(len(report.failed)),
        "errors": str(len(report.not_run)),
        "time": f"{seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "hloscope", **counts})
    for one in report.checks:
        _case(suite, one, report)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, one: Checked, report: CheckReport) -> None:
    file, line = split_source(one.place)
    where = {"file": None if file is None else report.in_repository(file), "line": None if line is None else str(line)}
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": "hloscope.check",
            "name": _clean(one.name),
            "time": f"{one.seconds or 0:.3f}",
            **{key: value for key, value in where.items() if value is not None},
        },
    )
    if one.error is not None:
        found = ElementTree.SubElement(case, "error", {"message": _clean(one.error.splitlines()[0])})
        found.text = _clean(one.error)
    elif not one.passed:
        first = next(finding for finding in one.findings if finding.severity == "error")
        found = ElementTree.SubElement(case, "failure", {"type": first.rule, "message": _clean(first.message)})
        found.text = _clean(_body(one))


def _body(one: Checked) -> str:
    verdict = "" if one.verdict is None or one.verdict.holds else f"{one.verdict}\n\n"
    others = (f"{finding.severity}[{finding.rule}]: {finding.message}" for finding in one.beside_the_contract)
    return verdict + "\n".join(others)


def _clean(text: str) -> str:
    """The text without what XML cannot hold, and what a terminal or a runner that prints it would obey."""
    return _NOT_XML.sub("\ufffd", for_terminal(text))
