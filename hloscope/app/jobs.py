"""The jobs of a project, one for each target and slice, and the parallel processes that run them.

A target that hangs or dies does not stop the others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from hloscope.app.config import ConfigError, ProjectConfig, TargetConfig
from hloscope.base.errors import (
    WITH_TRACEBACK,
    Command,
    HloscopeError,
    ImportedTwiceError,
    NotationError,
    Option,
    TargetError,
    TimeLimitError,
    say,
)
from hloscope.base.store import ADDRESS, NOTES, compile_sources, open_default_store, warn_without_key
from hloscope.base.units import pluralize
from hloscope.compile.client import choose_time_limit, count_useful_workers, describe_exit
from hloscope.compile.loading import limit_time
from hloscope.compile.pool import WorkerDied, WorkerPool
from hloscope.compile.slots import BYTES_PER_TRACER, BYTES_PER_WORKER
from hloscope.compile.target import make_facts
from hloscope.model import Analysis
from hloscope.model.capture import Evidence
from hloscope.model.vocabulary import CompileStage

if TYPE_CHECKING:
    from hloscope.app.requests import FrontDoor, Text
    from hloscope.judge.model import Contract
    from hloscope.judge.selection import RuleSelection


T = TypeVar("T")


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
        return there if os.path.exists(there) else None


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
        wanted: The stage of the compile that is enough if that decides on the contract and the baseline.
        contract: The contract that it is held against, if the stage is `scheduled`.
    """

    name: str
    target: TargetConfig
    slice: str | None
    root: Path
    baseline: Path | None
    config: Path | None = None
    checkout: Checkout | None = None
    keeps_program: bool = False
    wanted: CompileStage = CompileStage.COMPILED
    contract: Contract | None = None

    @property
    def called(self) -> tuple[str, ...]:
        """The names that select it: its own, its target's, and that with its slice."""
        return self.name, self.target.name, f"{self.target.name}@{self.slice}"


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


def list_jobs(project: ProjectConfig, names: Sequence[str]) -> tuple[Job, ...]:
    """Returns the jobs of a project's targets, or of the named ones; `NAME@SLICE` selects one slice of several.

    Raises:
        ConfigError: A target does not exist, or two targets share a name or a baseline file.
    """
    jobs: list[Job] = []
    known = {target.name for target in project.targets}
    for target in project.named(tuple(name if name in known else name.partition("@")[0] for name in names)):
        for chosen in target.slices:
            name = target.name if len(target.slices) == 1 else f"{target.name}@{chosen}"
            path = make_baseline_path(project, name) if target.baseline else None
            jobs.append(
                Job(name=name, target=target, slice=chosen, root=project.root, baseline=path, config=project.path)
            )
    _refuse_twins(jobs)
    for name in names:
        if not any(name in job.called for job in jobs):
            own, _, other = name.partition("@")
            has = ", ".join(job.slice for job in jobs if job.target.name == own and job.slice is not None)
            raise ConfigError(
                f"the target {own} has no slice {other!r}",
                where=str(project.path),
                fix=f"it has {has}" if has else f"write {own}",
            )
    return tuple(job for job in jobs if not names or any(name in job.called for name in names))


