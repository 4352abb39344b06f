"""`check` compares every target with its contract and its baseline; `merge_reports` merges the reports of shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hloscope.analysis.totals import label_programs
from hloscope.app.analyses import find_analysis, make_program_request
from hloscope.app.config import ProjectConfig, TargetConfig, find_project, raise_mistakes
from hloscope.app.jobs import (
    HowToRun,
    Job,
    Outcome,
    Shard,
    find_commit,
    list_jobs,
    list_shard_jobs,
    make_baseline_path,
    run_jobs,
    run_over_targets,
)
from hloscope.app.requests import PYTHON, Target, check_target, read_report, refuse_beside_analysis
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.documents import read_document
from hloscope.base.environment import is_strict
from hloscope.base.errors import Command, HloscopeError, NotationError, say
from hloscope.compile.executors import compile_on
from hloscope.compile.hlo_files import is_hlo_target
from hloscope.compile.target import TargetOptions, accept_options, make_facts
from hloscope.judge.baseline_files import is_baseline
from hloscope.judge.changes import USUAL, AllowedGrowth
from hloscope.judge.checks import (
    Checked,
    apply_strictness,
    can_be_scheduled,
    check_analysis,
    is_scheduled_enough,
    make_failed_check,
    note_unused_allow,
)
from hloscope.judge.model import Contract
from hloscope.judge.notation import read_contract
from hloscope.judge.plugins import load_plugins, refuse_broken_plugins
from hloscope.judge.selection import make_selection
from hloscope.model import Analysis
from hloscope.model.finding import Severity
from hloscope.model.vocabulary import CompileStage
from hloscope.report.checks import CheckDocument, CheckedTarget, CheckReport, compute_seal


@front_door
@accept_options(TargetOptions)
def check(
    *targets: Target,
    args: Any = None,
    contract: Contract | str | Sequence[str] | None = None,
    baseline: str | Path | None = None,
    fail_on: str | None = None,
    config: str | Path | None = None,
    cached: bool = True,
    jobs: int | None = None,
    executor: Any = None,
    shard: str | None = None,
    strict: bool | None = None,
    changes: str = "increase",
    **options: Unpack[TargetOptions],
) -> CheckReport:
    """Checks programs against contracts, baselines and rules.

    Without arguments, or with names from the targets file, it checks these targets like `hloscope check`. Anything else
    is a program, which is checked against whichever of `contract`, `baseline` and `fail_on` are given.

    Example:
        >>> assert hloscope.check().passed
        >>> report = hloscope.check(step, other_step, contract=["all-reduce@model <= 2MB", "nothing else"])
        >>> assert report.passed, report

    Args:
        targets: Names in the targets file; or programs, as for `analyze`, or their analyses, as objects or JSON
            reports.
        args: For programs, one entry per positional argument of each, as for `analyze`.
        contract: For programs, the contract, as text or built with `hloscope.contracts`.
        baseline: For programs, the baseline file to compare with.
        fail_on: For programs, the minimum severity of findings that fails the check: `note`, `warning` or `error`.
        config: The targets file; by default the nearest one in the current folder or its parents.
        cached: For names, whether to use the compile cache. False recompiles everything and stores nothing.
        jobs: For names, the maximum number of parallel processes; by default as many as cores and memory allow.
        executor: Where compiles run, as for `suggest`; for names, which are checked in separate processes, only
            `dask://HOST:PORT`. By default, processes on this machine.
        shard: For names, the part of the targets to check, such as `1/4` to `4/4`; `merge_reports` merges the reports.
        strict: Whether to fail on anything that weakens the check: a baseline file that is missing or belongs to no
            target, or an `allow` that matches nothing. By default True if `CI` is set.
        changes: Which changes from a baseline fail: `increase` for those that are worse or lose something, or `any`.
        {options}

    Returns:
        The report; `passed` says whether every target is as expected.

    Raises:
        HloscopeError: A target does not exist, an argument is invalid, or a program has nothing to be checked against.
    """
    targets = tuple(target if isinstance(target, Analysis) else check_target(target) for target in targets)
    names = tuple(target for target in targets if isinstance(target, str) and _is_name(target))
    if names and len(names) < len(targets):
        what = f"{names[0]!r} is a name in the targets file, and others are programs"
        raise NotationError(what, fix="check them in two calls")
    if targets and not names:
        expected = _Expected.of(contract, baseline, fail_on, changes)
        checks = _check_programs(targets, args, options, expected, executor)
        return CheckReport(checks=apply_strictness(checks, strict=is_strict(strict), whole=True), root=Path.cwd())
    beside = {"args": args, "contract": contract, "baseline": baseline, "fail_on": fail_on, **options}
    said = next((name for name, value in beside.items() if value is not None and name != "timeout_s"), None)
    if said is not None:
        fix = "say it in the targets file, or give the program"
        raise NotationError(f"{said} does not go with names of the targets file", fix=fix)
    if executor is not None and not isinstance(executor, str):
        calls.refuse("executor", "the address of a Dask scheduler", executor, 'executor="dask://scheduler:8786"')
    part = None if shard is None else Shard.read(calls.text("shard", shard, example='shard="1/4"'))
    changes = _check_changes(changes)
    project = open_project(calls.path("config", config, example='config="hloscope.toml"'))
    done = run_over_targets(
        check_project,
        project,
        names,
        door=PYTHON,
        cached=cached,
        workers=None if jobs is None else calls.whole("jobs", jobs, least=1),
        executor=executor,
        shard=part,
        changes=changes,
        timeout_s=make_facts(timeout_s=options.get("timeout_s")).timeout_s,
    )
    return make_project_report(project, done, names, shard=part, strict=strict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """The expectations of a program that is not in a targets file.

    Attributes:
        contract: The communication that is allowed.
        baseline: The baseline file that it must agree with.
        fail_on: The minimum severity of findings that fails it.
        changes: The changes from the baseline that fail it, `increase` or `any`.
    """

    contract: Contract | None
    baseline: Path | None
    fail_on: Severity | None
    changes: str

    @classmethod
    def of(cls, contract: object, baseline: object, fail_on: object, changes: object) -> _Expected:
        """Parses the expectations that a user gives.

        Raises:
            NotationError: One of them is invalid, or none is given.
        """
        found = cls(
            contract=_parse_contract(contract),
            baseline=calls.path("baseline", baseline, example='baseline="baselines/step.txt"'),
            fail_on=None if fail_on is None else Severity(calls.choice("fail_on", fail_on, Severity)),
            changes=_check_changes(changes),
        )
        if found.contract is None and found.baseline is None and found.fail_on is None:
            raise NotationError(
                "nothing is expected of the program, so nothing could fail",
                fix='give contract="none", a baseline file, or fail_on="warning"',
            )
        return found

    def checked(self, found: Analysis) -> Checked:
        """Checks a program against the expectations."""
        return check_analysis(
            found.target,
            found,
            contract=self.contract,
            baseline=self.baseline,
            root=Path.cwd(),
            fail_on=self.fail_on,
            changes=self.changes,
        )


def _check_programs(
    targets: Sequence[Target], args: Any, options: Mapping[str, Any], expected: _Expected, executor: Any
) -> list[Checked]:
    if all(isinstance(target, Analysis) for target in targets):
        refuse_beside_analysis({"args": args, **options})
    with compile_on(executor):
        found = [_find_analysis(target, args, options, expected) for target in targets]
    names = label_programs([analysis.target for analysis in found], found)
    return [replace(expected.checked(analysis), name=name) for analysis, name in zip(found, names, strict=True)]


def _check_changes(changes: object) -> str:
    return calls.choice("changes", changes, ("increase", "any"))


def _parse_contract(contract: object) -> Contract | None:
    """A contract from any of its forms; None if none is given."""
    if contract is None or isinstance(contract, Contract):
        return contract
    return read_contract(list(contract) if isinstance(contract, tuple) else contract, where="contract")


def open_project(config: Path | None) -> ProjectConfig:
    """Opens the targets file and loads its plug-ins.

    Raises:
        HloscopeError: The file does not exist or is invalid, or a plug-in cannot be loaded.
    """
    project = find_project(Path.cwd(), named=config)
    load_plugins(*project.plugins.names, root=project.root, where=project.plugins.place)
    refuse_broken_plugins()
    return project


def make_project_report(
    project: ProjectConfig,
    checks: tuple[Checked, ...],
    names: Sequence[str] = (),
    *,
    shard: Shard | None = None,
    strict: bool | None = None,
) -> CheckReport:
    """Returns the report of a project's checks, with findings on what weakens them.

    Args:
        project: The targets file.
        checks: The checks of its targets.
        names: Names of the requested targets; all if empty.
        shard: The part of them that was checked; None for all.
        strict: Whether anything that weakens the check fails it; None to decide by whether `CI` is set.
    """
    whole = not names and shard is None
    unused = find_unused_baselines(project)
    if not whole:  # only those of checked targets without baselines: others may belong to unchecked targets
        own = {make_baseline_path(project, check.name) for check in checks}
        unused = tuple(path for path in unused if path in own)
    orphans = [Path(os.path.relpath(path, project.root)).as_posix() for path in unused]
    judged = apply_strictness(checks, strict=is_strict(strict), whole=whole, orphans=orphans)
    return CheckReport(
        checks=judged,
        root=project.root,
        unused_baselines=unused,
        shard=None if shard is None else str(shard),
        commit=find_commit(project.root),
    )


def _is_name(target: str) -> bool:
    """Returns whether this is a name in a targets file, and neither a function's name nor an HLO file."""
    return ":" not in target.partition("@")[0] and not is_hlo_target(target)


