"""The report of a check for a terminal: one line for each target, and under it what is not as expected."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from hloscope.contracts.checked import Checked
from hloscope.findings import Severity
from hloscope.report.checks import CheckReport
from hloscope.report.finding_lines import finding_lines
from hloscope.report.words import marked
from hloscope.units import format_bytes, format_time

_INDENT = 4
_MARKS = {"ok": "green", "FAILED": "bold red", "ERROR": "bold red"}


def render(report: CheckReport, width: int, colour: bool) -> str:
    """Lays the report out for `width` columns, with ANSI colours when asked for."""
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for line in _lines(report, width):
        line.rstrip()
        console.print(line, soft_wrap=True)
    return sink.getvalue()


def _lines(report: CheckReport, width: int) -> Iterator[Text]:
    names = max((len(one.name) for one in report.checks), default=0)
    for one in report.checks:
        yield from _target(one, report, names, width)
    for path in report.unused_baselines:
        yield Text(f"note: {report.relative(str(path))} is the baseline of no target: remove it", style="dim")
    yield Text()
    yield Text(report.headline, style="bold")


def _target(one: Checked, report: CheckReport, names: int, width: int) -> Iterator[Text]:
    mark = "ERROR" if one.error is not None else "ok" if one.passed else "FAILED"
    yield Text.assemble((f"{mark:<6}", _MARKS[mark]), "  ", (f"{one.name:<{names}}", "bold"), "  ", _facts(one))
    indent = Text(" " * _INDENT)
    if one.error is not None:
        yield from (indent + Text(line) for line in one.error.splitlines())
    breaches = one.verdict.breaches if one.verdict is not None else ()
    for breach in breaches:
        yield from (indent + Text(line) for line in str(breach).splitlines())
    of_contract = set(one.verdict.findings) if one.verdict is not None else set()
    others = [report.shown(finding) for finding in one.findings if finding not in of_contract]
    yield from (indent + line for line in finding_lines(others, width - _INDENT))
    remarks = one.verdict.remarks if one.verdict is not None else ()
    yield from (indent + Text(f"note: {remark}", style="dim") for remark in remarks)


def _facts(one: Checked) -> str:
    """`v5e:2x4  32.8 kB sent per step  72 us  against its contract and baseline`."""
    if one.analysis is None:
        return ""
    total = one.analysis.totals
    parts = [one.analysis.slice.name] if one.analysis.slice is not None else []
    parts.append(f"{marked(format_bytes(total.wire_bytes), total.bound)} sent per step")
    parts += [format_time(one.analysis.time.step_us)] if one.analysis.time is not None else []
    against = ["contract"] if one.verdict is not None else []
    missing = any(finding.severity is Severity.NOTE or finding.rule == "nothing-expected" for finding in one.findings)
    against += ["baseline"] if one.baseline is not None and not missing else []
    parts += [f"against its {' and '.join(against)}"] if against else []
    return "  ".join(parts)
