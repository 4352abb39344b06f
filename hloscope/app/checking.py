"""`check`: every target against its contract and its baseline; `merge_reports`: the reports of its shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from hloscope.analysis.program_labels import label_programs
from hloscope.app.analyses import analyze
from hloscope.app.config import ProjectConfig, TargetConfig, find_project, raise_mistakes
from hloscope.app.jobs import (
    HowToRun,
    Job,
    Outcome,
    Shard,
    baseline_file,
    commit_of,
    jobs_of,
    jobs_of_part,
    over_targets,
    run_jobs,
)
from hloscope.app.requests import PYTHON, meant, read_report, refuse_beside_analysis
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
from hloscope.judge.checks import Checked, apply_strictness, check_analysis, make_failed_check, note_unused_allow
from hloscope.judge.model import Contract
from hloscope.judge.notation import read_contract
from hloscope.judge.plugins import load_plugins, refuse_broken_plugins
from hloscope.judge.selection import make_selection
from hloscope.model import Analysis
from hloscope.model.finding import Severity
from hloscope.report.checks import CheckDocument, CheckedTarget, CheckReport, compute_seal

Target: TypeAlias = Callable[..., Any] | str | Path | Analysis


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
    targets = tuple(target if isinstance(target, Analysis) else meant(target) for target in targets)
    names = tuple(target for target in targets if isinstance(target, str) and _is_name(target))
    if names and len(names) < len(targets):
        what = f"{names[0]!r} is a name in the targets file, and others are programs"
        raise NotationError(what, fix="check them in two calls")
    if targets and not names:
        expected = _Expected.of(contract, baseline, fail_on, changes)
        if all(isinstance(target, Analysis) for target in targets):
            refuse_beside_analysis({"args": args, **options})
        with compile_on(executor):
            found = [_analysis_of(target, args, options) for target in targets]
        names = label_programs([analysis.target for analysis in found], found)
        checks = [replace(expected.checked(analysis), name=name) for analysis, name in zip(found, names, strict=True)]
        judged = apply_strictness(checks, strict=is_strict(strict), whole=True)
        return CheckReport(checks=judged, root=Path.cwd())
    beside = {"args": args, "contract": contract, "baseline": baseline, "fail_on": fail_on, **options}
    said = next((name for name, value in beside.items() if value is not None and name != "timeout_s"), None)
    if said is not None:
        fix = "say it in the targets file, or give the program"
        raise NotationError(f"{said} does not go with names of the targets file", fix=fix)
    if executor is not None and not isinstance(executor, str):
        calls.refuse("executor", "the address of a Dask scheduler", executor, 'executor="dask://scheduler:8786"')
    return _of_project(
        names,
        config,
        cached=cached,
        jobs=jobs,
        executor=executor,
        shard=None if shard is None else Shard.read(calls.text("shard", shard, example='shard="1/4"')),
        strict=strict,
        changes=_changes_of(changes),
        timeout_s=options.get("timeout_s"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What is expected of a program that no targets file has.

    Attributes:
        contract: What it may move.
        baseline: A file that it has to agree with.
        fail_on: The least severity of what rules find that fails it.
        changes: Which changes of the baseline fail it.
    """

    contract: Contract | None
    baseline: Path | None
    fail_on: Severity | None
    changes: str = "increase"

    @classmethod
    def of(cls, contract: object, baseline: object, fail_on: object, changes: object) -> _Expected:
        """What users write of it.

        Raises:
            NotationError: One of them is written wrongly, or there is none.
        """
        found = cls(
            contract=_contract_of(contract),
            baseline=calls.path("baseline", baseline, example='baseline="baselines/step.txt"'),
            fail_on=None if fail_on is None else Severity(calls.choice("fail_on", fail_on, Severity)),
            changes=_changes_of(changes),
        )
        if found.contract is None and found.baseline is None and found.fail_on is None:
            raise NotationError(
                "nothing is expected of the program, so nothing could fail",
                fix='give contract="none", a baseline file, or fail_on="warning"',
            )
        return found

    def checked(self, found: Analysis) -> Checked:
        """A program beside it."""
        return check_analysis(
            found.target,
            found,
            contract=self.contract,
            baseline=self.baseline,
            root=Path.cwd(),
            fail_on=self.fail_on,
            changes=self.changes,
        )


