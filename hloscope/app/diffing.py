"""`diff`: compares what two programs move, given in any form."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from hloscope.analysis.totals import label_programs, remove_guesses
from hloscope.app.analyses import analyze
from hloscope.app.analyzing import analyze_hlo
from hloscope.app.config import ConfigError, ConfigMistakesError, ProjectConfig, TargetConfig, find_project
from hloscope.app.jobs import Checkout, Job, list_jobs, run_git, run_jobs
from hloscope.app.requests import (
    PYTHON,
    FrontDoor,
    Target,
    check_target,
    is_compiled,
    parse_stage,
    read_hlo_text,
    read_report,
    refuse_beside_analysis,
)
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import HloscopeError, Option, TargetError, say
from hloscope.compile.hlo_files import is_hlo_target, split_module
from hloscope.compile.target import OPTIONS_BY_NAME, TargetOptions, accept_options, make_facts
from hloscope.judge.baseline_files import is_baseline, read_baselines
from hloscope.judge.baselines import Baseline, make_baseline, to_collectives
from hloscope.judge.changes import Judgement
from hloscope.judge.judging import judge_two
from hloscope.judge.matching import match
from hloscope.model import Analysis, Collective
from hloscope.model.capture import attach_evidence
from hloscope.model.vocabulary import Bound, CompileStage
from hloscope.report.diffs import DiffDocument, TwoTotals, attach_sides, make_listed_change


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two compared programs.

    Attributes:
        name: Name as given by the user.
        baseline: Its communication, memory and time, as a baseline.
        analysis: Its analysis; None if only its baseline is known.
        root: The folder of its project; None for files.
    """

    name: str
    baseline: Baseline
    analysis: Analysis | None = None
    root: Path | None = None

    @classmethod
    def of(cls, name: str, analysis: Analysis, *, root: Path | None = None) -> Side:
        """The side of an analyzed program, without guessed facts, which cannot be compared."""
        known = remove_guesses(analysis, keep_estimates=True)
        baseline = make_baseline(known, root=root, keep_estimates=True)
        return cls(name=name, baseline=baseline, analysis=known, root=root)

    @property
    def step_us(self) -> float | None:
        """Predicted step time in microseconds; None if unknown."""
        if self.analysis is not None and self.analysis.time is not None:
            return self.analysis.time.step_us
        return None if self.baseline.step is None else self.baseline.step.step_us

    @property
    def step_bound(self) -> Bound | None:
        """The kind of the step time, exact or a bound; None if unknown."""
        if self.analysis is not None and self.analysis.time is not None:
            return self.analysis.time.bound
        return None if self.baseline.step is None else self.baseline.step.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """The means to find and compile named programs.

    Attributes:
        config: The targets file that the user named; None to look for it.
        cached: Whether compiles are kept and taken from the cache.
        timeout_s: As for `run_jobs`.
        wanted: The stage of a compile that is enough.
    """

    config: Path | None
    cached: bool
    timeout_s: float | None
    wanted: CompileStage


