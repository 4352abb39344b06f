"""Several jobs side by side, each in a process that is its own meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path

from hloscope.api.jobs import Checkout, Job, Outcome, run_job
from hloscope.compiler.client import how_it_ended, time_limit, workers_here
from hloscope.compiler.pool import WorkerDied, WorkerPool
from hloscope.errors import HloscopeError, TimeLimitError

_KIND_OF_PROCESS = "HLOSCOPE_WORKER_FOR"
"""Processes that differ in this variable are not exchanged for each other."""

_GRACE_S = 2.0
"""How much later a process is ended that should have ended its job itself, and told where it was."""

Told = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a process is prepared for before JAX is imported in it.

    Attributes:
        root: The project's folder.
        attached: Whether it keeps JAX's real devices.
        checkout: The older state of the repository that its targets are of; None for the working tree.
        search_path: `sys.path` of the process that asks.
        alone: The one job that it may run; None where it may run several.
    """

    root: Path
    attached: bool
    checkout: Checkout | None
    search_path: tuple[str, ...]
    alone: str | None = None


def run_jobs(
    jobs: Sequence[Job],
    *,
    cached: bool = True,
    workers: int | None = None,
    timeout_s: float | None = None,
    told: Told = lambda _: None,
) -> tuple[Outcome, ...]:
    """Analyses targets, in processes of their own where they are compiled; one that fails stops no other.

    Jobs of one folder use a process one after the other.

    Args:
        jobs: What to analyse.
        cached: Whether compiles are kept and taken from the cache.
        workers: Processes at once; by default as many as cores and free memory allow.
        timeout_s: Seconds that a target may take that names no limit of its own: import, tracing and compile together.
        told: Hears of each outcome as it comes.

    Returns:
        The outcomes, in the order of the jobs.
    """
    outcomes: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        outcomes[outcome.job.name] = outcome
        told(outcome)

    for job in jobs:
        if job.target.hlo is not None:
            keep(run_job(job, cached=cached))
    compiled = [job for job in jobs if job.target.function is not None]
    if compiled:
        pool = WorkerPool(workers or workers_here(len(compiled)), keeps_words=False, counted=False)
        try:
            _run_all(pool, compiled, cached, timeout_s, keep)
        except BaseException:
            pool.kill_all()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return tuple(outcomes[job.name] for job in jobs)


def _run_all(pool: WorkerPool, jobs: Sequence[Job], cached: bool, timeout_s: float | None, keep: Told) -> None:
    """Runs jobs, each once more where it turns out to need a process to itself."""
    waiting: dict[Future[Outcome], Job] = {}
    again: set[str] = set()

    def submit(job: Job, start: _Start) -> None:
        environment = {**os.environ, _KIND_OF_PROCESS: repr(start)}
        own = job.target.options.get("timeout_s")
        limit = time_limit(timeout_s if own is None else own)
        latest = None if limit is None else limit + _GRACE_S
        waiting[pool.submit_in(environment, latest, _run, start, job, cached=cached, limit_s=limit)] = job

    for job in jobs:
        submit(job, _start_of(job))
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            job = waiting.pop(future)
            outcome = _outcome(future, job)
            if outcome.alone and job.name not in again:
                again.add(job.name)
                submit(job, _start_of(job, alone=job.name))
            else:
                keep(outcome)


def _outcome(future: Future[Outcome], job: Job) -> Outcome:
    """What became of a job: whatever its process raised or could not begin is its own, and ends no other."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WorkerDied):
        error = _died(job, error)
    elif isinstance(error, TimeoutError):
        limit = float(error.args[0]) - _GRACE_S if error.args else 0.0
        error = TimeLimitError(_doing(job), limit)
    elif not isinstance(error, HloscopeError):
        error = HloscopeError(
            f"{job.name} could not be run",
            where=job.target.where,
            why=f"{type(error).__name__}: {error}".removesuffix(": "),
            fix="try it alone: hloscope analyze --debug",
        )
    return Outcome(job=job, error=str(error))


def _start_of(job: Job, alone: str | None = None) -> _Start:
    return _Start(
        root=job.root,
        attached=job.slice == "attached",
        checkout=job.checkout,
        search_path=tuple(sys.path),
        alone=alone,
    )


def _died(job: Job, died: WorkerDied) -> HloscopeError:
    return HloscopeError(
        f"the process that imported and traced {job.name} died",
        where=job.target.where,
        why=how_it_ended(died.returncode),
        fix="native code that the target imports may have ended it, or the machine ran out of memory: try it alone, "
        "with hloscope analyze or hloscope check --jobs 1",
    )


def _prepare(start: _Start) -> None:
    """Prepares a process before JAX is imported."""
    from hloscope.program.devices import DEFAULT_DEVICES, prepare_environment

    os.chdir(start.root)
    sys.path[:] = start.search_path
    if start.checkout is not None:
        sys.path[:] = [str(start.checkout.here(Path(entry or ".").resolve()) or entry) for entry in sys.path]
    sys.path.insert(0, str(start.root))
    prepare_environment(DEFAULT_DEVICES, attached=start.attached)


_prepared: list[_Start] = []
"""What this process was prepared for."""
_settings_of: list[str] = []
"""The modules that changed JAX's settings in this process, which is to run no others after that."""


def _doing(job: Job) -> str:
    return f"importing, tracing and compiling {job.name}"


def _run(start: _Start, job: Job, *, cached: bool, limit_s: float | None) -> Outcome:
    """Runs a job in this process, unless another target's module has left JAX's settings otherwise than it found them.

    Such a module, with `jax_enable_x64` for example, would make other programs of the targets that happen to come after
    it.
    """
    if not _prepared:
        _prepare(start)
        _prepared.append(start)
    from hloscope.program.limits import ended_after
    from hloscope.program.user_settings import compiling_settings

    module = (job.target.function or "").rpartition(":")[0]
    if any(other != module for other in _settings_of):
        return Outcome(job=job, alone=True)
    before = compiling_settings()
    with ended_after(limit_s, _doing(job)):
        outcome = run_job(job, cached=cached)
    if compiling_settings() != before:
        _settings_of.append(module)
    return outcome
