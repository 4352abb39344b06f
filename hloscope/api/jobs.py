"""Analysing the targets of a project: one job for each target and slice."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloscope.analysis.model import Analysis
from hloscope.config import ConfigError, ProjectConfig, TargetConfig
from hloscope.errors import HloscopeError, ImportedTwiceError, TargetError
from hloscope.program.target import TargetFacts, make_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """An older state of a repository, unpacked beside the working tree.

    Attributes:
        revision: What the user called it.
        folder: Where it is unpacked.
        working_tree: The repository as it is now.
    """

    revision: str
    folder: Path
    working_tree: Path

    def here(self, path: Path) -> Path | None:
        """Where the unpacked state has a file of the working tree; None when it has no such file."""
        if not path.is_relative_to(self.working_tree) or path.is_relative_to(self.folder):
            return None
        there = self.folder / path.relative_to(self.working_tree)
        return there if there.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One target for one slice.

    Attributes:
        name: The target's name, with its slice where it has several.
        target: What the project says of it.
        slice: The slice; None for the target's own.
        root: The project's folder.
        baseline: Its baseline file, which need not exist; None when it wants none.
        checkout: The older state of the repository that it is of; None for the working tree.
    """

    name: str
    target: TargetConfig
    slice: str | None
    root: Path
    baseline: Path | None
    checkout: Checkout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: an analysis or an error.

    Attributes:
        job: The job.
        analysis: What was found; None when it could not be analysed.
        error: Why not.
        alone: Whether it has to be run again in a process of its own, because of what another target did to this one.
        seconds: How long it took.
    """

    job: Job
    analysis: Analysis | None = None
    error: str | None = None
    alone: bool = False
    seconds: float = 0.0


def jobs_of(project: ProjectConfig, names: Sequence[str]) -> tuple[Job, ...]:
    """The jobs of a project's targets, or of those named, `NAME@SLICE` for one slice of several.

    Raises:
        ConfigError: There is no target of such a name, or two have one name or one baseline file.
    """
    jobs: list[Job] = []
    known = {target.name for target in project.targets}
    for target in project.named(tuple(name if name in known else name.partition("@")[0] for name in names)):
        for chosen in target.slices:
            name = target.name if len(target.slices) == 1 else f"{target.name}@{chosen}"
            path = project.baselines / f"{_file_name(name)}.txt" if target.baseline else None
            jobs.append(Job(name=name, target=target, slice=chosen, root=project.root, baseline=path))
    _refuse_twins(jobs)
    for name in names:
        if not any(name in (job.name, job.target.name) for job in jobs):
            fix = f"use one of {', '.join(job.name for job in jobs)}"
            raise ConfigError(f"there is no target {name!r}", where=str(project.path), fix=fix)
    return tuple(job for job in jobs if not names or job.name in names or job.target.name in names)


def _refuse_twins(jobs: Sequence[Job]) -> None:
    named: dict[str | Path, Job] = {}
    for job in jobs:
        for key in (job.name, job.baseline):
            other = None if key is None else named.setdefault(key, job)
            if other is not None and other is not job:
                shared = "name" if key == job.name else f"baseline file {job.baseline and job.baseline.name}"
                raise ConfigError(
                    f"the targets {other.name} and {job.name} have one {shared}",
                    where=job.target.where,
                    fix="give one of them another name",
                )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.@-]", "-", name.replace("*", "x"))


def run_job(job: Job, *, cached: bool) -> Outcome:
    """Analyses one target in this process."""
    begun = time.monotonic()
    try:
        analysis = _analysis(job, cached=cached)
    except HloscopeError as error:
        alone = isinstance(error, ImportedTwiceError)
        return Outcome(job=job, error=str(error), alone=alone, seconds=time.monotonic() - begun)
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
    from hloscope.api.reading import hlo_text
    from hloscope.program.files import split_module
    from hloscope.rules.selection import make_selection
    from hloscope.store import default_store

    target = job.target
    if target.hlo is not None:
        path = job.root / target.hlo
        if not Path(split_module(path)[0]).exists():
            raise HloscopeError(f"there is no file {target.hlo}", where=target.where)
        root = None if target.source_root is None else job.root / target.source_root
        beside = dict(target.options)
        of_rules = {name: beside.pop(name) for name in ("allow", "rule_options") if name in beside}
        judging = make_selection(source_root=root, **of_rules)
        return analyze_text(hlo_text(path), name=target.hlo, slice=job.slice, judging=judging, **beside)
    name = target.function or ""
    store = default_store() if cached else None
    captured = capture_target(name, facts_of(job), store=store)
    _check_origin(job)
    return analysis_of(captured, name)


def _check_origin(job: Job) -> None:
    """Refuses a target of an older state that imports the working tree, as an editable install makes it do."""
    if job.checkout is None:
        return
    from hloscope.program.importing import imported_files

    elsewhere = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    for name, file in (elsewhere | imported_files()).items():
        if file is None or name in ("__main__", "__mp_main__") or name.partition(".")[0] == "hloscope":
            continue
        if job.checkout.here(Path(file).resolve()) is not None:
            raise TargetError(
                f"{job.target.function} imports {name} as it is now, not as it was in the older revision",
                where=file,
                why="it is found where it is installed, or by an absolute path, and not below the project's folder",
                fix="name the target by its file, such as src/model.py:step, or compare two baselines",
            )


def facts_of(job: Job) -> TargetFacts:
    """What the project says of a target, as facts.

    Raises:
        NotationError: One of them is not written as it must be.
    """
    given: dict[str, Any] = {**job.target.options, "slice": job.slice, "timeout_s": 0}  # the whole job has a limit
    return make_facts(**given)
