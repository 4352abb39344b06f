"""Several jobs side by side, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from math import prod
from pathlib import Path

from hloscope.api.jobs import Checkout, Job, Outcome, facts_of, run_job
from hloscope.errors import HloscopeError

DEFAULT_DEVICES = 8
_BYTES_PER_WORKER = 2 << 30
"""What a process that holds JAX, libtpu and a compile of some size is reckoned to take."""

Told = Callable[[Outcome], None]


def run_jobs(
    jobs: Sequence[Job], *, cached: bool = True, workers: int | None = None, told: Told = lambda _: None
) -> tuple[Outcome, ...]:
    """Analyses targets, in processes of their own where they are compiled; one that fails stops no other.

    JAX fixes the number of simulated devices of a process, and Python imports a module once, so only jobs of one number
    of devices and one folder share processes.

    Args:
        jobs: What to analyse.
        cached: Whether compiles are kept and taken from the cache.
        workers: Processes at once; by default as many as cores and free memory allow.
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
    waiting = {job.name: (job, _devices(job)) for job in jobs if job.target.function is not None}
    tried: set[tuple[str, int]] = set()
    while waiting:
        first, count = next(iter(waiting.values()))
        alike = [job for job, needed in waiting.values() if (needed, job.root) == (count, first.root)]
        for outcome in _in_processes(alike, count, cached, workers or _workers(len(alike))):
            again, key = outcome.devices_needed, (outcome.job.name, outcome.devices_needed or 0)
            if again is not None and key not in tried:
                tried.add(key)
                waiting[outcome.job.name] = (outcome.job, again)
            else:
                del waiting[outcome.job.name]
                keep(outcome)
    return tuple(outcomes[job.name] for job in jobs)


def _devices(job: Job) -> int:
    """Simulated devices that a job is started with, as far as its configuration tells."""
    try:
        facts = facts_of(job)
        if facts.mesh:
            return prod(facts.mesh.values())
        from hloscope.hardware.slices import parse_slice

        chosen = None if facts.slice is None else parse_slice(facts.slice)
        return DEFAULT_DEVICES if chosen is None or chosen.is_attached else chosen.device_count
    except HloscopeError:
        return DEFAULT_DEVICES  # the job itself will say what is wrong


def _workers(jobs: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free = _BYTES_PER_WORKER
    return max(1, min(jobs, cores, free // _BYTES_PER_WORKER))


def _in_processes(jobs: Sequence[Job], devices: int, cached: bool, workers: int) -> Iterator[Outcome]:
    """Runs jobs in a pool, and what is left over each in a pool of its own.

    That is what a process did not come back from, to tell whose fault it was, and what has to be alone in its process.
    """
    left = {job.name: job for job in jobs}
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    start = (jobs[0].root, devices, any(job.slice == "attached" for job in jobs), jobs[0].checkout)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=start) as pool:
        try:
            futures: list[Future[Outcome]] = [pool.submit(_run, job, cached=cached) for job in jobs]
            for future in as_completed(futures):
                outcome = future.result()
                if not outcome.alone:
                    del left[outcome.job.name]
                    yield outcome
        except BrokenProcessPool:
            pass
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # or the pool would wait for a target that hangs
            raise
    for job in left.values():
        if len(jobs) > 1:
            yield from _in_processes([job], devices, cached, 1)
        else:
            yield Outcome(job=job, error=str(_died(job)))


def _died(job: Job) -> HloscopeError:
    return HloscopeError(
        f"the process that compiled {job.name} died",
        where=job.target.where,
        why="the compiler aborted, or the machine ran out of memory",
        fix="try it alone: hloscope analyze, or hloscope check --jobs 1",
    )


def _start(root: Path, devices: int, attached: bool, checkout: Checkout | None) -> None:
    """Prepares a process before JAX is imported; what user code prints is not the report."""
    from hloscope.program.devices import prepare_environment

    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)
    os.chdir(root)
    if checkout is not None:
        sys.path[:] = [str(checkout.here(Path(entry or ".").resolve()) or entry) for entry in sys.path]
    sys.path.insert(0, str(root))
    prepare_environment(devices, attached=attached)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, were it killed: nobody wants what is compiled here."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_settings_of: list[str] = []
"""The modules that changed JAX's settings in this process, which is to run no others after that."""


def _run(job: Job, *, cached: bool) -> Outcome:
    """Runs a job in this process, unless another target's module has left JAX's settings otherwise than it found them.

    Such a module, with `jax_enable_x64` for example, would make other programs of the targets that happen to come after
    it.
    """
    from hloscope.program.user_settings import compiling_settings

    module = (job.target.function or "").rpartition(":")[0]
    if any(other != module for other in _settings_of):
        return Outcome(job=job, alone=True)
    before = compiling_settings()
    outcome = run_job(job, cached=cached)
    if compiling_settings() != before:
        _settings_of.append(module)
    return outcome
