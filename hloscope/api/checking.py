"""`check` and `accept`: every target of a project against its contract and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from hloscope.api.jobs import HowToRun, Job, Outcome, jobs_of, run_jobs
from hloscope.config import ProjectConfig, TargetConfig, refuse
from hloscope.contracts.baseline_files import is_baseline, write_baseline
from hloscope.contracts.baselines import baseline_of, format_baseline
from hloscope.contracts.checked import Checked, check_analysis, could_not_run
from hloscope.contracts.model import Contract
from hloscope.contracts.notation import read_contract
from hloscope.errors import HloscopeError, NotationError
from hloscope.findings import Severity
from hloscope.rules.plugins import load_plugins, refuse_broken
from hloscope.rules.selection import make_selection


def check(project: ProjectConfig, names: Sequence[str] = (), **how: Unpack[HowToRun]) -> tuple[Checked, ...]:
    """Holds targets against what is expected of them.

    Args:
        project: The targets file.
        names: The targets; all of them when empty.
        **how: As for `run_jobs`.

    Raises:
        HloscopeError: There is no such target, a contract is written wrongly, or a plug-in cannot be loaded.
    """
    load_plugins(*project.plugins.names, root=project.root, where=project.plugins.place)
    refuse_broken()
    jobs = jobs_of(project, names)
    contracts = _contracts(jobs)
    return tuple(_checked(outcome, contracts[outcome.job.target.name]) for outcome in run_jobs(jobs, **how))


def _contracts(jobs: Sequence[Job]) -> dict[str, Contract | None]:
    """The contract of each target by its name; mistakes are reported before anything is compiled.

    Raises:
        HloscopeError: What is expected of a target, or accepted, is written wrongly.
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
    refuse(mistakes)
    return contracts


def _check_rules(target: TargetConfig) -> None:
    """Refuses what the target says of rules where nobody could read it.

    Raises:
        NotationError: It is written wrongly.
    """
    try:
        make_selection(allow=target.options.get("allow", ()), rule_options=target.options.get("rule_options"))
    except NotationError as error:
        error.where = ", ".join(filter(None, (target.where, error.where)))
        raise


def _checked(outcome: Outcome, contract: Contract | None) -> Checked:
    job = outcome.job
    if outcome.analysis is None:
        return could_not_run(job.name, outcome.error or "", place=job.target.place)
    try:
        found = check_analysis(
            job.name,
            outcome.analysis,
            contract=contract,
            baseline=job.baseline,
            root=job.root,
            fail_on=None if job.target.fail_on is None else Severity(job.target.fail_on),
        )
    except HloscopeError as error:
        found = could_not_run(job.name, error)
    return replace(found, place=job.target.place, seconds=outcome.seconds)


def unused_baselines(project: ProjectConfig) -> tuple[Path, ...]:
    """Baseline files that belong to no target."""
    used = {job.baseline for job in jobs_of(project, ())}
    others = (path for path in sorted(project.baselines.glob("*.txt")) if path not in used)
    return tuple(path for path in others if is_baseline(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of one baseline.

    Attributes:
        name: The target's name, with its slice where it has several.
        path: Its baseline file; None when it wants none or could not be analysed.
        state: `written`, `rewritten`, `unchanged` or `wants no baseline`; None when it could not be analysed.
        error: Why it could not be analysed.
    """

    name: str
    path: Path | None = None
    state: str | None = None
    error: str | None = None


def accept(project: ProjectConfig, names: Sequence[str] = (), **how: Unpack[HowToRun]) -> tuple[Accepted, ...]:
    """Writes the baselines of targets as they are now; see `check` for the arguments.

    Raises:
        HloscopeError: There is no such target, or a file cannot be written.
    """
    return tuple(map(_accepted, run_jobs(jobs_of(project, names), **how)))


def _accepted(outcome: Outcome) -> Accepted:
    job = outcome.job
    if outcome.analysis is None:
        return Accepted(name=job.name, error=outcome.error)
    if job.baseline is None:
        return Accepted(name=job.name, state="wants no baseline")
    baseline = baseline_of(outcome.analysis, root=job.root)
    before = job.baseline.read_bytes() if job.baseline.is_file() else None
    if before == format_baseline(baseline).encode():
        return Accepted(name=job.name, path=job.baseline, state="unchanged")
    write_baseline(job.baseline, baseline)
    return Accepted(name=job.name, path=job.baseline, state="written" if before is None else "rewritten")