@front_door
@accept_options(TargetOptions)
def diff(
    old: Target,
    new: Target | None = None,
    *,
    args: Any = None,
    base: str | None = None,
    equivalent: bool = False,
    config: str | Path | None = None,
    cached: bool = True,
    stage: str = CompileStage.COMPILED,
    **options: Unpack[TargetOptions],
) -> DiffDocument:
    """Compares two programs: what they move, multiply and take. Collectives are matched by kind and source.

    Example:
        >>> print(hloscope.diff(step, other_step, args=types, mesh={"X": 4, "Y": 2}))
        >>> by_rows, by_columns = ("bf16[512@X,2048]", w), ("bf16[512,2048@X]", w)  # one function, two specs
        >>> hloscope.diff(*(hloscope.analyze(step, types, mesh={"X": 8}) for types in (by_rows, by_columns)))
        >>> hloscope.diff("model.py:step", base="main").same

    Args:
        old: The program before: as for `analyze`, or an analysis; the path of a JSON report or a baseline; or a name in
            the targets file.
        new: The program after; None with `base`.
        args: For functions, one entry per positional argument of each, as for `analyze`.
        base: A git revision: `old` in that revision is the program before, and `old` in the working tree the one after.
        equivalent: Whether spellings that the compiler may exchange count as the same.
        config: The targets file; by default the nearest one in the current folder or its parents.
        cached: Whether to use the compile cache for names. False recompiles them and stores nothing.
        stage: As for `analyze`. Steps are compared only if both are read at the same stage.
        {options}

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects one of the programs.
    """
    old = old if isinstance(old, Analysis) else check_target(old, "old")
    new = new if new is None or isinstance(new, Analysis) else check_target(new, "new")
    base = None if base is None else calls.text("base", base, example='base="main"')
    if (new is None) is (base is None):
        fix = 'write diff(old, new), or diff("model.py:step", base="main")'
        raise TargetError("two programs are needed" if new is None else "base requires a single program", fix=fix)
    facts: dict[str, Any] = {"args": args, **options}
    make_facts(**facts)  # to check them
    if isinstance(old, Analysis) and isinstance(new, Analysis):
        refuse_beside_analysis(facts)
    said = {name: value for name, value in facts.items() if value is not None}
    written = TargetConfig(name="", slices=(said.pop("slice", None),), options=said)
    file = calls.path("config", config, example='config="hloscope.toml"')
    if base is not None and not isinstance(old, str):
        raise TargetError("a revision contains no Python objects", fix='name the function, such as "model.py:step"')
    programs = (old,) if new is None else (old, new)
    return find_difference(
        programs,
        written,
        Compiling(config=file, cached=cached, timeout_s=None, wanted=parse_stage(stage)),
        facts=facts,
        base=base,
        equivalent=equivalent,
    )


def find_difference(
    programs: Sequence[Target],
    written: TargetConfig,
    how: Compiling,
    *,
    facts: Mapping[str, Any],
    door: FrontDoor = PYTHON,
    base: str | None,
    equivalent: bool,
) -> DiffDocument:
    """Compares two programs, or with `base` one with itself in a git revision.

    Args:
        programs: The programs: names as for `find_sides`, or objects as for `diff`.
        written: The options of named functions and HLO texts.
        how: How named programs are found and compiled.
        facts: The options of objects.
        door: The front door.
        base: The git revision.
        equivalent: As for `diff`.

    Raises:
        HloscopeError: As for `diff`.
    """
    names = [program for program in programs if isinstance(program, str)]
    with door.quiet(), door.progress() as stage:
        stage("compiling")
        if base is not None:
            sides = _find_old_and_new_side(names[0], base, written, how)
        else:
            named = iter(find_sides(names, written, how))
            sides = [
                next(named) if isinstance(program, str) else _make_side(program, written, facts, how.wanted)
                for program in programs
            ]
    return compare_sides(*sides, equivalent=equivalent)


def _make_side(target: Any, written: TargetConfig, facts: Mapping[str, Any], wanted: CompileStage) -> Side:
    if isinstance(target, Path):
        side = read_side(target, str(target), written)
        if side is None:
            raise TargetError(f"{target} is not a report, a baseline or an HLO file", fix=f"write '{target}:FUNCTION'")
        return side
    stage = CompileStage.COMPILED if is_compiled(target) else wanted
    found = target if isinstance(target, Analysis) else analyze(target, stage=stage, trials=False, **facts)
    return Side.of(found.target, found)


def _find_old_and_new_side(name: str, base: str, written: TargetConfig, how: Compiling) -> list[Side]:
    """The sides of a target in a revision and in the working tree."""
    here = Path.cwd()
    with check_out_revision(base, here) as older:
        then = None if how.config is None else _find_old_config(how.config, older, base)
        jobs = [
            *make_jobs([name], written, start=older.here(here.resolve()) or here, config=then, checkout=older),
            *make_jobs([name], written, start=here, config=how.config),
        ]
        old, new = _analyze_sides(jobs, how)
    return [replace(old, name=f"{name} in {base}"), new]


def _find_old_config(config: Path, older: Checkout, revision: str) -> Path:
    then = older.here(config.resolve())
    if then is None:
        raise TargetError(
            f"{config} does not exist in {revision}", fix="name a targets file that exists in the revision"
        )
    return then


