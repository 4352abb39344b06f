"""The report of a check of several targets, as data, for a terminal and as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from rich.text import Text

from hloscope.analysis.provenance import split_place
from hloscope.base.canvas import Canvas
from hloscope.base.documents import SCHEMA, Schema, make_document, to_plain
from hloscope.base.environment import format_place
from hloscope.base.results import Shown, group_by
from hloscope.base.units import format_bytes, format_flops, format_time, format_time_range, pluralize
from hloscope.judge.changes import Figure, Judged, Judgement
from hloscope.judge.checks import COULD_NOT_RUN, Checked
from hloscope.model import Analysis
from hloscope.model.finding import Finding, Severity, cause_of, with_others
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.report.finding_lines import render_findings
from hloscope.report.layout import column, fold_message, hang, render_table
from hloscope.report.renderer import Renderer

if TYPE_CHECKING:
    from hloscope.plain_types import CheckDict

_PLACE = re.compile(r"^  --> (?P<file>.+?)(?P<line>:\d+)(?=[:, ]|$)", re.MULTILINE)
"""The place in an error message: `  --> model.py:12 in step`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport(Shown):
    """The report of a check of one or more targets.

    Attributes:
        checks: One check for each target and slice.
        root: The project's folder.
        unused_baselines: Baseline files that belong to no target.
        command: The command that made the report: `check`, or `analyze` for the findings of rules in one program.
        interrupted: Whether the check was interrupted before all targets were checked.
        shard: The part of the targets that was checked, such as `1/4`; None for all requested ones.
        commit: Commit of the checkout; None if it is not a git checkout or unknown.
    """

    _subject = "check"

    checks: tuple[Checked, ...]
    root: Path
    unused_baselines: tuple[Path, ...] = ()
    command: str = "check"
    interrupted: bool = False
    shard: str | None = None
    commit: str | None = None

    def __repr__(self) -> str:
        return f"<Check: {self.headline}>"

    if TYPE_CHECKING:

        def to_dict(self) -> CheckDict:
            """The result as plain data."""

    @property
    def passed(self) -> bool:
        """Whether every target was analyzed and is as expected."""
        return all(checked.passed for checked in self.checks)

    @property
    def failed(self) -> tuple[Checked, ...]:
        """Targets that were analyzed and are not as expected."""
        return tuple(checked for checked in self.checks if not checked.passed and checked.error is None)

    @property
    def not_run(self) -> tuple[Checked, ...]:
        """Targets that could not be analyzed."""
        return tuple(checked for checked in self.checks if checked.error is not None)

    @property
    def headline(self) -> str:
        """The summary line: `2 passed, 1 failed, 1 could not run`; for one program `3 findings`."""
        if self.command == "analyze":
            return pluralize(len(list_once(self)), "finding")
        passed = len(self.checks) - len(self.failed) - len(self.not_run)
        parts = [f"{passed} passed"]
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{len(self.not_run)} could not run"] if self.not_run else []
        return ", ".join(parts)

    def findings(self) -> Iterator[tuple[Checked, Finding]]:
        """All findings, each with its target and a place; without a better place, that is the targets file."""
        for checked in self.checks:
            if checked.error is not None:
                yield checked, self._error_finding(checked, checked.error)
            for finding in checked.findings:
                yield checked, finding if finding.source is not None else replace(finding, source=checked.place)

    def _error_finding(self, checked: Checked, error: str) -> Finding:
        """An error message as a finding at the line that the message points at, if its file exists."""
        first, *rest = error.removeprefix("error: ").splitlines()
        message = " ".join((first, *map(str.strip, rest)))
        found = _PLACE.search(error)
        known = found is not None and os.path.isfile(self.root / found["file"])
        source = found["file"] + found["line"] if found and known else checked.place
        return Finding(rule=COULD_NOT_RUN, severity=Severity.ERROR, message=message, source=source)

    def shown(self, finding: Finding) -> Finding:
        """Returns a finding with its place relative to the project's folder."""
        return finding if finding.source is None else replace(finding, source=self.relative(finding.source))

    def relative(self, path: str) -> str:
        """Returns a path relative to the project's folder if it is in it, otherwise unchanged."""
        whole = Path(path)
        return whole.relative_to(self.root).as_posix() if whole.is_relative_to(self.root) else format_place(path)

    def in_repository(self, source: str | None) -> tuple[str | None, int | None]:
        """Returns the file and the line of a place such as `moe.py:31`, as far as known, relative to the repository.

        A file in the checkout that contains the project is named relative to its root, any other file as it is. Without
        a checkout, the project's folder is the root.
        """
        if source is None:
            return None, None
        file, line = split_place(source)
        top = next((place for place in (self.root, *self.root.parents) if (place / ".git").exists()), self.root)
        whole = self.root / file
        return whole.relative_to(top).as_posix() if whole.is_relative_to(top) else file, line


def make_report(analysis: Analysis) -> CheckReport:
    """The findings of rules in one program as a report, without those that the user accepts."""
    findings = tuple(finding for finding in analysis.findings if finding.allowed is None)
    checked = Checked(name=analysis.target, analysis=analysis, findings=findings)
    return CheckReport(checks=(checked,), root=Path.cwd(), command="analyze")


