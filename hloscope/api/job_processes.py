"""Runs jobs in parallel processes, so that a target that hangs or dies does not stop the others."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypedDict

from hloscope.api.jobs import Checkout, Job, Outcome, module_of, run_job
from hloscope.compiler.client import how_it_ended, time_limit, workers_here
from hloscope.compiler.pool import WorkerDied, WorkerPool
from hloscope.compiler.slots import BYTES_PER_TRACER, BYTES_PER_WORKER
from hloscope.errors import HloscopeError, TimeLimitError
from hloscope.messages import WITH_TRACEBACK, Command, Option, say
from hloscope.program.loading import ended_after
from hloscope.remote_store import ADDRESS, NOTES, say_whom_it_trusts
from hloscope.store import default_store

_KIND_OF_PROCESS = "HLOSCOPE_WORKER_FOR"
"""Processes that differ in this variable are not exchanged for each other."""

_GRACE_S = 2.0
"""How much later a process is ended that should have ended its job itself and said where it was."""


_Kind = tuple[Path, bool, Checkout | None, tuple[str, ...]]
"""What a process is prepared for: as the arguments of `_prepare`."""


class HowToRun(TypedDict, total=False):
    """How to run jobs; see `run_jobs`."""

    cached: bool
    workers: int | None
    timeout_s: float | None
    executor: str | None


def run_jobs(
    jobs: Sequence[Job],
    *,
    cached: bool = True,
    workers: int | None = None,
    timeout_s: float | None = None,
    executor: str | None = None,
    on_done: Callable[[Outcome], None] = lambda _: None,
) -> tuple[Outcome, ...]:
    """Analyzes targets, in separate processes if they are compiled; one that fails does not stop the others.

    Jobs of one folder share a process one after the other; jobs of one module use the same process if possible, so that
    it is imported once.

    Args:
        jobs: The jobs.
        cached: Whether to use the compile cache.
        workers: Maximum number of parallel processes; by default as many as cores and free memory allow.
        timeout_s: Time limit in seconds for a target without its own limit: import, tracing and compile together.
        executor: Where compiles run, as `dask://HOST:PORT`; None for this machine.
        on_done: Called with each outcome as soon as the job is done.

    Returns:
        The outcomes, in the order of the jobs.
    """
    outcomes: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        outcomes[outcome.job.name] = outcome
        on_done(outcome)

    for job in jobs:
        if job.target.hlo is not None:
            with ended_after(_limit(job, timeout_s), f"analyzing {job.name}"):
                outcome = run_job(job, cached=cached)
            keep(outcome)
    compiled = [job for job in jobs if job.target.function is not None]
    if compiled:
        count = workers or workers_here(len(compiled), each_bytes=BYTES_PER_TRACER + BYTES_PER_WORKER)
        with _environment(cached=cached) as environment, _lanes(min(count, len(compiled))) as lanes:
            _run_all(lanes, compiled, _How(cached, timeout_s, executor, environment), keep)
    return tuple(outcomes[job.name] for job in jobs)


@contextmanager
def _lanes(count: int) -> Iterator[list[_Lane]]:
    """Processes, of which none is left at the end."""
    lanes = [_Lane(WorkerPool(1, keeps_words=False, counted=False)) for _ in range(count)]
    try:
        yield lanes
    except BaseException:
        for lane in lanes:
            lane.pool.kill_all()
        raise
    finally:
        for lane in lanes:
            lane.pool.shutdown(cancel_futures=True)


@contextmanager
def _environment(*, cached: bool) -> Iterator[dict[str, str]]:
    """The environment of the processes, in which what one finds of a shared cache need not be found by each.

    Raises:
        HloscopeError: The cache's settings are written wrongly.
    """
    store = default_store() if cached else None
    known = dict(os.environ)
    if store is None or store.remote is None:
        yield known
    elif store.remote.reached() is not None:
        del known[ADDRESS]
        yield known
    else:
        say_whom_it_trusts(store.remote)
        with TemporaryDirectory(prefix="hloscope-notes-", ignore_cleanup_errors=True) as notes:
            yield {**known, NOTES: notes}


def _limit(job: Job, timeout_s: float | None) -> float | None:
    """How many seconds a job may take; None for any number."""
    own = job.target.options.get("timeout_s")
    return time_limit(timeout_s if own is None else own)


class _How(NamedTuple):
    """How jobs are run, as of `run_jobs`."""

    cached: bool
    timeout_s: float | None
    executor: str | None
    environment: Mapping[str, str]


@dataclass(slots=True)
class _Lane:
    """A process that runs one job after the other.

    Attributes:
        pool: The process; a new one where it died.
        module: What it imported last.
    """

    pool: WorkerPool
    module: str | None = None


def _run_all(lanes: Sequence[_Lane], jobs: Sequence[Job], how: _How, keep: Callable[[Outcome], None]) -> None:
    """Runs jobs, each once more where it turns out to need a process to itself."""
    waiting: dict[Future[Outcome], tuple[Job, _Lane]] = {}
    again: set[str] = set()
    left, free = list(jobs), list(lanes)

    def submit(job: Job, lane: _Lane, alone: str | None = None) -> None:
        kind: _Kind = (job.root, job.slice == "attached", job.checkout, tuple(sys.path))
        environment = {**how.environment, _KIND_OF_PROCESS: repr((*kind, alone))}
        limit = _limit(job, how.timeout_s)
        latest = None if limit is None else limit + _GRACE_S
        future = lane.pool.submit_in(
            environment, latest, _run, kind, job, cached=how.cached, limit_s=limit, executor=how.executor
        )
        waiting[future] = job, lane
        lane.module = module_of(job)

    while left or waiting:
        while left and free:
            lane = free.pop()
            job = _next(left, lane.module, {other.module for other in lanes if other not in free})
            left.remove(job)
            submit(job, lane)
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            job, lane = waiting.pop(future)
            outcome = _outcome(future, job)
            if outcome.alone and job.name not in again:
                again.add(job.name)
                submit(job, lane, job.name)
            else:
                free.append(lane)
                keep(outcome)


def _next(left: Sequence[Job], imported: str | None, elsewhere: Collection[str | None]) -> Job:
    """The job for a process that imported a module: another one of it, else one of a module that no process is at."""
    modules = Counter(map(module_of, left))
    chosen = max(modules, key=lambda module: (module == imported, module not in elsewhere, modules[module]))
    return next(job for job in left if module_of(job) == chosen)


def _outcome(future: Future[Outcome], job: Job) -> Outcome:
    """What became of a job: whatever its process raised or could not begin is its own, and ends no other."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WorkerDied):
        error = HloscopeError(
            f"the process that imported and traced {job.name} died",
            where=job.target.where,
            why=how_it_ended(error.returncode),
            fix=say(
                "native code that the target imports may have crashed, or the machine ran out of memory: try it alone, "
                "with ",
                Command("analyze"),
                " or ",
                Command("check", (Option("jobs", 1),)),
            ),
        )
    elif isinstance(error, TimeoutError):
        limit = float(error.args[0]) - _GRACE_S if error.args else 0.0
        error = TimeLimitError(_doing(job), limit)
    elif not isinstance(error, HloscopeError):
        error = HloscopeError(
            f"{job.name} could not be run",
            where=job.target.where,
            why=f"{type(error).__name__}: {error}".removesuffix(": "),
            fix=say("try it alone: ", WITH_TRACEBACK),
        )
    return Outcome(job=job, error=error.message())