def find_sides(programs: Sequence[str], written: TargetConfig, how: Compiling) -> list[Side]:
    """The programs with these names: files, functions, and targets of the targets file.

    Args:
        programs: The names.
        written: The options of functions and of HLO text.
        how: How they are found and compiled.

    Raises:
        HloscopeError: The input is invalid, or one of them cannot be analyzed.
    """
    sides = {name: read_side(Path(name), name, written) for name in programs if os.path.isfile(split_module(name)[0])}
    to_compile = [name for name in programs if sides.get(name) is None]
    for name in to_compile:
        if is_hlo_target(name) or name.endswith(".json"):
            raise TargetError(f"there is no file {split_module(name)[0]}", fix="use the path from the current folder")
    jobs = make_jobs(to_compile, written, start=Path.cwd(), config=how.config)
    sides |= dict(zip(to_compile, _analyze_sides(jobs, how), strict=True))
    return [side for name in programs if (side := sides[name]) is not None]


def compare_sides(old: Side, new: Side, *, equivalent: bool = False) -> DiffDocument:
    """Matches the communication of two programs, and judges it as a check judges a program against its baseline.

    If one of them is a baseline, the other's communication is taken from its own baseline.
    """
    before, after = _list_collectives(old, new)
    compared = match(before, after, equivalent=equivalent)
    names = label_programs((old.name, new.name), (old.analysis, new.analysis))
    sides = zip(names, (old, new), strict=True)
    not_understood = tuple(name for name, side in sides if side.baseline.not_understood)
    judged = judge_two(old.baseline, new.baseline, new.analysis, was=old.analysis, root=new.root, called=names[0])
    found = DiffDocument(
        old=names[0],
        new=names[1],
        same=compared.same and not not_understood and judged.judgement is Judgement.SAME,
        changes=tuple(map(make_listed_change, compared.changes)),
        unsure=len(compared.unsure),
        not_understood=not_understood,
        unlike=tuple(_describe_unlike(old.baseline, new.baseline)),
        totals=TwoTotals(old=compared.old_total, new=compared.new_total),
        tallies=compared.tallies,
        peak_bytes=(old.baseline.memory.peak_bytes, new.baseline.memory.peak_bytes),
        step_us=(old.step_us, new.step_us),
        step_bounds=(old.step_bound, new.step_bound),
        judged=judged,
    )
    return attach_sides(found, (old.analysis, new.analysis))


def _list_collectives(old: Side, new: Side) -> tuple[Sequence[Collective], Sequence[Collective]]:
    if old.analysis is not None and new.analysis is not None:
        return old.analysis.collectives, new.analysis.collectives
    return to_collectives(old.baseline.rows, new.baseline.rows, dict(new.baseline.mesh or ()))


def _describe_unlike(old: Baseline, new: Baseline) -> Iterator[str]:
    """The differences of slice and mesh between two programs, because of which their bytes are not comparable."""
    meshes = [",".join(f"{name}={size}" for name, size in side.mesh or ()) for side in (old, new)]
    for what, before, after in (("slices", old.slice, new.slice), ("meshes", *meshes)):
        if before != after:
            yield f"the {what} differ: {before or 'none'} and {after or 'none'}"


def read_side(path: Path, name: str, target: TargetConfig) -> Side | None:
    """The side of a baseline, a JSON report or an HLO file; None for any other file, such as Python.

    Args:
        path: The file.
        name: Name as given by the user.
        target: The mesh and the slice of HLO text.

    Raises:
        HloscopeError: The file is not valid for its kind.
    """
    if path.suffix == ".py":
        return None
    if path.suffix == ".json":
        return Side.of(name, read_report(path, name))
    if path.suffix == ".txt" and is_baseline(path):
        return Side(name=name, baseline=read_baselines(path)[0])
    if not is_hlo_target(path):
        return None
    beside = {key: value for key, value in target.options.items() if OPTIONS_BY_NAME[key].of_text}
    return Side.of(name, analyze_hlo(read_hlo_text(path), name=name, slice=target.slices[0], **beside))