def _changes_of(changes: object) -> str:
    return calls.choice("changes", changes, ("increase", "any"))


def _contract_of(contract: object) -> Contract | None:
    """A contract, however it is given; None for none."""
    if contract is None or isinstance(contract, Contract):
        return contract
    return read_contract(list(contract) if isinstance(contract, tuple) else contract, where="contract")


def _of_project(
    names: tuple[str, ...],
    config: object,
    *,
    cached: bool,
    jobs: object,
    executor: str | None,
    shard: Shard | None,
    strict: bool | None,
    changes: str,
    timeout_s: Any,
) -> CheckReport:
    """A check of targets of the targets file; of all of them where none is named."""
    project = opened_project(calls.path("config", config, example='config="hloscope.toml"'))
    workers = None if jobs is None else calls.whole("jobs", jobs, least=1)
    found = over_targets(
        check_project,
        project,
        names,
        door=PYTHON,
        cached=cached,
        workers=workers,
        executor=executor,
        shard=shard,
        changes=changes,
        timeout_s=make_facts(timeout_s=timeout_s).timeout_s,
    )
    return report_of_project(project, found, names, shard=shard, strict=strict)


def opened_project(config: Path | None) -> ProjectConfig:
    """Opens the targets file and loads its plug-ins.

    Raises:
        HloscopeError: The file does not exist or is invalid, or a plug-in cannot be loaded.
    """
    project = find_project(Path.cwd(), named=config)
    load_plugins(*project.plugins.names, root=project.root, where=project.plugins.place)
    refuse_broken_plugins()
    return project


def report_of_project(
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
    unused = unused_baselines(project)
    if not whole:  # those of targets that want none: others may belong to targets that were not checked
        own = {baseline_file(project, check.name) for check in checks}
        unused = tuple(path for path in unused if path in own)
    orphans = [Path(os.path.relpath(path, project.root)).as_posix() for path in unused]
    judged = apply_strictness(checks, strict=is_strict(strict), whole=whole, orphans=orphans)
    return CheckReport(
        checks=judged,
        root=project.root,
        unused_baselines=unused,
        shard=None if shard is None else str(shard),
        commit=commit_of(project.root),
    )


def _is_name(target: str) -> bool:
    """Whether it is a name in a targets file: neither a function's name nor a file of HLO."""
    return ":" not in target.partition("@")[0] and not is_hlo_target(target)


def _analysis_of(target: Target, args: Any, options: Any) -> Analysis:
    """A program that is analyzed, or was: its report in JSON holds all that is known of it."""
    if isinstance(target, Analysis):
        return target
    if isinstance(target, str | Path) and Path(target).suffix == ".json":
        refuse_beside_analysis({"args": args, **options})
        return read_report(Path(target), str(target))
    return analyze(target, args, **options)


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
        changes: Which changes from a baseline fail: `increase`, or `any`, including those after which less moves.
        on_done: Called with each target, as soon as it is checked.
        **how: As for `run_jobs`.

    Raises:
        HloscopeError: A target does not exist, or a contract is invalid.
    """
    jobs = jobs_of_part(project, names, shard)
    contracts = contracts_of(jobs)
    known: dict[str, Checked] = {}

    def keep(outcome: Outcome) -> None:
        checked = known[outcome.job.name] = checked_outcome(outcome, contracts[outcome.job.target.name], changes)
        on_done(checked)

    run_jobs(jobs, **how, on_done=keep)
    return tuple(known[job.name] for job in jobs)


def with_unfinished(
    project: ProjectConfig, names: Sequence[str], known: Mapping[str, Checked], *, shard: Shard | None = None
) -> tuple[Checked, ...]:
    """The targets of a check that was interrupted: those that were checked by then, and that the others were not."""
    jobs = jobs_of_part(project, names, shard)
    return tuple(known.get(job.name) or _interrupted(job) for job in jobs)


def _interrupted(job: Job) -> Checked:
    return make_failed_check(job.name, "error: interrupted before it was done", place=job.target.place)


def contracts_of(jobs: Sequence[Job]) -> dict[str, Contract | None]:
    """The contract of each target by its name; mistakes are reported before anything is compiled.

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
    """Refuses what the target says of rules where nobody could read it.

    Raises:
        NotationError: It is written wrongly.
    """
    try:
        options = target.options
        make_selection(select=target.rules, allow=options.get("allow", ()), rule_options=options.get("rule_options"))
    except NotationError as error:
        error.where = ", ".join(filter(None, (target.where, error.where)))
        raise


def checked_outcome(outcome: Outcome, contract: Contract | None, changes: str) -> Checked:
    """What became of a target, held against what is expected of it; other arguments as of `check_analysis`."""
    found = _held(outcome, contract, changes)
    place, source = outcome.job.target.place, outcome.compile_from
    return replace(found, place=place, seconds=outcome.seconds, compile_from=source)


def _held(outcome: Outcome, contract: Contract | None, changes: str) -> Checked:
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
            tolerance=tolerance_of(job.target),
            changes=changes,
            of_target=True,
        )
    except HloscopeError as error:
        return make_failed_check(job.name, error)
    return note_unused_allow(found) if job.target.fail_on is None and job.target.options.get("allow") else found