def _find_analysis(target: Target, args: Any, options: Any, expected: _Expected) -> Analysis:
    """The analysis of a program, which may also be given as an analysis or as a JSON report.

    Its compile ends at the first stage that decides what is expected of it.
    """
    if isinstance(target, Analysis):
        return target
    if isinstance(target, str | Path) and Path(target).suffix == ".json":
        refuse_beside_analysis({"args": args, **options})
        return read_report(Path(target), str(target))
    request = make_program_request(target, args, options)
    is_compiled = request.is_text or request.is_folder
    if not is_compiled and can_be_scheduled(expected.contract, expected.baseline, expected.fail_on):
        is_enough = partial(is_scheduled_enough, contract=expected.contract, baseline=expected.baseline)
        request = replace(request, wanted=CompileStage.SCHEDULED, is_enough=is_enough)
    return find_analysis(request)


def check_project(
    project: ProjectConfig,
    names: Sequence[str] = (),
    *,
    shard: Shard | None = None,
    changes: str = "increase",
    on_done: Callable[[Checked], None] = lambda _: None,
    **how: Unpack[HowToRun],
) -> tuple[Checked, ...]:
    """Checks targets against their contracts, baselines and rules.

    Args:
        project: The targets file.
        names: Names of the targets; all if empty.
        shard: The part of them that is checked; None for all.
        changes: The changes from a baseline that fail: `increase`, or `any`, which includes decreases.
        on_done: Called with each target, as soon as it is checked.
        **how: As for `run_jobs`.

    Raises:
        HloscopeError: A target does not exist, or a contract is invalid.
    """
    jobs = list_shard_jobs(project, names, shard)
    contracts = read_contracts(jobs)
    jobs = tuple(_add_stage(job, contracts[job.target.name]) for job in jobs)
    known: dict[str, Checked] = {}

    def keep(outcome: Outcome) -> None:
        checked = known[outcome.job.name] = check_outcome(outcome, contracts[outcome.job.target.name], changes)
        on_done(checked)

    run_jobs(jobs, **how, on_done=keep)
    return tuple(known[job.name] for job in jobs)


