"""The check of one target against its contract and its baseline, and the pages of its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from hloscope.analysis.provenance import NOT_READ
from hloscope.analysis.spellings import PALLAS
from hloscope.base.errors import Command, HloscopeError, Option, say
from hloscope.base.results import Brief
from hloscope.base.units import format_time
from hloscope.judge.baseline_files import read_baselines
from hloscope.judge.baselines import find_section, names_program
from hloscope.judge.changes import USUAL, AllowedGrowth, Cause, Judged, Judgement
from hloscope.judge.evaluate import can_decide_peak, evaluate, explain_no_traffic
from hloscope.judge.judging import judge
from hloscope.judge.model import MOVED, Contract, Limit, Quantity
from hloscope.judge.verdict import Breach, BreachKind, Verdict
from hloscope.model import Analysis
from hloscope.model.analysis import summarize_memory
from hloscope.model.capture import Capture
from hloscope.model.finding import UNUSED_ALLOW, Finding, Severity, read_pages, unaccepted

CHANGED = "baseline-changed"
LOOSER = "baseline-looser"
NOTHING_EXPECTED = "nothing-expected"
NO_BASELINE = "no-baseline"
UNUSED_BASELINE = "unused-baseline"
COULD_NOT_RUN = "could-not-run"
_COMMENTS_NOT_READ = "comments-not-read"
HBM_EXCEEDED = "hbm-exceeded"
"""The rule on programs that no device has the memory for."""

PAGES = read_pages(str(__package__), Command("accept"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Checked(Brief):
    """One target, for one slice, held against what is expected of it.

    Attributes:
        name: The target's name, with its slice where it has several.
        analysis: What was found; None when it could not be analyzed.
        verdict: What its contract says; None without a contract.
        baseline: Its baseline file, whether it exists or not; None when it wants none.
        judged: What it is beside its baseline; None without one.
        findings: All that is to be reported; an error among them fails the check.
        error: Why it could not be analyzed, as one message; None when it was.
        place: Where the target is written, `pyproject.toml:12`; None where it is written nowhere.
        seconds: How long it took.
        compile_from: Where its compile is from: `cache`, `shared cache` or `compiler`; None where it needed none.
    """

    name: str
    analysis: Analysis | None = None
    verdict: Verdict | None = None
    baseline: Path | None = None
    judged: Judged | None = None
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    place: str | None = None
    seconds: float | None = None
    compile_from: str | None = None

    @property
    def passed(self) -> bool:
        """True if everything expected was found, and nothing else."""
        return self.error is None and not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """The breaches of the contract; empty without one."""
        return () if self.verdict is None else self.verdict.breaches

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts of the program that were not understood."""
        return () if self.analysis is None else tuple(dict.fromkeys(item.what for item in self.analysis.unmodelled))

    @property
    def beside_the_contract(self) -> tuple[Finding, ...]:
        """The findings that are no breaches of the contract."""
        of_contract = () if self.verdict is None else self.verdict.findings
        return tuple(finding for finding in self.findings if finding not in of_contract)


def can_be_scheduled(contract: Contract | None, baseline: Path | None, fail_on: str | None) -> bool:
    """Returns whether a program may be held against these expectations before it is compiled to machine code.

    A limit of a time, rules, and a baseline that does not identify its program need the code.

    Raises:
        HloscopeError: The baseline file cannot be read.
    """
    limits = () if contract is None else contract.all_of(Limit)
    kept = () if baseline is None else read_baselines(baseline)
    return (
        fail_on is None
        and all(limit.quantity in (*MOVED, Quantity.HBM, Quantity.REPEATED) for limit in limits)
        and (not kept or any(section.digest is not None for section in kept))
    )


def is_scheduled_enough(program: Capture, contract: Contract | None, baseline: Path | None) -> bool:
    """Returns whether a scheduled program is its baseline's, if there is one, is in its limits, and has no kernels.

    A kernel may be refused when its code is made, for want of VMEM, and is not in the digest. A program of which
    nothing is expected is only read.
    """
    if contract is None and baseline is None:
        return True
    limits = () if contract is None else contract.all_of(Limit)
    memory = summarize_memory(program)
    if not all(can_decide_peak(limit.most, memory) for limit in limits if limit.quantity is Quantity.HBM):
        return False
    kept = () if baseline is None else read_baselines(baseline)
    is_known = not kept or names_program(find_section(kept, program), program.digest)
    return is_known and f'custom_call_target="{PALLAS}"' not in program.compiled.text