def tolerance_of(target: TargetConfig) -> AllowedGrowth:
    """How far the figures of a target's baseline may grow: as the targets file says, else as usual."""
    said = dict(target.tolerance)
    return AllowedGrowth(step=said.pop("step", USUAL.step), memory={**USUAL.memory, **said})


def unused_baselines(project: ProjectConfig) -> tuple[Path, ...]:
    """Baseline files that belong to no target."""
    used = {job.baseline for job in jobs_of(project, ())}
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
    project = opened_project(calls.path("config", config, example='config="hloscope.toml"'))
    changes = calls.choice("changes", changes, ("increase", "any"))
    return merged(project, files, strict=strict, changes=changes)


def merged(
    project: ProjectConfig, files: Sequence[str | Path], *, strict: bool | None = None, changes: str = "increase"
) -> CheckReport:
    """The report of all targets of a project, from files; arguments and errors as of `merge_reports`."""
    jobs = jobs_of(project, ())
    contracts = contracts_of(jobs)
    _refuse_twice(files)
    documents = {str(file): _read(Path(file), str(file)) for file in files}
    _refuse_other_commits(documents, commit_of(project.root))
    found = _targets(documents, {job.name for job in jobs}, str(project.path))
    missing = _missing(document.shard for document in documents.values())
    outcomes = [_outcome(job, found.get(job.name), missing) for job in jobs]
    checks = tuple(checked_outcome(each, contracts[each.job.target.name], changes) for each in outcomes)
    return report_of_project(project, checks, strict=strict)


def _refuse_twice(files: Sequence[str | Path]) -> None:
    """Refuses a file that is named twice.

    Raises:
        NotationError: There is one.
    """
    seen: set[Path] = set()
    for file in files:
        if (path := Path(file).resolve()) in seen:
            raise NotationError(f"the report {file} is named twice", fix=_ONCE)
        seen.add(path)


def _read(path: Path, name: str) -> CheckDocument:
    """A report of a check.

    Raises:
        HloscopeError: It is none, or cannot be read.
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
    """Refuses reports of another commit than the one that is checked out, where both are known.

    Raises:
        HloscopeError: There is one.
    """
    for name, document in documents.items():
        if None not in (here, document.commit) and document.commit != here:
            what = f"{name} is a report of the commit {document.commit}, but {here} is checked out"
            raise HloscopeError(what, fix="check this commit again, or check out the other one")


def _targets(documents: Mapping[str, CheckDocument], known: Collection[str], project: str) -> dict[str, CheckedTarget]:
    """What the reports have, by the target's name; without what is a check of no target, which is made again.

    Raises:
        HloscopeError: Two have one target, or one has a target that is not known.
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


def _missing(texts: Iterable[str | None]) -> str | None:
    """`shard 2/4 is missing`; None where the reports name all that there are, or no shards."""
    shards = {Shard.read(text) for text in texts if text is not None}
    whole = {Shard(number, shard.total) for shard in shards for number in range(1, shard.total + 1)}
    lost = [str(shard) for shard in sorted(whole - shards)]
    return (
        f"shard{'s' * (len(lost) > 1)} {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing" if lost else None
    )


def _outcome(job: Job, target: CheckedTarget | None, missing: str | None) -> Outcome:
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
