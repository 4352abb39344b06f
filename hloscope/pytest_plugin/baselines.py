"""Baselines of tests: one file per test, next to the test file, written only with `--hloscope-update`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote

import pytest

from hloscope.judge.baseline_files import BaselineError, format_baselines, read_baselines, write_baselines
from hloscope.judge.baselines import Baseline, find_section, make_baseline
from hloscope.judge.changes import Judged
from hloscope.judge.checks import LOOSER, make_findings
from hloscope.judge.judging import judge, replace_section
from hloscope.model import Analysis
from hloscope.model.finding import Finding, Severity

FOLDER = "hloscope_baselines"
PROPERTY = "hloscope_baseline"
WRITTEN = "hloscope_baseline_written"
_UPDATE = "pytest --hloscope-update"
_LONGEST = 80
"""Characters of a name in a file's, which may hold two of them: file systems take 255 bytes."""


def check_against_baseline(
    node: pytest.Item, analysis: Analysis, name: str, used: set[Path], *, strict: bool = False
) -> str | None:
    """The failure of a program against its baseline of a test; None if it passes.

    With `--hloscope-update` the baseline is written instead.

    Args:
        node: The test.
        analysis: The program.
        name: Tells several baselines of one test apart.
        used: The files that the test has asked for already; this one joins them.
        strict: Whether a baseline fails that is looser than the program.

    Raises:
        HloscopeError: The file is damaged, or cannot be written.
    """
    root, path = node.config.rootpath, find_baseline_path(node.path, node.nodeid, name)
    shown = _shorten(path, node.config)
    if path in used:
        fix = 'distinguish them: baseline(…, name="forward")'
        return f"the baseline {shown} is used twice by one test\n   = fix: {fix}"
    used.add(path)
    node.user_properties.append((PROPERTY, str(path)))
    if node.config.getoption("--hloscope-update"):
        sections = _update_sections(path, analysis, root)
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != format_baselines(*sections):
            write_baselines(path, sections)
            node.user_properties.append((WRITTEN, str(path)))
        return None
    kept, update = read_baselines(path), f"{_UPDATE} {quote(node.nodeid)}"
    if not kept:
        return f"there is no baseline {shown}\n   = fix: {update} writes it; review it before you commit"
    judged = judge(find_section(kept, make_baseline(analysis)), analysis, root=root).judged
    findings = make_findings(judged)
    fails = any(each.severity is Severity.ERROR or (strict and each.rule == LOOSER) for each in findings)
    return _format_failure(analysis, shown, judged, findings, update) if fails else None


def _update_sections(path: Path, analysis: Analysis, root: Path) -> tuple[Baseline, ...]:
    """The sections of a baseline file with the program as it is."""
    try:
        kept = read_baselines(path)
    except BaselineError:
        kept = ()  # it is written anew
    if not kept:
        return (make_baseline(analysis, root=root),)
    return replace_section(kept, judge(find_section(kept, analysis), analysis, root=root).accept())


def _format_failure(analysis: Analysis, path: Path, judged: Judged, findings: Iterable[Finding], update: str) -> str:
    from hloscope.report.checks import list_changed_figures

    lines = [f"{analysis.target} has changed since its baseline {path} was accepted"]
    for finding in findings:
        lines.append(f"{finding.severity}[{finding.rule}]: {finding.message}")
        lines += [f"  --> {finding.source}"] if finding.source else []
        lines += [f"   = {label}: {words}" for label, words in finding.details if label != "fix"]
    lines += [f"   = {name}: {before} -> {now}" for name, before, now in list_changed_figures(judged)]
    return "\n".join([*lines, f"   = fix: to accept the change: {update}"])


def find_baseline_path(test_file: Path, nodeid: str, name: str = "") -> Path:
    """The file of a test's baseline, beside the test's: `hloscope_baselines/test_model/TestStep.test_loss-f32.txt`."""
    named = f".{_format_file_name(name, name)}" if name else ""
    return test_file.parent / FOLDER / test_file.stem / f"{name_test(nodeid)}{named}.txt"


def name_test(nodeid: str) -> str:
    """The name of a test as a file's."""
    inner = nodeid.partition("::")[2].replace("::", ".")
    return _format_file_name(inner, inner.replace("[", "-").removesuffix("]"))


def _format_file_name(text: str, readable: str) -> str:
    """The text as a file can be named; where letters had to go, with a few of a digest that tells it from others."""
    plain = re.sub(r"[^\w.-]+", "-", text).strip("-")
    if plain == readable and len(plain) <= _LONGEST:
        return plain
    return f"{plain[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def summary(
    reports: Sequence[pytest.TestReport], config: pytest.Config, tests: Iterable[str], *, strict: bool
) -> tuple[list[str], bool]:
    """The lines reported at the end, on baselines written and files that no test used; whether such files exist.

    A file is one of no test when its test passed without using it, and, where whole modules were collected, when it
    has none.

    Args:
        reports: Of the tests that ran.
        config: Of this run.
        tests: The node ids of all tests that were collected, chosen or not.
        strict: Whether the latter fail the session.
    """
    lines = [f"baseline written: {_shorten(path, config)}" for path in sorted(_find_properties(reports, WRITTEN))]
    in_ci = "" if strict else " (fails in CI)"
    unused = list(_find_unused(reports, None if _chose_by_name(config) else frozenset(tests), config))
    lines += [f"baseline that no test uses, remove it{in_ci}: {_shorten(path, config)}" for path in unused]
    return lines, bool(unused)


def _find_properties(reports: Iterable[pytest.TestReport], name: str) -> set[Path]:
    return {Path(str(value)) for report in reports for key, value in report.user_properties if key == name}


def _find_unused(
    reports: Sequence[pytest.TestReport], tests: Collection[str] | None, config: pytest.Config
) -> Iterator[Path]:
    """Files beside the modules that ran; without `tests` only those whose test passed and did not use them."""
    used = _find_properties(reports, PROPERTY)
    modules: dict[str, dict[str, bool]] = {}
    for report in reports:
        passed = modules.setdefault(report.nodeid.partition("::")[0], {})
        name = name_test(report.nodeid)
        passed[name] = passed.get(name, True) and report.passed
    for module, passed in modules.items():
        file = config.rootpath / module
        names = None if tests is None else {name_test(test) for test in tests if test.partition("::")[0] == module}
        for path in sorted((file.parent / FOLDER / file.stem).glob("*.txt")):
            ran = _find_owners(path.stem, passed)
            is_of_none = bool(names) and not _find_owners(path.stem, names or ())
            if path not in used and (all(passed[name] for name in ran) if ran else is_of_none):
                yield path


def _find_owners(stem: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if stem == name or stem.startswith(f"{name}.")]


def _chose_by_name(config: pytest.Config) -> bool:
    """True if modules were collected in part: tests were named, or only those that failed last are collected."""
    return bool(config.getoption("lf", default=None)) or any("::" in str(argument) for argument in config.args)


def _shorten(path: Path, config: pytest.Config) -> Path:
    return path.relative_to(config.rootpath) if path.is_relative_to(config.rootpath) else path