def check_analysis(
    name: str,
    analysis: Analysis,
    *,
    contract: Contract | None,
    baseline: Path | None,
    root: Path,
    fail_on: Severity | None = None,
    tolerance: AllowedGrowth = USUAL,
    changes: str = "increase",
    of_target: bool = False,
) -> Checked:
    """Holds an analysis against a contract and a baseline file.

    A target of which nothing is expected fails: a check that cannot fail says nothing.

    Args:
        name: The target's name.
        analysis: What it moves.
        contract: Its contract; None for none.
        baseline: Its baseline file; None when it wants none.
        root: The project's folder.
        fail_on: The least severity of what rules find that fails the check; None where nothing of it does.
        tolerance: How far the figures of the baseline may grow.
        changes: Which changes of the baseline fail: `increase`, or `any`, also one after which less moves.
        of_target: As for `judge`.

    Raises:
        HloscopeError: The baseline file cannot be read.
    """
    verdict = None if contract is None else evaluate(contract, analysis, root=root)
    findings = list(verdict.findings) if verdict is not None else []
    kept = () if baseline is None else read_baselines(baseline)
    judged = None
    if kept:
        section = find_section(kept, analysis)
        judged = judge(section, analysis, root=root, tolerance=tolerance, of_target=of_target).judged
        findings += make_findings(
            judged, accept=_name_accept(name), explain=Command("explain", (name,)), changes=changes
        )
        findings += [] if verdict is not None else _find_without_contract(analysis)
    elif verdict is None and fail_on is None:
        findings.append(_report_nothing_expected(name))
    elif baseline is not None:
        findings.append(_note_missing_baseline(name))
    failing = () if fail_on is None else unaccepted(analysis.findings, fail_on)
    findings += [replace(finding, severity=Severity.ERROR) for finding in failing]
    findings += _note_unread_comments(analysis) if failing else []
    distinct = tuple(dict.fromkeys(findings))
    return Checked(name=name, analysis=analysis, verdict=verdict, baseline=baseline, judged=judged, findings=distinct)


def note_unused_allow(checked: Checked) -> Checked:
    """The check of a target whose allow accepts findings that would not fail it, but where it does not fit in HBM."""
    found = _list_findings(checked)
    if any(each.rule == UNUSED_ALLOW or (each.rule == HBM_EXCEEDED and each.allowed is not None) for each in found):
        return checked
    unused = Finding(
        rule=UNUSED_ALLOW,
        severity=Severity.NOTE,
        message="allow has no effect: no finding of a rule fails this target",
        fix='add fail-on = "warning" to the target, or remove its allow',
    )
    return replace(checked, findings=(*checked.findings, unused))


def _note_unread_comments(analysis: Analysis) -> list[Finding]:
    """That a comment may accept what fails, where HLO text names files that may not be read."""
    fix = "name the folder that holds them as the target's source-root, or accept the findings in its allow"
    return [
        Finding(rule=_COMMENTS_NOT_READ, severity=Severity.NOTE, message=note, fix=fix)
        for note in analysis.notes
        if note.startswith(NOT_READ)
    ]


def make_findings(
    judged: Judged, *, accept: Command | None = None, explain: Command | None = None, changes: str = "increase"
) -> tuple[Finding, ...]:
    """The findings on a program compared with its baseline: one for each cause.

    Args:
        judged: The comparison.
        accept: The command that accepts all of it; None names no way to accept it.
        explain: The command that looks for a change against what moves; None if no command does.
        changes: As for `check_analysis`.
    """
    fails = judged.judgement in (Judgement.WORSE, Judgement.DIFFERENT) or (judged.causes and changes == "any")
    found, named = [], Counter(cause.key for cause in judged.causes)
    for cause in judged.causes:
        counts = fails and (cause.judgement is not Judgement.BETTER or changes == "any")
        found.append(
            Finding(
                rule=CHANGED,
                severity=Severity.ERROR if counts else Severity.NOTE,
                message=cause.message if cause.is_left_open else f"{cause.judgement}: {cause.message}",
                source=cause.source,
                why=cause.why,
                cost=_format_cost(cause),
                fix=_format_fix(cause, accept, explain, named[cause.key]) if counts and accept else None,
            )
        )
    if judged.judgement is Judgement.BETTER:
        what = "the program is better than its baseline, so undoing the improvement would pass"
        if judged.is_only_left_open:
            what = "the baseline lacks figures, so a change of these would pass"
        found.append(Finding(rule=LOOSER, severity=Severity.NOTE, message=what, fix=say(accept) if accept else None))
    if judged.versions is not None and judged.causes:
        what = f"the compiler version differs: {judged.versions}"
        fix = say(accept.with_option("beside"), " keeps one baseline per compiler version") if accept else None
        found.append(Finding(rule=CHANGED, severity=Severity.NOTE, message=what, fix=fix))
    notes = (Finding(rule=CHANGED, severity=Severity.NOTE, message=note) for note in judged.notes)
    return (*found, *notes)