def make_jobs(
    names: Sequence[str],
    options: TargetConfig,
    *,
    start: Path,
    config: Path | None,
    checkout: Checkout | None = None,
) -> list[Job]:
    """The jobs of targets, given by their names in the targets file, or as `file.py:fn` with options.

    Args:
        names: The targets.
        options: The options of functions.
        start: The folder to begin at.
        config: The targets file that the user named; None to look for it.
        checkout: The older state that `start` is in; None for the working tree.

    Raises:
        HloscopeError: There is no such target.
    """
    jobs = []
    for name in names:
        if ":" in name.partition("@")[0]:
            made = replace(options, name=name, function=name)
            jobs.append(Job(name=name, target=made, slice=options.slices[0], root=start, baseline=None))
        else:
            jobs.append(_find_configured_job(name, start, config, checkout))
    return [replace(job, checkout=checkout) for job in jobs]


def _find_configured_job(name: str, start: Path, config: Path | None, checkout: Checkout | None) -> Job:
    """The job of a target of the targets file; a mistake in an older one is reported with its revision."""
    try:
        return _find_job(name, find_project(start, named=config))
    except ConfigError as error:
        if checkout is None or isinstance(error, ConfigMistakesError):
            raise
        where = (error.where or "").replace(str(checkout.folder), str(checkout.working_tree))
        error.where = ", ".join(filter(None, (where, f"in {checkout.revision}")))
        raise


def _find_job(name: str, project: ProjectConfig) -> Job:
    jobs = list_jobs(project, [name])
    if len(jobs) == 1:
        return jobs[0]
    choices = ", ".join(job.name for job in jobs)
    raise ConfigError(f"{name} does not name a slice", where=str(project.path), fix=f"use one of {choices}")


def _analyze_sides(jobs: Sequence[Job], how: Compiling) -> list[Side]:
    """Analyzes targets.

    Raises:
        TargetError: One of them cannot be analyzed.
    """
    sides = []
    numbered = [
        replace(job, name=f"{index} {job.name}", keeps_program=True, wanted=how.wanted, baseline=None)
        for index, job in enumerate(jobs)
    ]
    for job, outcome in zip(jobs, run_jobs(numbered, cached=how.cached, timeout_s=how.timeout_s), strict=True):
        if outcome.analysis is None:
            first, _, rest = (outcome.error or "").removeprefix("error: ").partition("\n")
            raise TargetError(f"{job.name}: {first}", why=rest.strip() or None)
        found = outcome.analysis if outcome.evidence is None else attach_evidence(outcome.analysis, outcome.evidence)
        sides.append(Side.of(job.name, found, root=job.root))
    return sides


@contextmanager
def check_out_revision(name: str, start: Path) -> Iterator[Checkout]:
    """Checks out a git revision of the repository that contains `start`, in a temporary folder.

    Raises:
        HloscopeError: `start` is in no repository, or there is no such revision.
    """
    top = Path(run_git("rev-parse", "--show-toplevel", cwd=start).decode().strip()).resolve()
    commit = run_git(
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
        cwd=start,
        what=f"there is no revision {name}",
        fix=say(
            f"a shallow clone has none but its own: git fetch --depth=1 origin {name}, then ",
            Option("base", "FETCH_HEAD"),
        )
        if run_git("rev-parse", "--is-shallow-repository", cwd=start).strip() == b"true"
        else None,
    )
    with tempfile.TemporaryDirectory(prefix="hloscope-base-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary).resolve() / "base"
        _unpack(commit.decode().strip(), top, folder)
        unpacked = Checkout(revision=name, folder=folder, working_tree=top)
        if unpacked.here(start.resolve()) is None:
            raise HloscopeError(f"{start} does not exist in {name}", fix="name a revision that has it")
        yield unpacked


def _unpack(commit: str, repository: Path, folder: Path) -> None:
    """Writes the files of a commit like a checkout, with a separate index, so that the repository stays unchanged."""
    folder.mkdir()
    index = {"GIT_INDEX_FILE": str(folder.with_name("index"))}
    run_git("read-tree", commit, cwd=repository, environment=index)
    run_git("checkout-index", "--all", f"--prefix={folder}/", cwd=repository, environment=index)
