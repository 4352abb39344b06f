"""The report of a check for a terminal: one line for each target, and under it what is not as expected."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.contracts.checked import NO_BASELINE, NOTHING_EXPECTED, Checked
from hloscope.report.checks import CheckReport
from hloscope.report.drawing import drawn
from hloscope.report.finding_lines import finding_lines
from hloscope.report.folding import hanging, message_line
from hloscope.report.words import marked
from hloscope.units import format_bytes, format_time

_INDENT = 4
_MARKS = {"ok": "green", "FAILED": "bold red", "ERROR": "bold red"}


def render(report: CheckReport, width: int, colour: bool) -> str:
    """Lays the report out for `width` columns, with ANSI colours when asked for."""
    return drawn(_lines(report, width), width, colour)


def _lines(report: CheckReport, width: int) -> Iterator[Text]:
    names = max((len(one.name) for one in report.checks), default=0)
    for one in report.checks:
        yield from _target(one, report, names, width)
    for path in report.unused_baselines:
        told = Text(f"note: {report.relative(str(path))} is the baseline of no target: remove it", style="dim")
        yield from hanging(told, width)
    yield Text()
    yield Text(report.headline, style="bold")


def _target(one: Checked, report: CheckReport, names: int, width: int) -> Iterator[Text]:
    mark = "ERROR" if one.error is not None else "ok" if one.passed else "FAILED"
    head = Text.assemble((f"{mark:<6}", _MARKS[mark]), "  ", (f"{one.name:<{names}}", "bold"), "  ", _facts(one))
    yield from hanging(head, width, indent=2 * _INDENT)
    indent, inside = Text(" " * _INDENT), width - _INDENT
    for message in (one.error or "", *map(str, one.breaches)):
        yield from (indent + part for line in message.splitlines() for part in message_line(line, inside))
    others = map(report.shown, one.beside_the_contract)
    yield from (indent + line for line in finding_lines(others, inside))
    for remark in one.verdict.remarks if one.verdict is not None else ():
        yield from (indent + line for line in hanging(Text(f"note: {remark}", style="dim"), inside))


def _facts(one: Checked) -> str:
    """`v5e:2x4  32.8 kB sent per step  72 us  against its contract and baseline`."""
    if one.analysis is None:
        return ""
    total = one.analysis.totals
    parts = [one.analysis.slice.name] if one.analysis.slice is not None else []
    parts.append(f"{marked(format_bytes(total.wire_bytes), total.bound)} sent per step")
    parts += [format_time(one.analysis.time.step_us)] if one.analysis.time is not None else []
    against = ["contract"] if one.verdict is not None else []
    missing = any(finding.rule in (NO_BASELINE, NOTHING_EXPECTED) for finding in one.findings)
    against += ["baseline"] if one.baseline is not None and not missing else []
    parts += [f"against its {' and '.join(against)}"] if against else []
    return "  ".join(parts)
