"""The jobs of a project, one for each target and slice."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.evidence import Evidence
from hloscope.config import ConfigError, ProjectConfig, TargetConfig
from hloscope.errors import HloscopeError, ImportedTwiceError, NotationError, TargetError
from hloscope.messages import WITH_TRACEBACK, say
from hloscope.program.target import make_facts
from hloscope.store import default_store, sources
from hloscope.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """An older state of a repository, extracted to its own folder.

    Attributes:
        revision: The revision as the user named it.
        folder: The folder it is extracted to.
        working_tree: The repository as it is now.
    """

    revision: str
    folder: Path
    working_tree: Path

    def here(self, path: Path) -> Path | None:
        """Returns the path of a working tree's file in this checkout; None if it has no such file."""
        if not path.is_relative_to(self.working_tree) or path.is_relative_to(self.folder):
            return None
        there = self.folder / path.relative_to(self.working_tree)
        return there if there.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One target for one slice.

    Attributes:
        name: Name of the target, with its slice if it has several.
        target: The target's entry in the targets file.
        slice: The slice; None for the target's own.
        root: The project's folder.
        baseline: Its baseline file, which may not exist; None if it has none.
        config: The targets file, which names plug-ins; None for the one nearest to the root, if any.
        checkout: The older state of the repository to use; None for the working tree.
        keeps_program: Whether to return the compiled program with its analysis.
    """

    name: str
    target: TargetConfig
    slice: str | None
    root: Path
    baseline: Path | None
    config: Path | None = None
    checkout: Checkout | None = None
    keeps_program: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a job: an analysis or an error.

    Attributes:
        job: The job.
        analysis: The analysis; None if it failed.
        error: The error; None if the job succeeded.
        alone: Whether to run it again in a separate process, because another target changed the state of this one.
        seconds: Duration of the job.
        compile_from: Source of the compiled program: `cache`, `shared cache` or `compiler`; None if nothing was
            compiled.
        evidence: The compiled program behind the analysis, if the job keeps it.
    """

    job: Job
    analysis: Analysis | None = None
    error: str | None = None
    alone: bool = False
    seconds: float = 0.0
    compile_from: str | None = None
    evidence: Evidence | None = None


def jobs_of(project: ProjectConfig, names: Sequence[str]) -> tuple[Job, ...]:
    """Returns the jobs of a project's targets, or of the named ones; `NAME@SLICE` selects one slice of several.

    Raises:
        ConfigError: A target does not exist, or two targets share a name or a baseline file.
    """
    jobs: list[Job] = []
    known = {target.name for target in project.targets}
    for target in project.named(tuple(name if name in known else name.partition("@")[0] for name in names)):
        for chosen in target.slices:
            name = target.name if len(target.slices) == 1 else f"{target.name}@{chosen}"
            path = baseline_file(project, name) if target.baseline else None
            jobs.append(
                Job(name=name, target=target, slice=chosen, root=project.root, baseline=path, config=project.path)
            )
    _refuse_twins(jobs)
    for name in names:
        if not any(name in (job.name, job.target.name) for job in jobs):
            fix = f"use one of {', '.join(job.name for job in jobs)}"
            raise ConfigError(f"there is no target {name!r}", where=str(project.path), fix=fix)
    return tuple(job for job in jobs if not names or job.name in names or job.target.name in names)


def baseline_file(project: ProjectConfig, name: str) -> Path:
    """The baseline file of a target, which need not exist."""
    file = re.sub(r"[^\w.@-]", "-", name.replace("*", "x"))
    return project.baselines / f"{file}.txt"


def _refuse_twins(jobs: Sequence[Job]) -> None:
    named: dict[str | Path, Job] = {}
    for job in jobs:
        for key in (job.name, job.baseline):
            other = None if key is None else named.setdefault(key, job)
            if other is not None and other is not job:
                shared = "name" if key == job.name else f"baseline file {job.baseline and job.baseline.name}"
                raise ConfigError(
                    f"the targets {other.name} and {job.name} have the same {shared}",
                    where=job.target.where,
                    fix="rename one of them",
                )