@cache
def _prepare(root: Path, attached: bool, checkout: Checkout | None, search_path: tuple[str, ...]) -> None:
    """Prepares a process for jobs of a `_Kind` before JAX is imported."""
    from hloscope.program.environment import DEFAULT_DEVICES, prepare_environment

    os.chdir(root)
    sys.path[:] = search_path
    if checkout is not None:
        sys.path[:] = [str(checkout.here(Path(entry or ".").resolve()) or entry) for entry in sys.path]
    sys.path.insert(0, str(root))
    prepare_environment(DEFAULT_DEVICES, attached=attached)


_settings_of: list[str] = []
"""The modules that changed JAX's settings in this process, which is to run no others after that."""


def _doing(job: Job) -> str:
    return f"importing, tracing and compiling {job.name}"


def _run(kind: _Kind, job: Job, *, cached: bool, limit_s: float | None, executor: str | None = None) -> Outcome:
    """Runs a job in this process, unless another target's module has left JAX's settings otherwise than it found them.

    Such a module, with `jax_enable_x64` for example, would make other programs of the targets that happen to come after
    it.
    """
    _prepare(*kind)
    from hloscope.program.devices import compiling_settings

    module = module_of(job)
    if any(other != module for other in _settings_of):
        return Outcome(job=job, alone=True)
    before = compiling_settings()
    from hloscope.compiler.elsewhere import compiling_on

    with ended_after(limit_s, _doing(job)), compiling_on(executor):
        outcome = run_job(job, cached=cached)
    if compiling_settings() != before:
        _settings_of.append(module)
    return outcome