def _add_stage(job: Job, contract: Contract | None) -> Job:
    """A job with the stage of its compile that may decide what is expected; a damaged baseline is reported later."""
    with suppress(HloscopeError):
        if can_be_scheduled(contract, job.baseline, job.target.fail_on):
            return replace(job, wanted=CompileStage.SCHEDULED, contract=contract)
    return job


def add_unfinished(
    project: ProjectConfig, names: Sequence[str], known: Mapping[str, Checked], *, shard: Shard | None = None
) -> tuple[Checked, ...]:
    """The targets of an interrupted check: the finished checks, and an error for each of the other targets."""
    jobs = list_shard_jobs(project, names, shard)
    why = "error: interrupted before it was done"
    return tuple(known.get(job.name) or make_failed_check(job.name, why, place=job.target.place) for job in jobs)


def read_contracts(jobs: Sequence[Job]) -> dict[str, Contract | None]:
    """Reads the contract of each target, by name; mistakes are reported before anything is compiled.

    Raises:
        HloscopeError: A contract or an `allow` of a target is invalid.
    """
    contracts: dict[str, Contract | None] = {}
    mistakes: list[HloscopeError] = []
    for target in {job.target.name: job.target for job in jobs}.values():
        try:
            _check_rules(target)
            written, where = target.contract, f"{target.where}, contract"
            contracts[target.name] = None if written is None else read_contract(written, where=where)
        except HloscopeError as error:
            mistakes.append(error)
    raise_mistakes(mistakes)
    return contracts


