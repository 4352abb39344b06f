"""Reports on checks: many targets in one report. A new format is one file and one line in `CHECK_FORMATS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.analysis.model import Analysis
from hloscope.contracts.checked import COULD_NOT_RUN, Checked
from hloscope.findings import Finding, Severity
from hloscope.report import Canvas

_PLACE = re.compile(r"^  --> (?P<file>.+?)(?P<line>:\d+)(?=[:, ]|$)", re.MULTILINE)
"""Where an error message says that something is wrong: `  --> model.py:12 in step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check of several targets found.

    Attributes:
        checks: One for each target and slice.
        root: The project's folder.
        unused_baselines: Baseline files that belong to no target.
    """

    checks: tuple[Checked, ...]
    root: Path
    unused_baselines: tuple[Path, ...] = ()

    @property
    def failed(self) -> tuple[Checked, ...]:
        """The targets that were analysed and are not as expected."""
        return tuple(one for one in self.checks if not one.passed and one.error is None)

    @property
    def not_run(self) -> tuple[Checked, ...]:
        """The targets that could not be analysed."""
        return tuple(one for one in self.checks if one.error is not None)

    @property
    def headline(self) -> str:
        """`2 passed, 1 failed, 1 could not run`."""
        passed = len(self.checks) - len(self.failed) - len(self.not_run)
        parts = [f"{passed} passed"]
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{len(self.not_run)} could not run"] if self.not_run else []
        return ", ".join(parts)

    def findings(self) -> Iterator[tuple[Checked, Finding]]:
        """Everything to be told, with the target it is about; each finding with a place, if only the targets file."""
        for one in self.checks:
            if one.error is not None:
                yield one, replace(error_finding(one.error), source=self._place_of(one.error) or one.place)
            for finding in one.findings:
                yield one, finding if finding.source is not None else replace(finding, source=one.place)

    def _place_of(self, error: str) -> str | None:
        """The line of a file that an error message points at; None where it points at none."""
        found = _PLACE.search(error)
        return found["file"] + found["line"] if found and (self.root / found["file"]).is_file() else None

    def shown(self, finding: Finding) -> Finding:
        """A finding with its place below the project's folder."""
        return finding if finding.source is None else replace(finding, source=self.relative(finding.source))

    def relative(self, path: str) -> str:
        """A path below the project's folder, from there; another one as it is."""
        whole = Path(path)
        return whole.relative_to(self.root).as_posix() if whole.is_relative_to(self.root) else path

    def in_repository(self, path: str) -> str:
        """A path below the repository that the project is in, from there, as code hosts count; another one as it is."""
        whole, top = self.root / path, _repository(self.root)
        return whole.relative_to(top).as_posix() if whole.is_relative_to(top) else path


def _repository(folder: Path) -> Path:
    """The root of the checkout that a folder is in; the folder itself where it is in none."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def report_of(analysis: Analysis, root: Path) -> CheckReport:
    """What rules found in one program as a report, without what the user accepts."""
    findings = tuple(finding for finding in analysis.findings if finding.allowed is None)
    return CheckReport(checks=(Checked(name=analysis.target, analysis=analysis, findings=findings),), root=root)


def error_finding(error: str) -> Finding:
    """An error message as a finding."""
    first, *rest = error.removeprefix("error: ").splitlines()
    return Finding(rule=COULD_NOT_RUN, severity=Severity.ERROR, message=" ".join((first, *map(str.strip, rest))))


def split_source(source: str | None) -> tuple[str | None, int | None]:
    """`moe.py:31` as a file and a line."""
    if source is None:
        return None, None
    file, colon, line = source.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (source, None)


def once_each(report: CheckReport) -> Sequence[tuple[Checked, Finding]]:
    """The findings without those that say the same of the same line."""
    seen: dict[object, tuple[Checked, Finding]] = {}
    for one, finding in report.findings():
        seen.setdefault((one.name, finding.rule, finding.message, finding.source), (one, finding))
    return tuple(seen.values())


def _text(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import check_text

    return check_text.render(report, canvas.width, canvas.colour)


def _json(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import check_json

    return check_json.render(report)


def _github(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import github

    return github.render(report)


def _sarif(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import sarif

    return sarif.render(report)


def _markdown(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import markdown

    return markdown.render(report)


def _junit(report: CheckReport, canvas: Canvas) -> str:
    from hloscope.report import junit

    return junit.render(report)


CHECK_FORMATS: dict[str, Callable[[CheckReport, Canvas], str]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
    "markdown": _markdown,
    "junit": _junit,
}