def _format_cost(cause: Cause) -> str | None:
    """`transfers take 31 us longer per step`."""
    more = (cause.time_us or 0) > 0
    if not cause.time_us or cause.judgement is (Judgement.BETTER if more else Judgement.WORSE):
        return None  # what counts is something else
    return f"transfers take {format_time(abs(cause.time_us))} {'more' if more else 'less'} per step"


def _format_fix(cause: Cause, accept: Command, explain: Command | None, alike: int) -> str:
    """The fix that was tried, or the command that looks for one, and the command that accepts the change."""
    what = {1: "the change", 2: "both changes of this name"}.get(alike, f"all {alike} changes of this name")
    meant = say(f"to accept {what}: ", accept.with_option("only", [cause.key]))
    if cause.tried is not None:
        return say(cause.tried, "; ", meant)
    if explain is None or (cause.wire_bytes or 0) <= 0:
        return meant
    return say(explain, " looks for a fix; ", meant)


def _find_without_contract(analysis: Analysis) -> list[Finding]:
    """Findings that a contract fails over as well: too little memory on any device, or nothing that could break it."""
    too_large = [finding for finding in analysis.findings if finding.rule == HBM_EXCEEDED and finding.allowed is None]
    vacuous = [
        Finding(rule=BreachKind.VACUOUS, severity=Severity.WARNING, message=message)
        for message in explain_no_traffic(analysis)
    ]
    return [*too_large, *vacuous]


def _note_missing_baseline(name: str) -> Finding:
    """The finding on a target whose baseline file is missing."""
    message = f"the target {name} has no baseline file"
    fix = say(_name_accept(name), " writes it; set baseline = false in the targets file if it should have none")
    return Finding(rule=NO_BASELINE, severity=Severity.NOTE, message=message, fix=fix)


def _report_nothing_expected(name: str) -> Finding:
    """The finding on a target whose check could not fail, which fails it."""
    message = f"the target {name} has neither a contract nor a baseline, so its check cannot fail"
    fix = say("write a contract, or accept its current state as a baseline: ", _name_accept(name))
    return Finding(rule=NOTHING_EXPECTED, severity=Severity.ERROR, message=message, fix=fix)


def _name_accept(name: str) -> Command:
    return Command("accept", (name.partition("@")[0],))


_LOOSENING = frozenset({NO_BASELINE, UNUSED_BASELINE, UNUSED_ALLOW, LOOSER})
"""Findings on checks that were loosened, knowingly or not: notes on a desk, errors where they guard a merge."""


def apply_strictness(
    checks: Sequence[Checked], *, strict: bool, whole: bool, orphans: Sequence[str] = ()
) -> tuple[Checked, ...]:
    """Checks with what loosens them: an error where that is strict, else a note that says so.

    Args:
        checks: The targets.
        strict: Whether it fails them.
        whole: Whether all targets are among the checks: else what others use would seem to be unused.
        orphans: Paths of baseline files that belong to no target; they become a check of their own.
    """
    reasons = {
        finding.allowed for checked in checks for finding in _list_findings(checked) if finding.allowed is not None
    }
    used = tuple(f": {reason}" for reason in reasons)
    found = []
    for checked in checks:
        failing = {finding.message for finding in checked.findings}
        unused = [
            finding
            for finding in (_list_findings(checked) if whole else ())
            if finding.rule == UNUSED_ALLOW and finding.message not in failing and not finding.message.endswith(used)
        ]
        findings = tuple(_mark_loosening(finding, strict=strict) for finding in (*checked.findings, *unused))
        found.append(replace(checked, findings=findings))
    lost = tuple(_mark_loosening(_note_orphan(path), strict=strict) for path in orphans)
    folder = PurePath(orphans[0]).parent.as_posix() if orphans else ""
    return (*found, Checked(name=f"{folder}/", findings=lost)) if lost else tuple(found)


def _list_findings(checked: Checked) -> tuple[Finding, ...]:
    return () if checked.analysis is None else checked.analysis.findings


def _note_orphan(path: str) -> Finding:
    return Finding(
        rule=UNUSED_BASELINE,
        severity=Severity.NOTE,
        message=f"{path} is a baseline that no target uses",
        source=path,
        fix="remove it, if its target was removed on purpose",
    )


def _mark_loosening(finding: Finding, *, strict: bool) -> Finding:
    if finding.rule not in _LOOSENING or finding.severity is Severity.ERROR:
        return finding
    if strict:
        return replace(finding, severity=Severity.ERROR)
    return replace(finding, message=say(finding.message, " (this fails in CI, and with ", Option("strict"), ")"))


def make_failed_check(name: str, error: HloscopeError | str, *, place: str | None = None) -> Checked:
    """The check of a target that could not be analyzed."""
    return Checked(name=name, error=error.message() if isinstance(error, HloscopeError) else error, place=place)