def list_once(report: CheckReport) -> Sequence[tuple[Checked, Finding]]:
    """The findings; those with the same cause and line are one finding, which counts the others."""
    seen = group_by(report.findings(), lambda found: (found[0].name, cause_of(found[1]), found[1].source))
    return tuple((alike[0][0], with_others(alike[0][1], len(alike) - 1)) for alike in seen.values())


def make_fingerprints(report: CheckReport, findings: Sequence[tuple[Checked, Finding]]) -> Iterator[str]:
    """An identity for each finding that lasts from run to run: never a line, since lines move.

    Findings of one rule in one file differ by their number.
    """
    seen: Counter[object] = Counter()
    for checked, finding in findings:
        parts = (checked.name, finding.rule, report.in_repository(finding.source)[0] or "")
        seen[parts] += 1
        number = [str(seen[parts])] if seen[parts] > 1 else []
        yield hashlib.sha256("\0".join([*parts, *number]).encode()).hexdigest()


class FindingsRenderer(Renderer):
    """The base class of formats of findings, which render those of one program as they do those of a check.

    `list_once` lists findings with their targets, and `CheckReport.in_repository` names their places.
    """

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        """Renders the findings of a check."""
        raise NotImplementedError

    def render_analysis(self, found: Analysis, canvas: Canvas) -> str:
        """Renders the findings of one program, without those that the user accepts."""
        return self.render_check(make_report(found), canvas)


_INDENT = 4
UNBROKEN = 10_000
"""Columns of output outside terminals, so that commands stay on one line."""
_MARKS = {"ok": "green", "FAILED": "bold red", "ERROR": "bold red"}


def render_check(report: CheckReport, width: int) -> Iterator[Text]:
    """One line for each target, and the unexpected facts below it."""
    names = max((len(checked.name) for checked in report.checks), default=0)
    for checked in report.checks:
        yield from _render_target(checked, report, names, width)
    yield Text()
    yield Text(report.headline, style="bold")


def _render_target(checked: Checked, report: CheckReport, names: int, width: int) -> Iterator[Text]:
    mark = "ERROR" if checked.error is not None else "ok" if checked.passed else "FAILED"
    name = f"{checked.name:<{names}}"
    head = Text.assemble((f"{mark:<6}", _MARKS[mark]), "  ", (name, "bold"), "  ", _format_facts(checked))
    yield from hang(head, width, indent=2 * _INDENT)
    indent = Text(" " * _INDENT)
    yield from (indent + line for line in render_details(checked, report, width - _INDENT))


def render_details(checked: Checked, report: CheckReport, width: int = UNBROKEN) -> Iterator[Text]:
    """The unexpected facts of a target, as every format for people shows them: each cause with its details."""
    for message in (checked.error or "", *map(str, checked.breaches)):
        yield from (part for line in message.splitlines() for part in fold_message(line, width))
    others = map(report.shown, checked.beside_the_contract)
    collectives = () if checked.analysis is None else checked.analysis.collectives
    yield from render_findings(others, width, collectives)
    if is_other(checked.judged):
        yield from _render_before_and_after(checked.judged, width)
    for remark in checked.verdict.remarks if checked.verdict is not None else ():
        yield from hang(Text(f"note: {remark}", style="dim"), width)


def list_sentences(finding: Finding) -> list[str]:
    """A finding's message, reason, cost and fix, for formats that tools read."""
    return [finding.message, *map(": ".join, finding.details)]


def _render_before_and_after(judged: Judged, width: int) -> Iterator[Text]:
    rows = list(list_changed_figures(judged))
    if rows:
        yield Text()
        headers = ("per device", "baseline", "now")
        columns = [column(rows, name, itemgetter(n), right=n > 0) for n, name in enumerate(headers)]
        yield from render_table(columns, width)


def _format_facts(checked: Checked) -> str:
    """`v5e:2x4  32.8 kB sent per step  72 us  against its contract and baseline`."""
    if checked.analysis is None:
        return ""
    total = checked.analysis.totals
    parts = [checked.analysis.slice.name] if checked.analysis.slice is not None else []
    parts.append(f"{total.bound.marked(format_bytes(total.wire_bytes))} sent per step")
    time, stage = checked.analysis.time, checked.analysis.stage
    if stage is CompileStage.SCHEDULED:
        parts.append(stage)
    elif time is not None:
        parts.append(time.bound.marked(format_time(time.step_us)))
    against = ["contract"] if checked.verdict is not None else []
    against += ["baseline"] if checked.judged is not None and not is_other(checked.judged) else []
    alone = " alone" if checked.judged is None else ""
    parts += [f"against its {' and '.join(against)}{alone}"] if against else []
    parts += ["against rules alone"] if checked.verdict is None and alone and checked.passed else []
    parts += [f"{format_judgement(checked.judged)} its baseline"] if is_other(checked.judged) else []
    return "  ".join((*parts, *list_asides(checked)))


