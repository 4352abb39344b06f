"""Analysing the targets of a project: one job for each target and slice, several side by side in processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hloscope.analysis.model import Analysis
from hloscope.config import ProjectConfig, TargetConfig
from hloscope.errors import DeviceCountError, HloscopeError
from hloscope.program.target import TargetFacts, make_facts

DEFAULT_DEVICES = 8
_BYTES_PER_WORKER = 2 << 30
"""What a process that holds JAX, libtpu and a compile of some size is reckoned to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One target for one slice.

    Attributes:
        name: The target's name, with its slice where it has several.
        target: What the project says of it.
        slice: The slice; None for the target's own.
        root: The project's folder.
        baseline: Its baseline file, which need not exist; None when it wants none.
    """

    name: str
    target: TargetConfig
    slice: str | None
    root: Path
    baseline: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: an analysis or an error.

    Attributes:
        job: The job.
        analysis: What was found; None when it could not be analysed.
        error: Why not.
        devices_needed: Simulated devices that the program turned out to need, when there were too few.
        seconds: How long it took.
    """

    job: Job
    analysis: Analysis | None = None
    error: str | None = None
    devices_needed: int | None = None
    seconds: float = 0.0


Told = Callable[[Outcome], None]


def jobs_of(project: ProjectConfig, names: Sequence[str]) -> tuple[Job, ...]:
    """The jobs of a project's targets, or of those named.

    Raises:
        ConfigError: There is no target of such a name.
    """
    jobs = []
    for target in project.named(tuple(names)):
        for chosen in target.slices:
            name = target.name if len(target.slices) == 1 else f"{target.name}@{chosen}"
            path = project.baselines / f"{_file_name(name)}.txt" if target.baseline else None
            jobs.append(Job(name=name, target=target, slice=chosen, root=project.root, baseline=path))
    return tuple(jobs)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.@-]", "-", name.replace("*", "x"))


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
    """Runs jobs in a pool; where a process dies, what is left runs each in a pool of its own, to tell whose it was."""
    left = {job.name: job for job in jobs}
    context = multiprocessing.get_context("spawn")
    start = (jobs[0].root, devices, any(job.slice == "attached" for job in jobs))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=start) as pool:
        try:
            futures: list[Future[Outcome]] = [pool.submit(run_job, job, cached=cached) for job in jobs]
            for future in as_completed(futures):
                outcome = future.result()
                del left[outcome.job.name]
                yield outcome
        except BrokenProcessPool:
            pass
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


def _start(root: Path, devices: int, attached: bool) -> None:
    """Prepares a process before JAX is imported; what user code prints is not the report."""
    from hloscope.program.devices import prepare_environment

    os.dup2(2, 1)
    os.chdir(root)
    sys.path.insert(0, str(root))
    prepare_environment(devices, attached=attached)


def run_job(job: Job, *, cached: bool) -> Outcome:
    """Analyses one target in this process."""
    begun = time.monotonic()
    try:
        analysis = _analysis(job, cached=cached)
    except DeviceCountError as error:
        return Outcome(job=job, error=str(error), devices_needed=error.needed)
    except HloscopeError as error:
        return Outcome(job=job, error=str(error), seconds=time.monotonic() - begun)
    except Exception as error:
        failed = HloscopeError(
            f"hloscope itself failed: {type(error).__name__}: {error}",
            where=job.target.where,
            fix="run hloscope analyze --debug on this target and report the traceback",
        )
        return Outcome(job=job, error=str(failed), seconds=time.monotonic() - begun)
    return Outcome(job=job, analysis=analysis, seconds=time.monotonic() - begun)


def _analysis(job: Job, *, cached: bool) -> Analysis:
    from hloscope.api.analyzing import analyze_text, capture_target
    from hloscope.api.joining import analysis_of
    from hloscope.program.files import read_hlo
    from hloscope.store import default_store

    target = job.target
    if target.hlo is not None:
        path = job.root / target.hlo
        if not path.exists():
            raise HloscopeError(f"there is no file {target.hlo}", where=target.where)
        facts = make_facts(mesh=target.mesh, dcn=target.dcn)
        return analyze_text(read_hlo(path), name=target.hlo, mesh=facts.mesh, slice=job.slice, dcn=facts.dcn)
    name = target.function or ""
    store = default_store() if cached else None
    return analysis_of(capture_target(name, facts_of(job), store=store), name)


def facts_of(job: Job) -> TargetFacts:
    """What the project says of a target, as facts.

    Raises:
        NotationError: One of them is not written as it must be.
    """
    target = job.target
    given: dict[str, Any] = {
        "mesh": target.mesh,
        "axis_types": target.axis_types,
        "slice": job.slice,
        "dcn": target.dcn,
        "args": target.args,
        "kwargs": target.kwargs,
        "out": None if target.out is None else list(target.out),
        "static": target.static,
        "donate": target.donate,
        "dims": target.dims,
        "compiler_options": target.compiler_options,
        "chip_overrides": target.chip_overrides or (),
    }
    return make_facts(**given)