def make_baseline_path(project: ProjectConfig, name: str) -> Path:
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
        """Parses `1/4`.

        Raises:
            NotationError: The text is not a shard.
        """
        match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
        found = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= found.number <= found.total:
            fix = f"use 1/{found.total} to {found.total}/{found.total}" if found.total else "write 1/4 to 4/4"
            raise NotationError(f"{text!r} is not a shard", fix=fix)
        return found

    def of(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """Its jobs, in order: as many as in any other shard, with those of one module in as few shards as possible."""
        together = sorted(jobs, key=find_job_module)
        first, end = (len(jobs) * number // self.total for number in (self.number - 1, self.number))
        own = {job.name for job in together[first:end]}
        return tuple(job for job in jobs if job.name in own)

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


def list_shard_jobs(project: ProjectConfig, names: Sequence[str], shard: Shard | None) -> tuple[Job, ...]:
    """The jobs of `list_jobs`, or a shard of them.

    Raises:
        ConfigError: As for `list_jobs`; or there are more shards than jobs, so that some would check nothing.
    """
    jobs = list_jobs(project, names)
    if shard is None:
        return jobs
    if shard.total > len(jobs):
        what = f"{pluralize(shard.total, 'shard')} of {pluralize(len(jobs), 'target')} would check nothing in some"
        raise ConfigError(what, where=str(project.path), fix=f"make it {pluralize(len(jobs), 'shard')} or fewer")
    return shard.of(jobs)


def find_job_module(job: Job) -> str:
    """The module or file of a job's function; empty for HLO text."""
    return (job.target.function or "").rpartition(":")[0]


def run_job(job: Job, *, cached: bool) -> Outcome:
    """Analyzes one target in this process."""
    begun, analysis, failed = time.monotonic(), None, None
    compile_sources.clear()
    try:
        analysis = _analyze_job(job, cached=cached)
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
        compile_from=next(iter(compile_sources), None),
        evidence=analysis.evidence if analysis is not None and job.keeps_program else None,
    )


def _analyze_job(job: Job, *, cached: bool) -> Analysis:
    from hloscope.analysis.model_parts import skip_helpers
    from hloscope.app.analyzing import analyze_function, analyze_text_target
    from hloscope.app.config import find_helpers, load_project_plugins
    from hloscope.compile.client import start_worker_ahead
    from hloscope.compile.functions import Function
    from hloscope.judge.checks import is_scheduled_enough

    load_project_plugins(job.root, config=job.config)
    if job.target.hlo is not None:
        found = analyze_text_target(*_read_job_text(job))
    else:
        facts = make_facts(**{**job.target.options, "slice": job.slice, "timeout_s": 0})  # the whole job has a limit
        store = open_default_store() if cached else None
        start_worker_ahead(job.target.function or "", job.slice, store)
        function = Function(
            target=job.target.function or "",
            facts=facts,
            store=store,
            when_compiled=lambda _: _check_origin(job),
            wanted=job.wanted,
            is_enough=partial(is_scheduled_enough, contract=job.contract, baseline=job.baseline),
        )
        found = analyze_function(function)
    return skip_helpers(found, find_helpers(job.root, named=job.config))


def _read_job_text(job: Job) -> tuple[Text, RuleSelection]:
    """The HLO text of a target, from which nothing is guessed, and the rules that run on it."""
    from hloscope.app.requests import Text, read_hlo_text
    from hloscope.compile.hlo_files import split_module
    from hloscope.judge.selection import make_selection

    target, path = job.target, job.root / (job.target.hlo or "")
    if not os.path.exists(split_module(path)[0]):
        raise HloscopeError(f"there is no file {target.hlo}", where=target.where)
    root = None if target.source_root is None else job.root / target.source_root
    said = {**target.options, "slice": job.slice}
    of_rules = {name: said.pop(name) for name in ("allow", "rule_options") if name in said}
    text = Text(name=target.hlo or "", text=read_hlo_text(path), facts=make_facts(**said), is_foreign=False)
    return text, make_selection(source_root=root, **of_rules)


def _check_origin(job: Job) -> None:
    """Refuses a target of an older state that imports modules of the working tree, as with an editable install."""
    if job.checkout is None:
        return
    from hloscope.compile.importing import find_imported_files

    elsewhere = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    for name, file in (elsewhere | find_imported_files()).items():
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


# ---- processes


def run_over_targets(
    use_case: Callable[..., T],
    project: ProjectConfig,
    names: Sequence[str],
    *,
    door: FrontDoor,
    line: Callable[[Any], str] = lambda _: "",
    asks: Callable[[Any], object] | None = None,
    **how: Any,
) -> T:
    """Runs `check` or `accept` over a project's targets, and displays the progress.

    Args:
        use_case: Called with the project, the names, `on_done` and everything in `how`.
        project: The targets file.
        names: Names of the targets; all if empty.
        door: The front door, which prints the line of each target as soon as it is done.
        line: The line of a target; empty for none.
        asks: Asks the user about a target, while nothing else is displayed.
        how: As for `run_jobs`, and further arguments of the use case.
    """
    with door.quiet(), door.progress() as stage:

        def on_done(done: Any) -> None:
            stage(f"compiling; {done.name} is done")
            if text := line(done):
                door.say(stage, text)

        def asks_alone(what: Any) -> object:
            with stage.hidden():
                return None if asks is None else asks(what)

        stage("compiling")
        if asks is not None:
            how["asks"] = asks_alone
        return use_case(project, names, **how, on_done=on_done)


_KIND_OF_PROCESS = "HLOSCOPE_WORKER_FOR"
"""The environment variable for the kind of a process; a process is reused only for jobs of the same kind."""

_GRACE_S = 2.0
"""The delay before a process is killed that should have ended its job itself and reported its position."""


_Kind = tuple[Path, bool, Checkout | None, tuple[str, ...]]
"""The kind of jobs that a process is prepared for, as the arguments of `_prepare`."""


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
            with limit_time(_choose_limit(job, timeout_s), f"analyzing {job.name}"):
                outcome = run_job(job, cached=cached)
            keep(outcome)
    compiled = [job for job in jobs if job.target.function is not None]
    if compiled:
        count = workers or count_useful_workers(len(compiled), each_bytes=BYTES_PER_TRACER + BYTES_PER_WORKER)
        with _make_environment(cached=cached) as environment, _start_lanes(min(count, len(compiled))) as lanes:
            _run_all(lanes, compiled, _RunOptions(cached, timeout_s, executor, environment), keep)
    return tuple(outcomes[job.name] for job in jobs)


@contextmanager
def _start_lanes(count: int) -> Iterator[list[_Lane]]:
    """Starts processes, and ends all of them with the block."""
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
def _make_environment(*, cached: bool) -> Iterator[dict[str, str]]:
    """The environment of the processes, through which they share what one of them finds out about a shared cache.

    Raises:
        HloscopeError: The cache's settings are invalid.
    """
    store = open_default_store() if cached else None
    known = dict(os.environ)
    if store is None or store.remote is None:
        yield known
    elif store.remote.reached() is not None:
        del known[ADDRESS]
        yield known
    else:
        warn_without_key(store.remote)
        with TemporaryDirectory(prefix="hloscope-notes-", ignore_cleanup_errors=True) as notes:
            yield {**known, NOTES: notes}


def _choose_limit(job: Job, timeout_s: float | None) -> float | None:
    """The time limit of a job in seconds; None for no limit."""
    own = job.target.options.get("timeout_s")
    return choose_time_limit(timeout_s if own is None else own)


class _RunOptions(NamedTuple):
    """The options of a run, as for `run_jobs`."""

    cached: bool
    timeout_s: float | None
    executor: str | None
    environment: Mapping[str, str]


@dataclass(slots=True)
class _Lane:
    """A process that runs one job after the other.

    Attributes:
        pool: The process; replaced if it dies.
        module: The module that it imported last.
    """

    pool: WorkerPool
    module: str | None = None


def _run_all(lanes: Sequence[_Lane], jobs: Sequence[Job], how: _RunOptions, keep: Callable[[Outcome], None]) -> None:
    """Runs jobs, and repeats in a separate process those that turn out to need one."""
    waiting: dict[Future[Outcome], tuple[Job, _Lane]] = {}
    again: set[str] = set()
    left, free = list(jobs), list(lanes)

    def submit(job: Job, lane: _Lane, alone: str | None = None) -> None:
        kind: _Kind = (job.root, job.slice == "attached", job.checkout, tuple(sys.path))
        environment = {**how.environment, _KIND_OF_PROCESS: repr((*kind, alone))}
        limit = _choose_limit(job, how.timeout_s)
        latest = None if limit is None else limit + _GRACE_S
        future = lane.pool.submit_in(
            environment, latest, _run_in_worker, kind, job, cached=how.cached, limit_s=limit, executor=how.executor
        )
        waiting[future] = job, lane
        lane.module = find_job_module(job)

    while left or waiting:
        while left and free:
            lane = free.pop()
            job = _choose_next_job(left, lane.module, {other.module for other in lanes if other not in free})
            left.remove(job)
            submit(job, lane)
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            job, lane = waiting.pop(future)
            outcome = _take_outcome(future, job)
            if outcome.alone and job.name not in again:
                again.add(job.name)
                submit(job, lane, job.name)
            else:
                free.append(lane)
                keep(outcome)


def _choose_next_job(left: Sequence[Job], imported: str | None, elsewhere: Collection[str | None]) -> Job:
    """The next job for a process: of the module that it has imported, or else of one that no other process runs."""
    modules = Counter(map(find_job_module, left))
    chosen = max(modules, key=lambda module: (module == imported, module not in elsewhere, modules[module]))
    return next(job for job in left if find_job_module(job) == chosen)


def _take_outcome(future: Future[Outcome], job: Job) -> Outcome:
    """The outcome of a job; an error of its process belongs to this job alone, and ends no other."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WorkerDied):
        error = HloscopeError(
            f"the process that imported and traced {job.name} died",
            where=job.target.where,
            why=describe_exit(error.returncode),
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
        error = TimeLimitError(_describe_work(job), limit)
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
    """Prepares a process for jobs of a `_Kind`, and imports JAX."""
    from hloscope.compile.environment import DEFAULT_DEVICES, import_jax, prepare_environment

    os.chdir(root)
    sys.path[:] = search_path
    if checkout is not None:
        sys.path[:] = [str(checkout.here(Path(entry or ".").resolve()) or entry) for entry in sys.path]
    sys.path.insert(0, str(root))
    prepare_environment(DEFAULT_DEVICES, attached=attached)
    import_jax()


_modules_with_settings: list[str] = []
"""The modules that changed JAX's settings in this process, which must run no others afterwards."""


def _describe_work(job: Job) -> str:
    return f"importing, tracing and compiling {job.name}"


def _run_in_worker(
    kind: _Kind, job: Job, *, cached: bool, limit_s: float | None, executor: str | None = None
) -> Outcome:
    """Runs a job in this process, unless another target's module has changed JAX's settings.

    Such a module, for example with `jax_enable_x64`, would change the programs of the targets that run after it.
    """
    _prepare(*kind)
    from hloscope.compile.devices import read_compile_settings

    module = find_job_module(job)
    if any(other != module for other in _modules_with_settings):
        return Outcome(job=job, alone=True)
    before = read_compile_settings()
    from hloscope.compile.executors import compile_on

    with limit_time(limit_s, _describe_work(job)), compile_on(executor):
        outcome = run_job(job, cached=cached)
    if read_compile_settings() != before:
        _modules_with_settings.append(module)
    return outcome


# ---- the repository of a project


def find_commit(folder: Path) -> str | None:
    """Returns the commit checked out in a folder's repository; None if there is none or it is unknown."""
    try:
        return run_git("rev-parse", "HEAD", cwd=folder).decode().strip()
    except HloscopeError:
        return None


def run_git(
    *arguments: str,
    cwd: Path,
    what: str | None = None,
    fix: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Returns the output of a git command.

    Args:
        arguments: The command.
        cwd: The folder to run it in.
        what: The problem that a failure means.
        fix: The fix for that problem.
        environment: Variables on top of this process's.

    Raises:
        HloscopeError: The command fails, or git is not installed.
    """
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, check=False
        )
    except OSError as error:
        raise HloscopeError("git cannot be run", why=str(error)) from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip() or None
        raise HloscopeError(what or f"git {arguments[0]} failed in {cwd}", why=why, fix=fix)
    return done.stdout