class Shard(NamedTuple):
    """A part of a check: the `number`th, from 1, of `total`."""

    number: int
    total: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """`1/4`.

        Raises:
            NotationError: It is no such thing.
        """
        match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
        found = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= found.number <= found.total:
            fix = f"use 1/{found.total} to {found.total}/{found.total}" if found.total else "write 1/4 to 4/4"
            raise NotationError(f"{text!r} is not a shard", fix=fix)
        return found

    def of(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """Its jobs, in their order: as many as any other shard's, those of one module in as few shards as possible."""
        together = sorted(jobs, key=module_of)
        first, end = (len(jobs) * number // self.total for number in (self.number - 1, self.number))
        own = {job.name for job in together[first:end]}
        return tuple(job for job in jobs if job.name in own)

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


def jobs_of_part(project: ProjectConfig, names: Sequence[str], shard: Shard | None) -> tuple[Job, ...]:
    """`jobs_of`, or a shard of them.

    Raises:
        ConfigError: As `jobs_of`; or there are more shards than jobs, so that some would check nothing.
    """
    jobs = jobs_of(project, names)
    if shard is None:
        return jobs
    if shard.total > len(jobs):
        what = f"{plural(shard.total, 'shard')} of {plural(len(jobs), 'target')} would check nothing in some"
        raise ConfigError(what, where=str(project.path), fix=f"make it {plural(len(jobs), 'shard')} or fewer")
    return shard.of(jobs)


def module_of(job: Job) -> str:
    """The module or file of a job's function; empty for HLO text."""
    return (job.target.function or "").rpartition(":")[0]


def run_job(job: Job, *, cached: bool) -> Outcome:
    """Analyzes one target in this process."""
    begun, analysis, failed = time.monotonic(), None, None
    sources.clear()
    try:
        analysis = _analysis(job, cached=cached)
    except HloscopeError as error:
        failed = error
    except Exception as error:
        failed = HloscopeError(
            f"hloscope itself failed: {type(error).__name__}: {error}",
            where=job.target.where,
            fix=say("run ", WITH_TRACEBACK, " on this target and report the traceback"),
        )
    return Outcome(
        job=job,
        analysis=analysis,
        error=None if failed is None else failed.message(),
        alone=isinstance(failed, ImportedTwiceError),
        seconds=time.monotonic() - begun,
        compile_from=next(iter(sources), None),
        evidence=analysis.evidence if analysis is not None and job.keeps_program else None,
    )


def _analysis(job: Job, *, cached: bool) -> Analysis:
    from hloscope.analysis.paths import with_helpers
    from hloscope.config import find_helpers

    return with_helpers(_analysis_of(job, cached=cached), find_helpers(job.root, named=job.config))


def _analysis_of(job: Job, *, cached: bool) -> Analysis:
    from hloscope.api.analyzing import analyze_function, analyze_hlo
    from hloscope.api.own_rules import load_project_plugins
    from hloscope.api.texts import hlo_text
    from hloscope.program.files import split_module
    from hloscope.rules.selection import make_selection

    target = job.target
    load_project_plugins(job.root, config=job.config)
    if target.hlo is not None:
        path = job.root / target.hlo
        if not Path(split_module(path)[0]).exists():
            raise HloscopeError(f"there is no file {target.hlo}", where=target.where)
        root = None if target.source_root is None else job.root / target.source_root
        beside = dict(target.options)
        of_rules = {name: beside.pop(name) for name in ("allow", "rule_options") if name in beside}
        judging = make_selection(source_root=root, **of_rules)
        return analyze_hlo(hlo_text(path), name=target.hlo, slice=job.slice, judging=judging, **beside)
    store = default_store() if cached else None
    facts = make_facts(**{**target.options, "slice": job.slice, "timeout_s": 0})  # the whole job has a limit
    return analyze_function(target.function or "", facts, store=store, when_compiled=lambda _: _check_origin(job))


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
                why="it is imported from where it is installed, or from an absolute path, not from below the project's "
                "folder",
                fix="name the target by its file, such as src/model.py:step, or compare two baselines",
            )