def _check_rules(target: TargetConfig) -> None:
    """Checks that a target's options of rules are valid.

    Raises:
        NotationError: An option is invalid.
    """
    try:
        options = target.options
        make_selection(select=target.rules, allow=options.get("allow", ()), rule_options=options.get("rule_options"))
    except NotationError as error:
        error.where = ", ".join(filter(None, (target.where, error.where)))
        raise


def check_outcome(outcome: Outcome, contract: Contract | None, changes: str) -> Checked:
    """Checks the outcome of a target against its expectations; other arguments as for `check_analysis`."""
    found = _judge_outcome(outcome, contract, changes)
    place, source = outcome.job.target.place, outcome.compile_from
    return replace(found, place=place, seconds=outcome.seconds, compile_from=source)


def _judge_outcome(outcome: Outcome, contract: Contract | None, changes: str) -> Checked:
    job = outcome.job
    if outcome.analysis is None:
        return make_failed_check(job.name, outcome.error or "")
    try:
        found = check_analysis(
            job.name,
            outcome.analysis,
            contract=contract,
            baseline=job.baseline,
            root=job.root,
            fail_on=None if job.target.fail_on is None else Severity(job.target.fail_on),
            tolerance=find_tolerance(job.target),
            changes=changes,
            of_target=True,
        )
    except HloscopeError as error:
        return make_failed_check(job.name, error)
    return note_unused_allow(found) if job.target.fail_on is None and job.target.options.get("allow") else found


def find_tolerance(target: TargetConfig) -> AllowedGrowth:
    """The allowed growth of the figures of a target's baseline, from the targets file or by default."""
    said = dict(target.tolerance)
    return AllowedGrowth(step=said.pop("step", USUAL.step), memory={**USUAL.memory, **said})


def find_unused_baselines(project: ProjectConfig) -> tuple[Path, ...]:
    """Baseline files that belong to no target."""
    used = {job.baseline for job in list_jobs(project, ())}
    others = (path for path in sorted(project.baselines.glob("*.txt")) if path not in used)
    return tuple(path for path in others if is_baseline(path))


# ---- the reports of shards


_ONCE = "pass each shard's report once"


@front_door
def merge_reports(
    *files: str | Path, config: str | Path | None = None, strict: bool | None = None, changes: str = "increase"
) -> CheckReport:
    """Merges the reports of a sharded check.

    The analyses in the reports are checked against the contracts and baselines in this checkout: only compiled programs
    are taken from the reports. A target that is in none of the reports counts as one that could not run.

    Example:
        >>> assert hloscope.merge_reports(*Path("reports").glob("*.json")).passed

    Args:
        files: The JSON reports of `check(shard="1/4")` and of every other shard.
        config: The targets file; by default the nearest one in the current folder or its parents.
        strict: As for `check`.
        changes: As for `check`.

    Returns:
        The report on all targets of the targets file.

    Raises:
        HloscopeError: A report cannot be read, two reports have the same target, or a report has a target that is not
            in the targets file.
    """
    if not files:
        raise NotationError("there are no reports to merge", fix='name them: merge_reports("1.json", "2.json")')
    project = open_project(calls.path("config", config, example='config="hloscope.toml"'))
    changes = calls.choice("changes", changes, ("increase", "any"))
    return merge_report_files(project, files, strict=strict, changes=changes)