def is_other(judged: Judged | None) -> TypeGuard[Judged]:
    """True if a program differs from its baseline in the figures that the baseline has."""
    return judged is not None and judged.judgement is not Judgement.SAME and not judged.is_only_left_open


def format_judgement(judged: Judged) -> str:
    """`worse than`, `different from`."""
    return f"{judged.judgement} {'from' if judged.judgement is Judgement.DIFFERENT else 'than'}"


def list_changed_figures(judged: Judged) -> Iterator[tuple[str, str, str]]:
    """The figures that differ when printed: name, before and after."""
    for figure in judged.figures:
        name, was, now = format_figure(figure)
        if was != now:
            yield name, was, now


AMOUNT_WORDS: dict[str, Callable[[float], str]] = {"us": format_time, "bytes": format_bytes, "flops": format_flops}
"""The formatter of each unit."""


def format_figure(figure: Figure) -> tuple[str, str, str]:
    """`predicted step`, `72 us (61 us to 83 us)`, `75 us (64 us to 86 us)`: a figure's name, before and after."""
    then = "" if figure.comparable else " (from another version of hloscope)"
    before = _format_amount(figure, figure.before, figure.before_bound, figure.before_range)
    return figure.name, f"{before}{then}", _format_amount(figure, figure.after, figure.after_bound, figure.after_range)


def _format_amount(figure: Figure, value: float | None, bound: Bound, span: tuple[float, float] | None) -> str:
    """An amount with its bound; a bound has no range."""
    words = AMOUNT_WORDS[figure.unit]
    if value is None:
        return "unknown"
    if span is None or bound is not Bound.EXACT:
        return bound.marked(words(value))
    return f"{words(value)} ({format_time_range(*span)})"


def list_asides(checked: Checked) -> list[str]:
    """Reservations about a passing target: `1 thing unknown: the Pallas kernel %ring …`, `the step may grow by 90%`."""
    if not checked.passed:
        return []
    first = f": {checked.unknown[0]}{', …' * (len(checked.unknown) > 1)}" if checked.unknown else ""
    unknown = [f"{pluralize(len(checked.unknown), 'thing')} unknown{first}"] if checked.unknown else []
    return [*unknown, *(() if checked.judged is None else checked.judged.caveats)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTarget:
    """The check of one target for one slice, as a document.

    Attributes:
        name: Name of the target, with its slice if it has several.
        passed: Whether the target is as expected.
        error: Why it could not be analyzed; None if it was.
        seconds: Duration of the check.
        compile_from: Source of the compiled program: `cache`, `shared cache` or `compiler`; None if nothing was
            compiled.
        contract: Its contract on one line; None if it has none.
        remarks: Assumptions of the verdict, such as trip counts given by the user.
        baseline: Its baseline file, relative to the project's folder; None if it has none.
        judged: Comparison with its baseline, with the figures of both; None without a baseline.
        findings: Findings where the target is not as expected.
        analysis: Its analysis; None if it could not be analyzed.
    """

    name: str
    passed: bool
    error: str | None
    seconds: float | None
    compile_from: str | None = None
    contract: str | None
    remarks: tuple[str, ...]
    baseline: str | None
    judged: Judged | None
    findings: tuple[Finding, ...]
    analysis: Analysis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDocument:
    """The check of targets against their contracts and baselines.

    Attributes:
        schema: Schema version of the document.
        passed: Whether every target is as expected.
        checks: One check for each target and slice.
        unused_baselines: Baseline files that belong to no target, relative to the project's folder.
        shard: The part of the targets that was checked, such as `1/4`; None for all requested ones.
        commit: Commit of the checkout; None if it is not a git checkout or unknown.
        seal: Checksum of all other fields, with which `hloscope merge-reports` detects edits.
    """

    schema: Schema = SCHEMA
    passed: bool
    checks: tuple[CheckedTarget, ...]
    unused_baselines: tuple[str, ...]
    shard: str | None = None
    commit: str | None = None
    seal: str | None = None


def compute_seal(data: Mapping[str, object]) -> str:
    """The seal of a document as plain data, whether it has one or not."""
    others = {key: value for key, value in data.items() if key != "seal"}
    return f"sha256:{hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()}"


def make_check_document(report: CheckReport) -> CheckDocument:
    """One document: each target with its findings and its analysis."""
    unsealed = CheckDocument(
        passed=not report.failed and not report.not_run,
        checks=tuple(_make_checked_target(checked, report) for checked in report.checks),
        unused_baselines=tuple(report.relative(str(path)) for path in report.unused_baselines),
        shard=report.shard,
        commit=report.commit,
    )
    return replace(unsealed, seal=compute_seal(to_plain(unsealed)))


def _make_checked_target(checked: Checked, report: CheckReport) -> CheckedTarget:
    verdict, baseline = checked.verdict, checked.baseline
    return make_document(
        CheckedTarget,
        checked,
        contract=None if verdict is None else str(verdict.contract),
        remarks=() if verdict is None else verdict.remarks,
        baseline=None if baseline is None else report.relative(str(baseline)),
    )
