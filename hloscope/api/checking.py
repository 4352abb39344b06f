"""`check` and `accept`: every target of a project against its contract and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.api.jobs import Job, Outcome, jobs_of
from hloscope.api.processes import run_jobs
from hloscope.config import ProjectConfig
from hloscope.contracts.baselines import baseline_of, format_baseline, write_baseline
from hloscope.contracts.checked import Checked, check_analysis, could_not_run
from hloscope.contracts.model import Contract
from hloscope.contracts.tables import contract_from_toml
from hloscope.errors import HloscopeError

Told = Callable[[str], None]


def check(
    project: ProjectConfig,
    names: Sequence[str] = (),
    *,
    cached: bool = True,
    workers: int | None = None,
    told: Told = lambda _: None,
) -> tuple[Checked, ...]:
    """Holds targets against what is expected of them.

    Args:
        project: The targets file.
        names: The targets; all of them when empty.
        cached: Whether compiles are kept and taken from the cache.
        workers: Processes at once.
        told: Hears the name of each target that is done.

    Raises:
        HloscopeError: There is no such target, or a contract is written wrongly.
    """
    jobs = jobs_of(project, names)
    contracts = {job.name: _contract(job) for job in jobs}  # a mistake is told before anything is compiled
    outcomes = run_jobs(jobs, cached=cached, workers=workers, told=lambda outcome: told(outcome.job.name))
    return tuple(_checked(outcome, contracts[outcome.job.name]) for outcome in outcomes)


def _contract(job: Job) -> Contract | None:
    value = job.target.contract
    return None if value is None else contract_from_toml(value, where=f"{job.target.where}, contract")


def _checked(outcome: Outcome, contract: Contract | None) -> Checked:
    job = outcome.job
    if outcome.analysis is None:
        return could_not_run(job.name, outcome.error or "", place=job.target.place)
    try:
        found = check_analysis(job.name, outcome.analysis, contract=contract, baseline=job.baseline, root=job.root)
    except HloscopeError as error:
        found = could_not_run(job.name, error)
    return replace(found, place=job.target.place, seconds=outcome.seconds)


def unused_baselines(project: ProjectConfig) -> tuple[Path, ...]:
    """Baseline files that belong to no target."""
    used = {job.baseline for job in jobs_of(project, ())}
    return tuple(path for path in sorted(project.baselines.glob("*.txt")) if path not in used)


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


def accept(
    project: ProjectConfig,
    names: Sequence[str] = (),
    *,
    cached: bool = True,
    workers: int | None = None,
    told: Told = lambda _: None,
) -> tuple[Accepted, ...]:
    """Writes the baselines of targets as they are now; see `check` for the arguments.

    Raises:
        HloscopeError: There is no such target, or a file cannot be written.
    """
    jobs = jobs_of(project, names)
    outcomes = run_jobs(jobs, cached=cached, workers=workers, told=lambda outcome: told(outcome.job.name))
    return tuple(map(_accepted, outcomes))


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