def merge_report_files(
    project: ProjectConfig, files: Sequence[str | Path], *, strict: bool | None = None, changes: str = "increase"
) -> CheckReport:
    """Merges report files into one report on all targets of a project; arguments and errors as for `merge_reports`."""
    jobs = list_jobs(project, ())
    contracts = read_contracts(jobs)
    _refuse_repeated(files)
    documents = {str(file): _read_check_report(Path(file), str(file)) for file in files}
    _refuse_other_commits(documents, find_commit(project.root))
    found = _collect_targets(documents, {job.name for job in jobs}, str(project.path))
    missing = _find_missing_shards(document.shard for document in documents.values())
    outcomes = [_make_outcome(job, found.get(job.name), missing) for job in jobs]
    checks = tuple(check_outcome(each, contracts[each.job.target.name], changes) for each in outcomes)
    return make_project_report(project, checks, strict=strict)


def _refuse_repeated(files: Sequence[str | Path]) -> None:
    """Refuses a file that is named twice.

    Raises:
        NotationError: A file is named twice.
    """
    seen: set[Path] = set()
    for file in files:
        if (path := Path(file).resolve()) in seen:
            raise NotationError(f"the report {file} is named twice", fix=_ONCE)
        seen.add(path)


def _read_check_report(path: Path, name: str) -> CheckDocument:
    """Reads the report of a check.

    Raises:
        HloscopeError: It cannot be read, or is not such a report.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HloscopeError(f"{name} cannot be read", why=error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise HloscopeError(f"{name} is not valid JSON", why=str(error)) from None
    document = read_document(CheckDocument, found, name=name, key="checks", command="check")
    if document.seal != compute_seal(found):
        why = say("it was edited or damaged after ", Command("check"), " wrote it")
        raise HloscopeError(f"the seal of {name} does not match its contents", why=why, fix="check again")
    return document


def _refuse_other_commits(documents: Mapping[str, CheckDocument], here: str | None) -> None:
    """Refuses reports of a commit other than the one checked out, if both are known.

    Raises:
        HloscopeError: A report is of another commit.
    """
    for name, document in documents.items():
        if None not in (here, document.commit) and document.commit != here:
            what = f"{name} is a report of the commit {document.commit}, but {here} is checked out"
            raise HloscopeError(what, fix="check this commit again, or check out the other one")


def _collect_targets(
    documents: Mapping[str, CheckDocument], known: Collection[str], project: str
) -> dict[str, CheckedTarget]:
    """The targets in the reports, by name, without checks that belong to no target, which are repeated.

    Raises:
        HloscopeError: Two reports have the same target, or one has an unknown target.
    """
    found: dict[str, CheckedTarget] = {}
    held_by: dict[str, str] = {}
    for name, document in documents.items():
        for target in document.checks:
            if target.analysis is None and target.error is None:
                continue
            if target.name not in known:
                why = f"{project} has no target of that name: the report is of another state of the project"
                raise HloscopeError(
                    f"{name} has the unknown target {target.name!r}", why=why, fix="check the current state again"
                )
            if target.name in found:
                both = f"{held_by[target.name]} and {name}"
                raise HloscopeError(f"{both} both have the target {target.name!r}", fix=_ONCE)
            found[target.name], held_by[target.name] = target, name
    return found


def _find_missing_shards(texts: Iterable[str | None]) -> str | None:
    """The missing shards, as in `shard 2/4 is missing`; None if there are none, or if the reports name no shards."""
    shards = {Shard.read(text) for text in texts if text is not None}
    whole = {Shard(number, shard.total) for shard in shards for number in range(1, shard.total + 1)}
    lost = [str(shard) for shard in sorted(whole - shards)]
    return (
        f"shard{'s' * (len(lost) > 1)} {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing" if lost else None
    )


def _make_outcome(job: Job, target: CheckedTarget | None, missing: str | None) -> Outcome:
    if target is None:
        why = "it is in none of the reports" + (f": {missing}" if missing else "")
        error = HloscopeError(f"{job.name} was not checked", where=job.target.where, why=why)
        return Outcome(job=job, error=error.message())
    return Outcome(
        job=job,
        analysis=target.analysis,
        error=target.error,
        seconds=target.seconds or 0.0,
        compile_from=target.compile_from,
    )
